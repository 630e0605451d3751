/* The bytes of a choice's chunks: those that protobuf-c makes of the same message. */
#include "coordinator/choice.h"

#include <grpc/byte_buffer.h>
#include <grpc/grpc.h>
#include <grpc/slice.h>

#include "core/alloc.h"
#include "proto/rpc.h"
#include "tests/support/test.h"

enum { MOST = 40 };

static void same_bytes(grpc_byte_buffer *a, grpc_byte_buffer *b)
{
    grpc_slice x = a->data.raw.slice_buffer.slices[0], y = b->data.raw.slice_buffer.slices[0];

    EXPECT_EQ(a->data.raw.slice_buffer.count, 1);
    EXPECT_EQ(GRPC_SLICE_LENGTH(x), GRPC_SLICE_LENGTH(y));
    EXPECT(grpc_slice_eq(x, y));
}

static void check_chunk(const bt_choice_facts *facts, uint32_t index, const uint32_t *ids,
                        uint32_t n)
{
    bt_intake_answer                      how = {.stream = true, .n = 1};
    Vllm__Grpc__Engine__GenerateResponse *m;
    grpc_byte_buffer                     *bytes, *again;
    bt_choice                             c;

    EXPECT_EQ(bt_choice_init(&c, &how, MOST, NULL), BT_OK);
    c.index = index;
    for (uint32_t i = 0; i < n; i++)
        bt_choice_token(&c, &(bt_token){.id = ids[i], .logprob = -0.25f});
    bytes = bt_choice_chunk(&c, facts);
    EXPECT_EQ(c.n_sent, n);
    m = (Vllm__Grpc__Engine__GenerateResponse *)bt_rpc_unpack(
        bytes, &vllm__grpc__engine__generate_response__descriptor);
    EXPECT(m != NULL && m->response_case == VLLM__GRPC__ENGINE__GENERATE_RESPONSE__RESPONSE_CHUNK);
    EXPECT_EQ(m->chunk->n_token_ids, n);
    for (uint32_t i = 0; i < n; i++)
        EXPECT_EQ(m->chunk->token_ids[i], ids[i]);
    EXPECT_EQ(m->chunk->prompt_tokens, facts->n_prompt);
    EXPECT_EQ(m->chunk->completion_tokens, n);
    EXPECT_EQ(m->chunk->cached_tokens, facts->n_cached);
    EXPECT_EQ(m->chunk->index, index);
    EXPECT_EQ(m->chunk->output_logprobs != NULL, facts->logprobs);
    again = bt_rpc_pack(&m->base); /* nothing unknown was in it, and the order is the same */
    same_bytes(bytes, again);
    grpc_byte_buffer_destroy(bytes);
    grpc_byte_buffer_destroy(again);
    protobuf_c_message_free_unpacked(&m->base, NULL);
    bt_choice_fini(&c);
}

static void choice_chunks_are_what_protobuf_makes_of_them(void)
{
    const uint32_t numbers[] = {0, 1, 127, 128, 16383, 16384, 1 << 21, 1 << 28, UINT32_MAX};
    const uint32_t n_numbers = sizeof(numbers) / sizeof(numbers[0]);
    uint32_t       ids[MOST];

    EXPECT_EQ(vllm__grpc__engine__generate_stream_chunk__descriptor.n_fields, 7); /* those below */
    for (uint32_t shift = 0; shift < n_numbers; shift++)
        for (uint32_t n = 1; n <= MOST; n++) {
            bt_choice_facts facts = {.n_prompt = numbers[1 + (shift + n) % (n_numbers - 1)],
                                     .n_cached = numbers[(shift + 2 * n) % n_numbers]};

            for (uint32_t i = 0; i < n; i++)
                ids[i] = numbers[(shift + i) % n_numbers];
            check_chunk(&facts, numbers[shift], ids, n);
            facts.logprobs = true;
            check_chunk(&facts, numbers[shift], ids, n);
        }
}

static void choice_chunks_of_the_longest_numbers_fit(void)
{
    const bt_choice_facts facts = {.n_prompt = UINT32_MAX, .n_cached = UINT32_MAX};
    uint32_t              ids[MOST];

    memset(ids, 0xff, sizeof(ids));
    for (uint32_t n = 1; n <= MOST; n++)
        check_chunk(&facts, UINT32_MAX, ids, n);
}

static const bt_test tests[] = {
    BT_TEST(choice_chunks_are_what_protobuf_makes_of_them),
    BT_TEST(choice_chunks_of_the_longest_numbers_fit),
};

int main(int argc, char **argv)
{
    int rc;

    grpc_init();
    rc = BT_RUN_TESTS(tests, argc > 1 ? argv[1] : NULL);
    grpc_shutdown_blocking();
    return rc;
}

/* The bytes of a choice's chunks: those that protobuf-c makes of the same message; its memory. */
#include "coordinator/dialect.h"

#include <grpc/byte_buffer.h>
#include <grpc/grpc.h>
#include <grpc/slice.h>

#include "core/alloc.h"
#include "proto/rpc.h"
#include "proto/sglang_scheduler.pb-c.h"
#include "proto/vllm_engine.pb-c.h"
#include "tests/support/test.h"

enum { MOST = 40, BEFORE = 3 }; /* tokens; those that chunks before have carried */

static void same_bytes(grpc_byte_buffer *a, grpc_byte_buffer *b)
{
    grpc_slice x = a->data.raw.slice_buffer.slices[0], y = b->data.raw.slice_buffer.slices[0];

    EXPECT_EQ(a->data.raw.slice_buffer.count, 1);
    EXPECT_EQ(GRPC_SLICE_LENGTH(x), GRPC_SLICE_LENGTH(y));
    EXPECT(grpc_slice_eq(x, y));
}

/* One for each protocol, whose messages have the same names for the same things. */
#define CHUNK_CHECK(dialect, Prefix, PREFIX, descriptor_, name_of, n_before)                       \
    static void check_##dialect(const bt_choice_facts *facts, uint32_t index, const uint32_t *ids, \
                                uint32_t n)                                                        \
    {                                                                                              \
        bt_intake_answer          how = {.stream = true, .n = 1};                                  \
        bt_finish                 finish;                                                          \
        Prefix##GenerateResponse *m;                                                               \
        grpc_byte_buffer         *bytes, *again;                                                   \
        bt_choice                 c;                                                               \
                                                                                                   \
        EXPECT_EQ(bt_choice_init(&c, &how, NULL), BT_OK);                                          \
        c.index = index;                                                                           \
        for (uint32_t i = 0; i < n; i++)                                                           \
            EXPECT_EQ(bt_choice_token(&c, &(bt_token){.id = ids[i], .logprob = -0.25f}, &finish),  \
                      BT_OK);                                                                      \
        c.n_sent = BEFORE < n ? BEFORE : 0;                                                        \
        ids += c.n_sent;                                                                           \
        n -= c.n_sent;                                                                             \
        bytes = bt_dialect_##dialect.chunk(&c, facts);                                             \
        EXPECT_EQ(c.n_sent, c.n);                                                                  \
        m = (Prefix##GenerateResponse *)bt_rpc_unpack(bytes, &descriptor_);                        \
        EXPECT(m != NULL && m->response_case == PREFIX##GENERATE_RESPONSE__RESPONSE_CHUNK);        \
        EXPECT(strcmp(name_of, facts->name) == 0);                                                 \
        EXPECT_EQ(m->chunk->n_token_ids, n);                                                       \
        for (uint32_t i = 0; i < n; i++)                                                           \
            EXPECT_EQ(m->chunk->token_ids[i], ids[i]);                                             \
        EXPECT_EQ(m->chunk->prompt_tokens, facts->n_prompt);                                       \
        EXPECT_EQ(m->chunk->completion_tokens, n + (n_before));                                    \
        EXPECT_EQ(m->chunk->cached_tokens, facts->n_cached);                                       \
        EXPECT_EQ(m->chunk->index, index);                                                         \
        EXPECT_EQ(m->chunk->output_logprobs != NULL, facts->logprobs);                             \
        again = bt_rpc_pack(&m->base); /* nothing unknown was in it, and the order is the same */  \
        same_bytes(bytes, again);                                                                  \
        grpc_byte_buffer_destroy(bytes);                                                           \
        grpc_byte_buffer_destroy(again);                                                           \
        protobuf_c_message_free_unpacked(&m->base, NULL);                                          \
        bt_choice_fini(&c);                                                                        \
    }

CHUNK_CHECK(vllm, Vllm__Grpc__Engine__, VLLM__GRPC__ENGINE__,
            vllm__grpc__engine__generate_response__descriptor, facts->name, 0)
CHUNK_CHECK(sglang, Sglang__Grpc__Scheduler__, SGLANG__GRPC__SCHEDULER__,
            sglang__grpc__scheduler__generate_response__descriptor, m->request_id, c.n - n)

static void check_chunk(const bt_choice_facts *facts, uint32_t index, const uint32_t *ids,
                        uint32_t n)
{
    check_vllm(facts, index, ids, n);
    check_sglang(facts, index, ids, n);
}

static void choice_chunks_are_what_protobuf_makes_of_them(void)
{
    const uint32_t numbers[] = {0, 1, 127, 128, 16383, 16384, 1 << 21, 1 << 28, UINT32_MAX};
    const uint32_t n_numbers = sizeof(numbers) / sizeof(numbers[0]);
    uint32_t       ids[MOST];

    /* Those that are checked. */
    EXPECT_EQ(vllm__grpc__engine__generate_stream_chunk__descriptor.n_fields, 7);
    EXPECT_EQ(sglang__grpc__scheduler__generate_stream_chunk__descriptor.n_fields, 7);
    for (uint32_t shift = 0; shift < n_numbers; shift++)
        for (uint32_t n = 1; n <= MOST; n++) {
            bt_choice_facts facts = {.name     = "a request",
                                     .n_prompt = numbers[1 + (shift + n) % (n_numbers - 1)],
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
    char            name[BT_INTAKE_NAME_MAX + 1];
    bt_choice_facts facts = {.name = name, .n_prompt = UINT32_MAX, .n_cached = UINT32_MAX};
    uint32_t        ids[MOST];

    memset(ids, 0xff, sizeof(ids));
    memset(name, 'x', BT_INTAKE_NAME_MAX);
    name[BT_INTAKE_NAME_MAX] = 0;
    for (uint32_t n = 1; n <= MOST; n++)
        check_chunk(&facts, UINT32_MAX, ids, n);
}

/* Memory comes with the tokens, not with what the request may have of them. */
static void choice_memory_grows_with_its_tokens(void)
{
    enum { TOP = 20, TOKENS = 1000 };
    bt_intake_answer how   = {.n = 1, .n_top = TOP, .logprobs = true};
    bt_token         token = {.n_top = TOP, .finish = BT_FINISH_NONE};
    bt_finish        finish;
    bt_choice        c;
    long             live = bt_alloc_live();

    EXPECT_EQ(bt_choice_init(&c, &how, NULL), BT_OK);
    EXPECT_EQ(bt_alloc_live(), live);
    for (uint32_t i = 0; i < TOKENS; i++) {
        token.id         = i;
        token.logprob    = -(float)i;
        token.top_ids[0] = i + 1;
        EXPECT_EQ(bt_choice_token(&c, &token, &finish), BT_OK);
        EXPECT(c.capacity < 2 * c.n + 64);
    }
    for (uint32_t i = 0; i < TOKENS; i++)
        EXPECT(c.ids[i] == i && c.logprobs[i] == -(float)i && c.tops[i] == TOP &&
               c.top_ids[(size_t)i * TOP] == i + 1);
    bt_choice_fini(&c);
    EXPECT_EQ(bt_alloc_live(), live);
}

static void choice_short_memory_leaves_it_as_it_was(void)
{
    bt_intake_answer how   = {.n = 1, .n_top = 1};
    bt_token         token = {.n_top = 1};
    bt_finish        finish;
    bt_choice        c;
    long             live = bt_alloc_live(), k;

    EXPECT_EQ(bt_choice_init(&c, &how, NULL), BT_OK);
    while (c.n < 128) {
        for (k = 0;; k++) {
            bt_alloc_fail_at(k);
            token.id = c.n;
            if (bt_choice_token(&c, &token, &finish) == BT_OK) break;
            EXPECT_EQ(c.n, token.id);
        }
        bt_alloc_fail_at(-1);
        EXPECT_EQ(k, token.id == 0 || token.id == 64 ? 5 : 0);
    }
    for (uint32_t i = 0; i < c.n; i++)
        EXPECT_EQ(c.ids[i], i);
    bt_choice_fini(&c);
    EXPECT_EQ(bt_alloc_live(), live);
}

static const bt_test tests[] = {
    BT_TEST(choice_chunks_are_what_protobuf_makes_of_them),
    BT_TEST(choice_chunks_of_the_longest_numbers_fit),
    BT_TEST(choice_memory_grows_with_its_tokens),
    BT_TEST(choice_short_memory_leaves_it_as_it_was),
};

int main(int argc, char **argv)
{
    int rc;

    grpc_init();
    rc = BT_RUN_TESTS(tests, argc > 1 ? argv[1] : NULL);
    grpc_shutdown_blocking();
    return rc;
}

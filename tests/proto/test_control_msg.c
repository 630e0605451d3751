/* Control messages: there and back, hostile bytes, values out of range, short memory. */
#include "proto/control_msg.h"

#include <math.h>

#include "proto/control_pb.h"
#include "tests/proto/control_samples.h"
#include "tests/support/test.h"

static void roundtrip_up(bt_up_kind kind)
{
    bt_up    m = sample_up(kind), back = {0};
    uint8_t *bytes = NULL, *again = NULL;
    size_t   n = 0, n_again = 0;

    EXPECT_EQ(bt_up_pack(&m, &bytes, &n), BT_OK);
    EXPECT_EQ(bt_up_unpack(bytes, n, &back), BT_OK);
    EXPECT_EQ(back.kind, kind);
    EXPECT_EQ(bt_up_pack(&back, &again, &n_again), BT_OK);
    EXPECT(n == n_again && memcmp(bytes, again, n) == 0);
    bt_up_free(&m);
    bt_up_free(&back);
    bt_free(bytes);
    bt_free(again);
}

static void roundtrip_down(bt_down_kind kind)
{
    bt_down  m = sample_down(kind), back = {0};
    uint8_t *bytes = NULL, *again = NULL;
    size_t   n = 0, n_again = 0;

    EXPECT_EQ(bt_down_pack(&m, &bytes, &n), BT_OK);
    EXPECT_EQ(bt_down_unpack(bytes, n, &back), BT_OK);
    EXPECT_EQ(back.kind, kind);
    EXPECT_EQ(bt_down_pack(&back, &again, &n_again), BT_OK);
    EXPECT(n == n_again && memcmp(bytes, again, n) == 0);
    bt_down_free(&m);
    bt_down_free(&back);
    bt_free(bytes);
    bt_free(again);
}

static void control_msg_every_kind_comes_back(void)
{
    long live = bt_alloc_live();

    for (int kind = BT_UP_HELLO; kind <= BT_UP_LEAVING; kind++)
        roundtrip_up((bt_up_kind)kind);
    for (int kind = BT_DOWN_WELCOME; kind <= BT_DOWN_SHUTDOWN; kind++)
        roundtrip_down((bt_down_kind)kind);
    EXPECT_EQ(bt_alloc_live(), live);
}

static void control_msg_fields_keep_their_values(void)
{
    bt_up    m = sample_up(BT_UP_TOKENS), back = {0};
    bt_down  d = sample_down(BT_DOWN_PREFILL), dback = {0};
    uint8_t *bytes = NULL;
    size_t   n     = 0;

    EXPECT_EQ(bt_up_pack(&m, &bytes, &n), BT_OK);
    EXPECT_EQ(bt_up_unpack(bytes, n, &back), BT_OK);
    EXPECT_EQ(back.u.tokens.n, 2);
    EXPECT_EQ(back.u.tokens.tokens[1].request, 10);
    EXPECT_EQ(back.u.tokens.tokens[1].choice, 1);
    EXPECT_EQ(back.u.tokens.tokens[1].position, 13);
    EXPECT_EQ(back.u.tokens.tokens[1].epoch, 2);
    EXPECT_EQ(back.u.tokens.tokens[0].id, 31999);
    EXPECT(back.u.tokens.tokens[0].logprob == -0.25f);
    EXPECT_EQ(back.u.tokens.tokens[1].finish, BT_FINISH_LENGTH);
    EXPECT_EQ(back.u.tokens.tokens[0].n_top, 2);
    EXPECT_EQ(back.u.tokens.tokens[0].top_ids[1], 4);
    EXPECT(back.u.tokens.tokens[0].top_logprobs[1] == -2.5f);
    EXPECT_EQ(back.u.tokens.tokens[1].n_top, 0);
    bt_free(bytes);
    EXPECT_EQ(bt_down_pack(&d, &bytes, &n), BT_OK);
    EXPECT_EQ(bt_down_unpack(bytes, n, &dback), BT_OK);
    EXPECT_EQ(dback.u.prefill.n_prompt, 5);
    EXPECT_EQ(dback.u.prefill.prompt[4], 1028);
    EXPECT_EQ(dback.u.prefill.pages[1].generation, 101);
    EXPECT_EQ(dback.u.prefill.sampling.seed, 1ull << 63);
    EXPECT_EQ(dback.u.prefill.sampling.stop_tokens[1], 1007);
    EXPECT_EQ(dback.u.prefill.n_eval_expert_bytes, 20);
    EXPECT_EQ(dback.u.prefill.sampling.top_k, 4);
    EXPECT(dback.u.prefill.sampling.top_p == 0.75f && dback.u.prefill.sampling.min_p == 0.125f);
    EXPECT(dback.u.prefill.sampling.frequency_penalty == 1.5f);
    EXPECT(dback.u.prefill.sampling.presence_penalty == -1.5f);
    EXPECT(dback.u.prefill.sampling.repetition_penalty == 1.25f);
    EXPECT_EQ(dback.u.prefill.sampling.min_tokens, 2);
    EXPECT(dback.u.prefill.n_choices == 2 && dback.u.prefill.choices[1] == 5);
    EXPECT_EQ(dback.u.prefill.sampling.prompt_logprobs, 3);
    EXPECT_EQ(dback.u.prefill.sampling.top_logprobs, 5);
    EXPECT_EQ(dback.u.prefill.sampling.bias_ids[2], d.u.prefill.sampling.bias_ids[2]);
    EXPECT(dback.u.prefill.sampling.biases[2] == -7.5f);
    EXPECT_EQ(dback.u.prefill.sampling.constraint_kind, 2);
    EXPECT_EQ(dback.u.prefill.sampling.constraint_after, 1008);
    EXPECT(dback.u.prefill.sampling.n_constraint_bytes == 3 &&
           memcmp(dback.u.prefill.sampling.constraint, "a\nb", 3) == 0);
    bt_free(bytes);
    bt_up_free(&m);
    bt_up_free(&back);
    bt_down_free(&d);
    bt_down_free(&dback);
}

/* The quick reader takes what our packer writes, and reads in it what the general one does. */
static void control_msg_tokens_are_read_alike_both_ways(void)
{
    bt_up    m = sample_up(BT_UP_TOKENS), quick = {0}, plain = {0};
    uint8_t *bytes = NULL;
    size_t   n     = 0;

    EXPECT_EQ(bt_up_pack(&m, &bytes, &n), BT_OK);
    EXPECT(bt_pb_tokens(bytes, n, &quick));
    EXPECT_EQ(bt_pb_up(bytes, n, &plain), BT_OK);
    EXPECT_EQ(quick.u.tokens.n, plain.u.tokens.n);
    EXPECT(memcmp(quick.u.tokens.tokens, plain.u.tokens.tokens,
                  plain.u.tokens.n * sizeof(bt_token)) == 0);
    bt_up_free(&quick);
    for (size_t cut = 0; cut < n; cut++)
        EXPECT(!bt_pb_tokens(bytes, cut, &quick));
    for (size_t at = 0; at < n; at++)
        for (int bit = 0; bit < 8; bit++) { /* whatever it still takes, both take alike */
            bytes[at] ^= (uint8_t)(1 << bit);
            if (bt_pb_tokens(bytes, n, &quick)) {
                bt_up other = {0};

                EXPECT_EQ(bt_pb_up(bytes, n, &other), BT_OK);
                EXPECT_EQ(other.u.tokens.n, quick.u.tokens.n);
                EXPECT(memcmp(quick.u.tokens.tokens, other.u.tokens.tokens,
                              quick.u.tokens.n * sizeof(bt_token)) == 0);
                bt_up_free(&other);
                bt_up_free(&quick);
            }
            bytes[at] ^= (uint8_t)(1 << bit);
        }
    bt_free(bytes);
    bt_up_free(&m);
    bt_up_free(&plain);
}

static void control_msg_regroup_keeps_its_seats(void)
{
    bt_down  m = sample_down(BT_DOWN_REGROUP), back = {0};
    bt_up    up = sample_up(BT_UP_EXPIRED), up_back = {0};
    uint8_t *bytes = NULL;
    size_t   n     = 0;

    EXPECT_EQ(bt_down_pack(&m, &bytes, &n), BT_OK);
    EXPECT_EQ(bt_down_unpack(bytes, n, &back), BT_OK);
    EXPECT(back.u.regroup.epoch == 7 && back.u.regroup.prepare);
    EXPECT(back.u.regroup.groups[0].epoch == 5 && back.u.regroup.groups[0].n == 2);
    EXPECT(back.u.regroup.groups[1].epoch == 7 && back.u.regroup.groups[1].n == 3);
    EXPECT_EQ(back.u.regroup.groups[0].ranks[1], 1007);
    EXPECT_EQ(back.u.regroup.groups[1].ranks[0], BT_NO_RANK);
    EXPECT_EQ(back.u.regroup.groups[1].ranks[1], 0);
    bt_free(bytes);
    EXPECT_EQ(bt_up_pack(&up, &bytes, &n), BT_OK);
    EXPECT_EQ(bt_up_unpack(bytes, n, &up_back), BT_OK);
    EXPECT(up_back.u.expired.epoch == 6 && up_back.u.expired.n == 3 &&
           up_back.u.expired.n_met == 7);
    EXPECT_EQ(up_back.u.expired.ranks[2], 1014);
    EXPECT_HAS(up_back.u.expired.what, "experts of layer 3");
    bt_free(bytes);
    bt_down_free(&m);
    bt_down_free(&back);
    bt_up_free(&up);
    bt_up_free(&up_back);
}

/* splitmix64: the same bytes on every machine. */
static uint64_t next_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* Either refused or understood; never a crash, never a leak. */
static void try_bytes(const uint8_t *bytes, size_t n)
{
    bt_up   up   = {0};
    bt_down down = {0};

    if (bt_up_unpack(bytes, n, &up) == BT_OK) bt_up_free(&up);
    if (bt_down_unpack(bytes, n, &down) == BT_OK) bt_down_free(&down);
}

static void control_msg_garbage_is_refused_or_understood(void)
{
    uint64_t state = 1;
    long     live  = bt_alloc_live();
    uint8_t  bytes[96];

    for (int i = 0; i < 2000; i++) {
        size_t n = next_random(&state) % sizeof(bytes);

        for (size_t k = 0; k < n; k++)
            bytes[k] = (uint8_t)next_random(&state);
        try_bytes(bytes, n);
    }
    EXPECT_EQ(bt_alloc_live(), live);
}

static void control_msg_damaged_is_refused_or_understood(void)
{
    uint64_t state = 2;
    long     live  = bt_alloc_live();

    for (int kind = BT_UP_HELLO; kind <= BT_UP_LEAVING; kind++) {
        bt_up    m     = sample_up((bt_up_kind)kind);
        uint8_t *bytes = NULL;
        size_t   n     = 0;

        EXPECT_EQ(bt_up_pack(&m, &bytes, &n), BT_OK);
        for (size_t cut = 0; cut < n; cut++)
            try_bytes(bytes, cut);
        for (int i = 0; i < 200; i++) {
            size_t  at  = next_random(&state) % n;
            uint8_t was = bytes[at];

            bytes[at] = (uint8_t)next_random(&state);
            try_bytes(bytes, n);
            bytes[at] = was;
        }
        bt_up_free(&m);
        bt_free(bytes);
    }
    EXPECT_EQ(bt_alloc_live(), live);
}

/* Packs m as it is, absurd as it may be, and expects PROTOCOL with the words. */
static void refused_up(bt_up m, const char *words)
{
    bt_up    back  = {0};
    uint8_t *bytes = NULL;
    size_t   n     = 0;

    EXPECT_EQ(bt_up_pack(&m, &bytes, &n), BT_OK);
    EXPECT_EQ(bt_up_unpack(bytes, n, &back), BT_ERR_PROTOCOL);
    EXPECT_HAS(bt_error_text(), words);
    bt_up_free(&m);
    bt_free(bytes);
}

static void refused_down(bt_down m, const char *words)
{
    bt_down  back  = {0};
    uint8_t *bytes = NULL;
    size_t   n     = 0;

    EXPECT_EQ(bt_down_pack(&m, &bytes, &n), BT_OK);
    EXPECT_EQ(bt_down_unpack(bytes, n, &back), BT_ERR_PROTOCOL);
    EXPECT_HAS(bt_error_text(), words);
    bt_down_free(&m);
    bt_free(bytes);
}

/* Of as many alternatives the ids and the logprobs: what is missing would be read all the same. */
static void control_msg_alternatives_without_their_logprobs_are_refused(void)
{
    uint32_t           ids[2]      = {3, 4};
    float              logprobs[2] = {-1, -2};
    PB(FromWorker)     m           = BATON__CONTROL__V1__FROM_WORKER__INIT;
    PB(Tokens)         tokens      = BATON__CONTROL__V1__TOKENS__INIT;
    PB(Token)          token = BATON__CONTROL__V1__TOKEN__INIT, *list[1] = {&token};
    PB(PromptLogprobs) prompt = BATON__CONTROL__V1__PROMPT_LOGPROBS__INIT;
    bt_up              back   = {0};
    uint8_t           *bytes  = NULL;
    size_t             n      = 0;

    token.top_ids = prompt.top_ids = ids;
    token.top_logprobs = prompt.top_logprobs = prompt.logprobs = logprobs;
    tokens.n_tokens                                            = 1;
    tokens.tokens                                              = list;
    prompt.position                                            = 1;
    prompt.n_logprobs                                          = 2;
    for (int i = 0; i < 6; i++) { /* 2 and 1, 1 and 2, 2 and 2 */
        token.n_top_ids = prompt.n_top_ids = i / 2 == 1 ? 1 : 2;
        token.n_top_logprobs = prompt.n_top_logprobs = i / 2 == 0 ? 1 : 2;
        if (i % 2 == 0) {
            m.body_case = BATON__CONTROL__V1__FROM_WORKER__BODY_TOKENS;
            m.tokens    = &tokens;
        } else {
            m.body_case       = BATON__CONTROL__V1__FROM_WORKER__BODY_PROMPT_LOGPROBS;
            m.prompt_logprobs = &prompt;
        }
        EXPECT_EQ(bt_pb_pack(&m.base, &bytes, &n), BT_OK);
        EXPECT_EQ(bt_up_unpack(bytes, n, &back), i / 2 == 2 ? BT_OK : BT_ERR_PROTOCOL);
        bt_up_free(&back);
        bt_free(bytes);
    }
}

static void control_msg_out_of_range_is_refused(void)
{
    bt_up   up;
    bt_down down;
    long    live = bt_alloc_live();

    up                           = sample_up(BT_UP_TOKENS);
    up.u.tokens.tokens[1].finish = (bt_finish)4;
    refused_up(up, "finish 4");
    up               = sample_up(BT_UP_FAILED);
    up.u.failed.code = 17;
    refused_up(up, "code 17");
    up                  = sample_up(BT_UP_TICKET);
    up.u.ticket.refused = true;
    refused_up(up, "3 pages");
    up                    = sample_up(BT_UP_EVAL_ROWS);
    up.u.eval_rows.n_rows = 3;
    refused_up(up, "3 rows");
    up               = sample_up(BT_UP_PEER_LOAD);
    up.u.peer_load.n = 0;
    refused_up(up, "four for each of 1 to");
    up                  = sample_up(BT_UP_HELLO);
    up.u.hello.protocol = 2;
    refused_up(up, "protocol 2, expected 1");
    up = sample_hello(4, 4);
    refused_up(up, "rank 4 of 4");
    up                   = sample_hello(0, 4);
    up.u.hello.n_prefill = 2;
    refused_up(up, "2 prefill and 0 decode");
    up                       = sample_hello(0, 4);
    up.u.hello.eos_tokens[1] = 32000;
    refused_up(up, "token 32000");
    up                   = sample_hello(0, 4);
    up.u.hello.bos_token = -2;
    refused_up(up, "bos -2");
    up                     = sample_up(BT_UP_WAKE_REQUEST);
    up.u.wake_request.wake = UINT64_MAX;
    refused_up(up, "number 18446744073709551615, expected less than 9223372036854775807");
    up                           = sample_up(BT_UP_HELLO);
    up.u.hello.seats.groups[0].n = 0;
    refused_up(up, "a regroup without groups");
    up                                  = sample_up(BT_UP_HELLO);
    up.u.hello.seats.groups[0].ranks[0] = up.u.hello.seats.groups[0].ranks[1];
    refused_up(up, "rank 1007 has two seats");
    up                       = sample_up(BT_UP_HELLO);
    up.u.hello.seats.gone[1] = up.u.hello.seats.gone[0];
    refused_up(up, " is gone twice");
    up               = sample_hello(0, 4);
    up.u.hello.epoch = UINT32_MAX;
    refused_up(up, "epochs 4294967295 and 0, expected at most 2147483647");
    up                     = sample_up(BT_UP_HELLO);
    up.u.hello.seats.epoch = UINT32_MAX;
    refused_up(up, "and 4294967295, expected at most");
    up                 = sample_hello(0, 4);
    up.u.hello.n_pages = 0;
    refused_up(up, "0 pages");
    up                 = sample_hello(0, 4);
    up.u.hello.host[0] = (char)0xff;
    refused_up(up, "Hello.host is not UTF-8 at byte 0 of its ");
    down             = sample_down(BT_DOWN_WAKE);
    down.u.wake.wake = UINT64_MAX;
    refused_down(down, "wake number 18446744073709551615, expected at most");
    down                                = sample_down(BT_DOWN_RESERVE);
    down.u.reserve.sampling.temperature = NAN;
    refused_down(down, "temperature");
    down                                = sample_down(BT_DOWN_RESERVE);
    down.u.reserve.sampling.temperature = -1;
    refused_down(down, "temperature is -1");
    down                    = sample_down(BT_DOWN_RESERVE);
    down.u.reserve.n_prompt = 0;
    refused_down(down, "empty prompt");
    down                = sample_down(BT_DOWN_RESERVE);
    down.u.reserve.eval = false;
    refused_down(down, "not an evaluation");
    down                      = sample_down(BT_DOWN_PREFILL);
    down.u.prefill.choices[1] = down.u.prefill.choices[0];
    refused_down(down, "expected them ascending");
    down                             = sample_down(BT_DOWN_RESERVE);
    down.u.reserve.replay_lengths[0] = 0;
    refused_down(down, "the choices' lengths say ");
    down                               = sample_down(BT_DOWN_PREFILL);
    down.u.prefill.n_eval_expert_bytes = 7;
    refused_down(down, "multiple of 4");
    down                              = sample_down(BT_DOWN_REGROUP);
    down.u.regroup.groups[1].ranks[1] = down.u.regroup.groups[0].ranks[1];
    refused_down(down, "rank 1007 has two seats");
    down                       = sample_down(BT_DOWN_REGROUP);
    down.u.regroup.groups[0].n = 0;
    refused_down(down, "without groups");
    down                 = sample_down(BT_DOWN_WELCOME);
    down.u.welcome.epoch = UINT32_MAX;
    refused_down(down, "a welcome in epoch 4294967295, expected at most 2147483647");
    down                 = sample_down(BT_DOWN_REGROUP);
    down.u.regroup.epoch = UINT32_MAX;
    refused_down(down, "epoch 4294967295, with groups of epochs 5 and 7, expected at most 2147");
    for (uint32_t g = 0; g < 2; g++) {
        down                           = sample_down(BT_DOWN_REGROUP);
        down.u.regroup.groups[g].epoch = UINT32_MAX;
        refused_down(down, g == 0 ? "epochs 4294967295 and 7" : "epochs 5 and 4294967295");
    }
    EXPECT_EQ(bt_alloc_live(), live);
}

static void control_msg_without_body_is_refused(void)
{
    bt_up   up   = {0};
    bt_down down = {0};

    EXPECT_EQ(bt_up_unpack((const uint8_t *)"", 0, &up), BT_ERR_PROTOCOL);
    EXPECT_EQ(bt_down_unpack((const uint8_t *)"", 0, &down), BT_ERR_PROTOCOL);
}

static void control_msg_short_memory_is_an_error_and_no_leak(void)
{
    for (int kind = BT_UP_HELLO; kind <= BT_UP_LEAVING; kind++) {
        bt_up    m     = sample_up((bt_up_kind)kind), back;
        uint8_t *bytes = NULL, *twin = NULL;
        size_t   n = 0, n_twin = 0;
        long     live;

        EXPECT_EQ(bt_up_pack(&m, &bytes, &n), BT_OK);
        live = bt_alloc_live();
        for (long k = 0; k < 40; k++) {
            memset(&back, 0, sizeof(back));
            bt_alloc_fail_at(k);
            if (bt_up_unpack(bytes, n, &back) == BT_OK) bt_up_free(&back);
            bt_alloc_fail_at(k);
            if (bt_up_pack(&m, &twin, &n_twin) == BT_OK) bt_free(twin);
            bt_alloc_fail_at(-1);
            EXPECT_EQ(bt_alloc_live(), live);
        }
        bt_up_free(&m);
        bt_free(bytes);
    }
}

static const bt_test tests[] = {
    BT_TEST(control_msg_every_kind_comes_back),
    BT_TEST(control_msg_fields_keep_their_values),
    BT_TEST(control_msg_tokens_are_read_alike_both_ways),
    BT_TEST(control_msg_regroup_keeps_its_seats),
    BT_TEST(control_msg_garbage_is_refused_or_understood),
    BT_TEST(control_msg_damaged_is_refused_or_understood),
    BT_TEST(control_msg_alternatives_without_their_logprobs_are_refused),
    BT_TEST(control_msg_out_of_range_is_refused),
    BT_TEST(control_msg_without_body_is_refused),
    BT_TEST(control_msg_short_memory_is_an_error_and_no_leak),
};

int main(int argc, char **argv) { return BT_RUN_TESTS(tests, argc > 1 ? argv[1] : NULL); }

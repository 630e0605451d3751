#include <math.h>

#include "tests/support/test.h"
#include "worker/sampler.h"

enum { VOCAB = 2500 }; /* two whole blocks and a part */

static const bt_cpu_row_kernels *g_rows;
static float                     g_logits[VOCAB];

/* Some logits that depend on `salt`. */
static void fill(uint32_t salt)
{
    for (uint32_t i = 0; i < VOCAB; i++) {
        uint32_t h = (i + 1) * 2654435761u ^ salt * 0x9E3779B9u;

        h ^= h >> 15;
        h *= 0x85EBCA6Bu;
        h ^= h >> 13;
        g_logits[i] = (float)(h % 20001) / 1000.0f - 10.0f;
    }
}

static uint32_t sample(bt_sample_how how, float *logprob)
{
    uint32_t id = UINT32_MAX;
    float    unused;

    EXPECT_EQ(bt_sample(g_rows, g_logits, VOCAB, &how, &id, logprob ? logprob : &unused), BT_OK);
    return id;
}

/* Known answers of Random123's Philox4x32-10. */
static void philox_gives_the_published_words(void)
{
    static const uint32_t COUNTERS[3][4] = {
        {0,          0,          0,          0         },
        {~0u,        ~0u,        ~0u,        ~0u       },
        {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
    };
    static const uint32_t KEYS[3][2] = {
        {0,          0         },
        {~0u,        ~0u       },
        {0xa4093822, 0x299f31d0},
    };
    static const uint32_t WANT[3][4] = {
        {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
        {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
        {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1},
    };
    uint32_t got[4];

    for (int i = 0; i < 3; i++) {
        bt_philox4x32(COUNTERS[i], KEYS[i], got);
        for (int k = 0; k < 4; k++)
            EXPECT_EQ(got[k], WANT[i][k]);
    }
}

static void greedy_takes_the_highest_and_of_equals_the_lower_id(void)
{
    fill(1);
    g_logits[2047] = g_logits[1024] = g_logits[2200] = 50.0f;
    EXPECT_EQ(sample((bt_sample_how){.position = 3}, NULL), 1024);
    g_logits[7] = NAN;
    EXPECT_EQ(sample((bt_sample_how){.position = 3}, NULL), 1024);
    g_logits[1023] = 50.5f;
    EXPECT_EQ(sample((bt_sample_how){.position = 3, .temperature = 1e-9f}, NULL), 1023);
}

static void logprob_is_the_raw_log_softmax(void)
{
    double sum     = 0;
    float  logprob = 1;

    fill(2);
    for (uint32_t i = 0; i < VOCAB; i++)
        sum += exp((double)g_logits[i]);
    uint32_t id = sample((bt_sample_how){.logprob = true}, &logprob);
    EXPECT(fabs((double)logprob - ((double)g_logits[id] - log(sum))) < 1e-5);
    EXPECT(fabs((double)bt_log_sum_exp(g_rows, g_logits, VOCAB) - log(sum)) < 1e-5);
    id = sample((bt_sample_how){.logprob = true, .temperature = 5.0f, .seed = 9}, &logprob);
    EXPECT(fabs((double)logprob - ((double)g_logits[id] - log(sum))) < 1e-5);
    sample((bt_sample_how){.temperature = 5.0f, .seed = 9}, &logprob);
    EXPECT(logprob == 0);
}

static void draws_are_a_function_of_seed_choice_and_position(void)
{
    bt_sample_how how = {.temperature = 3.0f, .seed = 77, .choice = 1, .position = 40};
    uint32_t      first, same = 0;

    fill(3);
    first = sample(how, NULL);
    EXPECT_EQ(sample(how, NULL), first);
    for (uint32_t k = 1; k <= 8; k++) {
        bt_sample_how other[3] = {how, how, how};

        other[0].seed += (uint64_t)k << 32;
        other[1].choice += k;
        other[2].position += k;
        for (int i = 0; i < 3; i++)
            same += sample(other[i], NULL) == first;
    }
    EXPECT(same < 4);
}

/* Frequencies against softmax(logits / temperature), over ids in all blocks. */
static void draws_follow_the_distribution(void)
{
    static const uint32_t IDS[] = {0, 1023, 1024, 2499};
    static const float    P[]   = {0.4f, 0.3f, 0.2f, 0.1f};
    enum { DRAWS = 20000 };
    uint32_t counts[4] = {0}, other = 0;

    for (uint32_t i = 0; i < VOCAB; i++)
        g_logits[i] = -INFINITY;
    for (int i = 0; i < 4; i++)
        g_logits[IDS[i]] = 2.0f * logf(P[i]); /* temperature 2 takes the factor out again */
    for (uint32_t k = 0; k < DRAWS; k++) {
        uint32_t id = sample((bt_sample_how){.temperature = 2.0f, .seed = 5, .position = k}, NULL);
        int      i  = 0;

        while (i < 4 && IDS[i] != id)
            i++;
        if (i < 4)
            counts[i]++;
        else
            other++;
    }
    EXPECT_EQ(other, 0);
    for (int i = 0; i < 4; i++)
        EXPECT(fabs((double)counts[i] / DRAWS - (double)P[i]) < 0.015);
}

/* An id with no chance is never drawn, whatever rounding does at the ends. */
static void draws_never_take_an_impossible_id(void)
{
    for (uint32_t i = 0; i < VOCAB; i++)
        g_logits[i] = i == 1030 ? 0.0f : -1000.0f;
    for (uint32_t k = 0; k < 500; k++)
        EXPECT_EQ(sample((bt_sample_how){.temperature = 1.0f, .seed = k}, NULL), 1030);
    g_logits[2400] = NAN;
    EXPECT_EQ(sample((bt_sample_how){.temperature = 1.0f, .seed = 4}, NULL), 1030);
}

static void logits_without_a_finite_number_are_an_error(void)
{
    uint32_t      id = 7;
    float         logprob;
    bt_sample_how how = {.position = 12};

    for (uint32_t i = 0; i < VOCAB; i++)
        g_logits[i] = NAN;
    EXPECT_EQ(bt_sample(g_rows, g_logits, VOCAB, &how, &id, &logprob), BT_ERR_DEVICE);
    EXPECT_HAS(bt_error_text(), "position 12");
    g_logits[4] = INFINITY;
    EXPECT_EQ(bt_sample(g_rows, g_logits, VOCAB, &how, &id, &logprob), BT_ERR_DEVICE);
    EXPECT_EQ(id, 7);
}

/* The same bits in every kernel family of this machine. */
static void families_agree_bit_by_bit(void)
{
    static const char *const  NAMES[] = {"scalar", "avx2", "avx512", "avx512bf16", "amx"};
    const bt_cpu_row_kernels *best    = g_rows;

    for (uint32_t salt = 0; salt < 8; salt++) {
        bt_sample_how how          = {.temperature = 0.7f, .seed = salt, .logprob = true};
        uint32_t      want         = 0;
        float         want_logprob = 0;

        fill(salt);
        for (size_t i = 0; i < sizeof(NAMES) / sizeof(NAMES[0]); i++) {
            const bt_cpu_kernels *k = bt_cpu_kernels_find(NAMES[i]);
            uint32_t              id;
            float                 logprob = 0;

            if (k == NULL) continue;
            g_rows = k->rows;
            id     = sample(how, &logprob);
            if (i == 0) {
                want         = id;
                want_logprob = logprob;
            }
            EXPECT_EQ(id, want);
            EXPECT(memcmp(&logprob, &want_logprob, sizeof(logprob)) == 0);
        }
    }
    g_rows = best;
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {
        BT_TEST(philox_gives_the_published_words),
        BT_TEST(greedy_takes_the_highest_and_of_equals_the_lower_id),
        BT_TEST(logprob_is_the_raw_log_softmax),
        BT_TEST(draws_are_a_function_of_seed_choice_and_position),
        BT_TEST(draws_follow_the_distribution),
        BT_TEST(draws_never_take_an_impossible_id),
        BT_TEST(logits_without_a_finite_number_are_an_error),
        BT_TEST(families_agree_bit_by_bit),
    };

    bt_cpu_flush_denormals();
    g_rows = bt_cpu_kernels_find("auto")->rows;
    return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
}

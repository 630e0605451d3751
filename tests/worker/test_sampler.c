#include <math.h>
#include <string.h>

#include "core/alloc.h"
#include "tests/support/sweep.h"
#include "tests/support/test.h"
#include "tests/worker/sample_oracle.h"
#include "worker/sampler.h"

enum {
    VOCAB      = 2500, /* two whole blocks and a part; 78 whole words of a mask and a part */
    MASK_WORDS = (VOCAB + 31) / 32,
    BT_TOP     = 20
};

static bt_sampler g_sampler;
static float      g_logits[VOCAB];

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

    EXPECT(bt_sample(&g_sampler, g_logits, &how, &id));
    if (logprob != NULL && id < VOCAB)
        bt_logprobs(&g_sampler, g_logits, id, 0, logprob, NULL, NULL);
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
    uint32_t id = sample((bt_sample_how){0}, &logprob);
    EXPECT(fabs((double)logprob - ((double)g_logits[id] - log(sum))) < 1e-5);
    id = sample((bt_sample_how){.temperature = 5.0f, .seed = 9}, &logprob);
    EXPECT(fabs((double)logprob - ((double)g_logits[id] - log(sum))) < 1e-5);
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
    uint32_t      id  = 7;
    bt_sample_how how = {.position = 12};

    for (uint32_t i = 0; i < VOCAB; i++)
        g_logits[i] = NAN;
    EXPECT(!bt_sample(&g_sampler, g_logits, &how, &id));
    g_logits[4] = INFINITY;
    EXPECT(!bt_sample(&g_sampler, g_logits, &how, &id));
    EXPECT_EQ(id, 7);
}

/* The same bits in every kernel family of this machine. */
static void families_agree_bit_by_bit(void)
{
    static const char *const  NAMES[] = {"scalar", "avx2", "avx512", "avx512bf16", "amx", "neon"};
    const bt_cpu_row_kernels *best    = g_sampler.k;

    for (uint32_t salt = 0; salt < 8; salt++) {
        bt_sample_how how  = {.temperature = 0.7f, .seed = salt, .top_p = salt % 2 ? 0.8f : 0};
        uint32_t      want = 0;
        float         want_logprob = 0;

        fill(salt);
        for (size_t i = 0; i < sizeof(NAMES) / sizeof(NAMES[0]); i++) {
            const bt_cpu_kernels *k = bt_cpu_kernels_find(NAMES[i]);
            uint32_t              id;
            float                 logprob = 0;

            if (k == NULL) continue;
            g_sampler.k = k->rows;
            id          = sample(how, &logprob);
            if (i == 0) {
                want         = id;
                want_logprob = logprob;
            }
            EXPECT_EQ(id, want);
            EXPECT(memcmp(&logprob, &want_logprob, sizeof(logprob)) == 0);
        }
    }
    g_sampler.k = best;
}

/* Draws with many counters: only ids that the oracle allows, each about as often as it says. */
static void expect_like_oracle(bt_sample_how how, const oracle_seen *seen, const char *what)
{
    enum { DRAWS = 4000 };
    static double   p[VOCAB];
    static uint32_t counts[VOCAB];
    uint32_t        n = oracle_probabilities(g_logits, VOCAB, &how, seen, p), worst = 0;
    double          distance = 0;

    memset(counts, 0, sizeof(counts));
    for (how.position = 0; how.position < DRAWS; how.position++) {
        uint32_t id = sample(how, NULL);

        if (id >= VOCAB || p[id] == 0) {
            printf("%s: id %u is none of the %u that may come\n", what, id, n);
            EXPECT(false);
            return;
        }
        counts[id]++;
    }
    for (uint32_t i = 0; i < VOCAB; i++) {
        double d = fabs((double)counts[i] / DRAWS - p[i]);

        if (d > distance) {
            distance = d;
            worst    = i;
        }
    }
    if (!(distance <= 0.03))
        printf("%s: id %u came %u times of %d, expected %f\n", what, worst, counts[worst], DRAWS,
               p[worst]);
    EXPECT(distance <= 0.03);
}

static const bt_sample_how HOWS[] = {
    {.temperature = 1.0f,  .seed = 1,   .top_k = 1         },
    {.temperature = 1.0f,  .seed = 2,   .top_k = 7         },
    {.temperature = 0.7f,  .seed = 3,   .top_p = 0.5f      },
    {.temperature = 1.3f,  .seed = 4,   .top_p = 0.95f     },
    {.temperature = 30.0f, .seed = 5,   .top_p = 0.9f      },
    {.temperature = 1.0f,  .seed = 6,   .min_p = 0.3f      },
    {.temperature = 2.0f,  .seed = 7,   .min_p = 0.01f,      .top_p = 0.7f},
    {.temperature = 2.0f,                    .seed = 8,             .min_p = 0.05f,    .top_k = 40, .top_p = 0.6f},
    {.temperature = 2.0f,         .seed = 9,       .top_k = 500,                       .top_p = 0.99f},
    {.temperature = 1.0f,   .seed = 10,.top_p = 1e-6f},
    {.temperature = 1.0f,  .seed = 11, .min_p = 1.0f          },
    {.temperature = 1.0f,  .seed = 12,  .top_k = 1u << 31,        .top_p = 1.0f},
    {.temperature = 0.0f,  .seed = 13,  .top_k = 5,   .top_p = 0.5f, .min_p = 0.5f},
    {.temperature = 0.02f,                    .seed = 14,             .top_p = 0.99f                    },
};

static void filters_agree_with_the_oracle(void)
{
    char what[32];

    for (uint32_t i = 0; i < sizeof(HOWS) / sizeof(HOWS[0]); i++) {
        fill(100 + i);
        snprintf(what, sizeof(what), "case %u", i);
        expect_like_oracle(HOWS[i], NULL, what);
    }
}

/* Of every `one_in` words one is all ones, one is mixed, the others are zeros, but for one id; bits
 * beyond the vocabulary are anything. */
static void fill_mask(uint32_t salt, uint32_t one_in, uint32_t mask[MASK_WORDS])
{
    for (uint32_t w = 0; w < MASK_WORDS; w++) {
        uint32_t h = (w + 1) * 0x9E3779B9u ^ (salt + 1) * 0x85EBCA6Bu;

        h ^= h >> 15;
        h *= 0xC2B2AE35u;
        h ^= h >> 13;
        mask[w] = h % one_in == 0 ? UINT32_MAX : h % one_in == 1 ? h * 0x27D4EB2Fu : 0;
    }
    mask[MASK_WORDS - 1] |= 0xA5A5A5F0u;
    mask[MASK_WORDS - 2] |= 1u << salt % 32;
}

static bool is_set(const uint32_t *mask, uint32_t id) { return mask[id / 32] >> id % 32 & 1; }

static void masks_agree_with_the_oracle(void)
{
    uint32_t mask[MASK_WORDS];
    char     what[32];

    for (uint32_t i = 0; i < sizeof(HOWS) / sizeof(HOWS[0]); i++) {
        bt_sample_how how = HOWS[i];

        fill(200 + i);
        fill_mask(i, 2 + i % 5, mask);
        how.allowed = mask;
        snprintf(what, sizeof(what), "masked case %u", i);
        expect_like_oracle(how, NULL, what);
    }
}

/* A mask is a row with -inf: to the bit, in all settings. */
static void masks_are_rows_without_the_other_ids(void)
{
    float    row[VOCAB];
    uint32_t mask[MASK_WORDS];

    for (uint32_t salt = 0; salt < 600; salt++) {
        bt_sample_how how  = HOWS[salt % (sizeof(HOWS) / sizeof(HOWS[0]))];
        uint32_t      want = UINT32_MAX, id = UINT32_MAX;

        fill(salt);
        fill_mask(salt, 2 + salt % 41, mask);
        g_logits[salt] = salt % 3 == 0 ? NAN : INFINITY;
        if (salt % 3 != 0) mask[salt / 32] &= ~(1u << salt % 32);
        for (uint32_t i = 0; i < VOCAB; i++)
            row[i] = is_set(mask, i) ? g_logits[i] : -INFINITY;
        how.position = salt;
        EXPECT(bt_sample(&g_sampler, row, &how, &want));
        how.allowed = mask;
        EXPECT(bt_sample(&g_sampler, g_logits, &how, &id));
        EXPECT_EQ(id, want);
        EXPECT(id < VOCAB && is_set(mask, id));
    }
}

static void a_mask_of_one_id_leaves_that_one(void)
{
    static const uint32_t IDS[] = {0, 31, 32, 1023, 1024, 2495, 2496, VOCAB - 1};
    uint32_t              mask[MASK_WORDS];

    fill(7);
    for (uint32_t i = 0; i < sizeof(IDS) / sizeof(IDS[0]); i++)
        for (uint32_t k = 0; k < sizeof(HOWS) / sizeof(HOWS[0]); k++) {
            bt_sample_how how = HOWS[k];

            memset(mask, 0, sizeof(mask));
            mask[IDS[i] / 32] = 1u << IDS[i] % 32;
            mask[MASK_WORDS - 1] |= ~0u << VOCAB % 32; /* of no id */
            g_logits[IDS[i]] = -300.0f;                /* beside the others it has no chance */
            how.allowed      = mask;
            how.banned[0]    = (bt_id_list){IDS, i};
            EXPECT_EQ(sample(how, NULL), IDS[i]);
        }
}

static void a_mask_of_all_ids_changes_nothing(void)
{
    uint32_t mask[MASK_WORDS];

    memset(mask, 0xff, sizeof(mask));
    for (uint32_t salt = 0; salt < 100; salt++) {
        bt_sample_how how = HOWS[salt % (sizeof(HOWS) / sizeof(HOWS[0]))];
        uint32_t      want;

        fill(salt);
        how.position = salt;
        want         = sample(how, NULL);
        how.allowed  = mask;
        EXPECT_EQ(sample(how, NULL), want);
    }
}

static void a_mask_of_nothing_leaves_no_token(void)
{
    static const uint32_t ID               = 40;
    uint32_t              mask[MASK_WORDS] = {0}, id = 7;
    bt_sample_how         how = {
                .allowed = mask, .banned = {{&ID, 1}, {NULL, 0}}
    };

    fill(6);
    mask[MASK_WORDS - 1] = ~0u << VOCAB % 32; /* of no id */
    for (int i = 0; i < 2; i++) {
        how.temperature = (float)i;
        EXPECT(!bt_sample(&g_sampler, g_logits, &how, &id));
    }
    mask[ID / 32] = 1u << ID % 32; /* and that one is banned */
    EXPECT(!bt_sample(&g_sampler, g_logits, &how, &id));
    EXPECT_EQ(id, 7);
    how.banned[0].n = 0;
    EXPECT_EQ(sample(how, NULL), ID);
    g_logits[ID] = -INFINITY;
    EXPECT(!bt_sample(&g_sampler, g_logits, &how, &id));
}

static void penalties_bias_and_bans_agree_with_the_oracle(void)
{
    static uint32_t       mask[MASK_WORDS];
    static oracle_seen    seen;
    static const uint32_t BIASED[] = {3, 1500}, BANNED[] = {1023, 9};
    static const float    BIASES[] = {20.5f, -30.0f};
    bt_history            h        = {0};
    bt_sample_how         how      = {
                     .temperature = 1.0f,
                     .seed        = 4,
                     .history     = &h,
                     .repetition  = 1.3f,
                     .frequency   = 0.4f,
                     .presence    = -0.7f,
                     .biased      = {BIASED,      2              },
                     .biases      = BIASES,
                     .banned      = {{BANNED, 1}, {BANNED + 1, 1}}
    };

    fill(55);
    memset(&seen, 0, sizeof(seen));
    for (uint32_t i = 0; i < 900; i++) {
        uint32_t id = i * i % 611; /* some often, some never; some of the prompt too */

        EXPECT_EQ(bt_history_add(&h, id, i % 3 == 0), BT_OK);
        if (i % 3 == 0)
            seen.prompt[id] = true;
        else
            seen.generated[id]++;
    }
    EXPECT(seen.prompt[3] || seen.generated[3] > 0);
    g_logits[3]    = -3.0f; /* above 0 with its bias, which counts before the penalties do */
    g_logits[1023] = 40.0f;
    g_logits[9]    = 41.0f;
    expect_like_oracle(how, &seen, "all of them");
    how.temperature = 0;
    expect_like_oracle(how, &seen, "greedy");
    fill_mask(3, 2, mask);
    mask[0] |= 1u << 3;
    mask[1500 / 32] |= 1u << 1500 % 32;
    mask[1023 / 32] |= 1u << 1023 % 32; /* banned all the same */
    how.allowed = mask;
    expect_like_oracle(how, &seen, "greedy, masked");
    how.temperature = 1;
    expect_like_oracle(how, &seen, "all of them, masked");
    mask[0]   = 0; /* the bias of 3 does not bring it back */
    how.top_p = 0.8f;
    how.min_p = 0.001f;
    how.top_k = 300;
    expect_like_oracle(how, &seen, "all of them and filters, masked");
    how.allowed = NULL;
    how.top_p = how.min_p = 0;
    how.repetition        = 0; /* off */
    how.temperature       = 1;
    how.top_k             = 9;
    how.biased.n          = 0;
    memset(seen.prompt, 0, sizeof(seen.prompt));
    expect_like_oracle(how, &seen, "without repetition");
    how.history = NULL;
    expect_like_oracle(how, NULL, "bans alone");
    bt_history_fini(&h);
}

static void each_setting_counts_without_the_others(void)
{
    static const uint32_t ID   = 1500;
    static const float    BIAS = -50;
    uint32_t              mask[MASK_WORDS];
    bt_history            h      = {0};
    bt_sample_how         how[5] = {
                {.biased = {&ID, 1}, .biases = &BIAS},
                {.banned = {{&ID, 1}, {NULL, 0}}                 },
                {.banned = {{NULL, 0}, {&ID, 1}}},
                {.history = &h,                  .presence = 50},
                {.allowed = mask},
    };

    fill(5);
    g_logits[ID] = 30;
    EXPECT_EQ(sample((bt_sample_how){0}, NULL), ID);
    EXPECT_EQ(bt_history_add(&h, ID, false), BT_OK);
    memset(mask, 0xff, sizeof(mask));
    mask[ID / 32] = 0;
    for (int i = 0; i < 5; i++)
        EXPECT(sample(how[i], NULL) != ID);
    bt_history_fini(&h);
}

/* What prompt and reply count for, apart and together, for logits of both signs. */
static void penalties_tell_prompt_from_reply(void)
{
    static oracle_seen seen;
    bt_history         h   = {0};
    bt_sample_how      how = {.temperature = 1.0f,
                              .seed        = 6,
                              .history     = &h,
                              .repetition  = 2,
                              .frequency   = 0.25f,
                              .presence    = 0.5f};

    for (uint32_t i = 0; i < VOCAB; i++)
        g_logits[i] = i >= 8 ? -200.0f : i % 2 == 0 ? 1.0f : -1.0f;
    for (uint32_t i = 2; i < 8; i++) {
        seen.prompt[i]    = i < 4 || i >= 6;
        seen.generated[i] = i < 4 ? 0 : 2;
        if (seen.prompt[i]) EXPECT_EQ(bt_history_add(&h, i, true), BT_OK);
        for (uint32_t k = 0; k < seen.generated[i]; k++)
            EXPECT_EQ(bt_history_add(&h, i, false), BT_OK);
    }
    expect_like_oracle(how, &seen, "prompt and reply");
    bt_history_fini(&h);
}

/* Of equal logits the lower ids are kept, whichever blocks they lie in. */
static void ties_go_to_the_lower_id(void)
{
    bt_sample_how how    = {.temperature = 1.0f, .seed = 3, .top_k = 3};
    uint32_t      seen[] = {0, 0, 0};

    for (uint32_t i = 0; i < VOCAB; i++)
        g_logits[i] = -5.0f;
    g_logits[2400] = g_logits[2399] = g_logits[1024] = g_logits[5] = 4.0f;
    for (how.position = 0; how.position < 300; how.position++) {
        uint32_t id = sample(how, NULL);

        EXPECT(id == 5 || id == 1024 || id == 2399);
        seen[id == 5 ? 0 : id == 1024 ? 1 : 2]++;
    }
    EXPECT(seen[0] > 50 && seen[1] > 50 && seen[2] > 50);
    how.top_k = 0;
    how.top_p = 0.5f; /* four of about a quarter each: the first two have it, exactly */
    for (uint32_t i = 0; i < VOCAB; i++)
        if (g_logits[i] < 0) g_logits[i] = -200.0f;
    for (how.position = 0; how.position < 300; how.position++) {
        uint32_t id = sample(how, NULL);

        EXPECT(id == 5 || id == 1024);
    }
    how.top_p = 0.50001f;
    seen[2]   = 0;
    for (how.position = 0; how.position < 300; how.position++)
        seen[2] += sample(how, NULL) == 2399;
    EXPECT(seen[2] > 50);
    g_logits[5] = 0.0f; /* zeros of both signs are equal */
    for (uint32_t i = 6; i < VOCAB; i++)
        g_logits[i] = -200.0f;
    g_logits[7] = -0.0f;
    how         = (bt_sample_how){.temperature = 1.0f, .top_k = 1};
    EXPECT_EQ(sample(how, NULL), 5);
    g_logits[5] = -0.0f;
    g_logits[7] = 0.0f;
    EXPECT_EQ(sample(how, NULL), 5);
}

static void top_logprobs_are_the_highest_in_order(void)
{
    uint32_t ids[BT_TOP];
    float    tops[BT_TOP], logprob, other;
    double   p[VOCAB];

    fill(8);
    g_logits[2499] = g_logits[1] = g_logits[1030] = 11.0f;
    g_logits[2000]                                = NAN;
    EXPECT_EQ(bt_logprobs(&g_sampler, g_logits, 77, BT_TOP, &logprob, ids, tops), BT_TOP);
    EXPECT(ids[0] == 1 && ids[1] == 1030 && ids[2] == 2499);
    for (uint32_t i = 0; i < BT_TOP; i++) {
        bt_logprobs(&g_sampler, g_logits, ids[i], 0, &other, NULL, NULL);
        EXPECT(memcmp(&other, &tops[i], sizeof(other)) == 0);
        EXPECT(i == 0 || tops[i] < tops[i - 1] || (tops[i] == tops[i - 1] && ids[i] > ids[i - 1]));
    }
    bt_logprobs(&g_sampler, g_logits, 2000, 0, &other, NULL, NULL);
    EXPECT(isinf(other) && other < 0);
    g_logits[2000] = -100.0f;
    oracle_probabilities(g_logits, VOCAB, &(bt_sample_how){.temperature = 1.0f}, NULL, p);
    for (uint32_t i = 0; i < BT_TOP; i++)
        EXPECT(fabs((double)tops[i] - log(p[ids[i]])) < 1e-5);
    for (uint32_t i = 3; i < VOCAB; i++)
        g_logits[i] = -INFINITY;
    EXPECT_EQ(bt_logprobs(&g_sampler, g_logits, 5, BT_TOP, &logprob, ids, tops), 3);
    EXPECT(isinf(logprob));
    g_logits[0] = g_logits[1] = g_logits[2] = 3.0f; /* of one block */
    EXPECT_EQ(bt_logprobs(&g_sampler, g_logits, 5, 2, &logprob, ids, tops), 2);
    EXPECT(ids[0] == 0 && ids[1] == 1);
}

static void an_id_alone_in_the_last_block_counts(void)
{
    enum { LAST = BT_VOCAB_BLOCK };
    bt_sampler    all = g_sampler;
    bt_sample_how how = {.seed = 1};
    uint32_t      top = 0;
    float         logprob, top_logprob;

    g_sampler.n_vocab = LAST + 1;
    for (uint32_t i = 0; i < VOCAB; i++)
        g_logits[i] = i == LAST ? 4.0f : -300.0f;
    for (int i = 0; i < 3; i++) {
        how.temperature = i > 0 ? 1.0f : 0;
        how.top_p       = i > 1 ? 0.9f : 0;
        EXPECT_EQ(sample(how, NULL), LAST);
    }
    EXPECT_EQ(bt_logprobs(&g_sampler, g_logits, 0, 1, &logprob, &top, &top_logprob), 1);
    EXPECT_EQ(top, LAST);
    EXPECT(top_logprob == 0 && logprob == -304.0f);
    g_sampler = all;
}

static void history_grows_and_fails_cleanly(void)
{
    bt_history h = {0}, copy = {0};

    for (uint32_t k = 0; k < 2; k++) { /* it takes memory with id 0, and more with 32 */
        bt_alloc_fail_at(k);
        for (uint32_t i = 0; i < 40; i++) {
            bool fails = i == 32 * k;

            EXPECT_EQ(bt_history_add(&h, i, false), fails ? BT_ERR_NO_MEMORY : BT_OK);
            EXPECT_EQ(h.n, i + 1 - (fails || i > 32 * k));
        }
        bt_alloc_fail_at(-1);
        bt_history_fini(&h);
    }
    for (uint32_t round = 0; round < 3; round++)
        for (uint32_t i = 0; i < 5000; i++)
            EXPECT_EQ(bt_history_add(&h, i * 64, round == 2), BT_OK);
    EXPECT_EQ(h.n, 5000);
    EXPECT_EQ(bt_history_copy(&h, &copy), BT_OK);
    for (uint32_t i = 0; i < copy.capacity; i++)
        EXPECT(!copy.at[i].used || copy.at[i].count == 2);
    bt_history_fini(&h);
    bt_history_fini(&copy);
}

static void sampler_init_survives_failed_allocations(void)
{
    bt_sampler s = {0};

    EXPECT_EQ(BT_SWEEP(bt_sampler_init(&s, g_sampler.k, VOCAB), bt_sampler_fini(&s)), 4);
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
        BT_TEST(filters_agree_with_the_oracle),
        BT_TEST(masks_agree_with_the_oracle),
        BT_TEST(masks_are_rows_without_the_other_ids),
        BT_TEST(a_mask_of_one_id_leaves_that_one),
        BT_TEST(a_mask_of_all_ids_changes_nothing),
        BT_TEST(a_mask_of_nothing_leaves_no_token),
        BT_TEST(penalties_bias_and_bans_agree_with_the_oracle),
        BT_TEST(each_setting_counts_without_the_others),
        BT_TEST(penalties_tell_prompt_from_reply),
        BT_TEST(ties_go_to_the_lower_id),
        BT_TEST(top_logprobs_are_the_highest_in_order),
        BT_TEST(an_id_alone_in_the_last_block_counts),
        BT_TEST(history_grows_and_fails_cleanly),
        BT_TEST(sampler_init_survives_failed_allocations),
        BT_TEST(families_agree_bit_by_bit),
    };

    bt_cpu_flush_denormals();
    if (bt_sampler_init(&g_sampler, bt_cpu_kernels_find("auto")->rows, VOCAB) != BT_OK) return 1;
    return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
}

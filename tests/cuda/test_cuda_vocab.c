/* Tokens and log-probabilities of the kernels on the CPU, against worker/sampler.h: equal bits. */
#include "device/cuda/vocab.h"
#include "tests/cuda/numbers.h"
#include "worker/sampler.h"

enum { MAX_ROWS = 24 };

typedef struct {
    uint32_t      n_vocab, n_rows;
    float        *logits, *e, *ranked, *maxima, *sums;
    uint64_t     *order;
    bt_draw       draws[MAX_ROWS];
    bt_sample_how how[MAX_ROWS];
    int32_t       ids[MAX_ROWS];
    uint32_t      next[MAX_ROWS];
    uint32_t      history[MAX_ROWS]; /* of `words`, from 1 on; 0: none */
    uint32_t     *words;             /* [histories, n_vocab], or NULL */
    uint32_t     *masks;             /* that `how` has some of */
    bt_sampler    sampler;
} vocab;

static vocab make(uint32_t n_vocab, uint32_t n_rows, float size, uint64_t seed)
{
    uint32_t blocks = (n_vocab + 1023) / 1024;
    size_t   n      = (size_t)n_vocab * n_rows;
    vocab    v      = {.n_vocab = n_vocab,
                       .n_rows  = n_rows,
                       .logits  = random_f32(n, size, &seed),
                       .e       = ARRAY(float, n),
                       .ranked  = ARRAY(float, n),
                       .maxima  = ARRAY(float, blocks *n_rows),
                       .sums    = ARRAY(float, blocks *n_rows),
                       .order   = ARRAY(uint64_t, bt_cuda_order_elems(n_vocab) * n_rows)};

    EXPECT_EQ(bt_sampler_init(&v.sampler, bt_cpu_kernels_find("scalar")->rows, n_vocab), BT_OK);
    return v;
}

static void drop(vocab *v)
{
    bt_sampler_fini(&v->sampler);
    free(v->logits), free(v->e), free(v->ranked), free(v->maxima), free(v->sums), free(v->order);
}

/* As the sampler's, of which the kernel gets the result. */
static double uniform(const bt_sample_how *how)
{
    const uint32_t counter[4] = {how->position, how->choice, 0, 0};
    const uint32_t key[2]     = {(uint32_t)how->seed, (uint32_t)(how->seed >> 32)};
    uint32_t       w[4];

    bt_philox4x32(counter, key, w);
    return ((double)(w[0] >> 5) * 67108864.0 + (double)(w[1] >> 6)) * 0x1p-53;
}

static uint32_t mask_of(const vocab *v, uint32_t r)
{
    size_t words = (v->n_vocab + 31) / 32;

    return v->how[r].allowed == NULL
               ? 0
               : 1 + (uint32_t)((size_t)(v->how[r].allowed - v->masks) / words);
}

static void set_draws(vocab *v)
{
    for (uint32_t r = 0; r < v->n_rows; r++)
        v->draws[r] = (bt_draw){.temperature = v->how[r].temperature,
                                .top_p       = v->how[r].top_p,
                                .min_p       = v->how[r].min_p,
                                .top_k       = v->how[r].top_k,
                                .uniform     = uniform(&v->how[r]),
                                .history     = v->history[r],
                                .repetition  = v->how[r].repetition,
                                .frequency   = v->how[r].frequency,
                                .presence    = v->how[r].presence,
                                .mask        = mask_of(v, r)};
}

static void run(vocab *v)
{
    set_draws(v);
    EXPECT_EQ(bt_cuda_sample_run(NULL, &(bt_cuda_sample){.n_rows  = v->n_rows,
                                                         .n_vocab = v->n_vocab,
                                                         .logits  = v->logits,
                                                         .draws   = v->draws,
                                                         .e       = v->e,
                                                         .ranked  = v->ranked,
                                                         .order   = v->order,
                                                         .maxima  = v->maxima,
                                                         .sums    = v->sums,
                                                         .ids     = v->ids,
                                                         .next    = v->next,
                                                         .words   = v->words}),
              0);
    for (uint32_t r = 0; r < v->n_rows; r++)
        EXPECT_EQ(v->next[r], v->ids[r] < 0 ? 0 : v->ids[r]);
}

static void expect_as_the_sampler(vocab *v)
{
    run(v);
    for (uint32_t r = 0; r < v->n_rows; r++) {
        uint32_t want = 0;

        EXPECT(bt_sample(&v->sampler, v->logits + (size_t)r * v->n_vocab, &v->how[r], &want));
        EXPECT_EQ(v->ids[r], want);
    }
}

/* Row r gets the settings that its bits say. */
static void vary(vocab *v, uint64_t seed)
{
    for (uint32_t r = 0; r < v->n_rows; r++)
        v->how[r] = (bt_sample_how){.temperature = r % 3 == 0 ? 0.7f : 1.0f,
                                    .seed        = seed,
                                    .position    = r,
                                    .top_k       = r & 1 ? 5 + 90 * (r % 7) : 0,
                                    .top_p       = r & 2 ? 0.5f + 0.02f * (float)r : 1.0f,
                                    .min_p       = r & 4 ? 0.02f : 0};
}

static void draws_are_the_samplers(void)
{
    static const uint32_t VOCABS[] = {1, 17, 1024, 1025, 5000};
    static const float    SIZES[]  = {8, 0.01f};

    for (int i = 0; i < 5; i++)
        for (int s = 0; s < 2; s++) { /* peaked; flat: more candidates than shared memory holds */
            vocab v = make(VOCABS[i], 16, SIZES[s], (uint64_t)i);

            simt_seed((uint64_t)i);
            vary(&v, 11);
            expect_as_the_sampler(&v);
            drop(&v);
        }
}

static void ties_go_to_the_lower_id(void)
{
    vocab v = make(3000, 8, 4, 3);

    vary(&v, 4);
    v.how[0].temperature = 0; /* greedy */
    for (uint32_t r = 0; r < v.n_rows; r++) {
        float *x = v.logits + (size_t)r * v.n_vocab;

        for (uint32_t i = r; i < v.n_vocab; i += 7)
            x[i] = 4.5f;
        x[v.n_vocab - 1] = NAN;
        x[5]             = -INFINITY;
        x[6]             = -0.0f;
        x[8]             = 0.0f;
    }
    expect_as_the_sampler(&v);
    EXPECT_EQ(v.ids[0], 0);
    drop(&v);
}

static void a_row_without_a_finite_highest_has_no_token(void)
{
    vocab v = make(1500, 3, 4, 5);

    for (uint32_t i = 0; i < v.n_vocab; i++)
        v.logits[i] = i % 2 ? NAN : -INFINITY;
    v.logits[v.n_vocab + 1200] = INFINITY;
    v.how[1].temperature       = 1;
    run(&v);
    EXPECT_EQ(v.ids[0], BT_NO_TOKEN);
    EXPECT_EQ(v.ids[1], BT_NO_TOKEN);
    EXPECT(v.ids[2] >= 0);
    drop(&v);
}

static void edits_come_before_the_draw(void)
{
    enum { N = 40 };
    vocab          v = make(1100, 1, 3, 6);
    uint32_t       ids[N], banned[2] = {1, 77};
    float          biases[N], row[1100];
    bt_logit_edit  edits[N + 2];
    bt_sample_how *how = &v.how[0];

    memcpy(row, v.logits, sizeof(row));
    for (uint32_t i = 0; i < N; i++) {
        ids[i]    = i * 27;
        biases[i] = (float)i * 0.25f - 4;
        edits[i]  = (bt_logit_edit){0, ids[i], biases[i], 1, 0, 0, 0, 0};
    }
    *how = (bt_sample_how){
        .temperature = 1,
        .seed        = 3,
        .biased      = {ids,         N        },
        .biases      = biases,
        .banned      = {{banned, 2}, {NULL, 0}}
    };
    edits[N]     = (bt_logit_edit){0, 1, 0, 1, 0, 0, 0, 1};
    edits[N + 1] = (bt_logit_edit){0, 77, 0, 1, 0, 0, 0, 1};
    EXPECT_EQ(bt_cuda_edit_logits(NULL, N + 2, edits, v.n_vocab, v.logits), 0);
    for (uint32_t k = 0; k < 5; k++) {
        uint32_t want = 0;

        how->position = k;
        run(&v);
        EXPECT(bt_sample(&v.sampler, row, how, &want));
        EXPECT_EQ(v.ids[0], want);
    }
    drop(&v);
}

static void penalties_are_those_of_the_sampler(void)
{
    float         x[4] = {2, -2, 3, 0.5f};
    bt_logit_edit e[3] = {
        {0, 0, 0.5f, 1.3f, 0.1f,  0.7f, 2, 0},
        {0, 1, 0,    1.3f, 0.1f,  0.7f, 0, 0},
        {0, 3, 0,    1.0f, 0.25f, 0,    3, 0}
    };

    EXPECT_EQ(bt_cuda_edit_logits(NULL, 3, e, 4, x), 0);
    EXPECT(x[0] == 2.5f / 1.3f - 0.1f * 2.0f - 0.7f); /* bias, repetition, frequency, presence */
    EXPECT(x[1] == -2 * 1.3f);                        /* of the prompt only */
    EXPECT(x[2] == 3);
    EXPECT(x[3] == 0.5f - 0.25f * 3.0f);
}

enum { N_MASKS = 4 };

/* Of some rows, which share them; of the first one most words are all ones or all zeros.  Bits
 * beyond the vocabulary are anything. */
static void give_masks(vocab *v)
{
    uint32_t words = (v->n_vocab + 31) / 32;
    uint64_t rng   = v->n_vocab;

    v->masks = ARRAY(uint32_t, N_MASKS * words);
    for (uint32_t w = 0; w < N_MASKS * words; w++)
        v->masks[w] = w >= words || w % 8 == 0 ? random_bits(&rng) : w % 3 == 0 ? UINT32_MAX : 0;
    for (uint32_t m = 0; m < N_MASKS; m++)
        v->masks[m * words] |= 1;
    for (uint32_t r = 0; r < v->n_rows; r++)
        v->how[r].allowed = r % 5 == 0 ? NULL : v->masks + (size_t)(r % 5 - 1) * words;
}

static void expect_masked(const vocab *v, const float *raw)
{
    for (size_t k = 0; k < (size_t)v->n_rows * v->n_vocab; k++) {
        const uint32_t *mask = v->how[k / v->n_vocab].allowed;
        size_t          id   = k % v->n_vocab;
        bool            may  = mask == NULL || (mask[id / 32] & 1u << id % 32) != 0;

        EXPECT(v->logits[k] == (may ? raw[k] : -INFINITY));
    }
}

static void masks_leave_the_ids_that_may_come(void)
{
    static const uint32_t VOCABS[] = {1, 31, 32, 33, 1024, 1025, 1500, 5000};

    for (int i = 0; i < 8; i++) {
        vocab  v   = make(VOCABS[i], 16, 4, (uint64_t)i);
        size_t n   = (size_t)v.n_rows * v.n_vocab;
        float *raw = ARRAY(float, n);

        memcpy(raw, v.logits, n * sizeof(*raw));
        vary(&v, 5);
        give_masks(&v);
        set_draws(&v);
        EXPECT_EQ(bt_cuda_mask(NULL, v.n_rows, v.n_vocab, v.draws, v.masks, v.logits), 0);
        expect_masked(&v, raw);
        run(&v);
        for (uint32_t r = 0; r < v.n_rows; r++) {
            uint32_t want = 0;

            EXPECT(bt_sample(&v.sampler, raw + (size_t)r * v.n_vocab, &v.how[r], &want));
            EXPECT_EQ(v.ids[r], want);
        }
        free(raw), free(v.masks);
        drop(&v);
    }
}

/* Tokens of a prompt go up; those that are drawn are added where they are. */
static void draws_follow_from_those_before_them(void)
{
    enum { VOCAB = 1100, ROWS = 3, HISTORIES = 2, PROMPT = 300, STEPS = 12 };
    vocab          v          = make(VOCAB, ROWS, 2, 7);
    float         *raw        = v.logits;
    bt_history     seen[ROWS] = {{0}};
    bt_seen_token *up         = ARRAY(bt_seen_token, PROMPT);

    v.logits = ARRAY(float, ROWS *VOCAB);
    v.words  = ARRAY(uint32_t, HISTORIES * VOCAB);
    memset(v.words, 0, HISTORIES * VOCAB * sizeof(*v.words));
    for (uint32_t r = 0; r < ROWS; r += 2) { /* the row between has none */
        v.history[r] = HISTORIES - r / 2;
        for (uint32_t i = 0; i < PROMPT; i++) {
            up[i] = (bt_seen_token){(i * 3 + r) % VOCAB, i % 4 == 0};
            EXPECT_EQ(bt_history_add(&seen[r], up[i].id, up[i].count == 0), BT_OK);
        }
        EXPECT_EQ(
            bt_cuda_set_history(NULL, PROMPT, up, v.words + (v.history[r] - 1) * (size_t)VOCAB), 0);
        v.how[r] = (bt_sample_how){
            .repetition = 1.3f, .frequency = 0.4f, .presence = 0.2f, .history = &seen[r]};
    }
    v.how[2].temperature = 0.5f; /* the first one is greedy */
    for (uint32_t k = 0; k < STEPS; k++) {
        memcpy(v.logits, raw, ROWS * VOCAB * sizeof(*raw));
        set_draws(&v);
        EXPECT_EQ(bt_cuda_penalise(NULL, ROWS, VOCAB, v.draws, v.words, v.logits), 0);
        run(&v);
        for (uint32_t r = 0; r < ROWS; r++) {
            uint32_t want = 0;

            EXPECT(bt_sample(&v.sampler, raw + r * (size_t)VOCAB, &v.how[r], &want));
            EXPECT_EQ(v.ids[r], want);
            if (r != 1) EXPECT_EQ(bt_history_add(&seen[r], want, false), BT_OK);
        }
    }
    for (uint32_t r = 0; r < ROWS; r++)
        bt_history_fini(&seen[r]);
    free(raw), free(up), free(v.words);
    drop(&v);
}

static void logprobs_are_those_of_the_sampler(void)
{
    enum { TOP = 7 };
    static const uint32_t VOCABS[] = {3, 1024, 2500};

    for (int i = 0; i < 3; i++) {
        vocab    v      = make(VOCABS[i], 4, 6, (uint64_t)i);
        int32_t  ids[4] = {0, (int32_t)v.n_vocab - 1, 2, -1};
        uint32_t found[4], top_ids[4 * TOP];
        bt_draw  draws[4] = {{.n_top = 0}, {.n_top = 1}, {.n_top = TOP}, {.n_top = TOP}};
        float    logprob[4], top[4 * TOP];

        for (uint32_t k = 0; k < v.n_vocab; k += 5) /* ties */
            v.logits[2 * v.n_vocab + k] = 5.5f;
        v.logits[2 * v.n_vocab + 1] = NAN;
        for (uint32_t k = 2; k < v.n_vocab; k++) /* fewer than TOP are finite */
            v.logits[3 * v.n_vocab + k] = -INFINITY;
        EXPECT_EQ(bt_cuda_logprobs_run(NULL, &(bt_cuda_logprobs){4, v.n_vocab, TOP, v.logits, ids,
                                                                 draws, v.maxima, v.sums, logprob,
                                                                 top_ids, top, found}),
                  0);
        for (uint32_t r = 0; r < 4; r++) {
            uint32_t want_ids[TOP], n;
            float    want, want_top[TOP];

            n = bt_logprobs(&v.sampler, v.logits + r * v.n_vocab, ids[r] < 0 ? 0 : (uint32_t)ids[r],
                            draws[r].n_top, &want, want_ids, want_top);
            EXPECT_EQ(found[r], n);
            EXPECT(ids[r] < 0 ? isnan(logprob[r]) : logprob[r] == want);
            EXPECT_EQ(n_different(top_ids + r * TOP, want_ids, n * sizeof(*want_ids)), 0);
            EXPECT_EQ(n_different(top + r * TOP, want_top, n * sizeof(*want_top)), 0);
        }
        drop(&v);
    }
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {
        BT_TEST(draws_are_the_samplers),
        BT_TEST(ties_go_to_the_lower_id),
        BT_TEST(a_row_without_a_finite_highest_has_no_token),
        BT_TEST(edits_come_before_the_draw),
        BT_TEST(penalties_are_those_of_the_sampler),
        BT_TEST(masks_leave_the_ids_that_may_come),
        BT_TEST(draws_follow_from_those_before_them),
        BT_TEST(logprobs_are_those_of_the_sampler),
    };

    bt_cpu_flush_denormals();
    return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
}

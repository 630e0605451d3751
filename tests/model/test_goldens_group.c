/* The engine on several ranks: the same bits as on one rank alone, wherever the experts are and
 * whichever ranks bring rows; and the golden outputs again. */
#include "tests/model/engine.h"

static bt_world *g_world;
static goldens   g_goldens;
static uint32_t  g_n_ranks, g_rank;
static sequence  g_alone[MAX_GOLDEN_CASES]; /* the short cases by this process alone */

enum {
    MAX_CASE_TOKENS = 256,
    MAX_EXPERTS     = 64,
    TAG_ALONE       = 1,
    TAG_GROUP       = 0,
    EACH            = MAX_RANKS + 1
};

static engine_options options(void)
{
    return (engine_options){.n_threads = 1, .max_rows = 600, .n_pages = 64};
}

/* The cases short enough to run many times. */
static uint32_t n_short_cases(void)
{
    uint32_t n = 0;

    while (n < g_goldens.n_cases && g_goldens.cases[n].n_tokens <= MAX_CASE_TOKENS)
        n++;
    NEED(n >= 2);
    return n;
}

/* As a group of one. */
static void run_alone(void)
{
    engine_options opt = options();
    uint32_t       self[1];
    engine         e;

    self[0]       = g_rank;
    opt.tag_space = TAG_ALONE;
    engine_open(&e, &g_goldens, g_world, 1, self, &opt);
    for (uint32_t i = 0; i < n_short_cases(); i++) {
        g_alone[i] = (sequence){.c = &g_goldens.cases[i], .rows_per_step = 1};
        engine_run(&e, 1, &g_alone[i]);
    }
    engine_close(&e);
}

static void group_open(engine *e, const uint16_t *owner)
{
    engine_options opt = options();
    uint32_t       all[MAX_RANKS];

    for (uint32_t r = 0; r < g_n_ranks; r++)
        all[r] = r;
    opt.owner     = owner;
    opt.tag_space = TAG_GROUP;
    engine_open(e, &g_goldens, g_world, g_n_ranks, all, &opt);
}

static void expect_same(const sequence *got, const sequence *want, const char *what)
{
    if (sequence_equal(&g_goldens, got, want)) return;
    g_failures++;
    fprintf(stderr, "rank %u, %s, case %s: not the bits of one rank alone\n", g_rank, what,
            got->c->name);
}

/* Case 0 on one rank alone while all others bring nothing, for each rank; then a case on every
 * rank, started at different steps, in different chunks; then on all but one rank, which is
 * `idle`, or EACH in turn. */
static void check_spreads(engine *e, uint32_t idle, const char *what)
{
    uint32_t n_cases = n_short_cases();

    for (uint32_t r = 0; r < g_n_ranks; r++) {
        sequence one = {.c = g_alone[0].c, .rank = r, .rows_per_step = 2};

        engine_run(e, 1, &one);
        if (r == g_rank) expect_same(&one, &g_alone[0], what);
        sequence_free(&one);
    }
    for (uint32_t without = 0; without <= g_n_ranks; without++) {
        sequence seqs[MAX_RANKS];
        uint32_t n = 0;

        if (idle != EACH && without != idle && without != g_n_ranks) continue;
        for (uint32_t r = 0; r < g_n_ranks; r++)
            if (r != without)
                seqs[n++] = (sequence){.c             = &g_goldens.cases[r % n_cases],
                                       .rank          = r,
                                       .first_step    = 2 * r,
                                       .chunk         = 1 + 13 * r,
                                       .rows_per_step = 1 + r % 2,
                                       .bare          = (r + without) % 3 != 0};
        engine_run(e, n, seqs);
        for (uint32_t i = 0; i < n; i++) {
            if (seqs[i].rank == g_rank)
                expect_same(&seqs[i], &g_alone[seqs[i].rank % n_cases], what);
            sequence_free(&seqs[i]);
        }
    }
}

static void group_bits_do_not_depend_on_ranks_or_placement(void)
{
    uint32_t                 n = g_goldens.cfg.moe.gate.n_experts, last = g_n_ranks - 1;
    uint32_t                 idle[4] = {g_n_ranks / 2, 0, last, 1}; /* of each placement */
    uint16_t                 owner[4][MAX_EXPERTS];
    engine                   e;
    static const char *const names[] = {"blocks split over all ranks", "rank 0 without experts",
                                        "all experts on the last rank",
                                        "descending, in uneven runs"};

    NEED(n <= MAX_EXPERTS);
    for (uint32_t x = 0; x < n; x++) {
        owner[0][x] = (uint16_t)(x % g_n_ranks);
        owner[1][x] = (uint16_t)(g_n_ranks == 1 ? 0 : 1 + x % (g_n_ranks - 1));
        owner[2][x] = (uint16_t)last;
        owner[3][x] = (uint16_t)(x * x * g_n_ranks / (n * n));
        owner[3][x] = (uint16_t)(last - (owner[3][x] > last ? last : owner[3][x]));
    }
    group_open(&e, NULL);
    check_spreads(&e, EACH, "default placement");
    engine_close(&e);
    for (int i = 0; i < 4; i++) {
        group_open(&e, owner[i]);
        check_spreads(&e, idle[i], names[i]);
        engine_close(&e);
    }
}

/* Each rank is lost once, and comes back: survivors and then all again compute the same bits, and
 * in the end everybody has as many weights as at first.  What experts ran is counted over all. */
static void group_bits_survive_losses(void)
{
    engine   e;
    size_t   bytes;
    bool     taken[MAX_RANKS];
    uint32_t epoch = 2;
    uint64_t n_rows;

    group_open(&e, NULL);
    bytes = bt_model_weight_bytes(e.model);
    for (uint32_t lost = 0; lost < g_n_ranks && g_n_ranks > 1; lost++) {
        for (int back = 0; back < 2; back++, epoch++) {
            sequence one = {.c = &g_goldens.cases[lost % 2], .chunk = 50, .rows_per_step = 2};

            for (uint32_t r = 0; r < g_n_ranks; r++)
                taken[r] = back || r != lost;
            if (!taken[g_rank]) continue;
            n_rows = engine_expert_rows(&e);
            engine_sit_down(&e, g_world, g_n_ranks, taken, TAG_GROUP, epoch);
            EXPECT_EQ(engine_expert_rows(&e), n_rows);
            one.rank = e.n_ranks - 1;
            engine_run(&e, 1, &one);
            if (e.self == one.rank) expect_same(&one, &g_alone[lost % 2], "after a loss");
            EXPECT(engine_expert_rows(&e) > n_rows);
            sequence_free(&one);
        }
    }
    EXPECT_EQ(bt_model_weight_bytes(e.model), bytes);
    engine_close(&e);
}

/* Every rank runs a case with the goldens' routing: within the error that bf16 explains. */
static void group_holds_goldens(void)
{
    sequence seqs[MAX_RANKS];
    engine   e;

    group_open(&e, NULL);
    for (uint32_t r = 0; r < g_n_ranks; r++)
        seqs[r] = (sequence){.c             = &g_goldens.cases[r % n_short_cases()],
                             .rank          = r,
                             .chunk         = 64,
                             .rows_per_step = 1,
                             .forced        = true};
    engine_run(&e, g_n_ranks, seqs);
    for (uint32_t r = 0; r < g_n_ranks; r++) {
        const golden_case *c = seqs[r].c;

        if (r == g_rank)
            EXPECT(forced_error(c, seqs[r].logits, g_goldens.cfg.vocab_size) <=
                   1.5 * c->fair_error);
        sequence_free(&seqs[r]);
    }
    engine_close(&e);
}

static const bt_test TESTS[] = {
    BT_TEST(group_holds_goldens),
    BT_TEST(group_bits_do_not_depend_on_ranks_or_placement),
    BT_TEST(group_bits_survive_losses),
};

/* usage: mpiexec -n N test_goldens_group MODEL [test]; any rank's failure fails the job. */
int main(int argc, char **argv)
{
    int rc;

    bt_log_init("test", BT_LOG_WARN);
    NEED(bt_world_init(&argc, &argv, &g_world) == BT_OK && argc >= 2);
    g_n_ranks = bt_world_size(g_world);
    g_rank    = bt_world_rank(g_world);
    NEED(g_n_ranks <= MAX_RANKS);
    goldens_open(&g_goldens, argv[1]);
    run_alone();
    rc = BT_RUN_TESTS(TESTS, argc > 2 ? argv[2] : NULL);
    for (uint32_t i = 0; i < n_short_cases(); i++)
        sequence_free(&g_alone[i]);
    goldens_close(&g_goldens);
    bt_world_fini(g_world);
    return rc;
}

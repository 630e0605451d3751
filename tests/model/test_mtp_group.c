/* The layer for multi-token prediction on several ranks: the same bits as on one rank alone,
 * wherever the experts are, whichever ranks bring rows, and after a rank is lost. */
#include "tests/model/drafts.h"

static bt_world *g_world;
static uint32_t  g_n_ranks, g_rank;

enum { N_CASES = 2, MAX_EXPERTS = 64, TAG_GROUP = 0, TAG_ALONE = 1, EACH = MAX_RANKS + 1 };

static sequence g_alone[N_CASES];

static engine_options options(uint32_t tag_space)
{
    return (engine_options){.n_threads = 1, .max_rows = 600, .n_pages = 64, .tag_space = tag_space};
}

/* The first cases by this process alone, as a group of one, with all drafts and chained ones; run
 * once for all tests. */
static const sequence *run_alone(void)
{
    engine_options opt     = options(TAG_ALONE);
    uint32_t       self[1] = {g_rank};
    engine         e;

    if (g_alone[0].c != NULL) return g_alone;
    drafting_open(&e, g_world, 1, self, &opt);
    for (uint32_t i = 0; i < N_CASES; i++) {
        g_alone[i] =
            (sequence){.c = &g_goldens.cases[i], .chunk = 1, .rows_per_step = 1, .chained = true};
        engine_run(&e, 1, &g_alone[i]);
    }
    engine_close(&e);
    return g_alone;
}

static void free_runs(sequence *runs, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        sequence_free(&runs[i]);
}

static void group_open(engine *e, const uint16_t *owner)
{
    engine_options opt = options(TAG_GROUP);
    uint32_t       all[MAX_RANKS];

    for (uint32_t r = 0; r < g_n_ranks; r++)
        all[r] = r;
    opt.owner = owner;
    drafting_open(e, g_world, g_n_ranks, all, &opt);
}

static void expect_same(const sequence *got, const sequence *want, const char *what)
{
    if (drafts_equal(got, want)) return;
    g_failures++;
    fprintf(stderr, "rank %u, %s, case %s: not the bits of one rank alone\n", g_rank, what,
            got->c->name);
}

/* Case 0 on one rank while all others bring nothing, for each rank; then a case on every rank,
 * started at different steps, in different chunks, where some ask for no draft; then on all but one
 * rank, which is `idle`, or EACH in turn. */
static void check_spreads(engine *e, const sequence *alone, uint32_t idle, const char *what)
{
    for (uint32_t r = 0; r < g_n_ranks; r++) {
        sequence one = {.c = alone[0].c, .rank = r, .rows_per_step = 2, .chained = r % 2 == 0};

        one.draft_every = !one.chained;
        engine_run(e, 1, &one);
        if (r == g_rank) expect_same(&one, &alone[0], what);
        sequence_free(&one);
    }
    for (uint32_t without = 0; without <= g_n_ranks; without++) {
        bool     chained = without % 2 == 0;
        sequence seqs[MAX_RANKS];
        uint32_t n = 0;

        if (idle != EACH && without != idle && without != g_n_ranks) continue;
        for (uint32_t r = 0; r < g_n_ranks; r++)
            if (r != without)
                seqs[n++] = (sequence){.c             = &g_goldens.cases[r % N_CASES],
                                       .rank          = r,
                                       .first_step    = 2 * r,
                                       .chunk         = 1 + 13 * r,
                                       .rows_per_step = 1 + r % 2,
                                       .bare          = (r + without) % 3 != 0,
                                       .draft_every   = chained ? 0 : 1 + r,
                                       .chained       = chained && (r + without) % 3 != 2};
        engine_run(e, n, seqs);
        for (uint32_t i = 0; i < n; i++)
            if (seqs[i].rank == g_rank && (seqs[i].chained || seqs[i].draft_every != 0))
                expect_same(&seqs[i], &alone[seqs[i].rank % N_CASES], what);
        free_runs(seqs, n);
    }
}

static void drafts_do_not_depend_on_ranks_or_placement(void)
{
    static const char *const names[] = {"experts one by one", "rank 0 without experts",
                                        "all experts on the last rank"};
    uint32_t                 n       = g_goldens.cfg.moe.gate.n_experts;
    uint32_t                 idle[3] = {1, 0, g_n_ranks - 1}; /* of each placement */
    uint16_t                 owner[3][MAX_EXPERTS];
    const sequence          *alone = run_alone();
    engine                   e;

    NEED(n <= MAX_EXPERTS);
    for (uint32_t x = 0; x < n; x++) {
        owner[0][x] = (uint16_t)(x % g_n_ranks);
        owner[1][x] = (uint16_t)(1 + x % (g_n_ranks - 1));
        owner[2][x] = (uint16_t)(g_n_ranks - 1);
    }
    group_open(&e, NULL);
    check_spreads(&e, alone, EACH, "default placement");
    engine_close(&e);
    for (int i = 0; i < 3; i++) {
        group_open(&e, owner[i]);
        check_spreads(&e, alone, idle[i], names[i]);
        engine_close(&e);
    }
}

/* Each rank is lost once, and comes back: the layer's experts move like all others. */
static void drafts_survive_losses(void)
{
    const sequence *alone = run_alone();
    engine          e;
    size_t          bytes;
    bool            taken[MAX_RANKS];
    uint32_t        epoch = 2;

    group_open(&e, NULL);
    bytes = bt_model_weight_bytes(e.model);
    for (uint32_t lost = 0; lost < g_n_ranks; lost++) {
        for (int back = 0; back < 2; back++, epoch++) {
            sequence one = {.c             = &g_goldens.cases[lost % N_CASES],
                            .chunk         = 50,
                            .rows_per_step = 2,
                            .draft_every   = 1};

            for (uint32_t r = 0; r < g_n_ranks; r++)
                taken[r] = back || r != lost;
            if (!taken[g_rank]) continue;
            engine_sit_down(&e, g_world, g_n_ranks, taken, TAG_GROUP, epoch);
            one.rank = e.n_ranks - 1;
            engine_run(&e, 1, &one);
            if (e.self == one.rank) expect_same(&one, &alone[lost % N_CASES], "after a loss");
            sequence_free(&one);
        }
    }
    EXPECT_EQ(bt_model_weight_bytes(e.model), bytes);
    engine_close(&e);
}

static const bt_test TESTS[] = {
    BT_TEST(drafts_do_not_depend_on_ranks_or_placement),
    BT_TEST(drafts_survive_losses),
};

/* usage: mpiexec -n N test_mtp_group MODEL [test]; any rank's failure fails the job. */
int main(int argc, char **argv)
{
    int rc;

    NEED(bt_world_init(&argc, &argv, &g_world) == BT_OK);
    g_n_ranks = bt_world_size(g_world);
    g_rank    = bt_world_rank(g_world);
    NEED(g_n_ranks > 1 && g_n_ranks <= MAX_RANKS);
    rc = drafts_main(argc, argv, TESTS, sizeof(TESTS) / sizeof(TESTS[0]), g_world);
    free_runs(g_alone, N_CASES);
    return rc;
}

/* What simulated cells lose: ranks, coordinators, messages of the hand-off. */
#include "tests/worker/cell_cases.h"

/* Ranks die at any moment, between steps and in them, down to one of each role: nobody's tokens
 * change, nobody is forgotten, and the pools of those that are left add up. */
static void lose_ranks(sim_options opt)
{
    uint32_t     n = opt.n_both + opt.n_prefill + opt.n_decode, seed = opt.seed, at = 0;
    sim_cell    *c;
    sim_request *q[12];

    opt.n_slots     = 1 + seed % 3;
    opt.payload_max = waiving(0, seed, false, false).payload_max;
    opt.lookahead   = seed % 2 == 0;
    opt.mtp         = seed % 3 == 2 ? 1 + seed % BT_MTP_MAX : 0;
    c               = sim_create(&opt);
    add_mix(c, q, 12);
    sim_split(c, q[5], 2);
    sim_split(c, q[10], 3);
    for (uint32_t turn = 0; turn < 4000; turn++) {
        uint32_t rank = (turn * 7 + seed) % n, alive = 0;
        bool     prefill = opt.n_both != 0 || rank < opt.n_prefill;

        if (at < 12 && turn % 40 == 0) sim_start(c, q[at++]);
        if (!sim_act(c)) break;
        if (turn % (150 + 13 * (seed % 5)) != 60 || sim_is_doomed(c)) continue;
        for (uint32_t k = 0; k < n; k++)
            alive += !sim_is_dead(c, k) && (opt.n_both != 0 || (k < opt.n_prefill) == prefill);
        if (alive > 1 && !sim_is_dead(c, rank)) sim_kill(c, rank, turn % 2 == seed % 2);
    }
    EXPECT(sim_run(c));
    for (uint32_t k = 0; k < 12; k++)
        expect_choices_right(c, q[k]);
    expect_clean_end(c, opt.n_pages);
}

static void cell_survives_the_loss_of_ranks(void)
{
    static const sim_options SHAPES[] = {
        {.n_prefill = 2,   .n_decode = 3, .chunk = 7,    .max_rows = 16},
        {.n_prefill = 3,                .n_decode = 2,                .chunk = 64, .max_rows = 100},
        {.n_both = 3, .chunk = 30,              .max_rows = 40                },
    };

    for (uint32_t i = 0; i < sizeof(SHAPES) / sizeof(SHAPES[0]); i++) {
        for (uint32_t seed = 0; seed < 4 * SEEDS; seed++) {
            sim_options opt = SHAPES[i];

            opt.seed       = seed;
            opt.n_pages    = seed % 4 == 3 ? 12 : 64;
            opt.by_cost    = seed % 6 >= 4; /* law A holds where law B is waived */
            opt.share      = seed % 6 == 5;
            opt.late_words = seed % 5 >= 2;
            lose_ranks(opt);
        }
    }
}

/* A prefill rank dies behind a hand-off, before it is heard how it computed the prompt; what is
 * lost or retracted afterwards is computed so again. */
static void cell_replays_what_lost_ranks_computed(void)
{
    for (uint32_t seed = 0; seed < 10 * SEEDS; seed++)
        lose_ranks((sim_options){.n_prefill  = 2,
                                 .n_decode   = 3,
                                 .chunk      = 7,
                                 .max_rows   = 16,
                                 .seed       = seed,
                                 .n_pages    = 12,
                                 .by_cost    = seed % 3 != 1,
                                 .share      = seed % 3 != 0,
                                 .late_words = true});
}

/* A request that has ended while a step has rows of it on the device has no peer to lose: it goes
 * when the step does. */
static void cell_with_ended_rows_under_way_survives_the_loss_of_their_peer(void)
{
    enum { N = 12, TURNS = 20000 };

    for (uint32_t seed = 180; seed < 330; seed++) {
        sim_options  opt = {.n_prefill   = 2,
                            .n_decode    = 1,
                            .chunk       = 64,
                            .max_rows    = 64,
                            .seed        = seed,
                            .n_pages     = 64,
                            .n_slots     = 2,
                            .payload_max = 30 * SIM_DIM * sizeof(bt_bf16) + TAIL,
                            .lookahead   = true,
                            .n_peaks     = 24};
        sim_cell    *c   = sim_create(&opt);
        sim_request *q[N];
        bool         ended = false;

        for (uint32_t k = 0; k < N; k++) {
            q[k]             = sim_add(c, 10 + 3 * k, 60 + k);
            q[k]->stop_token = 3 + k % 5;
            sim_start(c, q[k]);
        }
        for (uint32_t turn = 0; turn < TURNS && !ended; turn++) {
            if (turn == 400 + seed * 37 % 600) sim_kill(c, seed % 2, false);
            EXPECT(sim_act(c));
            ended = true;
            for (uint32_t k = 0; k < N; k++)
                ended = ended && sim_ended(q[k]);
        }
        EXPECT(sim_run(c));
        for (uint32_t k = 0; k < N; k++)
            expect_right(q[k]);
        expect_clean_end(c, opt.n_pages);
    }
}

/* At any moment the coordinator dies with all its requests; what the next one orders has its own
 * tokens, and the ranks are as if the others had never been, but for their caches. */
static void cell_outlives_its_coordinators(void)
{
    for (uint32_t i = 0; i < N_CELLS; i++) {
        for (uint32_t seed = 0; seed < 2 * SEEDS; seed++) {
            sim_options  opt = cell_of(i, seed);
            sim_cell    *c   = sim_create(&opt);
            sim_request *q[10];

            for (uint32_t life = 0; life < 4; life++) {
                bool last = life == 3;

                add_mix(c, q, last ? 10 : 8);
                if (life == 1) sim_split(c, q[7], 3);
                for (uint32_t k = 0; k < (last ? 10 : 8); k++)
                    sim_start(c, q[k]);
                if (last) break;
                for (uint32_t w = 0; w < 37 * seed + 100 * life; w++)
                    EXPECT(sim_act(c));
                sim_lose_coordinator(c, (seed + life) % 2 == 0);
                for (uint32_t w = 0; w < 3000 && sim_is_doomed(c); w++)
                    EXPECT(sim_act(c));
                if (sim_is_doomed(c)) sim_lose_coordinator(c, false); /* no step has come */
            }
            EXPECT(sim_run(c));
            for (uint32_t k = 0; k < 10; k++)
                expect_right(q[k]);
            expect_clean_end(c, opt.n_pages);
        }
    }
}

static void cell_keeps_its_prefix_caches_without_a_coordinator(void)
{
    for (uint32_t i = 0; i < N_CELLS; i++) {
        sim_options  opt = cell_of(i, 3);
        sim_cell    *c   = sim_create(&opt);
        sim_request *a   = sim_add(c, 200, 5), *b;

        sim_start(c, a);
        EXPECT(sim_run(c));
        sim_lose_coordinator(c, false);
        b               = sim_add(c, 200, 5);
        b->prefill_rank = a->prefill_rank;
        b->decode_rank  = a->decode_rank;
        memcpy(b->prompt, a->prompt, sizeof(b->prompt));
        sim_start(c, b);
        EXPECT(sim_run(c));
        expect_right(b);
        EXPECT_EQ(b->n_cached, 192);
        sim_destroy(c);
    }
}

static void run_fault(sim_fault fault, uint32_t cell, uint32_t seed)
{
    sim_options  opt = cell_of(cell, seed);
    sim_cell    *c;
    sim_request *q[6];

    opt.fault       = fault;
    opt.payload_max = 5 * SIM_DIM * sizeof(bt_bf16) + TAIL;
    c               = sim_create(&opt);
    for (uint32_t k = 0; k < 6; k++) {
        q[k]             = sim_add(c, 40 + 10 * k, 6);
        q[k]->ignore_eos = true;
        sim_start(c, q[k]);
    }
    if (fault == SIM_LOST) {
        for (uint32_t k = 0; k < 30000 && !q[0]->failed; k++) {
            sim_act(c);
            if (k % 10 == 0 && k > 15000) sim_pass_time(c, 2 * BT_NS_PER_S);
        }
        EXPECT_EQ(q[0]->fail_code, 14);
        EXPECT_HAS(q[0]->why, "stands still");
    }
    EXPECT(sim_run(c));
    if (fault == SIM_BAD_TAG || fault == SIM_BAD_CHECKSUM) {
        EXPECT(q[0]->failed);
        EXPECT_EQ(q[0]->fail_code, 15);
        EXPECT_HAS(q[0]->why, fault == SIM_BAD_TAG ? "pages with tag" : "refused");
    } else if (fault == SIM_TWICE && q[0]->failed) { /* or it came after the request had joined */
        EXPECT_HAS(q[0]->why, "twice");
    }
    for (uint32_t k = 1; k < 6; k++)
        expect_right(q[k]);
    expect_clean_end(c, opt.n_pages);
}

static void cell_fails_only_the_request_with_the_bad_message(void)
{
    for (uint32_t seed = 0; seed < SEEDS; seed++) {
        run_fault(SIM_BAD_TAG, seed % 4, seed);
        run_fault(SIM_BAD_CHECKSUM, seed % 4, seed);
        run_fault(SIM_TWICE, seed % 4, seed);
        run_fault(SIM_LOST, seed % 4, seed);
    }
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {
        BT_TEST(cell_survives_the_loss_of_ranks),
        BT_TEST(cell_replays_what_lost_ranks_computed),
        BT_TEST(cell_with_ended_rows_under_way_survives_the_loss_of_their_peer),
        BT_TEST(cell_outlives_its_coordinators),
        BT_TEST(cell_keeps_its_prefix_caches_without_a_coordinator),
        BT_TEST(cell_fails_only_the_request_with_the_bad_message),
    };

    bt_log_init("sim", BT_LOG_ERROR);
    return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
}

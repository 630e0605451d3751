/* Choices of one request in simulated cells: shared pages, retraction, aborts. */
#include "tests/worker/cell_cases.h"

/* Requests of 1 to 6 choices beside each other: each choice has the tokens that it has alone. */
static void cell_gives_every_choice_its_tokens(void)
{
    for (uint32_t i = 0; i < N_CELLS; i++) {
        for (uint32_t seed = 0; seed < SEEDS; seed++) {
            sim_options  opt = cell_of(i, seed);
            sim_cell    *c   = sim_create(&opt);
            sim_request *q[8];

            add_mix(c, q, 8);
            for (uint32_t k = 0; k < 8; k++) {
                q[k]->temperature = 1.5f;
                q[k]->seed        = seed;
            }
            for (uint32_t k = 0; k < 8; k++) {
                sim_split(c, q[k], 1 + (k + seed) % 6);
                if (k % 3 == 2) sim_choice(c, q[k], q[k]->n_choices - 1)->cut_at = 1 + seed % 5;
                sim_start(c, q[k]);
                for (uint32_t w = 0; w < 20 * (seed % 3); w++)
                    sim_act(c);
            }
            EXPECT(sim_run(c));
            for (uint32_t k = 0; k < 8; k++)
                expect_choices_right(c, q[k]);
            expect_clean_end(c, opt.n_pages);
        }
    }
}

/* 130 tokens are two full pages, shared, and two rows, copied: n choices of 40 more hold 2 + n
 * pages, not 3 n. */
static void cell_choices_share_the_full_pages(void)
{
    for (uint32_t i = 0; i < N_CELLS; i++) {
        sim_options  opt = cell_of(i, 1);
        sim_cell    *c;
        sim_request *q;

        opt.n_pages    = 8;
        c              = sim_create(&opt);
        q              = sim_add(c, 130, 40);
        q->ignore_eos  = true;
        q->temperature = 1.5f;
        sim_split(c, q, 6);
        sim_start(c, q);
        EXPECT(sim_run(c));
        expect_choices_right(c, q);
        EXPECT_EQ(q->n_retracted, 0);
        expect_clean_end(c, opt.n_pages);
    }
}

/* A page too few for all of them: refused with a sentence. */
static void cell_refuses_choices_beyond_the_pool(void)
{
    sim_options  opt = cell_of(0, 1);
    sim_cell    *c;
    sim_request *q;

    opt.n_pages = 7;
    c           = sim_create(&opt);
    q           = sim_add(c, 130, 40);
    sim_split(c, q, 6);
    sim_start(c, q);
    EXPECT(sim_run(c));
    EXPECT(q->failed);
    EXPECT_EQ(q->fail_code, 3);
    EXPECT_HAS(q->why, "6 choices of 170 tokens need 8 pages");
    expect_clean_end(c, opt.n_pages);
}

/* Choices that no longer fit go all together, and come back with what is left of them. */
static void cell_retracts_a_request_with_all_its_choices(void)
{
    uint32_t n_retracted = 0;

    for (uint32_t i = 0; i < N_CELLS; i++) {
        for (uint32_t seed = 0; seed < SEEDS; seed++) {
            sim_options  opt = cell_of(i, seed);
            sim_cell    *c;
            sim_request *q[6];

            opt.n_pages = 12;
            c           = sim_create(&opt);
            for (uint32_t k = 0; k < 6; k++) {
                q[k]              = sim_add(c, 1 + 37 * k % 150, 130 + 10 * k);
                q[k]->ignore_eos  = k != 4;
                q[k]->temperature = 1.5f;
                q[k]->seed        = seed;
                q[k]->decode_rank = q[0]->decode_rank;
                if (opt.n_both != 0) q[k]->prefill_rank = q[0]->prefill_rank;
                sim_split(c, q[k], 1 + k % 3);
                if (k > 2) sim_choice(c, q[k], seed % q[k]->n_choices)->cut_at = 70;
                sim_start(c, q[k]);
            }
            EXPECT(sim_run(c));
            EXPECT_EQ(q[0]->n_retracted, 0);
            for (uint32_t k = 0; k < 6; k++) {
                expect_choices_right(c, q[k]);
                n_retracted += q[k]->n_retracted;
            }
            expect_clean_end(c, opt.n_pages);
        }
    }
    EXPECT(n_retracted > 50);
}

static void cell_frees_everything_of_aborted_choices(void)
{
    for (uint32_t i = 0; i < N_CELLS; i++) {
        for (uint32_t seed = 0; seed < 2 * SEEDS; seed++) {
            sim_options  opt = cell_of(i, seed);
            sim_cell    *c   = sim_create(&opt);
            sim_request *q[4];

            add_mix(c, q, 4);
            for (uint32_t k = 0; k < 4; k++) {
                sim_split(c, q[k], 5);
                sim_start(c, q[k]);
            }
            for (uint32_t k = 0; k < 2; k++) {
                for (uint32_t w = 0; w < 17 * seed; w++)
                    sim_act(c);
                if (!q[2 * k]->aborted) sim_abort(c, q[2 * k]);
            }
            EXPECT(sim_run(c));
            expect_choices_right(c, q[1]);
            expect_choices_right(c, q[3]);
            expect_clean_end(c, opt.n_pages);
        }
    }
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {
        BT_TEST(cell_gives_every_choice_its_tokens),
        BT_TEST(cell_choices_share_the_full_pages),
        BT_TEST(cell_refuses_choices_beyond_the_pool),
        BT_TEST(cell_retracts_a_request_with_all_its_choices),
        BT_TEST(cell_frees_everything_of_aborted_choices),
    };

    bt_log_init("sim", BT_LOG_ERROR);
    return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
}

/* Whole cells in a simulation: every order of events that the seeds bring, no process, no network.
 */
#include "tests/worker/cell_cases.h"

static void cell_gives_every_request_its_tokens(void)
{
    for (uint32_t i = 0; i < N_CELLS; i++) {
        for (uint32_t seed = 0; seed < SEEDS; seed++) {
            sim_options  opt = cell_of(i, seed);
            sim_cell    *c   = sim_create(&opt);
            sim_request *q[10];

            add_mix(c, q, 10);
            for (uint32_t k = 0; k < 10; k++) {
                q[k]->top_logprobs = k % 5 == 4 ? 2 : 0;
                sim_start(c, q[k]);
                for (uint32_t w = 0; w < 20 * (seed % 3); w++)
                    sim_act(c);
            }
            EXPECT(sim_run(c));
            for (uint32_t k = 0; k < 10; k++) {
                expect_right(q[k]);
                /* The decode rank says the first token once more, unless it was the last, or has
                 * alternatives, which that rank has not. */
                EXPECT_EQ(q[k]->n_repeats,
                          opt.n_both == 0 && q[k]->n_tokens > 1 && q[k]->top_logprobs == 0);
            }
            expect_clean_end(c, opt.n_pages);
        }
    }
}

/* One request alone, on a device that chooses tokens: each of its 59 steps of generated rows is
 * launched before the one before it is waited for, but for the first, and the second: before that
 * the load of experts is told.  None is where that is not wanted. */
static void cell_launches_steps_ahead(void)
{
    for (uint32_t seed = 0; seed < SEEDS; seed++) {
        sim_options  opt = cell_of(0, seed);
        sim_cell    *c   = sim_create(&opt);
        sim_request *q   = sim_add(c, 30, 60);

        q->ignore_eos = true;
        q->repetition = seed % 4 < 2 ? 0 : 0.45f; /* the device counts the tokens */
        sim_start(c, q);
        EXPECT(sim_run(c));
        expect_right(q);
        EXPECT_EQ(sim_steps_ahead(c), opt.lookahead && opt.mtp == 0 ? 57 : 0);
        expect_clean_end(c, opt.n_pages);
    }
}

/* How many steps a request alone takes. */
static uint64_t steps_of_one(const sim_options *opt)
{
    sim_cell    *c = sim_create(opt);
    sim_request *q = sim_add(c, 40, 150);
    uint64_t     steps;

    q->ignore_eos = true;
    sim_start(c, q);
    EXPECT(sim_run(c));
    expect_right(q);
    steps = sim_steps(c);
    expect_clean_end(c, opt->n_pages);
    return steps;
}

/* Many requests, of which some are ended by a token that comes often. */
static void run_mix(const sim_options *opt)
{
    sim_cell    *c = sim_create(opt);
    sim_request *q[20];

    add_mix(c, q, 8);
    for (uint32_t k = 8; k < 20; k++) {
        q[k]             = sim_add(c, 50 + k, 60);
        q[k]->stop_token = 2;
    }
    for (uint32_t k = 0; k < 20; k++)
        sim_start(c, q[k]);
    EXPECT(sim_run(c));
    for (uint32_t k = 0; k < 20; k++)
        expect_right(q[k]);
    EXPECT_EQ(sim_stale_rows(c), 0);
    expect_clean_end(c, opt->n_pages);
}

/* In texts of few tokens drafts are right or wrong at every place.  Tokens are those that come
 * without, in fewer steps, also where one of them ends a request in the midst of a draft. */
static void cell_keeps_what_is_right_of_drafts(void)
{
    for (uint32_t i = 0; i < N_CELLS; i++) {
        for (uint32_t seed = 0; seed < 2 * SEEDS; seed += 2) {
            sim_options opt = cell_of(i, seed);
            uint64_t    without;

            opt.n_peaks = 2;
            opt.share   = seed % 3 == 0;
            opt.payload_max += sizeof(((sim_request *)0)->map);
            opt.speculate = opt.mtp = 0;
            without                 = steps_of_one(&opt);
            opt.speculate           = 1 + seed % 11;
            EXPECT(steps_of_one(&opt) < without);
            opt.n_peaks = 3;
            run_mix(&opt);
        }
    }
}

/* A layer of the model that drafts: the same tokens in fewer steps, from pages that hold the
 * layer's rows as they should be, wherever they were computed. */
static void cell_keeps_what_is_right_of_the_layer_s_drafts(void)
{
    for (uint32_t i = 0; i < N_CELLS; i++) {
        for (uint32_t seed = 0; seed < 2 * SEEDS; seed++) {
            sim_options opt = cell_of(i, seed);
            uint64_t    without;

            opt.n_peaks = 0;
            opt.share   = seed % 5 == 0;
            opt.payload_max += sizeof(((sim_request *)0)->map);
            opt.speculate = opt.mtp = 0;
            without                 = steps_of_one(&opt);
            opt.mtp                 = 1 + seed % BT_MTP_MAX;
            if (opt.max_rows > 3)
                EXPECT(steps_of_one(&opt) < without * (opt.mtp == 1 ? 8 : 6) / 10);
            else
                EXPECT(steps_of_one(&opt) < without);
            opt.speculate = seed % 3 == 0 ? 4 : 0;
            opt.n_peaks   = seed % 4 == 0 ? 3 : 0;
            run_mix(&opt);
        }
    }
}

/* Replies that are held to a grammar, from their start on or behind a token that comes often, alone
 * and as choices, with drafts and without: each is what the grammar says from there on. */
static void cell_holds_replies_to_their_grammars(void)
{
    uint32_t n_begun = 0;

    for (uint32_t i = 0; i < N_CELLS; i++) {
        for (uint32_t seed = 0; seed < SEEDS; seed++) {
            sim_options  opt = cell_of(i, seed);
            sim_cell    *c;
            sim_request *q[6];

            opt.n_peaks = seed % 2 == 0 ? 3 : 0; /* the last one too, which ends what it may */
            c           = sim_create(&opt);
            for (uint32_t k = 0; k < 6; k++) {
                q[k]             = sim_add(c, 3 + 11 * k, 20 + 24 * k);
                q[k]->held       = 5 + 8 * k;
                q[k]->held_after = k % 3 == 0 ? 0 : 1 + k % 2;
                if (k % 2 == 0) q[k]->temperature = 2.0f;
                if (k == 4) sim_split(c, q[k], 2);
            }
            for (uint32_t k = 0; k < 6; k++)
                sim_start(c, q[k]);
            EXPECT(sim_run(c));
            for (uint32_t k = 0; k < 6; k++) {
                expect_choices_right(c, q[k]);
                n_begun += q[k]->held_after != 0 && q[k]->finish == BT_FINISH_EOS;
            }
            expect_clean_end(c, opt.n_pages);
        }
    }
    EXPECT(n_begun > SEEDS);
}

/* More requests with penalties at once than the device counts tokens of: the others' tokens are the
 * host's to count, and come as they must. */
static void cell_has_more_penalties_than_the_device_has_histories(void)
{
    sim_options  opt = cell_of(5, 1);
    sim_cell    *c;
    sim_request *q[70];

    opt.n_pages = 400;
    c           = sim_create(&opt);
    for (uint32_t k = 0; k < 70; k++) { /* long enough to be here all at once */
        q[k]              = sim_add(c, 3 + k % 5, 250 + k % 9);
        q[k]->repetition  = 0.45f;
        q[k]->ignore_eos  = true;
        q[k]->decode_rank = q[k]->prefill_rank = 0;
        sim_start(c, q[k]);
    }
    EXPECT(sim_run(c));
    EXPECT(sim_draws_uncounted(c) > 0);
    for (uint32_t k = 0; k < 70; k++)
        expect_right(q[k]);
    expect_clean_end(c, opt.n_pages);
}

/* Steps with rows of a prompt that wants logprobs are the host's: what they choose the device has
 * not counted. */
static void cell_counts_the_tokens_that_the_host_has_chosen(void)
{
    for (uint32_t seed = 0; seed < SEEDS; seed++) {
        sim_options  opt = cell_of(5, seed);
        sim_cell    *c   = sim_create(&opt);
        sim_request *q   = sim_add(c, 5, 150), *late[4];

        q->repetition  = 0.45f;
        q->ignore_eos  = true;
        q->decode_rank = q->prefill_rank = 0;
        sim_start(c, q);
        for (uint32_t k = 0; k < 4; k++) {
            for (uint32_t turn = 0; turn < 200; turn++)
                sim_act(c);
            late[k]                  = sim_add(c, 40, 3);
            late[k]->prompt_logprobs = 1;
            late[k]->decode_rank = late[k]->prefill_rank = 0;
            sim_start(c, late[k]);
        }
        EXPECT(sim_run(c));
        expect_right(q);
        for (uint32_t k = 0; k < 4; k++)
            expect_right(late[k]);
        expect_clean_end(c, opt.n_pages);
    }
}

/* What ends while its next row is under way keeps its pages until that is over: others that wait
 * for pages do not get them before, and their rows are theirs. */
static void cell_ends_requests_whose_rows_are_under_way(void)
{
    for (uint32_t i = 0; i < N_CELLS; i++) {
        for (uint32_t seed = 0; seed < 2 * SEEDS; seed++) {
            sim_options  opt = cell_of(i, seed);
            sim_cell    *c;
            sim_request *q[16];

            opt.n_pages   = 5;
            opt.lookahead = true;
            c             = sim_create(&opt);
            for (uint32_t k = 0; k < 16; k++) {
                q[k] = sim_add(c, 1 + 29 * (k + seed) % 70, 30);
                if (k % 4 == 1) q[k]->cut_at = 1 + k; /* a stop string */
                sim_expected(q[k], q[k]->prompt + 200, &q[k]->n_eval, &q[k]->finish);
                q[k]->stop_token = k % 4 == 2 ? q[k]->prompt[200 + q[k]->n_eval / 2] : SIM_VOCAB;
                q[k]->n_eval     = 0;
                q[k]->finish     = BT_FINISH_NONE;
                sim_start(c, q[k]);
                for (uint32_t w = 0; w < 10 * (seed % 4); w++)
                    sim_act(c);
                if (k % 4 == 3) sim_abort(c, q[k - seed % 3]);
            }
            EXPECT(sim_run(c));
            for (uint32_t k = 0; k < 16; k++)
                if (!q[k]->aborted || q[k]->finish != BT_FINISH_NONE) expect_right(q[k]);
            expect_clean_end(c, opt.n_pages);
        }
    }
}

/* Waves with silence between: parking and waking, over and over. */
static void cell_wakes_for_every_wave(void)
{
    for (uint32_t seed = 0; seed < SEEDS; seed++) {
        sim_options opt = cell_of(seed % N_CELLS, seed);
        sim_cell   *c   = sim_create(&opt);
        uint64_t    before;

        for (uint32_t wave = 0; wave < 6; wave++) {
            sim_request *q = sim_add(c, 20 + 30 * wave, 4);

            sim_start(c, q);
            EXPECT(sim_run(c));
            expect_right(q);
            for (uint32_t k = 0; k < 200; k++) /* everybody parks */
                sim_act(c);
            before = sim_steps(c);
            for (uint32_t k = 0; k < 200; k++)
                sim_act(c);
            EXPECT_EQ(sim_steps(c), before);
        }
        sim_destroy(c);
    }
}

static void cell_frees_everything_of_aborted_requests(void)
{
    for (uint32_t i = 0; i < N_CELLS; i++) {
        for (uint32_t seed = 0; seed < 4 * SEEDS; seed++) {
            sim_options  opt = cell_of(i, seed);
            sim_cell    *c   = sim_create(&opt);
            sim_request *q[8];

            add_mix(c, q, 8);
            for (uint32_t k = 0; k < 8; k++)
                sim_start(c, q[k]);
            for (uint32_t k = 0; k < 4; k++) {
                for (uint32_t w = 0; w < 13 * seed; w++)
                    sim_act(c);
                if (!q[2 * k]->aborted) sim_abort(c, q[2 * k]);
            }
            EXPECT(sim_run(c));
            for (uint32_t k = 1; k < 8; k += 2)
                expect_right(q[k]);
            expect_clean_end(c, opt.n_pages);
        }
    }
}

static void cell_evaluates_prompt_and_forced_tokens(void)
{
    for (uint32_t i = 0; i < N_CELLS; i++) {
        for (uint32_t seed = 0; seed < 4; seed++) {
            sim_options  opt = cell_of(i, seed);
            sim_cell    *c   = sim_create(&opt);
            sim_request *q[6];

            for (uint32_t k = 0; k < 6; k++) {
                q[k]       = sim_add(c, 30 + 20 * k, k == 5 ? 60 : 10);
                q[k]->eval = k != 5;
                if (!q[k]->eval) continue; /* a neighbour that generates */
                q[k]->n_eval = k == 2 ? 0 : 11 * k + 1;
                q[k]->force  = k % 2 == 0;
                for (uint32_t t = 0; t < q[k]->n_eval; t++)
                    q[k]->eval_tokens[t] = (t * 77 + k) % SIM_VOCAB;
            }
            q[5]->repetition = 0.45f; /* the host has to choose its tokens meanwhile */
            q[5]->ignore_eos = true;
            sim_start(c, q[5]);
            for (uint32_t k = 0; k < 5; k++) {
                for (uint32_t w = 0; w < 60 * seed; w++)
                    sim_act(c);
                q[k]->prefill_rank = q[5]->prefill_rank;
                q[k]->decode_rank  = q[5]->decode_rank;
                sim_start(c, q[k]);
            }
            EXPECT(sim_run(c));
            for (uint32_t k = 0; k < 5; k++)
                for (uint32_t t = 0; t < q[k]->n_prompt + q[k]->n_eval; t++)
                    EXPECT_EQ(q[k]->rows_seen[t], 1);
            expect_right(q[5]);
            expect_clean_end(c, opt.n_pages);
        }
    }
}

static void cell_leaves_together_at_any_moment(void)
{
    for (uint32_t i = 0; i < N_CELLS; i++) {
        for (uint32_t seed = 0; seed < SEEDS; seed++) {
            sim_options  opt = cell_of(i, seed);
            sim_cell    *c   = sim_create(&opt);
            sim_request *q[4];

            add_mix(c, q, 4);
            for (uint32_t k = 0; k < 4; k++)
                sim_start(c, q[k]);
            for (uint32_t w = 0; w < 40 * seed; w++)
                sim_act(c);
            EXPECT(sim_shut_down(c));
            sim_destroy(c);
        }
    }
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {
        BT_TEST(cell_gives_every_request_its_tokens),
        BT_TEST(cell_launches_steps_ahead),
        BT_TEST(cell_keeps_what_is_right_of_drafts),
        BT_TEST(cell_keeps_what_is_right_of_the_layer_s_drafts),
        BT_TEST(cell_holds_replies_to_their_grammars),
        BT_TEST(cell_has_more_penalties_than_the_device_has_histories),
        BT_TEST(cell_counts_the_tokens_that_the_host_has_chosen),
        BT_TEST(cell_ends_requests_whose_rows_are_under_way),
        BT_TEST(cell_wakes_for_every_wave),
        BT_TEST(cell_frees_everything_of_aborted_requests),
        BT_TEST(cell_evaluates_prompt_and_forced_tokens),
        BT_TEST(cell_leaves_together_at_any_moment),
    };

    bt_log_init("sim", BT_LOG_ERROR);
    return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
}

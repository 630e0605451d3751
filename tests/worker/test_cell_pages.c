/* Pages of simulated cells: found again, shared, taken from the youngest, and too few. */
#include "tests/worker/cell_cases.h"

/* The same first 200 tokens three times: then the second and third compute and hand over the rest
 * only, whichever decode rank has them. */
static void cell_shares_prefixes(void)
{
    for (uint32_t i = 0; i < N_CELLS; i++) {
        for (uint32_t seed = 0; seed < SEEDS; seed++) {
            sim_options  opt = cell_of(i, seed);
            sim_cell    *c   = sim_create(&opt);
            sim_request *q[3];

            for (uint32_t k = 0; k < 3; k++) {
                q[k] = sim_add(c, k == 0 ? 200 : 191 + k, 5); /* then 192 and 193 tokens */
                memcpy(q[k]->prompt, q[0]->prompt, (k == 0 ? 200 : 191 + k) * sizeof(uint32_t));
                q[k]->prefill_rank = q[0]->prefill_rank;
                if (opt.n_both != 0 || seed % 2 == 0) q[k]->decode_rank = q[0]->decode_rank;
                sim_start(c, q[k]);
                EXPECT(sim_run(c));
                expect_right(q[k]);
            }
            EXPECT_EQ(q[0]->n_cached, 0);
            EXPECT_EQ(q[1]->n_cached, 128); /* the last token is always computed */
            EXPECT_EQ(q[2]->n_cached, 192);
            expect_clean_end(c, opt.n_pages);
        }
    }
}

/* Together, and aborted now and then: what one has computed the others may use. */
static void cell_shares_prefixes_under_way(void)
{
    for (uint32_t seed = 0; seed < 4 * SEEDS; seed++) {
        sim_options  opt = cell_of(seed % N_CELLS, seed);
        sim_cell    *c;
        sim_request *q[9];

        opt.n_pages = 14;
        c           = sim_create(&opt);
        for (uint32_t k = 0; k < 9; k++) {
            q[k] = sim_add(c, 60 + 17 * k, 1 + k);
            memcpy(q[k]->prompt, q[k % 2]->prompt, (60 + 17 * (k % 2)) * sizeof(uint32_t));
            if (k >= 4) memcpy(q[k]->prompt, q[3]->prompt, 111 * sizeof(uint32_t));
            sim_start(c, q[k]);
            for (uint32_t w = 0; w < 30 * (seed % 4); w++)
                sim_act(c);
            if (k == 5 && seed % 2 == 0) sim_abort(c, q[4]);
        }
        EXPECT(sim_run(c));
        for (uint32_t k = 0; k < 9; k++)
            if (!q[k]->aborted || q[k]->finish != BT_FINISH_NONE) expect_right(q[k]);
        expect_clean_end(c, opt.n_pages);
    }
}

/* A burst of equal prompts that take several pieces, of which a step has room for more: the prefill
 * rank computes each full page once, and those that are left go on where the first is aborted. */
static void cell_computes_equal_prompts_once(void)
{
    for (uint32_t i = 0; i < N_CELLS; i++) {
        for (uint32_t seed = 0; seed < SEEDS; seed++) {
            sim_options  opt = cell_of(i, seed);
            sim_cell    *c   = sim_create(&opt);
            sim_request *q[4];

            for (uint32_t k = 0; k < 4; k++) {
                q[k] = sim_add(c, 300, 3);
                memcpy(q[k]->prompt, q[0]->prompt, 300 * sizeof(uint32_t));
                q[k]->prefill_rank = q[0]->prefill_rank;
                if (opt.n_both != 0) q[k]->decode_rank = q[0]->decode_rank;
                sim_start(c, q[k]);
            }
            if (seed % 4 == 3) {
                for (uint32_t w = 0; w < 20 * seed; w++)
                    sim_act(c);
                sim_abort(c, q[0]);
            }
            EXPECT(sim_run(c));
            for (uint32_t k = 0; k < 4; k++)
                if (!q[k]->aborted || q[k]->finish != BT_FINISH_NONE) expect_right(q[k]);
            for (uint32_t k = 1, n_first = 0; k < 4 && opt.chunk < 300 && seed % 4 != 3; k++) {
                n_first += q[k]->n_cached < 256;
                EXPECT(n_first <= (q[0]->n_cached == 256));
            }
            expect_clean_end(c, opt.n_pages);
        }
    }
}

/* Few pages and long answers: the youngest give way, come back, and nobody's tokens change. */
static void cell_retracts_the_youngest_and_resumes_it(void)
{
    uint32_t n_retracted = 0;

    for (uint32_t i = 0; i < N_CELLS; i++) {
        for (uint32_t seed = 0; seed < SEEDS; seed++) {
            sim_options  opt = cell_of(i, seed);
            sim_cell    *c;
            sim_request *q[8];

            opt.n_pages = 6;
            c           = sim_create(&opt);
            for (uint32_t k = 0; k < 8; k++) {
                q[k]             = sim_add(c, 1 + 37 * k % 150, 150 + 10 * k);
                q[k]->ignore_eos = true;
                if (k % 2 == 1) q[k]->temperature = 1.5f;
                q[k]->decode_rank = q[0]->decode_rank;
                if (opt.n_both != 0) q[k]->prefill_rank = q[0]->prefill_rank;
                sim_start(c, q[k]);
            }
            EXPECT(sim_run(c));
            EXPECT_EQ(q[0]->n_retracted, 0); /* the oldest never */
            for (uint32_t k = 0; k < 8; k++) {
                expect_right(q[k]);
                n_retracted += q[k]->n_retracted;
            }
            EXPECT_EQ(sim_stale_rows(c), 0);
            expect_clean_end(c, opt.n_pages);
        }
    }
    EXPECT(n_retracted > 50);
}

/* A reply is part of the next prompt: its full pages are found where it was generated, in whichever
 * choice, and what they were computed with goes into the next request's map. */
static void cell_shares_generated_pages(void)
{
    for (uint32_t i = 0; i < N_CELLS; i++) {
        for (uint32_t seed = 0; seed < SEEDS; seed++) {
            uint32_t     n_choices = 1 + seed / 4 % 2;
            sim_options  opt       = waiving(i, seed, seed % 2 == 1, true);
            sim_cell    *c         = sim_create(&opt);
            sim_request *q[3];

            for (uint32_t k = 0; k < 3; k++) {
                q[k]               = sim_add(c, 70 + 100 * k, 90);
                q[k]->ignore_eos   = true;
                q[k]->temperature  = n_choices > 1 ? 1.5f : 0;
                q[k]->prefill_rank = q[0]->prefill_rank;
                q[k]->decode_rank  = q[0]->decode_rank;
                if (k > 0) {
                    const sim_request *said = sim_choice(c, q[k - 1], n_choices - 1);

                    memcpy(q[k]->prompt, said->prompt, said->n_prompt * sizeof(uint32_t));
                    memcpy(q[k]->prompt + said->n_prompt, said->tokens,
                           said->n_tokens * sizeof(uint32_t));
                }
                sim_split(c, q[k], n_choices);
                sim_start(c, q[k]);
                EXPECT(sim_run(c));
                expect_choices_right(c, q[k]);
            }
            /* 70 + 90 tokens: two full pages, the second with generated rows */
            EXPECT(q[1]->map[0].generated == 0 && q[1]->map[1].generated == ~0ull << 6);
            EXPECT(q[1]->map[1].absorbed >> 6 == ~0ull >> 6);
            EXPECT_EQ(q[1]->n_cached, opt.n_both != 0 ? 128 : 64);
            EXPECT_EQ(q[2]->n_cached, opt.n_both != 0 ? 256 : 128);
            expect_clean_end(c, opt.n_pages);
        }
    }
}

/* What is generated behind a prompt without keys has none either: one that begins like the reply
 * would find pages of other tokens. */
static void cell_shares_no_generated_page_behind_one_without_a_key(void)
{
    for (uint32_t i = 0; i < N_CELLS; i++) {
        sim_options  opt = waiving(i, 1, false, true);
        sim_cell    *c   = sim_create(&opt);
        sim_request *q[2];

        for (uint32_t k = 0; k < 2; k++) {
            q[k]                  = sim_add(c, 70, 90);
            q[k]->ignore_eos      = true;
            q[k]->prompt_logprobs = k == 0;
            q[k]->prefill_rank    = q[0]->prefill_rank;
            q[k]->decode_rank     = q[0]->decode_rank;
            if (k == 1) { /* the first one's second page */
                memcpy(q[1]->prompt, q[0]->prompt + 64, 6 * sizeof(uint32_t));
                memcpy(q[1]->prompt + 6, q[0]->tokens, 64 * sizeof(uint32_t));
            }
            sim_start(c, q[k]);
            EXPECT(sim_run(c));
            expect_right(q[k]);
            EXPECT_EQ(q[k]->n_cached, 0);
        }
        expect_clean_end(c, opt.n_pages);
    }
}

/* Law A where law B is waived: conversations on few pages, cut, cached and retracted in every way;
 * each token follows from the one map that its request was given. */
static void cell_replays_by_the_form_map(void)
{
    uint32_t n_retracted[3] = {0};

    for (uint32_t i = 0; i < N_CELLS; i++) {
        for (uint32_t seed = 0; seed < SEEDS; seed++) {
            uint32_t     kind = seed % 3;
            sim_options  opt  = waiving(i, seed, kind != 1, kind != 0);
            sim_cell    *c;
            sim_request *q[12];

            opt.n_pages = 7;
            c           = sim_create(&opt);
            for (uint32_t k = 0; k < 12; k++) {
                if (k == 6) EXPECT(sim_run(c));
                q[k]              = sim_add(c, k < 6 ? 1 + 37 * k % 120 : 130 + 11 * k, 100);
                q[k]->ignore_eos  = true;
                q[k]->decode_rank = q[0]->decode_rank;
                if (opt.n_both != 0) q[k]->prefill_rank = q[0]->prefill_rank;
                if (k >= 9) { /* the same at once: cut in different ways */
                    q[k]->n_prompt = 140 + k;
                    memcpy(q[k]->prompt, q[9]->prompt, 140 * sizeof(uint32_t));
                } else if (k >= 6) { /* goes on with an earlier one */
                    memcpy(q[k]->prompt, q[k - 6]->prompt, q[k - 6]->n_prompt * sizeof(uint32_t));
                    memcpy(q[k]->prompt + q[k - 6]->n_prompt, q[k - 6]->tokens,
                           q[k - 6]->n_tokens * sizeof(uint32_t));
                    q[k]->n_prompt = q[k - 6]->n_prompt + q[k - 6]->n_tokens + k;
                }
                sim_start(c, q[k]);
            }
            EXPECT(sim_run(c));
            for (uint32_t k = 0; k < 12; k++) {
                expect_right(q[k]);
                n_retracted[kind] += q[k]->n_retracted;
            }
            expect_clean_end(c, opt.n_pages);
        }
    }
    for (uint32_t kind = 0; kind < 3; kind++)
        EXPECT(n_retracted[kind] > 10);
}

static void cell_without_pages_refuses_and_serves_later(void)
{
    for (uint32_t i = 0; i < N_CELLS; i++) {
        sim_options  opt = cell_of(i, 5);
        sim_cell    *c;
        sim_request *q[12];
        uint32_t     n_refused = 0;

        opt.n_pages = 5;
        c           = sim_create(&opt);
        for (uint32_t k = 0; k < 12; k++) {
            q[k] = sim_add(c, 150 + k, 30);
            sim_start(c, q[k]);
        }
        EXPECT(sim_run(c));
        for (uint32_t k = 0; k < 12; k++) {
            expect_right(q[k]);
            n_refused += q[k]->n_refused;
        }
        EXPECT(n_refused > 0);
        expect_clean_end(c, 5);
    }
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {
        BT_TEST(cell_shares_prefixes),
        BT_TEST(cell_shares_prefixes_under_way),
        BT_TEST(cell_computes_equal_prompts_once),
        BT_TEST(cell_retracts_the_youngest_and_resumes_it),
        BT_TEST(cell_shares_generated_pages),
        BT_TEST(cell_shares_no_generated_page_behind_one_without_a_key),
        BT_TEST(cell_replays_by_the_form_map),
        BT_TEST(cell_without_pages_refuses_and_serves_later),
    };

    bt_log_init("sim", BT_LOG_ERROR);
    return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
}

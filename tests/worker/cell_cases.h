/* tests/worker/cell_cases.h - what the tests of simulated cells share: shapes of cells, mixes of
 * requests, what must hold at the end. */
#ifndef BT_TESTS_WORKER_CELL_CASES_H
#define BT_TESTS_WORKER_CELL_CASES_H

#include "core/clock.h"
#include "tests/support/test.h"
#include "tests/worker/sim_cell.h"

enum { SEEDS = 12, TAIL = 6 * sizeof(bt_first_token) };

static const sim_options CELLS[] = {
    {.n_prefill = 1, .n_decode = 1,  .chunk = 7,       .max_rows = 16},
    {.n_prefill = 2,              .n_decode = 2,               .chunk = 1,     .max_rows = 3},
    {.n_prefill = 1, .n_decode = 3,               .chunk = 64,              .max_rows = 64},
    {.n_prefill = 3,   .n_decode = 1,.chunk = 400,.max_rows = 400},
    {.n_both = 1,.chunk = 7,             .max_rows = 9                      },
    {.n_both = 2,    .chunk = 64,          .max_rows = 100},
};
enum { N_CELLS = sizeof(CELLS) / sizeof(CELLS[0]) };

static inline sim_options cell_of(uint32_t i, uint32_t seed)
{
    static const uint32_t ROWS[] = {1, 5, 30, 1000};
    sim_options           opt    = CELLS[i];

    opt.seed        = seed;
    opt.lookahead   = seed % 2 == 1;
    opt.speculate   = seed % 4 == 2 ? 5 : 0; /* which lookahead goes without */
    opt.mtp         = seed % 3 == 1 ? 1 + seed % BT_MTP_MAX : 0;
    opt.n_peaks     = opt.speculate != 0 ? 2 : 0;
    opt.n_pages     = 64;
    opt.n_slots     = 1 + seed % 3;
    opt.payload_max = ROWS[seed % 4] * SIM_DIM * sizeof(bt_bf16) + TAIL;
    return opt;
}

static inline void expect_right(const sim_request *q)
{
    uint32_t  want[SIM_CONTEXT], n;
    bt_finish how;

    sim_expected(q, want, &n, &how);
    EXPECT(!q->failed);
    EXPECT_EQ(q->n_tokens, n);
    EXPECT_EQ(q->finish, how);
    EXPECT(memcmp(q->tokens, want, n * sizeof(*want)) == 0);
}

static inline void expect_all_free(sim_cell *c, uint32_t n_pages)
{
    for (uint32_t rank = 0; rank < sim_n_ranks(c); rank++) {
        if (sim_is_dead(c, rank)) continue;
        EXPECT_EQ(sim_free_pages(c, rank), n_pages);
        EXPECT(sim_pool_is_sound(c, rank));
    }
}

/* Nothing runs any more: every page is free, every rank leaves when told to.  Destroys the cell. */
static inline void expect_clean_end(sim_cell *c, uint32_t n_pages)
{
    expect_all_free(c, n_pages);
    EXPECT(sim_shut_down(c));
    sim_destroy(c);
}

/* Some prompts of every length, greedy and drawn, with penalties, salts and stop tokens and
 * without, some held to a grammar. */
static inline void add_mix(sim_cell *c, sim_request **q, uint32_t n)
{
    static const uint32_t PROMPTS[] = {1, 64, 5, 130, 63, 17, 65, 200};
    static const uint32_t TOKENS[]  = {9, 1, 20, 3, 40, 2, 6, 30};

    for (uint32_t i = 0; i < n; i++) {
        q[i] = sim_add(c, PROMPTS[i % 8], TOKENS[(i + i / 8) % 8]);
        if (i % 3 == 1) {
            q[i]->temperature = 1.5f;
            q[i]->seed        = 1000 + i;
        }
        if (i % 4 >= 2) q[i]->repetition = 0.45f;
        q[i]->ignore_eos = i % 2 == 0;
        q[i]->cache_salt = i % 7 == 3 ? "salt" : NULL;
        if (i % 3 == 2) q[i]->stop_token = q[i]->prompt[0] % 16;
        if (i % 5 != 3) continue;
        q[i]->held       = 10 + 7 * i;
        q[i]->held_after = i % 2 == 0 ? 0 : 1 + q[i]->prompt[0] % 8;
        q[i]->ignore_eos = false;
    }
}

static inline void expect_choices_right(sim_cell *c, const sim_request *q)
{
    for (uint32_t k = 0; k < q->n_choices; k++)
        expect_right(sim_choice(c, q, k));
}

static inline sim_options waiving(uint32_t i, uint32_t seed, bool by_cost, bool share)
{
    sim_options opt = cell_of(i, seed);

    opt.by_cost = by_cost;
    opt.share   = share;
    opt.payload_max += sizeof(((sim_request *)0)->map);
    return opt;
}

#endif

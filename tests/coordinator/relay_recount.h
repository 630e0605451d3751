/* tests/coordinator/relay_recount.h - every number that a relay keeps beside its requests, counted
 * anew from these, one by one. */
#ifndef BT_TESTS_COORDINATOR_RELAY_RECOUNT_H
#define BT_TESTS_COORDINATOR_RELAY_RECOUNT_H

#include "coordinator/relay_state.h"
#include "tests/support/test.h"

/* Pages of the rank that nobody owns of those who hold them: each once. */
static inline uint32_t recount_found(const bt_relay *r, uint32_t rank)
{
    enum { MOST_PAGES = 64 };
    uint32_t found[MOST_PAGES] = {0}, owned[MOST_PAGES] = {0}, n = 0, page = r->cfg.page_tokens;

    NEED(r->ranks[rank].limits.n_pages <= MOST_PAGES);
    for (const bt_relay_request *q = r->placed.first; q != NULL; q = q->next) {
        if (q->decode_rank != rank || q->held_pages == NULL) continue;
        EXPECT(q->n_held < q->n_prompt && q->n_held % page == 0);
        for (uint32_t i = 0; i < q->n_prompt / page; i++) {
            NEED(q->held_pages[i] < r->ranks[rank].limits.n_pages);
            (i < q->n_held / page ? found : owned)[q->held_pages[i]]++;
        }
    }
    for (uint32_t i = 0; i < MOST_PAGES; i++)
        n += found[i] > 0 && owned[i] == 0;
    return n;
}

static inline void recount_rank(const bt_relay *r, uint32_t rank)
{
    const bt_rank_state *k  = &r->ranks[rank];
    bt_rank_state        is = {0};

    for (const bt_relay_request *q = r->placed.first; q != NULL; q = q->next) {
        if (q->decode_rank == rank && q->decode_holds) {
            is.taken_pages += q->decode_pages;
            is.n_choices += q->decode_choices;
            is.n_held++;
        }
        if (q->prefill_rank != rank) continue;
        EXPECT(q->state == BT_RESERVING || q->prefill_holds || q->decode_rank == rank ||
               (q->prefill_pages == 0 && q->prefill_counts == 0));
        is.n_held += q->prefill_holds;
        is.taken_pages += q->prefill_pages;
        is.prefill_tokens += q->prefill_counts;
        if (q->is_long) is.long_pages += q->prefill_pages;
        if (q->is_long) is.long_tokens += q->prefill_counts;
    }
    EXPECT_EQ(k->held.n_found, recount_found(r, rank));
    EXPECT_EQ(k->taken_pages, is.taken_pages + k->held.n_found);
    EXPECT_EQ(k->n_choices, is.n_choices);
    EXPECT_EQ(k->n_held, is.n_held);
    EXPECT_EQ(k->prefill_tokens, is.prefill_tokens);
    EXPECT_EQ(k->long_tokens, is.long_tokens);
    EXPECT_EQ(k->long_pages, is.long_pages);
}

/* What waits has nothing of any rank; what has ended is there for what a rank still holds. */
static inline void recount_requests(const bt_relay *r)
{
    uint32_t n_in[BT_ENDED + 1] = {0};
    uint64_t tokens = 0, text = 0;

    for (const bt_relay_request *q = r->queue.first; q != NULL; q = q->next) {
        EXPECT_EQ(q->state, BT_QUEUED);
        EXPECT(!q->decode_holds && !q->prefill_holds && q->held_pages == NULL);
        EXPECT(q->decode_pages == 0 && q->prefill_pages == 0 && q->prefill_counts == 0);
        EXPECT(bt_table_get(&r->numbers, q->number) == q);
        n_in[q->state]++;
        tokens += q->n_prompt;
        text += q->sampling.n_constraint_bytes;
    }
    for (const bt_relay_request *q = r->placed.first; q != NULL; q = q->next) {
        EXPECT(q->state != BT_QUEUED);
        EXPECT(q->state != BT_ENDED || q->decode_holds || q->prefill_holds);
        EXPECT(bt_table_get(&r->numbers, q->number) == q);
        n_in[q->state]++;
    }
    for (int state = 0; state <= BT_ENDED; state++)
        EXPECT_EQ(r->n_in[state], n_in[state]);
    EXPECT_EQ(r->queued_tokens, tokens);
    EXPECT_EQ(r->queued_text, text);
}

static inline void recount(const bt_relay *r)
{
    recount_requests(r);
    for (uint32_t rank = 0; rank < r->cfg.n_ranks; rank++)
        recount_rank(r, rank);
}

#endif

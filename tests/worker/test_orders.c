/* Orders that one rank gets, one after the other: what becomes of requests and their pages. */
#include "core/alloc.h"
#include "core/clock.h"
#include "proto/prefix_key.h"
#include "tests/support/sweep.h"
#include "tests/support/test.h"
#include "tests/worker/bench.h"
#include "worker/state.h"

static void abort_one(bench *b, uint64_t id, uint32_t epoch)
{
    bt_down m = {
        .kind = BT_DOWN_ABORT, .u.abort = {.request = id, .epoch = epoch}
    };

    bench_order(b, &m);
}

static void rank_with_both_roles_needs_its_own_ticket(void)
{
    static const char *const SAYS[] = {"prefill 9 tokens, the reservation was for 10",
                                       "page 1 of the order",
                                       "cannot decode",
                                       "prefill 10 tokens, the reservation was for 10",
                                       "not that of the ticket",
                                       "not that of the ticket",
                                       "in state"};
    bench                    b;
    bt_down                  m;

    bench_set_up(&b, 0, 0, 0);
    m = bench_prefill(1, 10, 1, 0), bench_order(&b, &m);
    bench_expect_failed(&b, 3, "without a reservation");

    m = bench_reserve(1, 10, 5), m.u.reserve.epoch = 2, bench_order(&b, &m);
    bench_forget(&b);
    m = bench_prefill(1, 10, 1, 0), bench_order(&b, &m);
    bench_expect_failed(&b, 3, "without a reservation"); /* in that placement */
    abort_one(&b, 1, 2);
    bench_forget(&b);

    for (int wrong = 0; wrong < 7; wrong++) {
        bt_down_prefill *p = &m.u.prefill;
        bt_page_ref      page;

        m = bench_reserve(1, 10, 5), bench_order(&b, &m);
        EXPECT_EQ(b.n_up, 1);
        EXPECT_EQ(b.up[0].kind, BT_UP_TICKET);
        EXPECT_EQ(b.up[0].u.ticket.n_pages, 1);
        EXPECT(!bt_worker_expects_pages(b.worker)); /* nobody hands anything over */
        page = b.up[0].u.ticket.pages[0];
        bench_forget(&b);
        m           = bench_prefill(1, wrong == 0 ? 9 : 10, wrong == 1 ? 2 : 1, wrong == 2);
        p->pages[0] = page;
        p->eval     = wrong == 3;
        p->pages[0].id += wrong == 4;
        p->pages[0].generation += wrong == 5;
        bench_order(&b, &m);
        if (wrong == 6) { /* it comes twice */
            EXPECT_EQ(b.n_up, 0);
            m           = bench_prefill(1, 10, 1, 0);
            p->pages[0] = page;
            bench_order(&b, &m);
        }
        EXPECT_EQ(b.n_up, 2); /* Failed, and Released: the reservation is gone too */
        EXPECT_EQ(b.up[1].kind, BT_UP_RELEASED);
        bt_up_free(&b.up[--b.n_up]);
        bench_expect_failed(&b, 3, SAYS[wrong]);
    }
    bench_tear_down(&b);
}

static void rank_without_pages_refuses_the_ticket(void)
{
    bench   b;
    bt_down m;

    bench_set_up(&b, 1, 1, 1);
    m = bench_reserve(1, 100, 60),
    bench_order(&b, &m); /* 2 of 4 pages; a third when it needs one */
    m = bench_reserve(2, 100, 20), bench_order(&b, &m); /* would leave none for the first to grow */
    m = bench_reserve(3, 60, 20), bench_order(&b, &m);
    EXPECT_EQ(b.n_up, 3);
    EXPECT(!b.up[0].u.ticket.refused && b.up[0].u.ticket.n_pages == 2);
    EXPECT(b.up[1].u.ticket.refused && b.up[1].u.ticket.n_pages == 0);
    EXPECT(!b.up[2].u.ticket.refused && b.up[2].u.ticket.n_pages == 1);
    EXPECT_EQ(bt_kv_pool_n_free(b.pool), 1);
    bench_tear_down(&b);
}

/* It has all pages that it will ever need. */
static void evaluation_leaves_its_neighbours_every_page(void)
{
    bench   b;
    bt_down m;

    bench_set_up(&b, 1, 1, 1);
    m = bench_reserve(1, 100, 0), m.u.reserve.eval = true, bench_order(&b, &m);
    m = bench_reserve(2, 100, 20), bench_order(&b, &m);
    EXPECT_EQ(b.n_up, 2);
    EXPECT(!b.up[0].u.ticket.refused && b.up[0].u.ticket.n_pages == 2);
    EXPECT(!b.up[1].u.ticket.refused && b.up[1].u.ticket.n_pages == 2);
    EXPECT_EQ(bt_kv_pool_n_free(b.pool), 0);
    bench_tear_down(&b);
}

/* Or those that need much would never come to their turn. */
static void prompts_that_wait_for_pages_are_not_overtaken(void)
{
    bench   b;
    bt_down m = {.kind = BT_DOWN_WAKE, .u.wake = {1}};
    bt_plan plan;
    bt_next next;

    bench_set_up(&b, 0, 1, 1);
    bench_order(&b, &m);
    m = bench_prefill(1, 100, 2, 1), bench_order(&b, &m);
    m = bench_prefill(2, 150, 3, 1), bench_order(&b, &m);
    m = bench_prefill(3, 10, 1, 1), bench_order(&b, &m);
    EXPECT_EQ(bt_worker_begin(b.worker, &plan, &next), BT_OK);
    EXPECT_EQ(bt_kv_pool_n_free(b.pool), BENCH_PAGES - 2);
    abort_one(&b, 1, 3);
    EXPECT_EQ(bt_worker_begin(b.worker, &plan, &next), BT_OK);
    EXPECT_EQ(bt_kv_pool_n_free(b.pool), 0); /* 3 + 1 */
    abort_one(&b, 2, 3);
    abort_one(&b, 3, 3);
    bench_tear_down(&b);
}

static void abort_of_an_unknown_request_is_answered(void)
{
    bench   b;
    bt_down m = {
        .kind = BT_DOWN_ABORT, .u.abort = {.request = 77, .epoch = 3}
    };

    bench_set_up(&b, 1, 1, 1);
    bench_order(&b, &m);
    EXPECT_EQ(b.n_up, 1);
    EXPECT_EQ(b.up[0].kind, BT_UP_RELEASED);
    EXPECT_EQ(b.up[0].u.released.request, 77);
    bench_forget(&b);

    m = bench_reserve(5, 10, 5), bench_order(&b, &m);
    m = (bt_down){
        .kind = BT_DOWN_ABORT, .u.abort = {.request = 5, .epoch = 2}
    }; /* of an earlier placement */
    bench_order(&b, &m);
    EXPECT_EQ(bt_kv_pool_n_free(b.pool), BENCH_PAGES - 1);
    m = (bt_down){
        .kind = BT_DOWN_ABORT, .u.abort = {.request = 5, .epoch = 3}
    };
    bench_order(&b, &m);
    EXPECT_EQ(bt_kv_pool_n_free(b.pool), BENCH_PAGES);
    bench_tear_down(&b);
}

/* Pages are free before the next step, whatever is under way: that is a copy, whose slot stays
 * until it has left; and only then does the rank say that it holds nothing. */
static void abort_frees_pages_at_once_and_quarantines_the_slot(void)
{
    bench   b;
    bt_plan plan;
    bt_next next;
    bt_down m;

    bench_set_up(&b, 0, 1, 1);
    m = bench_prefill(1, 100, 2, 1), bench_order(&b, &m);
    m = (bt_down){.kind = BT_DOWN_WAKE, .u.wake = {1}};
    bench_order(&b, &m);
    EXPECT_EQ(bt_worker_begin(b.worker, &plan, &next), BT_OK);
    EXPECT_EQ(bt_kv_pool_n_free(b.pool), BENCH_PAGES - 2);
    bench_forget(&b);
    b.granted = true;
    m         = (bt_down){
                .kind = BT_DOWN_ABORT, .u.abort = {.request = 1, .epoch = 3}
    };
    bench_order(&b, &m);
    EXPECT_EQ(bt_kv_pool_n_free(b.pool), BENCH_PAGES);
    b.now += 300 * BT_NS_PER_MS;
    bt_worker_background(b.worker);
    EXPECT_EQ(b.n_quarantined, 1);
    EXPECT_EQ(bt_worker_fail(b.worker, b.worker->requests.at[0], BT_RPC_INTERNAL, "late"), BT_OK);
    EXPECT_EQ(b.n_up, 0); /* it has ended already */
    b.granted = false;    /* it has left */
    b.now += 300 * BT_NS_PER_MS;
    EXPECT_EQ(bt_worker_begin(b.worker, &plan, &next), BT_OK);
    EXPECT_EQ(b.n_up, 1);
    EXPECT_EQ(b.up[0].kind, BT_UP_RELEASED);
    bt_worker_background(b.worker);
    EXPECT_EQ(b.n_quarantined, 0);
    bench_tear_down(&b);
}

/* Only a step that has rows of it is waited for. */
static void abort_does_not_wait_for_rows_of_others(void)
{
    bench   b;
    bt_down m;

    bench_set_up(&b, 0, 1, 1);
    for (uint64_t id = 1; id <= 2; id++)
        m = bench_prefill(id, 10, 1, 1), bench_order(&b, &m);
    b.worker->requests.at[1]->n_launched = 1;
    abort_one(&b, 1, 3);
    EXPECT_EQ(b.worker->requests.n, 1);
    EXPECT(b.n_up == 1 && b.up[0].kind == BT_UP_RELEASED);
    m = bench_prefill(3, 10, 1, 1), bench_order(&b, &m);
    abort_one(&b, 2, 3);
    EXPECT(b.n_up == 1 && b.worker->requests.n == 2);
    b.worker->requests.at[0]->n_launched = 0;
    EXPECT_EQ(bt_worker_reap(b.worker), BT_OK);
    EXPECT(b.n_up == 2 && b.up[1].u.released.request == 2);
    EXPECT(b.worker->requests.n == 1 && b.worker->requests.at[0]->id == 3);
    bench_tear_down(&b);
}

static void newer_placement_takes_the_place_of_an_older_one(void)
{
    bench   b;
    bt_down m;

    bench_set_up(&b, 1, 1, 1);
    m = bench_reserve(1, 100, 20), bench_order(&b, &m);
    m = bench_reserve(1, 100, 20), bench_order(&b, &m); /* the same again: dropped */
    EXPECT_EQ(b.n_up, 1);
    m = bench_reserve(1, 10, 20), m.u.reserve.epoch = 4, bench_order(&b, &m);
    EXPECT_EQ(b.n_up, 3);
    EXPECT_EQ(b.up[1].kind, BT_UP_RELEASED);
    EXPECT_EQ(b.up[1].u.released.epoch, 3);
    EXPECT_EQ(b.up[2].u.ticket.epoch, 4);
    EXPECT_EQ(bt_kv_pool_n_free(b.pool), BENCH_PAGES - 1);
    bench_tear_down(&b);
}

/* What is offered to other requests is full, its last row included. */
static void pages_are_offered_with_their_last_rows(void)
{
    static const uint32_t N[] = {0, 63, 64, 127, 128};

    for (size_t i = 0; i < sizeof(N) / sizeof(N[0]); i++) {
        bench         b;
        bt_page_id    all[BENCH_PAGES];
        bt_prefix_key keys[2] = {
            {1, 2},
            {3, 4}
        };
        bt_request r = {.n_prompt = 140, .sampling = {.max_tokens = 5}, .n_keys = 2, .keys = keys};

        bench_set_up(&b, 0, 1, 1);
        EXPECT_EQ(bt_request_take_pages(&r, b.pool, r.n_prompt), BT_OK);
        bt_request_keep_pages(&r, b.pool, N[i]);
        bt_request_release_pages(&r, b.pool);
        EXPECT_EQ(bt_kv_pool_n_cached(b.pool), N[i] / BT_PAGE_TOKENS);
        EXPECT_EQ(bt_kv_pool_acquire(b.pool, BENCH_PAGES, all), BT_OK); /* nothing is cached then */
        for (uint32_t k = 0; k < BENCH_PAGES; k++)
            bt_kv_pool_release(b.pool, all[k]);
        bench_tear_down(&b);
    }
}

/* Prompts find a page that begins with a prompt's tokens and goes on with generated ones by the key
 * that it has as a page of theirs. */
static void generated_pages_have_the_keys_of_a_prompt(void)
{
    enum { N_PROMPT = 10, SEED = 7 };
    uint32_t      all[BT_PAGE_TOKENS];
    uint64_t      key[2];
    bt_rank_facts facts;
    bt_page_map   map;
    bt_page_id    page = BENCH_PAGES;
    bt_request   *r    = NULL;
    bench         b;
    bt_down       m = bench_reserve(1, N_PROMPT, 100);

    bench_set_up(&b, 1, 1, 1);
    facts                 = bench_config(&b, 1, 1, 1).facts;
    facts.share_generated = facts.keeps_maps = true;
    for (uint32_t i = 0; i < BT_PAGE_TOKENS; i++)
        all[i] = i % BENCH_VOCAB;
    m.u.reserve.prefix_seed = SEED;
    m.u.reserve.prompt      = bt_calloc(N_PROMPT, sizeof(*all));
    memcpy(m.u.reserve.prompt, all, N_PROMPT * sizeof(*all));
    NEED(bt_request_from_reserve(&facts, &m.u.reserve, &r) == BT_OK);
    EXPECT_EQ(bt_request_take_pages(r, b.pool, BT_PAGE_TOKENS), BT_OK);
    bt_request_keep_generated(r, b.pool, N_PROMPT, BT_PAGE_TOKENS - N_PROMPT, all + N_PROMPT,
                              BT_FORM_ABSORBED);
    bt_prefix_key_begin(SEED, key);
    bt_prefix_key_next(SEED, BT_PAGE_TOKENS, all, key);
    EXPECT(bt_kv_pool_match(b.pool, &(bt_prefix_key){key[0], key[1]}, NULL, &page, &map));
    if (page != BENCH_PAGES) bt_kv_pool_release(b.pool, page);
    EXPECT_EQ(page, r->pages[0]);
    EXPECT(map.generated == ~0ull << N_PROMPT && map.absorbed == map.generated);
    bt_request_release_pages(r, b.pool);
    bt_request_destroy(r);
    bt_down_free(&m);
    bench_tear_down(&b);
}

/* Of a request with two choices, choice 0. */
static void abort_of_a_choice_is_for_its_placement(void)
{
    bench   b;
    bt_down m = bench_reserve(1, 10, 5);

    bench_set_up(&b, 1, 1, 1);
    m.u.reserve.n_choices  = 2;
    m.u.reserve.choices    = bt_calloc(2, sizeof(uint32_t));
    m.u.reserve.choices[1] = 1;
    bench_order(&b, &m);
    EXPECT(b.n_up == 1 && b.up[0].kind == BT_UP_TICKET);
    for (uint32_t epoch = 2; epoch <= 3; epoch++) {
        m = (bt_down){
            .kind = BT_DOWN_ABORT, .u.abort = {.request = 1, .epoch = epoch, .only_choice = 1}
        };
        bench_order(&b, &m);
        EXPECT_EQ(b.worker->requests.n, 2); /* its pages are the other one's, too */
        EXPECT_EQ(b.worker->requests.at[0]->dropped, epoch == 3);
        EXPECT(!b.worker->requests.at[1]->dropped);
    }
    abort_one(&b, 1, 3);
    bench_tear_down(&b);
}

static void worker_create_unwinds_at_every_allocation(void)
{
    bench            b;
    bt_worker_config cfg;
    bt_worker       *w = NULL;

    bench_set_up(&b, 0, 1, 1);
    cfg         = bench_config(&b, 0, 1, 1);
    cfg.threads = bt_device_cpu_pool(b.dev);
    EXPECT(BT_SWEEP(bt_worker_create(&cfg, &w), bt_worker_destroy(w)) > 5);
    bench_tear_down(&b);
}

/* With all that an order may bring: three choices that replay, keys, penalties, a stop
 * token, drafts, a map. */
static bt_down full_reserve(void)
{
    bt_down          m = bench_reserve(1, 70, 5);
    bt_down_reserve *r = &m.u.reserve;

    r->prompt                      = bt_calloc(70, sizeof(*r->prompt));
    r->n_prefix_key_bytes          = sizeof(bt_prefix_key);
    r->prefix_keys                 = bt_calloc(1, r->n_prefix_key_bytes);
    r->n_choices                   = 3;
    r->choices                     = bt_calloc(3, sizeof(*r->choices));
    r->n_replay                    = 3;
    r->replay                      = bt_calloc(3, sizeof(*r->replay));
    r->replay_lengths              = bt_calloc(3, sizeof(*r->replay_lengths));
    r->prefix_seed                 = 1;
    r->sampling.repetition_penalty = 1.1f;
    r->sampling.n_stop             = 1;
    r->sampling.stop_tokens        = bt_calloc(1, sizeof(*r->sampling.stop_tokens));
    for (uint32_t i = 0; i < 3; i++) {
        r->choices[i]        = i;
        r->replay_lengths[i] = 1;
    }
    return m;
}

enum { PLAIN_RESERVE, FULL_RESERVE, DRAFTING_RESERVE, PREFILL, FULL_PREFILL, N_ORDERS };

static bt_down order_of(int kind)
{
    bt_down m = kind == PLAIN_RESERVE ? bench_reserve(1, 100, 5)
                : kind < PREFILL      ? full_reserve()
                                      : bench_prefill(1, 100, 2, 1);

    if (kind == DRAFTING_RESERVE) m.u.reserve.sampling.repetition_penalty = 1;
    if (kind == FULL_PREFILL) {
        m.u.prefill.sampling.repetition_penalty = 1.1f;
        m.u.prefill.n_prefix_key_bytes          = sizeof(bt_prefix_key);
        m.u.prefill.prefix_keys                 = bt_calloc(1, sizeof(bt_prefix_key));
    }
    return m;
}

static void renew(bench *b, int kind)
{
    bt_rank_facts *facts;

    if (b->worker != NULL) bench_tear_down(b);
    bench_set_up(b, kind < PREFILL, 1, 1);
    facts             = &b->worker->cfg.facts;
    facts->keeps_maps = facts->share_generated = kind != PLAIN_RESERVE && kind != PREFILL;
    facts->speculate                           = kind == DRAFTING_RESERVE ? 4 : 0;
}

/* A rank whose memory ends within an order ends too, and leaves nothing. */
static void orders_unwind_at_every_allocation(void)
{
    static const long LEAST[N_ORDERS] = {8, 18, 20, 7, 10};

    for (int kind = 0; kind < N_ORDERS; kind++) {
        bench   b = {0};
        bt_down m = order_of(kind);

        renew(&b, kind);
        EXPECT(BT_SWEEP(bt_worker_control(b.worker, &m),
                        (bt_down_free(&m), renew(&b, kind), m = order_of(kind))) >= LEAST[kind]);
        bt_down_free(&m);
        bench_tear_down(&b);
    }
}

/* Of a cell of two ranks and two spares, in epoch 7. */
static void regroup_that_does_not_follow_is_refused(void)
{
    static const struct {
        uint32_t    rank, epoch, epochs[2], n, ranks[2];
        bool        prepare;
        const char *says; /* NULL: it follows */
    } CASES[] = {
        {0, 8, {6, 8}, 1, {0, BT_NO_RANK}, false, NULL                                            },
        {0, 8, {6, 5}, 1, {0, 1},          false, NULL                                            }, /* a spare was lost */
        {2, 7, {6, 5}, 1, {0, 2},          true,  NULL                                            },
        {0, 7, {6, 7}, 1, {0, 1},          false, "to regroup in epoch 7, and has been in epoch 7"},
        {0, 6, {6, 6}, 1, {0, 1},          false, "to regroup in epoch 6"                         },
        {2, 6, {6, 5}, 1, {0, 2},          true,  "to regroup in epoch 6"                         },
        {0, 8, {5, 8}, 1, {0, 1},          false, "epoch 5 for group 0, which has been in epoch 6"},
        {0, 8, {6, 4}, 1, {0, 1},          false, "epoch 4 for group 1, which has been in epoch 5"},
        {0, 8, {9, 5}, 1, {0, 1},          false, "epoch 8 has epoch 9 for group 0"               },
        {0, 8, {8, 5}, 0, {0, 1},          false, "0 seats in group 0, this cell has 1"           },
        {0, 8, {6, 8}, 1, {0, 4},          false, "gives a seat to rank 4 of 4"                   },
        {1, 8, {6, 8}, 1, {0, 2},          false, "rank 1 has lost its seat in epoch 8"           },
    };
    uint32_t launched[] = {0, 1};
    bt_seats seats[2]   = {
          {.epoch = 6, .n = 1, .ranks = &launched[0]},
          {.epoch = 5, .n = 1, .ranks = &launched[1]}
    };

    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        uint32_t        ranks[] = {CASES[i].ranks[0], CASES[i].ranks[1]};
        bt_rank_facts   facts   = {.rank = CASES[i].rank, .n_ranks = 4, .seats = seats};
        bt_down_regroup m       = {.epoch = CASES[i].epoch, .prepare = CASES[i].prepare};

        for (int g = 0; g < 2; g++)
            m.groups[g] =
                (bt_seats){.epoch = CASES[i].epochs[g], .n = CASES[i].n, .ranks = &ranks[g]};
        EXPECT_EQ(bt_seats_check(&facts, 7, &m), CASES[i].says == NULL ? BT_OK : BT_ERR_PROTOCOL);
        if (CASES[i].says != NULL) EXPECT_HAS(bt_error_text(), CASES[i].says);
    }
}

/* Seats at whose k-th allocation memory ends leave those before; said twice they are kept once. */
static void regroup_unwinds_at_every_allocation(void)
{
    uint32_t        ranks[] = {0, 1, 2};
    bt_down_regroup g       = {.epoch = 2, .n_gone = 1, .gone = &ranks[2]};
    bt_down         m       = {.kind = BT_DOWN_REGROUP};
    const bt_seats *before;
    long            k = -1, live;
    bt_status       st;
    bench           b;

    for (int i = 0; i < 2; i++)
        g.groups[i] = (bt_seats){.epoch = 1, .n = 1, .ranks = &ranks[i]};
    m.u.regroup = g;
    bench_set_up(&b, 0, 1, 1);
    live   = bt_alloc_live();
    before = b.worker->cfg.facts.seats;
    do {
        EXPECT(b.worker->cfg.facts.seats == before);
        bt_alloc_fail_at(++k);
        st = bt_worker_control(b.worker, &m);
        bt_alloc_fail_at(-1);
        EXPECT(st == BT_OK || st == BT_ERR_NO_MEMORY);
        EXPECT_EQ(bt_alloc_live(), st == BT_OK ? live + 3 : live);
    } while (st != BT_OK && k < 100);
    EXPECT_EQ(k, 3);
    EXPECT_EQ(bt_worker_control(b.worker, &m), BT_OK);
    EXPECT_EQ(bt_alloc_live(), live + 3);
    EXPECT_EQ(bt_seats_group_of(b.worker->cfg.facts.seats, 1), 1);
    EXPECT_EQ(bt_seats_group_of(b.worker->cfg.facts.seats, 2), 2);
    bench_tear_down(&b);
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {
        BT_TEST(rank_with_both_roles_needs_its_own_ticket),
        BT_TEST(rank_without_pages_refuses_the_ticket),
        BT_TEST(evaluation_leaves_its_neighbours_every_page),
        BT_TEST(prompts_that_wait_for_pages_are_not_overtaken),
        BT_TEST(abort_of_an_unknown_request_is_answered),
        BT_TEST(abort_frees_pages_at_once_and_quarantines_the_slot),
        BT_TEST(abort_does_not_wait_for_rows_of_others),
        BT_TEST(newer_placement_takes_the_place_of_an_older_one),
        BT_TEST(pages_are_offered_with_their_last_rows),
        BT_TEST(generated_pages_have_the_keys_of_a_prompt),
        BT_TEST(abort_of_a_choice_is_for_its_placement),
        BT_TEST(worker_create_unwinds_at_every_allocation),
        BT_TEST(orders_unwind_at_every_allocation),
        BT_TEST(regroup_that_does_not_follow_is_refused),
        BT_TEST(regroup_unwinds_at_every_allocation),
    };

    bt_log_init("orders", BT_LOG_ERROR);
    return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
}

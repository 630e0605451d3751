/* One rank under orders and hand-off messages that no coordinator and no peer would send, between
 * others that they would: whatever comes costs at most the request that it names.  After each the
 * pool's counts are those of its pages, and no page that the prefix cache has is written. */
#include <xxhash.h>

#include "attention/kv_pool_state.h"
#include "tests/support/seeds.h"
#include "tests/worker/hostile_orders.h"

enum { SEEDS = 300, STEPS = 1500, SLOT_BYTES = 1 << 17 };

static struct {
    uint64_t hash;
    uint32_t generation;
    bool     cached; /* with that hash, in that generation */
} g_pages[BENCH_PAGES];

static uint64_t g_n_said[BT_UP_LEAVING + 1], g_n_steps, g_n_checked;

/* ---- the hand-off */

static void choose_rows(world *w, const bt_request *r, bt_page_message *m)
{
    uint32_t page;

    m->token0 = one_in(w, 3) ? draw(w, r->n_prompt) : r->n_held;
    m->token1 = told(w, one_in(w, 3) ? m->token0 + 1 + draw(w, r->n_prompt) : r->n_prompt);
    m->layer0 = one_in(w, 3) ? draw(w, BENCH_LAYERS) : 0;
    m->layer1 = told(w, one_in(w, 3) ? m->layer0 + 1 : BENCH_LAYERS);
    page      = m->token0 / BT_PAGE_TOKENS;
    if (r->in.seen != NULL && m->token1 <= r->n_prompt && m->token0 < m->token1)
        m->pages_tag = bt_pages_tag(bt_kv_pages_for(m->token1) - page, r->pages + page,
                                    r->in.generations + page);
}

/* First tokens, with few that are none. */
static void fill_tail(world *w, uint32_t n_bytes, uint8_t *tail)
{
    for (uint32_t at = 0; at < n_bytes; at += sizeof(bt_first_token)) {
        bt_first_token first = {.id     = one_in(w, 20) ? BENCH_VOCAB : draw(w, BENCH_VOCAB),
                                .finish = draw(w, 40) % (BT_FINISH_LENGTH + 3)};

        memcpy(tail + at, &first, n_bytes - at < sizeof(first) ? n_bytes - at : sizeof(first));
    }
}

static uint64_t hash_all(const bt_kv_pool *pool)
{
    return XXH3_64bits(pool->mem, BENCH_PAGES * pool->page_elems * sizeof(bt_bf16));
}

/* Rows for one that waits for them: all, or a part, or what never was. */
static void deliver(world *w)
{
    static uint8_t  payload[SLOT_BYTES];
    bt_requests    *all = &w->b.worker->requests;
    bt_request     *r   = all->n == 0 ? NULL : all->at[draw(w, all->n)];
    bt_page_message m   = {.kv_dim = told(w, BENCH_DIM), .last = one_in(w, 2)};
    uint64_t        rows_bytes, before;
    uint32_t        from;
    bool            wrong, spoiled = one_in(w, 20);

    if (r == NULL) return;
    from      = told(w, r->peer);
    m.request = one_in(w, 20) ? any_id(w) : r->id;
    m.epoch   = told(w, r->epoch);
    m.cached  = told(w, 0);
    choose_rows(w, r, &m);
    m.pages_tag += spoiled;
    if (m.token1 <= m.token0 || m.layer1 <= m.layer0) return; /* the header's own check */
    m.tail_bytes = m.last ? told(w, r->n_choices * (uint32_t)sizeof(bt_first_token)) % 1000 : 0;
    rows_bytes   = (uint64_t)(m.token1 - m.token0) * (m.layer1 - m.layer0) * 2;
    if (m.kv_dim > SLOT_BYTES || rows_bytes * m.kv_dim > SLOT_BYTES - 1000) return;
    rows_bytes *= m.kv_dim;
    m.payload_bytes = rows_bytes + m.tail_bytes;
    for (uint64_t i = 0; i < rows_bytes; i += 1 + draw(w, 8))
        payload[i] = (uint8_t)draw(w, 256);
    fill_tail(w, m.tail_bytes, payload + rows_bytes);
    wrong = m.kv_dim != BENCH_DIM ||
            (m.request == r->id && (m.epoch != r->epoch || from != r->peer || spoiled));
    before = hash_all(w->b.pool);
    bt_worker_delivered(w->b.worker, from, &m,
                        &(bt_page_payload){.rows = payload, .tail = payload + rows_bytes});
    EXPECT(!wrong || hash_all(w->b.pool) == before);
    w->b.has_come = true;
}

/* Messages that were packed leave, or are cancelled later. */
static void let_leave(world *w)
{
    for (uint32_t i = 0; i < w->b.worker->requests.n; i++) {
        const bt_request *r = w->b.worker->requests.at[i];
        bt_page_message   m = {.request = r->id, .epoch = r->epoch, .payload_bytes = 8};

        if (r->out.n_in_flight > 0 && one_in(w, 2)) bt_worker_sent(w->b.worker, &m);
    }
}

/* ---- steps, and what must be true */

/* Into pages of the rank that somebody has. */
static void write_row(bt_kv_pool *pool, const bt_span *span, uint32_t position)
{
    bt_page_id page = span->pages[position / BT_PAGE_TOKENS];
    bt_bf16   *rows;

    NEED(page < BENCH_PAGES && pool->refs[page] > 0);
    for (uint32_t layer = 0; layer < BENCH_LAYERS; layer++) {
        rows = pool->mem + page * pool->page_elems + layer * pool->layer_elems;
        rows[position % BT_PAGE_TOKENS * BENCH_DIM]++;
    }
}

static bt_status launch(void *ctx, bt_step *step)
{
    for (uint32_t i = 0; i < step->n_spans; i++)
        for (uint32_t row = 0; row < step->spans[i].n_rows; row++)
            write_row(((bench *)ctx)->pool, &step->spans[i], step->spans[i].start + row);
    return bench_launch(ctx, step);
}

static void step(world *w)
{
    bt_plan   plan;
    bt_next   next  = BT_NEXT_PARK;
    bool      leave = false;
    bt_status st;

    EXPECT_EQ(bt_worker_begin(w->b.worker, &plan, &next), BT_OK);
    if (next == BT_NEXT_PARK && one_in(w, 2)) wake(w);
    if (next != BT_NEXT_GATHER) return;
    w->b.step_status = one_in(w, 200) ? BT_ERR_CANCELLED : BT_OK;
    st               = bt_worker_finish(w->b.worker, &plan, &leave);
    EXPECT(st == BT_OK || st == w->b.step_status); /* without a row nothing runs */
    EXPECT(!leave);
    g_n_steps++;
}

static void keep_ticket(world *w, const bt_up *m)
{
    const bt_request *r = bt_requests_find(&w->b.worker->requests, m->u.ticket.request);
    ticket           *t = &w->tickets[m->u.ticket.request];

    NEED(r != NULL && m->u.ticket.n_pages <= BENCH_PAGES);
    *t = (ticket){.epoch = r->epoch, .n_prompt = r->n_prompt, .n_pages = m->u.ticket.n_pages};
    memcpy(t->pages, m->u.ticket.pages, t->n_pages * sizeof(*t->pages));
}

static void hear(world *w)
{
    for (uint32_t i = 0; i < w->b.n_up; i++) {
        const bt_up *m = &w->b.up[i];

        g_n_said[m->kind]++;
        if (m->kind == BT_UP_TICKET && !m->u.ticket.refused) keep_ticket(w, m);
        for (uint32_t k = 0; m->kind == BT_UP_TOKENS && k < m->u.tokens.n; k++)
            EXPECT(m->u.tokens.tokens[k].id < BENCH_VOCAB);
    }
    bench_forget(&w->b);
}

static void check_pages(const bt_kv_pool *pool)
{
    for (uint32_t i = 0; i < BENCH_PAGES; i++) {
        uint64_t hash =
            XXH3_64bits(pool->mem + i * pool->page_elems, pool->page_elems * sizeof(bt_bf16));
        bool same = g_pages[i].cached && pool->entries[i].known &&
                    g_pages[i].generation == pool->generation[i];

        if (same) EXPECT(hash == g_pages[i].hash);
        g_n_checked += same;
        g_pages[i].hash       = hash;
        g_pages[i].generation = pool->generation[i];
        g_pages[i].cached     = pool->entries[i].known;
    }
    EXPECT_EQ(bt_kv_pool_check(pool), BT_OK);
}

static void act(world *w)
{
    static bt_bf16 slot[SLOT_BYTES / sizeof(bt_bf16)];

    w->b.now += one_in(w, 100) ? draw(w, 30) * BT_NS_PER_S : draw(w, 20) * BT_NS_PER_MS;
    w->b.slot    = one_in(w, 3) ? NULL : slot;
    w->b.granted = one_in(w, 10);
    switch (draw(w, 4)) {
    case 0: order(w); break;
    case 1:
        if (w->rank < w->n_prefill || w->n_prefill == 0)
            bt_worker_rejected(w->b.worker, draw(w, 3), any_id(w), BT_ERR_CHECKSUM);
        else
            deliver(w);
        bt_worker_background(w->b.worker);
        break;
    default: step(w);
    }
    EXPECT_EQ(bt_worker_background_status(w->b.worker), BT_OK);
    let_leave(w);
}

/* role 0: prefill, 1: decode, 2: both. */
static void play(uint64_t seed, uint32_t role)
{
    int   before = g_failures;
    long  live   = bt_alloc_live();
    world w      = {.state = seed, .rank = role == 1, .n_prefill = role < 2};

    memset(g_pages, 0, sizeof(g_pages));
    bench_set_up(&w.b, w.rank, w.n_prefill, w.n_prefill);
    w.b.worker->cfg.wake_ns      = UINT64_MAX; /* it is woken now and then */
    w.b.worker->cfg.links.launch = launch;
    w.b.uneven = w.b.tells_layers = true;
    for (uint32_t i = 0; i < STEPS && g_failures == before; i++) {
        act(&w);
        hear(&w);
        check_pages(w.b.pool);
    }
    w.b.granted = false;
    EXPECT_EQ(bt_worker_drop_all(w.b.worker), BT_OK);
    bt_worker_background(w.b.worker);
    bench_tear_down(&w.b);
    EXPECT_EQ(bt_alloc_live(), live);
}

static void play_all(uint32_t role)
{
    uint64_t n      = SEEDS / BT_SEEDS_SLOWER;
    int      before = g_failures;

    memset(g_n_said, 0, sizeof(g_n_said));
    g_n_steps = g_n_checked = 0;
    bt_play_seeds(SEEDS, role, play);
    if (bt_only_seed != 0 || g_failures != before) return;
    EXPECT(g_n_steps > 100 * n && g_n_checked > 100 * n && g_n_said[BT_UP_FAILED] > 30 * n);
    EXPECT(g_n_said[BT_UP_TOKENS] > 25 * n && g_n_said[BT_UP_RELEASED] > 25 * n);
    EXPECT((g_n_said[BT_UP_TICKET] > 100 * n) == (role > 0));
}

static void prefill_rank_survives_whatever_comes(void) { play_all(0); }
static void decode_rank_survives_whatever_comes(void) { play_all(1); }
static void rank_with_both_roles_survives_whatever_comes(void) { play_all(2); }

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {
        BT_TEST(prefill_rank_survives_whatever_comes),
        BT_TEST(decode_rank_survives_whatever_comes),
        BT_TEST(rank_with_both_roles_survives_whatever_comes),
    };

    bt_log_init("rank", BT_LOG_ERROR);
    return bt_run_seeded_tests(TESTS, sizeof(TESTS) / sizeof(TESTS[0]), true, argc, argv);
}

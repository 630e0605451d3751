/* One rank's hand-offs, by its orders and what is delivered: leases, first tokens, what is kept. */
#include "attention/kv_pool_state.h"
#include "core/clock.h"
#include "tests/support/test.h"
#include "tests/worker/bench.h"
#include "worker/state.h"

/* The bench's leases: six deadlines. */
#define LEASE_NS (60 * BT_NS_PER_S)

/* So long, in looks: it does not stand still meanwhile. */
static void pass(bench *b, uint64_t ns)
{
    bt_plan plan;
    bt_next next;

    for (int i = 0; i < 8; i++) {
        b->now += ns / 8;
        EXPECT_EQ(bt_worker_begin(b->worker, &plan, &next), BT_OK);
    }
}

/* It has failed request 1, as the sentence says, and has no page of it any more. */
static void expect_lease_ended(bench *b, const char *says)
{
    bt_plan plan;
    bt_next next;

    pass(b, LEASE_NS);
    EXPECT_EQ(b->n_up, 0); /* not a moment too early */
    b->now += 100 * BT_NS_PER_MS;
    EXPECT_EQ(bt_worker_begin(b->worker, &plan, &next), BT_OK);
    EXPECT(b->n_up > 0 && b->up[0].kind == BT_UP_FAILED);
    if (b->n_up == 0 || b->up[0].kind != BT_UP_FAILED) return;
    EXPECT_EQ(b->up[0].u.failed.code, 14);
    EXPECT_HAS(b->up[0].u.failed.message, says);
    EXPECT_EQ(bt_kv_pool_n_free(b->pool), BENCH_PAGES);
}

/* The first layer of request 1's prompt of 10 tokens. */
static bt_bf16               g_first_rows[10 * BENCH_DIM];
static const bt_page_message FIRST_LAYER = {.request       = 1,
                                            .epoch         = 3,
                                            .token1        = 10,
                                            .layer1        = 1,
                                            .kv_dim        = BENCH_DIM,
                                            .payload_bytes = sizeof(g_first_rows)};

/* Of the page in the ticket that it has sent. */
static uint64_t ticket_tag(const bench *b)
{
    const bt_page_ref *page = b->up[0].u.ticket.pages;

    return bt_pages_tag(1, &page->id, &page->generation);
}

/* Between living ranks.  While nothing has come yet the prompt waits for its turn elsewhere. */
static void hand_off_that_stands_still_ends_on_the_decode_rank(void)
{
    bt_page_payload payload = {.rows = g_first_rows};
    bt_page_message first   = FIRST_LAYER;
    bt_page_message rest;
    bench           b;
    bt_down         m;

    bench_set_up(&b, 1, 1, 1);
    m               = bench_reserve(1, 10, 5), bench_order(&b, &m);
    first.pages_tag = ticket_tag(&b);
    rest            = first;
    bench_forget(&b);
    EXPECT(bt_worker_expects_pages(b.worker)); /* it polls for them, parked or not */
    pass(&b, 2 * LEASE_NS);
    bt_worker_delivered(b.worker, 0, &first, &payload);
    rest.layer0 = 1;
    rest.layer1 = 2;
    bt_worker_delivered(b.worker, 2, &rest, &payload); /* it was not asked */
    rest.epoch = 2;
    bt_worker_delivered(b.worker, 0, &rest, &payload); /* of an older placement */
    expect_lease_ended(&b, "the hand-off from rank 0 stands still after 10 of 20 rows");
    EXPECT(!bt_worker_expects_pages(b.worker));
    bench_tear_down(&b);
}

static bt_down prefill_with_prefix(uint64_t id, uint32_t n_prompt)
{
    bt_down m = bench_prefill(id, n_prompt, 2, 1);

    m.u.prefill.n_prefix_key_bytes = 16;
    m.u.prefill.prefix_keys        = bt_calloc(1, 16);
    return m;
}

/* With the first message its lease begins, which a prompt that waits for others may outlast. */
static void cached_pages_leave_with_the_first_piece(void)
{
    static bt_bf16 slot[1 << 15];
    bench          b;
    bt_down        m;

    bench_set_up(&b, 0, 1, 1);
    b.slot = slot;
    m      = prefill_with_prefix(1, 65), bench_order(&b, &m);
    for (int i = 0; i < 5; i++) /* 16 rows each: its first page is cached then */
        EXPECT_EQ(bench_run_step(&b), BT_OK);
    EXPECT_EQ(b.sent, 1 << 1);
    m = (bt_down){
        .kind = BT_DOWN_ABORT, .u.abort = {.request = 1, .epoch = 3}
    };
    bench_order(&b, &m);
    for (uint64_t id = 2; id <= 3; id++) /* these two fill a step */
        m = bench_prefill(id, 40, 1, 1), bench_order(&b, &m);
    m = prefill_with_prefix(4, 84), bench_order(&b, &m);
    EXPECT_EQ(bench_run_step(&b), BT_OK);
    b.tells_layers = b.has_come = true; /* then all are looked at */
    EXPECT_EQ(bench_run_step(&b), BT_OK);
    EXPECT_EQ(b.sent, 1 << 1 | 1 << 2 | 1 << 3);
    for (int i = 0; i < 2; i++)
        EXPECT_EQ(bench_run_step(&b), BT_OK);
    EXPECT_EQ(b.sent, 1 << 1 | 1 << 2 | 1 << 3 | 1 << 4);
    EXPECT_EQ(b.worker->prefix_asked_tokens, 65 + 84); /* the other two bring no keys */
    EXPECT_EQ(b.worker->prefix_hit_tokens, 64);
    bench_tear_down(&b);
}

/* The second one begins behind the page that the first one computes while it waits. */
static void page_that_an_equal_prompt_computes_is_counted_as_found(void)
{
    bench   b;
    bt_down m;

    bench_set_up(&b, 0, 1, 1);
    for (uint64_t id = 1; id <= 2; id++)
        m = prefill_with_prefix(id, 65), bench_order(&b, &m);
    for (int i = 0; i < 6; i++)
        EXPECT_EQ(bench_run_step(&b), BT_OK);
    EXPECT_EQ(b.worker->requests.at[1]->state, BT_REQUEST_SENDING);
    EXPECT_EQ(b.worker->n_rows_done[BT_ROLE_PROMPT], 65 + 1);
    EXPECT_EQ(b.worker->prefix_asked_tokens, 2 * 65);
    EXPECT_EQ(b.worker->prefix_hit_tokens, 64);
    bench_tear_down(&b);
}

static uint32_t g_n_sent, g_first_layer; /* layers done when the first of them was sent */

static void send_in_a_layer(void *ctx, uint32_t to, const bt_page_message *m, void *slot)
{
    if (g_n_sent++ == 0) g_first_layer = ((bench *)ctx)->worker->layers_done;
    EXPECT(to == 1 && m->request == 1 && m->epoch == 3);
    bench_send(ctx, to, m, slot);
}

/* What fills a message leaves while the next layers run; what does not, behind the step. */
static void full_messages_leave_while_the_step_runs(void)
{
    static bt_bf16 slot[1 << 15];

    for (int full = 0; full < 2; full++) {
        bench   b;
        bt_down m = bench_prefill(1, 40, 1, 1);

        bench_set_up(&b, 0, 1, 1);
        b.slot                   = slot;
        b.tells_layers           = true;
        b.worker->cfg.links.send = send_in_a_layer;
        if (full) /* 16 rows of a layer */
            b.worker->cfg.links.payload_max =
                16 * BENCH_DIM * sizeof(bt_bf16) + sizeof(bt_first_token);
        bench_order(&b, &m);
        g_n_sent = 0;
        EXPECT_EQ(bench_run_step(&b), BT_OK);
        EXPECT_EQ(g_n_sent, full ? BENCH_LAYERS : 1);
        EXPECT_EQ(g_first_layer, full ? 1 : 0);
        EXPECT_EQ(b.worker->requests.at[0]->out.moved_ns, b.now);
        bench_tear_down(&b);
    }
}

/* Its step is over long before: nothing else would send it. */
static void message_without_room_leaves_as_soon_as_there_is_some(void)
{
    static bt_bf16 slot[1 << 15];
    bench          b;
    bt_down        m = bench_prefill(1, 10, 1, 1);

    bench_set_up(&b, 0, 1, 1);
    bench_order(&b, &m);
    EXPECT_EQ(bench_run_step(&b), BT_OK);
    bt_worker_background(b.worker);
    EXPECT_EQ(b.sent, 0);
    b.slot = slot;
    bt_worker_background(b.worker); /* nothing has come: the slot was another request's */
    EXPECT_EQ(b.sent, 1 << 1);
    EXPECT(!b.worker->deferred);
    bench_tear_down(&b);
}

static uint32_t g_n_unstaged;

static void count_unstaged(void *ctx, void *slot)
{
    EXPECT(slot == ((bench *)ctx)->slot);
    g_n_unstaged++;
}

static bt_page_payload slot_on_device(void *ctx, void *slot, const bt_page_message *m)
{
    (void)ctx, (void)m;
    return (bt_page_payload){.rows = slot, .on_device = true};
}

/* What lies in its slot then is of another request. */
static void message_that_the_device_does_not_pack_is_not_sent(void)
{
    static bt_bf16     slot[1 << 15];
    const bt_attn_ops *ops;
    bench              b;
    bt_down            m = bench_prefill(1, 10, 1, 1);

    bench_set_up(&b, 0, 1, 1);
    b.worker->cfg.links.slot    = slot_on_device;
    b.worker->cfg.links.unstage = count_unstaged;
    bench_order(&b, &m);
    EXPECT_EQ(bench_run_step(&b), BT_OK);
    b.slot       = slot;
    g_n_unstaged = 0;
    ops          = b.pool->ops;
    b.pool->ops  = NULL;
    bt_worker_background(b.worker);
    b.pool->ops = ops;
    EXPECT_EQ(b.sent, 0);
    EXPECT_EQ(g_n_unstaged, 1);
    EXPECT_EQ(bt_worker_background_status(b.worker), BT_ERR_UNSUPPORTED);
    bench_tear_down(&b);
}

/* All rows of the bench's ten tokens, and a tail, for the request that comes with the order. */
static void deliver(bench *b, bt_down *order, void *tail, uint32_t tail_bytes, uint32_t cached)
{
    static bt_bf16  rows[BENCH_LAYERS * 10 * BENCH_DIM];
    bt_page_payload payload = {.rows = rows, .tail = tail};
    bt_page_message message = {.request       = order->u.reserve.request,
                               .epoch         = 3,
                               .token1        = 10,
                               .layer1        = BENCH_LAYERS,
                               .kv_dim        = BENCH_DIM,
                               .last          = true,
                               .tail_bytes    = tail_bytes,
                               .cached        = cached,
                               .payload_bytes = sizeof(rows) + tail_bytes};

    bench_order(b, order);
    message.pages_tag = ticket_tag(b);
    bench_forget(b);
    bt_worker_delivered(b->worker, 0, &message, &payload);
}

/* The same, and it joins. */
static void hand_over(bench *b, bt_down *order, void *tail, uint32_t tail_bytes, uint32_t cached)
{
    deliver(b, order, tail, tail_bytes, cached);
    b->has_come = true;
    bt_worker_background(b->worker);
}

/* Nothing more may come that would call for the second one; and a reply has no lease. */
static void prompts_that_come_together_decode_together(void)
{
    bt_first_token  first = {.id = 3};
    bt_page_message again = {.request = 1, .epoch = 3};
    bench           b;

    bench_set_up(&b, 1, 1, 1);
    for (uint64_t id = 1; id <= 2; id++) {
        bt_down m = bench_reserve(id, 10, 5);

        deliver(&b, &m, &first, sizeof(first), 0);
    }
    b.has_come = true;
    bt_worker_background(b.worker);
    for (uint32_t i = 0; i < 2; i++)
        EXPECT_EQ(b.worker->requests.at[i]->state, BT_REQUEST_DECODE);
    EXPECT(!bt_worker_expects_pages(b.worker));
    bt_worker_delivered(b.worker, 0, &again, &(bt_page_payload){.rows = NULL}); /* they have all */
    bt_worker_rejected(b.worker, 0, 1, BT_ERR_CHECKSUM);
    for (int i = 0; i < 8; i++) {
        b.now += LEASE_NS / 4;
        EXPECT_EQ(bt_worker_check_leases(b.worker), BT_OK);
    }
    EXPECT_EQ(b.n_up, 0);
    bench_tear_down(&b);
}

/* The decode rank says the first token once more with the second one, unless logprobs go before it,
 * of the prompt or of alternatives, which only the prefill rank has. */
static void first_token_is_repeated_without_logprobs_alone(void)
{
    bt_first_token first = {.id = 3, .logprob = -1};

    for (uint32_t kind = 0; kind < 3; kind++) {
        bench   b;
        bt_down m = bench_reserve(1, 10, 2);

        bench_set_up(&b, 1, 1, 1);
        m.u.reserve.sampling.prompt_logprobs = kind == 1;
        m.u.reserve.sampling.top_logprobs    = kind == 2;
        hand_over(&b, &m, &first, sizeof(first), 4);
        EXPECT_EQ(bench_run_step(&b), BT_OK);
        EXPECT(b.n_up == 2 && b.up[0].kind == BT_UP_TOKENS && b.up[1].kind == BT_UP_RELEASED);
        if (b.n_up > 0) EXPECT_EQ(b.up[0].u.tokens.n, kind == 0 ? 2 : 1);
        if (b.n_up > 0) EXPECT_EQ(b.up[0].u.tokens.tokens[0].cached, kind == 0 ? 4 : 0);
        bench_tear_down(&b);
    }
}

/* Also if its first step comes to nothing: this rank has no prompt to compute. */
static void evaluation_goes_on_behind_the_prompt_that_was_handed_over(void)
{
    bt_first_token first = {.id = 3};
    bt_down        m     = bench_reserve(1, 10, 0);
    bench          b;

    bench_set_up(&b, 1, 1, 1);
    m.u.reserve.eval        = true;
    m.u.reserve.n_eval      = 2;
    m.u.reserve.eval_tokens = bt_calloc(2, sizeof(uint32_t));
    hand_over(&b, &m, &first, sizeof(first), 0);
    b.step_status = BT_ERR_CANCELLED;
    EXPECT_EQ(bench_run_step(&b), BT_ERR_CANCELLED);
    EXPECT_EQ(b.worker->requests.at[0]->n_computed, 10);
    EXPECT_EQ(b.worker->requests.at[0]->step_end, 10);
    bench_tear_down(&b);
}

/* A first token that ends its choice has no second one to be repeated with. */
static void first_token_that_ends_its_choice_is_repeated_alone(void)
{
    bt_first_token firsts[2] = {
        {.id = 3, .finish = BT_FINISH_EOS},
        {.id = 4      }
    };
    bt_down m = bench_reserve(1, 10, 5);
    bench   b;

    bench_set_up(&b, 1, 1, 1);
    m.u.reserve.n_choices  = 2;
    m.u.reserve.choices    = bt_calloc(2, sizeof(uint32_t));
    m.u.reserve.choices[1] = 1;
    hand_over(&b, &m, firsts, sizeof(firsts), 0);
    EXPECT(b.n_up == 1 && b.up[0].kind == BT_UP_TOKENS && b.up[0].u.tokens.n == 1);
    if (b.n_up == 1) {
        const bt_token *t = &b.up[0].u.tokens.tokens[0];

        EXPECT(t->choice == 0 && t->id == 3 && t->position == 10 && t->finish == BT_FINISH_EOS);
    }
    EXPECT_EQ(b.worker->requests.n, 1);
    bench_tear_down(&b);
}

/* What came for one prompt need not come again for the next one. */
static void decode_rank_keeps_the_prompts_that_it_was_handed(void)
{
    static bt_bf16  rows[BENCH_LAYERS * 70 * BENCH_DIM];
    bt_first_token  first   = {.id = 3, .finish = BT_FINISH_LENGTH};
    bt_page_payload payload = {.rows = rows, .tail = &first};
    bench           b;

    bench_set_up(&b, 1, 1, 1);
    for (uint64_t id = 1; id <= 2; id++) {
        bt_down         m       = bench_reserve(id, 70, 5);
        bt_page_message message = {.request       = id,
                                   .epoch         = 3,
                                   .token1        = 70,
                                   .layer1        = BENCH_LAYERS,
                                   .kv_dim        = BENCH_DIM,
                                   .last          = true,
                                   .tail_bytes    = sizeof(first),
                                   .payload_bytes = sizeof(rows) + sizeof(first)};
        uint32_t        ids[2], generations[2];

        m.u.reserve.n_prefix_key_bytes = 16;
        m.u.reserve.prefix_keys        = bt_calloc(2, 8);
        memset(m.u.reserve.prefix_keys, 7, 16);
        bench_order(&b, &m);
        EXPECT(b.n_up == 1 && b.up[0].kind == BT_UP_TICKET && b.up[0].u.ticket.n_pages == 2);
        EXPECT_EQ(b.up[0].u.ticket.held, id == 1 ? 0 : BT_PAGE_TOKENS);
        for (int i = 0; i < 2; i++) {
            ids[i]         = b.up[0].u.ticket.pages[i].id;
            generations[i] = b.up[0].u.ticket.pages[i].generation;
        }
        message.pages_tag = bt_pages_tag(2, ids, generations);
        bench_forget(&b);
        if (id == 2) break;
        bt_worker_delivered(b.worker, 0, &message, &payload);
        b.has_come = true;
        bt_worker_background(b.worker);
        EXPECT_EQ(b.worker->requests.n, 0);
        bench_forget(&b);
    }
    bt_worker_destroy(b.worker);
    EXPECT_EQ(bt_kv_pool_check_idle(b.pool), BT_OK);
    bt_kv_pool_destroy(b.pool);
    bt_device_destroy(b.dev);
}

/* A message that fails its checks fails the request that it names, if that waits for its sender;
 * one that names none, the rank. */
static void rejected_messages_are_somebodys_loss(void)
{
    bench   b;
    bt_down m;

    bench_set_up(&b, 1, 1, 1);
    m = bench_reserve(1, 10, 5), bench_order(&b, &m);
    bench_forget(&b);
    bt_worker_rejected(b.worker, 2, 1, BT_ERR_CHECKSUM);
    bt_worker_rejected(b.worker, 0, 7, BT_ERR_CHECKSUM);
    EXPECT_EQ(b.n_up, 0);
    EXPECT_EQ(bt_worker_background_status(b.worker), BT_OK);
    bt_worker_rejected(b.worker, 0, 0, BT_ERR_CHECKSUM);
    bt_worker_background(b.worker); /* what goes well after it does not hide it */
    EXPECT_EQ(bt_worker_background_status(b.worker), BT_ERR_CHECKSUM);
    EXPECT_EQ(b.n_up, 0);
    bt_worker_rejected(b.worker, 0, 1, BT_ERR_CHECKSUM);
    EXPECT_EQ(bt_worker_background_status(b.worker), BT_OK);
    bench_expect_failed_and_gone(&b, 15, "a page message of rank 0 was refused");
    bench_tear_down(&b);
}

/* So do rows for pages that it does not hold. */
static void refused_rows_are_the_requests_loss(void)
{
    bt_page_message message = FIRST_LAYER;
    bench           b;
    bt_down         m;

    bench_set_up(&b, 1, 1, 1);
    m                 = bench_reserve(1, 10, 5), bench_order(&b, &m);
    message.pages_tag = ticket_tag(&b) + 1;
    bench_forget(&b);
    bt_worker_delivered(b.worker, 0, &message, &(bt_page_payload){.rows = g_first_rows});
    EXPECT_EQ(bt_worker_background_status(b.worker), BT_OK);
    bench_expect_failed_and_gone(&b, 15, "pages");
    bench_tear_down(&b);
}

/* Rows that its own device does not take are no fault of the request. */
static void rows_that_the_device_does_not_take_are_the_ranks_loss(void)
{
    static bt_bf16     rows[10 * BENCH_LAYERS * BENCH_DIM];
    const bt_attn_ops *ops;
    bt_page_message    message = {.request       = 1,
                                  .epoch         = 3,
                                  .token1        = 10,
                                  .layer1        = BENCH_LAYERS,
                                  .kv_dim        = BENCH_DIM,
                                  .payload_bytes = sizeof(rows)};
    bench              b;
    bt_down            m;

    bench_set_up(&b, 1, 1, 1);
    m                 = bench_reserve(1, 10, 5), bench_order(&b, &m);
    message.pages_tag = ticket_tag(&b);
    bench_forget(&b);
    ops         = b.pool->ops;
    b.pool->ops = NULL;
    bt_worker_delivered(b.worker, 0, &message, &(bt_page_payload){.rows = rows, .on_device = true});
    b.pool->ops = ops;
    EXPECT_EQ(b.n_up, 0);
    EXPECT_EQ(bt_worker_background_status(b.worker), BT_ERR_UNSUPPORTED);
    bench_tear_down(&b);
}

/* The pages are free with the lease's end; the slot of what was granted is when that has left. */
static void hand_off_that_nobody_takes_ends_on_the_prefill_rank(void)
{
    static bt_bf16 slot[1 << 15];
    bench          b;
    bt_down        m;
    bt_plan        plan;
    bt_next        next;

    bench_set_up(&b, 0, 1, 1);
    b.slot = slot;
    m      = bench_prefill(1, 10, 1, 1), bench_order(&b, &m);
    EXPECT_EQ(bench_run_step(&b), BT_OK);
    bench_forget(&b);
    b.granted = true;
    expect_lease_ended(&b, "rank 1 takes no pages");
    EXPECT_EQ(b.n_up, 1);
    EXPECT(bt_worker_expects_pages(b.worker));
    b.granted = false;
    b.now += 100 * BT_NS_PER_MS;
    EXPECT_EQ(bt_worker_begin(b.worker, &plan, &next), BT_OK);
    EXPECT(b.n_up == 2 && b.up[1].kind == BT_UP_RELEASED);
    EXPECT(!bt_worker_expects_pages(b.worker));
    bench_tear_down(&b);
}

/* Another rank does not take what is in the slots: this one's is not to blame. */
static void hand_off_that_waits_for_a_slot_has_no_lease(void)
{
    bench   b;
    bt_down m = bench_prefill(1, 10, 1, 1);

    bench_set_up(&b, 0, 1, 1);
    bench_order(&b, &m);
    EXPECT_EQ(bench_run_step(&b), BT_OK);
    bench_forget(&b);
    EXPECT_EQ(b.worker->requests.at[0]->state, BT_REQUEST_SENDING);
    pass(&b, 2 * LEASE_NS);
    EXPECT_EQ(b.n_up, 0);
    bench_tear_down(&b);
}

/* A slow link is none that stands still. */
static void lease_begins_anew_with_each_message_that_has_left(void)
{
    bench           b;
    bt_down         m;
    bt_plan         plan;
    bt_next         next;
    bt_page_message left = {.request = 1, .epoch = 3};

    bench_set_up(&b, 0, 1, 1);
    m = bench_prefill(1, 10, 1, 1), bench_order(&b, &m);
    EXPECT_EQ(bench_run_step(&b), BT_OK);
    bench_forget(&b);
    b.worker->requests.at[0]->out.n_in_flight = 3;
    for (int i = 0; i < 2; i++) {
        b.now += LEASE_NS;
        bt_worker_sent(b.worker, &left);
        EXPECT_EQ(bt_worker_begin(b.worker, &plan, &next), BT_OK);
        EXPECT_EQ(b.n_up, 0);
    }
    expect_lease_ended(&b, "rank 1 takes no pages: 1 messages wait");
    bench_tear_down(&b);
}

/* Its machine was stopped: what the peer has not done meanwhile is no fault of it, and the lease
 * goes on as it was. */
static void lease_does_not_run_while_the_rank_stands_still(void)
{
    static bt_bf16  slot[1 << 15];
    bt_page_payload payload = {.rows = g_first_rows};
    bt_page_message first   = FIRST_LAYER;
    bench           b;
    bt_down         m;
    bt_plan         plan;
    bt_next         next;

    for (uint32_t decodes = 0; decodes < 2; decodes++) {
        bench_set_up(&b, decodes, 1, 1);
        b.slot = slot;
        m = decodes ? bench_reserve(1, 10, 5) : bench_prefill(1, 10, 1, 1), bench_order(&b, &m);
        if (decodes) first.pages_tag = ticket_tag(&b);
        if (decodes) bt_worker_delivered(b.worker, 0, &first, &payload);
        if (!decodes) EXPECT_EQ(bench_run_step(&b), BT_OK);
        bench_forget(&b);
        pass(&b, LEASE_NS / 2);
        b.now += decodes ? 10 * LEASE_NS : LEASE_NS / 2;
        EXPECT_EQ(bt_worker_begin(b.worker, &plan, &next), BT_OK);
        pass(&b, LEASE_NS / 4);
        EXPECT_EQ(b.n_up, 0);
        pass(&b, LEASE_NS / 2);
        EXPECT(b.n_up > 0 && b.up[0].kind == BT_UP_FAILED && b.up[0].u.failed.stands_still);
        bench_tear_down(&b);
    }
}

/* From the prompt's end on, without what the decode rank had, and when the last part has left. */
static void hand_off_is_counted_once_it_has_left(void)
{
    static bt_bf16  slot[1 << 15];
    bench           b;
    bt_request     *r;
    bt_page_message left = {.request = 1, .epoch = 2, .payload_bytes = 100, .tail_bytes = 12};
    bt_down         m    = bench_prefill(1, 70, 2, 1);

    m.u.prefill.held = BT_PAGE_TOKENS;
    bench_set_up(&b, 0, 1, 1);
    b.slot = slot;
    bench_order(&b, &m);
    for (int i = 0; i < 5; i++)
        EXPECT_EQ(bench_run_step(&b), BT_OK);
    r = b.worker->requests.at[0];
    EXPECT_EQ(r->state, BT_REQUEST_SENDING);
    EXPECT_EQ(r->out.n_in_flight, 1);
    EXPECT(bt_worker_expects_pages(b.worker));
    bench_forget(&b);
    b.now += 300 * BT_NS_PER_MS;
    bt_worker_sent(b.worker, &left); /* of an older placement */
    EXPECT_EQ(r->out.n_in_flight, 1);
    left.epoch = 3;
    bt_worker_sent(b.worker, &left);
    b.has_come = true;
    bt_worker_background(b.worker);
    EXPECT(b.n_up == 1 && b.up[0].kind == BT_UP_RELEASED);
    EXPECT_EQ(b.worker->handoff_bytes, 2 * 88);
    EXPECT_EQ(b.worker->handoff_pages, 1);
    EXPECT_EQ(b.worker->handoff_ns, 300 * BT_NS_PER_MS);
    EXPECT_EQ(b.worker->handoff_times[12], 1); /* below 512 ms */
    bench_tear_down(&b);
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {
        BT_TEST(cached_pages_leave_with_the_first_piece),
        BT_TEST(page_that_an_equal_prompt_computes_is_counted_as_found),
        BT_TEST(hand_off_that_stands_still_ends_on_the_decode_rank),
        BT_TEST(full_messages_leave_while_the_step_runs),
        BT_TEST(message_without_room_leaves_as_soon_as_there_is_some),
        BT_TEST(message_that_the_device_does_not_pack_is_not_sent),
        BT_TEST(prompts_that_come_together_decode_together),
        BT_TEST(first_token_is_repeated_without_logprobs_alone),
        BT_TEST(evaluation_goes_on_behind_the_prompt_that_was_handed_over),
        BT_TEST(first_token_that_ends_its_choice_is_repeated_alone),
        BT_TEST(decode_rank_keeps_the_prompts_that_it_was_handed),
        BT_TEST(rejected_messages_are_somebodys_loss),
        BT_TEST(refused_rows_are_the_requests_loss),
        BT_TEST(rows_that_the_device_does_not_take_are_the_ranks_loss),
        BT_TEST(hand_off_that_nobody_takes_ends_on_the_prefill_rank),
        BT_TEST(hand_off_that_waits_for_a_slot_has_no_lease),
        BT_TEST(lease_begins_anew_with_each_message_that_has_left),
        BT_TEST(lease_does_not_run_while_the_rank_stands_still),
        BT_TEST(hand_off_is_counted_once_it_has_left),
    };

    bt_log_init("rank", BT_LOG_ERROR);
    return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
}

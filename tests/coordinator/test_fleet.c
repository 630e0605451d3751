/* Cells with many requests that come and go, without a network: who waits for a cell, how long, and
 * that of many thousands each costs what one costs. */
#include <time.h>

#include "tests/coordinator/fleet_site.h"
#include "tests/coordinator/relay_words.h"

enum { FEW = 1250, MANY = 40000 };

static double cpu_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* A cell with n requests is lost and another one comes, and half of the clients leave after each;
 * then two cells have them by turns, and one of these is lost.  Returns the CPU time, in s. */
static double come_and_go(uint32_t n)
{
    site            s;
    bt_control_peer a, b, c;
    double          begun;

    set_up(&s, n);
    begun = cpu_s();
    come(&s, &a, "a", 1 << 24);
    for (uint32_t i = 0; i < n / 2; i++)
        submit(&s, i);
    bt_fleet_lost(s.fleet, &a);
    EXPECT_EQ(n_waiting(&s), n / 2);
    for (uint32_t i = 0; i < n / 2; i += 2)
        abort_one(&s, i);
    come(&s, &b, "b", 1 << 24);
    for (uint32_t i = 1; i < n / 2; i += 4)
        abort_one(&s, i);
    bt_fleet_lost(s.fleet, &b);
    EXPECT_EQ(n_waiting(&s), n / 8);
    bt_fleet_tick(s.fleet, s.now + 1); /* a cell that has gone makes room */
    for (uint32_t i = 3; i < n / 2; i += 4)
        abort_one(&s, i);
    EXPECT_EQ(n_waiting(&s), 0);
    come(&s, &b, "d", 4);
    come(&s, &c, "c", 4);
    for (uint32_t i = n / 2; i < n; i++)
        submit(&s, i);
    EXPECT(n_waiting(&s) >= n / 2 - 8);
    bt_fleet_lost(s.fleet, &c);
    EXPECT(n_waiting(&s) >= n / 2 - 8);
    begun = cpu_s() - begun;
    tear_down(&s);
    return begun;
}

/* Of 32 times as many linear work takes 32 times as long, and somewhat more where caches end. */
static void fleet_loses_cells_in_linear_time(void)
{
    double few = 1e9, many = 1e9;

    for (int i = 0; i < 3; i++) {
        double one = come_and_go(FEW), all = come_and_go(MANY);

        few  = one < few ? one : few;
        many = all < many ? all : many;
    }
    printf("%d requests: %.1f ms of CPU, %d: %.1f ms\n", FEW, few * 1e3, MANY, many * 1e3);
    EXPECT(many < 100 * few);
}

/* Stopped and woken, the process finds those waiting that it had: nobody has refused them. */
static void fleet_own_silence_is_no_wait_for_a_cell(void)
{
    site s;

    set_up(&s, 2);
    submit(&s, 0);
    bt_fleet_tick(s.fleet, s.now + 1);
    submit(&s, 1);
    bt_fleet_tick(s.fleet, s.now + (QUEUE_S + 5) * BT_NS_PER_S);
    EXPECT_EQ(n_waiting(&s), 2);
    for (uint64_t t = 0; t <= QUEUE_S; t += 5) {
        EXPECT_EQ(n_waiting(&s), 2);
        bt_fleet_tick(s.fleet, s.now + (QUEUE_S + 5 + t) * BT_NS_PER_S);
    }
    EXPECT_EQ(n_waiting(&s), 0);
    EXPECT_EQ(bt_fleet_queued_tokens(s.fleet), 0);
    EXPECT_EQ(s.clients[0].code, GRPC_STATUS_UNAVAILABLE);
    tear_down(&s);
}

/* One is taken, however long it is. */
static void fleet_lobby_is_bounded_by_tokens(void)
{
    site s;

    for (uint32_t limit = PROMPT - 1; limit <= 2 * PROMPT; limit += PROMPT + 1) {
        set_up(&s, 3);
        s.fleet->cfg.relay.queue_tokens = limit;
        submit(&s, 0);
        if (limit == 2 * PROMPT) submit(&s, 1);
        EXPECT_EQ(submit_as(&s, 2, "more", 5), GRPC_STATUS_RESOURCE_EXHAUSTED);
        s.n = s.fleet->n_lobby;
        EXPECT_EQ(s.n, limit == 2 * PROMPT ? 2 : 1);
        tear_down(&s);
    }
}

/* Which take memory however few they are: here nobody reads the texts. */
static grpc_status_code submit_text(site *s, uint32_t i, size_t n_bytes)
{
    uint64_t            number;
    grpc_status_code    code = GRPC_STATUS_OK;
    bt_relay_submission r    = {
           .name      = s->clients[i].name,
           .n_prompt  = PROMPT,
           .prompt    = bt_calloc(PROMPT, sizeof(uint32_t)),
           .sampling  = {.constraint = bt_strdup("x"), .n_constraint_bytes = n_bytes},
           .n_choices = 1
    };

    snprintf(s->clients[i].name, sizeof(s->clients[i].name), "t%u", i);
    if (bt_fleet_submit(s->fleet, &r, &s->clients[i], s->now, &number, &code) == BT_OK)
        return GRPC_STATUS_OK;
    bt_free(r.prompt);
    bt_sampling_free(&r.sampling);
    return code;
}

static void fleet_lobby_is_bounded_by_texts(void)
{
    site s;

    set_up(&s, 2);
    EXPECT_EQ(submit_text(&s, 0, BT_QUEUED_TEXT_MAX - 1), GRPC_STATUS_OK);
    EXPECT_EQ(submit_text(&s, 1, 2), GRPC_STATUS_RESOURCE_EXHAUSTED);
    abort_one(&s, 0);
    EXPECT_EQ(submit_text(&s, 1, 2), GRPC_STATUS_OK);
    tear_down(&s);
}

static void fleet_lobby_without_memory_takes_nothing(void)
{
    site             s;
    grpc_status_code code = GRPC_STATUS_UNKNOWN;

    set_up(&s, 1);
    for (long k = 1; code != GRPC_STATUS_OK; k++) { /* the first one is the prompt's */
        EXPECT(code == GRPC_STATUS_UNKNOWN || code == GRPC_STATUS_RESOURCE_EXHAUSTED);
        EXPECT_EQ(s.fleet->n_lobby, 0);
        bt_alloc_fail_at(k);
        code = submit_as(&s, 0, "r", 5);
        bt_alloc_fail_at(-1);
    }
    EXPECT_EQ(s.fleet->n_lobby, 1);
    tear_down(&s);
}

static void fleet_that_has_stopped_takes_nothing(void)
{
    site s;

    set_up(&s, 1);
    s.n = 0; /* who end with it */
    bt_fleet_stop(s.fleet, GRPC_STATUS_UNAVAILABLE, "the end");
    EXPECT_EQ(submit_as(&s, 0, "late", 5), GRPC_STATUS_UNAVAILABLE);
    tear_down(&s);
}

/* It drains; the cell that has the request is lost, and another one is about to serve. */
static void fleet_that_drains_waits_for_a_cell_that_loads(void)
{
    site            s;
    bt_control_peer a, b;

    set_up(&s, 1);
    come(&s, &a, "a", 64);
    submit(&s, 0);
    EXPECT_EQ(a.n_reserved, 1);
    attach(&s, &b, "b", 0, 1, 64);
    bt_fleet_wait_no_more(s.fleet);
    bt_fleet_lost(s.fleet, &a);
    bt_fleet_tick(s.fleet, bt_now_ns());
    EXPECT_EQ(s.clients[0].ends, 0);
    be_ready(&s, &b);
    EXPECT_EQ(b.n_reserved, 1);
    tear_down(&s);
}

/* Wherever the request that has it is: in the lobby, in this cell, or in another one. */
static void fleet_name_belongs_to_one_request(void)
{
    site            s;
    bt_control_peer a, b;

    set_up(&s, 2);
    EXPECT_EQ(submit_as(&s, 0, "same", 5), GRPC_STATUS_OK);
    EXPECT_EQ(n_waiting(&s), 1);
    EXPECT_EQ(submit_as(&s, 1, "same", 5), GRPC_STATUS_ALREADY_EXISTS);
    come(&s, &a, "a", 64);
    EXPECT_EQ(a.n_reserved, 1);
    EXPECT_EQ(submit_as(&s, 1, "same", 5), GRPC_STATUS_ALREADY_EXISTS);
    come(&s, &b, "b", 64);
    EXPECT_EQ(submit_as(&s, 1, "same", 5), GRPC_STATUS_ALREADY_EXISTS);
    EXPECT_EQ(submit_as(&s, 1, "other", 5), GRPC_STATUS_OK);
    EXPECT_EQ(b.n_reserved, 1); /* where it would have gone each time */
    tear_down(&s);
}

/* What a counter has counted it has counted: it never falls. */
static void fleet_counts_tokens_of_cells_that_have_gone(void)
{
    site            s;
    bt_control_peer a;
    bt_up           said[2];
    bt_relay_loads  loads;

    set_up(&s, 1);
    come(&s, &a, "a", 64);
    submit(&s, 0);
    said[0]                          = sim_ticket(a.number, 1);
    said[0].u.ticket.epoch           = a.epoch;
    said[1]                          = sim_tokens(a.number, PROMPT, 7, BT_FINISH_NONE);
    said[1].u.tokens.tokens[0].epoch = a.epoch;
    for (int i = 0; i < 2; i++) {
        bt_fleet_message(s.fleet, &a, &said[i]);
        bt_up_free(&said[i]);
    }
    bt_fleet_get_loads(s.fleet, &loads);
    EXPECT_EQ(loads.tokens_out, 1);
    bt_fleet_lost(s.fleet, &a);
    bt_fleet_get_loads(s.fleet, &loads);
    EXPECT_EQ(loads.tokens_out, 1);
    tear_down(&s);
}

static void fleet_says_what_all_its_cells_have(void)
{
    site            s;
    bt_control_peer a, b;
    bt_relay_loads  all, of[2];
    bt_up           ticket;

    set_up(&s, 2);
    come(&s, &a, "a", 64);
    come(&s, &b, "b", 4);
    submit(&s, 0);
    submit(&s, 1);
    ticket                = sim_ticket(a.number, 1);
    ticket.u.ticket.epoch = a.epoch;
    bt_fleet_message(s.fleet, &a, &ticket);
    bt_up_free(&ticket);
    bt_fleet_get_loads(s.fleet, &all);
    EXPECT(all.n_running == 1 && all.n_waiting == 1 && all.used_tokens == 2 * 64);
    for (uint32_t i = 0; i < 2; i++)
        bt_relay_get_loads(bt_fleet_relay(s.fleet, i), &of[i]);
    EXPECT_EQ(all.total_tokens, of[0].total_tokens + of[1].total_tokens);
    EXPECT_EQ(all.max_running, of[0].max_running + of[1].max_running);
    EXPECT_EQ(bt_fleet_max_tokens(s.fleet), bt_relay_max_tokens(bt_fleet_relay(s.fleet, 0)));
    EXPECT(bt_fleet_max_tokens(s.fleet) > bt_relay_max_tokens(bt_fleet_relay(s.fleet, 1)));
    tear_down(&s);
}

/* By its own client alone, or by its name, wherever it is. */
static void fleet_request_is_aborted(void)
{
    site            s;
    bt_control_peer a, b;

    set_up(&s, 4);
    attach(&s, &a, "a", 0, 1, 64); /* it loads */
    submit(&s, 0);
    submit(&s, 2);
    submit(&s, 3);
    EXPECT_EQ(bt_fleet_queued_tokens(s.fleet), 3 * PROMPT);
    bt_fleet_abort_client(s.fleet, &s.clients[1], "r0", "somebody else's");
    EXPECT_EQ(s.clients[0].ends, 0);
    abort_one(&s, 0);
    EXPECT(!bt_fleet_abort_name(s.fleet, "r0", "by name"));
    EXPECT(bt_fleet_abort_name(s.fleet, "r2", "by name"));
    EXPECT(s.clients[2].ends == 1 && s.clients[2].code == GRPC_STATUS_CANCELLED);
    EXPECT_EQ(s.clients[3].ends, 0);
    abort_one(&s, 3);
    be_ready(&s, &a);
    submit(&s, 1);
    EXPECT_EQ(a.n_reserved, 1);
    come(&s, &b, "b", 64);
    EXPECT(bt_fleet_abort_name(s.fleet, "r1", "by name"));
    EXPECT(!bt_fleet_abort_name(s.fleet, "r1", "by name"));
    EXPECT_EQ(s.clients[1].ends, 1);
    tear_down(&s);
}

/* The cell that held it is lost, and the one that serves is too small for it. */
static void fleet_wait_for_a_large_cell_has_an_end(void)
{
    site            s;
    bt_control_peer a, b;

    set_up(&s, 1);
    come(&s, &a, "a", 64);
    come(&s, &b, "b", 4);
    s.now -= 20 * BT_NS_PER_S; /* nothing has come of it so far */
    submit_of(&s, 0, 10 * 64);
    EXPECT_EQ(a.n_reserved, 1);
    bt_fleet_lost(s.fleet, &a);
    for (uint64_t t = 0; t <= WAIT_S + 5; t += 5) {
        EXPECT_EQ(s.clients[0].ends, t > WAIT_S);
        bt_fleet_tick(s.fleet, bt_now_ns() + t * BT_NS_PER_S);
    }
    EXPECT_EQ(s.clients[0].code, GRPC_STATUS_UNAVAILABLE);
    tear_down(&s);
}

/* It has nowhere else to go: the only cell drains, and its pool had too little room for a while. */
static void fleet_retracted_request_ends_in_the_cell_that_drains(void)
{
    site            s;
    bt_control_peer a;
    bt_up           drain = {.kind = BT_UP_DRAIN}, retracted = {.kind = BT_UP_RETRACTED},
          released = {.kind = BT_UP_RELEASED};

    set_up(&s, 1);
    come(&s, &a, "a", 1);
    submit(&s, 0);
    EXPECT_EQ(a.n_reserved, 1);
    bt_fleet_message(s.fleet, &a, &drain);
    retracted.u.retracted.request = released.u.released.request = a.number;
    retracted.u.retracted.epoch = released.u.released.epoch = a.epoch;
    bt_fleet_message(s.fleet, &a, &retracted);
    bt_fleet_tick(s.fleet, s.now + 1);
    EXPECT_EQ(n_waiting(&s), 1);
    EXPECT_EQ(a.n_reserved, 1); /* the page is not free yet */
    bt_fleet_message(s.fleet, &a, &released);
    bt_fleet_tick(s.fleet, s.now + 2);
    EXPECT_EQ(a.n_reserved, 2);
    EXPECT_EQ(s.clients[0].ends, 0);
    tear_down(&s);
}

/* Unless there is another one. */
static void fleet_retracted_request_leaves_the_cell_that_drains(void)
{
    site            s;
    bt_control_peer a, b;
    bt_up           drain = {.kind = BT_UP_DRAIN}, retracted = {.kind = BT_UP_RETRACTED};
    bt_relay_loads  loads;

    set_up(&s, 1);
    come(&s, &a, "a", 1);
    submit(&s, 0);
    come(&s, &b, "b", 64);
    bt_fleet_message(s.fleet, &a, &drain);
    retracted.u.retracted.request = a.number;
    retracted.u.retracted.epoch   = a.epoch;
    bt_fleet_message(s.fleet, &a, &retracted);
    EXPECT_EQ(b.n_reserved, 0);
    bt_fleet_get_loads(s.fleet, &loads);
    EXPECT_EQ(loads.retracted, 1);
    bt_fleet_tick(s.fleet, s.now + 1);
    EXPECT_EQ(b.n_reserved, 1);
    EXPECT(bt_fleet_relay(s.fleet, 0) == NULL); /* it has drained */
    bt_fleet_get_loads(s.fleet, &loads);
    EXPECT_EQ(loads.retracted, 1);
    tear_down(&s);
}

/* The first one that waits has begun in the cell that drains, and no other could hold it. */
static void fleet_request_leaves_a_drain_past_one_that_stays(void)
{
    site            s;
    bt_control_peer a, b;
    bt_up           drain = {.kind = BT_UP_DRAIN}, retracted = {.kind = BT_UP_RETRACTED};

    set_up(&s, 2);
    come(&s, &a, "a", 3);
    EXPECT_EQ(submit_choices(&s, 0, "large", 5, 3), GRPC_STATUS_OK);
    submit(&s, 1);
    retracted.u.retracted.request = a.number;
    retracted.u.retracted.epoch   = a.epoch;
    bt_fleet_message(s.fleet, &a, &retracted); /* and has not let it go yet */
    attach(&s, &b, "b", 0, 1, 1);
    bt_fleet_find(s.fleet, "b")->short_since_ns = s.now; /* nothing would go there by itself */
    be_ready(&s, &b);
    EXPECT(a.n_reserved == 1 && b.n_reserved == 0);
    bt_fleet_message(s.fleet, &a, &drain);
    EXPECT_EQ(b.n_reserved, 1);
    EXPECT_EQ(bt_fleet_queued_tokens(s.fleet), PROMPT); /* of the one that stays */
    tear_down(&s);
}

/* What runs there ends there; what waits there, and what comes, waits for another. */
static void fleet_cell_that_drains_takes_nothing_new(void)
{
    site            s;
    bt_control_peer a;
    bt_up           drain = {.kind = BT_UP_DRAIN};

    set_up(&s, 3);
    come(&s, &a, "a", 1);
    submit(&s, 0);
    s.now -= 20 * BT_NS_PER_S; /* since it came */
    submit(&s, 1);
    bt_fleet_message(s.fleet, &a, &drain);
    EXPECT_EQ(s.fleet->n_lobby, 1);
    abort_one(&s, 0);
    s.now += 20 * BT_NS_PER_S;
    submit(&s, 2);
    EXPECT_EQ(s.fleet->n_lobby, 2);
    EXPECT_EQ(a.n_reserved, 1);
    for (uint64_t t = 0; t <= QUEUE_S - 15; t += 5)
        bt_fleet_tick(s.fleet, s.now + t * BT_NS_PER_S);
    EXPECT(s.clients[1].ends == 1 && s.clients[2].ends == 0);
    tear_down(&s);
}

/* Its last rank has just been lost, and with the next tick it will be: it has requests until then.
 */
static void fleet_cell_without_ranks_keeps_its_requests(void)
{
    site            s;
    bt_control_peer a, again;
    bt_up           hello;

    set_up(&s, 1);
    hello                      = make_hello("a", 0, 1);
    s.fleet->cfg.relay.replace = true;
    come(&s, &a, "a", 64);
    submit(&s, 0);
    bt_fleet_lost(s.fleet, &a);
    EXPECT(bt_fleet_cell_at(s.fleet, 0)->ranks[0].lost);
    say(&s, &again, &hello);
    EXPECT(again.n_refused == 1 && again.code == GRPC_STATUS_FAILED_PRECONDITION);
    bt_fleet_tick(s.fleet, bt_now_ns());
    EXPECT_EQ(s.fleet->n_lobby, 1);
    tear_down(&s);
}

/* Of the first that has one; once a cell has served, requests may have keys that go by it. */
static void fleet_takes_one_seed_of_cells_that_come_back(void)
{
    site            s;
    bt_control_peer peers[4];

    set_up(&s, 0);
    come_back(&s, &peers[0], "a", 1, 0);
    EXPECT_EQ(s.fleet->prefix_seed, 1);
    bt_fleet_lost(s.fleet, &peers[0]);
    bt_fleet_tick(s.fleet, s.now + 1);
    come_back(&s, &peers[1], "b", 1, 11);
    come_back(&s, &peers[2], "c", 1, 12);
    EXPECT_EQ(s.fleet->prefix_seed, 11);
    be_ready(&s, &peers[1]);
    bt_fleet_lost(s.fleet, &peers[1]);
    bt_fleet_lost(s.fleet, &peers[2]);
    bt_fleet_tick(s.fleet, s.now + 2);
    EXPECT_EQ(bt_fleet_n_cells(s.fleet), 0);
    come_back(&s, &peers[3], "d", 1, 13);
    EXPECT_EQ(s.fleet->prefix_seed, 11);
    tear_down(&s);
}

/* It was to drain when its coordinator was lost, and says so again; other cells may follow. */
static void fleet_cell_that_comes_back_to_drain_leaves(void)
{
    site            s;
    bt_control_peer a;
    bt_up           drain = {.kind = BT_UP_DRAIN};

    set_up(&s, 1);
    submit(&s, 0);
    s.fleet->cfg.wait_ns = 0; /* a coordinator ends with its last cell */
    come_back(&s, &a, "a", 1, 0);
    bt_fleet_message(s.fleet, &a, &drain);
    EXPECT_EQ(bt_fleet_state(s.fleet, 0), BT_CELL_LOADING);
    be_ready(&s, &a);
    EXPECT_EQ(bt_fleet_state(s.fleet, 0), BT_CELL_DRAINING);
    bt_fleet_tick(s.fleet, s.now + 1);
    EXPECT_EQ(bt_fleet_state(s.fleet, 0), BT_CELL_LEAVING);
    EXPECT_EQ(a.n_reserved, 0);
    tear_down(&s);
}

/* Its other rank could not attach while the coordinator stood still: it has as long as before. */
static void fleet_that_stood_still_waits_as_long_as_before(void)
{
    enum { ATTACH_S = 10, BEFORE_S = 4, STILL_S = 60 };
    site            s;
    bt_control_peer a;
    uint64_t        t;

    set_up(&s, 0);
    attach(&s, &a, "a", 0, 2, 64);
    t = s.fleet->cells[0]->deadline_ns - ATTACH_S * BT_NS_PER_S;
    for (uint64_t k = 0; k <= BEFORE_S; k++)
        bt_fleet_tick(s.fleet, t + k * BT_NS_PER_S);
    t += STILL_S * BT_NS_PER_S;
    for (uint64_t k = BEFORE_S; k <= ATTACH_S; k++) {
        EXPECT_EQ(bt_fleet_state(s.fleet, 0), BT_CELL_ATTACHING);
        bt_fleet_tick(s.fleet, t + k * BT_NS_PER_S);
    }
    EXPECT_EQ(bt_fleet_n_cells(s.fleet), 0); /* its rank has been let go */
    tear_down(&s);
}

static void count_over(void *ctx, bool well, const char *reason)
{
    (void)reason;
    *(uint32_t *)ctx += well;
}

/* No cell follows where one has served meanwhile, and was lost: the coordinator ends. */
static void fleet_ends_with_a_cell_that_comes_back_to_drain_late(void)
{
    site            s;
    bt_control_peer a, b;
    bt_up           drain  = {.kind = BT_UP_DRAIN};
    uint32_t        n_over = 0;

    set_up(&s, 0);
    s.fleet->cfg.wait_ns = 0;
    s.fleet->events.over = count_over;
    s.fleet->events.ctx  = &n_over;
    come(&s, &b, "b", 64);
    come_back(&s, &a, "a", 1, 0);
    bt_fleet_message(s.fleet, &a, &drain);
    bt_fleet_lost(s.fleet, &b);
    be_ready(&s, &a);
    EXPECT_EQ(n_over, 0);
    bt_fleet_tick(s.fleet, s.now + 1);
    EXPECT_EQ(bt_fleet_state(s.fleet, bt_fleet_n_cells(s.fleet) - 1), BT_CELL_LEAVING);
    EXPECT_EQ(n_over, 1);
    tear_down(&s);
}

/* Ranks that come back are all running already; no cell is waited for longer than a new one. */
static void fleet_waits_less_for_ranks_that_come_back(void)
{
    static const struct {
        uint64_t quiet_s, wait_s;
        bool     back;
    } CASES[] = {
        {5,  5,  true },
        {20, 10, true },
        {5,  10, false},
    };

    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        site            s;
        bt_control_peer a;
        uint64_t        before, until;

        set_up(&s, 0);
        s.fleet->cfg.relay.rank_quiet_ns = CASES[i].quiet_s * BT_NS_PER_S;
        before                           = bt_now_ns() + CASES[i].wait_s * BT_NS_PER_S;
        if (CASES[i].back)
            come_back(&s, &a, "a", 2, 0);
        else
            attach(&s, &a, "a", 0, 2, 64);
        until = bt_fleet_find(s.fleet, "a")->deadline_ns;
        EXPECT(until >= before && until <= bt_now_ns() + CASES[i].wait_s * BT_NS_PER_S);
        tear_down(&s);
    }
}

/* One that has served before may find another coordinator, of its own model; a new one will not. */
static void fleet_rank_of_another_model_is_refused(void)
{
    site            s;
    bt_control_peer a, b;
    bt_up           hello;

    set_up(&s, 0);
    attach(&s, &a, "a", 0, 2, 64); /* none has served */
    hello = make_hello("b", 0, 1);
    hello.u.hello.vocab_size++;
    say(&s, &b, &hello);
    EXPECT(b.n_refused == 1 && b.code == GRPC_STATUS_FAILED_PRECONDITION);
    EXPECT_HAS(b.why, "cell \"b\": invalid argument: rank 0 ");
    s.fleet->cfg.config_hash = 1;
    hello                    = make_hello("", 0, 1);
    say(&s, &b, &hello);
    EXPECT(b.n_refused == 1 && b.code == GRPC_STATUS_FAILED_PRECONDITION);
    EXPECT(strncmp(b.why, "invalid argument: ", 18) == 0);
    come_back(&s, &b, "b", 1, 0);
    EXPECT(b.n_refused == 1 && b.code == GRPC_STATUS_UNAVAILABLE);
    EXPECT_EQ(bt_fleet_n_cells(s.fleet), 1);
    tear_down(&s);
}

/* It is refused, or lost; another one serves. */
static void fleet_cell_that_comes_without_memory_leaves_nothing(void)
{
    bool serves = false;
    long k      = 0;

    for (; !serves; k++) {
        bt_up           hello;
        site            s;
        bt_control_peer a, b;

        set_up(&s, 0);
        hello = make_hello("a", 0, 1);
        bt_alloc_fail_at(k);
        say(&s, &a, &hello);
        if (a.n_refused == 0) be_ready(&s, &a);
        bt_alloc_fail_at(-1);
        EXPECT_EQ(s.fleet->n_cells, a.n_refused == 0);
        serves = a.n_refused == 0 && s.fleet->cells[0]->state == BT_CELL_SERVING;
        come(&s, &b, "b", 64);
        EXPECT_EQ(s.fleet->cells[s.fleet->n_cells - 1]->state, BT_CELL_SERVING);
        tear_down(&s);
    }
    EXPECT(k > 8);
}

/* Its other ranks are told why, and to leave; until they have, nobody takes its name.  Other cells
 * stay. */
static void fleet_cell_of_a_rank_that_leaves_goes(void)
{
    site            s;
    bt_control_peer a, b[2], c, early;
    bt_up           leaving = {.kind = BT_UP_LEAVING}, hello;

    set_up(&s, 0);
    leaving.u.leaving.reason = bt_strdup("it is late");
    hello                    = make_hello("b", 1, 2);
    come(&s, &a, "a", 64);
    for (uint32_t i = 0; i < 2; i++)
        attach(&s, &b[i], "b", i, 2, 64);
    for (uint32_t i = 0; i < 2; i++)
        be_ready(&s, &b[i]);
    come(&s, &c, "c", 64);
    bt_fleet_message(s.fleet, &b[1], &leaving);
    bt_up_free(&leaving);
    EXPECT_EQ(bt_fleet_state(s.fleet, 1), BT_CELL_SERVING);
    bt_fleet_lost(s.fleet, &b[1]);
    EXPECT(a.n_left == 0 && b[0].n_left == 1 && b[1].n_left == 0 && c.n_left == 0);
    EXPECT_HAS(b[0].why, "the cell has failed: rank 1 ");
    EXPECT_HAS(b[0].why, "was lost: it is late");
    bt_fleet_tick(s.fleet, bt_now_ns());
    EXPECT_EQ(b[0].n_refused, 0);
    say(&s, &early, &hello);
    EXPECT_EQ(early.n_refused, 1);
    EXPECT_HAS(early.why, "comes too early");
    bt_fleet_tick(s.fleet, bt_now_ns() + 5 * BT_NS_PER_S);
    EXPECT_EQ(b[0].n_refused, 1);
    EXPECT_EQ(bt_fleet_n_cells(s.fleet), 2);
    EXPECT(bt_fleet_find(s.fleet, "a") != NULL && bt_fleet_find(s.fleet, "c") != NULL);
    tear_down(&s);
    EXPECT(a.n_left == 1 && b[0].n_left == 1 && c.n_left == 1);
}

/* Where ranks are replaced it goes alone; else its cell goes. */
static void fleet_rank_that_is_stuck_goes(void)
{
    for (int replace = 0; replace < 2; replace++) {
        site            s;
        bt_control_peer all[2], *stuck, *other;

        set_up(&s, 1);
        s.fleet->cfg.relay.replace       = replace;
        s.fleet->cfg.relay.rank_quiet_ns = 2 * BT_NS_PER_S;
        for (uint32_t i = 0; i < 2; i++)
            attach(&s, &all[i], "a", i, 2, 64);
        for (uint32_t i = 0; i < 2; i++)
            be_ready(&s, &all[i]);
        submit(&s, 0);
        stuck = &all[all[1].n_reserved];
        other = &all[1 - all[1].n_reserved];
        for (uint64_t t = 0; t <= 5; t++)
            bt_fleet_tick(s.fleet, s.now + t * BT_NS_PER_S / 2);
        EXPECT_EQ(stuck->n_refused, replace);
        EXPECT_EQ(other->n_refused, 0);
        EXPECT_EQ(stuck->n_left, !replace);
        EXPECT_EQ(other->n_left, !replace);
        EXPECT_EQ(other->n_reserved, replace);
        EXPECT_EQ(s.fleet->n_lobby, !replace);
        EXPECT_EQ(bt_fleet_n_peers(s.fleet), replace ? 1 : 2);
        EXPECT_HAS(stuck->why, replace ? "is removed from the cell: " : "is stuck: ");
        EXPECT_EQ(bt_fleet_cell_at(s.fleet, 0)->ranks[stuck - all].lost, replace);
        tear_down(&s);
        EXPECT_EQ(stuck->n_left, !replace);
    }
}

static void fleet_rank_that_comes_at_the_end_is_told_to_leave(void)
{
    site            s;
    bt_control_peer a[2];

    set_up(&s, 0);
    attach(&s, &a[0], "a", 0, 2, 64);
    bt_fleet_stop(s.fleet, GRPC_STATUS_UNAVAILABLE, "the end");
    attach(&s, &a[1], "a", 1, 2, 64);
    for (int i = 0; i < 2; i++) {
        EXPECT_EQ(a[i].n_left, 1);
        EXPECT_HAS(a[i].why, "the end");
    }
    bt_fleet_lost(s.fleet, &a[0]); /* it has left: nothing has failed */
    EXPECT_EQ(bt_fleet_state(s.fleet, 0), BT_CELL_ATTACHING);
    tear_down(&s);
}

static void fleet_has_no_more_cells_than_there_is_room_for(void)
{
    static bt_control_peer peers[BT_FLEET_CELLS + 1];
    site                   s;
    bt_up                  hello;

    set_up(&s, 0);
    hello = make_hello("one more", 0, 2);
    for (uint32_t i = 0; i < BT_FLEET_CELLS; i++) {
        char name[16];

        snprintf(name, sizeof(name), "%u", i);
        attach(&s, &peers[i], name, 0, 2, 64);
    }
    say(&s, &peers[BT_FLEET_CELLS], &hello);
    EXPECT_EQ(peers[BT_FLEET_CELLS].n_refused, 1);
    EXPECT_EQ(bt_fleet_n_cells(s.fleet), BT_FLEET_CELLS);
    tear_down(&s);
}

/* It says how many rows its experts had; the last time counts. */
static void fleet_has_the_last_load_of_experts(void)
{
    site            s;
    bt_control_peer a;

    set_up(&s, 0);
    come(&s, &a, "a", 64);
    for (uint64_t rows = 7; rows <= 8; rows++) {
        bt_up m = {.kind = BT_UP_EXPERT_LOAD};

        m.u.expert_load.n       = 1;
        m.u.expert_load.rows    = bt_calloc(1, sizeof(uint64_t));
        m.u.expert_load.rows[0] = rows;
        bt_fleet_message(s.fleet, &a, &m);
        bt_up_free(&m);
    }
    EXPECT(bt_fleet_cell_at(s.fleet, 0)->ranks[0].n_experts == 1);
    EXPECT(bt_fleet_cell_at(s.fleet, 0)->ranks[0].expert_rows[0] == 8);
    tear_down(&s);
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {
        BT_TEST(fleet_loses_cells_in_linear_time),
        BT_TEST(fleet_own_silence_is_no_wait_for_a_cell),
        BT_TEST(fleet_lobby_is_bounded_by_tokens),
        BT_TEST(fleet_lobby_is_bounded_by_texts),
        BT_TEST(fleet_lobby_without_memory_takes_nothing),
        BT_TEST(fleet_that_has_stopped_takes_nothing),
        BT_TEST(fleet_that_drains_waits_for_a_cell_that_loads),
        BT_TEST(fleet_name_belongs_to_one_request),
        BT_TEST(fleet_counts_tokens_of_cells_that_have_gone),
        BT_TEST(fleet_says_what_all_its_cells_have),
        BT_TEST(fleet_request_is_aborted),
        BT_TEST(fleet_wait_for_a_large_cell_has_an_end),
        BT_TEST(fleet_retracted_request_ends_in_the_cell_that_drains),
        BT_TEST(fleet_retracted_request_leaves_the_cell_that_drains),
        BT_TEST(fleet_request_leaves_a_drain_past_one_that_stays),
        BT_TEST(fleet_cell_that_drains_takes_nothing_new),
        BT_TEST(fleet_cell_without_ranks_keeps_its_requests),
        BT_TEST(fleet_takes_one_seed_of_cells_that_come_back),
        BT_TEST(fleet_cell_that_comes_back_to_drain_leaves),
        BT_TEST(fleet_ends_with_a_cell_that_comes_back_to_drain_late),
        BT_TEST(fleet_that_stood_still_waits_as_long_as_before),
        BT_TEST(fleet_waits_less_for_ranks_that_come_back),
        BT_TEST(fleet_rank_of_another_model_is_refused),
        BT_TEST(fleet_cell_that_comes_without_memory_leaves_nothing),
        BT_TEST(fleet_cell_of_a_rank_that_leaves_goes),
        BT_TEST(fleet_rank_that_is_stuck_goes),
        BT_TEST(fleet_rank_that_comes_at_the_end_is_told_to_leave),
        BT_TEST(fleet_has_no_more_cells_than_there_is_room_for),
        BT_TEST(fleet_has_the_last_load_of_experts),
    };

    bt_log_init("fleet", BT_LOG_ERROR);
    return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
}

/* Cells with many requests that come and go, without a network: what waits for a cell, what changes
 * cells, and that of many thousands each costs what one costs. */
#include <stdlib.h>
#include <time.h>

#include "coordinator/fleet_state.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "tests/coordinator/relay_words.h"
#include "tests/proto/control_samples.h"
#include "tests/support/test.h"

enum { FEW = 1250, MANY = 40000, PROMPT = 5, WAIT_S = 60, QUEUE_S = 30 };

/* ---- ranks that only listen */

struct bt_control_peer {
    void    *data;
    int      n_refused;
    int      code; /* of the last refusal, */
    char     why[64];
    uint32_t n_reserved;
    uint64_t arrivals[4]; /* as its first orders say */
    uint64_t number;      /* of the last one, which has the epoch */
    uint32_t epoch;
};

void bt_control_send(bt_control_peer *peer, bt_down *m)
{
    if (m->kind == BT_DOWN_RESERVE && peer->n_reserved < 4)
        peer->arrivals[peer->n_reserved] = m->u.reserve.arrival;
    if (m->kind == BT_DOWN_RESERVE) {
        peer->n_reserved++;
        peer->number = m->u.reserve.request;
        peer->epoch  = m->u.reserve.epoch;
    }
    bt_down_free(m);
}
void  bt_control_peer_set_data(bt_control_peer *peer, void *data) { peer->data = data; }
void *bt_control_peer_data(const bt_control_peer *peer) { return peer->data; }
void  bt_control_refuse(bt_control_peer *peer, grpc_status_code code, const char *reason)
{
    peer->n_refused++;
    peer->code = code;
    snprintf(peer->why, sizeof(peer->why), "%s", reason);
}

/* ---- clients that count */

typedef struct {
    char             name[16];
    int              ends;
    grpc_status_code code;
} client;

typedef struct {
    bt_fleet   *fleet;
    client     *clients; /* owned [n] */
    uint32_t    n;
    uint64_t    now;
    const char *cache_salt; /* of what run_in() submits, as is: */
    uint32_t    prompt_logprobs;
} site;

static bt_finish on_token(void *who, const bt_token *token)
{
    (void)who;
    return token->finish;
}

static void on_end(void *who, const bt_relay_end *end)
{
    client *c = who;

    c->ends++;
    c->code = end->code;
}

static void on_placed(void *who) { (void)who; }
static void on_serving(void *ctx) { (void)ctx; }

static void on_over(void *ctx, bool well, const char *reason)
{
    (void)ctx, (void)well, (void)reason;
    EXPECT(false); /* a cell is waited for */
}

static void set_up(site *s, uint32_t n)
{
    bt_fleet_config config = {
        .relay       = {.verdict_ns     = BT_NS_PER_S,
                        .queue_tokens   = UINT64_MAX / 2,
                        .queue_ns       = QUEUE_S * BT_NS_PER_S,
                        .rank_quiet_ns  = 20 * BT_NS_PER_S,
                        .stall_ns       = 600 * BT_NS_PER_S,
                        .prefill_window = UINT32_MAX},
        .attach_ns   = 10 * BT_NS_PER_S,
        .load_ns     = 10 * BT_NS_PER_S,
        .rejoin_ns   = 10 * BT_NS_PER_S,
        .wait_ns     = WAIT_S * BT_NS_PER_S,
        .announce_fd = -1
    };
    bt_fleet_events events = {
        .client  = {.token = on_token, .placed = on_placed, .end = on_end},
        .serving = on_serving,
        .over    = on_over,
        .ctx     = s
    };

    *s = (site){.clients = calloc(n, sizeof(client)), .n = n, .now = bt_now_ns()};
    EXPECT_EQ(bt_fleet_create(&config, &events, &s->fleet), BT_OK);
    s->fleet->prefix_seed = 1; /* else keys share slots now and then */
}

static void tear_down(site *s)
{
    bt_fleet_stop(s->fleet, GRPC_STATUS_UNAVAILABLE, "the end");
    for (uint32_t i = 0; i < s->n; i++)
        EXPECT_EQ(s->clients[i].ends, 1);
    bt_fleet_destroy(s->fleet);
    free(s->clients);
}

static bt_up make_hello(const char *name, uint32_t rank, uint32_t n_ranks)
{
    bt_up hello = sample_hello(rank, n_ranks);

    bt_free(hello.u.hello.cell);
    hello.u.hello.cell     = bt_strdup(name);
    hello.u.hello.max_rows = 1 << 20;
    hello.u.hello.n_spares = 0;
    return hello;
}

static void say(site *s, bt_control_peer *peer, bt_up *hello)
{
    *peer = (bt_control_peer){0};
    bt_fleet_message(s->fleet, peer, hello);
    bt_up_free(hello);
}

/* A rank of a cell attaches. */
static void attach(site *s, bt_control_peer *peer, const char *name, uint32_t rank,
                   uint32_t n_ranks, uint32_t n_pages)
{
    bt_up hello = make_hello(name, rank, n_ranks);

    hello.u.hello.n_pages = n_pages;
    say(s, peer, &hello);
    EXPECT_EQ(peer->n_refused, 0);
}

/* Of a cell of n_ranks whose coordinator was lost. */
static void come_back(site *s, bt_control_peer *peer, const char *name, uint32_t n_ranks,
                      uint64_t prefix_seed)
{
    bt_up hello = make_hello(name, 0, n_ranks);

    s->fleet->life                      = 1;
    hello.u.hello.incarnation           = 1ull << 32 | 7;
    hello.u.hello.prefix_seed           = prefix_seed;
    hello.u.hello.seats.epoch           = 3;
    hello.u.hello.seats.groups[0].n     = n_ranks;
    hello.u.hello.seats.groups[0].ranks = bt_calloc(n_ranks, sizeof(uint32_t));
    for (uint32_t i = 0; i < n_ranks; i++)
        hello.u.hello.seats.groups[0].ranks[i] = i;
    say(s, peer, &hello);
}

static void be_ready(site *s, bt_control_peer *peer)
{
    bt_up ready = {.kind = BT_UP_READY};

    bt_fleet_message(s->fleet, peer, &ready);
}

/* A cell of one rank comes and serves. */
static void come(site *s, bt_control_peer *peer, const char *name, uint32_t n_pages)
{
    attach(s, peer, name, 0, 1, n_pages);
    be_ready(s, peer);
}

/* OK, or why it is refused. */
static grpc_status_code submit_choices(site *s, uint32_t i, const char *name, uint32_t max_tokens,
                                       uint32_t n_choices)
{
    grpc_status_code    code = GRPC_STATUS_OK;
    uint64_t            number;
    client             *c = &s->clients[i];
    bt_relay_submission r = {
        .name      = c->name,
        .n_prompt  = PROMPT,
        .prompt    = bt_calloc(PROMPT, sizeof(uint32_t)),
        .sampling  = {.max_tokens = max_tokens},
        .n_choices = n_choices,
    };

    snprintf(c->name, sizeof(c->name), "%s", name);
    if (bt_fleet_submit(s->fleet, &r, c, s->now + i, &number, &code) == BT_OK)
        return GRPC_STATUS_OK;
    bt_free(r.prompt);
    return code;
}

static grpc_status_code submit_as(site *s, uint32_t i, const char *name, uint32_t max_tokens)
{
    return submit_choices(s, i, name, max_tokens, 1);
}

static void submit_of(site *s, uint32_t i, uint32_t max_tokens)
{
    char name[16];

    snprintf(name, sizeof(name), "r%u", i);
    EXPECT_EQ(submit_as(s, i, name, max_tokens), GRPC_STATUS_OK);
}

static void submit(site *s, uint32_t i) { submit_of(s, i, 5); }

static void abort_one(site *s, uint32_t i)
{
    bt_fleet_abort_client(s->fleet, &s->clients[i], s->clients[i].name, "the client has gone");
    EXPECT_EQ(s->clients[i].ends, 1);
    EXPECT_EQ(s->clients[i].code, GRPC_STATUS_CANCELLED);
}

static uint32_t n_waiting(const site *s)
{
    bt_relay_loads l;

    bt_fleet_get_loads(s->fleet, &l);
    return (uint32_t)l.n_waiting;
}

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

/* A request's age is its first arrival, in whatever cell: who gives way goes by it. */
static void fleet_request_keeps_its_age_in_another_cell(void)
{
    site            s;
    bt_control_peer a, b;

    set_up(&s, 3);
    come(&s, &a, "a", 64);
    submit(&s, 0);
    submit(&s, 1);
    EXPECT(a.n_reserved == 2 && a.arrivals[0] < a.arrivals[1]);
    come(&s, &b, "b", 64);
    submit(&s, 2);
    bt_fleet_lost(s.fleet, &a);
    EXPECT_EQ(b.n_reserved, 3);
    EXPECT(b.arrivals[1] < b.arrivals[2] && b.arrivals[2] < b.arrivals[0]);
    tear_down(&s);
}

static void fleet_queue_that_has_moved_is_empty(void)
{
    site            s;
    bt_control_peer a, b;

    set_up(&s, 3);
    come(&s, &a, "a", 1);
    for (uint32_t i = 0; i < 3; i++)
        submit(&s, i);
    EXPECT_EQ(bt_fleet_queued_tokens(s.fleet), 2 * PROMPT);
    attach(&s, &b, "b", 0, 1, 64);
    bt_fleet_find(s.fleet, "b")->short_since_ns = s.now; /* a rank is missing there */
    be_ready(&s, &b);
    EXPECT_EQ(b.n_reserved, 0);
    bt_fleet_tick(s.fleet, s.now + 1);
    EXPECT_EQ(b.n_reserved, 2);
    EXPECT_EQ(bt_fleet_queued_tokens(s.fleet), 0);
    tear_down(&s);
}

/* So that the loop goes on meanwhile. */
static void fleet_long_queue_moves_in_parts(void)
{
    enum { WAITING = 100, PART = 64 };
    site            s;
    bt_control_peer a, b;

    set_up(&s, 1 + WAITING);
    come(&s, &a, "a", 1);
    for (uint32_t i = 0; i <= WAITING; i++)
        submit(&s, i);
    come(&s, &b, "b", 1 << 20);
    EXPECT_EQ(b.n_reserved, PART);
    bt_fleet_tick(s.fleet, s.now + 1);
    EXPECT_EQ(b.n_reserved, WAITING);
    tear_down(&s);
}

/* A cell that could hold each of them, but not all. */
static void fleet_choices_go_to_one_cell(void)
{
    site            s;
    bt_control_peer a, b;

    set_up(&s, 1);
    come(&s, &a, "a", 3);
    come(&s, &b, "b", 2);
    EXPECT_EQ(submit_choices(&s, 0, "three", 5, 3), GRPC_STATUS_OK);
    EXPECT_EQ(a.n_reserved, 1);
    bt_fleet_lost(s.fleet, &a);
    EXPECT(s.fleet->n_lobby == 1 && b.n_reserved == 0);
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

/* Each cell has two of three pages free, and no queue but for the one that wants three. */
static void fleet_request_that_fits_nowhere_stays_where_it_is(void)
{
    site                    s;
    bt_control_peer         a, b;
    const bt_relay_request *large;
    uint64_t                heard_ns;

    set_up(&s, 3);
    come(&s, &a, "a", 3);
    come(&s, &b, "b", 3);
    submit(&s, 0);
    submit(&s, 1);
    EXPECT(a.n_reserved == 1 && b.n_reserved == 1);
    EXPECT_EQ(submit_choices(&s, 2, "large", 5, 3), GRPC_STATUS_OK);
    EXPECT_EQ(bt_fleet_queued_tokens(s.fleet), PROMPT);
    large = bt_relay_first_queued(bt_fleet_relay(s.fleet, 0));
    if (large == NULL) large = bt_relay_first_queued(bt_fleet_relay(s.fleet, 1));
    heard_ns = large->heard_ns; /* or when it came where it waits */
    bt_fleet_tick(s.fleet, s.now + 10);
    EXPECT_EQ(large->heard_ns, heard_ns);
    EXPECT_EQ(bt_fleet_queued_tokens(s.fleet), PROMPT);
    abort_one(&s, 0);
    abort_one(&s, 1);
    tear_down(&s);
}

/* The small one waits behind the large one, for which no cell has room. */
static void fleet_small_request_passes_a_large_one_to_another_cell(void)
{
    site            s;
    bt_control_peer a, b;
    bt_up           released = {.kind = BT_UP_RELEASED};

    set_up(&s, 6);
    come(&s, &a, "a", 3);
    come(&s, &b, "b", 3);
    EXPECT_EQ(submit_choices(&s, 0, "all of a", 5, 3), GRPC_STATUS_OK);
    EXPECT_EQ(submit_choices(&s, 1, "most of b", 5, 2), GRPC_STATUS_OK);
    released.u.released.request = b.number;
    released.u.released.epoch   = b.epoch;
    submit(&s, 2);
    EXPECT(a.n_reserved == 1 && b.n_reserved == 2);
    EXPECT_EQ(submit_choices(&s, 3, "large", 5, 3), GRPC_STATUS_OK);
    submit(&s, 4);
    submit(&s, 5);
    abort_one(&s, 5); /* nobody waits at b */
    abort_one(&s, 1);
    bt_fleet_message(s.fleet, &b, &released);
    bt_fleet_tick(s.fleet, s.now + 10);
    EXPECT(a.n_reserved == 1 && b.n_reserved == 3);
    EXPECT_EQ(bt_fleet_queued_tokens(s.fleet), PROMPT); /* the large one's */
    tear_down(&s);
}

/* Its cell has lost the one rank that could hold it: it is the next in the other one, however full
 * that is. */
static void fleet_request_goes_where_it_may_fit_once(void)
{
    site            s;
    bt_control_peer a[2], b;

    set_up(&s, 2);
    s.fleet->cfg.relay.replace = true;
    for (uint32_t i = 0; i < 2; i++)
        attach(&s, &a[i], "a", i, 2, 8 - i);
    be_ready(&s, &a[0]);
    be_ready(&s, &a[1]);
    EXPECT_EQ(submit_choices(&s, 0, "large", 5, 8), GRPC_STATUS_OK);
    EXPECT_EQ(a[0].n_reserved, 1);
    come(&s, &b, "b", 8);
    submit(&s, 1);
    EXPECT_EQ(b.n_reserved, 1);
    bt_fleet_lost(s.fleet, &a[0]);
    bt_fleet_tick(s.fleet, s.now + 10);
    EXPECT(bt_relay_first_queued(bt_fleet_relay(s.fleet, 0)) == NULL);
    EXPECT(bt_relay_first_queued(bt_fleet_relay(s.fleet, 1)) != NULL);
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

/* It may not have one again for long, and is the last choice, however little it has to do. */
static void fleet_prefers_cells_with_a_rank_for_every_role(void)
{
    site            s;
    bt_control_peer a, b;

    set_up(&s, 3);
    come(&s, &a, "a", 64);
    come(&s, &b, "b", 4);
    for (uint32_t i = 0; i < 2; i++) {
        bt_fleet_cell *c = bt_fleet_find(s.fleet, i == 0 ? "b" : "a");

        c->short_since_ns = s.now;
        submit(&s, i);
        EXPECT(a.n_reserved == 1 && b.n_reserved == i);
        if (i == 0) c->short_since_ns = 0;
    }
    bt_fleet_find(s.fleet, "b")->short_since_ns = s.now;
    submit(&s, 2); /* there is no other */
    EXPECT(a.n_reserved == 2 && b.n_reserved == 1);
    tear_down(&s);
}

/* Of two idle cells the one whose ranks have more room, without those that it has lost. */
static void fleet_counts_the_room_of_ranks_that_are_left(void)
{
    site            s;
    bt_control_peer a[2], b;

    set_up(&s, 2);
    s.fleet->cfg.relay.replace = true;
    for (uint32_t i = 0; i < 2; i++)
        attach(&s, &a[i], "a", i, 2, 64);
    be_ready(&s, &a[0]);
    be_ready(&s, &a[1]);
    come(&s, &b, "b", 100);
    submit(&s, 0);
    EXPECT_EQ(a[0].n_reserved + a[1].n_reserved, 1); /* 128 pages */
    abort_one(&s, 0);
    bt_fleet_lost(s.fleet, &a[0]);
    submit(&s, 1);
    EXPECT_EQ(b.n_reserved, 1);
    tear_down(&s);
}

/* Where there is no memory for what names its prefix, load alone decides. */
static void fleet_places_a_prompt_whose_keys_get_no_memory(void)
{
    enum { LONG = 300 };
    site                s;
    bt_control_peer     a, b;
    uint64_t            number = 0;
    grpc_status_code    code   = GRPC_STATUS_OK;
    bt_relay_submission r      = {.name      = "long",
                                  .n_prompt  = LONG,
                                  .prompt    = bt_calloc(LONG, sizeof(uint32_t)),
                                  .sampling  = {.max_tokens = 5},
                                  .n_choices = 1};

    set_up(&s, 1);
    come(&s, &a, "a", 64);
    come(&s, &b, "b", 64);
    bt_alloc_fail_at(0);
    EXPECT_EQ(bt_fleet_submit(s.fleet, &r, &s.clients[0], s.now, &number, &code), BT_OK);
    EXPECT_EQ(a.n_reserved + b.n_reserved, 1);
    tear_down(&s);
}

enum { LONG = 130 };

static void submit_long(site *s, uint32_t i, uint32_t first_token)
{
    char                name[16];
    uint64_t            number = 0;
    grpc_status_code    code   = GRPC_STATUS_OK;
    uint32_t           *prompt = bt_calloc(LONG, sizeof(*prompt));
    bt_relay_submission r      = {
             .name       = name,
             .cache_salt = s->cache_salt,
             .n_prompt   = LONG,
             .prompt     = prompt,
             .sampling   = {.max_tokens = 1, .prompt_logprobs = s->prompt_logprobs},
             .n_choices  = 1
    };

    prompt[0] = first_token;
    snprintf(name, sizeof(name), "r%u", i);
    EXPECT_EQ(bt_fleet_submit(s->fleet, &r, &s->clients[i], s->now, &number, &code), BT_OK);
}

/* A request with this prompt goes to that cell, and is over. */
static void run_in(site *s, uint32_t i, uint32_t first_token, bt_control_peer *there)
{
    uint32_t n = there->n_reserved;
    bt_up    said[3];

    submit_long(s, i, first_token);
    EXPECT_EQ(there->n_reserved, n + 1);
    said[0]                          = sim_ticket(there->number, 3);
    said[1]                          = sim_tokens(there->number, LONG, 7, BT_FINISH_LENGTH);
    said[2]                          = sim_released(there->number);
    said[0].u.ticket.epoch           = there->epoch;
    said[1].u.tokens.tokens[0].epoch = there->epoch;
    said[2].u.released.epoch         = there->epoch;
    for (int k = 0; k < 3; k++) {
        bt_fleet_message(s->fleet, there, &said[k]);
        bt_up_free(&said[k]);
    }
}

/* The others are the last choice for now. */
static void prefer(const site *s, const char *name)
{
    for (uint32_t i = 0; i < s->fleet->n_cells; i++) {
        bt_fleet_cell *c = s->fleet->cells[i];

        c->short_since_ns = strcmp(c->cell.name, name) == 0 ? 0 : s->now;
    }
}

/* What waits in a cell that drains, and what runs in one that is lost, goes to the cell that has
 * its prefix. */
static void fleet_prefixes_count_in_another_cell(void)
{
    for (uint32_t k = 0; k < 4; k++) {
        bool            drains = k % 2 == 0, logprobs = k / 2 == 1;
        site            s;
        bt_control_peer left, idle, cached;
        bt_up           drain = {.kind = BT_UP_DRAIN};

        set_up(&s, 3);
        come(&s, &left, "left", 3);
        come(&s, &idle, "idle", 64);
        come(&s, &cached, "cached", 64);
        prefer(&s, "cached");
        run_in(&s, 0, 1, &cached);
        prefer(&s, "left");
        if (drains)
            submit_long(&s, 1, 2);
        else
            s.clients[1].ends = 1;
        s.prompt_logprobs = logprobs;
        submit_long(&s, 2, 1);
        EXPECT_EQ(left.n_reserved, 1);
        for (uint32_t i = 0; i < s.fleet->n_cells; i++)
            s.fleet->cells[i]->short_since_ns = 0;
        if (drains)
            bt_fleet_message(s.fleet, &left, &drain);
        else
            bt_fleet_lost(s.fleet, &left);
        EXPECT_EQ(idle.n_reserved, logprobs); /* which need all of it */
        EXPECT_EQ(cached.n_reserved, 2 - logprobs);
        tear_down(&s);
    }
}

/* One request at a time: conversations fill the caches of all cells, and come back to their own. */
static void fleet_prefixes_are_spread_while_little_comes(void)
{
    site            s;
    bt_control_peer a, b, late;

    set_up(&s, 12);
    come(&s, &a, "a", 64);
    come(&s, &b, "b", 64);
    for (uint32_t i = 0; i < 8; i++)
        run_in(&s, i, i % 4, i % 2 == 0 ? &a : &b);
    come(&s, &late, "late", 64); /* it takes turns from now on */
    run_in(&s, 8, 8, &a);
    run_in(&s, 9, 9, &b);
    run_in(&s, 10, 10, &late);
    run_in(&s, 11, 11, &a);
    tear_down(&s);
}

/* Of equal prompts each salt has pages of its own, and a cell that has them. */
static void fleet_prefixes_are_those_of_a_salt(void)
{
    site            s;
    bt_control_peer a, b;

    set_up(&s, 4);
    come(&s, &a, "a", 64);
    come(&s, &b, "b", 64);
    for (uint32_t i = 0; i < 4; i++) {
        s.cache_salt = i % 2 == 0 ? NULL : "of another";
        run_in(&s, i, 1, i % 2 == 0 ? &a : &b);
    }
    tear_down(&s);
}

/* All of its prompt is computed, wherever a part is cached. */
static void fleet_prompt_whose_logprobs_are_asked_goes_by_no_prefix(void)
{
    site            s;
    bt_control_peer a, b;

    set_up(&s, 2);
    come(&s, &a, "a", 64);
    come(&s, &b, "b", 64);
    run_in(&s, 0, 1, &a);
    s.prompt_logprobs = 1;
    run_in(&s, 1, 1, &b);
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

    set_up(&s, 0);
    come(&s, &a, "a", 64);
    come(&s, &b, "b", 4);
    bt_fleet_get_loads(s.fleet, &all);
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

    set_up(&s, 2);
    submit(&s, 0);
    EXPECT_EQ(bt_fleet_queued_tokens(s.fleet), PROMPT);
    bt_fleet_abort_client(s.fleet, &s.clients[1], "r0", "somebody else's");
    EXPECT_EQ(s.clients[0].ends, 0);
    abort_one(&s, 0);
    come(&s, &a, "a", 64);
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
    bt_up           hello = make_hello("a", 0, 1);

    set_up(&s, 1);
    s.fleet->cfg.relay.replace = true;
    come(&s, &a, "a", 64);
    submit(&s, 0);
    bt_fleet_lost(s.fleet, &a);
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
    bt_up           hello = make_hello("b", 0, 1);

    set_up(&s, 0);
    attach(&s, &a, "a", 0, 2, 64); /* none has served */
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

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {
        BT_TEST(fleet_loses_cells_in_linear_time),
        BT_TEST(fleet_own_silence_is_no_wait_for_a_cell),
        BT_TEST(fleet_request_keeps_its_age_in_another_cell),
        BT_TEST(fleet_queue_that_has_moved_is_empty),
        BT_TEST(fleet_long_queue_moves_in_parts),
        BT_TEST(fleet_choices_go_to_one_cell),
        BT_TEST(fleet_lobby_is_bounded_by_tokens),
        BT_TEST(fleet_request_that_fits_nowhere_stays_where_it_is),
        BT_TEST(fleet_small_request_passes_a_large_one_to_another_cell),
        BT_TEST(fleet_request_goes_where_it_may_fit_once),
        BT_TEST(fleet_that_drains_waits_for_a_cell_that_loads),
        BT_TEST(fleet_name_belongs_to_one_request),
        BT_TEST(fleet_prefers_cells_with_a_rank_for_every_role),
        BT_TEST(fleet_counts_the_room_of_ranks_that_are_left),
        BT_TEST(fleet_places_a_prompt_whose_keys_get_no_memory),
        BT_TEST(fleet_prefixes_are_spread_while_little_comes),
        BT_TEST(fleet_prefixes_are_those_of_a_salt),
        BT_TEST(fleet_prefixes_count_in_another_cell),
        BT_TEST(fleet_prompt_whose_logprobs_are_asked_goes_by_no_prefix),
        BT_TEST(fleet_counts_tokens_of_cells_that_have_gone),
        BT_TEST(fleet_says_what_all_its_cells_have),
        BT_TEST(fleet_request_is_aborted),
        BT_TEST(fleet_wait_for_a_large_cell_has_an_end),
        BT_TEST(fleet_retracted_request_ends_in_the_cell_that_drains),
        BT_TEST(fleet_retracted_request_leaves_the_cell_that_drains),
        BT_TEST(fleet_cell_that_drains_takes_nothing_new),
        BT_TEST(fleet_cell_without_ranks_keeps_its_requests),
        BT_TEST(fleet_takes_one_seed_of_cells_that_come_back),
        BT_TEST(fleet_waits_less_for_ranks_that_come_back),
        BT_TEST(fleet_rank_of_another_model_is_refused),
    };

    bt_log_init("fleet", BT_LOG_ERROR);
    return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
}

/* tests/coordinator/fleet_site.h - a fleet without a network: ranks that only listen, clients that
 * count.  It defines what proto/ does for real peers: one file of a program includes it. */
#ifndef BT_TESTS_COORDINATOR_FLEET_SITE_H
#define BT_TESTS_COORDINATOR_FLEET_SITE_H

#include <stdlib.h>

#include "coordinator/fleet_state.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "tests/proto/control_samples.h"
#include "tests/support/test.h"

enum { PROMPT = 5, WAIT_S = 60, QUEUE_S = 30 };

/* ---- ranks that only listen */

struct bt_control_peer {
    void    *data;
    int      n_refused, n_left; /* it was told to leave */
    int      code;              /* of the last refusal, */
    char     why[128];          /* and of either */
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
    if (m->kind == BT_DOWN_SHUTDOWN) {
        peer->n_left++;
        snprintf(peer->why, sizeof(peer->why), "%s", m->u.shutdown.reason);
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
    long        live;       /* allocations before it */
    const char *cache_salt; /* of what run_in() submits, as is: */
    uint32_t    prompt_logprobs;
} site;

static inline bt_finish on_token(void *who, const bt_token *token)
{
    (void)who;
    return token->finish;
}

static inline void on_end(void *who, const bt_relay_end *end)
{
    client *c = who;

    c->ends++;
    c->code = end->code;
}

static inline void on_placed(void *who) { (void)who; }
static inline void on_serving(void *ctx) { (void)ctx; }

static inline void on_over(void *ctx, bool well, const char *reason)
{
    (void)ctx, (void)well, (void)reason;
    EXPECT(false); /* a cell is waited for */
}

static inline void set_up(site *s, uint32_t n)
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

    *s = (site){
        .clients = calloc(n, sizeof(client)), .n = n, .now = bt_now_ns(), .live = bt_alloc_live()};
    EXPECT_EQ(bt_fleet_create(&config, &events, &s->fleet), BT_OK);
    s->fleet->prefix_seed = 1; /* else keys share slots now and then */
}

static inline void tear_down(site *s)
{
    bt_fleet_stop(s->fleet, GRPC_STATUS_UNAVAILABLE, "the end");
    for (uint32_t i = 0; i < s->n; i++)
        EXPECT_EQ(s->clients[i].ends, 1);
    bt_fleet_destroy(s->fleet);
    EXPECT_EQ(bt_alloc_live(), s->live);
    free(s->clients);
}

static inline bt_up make_hello(const char *name, uint32_t rank, uint32_t n_ranks)
{
    bt_up hello = sample_hello(rank, n_ranks);

    bt_free(hello.u.hello.cell);
    hello.u.hello.cell       = bt_strdup(name);
    hello.u.hello.max_rows   = 1 << 20;
    hello.u.hello.n_spares   = 0;
    hello.u.hello.version[0] = 0; /* else each is warned of */
    return hello;
}

static inline void say(site *s, bt_control_peer *peer, bt_up *hello)
{
    *peer = (bt_control_peer){0};
    bt_fleet_message(s->fleet, peer, hello);
    bt_up_free(hello);
}

/* A rank of a cell attaches. */
static inline void attach(site *s, bt_control_peer *peer, const char *name, uint32_t rank,
                          uint32_t n_ranks, uint32_t n_pages)
{
    bt_up hello = make_hello(name, rank, n_ranks);

    hello.u.hello.n_pages = n_pages;
    say(s, peer, &hello);
    EXPECT_EQ(peer->n_refused, 0);
}

/* Of a cell of n_ranks whose coordinator was lost. */
static inline void come_back(site *s, bt_control_peer *peer, const char *name, uint32_t n_ranks,
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

static inline void be_ready(site *s, bt_control_peer *peer)
{
    bt_up ready = {.kind = BT_UP_READY};

    bt_fleet_message(s->fleet, peer, &ready);
}

/* A cell of one rank comes and serves. */
static inline void come(site *s, bt_control_peer *peer, const char *name, uint32_t n_pages)
{
    attach(s, peer, name, 0, 1, n_pages);
    be_ready(s, peer);
}

/* OK, or why it is refused. */
static inline grpc_status_code submit_choices(site *s, uint32_t i, const char *name,
                                              uint32_t max_tokens, uint32_t n_choices)
{
    grpc_status_code    code = GRPC_STATUS_OK;
    uint64_t            number;
    uint32_t            n_lobby = s->fleet->n_lobby;
    client             *c       = &s->clients[i];
    bt_relay_submission r       = {
              .name      = c->name,
              .n_prompt  = PROMPT,
              .prompt    = bt_calloc(PROMPT, sizeof(uint32_t)),
              .sampling  = {.max_tokens = max_tokens},
              .n_choices = n_choices,
    };

    snprintf(c->name, sizeof(c->name), "%s", name);
    if (bt_fleet_submit(s->fleet, &r, c, s->now + i, &number, &code) == BT_OK) {
        EXPECT((number == 0) == (s->fleet->n_lobby > n_lobby)); /* it comes with a place */
        return GRPC_STATUS_OK;
    }
    bt_free(r.prompt);
    return code;
}

static inline grpc_status_code submit_as(site *s, uint32_t i, const char *name, uint32_t max_tokens)
{
    return submit_choices(s, i, name, max_tokens, 1);
}

static inline void submit_of(site *s, uint32_t i, uint32_t max_tokens)
{
    char name[16];

    snprintf(name, sizeof(name), "r%u", i);
    EXPECT_EQ(submit_as(s, i, name, max_tokens), GRPC_STATUS_OK);
}

static inline void submit(site *s, uint32_t i) { submit_of(s, i, 5); }

static inline void abort_one(site *s, uint32_t i)
{
    bt_fleet_abort_client(s->fleet, &s->clients[i], s->clients[i].name, "the client has gone");
    EXPECT_EQ(s->clients[i].ends, 1);
    EXPECT_EQ(s->clients[i].code, GRPC_STATUS_CANCELLED);
}

static inline uint32_t n_waiting(const site *s)
{
    bt_relay_loads l;

    bt_fleet_get_loads(s->fleet, &l);
    return (uint32_t)l.n_waiting;
}

#endif

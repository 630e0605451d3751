/* Ranks that say what no rank would, between others that say what they should: after each message
 * the relay's numbers are those of its requests, and no client hears more than is its own, in
 * order, with one end (relay_sim.h). */
#include "tests/coordinator/relay_liars.h"
#include "tests/coordinator/relay_recount.h"
#include "tests/support/seeds.h"

enum { SEEDS = 400, STEPS = 4000, N_CLIENTS = 800, MOST_PAGES = 64 };

typedef struct {
    liars       ranks;
    sim_client *clients; /* [N_CLIENTS] */
    uint32_t    n_clients;
} cell;

static uint64_t g_n_tokens, g_n_done, g_n_failed;

static void submit(cell *c)
{
    sim        *s      = &c->ranks.s;
    sim_client *client = &c->clients[c->n_clients];
    uint32_t    n_prompt, max_tokens, n_choices;
    char        name[24];

    n_prompt   = 1 + sim_random(s, 40);
    max_tokens = 1 + sim_random(s, 20);
    n_choices  = sim_random(s, 3) == 0 ? 1 + sim_random(s, 4) : 1;
    if (c->n_clients == N_CLIENTS || s->relay->n_in[BT_QUEUED] > 8 ||
        !bt_relay_could_hold(s->relay, n_prompt, max_tokens, n_choices))
        return;
    s->prompt_logprobs = sim_random(s, 4) == 0 ? 1 + sim_random(s, 3) : 0;
    s->cache_salt      = sim_any_salt(s);
    s->first_token     = sim_random(s, 3);
    snprintf(name, sizeof(name), "c%u", c->n_clients);
    EXPECT_EQ(sim_submit_choices(s, client, name, n_prompt, max_tokens, UINT32_MAX, n_choices),
              BT_OK);
    client->cut_at = sim_random(s, 3) == 0 ? 2 + sim_random(s, 8) : 0;
    c->n_clients++;
}

static void act(cell *c)
{
    sim              *s      = &c->ranks.s;
    const sim_client *client = &c->clients[sim_random(s, c->n_clients + 1) % N_CLIENTS];

    switch (sim_random(s, 10)) {
    case 0: submit(c); break;
    case 1:
        if (client->ends == 0 && sim_random(s, 8) == 0)
            bt_relay_abort_client(s->relay, client, client->name, "gone");
        break;
    case 2:
        s->now += sim_random(s, 20) * (sim_random(s, 60) == 0 ? BT_NS_PER_S : BT_NS_PER_MS);
        bt_relay_tick(s->relay, s->now);
        break;
    case 3:
        if (s->cfg.replace && sim_random(s, 800) == 0)
            bt_relay_lose(s->relay, sim_random(s, s->cfg.n_ranks), s->now);
        break;
    default: say(&c->ranks);
    }
}

/* With both roles or without, spares or none. */
static void set_up(cell *c, uint64_t seed)
{
    bool     both      = seed % 4 == 0;
    uint32_t n_prefill = both ? 0 : 1 + seed / 4 % 2, n_decode = both ? 0 : 1 + seed / 8 % 2;
    uint32_t n_ranks = both ? 1 + seed / 4 % 3 : n_prefill + n_decode + seed / 16 % 3;
    sim     *s       = &c->ranks.s;

    sim_init_as(s, n_prefill, n_decode, n_ranks, MOST_PAGES / (1 + seed % 3), seed / 3 % 2 == 0);
    s->relay->cfg.share_generated = seed % 5 < 2;
    s->state                      = seed;
    c->clients                    = calloc(N_CLIENTS, sizeof(*c->clients));
    NEED(c->clients != NULL);
    for (uint32_t i = 0; i < MAX_RANKS; i++)
        s->ranks[i].dead = true; /* nobody reads */
}

static void tear_down(cell *c)
{
    bt_relay_stop(c->ranks.s.relay, GRPC_STATUS_UNAVAILABLE, "end");
    for (uint32_t i = 0; i < c->n_clients; i++) {
        const sim_client *client = &c->clients[i];

        EXPECT_EQ(client->ends, 1);
        EXPECT(c->ranks.n_lies > 0 || client->end.code != GRPC_STATUS_INTERNAL);
        g_n_done += client->end.code == GRPC_STATUS_OK;
        g_n_failed += client->end.code == GRPC_STATUS_INTERNAL;
        for (uint32_t k = 0; k < client->n_choices; k++)
            g_n_tokens += client->n_of[k];
    }
    sim_fini(&c->ranks.s);
    free(c->clients);
}

static void play(uint64_t seed, uint32_t n_lies)
{
    int  before = g_failures;
    long live   = bt_alloc_live();
    cell c      = {.ranks.n_lies = n_lies};

    set_up(&c, seed);
    for (uint32_t i = 0; i < STEPS && g_failures == before; i++) {
        act(&c);
        recount(c.ranks.s.relay);
    }
    tear_down(&c);
    EXPECT_EQ(bt_alloc_live(), live);
}

static void play_all(uint32_t n_lies)
{
    uint64_t n      = SEEDS / BT_SEEDS_SLOWER;
    int      before = g_failures;

    g_n_tokens = g_n_done = g_n_failed = 0;
    bt_play_seeds(SEEDS, n_lies, play);
    if (bt_only_seed != 0 || g_failures != before) return;
    EXPECT(g_n_tokens > 100 * n && g_n_done > 20 * n);
    EXPECT((g_n_failed > 15 * n) == (n_lies > 0));
}

static void relay_ranks_that_tell_the_truth_fail_nobody(void) { play_all(0); }
static void relay_keeps_its_counts_when_ranks_lie_now_and_then(void) { play_all(1); }
static void relay_keeps_its_counts_when_ranks_lie_often(void) { play_all(4); }

static const bt_test TESTS[] = {
    BT_TEST(relay_ranks_that_tell_the_truth_fail_nobody),
    BT_TEST(relay_keeps_its_counts_when_ranks_lie_now_and_then),
    BT_TEST(relay_keeps_its_counts_when_ranks_lie_often),
};

int main(int argc, char **argv)
{
    bt_log_init("test", BT_LOG_ERROR);
    return bt_run_seeded_tests(TESTS, sizeof(TESTS) / sizeof(TESTS[0]), false, argc, argv);
}

/* Groups of 1 to 40 ranks whose exchanges come to a standstill, simulated at random: whom the relay
 * removes, and when.
 *
 * A rank computes, enters an exchange, sends to those that the exchange is for and waits for those
 * that send to it: everybody (a gather), or whom tokens are routed to.  A wait that has lasted
 * TIMEOUT is reported.  A rank that hangs does nothing any more, one that is killed loses its
 * control stream, a cut takes what one rank sends to one other.  Control messages keep the order of
 * their stream and nothing else; reports may be late and may come twice, beats may be lost.  The
 * coordinator may stand still; when it wakes it hears one message before it looks at the clock.
 * What must hold:
 *   - who hangs is removed in time, who lives and can be reached is not;
 *   - an epoch has one decision, which all that are left are told, in the same words;
 *   - then they go on. */
#include <stdlib.h>

#include "coordinator/relay.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "tests/coordinator/relay_words.h"
#include "tests/support/test.h"

enum { MOST = 40, MAIL = 128, TICK_MS = 10, TIMEOUT_MS = 2000, VERDICT_MS = 250, BEAT_MS = 200 };
enum { QUIET_MS = 6000, NEVER = INT32_MAX };

typedef struct {
    bt_up    up;
    bt_down  down;
    uint32_t at_ms;
} mail;

/* In order, each at its time. */
typedef struct {
    mail     box[MAIL];
    uint32_t at, n, last_ms;
} stream;

typedef struct {
    uint32_t hangs_ms, dies_ms;          /* NEVER: it does not */
    uint32_t epoch, entered;             /* exchanges of the epoch that it has entered */
    uint32_t lost_to[MOST];              /* the first of them that has not reached that rank */
    uint32_t next_ms, waits_ms, beat_ms; /* the next one; since when it waits */
    uint32_t reads_until_ms;
    uint32_t group, n_seats, seats[MOST];
    bool     waits, reported, removed, says_ready, faulty;
    stream   up, down;
} node;

typedef struct {
    bt_relay *relay;
    uint64_t  state, salt;
    uint32_t  seed, n, n_seated, now_ms, slow_ms, slow_from_ms, reads_percent, late_percent,
        twice_percent, experts;
    uint32_t cut_from, cut_to, cut_ms;                          /* MOST: none */
    uint32_t late_rank, late_ms, late_by;                       /* once, by so much; 0: never */
    uint32_t n_stops, stops_ms, wakes_ms;                       /* of the coordinator */
    uint32_t n_removed, removed_ms[MOST];                       /* of the rank */
    uint32_t epoch, told[MOST], seats[2][MOST], group_epoch[2]; /* as told last */
    node     nodes[MOST];
} world;

static uint32_t draw(world *w, uint32_t below)
{
    w->state = w->state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(w->state >> 33) % below;
}

static bool chance(world *w, uint32_t percent) { return draw(w, 100) < percent; }

static uint64_t ns(uint32_t ms) { return (1000000 + (uint64_t)ms) * BT_NS_PER_MS; }

/* ---- exchanges */

/* Does `from` send to `to` in the exchange?  The first of an epoch, and every third, is a gather.
 */
static bool sends(const world *w, uint32_t epoch, uint32_t exchange, uint32_t from, uint32_t to)
{
    uint64_t x = w->salt + epoch * 1000003u + exchange / 3 * 7919u;

    if (exchange % 3 == 0) return true;
    /* what goes there comes back */
    x += exchange % 3 == 1 ? from * 131u + to : to * 131u + from;
    x *= 0x9E3779B97F4A7C15u;
    x ^= x >> 29;
    x *= 0xBF58476D1CE4E5B9u;
    return (x >> 40) % 100 < w->experts;
}

static bool has_sent(const world *w, uint32_t from, uint32_t to)
{
    const node *a = &w->nodes[from], *b = &w->nodes[to];

    return a->epoch == b->epoch && a->entered >= b->entered && a->lost_to[to] >= b->entered;
}

static bool waits_for(const world *w, uint32_t rank, uint32_t from)
{
    const node *k = &w->nodes[rank];

    return from != rank && !has_sent(w, from, rank) &&
           sends(w, k->epoch, k->entered - 1, from, rank);
}

static bool has_met_all(const world *w, uint32_t rank)
{
    const node *k = &w->nodes[rank];

    for (uint32_t i = 0; i < k->n_seats; i++)
        if (waits_for(w, rank, k->seats[i])) return false;
    return true;
}

/* For whom the rank waits. */
static uint32_t find_missing(const world *w, uint32_t rank, uint32_t *ranks_out)
{
    const node *k = &w->nodes[rank];
    uint32_t    n = 0;

    for (uint32_t i = 0; i < k->n_seats; i++)
        if (waits_for(w, rank, k->seats[i])) ranks_out[n++] = k->seats[i];
    return n;
}

static void enter(world *w, uint32_t rank)
{
    node *k = &w->nodes[rank];

    k->entered++;
    k->waits    = true;
    k->waits_ms = w->now_ms;
    if (rank == w->cut_from && w->now_ms >= w->cut_ms && k->lost_to[w->cut_to] == NEVER &&
        sends(w, k->epoch, k->entered - 1, rank, w->cut_to))
        k->lost_to[w->cut_to] = k->entered - 1;
}

/* ---- streams */

static mail *post(world *w, stream *s, bool late)
{
    uint32_t at_ms = w->now_ms + 1 + draw(w, 20) + (late ? 150 : 0);
    mail    *m     = &s->box[(s->at + s->n++) % MAIL];

    NEED(s->n <= MAIL);
    s->last_ms = at_ms > s->last_ms ? at_ms : s->last_ms;
    *m         = (mail){.at_ms = s->last_ms};
    return m;
}

static bool take(const world *w, stream *s, mail *m_out)
{
    if (s->n == 0 || s->box[s->at].at_ms > w->now_ms) return false;
    *m_out = s->box[s->at];
    s->at  = (s->at + 1) % MAIL;
    s->n--;
    return true;
}

static void empty(stream *s)
{
    for (; s->n > 0; s->n--, s->at = (s->at + 1) % MAIL) {
        bt_up_free(&s->box[s->at].up);
        bt_down_free(&s->box[s->at].down);
    }
}

/* ---- the relay's callbacks */

/* One change makes an epoch: of one group, and of one seat at most. */
static void note_epoch(world *w, const bt_down_regroup *m)
{
    uint32_t n_groups = 0, n_seats = 0;

    EXPECT_EQ(m->epoch, w->epoch + 1);
    w->epoch = m->epoch;
    for (uint32_t g = 0; g < 2; g++) {
        n_groups += m->groups[g].epoch != w->group_epoch[g];
        w->group_epoch[g] = m->groups[g].epoch;
        for (uint32_t i = 0; i < m->groups[g].n; i++) {
            n_seats += m->groups[g].ranks[i] != w->seats[g][i];
            w->seats[g][i] = m->groups[g].ranks[i];
        }
    }
    EXPECT(n_groups <= 1 && n_seats <= n_groups);
}

static void on_send(void *ctx, uint32_t rank, bt_down *m)
{
    world                 *w = ctx;
    const bt_down_regroup *g = &m->u.regroup;

    EXPECT(!w->nodes[rank].removed);
    if (m->kind == BT_DOWN_REGROUP && !g->prepare) {
        EXPECT(g->epoch > w->told[rank]); /* once */
        w->told[rank] = g->epoch;
        if (g->epoch != w->epoch) note_epoch(w, g);
        for (uint32_t i = 0; i < 2; i++) {
            EXPECT_EQ(g->groups[i].epoch, w->group_epoch[i]);
            for (uint32_t seat = 0; seat < g->groups[i].n; seat++)
                EXPECT_EQ(g->groups[i].ranks[seat], w->seats[i][seat]);
        }
    }
    post(w, &w->nodes[rank].down, false)->down = *m;
}

static void on_stuck(void *ctx, uint32_t rank, const char *why)
{
    world *w = ctx;

    EXPECT_HAS(why, w->nodes[rank].n_seats > 0 ? "waited for it too long" : "heard of the spare");
    EXPECT(!w->nodes[rank].removed);
    w->nodes[rank].removed = true;
    w->removed_ms[rank]    = w->now_ms;
    w->n_removed++;
    if (!w->nodes[rank].faulty) {
        g_failures++;
        fprintf(stderr, "living rank %u of %u is removed at %u ms\n", rank, w->n, w->now_ms);
    }
}

/* ---- ranks */

static void say_expired(world *w, uint32_t rank)
{
    node    *k = &w->nodes[rank];
    uint32_t missing[MOST], n = find_missing(w, rank, missing);
    int      times = chance(w, w->twice_percent) ? 2 : 1;
    bool     late  = chance(w, w->late_percent);

    k->reported = true;
    if (w->n_stops > 0 && w->now_ms >= w->wakes_ms && chance(w, 20)) {
        w->n_stops--;
        w->stops_ms = w->now_ms + draw(w, 200);
        w->wakes_ms = w->stops_ms + draw(w, 2 * TIMEOUT_MS);
    }
    for (int i = 0; i < times; i++) {
        bt_up *m = &post(w, &k->up, late)->up;

        m->kind            = BT_UP_EXPIRED;
        m->u.expired.epoch = k->epoch;
        m->u.expired.n_met = k->entered - 1;
        m->u.expired.n     = n;
        m->u.expired.ranks = words_calloc(MOST, sizeof(uint32_t));
        m->u.expired.what  = bt_strdup("exchange");
        memcpy(m->u.expired.ranks, missing, n * sizeof(uint32_t));
    }
}

static uint32_t group_of(const bt_seats groups[2], uint32_t rank)
{
    for (uint32_t g = 0; g < 2; g++)
        for (uint32_t i = 0; i < groups[g].n; i++)
            if (groups[g].ranks[i] == rank) return g;
    return 2;
}

static void hear_regroup(world *w, uint32_t rank, const bt_down_regroup *m)
{
    node           *k     = &w->nodes[rank];
    uint32_t        group = group_of(m->groups, rank), n_before;
    const bt_seats *own   = &m->groups[group % 2];

    if (group == 2) return; /* a spare */
    if (m->prepare) {
        k->says_ready     = true;
        k->reads_until_ms = w->now_ms + draw(w, 1000);
        return;
    }
    if (own->epoch == k->epoch) return;
    EXPECT(own->epoch > k->epoch);
    k->epoch   = own->epoch;
    k->group   = group;
    n_before   = k->n_seats;
    k->entered = k->n_seats = 0;
    k->waits = k->reported = false;
    for (uint32_t i = 0; i < own->n; i++)
        if (own->ranks[i] != BT_NO_RANK) k->seats[k->n_seats++] = own->ranks[i];
    for (uint32_t i = 0; i < MOST; i++)
        k->lost_to[i] = NEVER;
    if (k->n_seats < n_before &&
        chance(w, w->reads_percent)) /* it may take longer than others wait */
        k->reads_until_ms = w->now_ms + draw(w, 2 * TIMEOUT_MS);
    k->next_ms = w->now_ms + draw(w, 20);
}

static void read_on(world *w, uint32_t rank)
{
    node  *k    = &w->nodes[rank];
    bool   done = w->now_ms + TICK_MS >= k->reads_until_ms;
    bt_up *m;

    if (!done && w->now_ms % 50 != 0) return;
    m       = &post(w, &k->up, false)->up;
    m->kind = BT_UP_PROGRESS;
    if (!done) m->u.progress.done_bytes = 1;
    if (!done) m->u.progress.total_bytes = 2;
    if (!done) return;
    k->reads_until_ms = 0;
    if (k->says_ready) post(w, &k->up, false)->up.kind = BT_UP_READY;
    k->says_ready = false;
    k->next_ms    = w->now_ms + draw(w, 20);
}

static void beat(world *w, uint32_t rank)
{
    node  *k = &w->nodes[rank];
    bt_up *m;

    if (w->now_ms < k->beat_ms) return;
    k->beat_ms = w->now_ms + BEAT_MS;
    if (chance(w, 10)) return; /* lost */
    m                  = &post(w, &k->up, false)->up;
    m->kind            = BT_UP_BEAT;
    m->u.beat.progress = k->entered;
}

static void live(world *w, uint32_t rank)
{
    node *k = &w->nodes[rank];
    mail  m;

    while (k->reads_until_ms == 0 && take(w, &k->down, &m)) {
        if (m.down.kind == BT_DOWN_REGROUP) hear_regroup(w, rank, &m.down.u.regroup);
        bt_down_free(&m.down);
    }
    if (k->reads_until_ms != 0) {
        read_on(w, rank);
        return;
    }
    if (k->n_seats == 0) { /* a spare */
        beat(w, rank);
        return;
    }
    if (!k->waits && w->now_ms >= k->next_ms) enter(w, rank);
    if (k->waits) beat(w, rank); /* none while it computes */
    if (!k->waits || k->reported) return;
    if (has_met_all(w, rank)) {
        k->waits   = false;
        k->next_ms = w->now_ms + draw(w, 20);
        if (rank == w->late_rank && w->now_ms >= w->late_ms) {
            k->next_ms += w->late_by;
            w->late_by = 0;
        }
        if (chance(w, 1) && w->now_ms >= w->slow_from_ms) { /* one at a time */
            k->next_ms += draw(w, w->slow_ms + 1);
            w->slow_from_ms = k->next_ms + TIMEOUT_MS;
        }
    } else if (w->now_ms - k->waits_ms >= TIMEOUT_MS) {
        say_expired(w, rank);
    }
}

/* ---- the world */

static bool is_stopped(const world *w)
{
    return w->now_ms >= w->stops_ms && w->now_ms < w->wakes_ms;
}

static bool hear(world *w, uint32_t rank)
{
    node *k = &w->nodes[rank];
    mail  m;

    if (k->removed || !take(w, &k->up, &m)) return false;
    bt_relay_message(w->relay, rank, &m.up, ns(w->now_ms));
    bt_up_free(&m.up);
    return true;
}

static void wake(world *w)
{
    uint32_t first = draw(w, w->n), i = 0;

    w->wakes_ms = 0;
    while (i < w->n && !hear(w, (first + i) % w->n))
        i++;
    bt_relay_tick(w->relay, ns(w->now_ms));
}

static void move(world *w, uint32_t rank)
{
    node *k = &w->nodes[rank];

    if (w->now_ms < k->dies_ms && w->now_ms < k->hangs_ms && !k->removed) live(w, rank);
    if (is_stopped(w)) return;
    while (hear(w, rank)) /* what it said before it died too */
        ;
    if (w->now_ms < k->dies_ms || k->removed || k->up.n > 0) return;
    k->removed = true;
    bt_relay_lose(w->relay, rank, ns(w->now_ms));
}

static void launch(world *w, uint32_t n_prefill, uint32_t n_decode, uint32_t n_spares)
{
    bt_relay_rank   limits[MOST];
    bt_relay_events events = {.send = on_send, .stuck = on_stuck, .ctx = w};
    bt_relay_config cfg    = {.n_ranks       = w->n,
                              .n_prefill     = n_decode == 0 ? 0 : n_prefill,
                              .n_decode      = n_decode,
                              .n_spares      = n_spares,
                              .ranks         = limits,
                              .epoch         = EPOCH,
                              .verdict_ns    = VERDICT_MS * BT_NS_PER_MS,
                              .rank_quiet_ns = QUIET_MS * BT_NS_PER_MS,
                              .page_tokens   = 4,
                              .first_number  = 1,
                              .replace       = true};

    for (uint32_t i = 0; i < MOST; i++)
        limits[i] = (bt_relay_rank){.n_pages = 8, .max_rows = 16};
    w->epoch          = EPOCH;
    w->group_epoch[0] = w->group_epoch[1] = EPOCH - 1;
    for (uint32_t i = 0; i < MOST; i++)
        w->told[i] = EPOCH;
    w->n_seated = n_prefill + n_decode;
    NEED(bt_relay_create(&cfg, &events, &w->relay) == BT_OK);
    for (uint32_t i = 0; i < w->n; i++) {
        node *k = &w->nodes[i];

        k->hangs_ms = k->dies_ms = NEVER;
        k->epoch                 = EPOCH - 1;
        k->next_ms               = draw(w, 20);
        k->beat_ms               = draw(w, BEAT_MS);
        for (uint32_t t = 0; t < MOST; t++)
            k->lost_to[t] = NEVER;
        if (i < n_prefill + n_decode) {
            uint32_t first = i < n_prefill ? 0 : n_prefill;

            k->group   = i >= n_prefill;
            k->n_seats = i < n_prefill ? n_prefill : n_decode;
            for (uint32_t t = 0; t < k->n_seats; t++)
                k->seats[t] = first + t;
        }
        if (i < n_prefill + n_decode) w->seats[k->group][k->group ? i - n_prefill : i] = i;
        bt_relay_ready(w->relay, i, ns(0));
    }
}

/* After every fault the others go on. */
static void run(world *w, uint32_t until_ms)
{
    uint32_t first = draw(w, w->n);

    for (; w->now_ms < until_ms; w->now_ms += TICK_MS) {
        if (w->wakes_ms != 0 && w->now_ms >= w->wakes_ms) wake(w);
        for (uint32_t i = 0; i < w->n; i++)
            move(w, (first + i) % w->n);
        if (!is_stopped(w)) bt_relay_tick(w->relay, ns(w->now_ms));
    }
}

static void init(world *w, uint32_t seed)
{
    uint32_t n_decode, n_prefill, n_spares;

    memset(w, 0, sizeof(*w));
    w->seed     = seed;
    w->state    = seed * 2654435761u;
    w->salt     = draw(w, 1u << 30);
    w->n        = 1 + draw(w, MOST);
    w->cut_from = w->cut_to = MOST;
    w->experts              = 2 + draw(w, chance(w, 50) ? 10 : 99);
    n_spares                = draw(w, w->n < 4 ? w->n : 4);
    n_decode                = chance(w, 50) ? 0 : draw(w, w->n - n_spares);
    n_prefill               = w->n - n_spares - n_decode;
    launch(w, n_prefill, n_decode, n_spares);
}

static void fini(world *w)
{
    bt_relay_destroy(w->relay);
    for (uint32_t i = 0; i < w->n; i++) {
        empty(&w->nodes[i].up);
        empty(&w->nodes[i].down);
    }
}

static bool lives(const world *w, uint32_t rank)
{
    const node *k = &w->nodes[rank];

    return !k->removed && w->now_ms < k->dies_ms && w->now_ms < k->hangs_ms;
}

/* Someone of its group lives, who would wait for it. */
static bool is_missed(const world *w, uint32_t rank)
{
    const node *k = &w->nodes[rank];

    for (uint32_t i = 0; i < w->n; i++)
        if (lives(w, i) && w->nodes[i].n_seats > 0 && k->n_seats > 0 &&
            w->nodes[i].group == k->group)
            return true;
    return false;
}

/* Nobody hangs any more whom others wait for, all know of the last epoch, and they go on in it. */
static void expect_well(world *w)
{
    uint32_t before[MOST];

    w->slow_ms = 0;
    run(w, w->now_ms + 3 * TIMEOUT_MS);
    for (uint32_t i = 0; i < w->n; i++) {
        const node *k = &w->nodes[i];

        if (!k->removed && !lives(w, i)) EXPECT(!is_missed(w, i));
        if (!k->removed) EXPECT_EQ(w->told[i], w->epoch);
        if (lives(w, i) && k->n_seats > 0) EXPECT_EQ(k->epoch, w->group_epoch[k->group]);
        before[i] = k->entered;
    }
    run(w, w->now_ms + 2 * TIMEOUT_MS);
    for (uint32_t i = 0; i < w->n; i++)
        if (lives(w, i) && w->nodes[i].n_seats > 0) EXPECT(w->nodes[i].entered > before[i]);
}

static void fault(world *w, uint32_t at_ms)
{
    node *k = &w->nodes[draw(w, w->n)];

    k->faulty = true;
    if (chance(w, 70))
        k->hangs_ms = at_ms;
    else
        k->dies_ms = at_ms;
}

static uint32_t g_first = 1, g_n = 150;

/* A group of its own for each seed, to which `one` happens. */
static void for_each_seed(const char *what, void (*one)(world *w))
{
    static world w;

    for (uint32_t seed = g_first; seed < g_first + g_n; seed++) {
        int before = g_failures;

        init(&w, seed);
        one(&w);
        expect_well(&w);
        if (g_failures != before) fprintf(stderr, "%s: seed %u, %u ranks\n", what, w.seed, w.n);
        fini(&w);
    }
}

static void faults(world *w, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        fault(w, 100 + draw(w, 5000));
    run(w, 5000 + (n + 1) * (QUIET_MS + 2 * TIMEOUT_MS) + w->n_stops * 2 * TIMEOUT_MS);
    EXPECT(w->n_removed <= n);
}

static void one_hangs(world *w)
{
    uint32_t rank = draw(w, w->n_seated);
    node    *k    = &w->nodes[rank];

    k->hangs_ms = 200 + draw(w, 300);
    k->faulty   = true;
    run(w, 6000);
    EXPECT_EQ(w->n_removed, is_missed(w, rank));
    if (w->n_removed > 0) EXPECT(w->removed_ms[rank] <= k->hangs_ms + TIMEOUT_MS + 4 * VERDICT_MS);
}

/* Nothing else is amiss. */
static void waits_a_rank_that_hangs_is_removed_in_time(void) { for_each_seed("hang", one_hangs); }

/* Where most wait for the late one alone, and it for the one that hangs. */
static void one_hangs_and_one_is_late(world *w)
{
    uint32_t rank = draw(w, w->n_seated);
    node    *k    = &w->nodes[rank];

    w->experts   = 6 + draw(w, 8);
    k->hangs_ms  = 200 + draw(w, 300);
    k->faulty    = true;
    w->late_rank = draw(w, w->n_seated);
    w->late_ms   = k->hangs_ms - draw(w, 100);
    w->late_by   = TIMEOUT_MS / 2 + 200 + draw(w, TIMEOUT_MS / 2 - 300);
    run(w, 6000);
    EXPECT_EQ(w->n_removed, is_missed(w, rank));
    if (w->n_removed > 0)
        EXPECT(w->removed_ms[rank] <= k->hangs_ms + 2 * TIMEOUT_MS + 4 * VERDICT_MS);
}

/* Nor, beside it, one whose own wait begins long after the others'. */
static void waits_who_is_late_beside_one_that_hangs_is_not_to_blame(void)
{
    for_each_seed("late", one_hangs_and_one_is_late);
}

static void some_fail(world *w)
{
    w->slow_ms       = w->seed % 2 == 0 ? 400 : 0;
    w->late_percent  = draw(w, 20);
    w->twice_percent = draw(w, 30);
    w->reads_percent = 20;
    faults(w, draw(w, 4));
}

/* Several hang or die, reports are late and come twice, and some read for longer than others wait.
 */
static void waits_faults_take_nobody_else(void) { for_each_seed("faults", some_fail); }

static void the_coordinator_stops(world *w)
{
    w->n_stops       = 3;
    w->late_percent  = draw(w, 20);
    w->reads_percent = 20;
    faults(w, 1 + draw(w, 3));
}

/* Nor does a coordinator that stands still, for longer than ranks wait for each other too. */
static void waits_a_coordinator_that_stands_still_takes_nobody_else(void)
{
    for_each_seed("stops", the_coordinator_stops);
}

static void one_is_cut(world *w)
{
    w->cut_from                  = draw(w, w->n);
    w->cut_to                    = draw(w, w->n);
    w->nodes[w->cut_from].faulty = w->nodes[w->cut_to].faulty = true;
    w->cut_ms                                                 = 100 + draw(w, 1000);
    run(w, 9000);
    EXPECT(w->n_removed <= 1);
}

/* Of the two ends of a cut one is removed, whichever. */
static void waits_a_cut_takes_one_of_its_ends(void) { for_each_seed("cut", one_is_cut); }

static void some_are_slow(world *w)
{
    w->slow_ms = TIMEOUT_MS - 200;
    run(w, 9000);
    EXPECT_EQ(w->n_removed, 0);
}

/* Who is slow, for less than others wait, is not to blame. */
static void waits_nobody_is_removed_for_being_slow(void) { for_each_seed("slow", some_are_slow); }

static const bt_test tests[] = {
    BT_TEST(waits_a_rank_that_hangs_is_removed_in_time),
    BT_TEST(waits_who_is_late_beside_one_that_hangs_is_not_to_blame),
    BT_TEST(waits_faults_take_nobody_else),
    BT_TEST(waits_a_coordinator_that_stands_still_takes_nobody_else),
    BT_TEST(waits_a_cut_takes_one_of_its_ends),
    BT_TEST(waits_nobody_is_removed_for_being_slow),
};

int main(int argc, char **argv)
{
    bt_log_init("test", BT_LOG_ERROR);
    if (argc > 3) g_first = (uint32_t)atoi(argv[2]), g_n = (uint32_t)atoi(argv[3]);
    return BT_RUN_TESTS(tests, argc > 1 ? argv[1] : NULL);
}

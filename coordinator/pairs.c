#include "coordinator/pairs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/slow.h"
#include "core/alloc.h"
#include "core/log.h"

enum { QUIET_S = 3, RANKS_MAX = 128 }; /* larger cells' pairs are not compared */

#define BUSY 0.3 /* part of the time below which nobody is held up much */

struct bt_peer_state {
    bt_peer_load last;
    double       wait;                    /* part of the time that the rank waits for this peer */
    double       rate;                    /* bytes a second of handing over */
    double       busy;                    /* part of the time that it hands over to this peer */
    uint32_t     n_slow[BT_N_PAIR_KINDS]; /* seconds in a row */
    bt_pair_view view[BT_N_PAIR_KINDS];
};

const char *bt_pair_kind_name(bt_pair_kind kind)
{
    return kind == BT_PAIR_HANDOFF ? "handoff" : "exchange";
}

/* ---- what ranks say */

static void add(bt_peer_state *p, const bt_peer_load *now, double s)
{
    double ns   = (double)(now->handoff_ns - p->last.handoff_ns);
    double rate = (double)(now->handoff_bytes - p->last.handoff_bytes) / (ns * 1e-9);

    bt_smooth_report(&p->wait, (double)(now->waited_ns - p->last.waited_ns) * 1e-9 / s, s);
    bt_smooth_report(&p->busy, fmin(ns * 1e-9 / s, 1), s); /* what ends now may have begun before */
    if (ns > 0 && p->rate == 0)
        p->rate = rate;
    else if (ns > 0)
        bt_smooth_report(&p->rate, rate, s);
}

void bt_pairs_hear(bt_cell *cell, uint32_t rank, uint64_t at_ns, uint32_t n,
                   const bt_peer_load *peers)
{
    bt_cell_rank *k = &cell->ranks[rank];
    double        s = (double)(at_ns - k->peers_at_ns) * 1e-9;

    if (cell->n_ranks > RANKS_MAX || at_ns <= k->peers_at_ns) return;
    if (k->peers == NULL) k->peers = bt_calloc(cell->n_ranks, sizeof(*k->peers));
    if (k->peers == NULL) return;
    for (uint32_t i = 0; i < n; i++) {
        bt_peer_state *p;

        if (peers[i].rank >= cell->n_ranks) continue;
        p = &k->peers[peers[i].rank];
        /* The first report is about all the time since the rank's start. */
        if (k->peers_at_ns != 0 && peers[i].waited_ns >= p->last.waited_ns &&
            peers[i].handoff_ns >= p->last.handoff_ns &&
            peers[i].handoff_bytes >= p->last.handoff_bytes)
            add(p, &peers[i], s);
        p->last = peers[i];
    }
    k->peers_at_ns   = at_ns;
    k->peers_quiet_s = 0;
}

/* A rank without steps says nothing. */
static void fade(bt_cell *cell)
{
    for (uint32_t a = 0; a < cell->n_ranks; a++) {
        bt_cell_rank *k = &cell->ranks[a];

        if (k->peers == NULL || ++k->peers_quiet_s < QUIET_S) continue;
        for (uint32_t b = 0; b < cell->n_ranks; b++) {
            bt_smooth(&k->peers[b].wait, 0, 1);
            bt_smooth(&k->peers[b].busy, 0, 1);
        }
    }
}

/* ---- comparing */

static bt_peer_state *peer(const bt_cell *cell, uint32_t a, uint32_t b)
{
    return cell->ranks[a].peers == NULL ? NULL : &cell->ranks[a].peers[b];
}

/* What a pair has, more being slower; false: nothing to compare. */
static bool cost_of(const bt_cell *cell, bt_pair_kind kind, uint32_t a, uint32_t b,
                    double *cost_out)
{
    const bt_peer_state *ab = peer(cell, a, b), *ba = peer(cell, b, a);

    if (ab == NULL || (kind == BT_PAIR_EXCHANGE && ba == NULL)) return false;
    if (kind == BT_PAIR_EXCHANGE) {
        *cost_out = fmin(ab->wait, ba->wait);
        return true;
    }
    if (!(ab->rate > 0)) return false;
    *cost_out = 1 / ab->rate;
    return true;
}

static bool is_busy(const bt_cell *cell, bt_pair_kind kind, uint32_t a, uint32_t b, double cost)
{
    return (kind == BT_PAIR_EXCHANGE ? cost : peer(cell, a, b)->busy) >= BUSY;
}

typedef struct {
    uint32_t a, b;
    double   cost;
} pair;

static int by_cost(const void *a, const void *b)
{
    double x = ((const pair *)a)->cost, y = ((const pair *)b)->cost;

    return (x > y) - (x < y);
}

static void note(bt_cell *cell, const bt_pair_view *v, bool slow)
{
    bt_peer_state *p   = peer(cell, v->from, v->to);
    uint32_t      *n   = &p->n_slow[v->kind];
    bool           was = *n >= BT_SLOW_SECONDS;
    char           a[192], b[192];

    *n = slow ? *n + 1 : 0;
    if (slow) p->view[v->kind] = *v;
    if (slow == was || (slow && *n < BT_SLOW_SECONDS)) return;
    bt_cell_rank_text(cell, v->from, a, sizeof(a));
    bt_cell_rank_text(cell, v->to, b, sizeof(b));
    if (!slow)
        BT_INFO("the link between %s and %s keeps pace again (%s)", a, b,
                bt_pair_kind_name(v->kind));
    else if (v->kind == BT_PAIR_HANDOFF)
        BT_WARN("the link between %s and %s is slow: pages move at %.3g MB/s, between "
                "others at %.3g",
                a, b, v->value * 1e-6, v->typical * 1e-6);
    else
        BT_WARN("the link between %s and %s is slow: they wait for each other's part of exchanges "
                "%.0f %% of the time, others %.0f %%",
                a, b, 100 * v->value, 100 * v->typical);
}

/* pairs[n] ascending by cost: each is held against the others' median, the lower one of two.  That
 * those up to there are held against more does not matter: they are not slow. */
static void judge(bt_cell *cell, bt_pair_kind kind, const pair *pairs, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        double cost   = pairs[i].cost;
        double others = n < 2 ? cost : pairs[(n - 2) / 2].cost;
        bool   own =
            cell->ranks[pairs[i].a].rates.n_slow > 0 || cell->ranks[pairs[i].b].rates.n_slow > 0;
        bt_pair_view v = {.kind = kind, .from = pairs[i].a, .to = pairs[i].b};

        if (kind == BT_PAIR_EXCHANGE) others = fmax(others, 0.01);
        v.slowness = cost / others;
        v.value    = kind == BT_PAIR_EXCHANGE ? cost : 1 / cost;
        v.typical  = kind == BT_PAIR_EXCHANGE ? others : 1 / others;
        note(cell, &v,
             !own && bt_slowness_is_much(v.slowness) &&
                 is_busy(cell, kind, pairs[i].a, pairs[i].b, cost));
    }
}

/* Ranks of one machine have no link between them. */
static bool are_apart(const bt_cell *cell, uint32_t a, uint32_t b)
{
    const char *x = cell->ranks[a].hello.host, *y = cell->ranks[b].hello.host;

    return x != NULL && y != NULL && strcmp(x, y) != 0;
}

/* The pairs of that kind; in a group each one once. */
static uint32_t collect(const bt_cell *cell, bt_pair_kind kind, uint32_t group, pair *out)
{
    uint32_t n = 0;

    for (uint32_t a = 0; a < cell->n_ranks; a++)
        for (uint32_t b = kind == BT_PAIR_EXCHANGE ? a + 1 : 0; b < cell->n_ranks; b++) {
            uint32_t want = kind == BT_PAIR_EXCHANGE ? group : 1;

            if (bt_cell_group(cell, a) != group || bt_cell_group(cell, b) != want ||
                !are_apart(cell, a, b) || !cost_of(cell, kind, a, b, &out[n].cost))
                continue;
            out[n].a = a;
            out[n].b = b;
            n++;
        }
    return n;
}

void bt_pairs_compare(bt_cell *cell)
{
    size_t n_max = (size_t)cell->n_ranks * cell->n_ranks;
    pair  *pairs;

    if (cell->n_ranks > RANKS_MAX) return;
    pairs = bt_calloc(n_max, sizeof(*pairs));
    if (pairs == NULL) return;
    fade(cell);
    for (int i = 0; i < 3; i++) { /* from group 0 to 1, in group 0, in group 1 */
        bt_pair_kind kind = i == 0 ? BT_PAIR_HANDOFF : BT_PAIR_EXCHANGE;
        uint32_t     n    = collect(cell, kind, i == 2, pairs);

        qsort(pairs, n, sizeof(*pairs), by_cost);
        judge(cell, kind, pairs, n);
    }
    bt_free(pairs);
}

uint32_t bt_pairs_view(const bt_cell *cell, bt_pair_view *out, uint32_t n_max)
{
    uint32_t n = 0;

    for (uint32_t a = 0; a < cell->n_ranks; a++) {
        if (cell->ranks[a].peers == NULL || cell->ranks[a].lost) continue;
        for (uint32_t b = 0; b < cell->n_ranks; b++)
            for (int kind = 0; kind < BT_N_PAIR_KINDS && n < n_max; kind++)
                if (!cell->ranks[b].lost && peer(cell, a, b)->n_slow[kind] >= BT_SLOW_SECONDS)
                    out[n++] = peer(cell, a, b)->view[kind];
    }
    return n;
}

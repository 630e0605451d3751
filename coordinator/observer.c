#include "coordinator/observer.h"

#include <stdio.h>
#include <string.h>

#include "coordinator/pairs.h"
#include "coordinator/slow.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "core/rank_map.h"

enum { PUBLISH_MS = 250 };

#define SMOOTH_BLOCKED 0.1 /* weight of the newest look at the queues */

struct bt_observer {
    bt_observer_config config;
    bt_metrics         metrics;
    bt_board          *board; /* owned */
    char               address[BT_ADDRESS_BYTES];
    bt_second          history[BT_HISTORY_S];
    uint32_t           n_history, history_at;
    uint64_t           started_ns, second_ns, published_ns;
    double             started_unix_s;
    uint64_t           last_generated, last_prompt;
    double             blocked[2]; /* prefill, decode: part of the last second or so */
    bt_phase           phase;
    bool               tls_refused;
};

bt_status bt_observer_create(const bt_observer_config *config, bt_observer **observer_out)
{
    bt_status    st = BT_OK;
    bt_observer *o  = bt_calloc(1, sizeof(*o));

    BT_REQUIRE(o != NULL, BT_ERR_NO_MEMORY, "observer");
    o->config     = *config;
    o->started_ns = o->second_ns = bt_now_ns();
    o->started_unix_s            = bt_unix_s();
    BT_TRY(bt_board_create(&o->board));
    *observer_out = o;
    o             = NULL; /* handed over */
out:
    bt_observer_destroy(o);
    return st;
}

void bt_observer_destroy(bt_observer *observer)
{
    if (observer == NULL) return;
    bt_board_destroy(observer->board);
    bt_free(observer);
}

bt_metrics *bt_observer_metrics(bt_observer *observer) { return &observer->metrics; }
bt_board   *bt_observer_board(bt_observer *observer) { return observer->board; }

void bt_observer_set_address(bt_observer *observer, const char *public_address)
{
    snprintf(observer->address, sizeof(observer->address), "%s", public_address);
}

void bt_observer_set_tls_refused(bt_observer *observer, bool refused)
{
    observer->tls_refused = refused;
}

/* ---- rates */

static double delta(uint64_t newest, uint64_t before)
{
    return newest >= before ? (double)(newest - before) : 0;
}

static double sum_of(const uint64_t buckets[BT_BEAT_TIME_BUCKETS])
{
    double n = 0;

    for (int i = 0; i < BT_BEAT_TIME_BUCKETS; i++)
        n += (double)buckets[i];
    return n;
}

static void add_rates(bt_rank_rates *r, const bt_up_beat *b, double s)
{
    double steps = delta(b->steps, r->beat.steps);
    double rows  = delta(b->prompt_rows, r->beat.prompt_rows) +
                  delta(b->generated_rows, r->beat.generated_rows);
    double n_handoffs;

    bt_smooth(&r->busy, delta(b->model_ns, r->beat.model_ns) * 1e-9 / s, s);
    bt_smooth(&r->gather, delta(b->gather_ns, r->beat.gather_ns) * 1e-9 / s, s);
    bt_smooth_report(
        &r->own,
        (delta(b->gather_ns, r->beat.gather_ns) + delta(b->model_ns, r->beat.model_ns) +
         delta(b->sample_ns, r->beat.sample_ns) - delta(b->waited_ns, r->beat.waited_ns)) *
            1e-9 / s,
        s);
    bt_smooth(&r->sample, delta(b->sample_ns, r->beat.sample_ns) * 1e-9 / s, s);
    bt_smooth(&r->prompt_rate, delta(b->prompt_rows, r->beat.prompt_rows) / s, s);
    bt_smooth(&r->generated_rate, delta(b->generated_rows, r->beat.generated_rows) / s, s);
    bt_smooth(&r->handoff_rate, delta(b->handoff_bytes, r->beat.handoff_bytes) / s, s);
    if (steps > 0) { /* of the last steps that were */
        r->step_s        = delta(b->model_ns, r->stepped_ns) * 1e-9 / steps;
        r->rows_per_step = rows / steps;
    }
    n_handoffs = sum_of(b->handoff_times) - sum_of(r->beat.handoff_times);
    if (n_handoffs > 0) r->handoff_s = delta(b->handoff_ns, r->beat.handoff_ns) * 1e-9 / n_handoffs;
}

/* A rank beats between its steps, and between the layers of one; while a layer takes longer, no
 * beat comes.  A beat is about the time since the last one, by the clock of the rank, which may be
 * shorter or much longer than one of our seconds. */
static void rank_second(bt_rank_rates *r, const bt_up_beat *b)
{
    uint64_t before_ns = r->beat.at_ns;

    if (b->at_ns == before_ns) { /* in a long layer, or gone; or silent with nothing to do */
        if (b->n_requests == 0) add_rates(r, b, 1);
        return;
    }
    /* The first one is about the time since the rank's start. */
    if (before_ns != 0 && b->at_ns > before_ns)
        add_rates(r, b, (double)(b->at_ns - before_ns) * 1e-9);
    if (before_ns == 0 || b->steps != r->beat.steps) r->stepped_ns = b->model_ns;
    r->beat = *b;
}

/* Logs once that a rank holds its group up, and again when it keeps pace. */
static void note_slow(bt_cell *cell, uint32_t rank, double slowness)
{
    bt_rank_rates *r    = &cell->ranks[rank].rates;
    bool           much = bt_slowness_is_much(slowness), was = r->n_slow >= BT_SLOW_SECONDS;
    char           who[192];

    r->n_slow   = much ? r->n_slow + 1 : 0;
    r->slowness = slowness;
    if (much == was || (much && r->n_slow < BT_SLOW_SECONDS)) return;
    bt_cell_rank_text(cell, rank, who, sizeof(who));
    if (much)
        BT_WARN("%s is slow: it computes %.1f times as long as the others of its group, which wait "
                "for it",
                who, slowness);
    else
        BT_INFO("%s keeps pace again", who);
}

static void find_slow(bt_cell *cell)
{
    double   sorted[BT_RANKS_MAX];
    uint32_t ranks[BT_RANKS_MAX];

    for (uint32_t group = 0; group < 2; group++) {
        uint32_t n = 0;

        for (uint32_t i = 0; i < cell->n_ranks && n < BT_RANKS_MAX; i++) {
            if (bt_cell_group(cell, i) != group) continue;
            ranks[n]    = i;
            sorted[n++] = cell->ranks[i].rates.own;
        }
        bt_slowness_sort(sorted, n);
        for (uint32_t k = 0; k < n; k++)
            note_slow(cell, ranks[k], bt_slowness(sorted, n, cell->ranks[ranks[k]].rates.own));
    }
}

static void cell_second(bt_cell *cell, bt_second *sum, uint32_t n[2])
{
    for (uint32_t i = 0; i < cell->n_ranks; i++) {
        bt_rank_rates *r     = &cell->ranks[i].rates;
        uint32_t       group = bt_cell_group(cell, i);

        rank_second(r, &cell->ranks[i].beat);
        if (group == 0) {
            sum->busy_prefill += (float)r->busy;
            n[0]++;
        }
        if (group == 1 || (group == 0 && bt_cell_facts(cell)->n_decode == 0)) {
            sum->busy_decode += (float)r->busy;
            n[1]++;
        }
        sum->handoff_bytes += (float)r->handoff_rate;
    }
    find_slow(cell);
    bt_pairs_compare(cell);
}

static void ranks_second(bt_fleet *fleet, bt_second *out)
{
    uint32_t n[2] = {0};

    for (uint32_t i = 0; i < bt_fleet_n_cells(fleet); i++)
        cell_second(bt_fleet_cell_at(fleet, i), out, n);
    if (n[0] > 0) out->busy_prefill /= (float)n[0];
    if (n[1] > 0) out->busy_decode /= (float)n[1];
}

/* Ends the second: adds an entry to the history and starts new windows. */
static void end_second(bt_observer *o, bt_fleet *fleet, const bt_relay_loads *loads,
                       uint64_t now_ns)
{
    bt_metrics *m = &o->metrics;
    double      s = (double)(now_ns - o->second_ns) * 1e-9;
    uint32_t    at;
    bt_second   e = {.generated  = (float)(delta(m->generated_tokens, o->last_generated) / s),
                     .prompt     = (float)(delta(m->prompt_tokens, o->last_prompt) / s),
                     .running    = (float)loads->n_running,
                     .waiting    = (float)loads->n_waiting,
                     .ttft_p50_s = (float)bt_window_percentile(&m->ttft_window, 0.5),
                     .itl_p50_s  = (float)bt_window_percentile(&m->itl_window, 0.5),
                     .itl_p99_s  = (float)bt_window_percentile(&m->itl_window, 0.99),
                     .kv_used    = loads->total_tokens == 0
                                       ? 0
                                       : (float)loads->used_tokens / (float)loads->total_tokens};

    ranks_second(fleet, &e);
    at             = (o->history_at + o->n_history) % BT_HISTORY_S;
    o->history[at] = e;
    if (o->n_history < BT_HISTORY_S)
        o->n_history++;
    else
        o->history_at = (o->history_at + 1) % BT_HISTORY_S;
    o->last_generated = m->generated_tokens;
    o->last_prompt    = m->prompt_tokens;
    o->second_ns      = now_ns;
    memset(&m->ttft_window, 0, sizeof(m->ttft_window));
    memset(&m->itl_window, 0, sizeof(m->itl_window));
}

/* ---- snapshots */

static void show_rank(const bt_cell *cell, const bt_relay *relay, uint32_t i, double top,
                      bt_rank_view *v)
{
    const bt_cell_rank  *k = &cell->ranks[i];
    const bt_rank_rates *r = &k->rates;

    *v = (bt_rank_view){.rank         = i,
                        .pid          = k->hello.pid,
                        .n_pages      = k->hello.n_pages,
                        .weight_bytes = k->hello.weight_bytes,
                        .done_bytes   = k->done_bytes,
                        .total_bytes  = k->total_bytes,
                        .attached     = k->attached,
                        .ready        = k->ready,
                        .lost         = k->lost,
                        .beat         = k->beat,
                        .group        = k->group,
                        .rates        = *r,
                        .prompt_share = top > 0 ? r->prompt_rate / top : 0};
    if (r->n_slow < BT_SLOW_SECONDS) v->rates.slowness = 0;
    snprintf(v->cell, sizeof(v->cell), "%s", cell->name);
    if (k->hello.host != NULL) snprintf(v->host, sizeof(v->host), "%s", k->hello.host);
    if (k->hello.version != NULL) snprintf(v->version, sizeof(v->version), "%s", k->hello.version);
    if (relay != NULL) bt_relay_view_rank(relay, i, &v->relay);
}

static void show_cell(const bt_fleet *fleet, uint32_t i, bt_cell_view *v)
{
    const bt_cell     *cell = bt_fleet_cell_at(fleet, i);
    const bt_up_hello *h    = bt_cell_facts(cell);

    *v = (bt_cell_view){.state     = bt_fleet_state(fleet, i),
                        .n_ranks   = cell->n_ranks,
                        .n_prefill = h->n_prefill,
                        .n_decode  = h->n_decode};
    snprintf(v->name, sizeof(v->name), "%s", cell->name);
    snprintf(v->left_out, sizeof(v->left_out), "%s", h->left_out);
}

static double top_rate(const bt_cell *cell)
{
    double top = 0;

    for (uint32_t i = 0; i < cell->n_ranks; i++)
        if (cell->ranks[i].rates.prompt_rate > top) top = cell->ranks[i].rates.prompt_rate;
    return top;
}

static void show_pairs(const bt_cell *cell, bt_snapshot *s)
{
    bt_pair_view pairs[BT_VIEW_PAIRS];
    uint32_t     n = bt_pairs_view(cell, pairs, BT_VIEW_PAIRS - s->n_slow_links);

    for (uint32_t i = 0; i < n; i++) {
        bt_link_view *v = &s->slow_links[s->n_slow_links++];

        v->pair = pairs[i];
        snprintf(v->cell, sizeof(v->cell), "%s", cell->name);
    }
}

static void show_avoided(const char *cell, const bt_relay *relay, uint64_t now_ns, bt_snapshot *s)
{
    bt_avoided_view pairs[BT_VIEW_PAIRS];
    uint32_t n = bt_relay_view_avoided(relay, now_ns, pairs, BT_VIEW_PAIRS - s->n_avoided_links);

    for (uint32_t i = 0; i < n; i++) {
        bt_avoided_link_view *v = &s->avoided_links[s->n_avoided_links++];

        v->pair = pairs[i];
        snprintf(v->cell, sizeof(v->cell), "%s", cell);
    }
}

/* Those that prefill, of all cells, then the others. */
static void show_ranks(const bt_fleet *fleet, bt_snapshot *s)
{
    uint32_t at = 0;

    for (int pass = 0; pass < 2; pass++)
        for (uint32_t i = 0; i < bt_fleet_n_cells(fleet); i++) {
            const bt_cell  *cell  = bt_fleet_cell_at(fleet, i);
            const bt_relay *relay = bt_fleet_relay(fleet, i);
            double          top   = top_rate(cell);

            for (uint32_t k = 0; k < cell->n_ranks; k++)
                if ((cell->ranks[k].group == 0) == (pass == 0))
                    show_rank(cell, relay, k, top, &s->ranks[at++]);
        }
}

static void show_cells(bt_fleet *fleet, uint64_t now_ns, bt_snapshot *s)
{
    s->n_cells = s->n_prefill = s->n_decode = s->page_tokens = s->n_requests = 0;
    s->n_slow_links = s->n_avoided_links = 0;
    for (uint32_t i = 0; i < bt_fleet_n_cells(fleet); i++) {
        const bt_up_hello *h     = bt_cell_facts(bt_fleet_cell_at(fleet, i));
        const bt_relay    *relay = bt_fleet_relay(fleet, i);

        s->n_prefill += h->n_prefill;
        s->n_decode += h->n_decode;
        s->page_tokens = h->page_tokens;
        show_pairs(bt_fleet_cell_at(fleet, i), s);
        if (i < BT_VIEW_CELLS) show_cell(fleet, s->n_cells++, &s->cells[i]);
        if (relay == NULL) continue;
        show_avoided(bt_fleet_cell_at(fleet, i)->name, relay, now_ns, s);
        s->n_requests += bt_relay_view_requests(relay, now_ns, &s->requests[s->n_requests],
                                                BT_VIEW_REQUESTS - s->n_requests);
    }
    s->n_requests += bt_fleet_view_lobby(fleet, now_ns, &s->requests[s->n_requests],
                                         BT_VIEW_REQUESTS - s->n_requests);
    s->queued_tokens = bt_fleet_queued_tokens(fleet);
    bt_fleet_count(fleet, &s->counts);
    show_ranks(fleet, s);
}

static void publish(bt_observer *o, bt_fleet *fleet, uint32_t n_ranks, const bt_relay_loads *loads,
                    uint64_t now_ns)
{
    bt_snapshot *s = bt_board_begin(o->board, n_ranks);

    if (s == NULL) return; /* the last one stays, and grows old */
    s->phase          = o->phase;
    s->tls_refused    = o->tls_refused;
    s->at_ns          = now_ns;
    s->started_ns     = o->started_ns;
    s->unix_s         = bt_unix_s();
    s->started_unix_s = o->started_unix_s;
    s->model          = o->config.model;
    s->served_name    = o->config.served_name;
    s->metrics        = o->metrics;
    s->loads          = *loads;
    s->n_ranks        = n_ranks;
    memcpy(s->public_address, o->address, sizeof(s->public_address));
    memcpy(s->history, o->history, sizeof(s->history));
    s->n_history  = o->n_history;
    s->history_at = o->history_at;

    s->blocked_prefill = o->blocked[0];
    s->blocked_decode  = o->blocked[1];
    show_cells(fleet, now_ns, s);
    bt_board_publish(o->board);
}

static void look_at_queues(bt_observer *o, const bt_fleet *fleet)
{
    double n[3] = {0}, all = 0;

    for (uint32_t i = 0; i < bt_fleet_n_cells(fleet); i++) {
        const bt_relay *relay = bt_fleet_relay(fleet, i);

        if (relay == NULL) continue;
        n[bt_relay_blocked(relay)]++;
        all++;
    }
    for (int k = 0; k < 2; k++)
        o->blocked[k] += SMOOTH_BLOCKED *
                         ((all > 0 ? n[k == 0 ? BT_BLOCKED_PREFILL : BT_BLOCKED_DECODE] / all : 0) -
                          o->blocked[k]);
}

void bt_observer_tick(bt_observer *observer, bt_phase phase, bt_fleet *fleet, uint64_t now_ns)
{
    bt_relay_loads loads;
    uint32_t       n_ranks = 0;

    if (observer->phase == phase && now_ns - observer->published_ns < PUBLISH_MS * BT_NS_PER_MS)
        return;
    for (uint32_t i = 0; i < bt_fleet_n_cells(fleet); i++)
        n_ranks += bt_fleet_cell_at(fleet, i)->n_ranks;
    observer->phase        = phase;
    observer->published_ns = now_ns;
    bt_fleet_get_loads(fleet, &loads);
    look_at_queues(observer, fleet);
    if (now_ns - observer->second_ns >= BT_NS_PER_S) end_second(observer, fleet, &loads, now_ns);
    publish(observer, fleet, n_ranks, &loads, now_ns);
}

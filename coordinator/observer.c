#include "coordinator/observer.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "core/alloc.h"
#include "core/clock.h"

enum { PUBLISH_MS = 100 };

#define SMOOTH 0.3 /* weight of the newest second */

/* What a rank had done a second ago, and how fast it goes. */
typedef struct {
    bt_up_beat beat;
    double     busy, gather, sample, step_s, rows_per_step, prompt_rate, generated_rate;
    double     handoff_rate;
} rank_rates;

struct bt_observer {
    bt_observer_config config;
    bt_metrics         metrics;
    bt_board          *board; /* owned */
    char               address[128];
    rank_rates        *rates; /* owned [n_rates] */
    uint32_t           n_rates;
    bt_second          history[BT_HISTORY_S];
    uint32_t           n_history, history_at;
    uint64_t           started_ns, second_ns, published_ns;
    uint64_t           last_generated, last_prompt;
    bt_phase           phase;
};

bt_status bt_observer_create(const bt_observer_config *config, bt_observer **observer_out)
{
    bt_status    st = BT_OK;
    bt_observer *o  = bt_calloc(1, sizeof(*o));

    BT_REQUIRE(o != NULL, BT_ERR_NO_MEMORY, "observer");
    o->config     = *config;
    o->started_ns = o->second_ns = bt_now_ns();
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
    bt_free(observer->rates);
    bt_free(observer);
}

bt_metrics *bt_observer_metrics(bt_observer *observer) { return &observer->metrics; }
bt_board   *bt_observer_board(bt_observer *observer) { return observer->board; }

void bt_observer_set_address(bt_observer *observer, const char *public_address)
{
    snprintf(observer->address, sizeof(observer->address), "%s", public_address);
}

/* ---- rates */

static void smooth(double *value, double newest) { *value += SMOOTH * (newest - *value); }

static double delta(uint64_t newest, uint64_t before)
{
    return newest >= before ? (double)(newest - before) : 0;
}

static void rank_second(rank_rates *r, const bt_up_beat *b, double s)
{
    double steps = delta(b->steps, r->beat.steps);
    double rows  = delta(b->prompt_rows, r->beat.prompt_rows) +
                  delta(b->generated_rows, r->beat.generated_rows);

    smooth(&r->busy, delta(b->model_ns, r->beat.model_ns) * 1e-9 / s);
    smooth(&r->gather, delta(b->gather_ns, r->beat.gather_ns) * 1e-9 / s);
    smooth(&r->sample, delta(b->sample_ns, r->beat.sample_ns) * 1e-9 / s);
    smooth(&r->prompt_rate, delta(b->prompt_rows, r->beat.prompt_rows) / s);
    smooth(&r->generated_rate, delta(b->generated_rows, r->beat.generated_rows) / s);
    smooth(&r->handoff_rate, delta(b->handoff_bytes, r->beat.handoff_bytes) / s);
    if (steps > 0) { /* of the last steps that were */
        r->step_s        = delta(b->model_ns, r->beat.model_ns) * 1e-9 / steps;
        r->rows_per_step = rows / steps;
    }
    r->beat = *b;
}

static bool decodes(const bt_cell *cell, uint32_t rank)
{
    return bt_cell_facts(cell)->n_decode == 0 || rank >= bt_cell_facts(cell)->n_prefill;
}

static bool prefills(const bt_cell *cell, uint32_t rank)
{
    return bt_cell_facts(cell)->n_decode == 0 || rank < bt_cell_facts(cell)->n_prefill;
}

static void ranks_second(bt_observer *o, const bt_cell *cell, double s, bt_second *out)
{
    uint32_t n[2] = {0};

    for (uint32_t i = 0; i < o->n_rates; i++) {
        rank_rates *r = &o->rates[i];

        rank_second(r, &cell->ranks[i].beat, s);
        if (prefills(cell, i)) {
            out->busy_prefill += (float)r->busy;
            n[0]++;
        }
        if (decodes(cell, i)) {
            out->busy_decode += (float)r->busy;
            n[1]++;
        }
        out->handoff_bytes += (float)r->handoff_rate;
    }
    if (n[0] > 0) out->busy_prefill /= (float)n[0];
    if (n[1] > 0) out->busy_decode /= (float)n[1];
}

/* Ends the second: one entry of the history, and the windows begin anew. */
static void end_second(bt_observer *o, const bt_cell *cell, const bt_relay_loads *loads,
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

    ranks_second(o, cell, s, &e);
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
    memset(&m->e2e_window, 0, sizeof(m->e2e_window));
}

/* ---- snapshots */

static void show_rank(const bt_observer *o, const bt_cell *cell, const bt_relay *relay, uint32_t i,
                      bt_rank_view *v)
{
    const bt_cell_rank *k = &cell->ranks[i];
    const rank_rates   *r = &o->rates[i];

    *v = (bt_rank_view){.pid            = k->hello.pid,
                        .n_pages        = k->hello.n_pages,
                        .weight_bytes   = k->hello.weight_bytes,
                        .page_bytes     = k->hello.page_bytes,
                        .done_bytes     = k->done_bytes,
                        .total_bytes    = k->total_bytes,
                        .attached       = k->attached,
                        .ready          = k->ready,
                        .lost           = k->lost,
                        .beat           = k->beat,
                        .busy           = r->busy,
                        .gather         = r->gather,
                        .sample         = r->sample,
                        .step_s         = r->step_s,
                        .rows_per_step  = r->rows_per_step,
                        .prompt_rate    = r->prompt_rate,
                        .generated_rate = r->generated_rate,
                        .handoff_rate   = r->handoff_rate};
    if (k->hello.host != NULL) snprintf(v->host, sizeof(v->host), "%s", k->hello.host);
    if (relay != NULL) bt_relay_view_rank(relay, i, &v->relay);
}

static void publish(bt_observer *o, const bt_cell *cell, const bt_relay *relay,
                    const bt_relay_loads *loads, uint64_t now_ns)
{
    bt_snapshot    *s = bt_board_begin(o->board, cell->n_ranks);
    struct timespec t;

    if (s == NULL) return; /* the last one stays, and grows old */
    clock_gettime(CLOCK_REALTIME, &t);
    s->phase       = o->phase;
    s->at_ns       = now_ns;
    s->started_ns  = o->started_ns;
    s->unix_s      = (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
    s->model       = o->config.model;
    s->served_name = o->config.served_name;
    s->version     = o->config.version;
    s->metrics     = o->metrics;
    s->loads       = *loads;
    s->n_ranks     = cell->n_ranks;
    s->n_prefill = s->n_decode = s->page_tokens = s->n_requests = 0;
    s->queued_tokens                                            = 0;
    if (cell->n_ranks != 0) {
        s->n_prefill   = bt_cell_facts(cell)->n_prefill;
        s->n_decode    = bt_cell_facts(cell)->n_decode;
        s->page_tokens = bt_cell_facts(cell)->page_tokens;
    }
    memcpy(s->public_address, o->address, sizeof(s->public_address));
    memcpy(s->history, o->history, sizeof(s->history));
    s->n_history  = o->n_history;
    s->history_at = o->history_at;
    for (uint32_t i = 0; i < cell->n_ranks; i++)
        show_rank(o, cell, relay, i, &s->ranks[i]);
    if (relay != NULL) {
        s->n_requests    = bt_relay_view_requests(relay, now_ns, s->requests, BT_VIEW_REQUESTS);
        s->queued_tokens = bt_relay_queued_tokens(relay);
    }
    bt_board_publish(o->board);
}

void bt_observer_tick(bt_observer *observer, bt_phase phase, const bt_cell *cell,
                      const bt_relay *relay, uint64_t now_ns)
{
    bt_relay_loads loads = {0};

    if (observer->phase == phase && now_ns - observer->published_ns < PUBLISH_MS * BT_NS_PER_MS)
        return;
    if (observer->n_rates < cell->n_ranks) { /* once: a cell does not grow */
        observer->rates = bt_calloc(cell->n_ranks, sizeof(*observer->rates));
        if (observer->rates == NULL) return;
        observer->n_rates = cell->n_ranks;
    }
    observer->phase        = phase;
    observer->published_ns = now_ns;
    if (relay != NULL) bt_relay_get_loads(relay, &loads);
    if (now_ns - observer->second_ns >= BT_NS_PER_S) end_second(observer, cell, &loads, now_ns);
    publish(observer, cell, relay, &loads, now_ns);
}

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "coordinator/exposition.h"
#include "core/clock.h"
#include "proto/hello.h"

const char *bt_phase_name(bt_phase phase)
{
    static const char *const names[] = {"starting", "loading",  "serving",
                                        "waiting",  "draining", "closing"};

    return names[phase];
}

static void put(json_t *o, const char *key, json_t *value) { json_object_set_new(o, key, value); }
static void put_int(json_t *o, const char *key, uint64_t value)
{
    put(o, key, json_integer((json_int_t)value));
}
static void put_real(json_t *o, const char *key, double value)
{
    put(o, key, json_real(value)); /* NULL for what is no number: the key stays away */
}

/* A lost rank has nothing any more; what it has counted stays. */
static void clear_lost(bt_rank_view *r)
{
    r->n_pages      = 0;
    r->weight_bytes = r->done_bytes = r->total_bytes = 0;
    r->rates                                         = (bt_rank_rates){0};
    r->relay                                         = (bt_relay_rank_view){0};
    r->beat                                          = (bt_up_beat){.steps         = r->beat.steps,
                                                                    .handoff_bytes = r->beat.handoff_bytes,
                                                                    .handoff_pages = r->beat.handoff_pages};
}

static json_t *rank_json(const bt_snapshot *s, uint32_t i)
{
    bt_rank_view      view = s->ranks[i], *r = &view;
    const bt_up_beat *b = &r->beat;
    json_t           *o = json_object();

    if (r->lost) clear_lost(r);

    put_int(o, "rank", r->rank);
    put(o, "cell", json_string(r->cell));
    put(o, "role", json_string(bt_role_of(s, i)));
    put(o, "state",
        json_string(r->lost       ? "lost"
                    : r->ready    ? "ready"
                    : r->attached ? "loading"
                                  : "missing"));
    put(o, "host", json_string(r->host));
    put_int(o, "pid", r->pid);
    put(o, "version", json_string(r->version));
    put_int(o, "done_bytes", r->done_bytes);
    put_int(o, "total_bytes", r->total_bytes);
    put_int(o, "weight_bytes", r->weight_bytes);
    put_int(o, "requests", b->n_requests);
    put_int(o, "pages_total", r->n_pages);
    put_int(o, "pages_free", b->pages_total == 0 ? r->n_pages : b->pages_free);
    put_int(o, "pages_cached", b->pages_cached);
    put_int(o, "slots_quarantined", b->slots_quarantined);
    put_int(o, "pages_reserved", r->relay.taken_pages);
    put_int(o, "prefill_tokens", r->relay.prefill_tokens);
    put_int(o, "steps", b->steps);
    put_real(o, "busy", r->rates.busy);
    put_real(o, "slowness", r->rates.slowness);
    put_real(o, "gather", r->rates.gather);
    put_real(o, "sample", r->rates.sample);
    put_real(o, "step_s", r->rates.step_s);
    put_real(o, "rows_per_step", r->rates.rows_per_step);
    put_real(o, "prompt_rate", r->rates.prompt_rate);
    put_real(o, "generated_rate", r->rates.generated_rate);
    put_int(o, "handoff_bytes", b->handoff_bytes);
    put_int(o, "handoff_pages", b->handoff_pages);
    put_real(o, "handoff_rate", r->rates.handoff_rate);
    put_real(o, "handoff_s", r->rates.handoff_s);
    return o;
}

/* Of each group: rows by expert, and how far the busiest one is above the mean. */
static json_t *experts_json(const bt_snapshot *s, uint32_t group)
{
    json_t  *o = json_object(), *rows = json_array();
    uint64_t sum = 0, most = 0;

    for (uint32_t e = 0; e < s->counts.n_experts; e++) {
        uint64_t n = s->counts.expert_rows[group][e];

        json_array_append_new(rows, json_integer((json_int_t)n));
        sum += n;
        if (n > most) most = n;
    }
    put(o, "rows", rows);
    put_real(o, "imbalance", sum == 0 ? 1 : (double)most * s->counts.n_experts / (double)sum);
    return o;
}

static json_t *cell_json(const bt_cell_view *v)
{
    json_t *o = json_object();

    put(o, "name", json_string(v->name));
    put(o, "state", json_string(bt_cell_state_name(v->state)));
    put(o, "left_out", json_string(v->left_out));
    put_int(o, "n_ranks", v->n_ranks);
    put_int(o, "n_prefill", v->n_prefill);
    put_int(o, "n_decode", v->n_decode);
    return o;
}

static json_t *link_json(const bt_link_view *v)
{
    json_t *o = json_object();

    put(o, "cell", json_string(v->cell));
    put(o, "plane", json_string(bt_pair_kind_name(v->pair.kind)));
    put_int(o, "from", v->pair.from);
    put_int(o, "to", v->pair.to);
    put_real(o, "slowness", v->pair.slowness);
    put_real(o, "value", v->pair.value);
    put_real(o, "median", v->pair.typical);
    return o;
}

static json_t *avoided_json(const bt_avoided_link_view *v)
{
    json_t *o = json_object();

    put(o, "cell", json_string(v->cell));
    put_int(o, "from", v->pair.from);
    put_int(o, "to", v->pair.to);
    put_real(o, "left_s", (double)v->pair.left_ns * 1e-9);
    return o;
}

static json_t *request_json(const bt_relay_request_view *v)
{
    json_t *o = json_object();

    put_int(o, "number", v->number);
    put(o, "id", json_string(v->name));
    put(o, "state", json_string(v->state));
    put_int(o, "prompt", v->n_prompt);
    put_int(o, "generated", v->n_out);
    put_int(o, "max_tokens", v->max_tokens);
    put_real(o, "age_s", (double)v->age_ns * 1e-9);
    put(o, "prefill", v->placed ? json_integer(v->prefill_rank) : json_null());
    put(o, "decode", v->placed ? json_integer(v->decode_rank) : json_null());
    return o;
}

/* Columns, oldest second first. */
static json_t *history_json(const bt_snapshot *s)
{
    static const char *const names[] = {"generated",   "prompt",  "running",      "waiting",
                                        "ttft_p50",    "itl_p50", "itl_p99",      "busy_prefill",
                                        "busy_decode", "kv_used", "handoff_bytes"};
    json_t                  *all     = json_object();

    for (size_t c = 0; c < sizeof(names) / sizeof(names[0]); c++) {
        json_t *column = json_array();

        for (uint32_t i = 0; i < s->n_history; i++) {
            const bt_second *e        = &s->history[(s->history_at + i) % BT_HISTORY_S];
            const float      values[] = {e->generated,   e->prompt,    e->running,      e->waiting,
                                         e->ttft_p50_s,  e->itl_p50_s, e->itl_p99_s,    e->busy_prefill,
                                         e->busy_decode, e->kv_used,   e->handoff_bytes};

            json_array_append_new(column, json_real((double)values[c]));
        }
        put(all, names[c], column);
    }
    return all;
}

static json_t *totals_json(const bt_snapshot *s)
{
    const bt_metrics *m      = &s->metrics;
    json_t           *o      = json_object();
    uint64_t          failed = 0;

    for (uint32_t i = 1; i < BT_N_STATUS; i++)
        if (i != GRPC_STATUS_CANCELLED) failed += m->n_status[i];
    put_int(o, "requests", m->n_requests);
    put_int(o, "ended_well", m->n_status[GRPC_STATUS_OK]);
    put_int(o, "cancelled", m->n_status[GRPC_STATUS_CANCELLED]);
    put_int(o, "refused_or_failed", failed);
    put_int(o, "prompt_tokens", m->prompt_tokens);
    put_int(o, "generated_tokens", m->generated_tokens);
    put_real(o, "ttft_mean", m->ttft.n == 0 ? 0 : m->ttft.sum_s / (double)m->ttft.n);
    put_real(o, "itl_mean", m->itl.n == 0 ? 0 : m->itl.sum_s / (double)m->itl.n);
    put_real(o, "e2e_mean", m->e2e.n == 0 ? 0 : m->e2e.sum_s / (double)m->e2e.n);
    return o;
}

static json_t *balance_json(const bt_snapshot *s)
{
    bt_balance b;
    json_t    *o = json_object();

    bt_balance_of(s, &b);
    put_real(o, "prefill", b.prefill);
    put_real(o, "decode", b.decode);
    put(o, "limit", json_string(b.limit));
    put_int(o, "best_prefill", b.best_prefill);
    put_int(o, "best_decode", b.best_decode);
    return o;
}

char *bt_exposition_json(const bt_snapshot *s, size_t *n_out)
{
    json_t *o = json_object(), *ranks = json_array(), *requests = json_array();
    json_t *cells = json_array(), *links = json_array(), *avoided = json_array();
    char   *text;

    put(o, "phase", json_string(bt_phase_name(s->phase)));
    put(o, "model", json_string(s->model));
    put(o, "name", json_string(s->served_name));
    put(o, "version", json_string(bt_hello_build()));
    put(o, "address", json_string(s->public_address));
    put_int(o, "unix", (uint64_t)s->unix_s);
    put_int(o, "uptime_s", (s->at_ns - s->started_ns) / BT_NS_PER_S);
    put_int(o, "n_ranks", s->n_ranks);
    put_int(o, "n_prefill", s->n_prefill);
    put_int(o, "n_decode", s->n_decode);
    put_int(o, "page_tokens", s->page_tokens);
    put_int(o, "running", s->loads.n_running);
    put_int(o, "waiting", s->loads.n_waiting);
    put_int(o, "queued_tokens", s->queued_tokens);
    put_int(o, "kv_used_tokens", s->loads.used_tokens);
    put_int(o, "kv_total_tokens", s->loads.total_tokens);
    put(o, "totals", totals_json(s));
    put(o, "balance", balance_json(s));
    for (uint32_t i = 0; i < s->n_ranks; i++)
        json_array_append_new(ranks, rank_json(s, i));
    for (uint32_t i = 0; i < s->n_requests; i++)
        json_array_append_new(requests, request_json(&s->requests[i]));
    for (uint32_t i = 0; i < s->n_cells; i++)
        json_array_append_new(cells, cell_json(&s->cells[i]));
    for (uint32_t i = 0; i < s->n_slow_links; i++)
        json_array_append_new(links, link_json(&s->slow_links[i]));
    for (uint32_t i = 0; i < s->n_avoided_links; i++)
        json_array_append_new(avoided, avoided_json(&s->avoided_links[i]));
    put(o, "cells", cells);
    put(o, "slow_links", links);
    put(o, "avoided_links", avoided);
    put(o, "ranks", ranks);
    put(o, "open_requests", requests);
    put(o, "experts_prefill", experts_json(s, 0));
    if (s->n_decode != 0) put(o, "experts_decode", experts_json(s, 1));
    put(o, "history", history_json(s));
    text = json_dumps(o, JSON_COMPACT | JSON_REAL_PRECISION(5));
    json_decref(o);
    if (text != NULL) *n_out = strlen(text);
    return text;
}

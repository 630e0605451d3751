/* The JSON of a run; tools/bench/plot.py reads it. */
#include <errno.h>
#include <jansson.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "cli/bench_report.h"

enum { N_BINS = 120 };

static double ms(uint64_t ns) { return (double)ns * 1e-6; }

static json_t *metric_json(const bt_bench_metric *m)
{
    json_t       *list = json_array();
    const double *q    = m->quantiles;

    for (int i = 0; i < BT_BENCH_QUANTILES; i++)
        json_array_append_new(list, json_real(q[i]));
    return json_pack("{s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:o}", "n", (json_int_t)m->n, "mean",
                     m->mean, "p50", q[50], "p90", q[90], "p99", q[99], "p99.9", m->p99_9, "max",
                     q[100], "quantiles", list);
}

static json_t *codes_json(const bt_bench_run *run, const bt_bench_summary *s)
{
    json_t *codes = json_object();

    for (int i = 0; i < BT_BENCH_CODES; i++) {
        if (s->n_codes[i] == 0) continue;
        json_object_set_new(
            codes, bt_bench_code_name(i),
            json_pack("{s:I, s:s}", "n", (json_int_t)s->n_codes[i], "first", run->first_error[i]));
    }
    return codes;
}

static json_t *summary_json(const bt_bench_run *run, const bt_bench_summary *s)
{
    return json_pack(
        "{s:f, s:b, s:I, s:I, s:I, s:o, s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:f, "
        "s:o, s:o, s:o, s:o}",
        "seconds", s->seconds, "stopped", run->stopped, "requests", (json_int_t)run->n, "ok",
        (json_int_t)s->n_codes[0], "unfinished", (json_int_t)s->n_unfinished, "codes",
        codes_json(run, s), "prompt_tokens", (json_int_t)s->prompt_tokens, "cached_tokens",
        (json_int_t)s->cached_tokens, "output_tokens", (json_int_t)s->output_tokens, "messages",
        (json_int_t)s->n_messages, "requests_per_s", (double)s->n_codes[0] / s->seconds,
        "output_tokens_per_s", (double)s->output_tokens / s->seconds, "tokens_per_s",
        (double)(s->output_tokens + s->prompt_tokens) / s->seconds, "slo_ttft_ms", s->slo_ttft_ms,
        "slo_itl_ms", s->slo_itl_ms, "goodput_per_s", (double)s->n_good / s->seconds, "late_ms",
        s->late_ms, "ttft_ms", metric_json(&s->metrics[BT_BENCH_TTFT]), "itl_ms",
        metric_json(&s->metrics[BT_BENCH_ITL]), "tpot_ms", metric_json(&s->metrics[BT_BENCH_TPOT]),
        "e2e_ms", metric_json(&s->metrics[BT_BENCH_E2E]));
}

static json_t *about_json(const bt_bench_about *a)
{
    const bt_bench_load *l = a->load;
    json_t *o = json_pack("{s:s, s:s, s:s, s:s, s:f, s:i, s:I, s:f, s:b}", "address", a->address,
                          "model", a->model, "prompt_tokens", a->prompt_tokens, "output_tokens",
                          a->output_tokens, "shared_prefix", l->plan->shared, "prefixes",
                          (int)l->plan->n_prefixes, "seed", (json_int_t)l->plan->seed,
                          "temperature", (double)l->temperature, "ignore_eos", l->ignore_eos);

    if (l->concurrency != 0)
        json_object_set_new(o, "concurrency", json_integer(l->concurrency));
    else
        json_object_set_new(o, "rate", json_real(l->plan->rate));
    return o;
}

static json_t *times_json(const bt_bench_run *run, const bt_bench_record *r)
{
    json_t *list = json_array();

    for (size_t m = r->first_message; m != SIZE_MAX; m = run->messages[m].next)
        json_array_append_new(
            list, json_pack("[f, i]", ms(run->messages[m].at_ns), (int)run->messages[m].n_tokens));
    return list;
}

/* Times count from the start of the run; null where there is none. */
static json_t *record_json(const bt_bench_run *run, const bt_bench_record *r, bool token_times)
{
    bool    any = r->n_tokens != 0;
    json_t *o   = json_pack(
          "{s:f, s:f, s:o, s:o, s:f, s:i, s:i, s:i, s:i, s:s}", "due_ms", ms(r->due_ns), "sent_ms",
          ms(r->sent_ns), "first_ms", any ? json_real(ms(r->first_ns)) : json_null(), "last_ms",
        any ? json_real(ms(r->last_ns)) : json_null(), "end_ms", ms(r->end_ns), "prompt",
          (int)r->n_prompt, "cached", (int)r->n_cached, "wanted", (int)r->n_wanted, "tokens",
          (int)r->n_tokens, "status", bt_bench_code_name(r->code));

    if (token_times) json_object_set_new(o, "messages", times_json(run, r));
    return o;
}

static size_t bin_of(uint64_t ns, uint64_t width)
{
    return ns / width < N_BINS ? (size_t)(ns / width) : N_BINS - 1;
}

/* Tokens a second and requests under way, in equal parts of the run. */
static json_t *timeline_json(const bt_bench_run *run)
{
    uint64_t n_tokens[N_BINS] = {0}, width = run->elapsed_ns / N_BINS + 1;
    double   running[N_BINS] = {0};
    json_t  *tokens = json_array(), *under_way = json_array();

    for (size_t m = 0; m < run->n_messages; m++)
        n_tokens[bin_of(run->messages[m].at_ns, width)] += run->messages[m].n_tokens;
    for (size_t i = 0; i < run->n; i++) {
        uint64_t from = run->records[i].sent_ns, to = run->records[i].end_ns;

        for (size_t b = bin_of(from, width); b <= bin_of(to, width); b++) {
            uint64_t lo = b * width, hi = lo + width;

            lo = lo > from ? lo : from;
            hi = hi < to ? hi : to;
            if (hi > lo) running[b] += (double)(hi - lo) / (double)width;
        }
    }
    for (int b = 0; b < N_BINS; b++) {
        json_array_append_new(tokens, json_real((double)n_tokens[b] / ((double)width * 1e-9)));
        json_array_append_new(under_way, json_real(running[b]));
    }
    return json_pack("{s:f, s:o, s:o}", "bin_s", (double)width * 1e-9, "tokens_per_s", tokens,
                     "running", under_way);
}

static json_t *all_json(const bt_bench_about *about, const bt_bench_run *run,
                        const bt_bench_summary *s)
{
    json_t   *requests = json_array();
    char      when[32];
    time_t    now = time(NULL);
    struct tm utc;

    for (size_t i = 0; i < run->n; i++)
        json_array_append_new(requests, record_json(run, &run->records[i], about->token_times));
    strftime(when, sizeof(when), "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    return json_pack("{s:s, s:f, s:o, s:o, s:o, s:o}", "when", when, "start_monotonic_s",
                     (double)run->start_ns * 1e-9, "about", about_json(about), "summary",
                     summary_json(run, s), "timeline", timeline_json(run), "requests", requests);
}

bt_status bt_bench_write_json(const char *path, const bt_bench_about *about,
                              const bt_bench_run *run, const bt_bench_summary *s)
{
    bt_status   st  = BT_OK;
    json_t     *all = all_json(about, run, s);
    struct stat info;

    BT_REQUIRE(all != NULL, BT_ERR_NO_MEMORY, "%s: %zu requests", path, run->n);
    BT_REQUIRE(json_dump_file(all, path, JSON_INDENT(1) | JSON_REAL_PRECISION(9)) == 0, BT_ERR_IO,
               "%s: %s", path, strerror(errno));
out:
    /* Part of it; but not /dev/stdout, which leads to a file. */
    if (st == BT_ERR_IO && lstat(path, &info) == 0 && S_ISREG(info.st_mode)) unlink(path);
    json_decref(all);
    return st;
}

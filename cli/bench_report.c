#include "cli/bench_report.h"

#include <inttypes.h>
#include <stdlib.h>

#include "core/alloc.h"

static double ms(uint64_t ns) { return (double)ns * 1e-6; }

/* ---- the figures */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

/* Between the two nearest values. */
static double quantile(const double *sorted, size_t n, double q)
{
    double at  = q * (double)(n - 1);
    size_t low = (size_t)at;

    if (low + 1 >= n) return sorted[n - 1];
    return sorted[low] + (at - (double)low) * (sorted[low + 1] - sorted[low]);
}

static void measure(double *values, size_t n, bt_bench_metric *m)
{
    *m = (bt_bench_metric){.n = n};
    if (n == 0) return;
    qsort(values, n, sizeof(*values), by_value);
    for (size_t i = 0; i < n; i++)
        m->mean += values[i] / (double)n;
    m->p99_9 = quantile(values, n, 0.999);
    for (int i = 0; i < BT_BENCH_QUANTILES; i++)
        m->quantiles[i] = quantile(values, n, i / 100.0);
}

static double tpot_ms(const bt_bench_record *r)
{
    return r->n_tokens > 1 ? ms(r->last_ns - r->first_ns) / (r->n_tokens - 1) : 0;
}

static double ttft_ms(const bt_bench_record *r) { return ms(r->first_ns - r->due_ns); }

static bool good(const bt_bench_summary *s, const bt_bench_record *r)
{
    return r->code == 0 && (s->slo_ttft_ms == 0 || ttft_ms(r) <= s->slo_ttft_ms) &&
           (s->slo_itl_ms == 0 || tpot_ms(r) <= s->slo_itl_ms);
}

/* One metric's values over all requests; returns how many. */
static size_t collect(const bt_bench_run *run, int metric, double *values)
{
    size_t n = 0;

    for (size_t i = 0; i < run->n; i++) {
        const bt_bench_record *r = &run->records[i];

        if (metric == BT_BENCH_TTFT && r->n_tokens != 0) values[n++] = ttft_ms(r);
        if (metric == BT_BENCH_E2E && r->code == 0) values[n++] = ms(r->end_ns - r->due_ns);
        if (metric == BT_BENCH_TPOT && r->code == 0 && r->n_tokens > 1) values[n++] = tpot_ms(r);
        if (metric != BT_BENCH_ITL || r->n_messages == 0) continue;
        for (size_t m = r->first_message; run->messages[m].next != SIZE_MAX;
             m        = run->messages[m].next)
            values[n++] = ms(run->messages[run->messages[m].next].at_ns - run->messages[m].at_ns);
    }
    return n;
}

bt_status bt_bench_summarise(const bt_bench_run *run, bt_bench_summary *s)
{
    bt_status st     = BT_OK;
    double   *values = bt_calloc(run->n + run->n_messages + 1, sizeof(*values));

    *s = (bt_bench_summary){.slo_ttft_ms = s->slo_ttft_ms,
                            .slo_itl_ms  = s->slo_itl_ms,
                            .n_messages  = run->n_messages,
                            .seconds     = (double)run->elapsed_ns * 1e-9};
    BT_REQUIRE(values != NULL, BT_ERR_NO_MEMORY, "%zu times", run->n_messages);
    for (size_t i = 0; i < run->n; i++) {
        const bt_bench_record *r = &run->records[i];

        if (r->code < 0)
            s->n_unfinished++;
        else
            s->n_codes[r->code]++;
        s->n_good += good(s, r);
        s->prompt_tokens += r->n_tokens != 0 ? r->n_prompt : 0; /* those that were computed */
        s->cached_tokens += r->n_cached;
        s->output_tokens += r->n_tokens;
        if (ms(r->sent_ns - r->due_ns) > s->late_ms) s->late_ms = ms(r->sent_ns - r->due_ns);
    }
    for (int m = 0; m < BT_BENCH_N_METRICS; m++)
        measure(values, collect(run, m, values), &s->metrics[m]);
out:
    bt_free(values);
    return st;
}

/* ---- for people */

static void print_metric(FILE *to, const char *name, const bt_bench_metric *m)
{
    const double *q = m->quantiles;

    if (m->n == 0) {
        fprintf(to, "  %-8s %10s %10s\n", name, "0", "none");
        return;
    }
    fprintf(to, "  %-8s %10zu %10.2f %10.2f %10.2f %10.2f %10.2f\n", name, m->n, m->mean, q[50],
            q[90], q[99], q[100]);
}

static void print_errors(FILE *to, const bt_bench_run *run, const bt_bench_summary *s)
{
    for (int code = 1; code < BT_BENCH_CODES; code++) {
        if (s->n_codes[code] == 0) continue;
        fprintf(to, "Failed       %" PRIu64 " with %s: %s\n", s->n_codes[code],
                bt_bench_code_name(code), run->first_error[code]);
    }
    if (s->n_unfinished != 0)
        fprintf(to, "Unfinished   %" PRIu64 " when the run was stopped\n", s->n_unfinished);
}

static void print_goodput(FILE *to, const bt_bench_summary *s, size_t n)
{
    if (s->slo_ttft_ms == 0 && s->slo_itl_ms == 0) return;
    fprintf(to, "Goodput      %.2f requests/s (%.1f %%) with", (double)s->n_good / s->seconds,
            n == 0 ? 0 : 100.0 * (double)s->n_good / (double)n);
    if (s->slo_ttft_ms != 0) fprintf(to, " TTFT <= %g ms", s->slo_ttft_ms);
    if (s->slo_ttft_ms != 0 && s->slo_itl_ms != 0) fputs(" and", to);
    if (s->slo_itl_ms != 0) fprintf(to, " TPOT <= %g ms", s->slo_itl_ms);
    fputc('\n', to);
}

void bt_bench_print(FILE *to, const bt_bench_run *run, const bt_bench_summary *s)
{
    fprintf(to, "Requests     %" PRIu64 " of %zu ended well, in %.2f s\n", s->n_codes[0], run->n,
            s->seconds);
    print_errors(to, run, s);
    fprintf(to, "Tokens       %" PRIu64 " of prompts (%" PRIu64 " cached), %" PRIu64 " generated",
            s->prompt_tokens, s->cached_tokens, s->output_tokens);
    if (s->n_messages != 0)
        fprintf(to, ", %.2f a message", (double)s->output_tokens / (double)s->n_messages);
    fprintf(to, "\n\n  %-8s %10s %10s %10s %10s %10s %10s\n", "ms", "n", "mean", "p50", "p90",
            "p99", "most");
    print_metric(to, "TTFT", &s->metrics[BT_BENCH_TTFT]);
    print_metric(to, "ITL", &s->metrics[BT_BENCH_ITL]);
    print_metric(to, "TPOT", &s->metrics[BT_BENCH_TPOT]);
    print_metric(to, "e2e", &s->metrics[BT_BENCH_E2E]);
    fprintf(to,
            "\nThroughput   %.2f requests/s, %.1f tokens/s generated, %.1f tokens/s with prompts\n",
            (double)s->n_codes[0] / s->seconds, (double)s->output_tokens / s->seconds,
            (double)(s->output_tokens + s->prompt_tokens) / s->seconds);
    print_goodput(to, s, run->n);
    if (s->late_ms > 5)
        fprintf(to,
                "Note         a request was sent %.1f ms after its planned time: this program was "
                "kept from running\n",
                s->late_ms);
}

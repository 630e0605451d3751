/* cli/bench_report.h - what a run of the load generator says: a table for people, JSON for
 * programs.
 *
 * TTFT   from a request's (planned) arrival to its first token
 * ITL    between two messages with tokens of one request: the pauses that a reader sees
 * TPOT   (last token - first token) / (tokens - 1) of one request
 * e2e    from arrival to the final status
 * TTFT and ITL are of every request whose first token came, however it ended; TPOT and e2e of those
 * that ended well; throughput counts every token that came. */
#ifndef BT_CLI_BENCH_REPORT_H
#define BT_CLI_BENCH_REPORT_H

#include <stdio.h>

#include "cli/bench_load.h"

enum { BT_BENCH_TTFT, BT_BENCH_ITL, BT_BENCH_TPOT, BT_BENCH_E2E, BT_BENCH_N_METRICS };
enum { BT_BENCH_QUANTILES = 101 };

/* Of n values, in milliseconds; all 0 where n is 0. */
typedef struct {
    size_t n;
    double mean, p99_9, quantiles[BT_BENCH_QUANTILES]; /* [0] least, [50] median, [100] most */
} bt_bench_metric;

typedef struct {
    double   slo_ttft_ms, slo_itl_ms; /* 0: no limit; the second holds TPOT */
    uint64_t n_codes[BT_BENCH_CODES], n_unfinished, n_good;
    uint64_t prompt_tokens, cached_tokens, output_tokens, n_messages;
    double   seconds, late_ms; /* late: most that a request was sent after its planned arrival */
    bt_bench_metric metrics[BT_BENCH_N_METRICS];
} bt_bench_summary;

/* slo_* are read, everything else is written. */
bt_status bt_bench_summarise(const bt_bench_run *run, bt_bench_summary *s);

void bt_bench_print(FILE *to, const bt_bench_run *run, const bt_bench_summary *s);

/* What the run was, for the JSON: strings are borrowed. */
typedef struct {
    const char *address, *model, *prompt_tokens, *output_tokens; /* as on the command line */
    const bt_bench_load *load;
    bool                 token_times; /* write when each message of each request came */
} bt_bench_about;

bt_status bt_bench_write_json(const char *path, const bt_bench_about *about,
                              const bt_bench_run *run, const bt_bench_summary *s);

#endif

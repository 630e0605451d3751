/* coordinator/metrics.h - what requests took: counters and histograms, ever and of the last second.
 *
 * Plain data that the loop's thread writes, a few additions a token; readers get copies of it
 * (coordinator/board.h). */
#ifndef BT_COORDINATOR_METRICS_H
#define BT_COORDINATOR_METRICS_H

#include <grpc/status.h>
#include <stdint.h>

#include "proto/control_msg.h"

enum { BT_TIME_BUCKETS = 24, BT_SIZE_BUCKETS = 17, BT_WINDOW_BUCKETS = 256, BT_N_STATUS = 17 };

/* Limits of the buckets, the last one aside, which has none. */
extern const double bt_time_limits_s[BT_TIME_BUCKETS - 1];
extern const double bt_size_limits[BT_SIZE_BUCKETS - 1];

typedef struct {
    uint64_t counts[BT_TIME_BUCKETS]; /* each bucket alone, not cumulated */
    uint64_t n;
    double   sum_s;
} bt_time_histogram;

typedef struct {
    uint64_t counts[BT_SIZE_BUCKETS];
    double   sum;
} bt_size_histogram;

/* Durations in quarter octaves of nanoseconds: percentiles to 10 %. */
typedef struct {
    uint32_t counts[BT_WINDOW_BUCKETS];
    uint32_t n;
} bt_time_window;

typedef struct {
    bt_time_histogram ttft, itl, e2e, queue, prefill, decode, tpot;
    bt_size_histogram prompt, generated;
    bt_time_window    ttft_window, itl_window; /* tokens that come together share their gap */
    uint64_t          n_requests, prompt_tokens, generated_tokens;
    uint64_t          n_status[BT_N_STATUS]; /* by google.rpc.Code */
    uint64_t          n_stop, n_length;      /* of those that ended well */
} bt_metrics;

/* A request's times; its owner keeps it. */
typedef struct {
    uint64_t arrived_ns, placed_ns, first_ns;
    uint64_t last_ns, gaps_ns; /* of choice 0: its last token, and all gaps between its tokens, */
    uint32_t n_gaps;           /* so many */
    uint32_t n_together;       /* tokens of choice 0 since it last had to wait for one */
    uint32_t n_prompt, n_generated;
} bt_request_clock;

void bt_metrics_arrived(bt_metrics *m, bt_request_clock *clock, uint32_t n_prompt, uint64_t now_ns);
/* It was placed, or ended in the queue; only the first time counts. */
void bt_metrics_left_queue(bt_metrics *m, bt_request_clock *clock, uint64_t now_ns);
/* Inter-token latency is that of choice 0: a request's choices advance in the same steps. */
void bt_metrics_token(bt_metrics *m, bt_request_clock *clock, uint32_t choice, uint64_t now_ns);
/* A refused request has an end too; its clock may be all zeroes. */
void bt_metrics_end(bt_metrics *m, const bt_request_clock *clock, grpc_status_code code,
                    bt_finish finish, uint64_t now_ns);

/* In seconds; 0 when nothing was counted. */
double bt_window_percentile(const bt_time_window *window, double fraction);

#endif

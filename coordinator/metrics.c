#include "coordinator/metrics.h"

#include "core/clock.h"

/* Tokens that come closer than this are of one message, or of several that were read at once. */
#define TOGETHER_NS (100 * BT_NS_PER_US)

/* The buckets of vLLM's time to first token, with more of them below 10 ms. */
const double bt_time_limits_s[BT_TIME_BUCKETS - 1] = {
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5,
    0.75,   1,     2.5,    5,     7.5,  10,   20,   40,   80,   160, 640};
const double bt_size_limits[BT_SIZE_BUCKETS - 1] = {
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000};

static uint32_t find(const double *limits, uint32_t n, double value)
{
    uint32_t i = 0;

    while (i < n && value > limits[i])
        i++;
    return i;
}

static void add_time(bt_time_histogram *h, uint64_t ns)
{
    double s = (double)ns * 1e-9;

    h->counts[find(bt_time_limits_s, BT_TIME_BUCKETS - 1, s)]++;
    h->n++;
    h->sum_s += s;
}

static void add_size(bt_size_histogram *h, double size)
{
    h->counts[find(bt_size_limits, BT_SIZE_BUCKETS - 1, size)]++;
    h->sum += size;
}

/* Four buckets an octave: the highest bit and the two below it. */
static void add_window(bt_time_window *w, uint64_t ns)
{
    uint32_t top = ns < 4 ? 2 : 63 - (uint32_t)__builtin_clzll(ns);

    if (ns < 4) ns = 4;
    w->counts[4 * top + ((ns >> (top - 2)) & 3)]++;
    w->n++;
}

double bt_window_percentile(const bt_time_window *window, double fraction)
{
    double   want = fraction * window->n, seen = 0;
    uint32_t i;

    if (window->n == 0) return 0;
    for (i = 0; i < BT_WINDOW_BUCKETS - 1; i++) {
        seen += window->counts[i];
        if (seen >= want && window->counts[i] != 0) break;
    }
    return (4.5 + i % 4) * (double)(1ull << (i / 4)) / 4 * 1e-9; /* the bucket's middle */
}

void bt_metrics_arrived(bt_metrics *m, bt_request_clock *clock, uint32_t n_prompt, uint64_t now_ns)
{
    *clock = (bt_request_clock){.arrived_ns = now_ns, .n_prompt = n_prompt};
    m->n_requests++;
}

void bt_metrics_left_queue(bt_metrics *m, bt_request_clock *clock, uint64_t now_ns)
{
    if (clock->placed_ns != 0) return;
    clock->placed_ns = now_ns;
    add_time(&m->queue, now_ns - clock->arrived_ns);
}

void bt_metrics_token(bt_metrics *m, bt_request_clock *clock, uint32_t choice, uint64_t now_ns)
{
    clock->n_generated++;
    m->generated_tokens++;
    if (clock->first_ns == 0) {
        clock->first_ns = now_ns;
        m->prompt_tokens += clock->n_prompt;
        add_time(&m->ttft, now_ns - clock->arrived_ns);
        add_time(&m->prefill, now_ns - clock->placed_ns);
        add_window(&m->ttft_window, now_ns - clock->arrived_ns);
    }
    if (choice != 0) return;
    if (clock->last_ns != 0) {
        uint64_t gap_ns = now_ns - clock->last_ns;

        add_time(&m->itl, gap_ns);
        clock->gaps_ns += gap_ns;
        clock->n_gaps++;
        if (gap_ns >= TOGETHER_NS) {
            add_window(&m->itl_window, gap_ns / clock->n_together);
            clock->n_together = 0;
        }
    }
    clock->n_together++;
    clock->last_ns = now_ns;
}

void bt_metrics_end(bt_metrics *m, const bt_request_clock *clock, grpc_status_code code,
                    bt_finish finish, uint64_t now_ns)
{
    uint32_t i = (uint32_t)code;

    m->n_status[i < BT_N_STATUS ? i : (uint32_t)GRPC_STATUS_UNKNOWN]++;
    if (code != GRPC_STATUS_OK) return;
    if (finish == BT_FINISH_LENGTH)
        m->n_length++;
    else
        m->n_stop++;
    add_time(&m->e2e, now_ns - clock->arrived_ns);
    add_time(&m->decode, now_ns - clock->first_ns);
    if (clock->n_gaps != 0) add_time(&m->tpot, clock->gaps_ns / clock->n_gaps);
    add_size(&m->prompt, clock->n_prompt);
    add_size(&m->generated, clock->n_generated);
}

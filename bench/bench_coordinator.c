/* What the coordinator costs: a real baton-coordinator between simulated ranks
 * (bench/coord_ranks.h) and real gRPC clients (bench/coord_clients.h), all on this machine's
 * loopback.
 *
 *     bench_coordinator --bin build/release/bin --model models/demo [--repeat 3] [--core N]
 *         [--busy-poll] [--json FILE]
 *
 * Cases, each with a coordinator process of its own:
 *     stream32     32 streams, one rank, a token each every 10 ms
 *     burst256     256 streams, one rank, all their tokens at once every 50 ms
 *     flood256     256 streams over 4 ranks, steps as fast as the clients keep up
 *     flood2048    2,048 streams over 8 ranks, likewise
 *     flood12288   12,288 streams over 8 ranks, likewise; only with --case, as the next
 *     wide10000    10,000 streams over 8 ranks, likewise, on 2,000 connections
 *
 * wire: from the packet that completes a rank's message to the packet that completes each client's
 * (bench/coord_wire.h); - where this process may not read packets, or steps overlap.
 * With --core the coordinator has that processor, and ranks and clients have all others, as they
 * are other machines in a real cell. whole: from the rank's send to the client's receive, this
 * program's own gRPC threads included. tokens/CPU s: streamed tokens / CPU seconds of the
 * coordinator process, all its threads, user and system: what one core streams.  Medians over the
 * repeats count; per-repeat figures are in the JSON. */
#include <argp.h>
#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include "bench/coord_clients.h"
#include "bench/coord_ranks.h"
#include "bench/coord_wire.h"
#include "bench/stats.h"
#include "cli/child.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "core/parse.h"

enum { MAX_REPEAT = 32, START_S = 20, N_FIGURES = 10, TOKEN_BYTES = 12 };

typedef struct {
    const char *name;
    uint32_t    n_ranks, n_streams, n_tokens, n_connections;
    uint64_t    period_ns;
    uint32_t    window; /* tokens of a stream under way, without a period */
} bench_case;

static const bench_case CASES[] = {
    {"stream32",   1, 32,    500,  1,    10 * BT_NS_PER_MS, 0 },
    {"burst256",   1, 256,   100,  1,    50 * BT_NS_PER_MS, 0 },
    {"flood256",   4, 256,   4000, 1,    0,                 32},
    {"flood2048",  8, 2048,  800,  4,    0,                 32},
    {"flood12288", 8, 12288, 160,  8,    0,                 32},
    {"wide10000",  8, 10000, 160,  2000, 0,                 32},
};
enum { N_CASES = sizeof(CASES) / sizeof(CASES[0]), ALL_MAX = 4096 /* streams, without --case */ };

static const char *const FIGURES[N_FIGURES] = {
    "wire_p50_us",      "wire_p99_us",  "wire_max_us", "whole_p50_us",       "whole_p99_us",
    "tokens_per_cpu_s", "tokens_per_s", "cpu_share",   "tokens_per_message", "wire_samples"};

typedef struct {
    const char *bin, *model, *json, *only;
    uint32_t    repeat, percent; /* percent: of each case's tokens */
    int         core;            /* the coordinator's own; -1: it shares all */
    bool        busy_poll;       /* the coordinator's */
} options;

/* ---- the coordinator process */

typedef struct {
    bt_child  child;
    char      control[128], ready[128];
    pthread_t reader; /* of its log, which would else stop it when the pipe is full */
    bool      has_reader;
} front;

static void *read_log(void *arg)
{
    front        *f = arg;
    char          text[4096];
    struct pollfd p = {f->child.err.fd, POLLIN, 0};

    while (poll(&p, 1, -1) >= 0 && read(p.fd, text, sizeof(text)) > 0)
        ;
    return NULL;
}

static void on_line(void *ctx, const char *line)
{
    front *f = ctx;

    if (strncmp(line, "control ", 8) == 0) snprintf(f->control, sizeof(f->control), "%s", line + 8);
    if (strncmp(line, "ready ", 6) == 0) snprintf(f->ready, sizeof(f->ready), "%s", line + 6);
}

static bt_status wait_line(front *f, const char *name, const char *text)
{
    bt_status st      = BT_OK;
    uint64_t  give_up = bt_now_ns() + START_S * BT_NS_PER_S;

    while (text[0] == 0 && f->child.report.fd >= 0 && bt_now_ns() < give_up) {
        struct pollfd p = {f->child.report.fd, POLLIN, 0};

        poll(&p, 1, 100);
        bt_lines_read(&f->child.report, on_line, f);
    }
    BT_REQUIRE(text[0] != 0, BT_ERR_TIMEOUT, "the coordinator has not announced \"%s\" in %d s",
               name, START_S);
out:
    return st;
}

/* Where this thread, and what it starts from now on, runs: on the core, or on all others. */
static bt_status go_to(int core, bool others)
{
    bt_status st = BT_OK;
    cpu_set_t set;

    if (core < 0) goto out;
    CPU_ZERO(&set);
    for (int i = 0; i < get_nprocs_conf(); i++)
        if ((i == core) != others) CPU_SET((size_t)i, &set);
    BT_REQUIRE(sched_setaffinity(0, sizeof(set), &set) == 0, BT_ERR_INVALID_ARG,
               "--core %d of %d processors: %s", core, get_nprocs_conf(), strerror(errno));
out:
    return st;
}

static bt_status front_start(const options *o, front *f)
{
    bt_status st = BT_OK;
    char      path[PATH_MAX];
    char     *busy_poll = o->busy_poll ? (char *)"--busy-poll" : NULL;
    char     *argv[] = {path,        (char *)"--model",       (char *)o->model,  (char *)"--port",
                        (char *)"0", (char *)"--announce-fd", (char *)"@report", busy_poll,
                        NULL};

    memset(f, 0, sizeof(*f));
    bt_child_init(&f->child);
    snprintf(path, sizeof(path), "%s/baton-coordinator", o->bin);
    BT_TRY(go_to(o->core, false));
    BT_TRY(bt_child_spawn(&(bt_child_spec){.name = "coordinator", .argv = argv, .reports = true},
                          &f->child));
    BT_TRY(go_to(o->core, true));
    f->has_reader = pthread_create(&f->reader, NULL, read_log, f) == 0;
    BT_REQUIRE(f->has_reader, BT_ERR_NO_MEMORY, "a thread");
out:
    return st;
}

static void front_end(front *f)
{
    bt_child *children[] = {&f->child};
    uint64_t  give_up    = bt_now_ns() + START_S * BT_NS_PER_S;

    bt_child_kill(&f->child, SIGTERM);
    while (bt_child_running(&f->child) && bt_now_ns() < give_up) {
        bt_child_collect(children, 1);
        bt_sleep_ns(5 * BT_NS_PER_MS);
    }
    bt_child_kill(&f->child, SIGKILL);
    if (f->has_reader) pthread_join(f->reader, NULL);
    bt_child_close(&f->child);
}

/* ---- one run */

static bt_status wire_figures(bench_wire *wire, uint32_t n_streams, double *figures)
{
    bt_status       st = BT_OK;
    const uint64_t *samples;
    uint64_t       *copy = NULL;
    size_t          n, skip = n_streams; /* the first step warms up, in the last one streams end */

    BT_TRY(bench_wire_stop(wire, &samples, &n));
    BT_REQUIRE(n > 4 * (size_t)n_streams, BT_ERR_FORMAT, "only %zu messages were seen on the wire",
               n);
    n -= skip + n_streams * 2;
    copy = bt_calloc(n, sizeof(*copy));
    BT_REQUIRE(copy != NULL, BT_ERR_NO_MEMORY, "%zu samples", n);
    memcpy(copy, samples + skip, n * sizeof(*copy));
    figures[0] = bench_percentile_us(copy, n, 0.5);
    figures[1] = bench_percentile_us(copy, n, 0.99);
    figures[2] = bench_percentile_us(copy, n, 1);
    figures[9] = (double)n;
out:
    bt_free(copy);
    return st;
}

static uint16_t port_of(const char *address)
{
    return (uint16_t)strtoul(strrchr(address, ':') + 1, NULL, 10);
}

static void result_figures(bench_clients_result *r, double *figures)
{
    figures[3] = bench_percentile_us(r->late_ns, r->n, 0.5);
    figures[4] = bench_percentile_us(r->late_ns, r->n, 0.99);
    figures[5] = (double)r->n / r->cpu_s;
    figures[6] = (double)r->n / r->wall_s;
    figures[7] = r->cpu_s / r->wall_s;
    figures[8] = (double)r->n / (double)r->n_messages;
}

static bt_status run_once(const options *o, const bench_case *c, double *figures)
{
    bt_status    st       = BT_OK;
    uint32_t     n_tokens = c->n_tokens * o->percent / 100;
    bench_shared shared   = {
          .load = {.n_ranks   = c->n_ranks,
                   .n_streams = c->n_streams,
                   .n_tokens  = n_tokens < 16 ? 16 : n_tokens,
                   .period_ns = c->period_ns,
                   .window    = (uint64_t)c->window * c->n_streams}
    };
    size_t               all   = (size_t)c->n_streams * shared.load.n_tokens;
    bench_clients_result r     = {0};
    bench_ranks         *ranks = NULL;
    bench_wire          *wire  = NULL;
    front                f;

    for (int i = 0; i < 3; i++)
        figures[i] = -1;
    BT_TRY(front_start(o, &f));
    BT_TRY(wait_line(&f, "control", f.control));
    shared.left_ns = bt_calloc(all, sizeof(*shared.left_ns));
    BT_REQUIRE(shared.left_ns != NULL, BT_ERR_NO_MEMORY, "%zu times", all);
    if (c->period_ns != 0 &&
        bench_wire_start(port_of(f.control), TOKEN_BYTES * c->n_streams, 2 * all, &wire) != BT_OK)
        fprintf(stderr, "no wire times: %s\n", bt_error_text());
    BT_TRY(bench_ranks_start(f.control, &shared, &ranks));
    BT_TRY(wait_line(&f, "ready", f.ready));
    if (wire != NULL) bench_wire_public(wire, port_of(f.ready));
    BT_TRY(bench_clients_run(f.ready, c->n_connections, f.child.pid, all / 10, &shared, &r));
    result_figures(&r, figures);
    if (wire != NULL) BT_TRY(wire_figures(wire, c->n_streams, figures));
out:
    bench_wire_destroy(wire);
    front_end(&f);
    bench_ranks_stop(ranks);
    bt_free(shared.left_ns);
    bt_free(r.late_ns);
    return st;
}

/* ---- the report */

static double median(double runs[MAX_REPEAT][N_FIGURES], uint32_t n, int figure)
{
    double v[MAX_REPEAT];

    for (uint32_t i = 0; i < n; i++)
        v[i] = runs[i][figure];
    return bench_median(v, n);
}

static void add_case(json_t *cases, const options *opt, const bench_case *c,
                     double runs[MAX_REPEAT][N_FIGURES], uint32_t n)
{
    json_t *o = json_object();

    json_object_set_new(o, "case", json_string(c->name));
    json_object_set_new(o, "ranks", json_integer(c->n_ranks));
    json_object_set_new(o, "busy_poll", json_boolean(opt->busy_poll));
    json_object_set_new(o, "streams", json_integer(c->n_streams));
    for (int k = 0; k < N_FIGURES; k++) {
        json_t *all = json_array();

        for (uint32_t i = 0; i < n; i++)
            json_array_append_new(all, json_real(runs[i][k]));
        json_object_set_new(o, FIGURES[k], all);
    }
    json_array_append_new(cases, o);
}

static void print_case(const options *o, const bench_case *c, double runs[MAX_REPEAT][N_FIGURES],
                       uint32_t n)
{
    printf("| %s%s |", c->name, o->busy_poll ? ", busy polling" : "");
    for (int k = 0; k < 5; k++) {
        double v = median(runs, n, k);

        if (v < 0)
            printf(" - |");
        else
            printf(" %.0f |", v);
    }
    printf(" %.0f | %.0f | %.2f | %.1f |\n", median(runs, n, 5), median(runs, n, 6),
           median(runs, n, 7), median(runs, n, 8));
    fflush(stdout);
}

static bt_status bench(const options *o)
{
    bt_status st    = BT_OK;
    json_t   *cases = json_array();
    double    runs[MAX_REPEAT][N_FIGURES];

    printf("| case | wire p50 us | wire p99 us | wire max us | whole p50 us | whole p99 us | "
           "tokens/CPU s | tokens/s | cores | tokens/message |\n"
           "|---|---|---|---|---|---|---|---|---|---|\n");
    for (size_t i = 0; i < N_CASES; i++) {
        if (o->only != NULL ? strcmp(o->only, CASES[i].name) != 0 : CASES[i].n_streams > ALL_MAX)
            continue;
        memset(runs, 0, sizeof(runs));
        for (uint32_t k = 0; k < o->repeat; k++)
            BT_TRY(run_once(o, &CASES[i], runs[k]));
        print_case(o, &CASES[i], runs, o->repeat);
        add_case(cases, o, &CASES[i], runs, o->repeat);
    }
    BT_REQUIRE(json_array_size(cases) != 0, BT_ERR_INVALID_ARG, "no case is called \"%s\"",
               o->only);
    BT_REQUIRE(o->json == NULL || json_dump_file(cases, o->json, JSON_INDENT(1)) == 0, BT_ERR_IO,
               "%s: %s", o->json, strerror(errno));
out:
    json_decref(cases);
    return st;
}

/* ---- options */

enum {
    OPT_BIN = 256,
    OPT_MODEL,
    OPT_REPEAT,
    OPT_JSON,
    OPT_ONLY,
    OPT_PERCENT,
    OPT_CORE,
    OPT_BUSY_POLL
};

static const struct argp_option OPTIONS[] = {
    BT_OPTION("bin", OPT_BIN, "DIR", "Where baton-coordinator is"),
    BT_OPTION("model", OPT_MODEL, "DIR", "A model directory (for its tokenizer)"),
    BT_OPTION("repeat", OPT_REPEAT, "N", "Runs of each case (3)"),
    BT_OPTION("case", OPT_ONLY, "NAME", "Only this one"),
    BT_OPTION("percent", OPT_PERCENT, "N", "Of each case's tokens (100)"),
    BT_OPTION("core", OPT_CORE, "N", "The coordinator's own processor (it shares all)"),
    BT_OPTION("busy-poll", OPT_BUSY_POLL, NULL, "The coordinator's --busy-poll"),
    BT_OPTION("json", OPT_JSON, "FILE", "Every run's figures"),
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    options *o = state->input;

    switch (key) {
    case OPT_BIN: o->bin = arg; return 0;
    case OPT_MODEL: o->model = arg; return 0;
    case OPT_REPEAT:
        o->repeat = (uint32_t)bt_option_number(state, "--repeat", arg, 1, MAX_REPEAT);
        return 0;
    case OPT_PERCENT:
        o->percent = (uint32_t)bt_option_number(state, "--percent", arg, 1, 100);
        return 0;
    case OPT_CORE:
        o->core = (int)bt_option_number(state, "--core", arg, 0, CPU_SETSIZE - 1);
        return 0;
    case OPT_JSON: o->json = arg; return 0;
    case OPT_ONLY: o->only = arg; return 0;
    case OPT_BUSY_POLL: o->busy_poll = true; return 0;
    case ARGP_KEY_END:
        if (o->bin == NULL || o->model == NULL) argp_error(state, "--bin and --model are missing");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

int main(int argc, char **argv)
{
    const struct argp parser = {OPTIONS, parse, NULL, NULL, NULL, NULL, NULL};
    options           o      = {.repeat = 3, .percent = 100, .core = -1};

    argp_parse(&parser, argc, argv, 0, NULL, &o);
    bt_log_init("bench", BT_LOG_WARN);
    signal(SIGPIPE, SIG_IGN);
    return bench(&o) == BT_OK ? EXIT_SUCCESS : EXIT_FAILURE;
}

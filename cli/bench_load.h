/* cli/bench_load.h - many Generate calls at once over the public protocol, and when things came.
 *
 * One thread, one completion queue, one connection.  Times are nanoseconds from the start of the
 * run, taken when this process sees a message. */
#ifndef BT_CLI_BENCH_LOAD_H
#define BT_CLI_BENCH_LOAD_H

#include <stdatomic.h>
#include <stddef.h>

#include "cli/bench_plan.h"
#include "core/status.h"
#include "proto/rpc.h"

enum {
    BT_BENCH_CODES    = 18, /* the 17 of gRPC, and */
    BT_BENCH_PROTOCOL = 17  /* OK, but what came was no proper answer */
};
const char *bt_bench_code_name(int code);

typedef struct {
    uint64_t due_ns; /* planned arrival; equals sent_ns without a rate */
    uint64_t sent_ns, first_ns, last_ns, end_ns; /* request, first token, last token, status */
    uint32_t n_prompt, n_wanted, n_tokens, n_messages, n_cached;
    size_t   first_message; /* its n_messages entries in bt_bench_run.messages, chained by `next` */
    int      code;          /* -1: had not ended when the run was stopped */
} bt_bench_record;

/* A message that brought tokens. */
typedef struct {
    uint64_t at_ns;
    uint32_t n_tokens;
    size_t   next; /* of the same request, or SIZE_MAX */
} bt_bench_message;

typedef struct {
    uint64_t          start_ns;   /* of the monotonic clock */
    uint64_t          elapsed_ns; /* from the first request to the last status */
    bool              stopped;
    size_t            n, capacity;
    bt_bench_record  *records; /* owned */
    size_t            n_messages, message_capacity;
    bt_bench_message *messages;                         /* owned */
    char              first_error[BT_BENCH_CODES][256]; /* the server's words, by code */
} bt_bench_run;

typedef struct {
    uint32_t n_running, n_failed;
    uint64_t n_sent, n_ended, n_tokens, elapsed_ns;
} bt_bench_progress;

typedef struct {
    const char          *address;
    bt_rpc_client_tls    tls;
    const bt_bench_plan *plan;
    uint64_t             first_request; /* index in the plan */
    uint64_t             n_requests;    /* at most */
    uint64_t             send_ns;       /* nothing is sent later; UINT64_MAX: no limit */
    uint32_t             concurrency;   /* at once; 0: as the plan's rate demands */
    uint64_t             timeout_ns;    /* of a request */
    float                temperature;
    bool                 ignore_eos;
    const atomic_int    *stop; /* nonzero: cancel everything and return */
    void (*progress)(void *ctx, const bt_bench_progress *p); /* some times a second; or NULL */
    void *ctx;
} bt_bench_load;

/* Errors of requests are results, not errors of the run: NO_MEMORY only.  Fill a zeroed run. */
bt_status bt_bench_load_run(const bt_bench_load *load, bt_bench_run *run);
void      bt_bench_run_fini(bt_bench_run *run);

#endif

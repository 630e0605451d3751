#include "bench/coord_clients.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "proto/rpc_call.h"
#include "proto/vllm_engine.pb-c.h"

enum { LIMIT_S = 300, CONNECTIONS = 4096, ARGS = 16 };

typedef struct clients clients;

typedef struct {
    bt_rpc_call rpc;
    clients    *all;
    uint32_t    stream, n_seen;
    bool        complete;
} stream;

struct clients {
    bench_shared         *shared;
    bt_rpc_loop          *loop;
    grpc_channel         *channels[CONNECTIONS];
    stream               *streams; /* owned */
    uint32_t              n_open;  /* streams */
    clockid_t             cpu;
    uint64_t              n_tokens, warm_tokens, wall_ns, cpu_ns; /* clocks: when warm */
    bench_clients_result *r;
    char                  wrong[256]; /* the first thing that was; "" */
};

static uint64_t cpu_ns(const clients *c)
{
    struct timespec t = {0};

    clock_gettime(c->cpu, &t);
    return (uint64_t)t.tv_sec * BT_NS_PER_S + (uint64_t)t.tv_nsec;
}

BT_PRINTF(2, 3) static void wrong(clients *c, const char *fmt, ...)
{
    va_list ap;

    if (c->wrong[0] != 0) return;
    va_start(ap, fmt);
    vsnprintf(c->wrong, sizeof(c->wrong), fmt, ap);
    va_end(ap);
}

/* ---- what comes */

static void take_chunk(stream *s, const Vllm__Grpc__Engine__GenerateStreamChunk *m)
{
    clients                *c    = s->all;
    bench_clients_result   *r    = c->r;
    uint32_t                n    = c->shared->load.n_tokens;
    uint64_t                now  = bt_now_ns();
    const _Atomic uint64_t *left = c->shared->left_ns + (size_t)s->stream * n;

    for (size_t i = 0; i < m->n_token_ids; i++, s->n_seen++) {
        if (s->n_seen >= n || m->token_ids[i] != bench_token(s->stream, s->n_seen)) {
            wrong(c, "stream %u: token %u is %u, expected %u", s->stream, s->n_seen,
                  m->token_ids[i], bench_token(s->stream, s->n_seen));
            return;
        }
        if (c->n_tokens++ < c->warm_tokens) continue;
        r->late_ns[r->n++] = now - atomic_load_explicit(&left[s->n_seen], memory_order_relaxed);
    }
    if (c->n_tokens >= c->warm_tokens && r->n_messages++ == 0) {
        c->wall_ns = now;
        c->cpu_ns  = cpu_ns(c);
    }
    atomic_store(&c->shared->n_received, c->n_tokens);
}

static void take_complete(stream *s, const Vllm__Grpc__Engine__GenerateComplete *m)
{
    s->complete = true;
    if (m->n_output_ids != s->n_seen || s->n_seen != s->all->shared->load.n_tokens)
        wrong(s->all, "stream %u: complete with %zu tokens after %u, expected %u", s->stream,
              m->n_output_ids, s->n_seen, s->all->shared->load.n_tokens);
}

static void on_message(bt_rpc_call *rpc, ProtobufCMessage *message)
{
    stream                                     *s = rpc->ctx;
    const Vllm__Grpc__Engine__GenerateResponse *m = (const void *)message;

    if (m == NULL)
        wrong(s->all, "stream %u: bytes that are no GenerateResponse", s->stream);
    else if (m->response_case == VLLM__GRPC__ENGINE__GENERATE_RESPONSE__RESPONSE_CHUNK)
        take_chunk(s, m->chunk);
    else
        take_complete(s, m->complete);
}

static void on_end(bt_rpc_call *rpc)
{
    stream *s = rpc->ctx;
    char    why[128];

    s->all->n_open--;
    bt_rpc_slice_text(rpc->details, why, sizeof(why));
    if (rpc->code != GRPC_STATUS_OK)
        wrong(s->all, "stream %u ended with status %d: %s", s->stream, (int)rpc->code, why);
}

/* ---- calls */

static void call_begin(clients *c, uint32_t i, grpc_channel *channel)
{
    stream                             *s      = &c->streams[i];
    Vllm__Grpc__Engine__GenerateRequest q      = VLLM__GRPC__ENGINE__GENERATE_REQUEST__INIT;
    Vllm__Grpc__Engine__TokenizedInput  input  = VLLM__GRPC__ENGINE__TOKENIZED_INPUT__INIT;
    Vllm__Grpc__Engine__SamplingParams  params = VLLM__GRPC__ENGINE__SAMPLING_PARAMS__INIT;
    uint32_t                            ids[BENCH_PROMPT];
    char                                name[32];

    for (uint32_t k = 0; k < BENCH_PROMPT; k++)
        ids[k] = i;
    snprintf(name, sizeof(name), "stream-%u", i);
    input.n_input_ids       = BENCH_PROMPT;
    input.input_ids         = ids;
    params._max_tokens_case = VLLM__GRPC__ENGINE__SAMPLING_PARAMS___MAX_TOKENS_MAX_TOKENS;
    params.max_tokens       = c->shared->load.n_tokens;
    q.request_id            = name;
    q.input_case            = VLLM__GRPC__ENGINE__GENERATE_REQUEST__INPUT_TOKENIZED;
    q.tokenized             = &input;
    q.sampling_params       = &params;
    q.stream                = true;
    *s                      = (stream){
                             .rpc    = {.answer     = &vllm__grpc__engine__generate_response__descriptor,
                                        .on_message = on_message,
                                        .on_end     = on_end,
                                        .ctx        = s},
                             .all    = c,
                             .stream = i
    };
    bt_rpc_call_start(&s->rpc, c->loop, channel, BENCH_GENERATE, &q.base, UINT64_MAX);
    c->n_open++;
}

static void open_channels(clients *c, const char *address, uint32_t n)
{
    grpc_channel_credentials *plain = grpc_insecure_credentials_create();
    const grpc_channel_args  *usual = bt_rpc_client_args();
    grpc_arg                  args[ARGS];
    grpc_channel_args         all = {usual->num_args + 1, args};

    BT_ASSERT(usual->num_args < ARGS);
    memcpy(args, usual->args, usual->num_args * sizeof(*args));
    args[usual->num_args] = (grpc_arg){.type          = GRPC_ARG_INTEGER,
                                       .key           = (char *)GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL,
                                       .value.integer = 1}; /* else they share one connection */
    for (uint32_t i = 0; i < n; i++)
        c->channels[i] = grpc_channel_create(address, plain, &all);
    grpc_channel_credentials_release(plain);
}

static bt_status drive(clients *c)
{
    bt_status st       = BT_OK;
    uint64_t  give_up  = bt_now_ns() + LIMIT_S * BT_NS_PER_S;
    bool      was_told = false;

    while (c->n_open > 0) {
        bt_rpc_loop_run_once(c->loop, bt_now_ns() + 100 * BT_NS_PER_MS);
        if (was_told ||
            (c->wrong[0] == 0 && !atomic_load(&c->shared->failed) && bt_now_ns() < give_up))
            continue;
        was_told = true;
        wrong(c, "%s",
              atomic_load(&c->shared->failed) ? "a rank has lost its stream"
                                              : "the streams did not end in time");
        for (uint32_t i = 0; i < c->shared->load.n_streams; i++)
            bt_rpc_call_cancel(&c->streams[i].rpc);
    }
    for (uint32_t i = 0; i < c->shared->load.n_streams && c->wrong[0] == 0; i++)
        if (!c->streams[i].complete) wrong(c, "stream %u has no complete message", i);
    BT_REQUIRE(c->wrong[0] == 0, BT_ERR_PROTOCOL, "%s", c->wrong);
out:
    return st;
}

bt_status bench_clients_run(const char *address, uint32_t n_connections, pid_t coordinator,
                            uint64_t warm_tokens, bench_shared *shared,
                            bench_clients_result *result_out)
{
    bt_status            st = BT_OK;
    bench_clients_result r  = {0};
    uint32_t             n  = shared->load.n_streams;
    clients              c  = {.shared = shared, .warm_tokens = warm_tokens, .r = &r};

    BT_REQUIRE(n_connections >= 1 && n_connections <= CONNECTIONS, BT_ERR_INVALID_ARG,
               "%u connections, expected 1 to %d", n_connections, CONNECTIONS);
    BT_REQUIRE(clock_getcpuclockid(coordinator, &c.cpu) == 0, BT_ERR_IO,
               "the coordinator's CPU clock");
    c.streams = bt_calloc(n, sizeof(*c.streams));
    r.late_ns = bt_calloc((size_t)n * shared->load.n_tokens, sizeof(*r.late_ns));
    BT_REQUIRE(c.streams != NULL && r.late_ns != NULL, BT_ERR_NO_MEMORY, "%u streams", n);
    BT_TRY(bt_rpc_loop_create(&c.loop));
    open_channels(&c, address, n_connections);
    for (uint32_t i = 0; i < n; i++)
        call_begin(&c, i, c.channels[i % n_connections]);
    BT_TRY(drive(&c));
    r.wall_s    = (double)(bt_now_ns() - c.wall_ns) * 1e-9;
    r.cpu_s     = (double)(cpu_ns(&c) - c.cpu_ns) * 1e-9;
    *result_out = r;
    r.late_ns   = NULL; /* handed over */
out:
    for (uint32_t i = 0; c.streams != NULL && i < n; i++)
        bt_rpc_call_fini(&c.streams[i].rpc);
    for (uint32_t i = 0; i < CONNECTIONS; i++)
        if (c.channels[i] != NULL) grpc_channel_destroy(c.channels[i]);
    bt_rpc_loop_destroy(c.loop);
    bt_free(c.streams);
    bt_free(r.late_ns);
    return st;
}

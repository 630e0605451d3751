/* What gRPC alone takes of a token's way: a server that does nothing but write, to the clients of
 * the coordinator's benchmark (bench/coord_clients.h).
 *
 *     bench_grpc_floor [STREAMS [STEPS]]        (32 500)
 *
 * Every 10 ms the server's thread wakes and starts one message on every stream, made before; all
 * streams are of one connection.  Printed, over the steps: from waking until the last message has
 * been written, with messages held together (coordinator/cork.h) as the coordinator does, and one
 * by one.  Neither the way from a rank nor the waking itself is in it. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/coord_clients.h"
#include "bench/stats.h"
#include "coordinator/cork.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "proto/rpc.h"
#include "proto/vllm_engine.pb-c.h"

enum { MAX_STREAMS = 1024, PERIOD_MS = 10 };

typedef struct server server;

typedef struct {
    server             *all;
    grpc_call          *call;
    gpr_timespec        deadline;
    grpc_metadata_array headers;
    grpc_byte_buffer   *payload, *next;
    bt_connection      *connection;
    uint32_t            stream;
    int                 cancelled;
    bt_rpc_tag          arrived, sent, closed;
} flow;

struct server {
    bench_shared *shared;
    bool          held;
    bt_rpc_loop  *loop;
    grpc_server  *grpc;
    void         *method;
    uint16_t      port;
    bt_corks      corks;
    flow          flows[MAX_STREAMS];
    uint32_t      n_flows, n_sending;
    uint64_t     *took_ns; /* owned [n_tokens] */
    bt_rpc_tag    down;
};

static void ignore(bt_rpc_tag *tag, bool ok)
{
    (void)tag;
    (void)ok;
}

static void on_sent(bt_rpc_tag *tag, bool ok)
{
    flow *f = tag->ctx;

    (void)ok;
    f->all->n_sending--;
}

static void begin(flow *f, const grpc_op *ops, size_t n, bt_rpc_tag *tag)
{
    BT_ASSERT(grpc_call_start_batch(f->call, ops, n, tag, NULL) == GRPC_CALL_OK);
    bt_rpc_loop_begin(f->all->loop);
}

static void listen_for(server *s);

static void on_arrived(bt_rpc_tag *tag, bool ok)
{
    flow                                *f = tag->ctx;
    Vllm__Grpc__Engine__GenerateRequest *q;
    grpc_op                              head = {.op = GRPC_OP_SEND_INITIAL_METADATA},
            end                               = {.op = GRPC_OP_RECV_CLOSE_ON_SERVER};

    if (!ok) return;
    q = (Vllm__Grpc__Engine__GenerateRequest *)bt_rpc_unpack(
        f->payload, &vllm__grpc__engine__generate_request__descriptor);
    BT_ASSERT(q != NULL && q->tokenized != NULL && q->tokenized->n_input_ids > 0);
    f->stream     = q->tokenized->input_ids[0];
    f->connection = bt_cork_join(&f->all->corks, f->call);
    protobuf_c_message_free_unpacked(&q->base, NULL);
    end.data.recv_close_on_server.cancelled = &f->cancelled;
    begin(f, &end, 1, &f->closed);
    begin(f, &head, 1, &f->sent);
    f->all->n_sending++;
    f->all->n_flows++;
    listen_for(f->all);
}

static void listen_for(server *s)
{
    flow *f = &s->flows[s->n_flows];

    if (s->n_flows == s->shared->load.n_streams) return;
    *f         = (flow){.all = s};
    f->arrived = (bt_rpc_tag){on_arrived, f};
    f->sent    = (bt_rpc_tag){on_sent, f};
    f->closed  = (bt_rpc_tag){ignore, f};
    grpc_metadata_array_init(&f->headers);
    BT_ASSERT(grpc_server_request_registered_call(
                  s->grpc, s->method, &f->call, &f->deadline, &f->headers, &f->payload,
                  bt_rpc_loop_cq(s->loop), bt_rpc_loop_cq(s->loop), &f->arrived) == GRPC_CALL_OK);
    bt_rpc_loop_begin(s->loop);
}

static grpc_byte_buffer *chunk(const flow *f, uint32_t i)
{
    Vllm__Grpc__Engine__GenerateStreamChunk m  = VLLM__GRPC__ENGINE__GENERATE_STREAM_CHUNK__INIT;
    Vllm__Grpc__Engine__GenerateResponse    r  = VLLM__GRPC__ENGINE__GENERATE_RESPONSE__INIT;
    uint32_t                                id = bench_token(f->stream, i);

    m.n_token_ids   = 1;
    m.token_ids     = &id;
    m.prompt_tokens = BENCH_PROMPT;
    r.response_case = VLLM__GRPC__ENGINE__GENERATE_RESPONSE__RESPONSE_CHUNK;
    r.chunk         = &m;
    return bt_rpc_pack(&r.base);
}

static void step(server *s, uint32_t i)
{
    uint32_t n_tokens = s->shared->load.n_tokens;
    uint64_t woken    = bt_now_ns();

    for (uint32_t k = 0; k < s->n_flows; k++) {
        flow   *f  = &s->flows[k];
        grpc_op op = {.op = GRPC_OP_SEND_MESSAGE};

        op.data.send_message.send_message = f->next;
        atomic_store(&s->shared->left_ns[(size_t)f->stream * n_tokens + i], woken);
        if (s->held) bt_cork_hold(&s->corks, f->connection);
        begin(f, &op, 1, &f->sent); /* it completes in the loop, which is not run here */
    }
    bt_cork_release(&s->corks);
    s->took_ns[i] = bt_now_ns() - woken;
    s->n_sending += s->n_flows;
    while (s->n_sending > 0)
        bt_rpc_loop_run_once(s->loop, bt_now_ns() + 10 * BT_NS_PER_MS);
}

static void finish(flow *f)
{
    Vllm__Grpc__Engine__GenerateComplete done = VLLM__GRPC__ENGINE__GENERATE_COMPLETE__INIT;
    Vllm__Grpc__Engine__GenerateResponse r    = VLLM__GRPC__ENGINE__GENERATE_RESPONSE__INIT;
    uint32_t                             n    = f->all->shared->load.n_tokens;
    uint32_t                            *ids  = bt_calloc(n, sizeof(*ids));
    grpc_op ops[2]   = {{.op = GRPC_OP_SEND_MESSAGE}, {.op = GRPC_OP_SEND_STATUS_FROM_SERVER}};
    char    reason[] = "length";

    BT_ASSERT(ids != NULL);
    done.n_output_ids  = n;
    done.output_ids    = ids;
    done.finish_reason = reason;
    r.response_case    = VLLM__GRPC__ENGINE__GENERATE_RESPONSE__RESPONSE_COMPLETE;
    r.complete         = &done;
    f->next            = bt_rpc_pack(&r.base);
    ops[0].data.send_message.send_message = f->next;
    begin(f, ops, 2, &f->sent);
    f->all->n_sending++;
    grpc_byte_buffer_destroy(f->next);
    bt_free(ids);
}

static void *serve(void *arg)
{
    server  *s = arg;
    uint64_t next_ns;

    while (s->n_flows < s->shared->load.n_streams || s->n_sending > 0)
        bt_rpc_loop_run_once(s->loop, bt_now_ns() + 10 * BT_NS_PER_MS);
    next_ns = bt_now_ns() + 100 * BT_NS_PER_MS;
    for (uint32_t i = 0; i < s->shared->load.n_tokens; i++) {
        for (uint32_t k = 0; k < s->n_flows; k++)
            s->flows[k].next = chunk(&s->flows[k], i);
        while (bt_now_ns() < next_ns)
            bt_rpc_loop_run_once(s->loop, next_ns);
        step(s, i);
        for (uint32_t k = 0; k < s->n_flows; k++)
            grpc_byte_buffer_destroy(s->flows[k].next);
        next_ns += PERIOD_MS * BT_NS_PER_MS;
    }
    for (uint32_t k = 0; k < s->n_flows; k++)
        finish(&s->flows[k]);
    while (!bt_rpc_loop_idle(s->loop))
        bt_rpc_loop_run_once(s->loop, bt_now_ns() + 10 * BT_NS_PER_MS);
    return NULL;
}

static void server_stop(server *s)
{
    for (uint32_t k = 0; k < s->n_flows; k++) {
        bt_cork_leave(&s->corks, s->flows[k].connection);
        grpc_metadata_array_destroy(&s->flows[k].headers);
        grpc_byte_buffer_destroy(s->flows[k].payload);
        grpc_call_unref(s->flows[k].call);
    }
    s->down = (bt_rpc_tag){ignore, s};
    grpc_server_shutdown_and_notify(s->grpc, bt_rpc_loop_cq(s->loop), &s->down);
    bt_rpc_loop_begin(s->loop);
    while (!bt_rpc_loop_idle(s->loop))
        bt_rpc_loop_run_once(s->loop, bt_now_ns() + 10 * BT_NS_PER_MS);
    grpc_server_destroy(s->grpc);
    bt_cork_fini(&s->corks);
    bt_rpc_loop_destroy(s->loop);
}

static void print(uint64_t *v, uint32_t n, bool held)
{
    printf("| %s | %.0f | %.0f |\n", held ? "held together" : "one by one",
           bench_percentile_us(v, n, 0.5), bench_percentile_us(v, n, 0.99));
}

static void measure(bench_shared *shared, bool held)
{
    static server        s;
    bt_status            st = BT_OK;
    bench_clients_result r  = {0};
    pthread_t            thread;
    char                 address[64];
    bool                 runs = false;

    s         = (server){.shared = shared, .held = held};
    s.took_ns = bt_calloc(shared->load.n_tokens, sizeof(*s.took_ns));
    BT_REQUIRE(s.took_ns != NULL, BT_ERR_NO_MEMORY, "times");
    BT_TRY(bt_rpc_loop_create(&s.loop));
    s.grpc = grpc_server_create(bt_rpc_server_args(), NULL);
    grpc_server_register_completion_queue(s.grpc, bt_rpc_loop_cq(s.loop), NULL);
    s.method = grpc_server_register_method(s.grpc, BENCH_GENERATE, NULL,
                                           GRPC_SRM_PAYLOAD_READ_INITIAL_BYTE_BUFFER, 0);
    BT_TRY(bt_rpc_listen(s.grpc, "127.0.0.1:0", NULL, &s.port));
    s.corks.port = s.port;
    grpc_server_start(s.grpc);
    listen_for(&s);
    runs = pthread_create(&thread, NULL, serve, &s) == 0;
    BT_REQUIRE(runs, BT_ERR_NO_MEMORY, "a thread");
    snprintf(address, sizeof(address), "127.0.0.1:%u", s.port);
    BT_TRY(bench_clients_run(address, 1, getpid(), 1, shared, &r));
    pthread_join(thread, NULL);
    print(s.took_ns, shared->load.n_tokens, held);
    server_stop(&s);
out:
    if (st != BT_OK) exit(EXIT_FAILURE); /* the thread may still use everything */
    bt_free(r.late_ns);
    bt_free(s.took_ns);
}

int main(int argc, char **argv)
{
    bench_shared shared = {
        .load = {.n_ranks   = 1,
                 .n_streams = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 32,
                 .n_tokens  = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 500}
    };
    size_t all = (size_t)shared.load.n_streams * shared.load.n_tokens;

    bt_log_init("bench", BT_LOG_WARN);
    if (all == 0 || shared.load.n_streams > MAX_STREAMS || shared.load.n_tokens > 100000) {
        fprintf(stderr, "usage: bench_grpc_floor [STREAMS, up to %d [STEPS]]\n", MAX_STREAMS);
        return 64;
    }
    shared.left_ns = bt_calloc(all, sizeof(*shared.left_ns));
    if (shared.left_ns == NULL) return EXIT_FAILURE;
    printf("| %u messages | p50 us | p99 us |\n|---|---|---|\n", shared.load.n_streams);
    measure(&shared, true);
    measure(&shared, false);
    bt_free(shared.left_ns);
    return EXIT_SUCCESS;
}

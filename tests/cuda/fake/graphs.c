/* tests/cuda/fake/graphs.c - captured work of the fake GPU: see cuda_runtime_api.h. */
#include <stdlib.h>

#include "tests/cuda/fake/inside.h"

enum { MAX_LANES = 4 };

typedef struct {
    fake_op  op; /* a record has the number of its node, a wait that of the record's */
    unsigned lane;
} node;

struct fake_graph {
    unsigned      n, capacity, n_lanes, holders;
    node         *nodes; /* owned */
    cudaStream_t  lanes[MAX_LANES];
    int           spoiled;
    unsigned long number; /* of the capture */
};

static struct fake_graph *g_capture; /* that is on */
static unsigned long      g_n_captures;

int fake_capture_is_on(void) { return g_capture != NULL; }

static unsigned lane_of(const struct fake_graph *g, cudaStream_t stream)
{
    unsigned i = 0;

    while (i < g->n_lanes && g->lanes[i] != stream)
        i++;
    return i;
}

int fake_capture_has(cudaStream_t stream)
{
    return g_capture != NULL && lane_of(g_capture, stream) < g_capture->n_lanes;
}

cudaError_t fake_capture_refuse(void)
{
    g_capture->spoiled = 1;
    return cudaErrorStreamCaptureUnsupported;
}

cudaError_t fake_capture_add(cudaStream_t stream, const fake_op *op)
{
    struct fake_graph *g    = g_capture;
    unsigned           lane = lane_of(g, stream);
    node               added;

    if (op->kind == AWAIT && op->event->capture != g->number) {
        g->spoiled = 1; /* a graph waits for nothing outside it */
        return cudaErrorStreamCaptureIsolation;
    }
    if (lane == g->n_lanes) { /* by this wait the stream takes part */
        if (lane == MAX_LANES) abort();
        g->lanes[g->n_lanes++] = stream;
    }
    if (g->n == g->capacity) {
        g->capacity = g->capacity == 0 ? 64 : 2 * g->capacity;
        g->nodes    = realloc(g->nodes, g->capacity * sizeof(*g->nodes));
    }
    added = (node){*op, lane};
    if (op->kind == RECORD) {
        op->event->capture = g->number;
        op->event->node    = g->n;
    }
    if (op->kind == AWAIT) added.op.number = op->event->node;
    added.op.event   = NULL;
    g->nodes[g->n++] = added;
    return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode)
{
    (void)mode;
    if (g_capture != NULL) return fake_capture_refuse();
    if (fake_gpu_step() != cudaSuccess) return cudaErrorInvalidValue;
    g_capture  = calloc(1, sizeof(*g_capture));
    *g_capture = (struct fake_graph){
        .holders = 1, .n_lanes = 1, .lanes = {stream}, .number = ++g_n_captures};
    g_fake_gpu.live++;
    return cudaSuccess;
}

/* The lane's last piece of work is a record that another lane waits for. */
static int is_joined(const struct fake_graph *g, unsigned lane)
{
    unsigned last = 0;

    for (unsigned i = 0; i < g->n; i++)
        if (g->nodes[i].lane == lane) last = i;
    if (g->nodes[last].op.kind != RECORD) return 0;
    for (unsigned i = last; i < g->n; i++)
        if (g->nodes[i].op.kind == AWAIT && g->nodes[i].op.number == last) return 1;
    return 0;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    struct fake_graph *g   = g_capture;
    cudaError_t        err = fake_gpu_step();

    if (g == NULL || g->lanes[0] != stream) return cudaErrorInvalidValue;
    g_capture = NULL;
    if (g->spoiled) err = cudaErrorStreamCaptureInvalidated;
    for (unsigned lane = 1; lane < g->n_lanes; lane++)
        if (!is_joined(g, lane)) err = cudaErrorStreamCaptureUnjoined;
    *graph = err == cudaSuccess ? g : NULL;
    if (err != cudaSuccess) cudaGraphDestroy(g);
    return err;
}

void fake_graph_hold(cudaGraph_t g) { g->holders++; }

void fake_graph_release(cudaGraph_t g)
{
    if (g == NULL || --g->holders > 0) return;
    for (unsigned i = 0; i < g->n; i++)
        fake_op_fini(&g->nodes[i].op);
    free(g->nodes);
    free(g);
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    fake_graph_release(graph);
    g_fake_gpu.live--;
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags)
{
    (void)flags;
    if (fake_gpu_step() != cudaSuccess) return cudaErrorInvalidValue;
    fake_graph_hold(graph);
    g_fake_gpu.live++;
    *exec = graph;
    return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream)
{
    (void)exec, (void)stream;
    return fake_gpu_step();
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) { return cudaGraphDestroy(exec); }

void fake_graph_run(cudaGraph_t g)
{
    unsigned       at[MAX_LANES], left = g->n;
    unsigned char *done = calloc(g->n + 1, 1);

    for (unsigned lane = 0; lane < g->n_lanes; lane++)
        at[lane] = 0;
    while (left > 0) {
        unsigned    lane = fake_gpu_random_below(g->n_lanes);
        const node *n;

        while (at[lane] < g->n && g->nodes[at[lane]].lane != lane)
            at[lane]++;
        if (at[lane] == g->n) continue;
        n = &g->nodes[at[lane]];
        if (n->op.kind == AWAIT && !done[n->op.number]) continue;
        if (n->op.kind != RECORD) fake_op_run(&n->op);
        done[at[lane]++] = 1;
        left--;
    }
    free(done);
}

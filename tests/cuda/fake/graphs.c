/* tests/cuda/fake/graphs.c - captured work of the fake GPU: see cuda_runtime_api.h. */
#include <stdlib.h>

#include "tests/cuda/fake/inside.h"

enum { MAX_LANES = 4, NODE_BYTES = 4 << 10 }; /* that a node of an executable takes of the GPU */

typedef struct {
    fake_op  op; /* a record has the number of its node, a wait that of the record's */
    unsigned lane;
} node;

struct fake_graph {
    unsigned      n, capacity, n_lanes;
    unsigned      handles; /* of the program */
    unsigned      holders; /* those, and launches under way */
    node         *nodes;   /* owned */
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

unsigned long fake_gpu_capture_of(cudaStream_t stream)
{
    return fake_capture_has(stream) ? g_capture->number : 0;
}

void fake_gpu_capture(cudaStream_t stream, const fake_foreign *work)
{
    if (fake_capture_add(stream, &(fake_op){.kind = FOREIGN, .foreign = *work}) != cudaSuccess)
        abort();
}

cudaError_t fake_capture_refuse(void)
{
    g_capture->spoiled = 1;
    return fake_error(cudaErrorStreamCaptureUnsupported);
}

cudaError_t fake_capture_add(cudaStream_t stream, const fake_op *op)
{
    struct fake_graph *g    = g_capture;
    unsigned           lane = lane_of(g, stream);
    node               added;

    if (op->kind == AWAIT && op->event->capture != g->number) {
        g->spoiled = 1; /* a graph waits for nothing outside it */
        return fake_error(cudaErrorStreamCaptureIsolation);
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
    if (fake_gpu_step() != cudaSuccess) return fake_last_error();
    g_capture  = calloc(1, sizeof(*g_capture));
    *g_capture = (struct fake_graph){
        .handles = 1, .holders = 1, .n_lanes = 1, .lanes = {stream}, .number = ++g_n_captures};
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

    if (g == NULL || g->lanes[0] != stream) return fake_error(cudaErrorInvalidValue);
    g_capture = NULL;
    if (g->spoiled) err = cudaErrorStreamCaptureInvalidated;
    for (unsigned lane = 1; lane < g->n_lanes; lane++)
        if (!is_joined(g, lane)) err = cudaErrorStreamCaptureUnjoined;
    *graph = err == cudaSuccess ? g : NULL;
    if (err == cudaSuccess) return err;
    cudaGraphDestroy(g);
    return fake_error(err);
}

void fake_graph_hold(cudaGraph_t g) { g->holders++; }

void fake_graph_release(cudaGraph_t g)
{
    if (g == NULL || --g->holders > 0) return;
    for (unsigned i = 0; i < g->n; i++) {
        node *n = &g->nodes[i];

        if (n->op.kind == FOREIGN) n->op.foreign.release(n->op.foreign.of);
        fake_op_fini(&n->op);
    }
    free(g->nodes);
    free(g);
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    graph->handles--;
    for (unsigned i = 0; i < graph->n && graph->handles == 0; i++)
        if (graph->nodes[i].op.kind == FOREIGN)
            graph->nodes[i].op.foreign.dropped(graph->nodes[i].op.foreign.of);
    fake_graph_release(graph);
    g_fake_gpu.live--;
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags)
{
    (void)flags;
    if (fake_gpu_step() != cudaSuccess) return fake_last_error();
    if (graph->n * (size_t)NODE_BYTES > g_fake_gpu.bytes - g_fake_gpu.taken)
        return fake_error(cudaErrorMemoryAllocation);
    g_fake_gpu.taken += graph->n * (size_t)NODE_BYTES;
    fake_graph_hold(graph);
    graph->handles++;
    g_fake_gpu.live++;
    *exec = graph;
    return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream)
{
    (void)exec, (void)stream;
    return fake_gpu_step();
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    g_fake_gpu.taken -= exec->n * (size_t)NODE_BYTES;
    return cudaGraphDestroy(exec);
}

/* ---- launches */

typedef enum { AHEAD, BEGUN, DONE } node_state;
struct fake_run {
    unsigned       at[MAX_LANES], left;
    unsigned char *states;   /* owned, [nodes] */
    int           *finished; /* owned, [nodes]: what other libraries say of their own */
};

static fake_run *run_new(const struct fake_graph *g)
{
    fake_run *r = calloc(1, sizeof(*r));

    r->left     = g->n;
    r->states   = calloc(g->n + 1, sizeof(*r->states));
    r->finished = calloc(g->n + 1, sizeof(*r->finished));
    return r;
}

void fake_run_free(fake_run *run)
{
    if (run == NULL) return;
    free(run->finished);
    free(run->states);
    free(run);
}

/* The next node of a lane, if it can move. */
static node *next_of(const struct fake_graph *g, fake_run *r, unsigned lane)
{
    node *n;

    while (r->at[lane] < g->n &&
           (g->nodes[r->at[lane]].lane != lane || r->states[r->at[lane]] == DONE))
        r->at[lane]++;
    if (r->at[lane] == g->n) return NULL;
    n = &g->nodes[r->at[lane]];
    if (n->op.kind == AWAIT && r->states[n->op.number] != DONE) return NULL;
    if (r->states[r->at[lane]] == BEGUN && !r->finished[r->at[lane]]) return NULL;
    return n;
}

int fake_graph_can_move(const fake_op *launch)
{
    const struct fake_graph *g = launch->graph;

    if (launch->run == NULL || launch->run->left == 0) return 1;
    for (unsigned lane = 0; lane < g->n_lanes; lane++)
        if (next_of(g, launch->run, lane) != NULL) return 1;
    return 0;
}

/* A node runs; one of another library begins, and has ended when it says so. */
static void move_node(fake_run *r, node *n, unsigned i)
{
    if (n->op.kind == FOREIGN && r->states[i] == AHEAD) {
        r->states[i] = BEGUN;
        n->op.foreign.begin(n->op.foreign.of, &r->finished[i]);
        return;
    }
    if (n->op.kind != RECORD) fake_op_run(&n->op);
    r->states[i] = DONE;
    r->left--;
}

int fake_graph_move(fake_op *launch)
{
    struct fake_graph *g = launch->graph;

    if (launch->run == NULL) launch->run = run_new(g);
    while (launch->run->left > 0 && fake_graph_can_move(launch)) {
        unsigned lane = fake_gpu_random_below(g->n_lanes);
        node    *n    = next_of(g, launch->run, lane);

        if (n != NULL) move_node(launch->run, n, (unsigned)(n - g->nodes));
    }
    return launch->run->left == 0;
}

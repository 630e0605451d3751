/* device/cuda/graph.c - work captured from the device's streams, to be enqueued by one call. */
#include "core/alloc.h"
#include "device/cuda/device_cuda.h"

struct bt_graph {
    cudaGraphExec_t exec; /* owned */
};

static bt_status begin(bt_device *dev)
{
    bt_device_cuda *cuda = (bt_device_cuda *)dev;
    bt_status       st   = BT_OK;

    BT_ASSERT(cuda->stream == cuda->main && !cuda->capturing);
    /* Of this thread alone: NCCL has threads of its own. */
    BT_TRY(CUDA(cudaStreamBeginCapture(cuda->main, cudaStreamCaptureModeThreadLocal)));
    cuda->capturing = true;
out:
    return st;
}

static void destroy(bt_device *dev, bt_graph *graph)
{
    (void)dev;
    if (graph == NULL) return;
    if (graph->exec != NULL) (void)CUDA(cudaGraphExecDestroy(graph->exec));
    bt_free(graph);
}

static bt_status end(bt_device *dev, bt_graph **graph_out)
{
    bt_status       st       = BT_OK;
    bt_device_cuda *cuda     = (bt_device_cuda *)dev;
    cudaGraph_t     captured = NULL;
    bt_graph       *graph    = NULL;

    if (!cuda->capturing) {
        BT_ASSERT(graph_out == NULL);
        return BT_OK;
    }
    cuda->stream    = cuda->main; /* whatever failed between */
    cuda->capturing = false;
    if (graph_out == NULL) {
        if (cudaStreamEndCapture(cuda->main, &captured) != cudaSuccess) (void)cudaGetLastError();
        goto out; /* whatever spoiled it has been told */
    }
    BT_TRY(CUDA(cudaStreamEndCapture(cuda->main, &captured)));
    graph = bt_calloc(1, sizeof(*graph));
    BT_REQUIRE(graph != NULL, BT_ERR_NO_MEMORY, "a graph");
    BT_TRY(CUDA(cudaGraphInstantiate(&graph->exec, captured, 0)));
    BT_TRY(CUDA(cudaGraphUpload(graph->exec, cuda->main))); /* not at its first launch */
    *graph_out = graph;
    graph      = NULL; /* handed over */
out:
    if (captured != NULL) (void)cudaGraphDestroy(captured);
    destroy(dev, graph);
    return st;
}

static bt_status launch(bt_device *dev, bt_graph *graph)
{
    return CUDA(cudaGraphLaunch(graph->exec, ((bt_device_cuda *)dev)->main));
}

const bt_graph_ops bt_cuda_graph_ops = {
    .begin = begin, .end = end, .launch = launch, .destroy = destroy};

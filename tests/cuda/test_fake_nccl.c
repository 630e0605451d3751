/* NCCL's twin (fake/nccl.h) in captures: what runs when, and what is a mistake.  One rank, but for
 * the mistake that takes two. */
#include <nccl.h>
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/test.h"

enum { N = 64 };

static cudaStream_t g_stream;
static ncclComm_t   g_comm;
static uint8_t     *g_memory;

static void open_all(void)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId id;
    ncclResult_t state = ncclInProgress;

    config.blocking = config.splitShare = 0;
    config.commName                     = "one rank";
    EXPECT_EQ(cudaStreamCreateWithFlags(&g_stream, cudaStreamNonBlocking), cudaSuccess);
    EXPECT_EQ(cudaMalloc((void **)&g_memory, 2 * N), cudaSuccess);
    EXPECT_EQ(ncclGetUniqueId(&id), ncclSuccess);
    EXPECT_EQ(ncclCommInitRankConfig(&g_comm, 1, id, 0, &config), ncclInProgress);
    while (state == ncclInProgress)
        EXPECT_EQ(ncclCommGetAsyncError(g_comm, &state), ncclSuccess);
    EXPECT_EQ(state, ncclSuccess);
}

static void close_all(void)
{
    EXPECT_EQ(ncclCommAbort(g_comm), ncclSuccess);
    cudaFree(g_memory);
    cudaStreamDestroy(g_stream);
    EXPECT_EQ(g_fake_nccl.live, 0);
    EXPECT_EQ(g_fake_gpu.live, 0);
}

static ncclResult_t settle_call(void)
{
    ncclResult_t state = ncclInProgress;

    while (state == ncclInProgress)
        ncclCommGetAsyncError(g_comm, &state);
    return state;
}

/* memory[0..N) to memory[N..2N) by way of NCCL. */
static void copy(void)
{
    ncclGroupStart();
    ncclSend(g_memory, N, ncclChar, 0, g_comm, g_stream);
    ncclRecv(g_memory + N, N, ncclChar, 0, g_comm, g_stream);
    EXPECT_EQ(ncclGroupEnd(), ncclInProgress);
}

static cudaGraphExec_t captured(void)
{
    cudaGraph_t     graph = NULL;
    cudaGraphExec_t exec  = NULL;

    EXPECT_EQ(cudaStreamBeginCapture(g_stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    copy();
    EXPECT_EQ(settle_call(), ncclSuccess);
    EXPECT_EQ(cudaStreamEndCapture(g_stream, &graph), cudaSuccess);
    EXPECT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
    return exec;
}

static void expect_copied(int value, int in_place)
{
    uint8_t out[2 * N];

    EXPECT_EQ(cudaMemcpyAsync(out, g_memory, 2 * N, cudaMemcpyDeviceToHost, g_stream), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(g_stream), cudaSuccess);
    EXPECT(out[0] == value && out[N - 1] == value);
    EXPECT(out[N] == in_place && out[2 * N - 1] == in_place);
}

static void captured_operation_runs_at_launches_alone(void)
{
    cudaGraphExec_t exec;

    open_all();
    cudaMemsetAsync(g_memory, 1, 2 * N, g_stream);
    exec = captured();
    cudaMemsetAsync(g_memory, 2, N, g_stream);
    expect_copied(2, 1);
    for (int value = 3; value < 6; value++) {
        cudaMemsetAsync(g_memory, value, N, g_stream);
        EXPECT_EQ(cudaGraphLaunch(exec, g_stream), cudaSuccess);
        expect_copied(value, value);
    }
    EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
    close_all();
}

/* So much stands before the graph that NCCL has taken the call before the graph begins. */
static void call_behind_a_graph_lets_it_run_first(void)
{
    enum { AHEAD = 100 };
    cudaGraphExec_t exec;
    long            before = g_fake_nccl.n_launched;

    open_all();
    exec = captured();
    for (int i = 0; i < AHEAD; i++)
        cudaMemsetAsync(g_memory, 3, N, g_stream);
    EXPECT_EQ(cudaGraphLaunch(exec, g_stream), cudaSuccess);
    copy();
    EXPECT_EQ(settle_call(), ncclSuccess);
    EXPECT_EQ(g_fake_nccl.n_launched, before + 1); /* the call alone */
    cudaMemsetAsync(g_memory, 4, N, g_stream);
    expect_copied(4, 3);
    EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
    close_all();
}

/* A launch that is under way when its graph and its communicator go comes to an end. */
static void graph_may_be_destroyed_while_it_runs(void)
{
    cudaGraphExec_t exec;

    open_all();
    exec                = captured();
    g_fake_nccl.stalled = 1;
    EXPECT_EQ(cudaGraphLaunch(exec, g_stream), cudaSuccess);
    for (int i = 0; i < 20; i++)
        fake_gpu_progress();
    EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
    EXPECT_EQ(ncclCommAbort(g_comm), ncclSuccess);
    EXPECT_EQ(cudaStreamSynchronize(g_stream), cudaSuccess);
    g_fake_nccl.stalled = 0;
    cudaFree(g_memory);
    cudaStreamDestroy(g_stream);
    EXPECT_EQ(g_fake_nccl.live, 0);
    EXPECT_EQ(g_fake_gpu.live, 0);
}

/* A mistake ends the process, with these words. */
static void expect_end(void (*mistake)(void), const char *words)
{
    char    text[300] = "";
    int     fd[2], how = 0;
    pid_t   child;
    ssize_t n;

    if (pipe(fd) != 0 || (child = fork()) < 0) abort();
    if (child == 0) {
        dup2(fd[1], STDERR_FILENO);
        open_all();
        mistake();
        _exit(0);
    }
    close(fd[1]);
    for (size_t at = 0; (n = read(fd[0], text + at, sizeof(text) - 1 - at)) > 0; at += (size_t)n)
        ;
    close(fd[0]);
    EXPECT(waitpid(child, &how, 0) == child && WIFSIGNALED(how));
    EXPECT_HAS(text, words);
}

static void end_before_the_graph(void)
{
    (void)captured();
    ncclCommAbort(g_comm);
}

static void work_during_a_call(void)
{
    copy();
    cudaMemsetAsync(g_memory, 1, N, g_stream);
}

/* Real NCCL hangs in the one, and forbids the other. */
static void mistakes_are_told(void)
{
    expect_end(end_before_the_graph, "one rank is to end while graphs hold 1 of its operations");
    expect_end(work_during_a_call, "a stream that NCCL has a call in progress on");
}

/* NCCL has not put the call into the stream when the capture ends: it would run outside. */
static void capture_that_ends_too_early_is_an_error(void)
{
    cudaGraph_t graph = NULL;

    open_all();
    EXPECT_EQ(cudaStreamBeginCapture(g_stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    copy();
    EXPECT_EQ(cudaStreamEndCapture(g_stream, &graph), cudaSuccess);
    EXPECT_EQ(settle_call(), ncclInvalidUsage);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
    close_all();
}

/* Ranks 0 and 1, both here. */
typedef struct {
    ncclComm_t      comm;
    cudaStream_t    stream;
    uint8_t        *memory;
    cudaGraphExec_t graphs[3]; /* [0]: none, a plain call */
} one_of_two;

static ncclResult_t settle_two(one_of_two two[2])
{
    ncclResult_t state[2] = {ncclInProgress, ncclInProgress};

    while (state[0] == ncclInProgress || state[1] == ncclInProgress)
        for (int i = 0; i < 2; i++)
            ncclCommGetAsyncError(two[i].comm, &state[i]);
    return state[0] != ncclSuccess ? state[0] : state[1];
}

static void open_two(one_of_two two[2])
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId id;

    config.blocking = config.splitShare = 0;
    config.commName                     = "two ranks";
    EXPECT_EQ(ncclGetUniqueId(&id), ncclSuccess);
    for (int i = 0; i < 2; i++) {
        two[i] = (one_of_two){.graphs = {NULL}};
        EXPECT_EQ(cudaStreamCreateWithFlags(&two[i].stream, cudaStreamNonBlocking), cudaSuccess);
        EXPECT_EQ(cudaMalloc((void **)&two[i].memory, N), cudaSuccess);
        EXPECT_EQ(ncclCommInitRankConfig(&two[i].comm, 2, id, i, &config), ncclInProgress);
    }
    EXPECT_EQ(settle_two(two), ncclSuccess);
}

static void close_two(one_of_two two[2])
{
    for (int i = 0; i < 2; i++)
        for (int k = 1; k < 3; k++)
            EXPECT_EQ(cudaGraphExecDestroy(two[i].graphs[k]), cudaSuccess);
    ncclGroupStart();
    for (int i = 0; i < 2; i++)
        EXPECT_EQ(ncclCommAbort(two[i].comm), ncclSuccess);
    EXPECT_EQ(ncclGroupEnd(), ncclSuccess);
    for (int i = 0; i < 2; i++) {
        cudaFree(two[i].memory);
        cudaStreamDestroy(two[i].stream);
    }
}

/* The first sends to the second: its part of that. */
static void call(const one_of_two *two, int i)
{
    ncclResult_t called = i == 0 ? ncclSend(two->memory, N, ncclChar, 1, two->comm, two->stream)
                                 : ncclRecv(two->memory, N, ncclChar, 0, two->comm, two->stream);

    EXPECT_EQ(called, ncclInProgress);
}

static void capture_both(one_of_two *one, int i)
{
    ncclResult_t state = ncclInProgress;
    cudaGraph_t  graph = NULL;

    for (int k = 1; k < 3; k++) {
        EXPECT_EQ(cudaStreamBeginCapture(one->stream, cudaStreamCaptureModeThreadLocal),
                  cudaSuccess);
        call(one, i);
        for (state = ncclInProgress; state == ncclInProgress;)
            ncclCommGetAsyncError(one->comm, &state);
        EXPECT_EQ(cudaStreamEndCapture(one->stream, &graph), cudaSuccess);
        EXPECT_EQ(cudaGraphInstantiate(&one->graphs[k], graph, 0), cudaSuccess);
        EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
    }
}

/* What comes of it when the ranks launch these of their graphs. */
static ncclResult_t meet(int first, int second)
{
    one_of_two   two[2];
    int          graph[2] = {first, second};
    cudaEvent_t  received = NULL;
    ncclResult_t state;

    open_two(two);
    EXPECT_EQ(cudaEventCreateWithFlags(&received, cudaEventDisableTiming), cudaSuccess);
    for (int i = 0; i < 2; i++)
        capture_both(&two[i], i);
    for (int i = 0; i < 2; i++) {
        if (graph[i] == 0)
            call(&two[i], i);
        else
            EXPECT_EQ(cudaGraphLaunch(two[i].graphs[graph[i]], two[i].stream), cudaSuccess);
    }
    state = settle_two(two);
    EXPECT_EQ(cudaEventRecord(received, two[1].stream), cudaSuccess);
    while (state == ncclSuccess && cudaEventQuery(received) == cudaErrorNotReady)
        state = settle_two(two);
    EXPECT_EQ(cudaEventDestroy(received), cudaSuccess);
    close_two(two);
    return state;
}

static void ranks_launch_what_they_have_captured_together(void)
{
    for (int first = 0; first < 3; first++)
        for (int second = 0; second < 3; second++)
            EXPECT_EQ(meet(first, second), first == second ? ncclSuccess : ncclInvalidUsage);
    EXPECT_EQ(g_fake_nccl.live, 0);
    EXPECT_EQ(g_fake_gpu.live, 0);
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {
        BT_TEST(captured_operation_runs_at_launches_alone),
        BT_TEST(call_behind_a_graph_lets_it_run_first),
        BT_TEST(graph_may_be_destroyed_while_it_runs),
        BT_TEST(mistakes_are_told),
        BT_TEST(capture_that_ends_too_early_is_an_error),
        BT_TEST(ranks_launch_what_they_have_captured_together),
    };

    return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
}

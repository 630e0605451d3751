/* The fake GPU's streams: what they are given runs late and in the order that CUDA promises, no
 * more, so that a wait that is missing shows. */
#include <cuda_runtime_api.h>
#include <stdbool.h>

#include "device/cuda/rows.h"
#include "tests/cuda/numbers.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

enum { N = 64, SEEDS = 32 };

static cudaStream_t stream_new(void)
{
    cudaStream_t stream = NULL;

    EXPECT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    return stream;
}

static void *memory_new(size_t bytes)
{
    void *memory = NULL;

    EXPECT_EQ(cudaMalloc(&memory, bytes), cudaSuccess);
    return memory;
}

static void down(void *to, const void *from, size_t bytes, cudaStream_t stream)
{
    EXPECT_EQ(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream), cudaSuccess);
}

static void what_comes_down_is_there_after_the_wait(void)
{
    cudaStream_t stream = stream_new();
    uint8_t     *memory = memory_new(N), *out = NULL;
    long         waits = g_fake_gpu.n_waits;

    EXPECT_EQ(cudaHostAlloc((void **)&out, N, cudaHostAllocDefault), cudaSuccess);
    EXPECT_EQ(cudaMemsetAsync(memory, 7, N, stream), cudaSuccess);
    down(out, memory, N, stream);
    EXPECT_EQ(g_fake_gpu.n_waits, waits);
    EXPECT_EQ(out[0], 0xff);
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    EXPECT(out[0] == 7 && out[N - 1] == 7);
    cudaFreeHost(out);
    cudaFree(memory);
    cudaStreamDestroy(stream);
}

static void pinned_memory_is_read_late(void)
{
    cudaStream_t stream = stream_new();
    uint8_t     *memory = memory_new(1), *pinned = NULL, out[1];

    EXPECT_EQ(cudaHostAlloc((void **)&pinned, 1, cudaHostAllocDefault), cudaSuccess);
    *pinned = 1;
    cudaMemcpyAsync(memory, pinned, 1, cudaMemcpyHostToDevice, stream);
    *pinned = 2;
    down(out, memory, 1, stream);
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    EXPECT_EQ(out[0], 2);
    cudaFreeHost(pinned);
    cudaFree(memory);
    cudaStreamDestroy(stream);
}

/* CUDA promises neither. */
static void other_memory_is_read_and_written_at_once_or_late(void)
{
    cudaStream_t stream      = stream_new();
    uint8_t     *memory      = memory_new(1);
    int          n_read_late = 0, n_written_late = 0;

    for (unsigned long seed = 0; seed < SEEDS; seed++) {
        uint8_t in = 1, out = 0;

        fake_gpu_seed(seed);
        cudaMemcpyAsync(memory, &in, 1, cudaMemcpyHostToDevice, stream);
        in = 2;
        down(&out, memory, 1, stream);
        n_written_late += out == 0xff;
        EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
        n_read_late += out == 2;
        EXPECT(out == 1 || out == 2);
    }
    EXPECT(n_read_late > SEEDS / 8 && n_read_late < SEEDS - SEEDS / 8);
    EXPECT(n_written_late > SEEDS / 8 && n_written_late < SEEDS - SEEDS / 8);
    cudaFree(memory);
    cudaStreamDestroy(stream);
}

static void copies_are_between_what_they_say(void)
{
    cudaStream_t stream = stream_new();
    uint8_t     *memory = memory_new(2), host[2];

    EXPECT_EQ(cudaMemcpyAsync(host, memory, 1, cudaMemcpyHostToDevice, stream),
              cudaErrorInvalidValue);
    EXPECT_EQ(cudaMemcpyAsync(memory, host, 1, cudaMemcpyDeviceToHost, stream),
              cudaErrorInvalidValue);
    EXPECT_EQ(cudaMemcpyAsync(memory, host, 1, cudaMemcpyDeviceToDevice, stream),
              cudaErrorInvalidValue);
    EXPECT_EQ(cudaMemsetAsync(host, 0, 1, stream), cudaErrorInvalidValue);
    EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
    EXPECT_EQ(cudaMemcpyAsync(memory, memory + 1, 1, cudaMemcpyDeviceToDevice, stream),
              cudaSuccess);
    cudaFree(memory);
    cudaStreamDestroy(stream);
}

/* memory [3, N]: the first row to the last one. */
static int add_up(cudaStream_t stream, bt_bf16 *memory)
{
    return bt_cuda_add_norm(stream, 1, N, memory, memory + 2 * N, memory + N, 1e-6f, memory);
}

/* How often a kernel of one stream comes before a copy of another one. */
static int n_in_order(bool with_event)
{
    int n = 0;

    for (unsigned long seed = 0; seed < SEEDS; seed++) {
        cudaStream_t a = stream_new(), b = stream_new();
        cudaEvent_t  event  = NULL;
        bt_bf16     *memory = memory_new(3 * N * sizeof(*memory)), out[N];

        fake_gpu_seed(seed);
        EXPECT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
        cudaMemsetAsync(memory, 0x3f, 3 * N * sizeof(*memory), a);
        cudaStreamSynchronize(a);
        EXPECT_EQ(add_up(a, memory), 0);
        cudaEventRecord(event, a);
        if (with_event) cudaStreamWaitEvent(b, event, 0);
        down(out, memory + 2 * N, sizeof(out), b);
        EXPECT_EQ(cudaStreamSynchronize(b), cudaSuccess);
        n += out[N - 1] != 0x3f3f;
        while (cudaEventQuery(event) == cudaErrorNotReady)
            (void)cudaGetLastError();
        cudaEventDestroy(event);
        cudaFree(memory);
        cudaStreamDestroy(a);
        cudaStreamDestroy(b);
    }
    return n;
}

/* An event of a capture is nobody's outside it. */
static void a_captured_event_is_refused_outside(void)
{
    cudaStream_t a = stream_new(), b = stream_new();
    cudaEvent_t  event = NULL;
    cudaGraph_t  graph = NULL;

    EXPECT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
    EXPECT_EQ(cudaStreamBeginCapture(a, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    EXPECT_EQ(cudaEventRecord(event, a), cudaSuccess);
    EXPECT_EQ(cudaStreamEndCapture(a, &graph), cudaSuccess);
    EXPECT_EQ(cudaStreamWaitEvent(b, event, 0), cudaErrorCapturedEvent);
    EXPECT_EQ(cudaEventQuery(event), cudaErrorCapturedEvent);
    EXPECT_EQ(cudaEventSynchronize(event), cudaErrorCapturedEvent);
    EXPECT_EQ(cudaGetLastError(), cudaErrorCapturedEvent);
    EXPECT_EQ(cudaEventRecord(event, a), cudaSuccess);
    EXPECT_EQ(cudaStreamWaitEvent(b, event, 0), cudaSuccess);
    EXPECT_EQ(cudaEventSynchronize(event), cudaSuccess);
    cudaGraphDestroy(graph);
    cudaEventDestroy(event);
    cudaStreamDestroy(a);
    cudaStreamDestroy(b);
}

/* As the runtime's own calls, which leave their error behind. */
static void a_launch_fails_by_what_failed_before_it(void)
{
    cudaStream_t a      = stream_new();
    bt_bf16     *memory = memory_new(3 * N * sizeof(*memory));
    void        *all    = NULL;

    EXPECT_EQ(cudaMalloc(&all, g_fake_gpu.bytes), cudaErrorMemoryAllocation);
    EXPECT_EQ(add_up(a, memory), cudaErrorMemoryAllocation);
    EXPECT_EQ(add_up(a, memory), cudaSuccess);
    g_fake_gpu.fail_at = 0;
    EXPECT_EQ(add_up(a, memory), cudaErrorInvalidValue);
    cudaFree(memory);
    cudaStreamDestroy(a);
}

static void streams_are_in_order_by_events_alone(void)
{
    int n = n_in_order(false);

    EXPECT(n > SEEDS / 8 && n < SEEDS);
    EXPECT_EQ(n_in_order(true), SEEDS);
    EXPECT_EQ(g_fake_gpu.live, 0);
}

#ifdef __SANITIZE_ADDRESS__
static void only_arrays_may_be_touched(void)
{
    char *first = memory_new(N + 1), *second = memory_new(N);

    EXPECT(__asan_region_is_poisoned(first, N + 1) == NULL);
    EXPECT(__asan_region_is_poisoned(second, N) == NULL);
    EXPECT(__asan_address_is_poisoned(first - 1) && __asan_address_is_poisoned(first + N + 1));
    EXPECT(__asan_address_is_poisoned(second - 1) && __asan_address_is_poisoned(second + N));
    cudaFree(first);
    EXPECT(__asan_address_is_poisoned(first) && !__asan_address_is_poisoned(second));
    cudaFree(second);
}
#endif

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {
        BT_TEST(what_comes_down_is_there_after_the_wait),
        BT_TEST(pinned_memory_is_read_late),
        BT_TEST(other_memory_is_read_and_written_at_once_or_late),
        BT_TEST(copies_are_between_what_they_say),
        BT_TEST(a_captured_event_is_refused_outside),
        BT_TEST(a_launch_fails_by_what_failed_before_it),
        BT_TEST(streams_are_in_order_by_events_alone),
#ifdef __SANITIZE_ADDRESS__
        BT_TEST(only_arrays_may_be_touched),
#endif
    };

    return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
}

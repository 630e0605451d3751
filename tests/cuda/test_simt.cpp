/* The harness itself: kernels that are wrong in one way each, and what tells. */
#include "tests/cuda/simt.h"

#include "attention/cuda/softmax.cuh"
#include "device/cuda/gpu.cuh"
#include "tests/cuda/aborts.h"
#include "tests/support/test.h"

/* ---- order */

static void turn_kernel(const int *in, int *out, bool barrier)
{
    GPU_SHARED(int, mem, 64);

    mem[threadIdx.x] = in[threadIdx.x];
    if (barrier) __syncthreads();
    out[threadIdx.x] = mem[63 - threadIdx.x];
}

static int wrong_turns(bool barrier)
{
    int in[64], out[64], wrong = 0;

    for (int i = 0; i < 64; i++)
        in[i] = i;
    for (uint64_t seed = 0; seed < 10; seed++) {
        simt_seed(seed);
        gpu_launch(turn_kernel, 1, 64, 0, nullptr, (const int *)in, (int *)out, barrier);
        for (int i = 0; i < 64; i++)
            wrong += out[i] != 63 - i;
    }
    return wrong;
}

static void a_missing_barrier_shows(void)
{
    EXPECT_EQ(wrong_turns(true), 0);
    EXPECT(wrong_turns(false) > 100);
}

static void order_kernel(int *log, int *n) { log[(*n)++] = (int)threadIdx.x; }

static void the_order_follows_the_seed(void)
{
    int log[3][32], n;

    for (int i = 0; i < 3; i++) {
        n = 0;
        simt_seed(i == 2 ? 8 : 7);
        gpu_launch(order_kernel, 1, 32, 0, nullptr, (int *)log[i], &n);
    }
    EXPECT(memcmp(log[0], log[1], sizeof(log[0])) == 0);
    EXPECT(memcmp(log[0], log[2], sizeof(log[0])) != 0);
}

/* A block that needs what an earlier one has left. */
static void chain_kernel(const uint32_t *before, uint32_t *sum, uint32_t *runs)
{
    uint32_t at = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;

    sum[at] = before[at] + 1;
    runs[at]++;
}

static void blocks_run_once_and_in_no_order(void)
{
    enum { N = 3 * 5 * 4 };
    uint32_t sum[N + 1], wrong = 0;

    for (uint64_t seed = 0; seed < 10; seed++) {
        uint32_t runs[N] = {};

        memset(sum, 0, sizeof(sum));
        simt_seed(seed);
        gpu_launch(chain_kernel, dim3(3, 5, 4), 1, 0, nullptr, (const uint32_t *)sum, sum + 1,
                   (uint32_t *)runs);
        for (uint32_t i = 0; i < N; i++) {
            EXPECT_EQ(runs[i], 1);
            wrong += sum[i + 1] != i + 1;
        }
    }
    EXPECT(wrong > N);
}

/* ---- meetings */

static void missed_kernel(void)
{
    if (threadIdx.x < 32) __syncthreads();
}
static void split_kernel(void)
{
    if (threadIdx.x < 32)
        __syncthreads();
    else
        __syncthreads();
}
static void absent_kernel(int *out)
{
    if (threadIdx.x != 5) out[threadIdx.x] = __shfl_xor_sync(~0u, 1, 1);
}
static void mixed_kernel(int *out)
{
    if (threadIdx.x < 16)
        out[threadIdx.x] = __shfl_xor_sync(~0u, 1, 1);
    else
        out[threadIdx.x] = (int)__ballot_sync(~0u, 1);
}

static void launch_missed(void) { gpu_launch(missed_kernel, 1, 64, 0, nullptr); }
static void launch_split(void) { gpu_launch(split_kernel, 1, 64, 0, nullptr); }
static void launch_absent(void)
{
    int out[32];

    gpu_launch(absent_kernel, 1, 32, 0, nullptr, (int *)out);
}
static void launch_mixed(void)
{
    int out[32];

    gpu_launch(mixed_kernel, 1, 32, 0, nullptr, (int *)out);
}

static void meetings_that_some_miss_end_the_process(void)
{
    EXPECT_ABORT(launch_missed, "never reach");
    EXPECT_ABORT(launch_split, "another barrier");
    EXPECT_ABORT(launch_absent, "lane 5, which has ended");
    EXPECT_ABORT(launch_mixed, "meets lane");
}

/* ---- memory */

enum { N_HALVES = 31 }; /* they end within a word */

static void unset_kernel(float *out)
{
    GPU_SHARED(float, mem, 32);
    GPU_DYNAMIC_SHARED(bt_bf16, halves);
    unsigned t = threadIdx.x;

    out += blockIdx.x * (32 + N_HALVES);
    out[t] = mem[t];
    mem[t] = 0;
    if (t >= N_HALVES) return;
    out[32 + t] = f32_of(halves[t]);
    halves[t]   = 0;
}

/* Nor as UINT32_MAX, which kernels write for what they have not found. */
static void shared_memory_begins_as_nan_in_every_block(void)
{
    float out[2 * (32 + N_HALVES)];

    for (int i = 0; i < 2; i++) {
        memset(out, 0, sizeof(out));
        gpu_launch(unset_kernel, 2, 32, N_HALVES * sizeof(bt_bf16), nullptr, (float *)out);
        for (float v : out)
            EXPECT(std::isnan(v) && __float_as_uint(v) != UINT32_MAX);
    }
}

struct alignas(16) four {
    uint32_t v[4];
};

static void copy_kernel(const four *in, uint32_t *out, bool wait, bool valid)
{
    GPU_DYNAMIC_SHARED(four, mem);

    copy_async16(&mem[threadIdx.x], &in[threadIdx.x], valid);
    copy_async_commit();
    if (wait) copy_async_wait<0>();
    out[threadIdx.x] = mem[threadIdx.x].v[1];
    copy_async_wait<0>();
}

static void a_copy_lands_at_its_wait_and_not_before(void)
{
    four     in[32];
    uint32_t out[32];

    for (uint32_t i = 0; i < 32; i++)
        in[i].v[1] = i + 1;
    gpu_launch(copy_kernel, 1, 32, sizeof(in), nullptr, (const four *)in, (uint32_t *)out, true,
               true);
    EXPECT_EQ(out[31], 32);
    gpu_launch(copy_kernel, 1, 32, sizeof(in), nullptr, (const four *)in, (uint32_t *)out, true,
               false);
    EXPECT_EQ(out[31], 0);
    gpu_launch(copy_kernel, 1, 32, sizeof(in), nullptr, (const four *)in, (uint32_t *)out, false,
               true);
    EXPECT(std::isnan(__uint_as_float(out[31])));
}

static void two_groups_kernel(const four *in, uint32_t *out)
{
    GPU_DYNAMIC_SHARED(four, mem);

    for (int i = 0; i < 2; i++) {
        copy_async16(&mem[i], &in[i], true);
        copy_async_commit();
    }
    copy_async_wait<1>();
    out[0] = mem[0].v[0];
    out[1] = mem[1].v[0];
    copy_async_wait<0>();
    out[2] = mem[1].v[0];
}

static void a_wait_leaves_the_groups_that_it_says(void)
{
    four     in[2] = {{{5, 5, 5, 5}}, {{6, 6, 6, 6}}};
    uint32_t out[3];

    gpu_launch(two_groups_kernel, 1, 1, sizeof(in), nullptr, (const four *)in, (uint32_t *)out);
    EXPECT_EQ(out[0], 5);
    EXPECT(std::isnan(__uint_as_float(out[1])));
    EXPECT_EQ(out[2], 6);
}

static void forgotten_kernel(const four *in)
{
    GPU_DYNAMIC_SHARED(four, mem);

    copy_async16(mem, in, true);
    copy_async_commit();
}
static void launch_forgotten(void)
{
    static four in;

    gpu_launch(forgotten_kernel, 1, 1, sizeof(in), nullptr, (const four *)&in);
}
static void from_shared_kernel(void)
{
    GPU_DYNAMIC_SHARED(four, mem);

    copy_async16(mem, mem, false); /* nothing is read, and yet */
    copy_async_wait<0>();
}
static void beside_kernel(void)
{
    GPU_SHARED(char, some, 16);

    some[0] = 0;
}

static void launch_too_large_together(void)
{
    gpu_launch(beside_kernel, 1, 1, (48 << 10) - 8, nullptr);
}

static void launch_from_shared(void)
{
    gpu_launch(from_shared_kernel, 1, 1, sizeof(four), nullptr);
}
static void launch_too_large(void) { gpu_launch(missed_kernel, 1, 32, 300 << 10, nullptr); }
static void launch_nothing(void) { gpu_launch(missed_kernel, 0, 32, 0, nullptr); }

static int reaches_nothing(const void *) { return 0; }
static int take_none(simt_job *job, void *)
{
    simt_job_free(job);
    return 0;
}
struct nested {
    uint32_t   n;
    const int *in[2];
};
static void nested_kernel(nested, int *) {}
static void launch_of(const int *in, int *out)
{
    int stream;

    simt_take_launches(take_none, reaches_nothing);
    gpu_launch(nested_kernel, 1, 32, 0, &stream,
               nested{
                   1, {nullptr, in}
    },
               out);
}
static void launch_on_the_stack(void)
{
    int out = 0;

    launch_of(nullptr, &out);
}
static void launch_on_a_constant(void)
{
    static const int in = 1;

    launch_of(&in, nullptr);
}
static void launch_on_numbers(void) { launch_of((const int *)0x10, (int *)0x7123456789abcdef); }

static void what_a_gpu_would_refuse_ends_the_process(void)
{
    char said[64];

    if (simt::checks_arguments) {
        EXPECT_ABORT(launch_on_the_stack, "no memory of the GPU");
        EXPECT_ABORT(launch_on_a_constant, "no memory of the GPU");
    }
    EXPECT(!aborts(launch_on_numbers, said, sizeof(said)));
    EXPECT_ABORT(launch_forgotten, "nobody waited for");
    EXPECT_ABORT(launch_from_shared, "the source is shared memory");
    EXPECT_ABORT(launch_too_large, "shared memory");
    EXPECT_ABORT(launch_too_large_together, "16 bytes of static shared memory beside 49144");
    EXPECT_ABORT(launch_nothing, "grid of 0");
}

/* ---- matrix fragments: D = A B + D with A and B through shared memory, as a kernel loads them */

static void mma_kernel(const bt_bf16 *a, const bt_bf16 *b_columns, const bt_bf16 *b_rows, float *d)
{
    GPU_SHARED(bt_bf16, tile, 3 * 256);
    uint32_t lane      = threadIdx.x, fa[4], fb[4], fr[4];
    float    sum[2][4] = {}, rows[2][4] = {};

    for (uint32_t i = lane; i < 256; i += 32) {
        tile[i]       = a[i];
        tile[256 + i] = b_columns[i];
        tile[512 + i] = b_rows[i];
    }
    __syncthreads();
    load_matrix(fa, tile + lane % 16 * 16 + lane / 16 * 8);
    load_matrix(fb, tile + 256 + (lane % 8 + lane / 16 * 8) * 16 + lane / 8 % 2 * 8);
    load_matrix_turned(fr, tile + 512 + lane % 16 * 16 + lane / 16 * 8);
    for (int n = 0; n < 2; n++) {
        mma_bf16(sum[n], fa, fb + 2 * n);
        mma_bf16(rows[n], fa, fr + 2 * n);
        for (int i = 0; i < 4; i++) {
            uint32_t at = (lane / 4 + i / 2 * 8) * 16 + n * 8 + lane % 4 * 2 + i % 2;

            d[at]       = sum[n][i];
            d[256 + at] = rows[n][i];
        }
    }
}

static void matrix_fragments_are_those_of_the_isa(void)
{
    bt_bf16  a[256], columns[256], rows[256];
    float    d[512];
    uint64_t x = 3;

    for (int i = 0; i < 256; i++) { /* small integers: every sum is exact */
        a[i]    = bt_bf16_from_f32((float)((x = x * 25214903917u + 11) >> 20 & 15));
        rows[i] = bt_bf16_from_f32((float)((x = x * 25214903917u + 11) >> 20 & 15));
    }
    for (int k = 0; k < 16; k++)
        for (int n = 0; n < 16; n++)
            columns[n * 16 + k] = rows[k * 16 + n];
    gpu_launch(mma_kernel, 1, 32, 0, nullptr, (const bt_bf16 *)a, (const bt_bf16 *)columns,
               (const bt_bf16 *)rows, (float *)d);
    for (int m = 0; m < 16; m++)
        for (int n = 0; n < 16; n++) {
            float want = 0;

            for (int k = 0; k < 16; k++)
                want += bt_bf16_to_f32(a[m * 16 + k]) * bt_bf16_to_f32(rows[k * 16 + n]);
            EXPECT(d[m * 16 + n] == want && d[256 + m * 16 + n] == want);
        }
}

static void sum_kernel(const float *in, float *out, unsigned *votes)
{
    GPU_SHARED(float, part, GPU_WARP);

    out[threadIdx.x]   = block_sum(in[threadIdx.x], part);
    votes[threadIdx.x] = __ballot_sync(~0u, threadIdx.x % 3 == 0);
    if (__syncthreads_or(threadIdx.x == 70) == 0) out[0] = -1;
}

static void sums_and_votes_reach_every_thread(void)
{
    float    in[96], out[96];
    unsigned votes[96];

    for (int i = 0; i < 96; i++)
        in[i] = (float)i;
    gpu_launch(sum_kernel, 1, 96, 0, nullptr, (const float *)in, (float *)out, (unsigned *)votes);
    for (int i = 0; i < 96; i++) {
        EXPECT(out[i] == 95 * 48);
        EXPECT((votes[i] >> (i % 32) & 1) == (i % 3 == 0));
    }
}

static float flushed(float v) { return v < 0x1p-126f ? 0 : v; }

static void an_exp_of_what_is_not_above_0_has_the_bits_of_exp(void)
{
    EXPECT(exp_down(0.0f) == 1 && exp_down(-INFINITY) == 0 && exp_down(NAN) != exp_down(NAN));
    for (uint32_t bits = 0x80000000u; bits < 0xff800000u; bits += 9973) {
        float x = __uint_as_float(bits);

        EXPECT(flushed(exp_down(x)) == flushed(bt_expf(x)));
    }
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {
        BT_TEST(a_missing_barrier_shows),
        BT_TEST(the_order_follows_the_seed),
        BT_TEST(blocks_run_once_and_in_no_order),
        BT_TEST(meetings_that_some_miss_end_the_process),
        BT_TEST(shared_memory_begins_as_nan_in_every_block),
        BT_TEST(a_copy_lands_at_its_wait_and_not_before),
        BT_TEST(a_wait_leaves_the_groups_that_it_says),
        BT_TEST(what_a_gpu_would_refuse_ends_the_process),
        BT_TEST(matrix_fragments_are_those_of_the_isa),
        BT_TEST(sums_and_votes_reach_every_thread),
        BT_TEST(an_exp_of_what_is_not_above_0_has_the_bits_of_exp),
    };

    return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
}

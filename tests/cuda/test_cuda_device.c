/* The CUDA back end on a GPU that is host memory: its own code, with the kernels on the CPU. */
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdatomic.h>

#include "device/cpu/device_cpu.h"
#include "device/cuda/module.h"
#include "tests/cuda/fake/inside.h"
#include "tests/cuda/numbers.h"
#include "tests/support/sweep.h"

extern const bt_cuda_module_table bt_cuda_module;

/* hmm: rows are arrays of the tests. */
static const fake_gpu HOPPER = {.n_devices = 1,
                                .driver    = CUDART_VERSION,
                                .major     = 9,
                                .bytes     = (size_t)1 << 30,
                                .hmm       = 1,
                                .fail_at   = -1};

static bt_device *make(void)
{
    bt_device *dev = NULL;

    g_fake_gpu = HOPPER;
    EXPECT_EQ(bt_cuda_module.create(0, &dev), BT_OK);
    return dev;
}

static void drop(bt_device *dev)
{
    bt_device_destroy(dev);
    EXPECT_EQ(g_fake_gpu.live, 0);
    EXPECT_EQ(g_fake_gpu.taken, 0);
}

static void row_of(void *ctx, uint32_t n, bt_bf16 *row)
{
    const bt_bf16 *w = ctx;
    uint32_t       k = w[0]; /* the first element says how long a row is */

    memcpy(row, w + 1 + (size_t)n * k, k * sizeof(*row));
}

static bt_linear *weights(bt_device *dev, uint32_t n, uint32_t k, uint64_t seed, bt_bf16 **host_out)
{
    bt_linear *linear = NULL;

    *host_out      = random_bf16((size_t)n * k + 1, 1, &seed);
    (*host_out)[0] = (bt_bf16)k;
    EXPECT_EQ(bt_device_linear_create(dev, n, k, row_of, *host_out, &linear), BT_OK);
    return linear;
}

static void memory_is_zeroed_and_moved(void)
{
    bt_device *dev  = make();
    void      *mem  = NULL;
    char       in[] = "latents", out[8] = {1, 1, 1, 1, 1, 1, 1, 1};

    EXPECT_EQ(bt_device_alloc(dev, sizeof(in), &mem), BT_OK);
    EXPECT_EQ(bt_device_download(dev, out, mem, sizeof(out)), BT_OK);
    EXPECT_EQ(bt_device_sync(dev), BT_OK);
    EXPECT_EQ(n_different(out, "\0\0\0\0\0\0\0\0", 8), 0);
    EXPECT_EQ(bt_device_upload(dev, mem, in, sizeof(in)), BT_OK);
    EXPECT_EQ(bt_device_download(dev, out, mem, sizeof(out)), BT_OK);
    EXPECT_EQ(bt_device_sync(dev), BT_OK);
    EXPECT_EQ(n_different(out, in, 8), 0);
    bt_device_free(dev, mem);
    drop(dev);
}

/* Two uploads' worth of rows, so that both staging buffers are used again. */
static void weights_of_many_buffers_arrive_whole(void)
{
    bt_device *dev = make();
    uint32_t   n = 1300, k = 32768;
    bt_bf16   *host   = NULL, *back;
    bt_linear *linear = weights(dev, n, k, 1, &host);

    EXPECT_EQ(bt_linear_n(linear), n);
    EXPECT_EQ(bt_linear_k(linear), k);
    EXPECT_EQ(bt_linear_bytes(linear), (size_t)n * k * 2);
    back = ARRAY(bt_bf16, (size_t)n * k);
    EXPECT_EQ(bt_device_download(dev, back, bt_linear_packed(linear), (size_t)n * k * 2), BT_OK);
    EXPECT_EQ(bt_device_sync(dev), BT_OK);
    EXPECT_EQ(n_different(back, host + 1, (size_t)n * k * 2), 0);
    free(back);
    bt_device_linear_destroy(dev, linear);
    free(host);
    drop(dev);
}

/* More lists than the ring holds at once, each from memory that changes at once. */
static void lists_arrive_as_they_were(void)
{
    enum { LISTS = 700, ELEMS = 3001 };
    bt_device *dev  = make();
    size_t     each = ELEMS * sizeof(uint32_t);
    uint32_t  *list = ARRAY(uint32_t, ELEMS), *back = ARRAY(uint32_t, LISTS * ELEMS);
    uint64_t   allocs;
    void      *mem   = NULL;
    size_t     wrong = 0;

    EXPECT_EQ(bt_device_alloc(dev, LISTS * each, &mem), BT_OK);
    allocs = dev->n_allocs;
    for (uint32_t i = 0; i < LISTS; i++) {
        for (uint32_t j = 0; j < ELEMS; j++)
            list[j] = i * ELEMS + j;
        EXPECT_EQ(bt_device_upload(dev, (char *)mem + i * each, list, each), BT_OK);
    }
    EXPECT_EQ(bt_device_download(dev, back, mem, LISTS * each), BT_OK);
    EXPECT_EQ(bt_device_sync(dev), BT_OK);
    for (uint32_t i = 0; i < LISTS * ELEMS; i++)
        wrong += back[i] != i;
    EXPECT_EQ(wrong, 0);
    EXPECT_EQ(dev->n_allocs, allocs);
    bt_device_free(dev, mem);
    free(list), free(back);
    drop(dev);
}

static void fp8_row(void *ctx, uint32_t n, uint8_t *row, float *scale)
{
    uint32_t k = *(const uint32_t *)ctx;

    for (uint32_t i = 0; i < k; i++)
        row[i] = (uint8_t)((n * 37 + i * 11) % 0x7f | (n + i) % 2 << 7);
    for (uint32_t i = 0; i < k; i += BT_FP8_BLOCK)
        scale[i / BT_FP8_BLOCK] = 0.01f * (float)(1 + (n + i) % 7);
}

static void widened_row(void *ctx, uint32_t n, bt_bf16 *row)
{
    uint32_t k = *(const uint32_t *)ctx;
    uint8_t *v = ARRAY(uint8_t, k);
    float    scale[8];

    fp8_row(ctx, n, v, scale);
    for (uint32_t i = 0; i < k; i++)
        row[i] = bt_bf16_from_f32(e4m3(v[i]) * scale[i / BT_FP8_BLOCK]);
    free(v);
}

static void int4_row(void *ctx, uint32_t n, uint32_t *row, bt_bf16 *scale)
{
    uint32_t k = *(const uint32_t *)ctx;

    for (uint32_t i = 0; i < k / BT_INT4_IN_WORD; i++)
        row[i] = (n + 3) * 2654435761u + i * 40503u * (n % 5 + 1);
    for (uint32_t i = 0; i < k / BT_INT4_GROUP; i++)
        scale[i] = bt_bf16_from_f32(0.01f * (float)(1 + (n + i) % 7));
}

static void widened_int4_row(void *ctx, uint32_t n, bt_bf16 *row)
{
    uint32_t  k = *(const uint32_t *)ctx;
    uint32_t *v = ARRAY(uint32_t, k / BT_INT4_IN_WORD);
    bt_bf16   scale[16];

    int4_row(ctx, n, v, scale);
    for (uint32_t i = 0; i < k; i++)
        row[i] = bt_bf16_from_f32((float)((int)(v[i / 8] >> i % 8 * 4 & 15) - 8) *
                                  bt_bf16_to_f32(scale[i / BT_INT4_GROUP]));
    free(v);
}

static void make_narrow(bt_device *dev, bt_weight_kind kind, uint32_t n, uint32_t k,
                        bt_linear *w[2])
{
    bool int4 = kind == BT_WEIGHT_INT4;

    EXPECT_EQ(int4 ? bt_device_linear_create_int4(dev, n, k, int4_row, &k, &w[0])
                   : bt_device_linear_create_fp8(dev, n, k, fp8_row, &k, &w[0]),
              BT_OK);
    EXPECT_EQ(bt_device_linear_create(dev, n, k, int4 ? widened_int4_row : widened_row, &k, &w[1]),
              BT_OK);
    EXPECT(bt_linear_kind(w[0]) == kind && bt_linear_kind(w[1]) == BT_WEIGHT_BF16);
    EXPECT_EQ(bt_linear_bytes(w[0]), int4 ? n * (k / 2 + k / 32 * sizeof(bt_bf16))
                                          : n * (k + (k + 127) / 128 * sizeof(float)));
}

/* Narrow, and with the bits of the wider ones in products and blocks, also side by side with them.
 */
static void check_narrow(bt_weight_kind kind, uint32_t k, uint32_t dim)
{
    enum { ROWS = 5 };
    uint32_t   n    = 2 * dim;
    bt_device *dev  = make();
    uint64_t   rng  = 8;
    bt_linear *w[2] = {NULL}, *down[2] = {NULL};
    bt_bf16   *x = random_bf16(ROWS * k, 1, &rng), *act = ARRAY(bt_bf16, ROWS * dim);
    float     *y = ARRAY(float, 2 * ROWS * n);
    bt_gemm    g[2];

    make_narrow(dev, kind, n, k, w);
    make_narrow(dev, kind, n, dim, down);
    for (int i = 0; i < 2; i++)
        g[i] = (bt_gemm){w[i], x, k, y + i * ROWS * n, n, ROWS, BT_F32, NULL};
    EXPECT_EQ(bt_device_gemm(dev, BT_ROLE_PROMPT, 2, g), BT_OK);
    EXPECT_EQ(bt_device_sync(dev), BT_OK);
    EXPECT_EQ(n_different(y, y + ROWS * n, ROWS * n * sizeof(float)), 0);
    for (int i = 0; i < 2; i++) {
        bt_ffn f = {w[i], down[i], x, k, y + i * ROWS * n, n, ROWS, BT_F32, NULL, NULL, NULL};

        EXPECT_EQ(bt_device_ffn(dev, BT_ROLE_PROMPT, 1, &f, NULL, act), BT_OK);
        EXPECT_EQ(bt_device_sync(dev), BT_OK);
    }
    EXPECT_EQ(n_different(y, y + ROWS * n, ROWS * n * sizeof(float)), 0);
    for (int i = 0; i < 2; i++) {
        bt_device_linear_destroy(dev, w[i]);
        bt_device_linear_destroy(dev, down[i]);
    }
    free(x), free(act), free(y);
    drop(dev);
}

static void weights_in_8_bits_stay_so(void) { check_narrow(BT_WEIGHT_FP8, 300, 35); }
static void weights_in_4_bits_stay_so(void) { check_narrow(BT_WEIGHT_INT4, 320, 32); }

static void weights_in_4_bits_want_whole_groups(void)
{
    bt_device *dev    = make();
    bt_linear *linear = NULL;
    uint32_t   k      = 48;

    EXPECT_EQ(bt_device_linear_create_int4(dev, 8, k, int4_row, &k, &linear), BT_ERR_INVALID_ARG);
    EXPECT_HAS(bt_error_text(), "[8, 48] of 4 bits: expected a multiple of 32 columns");
    drop(dev);
}

/* A product, three heads, which are one launch, and products with 0, 3 and 2 rows. */
static void products_are_grouped_and_right(void)
{
    enum { N = 9, K = 24, ROWS = 5, HEADS = 3 };
    bt_device *dev = make();
    uint64_t   rng = 3, launches = simt_n_launches();
    bt_bf16   *host[HEADS], *x   = random_bf16(ROWS * HEADS * K, 1, &rng);
    float     *y = ARRAY(float, 3 * ROWS * HEADS * N);
    bt_gemm    g[1 + HEADS + 3];
    bt_linear *w[HEADS];
    difference e = {0, 0};

    for (int i = 0; i < HEADS; i++)
        w[i] = weights(dev, N, K, (uint64_t)i + 10, &host[i]);
    for (int i = 0; i < 1 + HEADS + 3; i++) {
        static const uint32_t AT[] = {0, 0, 3}, M[] = {0, 3, 2};
        int                   h = i - 1, x_at = i - 1 - HEADS;

        if (i == 0)
            g[i] = (bt_gemm){w[0], x, K, y, N, ROWS, BT_F32, NULL};
        else if (h < HEADS)
            g[i] = (bt_gemm){w[h],      x + h * K, HEADS * K, y + ROWS * HEADS * N + h * N,
                             HEADS * N, ROWS,      BT_F32,    NULL};
        else
            g[i] =
                (bt_gemm){w[x_at], x + AT[x_at] * K, K,      y + (2 * ROWS * HEADS + AT[x_at]) * N,
                          N,       M[x_at],          BT_F32, NULL};
    }
    EXPECT_EQ(bt_device_gemm(dev, BT_ROLE_PROMPT, 1 + HEADS + 3, g), BT_OK);
    EXPECT(simt_n_launches() - launches <= 4);
    EXPECT_EQ(bt_device_sync(dev), BT_OK);
    for (int i = 0; i < 1 + HEADS + 3; i++)
        for (uint32_t r = 0; r < g[i].m; r++)
            for (uint32_t c = 0; c < N; c++) {
                const bt_bf16 *weight = host[i == 0 ? 0 : (i - 1) % HEADS] + 1 + c * K;
                double         want   = 0;

                for (uint32_t k = 0; k < K; k++)
                    want += (double)bt_bf16_to_f32(g[i].x[r * g[i].ld_x + k]) *
                            (double)bt_bf16_to_f32(weight[k]);
                differ(&e, ((float *)g[i].y)[r * g[i].ld_y + c], want, 5, (size_t)i);
            }
    EXPECT_CLOSE(e, 1e-6);
    for (int i = 0; i < HEADS; i++)
        bt_device_linear_destroy(dev, w[i]), free(host[i]);
    free(x), free(y);
    drop(dev);
}

/* Against the plain twin, at every length around a word and around a turn of the block. */
static void checksum_is_that_of_host_memory(void)
{
    enum { MOST = (1 << 20) + 9000 }; /* more than all blocks take at once */
    static const size_t SIZES[] = {0, 1, 7, 8, 9, 511, 4095, 4096, 4097, 4105, 40000, MOST};
    bt_device          *dev     = make();
    uint8_t            *host    = malloc(MOST);
    void               *data = NULL, *sum = NULL;
    uint64_t            got;

    for (size_t i = 0; i < MOST; i++)
        host[i] = (uint8_t)(i * i + i / 251);
    EXPECT_EQ(bt_device_alloc(dev, MOST, &data), BT_OK);
    EXPECT_EQ(bt_device_alloc(dev, sizeof(uint64_t), &sum), BT_OK);
    EXPECT_EQ(bt_device_upload(dev, data, host, MOST), BT_OK);
    for (size_t i = 0; i < sizeof(SIZES) / sizeof(SIZES[0]); i++) {
        EXPECT_EQ(bt_device_checksum(dev, bt_device_stream(dev), data, SIZES[i], i, sum), BT_OK);
        EXPECT_EQ(bt_device_download(dev, &got, sum, sizeof(got)), BT_OK);
        EXPECT_EQ(bt_device_sync(dev), BT_OK);
        EXPECT(got == bt_checksum(host, SIZES[i], i));
        EXPECT(got != bt_checksum(host, SIZES[i], i + 1));
    }
    host[5] ^= 1, host[13] ^= 1;
    EXPECT(bt_checksum(host, MOST, 11) != got);
    bt_device_free(dev, data);
    bt_device_free(dev, sum);
    free(host);
    drop(dev);
}

/* The rest of the table against the CPU's. */
static void row_operations_are_those_of_the_cpu(void)
{
    enum { ROWS = 3, DIM = 40 };
    bt_device *dev = make(), *cpu = NULL;
    uint64_t   rng = 4;
    bt_bf16   *x = random_bf16(ROWS * 2 * DIM, 1, &rng), *w = random_bf16(DIM, 1, &rng);
    bt_bf16   *got = ARRAY(bt_bf16, 2 * ROWS * DIM), *want = ARRAY(bt_bf16, 2 * ROWS * DIM);
    uint32_t   index[ROWS] = {2, 0, 1};
    difference e           = {0, 0};

    EXPECT_EQ(bt_device_cpu_create(&(bt_device_cpu_options){1, "scalar"}, &cpu), BT_OK);
    memcpy(got, x + ROWS * DIM, ROWS * DIM * sizeof(*got)); /* the residual */
    memcpy(want, got, ROWS * DIM * sizeof(*want));
    EXPECT_EQ(bt_device_add_norm(dev, ROWS, DIM, x, got, w, 1e-6f, got + ROWS * DIM), BT_OK);
    EXPECT_EQ(bt_device_sync(dev), BT_OK);
    EXPECT_EQ(bt_device_add_norm(cpu, ROWS, DIM, x, want, w, 1e-6f, want + ROWS * DIM), BT_OK);
    EXPECT_EQ(n_different(got, want, ROWS * DIM * 2), 0);
    EXPECT_EQ(bt_device_gather_rows(dev, ROWS, DIM, x, index, got), BT_OK);
    EXPECT_EQ(bt_device_sync(dev), BT_OK);
    EXPECT_EQ(bt_device_gather_rows(cpu, ROWS, DIM, x, index, want), BT_OK);
    EXPECT_EQ(n_different(got, want, ROWS * DIM * 2), 0);
    EXPECT_EQ(bt_device_rms_norm(dev, ROWS, DIM, x, DIM, w, 1e-6f, got, DIM), BT_OK);
    EXPECT_EQ(bt_device_sync(dev), BT_OK);
    EXPECT_EQ(bt_device_rms_norm(cpu, ROWS, DIM, x, DIM, w, 1e-6f, want, DIM), BT_OK);
    for (uint32_t i = 0; i < 2 * ROWS * DIM; i++)
        differ(&e, bt_bf16_to_f32(got[i]), bt_bf16_to_f32(want[i]), 1e-6, i);
    EXPECT_CLOSE(e, 0.0105);
    bt_device_destroy(cpu);
    free(x), free(w), free(got), free(want);
    drop(dev);
}

/* Product after product, and between them SwiGLU of the CPU's. */
static void run_parts(bt_device *dev, const bt_ffn *f, bt_bf16 *h, bt_bf16 *act)
{
    const bt_cpu_row_kernels *rows = bt_cpu_kernels_find("scalar")->rows;
    uint32_t                  dim  = bt_linear_k(f->down);
    bt_gemm                   up, down;

    bt_cpu_ffn_products(f, 0, f->m, h, act, &up, &down);
    EXPECT_EQ(bt_device_gemm(dev, BT_ROLE_PROMPT, 1, &up), BT_OK);
    EXPECT_EQ(bt_device_sync(dev), BT_OK);
    for (uint32_t r = 0; r < f->m; r++)
        rows->swiglu_row(h + 2 * r * dim, h + (2 * r + 1) * dim, dim, act + r * dim);
    EXPECT_EQ(bt_device_gemm(dev, BT_ROLE_PROMPT, 1, &down), BT_OK);
    EXPECT_EQ(bt_device_sync(dev), BT_OK);
}

/* SwiGLU within the product, against the product and SwiGLU one after the other. */
static void a_block_has_the_bits_of_its_parts(void)
{
    enum { DIM = 19, HIDDEN = 40, ROWS = 5 };
    bt_device *dev = make();
    uint64_t   rng = 7;
    bt_bf16 *host[2], *x = random_bf16(ROWS * HIDDEN, 1, &rng), *h = ARRAY(bt_bf16, ROWS * 2 * DIM);
    bt_bf16 *act[2] = {ARRAY(bt_bf16, ROWS * DIM), ARRAY(bt_bf16, ROWS * DIM)};
    float   *y[2]   = {ARRAY(float, ROWS *HIDDEN), ARRAY(float, ROWS *HIDDEN)};
    bt_linear *w[]  = {weights(dev, 2 * DIM, HIDDEN, 1, &host[0]),
                       weights(dev, HIDDEN, DIM, 2, &host[1])};
    bt_ffn     f[2] = {
            {w[0], w[1], x,              HIDDEN, y[0],              HIDDEN, 2,        BT_F32, NULL, NULL, NULL},
            {w[0], w[1], x + 2 * HIDDEN, HIDDEN, y[0] + 2 * HIDDEN, HIDDEN, ROWS - 2, BT_F32, NULL,
             NULL,                                                                                        NULL}
    };

    EXPECT_EQ(bt_device_ffn(dev, BT_ROLE_PROMPT, 2, f, NULL, act[0]), BT_OK);
    f[0].y = y[1];
    f[1].y = y[1] + 2 * HIDDEN;
    EXPECT_EQ(bt_device_sync(dev), BT_OK);
    run_parts(dev, &f[0], h, act[1]);
    run_parts(dev, &f[1], h, act[1] + 2 * DIM);
    EXPECT_EQ(n_different(act[0], act[1], ROWS * DIM * sizeof(bt_bf16)), 0);
    EXPECT_EQ(n_different(y[0], y[1], ROWS * HIDDEN * sizeof(float)), 0);
    for (int i = 0; i < 2; i++) {
        bt_device_linear_destroy(dev, w[i]);
        free(host[i]), free(act[i]), free(y[i]);
    }
    free(x), free(h);
    drop(dev);
}

/* Two of them with one y, which they should not have: which one's stays is a matter of luck then.
 */
static void products_of_one_x_run_beside_each_other(void)
{
    enum { K = 64, N = 24, SEEDS = 32 };
    bt_device *dev = make();
    uint64_t   rng = 8;
    bt_bf16   *host[2], *x = random_bf16(K, 1, &rng), out[3][N];
    bt_linear *w[2] = {weights(dev, N, K, 1, &host[0]), weights(dev, 2 * N, K, 2, &host[1])};
    void      *mem  = NULL;
    int        n    = 0;

    EXPECT_EQ(bt_device_alloc(dev, (K + 2 * N) * sizeof(*x), &mem), BT_OK);
    EXPECT_EQ(bt_device_upload(dev, mem, x, K * sizeof(*x)), BT_OK);
    for (int i = 0; i < 2 + SEEDS; i++) {
        bt_bf16 *y    = (bt_bf16 *)mem + K;
        bt_gemm  g[2] = {
             {.w = w[0], .x = mem, .ld_x = K, .y = y, .ld_y = N,     .m = 1, .y_dtype = BT_BF16},
             {.w = w[1], .x = mem, .ld_x = K, .y = y, .ld_y = 2 * N, .m = 1, .y_dtype = BT_BF16}
        };

        fake_gpu_seed((unsigned long)i);
        if (i < 2)
            EXPECT_EQ(bt_device_gemm(dev, BT_ROLE_GENERATED, 1, &g[i]), BT_OK);
        else
            EXPECT_EQ(bt_device_gemm(dev, BT_ROLE_GENERATED, 2, g), BT_OK);
        EXPECT_EQ(bt_device_download(dev, out[i < 2 ? i : 2], y, sizeof(out[0])), BT_OK);
        EXPECT_EQ(bt_device_sync(dev), BT_OK);
        if (i < 2) continue;
        n += memcmp(out[2], out[0], sizeof(out[0])) == 0;
        EXPECT(memcmp(out[2], out[0], sizeof(out[0])) == 0 ||
               memcmp(out[2], out[1], sizeof(out[0])) == 0); /* and what follows waits for both */
    }
    EXPECT(n > 0 && n < SEEDS);
    for (int i = 0; i < 2; i++) {
        bt_device_linear_destroy(dev, w[i]);
        free(host[i]);
    }
    bt_device_free(dev, mem);
    free(x);
    drop(dev);
}

/* Of mem[5][n]: b += a beside c += a, then b += c; d and e are their norms, with the weight a. */
static void three_sums(bt_device *dev, bt_bf16 *mem, uint32_t n)
{
    bt_bf16 *a = mem, *b = a + n, *c = b + n, *d = c + n, *e = d + n;

    EXPECT_EQ(bt_device_fork(dev), BT_OK);
    EXPECT_EQ(bt_device_add_norm(dev, 1, n, a, b, a, 1e-6f, d), BT_OK);
    EXPECT_EQ(bt_device_unfork(dev), BT_OK);
    EXPECT_EQ(bt_device_add_norm(dev, 1, n, a, c, a, 1e-6f, e), BT_OK);
    EXPECT_EQ(bt_device_join(dev), BT_OK);
    EXPECT_EQ(bt_device_add_norm(dev, 1, n, c, b, a, 1e-6f, d), BT_OK);
}

/* Work that was kept does what it does at once, as often as it is launched and on what is there
 * then. */
static void a_graph_is_the_work_that_it_kept(void)
{
    enum { N = 300, ALL = 5 * N, LAUNCHES = 3 };
    bt_device *dev   = make();
    bt_graph  *graph = NULL;
    uint64_t   rng   = 6, launches;
    bt_bf16   *in = random_bf16(ALL, 1, &rng), *out[2] = {ARRAY(bt_bf16, ALL), ARRAY(bt_bf16, ALL)};
    void      *mem = NULL;

    EXPECT_EQ(bt_device_alloc(dev, ALL * sizeof(*in), &mem), BT_OK);
    for (int kept = 0; kept < 2; kept++) {
        fake_gpu_seed((unsigned long)kept);
        EXPECT_EQ(bt_device_upload(dev, mem, in, ALL * sizeof(*in)), BT_OK);
        if (kept) {
            EXPECT_EQ(dev->ops->graphs->begin(dev), BT_OK);
            three_sums(dev, mem, N);
            EXPECT_EQ(dev->ops->graphs->end(dev, &graph), BT_OK);
        }
        launches = simt_n_launches();
        for (int i = 0; i < LAUNCHES; i++)
            if (kept)
                EXPECT_EQ(dev->ops->graphs->launch(dev, graph), BT_OK);
            else
                three_sums(dev, mem, N);
        EXPECT_EQ(simt_n_launches() - launches, kept ? 0 : 3 * LAUNCHES);
        EXPECT_EQ(bt_device_download(dev, out[kept], mem, ALL * sizeof(*in)), BT_OK);
        EXPECT_EQ(bt_device_sync(dev), BT_OK);
    }
    EXPECT(n_different(out[0], in, ALL * sizeof(*in)) > 0);
    EXPECT_EQ(n_different(out[0], out[1], ALL * sizeof(*in)), 0);
    dev->ops->graphs->destroy(dev, graph);
    bt_device_free(dev, mem);
    free(in), free(out[0]), free(out[1]);
    drop(dev);
}

/* What a graph cannot hold: an allocation, a side that nobody joins; and one that is thrown away.
 */
static void a_spoiled_capture_is_an_error_and_leaves_nothing(void)
{
    bt_device *dev   = make();
    bt_graph  *graph = NULL;
    void      *mem = NULL, *more = NULL;

    EXPECT_EQ(bt_device_alloc(dev, 64, &mem), BT_OK);
    for (int i = 0; i < 3; i++) {
        EXPECT_EQ(dev->ops->graphs->begin(dev), BT_OK);
        EXPECT_EQ(bt_device_rms_norm(dev, 1, 8, mem, 8, mem, 1e-6f, mem, 8), BT_OK);
        if (i == 0) EXPECT_EQ(bt_device_alloc(dev, 64, &more), BT_ERR_DEVICE);
        if (i == 1) EXPECT_EQ(bt_device_fork(dev), BT_OK);
        if (i == 1) EXPECT_EQ(bt_device_rms_norm(dev, 1, 8, mem, 8, mem, 1e-6f, mem, 8), BT_OK);
        EXPECT_EQ(dev->ops->graphs->end(dev, i < 2 ? &graph : NULL), i < 2 ? BT_ERR_DEVICE : BT_OK);
        EXPECT(graph == NULL);
    }
    EXPECT_EQ(bt_device_sync(dev), BT_OK);
    bt_device_free(dev, mem);
    drop(dev);
}

static void expect_unusable(fake_gpu gpu, uint32_t device, const char *why)
{
    bt_device *dev = NULL;
    char       text[256];

    g_fake_gpu = gpu;
    EXPECT(!bt_cuda_module.usable(device, text, sizeof(text)));
    EXPECT_HAS(text, why);
    EXPECT_EQ(cudaGetLastError(), cudaSuccess); /* a launch on another one would report it */
    EXPECT_EQ(bt_cuda_module.create(device, &dev), BT_ERR_UNSUPPORTED);
    EXPECT_HAS(bt_error_text(), why);
}

static void *drain_beside(void *over)
{
    while (!atomic_load((atomic_bool *)over))
        fake_gpu_drain_beside();
    return NULL;
}

/* As an end of NCCL's that takes longer than it is waited for. */
static void work_comes_right_though_another_thread_drains_the_gpu(void)
{
    enum { N = 512, RUNS = 400 };
    bt_device  *dev   = make();
    uint64_t    rng   = 6;
    bt_bf16    *x     = random_bf16(N, 1, &rng), first[N], y[N];
    void       *mem   = NULL;
    atomic_bool over  = false;
    int         wrong = 0;
    pthread_t   thread;

    EXPECT_EQ(bt_device_alloc(dev, 2 * N * sizeof(*x), &mem), BT_OK);
    EXPECT_EQ(bt_device_upload(dev, mem, x, N * sizeof(*x)), BT_OK);
    EXPECT_EQ(pthread_create(&thread, NULL, drain_beside, &over), 0);
    for (int i = 0; i < RUNS; i++) {
        bt_bf16 *to = (bt_bf16 *)mem + N;

        EXPECT_EQ(bt_device_rms_norm(dev, 1, N, mem, N, mem, 1e-6f, to, N), BT_OK);
        EXPECT_EQ(bt_device_download(dev, i == 0 ? first : y, to, sizeof(y)), BT_OK);
        EXPECT_EQ(bt_device_sync(dev), BT_OK);
        wrong += i > 0 && memcmp(first, y, sizeof(y)) != 0;
    }
    EXPECT_EQ(wrong, 0);
    atomic_store(&over, true);
    EXPECT_EQ(pthread_join(thread, NULL), 0);
    bt_device_free(dev, mem);
    free(x);
    drop(dev);
}

static void machines_that_cannot_are_told_why(void)
{
    fake_gpu gpu = HOPPER;
    char     text[256];

    gpu.driver = 0;
    expect_unusable(gpu, 0, "no NVIDIA driver");
    gpu.driver = 11080;
    expect_unusable(gpu, 0, "too old: it knows CUDA 11.8, expected 12.1");
    gpu.driver = 12000; /* the runtime would take it */
    expect_unusable(gpu, 0, "too old: it knows CUDA 12.0, expected 12.1");
    gpu      = HOPPER;
    gpu.stub = 1;
    expect_unusable(gpu, 0, "no GPU can be used: CUDA driver is a stub library");
    gpu        = HOPPER;
    gpu.broken = cudaErrorSystemNotReady;
    expect_unusable(gpu, 0, "system not yet initialized: a machine with NVSwitch needs the NVIDIA");
    gpu           = HOPPER;
    gpu.n_devices = 0;
    expect_unusable(gpu, 0, "no CUDA-capable device");
    gpu.n_devices = 2;
    expect_unusable(gpu, 2, "GPU 2 is not there: this machine has 2");
    gpu.major = 7;
    gpu.minor = 5;
    expect_unusable(gpu, 1, "compute capability 7.5: expected 8.0, 9.0 or 10.x");
    gpu.major = 8;
    gpu.minor = 6; /* of too little shared memory */
    expect_unusable(gpu, 1, "compute capability 8.6: expected 8.0, 9.0 or 10.x");

    g_fake_gpu         = HOPPER;
    g_fake_gpu.fail_at = 0;
    EXPECT(!bt_cuda_module.usable(0, text, sizeof(text)));
    EXPECT_HAS(text, "GPU 0 does not tell its compute capability and mode");
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

/* B200 and B300 load the same kernels, and may add in different orders. */
static void arithmetic_is_named_by_the_compute_capability(void)
{
    bt_device *dev = NULL;

    g_fake_gpu       = HOPPER;
    g_fake_gpu.major = 10;
    g_fake_gpu.minor = 3;
    EXPECT_EQ(bt_cuda_module.create(0, &dev), BT_OK);
    EXPECT_EQ(strcmp(dev->arithmetic, "prompt:mma16-sm103,generated:mma16-sm103"), 0);
    drop(dev);
}

/* What comes of a kernel's fault stands behind whatever call is next. */
static void errors_that_stay_say_what_to_do(void)
{
    bt_device *dev = make();

    g_fake_gpu.broken = cudaErrorIllegalAddress;
    EXPECT_EQ(bt_device_sync(dev), BT_ERR_DEVICE);
    EXPECT_HAS(bt_error_text(),
               "an illegal memory access was encountered: a kernel launched before");
    EXPECT_HAS(bt_error_text(), "CUDA_ENABLE_COREDUMP_ON_EXCEPTION=1");
    g_fake_gpu.broken = cudaErrorECCUncorrectable;
    EXPECT_EQ(bt_device_sync(dev), BT_ERR_DEVICE);
    EXPECT_HAS(bt_error_text(), "uncorrectable ECC error encountered: a fault of the hardware");
    EXPECT_HAS(bt_error_text(), "has to be reset");
    g_fake_gpu.broken = cudaSuccess;
    EXPECT_EQ(bt_device_sync(dev), BT_OK);
    drop(dev);
}

static void a_full_gpu_says_how_much_is_left(void)
{
    bt_device *dev = make();
    void      *a = NULL, *b = NULL;
    char       left[64];

    EXPECT_EQ(bt_device_alloc(dev, 900 << 20, &a), BT_OK);
    EXPECT_EQ(bt_device_alloc(dev, 200 << 20, &b), BT_ERR_NO_MEMORY);
    snprintf(left, sizeof(left), "209715200 bytes on GPU 0: %zu of its 1073741824",
             g_fake_gpu.bytes - g_fake_gpu.taken);
    EXPECT_HAS(bt_error_text(), left);
    bt_device_free(dev, a);
    drop(dev);
}

/* Whichever call of the runtime fails: an error, and nothing is left behind. */
static void every_failure_of_creation_leaves_nothing(void)
{
    bt_bf16 *host = NULL;
    uint64_t rng  = 5;
    long     k    = 0;

    host    = random_bf16(4 * 8 + 1, 1, &rng);
    host[0] = 8;
    for (bool done = false; !done; k++) {
        bt_device *dev    = NULL;
        bt_linear *linear = NULL;
        bt_status  st;

        g_fake_gpu         = HOPPER;
        g_fake_gpu.fail_at = k;
        st                 = bt_cuda_module.create(0, &dev);
        if (st == BT_OK) st = bt_device_linear_create(dev, 4, 8, row_of, host, &linear);
        done               = g_fake_gpu.fail_at >= 0;
        g_fake_gpu.fail_at = -1;
        EXPECT(done ? st == BT_OK : st != BT_OK);
        if (dev != NULL) bt_device_linear_destroy(dev, linear);
        bt_device_destroy(dev);
        EXPECT_EQ(g_fake_gpu.live, 0);
    }
    EXPECT(k > 15);
    free(host);
}

static void creation_without_memory_leaves_nothing(void)
{
    bt_bf16    host[4 * 8 + 1] = {8};
    bt_device *dev             = NULL;
    bt_linear *linear          = NULL;

    g_fake_gpu = HOPPER;
    EXPECT_EQ(BT_SWEEP(bt_cuda_module.create(0, &dev), bt_device_destroy(dev)), 3);
    EXPECT_EQ(bt_cuda_module.create(0, &dev), BT_OK);
    EXPECT_EQ(BT_SWEEP(bt_device_linear_create(dev, 4, 8, row_of, host, &linear),
                       bt_device_linear_destroy(dev, linear)),
              1);
    bt_device_destroy(dev);
    EXPECT_EQ(g_fake_gpu.live, 0);
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {
        BT_TEST(memory_is_zeroed_and_moved),
        BT_TEST(weights_of_many_buffers_arrive_whole),
        BT_TEST(lists_arrive_as_they_were),
        BT_TEST(weights_in_8_bits_stay_so),
        BT_TEST(weights_in_4_bits_stay_so),
        BT_TEST(weights_in_4_bits_want_whole_groups),
        BT_TEST(products_are_grouped_and_right),
        BT_TEST(checksum_is_that_of_host_memory),
        BT_TEST(row_operations_are_those_of_the_cpu),
        BT_TEST(a_block_has_the_bits_of_its_parts),
        BT_TEST(products_of_one_x_run_beside_each_other),
        BT_TEST(a_graph_is_the_work_that_it_kept),
        BT_TEST(a_spoiled_capture_is_an_error_and_leaves_nothing),
        BT_TEST(work_comes_right_though_another_thread_drains_the_gpu),
        BT_TEST(machines_that_cannot_are_told_why),
        BT_TEST(arithmetic_is_named_by_the_compute_capability),
        BT_TEST(errors_that_stay_say_what_to_do),
        BT_TEST(a_full_gpu_says_how_much_is_left),
        BT_TEST(every_failure_of_creation_leaves_nothing),
        BT_TEST(creation_without_memory_leaves_nothing),
    };

    bt_cpu_flush_denormals();
    return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
}

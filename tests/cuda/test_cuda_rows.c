/* Row kernels on the CPU, against the CPU back end's tables and plain formulas. */
#include "device/cpu/kernels.h"
#include "device/cuda/rows.h"
#include "tests/cuda/numbers.h"

static const uint32_t DIMS[] = {1, 7, 8, 9, 127, 128, 129, 2048, 2049, 2056};
enum { N_DIMS = sizeof(DIMS) / sizeof(DIMS[0]) };

static const bt_cpu_row_kernels *cpu(void) { return bt_cpu_kernels_find("scalar")->rows; }

static void rms_norm_of_any_width_is_the_formula(void)
{
    uint64_t rng = 1;

    for (int d = 0; d < N_DIMS; d++) {
        uint32_t   dim = DIMS[d], rows = 3, ld_x = dim + (d % 2 ? 8 : 0), ld_y = dim + 3 * (d % 3);
        bt_bf16   *x = random_bf16((size_t)rows * ld_x, 3, &rng), *w = random_bf16(dim, 2, &rng);
        bt_bf16   *y = ARRAY(bt_bf16, rows * ld_y), *want = ARRAY(bt_bf16, dim);
        difference e = {0, 0};

        EXPECT_EQ(bt_cuda_rms_norm(NULL, rows, dim, x, ld_x, w, 1e-6f, y, ld_y), 0);
        for (uint32_t r = 0; r < rows; r++) {
            cpu()->rms_norm_row(x + r * ld_x, w, dim, 1e-6f, want);
            for (uint32_t i = 0; i < dim; i++)
                differ(&e, bt_bf16_to_f32(y[r * ld_y + i]), bt_bf16_to_f32(want[i]), 1e-6, i);
        }
        EXPECT_CLOSE(e, 0.0105); /* the sum's last bits may turn two roundings to bf16 */
        free(x), free(w), free(y), free(want);
    }
}

static void rms_norm_of_a_row_ignores_its_neighbours(void)
{
    uint64_t rng = 2;
    uint32_t dim = 2049;
    bt_bf16 *x = random_bf16(5 * dim, 1, &rng), *w = random_bf16(dim, 1, &rng);
    bt_bf16 *all = ARRAY(bt_bf16, 5 * dim), *one = ARRAY(bt_bf16, dim);

    for (int i = 0; i < 9; i++)
        x[3 * dim + i] = 0x7fc0; /* NaN */
    bt_cuda_rms_norm(NULL, 5, dim, x, dim, w, 1e-6f, all, dim);
    for (uint32_t r = 0; r < 5; r++) {
        simt_seed(r);
        bt_cuda_rms_norm(NULL, 1, dim, x + r * dim, dim, w, 1e-6f, one, dim);
        EXPECT_EQ(n_different(one, all + r * dim, dim * sizeof(*one)), 0);
    }
    /* in place */
    bt_cuda_rms_norm(NULL, 5, dim, x, dim, w, 1e-6f, x, dim);
    EXPECT_EQ(n_different(x, all, 5 * dim * sizeof(*x)), 0);
    free(x), free(w), free(all), free(one);
}

/* Any NaN for a NaN: a GPU has one of its own. */
static bool same(bt_bf16 a, bt_bf16 b)
{
    return a == b || (isnan(bt_bf16_to_f32(a)) && isnan(bt_bf16_to_f32(b)));
}

static void add_norm_has_the_bits_of_add_then_norm(void)
{
    uint64_t rng = 5;

    for (int c = 0; c < 2 * N_DIMS; c++) {
        uint32_t dim = DIMS[c / 2], n = 3 * dim;
        bt_bf16 *x = random_bf16(n, 4, &rng), *residual = random_bf16(n, 4, &rng);
        bt_bf16 *w = random_bf16(dim, 2, &rng), *y = c % 2 == 0 ? ARRAY(bt_bf16, n) : x;
        bt_bf16 *sum = ARRAY(bt_bf16, n), *want = ARRAY(bt_bf16, n);

        x[dim] = 0x7f80, residual[dim] = 0xff80; /* inf - inf, in a row of its own */
        for (uint32_t i = 0; i < n; i++)
            sum[i] = bt_bf16_from_f32(bt_bf16_to_f32(residual[i]) + bt_bf16_to_f32(x[i]));
        EXPECT_EQ(bt_cuda_rms_norm(NULL, 3, dim, sum, dim, w, 1e-6f, want, dim), 0);
        EXPECT_EQ(bt_cuda_add_norm(NULL, 3, dim, x, residual, w, 1e-6f, y), 0);
        for (uint32_t i = 0; i < n; i++)
            EXPECT(same(residual[i], sum[i]) && same(y[i], want[i]));
        if (y != x) free(y);
        free(x), free(residual), free(w), free(sum), free(want);
    }
}

static void rows_are_gathered(void)
{
    uint64_t rng = 4;

    for (int d = 0; d < N_DIMS; d++) {
        uint32_t dim = DIMS[d], *index = ARRAY(uint32_t, 5);
        bt_bf16 *table = random_bf16(9 * dim, 1, &rng), *y = ARRAY(bt_bf16, 5 * dim);

        for (int i = 0; i < 5; i++)
            index[i] = (uint32_t)(i * 5 % 9);
        EXPECT_EQ(bt_cuda_gather_rows(NULL, 5, dim, table, index, y), 0);
        for (int i = 0; i < 5; i++)
            EXPECT_EQ(n_different(y + i * dim, table + index[i] * dim, dim * sizeof(*y)), 0);
        free(index), free(table), free(y);
    }
}

static void nothing_to_do_launches_nothing(void)
{
    uint64_t before = simt_n_launches();

    EXPECT_EQ(bt_cuda_rms_norm(NULL, 0, 64, NULL, 64, NULL, 1e-6f, NULL, 64), 0);
    EXPECT_EQ(bt_cuda_add_norm(NULL, 0, 64, NULL, NULL, NULL, 1e-6f, NULL), 0);
    EXPECT_EQ(bt_cuda_gather_rows(NULL, 0, 64, NULL, NULL, NULL), 0);
    EXPECT_EQ(simt_n_launches() - before, 0);
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {
        BT_TEST(rms_norm_of_any_width_is_the_formula),
        BT_TEST(rms_norm_of_a_row_ignores_its_neighbours),
        BT_TEST(add_norm_has_the_bits_of_add_then_norm),
        BT_TEST(rows_are_gathered),
        BT_TEST(nothing_to_do_launches_nothing),
    };

    bt_cpu_flush_denormals();
    return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
}

/* Row kernels of every family against plain loops, bit by bit, and the functions of math.h against
 * libm.  argv[1]: the family. */
#include "device/cpu/math.h"
#include "tests/device/twin.h"
#include "tests/support/test.h"

enum { MAX_N = 700, GUARD = 0x5a };

static const bt_cpu_row_kernels *g_rows;
static const uint32_t            NS[] = {1, 2, 15, 16, 17, 31, 32, 47, 64, 100, 255, 512, 576, 699};
enum { N_NS = sizeof(NS) / sizeof(*NS) };

static float lanes_sum(const float *x, uint32_t n)
{
    float lanes[16] = {0};

    for (uint32_t i = 0; i < n; i++)
        lanes[i % 16] = lanes[i % 16] + x[i];
    for (int width = 8; width >= 1; width /= 2)
        for (int i = 0; i < width; i++)
            lanes[i] = lanes[i] + lanes[i + width];
    return lanes[0];
}

static void fill_f32(float *x, uint32_t n, twin_kind kind, uint64_t seed)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t bits = (uint32_t)twin_value(kind, &seed) << 16 | twin_random(&seed) % 0x10000u;

        memcpy(&x[i], &bits, sizeof(bits));
    }
}

static void fill_bf16(bt_bf16 *x, uint32_t n, twin_kind kind, uint64_t seed)
{
    for (uint32_t i = 0; i < n; i++)
        x[i] = twin_value(kind, &seed);
}

static void expect_row(const char *what, const bt_bf16 *got, const bt_bf16 *want, uint32_t n)
{
    const bt_bf16 guard = GUARD | GUARD << 8;

    for (uint32_t i = 0; i < n; i++) {
        if (twin_same_bf16(got[i], want[i])) continue;
        g_failures++;
        fprintf(stderr, "%s n %u: element %u is %04x, want %04x\n", what, n, i, got[i], want[i]);
        return;
    }
    EXPECT_EQ(got[n], guard);
}

static void expect_row_f32(const char *what, const float *got, const float *want, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (twin_same(got[i], want[i])) continue;
        g_failures++;
        fprintf(stderr, "%s n %u: element %u is %a, want %a\n", what, n, i, (double)got[i],
                (double)want[i]);
        return;
    }
    EXPECT_EQ(twin_bits(got[n]), 0x5a5a5a5a);
}

static void conversions_equal_the_plain_ones(void)
{
    static float   x[MAX_N];
    static bt_bf16 got[MAX_N + 1], want[MAX_N];

    for (int kind = 0; kind < TWIN_N_KINDS; kind++) {
        for (uint32_t i = 0; i < N_NS; i++) {
            uint32_t n = NS[i];

            fill_f32(x, n, (twin_kind)kind, i);
            for (uint32_t j = 0; j < n; j++)
                if ((twin_bits(x[j]) & 0x7f800000u) == 0) x[j] = 0; /* no subnormal */
            memset(got, GUARD, sizeof(got));
            g_rows->to_bf16(x, n, got);
            for (uint32_t j = 0; j < n; j++)
                want[j] = bt_bf16_from_f32(x[j]);
            EXPECT(memcmp(got, want, n * sizeof(*got)) == 0); /* of a NaN too */
            expect_row("to_bf16", got, want, n);
        }
    }
}

static void scale_axpy_max_and_sum_equal_their_twins(void)
{
    static float   x[MAX_N], y[MAX_N + 1], want[MAX_N];
    static bt_bf16 y_bf16[MAX_N + 1], want_bf16[MAX_N];

    for (int kind = 0; kind < TWIN_N_KINDS; kind++) {
        for (uint32_t i = 0; i < N_NS; i++) {
            uint32_t n   = NS[i];
            float    max = -INFINITY;

            fill_f32(x, n, (twin_kind)kind, i);
            memset(y, GUARD, sizeof(y));
            fill_f32(y, n, (twin_kind)kind, i + 100);
            for (uint32_t j = 0; j < n; j++) {
                want[j] = (y[j] + x[j] * 0.3f) * 1.7f;
                max     = x[j] > max ? x[j] : max;
            }
            g_rows->axpy(0.3f, x, n, y);
            g_rows->scale(y, n, 1.7f);
            expect_row_f32("axpy and scale", y, want, n);
            EXPECT(g_rows->row_max(x, n) == max); /* of equal zeros, any */
            for (uint32_t j = 0; j < n; j++)
                want_bf16[j] = bt_bf16_from_f32(x[j] * 0.3f + 0.0f);
            memset(y_bf16, GUARD, sizeof(y_bf16));
            g_rows->scale_bf16(x, n, 0.3f, y_bf16);
            expect_row("scale_bf16", y_bf16, want_bf16, n);
            EXPECT(twin_same(g_rows->row_sum(x, n), lanes_sum(x, n)));
        }
    }
    EXPECT(g_rows->row_max(x, 0) == -INFINITY);
}

static void relu_dots_equal_their_twins(void)
{
    enum { ROWS = 5, LD = MAX_N + 3 };
    static float w[MAX_N], x[ROWS][LD], y[ROWS + 1], want[ROWS], terms[MAX_N];

    for (uint32_t c = 0; c < TWIN_N_KINDS * N_NS; c++) {
        uint32_t n = NS[c % N_NS];

        fill_f32(w, n, (twin_kind)(c / N_NS), c);
        memset(y, GUARD, sizeof(y));
        for (uint32_t row = 0; row < ROWS; row++) {
            fill_f32(x[row], n, (twin_kind)(c / N_NS), 500 + c + row);
            for (uint32_t i = 0; i < n; i++)
                terms[i] = w[i] * (x[row][i] > 0 ? x[row][i] : 0);
            want[row] = lanes_sum(terms, n);
        }
        g_rows->relu_dots(w, x[0], LD, ROWS, n, y);
        expect_row_f32("relu_dots", y, want, ROWS);
    }
}

/* Above each of the numbers, and what is next to them. */
static void count_above_equals_its_twin(void)
{
    static float x[MAX_N];

    EXPECT(bt_cpu_order_of(-INFINITY) < bt_cpu_order_of(-1.0f));
    EXPECT(bt_cpu_order_of(-1.0f) < bt_cpu_order_of(-0.0f));
    EXPECT(bt_cpu_order_of(-0.0f) < bt_cpu_order_of(0.0f));
    EXPECT(bt_cpu_order_of(0.0f) < bt_cpu_order_of(1e-40f));
    EXPECT(bt_cpu_order_of(1e-40f) < bt_cpu_order_of(INFINITY));
    for (uint32_t c = 0; c < TWIN_N_KINDS * N_NS; c++) {
        uint32_t n = NS[c % N_NS];

        fill_f32(x, n, (twin_kind)(c / N_NS), c);
        EXPECT_EQ(g_rows->count_above(x, n, UINT32_MAX), 0);
        for (uint32_t at = 0; at < 2 * n; at++) {
            uint32_t order = bt_cpu_order_of(x[at / 2]) - at % 2, want = 0;

            for (uint32_t i = 0; i < n; i++)
                want += bt_cpu_order_of(x[i]) > order;
            EXPECT_EQ(g_rows->count_above(x, n, order), want);
        }
    }
    EXPECT_EQ(g_rows->count_above(x, 0, 0), 0);
}

/* Three parts of 1, 3 and 2 rows. */
static void sum_parts_equals_its_twin(void)
{
    enum { PARTS = 3, ROWS = 6 };
    static const uint32_t N_OF[PARTS] = {1, 3, 2};
    static bt_bf16        x[ROWS][MAX_N], y[MAX_N + 1], want[MAX_N];
    static float          last[MAX_N];
    const bt_bf16        *rows[ROWS];

    for (uint32_t c = 0; c < TWIN_N_KINDS * N_NS * 2; c++) {
        uint32_t  n    = NS[c / 2 % N_NS];
        twin_kind kind = (twin_kind)(c / 2 / N_NS);
        bool      add  = c % 2 != 0;

        for (uint32_t t = 0; t < ROWS; t++) {
            fill_bf16(x[t], n, kind, c + t);
            rows[t] = x[t];
        }
        fill_f32(last, n, kind, c);
        memset(y, GUARD, sizeof(y));
        for (uint32_t i = 0; i < n; i++) {
            float acc = 0;

            for (uint32_t p = 0, t = 0; p < PARTS; p++) {
                float part = 0;

                for (uint32_t end = t + N_OF[p]; t < end; t++)
                    part = part + bt_bf16_to_f32(x[t][i]);
                if (N_OF[p] > 1) part = 0.0f + bt_bf16_to_f32(bt_bf16_from_f32(part));
                acc = acc + part;
            }
            want[i] = bt_bf16_from_f32(add ? acc + last[i] : acc);
        }
        g_rows->sum_parts(rows, N_OF, PARTS, add ? last : NULL, n, y);
        expect_row("sum_parts", y, want, n);
    }
}

static void exp_row_equals_bt_expf(void)
{
    static float   x[MAX_N], p_f32[MAX_N + 65], e[MAX_N];
    static bt_bf16 p[MAX_N + 65], want[MAX_N + 64];

    for (int kind = 0; kind < TWIN_N_KINDS; kind++) {
        for (uint32_t i = 0; i < N_NS; i++) {
            uint32_t n = NS[i], n_pad = (n + 63) / 64 * 64;
            float    sum;

            fill_f32(x, n, (twin_kind)kind, i);
            memset(p, GUARD, sizeof(p));
            memset(p_f32, GUARD, sizeof(p_f32));
            memset(want, 0, sizeof(want));
            for (uint32_t j = 0; j < n; j++) {
                x[j]    = kind == TWIN_BITS ? x[j] : x[j] * 9.0f;
                e[j]    = bt_expf(x[j] * 0.7f - 2.5f);
                want[j] = bt_bf16_from_f32(e[j]);
            }
            sum = g_rows->exp_row(x, n, n_pad, 0.7f, 2.5f, p, p_f32);
            EXPECT(twin_same(sum, lanes_sum(e, n)));
            expect_row("exp_row", p, want, n_pad);
            for (uint32_t j = 0; j < n_pad; j++)
                EXPECT(twin_same(p_f32[j], j < n ? e[j] : 0.0f));
            EXPECT(twin_same(g_rows->exp_row(x, n, n, 0.7f, 2.5f, p, NULL), sum));
        }
    }
}

static void rms_norm_row_equals_its_twin(void)
{
    static bt_bf16 x[MAX_N], weight[MAX_N], y[MAX_N + 1], want[MAX_N];
    static float   squares[MAX_N];

    for (int kind = 0; kind < TWIN_N_KINDS; kind++) {
        for (uint32_t i = 0; i < N_NS; i++) {
            uint32_t n = NS[i];
            float    factor;

            fill_bf16(x, n, (twin_kind)kind, i);
            fill_bf16(weight, n, TWIN_ORDINARY, i + 100);
            for (uint32_t j = 0; j < n; j++)
                squares[j] = bt_bf16_to_f32(x[j]) * bt_bf16_to_f32(x[j]);
            factor = 1.0f / sqrtf(lanes_sum(squares, n) / (float)n + 1e-6f);
            for (uint32_t j = 0; j < n; j++)
                want[j] = bt_bf16_from_f32(
                    bt_bf16_to_f32(bt_bf16_from_f32(bt_bf16_to_f32(x[j]) * factor)) *
                    bt_bf16_to_f32(weight[j]));
            memset(y, GUARD, sizeof(y));
            g_rows->rms_norm_row(x, weight, n, 1e-6f, y);
            expect_row("rms_norm_row", y, want, n);
            memcpy(y, x, n * sizeof(*x));
            g_rows->rms_norm_row(y, weight, n, 1e-6f, y); /* in place */
            expect_row("rms_norm_row in place", y, want, n);
        }
    }
}

static void add_norm_row_is_add_then_norm(void)
{
    static bt_bf16 x[MAX_N + 1], weight[MAX_N], residual[MAX_N + 1], y[MAX_N + 1];
    static bt_bf16 sum[MAX_N], want[MAX_N];

    for (uint32_t c = 0; c < TWIN_N_KINDS * N_NS * 2; c++) {
        uint32_t  n    = NS[c / 2 % N_NS];
        twin_kind kind = (twin_kind)(c / 2 / N_NS);
        bt_bf16  *out  = c % 2 != 0 ? x : y;

        memset(x, GUARD, sizeof(x));
        memset(y, GUARD, sizeof(y));
        memset(residual, GUARD, sizeof(residual));
        fill_bf16(x, n, kind, c);
        fill_bf16(residual, n, kind, c + 1);
        fill_bf16(weight, n, TWIN_ORDINARY, c + 2);
        for (uint32_t i = 0; i < n; i++)
            sum[i] = bt_bf16_from_f32(bt_bf16_to_f32(residual[i]) + bt_bf16_to_f32(x[i]));
        g_rows->rms_norm_row(sum, weight, n, 1e-6f, want);
        g_rows->add_norm_row(x, residual, weight, n, 1e-6f, out);
        expect_row("add_norm_row's residual", residual, sum, n);
        expect_row(out == x ? "add_norm_row in place" : "add_norm_row", out, want, n);
    }
}

static void rope_row_equals_its_twin(void)
{
    static bt_bf16 x[MAX_N], y[MAX_N + 1], want[MAX_N];
    static float   cos_sin[MAX_N];

    for (int kind = 0; kind < TWIN_N_KINDS; kind++) {
        for (uint32_t n = 2; n < 100; n += 2) {
            fill_bf16(x, n, (twin_kind)kind, n);
            fill_f32(cos_sin, n, TWIN_ORDINARY, n);
            for (uint32_t j = 0; j < n; j += 2) {
                float a = bt_bf16_to_f32(x[j]), b = bt_bf16_to_f32(x[j + 1]);

                want[j]     = bt_bf16_from_f32(a * cos_sin[j] - b * cos_sin[j + 1]);
                want[j + 1] = bt_bf16_from_f32(a * cos_sin[j + 1] + b * cos_sin[j]);
            }
            memset(y, GUARD, sizeof(y));
            g_rows->rope_row(cos_sin, x, n, y);
            expect_row("rope_row", y, want, n);
            memcpy(y, x, n * sizeof(*x));
            g_rows->rope_row(cos_sin, y, n, y);
            expect_row("rope_row in place", y, want, n);
        }
    }
}

static void swiglu_row_equals_its_twin(void)
{
    static bt_bf16 a[MAX_N], b[MAX_N], y[MAX_N + 1], glu[MAX_N];

    for (int kind = 0; kind < TWIN_N_KINDS; kind++) {
        for (uint32_t i = 0; i < N_NS; i++) {
            uint32_t n = NS[i];

            memset(y, GUARD, sizeof(y));
            fill_bf16(a, n, (twin_kind)kind, i);
            fill_bf16(b, n, (twin_kind)kind, i + 100);
            for (uint32_t j = 0; j < n; j++) {
                float u = bt_bf16_to_f32(a[j]), v = bt_bf16_to_f32(b[j]);

                glu[j] = bt_bf16_from_f32(u / (bt_expf(-u) + 1.0f) * v);
            }
            g_rows->swiglu_row(a, b, n, y);
            expect_row("swiglu_row", y, glu, n);
        }
    }
}

/* Distance in units of the last place of want. */
static double ulps(double got, double want, double ulp_of_1)
{
    int exponent;

    if (got == want) return 0;
    frexp(want, &exponent);
    return fabs(got - want) / ldexp(ulp_of_1, exponent - 1);
}

static void exp_and_log_are_near_libm(void)
{
    double worst_expf = 0, worst_log = 0;

    for (double x = -87; x < 88.7; x += 0.000713) {
        double u = ulps((double)bt_expf((float)x), exp((double)(float)x), 0x1p-23);

        worst_expf = u > worst_expf ? u : worst_expf;
    }
    for (double x = 1e-300; x < 1e300; x *= 1.00371) {
        double u = ulps(bt_log(x), log(x), 0x1p-52);

        worst_log = u > worst_log ? u : worst_log;
    }
    for (double x = 0.5; x < 2; x += 0.0000137) {
        double u = ulps(bt_log(x), log(x), 0x1p-52);

        worst_log = u > worst_log ? u : worst_log;
    }
    printf("worst error in ulp: bt_expf %.2f bt_log %.2f\n", worst_expf, worst_log);
    EXPECT(worst_expf <= 2);
    EXPECT(worst_log <= 4);
}

static void exp_and_log_at_their_ends(void)
{
    EXPECT(bt_expf(0) == 1 && bt_expf(-INFINITY) == 0 && bt_expf(INFINITY) == INFINITY);
    EXPECT(bt_expf(-200) == 0 && bt_expf(200) == INFINITY && isnan(bt_expf(NAN)));
    EXPECT(bt_expf(88.72f) < INFINITY && bt_expf(88.73f) == INFINITY);
    EXPECT(bt_log(1) == 0 && bt_log(0) == -INFINITY && bt_log(INFINITY) == INFINITY);
    EXPECT(isnan(bt_log(-1)) && isnan(bt_log(NAN)) && bt_logf(1) == 0);
}

static void sincos_is_near_libm(void)
{
    double worst = 0, s, c;

    for (double x = -1048576; x <= 1048576; x += x > -100 && x < 100 ? 0.00137 : 1.2345) {
        double e;

        bt_sincos(x, &s, &c);
        e     = fmax(fabs(s - sin(x)), fabs(c - cos(x)));
        worst = e > worst ? e : worst;
    }
    /* Whole multiples of pi / 2, where one of them is tiny. */
    for (int n = 1; n < 500000; n += 17) {
        double x = n * 1.5707963267948966, u;

        bt_sincos(x, &s, &c);
        u = n % 2 == 0 ? ulps(s, sin(x), 0x1p-52) : ulps(c, cos(x), 0x1p-52);
        EXPECT(u < 1e4); /* some digits remain of what is left after 50 bits cancel */
    }
    printf("worst error of bt_sincos: %.3g\n", worst);
    EXPECT(worst < 4e-16);
    bt_sincos(0, &s, &c);
    EXPECT(s == 0 && c == 1);
    bt_sincos(INFINITY, &s, &c);
    EXPECT(isnan(s) && isnan(c));
    bt_sincos(NAN, &s, &c);
    EXPECT(isnan(s) && isnan(c));
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {
        BT_TEST(conversions_equal_the_plain_ones),
        BT_TEST(scale_axpy_max_and_sum_equal_their_twins),
        BT_TEST(relu_dots_equal_their_twins),
        BT_TEST(count_above_equals_its_twin),
        BT_TEST(sum_parts_equals_its_twin),
        BT_TEST(exp_row_equals_bt_expf),
        BT_TEST(rms_norm_row_equals_its_twin),
        BT_TEST(add_norm_row_is_add_then_norm),
        BT_TEST(rope_row_equals_its_twin),
        BT_TEST(swiglu_row_equals_its_twin),
        BT_TEST(exp_and_log_are_near_libm),
        BT_TEST(exp_and_log_at_their_ends),
        BT_TEST(sincos_is_near_libm),
    };
    const bt_cpu_kernels *kernels = bt_cpu_kernels_find(argc > 1 ? argv[1] : "auto");

    if (kernels == NULL) {
        printf("skipped: this CPU has no %s, only %s\n", argv[1], bt_device_cpu_kernels());
        return BT_TEST_SKIP;
    }
    g_rows = kernels->rows;
    bt_cpu_flush_denormals();
    return BT_RUN_TESTS(TESTS, argc > 2 ? argv[2] : NULL);
}

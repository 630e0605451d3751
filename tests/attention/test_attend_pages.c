/* A few queries through a block of keys in pages: scores, softmax and sums have the bits of the
 * scalar twin, for any number of keys and queries, and any numbers.  argv[1]: the kernel family. */
#include "tests/attention/twin.h"
#include "tests/support/test.h"

enum {
    LANES = BT_CPU_FEW_ROWS,
    KEYS  = BT_CPU_STRIP_KEYS,
    MAX_K = 264,
    MAX_V = 96,
    LD_O  = MAX_V + 7
};

static const bt_cpu_kernels *g_kernels;
static bt_bf16               g_rows[KEYS][MAX_K], g_q[LANES][MAX_K];
static twin_state            g_want[LANES];
static float                 g_max[LANES], g_sum[LANES], g_o[LANES][LD_O];

static uint32_t random_bits(void)
{
    static uint64_t state = 1;

    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33);
}

/* -size .. size, or, of every `special`-th, a zero, a subnormal, an infinity or a NaN. */
static void fill(bt_bf16 *x, size_t n, float size, uint32_t special)
{
    static const bt_bf16 SPECIAL[] = {0x8000, 0x0000, 0x0001, 0x807f, 0x7f80, 0xff80, 0x7fc1};

    for (size_t i = 0; i < n; i++) {
        float v = ((float)random_bits() / 1073741824.0f - 1) * size;

        x[i] = special != 0 && random_bits() % special == 0 ? SPECIAL[random_bits() % 7]
                                                            : bt_bf16_from_f32(v);
    }
}

/* Pages lie apart, and not in order. */
static void attend(const bt_cpu_attend_pages *block)
{
    enum { PAGES = KEYS / BT_CPU_PAGE_ROWS, LD = MAX_K + 8 };
    static bt_bf16              pages[PAGES][BT_CPU_PAGE_ROWS][LD];
    static _Alignas(64) float   scores[LANES * BT_CPU_LD_SCORES];
    static _Alignas(64) bt_bf16 packed[LANES * (MAX_K + 32)];
    const bt_bf16              *at[PAGES], *later[PAGES] = {NULL};
    bt_cpu_attend_pages         a = *block;

    memset(pages, 0xff, sizeof(pages)); /* NaN where no key lies */
    memset(scores, 0xff, sizeof(scores));
    for (uint32_t i = 0; i < PAGES; i++)
        at[i] = pages[i ^ 1][0];
    later[0] = at[1];
    for (uint32_t key = 0; key < a.n_keys; key++)
        memcpy(pages[key / BT_CPU_PAGE_ROWS ^ 1][key % BT_CPU_PAGE_ROWS], g_rows[key],
               a.k * sizeof(bt_bf16));
    g_kernels->rows->pack_rows(g_q[0], MAX_K, a.n_lanes, a.k, packed);
    a.q      = packed;
    a.pages  = at;
    a.later  = later;
    a.ld     = LD;
    a.max    = g_max;
    a.sum    = g_sum;
    a.o      = g_o[0];
    a.ld_o   = LD_O;
    a.scores = scores;
    g_kernels->attend_pages(&a);
}

static void want(const bt_cpu_attend_pages *a)
{
    for (uint32_t lane = 0; lane < a->n_lanes; lane++) {
        float scores[KEYS];

        for (uint32_t key = 0; key < a->n_keys; key++)
            scores[key] = twin_dot(g_q[lane], g_rows[key], a->k, 0);
        twin_block(scores, g_rows[0], MAX_K, a->n_keys, a->scale, a->v_dim, &g_want[lane]);
    }
}

static bool same(float a, float b) { return (isnan(a) && isnan(b)) || memcmp(&a, &b, 4) == 0; }

static uint32_t n_differ(const bt_cpu_attend_pages *a)
{
    uint32_t n = 0;

    for (uint32_t lane = 0; lane < a->n_lanes; lane++) {
        n += g_max[lane] != g_want[lane].max || !same(g_sum[lane], g_want[lane].sum);
        for (uint32_t i = 0; i < a->v_dim; i++)
            n += !same(g_o[lane][i], g_want[lane].o[i]);
        for (uint32_t i = a->v_dim; i < LD_O; i++)
            n += g_o[lane][i] != 7;
    }
    return n;
}

/* A block that begins, and, behind it, the one that goes on. */
static void expect_twin(uint32_t n_keys, uint32_t n_lanes, uint32_t k, uint32_t v_dim, float size,
                        uint32_t special)
{
    bt_cpu_attend_pages a = {
        .n_lanes = n_lanes, .k = k, .v_dim = v_dim, .scale = 0.3f, .begins = true};

    for (uint32_t lane = 0; lane < LANES; lane++) {
        g_max[lane]  = -INFINITY;
        g_sum[lane]  = 0;
        g_want[lane] = (twin_state){-INFINITY, 0, {0}};
        for (uint32_t i = 0; i < LD_O; i++)
            g_o[lane][i] = 7;
    }
    fill(g_q[0], sizeof(g_q) / sizeof(bt_bf16), size, special);
    for (int i = 0; i < 2; i++) {
        a.n_keys = i == 0 ? (uint32_t)KEYS : n_keys;
        fill(g_rows[0], sizeof(g_rows) / sizeof(bt_bf16), 1, special);
        attend(&a);
        want(&a);
        EXPECT_EQ(n_differ(&a), 0);
        a.begins = false;
    }
}

static void attend_pages_of_any_number_of_keys_equals_the_twin(void)
{
    static const uint32_t N[] = {1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 128, 255, 256};

    for (size_t i = 0; i < sizeof(N) / sizeof(N[0]); i++)
        expect_twin(N[i], 16, 72, 64, 1, 0);
}

static void attend_pages_of_any_shape_equals_the_twin(void)
{
    static const uint32_t KS[] = {96, 97, 128, 191, 192, 193, 224, 264};

    for (uint32_t n = 1; n <= LANES; n++)
        expect_twin(150, n, KS[n % 8], 32 + n % 3 * 32, 1, 0);
}

static void attend_pages_of_special_numbers_equals_the_twin(void)
{
    for (uint32_t n = 1; n <= 8; n++) {
        expect_twin(n * 31, n + 5, 96, 96, 30, 0); /* few keys have weight */
        expect_twin(n * 31, n + 5, 96, 96, 1, 1000);
        expect_twin(n * 31, n + 5, 40, 32, 1, 20);
        expect_twin(n * 31, n + 5, 40, 32, 0x1p-124f, 0); /* results are subnormal */
    }
}

static const bt_test TESTS[] = {
    BT_TEST(attend_pages_of_any_number_of_keys_equals_the_twin),
    BT_TEST(attend_pages_of_any_shape_equals_the_twin),
    BT_TEST(attend_pages_of_special_numbers_equals_the_twin),
};

int main(int argc, char **argv)
{
    bt_device_cpu_options opt = {.n_threads = 1, .kernels = argc > 1 ? argv[1] : "auto"};
    bt_device            *dev = NULL; /* sets DAZ and FTZ */
    int                   rc;

    g_kernels = bt_cpu_kernels_find(opt.kernels);
    if (g_kernels == NULL || g_kernels->attend_pages == NULL) {
        printf("skipped: %s is not of this CPU, or has no such kernel\n", opt.kernels);
        return BT_TEST_SKIP;
    }
    g_twin_arithmetic = g_kernels->arithmetic[BT_ROLE_GENERATED];
    if (bt_device_cpu_create(&opt, &dev) != BT_OK) return EXIT_FAILURE;
    rc = BT_RUN_TESTS(TESTS, argc > 2 ? argv[2] : NULL);
    bt_device_destroy(dev);
    return rc;
}

/* Every product kernel of every family that this CPU has gives the bits of its plain-loop twin, for
 * any m, n, k, any numbers, and whatever stands beside a row.  argv[1]: the family. */
#include "core/alloc.h"
#include "core/e4m3.h"
#include "tests/device/twin.h"
#include "tests/support/test.h"

enum { MAX_M = 270, MAX_N = 97, MAX_K = 6178, GUARD = 0x5a };
enum { FAR_M = 17, FAR_LD = 1 << 15 }; /* rows of many results */

static const bt_cpu_kernels *g_kernels;
static bt_bf16              *g_x, *g_w, *g_packed; /* [MAX_M][MAX_K], [MAX_N][MAX_K] */
static float                *g_want, *g_y, *g_start;

static const uint32_t MS[] = {1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11,  12,  13, 15,
                              16, 17, 25, 31, 32, 33, 47, 49, 64, 95, 128, 257, 270};
static const uint32_t NS[] = {1, 5, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 80, 97};
enum { N_MS = sizeof(MS) / sizeof(*MS), N_NS = sizeof(NS) / sizeof(*NS) };

static void fill(twin_kind kind, uint32_t k, uint64_t seed)
{
    for (uint32_t i = 0; i < MAX_M * k; i++)
        g_x[i] = twin_value(kind, &seed);
    for (uint32_t i = 0; i < MAX_N * k; i++)
        g_w[i] = twin_value(kind, &seed);
    for (uint32_t i = 0; i < MAX_M * MAX_N; i++)
        g_start[i] = kind == TWIN_TINY ? 0.0f : bt_bf16_to_f32(twin_value(kind, &seed));
}

static void want(bt_cpu_arithmetic arithmetic, uint32_t m_max, uint32_t k, bool add)
{
    for (uint32_t m = 0; m < m_max; m++)
        for (uint32_t n = 0; n < MAX_N; n++)
            g_want[m * MAX_N + n] = twin(arithmetic, g_x + (size_t)m * k, g_w + (size_t)n * k, k,
                                         add ? g_start[m * MAX_N + n] : 0.0f);
}

/* y is [m][ld] with guard bytes where nothing may be written. */
static void run(bt_role role, uint32_t m0, uint32_t m, uint32_t n, uint32_t k, bool add,
                bool cached)
{
    size_t    ld = n + 3;
    bt_cpu_mm mm = {.x      = g_x + (size_t)m0 * k,
                    .ld_x   = k,
                    .packed = g_packed,
                    .y      = g_y,
                    .ld_y   = ld,
                    .m      = m,
                    .n      = n,
                    .k      = k,
                    .add    = add,
                    .cached = cached};

    memset(g_y, GUARD, (m + 1) * ld * sizeof(*g_y));
    for (uint32_t r = 0; add && r < m; r++)
        memcpy(g_y + r * ld, g_start + (m0 + r) * MAX_N, n * sizeof(*g_y));
    g_kernels->mm[role](&mm);
}

static void check(bt_role role, uint32_t m0, uint32_t m, uint32_t n, uint32_t k, bool add,
                  bool cached)
{
    static const unsigned char GUARDS[sizeof(float)] = {GUARD, GUARD, GUARD, GUARD};
    int                        before                = g_failures;

    run(role, m0, m, n, k, add, cached);
    for (uint32_t r = 0; r < m + 1 && g_failures == before; r++) {
        for (uint32_t c = 0; c < n + 3 && g_failures == before; c++) {
            float got = g_y[r * (n + 3) + c];

            if (r == m || c >= n) {
                EXPECT(memcmp(&got, GUARDS, sizeof(got)) == 0);
            } else if (!twin_same(got, g_want[(m0 + r) * MAX_N + c])) {
                g_failures++;
                fprintf(stderr,
                        "%s role %d m %u n %u k %u add %d cached %d: [%u, %u] is %a, want %a\n",
                        g_kernels->name, (int)role, m, n, k, add, cached, r, c, (double)got,
                        (double)g_want[(m0 + r) * MAX_N + c]);
            }
        }
    }
}

static void sweep(bt_role role, twin_kind kind, uint32_t k, bool add)
{
    bool     slow  = strcmp(g_kernels->name, "scalar") == 0;
    uint32_t m_max = k > 1200 ? 17 : k == 64 || k == 1057 ? MAX_M : 49;

    fill(kind, k, 77u * k + kind);
    g_kernels->rows->pack_rows(g_w, k, MAX_N, k, g_packed);
    want(g_kernels->arithmetic[role], m_max, k, add);
    for (uint32_t i = 0; i < N_MS; i++) {
        for (uint32_t j = 0; j < N_NS; j++) {
            if (MS[i] > m_max || ((k > 64 || slow) && (i + j) % 5 != 0)) continue;
            check(role, 0, MS[i], NS[j], k, add, false);
            if (!slow) check(role, 0, MS[i], NS[j], k, add, true);
        }
        /* Rows from the middle, with other neighbours. */
        if (MS[i] < m_max) check(role, m_max - MS[i], MS[i], MAX_N, k, add, i % 2 != 0);
    }
}

/* Whether this role's product is that of the role before: each is swept once. */
static bool swept(int role)
{
    return role > 0 && g_kernels->mm[role] == g_kernels->mm[role - 1] &&
           g_kernels->arithmetic[role] == g_kernels->arithmetic[role - 1];
}

static void sweep_k(twin_kind kind, const uint32_t *ks, size_t n_ks)
{
    for (size_t i = 0; i < n_ks; i++) {
        for (int role = 0; role < BT_N_ROLES; role++) {
            if (swept(role)) continue;
            sweep((bt_role)role, kind, ks[i], false);
            sweep((bt_role)role, kind, ks[i], true);
        }
    }
}
#define SWEEP_K(kind, ...)                           \
    do {                                             \
        static const uint32_t KS[] = {__VA_ARGS__};  \
        sweep_k(kind, KS, sizeof(KS) / sizeof(*KS)); \
    } while (0)

static void mm_of_ordinary_numbers_equals_its_twin(void)
{
    SWEEP_K(TWIN_ORDINARY, 1, 2, 3, 31, 32, 33, 63, 64, 65, 100, 192, 340, 342, 511, 512, 513, 545,
            1057);
}
static void mm_of_long_rows_equals_its_twin(void) { SWEEP_K(TWIN_ORDINARY, 2049, 4096, 4130); }
static void mm_of_tiny_numbers_flushes_like_its_twin(void)
{
    SWEEP_K(TWIN_TINY, 1, 2, 3, 16, 32, 33, 64, 200);
}
static void mm_of_special_numbers_equals_its_twin(void)
{
    SWEEP_K(TWIN_SPARSE, 2, 16, 32, 33, 64, 200);
}
static void mm_of_any_bits_equals_its_twin(void) { SWEEP_K(TWIN_BITS, 1, 2, 3, 4, 7, 16, 32); }

/* Blocks of columns further apart than their k, as `k_packed` says, and a B that is near. */
static void mm_of_the_first_k_equals_its_twin(void)
{
    enum { K = 100, K_PACKED = 192, K_PAD = 128 };
    size_t   n_blocks = (MAX_N + 15) / 16;
    bt_bf16 *packed   = bt_calloc_aligned(n_blocks * 16 * K_PACKED, sizeof(*packed));

    fill(TWIN_ORDINARY, K, 5);
    g_kernels->rows->pack_rows(g_w, K, MAX_N, K, g_packed);
    for (size_t i = 0; i < n_blocks * 16 * K_PACKED; i++)
        packed[i] = 0x7fc0;
    for (size_t b = 0; b < n_blocks; b++)
        memcpy(packed + b * 16 * K_PACKED, g_packed + b * 16 * K_PAD, 16 * K_PAD * sizeof(*packed));
    for (int role = 0; role < BT_N_ROLES; role++) {
        want(g_kernels->arithmetic[role], 49, K, false);
        for (uint32_t m = 1; m <= 49; m = m < 4 ? m + 1 : m * 2) {
            for (int cached = 0; cached < 2; cached++) {
                size_t wrong = 0;

                g_kernels->mm[role](&(bt_cpu_mm){.x        = g_x,
                                                 .ld_x     = K,
                                                 .packed   = packed,
                                                 .k_packed = K_PACKED,
                                                 .y        = g_y,
                                                 .ld_y     = MAX_N,
                                                 .m        = m,
                                                 .n        = MAX_N,
                                                 .k        = K,
                                                 .cached   = cached != 0});
                for (size_t i = 0; i < (size_t)m * MAX_N; i++)
                    wrong += !twin_same(g_y[i], g_want[i]);
                EXPECT_EQ(wrong, 0);
            }
        }
    }
    bt_free(packed);
}

/* ---- many rows ---- */

static void make_tiles(uint32_t m, uint32_t k, bt_bf16 *tiles)
{
    uint32_t k_pad = bt_cpu_pad(k, 32);

    memset(tiles, 0, (size_t)bt_cpu_pad(m, 16) * k_pad * sizeof(*tiles));
    for (uint32_t r = 0; r < m; r++)
        for (uint32_t i = 0; i < k; i++)
            tiles[(size_t)r / 16 * 16 * k_pad + (size_t)i / 32 * 512 + r % 16 * 32 + i % 32] =
                g_x[(size_t)r * k + i];
}

static void check_tiles(uint32_t m, uint32_t n, uint32_t k, size_t ld, bt_dtype dtype,
                        const bt_bf16 *tiles, float *sums)
{
    size_t          wrong = 0, strays = 0, bytes = bt_dtype_bytes(dtype);
    bt_cpu_mm_tiles mm = {.x       = tiles,
                          .packed  = g_packed,
                          .next    = m % 2 == 0 ? g_packed : NULL,
                          .y       = g_y,
                          .ld_y    = ld,
                          .y_dtype = dtype,
                          .sums    = sums,
                          .m       = m,
                          .n       = n,
                          .k       = k};

    memset(g_y, GUARD, (m + 1) * ld * bytes);
    g_kernels->mm_tiles(&mm);
    for (uint32_t r = 0; r < m + 1; r++) {
        for (uint32_t c = 0; c < ld; c++) {
            size_t at = r * ld + c;

            if (r == m || c >= n)
                strays += ((unsigned char *)g_y)[at * bytes] != GUARD;
            else if (dtype == BT_F32)
                wrong += !twin_same(g_y[at], g_want[r * MAX_N + c]);
            else
                wrong += !twin_same(bt_bf16_to_f32(((bt_bf16 *)g_y)[at]),
                                    bt_bf16_to_f32(bt_bf16_from_f32(g_want[r * MAX_N + c])));
        }
    }
    if (wrong + strays != 0)
        fprintf(stderr, "m %u n %u k %u ld %zu dtype %d\n", m, n, k, ld, (int)dtype);
    EXPECT_EQ(wrong, 0);
    EXPECT_EQ(strays, 0);
}

static void mm_of_tiles_equals_its_twin(void)
{
    static const uint32_t SHAPES[][2] = {
        {1,     64  },
        {16,    33  },
        {FAR_M, 512 },
        {48,    545 },
        {270,   1100},
        {129,   4130}
    };
    static const twin_kind KINDS[] = {TWIN_ORDINARY, TWIN_TINY, TWIN_SPARSE, TWIN_BITS};
    float                 *sums;
    bt_bf16               *tiles;

    if (g_kernels->mm_tiles == NULL) return;
    sums = bt_calloc_aligned(bt_cpu_pad(MAX_M, 32) * bt_cpu_pad(MAX_N, 32), sizeof(*sums));
    for (size_t s = 0; s < sizeof(SHAPES) / sizeof(*SHAPES); s++) {
        for (size_t i = 0; i < sizeof(KINDS) / sizeof(*KINDS); i++) {
            uint32_t m = SHAPES[s][0], k = SHAPES[s][1];

            if (k > 600 && KINDS[i] != TWIN_ORDINARY) continue;
            if (KINDS[i] == TWIN_BITS) k = 32;
            fill(KINDS[i], k, s);
            g_kernels->rows->pack_rows(g_w, k, MAX_N, k, g_packed);
            want(g_kernels->arithmetic[BT_ROLE_PROMPT], m, k, false);
            tiles = bt_calloc_aligned(bt_cpu_tiled_elems(m, k), sizeof(*tiles)); /* and no more */
            make_tiles(m, k, tiles);
            for (uint32_t n = MAX_N; n > 0; n = n * 2 / 3) {
                /* Rows on cache lines go past the caches, others do not. */
                size_t ld = n % 2 == 0 ? bt_cpu_pad(n + 3, 32) : n + 3;

                check_tiles(m, n, k, ld, BT_F32, tiles, sums);
                check_tiles(m, n, k, ld, BT_BF16, tiles, sums);
                if (m == FAR_M) check_tiles(m, n, k, FAR_LD, BT_F32, tiles, sums);
            }
            bt_free(tiles);
        }
    }
    bt_free(sums);
}

/* ---- few rows, B in pages ---- */

enum { PAGES_N = 96, PAGES_K = 256, PAGES_LD = PAGES_N + 32 };

/* Rows of B beyond k are NaN: nothing may read them. */
static void fill_pages(uint32_t k, bt_bf16 *b, const bt_bf16 **pages)
{
    for (uint32_t i = 0; i < PAGES_K * PAGES_LD; i++)
        b[i] = 0x7fc0;
    for (uint32_t i = 0; i < PAGES_K / BT_CPU_PAGE_ROWS; i++) /* in no order */
        pages[i] = b + (size_t)(i ^ 1) * BT_CPU_PAGE_ROWS * PAGES_LD;
    for (uint32_t r = 0; r < k; r++)
        for (uint32_t c = 0; c < PAGES_N; c++)
            b[((r / BT_CPU_PAGE_ROWS ^ 1) * BT_CPU_PAGE_ROWS + r % BT_CPU_PAGE_ROWS) * PAGES_LD +
              c] = g_w[(size_t)c * k + r];
}

static void check_pages(uint32_t m, uint32_t n, uint32_t k, bool add, const bt_bf16 *const *pages)
{
    static _Alignas(64) bt_bf16 x[BT_CPU_FEW_ROWS][PAGES_K];
    const bt_bf16              *later[] = {g_w, NULL, g_w + 64, g_w};
    size_t                      ld = n + 3, wrong = 0, strays = 0;
    bt_cpu_mm_pages             mm = {.x       = x[0],
                                      .ld_x    = PAGES_K,
                                      .pages   = pages,
                                      .ld      = PAGES_LD,
                                      .y       = g_y,
                                      .ld_y    = ld,
                                      .m       = m,
                                      .n       = n,
                                      .k       = k,
                                      .add     = add,
                                      .later   = later,
                                      .n_later = m % 2 * 333};

    memset(x, 0, sizeof(x));
    memset(g_y, GUARD, (m + 1) * ld * sizeof(*g_y));
    for (uint32_t r = 0; r < m; r++) {
        memcpy(x[r], g_x + (size_t)r * k, k * sizeof(x[r][0]));
        if (add) memcpy(g_y + r * ld, g_start + r * MAX_N, n * sizeof(*g_y));
    }
    g_kernels->mm_pages(&mm);
    for (uint32_t r = 0; r < m + 1; r++) {
        for (uint32_t c = 0; c < ld; c++) {
            if (r == m || c >= n)
                strays += *(unsigned char *)&g_y[r * ld + c] != GUARD;
            else
                wrong += !twin_same(g_y[r * ld + c], g_want[r * MAX_N + c]);
        }
    }
    if (wrong + strays != 0) fprintf(stderr, "m %u n %u k %u add %d\n", m, n, k, add);
    EXPECT_EQ(wrong, 0);
    EXPECT_EQ(strays, 0);
}

static void mm_of_pages_equals_its_twin(void)
{
    static const uint32_t  KS[]    = {1, 2, 31, 32, 33, 63, 64, 65, 129, 255, 256};
    static const twin_kind KINDS[] = {TWIN_ORDINARY, TWIN_TINY, TWIN_SPARSE};
    bt_bf16               *b;
    const bt_bf16         *pages[PAGES_K / BT_CPU_PAGE_ROWS];

    if (g_kernels->mm_pages == NULL) return;
    b = bt_calloc_aligned(PAGES_K * PAGES_LD, sizeof(*b));
    for (size_t i = 0; i < sizeof(KS) / sizeof(*KS) * 3; i++) {
        uint32_t k = KS[i / 3];

        fill(KINDS[i % 3], k, i);
        fill_pages(k, b, pages);
        for (int add = 0; add < 2; add++) {
            want(g_kernels->arithmetic[BT_ROLE_GENERATED], BT_CPU_FEW_ROWS, k, add != 0);
            for (uint32_t m = 1; m <= BT_CPU_FEW_ROWS; m += 1 + m / 5)
                for (uint32_t n = 32; n <= PAGES_N; n += 32)
                    check_pages(m, n, k, add != 0, pages);
        }
    }
    bt_free(b);
}

/* ---- weights in 12, 8 and 4 bits ---- */

typedef struct {
    bt_weight_kind kind;
    uint8_t       *packed;
    void          *side;
} narrow;

/* Any numbers of 4 bits, with scales of `size`, of either sign and 0 too.  A start of -0 tells +0
 * from -0 in what is added to it. */
static void fill_int4(const narrow *b, twin_kind kind, uint32_t k, float size, uint64_t seed)
{
    bt_cpu_int4_group *groups   = (bt_cpu_int4_group *)(void *)b->packed;
    size_t             n_groups = bt_cpu_pad(MAX_N, 16) / 16 * (k / 32);

    fill(kind, k, seed);
    for (size_t i = 0; i < MAX_M * MAX_N; i += 2)
        g_start[i] = -0.0f;
    memset(groups, 0, n_groups * sizeof(*groups));
    for (size_t i = 0; i < n_groups * 16; i++) {
        uint32_t v = (uint32_t)twin_random(&seed);

        groups[i / 16].scale[i % 16] = bt_bf16_from_f32(
            v % 64 == 0 ? 0 : size * (1.0f + (float)(v % 128) / 128) * (v & 0x100 ? -1 : 1));
    }
    for (uint32_t n = 0; n < MAX_N; n++) {
        for (uint32_t i = 0; i < k; i++) {
            bt_cpu_int4_group *g = &groups[n / 16 * (k / 32) + i / 32];
            uint32_t           v = (uint32_t)twin_random(&seed) % 16;

            g->words[i % 32 / 16][n % 16 * 2 + i % 2] |= v << i % 16 / 2 * 4;
            g_w[(size_t)n * k + i] = bt_bf16_from_f32((float)(v < 8 ? (int)v : (int)v - 16) *
                                                      bt_bf16_to_f32(g->scale[n % 16]));
        }
    }
    g_kernels->rows->pack_rows(g_w, k, MAX_N, k, g_packed);
}

/* The numbers of `kind` or any bytes, with scales of that size. */
static void fill_fp8(const narrow *b, twin_kind kind, uint32_t k, uint64_t seed)
{
    static const float SIZES[] = {0x1p-3f, 0x1p-118f, 0x1p118f, 0x1p-6f};
    uint32_t           k_pad = bt_cpu_pad(k, 32), n_pad = bt_cpu_pad(MAX_N, 16);
    size_t             ld = bt_cpu_scale_ld(k), size = seed % 4;
    float             *scale = b->side;

    fill(kind, k, seed);
    for (size_t i = 0; i < n_pad / 16 * ld; i++) /* neighbours share one, some of the time */
        scale[i] = SIZES[size] * (1.0f + (float)(twin_random(&seed) % 3) / 7);
    memset(b->packed, 0, (size_t)n_pad * k_pad);
    for (uint32_t n = 0; n < MAX_N; n++) {
        for (uint32_t i = 0; i < k; i++) {
            uint8_t  v = kind == TWIN_BITS ? (uint8_t)twin_random(&seed)
                                           : (uint8_t)(twin_random(&seed) % 0x7f | (n + i) % 2 << 7);
            uint32_t e = (i % 4 / 2) * 32 + n % 16 * 2 + i % 2;

            g_w[(size_t)n * k + i] =
                bt_bf16_from_f32(bt_e4m3_to_f32(v) * scale[n / 16 * ld + i / BT_CPU_SCALE_K]);
            b->packed[(size_t)(n / 16) * 16 * k_pad + i / 4 * 64 + e % 32 / 8 * 16 + e / 32 * 8 +
                      e % 8] = v;
        }
    }
    g_kernels->rows->pack_rows(g_w, k, MAX_N, k, g_packed);
}

/* Those of `kind`, and some of any bits. */
static void fill_bf12(const narrow *b, twin_kind kind, uint32_t k, uint64_t seed)
{
    size_t block = bt_cpu_packed_elems(16, k), side = bt_cpu_side_bytes(BT_WEIGHT_BF12, k);

    fill(kind == TWIN_BITS ? TWIN_SPARSE : kind, k, seed);
    for (size_t i = seed % 7; i < (size_t)MAX_N * k; i += 500)
        g_w[i] = (bt_bf16)twin_random(&seed);
    g_kernels->rows->pack_rows(g_w, k, MAX_N, k, g_packed);
    for (uint32_t n = 0; n < (MAX_N + 15) / 16; n++)
        EXPECT(g_kernels->rows->pack_bf12(g_packed + n * block, k, b->packed + n * block / 2 * 3,
                                          (void *)((char *)b->side + n * side)));
}

static void fill_narrow(const narrow *b, twin_kind kind, uint32_t k, uint64_t seed)
{
    static const float SIZES[] = {0x1p-3f, 0x1p-126f, 0x1p125f, 0x1p-6f};

    if (b->kind == BT_WEIGHT_BF12)
        fill_bf12(b, kind, k, seed);
    else if (b->kind == BT_WEIGHT_FP8)
        fill_fp8(b, kind, k, seed);
    else
        fill_int4(b, kind, k, SIZES[seed % 4], seed);
}

static void check_narrow(const narrow *b, bt_role role, uint32_t m, uint32_t n, uint32_t n0,
                         uint32_t k, bool add)
{
    size_t    block = (size_t)n0 * bt_cpu_pad(k, 32);
    size_t    bytes = (size_t)m * n * sizeof(float), wrong = 0;
    bt_cpu_mm mm = {.x = g_x, .ld_x = k, .packed = g_packed + block, .y = g_want, .ld_y = n};

    mm.m = m, mm.n = n, mm.k = k, mm.add = add;
    memcpy(g_want, g_start, bytes);
    g_kernels->mm[role](&mm);
    mm.kind   = b->kind;
    mm.packed = b->packed + bt_cpu_weight_bytes(b->kind, block);
    mm.side   = bt_cpu_side_at(b->side, b->kind, k, n0 / 16);
    mm.after  = m % 2 == 0 ? b->packed : NULL;
    mm.y      = g_y;
    memset(g_y, GUARD, bytes + n * sizeof(*g_y));
    memcpy(g_y, g_start, bytes);
    g_kernels->mm[role](&mm);
    for (size_t i = 0; i < (size_t)m * n; i++)
        wrong += !twin_same(g_y[i], g_want[i]);
    for (uint32_t i = 0; i < n; i++) /* the row behind */
        wrong += *(unsigned char *)&g_y[(size_t)m * n + i] != GUARD;
    if (wrong != 0) fprintf(stderr, "role %d m %u n %u k %u add %d\n", (int)role, m, n, k, add);
    EXPECT_EQ(wrong, 0);
}

/* Whether results are alike: [m, n] in fp32, or the first m rows of tiles. */
static bool same_results(uint32_t m, uint32_t n, bool tiles)
{
    const bt_bf16 *a = (const bt_bf16 *)g_y, *b = (const bt_bf16 *)g_want;

    for (size_t i = 0; !tiles && i < (size_t)m * n; i++)
        if (!twin_same(g_y[i], g_want[i])) return false;
    for (size_t i = 0; tiles && i < bt_cpu_tiled_elems(m, n); i++)
        if (i / bt_cpu_tiled_elems(16, n) * 16 + i % 512 / 32 < m &&
            !twin_same(bt_bf16_to_f32(a[i]), bt_bf16_to_f32(b[i])))
            return false;
    return true;
}

static void check_narrow_tiles(const narrow *b, uint32_t m, uint32_t n, uint32_t k, bool up,
                               const bt_bf16 *tiles, float *sums)
{
    bt_cpu_mm_tiles mm    = {.x       = tiles,
                             .packed  = g_packed,
                             .up      = up ? bt_cpu_packed_elems(MAX_N / 2 / 16 * 16, k) : 0,
                             .y       = g_want,
                             .ld_y    = up ? bt_cpu_tiled_elems(16, n) : n,
                             .y_dtype = up ? BT_BF16 : BT_F32,
                             .sums    = sums,
                             .m       = m,
                             .n       = n,
                             .k       = k};
    size_t          bytes = up ? bt_cpu_tiled_elems(m, n) * 2 : (size_t)m * n * sizeof(float);

    memset(g_want, GUARD, bytes);
    g_kernels->mm_tiles(&mm);
    mm.kind   = b->kind;
    mm.packed = b->packed;
    mm.side   = b->side;
    mm.next   = m % 2 == 0 ? b->packed : NULL;
    mm.y      = g_y;
    memset(g_y, GUARD, bytes);
    g_kernels->mm_tiles(&mm);
    EXPECT(same_results(m, n, up));
}

/* With the bits of the weights that were widened before. */
static void mm_of_narrow_weights_equals_that_of_bf16(bt_weight_kind kind)
{
    static const uint32_t KS[] = {1, 2, 31, 32, 64, 100, 128, 160, 257, 1057, 6178};
    narrow                b    = {.kind   = kind,
                                  .packed = bt_calloc_aligned(bt_cpu_packed_elems(MAX_N, MAX_K), 2),
                                  .side =
                                      bt_calloc_aligned(MAX_N / 16 + 1, bt_cpu_side_bytes(BT_WEIGHT_BF12, MAX_K))};
    float   *sums = bt_calloc_aligned(bt_cpu_pad(MAX_M, 32) * bt_cpu_pad(MAX_N, 32), sizeof(*sums));
    bt_bf16 *tiles = bt_calloc_aligned((size_t)bt_cpu_pad(MAX_M, 16) * bt_cpu_pad(MAX_K, 32), 2);

    for (size_t i = 0; i < sizeof(KS) / sizeof(*KS) * 4; i++) {
        uint32_t k = KS[i / 4], m_max = k > 1200 ? 47 : 270;
        bool     slow = strcmp(g_kernels->name, "scalar") == 0;

        if (kind == BT_WEIGHT_INT4) k = k < 32 ? 32 : k / 32 * 32;
        fill_narrow(&b, i % 4 == 3 ? TWIN_BITS : TWIN_ORDINARY, k, i);
        for (uint32_t j = i % 3; j < N_MS && MS[j] <= m_max; j += slow ? 7 : 3) {
            check_narrow(&b, BT_ROLE_PROMPT, MS[j], NS[(i + j) % N_NS], 0, k, false);
            check_narrow(&b, BT_ROLE_GENERATED, MS[j], MAX_N - 32, 32, k, true);
        }
        if (g_kernels->mm_tiles == NULL || i % 4 == 3) continue;
        for (uint32_t m = 1 + (uint32_t)i % 5; m <= m_max; m = m == 31 ? 32 : m * 2 + 1) {
            make_tiles(m, k, tiles);
            check_narrow_tiles(&b, m, NS[(i + m) % N_NS], k, false, tiles, sums);
            check_narrow_tiles(&b, m, 16 * (1 + m % 3), k, true, tiles, sums);
        }
    }
    bt_free(b.packed);
    bt_free(b.side);
    bt_free(sums);
    bt_free(tiles);
}

static void mm_of_12_bits_equals_that_of_bf16(void)
{
    mm_of_narrow_weights_equals_that_of_bf16(BT_WEIGHT_BF12);
}
static void mm_of_e4m3_equals_that_of_bf16(void)
{
    mm_of_narrow_weights_equals_that_of_bf16(BT_WEIGHT_FP8);
}
static void mm_of_int4_equals_that_of_bf16(void)
{
    mm_of_narrow_weights_equals_that_of_bf16(BT_WEIGHT_INT4);
}

/* A B made from columns is the B made from the transposed rows. */
static void pack_cols_equals_pack_rows_of_the_transpose(void)
{
    static const uint32_t SHAPES[][2] = {
        {1,  1  },
        {16, 32 },
        {17, 33 },
        {64, 64 },
        {97, 63 },
        {33, 1  },
        {5,  128},
        {64, 31 }
    };

    for (size_t s = 0; s < sizeof(SHAPES) / sizeof(*SHAPES); s++) {
        uint32_t n = SHAPES[s][0], k = SHAPES[s][1];
        size_t   bytes = bt_cpu_packed_elems(n, k) * sizeof(bt_bf16);
        bt_bf16 *other = bt_calloc_aligned(bytes + 64, 1);

        fill(TWIN_BITS, k, s);
        for (uint32_t i = 0; i < n; i++)
            for (uint32_t j = 0; j < k; j++)
                g_x[j * (n + 2) + i] = g_w[i * k + j];
        memset(g_packed, GUARD, bytes + 64);
        memset(other, GUARD, bytes + 64);
        g_kernels->rows->pack_rows(g_w, k, n, k, g_packed);
        g_kernels->rows->pack_cols(g_x, n + 2, k, n, bt_cpu_pad(k, 32), other);
        EXPECT(memcmp(g_packed, other, bytes + 64) == 0);
        for (uint32_t i = 0; i < bt_cpu_pad(n, 16); i++)
            for (uint32_t j = 0; j < bt_cpu_pad(k, 32); j++)
                EXPECT_EQ(g_packed[((size_t)(i / 16) * bt_cpu_pad(k, 32) / 2 + j / 2) * 32 +
                                   i % 16 * 2 + j % 2],
                          i < n && j < k ? g_w[i * k + j] : 0);
        bt_free(other);
    }
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {
        BT_TEST(mm_of_ordinary_numbers_equals_its_twin),
        BT_TEST(mm_of_long_rows_equals_its_twin),
        BT_TEST(mm_of_tiny_numbers_flushes_like_its_twin),
        BT_TEST(mm_of_special_numbers_equals_its_twin),
        BT_TEST(mm_of_any_bits_equals_its_twin),
        BT_TEST(mm_of_the_first_k_equals_its_twin),
        BT_TEST(mm_of_tiles_equals_its_twin),
        BT_TEST(mm_of_pages_equals_its_twin),
        BT_TEST(mm_of_12_bits_equals_that_of_bf16),
        BT_TEST(mm_of_e4m3_equals_that_of_bf16),
        BT_TEST(mm_of_int4_equals_that_of_bf16),
        BT_TEST(pack_cols_equals_pack_rows_of_the_transpose),
    };

    g_kernels = bt_cpu_kernels_find(argc > 1 ? argv[1] : "auto");
    if (g_kernels == NULL) {
        printf("skipped: this CPU has no %s, only %s\n", argv[1], bt_device_cpu_kernels());
        return BT_TEST_SKIP;
    }
    bt_cpu_flush_denormals();
    g_x      = bt_calloc_aligned(MAX_M * MAX_K, sizeof(*g_x));
    g_w      = bt_calloc_aligned(MAX_N * MAX_K, sizeof(*g_w));
    g_packed = bt_calloc_aligned(bt_cpu_packed_elems(MAX_N, MAX_K), sizeof(*g_packed));
    g_want   = bt_calloc_aligned(MAX_M * MAX_N, sizeof(*g_want));
    g_start  = bt_calloc_aligned(MAX_M * MAX_N, sizeof(*g_start));
    g_y      = bt_calloc_aligned((FAR_M + 1) * FAR_LD, sizeof(*g_y));
    return BT_RUN_TESTS(TESTS, argc > 2 ? argv[2] : NULL);
}

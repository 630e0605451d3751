/* Weights of 8 and of 4 bits that are widened, by every instruction set, are bf16(value * scale) in
 * the order of the packed operand, whatever the scale; those of 12 bits are what they were. */
#include "device/cpu/widen.h"

#include <math.h>

#include "core/alloc.h"
#include "core/e4m3.h"
#include "tests/device/twin.h"
#include "tests/support/test.h"

enum { BLOCKS = 3, K = 352, LD_SCALE = 4, BLOCK = K * 16, LD_OUT = K * 16 + 32 };

static const char *const SETS[] = {"scalar", "avx2", "avx512", "avx512vbmi", "avx512bf16", "neon"};

/* Ordinary ones; those at which weights overflow, lose bits, or are 0. */
static const float SCALES[] = {1.0f,      0.0123f,   7.0f / 3,   0x1.fep-1f, 0x1p-110f, 0x1.5p-119f,
                               0x1p-126f, 0x1p-130f, 0x1.fp118f, 0x1p120f,   0x1p127f,  0.0f};
enum { N_SCALES = sizeof(SCALES) / sizeof(*SCALES) };

static uint8_t *g_bytes; /* [BLOCKS][BLOCK] */
static float    g_scale[BLOCKS * LD_SCALE];
static bt_bf16 *g_out; /* [BLOCKS][LD_OUT] */

/* Where element (k, column) of a block is, among bytes and among bf16. */
static size_t byte_at(uint32_t k, uint32_t column)
{
    uint32_t e = k % 4 / 2 * 32 + column * 2 + k % 2;

    return k / 4 * 64 + e % 32 / 8 * 16 + e / 32 * 8 + e % 8;
}
static size_t wide_at(uint32_t k, uint32_t column) { return k / 2 * 32 + column * 2 + k % 2; }

static uint32_t n_wrong_fp8(uint32_t k0, uint32_t n_k, uint32_t n_blocks)
{
    uint32_t wrong = 0;

    for (uint32_t b = 0; b < n_blocks; b++)
        for (uint32_t k = k0; k < k0 + n_k; k++)
            for (uint32_t c = 0; c < 16; c++) {
                float want = bt_e4m3_to_f32(g_bytes[b * BLOCK + byte_at(k, c)]) *
                             g_scale[b * LD_SCALE + k / BT_CPU_SCALE_K];

                wrong +=
                    !twin_same_bf16(g_out[b * LD_OUT + wide_at(k - k0, c)], bt_bf16_from_f32(want));
            }
    for (uint32_t b = 0; b < BLOCKS; b++) /* what is beyond stays as it was */
        for (uint32_t i = b < n_blocks ? n_k * 16 : 0; i < LD_OUT; i++)
            wrong += g_out[b * LD_OUT + i] != 0x5a5a;
    return wrong;
}

/* By every instruction set, in pieces of which one continues another or goes back; n_wrong counts
 * what is not as it should be. */
static void widen_pieces(const bt_cpu_narrow *from,
                         uint32_t (*n_wrong)(uint32_t k0, uint32_t n_k, uint32_t n_blocks))
{
    static const uint32_t PIECES[][3] = {
        {0,   K,  BLOCKS},
        {0,   32, 1     },
        {32,  32, 1     },
        {96,  64, 2     }, /* across two scales */
        {320, 32, BLOCKS},
        {32,  32, BLOCKS}
    };

    for (size_t s = 0; s < sizeof(SETS) / sizeof(*SETS); s++) {
        bt_cpu_widen_fn   widen = bt_cpu_widen_find(SETS[s]);
        bt_cpu_wide_table tables[BLOCKS];

        for (int i = 0; i < BLOCKS; i++)
            bt_cpu_wide_begin(&tables[i]);
        for (size_t p = 0; widen != NULL && p < sizeof(PIECES) / sizeof(*PIECES); p++) {
            const uint32_t *at = PIECES[p];

            memset(g_out, 0x5a, BLOCKS * LD_OUT * sizeof(*g_out));
            widen(from, at[0], at[1], at[2], tables, g_out, LD_OUT);
            EXPECT_EQ(n_wrong(at[0], at[1], at[2]), 0);
        }
    }
}

/* Bytes in order; any; or such that no exponent is 0 and none is NaN. */
static void fill_bytes(uint32_t kind, uint64_t *seed)
{
    for (uint32_t i = 0; i < BLOCKS * BLOCK; i++) {
        uint32_t v = (uint32_t)twin_random(seed);

        g_bytes[i] = (uint8_t)(kind == 0 ? i : kind == 1 ? v : (8 + v / 2 % 119) | (v & 1) << 7);
    }
}

static void widened_weights_are_rounded_products(void)
{
    uint64_t seed = 5;

    for (uint32_t turn = 0; turn < N_SCALES * 9; turn++) {
        const bt_cpu_narrow from = {BT_WEIGHT_FP8, g_bytes, BLOCK, g_scale,
                                    LD_SCALE * sizeof(float)};

        fill_bytes(turn / 3 % 3, &seed);
        for (uint32_t i = 0; i < BLOCKS * LD_SCALE; i++) /* all the same, or often, or never */
            g_scale[i] = SCALES[(turn / 9 + (turn % 3 == 0 ? 0 : i / (turn % 3))) % N_SCALES];
        widen_pieces(&from, n_wrong_fp8);
    }
}

/* ---- 4 bits ---- */

enum { GROUPS = K / BT_INT4_GROUP };

static bt_cpu_int4_group g_groups[BLOCKS][GROUPS];

static uint32_t n_wrong_int4(uint32_t k0, uint32_t n_k, uint32_t n_blocks)
{
    uint32_t wrong = 0;

    for (uint32_t b = 0; b < n_blocks; b++)
        for (uint32_t k = k0; k < k0 + n_k; k++)
            for (uint32_t c = 0; c < 16; c++) {
                const bt_cpu_int4_group *g = &g_groups[b][k / 32];

                int   v    = (int)(g->words[k % 32 / 16][c * 2 + k % 2] >> k % 16 / 2 * 4 & 15);
                float want = (float)(v < 8 ? v : v - 16) * bt_bf16_to_f32(g->scale[c]);

                wrong += g_out[b * LD_OUT + wide_at(k - k0, c)] != bt_bf16_from_f32(want);
            }
    for (uint32_t b = 0; b < BLOCKS; b++) /* what is beyond stays as it was */
        for (uint32_t i = b < n_blocks ? n_k * 16 : 0; i < LD_OUT; i++)
            wrong += g_out[b * LD_OUT + i] != 0x5a5a;
    return wrong;
}

/* Every scale that is no subnormal, of either sign: so all roundings, ties too, and what overflows.
 */
static void weights_of_4_bits_are_rounded_products(void)
{
    const bt_cpu_narrow from = {BT_WEIGHT_INT4, g_groups, sizeof(g_groups[0]), NULL, 0};
    uint64_t            seed = 6;

    for (uint32_t first = 0, turn = 0; first < 0x10000; turn++) {
        for (uint32_t i = 0; i < BLOCKS * GROUPS; i++) {
            bt_cpu_int4_group *g = &g_groups[i / GROUPS][i % GROUPS];

            for (uint32_t j = 0; j < 64; j++)
                g->words[j / 32][j % 32] =
                    turn % 2 == 0 ? 0x76543210u * (j + 1) : (uint32_t)twin_random(&seed);
            for (uint32_t c = 0; c < 16; c++, first++)
                g->scale[c] = bt_int4_scale_is_valid((bt_bf16)first) ? (bt_bf16)first : 0;
        }
        widen_pieces(&from, n_wrong_int4);
    }
}

/* ---- 12 bits ---- */

enum { BF12_BLOCK = BLOCK / 2 * 3, LONG = K / 16 + 64 /* more than there is room for */ };

static bt_bf16 g_w[BLOCKS][BLOCK];
static _Alignas(64) uint8_t g_codes[BLOCKS][BF12_BLOCK];
static _Alignas(8) uint8_t g_side[BLOCKS][sizeof(bt_cpu_bf12_side) + LONG * sizeof(bt_cpu_rare)];

static bool pack_bf12(uint32_t block)
{
    const bt_cpu_row_kernels *rows = bt_cpu_kernels_find("auto")->rows;

    return rows->pack_bf12(g_w[block], K, g_codes[block], (void *)g_side[block]);
}

/* Sixteen exponents, from a first one on; of so many weights the one at `at` may be anything. */
static void fill_bf12(uint32_t exponent, uint32_t rare, uint32_t at, uint64_t *seed)
{
    for (uint32_t i = 0; i < BLOCKS * BLOCK; i++) {
        uint32_t v = (uint32_t)twin_random(seed);

        g_w[i / BLOCK][i % BLOCK] =
            (bt_bf16)(i % rare == at ? v : (v & 0x807f) | (exponent + v / 0x10000 % 16) << 7);
    }
}

static uint32_t n_wrong_bf12(uint32_t k0, uint32_t n_k, uint32_t n_blocks)
{
    uint32_t wrong = 0;

    for (uint32_t b = 0; b < BLOCKS; b++)
        for (uint32_t i = 0; i < LD_OUT; i++)
            wrong += g_out[b * LD_OUT + i] !=
                     (b < n_blocks && i < n_k * 16 ? g_w[b][k0 * 16 + i] : 0x5a5a);
    return wrong;
}

/* With rare weights first and last in a piece. */
static void weights_of_12_bits_are_what_they_were(void)
{
    static const uint32_t RARE[] = {UINT32_MAX, 4099, 512, 300};
    const bt_cpu_narrow   from   = {BT_WEIGHT_BF12, g_codes, BF12_BLOCK, g_side, sizeof(g_side[0])};
    uint64_t              seed   = 7;

    for (uint32_t turn = 0; turn < 4 * 240; turn += 3) {
        uint32_t rare = RARE[turn % 4];

        fill_bf12(turn / 4 / 2 * 2, rare, turn % 8 < 4 ? rare - 1 : 0, &seed);
        for (uint32_t b = 0; b < BLOCKS; b++)
            EXPECT(pack_bf12(b));
        widen_pieces(&from, n_wrong_bf12);
    }
}

/* As many of another exponent as there is room for, the last weight among them; and one more. */
static void only_few_weights_have_no_code(void)
{
    const bt_cpu_narrow from = {BT_WEIGHT_BF12, g_codes, BF12_BLOCK, g_side, sizeof(g_side[0])};
    bt_cpu_wide_table   table;
    uint64_t            seed = 8;
    uint32_t            n    = bt_cpu_n_rare(K);

    EXPECT_EQ(n, K / 16 + 16);
    fill_bf12(100, UINT32_MAX, UINT32_MAX - 1, &seed);
    for (uint32_t i = 0; i < n; i++)
        g_w[0][BLOCK - 1 - 7 * i] = (bt_bf16)(i % 2 == 0 ? 0x7f80 : 0x8001);
    EXPECT(pack_bf12(0));
    bt_cpu_wide_begin(&table);
    memset(g_out, 0x5a, BLOCKS * LD_OUT * sizeof(*g_out));
    bt_cpu_widen_best()(&from, 0, K, 1, &table, g_out, LD_OUT);
    EXPECT_EQ(n_wrong_bf12(0, K, 1), 0);
    g_w[0][7] = 0x7f80;
    EXPECT(!pack_bf12(0));
}

static void the_best_is_one_of_those_there_are(void)
{
    bt_cpu_widen_fn best = NULL;

    for (size_t s = 0; s < sizeof(SETS) / sizeof(*SETS); s++)
        if (bt_cpu_widen_find(SETS[s]) != NULL) best = bt_cpu_widen_find(SETS[s]);
    EXPECT(best != NULL && bt_cpu_widen_best() == best);
    EXPECT(bt_cpu_widen_find("avx") == NULL);
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {BT_TEST(widened_weights_are_rounded_products),
                                    BT_TEST(weights_of_4_bits_are_rounded_products),
                                    BT_TEST(weights_of_12_bits_are_what_they_were),
                                    BT_TEST(only_few_weights_have_no_code),
                                    BT_TEST(the_best_is_one_of_those_there_are)};

    bt_cpu_flush_denormals();
    g_bytes = bt_calloc_aligned(BLOCKS * BLOCK, 1);
    g_out   = bt_calloc_aligned(BLOCKS * LD_OUT, sizeof(*g_out));
    return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
}

/* device/cpu/mm_avx512bf16.c - dp2 as vdpbf16ps, which is where its order of additions is from. */
#include <immintrin.h>

#include "core/bf16.h"

typedef bt_bf16 x_elem;
typedef __m512i weights;
#define STAGE(v) (v)
/* Lines under way, of all columns of a tile: the fewer its rows, the sooner it is through. */
#define AHEAD(rows, blocks) (((rows) <= 3 ? 64 : (rows) <= 8 ? 128 : 192) / (blocks))
#define FETCH_TO            SECOND_LEVEL
/* A register of B is a load from where it lies: there is no panel to make. */
enum { HALVES = 1, MAKES_PANELS = 0, STAGE_ELEMS = 24 << 10, FEW_ROWS = 12 };
/* There is time for the loads of a long tile, whose sums leave seldom. */
enum { GROUP = 128, PANEL_K = 1024, PANEL_ROWS = 12, PANEL_BLOCKS = 2 };
/* clang-format off */
#define PANEL_CASES                                                         \
    BY_2(PANEL_CASE, 6) BY_2(PANEL_CASE, 7) BY_2(PANEL_CASE, 8)             \
    BY_2(PANEL_CASE, 9) BY_2(PANEL_CASE, 10) BY_2(PANEL_CASE, 11)           \
    BY_2(PANEL_CASE, 12)
/* clang-format on */
#include "device/cpu/mm_avx512.inc.h"

INLINE weights half_of(const bt_bf16 *b, int half)
{
    __m512i pairs = _mm512_load_si512(b);

    (void)half;
    __asm__("" : "+v"(pairs)); /* else gcc 12 loads it again for each row */
    return pairs;
}

INLINE vec multiply(const bt_bf16 *x, weights w, vec acc)
{
    int pair;

    memcpy(&pair, x, sizeof(pair));
    return _mm512_dpbf16_ps(acc, (__m512bh)_mm512_set1_epi32(pair), (__m512bh)w);
}

void bt_cpu_mm_dp2_avx512bf16(const bt_cpu_mm *mm) { run_dp2(mm); }

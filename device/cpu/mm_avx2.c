/* device/cpu/mm_avx2.c - dp2 with AVX2 and FMA: a bf16 is a float after a shift or a mask. */
#include <immintrin.h>

#include "core/bf16.h"

typedef float  x_elem;
typedef __m256 weights;
typedef __m256 vec;
#define STAGE(v) bt_bf16_to_f32(v)
/* As many lines under way, whatever the tile. */
#define AHEAD(rows, blocks) (128 / (blocks))
#define FETCH_TO            SECOND_LEVEL
enum {
    VEC          = 8,
    HALVES       = 2,
    MAKES_PANELS = 1,
    MAX_ROWS     = 6,
    MAX_VECS     = 8,
    STAGE_ELEMS  = 4096,
    FEW_ROWS     = 10,
    GROUP        = 256,
    PANEL_K      = 192,
    PANEL_ROWS   = 6,
    PANEL_BLOCKS = 1
};
/* clang-format off */
#define TILE_CASES                                                  \
    TILE_CASE(1, 4) TILE_CASE(1, 3) TILE_CASE(1, 2) TILE_CASE(1, 1) \
    TILE_CASE(2, 2) TILE_CASE(2, 1) TILE_CASE(3, 1) TILE_CASE(4, 1) \
    TILE_CASE(5, 1) TILE_CASE(6, 1)
#define PANEL_CASES PANEL_CASE(3, 1) PANEL_CASE(4, 1) PANEL_CASE(5, 1) PANEL_CASE(6, 1)
/* clang-format on */
#include "device/cpu/mm_dp2.inc.h"

INLINE uint32_t tile_blocks(uint32_t rows) { return rows == 1 ? 4 : rows == 2 ? 2 : 1; }
INLINE vec      zeros(void) { return _mm256_setzero_ps(); }
INLINE vec      load_y(const float *y) { return _mm256_loadu_ps(y); }
INLINE void     store_y(float *y, vec v) { _mm256_storeu_ps(y, v); }

INLINE weights half_of(const bt_bf16 *b, int half)
{
    __m256i pairs = _mm256_load_si256((const __m256i *)(const void *)b);

    return _mm256_castsi256_ps(half == 0
                                   ? _mm256_slli_epi32(pairs, 16)
                                   : _mm256_and_si256(pairs, _mm256_set1_epi32((int)0xffff0000u)));
}

/* As an intrinsic, gcc 12 spills. */
INLINE vec multiply(const float *x, weights w, vec acc)
{
    __asm__("vfmadd231ps %2, %1, %0" : "+x"(acc) : "x"(w), "x"(_mm256_broadcast_ss(x)));
    return acc;
}

void bt_cpu_mm_dp2_avx2(const bt_cpu_mm *mm) { run_dp2(mm); }

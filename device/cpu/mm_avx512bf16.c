/* device/cpu/mm_avx512bf16.c - dp2 as vdpbf16ps, which is where its order of additions is from. */
#include <immintrin.h>

#include "core/bf16.h"

typedef bt_bf16 x_elem;
#define STAGE(v) (v)
#define MM       bt_cpu_mm_dp2_avx512bf16
/* clang-format off */
#define TILE_CASES                                                    \
    TILE_CASE(12, 2) TILE_CASE(12, 1) TILE_CASE(8, 2) TILE_CASE(8, 1) \
    TILE_CASE(4, 4) TILE_CASE(4, 2) TILE_CASE(4, 1) TILE_CASE(2, 4)   \
    TILE_CASE(2, 2) TILE_CASE(2, 1) TILE_CASE(1, 4) TILE_CASE(1, 2)   \
    TILE_CASE(1, 1)
/* clang-format on */
enum { MAX_ROWS = 12, MAX_BLOCKS = 4 };
#include "device/cpu/mm.inc.h"

INLINE uint32_t tile_blocks(uint32_t rows) { return rows > 4 ? 2 : 4; }

INLINE void tile(const int rows, const int blocks, const tile_args *a)
{
    const bt_bf16 *b = a->b;
    __m512         acc[MAX_ROWS][MAX_BLOCKS];
    __m512i        w[MAX_BLOCKS];

    for (int r = 0; r < rows; r++)
        for (int c = 0; c < blocks; c++)
            acc[r][c] = a->from_zero ? _mm512_setzero_ps()
                                     : _mm512_loadu_ps(a->y + (size_t)r * a->ld_y + c * LANES);
    for (uint32_t p = 0; p < a->n_pairs; p++, b += 2 * LANES) {
        for (int c = 0; c < blocks; c++)
            _mm_prefetch((const char *)(b + (size_t)c * a->block + AHEAD), _MM_HINT_T0);
        for (int c = 0; c < blocks; c++)
            w[c] = _mm512_load_si512(b + (size_t)c * a->block);
        for (int r = 0; r < rows; r++) {
            int pair;

            memcpy(&pair, a->x + r * STAGE_LD(rows) + 2 * p, sizeof(pair));
            for (int c = 0; c < blocks; c++)
                acc[r][c] =
                    _mm512_dpbf16_ps(acc[r][c], (__m512bh)_mm512_set1_epi32(pair), (__m512bh)w[c]);
        }
    }
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < blocks; c++)
            _mm512_storeu_ps(a->y + (size_t)r * a->ld_y + c * LANES, acc[r][c]);
}

/* device/cpu/mm_avx512.c - dp2 with AVX-512 F: a bf16 is a float after a shift or a mask.  On Intel
 * CPUs two of these fused multiply-adds are faster than one vdpbf16ps. */
#include <immintrin.h>

#include "core/bf16.h"

typedef float x_elem;
#define STAGE(v) bt_bf16_to_f32(v)
#define MM       bt_cpu_mm_dp2_avx512
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
    const __m512i  upper = _mm512_set1_epi32((int)0xffff0000u);
    const bt_bf16 *b     = a->b;
    __m512         acc[MAX_ROWS][MAX_BLOCKS], w[MAX_BLOCKS];
    __m512i        pair[MAX_BLOCKS];

    for (int r = 0; r < rows; r++)
        for (int c = 0; c < blocks; c++)
            acc[r][c] = a->from_zero ? _mm512_setzero_ps()
                                     : _mm512_loadu_ps(a->y + (size_t)r * a->ld_y + c * LANES);
    for (uint32_t p = 0; p < a->n_pairs; p++, b += 2 * LANES) {
        for (int c = 0; c < blocks; c++)
            _mm_prefetch((const char *)(b + (size_t)c * a->block + AHEAD), _MM_HINT_T0);
        for (int c = 0; c < blocks; c++) {
            pair[c] = _mm512_load_si512(b + (size_t)c * a->block);
            w[c]    = _mm512_castsi512_ps(_mm512_and_si512(pair[c], upper));
        }
        for (int r = 0; r < rows; r++) {
            __m512 odd = _mm512_set1_ps(a->x[r * STAGE_LD(rows) + 2 * p + 1]);

            for (int c = 0; c < blocks; c++)
                acc[r][c] = _mm512_fmadd_ps(odd, w[c], acc[r][c]);
        }
        for (int c = 0; c < blocks; c++)
            w[c] = _mm512_castsi512_ps(_mm512_slli_epi32(pair[c], 16));
        for (int r = 0; r < rows; r++) {
            __m512 even = _mm512_set1_ps(a->x[r * STAGE_LD(rows) + 2 * p]);

            for (int c = 0; c < blocks; c++)
                acc[r][c] = _mm512_fmadd_ps(even, w[c], acc[r][c]);
        }
    }
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < blocks; c++)
            _mm512_storeu_ps(a->y + (size_t)r * a->ld_y + c * LANES, acc[r][c]);
}

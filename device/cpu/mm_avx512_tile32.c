/* device/cpu/mm_avx512_tile32.c - tile32 with AVX-512 F, for so few rows that an AMX tile would be
 * mostly empty.  A tile of registers keeps three sums a result: the whole, and the even and the odd
 * chain of the 32 k under way. */
#include <immintrin.h>

#include "core/bf16.h"

typedef float x_elem;
#define STAGE(v) bt_bf16_to_f32(v)
/* clang-format off */
#define TILE_CASES                                                  \
    TILE_CASE(2, 4) TILE_CASE(2, 3) TILE_CASE(2, 2) TILE_CASE(2, 1) \
    TILE_CASE(1, 4) TILE_CASE(1, 3) TILE_CASE(1, 2) TILE_CASE(1, 1)
/* clang-format on */
enum {
    MAX_ROWS    = 2,
    MAX_BLOCKS  = 4,
    STAGE_ELEMS = 4096,
    STEP_PAIRS  = 16,
    AHEAD_PAIRS = 48,
    NEAR_PAIRS  = 32
};
#include "device/cpu/mm.inc.h"

INLINE uint32_t tile_blocks(uint32_t rows)
{
    (void)rows;
    return MAX_BLOCKS;
}

INLINE void tile(const int rows, const int blocks, const tile_args *a)
{
    const __m512i upper = _mm512_set1_epi32((int)0xffff0000u);
    __m512        acc[MAX_ROWS][MAX_BLOCKS], even[MAX_ROWS][MAX_BLOCKS], odd[MAX_ROWS][MAX_BLOCKS];

    for (int r = 0; r < rows; r++)
        for (int c = 0; c < blocks; c++)
            acc[r][c] = a->from_zero ? _mm512_setzero_ps()
                                     : _mm512_loadu_ps(a->y + (size_t)r * a->ld_y + c * LANES);
    for (uint32_t p0 = 0; p0 < a->n_pairs; p0 += STEP_PAIRS) {
        uint32_t       n = STEP_PAIRS, ahead = PAIR_BYTES / (uint32_t)a->pair * AHEAD_PAIRS;
        const char    *later, *soon;
        size_t         block;
        const bt_bf16 *b = wide_b(a, p0, blocks, &n, &block);

        pairs_until_next(a, p0, ahead, &later);
        pairs_until_next(a, p0, PAIR_BYTES / (uint32_t)a->pair * NEAR_PAIRS, &soon);

        for (int r = 0; r < rows; r++)
            for (int c = 0; c < blocks; c++)
                even[r][c] = odd[r][c] = _mm512_setzero_ps();
        for (uint32_t p = p0; p < p0 + STEP_PAIRS;
             p++, b += 2 * LANES, later += a->pair, soon += a->pair) {
            for (int c = 0; c < blocks; c++)
                _mm_prefetch(later + c * a->block, _MM_HINT_T1);
            for (int c = 0; c < blocks; c++)
                _mm_prefetch(soon + c * a->block, _MM_HINT_T0);
            for (int c = 0; c < blocks; c++) {
                __m512i pair = _mm512_load_si512(b + c * block);
                __m512  high = _mm512_castsi512_ps(_mm512_and_si512(pair, upper));
                __m512  low  = _mm512_castsi512_ps(_mm512_slli_epi32(pair, 16));

                for (int r = 0; r < rows; r++) {
                    const float *x = a->x + r * STAGE_LD(rows) + (size_t)2 * p;

                    even[r][c] = _mm512_fmadd_ps(_mm512_set1_ps(x[0]), low, even[r][c]);
                    odd[r][c]  = _mm512_fmadd_ps(_mm512_set1_ps(x[1]), high, odd[r][c]);
                }
            }
        }
        for (int r = 0; r < rows; r++)
            for (int c = 0; c < blocks; c++)
                acc[r][c] = _mm512_add_ps(acc[r][c], _mm512_add_ps(even[r][c], odd[r][c]));
    }
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < blocks; c++)
            _mm512_storeu_ps(a->y + (size_t)r * a->ld_y + c * LANES, acc[r][c]);
}

void bt_cpu_mm_tile32_avx512(const bt_cpu_mm *mm) { run_few(mm); }

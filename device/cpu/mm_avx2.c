/* device/cpu/mm_avx2.c - dp2 with AVX2 and FMA: a bf16 is a float after a shift or a mask. */
#include <immintrin.h>

#include "core/bf16.h"

typedef float x_elem;
#define STAGE(v) bt_bf16_to_f32(v)
#define MM       bt_cpu_mm_dp2_avx2
/* clang-format off */
#define TILE_CASES                                                  \
    TILE_CASE(4, 1) TILE_CASE(2, 2) TILE_CASE(2, 1) TILE_CASE(1, 4) \
    TILE_CASE(1, 2) TILE_CASE(1, 1)
/* clang-format on */
enum { MAX_ROWS = 4 };
#include "device/cpu/mm.inc.h"

INLINE uint32_t tile_blocks(uint32_t rows) { return 4 / rows; }

INLINE void tile(const int rows, const int blocks, const tile_args *a)
{
    enum { MAX_VECS = 8 };
    const __m256i  upper = _mm256_set1_epi32((int)0xffff0000u);
    const bt_bf16 *b     = a->b;
    __m256         acc[MAX_ROWS][MAX_VECS], w[MAX_VECS];
    const int      vecs = 2 * blocks;

    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vecs; v++)
            acc[r][v] = a->from_zero ? _mm256_setzero_ps()
                                     : _mm256_loadu_ps(a->y + (size_t)r * a->ld_y + v * 8);
    for (uint32_t p = 0; p < a->n_pairs; p++, b += 2 * LANES) {
        for (int c = 0; c < blocks; c++)
            _mm_prefetch((const char *)(b + (size_t)c * a->block + AHEAD), _MM_HINT_T0);
        for (int v = 0; v < vecs; v++)
            w[v] = _mm256_load_ps((const float *)(const void *)(b + v / 2 * a->block + v % 2 * 16));
        for (int r = 0; r < rows; r++) {
            __m256 odd = _mm256_broadcast_ss(a->x + r * STAGE_LD(rows) + 2 * p + 1);

            for (int v = 0; v < vecs; v++)
                acc[r][v] = _mm256_fmadd_ps(odd, _mm256_and_ps(w[v], _mm256_castsi256_ps(upper)),
                                            acc[r][v]);
        }
        for (int v = 0; v < vecs; v++)
            w[v] = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(w[v]), 16));
        for (int r = 0; r < rows; r++) {
            __m256 even = _mm256_broadcast_ss(a->x + r * STAGE_LD(rows) + 2 * p);

            for (int v = 0; v < vecs; v++)
                acc[r][v] = _mm256_fmadd_ps(even, w[v], acc[r][v]);
        }
    }
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vecs; v++)
            _mm256_storeu_ps(a->y + (size_t)r * a->ld_y + v * 8, acc[r][v]);
}

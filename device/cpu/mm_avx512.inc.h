/* device/cpu/mm_avx512.inc.h - tiles of registers of 512 bits, of which there are 32.  A load gives
 * more multiplications the closer a tile is to a square.  The including file defines the panels. */
typedef __m512 vec;
enum { VEC = 16, MAX_ROWS = 12, MAX_VECS = 4 };
/* clang-format off */
#define BY_2(CASE, rows) CASE(rows, 2) CASE(rows, 1)
#define BY_3(CASE, rows) CASE(rows, 3) BY_2(CASE, rows)
#define BY_4(CASE, rows) CASE(rows, 4) BY_3(CASE, rows)
#define TILE_CASES                                                                \
    BY_4(TILE_CASE, 1) BY_4(TILE_CASE, 2) BY_4(TILE_CASE, 3) BY_4(TILE_CASE, 4)   \
    BY_4(TILE_CASE, 5) BY_4(TILE_CASE, 6) BY_3(TILE_CASE, 7) BY_3(TILE_CASE, 8)   \
    BY_2(TILE_CASE, 9) BY_2(TILE_CASE, 10) BY_2(TILE_CASE, 11) BY_2(TILE_CASE, 12)
/* clang-format on */
#include "device/cpu/mm_dp2.inc.h"

INLINE uint32_t tile_blocks(uint32_t rows) { return rows > 8 ? 2 : rows > 6 ? 3 : 4; }
INLINE vec      zeros(void) { return _mm512_setzero_ps(); }
INLINE vec      load_y(const float *y) { return _mm512_loadu_ps(y); }
INLINE void     store_y(float *y, vec v) { _mm512_storeu_ps(y, v); }

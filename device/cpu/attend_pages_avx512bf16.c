/* device/cpu/attend_pages_avx512bf16.c - queries through pages, with AVX-512 F and its vdpbf16ps.
 */
#include <immintrin.h>

#define WIDTH        16
#define HALVES       1
#define PACK_ROWS    bt_cpu_rows_avx512bf16.pack_rows
#define ATTEND_PAGES bt_cpu_attend_pages_avx512bf16
enum { TILE_LANES = 8 };
#include "device/cpu/attend_pages.inc.h"

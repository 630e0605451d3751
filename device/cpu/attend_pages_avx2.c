/* device/cpu/attend_pages_avx2.c - queries through pages, with AVX2 and FMA. */
#include <immintrin.h>

#define WIDTH        8
#define HALVES       2
#define PACK_ROWS    bt_cpu_rows_avx2.pack_rows
#define ATTEND_PAGES bt_cpu_attend_pages_avx2
enum { TILE_LANES = 4 };
#include "device/cpu/attend_pages.inc.h"

/* device/cpu/attend_pages_avx512.c - queries through pages, with AVX-512 F. */
#include <immintrin.h>

#define WIDTH        16
#define HALVES       2
#define PACK_ROWS    bt_cpu_rows_avx512.pack_rows
#define ATTEND_PAGES bt_cpu_attend_pages_avx512
enum { TILE_LANES = 8 };
#include "device/cpu/attend_pages.inc.h"

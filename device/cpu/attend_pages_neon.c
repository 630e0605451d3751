/* device/cpu/attend_pages_neon.c - queries through pages, with NEON. */
#include <arm_neon.h>

#define WIDTH        4
#define HALVES       2
#define PACK_ROWS    bt_cpu_rows_base.pack_rows
#define ATTEND_PAGES bt_cpu_attend_pages_neon
enum { TILE_LANES = 8 };
#include "device/cpu/attend_pages.inc.h"

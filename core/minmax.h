/* core/minmax.h - the smaller and the larger of two numbers. */
#ifndef BT_CORE_MINMAX_H
#define BT_CORE_MINMAX_H

#include <stdint.h>

static inline uint32_t bt_min_u32(uint32_t a, uint32_t b) { return a < b ? a : b; }
static inline uint32_t bt_max_u32(uint32_t a, uint32_t b) { return a > b ? a : b; }

#endif

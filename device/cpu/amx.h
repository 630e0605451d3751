/* device/cpu/amx.h - what the files of AMX kernels share; only they include it.
 *
 * A tile of B, and of x where x lies in tiles, is 1 KiB: 16 rows of 32 bf16.  The tile state
 * belongs to the thread; each kernel configures and releases it, since a held state makes context
 * switches dearer. */
#ifndef BT_DEVICE_CPU_AMX_H
#define BT_DEVICE_CPU_AMX_H

#include <immintrin.h>
#include <stdint.h>

#include "core/bf16.h"

enum { TILE = 16, STEP = 32 /* k */, TILE_ELEMS = TILE * STEP };

/* gcc's tile intrinsics do not say that they read memory: what they are to read must be there. */
static inline void publish(const void *written)
{
    __asm__ volatile("" : : "r"(written) : "memory");
}

/* Tiles 0-5, of x and y, have `rows` rows, 6 and 7, of B, all. */
static inline void configure(uint32_t rows)
{
    struct {
        uint8_t  palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t  rows[16];
    } c = {.palette = 1};

    for (int t = 0; t < 8; t++) {
        c.rows[t]      = t < 6 ? (uint8_t)rows : TILE;
        c.row_bytes[t] = STEP * sizeof(bt_bf16);
    }
    publish(&c);
    _tile_loadconfig(&c);
}

#endif

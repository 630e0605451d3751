/* tests/device/amx_emulated.h - AMX's tiles of bf16 in AVX-512 F, bit for bit: included ahead of
 * the sources of the kernel family amx (bt_emulated), it takes the place of their intrinsics, so
 * that they are tested on CPUs without AMX.
 *
 * As Intel's manual has them (Software Developer's Manual, volume 2, LDTILECFG, TILELOADD and
 * TDPBF16PS): a tile has as many rows and bytes a row as its configuration says; what a load leaves
 * of a register is 0; and a product sums, for each of y, the even k and the odd ones in a chain of
 * FMAs each, then adds both, then y (device/cpu/kernels.h, BT_CPU_TILE32).  What a CPU answers with
 * #GP or #UD ends the test here: a tile that is not configured, or shapes that do not fit. Rounding
 * and subnormals are MXCSR's, as in bf16_emulated.h.  AddressSanitizer sees these loads and stores,
 * which it does not see of a CPU's own. */
#ifndef BT_TESTS_DEVICE_AMX_EMULATED_H
#define BT_TESTS_DEVICE_AMX_EMULATED_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/device/bf16_emulated.h"

typedef struct {
    uint32_t rows, row_bytes; /* 0: not configured */
    _Alignas(64) uint32_t at[16][16];
} emulated_tile;

enum { EMULATED_TILES = 8 };

/* The calling thread's, as they are on a CPU (emulated_cpu.c). */
emulated_tile *emulated_tiles_of_thread(void);

static inline void emulated_demand(int holds, const char *what)
{
    if (holds) return;
    fprintf(stderr, "AMX: %s\n", what);
    abort();
}

static inline emulated_tile *emulated_tile_of(int t)
{
    emulated_tile *tile = emulated_tiles_of_thread() + t;

    emulated_demand(tile->rows != 0, "a tile is used that is not configured");
    return tile;
}

static inline void emulated_loadconfig(const void *config)
{
    const uint8_t *c    = config;
    emulated_tile *tile = emulated_tiles_of_thread();

    emulated_demand(c[0] == 1, "the palette is 1");
    memset(tile, 0, EMULATED_TILES * sizeof(*tile));
    for (int t = 0; t < EMULATED_TILES; t++, tile++) {
        uint16_t row_bytes;

        memcpy(&row_bytes, c + 16 + 2 * t, sizeof(row_bytes));
        tile->rows      = c[48 + t];
        tile->row_bytes = row_bytes;
        emulated_demand(tile->rows <= 16 && tile->row_bytes <= 64,
                        "a tile is at most 16 x 64 bytes");
    }
}

static inline void emulated_release(void)
{
    memset(emulated_tiles_of_thread(), 0, EMULATED_TILES * sizeof(emulated_tile));
}

static inline void emulated_zero(int t)
{
    emulated_tile *tile = emulated_tile_of(t);

    memset(tile->at, 0, sizeof(tile->at));
}

static inline void emulated_loadd(int t, const void *from, size_t stride)
{
    emulated_tile *tile = emulated_tile_of(t);

    memset(tile->at, 0, sizeof(tile->at));
    for (uint32_t r = 0; r < tile->rows; r++)
        memcpy(tile->at[r], (const char *)from + r * stride, tile->row_bytes);
}

static inline void emulated_stored(int t, void *to, size_t stride)
{
    const emulated_tile *tile = emulated_tile_of(t);

    for (uint32_t r = 0; r < tile->rows; r++)
        memcpy((char *)to + r * stride, tile->at[r], tile->row_bytes);
}

static inline __attribute__((target("avx512f"))) void emulated_dpbf16ps(int to, int left, int right)
{
    emulated_tile       *y = emulated_tile_of(to);
    const emulated_tile *a = emulated_tile_of(left), *b = emulated_tile_of(right);
    __mmask16            columns = (__mmask16)((1u << y->row_bytes / 4) - 1);

    emulated_demand(y->rows == a->rows && y->row_bytes == b->row_bytes &&
                        a->row_bytes == 4 * b->rows,
                    "the tiles of a product fit each other");
    for (uint32_t r = 0; r < y->rows; r++) {
        __m512 even = _mm512_setzero_ps(), odd = even, sum = _mm512_load_ps(y->at[r]);

        for (uint32_t pair = 0; pair < b->rows; pair++) {
            __m512i x = _mm512_set1_epi32((int)a->at[r][pair]);
            __m512i w = _mm512_load_si512(b->at[pair]);

            even = _mm512_fmadd_ps(emulated_even(x), emulated_even(w), even);
            odd  = _mm512_fmadd_ps(emulated_odd(x), emulated_odd(w), odd);
        }
        sum = _mm512_add_ps(sum, _mm512_add_ps(even, odd));
        _mm512_mask_store_ps(y->at[r], columns, sum);
    }
}

/* VBMI's: each byte of `to` is eight bits of its 64, from a bit on, round and round. */
static inline __attribute__((target("avx512f"))) __m512i emulated_multishift(__m512i bits,
                                                                             __m512i of)
{
    _Alignas(64) uint8_t  from[64], to[64];
    _Alignas(64) uint64_t words[8];

    _mm512_store_si512(from, bits);
    _mm512_store_si512(words, of);
    for (uint32_t i = 0; i < 64; i++) {
        uint32_t shift = from[i] & 63;

        to[i] = (uint8_t)(words[i / 8] >> shift | words[i / 8] << (64 - shift) % 64);
    }
    return _mm512_load_si512(to);
}

/* For the sources behind this. */
#define _mm512_multishift_epi64_epi8(bits, of) emulated_multishift(bits, of)
#undef _tile_loadd
#undef _tile_stream_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#define _tile_loadconfig(config)            emulated_loadconfig(config)
#define _tile_release()                     emulated_release()
#define _tile_zero(t)                       emulated_zero(t)
#define _tile_loadd(t, from, stride)        emulated_loadd(t, from, stride)
#define _tile_stream_loadd(t, from, stride) emulated_loadd(t, from, stride)
#define _tile_stored(t, to, stride)         emulated_stored(t, to, stride)
#define _tile_dpbf16ps(to, left, right)     emulated_dpbf16ps(to, left, right)

#endif

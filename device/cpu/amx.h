/* device/cpu/amx.h - what the files of AMX kernels share; only they include it.
 *
 * A tile of B, and of x where x lies in tiles, is 1 KiB: 16 rows of 32 bf16.  The tile state
 * belongs to the thread; each kernel configures and releases it, since a held state makes context
 * switches dearer. */
#ifndef BT_DEVICE_CPU_AMX_H
#define BT_DEVICE_CPU_AMX_H

#include <immintrin.h>
#include <stdint.h>

#include "device/cpu/widen.h"

enum { TILE = 16, STEP = 32 /* k */, TILE_ELEMS = TILE * STEP };

/* gcc's tile intrinsics do not say that they read memory: what they are to read must be there. */
static inline void publish(const void *written)
{
    __asm__ volatile("" : : "r"(written) : "memory");
}

/* Tiles 0-5 have `rows` rows of `cols` results or pairs, 6 and 7, of weights, 16 of 16. */
static inline void configure(uint32_t rows, uint32_t cols)
{
    struct {
        uint8_t  palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t  rows[16];
    } c = {.palette = 1};

    for (int t = 0; t < 8; t++) {
        c.rows[t]      = t < 6 ? (uint8_t)rows : TILE;
        c.row_bytes[t] = (uint16_t)((t < 6 ? cols : TILE) * sizeof(float));
    }
    publish(&c);
    _tile_loadconfig(&c);
}

/* A piece of two blocks of columns that was narrow. */
enum { WIDE_K = 512, WIDE_LD = WIDE_K * TILE + STEP };
typedef struct {
    _Alignas(64) bt_bf16 b[2][WIDE_LD];
    bt_cpu_wide_table tables[2];
    bt_cpu_widen_fn   widen;
} wide_pair;

static inline void begin_wide(wide_pair *w)
{
    w->widen = bt_cpu_widen_best();
    bt_cpu_wide_begin(&w->tables[0]);
    bt_cpu_wide_begin(&w->tables[1]);
}

/* n_k <= WIDE_K from k0 on, of one block or two. */
static inline void widen_pair(wide_pair *w, const bt_cpu_narrow *from, uint32_t k0, uint32_t n_k,
                              uint32_t n_blocks)
{
    w->widen(from, k0, n_k, n_blocks, w->tables, w->b[0], WIDE_LD);
    publish(w);
}

/* The i-th of packed weights, a multiple of 32. */
static inline const void *weight_at(const void *packed, bt_weight_kind kind, size_t i)
{
    return (const char *)packed + bt_cpu_weight_bytes(kind, i);
}

/* ---- mm_amx_stream.c ---- */

enum {
    AMX_STREAM_ROWS   = 2 * TILE,
    AMX_NARROW_ROWS   = 3 * TILE, /* of narrow weights, which panels widen more slowly */
    AMX_STREAM_BLOCKS = 4,        /* at most; */
    AMX_STREAM_SUMS   = 6         /* tiles of sums, then */
};

/* How many of the column blocks that are left go together: the most that do well, or a fair share.
 */
static inline uint32_t amx_stream_blocks(uint32_t n_tile_rows, uint32_t n_cols)
{
    uint32_t n = (n_cols + TILE - 1) / TILE, most = 5 - n_tile_rows;
    uint32_t n_turns = (n + most - 1) / most;

    return (n + n_turns - 1) / n_turns;
}

/* Some column blocks of weights that come from memory, against one to three tile rows of x. */
typedef struct {
    const bt_bf16 *x;     /* tiles, step after step; */
    size_t         low_x; /* elements from one tile row to the next */
    const bt_bf16 *b;     /* of the first block, */
    size_t         block; /* and elements to the next one */
    const void    *next;  /* what is read afterwards, its blocks as far apart: fetched meanwhile */
    uint32_t       n_steps;
    bool           from_zero; /* else from the sums: of one tile row only */
    float         *sums;      /* [n_blocks][n_tile_rows][16][16] */
} bt_cpu_amx_stream;

/* In a switch over n_tile_rows * 8 + n_blocks: what is written out for these numbers. */
#define AMX_CASE(rows, blocks, run) \
    case (rows)*8 + (blocks): run; break;

/* Tiles are configured: with 16 rows, or for one tile row with as many as it has.  Of two at most
 * three blocks go. */
void bt_cpu_amx_stream_run(const bt_cpu_amx_stream *s, uint32_t n_tile_rows, uint32_t n_blocks);

/* Weights of 8 or 12 bits, that are widened on their way. */
typedef struct {
    bt_cpu_narrow      from;   /* the first block, from its first k on */
    uint32_t           k0;     /* where the steps begin */
    bt_cpu_wide_table *tables; /* [AMX_STREAM_BLOCKS] */
} bt_cpu_amx_narrow;

/* As bt_cpu_amx_stream_run(); b and block are not used.  Against three tile rows at most
 * two blocks go. */
void bt_cpu_amx_stream_narrow(const bt_cpu_amx_stream *s, const bt_cpu_amx_narrow *n,
                              uint32_t n_tile_rows, uint32_t n_blocks);

/* ---- mm_amx_int4.c ---- */

/* At most AMX_NARROW_ROWS rows, and weights of 4 bits.  step_x: elements of x from 32 k to the next
 * ones; low_x: to the 16th row after it.  Configures the tiles; the caller releases them. */
void bt_cpu_amx_int4(const bt_cpu_mm *mm, size_t step_x, size_t low_x);

#endif

/* device/cpu/kernels.h - the arithmetic of the CPU back end, one table per instruction set.
 *
 * For code that is CPU-only by its folder (device/cpu, attention/cpu, moe/cpu, the sampler): a
 * kernel runs on the calling thread, which has DAZ and FTZ set (the device's creator and its pool
 * have), never allocates, and gives the same bits in every table of the same arithmetic.
 *
 * Packed operand.  A matrix B with n columns and k rows (y = x B) lies as
 *     packed[n16/16][k32/2][16][2]      n16, k32 = n, k rounded up to 16, 32; padding is +0
 * so that 32 rows of 16 columns are one AMX tile of 1 KiB.  Weights W[n][k] (y = x W^T) are B with
 * row n of W as its column n.  Aligned to 64 bytes.
 *
 * Weights in e4m3 are packed alike, a byte each, but that byte 16 l + 8 h + j of each 64 belongs to
 * element 32 h + 8 l + j (l, h, j < 4, 2, 8): so shuffles within 16 bytes widen them.  Behind them
 * lie their scales, [n16/16][k128/128] fp32, one for 16 columns and 128 k; a weight is
 * bf16(value * scale), fp32 inside, and what is padding is +0.
 *
 * Weights in bf16 that only products read may be packed in 12 bits (BF12), without loss: of 128
 * in the order above the lower bytes, then codes of the upper ones, 4 bits each:
 *     byte 64 p + 2 i + 1    of element 64 p + i, and byte 64 p + 2 i of element 64 p + 32 + i
 *     bits 4 p .. 4 p + 3    of byte 128 + 2 i: the code of element 64 p + i, and of byte
 *                            129 + 2 i: that of element 64 p + 32 + i        (p < 2, i < 32)
 * Behind all weights lies for each 16 columns what the codes are, and the few weights whose upper
 * byte has none (bt_cpu_bf12_side).
 *
 * Weights of 4 bits are packed [n16/16][k/32], k a multiple of 32, of bt_cpu_int4_group.  Of its
 * column a word has the 8 even of 16 k, or the 8 odd ones, the first in the lowest bits, in two's
 * complement: so words that are shifted alike are neighbours among packed bf16.  A weight is
 * bf16(value * scale), fp32 inside.
 *
 * Arithmetic.  Both start at +0, or at y with `add`; k is padded to 32 with +0; fp32, round to
 * nearest even, subnormals are 0 on the way in and out; a NaN result is some NaN.
 *     dp2:     for each pair p ascending:  acc = fma(x[2p], b[2p], fma(x[2p+1], b[2p+1], acc))
 *     tile32:  for each 32 k ascending:    e = o = +0;  16 times e = fma(x[2p], b[2p], e),
 *              o = fma(x[2p+1], b[2p+1], o), p ascending;  acc = acc + (e + o)
 * Each result depends on its row, its column and k only: never on m, n or the call it came in.
 *
 * Sums over a row run in 16 lanes (lane i adds elements i, i+16, ... from +0), then lane i adds
 * lane i+8, i+4, i+2, i+1. */
#ifndef BT_DEVICE_CPU_KERNELS_H
#define BT_DEVICE_CPU_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "core/bf16.h"
#include "device/cpu/pool.h"
#include "device/device.h"

typedef enum { BT_CPU_DP2, BT_CPU_TILE32 } bt_cpu_arithmetic;

/* y[m, n] f32 = x[m, k] * B (+ y).  m, n, k >= 1; nothing outside these bounds is read or written,
 * except that all of the padded `packed` is read. */
typedef struct {
    const bt_bf16 *x; /* [m, k], row stride ld_x elements */
    size_t         ld_x;
    const void    *packed;
    bt_weight_kind kind;     /* of packed; */
    const void    *side;     /* and what stands beside it, from its first column on */
    uint32_t       k_packed; /* of bf16, where only the first k of more are multiplied; else 0 */
    float         *y;        /* [m, n], row stride ld_y elements */
    size_t         ld_y;
    uint32_t       m, n, k;
    bool           add;     /* start from y instead of +0 */
    bool           cached;  /* B is in a near cache: fetching it ahead is of no use */
    const void    *after;   /* or NULL: B that is read next: may be fetched, as if of this k */
    const bt_bf16 *fetch;   /* with `cached`: what else is read soon, to be fetched meanwhile, */
    uint32_t       n_fetch; /* so many elements of it; or 0 */
} bt_cpu_mm;

/* Elements of x in tiles that stay in the second-level cache while the columns of a chunk pass. */
enum { BT_CPU_NEAR_ELEMS = 512 << 10 };

enum { BT_CPU_TILE_ROWS = 16, BT_CPU_TILE_COLS = 32 };

/* y[m, n] = x[m, k] * B, for many rows.  m, n, k >= 1; nothing outside these bounds is written.
 * With `up`, B is gate, and `up` elements behind it lies a B of the same shape; y is then
 * bf16(silu(g) * u) of the rounded products (device.h: ffn), n a multiple of 16, in tiles. */
typedef struct {
    const bt_bf16 *x; /* tiles of 16 rows: [m16/16][k32/32][16][32], padded with +0 in k; rows
                         beyond m are read, and change no other */
    const void    *packed;
    bt_weight_kind kind;  /* of packed; */
    const void    *side;  /* and what stands beside it, from its first column on */
    size_t         up;    /* or 0 */
    const void    *next;  /* where this thread probably goes on: columns, as if of this k, to be
                             fetched towards the caches meanwhile; or NULL */
    void        *y;       /* [m, n] of y_dtype; with `up`, tiles as x has them, of bf16 */
    size_t       ld_y;    /* elements from row to row, or from tile row to tile row */
    bt_dtype     y_dtype; /* BT_F32, or BT_BF16: rounded */
    const float *weight;  /* [m], or NULL: with BT_BF16, row i becomes bf16(weight[i] * y + 0) */
    float       *sums;    /* scratch, [n32/32 (with `up` n/16)][m32][32], on a cache line */
    uint32_t     m, n, k;
    bool         near; /* the results are read soon: they stay in the caches */
} bt_cpu_mm_tiles;

enum { BT_CPU_PAGE_ROWS = 64, BT_CPU_FEW_ROWS = 16 };

/* y[m, n] f32 = x[m, k] * B (+ y), where B is not packed: its rows lie in pages of
 * BT_CPU_PAGE_ROWS.  1 <= m <= BT_CPU_FEW_ROWS, n a multiple of 32, k >= 1. */
typedef struct {
    const bt_bf16 *x; /* [m, k], row stride ld_x elements, +0 from k on to whole steps of 32 */
    size_t         ld_x;
    const bt_bf16 *const *pages; /* [n] a row, row stride ld elements */
    size_t                ld;
    float                *y; /* [m, n], row stride ld_y elements */
    size_t                ld_y;
    uint32_t              m, n, k;
    bool                  add;     /* start from y instead of +0 */
    const bt_bf16 *const *later;   /* for each page n_later elements that are read soon, to be */
    uint32_t              n_later; /* fetched meanwhile; or 0 */
} bt_cpu_mm_pages;

enum { BT_CPU_STRIP = 32, BT_CPU_STRIP_KEYS = 256 };
/* A strip of BT_CPU_STRIP queries of a head goes through n_blocks >= 1 blocks of
 * BT_CPU_STRIP_KEYS keys.  Query i sees all of them, but of the last block the first last_keys + i
 * only, as far as it has so many.  For each block, ascending:
 *     s = q K^T;  m = max(max, scale * the row's maximum of s);  c = exp(max - m);  max = m
 *     p = exp(scale s - m), in fp32;  sum = sum c + the row's sum of p;  o = o c + bf16(p) V
 * by the arithmetic of the products and as the row kernels compute it (where c is 1 nothing
 * is multiplied).  k and v_dim are multiples of 32.  Keys that nobody sees may be anything; values
 * that only some see are finite. */
typedef struct {
    const bt_bf16 *q;      /* [strip, k] */
    const bt_bf16 *keys;   /* packed [keys, k], block after block */
    const bt_bf16 *values; /* packed, k = keys, n = v_dim, block after block; */
    uint32_t       last_k; /* of the last block k is this: a multiple of 32, no less than is seen */
    uint32_t       last_keys; /* 1 to BT_CPU_STRIP_KEYS */
    uint32_t       k, v_dim, n_blocks;
    float          scale;     /* above 0 */
    float         *max, *sum; /* [strip] */
    float         *o;         /* [strip, v_dim], row stride ld_o elements: not read, begins as +0 */
    size_t         ld_o;
    float         *scores; /* scratch, [2][strip][keys], on a cache line */
    bt_bf16       *p;      /* the same */
} bt_cpu_attend;

enum { BT_CPU_LD_SCORES = BT_CPU_STRIP_KEYS + 16 };
/* At most BT_CPU_FEW_ROWS queries, the lanes, go through a block of at most BT_CPU_STRIP_KEYS keys
 * that lie in pages and begin with their values; each sees all of it.  As in bt_cpu_attend,
 *     s = q K^T;  m = max(max, scale * the lane's maximum of s);  c = exp(max - m);  max = m
 *     p = exp(scale s - m), in fp32;  sum = sum c + the lane's sum of p;  o = o c + bf16(p) V
 * v_dim <= k is a multiple of 32.  Rows of o up to the sixteenth are written. */
typedef struct {
    const bt_bf16        *q;     /* packed [16, k]: +0 from n_lanes on */
    const bt_bf16 *const *pages; /* [n_keys] a row, row stride ld elements; there are rows up to
                                    the sixteenth, whatever is in them */
    size_t                ld;
    const bt_bf16 *const *later; /* for each page a page's elements that are read soon, to be
                                    fetched meanwhile, or NULL */
    uint32_t n_lanes, n_keys, k, v_dim;
    float    scale;     /* above 0 */
    float   *max, *sum; /* [n_lanes] */
    float   *o;         /* [16, v_dim], row stride ld_o elements */
    size_t   ld_o;
    bool     begins; /* o begins as +0 and is not read */
    float   *scores; /* scratch, [16][BT_CPU_LD_SCORES], on a cache line */
} bt_cpu_attend_pages;

/* A number that orders as the floats do, but -0 below +0, and NaN above or below all. */
static inline uint32_t bt_cpu_order_of(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof(bits));
    return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}

enum { BT_CPU_BF12_K = 1 << 24 }; /* rows in 12 bits at most: a place in 16 columns is 32 bits */
/* A weight of 12 bits that has no code. */
typedef struct {
    uint32_t at; /* in its block of 16 columns; the one behind the last: UINT32_MAX */
    bt_bf16  value;
} bt_cpu_rare;
/* What stands beside 16 columns of 12 bits. */
typedef struct {
    uint8_t     high[16]; /* upper bytes, by their code */
    bt_cpu_rare rare[];   /* bt_cpu_n_rare() at most, and the one behind */
} bt_cpu_bf12_side;

/* Packing, and work on one row at a time. */
typedef struct {
    /* Packs src[n][k] (row stride ld elements): column n of B is row n of src.  Weights; keys for
     * q * K^T. */
    void (*pack_rows)(const bt_bf16 *src, size_t ld, uint32_t n, uint32_t k, bt_bf16 *packed);
    /* Packs src[k][n]: B is src.  Values, with key as k, for p * V.  These k may be some of an
     * operand's, from an even one on: from one block of 16 columns to the next are k_packed rows,
     * a multiple of 32. */
    void (*pack_cols)(const bt_bf16 *src, size_t ld, uint32_t k, uint32_t n, uint32_t k_packed,
                      bt_bf16 *packed);
    /* 16 columns of k rows, packed in bf16, become 12 bits a weight, and `side` what stands beside
     * them.  false: too many have no code (bt_cpu_n_rare()); what has been written is no matrix. */
    bool (*pack_bf12)(const bt_bf16 *w, uint32_t k, uint8_t *out, bt_cpu_bf12_side *side);

    /* y[i] = bf16(x[i]) of results of additions and products, none of which is subnormal */
    void (*to_bf16)(const float *x, size_t n, bt_bf16 *y);
    /* x[i] *= a */
    void (*scale)(float *x, size_t n, float a);
    /* y[i] = bf16(a * x[i] + 0), so that no zero is negative */
    void (*scale_bf16)(const float *x, size_t n, float a, bt_bf16 *y);
    /* y[i] += a * x[i], two roundings */
    void (*axpy)(float a, const float *x, size_t n, float *y);
    /* The largest of x, -inf of none; a NaN is passed over.  Zeros and subnormals are
     * equal: which of them comes out is the same in every table, but not said. */
    float (*row_max)(const float *x, size_t n);
    float (*row_sum)(const float *x, size_t n);
    /* y[row] = the sum over i < n of w[i] * max(x[row][i], 0), two roundings; x [m][n], row stride
     * ld_x elements. */
    void (*relu_dots)(const float *w, const float *x, size_t ld_x, size_t m, size_t n, float *y);
    /* How many x[i] have a bt_cpu_order_of() above this one. */
    uint32_t (*count_above)(const float *x, size_t n, uint32_t order);
    /* e = exp(x[i] * scale - max) (bt_expf of math.h); p[i] = bf16(e); returns the sum of the e
     * before they are rounded.  p[n..n_pad) = +0: masked keys.  p_f32 as well when not NULL. */
    float (*exp_row)(const float *x, size_t n, size_t n_pad, float scale, float max, bt_bf16 *p,
                     float *p_f32);

    /* y = bf16(sum over parts ascending of (+0 + part), fp32 from +0, then + last unless it is
     * NULL). Part j is the sum of the next n_of[j] >= 1 rows, fp32 from +0, rounded to bf16 where
     * they are several. */
    void (*sum_parts)(const bt_bf16 *const *rows, const uint32_t *n_of, uint32_t n_parts,
                      const float *last, size_t n, bt_bf16 *y);

    /* One row each of the operations in device.h. */
    void (*rms_norm_row)(const bt_bf16 *x, const bt_bf16 *weight, size_t n, float eps, bt_bf16 *y);
    void (*add_norm_row)(const bt_bf16 *x, bt_bf16 *residual, const bt_bf16 *weight, size_t n,
                         float eps, bt_bf16 *y);
    /* RoPE of interleaved pairs, cos_sin [n / 2][2]: y[2i] = x[2i] cos - x[2i+1] sin, y[2i+1] =
     * x[2i+1] cos + x[2i] sin, in fp32, rounded once; y may be x. */
    void (*rope_row)(const float *cos_sin, const bt_bf16 *x, size_t n, bt_bf16 *y);
    void (*swiglu_row)(const bt_bf16 *gate, const bt_bf16 *up, size_t n, bt_bf16 *y);
} bt_cpu_row_kernels;

typedef struct {
    const char       *name;                   /* "amx", ... */
    bt_cpu_arithmetic arithmetic[BT_N_ROLES]; /* of mm[role] */
    void (*mm[BT_N_ROLES])(const bt_cpu_mm *mm);
    void (*mm_tiles)(const bt_cpu_mm_tiles *mm);        /* both roles, with many rows; or NULL */
    void (*mm_pages)(const bt_cpu_mm_pages *mm);        /* both roles; or NULL */
    void (*attend)(const bt_cpu_attend *a);             /* both roles; or NULL */
    void (*attend_pages)(const bt_cpu_attend_pages *a); /* both roles; or NULL */
    const bt_cpu_row_kernels *rows;
    bool bf12; /* few rows are multiplied by weights of 12 bits sooner than by bf16 */
} bt_cpu_kernels;

static inline uint32_t bt_cpu_pad(uint32_t v, uint32_t to) { return (v + to - 1) / to * to; }
/* Elements of a packed [n, k] operand. */
static inline size_t bt_cpu_packed_elems(uint32_t n, uint32_t k)
{
    return (size_t)bt_cpu_pad(n, 16) * bt_cpu_pad(k, 32);
}

/* 32 k of 16 columns. */
typedef struct {
    uint32_t words[2][32]; /* of 16 k each: [16][2] */
    bt_bf16  scale[16];
} bt_cpu_int4_group;

/* Bytes of so many of its elements, a multiple of 32; of 4 bits with their scales. */
static inline size_t bt_cpu_weight_bytes(bt_weight_kind kind, size_t n_elems)
{
    switch (kind) {
    case BT_WEIGHT_FP8: return n_elems;
    case BT_WEIGHT_INT4: return n_elems / 32 * (sizeof(bt_cpu_int4_group) / 16);
    case BT_WEIGHT_BF12: return n_elems / 2 * 3;
    default: return n_elems * sizeof(bt_bf16);
    }
}

enum { BT_CPU_SCALE_COLS = 16, BT_CPU_SCALE_K = 128 };
/* Scales of 16 columns of an operand in e4m3. */
static inline size_t bt_cpu_scale_ld(uint32_t k)
{
    return bt_cpu_pad(k, BT_CPU_SCALE_K) / BT_CPU_SCALE_K;
}

/* One in 256, and 16. */
static inline uint32_t bt_cpu_n_rare(uint32_t k) { return bt_cpu_pad(k, 32) / 16 + 16; }

enum { BT_CPU_BF12_GROUP = 128, BT_CPU_BF12_GROUP_BYTES = 192 };
/* high[0] of a matrix's first block, which no code is, where the matrix could not be packed. */
enum { BT_CPU_BF12_NONE = 0x80 };
/* Bytes that stand beside 16 columns: of e4m3 fp32 scales, bt_cpu_scale_ld() of them; of 12 bits a
 * bt_cpu_bf12_side; else none. */
static inline size_t bt_cpu_side_bytes(bt_weight_kind kind, uint32_t k)
{
    switch (kind) {
    case BT_WEIGHT_FP8: return bt_cpu_scale_ld(k) * sizeof(float);
    case BT_WEIGHT_BF12:
        return sizeof(bt_cpu_bf12_side) + (bt_cpu_n_rare(k) + 1) * sizeof(bt_cpu_rare);
    default: return 0;
    }
}
/* From this block of 16 columns on. */
static inline const void *bt_cpu_side_at(const void *side, bt_weight_kind kind, uint32_t k,
                                         size_t block)
{
    size_t bytes = bt_cpu_side_bytes(kind, k);

    return bytes == 0 ? NULL : (const char *)side + block * bytes;
}

/* Elements of x [m, k] as tiles. */
static inline size_t bt_cpu_tiled_elems(uint32_t m, uint32_t k)
{
    return bt_cpu_pad(m, BT_CPU_TILE_ROWS) * (size_t)bt_cpu_pad(k, BT_CPU_TILE_COLS);
}
/* Rows m0 .. m0+n_rows of x, at most sixteen, become tiles, with +0 for rows beyond them and for k
 * beyond the last one.  x_row: which row of x is row i, or NULL. */
void bt_cpu_make_tiles(const bt_bf16 *x, size_t ld_x, const uint32_t *x_row, uint32_t m0,
                       uint32_t n_rows, uint32_t k, bt_bf16 *tiles);

/* Elements from one block of 16 columns to the next. */
static inline size_t bt_cpu_block_elems(const bt_cpu_mm *mm)
{
    return (size_t)16 * bt_cpu_pad(mm->k_packed != 0 ? mm->k_packed : mm->k, 32);
}

/* The table called `name`, or NULL when there is none or this CPU lacks it.  "auto": the best. */
const bt_cpu_kernels *bt_cpu_kernels_find(const char *name);

/* Of a device made by bt_device_cpu_create(); borrowed for the device's life. */
const bt_cpu_kernels *bt_device_cpu_table(const bt_device *dev);
bt_cpu_pool          *bt_device_cpu_pool(bt_device *dev);
/* The packed operand of a linear of bf16 on such a device; n and k as it was created. */
const bt_bf16 *bt_linear_packed(const bt_linear *linear);

#endif

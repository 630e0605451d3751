/* device/cpu/widen.h - weights of 12, 8 and 4 bits become bf16 on their way to a kernel.
 *
 * In 12 bits a weight is what it was; else it is bf16(value * scale).  In e4m3 a scale holds for
 * 16 columns and 128 k at least, so each of its 128 magnitudes is rounded once, to a table, and a
 * weight is looked up; in 4 bits it holds for 32, which are multiplied.  Every instruction set
 * gives the same bits, so products of any family may use the fastest. Threads: a table is the
 * caller's. */
#ifndef BT_DEVICE_CPU_WIDEN_H
#define BT_DEVICE_CPU_WIDEN_H

#include "device/cpu/kernels.h"

/* Packed weights that are narrower, from their first k on (kernels.h). */
typedef struct {
    bt_weight_kind kind;
    const void    *packed; /* of the first block of 16 columns, */
    size_t         block;  /* and bytes from one to the next */
    const void    *side;   /* what stands beside them, likewise */
    size_t         ld_side;
} bt_cpu_narrow;

/* What stands beside its block c. */
static inline const void *bt_cpu_narrow_side(const bt_cpu_narrow *n, uint32_t c)
{
    return (const char *)n->side + c * n->ld_side;
}

typedef struct {
    const bt_cpu_rare *rare, *first;          /* of 12 bits: the next one, and its block's first */
    float              scale;                 /* of e4m3, as all that follows */
    bool               regular;               /* rows are enough */
    _Alignas(64) uint8_t low[128], high[128]; /* bytes of bf16(magnitude * scale) */
    _Alignas(16) uint8_t row_low[16], row_high[16]; /* mantissas of any exponent, without it; those
                                                       of exponent 0 */
    _Alignas(16) uint8_t two_low[16], two_high[16]; /* those of even exponents and of odd ones,
                                                       without what is left of these */
} bt_cpu_wide_table;

/* A table of no scale yet. */
static inline void bt_cpu_wide_begin(bt_cpu_wide_table *t)
{
    t->scale = __builtin_nanf("");
    t->first = NULL;
}

/* n_k weights from k0 on, multiples of 32, of some blocks of 16 columns become what kernels.h packs
 * of bf16 ones: from block to block ld_out elements.  Of e4m3 and 12 bits a table each, begun; the
 * same ones in the next call save work, and neighbours in e4m3 share one as a rule.  All that is
 * packed is aligned to 64 bytes, and so is out. */
typedef void (*bt_cpu_widen_fn)(const bt_cpu_narrow *from, uint32_t k0, uint32_t n_k,
                                uint32_t n_blocks, bt_cpu_wide_table *tables, bt_bf16 *out,
                                size_t ld_out);

/* The fastest that this CPU has. */
bt_cpu_widen_fn bt_cpu_widen_best(void);
/* For that instruction set, NULL: the same; NULL where this CPU lacks it, or there is none of that
 * name: "scalar", "avx2", "avx512", "avx512vbmi", "avx512bf16", "neon". */
bt_cpu_widen_fn bt_cpu_widen_find(const char *name);

#endif

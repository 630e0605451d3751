/* device/cpu/mm_amx_stream.c - tile32 for at most 32 rows, of weights of 8 or 12 bits 48, whose
 * time is that in which the weights come from memory.
 *
 * A tile load that misses the first-level cache keeps few lines under way, and the core's own
 * prefetcher hardly sees it.  So every line of weights is fetched twice before it is loaded: from
 * memory into the second-level cache some steps ahead, and from there into the first one step
 * ahead.  Those of 8 and 12 bits are fetched once and widened step by step, where two tile rows or
 * three pass a block at a time among the products of the step before.  Several column blocks go
 * together, each a stream of its own from memory, since each turn reads the tiles of x anew: four
 * past one tile row, three past two, two past three.
 *
 * Tiles 0-3 accumulate one tile row and 4 holds x; or 0-2 the first and 3-5 the second of two, or
 * of three 0-2 the first block and 3-5 the second, and 6.  7 holds B. */
#include "core/log.h"
#include "device/cpu/amx.h"
#include "device/cpu/widen.inc.h"

#define INLINE static inline __attribute__((always_inline))

enum {
    LINE      = 32, /* elements */
    FAR       = 3,  /* steps ahead: into the second-level cache, */
    NEAR      = 1,  /* and into the first */
    TILE_SUMS = TILE * TILE
};

/* A step of the first block, of these columns or of the next ones. */
INLINE const bt_bf16 *b_of(const bt_cpu_amx_stream *s, uint32_t step)
{
    return step < s->n_steps ? s->b + (size_t)step * TILE_ELEMS
                             : (const bt_bf16 *)s->next + (size_t)(step - s->n_steps) * TILE_ELEMS;
}

INLINE void fetch(const bt_cpu_amx_stream *s, uint32_t step, const uint32_t n_blocks)
{
    const bt_bf16 *far = b_of(s, step + FAR), *near = b_of(s, step + NEAR);

    for (uint32_t i = 0; i < TILE; i++, far += LINE, near += LINE) {
        for (uint32_t c = 0; c < n_blocks; c++)
            _mm_prefetch((const char *)(far + c * s->block), _MM_HINT_T1);
        for (uint32_t c = 0; c < n_blocks; c++)
            _mm_prefetch((const char *)(near + c * s->block), _MM_HINT_T0);
    }
}

/* Sums of a tile and where they wait; gcc wants a tile's number as it stands. */
#define TAKE(tile, place)                                       \
    do {                                                        \
        if (s->from_zero)                                       \
            _tile_zero(tile);                                   \
        else                                                    \
            _tile_loadd(tile, s->sums + (place)*TILE_SUMS, 64); \
    } while (0)
#define LEAVE(tile, place) _tile_stored(tile, s->sums + (place)*TILE_SUMS, 64)

/* ---- weights of 8 or 12 bits ---- */

enum { AHEAD = 8 /* steps, from what is read to what is fetched */ };

/* A step of some column blocks. */
typedef struct {
    const char *at, *later; /* narrow, of the first block; and what is fetched meanwhile */
    size_t      block;      /* bytes from one block to the next */
    const bt_cpu_wide_table *tables[AMX_STREAM_BLOCKS];          /* of 8 bits; */
    const uint8_t           *high[AMX_STREAM_BLOCKS];            /* of 12 bits, */
    const bt_cpu_rare       *rare[AMX_STREAM_BLOCKS];            /* the next ones, */
    uint32_t                 from;                               /* and the step's first weight */
    _Alignas(64) bt_bf16 wide[2][AMX_STREAM_BLOCKS][TILE_ELEMS]; /* even steps and odd ones */
} narrow_step;

/* Where the step is in the first block, or in what is read next. */
INLINE const char *narrow_at(const bt_cpu_amx_stream *s, const bt_cpu_amx_narrow *n, uint32_t step,
                             const bt_weight_kind kind)
{
    size_t i = step < s->n_steps ? n->k0 / STEP + step : step - s->n_steps;

    return (const char *)(step < s->n_steps ? n->from.packed : s->next) +
           i * bt_cpu_weight_bytes(kind, TILE_ELEMS);
}

static __attribute__((noinline)) void find_tables(const bt_cpu_amx_narrow *n, uint32_t k,
                                                  uint32_t                  n_blocks,
                                                  const bt_cpu_wide_table **tables_out)
{
    bt_cpu_wide_table *t = n->tables;

    for (uint32_t c = 0; c < n_blocks; c++) {
        const float *scales = bt_cpu_narrow_side(&n->from, c);

        t             = table_of(scales[k / BT_CPU_SCALE_K], t, &n->tables[c]);
        tables_out[c] = t;
    }
}

static __attribute__((noinline)) void find_codes(const bt_cpu_amx_narrow *n, uint32_t n_blocks,
                                                 narrow_step *w)
{
    for (uint32_t c = 0; c < n_blocks; c++) {
        const bt_cpu_bf12_side *side = bt_cpu_narrow_side(&n->from, c);

        w->high[c] = side->high;
        w->rare[c] = rare_from(side, n->k0 * TILE, &n->tables[c]);
    }
}

/* The step is to be widened, if there is one.  Returns where to. */
INLINE bt_bf16 *begin_step(narrow_step *w, const bt_cpu_amx_stream *s, const bt_cpu_amx_narrow *n,
                           uint32_t step, const uint32_t n_blocks, const bt_weight_kind kind)
{
    uint32_t k = n->k0 + step * STEP;

    if (step == s->n_steps) return NULL;
    w->block = n->from.block;
    w->at    = narrow_at(s, n, step, kind);
    w->later = narrow_at(s, n, step + AHEAD, kind);
    w->from  = k * TILE;
    if (kind == BT_WEIGHT_BF12) {
        if (step == 0) find_codes(n, n_blocks, w);
    } else if (step == 0 || k % BT_CPU_SCALE_K == 0) {
        find_tables(n, k, n_blocks, w->tables);
    }
    return w->wide[step % 2][0];
}

/* One of its blocks; to: NULL where nothing is to be widened.  Lines of all blocks are fetched by
 * turns, one for each that is read. */
INLINE void widen_block(narrow_step *w, bt_bf16 *to, const uint32_t c, const uint32_t n_blocks,
                        const bt_weight_kind kind)
{
    const uint32_t n_lines = (uint32_t)bt_cpu_weight_bytes(kind, TILE_ELEMS) / GROUP;
    const uint32_t n_each  = kind == BT_WEIGHT_BF12 ? 3 : 1; /* that are widened together */
    const uint8_t *at;

    if (to == NULL || c >= n_blocks) return;
    at = (const uint8_t *)w->at + c * w->block;
    to += c * TILE_ELEMS;
    for (uint32_t i = 0; i < n_lines; i++) {
        uint32_t line = c * n_lines + i;

        _mm_prefetch(w->later + line % n_blocks * w->block + line / n_blocks * GROUP, _MM_HINT_T1);
        if (kind == BT_WEIGHT_FP8)
            widen_groups(at + i * GROUP, 1, w->tables[c], to + i * GROUP);
        else if (i % n_each == 0)
            widen_codes(at + i * GROUP, 1, w->high[c], to + i / n_each * 2 * GROUP);
    }
    if (kind == BT_WEIGHT_BF12)
        w->rare[c] = put_rare(w->rare[c], w->from, w->from + TILE_ELEMS, to);
    publish(to);
}

/* ---- one tile row ---- */

INLINE void take_row(const bt_cpu_amx_stream *s, const uint32_t n_blocks)
{
    TAKE(0, 0);
    if (n_blocks > 1) TAKE(1, 1);
    if (n_blocks > 2) TAKE(2, 2);
    if (n_blocks > 3) TAKE(3, 3);
}

INLINE void leave_row(const bt_cpu_amx_stream *s, const uint32_t n_blocks)
{
    LEAVE(0, 0);
    if (n_blocks > 1) LEAVE(1, 1);
    if (n_blocks > 2) LEAVE(2, 2);
    if (n_blocks > 3) LEAVE(3, 3);
}

INLINE void multiply_row(const bt_bf16 *x, const bt_bf16 *b, size_t block, const uint32_t n_blocks,
                         narrow_step *w, bt_bf16 *to, const bt_weight_kind kind)
{
    widen_block(w, to, 0, n_blocks, kind);
    widen_block(w, to, 1, n_blocks, kind);
    widen_block(w, to, 2, n_blocks, kind);
    widen_block(w, to, 3, n_blocks, kind);
    _tile_loadd(4, x, 64);
    _tile_loadd(7, b, 64);
    _tile_dpbf16ps(0, 4, 7);
    if (n_blocks > 1) {
        _tile_loadd(7, b + block, 64);
        _tile_dpbf16ps(1, 4, 7);
    }
    if (n_blocks > 2) {
        _tile_loadd(7, b + 2 * block, 64);
        _tile_dpbf16ps(2, 4, 7);
    }
    if (n_blocks > 3) {
        _tile_loadd(7, b + 3 * block, 64);
        _tile_dpbf16ps(3, 4, 7);
    }
}

INLINE void one_row(const bt_cpu_amx_stream *s, const uint32_t n_blocks)
{
    take_row(s, n_blocks);
    for (uint32_t step = 0; step < s->n_steps; step++) {
        fetch(s, step, n_blocks);
        multiply_row(s->x + (size_t)step * TILE_ELEMS, s->b + (size_t)step * TILE_ELEMS, s->block,
                     n_blocks, NULL, NULL, BT_WEIGHT_BF16);
    }
    leave_row(s, n_blocks);
}

/* ---- two ---- */

INLINE void zero_six(void)
{
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
    _tile_zero(5);
}

/* A step.  x comes from the second-level cache and leaves the first to B. */
INLINE void multiply_two(const bt_bf16 *x, size_t low_x, const bt_bf16 *b, size_t block,
                         const uint32_t n_blocks, narrow_step *w, bt_bf16 *to,
                         const bt_weight_kind kind)
{
    _tile_stream_loadd(6, x, 64);
    _tile_loadd(7, b, 64);
    _tile_dpbf16ps(0, 6, 7);
    widen_block(w, to, 0, n_blocks, kind);
    if (n_blocks > 1) {
        _tile_loadd(7, b + block, 64);
        _tile_dpbf16ps(1, 6, 7);
    }
    if (n_blocks > 2) {
        _tile_loadd(7, b + 2 * block, 64);
        _tile_dpbf16ps(2, 6, 7);
    }
    widen_block(w, to, 1, n_blocks, kind);
    _tile_stream_loadd(6, x + low_x, 64);
    if (n_blocks > 2) {
        _tile_dpbf16ps(5, 6, 7);
        _tile_loadd(7, b + block, 64);
    }
    if (n_blocks > 1) {
        _tile_dpbf16ps(4, 6, 7);
        _tile_loadd(7, b, 64);
    }
    widen_block(w, to, 2, n_blocks, kind);
    _tile_dpbf16ps(3, 6, 7);
}

INLINE void leave_two(const bt_cpu_amx_stream *s, const uint32_t n_blocks)
{
    LEAVE(0, 0);
    LEAVE(3, 1);
    if (n_blocks > 1) LEAVE(1, 2);
    if (n_blocks > 1) LEAVE(4, 3);
    if (n_blocks > 2) LEAVE(2, 4);
    if (n_blocks > 2) LEAVE(5, 5);
}

INLINE void two_rows(const bt_cpu_amx_stream *s, const uint32_t n_blocks)
{
    const bt_bf16 *x = s->x, *b = s->b;

    zero_six();
    for (uint32_t step = 0; step < s->n_steps; step++, x += TILE_ELEMS, b += TILE_ELEMS) {
        fetch(s, step, n_blocks);
        multiply_two(x, s->low_x, b, s->block, n_blocks, NULL, NULL, BT_WEIGHT_BF16);
    }
    leave_two(s, n_blocks);
}

/* ---- three, of weights of 8 or 12 bits ---- */

INLINE void multiply_three(const bt_bf16 *x, size_t low_x, const bt_bf16 *b,
                           const uint32_t n_blocks, narrow_step *w, bt_bf16 *to,
                           const bt_weight_kind kind)
{
    widen_block(w, to, 0, n_blocks, kind);
    _tile_stream_loadd(6, x, 64);
    _tile_loadd(7, b, 64);
    _tile_dpbf16ps(0, 6, 7);
    if (n_blocks > 1) {
        _tile_loadd(7, b + TILE_ELEMS, 64);
        _tile_dpbf16ps(3, 6, 7);
    }
    _tile_stream_loadd(6, x + low_x, 64);
    if (n_blocks > 1) {
        _tile_dpbf16ps(4, 6, 7);
        _tile_loadd(7, b, 64);
    }
    widen_block(w, to, 1, n_blocks, kind);
    _tile_dpbf16ps(1, 6, 7);
    _tile_stream_loadd(6, x + 2 * low_x, 64);
    _tile_dpbf16ps(2, 6, 7);
    if (n_blocks > 1) {
        _tile_loadd(7, b + TILE_ELEMS, 64);
        _tile_dpbf16ps(5, 6, 7);
    }
}

INLINE void leave_three(const bt_cpu_amx_stream *s, const uint32_t n_blocks)
{
    LEAVE(0, 0);
    LEAVE(1, 1);
    LEAVE(2, 2);
    if (n_blocks > 1) LEAVE(3, 3);
    if (n_blocks > 1) LEAVE(4, 4);
    if (n_blocks > 1) LEAVE(5, 5);
}

/* A tile load waits for the stores of what it loads, so a step is multiplied while the one behind
 * it is widened. */
INLINE void narrow_rows(const bt_cpu_amx_stream *s, const bt_cpu_amx_narrow *n,
                        const uint32_t n_rows, const uint32_t n_blocks, const bt_weight_kind kind)
{
    narrow_step    w;
    const bt_bf16 *x = s->x;
    bt_bf16       *to;

    if (n_rows == 1)
        take_row(s, n_blocks);
    else
        zero_six();
    to = begin_step(&w, s, n, 0, n_blocks, kind);
    for (uint32_t c = 0; c < n_blocks; c++)
        widen_block(&w, to, c, n_blocks, kind);
    for (uint32_t step = 0; step < s->n_steps; step++, x += TILE_ELEMS) {
        const bt_bf16 *b = w.wide[step % 2][0];

        to = begin_step(&w, s, n, step + 1, n_blocks, kind);
        if (n_rows == 1)
            multiply_row(x, b, TILE_ELEMS, n_blocks, &w, to, kind);
        else if (n_rows == 2)
            multiply_two(x, s->low_x, b, TILE_ELEMS, n_blocks, &w, to, kind);
        else
            multiply_three(x, s->low_x, b, n_blocks, &w, to, kind);
    }
    if (n_rows == 1)
        leave_row(s, n_blocks);
    else if (n_rows == 2)
        leave_two(s, n_blocks);
    else
        leave_three(s, n_blocks);
}

/* In a switch over the kind, tile rows and blocks. */
#define NARROW_CASE(rows, blocks)                            \
    case (rows)*8 + (blocks):                                \
        if (n->from.kind == BT_WEIGHT_FP8)                   \
            narrow_rows(s, n, rows, blocks, BT_WEIGHT_FP8);  \
        else                                                 \
            narrow_rows(s, n, rows, blocks, BT_WEIGHT_BF12); \
        break;

void bt_cpu_amx_stream_narrow(const bt_cpu_amx_stream *s, const bt_cpu_amx_narrow *n,
                              uint32_t n_tile_rows, uint32_t n_blocks)
{
    publish(s->sums);
    switch (n_tile_rows * 8 + n_blocks) {
        NARROW_CASE(1, 1)
        NARROW_CASE(1, 2)
        NARROW_CASE(1, 3)
        NARROW_CASE(1, 4)
        NARROW_CASE(2, 1)
        NARROW_CASE(2, 2)
        NARROW_CASE(2, 3)
        NARROW_CASE(3, 1)
        NARROW_CASE(3, 2)
    default: BT_ASSERT(false);
    }
    publish(s->sums);
}

void bt_cpu_amx_stream_run(const bt_cpu_amx_stream *s, uint32_t n_tile_rows, uint32_t n_blocks)
{
    publish(s->sums);
    switch (n_tile_rows * 8 + n_blocks) {
        AMX_CASE(1, 1, one_row(s, 1))
        AMX_CASE(1, 2, one_row(s, 2))
        AMX_CASE(1, 3, one_row(s, 3))
        AMX_CASE(1, 4, one_row(s, 4))
        AMX_CASE(2, 1, two_rows(s, 1))
        AMX_CASE(2, 2, two_rows(s, 2))
        AMX_CASE(2, 3, two_rows(s, 3))
    default: BT_ASSERT(false);
    }
    publish(s->sums);
}

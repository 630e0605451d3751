/* device/cpu/mm_amx_tiles.c - tile32 for many rows: x lies in tiles, 16 rows of 32 k each.
 *
 * What limits a core is the lines that its first-level cache waits for, from the second level and,
 * for longer, from memory.  So x stays in the second-level cache while all columns pass; a piece of
 * a panel of 32 columns stays in the first, while the tiles of x stream past it, two tile rows at a
 * time; and the panel that follows is fetched a few lines at a time.  Between pieces of k the sums
 * wait in memory, which is exact.  When x is too long for the cache, the columns pass once for each
 * macro piece.
 *
 * The tile unit works on while others do the rest, as long as that is spread among its products:
 * sums leave one tile at a time, during the first step of the pair that follows, and whole ones
 * become results a few rows a step.
 *
 * With `up`, a panel is 16 columns of gate and the same of up.  Of narrow weights, each piece of a
 * panel is widened before the tiles of x pass.  Up to 32 rows, of narrow weights 48, go through
 * mm_amx_stream.c, or past weights of 4 bits mm_amx_int4.c.
 *
 * Tiles 0-3 accumulate, 4-5 hold x, 6-7 hold B: a step of 32 k is 2 x 2 tiles, or 1 x 2 for the
 * last 16 rows. */
#include "core/minmax.h"
#include "device/cpu/amx.h"
#include "device/cpu/families.h"

#define WIDTH 16
#include "device/cpu/lanes.inc.h"

enum {
    PANEL       = 2 * TILE,
    PAIR        = 2 * TILE, /* rows */
    TILE_SUMS   = TILE * TILE,
    LINE        = 32,           /* elements */
    PIECE       = 512,          /* k of a panel in the first-level cache, at most: 32 KiB */
    X_ELEMS_FEW = 128 << 10,    /* of FEW_ROWS: more weights pass through that cache */
    MANY_ROWS   = 32,           /* of a result that no cache keeps for its reader, */
    PAST_ELEMS  = 512 << 10,    /* or so many sums of fewer */
    SUMS        = PAIR * PANEL, /* of a pair and a panel: [2][PAIR][16] */
    FEW_ROWS    = 64,
    MOST_ROWS   = 256 /* whose weights are wanted slowly, and by other rows before */
};

/* One call. */
typedef struct {
    const bt_cpu_mm_tiles *mm;
    bool                   past; /* results go past the caches */
    float                 *held; /* where the sums in tiles 0-3 belong; NULL: they are there */
    /* Whole sums, of rows m0 .. m0+n_rows and the panel at n0; before `row` they are results. */
    _Alignas(64) float whole[SUMS];
    uint32_t   m0, n0, row, n_rows;
    wide_pair *wide;
} run;

_Static_assert((int)PIECE <= (int)WIDE_K, "a piece that was narrow");

/* A piece of k of a pair of tile rows and one panel, and what is done meanwhile. */
typedef struct {
    const bt_bf16 *x;     /* of the first tile row, */
    size_t         low_x; /* and elements to the next one */
    const bt_bf16 *b;     /* of the first column block, */
    size_t         block; /* and elements to the second one; 0: there is only one */
    const bt_bf16 *next;  /* the panel that follows: likewise */
    size_t         next_block;
    uint32_t       n_ahead; /* lines of either of its blocks that have been fetched, */
    uint32_t       n_lines; /* that all rows' steps fetch together, */
    uint32_t       n_next;  /* and one step, */
    uint32_t       streams; /* from so many places by turns: a power of two, and this its log, */
    size_t         stream;  /* and elements from one place to the next */
    uint32_t       n_steps;
    const float   *from; /* the sums so far; NULL: zero */
    float         *to;
} piece;

/* ---- sums become results ---- */

/* Whether all lines of the results are whole. */
static bool has_lines(const bt_cpu_mm_tiles *mm)
{
    return mm->ld_y * bt_dtype_bytes(mm->y_dtype) % 64 == 0 && (uintptr_t)mm->y % 64 == 0;
}

/* Full lines go past the caches: the next one to read them comes late, and to own a line first, its
 * old contents would have to be fetched. */
INLINE void put_line(void *to, __m512i line, bool past)
{
    if (past)
        _mm512_stream_si512(to, line);
    else
        _mm512_storeu_si512(to, line);
}

/* Up to 16 columns of a row, to fp32 or bf16. */
INLINE void put_some(const bt_cpu_mm_tiles *mm, size_t at, __m512 v, uint32_t cols)
{
    __mmask16 mask = (__mmask16)((1u << cols) - 1);

    if (mm->y_dtype == BT_F32)
        _mm512_mask_storeu_ps((float *)mm->y + at, mask, v);
    else
        _mm256_mask_storeu_epi16((bt_bf16 *)mm->y + at, mask, (__m256i)_mm512_cvtneps_pbh(v));
}

/* As scale_bf16(), before it rounds. */
INLINE __m512 weigh(__m512 v, float weight)
{
    return _mm512_add_ps(_mm512_mul_ps(v, _mm512_set1_ps(weight)), _mm512_setzero_ps());
}

INLINE void put_row(const run *r, uint32_t row)
{
    const bt_cpu_mm_tiles *mm   = r->mm;
    const float           *sums = r->whole + (size_t)row * TILE;
    uint32_t               cols = bt_min_u32(mm->n - r->n0, PANEL), low = bt_min_u32(cols, TILE);
    size_t                 at = (r->m0 + row) * mm->ld_y + r->n0;
    __m512                 v0 = _mm512_load_ps(sums), v1 = _mm512_load_ps(sums + SUMS / 2);

    if (mm->weight != NULL) {
        v0 = weigh(v0, mm->weight[r->m0 + row]);
        v1 = weigh(v1, mm->weight[r->m0 + row]);
    }
    if (cols != PANEL) {
        put_some(mm, at, v0, low);
        put_some(mm, at + TILE, v1, cols - low);
    } else if (mm->y_dtype == BT_BF16) {
        put_line((bt_bf16 *)mm->y + at, (__m512i)_mm512_cvtne2ps_pbh(v1, v0), r->past);
    } else {
        put_line((float *)mm->y + at, _mm512_castps_si512(v0), r->past);
        put_line((float *)mm->y + at + TILE, _mm512_castps_si512(v1), r->past);
    }
}

/* 16 columns of gate and up become as many of the activation, which are half a tile's. */
INLINE void put_activation(const bt_cpu_mm_tiles *mm, uint32_t m, uint32_t n0, const float *gate,
                           const float *up)
{
    bt_bf16 *out = (bt_bf16 *)mm->y + m / TILE * mm->ld_y;

    out += n0 / STEP * TILE_ELEMS + m % TILE * STEP + n0 % STEP;
    store_bf16(out, swiglu_lanes(widen(round_result(load(gate))), widen(round_result(load(up)))));
}

INLINE void put_swiglu(const run *r, uint32_t row)
{
    const float *sums = r->whole + (size_t)row * TILE;

    put_activation(r->mm, r->m0 + row, r->n0, sums, sums + SUMS / 2);
}

/* A step's share of what is left from `row` on; returns where it ends. */
INLINE uint32_t put_two(const run *r, uint32_t row, bool up)
{
    if (row + 2 > r->n_rows) return row;
    if (up) {
        put_swiglu(r, row);
        put_swiglu(r, row + 1);
    } else {
        put_row(r, row);
        put_row(r, row + 1);
    }
    return row + 2;
}

static void put_rest(run *r)
{
    for (; r->row < r->n_rows; r->row++) {
        if (r->mm->up != 0)
            put_swiglu(r, r->row);
        else
            put_row(r, r->row);
    }
}

/* ---- products ---- */

/* From several places by turns: the core's own prefetcher follows each page by itself, and is
 * further ahead in a page that is asked for less often. */
INLINE void fetch(const piece *p, uint32_t step)
{
    uint32_t line = p->n_ahead + step * p->n_next;

    for (uint32_t i = 0; i < p->n_next; i++, line++) {
        uint32_t       place = line & ((1u << p->streams) - 1);
        const bt_bf16 *next  = p->next + place * p->stream + (size_t)(line >> p->streams) * LINE;

        _mm_prefetch((const char *)next, _MM_HINT_T1);
        _mm_prefetch((const char *)(next + p->next_block), _MM_HINT_T1);
    }
}

/* Where a pair's sums of tile t are. */
#define PLACE(t) ((t) % 2 * (SUMS / 2) + (t) / 2 * TILE_SUMS)

#define TAKE_SUMS(t, from)                                \
    do {                                                  \
        if ((from) == NULL)                               \
            _tile_zero(t);                                \
        else                                              \
            _tile_stream_loadd(t, (from) + PLACE(t), 64); \
    } while (0)
#define LEAVE_SUMS(t, to)                                                \
    do {                                                                 \
        if ((to) != NULL) _tile_stored(t, (float *)(to) + PLACE(t), 64); \
    } while (0)

/* 2 x 2 tiles.  Loads of x say that it streams, so that B stays. */
INLINE void tiles_22(run *r, const piece *p, bool up)
{
    const bt_bf16 *x = p->x, *b = p->b;
    uint32_t       row = r->row;

    fetch(p, 0);
    _tile_stream_loadd(4, x, 64);
    _tile_loadd(6, b, 64);
    LEAVE_SUMS(0, r->held);
    TAKE_SUMS(0, p->from);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, b + p->block, 64);
    LEAVE_SUMS(1, r->held);
    TAKE_SUMS(1, p->from);
    _tile_dpbf16ps(1, 4, 7);
    _tile_stream_loadd(5, x + p->low_x, 64);
    LEAVE_SUMS(2, r->held);
    TAKE_SUMS(2, p->from);
    _tile_dpbf16ps(2, 5, 6);
    LEAVE_SUMS(3, r->held);
    TAKE_SUMS(3, p->from);
    _tile_dpbf16ps(3, 5, 7);
    for (uint32_t s = 1; s < p->n_steps; s++) {
        x += TILE_ELEMS;
        b += TILE_ELEMS;
        fetch(p, s);
        _tile_stream_loadd(4, x, 64);
        _tile_loadd(6, b, 64);
        _tile_stream_loadd(5, x + p->low_x, 64);
        _tile_loadd(7, b + p->block, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
        row = put_two(r, row, up);
    }
    r->row  = row;
    r->held = p->to;
}

static void plain_22(run *r, const piece *p) { tiles_22(r, p, false); }
static void swiglu_22(run *r, const piece *p) { tiles_22(r, p, true); }

static void leave_held(run *r)
{
    LEAVE_SUMS(0, r->held);
    LEAVE_SUMS(1, r->held);
    LEAVE_SUMS(2, r->held);
    LEAVE_SUMS(3, r->held);
    r->held = NULL;
}

/* 1 x 2 tiles. */
static void tiles_12(run *r, const piece *p)
{
    const bt_bf16 *x = p->x, *b = p->b;

    leave_held(r);
    TAKE_SUMS(0, p->from);
    TAKE_SUMS(1, p->from);
    for (uint32_t s = 0; s < p->n_steps; s++) {
        fetch(p, s);
        _tile_stream_loadd(4, x, 64);
        _tile_loadd(6, b, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, b + p->block, 64);
        _tile_dpbf16ps(1, 4, 7);
        r->row = put_two(r, r->row, r->mm->up != 0);
        x += TILE_ELEMS;
        b += TILE_ELEMS;
    }
    put_rest(r); /* before others take their place */
    LEAVE_SUMS(0, p->to);
    LEAVE_SUMS(1, p->to);
}

/* One piece of k of the panel at n0 against all rows; p says where it begins.  `sums` are those of
 * the panel. */
static void run_piece(run *r, piece p, uint32_t n0, bool first, bool last, float *sums)
{
    uint32_t m        = r->mm->up != 0 ? bt_cpu_pad(r->mm->m, TILE) : r->mm->m;
    uint32_t n_passes = bt_cpu_pad(m, PAIR) / PAIR, left = p.n_lines;
    uint32_t lines = p.next == NULL ? 0 : (left + n_passes - 1) / n_passes;

    if (p.next == NULL) p.next = p.b;
    for (uint32_t m0 = 0; m0 < m; m0 += PAIR, left -= p.n_next) {
        float *own = sums + (size_t)m0 * PANEL;

        p.n_next = bt_min_u32(lines, left);
        p.from   = first ? NULL : own;
        p.to     = last ? r->whole : own;
        if (m - m0 <= TILE)
            tiles_12(r, &p);
        else if (r->mm->up != 0)
            swiglu_22(r, &p);
        else
            plain_22(r, &p);
        put_rest(r);
        if (last) {
            r->m0     = m0;
            r->n0     = n0;
            r->row    = 0;
            r->n_rows = bt_min_u32(m - m0, PAIR);
        }
        p.x += 2 * p.low_x;
        p.n_ahead += p.n_steps * p.n_next;
    }
}

/* B from k0 on of the column block at n0. */
static const void *b_at(const bt_cpu_mm_tiles *mm, uint32_t n0, uint32_t k0)
{
    size_t tile_row = (size_t)bt_cpu_pad(mm->k, STEP) * TILE;

    return weight_at(mm->packed, mm->kind, n0 / TILE * tile_row + (size_t)k0 * TILE);
}

/* The blocks from n0 on, of what lies `behind` weights further on. */
static bt_cpu_narrow narrow_at(const bt_cpu_mm_tiles *mm, uint32_t n0, size_t behind)
{
    size_t tile_row = (size_t)bt_cpu_pad(mm->k, STEP) * TILE;

    return (bt_cpu_narrow){mm->kind, weight_at(b_at(mm, n0, 0), mm->kind, behind),
                           bt_cpu_weight_bytes(mm->kind, tile_row),
                           bt_cpu_side_at(mm->side, mm->kind, mm->k, n0 / TILE + behind / tile_row),
                           bt_cpu_side_bytes(mm->kind, mm->k)};
}

/* A piece of a narrow panel, whose second block lies `block` weights behind the first. */
static void widen_panel(run *r, uint32_t n0, size_t block, uint32_t k0, uint32_t n_k, piece *p)
{
    const bt_cpu_mm_tiles *mm   = r->mm;
    bt_cpu_narrow          from = narrow_at(mm, n0, 0);

    from.block = bt_cpu_weight_bytes(mm->kind, block);
    from.ld_side *= block / ((size_t)bt_cpu_pad(mm->k, STEP) * TILE);
    widen_pair(r->wide, &from, k0, n_k, p->block == 0 ? 1 : 2);
    p->b     = r->wide->b[0];
    p->block = p->block == 0 ? 0 : WIDE_LD;
}

/* Lines of 64 bytes that a step reads of a block of columns, or one more. */
static uint32_t step_lines(bt_weight_kind kind)
{
    return ((uint32_t)bt_cpu_weight_bytes(kind, TILE_ELEMS) + 63) / 64;
}

/* The panel that begins at column n0, over the k of a macro piece. */
static void run_panel(run *r, uint32_t n0, uint32_t from_k, uint32_t to_k, float *sums,
                      const bt_bf16 *next)
{
    const bt_cpu_mm_tiles *mm       = r->mm;
    size_t                 tile_row = (size_t)bt_cpu_pad(mm->k, STEP) * TILE;
    size_t                 block    = mm->up != 0 ? mm->up : tile_row;
    uint32_t               k = to_k - from_k, n_pieces = (k + PIECE - 1) / PIECE;
    uint32_t               streams = mm->m < MOST_ROWS ? 2 : 1;
    uint32_t               length  = bt_cpu_pad((k + n_pieces - 1) / n_pieces, STEP);
    uint32_t               lines   = step_lines(mm->kind);

    for (uint32_t k0 = from_k, k1; k0 < to_k; k0 = k1) {
        k1      = bt_min_u32(to_k, k0 + length);
        piece p = {.x          = mm->x + (size_t)k0 * TILE,
                   .low_x      = tile_row,
                   .b          = b_at(mm, n0, k0),
                   .block      = mm->up == 0 && mm->n - n0 <= TILE ? 0 : block,
                   .next       = next,
                   .next_block = bt_cpu_weight_bytes(mm->kind, block) / sizeof(bt_bf16),
                   .n_ahead    = (k0 - from_k) / STEP * lines,
                   .n_lines    = lines,
                   .streams    = streams,
                   .stream     = (size_t)bt_cpu_pad(k, STEP) * lines >> streams,
                   .n_steps    = bt_cpu_pad(k1 - k0, STEP) / STEP};

        if (mm->kind != BT_WEIGHT_BF16) widen_panel(r, n0, block, k0, p.n_steps * STEP, &p);
        run_piece(r, p, n0, k0 == 0, k1 == mm->k, sums);
    }
}

/* k of a macro piece. */
static uint32_t macro_k(const bt_cpu_mm_tiles *mm)
{
    uint32_t m = bt_cpu_pad(mm->m, TILE), fits = BT_CPU_NEAR_ELEMS / m;

    if (mm->m <= FEW_ROWS)
        fits = X_ELEMS_FEW / m;
    else if (fits < mm->k)
        fits = fits / 4 * 3; /* the sums of all columns come and go beside it */
    return fits < PIECE ? (uint32_t)PIECE : fits / PIECE * PIECE;
}

static void run_panels(const bt_cpu_mm_tiles *mm)
{
    size_t    panel_sums = (size_t)bt_cpu_pad(mm->m, PAIR) * PANEL;
    uint32_t  width      = mm->up != 0 ? TILE : PANEL; /* columns of B from panel to panel */
    uint32_t  macro      = macro_k(mm);
    wide_pair wide;
    run       r = {
              .mm   = mm,
              .wide = &wide,
              .past = !mm->near && mm->m >= MANY_ROWS && has_lines(mm),
    };

    configure(TILE, TILE);
    begin_wide(&wide);
    for (uint32_t from_k = 0, to_k; from_k < mm->k; from_k = to_k) {
        to_k = bt_min_u32(mm->k, from_k + macro);
        for (uint32_t n0 = 0; n0 < mm->n; n0 += width) {
            const bt_bf16 *next = mm->next;

            if (n0 + width < mm->n)
                next = b_at(mm, n0 + width, from_k);
            else if (to_k < mm->k)
                next = b_at(mm, 0, to_k);
            run_panel(&r, n0, from_k, to_k,
                      mm->sums + (macro < mm->k ? n0 / width * panel_sums : 0), next);
        }
    }
    leave_held(&r);
    put_rest(&r);
    _tile_release();
    _mm_sfence();
}

/* ---- few rows ---- */

/* Whether sums go past the caches: those of a vocabulary do. */
static bool passes(const bt_cpu_mm_tiles *mm)
{
    return !mm->near && mm->y_dtype == BT_F32 && mm->m * mm->ld_y >= PAST_ELEMS && has_lines(mm);
}

/* What n_cols columns from n0 on have come to: in sums a row's are `ld` apart, and blocks of
 * columns `block`. */
static void put_blocks(const bt_cpu_mm_tiles *mm, size_t block, size_t ld, uint32_t n0,
                       uint32_t n_cols, bool past, const float *sums, const float *up_sums)
{
    for (uint32_t c = 0; c < n_cols; c += TILE) {
        for (uint32_t m = 0; m < mm->m; m++) {
            size_t at = c / TILE * block + m * ld;
            __m512 v;

            if (mm->up != 0) {
                put_activation(mm, m, n0 + c, sums + at, up_sums + at);
                continue;
            }
            v = _mm512_load_ps(sums + at);
            if (past && n_cols - c >= TILE) {
                put_line((float *)mm->y + m * mm->ld_y + n0 + c, _mm512_castps_si512(v), true);
                continue;
            }
            if (mm->weight != NULL) v = weigh(v, mm->weight[m]);
            put_some(mm, m * mm->ld_y + n0 + c, v, bt_min_u32(n_cols - c, TILE));
        }
    }
}

/* Against one to three tile rows: as weights come from memory. */
static void run_stream(const bt_cpu_mm_tiles *mm)
{
    _Alignas(64) float sums[2][AMX_STREAM_SUMS * TILE_SUMS];
    bt_cpu_wide_table  tables[2][AMX_STREAM_BLOCKS];
    bt_cpu_amx_narrow  n           = {.k0 = 0};
    uint32_t           n_tile_rows = (mm->m + TILE - 1) / TILE;
    bool               past        = passes(mm);
    size_t             tile_row    = (size_t)bt_cpu_pad(mm->k, STEP) * TILE;
    bt_cpu_amx_stream  s           = {.x         = mm->x,
                                      .low_x     = tile_row,
                                      .block     = tile_row,
                                      .n_steps   = bt_cpu_pad(mm->k, STEP) / STEP,
                                      .from_zero = true};

    configure(TILE, TILE);
    for (int t = 0; t < AMX_STREAM_BLOCKS; t++) {
        bt_cpu_wide_begin(&tables[0][t]);
        bt_cpu_wide_begin(&tables[1][t]);
    }
    for (uint32_t n0 = 0, n_blocks; n0 < mm->n; n0 += n_blocks * TILE) {
        const void *next;

        n_blocks = amx_stream_blocks(n_tile_rows, mm->n - n0);
        next     = n0 + n_blocks * TILE < mm->n ? b_at(mm, n0 + n_blocks * TILE, 0) : mm->next;
        if (next == NULL) next = mm->packed;
        for (int up = 0; up <= (mm->up != 0); up++) {
            n.from   = narrow_at(mm, n0, up * mm->up);
            n.tables = tables[up];
            s.b      = n.from.packed;
            s.next   = !up && mm->up != 0 ? narrow_at(mm, n0, mm->up).packed : next;
            s.sums   = sums[up];
            if (mm->kind == BT_WEIGHT_BF16)
                bt_cpu_amx_stream_run(&s, n_tile_rows, n_blocks);
            else
                bt_cpu_amx_stream_narrow(&s, &n, n_tile_rows, n_blocks);
        }
        put_blocks(mm, n_tile_rows * TILE_SUMS, TILE, n0, bt_min_u32(mm->n - n0, n_blocks * TILE),
                   past, sums[0], sums[1]);
    }
    _tile_release();
    if (past) _mm_sfence();
}

/* The same, weights of 4 bits: all columns of gate, then of up. */
static void run_int4(const bt_cpu_mm_tiles *mm)
{
    uint32_t  ld      = bt_cpu_pad(mm->n, TILE);
    float    *sums[2] = {mm->sums, mm->sums + (size_t)mm->m * ld};
    bool      past    = passes(mm);
    bt_cpu_mm part    = {
           .x = mm->x, .ld_x = STEP, .kind = mm->kind, .ld_y = ld, .m = mm->m, .n = mm->n, .k = mm->k};

    for (int up = 0; up <= (mm->up != 0); up++) {
        part.packed = weight_at(mm->packed, mm->kind, up * mm->up);
        part.y      = sums[up];
        part.after  = !up && mm->up != 0 ? weight_at(mm->packed, mm->kind, mm->up) : mm->next;
        bt_cpu_amx_int4(&part, TILE_ELEMS, (size_t)mm->k * TILE);
    }
    _tile_release();
    put_blocks(mm, TILE, ld, 0, mm->n, past, sums[0], sums[1]);
    if (past) _mm_sfence();
}

void bt_cpu_mm_tile32_amx_tiles(const bt_cpu_mm_tiles *mm)
{
    uint32_t most = mm->kind == BT_WEIGHT_BF16 ? AMX_STREAM_ROWS : AMX_NARROW_ROWS;

    if (mm->m > most)
        run_panels(mm);
    else if (mm->kind == BT_WEIGHT_INT4)
        run_int4(mm);
    else
        run_stream(mm);
}

/* device/cpu/gemm.c - a list of products as one list of chunks for the pool.
 *
 * A chunk is some rows times some columns of one product, over all of its k, so how the work is cut
 * changes no bit.  Cuts follow the shapes: enough weight bytes to be worth a hand to the pool; in
 * tiles few enough that the chunk's weights stay in the second-level cache while its rows pass;
 * else many, since each chunk stages its x, and reads its weights once whatever they are.
 *
 * For a table with tiles, x of many rows becomes tiles first, once for all columns; as many
 * products of a list as there is room for go together. */
#include "device/cpu/gemm.h"

#include <string.h>

#include "core/minmax.h"
#include "device/cpu/linear.h"

enum {
    MIN_COLS  = 32,
    END_COLS  = 64, /* of a last chunk, at least */
    MIN_ROWS  = 32,
    SMALL_NS  = 8000,      /* not worth sharing, even with a thread that is awake */
    FEW_ELEMS = 512 << 10, /* of the weights for one or two rows */
    /* Of one or two tiles of rows: past two, three blocks of 16 columns go at a time. */
    FEW_TILES_COLS = 384
};

typedef struct {
    uint32_t rows, cols; /* of a chunk */
    uint32_t n_row_cuts, n_col_cuts;
    uint32_t n_wide, narrow; /* only the first n_wide of the latter are so wide, others narrow */
} cut;

/* Elements of x as tiles; 0 where x is read as it lies. */
static size_t tile_elems(const bt_cpu_gemms *job, const bt_gemm *g)
{
    if (job->all_tiles) return bt_cpu_tiled_elems(g->m, g->w->k);
    if (job->dev->kernels->mm_tiles == NULL || g->m <= BT_CPU_UNTILED_ROWS ||
        bt_cpu_tiled_elems(BT_CPU_TILE_ROWS, g->w->k) > BT_CPU_TILE_ELEMS)
        return 0;
    return bt_cpu_tiled_elems(g->m, g->w->k);
}

/* Columns that are cut: of gate and up only those of gate. */
static uint32_t n_cols(const bt_cpu_gemms *job, const bt_gemm *g)
{
    return job->act != NULL ? g->w->n / 2 : g->w->n;
}

/* Many rows want many columns, since each reads the other's bytes, the more where x comes from
 * further away than the second-level cache; with few rows the bytes of the weights are the work. */
static uint32_t widest_cols(const bt_cpu_gemms *job, const bt_gemm *g)
{
    uint32_t cols = BT_CPU_CHUNK_COLS;

    if (tile_elems(job, g) == 0) {
        uint32_t few = FEW_ELEMS / bt_cpu_pad(g->w->k, 32) / MIN_COLS * MIN_COLS;

        return g->m > 2 ? BT_CPU_CHUNK_COLS * 2 : bt_min_u32(few, BT_CPU_CHUNK_COLS);
    }
    if (bt_cpu_tiled_elems(bt_min_u32(g->m, BT_CPU_CHUNK_ROWS), g->w->k) > BT_CPU_NEAR_ELEMS)
        cols = BT_CPU_WIDE_COLS;
    else if (g->m <= 2 * BT_CPU_TILE_ROWS)
        cols = FEW_TILES_COLS;
    return job->act != NULL ? cols / 2 : cols;
}

/* Whether no product with rows follows. */
static bool is_last(const bt_cpu_gemms *job, const bt_gemm *g)
{
    while (++g < job->gemms + job->n_gemms)
        if (g->m != 0) return false;
    return true;
}

/* The list's end goes in smaller pieces, so that the threads come to it together; not where rows
 * are cut too, since there are many chunks then. */
static void cut_columns(const bt_cpu_gemms *job, const bt_gemm *g, cut *c)
{
    uint32_t n = n_cols(job, g), n_threads = job->dev->n_threads;

    c->n_wide = n / c->cols;
    c->narrow = c->cols;
    if (n_threads > 1 && c->n_row_cuts == 1 && c->cols > END_COLS && is_last(job, g)) {
        c->n_wide = c->n_wide > n_threads ? c->n_wide - n_threads : 0;
        c->narrow = bt_max_u32(c->cols / 4 / MIN_COLS * MIN_COLS, END_COLS);
    }
    c->n_col_cuts = c->n_wide + (n - c->n_wide * c->cols + c->narrow - 1) / c->narrow;
}

/* Where the i-th cut begins, and the one before it ends. */
static uint32_t first_col(const cut *c, uint32_t i)
{
    return bt_min_u32(i, c->n_wide) * c->cols + (i > c->n_wide ? i - c->n_wide : 0) * c->narrow;
}

static cut cut_of(const bt_cpu_gemms *job, const bt_gemm *g)
{
    cut      c;
    uint32_t cols = widest_cols(job, g) >> job->finer;

    c.cols       = cols < MIN_COLS ? MIN_COLS : cols / MIN_COLS * MIN_COLS;
    c.n_row_cuts = bt_cpu_pad(g->m, BT_CPU_CHUNK_ROWS) / BT_CPU_CHUNK_ROWS;
    c.rows       = BT_CPU_CHUNK_ROWS;
    cut_columns(job, g, &c);
    if (c.n_row_cuts != 0) c.rows = bt_cpu_pad((g->m + c.n_row_cuts - 1) / c.n_row_cuts, MIN_ROWS);
    return c;
}

static uint32_t product_chunks(const bt_cpu_gemms *job, const bt_gemm *g)
{
    cut c = cut_of(job, g);

    return c.n_row_cuts * c.n_col_cuts;
}

/* Whether the product reads the same x as the one before it. */
static bool shares_x(const bt_cpu_gemms *job, const bt_gemm *g)
{
    return g != job->gemms && job->x_rows == NULL && g->x == g[-1].x && g->ld_x == g[-1].ld_x &&
           g->m == g[-1].m && g->w->k == g[-1].w->k;
}

static uint32_t tiling_chunks(const bt_cpu_gemms *job, const bt_gemm *g)
{
    return tile_elems(job, g) == 0 || shares_x(job, g)
               ? 0
               : bt_cpu_pad(g->m, BT_CPU_TILE_ROWS) / BT_CPU_TILE_ROWS;
}

/* Finds the product that the chunk belongs to, whose own chunk `at->chunk` it is, and whose tiles
 * begin at `at->tiles` and `at->act`; chunks of a member ascend, so the search goes on where the
 * last one ended.
 */
static const bt_gemm *find(const bt_cpu_gemms *job, bt_cpu_member *at, uint32_t chunk,
                           uint32_t (*n_chunks)(const bt_cpu_gemms *job, const bt_gemm *g))
{
    for (;; at->gemm++) {
        const bt_gemm *g = &job->gemms[at->gemm];
        uint32_t       n = n_chunks(job, g);

        at->chunk = chunk - at->first_chunk;
        if (at->chunk < n) return g;
        at->first_chunk += n;
        if (at->gemm + 1 < job->n_gemms && !shares_x(job, g + 1)) at->tiles += tile_elems(job, g);
        if (job->act != NULL) at->act += bt_cpu_tiled_elems(g->m, n_cols(job, g));
    }
}

/* Tile after tile: a row's lines lie 1 KiB apart there, too many for their sets of a first-level
 * cache. */
void bt_cpu_make_tiles(const bt_bf16 *x, size_t ld_x, const uint32_t *x_row, uint32_t m0,
                       uint32_t n_rows, uint32_t k, bt_bf16 *tiles)
{
    const bt_bf16 *rows[BT_CPU_TILE_ROWS];

    for (uint32_t r = 0; r < n_rows; r++)
        rows[r] = x + (x_row != NULL ? x_row[m0 + r] : m0 + r) * ld_x;
    for (uint32_t k0 = 0; k0 < k; k0 += BT_CPU_TILE_COLS) {
        uint32_t n = bt_min_u32(k - k0, BT_CPU_TILE_COLS);

        for (uint32_t r = 0; r < BT_CPU_TILE_ROWS; r++, tiles += BT_CPU_TILE_COLS) {
            if (r < n_rows && n == BT_CPU_TILE_COLS) {
                memcpy(tiles, rows[r] + k0, BT_CPU_TILE_COLS * sizeof(*tiles));
                continue;
            }
            memset(tiles, 0, BT_CPU_TILE_COLS * sizeof(*tiles));
            if (r < n_rows) memcpy(tiles, rows[r] + k0, n * sizeof(*tiles));
        }
    }
}

static void tile_chunk(void *ctx, uint32_t chunk, uint32_t member)
{
    const bt_cpu_gemms *job  = ctx;
    bt_cpu_member      *self = &job->dev->members[member];
    const bt_gemm      *g    = find(job, self, chunk, tiling_chunks);
    uint32_t            k = g->w->k, m0 = self->chunk * BT_CPU_TILE_ROWS;

    bt_cpu_make_tiles(g->x, g->ld_x, job->x_rows != NULL ? job->x_rows[self->gemm] : NULL, m0,
                      bt_min_u32(g->m - m0, BT_CPU_TILE_ROWS), k,
                      job->tiles + self->tiles + (size_t)m0 * bt_cpu_pad(k, BT_CPU_TILE_COLS));
}

/* Those of the chunk that this thread will probably take next, when all are equally fast. */
static const void *next_weights(const bt_cpu_gemms *job, const bt_cpu_member *self, uint32_t chunk)
{
    bt_cpu_member  at = *self;
    const bt_gemm *g;
    cut            c;

    if (job->n_chunks - chunk <= job->dev->n_threads) return NULL;
    g = find(job, &at, chunk + job->dev->n_threads, product_chunks);
    c = cut_of(job, g);
    return bt_cpu_linear_columns(g->w, first_col(&c, at.chunk % c.n_col_cuts));
}

/* A chunk whose x is in tiles; m0 and n0 are its first row and column. */
static void multiply_tiles(const bt_cpu_gemms *job, const bt_gemm *g, const bt_cpu_member *self,
                           uint32_t m0, uint32_t n0, bt_cpu_mm_tiles *mm)
{
    mm->x       = job->tiles + self->tiles + m0 * (size_t)bt_cpu_pad(mm->k, BT_CPU_TILE_COLS);
    mm->sums    = self->scratch;
    mm->y       = (char *)g->y + (m0 * g->ld_y + n0) * bt_dtype_bytes(g->y_dtype);
    mm->ld_y    = g->ld_y;
    mm->y_dtype = g->y_dtype;
    mm->weight  = g->weight != NULL ? g->weight + m0 : NULL;
    if (job->act != NULL) {
        mm->up   = bt_cpu_packed_elems(n_cols(job, g), mm->k);
        mm->ld_y = bt_cpu_tiled_elems(BT_CPU_TILE_ROWS, n_cols(job, g));
        mm->y =
            job->act + self->act + m0 / BT_CPU_TILE_ROWS * mm->ld_y + (size_t)n0 * BT_CPU_TILE_ROWS;
    }
    job->dev->kernels->mm_tiles(mm);
}

/* Sums go to scratch: rows of y may lie a multiple of 4 KiB apart, in one set of a cache. */
static void multiply_rows(const bt_cpu_gemms *job, const bt_gemm *g, const bt_cpu_member *self,
                          uint32_t m0, uint32_t n0, bt_cpu_mm *mm)
{
    const bt_cpu_kernels *kern = job->dev->kernels;

    mm->x    = g->x + m0 * g->ld_x;
    mm->ld_x = g->ld_x;
    mm->y    = self->scratch;
    mm->ld_y = mm->n;
    kern->mm[job->role](mm);
    for (uint32_t r = 0; r < mm->m; r++) {
        const float *sums = mm->y + r * mm->ld_y;
        size_t       to   = (m0 + r) * g->ld_y + n0;

        if (g->y_dtype == BT_F32)
            memcpy((float *)g->y + to, sums, mm->n * sizeof(*sums));
        else if (g->weight != NULL)
            kern->rows->scale_bf16(sums, mm->n, g->weight[m0 + r], (bt_bf16 *)g->y + to);
        else
            kern->rows->to_bf16(sums, mm->n, (bt_bf16 *)g->y + to);
    }
}

static void run_chunk(void *ctx, uint32_t chunk, uint32_t member)
{
    const bt_cpu_gemms *job  = ctx;
    bt_cpu_member      *self = &job->dev->members[member];
    const bt_gemm      *g    = find(job, self, chunk, product_chunks);
    cut                 c    = cut_of(job, g);
    /* Column cuts of the same rows follow each other: the rows are in cache then. */
    uint32_t m0 = self->chunk / c.n_col_cuts * c.rows, col = self->chunk % c.n_col_cuts;
    uint32_t n0 = first_col(&c, col);
    uint32_t m  = bt_min_u32(g->m - m0, c.rows);
    uint32_t n  = bt_min_u32(n_cols(job, g), first_col(&c, col + 1)) - n0;

    if (tile_elems(job, g) != 0)
        multiply_tiles(job, g, self, m0, n0,
                       &(bt_cpu_mm_tiles){.packed = bt_cpu_linear_columns(g->w, n0),
                                          .kind   = g->w->kind,
                                          .side   = bt_cpu_linear_side(g->w, n0),
                                          .next   = next_weights(job, self, chunk),
                                          .m      = m,
                                          .n      = n,
                                          .k      = g->w->k});
    else
        multiply_rows(job, g, self, m0, n0,
                      &(bt_cpu_mm){.packed = bt_cpu_linear_columns(g->w, n0),
                                   .kind   = g->w->kind,
                                   .side   = bt_cpu_linear_side(g->w, n0),
                                   .after  = next_weights(job, self, chunk),
                                   .m      = m,
                                   .n      = n,
                                   .k      = g->w->k});
}

/* A guess at the time on one thread. */
static uint64_t guess_ns(const bt_gemm *g)
{
    uint64_t weights = (uint64_t)g->w->n * g->w->k;

    return g->m == 0 ? 0 : weights / 8 + weights * g->m / 128;
}

static bt_status check(uint32_t n_gemms, const bt_gemm *gemms)
{
    bt_status st = BT_OK;

    for (uint32_t i = 0; i < n_gemms; i++) {
        const bt_gemm *g = &gemms[i];

        BT_REQUIRE(g->weight == NULL || g->y_dtype == BT_BF16, BT_ERR_INVALID_ARG,
                   "product %u of %u weighs rows of fp32, expected bf16", i, n_gemms);
        BT_REQUIRE(g->m <= 1 || (g->ld_x >= g->w->k && g->ld_y >= g->w->n), BT_ERR_INVALID_ARG,
                   "product %u of %u, [%u, %u], has row strides %zu and %zu: expected %u and %u or "
                   "more",
                   i, n_gemms, g->w->n, g->w->k, g->ld_x, g->ld_y, g->w->k, g->w->n);
    }
out:
    return st;
}

static uint32_t count(const bt_cpu_gemms *job,
                      uint32_t (*n_chunks)(const bt_cpu_gemms *job, const bt_gemm *g))
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < job->n_gemms; i++)
        n += n_chunks(job, &job->gemms[i]);
    return n;
}

static void run(bt_cpu_gemms *job, uint32_t n_chunks, bt_cpu_task task, bool alone)
{
    const bt_device_cpu *cpu = job->dev;

    for (uint32_t t = 0; t < cpu->n_threads; t++) {
        cpu->members[t].gemm = cpu->members[t].first_chunk = 0;
        cpu->members[t].tiles = cpu->members[t].act = 0;
    }
    for (uint32_t c = 0; alone && c < n_chunks; c++)
        task(job, c, 0);
    if (!alone) bt_cpu_pool_run(cpu->pool, n_chunks, task, job);
}

static bool worth_one_thread(const bt_cpu_gemms *job)
{
    uint64_t ns = 0;

    for (uint32_t i = 0; i < job->n_gemms; i++)
        ns += guess_ns(&job->gemms[i]);
    return job->dev->n_threads == 1 || ns <= SMALL_NS;
}

void bt_cpu_gemms_tile(bt_cpu_gemms *job)
{
    uint32_t n_tilings = count(job, tiling_chunks);

    if (n_tilings != 0) run(job, n_tilings, tile_chunk, worth_one_thread(job));
}

void bt_cpu_gemms_run(bt_cpu_gemms *job)
{
    const bt_device_cpu *cpu   = job->dev;
    bool                 alone = worth_one_thread(job);

    job->finer    = 0;
    job->n_chunks = count(job, product_chunks);
    while (!alone && job->n_chunks < BT_CPU_CHUNKS_PER_THREAD * cpu->n_threads &&
           BT_CPU_WIDE_COLS >> job->finer > MIN_COLS) {
        job->finer++;
        job->n_chunks = count(job, product_chunks);
    }
    run(job, job->n_chunks, run_chunk, alone);
}

/* A product of more rows than tiles fit of, some rows at a time. */
static void run_sliced(const bt_cpu_gemms *job)
{
    const bt_gemm *g = job->gemms;
    uint32_t rows = BT_CPU_TILE_ELEMS / bt_cpu_pad(g->w->k, BT_CPU_TILE_COLS) / BT_CPU_TILE_ROWS *
                    BT_CPU_TILE_ROWS;
    size_t y = bt_dtype_bytes(g->y_dtype);

    for (uint32_t m0 = 0; m0 < g->m; m0 += rows) {
        bt_gemm      slice = *g;
        bt_cpu_gemms part  = *job;

        slice.x = g->x + m0 * g->ld_x;
        slice.y = (char *)g->y + m0 * g->ld_y * y;
        slice.m = bt_min_u32(g->m - m0, rows);
        if (g->weight != NULL) slice.weight = g->weight + m0;
        part.gemms = &slice;
        bt_cpu_gemms_tile(&part);
        bt_cpu_gemms_run(&part);
    }
}

bt_status bt_cpu_gemm(bt_device *dev, bt_role role, uint32_t n_gemms, const bt_gemm *gemms)
{
    bt_status      st  = BT_OK;
    bt_device_cpu *cpu = (bt_device_cpu *)dev;
    bt_cpu_gemms   job = {.dev = cpu, .role = role, .tiles = cpu->tiles};

    BT_TRY(check(n_gemms, gemms));
    for (uint32_t first = 0; first < n_gemms; first += job.n_gemms) {
        size_t elems = 0;

        job.gemms = gemms + first;
        for (job.n_gemms = 0; first + job.n_gemms < n_gemms; job.n_gemms++) {
            const bt_gemm *g = &gemms[first + job.n_gemms];

            elems += shares_x(&job, g) ? 0 : tile_elems(&job, g);
            if (elems > BT_CPU_TILE_ELEMS) break;
        }
        if (job.n_gemms != 0) {
            bt_cpu_gemms_tile(&job);
            bt_cpu_gemms_run(&job);
        } else {
            job.n_gemms = 1;
            run_sliced(&job);
        }
    }
out:
    return st;
}

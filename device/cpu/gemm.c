/* device/cpu/gemm.c - a list of products as one list of chunks for the pool.
 *
 * A chunk is some rows times some columns of one product, over all of its k, so how the work is cut
 * changes no bit.  Cuts follow the shapes: enough weight bytes to be worth a hand to the pool, few
 * enough that the chunk's weights stay in the second-level cache while its rows pass.
 *
 * For a table with tiles, x of many rows becomes tiles first, once for all columns; as many
 * products of a list as there is room for go together. */
#include <string.h>

#include "device/cpu/device_cpu.h"
#include "device/cpu/linear.h"

enum {
    CHUNK_WEIGHT_BYTES = 64 << 10,
    MIN_COLS           = 32,
    CHUNKS_PER_THREAD  = 8,     /* so that a slow thread does not hold up the others */
    SMALL_NS           = 30000, /* not worth waking another thread */
    FEW_ROWS           = 16,    /* x is not worth making into tiles */
    TILE_ROWS          = 16,
    TILE_COLS          = 32
};

typedef struct {
    uint32_t rows, cols; /* of a chunk */
    uint32_t n_row_cuts, n_col_cuts;
} cut;

typedef struct {
    const bt_device_cpu *dev;
    bt_role              role;
    uint32_t             n_gemms, finer; /* how often the widths of chunks are halved */
    const bt_gemm       *gemms;
} gemm_job;

static uint32_t min_u32(uint32_t a, uint32_t b) { return a < b ? a : b; }

/* Many rows want many columns, since each reads the other's bytes; with few rows the bytes of the
 * weights are the work. */
static uint32_t widest_cols(const bt_gemm *g)
{
    if (g->m > FEW_ROWS) return BT_CPU_CHUNK_COLS;
    if (g->m > 2) return BT_CPU_CHUNK_COLS / 2;
    return min_u32(CHUNK_WEIGHT_BYTES / (2 * bt_cpu_pad(g->w->k, 32)) / MIN_COLS * MIN_COLS,
                   BT_CPU_CHUNK_COLS);
}

static cut cut_of(const gemm_job *job, const bt_gemm *g)
{
    cut      c;
    uint32_t cols = widest_cols(g) >> job->finer;

    c.cols       = cols < MIN_COLS ? MIN_COLS : cols / MIN_COLS * MIN_COLS;
    c.rows       = BT_CPU_CHUNK_ROWS;
    c.n_row_cuts = bt_cpu_pad(g->m, c.rows) / c.rows;
    c.n_col_cuts = bt_cpu_pad(g->w->n, c.cols) / c.cols;
    return c;
}

/* Elements of x as tiles; 0 where x is read as it lies. */
static size_t tile_elems(const gemm_job *job, const bt_gemm *g)
{
    size_t k = bt_cpu_pad(g->w->k, TILE_COLS);

    if (!job->dev->kernels->tiles || g->m <= FEW_ROWS || k > BT_CPU_TILE_ELEMS / TILE_ROWS)
        return 0;
    return bt_cpu_pad(g->m, TILE_ROWS) * k;
}

static uint32_t product_chunks(const gemm_job *job, const bt_gemm *g)
{
    cut c = cut_of(job, g);

    return c.n_row_cuts * c.n_col_cuts;
}
static uint32_t tiling_chunks(const gemm_job *job, const bt_gemm *g)
{
    return tile_elems(job, g) == 0 ? 0 : bt_cpu_pad(g->m, TILE_ROWS) / TILE_ROWS;
}

/* Finds the product that the chunk belongs to, whose own chunk `at->chunk` it is, and whose tiles
 * begin at `at->tiles`; chunks of a member ascend, so the search goes on where the last one ended.
 */
static const bt_gemm *find(const gemm_job *job, bt_cpu_member *at, uint32_t chunk,
                           uint32_t (*n_chunks)(const gemm_job *job, const bt_gemm *g))
{
    for (;; at->gemm++) {
        const bt_gemm *g = &job->gemms[at->gemm];
        uint32_t       n = n_chunks(job, g);

        at->chunk = chunk - at->first_chunk;
        if (at->chunk < n) return g;
        at->first_chunk += n;
        at->tiles += tile_elems(job, g);
    }
}

/* Sixteen rows of x become tiles of 32 k, +0 beyond the last row and the last k. */
static void tile_chunk(void *ctx, uint32_t chunk, uint32_t member)
{
    const gemm_job *job  = ctx;
    bt_cpu_member  *self = &job->dev->members[member];
    const bt_gemm  *g    = find(job, self, chunk, tiling_chunks);
    uint32_t        k = g->w->k, k_pad = bt_cpu_pad(k, TILE_COLS), m0 = self->chunk * TILE_ROWS;
    bt_bf16        *tiles = job->dev->tiles + self->tiles + (size_t)m0 * k_pad;

    for (uint32_t r = 0; r < TILE_ROWS; r++, tiles += TILE_COLS) {
        const bt_bf16 *row  = g->x + (m0 + r) * g->ld_x;
        bool           real = m0 + r < g->m;

        for (uint32_t k0 = 0; k0 < k_pad; k0 += TILE_COLS) {
            bt_bf16 *out = tiles + (size_t)k0 * TILE_ROWS;
            uint32_t n   = !real ? 0 : min_u32(k - k0, TILE_COLS);

            if (n == TILE_COLS) {
                memcpy(out, row + k0, TILE_COLS * sizeof(*out));
                continue;
            }
            memset(out, 0, TILE_COLS * sizeof(*out));
            if (n != 0) memcpy(out, row + k0, n * sizeof(*out));
        }
    }
}

static void run_chunk(void *ctx, uint32_t chunk, uint32_t member)
{
    const gemm_job       *job  = ctx;
    bt_cpu_member        *self = &job->dev->members[member];
    const bt_cpu_kernels *kern = job->dev->kernels;
    const bt_gemm        *g    = find(job, self, chunk, product_chunks);
    cut                   c    = cut_of(job, g);
    /* Row cuts of the same columns follow each other: the weights are in cache then. */
    uint32_t  n0 = self->chunk / c.n_row_cuts * c.cols, m0 = self->chunk % c.n_row_cuts * c.rows;
    size_t    to = m0 * g->ld_y + n0;
    bt_cpu_mm mm = {.x      = g->x + m0 * g->ld_x,
                    .ld_x   = g->ld_x,
                    .packed = g->w->packed + bt_cpu_packed_elems(n0, g->w->k),
                    .m      = min_u32(g->m - m0, c.rows),
                    .n      = min_u32(g->w->n - n0, c.cols),
                    .k      = g->w->k};

    if (tile_elems(job, g) != 0) {
        mm.tiled = true;
        mm.x     = job->dev->tiles + self->tiles + (size_t)m0 * bt_cpu_pad(g->w->k, TILE_COLS);
    }
    if (g->y_dtype == BT_F32) {
        mm.y    = (float *)g->y + to;
        mm.ld_y = g->ld_y;
        kern->mm[job->role](&mm);
        return;
    }
    mm.y    = self->scratch;
    mm.ld_y = c.cols;
    kern->mm[job->role](&mm);
    for (uint32_t r = 0; r < mm.m; r++)
        kern->rows->to_bf16(mm.y + r * mm.ld_y, mm.n, (bt_bf16 *)g->y + to + r * g->ld_y);
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

        BT_REQUIRE(g->y_dtype == BT_F32 || g->y_dtype == BT_BF16, BT_ERR_INVALID_ARG,
                   "product %u of %u has a result of dtype %d, neither bf16 nor fp32", i, n_gemms,
                   (int)g->y_dtype);
        BT_REQUIRE(g->m <= 1 || (g->ld_x >= g->w->k && g->ld_y >= g->w->n), BT_ERR_INVALID_ARG,
                   "product %u of %u, [%u, %u], has row strides %zu and %zu", i, n_gemms, g->w->n,
                   g->w->k, g->ld_x, g->ld_y);
    }
out:
    return st;
}

static uint32_t count(const gemm_job *job,
                      uint32_t (*n_chunks)(const gemm_job *job, const bt_gemm *g))
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < job->n_gemms; i++)
        n += n_chunks(job, &job->gemms[i]);
    return n;
}

static void run(gemm_job *job, uint32_t n_chunks, bt_cpu_task task, bool alone)
{
    const bt_device_cpu *cpu = job->dev;

    for (uint32_t t = 0; t < cpu->n_threads; t++) {
        cpu->members[t].gemm = cpu->members[t].first_chunk = 0;
        cpu->members[t].tiles                              = 0;
    }
    for (uint32_t c = 0; alone && c < n_chunks; c++)
        task(job, c, 0);
    if (!alone) bt_cpu_pool_run(cpu->pool, n_chunks, task, job);
}

/* Products whose tiles fit together. */
static void run_list(gemm_job *job)
{
    const bt_device_cpu *cpu = job->dev;
    uint32_t             n_chunks, n_tilings = count(job, tiling_chunks);
    uint64_t             ns = 0;
    bool                 alone;

    for (uint32_t i = 0; i < job->n_gemms; i++)
        ns += guess_ns(&job->gemms[i]);
    alone = cpu->n_threads == 1 || ns <= SMALL_NS;
    if (n_tilings != 0) run(job, n_tilings, tile_chunk, alone);
    n_chunks = count(job, product_chunks);
    while (!alone && n_chunks < CHUNKS_PER_THREAD * cpu->n_threads &&
           BT_CPU_CHUNK_COLS >> job->finer > MIN_COLS) {
        job->finer++;
        n_chunks = count(job, product_chunks);
    }
    run(job, n_chunks, run_chunk, alone);
}

/* A product of more rows than tiles fit of, some rows at a time. */
static void run_sliced(const gemm_job *job)
{
    const bt_gemm *g = job->gemms;
    uint32_t rows    = BT_CPU_TILE_ELEMS / bt_cpu_pad(g->w->k, TILE_COLS) / TILE_ROWS * TILE_ROWS;
    size_t   y       = bt_dtype_bytes(g->y_dtype);

    for (uint32_t m0 = 0; m0 < g->m; m0 += rows) {
        bt_gemm  slice = *g;
        gemm_job part  = *job;

        slice.x    = g->x + m0 * g->ld_x;
        slice.y    = (char *)g->y + m0 * g->ld_y * y;
        slice.m    = min_u32(g->m - m0, rows);
        part.gemms = &slice;
        run_list(&part);
    }
}

bt_status bt_cpu_gemm(bt_device *dev, bt_role role, uint32_t n_gemms, const bt_gemm *gemms)
{
    bt_status st  = BT_OK;
    gemm_job  job = {.dev = (bt_device_cpu *)dev, .role = role};

    BT_TRY(check(n_gemms, gemms));
    for (uint32_t first = 0; first < n_gemms; first += job.n_gemms) {
        size_t elems = 0;

        job.gemms = gemms + first;
        job.finer = 0;
        for (job.n_gemms = 0; first + job.n_gemms < n_gemms; job.n_gemms++) {
            elems += tile_elems(&job, &gemms[first + job.n_gemms]);
            if (elems > BT_CPU_TILE_ELEMS) break;
        }
        if (job.n_gemms != 0) {
            run_list(&job);
        } else {
            job.n_gemms = 1;
            run_sliced(&job);
        }
    }
out:
    return st;
}

/* device/cpu/gemm.c - a list of products as one list of chunks for the pool.
 *
 * A chunk is some rows times some columns of one product, over all of its k, so how the work is cut
 * changes no bit.  Cuts follow the shapes: enough weight bytes to be worth a hand to the pool, few
 * enough that the chunk's weights stay in the second-level cache while its rows pass. */
#include "device/cpu/device_cpu.h"
#include "device/cpu/linear.h"

enum {
    CHUNK_WEIGHT_BYTES = 64 << 10,
    MIN_COLS           = 32,
    CHUNKS_PER_THREAD  = 4,    /* so that a slow thread does not hold up the others */
    SMALL_NS           = 30000 /* not worth waking another thread */
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
    if (g->m > 64) return BT_CPU_CHUNK_COLS;
    if (g->m > 8) return BT_CPU_CHUNK_COLS / 2;
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

/* Finds the product that the chunk belongs to; chunks of a member ascend, so the search goes on
 * where the last one ended. */
static const bt_gemm *find(const gemm_job *job, bt_cpu_member *at, uint32_t chunk, cut *cut_out)
{
    for (;; at->gemm++) {
        const bt_gemm *g = &job->gemms[at->gemm];
        uint32_t       n;

        *cut_out = cut_of(job, g);
        n        = cut_out->n_row_cuts * cut_out->n_col_cuts;
        if (chunk - at->first_chunk < n) return g;
        at->first_chunk += n;
    }
}

static void run_chunk(void *ctx, uint32_t chunk, uint32_t member)
{
    const gemm_job       *job  = ctx;
    bt_cpu_member        *self = &job->dev->members[member];
    const bt_cpu_kernels *kern = job->dev->kernels;
    cut                   c;
    const bt_gemm        *g     = find(job, self, chunk, &c);
    uint32_t              local = chunk - self->first_chunk;
    /* Row cuts of the same columns follow each other: the weights are in cache then. */
    uint32_t  n0 = local / c.n_row_cuts * c.cols, m0 = local % c.n_row_cuts * c.rows;
    size_t    to = m0 * g->ld_y + n0;
    bt_cpu_mm mm = {.x      = g->x + m0 * g->ld_x,
                    .ld_x   = g->ld_x,
                    .packed = g->w->packed + bt_cpu_packed_elems(n0, g->w->k),
                    .m      = min_u32(g->m - m0, c.rows),
                    .n      = min_u32(g->w->n - n0, c.cols),
                    .k      = g->w->k};

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

static bt_status check(const gemm_job *job, uint64_t *ns_out)
{
    bt_status st = BT_OK;
    uint64_t  ns = 0;

    for (uint32_t i = 0; i < job->n_gemms; i++) {
        const bt_gemm *g = &job->gemms[i];

        BT_REQUIRE(g->y_dtype == BT_F32 || g->y_dtype == BT_BF16, BT_ERR_INVALID_ARG,
                   "product %u of %u has a result of dtype %d, neither bf16 nor fp32", i,
                   job->n_gemms, (int)g->y_dtype);
        BT_REQUIRE(g->m <= 1 || (g->ld_x >= g->w->k && g->ld_y >= g->w->n), BT_ERR_INVALID_ARG,
                   "product %u of %u, [%u, %u], has row strides %zu and %zu", i, job->n_gemms,
                   g->w->n, g->w->k, g->ld_x, g->ld_y);
        ns += guess_ns(g);
    }
    *ns_out = ns;
out:
    return st;
}

static uint32_t count_chunks(const gemm_job *job)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < job->n_gemms; i++) {
        cut c = cut_of(job, &job->gemms[i]);

        n += c.n_row_cuts * c.n_col_cuts;
    }
    return n;
}

bt_status bt_cpu_gemm(bt_device *dev, bt_role role, uint32_t n_gemms, const bt_gemm *gemms)
{
    bt_status      st  = BT_OK;
    bt_device_cpu *cpu = (bt_device_cpu *)dev;
    gemm_job       job = {.dev = cpu, .role = role, .n_gemms = n_gemms, .gemms = gemms};
    uint32_t       n_chunks;
    uint64_t       ns;

    BT_TRY(check(&job, &ns));
    for (uint32_t t = 0; t < cpu->n_threads; t++)
        cpu->members[t].gemm = cpu->members[t].first_chunk = 0;
    n_chunks = count_chunks(&job);
    if (cpu->n_threads == 1 || ns <= SMALL_NS) {
        for (uint32_t c = 0; c < n_chunks; c++)
            run_chunk(&job, c, 0);
        return st;
    }
    while (n_chunks < CHUNKS_PER_THREAD * cpu->n_threads &&
           BT_CPU_CHUNK_COLS >> job.finer > MIN_COLS) {
        job.finer++;
        n_chunks = count_chunks(&job);
    }
    bt_cpu_pool_run(cpu->pool, n_chunks, run_chunk, &job);
out:
    return st;
}

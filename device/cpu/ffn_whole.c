/* device/cpu/ffn_whole.c - many feed-forward blocks, each on one thread: the experts of a layer.
 *
 * A thread makes tiles of the block's rows, and multiplies them by gate and up and what comes of it
 * by down.  Tiles and activation stay in its second-level cache meanwhile, and the weights come one
 * column after the other.  Blocks of many rows begin first, so that the threads end together. */
#include <stdlib.h>

#include "core/minmax.h"
#include "device/cpu/device_cpu.h"
#include "device/cpu/linear.h"

enum {
    TILE       = BT_CPU_TILE_ROWS * BT_CPU_TILE_COLS,
    MAX_SHARES = 512 /* of a list */
};

/* Rows of a block that one thread takes. */
typedef struct {
    const bt_ffn *f;
    uint32_t      m0, m;
} share;

typedef struct {
    bt_device_cpu *cpu;
    size_t         elems; /* of tiles that each thread has */
    uint32_t       n_shares;
    share          shares[MAX_SHARES];
} whole_job;

/* The first n columns of one of a share's products, some at a time; `mm` has what all of them have
 * in common, and `after` is read next. */
static void multiply(const whole_job *job, const bt_linear *w, uint32_t n, uint32_t cols,
                     const void *after, bt_cpu_mm_tiles *mm)
{
    char  *y     = mm->y;
    size_t y_col = mm->up != 0 ? BT_CPU_TILE_ROWS * sizeof(bt_bf16) : bt_dtype_bytes(mm->y_dtype);

    for (uint32_t n0 = 0; n0 < n; n0 += mm->n) {
        mm->n      = bt_min_u32(n - n0, cols);
        mm->packed = bt_cpu_linear_columns(w, n0);
        mm->kind   = w->kind;
        mm->side   = bt_cpu_linear_side(w, n0);
        mm->y      = y + n0 * y_col;
        mm->next   = n0 + mm->n < n ? bt_cpu_linear_columns(w, n0 + mm->n) : after;
        job->cpu->kernels->mm_tiles(mm);
    }
}

static void run_share(void *ctx, uint32_t chunk, uint32_t member)
{
    const whole_job *job = ctx;
    const share     *s   = &job->shares[chunk];
    const bt_ffn    *f   = s->f;
    uint32_t         k = f->gate_up->k, dim = f->down->k;
    bt_bf16         *x     = job->cpu->tiles + member * job->elems;
    bt_bf16         *act   = x + bt_cpu_tiled_elems(s->m, k);
    const void      *after = chunk + job->cpu->n_threads < job->n_shares
                                 ? s[job->cpu->n_threads].f->gate_up->packed
                                 : NULL;

    for (uint32_t i = 0; i < s->m; i += BT_CPU_TILE_ROWS)
        bt_cpu_make_tiles(f->x, f->ld_x, f->x_row, s->m0 + i,
                          bt_min_u32(s->m - i, BT_CPU_TILE_ROWS), k,
                          x + (size_t)i * bt_cpu_pad(k, BT_CPU_TILE_COLS));
    multiply(job, f->gate_up, dim, BT_CPU_WIDE_COLS / 2, f->down->packed,
             &(bt_cpu_mm_tiles){.x       = x,
                                .up      = bt_cpu_packed_elems(dim, k),
                                .y       = act,
                                .ld_y    = bt_cpu_tiled_elems(BT_CPU_TILE_ROWS, dim),
                                .y_dtype = BT_BF16,
                                .sums    = job->cpu->members[member].scratch,
                                .m       = s->m,
                                .k       = k});
    multiply(job, f->down, f->down->n, BT_CPU_WIDE_COLS, after,
             &(bt_cpu_mm_tiles){.x    = act,
                                .y    = (char *)f->y + s->m0 * f->ld_y * bt_dtype_bytes(f->y_dtype),
                                .ld_y = f->ld_y,
                                .y_dtype = f->y_dtype,
                                .weight  = f->weight != NULL ? f->weight + s->m0 : NULL,
                                .sums    = job->cpu->members[member].scratch,
                                .m       = s->m,
                                .k       = dim});
}

/* Those of most rows first. */
static int by_rows(const void *a, const void *b)
{
    const share *x = a, *y = b;

    return x->m != y->m ? (x->m < y->m) - (x->m > y->m) : (x->f > y->f) - (x->f < y->f);
}

/* Cuts a block into shares; false: its rows do not fit, or too many shares have been made. */
static bool add_shares(whole_job *job, const bt_ffn *f)
{
    size_t   fits = bt_cpu_ffn_rows(f, job->elems);
    uint32_t most = fits < BT_CPU_CHUNK_ROWS ? (uint32_t)fits : BT_CPU_CHUNK_ROWS, n_cuts, rows;

    if (f->m == 0) return true;
    if (most == 0) return false;
    n_cuts = (f->m + most - 1) / most;
    if (job->n_shares + n_cuts > MAX_SHARES) return false;
    rows = bt_cpu_pad((f->m + n_cuts - 1) / n_cuts, BT_CPU_TILE_ROWS);
    for (uint32_t m0 = 0; m0 < f->m; m0 += rows)
        job->shares[job->n_shares++] = (share){f, m0, bt_min_u32(f->m - m0, rows)};
    return true;
}

bool bt_cpu_ffn_whole(bt_device_cpu *cpu, uint32_t n_ffns, const bt_ffn *ffns)
{
    whole_job job = {.cpu = cpu, .elems = BT_CPU_TILE_ELEMS / cpu->n_threads};

    job.elems = job.elems / TILE * TILE;
    for (uint32_t i = 0; i < n_ffns; i++)
        if (!add_shares(&job, &ffns[i])) return false;
    if (job.n_shares < BT_CPU_CHUNKS_PER_THREAD * cpu->n_threads) return false;
    qsort(job.shares, job.n_shares, sizeof(job.shares[0]), by_rows);
    bt_cpu_pool_run(cpu->pool, job.n_shares, run_share, &job);
    return true;
}

/* device/cuda/products.c - a list of products, or of blocks, as few launches. */
#include "device/cuda/device_cuda.h"
#include "device/cuda/gemm.h"
#include "device/linear.h"

/* Elements from one row pointer to another, when it is a whole number of them and not negative. */
static bool distance(const void *from, const void *to, size_t elem_bytes, size_t *elems_out)
{
    uintptr_t a = (uintptr_t)from, b = (uintptr_t)to;

    if (b < a || (b - a) % elem_bytes != 0) return false;
    *elems_out = (b - a) / elem_bytes;
    return true;
}

static bool same_shape(const bt_gemm *a, const bt_gemm *b)
{
    return a->w->n == b->w->n && a->w->k == b->w->k && a->ld_x == b->ld_x && a->ld_y == b->ld_y &&
           a->y_dtype == b->y_dtype && a->w->kind == b->w->kind;
}

/* How many of g[0 .. n) are one launch: of equal shape, and with as many rows at one stride, as
 * heads have them. */
static uint32_t run_of(const bt_gemm *g, uint32_t n, size_t *x_group, size_t *y_group)
{
    size_t   y_bytes = bt_dtype_bytes(g->y_dtype), x_step, y_step;
    uint32_t count   = 1;

    *x_group = *y_group = 0;
    for (; count < n && count < BT_CUDA_MAX_GROUPS; count++) {
        const bt_gemm *last = &g[count - 1], *next = &g[count];

        if (!same_shape(g, next) || next->m != g->m ||
            !distance(last->x, next->x, sizeof(bt_bf16), &x_step) ||
            !distance(last->y, next->y, y_bytes, &y_step))
            break;
        if (count == 1) {
            *x_group = x_step;
            *y_group = y_step;
        }
        if (x_step != *x_group || y_step != *y_group) break;
    }
    return count;
}

static bt_status run_group(bt_device_cuda *cuda, const bt_gemm *g, uint32_t n, size_t x_group,
                           size_t y_group)
{
    bt_cuda_gemm run = {.n        = g->w->n,
                        .kind     = g->w->kind,
                        .k        = g->w->k,
                        .n_groups = n,
                        .out      = g->y_dtype == BT_F32 ? BT_CUDA_OUT_F32 : BT_CUDA_OUT_BF16,
                        .max_rows = g->m,
                        .x_group  = x_group,
                        .y_group  = y_group,
                        .x        = g->x,
                        .ld_x     = g->ld_x,
                        .y        = g->y,
                        .ld_y     = g->ld_y};

    for (uint32_t i = 0; i < n; i++) {
        run.w[i]       = g[i].w->packed;
        run.w_scale[i] = g[i].w->scale;
    }
    return CUDA(bt_cuda_gemm_run(cuda->stream, &run));
}

static bt_status run_list(bt_device_cuda *cuda, uint32_t n_gemms, const bt_gemm *gemms)
{
    bt_status st = BT_OK;

    for (uint32_t i = 0, n; i < n_gemms; i += n) {
        size_t x_group, y_group;

        n = run_of(&gemms[i], n_gemms - i, &x_group, &y_group);
        BT_TRY(run_group(cuda, &gemms[i], n, x_group, y_group));
    }
out:
    return st;
}

/* Whether these are several products of the same rows, each a launch of its own. */
static bool of_one_x(uint32_t n_gemms, const bt_gemm *gemms)
{
    for (uint32_t i = 1; i < n_gemms; i++)
        if (gemms[i].x != gemms[0].x || gemms[i].m != gemms[0].m ||
            same_shape(&gemms[i - 1], &gemms[i]))
            return false;
    return n_gemms > 1 && gemms[0].m != 0;
}

/* The first beside the others: with few rows each leaves most of the GPU idle. */
static bt_status run_beside(bt_device *dev, uint32_t n_gemms, const bt_gemm *gemms)
{
    bt_status st = BT_OK, ended;

    BT_TRY(bt_device_fork(dev));
    st    = run_list((bt_device_cuda *)dev, n_gemms - 1, gemms + 1);
    ended = bt_device_unfork(dev);
    if (st == BT_OK) st = ended;
    if (st == BT_OK) st = run_list((bt_device_cuda *)dev, 1, gemms);
    if (st == BT_OK) st = bt_device_join(dev);
out:
    return st;
}

bt_status bt_cuda_products(bt_device *dev, bt_role role, uint32_t n_gemms, const bt_gemm *gemms)
{
    bt_device_cuda *cuda   = (bt_device_cuda *)dev;
    bool            beside = cuda->stream == cuda->main && of_one_x(n_gemms, gemms);
    bt_status       st     = BT_OK;

    (void)role; /* one arithmetic for both */
    for (uint32_t i = 0; i < n_gemms; i++)
        BT_REQUIRE(gemms[i].weight == NULL, BT_ERR_UNSUPPORTED,
                   "product %u of %u weighs its rows: not on a GPU", i, n_gemms);
    BT_TRY(beside ? run_beside(dev, n_gemms, gemms) : run_list(cuda, n_gemms, gemms));
out:
    return st;
}

/* SwiGLU within the first product, so that h is not needed. */
bt_status bt_cuda_blocks(bt_device *dev, bt_role role, uint32_t n_ffns, const bt_ffn *ffns,
                         bt_bf16 *h, bt_bf16 *act)
{
    bt_status st = BT_OK;

    (void)h;
    for (uint32_t i = 0; i < n_ffns; i++) {
        const bt_ffn *f    = &ffns[i];
        uint32_t      dim  = f->down->k;
        bt_cuda_gemm  up   = {.n        = dim,
                              .kind     = f->gate_up->kind,
                              .k        = f->gate_up->k,
                              .n_groups = 1,
                              .out      = BT_CUDA_OUT_SWIGLU,
                              .max_rows = f->m,
                              .x        = f->x,
                              .ld_x     = f->ld_x,
                              .y        = act,
                              .ld_y     = dim,
                              .w        = {f->gate_up->packed},
                              .w_scale  = {f->gate_up->scale}};
        bt_gemm       down = {.w       = f->down,
                              .x       = act,
                              .ld_x    = dim,
                              .y       = f->y,
                              .ld_y    = f->ld_y,
                              .m       = f->m,
                              .y_dtype = f->y_dtype,
                              .weight  = f->weight};

        BT_REQUIRE(f->x_row == NULL, BT_ERR_UNSUPPORTED,
                   "feed-forward block %u of %u gathers its rows: not on a GPU", i, n_ffns);
        BT_TRY(CUDA(bt_cuda_gemm_run(((bt_device_cuda *)dev)->stream, &up)));
        BT_TRY(bt_cuda_products(dev, role, 1, &down));
        act += (size_t)f->m * dim;
    }
out:
    return st;
}

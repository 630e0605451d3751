/* moe/cuda/routed_cuda.c - experts on the rows of all ranks without a route on the host: rows are
 * sorted by expert where they lie, two grouped products run over them, the first with SwiGLU, and
 * what they made becomes items. */
#include "core/alloc.h"
#include "core/minmax.h"
#include "device/cuda/gemm.h"
#include "device/cuda/launch.h"
#include "moe/cuda/moe_cuda.h"
#include "moe/cuda/moe_kernels.h"

struct bt_moe_routed {
    bt_device    *dev;           /* borrowed */
    bt_moe_layout l;             /* its lists are not kept */
    uint32_t      n_wire, items; /* elements of a wire row; this rank's items of a row */
    size_t        bytes;

    /* Device, owned. */
    uint16_t *local_of, *owner;        /* [n_experts] */
    uint8_t  *whole;                   /* [n_blocks] */
    uint32_t *items_of, *items_before; /* [n_ranks] */
    uint32_t *row_at;                  /* [n_local + 1] */
    uint32_t *term_row, *term_of;      /* [tile_rows, top_k] */
    float    *term_weight;             /* [tile_rows, top_k] */
    bt_bf16  *act;                     /* [terms, expert_dim] */
    float    *y;                       /* [terms, hidden] */
    uint32_t *bad_row;
    uint64_t *rows_run; /* [n_local] */
};

static void destroy(bt_moe_routed *r)
{
    if (r == NULL) return;
    void *lists[] = {r->local_of, r->owner,    r->whole,   r->items_of,    r->items_before,
                     r->row_at,   r->term_row, r->term_of, r->term_weight, r->act,
                     r->y,        r->bad_row,  r->rows_run};

    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++)
        bt_device_free(r->dev, lists[i]);
    bt_free(r);
}

static bt_status take(bt_moe_routed *r, size_t n, size_t bytes_each, void *ptr_out)
{
    return bt_device_alloc_array(r->dev, n, bytes_each, &r->bytes, ptr_out);
}

static bt_status put(bt_moe_routed *r, size_t n, size_t bytes_each, const void *host, void *ptr_out)
{
    bt_status st  = BT_OK;
    void     *mem = NULL;

    BT_TRY(take(r, n, bytes_each, &mem));
    *(void **)ptr_out = mem;
    BT_TRY(bt_device_upload(r->dev, mem, host, n * bytes_each));
out:
    return st;
}

/* bool has a byte, and is 0 or 1. */
_Static_assert(sizeof(bool) == sizeof(uint8_t), "a table of bool goes up as it is");

static bt_status put_tables(bt_moe_routed *r, const bt_moe_layout *l, uint32_t *before)
{
    bt_status st   = BT_OK;
    uint32_t  none = UINT32_MAX;

    for (uint32_t q = 0, n = 0; q < l->n_ranks; q++) {
        before[q] = n;
        n += q == l->self ? 0 : l->items_of[q];
    }
    BT_TRY(put(r, l->n_experts, sizeof(*r->local_of), l->local_index, &r->local_of));
    BT_TRY(put(r, l->n_experts, sizeof(*r->owner), l->owner, &r->owner));
    BT_TRY(put(r, l->n_blocks, sizeof(*r->whole), l->whole, &r->whole));
    BT_TRY(put(r, l->n_ranks, sizeof(*r->items_of), l->items_of, &r->items_of));
    BT_TRY(put(r, l->n_ranks, sizeof(*r->items_before), before, &r->items_before));
    BT_TRY(put(r, 1, sizeof(*r->bad_row), &none, &r->bad_row));
    BT_TRY(bt_device_sync(r->dev)); /* the lists are the caller's */
out:
    return st;
}

static bt_status create(bt_device *dev, const bt_moe_layout *l, bt_moe_routed **routed_out)
{
    bt_status st      = BT_OK;
    uint32_t  per_row = bt_min_u32(l->top_k, l->n_local);
    size_t    entries = (size_t)l->tile_rows * l->top_k, terms = (size_t)l->tile_rows * per_row;
    uint32_t *before = bt_calloc(l->n_ranks, sizeof(*before));
    bt_moe_routed *r = bt_calloc(1, sizeof(*r));

    BT_REQUIRE(r != NULL && before != NULL, BT_ERR_NO_MEMORY, "moe on a GPU");
    r->dev    = dev;
    r->l      = *l;
    r->n_wire = bt_wire_elems(l->hidden, l->top_k);
    r->items  = l->items_of[l->self];
    BT_TRY(put_tables(r, l, before));
    BT_TRY(take(r, (size_t)l->n_local + 1, sizeof(*r->row_at), &r->row_at));
    BT_TRY(take(r, entries, sizeof(*r->term_row), &r->term_row));
    BT_TRY(take(r, entries, sizeof(*r->term_of), &r->term_of));
    BT_TRY(take(r, entries, sizeof(*r->term_weight), &r->term_weight));
    BT_TRY(take(r, terms * l->expert_dim, sizeof(*r->act), &r->act));
    BT_TRY(take(r, terms * l->hidden, sizeof(*r->y), &r->y));
    BT_TRY(take(r, l->n_local, sizeof(*r->rows_run), &r->rows_run));
    *routed_out = r;
    r           = NULL; /* handed over */
out:
    bt_free(before);
    destroy(r);
    return st;
}

static size_t bytes(const bt_moe_routed *r) { return r->bytes; }

static bt_status permute(bt_moe_routed *r, uint32_t first_row, uint32_t n_rows, const bt_bf16 *wire)
{
    return CUDA(bt_cuda_permute_run(bt_device_stream(r->dev),
                                    &(bt_cuda_permute){.n_rows      = n_rows,
                                                       .n_wire      = r->n_wire,
                                                       .hidden      = r->l.hidden,
                                                       .top_k       = r->l.top_k,
                                                       .n_experts   = r->l.n_experts,
                                                       .n_local     = r->l.n_local,
                                                       .wire        = wire,
                                                       .local_of    = r->local_of,
                                                       .row_at      = r->row_at,
                                                       .term_row    = r->term_row,
                                                       .term_weight = r->term_weight,
                                                       .term_of     = r->term_of,
                                                       .first_row   = first_row,
                                                       .bad_row     = r->bad_row,
                                                       .rows_run    = r->rows_run}));
}

/* One launch for as many experts as a launch takes. */
static bt_status product(bt_moe_routed *r, bt_cuda_gemm *g, bt_linear *const *w)
{
    bt_status st = BT_OK;

    for (uint32_t e = 0; e < r->l.n_local; e += g->n_groups) {
        g->n_groups = r->l.n_local - e < BT_CUDA_MAX_GROUPS ? r->l.n_local - e : BT_CUDA_MAX_GROUPS;
        g->row_at   = r->row_at + e;
        g->kind     = bt_linear_kind(w[e]);
        for (uint32_t i = 0; i < g->n_groups; i++) {
            g->w[i]       = bt_cuda_weights(w[e + i]);
            g->w_scale[i] = bt_cuda_weight_scales(w[e + i]);
        }
        BT_TRY(CUDA(bt_cuda_gemm_run(bt_device_stream(r->dev), g)));
    }
out:
    return st;
}

static bt_status experts(bt_moe_routed *r, bt_linear *const *gate_up, bt_linear *const *down,
                         uint32_t first_row, uint32_t n_rows, const bt_bf16 *wire, bt_bf16 *items)
{
    bt_status     st      = BT_OK;
    uint32_t      per_row = bt_min_u32(r->l.top_k, r->l.n_local);
    uint32_t      likely  = (n_rows * r->l.top_k + r->l.n_experts - 1) / r->l.n_experts;
    bt_cuda_gemm  up      = {.n           = r->l.expert_dim,
                             .k           = r->l.hidden,
                             .out         = BT_CUDA_OUT_SWIGLU,
                             .max_rows    = n_rows * per_row,
                             .likely_rows = likely,
                             .x_row       = r->term_row,
                             .x           = wire,
                             .ld_x        = r->n_wire,
                             .y           = r->act,
                             .ld_y        = r->l.expert_dim};
    bt_cuda_gemm  back    = {.n           = r->l.hidden,
                             .k           = r->l.expert_dim,
                             .out         = BT_CUDA_OUT_F32,
                             .max_rows    = n_rows * per_row,
                             .likely_rows = likely,
                             .x           = r->act,
                             .ld_x        = r->l.expert_dim,
                             .y           = r->y,
                             .ld_y        = r->l.hidden};
    bt_cuda_items made    = {.n_rows        = n_rows,
                             .n_wire        = r->n_wire,
                             .hidden        = r->l.hidden,
                             .top_k         = r->l.top_k,
                             .block_size    = r->l.block_size,
                             .items_per_row = r->items,
                             .wire          = wire,
                             .whole         = r->whole,
                             .term_of       = r->term_of,
                             .term_weight   = r->term_weight,
                             .y             = r->y,
                             .items         = items};

    BT_TRY(permute(r, first_row, n_rows, wire));
    BT_TRY(product(r, &up, gate_up));
    BT_TRY(product(r, &back, down));
    BT_TRY(CUDA(bt_cuda_items_run(bt_device_stream(r->dev), &made)));
out:
    return st;
}

static bt_status join(bt_moe_routed *r, uint32_t n_rows, const bt_bf16 *wire, const bt_bf16 *own,
                      const bt_bf16 *came, const float *shared, bt_bf16 *y)
{
    return CUDA(
        bt_cuda_join_run(bt_device_stream(r->dev), &(bt_cuda_join){.n_rows       = n_rows,
                                                                   .n_wire       = r->n_wire,
                                                                   .hidden       = r->l.hidden,
                                                                   .top_k        = r->l.top_k,
                                                                   .block_size   = r->l.block_size,
                                                                   .self         = r->l.self,
                                                                   .wire         = wire,
                                                                   .owner        = r->owner,
                                                                   .whole        = r->whole,
                                                                   .items_of     = r->items_of,
                                                                   .items_before = r->items_before,
                                                                   .own          = own,
                                                                   .came         = came,
                                                                   .shared       = shared,
                                                                   .y            = y}));
}

static bt_status bad_row(bt_moe_routed *r, uint32_t *row_out)
{
    return bt_device_download(r->dev, row_out, r->bad_row, sizeof(*row_out));
}

static bt_status rows(bt_moe_routed *r, uint64_t *rows_out)
{
    bt_status st = BT_OK;

    BT_TRY(bt_device_download(r->dev, rows_out, r->rows_run, r->l.n_local * sizeof(*rows_out)));
    BT_TRY(bt_device_sync(r->dev));
out:
    return st;
}

const bt_moe_routed_ops bt_moe_cuda_routed_ops = {
    .create  = create,
    .destroy = destroy,
    .bytes   = bytes,
    .experts = experts,
    .join    = join,
    .bad_row = bad_row,
    .rows    = rows,
};

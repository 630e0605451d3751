/* moe/cpu/moe_cpu.c - gate, sums and combination on the CPU: rows are chunks of the compute pool.
 * Every row is computed alone, in one order, whatever runs beside it. */
#include "device/cpu/kernels.h"
#include "moe/ops.h"

/* Elements of a chunk, about: enough to be worth taking from the pool's counter. */
enum { CHUNK_ELEMS = 8192 };

typedef struct {
    const bt_cpu_row_kernels *k;
    const void               *args;
    uint32_t                  n_rows, rows_per_chunk;
} row_task;

static void run_rows(bt_device *dev, uint32_t n_rows, uint32_t elems_per_row, bt_cpu_task task,
                     const void *args)
{
    row_task t = {.k              = bt_device_cpu_table(dev)->rows,
                  .args           = args,
                  .n_rows         = n_rows,
                  .rows_per_chunk = 1 + CHUNK_ELEMS / elems_per_row};

    if (n_rows == 0) return;
    bt_cpu_pool_run(bt_device_cpu_pool(dev), (n_rows + t.rows_per_chunk - 1) / t.rows_per_chunk,
                    task, &t);
}

static uint32_t chunk_end(const row_task *t, uint32_t chunk)
{
    uint32_t end = (chunk + 1) * t->rows_per_chunk;

    return end < t->n_rows ? end : t->n_rows;
}

static size_t scratch_bytes(uint32_t max_rows, uint32_t top_k)
{
    (void)max_rows, (void)top_k;
    return 0;
}

static void route_rows(void *ctx, uint32_t chunk, uint32_t member)
{
    const row_task     *t      = ctx;
    const bt_moe_route *r      = t->args;
    uint32_t            top_k  = r->gate->top_k;
    uint32_t            n_wire = bt_wire_elems(r->hidden, top_k);

    (void)member;
    for (uint32_t i = chunk * t->rows_per_chunk; i < chunk_end(t, chunk); i++) {
        bt_bf16        *row     = r->wire + (size_t)i * n_wire;
        uint16_t       *experts = row + r->hidden;
        const uint16_t *forced  = NULL;
        float           weights[BT_MAX_TOP_K];

        if (r->forced != NULL && r->forced[(size_t)i * top_k] != UINT16_MAX)
            forced = r->forced + (size_t)i * top_k;
        memcpy(row, r->x + (size_t)i * r->hidden, r->hidden * sizeof(*row));
        bt_gate_select(r->gate, r->logits + (size_t)i * r->gate->n_experts, r->bias, forced,
                       experts, weights);
        memcpy(experts + top_k, weights, top_k * sizeof(*weights));
    }
}

static bt_status route(bt_device *dev, const bt_moe_route *r)
{
    run_rows(dev, r->n_rows, r->hidden + r->gate->n_experts * r->gate->top_k, route_rows, r);
    return BT_OK;
}

static bt_status read(bt_device *dev, const bt_moe_read *r)
{
    uint32_t n_wire = bt_wire_elems(r->hidden, r->top_k), n = 3 * r->top_k;

    (void)dev;
    for (uint32_t i = 0; i < r->n_rows; i++)
        memcpy(r->entries + (size_t)i * n, r->wire + (size_t)i * n_wire + r->hidden,
               n * sizeof(*r->entries));
    return BT_OK;
}

static void sum_items(void *ctx, uint32_t chunk, uint32_t member)
{
    const row_task    *t = ctx;
    const bt_moe_sums *s = t->args;

    (void)member;
    for (uint32_t i = chunk * t->rows_per_chunk; i < chunk_end(t, chunk); i++) {
        const bt_bf16 *rows[BT_MAX_TOP_K];
        uint32_t       first = s->term_at[i], n = s->term_at[i + 1] - first;

        for (uint32_t j = 0; j < n; j++)
            rows[j] = s->y + (size_t)s->y_row[first + j] * s->hidden;
        t->k->sum_parts(rows, &n, 1, NULL, s->hidden, s->items + (size_t)s->dst[i] * s->hidden);
    }
}

static bt_status sum(bt_device *dev, const bt_moe_sums *s)
{
    run_rows(dev, s->n_items, s->hidden, sum_items, s);
    return BT_OK;
}

/* What came for a row, block after block, is what sum_parts() adds: a block for which nothing came
 * would add +0 to a sum that is never -0. */
static void combine_rows(void *ctx, uint32_t chunk, uint32_t member)
{
    const row_task       *t = ctx;
    const bt_moe_combine *c = t->args;

    (void)member;
    for (uint32_t r = chunk * t->rows_per_chunk; r < chunk_end(t, chunk); r++) {
        const uint16_t       *experts = c->experts + (size_t)r * c->top_k;
        const bt_bf16 *const *items   = c->items + (size_t)r * c->top_k;
        const bt_bf16        *rows[BT_MAX_TOP_K];
        uint32_t              n_of[BT_MAX_TOP_K], n_parts = 0, n = 0;

        for (uint32_t j = 0; j < c->top_k; j++) {
            if (items[j] == NULL) continue;
            if (n == 0 || experts[j] / c->block_size != experts[j - 1] / c->block_size)
                n_of[n_parts++] = 0;
            n_of[n_parts - 1]++;
            rows[n++] = items[j];
        }
        t->k->sum_parts(rows, n_of, n_parts,
                        c->shared != NULL ? c->shared + (size_t)r * c->hidden : NULL, c->hidden,
                        c->y + (size_t)r * c->hidden);
    }
}

static bt_status combine(bt_device *dev, const bt_moe_combine *c)
{
    run_rows(dev, c->n_rows, c->hidden * c->top_k, combine_rows, c);
    return BT_OK;
}

static const bt_moe_listed_ops LISTED = {.sum = sum, .combine = combine};

const bt_moe_ops bt_moe_cpu_ops = {
    .device        = "cpu",
    .scratch_bytes = scratch_bytes,
    .route         = route,
    .read          = read,
    .listed        = &LISTED,
};

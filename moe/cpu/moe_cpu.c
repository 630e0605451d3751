/* moe/cpu/moe_cpu.c - gate, sums and combination on the CPU: rows are chunks of the compute pool.
 * Every row is computed alone, in one order, whatever runs beside it. */
#include "device/cpu/kernels.h"
#include "moe/ops.h"

/* Elements of a chunk, about: enough to be worth taking from the pool's counter. */
enum { CHUNK_ELEMS = 8192, ROWS_OF_SCRATCH = 4 };

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

static size_t scratch_bytes(bt_device *dev, const bt_moe_sizes *sizes)
{
    return (size_t)bt_cpu_pool_n_threads(bt_device_cpu_pool(dev)) * ROWS_OF_SCRATCH *
           sizes->hidden * sizeof(float);
}

static float *scratch_of(float *scratch, uint32_t member, uint32_t hidden)
{
    return scratch + (size_t)member * ROWS_OF_SCRATCH * hidden;
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
    const row_task           *t   = ctx;
    const bt_moe_sums        *s   = t->args;
    const bt_cpu_row_kernels *k   = t->k;
    float                    *acc = scratch_of(s->scratch, member, s->hidden);
    float                    *one = acc + s->hidden;

    for (uint32_t i = chunk * t->rows_per_chunk; i < chunk_end(t, chunk); i++) {
        bt_bf16 *item  = s->items + (size_t)s->dst[i] * s->hidden;
        bool     alone = s->term_at[i + 1] - s->term_at[i] == 1;

        memset(acc, 0, s->hidden * sizeof(*acc));
        for (uint32_t term = s->term_at[i]; term < s->term_at[i + 1]; term++) {
            k->scale_bf16(s->y + (size_t)s->y_row[term] * s->hidden, s->hidden, s->weight[term],
                          item);
            if (alone) break;
            k->to_f32(item, s->hidden, one);
            k->axpy(1.0f, one, s->hidden, acc);
        }
        if (!alone) k->to_bf16(acc, s->hidden, item);
    }
}

static bt_status sum(bt_device *dev, const bt_moe_sums *s)
{
    run_rows(dev, s->n_items, s->hidden, sum_items, s);
    return BT_OK;
}

/* part = +0 + what came for the block whose entries are [first, end). */
static void block_part(const bt_cpu_row_kernels *k, const bt_moe_combine *c,
                       const bt_bf16 *const *items, uint32_t first, uint32_t end, float *one,
                       float *part)
{
    bool     single = end - first == 1 || items[first + 1] == NULL;
    bt_bf16 *half   = (bt_bf16 *)(one + c->hidden);

    memset(part, 0, c->hidden * sizeof(*part));
    for (uint32_t j = first; j < end && items[j] != NULL; j++) {
        k->to_f32(items[j], c->hidden, one);
        k->axpy(1.0f, one, c->hidden, part);
    }
    if (single) return;
    k->to_bf16(part, c->hidden, half);
    k->to_f32(half, c->hidden, one);
    memset(part, 0, c->hidden * sizeof(*part)); /* +0 + -0 is +0, as for a sum that travelled */
    k->axpy(1.0f, one, c->hidden, part);
}

static void combine_rows(void *ctx, uint32_t chunk, uint32_t member)
{
    const row_task       *t    = ctx;
    const bt_moe_combine *c    = t->args;
    float                *acc  = scratch_of(c->scratch, member, c->hidden);
    float                *part = acc + c->hidden, *one = part + c->hidden;

    for (uint32_t r = chunk * t->rows_per_chunk; r < chunk_end(t, chunk); r++) {
        const uint16_t       *experts = c->experts + (size_t)r * c->top_k;
        const bt_bf16 *const *items   = c->items + (size_t)r * c->top_k;
        uint32_t              j       = 0;

        memset(acc, 0, c->hidden * sizeof(*acc));
        for (uint32_t b = 0; b < c->n_blocks; b++) {
            uint32_t first = j;

            while (j < c->top_k && experts[j] / c->block_size == b)
                j++;
            if (j == first)
                memset(part, 0, c->hidden * sizeof(*part));
            else
                block_part(t->k, c, items, first, j, one, part);
            t->k->axpy(1.0f, part, c->hidden, acc);
        }
        if (c->shared != NULL) t->k->axpy(1.0f, c->shared + (size_t)r * c->hidden, c->hidden, acc);
        t->k->to_bf16(acc, c->hidden, c->y + (size_t)r * c->hidden);
    }
}

static bt_status combine(bt_device *dev, const bt_moe_combine *c)
{
    run_rows(dev, c->n_rows, c->hidden * c->n_blocks, combine_rows, c);
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

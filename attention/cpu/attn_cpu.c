/* attention/cpu/attn_cpu.c - create, destroy, and the write of new tokens to their pages. */
#include "attention/cpu/attn_cpu.h"

#include <math.h>
#include <string.h>

#include "core/alloc.h"

enum {
    EXPANDED_BYTES   = 24 << 20, /* keys and values of a head group, about */
    SLOTS_PER_MEMBER = 4,        /* twice as many where parts are short */
    ITEMS_PER_MEMBER = 64,
    APPEND_ROWS      = 4
};

/* Lays one member's buffers into mem and returns their bytes. */
static size_t lay_member(const bt_mla_config *cfg, uint32_t rows, char *mem, bt_attn_member *m)
{
    size_t   used   = 0;
    uint32_t kv_dim = cfg->kv_lora_rank + cfg->qk_rope_dim;
    uint32_t joined = bt_joined_dim(cfg);
    uint32_t v_dim = bt_cpu_pad(cfg->v_dim, 32), wide = bt_max_u32(joined, v_dim);
    uint32_t v_max  = bt_max_u32(cfg->kv_lora_rank, cfg->v_dim);
    size_t   pairs  = (size_t)BT_TILE_LANES * BT_BLOCK_TOKENS;
    size_t   slab   = bt_cpu_packed_elems(BT_TILE_SLAB, BT_BLOCK_TOKENS);
    size_t   values = bt_packed_values(cfg->v_dim);
    size_t halves = bt_attn_absorbed_part(cfg->n_heads, 1) < BT_ATTN_SPLIT_TOKENS ? BT_HALVINGS : 0;

    m->tile.scores = bt_lay(mem, &used, pairs, sizeof(float));
    m->tile.p      = bt_lay(mem, &used, pairs, sizeof(bt_bf16));
    m->tile.slab   = bt_lay(mem, &used, slab, sizeof(bt_bf16));
    m->tile.cut    = bt_lay(mem, &used, values > slab ? values : slab, sizeof(bt_bf16));
    m->state       = bt_lay(mem, &used, bt_tile_state_floats(v_max), sizeof(float));
    m->halves = bt_lay(mem, &used, halves * bt_tile_state_floats(cfg->kv_lora_rank), sizeof(float));
    m->rows_f32  = bt_lay(mem, &used, (size_t)BT_BLOCK_TOKENS * wide, sizeof(float));
    m->rows_bf16 = bt_lay(mem, &used, (size_t)BT_BLOCK_TOKENS * wide, sizeof(bt_bf16));
    m->scores_t  = bt_lay(mem, &used, (size_t)BT_TILE_LANES * BT_PAGE_TOKENS, sizeof(float));
    m->joined    = bt_lay(mem, &used, (size_t)BT_TILE_LANES * joined, sizeof(bt_bf16));
    m->queries   = bt_lay(mem, &used, (size_t)BT_QUERY_LANES * kv_dim, sizeof(bt_bf16));
    m->query     = bt_lay(mem, &used, bt_cpu_packed_elems(BT_TILE_LANES, kv_dim), sizeof(bt_bf16));
    m->latents =
        bt_lay(mem, &used, (size_t)BT_GROUP_HEADS * rows * cfg->kv_lora_rank, sizeof(bt_bf16));
    m->index_query =
        bt_lay(mem, &used, bt_cpu_packed_elems(cfg->index_heads, cfg->index_dim), sizeof(bt_bf16));
    m->index_scores =
        bt_lay(mem, &used, (size_t)BT_PAGE_TOKENS * bt_index_columns(cfg), sizeof(float));
    return used;
}

/* Zeroed memory on a cache line, counted. */
static void *take_zeroed(bt_attn_cpu *a, size_t n, size_t size)
{
    a->base.bytes += n * size;
    return bt_calloc_aligned(n, size);
}

static bt_status create_members(bt_attn_cpu *a, uint32_t max_rows)
{
    bt_status      st    = BT_OK;
    bt_attn_member none  = {0};
    uint32_t       rows  = bt_min_u32(max_rows, BT_ABSORBED_ROWS);
    size_t         bytes = lay_member(&a->cfg, rows, NULL, &none);

    a->members = take_zeroed(a, a->n_members, sizeof(*a->members));
    a->scratch = take_zeroed(a, a->n_members, bytes);
    BT_REQUIRE(a->members != NULL && a->scratch != NULL, BT_ERR_NO_MEMORY,
               "attention scratch of %u threads, %zu bytes each", a->n_members, bytes);
    for (uint32_t i = 0; i < a->n_members; i++)
        lay_member(&a->cfg, rows, (char *)a->scratch + i * bytes, &a->members[i]);
out:
    return st;
}

static bt_status create_normal(bt_attn_cpu *a, uint32_t max_rows)
{
    bt_status            st    = BT_OK;
    const bt_mla_config *cfg   = &a->cfg;
    size_t               key   = bt_packed_keys(bt_joined_dim(cfg));
    size_t               value = bt_packed_values(cfg->v_dim);
    size_t               per_head;

    a->part_pages     = bt_min_u32(bt_kv_pages_for(cfg->max_context), BT_PART_PAGES);
    a->tiles_per_head = (max_rows + BT_TILE_LANES - 1) / BT_TILE_LANES;
    per_head      = (a->part_pages * key + bt_part_blocks(a->part_pages) * value) * sizeof(bt_bf16);
    a->head_group = EXPANDED_BYTES / per_head == 0 ? 1 : (uint32_t)(EXPANDED_BYTES / per_head);
    if (a->head_group > cfg->n_heads) a->head_group = cfg->n_heads;

    if (a->kernels->mm_tiles != NULL) {
        a->latents =
            take_zeroed(a, bt_cpu_tiled_elems(a->part_pages * BT_PAGE_TOKENS, cfg->kv_lora_rank),
                        sizeof(*a->latents));
        BT_REQUIRE(a->latents != NULL, BT_ERR_NO_MEMORY, "attention: tiles of %u pages",
                   a->part_pages);
    }
    a->keys    = take_zeroed(a, (size_t)a->head_group * a->part_pages, key * sizeof(*a->keys));
    a->values  = take_zeroed(a, (size_t)a->head_group * bt_part_blocks(a->part_pages),
                             value * sizeof(*a->values));
    a->running = take_zeroed(a, (size_t)a->head_group * a->tiles_per_head,
                             bt_tile_state_floats(cfg->v_dim) * sizeof(*a->running));
    BT_REQUIRE(a->keys != NULL && a->values != NULL && a->running != NULL, BT_ERR_NO_MEMORY,
               "attention buffers of %u heads over %u pages, %u rows", a->head_group, a->part_pages,
               max_rows);
out:
    return st;
}

static bt_status create_absorbed(bt_attn_cpu *a, uint32_t max_rows)
{
    bt_status            st     = BT_OK;
    const bt_mla_config *cfg    = &a->cfg;
    size_t               floats = bt_tile_state_floats(cfg->kv_lora_rank);

    a->absorbed_rows = bt_min_u32(max_rows, BT_ABSORBED_ROWS);
    a->split         = bt_attn_absorbed_part(cfg->n_heads, 1);
    a->n_slots       = (a->split < BT_ATTN_SPLIT_TOKENS ? 2 : 1) * SLOTS_PER_MEMBER * a->n_members;
    a->max_items     = ITEMS_PER_MEMBER * a->n_members;
    a->ql =
        take_zeroed(a, (size_t)a->absorbed_rows * cfg->n_heads, cfg->kv_lora_rank * sizeof(*a->ql));
    a->ol =
        take_zeroed(a, (size_t)a->absorbed_rows * cfg->n_heads, cfg->kv_lora_rank * sizeof(*a->ol));
    a->gemms      = take_zeroed(a, cfg->n_heads, sizeof(*a->gemms));
    a->slots      = take_zeroed(a, (size_t)a->n_slots + 1, floats * sizeof(*a->slots));
    a->slot       = take_zeroed(a, (size_t)a->n_slots + 1, sizeof(*a->slot));
    a->items      = take_zeroed(a, a->max_items, sizeof(*a->items));
    a->group_ends = take_zeroed(a, a->max_items, sizeof(*a->group_ends));
    BT_REQUIRE(a->ql != NULL && a->ol != NULL && a->gemms != NULL && a->slots != NULL &&
                   a->slot != NULL && a->items != NULL && a->group_ends != NULL,
               BT_ERR_NO_MEMORY, "absorbed attention of %u rows, %u heads, %u slots",
               a->absorbed_rows, cfg->n_heads, a->n_slots);
    for (uint32_t i = 0; i <= a->n_slots; i++)
        a->slot[i] = a->slots + i * floats;
out:
    return st;
}

static void attn_cpu_destroy(bt_attn *attn)
{
    bt_attn_cpu *a = (bt_attn_cpu *)attn;

    if (a == NULL) return;
    bt_attn_cpu_destroy_chosen(a);
    bt_free(a->group_ends);
    bt_free(a->items);
    bt_free(a->slot);
    bt_free(a->slots);
    bt_free(a->gemms);
    bt_free(a->ol);
    bt_free(a->ql);
    bt_free(a->running);
    bt_free(a->values);
    bt_free(a->keys);
    bt_free(a->latents);
    bt_free(a->scratch);
    bt_free(a->members);
    bt_free(a);
}

static bt_status attn_cpu_create(bt_device *dev, const bt_mla_config *cfg, uint32_t max_rows,
                                 const float *rope, bt_attn **attn_out)
{
    bt_status    st = BT_OK;
    bt_attn_cpu *a  = bt_calloc(1, sizeof(*a));

    BT_REQUIRE(a != NULL, BT_ERR_NO_MEMORY, "attention header");
    a->base.ops  = &bt_attn_cpu_ops;
    a->dev       = dev;
    a->kernels   = bt_device_cpu_table(dev);
    a->pool      = bt_device_cpu_pool(dev);
    a->cfg       = *cfg;
    a->rope      = rope;
    a->n_members = bt_cpu_pool_n_threads(a->pool);
    BT_TRY(create_members(a, max_rows));
    BT_TRY(create_normal(a, max_rows));
    BT_TRY(create_absorbed(a, max_rows));
    BT_TRY(bt_attn_cpu_create_chosen(a, max_rows));
    *attn_out = &a->base;
    a         = NULL; /* handed over */
out:
    attn_cpu_destroy(a == NULL ? NULL : &a->base);
    return st;
}

typedef struct {
    const bt_attn_cpu  *a;
    const bt_attn_call *call;
    uint32_t            n_rows;
} append_job;

/* y = bf16((x - mean) / sqrt(variance + eps) * weight + bias); x [2][n]: the second row is scratch,
 * and so is the first one afterwards. */
static void layer_norm_row(const bt_cpu_row_kernels *rows, const bt_mla_weights *w, uint32_t n,
                           float *x, bt_bf16 *y)
{
    float *square = x + n, mean = rows->row_sum(x, n) / (float)n, factor;

    for (uint32_t i = 0; i < n; i++) {
        x[i] -= mean;
        square[i] = x[i] * x[i];
    }
    factor = 1.0f / sqrtf(rows->row_sum(square, n) / (float)n + BT_INDEX_EPS);
    for (uint32_t i = 0; i < n; i++)
        x[i] =
            x[i] * factor * bt_bf16_to_f32(w->index_k_norm[i]) + bt_bf16_to_f32(w->index_k_bias[i]);
    rows->to_bf16(x, n, y);
}

/* RoPE of the first elements of a query or a key of the indexer, in place. */
static void turn_index_row(const bt_attn_cpu *a, const float *cos_sin, bt_bf16 *x)
{
    uint32_t n = a->cfg.qk_rope_dim, half = n / 2;

    if (!a->cfg.index_halves) {
        a->kernels->rows->rope_row(cos_sin, x, n, x);
        return;
    }
    for (uint32_t i = 0; i < half; i++) {
        float c = cos_sin[2 * i], s = cos_sin[2 * i + 1];
        float one = bt_bf16_to_f32(x[i]), two = bt_bf16_to_f32(x[half + i]);

        x[i]        = bt_bf16_from_f32(one * c - two * s);
        x[half + i] = bt_bf16_from_f32(two * c + one * s);
    }
}

/* What the indexer keeps of a token, in its page, or nothing where the layer has none. */
static void append_index_key(const append_job *job, uint32_t row, const float *cos_sin,
                             const bt_attn_member *m, bt_bf16 *out)
{
    const bt_attn_call *call = job->call;
    uint32_t            n    = job->a->cfg.index_dim;

    if (call->index_k == NULL) {
        memset(out, 0, n * sizeof(*out));
        return;
    }
    for (uint32_t i = 0; i < n; i++)
        m->rows_f32[i] = bt_bf16_to_f32(call->index_k[(size_t)row * n + i]);
    layer_norm_row(job->a->kernels->rows, call->w, n, m->rows_f32, out);
    turn_index_row(job->a, cos_sin, out);
}

static void scale_row(float factor, size_t n, bt_bf16 *x)
{
    for (size_t i = 0; i < n; i++)
        x[i] = bt_bf16_from_f32(bt_bf16_to_f32(x[i]) * factor);
}

static void append_row(const append_job *job, const bt_span *span, uint32_t row,
                       const bt_attn_member *m)
{
    const bt_attn_cpu        *a        = job->a;
    const bt_attn_call       *call     = job->call;
    const bt_mla_config      *cfg      = &a->cfg;
    const bt_cpu_row_kernels *rows     = a->kernels->rows;
    uint32_t                  pos      = span->start + (row - span->first_row);
    const float              *cos_sin  = a->rope + (size_t)pos * cfg->qk_rope_dim;
    size_t                    head_dim = cfg->qk_nope_dim + cfg->qk_rope_dim;
    size_t                    kv_dim   = cfg->kv_lora_rank + cfg->qk_rope_dim;

    if (call->kv != NULL) {
        const bt_bf16 *kv = call->kv + row * kv_dim;
        bt_bf16 *dst = bt_kv_pool_rows(call->pool, span->pages[pos / BT_PAGE_TOKENS], call->layer) +
                       pos % BT_PAGE_TOKENS * (size_t)bt_kv_pool_kv_dim(call->pool);

        if (call->kv_norm != NULL)
            rows->rms_norm_row(kv, call->kv_norm, cfg->kv_lora_rank, cfg->latent_eps, dst);
        else
            memcpy(dst, kv, cfg->kv_lora_rank * sizeof(*dst));
        rows->rope_row(cos_sin, kv + cfg->kv_lora_rank, cfg->qk_rope_dim, dst + cfg->kv_lora_rank);
        if (cfg->index_topk != 0) append_index_key(job, row, cos_sin, m, dst + kv_dim);
    }
    if (call->index_q != NULL) {
        bt_bf16 *q = call->index_q + (size_t)row * cfg->index_heads * cfg->index_dim;

        for (uint32_t h = 0; h < cfg->index_heads; h++, q += cfg->index_dim)
            turn_index_row(a, cos_sin, q);
    }
    if (call->q != NULL) {
        bt_bf16     *q      = call->q + row * bt_attn_q_dim(cfg);
        const float *factor = bt_mla_query_factors(cfg, a->rope);

        for (uint32_t h = 0; h < cfg->n_heads; h++) {
            bt_bf16 *part = q + h * head_dim + cfg->qk_nope_dim;

            rows->rope_row(cos_sin, part, cfg->qk_rope_dim, part);
        }
        if (factor != NULL && factor[pos] != 1) scale_row(factor[pos], bt_attn_q_dim(cfg), q);
    }
}

static void append_task(void *ctx, uint32_t chunk, uint32_t member)
{
    const append_job *job  = ctx;
    const bt_span    *span = job->call->spans;
    uint32_t          row = chunk * APPEND_ROWS, end = bt_min_u32(row + APPEND_ROWS, job->n_rows);

    for (; row < end; row++) {
        while (row - span->first_row >= span->n_rows)
            span++;
        append_row(job, span, row, &job->a->members[member]);
    }
}

static bt_status attn_cpu_append(bt_attn *attn, const bt_attn_call *call)
{
    append_job job = {.a = (const bt_attn_cpu *)attn, .call = call};

    for (uint32_t i = 0; i < call->n_spans; i++)
        job.n_rows += call->spans[i].n_rows;
    if (job.n_rows != 0)
        bt_cpu_pool_run(job.a->pool, (job.n_rows - 1) / APPEND_ROWS + 1, append_task, &job);
    return BT_OK;
}

/* Its pages are host memory. */
static bt_status move_rows(const bt_page_rows *r, void *stream, void *run, bool to_pages)
{
    (void)stream;
    return to_pages ? bt_page_rows_upload(r, run) : bt_page_rows_download(r, run);
}

const bt_attn_ops bt_attn_cpu_ops = {
    .device      = "cpu",
    .large_bytes = bt_attn_cpu_chosen_bytes,
    .create      = attn_cpu_create,
    .append      = attn_cpu_append,
    .attend = {[BT_FORM_NORMAL] = bt_attn_cpu_normal, [BT_FORM_ABSORBED] = bt_attn_cpu_absorbed},
    .choose = bt_attn_cpu_choose,
    .attend_chosen = bt_attn_cpu_attend_chosen,
    .move_rows     = move_rows,
    .destroy       = attn_cpu_destroy,
};

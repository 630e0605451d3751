/* attention/variants/cpu/heads.c - CD and CC: every head has keys and values of its own.
 *
 * They lie packed, so that a step streams them: keys as one operand over all tokens, values page by
 * page.  CD keeps them; CC makes a head's anew in each step, the whole context before it attends.
 */
#include <string.h>

#include "attention/variants/cpu/core_cpu.h"
#include "core/minmax.h"

static uint32_t width_of(const bt_core_cpu *k)
{
    return k->s->cfg.qk_nope_dim + k->s->cfg.qk_rope_dim;
}

/* Elements from one page of packed keys (values) to the next. */
static size_t keys_page(const bt_core_cpu *k)
{
    return bt_cpu_packed_elems(BT_PAGE_TOKENS, width_of(k));
}
static size_t values_page(const bt_core_cpu *k)
{
    return bt_cpu_packed_elems(k->s->cfg.v_dim, BT_PAGE_TOKENS);
}

/* rows_bf16[j][0, n) = W rows[j] for a page of tokens. */
static void expand(const bt_core_cpu *k, const bt_linear *w, const bt_bf16 *rows, uint32_t n_rows,
                   size_t ld_out, const bt_core_member *m)
{
    bt_cpu_mm mm = {.x      = rows,
                    .ld_x   = k->s->kv_dim,
                    .packed = bt_linear_packed(w),
                    .y      = m->rows_f32,
                    .ld_y   = bt_linear_n(w),
                    .m      = n_rows,
                    .n      = bt_linear_n(w),
                    .k      = bt_linear_k(w)};

    k->kernels->mm[k->role](&mm);
    for (uint32_t j = 0; j < n_rows; j++)
        k->kernels->rows->to_bf16(m->rows_f32 + j * mm.ld_y, mm.n, m->rows_bf16 + j * ld_out);
}

/* A head's keys and values of a page of n tokens, decompressed and packed; role as in core. */
static void expand_page(const bt_core_cpu *k, uint32_t head, const bt_bf16 *rows, uint32_t n,
                        const bt_core_member *m, bt_bf16 *keys, bt_bf16 *values)
{
    const bt_mla_config *cfg   = &k->s->cfg;
    uint32_t             width = width_of(k), dv = cfg->v_dim;

    expand(k, k->s->w.uk[head], rows, n, width, m);
    for (uint32_t j = 0; j < n; j++)
        memcpy(m->rows_bf16 + (size_t)j * width + cfg->qk_nope_dim,
               rows + j * (size_t)k->s->kv_dim + cfg->kv_lora_rank,
               cfg->qk_rope_dim * sizeof(*rows));
    k->kernels->rows->pack_rows(m->rows_bf16, width, n, width, keys);

    expand(k, k->s->w.uv[head], rows, n, dv, m);
    memset(m->rows_bf16 + (size_t)n * dv, 0,
           (size_t)(BT_PAGE_TOKENS - n) * dv * sizeof(*m->rows_bf16));
    k->kernels->rows->pack_cols(m->rows_bf16, dv, BT_PAGE_TOKENS, dv, BT_PAGE_TOKENS, values);
}

/* ---- the cache of CD ---- */

typedef struct {
    bt_core_cpu *k;
    uint32_t     n_pages; /* distinct */
} fill_job;

static bt_bf16 *keys_of(const bt_core_cpu *k, size_t item)
{
    return k->keys + item * k->keys_elems;
}
static bt_bf16 *values_of(const bt_core_cpu *k, size_t item)
{
    return k->values + item * k->values_elems;
}

static void expand_task(void *ctx, uint32_t chunk, uint32_t member)
{
    const fill_job *job  = ctx;
    bt_core_cpu    *k    = job->k;
    uint32_t        head = chunk / job->n_pages, page = chunk % job->n_pages;

    expand_page(k, head, bt_kv_pool_rows(k->s->pool, bt_study_pages(k->s, 0)[page], 0),
                bt_min_u32(k->s->n_prefix - page * BT_PAGE_TOKENS, BT_PAGE_TOKENS),
                &k->members[member], keys_of(k, head) + page * keys_page(k),
                values_of(k, head) + page * values_page(k));
}

/* The first request's later pages repeat the distinct ones; the other requests repeat it. */
static void repeat_task(void *ctx, uint32_t chunk, uint32_t member)
{
    const fill_job *job  = ctx;
    bt_core_cpu    *k    = job->k;
    uint32_t        head = chunk % k->s->cfg.n_heads;

    (void)member;
    for (uint32_t page = chunk < k->s->cfg.n_heads ? job->n_pages : 0; page < k->n_pages; page++) {
        uint32_t from = page % job->n_pages;

        memcpy(keys_of(k, chunk) + page * keys_page(k), keys_of(k, head) + from * keys_page(k),
               keys_page(k) * sizeof(bt_bf16));
        memcpy(values_of(k, chunk) + page * values_page(k),
               values_of(k, head) + from * values_page(k), values_page(k) * sizeof(bt_bf16));
    }
}

bt_status bt_core_fill(bt_core_cpu *k)
{
    uint32_t n_pages = bt_kv_pages_for(k->s->n_prefix);
    fill_job job     = {k, bt_min_u32(n_pages, bt_kv_pages_for(k->s->n_rows))};

    if (n_pages == 0) return BT_OK;
    k->role = BT_ROLE_PROMPT;
    bt_cpu_pool_run(k->pool, k->s->cfg.n_heads * job.n_pages, expand_task, &job);
    bt_cpu_pool_run(k->pool, k->s->batch * k->s->cfg.n_heads, repeat_task, &job);
    return BT_OK;
}

static bt_status decompress_new(bt_core_cpu *k, bt_linear *const *w, uint32_t dim, bt_bf16 *y)
{
    bt_study *s = k->s;

    for (uint32_t h = 0; h < s->cfg.n_heads; h++)
        s->gemms[h] = (bt_gemm){.w       = w[h],
                                .x       = s->kv,
                                .ld_x    = s->kv_dim,
                                .y       = y + (size_t)h * dim,
                                .ld_y    = (size_t)s->cfg.n_heads * dim,
                                .m       = s->batch,
                                .y_dtype = BT_BF16};
    return bt_device_gemm(s->dev, k->role, s->cfg.n_heads, s->gemms);
}

/* Puts the new token's key and value into a head's packed ones: element (key, d) of the keys is
 * [key/16][d/2][key%16][d%2], of a page's values [col/16][key/2][col%16][key%2]. */
static void scatter_task(void *ctx, uint32_t chunk, uint32_t member)
{
    bt_core_cpu         *k       = ctx;
    const bt_mla_config *cfg     = &k->s->cfg;
    uint32_t             request = chunk / cfg->n_heads, pos = k->n_keys - 1;
    uint32_t             width = width_of(k), row = pos % BT_PAGE_TOKENS;
    const bt_bf16       *key   = k->new_k + (size_t)chunk * cfg->qk_nope_dim;
    const bt_bf16       *value = k->new_v + (size_t)chunk * cfg->v_dim;
    const bt_bf16       *rope =
        bt_kv_pool_rows(k->s->pool, bt_study_pages(k->s, request)[pos / BT_PAGE_TOKENS], 0) +
        (size_t)row * k->s->kv_dim + cfg->kv_lora_rank;
    bt_bf16 *keys   = keys_of(k, chunk) + pos / 16 * bt_cpu_packed_elems(16, width);
    bt_bf16 *values = values_of(k, chunk) + pos / BT_PAGE_TOKENS * values_page(k);

    (void)member;
    for (uint32_t d = 0; d < width; d++)
        keys[(size_t)d / 2 * 32 + pos % 16 * 2 + d % 2] =
            d < cfg->qk_nope_dim ? key[d] : rope[d - cfg->qk_nope_dim];
    for (uint32_t d = 0; d < cfg->v_dim; d++)
        values[((size_t)d / 16 * (BT_PAGE_TOKENS / 2) + row / 2) * 32 + d % 16 * 2 + row % 2] =
            value[d];
}

bt_status bt_core_append(bt_core_cpu *k)
{
    bt_status            st  = BT_OK;
    const bt_mla_config *cfg = &k->s->cfg;

    BT_TRY(decompress_new(k, k->s->w.uk, cfg->qk_nope_dim, k->new_k));
    BT_TRY(decompress_new(k, k->s->w.uv, cfg->v_dim, k->new_v));
    bt_cpu_pool_run(k->pool, k->s->batch * cfg->n_heads, scatter_task, k);
out:
    return st;
}

/* ---- attention ---- */

static void attend_head(const bt_core_cpu *k, const bt_core_member *m, const bt_bf16 *query,
                        const bt_bf16 *keys, const bt_bf16 *values, bt_bf16 *out)
{
    uint32_t  dv = k->s->cfg.v_dim, width = width_of(k);
    bt_cpu_mm mm = {.x      = query,
                    .ld_x   = width,
                    .packed = keys,
                    .y      = m->scores,
                    .ld_y   = k->keys_pad,
                    .m      = 1,
                    .n      = k->n_keys,
                    .k      = width};
    float     share;

    k->kernels->mm[k->role](&mm);
    share = bt_core_softmax(k, m, 0);
    mm    = (bt_cpu_mm){.y = m->o, .ld_y = dv, .m = 1, .n = dv, .k = BT_PAGE_TOKENS};
    for (uint32_t page = 0; page < k->n_pages; page++) {
        mm.x      = m->p + (size_t)page * BT_PAGE_TOKENS;
        mm.ld_x   = k->keys_pad;
        mm.packed = values + page * values_page(k);
        mm.add    = page != 0;
        k->kernels->mm[k->role](&mm);
    }
    k->kernels->rows->scale(m->o, dv, share);
    k->kernels->rows->to_bf16(m->o, dv, out);
}

static void head_task(void *ctx, uint32_t chunk, uint32_t member)
{
    const bt_core_cpu    *k    = ctx;
    const bt_core_member *m    = &k->members[member];
    uint32_t              head = chunk % k->s->cfg.n_heads, request = chunk / k->s->cfg.n_heads;
    const bt_bf16        *query = k->s->q + chunk * (size_t)width_of(k);
    bt_bf16              *out   = k->s->heads + chunk * (size_t)k->s->cfg.v_dim;

    if (k->kind == BT_VARIANT_CD) {
        attend_head(k, m, query, keys_of(k, chunk), values_of(k, chunk), out);
        return;
    }
    for (uint32_t page = 0; page < k->n_pages; page++)
        expand_page(k, head, bt_kv_pool_rows(k->s->pool, bt_study_pages(k->s, request)[page], 0),
                    bt_min_u32(k->n_keys - page * BT_PAGE_TOKENS, BT_PAGE_TOKENS), m,
                    m->keys + page * keys_page(k), m->values + page * values_page(k));
    attend_head(k, m, query, m->keys, m->values, out);
}

void bt_core_attend_heads(bt_core_cpu *k)
{
    bt_cpu_pool_run(k->pool, k->s->batch * k->s->cfg.n_heads, head_task, k);
}

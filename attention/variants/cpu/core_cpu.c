/* attention/variants/cpu/core_cpu.c - the table, and the memory of a variant. */
#include "attention/variants/cpu/core_cpu.h"

#include "core/alloc.h"
#include "core/minmax.h"

static bool per_head(bt_variant_kind kind)
{
    return kind == BT_VARIANT_CD || kind == BT_VARIANT_CC;
}

/* Enough items for every thread, of as many heads as that leaves: they share a page's packing. */
static uint32_t choose_heads(const bt_core_cpu *k, uint32_t batch)
{
    uint32_t n = k->s->cfg.n_heads, threads = bt_cpu_pool_n_threads(k->pool);
    uint32_t heads = BT_CORE_HEADS;

    if (per_head(k->kind)) return 1;
    while (heads > 8 && (uint64_t)batch * ((n + heads - 1) / heads) < threads)
        heads /= 2;
    return bt_min_u32(heads, n);
}

static size_t lay_member(const bt_core_cpu *k, char *mem, bt_core_member *m)
{
    const bt_mla_config *cfg  = &k->s->cfg;
    size_t               used = 0, lanes = k->item_heads;
    uint32_t             c = cfg->kv_lora_rank, width = cfg->qk_nope_dim + cfg->qk_rope_dim;

    m->scores = bt_lay(mem, &used, lanes * k->keys_pad, sizeof(float));
    m->p      = bt_lay(mem, &used, lanes * k->keys_pad, sizeof(bt_bf16));
    m->o      = bt_lay(mem, &used, lanes * bt_max_u32(c, cfg->v_dim), sizeof(float));
    if (per_head(k->kind)) {
        m->rows_f32 =
            bt_lay(mem, &used, (size_t)BT_PAGE_TOKENS * bt_max_u32(cfg->qk_nope_dim, cfg->v_dim),
                   sizeof(float));
        m->rows_bf16 = bt_lay(mem, &used, (size_t)BT_PAGE_TOKENS * bt_max_u32(width, cfg->v_dim),
                              sizeof(bt_bf16));
    }
    if (k->kind == BT_VARIANT_CC) {
        m->keys   = bt_lay(mem, &used, k->keys_elems, sizeof(bt_bf16));
        m->values = bt_lay(mem, &used, k->values_elems, sizeof(bt_bf16));
    }
    if (per_head(k->kind)) return used;
    m->latents = bt_lay(mem, &used, bt_cpu_packed_elems(c, BT_PAGE_TOKENS), sizeof(bt_bf16));
    if (k->kind == BT_VARIANT_A_CC) {
        m->keys  = bt_lay(mem, &used, k->keys_elems, sizeof(bt_bf16));
        m->query = bt_lay(mem, &used, k->s->kv_dim, sizeof(bt_bf16));
        return used;
    }
    m->scores_t = bt_lay(mem, &used, (size_t)BT_PAGE_TOKENS * lanes, sizeof(float));
    m->query    = bt_lay(mem, &used, bt_cpu_packed_elems((uint32_t)lanes, c), sizeof(bt_bf16));
    m->query_rope =
        bt_lay(mem, &used, bt_cpu_packed_elems((uint32_t)lanes, cfg->qk_rope_dim), sizeof(bt_bf16));
    return used;
}

/* Sizes that follow from the requests. */
static void size_up(bt_study *s, bt_variant_kind kind, uint32_t batch, uint32_t n_keys,
                    bt_core_cpu *k)
{
    *k            = (bt_core_cpu){.base    = {&bt_core_cpu_ops},
                                  .s       = s,
                                  .kind    = kind,
                                  .kernels = bt_device_cpu_table(s->dev),
                                  .pool    = bt_device_cpu_pool(s->dev),
                                  .n_keys  = n_keys,
                                  .n_pages = bt_kv_pages_for(n_keys)};
    k->keys_pad   = k->n_pages * BT_PAGE_TOKENS;
    k->item_heads = choose_heads(k, batch);
    k->keys_elems = bt_cpu_packed_elems(
        k->keys_pad, kind == BT_VARIANT_A_CC ? s->kv_dim : s->q_dim / s->cfg.n_heads);
    k->values_elems = k->n_pages * bt_cpu_packed_elems(s->cfg.v_dim, BT_PAGE_TOKENS);
}

static size_t cache_elems(const bt_core_cpu *k, uint32_t batch)
{
    return k->kind != BT_VARIANT_CD
               ? 0
               : (size_t)batch * k->s->cfg.n_heads * (k->keys_elems + k->values_elems);
}

static size_t core_bytes(const bt_study *s, bt_variant_kind kind, uint32_t batch, uint32_t n_keys)
{
    bt_core_cpu    k;
    bt_core_member none = {0};
    bt_study       copy = *s;

    size_up(&copy, kind, batch, n_keys, &k);
    return cache_elems(&k, batch) * sizeof(bt_bf16) +
           bt_cpu_pool_n_threads(k.pool) * lay_member(&k, NULL, &none);
}

static void core_close(bt_core *core)
{
    bt_core_cpu *k = (bt_core_cpu *)core;

    if (k == NULL) return;
    bt_free(k->members);
    bt_free(k->scratch);
    bt_free(k->keys);
    bt_free(k->values);
    bt_free(k->new_k);
    bt_free(k->new_v);
    bt_free(k);
}

static bt_status take_cache(bt_core_cpu *k)
{
    bt_status            st  = BT_OK;
    const bt_mla_config *cfg = &k->s->cfg;
    size_t               n   = (size_t)k->s->batch * cfg->n_heads;

    k->keys   = bt_calloc_aligned(n * k->keys_elems, sizeof(*k->keys));
    k->values = bt_calloc_aligned(n * k->values_elems, sizeof(*k->values));
    k->new_k  = bt_calloc_aligned(n * cfg->qk_nope_dim, sizeof(*k->new_k));
    k->new_v  = bt_calloc_aligned(n * cfg->v_dim, sizeof(*k->new_v));
    BT_REQUIRE(k->keys != NULL && k->values != NULL && k->new_k != NULL && k->new_v != NULL,
               BT_ERR_NO_MEMORY, "decompressed cache of %u requests, %u tokens: %zu bytes",
               k->s->batch, k->n_keys, cache_elems(k, k->s->batch) * sizeof(bt_bf16));
    BT_TRY(bt_core_fill(k));
out:
    return st;
}

static bt_status core_open(bt_study *s, bt_variant_kind kind, bt_core **core_out)
{
    bt_status      st   = BT_OK;
    bt_core_cpu   *k    = bt_calloc(1, sizeof(*k));
    bt_core_member none = {0};
    uint32_t       n;
    size_t         bytes;

    BT_REQUIRE(k != NULL, BT_ERR_NO_MEMORY, "variant header");
    size_up(s, kind, s->batch, bt_study_n_keys(s), k);
    n          = bt_cpu_pool_n_threads(k->pool);
    bytes      = lay_member(k, NULL, &none);
    k->members = bt_calloc(n, sizeof(*k->members));
    k->scratch = bt_calloc_aligned(n, bytes);
    BT_REQUIRE(k->members != NULL && k->scratch != NULL, BT_ERR_NO_MEMORY,
               "%s: buffers of %u threads, %zu bytes each", bt_variant_name(kind), n, bytes);
    for (uint32_t i = 0; i < n; i++)
        lay_member(k, (char *)k->scratch + i * bytes, &k->members[i]);
    if (kind == BT_VARIANT_CD) BT_TRY(take_cache(k));
    *core_out = &k->base;
    k         = NULL; /* handed over */
out:
    core_close(k == NULL ? NULL : &k->base);
    return st;
}

static bt_status core_append(bt_core *core, bt_role role)
{
    bt_core_cpu *k = (bt_core_cpu *)core;

    k->role = role;
    return k->kind == BT_VARIANT_CD ? bt_core_append(k) : BT_OK;
}

static bt_status core_attend(bt_core *core, bt_role role)
{
    bt_core_cpu *k = (bt_core_cpu *)core;

    k->role = role;
    if (per_head(k->kind))
        bt_core_attend_heads(k);
    else
        bt_core_attend_latents(k);
    return BT_OK;
}

const bt_core_ops bt_core_cpu_ops = {
    .attn   = &bt_attn_cpu_ops,
    .bytes  = core_bytes,
    .open   = core_open,
    .append = core_append,
    .attend = core_attend,
    .close  = core_close,
};

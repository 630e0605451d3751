/* attention/variants/cpu/latents.c - the absorbed variants: all heads attend to the latents.
 *
 * A_CC gives each head a key [latent | rope] of its own, as a concatenation that is broadcast over
 * heads does, and one product with it.  A_CC_ME and AM_CC_ME take the pages as they lie, a product
 * for the latent part and one for the rope part. */
#include <string.h>

#include "attention/variants/cpu/core_cpu.h"
#include "core/minmax.h"

/* Some heads of a request. */
typedef struct {
    uint32_t request, head, n_heads;
} item;

static item item_of(const bt_core_cpu *k, uint32_t chunk)
{
    uint32_t groups = (k->s->cfg.n_heads + k->item_heads - 1) / k->item_heads;
    item     it     = {.request = chunk / groups, .head = chunk % groups * k->item_heads};

    it.n_heads = bt_min_u32(k->s->cfg.n_heads - it.head, k->item_heads);
    return it;
}

static const bt_bf16 *page_rows(const bt_core_cpu *k, const item *it, uint32_t page)
{
    return bt_kv_pool_rows(k->s->pool, bt_study_pages(k->s, it->request)[page], 0);
}
static uint32_t page_keys(const bt_core_cpu *k, uint32_t page)
{
    return bt_min_u32(k->n_keys - page * BT_PAGE_TOKENS, BT_PAGE_TOKENS);
}
static const bt_bf16 *latent_query(const bt_core_cpu *k, const item *it)
{
    return k->s->ql + ((size_t)it->request * k->s->cfg.n_heads + it->head) * k->s->cfg.kv_lora_rank;
}
static const bt_bf16 *rope_query(const bt_core_cpu *k, const item *it)
{
    const bt_mla_config *cfg   = &k->s->cfg;
    size_t               width = cfg->qk_nope_dim + cfg->qk_rope_dim;

    return k->s->q + ((size_t)it->request * cfg->n_heads + it->head) * width + cfg->qk_nope_dim;
}

/* A_CC: the keys of one head, all of them before the product. */
static void score_concatenated(const bt_core_cpu *k, const bt_core_member *m, const item *it)
{
    const bt_mla_config *cfg   = &k->s->cfg;
    uint32_t             width = k->s->kv_dim;
    size_t               step  = cfg->qk_nope_dim + cfg->qk_rope_dim;

    for (uint32_t i = 0; i < it->n_heads; i++) {
        bt_cpu_mm mm = {.x      = m->query,
                        .ld_x   = width,
                        .packed = m->keys,
                        .y      = m->scores + (size_t)i * k->keys_pad,
                        .ld_y   = k->keys_pad,
                        .m      = 1,
                        .n      = k->n_keys,
                        .k      = width};

        for (uint32_t page = 0; page < k->n_pages; page++)
            k->kernels->rows->pack_rows(page_rows(k, it, page), width, page_keys(k, page), width,
                                        m->keys +
                                            page * bt_cpu_packed_elems(BT_PAGE_TOKENS, width));
        memcpy(m->query, latent_query(k, it) + (size_t)i * cfg->kv_lora_rank,
               cfg->kv_lora_rank * sizeof(*m->query));
        memcpy(m->query + cfg->kv_lora_rank, rope_query(k, it) + i * step,
               cfg->qk_rope_dim * sizeof(*m->query));
        k->kernels->mm[k->role](&mm);
    }
}

/* A_CC_ME, AM_CC_ME: the queries are the packed operand, so that no page is packed for its
 * scores. */
static void score_in_place(const bt_core_cpu *k, const bt_core_member *m, const item *it)
{
    const bt_mla_config *cfg = &k->s->cfg;
    uint32_t             c = cfg->kv_lora_rank, n = it->n_heads;

    k->kernels->rows->pack_rows(latent_query(k, it), c, n, c, m->query);
    k->kernels->rows->pack_rows(rope_query(k, it), cfg->qk_nope_dim + cfg->qk_rope_dim, n,
                                cfg->qk_rope_dim, m->query_rope);
    for (uint32_t page = 0; page < k->n_pages; page++) {
        float    *scores = m->scores + (size_t)page * BT_PAGE_TOKENS;
        bt_cpu_mm mm     = {.x      = page_rows(k, it, page),
                            .ld_x   = k->s->kv_dim,
                            .packed = m->query,
                            .y      = m->scores_t,
                            .ld_y   = n,
                            .m      = page_keys(k, page),
                            .n      = n,
                            .k      = c};

        k->kernels->mm[k->role](&mm);
        mm.x += c;
        mm.packed = m->query_rope;
        mm.k      = cfg->qk_rope_dim;
        mm.add    = true;
        k->kernels->mm[k->role](&mm);
        for (uint32_t i = 0; i < n; i++)
            for (uint32_t key = 0; key < mm.m; key++)
                scores[(size_t)i * k->keys_pad + key] = m->scores_t[(size_t)key * n + i];
    }
}

static void weigh(const bt_core_cpu *k, const bt_core_member *m, const item *it)
{
    uint32_t c = k->s->cfg.kv_lora_rank;

    for (uint32_t page = 0; page < k->n_pages; page++) {
        bt_cpu_mm mm = {.x      = m->p + (size_t)page * BT_PAGE_TOKENS,
                        .ld_x   = k->keys_pad,
                        .packed = m->latents,
                        .y      = m->o,
                        .ld_y   = c,
                        .m      = it->n_heads,
                        .n      = c,
                        .k      = page_keys(k, page),
                        .add    = page != 0};

        k->kernels->rows->pack_cols(page_rows(k, it, page), k->s->kv_dim, mm.k, c,
                                    bt_cpu_pad(mm.k, 32), m->latents);
        k->kernels->mm[k->role](&mm);
    }
}

static void latents_task(void *ctx, uint32_t chunk, uint32_t member)
{
    const bt_core_cpu    *k  = ctx;
    const bt_core_member *m  = &k->members[member];
    item                  it = item_of(k, chunk);
    uint32_t              c  = k->s->cfg.kv_lora_rank;
    float                 share[BT_CORE_HEADS];

    if (k->kind == BT_VARIANT_A_CC)
        score_concatenated(k, m, &it);
    else
        score_in_place(k, m, &it);
    for (uint32_t i = 0; i < it.n_heads; i++)
        share[i] = bt_core_softmax(k, m, i);
    weigh(k, m, &it);
    for (uint32_t i = 0; i < it.n_heads; i++) {
        float *o = m->o + (size_t)i * c;

        k->kernels->rows->scale(o, c, share[i]);
        k->kernels->rows->to_bf16(
            o, c, k->s->ol + ((size_t)it.request * k->s->cfg.n_heads + it.head + i) * c);
    }
}

void bt_core_attend_latents(bt_core_cpu *k)
{
    uint32_t groups = (k->s->cfg.n_heads + k->item_heads - 1) / k->item_heads;

    bt_cpu_pool_run(k->pool, k->s->batch * groups, latents_task, k);
}

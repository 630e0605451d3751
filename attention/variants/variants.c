/* attention/variants/variants.c - a variant's step: products with weights for every variant, with
 * the back end's parts between them. */
#include "attention/variants/variants.h"

#include "attention/variants/core.h"
#include "core/alloc.h"
#include "core/clock.h"

static const struct {
    const char *name, *text;
} VARIANTS[BT_N_VARIANTS] = {
    [BT_VARIANT_CD]       = {"CD",       "caches each head's keys and values"                },
    [BT_VARIANT_CC]       = {"CC",       "caches latents, decompresses all of them each step"},
    [BT_VARIANT_A_CC]     = {"A_CC",     "absorbed, makes each head's key [latent | rope]"   },
    [BT_VARIANT_A_CC_ME]  = {"A_CC_ME",  "absorbed, the rope part as a product of its own"   },
    [BT_VARIANT_AM_CC_ME] = {"AM_CC_ME", "the same, absorbed matrices multiplied out before" },
    [BT_VARIANT_FUSED]    = {"fused",    "Baton's kernel: absorbed, one pass over the pages" },
};

const char *bt_variant_name(bt_variant_kind kind) { return VARIANTS[kind].name; }
const char *bt_variant_text(bt_variant_kind kind) { return VARIANTS[kind].text; }

size_t bt_variant_bytes(const bt_study *s, bt_variant_kind kind, uint32_t batch, uint32_t n_prefix)
{
    return kind == BT_VARIANT_FUSED ? 0 : s->ops->bytes(s, kind, batch, n_prefix + 1);
}

bt_status bt_variant_open(bt_study *s, bt_variant_kind kind, bt_variant **variant_out)
{
    bt_status   st = BT_OK;
    bt_variant *v  = bt_calloc(1, sizeof(*v));

    BT_REQUIRE(v != NULL, BT_ERR_NO_MEMORY, "variant header");
    BT_REQUIRE(s->batch != 0, BT_ERR_INVALID_ARG, "the study has no requests");
    v->study = s;
    v->kind  = kind;
    if (kind == BT_VARIANT_AM_CC_ME && s->merged.q == NULL) BT_TRY(bt_merged_init(s));
    if (kind != BT_VARIANT_FUSED) BT_TRY(s->ops->open(s, kind, &v->core));
    *variant_out = v;
    v            = NULL; /* handed over */
out:
    bt_variant_close(v);
    return st;
}

void bt_variant_close(bt_variant *v)
{
    if (v == NULL) return;
    if (v->core != NULL) v->core->ops->close(v->core);
    bt_free(v);
}

/* ---- a step ---- */

static bt_gemm product_of(const bt_study *s, const bt_linear *w, const bt_bf16 *x, bt_bf16 *y)
{
    return (bt_gemm){.w       = w,
                     .x       = x,
                     .ld_x    = bt_linear_k(w),
                     .y       = y,
                     .ld_y    = bt_linear_n(w),
                     .m       = s->batch,
                     .y_dtype = BT_BF16};
}

static bt_status product(const bt_study *s, bt_role role, const bt_linear *w, const bt_bf16 *x,
                         bt_bf16 *y)
{
    bt_gemm gemm = product_of(s, w, x, y);

    return bt_device_gemm(s->dev, role, 1, &gemm);
}

/* y_h = W_h x_h for every head; head h's row begins at h * step. */
static bt_status product_of_heads(bt_study *s, bt_role role, bt_linear *const *w, const bt_bf16 *x,
                                  size_t ld_x, size_t step_x, bt_bf16 *y, size_t ld_y,
                                  size_t step_y)
{
    for (size_t h = 0; h < s->cfg.n_heads; h++)
        s->gemms[h] = (bt_gemm){.w       = w[h],
                                .x       = x + h * step_x,
                                .ld_x    = ld_x,
                                .y       = y + h * step_y,
                                .ld_y    = ld_y,
                                .m       = s->batch,
                                .y_dtype = BT_BF16};
    return bt_device_gemm(s->dev, role, s->cfg.n_heads, s->gemms);
}

static bt_status queries(bt_variant *v, bt_role role, const bt_bf16 *x)
{
    bt_status            st     = BT_OK;
    bt_study            *s      = v->study;
    const bt_mla_config *cfg    = &s->cfg;
    const bt_bf16       *in     = x;
    size_t               width  = cfg->qk_nope_dim + cfg->qk_rope_dim;
    bool                 low    = cfg->q_lora_rank != 0;
    bt_gemm              of_x[] = {product_of(s, low ? s->w.q_a : s->w.q, x, low ? s->q_a : s->q),
                                   product_of(s, s->w.kv_a, x, s->kv)};

    /* What serves takes both products of x at once (attention/mla.c). */
    if (v->kind == BT_VARIANT_FUSED)
        BT_TRY(bt_device_gemm(s->dev, role, 2, of_x));
    else if (low)
        BT_TRY(bt_device_gemm(s->dev, role, 1, of_x));
    if (low) {
        BT_TRY(bt_device_rms_norm(s->dev, s->batch, s->q_in, s->q_a, s->q_in, s->w.q_a_norm,
                                  cfg->latent_eps, s->q_a, s->q_in));
        in = s->q_a;
    }
    if (v->kind != BT_VARIANT_AM_CC_ME) {
        if (low || v->kind != BT_VARIANT_FUSED)
            BT_TRY(product(s, role, low ? s->w.q_b : s->w.q, in, s->q));
    } else {
        BT_TRY(product(s, role, s->merged.q, in, s->ql));
        BT_TRY(product_of_heads(s, role, s->merged.rope, in, s->q_in, 0, s->q + cfg->qk_nope_dim,
                                s->q_dim, width));
    }
    BT_TRY(bt_device_sync(s->dev));
out:
    return st;
}

/* On the study's pages. */
static bt_attn_call call_of(const bt_study *s)
{
    return (bt_attn_call){.w       = &s->w,
                          .pool    = s->pool,
                          .q       = s->q,
                          .kv      = s->kv,
                          .out     = s->heads,
                          .n_spans = s->batch,
                          .spans   = s->spans};
}

static bt_status append(bt_variant *v, bt_role role, const bt_bf16 *x)
{
    bt_status    st   = BT_OK;
    bt_study    *s    = v->study;
    bt_attn_call call = call_of(s);

    if (v->kind != BT_VARIANT_FUSED) BT_TRY(product(s, role, s->w.kv_a, x, s->kv));
    BT_TRY(bt_device_rms_norm(s->dev, s->batch, s->cfg.kv_lora_rank, s->kv, s->kv_dim,
                              s->w.kv_a_norm, s->cfg.latent_eps, s->kv, s->kv_dim));
    BT_TRY(s->attn->ops->append(s->attn, &call));
    if (v->core != NULL) BT_TRY(v->core->ops->append(v->core, role));
    BT_TRY(bt_device_sync(s->dev));
out:
    return st;
}

static bt_status attend(bt_variant *v, bt_role role)
{
    bt_status            st     = BT_OK;
    bt_study            *s      = v->study;
    const bt_mla_config *cfg    = &s->cfg;
    size_t               c      = cfg->kv_lora_rank;
    bool                 latent = v->kind == BT_VARIANT_A_CC || v->kind == BT_VARIANT_A_CC_ME;
    bt_attn_call         call   = call_of(s);

    if (v->core == NULL) {
        BT_TRY(s->attn->ops->attend[BT_FORM_ABSORBED](s->attn, &call));
        BT_TRY(bt_device_sync(s->dev));
        return st;
    }
    if (latent)
        BT_TRY(product_of_heads(s, role, s->w.ukt, s->q, s->q_dim,
                                cfg->qk_nope_dim + cfg->qk_rope_dim, s->ql, cfg->n_heads * c, c));
    BT_TRY(v->core->ops->attend(v->core, role));
    if (latent)
        BT_TRY(product_of_heads(s, role, s->w.uv, s->ol, cfg->n_heads * c, c, s->heads,
                                (size_t)cfg->n_heads * cfg->v_dim, cfg->v_dim));
    BT_TRY(bt_device_sync(s->dev));
out:
    return st;
}

static bt_status output(bt_variant *v, bt_role role, bt_bf16 *out_rows)
{
    bt_status st = BT_OK;
    bt_study *s  = v->study;

    if (v->kind == BT_VARIANT_AM_CC_ME)
        BT_TRY(product(s, role, s->merged.o, s->ol, out_rows));
    else
        BT_TRY(product(s, role, s->w.o, s->heads, out_rows));
    BT_TRY(bt_device_sync(s->dev));
out:
    return st;
}

bt_status bt_variant_step(bt_variant *v, bt_role role, const bt_bf16 *x, bt_bf16 *out_rows,
                          uint64_t stage_ns_out[BT_N_STAGES])
{
    bt_status st                  = BT_OK;
    uint64_t  at[BT_N_STAGES + 1] = {bt_now_ns()};

    for (uint32_t r = 0; r < v->study->batch; r++)
        v->study->spans[r].role = role;
    BT_TRY(queries(v, role, x));
    at[1] = bt_now_ns();
    BT_TRY(append(v, role, x));
    at[2] = bt_now_ns();
    BT_TRY(attend(v, role));
    at[3] = bt_now_ns();
    BT_TRY(output(v, role, out_rows));
    at[4] = bt_now_ns();
    for (int i = 0; i < BT_N_STAGES; i++)
        stage_ns_out[i] = at[i + 1] - at[i];
out:
    return st;
}

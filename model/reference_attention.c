/* model/reference_attention.c - MLA in the normal form, one head after the other. */
#include <math.h>
#include <string.h>

#include "core/alloc.h"
#include "model/reference_parts.h"

void bt_ref_rope(const bt_model_config *cfg, uint32_t position, bool halves, float *x)
{
    uint32_t half = cfg->mla.qk_rope_dim / 2;

    for (uint32_t i = 0; i < half; i++) {
        double angle = position * cfg->rope_inv_freq[i];
        float  c     = (float)(cos(angle) * cfg->mla.rope_magnitude);
        float  s     = (float)(sin(angle) * cfg->mla.rope_magnitude);
        float *a = x + (halves ? i : 2 * i), *b = x + (halves ? half + i : 2 * i + 1);
        float  one = *a, two = *b;

        *a = one * c - two * s;
        *b = one * s + two * c;
    }
}

/* q [t][n_heads][dn + dr] after RoPE; and what the layer's indexer chooses. */
static bt_status queries(bt_reference *r, uint32_t layer, const float *x, float *q)
{
    const bt_mla_config *m    = &r->cfg->mla;
    uint32_t             dk   = m->qk_nope_dim + m->qk_rope_dim;
    uint32_t             rank = m->q_lora_rank;
    float               *low  = NULL;
    bt_status            st   = BT_OK;

    if (rank == 0) {
        BT_TRY(bt_ref_linear(r, r->t, m->n_heads * dk, m->hidden, x, q,
                             bt_ref_name(r, layer, "self_attn.q_proj.weight")));
    } else {
        low = bt_calloc((size_t)r->t * rank, sizeof(*low));
        BT_REQUIRE(low != NULL, BT_ERR_NO_MEMORY, "reference: queries");
        BT_TRY(bt_ref_linear(r, r->t, rank, m->hidden, x, low,
                             bt_ref_name(r, layer, "self_attn.q_a_proj.weight")));
        BT_TRY(bt_ref_norm(r, r->t, rank, low, rank, m->latent_eps, low,
                           bt_ref_name(r, layer, "self_attn.q_a_layernorm.weight")));
        if (bt_model_layer_has_indexer(r->cfg, layer))
            BT_TRY(bt_ref_choose(r, layer, x, low, r->seen));
        BT_TRY(bt_ref_linear(r, r->t, m->n_heads * dk, rank, low, q,
                             bt_ref_name(r, layer, "self_attn.q_b_proj.weight")));
    }
    for (uint32_t p = 0; p < r->t; p++)
        for (uint32_t head = 0; head < m->n_heads; head++)
            bt_ref_rope(r->cfg, p, false,
                        q + ((size_t)p * m->n_heads + head) * dk + m->qk_nope_dim);
out:
    bt_free(low);
    return st;
}

/* latent [t][c] after its norm and k_rope [t][dr] after RoPE. */
static bt_status latents(bt_reference *r, uint32_t layer, const float *x, float *latent,
                         float *k_rope)
{
    const bt_mla_config *m    = &r->cfg->mla;
    uint32_t             rank = m->kv_lora_rank, dr = m->qk_rope_dim;
    float               *kv = bt_calloc((size_t)r->t * (rank + dr), sizeof(*kv));
    bt_status            st = BT_OK;

    BT_REQUIRE(kv != NULL, BT_ERR_NO_MEMORY, "reference: latents");
    BT_TRY(bt_ref_linear(r, r->t, rank + dr, m->hidden, x, kv,
                         bt_ref_name(r, layer, "self_attn.kv_a_proj_with_mqa.weight")));
    BT_TRY(bt_ref_norm(r, r->t, rank, kv, rank + dr, m->latent_eps, latent,
                       bt_ref_name(r, layer, "self_attn.kv_a_layernorm.weight")));
    for (uint32_t p = 0; p < r->t; p++) {
        memcpy(k_rope + (size_t)p * dr, kv + (size_t)p * (rank + dr) + rank, dr * sizeof(*kv));
        bt_ref_rope(r->cfg, p, false, k_rope + (size_t)p * dr);
    }
out:
    bt_free(kv);
    return st;
}

/* out[j] = scale (q . key j) for j < n; kt is [dk][ld]. */
static void score_keys(uint32_t n, uint32_t dk, float scale, const float *q, const float *kt,
                       size_t ld, float *scores)
{
    memset(scores, 0, n * sizeof(*scores));
    for (size_t d = 0; d < dk; d++)
        for (size_t j = 0; j < n; j++)
            scores[j] += q[d] * kt[d * ld + j];
    for (size_t j = 0; j < n; j++)
        scores[j] *= scale;
}

/* Of the scores that are seen; the others become 0. */
static void softmax(uint32_t n, const bool *seen, float *scores)
{
    float max = -INFINITY, sum = 0.0f;

    for (size_t j = 0; j < n && seen != NULL; j++)
        if (!seen[j]) scores[j] = -INFINITY;

    for (size_t j = 0; j < n; j++)
        max = fmaxf(max, scores[j]);
    for (size_t j = 0; j < n; j++) {
        scores[j] = expf(scores[j] - max);
        sum += scores[j];
    }
    for (size_t j = 0; j < n; j++)
        scores[j] /= sum;
}

/* One head: q [t] rows of stride ld_q, kt [dk][t], v [t][dv]; out rows have stride ld_out. */
static void attend_head(const bt_reference *r, const float *q, size_t ld_q, const float *kt,
                        const float *v, float *scores, float *out, size_t ld_out)
{
    const bt_mla_config *m  = &r->cfg->mla;
    uint32_t             dk = m->qk_nope_dim + m->qk_rope_dim;

    for (uint32_t p = 0; p < r->t; p++) {
        float *o = out + p * ld_out, scale = m->softmax_scale;

        if (m->query_beta != 0) scale *= (float)(1 + m->query_beta * log(1 + p / m->query_context));
        score_keys(p + 1, dk, scale, q + p * ld_q, kt, r->t, scores);
        softmax(p + 1, r->seen != NULL ? r->seen + (size_t)p * r->t : NULL, scores);
        memset(o, 0, m->v_dim * sizeof(*o));
        for (size_t j = 0; j <= p; j++)
            for (size_t d = 0; d < m->v_dim; d++)
                o[d] += scores[j] * v[j * m->v_dim + d];
    }
}

/* All heads: keys and values are expanded from the latents with kv_b (transposed). */
static bt_status attend(const bt_reference *r, const float *q, const float *latent,
                        const float *k_rope, const float *kv_b, float *out)
{
    const bt_mla_config *m  = &r->cfg->mla;
    uint32_t             dn = m->qk_nope_dim, dr = m->qk_rope_dim, dv = m->v_dim;
    size_t               t = r->t, n = m->n_heads, both = dn + dv, dk = dn + dr;
    float               *kt     = bt_calloc(t * dk, sizeof(*kt));
    float               *v      = bt_calloc(t * dv, sizeof(*v));
    float               *kv     = bt_calloc(t * n * both, sizeof(*kv));
    float               *scores = bt_calloc(t, sizeof(*scores));
    bt_status            st     = BT_OK;

    BT_REQUIRE(kt != NULL && v != NULL && kv != NULL && scores != NULL, BT_ERR_NO_MEMORY,
               "reference: attention");
    bt_ref_matmul(t, n * both, m->kv_lora_rank, latent, kv_b, kv);
    for (size_t head = 0; head < n; head++) {
        for (size_t p = 0; p < t; p++) {
            const float *row = kv + (p * n + head) * both;

            for (size_t d = 0; d < dn; d++)
                kt[d * t + p] = row[d];
            for (size_t d = 0; d < dr; d++)
                kt[(dn + d) * t + p] = k_rope[p * dr + d];
            memcpy(v + p * dv, row + dn, dv * sizeof(*v));
        }
        attend_head(r, q + head * dk, n * dk, kt, v, scores, out + head * dv, n * dv);
    }
out:
    bt_free(kt);
    bt_free(v);
    bt_free(kv);
    bt_free(scores);
    return st;
}

static void keep(float *out, uint32_t layer, size_t n, const float *values)
{
    if (out != NULL) memcpy(out + layer * n, values, n * sizeof(*values));
}

bt_status bt_ref_attention(bt_reference *r, uint32_t layer, const float *x, float *y)
{
    const bt_mla_config *m      = &r->cfg->mla;
    size_t               t      = r->t;
    uint32_t             dk     = m->qk_nope_dim + m->qk_rope_dim;
    float               *q      = bt_calloc(t * m->n_heads * dk, sizeof(*q));
    float               *latent = bt_calloc(t * m->kv_lora_rank, sizeof(*latent));
    float               *k_rope = bt_calloc(t * m->qk_rope_dim, sizeof(*k_rope));
    float               *heads  = bt_calloc(t * m->n_heads * m->v_dim, sizeof(*heads));
    float               *kv_b   = NULL;
    bt_status            st     = BT_OK;

    BT_REQUIRE(q != NULL && latent != NULL && k_rope != NULL && heads != NULL, BT_ERR_NO_MEMORY,
               "reference: attention");
    BT_TRY(queries(r, layer, x, q));
    BT_TRY(latents(r, layer, x, latent, k_rope));
    BT_TRY(bt_ref_load(r, m->n_heads * (m->qk_nope_dim + m->v_dim), m->kv_lora_rank, true,
                       bt_ref_name(r, layer, "self_attn.kv_b_proj.weight"), &kv_b));
    BT_TRY(attend(r, q, latent, k_rope, kv_b, heads));
    BT_TRY(bt_ref_linear(r, t, m->hidden, m->n_heads * m->v_dim, heads, y,
                         bt_ref_name(r, layer, "self_attn.o_proj.weight")));
    keep(r->run->latent, layer, t * m->kv_lora_rank, latent);
    keep(r->run->k_rope, layer, t * m->qk_rope_dim, k_rope);
out:
    bt_free(q);
    bt_free(latent);
    bt_free(k_rope);
    bt_free(heads);
    bt_free(kv_b);
    return st;
}

/* model/reference_index.c - sparse attention: which positions a token attends to. */
#include <math.h>
#include <string.h>

#include "core/alloc.h"
#include "model/reference_parts.h"

static bt_status layer_norm(bt_reference *r, uint32_t layer, uint32_t n, float *x)
{
    float    *weight = NULL, *bias = NULL;
    bt_status st = BT_OK;

    BT_TRY(bt_ref_load(r, 1, n, false, bt_ref_name(r, layer, "self_attn.indexer.k_norm.weight"),
                       &weight));
    BT_TRY(
        bt_ref_load(r, 1, n, false, bt_ref_name(r, layer, "self_attn.indexer.k_norm.bias"), &bias));
    for (uint32_t p = 0; p < r->t; p++, x += n) {
        double mean = 0, square = 0;

        for (uint32_t i = 0; i < n; i++)
            mean += (double)x[i] / n;
        for (uint32_t i = 0; i < n; i++)
            square += ((double)x[i] - mean) * ((double)x[i] - mean) / n;
        for (uint32_t i = 0; i < n; i++)
            x[i] = (float)(((double)x[i] - mean) / sqrt(square + 1e-6)) * weight[i] + bias[i];
    }
out:
    bt_free(weight);
    bt_free(bias);
    return st;
}

/* seen[j] of the n largest scores of n_keys, of equal ones the earliest. */
static void take_largest(uint32_t n, uint32_t n_keys, const float *scores, bool *seen)
{
    memset(seen, 0, n_keys * sizeof(*seen));
    for (uint32_t i = 0; i < n && i < n_keys; i++) {
        uint32_t best = n_keys;

        for (uint32_t j = 0; j < n_keys; j++)
            if (!seen[j] && (best == n_keys || scores[j] > scores[best])) best = j;
        seen[best] = true;
    }
}

bt_status bt_ref_choose(bt_reference *r, uint32_t layer, const float *x, const float *low,
                        bool *seen)
{
    const bt_mla_config *m = &r->cfg->mla;
    size_t               t = r->t, heads = m->index_heads, dim = m->index_dim;
    float               *q = bt_calloc(t * heads * dim, sizeof(*q));
    float               *k = bt_calloc(t * dim, sizeof(*k)), *w = bt_calloc(t * heads, sizeof(*w));
    float               *scores = bt_calloc(t, sizeof(*scores));
    bt_status            st     = BT_OK;

    BT_REQUIRE(q != NULL && k != NULL && w != NULL && scores != NULL, BT_ERR_NO_MEMORY,
               "reference: indexer");
    BT_TRY(bt_ref_linear(r, t, m->index_heads * m->index_dim, m->q_lora_rank, low, q,
                         bt_ref_name(r, layer, "self_attn.indexer.wq_b.weight")));
    BT_TRY(bt_ref_linear(r, t, m->index_dim, m->hidden, x, k,
                         bt_ref_name(r, layer, "self_attn.indexer.wk.weight")));
    BT_TRY(bt_ref_linear(r, t, m->index_heads, m->hidden, x, w,
                         bt_ref_name(r, layer, "self_attn.indexer.weights_proj.weight")));
    BT_TRY(layer_norm(r, layer, m->index_dim, k));
    for (uint32_t p = 0; p < t; p++) {
        bt_ref_rope(r->cfg, p, m->index_halves, k + p * dim);
        for (size_t h = 0; h < heads; h++)
            bt_ref_rope(r->cfg, p, m->index_halves, q + (p * heads + h) * dim);
    }
    for (uint32_t p = 0; p < t; p++) {
        for (size_t j = 0; j <= p; j++) {
            scores[j] = 0;
            for (size_t h = 0; h < heads; h++) {
                float dot = 0;

                for (size_t d = 0; d < dim; d++)
                    dot += q[(p * heads + h) * dim + d] * k[j * dim + d];
                scores[j] += w[p * heads + h] * fmaxf(dot, 0);
            }
        }
        take_largest(m->index_topk, p + 1, scores, seen + p * t);
    }
out:
    bt_free(q);
    bt_free(k);
    bt_free(w);
    bt_free(scores);
    return st;
}

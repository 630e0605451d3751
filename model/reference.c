#include "model/reference.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/bf16.h"
#include "model/reference_parts.h"

enum { FP8_BLOCK = 128, INT4_GROUP = 32 };

static float fp8_value(uint8_t byte)
{
    int   exponent = byte >> 3 & 15, mantissa = byte & 7;
    float sign = byte & 0x80 ? -1.0f : 1.0f;

    if (exponent == 15 && mantissa == 7) return NAN;
    if (exponent == 0) return sign * ldexpf((float)mantissa, -9);
    return sign * ldexpf(8.0f + (float)mantissa, exponent - 10);
}

static float element(const bt_tensor *t, size_t i)
{
    const char *data = t->data;
    bt_bf16     half;
    float       f = 0.0f;

    switch (t->dtype) {
    case BT_ST_BF16: memcpy(&half, data + i * 2, 2); return bt_bf16_to_f32(half);
    case BT_ST_F32: memcpy(&f, data + i * 4, 4); return f;
    case BT_ST_F8_E4M3: return fp8_value((uint8_t)data[i]);
    case BT_ST_I32: { /* eight values of 4 bits, each 8 more than it stands for */
        uint32_t word;

        memcpy(&word, data + i / 8 * 4, 4);
        return (float)(word >> i % 8 * 4 & 15) - 8;
    }
    default: return NAN;
    }
}

const char *bt_ref_name(bt_reference *r, uint32_t layer, const char *what)
{
    snprintf(r->name, sizeof(r->name), "model.layers.%u.%s", layer, what);
    return r->name;
}

static bt_status find(const bt_reference *r, const char *name, size_t n_elems,
                      const bt_tensor **tensor_out)
{
    const bt_tensor *t     = bt_safetensors_find(r->st, name);
    bt_status        st    = BT_OK;
    size_t           found = 1;

    BT_REQUIRE(t != NULL, BT_ERR_FORMAT, "reference: no tensor %s", name);
    for (uint32_t d = 0; d < t->n_dims; d++)
        found *= t->shape[d];
    BT_REQUIRE(found == n_elems, BT_ERR_FORMAT, "reference: %s has %zu elements, expected %zu",
               name, found, n_elems);
    *tensor_out = t;
out:
    return st;
}

/* The matrix under `name`, or its words of 4 bits; and its scales, of which one holds for block[0]
 * rows and block[1] columns. */
static bt_status find_matrix(const bt_reference *r, const char *name, uint32_t n, uint32_t k,
                             const bt_tensor **t_out, const bt_tensor **scale_out,
                             uint32_t block[2])
{
    bt_status st = BT_OK;
    char      other[300];

    block[0] = block[1] = 1;
    snprintf(other, sizeof(other), "%s_packed", name);
    if (bt_safetensors_find(r->st, other) != NULL) {
        BT_TRY(find(r, other, (size_t)n * k / 8, t_out));
        snprintf(other, sizeof(other), "%s_scale", name);
        BT_TRY(find(r, other, (size_t)n * k / INT4_GROUP, scale_out));
        block[1] = INT4_GROUP;
        goto out;
    }
    BT_TRY(find(r, name, (size_t)n * k, t_out));
    if ((*t_out)->dtype != BT_ST_F8_E4M3) goto out;
    block[0] = block[1] = FP8_BLOCK;
    snprintf(other, sizeof(other), "%s_scale_inv", name);
    if (bt_safetensors_find(r->st, other) == NULL) snprintf(other, sizeof(other), "%s_scale", name);
    if (r->cfg->fp8_one_scale) {
        block[0] = n;
        block[1] = k;
        BT_TRY(find(r, other, 1, scale_out));
        goto out;
    }
    BT_TRY(find(r, other,
                (size_t)((n + FP8_BLOCK - 1) / FP8_BLOCK) * ((k + FP8_BLOCK - 1) / FP8_BLOCK),
                scale_out));
out:
    return st;
}

bt_status bt_ref_load(const bt_reference *r, uint32_t n, uint32_t k, bool transpose,
                      const char *name, float **values_out)
{
    bt_status        st     = BT_OK;
    float           *values = NULL;
    const bt_tensor *t = NULL, *scale = NULL;
    uint32_t         block[2];
    size_t           per_row;

    BT_TRY(find_matrix(r, name, n, k, &t, &scale, block));
    per_row = (k + block[1] - 1) / block[1];
    values  = bt_calloc((size_t)n * k, sizeof(*values));
    BT_REQUIRE(values != NULL, BT_ERR_NO_MEMORY, "reference: %s", name);
    for (size_t i = 0; i < n; i++) {
        for (size_t j = 0; j < k; j++) {
            float v = element(t, i * k + j);

            if (scale != NULL) {
                v *= element(scale, i / block[0] * per_row + j / block[1]);
                v = bt_bf16_to_f32(bt_bf16_from_f32(v));
            }
            values[transpose ? j * n + i : i * k + j] = v;
        }
    }
    *values_out = values;
out:
    return st;
}

void bt_ref_matmul(size_t rows, size_t n, size_t k, const float *x, const float *wt, float *y)
{
    for (size_t r = 0; r < rows; r++) {
        float *out = y + r * n;

        memset(out, 0, n * sizeof(*out));
        for (size_t i = 0; i < k; i++) {
            float        a = x[r * k + i];
            const float *w = wt + i * n;

            for (size_t c = 0; c < n; c++)
                out[c] += a * w[c];
        }
    }
}

bt_status bt_ref_linear(const bt_reference *r, size_t rows, uint32_t n, uint32_t k, const float *x,
                        float *y, const char *name)
{
    float    *wt = NULL;
    bt_status st = BT_OK;

    BT_TRY(bt_ref_load(r, n, k, true, name, &wt));
    bt_ref_matmul(rows, n, k, x, wt, y);
out:
    bt_free(wt);
    return st;
}

bt_status bt_ref_norm(const bt_reference *r, size_t rows, uint32_t n, const float *x, size_t ld_x,
                      float eps, float *y, const char *name)
{
    float    *weight = NULL;
    bt_status st     = BT_OK;

    BT_TRY(bt_ref_load(r, 1, n, false, name, &weight));
    for (size_t row = 0; row < rows; row++) {
        double sum = 0.0;
        float  factor;

        for (size_t i = 0; i < n; i++)
            sum += (double)x[row * ld_x + i] * (double)x[row * ld_x + i];
        factor = (float)(1.0 / sqrt(sum / n + (double)eps));
        for (size_t i = 0; i < n; i++)
            y[row * n + i] = weight[i] * (x[row * ld_x + i] * factor);
    }
out:
    bt_free(weight);
    return st;
}

bt_status bt_ref_mlp(bt_reference *r, size_t rows, uint32_t layer, const char *what, uint32_t dim,
                     const float *x, float *y)
{
    uint32_t  h    = r->cfg->hidden;
    float    *gate = bt_calloc(rows * dim, sizeof(*gate));
    float    *up   = bt_calloc(rows * dim, sizeof(*up));
    bt_status st   = BT_OK;
    char      part[128];

    BT_REQUIRE(gate != NULL && up != NULL, BT_ERR_NO_MEMORY, "reference: %s", what);
    snprintf(part, sizeof(part), "%s.gate_proj.weight", what);
    BT_TRY(bt_ref_linear(r, rows, dim, h, x, gate, bt_ref_name(r, layer, part)));
    snprintf(part, sizeof(part), "%s.up_proj.weight", what);
    BT_TRY(bt_ref_linear(r, rows, dim, h, x, up, bt_ref_name(r, layer, part)));
    for (size_t i = 0; i < rows * dim; i++)
        gate[i] = gate[i] / (1.0f + expf(-gate[i])) * up[i];
    snprintf(part, sizeof(part), "%s.down_proj.weight", what);
    BT_TRY(bt_ref_linear(r, rows, h, dim, gate, y, bt_ref_name(r, layer, part)));
out:
    bt_free(gate);
    bt_free(up);
    return st;
}

static void keep_hidden(const bt_reference *r, uint32_t index)
{
    size_t n = (size_t)r->t * r->cfg->hidden;

    if (r->run->hidden != NULL) memcpy(r->run->hidden + index * n, r->h, n * sizeof(*r->h));
}

bt_status bt_ref_embed(const bt_reference *r, size_t rows, const uint32_t *tokens, float *out)
{
    const bt_model_config *cfg   = r->cfg;
    float                 *table = NULL;
    bt_status              st    = BT_OK;

    BT_TRY(
        bt_ref_load(r, cfg->vocab_size, cfg->hidden, false, "model.embed_tokens.weight", &table));
    for (size_t p = 0; p < rows; p++) {
        BT_REQUIRE(tokens[p] < cfg->vocab_size, BT_ERR_INVALID_ARG,
                   "reference: token %u at %zu, vocabulary %u", tokens[p], p, cfg->vocab_size);
        memcpy(out + p * cfg->hidden, table + (size_t)tokens[p] * cfg->hidden,
               cfg->hidden * sizeof(*table));
    }
out:
    bt_free(table);
    return st;
}

static bt_status experts(bt_reference *r, uint32_t layer, uint32_t moe_layer)
{
    bt_status st = BT_OK;

    BT_TRY(bt_ref_experts(r, layer, moe_layer, r->normed, r->out));
    if (r->cfg->moe_norm)
        BT_TRY(bt_ref_norm(r, r->t, r->cfg->hidden, r->out, r->cfg->hidden, r->cfg->rms_norm_eps,
                           r->out, bt_ref_name(r, layer, "post_mlp_layernorm.weight")));
out:
    return st;
}

bt_status bt_ref_layer(bt_reference *r, uint32_t layer, uint32_t moe_layer)
{
    const bt_model_config *cfg = r->cfg;
    size_t                 n   = (size_t)r->t * cfg->hidden;
    bt_status              st  = BT_OK;

    BT_TRY(bt_ref_norm(r, r->t, cfg->hidden, r->h, cfg->hidden, cfg->rms_norm_eps, r->normed,
                       bt_ref_name(r, layer, "input_layernorm.weight")));
    BT_TRY(bt_ref_attention(r, layer, r->normed, r->out));
    for (size_t i = 0; i < n; i++)
        r->h[i] += r->out[i];
    BT_TRY(bt_ref_norm(r, r->t, cfg->hidden, r->h, cfg->hidden, cfg->rms_norm_eps, r->normed,
                       bt_ref_name(r, layer, "post_attention_layernorm.weight")));
    if (bt_model_layer_is_moe(cfg, layer))
        BT_TRY(experts(r, layer, moe_layer));
    else
        BT_TRY(bt_ref_mlp(r, r->t, layer, "mlp", cfg->dense_dim, r->normed, r->out));
    for (size_t i = 0; i < n; i++)
        r->h[i] += r->out[i];
    keep_hidden(r, layer + 1);
out:
    return st;
}

const char *bt_ref_head_name(const bt_reference *r)
{
    return r->cfg->tie_embeddings ? "model.embed_tokens.weight" : "lm_head.weight";
}

bt_status bt_reference_forward(const bt_model_config *cfg, const bt_safetensors *set,
                               const bt_reference_run *run)
{
    bt_status    st    = BT_OK;
    size_t       n     = (size_t)run->n_tokens * cfg->hidden;
    bt_reference r     = {.cfg = cfg, .st = set, .run = run, .t = run->n_tokens};
    size_t       first = run->n_tokens - run->n_logit_rows;
    uint32_t     n_moe = 0;

    r.h      = bt_calloc(n, sizeof(*r.h));
    r.normed = bt_calloc(n, sizeof(*r.normed));
    r.out    = bt_calloc(n, sizeof(*r.out));
    if (cfg->mla.index_topk != 0)
        r.seen = bt_calloc((size_t)run->n_tokens * run->n_tokens, sizeof(*r.seen));
    BT_REQUIRE(r.h != NULL && r.normed != NULL && r.out != NULL &&
                   (r.seen != NULL || cfg->mla.index_topk == 0),
               BT_ERR_NO_MEMORY, "reference: %u tokens", run->n_tokens);
    BT_TRY(bt_ref_embed(&r, r.t, run->tokens, r.h));
    keep_hidden(&r, 0);
    for (uint32_t layer = 0; layer < cfg->n_layers; layer++) {
        BT_TRY(bt_ref_layer(&r, layer, n_moe));
        n_moe += bt_model_layer_is_moe(cfg, layer);
    }
    BT_TRY(bt_ref_norm(&r, r.t, cfg->hidden, r.h, cfg->hidden, cfg->rms_norm_eps, r.normed,
                       "model.norm.weight"));
    BT_TRY(bt_ref_linear(&r, run->n_logit_rows, cfg->vocab_size, cfg->hidden,
                         r.normed + first * cfg->hidden, run->logits, bt_ref_head_name(&r)));
    if (run->mtp_logits != NULL) BT_TRY(bt_ref_mtp(&r));
out:
    bt_free(r.h);
    bt_free(r.normed);
    bt_free(r.out);
    bt_free(r.seen);
    return st;
}

#include "attention/reference/mla_reference.h"

#include <math.h>
#include <string.h>

#include "core/alloc.h"

static double dot(const float *a, const float *b, size_t n)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += (double)a[i] * b[i];
    return sum;
}

/* y[out] = W[out, in] x[in] */
static void product(const float *w, size_t n_out, size_t n_in, const float *x, float *y)
{
    for (size_t i = 0; i < n_out; i++)
        y[i] = (float)dot(w + i * n_in, x, n_in);
}

static void rms_norm(const float *weight, size_t n, double eps, float *x)
{
    double factor = 1 / sqrt(dot(x, x, n) / (double)n + eps);

    for (size_t i = 0; i < n; i++)
        x[i] = (float)(x[i] * factor * weight[i]);
}

static void turn(const bt_mla_config *cfg, uint32_t pos, float *x)
{
    for (uint32_t i = 0; i < cfg->qk_rope_dim / 2; i++) {
        double angle = pos * cfg->rope_inv_freq[i];
        double c = cos(angle) * cfg->rope_magnitude, s = sin(angle) * cfg->rope_magnitude;
        double a = x[2 * i], b = x[2 * i + 1];

        x[2 * i]     = (float)(a * c - b * s);
        x[2 * i + 1] = (float)(a * s + b * c);
    }
}

/* s[j] = softmax_j(scale (qn . k_j + qp . kp_j)) for j < n */
static void weights_of_keys(const bt_mla_config *cfg, uint32_t n, const float *q, const float *keys,
                            const float *rope_keys, float *s)
{
    double sum = 0, scale = cfg->softmax_scale;
    float  max = -INFINITY;

    if (cfg->query_beta != 0) scale *= 1 + cfg->query_beta * log(1 + (n - 1) / cfg->query_context);
    for (uint32_t j = 0; j < n; j++) {
        s[j] = (float)(scale * (dot(q, keys + (size_t)j * cfg->qk_nope_dim, cfg->qk_nope_dim) +
                                dot(q + cfg->qk_nope_dim, rope_keys + (size_t)j * cfg->qk_rope_dim,
                                    cfg->qk_rope_dim)));
        max  = s[j] > max ? s[j] : max;
    }
    for (uint32_t j = 0; j < n; j++) {
        s[j] = expf(s[j] - max);
        sum += s[j];
    }
    for (uint32_t j = 0; j < n; j++)
        s[j] = (float)(s[j] / sum);
}

bt_status bt_mla_reference(const bt_mla_config *cfg, const bt_mla_reference_weights *w, uint32_t n,
                           const float *x, float *latent_out, float *rope_key_out, float *out)
{
    bt_status st       = BT_OK;
    size_t    head_dim = cfg->qk_nope_dim + cfg->qk_rope_dim, dv = cfg->v_dim;
    size_t    q_dim = cfg->n_heads * head_dim, c = cfg->kv_lora_rank;
    float    *q      = bt_calloc(n, q_dim * sizeof(float));
    float    *q_a    = bt_calloc(cfg->q_lora_rank + 1, sizeof(float));
    float    *kv     = bt_calloc(c + cfg->qk_rope_dim, sizeof(float));
    float    *keys   = bt_calloc(n, cfg->qk_nope_dim * sizeof(float));
    float    *values = bt_calloc(n, dv * sizeof(float));
    float    *heads  = bt_calloc(n, cfg->n_heads * dv * sizeof(float));
    float    *s      = bt_calloc(n, sizeof(float));

    BT_REQUIRE(q && q_a && kv && keys && values && heads && s, BT_ERR_NO_MEMORY,
               "attention reference of %u tokens", n);
    for (uint32_t t = 0; t < n; t++) {
        const float *row = x + (size_t)t * cfg->hidden;

        if (cfg->q_lora_rank != 0) {
            product(w->q_a, cfg->q_lora_rank, cfg->hidden, row, q_a);
            rms_norm(w->q_a_norm, cfg->q_lora_rank, cfg->latent_eps, q_a);
            product(w->q_b, q_dim, cfg->q_lora_rank, q_a, q + t * q_dim);
        } else {
            product(w->q, q_dim, cfg->hidden, row, q + t * q_dim);
        }
        for (uint32_t h = 0; h < cfg->n_heads; h++)
            turn(cfg, t, q + t * q_dim + h * head_dim + cfg->qk_nope_dim);
        product(w->kv_a, c + cfg->qk_rope_dim, cfg->hidden, row, kv);
        rms_norm(w->kv_a_norm, c, cfg->latent_eps, kv);
        turn(cfg, t, kv + c);
        memcpy(latent_out + t * c, kv, c * sizeof(float));
        memcpy(rope_key_out + (size_t)t * cfg->qk_rope_dim, kv + c,
               cfg->qk_rope_dim * sizeof(float));
    }
    for (uint32_t h = 0; h < cfg->n_heads; h++) {
        const float *uk = w->kv_b + h * (cfg->qk_nope_dim + dv) * c,
                    *uv = uk + cfg->qk_nope_dim * c;

        for (uint32_t t = 0; t < n; t++) {
            product(uk, cfg->qk_nope_dim, c, latent_out + t * c,
                    keys + (size_t)t * cfg->qk_nope_dim);
            product(uv, dv, c, latent_out + t * c, values + t * dv);
        }
        for (uint32_t t = 0; t < n; t++) {
            float *o = heads + (t * (size_t)cfg->n_heads + h) * dv;

            weights_of_keys(cfg, t + 1, q + t * q_dim + h * head_dim, keys, rope_key_out, s);
            for (size_t i = 0; i < dv; i++) {
                double sum = 0;

                for (uint32_t j = 0; j <= t; j++)
                    sum += (double)s[j] * values[j * dv + i];
                o[i] = (float)sum;
            }
        }
    }
    for (uint32_t t = 0; t < n; t++)
        product(w->o, cfg->hidden, cfg->n_heads * dv, heads + t * cfg->n_heads * dv,
                out + (size_t)t * cfg->hidden);
out:
    bt_free(s);
    bt_free(heads);
    bt_free(values);
    bt_free(keys);
    bt_free(kv);
    bt_free(q_a);
    bt_free(q);
    return st;
}

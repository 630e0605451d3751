/* tests/model/weights_check.h - weights that were loaded against the plain reference's reading. */
#ifndef BT_TESTS_MODEL_WEIGHTS_CHECK_H
#define BT_TESTS_MODEL_WEIGHTS_CHECK_H

#include "core/alloc.h"
#include "model/model.h"
#include "model/reference_parts.h"
#include "tests/model/checkpoint.h"

static const char *const MODELS[] = {"v3-fp8",  "k2-int4",   "v2-lite", "glm-flash", "v2",
                                     "kimi-k2", "moonlight", "v3.2",    "glm-5"};

/* What x = the identity gives is W itself, exactly. */
static inline void expect_linear(const bt_linear *w, const float *want, size_t ld, size_t step,
                                 const char *what)
{
    uint32_t n = bt_linear_n(w), k = bt_linear_k(w);
    bt_bf16 *x = calloc((size_t)k * k, sizeof(*x));
    float   *y = calloc((size_t)k * n, sizeof(*y));
    bt_gemm  g = {.w = w, .x = x, .ld_x = k, .y = y, .ld_y = n, .m = k, .y_dtype = BT_F32};

    NEED(x != NULL && y != NULL);
    for (uint32_t i = 0; i < k; i++)
        x[(size_t)i * k + i] = 0x3f80; /* 1 */
    EXPECT_EQ(bt_device_gemm(g_dev, BT_ROLE_GENERATED, 1, &g), BT_OK);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < k; j++)
            if (y[(size_t)j * n + i] != want[i * ld + j * step]) {
                g_failures++;
                fprintf(stderr, "%s [%u, %u]: %.9g, want %.9g\n", what, i, j,
                        (double)y[(size_t)j * n + i], (double)want[i * ld + j * step]);
                i = n - 1;
                break;
            }
    free(x);
    free(y);
}

/* The tensor as the plain reference reads it. */
static inline float *read_plain(const checkpoint *c, const char *name, uint32_t n, uint32_t k)
{
    bt_reference r      = {.cfg = &c->cfg, .st = c->set};
    float       *values = NULL;

    NEED(bt_ref_load(&r, n, k, false, name, &values) == BT_OK);
    return values;
}

static inline void expect_matrix(const checkpoint *c, const bt_linear *w, const char *name)
{
    float *want = read_plain(c, name, bt_linear_n(w), bt_linear_k(w));

    expect_linear(w, want, bt_linear_k(w), 1, name);
    bt_free(want);
}

static inline void expect_gate_up(const checkpoint *c, const bt_linear *w, const char *prefix)
{
    uint32_t dim = bt_linear_n(w) / 2, k = bt_linear_k(w);
    float   *both = malloc((size_t)2 * dim * k * sizeof(*both)), *part;
    char     name[128];

    NEED(both != NULL);
    for (size_t i = 0; i < 2; i++) {
        snprintf(name, sizeof(name), "%s.%s_proj.weight", prefix, i == 0 ? "gate" : "up");
        part = read_plain(c, name, dim, k);
        memcpy(both + i * dim * k, part, (size_t)dim * k * sizeof(*part));
        bt_free(part);
    }
    expect_linear(w, both, k, 1, prefix);
    free(both);
}

static inline void expect_heads(const checkpoint *c, const bt_mla_weights *w, const char *name)
{
    const bt_mla_config *m    = &c->cfg.mla;
    size_t               both = m->qk_nope_dim + m->v_dim, rank = m->kv_lora_rank;
    float               *want = read_plain(c, name, (uint32_t)(m->n_heads * both), (uint32_t)rank);

    for (size_t h = 0; h < m->n_heads; h++) {
        expect_linear(w->uk[h], want + h * both * rank, rank, 1, "uk");
        expect_linear(w->uv[h], want + (h * both + m->qk_nope_dim) * rank, rank, 1, "uv");
        expect_linear(w->ukt[h], want + h * both * rank, 1, rank, "ukt");
    }
    bt_free(want);
}

static inline void expect_indexer(const checkpoint *c, const bt_mla_weights *w)
{
    const char *const VECTORS[] = {"weight", "bias"};
    uint32_t          n         = c->cfg.mla.index_dim;
    char              name[128];

    expect_matrix(c, w->index_q, "model.layers.2.self_attn.indexer.wq_b.weight");
    expect_matrix(c, w->index_k, "model.layers.2.self_attn.indexer.wk.weight");
    expect_matrix(c, w->index_w, "model.layers.2.self_attn.indexer.weights_proj.weight");
    for (int v = 0; v < 2; v++) {
        const bt_bf16 *got = v == 0 ? w->index_k_norm : w->index_k_bias;
        float         *want;

        snprintf(name, sizeof(name), "model.layers.2.self_attn.indexer.k_norm.%s", VECTORS[v]);
        want = read_plain(c, name, 1, n);
        for (uint32_t i = 0; i < n; i++)
            EXPECT_EQ(got[i], bt_bf16_from_f32(want[i]));
        bt_free(want);
    }
}

static inline void expect_weights(const checkpoint *c, const bt_weights *w)
{
    const bt_layer_weights *dense = &w->layers[0], *moe = &w->layers[2];
    size_t                  n = (size_t)c->cfg.vocab_size * c->cfg.hidden, same = 0;
    float *want = read_plain(c, "model.embed_tokens.weight", c->cfg.vocab_size, c->cfg.hidden);

    while (same < n && bt_bf16_to_f32(w->embedding[same]) == want[same])
        same++;
    EXPECT_EQ(same, n);
    bt_free(want);
    expect_matrix(c, w->lm_head, "lm_head.weight");
    expect_gate_up(c, dense->gate_up, "model.layers.0.mlp");
    expect_matrix(c, dense->down, "model.layers.0.mlp.down_proj.weight");
    if (dense->mla.q != NULL)
        expect_matrix(c, dense->mla.q, "model.layers.0.self_attn.q_proj.weight");
    else
        expect_matrix(c, dense->mla.q_b, "model.layers.0.self_attn.q_b_proj.weight");
    expect_matrix(c, moe->mla.kv_a, "model.layers.2.self_attn.kv_a_proj_with_mqa.weight");
    expect_heads(c, &moe->mla, "model.layers.2.self_attn.kv_b_proj.weight");
    if (c->cfg.mla.index_topk != 0) expect_indexer(c, &moe->mla);
    expect_matrix(c, moe->mla.o, "model.layers.2.self_attn.o_proj.weight");
    expect_matrix(c, moe->moe.router, "model.layers.2.mlp.gate.weight");
    expect_gate_up(c, moe->moe.gate_up[1], "model.layers.2.mlp.experts.1");
    expect_matrix(c, moe->moe.down[1], "model.layers.2.mlp.experts.1.down_proj.weight");
    expect_gate_up(c, moe->moe.shared_gate_up, "model.layers.2.mlp.shared_experts");
}

#endif

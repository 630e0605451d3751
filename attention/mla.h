/* attention/mla.h - multi-head latent attention over pages, in both of its forms.
 *
 * Formulas: DeepSeek-V2 (arXiv 2405.04434) section 2.1, equations 9-19, and docs/architecture.md
 * "Laws".  For token t at position p and head h, with c_j the cached latent and kp_j the
 * cached rope key of position j:
 *     normal:    k_hj = W_UK_h c_j,  v_hj = W_UV_h c_j
 *                s_hj = scale (qn_h . k_hj + qp_h . kp_j)
 *                o_h = sum_{j<=p} softmax_j(s_hj) v_hj
 *     absorbed:  ql_h = W_UK_h^T qn_h
 *                s_hj = scale (ql_h . c_j + qp_h . kp_j)
 *                o_h = W_UV_h sum_{j<=p} softmax_j(s_hj) c_j
 *
 * Sparse attention (DeepSeek-V3.2, arXiv 2512.02556 section 2.1): a token with more than index_topk
 * positions up to its own attends to that many of them, those with the largest
 *     I_j = sum_h w_h max(qi_h . ki_j, 0)
 * (of equal ones the earliest), in the absorbed form, over these positions ascending as if there
 * were no others.  A layer without an indexer takes what the last one with one chose.  ki_j lies in
 * the page beside the latent; qi and ki are bf16, and factors that all I_j share are left out.
 *
 * Laws A and B: key blocks are the pages (64 tokens, absolute), or four of them on the CPU, visited
 * ascending; the softmax restarts at absolute multiples of BT_ATTN_SPLIT_TOKENS, and the parts
 * merge ascending by log-sum-exp; on the CPU in the absorbed form such a part may be a tree of
 * smaller ones (bt_attn_absorbed_part()); a block without a visible key leaves a row's state
 * unchanged; a token attends to itself through the rounded latent in the page.
 *
 * Threads: the step thread.  Memory: all of it is taken in create(). */
#ifndef BT_ATTENTION_MLA_H
#define BT_ATTENTION_MLA_H

#include <stdbool.h>
#include <stdint.h>

#include "attention/kv_pool.h"
#include "device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { BT_ATTN_SPLIT_TOKENS = 2048, BT_ATTN_FEW_TOKENS = 256 };

/* Parts that the first n_keys >= 1 positions lie in. */
static inline uint32_t bt_attn_parts(uint32_t n_keys)
{
    return (n_keys - 1) / BT_ATTN_SPLIT_TOKENS + 1;
}

/* Positions of a part on the CPU in the absorbed form, of a token with n_keys positions up to its
 * own. Of few heads a part's sums are little beside its latents: parts are short, so that threads
 * have one each of short contexts too.  They merge as halves of 256, 512, ... BT_ATTN_SPLIT_TOKENS
 * positions, each size at its absolute multiples; a half that is empty changes nothing. */
static inline uint32_t bt_attn_absorbed_part(uint32_t n_heads, uint32_t n_keys)
{
    if (n_heads > 8) return BT_ATTN_SPLIT_TOKENS;
    return n_keys <= BT_ATTN_FEW_TOKENS ? BT_ATTN_FEW_TOKENS / 2 : BT_ATTN_FEW_TOKENS;
}

enum { BT_INDEX_MAX_DIM = 4096 };
#define BT_INDEX_EPS 1e-6f /* of the LayerNorm of ki */

typedef enum { BT_FORM_NORMAL, BT_FORM_ABSORBED } bt_attn_form;

/* How a step chooses the form of a span: by the token's role (law B), always one form (a route to
 * test), or by cost (waives law B). */
typedef enum {
    BT_FORM_BY_ROLE,
    BT_FORM_ALL_NORMAL,
    BT_FORM_ALL_ABSORBED,
    BT_FORM_BY_COST
} bt_form_policy;

typedef struct {
    uint32_t      hidden, n_heads;
    uint32_t      q_lora_rank; /* 0: the query has no low-rank step */
    uint32_t      kv_lora_rank, qk_nope_dim, qk_rope_dim, v_dim;
    float         latent_eps;     /* of the q_a and kv_a norms: 1e-6, whatever rms_norm_eps says */
    float         softmax_scale;  /* (qk_nope_dim + qk_rope_dim)^-1/2, times mscale^2 under YaRN */
    uint32_t      max_context;    /* rows of the rope table */
    double        rope_magnitude; /* factor on cos and sin; 1 for every published model */
    const double *rope_inv_freq;  /* [qk_rope_dim / 2], host, borrowed during create() */
    double        query_beta;     /* of longer contexts (as in Llama 4): the query of position p is
                                     multiplied by 1 + query_beta ln(1 + floor(p / query_context)) ... */
    uint32_t query_context;       /* ... where query_beta is not 0; above 0 then */
    uint32_t index_topk;          /* 0: every token attends to all positions up to its own */
    uint32_t index_heads, index_dim; /* the first qk_rope_dim of which RoPE turns, ... */
    bool     index_halves; /* ... in pairs (i, i + qk_rope_dim / 2); else (2 i, 2 i + 1) */
} bt_mla_config;

/* Elements that a page has of a token and layer: latent, rope key, ki. */
static inline uint32_t bt_mla_kv_dim(const bt_mla_config *cfg)
{
    return cfg->kv_lora_rank + cfg->qk_rope_dim + (cfg->index_topk != 0 ? cfg->index_dim : 0);
}

/* Whether there are contexts of which a token attends to a part only. */
static inline bool bt_mla_chooses(const bt_mla_config *cfg)
{
    return cfg->index_topk != 0 && cfg->max_context > cfg->index_topk;
}

/* Weights of one layer, all owned by the model.  Norm weights are device memory.  Matrices that a
 * rank's forms never use may be NULL: uk for a rank that is never normal, ukt for one that is
 * never absorbed. */
typedef struct {
    bt_linear  *q;         /* [n_heads (nope+rope), hidden], or NULL with q_lora_rank */
    bt_linear  *q_a;       /* [q_lora_rank, hidden] */
    bt_linear  *q_b;       /* [n_heads (nope+rope), q_lora_rank] */
    bt_linear  *kv_a;      /* [kv_lora_rank + qk_rope_dim, hidden] */
    bt_linear **uk;        /* n_heads of [qk_nope_dim, kv_lora_rank]: W_UK_h */
    bt_linear **ukt;       /* n_heads of [kv_lora_rank, qk_nope_dim]: W_UK_h^T */
    bt_linear **uv;        /* n_heads of [v_dim, kv_lora_rank]: W_UV_h */
    bt_linear  *o;         /* [hidden, n_heads v_dim] */
    bt_bf16    *q_a_norm;  /* [q_lora_rank] */
    bt_bf16    *kv_a_norm; /* [kv_lora_rank] */

    /* The indexer: of a layer that has one, else NULL. */
    bt_linear *index_q; /* [index_heads index_dim, q_lora_rank]: qi, of the normed q_a */
    bt_linear *index_k; /* [index_dim, hidden]: ki before its LayerNorm and RoPE */
    bt_linear *index_w; /* [index_heads, hidden] */
    bt_bf16   *index_k_norm, *index_k_bias; /* [index_dim]: of the LayerNorm */
} bt_mla_weights;

/* Consecutive tokens of one request in a step. */
typedef struct {
    const bt_page_id *pages;     /* host, borrowed: of at least start + n_rows tokens */
    uint32_t          first_row; /* in the step's row matrices */
    uint32_t          n_rows;
    uint32_t          start; /* absolute position of the first row */
    bt_role           role;
    bt_attn_form      form;
} bt_span;

typedef struct bt_mla bt_mla;

/* Workspaces for steps of at most max_rows rows.  `dev` is borrowed.
 * INVALID_ARG: a dimension of 0 or above 16384, an odd qk_rope_dim, a softmax scale that is not
 * above 0, a rope frequency or magnitude that is no number, an angle above 2^20, a query_beta below
 * 0 or that is no number, or one without a query_context.
 * UNSUPPORTED: sizes that the back end has no kernels for. */
bt_status bt_mla_create(bt_device *dev, const bt_mla_config *cfg, uint32_t max_rows,
                        bt_mla **mla_out);
void      bt_mla_destroy(bt_mla *mla);
/* Bytes that create() took, for the memory account. */
size_t bt_mla_workspace_bytes(const bt_mla *mla);

/* Bytes of the device that create() will take for what is no row of the step: keys and values of a
 * prefix, parts of long contexts, chosen positions.  For the account, before there is anything. */
size_t bt_mla_large_bytes(const bt_device *dev, const bt_mla_config *cfg, uint32_t max_rows);

/* out[r] = attention(x[r]) for the rows of all spans, after writing their latents and rope keys to
 * `layer` of their pages.  x and out: [n_rows, hidden] bf16, distinct.  Spans cover rows ascending
 * without a gap; those with role prompt come first.  Layers come ascending.  INVALID_ARG: spans are
 * otherwise, or beyond the context; DEVICE. */
bt_status bt_mla_forward(bt_mla *mla, const bt_mla_weights *w, bt_kv_pool *pool, uint32_t layer,
                         const bt_bf16 *x, bt_bf16 *out, uint32_t n_spans, const bt_span *spans);
/* Its halves, for a step of which few rows' results are wanted, with the same bits: the latents and
 * rope keys of all rows; then the attention of the rows of other spans, whose positions are among
 * those.  step_rows [rows of these spans]: which row of the step before each one is.  As above. */
bt_status bt_mla_fill_pages(bt_mla *mla, const bt_mla_weights *w, bt_kv_pool *pool, uint32_t layer,
                            const bt_bf16 *x, uint32_t n_spans, const bt_span *spans);
bt_status bt_mla_attend(bt_mla *mla, const bt_mla_weights *w, bt_kv_pool *pool, uint32_t layer,
                        const bt_bf16 *x, bt_bf16 *out, uint32_t n_spans, const bt_span *spans,
                        const uint32_t *step_rows);

/* A step of generated tokens in the absorbed form, whose launches depend on nothing but this: rows
 * and the lists that they need lie at places of their own. */
typedef struct {
    uint32_t n_rows;  /* those that are no span's are padding */
    uint32_t n_parts; /* of BT_ATTN_SPLIT_TOKENS positions, at most, of any context */
} bt_attn_fixed;
/* Whether the back end has such steps, and these spans fit it. */
bool bt_mla_fits_fixed(const bt_mla *mla, const bt_attn_fixed *fixed, uint32_t n_spans,
                       const bt_span *spans);
/* The lists of a step, before its first layer.  DEVICE. */
bt_status bt_mla_send_fixed(bt_mla *mla, const bt_attn_fixed *fixed, uint32_t n_spans,
                            const bt_span *spans);
/* As bt_mla_forward(), for the spans that were sent last; out of padding rows is undefined. */
bt_status bt_mla_forward_fixed(bt_mla *mla, const bt_mla_weights *w, bt_kv_pool *pool,
                               uint32_t layer, const bt_attn_fixed *fixed, const bt_bf16 *x,
                               bt_bf16 *out);

/* The cheaper form for n_new tokens that attend to n_kv (n_new included), by counted FLOPs. */
bt_attn_form bt_mla_cheaper_form(const bt_mla_config *cfg, uint32_t n_new, uint32_t n_kv);

#ifdef __cplusplus
}
#endif
#endif

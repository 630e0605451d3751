#include "attention/variants/account.h"

#include <math.h>
#include <stdbool.h>

bt_variant_account bt_variant_account_of(bt_variant_kind kind, const bt_mla_config *cfg)
{
    uint64_t h = cfg->hidden, n = cfg->n_heads, c = cfg->kv_lora_rank, dn = cfg->qk_nope_dim,
             dr = cfg->qk_rope_dim, dv = cfg->v_dim, low = cfg->q_lora_rank;
    uint64_t q_in = low != 0 ? low : h, kv_b = n * (dn + dv) * c;
    uint64_t q = q_in * n * (dn + dr), out = n * dv * h; /* of one matrix each */
    uint64_t inner  = kv_b;                              /* for the new token */
    uint64_t common = low * h + h * (c + dr), norms = low + c;
    bool     normal = kind == BT_VARIANT_CD || kind == BT_VARIANT_CC;
    uint64_t weights;

    bt_variant_account a = {.cache_bytes = 2 * (c + dr)};

    if (kind == BT_VARIANT_CC) inner = 0; /* counted with the keys: the new token is one of them */
    if (kind == BT_VARIANT_AM_CC_ME) {
        q     = q_in * n * (c + dr);
        out   = n * c * h;
        inner = 0;
    }
    weights        = common + q + out + (kind == BT_VARIANT_AM_CC_ME ? 0 : kv_b);
    a.row_flops    = 2 * (common + q + out + inner);
    a.key_flops    = normal ? 2 * n * (dn + dr) + 2 * n * dv : 2 * n * (c + dr) + 2 * n * c;
    a.weight_bytes = 2 * (weights + norms);
    if (kind == BT_VARIANT_CD) a.cache_bytes = 2 * n * (dn + dr + dv);
    if (kind == BT_VARIANT_CC) {
        a.key_flops += 2 * kv_b;
        a.moved_bytes = 2 * 2 * n * (dn + dr + dv);
    }
    if (kind == BT_VARIANT_A_CC) a.moved_bytes = 2 * 2 * n * (c + dr);
    return a;
}

/* q_a, kv_a of every token in the context, q_b, o. */
static double macs_common(const bt_mla_config *cfg, double q, double kv)
{
    double h = cfg->hidden, n = cfg->n_heads, q_in = cfg->q_lora_rank;
    double q_cols = n * (cfg->qk_nope_dim + cfg->qk_rope_dim);

    return q * (q_in != 0 ? q_in * (h + q_cols) : h * q_cols) +
           kv * h * (cfg->kv_lora_rank + cfg->qk_rope_dim) + q * n * cfg->v_dim * h;
}

double bt_study_macs_normal(const bt_mla_config *cfg, double q, double kv)
{
    double n     = cfg->n_heads,
           inner = (double)cfg->kv_lora_rank * n * (cfg->qk_nope_dim + cfg->v_dim);

    return macs_common(cfg, q, kv) + kv * inner +
           q * kv * n * (cfg->qk_nope_dim + cfg->qk_rope_dim + cfg->v_dim);
}

double bt_study_macs_absorbed(const bt_mla_config *cfg, double q, double kv)
{
    double n     = cfg->n_heads,
           inner = (double)cfg->kv_lora_rank * n * (cfg->qk_nope_dim + cfg->v_dim);

    return macs_common(cfg, q, kv) + q * inner +
           q * kv * n * (2.0 * cfg->kv_lora_rank + cfg->qk_rope_dim);
}

double bt_study_crossover(const bt_mla_config *cfg, double n_kv)
{
    double both = (double)cfg->qk_nope_dim + cfg->v_dim;
    double a    = (2.0 * cfg->kv_lora_rank - both) / (cfg->kv_lora_rank * both);
    double b    = 1 / n_kv + a;

    return b > 0 ? 1 / b : INFINITY;
}

/* Per head: normal (P + q) c (dn + dv) + pairs (dn + dr + dv), absorbed q c (dn + dv) +
 * pairs (2c + dr), with pairs = q P + q (q + 1) / 2. */
uint32_t bt_study_crossover_causal(const bt_mla_config *cfg, uint32_t n_prefix)
{
    double both = (double)cfg->qk_nope_dim + cfg->v_dim;
    double save = (double)n_prefix * cfg->kv_lora_rank * both; /* what absorbing saves, */
    double pay  = 2.0 * cfg->kv_lora_rank - both;              /* and pays for each pair */
    double q;

    if (n_prefix == 0) return 0;
    if (pay <= 0) return UINT32_MAX;
    /* q P + q (q + 1) / 2 = save / pay */
    q = sqrt((n_prefix + 0.5) * (n_prefix + 0.5) + 2 * save / pay) - (n_prefix + 0.5);
    return (uint32_t)ceil(q);
}

#include "moe/gate.h"

#include <math.h>

#include "device/cpu/kernels.h"
#include "moe/group_score.h"

/* One row's scores and what the selection sees of them; a score of -inf is out of the choice. */
typedef struct {
    float score[BT_MAX_EXPERTS];  /* what the weights are made of */
    float choice[BT_MAX_EXPERTS]; /* what the selection compares */
} gate_row;

bt_status bt_gate_check(const bt_gate_config *cfg)
{
    bt_status st = BT_OK;
    uint32_t  group;

    BT_REQUIRE(cfg->n_experts >= 1 && cfg->n_experts <= BT_MAX_EXPERTS, BT_ERR_INVALID_ARG,
               "gate: expected 1 to %d experts, found %u", BT_MAX_EXPERTS, cfg->n_experts);
    BT_REQUIRE(cfg->n_groups >= 1 && cfg->n_experts % cfg->n_groups == 0, BT_ERR_INVALID_ARG,
               "gate: %u experts do not form %u equal groups", cfg->n_experts, cfg->n_groups);
    BT_REQUIRE(cfg->topk_groups >= 1 && cfg->topk_groups <= cfg->n_groups, BT_ERR_INVALID_ARG,
               "gate: expected 1 to %u kept groups, found %u", cfg->n_groups, cfg->topk_groups);
    group = cfg->n_experts / cfg->n_groups;
    BT_REQUIRE(cfg->top_k >= 1 && cfg->top_k <= BT_MAX_TOP_K &&
                   cfg->top_k <= cfg->topk_groups * group,
               BT_ERR_INVALID_ARG,
               "gate: top-k %u, expected 1 to %d and at most the %u experts of %u kept groups",
               cfg->top_k, BT_MAX_TOP_K, cfg->topk_groups * group, cfg->topk_groups);
    BT_REQUIRE(isfinite(cfg->scale), BT_ERR_INVALID_ARG, "gate: the scale %g is not finite",
               (double)cfg->scale);
out:
    return st;
}

bool bt_gate_forced_ok(const bt_gate_config *cfg, const uint16_t *forced)
{
    for (uint32_t j = 0; j < cfg->top_k; j++) {
        if (forced[j] >= cfg->n_experts) return false;
        if (j > 0 && forced[j] <= forced[j - 1]) return false;
    }
    return true;
}

/* out[e] = exp(logits[e] * factor - max), as bt_expf. */
static void exponentials(uint32_t n, const float *logits, float factor, float max, float *out)
{
    bt_bf16 rounded[BT_MAX_EXPERTS];

    bt_cpu_kernels_find("auto")->rows->exp_row(logits, n, n, factor, max, rounded, out);
}

static void score_softmax(uint32_t n, const float *logits, gate_row *row)
{
    float max = -INFINITY, sum = 0.0f;

    for (uint32_t e = 0; e < n; e++)
        if (logits[e] > max) max = logits[e];
    exponentials(n, logits, 1.0f, max, row->score);
    for (uint32_t e = 0; e < n; e++) {
        /* inf - inf is no number. */
        if (isnan(logits[e])) row->score[e] = 0.0f;
        if (logits[e] == max) row->score[e] = 1.0f;
        sum += row->score[e];
    }
    for (uint32_t e = 0; e < n; e++) {
        if (sum > 0.0f) row->score[e] /= sum;
        row->choice[e] = isnan(logits[e]) ? -INFINITY : row->score[e];
    }
}

static void score_sigmoid(uint32_t n, const float *logits, const float *bias, gate_row *row)
{
    exponentials(n, logits, -1.0f, 0.0f, row->score);
    for (uint32_t e = 0; e < n; e++) {
        float score = isnan(logits[e]) ? 0.0f : 1.0f / (1.0f + row->score[e]);
        float z     = bias != NULL ? score + bias[e] : score;

        row->score[e]  = score;
        row->choice[e] = isnan(logits[e]) || isnan(z) ? -INFINITY : z;
    }
}

/* The best unmarked of values[0..n), ties to the lower index.  One is unmarked. */
static uint32_t best_of(uint32_t n, const float *values, const bool *marked)
{
    uint32_t best = n;

    for (uint32_t i = 0; i < n; i++)
        if (!marked[i] && (best == n || values[i] > values[best])) best = i;
    return best;
}

/* Marks the experts of all groups but the topk_groups best. */
static void drop_groups(const bt_gate_config *cfg, const float *choice, bool *marked)
{
    uint32_t size = cfg->n_experts / cfg->n_groups;
    float    score[BT_MAX_EXPERTS];
    bool     kept[BT_MAX_EXPERTS] = {false};

    for (uint32_t g = 0; g < cfg->n_groups; g++)
        score[g] = bt_gate_group_score(cfg->kind, size, choice + (size_t)g * size);
    for (uint32_t i = 0; i < cfg->topk_groups; i++)
        kept[best_of(cfg->n_groups, score, kept)] = true;
    for (uint32_t e = 0; e < cfg->n_experts; e++)
        marked[e] = !kept[e / size];
}

static void choose(const bt_gate_config *cfg, const float *choice, uint16_t *experts_out)
{
    bool     marked[BT_MAX_EXPERTS] = {false}; /* dropped or chosen */
    bool     chosen[BT_MAX_EXPERTS] = {false};
    uint32_t n                      = 0;

    if (cfg->n_groups > 1 && cfg->kind != BT_GATE_SOFTMAX) drop_groups(cfg, choice, marked);
    for (uint32_t i = 0; i < cfg->top_k; i++) {
        uint32_t e = best_of(cfg->n_experts, choice, marked);

        marked[e] = chosen[e] = true;
    }
    for (uint32_t e = 0; e < cfg->n_experts; e++)
        if (chosen[e]) experts_out[n++] = (uint16_t)e;
}

static void weigh(const bt_gate_config *cfg, const float *score, const uint16_t *experts,
                  float *weights_out)
{
    float sum = 0.0f;

    for (uint32_t j = 0; j < cfg->top_k; j++)
        sum += score[experts[j]];
    for (uint32_t j = 0; j < cfg->top_k; j++) {
        float w = score[experts[j]];

        if (cfg->norm_topk) w /= sum + 1e-20f;
        weights_out[j] = w * cfg->scale;
    }
}

void bt_gate_select(const bt_gate_config *cfg, const float *logits, const float *bias,
                    const uint16_t *forced, uint16_t *experts_out, float *weights_out)
{
    gate_row row;

    if (cfg->kind == BT_GATE_SIGMOID_BIAS)
        score_sigmoid(cfg->n_experts, logits, bias, &row);
    else
        score_softmax(cfg->n_experts, logits, &row);

    if (forced != NULL) {
        BT_ASSERT(bt_gate_forced_ok(cfg, forced));
        for (uint32_t j = 0; j < cfg->top_k; j++)
            experts_out[j] = forced[j];
    } else {
        choose(cfg, row.choice, experts_out);
    }
    weigh(cfg, row.score, experts_out, weights_out);
}

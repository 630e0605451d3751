/* model/reference_moe.c - gate by counting who comes before whom, experts one after the other. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "model/reference_parts.h"

/* How many of values[0..n) come before i: larger ones, and equal ones with a lower index. */
static uint32_t place_of(const float *values, uint32_t n, uint32_t i)
{
    uint32_t before = 0;

    for (uint32_t o = 0; o < n; o++)
        before += values[o] > values[i] || (values[o] == values[i] && o < i);
    return before;
}

/* Scores of one row from its router logits; choice is what the selection sees. */
static void score_row(const bt_gate_config *g, const float *logits, const float *bias, float *score,
                      float *choice)
{
    float max = -INFINITY, sum = 0.0f;

    for (uint32_t e = 0; e < g->n_experts; e++)
        max = fmaxf(max, logits[e]);
    for (uint32_t e = 0; e < g->n_experts; e++)
        sum += expf(logits[e] - max);
    for (uint32_t e = 0; e < g->n_experts; e++) {
        score[e]  = g->kind == BT_GATE_SIGMOID_BIAS ? 1.0f / (1.0f + expf(-logits[e]))
                                                    : expf(logits[e] - max) / sum;
        choice[e] = bias != NULL ? score[e] + bias[e] : score[e];
    }
}

/* Takes the experts of all but the best groups out of the choice. */
static void limit_groups(const bt_gate_config *g, float *choice)
{
    uint32_t size = g->n_experts / g->n_groups;
    uint32_t best = g->kind == BT_GATE_SIGMOID_BIAS ? 2 : 1; /* experts that a group's score sums */
    float    groups[BT_MAX_EXPERTS] = {0};

    if (g->n_groups == 1 || g->kind == BT_GATE_SOFTMAX) return;
    for (uint32_t e = 0; e < g->n_experts; e++)
        if (place_of(choice + e / size * size, size, e % size) < best)
            groups[e / size] += choice[e];
    for (uint32_t e = 0; e < g->n_experts; e++)
        if (place_of(groups, g->n_groups, e / size) >= g->topk_groups) choice[e] = -INFINITY;
}

static void gate_row(const bt_gate_config *g, const float *logits, const float *bias,
                     const uint16_t *forced, uint16_t *experts, float *weights)
{
    float    score[BT_MAX_EXPERTS], choice[BT_MAX_EXPERTS], sum = 0.0f;
    uint32_t n = 0;

    score_row(g, logits, bias, score, choice);
    limit_groups(g, choice);
    for (uint32_t e = 0; e < g->n_experts && n < g->top_k && forced == NULL; e++) /* NaN: first */
        if (place_of(choice, g->n_experts, e) < g->top_k) experts[n++] = (uint16_t)e;
    if (forced != NULL) memcpy(experts, forced, g->top_k * sizeof(*experts));
    for (uint32_t j = 0; j < g->top_k; j++)
        sum += score[experts[j]];
    for (uint32_t j = 0; j < g->top_k; j++) {
        weights[j] = score[experts[j]] / (g->norm_topk ? sum + 1e-20f : 1.0f);
        weights[j] *= g->scale;
    }
}

static bt_status route(bt_reference *r, uint32_t layer, uint32_t moe_layer, const float *x,
                       uint16_t *experts, float *weights)
{
    const bt_gate_config *g      = &r->cfg->moe.gate;
    float                *logits = bt_calloc((size_t)r->t * g->n_experts, sizeof(*logits));
    float                *bias   = NULL;
    const char           *name;
    bt_status             st = BT_OK;

    BT_REQUIRE(logits != NULL, BT_ERR_NO_MEMORY, "reference: router");
    BT_TRY(bt_ref_linear(r, r->t, g->n_experts, r->cfg->hidden, x, logits,
                         bt_ref_name(r, layer, "mlp.gate.weight")));
    name = bt_ref_name(r, layer, "mlp.gate.e_score_correction_bias");
    if (g->kind == BT_GATE_SIGMOID_BIAS &&
        (bt_safetensors_find(r->st, name) != NULL || !r->cfg->moe_norm))
        BT_TRY(bt_ref_load(r, 1, g->n_experts, false, name, &bias));
    for (size_t p = 0; p < r->t; p++) {
        const uint16_t *forced = NULL;

        if (r->run->forced != NULL)
            forced = r->run->forced + ((size_t)moe_layer * r->t + p) * g->top_k;
        gate_row(g, logits + p * g->n_experts, bias, forced, experts + p * g->top_k,
                 weights + p * g->top_k);
    }
out:
    bt_free(logits);
    bt_free(bias);
    return st;
}

/* y[row] += weight * mlp_e(x[row]) for the rows that chose expert e. */
static bt_status add_expert(bt_reference *r, uint32_t layer, uint32_t e, const uint16_t *experts,
                            const float *weights, const float *x, float *y)
{
    uint32_t  k = r->cfg->moe.gate.top_k, n = 0;
    size_t    h     = r->cfg->hidden;
    float    *in    = bt_calloc(r->t * h, sizeof(*in));
    float    *out   = bt_calloc(r->t * h, sizeof(*out));
    uint32_t *entry = bt_calloc(r->t, sizeof(*entry));
    bt_status st    = BT_OK;
    char      what[64];

    BT_REQUIRE(in != NULL && out != NULL && entry != NULL, BT_ERR_NO_MEMORY, "reference: expert");
    for (uint32_t i = 0; i < r->t * k; i++) {
        if (experts[i] != e) continue;
        memcpy(in + n * h, x + i / k * h, h * sizeof(*in));
        entry[n++] = i;
    }
    snprintf(what, sizeof(what), "mlp.experts.%u", e);
    BT_TRY(bt_ref_mlp(r, n, layer, what, r->cfg->moe.expert_dim, in, out));
    for (uint32_t i = 0; i < n; i++)
        for (size_t c = 0; c < h; c++)
            y[entry[i] / k * h + c] += weights[entry[i]] * out[i * h + c];
out:
    bt_free(in);
    bt_free(out);
    bt_free(entry);
    return st;
}

bt_status bt_ref_experts(bt_reference *r, uint32_t layer, uint32_t moe_layer, const float *x,
                         float *y)
{
    const bt_moe_config *c       = &r->cfg->moe;
    size_t               entries = (size_t)r->t * c->gate.top_k;
    uint16_t            *experts = bt_calloc(entries, sizeof(*experts));
    float               *weights = bt_calloc(entries, sizeof(*weights));
    bt_status            st      = BT_OK;

    BT_REQUIRE(experts != NULL && weights != NULL, BT_ERR_NO_MEMORY, "reference: experts");
    BT_TRY(route(r, layer, moe_layer, x, experts, weights));
    memset(y, 0, (size_t)r->t * r->cfg->hidden * sizeof(*y));
    if (c->shared_dim != 0)
        BT_TRY(bt_ref_mlp(r, r->t, layer, "mlp.shared_experts", c->shared_dim, x, y));
    for (uint32_t e = 0; e < c->gate.n_experts; e++)
        BT_TRY(add_expert(r, layer, e, experts, weights, x, y));
    if (r->run->experts != NULL)
        memcpy(r->run->experts + moe_layer * entries, experts, entries * sizeof(*experts));
    if (r->run->weights != NULL)
        memcpy(r->run->weights + moe_layer * entries, weights, entries * sizeof(*weights));
out:
    bt_free(experts);
    bt_free(weights);
    return st;
}

/* moe/gate.h - which experts a token goes to, and with which weights.
 *
 * Sources: DeepSeek-V2 (softmax, greedy or limited to groups by their best expert) and DeepSeek-V3
 * (sigmoid; a correction bias takes part in the selection only; groups by the sum of their two
 * best) as Hugging Face implements them. */
#ifndef BT_MOE_GATE_H
#define BT_MOE_GATE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"
#include "moe/placement.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum { BT_GATE_SOFTMAX, BT_GATE_SOFTMAX_GROUPS, BT_GATE_SIGMOID_BIAS } bt_gate_kind;

typedef struct {
    bt_gate_kind kind;
    uint32_t     n_experts, top_k;
    uint32_t     n_groups, topk_groups; /* groups are consecutive; 1 and 1: none */
    bool         norm_topk;             /* divide the chosen weights by their sum (+ 1e-20) */
    float        scale;                 /* routed_scaling_factor, of the weights divided or not */
} bt_gate_config;

/* INVALID_ARG when the numbers do not fit together (more chosen than kept groups hold, groups that
 * do not divide the experts, a scale that is not finite, ...), with what was found. */
bt_status bt_gate_check(const bt_gate_config *cfg);

/* Whether `forced` ([top_k]) may replace a choice: ascending distinct ids below n_experts.  For
 * whoever takes forced experts from outside: bt_gate_select() asserts it. */
bool bt_gate_forced_ok(const bt_gate_config *cfg, const uint16_t *forced);

/* `cfg` has passed bt_gate_check(). From one row's router logits [n_experts] (fp32) to
 * experts_out[top_k], ascending by id, and weights_out[top_k].  bias: [n_experts] or NULL.  Ties go
 * to the lower id; a NaN logit counts as the lowest score.  forced (or NULL): [top_k] ascending
 * distinct ids that replace the choice (routing replay), the weights then follow from the scores as
 * always. Host memory throughout; row-independent. */
void bt_gate_select(const bt_gate_config *cfg, const float *logits, const float *bias,
                    const uint16_t *forced, uint16_t *experts_out, float *weights_out);

#ifdef __cplusplus
}
#endif
#endif

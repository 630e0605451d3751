/* model/state.h - the inside of a bt_model, for model.c, step.c and decode_graphs.c only. */
#ifndef BT_MODEL_STATE_H
#define BT_MODEL_STATE_H

#include "model/decode_graphs.h"
#include "model/weights.h"

struct bt_model {
    const bt_model_config *cfg;   /* borrowed */
    bt_device             *dev;   /* borrowed */
    bt_group              *group; /* borrowed */
    uint32_t               max_rows, max_logit_rows;
    bt_weights             w;           /* owned */
    bt_mla                *mla;         /* owned */
    bt_moe                *moe;         /* owned; NULL without experts */
    uint64_t              *expert_rows; /* owned [2][n_experts]: of earlier groups, and of all */

    /* Device memory, owned.  h is the residual stream, bf16 as the rest; normed is its norm for
     * what comes next: attention, a feed-forward block, or the head. */
    bt_bf16  *h, *normed, *out;    /* [max_rows, hidden] */
    bt_bf16  *gate_up, *act;       /* [max_rows, 2 dense_dim], [max_rows, dense_dim] */
    bt_bf16  *last;                /* [max_logit_rows, hidden]: of h, or of normed */
    bt_bf16  *joined;              /* [max_rows, 2 hidden]: of bt_model_draft(); or NULL */
    float    *logits;              /* [max_logit_rows, vocab_size]; NULL with host_memory */
    uint32_t *live;                /* [1] rows of a padded step that are no padding; or NULL */
    uint32_t *tokens;              /* [max_rows] of a step, where the device chooses; or NULL */
    size_t    own_workspace_bytes; /* of these */
    bt_span  *last_spans;          /* owned, host: [max_logit_rows] of a step's rows with logits */

    bt_decode_graphs *graphs; /* owned; NULL where the device has none, or there is no group */
    uint32_t          n_launched, n_awaited; /* steps */
};

/* step.c */
/* The step's tokens to model->tokens, and as many of id 0 as make n of them. */
bt_status bt_model_send_tokens(bt_model *model, const bt_step *step, uint32_t n);
/* normed = rms_norm(h), for the layer that comes first. */
bt_status bt_model_norm_first(bt_model *model, uint32_t layer, uint32_t rows);
/* h += x; normed = rms_norm(h), by the weight of what comes next. */
bt_status bt_model_add_norm(bt_model *model, uint32_t rows, const bt_bf16 *x, bt_bf16 *h,
                            const bt_bf16 *weight);
/* h += out, what the layer's dense part or experts gave, of rows; normed for the next layer, or the
 * head. */
bt_status bt_model_end_layer(bt_model *model, uint32_t layer, uint32_t rows, bt_bf16 *h);
/* out = down(silu(gate) * up) of the normed rows, role by role. */
bt_status bt_model_dense(bt_model *model, const bt_layer_weights *w,
                         const uint32_t n_rows[BT_N_ROLES]);

#endif

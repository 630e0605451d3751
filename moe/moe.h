/* moe/moe.h - one expert-parallel mixture-of-experts layer across a group.
 *
 *     y(x)   = sum_{e in top-k} w_e mlp_e(x) + mlp_shared(x)
 *     mlp(x) = down(silu(gate x) * (up x))
 *
 * Dense path: all ranks gather all rows, their experts and weights; each runs its own experts, one
 * grouped product per role, rows sorted by expert; outputs go back to the rows' owners as sum
 * blocks (whole blocks already added, split ones expert by expert).  Addition: each expert's
 * weighted output rounds to bf16; within a block they add ascending by expert in fp32 from +0.0 and
 * round to bf16; blocks add ascending in fp32 from +0.0, an empty block as +0.0; then the shared
 * expert; the sum rounds to bf16.
 *
 * Ranks without rows take part in every call.  Rows of a rank come role prompt first. */
#ifndef BT_MOE_MOE_H
#define BT_MOE_MOE_H

#include "device/device.h"
#include "moe/gate.h"
#include "moe/placement.h"
#include "parallel/group.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct bt_moe bt_moe;

typedef struct {
    bt_gate_config gate;
    uint32_t       hidden, expert_dim; /* moe_intermediate_size */
    uint32_t       shared_dim;         /* n_shared_experts * expert_dim; 0: none */
} bt_moe_config;

/* One layer's weights, owned by the model.  Experts of other ranks are NULL. */
typedef struct {
    bt_linear  *router;      /* [n_experts, hidden] */
    float      *router_bias; /* device, [n_experts], or NULL */
    bt_linear **gate_up;     /* [n_experts] of [2 expert_dim, hidden]: gate rows, then up rows */
    bt_linear **down;        /* [n_experts] of [hidden, expert_dim] */
    bt_linear  *shared_gate_up, *shared_down;
} bt_moe_weights;

/* Rows that each rank of the group brings to this step, [n_ranks][BT_N_ROLES]: the same on every
 * rank (from the step's all-gather). */
typedef struct {
    uint32_t n_ranks;
    const uint32_t (*n_rows)[BT_N_ROLES];
    /* Where the group pads its rows: how many of this rank's are no padding, on the host and, [1],
     * on the device.  NULL: all.  Only where routes stay on the device. */
    uint32_t        n_live;
    const uint32_t *live;
    bool            partial; /* of the step's rows: these are all that go on */
} bt_step_rows;

/* dev, group and placement are borrowed.  max_rows bounds one rank's rows in a step: capacity for
 * group size * max_rows is taken here, so that it cannot be exceeded.  INVALID_ARG: a gate that
 * bt_gate_check() refuses, a width or max_rows of 0, a placement of other experts or ranks, too
 * many rows.  UNSUPPORTED: a device without experts, or whose memory does not travel in the group.
 * NO_MEMORY. */
bt_status bt_moe_create(bt_device *dev, bt_group *group, const bt_placement *placement,
                        const bt_moe_config *cfg, uint32_t max_rows, bt_moe **moe_out);
void      bt_moe_destroy(bt_moe *moe);
/* Bytes that create() has a group reserve for exchanges, out and in, whose member `self` has this
 * placement. */
uint64_t bt_moe_exchange_bytes(const bt_device *dev, const bt_placement *placement,
                               const bt_moe_config *cfg, uint32_t self, uint32_t max_rows);
/* Of a device that keeps routes: what create() takes, at most, for the results of experts.  Else 0:
 * a small part of the step's memory. */
uint64_t bt_moe_tile_bytes(const bt_device *dev, const bt_moe_config *cfg, uint32_t n_ranks,
                           uint32_t max_rows);
size_t   bt_moe_workspace_bytes(const bt_moe *moe); /* device memory taken by create() */
/* Rows that this rank's experts have run in all calls, [n_experts]; borrowed, grows with each call.
 */
const uint64_t *bt_moe_expert_rows(bt_moe *moe);
/* After the layers of a step, in two parts: note i < BT_N_MARKS is enqueued; when the device has
 * come to it the check is PROTOCOL if a row that came in any of them named experts that are not
 * top_k ascending ids.  Then no further step can be checked. */
bt_status bt_moe_note(bt_moe *moe, uint32_t i);
bt_status bt_moe_check(const bt_moe *moe, uint32_t i);

/* Collective over the group.  y[r] = moe(x[r]) for this rank's rows, [rows, hidden] bf16, distinct.
 * forced: host [rows][top_k], a row starting with UINT16_MAX is free; or NULL.
 * chosen_out: host [rows][top_k] ascending, or NULL.
 * wait: deadline and idle work for the exchanges; its layer is printed in errors.
 * y may still be under way on the device: bt_group_settle() comes before any wait for that.  Where
 * routes stay on the device only chosen_out makes the host wait, so a captured stream can hold it.
 * INVALID_ARG: rows of another group; PROTOCOL: a peer has more than fit, or names no experts;
 * DEVICE; and what ends an exchange (parallel/group.h). */
bt_status bt_moe_forward(bt_moe *moe, const bt_moe_weights *w, const bt_step_rows *rows,
                         const bt_bf16 *x, const uint16_t *forced, bt_bf16 *y, uint16_t *chosen_out,
                         const bt_wait *wait);

/* The same in parts, where routes stay on the device: all but dispatch and return only enqueue, and
 * can be captured.
 *     begin once a step; gate; shared; dispatch; experts; return; await_shared; join
 * Errors as above. */
bt_status bt_moe_begin(bt_moe *moe, const bt_step_rows *rows);
bt_status bt_moe_gate(bt_moe *moe, const bt_moe_weights *w, const bt_step_rows *rows,
                      const bt_bf16 *x, const uint16_t *forced);
/* Beside what follows, up to await_shared(). */
bt_status bt_moe_shared(bt_moe *moe, const bt_moe_weights *w, const bt_step_rows *rows,
                        const bt_bf16 *x);
bt_status bt_moe_dispatch(bt_moe *moe, const bt_wait *wait);
bt_status bt_moe_experts(bt_moe *moe, const bt_moe_weights *w);
bt_status bt_moe_return(bt_moe *moe, const bt_wait *wait);
bt_status bt_moe_await_shared(bt_moe *moe);
bt_status bt_moe_join(bt_moe *moe, bt_bf16 *y);

#ifdef __cplusplus
}
#endif
#endif

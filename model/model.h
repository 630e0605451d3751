/* model/model.h - weights of one rank, and one forward step of its group.
 *
 *     h = embed[token]
 *     per layer:  h += mla(rms_norm(h));  h += dense or moe (rms_norm(h))
 *     logits = lm_head rms_norm(h)                                for the rows that ask for them
 *
 * Nothing reads h after the last layer but the head: a row without logits only fills its pages
 * there.
 *
 * Multi-token prediction (DeepSeek-V3, arXiv 2412.19437 section 2.2): one layer more guesses, of
 * the row at position i and the token that has come to follow it, the token after that:
 *     n = rms_norm(h), as the head gets it
 *     h = eh_proj [ rms_norm(embed[token i+1]) | rms_norm(n) ];  the layer, at position i
 *     logits of token i+2 = lm_head rms_norm(h)
 * The layer has pages of its own.  What it makes is a draft: no token depends on it.
 *
 * A rank loads the whole of attention, dense layers and head, and only its own experts. */
#ifndef BT_MODEL_MODEL_H
#define BT_MODEL_MODEL_H

#include "attention/kv_pool.h"
#include "device/sampling.h"
#include "model/config.h"
#include "model/graph_plan.h"
#include "model/safetensors.h"
#include "model/store.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct bt_model bt_model;

typedef struct {
    bt_device          *dev;   /* borrowed */
    bt_group           *group; /* borrowed; NULL: no experts yet, regroup() comes before a step */
    const bt_placement *placement; /* borrowed; not used without experts or a group */
    uint32_t            max_rows;  /* rows of this rank in one step, >= 1 */
    uint32_t            max_logit_rows;
    bool                normal, absorbed; /* forms that this rank will run */
    bool                few_rows;         /* its steps have: see bt_weights_options */
    bt_store *store;         /* of this machine's ranks, for load(); borrowed for the model's life;
                                NULL: none */
    const bt_packed *packed; /* the same of an earlier start */
    /* Called from time to time while loading.  NULL: never. */
    void (*progress)(void *ctx, uint64_t done_bytes, uint64_t total_bytes);
    void *progress_ctx;
} bt_model_options;

/* Loads from an opened set.  cfg is borrowed for the model's life, st during the call.  FORMAT
 * names the first tensor that is missing or has another shape or dtype. */
bt_status bt_model_load(const bt_model_config *cfg, const bt_safetensors *st,
                        const bt_model_options *opt, bt_model **model_out);
/* Before its group is destroyed: gives back what holds that. */
void bt_model_leave_group(bt_model *model);
/* Goes on in another group, after it has left its own: of opt, dev, group, placement and progress
 * count.  Loads the experts that this rank has by the new placement and had not, frees those that
 * it had; the rest stays. Local: no other rank is waited for.  After an error the model is only
 * good for destroy(). */
bt_status bt_model_regroup(bt_model *model, const bt_safetensors *st, const bt_model_options *opt);
void      bt_model_destroy(bt_model *model);
size_t    bt_model_weight_bytes(const bt_model *model);
size_t    bt_model_shared_bytes(const bt_model *model); /* of these, in the store or packed */
/* bt_weights_missing_experts() */
uint32_t bt_model_missing_experts(const bt_model *model);
size_t   bt_model_workspace_bytes(const bt_model *model);
/* A generous estimate, before there is a model, of what a step of max_rows rows takes in a group of
 * group_size ranks. */
uint64_t bt_model_step_bytes(const bt_model_config *cfg, uint32_t group_size, uint32_t max_rows);
/* Rows that this rank's experts have run, over all layers and groups, [n_experts]; borrowed until
 * the next call.  NULL: no experts. */
const uint64_t *bt_model_expert_rows(bt_model *model);
/* XXH3 over the config and every tensor's name, dtype, shape and a sample of its bytes: ranks of a
 * cell must agree. */
uint64_t bt_model_fingerprint(const bt_model_config *cfg, const bt_safetensors *st);

/* What a store for this model is opened with, memory and members aside. */
void bt_model_store_options(const bt_model_config *cfg, const bt_safetensors *st,
                            bt_store_options *opt_out);

/* One step of this rank.  All pointers are host memory, borrowed during the call. */
typedef struct {
    uint32_t        n_rows;
    bt_graph_choice graph;  /* of the group; its rows are those of group_rows */
    const uint32_t *tokens; /* [n_rows] */
    const uint32_t *fed;    /* [n_rows], the draw of the step launched before that is a row's token,
                               or BT_NOT_DRAWN: tokens has it; NULL: tokens has all */
    uint32_t       n_spans;
    const bt_span *spans;      /* cover the rows ascending; role prompt first */
    bt_step_rows   group_rows; /* from the step's all-gather */
    bt_step_rows   last_rows;  /* likewise, of bt_model_last_rows(); n_rows NULL: all rows go
                                  through the last layer, as in a step that is a graph */
    uint32_t        n_logit_rows;
    const uint32_t *logit_rows; /* ascending; rows whose logits are wanted */
    float          *logits; /* out [n_logit_rows, vocab_size]; not touched where draws are given */
    bt_device_sampler *sampling; /* of the device, which runs the draws and feeds rows; or NULL */
    const bt_draws    *draws;    /* rows count in logit_rows; `logits` is the model's to fill in */
    const uint16_t    *forced;   /* [n_moe_layers][n_rows][top_k] or NULL; a row that begins with
                                    UINT16_MAX is free */
    uint16_t *chosen;            /* out, same shape, or NULL */
    /* After layer `layer` of every row is computed and its pages are written.  NULL: never. */
    void (*layer_done)(void *ctx, uint32_t layer);
    void   *ctx;
    bt_wait wait; /* for the exchanges */
} bt_step;

/* The step's rows of each role that go through all of the last layer: those with logits, or all
 * where experts are forced or told. */
void bt_model_last_rows(const bt_step *step, uint32_t n_rows_out[BT_N_ROLES]);
/* Memory of the device that the graphs of all of them may take, estimated: what a graph takes is
 * known once it is there.  0: the device has none. */
uint64_t bt_model_graph_bytes(const bt_device *dev, const bt_model_config *cfg, uint32_t max_rows);
/* Captures the decode steps that may come, where the device has graphs; takes memory.  Where that
 * fails it says so, and the steps run call by call, with the same bits.  wait: for the capture of
 * an exchange of the group, which is warm (bt_group_warm()). */
void bt_model_warm(bt_model *model, bt_kv_pool *pool, const bt_wait *wait);
/* What this rank can do of a step as a graph, whose group_rows and graph are not known yet. */
void bt_model_offer_graphs(const bt_model *model, const bt_step *step, bt_graph_offer *offer_out);

/* The layer for multi-token prediction, over the rows of the step before (all of which went through
 * its last layer), or over the logit rows of the draft before: one row each, in their order.  Of
 * `step` tokens are those that have come to follow the rows; spans say where they stand;
 * last_rows are the group's rows with logits, which alone go beyond filling their pages; group_rows
 * are not needed.  Neither fed nor forced nor chosen.  Runs alone: collective over the group, with
 * zero rows too.  Errors as of step(). */
bt_status bt_model_draft(bt_model *model, bt_kv_pool *pool, const bt_step *step);

/* Collective over the group, with zero rows too; a step in which no rank has a row runs no layer
 * (the caller knows from group_rows and need not call).  INVALID_ARG: the lists do not go together;
 * else the errors of attention and experts (attention/mla.h, moe/moe.h). */
bt_status bt_model_step(bt_model *model, bt_kv_pool *pool, const bt_step *step);
/* The same in two parts.  What launch() has enqueued needs nothing more of the step's lists, but
 * for what its results go to; await() ends the step that was launched first.  Two may be under way;
 * where exchanges go through host memory, or a step is no graph in a group, launch() waits for
 * what is under way.  After an error none is: the group is broken. */
bt_status bt_model_launch(bt_model *model, bt_kv_pool *pool, const bt_step *step);
bt_status bt_model_await(bt_model *model, const bt_wait *wait);

#ifdef __cplusplus
}
#endif
#endif

/* model/model.c - a model comes to life, changes its group, and ends; its steps are in step.c. */
#include "model/model.h"

#include <string.h>

#include "core/alloc.h"
#include "model/decode_graphs.h"
#include "model/state.h"

static bt_status take(bt_model *model, size_t n_rows, size_t width, size_t elem_bytes,
                      void *ptr_out)
{
    return bt_device_alloc_array(model->dev, n_rows * width, elem_bytes,
                                 &model->own_workspace_bytes, ptr_out);
}

static bt_status take_workspace(bt_model *model)
{
    const bt_model_config *cfg  = model->cfg;
    size_t                 rows = model->max_rows, logit_rows = model->max_logit_rows;
    size_t                 dense = 0;
    bt_status              st    = BT_OK;

    for (uint32_t layer = 0; layer < bt_model_n_served_layers(cfg); layer++)
        if (!bt_model_layer_is_moe(cfg, layer)) dense = cfg->dense_dim;
    BT_TRY(take(model, rows, cfg->hidden, sizeof(bt_bf16), &model->h));
    BT_TRY(take(model, rows, cfg->hidden, sizeof(bt_bf16), &model->normed));
    BT_TRY(take(model, rows, cfg->hidden, sizeof(bt_bf16), &model->out));
    BT_TRY(take(model, rows, 2 * dense, sizeof(bt_bf16), &model->gate_up));
    BT_TRY(take(model, rows, dense, sizeof(bt_bf16), &model->act));
    BT_TRY(take(model, logit_rows, cfg->hidden, sizeof(bt_bf16), &model->last));
    if (cfg->mtp) BT_TRY(take(model, rows, 2 * cfg->hidden, sizeof(bt_bf16), &model->joined));
    if (!model->dev->host_memory)
        BT_TRY(take(model, logit_rows, cfg->vocab_size, sizeof(float), &model->logits));
    if (model->dev->ops->graphs != NULL)
        BT_TRY(take(model, 1, 1, sizeof(*model->live), &model->live));
    if (model->dev->ops->sampling != NULL)
        BT_TRY(take(model, rows, 1, sizeof(*model->tokens), &model->tokens));
    model->last_spans = bt_calloc(logit_rows, sizeof(*model->last_spans));
    BT_REQUIRE(model->last_spans != NULL, BT_ERR_NO_MEMORY, "spans of %zu rows", logit_rows);
out:
    return st;
}

/* Which experts this rank loads: [n_experts], the caller's to free; NULL without experts. */
static bt_status own_experts(const bt_model_config *cfg, const bt_model_options *opt,
                             bool **own_out)
{
    uint32_t  n   = cfg->moe.gate.n_experts;
    bool     *own = NULL;
    bt_status st  = BT_OK;

    if (n == 0) goto out;
    BT_REQUIRE(opt->group == NULL || (opt->placement != NULL && opt->placement->n_experts == n),
               BT_ERR_INVALID_ARG, "model of %u experts with a placement of %u", n,
               opt->placement != NULL ? opt->placement->n_experts : 0);
    own = bt_calloc(n, sizeof(*own));
    BT_REQUIRE(own != NULL, BT_ERR_NO_MEMORY, "list of %u experts", n);
    for (uint32_t e = 0; e < n; e++)
        own[e] = opt->group != NULL && opt->placement->owner[e] == bt_group_self(opt->group);
    *own_out = own;
out:
    return st;
}

bt_status bt_model_load(const bt_model_config *cfg, const bt_safetensors *set,
                        const bt_model_options *opt, bt_model **model_out)
{
    bt_status st     = BT_OK;
    bt_model *model  = NULL;
    bool     *own    = NULL;
    bool      speaks = opt->group != NULL && bt_group_self(opt->group) == 0; /* one line a group */
    bt_weights_options w_opt = {.dev          = opt->dev,
                                .normal       = opt->normal,
                                .absorbed     = opt->absorbed || bt_mla_chooses(&cfg->mla),
                                .few_rows     = opt->few_rows,
                                .store        = opt->store,
                                .packed       = opt->packed,
                                .progress     = opt->progress,
                                .progress_ctx = opt->progress_ctx};

    BT_REQUIRE(opt->max_rows != 0 && (opt->normal || opt->absorbed), BT_ERR_INVALID_ARG,
               "model for %u rows, normal form %d, absorbed form %d: expected rows, and a form",
               opt->max_rows, opt->normal, opt->absorbed);
    model = bt_calloc(1, sizeof(*model));
    BT_REQUIRE(model != NULL, BT_ERR_NO_MEMORY, "model");
    model->cfg            = cfg;
    model->dev            = opt->dev;
    model->group          = opt->group;
    model->max_rows       = opt->max_rows;
    model->max_logit_rows = opt->max_logit_rows;

    BT_TRY(own_experts(cfg, opt, &own));
    w_opt.own_experts  = own;
    model->expert_rows = bt_calloc(cfg->moe.gate.n_experts, 2 * sizeof(*model->expert_rows));
    BT_REQUIRE(model->expert_rows != NULL, BT_ERR_NO_MEMORY, "rows of %u experts",
               cfg->moe.gate.n_experts);
    if (speaks) bt_weights_warn_of_layers(cfg, set);
    if (speaks && cfg->n_mtp_layers != 0 && !cfg->mtp)
        BT_INFO("the checkpoint has a layer for multi-token prediction, which is not loaded: --mtp "
                "1 would draft tokens with it");
    BT_TRY(take_workspace(model));
    BT_TRY(bt_mla_create(opt->dev, &cfg->mla, opt->max_rows, &model->mla));
    if (own != NULL && opt->group != NULL)
        BT_TRY(bt_moe_create(opt->dev, opt->group, opt->placement, &cfg->moe, opt->max_rows,
                             &model->moe));
    BT_TRY(bt_weights_load(cfg, set, &w_opt, &model->w));
    if (opt->group != NULL) BT_TRY(bt_decode_graphs_create(model, &model->graphs));
    *model_out = model;
    model      = NULL; /* handed over */
out:
    bt_free(own);
    bt_model_destroy(model);
    return st;
}

void bt_model_leave_group(bt_model *model)
{
    bt_decode_graphs_destroy(model->graphs);
    model->graphs = NULL;
}

/* What is counted goes on over groups: a counter that starts again says nothing beside those of
 * other ranks. */
static void keep_expert_rows(bt_model *model)
{
    const uint64_t *all = bt_model_expert_rows(model);

    if (all != NULL) memcpy(model->expert_rows, all, model->cfg->moe.gate.n_experts * sizeof(*all));
}

bt_status bt_model_regroup(bt_model *model, const bt_safetensors *set, const bt_model_options *opt)
{
    bt_status          st    = BT_OK;
    bool              *own   = NULL;
    bt_weights_options w_opt = {
        .dev = opt->dev, .progress = opt->progress, .progress_ctx = opt->progress_ctx};

    BT_TRY(own_experts(model->cfg, opt, &own));
    BT_ASSERT(model->graphs == NULL); /* they hold the group and the experts that were */
    model->group = opt->group;
    BT_TRY(bt_device_sync(model->dev)); /* steps that have come to nothing */
    model->n_awaited = model->n_launched;
    if (own != NULL) {
        w_opt.own_experts = own;
        keep_expert_rows(model);
        bt_moe_destroy(model->moe);
        model->moe = NULL;
        BT_TRY(bt_weights_move_experts(model->cfg, set, &w_opt, &model->w));
        BT_TRY(bt_moe_create(opt->dev, opt->group, opt->placement, &model->cfg->moe,
                             model->max_rows, &model->moe));
    }
    BT_TRY(bt_decode_graphs_create(model, &model->graphs));
out:
    bt_free(own);
    return st;
}

void bt_model_warm(bt_model *model, bt_kv_pool *pool, const bt_wait *wait)
{
    if (model->graphs != NULL) bt_decode_graphs_warm(model->graphs, pool, wait);
}

void bt_model_offer_graphs(const bt_model *model, const bt_step *step, bt_graph_offer *offer_out)
{
    if (model->graphs != NULL)
        bt_decode_graphs_offer(model->graphs, step, offer_out);
    else
        *offer_out = (bt_graph_offer){.n_parts = 0};
}

void bt_model_destroy(bt_model *model)
{
    if (model == NULL) return;
    bt_decode_graphs_destroy(model->graphs);
    bt_weights_fini(&model->w);
    bt_mla_destroy(model->mla);
    bt_moe_destroy(model->moe);
    bt_device_free(model->dev, model->h);
    bt_device_free(model->dev, model->normed);
    bt_device_free(model->dev, model->out);
    bt_device_free(model->dev, model->gate_up);
    bt_device_free(model->dev, model->act);
    bt_device_free(model->dev, model->last);
    bt_device_free(model->dev, model->joined);
    bt_device_free(model->dev, model->logits);
    bt_device_free(model->dev, model->live);
    bt_device_free(model->dev, model->tokens);
    bt_free(model->expert_rows);
    bt_free(model->last_spans);
    bt_free(model);
}

size_t bt_model_weight_bytes(const bt_model *model) { return model->w.bytes; }

size_t   bt_model_shared_bytes(const bt_model *model) { return model->w.shared_bytes; }
uint32_t bt_model_missing_experts(const bt_model *model)
{
    return bt_weights_missing_experts(model->cfg, &model->w);
}

size_t bt_model_workspace_bytes(const bt_model *model)
{
    return model->own_workspace_bytes + bt_mla_workspace_bytes(model->mla) +
           (model->moe != NULL ? bt_moe_workspace_bytes(model->moe) : 0);
}

uint64_t bt_model_step_bytes(const bt_model_config *cfg, uint32_t group_size, uint32_t max_rows)
{
    uint64_t heads = (uint64_t)cfg->mla.n_heads *
                     (cfg->mla.qk_nope_dim + cfg->mla.qk_rope_dim + cfg->mla.kv_lora_rank);
    uint64_t index = (uint64_t)cfg->mla.index_heads * (cfg->mla.index_dim + 2) + cfg->mla.index_dim;
    uint64_t row =
        (cfg->mtp ? 10ull : 8ull) * cfg->hidden + 2ull * heads + index + 3ull * cfg->dense_dim;

    /* Every rank's rows come together in the experts' exchange: a row, and what each of its experts
     * makes of it. */
    if (cfg->moe.gate.n_experts != 0)
        row += (uint64_t)group_size * (cfg->moe.gate.top_k + 2) *
               (cfg->hidden + 3ull * cfg->moe.expert_dim);
    return max_rows * (row * sizeof(bt_bf16) + 2ull * cfg->vocab_size * sizeof(float));
}

const uint64_t *bt_model_expert_rows(bt_model *model)
{
    uint32_t        n    = model->cfg->moe.gate.n_experts;
    const uint64_t *rows = NULL;

    if (model->moe == NULL) return NULL;
    rows = bt_moe_expert_rows(model->moe);
    for (uint32_t e = 0; e < n; e++)
        model->expert_rows[n + e] = model->expert_rows[e] + rows[e];
    return model->expert_rows + n;
}

#include <string.h>

#include "model/config_parts.h"

/* transformers 5 lists each layer's kind; only "dense" layers first, then "sparse" ones, is a
 * model that first_k_dense_replace can say.  Where both stand, Hugging Face reads only the latter
 * for V2, V3, Sarvam and Mistral, and only the list for the others, beside which it saves its
 * default of 3. */
static bt_status read_layer_types(const bt_json_at *at, bt_model_family fam, bt_model_config *cfg)
{
    bt_status     st      = BT_OK;
    const json_t *list    = bt_json_field(at, "mlp_layer_types");
    uint32_t      n_dense = 0;

    BT_REQUIRE(
        list != NULL || fam != BT_FAMILY_GLM4 || cfg->first_moe_layer == 1, BT_ERR_UNSUPPORTED,
        "%s: field first_k_dense_replace: expected 1 where mlp_layer_types is missing, found "
        "%u: Hugging Face reads only the latter for this model_type",
        at->file, cfg->first_moe_layer);
    if (list == NULL) goto out;
    for (uint32_t i = 0; i < cfg->n_layers; i++) {
        bool is_dense = false;

        BT_TRY(bt_config_layer_is(at, "mlp_layer_types", i, cfg->n_layers, "dense", "sparse",
                                  &is_dense));
        BT_REQUIRE(!is_dense || n_dense == i, BT_ERR_UNSUPPORTED,
                   "%s: field mlp_layer_types[%u]: expected no dense layer after a sparse one",
                   at->file, i);
        n_dense += is_dense;
    }
    BT_REQUIRE((fam != BT_FAMILY_V2 && fam != BT_FAMILY_V3 && fam != BT_FAMILY_SARVAM &&
                fam != BT_FAMILY_MISTRAL) ||
                   bt_json_field(at, "first_k_dense_replace") == NULL ||
                   cfg->first_moe_layer == n_dense,
               BT_ERR_FORMAT,
               "%s: field mlp_layer_types: expected %u dense layers (first_k_dense_replace), found "
               "%u",
               at->file, cfg->first_moe_layer, n_dense);
    cfg->first_moe_layer = n_dense;
out:
    return st;
}

/* Sarvam's published config.json has names of its own. */
static const char *name_of(const bt_json_at *at, bt_model_family fam, const char *name,
                           const char *sarvam)
{
    return fam == BT_FAMILY_SARVAM && bt_json_field(at, name) == NULL ? sarvam : name;
}

static bt_status read_gate_kind(const bt_json_at *at, bt_model_family fam, bt_gate_kind *kind_out)
{
    static const struct {
        const char  *method, *scoring;
        bt_gate_kind kind;
        bool         v2; /* else of the other families */
    } KINDS[] = {
        {"greedy",               "softmax", BT_GATE_SOFTMAX,        true },
        {"group_limited_greedy", "softmax", BT_GATE_SOFTMAX_GROUPS, true },
        {"noaux_tc",             "sigmoid", BT_GATE_SIGMOID_BIAS,   false},
    };
    enum { N_KINDS = sizeof(KINDS) / sizeof(KINDS[0]) };
    bt_status   st      = BT_OK;
    const char *method  = fam == BT_FAMILY_V2 ? "greedy" : "noaux_tc";
    const char *scoring = fam == BT_FAMILY_V2 ? "softmax" : "sigmoid";
    const char *field   = name_of(at, fam, "scoring_func", "score_function");
    char        found_method[64], found_scoring[64];
    int         i = 0;

    if (fam == BT_FAMILY_MISTRAL) { /* has neither field */
        *kind_out = BT_GATE_SOFTMAX;
        goto out;
    }
    if (bt_json_field(at, "topk_method") != NULL) BT_TRY(bt_json_str(at, "topk_method", &method));
    if (bt_json_field(at, field) != NULL) BT_TRY(bt_json_str(at, field, &scoring));
    while (i < N_KINDS &&
           (strcmp(method, KINDS[i].method) != 0 || strcmp(scoring, KINDS[i].scoring) != 0 ||
            KINDS[i].v2 != (fam == BT_FAMILY_V2)))
        i++;
    BT_REQUIRE(i < N_KINDS, BT_ERR_UNSUPPORTED,
               "%s: fields topk_method and %s: expected %s for this model_type, found \"%s\" with "
               "\"%s\"",
               at->file, field,
               fam == BT_FAMILY_V2 ? "greedy or group_limited_greedy with softmax"
                                   : "noaux_tc with sigmoid",
               bt_json_printable(method, found_method, sizeof(found_method)),
               bt_json_printable(scoring, found_scoring, sizeof(found_scoring)));
    *kind_out = KINDS[i].kind;
out:
    return st;
}

static bt_status check_groups(const bt_json_at *at, const bt_gate_config *g)
{
    bt_status st = BT_OK;
    uint32_t  group_size;

    BT_REQUIRE(g->n_experts % g->n_groups == 0, BT_ERR_FORMAT,
               "%s: field n_group: expected a divisor of n_routed_experts (%u), found %u", at->file,
               g->n_experts, g->n_groups);
    group_size = g->n_experts / g->n_groups;
    BT_REQUIRE(g->topk_groups <= g->n_groups, BT_ERR_FORMAT,
               "%s: field topk_group: expected at most n_group (%u), found %u", at->file,
               g->n_groups, g->topk_groups);
    BT_REQUIRE(g->top_k <= g->topk_groups * group_size, BT_ERR_FORMAT,
               "%s: field num_experts_per_tok: expected at most %u (topk_group %u groups of %u "
               "experts), found %u",
               at->file, g->topk_groups * group_size, g->topk_groups, group_size, g->top_k);
    BT_REQUIRE(g->kind != BT_GATE_SIGMOID_BIAS || g->n_groups == 1 || group_size >= 2,
               BT_ERR_FORMAT,
               "%s: field n_group: expected groups of two experts or more (a group's score is the "
               "sum of its two best), found %u groups of %u experts",
               at->file, g->n_groups, g->n_experts);
out:
    return st;
}

/* Their published config.json leaves some of the rules to defaults: one dense layer, weights
 * normalised and scaled by 2.5. */
static bool may_lack_rules(bt_model_family fam)
{
    return fam == BT_FAMILY_SARVAM || fam == BT_FAMILY_AXK1;
}

/* As in Hugging Face where the fields are absent: these families have groups, V2's groups have no
 * default, and a null is none. */
static bt_status read_groups(const bt_json_at *at, bt_model_family fam, bt_gate_config *g)
{
    bt_status st         = BT_OK;
    bool      has_groups = fam == BT_FAMILY_V3 || fam == BT_FAMILY_V32 || fam == BT_FAMILY_AXK1;
    bool      needed     = g->kind == BT_GATE_SOFTMAX_GROUPS;
    const bt_config_u32 fields[] = {
        {"n_group",    &g->n_groups,    1, BT_MAX_SUM_BLOCKS,
         needed || (has_groups && json_object_get(at->obj, "n_group") != NULL)   },
        {"topk_group", &g->topk_groups, 1, BT_MAX_SUM_BLOCKS,
         needed || (has_groups && json_object_get(at->obj, "topk_group") != NULL)},
    };

    g->n_groups    = has_groups ? 8 : 1;
    g->topk_groups = has_groups ? 4 : 1;
    BT_TRY(bt_config_u32_fields(at, fields, sizeof(fields) / sizeof(fields[0])));
out:
    return st;
}

static bt_status read_gate(const bt_json_at *at, bt_model_family fam, bt_gate_config *g)
{
    bt_status           st    = BT_OK;
    double              scale = 2.5;
    const bt_config_u32 top_k = {"num_experts_per_tok", &g->top_k, 1, BT_MAX_TOP_K, true};

    BT_TRY(read_gate_kind(at, fam, &g->kind));
    BT_TRY(bt_config_u32_fields(at, &top_k, 1));
    BT_TRY(read_groups(at, fam, g));
    BT_REQUIRE(fam != BT_FAMILY_MISTRAL || g->n_groups == 1, BT_ERR_UNSUPPORTED,
               "%s: field n_group: expected 1 for this model_type, found %u", at->file,
               g->n_groups);
    if (g->kind == BT_GATE_SOFTMAX) g->n_groups = g->topk_groups = 1; /* greedy knows no groups */
    BT_TRY(check_groups(at, g));
    g->norm_topk = true; /* to Hugging Face a null is false, not the default */
    if (!may_lack_rules(fam) || json_object_get(at->obj, "norm_topk_prob") != NULL)
        BT_TRY(bt_json_bool(at, "norm_topk_prob", &g->norm_topk));
    if (!may_lack_rules(fam) || bt_json_field(at, "routed_scaling_factor") != NULL)
        BT_TRY(bt_json_f64(at, "routed_scaling_factor", 1e-6, 1e6, &scale));
    /* DeepSeek's own code would normalise and not scale, Hugging Face's does the opposite. */
    BT_REQUIRE(fam != BT_FAMILY_V2 || !g->norm_topk, BT_ERR_UNSUPPORTED,
               "%s: field norm_topk_prob: expected false for this model_type, found true",
               at->file);
    g->scale = (float)scale;
out:
    return st;
}

bt_status bt_config_moe(const bt_json_at *at, bt_model_family fam, bt_model_config *cfg)
{
    bt_status           st       = BT_OK;
    bt_gate_config     *g        = &cfg->moe.gate;
    uint32_t            n_shared = 0;
    const char         *shared   = name_of(at, fam, "n_shared_experts", "num_shared_experts");
    const char         *routed   = name_of(at, fam, "n_routed_experts", "num_experts");
    const bt_config_u32 count    = {routed, &g->n_experts, 0, BT_MAX_EXPERTS, false};
    const bt_config_u32 fields[] = {
        {"moe_intermediate_size", &cfg->moe.expert_dim,  1, BT_CONFIG_MAX_DIM,    true },
        {shared,                  &n_shared,             0, 1 << 10,              false},
        {"first_k_dense_replace", &cfg->first_moe_layer, 0, BT_CONFIG_MAX_LAYERS, false},
        {"moe_layer_freq",        &cfg->moe_layer_freq,  1, BT_CONFIG_MAX_LAYERS, false},
    };

    cfg->moe_layer_freq  = 1;
    cfg->moe.hidden      = cfg->hidden;
    cfg->moe_norm        = fam == BT_FAMILY_AXK1;
    cfg->first_moe_layer = may_lack_rules(fam) ? 1 : 0;
    BT_TRY(bt_config_u32_fields(at, &count, 1));
    if (g->n_experts == 0) goto out; /* every layer is dense */
    BT_TRY(bt_config_u32_fields(at, fields, sizeof(fields) / sizeof(fields[0])));
    BT_REQUIRE(may_lack_rules(fam) || bt_json_field(at, "first_k_dense_replace") != NULL ||
                   bt_json_field(at, "mlp_layer_types") != NULL,
               BT_ERR_FORMAT,
               "%s: field first_k_dense_replace: expected an integer from 0 to %u, found nothing",
               at->file, cfg->n_layers);
    if (cfg->first_moe_layer > cfg->n_layers) /* layers were cut off: all that are left are dense */
        cfg->first_moe_layer = cfg->n_layers;
    BT_TRY(read_layer_types(at, fam, cfg));
    BT_REQUIRE((uint64_t)n_shared * cfg->moe.expert_dim <= BT_CONFIG_MAX_DIM, BT_ERR_FORMAT,
               "%s: field n_shared_experts: expected n_shared_experts * moe_intermediate_size <= "
               "%d, found %u * %u",
               at->file, BT_CONFIG_MAX_DIM, n_shared, cfg->moe.expert_dim);
    cfg->moe.shared_dim = n_shared * cfg->moe.expert_dim;
    BT_TRY(read_gate(at, fam, g));
out:
    return st;
}

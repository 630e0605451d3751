/* model/config_mistral.c - params.json, in which Mistral Large 3 is published, as the config.json
 * of a mistral4 that says the same.
 *
 * The format has no name for an architecture.  So a field that is not known here is refused,
 * whatever its value: it may change the mathematics.  Names and rules: mistral-common's format as
 * vLLM reads it (transformers_utils/configs/mistral.py). */
#include <string.h>

#include "model/config_parts.h"

/* A field, and its name in config.json; "" where it changes nothing here. */
typedef struct {
    const char *name, *as;
} field;

static const field TOP[] = {
    {"activation",              "hidden_act"             },
    {"dim",                     "hidden_size"            },
    {"dtype",                   ""                       },
    {"head_dim",                ""                       },
    {"hidden_dim",              "intermediate_size"      },
    {"kv_lora_rank",            "kv_lora_rank"           },
    {"llama_4_scaling",         ""                       }, /* these three apart */
    {"max_position_embeddings", "max_position_embeddings"},
    {"max_seq_len",             ""                       },
    {"moe",                     ""                       },
    {"multimodal",              ""                       }, /* images are refused when they come */
    {"n_heads",                 "num_attention_heads"    },
    {"n_kv_heads",              ""                       },
    {"n_layers",                "num_hidden_layers"      },
    {"norm_eps",                "rms_norm_eps"           },
    {"q_lora_rank",             "q_lora_rank"            },
    {"qk_nope_head_dim",        "qk_nope_head_dim"       },
    {"qk_rope_head_dim",        "qk_rope_head_dim"       },
    {"quantization_config",     "quantization_config"    },
    {"rope_theta",              "rope_theta"             },
    {"tied_embeddings",         "tie_word_embeddings"    },
    {"v_head_dim",              "v_head_dim"             },
    {"vision_encoder",          ""                       },
    {"vocab_size",              "vocab_size"             },
    {"yarn",                    ""                       },
};
static const field MOE[] = {
    {"expert_hidden_dim",         "moe_intermediate_size"},
    {"expert_model_parallel",     ""                     },
    {"expert_parallel",           ""                     },
    {"first_k_dense_replace",     "first_k_dense_replace"},
    {"num_expert_groups",         "n_group"              },
    {"num_expert_groups_per_tok", "topk_group"           },
    {"num_experts",               "n_routed_experts"     },
    {"num_experts_per_tok",       "num_experts_per_tok"  },
    {"num_shared_experts",        "n_shared_experts"     },
    {"route_every_n",             "moe_layer_freq"       },
    {"routed_scale",              "routed_scaling_factor"},
};
static const field YARN[] = {
    {"alpha",                            "beta_slow"                       },
    {"apply_scale",                      ""                                },
    {"beta",                             "beta_fast"                       },
    {"factor",                           "factor"                          },
    {"original_max_position_embeddings", "original_max_position_embeddings"},
};
static const field SCALING[] = {
    {"beta",                             "llama_4_scaling_beta"},
    {"original_max_position_embeddings", ""                    },
};
#define COUNT(list) (sizeof(list) / sizeof((list)[0]))

/* What is not null becomes a member of `to`. */
static bt_status take(const bt_json_at *at, const field *fields, size_t n, json_t *to)
{
    bt_status   st = BT_OK;
    const char *name;
    json_t     *v;
    char        label[64], found[BT_JSON_SHOW_BYTES];

    json_object_foreach((json_t *)at->obj, name, v)
    {
        size_t i = 0;

        if (json_is_null(v)) continue;
        while (i < n && strcmp(name, fields[i].name) != 0)
            i++;
        BT_REQUIRE(i < n, BT_ERR_UNSUPPORTED,
                   "%s: field %s%s%s: not one of Mistral Large 3, expected it absent, found %s",
                   at->file, at->in, at->in[0] == '\0' ? "" : ".",
                   bt_json_printable(name, label, sizeof(label)),
                   bt_json_show(v, found, sizeof(found)));
        if (fields[i].as[0] == '\0') continue;
        BT_REQUIRE(json_object_set(to, fields[i].as, v) == 0, BT_ERR_NO_MEMORY, "%s", at->file);
    }
out:
    return st;
}

static bt_status enter(const bt_json_at *at, const char *name, bt_json_at *in_out)
{
    bt_status     st = BT_OK;
    const json_t *v  = bt_json_field(at, name);
    char          found[BT_JSON_SHOW_BYTES];

    BT_REQUIRE(json_is_object(v), BT_ERR_UNSUPPORTED,
               "%s: field %s: expected an object, as in a model with latent attention and experts "
               "(Mistral Large 3), found %s",
               at->file, name, bt_json_show(v, found, sizeof(found)));
    *in_out = (bt_json_at){at->file, name, v};
out:
    return st;
}

/* Both objects become the one of config.json, which has one context for both.  Frequencies are
 * scaled, magnitudes and the softmax are not. */
static bt_status take_rope(const bt_json_at *yarn, const bt_json_at *scaling, json_t *config)
{
    static const char CONTEXT[] = "original_max_position_embeddings";
    bt_status         st        = BT_OK;
    json_t           *rope      = json_pack("{s:s, s:f}", "type", "yarn", "attention_factor", 1.0);
    const json_t *mine = bt_json_field(yarn, CONTEXT), *theirs = bt_json_field(scaling, CONTEXT);
    bool          is_scaled = true;
    char          found[BT_JSON_SHOW_BYTES], want[BT_JSON_SHOW_BYTES];

    BT_REQUIRE(rope != NULL && json_object_set(config, "rope_parameters", rope) == 0,
               BT_ERR_NO_MEMORY, "%s", yarn->file);
    BT_TRY(take(yarn, YARN, COUNT(YARN), rope));
    BT_TRY(take(scaling, SCALING, COUNT(SCALING), rope));
    BT_TRY(bt_json_bool(yarn, "apply_scale", &is_scaled));
    BT_REQUIRE(!is_scaled, BT_ERR_UNSUPPORTED,
               "%s: field yarn.apply_scale: expected false, found true", yarn->file);
    BT_REQUIRE(mine == theirs || json_equal(mine, theirs), BT_ERR_UNSUPPORTED,
               "%s: field llama_4_scaling.%s: expected %s as in yarn, found %s", yarn->file,
               CONTEXT, bt_json_show(mine, want, sizeof(want)),
               bt_json_show(theirs, found, sizeof(found)));
out:
    json_decref(rope);
    return st;
}

bt_status bt_config_of_params(const char *file, const json_t *params, json_t **config_out)
{
    bt_status  st = BT_OK;
    bt_json_at at = {file, "", params}, moe, yarn, scaling;
    /* the tokens are those of every tekken.json */
    json_t *config =
        json_pack("{s:s, s:b, s:i, s:i, s:i}", "model_type", "mistral4", "norm_topk_prob", 1,
                  "bos_token_id", 1, "eos_token_id", 2, "pad_token_id", 11);

    BT_REQUIRE(config != NULL, BT_ERR_NO_MEMORY, "%s", file);
    BT_TRY(enter(&at, "moe", &moe));
    BT_TRY(enter(&at, "yarn", &yarn));
    BT_TRY(enter(&at, "llama_4_scaling", &scaling));
    BT_TRY(take(&at, TOP, COUNT(TOP), config));
    BT_TRY(take(&moe, MOE, COUNT(MOE), config));
    BT_TRY(take_rope(&yarn, &scaling, config));
    *config_out = config;
    config      = NULL;
out:
    json_decref(config);
    return st;
}

/* model/config_quantization.c - quantization_config: FP8 as DeepSeek publishes it, or as
 * compressed-tensors does FP8 in the same blocks or weights of 4 bits.  Which matrices have them,
 * in the latter also against `ignore`, the tensors say (weights.h). */
#include <stdio.h>
#include <string.h>

#include "model/config_parts.h"

/* What a field has to be, as JSON; NULL: it may not be there.  Fields that are not needed may be
 * absent or null as well. */
typedef struct {
    const char *name, *want;
    bool        needed;
} rule;

static const rule FP8[] = {
    {"fmt",               "\"e4m3\"",    false},
    {"activation_scheme", "\"dynamic\"", false},
    {"weight_block_size", "[128,128]",   true },
};

/* As Mistral publishes it: the scales of activations stand in the files, and are not used, since
 * activations stay bf16. */
static const rule FP8_ONE_SCALE[] = {
    {"fmt",               "\"e4m3\"",   false},
    {"activation_scheme", "\"static\"", true },
};

static const rule INT4[] = {
    {"format",              "\"pack-quantized\"", true },
    {"quantization_status", "\"compressed\"",     false},
    {"kv_cache_scheme",     NULL,                 false},
    {"sparsity_config",     "{}",                 false},
    {"transform_config",    "{}",                 false},
    {"moe_sparsity_config", NULL,                 false},
};

/* As Mistral Large 3: what it says of activations is not used, since they stay bf16. */
static const rule FP8_BLOCK[] = {
    {"format",              "\"float-quantized\"", true },
    {"quantization_status", "\"compressed\"",      false},
    {"kv_cache_scheme",     NULL,                  false},
    {"sparsity_config",     "{}",                  false},
    {"transform_config",    "{}",                  false},
};

static const rule FP8_BLOCK_GROUP[] = {
    {"format",             "\"float-quantized\"", false},
    {"output_activations", NULL,                  false},
};

static const rule FP8_BLOCK_WEIGHTS[] = {
    {"num_bits",        "8",         true },
    {"type",            "\"float\"", true },
    {"symmetric",       "true",      true },
    {"strategy",        "\"block\"", true },
    {"block_structure", "[128,128]", true },
    {"dynamic",         "false",     false},
};

static const rule INT4_GROUP[] = {
    {"format",             "\"pack-quantized\"", false},
    {"input_activations",  NULL,                 false},
    {"output_activations", NULL,                 false},
};

static const rule INT4_WEIGHTS[] = {
    {"num_bits",   "4",         true },
    {"type",       "\"int\"",   true },
    {"symmetric",  "true",      true },
    {"strategy",   "\"group\"", true },
    {"group_size", "32",        true },
    {"dynamic",    "false",     false},
    {"actorder",   "false",     false},
};

static bt_status check_rule(const bt_json_at *at, const rule *r)
{
    bt_status     st    = BT_OK;
    const json_t *v     = bt_json_field(at, r->name);
    json_t       *want  = NULL;
    bool          right = v == NULL && !r->needed;
    char          found[BT_JSON_SHOW_BYTES];

    if (r->want != NULL) {
        want = json_loads(r->want, JSON_DECODE_ANY, NULL);
        BT_REQUIRE(want != NULL, BT_ERR_NO_MEMORY, "%s", at->file);
        right = right || json_equal(v, want);
    }
    BT_REQUIRE(right, BT_ERR_UNSUPPORTED, "%s: field %s.%s: expected %s%s, found %s", at->file,
               at->in, r->name, r->want != NULL ? r->want : "it absent",
               r->want != NULL && !r->needed ? " or nothing" : "",
               bt_json_show(v, found, sizeof(found)));
out:
    json_decref(want);
    return st;
}

static bt_status check_rules(const bt_json_at *at, const rule *rules, size_t n)
{
    bt_status st = BT_OK;

    for (size_t i = 0; i < n && st == BT_OK; i++)
        st = check_rule(at, &rules[i]);
    return st;
}
#define CHECK_RULES(at, rules) \
    BT_TRY(check_rules((at), (rules), sizeof(rules) / sizeof((rules)[0])))

/* The object called so within another; `name` has room for where it stands. */
static bt_status enter(const bt_json_at *at, const char *field, char name[256], bt_json_at *in_out)
{
    bt_status     st = BT_OK;
    const json_t *v  = bt_json_field(at, field);
    char          found[BT_JSON_SHOW_BYTES], printable[64];

    snprintf(name, 256, "%s.%s", at->in, bt_json_printable(field, printable, sizeof(printable)));
    BT_REQUIRE(json_is_object(v), BT_ERR_FORMAT, "%s: field %s: expected an object, found %s",
               at->file, name, bt_json_show(v, found, sizeof(found)));
    *in_out = (bt_json_at){at->file, name, v};
out:
    return st;
}

static bt_status check_names(const bt_json_at *at, const char *field)
{
    bt_status     st    = BT_OK;
    const json_t *list  = bt_json_field(at, field);
    bool          names = list == NULL || json_is_array(list);
    char          found[BT_JSON_SHOW_BYTES];

    for (size_t i = 0; i < json_array_size(list); i++)
        names = names && json_is_string(json_array_get(list, i));
    BT_REQUIRE(names, BT_ERR_FORMAT, "%s: field %s.%s: expected a list of names, found %s",
               at->file, at->in, field, bt_json_show(list, found, sizeof(found)));
out:
    return st;
}

static bt_status check_group(const bt_json_at *groups, const char *key, bool fp8)
{
    bt_status  st = BT_OK;
    bt_json_at group, weights;
    char       group_name[256], weights_name[256];

    BT_TRY(enter(groups, key, group_name, &group));
    BT_TRY(check_names(&group, "targets"));
    BT_TRY(enter(&group, "weights", weights_name, &weights));
    if (fp8) {
        CHECK_RULES(&group, FP8_BLOCK_GROUP);
        CHECK_RULES(&weights, FP8_BLOCK_WEIGHTS);
    } else {
        CHECK_RULES(&group, INT4_GROUP);
        CHECK_RULES(&weights, INT4_WEIGHTS);
    }
out:
    return st;
}

static bt_status read_compressed(const bt_json_at *q, bt_model_config *cfg)
{
    bt_status   st = BT_OK;
    bt_json_at  groups;
    const char *key;
    json_t     *group, *format = bt_json_field(q, "format");
    char        name[256];
    bool fp8 = json_is_string(format) && strcmp(json_string_value(format), "float-quantized") == 0;

    if (fp8)
        CHECK_RULES(q, FP8_BLOCK);
    else
        CHECK_RULES(q, INT4);
    BT_TRY(check_names(q, "ignore"));
    BT_TRY(enter(q, "config_groups", name, &groups));
    BT_REQUIRE(json_object_size(groups.obj) != 0, BT_ERR_FORMAT,
               "%s: field %s: expected one group or more, found none", q->file, groups.in);
    json_object_foreach((json_t *)groups.obj, key, group) BT_TRY(check_group(&groups, key, fp8));
    cfg->int4 = !fp8;
    cfg->fp8  = fp8;
out:
    return st;
}

bt_status bt_config_quantization(const bt_json_at *at, bt_model_config *cfg)
{
    bt_status   st = BT_OK;
    bt_json_at  q  = {at->file, "quantization_config", bt_json_field(at, "quantization_config")};
    const char *method = NULL;
    char        found[BT_JSON_SHOW_BYTES];

    if (q.obj == NULL) goto out;
    BT_REQUIRE(json_is_object(q.obj), BT_ERR_FORMAT, "%s: field %s: expected an object, found %s",
               at->file, q.in, bt_json_show(q.obj, found, sizeof(found)));
    BT_REQUIRE(bt_json_field(&q, "quant_method") != NULL, BT_ERR_UNSUPPORTED,
               "%s: field %s.quant_method: expected \"fp8\" or \"compressed-tensors\", found "
               "nothing (as MLX quantizes): not supported",
               at->file, q.in);
    BT_TRY(bt_json_str(&q, "quant_method", &method));
    if (strcmp(method, "compressed-tensors") == 0) {
        BT_TRY(read_compressed(&q, cfg));
        goto out;
    }
    BT_REQUIRE(strcmp(method, "fp8") == 0, BT_ERR_UNSUPPORTED,
               "%s: field %s.quant_method: expected \"fp8\" or \"compressed-tensors\", found "
               "\"%s\"",
               at->file, q.in, bt_json_printable(method, found, sizeof(found)));
    cfg->fp8_one_scale = json_is_null(json_object_get(q.obj, "weight_block_size"));
    if (cfg->fp8_one_scale)
        CHECK_RULES(&q, FP8_ONE_SCALE);
    else
        CHECK_RULES(&q, FP8);
    cfg->fp8 = true;
out:
    return st;
}

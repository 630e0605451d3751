#include "model/config_parts.h"

#include <math.h>
#include <string.h>

typedef struct {
    double factor, original_context, beta_fast, beta_slow, mscale, mscale_all_dim;
    double attention_factor; /* 0: it follows from mscale and mscale_all_dim */
} yarn;

static const double PI = 3.14159265358979323846;

/* {} is nothing, as to Hugging Face. */
static json_t *some(const bt_json_at *at, const char *field)
{
    json_t *v = bt_json_field(at, field);

    return json_is_object(v) && json_object_size(v) == 0 ? NULL : v;
}

/* The object with the scaling's fields: rope_parameters (transformers 5, holds rope_theta too) or
 * rope_scaling; obj is NULL when there is neither. */
static bt_status find_object(const bt_json_at *at, bt_json_at *rope_out)
{
    bt_status   st  = BT_OK;
    json_t     *old = some(at, "rope_scaling"), *new = some(at, "rope_parameters");
    const char *name = new != NULL ? "rope_parameters" : "rope_scaling";
    char        found[BT_JSON_SHOW_BYTES];

    BT_REQUIRE(old == NULL || new == NULL, BT_ERR_FORMAT,
               "%s: expected one of rope_scaling and rope_parameters, found both", at->file);
    BT_REQUIRE((old == NULL || json_is_object(old)) && (new == NULL || json_is_object(new)),
               BT_ERR_FORMAT, "%s: field %s: expected an object, found %s", at->file, name,
               bt_json_show(new != NULL ? new : old, found, sizeof(found)));
    *rope_out = (bt_json_at){at->file, name, new != NULL ? new : old};
out:
    return st;
}

/* "default" or "yarn" (Sarvam's name for it: "deepseek_yarn"), under the key "rope_type" or its
 * older name "type". */
static bt_status read_kind(const bt_json_at *rope, bool *yarn_out)
{
    bt_status   st   = BT_OK;
    const char *kind = "default", *key = "rope_type";
    char        found[64];

    if (rope->obj != NULL) {
        if (bt_json_field(rope, key) == NULL && bt_json_field(rope, "type") != NULL) key = "type";
        BT_TRY(bt_json_str(rope, key, &kind));
    }
    *yarn_out = strcmp(kind, "yarn") == 0 || strcmp(kind, "deepseek_yarn") == 0;
    BT_REQUIRE(*yarn_out || strcmp(kind, "default") == 0, BT_ERR_UNSUPPORTED,
               "%s: field %s.%s: expected \"yarn\" or \"default\", found \"%s\"", rope->file,
               rope->in, key, bt_json_printable(kind, found, sizeof(found)));
out:
    return st;
}

static bt_status optional_f64(const bt_json_at *at, const char *field, double lo, double hi,
                              double *v)
{
    return bt_json_field(at, field) == NULL ? BT_OK : bt_json_f64(at, field, lo, hi, v);
}

/* The part of a head that is turned, where it is counted: of a query's head in Mistral 4, which
 * also has elements that are not, else of the rope part. */
static double whole_part(bt_model_family fam, const bt_mla_config *m)
{
    return fam == BT_FAMILY_MISTRAL ? (double)m->qk_rope_dim / (m->qk_nope_dim + m->qk_rope_dim)
                                    : 1;
}

/* Variants of YaRN that no published MLA model has; they would change the numbers silently. */
static bt_status refuse_variants(const bt_json_at *at, const bt_json_at *rope, double whole)
{
    bt_status st         = BT_OK;
    double    partial    = whole;
    bool      interleave = true, truncate = true;

    /* To Hugging Face a null is false here, not the default. */
    if (json_object_get(at->obj, "rope_interleave") != NULL)
        BT_TRY(bt_json_bool(at, "rope_interleave", &interleave));
    BT_REQUIRE(interleave, BT_ERR_UNSUPPORTED,
               "%s: field rope_interleave: expected true, found false", at->file);
    BT_TRY(optional_f64(at, "partial_rotary_factor", 0, 1, &partial));
    if (rope->obj != NULL) {
        BT_TRY(optional_f64(rope, "partial_rotary_factor", 0, 1, &partial));
        if (json_object_get(rope->obj, "truncate") != NULL)
            BT_TRY(bt_json_bool(rope, "truncate", &truncate));
    }
    BT_REQUIRE(partial == whole, BT_ERR_UNSUPPORTED,
               "%s: field partial_rotary_factor: expected %.17g, found %.17g", at->file, whole,
               partial);
    BT_REQUIRE(truncate, BT_ERR_UNSUPPORTED, "%s: field %s.truncate: expected true, found false",
               at->file, rope->in);
out:
    return st;
}

static bt_status read_original_context(const bt_json_at *at, const bt_json_at *rope, double *v)
{
    static const char FIELD[] = "original_max_position_embeddings";
    bt_status         st      = BT_OK;
    double            outer;

    BT_TRY(bt_json_f64(rope, FIELD, 1, 1 << 24, v));
    outer = *v;
    BT_TRY(optional_f64(at, FIELD, 1, 1 << 24, &outer));
    BT_REQUIRE(outer == *v, BT_ERR_FORMAT,
               "%s: field %s: expected %.17g as in %s, found %.17g, which Hugging Face would use",
               at->file, FIELD, *v, rope->in, outer);
out:
    return st;
}

/* A factor of null is the ratio of the contexts, as to Hugging Face, which wants the field. */
static bt_status read_factor(const bt_json_at *at, const bt_json_at *rope, yarn *y)
{
    bt_status st      = BT_OK;
    bool      is_null = json_is_null(json_object_get(rope->obj, "factor"));
    uint32_t  context = 0;

    if (!is_null) BT_TRY(bt_json_f64(rope, "factor", 1, 1e6, &y->factor));
    BT_TRY(read_original_context(at, rope, &y->original_context));
    if (!is_null) goto out;
    BT_TRY(bt_json_u32(at, "max_position_embeddings", 1, UINT32_MAX, &context));
    y->factor = context / y->original_context;
    BT_REQUIRE(y->factor >= 1, BT_ERR_FORMAT,
               "%s: field %s.factor: expected a number from 1, or null where "
               "max_position_embeddings is no less than %.17g, found null with %u",
               at->file, rope->in, y->original_context, context);
out:
    return st;
}

static bt_status read_yarn(const bt_json_at *at, const bt_json_at *rope, yarn *y)
{
    bt_status st = BT_OK;

    *y = (yarn){.beta_fast = 32, .beta_slow = 1};
    BT_TRY(read_factor(at, rope, y));
    BT_TRY(optional_f64(rope, "beta_fast", 1e-3, 1e6, &y->beta_fast));
    BT_TRY(optional_f64(rope, "beta_slow", 1e-3, 1e6, &y->beta_slow));
    BT_TRY(optional_f64(rope, "mscale", 0, 100, &y->mscale));
    BT_TRY(optional_f64(rope, "mscale_all_dim", 0, 100, &y->mscale_all_dim));
    BT_TRY(optional_f64(rope, "attention_factor", 1e-3, 100, &y->attention_factor));
    BT_REQUIRE(y->beta_fast >= y->beta_slow, BT_ERR_FORMAT,
               "%s: field %s.beta_fast: expected at least beta_slow (%.17g), found %.17g",
               rope->file, rope->in, y->beta_slow, y->beta_fast);
out:
    return st;
}

/* Of Mistral 4, which has both fields. */
static bt_status read_query_scale(const bt_json_at *rope, bt_mla_config *m)
{
    static const char   BETA[]  = "llama_4_scaling_beta";
    bt_status           st      = BT_OK;
    const bt_config_u32 context = {"original_max_position_embeddings", &m->query_context, 1,
                                   1 << 24, true};

    BT_REQUIRE(rope->obj != NULL, BT_ERR_UNSUPPORTED,
               "%s: field rope_parameters: expected an object for this model_type, found nothing",
               rope->file);
    BT_TRY(bt_json_f64(rope, BETA, 0, 100, &m->query_beta));
    BT_TRY(bt_config_u32_fields(rope, &context, 1));
out:
    return st;
}

static double mscale_of(double factor, double m)
{
    return factor <= 1 ? 1 : 0.1 * m * log(factor) + 1;
}

/* YaRN (arXiv 2309.00071) as Hugging Face computes it: frequencies below `low` stay, those above
 * `high` are divided by the factor, a ramp between. */
static void scale_frequencies(const yarn *y, uint32_t dim, double theta, double *inv_freq)
{
    double span = 2 * log(theta);
    double low  = floor(dim * log(y->original_context / (y->beta_fast * 2 * PI)) / span);
    double high = ceil(dim * log(y->original_context / (y->beta_slow * 2 * PI)) / span);

    low  = fmax(low, 0);
    high = fmin(high, dim - 1);
    if (low == high) high += 0.001;
    for (uint32_t i = 0; i < dim / 2; i++) {
        double ramp = fmin(fmax((i - low) / (high - low), 0), 1);

        inv_freq[i] = inv_freq[i] / y->factor * ramp + inv_freq[i] * (1 - ramp);
    }
}

static void apply_yarn(const yarn *y, bt_model_config *cfg)
{
    double all_dim = mscale_of(y->factor, y->mscale_all_dim);

    scale_frequencies(y, cfg->mla.qk_rope_dim, cfg->rope_theta, cfg->rope_inv_freq);
    cfg->yarn_factor           = y->factor;
    cfg->yarn_original_context = y->original_context;
    /* without both fields Hugging Face takes the mscale of 1 */
    cfg->mla.rope_magnitude = y->mscale != 0 && y->mscale_all_dim != 0
                                  ? mscale_of(y->factor, y->mscale) / all_dim
                                  : mscale_of(y->factor, 1);
    if (y->attention_factor != 0) cfg->mla.rope_magnitude = y->attention_factor;
    if (y->mscale_all_dim != 0)
        cfg->mla.softmax_scale =
            (float)(all_dim * all_dim / sqrt(cfg->mla.qk_nope_dim + cfg->mla.qk_rope_dim));
}

/* theta^(-2i/dim) by multiplications alone: libm's pow chooses its code by CPU, and these numbers
 * reach every page (docs/architecture.md, "Laws").  Bisects the ratio of the sequence. */
static void base_frequencies(double theta, uint32_t dim, double *inv_freq)
{
    double lo = 0, hi = 1;

    for (int step = 0; step < 64; step++) {
        double mid = (lo + hi) / 2, power = 1;

        for (uint32_t i = 0; i < dim / 2; i++)
            power *= mid;
        if (power * theta < 1)
            lo = mid;
        else
            hi = mid;
    }
    inv_freq[0] = 1;
    for (uint32_t i = 1; i < dim / 2; i++)
        inv_freq[i] = inv_freq[i - 1] * hi;
}

bt_status bt_config_rope(const bt_json_at *at, bt_model_family fam, bt_model_config *cfg)
{
    bt_status  st   = BT_OK;
    uint32_t   dim  = cfg->mla.qk_rope_dim;
    bt_json_at rope = {0};
    yarn       y;

    BT_TRY(find_object(at, &rope));
    BT_TRY(read_kind(&rope, &cfg->yarn));
    BT_TRY(refuse_variants(at, &rope, whole_part(fam, &cfg->mla)));
    if (fam == BT_FAMILY_MISTRAL) BT_TRY(read_query_scale(&rope, &cfg->mla));
    if (rope.obj != NULL && bt_json_field(&rope, "rope_theta") != NULL)
        BT_TRY(bt_json_f64(&rope, "rope_theta", 1.001, 1e12, &cfg->rope_theta));
    else
        BT_TRY(bt_json_f64(at, "rope_theta", 1.001, 1e12, &cfg->rope_theta));

    base_frequencies(cfg->rope_theta, dim, cfg->rope_inv_freq);
    cfg->mla.rope_magnitude = 1;
    cfg->mla.softmax_scale  = (float)(1 / sqrt(cfg->mla.qk_nope_dim + cfg->mla.qk_rope_dim));
    if (cfg->yarn) {
        BT_TRY(read_yarn(at, &rope, &y));
        apply_yarn(&y, cfg);
    }
out:
    return st;
}

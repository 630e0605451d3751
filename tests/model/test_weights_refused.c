/* What is wrong in a checkpoint is refused by the name of its tensor and its file. */
#include <math.h>

#include "core/alloc.h"
#include "tests/model/checkpoint.h"

static void weights_name_a_scale_that_is_none(void)
{
    static const float WRONG[] = {NAN, INFINITY, -1.0f, -0.0f};
    checkpoint         c;
    bt_weights         w;

    checkpoint_open(&c, "v3-fp8");
    for (size_t i = 0, turn = 0; i < c.n; i++) {
        bt_tensor was = c.tensors[i];
        size_t    n = was.bytes / sizeof(float), at = turn % n;
        float    *scale = bt_calloc(n, sizeof(*scale));
        char      place[96];

        if (strstr(was.name, "_scale_inv") != NULL) {
            memcpy(scale, was.data, was.bytes);
            scale[at]         = WRONG[turn++ % 4];
            c.tensors[i].data = scale;
            EXPECT_EQ(load_list(&c, &w), BT_ERR_FORMAT);
            snprintf(place, sizeof(place), "expected finite scales of 0 or more, found %g at [%zu,",
                     (double)scale[at], at / was.shape[1]);
            EXPECT_HAS(bt_error_text(), was.name);
            EXPECT_HAS(bt_error_text(), place);
            c.tensors[i] = was;
        }
        bt_free(scale);
    }
    checkpoint_close(&c);
}

static const bt_tensor *tensor_of(const checkpoint *c, const char *name)
{
    const bt_tensor *t = bt_safetensors_find(c->set, name);

    NEED(t != NULL);
    return t;
}

/* The list has this tensor instead of the one of its name, or as another. */
static void put_tensor(checkpoint *c, const bt_tensor *t)
{
    size_t i = 0;

    while (i < c->n && strcmp(c->tensors[i].name, t->name) != 0)
        i++;
    NEED(i < MAX_TENSORS);
    c->tensors[i] = *t;
    if (i == c->n) c->n++;
}

#define OF_4_BITS "model.layers.1.mlp.experts.3.down_proj.weight"

static void weights_name_a_scale_of_4_bits_that_is_none(void)
{
    static const bt_bf16 WRONG[] = {0x7fc0, 0x7f80, 0xff80, 0x0001, 0x807f};
    checkpoint           c;
    bt_weights           w;

    checkpoint_open(&c, "k2-int4");
    for (size_t i = 0; i < sizeof(WRONG) / sizeof(*WRONG); i++) {
        bt_tensor t     = *tensor_of(&c, OF_4_BITS "_scale");
        size_t    at    = i * 7;
        bt_bf16  *scale = bt_calloc(t.bytes, 1);
        char      place[96];

        memcpy(scale, t.data, t.bytes);
        scale[at] = WRONG[i];
        t.data    = scale;
        put_tensor(&c, &t);
        EXPECT_EQ(load_list(&c, &w), BT_ERR_FORMAT);
        snprintf(place, sizeof(place),
                 "expected finite scales that are not subnormal, found bits 0x%04x at [%zu, %zu]",
                 WRONG[i], at / 3, at % 3);
        EXPECT_HAS(bt_error_text(), t.name);
        EXPECT_HAS(bt_error_text(), c.file);
        EXPECT_HAS(bt_error_text(), place);
        bt_free(scale);
    }
    checkpoint_close(&c);
}

/* As int32 and as int64. */
static void weights_of_4_bits_name_sizes_that_differ(void)
{
    static const int64_t RIGHT[2] =
        {
            160, 96
    },
                         WRONG[][2] = {{160, 95}, {96, 160}, {-160, 96}};
    static const int32_t NARROW[2] = {160, 96}, WRONG_NARROW[2] = {160, 97};
    bt_tensor            t;
    checkpoint           c;
    bt_weights           w;

    checkpoint_open(&c, "k2-int4");
    t = *tensor_of(&c, OF_4_BITS "_shape");
    EXPECT(memcmp(t.data, RIGHT, sizeof(RIGHT)) == 0);
    for (size_t i = 0; i < 3; i++) {
        char found[64];

        t.data = WRONG[i];
        put_tensor(&c, &t);
        EXPECT_EQ(load_list(&c, &w), BT_ERR_FORMAT);
        snprintf(found, sizeof(found), "expected the values 160 and 96, found %d and %d",
                 (int)WRONG[i][0], (int)WRONG[i][1]);
        EXPECT_HAS(bt_error_text(), OF_4_BITS "_shape");
        EXPECT_HAS(bt_error_text(), found);
    }
    t.dtype = BT_ST_I32;
    t.bytes = sizeof(NARROW);
    t.data  = WRONG_NARROW;
    put_tensor(&c, &t);
    EXPECT_EQ(load_list(&c, &w), BT_ERR_FORMAT);
    EXPECT_HAS(bt_error_text(), "found 160 and 97");
    t.data = NARROW;
    put_tensor(&c, &t);
    EXPECT_EQ(load_list(&c, &w), BT_OK);
    bt_weights_fini(&w);
    checkpoint_close(&c);
}

/* What would be ignored in silence, or does not go with config.json. */
static void weights_of_4_bits_name_what_does_not_belong(void)
{
    static const char *const FOREIGN[] = {"", "_zero_point", "_g_idx"};
    bt_tensor                t;
    checkpoint               c;
    bt_weights               w;
    size_t                   n;

    checkpoint_open(&c, "k2-int4");
    n = c.n;
    for (size_t i = 0; i < 3; i++) {
        char name[128];

        snprintf(name, sizeof(name), OF_4_BITS "%s", FOREIGN[i]);
        t      = *tensor_of(&c, OF_4_BITS "_packed");
        t.name = name;
        put_tensor(&c, &t);
        EXPECT(load_list(&c, &w) == (i == 0 ? BT_ERR_FORMAT : BT_ERR_UNSUPPORTED));
        EXPECT_HAS(bt_error_text(), name);
        EXPECT_HAS(bt_error_text(), ": expected none");
        c.n = n;
    }
    c.cfg.int4 = false;
    EXPECT_EQ(load_list(&c, &w), BT_ERR_UNSUPPORTED);
    EXPECT_HAS(bt_error_text(), "_packed: expected none in 4 bits, since config.json has no");
    EXPECT_EQ(bt_weights_check(&c.cfg, c.set), BT_ERR_UNSUPPORTED);
    checkpoint_close(&c);
    checkpoint_open(&c, "kimi-k2");
    c.cfg.int4 = true;
    EXPECT_EQ(load_list(&c, &w), BT_ERR_UNSUPPORTED);
    EXPECT_HAS(bt_error_text(), "expected I32 tensors called ..weight_packed");
    memset(c.own, 0, sizeof(c.own)); /* whose files may not be here */
    EXPECT_EQ(load_list(&c, &w), BT_OK);
    bt_weights_fini(&w);
    checkpoint_close(&c);
}

/* Experts that cannot come leave those that would go. */
static void weights_that_lack_an_expert_keep_those_they_have(void)
{
    static const char LACKING[] = "model.layers.1.mlp.experts.3.down_proj.weight";
    checkpoint        c;
    bt_weights        w;
    bt_safetensors   *set = NULL;

    checkpoint_open(&c, "v2-lite");
    c.own[3] = false;
    NEED(load_list(&c, &w) == BT_OK);
    for (size_t i = 0; i < c.n; i++)
        if (strcmp(c.tensors[i].name, LACKING) == 0) c.tensors[i] = c.tensors[--c.n];
    NEED(bt_safetensors_write(c.file, c.n, c.tensors) == BT_OK);
    NEED(bt_safetensors_open(c.file, &set) == BT_OK);
    c.own[3] = true;
    c.own[0] = false;
    EXPECT_EQ(bt_weights_move_experts(
                  &c.cfg, set,
                  &(bt_weights_options){.dev = g_dev, .own_experts = c.own, .absorbed = true}, &w),
              BT_ERR_FORMAT);
    EXPECT_HAS(bt_error_text(), LACKING);
    EXPECT(w.layers[1].moe.gate_up[0] != NULL && w.layers[1].moe.down[0] != NULL);
    bt_safetensors_close(set);
    bt_weights_fini(&w);
    checkpoint_close(&c);
}

/* Of the embedding or the head, in the layer for multi-token prediction. */
static bool is_copy(const char *name)
{
    return strstr(name, ".layers.") != NULL &&
           (strstr(name, "embed_tokens") != NULL || strstr(name, "shared_head.head") != NULL);
}

/* Of an expert that is neither the first nor the last, and is read as they are. */
static bool is_between(const checkpoint *c, const char *name)
{
    static const char EXPERTS[] = ".experts.";
    const char       *at        = strstr(name, EXPERTS);
    unsigned long     e         = at != NULL ? strtoul(at + strlen(EXPERTS), NULL, 10) : 0;

    return e > 0 && e + 1 < c->cfg.moe.gate.n_experts;
}

/* All but those. */
static void model_names_each_missing_tensor(const char *model)
{
    checkpoint c;
    bt_weights w;

    checkpoint_open(&c, model);
    for (size_t i = 0; i < c.n; i++) {
        bt_tensor gone = c.tensors[i], last = c.tensors[c.n - 1];
        char      name[128];

        if (is_copy(gone.name) || is_between(&c, gone.name)) continue;
        /* Without its words a matrix of 4 bits is none. */
        snprintf(name, sizeof(name), "%s", gone.name);
        if (strstr(name, "_packed") != NULL) *strstr(name, "_packed") = '\0';
        c.tensors[i] = last;
        c.n--;
        EXPECT_EQ(load_list(&c, &w), BT_ERR_FORMAT);
        EXPECT_HAS(bt_error_text(), name);
        EXPECT_HAS(bt_error_text(), "found none");
        EXPECT_HAS(bt_error_text(), c.file);
        c.n++;
        c.tensors[i]       = gone;
        c.tensors[c.n - 1] = last;
    }
    checkpoint_close(&c);
}

static void weights_name_each_missing_tensor(void)
{
    model_names_each_missing_tensor("v3-fp8");
    model_names_each_missing_tensor("v3.2");
    model_names_each_missing_tensor("k2-int4");
}

/* What config.json leaves out would change the results, in silence. */
static void weights_without_a_use_are_refused(void)
{
    static const char *const FOREIGN[] = {
        "model.layers.1.mlp.experts.3.down_proj.bias",
        "model.layers.1.mlp.experts.3.down_proj.weight_g_idx",
        "model.layers.1.mlp.experts.down_proj_bias",
        "model.layers.1.mlp.experts.4294967296.down_proj.weight",
        "model.layers.1.mlp.experts.00.down_proj.weight",
        "model.layers.4294967296.self_attn.q_a_proj.weight_scale_inv",
        "model.layers.-1.self_attn.q_a_proj.weight_scale_inv",
        "model.embed_tokens.bias",
        "model.norm.bias",
        "lm_head.bias",
    };
    checkpoint c;
    bt_weights w;

    checkpoint_open(&c, "v3-fp8");
    c.tensors[c.n]        = c.tensors[0];
    c.tensors[c.n++].name = "model.layers.0.self_attn.rotary_emb.inv_freq";
    EXPECT_EQ(load_list(&c, &w), BT_OK);
    bt_weights_fini(&w);
    c.tensors[c.n - 1].name = "model.layers.99.mlp.gate.bias"; /* of no layer that is served */
    EXPECT_EQ(load_list(&c, &w), BT_OK);
    bt_weights_fini(&w);
    c.tensors[c.n - 1].name = "model.layers.1.self_attn.q_a_proj.bias";
    EXPECT_EQ(load_list(&c, &w), BT_ERR_UNSUPPORTED);
    EXPECT_HAS(bt_error_text(), "tensor model.layers.1.self_attn.q_a_proj.bias: expected none");
    EXPECT_HAS(bt_error_text(), c.file);
    c.tensors[c.n - 1].name = "model.layers.1.\x1b[2J\nbias";
    EXPECT_EQ(load_list(&c, &w), BT_ERR_UNSUPPORTED);
    EXPECT_HAS(bt_error_text(), "tensor model.layers.1.?[2J?bias: expected none");
    c.own[0] = false; /* an expert of another rank is no foreign tensor */
    for (size_t i = 0; i < sizeof(FOREIGN) / sizeof(*FOREIGN); i++) {
        c.tensors[c.n - 1].name = FOREIGN[i];
        EXPECT_EQ(load_list(&c, &w), BT_ERR_UNSUPPORTED);
        EXPECT_HAS(bt_error_text(), FOREIGN[i]);
    }
    c.tensors[c.n - 1].name = "vision_tower.patch_embed.bias";
    EXPECT_EQ(load_list(&c, &w), BT_OK);
    bt_weights_fini(&w);
    c.tensors[c.n - 1].name     = "model.layers.1.mlp.shared_experts.up_proj.bias";
    c.tensors[c.n - 1].shape[0] = 0; /* it changes nothing */
    c.tensors[c.n - 1].bytes    = 0;
    EXPECT_EQ(load_list(&c, &w), BT_OK);
    bt_weights_fini(&w);
    c.n--;
    c.cfg.mtp            = false;
    c.cfg.tie_embeddings = true; /* and yet there is a head of its own */
    EXPECT_EQ(load_list(&c, &w), BT_ERR_UNSUPPORTED);
    EXPECT_HAS(bt_error_text(), "tensor lm_head.weight: expected none");
    EXPECT_HAS(bt_error_text(), c.file);
    c.cfg.tie_embeddings = false;
    c.cfg.moe.shared_dim = 0;
    EXPECT_EQ(load_list(&c, &w), BT_ERR_UNSUPPORTED);
    EXPECT_HAS(bt_error_text(), ".mlp.shared_experts.");
    EXPECT_EQ(bt_weights_check(&c.cfg, c.set), BT_ERR_UNSUPPORTED);
    checkpoint_close(&c);
}

/* A layer that takes what another one chose may have an indexer in the file; one that chooses must,
 * and a model without sparse attention has none. */
static void weights_of_indexers_are_those_of_config_json(void)
{
    checkpoint c;
    bt_weights w;

    checkpoint_open(&c, "glm-5"); /* of whose layers the first and the third choose */
    c.tensors[c.n]        = c.tensors[0];
    c.tensors[c.n++].name = "model.layers.1.self_attn.indexer.wk.weight";
    EXPECT_EQ(load_list(&c, &w), BT_OK);
    EXPECT(w.layers[0].mla.index_k != NULL && w.layers[1].mla.index_k == NULL);
    bt_weights_fini(&w);
    c.tensors[c.n - 1].name = "model.layers.0.self_attn.indexer.wk.bias";
    EXPECT_EQ(load_list(&c, &w), BT_ERR_UNSUPPORTED);
    EXPECT_HAS(bt_error_text(), "tensor model.layers.0.self_attn.indexer.wk.bias: expected none");
    c.n--;
    c.cfg.index_shared[0] = 0;
    EXPECT_EQ(load_list(&c, &w), BT_ERR_FORMAT);
    EXPECT_HAS(bt_error_text(), "model.layers.1.self_attn.indexer.wq_b.weight");
    c.cfg.mla.index_topk = 0;
    EXPECT_EQ(load_list(&c, &w), BT_ERR_UNSUPPORTED);
    EXPECT_HAS(bt_error_text(), "self_attn.indexer.");
    checkpoint_close(&c);
}

/* A.X-K1's, of which the dense layers' stand in the file too; its gates correct nothing, unless the
 * file says so. */
static void weights_of_norms_behind_experts_are_those_of_config_json(void)
{
    static const char NORM[] = "model.layers.2.post_mlp_layernorm.weight";
    checkpoint        c;
    bt_weights        w;
    size_t            i       = 0;
    float             bias[8] = {0, 0.5f};

    checkpoint_open(&c, "axk1");
    EXPECT_EQ(load_list(&c, &w), BT_OK);
    EXPECT(w.layers[0].moe_norm == NULL && w.layers[1].moe_norm != NULL);
    EXPECT(w.layers[1].moe.router_bias[1] == 0);
    bt_weights_fini(&w);
    c.tensors[c.n] = (bt_tensor){.name   = "model.layers.1.mlp.gate.e_score_correction_bias",
                                 .dtype  = BT_ST_F32,
                                 .n_dims = 1,
                                 .shape  = {8},
                                 .data   = (const void *)bias,
                                 .bytes  = sizeof(bias)};
    c.n++;
    EXPECT_EQ(load_list(&c, &w), BT_OK);
    EXPECT(w.layers[1].moe.router_bias[1] == 0.5f && w.layers[2].moe.router_bias[1] == 0);
    bt_weights_fini(&w);
    while (strcmp(c.tensors[i].name, NORM) != 0)
        i++;
    c.tensors[i].name = "model.layers.9.post_mlp_layernorm.weight";
    EXPECT_EQ(load_list(&c, &w), BT_ERR_FORMAT);
    EXPECT_HAS(bt_error_text(), NORM);
    c.tensors[i].name = NORM;
    c.cfg.moe_norm    = false;
    c.n--;
    EXPECT_EQ(load_list(&c, &w), BT_ERR_FORMAT);
    EXPECT_HAS(bt_error_text(), "e_score_correction_bias");
    checkpoint_close(&c);
}

/* One scale for a matrix, and those of activations beside it, only where config.json says so. */
static void weights_of_one_scale_are_those_of_config_json(void)
{
    checkpoint c;
    bt_weights w;

    checkpoint_open(&c, "mistral-4");
    EXPECT_EQ(load_list(&c, &w), BT_OK);
    bt_weights_fini(&w);
    c.cfg.fp8_one_scale = false;
    EXPECT_EQ(load_list(&c, &w), BT_ERR_UNSUPPORTED);
    EXPECT_HAS(bt_error_text(), "weight_scale_inv: expected scales of 128x128 blocks");
    checkpoint_close(&c);
    checkpoint_open(&c, "v3-fp8");
    c.tensors[c.n]        = c.tensors[0];
    c.tensors[c.n++].name = "model.layers.1.self_attn.q_a_proj.activation_scale";
    EXPECT_EQ(load_list(&c, &w), BT_ERR_UNSUPPORTED);
    EXPECT_HAS(bt_error_text(), "q_a_proj.activation_scale: expected none of this name");
    checkpoint_close(&c);
}

/* Embedding and head of the layer for multi-token prediction may be left out, and are not another
 * one's. */
static void weights_name_a_copy_that_is_none(void)
{
    static const char *const NAMES[][2] = {
        {"model.layers.3.embed_tokens.weight",     "model.embed_tokens.weight"},
        {"model.layers.3.shared_head.head.weight", "lm_head.weight"           }
    };
    checkpoint c;
    bt_weights w;
    size_t     n = 0;

    checkpoint_open(&c, "v3-fp8");
    for (size_t i = 0; i < 2; i++) {
        bt_tensor was = *tensor_of(&c, NAMES[i][0]), t = was;
        char     *data = malloc(was.bytes), found[160];

        NEED(data != NULL);
        snprintf(found, sizeof(found), "tensor %s: expected a copy of %s, found something else",
                 NAMES[i][0], NAMES[i][1]);
        for (int last = 0; last < 2; last++) {
            memcpy(data, was.data, was.bytes);
            data[last ? was.bytes - 1 : 0] ^= 1;
            t.data = data;
            put_tensor(&c, &t);
            EXPECT_EQ(load_list(&c, &w), BT_ERR_UNSUPPORTED);
            EXPECT_HAS(bt_error_text(), found);
            EXPECT_HAS(bt_error_text(), c.file);
        }
        put_tensor(&c, &was);
        free(data);
    }
    for (size_t i = 0; i < c.n; i++)
        if (!is_copy(c.tensors[i].name)) c.tensors[n++] = c.tensors[i];
    EXPECT_EQ(n, c.n - 2);
    c.n = n;
    EXPECT_EQ(load_list(&c, &w), BT_OK);
    bt_weights_fini(&w);
    checkpoint_close(&c);
}

/* A checkpoint whose config.json promises the layer, and whose files lack it: it is missed when it
 * is served only. */
static void weights_without_a_layer_that_predicts_are_refused(void)
{
    checkpoint c;
    bt_weights w;
    size_t     n = 0;

    checkpoint_open(&c, "v3.2");
    for (size_t i = 0; i < c.n; i++)
        if (strstr(c.tensors[i].name, "model.layers.3.") == NULL) c.tensors[n++] = c.tensors[i];
    NEED(n < c.n);
    c.n = n;
    EXPECT_EQ(load_list(&c, &w), BT_ERR_FORMAT);
    EXPECT_HAS(bt_error_text(), "expected tensor model.layers.3.enorm.weight of the layer");
    EXPECT_HAS(bt_error_text(), "found none");
    EXPECT_HAS(bt_error_text(), "leave --mtp out");
    c.cfg.mtp = false;
    EXPECT_EQ(load_list(&c, &w), BT_OK);
    bt_weights_fini(&w);
    checkpoint_close(&c);
    checkpoint_open(&c, "glm-5");
    EXPECT_EQ(bt_model_config_serve_mtp(&c.cfg), BT_ERR_UNSUPPORTED);
    EXPECT_HAS(bt_error_text(), "num_nextn_predict_layers");
    EXPECT(!c.cfg.mtp && bt_model_n_served_layers(&c.cfg) == c.cfg.n_layers);
    c.cfg.n_mtp_layers = 1;
    c.cfg.n_layers     = BT_CONFIG_MAX_LAYERS; /* the list of indexers has room for no other */
    EXPECT_EQ(bt_model_config_serve_mtp(&c.cfg), BT_ERR_UNSUPPORTED);
    EXPECT_HAS(bt_error_text(), "at most 4096");
    EXPECT(!c.cfg.mtp);
    checkpoint_close(&c);
}

static void model_names_each_wrong_shape(const char *model)
{
    checkpoint c;
    bt_weights w;

    checkpoint_open(&c, model);
    for (size_t i = 0; i < c.n; i++) {
        bt_tensor was = c.tensors[i], *t = &c.tensors[i];

        if (is_copy(was.name) || is_between(&c, was.name)) continue;
        t->shape[t->n_dims++] = 1; /* the same bytes with one dimension more */
        EXPECT_EQ(load_list(&c, &w), BT_ERR_FORMAT);
        EXPECT_HAS(bt_error_text(), was.name);
        EXPECT_HAS(bt_error_text(), "expected shape");
        *t = was;
        if (t->n_dims == 2 && t->shape[0] != t->shape[1]) { /* transposed */
            t->shape[0] = was.shape[1];
            t->shape[1] = was.shape[0];
            EXPECT_EQ(load_list(&c, &w), BT_ERR_FORMAT);
            EXPECT_HAS(bt_error_text(), was.name);
            *t = was;
        }
    }
    checkpoint_close(&c);
}

static void weights_name_each_wrong_shape(void)
{
    model_names_each_wrong_shape("v3-fp8");
    model_names_each_wrong_shape("k2-int4");
}

static void model_names_a_wrong_dtype(const char *model)
{
    checkpoint c;
    bt_weights w;

    checkpoint_open(&c, model);
    for (size_t i = 0; i < c.n; i++) {
        bt_tensor was = c.tensors[i];

        if (is_copy(was.name) || is_between(&c, was.name)) continue;
        if (was.dtype == BT_ST_BF16)
            c.tensors[i].dtype = BT_ST_F16;
        else if (was.dtype == BT_ST_F32)
            c.tensors[i].dtype = BT_ST_I32;
        else if (was.dtype == BT_ST_I32)
            c.tensors[i].dtype = BT_ST_U32;
        else if (was.dtype == BT_ST_I64)
            c.tensors[i].dtype = BT_ST_F64;
        else
            continue;
        EXPECT_EQ(load_list(&c, &w), BT_ERR_FORMAT);
        EXPECT_HAS(bt_error_text(), was.name);
        EXPECT_HAS(bt_error_text(), "found ");
        EXPECT_HAS(bt_error_text(), bt_st_dtype_name(c.tensors[i].dtype));
        EXPECT_HAS(bt_error_text(), c.file);
        c.tensors[i] = was;
    }
    checkpoint_close(&c);
}

static void weights_name_a_wrong_dtype(void)
{
    model_names_a_wrong_dtype("v3-fp8");
    model_names_a_wrong_dtype("k2-int4");
}

/* One of the format's dtypes that no weight may have: the error says which, and in which file. */
static void weights_name_a_foreign_dtype_and_its_file(void)
{
    checkpoint      c;
    bt_weights      w;
    bt_safetensors *set = NULL;
    char            header[65536], *at;
    size_t          n;
    FILE           *f;

    checkpoint_open(&c, "v2-lite");
    NEED(bt_safetensors_write(c.file, c.n, c.tensors) == BT_OK);
    f = fopen(c.file, "r+");
    NEED(f != NULL);
    NEED(fseek(f, 8, SEEK_SET) == 0);
    n  = fread(header, 1, sizeof(header) - 1, f);
    at = memmem(header, n, "\"BF16\"", 6);
    NEED(at != NULL);
    NEED(fseek(f, 8 + (at - header), SEEK_SET) == 0 && fwrite("\"I16\" ", 1, 6, f) == 6);
    fclose(f);
    NEED(bt_safetensors_open(c.file, &set) == BT_OK);
    EXPECT_EQ(load(&c, set, &w), BT_ERR_FORMAT);
    EXPECT_HAS(bt_error_text(), c.file);
    EXPECT_HAS(bt_error_text(), "found I16");
    bt_safetensors_close(set);
    checkpoint_close(&c);
}

static const bt_test TESTS[] = {
    BT_TEST(weights_name_a_scale_that_is_none),
    BT_TEST(weights_name_a_scale_of_4_bits_that_is_none),
    BT_TEST(weights_of_4_bits_name_sizes_that_differ),
    BT_TEST(weights_of_4_bits_name_what_does_not_belong),
    BT_TEST(weights_that_lack_an_expert_keep_those_they_have),
    BT_TEST(weights_name_each_missing_tensor),
    BT_TEST(weights_without_a_use_are_refused),
    BT_TEST(weights_of_indexers_are_those_of_config_json),
    BT_TEST(weights_of_norms_behind_experts_are_those_of_config_json),
    BT_TEST(weights_of_one_scale_are_those_of_config_json),
    BT_TEST(weights_name_a_copy_that_is_none),
    BT_TEST(weights_without_a_layer_that_predicts_are_refused),
    BT_TEST(weights_name_each_wrong_shape),
    BT_TEST(weights_name_a_wrong_dtype),
    BT_TEST(weights_name_a_foreign_dtype_and_its_file),
};

int main(int argc, char **argv)
{
    return checkpoint_main(argc, argv, TESTS, sizeof(TESTS) / sizeof(TESTS[0]));
}

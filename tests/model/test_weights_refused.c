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

static void weights_name_each_missing_tensor(void)
{
    checkpoint c;
    bt_weights w;

    checkpoint_open(&c, "v3-fp8");
    for (size_t i = 0; i < c.n; i++) {
        bt_tensor gone = c.tensors[i], last = c.tensors[c.n - 1];

        c.tensors[i] = last;
        c.n--;
        EXPECT_EQ(load_list(&c, &w), BT_ERR_FORMAT);
        EXPECT_HAS(bt_error_text(), gone.name);
        EXPECT_HAS(bt_error_text(), "found none");
        EXPECT_HAS(bt_error_text(), c.file);
        c.n++;
        c.tensors[i]       = gone;
        c.tensors[c.n - 1] = last;
    }
    checkpoint_close(&c);
}

/* What config.json leaves out would change the results, in silence. */
static void weights_without_a_use_are_refused(void)
{
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
    c.n--;
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

static void weights_name_each_wrong_shape(void)
{
    checkpoint c;
    bt_weights w;

    checkpoint_open(&c, "v3-fp8");
    for (size_t i = 0; i < c.n; i++) {
        bt_tensor was = c.tensors[i], *t = &c.tensors[i];

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

static void weights_name_a_wrong_dtype(void)
{
    checkpoint c;
    bt_weights w;

    checkpoint_open(&c, "v3-fp8");
    for (size_t i = 0; i < c.n; i++) {
        bt_tensor was = c.tensors[i];

        if (was.dtype == BT_ST_BF16)
            c.tensors[i].dtype = BT_ST_F16;
        else if (was.dtype == BT_ST_F32)
            c.tensors[i].dtype = BT_ST_I32;
        else
            continue;
        EXPECT_EQ(load_list(&c, &w), BT_ERR_FORMAT);
        EXPECT_HAS(bt_error_text(), was.name);
        EXPECT_HAS(bt_error_text(), was.dtype == BT_ST_BF16 ? "found F16" : "found I32");
        EXPECT_HAS(bt_error_text(), c.file);
        c.tensors[i] = was;
    }
    checkpoint_close(&c);
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
    BT_TEST(weights_name_each_missing_tensor),
    BT_TEST(weights_without_a_use_are_refused),
    BT_TEST(weights_of_indexers_are_those_of_config_json),
    BT_TEST(weights_name_each_wrong_shape),
    BT_TEST(weights_name_a_wrong_dtype),
    BT_TEST(weights_name_a_foreign_dtype_and_its_file),
};

int main(int argc, char **argv)
{
    return checkpoint_main(argc, argv, TESTS, sizeof(TESTS) / sizeof(TESTS[0]));
}

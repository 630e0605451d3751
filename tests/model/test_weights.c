/* Loading one rank's weights: every value against the plain reference's reading, and how it
 * unwinds. test_weights_shared.c has what ranks and starts share, test_weights_refused.c what is
 * wrong in a checkpoint. */
#include "device/cpu/linear.h"
#include "tests/model/weights_check.h"
#include "tests/support/sweep.h"

static void weights_are_what_the_file_holds(void)
{
    for (size_t i = 0; i < 2 * sizeof(MODELS) / sizeof(MODELS[0]); i++) {
        checkpoint c;
        bt_weights w;

        checkpoint_open(&c, MODELS[i / 2]);
        c.few_rows = i % 2 != 0;
        EXPECT_EQ(load(&c, c.set, &w), BT_OK);
        EXPECT_EQ(w.shared_bytes, 0);
        expect_weights(&c, &w);
        bt_weights_fini(&w);
        checkpoint_close(&c);
    }
}

/* In a multimodal checkpoint, as Kimi-K2.5's: names have a prefix, and there are other parts. */
static void weights_of_a_language_model_are_those_of_its_own(void)
{
    checkpoint c;
    bt_weights w;
    char(*names)[160] = malloc(sizeof(*names) * MAX_TENSORS);

    NEED(names != NULL);
    checkpoint_open(&c, "k2-int4");
    for (size_t i = 0; i < c.n; i++) {
        snprintf(names[i], sizeof(names[i]), "language_model.%s", c.tensors[i].name);
        c.tensors[i].name = names[i];
    }
    c.tensors[c.n]        = c.tensors[0];
    c.tensors[c.n++].name = "vision_tower.encoder.blocks.0.wo.weight";
    EXPECT_EQ(load_list(&c, &w), BT_OK);
    expect_weights(&c, &w);
    bt_weights_fini(&w);
    checkpoint_close(&c);
    free(names);
}

static void weights_take_only_their_own_experts(void)
{
    checkpoint c;
    bt_weights all, some;
    size_t     kept = 0;

    checkpoint_open(&c, "v2-lite");
    EXPECT_EQ(load(&c, c.set, &all), BT_OK);
    for (uint32_t e = 0; e < MAX_EXPERTS; e++)
        c.own[e] = e == 5;
    for (size_t i = 0; i < c.n; i++) /* the others' tensors may as well be missing */
        if (strstr(c.tensors[i].name, ".experts.") == NULL ||
            strstr(c.tensors[i].name, ".experts.5.") != NULL)
            c.tensors[kept++] = c.tensors[i];
    EXPECT(kept < c.n);
    c.n = kept;
    EXPECT_EQ(load_list(&c, &some), BT_OK);
    EXPECT(some.layers[1].moe.gate_up[5] != NULL && some.layers[1].moe.down[5] != NULL);
    EXPECT(some.layers[1].moe.gate_up[4] == NULL && some.layers[1].moe.down[6] == NULL);
    EXPECT(some.bytes < all.bytes);
    bt_weights_fini(&all);
    bt_weights_fini(&some);
    checkpoint_close(&c);
}

static void weights_leave_out_the_form_that_is_not_run(void)
{
    checkpoint c;

    checkpoint_open(&c, "v2-lite");
    for (int absorbed = 0; absorbed < 2; absorbed++) {
        bt_weights_options opt = {
            .dev = g_dev, .own_experts = c.own, .normal = absorbed == 0, .absorbed = absorbed != 0};
        bt_weights            w;
        const bt_mla_weights *mla;

        NEED(bt_weights_load(&c.cfg, c.set, &opt, &w) == BT_OK);
        mla = &w.layers[0].mla;
        EXPECT((mla->uk != NULL) == opt.normal && (mla->ukt != NULL) == opt.absorbed);
        EXPECT(mla->uv != NULL);
        bt_weights_fini(&w);
    }
    checkpoint_close(&c);
}

/* A byte a weight where rows of 16 share their scales: not where gate ends and up begins, at 72,
 * nor where attention wants bf16. */
static void weights_in_8_bits_stay_so(void)
{
    checkpoint            c;
    bt_weights            w;
    const bt_moe_weights *moe;

    checkpoint_open(&c, "v3-fp8");
    NEED(load(&c, c.set, &w) == BT_OK);
    moe = &w.layers[c.cfg.n_layers - 1].moe;
    for (uint32_t e = 0; e < c.cfg.moe.gate.n_experts; e++) {
        EXPECT(bt_linear_kind(moe->down[e]) == BT_WEIGHT_FP8 &&
               bt_linear_kind(moe->gate_up[e]) == BT_WEIGHT_BF16);
        EXPECT_EQ(bt_linear_bytes(moe->down[e]),
                  bt_cpu_linear_bytes(c.cfg.hidden, c.cfg.moe.expert_dim, BT_WEIGHT_FP8));
    }
    EXPECT(bt_linear_kind(w.layers[0].gate_up) == BT_WEIGHT_FP8 &&
           bt_linear_kind(w.layers[0].mla.o) == BT_WEIGHT_FP8);
    EXPECT(bt_linear_kind(w.layers[0].mla.uv[0]) == BT_WEIGHT_BF16 &&
           bt_linear_kind(w.layers[0].mla.ukt[1]) == BT_WEIGHT_BF16);
    EXPECT(bt_linear_kind(moe->router) == BT_WEIGHT_BF16 &&
           bt_linear_kind(w.lm_head) == BT_WEIGHT_BF16);
    bt_weights_fini(&w);
    checkpoint_close(&c);
}

/* What products alone read; the head for any rows. */
static void weights_in_bf16_are_in_12_bits_for_few_rows(void)
{
    checkpoint c;

    checkpoint_open(&c, "v2-lite");
    for (int few = 0; few < 2; few++) {
        uint32_t                n = c.cfg.hidden, k = c.cfg.moe.expert_dim;
        bt_weight_kind          kind = few != 0 ? few_rows_kind() : BT_WEIGHT_BF16;
        const bt_layer_weights *moe;
        bt_weights              w;

        c.few_rows = few != 0;
        NEED(load(&c, c.set, &w) == BT_OK);
        moe = &w.layers[2];
        EXPECT_EQ(bt_linear_bytes(moe->moe.down[1]), bt_cpu_linear_bytes(n, k, kind));
        EXPECT_EQ(bt_linear_bytes(moe->moe.gate_up[1]), bt_cpu_linear_bytes(2 * k, n, kind));
        EXPECT(moe->mla.q->kind == kind && w.layers[0].down->kind == kind);
        EXPECT(moe->mla.uv[0]->kind == BT_WEIGHT_BF16 && moe->mla.uk[0]->kind == BT_WEIGHT_BF16);
        EXPECT_EQ(w.lm_head->kind, few_rows_kind());
        EXPECT_EQ(bt_linear_kind(w.lm_head), BT_WEIGHT_BF16);
        bt_weights_fini(&w);
    }
    checkpoint_close(&c);
}

static void weights_in_4_bits_stay_so(void)
{
    checkpoint            c;
    bt_weights            w;
    const bt_moe_weights *moe;

    checkpoint_open(&c, "k2-int4");
    NEED(load(&c, c.set, &w) == BT_OK);
    moe = &w.layers[c.cfg.n_layers - 1].moe;
    for (uint32_t e = 0; e < c.cfg.moe.gate.n_experts; e++) {
        uint32_t n = c.cfg.moe.expert_dim, k = c.cfg.hidden;

        EXPECT(bt_linear_kind(moe->down[e]) == BT_WEIGHT_INT4);
        EXPECT(bt_linear_kind(moe->gate_up[e]) == BT_WEIGHT_INT4);
        EXPECT_EQ(bt_linear_bytes(moe->gate_up[e]), 2 * n * k / 2 + 2 * n * k / 32 * 2);
    }
    EXPECT(bt_linear_kind(w.layers[0].gate_up) == BT_WEIGHT_BF16);
    EXPECT(bt_linear_kind(moe->shared_down) == BT_WEIGHT_BF16);
    bt_weights_fini(&w);
    checkpoint_close(&c);
}

/* What a matrix of 4 bits that a test has made lies in. */
typedef struct {
    char      names[3][128];
    uint32_t *words;
    bt_bf16  *scale;
    int64_t   shape[2];
} packed_any;

/* Instead of the matrix at `i` of the list its like of 4 bits, of any words. */
static void pack_any(checkpoint *c, size_t i, packed_any *p)
{
    static const char *const ENDS[] = {"packed", "scale", "shape"};
    bt_tensor                was    = c->tensors[i];
    size_t                   n = was.shape[0], k = was.shape[1];

    p->words = malloc(n * k / 2);
    p->scale = malloc(n * k / 32 * sizeof(*p->scale));
    NEED(p->words != NULL && p->scale != NULL && k % 32 == 0 && c->n + 2 <= MAX_TENSORS);
    for (size_t j = 0; j < n * k / 8; j++)
        p->words[j] = (uint32_t)(j + 1) * 2654435761u;
    for (size_t j = 0; j < n * k / 32; j++)
        p->scale[j] = (bt_bf16)(0x3d00 + j % 127);
    p->shape[0] = (int64_t)n;
    p->shape[1] = (int64_t)k;
    for (size_t e = 0; e < 3; e++)
        snprintf(p->names[e], sizeof(p->names[e]), "%s_%s", was.name, ENDS[e]);
    c->tensors[i] = (bt_tensor){
        p->names[0], BT_ST_I32, 2, {n, k / 8},
           p->words, n * k / 2, NULL
    };
    c->tensors[c->n++] = (bt_tensor){
        p->names[1], BT_ST_BF16, 2, {n, k / 32},
           p->scale, n * k / 16, NULL
    };
    c->tensors[c->n++] = (bt_tensor){p->names[2], BT_ST_I64, 1, {2}, p->shape, 16, NULL};
}

/* Also where published models have none: in attention, of which the CPU reads kv_b as bf16, in the
 * head; and where gate_proj has 4 bits and up_proj has not. */
static void weights_in_4_bits_may_be_any(void)
{
    static const char *const ANY[] = {"model.layers.2.self_attn.kv_b_proj.weight",
                                      "model.layers.2.self_attn.o_proj.weight",
                                      "model.layers.0.mlp.gate_proj.weight", "lm_head.weight"};
    enum { N_ANY = sizeof(ANY) / sizeof(ANY[0]) };
    packed_any any[N_ANY];
    checkpoint c;
    bt_weights w;

    checkpoint_open(&c, "kimi-k2");
    c.cfg.int4 = true;
    for (size_t a = 0; a < N_ANY; a++) {
        size_t i = 0;

        while (strcmp(c.tensors[i].name, ANY[a]) != 0)
            i++;
        pack_any(&c, i, &any[a]);
    }
    NEED(bt_safetensors_write(c.file, c.n, c.tensors) == BT_OK);
    bt_safetensors_close(c.set);
    NEED(bt_safetensors_open(c.file, &c.set) == BT_OK);
    EXPECT_EQ(load(&c, c.set, &w), BT_OK);
    expect_weights(&c, &w);
    EXPECT(bt_linear_kind(w.lm_head) == BT_WEIGHT_INT4);
    EXPECT(bt_linear_kind(w.layers[2].mla.o) == BT_WEIGHT_INT4);
    EXPECT(bt_linear_kind(w.layers[2].mla.uv[0]) == BT_WEIGHT_BF16);
    EXPECT(bt_linear_kind(w.layers[0].gate_up) == BT_WEIGHT_BF16);
    bt_weights_fini(&w);
    for (size_t a = 0; a < N_ANY; a++)
        free(any[a].words), free(any[a].scale);
    checkpoint_close(&c);
}

/* bf16 stored as fp32 gives the same weights. */
static void weights_read_fp32(void)
{
    checkpoint c;
    bt_weights w;
    float     *wide[MAX_TENSORS] = {NULL};

    checkpoint_open(&c, "glm-flash");
    for (size_t i = 0; i < c.n; i++) {
        bt_tensor *t = &c.tensors[i];

        if (t->dtype != BT_ST_BF16) continue;
        wide[i] = malloc(t->bytes * 2);
        NEED(wide[i] != NULL);
        for (size_t j = 0; j < t->bytes / 2; j++) {
            bt_bf16 half;

            memcpy(&half, (const char *)t->data + j * 2, 2);
            wide[i][j] = bt_bf16_to_f32(half);
        }
        t->dtype = BT_ST_F32;
        t->bytes *= 2;
        t->data = wide[i];
    }
    EXPECT_EQ(load_list(&c, &w), BT_OK);
    expect_matrix(&c, w.lm_head, "lm_head.weight");
    expect_heads(&c, &w.layers[1].mla, "model.layers.1.self_attn.kv_b_proj.weight");
    expect_gate_up(&c, w.layers[1].moe.gate_up[3], "model.layers.1.mlp.experts.3");
    bt_weights_fini(&w);
    for (size_t i = 0; i < c.n; i++)
        free(wide[i]);
    checkpoint_close(&c);
}

static void on_progress(void *ctx, uint64_t done, uint64_t total)
{
    uint64_t *seen = ctx;

    EXPECT(done > seen[0] && done <= total);
    seen[0] = done;
    seen[1] = total;
}

static void weights_report_progress_to_the_end(void)
{
    uint64_t           seen[2] = {0, 0};
    bt_weights_options opt     = {.dev          = g_dev,
                                  .normal       = true,
                                  .absorbed     = true,
                                  .progress     = on_progress,
                                  .progress_ctx = seen};
    checkpoint         c;
    bt_weights         w;

    checkpoint_open(&c, "kimi-k2");
    opt.own_experts = c.own;
    EXPECT_EQ(bt_weights_load(&c.cfg, c.set, &opt, &w), BT_OK);
    EXPECT(seen[0] == seen[1] && seen[1] > 0);
    bt_weights_fini(&w);
    checkpoint_close(&c);
}

static void model_unwinds_at_every_allocation(const char *model, bool few_rows)
{
    checkpoint c;
    bt_weights w = {0};

    checkpoint_open(&c, model);
    c.few_rows = few_rows;
    EXPECT(BT_SWEEP(load(&c, c.set, &w), bt_weights_fini(&w)) > 100);
    checkpoint_close(&c);
}

static void weights_unwind_at_every_allocation(void)
{
    model_unwinds_at_every_allocation("v3-fp8", false);
    model_unwinds_at_every_allocation("k2-int4", true);
}

static const bt_test TESTS[] = {
    BT_TEST(weights_are_what_the_file_holds),
    BT_TEST(weights_of_a_language_model_are_those_of_its_own),
    BT_TEST(weights_take_only_their_own_experts),
    BT_TEST(weights_leave_out_the_form_that_is_not_run),
    BT_TEST(weights_in_8_bits_stay_so),
    BT_TEST(weights_in_bf16_are_in_12_bits_for_few_rows),
    BT_TEST(weights_in_4_bits_stay_so),
    BT_TEST(weights_in_4_bits_may_be_any),
    BT_TEST(weights_read_fp32),
    BT_TEST(weights_report_progress_to_the_end),
    BT_TEST(weights_unwind_at_every_allocation),
};

int main(int argc, char **argv)
{
    return checkpoint_main(argc, argv, TESTS, sizeof(TESTS) / sizeof(TESTS[0]));
}

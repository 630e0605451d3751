/* What attention computes, against the plain reference in float; and what it refuses. */
#include "attention/reference/mla_reference.h"
#include "tests/attention/layer.h"
#include "tests/attention/shapes.h"
#include "tests/support/sweep.h"

/* The families that this machine runs, one after the other. */
static const char *next_family(const char **rest, char name[32])
{
    size_t n = strcspn(*rest, ",");

    if (**rest == 0) return NULL;
    snprintf(name, 32, "%.*s", (int)n, *rest);
    *rest += n + ((*rest)[n] == ',');
    return name;
}

typedef struct {
    float *latent, *rope_key, *out;
} expected;

static expected reference_of(const layer_data *d, const request *r)
{
    bt_mla_reference_weights w = {d->q.data,    d->q_a.data, d->q_b.data,      d->kv_a.data,
                                  d->kv_b.data, d->o.data,   d->q_a_norm.data, d->kv_a_norm.data};
    size_t                   n = r->n, hidden = d->cfg.hidden;
    float                   *x = bt_calloc(n * hidden, sizeof(float));
    expected                 e = {bt_calloc(n * d->cfg.kv_lora_rank, sizeof(float)),
                                  bt_calloc(n * d->cfg.qk_rope_dim, sizeof(float)),
                                  bt_calloc(n * hidden, sizeof(float))};

    for (size_t i = 0; i < n * hidden; i++)
        x[i] = bt_bf16_to_f32(r->x[i]);
    EXPECT_EQ(bt_mla_reference(&d->cfg, &w, r->n, x, e.latent, e.rope_key, e.out), BT_OK);
    bt_free(x);
    return e;
}

static void expected_free(expected *e)
{
    bt_free(e->latent);
    bt_free(e->rope_key);
    bt_free(e->out);
}

/* The worst row's rms error over the rms of the row or of all of `want`; NaN fails. */
static void expect_close(const char *what, const bt_bf16 *got, size_t ld, const float *want,
                         size_t rows, size_t width, double tolerance)
{
    double all = 0, worst = 0;
    size_t worst_row = 0;

    for (size_t i = 0; i < rows * width; i++)
        all += (double)want[i] * want[i];
    all = sqrt(all / (double)(rows * width));
    for (size_t r = 0; r < rows; r++) {
        double sum = 0, size = 0;

        for (size_t i = 0; i < width; i++) {
            double e = bt_bf16_to_f32(got[r * ld + i]) - want[r * width + i];

            sum += e * e;
            size += (double)want[r * width + i] * want[r * width + i];
        }
        size = sqrt(size / (double)width);
        sum  = sqrt(sum / (double)width) / (size > all ? size : all);
        if (!(sum <= worst)) {
            worst     = sum;
            worst_row = r;
        }
    }
    if (!(worst <= tolerance)) {
        fprintf(stderr, "%s: row %zu is off by %.4f of the rms, allowed %.4f\n", what, worst_row,
                worst, tolerance);
        EXPECT(worst <= tolerance);
    }
}

/* Latents and rope keys are rounded once or twice; the output saw bf16 in every product. */
static void compare(const layer_data *d, const layer *l, const request *r, const expected *e,
                    const char *what)
{
    size_t c = l->cfg.kv_lora_rank, kv_dim = c + l->cfg.qk_rope_dim;

    for (uint32_t t = 0; t < r->n; t++) {
        const bt_bf16 *row = bt_kv_pool_rows(l->pool, r->pages[t / BT_PAGE_TOKENS], LAYER) +
                             t % BT_PAGE_TOKENS * kv_dim;

        expect_close("latent", row, kv_dim, e->latent + t * c, 1, c, 0.008);
        expect_close("rope key", row + c, kv_dim, e->rope_key + (size_t)t * l->cfg.qk_rope_dim, 1,
                     l->cfg.qk_rope_dim, 0.008);
    }
    expect_close(what, r->out, d->cfg.hidden, e->out, r->n, d->cfg.hidden, 0.03);
}

static void mla_both_forms_and_roles_equal_the_reference(void)
{
    for (int s = 0; s < N_SHAPES; s++) {
        layer_data *d    = layer_data_new(SHAPES[s].name, &SHAPES[s].cfg);
        const char *rest = bt_device_cpu_kernels();
        expected    e    = {NULL, NULL, NULL}; /* for all families */
        char        name[32], what[128];

        while (next_family(&rest, name) != NULL) {
            layer   l = layer_new(d, name, 2, 100);
            request r = request_new(&l, 100, 3);

            if (e.out == NULL) e = reference_of(d, &r);
            for (int way = 0; way < 4; way++) {
                bt_role      role = way & 1 ? BT_ROLE_GENERATED : BT_ROLE_PROMPT;
                bt_attn_form form = way & 2 ? BT_FORM_ABSORBED : BT_FORM_NORMAL;

                layer_poison(&l);
                layer_run(&l, &r, 0, r.n, r.n, role, form);
                snprintf(what, sizeof(what), "%s, %s, role %d, form %d", d->name, name, (int)role,
                         (int)form);
                compare(d, &l, &r, &e, what);
            }
            request_free(&l, &r);
            layer_free(&l);
        }
        expected_free(&e);
        layer_data_free(d);
    }
}

static void mla_context_over_several_parts_equals_the_reference(void)
{
    layer_data *d = layer_data_new("glm-flash", &SHAPES[SHAPE_GLM].cfg);
    layer       l = layer_new(d, "auto", 2, 2300);
    request     r = request_new(&l, 2300, 4);
    expected    e = reference_of(d, &r);

    for (int form = 0; form < 2; form++) {
        layer_poison(&l);
        layer_run(&l, &r, 0, r.n, r.n, BT_ROLE_PROMPT, (bt_attn_form)form);
        compare(d, &l, &r, &e, form == BT_FORM_NORMAL ? "normal" : "absorbed");
    }
    expected_free(&e);
    request_free(&l, &r);
    layer_free(&l);
    layer_data_free(d);
}

/* Tables that grow with the positions, past 1,024 of them. */
static void mla_positions_reached_in_many_steps_equal_those_of_one(void)
{
    enum { N = 1090, FIRST = 1000 };
    layer_data *d     = layer_data_new("factors", &SHAPES[SHAPE_FACTORS].cfg);
    layer       whole = layer_new(d, "auto", 2, N), steps = layer_new(d, "auto", 2, N);
    request     one = request_new(&whole, N, 6), many = request_new(&steps, N, 6);
    expected    e = reference_of(d, &one);

    layer_run(&whole, &one, 0, N, N, BT_ROLE_PROMPT, BT_FORM_NORMAL);
    layer_run(&steps, &many, 0, FIRST, FIRST, BT_ROLE_PROMPT, BT_FORM_NORMAL);
    layer_run(&steps, &many, FIRST, N, 7, BT_ROLE_PROMPT, BT_FORM_NORMAL);
    compare(d, &whole, &one, &e, "factors");
    EXPECT_EQ(first_difference(&whole, one.out, many.out, N), N);
    expected_free(&e);
    request_free(&whole, &one);
    request_free(&steps, &many);
    layer_free(&whole);
    layer_free(&steps);
    layer_data_free(d);
}

/* cos and sin times the magnitude, for queries and keys alike. */
static void mla_rope_magnitude_reaches_queries_and_keys(void)
{
    bt_mla_config cfg = SHAPES[SHAPE_V2_LITE].cfg;
    layer_data   *d;
    layer         l;
    request       r;
    expected      e;

    cfg.rope_magnitude = 1.5;
    d                  = layer_data_new("magnitude", &cfg);
    l                  = layer_new(d, "auto", 1, 70);
    r                  = request_new(&l, 70, 5);
    e                  = reference_of(d, &r);
    layer_run(&l, &r, 0, r.n, r.n, BT_ROLE_PROMPT, BT_FORM_NORMAL);
    compare(d, &l, &r, &e, "magnitude");
    expected_free(&e);
    request_free(&l, &r);
    layer_free(&l);
    layer_data_free(d);
}

static void mla_other_layers_of_a_page_stay_untouched(void)
{
    layer_data *d         = layer_data_new("v2-lite", &SHAPES[SHAPE_V2_LITE].cfg);
    layer       l         = layer_new(d, "auto", 2, 100);
    request     r         = request_new(&l, 100, 6);
    uint32_t    n_touched = 0, kv_dim = bt_kv_pool_kv_dim(l.pool);

    layer_run(&l, &r, 0, 100, 33, BT_ROLE_PROMPT, BT_FORM_NORMAL);
    for (bt_page_id p = 0; p < MAX_PAGES; p++) {
        const bt_bf16 *rows    = bt_kv_pool_rows(l.pool, p, 1 - LAYER);
        const bt_bf16 *written = bt_kv_pool_rows(l.pool, p, LAYER);
        uint32_t       n       = p == r.pages[0] ? 64 : p == r.pages[1] ? 36 : 0;

        for (uint32_t i = 0; i < BT_PAGE_TOKENS * kv_dim; i++) {
            n_touched += rows[i] != 0xffff;
            n_touched += (written[i] != 0xffff) != (i < n * kv_dim);
        }
    }
    EXPECT_EQ(n_touched, 0);
    request_free(&l, &r);
    layer_free(&l);
    layer_data_free(d);
}

static void check_unwinding(int shape)
{
    bt_device            *dev = NULL;
    bt_device_cpu_options opt = {.n_threads = 2, .kernels = "auto"};
    layer_data           *d   = layer_data_new(SHAPES[shape].name, &SHAPES[shape].cfg);
    bt_mla               *mla = NULL;

    d->cfg.max_context = 100;
    EXPECT_EQ(bt_device_cpu_create(&opt, &dev), BT_OK);
    EXPECT(BT_SWEEP(bt_mla_create(dev, &d->cfg, 10, &mla), bt_mla_destroy(mla)) >= 15);
    EXPECT_EQ(bt_mla_create(dev, &d->cfg, 10, &mla), BT_OK);
    EXPECT(bt_mla_workspace_bytes(mla) >
           10 * (size_t)d->cfg.n_heads *
               (d->cfg.qk_nope_dim + d->cfg.qk_rope_dim + d->cfg.kv_lora_rank) * sizeof(bt_bf16));
    EXPECT(bt_mla_workspace_bytes(mla) > bt_mla_large_bytes(dev, &d->cfg, 10) / 32);
    bt_mla_destroy(mla);
    bt_device_destroy(dev);
    layer_data_free(d);
}

static void mla_create_unwinds_at_every_allocation(void)
{
    check_unwinding(SHAPE_DEMO);
    check_unwinding(SHAPE_SPARSE);
}

static void expect_refused(bt_device *dev, const bt_mla_config *cfg, uint32_t max_rows,
                           const char *part)
{
    bt_mla *mla = NULL;

    EXPECT_EQ(bt_mla_create(dev, cfg, max_rows, &mla), BT_ERR_INVALID_ARG);
    EXPECT(mla == NULL);
    EXPECT_HAS(bt_error_text(), part);
}

static void mla_create_refuses_senseless_configs(void)
{
    bt_device            *dev = NULL;
    bt_device_cpu_options opt = {.n_threads = 1, .kernels = "auto"};
    layer_data           *d   = layer_data_new("demo", &SHAPES[SHAPE_DEMO].cfg);
    uint32_t *const FIELDS[]  = {&d->cfg.hidden,      &d->cfg.n_heads,     &d->cfg.kv_lora_rank,
                                 &d->cfg.qk_nope_dim, &d->cfg.qk_rope_dim, &d->cfg.v_dim,
                                 &d->cfg.max_context};
    bt_mla         *mla       = NULL;

    EXPECT_EQ(bt_device_cpu_create(&opt, &dev), BT_OK);
    for (size_t i = 0; i < sizeof(FIELDS) / sizeof(FIELDS[0]); i++) {
        uint32_t kept = *FIELDS[i];

        *FIELDS[i] = 0;
        expect_refused(dev, &d->cfg, 10, "must be above 0");
        *FIELDS[i] = 16386;
        if (i != 0 && i != 6) expect_refused(dev, &d->cfg, 10, "at most 16384");
        *FIELDS[i] = kept;
    }
    expect_refused(dev, &d->cfg, 0, "must be above 0");
    d->cfg.qk_rope_dim = 15;
    expect_refused(dev, &d->cfg, 10, "even");
    d->cfg.qk_rope_dim   = 64;
    d->cfg.softmax_scale = 0;
    expect_refused(dev, &d->cfg, 10, "softmax scale");
    d->cfg.softmax_scale = NAN;
    expect_refused(dev, &d->cfg, 10, "softmax scale");
    d->cfg.softmax_scale = 1;
    d->inv_freq[3]       = INFINITY;
    expect_refused(dev, &d->cfg, 10, "rope frequency 3");
    d->inv_freq[3] = 1;
    for (int i = 0; i < 4; i++) {
        static const double BETAS[] = {-1, NAN, INFINITY, 1};

        d->cfg.query_beta    = BETAS[i];
        d->cfg.query_context = i < 3;
        expect_refused(dev, &d->cfg, 10, "query factors");
    }
    d->cfg.query_beta  = 0;
    d->cfg.index_topk  = 7;
    d->cfg.index_dim   = 64;
    d->cfg.index_heads = 0;
    expect_refused(dev, &d->cfg, 10, "sparse attention of 0 heads");
    d->cfg.index_heads = 4;
    d->cfg.index_dim   = 63; /* RoPE turns 64 */
    expect_refused(dev, &d->cfg, 10,
                   "4 heads of 63 elements: expected 1 to 16384 heads of 64 to 4096");
    d->cfg.index_dim = 4097;
    expect_refused(dev, &d->cfg, 10, "heads of 4097");
    d->cfg.index_dim = 64;
    EXPECT_EQ(bt_mla_create(dev, &d->cfg, 10, &mla), BT_OK);
    bt_mla_destroy(mla);
    d->cfg.q_lora_rank = 0;
    expect_refused(dev, &d->cfg, 10, "a q_lora_rank (0)");
    bt_device_destroy(dev);
    layer_data_free(d);
}

static void mla_rows_that_choose_need_the_absorbed_form(void)
{
    layer_data *d   = layer_data_new("sparse", &SHAPES[SHAPE_SPARSE].cfg);
    layer       l   = layer_new(d, "auto", 1, 90);
    request     r   = request_new(&l, 90, 7);
    bt_linear **ukt = l.w.ukt;

    l.w.ukt = NULL;
    EXPECT_EQ(layer_step(&l, 1, &(piece){&r, 0, 70, BT_ROLE_PROMPT, BT_FORM_NORMAL}), BT_OK);
    EXPECT_EQ(layer_step(&l, 1, &(piece){&r, 60, 11, BT_ROLE_PROMPT, BT_FORM_NORMAL}),
              BT_ERR_INVALID_ARG);
    EXPECT_HAS(bt_error_text(), "absorbed form");
    l.w.ukt = ukt;
    EXPECT_EQ(layer_step(&l, 1, &(piece){&r, 60, 11, BT_ROLE_PROMPT, BT_FORM_NORMAL}), BT_OK);
    request_free(&l, &r);
    layer_free(&l);
    layer_data_free(d);
}

/* Behind the rope key: ki of a layer that has an indexer, else zeros. */
static void mla_pages_hold_what_the_indexer_keeps(void)
{
    layer_data *d = layer_data_new("sparse", &SHAPES[SHAPE_SPARSE].cfg);
    layer       l = layer_new(d, "auto", 1, 70);
    request     r = request_new(&l, 70, 7);
    uint32_t    n = l.cfg.index_dim, from = l.cfg.kv_lora_rank + l.cfg.qk_rope_dim;

    for (int turn = 0; turn < 2; turn++) {
        bt_mla_weights all  = l.w;
        double         size = 0;

        if (turn == 1) l.w.index_q = l.w.index_k = l.w.index_w = NULL;
        layer_poison(&l);
        layer_run(&l, &r, 0, r.n, r.n, BT_ROLE_PROMPT, BT_FORM_NORMAL);
        for (uint32_t t = 0; t < r.n; t++) {
            const bt_bf16 *row = bt_kv_pool_rows(l.pool, r.pages[t / BT_PAGE_TOKENS], LAYER) +
                                 t % BT_PAGE_TOKENS * (from + n) + from;

            for (uint32_t i = 0; i < n; i++)
                size += fabs((double)bt_bf16_to_f32(row[i]));
        }
        EXPECT(turn == 1 ? size == 0 : size > 0.1 * r.n * n && size < 10.0 * r.n * n);
        l.w = all;
    }
    request_free(&l, &r);
    layer_free(&l);
    layer_data_free(d);
}

static void mla_steps_that_do_not_fit_are_refused(void)
{
    bt_mla_config cfg = SHAPES[SHAPE_V2_LITE].cfg;
    layer_data   *d;
    layer         l;
    request       r;
    bt_linear   **uk;

    cfg.max_context = 80;
    d               = layer_data_new("v2-lite", &cfg);
    l               = layer_new(d, "auto", 1, 90);
    r               = request_new(&l, 90, 7);

    EXPECT_EQ(layer_step(&l, 1, &(piece){&r, 0, 81, BT_ROLE_PROMPT, BT_FORM_NORMAL}),
              BT_ERR_INVALID_ARG);
    EXPECT_HAS(bt_error_text(), "ends at position 81: the context is 80");
    EXPECT_EQ(layer_step(&l, 1, &(piece){&r, 79, 2, BT_ROLE_PROMPT, BT_FORM_ABSORBED}),
              BT_ERR_INVALID_ARG);
    EXPECT_EQ(layer_step(&l, 2,
                         (piece[]){
                             {&r, 0, 4, BT_ROLE_GENERATED, BT_FORM_NORMAL},
                             {&r, 4, 4, BT_ROLE_PROMPT,    BT_FORM_NORMAL}
    }),
              BT_ERR_INVALID_ARG);
    EXPECT_HAS(bt_error_text(), "role prompt follows");
    l.max_rows = 180; /* of the test's own matrices only */
    EXPECT_EQ(layer_step(&l, 2,
                         (piece[]){
                             {&r, 0, 50, BT_ROLE_PROMPT, BT_FORM_NORMAL},
                             {&r, 0, 50, BT_ROLE_PROMPT, BT_FORM_NORMAL}
    }),
              BT_ERR_INVALID_ARG);
    EXPECT_HAS(bt_error_text(), "50 rows from 50");
    EXPECT_EQ(bt_mla_forward(l.mla, &l.w, l.pool, LAYER, r.x, r.out, 1,
                             &(bt_span){r.pages, 1, 4, 0, BT_ROLE_PROMPT, BT_FORM_NORMAL}),
              BT_ERR_INVALID_ARG);
    EXPECT_HAS(bt_error_text(), "4 rows from 1: expected to begin at 0");
    uk     = l.w.uk;
    l.w.uk = NULL;
    EXPECT_EQ(layer_step(&l, 1, &(piece){&r, 0, 8, BT_ROLE_PROMPT, BT_FORM_NORMAL}),
              BT_ERR_INVALID_ARG);
    EXPECT_HAS(bt_error_text(), "normal form");
    EXPECT_EQ(layer_step(&l, 1, &(piece){&r, 0, 8, BT_ROLE_PROMPT, BT_FORM_ABSORBED}), BT_OK);
    l.w.uk = uk;
    EXPECT_EQ(bt_mla_forward(l.mla, &l.w, l.pool, LAYERS, r.x, r.out, 0, NULL), BT_ERR_INVALID_ARG);
    EXPECT_EQ(layer_step(&l, 2, /* all rows, and the context's last position */
                         (piece[]){
                             {&r, 0, 10, BT_ROLE_PROMPT, BT_FORM_NORMAL},
                             {&r, 0, 80, BT_ROLE_PROMPT, BT_FORM_NORMAL}
    }),
              BT_OK);
    EXPECT_EQ(layer_step(&l, 1, &(piece){&r, 79, 1, BT_ROLE_GENERATED, BT_FORM_ABSORBED}), BT_OK);
    request_free(&l, &r);
    layer_free(&l);
    layer_data_free(d);
}

static void mla_steps_and_spans_of_no_rows_do_nothing(void)
{
    layer_data *d = layer_data_new("v2-lite", &SHAPES[SHAPE_V2_LITE].cfg);
    layer       l = layer_new(d, "auto", 1, 8);
    request     r = request_new(&l, 8, 8);

    EXPECT_EQ(layer_step(&l, 0, NULL), BT_OK);
    for (int form = 0; form < 2; form++) {
        EXPECT_EQ(layer_step(&l, 1, &(piece){&r, 0, 0, BT_ROLE_PROMPT, (bt_attn_form)form}), BT_OK);
        EXPECT_EQ(layer_step(&l, 4,
                             (piece[]){
                                 {&r, 0, 0, BT_ROLE_PROMPT,    (bt_attn_form)form},
                                 {&r, 0, 3, BT_ROLE_PROMPT,    (bt_attn_form)form},
                                 {&r, 3, 0, BT_ROLE_PROMPT,    (bt_attn_form)form},
                                 {&r, 3, 5, BT_ROLE_GENERATED, (bt_attn_form)form}
        }),
                  BT_OK);
    }
    request_free(&l, &r);
    layer_free(&l);
    layer_data_free(d);
}

/* For (512; 128, 128) normal wins above 512/3 kv / (kv + 512/3) new tokens. */
static void mla_cheaper_form_turns_at_the_counted_flops(void)
{
    const bt_mla_config v3 = {
        .kv_lora_rank = 512, .qk_nope_dim = 128, .qk_rope_dim = 64, .v_dim = 128};
    const bt_mla_config glm = {
        .kv_lora_rank = 512, .qk_nope_dim = 192, .qk_rope_dim = 64, .v_dim = 256};

    EXPECT_EQ(bt_mla_cheaper_form(&v3, 1, 100), BT_FORM_ABSORBED);
    EXPECT_EQ(bt_mla_cheaper_form(&v3, 127, 512), BT_FORM_ABSORBED);
    EXPECT_EQ(bt_mla_cheaper_form(&v3, 129, 512), BT_FORM_NORMAL);
    EXPECT_EQ(bt_mla_cheaper_form(&v3, 163, 4096), BT_FORM_ABSORBED);
    EXPECT_EQ(bt_mla_cheaper_form(&v3, 164, 4096), BT_FORM_NORMAL);
    EXPECT_EQ(bt_mla_cheaper_form(&v3, 131072, 131072), BT_FORM_NORMAL);
    EXPECT_EQ(bt_mla_cheaper_form(&glm, 362, 4096), BT_FORM_ABSORBED);
    EXPECT_EQ(bt_mla_cheaper_form(&glm, 363, 4096), BT_FORM_NORMAL);
}

static const bt_test TESTS[] = {
    BT_TEST(mla_both_forms_and_roles_equal_the_reference),
    BT_TEST(mla_context_over_several_parts_equals_the_reference),
    BT_TEST(mla_positions_reached_in_many_steps_equal_those_of_one),
    BT_TEST(mla_rope_magnitude_reaches_queries_and_keys),
    BT_TEST(mla_other_layers_of_a_page_stay_untouched),
    BT_TEST(mla_create_unwinds_at_every_allocation),
    BT_TEST(mla_create_refuses_senseless_configs),
    BT_TEST(mla_rows_that_choose_need_the_absorbed_form),
    BT_TEST(mla_pages_hold_what_the_indexer_keeps),
    BT_TEST(mla_steps_that_do_not_fit_are_refused),
    BT_TEST(mla_steps_and_spans_of_no_rows_do_nothing),
    BT_TEST(mla_cheaper_form_turns_at_the_counted_flops),
};

int main(int argc, char **argv) { return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL); }

/* bt_model: what loading and a step refuse, what they give back, whom they call. */
#include "model/state.h"
#include "tests/model/engine.h"
#include "tests/support/sweep.h"

static bt_world *g_world;
static goldens   g_goldens;

static const uint32_t SELF[1] = {0};

static void open_small(engine *e)
{
    engine_options opt = {.n_threads = 1, .max_rows = 8, .n_pages = 4};

    engine_open(e, &g_goldens, g_world, 1, SELF, &opt);
}

/* Two prompt rows and one generated row of another request. */
typedef struct {
    bt_page_id pages[2];
    uint32_t   tokens[3], logit_rows[3], rows[1][BT_N_ROLES];
    bt_span    spans[2];
    float     *logits;
    bt_step    step;
    uint32_t   n_layers_done;
} small_step;

static void layer_done(void *ctx, uint32_t layer)
{
    small_step *s = ctx;

    EXPECT_EQ(layer, s->n_layers_done);
    s->n_layers_done++;
}

static void small_step_init(engine *e, small_step *s)
{
    memset(s, 0, sizeof(*s));
    NEED(bt_kv_pool_acquire(e->pool, 2, s->pages) == BT_OK);
    s->logits = malloc((size_t)3 * g_goldens.cfg.vocab_size * sizeof(float));
    NEED(s->logits != NULL);
    for (uint32_t i = 0; i < 3; i++) {
        s->tokens[i]     = 10 + i;
        s->logit_rows[i] = i;
    }
    s->spans[0] = (bt_span){
        .pages = &s->pages[0], .n_rows = 2, .role = BT_ROLE_PROMPT, .form = BT_FORM_NORMAL};
    s->spans[1]                   = (bt_span){.pages     = &s->pages[1],
                                              .first_row = 2,
                                              .n_rows    = 1,
                                              .role      = BT_ROLE_GENERATED,
                                              .form      = BT_FORM_ABSORBED};
    s->rows[0][BT_ROLE_PROMPT]    = 2;
    s->rows[0][BT_ROLE_GENERATED] = 1;
    s->step                       = (bt_step){
                              .n_rows       = 3,
                              .tokens       = s->tokens,
                              .n_spans      = 2,
                              .spans        = s->spans,
                              .group_rows   = {.n_ranks = 1,    .n_rows = (const uint32_t(*)[BT_N_ROLES])s->rows},
                              .n_logit_rows = 3,
                              .logit_rows   = s->logit_rows,
                              .logits       = s->logits,
                              .layer_done   = layer_done,
                              .ctx          = s,
                              .wait         = { .timeout_ns = 10 * BT_NS_PER_S, .what = "test",                                      .layer = -1}
    };
}

static void small_step_free(engine *e, small_step *s)
{
    bt_kv_pool_release(e->pool, s->pages[0]);
    bt_kv_pool_release(e->pool, s->pages[1]);
    free(s->logits);
}

static void step_calls_after_each_layer_once(void)
{
    engine     e;
    small_step s;

    open_small(&e);
    small_step_init(&e, &s);
    EXPECT_EQ(bt_model_step(e.model, e.pool, &s.step), BT_OK);
    EXPECT_EQ(s.n_layers_done, g_goldens.cfg.n_layers);
    small_step_free(&e, &s);
    engine_close(&e);
}

static void step_gives_logits_of_the_rows_that_ask(void)
{
    uint32_t   vocab = g_goldens.cfg.vocab_size;
    engine     e;
    small_step s;
    float     *all = malloc((size_t)3 * vocab * sizeof(*all));

    NEED(all != NULL);
    open_small(&e);
    small_step_init(&e, &s);
    EXPECT_EQ(bt_model_step(e.model, e.pool, &s.step), BT_OK);
    memcpy(all, s.logits, (size_t)3 * vocab * sizeof(*all));
    for (uint32_t subset = 1; subset < 8; subset++) { /* bit i: row i asks */
        s.step.n_logit_rows = 0;
        for (uint32_t i = 0; i < 3; i++)
            if (subset >> i & 1) s.logit_rows[s.step.n_logit_rows++] = i;
        s.n_layers_done = 0;
        EXPECT_EQ(bt_model_step(e.model, e.pool, &s.step), BT_OK);
        for (uint32_t j = 0; j < s.step.n_logit_rows; j++)
            EXPECT(memcmp(s.logits + (size_t)j * vocab, all + (size_t)s.logit_rows[j] * vocab,
                          vocab * sizeof(*all)) == 0);
    }
    s.step.n_logit_rows = 0;
    s.step.logits       = NULL;
    s.n_layers_done     = 0;
    EXPECT_EQ(bt_model_step(e.model, e.pool, &s.step), BT_OK);
    free(all);
    small_step_free(&e, &s);
    engine_close(&e);
}

/* Of all rows, in the last layer too, whichever want logits. */
static void step_tells_the_experts_of_rows_without_logits(void)
{
    static const uint32_t last[1][BT_N_ROLES] = {
        {2, 1}
    };
    size_t     bytes = g_goldens.n_moe * 3 * g_goldens.cfg.moe.gate.top_k * sizeof(uint16_t);
    uint16_t  *all = malloc(bytes), *some = malloc(bytes);
    engine     e;
    small_step s;

    NEED(all != NULL && some != NULL);
    open_small(&e);
    small_step_init(&e, &s);
    s.step.chosen = all;
    EXPECT_EQ(bt_model_step(e.model, e.pool, &s.step), BT_OK);
    s.step.chosen       = some;
    s.step.last_rows    = (bt_step_rows){.n_ranks = 1, .n_rows = last};
    s.step.n_logit_rows = 1;
    s.logit_rows[0]     = 2;
    s.n_layers_done     = 0;
    EXPECT_EQ(bt_model_step(e.model, e.pool, &s.step), BT_OK);
    EXPECT(memcmp(all, some, bytes) == 0);
    small_step_free(&e, &s);
    engine_close(&e);
    free(some);
    free(all);
}

static void expect_refused(engine *e, const small_step *s, const char *says)
{
    EXPECT_EQ(bt_model_step(e->model, e->pool, &s->step), BT_ERR_INVALID_ARG);
    EXPECT_HAS(bt_error_text(), says);
}

static void step_refuses_what_does_not_fit(void)
{
    uint32_t last[1][BT_N_ROLES] = {
        {2, 1}
    };
    engine     e;
    small_step s;
    bt_step    good;

    open_small(&e);
    small_step_init(&e, &s);
    good = s.step;

    s.tokens[1] = g_goldens.cfg.vocab_size;
    EXPECT_EQ(bt_model_step(e.model, e.pool, &s.step), BT_ERR_INVALID_ARG);
    EXPECT_HAS(bt_error_text(), "row 1: token 320 is outside the vocabulary of 320");
    s.tokens[1] = 11;

    s.step.n_rows = 2;
    expect_refused(&e, &s, "step of 2 rows with spans of 2 + 1");
    s.step = good;

    s.rows[0][BT_ROLE_PROMPT] = 3; /* the group has agreed on another count */
    expect_refused(&e, &s, "step of 2 + 1 rows: the group has agreed on something else");
    s.rows[0][BT_ROLE_PROMPT] = 2;
    s.step.group_rows.n_ranks = 2;
    expect_refused(&e, &s, "step of 2 + 1 rows: the group has agreed on something else");
    s.step = good;

    s.step.last_rows = (bt_step_rows){
        .n_ranks = 1, .n_rows = (const uint32_t(*)[BT_N_ROLES])last}; /* as many want logits */
    last[0][BT_ROLE_PROMPT]++;
    expect_refused(&e, &s, "2 + 1 rows in the last layer: the group has agreed on something else");
    last[0][BT_ROLE_PROMPT]--;
    s.step.last_rows.n_ranks = 2;
    expect_refused(&e, &s, "2 + 1 rows in the last layer: the group has agreed on something else");
    s.step.last_rows.n_ranks = 1;
    EXPECT_EQ(bt_model_step(e.model, e.pool, &s.step), BT_OK);
    s.step = good;

    e.model->max_logit_rows = 2;
    expect_refused(&e, &s, "logits of 3 rows wanted, at most 2");
    e.model->max_logit_rows = 8;

    s.step.fed = s.tokens;
    expect_refused(&e, &s, "fed by what nothing has chosen");
    s.step = good;

    s.logit_rows[2] = 1; /* not ascending */
    expect_refused(&e, &s, "logit row 2 is 1: not ascending below 3");
    s.logit_rows[2] = 3; /* no such row */
    expect_refused(&e, &s, "logit row 2 is 3: not ascending below 3");
    s.logit_rows[2] = 2;
    s.n_layers_done = 0;
    EXPECT_EQ(bt_model_step(e.model, e.pool, &s.step), BT_OK);

    s.spans[0].n_rows = 8; /* nine rows, the model was made for eight */
    s.step.n_rows     = 9;
    expect_refused(&e, &s, "step of 9 rows with spans of 8 + 1, at most 8");
    small_step_free(&e, &s);
    engine_close(&e);
}

static void model_load_unwinds_at_every_allocation(void)
{
    bt_device_cpu_options dev_opt = {.n_threads = 1, .kernels = "auto"};
    bt_model_config      *cfg     = &g_goldens.cfg;
    uint32_t              context = cfg->mla.max_context;
    bt_model_options opt = {.max_rows = 4, .max_logit_rows = 4, .normal = true, .absorbed = true};
    bt_placement     placement;
    bt_model        *model = NULL;

    cfg->mla.max_context = 64; /* a long table of angles would take all the time */
    NEED(bt_device_cpu_create(&dev_opt, &opt.dev) == BT_OK);
    NEED(bt_group_create(g_world, 1, SELF, 0, 1, &opt.group) == BT_OK);
    NEED(bt_placement_init(&placement, cfg->moe.gate.n_experts, cfg->moe.gate.n_groups, 1) ==
         BT_OK);
    opt.placement = &placement;
    EXPECT(BT_SWEEP(bt_model_load(cfg, g_goldens.weights, &opt, &model), bt_model_destroy(model)) >
           100);
    model = NULL;
    EXPECT_EQ(bt_model_load(cfg, g_goldens.weights, &opt, &model), BT_OK);
    EXPECT(bt_model_weight_bytes(model) > 0 && bt_model_workspace_bytes(model) > 0);
    bt_model_destroy(model);
    bt_placement_fini(&placement);
    bt_group_destroy(opt.group);
    bt_device_destroy(opt.dev);
    cfg->mla.max_context = context;
}

static void model_load_refuses_options_that_do_not_fit(void)
{
    bt_device_cpu_options dev_opt = {.n_threads = 1, .kernels = "auto"};
    bt_model_config      *cfg     = &g_goldens.cfg;
    bt_model_options      opt     = {.max_rows = 4, .max_logit_rows = 4, .normal = true};
    bt_placement          placement;
    bt_model             *model = NULL;

    NEED(bt_device_cpu_create(&dev_opt, &opt.dev) == BT_OK);
    NEED(bt_group_create(g_world, 1, SELF, 0, 1, &opt.group) == BT_OK);
    EXPECT_EQ(bt_model_load(cfg, g_goldens.weights, &opt, &model), BT_ERR_INVALID_ARG);
    EXPECT_HAS(bt_error_text(), "placement");
    NEED(bt_placement_init(&placement, cfg->moe.gate.n_experts, cfg->moe.gate.n_groups, 2) ==
         BT_OK);
    opt.placement = &placement; /* of two ranks, in a group of one */
    EXPECT_EQ(bt_model_load(cfg, g_goldens.weights, &opt, &model), BT_ERR_INVALID_ARG);
    EXPECT_HAS(bt_error_text(), "on 2 ranks");
    opt.normal = false;
    EXPECT_EQ(bt_model_load(cfg, g_goldens.weights, &opt, &model), BT_ERR_INVALID_ARG);
    opt.normal   = true;
    opt.max_rows = 0;
    EXPECT_EQ(bt_model_load(cfg, g_goldens.weights, &opt, &model), BT_ERR_INVALID_ARG);
    EXPECT_HAS(bt_error_text(), "model for 0 rows, normal form 1, absorbed form 0: expected rows");
    EXPECT(model == NULL);
    bt_placement_fini(&placement);
    bt_group_destroy(opt.group);
    bt_device_destroy(opt.dev);
}

static const bt_test TESTS[] = {
    BT_TEST(step_calls_after_each_layer_once),
    BT_TEST(step_gives_logits_of_the_rows_that_ask),
    BT_TEST(step_tells_the_experts_of_rows_without_logits),
    BT_TEST(step_refuses_what_does_not_fit),
    BT_TEST(model_load_unwinds_at_every_allocation),
    BT_TEST(model_load_refuses_options_that_do_not_fit),
};

/* usage: mpiexec -n 1 test_model [test] */
int main(int argc, char **argv)
{
    int rc;

    NEED(bt_world_init(&argc, &argv, &g_world) == BT_OK);
    goldens_open(&g_goldens, "v2-lite");
    rc = BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
    goldens_close(&g_goldens);
    bt_world_fini(g_world);
    return rc;
}

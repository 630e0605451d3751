/* Decode steps as graphs, on a GPU that is host memory: the tokens and logprobs of a step that is
 * launched as a graph are those of the step run call by call, padded or not (of several ranks too,
 * with NCCL between them and their exchanges in the graphs; the fake NCCL refuses an exchange that
 * is a graph's on one side only, or of another one; and with exchanges through host memory, where
 * graphs are cut at them).
 *
 * usage: mpiexec -n N test_decode_graphs [staged] MODEL [TEST] */
#include <cuda_runtime_api.h>

#include "device/cuda/module.h"
#include "model/decode_graphs.h"
#include "model/graph_plan.h"
#include "model/state.h"
#include "parallel/nccl/module.h"
#include "tests/cuda/simt_control.h"
#include "tests/support/sweep.h"
#include "worker/draws.h"

extern const bt_cuda_module_table bt_cuda_module;
extern const bt_nccl_module       bt_nccl_module_table;

static void connect_ranks(bt_device *dev, bt_group *group);
#define ENGINE_DEVICE(opt, dev_out) bt_cuda_module.create((opt)->n_threads - 1, (dev_out))
#define ENGINE_CONNECT(dev, group)  connect_ranks((dev), (group))
#include "tests/model/engine.h"

enum { ROLL_SPACE = 4, REQUESTS = 5, STEPS = 6, MAX_ROWS = 16, MAX_TOP_K = 16, MAX_MOE = 8 };
enum { FEW_LAUNCHES = 12 }; /* beside a step's graph: those that draw its tokens */
enum { PART_PAGES = BT_ATTN_SPLIT_TOKENS / BT_PAGE_TOKENS };

typedef enum { CALLS, GRAPHS } way; /* GRAPHS: where all can; a new one is captured first */

static bt_world *g_world;
static bool      g_staged; /* exchanges go through host memory */
static goldens   g_goldens;
static engine    g_engine;

static const bt_wait WAIT = {.timeout_ns = 30 * BT_NS_PER_S, .what = "test", .layer = -1};

static void connect_ranks(bt_device *dev, bt_group *group)
{
    bt_carrier *carrier = NULL;

    if (bt_group_size(group) == 1) return;
    NEED((g_staged ? bt_carrier_staged_create(dev, &carrier)
                   : bt_carrier_nccl_create(&bt_nccl_module_table, dev, g_world, ROLL_SPACE,
                                            &carrier)) == BT_OK);
    bt_group_attach(group, carrier);
    NEED(bt_group_warm(group, &WAIT) == BT_OK);
}

/* Whatever is enqueued here must not end up in a graph. */
static void be_idle(void *ctx)
{
    ++*(uint32_t *)ctx;
    EXPECT_EQ(fake_gpu_capture_of(bt_device_stream(g_engine.dev)), 0);
}

static void on_layer(void *ctx, uint32_t layer) { *(uint32_t *)ctx = layer; }

typedef struct {
    bt_page_id   pages[REQUESTS][PART_PAGES + 1];
    uint32_t     first;          /* position of the first step */
    uint32_t     next[REQUESTS]; /* tokens */
    uint32_t     ids[STEPS][REQUESTS];
    float        logprobs[STEPS][REQUESTS];
    bt_draw_list draws;
    bool         wants_experts; /* of the next step, which a graph does not give */
    long         n_graphs;      /* that the last step launched */
    uint32_t     n_idle;
    uint32_t     layer; /* the last one that was said to be done */
} history;

static bool was_graph(const history *h) { return h->n_graphs != 0; }

static bool is_last(void) { return g_engine.self + 1 == g_engine.n_ranks; }

/* Of a step in which the first rank has `most` requests: others have half of them. */
static uint32_t own_of(uint32_t rank, uint32_t most) { return rank == 0 ? most : most / 2; }

/* Graphs of a step: between cuts there is one each. */
static long graphs_of_step(void)
{
    return g_staged ? 1 + 2 * (long)bt_model_n_moe_layers(&g_goldens.cfg) : 1;
}

/* What the ranks agree on for the step. */
static bt_graph_choice agree(const bt_step *step, uint32_t most)
{
    bt_graph_offer mine, all[MAX_RANKS];

    bt_model_offer_graphs(g_engine.model, step, &mine);
    NEED(bt_group_all_gather(g_engine.group, &mine, sizeof(mine), all, &WAIT) == BT_OK);
    for (uint32_t q = 1; q < g_engine.n_ranks; q++)
        bt_graph_join(&all[0], &all[q]);
    return bt_graph_choose(&all[0], most);
}

static bt_span span_of(const history *h, uint32_t i, uint32_t position)
{
    return (bt_span){.pages     = h->pages[i],
                     .first_row = i,
                     .n_rows    = 1,
                     .start     = position,
                     .role      = BT_ROLE_GENERATED,
                     .form      = BT_FORM_ABSORBED};
}

/* Some requests get odd ids alone. */
static bool is_masked(uint32_t request) { return request % 3 == 1; }

static const uint32_t *odd_ids(void)
{
    static uint32_t mask[4096];

    NEED(g_goldens.cfg.vocab_size <= 32 * sizeof(mask) / sizeof(mask[0]));
    memset(mask, 0xAA, sizeof(mask));
    return mask;
}

/* Requests [0, n) of this rank, as own_of(), are to get a token each in step `at`; of these the
 * first n_fed are fed by those of the step before.  Returns where the tokens will come. */
static const bt_draw_results *launch(history *h, way how, uint32_t at, uint32_t most,
                                     uint32_t n_fed)
{
    static uint16_t chosen[MAX_MOE * MAX_ROWS * MAX_TOP_K];
    uint32_t        rows[MAX_RANKS][BT_N_ROLES] = {{0}};
    uint32_t        n = own_of(g_engine.self, most), position = h->first + at;
    uint32_t        tokens[REQUESTS], fed[REQUESTS], logit_rows[REQUESTS];
    bt_span         spans[REQUESTS];
    bt_sample_how   sample = {.temperature = 0.8f, .seed = 5, .position = position};
    uint64_t        n_launches; /* beside those of a graph */
    bt_draws        view;
    bt_step         step = {
                .n_rows  = n,
                .tokens  = tokens,
                .fed     = n_fed > 0 ? fed : NULL,
                .n_spans = n,
                .spans   = spans,
                .group_rows = {.n_ranks = g_engine.n_ranks, .n_rows = (const uint32_t(*)[BT_N_ROLES])rows},
                .n_logit_rows = n,
                .logit_rows   = logit_rows,
                .sampling     = h->draws.sampling,
                .draws        = &view,
                .chosen       = h->wants_experts ? chosen : NULL,
                .layer_done   = on_layer,
                .ctx          = &h->layer,
                .wait         = WAIT
    };

    step.wait.idle = be_idle;
    step.wait.ctx  = &h->n_idle;
    bt_draw_list_clear(&h->draws);
    for (uint32_t i = 0; i < n; i++) {
        spans[i]       = span_of(h, i, position);
        tokens[i]      = i < n_fed ? 0 : h->next[i];
        fed[i]         = i < n_fed ? i : BT_NOT_DRAWN;
        logit_rows[i]  = i;
        sample.choice  = i;
        sample.allowed = is_masked(i) ? odd_ids() : NULL;
        NEED(bt_draw_list_add(&h->draws, &sample, 0, i, true, 2));
    }
    view = bt_draw_list_view(&h->draws);
    if (how == GRAPHS) step.graph = agree(&step, most);
    for (uint32_t q = 0; q < g_engine.n_ranks; q++)
        rows[q][BT_ROLE_GENERATED] = step.graph.n_rows != 0 ? step.graph.n_rows : own_of(q, most);
    h->layer    = UINT32_MAX;
    h->n_graphs = g_fake_gpu.n_graphs;
    n_launches  = simt_n_launches();
    EXPECT_EQ(bt_model_launch(g_engine.model, g_engine.pool, &step), BT_OK);
    h->n_graphs = g_fake_gpu.n_graphs - h->n_graphs;
    n_launches  = simt_n_launches() - n_launches;
    EXPECT(h->n_graphs == 0 || h->n_graphs == graphs_of_step());
    EXPECT(h->n_graphs == 0 || g_staged || n_launches < FEW_LAUNCHES);
    EXPECT_EQ(h->layer, g_goldens.cfg.n_layers - 1);
    return view.out;
}

static void take(history *h, const bt_draw_results *out, uint32_t at, uint32_t n)
{
    uint32_t ids[BT_MAX_ALTERNATIVES];
    float    tops[BT_MAX_ALTERNATIVES];

    EXPECT_EQ(bt_model_await(g_engine.model, &WAIT), BT_OK);
    for (uint32_t i = 0; i < n; i++) {
        EXPECT(bt_drawn_id(&h->draws, out, i, &h->ids[at][i]));
        EXPECT(!is_masked(i) || h->ids[at][i] % 2 == 1);
        bt_drawn_logprobs(out, i, &h->logprobs[at][i], ids, tops);
        h->next[i] = h->ids[at][i];
    }
}

static void decode(history *h, way how, uint32_t at, uint32_t most)
{
    take(h, launch(h, how, at, most, 0), at, own_of(g_engine.self, most));
}

static void begin(history *h, unsigned long seed)
{
    bt_page_id pages[REQUESTS];

    memset(h, 0, sizeof(*h));
    fake_gpu_seed(seed);
    NEED(bt_draw_list_init(&h->draws, g_engine.dev, g_goldens.cfg.vocab_size, MAX_ROWS) == BT_OK);
    NEED(bt_kv_pool_acquire(g_engine.pool, REQUESTS, pages) == BT_OK);
    for (uint32_t i = 0; i < REQUESTS; i++) {
        h->next[i]     = 7 + i;
        h->pages[i][0] = pages[i];
    }
}

/* Behind a part of zeros, the same page of them over and over. */
static void begin_behind_a_part(history *h, unsigned long seed)
{
    static const bt_bf16 ZEROS[BT_PAGE_TOKENS * 1024];
    size_t     bytes = BT_PAGE_TOKENS * bt_kv_pool_kv_dim(g_engine.pool) * sizeof(bt_bf16);
    bt_page_id zeros;

    begin(h, seed);
    h->first = BT_ATTN_SPLIT_TOKENS;
    NEED(bytes <= sizeof(ZEROS) && bt_kv_pool_acquire(g_engine.pool, 1, &zeros) == BT_OK);
    for (uint32_t layer = 0; layer < g_goldens.cfg.n_layers; layer++)
        NEED(bt_device_upload(g_engine.dev, bt_kv_pool_rows(g_engine.pool, zeros, layer), ZEROS,
                              bytes) == BT_OK);
    for (uint32_t i = 0; i < REQUESTS; i++) {
        h->pages[i][PART_PAGES] = h->pages[i][0];
        for (uint32_t k = 0; k < PART_PAGES; k++)
            h->pages[i][k] = zeros;
    }
}

/* All requests, then fewer, then all again. */
static uint32_t n_at(uint32_t at) { return at == 2 ? 1 : at == 3 ? 3 : REQUESTS; }

static void run_steps(history *h, way how, unsigned long seed)
{
    begin(h, seed);
    for (uint32_t at = 0; at < STEPS; at++)
        decode(h, how, at, n_at(at));
}

/* Each step is launched while the one before it has not begun: the host knows none of its tokens,
 * and waits for nothing. */
static void run_ahead(history *h, way how, unsigned long seed)
{
    const bt_draw_results *out[STEPS + 1];

    begin(h, seed);
    out[0] = launch(h, how, 0, n_at(0), 0);
    for (uint32_t at = 0; at < STEPS; at++) {
        uint32_t most = n_at(at + 1), n = own_of(g_engine.self, n_at(at));
        uint32_t next  = own_of(g_engine.self, most);
        long     waits = g_fake_gpu.n_waits;

        if (at + 1 < STEPS) out[at + 1] = launch(h, how, at + 1, most, n < next ? n : next);
        if (g_engine.n_ranks == 1) { /* else the host asks how exchanges are coming along */
            EXPECT_EQ(g_fake_gpu.n_waits, waits);
            EXPECT_EQ(out[at]->ids[0], BT_NO_TOKEN);
        }
        take(h, out[at], at, n);
    }
}

static void drop(history *h)
{
    if (h->first != 0) bt_kv_pool_release(g_engine.pool, h->pages[0][0]);
    for (uint32_t i = 0; i < REQUESTS; i++)
        bt_kv_pool_release(g_engine.pool, h->pages[i][h->first != 0 ? PART_PAGES : 0]);
    bt_draw_list_fini(&h->draws);
}

static bool equal(const history *a, const history *b)
{
    return memcmp(a->ids, b->ids, sizeof(a->ids)) == 0 &&
           memcmp(a->logprobs, b->logprobs, sizeof(a->logprobs)) == 0;
}

static void open_engine(void)
{
    engine_options opt = {.n_threads = 1, .max_rows = MAX_ROWS, .n_pages = 4 * REQUESTS + 2};
    uint32_t       ranks[MAX_RANKS], n = bt_world_size(g_world), no_ids[MAX_ROWS];

    NEED(n <= MAX_RANKS);
    for (uint32_t i = 0; i < n; i++)
        ranks[i] = i;
    engine_open(&g_engine, &g_goldens, g_world, n, ranks, &opt); /* GPU 0 */
    memset(no_ids, 0xff, sizeof(no_ids));                        /* as fresh memory may have it */
    NEED(bt_device_upload(g_engine.dev, g_engine.model->tokens, no_ids, sizeof(no_ids)) == BT_OK);
    NEED(g_goldens.n_moe <= MAX_MOE && g_goldens.cfg.moe.gate.top_k <= MAX_TOP_K);
}

static void graphs_have_the_bits_of_calls(void)
{
    history calls, graphs[2];

    open_engine();
    run_steps(&calls, CALLS, 1);
    for (unsigned long i = 0; i < 2; i++) { /* captured on the way; all captured before, and what
                                               runs beside comes as late as it may */
        g_fake_gpu.lazy = i == 1;
        run_steps(&graphs[i], GRAPHS, 3 + i);
        EXPECT(equal(&calls, &graphs[i]));
    }
    g_fake_gpu.lazy = 0;
    EXPECT(calls.ids[0][0] != calls.ids[1][0] || calls.ids[1][0] != calls.ids[4][0]);
    EXPECT(was_graph(&graphs[1]) && !was_graph(&calls));
    EXPECT(g_engine.n_ranks == 1 || calls.n_idle > 0);
    drop(&calls), drop(&graphs[0]), drop(&graphs[1]);
    engine_close(&g_engine);
    EXPECT_EQ(g_fake_gpu.live, 0);
}

static void steps_launched_ahead_have_the_bits_of_others(void)
{
    history one, ahead[2];

    open_engine();
    run_steps(&one, GRAPHS, 1);
    run_ahead(&ahead[0], GRAPHS, 2);
    run_ahead(&ahead[1], CALLS, 3);
    EXPECT(equal(&one, &ahead[0]) && equal(&one, &ahead[1]));
    drop(&one), drop(&ahead[0]), drop(&ahead[1]);
    engine_close(&g_engine);
    EXPECT_EQ(g_fake_gpu.live, 0);
}

/* Behind step `at`, of the tokens that it gave: logits [REQUESTS][vocab]. */
static void draft(const history *h, uint32_t at, uint32_t most, float *logits)
{
    uint32_t rows[MAX_RANKS][BT_N_ROLES] = {{0}};
    uint32_t n                           = own_of(g_engine.self, most), logit_rows[REQUESTS];
    bt_span  spans[REQUESTS];
    bt_step  step = {.n_rows       = n,
                     .tokens       = h->next,
                     .n_spans      = n,
                     .spans        = spans,
                     .n_logit_rows = n,
                     .logit_rows   = logit_rows,
                     .logits       = logits,
                     .wait         = WAIT};

    for (uint32_t i = 0; i < n; i++) {
        spans[i]      = span_of(h, i, h->first + at);
        logit_rows[i] = i;
    }
    for (uint32_t q = 0; q < g_engine.n_ranks; q++)
        rows[q][BT_ROLE_GENERATED] = own_of(q, most);
    step.group_rows.n_ranks = g_engine.n_ranks;
    step.group_rows.n_rows  = (const uint32_t(*)[BT_N_ROLES])rows;
    step.last_rows          = step.group_rows;
    EXPECT_EQ(bt_model_draft(g_engine.model, g_engine.pool, &step), BT_OK);
}

/* Of a model with a layer for multi-token prediction: it goes on from the rows of a graph, whose
 * padding it does not see. */
static void drafts_behind_graphs_have_the_bits_of_others(void)
{
    enum { WAYS = 3, VOCAB = 320 };
    static float     logits[WAYS][STEPS][REQUESTS][VOCAB];
    static const way HOW[WAYS] = {CALLS, GRAPHS, GRAPHS}; /* captured on the way; before */
    history          h[WAYS];

    if (g_goldens.cfg.n_mtp_layers == 0) return;
    NEED(g_goldens.cfg.vocab_size == VOCAB);
    NEED(bt_model_config_serve_mtp(&g_goldens.cfg) == BT_OK);
    open_engine();
    for (int i = 0; i < WAYS; i++) {
        begin(&h[i], 20 + (unsigned long)i);
        for (uint32_t at = 0; at < STEPS; at++) {
            decode(&h[i], HOW[i], at, n_at(at));
            draft(&h[i], at, n_at(at), logits[i][at][0]);
        }
        EXPECT(was_graph(&h[i]) == (HOW[i] == GRAPHS));
        EXPECT(equal(&h[i], &h[0]) && memcmp(logits[i], logits[0], sizeof(logits[0])) == 0);
    }
    EXPECT(logits[0][0][0][0] != logits[0][1][0][0]);
    for (int i = 0; i < WAYS; i++)
        drop(&h[i]);
    engine_close(&g_engine);
    EXPECT_EQ(g_fake_gpu.live, 0);
    g_goldens.cfg.mtp = false;
}

/* A warm model captures nothing more, and takes no memory. */
static void a_warm_model_has_all_graphs(void)
{
    bt_graph_offer offer;
    history        calls, h;
    uint64_t       allocs, n_rows;
    long           live;

    open_engine();
    run_steps(&calls, CALLS, 1);
    n_rows = engine_expert_rows(&g_engine);
    bt_model_warm(g_engine.model, g_engine.pool, &WAIT);
    bt_model_offer_graphs(g_engine.model, &(bt_step){0}, &offer);
    EXPECT(offer.can[0] != 0 && memcmp(offer.has, offer.can, sizeof(offer.can)) == 0);
    live = g_fake_gpu.live;
    bt_model_warm(g_engine.model, g_engine.pool, &WAIT);
    EXPECT_EQ(g_fake_gpu.live, live);
    run_steps(&h, GRAPHS, 9);
    EXPECT(equal(&calls, &h));
    EXPECT_EQ(engine_expert_rows(&g_engine), 2 * n_rows); /* padding goes to no expert */
    live   = g_fake_gpu.live;
    allocs = g_engine.dev->n_allocs;
    for (uint32_t at = 0; at < STEPS; at++)
        decode(&h, GRAPHS, at, 1 + at % REQUESTS);
    EXPECT_EQ(g_fake_gpu.live, live);
    EXPECT_EQ(g_engine.dev->n_allocs, allocs);
    EXPECT(was_graph(&h));
    drop(&calls), drop(&h);
    engine_close(&g_engine);
    EXPECT_EQ(g_fake_gpu.live, 0);
}

static uint32_t parts_offered(const bt_step *step)
{
    bt_graph_offer offer;

    bt_model_offer_graphs(g_engine.model, step, &offer);
    return offer.n_parts;
}

static void offers_are_of_steps_that_a_graph_can_run(void)
{
    static const bt_graph_choice ODD[] = {
        {.n_rows = 2,        .n_parts = 1,        .captures = false}, /* not captured */
        {.n_rows = MAX_ROWS, .n_parts = 1u << 15, .captures = true }, /* nor can be */
        {.n_rows = 1,        .n_parts = 1,        .captures = true }, /* of fewer rows */
    };
    uint32_t       rows[MAX_RANKS][BT_N_ROLES] = {{0}}, tokens[2] = {7, 8};
    bt_graph_offer offer;
    bt_draws       draws  = {0};
    uint16_t       expert = 0;
    history        h;
    bt_span        spans[2];
    bt_step        step = {.n_rows     = 2,
                           .tokens     = tokens,
                           .n_spans    = 2,
                           .spans      = spans,
                           .group_rows = {.n_rows = (const uint32_t(*)[BT_N_ROLES])rows},
                           .draws      = &draws,
                           .wait       = WAIT};

    open_engine();
    step.group_rows.n_ranks = g_engine.n_ranks;
    begin(&h, 1);
    spans[0] = span_of(&h, 0, BT_ATTN_SPLIT_TOKENS - 1);
    spans[1] = span_of(&h, 1, 0);
    EXPECT_EQ(parts_offered(&step), 1);
    spans[0].start++;
    EXPECT_EQ(parts_offered(&step), 2); /* those of the longest */

    step.draws = NULL;
    EXPECT_EQ(parts_offered(&step), 0);
    step.draws  = &draws;
    step.forced = &expert;
    EXPECT_EQ(parts_offered(&step), 0);
    step.forced   = NULL;
    spans[1].role = BT_ROLE_PROMPT;
    EXPECT_EQ(parts_offered(&step), 0);
    spans[1].role = BT_ROLE_GENERATED;
    spans[1].form = BT_FORM_NORMAL;
    EXPECT_EQ(parts_offered(&step), 0);
    spans[1].form   = BT_FORM_ABSORBED;
    spans[1].n_rows = MAX_ROWS;
    EXPECT_EQ(parts_offered(&step), 0);
    spans[1].n_rows = 1;

    bt_model_offer_graphs(g_engine.model, &step, &offer);
    EXPECT(offer.can[1] != 0 && offer.has[1] == 0);
    EXPECT(offer.can[4] < offer.can[1]); /* so many rows of the longest contexts have no room */
    for (size_t i = 0; i < sizeof(ODD) / sizeof(ODD[0]); i++) {
        step.graph = ODD[i];
        for (uint32_t q = 0; q < g_engine.n_ranks; q++)
            rows[q][BT_ROLE_GENERATED] = ODD[i].n_rows;
        EXPECT_EQ(bt_model_launch(g_engine.model, g_engine.pool, &step), BT_ERR_INVALID_ARG);
    }
    drop(&h);
    engine_close(&g_engine);
    EXPECT_EQ(g_fake_gpu.live, 0);
}

/* The last rank finds no memory for a graph in the middle of its steps, as it may once it has more
 * experts: no rank launches that one, or a later one; those that all have are launched again. */
static void a_graph_that_one_rank_has_no_memory_for_is_nobodys(void)
{
    history calls, h;
    size_t  bytes = g_fake_gpu.bytes;

    open_engine();
    run_steps(&calls, CALLS, 1);
    begin(&h, 2);
    for (uint32_t at = 0; at < STEPS; at++) {
        if (is_last() && at == 2) g_fake_gpu.bytes = g_fake_gpu.taken + 4096; /* a new size comes */
        decode(&h, GRAPHS, at, n_at(at));
        if (at == 2) g_fake_gpu.bytes = bytes;
        EXPECT(was_graph(&h) == (at == 1 || at > 3));
    }
    EXPECT(equal(&calls, &h));
    decode(&h, GRAPHS, 2, n_at(2));
    EXPECT(!was_graph(&h));
    decode(&h, GRAPHS, 3, n_at(3));
    EXPECT(!was_graph(&h));
    drop(&calls), drop(&h);
    engine_close(&g_engine);
    EXPECT_EQ(g_fake_gpu.live, 0);
}

/* The last rank's rows can be no graph for a step: then nobody's are. */
static void a_step_that_one_rank_cannot_run_as_a_graph_is_nobodys(void)
{
    history calls, h;

    open_engine();
    run_steps(&calls, CALLS, 1);
    begin(&h, 2);
    for (uint32_t at = 0; at < STEPS; at++) {
        h.wants_experts = at == 4 && is_last();
        decode(&h, GRAPHS, at, n_at(at));
        EXPECT(was_graph(&h) == (at == 1 || at == 5));
    }
    EXPECT(equal(&calls, &h));
    drop(&calls), drop(&h);
    engine_close(&g_engine);
    EXPECT_EQ(g_fake_gpu.live, 0);
}

/* The first rank's contexts have two parts, those of the others one. */
static void ranks_launch_the_graph_of_the_longest_context(void)
{
    history h[2];

    open_engine();
    for (int i = 0; i < 2; i++) {
        if (g_engine.self == 0)
            begin_behind_a_part(&h[i], 1);
        else
            begin(&h[i], 1);
        for (uint32_t at = 0; at < 3; at++)
            decode(&h[i], i == 0 ? CALLS : GRAPHS, at, REQUESTS);
        EXPECT(was_graph(&h[i]) == (i == 1));
    }
    EXPECT(equal(&h[0], &h[1]));
    drop(&h[0]), drop(&h[1]);
    engine_close(&g_engine);
    EXPECT_EQ(g_fake_gpu.live, 0);
}

/* Whatever call fails while the last rank captures graphs: steps run call by call. */
static void what_cannot_be_captured_runs_call_by_call(void)
{
    static const long FAIL_AT[] = {40, 0, 1, 5};
    history           calls, h;

    for (size_t i = 0; i < sizeof(FAIL_AT) / sizeof(FAIL_AT[0]); i++) {
        open_engine();
        if (i == 0) run_steps(&calls, CALLS, 1);
        if (is_last()) g_fake_gpu.fail_at = FAIL_AT[i];
        bt_model_warm(g_engine.model, g_engine.pool, &WAIT);
        EXPECT_EQ(g_fake_gpu.fail_at, -1);
        if (i == 0) {
            run_steps(&h, GRAPHS, 2);
            EXPECT(equal(&calls, &h));
            EXPECT(!was_graph(&h));
            drop(&calls), drop(&h);
        }
        engine_close(&g_engine);
        EXPECT_EQ(g_fake_gpu.live, 0);
    }
}

enum { MANY = 13, ROWS = MANY + 1 }; /* rows of the first request, and of the step */

/* A step in which one request brings MANY rows, as with a draft, and another one. */
static void launch_many(history *h, way how, uint32_t at)
{
    uint32_t      rows[MAX_RANKS][BT_N_ROLES] = {{0}}, tokens[ROWS], logit_rows[ROWS];
    bt_span       spans[2];
    bt_sample_how sample = {.temperature = 0.8f, .seed = 5};
    bt_draws      view;
    bt_step       step = {
              .n_rows  = ROWS,
              .tokens  = tokens,
              .n_spans = 2,
              .spans   = spans,
              .group_rows = {.n_ranks = g_engine.n_ranks, .n_rows = (const uint32_t(*)[BT_N_ROLES])rows},
              .n_logit_rows = ROWS,
              .logit_rows   = logit_rows,
              .sampling     = h->draws.sampling,
              .draws        = &view,
              .wait         = WAIT
    };

    bt_draw_list_clear(&h->draws);
    for (uint32_t i = 0; i < 2; i++)
        spans[i] = (bt_span){.pages     = h->pages[i],
                             .first_row = i * MANY,
                             .n_rows    = i == 0 ? MANY : 1,
                             .start     = i == 0 ? at * MANY : at,
                             .role      = BT_ROLE_GENERATED,
                             .form      = BT_FORM_ABSORBED};
    for (uint32_t row = 0; row < ROWS; row++) {
        tokens[row]     = (at * ROWS + row * row) % g_goldens.cfg.vocab_size;
        logit_rows[row] = row;
        sample.position = at * ROWS + row;
        NEED(bt_draw_list_add(&h->draws, &sample, 0, row, true, 2));
    }
    view = bt_draw_list_view(&h->draws);
    if (how == GRAPHS) step.graph = agree(&step, ROWS);
    for (uint32_t q = 0; q < g_engine.n_ranks; q++)
        rows[q][BT_ROLE_GENERATED] = step.graph.n_rows != 0 ? step.graph.n_rows : ROWS;
    h->n_graphs = g_fake_gpu.n_graphs;
    EXPECT_EQ(bt_model_launch(g_engine.model, g_engine.pool, &step), BT_OK);
    EXPECT_EQ(bt_model_await(g_engine.model, &WAIT), BT_OK);
    h->n_graphs = g_fake_gpu.n_graphs - h->n_graphs;
}

/* Into a second page. */
static void graphs_take_several_rows_of_a_request(void)
{
    static float   logprobs[2][STEPS][ROWS];
    static int32_t ids[2][STEPS][ROWS];
    history        h;

    NEED(STEPS * MANY > BT_PAGE_TOKENS);
    open_engine();
    for (int how = CALLS; how <= GRAPHS; how++) {
        begin(&h, 1 + (unsigned long)how);
        h.pages[0][1] = h.pages[2][0]; /* which has no rows here */
        for (uint32_t at = 0; at < STEPS; at++) {
            const bt_draw_results *out;

            launch_many(&h, (way)how, at);
            EXPECT(was_graph(&h) == (how == GRAPHS && at > 0));
            out = bt_draw_list_view(&h.draws).out;
            memcpy(ids[how][at], out->ids, sizeof(ids[how][at]));
            memcpy(logprobs[how][at], out->logprob, sizeof(logprobs[how][at]));
        }
        drop(&h);
    }
    EXPECT(memcmp(ids[CALLS], ids[GRAPHS], sizeof(ids[CALLS])) == 0);
    EXPECT(memcmp(logprobs[CALLS], logprobs[GRAPHS], sizeof(logprobs[CALLS])) == 0);
    EXPECT(ids[CALLS][1][0] != ids[CALLS][2][0] || ids[CALLS][1][1] != ids[CALLS][2][1]);
    engine_close(&g_engine);
    EXPECT_EQ(g_fake_gpu.live, 0);
}

static void graphs_unwind_at_every_allocation(void)
{
    bt_decode_graphs *graphs = NULL;

    open_engine();
    bt_model_leave_group(g_engine.model);
    EXPECT_EQ(BT_SWEEP(bt_decode_graphs_create(g_engine.model, &graphs),
                       (bt_decode_graphs_destroy(graphs), graphs = NULL)),
              2);
    engine_close(&g_engine);
    EXPECT_EQ(g_fake_gpu.live, 0);
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {
        BT_TEST(graphs_have_the_bits_of_calls),
        BT_TEST(graphs_take_several_rows_of_a_request),
        BT_TEST(a_graph_that_one_rank_has_no_memory_for_is_nobodys),
        BT_TEST(a_step_that_one_rank_cannot_run_as_a_graph_is_nobodys),
        BT_TEST(ranks_launch_the_graph_of_the_longest_context),
        BT_TEST(steps_launched_ahead_have_the_bits_of_others),
        BT_TEST(drafts_behind_graphs_have_the_bits_of_others),
        BT_TEST(a_warm_model_has_all_graphs),
        BT_TEST(offers_are_of_steps_that_a_graph_can_run),
        BT_TEST(what_cannot_be_captured_runs_call_by_call),
        BT_TEST(graphs_unwind_at_every_allocation),
    };

    g_staged = argc > 1 && strcmp(argv[1], "staged") == 0;
    argc -= g_staged;
    argv += g_staged;
    return goldens_main(argc, argv, TESTS, sizeof(TESTS) / sizeof(TESTS[0]), &g_goldens, &g_world);
}

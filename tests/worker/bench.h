/* tests/worker/bench.h - one rank and the orders that it gets, without a cell around it: what it
 * says is kept, its hand-off has no room unless it is given a slot, and a step's logits are all the
 * same, or different. */
#ifndef BT_TESTS_WORKER_BENCH_H
#define BT_TESTS_WORKER_BENCH_H

#include "core/alloc.h"
#include "core/clock.h"
#include "tests/support/test.h"
#include "tests/worker/no_links.h"
#include "worker/worker.h"

enum {
    BENCH_LAYERS  = 2,
    BENCH_DIM     = 4,
    BENCH_VOCAB   = 50,
    BENCH_CONTEXT = 300,
    BENCH_PAGES   = 4,
    BENCH_MAX_UP  = 64
};

/* What a rank stands on here: it only keeps what the rank says. */
typedef struct {
    bt_model_config model;
    bt_device      *dev;
    bt_kv_pool     *pool;
    bt_worker      *worker;
    bt_up           up[BENCH_MAX_UP];
    uint32_t        n_up;
    uint64_t        now;
    bt_status       step_status;
    float           logit;         /* of every id */
    bool            uneven;        /* each logit is another one */
    bool            granted;       /* a message is under way and cannot be withdrawn */
    bool            tells_layers;  /* a step says that its layers are done */
    bool            has_come;      /* its hand-off has brought something since it was asked last */
    bt_bf16        *slot;          /* or NULL: where its hand-off packs each message */
    uint64_t        sent;          /* a bit for each request that it has sent pages of */
    uint32_t        n_quarantined; /* as the last beat says */
    uint64_t        progress;      /* likewise */
    uint64_t        model_ns;      /* likewise */
    uint64_t        counted_ns;    /* likewise: until when */
    uint64_t        layer_ns;      /* how long each layer takes, where they are told */
    bool            waits;         /* within each of these, for other ranks */
    bt_graph_offer  offer;         /* of the rank's model, for every step */
    bt_graph_choice graph;         /* of the last step */
    uint32_t        group_rows;    /* all that one had */
    bt_span         prompt;        /* the last one of a prompt; its pages are gone */
    bool            all_rows;      /* of the last step: its last layer has all of them */
} bench;

static inline uint64_t bench_now(void *ctx) { return ((bench *)ctx)->now; }

static inline bt_status bench_up(void *ctx, bt_up *m)
{
    bench *b = ctx;

    if (m->kind == BT_UP_BEAT) b->n_quarantined = m->u.beat.slots_quarantined;
    if (m->kind == BT_UP_BEAT) b->progress = m->u.beat.progress;
    if (m->kind == BT_UP_BEAT) b->model_ns = m->u.beat.model_ns;
    if (m->kind == BT_UP_BEAT) b->counted_ns = m->u.beat.at_ns;
    if (m->kind == BT_UP_BEAT || b->n_up == BENCH_MAX_UP)
        bt_up_free(m);
    else
        b->up[b->n_up++] = *m;
    return BT_OK;
}

static inline bool bench_cancel(void *ctx, uint64_t request)
{
    return request != 0 && !((bench *)ctx)->granted;
}

static inline void *bench_stage(void *ctx) { return ((bench *)ctx)->slot; }

static inline bt_page_payload bench_slot(void *ctx, void *slot, const bt_page_message *m)
{
    (void)ctx;
    return (bt_page_payload){.rows = slot, .tail = (char *)slot + m->payload_bytes - m->tail_bytes};
}

static inline void bench_send(void *ctx, uint32_t to, const bt_page_message *m, void *slot)
{
    (void)to, (void)slot;
    ((bench *)ctx)->sent |= (uint64_t)1 << m->request;
}

static inline bool bench_poll(void *ctx)
{
    bench *b     = ctx;
    bool   moved = b->has_come;

    b->has_come = false;
    return moved;
}

static inline void bench_offer_graphs(void *ctx, const bt_step *step, bt_graph_offer *offer_out)
{
    (void)step;
    *offer_out = ((bench *)ctx)->offer;
}

static inline bt_status bench_launch(void *ctx, bt_step *step)
{
    bench *b = ctx;

    b->graph    = step->graph;
    b->all_rows = step->last_rows.n_rows == NULL;
    for (uint32_t i = 0; i < step->n_spans; i++)
        if (step->spans[i].role == BT_ROLE_PROMPT) b->prompt = step->spans[i];
    b->group_rows = 0;
    for (uint32_t i = 0; i < step->group_rows.n_ranks; i++)
        b->group_rows += step->group_rows.n_rows[i][BT_ROLE_GENERATED];
    for (uint32_t i = 0; i < step->n_logit_rows * BENCH_VOCAB; i++)
        step->logits[i] = b->uneven ? (float)(i * 2654435761u >> 16) * 0x1p-14f : b->logit;
    for (uint32_t layer = 0; b->tells_layers && layer < BENCH_LAYERS; layer++) {
        b->now += b->layer_ns;
        if (b->waits) bt_worker_background(b->worker);
        step->layer_done(step->ctx, layer);
    }
    return b->step_status;
}

static inline bt_worker_config bench_config(bench *b, uint32_t rank, uint32_t n_prefill,
                                            uint32_t n_decode)
{
    bt_worker_links links = no_links(b);

    links.now_ns       = bench_now;
    links.up           = bench_up;
    links.cancel       = bench_cancel;
    links.stage        = bench_stage;
    links.slot         = bench_slot;
    links.send         = bench_send;
    links.poll         = bench_poll;
    links.launch       = bench_launch;
    links.offer_graphs = bench_offer_graphs;

    return (bt_worker_config){
        .facts      = {.rank      = rank,
                       .n_ranks   = n_prefill == 0 ? 1 : n_prefill + n_decode,
                       .n_prefill = n_prefill,
                       .n_decode  = n_decode,
                       .model     = &b->model,
                       .n_pages   = BENCH_PAGES},
        .dev        = b->dev,
        .pool       = b->pool,
        .kernels    = bt_cpu_kernels_find("scalar"),
        .links      = links,
        .group_size = 1,
        .epoch      = 1,
        .chunk      = 16,
        .max_rows   = 32,
        .timeout_ns = 10 * BT_NS_PER_S,
        .wake_ns    = 10 * BT_NS_PER_S
    };
}

static inline void bench_set_up(bench *b, uint32_t rank, uint32_t n_prefill, uint32_t n_decode)
{
    bt_device_cpu_options cpu  = {.n_threads = 2, .kernels = "scalar"};
    bt_kv_pool_config     pool = {
            .n_layers = BENCH_LAYERS, .n_pages = BENCH_PAGES, .kv_dim = BENCH_DIM};
    bt_worker_config cfg;

    *b       = (bench){.now = BT_NS_PER_S};
    b->model = (bt_model_config){
        .vocab_size = BENCH_VOCAB, .n_layers = BENCH_LAYERS, .max_context = BENCH_CONTEXT};
    b->model.moe.gate.n_experts = 8;
    b->model.moe.gate.top_k     = 2;
    b->model.moe_layer_freq     = 1;
    EXPECT_EQ(bt_device_cpu_create(&cpu, &b->dev), BT_OK);
    EXPECT_EQ(bt_kv_pool_create(b->dev, &pool, &b->pool), BT_OK);
    cfg = bench_config(b, rank, n_prefill, n_decode);
    EXPECT_EQ(bt_worker_create(&cfg, &b->worker), BT_OK);
}

/* In place of what bench_set_up() has made. */
static inline void bench_make_anew(bench *b, const bt_worker_config *cfg)
{
    bt_worker_destroy(b->worker);
    EXPECT_EQ(bt_worker_create(cfg, &b->worker), BT_OK);
}

/* What it has said. */
static inline void bench_forget(bench *b)
{
    while (b->n_up > 0)
        bt_up_free(&b->up[--b->n_up]);
}

/* All pages must be free again, or cached. */
static inline void bench_tear_down(bench *b)
{
    bench_forget(b);
    bt_worker_destroy(b->worker);
    EXPECT_EQ(bt_kv_pool_check(b->pool), BT_OK);
    EXPECT_EQ(bt_kv_pool_n_free(b->pool) + bt_kv_pool_n_cached(b->pool), BENCH_PAGES);
    bt_kv_pool_destroy(b->pool);
    bt_device_destroy(b->dev);
}

/* Gives it to the rank and frees it. */
static inline void bench_order(bench *b, bt_down *m)
{
    EXPECT_EQ(bt_worker_control(b->worker, m), BT_OK);
    bt_down_free(m);
}

/* Wakes the rank for its first step, and runs that. */
static inline bt_status bench_run_step(bench *b)
{
    bt_down m = {.kind = BT_DOWN_WAKE, .u.wake = {1}};
    bt_plan plan;
    bt_next next;
    bool    leave = true;

    bench_order(b, &m);
    EXPECT_EQ(bt_worker_begin(b->worker, &plan, &next), BT_OK);
    EXPECT_EQ(next, BT_NEXT_GATHER);
    return bt_worker_finish(b->worker, &plan, &leave);
}

/* Those from `first` on, for a message that owns them. */
static inline uint32_t *bench_ids(uint32_t n, uint32_t first)
{
    uint32_t *ids = bt_calloc(n, sizeof(*ids));

    for (uint32_t i = 0; i < n; i++)
        ids[i] = first + i;
    return ids;
}

/* Orders of epoch 3. */
static inline bt_down bench_reserve(uint64_t id, uint32_t n_prompt, uint32_t max_tokens)
{
    bt_down m = {.kind = BT_DOWN_RESERVE};

    m.u.reserve.request             = id;
    m.u.reserve.epoch               = 3;
    m.u.reserve.n_prompt            = n_prompt;
    m.u.reserve.sampling.max_tokens = max_tokens;
    return m;
}

static inline bt_down bench_prefill(uint64_t id, uint32_t n_prompt, uint32_t n_pages,
                                    uint32_t decode_rank)
{
    bt_down m = {.kind = BT_DOWN_PREFILL};

    m.u.prefill.request             = id;
    m.u.prefill.epoch               = 3;
    m.u.prefill.n_prompt            = n_prompt;
    m.u.prefill.prompt              = bt_calloc(n_prompt, sizeof(uint32_t));
    m.u.prefill.n_pages             = n_pages;
    m.u.prefill.pages               = bt_calloc(n_pages, sizeof(bt_page_ref));
    m.u.prefill.decode_rank         = decode_rank;
    m.u.prefill.sampling.max_tokens = 5;
    return m;
}

/* It has said one Failed, which is then forgotten. */
static inline void bench_expect_failed(bench *b, uint32_t code, const char *says)
{
    EXPECT_EQ(b->n_up, 1);
    if (b->n_up != 1) return;
    EXPECT_EQ(b->up[0].kind, BT_UP_FAILED);
    EXPECT_EQ(b->up[0].u.failed.code, code);
    EXPECT_EQ(b->up[0].u.failed.epoch, 3);
    EXPECT_HAS(b->up[0].u.failed.message, says);
    bench_forget(b);
}

/* Reserves for a request of a rank of both roles, sampled without lists, and orders its prompt. */
static inline void bench_order_both(bench *b, bt_down m)
{
    const bt_up *said     = &b->up[0];
    bt_sampling  sampling = m.u.reserve.sampling;
    uint64_t     id       = m.u.reserve.request;
    uint32_t     n_prompt = m.u.reserve.n_prompt;

    bench_order(b, &m);
    m                    = bench_prefill(id, n_prompt, said->u.ticket.n_pages, 0);
    m.u.prefill.sampling = sampling;
    memcpy(m.u.prefill.pages, said->u.ticket.pages, m.u.prefill.n_pages * sizeof(bt_page_ref));
    bench_order(b, &m);
    bench_forget(b);
}

/* Runs the one request of a rank of both roles, of 10 tokens, through its prompt. */
static inline bt_status bench_run_prompt(bench *b, bt_down m)
{
    bench_order_both(b, m);
    return bench_run_step(b);
}

/* It has said one Failed, and that it has let go; likewise. */
static inline void bench_expect_failed_and_gone(bench *b, uint32_t code, const char *says)
{
    NEED(b->n_up == 2);
    EXPECT_EQ(b->up[1].kind, BT_UP_RELEASED);
    bt_up_free(&b->up[--b->n_up]);
    bench_expect_failed(b, code, says);
}

#endif

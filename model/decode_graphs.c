#include "model/decode_graphs.h"

#include <string.h>

#include "core/alloc.h"
#include "core/minmax.h"
#include "model/state.h"
#include "parallel/carrier.h"

struct bt_decode_graphs {
    bt_model      *model; /* borrowed */
    bt_group      *group; /* borrowed: the one that they are of */
    uint32_t       n_sizes, n_classes, n_stretches;
    bt_graph     **graphs; /* owned: [n_classes][n_sizes][n_stretches]; NULL: not captured yet */
    bt_graph_offer offer;  /* what is there, and what can be */
    uint64_t       n_steps;
};

static uint32_t count_sizes(uint32_t max_rows)
{
    uint32_t n = 0;

    while (n < BT_GRAPH_SIZES && 1u << n <= max_rows)
        n++;
    return n;
}

static uint32_t count_classes(const bt_model_config *cfg)
{
    return bt_min_u32(bt_log2_up(bt_attn_parts(cfg->max_context)) + 1, BT_GRAPH_CLASSES);
}

/* A layer's launches, and what each keeps: arguments of at most 4.3 KiB, and the driver's own. */
enum { NODES_A_LAYER = 32, NODE_BYTES = 5 << 10 };

uint64_t bt_model_graph_bytes(const bt_device *dev, const bt_model_config *cfg, uint32_t max_rows)
{
    uint64_t n = (uint64_t)count_sizes(max_rows) * count_classes(cfg);

    return dev->ops->graphs == NULL ? 0 : n * (cfg->n_layers + 1) * NODES_A_LAYER * NODE_BYTES;
}

/* ---- life */

/* Launches may still be under way. */
static void drop(bt_decode_graphs *g, bt_graph **graphs, size_t n)
{
    bt_device *dev = g->model->dev;

    (void)dev->ops->graphs->end(dev, NULL);
    for (size_t i = 0; i < n; i++) {
        dev->ops->graphs->destroy(dev, graphs[i]);
        graphs[i] = NULL;
    }
}

static void drop_all(void *ctx)
{
    bt_decode_graphs *g = ctx;

    if (g->graphs != NULL) drop(g, g->graphs, (size_t)g->n_classes * g->n_sizes * g->n_stretches);
    memset(g->offer.has, 0, sizeof(g->offer.has));
}

/* Workspaces bound the rows of long contexts. */
static void mark_possible(bt_decode_graphs *g)
{
    for (uint32_t size = 0; size < g->n_sizes; size++)
        for (uint32_t class = 0; class < g->n_classes; class ++) {
            bt_attn_fixed fixed = {1u << size, 1u << class};

            if (bt_mla_fits_fixed(g->model->mla, &fixed, 0, NULL))
                g->offer.can[size] |= (uint16_t)(1u << class);
        }
}

bt_status bt_decode_graphs_create(bt_model *model, bt_decode_graphs **graphs_out)
{
    bt_status              st  = BT_OK;
    const bt_model_config *cfg = model->cfg;
    bt_decode_graphs      *g   = NULL;

    if (model->dev->ops->graphs == NULL || model->w.layers[0].mla.ukt == NULL) goto out;
    g = bt_calloc(1, sizeof(*g));
    BT_REQUIRE(g != NULL, BT_ERR_NO_MEMORY, "graphs");
    g->model       = model;
    g->group       = model->group;
    g->n_stretches = 1;
    if (!bt_group_captures(model->group)) g->n_stretches += 2 * bt_model_n_moe_layers(cfg);
    g->n_sizes   = count_sizes(model->max_rows);
    g->n_classes = count_classes(cfg);
    g->graphs = bt_calloc((size_t)g->n_classes * g->n_sizes * g->n_stretches, sizeof(bt_graph *));
    BT_REQUIRE(g->graphs != NULL, BT_ERR_NO_MEMORY, "a table of graphs");
    mark_possible(g);
    bt_group_watch_end(g->group, drop_all, g);
    *graphs_out = g;
    g           = NULL; /* handed over */
out:
    bt_decode_graphs_destroy(g);
    return st;
}

void bt_decode_graphs_destroy(bt_decode_graphs *g)
{
    if (g == NULL) return;
    if (g->n_steps > 0)
        BT_INFO("%llu decode steps of epoch %u were launched as graphs",
                (unsigned long long)g->n_steps, bt_group_epoch(g->group));
    bt_group_watch_end(g->group, NULL, NULL);
    drop_all(g);
    bt_free(g->graphs);
    bt_free(g);
}

/* ---- a walk over the step: captures it, or launches what has been captured */

typedef struct {
    bt_model     *model;
    bt_kv_pool   *pool;
    bt_wait       wait;
    bt_attn_fixed fixed;
    bt_step_rows  rows;
    bt_graph    **graphs; /* [n_stretches] of this size and class */
    uint32_t      stretch;
    bool          cut;      /* at exchanges */
    bool          captures; /* and runs nothing */
} walk;

static bt_status open_stretch(walk *w)
{
    bt_device *dev = w->model->dev;

    return w->captures ? dev->ops->graphs->begin(dev) : BT_OK;
}

static bt_status close_stretch(walk *w)
{
    bt_device *dev   = w->model->dev;
    bt_graph **graph = &w->graphs[w->stretch++];

    return w->captures ? dev->ops->graphs->end(dev, graph) : dev->ops->graphs->launch(dev, *graph);
}

static bt_status attend(walk *w, uint32_t layer)
{
    bt_model               *m  = w->model;
    const bt_layer_weights *lw = &m->w.layers[layer];
    uint32_t                n  = w->fixed.n_rows;
    bt_status               st = BT_OK;

    BT_TRY(bt_mla_forward_fixed(m->mla, &lw->mla, w->pool, layer, &w->fixed, m->normed, m->out));
    BT_TRY(bt_model_add_norm(m, n, m->out, m->h, lw->post_norm));
out:
    return st;
}

/* Until a capture has taken an exchange: nothing else may be enqueued meanwhile. */
static bt_wait capture_wait(const walk *w)
{
    bt_wait wait = w->wait;

    wait.idle = NULL;
    return wait;
}

/* Rows to all ranks; where the graph is cut, the shared expert beside it. */
static bt_status dispatch(walk *w, const bt_moe_weights *mw)
{
    bt_model *m     = w->model;
    bt_status st    = BT_OK;
    bt_wait   taken = capture_wait(w);

    if (w->cut) {
        BT_TRY(close_stretch(w));
        if (!w->captures) BT_TRY(bt_moe_shared(m->moe, mw, &w->rows, m->normed));
        if (!w->captures) BT_TRY(bt_moe_dispatch(m->moe, &w->wait));
        BT_TRY(open_stretch(w));
    } else if (w->captures) {
        BT_TRY(bt_moe_dispatch(m->moe, &taken));
    }
out:
    return st;
}

static bt_status give_back(walk *w)
{
    bt_model *m     = w->model;
    bt_status st    = BT_OK;
    bt_wait   taken = capture_wait(w);

    if (w->cut) {
        BT_TRY(close_stretch(w));
        if (!w->captures) BT_TRY(bt_moe_return(m->moe, &w->wait));
        if (!w->captures) BT_TRY(bt_moe_await_shared(m->moe));
        BT_TRY(open_stretch(w));
    } else if (w->captures) {
        BT_TRY(bt_moe_return(m->moe, &taken));
        BT_TRY(bt_moe_await_shared(m->moe));
    }
out:
    return st;
}

static bt_status walk_layer(walk *w, uint32_t layer)
{
    bt_model               *m   = w->model;
    const bt_layer_weights *lw  = &m->w.layers[layer];
    uint32_t                n[] = {[BT_ROLE_PROMPT] = 0, [BT_ROLE_GENERATED] = w->fixed.n_rows};
    bt_status               st  = BT_OK;

    w->wait.layer = (int32_t)layer;
    if (w->captures) BT_TRY(attend(w, layer));
    if (bt_model_layer_is_moe(m->cfg, layer)) {
        /* the gate's product, of few columns, leaves most of a GPU to the shared expert */
        if (w->captures && !w->cut) BT_TRY(bt_moe_shared(m->moe, &lw->moe, &w->rows, m->normed));
        if (w->captures) BT_TRY(bt_moe_gate(m->moe, &lw->moe, &w->rows, m->normed, NULL));
        BT_TRY(dispatch(w, &lw->moe));
        if (w->captures) BT_TRY(bt_moe_experts(m->moe, &lw->moe));
        BT_TRY(give_back(w));
        if (w->captures) BT_TRY(bt_moe_join(m->moe, m->out));
    } else if (w->captures) {
        BT_TRY(bt_model_dense(m, lw, n));
    }
    if (w->captures) BT_TRY(bt_model_end_layer(m, layer, w->fixed.n_rows, m->h));
out:
    return st;
}

static bt_status embed(const walk *w)
{
    const bt_model *m = w->model;

    return bt_device_gather_rows_by(m->dev, w->fixed.n_rows, m->cfg->hidden, m->w.embedding,
                                    m->tokens, m->h);
}

static bt_status head(const walk *w)
{
    bt_model *m    = w->model;
    bt_gemm   gemm = {.w       = m->w.lm_head,
                      .x       = m->normed,
                      .ld_x    = m->cfg->hidden,
                      .y       = m->logits,
                      .ld_y    = m->cfg->vocab_size,
                      .m       = w->fixed.n_rows,
                      .y_dtype = BT_F32};

    return bt_device_gemm(m->dev, BT_ROLE_GENERATED, 1, &gemm);
}

static bt_status walk_all(walk *w)
{
    bt_status st = BT_OK;

    if (w->model->moe != NULL) BT_TRY(bt_moe_begin(w->model->moe, &w->rows));
    BT_TRY(open_stretch(w));
    if (w->captures) BT_TRY(embed(w));
    if (w->captures) BT_TRY(bt_model_norm_first(w->model, 0, w->fixed.n_rows));
    for (uint32_t layer = 0; layer < w->model->cfg->n_layers; layer++)
        BT_TRY(walk_layer(w, layer));
    if (w->captures) BT_TRY(head(w));
    BT_TRY(close_stretch(w));
out:
    return st;
}

/* ---- steps */

static uint32_t parts_of(const bt_step *step)
{
    uint32_t parts = 1;

    for (uint32_t i = 0; i < step->n_spans; i++)
        parts = bt_max_u32(parts, bt_attn_parts(step->spans[i].start + step->spans[i].n_rows));
    return parts;
}

/* Generated rows in the absorbed form, whose tokens the device chooses. */
static bool takes(const bt_decode_graphs *g, const bt_step *step)
{
    bt_attn_fixed fixed = {.n_rows = 1u << (g->n_sizes - 1), .n_parts = 1};

    if (step->draws == NULL || step->forced != NULL || step->chosen != NULL) return false;
    for (uint32_t i = 0; i < step->n_spans; i++)
        if (step->spans[i].role != BT_ROLE_GENERATED || step->spans[i].form != BT_FORM_ABSORBED)
            return false;
    return bt_mla_fits_fixed(g->model->mla, &fixed, step->n_spans, step->spans);
}

void bt_decode_graphs_offer(const bt_decode_graphs *g, const bt_step *step,
                            bt_graph_offer *offer_out)
{
    *offer_out         = g->offer;
    offer_out->n_parts = takes(g, step) ? parts_of(step) : 0;
}

static bt_attn_fixed fixed_of(const bt_step *step)
{
    return (bt_attn_fixed){step->graph.n_rows, step->graph.n_parts};
}

bool bt_decode_graphs_allow(const bt_decode_graphs *g, const bt_graph_choice *graph)
{
    const uint16_t *of_size = graph->captures ? g->offer.can : g->offer.has;

    return of_size[bt_log2_up(graph->n_rows)] & graph->n_parts;
}

static walk walk_of(bt_decode_graphs *g, bt_kv_pool *pool, const bt_attn_fixed *fixed,
                    const bt_step_rows *rows, const bt_wait *wait)
{
    size_t at = (size_t)bt_log2_up(fixed->n_parts) * g->n_sizes + bt_log2_up(fixed->n_rows);

    return (walk){.model  = g->model,
                  .pool   = pool,
                  .wait   = *wait,
                  .fixed  = *fixed,
                  .rows   = *rows,
                  .graphs = g->graphs + at * g->n_stretches,
                  .cut    = g->n_stretches > 1};
}

/* Unless it is there. */
static bt_status capture(bt_decode_graphs *g, bt_kv_pool *pool, const bt_attn_fixed *fixed,
                         const bt_step_rows *rows, const bt_wait *wait)
{
    bt_status st  = BT_OK;
    walk      w   = walk_of(g, pool, fixed, rows, wait);
    uint16_t *has = &g->offer.has[bt_log2_up(fixed->n_rows)];

    if (*has & fixed->n_parts) goto out;
    w.captures = true;
    BT_TRY(walk_all(&w));
    *has |= (uint16_t)fixed->n_parts;
out:
    if (st != BT_OK) drop(g, w.graphs, g->n_stretches);
    return st;
}

/* After a capture that has failed no other one is tried, so that what all ranks have was captured
 * by all in the same order.  An error only where the group's exchanges have failed. */
static bt_status or_give_up(bt_decode_graphs *g, bt_status st)
{
    if (st == BT_OK || bt_group_is_broken(g->group)) return st;
    memcpy(g->offer.can, g->offer.has, sizeof(g->offer.can));
    BT_WARN("a graph of decode steps cannot be captured: all ranks of the group run such steps, "
            "and others that are no graph yet, call by call");
    return BT_OK;
}

bt_status bt_decode_graphs_capture(bt_decode_graphs *g, bt_kv_pool *pool, const bt_step *step)
{
    bt_attn_fixed fixed = fixed_of(step);

    return or_give_up(g, capture(g, pool, &fixed, &step->group_rows, &step->wait));
}

bt_status bt_decode_graphs_run(bt_decode_graphs *g, bt_kv_pool *pool, const bt_step *step)
{
    bt_status     st    = BT_OK;
    bt_model     *m     = g->model;
    bt_attn_fixed fixed = fixed_of(step);
    walk          w     = walk_of(g, pool, &fixed, &step->group_rows, &step->wait);

    BT_TRY(bt_model_send_tokens(m, step, step->graph.n_rows));
    BT_TRY(bt_mla_send_fixed(m->mla, &w.fixed, step->n_spans, step->spans));
    BT_TRY(walk_all(&w));
    g->n_steps++;
    if (step->layer_done != NULL) step->layer_done(step->ctx, m->cfg->n_layers - 1);
out:
    return st;
}

static void tell_warm(const bt_decode_graphs *g, uint64_t before, uint64_t after)
{
    const bt_model *m     = g->model;
    uint64_t        taken = before > after ? before - after : 0;
    uint64_t        most  = bt_model_graph_bytes(m->dev, m->cfg, m->max_rows);
    uint32_t        n     = 0;

    for (size_t i = 0; i < (size_t)g->n_classes * g->n_sizes * g->n_stretches; i++)
        n += g->graphs[i] != NULL;
    BT_INFO("%u graphs of decode steps for up to %u rows%s: %.1f MiB of the GPU", n,
            1u << (g->n_sizes - 1),
            bt_group_size(g->group) == 1 ? ""
            : g->n_stretches > 1         ? ", cut at exchanges, which go through host memory"
                                         : ", with their exchanges",
            (double)taken / (1 << 20));
    if (taken > most)
        BT_WARN("graphs of decode steps take more than the %.1f MiB that were reckoned with: "
                "--kv-bytes can leave more room",
                (double)most / (1 << 20));
}

void bt_decode_graphs_warm(bt_decode_graphs *g, bt_kv_pool *pool, const bt_wait *wait)
{
    bt_status    st     = BT_OK;
    uint64_t     before = 0, after = 0, all = 0;
    bt_step_rows group          = {.n_ranks = bt_group_size(g->group), .live = g->model->live};
    uint32_t(*rows)[BT_N_ROLES] = bt_calloc(group.n_ranks, sizeof(*rows));

    BT_REQUIRE(rows != NULL, BT_ERR_NO_MEMORY, "rows of %u ranks", group.n_ranks);
    group.n_rows = (const uint32_t(*)[BT_N_ROLES])rows;
    BT_TRY(bt_device_memory(g->model->dev, &before, &all));
    for (uint32_t class = 0; class < g->n_classes; class ++)
        for (uint32_t size = 0; size < g->n_sizes; size++) {
            bt_attn_fixed fixed = {1u << size, 1u << class};

            for (uint32_t q = 0; q < group.n_ranks; q++)
                rows[q][BT_ROLE_GENERATED] = fixed.n_rows;
            if (g->offer.can[size] & fixed.n_parts) BT_TRY(capture(g, pool, &fixed, &group, wait));
        }
    BT_TRY(bt_device_memory(g->model->dev, &after, &all));
    tell_warm(g, before, after);
out:
    bt_free(rows);
    (void)or_give_up(g, st);
}

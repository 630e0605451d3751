#include "attention/mla.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "attention/ops.h"
#include "attention/rope.h"
#include "core/alloc.h"

enum {
    MAX_DIM = 16384, /* keeps products of two dimensions within 32 bits */
    /* Halves of a step. */
    LATENTS = 1,
    QUERIES = 2,
    CHOICES = 4, /* with queries: some rows do not attend to all positions */

    ROPE_STEP = 4 * BT_ROPE_RUN
};

struct bt_mla {
    bt_device    *dev; /* borrowed */
    bt_mla_config cfg;
    uint32_t      max_rows;
    size_t        bytes;             /* of the row matrices and the rope table */
    uint32_t      q_dim;             /* n_heads (nope + rope) */
    uint32_t      kv_dim, index_dim; /* kv_lora + rope; index_heads index_dim */
    bt_attn      *attn;              /* owned */
    double       *inv_freq;          /* owned: [qk_rope_dim / 2] */
    float        *rope;              /* owned, device: the table of ops.h, of which ... */
    uint32_t      n_turns;           /* ... so many positions are there */
    bt_bf16      *q_a;               /* owned, device: [max_rows, q_lora_rank], or NULL without */
    bt_bf16      *q;                 /* owned, device: [max_rows, q_dim] */
    bt_bf16      *kv;                /* owned, device: [max_rows, kv_dim] */
    bt_bf16      *heads;             /* owned, device: [max_rows, n_heads v_dim] */

    /* Of sparse attention, else NULL. */
    bt_bf16 *index_q; /* owned, device: [max_rows, index_dim] */
    bt_bf16 *index_k; /* owned, device: [max_rows, cfg.index_dim] */
    float   *index_w; /* owned, device: [max_rows, index_heads] */
    bt_span *cut;     /* owned: [2 max_rows] */
};

const bt_attn_ops *bt_attn_find(const bt_device *dev)
{
    if (strcmp(bt_attn_cpu_ops.device, dev->ops->name) == 0) return &bt_attn_cpu_ops;
    return bt_device_symbol(dev, BT_ATTN_MODULE_SYMBOL);
}

static bt_status alloc_rows(bt_mla *mla, size_t width, bt_bf16 **rows_out)
{
    return bt_device_alloc_array(mla->dev, width * mla->max_rows, sizeof(**rows_out), &mla->bytes,
                                 rows_out);
}

/* Goes on with the table, as far as `end`. */
static void fill_rope(bt_mla *mla, uint32_t end, float *table)
{
    const bt_mla_config *cfg   = &mla->cfg;
    size_t               turns = (size_t)cfg->max_context * cfg->qk_rope_dim;

    bt_rope_fill(mla->n_turns, end, cfg->qk_rope_dim / 2, mla->inv_freq, cfg->rope_magnitude,
                 table);
    if (cfg->query_beta != 0)
        bt_query_factors_fill(mla->n_turns, end, cfg->query_beta, cfg->query_context,
                              table + turns);
    mla->n_turns = end;
}

/* A table in host memory grows with the positions that steps reach: few ranks see the end of the
 * context, and to fill it took the most of a small model's start. Another device has all of it from
 * here on. */
static bt_status create_rope(bt_mla *mla)
{
    bt_status            st      = BT_OK;
    const bt_mla_config *cfg     = &mla->cfg;
    uint32_t             n_pairs = cfg->qk_rope_dim / 2;
    uint32_t             width   = cfg->qk_rope_dim + (cfg->query_beta != 0 ? 1 : 0);
    size_t               elems   = (size_t)cfg->max_context * width;
    float               *host    = NULL;

    BT_TRY(bt_rope_check(cfg->max_context, n_pairs, cfg->rope_inv_freq, cfg->rope_magnitude));
    mla->inv_freq = bt_copy(cfg->rope_inv_freq, n_pairs, sizeof(*mla->inv_freq));
    BT_REQUIRE(mla->inv_freq != NULL, BT_ERR_NO_MEMORY, "%u rope frequencies", n_pairs);
    BT_TRY(bt_device_alloc_array(mla->dev, elems, sizeof(*host), &mla->bytes, &mla->rope));
    if (mla->dev->host_memory) goto out;
    host = bt_calloc(elems, sizeof(*host));
    BT_REQUIRE(host != NULL, BT_ERR_NO_MEMORY, "rope table of %u positions", cfg->max_context);
    fill_rope(mla, cfg->max_context, host);
    BT_TRY(bt_device_upload(mla->dev, mla->rope, host, elems * sizeof(*host)));
    BT_TRY(bt_device_sync(mla->dev));
out:
    bt_free(host);
    return st;
}

static bt_status check_config(const bt_mla_config *cfg, uint32_t max_rows)
{
    bt_status st = BT_OK;

    BT_REQUIRE(cfg->hidden && cfg->n_heads && cfg->kv_lora_rank && cfg->qk_nope_dim &&
                   cfg->qk_rope_dim && cfg->v_dim && cfg->max_context && max_rows,
               BT_ERR_INVALID_ARG,
               "attention dimensions must be above 0: hidden %u, heads %u, kv_lora_rank %u, "
               "qk_nope_dim %u, qk_rope_dim %u, v_dim %u, context %u, rows %u",
               cfg->hidden, cfg->n_heads, cfg->kv_lora_rank, cfg->qk_nope_dim, cfg->qk_rope_dim,
               cfg->v_dim, cfg->max_context, max_rows);
    BT_REQUIRE(cfg->n_heads <= MAX_DIM && cfg->q_lora_rank <= MAX_DIM &&
                   cfg->kv_lora_rank <= MAX_DIM && cfg->qk_nope_dim <= MAX_DIM &&
                   cfg->qk_rope_dim <= MAX_DIM && cfg->v_dim <= MAX_DIM,
               BT_ERR_INVALID_ARG,
               "attention dimensions must be at most %d: heads %u, q_lora_rank %u, kv_lora_rank "
               "%u, qk_nope_dim %u, qk_rope_dim %u, v_dim %u",
               (int)MAX_DIM, cfg->n_heads, cfg->q_lora_rank, cfg->kv_lora_rank, cfg->qk_nope_dim,
               cfg->qk_rope_dim, cfg->v_dim);
    BT_REQUIRE(cfg->qk_rope_dim % 2 == 0, BT_ERR_INVALID_ARG,
               "qk_rope_dim is %u: expected an even number", cfg->qk_rope_dim);
    BT_REQUIRE(cfg->softmax_scale > 0 && isfinite(cfg->softmax_scale), BT_ERR_INVALID_ARG,
               "softmax scale is %g: expected a finite number above 0", (double)cfg->softmax_scale);
out:
    return st;
}

static bt_status check_query_factors(const bt_mla_config *cfg)
{
    bt_status st = BT_OK;

    BT_REQUIRE(cfg->query_beta == 0 ||
                   (cfg->query_beta > 0 && isfinite(cfg->query_beta) && cfg->query_context != 0),
               BT_ERR_INVALID_ARG,
               "query factors of beta %g over %u positions: expected 0 or a finite number above 0, "
               "and a position or more",
               cfg->query_beta, cfg->query_context);
out:
    return st;
}

static bt_status check_index(const bt_mla_config *cfg)
{
    bt_status st = BT_OK;

    if (cfg->index_topk == 0) goto out;
    BT_REQUIRE(cfg->index_heads != 0 && cfg->index_heads <= MAX_DIM &&
                   cfg->index_dim >= cfg->qk_rope_dim && cfg->index_dim <= BT_INDEX_MAX_DIM &&
                   cfg->q_lora_rank != 0,
               BT_ERR_INVALID_ARG,
               "sparse attention of %u heads of %u elements: expected 1 to %d heads of %u to %d, "
               "and a q_lora_rank (%u)",
               cfg->index_heads, cfg->index_dim, (int)MAX_DIM, cfg->qk_rope_dim,
               (int)BT_INDEX_MAX_DIM, cfg->q_lora_rank);
out:
    return st;
}

static bt_status create_index(bt_mla *mla)
{
    bt_status            st  = BT_OK;
    const bt_mla_config *cfg = &mla->cfg;

    if (cfg->index_topk == 0) goto out;
    BT_TRY(alloc_rows(mla, cfg->index_dim, &mla->index_k));
    if (!bt_mla_chooses(cfg)) goto out;
    BT_TRY(alloc_rows(mla, mla->index_dim, &mla->index_q));
    BT_TRY(bt_device_alloc_array(mla->dev, (size_t)cfg->index_heads * mla->max_rows,
                                 sizeof(*mla->index_w), &mla->bytes, &mla->index_w));
    mla->cut = bt_calloc(2 * (size_t)mla->max_rows, sizeof(*mla->cut));
    BT_REQUIRE(mla->cut != NULL, BT_ERR_NO_MEMORY, "spans of %u rows", mla->max_rows);
out:
    return st;
}

bt_status bt_mla_create(bt_device *dev, const bt_mla_config *cfg, uint32_t max_rows,
                        bt_mla **mla_out)
{
    bt_status          st  = BT_OK;
    bt_mla            *mla = NULL;
    const bt_attn_ops *ops = bt_attn_find(dev);

    BT_REQUIRE(ops != NULL, BT_ERR_UNSUPPORTED, "no attention for device \"%s\"", dev->ops->name);
    BT_TRY(check_config(cfg, max_rows));
    BT_TRY(check_query_factors(cfg));
    BT_TRY(check_index(cfg));

    mla = bt_calloc(1, sizeof(*mla));
    BT_REQUIRE(mla != NULL, BT_ERR_NO_MEMORY, "attention header");
    mla->dev       = dev;
    mla->cfg       = *cfg;
    mla->max_rows  = max_rows;
    mla->q_dim     = cfg->n_heads * (cfg->qk_nope_dim + cfg->qk_rope_dim);
    mla->kv_dim    = cfg->kv_lora_rank + cfg->qk_rope_dim;
    mla->index_dim = cfg->index_heads * cfg->index_dim;

    BT_TRY(create_rope(mla));
    mla->cfg.rope_inv_freq = NULL; /* was borrowed during this call only */
    if (cfg->q_lora_rank != 0) BT_TRY(alloc_rows(mla, cfg->q_lora_rank, &mla->q_a));
    BT_TRY(alloc_rows(mla, mla->q_dim, &mla->q));
    BT_TRY(alloc_rows(mla, mla->kv_dim, &mla->kv));
    BT_TRY(alloc_rows(mla, (size_t)cfg->n_heads * cfg->v_dim, &mla->heads));
    BT_TRY(create_index(mla));
    BT_TRY(ops->create(dev, &mla->cfg, max_rows, mla->rope, &mla->attn));
    *mla_out = mla;
    mla      = NULL; /* handed over */

out:
    bt_mla_destroy(mla);
    return st;
}

void bt_mla_destroy(bt_mla *mla)
{
    if (mla == NULL) return;
    if (mla->attn != NULL) mla->attn->ops->destroy(mla->attn);
    bt_free(mla->cut);
    bt_device_free(mla->dev, mla->index_w);
    bt_device_free(mla->dev, mla->index_k);
    bt_device_free(mla->dev, mla->index_q);
    bt_device_free(mla->dev, mla->heads);
    bt_device_free(mla->dev, mla->kv);
    bt_device_free(mla->dev, mla->q);
    bt_device_free(mla->dev, mla->q_a);
    bt_device_free(mla->dev, mla->rope);
    bt_free(mla->inv_freq);
    bt_free(mla);
}

size_t bt_mla_workspace_bytes(const bt_mla *mla) { return mla->bytes + mla->attn->bytes; }

size_t bt_mla_large_bytes(const bt_device *dev, const bt_mla_config *cfg, uint32_t max_rows)
{
    const bt_attn_ops *ops = bt_attn_find(dev);

    return ops != NULL ? ops->large_bytes(cfg, max_rows) : 0;
}

/* Whether a row of the span has more positions than it attends to. */
static bool chooses(const bt_mla *mla, const bt_span *s)
{
    return mla->cut != NULL && s->n_rows != 0 && s->start + s->n_rows > mla->cfg.index_topk;
}

/* Rows of each role, and that the step fits what was created. */
static bt_status check_step(const bt_mla *mla, const bt_mla_weights *w, const bt_kv_pool *pool,
                            uint32_t layer, uint32_t n_spans, const bt_span *spans,
                            uint32_t n_rows_out[BT_N_ROLES])
{
    bt_status st                 = BT_OK;
    uint32_t  n_rows[BT_N_ROLES] = {0, 0}, next = 0;

    BT_REQUIRE(bt_kv_pool_kv_dim(pool) == bt_mla_kv_dim(&mla->cfg) &&
                   layer < bt_kv_pool_n_layers(pool),
               BT_ERR_INVALID_ARG, "layer %u with %u elements a token: the pool has %u layers, %u",
               layer, bt_mla_kv_dim(&mla->cfg), bt_kv_pool_n_layers(pool), bt_kv_pool_kv_dim(pool));
    for (uint32_t i = 0; i < n_spans; i++) {
        const bt_span *s = &spans[i];

        BT_REQUIRE(s->first_row == next && s->n_rows <= mla->max_rows - next, BT_ERR_INVALID_ARG,
                   "span %u covers %u rows from %u: expected to begin at %u and end by %u", i,
                   s->n_rows, s->first_row, next, mla->max_rows);
        BT_REQUIRE(s->role == BT_ROLE_GENERATED || n_rows[BT_ROLE_GENERATED] == 0,
                   BT_ERR_INVALID_ARG, "span %u of role prompt follows generated rows", i);
        BT_REQUIRE(s->n_rows <= mla->cfg.max_context &&
                       s->start <= mla->cfg.max_context - s->n_rows,
                   BT_ERR_INVALID_ARG, "span %u ends at position %llu: the context is %u", i,
                   (unsigned long long)s->start + s->n_rows, mla->cfg.max_context);
        BT_REQUIRE(w->uv != NULL && (s->form == BT_FORM_NORMAL ? w->uk : w->ukt) != NULL &&
                       (w->ukt != NULL || !chooses(mla, s)),
                   BT_ERR_INVALID_ARG, "span %u wants the %s form: its weights are not loaded", i,
                   s->form == BT_FORM_NORMAL && !chooses(mla, s) ? "normal" : "absorbed");
        next += s->n_rows;
        n_rows[s->role] += s->n_rows;
    }
    memcpy(n_rows_out, n_rows, sizeof(n_rows));
out:
    return st;
}

/* Before the rows of these spans turn. */
static void reach(bt_mla *mla, uint32_t n_spans, const bt_span *spans)
{
    uint32_t max = mla->cfg.max_context, end = 0;

    for (uint32_t i = 0; i < n_spans; i++)
        end = bt_max_u32(end, spans[i].start + spans[i].n_rows);
    if (end > mla->n_turns)
        fill_rope(mla, bt_min_u32(max, end + ROPE_STEP - end % ROPE_STEP), mla->rope);
}

static bt_gemm product_of(const bt_linear *w, const bt_bf16 *x, bt_bf16 *y, uint32_t m)
{
    return (bt_gemm){.w       = w,
                     .x       = x,
                     .ld_x    = bt_linear_k(w),
                     .y       = y,
                     .ld_y    = bt_linear_n(w),
                     .m       = m,
                     .y_dtype = BT_BF16};
}

static bt_status product(const bt_mla *mla, bt_role role, const bt_linear *w, const bt_bf16 *x,
                         bt_bf16 *y, uint32_t m)
{
    bt_gemm gemm = product_of(w, x, y, m);

    return bt_device_gemm(mla->dev, role, 1, &gemm);
}

/* What the rows of a call, or those of a role, want computed, and where that goes. */
static bt_attn_call call_of(const bt_mla *mla, const bt_mla_weights *w, bt_kv_pool *pool,
                            uint32_t layer, int halves)
{
    bt_attn_call call = {.w = w, .pool = pool, .layer = layer, .out = mla->heads};

    if (halves & QUERIES) call.q = mla->q;
    if (halves & LATENTS) {
        call.kv      = mla->kv;
        call.kv_norm = w->kv_a_norm;
    }
    if (w->index_q == NULL) return call;
    if (halves & LATENTS) call.index_k = mla->index_k;
    if (halves & CHOICES) {
        call.index_q = mla->index_q;
        call.index_w = mla->index_w;
    }
    return call;
}

/* What the halves ask for of m rows of one role from row `first`: queries, latents before their
 * norm, what the indexer goes by. */
static bt_status project(bt_mla *mla, const bt_mla_weights *w, bt_role role, uint32_t first,
                         uint32_t m, const bt_bf16 *x, int halves)
{
    bt_status            st   = BT_OK;
    const bt_mla_config *cfg  = &mla->cfg;
    const bt_bf16       *rows = x + (size_t)first * cfg->hidden;
    bt_bf16             *q    = mla->q + (size_t)first * mla->q_dim;
    bt_bf16             *kv   = mla->kv + (size_t)first * mla->kv_dim;
    bt_bf16             *q_a  = mla->q_a + (size_t)first * cfg->q_lora_rank;
    bool                 low  = cfg->q_lora_rank != 0;
    uint32_t             n    = 0;
    bt_gemm              of_x[4];

    if (w->index_q == NULL) halves &= ~CHOICES;
    if (halves & QUERIES)
        of_x[n++] = low ? product_of(w->q_a, rows, q_a, m) : product_of(w->q, rows, q, m);
    if (halves & LATENTS) of_x[n++] = product_of(w->kv_a, rows, kv, m);
    if (halves & LATENTS && w->index_k != NULL)
        of_x[n++] = product_of(w->index_k, rows, mla->index_k + (size_t)first * cfg->index_dim, m);
    if (halves & CHOICES) {
        of_x[n]           = product_of(w->index_w, rows, NULL, m);
        of_x[n].y         = mla->index_w + (size_t)first * cfg->index_heads;
        of_x[n++].y_dtype = BT_F32;
    }
    BT_TRY(bt_device_gemm(mla->dev, role, n, of_x));
    if (low && (halves & QUERIES)) {
        BT_TRY(bt_device_rms_norm(mla->dev, m, cfg->q_lora_rank, q_a, cfg->q_lora_rank, w->q_a_norm,
                                  cfg->latent_eps, q_a, cfg->q_lora_rank));
        BT_TRY(product(mla, role, w->q_b, q_a, q, m));
        if (halves & CHOICES)
            BT_TRY(product(mla, role, w->index_q, q_a,
                           mla->index_q + (size_t)first * mla->index_dim, m));
    }
out:
    return st;
}

/* The spans, each cut where its rows begin to choose; those attend in the absorbed form. */
static uint32_t cut_spans(const bt_mla *mla, uint32_t n_spans, const bt_span *spans)
{
    uint32_t topk = mla->cfg.index_topk, n = 0;

    for (uint32_t i = 0; i < n_spans; i++) {
        bt_span  rest = spans[i];
        uint32_t all  = rest.start < topk ? bt_min_u32(rest.n_rows, topk - rest.start) : 0;

        if (all != 0) {
            mla->cut[n]          = rest;
            mla->cut[n++].n_rows = all;
        }
        if (all == rest.n_rows) continue;
        rest.first_row += all;
        rest.start += all;
        rest.n_rows -= all;
        rest.form     = BT_FORM_ABSORBED;
        mla->cut[n++] = rest;
    }
    return n;
}

/* Attention of spans, by runs of one role and form. */
static bt_status attend(const bt_mla *mla, bt_attn_call call)
{
    bt_status          st    = BT_OK;
    const bt_attn_ops *ops   = mla->attn->ops;
    const bt_span     *spans = call.spans;
    uint32_t           n_all = call.n_spans;

    for (uint32_t i = 0, n; i < n_all; i += n) {
        bool some = chooses(mla, &spans[i]);

        for (n = 1; i + n < n_all && spans[i + n].role == spans[i].role &&
                    spans[i + n].form == spans[i].form;
             n++)
            some = some || chooses(mla, &spans[i + n]);
        call.spans   = spans + i;
        call.n_spans = n;
        if (some && call.index_q != NULL) BT_TRY(ops->choose(mla->attn, &call));
        BT_TRY(some ? ops->attend_chosen(mla->attn, &call)
                    : ops->attend[spans[i].form](mla->attn, &call));
    }
out:
    return st;
}

static bt_status run(bt_mla *mla, const bt_mla_weights *w, bt_kv_pool *pool, uint32_t layer,
                     const bt_bf16 *x, bt_bf16 *out, uint32_t n_spans, const bt_span *spans,
                     const uint32_t *step_rows, int halves)
{
    bt_status    st                 = BT_OK;
    uint32_t     n_rows[BT_N_ROLES] = {0, 0}, first[BT_N_ROLES] = {0, 0};
    bool         some = false;
    bt_attn_call call;

    BT_TRY(check_step(mla, w, pool, layer, n_spans, spans, n_rows));
    reach(mla, n_spans, spans);
    for (uint32_t i = 0; i < n_spans && halves & QUERIES; i++)
        some = some || chooses(mla, &spans[i]);
    if (some) halves |= CHOICES;
    first[BT_ROLE_GENERATED] = n_rows[BT_ROLE_PROMPT];
    for (int role = 0; role < BT_N_ROLES; role++)
        if (n_rows[role] != 0)
            BT_TRY(project(mla, w, (bt_role)role, first[role], n_rows[role], x, halves));

    /* All pages are written before any row attends: rows of a span see each other there. */
    call         = call_of(mla, w, pool, layer, halves);
    call.n_spans = n_spans;
    call.spans   = spans;
    BT_TRY(mla->attn->ops->append(mla->attn, &call));
    if (!(halves & QUERIES)) goto out;
    if (some) {
        call.n_spans   = cut_spans(mla, n_spans, spans);
        call.spans     = mla->cut;
        call.step_rows = call.index_q == NULL ? step_rows : NULL;
    }
    BT_TRY(attend(mla, call));
    for (int role = 0; role < BT_N_ROLES; role++)
        if (n_rows[role] != 0)
            BT_TRY(product(mla, (bt_role)role, w->o,
                           mla->heads + (size_t)first[role] * mla->cfg.n_heads * mla->cfg.v_dim,
                           out + (size_t)first[role] * mla->cfg.hidden, n_rows[role]));
out:
    return st;
}

bt_status bt_mla_forward(bt_mla *mla, const bt_mla_weights *w, bt_kv_pool *pool, uint32_t layer,
                         const bt_bf16 *x, bt_bf16 *out, uint32_t n_spans, const bt_span *spans)
{
    return run(mla, w, pool, layer, x, out, n_spans, spans, NULL, LATENTS | QUERIES);
}

bt_status bt_mla_fill_pages(bt_mla *mla, const bt_mla_weights *w, bt_kv_pool *pool, uint32_t layer,
                            const bt_bf16 *x, uint32_t n_spans, const bt_span *spans)
{
    return run(mla, w, pool, layer, x, NULL, n_spans, spans, NULL, LATENTS);
}

bt_status bt_mla_attend(bt_mla *mla, const bt_mla_weights *w, bt_kv_pool *pool, uint32_t layer,
                        const bt_bf16 *x, bt_bf16 *out, uint32_t n_spans, const bt_span *spans,
                        const uint32_t *step_rows)
{
    return run(mla, w, pool, layer, x, out, n_spans, spans, step_rows, QUERIES);
}

bool bt_mla_fits_fixed(const bt_mla *mla, const bt_attn_fixed *fixed, uint32_t n_spans,
                       const bt_span *spans)
{
    const bt_attn_fixed_ops *ops    = mla->attn->ops->fixed;
    uint32_t                 n_rows = 0;

    for (uint32_t i = 0; i < n_spans; i++) {
        if (chooses(mla, &spans[i])) return false;
        n_rows += spans[i].n_rows;
    }
    return ops != NULL && fixed->n_rows <= mla->max_rows && n_rows <= fixed->n_rows &&
           ops->fits(mla->attn, fixed, n_spans, spans);
}

bt_status bt_mla_send_fixed(bt_mla *mla, const bt_attn_fixed *fixed, uint32_t n_spans,
                            const bt_span *spans)
{
    return mla->attn->ops->fixed->send(mla->attn, fixed, n_spans, spans);
}

bt_status bt_mla_forward_fixed(bt_mla *mla, const bt_mla_weights *w, bt_kv_pool *pool,
                               uint32_t layer, const bt_attn_fixed *fixed, const bt_bf16 *x,
                               bt_bf16 *out)
{
    bt_status    st   = BT_OK;
    bt_attn_call call = call_of(mla, w, pool, layer, LATENTS | QUERIES);

    call.fixed = fixed;
    BT_TRY(project(mla, w, BT_ROLE_GENERATED, 0, fixed->n_rows, x, LATENTS | QUERIES));
    BT_TRY(mla->attn->ops->append(mla->attn, &call));
    BT_TRY(mla->attn->ops->attend[BT_FORM_ABSORBED](mla->attn, &call));
    BT_TRY(product(mla, BT_ROLE_GENERATED, w->o, mla->heads, out, fixed->n_rows));
out:
    return st;
}

/* Multiplications of one head; the projections around them are the same in both forms. */
bt_attn_form bt_mla_cheaper_form(const bt_mla_config *cfg, uint32_t n_new, uint32_t n_kv)
{
    double expand   = (double)cfg->kv_lora_rank * (cfg->qk_nope_dim + cfg->v_dim);
    double pairs    = (double)n_new * n_kv;
    double normal   = n_kv * expand + pairs * (cfg->qk_nope_dim + cfg->qk_rope_dim + cfg->v_dim);
    double absorbed = n_new * expand + pairs * (2.0 * cfg->kv_lora_rank + cfg->qk_rope_dim);

    return absorbed < normal ? BT_FORM_ABSORBED : BT_FORM_NORMAL;
}

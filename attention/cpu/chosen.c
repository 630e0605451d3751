/* attention/cpu/chosen.c - sparse attention: which positions a token attends to, and the absorbed
 * form over those.
 *
 * Choosing takes BT_MAX_CHOOSERS rows at a time: first the indexer's scores, in chunks of one row's
 * keys, then, a row each, the positions.  The latents of these are copied next to each other, for
 * some rows at a time, and the absorbed form goes through the copies as through the pages of short
 * contexts.  A score depends on its row and its key only. */
#include <string.h>

#include "attention/cpu/attn_cpu.h"
#include "core/alloc.h"

enum {
    CHUNK_KEYS     = 16 * BT_PAGE_TOKENS,
    GATHERED_BYTES = 32 << 20 /* of latents, about */
};

static size_t row_bytes(const bt_mla_config *cfg)
{
    return bt_kv_pages_for(cfg->index_topk) *
           bt_kv_page_bytes(1, cfg->kv_lora_rank + cfg->qk_rope_dim);
}

/* Rows that attend at once. */
static uint32_t gathered_rows(const bt_mla_config *cfg, uint32_t max_rows)
{
    size_t n = GATHERED_BYTES / row_bytes(cfg);

    max_rows = bt_min_u32(max_rows, BT_ABSORBED_ROWS);
    return n == 0 ? 1 : n < max_rows ? (uint32_t)n : max_rows;
}

size_t bt_attn_cpu_chosen_bytes(const bt_mla_config *cfg, uint32_t max_rows)
{
    if (!bt_mla_chooses(cfg)) return 0;
    return (size_t)max_rows * cfg->index_topk * sizeof(uint32_t) +
           (size_t)BT_MAX_CHOOSERS * cfg->max_context * sizeof(float) +
           gathered_rows(cfg, max_rows) * row_bytes(cfg);
}

bt_status bt_attn_cpu_create_chosen(bt_attn_cpu *a, uint32_t max_rows)
{
    bt_status            st   = BT_OK;
    const bt_mla_config *cfg  = &a->cfg;
    bt_kv_pool_config    pool = {.n_layers = 1, .kv_dim = cfg->kv_lora_rank + cfg->qk_rope_dim};

    if (!bt_mla_chooses(cfg)) goto out;
    a->chosen_rows = gathered_rows(cfg, max_rows);
    pool.n_pages   = a->chosen_rows * bt_kv_pages_for(cfg->index_topk);
    a->chosen      = bt_calloc((size_t)max_rows * cfg->index_topk, sizeof(*a->chosen));
    a->keys_scores = bt_calloc((size_t)BT_MAX_CHOOSERS * cfg->max_context, sizeof(*a->keys_scores));
    a->chosen_pages = bt_calloc(pool.n_pages, sizeof(*a->chosen_pages));
    a->chosen_spans = bt_calloc(a->chosen_rows, sizeof(*a->chosen_spans));
    BT_REQUIRE(a->chosen != NULL && a->keys_scores != NULL && a->chosen_pages != NULL &&
                   a->chosen_spans != NULL,
               BT_ERR_NO_MEMORY, "sparse attention of %u rows to %u of %u positions", max_rows,
               cfg->index_topk, cfg->max_context);
    BT_TRY(bt_kv_pool_create(a->dev, &pool, &a->gathered));
    BT_TRY(bt_kv_pool_acquire(a->gathered, pool.n_pages, a->chosen_pages));
    a->base.bytes += bt_attn_cpu_chosen_bytes(cfg, max_rows);
out:
    return st;
}

void bt_attn_cpu_destroy_chosen(bt_attn_cpu *a)
{
    bt_kv_pool_destroy(a->gathered);
    bt_free(a->chosen_spans);
    bt_free(a->chosen_pages);
    bt_free(a->keys_scores);
    bt_free(a->chosen);
}

/* ---- which positions ---- */

typedef struct {
    const bt_span *span;
    uint32_t       row, n_keys;
} chooser;

typedef struct {
    bt_attn_cpu        *a;
    const bt_attn_call *call;
    uint32_t            n_rows, n_chunks; /* at once; of the row with most keys */
    chooser             rows[BT_MAX_CHOOSERS];
} choose_job;

static float *scores_of(const choose_job *job, uint32_t i)
{
    return job->a->keys_scores + (size_t)i * job->a->cfg.max_context;
}

/* Scores of the keys of one page, from its `first` position on. */
static void score_page(const choose_job *job, const chooser *c, uint32_t first, bt_attn_member *m,
                       float *scores)
{
    const bt_attn_cpu   *a   = job->a;
    const bt_mla_config *cfg = &a->cfg;
    const float         *w   = job->call->index_w + (size_t)c->row * cfg->index_heads;
    uint32_t             n   = bt_index_columns(cfg);
    bt_bf16             *page =
        bt_kv_pool_rows(job->call->pool, c->span->pages[first / BT_PAGE_TOKENS], job->call->layer);
    bt_cpu_mm mm = {.x      = page + cfg->kv_lora_rank + cfg->qk_rope_dim,
                    .ld_x   = bt_kv_pool_kv_dim(job->call->pool),
                    .packed = m->index_query,
                    .y      = m->index_scores,
                    .ld_y   = n,
                    .m      = bt_min_u32(c->n_keys - first, BT_PAGE_TOKENS),
                    .n      = n,
                    .k      = cfg->index_dim,
                    .cached = true};

    a->kernels->mm[c->span->role](&mm);
    a->kernels->rows->relu_dots(w, mm.y, n, mm.m, cfg->index_heads, scores + first);
}

/* Chunks: [n_chunks][n_rows], so that rows of a prompt find keys in a thread's cache. */
static void score_task(void *ctx, uint32_t chunk, uint32_t member)
{
    const choose_job    *job  = ctx;
    const bt_mla_config *cfg  = &job->a->cfg;
    bt_attn_member      *m    = &job->a->members[member];
    uint32_t             i    = chunk % job->n_rows;
    const chooser       *c    = &job->rows[i];
    uint32_t             from = chunk / job->n_rows * CHUNK_KEYS;
    const bt_bf16 *q = job->call->index_q + (size_t)c->row * cfg->index_heads * cfg->index_dim;

    if (from >= c->n_keys) return;
    job->a->kernels->rows->pack_rows(q, cfg->index_dim, cfg->index_heads, cfg->index_dim,
                                     m->index_query);
    for (uint32_t end = bt_min_u32(from + CHUNK_KEYS, c->n_keys); from < end;
         from += BT_PAGE_TOKENS)
        score_page(job, c, from, m, scores_of(job, i));
}

/* An order, found bit by bit: the n largest of the scores are those above it, and so many of those
 * that have it as *n becomes. */
static uint32_t find_nth(const bt_cpu_row_kernels *rows, const float *scores, uint32_t n_keys,
                         uint32_t *n)
{
    uint32_t nth = 0, more = 0;

    for (uint32_t bit = 1u << 31; bit != 0 && more != *n; bit >>= 1) {
        more = rows->count_above(scores, n_keys, (nth | bit) - 1);
        if (more >= *n) nth |= bit;
    }
    *n -= rows->count_above(scores, n_keys, nth);
    return nth;
}

/* Chunks: rows. */
static void pick_task(void *ctx, uint32_t chunk, uint32_t member)
{
    const choose_job *job    = ctx;
    const chooser    *c      = &job->rows[chunk];
    const float      *scores = scores_of(job, chunk);
    uint32_t          topk = job->a->cfg.index_topk, n_equal = topk;
    uint32_t         *out = job->a->chosen + (size_t)c->row * topk;
    uint32_t          nth = find_nth(job->a->kernels->rows, scores, c->n_keys, &n_equal);

    (void)member;
    for (uint32_t key = 0; key < c->n_keys; key++) {
        uint32_t order = bt_cpu_order_of(scores[key]);

        if (order < nth || (order == nth && n_equal == 0)) continue;
        n_equal -= order == nth;
        *out++ = key;
    }
}

static void choose_rows(choose_job *job)
{
    if (job->n_rows == 0) return;
    bt_cpu_pool_run(job->a->pool, job->n_rows * job->n_chunks, score_task, job);
    bt_cpu_pool_run(job->a->pool, job->n_rows, pick_task, job);
    job->n_rows = job->n_chunks = 0;
}

bt_status bt_attn_cpu_choose(bt_attn *attn, const bt_attn_call *call)
{
    bt_attn_cpu *a   = (bt_attn_cpu *)attn;
    choose_job   job = {.a = a, .call = call};

    for (uint32_t i = 0; i < call->n_spans; i++) {
        const bt_span *span = &call->spans[i];

        for (uint32_t r = 0; r < span->n_rows; r++) {
            chooser c = {span, span->first_row + r, span->start + r + 1};

            if (c.n_keys <= a->cfg.index_topk) continue;
            job.rows[job.n_rows++] = c;
            job.n_chunks = bt_max_u32(job.n_chunks, (c.n_keys + CHUNK_KEYS - 1) / CHUNK_KEYS);
            if (job.n_rows == BT_MAX_CHOOSERS) choose_rows(&job);
        }
    }
    choose_rows(&job);
    return BT_OK;
}

/* ---- attention to these ---- */

typedef struct {
    bt_attn_cpu        *a;
    const bt_attn_call *call;
    const bt_span      *span; /* of the first row */
    uint32_t            first_row, n_rows;
} gather_job;

/* Chunks: [n_rows][pages of index_topk]. */
static void gather_task(void *ctx, uint32_t chunk, uint32_t member)
{
    const gather_job *job  = ctx;
    bt_attn_cpu      *a    = job->a;
    const bt_span    *span = job->span;
    uint32_t          topk = a->cfg.index_topk, n_pages = bt_kv_pages_for(topk);
    uint32_t          i = chunk / n_pages, at = chunk % n_pages * BT_PAGE_TOKENS;
    uint32_t          row       = job->first_row + i;
    uint32_t          end       = bt_min_u32(at + BT_PAGE_TOKENS, a->chosen_spans[i].start + 1);
    const uint32_t   *step_rows = job->call->step_rows;
    const uint32_t   *chosen    = a->chosen + (size_t)(step_rows ? step_rows[row] : row) * topk;
    size_t   from_dim = bt_kv_pool_kv_dim(job->call->pool), dim = bt_kv_pool_kv_dim(a->gathered);
    bt_bf16 *out = bt_kv_pool_rows(a->gathered, a->chosen_pages[chunk], 0);

    (void)member;
    while (row - span->first_row >= span->n_rows)
        span++;
    for (; at < end; at++, out += dim) {
        bool     all = span->start + (row - span->first_row) < topk;
        uint32_t pos = all ? at : chosen[at];

        memcpy(
            out,
            bt_kv_pool_rows(job->call->pool, span->pages[pos / BT_PAGE_TOKENS], job->call->layer) +
                pos % BT_PAGE_TOKENS * from_dim,
            dim * sizeof(*out));
    }
}

bt_status bt_attn_cpu_attend_chosen(bt_attn *attn, const bt_attn_call *call)
{
    bt_status    st      = BT_OK;
    bt_attn_cpu *a       = (bt_attn_cpu *)attn;
    uint32_t     n_pages = bt_kv_pages_for(a->cfg.index_topk), r = 0;
    gather_job   job    = {.a = a, .call = call};
    bt_attn_call copies = *call;

    copies.pool  = a->gathered;
    copies.layer = 0;
    copies.spans = a->chosen_spans;
    for (const bt_span *span = call->spans, *end = span + call->n_spans; span < end;) {
        job.span      = span;
        job.first_row = span->first_row + r;
        for (job.n_rows = 0; job.n_rows < a->chosen_rows && span < end;) {
            uint32_t i = job.n_rows++, n_keys = span->start + r + 1;

            a->chosen_spans[i]           = *span;
            a->chosen_spans[i].pages     = a->chosen_pages + (size_t)i * n_pages;
            a->chosen_spans[i].first_row = job.first_row + i;
            a->chosen_spans[i].n_rows    = 1;
            a->chosen_spans[i].start     = bt_min_u32(n_keys, a->cfg.index_topk) - 1;
            if (++r == span->n_rows) {
                span++;
                r = 0;
            }
        }
        copies.n_spans = job.n_rows;
        bt_cpu_pool_run(a->pool, job.n_rows * n_pages, gather_task, &job);
        BT_TRY(bt_attn_cpu_absorbed(attn, &copies));
    }
out:
    return st;
}

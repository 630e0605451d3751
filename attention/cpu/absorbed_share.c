/* attention/cpu/absorbed_share.c - one row of few heads against one part of its context, by all
 * threads, which heads do not keep busy: a tile of 16 rows costs as much with two heads as with
 * four, and each thread would read all pages.
 *
 * First each thread makes the scores of some of the keys; then, behind a barrier, it sums some
 * columns of the latents.  The softmax, little beside these, each goes through for itself.  Each
 * score and each column's sum is that of bt_absorbed_pass, bit by bit. */
#include "attention/cpu/attn_cpu.h"

/* Measured with 4 heads and two threads.  Below so many tokens, heads go to threads whole
 * (absorbed_short.c). */
enum {
    MIN_TOKENS = 65,
    MAX_LANES  = 8,
    STEP       = 32, /* keys, */
    COLS       = 32  /* and columns, that are not divided */
};

typedef struct {
    const bt_attn_cpu       *a;
    const bt_attn_call      *call;
    const bt_absorbed_lanes *lanes;
    uint32_t                 n_keys, n_steps, n_shares;
    float                   *scores; /* [blocks][MAX_LANES][BT_BLOCK_TOKENS] */
} share_job;

/* Where share i of n things begins. */
static uint32_t share_at(const share_job *job, uint32_t n, uint32_t i)
{
    return (uint32_t)((uint64_t)n * i / job->n_shares);
}

static float *block_scores(const share_job *job, uint32_t start)
{
    return job->scores + (size_t)(start / BT_BLOCK_TOKENS) * MAX_LANES * BT_BLOCK_TOKENS;
}

/* Rows of a step's keys. */
static bt_some_rows step_rows(const share_job *job, uint32_t step)
{
    uint32_t       pos  = step * STEP;
    const bt_span *span = job->lanes->part.span;
    const bt_bf16 *page =
        bt_kv_pool_rows(job->call->pool, span->pages[pos / BT_PAGE_TOKENS], job->call->layer);

    return (bt_some_rows){page +
                              (size_t)(pos % BT_PAGE_TOKENS) * bt_kv_pool_kv_dim(job->call->pool),
                          bt_min_u32(job->n_keys - pos, STEP)};
}

static void score_task(void *ctx, uint32_t chunk, uint32_t member)
{
    const share_job      *job  = ctx;
    const bt_attn_member *m    = &job->a->members[member];
    uint32_t              step = share_at(job, job->n_steps, chunk);
    uint32_t              end  = share_at(job, job->n_steps, chunk + 1);

    if (step != end) bt_absorbed_pack(job->a, job->lanes, m);
    for (; step < end; step++)
        bt_absorbed_score(&job->lanes->tile, step_rows(job, step), (bt_some_rows){NULL, 0},
                          bt_kv_pool_kv_dim(job->call->pool), m,
                          block_scores(job, step * STEP) + step * STEP % BT_BLOCK_TOKENS);
}

static void sum_task(void *ctx, uint32_t chunk, uint32_t member)
{
    const share_job      *job = ctx;
    const bt_attn_member *m   = &job->a->members[member];
    const bt_bf16        *pages[BT_BLOCK_PAGES];
    bt_tile               t     = job->lanes->tile;
    uint32_t              units = t.v_dim / COLS, col = share_at(job, units, chunk) * COLS;
    bt_tile_state         state   = bt_tile_state_at(m->state);
    bt_tile_scratch       scratch = m->tile;

    t.v_dim = share_at(job, units, chunk + 1) * COLS - col;
    bt_tile_reset(&t, &state);
    for (uint32_t start = 0; start < job->n_keys; start += BT_BLOCK_TOKENS) {
        bt_key_block block = {.start  = start,
                              .n_keys = bt_min_u32(job->n_keys - start, BT_BLOCK_TOKENS),
                              .pages  = pages,
                              .ld     = bt_kv_pool_kv_dim(job->call->pool)};

        for (uint32_t at = 0; at < block.n_keys; at += BT_PAGE_TOKENS)
            pages[at / BT_PAGE_TOKENS] = step_rows(job, (start + at) / STEP).rows + col;
        scratch.scores = block_scores(job, start);
        bt_tile_add(&t, &block, &scratch, &state);
    }
    bt_tile_finish(&t, &state, job->a->ol + col, job->lanes->tile.v_dim);
}

bool bt_absorbed_share(const bt_attn_cpu *a, const bt_attn_call *call,
                       const bt_absorbed_lanes *lanes)
{
    const bt_tile *t   = &lanes->tile;
    share_job      job = {.a        = a,
                          .call     = call,
                          .lanes    = lanes,
                          .n_keys   = lanes->part.end,
                          .n_steps  = bt_cpu_pad(lanes->part.end, STEP) / STEP,
                          .n_shares = bt_min_u32(a->n_members, t->v_dim / COLS)};

    if (t->v_dim % COLS != 0 || job.n_shares < 2 || t->n_lanes > MAX_LANES ||
        job.n_keys < MIN_TOKENS)
        return false;
    job.scores = a->slots; /* no wave goes on, and they are larger */
    bt_cpu_pool_run(a->pool, job.n_shares, score_task, &job);
    bt_cpu_pool_run(a->pool, job.n_shares, sum_task, &job);
    return true;
}

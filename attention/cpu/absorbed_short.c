/* attention/cpu/absorbed_short.c - the absorbed form where contexts are so short that queries and
 * sums are more bytes than the pages: for all rows of a block, a group of heads goes through
 * absorption, attention and W_UV on one thread, in that thread's second-level cache.  No thread
 * waits for another.  Bits are those of absorbed.c, whose products and passes these are. */
#include "attention/cpu/attn_cpu.h"

/* Where this way ends, by measure.  What groups save, a row's queries and sums that stay in a cache
 * and two runs of the pool, does not depend on the context; what they cost is a pass over a page
 * for each group, at the price of a full tile of AMX. */
enum {
    SHORT_TOKENS = 128,
    MIN_HEADS    = 8, /* of a group; or fewer, */
    FEW_ROWS     = 2  /* of no more rows */
};

typedef struct {
    const bt_attn_cpu  *a;
    const bt_attn_call *call;
    uint32_t            first_row, n_rows; /* of the block, in the step */
    uint32_t            n_groups, heads;   /* of a group, but for the last one */
} short_job;

/* Some heads of all rows; latents: [n_heads][n_rows][kv_lora_rank], first those of the absorbed
 * queries, then, row by row, the weighted ones. */
typedef struct {
    const short_job      *job;
    const bt_attn_member *m;
    uint32_t              head0, n_heads;
    const bt_bf16        *next; /* weights that the thread probably reads after this group's */
} group;

/* y[n_rows, n] = x W^T, rounded. */
static void multiply(const group *g, const bt_linear *w, const bt_linear *after, const bt_bf16 *x,
                     size_t ld_x, bt_bf16 *y, size_t ld_y)
{
    const bt_cpu_kernels *kernels = g->job->a->kernels;
    bt_cpu_mm             mm      = {.x      = x,
                                     .ld_x   = ld_x,
                                     .packed = bt_linear_packed(w),
                                     .y      = g->m->state,
                                     .ld_y   = bt_linear_n(w),
                                     .m      = g->job->n_rows,
                                     .n      = bt_linear_n(w),
                                     .k      = bt_linear_k(w),
                                     .after  = after != NULL ? bt_linear_packed(after) : g->next};

    kernels->mm[g->job->call->spans[0].role](&mm);
    for (size_t r = 0; r < mm.m; r++)
        kernels->rows->to_bf16(mm.y + r * mm.ld_y, mm.n, y + r * ld_y);
}

static bt_bf16 *latents(const group *g, uint32_t head)
{
    return g->m->latents + (size_t)head * g->job->n_rows * g->job->a->cfg.kv_lora_rank;
}

static void absorb(const group *g)
{
    const bt_mla_config  *cfg      = &g->job->a->cfg;
    const bt_mla_weights *w        = g->job->call->w;
    size_t                head_dim = cfg->qk_nope_dim + cfg->qk_rope_dim, ld = bt_attn_q_dim(cfg);

    for (uint32_t h = 0; h < g->n_heads; h++)
        multiply(g, w->ukt[g->head0 + h],
                 h + 1 < g->n_heads ? w->ukt[g->head0 + h + 1] : w->uv[g->head0],
                 g->job->call->q + g->job->first_row * ld + (g->head0 + h) * head_dim, ld,
                 latents(g, h), cfg->kv_lora_rank);
}

static void expand(const group *g)
{
    const bt_mla_config  *cfg = &g->job->a->cfg;
    const bt_mla_weights *w   = g->job->call->w;
    size_t                ld  = (size_t)cfg->n_heads * cfg->v_dim;

    for (uint32_t h = 0; h < g->n_heads; h++)
        multiply(g, w->uv[g->head0 + h], h + 1 < g->n_heads ? w->uv[g->head0 + h + 1] : NULL,
                 latents(g, h), cfg->kv_lora_rank,
                 g->job->call->out + g->job->first_row * ld + (size_t)(g->head0 + h) * cfg->v_dim,
                 ld);
}

/* The span of a row, and the row's own context. */
static bt_absorbed_part part_of(const bt_span *span, uint32_t row)
{
    while (row - span->first_row >= span->n_rows)
        span++;
    return (bt_absorbed_part){span, 0, span->start + (row - span->first_row) + 1,
                              BT_ATTN_SPLIT_TOKENS};
}

static void attend(const group *g)
{
    const short_job     *job   = g->job;
    const bt_mla_config *cfg   = &job->a->cfg;
    size_t               width = cfg->qk_nope_dim + cfg->qk_rope_dim;
    uint32_t             end   = job->first_row + job->n_rows;
    bt_tile_state        state = bt_tile_state_at(g->m->state);
    bt_absorbed_part     next  = part_of(job->call->spans, job->first_row);
    const bt_linear     *uv    = job->call->w->uv[g->head0];

    for (uint32_t row = job->first_row; row < end; row++) {
        bt_bf16 *latent = latents(g, 0) + (size_t)(row - job->first_row) * cfg->kv_lora_rank;
        bt_absorbed_lanes lanes = {.part      = next,
                                   .latent    = latent,
                                   .ld_latent = (size_t)job->n_rows * cfg->kv_lora_rank,
                                   .rope      = job->call->q +
                                           ((size_t)row * cfg->n_heads + g->head0) * width +
                                           cfg->qk_nope_dim,
                                   .ld_rope = width};

        lanes.tile = (bt_tile){.kernels       = job->a->kernels,
                               .role          = lanes.part.span->role,
                               .scale         = cfg->softmax_scale,
                               .v_dim         = cfg->kv_lora_rank,
                               .block_keys    = BT_BLOCK_TOKENS,
                               .split         = job->a->split,
                               .n_lanes       = g->n_heads,
                               .lanes_per_pos = g->n_heads,
                               .pos0          = lanes.part.end - 1};
        if (row + 1 < end)
            lanes.next = next = part_of(lanes.part.span, row + 1);
        else
            lanes.then = (bt_absorbed_then){
                bt_linear_packed(uv), bt_cpu_packed_elems(bt_linear_n(uv), cfg->kv_lora_rank)};
        bt_absorbed_pass(job->a, job->call, &lanes, g->m, &state);
        bt_tile_finish(&lanes.tile, &state, latent, lanes.ld_latent);
    }
}

static void group_task(void *ctx, uint32_t chunk, uint32_t member)
{
    const short_job *job   = ctx;
    uint32_t         head0 = chunk * job->heads, later = chunk + job->a->n_members;
    group            g = {.job     = job,
                          .m       = &job->a->members[member],
                          .head0   = head0,
                          .n_heads = bt_min_u32(job->a->cfg.n_heads - head0, job->heads)};

    if (later < job->n_groups) g.next = bt_linear_packed(job->call->w->ukt[later * job->heads]);
    absorb(&g);
    attend(&g);
    expand(&g);
}

/* The longest context of the job's rows that goes this way, or 0. */
static uint32_t longest(const short_job *job)
{
    const bt_attn_cpu *a = job->a;

    if (job->heads < MIN_HEADS)
        return job->n_rows <= FEW_ROWS && a->cfg.n_heads >= a->n_members ? SHORT_TOKENS : 0;
    /* A wave would cut the heads of one row for the threads as finely. */
    if (job->n_rows == 1 && job->n_groups <= a->n_members) return a->split;
    return SHORT_TOKENS;
}

static bool all_within(const short_job *job, uint32_t n_tokens)
{
    uint32_t row;

    for (uint32_t i = 0; i < job->call->n_spans; i++) {
        const bt_span *span = &job->call->spans[i];

        if (bt_absorbed_rows(span, job->first_row, job->n_rows, &row) != 0 &&
            span->start + span->n_rows > n_tokens)
            return false;
    }
    return true;
}

bool bt_absorbed_short(const bt_attn_cpu *a, const bt_attn_call *call, uint32_t first_row,
                       uint32_t n_rows)
{
    short_job job = {.a = a, .call = call, .first_row = first_row, .n_rows = n_rows};
    uint32_t  n   = (a->cfg.n_heads + BT_GROUP_HEADS - 1) / BT_GROUP_HEADS;

    n         = (n + a->n_members - 1) / a->n_members * a->n_members; /* as many for each thread */
    job.heads = (a->cfg.n_heads + n - 1) / n;
    job.n_groups = (a->cfg.n_heads + job.heads - 1) / job.heads;
    if (!all_within(&job, longest(&job))) return false;
    bt_cpu_pool_run(a->pool, job.n_groups, group_task, &job);
    return true;
}

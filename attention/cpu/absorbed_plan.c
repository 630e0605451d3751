/* attention/cpu/absorbed_plan.c - how the absorbed form of a block of rows is cut for the threads:
 * by what the cuts cost, about.  None changes a bit. */
#include "attention/cpu/attn_cpu.h"

enum {
    MIN_TILE_LANES  = 8,
    PAGE_COST_LANES = 32, /* what a tile does once for a page, in lanes; */
    PACK_COST_LANES = 4,  /* with attend_pages: avx512f packs the page's keys for all of them */
    MERGE_COST      = 20, /* of an item, in positions */
    UNEVEN          = 16  /* threads end apart by a part's so much */
};

typedef struct {
    const bt_attn_cpu  *a;
    const bt_attn_call *call;
    uint32_t            first_row, n_rows;
    uint32_t            longest; /* of the contexts */
} plan_job;

uint32_t bt_absorbed_rows(const bt_span *span, uint32_t first_row, uint32_t n_rows,
                          uint32_t *row_out)
{
    uint32_t from = span->first_row > first_row ? span->first_row : first_row;
    uint32_t to   = bt_min_u32(span->first_row + span->n_rows, first_row + n_rows);

    *row_out = from;
    return to > from ? to - from : 0;
}

static uint64_t count_items(const plan_job *job, bt_absorbed_plan plan)
{
    uint64_t n_items = 0;
    uint32_t row;

    for (uint32_t i = 0; i < job->call->n_spans; i++) {
        const bt_span *span = &job->call->spans[i];
        uint64_t       n    = bt_absorbed_rows(span, job->first_row, job->n_rows, &row);

        n = (n * job->a->cfg.n_heads + plan.tile_lanes - 1) / plan.tile_lanes;
        n_items += n * ((span->start + span->n_rows - 1) / plan.part_size + 1);
    }
    return n_items;
}

static uint32_t longest_of(const plan_job *job)
{
    uint32_t longest = 0, row;

    for (uint32_t i = 0; i < job->call->n_spans; i++) {
        const bt_span *span = &job->call->spans[i];

        if (bt_absorbed_rows(span, job->first_row, job->n_rows, &row) != 0 &&
            span->start + span->n_rows > longest)
            longest = span->start + span->n_rows;
    }
    return longest;
}

/* Large tiles read, pack and widen a page for more lanes at once; small ones leave work for every
 * thread.  A thread's share of the items times what one costs decides. */
static uint32_t choose_tile_lanes(const plan_job *job, uint32_t part_size)
{
    uint32_t best  = BT_TILE_LANES;
    uint64_t least = UINT64_MAX, n = job->a->n_members;
    uint32_t page = job->a->kernels->attend_pages != NULL ? PACK_COST_LANES : PAGE_COST_LANES;

    for (uint32_t lanes = BT_TILE_LANES; lanes >= MIN_TILE_LANES; lanes /= 2) {
        uint64_t items = count_items(job, (bt_absorbed_plan){lanes, part_size});
        uint64_t cost  = (items + n - 1) / n * (lanes + page);

        if (cost < least) {
            least = cost;
            best  = lanes;
        }
    }
    return best;
}

/* In positions: those of the thread with most of them, where the last thread's last part ends with
 * the context; by how much threads may end apart; and what merges. */
static uint64_t cost_of(const plan_job *job, bt_absorbed_plan plan)
{
    uint64_t n = count_items(job, plan), others = job->a->n_members - 1;
    uint64_t last_items = (n + others) / (others + 1);
    uint64_t part       = bt_min_u32(plan.part_size, job->longest);
    uint64_t last       = (last_items - 1) * part + (job->longest - 1) % plan.part_size + 1;
    uint64_t most       = others == 0 ? 0 : (n - last_items + others - 1) / others * part;

    return (most > last ? most : last) + part / UNEVEN + last_items * MERGE_COST;
}

bt_absorbed_plan bt_absorbed_plan_for(const bt_attn_cpu *a, const bt_attn_call *call,
                                      uint32_t first_row, uint32_t n_rows)
{
    plan_job         job     = {.a = a, .call = call, .first_row = first_row, .n_rows = n_rows};
    uint32_t         n_heads = a->cfg.n_heads, least_part;
    uint64_t         least   = UINT64_MAX;
    bt_absorbed_plan best, plan;

    job.longest     = longest_of(&job);
    least_part      = bt_attn_absorbed_part(n_heads, job.longest);
    plan.tile_lanes = choose_tile_lanes(&job, bt_attn_absorbed_part(n_heads, BT_ATTN_SPLIT_TOKENS));
    best            = plan;
    for (plan.part_size = BT_ATTN_SPLIT_TOKENS; plan.part_size >= least_part; plan.part_size /= 2) {
        uint64_t cost = cost_of(&job, plan);

        if (cost < least) {
            least = cost;
            best  = plan;
        }
    }
    return best;
}

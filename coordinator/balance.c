/* Which side limits, from what the ranks and the queue show. */
#include "coordinator/exposition.h"

static double largest(double a, double b) { return a > b ? a : b; }
static double at_most_1(double x) { return x < 1 ? x : 1; }

/* One side: its ranks, and the sum of their uses. */
typedef struct {
    uint32_t n;
    double   use;
} side;

/* The ranks of a group step together: all are busy while one of them has a prompt.  So the use of
 * prefill is its time in the model, times the part of its ranks that had a prompt then. */
static void add_rank(const bt_rank_view *r, bool both, side *prefill, side *decode)
{
    double rows  = r->relay.max_rows == 0
                       ? 0
                       : r->rates.busy * r->rates.rows_per_step / (double)r->relay.max_rows;
    double pages = r->n_pages == 0 ? 0 : (double)r->relay.taken_pages / (double)r->n_pages;

    if (r->group == 0) {
        prefill->n++;
        prefill->use += at_most_1(r->rates.busy) * (both ? 1 : r->prompt_share);
    }
    if (r->group == 1 || (r->group == 0 && both)) {
        decode->n++;
        decode->use += at_most_1(largest(rows, pages));
    }
}

/* Requests go through both sides at one rate, so each side's work is its use times its ranks; the
 * ranks that balance have that proportion. */
static void split(const side *prefill, const side *decode, bt_balance *b)
{
    double   loads[2] = {b->prefill * prefill->n, b->decode * decode->n};
    uint32_t n        = prefill->n + decode->n;

    if (n < 2 || loads[0] + loads[1] < 0.02 * n) return;
    b->best_prefill = (uint32_t)(n * loads[0] / (loads[0] + loads[1]) + 0.5);
    if (b->best_prefill < 1) b->best_prefill = 1;
    if (b->best_prefill > n - 1) b->best_prefill = n - 1;
    b->best_decode = n - b->best_prefill;
}

void bt_balance_of(const bt_snapshot *s, bt_balance *balance_out)
{
    bt_balance b       = {.limit = "none"};
    side       prefill = {0}, decode = {0};

    for (uint32_t i = 0; i < s->n_ranks; i++)
        if (!s->ranks[i].lost) add_rank(&s->ranks[i], s->n_decode == 0, &prefill, &decode);
    b.prefill = prefill.n > 0 ? prefill.use / prefill.n : 0;
    b.decode  = decode.n > 0 ? decode.use / decode.n : 0;
    /* A side that lets requests wait has no more to give. */
    b.prefill = largest(b.prefill, s->blocked_prefill);
    b.decode  = largest(b.decode, s->blocked_decode);
    if (largest(s->blocked_prefill, s->blocked_decode) > 0.3)
        b.limit = s->blocked_prefill > s->blocked_decode ? "prefill" : "decode";
    else if (largest(b.prefill, b.decode) > 0.7)
        b.limit = b.prefill >= b.decode ? "prefill" : "decode";
    if (s->n_decode != 0) split(&prefill, &decode, &b);
    *balance_out = b;
}

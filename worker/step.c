/* worker/step.c - the step protocol: plan, agree, run (run.c); and when to park. */
#include <string.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "core/minmax.h"
#include "worker/state.h"

/* Up to here a step is bound by reading weights (docs/measurements/speculate.md); drafts of the
 * model's own layer are more often right, and pay up to where rows are multiplied as fast. */
enum { DRAFT_ROWS = 16, MTP_ROWS = 32, MTP_ROWS_GPU = 128 };

static uint32_t mtp_rows(const bt_worker_config *cfg)
{
    if (cfg->facts.mtp == 0) return 0;
    return bt_min_u32(cfg->dev->host_memory ? MTP_ROWS : MTP_ROWS_GPU, cfg->max_rows);
}

static bt_status open_samplers(bt_worker *w)
{
    bt_status st = BT_OK;
    uint32_t  n  = w->cfg.threads == NULL ? 1 : bt_cpu_pool_n_threads(w->cfg.threads);

    w->samplers = bt_calloc(n, sizeof(*w->samplers));
    BT_REQUIRE(w->samplers != NULL, BT_ERR_NO_MEMORY, "%u samplers", n);
    for (; w->n_samplers < n; w->n_samplers++)
        BT_TRY(bt_sampler_init(&w->samplers[w->n_samplers], w->cfg.kernels->rows,
                               w->cfg.facts.model->vocab_size));
out:
    return st;
}

bt_status bt_worker_create(const bt_worker_config *cfg, bt_worker **worker_out)
{
    bt_status  st        = BT_OK;
    bt_worker *w         = NULL;
    size_t     row_bytes = bt_kv_pool_kv_dim(cfg->pool) * sizeof(bt_bf16);

    BT_REQUIRE(cfg->chunk >= 1 && cfg->chunk <= cfg->max_rows, BT_ERR_INVALID_ARG,
               "pieces of %u rows in steps of %u", cfg->chunk, cfg->max_rows);
    BT_REQUIRE(cfg->facts.model->vocab_size <= BT_MAX_VOCAB, BT_ERR_UNSUPPORTED,
               "a vocabulary of %u, at most %u", cfg->facts.model->vocab_size, BT_MAX_VOCAB);
    BT_REQUIRE(bt_rank_has_both(&cfg->facts) || cfg->links.payload_max >= row_bytes,
               BT_ERR_UNSUPPORTED, "a page message holds %zu bytes, a latent row has %zu",
               cfg->links.payload_max, row_bytes);
    w = bt_calloc(1, sizeof(*w));
    BT_REQUIRE(w != NULL, BT_ERR_NO_MEMORY, "worker");
    w->cfg       = *cfg;
    w->scheduler = (bt_scheduler){.max_rows   = cfg->max_rows,
                                  .chunk      = cfg->chunk,
                                  .speculate  = cfg->facts.speculate,
                                  .draft_rows = bt_min_u32(DRAFT_ROWS, cfg->max_rows),
                                  .mtp_rows   = mtp_rows(cfg)};
    w->parked    = true; /* every rank starts parked at wake number 0 */
    BT_TRY(open_samplers(w));
    BT_TRY(bt_draw_list_init(&w->draws, cfg->dev, cfg->facts.model->vocab_size, cfg->max_rows));
    if (cfg->facts.mtp != 0) BT_TRY(bt_mtp_init(&w->mtp, cfg));
    /* If the device chooses tokens, they can feed the next step without the host; but not where a
     * step begins behind those that were right. */
    w->lookahead = cfg->lookahead && w->draws.sampling != NULL && cfg->facts.speculate == 0 &&
                   cfg->facts.mtp == 0;
    for (int i = 0; i < (w->lookahead ? 2 : 1); i++)
        BT_TRY(bt_batch_init(&w->batches[i], cfg));
    w->batch        = &w->batches[0];
    w->ready_allocs = cfg->dev->n_allocs;
    *worker_out     = w;
    w               = NULL;
out:
    bt_worker_destroy(w);
    return st;
}

void bt_worker_destroy(bt_worker *w)
{
    if (w == NULL) return;
    while (w->requests.n > 0)
        bt_worker_discard(w, w->requests.at[w->requests.n - 1]);
    bt_requests_fini(&w->requests);
    bt_regroup_free(&w->seating);
    for (int i = 0; i < 2; i++)
        bt_batch_fini(&w->batches[i]);
    while (w->n_samplers > 0)
        bt_sampler_fini(&w->samplers[--w->n_samplers]);
    bt_free(w->samplers);
    bt_free(w->host_draws);
    bt_free(w->masks);
    bt_free(w->mask_bits);
    bt_draw_list_fini(&w->draws);
    bt_mtp_fini(&w->mtp);
    bt_free(w);
}

/* A parked rank with rows asks for a wake number that its whole group gets; it must not enter the
 * all-gather before, since nobody would be there. */
static bt_status ask_to_wake(bt_worker *w, uint32_t n_rows)
{
    bt_status st  = BT_OK;
    uint64_t  now = bt_awake_at_ns(&w->asked_clock, bt_worker_now_ns(w), BT_NS_PER_S);
    bt_up     m   = {.kind = BT_UP_WAKE_REQUEST, .u.wake_request = {w->wake_seen}};

    if (w->asked) {
        BT_REQUIRE(now - w->asked_ns <= w->cfg.wake_ns, BT_ERR_TIMEOUT,
                   "the coordinator has not answered a wake request (number %llu) for %llu ms",
                   (unsigned long long)w->wake_seen,
                   (unsigned long long)((now - w->asked_ns) / 1000000));
    }
    if (w->asked || n_rows == 0 || w->cfg.group_size == 0) goto out;
    w->asked    = true;
    w->asked_ns = now;
    BT_TRY(bt_worker_up(w, &m));
out:
    return st;
}

/* All that the step depends on of this rank's state is decided here, before the group agrees. */
static bt_status plan(bt_worker *w, bt_plan *plan_out)
{
    bt_status st      = BT_OK;
    bt_batch *b       = w->batch;
    uint64_t  from_ns = bt_worker_now_ns(w);

    bt_batch_fill(b, &w->cfg);
    BT_TRY(bt_worker_plan_draws(w, b));
    *plan_out = (bt_plan){.epoch = w->cfg.epoch, .wake = w->wake_seen, .shutdown = w->shutdown};
    memcpy(plan_out->n_rows, b->n_rows, sizeof(plan_out->n_rows));
    if (w->cfg.facts.mtp != 0)
        bt_worker_plan_mtp(w, b, plan_out);
    else
        bt_model_last_rows(&b->step, plan_out->last_rows);
    w->cfg.links.offer_graphs(w->cfg.links.ctx, &b->step, &plan_out->graphs);
    w->phase_from_ns = bt_worker_now_ns(w);
    w->model_ns += w->phase_from_ns - from_ns;
out:
    return st;
}

bt_status bt_worker_begin(bt_worker *w, bt_plan *plan_out, bt_next *next_out)
{
    bt_status st = BT_OK;
    bt_batch *b  = w->batch;

    w->progress++;
    w->phase_from_ns = 0; /* a wait that has failed counts as none */
    BT_TRY(bt_worker_admit(w));
    BT_TRY(bt_worker_check_leases(w));
    bt_worker_find_prefixes(w);
    if (bt_worker_must_catch_up(w)) BT_TRY(bt_worker_catch_up(w));
    BT_TRY(bt_worker_grow(w));
    BT_TRY(bt_worker_follow_replays(w));
    b->n_pieces = bt_schedule(&w->scheduler, &w->requests, b->pieces, b->n_rows);
    if (w->parked && w->wake_seen != w->wake_parked) w->parked = w->asked = false;
    if (w->parked && w->shutdown) { /* so are the others of the group, and they are told as well */
        *next_out = BT_NEXT_LEAVE;
        goto out;
    }
    if (w->parked) {
        *next_out = BT_NEXT_PARK;
        BT_TRY(ask_to_wake(w, b->n_rows[BT_ROLE_PROMPT] + b->n_rows[BT_ROLE_GENERATED]));
        goto out;
    }
    BT_TRY(plan(w, plan_out));
    *next_out = BT_NEXT_GATHER;
out:
    return st;
}

/* What all ranks conclude from the same plans. */
typedef struct {
    bool           leave, same_wake;
    uint64_t       n_rows;
    uint32_t       most_rows; /* of a rank */
    uint32_t       n_drafts;
    bt_graph_offer graphs;
} agreement;

static bt_status agree(bt_worker *w, const bt_plan *plans, agreement *agreed_out)
{
    bt_status st     = BT_OK;
    agreement agreed = {.same_wake = true};

    for (uint32_t i = 0; i < w->cfg.group_size; i++) {
        const uint32_t *n = plans[i].n_rows, *last = plans[i].last_rows;
        uint64_t        rows = (uint64_t)n[BT_ROLE_PROMPT] + n[BT_ROLE_GENERATED];

        BT_REQUIRE(plans[i].epoch == w->cfg.epoch && rows <= w->cfg.max_rows, BT_ERR_PROTOCOL,
                   "rank %u of the group plans %llu rows in epoch %u; expected at most %u in %u", i,
                   (unsigned long long)rows, plans[i].epoch, w->cfg.max_rows, w->cfg.epoch);
        for (int role = 0; role < BT_N_ROLES; role++)
            BT_REQUIRE(last[role] <= n[role], BT_ERR_PROTOCOL,
                       "rank %u of the group plans %u rows of a role in the last layer; expected "
                       "at most the %u of the step",
                       i, last[role], n[role]);
        BT_REQUIRE(plans[i].n_drafts <= w->cfg.facts.mtp, BT_ERR_PROTOCOL,
                   "rank %u of the group plans drafts of %u tokens; expected at most %u", i,
                   plans[i].n_drafts, w->cfg.facts.mtp);
        memcpy(w->batch->group_rows[i], n, sizeof(plans[i].n_rows));
        memcpy(w->batch->last_rows[i], last, sizeof(plans[i].last_rows));
        agreed.leave     = agreed.leave || plans[i].shutdown != 0;
        agreed.same_wake = agreed.same_wake && plans[i].wake == plans[0].wake;
        agreed.n_rows += rows;
        agreed.most_rows = rows > agreed.most_rows ? (uint32_t)rows : agreed.most_rows;
        agreed.n_drafts  = bt_max_u32(agreed.n_drafts, plans[i].n_drafts);
        if (i == 0)
            agreed.graphs = plans[i].graphs;
        else
            bt_graph_join(&agreed.graphs, &plans[i].graphs);
    }
    *agreed_out = agreed;
out:
    return st;
}

/* A graph has the same number of rows on every rank. */
static void choose_graph(bt_worker *w, const agreement *agreed)
{
    bt_batch *b = w->batch;

    b->step.graph = bt_graph_choose(&agreed->graphs, agreed->most_rows);
    for (uint32_t i = 0; i < w->cfg.group_size && b->step.graph.n_rows != 0; i++)
        b->group_rows[i][BT_ROLE_GENERATED] = b->step.graph.n_rows;
}

bt_status bt_worker_finish(bt_worker *w, const bt_plan *plans, bool *leave_out)
{
    bt_status st     = BT_OK;
    agreement agreed = {0};

    w->gather_ns += bt_worker_now_ns(w) - w->phase_from_ns;
    w->phase_from_ns = 0;
    BT_TRY(agree(w, plans, &agreed));
    if (!agreed.leave && agreed.n_rows > 0) {
        choose_graph(w, &agreed);
        w->batch->n_drafts = agreed.n_drafts;
        BT_TRY(bt_worker_run(w));
    } else {
        BT_TRY(bt_worker_catch_up(w));
    }
    *leave_out = agreed.leave;
    if (!agreed.leave && agreed.n_rows == 0 && agreed.same_wake) {
        w->parked      = true;
        w->asked       = false;
        w->wake_parked = plans[0].wake;
        BT_TRY(w->requests.n == 0 ? bt_kv_pool_check_idle(w->cfg.pool)
                                  : bt_kv_pool_check(w->cfg.pool));
    }
out:
    return st;
}

/* cli/account.c reads this. */
void bt_worker_log_account(const bt_worker *w)
{
    BT_INFO("account: %llu steps; computed %llu prompt tokens and %llu generated tokens; handed "
            "over %llu pages, %llu bytes; launched %llu steps ahead; took memory of the device "
            "%llu times since ready; of %llu tokens of drafts %llu were right",
            (unsigned long long)w->n_steps, (unsigned long long)w->n_rows_done[BT_ROLE_PROMPT],
            (unsigned long long)w->n_rows_done[BT_ROLE_GENERATED],
            (unsigned long long)w->handoff_pages, (unsigned long long)w->handoff_bytes,
            (unsigned long long)w->n_ahead,
            (unsigned long long)(w->cfg.dev->n_allocs - w->ready_allocs),
            (unsigned long long)w->n_drafted, (unsigned long long)w->n_draft_right);
}

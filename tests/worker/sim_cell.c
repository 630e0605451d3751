/* tests/worker/sim_cell.c - the simulated cell itself: its ranks, their turns, its end. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/worker/sim_state.h"

enum { STEP_LIMIT = 400000 };

uint32_t sim_roll(sim_cell *c, uint32_t n)
{
    c->random = c->random * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(c->random >> 33) % n;
}

void sim_check(sim_cell *c, bt_status st)
{
    if (st == BT_OK) return;
    fprintf(stderr, "a rank stops: %s\n", bt_error_text());
    c->broken = true;
}

static void set_model(bt_model_config *m)
{
    *m                    = (bt_model_config){.vocab_size      = SIM_VOCAB,
                                              .hidden          = 8,
                                              .n_layers        = SIM_LAYERS,
                                              .max_context     = SIM_CONTEXT,
                                              .first_moe_layer = 1,
                                              .moe_layer_freq  = 1,
                                              .n_eos           = 1,
                                              .eos_tokens      = {SIM_EOS}};
    m->moe.gate.n_experts = SIM_EXPERTS;
    m->moe.gate.top_k     = SIM_TOP_K;
    m->mla = (bt_mla_config){.kv_lora_rank = 16, .qk_nope_dim = 8, .qk_rope_dim = 4, .v_dim = 8};
}

static void create_rank(sim_cell *c, uint32_t rank)
{
    sim_rank         *r    = &c->ranks[rank];
    bt_kv_pool_config pool = {.n_layers = bt_model_n_served_layers(&c->model),
                              .n_pages  = c->opt.n_pages,
                              .kv_dim   = SIM_DIM};
    bt_worker_config  cfg  = {.dev        = c->dev,
                              .kernels    = bt_cpu_kernels_find("auto"),
                              .epoch      = 1,
                              .chunk      = c->opt.chunk,
                              .max_rows   = c->opt.max_rows,
                              .lookahead  = true,
                              .timeout_ns = 10 * BT_NS_PER_S,
                              .wake_ns    = 10 * BT_NS_PER_S};

    r->cell        = c;
    cfg.links      = sim_links(r); /* of its cell */
    r->rank        = rank;
    r->group       = c->opt.n_both == 0 && rank >= c->opt.n_prefill;
    r->epoch       = c->group_epoch[r->group];
    cfg.facts      = (bt_rank_facts){.rank            = rank,
                                     .n_ranks         = c->n_ranks,
                                     .n_prefill       = c->opt.n_prefill,
                                     .n_decode        = c->opt.n_decode,
                                     .model           = &c->model,
                                     .n_pages         = c->opt.n_pages,
                                     .share_generated = c->opt.share,
                                     .speculate       = c->opt.speculate,
                                     .mtp             = c->opt.mtp,
                                     .constraints     = c->constraints,
                                     .keeps_maps      = sim_keeps_maps(c)};
    cfg.form       = c->opt.by_cost ? BT_FORM_BY_COST : BT_FORM_BY_ROLE;
    cfg.group_size = c->group_size[r->group];
    if (bt_kv_pool_create(c->dev, &pool, &r->pool) != BT_OK) abort();
    cfg.pool = r->pool;
    if (bt_worker_create(&cfg, &r->worker) != BT_OK) abort();
}

sim_cell *sim_create(const sim_options *opt)
{
    sim_cell             *c   = calloc(1, sizeof(*c));
    bt_device_cpu_options cpu = {.n_threads = 1, .kernels = "auto"};

    sim_n_peaks       = opt->n_peaks != 0 ? opt->n_peaks : SIM_VOCAB;
    c->opt            = *opt;
    c->random         = opt->seed * 0x9E3779B97F4A7C15ull + 1;
    c->now            = BT_NS_PER_S;
    c->n_ranks        = opt->n_both + opt->n_prefill + opt->n_decode;
    c->group_size[0]  = opt->n_both + opt->n_prefill;
    c->group_size[1]  = opt->n_decode;
    c->group_first[1] = opt->n_prefill;
    c->epoch = c->group_epoch[0] = c->group_epoch[1] = 1;
    set_model(&c->model);
    c->model.mtp = opt->mtp != 0;
    if (bt_device_cpu_create(&cpu, &c->dev) != BT_OK) abort();
    if (bt_sampler_init(&c->sampler, bt_cpu_kernels_find("auto")->rows, SIM_VOCAB) != BT_OK)
        abort();
    if (bt_constraints_open(BT_SOURCE_DIR "/models/demo", SIM_VOCAB, BT_CONSTRAINTS_BYTES,
                            &c->constraints) != BT_OK)
        abort();
    c->ops = *c->dev->ops;
    if (opt->lookahead) c->ops.sampling = &sim_sampling;
    c->dev->ops = &c->ops;
    for (uint32_t i = 0; i < c->n_ranks; i++)
        create_rank(c, i);
    return c;
}

void sim_destroy(sim_cell *c)
{
    while (c->n_flights > 0)
        sim_drop_flight(c, c->n_flights - 1);
    for (uint32_t i = 0; i < c->n_ranks; i++) {
        sim_rank *r = &c->ranks[i];

        while (r->inbox_at < r->n_inbox)
            bt_down_free(&r->inbox[r->inbox_at++]);
        sim_forget_said(r);
        for (uint32_t k = 0; k < SIM_MAX_LATE; k++)
            free(r->late[k].edits);
        free(r->draft.edits);
        bt_worker_destroy(r->worker);
        bt_kv_pool_destroy(r->pool);
    }
    bt_constraints_close(c->constraints);
    bt_sampler_fini(&c->sampler);
    bt_device_destroy(c->dev);
    free(c);
}

sim_request *sim_add(sim_cell *c, uint32_t n_prompt, uint32_t max_tokens)
{
    sim_request *q = &c->requests[c->n_requests++];

    if (c->n_requests > SIM_MAX) abort();
    q->id = q->first_id = c->n_requests;
    q->n_choices        = 1;
    q->n_prompt         = n_prompt;
    q->max_tokens       = max_tokens;
    q->stop_token       = SIM_VOCAB;
    for (uint32_t i = 0; i < n_prompt; i++)
        q->prompt[i] = (uint32_t)(sim_mix(q->id * 1000 + i) % sim_n_peaks);
    q->prefill_rank = (uint32_t)q->id % c->group_size[0];
    q->decode_rank =
        c->opt.n_both != 0 ? q->prefill_rank : c->opt.n_prefill + (uint32_t)q->id % c->opt.n_decode;
    return q;
}

/* Somebody dies under way, one of the group or the coordinator: each of the others has got what it
 * needed before, or not. */
static void break_step(sim_cell *c, uint32_t group, const bt_plan *plans)
{
    for (uint32_t i = 0; i < c->group_size[group]; i++) {
        sim_rank *r = &c->ranks[c->group_first[group] + i];
        bt_status st;

        if (r->dead) continue;
        r->waiting = false;
        r->cut_at  = sim_roll(c, 2) == 0 ? 0 : 1 + sim_roll(c, bt_model_n_served_layers(&c->model));
        st         = bt_worker_finish(r->worker, plans, &r->left);
        if (r->is_cut && st != BT_ERR_CANCELLED) c->broken = true;
        if (!r->is_cut) sim_check(c, st);
        r->is_cut        = false;
        r->cut_at        = 0;
        r->n_draft_calls = 0; /* some have made more than others */
    }
    if (c->forsaken) {
        sim_lose_coordinator(c, false);
        return;
    }
    sim_kill(c, c->doomed - 1, false);
    c->doomed = 0;
}

/* They are exchanges: all of the group make as many. */
static void check_drafts(sim_cell *c, uint32_t group)
{
    const sim_rank *first = NULL;

    for (uint32_t i = 0; i < c->group_size[group]; i++) {
        const sim_rank *r = &c->ranks[c->group_first[group] + i];

        if (r->dead) continue;
        if (first == NULL) first = r;
        if (r->n_draft_calls == first->n_draft_calls) continue;
        fprintf(stderr, "ranks %u and %u draft otherwise\n", first->rank, r->rank);
        c->broken = true;
    }
}

static void finish_group(sim_cell *c, uint32_t group)
{
    bt_plan  plans[SIM_MAX_RANKS];
    uint32_t n = 0;

    for (uint32_t i = 0; i < c->group_size[group]; i++) {
        sim_rank *r = &c->ranks[c->group_first[group] + i];

        if (r->dead) continue;
        if (!r->waiting || r->epoch != c->group_epoch[group]) return;
        plans[n++] = r->plan;
    }
    if (c->forsaken || (c->doomed != 0 && c->ranks[c->doomed - 1].group == group)) {
        break_step(c, group, plans);
        return;
    }
    for (uint32_t i = 0; i < c->group_size[group]; i++) {
        sim_rank *r = &c->ranks[c->group_first[group] + i];

        if (r->dead) continue;
        r->waiting = false;
        sim_check(c, bt_worker_finish(r->worker, plans, &r->left));
    }
    check_drafts(c, group);
}

static void take_message(sim_cell *c, sim_rank *r)
{
    bt_down m = r->inbox[r->inbox_at++];

    if (r->inbox_at == r->n_inbox) r->inbox_at = r->n_inbox = 0;
    if (m.kind == BT_DOWN_REGROUP) sim_follow(c, r, &m.u.regroup);
    sim_check(c, bt_worker_control(r->worker, &m));
    bt_down_free(&m);
}

/* The exchange that it waits in will never end: it has heard of another epoch. */
static bool hears_of_change(const sim_rank *r)
{
    for (uint32_t i = r->inbox_at; i < r->n_inbox; i++)
        if (r->inbox[i].kind == BT_DOWN_REGROUP &&
            r->inbox[i].u.regroup.groups[r->group].epoch != r->epoch)
            return true;
    return false;
}

static void act(sim_cell *c, sim_rank *r)
{
    bt_next next = BT_NEXT_PARK;

    if (r->left || r->dead) return;
    if (r->waiting && hears_of_change(r)) {
        r->waiting = false;
        while (r->inbox_at < r->n_inbox) /* all of it, before the next step */
            take_message(c, r);
    }
    if (r->waiting || sim_roll(c, 3) == 0) {
        bt_worker_background(r->worker);
        sim_check(c, bt_worker_background_status(r->worker));
        return;
    }
    for (uint32_t n = sim_roll(c, 4); n > 0 && r->inbox_at < r->n_inbox; n--)
        take_message(c, r);
    sim_check(c, bt_worker_begin(r->worker, &r->plan, &next));
    r->left    = next == BT_NEXT_LEAVE;
    r->waiting = next == BT_NEXT_GATHER;
    if (r->waiting) finish_group(c, r->group);
}

static void hear_some(sim_cell *c, sim_rank *r)
{
    for (uint32_t n = sim_roll(c, 8); n > 0 && r->n_said > 0; n--)
        sim_hear(r);
}

bool sim_act(sim_cell *c)
{
    c->now += BT_NS_PER_MS / 10;
    act(c, &c->ranks[sim_roll(c, c->n_ranks)]);
    if (c->opt.late_words && sim_roll(c, 10) == 0) hear_some(c, &c->ranks[sim_roll(c, c->n_ranks)]);
    for (uint32_t i = 0; i < c->n_requests; i++) {
        sim_request *q = &c->requests[i]; /* refused: again when somebody has let go */

        if (q->lost) continue;
        if (q->n_choices > 0 && q->refused && !q->reserved && !q->aborted && sim_roll(c, 50) == 0)
            sim_start(c, q);
        sim_resume(c, q);
    }
    return !c->broken;
}

bool sim_ended(const sim_request *q)
{
    uint32_t seen = 0;

    if (q->n_choices == 0 || q->lost) return true; /* ends with the first */
    for (uint32_t i = 0; q->eval && i < q->n_prompt + q->n_eval; i++)
        seen += q->rows_seen[i];
    if (!q->aborted && !q->failed && !(q->eval && seen == q->n_prompt + q->n_eval)) return false;
    return (!q->reserved || q->released[q->decode_rank]) &&
           (!q->ticketed || q->released[q->prefill_rank]);
}

bool sim_run(sim_cell *c)
{
    for (uint32_t k = 0; k < STEP_LIMIT; k++) {
        bool all = true;

        if (!sim_act(c)) return false;
        for (uint32_t i = 0; i < c->n_requests; i++)
            all = all && sim_ended(&c->requests[i]);
        if (all && c->n_flights == 0) return true;
    }
    for (uint32_t i = 0; i < c->n_requests; i++)
        if (!sim_ended(&c->requests[i]))
            fprintf(stderr, "request %u has not ended: %u tokens, ticketed %d, released %d %d\n",
                    i + 1, c->requests[i].n_tokens, c->requests[i].ticketed,
                    c->requests[i].released[c->requests[i].prefill_rank],
                    c->requests[i].released[c->requests[i].decode_rank]);
    return false;
}

bool sim_shut_down(sim_cell *c)
{
    bt_down m   = {.kind = BT_DOWN_SHUTDOWN};
    bool    all = false;

    for (uint32_t i = 0; i < c->n_ranks; i++)
        sim_give(c, i, &m);
    for (uint32_t k = 0; k < 20000 && !all; k++) {
        if (!sim_act(c)) return false;
        all = true;
        for (uint32_t i = 0; i < c->n_ranks; i++)
            all = all && (c->ranks[i].left || c->ranks[i].dead);
    }
    return all;
}

uint32_t sim_n_ranks(const sim_cell *c) { return c->n_ranks; }
uint32_t sim_free_pages(const sim_cell *c, uint32_t rank)
{
    return bt_kv_pool_n_available(c->ranks[rank].pool);
}
bool sim_pool_is_sound(const sim_cell *c, uint32_t rank)
{
    return bt_kv_pool_check(c->ranks[rank].pool) == BT_OK;
}
uint64_t sim_steps(const sim_cell *c) { return c->n_steps; }
uint64_t sim_steps_ahead(const sim_cell *c) { return c->n_ahead; }
uint64_t sim_stale_rows(const sim_cell *c) { return c->n_stale; }
uint64_t sim_draws_uncounted(const sim_cell *c) { return c->n_uncounted; }
void     sim_pass_time(sim_cell *c, uint64_t ns) { c->now += ns; }

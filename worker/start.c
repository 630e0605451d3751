/* worker/start.c - how a rank comes to life:
 *
 *     config and checkpoint headers -> device -> group, hand-off -> memory account -> Hello
 *     -> load the weights (Progress) -> pages, graphs -> Ready
 *
 * What ranks wait for each other for comes before the weights, which one may read for longer than
 * another one. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "attention/page_rows.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "core/file.h"
#include "core/machine.h"
#include "core/thread.h"
#include "model/weights.h"
#include "parallel/carrier.h"
#include "proto/config_hash.h"
#include "worker/draws.h"
#include "worker/rank.h"

#define CONNECT_NS (30 * BT_NS_PER_S)
#define GRANT_NS   (2 * BT_NS_PER_S)

/* A rank that computes moves one message a layer: it should hold what a piece of 2,048 tokens adds
 * to a layer, 2.25 MiB of latents of 576, so that pages keep up with the layers. */
enum { SLOT_BYTES = 4 << 20, N_SLOTS = 8 };
_Static_assert(BT_STAGING_BYTES == SLOT_BYTES * (N_SLOTS + BT_HANDOFF_INBOXES), "staging");

static void *read_tokens(void *ctx)
{
    bt_rank *r = ctx;

    r->tokens_st =
        bt_constraints_open(r->opt.model, r->cfg.vocab_size, BT_CONSTRAINTS_BYTES, &r->constraints);
    return NULL;
}

/* A large vocabulary takes some tenths of a second: beside the weights. */
static void begin_tokens(bt_rank *r)
{
    r->reads_tokens = bt_thread_start(&r->tokens_reader, read_tokens, r) == 0;
    if (!r->reads_tokens) read_tokens(r);
}

static bt_status await_tokens(bt_rank *r)
{
    if (r->reads_tokens) pthread_join(r->tokens_reader, NULL);
    r->reads_tokens = false;
    return r->tokens_st;
}

static bt_status read_model(bt_rank *r)
{
    bt_status   st    = BT_OK;
    const char *cache = r->opt.weights_cache;

    if (cache != NULL) BT_TRY(bt_check_folder("--weights-cache", cache));
    BT_TRY(bt_model_config_read(r->opt.model, &r->cfg));
    BT_TRY(bt_safetensors_open(r->opt.model, &r->st));
    if (r->opt.mtp != 0) BT_TRY(bt_model_config_serve_mtp(&r->cfg));
    begin_tokens(r);
    r->fingerprint = bt_model_fingerprint(&r->cfg, r->st);
    r->config_hash = bt_config_hash(r->opt.model);
out:
    return st;
}

/* Marks the experts of seat `self` of a group of n in own[n_experts]. */
static bt_status mark_experts(const bt_rank *r, uint32_t n, uint32_t self, bool *own)
{
    bt_status             st        = BT_OK;
    const bt_gate_config *gate      = &r->cfg.moe.gate;
    bt_placement          placement = {0};

    BT_TRY(bt_placement_init(&placement, gate->n_experts, gate->n_groups, n));
    for (uint32_t e = 0; e < gate->n_experts; e++)
        if (placement.owner[e] == self) own[e] = true;
out:
    bt_placement_fini(&placement);
    return st;
}

/* Marks the experts that world rank `rank` has once it has a seat.  A spare reckons with the seat
 * that needs most, in the smaller group. */
static bt_status mark_rank(const bt_rank *r, uint32_t rank, bool *own)
{
    uint32_t n_first  = r->seating.groups[BT_GROUP_PREFILL].n,
             n_second = r->seating.groups[BT_GROUP_DECODE].n;

    if (rank < n_first) return mark_experts(r, n_first, rank, own);
    if (rank < n_first + n_second) return mark_experts(r, n_second, rank - n_first, own);
    if (n_second != 0 && n_second < n_first) n_first = n_second;
    return mark_experts(r, n_first, n_first - 1, own);
}

/* A spare may come to. */
static bool only_prefills(const bt_rank *r, uint32_t rank)
{
    const bt_seats *groups = r->seating.groups;
    uint32_t        first  = groups[BT_GROUP_PREFILL].n;

    return !bt_rank_has_both(&r->facts) &&
           (rank < first || rank >= first + groups[BT_GROUP_DECODE].n);
}

/* Room for the experts of a lost rank.  Where the ranks of a machine share packed weights, those of
 * one role, which load `alike` together, cannot need more than the whole model. */
static void count_adopted(bt_rank *r, uint32_t group, uint64_t none, uint64_t alike)
{
    bt_memory_account *m     = &r->memory;
    uint32_t           n     = r->cfg.moe.gate.n_experts;
    uint64_t           whole = bt_memory_weights(&r->cfg, r->st, NULL), most;

    if (n == 0) return;
    m->expert = (whole - none) / n;
    if (!r->opt.replace) return;
    m->adopt = bt_memory_adopted(n, group) * m->expert;
    most     = (whole - alike) / bt_world_local_size(r->world);
    if (r->store != NULL && m->adopt > most) m->adopt = most;
}

/* What this rank loads, and what all ranks of this machine load together. */
static bt_status count_weights(bt_rank *r, uint32_t group, uint64_t *own_out, uint64_t *all_out)
{
    bt_status st = BT_OK;
    uint32_t  n  = r->cfg.moe.gate.n_experts;
    uint64_t  none;
    bool     *own = bt_calloc(n, sizeof(*own)), *all = bt_calloc(n, sizeof(*all)),
         *alike = bt_calloc(n, sizeof(*alike));

    BT_REQUIRE(own != NULL && all != NULL && alike != NULL, BT_ERR_NO_MEMORY, "lists of %u experts",
               n);
    none = bt_memory_weights(&r->cfg, r->st, own);
    if (n != 0) BT_TRY(mark_rank(r, r->facts.rank, own));
    for (uint32_t rank = 0; n != 0 && rank < r->facts.n_ranks; rank++) {
        if (!bt_world_same_machine(r->world, r->facts.rank, rank)) continue;
        BT_TRY(mark_rank(r, rank, all));
        if (only_prefills(r, rank) == only_prefills(r, r->facts.rank))
            BT_TRY(mark_rank(r, rank, alike));
    }
    r->memory.dense = none - (uint64_t)r->cfg.vocab_size * r->cfg.hidden *
                                 sizeof(bt_bf16); /* rows of which are */
    *own_out = bt_memory_weights(&r->cfg, r->st, own);
    *all_out = bt_memory_weights(&r->cfg, r->st, all);
    count_adopted(r, group, none, bt_memory_weights(&r->cfg, r->st, alike));
out:
    bt_free(own);
    bt_free(all);
    bt_free(alike);
    return st;
}

/* What an earlier start has packed of this model. */
static void open_packed(bt_rank *r, uint64_t key)
{
    size_t n = r->opt.weights_cache == NULL ? 0 : strlen(r->opt.weights_cache) + 32;

    if (n == 0) return;
    r->packed_path = bt_calloc(n, 1);
    if (r->packed_path == NULL) return;
    snprintf(r->packed_path, n, "%s/%016" PRIx64 ".packed", r->opt.weights_cache, key);
    if (bt_packed_open(r->packed_path, key, &r->packed) != BT_OK)
        BT_WARN("%s is not used: weights are packed again", r->packed_path);
}

/* Opens what the ranks of this machine share.  Without it each has its own weights: more memory,
 * no other difference. */
static void open_store(bt_rank *r)
{
    bt_store_options opt = {.fd         = -1,
                            .member     = bt_world_local_rank(r->world),
                            .rank       = r->facts.rank,
                            .timeout_ns = r->opt.timeout_ns};

    if (!r->dev->host_memory) {
        if (r->opt.weights_cache != NULL) BT_WARN("--weights-cache has no effect on a GPU");
        return;
    }
    bt_model_store_options(&r->cfg, r->st, &opt);
    open_packed(r, opt.key);
    /* a rank alone shares with its next start only */
    if (r->packed_path != NULL || bt_world_local_size(r->world) > 1)
        opt.fd = bt_world_shared_fd(r->world);
    if (opt.fd >= 0 && bt_store_open(&opt, &r->store) != BT_OK)
        BT_WARN("this rank packs weights of its own");
}

static bt_status create_handoff(bt_rank *r)
{
    bt_handoff_config cfg    = {.n_slots    = N_SLOTS,
                                .grant_ns   = GRANT_NS,
                                .slot_bytes = SLOT_BYTES,
                                .nccl       = r->nccl,
                                .dev        = r->dev};
    bt_handoff_events events = bt_links_events(&r->links);
    bt_status         st     = BT_OK;

    if (bt_rank_has_both(&r->facts)) goto out;
    BT_TRY(bt_handoff_create(r->world, &cfg, &events, &r->handoff));
    BT_TRY(bt_rank_join_handoff(r, BT_FIRST_EPOCH, r->seating.groups));
out:
    return st;
}

static void poll_handoff(void *ctx) { bt_handoff_poll(ctx); }

/* Nobody goes on before all are ready: a rank that fails at first needs all others for another
 * try. */
static bt_status await_handoff(bt_rank *r, bt_wait wait)
{
    bt_status st  = BT_OK;
    bt_group *all = NULL;

    if (r->group != NULL) BT_TRY(bt_handoff_await_ready(r->handoff, &wait)); /* not a spare's */
    wait.idle = poll_handoff;
    wait.ctx  = r->handoff;
    wait.what = "connection of all ranks";
    BT_TRY(bt_rank_form_all(r, &all));
    BT_TRY(bt_group_barrier(all, &wait));
    if (r->group != NULL) BT_TRY(bt_handoff_await_ready(r->handoff, &wait));
out:
    bt_group_destroy(all);
    return st;
}

/* By NCCL: communicators, and a first message between each pair of their ranks. */
static bt_status connect_ranks(bt_rank *r)
{
    bt_status st       = BT_OK;
    bt_wait   wait     = bt_rank_wait_at_start(r, "first exchange");
    uint64_t  start_ns = bt_now_ns(), before = 0, after = 0, all = 0;

    BT_TRY(bt_device_memory(r->dev, &before, &all));
    BT_TRY(create_handoff(r));
    if (r->group != NULL) BT_TRY(bt_group_warm(r->group, &wait)); /* a spare's with its seat */
    if (r->handoff != NULL && r->nccl != NULL) BT_TRY(await_handoff(r, wait));
    BT_TRY(bt_device_memory(r->dev, &after, &all));
    if (r->nccl != NULL)
        BT_INFO("connected by NCCL after %.1f ms, which took %.1f MiB of the GPU",
                (double)(bt_now_ns() - start_ns) / BT_NS_PER_MS,
                before > after ? (double)(before - after) / (1 << 20) : 0.0);
out:
    return st;
}

/* Of attention, whose weights this rank has. */
static void choose_forms(const bt_rank *r, bool *normal_out, bool *absorbed_out)
{
    bool any = bt_rank_has_both(&r->facts) || r->group == NULL; /* a spare may become either */

    switch (r->opt.form) {
    case BT_FORM_ALL_NORMAL:
    case BT_FORM_ALL_ABSORBED:
        *normal_out   = r->opt.form == BT_FORM_ALL_NORMAL;
        *absorbed_out = !*normal_out;
        break;
    case BT_FORM_BY_COST: *normal_out = *absorbed_out = true; break;
    default: /* a prompt may have to be computed again as it was generated */
        *normal_out   = any || bt_rank_prefills(&r->facts);
        *absorbed_out = any || bt_rank_decodes(&r->facts) || r->opt.share_generated;
        break;
    }
}

/* Whether this rank's steps count as those of few rows, which want bf16 weights in 12 bits; many,
 * as a prompt has, want them as they are.  Ranks of one machine that are of two minds share no
 * weights, so it has to have plenty of memory: `all` is what they load together.  Returns how much
 * of that, at most, they have twice. */
static uint64_t choose_rows(bt_rank *r, uint64_t all)
{
    bool     many = false, few = false, both;
    uint64_t twice     = r->cfg.fp8 || r->cfg.int4 ? r->memory.dense : all,
             available = r->memory.available;

    if (!r->dev->host_memory || !bt_device_cpu_table(r->dev)->bf12) return 0;
    for (uint32_t rank = 0; rank < r->facts.n_ranks; rank++) {
        if (!bt_world_same_machine(r->world, r->facts.rank, rank)) continue;
        many |= only_prefills(r, rank);
        few |= !only_prefills(r, rank);
    }
    /* Others may have begun to load: what they have is no less plenty. */
    if (r->store != NULL) available += bt_store_bytes(r->store);
    both        = many && few && bt_weights_fit_twice(all, twice, available);
    r->few_rows = !only_prefills(r, r->facts.rank) && (!many || both);
    return both && r->store != NULL ? twice : 0;
}

/* Of the step's tokens, and of drafts behind it. */
static uint32_t n_draw_lists(const bt_rank *r) { return r->opt.mtp != 0 ? 2 : 1; }

/* Pinned memory that this rank will have. */
static uint64_t count_pinned(const bt_rank *r)
{
    uint64_t bytes =
        r->dev->pinned_bytes +
        n_draw_lists(r) * bt_draw_list_pinned_bytes(r->dev, r->cfg.vocab_size, r->opt.max_rows);

    if (r->placement.n_experts != 0 && r->group_size > 1 && r->nccl == NULL)
        bytes += bt_moe_exchange_bytes(r->dev, &r->placement, &r->cfg.moe, r->group_self,
                                       r->opt.max_rows);
    return bytes;
}

static bt_status draw_account(bt_rank *r)
{
    bt_status          st      = BT_OK;
    uint64_t           all     = 0;
    bt_memory_account *m       = &r->memory;
    bool               handoff = !bt_rank_has_both(&r->facts);
    uint32_t           group   = r->group != NULL ? r->group_size : r->facts.n_ranks;
    bool               normal, absorbed;

    choose_forms(r, &normal, &absorbed);
    BT_TRY(count_weights(r, group, &m->weights, &all));
    m->shared     = r->store != NULL ? all : 0;
    m->on_gpu     = !r->dev->host_memory;
    m->local_size = m->on_gpu ? r->gpu_sharers : bt_world_local_size(r->world);
    m->available  = bt_memory_available();
    if (m->on_gpu && r->gpu_sharers > 1)
        m->available = r->gpu_left;
    else if (m->on_gpu)
        BT_TRY(bt_memory_available_on(r->dev, &m->available));
    m->shared += choose_rows(r, all);
    m->max_rows = r->opt.max_rows;
    m->step     = bt_model_step_bytes(&r->cfg, group, r->opt.max_rows) +
              bt_mla_large_bytes(r->dev, &r->cfg.mla, r->opt.max_rows) +
              bt_moe_tile_bytes(r->dev, &r->cfg.moe, group, r->opt.max_rows) +
              n_draw_lists(r) * bt_draw_list_bytes(r->dev, r->cfg.vocab_size, r->opt.max_rows);
    if (r->threads != NULL)
        m->step += bt_cpu_pool_n_threads(r->threads) * bt_sampler_bytes(r->cfg.vocab_size);
    if (absorbed) m->graphs = bt_model_graph_bytes(r->dev, &r->cfg, r->opt.max_rows);
    if (handoff && r->nccl == NULL) /* NCCL's has been taken by now */
        m->staging = m->on_gpu ? SLOT_BYTES : BT_STAGING_BYTES;
    if (m->on_gpu) {
        m->pinned = count_pinned(r);
        BT_TRY(bt_memory_check_pinned(m, m->pinned - r->dev->pinned_bytes,
                                      bt_world_local_size(r->world), bt_memory_available()));
    }
    BT_TRY(bt_memory_plan_pages(&r->cfg, r->opt.kv_bytes, m));
    r->facts.n_pages         = m->n_pages;
    r->facts.share_generated = r->opt.share_generated;
    r->facts.speculate       = r->opt.speculate;
    r->facts.mtp             = r->opt.mtp;
    r->facts.keeps_maps      = r->opt.share_generated || r->opt.form == BT_FORM_BY_COST;
    bt_memory_print(m);
out:
    return st;
}

/* Reading weights takes long: report progress, and see whether anybody still wants them. */
static void on_load(void *ctx, uint64_t done_bytes, uint64_t total_bytes)
{
    bt_rank *r   = ctx;
    uint64_t now = bt_now_ns();

    /* The end is told at once, but once: a wait for what other ranks pack may follow. */
    if (now - r->progress_ns >= 100 * BT_NS_PER_MS ||
        (done_bytes == total_bytes && r->progress_bytes != total_bytes)) {
        r->progress_ns    = now;
        r->progress_bytes = done_bytes;
        bt_rank_say_progress(r, done_bytes, total_bytes);
    }
    bt_rank_pass_on_drain(r);
    if (bt_links_must_leave(&r->links) || r->links.shutdown_ns != 0 ||
        bt_rank_tend_coordinator(r) != BT_OK)
        bt_rank_leave_early(r, BT_ERR_CANCELLED);
}

/* One byte short of all, so that the coordinator sees it go on. */
static void on_save(void *ctx)
{
    bt_rank *r = ctx;

    on_load(r, bt_model_weight_bytes(r->model) - 1, bt_model_weight_bytes(r->model));
}

/* For the next start; this one does without. */
static void save_packed(bt_rank *r)
{
    uint64_t start_ns = bt_now_ns();

    if (r->packed_path == NULL || r->store == NULL) return;
    if (bt_store_save(r->store, r->packed_path, r->packed, on_save, r) != BT_OK)
        BT_WARN("packed weights are not kept in %s", r->packed_path);
    else if (bt_now_ns() - start_ns > BT_NS_PER_S / 10)
        BT_INFO("packed weights kept in %s in %.1f s", r->packed_path,
                (double)(bt_now_ns() - start_ns) / BT_NS_PER_S);
}

static bt_status load(bt_rank *r)
{
    bt_status        st       = BT_OK;
    uint64_t         start_ns = bt_now_ns();
    bt_model_options opt      = {.dev            = r->dev,
                                 .group          = r->group,
                                 .placement      = &r->placement,
                                 .max_rows       = r->opt.max_rows,
                                 .max_logit_rows = r->opt.max_rows,
                                 .store          = r->store,
                                 .packed         = r->packed,
                                 .progress       = on_load,
                                 .progress_ctx   = r};

    choose_forms(r, &opt.normal, &opt.absorbed);
    opt.few_rows = r->few_rows;
    BT_TRY(bt_model_load(&r->cfg, r->st, &opt, &r->model));
    BT_INFO(
        "loaded in %.2f s: weights %.1f MiB, of them %.1f MiB shared with this machine's ranks, "
        "workspace %.1f MiB",
        (double)(bt_now_ns() - start_ns) / 1e9, (double)bt_model_weight_bytes(r->model) / (1 << 20),
        (double)bt_model_shared_bytes(r->model) / (1 << 20),
        (double)bt_model_workspace_bytes(r->model) / (1 << 20));
    save_packed(r);
out:
    return st;
}

static bt_status create_worker(bt_rank *r)
{
    bt_status         st   = BT_OK;
    bt_kv_pool_config pool = {.n_layers = bt_model_n_served_layers(&r->cfg),
                              .n_pages  = r->memory.n_pages,
                              .kv_dim   = bt_mla_kv_dim(&r->cfg.mla)};
    bt_wait wait = {.timeout_ns = r->opt.timeout_ns, .what = "capture of graphs", .layer = -1};
    bt_worker_config cfg;

    r->facts.constraints = r->constraints;
    BT_TRY(bt_kv_pool_create(r->dev, &pool, &r->pool));
    if (r->handoff != NULL && r->nccl == NULL)
        BT_TRY(bt_page_rows_reserve(r->pool, bt_handoff_payload_max(r->handoff)));
    bt_model_warm(r->model, r->pool, &wait);
    r->links.handoff = r->handoff;
    r->links.model   = r->model;
    r->links.world   = r->world;
    r->links.pool    = r->pool;
    r->links.group   = r->group;
    cfg              = (bt_worker_config){
                     .facts      = r->facts,
                     .form       = r->opt.form,
                     .dev        = r->dev,
                     .pool       = r->pool,
                     .kernels    = r->kernels,
                     .threads    = r->threads,
                     .links      = bt_links_table(&r->links),
                     .group_size = r->group_size,
                     .epoch      = BT_FIRST_EPOCH,
                     .chunk      = r->opt.chunk,
                     .max_rows   = r->opt.max_rows,
                     .lookahead  = r->opt.lookahead != 0,
                     .reads      = {(double)r->memory.dense, (double)r->memory.expert},
                     .timeout_ns = r->opt.timeout_ns,
                     .wake_ns    = bt_rank_patience_ns(r)
    };
    BT_TRY(bt_worker_create(&cfg, &r->worker));
    r->links.worker = r->worker;
out:
    return st;
}

/* Logs what is left of a GPU's memory, and what is pinned of the host's, once everything that
 * steps need has been taken. */
static bt_status print_headroom(bt_rank *r)
{
    bt_status st   = BT_OK;
    uint64_t  left = 0, all = 0;

    BT_TRY(bt_device_memory(r->dev, &left, &all));
    if (all != 0)
        BT_INFO("headroom: %.1f of the GPU's %.1f MiB are free; %.1f MiB of the host's are pinned",
                (double)left / (1 << 20), (double)all / (1 << 20),
                (double)r->dev->pinned_bytes / (1 << 20));
out:
    return st;
}

bt_status bt_rank_start(bt_rank *r)
{
    bt_status st = BT_OK;
    bt_up     hello;

    BT_TRY(bt_worker_options_check_ranks(&r->opt, bt_world_size(r->world)));
    BT_TRY(bt_rank_find_place(r));
    BT_TRY(read_model(r));
    BT_TRY(bt_rank_open_device(r));
    BT_TRY(bt_rank_open_transport(r));
    BT_TRY(bt_rank_form_group(r, r->seating.groups));
    BT_TRY(connect_ranks(r));
    open_store(r);
    BT_TRY(draw_account(r));
    BT_TRY(bt_control_client_start(r->opt.coordinator, CONNECT_NS, r->opt.quiet_ns, &r->client));
    bt_links_set_client(&r->links, r->client);
    *r->tell = 1;
    BT_TRY(bt_rank_make_hello(r, &hello));
    BT_TRY(bt_links_send(&r->links, &hello));
    BT_TRY(load(r));
    BT_TRY(await_tokens(r));
    BT_TRY(create_worker(r));
    BT_TRY(print_headroom(r));
    BT_TRY(bt_rank_say_ready(r));
    BT_INFO("ready: rank %u of %u, %s, group of %u, arithmetic %s", r->facts.rank, r->facts.n_ranks,
            r->group == NULL              ? "spare"
            : bt_rank_has_both(&r->facts) ? "both roles"
            : bt_rank_prefills(&r->facts) ? "prefill"
                                          : "decode",
            r->group_size, r->dev->arithmetic);
out:
    return st;
}

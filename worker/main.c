/* baton-worker - one rank of a cell.
 *
 *     options -> MPI -> config and checkpoint headers -> device -> memory account -> Hello
 *     -> load the weights (Progress) -> pages, hand-off -> Ready -> steps -> leave
 *
 * Every rank of the job goes through the same order; what is collective over the job (MPI's start,
 * the hand-off's creation) comes where no rank can have failed alone without its process ending. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "worker/links.h"
#include "worker/memory.h"
#include "worker/options.h"

#define CONNECT_NS     (30 * BT_NS_PER_S)
#define FLUSH_NS       (2 * BT_NS_PER_S)
#define GRANT_NS       (2 * BT_NS_PER_S)
#define IDLE_SLEEP_NS  (100 * BT_NS_PER_MS) /* a message or a signal ends it */
#define WATCH_SLEEP_NS (1 * BT_NS_PER_MS) /* between looks for pages that are expected */
#define FIRST_SLEEP_NS (20 * BT_NS_PER_US)

enum { SLOT_BYTES = 1 << 20, N_SLOTS = 8, EPOCH = 1, FINALIZE_S = 10, PROTOCOL = 1 };
enum { TAG_PREFILL = 0, TAG_DECODE = 1 };

typedef struct {
    bt_worker_options  opt;
    bt_world          *world;
    bt_rank_facts      facts;
    bt_model_config    cfg; /* not copied: its rope pointer points into it */
    bt_safetensors    *st;
    bt_device         *dev;
    bt_placement       placement;
    bool               has_placement;
    uint32_t           group_size, group_self, group_first;
    bt_group          *group;
    bt_memory_account  memory;
    bt_control_client *client;
    bt_model          *model;
    bt_kv_pool        *pool;
    bt_handoff        *handoff;
    bt_links           links;
    bt_worker         *worker;
    bt_plan           *plans;
    uint64_t           progress_ns;
} rank;

static volatile sig_atomic_t g_signal;
static volatile sig_atomic_t g_tell; /* somebody is there to be told why this rank leaves */

static void on_signal(int number)
{
    if (!g_tell) _exit(EXIT_SUCCESS);
    g_signal = number;
}

static void on_alarm(int number)
{
    (void)number;
    _exit(EXIT_FAILURE); /* MPI_Finalize hangs, as it can when a rank has died */
}

static void install_signals(void)
{
    struct sigaction leave = {.sa_handler = on_signal}, late = {.sa_handler = on_alarm};

    sigaction(SIGTERM, &leave, NULL);
    sigaction(SIGINT, &leave, NULL);
    sigaction(SIGALRM, &late, NULL);
    signal(SIGPIPE, SIG_IGN);
}

/* ---- start */

static void find_place(rank *r)
{
    bt_rank_facts *f = &r->facts;

    *f = (bt_rank_facts){.rank      = bt_world_rank(r->world),
                         .n_ranks   = bt_world_size(r->world),
                         .n_prefill = r->opt.n_prefill,
                         .n_decode  = r->opt.n_decode,
                         .model     = &r->cfg};
    if (bt_rank_has_both(f)) {
        r->group_size = f->n_ranks;
    } else if (bt_rank_prefills(f)) {
        r->group_size = f->n_prefill;
    } else {
        r->group_size  = f->n_decode;
        r->group_first = f->n_prefill;
    }
    r->group_self = f->rank - r->group_first;
}

static bt_status create_group(rank *r)
{
    bt_status st    = BT_OK;
    uint32_t *ranks = bt_calloc(r->group_size, sizeof(*ranks));
    bool      late  = r->group_first != 0;

    BT_REQUIRE(ranks != NULL, BT_ERR_NO_MEMORY, "rank list");
    for (uint32_t i = 0; i < r->group_size; i++)
        ranks[i] = r->group_first + i;
    BT_TRY(bt_group_create(r->world, r->group_size, ranks, late ? TAG_DECODE : TAG_PREFILL, EPOCH,
                           &r->group));
    r->plans = bt_calloc(r->group_size, sizeof(*r->plans));
    BT_REQUIRE(r->plans != NULL, BT_ERR_NO_MEMORY, "plans of %u ranks", r->group_size);
out:
    bt_free(ranks);
    return st;
}

static bt_status read_model(rank *r)
{
    bt_status st = BT_OK;

    BT_TRY(bt_model_config_read(r->opt.model, &r->cfg));
    BT_TRY(bt_safetensors_open(r->opt.model, &r->st));
    if (r->cfg.moe.gate.n_experts != 0) {
        BT_TRY(bt_placement_init(&r->placement, r->cfg.moe.gate.n_experts, r->cfg.moe.gate.n_groups,
                                 r->group_size, NULL));
        r->has_placement = true;
    }
out:
    return st;
}

static bt_status draw_account(rank *r)
{
    bt_status          st      = BT_OK;
    bt_memory_account *m       = &r->memory;
    bool               handoff = !bt_rank_has_both(&r->facts);

    m->available  = bt_memory_available();
    m->local_size = bt_world_local_size(r->world);
    m->weights =
        bt_memory_weights(&r->cfg, r->st, r->has_placement ? &r->placement : NULL, r->group_self);
    m->step    = bt_memory_step(&r->cfg, r->group_size, r->opt.max_rows);
    m->staging = handoff ? (uint64_t)SLOT_BYTES * (N_SLOTS + 1) : 0;
    BT_TRY(bt_memory_plan_pages(&r->cfg, r->opt.kv_bytes, m));
    r->facts.n_pages = m->n_pages;
    bt_memory_print(m);
out:
    return st;
}

/* ---- the control stream while the rank starts */

static char *arithmetic(const rank *r)
{
    char text[256];

    snprintf(text, sizeof(text), "%s,form:%s,blocks:%u,split:%u,page:%d", r->dev->arithmetic,
             bt_form_policy_name(r->opt.form), r->has_placement ? r->placement.n_blocks : 0,
             BT_ATTN_SPLIT_TOKENS, BT_PAGE_TOKENS);
    return bt_strdup(text);
}

static bt_status say_hello(rank *r)
{
    bt_status    st = BT_OK;
    bt_up        m  = {.kind = BT_UP_HELLO};
    bt_up_hello *h  = &m.u.hello;
    char         host[256];

    if (gethostname(host, sizeof(host)) != 0) snprintf(host, sizeof(host), "unknown");
    host[sizeof(host) - 1] = '\0';

    *h = (bt_up_hello){.protocol          = PROTOCOL,
                       .rank              = r->facts.rank,
                       .n_ranks           = r->facts.n_ranks,
                       .n_prefill         = r->facts.n_prefill,
                       .n_decode          = r->facts.n_decode,
                       .pid               = (uint32_t)getpid(),
                       .model_fingerprint = bt_model_fingerprint(&r->cfg, r->st),
                       .n_pages           = r->memory.n_pages,
                       .page_tokens       = BT_PAGE_TOKENS,
                       .page_bytes        = r->memory.page_bytes,
                       .max_rows          = r->opt.max_rows,
                       .epoch             = EPOCH,
                       .vocab_size        = r->cfg.vocab_size,
                       .max_context       = r->cfg.max_context,
                       .n_eos             = r->cfg.n_eos,
                       .bos_token         = r->cfg.bos_token,
                       .pad_token         = r->cfg.pad_token,
                       .weight_bytes      = r->memory.weights};

    h->host                  = bt_strdup(host);
    h->arithmetic            = arithmetic(r);
    h->model_type            = bt_strdup(r->cfg.model_type);
    h->architecture          = bt_strdup(r->cfg.architecture);
    h->default_sampling_json = bt_strdup(r->cfg.default_sampling_json);
    h->eos_tokens            = bt_calloc(r->cfg.n_eos, sizeof(*h->eos_tokens));
    BT_REQUIRE(h->host != NULL && h->arithmetic != NULL && h->model_type != NULL &&
                   h->architecture != NULL && h->default_sampling_json != NULL &&
                   h->eos_tokens != NULL,
               BT_ERR_NO_MEMORY, "hello");
    memcpy(h->eos_tokens, r->cfg.eos_tokens, r->cfg.n_eos * sizeof(*h->eos_tokens));
    st     = bt_control_client_send(r->client, &m);
    m.kind = BT_UP_READY; /* it owns nothing any more */
out:
    bt_up_free(&m);
    return st;
}

static bt_status send_ready(rank *r)
{
    bt_up m = {.kind = BT_UP_READY};

    return bt_control_client_send(r->client, &m);
}

static void leave(rank *r, int code, const char *reason) __attribute__((noreturn));

/* Weights are read for a long time: say how far, and see whether anybody still wants them. */
static void on_load(void *ctx, uint64_t done_bytes, uint64_t total_bytes)
{
    rank    *r   = ctx;
    uint64_t now = bt_now_ns();
    bt_up    m   = {
             .kind = BT_UP_PROGRESS, .u.progress = {done_bytes, total_bytes}
    };

    if (now - r->progress_ns >= 100 * BT_NS_PER_MS || done_bytes == total_bytes) {
        r->progress_ns = now;
        bt_control_client_send(r->client, &m); /* a lost stream shows below */
    }
    if (!bt_links_must_leave(&r->links) && r->links.shutdown_ns == 0) return;
    if (bt_control_client_lost(r->client)) leave(r, EXIT_FAILURE, "the coordinator was lost");
    leave(r, EXIT_SUCCESS, "told to leave while loading");
}

static bt_status load(rank *r)
{
    bt_status        st     = BT_OK;
    bool             both   = bt_rank_has_both(&r->facts);
    bool             normal = bt_rank_prefills(&r->facts), absorbed = bt_rank_decodes(&r->facts);
    bt_model_options opt = {.dev            = r->dev,
                            .group          = r->group,
                            .placement      = r->has_placement ? &r->placement : NULL,
                            .max_rows       = r->opt.max_rows,
                            .max_logit_rows = r->opt.max_rows,
                            .progress       = on_load,
                            .progress_ctx   = r};

    switch (r->opt.form) {
    case BT_FORM_ALL_NORMAL: opt.normal = true; break;
    case BT_FORM_ALL_ABSORBED: opt.absorbed = true; break;
    case BT_FORM_BY_COST: opt.normal = opt.absorbed = true; break;
    default:
        opt.normal   = both || normal;
        opt.absorbed = both || absorbed;
        break;
    }
    BT_TRY(bt_model_load(&r->cfg, r->st, &opt, &r->model));
    BT_INFO("loaded: weights %.1f MiB, workspace %.1f MiB",
            (double)bt_model_weight_bytes(r->model) / (1 << 20),
            (double)bt_model_workspace_bytes(r->model) / (1 << 20));
out:
    return st;
}

static bt_status create_worker(rank *r)
{
    bt_status         st      = BT_OK;
    bt_kv_pool_config pool    = {.n_layers = r->cfg.n_layers,
                                 .n_pages  = r->memory.n_pages,
                                 .kv_dim   = r->cfg.mla.kv_lora_rank + r->cfg.mla.qk_rope_dim};
    bt_handoff_config handoff = {
        .n_slots = N_SLOTS, .grant_ns = GRANT_NS, .slot_bytes = SLOT_BYTES};
    bt_handoff_events events = bt_links_events(&r->links);
    bt_worker_config  cfg;

    BT_TRY(bt_kv_pool_create(r->dev, &pool, &r->pool));
    if (!bt_rank_has_both(&r->facts))
        BT_TRY(bt_handoff_create(r->world, &handoff, &events, &r->handoff));
    r->links.handoff = r->handoff;
    r->links.model   = r->model;
    r->links.pool    = r->pool;
    r->links.group   = r->group;
    cfg              = (bt_worker_config){.facts      = r->facts,
                                          .form       = r->opt.form,
                                          .dev        = r->dev,
                                          .pool       = r->pool,
                                          .kernels    = bt_device_cpu_table(r->dev),
                                          .links      = bt_links_table(&r->links),
                                          .group_size = r->group_size,
                                          .group_self = r->group_self,
                                          .epoch      = EPOCH,
                                          .chunk      = r->opt.chunk,
                                          .max_rows   = r->opt.max_rows,
                                          .timeout_ns = r->opt.timeout_ns};
    BT_TRY(bt_worker_create(&cfg, &r->worker));
    r->links.worker = r->worker;
out:
    return st;
}

static bt_status start(rank *r)
{
    bt_status             st  = BT_OK;
    bt_device_cpu_options cpu = {.n_threads = r->opt.n_threads, .kernels = r->opt.kernels};

    BT_TRY(bt_worker_options_check_ranks(&r->opt, bt_world_size(r->world)));
    find_place(r);
    BT_TRY(read_model(r));
    BT_TRY(bt_device_cpu_create(&cpu, &r->dev));
    BT_TRY(draw_account(r));
    BT_TRY(create_group(r));
    BT_TRY(bt_control_client_start(r->opt.coordinator, CONNECT_NS, &r->client));
    r->links.client = r->client;
    g_tell          = 1;
    BT_TRY(say_hello(r));
    BT_TRY(load(r));
    BT_TRY(create_worker(r));
    BT_TRY(send_ready(r));
    BT_INFO("ready: rank %u of %u, %s, group of %u, arithmetic %s", r->facts.rank, r->facts.n_ranks,
            bt_rank_has_both(&r->facts) ? "both roles"
            : r->group_first == 0       ? "prefill"
                                        : "decode",
            r->group_size, r->dev->arithmetic);
out:
    return st;
}

/* ---- work */

static bt_status take_messages(rank *r)
{
    bt_status st = BT_OK;
    bt_down   m;

    while (bt_links_receive(&r->links, &m)) {
        st = bt_worker_control(r->worker, &m);
        bt_down_free(&m);
        BT_TRY(st);
    }
out:
    return st;
}

/* Parked.  Pages that are expected are looked for every millisecond, and at once after some came;
 * otherwise only the control stream can bring anything. */
static void rest(rank *r, uint64_t *sleep_ns)
{
    if (bt_worker_background(r->worker)) {
        *sleep_ns = 0;
        return;
    }
    *sleep_ns = *sleep_ns == 0 ? FIRST_SLEEP_NS : 2 * *sleep_ns;
    if (!bt_worker_expects_pages(r->worker))
        *sleep_ns = IDLE_SLEEP_NS;
    else if (*sleep_ns > WATCH_SLEEP_NS)
        *sleep_ns = WATCH_SLEEP_NS;
    bt_links_sleep(&r->links, *sleep_ns);
}

/* Until the group leaves together (BT_OK), or this rank must leave alone (CANCELLED), or fails. */
static bt_status work(rank *r)
{
    bt_status st       = BT_OK;
    bool      together = false;
    uint64_t  sleep_ns = 0;
    bt_plan   plan;
    bt_next   next;

    while (!together) {
        if (bt_links_must_leave(&r->links)) return BT_ERR_CANCELLED;
        BT_TRY(take_messages(r));
        BT_TRY(bt_worker_background_status(r->worker));
        BT_TRY(bt_worker_begin(r->worker, &plan, &next));
        if (next == BT_NEXT_LEAVE) return BT_OK;
        if (next == BT_NEXT_PARK) {
            rest(r, &sleep_ns);
            continue;
        }
        sleep_ns = 0;
        BT_TRY(bt_links_gather(&r->links, &plan, r->plans));
        BT_TRY(bt_worker_finish(r->worker, r->plans, &together));
        bt_worker_background(r->worker);
    }
out:
    return st;
}

/* ---- end */

static void say_leaving(rank *r, int code, const char *reason)
{
    bt_up m = {.kind = BT_UP_LEAVING};

    if (r->client == NULL) return;
    m.u.leaving.code   = (uint32_t)code;
    m.u.leaving.reason = bt_strdup(reason);
    if (m.u.leaving.reason != NULL) bt_control_client_send(r->client, &m);
    bt_control_client_stop(r->client, FLUSH_NS);
    r->client = NULL;
}

/* Alone, and without MPI's consent. */
static void leave(rank *r, int code, const char *reason)
{
    if (strcmp(reason, bt_error_text()) != 0) BT_INFO("leaving: %s", reason); /* else logged */
    say_leaving(r, code, reason);
    bt_world_exit(r->world, code);
}

/* Together with every other rank: the clean end. */
static void leave_together(rank *r)
{
    if (r->worker != NULL) bt_worker_log_account(r->worker);
    if (r->pool != NULL) bt_worker_destroy(r->worker);
    if (bt_kv_pool_check(r->pool) != BT_OK) leave(r, EXIT_FAILURE, "the page pool does not add up");
    say_leaving(r, EXIT_SUCCESS, "told to leave");
    bt_handoff_destroy(r->handoff);
    bt_model_destroy(r->model);
    bt_kv_pool_destroy(r->pool);
    bt_group_destroy(r->group);
    if (r->has_placement) bt_placement_fini(&r->placement);
    bt_safetensors_close(r->st);
    bt_device_destroy(r->dev);
    bt_links_fini(&r->links);
    bt_free(r->plans);
    alarm(FINALIZE_S);
    bt_world_fini(r->world);
}

static void leave_early(rank *r, bt_status st)
{
    char reason[256];

    if (g_signal != 0) {
        snprintf(reason, sizeof(reason), "signal %d (%s)", (int)g_signal, strsignal(g_signal));
        leave(r, EXIT_SUCCESS, reason);
    }
    if (r->client != NULL && bt_control_client_lost(r->client)) {
        bt_control_client_loss(r->client, reason, sizeof(reason));
        leave(r, EXIT_FAILURE, reason);
    }
    if (r->links.shutdown_ns != 0)
        leave(r, EXIT_SUCCESS, "told to leave, the group no longer steps");
    leave(r, EXIT_FAILURE, bt_error_text()[0] != '\0' ? bt_error_text() : bt_status_str(st));
}

int main(int argc, char **argv)
{
    static rank r; /* large, and borrowed from by everything */
    char        who[32];
    bt_status   st;

    install_signals();
    bt_log_init("worker", BT_LOG_INFO);
    if (bt_worker_options_parse(argc, argv, true, &r.opt) != BT_OK) {
        fprintf(stderr, "baton-worker --help says more\n");
        return EXIT_FAILURE;
    }
    if (bt_world_init(&argc, &argv, &r.world) != BT_OK) return EXIT_FAILURE;
    install_signals(); /* MPI may have put its own */
    snprintf(who, sizeof(who), "rank=%u", bt_world_rank(r.world));
    bt_log_init(who, r.opt.verbose ? BT_LOG_DEBUG : BT_LOG_INFO);
    r.links.timeout_ns = r.opt.timeout_ns;
    r.links.signal     = &g_signal;

    st = start(&r);
    if (st == BT_OK) st = work(&r);
    if (st != BT_OK) leave_early(&r, st);
    leave_together(&r);
    return EXIT_SUCCESS;
}

#include "cli/eval_cell.h"

#include <stdio.h>

#include "core/alloc.h"
#include "proto/control_server.h"
#include "proto/hello.h"

enum { EPOCH = 1, PREFILL_GROUP = 0, DECODE_GROUP = 1 };

typedef enum {
    CASE_WAITING,  /* for its turn, or for pages */
    CASE_RESERVED, /* its decode rank was asked for a ticket */
    CASE_RUNNING,  /* rows come */
    CASE_LEAVING,  /* all rows are here; the ranks let go */
    CASE_DONE
} case_state;

typedef struct {
    case_state state;
    uint32_t   prefill_rank, decode_rank;
    bool       prefill_released, decode_released;
} run;

typedef struct {
    bt_control_peer *peer; /* NULL: not attached */
    bool             ready;
} rank_info;

struct bt_eval_cell {
    bt_eval_options    opt;
    bt_eval_cases     *cases; /* borrowed */
    bt_control_server *server;
    rank_info         *ranks; /* [n_ranks] */
    run               *runs;  /* [cases->n] */
    size_t             n_active, n_done;
    bt_up_hello        first; /* owned: of the rank that the others must agree with */
    uint32_t           n_attached, n_ready;
    uint64_t           wake[2]; /* by group; with both roles only the first */
    uint64_t           progress;
    bool               blocked; /* a ticket was refused: wait until pages come back */
    bool               leaving;
    bt_status          status;
};

static void fail(bt_eval_cell *cell, bt_status st)
{
    if (cell->status == BT_OK) cell->status = st;
}

static bool both_roles(const bt_eval_cell *cell) { return cell->opt.n_prefill == 0; }

static void send_to(bt_eval_cell *cell, uint32_t rank, bt_down *m)
{
    if (cell->ranks[rank].peer != NULL) {
        bt_control_send(cell->ranks[rank].peer, m);
    } else {
        bt_down_free(m);
    }
}

static void wake_group(bt_eval_cell *cell, int group)
{
    uint32_t first = 0, end = cell->opt.n_ranks;

    if (both_roles(cell)) {
        group = PREFILL_GROUP;
    } else if (group == PREFILL_GROUP) {
        end = cell->opt.n_prefill;
    } else {
        first = cell->opt.n_prefill;
    }
    cell->wake[group]++;
    for (uint32_t r = first; r < end; r++)
        send_to(cell, r, &(bt_down){.kind = BT_DOWN_WAKE, .u.wake.wake = cell->wake[group]});
}

/* A copy of the case's forced routing, or NULL and 0 bytes. */
static bool copy_forced(const bt_eval_cases *cases, const bt_eval_case *c, void **bytes_out,
                        size_t *n_out)
{
    size_t n = (size_t)cases->n_moe * c->n_tokens * cases->top_k;

    *bytes_out = NULL;
    *n_out     = 0;
    if (c->forced == NULL) return true;
    *bytes_out = bt_copy(c->forced, n, sizeof(*c->forced));
    *n_out     = n * sizeof(*c->forced);
    return *bytes_out != NULL;
}

static bt_sampling no_sampling(const bt_eval_case *c)
{
    uint32_t n_eval = c->n_tokens - c->n_prompt;

    return (bt_sampling){.max_tokens = n_eval != 0 ? n_eval : 1, .ignore_eos = true};
}

static bt_status reserve(bt_eval_cell *cell, size_t i)
{
    bt_status           st = BT_OK;
    run                *r  = &cell->runs[i];
    const bt_eval_case *c  = &cell->cases->cases[i];
    bt_down             m  = {.kind = BT_DOWN_RESERVE};
    bt_down_reserve    *q  = &m.u.reserve;

    BT_TRY(bt_eval_case_prepare(cell->cases, &cell->cases->cases[i]));
    r->prefill_rank =
        both_roles(cell) ? (uint32_t)(i % cell->opt.n_ranks) : (uint32_t)(i % cell->opt.n_prefill);
    r->decode_rank  = both_roles(cell) ? r->prefill_rank
                                       : cell->opt.n_prefill + (uint32_t)(i % cell->opt.n_decode);
    q->request      = i + 1;
    q->epoch        = EPOCH;
    q->n_prompt     = c->n_prompt;
    q->sampling     = no_sampling(c);
    q->prefill_rank = r->prefill_rank;
    q->eval         = true;
    q->n_eval       = c->n_tokens - c->n_prompt;
    q->eval_tokens  = bt_copy(c->ids + c->n_prompt, q->n_eval, sizeof(*c->ids));
    if (q->eval_tokens == NULL ||
        !copy_forced(cell->cases, c, &q->eval_experts, &q->n_eval_expert_bytes)) {
        bt_down_free(&m);
        BT_REQUIRE(false, BT_ERR_NO_MEMORY, "the order for case %s", c->name);
    }
    wake_group(cell, DECODE_GROUP);
    send_to(cell, r->decode_rank, &m);
    r->state = CASE_RESERVED;
    cell->n_active++;
out:
    return st;
}

static void start_cases(bt_eval_cell *cell)
{
    for (size_t i = 0; i < cell->cases->n; i++) {
        if (cell->status != BT_OK || cell->blocked || cell->leaving) return;
        if (cell->n_active >= cell->opt.n_parallel) return;
        if (cell->runs[i].state != CASE_WAITING) continue;
        fail(cell, reserve(cell, i));
    }
}

static bt_status prefill(bt_eval_cell *cell, size_t i, bt_up *ticket)
{
    bt_status           st = BT_OK;
    run                *r  = &cell->runs[i];
    const bt_eval_case *c  = &cell->cases->cases[i];
    bt_down             m  = {.kind = BT_DOWN_PREFILL};
    bt_down_prefill    *q  = &m.u.prefill;

    q->request     = i + 1;
    q->epoch       = EPOCH;
    q->n_prompt    = c->n_prompt;
    q->decode_rank = r->decode_rank;
    q->sampling    = no_sampling(c);
    q->eval        = true;
    q->n_pages     = ticket->u.ticket.n_pages;
    q->pages       = ticket->u.ticket.pages;

    ticket->u.ticket.pages = NULL; /* taken over */
    q->prompt              = bt_copy(c->ids, c->n_prompt, sizeof(*c->ids));
    if (q->prompt == NULL ||
        !copy_forced(cell->cases, c, &q->eval_experts, &q->n_eval_expert_bytes)) {
        bt_down_free(&m);
        BT_REQUIRE(false, BT_ERR_NO_MEMORY, "the order for case %s", c->name);
    }
    wake_group(cell, PREFILL_GROUP);
    send_to(cell, r->prefill_rank, &m);
    r->state = CASE_RUNNING;
out:
    return st;
}

static bt_status on_ticket(bt_eval_cell *cell, size_t i, uint32_t rank, bt_up *m)
{
    bt_status st = BT_OK;
    run      *r  = &cell->runs[i];

    BT_REQUIRE(r->state == CASE_RESERVED && rank == r->decode_rank, BT_ERR_PROTOCOL,
               "rank %u sent a ticket for case %s, which asked rank %u for none", rank,
               cell->cases->cases[i].name, r->decode_rank);
    if (!m->u.ticket.refused) {
        BT_TRY(prefill(cell, i, m));
        goto out;
    }
    r->state = CASE_WAITING;
    cell->n_active--;
    cell->blocked = true;
    BT_REQUIRE(cell->n_active != 0, BT_ERR_NO_PAGES,
               "rank %u has no pages for case %s though nothing else runs; raise --kv-bytes", rank,
               cell->cases->cases[i].name);
    bt_free(cell->cases->cases[i].logits); /* prepared again at its next turn */
    bt_free(cell->cases->cases[i].seen);
    cell->cases->cases[i].logits = NULL;
    cell->cases->cases[i].seen   = NULL;
out:
    return st;
}

static void finish_if_released(bt_eval_cell *cell, size_t i)
{
    run *r = &cell->runs[i];

    if (r->state != CASE_LEAVING || !r->decode_released || !r->prefill_released) return;
    r->state = CASE_DONE;
    cell->n_active--;
    cell->n_done++;
    cell->blocked = false;
    BT_INFO("case %s: %u rows, prompt on rank %u, the rest on rank %u (%zu of %zu)",
            cell->cases->cases[i].name, cell->cases->cases[i].n_tokens, r->prefill_rank,
            r->decode_rank, cell->n_done, cell->cases->n);
}

static void on_released(bt_eval_cell *cell, size_t i, uint32_t rank)
{
    run *r = &cell->runs[i];

    if (r->state != CASE_RUNNING && r->state != CASE_LEAVING) return;
    if (rank == r->prefill_rank) r->prefill_released = true;
    if (rank == r->decode_rank) r->decode_released = true;
    finish_if_released(cell, i);
}

static bt_status on_rows(bt_eval_cell *cell, size_t i, uint32_t rank, const bt_up_eval_rows *rows)
{
    bt_status     st   = BT_OK;
    run          *r    = &cell->runs[i];
    bt_eval_case *c    = &cell->cases->cases[i];
    uint32_t      want = rows->position < c->n_prompt ? r->prefill_rank : r->decode_rank;

    BT_REQUIRE(r->state == CASE_RUNNING, BT_ERR_PROTOCOL,
               "rank %u sent rows of case %s, which is not under way", rank, c->name);
    BT_REQUIRE(rank == want, BT_ERR_PROTOCOL,
               "rank %u sent row %u of case %s, expected rank %u (prompt rows come from the "
               "prefill path, the others from decode)",
               rank, rows->position, c->name, want);
    BT_TRY(bt_eval_case_rows(cell->cases, c, rows->position, rows->n_rows, rows->logits,
                             rows->n_logit_bytes, rows->experts, rows->n_expert_bytes));
    if (c->n_seen == c->n_tokens) {
        r->state = CASE_LEAVING; /* the ranks end it by themselves; pages may still be under way */
        finish_if_released(cell, i);
    }
out:
    return st;
}

/* A rank says who it is: the ranks must be those that were started, and agree on the model. */
static bt_status on_hello(bt_eval_cell *cell, bt_control_peer *peer, const bt_up_hello *h)
{
    bt_status  st = BT_OK;
    rank_info *r  = h->rank < cell->opt.n_ranks ? &cell->ranks[h->rank] : NULL;
    bt_down    m  = {.kind = BT_DOWN_WELCOME};

    BT_REQUIRE(r != NULL && r->peer == NULL && h->n_ranks == cell->opt.n_ranks &&
                   h->n_prefill == cell->opt.n_prefill && h->n_decode == cell->opt.n_decode,
               BT_ERR_PROTOCOL,
               "rank %u of %u (%u prefill, %u decode) attached, expected a new one of %u (%u, %u)",
               h->rank, h->n_ranks, h->n_prefill, h->n_decode, cell->opt.n_ranks,
               cell->opt.n_prefill, cell->opt.n_decode);
    if (cell->n_attached == 0) {
        BT_TRY(bt_eval_cases_check(cell->cases, h->vocab_size, h->max_context));
        BT_TRY(bt_hello_copy(h, &cell->first));
    }
    BT_TRY(bt_hello_agree(&cell->first, h));
    for (size_t i = 0; i < cell->cases->n; i++) {
        const bt_eval_case *c = &cell->cases->cases[i];

        BT_REQUIRE((uint64_t)h->n_pages * h->page_tokens >= c->n_tokens, BT_ERR_INVALID_ARG,
                   "%s: case %s has %u tokens, the KV pool of rank %u holds %llu; raise --kv-bytes",
                   cell->cases->path, c->name, c->n_tokens, h->rank,
                   (unsigned long long)h->n_pages * h->page_tokens);
    }
    r->peer = peer;
    cell->n_attached++;
    bt_control_peer_set_data(peer, r);
    m.u.welcome.epoch = EPOCH;
    bt_control_send(peer, &m);
out:
    return st;
}

/* A message about a case: its index, or an error. */
static bt_status case_of(const bt_eval_cell *cell, uint64_t request, uint32_t rank, size_t *i_out)
{
    bt_status st = BT_OK;

    BT_REQUIRE(request >= 1 && request <= cell->cases->n, BT_ERR_PROTOCOL,
               "rank %u speaks of request %llu, expected 1 to %zu", rank,
               (unsigned long long)request, cell->cases->n);
    *i_out = (size_t)request - 1;
out:
    return st;
}

static bt_status on_case_message(bt_eval_cell *cell, uint32_t rank, bt_up *m)
{
    bt_status st = BT_OK;
    size_t    i  = 0;

    switch (m->kind) {
    case BT_UP_TICKET:
        BT_TRY(case_of(cell, m->u.ticket.request, rank, &i));
        BT_TRY(on_ticket(cell, i, rank, m));
        break;
    case BT_UP_EVAL_ROWS:
        BT_TRY(case_of(cell, m->u.eval_rows.request, rank, &i));
        BT_TRY(on_rows(cell, i, rank, &m->u.eval_rows));
        break;
    case BT_UP_RELEASED:
        BT_TRY(case_of(cell, m->u.released.request, rank, &i));
        on_released(cell, i, rank);
        break;
    case BT_UP_FAILED:
        BT_TRY(case_of(cell, m->u.failed.request, rank, &i));
        BT_REQUIRE(false, BT_ERR_PEER, "case %s failed on rank %u: %s", cell->cases->cases[i].name,
                   rank, m->u.failed.message);
        break;
    default: break;
    }
out:
    return st;
}

static void on_wake_request(bt_eval_cell *cell, uint32_t rank, uint64_t seen)
{
    int group = both_roles(cell) || rank < cell->opt.n_prefill ? PREFILL_GROUP : DECODE_GROUP;

    if (seen == cell->wake[group]) wake_group(cell, group); /* else a newer one is on its way */
}

static void on_message(void *ctx, bt_control_peer *peer, bt_up *m)
{
    bt_eval_cell *cell = ctx;
    rank_info    *r    = bt_control_peer_data(peer);
    uint32_t      rank = r != NULL ? (uint32_t)(r - cell->ranks) : 0;

    if (cell->leaving || cell->status != BT_OK) return;
    if (m->kind != BT_UP_BEAT) cell->progress++;
    switch (m->kind) {
    case BT_UP_HELLO: fail(cell, on_hello(cell, peer, &m->u.hello)); break;
    case BT_UP_READY:
        cell->n_ready += !r->ready;
        r->ready = true;
        break;
    case BT_UP_WAKE_REQUEST: on_wake_request(cell, rank, m->u.wake_request.wake); break;
    case BT_UP_LEAVING:
        bt_log_error(__FILE__, __LINE__, "a rank left", "rank %u: %s", rank, m->u.leaving.reason);
        fail(cell, BT_ERR_PEER);
        break;
    case BT_UP_BEAT:
    case BT_UP_PROGRESS:
    case BT_UP_TOKENS: break;
    default: fail(cell, on_case_message(cell, rank, m)); break;
    }
    if (bt_eval_cell_ready(cell)) start_cases(cell);
}

static void on_lost(void *ctx, bt_control_peer *peer)
{
    bt_eval_cell *cell = ctx;
    rank_info    *r    = bt_control_peer_data(peer);

    if (r == NULL) return; /* refused */
    r->peer = NULL;
    cell->n_attached--;
    if (cell->leaving) return;
    bt_log_error(__FILE__, __LINE__, "a rank was lost", "the control stream of rank %u has ended",
                 (uint32_t)(r - cell->ranks));
    fail(cell, BT_ERR_PEER);
}

bt_status bt_eval_cell_create(bt_rpc_loop *loop, const bt_eval_options *options,
                              bt_eval_cases *cases, bt_eval_cell **cell_out,
                              char address_out[BT_ADDRESS_BYTES])
{
    bt_status         st     = BT_OK;
    bt_eval_cell     *cell   = bt_calloc(1, sizeof(*cell));
    bt_control_events events = {.message = on_message, .lost = on_lost, .ctx = cell};
    uint16_t          port   = 0;
    char              host[BT_ADDRESS_BYTES];

    BT_REQUIRE(cell != NULL, BT_ERR_NO_MEMORY, "evaluation cell");
    cell->opt   = *options;
    cell->cases = cases;
    cell->ranks = bt_calloc(options->n_ranks, sizeof(*cell->ranks));
    cell->runs  = bt_calloc(cases->n, sizeof(*cell->runs));
    BT_REQUIRE(cell->ranks != NULL && cell->runs != NULL, BT_ERR_NO_MEMORY,
               "%u ranks and %zu cases", options->n_ranks, cases->n);
    BT_TRY(bt_control_server_create(loop, options->address, &events, &cell->server, &port));
    bt_split_address(options->address, host);
    bt_join_address(host, port, address_out);
    *cell_out = cell;
    cell      = NULL;
out:
    bt_eval_cell_destroy(cell);
    return st;
}

bool bt_eval_cell_destroy(bt_eval_cell *cell)
{
    if (cell == NULL) return true;
    if (!bt_control_server_destroy(cell->server)) return false;
    bt_hello_free(&cell->first);
    bt_free(cell->runs);
    bt_free(cell->ranks);
    bt_free(cell);
    return true;
}

bt_status bt_eval_cell_status(const bt_eval_cell *cell) { return cell->status; }
bool      bt_eval_cell_done(const bt_eval_cell *cell) { return cell->n_done == cell->cases->n; }
bool     bt_eval_cell_ready(const bt_eval_cell *cell) { return cell->n_ready == cell->opt.n_ranks; }
uint64_t bt_eval_cell_progress(const bt_eval_cell *cell) { return cell->progress; }
uint32_t bt_eval_cell_attached(const bt_eval_cell *cell) { return cell->n_attached; }

const char *bt_eval_cell_waits_for(const bt_eval_cell *cell, char *buf, size_t capacity)
{
    snprintf(buf, capacity, "nothing");
    for (uint32_t r = 0; r < cell->opt.n_ranks; r++) {
        if (cell->ranks[r].ready) continue;
        snprintf(buf, capacity, "rank %u %s", r,
                 cell->ranks[r].peer == NULL ? "has not attached" : "is loading");
        return buf;
    }
    for (size_t i = 0; i < cell->cases->n; i++) {
        const bt_eval_case *c = &cell->cases->cases[i];

        if (cell->runs[i].state == CASE_WAITING || cell->runs[i].state == CASE_DONE) continue;
        snprintf(buf, capacity, "case %s: %u of %u rows (prompt on rank %u, the rest on rank %u)",
                 c->name, c->n_seen, c->n_tokens, cell->runs[i].prefill_rank,
                 cell->runs[i].decode_rank);
        return buf;
    }
    return buf;
}

void bt_eval_cell_shutdown(bt_eval_cell *cell)
{
    cell->leaving = true;
    for (uint32_t r = 0; r < cell->opt.n_ranks; r++) {
        bt_down m = {.kind = BT_DOWN_SHUTDOWN};

        m.u.shutdown.reason = bt_strdup(cell->status == BT_OK ? "done" : "the evaluation failed");
        send_to(cell, r, &m);
    }
}

void bt_eval_cell_stop(bt_eval_cell *cell) { bt_control_server_stop(cell->server); }

/* bt_up, what a worker says to the coordinator, into bytes. */
#include "core/alloc.h"
#include "proto/control_pb.h"

/* A NULL string of a plain struct travels as "". */
static char *text(char *s)
{
    static char empty[1];

    return s != NULL ? s : empty;
}

/* Hello's own seats, where it has some. */
typedef struct {
    PB(Regroup) regroup;
    PB(Seats)   seats[2];
} hello_parts;

static void make_hello(const bt_up_hello *h, hello_parts *parts, PB(Hello) *pb)
{
#define PUT(field)      pb->field = h->field;
#define PUT_TEXT(field) pb->field = text(h->field);
    BT_PB_HELLO(PUT);
    BT_PB_HELLO_TEXTS(PUT_TEXT);
#undef PUT
#undef PUT_TEXT
    pb->n_eos_tokens = h->n_eos;
    pb->eos_tokens   = h->eos_tokens;
    if (h->incarnation == 0) return;
    bt_pb_make_regroup(&h->seats, parts->seats, &parts->regroup);
    pb->seats = &parts->regroup;
}

/* Token messages for n tokens: one block with the pointer table in front (bt_free it). */
static bt_status make_tokens(const bt_token *tokens, size_t n, PB(Token) ***tokens_out)
{
    bt_status   st = BT_OK;
    PB(Token) **table, *pb;

    table = bt_calloc(n, sizeof(*table) + sizeof(*pb));
    BT_REQUIRE(table != NULL, BT_ERR_NO_MEMORY, "message of %zu tokens", n);
    pb = (PB(Token) *)(void *)(table + n);
    for (size_t i = 0; i < n; i++) {
        baton__control__v1__token__init(&pb[i]);
        pb[i].request   = tokens[i].request;
        pb[i].choice    = tokens[i].choice;
        pb[i].position  = tokens[i].position;
        pb[i].epoch     = tokens[i].epoch;
        pb[i].id        = tokens[i].id;
        pb[i].logprob   = tokens[i].logprob;
        pb[i].finish    = (PB(Finish))tokens[i].finish;
        pb[i].n_top_ids = pb[i].n_top_logprobs = tokens[i].n_top;
        pb[i].top_ids                          = (uint32_t *)tokens[i].top_ids;
        pb[i].top_logprobs                     = (float *)tokens[i].top_logprobs;
        pb[i].cached_tokens                    = tokens[i].cached;
        table[i]                               = &pb[i];
    }
    *tokens_out = table;
out:
    return st;
}

typedef union {
    PB(Hello)          hello;
    PB(Progress)       progress;
    PB(Ready)          ready;
    PB(Beat)           beat;
    PB(Ticket)         ticket;
    PB(Tokens)         tokens;
    PB(Failed)         failed;
    PB(Released)       released;
    PB(WakeRequest)    wake_request;
    PB(EvalRows)       eval_rows;
    PB(Leaving)        leaving;
    PB(Retracted)      retracted;
    PB(PromptLogprobs) prompt_logprobs;
    PB(Expired)        expired;
    PB(Drain)          drain;
    PB(FormMap)        form_map;
    PB(ExpertLoad)     expert_load;
    PB(PeerLoad)       peer_load;
} up_body;

/* Packing only reads the histograms. */
static void make_beat(const bt_up_beat *b, PB(Beat) *pb)
{
#define PUT(field) pb->field = b->field;
    BT_PB_BEAT(PUT);
#undef PUT
    pb->n_batch_rows    = BT_BEAT_BATCH_BUCKETS;
    pb->batch_rows      = (uint64_t *)b->batch_rows;
    pb->n_step_times    = BT_BEAT_TIME_BUCKETS;
    pb->step_times      = (uint64_t *)b->step_times;
    pb->n_handoff_times = BT_BEAT_TIME_BUCKETS;
    pb->handoff_times   = (uint64_t *)b->handoff_times;
}

static void make_eval_rows(const bt_up_eval_rows *e, PB(EvalRows) *pb)
{
    pb->request  = e->request;
    pb->epoch    = e->epoch;
    pb->position = e->position;
    pb->n_rows   = e->n_rows;
    pb->logits   = (ProtobufCBinaryData){e->n_logit_bytes, e->logits};
    pb->experts  = (ProtobufCBinaryData){e->n_expert_bytes, e->experts};
}

static void make_prompt_logprobs(const bt_up_prompt_logprobs *p, PB(PromptLogprobs) *pb)
{
    pb->request    = p->request;
    pb->epoch      = p->epoch;
    pb->position   = p->position;
    pb->n_logprobs = p->n;
    pb->logprobs   = p->logprobs;
    pb->n_top_ids = pb->n_top_logprobs = (size_t)p->n * p->n_top;
    pb->top_ids                        = p->top_ids;
    pb->top_logprobs                   = p->top_logprobs;
}

/* Makes b's message of that name the envelope's body, empty. */
#define BODY(NAME, name)                                              \
    do {                                                              \
        baton__control__v1__##name##__init(&b->name);                 \
        pb->body_case = BATON__CONTROL__V1__FROM_WORKER__BODY_##NAME; \
        pb->name      = &b->name;                                     \
    } while (0)

/* Fills the envelope; *table_out is memory that must live until it is packed. */
static bt_status make_up(const bt_up *m, up_body *b, hello_parts *parts, PB(FromWorker) *pb,
                         void **table_out)
{
    bt_status st = BT_OK;

    baton__control__v1__from_worker__init(pb);
    switch (m->kind) {
    case BT_UP_HELLO:
        BODY(HELLO, hello);
        make_hello(&m->u.hello, parts, &b->hello);
        break;
    case BT_UP_PROGRESS:
        BODY(PROGRESS, progress);
        b->progress.done_bytes  = m->u.progress.done_bytes;
        b->progress.total_bytes = m->u.progress.total_bytes;
        break;
    case BT_UP_READY: BODY(READY, ready); break;
    case BT_UP_BEAT:
        BODY(BEAT, beat);
        make_beat(&m->u.beat, &b->beat);
        break;
    case BT_UP_TICKET:
        BODY(TICKET, ticket);
        b->ticket.request     = m->u.ticket.request;
        b->ticket.epoch       = m->u.ticket.epoch;
        b->ticket.refused     = m->u.ticket.refused;
        b->ticket.n_pages     = m->u.ticket.n_pages;
        b->ticket.held_tokens = m->u.ticket.held;
        b->ticket.form_map =
            (ProtobufCBinaryData){m->u.ticket.n_form_map_bytes, m->u.ticket.form_map};
        BT_TRY(bt_pb_make_pages(m->u.ticket.pages, m->u.ticket.n_pages, &b->ticket.pages));
        *table_out = b->ticket.pages;
        break;
    case BT_UP_TOKENS:
        BODY(TOKENS, tokens);
        b->tokens.n_tokens = m->u.tokens.n;
        BT_TRY(make_tokens(m->u.tokens.tokens, m->u.tokens.n, &b->tokens.tokens));
        *table_out = b->tokens.tokens;
        break;
    case BT_UP_FAILED:
        BODY(FAILED, failed);
        b->failed.request      = m->u.failed.request;
        b->failed.epoch        = m->u.failed.epoch;
        b->failed.code         = m->u.failed.code;
        b->failed.message      = text(m->u.failed.message);
        b->failed.stands_still = m->u.failed.stands_still;
        break;
    case BT_UP_RELEASED:
        BODY(RELEASED, released);
        b->released.request = m->u.released.request;
        b->released.epoch   = m->u.released.epoch;
        break;
    case BT_UP_RETRACTED:
        BODY(RETRACTED, retracted);
        b->retracted.request = m->u.retracted.request;
        b->retracted.epoch   = m->u.retracted.epoch;
        break;
    case BT_UP_PROMPT_LOGPROBS:
        BODY(PROMPT_LOGPROBS, prompt_logprobs);
        make_prompt_logprobs(&m->u.prompt_logprobs, &b->prompt_logprobs);
        break;
    case BT_UP_FORM_MAP:
        BODY(FORM_MAP, form_map);
        b->form_map.request = m->u.form_map.request;
        b->form_map.epoch   = m->u.form_map.epoch;
        b->form_map.form_map =
            (ProtobufCBinaryData){m->u.form_map.n_form_map_bytes, m->u.form_map.form_map};
        break;
    case BT_UP_PEER_LOAD:
        BODY(PEER_LOAD, peer_load);
        b->peer_load.at_ns     = m->u.peer_load.at_ns;
        b->peer_load.n_numbers = 4 * (size_t)m->u.peer_load.n;
        b->peer_load.numbers   = (uint64_t *)m->u.peer_load.peers;
        break;
    case BT_UP_EXPERT_LOAD:
        BODY(EXPERT_LOAD, expert_load);
        b->expert_load.n_rows = m->u.expert_load.n;
        b->expert_load.rows   = m->u.expert_load.rows;
        break;
    case BT_UP_WAKE_REQUEST:
        BODY(WAKE_REQUEST, wake_request);
        b->wake_request.wake = m->u.wake_request.wake;
        break;
    case BT_UP_EXPIRED:
        BODY(EXPIRED, expired);
        b->expired.epoch   = m->u.expired.epoch;
        b->expired.n_ranks = m->u.expired.n;
        b->expired.ranks   = m->u.expired.ranks;
        b->expired.what    = text(m->u.expired.what);
        b->expired.n_met   = m->u.expired.n_met;
        break;
    case BT_UP_EVAL_ROWS:
        BODY(EVAL_ROWS, eval_rows);
        make_eval_rows(&m->u.eval_rows, &b->eval_rows);
        break;
    case BT_UP_DRAIN: BODY(DRAIN, drain); break;
    case BT_UP_LEAVING:
        BODY(LEAVING, leaving);
        b->leaving.reason = text(m->u.leaving.reason);
        break;
    }
    BT_ASSERT(pb->body_case != BATON__CONTROL__V1__FROM_WORKER__BODY__NOT_SET);
out:
    return st;
}

bt_status bt_up_pack(const bt_up *m, uint8_t **bytes_out, size_t *n_out)
{
    bt_status      st = BT_OK;
    up_body        body;
    PB(FromWorker) pb;
    hello_parts    parts;
    void          *table = NULL;

    BT_TRY(make_up(m, &body, &parts, &pb, &table));
    BT_TRY(bt_pb_pack(&pb.base, bytes_out, n_out));
out:
    bt_free(table);
    return st;
}

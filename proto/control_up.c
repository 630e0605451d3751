/* bt_up: what a worker says to the coordinator, out of bytes that may be anything, and its end.
 * control_up_pack.c is the other way. */
#include <string.h>

#include "core/alloc.h"
#include "core/rank_map.h"
#include "proto/control_pb.h"

/* It stands in logs, labels and lines: a word. */
static bool is_name(const char *name)
{
    size_t n = strlen(name);

    return n <= BT_CELL_NAME_MAX &&
           n == strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-");
}

static bt_status check_hello(const PB(Hello) *pb)
{
    bt_status st = BT_OK;

    BT_REQUIRE(pb->protocol == BT_CONTROL_PROTOCOL, BT_ERR_PROTOCOL,
               "rank %u speaks control protocol %u, expected %d", pb->rank, pb->protocol,
               BT_CONTROL_PROTOCOL);
    BT_REQUIRE(is_name(pb->cell), BT_ERR_PROTOCOL,
               "rank %u names its cell with %zu bytes, expected at most %d letters, digits, '.', "
               "'_' and '-'",
               pb->rank, strlen(pb->cell), BT_CELL_NAME_MAX);
    BT_REQUIRE(pb->n_ranks >= 1 && pb->rank < pb->n_ranks, BT_ERR_PROTOCOL,
               "hello of rank %u of %u", pb->rank, pb->n_ranks);
    BT_REQUIRE((pb->n_prefill == 0 && pb->n_decode == 0 && pb->n_spares < pb->n_ranks) ||
                   (pb->n_prefill >= 1 && pb->n_decode >= 1 &&
                    (uint64_t)pb->n_prefill + pb->n_decode + pb->n_spares == pb->n_ranks),
               BT_ERR_PROTOCOL, "rank %u says %u prefill and %u decode ranks and %u spares of %u",
               pb->rank, pb->n_prefill, pb->n_decode, pb->n_spares, pb->n_ranks);
    BT_REQUIRE(pb->page_tokens >= 1 && pb->page_tokens <= 65536 && pb->n_pages >= 1 &&
                   pb->max_rows >= 1,
               BT_ERR_PROTOCOL, "rank %u has %u pages of %u tokens, %u rows a step", pb->rank,
               pb->n_pages, pb->page_tokens, pb->max_rows);
    BT_REQUIRE(pb->vocab_size >= 1 && pb->vocab_size <= INT32_MAX && pb->max_context >= 1 &&
                   pb->max_context <= INT32_MAX,
               BT_ERR_PROTOCOL, "rank %u has a vocabulary of %u, a context of %u", pb->rank,
               pb->vocab_size, pb->max_context);
    BT_REQUIRE(pb->bos_token >= -1 && pb->bos_token < pb->vocab_size && pb->pad_token >= -1 &&
                   pb->pad_token < pb->vocab_size,
               BT_ERR_PROTOCOL, "rank %u: bos %lld, pad %lld with a vocabulary of %u", pb->rank,
               (long long)pb->bos_token, (long long)pb->pad_token, pb->vocab_size);
    BT_REQUIRE(pb->epoch <= BT_EPOCH_MAX && (pb->seats == NULL || pb->seats->epoch <= BT_EPOCH_MAX),
               BT_ERR_PROTOCOL, "rank %u knows of epochs %u and %u, expected at most %u", pb->rank,
               pb->epoch, pb->seats != NULL ? pb->seats->epoch : 0, BT_EPOCH_MAX);
    BT_REQUIRE(pb->incarnation == 0 || pb->seats != NULL, BT_ERR_PROTOCOL,
               "rank %u has followed a coordinator and does not say who sits where", pb->rank);
    for (size_t i = 0; i < pb->n_eos_tokens; i++)
        BT_REQUIRE(pb->eos_tokens[i] < pb->vocab_size, BT_ERR_PROTOCOL,
                   "rank %u: end-of-text token %u with a vocabulary of %u", pb->rank,
                   pb->eos_tokens[i], pb->vocab_size);
out:
    return st;
}

static bt_status take_hello(const PB(Hello) *pb, bt_up_hello *h)
{
    bt_status st = BT_OK;

    BT_TRY(check_hello(pb));
#define TAKE(field) h->field = pb->field;
    BT_PB_HELLO(TAKE);
#undef TAKE
    if (pb->incarnation != 0) BT_TRY(bt_pb_take_regroup(pb->seats, &h->seats));
#define TAKE(field) BT_TRY(bt_pb_take_string(pb->field, &h->field));
    BT_PB_HELLO_TEXTS(TAKE);
#undef TAKE
    BT_TRY(bt_pb_take_u32s(pb->eos_tokens, pb->n_eos_tokens, &h->eos_tokens, &h->n_eos));
out:
    return st;
}

static bt_status take_tokens(const PB(Tokens) *pb, bt_up *m)
{
    bt_status st = BT_OK;
    bt_token *tokens;

    BT_REQUIRE(pb->n_tokens >= 1, BT_ERR_PROTOCOL, "a tokens message without tokens");
    tokens = m->u.tokens.tokens = bt_calloc(pb->n_tokens, sizeof(*tokens));
    BT_REQUIRE(tokens != NULL, BT_ERR_NO_MEMORY, "message of %zu tokens", pb->n_tokens);
    m->u.tokens.n = (uint32_t)pb->n_tokens;
    for (size_t i = 0; i < pb->n_tokens; i++) {
        const PB(Token) *t = pb->tokens[i];

        BT_REQUIRE((int)t->finish >= BT_FINISH_NONE && (int)t->finish <= BT_FINISH_LENGTH,
                   BT_ERR_PROTOCOL, "token %zu has finish %d, expected 0 to %d", i, (int)t->finish,
                   BT_FINISH_LENGTH);
        BT_REQUIRE(t->n_top_ids == t->n_top_logprobs && t->n_top_ids <= BT_TOP_LOGPROBS_MAX,
                   BT_ERR_PROTOCOL, "token %zu has %zu top ids and %zu top logprobs, at most %d", i,
                   t->n_top_ids, t->n_top_logprobs, BT_TOP_LOGPROBS_MAX);
        tokens[i] = (bt_token){.request  = t->request,
                               .choice   = t->choice,
                               .position = t->position,
                               .epoch    = t->epoch,
                               .id       = t->id,
                               .logprob  = t->logprob,
                               .finish   = (bt_finish)t->finish,
                               .cached   = t->cached_tokens,
                               .n_top    = (uint32_t)t->n_top_ids};
        if (t->n_top_ids == 0) continue;
        memcpy(tokens[i].top_ids, t->top_ids, t->n_top_ids * sizeof(*t->top_ids));
        memcpy(tokens[i].top_logprobs, t->top_logprobs, t->n_top_ids * sizeof(*t->top_logprobs));
    }
out:
    return st;
}

static bt_status take_prompt_logprobs(const PB(PromptLogprobs) *pb, bt_up_prompt_logprobs *p)
{
    bt_status st = BT_OK;
    size_t    n  = pb->n_logprobs;
    uint32_t  n_tops;

    BT_REQUIRE(n >= 1 && pb->position >= 1 && n <= INT32_MAX && pb->n_top_ids % n == 0 &&
                   pb->n_top_ids / n <= BT_TOP_LOGPROBS_MAX && pb->n_top_ids == pb->n_top_logprobs,
               BT_ERR_PROTOCOL, "%zu prompt logprobs at position %u with %zu and %zu alternatives",
               n, pb->position, pb->n_top_ids, pb->n_top_logprobs);
    p->request  = pb->request;
    p->epoch    = pb->epoch;
    p->position = pb->position;
    p->n        = (uint32_t)n;
    p->n_top    = (uint32_t)(pb->n_top_ids / n);
    BT_TRY(bt_pb_take_floats(pb->logprobs, n, &p->logprobs));
    BT_TRY(bt_pb_take_u32s(pb->top_ids, pb->n_top_ids, &p->top_ids, &n_tops));
    BT_TRY(bt_pb_take_floats(pb->top_logprobs, pb->n_top_logprobs, &p->top_logprobs));
out:
    return st;
}

static bt_status take_eval_rows(const PB(EvalRows) *pb, bt_up_eval_rows *e)
{
    bt_status st = BT_OK;

    BT_REQUIRE(pb->n_rows >= 1, BT_ERR_PROTOCOL, "eval rows without rows");
    BT_REQUIRE(pb->logits.len / 4 % pb->n_rows == 0 && pb->experts.len / 4 % pb->n_rows == 0,
               BT_ERR_PROTOCOL, "%zu logit and %zu expert bytes do not make %u rows",
               pb->logits.len, pb->experts.len, pb->n_rows);
    e->request  = pb->request;
    e->epoch    = pb->epoch;
    e->position = pb->position;
    e->n_rows   = pb->n_rows;
    BT_TRY(bt_pb_take_bytes(&pb->logits, "logits", &e->logits, &e->n_logit_bytes));
    BT_TRY(bt_pb_take_bytes(&pb->experts, "experts", &e->experts, &e->n_expert_bytes));
out:
    return st;
}

static bt_status take_beat(const PB(Beat) *pb, bt_up_beat *b)
{
    bt_status st = BT_OK;

    BT_REQUIRE((pb->n_batch_rows == 0 || pb->n_batch_rows == BT_BEAT_BATCH_BUCKETS) &&
                   (pb->n_step_times == 0 || pb->n_step_times == BT_BEAT_TIME_BUCKETS) &&
                   (pb->n_handoff_times == 0 || pb->n_handoff_times == BT_BEAT_TIME_BUCKETS),
               BT_ERR_PROTOCOL,
               "a beat with histograms of %zu, %zu and %zu entries, expected %d, %d and %d",
               pb->n_batch_rows, pb->n_step_times, pb->n_handoff_times, BT_BEAT_BATCH_BUCKETS,
               BT_BEAT_TIME_BUCKETS, BT_BEAT_TIME_BUCKETS);
#define TAKE(field) b->field = pb->field;
    BT_PB_BEAT(TAKE);
#undef TAKE
    for (size_t i = 0; i < pb->n_batch_rows; i++)
        b->batch_rows[i] = pb->batch_rows[i];
    for (size_t i = 0; i < pb->n_step_times; i++)
        b->step_times[i] = pb->step_times[i];
    for (size_t i = 0; i < pb->n_handoff_times; i++)
        b->handoff_times[i] = pb->handoff_times[i];
out:
    return st;
}

static bt_status take_peer_load(const PB(PeerLoad) *pb, bt_up *m)
{
    bt_status st = BT_OK;
    size_t    n  = pb->n_numbers / 4;

    BT_REQUIRE(pb->n_numbers % 4 == 0 && n >= 1 && n <= BT_PEER_LOAD_MAX, BT_ERR_PROTOCOL,
               "the load of peers in %zu numbers, expected four for each of 1 to %d", pb->n_numbers,
               BT_PEER_LOAD_MAX);
    m->u.peer_load.peers = bt_copy(pb->numbers, n, sizeof(*m->u.peer_load.peers));
    BT_REQUIRE(m->u.peer_load.peers != NULL, BT_ERR_NO_MEMORY, "load of %zu peers", n);
    m->u.peer_load.n     = (uint32_t)n;
    m->u.peer_load.at_ns = pb->at_ns;
out:
    return st;
}

static bt_status take_expert_load(const PB(ExpertLoad) *pb, bt_up *m)
{
    bt_status st = BT_OK;

    BT_REQUIRE(pb->n_rows >= 1 && pb->n_rows <= BT_EXPERT_LOAD_MAX, BT_ERR_PROTOCOL,
               "the load of %zu experts, expected 1 to %d", pb->n_rows, BT_EXPERT_LOAD_MAX);
    m->u.expert_load.rows = bt_copy(pb->rows, pb->n_rows, sizeof(*pb->rows));
    BT_REQUIRE(m->u.expert_load.rows != NULL, BT_ERR_NO_MEMORY, "load of %zu experts", pb->n_rows);
    m->u.expert_load.n = (uint32_t)pb->n_rows;
out:
    return st;
}

static bt_status take_ticket(const PB(Ticket) *pb, bt_up *m)
{
    bt_status st = BT_OK;

    BT_REQUIRE(pb->refused == (pb->n_pages == 0), BT_ERR_PROTOCOL,
               "a ticket that is %srefused has %zu pages", pb->refused ? "" : "not ", pb->n_pages);
    m->u.ticket.request = pb->request;
    m->u.ticket.epoch   = pb->epoch;
    m->u.ticket.refused = pb->refused;
    m->u.ticket.held    = pb->held_tokens;
    BT_TRY(bt_pb_take_map(&pb->form_map, &m->u.ticket.form_map, &m->u.ticket.n_form_map_bytes));
    BT_TRY(bt_pb_take_pages(pb->pages, pb->n_pages, &m->u.ticket.pages, &m->u.ticket.n_pages));
out:
    return st;
}

static bt_status take_failed(const PB(Failed) *pb, bt_up *m)
{
    bt_status st = BT_OK;

    BT_REQUIRE(pb->code >= 1 && pb->code <= 16, BT_ERR_PROTOCOL,
               "request %llu failed with code %u, expected 1 to 16",
               (unsigned long long)pb->request, pb->code);
    m->u.failed.request      = pb->request;
    m->u.failed.epoch        = pb->epoch;
    m->u.failed.code         = pb->code;
    m->u.failed.stands_still = pb->stands_still;
    BT_TRY(bt_pb_take_string(pb->message, &m->u.failed.message));
out:
    return st;
}

static bt_status take_expired(const PB(Expired) *pb, bt_up *m)
{
    bt_status st = BT_OK;

    BT_REQUIRE(pb->n_ranks <= BT_RANKS_MAX, BT_ERR_PROTOCOL,
               "a rank waits for %zu others, expected at most %d", pb->n_ranks, BT_RANKS_MAX);
    m->u.expired.epoch = pb->epoch;
    m->u.expired.n_met = pb->n_met;
    BT_TRY(bt_pb_take_u32s(pb->ranks, pb->n_ranks, &m->u.expired.ranks, &m->u.expired.n));
    BT_TRY(bt_pb_take_string(pb->what, &m->u.expired.what));
out:
    return st;
}

static bt_status take_up(const PB(FromWorker) *pb, bt_up *m)
{
    bt_status st = BT_OK;

    switch (pb->body_case) {
    case BATON__CONTROL__V1__FROM_WORKER__BODY_HELLO:
        m->kind = BT_UP_HELLO;
        return take_hello(pb->hello, &m->u.hello);
    case BATON__CONTROL__V1__FROM_WORKER__BODY_PROGRESS:
        m->kind                   = BT_UP_PROGRESS;
        m->u.progress.done_bytes  = pb->progress->done_bytes;
        m->u.progress.total_bytes = pb->progress->total_bytes;
        return BT_OK;
    case BATON__CONTROL__V1__FROM_WORKER__BODY_READY: m->kind = BT_UP_READY; return BT_OK;
    case BATON__CONTROL__V1__FROM_WORKER__BODY_BEAT:
        m->kind = BT_UP_BEAT;
        return take_beat(pb->beat, &m->u.beat);
    case BATON__CONTROL__V1__FROM_WORKER__BODY_TICKET:
        m->kind = BT_UP_TICKET;
        return take_ticket(pb->ticket, m);
    case BATON__CONTROL__V1__FROM_WORKER__BODY_TOKENS:
        m->kind = BT_UP_TOKENS;
        return take_tokens(pb->tokens, m);
    case BATON__CONTROL__V1__FROM_WORKER__BODY_FAILED:
        m->kind = BT_UP_FAILED;
        return take_failed(pb->failed, m);
    case BATON__CONTROL__V1__FROM_WORKER__BODY_RELEASED:
        m->kind               = BT_UP_RELEASED;
        m->u.released.request = pb->released->request;
        m->u.released.epoch   = pb->released->epoch;
        return BT_OK;
    case BATON__CONTROL__V1__FROM_WORKER__BODY_RETRACTED:
        m->kind                = BT_UP_RETRACTED;
        m->u.retracted.request = pb->retracted->request;
        m->u.retracted.epoch   = pb->retracted->epoch;
        return BT_OK;
    case BATON__CONTROL__V1__FROM_WORKER__BODY_WAKE_REQUEST:
        m->kind                = BT_UP_WAKE_REQUEST;
        m->u.wake_request.wake = pb->wake_request->wake;
        BT_REQUIRE(pb->wake_request->wake < BT_WAKE_MAX, BT_ERR_PROTOCOL,
                   "a wake request with number %llu, expected less than %llu",
                   (unsigned long long)pb->wake_request->wake, (unsigned long long)BT_WAKE_MAX);
        return BT_OK;
    case BATON__CONTROL__V1__FROM_WORKER__BODY_EXPIRED:
        m->kind = BT_UP_EXPIRED;
        return take_expired(pb->expired, m);
    case BATON__CONTROL__V1__FROM_WORKER__BODY_PROMPT_LOGPROBS:
        m->kind = BT_UP_PROMPT_LOGPROBS;
        return take_prompt_logprobs(pb->prompt_logprobs, &m->u.prompt_logprobs);
    case BATON__CONTROL__V1__FROM_WORKER__BODY_FORM_MAP:
        m->kind               = BT_UP_FORM_MAP;
        m->u.form_map.request = pb->form_map->request;
        m->u.form_map.epoch   = pb->form_map->epoch;
        return bt_pb_take_map(&pb->form_map->form_map, &m->u.form_map.form_map,
                              &m->u.form_map.n_form_map_bytes);
    case BATON__CONTROL__V1__FROM_WORKER__BODY_EXPERT_LOAD:
        m->kind = BT_UP_EXPERT_LOAD;
        return take_expert_load(pb->expert_load, m);
    case BATON__CONTROL__V1__FROM_WORKER__BODY_PEER_LOAD:
        m->kind = BT_UP_PEER_LOAD;
        return take_peer_load(pb->peer_load, m);
    case BATON__CONTROL__V1__FROM_WORKER__BODY_EVAL_ROWS:
        m->kind = BT_UP_EVAL_ROWS;
        return take_eval_rows(pb->eval_rows, &m->u.eval_rows);
    case BATON__CONTROL__V1__FROM_WORKER__BODY_DRAIN: m->kind = BT_UP_DRAIN; return BT_OK;
    case BATON__CONTROL__V1__FROM_WORKER__BODY_LEAVING:
        m->kind = BT_UP_LEAVING;
        return bt_pb_take_string(pb->leaving->reason, &m->u.leaving.reason);
    default:
        BT_REQUIRE(false, BT_ERR_PROTOCOL, "a worker's message has an unknown body (%d)",
                   (int)pb->body_case);
    }
out:
    return st;
}

bt_status bt_up_unpack(const uint8_t *bytes, size_t n, bt_up *m_out)
{
    return bt_pb_tokens(bytes, n, m_out) ? BT_OK : bt_pb_up(bytes, n, m_out);
}

bt_status bt_pb_up(const uint8_t *bytes, size_t n, bt_up *m_out)
{
    bt_status         st = BT_OK;
    bt_up             m  = {0};
    ProtobufCMessage *pb = NULL;

    BT_TRY(bt_pb_unpack(&baton__control__v1__from_worker__descriptor, bytes, n, "a worker", &pb));
    BT_TRY(take_up((const PB(FromWorker) *)pb, &m));
    *m_out = m;
    memset(&m, 0, sizeof(m)); /* handed over */
out:
    bt_up_free(&m);
    bt_pb_free(pb);
    return st;
}

void bt_up_free(bt_up *m)
{
    switch (m->kind) {
    case BT_UP_HELLO:
#define FREE(field) bt_free(m->u.hello.field);
        BT_PB_HELLO_TEXTS(FREE);
#undef FREE
        bt_free(m->u.hello.eos_tokens);
        bt_regroup_free(&m->u.hello.seats);
        break;
    case BT_UP_TICKET:
        bt_free(m->u.ticket.pages);
        bt_free(m->u.ticket.form_map);
        break;
    case BT_UP_FORM_MAP: bt_free(m->u.form_map.form_map); break;
    case BT_UP_EXPERT_LOAD: bt_free(m->u.expert_load.rows); break;
    case BT_UP_PEER_LOAD: bt_free(m->u.peer_load.peers); break;
    case BT_UP_TOKENS: bt_free(m->u.tokens.tokens); break;
    case BT_UP_FAILED: bt_free(m->u.failed.message); break;
    case BT_UP_PROMPT_LOGPROBS:
        bt_free(m->u.prompt_logprobs.logprobs);
        bt_free(m->u.prompt_logprobs.top_ids);
        bt_free(m->u.prompt_logprobs.top_logprobs);
        break;
    case BT_UP_EVAL_ROWS:
        bt_free(m->u.eval_rows.logits);
        bt_free(m->u.eval_rows.experts);
        break;
    case BT_UP_EXPIRED:
        bt_free(m->u.expired.ranks);
        bt_free(m->u.expired.what);
        break;
    case BT_UP_LEAVING: bt_free(m->u.leaving.reason); break;
    case BT_UP_PROGRESS:
    case BT_UP_READY:
    case BT_UP_BEAT:
    case BT_UP_RELEASED:
    case BT_UP_RETRACTED:
    case BT_UP_DRAIN:
    case BT_UP_WAKE_REQUEST: break;
    }
    memset(&m->u, 0, sizeof(m->u)); /* freeing twice is harmless */
}

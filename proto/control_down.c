/* bt_down: what the coordinator says to a worker. */
#include <string.h>

#include "core/alloc.h"
#include "proto/control_pb.h"

typedef union {
    PB(Welcome)  welcome;
    PB(Reserve)  reserve;
    PB(Prefill)  prefill;
    PB(Abort)    abort;
    PB(Wake)     wake;
    PB(Regroup)  regroup;
    PB(Shutdown) shutdown;
} down_body;

static void make_reserve(const bt_down_reserve *r, PB(Sampling) *sampling, PB(Reserve) *pb)
{
    bt_pb_make_sampling(&r->sampling, sampling);
    pb->request          = r->request;
    pb->epoch            = r->epoch;
    pb->n_prompt         = r->n_prompt;
    pb->sampling         = sampling;
    pb->prefill_rank     = r->prefill_rank;
    pb->n_prompt_tokens  = r->prompt != NULL ? r->n_prompt : 0;
    pb->prompt_tokens    = r->prompt;
    pb->eval             = r->eval;
    pb->n_eval_tokens    = r->n_eval;
    pb->eval_tokens      = r->eval_tokens;
    pb->eval_experts     = (ProtobufCBinaryData){r->n_eval_expert_bytes, r->eval_experts};
    pb->prefix_keys      = (ProtobufCBinaryData){r->n_prefix_key_bytes, r->prefix_keys};
    pb->arrival          = r->arrival;
    pb->n_choices        = r->n_choices;
    pb->choices          = r->choices;
    pb->n_replay         = r->n_replay;
    pb->replay           = r->replay;
    pb->n_replay_lengths = r->replay_lengths != NULL ? r->n_choices : 0;
    pb->replay_lengths   = r->replay_lengths;
    pb->form_map         = (ProtobufCBinaryData){r->n_form_map_bytes, r->form_map};
    pb->prefix_seed      = r->prefix_seed;
}

static bt_status make_prefill(const bt_down_prefill *p, PB(Sampling) *sampling, PB(Prefill) *pb)
{
    bt_pb_make_sampling(&p->sampling, sampling);
    pb->request      = p->request;
    pb->epoch        = p->epoch;
    pb->n_prompt     = p->n_prompt;
    pb->prompt       = p->prompt;
    pb->sampling     = sampling;
    pb->decode_rank  = p->decode_rank;
    pb->n_pages      = p->n_pages;
    pb->eval         = p->eval;
    pb->eval_experts = (ProtobufCBinaryData){p->n_eval_expert_bytes, p->eval_experts};
    pb->prefix_keys  = (ProtobufCBinaryData){p->n_prefix_key_bytes, p->prefix_keys};
    pb->held_tokens  = p->held;
    pb->arrival      = p->arrival;
    pb->n_choices    = p->n_choices;
    pb->choices      = p->choices;
    pb->form_map     = (ProtobufCBinaryData){p->n_form_map_bytes, p->form_map};
    return bt_pb_make_pages(p->pages, p->n_pages, &pb->pages);
}

/* What an envelope points to beside its body. */
typedef struct {
    PB(Sampling) sampling;
    PB(Seats)    seats[2];
} down_parts;

/* Makes b's message of that name the envelope's body, empty. */
#define BODY(NAME, name)                                            \
    do {                                                            \
        baton__control__v1__##name##__init(&b->name);               \
        pb->body_case = BATON__CONTROL__V1__TO_WORKER__BODY_##NAME; \
        pb->name      = &b->name;                                   \
    } while (0)

/* Fills the envelope; *table_out is memory that must live until it is packed. */
static bt_status make_down(const bt_down *m, down_body *b, down_parts *parts, PB(ToWorker) *pb,
                           void **table_out)
{
    bt_status   st = BT_OK;
    static char empty[1];

    baton__control__v1__to_worker__init(pb);
    switch (m->kind) {
    case BT_DOWN_WELCOME:
        BODY(WELCOME, welcome);
        b->welcome.epoch       = m->u.welcome.epoch;
        b->welcome.incarnation = m->u.welcome.incarnation;
        b->welcome.prefix_seed = m->u.welcome.prefix_seed;
        break;
    case BT_DOWN_RESERVE:
        BODY(RESERVE, reserve);
        make_reserve(&m->u.reserve, &parts->sampling, &b->reserve);
        break;
    case BT_DOWN_PREFILL:
        BODY(PREFILL, prefill);
        BT_TRY(make_prefill(&m->u.prefill, &parts->sampling, &b->prefill));
        *table_out = b->prefill.pages;
        break;
    case BT_DOWN_ABORT:
        BODY(ABORT, abort);
        b->abort.request     = m->u.abort.request;
        b->abort.epoch       = m->u.abort.epoch;
        b->abort.only_choice = m->u.abort.only_choice;
        break;
    case BT_DOWN_WAKE:
        BODY(WAKE, wake);
        b->wake.wake = m->u.wake.wake;
        break;
    case BT_DOWN_REGROUP:
        BODY(REGROUP, regroup);
        bt_pb_make_regroup(&m->u.regroup, parts->seats, &b->regroup);
        break;
    case BT_DOWN_SHUTDOWN:
        BODY(SHUTDOWN, shutdown);
        b->shutdown.reason = m->u.shutdown.reason != NULL ? m->u.shutdown.reason : empty;
        break;
    }
    BT_ASSERT(pb->body_case != BATON__CONTROL__V1__TO_WORKER__BODY__NOT_SET);
out:
    return st;
}

bt_status bt_down_pack(const bt_down *m, uint8_t **bytes_out, size_t *n_out)
{
    bt_status    st = BT_OK;
    down_body    body;
    down_parts   parts;
    PB(ToWorker) pb;
    void        *table = NULL;

    BT_TRY(make_down(m, &body, &parts, &pb, &table));
    BT_TRY(bt_pb_pack(&pb.base, bytes_out, n_out));
out:
    bt_free(table);
    return st;
}

static bt_status take_keys(const ProtobufCBinaryData *pb, void **keys_out, size_t *n_out)
{
    bt_status st = BT_OK;

    BT_REQUIRE(pb->len % BT_PREFIX_KEY_BYTES == 0, BT_ERR_PROTOCOL,
               "%zu bytes of prefix keys, expected a multiple of %d", pb->len, BT_PREFIX_KEY_BYTES);
    BT_TRY(bt_pb_take_bytes(pb, "prefix_keys", keys_out, n_out));
out:
    return st;
}

/* The open choices, ascending. */
static bt_status take_choices(const uint32_t *choices, size_t n, uint32_t **choices_out,
                              uint32_t *n_out)
{
    bt_status st = BT_OK;

    BT_REQUIRE(n <= BT_CHOICES_MAX, BT_ERR_PROTOCOL, "%zu choices, expected at most %d", n,
               BT_CHOICES_MAX);
    for (size_t i = 0; i < n; i++)
        BT_REQUIRE(choices[i] < BT_CHOICES_MAX && (i == 0 || choices[i] > choices[i - 1]),
                   BT_ERR_PROTOCOL, "choice %u at place %zu, expected them ascending and below %d",
                   choices[i], i, BT_CHOICES_MAX);
    BT_TRY(bt_pb_take_u32s(choices, n, choices_out, n_out));
out:
    return st;
}

/* What each choice replays; the lengths add up to all of it. */
static bt_status take_replay(const PB(Reserve) *pb, bt_down_reserve *r)
{
    bt_status st       = BT_OK;
    size_t    n_listed = pb->n_replay_lengths;
    uint64_t  n        = 0;
    uint32_t  n_taken;

    BT_REQUIRE(n_listed == 0 ? pb->n_choices <= 1 || pb->n_replay == 0 : n_listed == pb->n_choices,
               BT_ERR_PROTOCOL, "%zu tokens to replay of %zu choices, with %zu lengths",
               pb->n_replay, pb->n_choices, n_listed);
    for (size_t i = 0; i < n_listed; i++)
        n += pb->replay_lengths[i];
    BT_REQUIRE(n_listed == 0 || n == pb->n_replay, BT_ERR_PROTOCOL,
               "%zu tokens to replay, the choices' lengths say %llu", pb->n_replay,
               (unsigned long long)n);
    BT_TRY(bt_pb_take_u32s(pb->replay, pb->n_replay, &r->replay, &r->n_replay));
    BT_TRY(bt_pb_take_u32s(pb->replay_lengths, n_listed, &r->replay_lengths, &n_taken));
out:
    return st;
}

static bt_status take_reserve(const PB(Reserve) *pb, bt_down_reserve *r)
{
    bt_status st = BT_OK;
    uint32_t  n_prompt; /* as checked */

    BT_REQUIRE(pb->n_prompt >= 1, BT_ERR_PROTOCOL, "request %llu reserves for an empty prompt",
               (unsigned long long)pb->request);
    BT_REQUIRE(pb->eval || (pb->n_eval_tokens == 0 && pb->eval_experts.len == 0), BT_ERR_PROTOCOL,
               "request %llu is not an evaluation, but brings %zu tokens and %zu bytes of experts",
               (unsigned long long)pb->request, pb->n_eval_tokens, pb->eval_experts.len);
    BT_REQUIRE(pb->n_prompt_tokens == 0 || pb->n_prompt_tokens == pb->n_prompt, BT_ERR_PROTOCOL,
               "request %llu reserves for %u tokens and brings %zu",
               (unsigned long long)pb->request, pb->n_prompt, pb->n_prompt_tokens);
    r->request      = pb->request;
    r->epoch        = pb->epoch;
    r->n_prompt     = pb->n_prompt;
    r->prefill_rank = pb->prefill_rank;
    r->eval         = pb->eval;
    BT_TRY(bt_pb_take_sampling(pb->sampling, pb->eval, &r->sampling));
    BT_TRY(bt_pb_take_u32s(pb->prompt_tokens, pb->n_prompt_tokens, &r->prompt, &n_prompt));
    BT_TRY(bt_pb_take_u32s(pb->eval_tokens, pb->n_eval_tokens, &r->eval_tokens, &r->n_eval));
    BT_TRY(bt_pb_take_bytes(&pb->eval_experts, "eval_experts", &r->eval_experts,
                            &r->n_eval_expert_bytes));
    r->arrival = pb->arrival;
    BT_TRY(take_keys(&pb->prefix_keys, &r->prefix_keys, &r->n_prefix_key_bytes));
    BT_TRY(take_choices(pb->choices, pb->n_choices, &r->choices, &r->n_choices));
    BT_TRY(take_replay(pb, r));
    r->prefix_seed = pb->prefix_seed;
    BT_TRY(bt_pb_take_map(&pb->form_map, &r->form_map, &r->n_form_map_bytes));
out:
    return st;
}

static bt_status take_prefill(const PB(Prefill) *pb, bt_down_prefill *p)
{
    bt_status st = BT_OK;

    BT_REQUIRE(pb->n_prompt >= 1 && pb->n_pages >= 1, BT_ERR_PROTOCOL,
               "request %llu prefills %zu tokens into %zu pages", (unsigned long long)pb->request,
               pb->n_prompt, pb->n_pages);
    BT_REQUIRE(pb->eval || pb->eval_experts.len == 0, BT_ERR_PROTOCOL,
               "request %llu is not an evaluation, but brings %zu bytes of experts",
               (unsigned long long)pb->request, pb->eval_experts.len);
    p->request     = pb->request;
    p->epoch       = pb->epoch;
    p->decode_rank = pb->decode_rank;
    p->eval        = pb->eval;
    BT_TRY(bt_pb_take_u32s(pb->prompt, pb->n_prompt, &p->prompt, &p->n_prompt));
    BT_TRY(bt_pb_take_sampling(pb->sampling, pb->eval, &p->sampling));
    BT_TRY(bt_pb_take_pages(pb->pages, pb->n_pages, &p->pages, &p->n_pages));
    BT_TRY(bt_pb_take_bytes(&pb->eval_experts, "eval_experts", &p->eval_experts,
                            &p->n_eval_expert_bytes));
    p->held    = pb->held_tokens;
    p->arrival = pb->arrival;
    BT_TRY(take_keys(&pb->prefix_keys, &p->prefix_keys, &p->n_prefix_key_bytes));
    BT_TRY(take_choices(pb->choices, pb->n_choices, &p->choices, &p->n_choices));
    BT_TRY(bt_pb_take_map(&pb->form_map, &p->form_map, &p->n_form_map_bytes));
out:
    return st;
}

static bt_status take_down(const PB(ToWorker) *pb, bt_down *m)
{
    bt_status st = BT_OK;

    switch (pb->body_case) {
    case BATON__CONTROL__V1__TO_WORKER__BODY_WELCOME:
        m->kind                  = BT_DOWN_WELCOME;
        m->u.welcome.epoch       = pb->welcome->epoch;
        m->u.welcome.incarnation = pb->welcome->incarnation;
        m->u.welcome.prefix_seed = pb->welcome->prefix_seed;
        BT_REQUIRE(pb->welcome->epoch <= BT_EPOCH_MAX, BT_ERR_PROTOCOL,
                   "a welcome in epoch %u, expected at most %u", pb->welcome->epoch, BT_EPOCH_MAX);
        return BT_OK;
    case BATON__CONTROL__V1__TO_WORKER__BODY_RESERVE:
        m->kind = BT_DOWN_RESERVE;
        return take_reserve(pb->reserve, &m->u.reserve);
    case BATON__CONTROL__V1__TO_WORKER__BODY_PREFILL:
        m->kind = BT_DOWN_PREFILL;
        return take_prefill(pb->prefill, &m->u.prefill);
    case BATON__CONTROL__V1__TO_WORKER__BODY_ABORT:
        m->kind                = BT_DOWN_ABORT;
        m->u.abort.request     = pb->abort->request;
        m->u.abort.epoch       = pb->abort->epoch;
        m->u.abort.only_choice = pb->abort->only_choice;
        return BT_OK;
    case BATON__CONTROL__V1__TO_WORKER__BODY_WAKE:
        m->kind        = BT_DOWN_WAKE;
        m->u.wake.wake = pb->wake->wake;
        BT_REQUIRE(pb->wake->wake <= BT_WAKE_MAX, BT_ERR_PROTOCOL,
                   "wake number %llu, expected at most %llu", (unsigned long long)pb->wake->wake,
                   (unsigned long long)BT_WAKE_MAX);
        return BT_OK;
    case BATON__CONTROL__V1__TO_WORKER__BODY_REGROUP:
        m->kind = BT_DOWN_REGROUP;
        return bt_pb_take_regroup(pb->regroup, &m->u.regroup);
    case BATON__CONTROL__V1__TO_WORKER__BODY_SHUTDOWN:
        m->kind = BT_DOWN_SHUTDOWN;
        return bt_pb_take_string(pb->shutdown->reason, &m->u.shutdown.reason);
    default:
        BT_REQUIRE(false, BT_ERR_PROTOCOL, "a coordinator's message has an unknown body (%d)",
                   (int)pb->body_case);
    }
out:
    return st;
}

bt_status bt_down_unpack(const uint8_t *bytes, size_t n, bt_down *m_out)
{
    bt_status         st = BT_OK;
    bt_down           m  = {0};
    ProtobufCMessage *pb = NULL;

    BT_TRY(
        bt_pb_unpack(&baton__control__v1__to_worker__descriptor, bytes, n, "the coordinator", &pb));
    BT_TRY(take_down((const PB(ToWorker) *)pb, &m));
    *m_out = m;
    memset(&m, 0, sizeof(m)); /* handed over */
out:
    bt_down_free(&m);
    bt_pb_free(pb);
    return st;
}

void bt_down_free(bt_down *m)
{
    switch (m->kind) {
    case BT_DOWN_RESERVE:
        bt_sampling_free(&m->u.reserve.sampling);
        bt_free(m->u.reserve.prompt);
        bt_free(m->u.reserve.eval_tokens);
        bt_free(m->u.reserve.eval_experts);
        bt_free(m->u.reserve.prefix_keys);
        bt_free(m->u.reserve.choices);
        bt_free(m->u.reserve.replay);
        bt_free(m->u.reserve.replay_lengths);
        bt_free(m->u.reserve.form_map);
        break;
    case BT_DOWN_PREFILL:
        bt_free(m->u.prefill.prompt);
        bt_sampling_free(&m->u.prefill.sampling);
        bt_free(m->u.prefill.pages);
        bt_free(m->u.prefill.eval_experts);
        bt_free(m->u.prefill.prefix_keys);
        bt_free(m->u.prefill.choices);
        bt_free(m->u.prefill.form_map);
        break;
    case BT_DOWN_REGROUP: bt_regroup_free(&m->u.regroup); break;
    case BT_DOWN_SHUTDOWN: bt_free(m->u.shutdown.reason); break;
    case BT_DOWN_WELCOME:
    case BT_DOWN_ABORT:
    case BT_DOWN_WAKE: break;
    }
    memset(&m->u, 0, sizeof(m->u)); /* freeing twice is harmless */
}

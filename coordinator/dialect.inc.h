/* coordinator/dialect.inc.h - what both protocols say with fields of the same names, written once
 * and compiled for each: vllm.c and sglang.c define
 *   SERVICE, DIALECT      the service's full name, and the object that stands for it here
 *   PB(Name), PB_INIT(NAME), PB_CASE(NAME), PB_DESCRIPTOR(name)  a message's type, its initialiser,
 *                         the case of a oneof, a message's descriptor
 *   TAG_CHUNK, TAG_INDEX  the numbers of GenerateResponse.chunk and of the chunk's index
 *   TAG_REQUEST_ID        that of a reply's request_id; 0: it has none
 *   SET_REQUEST_ID(reply, name), SET_KV_TOKENS(reply, loads)  fill fields that one of them has
 *   CHUNK_COUNTS_ALL      whether a chunk's completion_tokens are all so far, or its own
 * and include it.  Behind it come the functions that it declares and does not define. */
#include <string.h>

#include "coordinator/dialect.h"
#include "core/alloc.h"
#include "core/clock.h"

/* ---- requests */

/* A field of a newer protocol may mean anything: it is not ignored. */
static bt_status check_known(const ProtobufCMessage *m, char *refusal)
{
    BT_INTAKE_REFUSE_UNLESS(m == NULL || m->n_unknown_fields == 0,
                            "field %u of %s is not known here, expected those of proto/ alone",
                            m->unknown_fields[0].tag, m->descriptor->short_name);
    return BT_OK;
}

/* Of a request with tokens. */
static bt_status check_all_known(const PB(GenerateRequest) *pb, char *refusal)
{
    bt_status                 st = BT_OK;
    const PB(SamplingParams) *p  = pb->sampling_params;

    BT_TRY(check_known(&pb->base, refusal));
    BT_TRY(check_known((const ProtobufCMessage *)p, refusal));
    for (size_t i = 0; p != NULL && i < p->n_logit_bias; i++)
        BT_TRY(check_known(&p->logit_bias[i]->base, refusal));
    BT_TRY(check_known(&pb->tokenized->base, refusal));
out:
    return st;
}

/* What both protocols call and mean alike. */
static void ask_same(const PB(SamplingParams) *p, bt_ask *ask)
{
    ask->n_bias              = p->n_logit_bias;
    ask->temperature         = p->temperature;
    ask->top_p               = p->top_p;
    ask->min_p               = p->min_p;
    ask->frequency_penalty   = p->frequency_penalty;
    ask->presence_penalty    = p->presence_penalty;
    ask->repetition_penalty  = p->repetition_penalty;
    ask->n                   = p->n;
    ask->ignore_eos          = p->ignore_eos;
    ask->skip_special_tokens = p->skip_special_tokens;
    ask->n_stop              = p->n_stop;
    ask->stop                = p->stop;
    ask->n_stop_token_ids    = p->n_stop_token_ids;
    ask->stop_token_ids      = p->stop_token_ids;
}

/* What the field of that name asks of the reply. */
static void ask_text(bt_constraint_kind kind, const char *name, const char *text, bt_ask *ask)
{
    ask->constraint      = kind;
    ask->constraint_name = name;
    ask->constraint_text = text;
}

/* What is not supported is refused, unless it changes nothing; the request has tokens then. */
static bt_status check_request(const PB(GenerateRequest) *pb, char *refusal);
static bt_status check_params(const PB(SamplingParams) *p, char *refusal);
/* Of bt_ask. */
static bool bias(const void *params, size_t i, const char **key_out, int64_t *id_out,
                 float *bias_out);
/* What ask_same() leaves. */
static void ask_rest(const PB(GenerateRequest) *pb, const PB(SamplingParams) *p, bt_ask *ask);

static bt_status intake(const ProtobufCMessage *request, const bt_intake_limits *limits,
                        bt_relay_submission *request_out, bt_intake_answer *answer_out,
                        char *refusal)
{
    bt_status                  st   = BT_OK;
    const PB(GenerateRequest) *pb   = (const PB(GenerateRequest) *)request;
    const PB(SamplingParams)   none = PB_INIT(SAMPLING_PARAMS);
    const PB(SamplingParams)  *p    = pb->sampling_params != NULL ? pb->sampling_params : &none;
    bt_ask ask = {.name = pb->request_id, .stream = pb->stream, .params = p, .bias = bias};

    BT_TRY(check_request(pb, refusal));
    BT_TRY(check_all_known(pb, refusal));
    BT_TRY(check_params(p, refusal));
    ask.n_ids = pb->tokenized->n_input_ids;
    ask.ids   = pb->tokenized->input_ids;
    ask_same(p, &ask);
    ask_rest(pb, p, &ask);
    BT_TRY(bt_intake(&ask, limits, request_out, answer_out, refusal));
out:
    return st;
}

/* ---- logprobs */

/* Of tokens [from, to): borrows the choice's arrays.  *block_out is memory to be freed. */
static bool make_output(const bt_choice *c, uint32_t from, uint32_t to, PB(OutputLogProbs) *lp,
                        void **block_out)
{
    size_t            n = to - from;
    PB(TopLogProbs) **table, *tops;

    *lp                  = (PB(OutputLogProbs))PB_INIT(OUTPUT_LOG_PROBS);
    lp->n_token_logprobs = lp->n_token_ids = n;
    lp->token_logprobs                     = c->logprobs + from;
    lp->token_ids                          = c->ids + from;
    if (c->n_top == 0 || n == 0) return true;
    table = bt_calloc(n, sizeof(*table) + sizeof(*tops));
    if (table == NULL) return false;
    tops = (PB(TopLogProbs) *)(void *)(table + n);
    for (size_t i = 0; i < n; i++) {
        tops[i]          = (PB(TopLogProbs))PB_INIT(TOP_LOG_PROBS);
        tops[i].n_values = tops[i].n_token_ids = c->tops[from + i];
        tops[i].values                         = c->top_logprobs + (from + i) * c->n_top;
        tops[i].token_ids                      = c->top_ids + (from + i) * c->n_top;
        table[i]                               = &tops[i];
    }
    lp->n_top_logprobs = n;
    lp->top_logprobs   = table;
    *block_out         = table;
    return true;
}

/* The first one has no logprob.  Borrows p's arrays; *block_out is memory to be freed. */
static bool make_input(const bt_input_logprobs *p, PB(InputLogProbs) *lp, void **block_out)
{
    size_t                  n = p->n_prompt - p->from;
    PB(InputTokenLogProb) **table, *values;
    PB(TopLogProbs)       **top_table, *tops;

    *lp   = (PB(InputLogProbs))PB_INIT(INPUT_LOG_PROBS);
    table = bt_calloc(n, sizeof(*table) + sizeof(*values) + sizeof(*top_table) + sizeof(*tops));
    if (table == NULL) return false;
    top_table = (PB(TopLogProbs) **)(void *)(table + n);
    values    = (PB(InputTokenLogProb) *)(void *)(top_table + n);
    tops      = (PB(TopLogProbs) *)(void *)(values + n);
    for (size_t i = 0; i < n; i++) {
        size_t at = p->from + i;

        values[i]    = (PB(InputTokenLogProb))PB_INIT(INPUT_TOKEN_LOG_PROB);
        tops[i]      = (PB(TopLogProbs))PB_INIT(TOP_LOG_PROBS);
        table[i]     = &values[i];
        top_table[i] = &tops[i];
        if (i == 0) continue;
        values[i]._value_case = PB_CASE(INPUT_TOKEN_LOG_PROB___VALUE_VALUE);
        values[i].value       = p->logprobs[at];
        tops[i].n_values = tops[i].n_token_ids = p->n_top;
        tops[i].values                         = p->top_logprobs + at * p->n_top;
        tops[i].token_ids                      = p->top_ids + at * p->n_top;
    }
    lp->n_token_logprobs = lp->n_token_ids = n;
    lp->token_logprobs                     = table;
    lp->token_ids                          = p->ids + p->from;
    if (p->n_top > 0) {
        lp->n_top_logprobs = n;
        lp->top_logprobs   = top_table;
    }
    *block_out = table;
    return true;
}

/* ---- a chunk of few tokens, and what it is packed by */

enum {
    TAG_IDS        = 1 << 3 | 2, /* GenerateStreamChunk.token_ids, and so on */
    TAG_PROMPT     = 2 << 3,
    TAG_COMPLETION = 3 << 3,
    TAG_CACHED     = 4 << 3,
    FEW            = 16, /* tokens */
    U32_BYTES      = 5,  /* at most */
    FIELDS_BYTES   = 6 * (1 + U32_BYTES),
    NAME_BYTES     = TAG_REQUEST_ID != 0 ? BT_INTAKE_NAME_MAX + 1 + U32_BYTES : 0
};

static uint8_t *put_u32(uint8_t *at, uint32_t v)
{
    for (; v >= 0x80; v >>= 7)
        *at++ = (uint8_t)(v | 0x80);
    *at++ = (uint8_t)v;
    return at;
}

/* Nothing for 0, as proto3 has it. */
static uint8_t *put_field(uint8_t *at, uint8_t tag, size_t v)
{
    if (v == 0) return at;
    *at++ = tag;
    return put_u32(at, (uint32_t)v);
}

static uint8_t *put_part(uint8_t *at, uint8_t tag, const void *part, size_t n)
{
    if (n == 0) return at;
    at = put_field(at, tag, n);
    memcpy(at, part, n);
    return at + n;
}

/* The reply with this chunk, of at most FEW tokens and without logprobs.  Every token of every
 * stream comes this way, and protobuf-c, which would make the same bytes, takes several times as
 * long. */
static grpc_byte_buffer *pack_plain(const PB(GenerateStreamChunk) *m, const char *name)
{
    uint8_t ids[FEW * U32_BYTES], body[sizeof(ids) + FIELDS_BYTES],
        reply[NAME_BYTES + sizeof(body) + 1 + U32_BYTES];
    uint8_t          *at = ids, *end = body;
    grpc_slice        slice;
    grpc_byte_buffer *buffer;

    BT_ASSERT(m->n_token_ids <= FEW && strlen(name) <= BT_INTAKE_NAME_MAX);
    for (size_t i = 0; i < m->n_token_ids; i++)
        at = put_u32(at, m->token_ids[i]);
    end = put_part(end, TAG_IDS, ids, (size_t)(at - ids));
    end = put_field(end, TAG_PROMPT, m->prompt_tokens);
    end = put_field(end, TAG_COMPLETION, m->completion_tokens);
    end = put_field(end, TAG_CACHED, m->cached_tokens);
    end = put_field(end, TAG_INDEX << 3, m->index);
    at = TAG_REQUEST_ID != 0 ? put_part(reply, TAG_REQUEST_ID << 3 | 2, name, strlen(name)) : reply;
    at = put_part(at, TAG_CHUNK << 3 | 2, body, (size_t)(end - body));
    slice  = grpc_slice_from_copied_buffer((const char *)reply, (size_t)(at - reply));
    buffer = grpc_raw_byte_buffer_create(&slice, 1);
    grpc_slice_unref(slice);
    return buffer;
}

/* ---- messages */

static grpc_byte_buffer *pack_chunk(PB(GenerateStreamChunk) *m, const char *name)
{
    PB(GenerateResponse) reply = PB_INIT(GENERATE_RESPONSE);

    if (m->n_token_ids <= FEW && m->output_logprobs == NULL && m->input_logprobs == NULL)
        return pack_plain(m, name);
    SET_REQUEST_ID(reply, name);
    reply.response_case = PB_CASE(GENERATE_RESPONSE__RESPONSE_CHUNK);
    reply.chunk         = m;
    return bt_rpc_pack(&reply.base);
}

static grpc_byte_buffer *chunk(bt_choice *c, const bt_choice_facts *facts)
{
    PB(GenerateStreamChunk) m = PB_INIT(GENERATE_STREAM_CHUNK);
    PB(OutputLogProbs)      output;
    PB(InputLogProbs)       input;
    grpc_byte_buffer       *buffer = NULL;
    void                   *block = NULL, *input_block = NULL;

    m.n_token_ids       = c->n_ready - c->n_sent;
    m.token_ids         = c->ids + c->n_sent;
    m.prompt_tokens     = facts->n_prompt;
    m.completion_tokens = CHUNK_COUNTS_ALL ? c->n_ready : c->n_ready - c->n_sent;
    m.cached_tokens     = facts->n_cached;
    m.index             = c->index;
    if ((!facts->logprobs || make_output(c, c->n_sent, c->n_ready, &output, &block)) &&
        (facts->input == NULL || make_input(facts->input, &input, &input_block))) {
        if (facts->logprobs) m.output_logprobs = &output;
        if (facts->input != NULL) m.input_logprobs = &input;
        buffer    = pack_chunk(&m, facts->name);
        c->n_sent = c->n_ready;
    }
    bt_free(input_block);
    bt_free(block);
    return buffer;
}

static grpc_byte_buffer *complete(const bt_choice *c, const bt_choice_facts *facts)
{
    PB(GenerateComplete) done  = PB_INIT(GENERATE_COMPLETE);
    PB(GenerateResponse) reply = PB_INIT(GENERATE_RESPONSE);
    PB(OutputLogProbs)   output;
    PB(InputLogProbs)    input;
    grpc_byte_buffer    *buffer = NULL;
    static char          stop[] = "stop", length[] = "length";
    void                *block = NULL, *input_block = NULL;

    done.n_output_ids      = c->n;
    done.output_ids        = c->ids;
    done.finish_reason     = c->finish == BT_FINISH_LENGTH ? length : stop;
    done.prompt_tokens     = facts->n_prompt;
    done.completion_tokens = c->n;
    done.cached_tokens     = facts->n_cached;
    done.index             = c->index;
    if (c->finish == BT_FINISH_STOP_TOKEN) {
        done.matched_stop_case = PB_CASE(GENERATE_COMPLETE__MATCHED_STOP_MATCHED_TOKEN_ID);
        done.matched_token_id  = c->ids[c->n - 1];
    } else if (c->finish == BT_FINISH_STOP_STRING) {
        done.matched_stop_case = PB_CASE(GENERATE_COMPLETE__MATCHED_STOP_MATCHED_STOP_STR);
        done.matched_stop_str  = (char *)bt_stop_set_string(c->stop, c->matched);
    }
    if ((!facts->logprobs || make_output(c, 0, c->n, &output, &block)) &&
        (facts->input == NULL || make_input(facts->input, &input, &input_block))) {
        if (facts->logprobs) done.output_logprobs = &output;
        if (facts->input != NULL) done.input_logprobs = &input;
        SET_REQUEST_ID(reply, facts->name);
        reply.response_case = PB_CASE(GENERATE_RESPONSE__RESPONSE_COMPLETE);
        reply.complete      = &done;
        buffer              = bt_rpc_pack(&reply.base);
    }
    bt_free(input_block);
    bt_free(block);
    return buffer;
}

/* ---- facts */

static grpc_byte_buffer *health_check(bt_call *call, const ProtobufCMessage *request)
{
    PB(HealthCheckResponse) reply   = PB_INIT(HEALTH_CHECK_RESPONSE);
    static char             ready[] = "ready";

    (void)request;
    /* healthy = false would not suffice: a gateway that registers looks at the status alone. */
    if (call->pub->draining)
        return bt_public_fail(call, GRPC_STATUS_UNAVAILABLE, "the server is shutting down");
    reply.healthy = 1;
    reply.message = ready;
    return bt_rpc_pack(&reply.base);
}

static grpc_byte_buffer *model_info(bt_call *call, const ProtobufCMessage *request)
{
    enum { EOS_MAX = 64 };
    PB(GetModelInfoResponse) reply = PB_INIT(GET_MODEL_INFO_RESPONSE);
    const bt_public         *pub   = call->pub;
    const bt_up_hello       *h     = pub->facts;
    int32_t                  eos[EOS_MAX];
    char                    *architectures[1] = {h->architecture};

    (void)request;
    reply.model_path         = (char *)pub->public_path;
    reply.tokenizer_path     = reply.model_path; /* must be there on the gateway's machine too */
    reply.served_model_name  = (char *)pub->served_name;
    reply.is_generation      = 1;
    reply.max_context_length = (int32_t)bt_intake_max_context(&pub->limits);
    reply.max_req_input_len  = (int32_t)bt_intake_max_prompt(&pub->limits);
    reply.vocab_size         = (int32_t)h->vocab_size;
    reply.model_type         = h->model_type;
    reply.n_architectures    = h->architecture[0] != 0;
    reply.architectures      = architectures;
    reply.n_eos_token_ids    = h->n_eos < EOS_MAX ? h->n_eos : EOS_MAX;
    for (size_t i = 0; i < reply.n_eos_token_ids; i++)
        eos[i] = (int32_t)h->eos_tokens[i];
    reply.eos_token_ids                = eos;
    reply.bos_token_id                 = h->bos_token > 0 ? (int32_t)h->bos_token : 0;
    reply.pad_token_id                 = h->pad_token > 0 ? (int32_t)h->pad_token : 0;
    reply.default_sampling_params_json = pub->default_sampling;
    return bt_rpc_pack(&reply.base);
}

static grpc_byte_buffer *server_info(bt_call *call, const ProtobufCMessage *request)
{
    PB(GetServerInfoResponse) reply = PB_INIT(GET_SERVER_INFO_RESPONSE);
    bt_relay_loads            loads;
    static char               type[] = "baton";

    (void)request;
    bt_fleet_get_loads(call->pub->fleet, &loads);
    SET_KV_TOKENS(reply, loads);
    reply.active_requests        = loads.n_waiting + loads.n_running;
    reply.last_receive_timestamp = call->pub->last_receive;
    reply.uptime_seconds         = (double)(bt_now_ns() - call->pub->started_ns) * 1e-9;
    reply.server_type            = type;
    return bt_rpc_pack(&reply.base);
}

static grpc_byte_buffer *get_loads(bt_call *call, const ProtobufCMessage *request)
{
    PB(SchedulerLoad)          load = PB_INIT(SCHEDULER_LOAD), *list[] = {&load};
    PB(GetLoadsResponse)       reply = PB_INIT(GET_LOADS_RESPONSE);
    char                       stamp[BT_TIME_TEXT];
    const PB(GetLoadsRequest) *pb = (const PB(GetLoadsRequest) *)request;
    bt_relay_loads             l;
    bt_cell_counts             counts;

    /* Whatever sections are asked for, all are sent. */
    if (pb->_dp_rank_case != PB_CASE(GET_LOADS_REQUEST___DP_RANK__NOT_SET) && pb->dp_rank != 0)
        return bt_public_fail(call, GRPC_STATUS_INVALID_ARGUMENT,
                              "dp_rank is %d, expected 0: to its clients this server is one rank",
                              pb->dp_rank);
    bt_fleet_get_loads(call->pub->fleet, &l);
    bt_fleet_count(call->pub->fleet, &counts);
    bt_public_time(stamp);
    load.num_running_reqs     = bt_public_clamp(l.n_running);
    load.num_waiting_reqs     = bt_public_clamp(l.n_waiting);
    load.num_total_reqs       = bt_public_clamp((uint64_t)l.n_running + l.n_waiting);
    load.num_used_tokens      = bt_public_clamp(l.used_tokens);
    load.max_total_num_tokens = bt_public_clamp(l.total_tokens);
    load.token_usage = l.total_tokens == 0 ? 1 : (double)l.used_tokens / (double)l.total_tokens;
    load.utilization = load.token_usage;
    if (counts.prefix_asked_tokens != 0)
        load.cache_hit_rate = (double)counts.prefix_hit_tokens / (double)counts.prefix_asked_tokens;
    load.gen_throughput              = bt_public_throughput(call->pub, l.tokens_out);
    load.max_running_requests        = bt_public_clamp(l.max_running);
    load.num_waiting_uncached_tokens = bt_public_clamp(bt_fleet_queued_tokens(call->pub->fleet));
    reply.timestamp                  = stamp;
    reply.version                    = (char *)BT_VERSION;
    reply.dp_rank_count              = 1;
    reply.n_loads                    = 1;
    reply.loads                      = list;
    return bt_rpc_pack(&reply.base);
}

/* ---- methods */

static grpc_byte_buffer *abort_live(bt_call *call, const ProtobufCMessage *request);

static void generate(bt_call *call, const ProtobufCMessage *request)
{
    bt_public_generate(call, request, &DIALECT);
}

#define METHOD(name, message, ...)                                                    \
    {                                                                                 \
        .path = "/" SERVICE "/" name, .request = &PB_DESCRIPTOR(message), __VA_ARGS__ \
    }

static const bt_method METHODS[] = {
    METHOD("Generate", generate_request, .stream = generate, .counted = true),
    METHOD("Abort", abort_request, .answer = abort_live),
    METHOD("HealthCheck", health_check_request, .answer = health_check),
    METHOD("GetModelInfo", get_model_info_request, .answer = model_info),
    METHOD("GetServerInfo", get_server_info_request, .answer = server_info),
    METHOD("GetLoads", get_loads_request, .answer = get_loads),
    METHOD("GetTokenizer", get_tokenizer_request, .stream = bt_public_send_tokenizer),
};

const bt_dialect DIALECT = {.service   = SERVICE,
                            .methods   = METHODS,
                            .n_methods = sizeof(METHODS) / sizeof(METHODS[0]),
                            .intake    = intake,
                            .chunk     = chunk,
                            .complete  = complete};

/* sglang.grpc.scheduler.SglangScheduler: a gateway that finds it prefers it to the other one, and
 * then has no seeds; so it is there only where it is asked for. */
#define PB(name)                    Sglang__Grpc__Scheduler__##name
#define PB_INIT(name)               SGLANG__GRPC__SCHEDULER__##name##__INIT
#define PB_CASE(name)               SGLANG__GRPC__SCHEDULER__##name
#define PB_DESCRIPTOR(name)         sglang__grpc__scheduler__##name##__descriptor
#define SERVICE                     "sglang.grpc.scheduler.SglangScheduler"
#define DIALECT                     bt_dialect_sglang
#define TAG_CHUNK                   2
#define TAG_INDEX                   8
#define TAG_REQUEST_ID              1
#define CHUNK_COUNTS_ALL            true
#define SET_REQUEST_ID(reply, name) ((reply).request_id = (char *)(name))
#define SET_KV_TOKENS(reply, loads) \
    ((reply).max_total_num_tokens = bt_public_clamp((loads).total_tokens))

#include <stdlib.h>

#include "proto/sglang_scheduler.pb-c.h"

#include "coordinator/dialect.inc.h"

typedef PB(GenerateRequest) generate_request;
typedef PB(SamplingParams)  params;

enum { DIGITS_MAX = 18 }; /* of a number that fits */

/* ---- requests */

static bt_status check_request(const generate_request *pb, char *refusal)
{
    const PB(DisaggregatedParams) *pd = pb->disaggregated_params;

    BT_INTAKE_REFUSE_UNLESS(pb->tokenized != NULL,
                            "the request has no input: send token ids in tokenized");
    BT_INTAKE_REFUSE_UNLESS(pb->mm_inputs == NULL, "mm_inputs is not supported");
    BT_INTAKE_REFUSE_UNLESS(pb->n_input_embeds == 0, "input_embeds is not supported");
    BT_INTAKE_REFUSE_UNLESS(pb->n_token_ids_logprob == 0, "token_ids_logprob is not supported");
    BT_INTAKE_REFUSE_UNLESS(!pb->return_hidden_states, "return_hidden_states is not supported");
    BT_INTAKE_REFUSE_UNLESS(
        pd == NULL ||
            (pd->bootstrap_host[0] == 0 && pd->bootstrap_port == 0 && pd->bootstrap_room == 0),
        "disaggregated_params is not supported: prefill and decode are this server's "
        "own");
    BT_INTAKE_REFUSE_UNLESS(pb->custom_logit_processor[0] == 0,
                            "custom_logit_processor is not supported");
    BT_INTAKE_REFUSE_UNLESS(pb->lora_id[0] == 0, "lora_id is not supported");
    BT_INTAKE_REFUSE_UNLESS(pb->data_parallel_rank <= 0,
                            "data_parallel_rank is %d, but this server places requests itself",
                            pb->data_parallel_rank);
    return check_known((const ProtobufCMessage *)pd, refusal);
}

static void ask_constraint(const params *p, bt_ask *ask)
{
    switch (p->constraint_case) {
    case PB_CASE(SAMPLING_PARAMS__CONSTRAINT_REGEX):
        ask_text(BT_CONSTRAINT_REGEX, "regex", p->regex, ask);
        break;
    case PB_CASE(SAMPLING_PARAMS__CONSTRAINT_JSON_SCHEMA):
        ask_text(BT_CONSTRAINT_JSON_SCHEMA, "json_schema", p->json_schema, ask);
        break;
    case PB_CASE(SAMPLING_PARAMS__CONSTRAINT_EBNF_GRAMMAR):
        ask_text(BT_CONSTRAINT_EBNF, "ebnf_grammar", p->ebnf_grammar, ask);
        break;
    case PB_CASE(SAMPLING_PARAMS__CONSTRAINT_STRUCTURAL_TAG):
        ask_text(BT_CONSTRAINT_STRUCTURAL_TAG, "structural_tag", p->structural_tag, ask);
        break;
    default: break;
    }
}

static bt_status check_params(const params *p, char *refusal)
{
    BT_INTAKE_REFUSE_UNLESS(p->custom_params == NULL, "custom_params is not supported");
    BT_INTAKE_REFUSE_UNLESS(p->_stream_interval_case ==
                                    PB_CASE(SAMPLING_PARAMS___STREAM_INTERVAL__NOT_SET) ||
                                p->stream_interval >= 1,
                            "stream_interval is %d, expected 1 or more", p->stream_interval);
    BT_INTAKE_REFUSE_UNLESS(p->top_k >= -1, "top_k is %d, it must be at least -1", p->top_k);
    return BT_OK;
}

static bool bias(const void *from, size_t i, const char **key_out, int64_t *id_out, float *bias_out)
{
    const params *p   = from;
    const char   *key = p->logit_bias[i]->key;
    size_t        n   = strlen(key);

    *key_out  = key;
    *id_out   = strtoll(key, NULL, 10);
    *bias_out = p->logit_bias[i]->value;
    return n > 0 && n <= DIGITS_MAX && strspn(key, "0123456789") == n;
}

static void ask_rest(const generate_request *pb, const params *p, bt_ask *ask)
{
    static const bt_ask_names names = {.max_tokens      = "max_new_tokens",
                                       .min_tokens      = "min_new_tokens",
                                       .logprobs        = "top_logprobs_num",
                                       .prompt_logprobs = "top_logprobs_num",
                                       .prompt_from     = "logprob_start_len"};

    ask_constraint(p, ask);
    ask->names      = &names;
    ask->top_k      = p->top_k > 0 ? (uint32_t)p->top_k : 0;
    ask->min_tokens = p->min_new_tokens;
    ask->max_tokens = p->max_new_tokens;
    ask->has_max_tokens =
        p->_max_new_tokens_case != PB_CASE(SAMPLING_PARAMS___MAX_NEW_TOKENS__NOT_SET);
    ask->thinks              = pb->require_reasoning;
    ask->has_logprobs        = pb->return_logprob;
    ask->has_prompt_logprobs = pb->return_logprob && pb->logprob_start_len >= 0;
    ask->logprobs = ask->prompt_logprobs = pb->top_logprobs_num;
    ask->prompt_from = ask->has_prompt_logprobs ? (uint32_t)pb->logprob_start_len : 0;
}

/* ---- Abort */

static grpc_byte_buffer *abort_live(bt_call *call, const ProtobufCMessage *request)
{
    const PB(AbortRequest) *pb     = (const PB(AbortRequest) *)request;
    PB(AbortResponse)       reply  = PB_INIT(ABORT_RESPONSE);
    static char             live[] = "aborted", none[] = "no such request is live";

    reply.success = bt_fleet_abort_name(call->pub->fleet, pb->request_id, "aborted by the client");
    reply.message = reply.success ? live : none;
    return bt_rpc_pack(&reply.base);
}

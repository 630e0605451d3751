/* vllm.grpc.engine.VllmEngine: the protocol of every server here.  Temperature, max_tokens, seed
 * and logprobs have presence, and replies do not name their request. */
#define PB(name)                    Vllm__Grpc__Engine__##name
#define PB_INIT(name)               VLLM__GRPC__ENGINE__##name##__INIT
#define PB_CASE(name)               VLLM__GRPC__ENGINE__##name
#define PB_DESCRIPTOR(name)         vllm__grpc__engine__##name##__descriptor
#define SERVICE                     "vllm.grpc.engine.VllmEngine"
#define DIALECT                     bt_dialect_vllm
#define TAG_CHUNK                   1
#define TAG_INDEX                   7
#define TAG_REQUEST_ID              0
#define CHUNK_COUNTS_ALL            false
#define SET_REQUEST_ID(reply, name) ((void)(name))
#define SET_KV_TOKENS(reply, loads) ((void)0)

#include "proto/vllm_engine.pb-c.h"

#include "coordinator/dialect.inc.h"

enum { ABORTS_MAX = 4096 };

typedef PB(GenerateRequest) generate_request;
typedef PB(SamplingParams)  params;

/* ---- requests */

static bt_status check_request(const generate_request *pb, char *refusal)
{
    BT_INTAKE_REFUSE_UNLESS(pb->input_case != PB_CASE(GENERATE_REQUEST__INPUT_TEXT),
                            "text is not supported: send token ids in tokenized");
    BT_INTAKE_REFUSE_UNLESS(pb->input_case == PB_CASE(GENERATE_REQUEST__INPUT_TOKENIZED),
                            "the request has no input: send token ids in tokenized");
    BT_INTAKE_REFUSE_UNLESS(pb->mm_inputs == NULL, "mm_inputs is not supported");
    BT_INTAKE_REFUSE_UNLESS(pb->n_media_refs == 0, "media_refs is not supported");
    BT_INTAKE_REFUSE_UNLESS(pb->n_extra_mm_inputs == 0, "extra_mm_inputs is not supported");
    BT_INTAKE_REFUSE_UNLESS(
        pb->kv_transfer_params == NULL || (pb->kv_transfer_params->remote_host[0] == 0 &&
                                           pb->kv_transfer_params->remote_port == 0),
        "kv_transfer_params is not supported: prefill and decode are this server's own");
    BT_INTAKE_REFUSE_UNLESS(
        pb->_kv_transfer_params_json_case ==
                PB_CASE(GENERATE_REQUEST___KV_TRANSFER_PARAMS_JSON__NOT_SET) ||
            pb->kv_transfer_params_json[0] == 0,
        "kv_transfer_params_json is not supported: prefill and decode are this server's own");
    BT_INTAKE_REFUSE_UNLESS(
        pb->_data_parallel_rank_case == PB_CASE(GENERATE_REQUEST___DATA_PARALLEL_RANK__NOT_SET) ||
            pb->data_parallel_rank < 0,
        "data_parallel_rank is %d, but this server places requests itself", pb->data_parallel_rank);
    return check_known((const ProtobufCMessage *)pb->kv_transfer_params, refusal);
}

static void ask_constraint(const params *p, bt_ask *ask)
{
    ask->constraint_from_first = p->grammar_from_first_token;
    switch (p->constraint_case) {
    case PB_CASE(SAMPLING_PARAMS__CONSTRAINT_JSON_SCHEMA):
        ask_text(BT_CONSTRAINT_JSON_SCHEMA, "json_schema", p->json_schema, ask);
        break;
    case PB_CASE(SAMPLING_PARAMS__CONSTRAINT_REGEX):
        ask_text(BT_CONSTRAINT_REGEX, "regex", p->regex, ask);
        break;
    case PB_CASE(SAMPLING_PARAMS__CONSTRAINT_GRAMMAR):
        ask_text(BT_CONSTRAINT_EBNF, "grammar", p->grammar, ask);
        break;
    case PB_CASE(SAMPLING_PARAMS__CONSTRAINT_STRUCTURAL_TAG):
        ask_text(BT_CONSTRAINT_STRUCTURAL_TAG, "structural_tag", p->structural_tag, ask);
        break;
    case PB_CASE(SAMPLING_PARAMS__CONSTRAINT_JSON_OBJECT):
        if (p->json_object)
            ask_text(BT_CONSTRAINT_JSON_SCHEMA, "json_object", "{\"type\":\"object\"}", ask);
        break;
    case PB_CASE(SAMPLING_PARAMS__CONSTRAINT_CHOICE):
        ask_text(BT_CONSTRAINT_CHOICE, "choice", NULL, ask);
        ask->n_constraint_choices = p->choice->n_choices;
        ask->constraint_choices   = p->choice->choices;
        break;
    default: break;
    }
}

static bt_status check_params(const params *p, char *refusal)
{
    BT_INTAKE_REFUSE_UNLESS(p->_truncate_prompt_tokens_case ==
                                PB_CASE(SAMPLING_PARAMS___TRUNCATE_PROMPT_TOKENS__NOT_SET),
                            "truncate_prompt_tokens is not supported");
    if (p->constraint_case != PB_CASE(SAMPLING_PARAMS__CONSTRAINT_CHOICE)) return BT_OK;
    return check_known(&p->choice->base, refusal);
}

static bool bias(const void *from, size_t i, const char **key_out, int64_t *id_out, float *bias_out)
{
    const params *p = from;

    (void)key_out;
    *id_out   = p->logit_bias[i]->key;
    *bias_out = p->logit_bias[i]->value;
    return true;
}

static void ask_rest(const generate_request *pb, const params *p, bt_ask *ask)
{
    static const bt_ask_names names = {.max_tokens      = "max_tokens",
                                       .min_tokens      = "min_tokens",
                                       .logprobs        = "logprobs",
                                       .prompt_logprobs = "prompt_logprobs"};

    (void)pb;
    ask_constraint(p, ask);
    ask->names = &names;
    if (p->_temperature_case == PB_CASE(SAMPLING_PARAMS___TEMPERATURE__NOT_SET))
        ask->temperature = 1.0f;
    ask->top_k          = p->top_k;
    ask->min_tokens     = p->min_tokens;
    ask->has_max_tokens = p->_max_tokens_case != PB_CASE(SAMPLING_PARAMS___MAX_TOKENS__NOT_SET);
    ask->max_tokens     = p->max_tokens;
    ask->has_seed       = p->_seed_case != PB_CASE(SAMPLING_PARAMS___SEED__NOT_SET);
    ask->seed           = p->seed;
    ask->has_logprobs   = p->_logprobs_case != PB_CASE(SAMPLING_PARAMS___LOGPROBS__NOT_SET);
    ask->logprobs       = p->logprobs;
    ask->has_prompt_logprobs =
        p->_prompt_logprobs_case != PB_CASE(SAMPLING_PARAMS___PROMPT_LOGPROBS__NOT_SET);
    ask->prompt_logprobs = p->prompt_logprobs;
}

/* ---- Abort */

static grpc_byte_buffer *abort_live(bt_call *call, const ProtobufCMessage *request)
{
    const PB(AbortRequest) *pb    = (const PB(AbortRequest) *)request;
    PB(AbortResponse)       reply = PB_INIT(ABORT_RESPONSE);

    if (pb->n_request_ids > ABORTS_MAX)
        return bt_public_fail(call, GRPC_STATUS_INVALID_ARGUMENT,
                              "%zu request_ids, at most %d are allowed", pb->n_request_ids,
                              ABORTS_MAX);
    for (size_t i = 0; i < pb->n_request_ids; i++) /* unknown and ended ones are fine */
        bt_fleet_abort_name(call->pub->fleet, pb->request_ids[i], "aborted by the client");
    return bt_rpc_pack(&reply.base);
}

#include "coordinator/intake.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "core/alloc.h"
#include "proto/text.h"

enum { STOP_IDS_MAX = 1024 };
/* Below this a temperature means greedy, as in the engine whose protocol this is. */
static const float GREEDY = 1e-5f;
/* What a rank takes; above it every token is as likely as any other. */
static const float HOTTEST = 1e6f;

typedef Vllm__Grpc__Engine__GenerateRequest request;
typedef Vllm__Grpc__Engine__SamplingParams  params;

#define REFUSE_UNLESS(cond, ...)                            \
    do {                                                    \
        if (!(cond)) {                                      \
            snprintf(refusal, BT_INTAKE_TEXT, __VA_ARGS__); \
            return BT_ERR_INVALID_ARG;                      \
        }                                                   \
    } while (0)

static const char *constraint_name(const params *p)
{
    switch (p->constraint_case) {
    case VLLM__GRPC__ENGINE__SAMPLING_PARAMS__CONSTRAINT_JSON_SCHEMA: return "json_schema";
    case VLLM__GRPC__ENGINE__SAMPLING_PARAMS__CONSTRAINT_REGEX: return "regex";
    case VLLM__GRPC__ENGINE__SAMPLING_PARAMS__CONSTRAINT_GRAMMAR: return "grammar";
    case VLLM__GRPC__ENGINE__SAMPLING_PARAMS__CONSTRAINT_STRUCTURAL_TAG: return "structural_tag";
    case VLLM__GRPC__ENGINE__SAMPLING_PARAMS__CONSTRAINT_JSON_OBJECT:
        return p->json_object ? "json_object" : NULL;
    case VLLM__GRPC__ENGINE__SAMPLING_PARAMS__CONSTRAINT_CHOICE: return "choice";
    default: return NULL;
    }
}

static bool has_control_characters(const char *text)
{
    for (; *text != 0; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7f) return true;
    return false;
}

/* Fields of the request proper. */
static bt_status check_request(const request *pb, char *refusal)
{
    REFUSE_UNLESS(pb->request_id[0] != 0, "request_id is empty");
    REFUSE_UNLESS(strlen(pb->request_id) <= BT_INTAKE_NAME_MAX,
                  "request_id has %zu bytes, at most %d are allowed", strlen(pb->request_id),
                  BT_INTAKE_NAME_MAX);
    REFUSE_UNLESS(bt_text_is_utf8(pb->request_id), "request_id is not UTF-8");
    REFUSE_UNLESS(!has_control_characters(pb->request_id), "request_id holds control characters");
    REFUSE_UNLESS(pb->input_case != VLLM__GRPC__ENGINE__GENERATE_REQUEST__INPUT_TEXT,
                  "text is not supported: send token ids in tokenized");
    REFUSE_UNLESS(pb->input_case == VLLM__GRPC__ENGINE__GENERATE_REQUEST__INPUT_TOKENIZED,
                  "the request has no input: send token ids in tokenized");
    REFUSE_UNLESS(pb->mm_inputs == NULL, "mm_inputs is not supported");
    REFUSE_UNLESS(pb->n_media_refs == 0, "media_refs is not supported");
    REFUSE_UNLESS(pb->n_extra_mm_inputs == 0, "extra_mm_inputs is not supported");
    REFUSE_UNLESS(pb->kv_transfer_params == NULL || (pb->kv_transfer_params->remote_host[0] == 0 &&
                                                     pb->kv_transfer_params->remote_port == 0),
                  "kv_transfer_params is not supported: prefill and decode are this server's own");
    REFUSE_UNLESS(
        pb->_kv_transfer_params_json_case ==
                VLLM__GRPC__ENGINE__GENERATE_REQUEST___KV_TRANSFER_PARAMS_JSON__NOT_SET ||
            pb->kv_transfer_params_json[0] == 0,
        "kv_transfer_params_json is not supported: prefill and decode are this server's own");
    REFUSE_UNLESS(pb->_data_parallel_rank_case ==
                          VLLM__GRPC__ENGINE__GENERATE_REQUEST___DATA_PARALLEL_RANK__NOT_SET ||
                      pb->data_parallel_rank < 0,
                  "data_parallel_rank is %d, but this server places requests itself",
                  pb->data_parallel_rank);
    return BT_OK;
}

/* Sampling parameters that must be neutral. */
static bt_status check_neutral(const params *p, char *refusal)
{
    const char *constraint = constraint_name(p);

    REFUSE_UNLESS(p->top_p == 0.0f || p->top_p == 1.0f, "top_p is %g: only 1 is supported",
                  (double)p->top_p);
    REFUSE_UNLESS(p->top_k == 0, "top_k is %u: only 0 is supported", p->top_k);
    REFUSE_UNLESS(p->min_p == 0.0f, "min_p is %g: only 0 is supported", (double)p->min_p);
    REFUSE_UNLESS(p->frequency_penalty == 0.0f, "frequency_penalty is %g: only 0 is supported",
                  (double)p->frequency_penalty);
    REFUSE_UNLESS(p->presence_penalty == 0.0f, "presence_penalty is %g: only 0 is supported",
                  (double)p->presence_penalty);
    REFUSE_UNLESS(p->repetition_penalty == 0.0f || p->repetition_penalty == 1.0f,
                  "repetition_penalty is %g: only 1 is supported", (double)p->repetition_penalty);
    REFUSE_UNLESS(p->min_tokens == 0, "min_tokens is %u: only 0 is supported", p->min_tokens);
    REFUSE_UNLESS(p->n_stop == 0, "stop (strings) is not supported: use stop_token_ids");
    REFUSE_UNLESS(p->n <= 1, "n is %u: only 1 is supported", p->n);
    REFUSE_UNLESS(constraint == NULL, "%s is not supported", constraint);
    REFUSE_UNLESS(!p->grammar_from_first_token, "grammar_from_first_token is not supported");
    REFUSE_UNLESS(p->_prompt_logprobs_case ==
                      VLLM__GRPC__ENGINE__SAMPLING_PARAMS___PROMPT_LOGPROBS__NOT_SET,
                  "prompt_logprobs is not supported");
    REFUSE_UNLESS(p->n_logit_bias == 0, "logit_bias is not supported");
    REFUSE_UNLESS(p->_truncate_prompt_tokens_case ==
                      VLLM__GRPC__ENGINE__SAMPLING_PARAMS___TRUNCATE_PROMPT_TOKENS__NOT_SET,
                  "truncate_prompt_tokens is not supported");
    return BT_OK;
}

static bt_status take_prompt(const Vllm__Grpc__Engine__TokenizedInput *input,
                             const bt_intake_limits *limits, bt_relay_request *r, char *refusal)
{
    size_t n = input->n_input_ids;

    REFUSE_UNLESS(n > 0, "the prompt is empty: tokenized.input_ids has no ids");
    REFUSE_UNLESS(n < limits->max_context,
                  "the prompt has %zu tokens, but the context is %u and one token must follow", n,
                  limits->max_context);
    REFUSE_UNLESS(n <= limits->max_prompt && n < limits->max_tokens,
                  "the prompt has %zu tokens, more than a rank's KV pages hold (%llu)", n,
                  (unsigned long long)(limits->max_prompt < limits->max_tokens
                                           ? limits->max_prompt
                                           : limits->max_tokens - 1));
    for (size_t i = 0; i < n; i++)
        REFUSE_UNLESS(input->input_ids[i] < limits->vocab_size,
                      "token %zu of the prompt is %u, but the vocabulary has %u ids", i,
                      input->input_ids[i], limits->vocab_size);
    r->prompt = bt_calloc(n, sizeof(*r->prompt));
    REFUSE_UNLESS(r->prompt != NULL, "out of memory");
    memcpy(r->prompt, input->input_ids, n * sizeof(*r->prompt));
    r->n_prompt = (uint32_t)n;
    return BT_OK;
}

static bt_status take_max_tokens(const params *p, const bt_intake_limits *limits,
                                 bt_relay_request *r, char *refusal)
{
    uint64_t n_prompt = r->n_prompt, room = limits->max_context - n_prompt;

    if (p->_max_tokens_case == VLLM__GRPC__ENGINE__SAMPLING_PARAMS___MAX_TOKENS__NOT_SET) {
        if (room > limits->max_tokens - n_prompt) room = limits->max_tokens - n_prompt;
        r->sampling.max_tokens = (uint32_t)room;
        return BT_OK;
    }
    REFUSE_UNLESS(p->max_tokens >= 1, "max_tokens is 0");
    REFUSE_UNLESS(p->max_tokens <= room,
                  "%llu prompt tokens and max_tokens %u are more than the context of %u",
                  (unsigned long long)n_prompt, p->max_tokens, limits->max_context);
    REFUSE_UNLESS(
        p->max_tokens <= limits->max_tokens - n_prompt,
        "%llu prompt tokens and max_tokens %u are more than a rank's KV pages hold (%llu)",
        (unsigned long long)n_prompt, p->max_tokens, (unsigned long long)limits->max_tokens);
    r->sampling.max_tokens = p->max_tokens;
    return BT_OK;
}

static bt_status take_stop_ids(const params *p, const bt_intake_limits *limits, bt_relay_request *r,
                               char *refusal)
{
    size_t n = p->n_stop_token_ids;

    if (n == 0) return BT_OK;
    REFUSE_UNLESS(n <= STOP_IDS_MAX, "stop_token_ids has %zu ids, at most %d are allowed", n,
                  STOP_IDS_MAX);
    for (size_t i = 0; i < n; i++)
        REFUSE_UNLESS(p->stop_token_ids[i] < limits->vocab_size,
                      "stop_token_ids holds %u, but the vocabulary has %u ids",
                      p->stop_token_ids[i], limits->vocab_size);
    r->sampling.stop_tokens = bt_calloc(n, sizeof(*r->sampling.stop_tokens));
    REFUSE_UNLESS(r->sampling.stop_tokens != NULL, "out of memory");
    memcpy(r->sampling.stop_tokens, p->stop_token_ids, n * sizeof(*r->sampling.stop_tokens));
    r->sampling.n_stop = (uint32_t)n;
    return BT_OK;
}

static bt_status take_sampling(const params *p, bt_relay_request *r, bt_intake_answer *answer,
                               char *refusal)
{
    bt_sampling *s = &r->sampling;

    s->temperature = 1.0f;
    if (p->_temperature_case != VLLM__GRPC__ENGINE__SAMPLING_PARAMS___TEMPERATURE__NOT_SET)
        s->temperature = p->temperature;
    REFUSE_UNLESS(s->temperature >= 0.0f && s->temperature <= HOTTEST,
                  "temperature is %g, it must be a number from 0 to %g", (double)s->temperature,
                  (double)HOTTEST);
    if (s->temperature < GREEDY) s->temperature = 0.0f;
    if (p->_logprobs_case != VLLM__GRPC__ENGINE__SAMPLING_PARAMS___LOGPROBS__NOT_SET) {
        REFUSE_UNLESS(p->logprobs == 0 || p->logprobs == 1,
                      "logprobs is %d: only 0 and 1 (of the chosen token) are supported",
                      p->logprobs);
        s->logprobs = answer->logprobs = true;
        answer->top_logprobs           = p->logprobs == 1 && s->temperature == 0.0f;
    }
    if (p->_seed_case != VLLM__GRPC__ENGINE__SAMPLING_PARAMS___SEED__NOT_SET)
        s->seed = (uint64_t)(int64_t)p->seed;
    else
        REFUSE_UNLESS(getrandom(&s->seed, sizeof(s->seed), 0) == (ssize_t)sizeof(s->seed),
                      "no random seed could be drawn");
    s->ignore_eos = p->ignore_eos;
    return BT_OK;
}

bt_status bt_intake(const Vllm__Grpc__Engine__GenerateRequest *pb, const bt_intake_limits *limits,
                    bt_relay_request *request_out, bt_intake_answer *answer_out, char *refusal)
{
    bt_status        st     = BT_OK;
    const params     none   = VLLM__GRPC__ENGINE__SAMPLING_PARAMS__INIT;
    const params    *p      = pb->sampling_params != NULL ? pb->sampling_params : &none;
    bt_relay_request r      = {.name = pb->request_id};
    bt_intake_answer answer = {.stream = pb->stream};

    BT_TRY(check_request(pb, refusal));
    BT_TRY(check_neutral(p, refusal));
    BT_TRY(take_sampling(p, &r, &answer, refusal));
    BT_TRY(take_prompt(pb->tokenized, limits, &r, refusal));
    BT_TRY(take_max_tokens(p, limits, &r, refusal));
    BT_TRY(take_stop_ids(p, limits, &r, refusal));
    *request_out           = r;
    *answer_out            = answer;
    r.prompt               = NULL; /* handed over */
    r.sampling.stop_tokens = NULL;
out:
    bt_free(r.prompt);
    bt_free(r.sampling.stop_tokens);
    return st;
}

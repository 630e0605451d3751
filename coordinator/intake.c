#include "coordinator/intake.h"

#include <stdio.h>
#include <string.h>

#include "coordinator/intake_parts.h"
#include "core/alloc.h"

typedef Vllm__Grpc__Engine__GenerateRequest request;
typedef Vllm__Grpc__Engine__SamplingParams  params;

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

static bt_status take_prompt(const Vllm__Grpc__Engine__TokenizedInput *input,
                             const bt_intake_limits *limits, bt_relay_submission *r, char *refusal)
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

/* The tokens that each of n choices may add; they share the full pages of the prompt. */
static uint64_t room_of(const bt_intake_limits *limits, uint64_t n_prompt, uint32_t n)
{
    uint64_t pages = limits->max_tokens / limits->page_tokens,
             full  = n_prompt / limits->page_tokens;
    uint64_t all   = full > pages ? 0 : ((pages - full) / n + full) * limits->page_tokens;

    return all > n_prompt ? all - n_prompt : 0;
}

static bt_status take_max_tokens(const params *p, const bt_intake_limits *limits, uint32_t n,
                                 bt_relay_submission *r, char *refusal)
{
    uint64_t n_prompt = r->n_prompt, room = limits->max_context - n_prompt;
    uint64_t pool = room_of(limits, n_prompt, n);

    if (p->_max_tokens_case == VLLM__GRPC__ENGINE__SAMPLING_PARAMS___MAX_TOKENS__NOT_SET) {
        REFUSE_UNLESS(
            pool >= 1,
            "%u choices of %llu prompt tokens are more than a rank's KV pages hold (%llu)", n,
            (unsigned long long)n_prompt, (unsigned long long)limits->max_tokens);
        r->sampling.max_tokens = (uint32_t)(room < pool ? room : pool);
        return BT_OK;
    }
    REFUSE_UNLESS(p->max_tokens >= 1, "max_tokens is 0, it must be at least 1");
    REFUSE_UNLESS(p->max_tokens <= room,
                  "%llu prompt tokens and max_tokens %u are more than the context of %u",
                  (unsigned long long)n_prompt, p->max_tokens, limits->max_context);
    REFUSE_UNLESS(p->max_tokens <= pool,
                  "%llu prompt tokens and max_tokens %u of %u choices are more than a rank's KV "
                  "pages hold (%llu)",
                  (unsigned long long)n_prompt, p->max_tokens, n,
                  (unsigned long long)limits->max_tokens);
    r->sampling.max_tokens = p->max_tokens;
    return BT_OK;
}

void bt_intake_answer_free(bt_intake_answer *answer)
{
    bt_stop_set_destroy(answer->stop);
    answer->stop = NULL;
}

bt_status bt_intake(const Vllm__Grpc__Engine__GenerateRequest *pb, const bt_intake_limits *limits,
                    bt_relay_submission *request_out, bt_intake_answer *answer_out, char *refusal)
{
    bt_status           st     = BT_OK;
    const params        none   = VLLM__GRPC__ENGINE__SAMPLING_PARAMS__INIT;
    const params       *p      = pb->sampling_params != NULL ? pb->sampling_params : &none;
    bt_relay_submission r      = {.name = pb->request_id};
    bt_intake_answer    answer = {.stream = pb->stream};

    BT_TRY(check_request(pb, refusal));
    BT_TRY(bt_intake_sampling(p, limits, &r.sampling, &answer, refusal));
    BT_TRY(take_prompt(pb->tokenized, limits, &r, refusal));
    BT_TRY(take_max_tokens(p, limits, answer.n, &r, refusal));
    REFUSE_UNLESS_OUT(r.sampling.min_tokens <= r.sampling.max_tokens,
                      "min_tokens is %u, more than max_tokens, which is %u", r.sampling.min_tokens,
                      r.sampling.max_tokens);
    *request_out          = r;
    *answer_out           = answer;
    r.prompt              = NULL; /* handed over */
    request_out->sampling = bt_sampling_take(&r.sampling);
    answer.stop           = NULL;
out:
    bt_free(r.prompt);
    bt_sampling_free(&r.sampling);
    bt_intake_answer_free(&answer);
    return st;
}

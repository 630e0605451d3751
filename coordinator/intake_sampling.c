/* How tokens are chosen: what is asked, in range, or refused by its name. */
#include <float.h>
#include <math.h>
#include <string.h>
#include <sys/random.h>

#include "coordinator/intake.h"
#include "core/alloc.h"

/* Below this a temperature means greedy, as in vLLM. */
static const float GREEDY = 1e-5f, TEMPERATURE_MAX = 1e6f; /* the ranks take no more */
/* Below it a number is 0 to the ranks, which count denormal ones as that, and 0 is off: of all the
 * fields only this one would then be the opposite of what is asked. */
static const float TOP_P_MIN = FLT_MIN;

/* A comparison with a NaN is false, so that every range refuses it. */
static bt_status take_filters(const bt_ask *p, bt_sampling *s, char *refusal)
{
    s->temperature = p->temperature;
    BT_INTAKE_REFUSE_UNLESS(s->temperature >= 0.0f && s->temperature <= TEMPERATURE_MAX,
                            "temperature is %.9g, it must be from 0 to 1e6",
                            (double)s->temperature);
    if (s->temperature < GREEDY) s->temperature = 0.0f;
    BT_INTAKE_REFUSE_UNLESS(p->top_p >= 0.0f && p->top_p <= 1.0f,
                            "top_p is %.9g, it must be from 0 (off, like 1) to 1",
                            (double)p->top_p);
    BT_INTAKE_REFUSE_UNLESS(p->min_p >= 0.0f && p->min_p <= 1.0f,
                            "min_p is %.9g, it must be from 0 to 1", (double)p->min_p);
    s->top_p = p->top_p > 0.0f ? fmaxf(p->top_p, TOP_P_MIN) : p->top_p;
    s->top_k = p->top_k;
    s->min_p = p->min_p;
    return BT_OK;
}

static bt_status take_penalties(const bt_ask *p, bt_sampling *s, char *refusal)
{
    BT_INTAKE_REFUSE_UNLESS(p->frequency_penalty >= -2.0f && p->frequency_penalty <= 2.0f,
                            "frequency_penalty is %.9g, it must be from -2 to 2",
                            (double)p->frequency_penalty);
    BT_INTAKE_REFUSE_UNLESS(p->presence_penalty >= -2.0f && p->presence_penalty <= 2.0f,
                            "presence_penalty is %.9g, it must be from -2 to 2",
                            (double)p->presence_penalty);
    BT_INTAKE_REFUSE_UNLESS(p->repetition_penalty == 0.0f || (p->repetition_penalty >= 0.001f &&
                                                              p->repetition_penalty <= 1000.0f),
                            "repetition_penalty is %.9g, it must be from 0.001 to 1000, or 0 (off, "
                            "like 1)",
                            (double)p->repetition_penalty);
    s->frequency_penalty  = p->frequency_penalty;
    s->presence_penalty   = p->presence_penalty;
    s->repetition_penalty = p->repetition_penalty;
    return BT_OK;
}

static bt_status take_biases(const bt_ask *p, const bt_intake_limits *limits, bt_sampling *s,
                             char *refusal)
{
    size_t n = p->n_bias;

    if (n == 0) return BT_OK;
    BT_INTAKE_REFUSE_UNLESS(n <= BT_LOGIT_BIASES_MAX,
                            "logit_bias has %zu entries, at most %d are allowed", n,
                            BT_LOGIT_BIASES_MAX);
    s->bias_ids = bt_calloc(n, sizeof(*s->bias_ids));
    s->biases   = bt_calloc(n, sizeof(*s->biases));
    BT_INTAKE_NEED(s->bias_ids != NULL && s->biases != NULL);
    for (size_t i = 0; i < n; i++) {
        const char *key = "";
        int64_t     named;
        float       bias;

        BT_INTAKE_REFUSE_UNLESS(p->bias(p->params, i, &key, &named, &bias),
                                "logit_bias names \"%.40s\", which is no token id", key);
        BT_INTAKE_REFUSE_UNLESS(named >= 0 && named < limits->vocab_size,
                                "logit_bias names token %lld, but the vocabulary has %u ids",
                                (long long)named, limits->vocab_size);
        BT_INTAKE_REFUSE_UNLESS(bias >= -1e6f && bias <= 1e6f,
                                "logit_bias of token %lld is %.9g, it must be from -1e6 to 1e6",
                                (long long)named, (double)bias);
        for (uint32_t k = 0; k < s->n_bias; k++)
            BT_INTAKE_REFUSE_UNLESS(s->bias_ids[k] != named, "logit_bias names token %lld twice",
                                    (long long)named);
        s->bias_ids[s->n_bias] = (uint32_t)named;
        s->biases[s->n_bias++] = bias;
    }
    return BT_OK;
}

static bt_status take_stop_ids(const bt_ask *p, const bt_intake_limits *limits, bt_sampling *s,
                               char *refusal)
{
    size_t n = p->n_stop_token_ids;

    if (n == 0) return BT_OK;
    BT_INTAKE_REFUSE_UNLESS(n <= BT_STOP_TOKENS_MAX,
                            "stop_token_ids has %zu ids, at most %d are allowed", n,
                            BT_STOP_TOKENS_MAX);
    for (size_t i = 0; i < n; i++)
        BT_INTAKE_REFUSE_UNLESS(p->stop_token_ids[i] < limits->vocab_size,
                                "stop_token_ids holds %u, but the vocabulary has %u ids",
                                p->stop_token_ids[i], limits->vocab_size);
    s->stop_tokens = bt_copy(p->stop_token_ids, n, sizeof(*s->stop_tokens));
    BT_INTAKE_NEED(s->stop_tokens != NULL);
    s->n_stop = (uint32_t)n;
    return BT_OK;
}

static bt_status take_stop_strings(const bt_ask *p, const bt_intake_limits *limits,
                                   bt_intake_answer *answer, char *refusal)
{
    if (p->n_stop == 0) return BT_OK;
    BT_INTAKE_REFUSE_UNLESS(limits->tokenizer,
                            "stop (strings) is not supported: the model has no tokenizer here");
    BT_INTAKE_REFUSE_UNLESS(p->n_stop <= BT_STOP_STRINGS_MAX,
                            "stop has %zu strings, at most %d are allowed", p->n_stop,
                            BT_STOP_STRINGS_MAX);
    for (size_t i = 0; i < p->n_stop; i++) {
        BT_INTAKE_REFUSE_UNLESS(p->stop[i][0] != 0, "stop holds an empty string");
        BT_INTAKE_REFUSE_UNLESS(strlen(p->stop[i]) <= BT_STOP_STRING_BYTES_MAX,
                                "stop holds a string of %zu bytes, at most %d are allowed",
                                strlen(p->stop[i]), BT_STOP_STRING_BYTES_MAX);
    }
    BT_INTAKE_NEED(bt_stop_set_create(p->n_stop, p->stop, &answer->stop) == BT_OK);
    return BT_OK;
}

static bt_status take_prompt_logprobs(const bt_ask *p, bt_sampling *s, char *refusal)
{
    if (!p->has_prompt_logprobs) return BT_OK;
    BT_INTAKE_REFUSE_UNLESS(p->prompt_logprobs >= 0 && p->prompt_logprobs <= BT_TOP_LOGPROBS_MAX,
                            "%s is %d, it must be from 0 to %d", p->names->prompt_logprobs,
                            p->prompt_logprobs, BT_TOP_LOGPROBS_MAX);
    s->prompt_logprobs = (uint32_t)p->prompt_logprobs + 1;
    return BT_OK;
}

static bt_status take_logprobs(const bt_ask *p, bt_sampling *s, bt_intake_answer *answer,
                               char *refusal)
{
    if (!p->has_logprobs) return BT_OK;
    BT_INTAKE_REFUSE_UNLESS(p->logprobs >= 0 && p->logprobs <= BT_TOP_LOGPROBS_MAX,
                            "%s is %d, it must be from 0 to %d", p->names->logprobs, p->logprobs,
                            BT_TOP_LOGPROBS_MAX);
    s->logprobs = answer->logprobs = true;
    s->top_logprobs = answer->n_top = (uint32_t)p->logprobs;
    return BT_OK;
}

bt_status bt_intake_sampling(const bt_ask *p, const bt_intake_limits *limits, bt_sampling *s,
                             bt_intake_answer *answer, char *refusal)
{
    bt_status st = BT_OK;

    BT_TRY(take_filters(p, s, refusal));
    BT_TRY(take_penalties(p, s, refusal));
    BT_TRY(take_logprobs(p, s, answer, refusal));
    BT_TRY(take_prompt_logprobs(p, s, refusal));
    if (p->has_seed)
        s->seed = (uint64_t)(int64_t)p->seed;
    else
        BT_INTAKE_REFUSE_UNLESS(getrandom(&s->seed, sizeof(s->seed), 0) == (ssize_t)sizeof(s->seed),
                                "no random seed could be drawn");
    BT_INTAKE_REFUSE_UNLESS(p->n <= BT_CHOICES_MAX, "n is %u, at most %d is allowed", p->n,
                            BT_CHOICES_MAX);
    answer->n            = p->n == 0 ? 1 : p->n;
    answer->skip_special = p->skip_special_tokens;
    answer->min_tokens = s->min_tokens = p->min_tokens;
    s->ignore_eos                      = p->ignore_eos;
    BT_TRY(take_stop_ids(p, limits, s, refusal));
    BT_TRY(take_biases(p, limits, s, refusal));
    BT_TRY(take_stop_strings(p, limits, answer, refusal));
    BT_TRY(bt_intake_constraint(p, limits, s, refusal));
out:
    return st;
}

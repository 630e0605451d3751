#include "coordinator/intake.h"

#include <string.h>

#include "core/alloc.h"

static bool has_control_characters(const char *text)
{
    for (; *text != 0; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7f) return true;
    return false;
}

static bt_status check_name(const char *name, char *refusal)
{
    BT_INTAKE_REFUSE_UNLESS(name[0] != 0, "request_id is empty");
    BT_INTAKE_REFUSE_UNLESS(strlen(name) <= BT_INTAKE_NAME_MAX,
                            "request_id has %zu bytes, at most %d are allowed", strlen(name),
                            BT_INTAKE_NAME_MAX);
    BT_INTAKE_REFUSE_UNLESS(!has_control_characters(name), "request_id holds control characters");
    return BT_OK;
}

uint32_t bt_intake_max_context(const bt_intake_limits *limits)
{
    return limits->max_tokens < limits->max_context ? (uint32_t)limits->max_tokens
                                                    : limits->max_context;
}

uint32_t bt_intake_max_prompt(const bt_intake_limits *limits)
{
    uint32_t most = bt_intake_max_context(limits) - 1;

    return limits->max_prompt < most ? (uint32_t)limits->max_prompt : most;
}

static bt_status take_prompt(const bt_ask *ask, const bt_intake_limits *limits,
                             bt_relay_submission *r, char *refusal)
{
    size_t n = ask->n_ids;

    BT_INTAKE_REFUSE_UNLESS(n > 0, "the prompt is empty: tokenized.input_ids has no ids");
    BT_INTAKE_REFUSE_UNLESS(
        n < limits->max_context,
        "the prompt has %zu tokens, but the context is %u and one token must follow", n,
        limits->max_context);
    BT_INTAKE_REFUSE_UNLESS(n <= bt_intake_max_prompt(limits),
                            "the prompt has %zu tokens, more than a rank's KV pages hold (%u)", n,
                            bt_intake_max_prompt(limits));
    for (size_t i = 0; i < n; i++)
        BT_INTAKE_REFUSE_UNLESS(ask->ids[i] < limits->vocab_size,
                                "token %zu of the prompt is %u, but the vocabulary has %u ids", i,
                                ask->ids[i], limits->vocab_size);
    r->prompt = bt_copy(ask->ids, n, sizeof(*r->prompt));
    BT_INTAKE_NEED(r->prompt != NULL);
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

static bt_status take_max_tokens(const bt_ask *ask, const bt_intake_limits *limits, uint32_t n,
                                 bt_relay_submission *r, char *refusal)
{
    const char *field    = ask->names->max_tokens;
    uint64_t    n_prompt = r->n_prompt, room = limits->max_context - n_prompt;
    uint64_t    pool = room_of(limits, n_prompt, n);
    char        of_choices[40];

    of_choices[0] = '\0';
    if (n > 1) snprintf(of_choices, sizeof(of_choices), " of each of %u choices", n);
    if (!ask->has_max_tokens) {
        BT_INTAKE_REFUSE_UNLESS(
            pool >= 1,
            "%llu prompt tokens leave a rank's KV pages, which hold %llu, no room for a token%s",
            (unsigned long long)n_prompt, (unsigned long long)limits->max_tokens, of_choices);
        r->sampling.max_tokens = (uint32_t)(room < pool ? room : pool);
        return BT_OK;
    }
    BT_INTAKE_REFUSE_UNLESS(ask->max_tokens >= 1, "%s is 0, it must be at least 1", field);
    BT_INTAKE_REFUSE_UNLESS(
        ask->max_tokens <= room, "%llu prompt tokens and %s %u are more than the context of %u",
        (unsigned long long)n_prompt, field, ask->max_tokens, limits->max_context);
    BT_INTAKE_REFUSE_UNLESS(
        ask->max_tokens <= pool,
        "%llu prompt tokens and %s %u%s are more than a rank's KV pages hold (%llu)",
        (unsigned long long)n_prompt, field, ask->max_tokens, of_choices,
        (unsigned long long)limits->max_tokens);
    r->sampling.max_tokens = ask->max_tokens;
    return BT_OK;
}

void bt_intake_answer_free(bt_intake_answer *answer)
{
    bt_stop_set_destroy(answer->stop);
    answer->stop = NULL;
}

static bt_status take(const bt_ask *ask, const bt_intake_limits *limits, bt_relay_submission *r,
                      bt_intake_answer *answer, char *refusal)
{
    bt_status st = BT_OK;

    BT_TRY(check_name(ask->name, refusal));
    BT_TRY(bt_intake_sampling(ask, limits, &r->sampling, answer, refusal));
    BT_TRY(take_prompt(ask, limits, r, refusal));
    BT_TRY(take_max_tokens(ask, limits, answer->n, r, refusal));
    BT_INTAKE_REFUSE_UNLESS(
        r->sampling.min_tokens <= r->sampling.max_tokens, "%s is %u, more than %s, which is %u%s",
        ask->names->min_tokens, r->sampling.min_tokens, ask->names->max_tokens,
        r->sampling.max_tokens,
        ask->has_max_tokens ? "" : " here: what the context and a rank's KV pages leave");
    BT_INTAKE_REFUSE_UNLESS(ask->prompt_from < r->n_prompt,
                            "%s is %u, but the prompt has %u tokens", ask->names->prompt_from,
                            ask->prompt_from, r->n_prompt);
out:
    return st;
}

bt_status bt_intake(const bt_ask *ask, const bt_intake_limits *limits,
                    bt_relay_submission *request_out, bt_intake_answer *answer_out, char *refusal)
{
    bt_status           st     = BT_OK;
    bt_relay_submission r      = {.name = ask->name};
    bt_intake_answer    answer = {.stream = ask->stream, .prompt_from = ask->prompt_from};

    BT_TRY(take(ask, limits, &r, &answer, refusal));
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

#include "coordinator/input_logprobs.h"

#include <string.h>

#include "core/alloc.h"

bt_status bt_input_logprobs_init(bt_input_logprobs *p, uint32_t n_prompt, const uint32_t *prompt,
                                 uint32_t n_top, uint32_t from)
{
    bt_status st   = BT_OK;
    size_t    tops = (size_t)n_prompt * n_top + 1;

    *p              = (bt_input_logprobs){.n_prompt = n_prompt, .n_top = n_top, .from = from};
    p->ids          = bt_calloc(n_prompt, sizeof(*p->ids));
    p->logprobs     = bt_calloc(n_prompt, sizeof(*p->logprobs));
    p->top_ids      = bt_calloc(tops, sizeof(*p->top_ids));
    p->top_logprobs = bt_calloc(tops, sizeof(*p->top_logprobs));
    BT_REQUIRE(p->ids != NULL && p->logprobs != NULL && p->top_ids != NULL &&
                   p->top_logprobs != NULL,
               BT_ERR_NO_MEMORY, "logprobs of %u prompt tokens", n_prompt);
    memcpy(p->ids, prompt, n_prompt * sizeof(*p->ids));
out:
    return st;
}

void bt_input_logprobs_fini(bt_input_logprobs *p)
{
    bt_free(p->ids);
    bt_free(p->logprobs);
    bt_free(p->top_ids);
    bt_free(p->top_logprobs);
    *p = (bt_input_logprobs){0};
}

void bt_input_logprobs_add(bt_input_logprobs *p, const bt_up_prompt_logprobs *m)
{
    size_t at = (size_t)m->position * p->n_top, n = (size_t)m->n * p->n_top;

    BT_ASSERT((uint64_t)m->position + m->n <= p->n_prompt && m->n_top == p->n_top);
    memcpy(p->logprobs + m->position, m->logprobs, m->n * sizeof(*p->logprobs));
    if (n == 0) return;
    memcpy(p->top_ids + at, m->top_ids, n * sizeof(*p->top_ids));
    memcpy(p->top_logprobs + at, m->top_logprobs, n * sizeof(*p->top_logprobs));
}

#include "coordinator/input_logprobs.h"

#include <string.h>

#include "core/alloc.h"

typedef Vllm__Grpc__Engine__InputTokenLogProb token_logprob;
typedef Vllm__Grpc__Engine__TopLogProbs       top_logprobs;

bt_status bt_input_logprobs_init(bt_input_logprobs *p, uint32_t n_prompt, const uint32_t *prompt,
                                 uint32_t n_top)
{
    bt_status st   = BT_OK;
    size_t    tops = (size_t)n_prompt * n_top + 1;

    *p              = (bt_input_logprobs){.n_prompt = n_prompt, .n_top = n_top};
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

bool bt_input_logprobs_make(const bt_input_logprobs *p, Vllm__Grpc__Engine__InputLogProbs *pb_out,
                            void **block_out)
{
    size_t          n = p->n_prompt;
    token_logprob **table, *values;
    top_logprobs  **top_table, *tops;

    vllm__grpc__engine__input_log_probs__init(pb_out);
    table = bt_calloc(n, sizeof(*table) + sizeof(*values) + sizeof(*top_table) + sizeof(*tops));
    if (table == NULL) return false;
    top_table = (top_logprobs **)(void *)(table + n);
    values    = (token_logprob *)(void *)(top_table + n);
    tops      = (top_logprobs *)(void *)(values + n);
    for (size_t i = 0; i < n; i++) {
        vllm__grpc__engine__input_token_log_prob__init(&values[i]);
        vllm__grpc__engine__top_log_probs__init(&tops[i]);
        table[i]     = &values[i];
        top_table[i] = &tops[i];
        if (i == 0) continue;
        values[i]._value_case = VLLM__GRPC__ENGINE__INPUT_TOKEN_LOG_PROB___VALUE_VALUE;
        values[i].value       = p->logprobs[i];
        tops[i].n_values = tops[i].n_token_ids = p->n_top;
        tops[i].values                         = p->top_logprobs + i * p->n_top;
        tops[i].token_ids                      = p->top_ids + i * p->n_top;
    }
    pb_out->n_token_logprobs = pb_out->n_token_ids = n;
    pb_out->token_logprobs                         = table;
    pb_out->token_ids                              = p->ids;
    if (p->n_top > 0) {
        pb_out->n_top_logprobs = n;
        pb_out->top_logprobs   = top_table;
    }
    *block_out = table;
    return true;
}

/* cli/eval_cases.h - the cases of `baton logits`: read from one safetensors file, answered in
 * another.
 *
 *     in:  NAME.ids i32 [T], NAME.prompt i32 [1], NAME.experts i32 [Lm, T, k] (forced routing)
 *     out: NAME.logits f32 [T, V], NAME.experts i32 [Lm, T, k], ascending by id
 *
 * Lm counts the MoE layers; a model without any gets no NAME.experts. */
#ifndef BT_CLI_EVAL_CASES_H
#define BT_CLI_EVAL_CASES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

enum { BT_EVAL_NAME_BYTES = 128 };

typedef struct {
    char      name[BT_EVAL_NAME_BYTES];
    uint32_t  n_tokens, n_prompt; /* 1 <= n_prompt <= n_tokens */
    uint32_t *ids;                /* [n_tokens] */
    int32_t  *forced;             /* [n_moe, n_tokens, top_k], or NULL: free routing */
    float    *logits;             /* [n_tokens, vocab], from bt_eval_case_prepare() */
    int32_t  *experts;            /* [n_moe, n_tokens, top_k], from the first rows */
    bool     *seen;               /* [n_tokens] */
    uint32_t  n_seen;
} bt_eval_case;

typedef struct {
    size_t        n;
    bt_eval_case *cases;
    uint32_t      top_k; /* of the model; 0: no MoE layers, as the first rows may say too */
    uint32_t      n_moe; /* 0: not yet known */
    uint32_t      vocab; /* 0: not yet known */
    const char   *path;  /* of IN, for messages; borrowed */
} bt_eval_cases;

/* Reads and checks IN; IO, FORMAT or INVALID_ARG name file and tensor.  A vocab of 0 is not known
 * yet.  Fill a zeroed struct. */
bt_status bt_eval_cases_read(const char *path, uint32_t top_k, uint32_t vocab,
                             bt_eval_cases *cases);
void      bt_eval_cases_free(bt_eval_cases *cases);
/* Checks ids and lengths against the model, once the ranks have said what it is. */
bt_status bt_eval_cases_check(bt_eval_cases *cases, uint32_t vocab, uint32_t max_context);

/* Takes memory for the answer. */
bt_status bt_eval_case_prepare(const bt_eval_cases *cases, bt_eval_case *c);
/* Rows [position, position + n_rows): logits f32 [n_rows, vocab], experts i32 [n_moe, n_rows,
 * top_k].  PROTOCOL when sizes or positions do not fit, or a row comes twice; FORMAT for a logit
 * that is no finite number. */
bt_status bt_eval_case_rows(bt_eval_cases *cases, bt_eval_case *c, uint32_t position,
                            uint32_t n_rows, const void *logits, size_t n_logit_bytes,
                            const void *experts, size_t n_expert_bytes);

/* Writes OUT whole or not at all. */
bt_status bt_eval_cases_write(const bt_eval_cases *cases, const char *path);

#endif

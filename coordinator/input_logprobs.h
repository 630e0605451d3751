/* coordinator/input_logprobs.h - the logprobs of a prompt's own tokens, gathered as a prefill rank
 * computes them. */
#ifndef BT_COORDINATOR_INPUT_LOGPROBS_H
#define BT_COORDINATOR_INPUT_LOGPROBS_H

#include "proto/control_msg.h"

/* Of token i > 0; nothing comes before the first. */
typedef struct {
    uint32_t  n_prompt, n_top;
    uint32_t  from;     /* the first token that the client wants to hear of */
    uint32_t *ids;      /* owned [n_prompt] */
    float    *logprobs; /* owned [n_prompt] */
    uint32_t *top_ids;  /* owned [n_prompt][n_top], as the next */
    float    *top_logprobs;
} bt_input_logprobs;

/* prompt is copied.  NO_MEMORY (logged); fini() takes a half-built one. */
bt_status bt_input_logprobs_init(bt_input_logprobs *p, uint32_t n_prompt, const uint32_t *prompt,
                                 uint32_t n_top, uint32_t from);
void      bt_input_logprobs_fini(bt_input_logprobs *p);
/* m lies within the prompt and has n_top alternatives, as the relay has checked. */
void bt_input_logprobs_add(bt_input_logprobs *p, const bt_up_prompt_logprobs *m);

#endif

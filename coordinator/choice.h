/* coordinator/choice.h - one choice of a Generate call: its tokens and its stop strings.
 *
 * Tokens are kept until the end, since the last message (dialect.h) repeats them.  Those whose
 * bytes may begin a stop string are not ready to be sent; a match ends the choice with the token in
 * which it is complete, and the match's own tokens are part of the answer. */
#ifndef BT_COORDINATOR_CHOICE_H
#define BT_COORDINATOR_CHOICE_H

#include "coordinator/intake.h"
#include "model/tokenizer.h"

typedef struct {
    uint32_t  index;
    bt_finish finish;    /* NONE: it goes on */
    bool      completed; /* its last message has been sent */

    uint32_t  n, n_ready, n_sent; /* tokens: that came, may be sent, were sent */
    uint32_t  capacity;           /* the arrays grow as tokens come */
    uint32_t *ids;                /* owned [capacity] */
    float    *logprobs;           /* owned [capacity] */
    uint32_t  n_top;
    uint8_t  *tops;         /* owned [capacity]: how many alternatives each token has */
    uint32_t *top_ids;      /* owned [capacity][n_top] */
    float    *top_logprobs; /* owned [capacity][n_top] */

    const bt_stop_set  *stop;      /* borrowed, or NULL */
    const bt_tokenizer *tokenizer; /* borrowed */
    bool                keep_special;
    uint32_t            min_tokens, *stop_state; /* owned */
    uint64_t            n_bytes, *ends; /* owned [capacity]: bytes up to each token's end */
    int                 matched;        /* the stop string, or BT_STOP_NONE */
} bt_choice;

/* NO_MEMORY (logged).  fini() takes a half-built one and one that is all zero. */
bt_status bt_choice_init(bt_choice *c, const bt_intake_answer *how, const bt_tokenizer *tokenizer);
void      bt_choice_fini(bt_choice *c);

/* One more token.  *finish_out: how it ends the choice: as the rank said, or
 * by a stop string.  NO_MEMORY (logged): the choice is as it was. */
bt_status bt_choice_token(bt_choice *c, const bt_token *token, bt_finish *finish_out);
/* Nothing more will come: what was held back is ready. */
void bt_choice_end(bt_choice *c, bt_finish finish);

#endif

/* worker/draft.h - what a request may say next, from what it has said and was told.
 *
 * Prompt lookup (A. Saxena, 2023; "ngram" in other engines): where the last BT_DRAFT_MATCH tokens
 * stood before, what followed them there is the draft.  A step computes a draft's rows beside the
 * request's own one and draws a token from each; as long as the drawn token equals the next one of
 * the draft, that one's row is right and counts as well (Leviathan et al., arXiv 2211.17192, where
 * both draw the same).  Law B makes the tokens those of one row a step: a draft decides how many
 * tokens a step brings, never which.
 *
 * A draft that was wrong shortens the next one; one that was wrong from its first token on makes
 * the request pass over more and more of its chances.
 *
 * Drafts of the model's own layer (mtp.c) are as long as pays: a row of a draft has its price, so
 * it has to be right more often than that.  How often the next token of a draft is right is taken
 * from the request's last ones.
 *
 * Threads: the step thread.  Memory: about 16 bytes a token, by doubling. */
#ifndef BT_WORKER_DRAFT_H
#define BT_WORKER_DRAFT_H

#include <stdbool.h>
#include <stdint.h>

#include "core/rank_flags.h"
#include "core/status.h"

enum { BT_DRAFT_MATCH = 3 };

typedef struct {
    uint32_t  n, capacity;
    uint32_t *tokens; /* owned: the prompt's and the generated ones */
    uint32_t *after;  /* owned [2 * capacity]: by the hash of BT_DRAFT_MATCH tokens, the position
                         after their last place but the end; 0: none */
    uint32_t most;    /* tokens of the next draft at most; 0: as many as are asked for */
    uint32_t skips, skipped; /* chances to pass over before the next draft, and those that were */
} bt_drafter;

/* The tokens that come next.  NO_MEMORY leaves it as it was. */
bt_status bt_drafter_add(bt_drafter *d, uint32_t n, const uint32_t *tokens);
bt_status bt_drafter_copy(const bt_drafter *from, bt_drafter *to_out);
void      bt_drafter_fini(bt_drafter *d);

/* What may follow the last token: up to n_most <= BT_DRAFT_MAX tokens.  Returns how many. */
uint32_t bt_drafter_draft(bt_drafter *d, uint32_t n_most, uint32_t *tokens_out);
/* Of the n >= 1 tokens of that draft the first n_right were drawn. */
void bt_drafter_learn(bt_drafter *d, uint32_t n, uint32_t n_right);

/* All zero: nothing is known yet. */
typedef struct {
    bool     knows;
    float    right;  /* of late, how often a draft's next token was right */
    uint32_t passed; /* chances in a row at which no draft seemed to pay */
} bt_draft_pace;

/* How many tokens of a draft pay, of at most n_most, where a row costs what `price` tokens are
 * worth: from time to time one, also where none does, unless none ever could. */
uint32_t bt_pace_depth(bt_draft_pace *p, uint32_t n_most, float price);
/* Of the n >= 1 tokens of a draft the first n_right were drawn. */
void bt_pace_learn(bt_draft_pace *p, uint32_t n, uint32_t n_right);

#endif

/* model/grammar/matcher.h - what may follow a text: a grammar run over bytes, and over the tokens
 * of a vocabulary.
 *
 * A *state* stands for all ways in which the text so far can be read: a set of (node, frame), where
 * frames are the calls that are open, shared between states as a tree.  States are made when a text
 * first comes to them, and their steps are kept, so that a byte mostly costs one look-up (lazy
 * determinisation, as of regular expressions: Cox, "Regular Expression Matching: the Virtual
 * Machine Approach", 2009).  Which tokens may follow a state is found by walking the vocabulary in
 * the order of its bytes, where neighbours share their beginnings.
 *
 * Threads: one at a time for a bt_matcher; a bt_token_list never changes.
 * Memory: grows with the states that texts come to; trim() gives it back. */
#ifndef BT_MODEL_GRAMMAR_MATCHER_H
#define BT_MODEL_GRAMMAR_MATCHER_H

#include "core/token_mask.h"
#include "model/grammar/grammar.h"
#include "model/tokenizer.h"

typedef struct bt_token_list bt_token_list;
typedef struct bt_matcher    bt_matcher;

enum {
    BT_STATE_DEAD         = 0,       /* nothing may follow, and the text is none of the grammar's */
    BT_MATCHER_BYTES      = 8 << 20, /* is_large() from there on, and thrice what is live */
    BT_MATCHER_MOST_BYTES = 64 << 20
};

/* What the n_ids first tokens of a vocabulary stand for.  Added tokens are none of a text.
 * NO_MEMORY. */
bt_status bt_token_list_create(const bt_tokenizer *tok, uint32_t n_ids, bt_token_list **list_out);
void      bt_token_list_destroy(bt_token_list *list);

/* Takes ownership of the grammar, on success; the list is borrowed, and may be NULL where no mask
 * is asked for.  NO_MEMORY; UNSUPPORTED as of bt_matcher_step(). */
bt_status bt_matcher_create(bt_grammar *grammar, const bt_token_list *list,
                            bt_matcher **matcher_out);
void      bt_matcher_destroy(bt_matcher *m);

uint32_t bt_matcher_start(const bt_matcher *m);
/* Whether the text may end here. */
bool bt_matcher_accepts(const bt_matcher *m, uint32_t state);
/* The state after n more bytes.  UNSUPPORTED (not logged: as a refusal, it is the client's grammar)
 * when the text can be read in more ways, or with more calls open, than memory is given for;
 * NO_MEMORY. */
bt_status bt_matcher_step(bt_matcher *m, uint32_t state, const char *bytes, size_t n,
                          uint32_t *state_out);
/* What the last text or mask took: 1 is a look at an edge; nothing where its states were known. */
size_t bt_matcher_work(const bt_matcher *m);
/* The same with a token's bytes; one that is no text leads to BT_STATE_DEAD. */
bt_status bt_matcher_step_token(bt_matcher *m, uint32_t state, uint32_t id, uint32_t *state_out);

#define BT_MASK_WORK_LITTLE (1u << 18) /* about a millisecond */
#define BT_MASK_WORK_MOST   (1u << 26) /* some tenths of a second */
/* bits: [bt_mask_words(n_ids)], set where the token's whole text may follow the state.  Tokens that
 * end a reply are the caller's affair (bt_matcher_accepts()).  Errors as of bt_matcher_step().
 * most_work: beyond it UNSUPPORTED; what has been learnt by then is kept. */
bt_status bt_matcher_mask(bt_matcher *m, uint32_t state, size_t most_work, uint32_t *bits);

/* Whether there is much that nobody may need any more. */
bool bt_matcher_is_large(const bt_matcher *m);
/* Gives it back: live[0..n) are the states that go on; they have new numbers then, and all others
 * are void, but for the start.  NO_MEMORY leaves everything as it was. */
bt_status bt_matcher_trim(bt_matcher *m, uint32_t n, uint32_t **live);
size_t    bt_matcher_bytes(const bt_matcher *m); /* of its states */
size_t    bt_matcher_held(const bt_matcher *m);  /* of all: states, kept masks, the grammar */
/* Whether a trim may give back anything at all. */
bool bt_matcher_has_grown(const bt_matcher *m);

#endif

/* worker/handoff_in.h - the receiving end of one request's hand-off, on its decode rank.
 *
 * Every message is checked against the reservation before a byte of it reaches a page: kv_dim,
 * ranges, payload size, the tag of the pages that it was made for, and one bit per layer and token,
 * so that no row comes twice.  The request joins when each bit is set and the last message, with
 * the first token of each choice, is there.  Messages may come in any order.
 *
 * Threads: the step thread.  Memory: init() takes it all. */
#ifndef BT_WORKER_HANDOFF_IN_H
#define BT_WORKER_HANDOFF_IN_H

#include "attention/kv_pool.h"
#include "parallel/page_message.h"
#include "proto/control_msg.h"

/* The token that follows the prompt in one choice, in wire form. */
typedef struct {
    uint32_t id;
    float    logprob;
    uint32_t finish; /* bt_finish */
} bt_first_token;
_Static_assert(sizeof(bt_first_token) == 12, "part of the wire form");

/* The tail of the prompt's last message: bt_first_token[n_firsts], then the prompt's form map,
 * where one is kept.  Both ends borrow the arrays from their request; the receiving one fills them.
 */
typedef struct {
    uint32_t        n_firsts;
    bt_first_token *firsts;
    void           *map;
    size_t          map_bytes;
    size_t fixed_bytes; /* of the map: the receiver has these already, and they must agree */
} bt_handoff_tail;

static inline size_t bt_handoff_tail_bytes(const bt_handoff_tail *t)
{
    return t->n_firsts * sizeof(*t->firsts) + t->map_bytes;
}

typedef struct {
    uint32_t  n_layers, n_prompt, n_vocab;
    uint32_t *generations; /* owned: [pages of the prompt], of our pages when they were taken */
    uint64_t *seen;        /* owned: [n_layers][pages of the prompt], bit = token in the page */
    uint64_t  n_rows;      /* bits set */
    uint64_t  moved_ns;    /* when the last message came; 0: none has */
    bool      last;
    uint32_t  cached; /* prompt tokens that the sender did not compute */

    bt_handoff_tail tail; /* written by the last message */
} bt_handoff_in;

/* pages: those of the reservation; the first n_held tokens (whole pages) are there already.
 * NO_MEMORY. */
bt_status bt_handoff_in_init(bt_handoff_in *in, const bt_kv_pool *pool, uint32_t n_prompt,
                             uint32_t n_held, uint32_t n_vocab, const bt_page_id *pages,
                             const bt_handoff_tail *tail);
void      bt_handoff_in_fini(bt_handoff_in *in);

/* Verifies a message (whose checksum is right) and copies its rows to the pages; rows on the device
 * are there when the stream has come so far.  CHECKSUM says what was expected and found; then
 * nothing was written. */
bt_status bt_handoff_in_accept(bt_handoff_in *in, const bt_kv_pool *pool, const bt_page_id *pages,
                               const bt_page_message *m, const bt_page_payload *p);

/* Every row of every layer, and the first tokens, are there. */
bool bt_handoff_in_complete(const bt_handoff_in *in);

#endif

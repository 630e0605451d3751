/* worker/handoff_out.h - the sending end of one request's hand-off, on its prefill rank.
 *
 * Rows leave layer by layer while the prompt is computed.  A message carries a range of tokens of
 * one or more layers: the lowest layer that has rows to send, as many tokens as fit, and further
 * layers while they have the same tokens and fit.  Within a step a message waits until it has 512
 * KiB or is half full; at the end of the step everything leaves.  A full staging area defers the
 * rest: the cursor per layer remembers where, and later messages may then cover several chunks.
 *
 * The very last message waits for the first tokens, which are part of its tail.
 *
 * Threads: the step thread.  Memory: init() takes it all. */
#ifndef BT_WORKER_HANDOFF_OUT_H
#define BT_WORKER_HANDOFF_OUT_H

#include "worker/handoff_in.h"

typedef struct {
    uint32_t *ticket_ids, *ticket_generations; /* owned: the decode rank's pages */
    uint32_t  held;                            /* tokens that the decode rank had already */
    uint32_t  cached; /* tokens that this rank had; travels with the last message */
    uint32_t *staged; /* owned: [n_layers] tokens of each layer that need not be sent any more */
    uint32_t  n_in_flight;
    uint64_t  moved_ns;    /* when a message was staged or had left */
    uint64_t  computed_ns; /* when the prompt was done */
    bool      first_known, last_staged;

    bt_handoff_tail tail; /* good once first_known is set */
} bt_handoff_out;

/* Copies the ticket.  held: the prompt's first tokens, which the decode rank has.
 * NO_MEMORY. */
bt_status bt_handoff_out_init(bt_handoff_out *out, uint32_t n_layers, uint32_t held,
                              uint32_t n_ticket, const bt_page_ref *ticket,
                              const bt_handoff_tail *tail);
void      bt_handoff_out_fini(bt_handoff_out *out);

/* What is computed: layers below n_high have rows [0, high), the others [0, low). */
typedef struct {
    uint32_t n_layers, n_prompt, kv_dim;
    uint32_t low, high, n_high;
    size_t   payload_max;
    bool     flush; /* do not wait for more layers */
} bt_handoff_out_view;

/* The next message's ranges into *m_out (token0, token1, layer0, layer1, kv_dim, pages_tag,
 * payload_bytes, last and its tail_bytes; not request and epoch).  False: nothing to send now.
 * payload_max has room for a row and the tail. */
bool bt_handoff_out_next(const bt_handoff_out *out, const bt_handoff_out_view *view,
                         bt_page_message *m_out);

/* Copies the message's rows from this rank's pages, and its tail, and counts them as staged.  Rows
 * on the device are there when the stream has come so far.  DEVICE. */
bt_status bt_handoff_out_pack(bt_handoff_out *out, const bt_kv_pool *pool, const bt_page_id *pages,
                              const bt_page_message *m, const bt_page_payload *p);

/* Everything has been staged and has left. */
static inline bool bt_handoff_out_done(const bt_handoff_out *out)
{
    return out->last_staged && out->n_in_flight == 0;
}

#endif

/* parallel/handoff.h - moves page messages from prefill ranks to decode ranks, beside the steps.
 *
 * Request to send, then grant: a sender has one request-to-send outstanding, a receiver grants one
 * at a time, the payload moves only after the grant, and no receive is posted ahead.  A request to
 * send that gets no grant in time expires, is withdrawn, and goes to the end of the queue, so that
 * a stuck receiver never stops the messages to the others.  Over TCP a payload stays below one
 * eager fragment.  A granted transfer is always sent in full, even when its request has been
 * aborted: the receiver throws it away.
 *
 * Nothing here blocks: bt_handoff_poll() makes progress and is called at layer boundaries and
 * while a group exchange waits.  Receivers copy out of staging and then verify; no peer ever writes
 * into a page.
 *
 * Messages to one receiver are sent in the order of bt_handoff_send(), and receivers take turns;
 * the order of arrival is not promised.
 *
 * Threads: the step thread.  Memory: staging is taken in create(): n_slots and 3 more of
 * slot_bytes; what a late writer may still touch outlives destroy(). */
#ifndef BT_PARALLEL_HANDOFF_H
#define BT_PARALLEL_HANDOFF_H

#include "parallel/carrier.h"
#include "parallel/page_message.h"

typedef struct bt_handoff bt_handoff;

/* Staging slots that a rank takes for payloads on their way to it, beside those for sending: a
 * stuck sender leaves two. */
enum { BT_HANDOFF_INBOXES = 3 };

typedef struct {
    /* A message has arrived and its checksum is right.  The payload is borrowed during the call;
     * rows on the device may be read by work that its stream is given during the call, which later
     * work of the device follows.  from: world rank of the sender. */
    void (*deliver)(void *ctx, uint32_t from, const bt_page_message *m, const bt_page_payload *p);
    /* A message from a peer was refused: PROTOCOL (broken header or signal: request 0; a payload
     * that is too long or of the wrong length: its request) or CHECKSUM. */
    void (*reject)(void *ctx, uint32_t from, uint64_t request, bt_status why);
    /* The payload of a message that this rank sent has left; its slot is free again. */
    void (*sent)(void *ctx, const bt_page_message *m);
    /* `to` has given no sign of life for n grant periods: it let a request to send expire (n = 1)
     * and has not even answered the withdrawal since (n > 1): it may be dead.  Until it answers it
     * is asked for nothing more and costs the others no time.  A busy peer answers: n is 1 again
     * at its next expiry. */
    void (*expired)(void *ctx, uint32_t to, uint32_t n);
    void *ctx;
} bt_handoff_events;

typedef struct {
    uint32_t n_slots;    /* staging slots for sending, >= 1 */
    uint64_t grant_ns;   /* a request to send expires after this */
    size_t   slot_bytes; /* wanted payload bytes; bt_handoff_payload_max() says what it became */

    /* By NCCL: rows are memory of `dev`, and go straight from there (handoff_line.h); a rank then
     * sends or receives, never both.  Both borrowed.  NULL: rows are host memory and go by MPI. */
    const bt_nccl_module *nccl;
    bt_device            *dev;
} bt_handoff_config;

/* `world` is borrowed; both structs are copied.  Every rank of the job creates one.  INVALID_ARG:
 * no slot or more than 4,096, slots of no byte or more than a message of MPI has, no time to grant.
 * NO_MEMORY, of the device too. */
bt_status bt_handoff_create(bt_world *world, const bt_handoff_config *cfg,
                            const bt_handoff_events *events, bt_handoff **handoff_out);
void      bt_handoff_destroy(bt_handoff *handoff);
/* Largest payload of one message: slot_bytes, or an eager fragment where ranks talk over TCP. */
size_t bt_handoff_payload_max(const bt_handoff *handoff);
/* Largest tail of one message: by NCCL 56 KiB, else what the payload holds. */
size_t bt_handoff_tail_max(const bt_handoff *handoff);

/* A free staging slot to pack a payload into, or NULL when all are taken: then the caller defers
 * the chunk.  Ends with bt_handoff_send() or bt_handoff_unstage(). */
void *bt_handoff_stage(bt_handoff *handoff);
void  bt_handoff_unstage(bt_handoff *handoff, void *slot);
/* Where m's rows and tail go in the slot.  Rows on the device are read when its work so far is
 * done.
 */
bt_page_payload bt_handoff_slot(bt_handoff *handoff, void *slot, const bt_page_message *m);
/* Queues the message in `slot` for world rank `to`, another one; m->payload_bytes of it count.
 * Seals it. */
void bt_handoff_send(bt_handoff *handoff, uint32_t to, const bt_page_message *m, void *slot);

/* Pages have been taken for rows that will come: those are written behind all that the device has
 * been given by now, which may still use the pages.  DEVICE. */
bt_status bt_handoff_take(bt_handoff *handoff);

/* Who hands over from now on, the first n_senders of them to the others, this rank among them or
 * not: at start, and whenever the cell's epoch has changed, after the exclusions.  Alike on all of
 * them; local, and not waited for: messages begin to move when all of them have joined.  What was
 * under way is sent again where it had not come.  By MPI nothing is done.  INVALID_ARG: more ranks
 * than the job has, or an epoch before the present one. */
bt_status bt_handoff_join(bt_handoff *handoff, uint32_t epoch, uint32_t n, uint32_t n_senders,
                          const uint32_t *ranks);
/* DEVICE when the rank's device takes no work any more, so that messages will never go; logged
 * before.  NULL is allowed. */
bt_status bt_handoff_check(const bt_handoff *handoff);
/* Messages can go: by NCCL all who hand over have come, and each pair has had a first one. */
bool bt_handoff_is_ready(const bt_handoff *handoff);
/* Polls until that is so; this rank hands over.  TIMEOUT names who has not come; DEVICE as above.
 */
bt_status bt_handoff_await_ready(bt_handoff *handoff, const bt_wait *wait);

/* Drops the request's messages that are not granted yet: their slots are free, `sent` is not called
 * for them.  True when nothing of it is in flight; what is in flight ends with `sent`. */
bool bt_handoff_cancel(bt_handoff *handoff, uint64_t request);

/* Does without world rank `rank` from now on, which is dead or was removed from the cell: its
 * messages are dropped, whenever they come; those for it, later ones too, are gone, as if they had
 * been cancelled, and bt_handoff_cancel() finds nothing in flight to it.  Memory that it may still
 * touch is given up for new.  NO_MEMORY when there is none. */
bt_status bt_handoff_exclude(bt_handoff *handoff, uint32_t rank);

/* Progress.  True when something moved.  Events are called from in here and may stage, send and
 * cancel; a poll from within an event does nothing. */
bool bt_handoff_poll(bt_handoff *handoff);

#endif

/* parallel/handoff_parts.h - the hand-off's state, shared by its files; inside parallel/ only.
 *
 * Signals, all of BT_SIGNAL_BYTES, per pair of ranks and in order:
 *
 *     sender -> receiver   ASK(serial)        request to send
 *     receiver -> sender   GRANT(serial)      send it now: from here on it is sent in full
 *     sender -> receiver   WITHDRAW(serial)   expired or cancelled: forget the request or its grant
 *     receiver -> sender   WITHDRAWN(serial)  the answer, always
 *
 * Until WITHDRAWN comes the sender asks that receiver for nothing: the answer is the sign of life
 * of a peer that let a request expire, so a stuck peer costs one grant period, not one a round.
 * By a line (handoff_line.h) one more, since what NCCL has sent has not yet come:
 *
 *     receiver -> sender   TAKEN(n)           messages of an order below n have come
 *
 * which holds as messages to one receiver come in ascending order, whichever lines carry them: a
 * message that was granted goes only when those before it have gone on the same line or have come.
 * Grants are not bound to a message, so the one that is to go uses what another was granted.
 *
 * A GRANT that crosses a WITHDRAW is ignored; the receiver frees it on the WITHDRAW.
 *
 * handoff.c          create, staging, cancel, the poll
 * handoff_signal.c   signals in and out
 * handoff_send.c     asking and sending
 * handoff_recv.c     granting, receiving, delivering
 * handoff_line.c, handoff_line_start.c, handoff_line_note.c   rows by NCCL
 * handoff_exclude.c  doing without a peer for good */
#ifndef BT_PARALLEL_HANDOFF_PARTS_H
#define BT_PARALLEL_HANDOFF_PARTS_H

#include "parallel/handoff.h"
#include "parallel/handoff_line.h"
#include "parallel/world_state.h"

enum {
    BT_SIGNAL_BYTES  = 32,
    BT_SIGNAL_OUTBOX = 8,   /* unfinished signals to one peer */
    BT_HANDOFF_HEAD  = 128, /* bytes before a staged payload; its last 96 are the header */
    BT_TAG_SIGNAL    = 1,
    BT_TAG_PAYLOAD   = 2,
    BT_TAG_LINE      = 3,
};
#define BT_NO_SLOT UINT32_MAX
#define BT_NO_PEER UINT32_MAX

typedef enum {
    BT_SIGNAL_ASK = 1,
    BT_SIGNAL_GRANT,
    BT_SIGNAL_WITHDRAW,
    BT_SIGNAL_WITHDRAWN,
    BT_SIGNAL_TAKEN
} bt_signal_kind;

typedef struct {
    bt_signal_kind kind;
    uint64_t       serial, request;
} bt_signal;

typedef enum {
    BT_SLOT_FREE,
    BT_SLOT_STAGED, /* the caller packs */
    BT_SLOT_QUEUED,
    BT_SLOT_ASKED,  /* its request to send is out */
    BT_SLOT_SENDING /* granted */
} bt_slot_state;

/* How far a granted slot's rows are on their line; NONE where they go by MPI. */
typedef enum {
    BT_CARRY_NONE,
    BT_CARRY_DUE,
    BT_CARRY_LAUNCHED,
    BT_CARRY_GONE,
    BT_CARRY_AGAIN /* the line has ended: queued again when its header has left */
} bt_carry;

typedef struct {
    bt_slot_state   state;
    uint32_t        to;
    bt_carry        carry;
    bool            packed;   /* by a line: how far the device must be for it is noted */
    bool            taken;    /* the receiver says so */
    uint64_t        order;    /* of bt_handoff_send(); a receiver's messages leave in this order */
    uint64_t        asked_ns; /* when its request to send left */
    bt_page_message message;
    uint8_t        *memory;  /* BT_HANDOFF_HEAD, then the payload */
    MPI_Request    *request; /* in the block that memory is in */
} bt_slot;

typedef struct {
    bool         busy;
    uint32_t     from;
    size_t       n_bytes;
    uint8_t     *memory; /* as a slot's */
    MPI_Request *request;
} bt_inbox;

typedef struct {
    bool excluded; /* nothing goes to it, and nothing of it is taken */
    /* this rank sends to the peer */
    uint64_t withdrawn_serial; /* awaits WITHDRAWN, 0: none */
    uint64_t silent_since_ns;  /* the last count of n_expired, or the WITHDRAW */
    uint32_t n_expired;        /* grant periods in a row without a sign of life */
    /* the peer sends to this rank */
    uint64_t asked_serial; /* 0: none */
    uint64_t asked_order;
    uint64_t granted_serial;                 /* the latest */
    uint64_t asked_request, granted_request; /* as the ASK named them: only for messages */
    uint32_t n_granted;                      /* payloads that may still come */
    uint64_t owed_serial;                    /* a WITHDRAWN to send, 0: none */
    uint64_t n_ordered;                      /* by a line: above the order of the latest message */
    bool     owes_taken;
} bt_peer;

struct bt_handoff {
    bt_world         *world;
    bt_handoff_events events;
    uint64_t          grant_ns;
    size_t            payload_max;
    bt_line          *line; /* owned; NULL: rows are host memory and go by MPI */
    bool              has_sent;
    bool              polling;
    uint64_t          next_order;

    uint32_t n_slots;
    bt_slot *slots;
    bt_peer *peers; /* [world size] */
    bt_inbox inboxes[BT_HANDOFF_INBOXES];

    /* the one request to send: the slot is BT_NO_SLOT when it was cancelled meanwhile */
    uint64_t ask_serial; /* 0: none */
    uint32_t ask_to, ask_slot;
    uint64_t ask_since_ns;
    uint32_t last_asked; /* the round of receivers goes on after this one */
    uint32_t n_withdrawing;
    uint64_t polled_ns; /* when the poll last looked, */
    bool     is_late;   /* whether that was long after the look before, */
    uint64_t still_ns;  /* and what of such times does not count for grants */

    /* the one open grant */
    uint32_t grant_to; /* BT_NO_PEER: none */
    uint64_t grant_since_ns;
    uint32_t n_asked, n_owed;

    /* the arena: staging, signals and their requests, in one block */
    bt_wreck    *arena;
    bt_wreck    *extra; /* blocks in place of those that excluded peers may still touch */
    MPI_Request *signal_requests;
    uint8_t     *signal_memory;
    uint32_t     n_signals_open;
    MPI_Request *signal_in_request; /* the signal being received: one at a time, in order */
    uint8_t     *signal_in;
    uint32_t     signal_from;
};

/* ---- handoff.c */
/* Bytes of the staging memory of one slot or inbox, aligned. */
size_t bt_handoff_stage_bytes(const bt_handoff *h);

/* ---- handoff_signal.c */
void bt_signal_encode(const bt_signal *c, uint8_t wire_out[BT_SIGNAL_BYTES]);
/* False: too many to this peer are unfinished; try again later. */
bool bt_signal_send(bt_handoff *h, uint32_t to, bt_signal_kind kind, uint64_t serial,
                    uint64_t request);
/* Both return true when something moved. */
bool bt_signal_test(bt_handoff *h);
bool bt_signal_receive(bt_handoff *h);

/* Where the header lies in a slot's or an inbox's memory; and where a message begins. */
static inline uint8_t *bt_handoff_header(uint8_t *memory)
{
    return memory + BT_HANDOFF_HEAD - BT_PAGE_MESSAGE_BYTES;
}
static inline uint8_t *bt_handoff_wire(const bt_handoff *h, uint8_t *memory)
{
    return bt_handoff_header(memory) - (h->line != NULL ? BT_LINE_PREFIX : 0);
}

/* ---- handoff_send.c */
/* By a line: the oldest message for world rank `to` that the present line has not had, granted or
 * not; BT_NO_SLOT: none. */
uint32_t bt_handoff_first_for(const bt_handoff *h, uint32_t to);
/* The grant of slot i becomes that of `first`, which is queued or asked for, for the same receiver;
 * slot i stands where `first` stood.  Nothing is done where they are one. */
void bt_handoff_pass_grant(bt_handoff *h, uint32_t i, uint32_t first);
void bt_handoff_on_grant(bt_handoff *h, uint32_t from, uint64_t serial);
void bt_handoff_on_taken(bt_handoff *h, uint32_t from, uint64_t n_ordered);
void bt_handoff_on_withdrawn(bt_handoff *h, uint32_t from, uint64_t serial);
bool bt_handoff_send_progress(bt_handoff *h, uint64_t now_ns);

/* ---- handoff_recv.c */
void bt_handoff_on_ask(bt_handoff *h, uint32_t from, const bt_signal *c);
void bt_handoff_on_withdraw(bt_handoff *h, uint32_t from, uint64_t serial);
bool bt_handoff_recv_progress(bt_handoff *h, uint64_t now_ns);

#endif

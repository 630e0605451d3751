/* parallel/handoff_line.h - rows by NCCL from prefill to decode ranks; inside parallel/ only.
 *
 * Signals and headers stay messages of MPI.  A granted message goes as a header, with the prompt's
 * tail, by MPI, and its rows as one send and one receive of a communicator of all ranks that hand
 * over, on a stream of their own:
 *
 *     device memory   rows, filled up to 8 bytes | their checksum, seeded with the header's
 *
 * That stream waits for the device's own only where it must: a message for what its rows were
 * packed by, pages for what ran when they were taken.  The device's waits for what scatters rows to
 * pages.
 *
 * A rank has one operation under way at a time, sends or receives but never both, and grants
 * nothing more before what was granted has come: an operation waits for its peer alone, so no cycle
 * forms.
 *
 * The line, as the communicator with its number is called here, has one origin, the first of its
 * ranks, which gives each a number and an id once all have said that they are here.  Numbers grow:
 * epoch << 32 | attempt.  A rank whose line fails (an error, a deadline) ends it and says so to the
 * origin, which gives a new one.  What was under way is queued again; a message that had come all
 * the same is known by its order (handoff_parts.h), so those granted after it wait for it. */
#ifndef BT_PARALLEL_HANDOFF_LINE_H
#define BT_PARALLEL_HANDOFF_LINE_H

#include "parallel/nccl/module.h"
#include "parallel/page_message.h"
#include "parallel/world_state.h"

typedef struct bt_handoff bt_handoff;
typedef struct bt_line    bt_line;

typedef enum {
    BT_LINE_NONE,       /* waits for a number and an id of its epoch */
    BT_LINE_CONNECTING, /* until all its ranks have come */
    BT_LINE_WARMING,    /* first messages between all pairs, by which NCCL connects them */
    BT_LINE_READY,
    BT_LINE_LEAVING, /* it will end when the device has done what it had to do */
    BT_LINE_ENDING   /* its kernels may still be on their way out */
} bt_line_state;

typedef enum {
    BT_LINE_IDLE,
    BT_LINE_TAKING,    /* NCCL is busy with the operation */
    BT_LINE_UNDER_WAY, /* it stands in the stream */
    BT_LINE_CHECKING   /* received; the checksum stands in the stream */
} bt_line_phase;

struct bt_line {
    const bt_nccl_module *nccl; /* borrowed */
    bt_device            *dev;  /* borrowed */
    bt_nccl_lane         *lane; /* owned: notes of the send slots, then the two below */
    size_t                rows_max;
    uint8_t *rows; /* owned, device: [n_slots][stride], then the one that comes in, then first
                      messages, [world size][BT_LINE_WARM_BYTES] */
    size_t  stride;
    size_t *warm_lists; /* owned, [3][world size]: of the first messages */

    uint32_t  epoch, n, self; /* of those who hand over; self == n: not this rank */
    uint32_t  n_senders;      /* of them, the first ones */
    uint32_t *ranks; /* owned, [world size]: world ranks of the n; the first is the origin */

    uint32_t *here; /* owned, [world size]: the epoch that each rank says it has joined */
    uint64_t  join_ns;
    bool      missed; /* it was said who is not here */

    bt_line_state state;
    uint64_t      number, since_ns;
    bt_nccl_comm *comm; /* owned */
    bool          marked;
    bool          broken; /* the device takes no work any more: there will be no other line */
    /* what the origin wants next: begun when the line before has ended */
    uint64_t due_number; /* 0: nothing */
    uint32_t due_from;
    uint8_t  due_id[BT_NCCL_ID_BYTES];
    bool     try_again;       /* the origin's: this, and below */
    uint64_t try_ns, next_ns; /* when, and no sooner than */
    uint32_t n_in_vain;       /* attempts in a row of which none got ready */

    /* the one operation */
    bt_line_phase   phase;
    bool            sends, pending; /* pending: the header of inbox `index` has come */
    uint32_t        index, peer;
    uint64_t        op_ns;
    bt_page_message message; /* being received */

    /* the note being received: in memory that a late writer may keep */
    bt_wreck *note;
    uint32_t  note_from;
};

/* Before a header: number and order, and a checksum of both that belongs to this header alone. */
enum { BT_LINE_PREFIX = 24, BT_LINE_TAIL_MAX = 56 << 10 };
enum { BT_LINE_WARM_BYTES = 64 };

bt_status bt_line_create(bt_handoff *h, const bt_nccl_module *nccl, bt_device *dev, size_t rows_max,
                         bt_line **line_out);
void      bt_line_destroy(bt_world *world, bt_line *line);

/* Device memory of send slot i; n_slots: of what comes in; n_slots + 1: of first messages. */
void *bt_line_rows(const bt_line *line, uint32_t i);
/* See bt_handoff_join(). */
bt_status bt_line_join(bt_handoff *h, uint32_t epoch, uint32_t n, uint32_t n_senders,
                       const uint32_t *ranks);
/* Who has not joined yet, as far as this rank can tell; BT_NO_PEER: all have. */
uint32_t bt_line_absent(const bt_line *line);

/* What the device has been given so far packs slot i. */
void bt_line_pack(bt_handoff *h, uint32_t i);
/* See bt_handoff_take(). */
bt_status bt_line_take(bt_handoff *h);
/* Slot i is granted and waits for its turn. */
void bt_line_send(bt_handoff *h, uint32_t i);
/* The header of an inbox has come: false when it is refused, and the inbox is free again. */
bool bt_line_receive(bt_handoff *h, uint32_t i);
/* ---- handoff_line_start.c.  All true when something moved: a line of the number and id that are
 * due begins; and one that has begun gets ready. */
bool bt_line_begin(bt_handoff *h, uint64_t now_ns);
bool bt_line_start_up(bt_handoff *h, uint64_t now_ns);
/* ---- handoff_line_note.c: what origin and ranks tell each other. */
bt_status bt_line_take_note_memory(bt_line *line);
/* To the origin: this rank has joined. */
void bt_line_say_here(bt_handoff *h);
/* As the origin: a new number and id, to all, when all are here. */
void bt_line_propose(bt_handoff *h, uint64_t now_ns);
/* To the origin: the line has failed here. */
void bt_line_complain(bt_handoff *h);
bool bt_line_receive_notes(bt_handoff *h, uint64_t now_ns);
/* ---- handoff_line.c */
/* Stops the communicator; what was under way is queued again.  Nothing on the device may wait for a
 * rank that is gone. */
void bt_line_end(bt_handoff *h, uint64_t now_ns);
/* Ends it because it has failed (logged by the caller), and sees to a new one. */
void bt_line_fail(bt_handoff *h, uint64_t now_ns);
/* The same; `what` and l->peer say what has not come about within limit_ns. */
void bt_line_fail_late(bt_handoff *h, const char *what, uint64_t limit_ns, uint64_t now_ns);
/* How long the making of a line may take: at first as long as an operation, then each attempt twice
 * as long as the one before, up to eight times. */
uint64_t bt_line_start_limit_ns(const bt_handoff *h);
/* From one attempt to the next, twice as long after each that was in vain, up to 128 times: where a
 * rank fails before NCCL's ranks have met, the id keeps a thread and a descriptor of the origin's
 * for ever (bootstrap.cc of version 2.28). */
uint64_t bt_line_pause_ns(const bt_handoff *h, uint32_t n_in_vain);
/* Progress.  True when something moved. */
bool bt_line_poll(bt_handoff *h, uint64_t now_ns);

#endif

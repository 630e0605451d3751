/* parallel/handoff_line_note.c - how the ranks of a line learn its number and id, and how the
 * origin learns that it has failed.  Notes are rare: each leaves in a block of its own, which the
 * world frees when it has gone. */
#include <string.h>
#include <xxhash.h>

#include "core/clock.h"
#include "parallel/handoff_line.h"
#include "parallel/handoff_parts.h"

enum { MAGIC = 0x6e6c5442, NOTE_LINE = 1, NOTE_FAILED, NOTE_HERE }; /* "BTln" */

#define MISSED_NS (30 * BT_NS_PER_S)

/* All ranks of a job run one build: native byte order, guarded by the magic number. */
typedef struct {
    uint32_t magic, kind;
    uint64_t number;
    uint8_t  id[BT_NCCL_ID_BYTES];
    uint64_t sum; /* XXH3 of all before */
} note;

bt_status bt_line_take_note_memory(bt_line *line)
{
    bt_status st = BT_OK;

    line->note = bt_wreck_create(sizeof(note));
    BT_REQUIRE(line->note != NULL, BT_ERR_NO_MEMORY, "a note of the hand-off");
out:
    return st;
}

/* A note that cannot be sent counts as lost: after a deadline another one is sent. */
static void send_note(bt_handoff *h, uint32_t to, uint32_t kind, uint64_t number, const uint8_t *id)
{
    bt_wreck *wreck;
    note     *n;

    if (bt_world_has_died(h->world, to, MPI_SUCCESS)) return;
    wreck = bt_wreck_create(sizeof(*n));
    if (wreck == NULL) {
        BT_WARN("no memory for a note to rank %u", to);
        return;
    }
    n  = bt_wreck_room(wreck);
    *n = (note){.magic = MAGIC, .kind = kind, .number = number};
    if (id != NULL) memcpy(n->id, id, BT_NCCL_ID_BYTES);
    n->sum = XXH3_64bits(n, offsetof(note, sum));
    if (MPI_Isend(n, (int)sizeof(*n), MPI_BYTE, (int)to, BT_TAG_LINE, h->world->handoff_comm,
                  wreck->requests) != MPI_SUCCESS)
        wreck->requests[0] = MPI_REQUEST_NULL;
    bt_world_abandon(h->world, wreck);
}

void bt_line_say_here(bt_handoff *h)
{
    bt_line *l = h->line;

    if (l->self != 0 && l->self < l->n)
        send_note(h, l->ranks[0], NOTE_HERE, (uint64_t)l->epoch << 32, NULL);
}

/* The origin knows; to the others it is the origin that has not said that all are there. */
uint32_t bt_line_absent(const bt_line *l)
{
    if (l->self != 0) return l->due_number >> 32 == l->epoch ? BT_NO_PEER : l->ranks[0];
    for (uint32_t i = 1; i < l->n; i++)
        if (l->here[l->ranks[i]] < l->epoch) return l->ranks[i];
    return BT_NO_PEER;
}

/* Nobody can connect before all have joined, so that no deadline runs yet. */
static bool all_here(bt_line *l, uint64_t now_ns)
{
    uint32_t absent = bt_line_absent(l);

    if (absent != BT_NO_PEER && !l->missed && now_ns - l->join_ns >= MISSED_NS) {
        l->missed = true;
        BT_WARN("hand-off by NCCL in epoch %u: rank %u has not joined it for %.0f s", l->epoch,
                absent, (double)(now_ns - l->join_ns) / BT_NS_PER_S);
    }
    return absent == BT_NO_PEER;
}

void bt_line_propose(bt_handoff *h, uint64_t now_ns)
{
    bt_line *l      = h->line;
    uint64_t number = (uint64_t)l->epoch << 32;

    if (!all_here(l, now_ns)) return;
    l->try_ns = now_ns + h->grant_ns;
    if (l->number > number) number = l->number;
    if (l->due_number > number && l->due_number >> 32 == l->epoch) number = l->due_number;
    if (l->nccl->new_id(l->due_id) != BT_OK) return; /* and again later */
    l->try_again  = false;
    l->next_ns    = now_ns + bt_line_pause_ns(h, l->n_in_vain++);
    l->due_number = number + 1;
    l->due_from   = h->world->rank;
    for (uint32_t i = 1; i < l->n; i++)
        send_note(h, l->ranks[i], NOTE_LINE, l->due_number, l->due_id);
}

void bt_line_complain(bt_handoff *h)
{
    bt_line *l = h->line;

    if (l->self < l->n) send_note(h, l->ranks[0], NOTE_FAILED, l->number, NULL);
}

static bt_status parse(const note *n, size_t n_bytes)
{
    bt_status st = BT_OK;

    BT_REQUIRE(n_bytes == sizeof(*n), BT_ERR_PROTOCOL,
               "a note of the hand-off of %zu bytes, want %zu", n_bytes, sizeof(*n));
    BT_REQUIRE(n->magic == MAGIC && n->sum == XXH3_64bits(n, offsetof(note, sum)) &&
                   n->kind >= NOTE_LINE && n->kind <= NOTE_HERE,
               BT_ERR_PROTOCOL,
               "a note of the hand-off begins with %08x, want %08x, is of kind %u, "
               "or its checksum is wrong",
               n->magic, MAGIC, n->kind);
out:
    return st;
}

static void take_note(bt_handoff *h, uint32_t from, const note *n, size_t n_bytes, uint64_t now_ns)
{
    bt_line *l = h->line;

    if (h->peers[from].excluded) return;
    if (parse(n, n_bytes) != BT_OK) {
        h->events.reject(h->events.ctx, from, 0, BT_ERR_PROTOCOL);
        return;
    }
    if (n->kind == NOTE_LINE && n->number > l->due_number) { /* perhaps of an epoch to come */
        l->due_number = n->number;
        l->due_from   = from;
        memcpy(l->due_id, n->id, BT_NCCL_ID_BYTES);
    }
    if (n->kind == NOTE_HERE && n->number >> 32 > l->here[from]) /* likewise */
        l->here[from] = (uint32_t)(n->number >> 32);
    if (n->kind == NOTE_FAILED && l->self == 0 && n->number == l->number) {
        BT_WARN("hand-off by NCCL in epoch %u: rank %u says that attempt %u has failed", l->epoch,
                from, (uint32_t)l->number);
        bt_line_fail(h, now_ns);
    }
}

bool bt_line_receive_notes(bt_handoff *h, uint64_t now_ns)
{
    MPI_Request *request = h->line->note->requests;
    note        *n       = bt_wreck_room(h->line->note);
    MPI_Message  message;
    MPI_Status   status;
    int          found = 0, n_bytes = 0, done = 0;

    if (*request != MPI_REQUEST_NULL) {
        if (MPI_Test(request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || !done) return false;
        *request = MPI_REQUEST_NULL;
        take_note(h, h->line->note_from, n, sizeof(*n), now_ns);
        return true;
    }
    if (MPI_Improbe(MPI_ANY_SOURCE, BT_TAG_LINE, h->world->handoff_comm, &found, &message,
                    &status) != MPI_SUCCESS ||
        !found)
        return false;
    MPI_Get_count(&status, MPI_BYTE, &n_bytes);
    h->line->note_from = (uint32_t)status.MPI_SOURCE;
    if (n_bytes != (int)sizeof(*n)) {
        bt_world_drain(h->world, &message, (size_t)n_bytes);
        take_note(h, h->line->note_from, n, (size_t)n_bytes, now_ns);
    } else if (MPI_Imrecv(n, n_bytes, MPI_BYTE, &message, request) != MPI_SUCCESS) {
        *request = MPI_REQUEST_NULL;
    }
    return true;
}

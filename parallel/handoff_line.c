/* parallel/handoff_line.c - the ends of a line, and its one operation. */
#include "parallel/handoff_line.h"

#include <inttypes.h>
#include <string.h>
#include <xxhash.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "parallel/handoff_parts.h"

enum { ALIGN = 256, OP_GRANTS = 4, RETRY_PART = 4, MOST_DOUBLINGS = 3, MOST_PAUSE_DOUBLINGS = 7 };
enum { NOTE_SCATTERED, NOTE_TAKEN, NOTE_LEFT, N_NOTES }; /* behind those of the slots */
#define DRAIN_MAX_NS (2 * BT_NS_PER_S)
#define OP_MIN_NS    (2 * BT_NS_PER_S)

/* How long an operation may take. */
static uint64_t op_limit_ns(const bt_handoff *h)
{
    return OP_GRANTS * h->grant_ns > OP_MIN_NS ? OP_GRANTS * h->grant_ns : OP_MIN_NS;
}

uint64_t bt_line_start_limit_ns(const bt_handoff *h)
{
    uint32_t before = (uint32_t)h->line->number; /* attempts, and this one */

    if (before > 0) before--;
    return op_limit_ns(h) << (before < MOST_DOUBLINGS ? before : MOST_DOUBLINGS);
}

uint64_t bt_line_pause_ns(const bt_handoff *h, uint32_t n_in_vain)
{
    return h->grant_ns / RETRY_PART
           << (n_in_vain < MOST_PAUSE_DOUBLINGS ? n_in_vain : MOST_PAUSE_DOUBLINGS);
}

static size_t words_of(size_t bytes) { return (bytes + 7) / 8 * 8; }

void *bt_line_rows(const bt_line *line, uint32_t i) { return line->rows + i * line->stride; }

/* Rows that come in lie behind those of all slots. */
static uint8_t *rows_in(const bt_handoff *h) { return bt_line_rows(h->line, h->n_slots); }

static size_t rows_bytes(const bt_page_message *m)
{
    return (size_t)(m->payload_bytes - m->tail_bytes);
}

bt_status bt_line_create(bt_handoff *h, const bt_nccl_module *nccl, bt_device *dev, size_t rows_max,
                         bt_line **line_out)
{
    bt_status st   = BT_OK;
    bt_line  *l    = bt_calloc(1, sizeof(*l));
    void     *rows = NULL;

    BT_REQUIRE(l != NULL, BT_ERR_NO_MEMORY, "the hand-off by NCCL");
    l->nccl       = nccl;
    l->dev        = dev;
    l->rows_max   = rows_max;
    l->stride     = (words_of(rows_max) + 2 * sizeof(uint64_t) + ALIGN - 1) / ALIGN * ALIGN;
    l->ranks      = bt_calloc(h->world->size, sizeof(*l->ranks));
    l->here       = bt_calloc(h->world->size, sizeof(*l->here));
    l->warm_lists = bt_calloc(3 * (size_t)h->world->size, sizeof(*l->warm_lists));
    BT_REQUIRE(l->ranks != NULL && l->here != NULL && l->warm_lists != NULL, BT_ERR_NO_MEMORY,
               "the ranks of a hand-off by NCCL");
    BT_TRY(bt_line_take_note_memory(l));
    BT_TRY(nccl->lane_create(h->n_slots + N_NOTES, &l->lane));
    BT_TRY(bt_device_alloc(
        dev, (h->n_slots + 1) * l->stride + h->world->size * (size_t)BT_LINE_WARM_BYTES, &rows));
    l->rows   = rows;
    *line_out = l;
    l         = NULL;
out:
    if (l != NULL) bt_line_destroy(h->world, l);
    return st;
}

void bt_line_destroy(bt_world *world, bt_line *line)
{
    if (line == NULL) return;
    if (line->note != NULL) bt_world_abandon(world, line->note);
    if (line->comm != NULL) line->nccl->destroy(line->comm);
    line->nccl->lane_destroy(line->lane);
    bt_device_free(line->dev, line->rows);
    bt_free(line->warm_lists);
    bt_free(line->here);
    bt_free(line->ranks);
    bt_free(line);
}

/* ---- ends */

static void forget_operation(bt_handoff *h)
{
    bt_line *l = h->line;

    for (uint32_t i = 0; i < h->n_slots; i++)
        if (h->slots[i].carry == BT_CARRY_LAUNCHED || h->slots[i].carry == BT_CARRY_GONE)
            h->slots[i].carry = BT_CARRY_AGAIN;
    if (l->pending || (l->phase != BT_LINE_IDLE && !l->sends)) h->inboxes[l->index].busy = false;
    l->phase   = BT_LINE_IDLE;
    l->pending = false;
}

void bt_line_end(bt_handoff *h, uint64_t now_ns)
{
    bt_line *l = h->line;

    if (l->state == BT_LINE_NONE || l->state == BT_LINE_ENDING) return;
    l->nccl->abort(l->comm);
    l->marked   = l->nccl->mark(l->comm, 0) == BT_OK;
    l->state    = BT_LINE_ENDING;
    l->since_ns = now_ns;
    forget_operation(h);
}

/* The device's work until now comes first: what of it waits for a rank that is gone would hold up
 * an end of the communicator (parallel/nccl/module.h), and with it the wait that gives it up. */
static void leave(bt_handoff *h, uint64_t now_ns)
{
    bt_line *l = h->line;

    if (l->state == BT_LINE_NONE || l->state == BT_LINE_LEAVING || l->state == BT_LINE_ENDING)
        return;
    l->state = BT_LINE_LEAVING;
    if (l->nccl->note(l->lane, h->n_slots + NOTE_LEFT, bt_device_stream(l->dev)) != BT_OK)
        bt_line_end(h, now_ns); /* the device itself is in error */
}

/* After an error: one of the device may stay, and then comes again of whatever it is given. */
static void look_at_device(bt_handoff *h)
{
    bt_line  *l  = h->line;
    bt_status st = l->nccl->note(l->lane, h->n_slots + NOTE_TAKEN, bt_device_stream(l->dev));

    l->broken = l->broken || st != BT_OK;
}

static bool finish_leaving(bt_handoff *h, uint64_t now_ns)
{
    bt_line  *l      = h->line;
    bool      passed = false;
    bt_status st     = l->nccl->passed(l->lane, h->n_slots + NOTE_LEFT, &passed);

    if (st == BT_OK && !passed) return false;
    if (st != BT_OK) look_at_device(h);
    bt_line_end(h, now_ns);
    return true;
}

static bool finish_end(bt_line *l, uint64_t now_ns)
{
    bool done = !l->marked;

    if (l->marked && l->nccl->reached(l->comm, 0, &done) != BT_OK) done = true;
    if (!done && now_ns - l->since_ns < DRAIN_MAX_NS) return false;
    if (!done) BT_WARN("the GPU's hand-off has not ended with its communicator");
    l->nccl->destroy(l->comm);
    l->comm  = NULL;
    l->state = BT_LINE_NONE;
    return true;
}

void bt_line_fail(bt_handoff *h, uint64_t now_ns)
{
    bt_line *l = h->line;

    leave(h, now_ns);
    look_at_device(h);
    if (l->self != 0) {
        bt_line_complain(h);
    } else if (!l->try_again) {
        l->try_again = true;
        l->try_ns    = now_ns + bt_line_pause_ns(h, 0);
        if (l->try_ns < l->next_ns) l->try_ns = l->next_ns;
    }
}

void bt_line_fail_late(bt_handoff *h, const char *what, uint64_t limit_ns, uint64_t now_ns)
{
    bt_line *l = h->line;

    bt_log_error(__FILE__, __LINE__, bt_status_str(BT_ERR_TIMEOUT),
                 "hand-off by NCCL in epoch %u (attempt %u of %u ranks): %s rank %u has not come "
                 "about within %.3f s",
                 l->epoch, (uint32_t)l->number, l->n, what, l->peer, (double)limit_ns / 1e9);
    bt_line_fail(h, now_ns);
}

/* ---- the operation */

static uint32_t index_of(const bt_line *l, uint32_t rank)
{
    uint32_t i = 0;

    while (i < l->n && l->ranks[i] != rank)
        i++;
    return i;
}

static void take(bt_handoff *h, bool sends, uint32_t index, uint32_t peer, uint64_t now_ns)
{
    bt_line *l = h->line;

    l->phase   = BT_LINE_TAKING;
    l->pending = false;
    l->sends   = sends;
    l->index   = index;
    l->peer    = peer;
    l->op_ns   = now_ns;
}

static bt_status note_packed(bt_line *l, bt_slot *s, uint32_t i)
{
    bt_status st = l->nccl->note(l->lane, i, bt_device_stream(l->dev));

    s->packed = st == BT_OK;
    return st;
}

/* When it fails here, the launch tries it again, and what it notes then comes later. */
void bt_line_pack(bt_handoff *h, uint32_t i)
{
    if (note_packed(h->line, &h->slots[i], i) != BT_OK)
        BT_WARN("how far the GPU has packed slot %u is not known yet", i);
}

bt_status bt_line_take(bt_handoff *h)
{
    bt_status st   = BT_OK;
    bt_line  *l    = h->line;
    uint32_t  note = h->n_slots + NOTE_TAKEN;

    BT_TRY(l->nccl->note(l->lane, note, bt_device_stream(l->dev)));
    BT_TRY(l->nccl->follow(l->lane, note, l->nccl->lane_stream(l->lane)));
out:
    return st;
}

static uint64_t sum_of(const uint64_t prefix[2], const bt_page_message *m)
{
    return XXH3_64bits_withSeed(prefix, 2 * sizeof(*prefix), m->checksum);
}

/* Header and tail by MPI, then the rows. */
static bt_status launch_send(bt_handoff *h, uint32_t i, uint64_t now_ns)
{
    bt_status st      = BT_OK;
    bt_line  *l       = h->line;
    bt_slot  *s       = &h->slots[i];
    uint64_t  head[3] = {l->number, s->order};
    size_t    n = rows_bytes(&s->message), wire = BT_LINE_PREFIX + BT_PAGE_MESSAGE_BYTES;
    uint8_t  *rows = bt_line_rows(l, i);
    uint32_t  to   = index_of(l, s->to);
    int       code;

    take(h, true, i, s->to, now_ns);
    s->carry = BT_CARRY_LAUNCHED;
    BT_REQUIRE(to < l->n, BT_ERR_PEER, "rank %u has no part in the hand-off of epoch %u", s->to,
               l->epoch);
    BT_REQUIRE(!bt_world_has_died(h->world, s->to, MPI_SUCCESS), BT_ERR_PEER, "rank %u has died",
               s->to);
    head[2] = sum_of(head, &s->message);
    memcpy(bt_handoff_wire(h, s->memory), head, sizeof(head));
    code = MPI_Isend(bt_handoff_wire(h, s->memory), (int)(wire + s->message.tail_bytes), MPI_BYTE,
                     (int)s->to, BT_TAG_PAYLOAD, h->world->handoff_comm, s->request);
    if (code != MPI_SUCCESS) *s->request = MPI_REQUEST_NULL;
    BT_REQUIRE(code == MPI_SUCCESS, BT_ERR_PEER, "sending a header to rank %u: %s", s->to,
               bt_mpi_text(code));
    if (!s->packed) BT_TRY(note_packed(l, s, i));
    BT_TRY(l->nccl->follow(l->lane, i, l->nccl->lane_stream(l->lane)));
    BT_TRY(bt_device_checksum(l->dev, l->nccl->lane_stream(l->lane), rows, n, s->message.checksum,
                              (uint64_t *)(void *)(rows + words_of(n))));
    BT_TRY(l->nccl->send(l->comm, rows, words_of(n) + sizeof(uint64_t), to));
out:
    return st;
}

static bt_status launch_recv(bt_handoff *h, uint64_t now_ns)
{
    bt_status st = BT_OK;
    bt_line  *l  = h->line;
    size_t    n  = words_of(rows_bytes(&l->message)) + sizeof(uint64_t);

    take(h, false, l->index, h->inboxes[l->index].from, now_ns);
    BT_TRY(l->nccl->recv(l->comm, rows_in(h), n, index_of(l, l->peer)));
out:
    return st;
}

/* One for this receiver that was under way when the line before ended must go first, and cannot:
 * its header of then is still leaving. */
static bool must_wait(const bt_handoff *h, uint32_t to)
{
    const bt_slot *first = &h->slots[bt_handoff_first_for(h, to)];

    return first->state == BT_SLOT_SENDING && first->carry == BT_CARRY_AGAIN;
}

/* Of the granted slots that need not wait the one whose message came first. */
static uint32_t next_due(const bt_handoff *h)
{
    uint32_t best = BT_NO_SLOT;

    for (uint32_t i = 0; i < h->n_slots; i++) {
        const bt_slot *s = &h->slots[i];

        if (s->state == BT_SLOT_SENDING && s->carry == BT_CARRY_DUE &&
            (best == BT_NO_SLOT || s->order < h->slots[best].order) && !must_wait(h, s->to))
            best = i;
    }
    return best;
}

/* The next one granted, or what is older for its receiver, by its grant. */
static bt_status launch_due(bt_handoff *h, uint32_t i, uint64_t now_ns)
{
    uint32_t first = bt_handoff_first_for(h, h->slots[i].to);

    bt_handoff_pass_grant(h, i, first);
    return launch_send(h, first, now_ns);
}

static bool launch(bt_handoff *h, uint64_t now_ns)
{
    bt_line  *l = h->line;
    uint32_t  i = next_due(h);
    bt_status st;

    if (!l->pending && i == BT_NO_SLOT) return false;
    st = l->pending ? launch_recv(h, now_ns) : launch_due(h, i, now_ns);
    if (st != BT_OK) bt_line_fail(h, now_ns);
    return true;
}

/* What came and what should have come lie side by side behind the rows. */
static bt_status start_check(bt_handoff *h)
{
    bt_status st   = BT_OK;
    bt_line  *l    = h->line;
    size_t    n    = rows_bytes(&l->message);
    uint8_t  *rows = rows_in(h), *sums = rows + words_of(n);

    BT_TRY(bt_device_checksum(l->dev, l->nccl->lane_stream(l->lane), rows, n, l->message.checksum,
                              (uint64_t *)(void *)sums + 1));
    BT_TRY(l->nccl->fetch(l->lane, sums));
    BT_TRY(l->nccl->mark(l->comm, 0));
    l->phase = BT_LINE_CHECKING;
out:
    return st;
}

/* Later work of the device sees what the rows were scattered to. */
static bt_status let_device_follow(bt_handoff *h)
{
    bt_status st   = BT_OK;
    bt_line  *l    = h->line;
    uint32_t  note = h->n_slots + NOTE_SCATTERED;

    BT_TRY(l->nccl->note(l->lane, note, l->nccl->lane_stream(l->lane)));
    BT_TRY(l->nccl->follow(l->lane, note, bt_device_stream(l->dev)));
out:
    return st;
}

static bt_status deliver(bt_handoff *h)
{
    bt_status              st   = BT_OK;
    bt_line               *l    = h->line;
    bt_inbox              *in   = &h->inboxes[l->index];
    bt_peer               *peer = &h->peers[in->from];
    const bt_page_message *m    = &l->message;
    uint64_t               sums[2], order;
    bool                   again;

    memcpy(sums, l->nccl->fetched(l->lane), sizeof(sums));
    memcpy(&order, bt_handoff_wire(h, in->memory) + 8, sizeof(order));
    again    = order < peer->n_ordered; /* its sender had not seen that it had come */
    l->phase = BT_LINE_IDLE;
    if (!again) peer->n_ordered = order + 1;
    peer->owes_taken = true;
    if (!again && sums[0] == sums[1]) {
        bt_page_payload p = {.rows      = rows_in(h),
                             .tail      = in->memory + BT_HANDOFF_HEAD,
                             .on_device = true,
                             .stream    = l->nccl->lane_stream(l->lane)};

        h->events.deliver(h->events.ctx, in->from, m, &p);
        st = let_device_follow(h);
    } else if (!again) {
        bt_log_error(__FILE__, __LINE__, bt_status_str(BT_ERR_CHECKSUM),
                     "tokens [%u, %u), layers [%u, %u) of request %" PRIu64
                     " from rank %u: checksum %016" PRIx64 ", want %016" PRIx64,
                     m->token0, m->token1, m->layer0, m->layer1, m->request, in->from, sums[1],
                     sums[0]);
        h->events.reject(h->events.ctx, in->from, m->request, BT_ERR_CHECKSUM);
    }
    in->busy = false;
    return st;
}

/* One look at the operation under way. */
static bt_status look(bt_handoff *h, bool *moved_out)
{
    bt_status st   = BT_OK;
    bt_line  *l    = h->line;
    bool      busy = true, reached = false;

    BT_TRY(l->nccl->poll(l->comm, &busy));
    if (busy) goto out;
    *moved_out = true;
    if (l->phase == BT_LINE_TAKING) {
        BT_TRY(l->nccl->mark(l->comm, 0));
        l->phase = BT_LINE_UNDER_WAY;
        goto out;
    }
    BT_TRY(l->nccl->reached(l->comm, 0, &reached));
    *moved_out = reached;
    if (!reached) goto out;
    if (l->phase == BT_LINE_CHECKING) {
        BT_TRY(deliver(h));
    } else if (l->sends) {
        h->slots[l->index].carry = BT_CARRY_GONE;
        l->phase                 = BT_LINE_IDLE;
    } else {
        BT_TRY(start_check(h));
    }
out:
    return st;
}

static bool work(bt_handoff *h, uint64_t now_ns)
{
    bt_line *l     = h->line;
    bool     moved = false;

    if (l->phase == BT_LINE_IDLE) return launch(h, now_ns);
    if (look(h, &moved) != BT_OK) {
        bt_line_fail(h, now_ns);
        return true;
    }
    if (!moved && now_ns - l->op_ns >= op_limit_ns(h))
        bt_line_fail_late(h, l->sends ? "a message to" : "a message from", op_limit_ns(h), now_ns);
    return moved;
}

/* ---- for the hand-off's other files */

void bt_line_send(bt_handoff *h, uint32_t i) { h->slots[i].carry = BT_CARRY_DUE; }

bool bt_line_receive(bt_handoff *h, uint32_t i)
{
    bt_status       st   = BT_OK;
    bt_line        *l    = h->line;
    bt_inbox       *in   = &h->inboxes[i];
    uint8_t        *wire = bt_handoff_wire(h, in->memory);
    bt_page_message m    = {.request = 0};
    size_t          head = BT_LINE_PREFIX + BT_PAGE_MESSAGE_BYTES;
    uint64_t        prefix[3];

    BT_REQUIRE(in->n_bytes >= head, BT_ERR_PROTOCOL, "rank %u sent a header of %zu bytes, want %zu",
               in->from, in->n_bytes, head);
    memcpy(prefix, wire, sizeof(prefix));
    BT_TRY(bt_page_message_parse(wire + BT_LINE_PREFIX, in->n_bytes - BT_LINE_PREFIX, &m));
    BT_REQUIRE(m.tail_bytes == in->n_bytes - head && rows_bytes(&m) <= l->rows_max, BT_ERR_PROTOCOL,
               "rank %u sent %zu bytes of tail and %zu of rows for request %" PRIu64
               ", want %u and at most %zu: all ranks must stage alike",
               in->from, in->n_bytes - head, rows_bytes(&m), m.request, m.tail_bytes, l->rows_max);
    BT_TRY(bt_page_message_verify(&m, in->memory + BT_HANDOFF_HEAD, false));
    BT_REQUIRE(prefix[2] == sum_of(prefix, &m), BT_ERR_CHECKSUM,
               "rank %u says line %016" PRIx64 " and order %" PRIu64
               " before the header of request %" PRIu64 ": their checksum is wrong",
               in->from, prefix[0], prefix[1], m.request);
    if (prefix[0] < l->number || l->state == BT_LINE_LEAVING || l->state == BT_LINE_ENDING ||
        l->state == BT_LINE_NONE)
        return false;
    BT_REQUIRE(prefix[0] == l->number && index_of(l, in->from) < l->n, BT_ERR_PROTOCOL,
               "rank %u sends rows for request %" PRIu64 " by line %016" PRIx64
               ", this rank's is %016" PRIx64,
               in->from, m.request, prefix[0], l->number);
    l->message = m;
    l->index   = i;
    l->pending = true;
out:
    if (st == BT_OK) return true;
    h->events.reject(h->events.ctx, in->from, m.request, st);
    bt_line_fail(h, bt_now_ns()); /* its rows will never be received */
    return false;
}

static void pay_taken(bt_handoff *h)
{
    for (uint32_t r = 0; r < h->world->size; r++)
        if (h->peers[r].owes_taken)
            h->peers[r].owes_taken =
                !bt_signal_send(h, r, BT_SIGNAL_TAKEN, h->peers[r].n_ordered, 0);
}

bool bt_line_poll(bt_handoff *h, uint64_t now_ns)
{
    bt_line *l     = h->line;
    bool     moved = bt_line_receive_notes(h, now_ns);

    pay_taken(h);
    if (l->try_again && now_ns >= l->try_ns) bt_line_propose(h, now_ns);
    if (l->due_number > l->number && l->due_number >> 32 == l->epoch) leave(h, now_ns);
    switch (l->state) {
    case BT_LINE_NONE: return bt_line_begin(h, now_ns) || moved;
    case BT_LINE_CONNECTING:
    case BT_LINE_WARMING: return bt_line_start_up(h, now_ns) || moved;
    case BT_LINE_READY: return work(h, now_ns) || moved;
    case BT_LINE_LEAVING: return finish_leaving(h, now_ns) || moved;
    case BT_LINE_ENDING: return finish_end(l, now_ns) || moved;
    }
    return moved;
}

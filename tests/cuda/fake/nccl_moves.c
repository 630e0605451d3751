/* tests/cuda/fake/nccl_moves.c - operations of the fake NCCL from their launch to their end: in
 * streams, and in graphs. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/cuda/fake/inside.h"
#include "tests/cuda/fake/nccl_inside.h"

static op *g_under_way; /* in the order of their launch */

/* BT_FAKE_NCCL="2:hand-off:5:9 3:group:40:19": rank 2 of the job gets signal 9 at its 5th operation
 * of communicators whose name has "hand-off" in it, rank 3 signal 19.  Once each; with 0 for the
 * signal the operation fails, and so do all that follow; with -1 these stay in their streams for
 * ever, also when their communicator ends; with -2 the GPU is broken from then on. */
enum { MAX_FATES = 4 };
typedef struct {
    char name[16];
    int  at, signal;
} fate;
static fate g_fates[MAX_FATES];
static int  g_n_fates;

__attribute__((constructor)) static void read_fates(void)
{
    const char *text = getenv("BT_FAKE_NCCL"), *self = getenv("OMPI_COMM_WORLD_RANK");
    int         rank, n;
    fate        f;

    while (text != NULL && self != NULL && g_n_fates < MAX_FATES &&
           sscanf(text, "%d:%15[^:]:%d:%d%n", &rank, f.name, &f.at, &f.signal, &n) == 4) {
        if (rank == atoi(self)) g_fates[g_n_fates++] = f;
        text += n + strspn(text + n, " ");
    }
}

static ring *ring_of(const op *o, const part *p)
{
    return p->sends ? &o->comm->s->rings[o->comm->self][p->peer]
                    : &o->comm->s->rings[p->peer][o->comm->self];
}

/* At most n bytes, as much as the ring takes or has in one piece; returns how many. */
static uint64_t move_bytes(ring *r, int sends, uint8_t *ours, uint64_t n)
{
    uint64_t w = atomic_load(&r->written), d = atomic_load(&r->read), at = sends ? w : d;
    uint64_t free = sends ? RING_BYTES - (w - d) : w - d, end = RING_BYTES - at % RING_BYTES;

    if (n > free) n = free;
    if (n > end) n = end;
    if (sends) {
        memcpy(r->bytes + at % RING_BYTES, ours, n);
        atomic_store(&r->written, at + n);
    } else {
        memcpy(ours, r->bytes + at % RING_BYTES, n);
        atomic_store(&r->read, at + n);
    }
    return n;
}

static const char *name_op(uint64_t captured, char text[64])
{
    snprintf(text, 64, "its captured operation %llu", (unsigned long long)captured);
    return captured == 0 ? "a plain call" : text;
}

/* NCCL asks for both: counts that agree, and that all ranks launch what they have captured together
 * or none does.  Real NCCL does not check. */
static ncclResult_t check_head(const op *o, const part *p)
{
    char ours[64], theirs[64];

    if (p->its.captured != o->captured)
        fprintf(stderr, "fake NCCL: %s: rank %d runs %s, rank %d %s\n", o->comm->name,
                o->comm->self, name_op(o->captured, ours), p->peer,
                name_op(p->its.captured, theirs));
    else if (p->its.length != p->length)
        fprintf(stderr, "fake NCCL: %s: rank %d awaits %llu bytes of rank %d, which sends %llu\n",
                o->comm->name, o->comm->self, (unsigned long long)p->length, p->peer,
                (unsigned long long)p->its.length);
    else
        return ncclSuccess;
    return ncclInvalidUsage;
}

static int is_over(const part *p) { return p->done == sizeof(p->its) + p->length; }

/* As much as the ring takes or has. */
static void move_part(op *o, part *p)
{
    uint64_t n = 1;

    if (p->sends) p->its = (head){p->length, o->captured};
    while (n > 0 && !is_over(p)) {
        if (p->done < sizeof(p->its))
            n = move_bytes(ring_of(o, p), p->sends, (uint8_t *)&p->its + p->done,
                           sizeof(p->its) - p->done);
        else
            n = move_bytes(ring_of(o, p), p->sends, p->memory + (p->done - sizeof(p->its)),
                           sizeof(p->its) + p->length - p->done);
        p->done += n;
        if (n > 0 && p->done == sizeof(p->its) && !p->sends) o->comm->error = check_head(o, p);
        if (o->comm->error != ncclSuccess) break;
    }
}

/* Nothing is touched, or opened, for an operation that waits for its peers. */
static int may_move(const op *o)
{
    int open = 0;

    for (int i = 0; i < o->n_parts; i++) {
        const part *p = &o->parts[i];
        const ring *r = ring_of(o, p);
        uint64_t    n = atomic_load(&r->written) - atomic_load(&r->read);

        if (is_over(p)) continue;
        if (p->sends ? n < RING_BYTES : n > 0) return 1;
        open++;
    }
    return open == 0;
}

/* Nothing of the operation has moved. */
static void meet_fate(op *o)
{
    for (int i = 0; i < g_n_fates; i++) {
        fate *f = &g_fates[i];

        if (strstr(o->comm->name, f->name) == NULL || --f->at > 0) continue;
        if (f->signal == 0) o->comm->error = ncclSystemError;
        if (f->signal == -1) o->stays = 1;
        if (f->signal == -2) g_fake_gpu.broken = cudaErrorIllegalAddress;
        if (f->signal <= 0 || f->at < 0) continue;
        fprintf(stderr, "fake NCCL: signal %d at an operation of %s\n", f->signal, o->comm->name);
        raise(f->signal);
    }
}

static int move_op(op *o)
{
    int open = 0;

    if (!o->moved) meet_fate(o);
    o->moved = 1;
    if (o->stays) return 0;
    for (int i = 0; i < o->n_parts && o->comm->error == ncclSuccess; i++) {
        move_part(o, &o->parts[i]);
        open += !is_over(&o->parts[i]);
    }
    return open == 0 && o->comm->error == ncclSuccess;
}

/* What the stream had before is over. */
static int has_turn(const op *o) { return o->stream->n_ran >= o->put; }

/* A call that stands behind a launched graph is under way before the graph's operations are, whose
 * turn in the stream comes first. */
static int is_first(const op *o)
{
    if (!has_turn(o)) return 0;
    for (const op *before = g_under_way; before != o; before = before->next)
        if (before->stream == o->stream ? has_turn(before) : before->comm == o->comm) return 0;
    return 1;
}

/* Ended, or given up with its communicator. */
static void end_op(op *o)
{
    if (o->done != NULL)
        *o->done = 1;
    else
        o->stream->n_done++;
    free(o);
}

void fake_nccl_progress(void)
{
    op **at   = &g_under_way;
    int  open = 0;

    if (g_fake_nccl.stalled) return;
    fake_gpu_lock();
    while (*at != NULL) {
        op *o     = *at;
        int moves = is_first(o) && may_move(o);

        if (moves && !open) fake_gpu_open();
        open |= moves;
        if (moves && move_op(o)) {
            if (!o->parts[0].sends && g_fake_nccl.corrupt_at >= 0 && g_fake_nccl.corrupt_at-- == 0)
                o->parts[0].memory[0] ^= 1;
            *at = o->next;
            end_op(o);
        } else {
            at = &o->next;
        }
    }
    if (open) fake_gpu_close();
    fake_gpu_unlock();
}

static void put_under_way(op *o)
{
    op **at = &g_under_way;

    if (g_fake_nccl.fail_at >= 0 && g_fake_nccl.fail_at-- == 0) o->comm->error = ncclRemoteError;
    g_fake_nccl.n_launched++;
    while (*at != NULL)
        at = &(*at)->next;
    *at = o;
}

void fake_nccl_drop(ncclComm_t c)
{
    op **at = &g_under_way;

    fake_gpu_lock();
    while (*at != NULL) {
        op *o = *at;

        if (o->comm != c) {
            at = &o->next;
            continue;
        }
        *at = o->next;
        if (o->stays)
            free(o);
        else
            end_op(o);
    }
    fake_gpu_unlock();
}

/* ---- operations that a graph holds: each launch runs them once more */

static void begin_kept(void *of, int *done)
{
    const op *kept = of;
    op       *o;

    if (kept->comm->aborted) { /* its kernels see that, and leave */
        *done = 1;
        return;
    }
    o       = malloc(sizeof(*o));
    *o      = *kept;
    o->done = done;
    put_under_way(o);
}

static void drop_kept(void *of) { ((op *)of)->comm->n_held--; }

void fake_nccl_release(ncclComm_t c)
{
    if (c->aborted && c->n_kept == 0) free(c);
}

static void release_kept(void *of)
{
    op *kept = of;

    kept->comm->n_kept--;
    fake_nccl_release(kept->comm);
    free(kept);
}

void fake_nccl_launch(ncclComm_t c)
{
    op *o = c->waiting;

    c->waiting = NULL;
    if (o == NULL) return;
    o->stream->n_calls--;
    if (o->capture != fake_gpu_capture_of(o->stream)) {
        fprintf(stderr,
                "fake NCCL: a capture has begun or ended while %s worked on a call for it\n",
                c->name);
        c->error = ncclInvalidUsage;
        free(o);
    } else if (o->capture != 0) {
        o->captured = ++c->n_captured;
        c->n_kept++;
        c->n_held++;
        fake_gpu_capture(o->stream, &(fake_foreign){o, begin_kept, drop_kept, release_kept});
    } else {
        o->stream->n_given++;
        o->put = o->stream->n_put;
        fake_gpu_lock();
        put_under_way(o);
        fake_gpu_unlock();
    }
}

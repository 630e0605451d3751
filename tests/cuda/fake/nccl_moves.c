/* tests/cuda/fake/nccl_moves.c - operations of the fake NCCL from their launch to their end: in
 * streams, and in graphs. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/cuda/fake/nccl_inside.h"

static op *g_under_way; /* in the order of their launch */

/* BT_FAKE_NCCL="2:hand-off:5:9 3:group:40:19": rank 2 of the job gets signal 9 at its 5th operation
 * of communicators whose name has "hand-off" in it, rank 3 signal 19.  Once each. */
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

/* As much as the ring takes or has; true when something moved. */
static int move_part(ncclComm_t c, part *p)
{
    ring    *r     = p->sends ? &c->s->rings[c->self][p->peer] : &c->s->rings[p->peer][c->self];
    uint64_t total = sizeof(p->length) + p->length, before = p->done, length;

    while (p->done < total) {
        uint64_t w = atomic_load(&r->written), at = p->done;
        uint64_t d = atomic_load(&r->read);
        uint8_t *ours;

        if (p->sends ? w - d == RING_BYTES : w == d) break;
        if (at < sizeof(p->length)) { /* the length, byte by byte */
            ours = (uint8_t *)&length + at;
            if (p->sends) length = p->length;
        } else {
            ours = p->memory + (at - sizeof(p->length));
        }
        if (p->sends) {
            uint64_t n = at < sizeof(p->length) ? 1 : total - at, end = RING_BYTES - w % RING_BYTES;

            if (n > RING_BYTES - (w - d)) n = RING_BYTES - (w - d);
            if (n > end) n = end;
            memcpy(r->bytes + w % RING_BYTES, ours, n);
            atomic_store(&r->written, w + n);
            p->done += n;
        } else {
            uint64_t n = at < sizeof(p->length) ? 1 : total - at, end = RING_BYTES - d % RING_BYTES;

            if (n > w - d) n = w - d;
            if (n > end) n = end;
            if (at < sizeof(p->length)) {
                uint8_t want = (uint8_t)(p->length >> (8 * at));

                if (r->bytes[d % RING_BYTES] != want) {
                    fprintf(stderr,
                            "fake NCCL: rank %d awaits %llu bytes of rank %d, which sends "
                            "another number\n",
                            c->self, (unsigned long long)p->length, p->peer);
                    c->error = ncclInvalidUsage;
                    return 1;
                }
            } else {
                memcpy(ours, r->bytes + d % RING_BYTES, n);
            }
            atomic_store(&r->read, d + n);
            p->done += n;
        }
    }
    return p->done != before;
}

/* Nothing is touched, or opened, for an operation that waits for its peers. */
static int may_move(const op *o)
{
    int open = 0;

    for (int i = 0; i < o->n_parts; i++) {
        const part *p = &o->parts[i];
        const ring *r = p->sends ? &o->comm->s->rings[o->comm->self][p->peer]
                                 : &o->comm->s->rings[p->peer][o->comm->self];
        uint64_t    n = atomic_load(&r->written) - atomic_load(&r->read);

        if (p->done == sizeof(p->length) + p->length) continue;
        if (p->sends ? n < RING_BYTES : n > 0) return 1;
        open++;
    }
    return open == 0;
}

/* Nothing of the operation has moved. */
static void meet_fate(const op *o)
{
    for (int i = 0; i < g_n_fates; i++) {
        fate *f = &g_fates[i];

        if (strstr(o->comm->name, f->name) == NULL || --f->at != 0) continue;
        fprintf(stderr, "fake NCCL: signal %d at an operation of %s\n", f->signal, o->comm->name);
        raise(f->signal);
    }
}

static int move_op(op *o)
{
    int open = 0;

    if (!o->moved) meet_fate(o);
    o->moved = 1;

    for (int i = 0; i < o->n_parts && o->comm->error == ncclSuccess; i++) {
        move_part(o->comm, &o->parts[i]);
        open += o->parts[i].done < sizeof(o->parts[i].length) + o->parts[i].length;
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

    while (*at != NULL) {
        op *o = *at;

        if (o->comm != c) {
            at = &o->next;
            continue;
        }
        *at = o->next;
        end_op(o);
    }
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
    if (o->capture != fake_gpu_capture_of(o->stream)) {
        fprintf(stderr,
                "fake NCCL: a capture has begun or ended while %s worked on a call for it\n",
                c->name);
        c->error = ncclInvalidUsage;
        free(o);
    } else if (o->capture != 0) {
        c->n_kept++;
        c->n_held++;
        fake_gpu_capture(o->stream, &(fake_foreign){o, begin_kept, drop_kept, release_kept});
    } else {
        o->stream->n_given++;
        o->put = o->stream->n_put;
        put_under_way(o);
    }
}

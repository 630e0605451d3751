/* parallel/carrier_nccl.c - device memory by NCCL: the communicator's life, and every wait for it.
 *
 * NCCL tells nobody who died, and a communicator that waits for a dead rank waits for ever.  So a
 * wait that passes its deadline, or that NCCL says has failed, ends the communicator, and its rank
 * calls the roll: a barrier of a group of its own over MPI.  Who still waits, by NCCL or for the
 * group's own messages, hears the call and joins at once; who does not answer is named. */
#include <stdio.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "core/watchdog.h"
#include "parallel/backoff.h"
#include "parallel/group_parts.h"
#include "parallel/nccl/module.h"

enum { TEXT_BYTES = 96, WHY_BYTES = 448, ROLL_PART = 8, WARM_BYTES = 64 };
enum { N_MARKS = BT_N_MARKS + 1, NO_MARK = N_MARKS }; /* the last one: of bt_group_settle() */
#define ROLL_MIN_NS  (100 * BT_NS_PER_MS)
#define DRAIN_MAX_NS (2 * BT_NS_PER_S)
#define TAKE_MAX_NS  (1 * BT_NS_PER_S)

typedef struct {
    bt_carrier            super;
    const bt_nccl_module *nccl;  /* borrowed */
    bt_device            *dev;   /* borrowed */
    bt_world             *world; /* borrowed */
    uint32_t              tag_space;
    bt_nccl_comm         *comm;  /* owned; NULL: before the first operation, or after an error */
    bt_group             *roll;  /* owned; made with the communicator */
    bool                  ready; /* the communicator is connected */
    uint8_t              *warm;  /* owned, device: [2][world size][WARM_BYTES] */
} carrier;

typedef struct {
    uint8_t present; /* rank 0 has an id to give */
    uint8_t id[BT_NCCL_ID_BYTES];
} id_message;

/* ---- the end of a communicator */

/* NCCL's thread may be writing an operation into a captured graph, which ends here.  In a connected
 * communicator that waits for no peer. */
static void let_nccl_finish(carrier *c)
{
    uint64_t end_ns = bt_now_ns() + TAKE_MAX_NS;
    bool     busy   = c->ready;

    while (busy && bt_now_ns() < end_ns && c->nccl->poll(c->comm, &busy) == BT_OK && busy)
        bt_sleep_ns(BT_NS_PER_MS / 10);
}

/* Kernels leave the stream once they have seen the abort; until then they may write. */
static void stop(carrier *c)
{
    uint64_t end_ns;
    bool     done = false;

    if (c->comm == NULL) return;
    bt_watchdog_enter("what an NCCL communicator is at", -1);
    let_nccl_finish(c);
    bt_watchdog_leave();
    bt_watchdog_enter("end of an NCCL communicator", -1);
    if (c->super.ends != NULL) c->super.ends(c->super.ends_ctx); /* NCCL waits for its graphs */
    c->nccl->abort(c->comm);
    bt_watchdog_leave();
    bt_watchdog_enter("the GPU's work of an NCCL communicator", -1);
    if (c->nccl->mark(c->comm, 0) != BT_OK) done = true; /* the stream itself is in error */
    end_ns = bt_now_ns() + DRAIN_MAX_NS;
    while (!done && bt_now_ns() < end_ns && c->nccl->reached(c->comm, 0, &done) == BT_OK && !done)
        bt_sleep_ns(BT_NS_PER_MS / 10);
    if (!done) BT_WARN("the GPU's work has not ended with its communicator");
    c->nccl->destroy(c->comm);
    c->comm  = NULL;
    c->ready = false;
    bt_watchdog_leave();
}

static uint64_t roll_ns(const bt_wait *wait)
{
    uint64_t ns = wait->timeout_ns / ROLL_PART;

    return ns < ROLL_MIN_NS ? ROLL_MIN_NS : ns;
}

/* What is left of a wait's time before the roll, so that a rank which waits by MPI for one that
 * waits by NCCL does not speak first. */
static uint64_t limit_ns(const bt_wait *wait)
{
    uint64_t half = wait->timeout_ns / 2, roll = roll_ns(wait);

    return wait->timeout_ns - (roll < half ? roll : half);
}

/* What has happened, before the roll is called: an error has just been logged. */
static void tell_why(const carrier *c, const bt_wait *wait, bt_status st, char why[WHY_BYTES])
{
    if (st != BT_ERR_TIMEOUT)
        snprintf(why, WHY_BYTES, "%s", bt_error_text());
    else if (bt_group_is_called(c->roll))
        snprintf(why, WHY_BYTES, "NCCL has not done it, and another rank has given it up");
    else
        snprintf(why, WHY_BYTES, "NCCL has not done it within %.3f s",
                 (double)wait->timeout_ns / 1e9);
}

/* Names who does not answer, or says why it has failed all the same.  Returns st, or TIMEOUT when
 * somebody is missing. */
static bt_status call_roll(carrier *c, const bt_wait *wait, bt_status st, const char *why)
{
    bt_wait   roll = *wait;
    char      what[TEXT_BYTES];
    bt_status heard;

    snprintf(what, sizeof(what), "%s by NCCL, call of the roll", bt_wait_name(wait));
    roll.what       = what;
    roll.timeout_ns = roll_ns(wait);
    heard           = bt_group_barrier(c->roll, &roll);
    if (heard != BT_OK) return heard;
    bt_log_error(__FILE__, __LINE__, bt_status_str(st),
                 "%s of layer %d in epoch %u: %s, though all %u ranks answer", bt_wait_name(wait),
                 (int)wait->layer, bt_group_epoch(c->roll), why, bt_group_size(c->roll));
    return st;
}

/* The error's code, after all that it takes. */
static bt_status give_up(carrier *c, const bt_wait *wait, bt_status st)
{
    char why[WHY_BYTES];

    tell_why(c, wait, st, why); /* the end may log errors of its own */
    stop(c);
    return st == BT_ERR_CANCELLED || st == BT_ERR_NO_MEMORY ? st : call_roll(c, wait, st, why);
}

/* ---- waiting */

/* What is waited for: that NCCL has taken the operation (NO_MARK), or that the stream has come to
 * the mark. */
static bt_status look(carrier *c, uint32_t mark, const bt_wait *wait, bool *done_out)
{
    bt_status st   = BT_OK;
    bool      busy = true;

    bt_watchdog_enter(bt_wait_name(wait), wait->layer);
    st = c->nccl->poll(c->comm, &busy);
    if (st == BT_OK && mark != NO_MARK && !busy)
        st = c->nccl->reached(c->comm, mark, done_out);
    else
        *done_out = !busy;
    bt_watchdog_leave();
    return st;
}

/* While NCCL works on an operation the stream may get nothing else, and what is done meanwhile (the
 * hand-off) gives it work; a communicator that connects has none yet. */
static bool may_idle(const carrier *c, uint32_t mark) { return mark != NO_MARK || !c->ready; }

static bt_status await(carrier *c, uint32_t mark, uint64_t start_ns, const bt_wait *wait)
{
    bt_status  st   = BT_OK;
    bool       done = false;
    uint64_t   now_ns;
    bt_backoff backoff;

    bt_backoff_init(&backoff, bt_world_spin_ns(c->world), start_ns);
    for (;;) {
        now_ns = bt_now_ns(); /* before the look: a process that was stopped looks once more */
        st     = look(c, mark, wait, &done);
        if (st != BT_OK || done) break;
        if (wait->stop != NULL && wait->stop(wait->ctx)) st = BT_ERR_CANCELLED;
        if (bt_backoff_late(&backoff, now_ns, limit_ns(wait)) || bt_group_is_called(c->roll))
            st = BT_ERR_TIMEOUT;
        if (st != BT_OK) break;
        if (wait->idle != NULL && may_idle(c, mark)) wait->idle(wait->ctx);
        bt_backoff_wait(&backoff, now_ns);
    }
    bt_world_count_wait(c->world, bt_now_ns() - start_ns);
    return st == BT_OK ? BT_OK : give_up(c, wait, st);
}

/* ---- the communicator */

static bt_status share_id(carrier *c, bt_group *group, uint8_t id_out[BT_NCCL_ID_BYTES],
                          const bt_wait *wait)
{
    bt_status   st   = BT_OK;
    uint32_t    n    = bt_group_size(group);
    id_message  mine = {.present = 0};
    id_message *all  = bt_calloc(n, sizeof(*all));

    BT_REQUIRE(all != NULL, BT_ERR_NO_MEMORY, "ids of %u ranks", n);
    if (bt_group_self(group) == 0) mine.present = c->nccl->new_id(mine.id) == BT_OK;
    BT_TRY(bt_group_all_gather(group, &mine, sizeof(mine), all, wait));
    BT_REQUIRE(all[0].present, BT_ERR_PEER,
               "rank %u has no NCCL id to give to the group of epoch %u (its own error says why)",
               bt_group_world_rank(group, 0), bt_group_epoch(group));
    memcpy(id_out, all[0].id, BT_NCCL_ID_BYTES);
out:
    bt_free(all);
    return st;
}

static bt_status make_roll(carrier *c, const bt_group *group)
{
    bt_status st    = BT_OK;
    uint32_t  n     = bt_group_size(group);
    uint32_t *ranks = bt_calloc(n, sizeof(*ranks));

    BT_REQUIRE(ranks != NULL, BT_ERR_NO_MEMORY, "the roll of %u ranks", n);
    for (uint32_t i = 0; i < n; i++)
        ranks[i] = bt_group_world_rank(group, i);
    BT_TRY(bt_group_create(c->world, n, ranks, c->tag_space, bt_group_epoch(group), &c->roll));
out:
    bt_free(ranks);
    return st;
}

/* At the group's first operation. */
static bt_status connect(carrier *c, bt_group *group, uint64_t start_ns, const bt_wait *wait)
{
    bt_status      st = BT_OK;
    uint8_t        id[BT_NCCL_ID_BYTES];
    char           name[TEXT_BYTES];
    bt_nccl_config cfg = {.n       = bt_group_size(group),
                          .self    = bt_group_self(group),
                          .id      = id,
                          .name    = name,
                          .stream  = bt_device_stream(c->dev),
                          .n_marks = N_MARKS};

    if (c->comm != NULL) goto out;
    snprintf(name, sizeof(name), "NCCL, group of %u ranks, epoch %u", cfg.n, bt_group_epoch(group));
    BT_TRY(make_roll(c, group));
    BT_TRY(share_id(c, group, id, wait));
    st = c->nccl->start(&cfg, &c->comm);
    if (st != BT_OK) st = give_up(c, wait, st);
    if (st == BT_OK) st = await(c, NO_MARK, start_ns, wait);
    c->ready = st == BT_OK;
out:
    return st;
}

/* ---- operations */

static bt_status nccl_exchange(bt_carrier *super, bt_group *group, const bt_exchange *x,
                               const bt_wait *wait)
{
    bt_status st       = BT_OK;
    carrier  *c        = (carrier *)super;
    uint64_t  start_ns = bt_now_ns();

    BT_TRY(connect(c, group, start_ns, wait));
    st = c->nccl->exchange(c->comm, x);
    if (st != BT_OK) st = give_up(c, wait, st);
    if (st == BT_OK) st = await(c, NO_MARK, start_ns, wait);
out:
    return st;
}

/* NCCL has its own. */
static bt_status nccl_reserve(bt_carrier *super, size_t out_bytes, size_t in_bytes)
{
    (void)super, (void)out_bytes, (void)in_bytes;
    return BT_OK;
}

static bt_status nccl_mark(bt_carrier *super, uint32_t i, const bt_wait *wait)
{
    carrier  *c  = (carrier *)super;
    bt_status st = c->comm == NULL ? BT_OK : c->nccl->mark(c->comm, i); /* or none was enqueued */

    return st == BT_OK ? BT_OK : give_up(c, wait, st);
}

static bt_status nccl_settle(bt_carrier *super, uint32_t i, const bt_wait *wait)
{
    carrier *c = (carrier *)super;

    return c->comm == NULL ? BT_OK : await(c, i, bt_now_ns(), wait);
}

/* NCCL connects two ranks at their first message: each to each, before a step needs it. */
static bt_status warm_pairs(carrier *c, bt_group *group, const bt_wait *wait)
{
    bt_status   st = BT_OK;
    uint32_t    n = bt_group_size(group), self = bt_group_self(group);
    size_t     *at = bt_calloc(n, sizeof(*at)), *bytes = bt_calloc(n, sizeof(*bytes));
    uint8_t    *in = c->warm + n * (size_t)WARM_BYTES;
    bt_exchange x  = {c->warm, at, bytes, in, at, bytes};

    BT_REQUIRE(at != NULL && bytes != NULL, BT_ERR_NO_MEMORY, "lists of %u ranks", n);
    for (uint32_t i = 0; i < n; i++) {
        at[i]    = i * (size_t)WARM_BYTES;
        bytes[i] = i == self ? 0 : WARM_BYTES;
    }
    BT_TRY(nccl_exchange(&c->super, group, &x, wait));
    BT_TRY(nccl_mark(&c->super, 0, wait));
    BT_TRY(nccl_settle(&c->super, 0, wait));
out:
    bt_free(bytes);
    bt_free(at);
    return st;
}

static bt_status nccl_warm(bt_carrier *super, bt_group *group, const bt_wait *wait)
{
    carrier *c = (carrier *)super;

    return c->comm != NULL ? BT_OK : warm_pairs(c, group, wait);
}

/* NCCL says what it is at when it is asked. */
static bt_status nccl_tend(bt_carrier *super, const bt_wait *wait)
{
    bt_status st   = BT_OK;
    carrier  *c    = (carrier *)super;
    bool      busy = false;

    if (c->comm != NULL) st = c->nccl->poll(c->comm, &busy);
    if (st == BT_OK && c->roll != NULL && bt_group_is_called(c->roll)) st = BT_ERR_TIMEOUT;
    return st == BT_OK ? BT_OK : give_up(c, wait, st);
}

static void nccl_end(bt_carrier *super) { stop((carrier *)super); }

static uint32_t nccl_missing(const bt_carrier *super, uint32_t *ranks_out)
{
    const carrier *c = (const carrier *)super;

    return c->roll != NULL ? bt_group_missing(c->roll, ranks_out) : 0;
}

static void nccl_destroy(bt_carrier *super)
{
    carrier *c = (carrier *)super;

    stop(c);
    bt_group_destroy(c->roll);
    bt_device_free(c->dev, c->warm);
    bt_free(c);
}

static const bt_carrier_ops NCCL_OPS = {.captures = true,
                                        .exchange = nccl_exchange,
                                        .reserve  = nccl_reserve,
                                        .mark     = nccl_mark,
                                        .settle   = nccl_settle,
                                        .warm     = nccl_warm,
                                        .tend     = nccl_tend,
                                        .end      = nccl_end,
                                        .missing  = nccl_missing,
                                        .destroy  = nccl_destroy};

bt_status bt_carrier_nccl_create(const bt_nccl_module *nccl, bt_device *dev, bt_world *world,
                                 uint32_t tag_space, bt_carrier **carrier_out)
{
    bt_status st   = BT_OK;
    void     *warm = NULL;
    carrier  *c    = bt_calloc(1, sizeof(*c));

    BT_REQUIRE(c != NULL, BT_ERR_NO_MEMORY, "a carrier");
    c->super.ops = &NCCL_OPS;
    c->nccl      = nccl;
    c->dev       = dev;
    c->world     = world;
    c->tag_space = tag_space;
    BT_TRY(bt_device_alloc(dev, 2 * bt_world_size(world) * (size_t)WARM_BYTES, &warm));
    c->warm      = warm;
    *carrier_out = &c->super;
    c            = NULL;
out:
    if (c != NULL) nccl_destroy(&c->super);
    return st;
}

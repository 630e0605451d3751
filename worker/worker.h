/* worker/worker.h - one rank: its requests, its steps, and the two ends of its hand-offs.
 *
 * The rank is plain code over a table of links, so that tests run a whole cell in one thread: the
 * links are MPI, gRPC and the model in the program (worker/links.c), and a simulation in the tests.
 *
 * A step, for every rank of a group:
 *     bt_worker_control()   for each message of the coordinator
 *     bt_worker_begin()     the rows that this rank brings, or that it parks or leaves
 *     all-gather of the plans
 *     bt_worker_finish()    runs the step, samples, sends tokens and page messages; with lookahead
 *                           launches it, and does the rest for the step before
 *
 * When a rank of the cell is lost the coordinator says who is left: bt_worker_regroup().  The step
 * that ran is abandoned: what it wrote lies behind what is committed, and will be computed again
 * with the same bits.
 *
 * Threads: the step thread.  Memory: create() takes what steps need. */
#ifndef BT_WORKER_WORKER_H
#define BT_WORKER_WORKER_H

#include "model/model.h"
#include "worker/requests.h"
#include "worker/sampler.h"
#include "worker/scheduler.h"

/* What one rank tells its group before a step: everything that depends on local state. */
typedef struct {
    uint64_t       wake; /* the highest wake number that it has seen */
    uint32_t       epoch;
    uint32_t       n_rows[BT_N_ROLES];
    uint32_t       last_rows[BT_N_ROLES]; /* bt_model_last_rows(); with --mtp those that draft */
    uint32_t       n_drafts;              /* then: tokens that each of them drafts, at most */
    uint32_t       shutdown;              /* 1: this rank has been told to leave */
    bt_graph_offer graphs;
} bt_plan;

/* What the rank stands on.  No slot is NULL. */
typedef struct {
    void *ctx;
    uint64_t (*now_ns)(void *ctx);
    /* To the coordinator; takes what m owns.  PEER when the stream is lost. */
    bt_status (*up)(void *ctx, bt_up *m);
    /* The hand-off, as in parallel/handoff.h. */
    size_t payload_max, tail_max; /* bytes; SIZE_MAX where nothing is handed over */
    void *(*stage)(void *ctx);
    bt_page_payload (*slot)(void *ctx, void *slot, const bt_page_message *m);
    bt_status (*take)(void *ctx); /* pages */
    void (*unstage)(void *ctx, void *slot);
    void (*send)(void *ctx, uint32_t to, const bt_page_message *m, void *slot);
    bool (*cancel)(void *ctx, uint64_t request);
    bool (*poll)(void *ctx); /* calls back bt_worker_delivered() and the others below */
    /* Time spent waiting for other ranks in exchanges, ever. */
    uint64_t (*waited_ns)(void *ctx);
    /* bt_world_traffic(); NULL where nothing goes between ranks. */
    const bt_traffic *(*traffic)(void *ctx);
    /* bt_model_offer_graphs() for the step that is planned. */
    void (*offer_graphs)(void *ctx, const bt_step *step, bt_graph_offer *offer_out);
    /* bt_model_launch() with group_rows, spans and rows as the worker filled them, and
     * bt_model_await(); the link adds how to wait. */
    bt_status (*launch)(void *ctx, bt_step *step);
    bt_status (*await)(void *ctx);
    /* bt_model_draft(), likewise. */
    bt_status (*draft)(void *ctx, bt_step *step);
    /* bt_model_expert_rows(). */
    const uint64_t *(*expert_rows)(void *ctx);
} bt_worker_links;

/* Bytes of weights that a step reads: whatever its rows; and of one expert, in all layers.  All
 * zero: not known, so that drafts seem to cost nothing. */
typedef struct {
    double dense, expert;
} bt_step_reads;

typedef struct {
    bt_rank_facts         facts;
    bt_form_policy        form;
    bt_device            *dev; /* borrowed, as are pool, kernels and threads */
    bt_kv_pool           *pool;
    const bt_cpu_kernels *kernels;
    bt_cpu_pool          *threads; /* of what the host chooses; NULL: the caller alone */
    bt_worker_links       links;
    uint32_t              group_size; /* size 0: a spare, which has no group yet */
    uint32_t              epoch;      /* of the group */
    uint32_t              chunk, max_rows;
    bool                  lookahead; /* where the device chooses tokens; else it is none */
    bt_step_reads         reads;
    uint64_t              timeout_ns;
    uint64_t              wake_ns; /* longer than the loss of a coordinator goes unnoticed */
} bt_worker_config;

typedef struct bt_worker bt_worker;

/* cfg is copied, what it points to borrowed until destroy().  INVALID_ARG: a chunk of no rows, or
 * of more than a step has.  UNSUPPORTED: a vocabulary above BT_MAX_VOCAB, or page messages that do
 * not hold one latent row.  NO_MEMORY. */
bt_status bt_worker_create(const bt_worker_config *cfg, bt_worker **worker_out);
/* Releases what requests are left. */
void bt_worker_destroy(bt_worker *w);

/* One message of the coordinator.  Errors of a request become Failed messages; a status is returned
 * only when the rank cannot go on. */
bt_status bt_worker_control(bt_worker *w, bt_down *m);

typedef enum {
    BT_NEXT_GATHER, /* gather the plans, then call bt_worker_finish() */
    BT_NEXT_PARK,   /* nothing until a message or page arrives */
    BT_NEXT_LEAVE
} bt_next;

/* Admits prompts, picks the rows of the next step, says what to do.  When parked, call it again
 * after every wake-up.  TIMEOUT: the coordinator does not answer a wake request. */
bt_status bt_worker_begin(bt_worker *w, bt_plan *plan_out, bt_next *next_out);

/* The cell's seats from now on.  Requests whose hand-off has lost its other end go: those that this
 * rank was to decode as retracted, the others as aborted.  When the epoch of this rank's own group
 * is a new one, the rank is not parked any more, whatever it was: all its members gather plans in
 * that epoch.  Between steps only (also between begin() and finish()).  PROTOCOL when this rank had
 * a seat and has none any more. */
bt_status bt_worker_regroup(bt_worker *w, const bt_down_regroup *m);
/* PROTOCOL unless it follows from the rank's seats, in the cell's highest epoch that it has heard
 * of.  A spare prepares in that one. */
bt_status bt_seats_check(const bt_rank_facts *facts, uint32_t epoch, const bt_down_regroup *m);

/* The coordinator is lost, and so is all that it has ordered: every request goes, their pages come
 * back, and wake numbers begin anew.  What the prefix cache holds stays.  Between steps only; the
 * next one that counts is after a bt_worker_regroup(). */
bt_status bt_worker_drop_all(bt_worker *w);

/* plans[group_size], in the group's order.  *leave_out: some rank has been told to leave.  With
 * lookahead the step may be under way when it returns, and begin() of the next one may wait for it.
 * After an error of a step's links every request is as it was before the steps under way. */
bt_status bt_worker_finish(bt_worker *w, const bt_plan *plans, bool *leave_out);

/* Hand-off progress and a beat when one is due: while parked, while a group exchange waits, and at
 * layer boundaries.  True when something moved. */
bool bt_worker_background(bt_worker *w);
/* An error met in the background (the control stream, memory), once; BT_OK when none. */
bt_status bt_worker_background_status(bt_worker *w);
/* Writes what this rank has done to the log, as one line that starts with "account: "; `baton run
 * --chat` shows it. */
void bt_worker_log_account(const bt_worker *w);
/* Hand-offs of this rank's requests are under way or expected. */
bool bt_worker_expects_pages(const bt_worker *w);

/* Events of the hand-off. */
void bt_worker_delivered(bt_worker *w, uint32_t from, const bt_page_message *m,
                         const bt_page_payload *p);
void bt_worker_rejected(bt_worker *w, uint32_t from, uint64_t request, bt_status why);
void bt_worker_sent(bt_worker *w, const bt_page_message *m);

#endif

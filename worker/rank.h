/* worker/rank.h - the parts of baton-worker's process, in the order in which they come to life.
 *
 * Threads: the step thread, which is the main thread. */
#ifndef BT_WORKER_RANK_H
#define BT_WORKER_RANK_H

#include <pthread.h>
#include <stdatomic.h>

#include "proto/control_attach.h"
#include "worker/links.h"
#include "worker/memory.h"
#include "worker/options.h"

enum { BT_FIRST_EPOCH = 1 }; /* of the groups as launched */

/* Tag spaces of the world: a group has its index, its carrier's roll ROLL + index. */
enum { BT_SPACE_ROLL = 2, BT_SPACE_START = 7 };

typedef struct {
    bt_worker_options     opt;
    bt_world             *world;
    bt_rank_facts         facts;
    bt_model_config       cfg; /* not copied: its rope pointer points into it */
    bt_safetensors       *st;
    bt_device            *dev;
    const bt_cpu_kernels *kernels;     /* of what the CPU does itself */
    bt_cpu_pool          *threads;     /* dev's, where that is the CPU; else NULL */
    uint32_t              gpu;         /* dev's, where it is one */
    uint32_t              gpu_sharers; /* ranks in that one's memory, this one too, */
    uint64_t              gpu_left;    /* and what was left to them before any had loaded */
    bool                  shares_gpu;  /* with another, if in instances (MIG) of their own */
    const bt_nccl_module *nccl;        /* between ranks; NULL: MPI, through host memory */
    bt_placement          placement;
    bt_down_regroup       seating;      /* owned: who sits where by now, as it was said last */
    uint32_t              epoch;        /* the highest that it has heard of */
    uint64_t  incarnation, prefix_seed; /* of the coordinator that it follows; 0: none yet */
    bool      shrunk; /* somebody is gone, a spare perhaps: MPI_Finalize could hang */
    uint32_t  group_size, group_self;
    bt_group *group;
    bt_memory_account  memory;
    bt_control_client *client;
    bt_store          *store;       /* what this machine's ranks share, or NULL */
    bt_packed         *packed;      /* what an earlier start has packed, or NULL */
    char              *packed_path; /* owned: where that is, or is to be; NULL: nowhere */
    bool               few_rows;    /* what the model is loaded for (model.h) */
    bt_model          *model;
    bt_kv_pool        *pool;
    bt_handoff        *handoff;
    bt_links           links;
    bt_worker         *worker;
    bt_constraints    *constraints;   /* NULL: the model has no tokenizer */
    pthread_t          tokens_reader; /* makes them while the weights come, */
    bool               reads_tokens;  /* as long as it has not been joined; */
    bt_status          tokens_st;     /* and this is what came of it */
    bt_plan           *plans;
    uint64_t           progress_ns;              /* when the last Progress was sent */
    uint64_t           progress_bytes;           /* what it said */
    uint64_t           fingerprint, config_hash; /* of the model; bt_config_hash() */
    uint32_t           n_in_vain; /* exchanges in a row that have failed with nobody missing */

    bool               told_drain;   /* the coordinator knows that the cell is to drain */
    uint64_t           orphan_ns;    /* since when no coordinator drives it; 0: one does */
    bt_control_attach *search;       /* for the next one; NULL: none under way */
    uint64_t           search_ns;    /* when to begin the next search */
    char               refusal[512]; /* why the last one has not taken it */

    atomic_int *drain; /* borrowed: not 0 asks the cell to drain */
    atomic_int *tell;  /* borrowed: set once there is somebody to be told why */
} bt_rank;

/* start.c.  From a joined MPI job to a rank that has said ready.  r->opt, r->world, r->drain
 * and r->tell are set, and of r->links both times and the signal.  Every rank of the job goes
 * through the same order. */
bt_status bt_rank_start(bt_rank *r);

/* open_device.c.  r->dev, r->kernels, r->threads and r->gpu, as --device says.  UNSUPPORTED names
 * the rank and says why there is no GPU for it. */
bt_status bt_rank_open_device(bt_rank *r);
/* open_transport.c.  Collective over the job: r->gpu_sharers, r->shares_gpu and r->nccl, as
 * --transport says; rank 0 logs what came of it, and why.  UNSUPPORTED on every rank when NCCL was
 * asked for and a rank cannot: names it, and says why. */
bt_status bt_rank_open_transport(bt_rank *r);
/* A group of all ranks of the job, at the start.  Local. */
bt_status bt_rank_form_all(bt_rank *r, bt_group **group_out);
/* How ranks wait for each other that have just started. */
bt_wait bt_rank_wait_at_start(const bt_rank *r, const char *what);
/* hello.c.  What this rank is, for a coordinator; freed with bt_up_free(). */
bt_status bt_rank_make_hello(const bt_rank *r, bt_up *hello_out);
bt_status bt_rank_say_ready(bt_rank *r);
/* So much of the weights has been read; 0 of 0: all that a regroup asks for. */
void bt_rank_say_progress(bt_rank *r, uint64_t done_bytes, uint64_t total_bytes);

/* orphan.c.  While a coordinator drives this rank: nothing.  When it is lost: drops what it has
 * ordered, looks for the next one, says hello to it, until --orphan-s have passed: then PEER. Never
 * waits. */
bt_status bt_rank_tend_coordinator(bt_rank *r);
/* The coordinator has taken this rank.  PROTOCOL when it is one that has been replaced. */
bt_status bt_rank_welcome(bt_rank *r, const bt_down *m);
/* It has said how the groups go on: steps may begin. */
void bt_rank_adopted(bt_rank *r);

/* How long the coordinator may take to answer: one that stands still is lost first, by the stream's
 * own deadline, if it is. */
static inline uint64_t bt_rank_patience_ns(const bt_rank *r)
{
    return r->opt.quiet_ns + r->opt.timeout_ns;
}

/* seats.c.  The cell as it is launched: r->facts, r->seating and this rank's place in its group. */
bt_status bt_rank_find_place(bt_rank *r);
/* Group, placement and plans for the seats; also the first time.  Local. */
bt_status bt_rank_form_group(bt_rank *r, const bt_seats seats[2]);
/* Whoever has a seat hands over pages in this epoch of the cell.  Local. */
bt_status bt_rank_join_handoff(bt_rank *r, uint32_t epoch, const bt_seats seats[2]);
/* The coordinator's Regroup: the transport, the model and then the requests follow it. */
bt_status bt_rank_regroup(bt_rank *r, bt_down *m);
/* An exchange has failed with `why`.  Says for whom this rank waits, and waits for the
 * coordinator's word, which lies in the inbox then.  CANCELLED when it must leave, TIMEOUT when no
 * word comes; `why` when that has happened several times in a row and nobody was missing, and at
 * once when this rank's own device has failed (by NCCL it may have been another one). */
bt_status bt_rank_await_regroup(bt_rank *r, bt_status why);

/* leave.c.  Tells the coordinator, each one once, that somebody wants this cell to drain. */
void bt_rank_pass_on_drain(bt_rank *r);
/* Alone, at once and without MPI's consent: says Leaving, then ends the process. */
void bt_rank_leave(bt_rank *r, int code, const char *reason) __attribute__((noreturn));
/* The same after work() or start() has ended with `st`, or while weights are read: by signal, by a
 * lost coordinator, by a shutdown that the group does not answer, or by an error. */
void bt_rank_leave_early(bt_rank *r, bt_status st) __attribute__((noreturn));
/* Collective over the job: the clean end. */
void bt_rank_leave_together(bt_rank *r);

#endif

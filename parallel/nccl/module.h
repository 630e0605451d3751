/* parallel/nccl/module.h - what libbaton_nccl.so shows to the programs that open it: one
 * communicator at a time, each call back at once.
 *
 * The module holds the calls into NCCL and the CUDA runtime; deadlines, and who talks to whom when,
 * are the program's (parallel/carrier_nccl.c, parallel/handoff_line.c).  A machine without NCCL
 * goes without the module.
 *
 * NCCL works beside the caller: after start() and after each operation a communicator is busy until
 * poll() says otherwise.  Only then the operation stands in the stream, and the next call is
 * allowed.  In a captured stream this holds too.
 *
 * Threads: one, the step thread.  Memory: start() takes what a communicator needs. */
#ifndef BT_PARALLEL_NCCL_MODULE_H
#define BT_PARALLEL_NCCL_MODULE_H

#include "parallel/carrier.h"

/* Grows with every change of the table: program and module must agree. */
enum { BT_NCCL_MODULE_VERSION = 5, BT_NCCL_ID_BYTES = 128, BT_NCCL_FETCH_BYTES = 16 };
#define BT_NCCL_MODULE_SYMBOL "bt_nccl_module_table"

typedef struct bt_nccl_comm bt_nccl_comm;
typedef struct bt_nccl_lane bt_nccl_lane;

typedef struct {
    uint32_t       n, self;
    const uint8_t *id;       /* [BT_NCCL_ID_BYTES], borrowed during the call */
    const char    *name;     /* for errors and NCCL's own log: "decode group, epoch 5"; copied */
    void          *stream;   /* cudaStream_t for the operations, borrowed */
    uint32_t       n_marks;  /* >= 1 */
    uint32_t       max_ctas; /* multiprocessors that an operation may hold; 0: NCCL's choice */
    bool           along;    /* it ends with any other; one at a time */
} bt_nccl_config;

/* Statuses: PEER when NCCL blames the network or a peer, DEVICE for the rest; logged, with the
 * communicator's name. */
struct bt_nccl_module {
    uint32_t version;
    /* Whether NCCL can be used; else a sentence in text, nothing is logged.  Before the process has
     * threads: it sets NCCL's variables in the environment. */
    bool (*usable)(char *text, size_t text_bytes);
    /* A new communicator's name among all, for all its ranks.  This rank takes part in it. */
    bt_status (*new_id)(uint8_t id_out[BT_NCCL_ID_BYTES]);
    /* Collective over the communicator's ranks, and complete when poll() says so on each. */
    bt_status (*start)(const bt_nccl_config *cfg, bt_nccl_comm **comm_out);
    bt_status (*poll)(bt_nccl_comm *comm, bool *busy_out);

    /* Collective over the communicator's ranks; enqueued.  As bt_group_exchange_device(). */
    bt_status (*exchange)(bt_nccl_comm *comm, const bt_exchange *x);
    /* One message.  Sends of one rank to another are received in their order, each by a call for as
     * many bytes. */
    bt_status (*send)(bt_nccl_comm *comm, const void *from, size_t bytes, uint32_t to);
    bt_status (*recv)(bt_nccl_comm *comm, void *to, size_t bytes, uint32_t from);

    /* A stream of the lowest priority, and n_notes places to note how far a stream has come.
     * Streams are cudaStream_t. */
    bt_status (*lane_create)(uint32_t n_notes, bt_nccl_lane **lane_out);
    void (*lane_destroy)(bt_nccl_lane *lane); /* waits for its work; NULL is allowed */
    void *(*lane_stream)(const bt_nccl_lane *lane);
    /* Note i: all that `stream` has been given so far.  What `stream` is given after follow() runs
     * behind that. */
    bt_status (*note)(bt_nccl_lane *lane, uint32_t i, void *stream);
    bt_status (*follow)(bt_nccl_lane *lane, uint32_t i, void *stream);
    /* Whether all that note i stands for is done. */
    bt_status (*passed)(const bt_nccl_lane *lane, uint32_t i, bool *passed_out);

    /* BT_NCCL_FETCH_BYTES of device memory to the host, enqueued on the lane's stream; there when a
     * mark behind says so.  Into memory of the lane's, which lives as long as it: pinned memory
     * that is given back may wait until the GPU has nothing left to do, as below. */
    bt_status (*fetch)(bt_nccl_lane *lane, const void *from);
    const void *(*fetched)(const bt_nccl_lane *lane);

    /* Notes the end of all that stands in the stream now as mark i. */
    bt_status (*mark)(bt_nccl_comm *comm, uint32_t i);
    bt_status (*reached)(bt_nccl_comm *comm, uint32_t i, bool *reached_out);

    /* Stops it, whatever it is doing: operations under way come to nothing, and their kernels leave
     * the stream soon (a mark behind them tells).  Only mark(), reached() and destroy() may follow.
     *
     * NCCL then frees memory, and CUDA may let that wait until the GPU has nothing left to do: for
     * ever, if an operation of another communicator waits for a peer that is gone.  So the one that
     * goes along stops at the same time, before anything is freed, and poll() says so; and who
     * stops that one alone sees to it that no other waits for a peer.  Where peers on this machine
     * hold NCCL up, abort() comes back after 2 s, and NCCL goes on in a thread of its own. */
    void (*abort)(bt_nccl_comm *comm);
    /* NULL is allowed. */
    void (*destroy)(bt_nccl_comm *comm);
};

#endif

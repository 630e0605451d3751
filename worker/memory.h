/* worker/memory.h - the account of one rank's memory, drawn up before anything large is taken. */
#ifndef BT_WORKER_MEMORY_H
#define BT_WORKER_MEMORY_H

#include "model/config.h"
#include "model/safetensors.h"

typedef struct {
    bool     on_gpu;     /* of the GPU's memory */
    uint64_t available;  /* to this process now: the machine's, or its control group's if less */
    uint32_t local_size; /* ranks that share it */
    uint64_t weights;    /* of this rank once loaded, as bf16 */
    uint64_t shared;     /* of all local ranks together, where they share them; 0: they do not */
    uint64_t expert;     /* of one routed expert, all its layers */
    uint64_t dense; /* of what each step reads, whatever its rows: no routed expert, no embedding */
    uint64_t adopt; /* what this rank takes over when one of its group is lost, at most */
    uint64_t step;  /* activations, logits and exchange buffers of a step, estimated */
    uint64_t graphs;     /* of decode steps on a GPU, estimated */
    uint64_t staging;    /* of the hand-off, where it lies in this memory */
    uint64_t pinned;     /* beside a GPU's memory: of the host's, by the device, for what steps
                            choose, and for exchanges that go through it */
    uint64_t page_bytes; /* of one page */
    uint64_t pages;      /* all of them: n_pages * page_bytes */
    uint32_t n_pages;
    uint32_t max_rows; /* that step was reckoned for */
    bool     given;    /* by --kv-bytes */
    bool     capped;   /* where more pages would fit */
} bt_memory_account;

/* Bytes that MemAvailable of /proc/meminfo and the control group leave. */
uint64_t bt_memory_available(void);

/* Of a GPU.  DEVICE. */
bt_status bt_memory_available_on(bt_device *dev, uint64_t *available_out);

/* What a rank will load: everything but the experts that are not its own and layers that are not
 * served.  own: [n_experts], or NULL: all. */
uint64_t bt_memory_weights(const bt_model_config *cfg, const bt_safetensors *st, const bool *own);

/* Experts that one of n_ranks has more after the loss of another one, at most
 * (moe/placement.h). */
uint32_t bt_memory_adopted(uint32_t n_experts, uint32_t n_ranks);
/* So many more experts are to be read by n_at_once ranks of this machine each, together at most
 * `most` bytes, where `available` is left: NO_MEMORY says that it does not suffice, which is better
 * than to be killed for it. */
bt_status bt_memory_check_room(const bt_memory_account *account, uint32_t n_more,
                               uint32_t n_at_once, uint64_t most, uint64_t available);

/* So much of the pinned memory is still to be taken by each of this machine's ranks, where
 * `available` of the host's is left.  NO_MEMORY: it does not suffice. */
bt_status bt_memory_check_pinned(const bt_memory_account *account, uint64_t more, uint32_t n_ranks,
                                 uint64_t available);

/* Fills pages and n_pages: kv_bytes where it is not 0; else an even share of 85 % of what is
 * available, shared weights taken off first, less the other entries, on a CPU up to
 * BT_CPU_CONTEXTS full contexts, on a GPU up to 2^20.  NO_MEMORY or INVALID_ARG says how
 * much one page needs.  Where kv_bytes, or pages for one full context, leave no room for the
 * experts of a lost rank, it warns. */
bt_status bt_memory_plan_pages(const bt_model_config *cfg, uint64_t kv_bytes,
                               bt_memory_account *account);

/* One line for the log. */
void bt_memory_print(const bt_memory_account *account);

#endif

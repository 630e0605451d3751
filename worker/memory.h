/* worker/memory.h - the account of one rank's memory, drawn up before anything large is taken. */
#ifndef BT_WORKER_MEMORY_H
#define BT_WORKER_MEMORY_H

#include "model/config.h"
#include "model/safetensors.h"

typedef struct {
    uint64_t available;  /* to this process now: the machine's, or its control group's if less */
    uint32_t local_size; /* ranks that share it */
    uint64_t weights;    /* of this rank once loaded, as bf16 */
    uint64_t shared;     /* of all local ranks together, where they share them; 0: they do not */
    uint64_t step;       /* activations, logits and exchange buffers of a step, estimated */
    uint64_t staging;    /* of the hand-off */
    uint64_t page_bytes; /* of one page */
    uint64_t pages;      /* all of them: n_pages * page_bytes */
    uint32_t n_pages;
    bool     given; /* by --kv-bytes */
} bt_memory_account;

/* Bytes that MemAvailable of /proc/meminfo and the control group leave. */
uint64_t bt_memory_available(void);

/* What a rank will load: everything but the experts that are not its own, MTP layers and FP8
 * scales.  own: [n_experts], or NULL: all. */
uint64_t bt_memory_weights(const bt_model_config *cfg, const bt_safetensors *st, const bool *own);
/* A generous estimate of what a step of max_rows rows takes in a group of group_size ranks. */
uint64_t bt_memory_step(const bt_model_config *cfg, uint32_t group_size, uint32_t max_rows);

/* Fills pages and n_pages: kv_bytes where it is not 0; else an even share of 85 % of what is
 * available, shared weights taken off first, less the other entries, up to POOL_CONTEXTS full
 * contexts.  NO_MEMORY or INVALID_ARG says how much one page needs. */
bt_status bt_memory_plan_pages(const bt_model_config *cfg, uint64_t kv_bytes,
                               bt_memory_account *account);

/* One line for the log. */
void bt_memory_print(const bt_memory_account *account);

#endif

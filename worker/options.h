/* worker/options.h - the command line of one rank.
 *
 * Every rank of a job gets the same words; which role a rank has follows from its number. */
#ifndef BT_WORKER_OPTIONS_H
#define BT_WORKER_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "attention/mla.h"
#include "core/settings.h"
#include "core/status.h"

/* These two and bt_form_policy are in the order of their flags' words (core/rank_flags.c). */
typedef enum { BT_ON_ANY, BT_ON_CPU, BT_ON_GPU } bt_device_choice;
enum { BT_GPU_BY_LOCAL_RANK = -1 };

/* How a group's device memory and the hand-off's rows travel between ranks on GPUs. */
typedef enum { BT_BY_ANY, BT_BY_MPI, BT_BY_NCCL } bt_transport_choice;

typedef struct {
    const char         *model;       /* a directory; borrowed from argv, as are the other strings */
    const char         *coordinator; /* "HOST:PORT" of its control port */
    const char         *cell;        /* its name among the coordinator's cells; "" */
    const char         *left_out;    /* hosts that the cell was started without; "" */
    const char         *kernels;     /* "auto" or a family of bt_device_cpu_kernels() */
    bt_device_choice    device;      /* ON_ANY: a GPU where one can be used, else the CPU */
    int32_t             gpu;         /* its number, or BT_GPU_BY_LOCAL_RANK: ranks take turns */
    const char         *cuda_library;        /* NULL: the one that belongs to the program */
    bt_transport_choice transport;           /* ANY: NCCL where every rank can, else MPI */
    const char         *nccl_library;        /* NULL: the one that belongs to the program */
    uint32_t            n_prefill, n_decode; /* 0 and 0 with n_both */
    uint32_t            n_both;              /* ranks that have both roles; 0 with the other two */
    uint32_t            n_spares;            /* the last ranks, without a role until one is lost */
    uint64_t            kv_bytes;            /* 0: what the memory account leaves */
    const char         *weights_cache;       /* directory of files of packed weights, or NULL */
    uint32_t            chunk;               /* rows of one prompt in a step at most */
    uint32_t            max_rows;            /* rows of this rank in a step */
    uint32_t            lookahead;           /* steps planned ahead, 0 or 1 */
    uint32_t            speculate;           /* most tokens of a draft; 0: none */
    uint32_t            mtp;                 /* drafted by the model's own layer; 0: none */
    bt_form_policy      form;
    bool                share_generated;
    uint32_t            n_threads; /* 0: one per core allowed to this process */
    uint64_t            timeout_ns;
    uint64_t            quiet_ns;  /* a coordinator that answers nothing for so long is lost */
    uint64_t            orphan_ns; /* how long another one is looked for; 0: not at all */
    bool                replace;   /* a lost rank: the others go on; else the cell stops */
    bool                verbose;
} bt_worker_options;

/* Reads and checks argv.  `--help` and `--version` print and exit when `may_exit`.
 * INVALID_ARG names the option, what it may be and what was found. */
bt_status bt_worker_options_parse(int argc, char **argv, bool may_exit, bt_worker_options *opt_out);

/* For bt_settings_gather(): the options may also stand in a file and in the environment. */
extern const bt_settings_spec bt_worker_settings;

/* INVALID_ARG, with the mpirun line that would do, unless the job has as many ranks as the roles
 * need. */
bt_status bt_worker_options_check_ranks(const bt_worker_options *opt, uint32_t n_ranks);

#endif

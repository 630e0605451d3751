/* model/weights_loader.h - one walk over a model's tensors: what weights.c shares with
 * weights_tensor.c, which loads them one by one.
 *
 * In a dry walk nothing is loaded: tensors are found, checked and counted.
 * Threads: the step thread. */
#ifndef BT_MODEL_WEIGHTS_LOADER_H
#define BT_MODEL_WEIGHTS_LOADER_H

#include "model/rows.h"
#include "model/weights.h"

/* The same walk over the tensors runs up to three times: dry, to check and to count bytes; then to
 * load; and again, to wait for what other ranks packed into the store meanwhile. */
typedef struct {
    const bt_model_config    *cfg;
    const bt_safetensors     *st;
    const bt_weights_options *opt;
    bt_weights               *w;
    bool                      dry, again; /* again: only what another rank was packing */
    bool                      few_rows;   /* of the next matrices, on a device that minds */
    bool                     *used;       /* of a dry walk: for each tensor, has it been counted? */
    uint32_t                  n_busy;     /* left out, since another rank packs it */
    uint64_t                  total_bytes, done_bytes;
    char                      name[128];
} bt_loader;

/* Rows of one matrix after the other; [first, first + n) of each. */
typedef struct {
    bt_matrix part[2];
    uint32_t  first, n;
    bool      widened; /* narrow weights become bf16, on any device, and stay so */
} bt_row_source;

/* bt_linear_row_fn over a bt_row_source: its rows, and the columns of its first part. */
void bt_source_row(void *ctx, uint32_t n, bt_bf16 *row);
void bt_source_column(void *ctx, uint32_t n, bt_bf16 *row);

/* A tensor's name, valid until the next one is asked for. */
BT_PRINTF(2, 3) const char *bt_loader_name(bt_loader *l, const char *format, ...);
/* bt_matrix_find(), in 4 bits only where config.json says so; and, in the walk that loads,
 * bt_matrix_check_values(). */
bt_status bt_loader_find(const bt_loader *l, const char *name, uint32_t n, uint32_t k,
                         bt_matrix *matrix_out);
/* The tensor is done with: counts its bytes, tells of the progress, gives its pages back. */
void bt_loader_count(bt_loader *l, const bt_matrix *m);
enum { BT_ENTRY_NAME = 256 };
/* Under which name a matrix is shared.  What ranks pack in bf16 and in 12 bits are two. */
void bt_loader_entry_name(const char *name, bt_weight_kind kind, char out[BT_ENTRY_NAME]);
/* What was packed earlier, or a part of the store; FULL where there is none, or it has no room: the
 * rank then has its own. */
bt_store_claim bt_loader_take_shared(bt_loader *l, const char *name, size_t bytes,
                                     bt_store_entry *entry);
/* The matrix `what`[n, k] of the tensor that was named last; nothing where it is there already. */
bt_status bt_loader_pack(bt_loader *l, const char *what, uint32_t n, uint32_t k,
                         bt_linear_row_fn rows, bt_row_source *source, bt_linear **linear_out);
bt_status bt_loader_matrix(bt_loader *l, uint32_t n, uint32_t k, const char *name,
                           bt_linear **linear_out);
/* gate_proj over up_proj of the MLP under `prefix`, and its down_proj. */
bt_status bt_loader_mlp(bt_loader *l, uint32_t dim, const char *prefix, bt_linear **gate_up_out,
                        bt_linear **down_out);
/* A norm's weight, rounded to bf16. */
bt_status bt_loader_vector(bt_loader *l, uint32_t n, const char *name, bt_bf16 **vector_out);

#endif

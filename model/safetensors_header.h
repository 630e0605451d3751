/* model/safetensors_header.h - what the files share that read and write safetensors.  Only for
 * safetensors*.c. */
#ifndef BT_MODEL_SAFETENSORS_HEADER_H
#define BT_MODEL_SAFETENSORS_HEADER_H

#include <stdbool.h>

#include "model/safetensors.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The format's own limit on the JSON's length. */
enum { BT_ST_MAX_HEADER_BYTES = 100000000, BT_ST_LENGTH_BYTES = 8 };

/* Elements of a shape; false when the product does not fit. */
bool bt_st_count_elems(uint32_t n_dims, const uint64_t *shape, uint64_t *n_out);

/* ---- safetensors_experts.c */

/* Tensors of single experts that one of all experts of a layer stands for; 0: it is none.
 * UNSUPPORTED: they are otherwise in it. */
bt_status bt_st_count_stacked(const bt_tensor *t, size_t *n_out);
/* The i-th of them, whose name is owned then.  NO_MEMORY. */
bt_status bt_st_unstack(const bt_tensor *all, size_t i, bt_tensor *t_out);

/* ---- safetensors_mistral.c */

/* What transformers calls a tensor of Mistral's own format, owned by the caller; NULL: nothing. */
bt_status bt_st_name_of_mistral(const char *name, char **name_out);

#ifdef __cplusplus
}
#endif
#endif

/* model/safetensors_header.h - what reader and writer share.  Only for safetensors*.c. */
#ifndef BT_MODEL_SAFETENSORS_HEADER_H
#define BT_MODEL_SAFETENSORS_HEADER_H

#include <stdbool.h>

#include "model/safetensors.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The format's own limit on the JSON's length. */
enum { BT_ST_MAX_HEADER_BYTES = 100000000, BT_ST_LENGTH_BYTES = 8 };

/* The size of an element; 0 below a byte. */
size_t bt_st_dtype_bytes(bt_st_dtype dtype);

/* Elements of a shape; false when the product does not fit. */
bool bt_st_count_elems(uint32_t n_dims, const uint64_t *shape, uint64_t *n_out);

#ifdef __cplusplus
}
#endif
#endif

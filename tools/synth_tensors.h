/* tools/synth_tensors.h - the tensors of a shape under the names of Hugging Face, and the numbers
 * of a model that is made up.
 *
 * A number depends on the seed, its tensor's name (of a copy the original's) and its place alone:
 * not on other tensors, the order of writing, the machine or the number of threads.  Integer
 * hashing and correctly rounded operations only, so files are equal to the bit everywhere. */
#ifndef BT_TOOLS_SYNTH_TENSORS_H
#define BT_TOOLS_SYNTH_TENSORS_H

#include "model/safetensors.h"
#include "tools/synth_shape.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    char        name[96];
    bt_st_dtype dtype; /* bf16, e4m3; fp32 for a gate's correction bias and e4m3's scales; of 4 bits
                          I32 for eight weights each, I64 for the sizes, which are mean and
                          deviation then */
    uint32_t    n_dims;
    uint64_t    shape[2];
    float       mean, deviation;
    const char *copy_of; /* the tensor whose numbers it has, or NULL: none */
} bt_synth_tensor;

typedef struct {
    size_t           n, capacity;
    bt_synth_tensor *tensors; /* owned: bt_free */
    uint64_t         n_params;
} bt_synth_list;

/* All of them, by the size of their elements, the largest first, else in the order of the layers.
 * NO_MEMORY leaves the list empty. */
bt_status bt_synth_list_make(const bt_synth_shape *shape, bt_synth_list *list);

/* Of all its elements. */
uint64_t bt_synth_bytes(const bt_synth_tensor *t);

/* Elements first .. first+n of the tensor, into `out` in its dtype. */
void bt_synth_fill(const bt_synth_tensor *t, uint64_t seed, uint64_t first, size_t n, void *out);

#ifdef __cplusplus
}
#endif
#endif

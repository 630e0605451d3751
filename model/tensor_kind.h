/* model/tensor_kind.h - what a checkpoint's tensor is, by its dtype and its name.
 *
 * A matrix of e4m3 has its scales beside it, under its own name and what follows here; one of 4
 * bits is there as words, scales and sizes, and not under its own name. */
#ifndef BT_MODEL_TENSOR_KIND_H
#define BT_MODEL_TENSOR_KIND_H

#include "device/device.h"
#include "model/safetensors.h"

#define BT_NAME_SCALE_FP8 "_scale_inv"
#define BT_NAME_SCALE_IN \
    "activation_scale" /* of what an e4m3 matrix is multiplied with: not used */
/* of compressed-tensors, the scale for e4m3 too */
#define BT_NAME_PACKED       "_packed"
#define BT_NAME_SCALE_PACKED "_scale"
#define BT_NAME_SHAPE        "_shape"

bool bt_tensor_name_ends(const char *name, const char *end);
/* Of a name like "model.layers.12.mlp.gate.weight" the index behind `head` ("model.layers."), in
 * digits as Baton writes it and below 10^9; returns what follows its point, in `name`.  NULL: there
 * is none. */
const char *bt_tensor_name_index(const char *name, const char *head, uint32_t *index_out);
/* What its weights are; fp32 counts as bf16. */
bt_weight_kind bt_tensor_kind(const bt_tensor *t);
/* How many: eight in a word of 4 bits each. */
uint64_t bt_tensor_n_weights(const bt_tensor *t);
/* Whether it has none: the scales or sizes of another. */
bool bt_tensor_is_beside_weights(const bt_tensor *t);

#endif

#include "model/tensor_kind.h"

#include <stdlib.h>
#include <string.h>

bool bt_tensor_name_ends(const char *name, const char *end)
{
    size_t n = strlen(name), m = strlen(end);

    return n >= m && strcmp(name + n - m, end) == 0;
}

const char *bt_tensor_name_index(const char *name, const char *head, uint32_t *index_out)
{
    size_t n = strlen(head), n_digits;

    if (strncmp(name, head, n) != 0) return NULL;
    name += n;
    n_digits = strspn(name, "0123456789");
    if (n_digits == 0 || n_digits > 9 || name[n_digits] != '.') return NULL;
    if (name[0] == '0' && n_digits > 1) return NULL;
    *index_out = (uint32_t)strtoul(name, NULL, 10);
    return name + n_digits + 1;
}

bt_weight_kind bt_tensor_kind(const bt_tensor *t)
{
    if (t->dtype == BT_ST_F8_E4M3) return BT_WEIGHT_FP8;
    return t->dtype == BT_ST_I32 && bt_tensor_name_ends(t->name, ".weight" BT_NAME_PACKED)
               ? BT_WEIGHT_INT4
               : BT_WEIGHT_BF16;
}

uint64_t bt_tensor_n_weights(const bt_tensor *t)
{
    uint64_t n = bt_tensor_kind(t) == BT_WEIGHT_INT4 ? BT_INT4_IN_WORD : 1;

    for (uint32_t d = 0; d < t->n_dims; d++)
        n *= t->shape[d];
    return n;
}

bool bt_tensor_is_beside_weights(const bt_tensor *t)
{
    return bt_tensor_name_ends(t->name, BT_NAME_SCALE_FP8) ||
           bt_tensor_name_ends(t->name, BT_NAME_SCALE_IN) ||
           bt_tensor_name_ends(t->name, ".weight" BT_NAME_SCALE_PACKED) ||
           bt_tensor_name_ends(t->name, ".weight" BT_NAME_SHAPE);
}

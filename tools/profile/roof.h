/* tools/profile/roof.h - what a machine can do at most: this one, measured, or a named GPU. */
#ifndef BT_TOOLS_PROFILE_ROOF_H
#define BT_TOOLS_PROFILE_ROOF_H

#include <stdbool.h>

#include "attention/variants/account.h"
#include "device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    char   name[96];
    bool   measured;
    double bytes_per_s; /* reading memory */
    double flop_per_s;
    double memory_bytes; /* that a process could take now, or the GPU's own */
} bt_roof;

/* Vendor figures: memory bandwidth, dense bf16.  NULL when there is none of that name. */
const bt_roof *bt_roof_gpu(const char *name);
const char    *bt_roof_gpu_names(void);

/* Measures what this machine reaches with the device's threads and kernels (its family's name:
 * "amx", ...) and raises *roof to it: the largest of a few short samples is kept, and a roof may be
 * measured several times in a run. */
bt_status bt_roof_measure(bt_device *dev, const char *kernels, bt_roof *roof);

/* Seconds below which no implementation of the variant's step can get:
 *     max(weights read, their products) + max(cache read, products with it) */
double bt_roof_step_s(const bt_roof *roof, const bt_variant_account *a, double batch,
                      double n_keys);
/* A part of the step: bytes or FLOP, whichever takes longer. */
static inline double bt_roof_s(const bt_roof *roof, double bytes, double flops)
{
    double read = bytes / roof->bytes_per_s, multiply = flops / roof->flop_per_s;

    return read > multiply ? read : multiply;
}

#ifdef __cplusplus
}
#endif
#endif

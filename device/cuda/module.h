/* device/cuda/module.h - what libbaton_cuda.so shows to the programs that open it.
 *
 * The module holds the kernels and the CUDA runtime, and takes the log and memory of the program
 * that opens it.  Programs know nothing of CUDA: without the module, or a driver, they run the CPU
 * back end. */
#ifndef BT_DEVICE_CUDA_MODULE_H
#define BT_DEVICE_CUDA_MODULE_H

#include "device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Grows with every change of this table, of bt_device, bt_device_ops, bt_sampling_ops, bt_attn_ops
 * or bt_moe_ops: program and module must agree. */
enum { BT_CUDA_MODULE_VERSION = 17 };
#define BT_CUDA_MODULE_SYMBOL "bt_cuda_module"
#define BT_CUDA_EXPORT        __attribute__((visibility("default"))) /* shown to programs */

typedef struct {
    uint32_t version;
    /* Whether GPU `device` can be used; else a sentence in text, nothing is logged. */
    bool (*usable)(uint32_t device, char *text, size_t text_bytes);
    /* How many GPUs there are; else 0 and a sentence in text. */
    uint32_t (*count)(char *text, size_t text_bytes);
    /* As bt_device_cuda_create(). */
    bt_status (*create)(uint32_t device, bt_device **dev_out);
} bt_cuda_module_table;

#ifdef __cplusplus
}
#endif
#endif

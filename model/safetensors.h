/* model/safetensors.h - the tensors of a checkpoint, memory-mapped and checked before use.
 *
 * A file is 8 bytes little-endian N, N bytes of JSON {name: {dtype, shape, data_offsets}}, then
 * data; offsets count from the end of the JSON.  A set is one file, or the shards that
 * model.safetensors.index.json names; or in Mistral's own format the same called consolidated.
 * Opening checks every header completely (sizes, overlaps, dtypes, shapes against byte counts), so
 * that a tensor that can be found can be read. */
#ifndef BT_MODEL_SAFETENSORS_H
#define BT_MODEL_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { BT_MAX_TENSOR_DIMS = 8, BT_TENSOR_SLICES = 16 };

typedef enum {
    BT_ST_BF16,
    BT_ST_F32,
    BT_ST_F16,
    BT_ST_F8_E4M3,
    BT_ST_I32,
    BT_ST_I64,
    /* read, but no model here has weights of them */
    BT_ST_F64,
    BT_ST_C64,
    BT_ST_U64,
    BT_ST_U32,
    BT_ST_U16,
    BT_ST_I16,
    BT_ST_U8,
    BT_ST_I8,
    BT_ST_BOOL,
    BT_ST_F8_E5M2,
    BT_ST_F8_E8M0,
    BT_ST_F6_E2M3,
    BT_ST_F6_E3M2,
    BT_ST_F4,
    BT_ST_N_DTYPES
} bt_st_dtype;

typedef struct {
    const char *name; /* borrowed from the set */
    bt_st_dtype dtype;
    uint32_t    n_dims;
    uint64_t    shape[BT_MAX_TENSOR_DIMS];
    const void *data; /* borrowed: the mapping, unaligned */
    size_t      bytes;
    const char *file; /* where it is, borrowed from the set */
} bt_tensor;

/* "BF16": the name in a header; NULL for what is none. */
const char *bt_st_dtype_name(bt_st_dtype dtype);
/* The size of an element; 0 below a byte. */
size_t bt_st_dtype_bytes(bt_st_dtype dtype);

typedef struct bt_safetensors bt_safetensors;

/* Opens a file, or the set in a model directory.  Names of tensors lose "language_model.", which
 * those of a multimodal checkpoint's language model begin with, or have behind "model.", and have
 * layers where they have blocks; those of Mistral's own format are called as transformers does.
 * What a file has of all experts of a layer as one tensor is found as the tensors of each:
 *     experts.gate_up_proj [E, 2 d, k]  ->  experts.<e>.gate_proj.weight and .up_proj.weight [d, k]
 *     experts.down_proj    [E, n, d]    ->  experts.<e>.down_proj.weight [n, d]
 * and so their scales in e4m3, ..proj_scale_inv [E], [E, 1] or [E, 1, 1], of 1 element each.
 * IO, FORMAT, or for other tensors of all experts UNSUPPORTED, naming file, tensor, expected and
 * found; NO_MEMORY. */
bt_status bt_safetensors_open(const char *path, bt_safetensors **st_out);
void      bt_safetensors_close(bt_safetensors *st);
size_t    bt_safetensors_count(const bt_safetensors *st);
/* Tensors sorted by name: i = 0 .. count-1. */
const bt_tensor *bt_safetensors_at(const bt_safetensors *st, size_t i);
/* NULL when there is none (not logged). */
const bt_tensor *bt_safetensors_find(const bt_safetensors *st, const char *name);
/* File i of the set as it was when it was mapped: its size, and when it was last changed in seconds
 * and ns.  False past the last one. */
bool bt_safetensors_file(const bt_safetensors *st, size_t i, uint64_t facts_out[3]);
/* Slice i < BT_TENSOR_SLICES of a tensor's bytes, for who takes samples in place of all of it:
 * these are evenly spread, first and last bytes included; of a small tensor the first slice is all.
 */
const void *bt_tensor_slice(const bt_tensor *t, size_t i, size_t *bytes_out);
/* The tensor's pages leave this process's memory; reading them again brings them back. */
void bt_safetensors_release(const bt_tensor *t);
/* Whether few bytes here and there are read from now on, or, as after opening, tensors in full: the
 * kernel reads ahead for those only. */
void bt_safetensors_expect_samples(const bt_safetensors *st, bool samples);

/* What was opened, for messages. */
const char *bt_safetensors_path(const bt_safetensors *st);

/* The header alone, from memory.  `file_bytes` is the size of the whole file, `json` the n bytes
 * after the length.  Calls `each` once per tensor, borrowed for the call, whose data is NULL: it
 * begins `offset` bytes behind the header. */
typedef bt_status (*bt_st_header_fn)(void *ctx, const bt_tensor *t, uint64_t offset);
bt_status bt_safetensors_parse_header(const char *where, const char *json, size_t n,
                                      uint64_t file_bytes, bt_st_header_fn each, void *ctx);

/* Writes one file, those of the widest elements first; the tensors' data is host memory.
 * INVALID_ARG names a tensor whose bytes are not those of its shape, that has elements below a
 * byte, or whose name is there twice; IO, NO_MEMORY.  A reader finds all of it or, after an error
 * too, what was there before, unless path is a pipe, a device or a link. */
bt_status bt_safetensors_write(const char *path, size_t n, const bt_tensor *tensors);

#ifdef __cplusplus
}
#endif
#endif

/* model/gguf.h - keys and tensors of a GGUF checkpoint, memory-mapped and checked before use.
 *
 * A file is a header (magic, version, counts), keys with typed values, a table of tensors, and
 * their data.  Little-endian; versions 2 and 3, which differ in nothing that is read here.  A set
 * is one file, or the splits NAME-0000N-of-0000M.gguf, of which the first is opened.  Opening
 * checks every header completely, so that a key or tensor that can be found can be read.
 *
 * Dimensions are in the order of the file: ne[0] is the fastest, so that a matrix of Hugging
 * Face's shape [out, in] is {in, out}.
 *
 * Threads: any, once it is open. */
#ifndef BT_MODEL_GGUF_H
#define BT_MODEL_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/bf16.h"
#include "core/status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { BT_GGUF_MAX_DIMS = 4, BT_GGUF_NAME_BYTES = 128, BT_GGUF_MAX_BLOCK = 256 };

typedef struct {
    char           name[BT_GGUF_NAME_BYTES];
    uint32_t       type;                 /* as the file numbers them */
    uint64_t       ne[BT_GGUF_MAX_DIMS]; /* 1 beyond the tensor's own; none is 0 */
    const uint8_t *data;                 /* borrowed: the mapping, unaligned */
    size_t         bytes;
} bt_gguf_tensor;

/* A text of the file: not terminated, without a zero. */
typedef struct {
    const char *text; /* borrowed: the mapping */
    size_t      n;
} bt_gguf_text;

typedef struct bt_gguf bt_gguf;

/* IO, FORMAT or UNSUPPORTED, naming file, key or tensor, expected and found. */
bt_status   bt_gguf_open(const char *path, bt_gguf **gguf_out);
void        bt_gguf_close(bt_gguf *gguf);
const char *bt_gguf_path(const bt_gguf *gguf); /* what was opened; for messages */

/* Tensors sorted by name: i = 0 .. count-1. */
size_t                bt_gguf_count(const bt_gguf *gguf);
const bt_gguf_tensor *bt_gguf_at(const bt_gguf *gguf, size_t i);
/* NULL when there is none (not logged). */
const bt_gguf_tensor *bt_gguf_find(const bt_gguf *gguf, const char *name);

/* Keys, of the first file of a set.  A value that is there must be of the kind and within the
 * bounds; where there is none *v_out stays as it is. FORMAT names the key. */
bool      bt_gguf_has(const bt_gguf *gguf, const char *key);
bt_status bt_gguf_u32(const bt_gguf *gguf, const char *key, uint32_t lo, uint32_t hi,
                      uint32_t *v_out);
/* An fp32 value becomes the shortest decimal number that stands for it: 1e-6, not 9.99999997e-7. */
bt_status bt_gguf_f64(const bt_gguf *gguf, const char *key, double lo, double hi, double *v_out);
bt_status bt_gguf_bool(const bt_gguf *gguf, const char *key, bool *v_out);
bt_status bt_gguf_string(const bt_gguf *gguf, const char *key, bt_gguf_text *v_out);
/* Lists have to be there.  *texts_out is owned by the caller (bt_free), what it points to is
 * not.  NO_MEMORY too. */
bt_status bt_gguf_strings(const bt_gguf *gguf, const char *key, bt_gguf_text **texts_out,
                          size_t *n_out);
/* A list of i32 or u32, at most n_max of them. */
bt_status bt_gguf_numbers(const bt_gguf *gguf, const char *key, size_t n_max, uint32_t *v_out,
                          size_t *n_out);

/* ---- types of tensors */

/* "Q4_K"; for messages, of types that are not read here too. */
const char *bt_gguf_type_name(uint32_t type);
/* "F32, F16, ...": those that are. */
const char *bt_gguf_type_names(void);
/* Weights of a block, and the bytes they take; false for a type that is not read here. */
bool bt_gguf_block(uint32_t type, uint32_t *n_weights_out, uint32_t *n_bytes_out);

/* Elements first .. first+n in the file's order; both are multiples of the type's block.  The type
 * is one that is read here. */
void bt_gguf_read_f32(const bt_gguf_tensor *t, uint64_t first, size_t n, float *out);
/* Rounded to nearest even; what is bf16 in the file keeps every bit. */
void bt_gguf_read_bf16(const bt_gguf_tensor *t, uint64_t first, size_t n, bt_bf16 *out);

#ifdef __cplusplus
}
#endif
#endif

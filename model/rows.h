/* model/rows.h - rows of a checkpoint's matrix as bf16, whatever it is stored as.
 *
 * Internal to model/.  Threads: reading is safe from several. */
#ifndef BT_MODEL_ROWS_H
#define BT_MODEL_ROWS_H

#include "core/bf16.h"
#include "model/tensor_kind.h"

typedef struct {
    bt_weight_kind   kind;  /* fp32 counts as bf16 */
    const bt_tensor *t;     /* [n, k] bf16, fp32 or e4m3; or of 4 bits [n, k / 8] words */
    const bt_tensor *scale; /* of e4m3: [ceil(n / 128), ceil(k / 128)], or one of the whole, fp32 or
                               bf16; of 4 bits: [n, k / 32] bf16; else NULL */
    bool             one_scale; /* of e4m3: of the whole */
    const bt_tensor *shape;     /* of 4 bits: n and k as I32 or I64; else NULL */
    uint32_t         n, k;
} bt_matrix;

/* Finds [n, k] under `name`, for e4m3 with its scales, or the one that it has, under
 * <name>_scale_inv or, as compressed-tensors writes them, <name>_scale; or in 4 bits under
 * <name>_packed, _scale and _shape, as the latter does.  FORMAT names what is missing or differs,
 * with expected and found; UNSUPPORTED: in 4 bits otherwise than here. */
bt_status bt_matrix_find(const bt_safetensors *st, const char *name, uint32_t n, uint32_t k,
                         bt_matrix *matrix_out);
/* The same for a vector [n] of bf16 or fp32; k is 1. */
bt_status bt_vector_find(const bt_safetensors *st, const char *name, uint32_t n,
                         bt_matrix *vector_out);

/* FORMAT, named: a scale of it is negative or not finite, of 4 bits subnormal or not finite, or the
 * sizes in its shape differ.  Other matrices have none. */
bt_status bt_matrix_check_values(const bt_matrix *m);

/* out[0..k) = row n. */
void bt_matrix_row(const bt_matrix *m, uint32_t n, bt_bf16 *out);
/* Of an e4m3 matrix: row n as it is, with the scales of its 128 columns each. */
void bt_matrix_fp8_row(const bt_matrix *m, uint32_t n, uint8_t *out, float *scale_out);
/* Of one of 4 bits: row n as it is, with the scales of its 32 columns each. */
void bt_matrix_int4_row(const bt_matrix *m, uint32_t n, uint32_t *out, bt_bf16 *scale_out);
/* out[0..rows) = column k of rows [first, first + rows). */
void bt_matrix_column(const bt_matrix *m, uint32_t k, uint32_t first, uint32_t rows, bt_bf16 *out);
/* A vector's element, or a matrix's in row-major order without its scale. */
float bt_matrix_element(const bt_matrix *m, size_t i);

#endif

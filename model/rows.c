#include "model/rows.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/e4m3.h"
#include "device/device.h"

enum { NAME_BYTES = 256, SHAPE_BYTES = 128 };

static const char *shape_text(const bt_tensor *t, char text[SHAPE_BYTES])
{
    size_t at = 0;

    text[0] = '\0';
    for (uint32_t d = 0; d < t->n_dims && at < SHAPE_BYTES; d++)
        at += (size_t)snprintf(text + at, SHAPE_BYTES - at, "%s%llu", d == 0 ? "" : ", ",
                               (unsigned long long)t->shape[d]);
    return text;
}

static bt_status check(const bt_tensor *t, uint32_t n_dims, uint64_t n, uint64_t k)
{
    bt_status st = BT_OK;
    char      found[SHAPE_BYTES];

    if (n_dims == 1)
        BT_REQUIRE(t->n_dims == 1 && t->shape[0] == n, BT_ERR_FORMAT,
                   "%s: tensor %s: expected shape [%llu], found [%s]", t->file, t->name,
                   (unsigned long long)n, shape_text(t, found));
    else
        BT_REQUIRE(t->n_dims == 2 && t->shape[0] == n && t->shape[1] == k, BT_ERR_FORMAT,
                   "%s: tensor %s: expected shape [%llu, %llu], found [%s]", t->file, t->name,
                   (unsigned long long)n, (unsigned long long)k, shape_text(t, found));
out:
    return st;
}

static bt_status find_scale(const bt_safetensors *st_set, const char *name, bt_matrix *m)
{
    uint32_t rows = (m->n + BT_FP8_BLOCK - 1) / BT_FP8_BLOCK,
             cols = (m->k + BT_FP8_BLOCK - 1) / BT_FP8_BLOCK;
    bt_status st  = BT_OK;
    char      scale_name[NAME_BYTES], other_name[NAME_BYTES];

    m->kind = BT_WEIGHT_FP8;
    snprintf(scale_name, sizeof(scale_name), "%s" BT_NAME_SCALE_FP8, name);
    m->scale = bt_safetensors_find(st_set, scale_name);
    snprintf(other_name, sizeof(other_name), "%s" BT_NAME_SCALE_PACKED, name);
    if (m->scale == NULL) m->scale = bt_safetensors_find(st_set, other_name);
    BT_REQUIRE(m->scale != NULL, BT_ERR_FORMAT,
               "%s: expected tensor %s or %s F32 [%u, %u], the scales of %s, which is F8_E4M3; "
               "found none",
               m->t->file, scale_name, other_name, rows, cols, name);
    m->one_scale = bt_tensor_n_weights(m->scale) == 1 && m->scale->n_dims < 2;
    BT_REQUIRE(m->scale->dtype == BT_ST_F32 || m->scale->dtype == BT_ST_BF16, BT_ERR_FORMAT,
               "%s: tensor %s: expected dtype F32 or BF16, found %s", m->scale->file,
               m->scale->name, bt_st_dtype_name(m->scale->dtype));
    if (!m->one_scale) BT_TRY(check(m->scale, 2, rows, cols));
out:
    return st;
}

/* What belongs to a matrix of 4 bits, by the end of its name. */
static bt_status find_beside(const bt_safetensors *st_set, const char *name, const char *end,
                             const bt_matrix *m, const bt_tensor **tensor_out)
{
    bt_status st = BT_OK;
    char      full[NAME_BYTES];

    snprintf(full, sizeof(full), "%s%s", name, end);
    *tensor_out = bt_safetensors_find(st_set, full);
    BT_REQUIRE(*tensor_out != NULL, BT_ERR_FORMAT,
               "%s: expected tensor %s, which belongs to %s [%u, %u], found none", m->t->file, full,
               m->t->name, m->n, m->k);
out:
    return st;
}

static bt_status check_dtype(const bt_tensor *t, bt_st_dtype dtype)
{
    bt_status st = BT_OK;

    BT_REQUIRE(t->dtype == dtype, BT_ERR_FORMAT, "%s: tensor %s: expected dtype %s, found %s",
               t->file, t->name, bt_st_dtype_name(dtype), bt_st_dtype_name(t->dtype));
out:
    return st;
}

/* m->t is <name>_packed; there may not be a tensor called `name` beside it. */
static bt_status find_int4(const bt_safetensors *st_set, const char *name, bt_matrix *m)
{
    static const char *const FOREIGN[] = {"_zero_point", "_g_idx"};
    bt_status                st        = BT_OK;
    const bt_tensor         *wide      = bt_safetensors_find(st_set, name);

    m->kind = BT_WEIGHT_INT4;
    BT_REQUIRE(wide == NULL, BT_ERR_FORMAT,
               "%s: tensor %s: expected none beside %s, which is the same in 4 bits, found one",
               wide->file, name, m->t->name);
    BT_REQUIRE(
        m->k % BT_INT4_GROUP == 0, BT_ERR_UNSUPPORTED,
        "%s: tensor %s: expected [%u, %u] in bf16 or e4m3, since its columns are no multiple "
        "of %d, found it in 4 bits",
        m->t->file, m->t->name, m->n, m->k, BT_INT4_GROUP);
    BT_TRY(check_dtype(m->t, BT_ST_I32));
    BT_TRY(check(m->t, 2, m->n, m->k / BT_INT4_IN_WORD));
    BT_TRY(find_beside(st_set, name, BT_NAME_SCALE_PACKED, m, &m->scale));
    BT_TRY(check_dtype(m->scale, BT_ST_BF16));
    BT_TRY(check(m->scale, 2, m->n, m->k / BT_INT4_GROUP));
    BT_TRY(find_beside(st_set, name, BT_NAME_SHAPE, m, &m->shape));
    if (m->shape->dtype != BT_ST_I32) BT_TRY(check_dtype(m->shape, BT_ST_I64));
    BT_TRY(check(m->shape, 1, 2, 1));
    for (size_t i = 0; i < sizeof(FOREIGN) / sizeof(FOREIGN[0]); i++) {
        const bt_tensor *t;
        char             full[NAME_BYTES];

        snprintf(full, sizeof(full), "%s%s", name, FOREIGN[i]);
        t = bt_safetensors_find(st_set, full);
        BT_REQUIRE(t == NULL, BT_ERR_UNSUPPORTED,
                   "%s: tensor %s: expected none, since weights of 4 bits are symmetric and in "
                   "order, found one",
                   t->file, full);
    }
out:
    return st;
}

bt_status bt_matrix_find(const bt_safetensors *st_set, const char *name, uint32_t n, uint32_t k,
                         bt_matrix *matrix_out)
{
    bt_matrix m  = {.t = bt_safetensors_find(st_set, name), .n = n, .k = k};
    bt_status st = BT_OK;
    char      packed_name[NAME_BYTES];

    snprintf(packed_name, sizeof(packed_name), "%s" BT_NAME_PACKED, name);
    if (bt_safetensors_find(st_set, packed_name) != NULL) {
        m.t = bt_safetensors_find(st_set, packed_name);
        BT_TRY(find_int4(st_set, name, &m));
        *matrix_out = m;
        goto out;
    }
    BT_REQUIRE(m.t != NULL, BT_ERR_FORMAT, "%s: expected tensor %s of shape [%u, %u], found none",
               bt_safetensors_path(st_set), name, n, k);
    BT_REQUIRE(m.t->dtype == BT_ST_BF16 || m.t->dtype == BT_ST_F32 || m.t->dtype == BT_ST_F8_E4M3,
               BT_ERR_FORMAT, "%s: tensor %s: expected dtype BF16, F32 or F8_E4M3, found %s",
               m.t->file, name, bt_st_dtype_name(m.t->dtype));
    BT_TRY(check(m.t, 2, n, k));
    if (m.t->dtype == BT_ST_F8_E4M3) BT_TRY(find_scale(st_set, name, &m));
    *matrix_out = m;
out:
    return st;
}

bt_status bt_vector_find(const bt_safetensors *st_set, const char *name, uint32_t n,
                         bt_matrix *vector_out)
{
    bt_matrix v  = {.t = bt_safetensors_find(st_set, name), .n = n, .k = 1};
    bt_status st = BT_OK;

    BT_REQUIRE(v.t != NULL, BT_ERR_FORMAT, "%s: expected tensor %s of shape [%u], found none",
               bt_safetensors_path(st_set), name, n);
    BT_REQUIRE(v.t->dtype == BT_ST_BF16 || v.t->dtype == BT_ST_F32, BT_ERR_FORMAT,
               "%s: tensor %s: expected dtype BF16 or F32, found %s", v.t->file, name,
               bt_st_dtype_name(v.t->dtype));
    BT_TRY(check(v.t, 1, n, 1));
    *vector_out = v;
out:
    return st;
}

static float read_f32(const void *data, size_t i)
{
    float f;

    memcpy(&f, (const char *)data + i * sizeof(f), sizeof(f)); /* the mapping is not aligned */
    return f;
}

static bt_bf16 read_bf16(const void *data, size_t i)
{
    bt_bf16 half;

    memcpy(&half, (const char *)data + i * sizeof(half), sizeof(half));
    return half;
}

static float fp8_scale(const bt_matrix *m, size_t i)
{
    return m->scale->dtype == BT_ST_BF16 ? bt_bf16_to_f32(read_bf16(m->scale->data, i))
                                         : read_f32(m->scale->data, i);
}

static float scale_at(const bt_matrix *m, uint32_t row, uint32_t col)
{
    size_t per_row = (m->k + BT_FP8_BLOCK - 1) / BT_FP8_BLOCK;

    if (m->kind == BT_WEIGHT_INT4)
        return bt_bf16_to_f32(
            read_bf16(m->scale->data, (size_t)row * (m->k / BT_INT4_GROUP) + col / BT_INT4_GROUP));
    if (m->one_scale) return fp8_scale(m, 0);
    return fp8_scale(m, row / BT_FP8_BLOCK * per_row + col / BT_FP8_BLOCK);
}

/* The sizes that the packed words stand for. */
static bt_status check_stored_shape(const bt_matrix *m)
{
    bt_status        st       = BT_OK;
    const bt_tensor *t        = m->shape;
    int64_t          found[2] = {0, 0};

    if (t->dtype == BT_ST_I64) {
        memcpy(found, t->data, sizeof(found));
    } else {
        int32_t v[2];

        memcpy(v, t->data, sizeof(v));
        found[0] = v[0];
        found[1] = v[1];
    }
    BT_REQUIRE(found[0] == m->n && found[1] == m->k, BT_ERR_FORMAT,
               "%s: tensor %s: expected the values %u and %u, found %lld and %lld", t->file,
               t->name, m->n, m->k, (long long)found[0], (long long)found[1]);
out:
    return st;
}

static bt_status check_int4_scales(const bt_matrix *m)
{
    bt_status st      = BT_OK;
    size_t    per_row = m->k / BT_INT4_GROUP, n = m->n * per_row, i = 0;

    while (i < n && bt_int4_scale_is_valid(read_bf16(m->scale->data, i)))
        i++;
    BT_REQUIRE(i == n, BT_ERR_FORMAT,
               "%s: tensor %s: expected finite scales that are not subnormal, found bits 0x%04x at "
               "[%zu, %zu]",
               m->scale->file, m->scale->name, read_bf16(m->scale->data, i), i / per_row,
               i % per_row);
out:
    return st;
}

bt_status bt_matrix_check_values(const bt_matrix *m)
{
    bt_status st      = BT_OK;
    size_t    n       = m->scale == NULL ? 0 : bt_tensor_n_weights(m->scale);
    size_t    per_row = (m->k + BT_FP8_BLOCK - 1) / BT_FP8_BLOCK;

    if (m->kind == BT_WEIGHT_INT4) {
        BT_TRY(check_stored_shape(m));
        BT_TRY(check_int4_scales(m));
        goto out;
    }
    for (size_t i = 0; i < n; i++) {
        float scale = fp8_scale(m, i);

        BT_REQUIRE(isfinite(scale) && !signbit(scale), BT_ERR_FORMAT,
                   "%s: tensor %s: expected finite scales of 0 or more, found %g at [%zu, %zu]",
                   m->scale->file, m->scale->name, (double)scale, i / per_row, i % per_row);
    }
out:
    return st;
}

static void fp8_row(const bt_matrix *m, uint32_t n, bt_bf16 *out)
{
    const uint8_t *data = (const uint8_t *)m->t->data + (size_t)n * m->k;

    for (uint32_t k0 = 0; k0 < m->k; k0 += BT_FP8_BLOCK) {
        float    scale = scale_at(m, n, k0);
        uint32_t end   = m->k - k0 < BT_FP8_BLOCK ? m->k : k0 + BT_FP8_BLOCK;

        for (uint32_t k = k0; k < end; k++)
            out[k] = bt_bf16_from_f32(bt_e4m3_to_f32(data[k]) * scale);
    }
}

void bt_matrix_fp8_row(const bt_matrix *m, uint32_t n, uint8_t *out, float *scale_out)
{
    memcpy(out, (const uint8_t *)m->t->data + (size_t)n * m->k, m->k);
    for (uint32_t k0 = 0; k0 < m->k; k0 += BT_FP8_BLOCK)
        scale_out[k0 / BT_FP8_BLOCK] = scale_at(m, n, k0);
}

void bt_matrix_int4_row(const bt_matrix *m, uint32_t n, uint32_t *out, bt_bf16 *scale_out)
{
    size_t words  = m->k / BT_INT4_IN_WORD * sizeof(*out);
    size_t scales = m->k / BT_INT4_GROUP * sizeof(*scale_out);

    memcpy(out, (const char *)m->t->data + n * words, words);
    memcpy(scale_out, (const char *)m->scale->data + n * scales, scales);
}

static void int4_row(const bt_matrix *m, uint32_t n, bt_bf16 *out)
{
    for (uint32_t k = 0; k < m->k; k++)
        out[k] = bt_bf16_from_f32(bt_matrix_element(m, (size_t)n * m->k + k) * scale_at(m, n, k));
}

void bt_matrix_row(const bt_matrix *m, uint32_t n, bt_bf16 *out)
{
    if (m->kind == BT_WEIGHT_INT4) {
        int4_row(m, n, out);
    } else if (m->t->dtype == BT_ST_BF16) {
        memcpy(out, (const char *)m->t->data + (size_t)n * m->k * sizeof(*out),
               m->k * sizeof(*out));
    } else if (m->t->dtype == BT_ST_F8_E4M3) {
        fp8_row(m, n, out);
    } else {
        for (uint32_t k = 0; k < m->k; k++)
            out[k] = bt_bf16_from_f32(read_f32(m->t->data, (size_t)n * m->k + k));
    }
}

void bt_matrix_column(const bt_matrix *m, uint32_t k, uint32_t first, uint32_t rows, bt_bf16 *out)
{
    for (uint32_t r = first; r < first + rows; r++) {
        float v = bt_matrix_element(m, (size_t)r * m->k + k);

        if (m->scale != NULL) v *= scale_at(m, r, k);
        *out++ = bt_bf16_from_f32(v); /* a bf16 value comes back as it was */
    }
}

float bt_matrix_element(const bt_matrix *m, size_t i)
{
    switch (m->t->dtype) {
    case BT_ST_BF16: return bt_bf16_to_f32(read_bf16(m->t->data, i));
    case BT_ST_I32: /* words of which the lowest bits come first, in files as here */
        return (float)((((const uint8_t *)m->t->data)[i / 2] >> i % 2 * 4 & 15) - 8);
    case BT_ST_F8_E4M3: return bt_e4m3_to_f32(((const uint8_t *)m->t->data)[i]);
    default: return read_f32(m->t->data, i);
    }
}

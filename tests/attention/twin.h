/* tests/attention/twin.h - the softmax of attention in scalar code: one lane, the keys that it sees
 * and nothing else, in the order of operations that attention/mla.h and device/cpu/kernels.h name.
 * The thread must have DAZ and FTZ set. */
#ifndef BT_TESTS_ATTENTION_TWIN_H
#define BT_TESTS_ATTENTION_TWIN_H

#include <math.h>
#include <string.h>

#include "attention/mla.h"
#include "core/bf16.h"
#include "device/cpu/kernels.h"
#include "device/cpu/math.h"

enum { TWIN_MAX_DIM = 128, TWIN_MAX_BLOCK = 256 };

typedef struct {
    float max, sum, o[TWIN_MAX_DIM];
} twin_state;

static bt_cpu_arithmetic g_twin_arithmetic; /* of the kernels under test */

static inline float twin_dp2(const bt_bf16 *x, const bt_bf16 *y, uint32_t n, float acc)
{
    for (uint32_t i = 0; i < n; i += 2) {
        if (i + 1 < n) acc = fmaf(bt_bf16_to_f32(x[i + 1]), bt_bf16_to_f32(y[i + 1]), acc);
        acc = fmaf(bt_bf16_to_f32(x[i]), bt_bf16_to_f32(y[i]), acc);
    }
    return acc;
}

static inline float twin_tile32(const bt_bf16 *x, const bt_bf16 *y, uint32_t n, float acc)
{
    for (uint32_t i = 0; i < n; i += 32) {
        float sum[2] = {0, 0}; /* of even and of odd elements */

        for (uint32_t j = i; j < n && j < i + 32; j++)
            sum[j % 2] = fmaf(bt_bf16_to_f32(x[j]), bt_bf16_to_f32(y[j]), sum[j % 2]);
        acc = acc + (sum[0] + sum[1]);
    }
    return acc;
}

/* acc + x . y */
static inline float twin_dot(const bt_bf16 *x, const bt_bf16 *y, uint32_t n, float acc)
{
    return g_twin_arithmetic == BT_CPU_TILE32 ? twin_tile32(x, y, n, acc) : twin_dp2(x, y, n, acc);
}

static inline float twin_sum(const float lanes[16])
{
    float a[16];

    memcpy(a, lanes, sizeof(a));
    for (int width = 8; width >= 1; width /= 2)
        for (int i = 0; i < width; i++)
            a[i] = a[i] + a[i + width];
    return a[0];
}

static inline void twin_block(const float *scores, const bt_bf16 *values, size_t ld, uint32_t n,
                              float scale, uint32_t v_dim, twin_state *s)
{
    float   before = s->max, sums[16] = {0}, shrink;
    bt_bf16 p[TWIN_MAX_BLOCK], column[TWIN_MAX_BLOCK];

    for (uint32_t j = 0; j < n; j++)
        if (scores[j] * scale > s->max) s->max = scores[j] * scale;
    for (uint32_t j = 0; j < n; j++) {
        float e = bt_expf(scores[j] * scale - s->max);

        sums[j % 16] += e;
        p[j] = bt_bf16_from_f32(e);
    }
    shrink = bt_expf(before - s->max);
    s->sum = s->sum * shrink + twin_sum(sums);
    for (uint32_t i = 0; i < v_dim; i++) {
        for (uint32_t j = 0; j < n; j++)
            column[j] = values[j * ld + i];
        s->o[i] = twin_dot(p, column, n, s->o[i] * shrink);
    }
}

/* The keys of a lane, of which it sees n, in blocks of so many and parts of so many. */
typedef struct {
    const float   *scores; /* not yet scaled */
    const bt_bf16 *values; /* [n][ld] */
    size_t         ld;
    uint32_t       n, block, part;
    float          scale;
    uint32_t       v_dim;
} twin_keys;

static inline void twin_merge(const twin_keys *k, const twin_state *s, twin_state *all)
{
    float max = s->max > all->max ? s->max : all->max;
    float a = bt_expf(all->max - max), b = bt_expf(s->max - max);

    all->max = max;
    all->sum = all->sum * a + s->sum * b;
    for (uint32_t i = 0; i < k->v_dim; i++)
        all->o[i] = all->o[i] * a + s->o[i] * b;
}

/* From `start` on `size` keys, or what there is: two halves, down to a part. */
static inline twin_state twin_node(const twin_keys *k, uint32_t start, uint32_t size)
{
    twin_state s = {-INFINITY, 0, {0}}, right;

    if (size > k->part) {
        s = twin_node(k, start, size / 2);
        if (start + size / 2 >= k->n) return s;
        right = twin_node(k, start + size / 2, size / 2);
        twin_merge(k, &right, &s);
        return s;
    }
    for (uint32_t b = start; b < k->n && b < start + size; b += k->block) {
        uint32_t end = k->n < start + size ? k->n : start + size;

        twin_block(k->scores + b, k->values + b * k->ld, k->ld,
                   end - b < k->block ? end - b : k->block, k->scale, k->v_dim, &s);
    }
    return s;
}

/* out[v_dim] */
static inline void twin_attend(const twin_keys *k, bt_bf16 *out)
{
    twin_state all = twin_node(k, 0, BT_ATTN_SPLIT_TOKENS), s;

    for (uint32_t start = BT_ATTN_SPLIT_TOKENS; start < k->n; start += BT_ATTN_SPLIT_TOKENS) {
        s = twin_node(k, start, BT_ATTN_SPLIT_TOKENS);
        twin_merge(k, &s, &all);
    }
    for (uint32_t i = 0; i < k->v_dim; i++)
        out[i] = bt_bf16_from_f32(0.0f + all.o[i] * (1.0f / all.sum));
}

#endif

/* device/cpu/mm_scalar.c - dp2 for any processor, also without fused instructions.
 *
 * A product of two bf16 has 16 significant bits, so in double it is exact, and adding the float
 * accumulator (24 bits) in double and rounding to float gives what a fused multiply-add gives: the
 * sum can only come near the middle between two floats when its bits span fewer than double's 53.
 */
#include <math.h>
#include <string.h>

#include "device/cpu/families.h"

enum { LANES = 16, STEP = 32 /* k */ };

static float fma_bf16(float x, float b, float acc)
{
#ifdef FP_FAST_FMAF
    return fmaf(x, b, acc);
#else
    return (float)((double)x * (double)b + (double)acc);
#endif
}

/* n_k of B's k; x has k of them or more, then come +0. */
static void block_dp2(const bt_bf16 *x, uint32_t k, uint32_t n_k, const bt_bf16 *packed, float *acc)
{
    for (uint32_t p = 0; p < n_k / 2; p++, packed += 2 * LANES) {
        float even = 2 * p < k ? bt_bf16_to_f32(x[2 * p]) : 0;
        float odd  = 2 * p + 1 < k ? bt_bf16_to_f32(x[2 * p + 1]) : 0;

        for (int j = 0; j < LANES; j++) {
            acc[j] = fma_bf16(odd, bt_bf16_to_f32(packed[2 * j + 1]), acc[j]);
            acc[j] = fma_bf16(even, bt_bf16_to_f32(packed[2 * j]), acc[j]);
        }
    }
}

/* A block of narrow weights, some k after the other. */
static void narrow_block_dp2(const bt_cpu_mm *mm, const bt_bf16 *x, uint32_t block, float *acc)
{
    uint32_t             k    = mm->k;
    size_t               at   = bt_cpu_weight_bytes(mm->kind, block * bt_cpu_block_elems(mm));
    bt_cpu_narrow        from = {.kind   = mm->kind,
                                 .packed = (const char *)mm->packed + at,
                                 .side   = bt_cpu_side_at(mm->side, mm->kind, k, block)};
    bt_cpu_wide_table    table;
    _Alignas(64) bt_bf16 wide[STEP * LANES];
    bt_cpu_widen_fn      widen = bt_cpu_widen_best();

    bt_cpu_wide_begin(&table);
    for (uint32_t k0 = 0; k0 < k; k0 += STEP) {
        widen(&from, k0, STEP, 1, &table, wide, 0);
        block_dp2(x + k0, k - k0, STEP, wide, acc);
    }
}

void bt_cpu_mm_dp2_scalar(const bt_cpu_mm *mm)
{
    size_t block = bt_cpu_block_elems(mm);

    for (uint32_t r = 0; r < mm->m; r++) {
        for (uint32_t n = 0; n < mm->n; n += LANES) {
            uint32_t       cols       = mm->n - n < LANES ? mm->n - n : LANES;
            const bt_bf16 *x          = mm->x + r * mm->ld_x;
            float         *y          = mm->y + r * mm->ld_y + n;
            float          acc[LANES] = {0};

            if (mm->add) memcpy(acc, y, cols * sizeof(*y));
            if (mm->kind != BT_WEIGHT_BF16)
                narrow_block_dp2(mm, x, n / LANES, acc);
            else
                block_dp2(x, mm->k, bt_cpu_pad(mm->k, 32),
                          (const bt_bf16 *)mm->packed + n / LANES * block, acc);
            memcpy(y, acc, cols * sizeof(*y));
        }
    }
}

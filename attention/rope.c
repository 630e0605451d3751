#include "attention/rope.h"

#include <math.h>

#include "core/log.h"
#include "core/minmax.h"
#include "device/cpu/math.h"

/* Each run of positions turns the angle of its first by those of the first run: a product takes a
 * fraction of what a sine does. */
static void fill_pair(uint32_t first, uint32_t end, double inv_freq, double magnitude,
                      size_t stride, float *column)
{
    double sin_of[BT_ROPE_RUN], cos_of[BT_ROPE_RUN];

    for (uint32_t p = 0; p < BT_ROPE_RUN; p++)
        bt_sincos(p * inv_freq, &sin_of[p], &cos_of[p]);
    for (; first < end; first += BT_ROPE_RUN) {
        uint32_t n = bt_min_u32(end - first, BT_ROPE_RUN);
        double   s, c;

        bt_sincos(first * inv_freq, &s, &c);
        for (uint32_t p = 0; p < n; p++, column += stride) {
            column[0] = (float)((c * cos_of[p] - s * sin_of[p]) * magnitude);
            column[1] = (float)((s * cos_of[p] + c * sin_of[p]) * magnitude);
        }
    }
}

bt_status bt_rope_check(uint32_t n_positions, uint32_t n_pairs, const double *inv_freq,
                        double magnitude)
{
    bt_status st = BT_OK;

    BT_REQUIRE(isfinite(magnitude), BT_ERR_INVALID_ARG, "rope magnitude %g is not finite",
               magnitude);
    for (uint32_t i = 0; i < n_pairs; i++)
        BT_REQUIRE(
            inv_freq[i] >= 0 && inv_freq[i] * n_positions <= BT_ROPE_MAX_ANGLE, BT_ERR_INVALID_ARG,
            "rope frequency %u is %.17g: expected 0 or more, and at most %g over %u positions", i,
            inv_freq[i], BT_ROPE_MAX_ANGLE, n_positions);
out:
    return st;
}

void bt_rope_fill(uint32_t first, uint32_t end, uint32_t n_pairs, const double *inv_freq,
                  double magnitude, float *table)
{
    size_t stride = 2 * (size_t)n_pairs;

    BT_ASSERT(first % BT_ROPE_RUN == 0);
    for (uint32_t i = 0; i < n_pairs; i++)
        fill_pair(first, end, inv_freq[i], magnitude, stride, table + first * stride + 2 * i);
}

void bt_query_factors_fill(uint32_t first, uint32_t end, double beta, uint32_t context,
                           float *factor)
{
    for (uint32_t p = first; p < end; p++)
        factor[p] = p != 0 && p % context != 0 ? factor[p - 1]
                                               : (float)(1 + beta * bt_log(1.0 + p / context));
}

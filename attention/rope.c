#include "attention/rope.h"

#include <math.h>

#include "device/cpu/math.h"

bt_status bt_rope_fill(uint32_t n_positions, uint32_t n_pairs, const double *inv_freq,
                       double magnitude, float *table)
{
    bt_status st = BT_OK;

    BT_REQUIRE(isfinite(magnitude), BT_ERR_INVALID_ARG, "rope magnitude %g is not finite",
               magnitude);
    for (uint32_t i = 0; i < n_pairs; i++)
        BT_REQUIRE(
            inv_freq[i] >= 0 && inv_freq[i] * n_positions <= BT_ROPE_MAX_ANGLE, BT_ERR_INVALID_ARG,
            "rope frequency %u is %.17g: expected 0 or more, and at most %g over %u positions", i,
            inv_freq[i], BT_ROPE_MAX_ANGLE, n_positions);
    for (uint32_t p = 0; p < n_positions; p++) {
        float *row = table + (size_t)p * n_pairs * 2;

        for (uint32_t i = 0; i < n_pairs; i++) {
            double s, c;

            bt_sincos(p * inv_freq[i], &s, &c);
            row[2 * i]     = (float)(c * magnitude);
            row[2 * i + 1] = (float)(s * magnitude);
        }
    }
out:
    return st;
}

void bt_query_factors_fill(uint32_t n_positions, double beta, uint32_t context, float *factor)
{
    for (uint32_t p = 0; p < n_positions; p++)
        factor[p] = p != 0 && p % context != 0 ? factor[p - 1]
                                               : (float)(1 + beta * bt_log(1.0 + p / context));
}

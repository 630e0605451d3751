#include "attention/rope.h"

#include <math.h>

#include "core/minmax.h"
#include "device/cpu/math.h"

/* Each run of positions turns the angle of its first by those of the first run: a product takes a
 * fraction of what a sine does. */
static void fill_pair(uint32_t n_positions, double inv_freq, double magnitude, size_t stride,
                      float *column)
{
    enum { RUN = 256 };
    double sin_of[RUN], cos_of[RUN];

    for (uint32_t p = 0; p < RUN; p++)
        bt_sincos(p * inv_freq, &sin_of[p], &cos_of[p]);
    for (uint32_t first = 0; first < n_positions; first += RUN) {
        uint32_t n = bt_min_u32(n_positions - first, RUN);
        double   s, c;

        bt_sincos(first * inv_freq, &s, &c);
        for (uint32_t p = 0; p < n; p++, column += stride) {
            column[0] = (float)((c * cos_of[p] - s * sin_of[p]) * magnitude);
            column[1] = (float)((s * cos_of[p] + c * sin_of[p]) * magnitude);
        }
    }
}

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
    for (uint32_t i = 0; i < n_pairs; i++)
        fill_pair(n_positions, inv_freq[i], magnitude, 2 * (size_t)n_pairs, table + 2 * i);
out:
    return st;
}

void bt_query_factors_fill(uint32_t n_positions, double beta, uint32_t context, float *factor)
{
    for (uint32_t p = 0; p < n_positions; p++)
        factor[p] = p != 0 && p % context != 0 ? factor[p - 1]
                                               : (float)(1 + beta * bt_log(1.0 + p / context));
}

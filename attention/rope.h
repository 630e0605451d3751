/* attention/rope.h - the table of rotary position embeddings, the same bits on every machine.
 *
 * Pairs are interleaved as in the checkpoint: elements 2i and 2i+1 turn by position * inv_freq[i].
 * Angles, sines and cosines are double, from our own series (libm's code depends on the CPU), and
 * round to float once.
 *
 * Threads: any.  Memory: never allocates. */
#ifndef BT_ATTENTION_ROPE_H
#define BT_ATTENTION_ROPE_H

#include <stdint.h>

#include "core/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Largest angle that bt_sincos() takes. */
#define BT_ROPE_MAX_ANGLE 0x1p20

/* What a table's parts begin at multiples of. */
enum { BT_ROPE_RUN = 256 };

/* What bt_rope_fill() expects.  INVALID_ARG: a frequency is negative, not finite, or turns by more
 * than BT_ROPE_MAX_ANGLE over n_positions; a magnitude that is not finite. */
bt_status bt_rope_check(uint32_t n_positions, uint32_t n_pairs, const double *inv_freq,
                        double magnitude);

/* table[position][i] = {cos, sin} of position * inv_freq[i], times magnitude, for positions
 * first .. end-1 and i < n_pairs; first is a multiple of BT_ROPE_RUN.  In parts and at once the
 * bits are the same. */
void bt_rope_fill(uint32_t first, uint32_t end, uint32_t n_pairs, const double *inv_freq,
                  double magnitude, float *table);

/* factor[position] = 1 + beta ln(1 + floor(position / context)), for positions first .. end-1, of
 * which those before are there; context is above 0. */
void bt_query_factors_fill(uint32_t first, uint32_t end, double beta, uint32_t context,
                           float *factor);

#ifdef __cplusplus
}
#endif
#endif

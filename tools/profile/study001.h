/* tools/profile/study001.h - study 001: one attention layer of DeepSeek-V2, one new token a
 * request, PyTorch on two GPUs.  Compressing the new token was not in its time.
 * Source: github.com/madsys-dev/deepseekv2-profile, workspace/blog (text and data). */
#ifndef BT_TOOLS_PROFILE_STUDY001_H
#define BT_TOOLS_PROFILE_STUDY001_H

#include <stdbool.h>
#include <stdint.h>

#include "attention/variants/variants.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    uint32_t n_keys;
    float    us[BT_VARIANT_AM_CC_ME + 1]; /* 0: not run, or out of memory */
} bt_study001_row;

typedef struct {
    const char            *gpu;
    uint32_t               batch, n_rows;
    const bt_study001_row *rows;
} bt_study001_series;

enum { BT_N_STUDY001 = 4 };
extern const bt_study001_series BT_STUDY001[BT_N_STUDY001];

/* It has the shape that was measured. */
bool bt_study001_fits(const bt_mla_config *m);
/* Microseconds, or 0. */
double bt_study001_us(const char *gpu, uint32_t batch, uint32_t n_keys, bt_variant_kind kind);

#ifdef __cplusplus
}
#endif
#endif

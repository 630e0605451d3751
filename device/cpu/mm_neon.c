/* device/cpu/mm_neon.c - dp2 with NEON: a bf16 is a float after a shift or a mask. */
#include <arm_neon.h>

#include "core/bf16.h"

typedef float       x_elem;
typedef float32x4_t weights;
typedef float32x4_t vec;
#define STAGE(v) bt_bf16_to_f32(v)
/* As many lines under way, whatever the tile. */
#define AHEAD(rows, blocks) (128 / (blocks))
#define FETCH_TO            SECOND_LEVEL
enum {
    VEC          = 4,
    HALVES       = 2,
    MAKES_PANELS = 1,
    MAX_ROWS     = 5,
    MAX_VECS     = 16,
    STAGE_ELEMS  = 4096,
    FEW_ROWS     = 10,
    GROUP        = 256,
    PANEL_K      = 192,
    PANEL_ROWS   = 5,
    PANEL_BLOCKS = 1
};
/* clang-format off */
#define TILE_CASES                                                  \
    TILE_CASE(1, 4) TILE_CASE(1, 3) TILE_CASE(1, 2) TILE_CASE(1, 1) \
    TILE_CASE(2, 2) TILE_CASE(2, 1) TILE_CASE(3, 1) TILE_CASE(4, 1) \
    TILE_CASE(5, 1)
#define PANEL_CASES PANEL_CASE(3, 1) PANEL_CASE(4, 1) PANEL_CASE(5, 1)
/* clang-format on */
#include "device/cpu/mm_dp2.inc.h"

INLINE uint32_t tile_blocks(uint32_t rows) { return rows == 1 ? 4 : rows == 2 ? 2 : 1; }
INLINE vec      zeros(void) { return vdupq_n_f32(0); }
INLINE vec      load_y(const float *y) { return vld1q_f32(y); }
INLINE void     store_y(float *y, vec v) { vst1q_f32(y, v); }

INLINE weights half_of(const bt_bf16 *b, int half)
{
    uint32x4_t pairs = vreinterpretq_u32_u16(vld1q_u16(b));

    return vreinterpretq_f32_u32(half == 0 ? vshlq_n_u32(pairs, 16)
                                           : vandq_u32(pairs, vdupq_n_u32(0xffff0000u)));
}

/* As an intrinsic, gcc 12 copies and spills. */
INLINE vec multiply(const float *x, weights w, vec acc)
{
    __asm__("fmla %0.4s, %1.4s, %2.s[0]" : "+w"(acc) : "w"(w), "w"(*x));
    return acc;
}

void bt_cpu_mm_dp2_neon(const bt_cpu_mm *mm) { run_dp2(mm); }

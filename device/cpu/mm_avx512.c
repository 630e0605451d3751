/* device/cpu/mm_avx512.c - dp2 with AVX-512 F: a bf16 is a float after a shift or a mask.  On Intel
 * CPUs two of these fused multiply-adds are faster than one vdpbf16ps. */
#include <immintrin.h>

#include "core/bf16.h"

typedef float  x_elem;
typedef __m512 weights;
#define STAGE(v)            bt_bf16_to_f32(v)
#define AHEAD(rows, blocks) 32
#define FETCH_TO            FIRST_LEVEL
enum { HALVES = 2, MAKES_PANELS = 1, STAGE_ELEMS = 4096, FEW_ROWS = 24 };
enum { GROUP = 256, PANEL_K = 128, PANEL_ROWS = 6, PANEL_BLOCKS = 4 };
#define PANEL_CASES BY_4(PANEL_CASE, 4) BY_4(PANEL_CASE, 5) BY_4(PANEL_CASE, 6)
#include "device/cpu/mm_avx512.inc.h"

INLINE weights half_of(const bt_bf16 *b, int half)
{
    __m512i pairs = _mm512_load_si512(b);

    return _mm512_castsi512_ps(half == 0
                                   ? _mm512_slli_epi32(pairs, 16)
                                   : _mm512_and_si512(pairs, _mm512_set1_epi32((int)0xffff0000u)));
}

/* As an intrinsic, gcc 12 overwrites w or x with some sums, copies and spills. */
INLINE vec multiply(const float *x, weights w, vec acc)
{
    __asm__("vfmadd231ps %2, %1, %0" : "+v"(acc) : "v"(w), "v"(_mm512_set1_ps(*x)));
    return acc;
}

void bt_cpu_mm_dp2_avx512(const bt_cpu_mm *mm) { run_dp2(mm); }

/* device/cpu/mm_avx512bf16.c - dp2 as vdpbf16ps, which is where its order of additions is from. */
#include <immintrin.h>

#include "core/bf16.h"

typedef bt_bf16 x_elem;
typedef __m512i weights;
#define STAGE(v) (v)
enum { HALVES = 1, PANEL_ELEMS = 32, PANEL_K = 192, AHEAD = 64, FETCH_TO = _MM_HINT_T1 };
#include "device/cpu/mm_avx512.inc.h"

INLINE weights half_of(const bt_bf16 *b, int half)
{
    (void)half;
    return _mm512_load_si512(b);
}
INLINE weights load_panel(const bt_bf16 *at) { return _mm512_load_si512(at); }
INLINE void    store_panel(bt_bf16 *at, weights w) { _mm512_store_si512(at, w); }

INLINE vec multiply(const bt_bf16 *x, weights w, vec acc)
{
    int pair;

    memcpy(&pair, x, sizeof(pair));
    return _mm512_dpbf16_ps(acc, (__m512bh)_mm512_set1_epi32(pair), (__m512bh)w);
}

void bt_cpu_mm_dp2_avx512bf16(const bt_cpu_mm *mm) { run_dp2(mm); }

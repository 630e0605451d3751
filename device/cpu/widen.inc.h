/* device/cpu/widen.inc.h - widen.h for the instruction set that a file is compiled for, which names
 * the function WIDEN, or takes no more than widen_groups() and table_of() for e4m3, and for 12 bits
 * widen_codes() and put_rare().
 *
 * Of 12 bits the upper bytes are looked up, 64 by one shuffle, and come beside the lower ones
 * without another: words of upper bytes and of lower ones are shifted against each other.
 *
 * With VBMI one instruction looks up 64 bytes.  With AVX2, AVX-512 or NEON a row of 16 entries is
 * enough: from one exponent to the next the rounded weights differ in nothing else, unless they
 * leave bf16's range; then, and without any, each weight is looked up by itself.  In most registers
 * of AVX2 and AVX-512 no exponent is 0 and no weight NaN: these take a row for two exponents, whose
 * upper bits are added to a weight's upper byte.
 *
 * Those of 4 bits are multiplied, 16 words at a time with AVX-512; else by loops that compilers
 * make vectors of. */
#include <string.h>

#include "device/cpu/families.h"
#include "device/cpu/widen.h"

enum { GROUP = 64 };
#if defined(WIDEN_NEON) || (defined(__AVX2__) && !defined(__AVX512VBMI__))
#define USES_ROWS true
#else
#define USES_ROWS false
#endif

/* clang-format off */
#define EIGHT(unit) 8 * (unit), 9 * (unit), 10 * (unit), 11 * (unit), \
                    12 * (unit), 13 * (unit), 14 * (unit), 15 * (unit)
static const float MAGNITUDES[128] = {
    0, 0x1p-9f, 0x2p-9f, 0x3p-9f, 0x4p-9f, 0x5p-9f, 0x6p-9f, 0x7p-9f,
    EIGHT(0x1p-9f), EIGHT(0x1p-8f), EIGHT(0x1p-7f), EIGHT(0x1p-6f), EIGHT(0x1p-5f),
    EIGHT(0x1p-4f), EIGHT(0x1p-3f), EIGHT(0x1p-2f), EIGHT(0x1p-1f), EIGHT(0x1p0f),
    EIGHT(0x1p1f), EIGHT(0x1p2f), EIGHT(0x1p3f), EIGHT(0x1p4f),
    8 * 0x1p5f, 9 * 0x1p5f, 10 * 0x1p5f, 11 * 0x1p5f, 12 * 0x1p5f, 13 * 0x1p5f, 14 * 0x1p5f,
    __builtin_nanf("")};
/* clang-format on */

/* Whether the row is enough, which then is there. */
static inline bool fill_row(const uint16_t *wide, bt_cpu_wide_table *t)
{
    uint16_t differs = 0;

    for (int i = 0; i < 8; i++) {
        uint16_t normal = (uint16_t)(wide[8 + i] - 0x80);

        t->row_low[i]      = (uint8_t)normal;
        t->row_high[i]     = (uint8_t)(normal >> 8);
        t->row_low[8 + i]  = (uint8_t)wide[i];
        t->row_high[8 + i] = (uint8_t)(wide[i] >> 8);
    }
    for (int i = 0; i < 16; i++) {
        uint16_t w = (uint16_t)(wide[16 + i] - 0x100);

        t->two_low[i]  = (uint8_t)w;
        t->two_high[i] = (uint8_t)(w >> 8);
    }
    for (int i = 16; i < 127; i++) /* of the next exponent, else the same */
        differs |= (uint16_t)(wide[i] ^ (uint16_t)(wide[i - 8] + 0x80));
    return differs == 0;
}

static void fill_table(float scale, bt_cpu_wide_table *t)
{
    _Alignas(64) uint16_t wide[128];

    for (int i = 0; i < 128; i++) {
        float    f = MAGNITUDES[i] * scale;
        uint32_t bits;

        memcpy(&bits, &f, sizeof(bits)); /* bt_bf16_from_f32(): the only NaN here has no payload */
        wide[i] = (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
    }
    for (int i = 0; i < 128; i++)
        t->low[i] = (uint8_t)wide[i];
    for (int i = 0; i < 128; i++)
        t->high[i] = (uint8_t)(wide[i] >> 8);
    t->regular = USES_ROWS && fill_row(wide, t);
    t->scale   = scale;
}

/* One after the other: n_groups of 64 weights. */
static inline void widen_singly(const uint8_t *src, uint32_t n_groups, const bt_cpu_wide_table *t,
                                bt_bf16 *out)
{
    for (uint32_t g = 0; g < n_groups; g++, src += GROUP, out += GROUP) {
        for (int i = 0; i < GROUP; i++) {
            uint8_t  v = src[i];
            unsigned w = t->low[v & 0x7f] | (unsigned)t->high[v & 0x7f] << 8;

            /* kernels.h: the order of packed bytes */
            out[i / 8 % 2 * 32 + i / 16 * 8 + i % 8] = (bt_bf16)(w ^ (v & 0x80u) << 8);
        }
    }
}

#if defined(__AVX512VBMI__)

static inline void widen_groups(const uint8_t *src, uint32_t n_groups, const bt_cpu_wide_table *t,
                                bt_bf16 *out)
{
    const __m512i low0 = _mm512_load_si512(t->low), low1 = _mm512_load_si512(t->low + 64);
    const __m512i high0 = _mm512_load_si512(t->high), high1 = _mm512_load_si512(t->high + 64);
    const __m512i sign = _mm512_set1_epi8((char)0x80);

    for (uint32_t g = 0; g < n_groups; g++, src += GROUP, out += GROUP) {
        __m512i v    = _mm512_load_si512(src);
        __m512i low  = _mm512_permutex2var_epi8(low0, v, low1);
        __m512i high = _mm512_permutex2var_epi8(high0, v, high1);

        high = _mm512_ternarylogic_epi32(high, v, sign, 0x78); /* high ^ (v & sign) */
        _mm512_store_si512(out, _mm512_unpacklo_epi8(low, high));
        _mm512_store_si512(out + GROUP / 2, _mm512_unpackhi_epi8(low, high));
    }
}

#elif defined(__AVX2__)

/* Registers of 512 bits where there are shuffles of their bytes, else of 256. */
#if defined(__AVX512BW__)
typedef __m512i wide_reg;
#define OP(name)          _mm512_##name
#define LOGIC(name)       _mm512_##name##_si512
#define EQUAL_BYTES(a, b) _mm512_movm_epi8(_mm512_cmpeq_epi8_mask(a, b))
#define ANY_BIT(a)        (_mm512_test_epi8_mask(a, a) != 0)
#define ROW(entries) \
    _mm512_broadcast_i32x4(_mm_load_si128((const __m128i *)(const void *)(entries)))
#else
typedef __m256i wide_reg;
#define OP(name)          _mm256_##name
#define LOGIC(name)       _mm256_##name##_si256
#define EQUAL_BYTES(a, b) _mm256_cmpeq_epi8(a, b)
#define ANY_BIT(a)        (!_mm256_testz_si256(a, a))
#define ROW(entries) \
    _mm256_broadcastsi128_si256(_mm_load_si128((const __m128i *)(const void *)(entries)))
#endif

/* Whether some exponent is 0, or some weight NaN: twice such a byte, and 2, is 16 at most. */
static inline bool has_rare(wide_reg v)
{
    wide_reg twice = OP(add_epi8)(OP(add_epi8)(v, v), OP(set1_epi8)(2));

    return ANY_BIT(OP(subs_epu8)(OP(set1_epi8)(17), twice));
}

/* Words of entries, v and nan become weights: with v's exponent and sign, or NaN. */
static inline void store_wide(wide_reg entry, wide_reg v, wide_reg nan, bt_bf16 *out)
{
    wide_reg exponent = OP(slli_epi16)(LOGIC(and)(v, OP(set1_epi16)(0x78)), 4);
    wide_reg sign     = OP(slli_epi16)(LOGIC(and)(v, OP(set1_epi16)(0x80)), 8);
    wide_reg w        = LOGIC(xor)(OP(add_epi16)(entry, exponent), sign);

    w = LOGIC(or)(w, LOGIC(and)(nan, OP(set1_epi16)(0x7fc0)));
    memcpy(out, &w, sizeof(w));
}

static inline void widen_groups(const uint8_t *src, uint32_t n_groups, const bt_cpu_wide_table *t,
                                bt_bf16 *out)
{
    enum { PARTS = GROUP / sizeof(wide_reg) };
    const wide_reg row_low = ROW(t->row_low), row_high = ROW(t->row_high);
    const wide_reg two_low = ROW(t->two_low), two_high = ROW(t->two_high);
    const wide_reg zero = LOGIC(xor)(row_low, row_low), all = OP(set1_epi8)(0x7f);

    if (!t->regular) {
        widen_singly(src, n_groups, t, out);
        return;
    }
    for (uint32_t i = 0; i < n_groups * PARTS; i++, src += sizeof(wide_reg)) {
        bt_bf16 *to = out + i / PARTS * GROUP + i % PARTS * sizeof(wide_reg) / 2;
        wide_reg v, nan, entry, low, high;

        memcpy(&v, src, sizeof(v));
        if (__builtin_expect(!has_rare(v), 1)) {
            wide_reg exponent = LOGIC(and)(OP(srli_epi16)(v, 4), OP(set1_epi8)(7));

            entry = LOGIC(and)(v, OP(set1_epi8)(15));
            low   = OP(shuffle_epi8)(two_low, entry);
            high  = OP(add_epi8)(OP(shuffle_epi8)(two_high, entry), exponent);
            high  = OP(add_epi8)(high, LOGIC(and)(v, OP(set1_epi8)((char)0x80)));
            entry = OP(unpacklo_epi8)(low, high);
            memcpy(to, &entry, sizeof(entry));
            entry = OP(unpackhi_epi8)(low, high);
            memcpy(to + GROUP / 2, &entry, sizeof(entry));
            continue;
        }
        nan   = EQUAL_BYTES(LOGIC(and)(v, all), all);
        entry = EQUAL_BYTES(LOGIC(and)(v, OP(set1_epi8)(0x78)), zero);
        entry = LOGIC(and)(entry, OP(set1_epi8)(8));
        entry = LOGIC(or)(entry, LOGIC(and)(v, OP(set1_epi8)(7)));
        low   = OP(shuffle_epi8)(row_low, entry);
        high  = OP(shuffle_epi8)(row_high, entry);
        store_wide(OP(unpacklo_epi8)(low, high), OP(unpacklo_epi8)(v, zero),
                   OP(unpacklo_epi8)(nan, nan), to);
        store_wide(OP(unpackhi_epi8)(low, high), OP(unpackhi_epi8)(v, zero),
                   OP(unpackhi_epi8)(nan, nan), to + GROUP / 2);
    }
}

#elif defined(WIDEN_NEON)

/* Entries of eight bytes v, and whether those are NaN, become weights. */
static inline void store_wide(uint8x16_t entry, uint8x8_t v, uint8x16_t nan, bt_bf16 *out)
{
    uint16x8_t exponent = vshll_n_u8(vand_u8(v, vdup_n_u8(0x78)), 4);
    uint16x8_t sign     = vshll_n_u8(vand_u8(v, vdup_n_u8(0x80)), 8);
    uint16x8_t w        = veorq_u16(vaddq_u16(vreinterpretq_u16_u8(entry), exponent), sign);

    vst1q_u16(out, vorrq_u16(w, vandq_u16(vreinterpretq_u16_u8(nan), vdupq_n_u16(0x7fc0))));
}

static inline void widen_groups(const uint8_t *src, uint32_t n_groups, const bt_cpu_wide_table *t,
                                bt_bf16 *out)
{
    const uint8x16_t row_low = vld1q_u8(t->row_low), row_high = vld1q_u8(t->row_high);
    const uint8x16_t all = vdupq_n_u8(0x7f);

    if (!t->regular) {
        widen_singly(src, n_groups, t, out);
        return;
    }
    for (uint32_t i = 0; i < n_groups * 4; i++, src += 16) {
        bt_bf16   *to    = out + i / 4 * GROUP + i % 4 * 8;
        uint8x16_t v     = vld1q_u8(src);
        uint8x16_t nan   = vceqq_u8(vandq_u8(v, all), all);
        uint8x16_t least = vceqzq_u8(vandq_u8(v, vdupq_n_u8(0x78)));
        uint8x16_t entry = vbslq_u8(vdupq_n_u8(8), least, v), low, high;

        entry = vandq_u8(entry, vdupq_n_u8(15));
        low   = vqtbl1q_u8(row_low, entry);
        high  = vqtbl1q_u8(row_high, entry);
        store_wide(vzip1q_u8(low, high), vget_low_u8(v), vzip1q_u8(nan, nan), to);
        store_wide(vzip2q_u8(low, high), vget_high_u8(v), vzip2q_u8(nan, nan), to + GROUP / 2);
    }
}

#else
#define widen_groups widen_singly
#endif

/* ---- weights of 12 bits ---- */

#if defined(__AVX512BW__)

#if defined(__AVX512VBMI2__)
#define SHIFT_IN(h, l) _mm512_shldi_epi16(h, l, 8)
/* Only the lowest four bits count: the table is there four times. */
#define LOOK_UP(codes) _mm512_permutexvar_epi8(codes, high)
#else
#define SHIFT_IN(h, l) _mm512_or_si512(_mm512_slli_epi16(h, 8), _mm512_srli_epi16(l, 8))
#define LOOK_UP(codes) _mm512_shuffle_epi8(high, _mm512_and_si512(codes, _mm512_set1_epi8(15)))
#endif

/* n_groups of 128 weights but for the rare ones. */
static inline void widen_codes(const uint8_t *src, uint32_t n_groups, const uint8_t *table,
                               bt_bf16 *out)
{
    const __m512i high       = _mm512_broadcast_i32x4(_mm_loadu_si128((const void *)table));
    const __m512i upper_byte = _mm512_set1_epi16((short)0xff00);

    for (uint32_t g = 0; g < n_groups; g++, src += 3 * GROUP) {
        __m512i codes = _mm512_load_si512(src + 2 * GROUP);

        for (int p = 0; p < 2; p++, out += GROUP) {
            __m512i low   = _mm512_load_si512(src + p * GROUP);
            __m512i upper = LOOK_UP(p == 0 ? codes : _mm512_srli_epi16(codes, 4));

            _mm512_store_si512(out, SHIFT_IN(upper, low));
            _mm512_store_si512(out + GROUP / 2,
                               _mm512_ternarylogic_epi32(upper_byte, upper, low, 0xca));
        }
    }
}

#else

/* n_groups of 128 weights but for the rare ones. */
static inline void widen_codes(const uint8_t *src, uint32_t n_groups, const uint8_t *table,
                               bt_bf16 *out)
{
    for (uint32_t g = 0; g < n_groups; g++, src += 3 * GROUP, out += 2 * GROUP) {
        for (int i = 0; i < 2 * GROUP; i++) {
            int p = i / GROUP, at = i % (GROUP / 2) * 2, second = i / (GROUP / 2) % 2;

            out[i] = (bt_bf16)(table[src[2 * GROUP + at + second] >> 4 * p & 15] << 8 |
                               src[p * GROUP + at + 1 - second]);
        }
    }
}

#endif

/* The first of the rare weights from this one of the block on. */
static inline const bt_cpu_rare *rare_from(const bt_cpu_bf12_side *side, uint32_t at,
                                           bt_cpu_wide_table *t)
{
    if (t->first != side->rare || (t->rare != t->first && t->rare[-1].at >= at))
        t->first = t->rare = side->rare;
    while (t->rare->at < at)
        t->rare++;
    return t->rare;
}

/* Rare weights take their place, of those from `at` on to `end`.  Returns the one behind. */
static inline const bt_cpu_rare *put_rare(const bt_cpu_rare *rare, uint32_t at, uint32_t end,
                                          bt_bf16 *out)
{
    for (; rare->at < end; rare++)
        out[rare->at - at] = rare->value;
    return rare;
}

/* The table of a scale: the last one that was used, or that of the block. */
static inline bt_cpu_wide_table *table_of(float scale, bt_cpu_wide_table *last,
                                          bt_cpu_wide_table *own)
{
    if (last->scale == scale) return last;
    if (own->scale != scale) fill_table(scale, own);
    return own;
}

#ifdef WIDEN

/* ---- weights of 4 bits ---- */

enum { COLUMNS = 16, PAIR = 2 * COLUMNS, WORD_PAIRS = BT_INT4_IN_WORD };

#if defined(__AVX512BW__)

/* 32 weights, each in fp32, as bf16. */
static inline __m512i round_weights(__m512 low, __m512 high)
{
#if defined(__AVX512BF16__)
    return (__m512i)_mm512_cvtne2ps_pbh(high, low);
#else
    /* A product of 8 and of 4 significant bits: of a float's lower half only the upper 4 are there,
     * and the lowest is free for what decides between halves. */
    const __m512i upper =
        _mm512_set_epi16(63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33, 31, 29, 27,
                         25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
    const __m512i one = _mm512_set1_epi16(1);
    __m512i       x = _mm512_castps_si512(low), y = _mm512_castps_si512(high);
    __m512i       w    = _mm512_permutex2var_epi16(x, upper, y);
    __m512i       rest = _mm512_permutex2var_epi16(x, _mm512_sub_epi16(upper, one), y);

    rest = _mm512_ternarylogic_epi32(rest, w, one, 0xf8); /* rest | (w & 1) */
    return _mm512_mask_add_epi16(w, _mm512_cmpgt_epu16_mask(rest, _mm512_set1_epi16((short)0x8000)),
                                 w, one);
#endif
}

/* 32 k of 16 columns. */
static inline void widen_group(const bt_cpu_int4_group *g, bt_bf16 *out)
{
    const __m512  values = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1);
    const __m512i twice  = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    __m512i       s      = _mm512_slli_epi32(
                   _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)g->scale)), 16);
    __m512 s_low  = _mm512_castsi512_ps(_mm512_permutexvar_epi32(twice, s));
    __m512 s_high = _mm512_castsi512_ps(
        _mm512_permutexvar_epi32(_mm512_add_epi32(twice, _mm512_set1_epi32(8)), s));

    for (int h = 0; h < 2; h++) {
        __m512i low  = _mm512_loadu_si512(g->words[h]),
                high = _mm512_loadu_si512(g->words[h] + COLUMNS);

        for (int p = 0; p < WORD_PAIRS; p++, out += PAIR) {
            _mm512_store_si512(
                out, round_weights(_mm512_mul_ps(_mm512_permutexvar_ps(low, values), s_low),
                                   _mm512_mul_ps(_mm512_permutexvar_ps(high, values), s_high)));
            low  = _mm512_srli_epi32(low, 4);
            high = _mm512_srli_epi32(high, 4);
        }
    }
}

#else

/* 32 k of 16 columns. */
static inline void widen_group(const bt_cpu_int4_group *g, bt_bf16 *out)
{
    float s[PAIR];

    for (int i = 0; i < PAIR; i++)
        s[i] = bt_bf16_to_f32(g->scale[i / 2]);
    for (int h = 0; h < 2; h++) {
        for (int p = 0; p < WORD_PAIRS; p++, out += PAIR) {
            for (int i = 0; i < PAIR; i++) { /* the value, of either sign, in the upper 4 bits */
                float    f = (float)((int32_t)(g->words[h][i] << (28 - 4 * p)) >> 28) * s[i];
                uint32_t bits;

                memcpy(&bits, &f, sizeof(bits));
                out[i] = (bt_bf16)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
            }
        }
    }
}

#endif

static void widen_int4(const bt_cpu_narrow *from, uint32_t k0, uint32_t n_k, uint32_t n_blocks,
                       bt_bf16 *out, size_t ld_out)
{
    for (uint32_t c = 0; c < n_blocks; c++) {
        const bt_cpu_int4_group *groups =
            (const void *)((const char *)from->packed + c * from->block);

        for (uint32_t k = k0; k < k0 + n_k; k += BT_INT4_GROUP)
            widen_group(&groups[k / BT_INT4_GROUP], out + c * ld_out + (size_t)(k - k0) * COLUMNS);
    }
}

static void widen_bf12(BT_CPU_WIDEN_ARGS)
{
    for (uint32_t c = 0; c < n_blocks; c++, out += ld_out) {
        const bt_cpu_bf12_side *side   = bt_cpu_narrow_side(from, c);
        const char             *packed = (const char *)from->packed + c * from->block;

        widen_codes((const uint8_t *)packed + (size_t)k0 * COLUMNS / 2 * 3,
                    n_k * COLUMNS / (2 * GROUP), side->high, out);
        tables[c].rare = put_rare(rare_from(side, k0 * COLUMNS, &tables[c]), k0 * COLUMNS,
                                  (k0 + n_k) * COLUMNS, out);
    }
}

void WIDEN(BT_CPU_WIDEN_ARGS)
{
    bt_cpu_wide_table *t = tables;

    if (from->kind == BT_WEIGHT_INT4) {
        widen_int4(from, k0, n_k, n_blocks, out, ld_out);
        return;
    }
    if (from->kind == BT_WEIGHT_BF12) {
        widen_bf12(from, k0, n_k, n_blocks, tables, out, ld_out);
        return;
    }

    for (uint32_t k = k0, end; k < k0 + n_k; k = end) {
        end = (k / BT_CPU_SCALE_K + 1) * BT_CPU_SCALE_K;
        if (end > k0 + n_k) end = k0 + n_k;
        for (uint32_t c = 0; c < n_blocks; c++) {
            const char  *packed = (const char *)from->packed + c * from->block;
            const float *scales = bt_cpu_narrow_side(from, c);
            float        scale  = scales[k / BT_CPU_SCALE_K];

            t = table_of(scale, t, &tables[c]);
            widen_groups((const uint8_t *)packed + (size_t)k * 16, (end - k) * 16 / GROUP, t,
                         out + c * ld_out + (size_t)(k - k0) * 16);
        }
    }
}
#endif

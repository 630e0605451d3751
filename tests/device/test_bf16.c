/* The emulated bf16 instructions give the bits of this CPU's own. */
#include "device/cpu/cpuid.h"
#include "tests/device/bf16_emulated.h"
#include "tests/device/twin.h"
#include "tests/support/test.h"

#define AVX512 __attribute__((target("avx512f")))

enum { LANES = 16 };

/* acc[i] += products of the pairs a[2i], a[2i+1] and b[2i], b[2i+1], by the instruction and
 * emulated. */
AVX512 static void products(const bt_bf16 *a, const bt_bf16 *b, const float *acc, float *own,
                            float *emulated)
{
    __m512i x = _mm512_loadu_si512(a), y = _mm512_loadu_si512(b);
    __m512  sum = _mm512_loadu_ps(acc);

    _mm512_storeu_ps(emulated, emulated_dpbf16_ps(sum, (__m512bh)x, (__m512bh)y));
    __asm__("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(x), "v"(y));
    _mm512_storeu_ps(own, sum);
}

AVX512 static void conversions(const float *x, bt_bf16 *own, bt_bf16 *emulated)
{
    __m512  v = _mm512_loadu_ps(x);
    __m256i y;

    _mm256_storeu_si256((__m256i *)(void *)emulated, (__m256i)emulated_cvtneps_pbh(v));
    __asm__("vcvtneps2bf16 %1, %0" : "=v"(y) : "v"(v));
    _mm256_storeu_si256((__m256i *)(void *)own, y);
}

static float any_float(twin_kind kind, uint64_t *seed)
{
    uint32_t bits = (uint32_t)twin_value(kind, seed) << 16 | twin_random(seed) % 0x10000u;
    float    f;

    memcpy(&f, &bits, sizeof(f));
    return f;
}

/* Half of the sums are what one product takes away again. */
static void expect_products(twin_kind kind, twin_kind of_sum, uint64_t seed)
{
    bt_bf16 a[2 * LANES], b[2 * LANES];
    float   acc[LANES], own[LANES], emulated[LANES];

    for (int i = 0; i < 2 * LANES; i++) {
        a[i] = twin_value(kind, &seed);
        b[i] = twin_value(kind, &seed);
    }
    for (int i = 0; i < LANES; i++)
        acc[i] = i % 2 == 0 ? any_float(of_sum, &seed)
                            : -bt_bf16_to_f32(a[2 * i]) * bt_bf16_to_f32(b[2 * i]);
    products(a, b, acc, own, emulated);
    for (int i = 0; i < LANES; i++) {
        if (twin_same(emulated[i], own[i])) continue;
        g_failures++;
        fprintf(stderr, "%04x %04x . %04x %04x + %a is %a, emulated %a\n", a[2 * i], a[2 * i + 1],
                b[2 * i], b[2 * i + 1], (double)acc[i], (double)own[i], (double)emulated[i]);
    }
}

static void products_equal_the_instruction(void)
{
    enum { TIMES = 20000 };

    for (uint64_t i = 0; i < TIMES && g_failures == 0; i++)
        for (int kind = 0; kind < TWIN_N_KINDS; kind++)
            for (int of_sum = 0; of_sum < TWIN_N_KINDS; of_sum++)
                expect_products((twin_kind)kind, (twin_kind)of_sum, i);
}

/* Every upper half, and lower ones about which half is even. */
static void conversions_equal_the_instruction(void)
{
    static const uint32_t LOWER[] = {0, 1, 0x7ffe, 0x7fff, 0x8000, 0x8001, 0xffff, 0x1234};

    for (uint32_t upper = 0; upper < 0x10000 && g_failures == 0; upper += 2) {
        float   x[LANES];
        bt_bf16 own[LANES], emulated[LANES];

        for (uint32_t i = 0; i < LANES; i++) {
            uint32_t bits = (upper + i / 8) << 16 | LOWER[i % 8];

            memcpy(&x[i], &bits, sizeof(x[i]));
        }
        conversions(x, own, emulated);
        EXPECT(memcmp(own, emulated, sizeof(own)) == 0);
    }
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {
        BT_TEST(products_equal_the_instruction),
        BT_TEST(conversions_equal_the_instruction),
    };

    if ((bt_cpu_features() & BT_CPU_AVX512BF16) == 0) {
        printf("skipped: this CPU has no bf16 instructions of AVX-512\n");
        return BT_TEST_SKIP;
    }
    bt_cpu_flush_denormals();
    return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
}

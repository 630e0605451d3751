/* FP8 E4M3 to fp32 and back. */
#include "core/e4m3.h"

#include <math.h>

#include "tests/support/test.h"

/* By the format's definition. */
static double value(int v)
{
    int exponent = v >> 3 & 15, mantissa = v & 7;

    if (exponent == 0) return ldexp(mantissa, -9);
    return ldexp(8 + mantissa, exponent - 10);
}

static void e4m3_has_its_values(void)
{
    for (int v = 0; v < 0x7f; v++) {
        EXPECT((double)bt_e4m3_to_f32((uint8_t)v) == value(v));
        EXPECT((double)bt_e4m3_to_f32((uint8_t)(v | 0x80)) == -value(v));
    }
    EXPECT(signbit(bt_e4m3_to_f32(0x80)) && !signbit(bt_e4m3_to_f32(0)));
    EXPECT(isnan(bt_e4m3_to_f32(0x7f)) && isnan(bt_e4m3_to_f32(0xff)));
}

static void e4m3_rounds_to_the_nearest_even(void)
{
    for (int v = 0; v < 0x7f; v++) {
        float at = (float)value(v), next = (float)value(v + 1), middle = (at + next) / 2;

        EXPECT_EQ(bt_e4m3_from_f32(at), v);
        EXPECT_EQ(bt_e4m3_from_f32(-at), v | 0x80);
        if (v == 0x7e) break;
        EXPECT_EQ(bt_e4m3_from_f32(middle), v % 2 == 0 ? v : v + 1);
        EXPECT_EQ(bt_e4m3_from_f32(nextafterf(middle, 0)), v);
        EXPECT_EQ(bt_e4m3_from_f32(nextafterf(middle, 1000)), v + 1);
    }
    EXPECT_EQ(bt_e4m3_from_f32(449), 0x7e);
    EXPECT_EQ(bt_e4m3_from_f32(-INFINITY), 0xfe);
    EXPECT_EQ(bt_e4m3_from_f32(NAN), 0x7e);
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {BT_TEST(e4m3_has_its_values),
                                    BT_TEST(e4m3_rounds_to_the_nearest_even)};

    return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
}

#include <math.h>
#include <stdint.h>

#include "attention/rope.h"
#include "core/alloc.h"
#include "tests/support/test.h"

enum { PAIRS = 4 };
static const double INV_FREQ[PAIRS] = {1.0, 0.0562341325190349, 1.77827941e-4, 3.33380358e-6};

/* libm is right to the last bits of a double; the table must be that, rounded to float. */
static void rope_table_is_cos_and_sin_of_the_angle(void)
{
    enum { N = 163840 };
    float   *table = bt_calloc((size_t)N * PAIRS * 2, sizeof(*table));
    uint32_t n_off = 0;

    EXPECT_EQ(bt_rope_fill(N, PAIRS, INV_FREQ, 1.0, table), BT_OK);
    for (uint32_t p = 0; p < N; p++) {
        for (uint32_t i = 0; i < PAIRS; i++) {
            const float *cell  = table + ((size_t)p * PAIRS + i) * 2;
            double       angle = p * INV_FREQ[i];

            if (!(fabs(cell[0] - cos(angle)) <= 6e-8 && fabs(cell[1] - sin(angle)) <= 6e-8))
                n_off++;
        }
    }
    EXPECT_EQ(n_off, 0);
    EXPECT(table[0] == 1.0f && table[1] == 0.0f);
    bt_free(table);
}

static void rope_magnitude_scales_both(void)
{
    float plain[8 * PAIRS * 2], scaled[8 * PAIRS * 2];

    EXPECT_EQ(bt_rope_fill(8, PAIRS, INV_FREQ, 1.0, plain), BT_OK);
    EXPECT_EQ(bt_rope_fill(8, PAIRS, INV_FREQ, 2.0, scaled), BT_OK);
    for (int i = 0; i < 8 * PAIRS * 2; i++)
        EXPECT(scaled[i] == 2.0f * plain[i]);
}

static void rope_bad_frequencies_are_refused(void)
{
    const double negative = -1.0, too_fast = 0x1p18, infinite = INFINITY, nan = NAN, one = 1.0;
    float        table[16];

    EXPECT_EQ(bt_rope_fill(8, 1, &negative, 1.0, table), BT_ERR_INVALID_ARG);
    EXPECT_EQ(bt_rope_fill(8, 1, &too_fast, 1.0, table), BT_ERR_INVALID_ARG);
    EXPECT_EQ(bt_rope_fill(8, 1, &infinite, 1.0, table), BT_ERR_INVALID_ARG);
    EXPECT_EQ(bt_rope_fill(8, 1, &nan, 1.0, table), BT_ERR_INVALID_ARG);
    EXPECT_HAS(bt_error_text(), "rope frequency 0");
    EXPECT_EQ(bt_rope_fill(8, 1, &one, NAN, table), BT_ERR_INVALID_ARG);
    EXPECT_EQ(bt_rope_fill(8, 1, &one, INFINITY, table), BT_ERR_INVALID_ARG);
    EXPECT_EQ(bt_rope_fill(8, 1, &one, 1.0, table), BT_OK);
}

static const bt_test TESTS[] = {
    BT_TEST(rope_table_is_cos_and_sin_of_the_angle),
    BT_TEST(rope_magnitude_scales_both),
    BT_TEST(rope_bad_frequencies_are_refused),
};

int main(int argc, char **argv) { return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL); }

#include <math.h>
#include <stdint.h>
#include <string.h>

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

    bt_rope_fill(0, N, PAIRS, INV_FREQ, 1.0, table);
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

    bt_rope_fill(0, 8, PAIRS, INV_FREQ, 1.0, plain);
    bt_rope_fill(0, 8, PAIRS, INV_FREQ, 2.0, scaled);
    for (int i = 0; i < 8 * PAIRS * 2; i++)
        EXPECT(scaled[i] == 2.0f * plain[i]);
}

static void rope_in_parts_has_the_bits_of_the_whole(void)
{
    enum { N = 5 * BT_ROPE_RUN + 7 };
    const uint32_t ends[3] = {BT_ROPE_RUN, 4 * BT_ROPE_RUN, N};
    static float   whole[N][PAIRS][2], parts[N][PAIRS][2], factors[2][N];

    bt_rope_fill(0, N, PAIRS, INV_FREQ, 0.75, whole[0][0]);
    bt_query_factors_fill(0, N, 0.1, 48, factors[0]);
    for (uint32_t i = 0, first = 0; i < 3; first = ends[i++]) {
        bt_rope_fill(first, ends[i], PAIRS, INV_FREQ, 0.75, parts[0][0]);
        bt_query_factors_fill(first, ends[i], 0.1, 48, factors[1]);
    }
    EXPECT(memcmp(whole, parts, sizeof(whole)) == 0);
    EXPECT(memcmp(factors[0], factors[1], sizeof(factors[0])) == 0);
}

static void rope_bad_frequencies_are_refused(void)
{
    const double negative = -1.0, too_fast = 0x1p18, infinite = INFINITY, nan = NAN, one = 1.0;

    EXPECT_EQ(bt_rope_check(8, 1, &negative, 1.0), BT_ERR_INVALID_ARG);
    EXPECT_EQ(bt_rope_check(8, 1, &too_fast, 1.0), BT_ERR_INVALID_ARG);
    EXPECT_EQ(bt_rope_check(8, 1, &infinite, 1.0), BT_ERR_INVALID_ARG);
    EXPECT_EQ(bt_rope_check(8, 1, &nan, 1.0), BT_ERR_INVALID_ARG);
    EXPECT_HAS(bt_error_text(), "rope frequency 0");
    EXPECT_EQ(bt_rope_check(8, 1, &one, NAN), BT_ERR_INVALID_ARG);
    EXPECT_EQ(bt_rope_check(8, 1, &one, INFINITY), BT_ERR_INVALID_ARG);
    EXPECT_EQ(bt_rope_check(8, 1, &one, 1.0), BT_OK);
}

static const bt_test TESTS[] = {
    BT_TEST(rope_table_is_cos_and_sin_of_the_angle),
    BT_TEST(rope_magnitude_scales_both),
    BT_TEST(rope_in_parts_has_the_bits_of_the_whole),
    BT_TEST(rope_bad_frequencies_are_refused),
};

int main(int argc, char **argv) { return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL); }

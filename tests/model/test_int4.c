/* A model of 4 bits gives bit for bit what the same one stored in bf16 gives: with every kernel
 * family that this CPU has, in every attention form, on one rank and on several. */
#include "tests/model/int4_twin.h"

static void int4_bits_are_those_of_bf16(bt_form_policy form)
{
    char families[128], *name, *rest = families;
    bool scalar = false;

    snprintf(families, sizeof(families), "%s", bt_device_cpu_kernels());
    while ((name = strtok_r(rest, ",", &rest)) != NULL) {
        engine_options opt = {
            .kernels = name, .n_threads = 1 + !scalar, .max_rows = 256, .n_pages = 16};

        scalar = strcmp(name, "scalar") == 0;
        expect_twins(&opt, form);
    }
    EXPECT(scalar);
}

static void int4_bits_are_those_of_bf16_by_role(void)
{
    int4_bits_are_those_of_bf16(BT_FORM_BY_ROLE);
}
static void int4_bits_are_those_of_bf16_absorbed(void)
{
    int4_bits_are_those_of_bf16(BT_FORM_ALL_ABSORBED);
}

static const bt_test TESTS[] = {
    BT_TEST(int4_bits_are_those_of_bf16_by_role),
    BT_TEST(int4_bits_are_those_of_bf16_absorbed),
};

int main(int argc, char **argv)
{
    return twins_main(argc, argv, TESTS, sizeof(TESTS) / sizeof(TESTS[0]));
}

/* A model of 4 bits on the CUDA back end, on a GPU that is host memory, gives bit for bit what the
 * same one stored in bf16 gives. */
#include <cuda_runtime_api.h>

#include "device/cuda/module.h"

extern const bt_cuda_module_table bt_cuda_module;

#define ENGINE_DEVICE(opt, dev_out) bt_cuda_module.create((opt)->n_threads - 1, (dev_out))
#include "tests/model/int4_twin.h"

static void cuda_int4_bits_are_those_of_bf16(void)
{
    engine_options opt = {.n_threads = 1, .max_rows = 256, .n_pages = 16}; /* GPU 0 */

    expect_twins(&opt, BT_FORM_BY_ROLE);
    EXPECT_EQ(g_fake_gpu.live, 0);
}

static const bt_test TESTS[] = {BT_TEST(cuda_int4_bits_are_those_of_bf16)};

int main(int argc, char **argv)
{
    return twins_main(argc, argv, TESTS, sizeof(TESTS) / sizeof(TESTS[0]));
}

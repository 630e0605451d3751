/* The checksum's kernels on the CPU, against the plain twin. */
#include "device/cuda/checksum.h"
#include "device/device.h"
#include "tests/cuda/numbers.h"

/* Around a word, around a turn of the block, and more than all blocks take at once. */
static void checksum_is_that_of_the_cpu(void)
{
    enum { MOST = (1 << 20) + 9001 };
    static const size_t SIZES[] = {0, 7, 8, 9, 4095, 4096, 4105, 40000, MOST};
    uint8_t            *data    = ARRAY(uint8_t, MOST);
    uint64_t           *sum     = ARRAY(uint64_t, 1);

    for (size_t i = 0; i < MOST; i++)
        data[i] = (uint8_t)(i * i + i / 251);
    for (size_t i = 0; i < sizeof(SIZES) / sizeof(SIZES[0]); i++) {
        simt_seed(i);
        EXPECT_EQ(bt_cuda_checksum(NULL, data, SIZES[i], i, sum), 0);
        EXPECT(*sum == bt_checksum(data, SIZES[i], i));
    }
    free(data), free(sum);
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {
        BT_TEST(checksum_is_that_of_the_cpu),
    };

    return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
}

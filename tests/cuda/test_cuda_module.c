/* libbaton_cuda.so as programs open it: found or not, with a GPU or without.
 *
 *     test_cuda_module PATH [gpu]     the module, or "-" where there is none; gpu: without a GPU
 *                                     it fails */
#include "core/alloc.h"
#include "device/device.h"
#include "tests/support/test.h"

static const char *g_path;
static bool        g_has_gpu; /* the machine, says who runs this */

static void give_up_without(const char *why)
{
    if (!g_has_gpu) return;
    fprintf(stderr, "no GPU can be used: %s\n", why);
    exit(EXIT_FAILURE);
}

static void a_missing_module_is_told(void)
{
    bt_device *dev = NULL;
    char       text[512];

    EXPECT(!bt_device_cuda_usable("/nowhere/libbaton_cuda.so", 0, text, sizeof(text)));
    EXPECT_HAS(text, "/nowhere/libbaton_cuda.so");
    EXPECT_EQ(bt_device_cuda_create("/nowhere/libbaton_cuda.so", 0, &dev), BT_ERR_UNSUPPORTED);
    EXPECT_HAS(bt_error_text(), "the CUDA back end cannot be opened");
}

/* Without a GPU the module still opens, and says why it cannot be used. */
static void the_module_opens_and_knows_the_machine(void)
{
    bt_device *dev = NULL;
    char       text[512];

    if (g_path == NULL) return;
    if (!bt_device_cuda_usable(g_path, 0, text, sizeof(text))) {
        give_up_without(text);
        printf("no GPU here: %s\n", text);
        EXPECT(strstr(text, "driver") != NULL || strstr(text, "GPU") != NULL);
        EXPECT_EQ(bt_device_cuda_create(g_path, 0, &dev), BT_ERR_UNSUPPORTED);
        EXPECT_HAS(bt_error_text(), text);
        return;
    }
    EXPECT_EQ(bt_device_cuda_create(g_path, 0, &dev), BT_OK);
    EXPECT_EQ(bt_device_sync(dev), BT_OK);
    bt_device_destroy(dev);
    EXPECT_EQ(bt_alloc_live(), 0);
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {
        BT_TEST(a_missing_module_is_told),
        BT_TEST(the_module_opens_and_knows_the_machine),
    };

    g_path    = argc > 1 && strcmp(argv[1], "-") != 0 ? argv[1] : NULL;
    g_has_gpu = argc > 2 && strcmp(argv[2], "gpu") == 0;
    if (g_path == NULL) give_up_without("this build has no module");
    if (g_path == NULL) printf("this build has no libbaton_cuda.so: only its absence is tested\n");
    return BT_RUN_TESTS(TESTS, NULL);
}

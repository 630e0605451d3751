/* libbaton_nccl.so as programs open it: found or not, with a GPU or without.
 *
 *     test_nccl_module PATH       the module, or "-" where this build has none */
#include "core/alloc.h"
#include "parallel/nccl/module.h"
#include "tests/support/test.h"

static const char *g_path;

static void a_missing_module_is_told(void)
{
    char text[600];

    EXPECT(bt_nccl_open("/nowhere/libbaton_nccl.so", 0, false, text, sizeof(text)) == NULL);
    EXPECT_HAS(text, "the NCCL transport cannot be opened");
    EXPECT_HAS(text, "/nowhere/libbaton_nccl.so");
}

/* Without a GPU the module still opens, and says why it cannot be used. */
static void the_module_opens_and_knows_the_machine(void)
{
    const bt_nccl_module *nccl;
    char                  text[600] = "";

    if (g_path == NULL) return;
    nccl = bt_nccl_open(g_path, 3, true, text, sizeof(text));
    if (nccl == NULL) {
        printf("no NCCL here: %s\n", text);
        EXPECT_HAS(text, "finds none");
    }
    EXPECT_EQ(bt_alloc_live(), 0); /* the program has what the module takes from it */
    EXPECT(bt_error_text() != NULL && bt_status_str(BT_OK) != NULL);
    EXPECT(getenv("NCCL_HOSTID") != NULL && strcmp(getenv("NCCL_HOSTID"), "baton-rank-3") == 0);
    EXPECT(getenv("NCCL_GRAPH_REGISTER") != NULL && getenv("NCCL_LOCAL_REGISTER") != NULL);
    EXPECT(getenv("NCCL_GRAPH_MIXING_SUPPORT") != NULL);
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {
        BT_TEST(a_missing_module_is_told),
        BT_TEST(the_module_opens_and_knows_the_machine),
    };

    g_path = argc > 1 && strcmp(argv[1], "-") != 0 ? argv[1] : NULL;
    if (g_path == NULL) printf("this build has no libbaton_nccl.so: only its absence is tested\n");
    return BT_RUN_TESTS(TESTS, NULL);
}

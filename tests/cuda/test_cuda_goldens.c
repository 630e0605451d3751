/* Whole models on the CUDA back end, on a GPU that is host memory: the first case of the golden
 * outputs, and its bits in pieces and beside others. */
#include <cuda_runtime_api.h>

#include "device/cuda/module.h"

extern const bt_cuda_module_table bt_cuda_module;

#define ENGINE_DEVICE(opt, dev_out) bt_cuda_module.create((opt)->n_threads - 1, (dev_out))
#include "tests/model/golden_checks.h"

static bt_world *g_world;

static const uint32_t SELF[1] = {0};

enum { MAX_ROWS = 256 };

static engine_options options(void)
{
    return (engine_options){.n_threads = 1, .max_rows = MAX_ROWS, .n_pages = 16}; /* GPU 0 */
}

static void cuda_holds_the_goldens(void)
{
    engine_options opt = options();
    engine         e;

    engine_open(&e, &g_goldens, g_world, 1, SELF, &opt);
    EXPECT(strcmp(e.dev->ops->name, "cuda") == 0);
    check_case(&e, &g_goldens.cases[0], BT_FORM_BY_ROLE, 0, "cuda", NULL);
    engine_close(&e);
    EXPECT_EQ(g_fake_gpu.live, 0);
}

/* Prompts in pieces, generated rows several at once, and rows of both roles in one step. */
static void cuda_bits_do_not_depend_on_pieces_or_neighbours(void)
{
    engine_options     opt   = options();
    const golden_case *c     = &g_goldens.cases[0];
    sequence           alone = {.c = c, .rows_per_step = 1};
    sequence           together[3];
    engine             e;

    engine_open(&e, &g_goldens, g_world, 1, SELF, &opt);
    engine_run(&e, 1, &alone);
    for (uint32_t i = 0; i < 3; i++)
        together[i] = (sequence){
            .c = c, .chunk = 7 * (i + 1), .rows_per_step = 1 + 2 * i, .first_step = 2 * i};
    engine_run(&e, 3, together);
    for (uint32_t i = 0; i < 3; i++) {
        EXPECT(sequence_equal(&g_goldens, &together[i], &alone));
        sequence_free(&together[i]);
    }
    sequence_free(&alone);
    engine_close(&e);
}

static const bt_test TESTS[] = {
    BT_TEST(cuda_holds_the_goldens),
    BT_TEST(cuda_bits_do_not_depend_on_pieces_or_neighbours),
};

int main(int argc, char **argv)
{
    return goldens_main(argc, argv, TESTS, sizeof(TESTS) / sizeof(TESTS[0]), &g_goldens, &g_world);
}

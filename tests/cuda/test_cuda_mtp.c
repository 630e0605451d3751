/* The layer for multi-token prediction on the CUDA back end, on a GPU that is host memory: the
 * first case of the golden drafts, with second ones, and its bits in pieces and beside others. */
#include <cuda_runtime_api.h>

#include "device/cuda/module.h"

extern const bt_cuda_module_table bt_cuda_module;

#define ENGINE_DEVICE(opt, dev_out) bt_cuda_module.create((opt)->n_threads - 1, (dev_out))
#include "tests/model/drafts.h"

static bt_world *g_world;
static sequence  g_each;

static const uint32_t SELF[1] = {0};

enum { MAX_ROWS = 256 };

static engine_options options(void)
{
    return (engine_options){.n_threads = 1, .max_rows = MAX_ROWS, .n_pages = 16}; /* GPU 0 */
}

/* Rows one by one, all of which ask twice; run once for all tests. */
static const sequence *each(void)
{
    static bool    has_run;
    engine_options opt = options();
    engine         e;

    if (has_run) return &g_each;
    g_each = (sequence){.c = &g_goldens.cases[0], .chunk = 1, .rows_per_step = 1, .chained = true};
    drafting_open(&e, g_world, 1, SELF, &opt);
    EXPECT(strcmp(e.dev->ops->name, "cuda") == 0);
    engine_run(&e, 1, &g_each);
    engine_close(&e);
    EXPECT_EQ(g_fake_gpu.live, 0);
    has_run = true;
    return &g_each;
}

static void cuda_drafts_hold_the_goldens(void)
{
    expect_drafts(each(), 0, &g_mtp.first[0], "cuda");
    expect_drafts(each(), 1, &g_mtp.chained, "cuda");
}

/* Prompt and generated rows in one step, of which some ask; and some twice. */
static void cuda_drafts_do_not_depend_on_pieces_or_neighbours(void)
{
    engine_options  opt   = options();
    const sequence *alone = each();
    sequence        together[3];
    engine          e;

    drafting_open(&e, g_world, 1, SELF, &opt);
    for (uint32_t twice = 0; twice < 2; twice++) {
        for (uint32_t i = 0; i < 3; i++)
            together[i] = (sequence){.c             = alone->c,
                                     .chunk         = 7 * (i + 1 - twice),
                                     .rows_per_step = 1 + 2 * i,
                                     .first_step    = 2 * i,
                                     .bare          = i == 1,
                                     .draft_every   = twice ? 0 : i + 1,
                                     .chained       = twice && i != 1};
        engine_run(&e, 3, together);
        for (uint32_t i = 0; i < 3; i++) {
            if (n_drafts(&together[i]) != 0) EXPECT(drafts_equal(&together[i], alone));
            EXPECT((n_drafts(&together[i]) != 0) == (!twice || i != 1));
            sequence_free(&together[i]);
        }
    }
    engine_close(&e);
}

static void cuda_logits_do_not_depend_on_drafts(void)
{
    engine_options opt   = options();
    sequence       plain = {.c = &g_goldens.cases[0], .rows_per_step = 3};
    engine         e;

    g_goldens.cfg.mtp = false;
    engine_open(&e, &g_goldens, g_world, 1, SELF, &opt);
    engine_run(&e, 1, &plain);
    engine_close(&e);
    g_goldens.cfg.mtp = true;
    EXPECT(sequence_equal(&g_goldens, each(), &plain));
    sequence_free(&plain);
}

static const bt_test TESTS[] = {
    BT_TEST(cuda_drafts_hold_the_goldens),
    BT_TEST(cuda_drafts_do_not_depend_on_pieces_or_neighbours),
    BT_TEST(cuda_logits_do_not_depend_on_drafts),
};

int main(int argc, char **argv)
{
    int rc;

    NEED(bt_world_init(&argc, &argv, &g_world) == BT_OK);
    rc = drafts_main(argc, argv, TESTS, sizeof(TESTS) / sizeof(TESTS[0]), g_world);
    sequence_free(&g_each);
    return rc;
}

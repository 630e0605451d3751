/* Who is there, who agrees, who is missing. */
#include "coordinator/cell.h"

#include "core/alloc.h"
#include "tests/proto/control_samples.h"
#include "tests/support/test.h"

static bt_status attach(bt_cell *cell, bt_up hello)
{
    bt_status st = bt_cell_attach(cell, &hello.u.hello);

    bt_up_free(&hello);
    return st;
}

static void cell_of_agreeing_ranks_completes(void)
{
    bt_cell cell = {0};
    bt_up   m;
    long    live = bt_alloc_live();
    char    text[64];

    EXPECT(!bt_cell_complete(&cell) && !bt_cell_ready(&cell));
    for (uint32_t i = 0; i < 3; i++)
        EXPECT_EQ(attach(&cell, sample_hello(2 * i % 3, 3)), BT_OK); /* 0, 2, 1 */
    EXPECT(bt_cell_complete(&cell) && !bt_cell_ready(&cell));
    EXPECT_EQ(cell.max_epoch, 3);
    cell.ranks[1].ready = true;
    cell.n_ready        = 1;
    bt_cell_missing(&cell, text, sizeof(text));
    EXPECT(strcmp(text, "ranks 0, 2") == 0);
    m = sample_hello(0, 3);
    EXPECT_EQ(attach(&cell, m), BT_ERR_INVALID_ARG);
    bt_cell_fini(&cell);
    EXPECT_EQ(bt_alloc_live(), live);
}

static void cell_refuses_who_disagrees(void)
{
    bt_cell cell = {0};
    bt_up   m;

    EXPECT_EQ(attach(&cell, sample_hello(0, 3)), BT_OK);
    m = sample_hello(1, 4);
    EXPECT_EQ(attach(&cell, m), BT_ERR_INVALID_ARG);
    EXPECT_HAS(bt_error_text(), "rank 1 on host says n_ranks 4, but rank 0 on host says 3");
    m                           = sample_hello(1, 3);
    m.u.hello.model_fingerprint = 1;
    EXPECT_EQ(attach(&cell, m), BT_ERR_INVALID_ARG);
    EXPECT_HAS(bt_error_text(), "0000000000000001");
    m                       = sample_hello(1, 3);
    m.u.hello.eos_tokens[1] = 3;
    EXPECT_EQ(attach(&cell, m), BT_ERR_INVALID_ARG);
    EXPECT_HAS(bt_error_text(), "eos_tokens");
    m                       = sample_hello(1, 3);
    m.u.hello.arithmetic[0] = 'X';
    EXPECT_EQ(attach(&cell, m), BT_ERR_INVALID_ARG);
    EXPECT_HAS(bt_error_text(), "arithmetic");
    EXPECT_EQ(cell.n_attached, 1);
    bt_cell_fini(&cell);
}

static void cell_missing_text_is_cut_not_overrun(void)
{
    bt_cell cell = {0};
    char    text[16];

    EXPECT_EQ(attach(&cell, sample_hello(0, 3000)), BT_OK);
    bt_cell_missing(&cell, text, sizeof(text));
    EXPECT(strlen(text) == sizeof(text) - 1);
    bt_cell_fini(&cell);
}

static void cell_short_memory_is_an_error(void)
{
    bt_cell cell  = {0};
    bt_up   hello = sample_hello(0, 3);
    long    live  = bt_alloc_live();

    bt_alloc_fail_at(0);
    EXPECT_EQ(bt_cell_attach(&cell, &hello.u.hello), BT_ERR_NO_MEMORY);
    bt_alloc_fail_at(-1);
    EXPECT_EQ(bt_alloc_live(), live);
    EXPECT_EQ(bt_cell_attach(&cell, &hello.u.hello), BT_OK); /* nothing was spoilt */
    bt_cell_fini(&cell);
    bt_up_free(&hello);
}

static const bt_test tests[] = {
    BT_TEST(cell_of_agreeing_ranks_completes),
    BT_TEST(cell_refuses_who_disagrees),
    BT_TEST(cell_missing_text_is_cut_not_overrun),
    BT_TEST(cell_short_memory_is_an_error),
};

int main(int argc, char **argv) { return BT_RUN_TESTS(tests, argc > 1 ? argv[1] : NULL); }

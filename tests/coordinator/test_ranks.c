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
    m             = sample_hello(1, 3);
    m.u.hello.mtp = 0; /* how often the group exchanges behind a step depends on it */
    EXPECT_EQ(attach(&cell, m), BT_ERR_INVALID_ARG);
    EXPECT_HAS(bt_error_text(), "mtp");
    EXPECT(cell.ranks[0].attached && !cell.ranks[1].attached);
    bt_cell_fini(&cell);
}

/* A rank of 2 + 2 and a spare that comes back, with the seats of an epoch and who is gone. */
static bt_up hello_again(uint32_t rank, uint32_t epoch, uint32_t first, uint32_t gone)
{
    bt_up        m = sample_hello(rank, 5);
    bt_up_hello *h = &m.u.hello;

    h->n_prefill = h->n_decode = 2;
    h->n_spares                = 1;
    h->incarnation             = 2ull << 32 | 7;
    h->seats                   = (bt_down_regroup){
                          .epoch = epoch, .groups = {{epoch, 2, sample_ids(2)}, {1, 2, sample_ids(2)}}
    };
    h->seats.groups[0].ranks[0] = first;
    h->seats.groups[0].ranks[1] = 1;
    h->seats.groups[1].ranks[0] = 2;
    h->seats.groups[1].ranks[1] = 3;
    if (gone != BT_NO_RANK) {
        h->seats.n_gone  = 1;
        h->seats.gone    = sample_ids(1);
        h->seats.gone[0] = gone;
    }
    return m;
}

static void cell_that_comes_back_believes_whom_has_heard_last(void)
{
    bt_cell cell = {0};
    long    live = bt_alloc_live();
    bt_up   m;

    EXPECT_EQ(attach(&cell, hello_again(0, 5, 0, BT_NO_RANK)), BT_OK); /* it was stopped since */
    EXPECT_EQ(attach(&cell, hello_again(2, 6, BT_NO_RANK, 0)), BT_OK);
    EXPECT_EQ(attach(&cell, hello_again(3, 5, 0, BT_NO_RANK)), BT_OK);
    EXPECT(cell.ranks[0].lost && !cell.ranks[1].lost);
    EXPECT_EQ(bt_cell_memory(&cell)->rank, 2);
    EXPECT_EQ(cell.incarnation, 2ull << 32 | 7);
    EXPECT(!bt_cell_has_most(&cell, false)); /* 2 and 3, of 1 to 4 */
    EXPECT(bt_cell_has_most(&cell, true));
    cell.ranks[2].lost = true; /* it died on its way: of four it was all the same */
    EXPECT(bt_cell_has_most(&cell, true));
    cell.ranks[3].lost = true;
    EXPECT(!bt_cell_has_most(&cell, true));
    cell.ranks[2].lost = cell.ranks[3].lost = false;
    m                                       = hello_again(1, 7, 4, 0);
    m.u.hello.seats.gone[0]                 = 1;
    EXPECT_EQ(attach(&cell, m), BT_ERR_INVALID_ARG);
    EXPECT_HAS(bt_error_text(), "rank 1 says that rank 1 of 5 is gone");
    EXPECT_EQ(attach(&cell, hello_again(1, 7, 4, 0)), BT_OK); /* the spare has a seat by now */
    EXPECT_EQ(bt_cell_memory(&cell)->rank, 1);
    EXPECT(bt_cell_has_most(&cell, false) && !bt_cell_complete(&cell));
    cell.ranks[3].lost = true;
    EXPECT(!bt_cell_has_most(&cell, false)); /* 1 and 2, of 1 to 4 */
    cell.ranks[3].lost = false;
    EXPECT_EQ(attach(&cell, hello_again(4, 7, 4, 0)), BT_OK);
    EXPECT(bt_cell_complete(&cell));
    for (uint32_t i = 1; i < 5; i++)
        cell.ranks[i].ready = true;
    EXPECT(bt_cell_ready(&cell)); /* without rank 0 */
    bt_cell_fini(&cell);
    EXPECT_EQ(bt_alloc_live(), live);
}

static void cell_that_comes_back_refuses_seats_of_another_shape(void)
{
    bt_cell cell = {0};
    bt_up   m    = hello_again(1, 5, 0, BT_NO_RANK);

    m.u.hello.seats.groups[1].n = 1;
    EXPECT_EQ(attach(&cell, m), BT_ERR_INVALID_ARG);
    EXPECT_HAS(bt_error_text(), "speaks of 2 and 1 seats, its cell has 2 and 2");
    EXPECT_EQ(attach(&cell, hello_again(1, 5, 5, BT_NO_RANK)), BT_ERR_INVALID_ARG);
    EXPECT_HAS(bt_error_text(), "rank 5 of 5 has a seat");
    EXPECT_EQ(attach(&cell, hello_again(1, 5, 0, 4)), BT_OK);
    EXPECT_EQ(attach(&cell, hello_again(4, 5, 0, BT_NO_RANK)), BT_ERR_INVALID_ARG);
    EXPECT_HAS(bt_error_text(), "has been removed from its cell");
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
    BT_TEST(cell_that_comes_back_believes_whom_has_heard_last),
    BT_TEST(cell_that_comes_back_refuses_seats_of_another_shape),
    BT_TEST(cell_missing_text_is_cut_not_overrun),
    BT_TEST(cell_short_memory_is_an_error),
};

int main(int argc, char **argv) { return BT_RUN_TESTS(tests, argc > 1 ? argv[1] : NULL); }

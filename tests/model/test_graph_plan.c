/* What a group concludes from what its ranks offer: one graph for all of them, or none. */
#include "model/graph_plan.h"

#include "model/model.h"
#include "tests/support/test.h"

/* Of a rank that can run up to 8 rows and 4 parts, and has captured all of that, or none. */
static bt_graph_offer offer(uint32_t n_parts, bool has)
{
    bt_graph_offer o = {.n_parts = n_parts};

    for (int size = 0; size <= 3; size++) {
        o.can[size] = 7;
        o.has[size] = has ? 7 : 0;
    }
    return o;
}

static void expect_choice(const bt_graph_offer *all, uint32_t most_rows, uint32_t n_rows,
                          uint32_t n_parts, bool captures)
{
    bt_graph_choice c = bt_graph_choose(all, most_rows);

    EXPECT_EQ(c.n_rows, n_rows);
    EXPECT_EQ(c.n_parts, n_parts);
    EXPECT_EQ(c.captures, captures);
}

static void expect_none(const bt_graph_offer *all, uint32_t most_rows)
{
    expect_choice(all, most_rows, 0, 0, false);
}

static void one_rank_takes_the_next_power_of_two(void)
{
    static const uint32_t ROWS[][2] = {
        {0, 1},
        {1, 1},
        {2, 2},
        {3, 4},
        {4, 4},
        {5, 8},
        {8, 8}
    };
    bt_graph_offer all = offer(3, true);

    for (size_t i = 0; i < sizeof(ROWS) / sizeof(ROWS[0]); i++)
        expect_choice(&all, ROWS[i][0], ROWS[i][1], 4, false);
    expect_none(&all, 9);
    expect_none(&all, BT_GRAPH_MAX_ROWS + 1);
    expect_none(&all, UINT32_MAX);
    all.n_parts = 5;
    expect_none(&all, 1);
    all.n_parts = UINT32_MAX;
    expect_none(&all, 1);
}

static void the_longest_context_of_any_rank_counts(void)
{
    bt_graph_offer all = offer(1, true), other = offer(2, true);

    bt_graph_join(&all, &other);
    expect_choice(&all, 3, 4, 2, false);
    other = offer(1, true);
    bt_graph_join(&all, &other);
    expect_choice(&all, 3, 4, 2, false);
}

static void rank_whose_rows_can_be_no_graph_decides_for_all(void)
{
    bt_graph_offer all = offer(1, true), other = offer(0, true);

    bt_graph_join(&all, &other);
    expect_none(&all, 1);
    other = offer(1, true);
    bt_graph_join(&all, &other);
    expect_none(&all, 1);
}

static void graph_that_a_rank_lacks_is_captured_or_nobodys(void)
{
    bt_graph_offer all = offer(1, true), other = offer(1, true);

    other.has[1] = 6;
    bt_graph_join(&all, &other);
    expect_choice(&all, 2, 2, 1, true);
    expect_choice(&all, 4, 4, 1, false);
    other.can[1] = 6; /* it has tried */
    bt_graph_join(&all, &other);
    expect_none(&all, 2);
    expect_choice(&all, 4, 4, 1, false);
    all.n_parts = 2;
    expect_choice(&all, 2, 2, 2, false);
}

/* Of each size up to max_rows, for each doubling of parts up to the context, by layers. */
static void graphs_room_grows_with_rows_and_context(void)
{
    static const bt_graph_ops  GRAPHS = {0};
    static const bt_device_ops OPS = {.graphs = &GRAPHS}, NONE = {0};
    static const struct {
        uint32_t max_rows, max_context, n_graphs;
    } CASES[] = {
        {1,    1,                            1     },
        {16,   2 * BT_ATTN_SPLIT_TOKENS,     5 * 2 },
        {31,   2 * BT_ATTN_SPLIT_TOKENS + 1, 5 * 3 },
        {1024, 80 * BT_ATTN_SPLIT_TOKENS,    9 * 8 },
        {1024, UINT32_MAX,                   9 * 16},
    };
    bt_device dev = {.ops = &OPS};

    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        bt_model_config cfg = {.n_layers = 3, .max_context = CASES[i].max_context};
        uint64_t        one;

        dev.ops = &OPS;
        one = bt_model_graph_bytes(&dev, &(bt_model_config){.n_layers = 3, .max_context = 1}, 1);
        EXPECT(one > 0);
        EXPECT_EQ(bt_model_graph_bytes(&dev, &cfg, CASES[i].max_rows), CASES[i].n_graphs * one);
        dev.ops = &NONE;
        EXPECT_EQ(bt_model_graph_bytes(&dev, &cfg, CASES[i].max_rows), 0);
    }
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {
        BT_TEST(graphs_room_grows_with_rows_and_context),
        BT_TEST(one_rank_takes_the_next_power_of_two),
        BT_TEST(the_longest_context_of_any_rank_counts),
        BT_TEST(rank_whose_rows_can_be_no_graph_decides_for_all),
        BT_TEST(graph_that_a_rank_lacks_is_captured_or_nobodys),
    };

    return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
}

/* A rank's process dies in the middle of an exchange by NCCL, which the others have launched as a
 * graph: they are told who is missing, regroup, capture anew, and go on.  The verdict is the line
 * "all survivors: ok", as in test_death.c. */
#include <unistd.h>

#include "tests/parallel/carrier_site.h"

enum { BYTES = 1000000 }; /* more than is ever under way */

static bt_graph *g_graph;

static void drop_graph(void *ctx)
{
    (void)ctx;
    g_dev->ops->graphs->destroy(g_dev, g_graph);
    g_graph = NULL;
}

static bt_group *survivors(void)
{
    uint32_t    ranks[MAX_RANKS];
    bt_group   *group   = NULL;
    bt_carrier *carrier = NULL;

    for (uint32_t i = 0; i < g_ranks; i++)
        ranks[i] = i;
    if (bt_group_create(g_world, g_ranks - 1, ranks, 0, next_epoch(), &group) != BT_OK ||
        bt_carrier_nccl_create(&bt_nccl_module_table, g_dev, g_world, ROLL_SPACE, &carrier) !=
            BT_OK)
        bt_world_exit(EXIT_FAILURE);
    bt_group_attach(group, carrier);
    return group;
}

static void die_half_way(bt_group *group, void *memory)
{
    bt_exchange x               = {.send = memory};
    bt_wait     wait            = wait_s(20);
    size_t      none[MAX_RANKS] = {0}, to[MAX_RANKS] = {0};

    x.send_at = x.recv_at = x.recv_bytes = none;
    x.send_bytes                         = to;
    for (uint32_t i = 0; i < g_ranks - 1; i++)
        to[i] = BYTES;
    bt_group_exchange_device(group, &x, &wait); /* enqueued, and some of it on its way */
    _exit(0);
}

static void await_the_dead(bt_group *group, void *memory)
{
    bt_exchange x               = {.recv = memory};
    bt_wait     wait            = wait_s(6);
    size_t      none[MAX_RANKS] = {0}, from[MAX_RANKS] = {0};
    uint32_t    missing[MAX_RANKS];

    x.send_at = x.send_bytes = x.recv_at = none;
    x.recv_bytes                         = from;
    from[g_ranks - 1]                    = BYTES;
    wait.what                            = "moe dispatch";
    wait.layer                           = 2;
    EXPECT_EQ(g_dev->ops->graphs->begin(g_dev), BT_OK);
    EXPECT_EQ(bt_group_exchange_device(group, &x, &wait), BT_OK);
    EXPECT_EQ(g_dev->ops->graphs->end(g_dev, &g_graph), BT_OK);
    EXPECT_EQ(g_dev->ops->graphs->launch(g_dev, g_graph), BT_OK);
    EXPECT_EQ(bt_group_settle(group, &wait), BT_ERR_TIMEOUT);
    EXPECT(g_graph == NULL);
    EXPECT_HAS(bt_error_text(), "moe dispatch");
    EXPECT_HAS(bt_error_text(), "of layer 2 in epoch");
    EXPECT_EQ(bt_group_missing(group, missing), 1);
    EXPECT_EQ(missing[0], g_ranks - 1);
}

int main(int argc, char **argv)
{
    bt_wait   wait = wait_s(20);
    bt_group *group;
    uint8_t  *memory;

    mpi_test_start(&argc, &argv);
    memory = take((size_t)MAX_RANKS * BYTES);
    group  = carried_group();
    EXPECT_EQ(gather_and_settle(group, memory, 1000, &wait), BT_OK);
    if (g_rank == g_ranks - 1) die_half_way(group, memory);
    bt_group_watch_end(group, drop_graph, NULL);
    await_the_dead(group, memory);
    bt_group_destroy(group);
    group = survivors();
    EXPECT_EQ(bt_group_warm(group, &wait), BT_OK);
    bt_group_watch_end(group, drop_graph, NULL);
    EXPECT_EQ(g_dev->ops->graphs->begin(g_dev), BT_OK);
    EXPECT_EQ(gather(group, memory, BYTES, &wait), BT_OK);
    EXPECT_EQ(g_dev->ops->graphs->end(g_dev, &g_graph), BT_OK);
    put(memory + (size_t)g_rank * BYTES, BYTES, 5, g_rank, 0);
    EXPECT_EQ(g_dev->ops->graphs->launch(g_dev, g_graph), BT_OK);
    EXPECT_EQ(bt_group_settle(group, &wait), BT_OK);
    for (uint32_t i = 0; i < g_ranks - 1; i++)
        EXPECT_EQ(wrong_bytes(memory + (size_t)i * BYTES, BYTES, 5, i, 0), 0);
    survivors_end(group, &wait);
}

#include "model/graph_plan.h"

uint32_t bt_log2_up(uint32_t n)
{
    uint32_t i = 0;

    while (1u << i < n)
        i++;
    return i;
}

void bt_graph_join(bt_graph_offer *all, const bt_graph_offer *one)
{
    uint32_t longest = all->n_parts > one->n_parts ? all->n_parts : one->n_parts;

    all->n_parts = all->n_parts == 0 || one->n_parts == 0 ? 0 : longest;
    for (int size = 0; size < BT_GRAPH_SIZES; size++) {
        all->has[size] &= one->has[size];
        all->can[size] &= one->can[size];
    }
}

bt_graph_choice bt_graph_choose(const bt_graph_offer *all, uint32_t most_rows)
{
    bt_graph_choice none = {.n_rows = 0};
    uint32_t        size, class, bit;

    if (most_rows > BT_GRAPH_MAX_ROWS || all->n_parts == 0 ||
        all->n_parts > 1u << (BT_GRAPH_CLASSES - 1))
        return none;
    size  = bt_log2_up(most_rows);
    class = bt_log2_up(all->n_parts);
    bit   = 1u << class;
    if (!(all->can[size] & bit)) return none;
    return (bt_graph_choice){
        .n_rows = 1u << size, .n_parts = bit, .captures = !(all->has[size] & bit)};
}

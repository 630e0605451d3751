#include "coordinator/board.h"

#include <stdatomic.h>

#include "core/alloc.h"

enum { N_SNAPSHOTS = 3, FRESH = 4 };

struct bt_board {
    bt_snapshot snapshots[N_SNAPSHOTS];
    atomic_uint middle; /* the one that neither side holds; FRESH: not read yet */
    uint32_t    back, front;
};

bt_status bt_board_create(bt_board **board_out)
{
    bt_status st    = BT_OK;
    bt_board *board = bt_calloc(1, sizeof(*board));

    BT_REQUIRE(board != NULL, BT_ERR_NO_MEMORY, "status board");
    board->back = 0;
    atomic_init(&board->middle, 1);
    board->front = 2;
    *board_out   = board;
out:
    return st;
}

void bt_board_destroy(bt_board *board)
{
    if (board == NULL) return;
    for (uint32_t i = 0; i < N_SNAPSHOTS; i++)
        bt_free(board->snapshots[i].ranks);
    bt_free(board);
}

bt_snapshot *bt_board_begin(bt_board *board, uint32_t n_ranks)
{
    bt_snapshot  *s = &board->snapshots[board->back];
    bt_rank_view *grown;

    if (s->rank_cap < n_ranks) {
        grown = bt_realloc(s->ranks, n_ranks, sizeof(*grown));
        if (grown == NULL) return NULL;
        s->ranks    = grown;
        s->rank_cap = n_ranks;
    }
    return s;
}

void bt_board_publish(bt_board *board)
{
    board->back =
        atomic_exchange_explicit(&board->middle, board->back | FRESH, memory_order_acq_rel) & 3;
}

const bt_snapshot *bt_board_read(bt_board *board)
{
    if (atomic_load_explicit(&board->middle, memory_order_relaxed) & FRESH)
        board->front =
            atomic_exchange_explicit(&board->middle, board->front, memory_order_acq_rel) & 3;
    return &board->snapshots[board->front];
}

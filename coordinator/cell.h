/* coordinator/cell.h - the ranks of the cell: who has attached, whether they agree, who is ready.
 *
 * Plain data; no gRPC, no clock of its own. */
#ifndef BT_COORDINATOR_CELL_H
#define BT_COORDINATOR_CELL_H

#include "coordinator/relay.h"

/* How fast a rank is, smoothed over the last seconds; and its beat a second ago. */
typedef struct {
    bt_up_beat beat;
    uint64_t   stepped_ns; /* its time in the model when it was last seen to have ended steps */
    double     handoff_s;  /* of the last second with one: prompt's end to last message */
    double     busy, gather, sample; /* fractions of the time */
    double     own;                  /* likewise: computing, not waiting for others */
    double     slowness; /* own, by that of the others of its group; 0: shown of one that is not */
    uint32_t   n_slow;   /* seconds in a row that it has held its group up */
    double     step_s, rows_per_step, prompt_rate, generated_rate, handoff_rate;
} bt_rank_rates;

typedef struct bt_peer_state bt_peer_state; /* pairs.c */

typedef struct {
    bt_up_hello    hello;                 /* owned */
    bool           attached, ready, lost; /* lost: it will not come back */
    uint32_t       group; /* 0 prefill (or both roles), 1 decode, 2 none; when lost: the last */
    uint64_t       done_bytes, total_bytes;
    bt_up_beat     beat;
    uint32_t       n_experts;
    uint64_t      *expert_rows; /* owned [n_experts]: of its ExpertLoad */
    bt_rank_rates  rates;       /* the observer's */
    bt_peer_state *peers; /* owned [n_ranks]: its traffic with each; NULL before it reports any */
    uint64_t       peers_at_ns;   /* when it last did, by its clock */
    uint32_t       peers_quiet_s; /* seconds since then */
    char          *leave_reason;  /* owned: why it said it would go */
} bt_cell_rank;

/* What ranks have counted since they started, lost ones too. */
typedef struct {
    uint64_t prefix_asked_tokens, prefix_hit_tokens; /* of those that prefill: a hit on a decode
                                                      * rank saves only the transfer */
    uint64_t draft_tokens, draft_right_tokens, drafts;
    uint32_t n_groups; /* 1: ranks have both roles */
    uint32_t n_experts;
    uint64_t expert_rows[2][BT_EXPERT_LOAD_MAX]; /* by group */
} bt_cell_counts;

typedef struct {
    const char   *name;    /* the first rank's; "" unless it names its cell */
    uint32_t      n_ranks; /* 0 before the first hello */
    bt_cell_rank *ranks;   /* owned [n_ranks] */
    uint32_t      first;   /* the rank that the others must agree with */
    uint32_t      max_epoch;
    uint64_t      incarnation; /* the highest that any rank has followed; 0: a cell as launched */
    uint32_t      speaker;     /* then: the rank that has heard last who sits where */
} bt_cell;

/* What a cell that comes back reports: who sits where, and the seed of its prefix caches. */
static inline const bt_up_hello *bt_cell_memory(const bt_cell *cell)
{
    return &cell->ranks[cell->speaker].hello;
}

/* Where the rank sits: its group, but 2 when it is lost. */
static inline uint32_t bt_cell_group(const bt_cell *cell, uint32_t rank)
{
    return cell->ranks[rank].lost ? 2 : cell->ranks[rank].group;
}

void bt_cell_fini(bt_cell *cell); /* a cell of zeroes is an empty one */
/* INVALID_ARG unless it could be a rank of this cell, by what it says of itself and of the others.
 */
bt_status bt_cell_fits(const bt_cell *cell, const bt_up_hello *hello);

/* Takes what the hello owns.  INVALID_ARG names the rank, the field and both values when it does
 * not agree with the ranks that are there, or is there already.  Of ranks that come back from
 * another coordinator, the one that has heard last says which others are lost. */
bt_status bt_cell_attach(bt_cell *cell, bt_up_hello *hello);
bool      bt_cell_complete(const bt_cell *cell); /* every rank has attached that is not lost */
bool      bt_cell_ready(const bt_cell *cell);    /* and is ready */
/* Of a cell that comes back: more than half of those that were there when its coordinator was lost
 * are here again, so that no other coordinator can have as many; hope: or may still come.  Exactly
 * half is not enough, whoever is among them: of two ranks one goes on by right when it has heard
 * that the other was removed, and the other, which has not heard it, knows no more than one that is
 * left of two. */
bool bt_cell_has_most(const bt_cell *cell, bool hope);
/* "ranks 1, 3, 4": those not attached, or, when all are, those not ready. */
void bt_cell_missing(const bt_cell *cell, char *buf, size_t capacity);
/* Adds the ranks' counts to the sum. */
void bt_cell_count(const bt_cell *cell, bt_cell_counts *sum);
/* "the cell", or "cell "NAME"" where it has one; in buf. */
enum { BT_CELL_TITLE = BT_CELL_NAME_MAX + 16 };
const char *bt_cell_title(const bt_cell *cell, char buf[BT_CELL_TITLE]);
/* "decode rank 3 (pid 4711 on node2)", with the cell where it has a name. */
void bt_cell_rank_text(const bt_cell *cell, uint32_t rank, char *buf, size_t capacity);
/* Hello's facts of the cell, the same for every rank. */
const bt_up_hello *bt_cell_facts(const bt_cell *cell);

#endif

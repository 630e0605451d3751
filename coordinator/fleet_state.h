/* coordinator/fleet_state.h - inside the fleet only: what its files share. */
#ifndef BT_COORDINATOR_FLEET_STATE_H
#define BT_COORDINATOR_FLEET_STATE_H

#include "coordinator/fleet.h"
#include "coordinator/table.h"

typedef struct bt_fleet_cell bt_fleet_cell;

/* A rank's control stream: the data of its peer. */
typedef struct {
    bt_fleet_cell   *cell;
    uint32_t         rank;
    bt_control_peer *peer; /* NULL: not here, or shut out */
} bt_rank_stream;

/* A cell, and what the fleet keeps of it. */
struct bt_fleet_cell {
    bt_fleet       *fleet;
    bt_cell         cell;
    bt_cell_state   state;
    bt_rank_stream *streams; /* owned [cell.n_ranks] */
    uint32_t        n_peers;
    uint64_t        incarnation;          /* as its ranks were welcomed; 0: not yet */
    bt_relay       *relay;                /* owned; NULL unless serving or draining */
    uint64_t        deadline_ns;          /* of the state; UINT64_MAX: none */
    bool            comes_to_drain;       /* it comes back, was to drain, and has lost what ran */
    uint32_t        n_worn;               /* empty seats without a spare, as announced */
    uint64_t        short_since_ns;       /* a group has no rank left; 0: none has */
    char            stuck[BT_FLEET_TEXT]; /* by the relay, acted upon after it returns */
};

struct bt_fleet {
    bt_fleet_config  cfg;
    bt_fleet_events  events;
    bt_fleet_cell   *cells[BT_FLEET_CELLS]; /* owned [n_cells] */
    uint32_t         n_cells;
    bt_up_hello      facts;                  /* owned; zeroes before a cell serves */
    bool             stopped, no_more;       /* no_more: nobody starts a cell again */
    uint32_t         life;                   /* this process's own part of incarnations: never 0 */
    char             refusal[BT_FLEET_TEXT]; /* the last rank that was refused, and why */
    uint64_t         arrivals, prefix_seed;  /* of all cells, so that one list of keys serves */
    bt_relay_list    lobby;                  /* owned: requests that wait for a cell */
    bt_table         lobby_names;
    uint32_t         n_lobby;
    uint64_t         lobby_tokens, lobby_text;
    uint64_t         next_lobby_ns;       /* when it is looked at again */
    uint64_t         ticked_ns, awake_ns; /* the last time; since when it has not stood still */
    uint64_t         tokens_before, retracted_before; /* of cells that have gone, */
    bt_cell_counts   counts_before;                   /* and what their ranks have counted */
    grpc_status_code stop_code;
    char             stop_reason[BT_FLEET_TEXT];
};

/* fleet.c */
bt_fleet_cell *bt_fleet_find(const bt_fleet *fleet, const char *name); /* NULL: no such cell */
/* The cell does without it from now on: it hears that, if it can, and nothing of it is heard. */
void bt_fleet_shut_out(bt_fleet_cell *c, uint32_t rank, const char *reason);
/* The cell has failed: its requests go elsewhere, its ranks are told to leave. */
BT_PRINTF(2, 3) void bt_fleet_lose(bt_fleet_cell *c, const char *fmt, ...);

/* Forgets a cell that has gone, or never was. */
void bt_fleet_remove(bt_fleet *fleet, bt_fleet_cell *c);
void bt_fleet_tell_to_leave(const bt_rank_stream *stream, const char *reason);
/* No request of the cell is there any more: its ranks are told to leave. */
void bt_fleet_dismiss(bt_fleet_cell *c, const char *reason);
void bt_fleet_over_if_last(bt_fleet *fleet, bool well, const char *reason);
/* As far towards serving as it gets with those who have attached and are ready. */
void bt_fleet_advance(bt_fleet_cell *c);

/* fleet_return.c */
uint32_t bt_fleet_draw_life(void);
/* May the rank attach at all, as far as its hello says where it comes from?  INVALID_ARG says why
 * not; *again_out: it may try again, since what is wrong is not the rank. */
bt_status bt_fleet_check_origin(bt_fleet *fleet, const bt_up_hello *hello, bool *again_out);
/* Everybody is here who is waited for.  Shuts out whom the others know as lost; says Welcome. */
void bt_fleet_welcome(bt_fleet_cell *c);
/* The rest is not waited for any longer; false: too few are here, or the cell is not of that kind.
 */
bool bt_fleet_go_without(bt_fleet_cell *c);
/* bt_fleet_go_without(), for one that has died; of those that have been welcomed one is enough. */
bool bt_fleet_go_without_rank(bt_fleet_cell *c, uint32_t rank);

/* fleet_place.c */
/* All open requests of a lost cell, or those of a draining one that wait, go to others. */
void bt_fleet_move_all(bt_fleet *fleet, bt_fleet_cell *from, uint64_t now_ns);
void bt_fleet_move_queue(bt_fleet *fleet, bt_fleet_cell *from, uint64_t now_ns);
/* From the lobby and from full cells to those with room; ends what has waited too long. */
void bt_fleet_balance(bt_fleet *fleet, uint64_t now_ns);
void bt_fleet_empty_lobby(bt_fleet *fleet, grpc_status_code code, const char *why);

#endif

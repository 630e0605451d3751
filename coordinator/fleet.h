/* coordinator/fleet.h - the cells of this coordinator, and which of them a request goes to.
 *
 * A rank names its cell when it attaches.  Every cell lives by itself:
 *
 *     attaching -> loading, when all ranks are here -> serving, when all are ready -> draining
 *     leaving, from each of them: a rank is lost, a deadline passes, or what drained is done
 *
 * (With relay.replace a serving cell goes on without the rank, as long as both its groups have
 * one.)
 *
 * A cell whose coordinator was lost attaches with what it knows (fleet_return.c): it goes on as it
 * was, without requests.  With relay.replace it need not be whole.
 *
 * From serving on it has a relay of its own.  Cells may have other numbers of ranks, but compute
 * the same bits: model, arithmetic, sum blocks and split sizes are equal, or the rank is refused. A
 * request goes to the serving cell with the least to do; when one cell has waiting requests and
 * another has room, the oldest of them move.  Open requests of a lost cell go on in another one
 * with the tokens that their clients have.  While no cell serves they wait in the lobby.
 *
 * The loop's thread.  Events are made from inside the calls and must not call the fleet. */
#ifndef BT_COORDINATOR_FLEET_H
#define BT_COORDINATOR_FLEET_H

#include "coordinator/cell.h"
#include "coordinator/relay_view.h"
#include "proto/control_server.h"

enum { BT_FLEET_CELLS = 256, BT_FLEET_TEXT = 512 };

typedef struct bt_fleet bt_fleet;

typedef enum {
    BT_CELL_ATTACHING,
    BT_CELL_LOADING,
    BT_CELL_SERVING,
    BT_CELL_DRAINING, /* what runs goes on, nothing new comes */
    BT_CELL_LEAVING
} bt_cell_state;

typedef struct {
    bt_relay_config relay; /* limits and times; a cell's own (ranks, shape, epoch) is not set */
    uint64_t        attach_ns, load_ns;
    uint64_t        rejoin_ns;   /* relay.replace: how long a group without a rank is waited for */
    uint64_t        config_hash; /* bt_config_hash(), which ranks must have too; 0: any */
    uint64_t wait_ns; /* how long requests wait for a cell, where none is left; 0: the fleet has
                       * failed then */
    int announce_fd;
} bt_fleet_config;

typedef struct {
    bt_client_events client;
    void (*serving)(void *ctx); /* a cell has become ready: may call the fleet */
    /* No cell is left, and none is waited for.  well: the last one has drained.  May call
     * bt_fleet_stop(). */
    void (*over)(void *ctx, bool well, const char *reason);
    void *ctx;
} bt_fleet_events;

/* Both structs are copied.  NO_MEMORY. */
bt_status bt_fleet_create(const bt_fleet_config *config, const bt_fleet_events *events,
                          bt_fleet **fleet_out);
/* After the control server's end: no stream is told anything. */
void bt_fleet_destroy(bt_fleet *fleet);

/* bt_control_events, with the fleet as their ctx. */
void bt_fleet_message(void *fleet, bt_control_peer *peer, bt_up *m);
void bt_fleet_lost(void *fleet, bt_control_peer *peer);
/* Deadlines, changes between cells, the lobby; call it several times a second. */
void bt_fleet_tick(bt_fleet *fleet, uint64_t now_ns);

/* As bt_relay_submit() and those that follow it, over all cells. */
bt_status bt_fleet_submit(bt_fleet *fleet, bt_relay_submission *request, void *client,
                          uint64_t now_ns, uint64_t *number_out, grpc_status_code *code_out);
void      bt_fleet_abort_client(bt_fleet *fleet, const void *client, const char *name,
                                const char *reason);
bool      bt_fleet_abort_name(bt_fleet *fleet, const char *name, const char *reason);
void      bt_fleet_get_loads(const bt_fleet *fleet, bt_relay_loads *loads_out);
uint64_t  bt_fleet_max_tokens(const bt_fleet *fleet);
uint64_t  bt_fleet_max_prompt(const bt_fleet *fleet);
uint64_t  bt_fleet_queued_tokens(const bt_fleet *fleet);
/* Requests that wait for a cell, oldest first, at most n_max; returns how many. */
uint32_t bt_fleet_view_lobby(const bt_fleet *fleet, uint64_t now_ns, bt_relay_request_view *out,
                             uint32_t n_max);

#define BT_FLEET_NONE_COMES "the server is draining: no cell is left, and none will come"
/* Some cell serves, or is about to. */
bool bt_fleet_any_left(const bt_fleet *fleet);
/* Nobody will start a cell again: with the loss of the last one, or now when requests wait for one
 * and there is none, the fleet is over, whatever wait_ns says. */
void bt_fleet_wait_no_more(bt_fleet *fleet);
/* Ends every request with this code and reason, tells all ranks to leave, refuses new ones. */
void bt_fleet_stop(bt_fleet *fleet, grpc_status_code code, const char *reason);
/* Attached ranks. */
uint32_t bt_fleet_n_peers(const bt_fleet *fleet);
/* Warns of each rank that is still attached. */
void bt_fleet_name_stragglers(const bt_fleet *fleet, uint32_t after_s);

/* What all cells agree upon, from the first one that served; NULL before. */
const bt_up_hello *bt_fleet_facts(const bt_fleet *fleet);

/* For those who show it. */
uint32_t        bt_fleet_n_cells(const bt_fleet *fleet);
bt_cell        *bt_fleet_cell_at(const bt_fleet *fleet, uint32_t i);
const bt_relay *bt_fleet_relay(const bt_fleet *fleet, uint32_t i); /* NULL: not serving */
bt_cell_state   bt_fleet_state(const bt_fleet *fleet, uint32_t i);
bool            bt_fleet_serves(const bt_fleet *fleet); /* a cell does, with ranks in its groups */
const char     *bt_cell_state_name(bt_cell_state state);

/* Of all ranks of all cells, also those that have gone. */
void bt_fleet_count(const bt_fleet *fleet, bt_cell_counts *counts_out);

#endif

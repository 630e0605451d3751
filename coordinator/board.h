/* coordinator/board.h - what the loop's thread shows to the HTTP thread.
 *
 * One writer, one reader, three buffers, one atomic exchange on either side: neither ever waits for
 * the other, so that the token path has no lock.  A snapshot belongs to the side that holds it. */
#ifndef BT_COORDINATOR_BOARD_H
#define BT_COORDINATOR_BOARD_H

#include "coordinator/fleet.h"
#include "coordinator/metrics.h"
#include "coordinator/pairs.h"
#include "coordinator/relay_view.h"
#include "core/parse.h"

enum { BT_HISTORY_S = 600, BT_VIEW_REQUESTS = 64, BT_HOST_TEXT = 64, BT_VIEW_CELLS = 64 };

typedef enum {
    BT_PHASE_STARTING, /* not every rank has attached */
    BT_PHASE_LOADING,
    BT_PHASE_SERVING,
    BT_PHASE_WAITING, /* requests are taken, and wait for a rank or a cell */
    BT_PHASE_DRAINING,
    BT_PHASE_CLOSING
} bt_phase;

/* One second. */
typedef struct {
    float generated, prompt; /* tokens a second */
    float running, waiting;
    float ttft_p50_s, itl_p50_s, itl_p99_s; /* 0: no token came */
    float busy_prefill, busy_decode;        /* mean fraction of the ranks' time in the model */
    float kv_used;                          /* fraction of the decode ranks' pages */
    float handoff_bytes;                    /* a second */
} bt_second;

typedef struct {
    char               host[BT_HOST_TEXT], cell[BT_HOST_TEXT], version[BT_HOST_TEXT];
    uint32_t           rank, pid, n_pages; /* rank: in its cell */
    uint64_t           weight_bytes, done_bytes, total_bytes;
    bool               attached, ready, lost;
    bt_up_beat         beat;
    bt_relay_rank_view relay;
    uint32_t           group; /* as bt_cell_rank has it */
    bt_rank_rates      rates;
    double             prompt_share; /* of prompt_rate in that of its cell's busiest rank, 0 to 1 */
} bt_rank_view;

typedef struct {
    char          name[BT_HOST_TEXT];
    char          left_out[4 * BT_HOST_TEXT]; /* hosts that it was started without; "" */
    bt_cell_state state;
    uint32_t      n_ranks, n_prefill, n_decode;
} bt_cell_view;

typedef struct {
    char         cell[BT_HOST_TEXT];
    bt_pair_view pair;
} bt_link_view;

typedef struct {
    char            cell[BT_HOST_TEXT];
    bt_avoided_view pair;
} bt_avoided_link_view;

typedef struct {
    bt_phase       phase;
    bool           tls_refused; /* the files of now: the ones before stay in use */
    uint64_t       at_ns, started_ns;
    double         unix_s, started_unix_s;
    const char    *model, *served_name; /* of the process's life */
    char           public_address[BT_ADDRESS_BYTES];
    uint32_t       n_ranks, n_prefill, n_decode, page_tokens;
    bt_relay_loads loads;
    uint64_t       queued_tokens;
    double         blocked_prefill, blocked_decode; /* part of the last second or so, and of the
                                                     * cells, in which the oldest request waited
                                                     * for that side */
    bt_metrics            metrics;
    bt_second             history[BT_HISTORY_S]; /* a ring */
    uint32_t              n_history, history_at; /* how many, and where the oldest is */
    uint32_t              n_requests;
    bt_relay_request_view requests[BT_VIEW_REQUESTS];
    uint32_t              n_cells;
    bt_cell_view          cells[BT_VIEW_CELLS];
    uint32_t              n_slow_links;
    bt_link_view          slow_links[BT_VIEW_PAIRS];
    uint32_t              n_avoided_links;
    bt_avoided_link_view  avoided_links[BT_VIEW_PAIRS];
    bt_cell_counts        counts; /* of all cells since the start */
    bt_rank_view *ranks; /* owned [rank_cap], n_ranks of them are valid: those that prefill come
                          * first, of all cells */
    uint32_t rank_cap;
} bt_snapshot;

typedef struct bt_board bt_board;

bt_status bt_board_create(bt_board **board_out); /* NO_MEMORY */
void      bt_board_destroy(bt_board *board);

/* Static text: the rank's present role. */
static inline const char *bt_role_of(const bt_snapshot *s, uint32_t rank)
{
    const bt_rank_view *r = &s->ranks[rank];

    if (r->lost) return "lost";
    if (r->group == 2) return "spare";
    return s->n_decode == 0 ? "both" : r->group == 0 ? "prefill" : "decode";
}

/* The writer's own snapshot, with old content and room for n_ranks; NULL: no memory. */
bt_snapshot *bt_board_begin(bt_board *board, uint32_t n_ranks);
void         bt_board_publish(bt_board *board);
/* The newest one, the reader's until its next call. */
const bt_snapshot *bt_board_read(bt_board *board);

#endif

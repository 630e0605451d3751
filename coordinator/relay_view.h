/* coordinator/relay_view.h - the relay as operators see it: reads, changes nothing. */
#ifndef BT_COORDINATOR_RELAY_VIEW_H
#define BT_COORDINATOR_RELAY_VIEW_H

#include "coordinator/relay.h"

enum { BT_VIEW_NAME = 40 };

typedef struct {
    uint64_t    number, age_ns;
    uint64_t    max_tokens; /* of all choices together, as n_out */
    uint32_t    n_prompt, n_out, prefill_rank, decode_rank;
    bool        placed;             /* the two ranks are valid */
    const char *state;              /* static */
    char        name[BT_VIEW_NAME]; /* its beginning */
} bt_relay_request_view;

typedef struct {
    uint32_t n_held, taken_pages, max_rows;
    uint64_t prefill_tokens; /* sent to it and not done */
    uint32_t group;          /* by now: 0 prefill (or both roles), 1 decode, 2 none */
} bt_relay_rank_view;

/* A hand-off from the one to the other has stood still, and none goes there for a while. */
typedef struct {
    uint32_t from, to;
    uint64_t left_ns;
} bt_avoided_view;

typedef enum { BT_BLOCKED_NOT, BT_BLOCKED_PREFILL, BT_BLOCKED_DECODE } bt_relay_block;

/* Open requests of a list, oldest first, at most n_max; returns how many. */
uint32_t bt_relay_view_list(const bt_relay_list *list, uint64_t now_ns, bt_relay_request_view *out,
                            uint32_t n_max);
/* Open requests: the placed ones, then the queue, both oldest first, at most n_max. */
uint32_t bt_relay_view_requests(const bt_relay *relay, uint64_t now_ns, bt_relay_request_view *out,
                                uint32_t n_max);
void     bt_relay_view_rank(const bt_relay *relay, uint32_t rank, bt_relay_rank_view *view_out);
/* Pairs of ranks that still sit there, the oldest first, at most n_max; returns how many. */
uint32_t bt_relay_view_avoided(const bt_relay *relay, uint64_t now_ns, bt_avoided_view *out,
                               uint32_t n_max);
/* The side that had no room for the oldest waiting request. */
bt_relay_block bt_relay_blocked(const bt_relay *relay);
/* Prompt tokens that wait. */
uint64_t bt_relay_queued_tokens(const bt_relay *relay);

#endif

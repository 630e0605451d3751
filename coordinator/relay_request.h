/* coordinator/relay_request.h - one client's request, from its arrival to its end, in whichever
 * relay it is or in none.
 *
 * It keeps its client, its arrival and the tokens that its client has.  What it is to a relay
 * (number, placement, prefix keys) is that relay's alone.
 *
 * The loop's thread. */
#ifndef BT_COORDINATOR_RELAY_REQUEST_H
#define BT_COORDINATOR_RELAY_REQUEST_H

#include "coordinator/prefix_index.h"
#include "proto/control_msg.h"

typedef struct bt_relay_request bt_relay_request;

typedef enum { BT_QUEUED, BT_RESERVING, BT_PREFILL, BT_DECODE, BT_ENDED } bt_relay_request_state;

/* One of n. */
typedef struct {
    uint32_t *out; /* owned: the ids given to the client, to replay */
    uint32_t  n_out, out_capacity;
    bt_token *early; /* owned: those behind the first token, while that is missing */
    uint32_t  n_early, early_capacity;
    bool      ended;
} bt_relay_request_choice;

/* What turned a queued request away when it was last looked at. */
typedef enum { BT_SHORT_UNKNOWN, BT_SHORT_OF_ROOM, BT_SHORT_OF_WINDOW } bt_relay_short;

struct bt_relay_request {
    bt_relay_request      *prev, *next; /* list of the relay: the queue, or the placed ones */
    uint64_t               number, name_key;
    uint64_t               logged;     /* the number by which the log knows it */
    uint32_t               epoch;      /* of its placement */
    char                  *name;       /* owned */
    char                  *cache_salt; /* owned; NULL: none */
    void                  *client;
    bt_relay_request_state state;
    uint32_t               n_prompt;
    uint32_t        *prompt; /* owned: copied into each Prefill, since it may be placed again */
    uint64_t         prefix_seed; /* of its keys, in its relay; 0: it has none */
    bt_page_key     *keys;        /* owned: of the prompt's full pages */
    uint32_t         n_keys;
    bt_prefix_match *matches; /* owned [ranks of its relay]: what each has of them; may be NULL */
    uint32_t   *held_pages; /* owned: where its decode rank has them, as the ticket says; or NULL */
    void       *form_map; /* owned: how its prompt was computed, for a replay; NULL: by its role */
    size_t      n_form_map_bytes;
    uint64_t    arrival; /* the smaller, the older */
    bool        resumed; /* placed before: it waits as long as its cell moves */
    uint32_t    n_still; /* times that it was placed again since its hand-off stood still */
    uint32_t    n_held;  /* prompt tokens that its decode rank had, as the ticket says */
    bt_sampling sampling;
    uint32_t    n_choices, n_open;    /* all, and those that have not ended */
    bt_relay_request_choice *choices; /* owned [n_choices] */
    bt_relay_short           short_of;
    uint32_t                 decode_rank, prefill_rank;
    bool                     decode_holds, prefill_holds; /* no Released from them yet */
    uint32_t prefill_counts; /* tokens that stand for it in its prefill rank's tokens to do */
    bool     is_long;        /* and likewise in its long_tokens and long_pages */
    uint32_t decode_pages, prefill_pages; /* counted as taken there */
    uint32_t decode_choices;              /* and likewise in its rank's n_choices */
    uint32_t n_out;                       /* tokens given to the client, of all choices */
    uint32_t n_prompt_logprobs;           /* likewise, from the prompt's second token on */
    uint64_t arrived_ns;
    uint64_t heard_ns; /* when a rank last said anything of it, or it came to where it waits */
};

/* What a request is made of; validated. */
typedef struct {
    const char *name;       /* request_id, borrowed */
    const char *cache_salt; /* borrowed; NULL: none */
    uint32_t    n_prompt;
    uint32_t   *prompt;    /* owned */
    bt_sampling sampling;  /* owned: its arrays */
    uint32_t    n_choices; /* 1 to BT_CHOICES_MAX */
    uint64_t    arrival;   /* its place among all requests, of whatever relay: from 1 */
} bt_relay_submission;

/* Takes what `from` owns, unless out of memory. */
bt_status bt_relay_request_create(bt_relay_submission *from, void *client, uint64_t now_ns,
                                  bt_relay_request **q_out);
/* Undoes create(): `to` owns what it owned before. */
void bt_relay_request_return(bt_relay_request *q, bt_relay_submission *to);
/* q: in no relay and no list, or NULL. */
void bt_relay_request_destroy(bt_relay_request *q);
/* All that destroy() would free is its copy's now, and so is its client, but for held_pages. */
void bt_relay_request_disown(bt_relay_request *q);

/* No rank has anything of it or for it; held_pages belong to whoever had that counted. */
void bt_relay_request_unplace(bt_relay_request *q);

/* What stands for a name in tables: never 0. */
uint64_t bt_relay_name_key(const char *name);

/* By first arrival; a request is in one list at most.  To go through one, take `next` before
 * the request may leave it. */
typedef struct {
    bt_relay_request *first, *last;
    bt_relay_request *near; /* where one came last that is neither: the next is close */
} bt_relay_list;

/* Behind the last one that arrived no later.  Many in the order of their arrival, or against it,
 * cost one walk through the list together. */
void bt_relay_list_insert(bt_relay_list *list, bt_relay_request *q);
void bt_relay_list_remove(bt_relay_list *list, bt_relay_request *q);

#endif

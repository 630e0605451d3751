/* coordinator/relay_request.h - one client's request, from its arrival to its end, in whichever
 * relay it is or in none.
 *
 * It keeps its client, its arrival and the tokens that its client has.  What it is to a relay
 * (number, placement, prefix keys) only the relay sees (relay_state.h).
 *
 * The loop's thread. */
#ifndef BT_COORDINATOR_RELAY_REQUEST_H
#define BT_COORDINATOR_RELAY_REQUEST_H

#include "coordinator/prefix_index.h"
#include "proto/control_msg.h"

typedef struct bt_relay_request bt_relay_request;

/* What a request is made of; validated. */
typedef struct {
    const char *name; /* request_id, borrowed */
    uint32_t    n_prompt;
    uint32_t   *prompt;    /* owned */
    bt_sampling sampling;  /* owned: its arrays */
    uint32_t    n_choices; /* at most BT_CHOICES_MAX; 0 and 1: one */
    uint64_t    arrival;   /* order among several relays; 0: by the first relay's numbers */
} bt_relay_submission;

/* Takes what `from` owns, unless out of memory. */
bt_status bt_relay_request_create(bt_relay_submission *from, void *client, uint64_t now_ns,
                                  bt_relay_request **q_out);
/* Undoes create(): `to` owns what it owned before. */
void bt_relay_request_return(bt_relay_request *q, bt_relay_submission *to);
/* q: in no relay and no list, or NULL. */
void bt_relay_request_destroy(bt_relay_request *q);

const char *bt_relay_request_name(const bt_relay_request *q);
uint64_t    bt_relay_request_name_key(const bt_relay_request *q);
void       *bt_relay_request_client(const bt_relay_request *q);
uint32_t    bt_relay_request_prompt_tokens(const bt_relay_request *q);
uint32_t    bt_relay_request_constraint_bytes(const bt_relay_request *q);
/* Borrowed; NULL: it uses no cached prefix. */
const uint32_t *bt_relay_request_prompt(const bt_relay_request *q);
uint32_t        bt_relay_request_max_tokens(const bt_relay_request *q);
uint32_t bt_relay_request_n_open(const bt_relay_request *q); /* choices that have not ended */
uint64_t bt_relay_request_arrived_ns(const bt_relay_request *q);
/* When a rank last said anything of it, or it came to where it waits. */
uint64_t bt_relay_request_heard_ns(const bt_relay_request *q);
void     bt_relay_request_hear(bt_relay_request *q, uint64_t now_ns);
bool     bt_relay_request_resumed(const bt_relay_request *q); /* it has been placed before */
/* Of its prompt, borrowed while a relay has it; NULL: none are known. */
const bt_page_key *bt_relay_request_keys(const bt_relay_request *q, uint32_t *n_out);

/* What stands for a name in tables: never 0. */
uint64_t bt_relay_name_key(const char *name);

/* By first arrival; a request is in one list at most.  To go through one, take
 * bt_relay_request_next() before the request may leave it. */
typedef struct {
    bt_relay_request *first, *last;
    bt_relay_request *near; /* where one came last that is neither: the next is close */
} bt_relay_list;

/* Behind the last one that arrived no later.  Many in the order of their arrival, or against it,
 * cost one walk through the list together. */
void              bt_relay_list_insert(bt_relay_list *list, bt_relay_request *q);
void              bt_relay_list_remove(bt_relay_list *list, bt_relay_request *q);
bt_relay_request *bt_relay_request_next(const bt_relay_request *q);

#endif

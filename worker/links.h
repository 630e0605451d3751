/* worker/links.h - a worker's links in the real world: MPI groups and hand-off, the control stream,
 * the model.
 *
 * Threads: the step thread. */
#ifndef BT_WORKER_LINKS_H
#define BT_WORKER_LINKS_H

#include <stdatomic.h>

#include "parallel/handoff.h"
#include "proto/control_client.h"
#include "worker/worker.h"

typedef struct {
    bt_worker         *worker;  /* all borrowed */
    bt_handoff        *handoff; /* NULL with both roles: nothing is handed over */
    bt_control_client *client;
    bt_model          *model;
    bt_kv_pool        *pool;
    bt_group          *group;
    const bt_world    *world;
    uint32_t           rank; /* this one's, in the world */
    uint64_t           timeout_ns;
    uint64_t           orphan_ns; /* 0: a lost stream is the end */
    atomic_int        *signal;    /* not 0: leave at once */

    bt_down *inbox; /* owned: messages met while an exchange waited */
    uint32_t inbox_at, n_inbox, inbox_capacity;
    uint64_t looked_ns, shutdown_ns; /* at the stream; when a Shutdown was met, or 0 */
    bool     broken;                 /* the inbox could not grow */
    bool     regroup_due;            /* the inbox says that this rank's group has changed */
    bool     lost, orphaned;         /* the stream, when it was last looked at; see below */
} bt_links;

/* The table for bt_worker_config; ctx is `links`, whose hand-off, if any, is there by now. */
bt_worker_links   bt_links_table(bt_links *links);
bt_handoff_events bt_links_events(bt_links *links);
void              bt_links_fini(bt_links *links);

/* The next message of the coordinator, those of the inbox first. */
bool bt_links_receive(bt_links *links, bt_down *m_out);
/* Collective over the group: everybody's plans.  CANCELLED when the rank must leave meanwhile, or
 * when its group has changed. */
bt_status bt_links_gather(bt_links *links, const bt_plan *plan, bt_plan *plans_out);
/* As the table's up().  While there is no coordinator, but another one may come, it is dropped,
 * else PEER; TIMEOUT: it takes nothing for too long; NO_MEMORY. */
bt_status bt_links_send(bt_links *links, bt_up *m);
/* The coordinator is lost, and another one may come: exchanges end with CANCELLED, and no step
 * begins. */
static inline bool bt_links_orphaned(const bt_links *links) { return links->orphaned; }
/* The coordinator breaks its promises: from now on it is lost.  False when no other one may come.
 */
bool bt_links_forsake(bt_links *links);
/* NULL: none.  All messages of the one before are dropped. */
void bt_links_set_client(bt_links *links, bt_control_client *client);
/* The rank must leave without regard to the others: a signal, a lost stream, or a shutdown that the
 * others no longer answer. */
bool bt_links_must_leave(bt_links *links);
/* Sleeps until something may have come: at most max_ns. */
void bt_links_sleep(bt_links *links, uint64_t max_ns);

#endif

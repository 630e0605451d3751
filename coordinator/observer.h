/* coordinator/observer.h - puts together what operators see: seconds, rates, snapshots.
 *
 * The loop's thread; copies only what is there, a few times a second. */
#ifndef BT_COORDINATOR_OBSERVER_H
#define BT_COORDINATOR_OBSERVER_H

#include "coordinator/board.h"

typedef struct bt_observer bt_observer;

typedef struct {
    const char *model, *served_name; /* borrowed for the observer's life */
} bt_observer_config;

/* NO_MEMORY. */
bt_status bt_observer_create(const bt_observer_config *config, bt_observer **observer_out);
void      bt_observer_destroy(bt_observer *observer);
/* Requests write here. */
bt_metrics *bt_observer_metrics(bt_observer *observer);
/* For the HTTP thread, as long as the observer lives. */
bt_board *bt_observer_board(bt_observer *observer);
void      bt_observer_set_address(bt_observer *observer, const char *public_address);
/* From then on: whether the TLS files of now cannot be used, so that the ones before are. */
void bt_observer_set_tls_refused(bt_observer *observer, bool refused);
/* Publishes a snapshot when one is due, at once when the phase is new.  */
void bt_observer_tick(bt_observer *observer, bt_phase phase, bt_fleet *fleet, uint64_t now_ns);

#endif

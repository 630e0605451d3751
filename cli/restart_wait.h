/* cli/restart_wait.h - when to start again what has died, and when to give up.
 *
 * The wait doubles with every end that follows upon another one, from 0.2 s to 30 s.  Whatever has
 * worked for a minute begins anew.  Plain code: time comes as an argument. */
#ifndef BT_CLI_RESTART_WAIT_H
#define BT_CLI_RESTART_WAIT_H

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    uint32_t n; /* ends that followed upon each other */
} bt_restart_wait;

/* It has ended now, after having worked since *serving_ns (0: it never did), which becomes 0, since
 * a good minute counts once.  False: it has ended more than n_max times in a row, which is a crash
 * loop; else *wait_ns_out is how long to wait. */
bool bt_restart_wait_next(bt_restart_wait *wait, uint32_t n_max, uint64_t *serving_ns,
                          uint64_t now_ns, uint64_t *wait_ns_out);

#endif

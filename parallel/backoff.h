/* parallel/backoff.h - how a polling wait gives its core away, and when it has lasted too long.
 *
 * Short waits answer within microseconds, long ones leave the core to the ranks that compute:
 * spin for spin_ns, then yield, then sleep for growing times.  On machines with fewer cores than
 * ranks spin_ns is 0: a spinning rank would hold up the one it waits for. */
#ifndef BT_PARALLEL_BACKOFF_H
#define BT_PARALLEL_BACKOFF_H

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/clock.h"

enum {
    BT_BACKOFF_YIELD_NS     = 200 * 1000,
    BT_BACKOFF_SLEEP_MIN_NS = 20 * 1000,
    BT_BACKOFF_SLEEP_MAX_NS = 250 * 1000,
};

typedef struct {
    uint64_t spin_ns;
    uint64_t since_ns; /* of the last progress; 0: the next wait starts the clock */
    uint64_t sleep_ns;
    uint64_t looked_ns; /* when bt_backoff_late() was asked last; at first when the wait began */
    uint64_t waited_ns; /* till then */
} bt_backoff;

/* Something moved: the next wait is short again. */
static inline void bt_backoff_reset(bt_backoff *b)
{
    b->since_ns = 0;
    b->sleep_ns = BT_BACKOFF_SLEEP_MIN_NS;
}

/* start_ns: since when the wait lasts. */
static inline void bt_backoff_init(bt_backoff *b, uint64_t spin_ns, uint64_t start_ns)
{
    b->spin_ns   = spin_ns;
    b->looked_ns = start_ns;
    b->waited_ns = 0;
    bt_backoff_reset(b);
}

/* Whether the wait has lasted limit_ns.  Between two looks no more than a quarter of that passes:
 * while the process stood still itself, most often with its machine, nobody was late. */
static inline bool bt_backoff_late(bt_backoff *b, uint64_t now_ns, uint64_t limit_ns)
{
    uint64_t passed_ns = now_ns - b->looked_ns, most_ns = limit_ns / 4 + 1;

    b->looked_ns = now_ns;
    b->waited_ns += passed_ns < most_ns ? passed_ns : most_ns;
    return b->waited_ns >= limit_ns;
}

/* Waits a little; now_ns is the present time. */
static inline void bt_backoff_wait(bt_backoff *b, uint64_t now_ns)
{
    uint64_t waited_ns;

    if (b->since_ns == 0) b->since_ns = now_ns;
    waited_ns = now_ns - b->since_ns;
    if (waited_ns < b->spin_ns) return;
    if (waited_ns < BT_BACKOFF_YIELD_NS) {
        sched_yield();
        return;
    }
    bt_sleep_ns(b->sleep_ns);
    b->sleep_ns += b->sleep_ns / 2;
    if (b->sleep_ns > BT_BACKOFF_SLEEP_MAX_NS) b->sleep_ns = BT_BACKOFF_SLEEP_MAX_NS;
}

#endif

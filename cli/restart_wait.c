#include "cli/restart_wait.h"

#include "core/clock.h"

#define FIRST_NS (200 * BT_NS_PER_MS)
#define MOST_NS  (30 * BT_NS_PER_S)
#define WELL_NS  (60 * BT_NS_PER_S)

bool bt_restart_wait_next(bt_restart_wait *wait, uint32_t n_max, uint64_t *serving_ns,
                          uint64_t now_ns, uint64_t *wait_ns_out)
{
    uint64_t wait_ns = FIRST_NS;

    if (*serving_ns != 0 && now_ns - *serving_ns >= WELL_NS) wait->n = 0;
    *serving_ns = 0;
    if (++wait->n > n_max) return false;
    for (uint32_t i = 1; i < wait->n && wait_ns < MOST_NS; i++)
        wait_ns *= 2;
    *wait_ns_out = wait_ns < MOST_NS ? wait_ns : MOST_NS;
    return true;
}

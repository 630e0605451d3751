#include "cli/backoff.h"

#include "core/clock.h"

#define FIRST_NS (200 * BT_NS_PER_MS)
#define MOST_NS  (30 * BT_NS_PER_S)
#define WELL_NS  (60 * BT_NS_PER_S)

bool bt_backoff_next(bt_backoff *backoff, uint32_t n_max, uint64_t serving_ns, uint64_t now_ns,
                     uint64_t *wait_ns_out)
{
    uint64_t wait_ns = FIRST_NS;

    if (serving_ns != 0 && now_ns - serving_ns >= WELL_NS) backoff->n = 0;
    if (++backoff->n > n_max) return false;
    for (uint32_t i = 1; i < backoff->n && wait_ns < MOST_NS; i++)
        wait_ns *= 2;
    *wait_ns_out = wait_ns < MOST_NS ? wait_ns : MOST_NS;
    return true;
}

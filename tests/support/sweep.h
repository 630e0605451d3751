/* tests/support/sweep.h - each allocation of a call fails once. */
#ifndef BT_TESTS_SUPPORT_SWEEP_H
#define BT_TESTS_SUPPORT_SWEEP_H

#include "core/alloc.h"
#include "core/status.h"
#include "tests/support/test.h"

enum { BT_SWEEP_MOST = 10000 };

/* How many allocations `make` makes, an expression of bt_status, of which the 1st, then the 2nd,
 * ... fails, until it succeeds.  Before, it is to say BT_ERR_NO_MEMORY.  `end`, an expression too,
 * ends what it made, also nothing or half of it, and leaves as much memory in use as there was. */
#define BT_SWEEP(make, end)                                                               \
    __extension__({                                                                       \
        long      live_ = bt_alloc_live(), k_ = -1;                                       \
        bt_status st_;                                                                    \
                                                                                          \
        do {                                                                              \
            bt_alloc_fail_at(++k_);                                                       \
            st_ = (make);                                                                 \
            bt_alloc_fail_at(-1);                                                         \
            end;                                                                          \
        } while (bt_sweep_goes_on(__FILE__, __LINE__, k_, st_, bt_alloc_live() - live_)); \
        k_;                                                                               \
    })

static inline int bt_sweep_goes_on(const char *file, int line, long k, bt_status st, long n_left)
{
    int ok = n_left == 0 && (st == BT_OK || (st == BT_ERR_NO_MEMORY && k < BT_SWEEP_MOST));

    if (!ok) {
        g_failures++;
        fprintf(stderr, "%s:%d allocation %ld fails: %s, %ld more are in use than before\n", file,
                line, k, bt_status_str(st), n_left);
    }
    return ok && st != BT_OK;
}

#endif

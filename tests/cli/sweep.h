/* tests/cli/sweep.h - every unwinding of a thing that is made, when memory is short. */
#ifndef BT_TESTS_CLI_SWEEP_H
#define BT_TESTS_CLI_SWEEP_H

#include "core/alloc.h"
#include "core/status.h"
#include "tests/support/test.h"

/* Fails the 1st, then the 2nd, ... allocation until `make` succeeds; what it made is ended by
 * `end`. */
static inline void sweep(bt_status (*make)(void *ctx), void (*end)(void *ctx), void *ctx,
                         long least)
{
    long      live = bt_alloc_live(), k = -1;
    bt_status st;

    do {
        bt_alloc_fail_at(++k);
        st = make(ctx);
        bt_alloc_fail_at(-1);
        if (st != BT_OK) {
            EXPECT_EQ(st, BT_ERR_NO_MEMORY);
            end(ctx); /* also of a half-built thing */
            EXPECT_EQ(bt_alloc_live(), live);
        }
    } while (st != BT_OK && k < 300);
    EXPECT(st == BT_OK && k >= least);
    end(ctx);
    EXPECT_EQ(bt_alloc_live(), live);
}

#endif

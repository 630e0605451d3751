/* tests/support/sweep.h - each allocation of a call fails once. */
#ifndef BT_TESTS_SUPPORT_SWEEP_H
#define BT_TESTS_SUPPORT_SWEEP_H

#include "core/alloc.h"
#include "core/status.h"
#include "tests/support/test.h"

enum { BT_SWEEP_MOST = 10000 };

/* How many allocations `make` makes, an expression of bt_status, of which the 1st, then the 2nd,
 * ... fails, until none does.  With one that fails it is to say BT_ERR_NO_MEMORY, but for `spare`
 * of them at most, and without BT_OK.  `end`, an expression too, ends what it made, also nothing or
 * half of it, and leaves as much memory in use as there was. */
#define BT_SWEEP_BUT(spare, make, end)                                     \
    __extension__({                                                        \
        bt_sweep  sweep_ = {__FILE__, __LINE__, -1, spare, false};         \
        long      live_  = bt_alloc_live();                                \
        bt_status st_;                                                     \
                                                                           \
        do {                                                               \
            bt_alloc_fail_at(++sweep_.k);                                  \
            st_           = (make);                                        \
            sweep_.failed = bt_alloc_fail_at(-1);                          \
            end;                                                           \
        } while (bt_sweep_goes_on(&sweep_, st_, bt_alloc_live() - live_)); \
        sweep_.k;                                                          \
    })
#define BT_SWEEP(make, end) BT_SWEEP_BUT(0, make, end)

typedef struct {
    const char *file;
    int         line;
    long        k, n_spare;
    bool        failed; /* allocation k, which otherwise has not come */
} bt_sweep;

static inline bool bt_sweep_goes_on(bt_sweep *s, bt_status st, long n_left)
{
    bool spared = s->failed && st == BT_OK && s->n_spare-- > 0;
    bool ok     = n_left == 0 && s->k < BT_SWEEP_MOST &&
              (spared || st == (s->failed ? BT_ERR_NO_MEMORY : BT_OK));

    if (!ok) {
        g_failures++;
        fprintf(stderr, "%s:%d allocation %ld %s: %s, %ld more are in use than before\n", s->file,
                s->line, s->k, s->failed ? "fails" : "does not come", bt_status_str(st), n_left);
    }
    return ok && s->failed;
}

#endif

/* coordinator/exposition.h - a snapshot as Prometheus text and as the status page's JSON.
 *
 * The HTTP thread.  Names of metrics that vLLM has too are vLLM's, so that dashboards made for it
 * work; the others begin with baton_.  docs/operating.md lists them. */
#ifndef BT_COORDINATOR_EXPOSITION_H
#define BT_COORDINATOR_EXPOSITION_H

#include <stddef.h>

#include "coordinator/board.h"

/* Owned by the caller, free(); NULL: no memory. */
char *bt_exposition_prometheus(const bt_snapshot *s, size_t *n_out);
char *bt_exposition_json(const bt_snapshot *s, size_t *n_out);

const char *bt_phase_name(bt_phase phase);

/* Which role is the bottleneck at the present load. */
typedef struct {
    double      prefill, decode;           /* use of each side, 0 to 1 */
    const char *limit;                     /* "prefill", "decode", "none" */
    uint32_t    best_prefill, best_decode; /* of as many ranks; 0 and 0: both roles, or no load */
} bt_balance;

/* The use of prefill is the part of the time that its group spends in the model, times the part of
 * its ranks that had prompts then.  A decode step takes more rows at little cost, so the use of
 * decode is what fills up: pages, or the rows of a step while it is busy.  A side that requests
 * wait for has a use of 1, and limits; when none wait, a side with a use above 70 % limits. */
void bt_balance_of(const bt_snapshot *s, bt_balance *balance_out);

#endif

/* cli/progress.h - how far the ranks of a cell have loaded, as words.
 *
 * Threads: the main thread.  Time comes as an argument. */
#ifndef BT_CLI_PROGRESS_H
#define BT_CLI_PROGRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

typedef struct {
    uint64_t done_bytes, total_bytes, first_ns, first_bytes; /* first: its first report */
} bt_rank_progress;

typedef struct {
    bt_rank_progress *ranks; /* owned [n_ranks] */
    uint32_t          n_ranks;
} bt_progress;

bt_status bt_progress_init(bt_progress *p, uint32_t n_ranks);
void      bt_progress_fini(bt_progress *p); /* accepts zeroes */
void      bt_progress_reset(bt_progress *p);
/* "RANK DONE TOTAL" of a coordinator's line; false when it is none, or of no rank of ours. */
bool bt_progress_take(bt_progress *p, const char *text, uint64_t now_ns);
/* 0 to 1: the mean of all ranks' parts, so that it never falls when one more begins. */
double bt_progress_part(const bt_progress *p);
/* "rank 1: 2.1 of 4.2 GiB, 12 s left" of the rank that will be last at its own rate so far, or
 * "no rate yet" where nobody can tell, or "rank 1: not begun". */
void bt_progress_last_rank(const bt_progress *p, uint64_t now_ns, char *buf, size_t capacity);

#endif

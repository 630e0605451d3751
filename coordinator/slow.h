/* coordinator/slow.h - which rank holds its group up.
 *
 * A group steps together, so that all its ranks take equally long; but a slow one computes while
 * the others wait for it.  Plain code over numbers. */
#ifndef BT_COORDINATOR_SLOW_H
#define BT_COORDINATOR_SLOW_H

#include <stdbool.h>
#include <stdint.h>

enum { BT_SLOW_SECONDS = 3 }; /* how long it must last before it is reported */

/* Moves a rate towards its newest value, which stands for s seconds; the newest second weighs 0.3.
 */
void bt_smooth(double *value, double newest, double s);
/* The same for a rate by which somebody is called slow: one report weighs as a second at most, or a
 * process that stood still once, alone or with its machine, would be slow. */
void bt_smooth_report(double *value, double newest, double s);
/* For bt_slowness(): ascending. */
void bt_slowness_sort(double *own, uint32_t n);
/* sorted[n]: the part of its time that each rank of a group computes, ascending; own: that of one
 * of them.  Returns how many times as long as the median of the others it computes; 0 when there is
 * no other rank, or too little to do. */
double bt_slowness(const double *sorted, uint32_t n, double own);
bool   bt_slowness_is_much(double slowness);

#endif

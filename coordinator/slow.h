/* coordinator/slow.h - which rank holds its group up.
 *
 * A group steps together, so that all its ranks take equally long; but a slow one computes while
 * the others wait for it.  Plain code over numbers. */
#ifndef BT_COORDINATOR_SLOW_H
#define BT_COORDINATOR_SLOW_H

#include <stdbool.h>
#include <stdint.h>

enum { BT_SLOW_SECONDS = 3 }; /* so long it must show before it is said */

/* own[n]: the part of its time that each rank of a group computes.  How many times as long rank i
 * computes as the others do in the middle; 0 where there is nobody to compare with, or too little
 * to do. */
double bt_slowness(const double *own, uint32_t n, uint32_t i);
bool   bt_slowness_is_much(double slowness);

#endif

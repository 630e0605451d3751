#include "coordinator/slow.h"

#define MUCH     3.0
#define BUSY     0.3  /* below that nobody waits much for it */
#define LEAST    0.01 /* what others compute counts as at least so much */
#define IN_TURNS 512  /* ranks of a group that are compared at most */

/* The middle one of the others, the lower of two. */
static double median_but(const double *own, uint32_t n, uint32_t i)
{
    double   sorted[IN_TURNS];
    uint32_t m = 0;

    for (uint32_t k = 0; k < n && m < IN_TURNS; k++) {
        uint32_t at = m;

        if (k == i) continue;
        for (; at > 0 && sorted[at - 1] > own[k]; at--)
            sorted[at] = sorted[at - 1];
        sorted[at] = own[k];
        m++;
    }
    return sorted[(m - 1) / 2];
}

double bt_slowness(const double *own, uint32_t n, uint32_t i)
{
    double others;

    if (n < 2 || own[i] < BUSY) return 0;
    others = median_but(own, n, i);
    return own[i] / (others > LEAST ? others : LEAST);
}

bool bt_slowness_is_much(double slowness) { return slowness >= MUCH; }

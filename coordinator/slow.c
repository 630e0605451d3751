#include "coordinator/slow.h"

#include <math.h>
#include <stdlib.h>

#define NEWEST 0.3 /* weight of the newest second */
#define MUCH   3.0
#define BUSY   0.3  /* below that nobody waits much for it */
#define LEAST  0.01 /* what others compute counts as at least so much */

void bt_smooth(double *value, double newest, double s)
{
    *value += (1 - pow(1 - NEWEST, s)) * (newest - *value);
}

void bt_smooth_report(double *value, double newest, double s)
{
    bt_smooth(value, newest, s < 1 ? s : 1);
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

void bt_slowness_sort(double *own, uint32_t n) { qsort(own, n, sizeof(*own), compare); }

double bt_slowness(const double *sorted, uint32_t n, double own)
{
    uint32_t middle = n < 2 ? 0 : (n - 2) / 2; /* of the others, the lower one of two */
    double   others;

    if (n < 2 || own < BUSY) return 0;
    others = sorted[middle] < own ? sorted[middle] : sorted[middle + 1];
    return own / (others > LEAST ? others : LEAST);
}

bool bt_slowness_is_much(double slowness) { return slowness >= MUCH; }

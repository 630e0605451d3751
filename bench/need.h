/* bench/need.h - what a benchmark cannot go on without. */
#ifndef BT_BENCH_NEED_H
#define BT_BENCH_NEED_H

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

static inline void need(bool holds, const char *what)
{
    if (holds) return;
    fprintf(stderr, "%s: %s\n", program_invocation_short_name, what);
    exit(EXIT_FAILURE);
}

#endif

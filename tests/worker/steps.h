/* tests/worker/steps.h - what fakes have been asked to do: a letter for each step, in order. */
#ifndef BT_TESTS_WORKER_STEPS_H
#define BT_TESTS_WORKER_STEPS_H

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static char g_said[64];

static inline void note(char step) { g_said[strlen(g_said)] = step; }

/* These and no others since the last time. */
static inline bool did(const char *steps)
{
    bool same = strcmp(g_said, steps) == 0;

    if (!same) fprintf(stderr, "did \"%s\", expected \"%s\"\n", g_said, steps);
    memset(g_said, 0, sizeof(g_said));
    return same;
}

#endif

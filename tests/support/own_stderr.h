/* tests/support/own_stderr.h - what this process writes to stderr, as text. */
#ifndef BT_TESTS_SUPPORT_OWN_STDERR_H
#define BT_TESTS_SUPPORT_OWN_STDERR_H

#include <stdio.h>
#include <unistd.h>

#include "tests/support/test.h"

typedef struct {
    FILE *file;
    int   old;
} own_stderr;

/* From now on it goes to a file, up to end_stderr(). */
static inline own_stderr begin_stderr(void)
{
    own_stderr own = {tmpfile(), dup(STDERR_FILENO)};

    NEED(own.file != NULL && own.old >= 0);
    dup2(fileno(own.file), STDERR_FILENO);
    return own;
}

/* What was written meanwhile, its beginning; valid up to the next call. */
static inline const char *end_stderr(own_stderr own)
{
    static char text[2048];

    dup2(own.old, STDERR_FILENO);
    close(own.old);
    rewind(own.file);
    text[fread(text, 1, sizeof(text) - 1, own.file)] = '\0';
    fclose(own.file);
    return text;
}

#endif

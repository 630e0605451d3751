/* tests/support/scratch.h - a private directory for the files of one test. */
#ifndef BT_TESTS_SUPPORT_SCRATCH_H
#define BT_TESTS_SUPPORT_SCRATCH_H

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/test.h"

static char g_scratch[256];

static inline void scratch_make(void)
{
    const char *base = getenv("TMPDIR");

    snprintf(g_scratch, sizeof(g_scratch), "%s/baton-test-XXXXXX", base != NULL ? base : "/tmp");
    if (mkdtemp(g_scratch) == NULL) abort();
}

/* Path of a file in it; good until the next call but one. */
static inline const char *scratch_path(const char *name)
{
    static char paths[2][512];
    static int  turn;

    turn ^= 1;
    snprintf(paths[turn], sizeof(paths[turn]), "%s/%s", g_scratch, name);
    return paths[turn];
}

static inline void scratch_write(const char *name, const void *data, size_t bytes)
{
    FILE *f = fopen(scratch_path(name), "wb");

    if (f == NULL || fwrite(data, 1, bytes, f) != bytes || fclose(f) != 0) abort();
}

/* Removes all files, keeps the directory. */
static inline void scratch_clear(void)
{
    DIR           *dir = opendir(g_scratch);
    struct dirent *entry;

    if (dir == NULL) return;
    while ((entry = readdir(dir)) != NULL)
        if (entry->d_name[0] != '.') unlink(scratch_path(entry->d_name));
    closedir(dir);
}

static inline void scratch_remove(void)
{
    scratch_clear();
    rmdir(g_scratch);
}

/* The main() of tests that write there. */
static inline int scratch_main(int argc, char **argv, const bt_test *tests, size_t n_tests)
{
    int rc;

    scratch_make();
    rc = bt_run_tests(tests, n_tests, argc > 1 ? argv[1] : NULL);
    scratch_remove();
    return rc;
}

/* The bytes of a file; the caller frees. */
static inline char *scratch_read(const char *path, size_t *n_out)
{
    FILE *f = fopen(path, "rb");
    char *data;
    long  n;

    if (f == NULL || fseek(f, 0, SEEK_END) != 0 || (n = ftell(f)) < 0) abort();
    rewind(f);
    data = malloc((size_t)n + 1);
    if (data == NULL || fread(data, 1, (size_t)n, f) != (size_t)n) abort();
    data[n] = '\0';
    *n_out  = (size_t)n;
    fclose(f);
    return data;
}
#endif

/* tests/launch/launch.h - baton-launch as a user runs it. */
#ifndef BT_TESTS_LAUNCH_LAUNCH_H
#define BT_TESTS_LAUNCH_LAUNCH_H

#include <signal.h>
#include <stdarg.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "core/log.h"
#include "tests/support/command.h"
#include "tests/support/test.h"

static const char *g_launch;

/* For what should come at once: a busy machine is given time, but ranks that sleep end later. */
enum { START_S = 60, END_S = 60 };

/* Each rank says where its directories are, and what it is. */
#define SAY                                                                          \
    "echo rank $OMPI_COMM_WORLD_RANK of $OMPI_COMM_WORLD_SIZE pid $$ parent $PPID; " \
    "echo shm $OMPI_MCA_btl_vader_backing_directory; echo session $TMPDIR; "

static bt_command g_command;

/* argv[1] is baton-launch; false without it. */
static inline bool launch_tests_begin(int argc, char **argv)
{
    if (argc < 2) return false;
    g_launch = argv[1];
    signal(SIGINT, SIG_DFL);                        /* ignored in a shell's background job */
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0}); /* programs die here by design */
    return true;
}

static inline int launch(const char *script, const char *const *environment)
{
    const char *argv[] = {g_launch, "--ranks", "3", "--", "/bin/sh", "-c", script, NULL};

    return bt_command_run(&g_command, argv, environment, END_S);
}

/* The path after `word` was private, and is gone. */
static inline void expect_removed(const char *word, const bt_command *of)
{
    const char *p   = strstr(of->output, word);
    double      end = bt_command_now() + END_S;
    char        path[256];

    EXPECT(p != NULL);
    if (p == NULL) return;
    EXPECT_EQ(sscanf(p + strlen(word), "%255s", path), 1);
    EXPECT_HAS(path, "/baton-");
    while (access(path, F_OK) == 0 && bt_command_now() < end)
        usleep(10000);
    EXPECT(access(path, F_OK) != 0);
}

/* The number after the n-th `word`; 0 when there is none. */
static inline long number_after(const char *word, int n)
{
    const char *p = g_command.output;

    for (; n >= 0 && p != NULL; n--) {
        p = strstr(p, word);
        if (p != NULL) p += strlen(word);
    }
    return p != NULL ? strtol(p, NULL, 10) : 0;
}

/* A script of sh that stands for mpirun, in a folder whose name means something to a shell. */
typedef struct {
    char        folder[32], path[64], variable[96];
    const char *environment[2]; /* by which the launcher finds it */
} own_mpirun;

static inline void make_mpirun(own_mpirun *m)
{
    *m = (own_mpirun){.folder = "/tmp/baton-it's-XXXXXX"};
    EXPECT(mkdtemp(m->folder) != NULL);
    snprintf(m->path, sizeof(m->path), "%s/mpirun", m->folder);
    snprintf(m->variable, sizeof(m->variable), "BATON_MPIRUN=%s", m->path);
    m->environment[0] = m->variable;
}

BT_PRINTF(2, 3) static inline void write_mpirun(const own_mpirun *m, const char *format, ...)
{
    FILE   *f = fopen(m->path, "w");
    va_list ap;

    EXPECT(f != NULL && fputs("#!/bin/sh\n", f) >= 0);
    va_start(ap, format);
    EXPECT(vfprintf(f, format, ap) > 0);
    va_end(ap);
    fclose(f);
    EXPECT_EQ(chmod(m->path, 0700), 0);
}

static inline void remove_mpirun(const own_mpirun *m)
{
    EXPECT(unlink(m->path) == 0 && rmdir(m->folder) == 0);
}

#endif

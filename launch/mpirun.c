#include "launch/mpirun.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/file.h"
#include "core/limits.h"
#include "core/machine.h"
#include "core/passed_on.h"
#include "core/processes.h"
#include "launch/bind.h"
#include "launch/endings.h"
#include "launch/openmpi.h"

/* mpirun hangs or crashes where it cannot open its pipes: a dozen and four a rank, and its own
 * sockets and plugins. */
enum { FILES = BT_FILES, FILES_A_RANK = 8 };
/* Where it or MPI in a rank cannot start its own, Open MPI fails by its own words, or hangs.  Most
 * ranks have twice as many, and say themselves what they lack. */
enum { THREADS = 4, THREADS_A_RANK = 8, THREADS_TRIED = 32 };

#define NO_OWN_PATH "this program's path is not known: is /proc mounted?"

static bool in_path(const char *name, char path_out[PATH_MAX])
{
    const char *path = getenv("PATH"), *folder;
    char       *copy = path != NULL ? bt_strdup(path) : NULL, *rest = copy;
    bool        found = false;

    while (!found && (folder = strsep(&rest, ":")) != NULL)
        found = snprintf(path_out, PATH_MAX, "%s/%s", folder, name) < PATH_MAX &&
                access(path_out, X_OK) == 0;
    bt_free(copy);
    return found;
}

/* The bundled Open MPI of an installed tree lies in bin/../lib/baton/openmpi, its libraries in
 * bin/../lib/baton. */
static bool find_bundled(const char *self, char libs_out[PATH_MAX], char mpirun_out[PATH_MAX])
{
    char        base[PATH_MAX];
    const char *slash = strrchr(self, '/');

    snprintf(base, sizeof(base), "%.*s/../lib/baton", (int)(slash - self), self);
    return realpath(base, libs_out) != NULL &&
           snprintf(mpirun_out, PATH_MAX, "%s/openmpi/bin/mpirun", libs_out) < PATH_MAX &&
           access(mpirun_out, X_OK) == 0;
}

/* Moves Open MPI: its plugins and texts lie below OPAL_PREFIX (and, of 5's run time, PRTE_PREFIX),
 * its libraries beside ours. */
static void use_bundled(const char *libs)
{
    const char *old = getenv("LD_LIBRARY_PATH");
    char        text[3 * PATH_MAX];

    snprintf(text, sizeof(text), "%s/openmpi", libs);
    setenv("OPAL_PREFIX", text, 1);
    setenv("PRTE_PREFIX", text, 1);
    snprintf(text, sizeof(text), "%s/pmix/lib/pmix", libs); /* it ignores PMIX_PREFIX for these */
    setenv("PMIX_PKGLIBDIR", text, 1);
    snprintf(text, sizeof(text), "%s/pmix/share/pmix", libs);
    setenv("PMIX_PKGDATADIR", text, 1);
    snprintf(text, sizeof(text), "%s%s%s", libs, old != NULL ? ":" : "", old != NULL ? old : "");
    setenv("LD_LIBRARY_PATH", text, 1);
}

/* What ranks on other hosts need of the environment: the cell's secret (proto/secret.h), and where
 * libraries lie.  Open MPI's own variables go along by themselves. */
static const char *const FORWARDED[] = {"BATON_SECRET", "BATON_SECRET_FILE", "LD_LIBRARY_PATH"};

static bt_status find_mpirun(const char *wanted, const char *self, char path_out[PATH_MAX])
{
    bt_status st = BT_OK;
    char      libs[PATH_MAX];

    if (wanted == NULL) wanted = getenv("BATON_MPIRUN");
    if (wanted != NULL) {
        BT_REQUIRE(access(wanted, X_OK) == 0, BT_ERR_IO, "mpirun: %s: %s", wanted, strerror(errno));
        snprintf(path_out, PATH_MAX, "%s", wanted);
        return BT_OK;
    }
    if (find_bundled(self, libs, path_out)) {
        use_bundled(libs);
        return BT_OK;
    }
    if (in_path("mpirun", path_out)) return BT_OK;
    snprintf(path_out, PATH_MAX, "%s", BT_MPIEXEC);
    BT_REQUIRE(access(path_out, X_OK) == 0, BT_ERR_IO,
               "no mpirun in PATH; install Open MPI (Debian: apt-get install openmpi-bin) or set "
               "BATON_MPIRUN to its path");
out:
    return st;
}

bt_status bt_mpirun_tell_version(const char *wanted)
{
    bt_status st = BT_OK;
    char      exe[PATH_MAX], mpirun[PATH_MAX];

    BT_REQUIRE(bt_own_path(exe), BT_ERR_IO, NO_OWN_PATH);
    BT_TRY(find_mpirun(wanted, exe, mpirun));
    bt_openmpi_need_home();
    execl(mpirun, mpirun, "--version", (char *)NULL);
    BT_REQUIRE(false, BT_ERR_IO, "mpirun: %s: %s", mpirun, strerror(errno));
out:
    return st;
}

bool bt_mpirun_is_far(const bt_mpirun_options *options)
{
    return options->hostfile != NULL || options->hosts != NULL || options->map != NULL ||
           options->slurm;
}

bool bt_mpirun_survives_far(const bt_mpirun_options *options)
{
    return options->survive && bt_mpirun_is_far(options);
}

BT_NORETURN void bt_mpirun_exec(char **argv, pid_t parent, int out)
{
    sigset_t none;
    int      null = open("/dev/null", O_RDONLY | O_CLOEXEC);

    /* A terminal's ^C is for the launcher, which ends the job in order; and whoever is left of the
     * job is known by its session. */
    setsid();
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(128 + SIGKILL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    if (null >= 0) dup2(null, STDIN_FILENO);
    if (out >= 0) dup2(out, STDOUT_FILENO);
    execv(argv[0], argv);
    bt_log_error(__FILE__, __LINE__, "cannot start mpirun", "%s: %s", argv[0], strerror(errno));
    _exit(127);
}

/* One line a rank, in their order: what mpirun's sequential mapper reads. */
static bt_status write_places(const bt_rank_map *map, const bt_scratch *scratch,
                              char path_out[PATH_MAX])
{
    bt_status st        = BT_OK;
    char      self[256] = "";
    bool      here      = false;
    FILE     *f;

    snprintf(path_out, PATH_MAX, "%s/hosts", scratch->session);
    f = fopen(path_out, "we");
    BT_REQUIRE(f != NULL, BT_ERR_IO, "%s: %s", path_out, strerror(errno));
    if (gethostname(self, sizeof(self) - 1) != 0) snprintf(self, sizeof(self), "localhost");
    for (uint32_t i = 0; i < map->n_ranks; i++) {
        const char *host = map->ranks[i].host;

        if (i == 0 || strcmp(host, map->ranks[i - 1].host) != 0) here = bt_machine_is(host, true);
        fprintf(f, "%s\n", here ? self : host); /* the mapper knows this machine by one name */
    }
    BT_REQUIRE(fclose(f) == 0, BT_ERR_IO, "%s: %s", path_out, strerror(errno));
out:
    return st;
}

enum { OWN_ARGS = 32 }; /* what make_command() puts before the program's, and more */

/* mpirun's command line, and what it points at. */
typedef struct {
    char   **argv; /* owned, as is bind */
    char    *bind;
    unsigned major; /* of Open MPI */
    char     exe[PATH_MAX], mpirun[PATH_MAX], places[PATH_MAX], n_ranks[16];
} command;

static bt_status make_command(const bt_mpirun_options *options, const bt_scratch *scratch,
                              command *c)
{
    bt_status   st     = BT_OK;
    const char *srun   = bt_openmpi_srun_arguments(options);
    size_t      n_args = 0, n = 0;

    BT_REQUIRE(bt_own_path(c->exe), BT_ERR_IO, NO_OWN_PATH);
    BT_TRY(find_mpirun(options->mpirun, c->exe, c->mpirun));
    c->major = bt_openmpi_major(c->mpirun);
    /* Slurm starts the daemons without a shell; hosts may all be this one, where nobody does. */
    if (bt_mpirun_is_far(options) && !options->slurm &&
        strpbrk(c->mpirun, " \t\n'\"\\$`&|;<>()*?[#"))
        BT_WARN("Open MPI gives other hosts its path without quotes, and their shells will not "
                "find it: %s: put it where the path has no blanks and the like",
                c->mpirun);
    while (options->argv[n_args] != NULL)
        n_args++;
    c->argv = bt_calloc(OWN_ARGS + n_args + 1, sizeof(*c->argv));
    BT_REQUIRE(c->argv != NULL, BT_ERR_NO_MEMORY, "%zu arguments", n_args);
    snprintf(c->n_ranks, sizeof(c->n_ranks), "%u", options->n_ranks);
    bt_add_word(c->argv, &n, c->mpirun);
    bt_add_flag(c->argv, &n, "-n", c->n_ranks);
    if (c->major >= 5 && srun != NULL) {
        bt_add_word(c->argv, &n, "--prtemca");
        bt_add_flag(c->argv, &n, "plm_slurm_args", srun);
    }
    bt_add_flag(c->argv, &n, "--hostfile", options->hostfile);
    bt_add_flag(c->argv, &n, "--host", options->hosts);
    if (options->map != NULL) {
        BT_TRY(write_places(options->map, scratch, c->places));
        BT_TRY(bt_bind_text(options->map, &c->bind));
        bt_add_flag(c->argv, &n, "--hostfile", c->places);
        bt_add_flag(c->argv, &n, "--map-by", "seq");
    }
    /* By name alone: values on a command line are everybody's to read. */
    for (size_t i = 0; i < sizeof(FORWARDED) / sizeof(FORWARDED[0]); i++)
        if (getenv(FORWARDED[i]) != NULL) bt_add_flag(c->argv, &n, "-x", FORWARDED[i]);
    bt_add_word(c->argv, &n, c->exe);
    bt_add_word(c->argv, &n, "--as-rank");
    if (bt_mpirun_is_far(options)) bt_add_flag(c->argv, &n, "--shm", scratch->shm);
    bt_add_flag(c->argv, &n, "--bind", c->bind);
    if (bt_mpirun_survives_far(options)) bt_add_word(c->argv, &n, "--tell-end");
    bt_add_word(c->argv, &n, "--");
    BT_ASSERT(n <= OWN_ARGS);
    memcpy(c->argv + n, options->argv, n_args * sizeof(*c->argv));
out:
    return st;
}

static uint32_t n_threads(uint32_t n_ranks)
{
    uint64_t n = THREADS + (uint64_t)n_ranks * THREADS_A_RANK;

    return n < THREADS_TRIED ? (uint32_t)n : THREADS_TRIED;
}

bt_status bt_mpirun_start(const bt_mpirun_options *options, const bt_scratch *scratch,
                          pid_t *pid_out)
{
    bt_status st   = BT_OK;
    bool      far  = bt_mpirun_is_far(options);
    uint32_t  n    = far ? 0 : options->n_ranks; /* ranks beside it */
    command   c    = {0};
    pid_t     self = getpid(), pid;
    int       out  = -1;
    char      folder[PATH_MAX];

    BT_REQUIRE(getcwd(folder, sizeof(folder)) != NULL, BT_ERR_IO,
               "the working directory, where mpirun starts the ranks: %s: cd to another one",
               strerror(errno));
    BT_TRY(make_command(options, scratch, &c));
    BT_TRY(bt_limits_allow_files("mpirun", FILES + FILES_A_RANK * n));
    BT_TRY(bt_limits_allow_threads("mpirun with its ranks", n_threads(n)));
    if (!far) BT_TRY(bt_scratch_check_room(scratch, options->n_ranks));
    if (bt_mpirun_survives_far(options)) {
        out = bt_endings_listen();
        BT_REQUIRE(out >= 0, BT_ERR_IO, "pipe: %s", strerror(errno));
    }
    BT_TRY(bt_endings_provide(far ? NULL : scratch->session));
    bt_openmpi_set_environment(options, scratch, c.major);
    BT_REQUIRE(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0, BT_ERR_IO, "PR_SET_CHILD_SUBREAPER: %s",
               strerror(errno));
    pid = fork();
    if (pid == 0) bt_mpirun_exec(c.argv, self, out);
    BT_REQUIRE(pid > 0, BT_ERR_IO, "fork: %s", strerror(errno));
    *pid_out = pid;
out:
    if (out >= 0) close(out);
    bt_free(c.argv);
    bt_free(c.bind);
    return st;
}

static bool count_child(pid_t parent, pid_t child, void *n_children)
{
    (void)parent, (void)child;
    ++*(uint32_t *)n_children;
    return false;
}

uint32_t bt_mpirun_n_children(pid_t mpirun)
{
    char     path[64];
    uint32_t n = 0;

    snprintf(path, sizeof(path), "/proc/%d/task/%d/children", (int)mpirun, (int)mpirun);
    if (access(path, R_OK) != 0) return UINT32_MAX;
    bt_process_each_child(mpirun, count_child, &n);
    return n;
}

/* It runs `baton-launch --as-rank`. */
static bool is_rank(pid_t pid)
{
    char path[PATH_MAX], name[BT_PROCESS_NAME];

    bt_process_name(pid, name);
    return name[0] != '\0' && bt_own_path(path) &&
           strncmp(strrchr(path, '/') + 1, name, sizeof(name) - 1) == 0;
}

static bool find_starter(pid_t parent, pid_t child, void *starter)
{
    if (!is_rank(child)) return bt_process_each_child(child, find_starter, starter);
    *(pid_t *)starter = parent;
    return true;
}

pid_t bt_mpirun_starter(pid_t mpirun)
{
    pid_t starter = 0;

    bt_process_each_child(mpirun, find_starter, &starter);
    return starter;
}

void bt_mpirun_reap(pid_t mpirun, pid_t keep, bool session_only)
{
    char  path[64];
    FILE *children;
    long  pid;
    bool  found = true;

    snprintf(path, sizeof(path), "/proc/self/task/%d/children", (int)getpid());
    while (found) { /* a killed child hands us its own children */
        found    = false;
        children = fopen(path, "re");
        if (children == NULL) return;
        while (fscanf(children, "%ld", &pid) == 1) {
            if (pid == (long)keep || (session_only && getsid((pid_t)pid) != mpirun)) continue;
            found = true;
            kill((pid_t)pid, SIGKILL);
            while (waitpid((pid_t)pid, NULL, 0) < 0 && errno == EINTR)
                continue;
        }
        fclose(children);
    }
}

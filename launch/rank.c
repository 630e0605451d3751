#include "launch/rank.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/ending.h"
#include "core/log.h"
#include "launch/bind.h"
#include "launch/endings.h"
#include "launch/leftovers.h"
#include "launch/openmpi.h"

/* The child's side: the worker dies when this process does. */
static BT_NORETURN void exec_worker(char **argv, pid_t parent, const sigset_t *old_mask)
{
    sigprocmask(SIG_SETMASK, old_mask, NULL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(128 + SIGKILL); /* it died before prctl could be heard */
    execvp(argv[0], argv);
    bt_log_error(__FILE__, __LINE__, "cannot start the worker", "%s: %s", argv[0], strerror(errno));
    _exit(127);
}

static int report(pid_t pid, const char *program, int status)
{
    const char *name = strrchr(program, '/');
    char        text[128];
    int         sig;

    name = name != NULL ? name + 1 : program;
    if (WIFEXITED(status)) {
        if (WEXITSTATUS(status) != 0) {
            BT_WARN("%s (pid %d) ended with exit code %d", name, (int)pid, WEXITSTATUS(status));
        }
        return WEXITSTATUS(status);
    }
    sig = WTERMSIG(status);
    if (sig == SIGTERM || sig == SIGINT) { /* asked for, mostly because another rank has failed */
        BT_WARN("%s (pid %d) was ended by SIG%s", name, (int)pid, sigabbrev_np(sig));
    } else {
        bt_log_error(__FILE__, __LINE__, "the worker died", "%s (pid %d) %s", name, (int)pid,
                     bt_ending_by_signal(sig, false, text, sizeof(text)));
    }
    return 128 + sig;
}

static int wait_for(pid_t pid, const sigset_t *signals, int *status_out)
{
    for (;;) {
        int sig;

        if (waitpid(pid, status_out, WNOHANG) == pid) return 0;
        sig = sigwaitinfo(signals, NULL);
        if (sig == SIGHUP) kill(pid, SIGKILL); /* mpirun, or the daemon here, has died */
        if (sig < 0 && errno != EINTR) return -1;
    }
}

/* From bindings to the worker's end: the exit code. */
static int run(char **argv, const bt_rank_options *options, const char *rank,
               const sigset_t *old_mask)
{
    const char *local = getenv("OMPI_COMM_WORLD_LOCAL_RANK");
    pid_t       self  = getpid(), pid;
    sigset_t    waited;
    int         status;

    bt_openmpi_forget_sessions();
    if (options->bind != NULL &&
        bt_bind_apply(options->bind, rank != NULL ? (uint32_t)strtoul(rank, NULL, 10) : 0) != BT_OK)
        return EXIT_FAILURE;
    if (options->shm != NULL && local != NULL &&
        bt_leftovers_watch(options->shm, local, options->tell) != BT_OK)
        return EXIT_FAILURE;
    pid = fork();
    if (pid == 0) exec_worker(argv, self, old_mask);
    if (pid < 0) {
        bt_log_error(__FILE__, __LINE__, "cannot start the worker", "fork: %s", strerror(errno));
        return 127;
    }
    sigemptyset(&waited);
    sigaddset(&waited, SIGCHLD);
    sigaddset(&waited, SIGHUP);
    if (wait_for(pid, &waited, &status) != 0) {
        bt_log_error(__FILE__, __LINE__, "cannot wait for the worker", "%s", strerror(errno));
        return 127;
    }
    return report(pid, argv[0], status);
}

int bt_rank_run(char **argv, const bt_rank_options *options)
{
    const char *rank   = getenv("OMPI_COMM_WORLD_RANK");
    pid_t       parent = getppid();
    sigset_t    all, old_mask;
    int         code;
    char        who[32];

    snprintf(who, sizeof(who), "rank=%s", rank != NULL ? rank : "?");
    bt_log_init(who, BT_LOG_INFO);
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, &old_mask); /* the worker decides what a signal means */
    prctl(PR_SET_PDEATHSIG, SIGHUP);         /* of mpirun, or of the daemon on another host */
    if (getppid() != parent) return 128 + SIGHUP;
    code = run(argv, options, rank, &old_mask);
    bt_endings_note(code, options->tell);
    bt_leftovers_told();
    return code;
}

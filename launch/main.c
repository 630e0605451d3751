/* baton-launch - starts the ranks of one cell under mpirun and ends them all.
 *
 * The only program that knows mpirun.  It holds no state: a cell is gone when this process is. */
#include <argp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <sysexits.h>

#include "core/clock.h"
#include "core/file.h"
#include "core/limits.h"
#include "core/parse.h"
#include "launch/endings.h"
#include "launch/mpirun.h"
#include "launch/rank.h"
#include "launch/scratch.h"

enum {
    OPT_HOST = 256,
    OPT_MAP,
    OPT_SLURM,
    OPT_MPIRUN,
    OPT_ON_DEATH,
    OPT_AS_RANK,
    OPT_SHM,
    OPT_BIND,
    OPT_TELL,
    OPT_MPI_VERSION
};
/* mpirun ends its ranks within 2 s of SIGTERM (1 s to SIGTERM, 1 s to SIGKILL). */
#define STOP_NS (6 * BT_NS_PER_S)
/* For the other ranks, after the first one has ended well: they were all told to leave. */
#define LEAVE_NS BT_NS_PER_S
/* For mpirun to start the next rank, before those that are missing count as lost. */
#define LOST_NS (3 * BT_NS_PER_S)
/* For mpirun to end the other ranks after one has failed: it takes about 1 s. */
#define ABORT_NS (3 * BT_NS_PER_S)

typedef struct {
    bt_mpirun_options mpirun;
    bt_rank_map       map;  /* owned */
    bt_rank_options   rank; /* with as_rank */
    bool              as_rank, tell_mpi;
} options;

static const char DOC[] =
    "Starts RANKS copies of PROGRAM as one MPI job on this machine, or on the hosts that --host, "
    "--hostfile or --rank-map name, or on those of a Slurm job, and stays until all have ended.\v"
    "When one rank fails, all are ended; with --on-death=replace the others go on, and the job has "
    "ended when the last one has. SIGTERM and SIGINT end the job within 10 seconds; SIGUSR1 "
    "and SIGUSR2 go to every rank. When this program is killed, the ranks on this machine die with "
    "it. Open MPI's session files and shared memory lie in private directories (below TMPDIR and "
    "/dev/shm) that are removed at the end.\n\n"
    "Exit code: 0 when every rank ended with 0; else that of the first rank that failed, 128 + the "
    "signal that ended it, or 1. With --on-death=replace 0 when any rank ended with 0. 64 for "
    "wrong usage.\n\n"
    "Variables of Open MPI that you set (OMPI_MCA_*; of 5 also PRTE_MCA_* and PMIX_MCA_*) win over "
    "those that this program would set, except, on this machine alone, for the private directories "
    "(orte_tmpdir_base, btl_vader_backing_directory).\n\n"
    "Example, what `baton run` does:\n"
    "  baton-launch --ranks 4 -- baton-worker --model models/demo \\\n"
    "    --prefill 2 --decode 2 --coordinator 127.0.0.1:4711";

static const struct argp_option OPTIONS[] = {
    BT_OPTION("ranks", 'n', "N", "How many ranks"),
    BT_OPTION("hostfile", 'f', "FILE", "Open MPI host file: lines like \"node1 slots=8\""),
    BT_OPTION("host", OPT_HOST, "LIST", "Hosts and slots: node1:8,node2:8"),
    BT_OPTION("rank-map", OPT_MAP, "FILE",
              "Where each rank runs: lines like \"prefill node1 ranks=2 cores=0-15 device=0,1\"; "
              "roles are prefill, decode, both, spare. Says how many ranks there are"),
    BT_OPTION("slurm", OPT_SLURM, NULL, "Use the nodes of this Slurm job"),
    BT_OPTION_FLAGS("shm", OPT_SHM, "DIR", OPTION_HIDDEN,
                    "As rank: the job's folder for shared memory"),
    BT_OPTION_FLAGS("bind", OPT_BIND, "TEXT", OPTION_HIDDEN,
                    "As rank: cores and devices of all ranks"),
    BT_OPTION_FLAGS("tell-end", OPT_TELL, NULL, OPTION_HIDDEN, "As rank: say how it ended"),
    BT_OPTION(
        "mpirun", OPT_MPIRUN, "PATH",
        "Which mpirun (default: $BATON_MPIRUN, the one in the installed tree, the one in PATH)"),
    BT_OPTION("on-death", OPT_ON_DEATH, "WHAT",
              "When a rank dies: stop (default): all are ended; replace: the others go on"),
    BT_OPTION_FLAGS("mpirun-version", OPT_MPI_VERSION, NULL, OPTION_HIDDEN,
                    "Say which mpirun it is"),
    BT_OPTION_FLAGS("as-rank", OPT_AS_RANK, NULL, OPTION_HIDDEN, "Be the parent of one worker"),
    {0},
};

static void check(struct argp_state *state, options *opt)
{
    bt_mpirun_options *m = &opt->mpirun;

    if (m->map != NULL && m->n_ranks != 0)
        argp_error(state, "--rank-map says how many ranks there are: it goes without --ranks");
    if (m->map != NULL) m->n_ranks = m->map->n_ranks;
    if (!opt->as_rank && m->n_ranks == 0) argp_error(state, "--ranks is missing");
    if ((m->hosts != NULL) + (m->hostfile != NULL) + (m->map != NULL) + m->slurm > 1)
        argp_error(state, "--host, --hostfile, --rank-map and --slurm exclude each other");
    if (m->slurm) bt_option_slurm(state);
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    options *opt = state->input;

    switch (key) {
    case 'n':
        opt->mpirun.n_ranks =
            (uint32_t)bt_option_number(state, "--ranks", arg, 1, BT_JOB_RANKS_MAX);
        return 0;
    case OPT_MAP:
        bt_rank_map_fini(&opt->map);
        bt_option_name(state, "--rank-map", "a file", arg);
        if (bt_rank_map_read(arg, &opt->map) != BT_OK) exit(EX_USAGE);
        opt->mpirun.map = &opt->map;
        return 0;
    case OPT_SLURM: opt->mpirun.slurm = true; return 0;
    case OPT_SHM: opt->rank.shm = arg; return 0;
    case OPT_BIND: opt->rank.bind = arg; return 0;
    case OPT_TELL: opt->rank.tell = true; return 0;
    case 'f': bt_option_hostfile(state, "--hostfile", opt->mpirun.hostfile = arg); return 0;
    case OPT_HOST: bt_option_hosts(state, "--host", opt->mpirun.hosts = arg); return 0;
    case OPT_MPIRUN:
        opt->mpirun.mpirun = bt_option_name(state, "--mpirun", "a path", arg);
        return 0;
    case OPT_ON_DEATH:
        opt->mpirun.survive = strcmp(arg, "replace") == 0;
        if (!opt->mpirun.survive && strcmp(arg, "stop") != 0)
            argp_error(state, "--on-death is \"%s\", expected stop or replace", arg);
        return 0;
    case OPT_AS_RANK: opt->as_rank = true; return 0;
    case OPT_MPI_VERSION: opt->tell_mpi = true; return 0;
    case ARGP_KEY_ARG: /* the program: the rest is its own */
        opt->mpirun.argv = state->argv + state->next - 1;
        state->next      = state->argc;
        return 0;
    case ARGP_KEY_NO_ARGS:
        if (!opt->tell_mpi) argp_error(state, "no program to start; put it after --");
        return 0;
    case ARGP_KEY_END:
        if (!opt->tell_mpi) check(state, opt);
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static int exit_code(int status)
{
    if (WIFSIGNALED(status)) return 128 + WTERMSIG(status);
    return WEXITSTATUS(status);
}

/* mpirun, also where a script in its place waits for it. */
static pid_t whom_to_tell(pid_t mpirun)
{
    pid_t starter = bt_mpirun_starter(mpirun);

    return starter != 0 ? starter : mpirun;
}

/* Open MPI 4 hangs or crashes when it is told to stop while it starts; before it has started
 * anything, it need not be told. */
static void stop_mpirun(pid_t mpirun)
{
    pid_t pid = whom_to_tell(mpirun);

    kill(pid, bt_mpirun_n_children(pid) > 0 ? SIGTERM : SIGKILL);
}

/* A rank has failed, and mpirun ends the others: told to stop meanwhile, Open MPI 4 crashes. */
static bool mpirun_aborts(const bt_mpirun_options *opt)
{
    uint32_t n_well;

    bt_endings_hear();
    return !opt->survive && bt_endings_count(&n_well) > n_well;
}

static void handle_signal(int sig, const bt_mpirun_options *opt, pid_t mpirun, uint64_t *stop_at_ns)
{
    switch (sig) {
    case SIGUSR1:
    case SIGUSR2: kill(whom_to_tell(mpirun), sig); break; /* mpirun passes it on to the ranks */
    case SIGTERM:
    case SIGINT:
    case SIGHUP:
        if (*stop_at_ns != 0) break; /* a second SIGTERM would make mpirun leave its ranks */
        *stop_at_ns = bt_awake_ns() + STOP_NS;
        if (!mpirun_aborts(opt)) stop_mpirun(mpirun);
        break;
    default: break;
    }
}

/* Ranks on this machine whose parent was killed, so that nobody has said how they ended: neither
 * are they mpirun's children nor have they ended.  mpirun may still be starting some. */
static uint32_t count_lost(const bt_mpirun_options *opt, pid_t mpirun, uint32_t n_ended)
{
    static uint64_t since_ns;
    static uint32_t n_before;
    pid_t           starter;
    uint32_t        n;

    if (bt_mpirun_is_far(opt) || bt_mpirun_n_children(mpirun) == UINT32_MAX) return 0;
    starter = bt_mpirun_starter(mpirun);
    n       = starter != 0 ? bt_mpirun_n_children(starter) : 0;
    if (n != n_before || n + n_ended == 0 || n + n_ended >= opt->n_ranks) since_ns = bt_awake_ns();
    n_before = n;
    return bt_awake_ns() - since_ns < LOST_NS ? 0 : opt->n_ranks - n_ended - n;
}

/* Where the others go on, whoever started this program decides what a death means: while the cell
 * loads it ends the job.  The rank's parent has said it too, but a hanging mpirun passes nothing
 * on. */
static void tell_failures(uint32_t n_failed, uint32_t n_ranks)
{
    static uint32_t n_told;

    if (n_failed > n_told) BT_WARN("%u of %u ranks have failed", n_failed, n_ranks);
    n_told = n_failed;
}

/* mpirun does not always end when it should: over several hosts not once a rank has been lost, even
 * when all have ended; and it hangs now and then when a rank dies while it connects to it.  True
 * when it is time to end it. */
static bool ranks_have_ended(const bt_mpirun_options *opt, pid_t mpirun, uint64_t *first_ns)
{
    uint64_t now = bt_awake_ns();
    uint32_t n, n_well;

    bt_endings_hear();
    n = bt_endings_count(&n_well);
    if (!opt->survive) {
        if (*first_ns == 0 && n > 0 && n_well == 0) *first_ns = now;
        return *first_ns != 0 && now - *first_ns >= ABORT_NS;
    }
    tell_failures(n - n_well + count_lost(opt, mpirun, n), opt->n_ranks);
    if (!bt_mpirun_survives_far(opt)) return false;
    if (*first_ns == 0 && n_well > 0) *first_ns = now;
    return n >= opt->n_ranks || (*first_ns != 0 && now - *first_ns >= LEAVE_NS);
}

/* mpirun is quiet (openmpi.c), since ranks' parents say better how a rank ended: it says nothing of
 * a host that it does not know either.  Over several hosts only ranks that may die tell how they
 * end: of others it is not known here whether there was any. */
static void tell_no_start(const bt_mpirun_options *opt, int status)
{
    bool     far = bt_mpirun_is_far(opt), known = !far || opt->survive;
    uint32_t n_well;

    if (status == 0 || bt_endings_count(&n_well) != 0) return;
    bt_log_error(__FILE__, __LINE__, "mpirun has ended", "%s %d%s `mpirun %s hostname` tells %s",
                 WIFSIGNALED(status) ? "signal" : "exit code",
                 WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status),
                 known ? ", before any rank:" : "; where no rank has said why,",
                 far ? "--host HOST" : "-n 1",
                 far ? "whether it can start programs on each host" : "whether it works");
}

/* Returns mpirun's wait status; all its processes on this machine are gone by then. */
static int wait_for(const bt_mpirun_options *opt, pid_t mpirun, const sigset_t *signals,
                    pid_t guard, bool others)
{
    uint64_t stop_at_ns = 0, first_ns = 0;
    bool     ended  = false;
    int      status = 0;
    uint32_t n_well;

    while (waitpid(mpirun, &status, WNOHANG) != mpirun) {
        struct timespec tick = {0, 200 * BT_NS_PER_MS};
        int             sig  = sigtimedwait(signals, NULL, &tick);

        if (sig > 0) handle_signal(sig, opt, mpirun, &stop_at_ns);
        if (stop_at_ns == 0 && ranks_have_ended(opt, mpirun, &first_ns)) {
            ended      = true;
            stop_at_ns = bt_awake_ns() + STOP_NS;
            stop_mpirun(mpirun);
        }
        if (stop_at_ns != 0 && bt_awake_ns() > stop_at_ns) {
            BT_WARN("mpirun has not ended its ranks within %d s: killing it",
                    (int)(STOP_NS / BT_NS_PER_S));
            kill(-mpirun, SIGKILL);
            stop_at_ns = bt_awake_ns() + STOP_NS;
        }
    }
    bt_mpirun_reap(mpirun, guard, others);
    bt_endings_hear();
    if (stop_at_ns == 0) tell_no_start(opt, status);
    /* It ended as asked: how mpirun itself died on the way does not matter. */
    if (stop_at_ns != 0 && WIFSIGNALED(status)) status = SIGTERM;
    /* Open MPI 5 returns the code of a rank that died, though the others went on. */
    if (opt->survive && stop_at_ns == 0 && WIFEXITED(status) && bt_endings_count(&n_well) > 0)
        status = 0;
    if (ended || (stop_at_ns == 0 && status == 0)) status = W_EXITCODE(bt_endings_code(), 0);
    return status;
}

/* What this program waits for; a hangup, where it is ignored as under nohup, stays so. */
static void block_signals(sigset_t *signals_out)
{
    static const int HANDLED[] = {SIGCHLD, SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2};
    struct sigaction old;

    sigemptyset(signals_out);
    for (size_t i = 0; i < sizeof(HANDLED) / sizeof(HANDLED[0]); i++)
        sigaddset(signals_out, HANDLED[i]);
    if (sigaction(SIGHUP, NULL, &old) == 0 && old.sa_handler == SIG_IGN)
        sigdelset(signals_out, SIGHUP);
    sigprocmask(SIG_BLOCK, signals_out, NULL);
}

int main(int argc, char **argv)
{
    const struct argp parser  = {OPTIONS, parse, "-- PROGRAM [ARG...]", DOC, NULL, NULL, NULL};
    options           opt     = {0};
    bt_scratch        scratch = BT_SCRATCH_NONE;
    sigset_t          signals;
    pid_t             mpirun;
    bool              others;
    int               status = 0;
    bt_status         st;

    bt_log_init_verb("launch", BT_LOG_ERROR); /* reading a rank map may fail */
    argp_parse(&parser, argc, argv, ARGP_IN_ORDER, NULL, &opt);
    if (opt.as_rank) return bt_rank_run(opt.mpirun.argv, &opt.rank);

    if (opt.tell_mpi) {
        bt_mpirun_tell_version(opt.mpirun.mpirun);
        return EXIT_FAILURE;
    }
    bt_log_init("launch", BT_LOG_INFO);
    bt_log_never_block();
    if (bt_limits_check() != BT_OK) return EXIT_FAILURE;
    block_signals(&signals);
    others = bt_has_children();
    st     = bt_scratch_open(&scratch);
    if (st == BT_OK) st = bt_mpirun_start(&opt.mpirun, &scratch, &mpirun);
    if (st == BT_OK) status = wait_for(&opt.mpirun, mpirun, &signals, scratch.guard, others);
    bt_scratch_close(&scratch);
    bt_rank_map_fini(&opt.map);
    return st == BT_OK ? exit_code(status) : EXIT_FAILURE;
}

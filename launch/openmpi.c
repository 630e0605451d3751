#include "launch/openmpi.h"

#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/clock.h"

#define ANSWER_NS (10 * BT_NS_PER_S)

typedef struct {
    const char *name, *value; /* name NULL: the end */
} variable;

static const variable ALWAYS[] = {
    {"OMPI_ALLOW_RUN_AS_ROOT",                  "1" },
    {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",          "1" },
 /* Ranks and other jobs share the cores: yield when idle (and never bind, below). */
    {"OMPI_MCA_mpi_yield_when_idle",            "1" },
    {"OMPI_MCA_btl_base_warn_component_unused", "0" },
    {NULL,                                      NULL},
};
static const variable ALWAYS_4[] = {
    {"OMPI_MCA_orte_execute_quiet",        "1"   }, /* --as-rank says better how a rank ended */
    {"OMPI_MCA_rmaps_base_oversubscribe",  "1"   },
    {"OMPI_MCA_hwloc_base_binding_policy", "none"},
    {NULL,                                 NULL  },
};
static const variable ALWAYS_5[] = {
    {"PRTE_MCA_rmaps_default_mapping_policy", "slot:OVERSUBSCRIBE"},
    {"PRTE_MCA_hwloc_default_binding_policy", "none"              },
    {"OMPI_MCA_btl_sm_segment_size",          "4194304"           }, /* as 4 has it, for scratch.c */
    {NULL,                                    NULL                },
};

/* Else mpirun ends every rank about a second after the first death; and, where daemons start one
 * another or pass on each other's messages, after the loss of a node that did so. */
static const variable SURVIVE_4[] = {
    {"OMPI_MCA_orte_enable_recovery",  "1"   },
    {"OMPI_MCA_plm_rsh_no_tree_spawn", "1"   },
    {"OMPI_MCA_routed_radix",          "1024"},
    {NULL,                             NULL  },
};
static const variable SURVIVE_5[] = {
    {"PRTE_MCA_state_base_recoverable",         "1"   },
    {"PRTE_MCA_state_base_error_non_zero_exit", "0"   },
    {"OMPI_MCA_mpi_ft_enable",                  "1"   }, /* else a connection of a dead rank ends the rank */
    {"PRTE_MCA_plm_ssh_no_tree_spawn",          "1"   },
    {"PRTE_MCA_rml_base_radix",                 "1024"},
    {NULL,                                      NULL  },
};

/* This machine alone: nothing listens beyond loopback (but for a port of PRRTE's own, which always
 * does), and no allocation is asked, also inside of one. */
static const variable LOCAL_4[] = {
    {"OMPI_MCA_pml",                "ob1"              },
    {"OMPI_MCA_btl",                "vader,self"       },
    {"OMPI_MCA_oob_tcp_if_include", "lo"               },
    {"OMPI_MCA_plm",                "isolated"         },
    {"OMPI_MCA_ras",                "^slurm,gridengine"},
    {NULL,                          NULL               },
};
static const variable LOCAL_5[] = {
    {"OMPI_MCA_pml",                 "ob1"              },
    {"OMPI_MCA_btl",                 "sm,self"          },
    {"PMIX_MCA_ptl_base_if_include", "lo"               },
    {"PRTE_MCA_plm",                 "^slurm"           },
    {"PRTE_MCA_ras",                 "^slurm,gridengine"},
    {NULL,                           NULL               },
};

/* What users say to 4, as docs/cluster.md has it, and how 5 calls it: of itself it heeds these late
 * or not at all. */
static const struct {
    const char *four, *five;
} RENAMED[] = {
    {"OMPI_MCA_plm_rsh_agent",            "PRTE_MCA_plm_ssh_agent"           },
    {"OMPI_MCA_oob_tcp_if_include",       "PRTE_MCA_prte_if_include"         },
    {"OMPI_MCA_orte_keep_fqdn_hostnames", "PRTE_MCA_prte_keep_fqdn_hostnames"},
};

static void rename_variables(void)
{
    for (size_t i = 0; i < sizeof(RENAMED) / sizeof(RENAMED[0]); i++) {
        const char *value = getenv(RENAMED[i].four);

        if (value != NULL) setenv(RENAMED[i].five, value, 0);
    }
    unsetenv("OMPI_MCA_oob_tcp_if_include"); /* each rank would complain of it */
}

static void set_all(const variable *variables)
{
    for (; variables->name != NULL; variables++)
        setenv(variables->name, variables->value, 0);
}

/* All that it writes, until it has closed its output or does not answer. */
static void read_answer(int fd, char *text, size_t capacity)
{
    uint64_t      end_ns = bt_now_ns() + ANSWER_NS, now_ns;
    struct pollfd ready  = {fd, POLLIN, 0};
    size_t        n      = 0;
    ssize_t       got    = 1;

    while (got > 0 && n + 1 < capacity && (now_ns = bt_now_ns()) < end_ns) {
        if (poll(&ready, 1, (int)((end_ns - now_ns) / BT_NS_PER_MS) + 1) <= 0) continue;
        got = read(fd, text + n, capacity - 1 - n);
        if (got > 0) n += (size_t)got;
    }
    text[n] = '\0';
}

void bt_openmpi_need_home(void)
{
    const struct passwd *user = getpwuid(geteuid());

    setenv("HOME", user != NULL ? user->pw_dir : "/", 0);
}

/* 5 has the words for its version in a file of PRRTE's, and names that file where it is missing, as
 * in Ubuntu's packages. */
unsigned bt_openmpi_major(const char *mpirun)
{
    unsigned    major = 4;
    char        text[4096], *argv[] = {(char *)mpirun, "--version", NULL};
    const char *version;
    int         ends[2];
    pid_t       self = getpid(), pid;

    bt_openmpi_need_home();
    if (pipe2(ends, O_CLOEXEC) != 0) return major;
    pid = fork(); /* no shell is between, which would read a path its own way */
    if (pid == 0) {
        dup2(ends[1], STDERR_FILENO);
        bt_mpirun_exec(argv, self, ends[1]);
    }
    close(ends[1]);
    text[0] = '\0';
    if (pid > 0) {
        read_answer(ends[0], text, sizeof(text));
        kill(-pid, SIGKILL);
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
            continue;
    }
    close(ends[0]);
    version = strstr(text, "(Open MPI) ");
    if (version != NULL)
        sscanf(version, "(Open MPI) %u.", &major);
    else if (strstr(text, "help-schizo-ompi") != NULL)
        major = 5;
    return major;
}

/* May one process read another's memory?  Containers often forbid it, and then Open MPI's shared
 * memory transport hangs instead of choosing another way to copy. */
static bool cross_memory_works(void)
{
    char         there = 1, here = 0;
    struct iovec local = {&here, 1}, remote = {&there, 1};
    pid_t        pid = fork();
    bool         works;

    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        pause();
        _exit(0);
    }
    if (pid < 0) return false;
    works = process_vm_readv(pid, &local, 1, &remote, 1, 0) == 1;
    kill(pid, SIGKILL);
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
        continue;
    return works;
}

const char *bt_openmpi_srun_arguments(const bt_mpirun_options *options)
{
    if (getenv("SLURM_JOB_ID") == NULL) return NULL;
    return options->survive ? "--overlap --no-kill" : "--overlap";
}

/* Where 4 looks for them.  From 23.11 on Slurm puts a word of its own there for each job; with that
 * one it ends the ranks of all nodes when it gives one up, whatever --no-kill says. */
static void set_srun_arguments(const char *arguments, bool survive)
{
    static const char NAME[]    = "OMPI_MCA_plm_slurm_args";
    const char       *there     = getenv(NAME);
    bool              is_slurms = there != NULL && strcmp(there, "--external-launcher") == 0;

    setenv(NAME, arguments, survive && is_slurms);
}

void bt_openmpi_set_shared_memory(const char *dir, bool replace)
{
    static const char VADER[] = "OMPI_MCA_btl_vader_backing_directory";
    static const char SM[]    = "OMPI_MCA_btl_sm_backing_directory";

    /* To 5 both are one, of which the former wins. */
    if (!replace && (getenv(VADER) != NULL || getenv(SM) != NULL)) return;
    setenv(VADER, dir, 1);
    setenv(SM, dir, 1);
}

/* Of a job over hosts mpirun's own session alone lies where the guard removes it: other hosts have
 * no such directory.  Open MPI takes both this and a place for all hosts for an error. */
static void set_own_session(const bt_scratch *scratch)
{
    if (getenv("OMPI_MCA_orte_tmpdir_base") != NULL || getenv("PRTE_MCA_prte_tmpdir_base") != NULL)
        return;
    setenv("OMPI_MCA_orte_local_tmpdir_base", scratch->session, 0);
    setenv("PRTE_MCA_prte_local_tmpdir_base", scratch->session, 0);
}

void bt_openmpi_forget_sessions(void)
{
    unsetenv("OMPI_MCA_orte_local_tmpdir_base");
    unsetenv("OMPI_MCA_orte_remote_tmpdir_base");
    unsetenv("PRTE_MCA_prte_local_tmpdir_base");
    unsetenv("PRTE_MCA_prte_remote_tmpdir_base");
}

/* An interface with just these of the two flags. */
static bool has_interface(unsigned flags)
{
    struct ifaddrs *all = NULL;
    bool            has = false;

    if (getifaddrs(&all) != 0) return true;
    for (const struct ifaddrs *i = all; i != NULL && !has; i = i->ifa_next)
        has = i->ifa_addr != NULL && i->ifa_addr->sa_family == AF_INET &&
              (i->ifa_flags & (IFF_UP | IFF_LOOPBACK)) == flags;
    freeifaddrs(all);
    return has;
}

/* Where there is nothing else.  Of Open MPI's two lists of interfaces only one may be given, and
 * its files of parameters often give the other. */
static void stay_on_loopback(void)
{
    if (!has_interface(IFF_UP) && getenv("OMPI_MCA_btl_tcp_if_exclude") == NULL)
        setenv("OMPI_MCA_btl_tcp_if_include", "lo", 0);
}

void bt_openmpi_set_environment(const bt_mpirun_options *options, const bt_scratch *scratch,
                                unsigned major)
{
    const char *srun = bt_openmpi_srun_arguments(options);
    bool        five = major >= 5;

    if (!has_interface(IFF_UP | IFF_LOOPBACK))
        BT_WARN("the loopback interface is down: processes of this machine do not reach each other "
                "(ip link set lo up)");
    if (five) rename_variables();
    set_all(ALWAYS);
    set_all(five ? ALWAYS_5 : ALWAYS_4);
    if (options->survive) set_all(five ? SURVIVE_5 : SURVIVE_4);
    if (!cross_memory_works())
        setenv(five ? "OMPI_MCA_smsc" : "OMPI_MCA_btl_vader_single_copy_mechanism",
               five ? "^cma" : "none", 0);
    if (!five && srun != NULL) set_srun_arguments(srun, options->survive);
    if (bt_mpirun_is_far(options)) {
        set_own_session(scratch);
        return;
    }
    set_all(five ? LOCAL_5 : LOCAL_4);
    stay_on_loopback();
    bt_openmpi_forget_sessions();
    setenv("TMPDIR", scratch->session, 1);
    setenv("OMPI_MCA_orte_tmpdir_base", scratch->session, 1);
    setenv("PRTE_MCA_prte_tmpdir_base", scratch->session, 1);
    bt_openmpi_set_shared_memory(scratch->shm, true);
}

/* parallel/world_start.c - starts MPI, and learns who its ranks are: whether all are of one build,
 * and how they are connected: which share a machine, memory there, and what may be under way
 * between two.
 *
 * MPI's start and the first exchange of all ranks block inside MPI, under the watchdog. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/watchdog.h"
#include "parallel/world_state.h"

enum {
    PARAM_BYTES  = 4096,
    EAGER_HEADER = 1024,      /* room for MPI's own header below the eager limit */
    FRAGMENT_MAX = 60 * 1024, /* the measured safe size */
    FRAGMENT_MIN = 1024,
    NAME_BYTES   = 64,
};

/* What a rank says of itself first.  All builds say it in this form, for ever. */
typedef struct {
    char host[NAME_BYTES], build[NAME_BYTES];
} introduction;

static const char NO_WAY[] =
    "MPI finds no way to the other ranks, or lost them: each host must have the interfaces and "
    "transports that OMPI_MCA_btl_tcp_if_include and OMPI_MCA_btl name";

static const char START_HINT[] =
    "start the ranks with baton-launch, or with `mpirun -n RANKS baton-worker ...`; as root export "
    "OMPI_ALLOW_RUN_AS_ROOT=1 and OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; for more ranks than cores pass "
    "--oversubscribe; Open MPI 4 or 5 must be installed (Debian: openmpi-bin) and TMPDIR and "
    "/dev/shm be writable, and `ulimit -u` allow a rank its threads";

/* Open MPI ends the process inside MPI_Init when it cannot start, past atexit and error handlers.
 * A child that waits for the end of a pipe then says what to do; one on each machine is enough.
 * Returns the child, or -1, and the pipe's end that says "started". */
static pid_t watch_start(int *started_out)
{
    const char *local = getenv("OMPI_COMM_WORLD_LOCAL_RANK");
    const char *quiet = getenv("OMPI_MCA_orte_execute_quiet"); /* 1 by launch/ */
    int         ends[2];
    pid_t       child;
    char        byte;

    *started_out = -1;
    if ((local != NULL && strcmp(local, "0") != 0) || pipe2(ends, O_CLOEXEC) != 0) return -1;
    child = fork();
    if (child == 0) {
        signal(SIGTERM, SIG_IGN); /* mpirun ends the ranks with it, before this one has spoken */
        close(ends[1]);
        if (read(ends[0], &byte, 1) == 0)
            bt_log_error(__FILE__, __LINE__, bt_status_str(BT_ERR_PEER),
                         "MPI did not start, or was ended while it did (%s): %s",
                         quiet != NULL && strcmp(quiet, "0") != 0
                             ? "OMPI_MCA_orte_execute_quiet=0 has it say why"
                             : "the reason is above",
                         START_HINT);
        _exit(0);
    }
    close(ends[0]);
    *started_out = ends[1];
    return child;
}

static void end_watch(pid_t child, int started)
{
    if (started >= 0 && write(started, "", 1) < 0) BT_DEBUG("the start's watcher has gone");
    if (started >= 0) close(started);
    if (child > 0) waitpid(child, NULL, 0);
}

bt_status bt_world_start_mpi(int *argc, char ***argv)
{
    bt_status st       = BT_OK;
    int       provided = 0, started = 0, watch, code;
    pid_t     child;

    signal(SIGPIPE, SIG_IGN); /* the TCP transport writes to sockets of dead ranks */
    /* Open MPI would print a trace from within the signal that ends a process, and wait there for
     * ever when that comes inside malloc: the rank would hang instead of being dead. */
    setenv("OMPI_MCA_opal_signal", "", 0);
    BT_REQUIRE(MPI_Initialized(&started) == MPI_SUCCESS, BT_ERR_PEER, "MPI_Initialized failed");
    if (started) return BT_OK;
    child = watch_start(&watch);
    bt_watchdog_enter("start of MPI (MPI_Init)", -1);
    code = MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &provided);
    bt_watchdog_leave();
    end_watch(child, watch);
    BT_REQUIRE(code == MPI_SUCCESS, BT_ERR_PEER, "MPI did not start (code %d): %s", code,
               START_HINT);
    BT_REQUIRE(provided >= MPI_THREAD_FUNNELED, BT_ERR_UNSUPPORTED,
               "this MPI gives thread level %d, want at least MPI_THREAD_FUNNELED (%d): install an "
               "MPI built with threads",
               provided, MPI_THREAD_FUNNELED);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
out:
    return st;
}

/* all[n]: one that differs from the first is named, and how many there are. */
static bt_status compare(const introduction *all, int n)
{
    bt_status st    = BT_OK;
    int       other = 0, n_others = 0;

    for (int i = n - 1; i > 0; i--) {
        if (memcmp(all[i].build, all[0].build, NAME_BYTES) == 0) continue;
        other = i;
        n_others++;
    }
    BT_REQUIRE(
        n_others == 0, BT_ERR_INVALID_ARG,
        "rank %d on %.*s is of Baton %.*s, rank 0 on %.*s of %.*s (%d of %d ranks differ from "
        "rank 0): all ranks of a cell must be of one build",
        other, NAME_BYTES, all[other].host, NAME_BYTES, all[other].build, NAME_BYTES, all[0].host,
        NAME_BYTES, all[0].build, n_others, n);
out:
    return st;
}

bt_status bt_world_same_build(int *argc, char ***argv, const char *build)
{
    bt_status    st   = BT_OK;
    introduction mine = {.host = "unknown"}, *all = NULL;
    int          n = 0, code;

    BT_TRY(bt_world_start_mpi(argc, argv));
    MPI_Comm_size(MPI_COMM_WORLD, &n);
    all = bt_calloc((size_t)n, sizeof(*all));
    BT_REQUIRE(all != NULL, BT_ERR_NO_MEMORY, "what %d ranks are made of", n);
    gethostname(mine.host, NAME_BYTES);
    snprintf(mine.build, NAME_BYTES, "%s", build);
    bt_watchdog_enter("the first exchange of all ranks", -1);
    code =
        MPI_Allgather(&mine, sizeof(mine), MPI_BYTE, all, sizeof(mine), MPI_BYTE, MPI_COMM_WORLD);
    bt_watchdog_leave();
    BT_REQUIRE(code == MPI_SUCCESS, BT_ERR_PEER, NO_WAY);
    BT_TRY(compare(all, n));
out:
    bt_free(all);
    return st;
}

/* MPI's parameter `name` as text or number into text; "" when this MPI does not have it. */
static void read_param(const char *name, char text[PARAM_BYTES])
{
    int               index, n_elems = 0, size = 0, verbosity, bind, scope, name_n = 0, desc_n = 0;
    MPI_Datatype      type;
    MPI_T_enum        kind;
    MPI_T_cvar_handle handle;
    char              raw[PARAM_BYTES] = {0};

    text[0] = '\0';
    if (MPI_T_cvar_get_index(name, &index) != MPI_SUCCESS) return;
    if (MPI_T_cvar_get_info(index, NULL, &name_n, &verbosity, &type, &kind, NULL, &desc_n, &bind,
                            &scope) != MPI_SUCCESS)
        return;
    if (MPI_T_cvar_handle_alloc(index, NULL, &handle, &n_elems) != MPI_SUCCESS) return;
    MPI_Type_size(type, &size);
    if ((size_t)n_elems * (size_t)size < sizeof(raw) &&
        MPI_T_cvar_read(handle, raw) == MPI_SUCCESS) {
        uint64_t number = 0;

        memcpy(&number, raw, size < 8 ? (size_t)size : 8);
        if (type == MPI_CHAR)
            memcpy(text, raw, sizeof(raw));
        else
            snprintf(text, PARAM_BYTES, "%llu", (unsigned long long)number);
    }
    MPI_T_cvar_handle_free(&handle);
}

/* Whether the comma-separated list names the component. */
static bool list_has(const char *list, const char *name)
{
    size_t n = strlen(name);

    for (const char *p = list; p != NULL; p = strchr(p, ',')) {
        p += strspn(p, ",^ ");
        if (strncmp(p, name, n) == 0 && (p[n] == '\0' || p[n] == ',' || p[n] == ' ')) return true;
    }
    return false;
}

/* Open MPI's rule for component lists: "" all, "a,b" these only, "^a,b" all but these. */
static bool list_allows(const char *list, const char *name)
{
    list += strspn(list, " ");
    if (*list == '\0') return true;
    return list_has(list, name) != (*list == '^');
}

bool bt_transport_is_shared(const char *btl, const char *pml)
{
    return list_allows(pml, "ob1") && (list_allows(btl, "vader") || list_allows(btl, "sm"));
}

static void read_transport(bt_world *world)
{
    char          btl[PARAM_BYTES], pml[PARAM_BYTES], eager[PARAM_BYTES];
    const char   *force    = getenv("BT_TCP_RULE");
    int           provided = 0;
    unsigned long eager_bytes;

    world->shared_memory  = false;
    world->fragment_bytes = FRAGMENT_MAX;
    if (MPI_T_init_thread(MPI_THREAD_SINGLE, &provided) != MPI_SUCCESS) return;
    read_param("btl", btl);
    read_param("pml", pml);
    read_param("btl_tcp_eager_limit", eager);
    MPI_T_finalize();
    world->shared_memory = bt_transport_is_shared(btl, pml) && (force == NULL || force[0] != '1');
    eager_bytes          = strtoul(eager, NULL, 10);
    if (eager_bytes > EAGER_HEADER && eager_bytes - EAGER_HEADER < world->fragment_bytes)
        world->fragment_bytes = eager_bytes - EAGER_HEADER;
    if (world->fragment_bytes < FRAGMENT_MIN) world->fragment_bytes = FRAGMENT_MIN;
}

static void close_shared_file(bt_world *world)
{
    if (world->shared_fd >= 0) close(world->shared_fd);
    world->shared_fd = -1;
}

bt_world_file bt_world_make_shared_file(bt_world *world)
{
    bt_world_file a = {.fd = UINT64_MAX};
    struct stat   file;

    world->shared_fd = memfd_create("baton-weights", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (world->shared_fd < 0 || fstat(world->shared_fd, &file) != 0 ||
        fcntl(world->shared_fd, F_ADD_SEALS, F_SEAL_SHRINK) != 0) {
        BT_WARN("no memory to share with this machine's other ranks: %s", strerror(errno));
        close_shared_file(world);
        return a;
    }
    return (bt_world_file){(uint64_t)getpid(), (uint64_t)world->shared_fd, file.st_dev,
                           file.st_ino};
}

/* The number may mean another process here, and another file. */
static void open_shared_file(bt_world *world, const bt_world_file *a)
{
    char        path[64];
    struct stat file;

    if (a->fd == UINT64_MAX) return;
    snprintf(path, sizeof(path), "/proc/%llu/fd/%llu", (unsigned long long)a->pid,
             (unsigned long long)a->fd);
    world->shared_fd = open(path, O_RDWR | O_CLOEXEC);
    if (world->shared_fd >= 0 && fstat(world->shared_fd, &file) == 0 && file.st_dev == a->device &&
        file.st_ino == a->inode)
        return;
    BT_WARN("%s is not the memory that this machine's first rank shares: %s", path,
            world->shared_fd < 0 ? strerror(errno) : "another file");
    close_shared_file(world);
}

/* Collective over the machine's ranks.  All of them have it open then, or none: what a rank reckons
 * with is what all share. */
static bt_status share_file(bt_world *world, MPI_Comm node)
{
    bt_status     st = BT_OK;
    bt_world_file a  = {0};
    int           mine, all = 0;

    if (world->local_size == 1) return BT_OK;
    if (world->local_rank == 0) a = bt_world_make_shared_file(world);
    BT_REQUIRE(MPI_Bcast(&a, sizeof(a), MPI_BYTE, 0, node) == MPI_SUCCESS, BT_ERR_PEER,
               "the first rank of this machine cannot be heard");
    if (world->local_rank != 0) open_shared_file(world, &a);
    mine = world->shared_fd >= 0;
    BT_REQUIRE(MPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_MIN, node) == MPI_SUCCESS, BT_ERR_PEER,
               "the ranks of this machine cannot agree on memory that they share");
    if (all == 0) close_shared_file(world);
out:
    return st;
}

/* Collective over the job: who shares a machine with whom. */
static bt_status find_nodes(bt_world *world)
{
    bt_status st   = BT_OK;
    MPI_Comm  node = MPI_COMM_NULL;
    int       rank = 0, size = 0;
    uint32_t  leader = world->rank;

    BT_REQUIRE(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, (int)world->rank,
                                   MPI_INFO_NULL, &node) == MPI_SUCCESS,
               BT_ERR_PEER, NO_WAY);
    MPI_Comm_rank(node, &rank);
    MPI_Comm_size(node, &size);
    world->local_rank = (uint32_t)rank;
    world->local_size = (uint32_t)size;
    BT_TRY(share_file(world, node)); /* it stays open at the first rank until all have come here: */
    BT_REQUIRE(MPI_Bcast(&leader, 1, MPI_UINT32_T, 0, node) == MPI_SUCCESS &&
                   MPI_Allgather(&leader, 1, MPI_UINT32_T, world->node_of, 1, MPI_UINT32_T,
                                 MPI_COMM_WORLD) == MPI_SUCCESS,
               BT_ERR_PEER, "MPI cannot tell which ranks share a machine");
out:
    if (node != MPI_COMM_NULL) MPI_Comm_free(&node);
    return st;
}

/* Collective over the job: both ends of a message must cut it alike. */
static bt_status agree_on_transport(bt_world *world)
{
    bt_status st = BT_OK;
    uint64_t  mine[2], least[2];

    mine[0] = world->fragment_bytes;
    mine[1] = world->shared_memory;
    BT_REQUIRE(MPI_Allreduce(mine, least, 2, MPI_UINT64_T, MPI_MIN, MPI_COMM_WORLD) == MPI_SUCCESS,
               BT_ERR_PEER, "the ranks cannot agree on a fragment size");
    world->fragment_bytes = least[0];
    world->shared_memory  = least[1] != 0;
out:
    return st;
}

static bt_status dup_comm(MPI_Comm *comm)
{
    bt_status st = BT_OK;
    int       code;

    code = MPI_Comm_dup(MPI_COMM_WORLD, comm);
    BT_REQUIRE(code == MPI_SUCCESS, BT_ERR_PEER, "MPI_Comm_dup: %s", bt_mpi_text(code));
    MPI_Comm_set_errhandler(*comm, MPI_ERRORS_RETURN);
out:
    return st;
}

bt_status bt_world_meet(bt_world *world)
{
    bt_status st = BT_OK;

    read_transport(world);
    bt_watchdog_enter("the first exchange of all ranks", -1);
    BT_TRY(find_nodes(world));
    BT_TRY(agree_on_transport(world));
    BT_TRY(dup_comm(&world->group_comm));
    BT_TRY(dup_comm(&world->handoff_comm));
out:
    bt_watchdog_leave();
    return st;
}

/* parallel/world.c - starts and ends MPI, and learns how its ranks are connected.
 *
 * Everything that blocks inside MPI is in bt_world_init() and bt_world_fini(). */
#include "parallel/world.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "core/watchdog.h"
#include "parallel/group_parts.h"
#include "parallel/world_state.h"

enum {
    TAG_SPACE_BITS = 3,
    PARAM_BYTES    = 4096,
    EAGER_HEADER   = 1024,      /* room for MPI's own header below the eager limit */
    FRAGMENT_MAX   = 60 * 1024, /* the measured safe size */
    FRAGMENT_MIN   = 1024,
    SPIN_NS        = 3000,
    FINI_CANCEL_MS = 100,
    TIMER_SLACK_NS = 1000,
};

const char *bt_mpi_text(int code)
{
    static _Thread_local char text[MPI_MAX_ERROR_STRING];
    int                       n = 0;

    if (MPI_Error_string(code, text, &n) != MPI_SUCCESS)
        snprintf(text, sizeof(text), "MPI code %d", code);
    return text;
}

static const char START_HINT[] =
    "start the ranks with baton-launch, or with `mpirun -n RANKS baton-worker ...`; as root export "
    "OMPI_ALLOW_RUN_AS_ROOT=1 and OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; for more ranks than cores pass "
    "--oversubscribe; Open MPI 4 must be installed (Debian: openmpi-bin libopenmpi3) and TMPDIR "
    "and /dev/shm be writable";

/* Open MPI ends the process inside MPI_Init when it cannot start, past atexit and error handlers.
 * A child that waits for the end of a pipe then says what to do; one on each machine is enough.
 * Returns the child, or -1, and the pipe's end that says "started". */
static pid_t watch_start(int *started_out)
{
    const char *local = getenv("OMPI_COMM_WORLD_LOCAL_RANK");
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
                         "MPI did not start, or was ended while it did (the reason is above): %s",
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

static bt_status start_mpi(int *argc, char ***argv)
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

/* How a machine's other ranks find the file that its first one has made. */
typedef struct {
    uint64_t pid, fd, device, inode; /* fd: UINT64_MAX where there is none */
} file_address;

static file_address make_shared_file(bt_world *world)
{
    file_address a = {.fd = UINT64_MAX};
    struct stat  file;

    world->shared_fd = memfd_create("baton-weights", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (world->shared_fd < 0 || fstat(world->shared_fd, &file) != 0 ||
        fcntl(world->shared_fd, F_ADD_SEALS, F_SEAL_SHRINK) != 0) {
        BT_WARN("no memory to share with this machine's other ranks: %s", strerror(errno));
        return a;
    }
    return (file_address){(uint64_t)getpid(), (uint64_t)world->shared_fd, file.st_dev, file.st_ino};
}

/* The number may mean another process here, and another file. */
static void open_shared_file(bt_world *world, const file_address *a)
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
    if (world->shared_fd >= 0) close(world->shared_fd);
    world->shared_fd = -1;
}

/* Collective over the machine's ranks. */
static bt_status share_file(bt_world *world, MPI_Comm node)
{
    bt_status    st = BT_OK;
    file_address a  = {0};

    if (world->local_size == 1) return BT_OK;
    if (world->local_rank == 0) a = make_shared_file(world);
    BT_REQUIRE(MPI_Bcast(&a, sizeof(a), MPI_BYTE, 0, node) == MPI_SUCCESS, BT_ERR_PEER,
               "the first rank of this machine cannot be heard");
    if (world->local_rank != 0) open_shared_file(world, &a);
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
               BT_ERR_PEER, "MPI cannot tell which ranks share this machine");
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

/* Collective over the job: all that blocks in MPI once it has started. */
static bt_status meet(bt_world *world)
{
    bt_status st = BT_OK;

    bt_watchdog_enter("the first exchange of all ranks", -1);
    BT_TRY(find_nodes(world));
    BT_TRY(agree_on_transport(world));
    BT_TRY(dup_comm(&world->group_comm));
    BT_TRY(dup_comm(&world->handoff_comm));
out:
    bt_watchdog_leave();
    return st;
}

static void free_world(bt_world *world)
{
    if (world == NULL) return;
    if (world->shared_fd >= 0) close(world->shared_fd);
    bt_free(world->traffic);
    bt_free(world->node_of);
    bt_free(world);
}

bt_status bt_world_init(int *argc, char ***argv, bt_world **world_out)
{
    bt_status st    = BT_OK;
    bt_world *world = NULL;
    int       rank = 0, size = 0, has_ub = 0, *ub = NULL;
    cpu_set_t cores;

    BT_TRY(start_mpi(argc, argv));
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    world = bt_calloc(1, sizeof(*world));
    BT_REQUIRE(world != NULL, BT_ERR_NO_MEMORY, "the world of %d ranks", size);
    world->shared_fd  = -1;
    world->group_comm = world->handoff_comm = MPI_COMM_NULL;
    world->rank                             = (uint32_t)rank;
    world->size                             = (uint32_t)size;
    world->node_of                          = bt_calloc((size_t)size, sizeof(*world->node_of));
    world->traffic                          = bt_calloc((size_t)size, sizeof(*world->traffic));
    BT_REQUIRE(world->node_of != NULL && world->traffic != NULL, BT_ERR_NO_MEMORY,
               "the tables of %d ranks", size);
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &ub, &has_ub);
    world->tags        = bt_tag_layout_of(has_ub ? *ub : 32767);
    world->next_serial = 1;
    read_transport(world);
    BT_TRY(meet(world));
    if (sched_getaffinity(0, sizeof(cores), &cores) == 0 &&
        (uint32_t)CPU_COUNT(&cores) > world->local_size)
        world->spin_ns = SPIN_NS;
    prctl(PR_SET_TIMERSLACK, (unsigned long)TIMER_SLACK_NS); /* short sleeps stay short */
    *world_out = world;
    world      = NULL;
out:
    free_world(world);
    return st;
}

void bt_world_abandon(bt_world *world, bt_wreck *wreck)
{
    wreck->next   = world->wrecks;
    world->wrecks = wreck;
}

void bt_world_sweep(bt_world *world)
{
    bt_wreck **at = &world->wrecks;

    while (*at != NULL) {
        bt_wreck *wreck = *at;
        int       done  = 0;

        if (MPI_Testall(wreck->n_requests, wreck->requests, &done, MPI_STATUSES_IGNORE) !=
                MPI_SUCCESS ||
            !done) {
            at = &wreck->next; /* a request that failed keeps its memory: MPI may still hold it */
            continue;
        }
        *at = wreck->next;
        bt_free(wreck->memory);
    }
}

void bt_world_drain(bt_world *world, MPI_Message *message, size_t n_bytes)
{
    size_t    head  = sizeof(bt_wreck) + sizeof(MPI_Request);
    bt_wreck *wreck = bt_calloc(1, head + n_bytes);

    if (wreck == NULL) {
        BT_WARN("no memory to drain a message of %zu bytes: its sender will wait for ever",
                n_bytes);
        return;
    }
    wreck->memory      = wreck;
    wreck->requests    = (MPI_Request *)(void *)(wreck + 1);
    wreck->n_requests  = 1;
    wreck->requests[0] = MPI_REQUEST_NULL;
    if (MPI_Imrecv((uint8_t *)wreck + head, (int)n_bytes, MPI_BYTE, message, wreck->requests) !=
        MPI_SUCCESS)
        wreck->requests[0] = MPI_REQUEST_NULL;
    bt_world_abandon(world, wreck);
}

/* Receives that will never be matched would keep MPI_Finalize from freeing its own memory. */
static void cancel_wrecks(bt_world *world)
{
    uint64_t end_ns = bt_now_ns() + FINI_CANCEL_MS * BT_NS_PER_MS;

    for (bt_wreck *w = world->wrecks; w != NULL; w = w->next)
        for (int i = 0; i < w->n_requests; i++)
            if (w->requests[i] != MPI_REQUEST_NULL) MPI_Cancel(&w->requests[i]);
    while (world->wrecks != NULL && bt_now_ns() < end_ns)
        bt_world_sweep(world);
}

void bt_world_fini(bt_world *world)
{
    if (world == NULL) return;
    bt_world_sweep(world);
    if (world->wrecks != NULL) cancel_wrecks(world);
    bt_watchdog_enter("end of MPI (MPI_Finalize)", -1);
    MPI_Comm_free(&world->group_comm);
    MPI_Comm_free(&world->handoff_comm);
    MPI_Finalize();
    bt_watchdog_leave();
    while (world->wrecks != NULL) { /* MPI has ended: nothing writes any more */
        bt_wreck *next = world->wrecks->next;

        bt_free(world->wrecks->memory);
        world->wrecks = next;
    }
    free_world(world);
}

void bt_world_exit(bt_world *world, int code)
{
    (void)world;
    fflush(stdout);
    fflush(stderr);
    _exit(code);
}

uint32_t bt_world_rank(const bt_world *world) { return world->rank; }
uint32_t bt_world_size(const bt_world *world) { return world->size; }
uint32_t bt_world_local_size(const bt_world *world) { return world->local_size; }
uint32_t bt_world_local_rank(const bt_world *world) { return world->local_rank; }
bool     bt_world_same_machine(const bt_world *world, uint32_t a, uint32_t b)
{
    return world->node_of[a] == world->node_of[b];
}

int bt_world_shared_fd(bt_world *world)
{
    if (world->shared_fd < 0 && world->local_size == 1) (void)make_shared_file(world);
    return world->shared_fd;
}

uint64_t          bt_world_waited_ns(const bt_world *world) { return world->waited_ns; }
const bt_traffic *bt_world_traffic(const bt_world *world) { return world->traffic; }
uint64_t          bt_world_spin_ns(const bt_world *world) { return world->spin_ns; }
void              bt_world_count_wait(bt_world *world, uint64_t ns) { world->waited_ns += ns; }

bool bt_world_tcp_rule(const bt_world *world, uint32_t peer)
{
    return !world->shared_memory || world->node_of[peer] != world->node_of[world->rank];
}

bool bt_world_all_shared(const bt_world *world)
{
    if (!world->shared_memory) return false;
    for (uint32_t r = 1; r < world->size; r++)
        if (world->node_of[r] != world->node_of[0]) return false;
    return true;
}

bt_tag_layout bt_tag_layout_of(int tag_ub)
{
    bt_tag_layout layout = {0, 0};
    uint32_t      bits   = 0;

    while (bits < 30 && (uint32_t)tag_ub >= (2u << bits) - 1u)
        bits++;
    BT_ASSERT(bits >= 15); /* the MPI standard: MPI_TAG_UB >= 32767 */
    bits -= TAG_SPACE_BITS;
    layout.epoch_bits    = bits / 2 < 12 ? bits / 2 : 12;
    layout.sequence_bits = bits - layout.epoch_bits < 14 ? bits - layout.epoch_bits : 14;
    return layout;
}

int bt_tag_make(bt_tag_layout layout, uint32_t space, uint32_t epoch, uint64_t sequence)
{
    uint32_t e = epoch & ((1u << layout.epoch_bits) - 1u);
    uint32_t s = (uint32_t)sequence & ((1u << layout.sequence_bits) - 1u);

    return (int)((space << layout.epoch_bits | e) << layout.sequence_bits | s);
}

/* Epochs are compared modulo what the tag holds: of the two halves of the circle the one before
 * `epoch` is older. */
bool bt_tag_is_recent(bt_tag_layout layout, int tag, uint32_t space, uint32_t epoch)
{
    uint32_t mask = (1u << layout.epoch_bits) - 1u;
    uint32_t head = (uint32_t)tag >> layout.sequence_bits, age = (epoch - head) & mask;

    return head >> layout.epoch_bits != space || age == 0 || age > mask / 2;
}

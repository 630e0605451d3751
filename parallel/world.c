/* parallel/world.c - the MPI job once it has started (world_start.c), and its end; tags; wrecks. */
#include "parallel/world.h"

#include <stdio.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "core/machine.h"
#include "core/watchdog.h"
#include "parallel/group_parts.h"
#include "parallel/world_state.h"

enum {
    TAG_SPACE_BITS = 3,
    SPIN_NS        = 3000,
    FINI_CANCEL_MS = 100,
    TIMER_SLACK_NS = 1000,
    PROC_FAILED    = 75, /* MPI_ERR_PROC_FAILED of Open MPI 5, with which a build with 4 runs too */
};

const char *bt_mpi_text(int code)
{
    static _Thread_local char text[MPI_MAX_ERROR_STRING];
    int                       n = 0;

    if (MPI_Error_string(code, text, &n) != MPI_SUCCESS)
        snprintf(text, sizeof(text), "MPI code %d", code);
    return text;
}

static void free_world(bt_world *world)
{
    if (world == NULL) return;
    if (world->shared_fd >= 0) close(world->shared_fd);
    bt_free(world->died);
    bt_free(world->traffic);
    bt_free(world->node_of);
    bt_free(world);
}

bt_status bt_world_init(int *argc, char ***argv, bt_world **world_out)
{
    bt_status st    = BT_OK;
    bt_world *world = NULL;
    int       rank = 0, size = 0, has_ub = 0, *ub = NULL;

    BT_TRY(bt_world_start_mpi(argc, argv));
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
    world->died                             = bt_calloc((size_t)size, sizeof(*world->died));
    BT_REQUIRE(world->node_of != NULL && world->traffic != NULL && world->died != NULL,
               BT_ERR_NO_MEMORY, "the tables of %d ranks", size);
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &ub, &has_ub);
    world->tags        = bt_tag_layout_of(has_ub ? *ub : 32767);
    world->next_serial = 1;
    BT_TRY(bt_world_meet(world));
    if (bt_machine_cores() > world->local_size) world->spin_ns = SPIN_NS;
    prctl(PR_SET_TIMERSLACK, (unsigned long)TIMER_SLACK_NS); /* short sleeps stay short */
    *world_out = world;
    world      = NULL;
out:
    free_world(world);
    return st;
}

bool bt_world_has_died(bt_world *world, uint32_t peer, int code)
{
    world->died[peer] = world->died[peer] || code == PROC_FAILED;
    return world->died[peer];
}

bt_wreck *bt_wreck_create(size_t bytes)
{
    size_t    head  = bt_wreck_pad(sizeof(bt_wreck) + sizeof(MPI_Request));
    bt_wreck *wreck = bt_calloc_aligned(head + bytes, 1);

    if (wreck == NULL) return NULL;
    wreck->memory      = wreck;
    wreck->requests    = (MPI_Request *)(void *)(wreck + 1);
    wreck->n_requests  = 1;
    wreck->requests[0] = MPI_REQUEST_NULL;
    return wreck;
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
    bt_wreck *wreck = bt_wreck_create(n_bytes);

    if (wreck == NULL) {
        BT_WARN("no memory to drain a message of %zu bytes: its sender will wait for ever",
                n_bytes);
        return;
    }
    if (MPI_Imrecv(bt_wreck_room(wreck), (int)n_bytes, MPI_BYTE, message, wreck->requests) !=
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

void bt_world_exit(int code)
{
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
    if (world->shared_fd < 0 && world->local_size == 1) (void)bt_world_make_shared_file(world);
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

/* parallel/group.c - a group as such: its members, its memory, how it ends.  group_exchange.c has
 * what it does. */
#include "parallel/group.h"

#include "core/alloc.h"
#include "parallel/group_state.h"

enum {
    N_TAG_SPACES    = 8,
    SHARED_FRAGMENT = 256 * 1024, /* staged copies stay in the cache */
};

static void set_lane(bt_group *group, uint32_t i, uint32_t peer)
{
    bt_group_lane *l = &group->lanes[i];

    l->peer           = peer;
    l->rounds         = bt_world_tcp_rule(group->world, peer);
    l->fragment_bytes = l->rounds ? group->world->fragment_bytes : SHARED_FRAGMENT;
}

/* One block: the wreck's header, the requests, two staging areas a lane. */
static bt_status take_arena(bt_group *group)
{
    bt_status st        = BT_OK;
    size_t    header    = bt_wreck_pad(sizeof(bt_wreck));
    size_t    req_bytes = bt_wreck_pad(2 * (size_t)group->n * sizeof(MPI_Request));
    size_t    bytes     = header + req_bytes;
    uint8_t  *at;

    for (uint32_t i = 0; i < group->n; i++)
        if (i != group->self) bytes += 2 * bt_wreck_pad(group->lanes[i].fragment_bytes);
    at = bt_calloc_aligned(bytes, 1);
    BT_REQUIRE(at != NULL, BT_ERR_NO_MEMORY, "%zu bytes of staging for a group of %u ranks", bytes,
               group->n);
    group->arena             = (bt_wreck *)(void *)at;
    group->requests          = (MPI_Request *)(void *)(at + header);
    group->arena->memory     = at;
    group->arena->requests   = group->requests;
    group->arena->n_requests = 2 * (int)group->n;
    at += header + req_bytes;
    for (uint32_t i = 0; i < 2 * group->n; i++)
        group->requests[i] = MPI_REQUEST_NULL;
    for (uint32_t i = 0; i < group->n; i++) {
        bt_group_lane *l = &group->lanes[i];

        if (i == group->self) continue;
        l->out = at;
        l->in  = at + bt_wreck_pad(l->fragment_bytes);
        at += 2 * bt_wreck_pad(l->fragment_bytes);
    }
out:
    return st;
}

static bt_status check_ranks(const bt_world *world, uint32_t n, const uint32_t *ranks,
                             uint32_t *self_out)
{
    bt_status st   = BT_OK;
    uint32_t  self = n;

    for (uint32_t i = 0; i < n; i++) {
        BT_REQUIRE(ranks[i] < world->size, BT_ERR_INVALID_ARG,
                   "member %u of a group is rank %u, want one below %u", i, ranks[i], world->size);
        for (uint32_t j = 0; j < i; j++)
            BT_REQUIRE(ranks[j] != ranks[i], BT_ERR_INVALID_ARG, "rank %u is twice in a group",
                       ranks[i]);
        if (ranks[i] == world->rank) self = i;
    }
    BT_REQUIRE(self < n, BT_ERR_INVALID_ARG, "rank %u creates a group that it is not in",
               world->rank);
    *self_out = self;
out:
    return st;
}

bt_status bt_group_create(bt_world *world, uint32_t n, const uint32_t *ranks, uint32_t tag_space,
                          uint32_t epoch, bt_group **group_out)
{
    bt_status st    = BT_OK;
    bt_group *group = NULL;
    uint32_t  self  = 0;

    BT_REQUIRE(tag_space < N_TAG_SPACES, BT_ERR_INVALID_ARG, "tag space %u, want 0..%d", tag_space,
               N_TAG_SPACES - 1);
    BT_TRY(check_ranks(world, n, ranks, &self));
    bt_world_sweep(world);
    group = bt_calloc(1, sizeof(*group));
    BT_REQUIRE(group != NULL, BT_ERR_NO_MEMORY, "a group of %u ranks", n);
    group->world     = world;
    group->n         = n;
    group->self      = self;
    group->tag_space = tag_space;
    group->epoch     = epoch;
    group->lanes     = bt_calloc(n, sizeof(*group->lanes));
    group->statuses  = bt_calloc(2 * (size_t)n, sizeof(*group->statuses));
    group->indices   = bt_calloc(2 * (size_t)n, sizeof(*group->indices));
    BT_REQUIRE(group->lanes != NULL && group->statuses != NULL && group->indices != NULL,
               BT_ERR_NO_MEMORY, "the lanes of a group of %u ranks", n);
    for (uint32_t i = 0; i < n; i++)
        set_lane(group, i, ranks[i]);
    BT_TRY(take_arena(group));
    *group_out = group;
    group      = NULL;
out:
    bt_group_destroy(group);
    return st;
}

void bt_group_destroy(bt_group *group)
{
    if (group == NULL) return;
    if (group->carrier != NULL) group->carrier->ops->destroy(group->carrier);
    if (group->arena != NULL) {
        bt_world_abandon(group->world, group->arena);
        bt_world_sweep(group->world); /* frees it at once unless a request is still open */
    }
    bt_free(group->indices);
    bt_free(group->statuses);
    bt_free(group->lanes);
    bt_free(group);
}

uint32_t bt_group_size(const bt_group *group) { return group->n; }
uint32_t bt_group_self(const bt_group *group) { return group->self; }
uint32_t bt_group_epoch(const bt_group *group) { return group->epoch; }
uint32_t bt_group_world_rank(const bt_group *group, uint32_t index)
{
    BT_ASSERT(index < group->n);
    return group->lanes[index].peer;
}

bt_status bt_group_check(const bt_group *group, const bt_wait *wait)
{
    bt_status st = BT_OK;

    BT_REQUIRE(!group->broken, BT_ERR_PEER,
               "%s: the group of epoch %u failed before and must be made anew", bt_wait_name(wait),
               group->epoch);
out:
    return st;
}

uint64_t bt_group_n_met(const bt_group *group) { return group->sequence; }

bool bt_group_is_broken(const bt_group *group) { return group->broken; }
void bt_group_break(bt_group *group) { group->broken = true; }

bool bt_group_is_called(const bt_group *group)
{
    int tag   = bt_tag_make(group->world->tags, group->tag_space, group->epoch, group->sequence);
    int found = 0;

    return MPI_Iprobe(MPI_ANY_SOURCE, tag, group->world->group_comm, &found, MPI_STATUS_IGNORE) ==
               MPI_SUCCESS &&
           found;
}

void bt_group_attach(bt_group *group, bt_carrier *carrier)
{
    BT_ASSERT(group->carrier == NULL);
    group->carrier = carrier;
}

bt_carrier *bt_group_carrier(const bt_group *group) { return group->carrier; }

uint32_t bt_group_missing(const bt_group *group, uint32_t *ranks_out)
{
    uint32_t n = 0;

    if (group->broken && group->carrier != NULL)
        n = group->carrier->ops->missing(group->carrier, ranks_out);
    if (n > 0) return n;
    for (uint32_t i = 0; i < group->n; i++) {
        const bt_group_lane *l = &group->lanes[i];

        if (i != group->self && (l->n_received < l->n_recv || l->n_sent < l->n_send))
            ranks_out[n++] = l->peer;
    }
    return n;
}

/* ---- what came before */

/* Messages of a rank arrive in the order in which they were sent: stop at the first one that is
 * not of an older group. */
static void drain_lane(bt_group *group, const bt_group_lane *l)
{
    bt_world *world = group->world;

    for (;;) {
        MPI_Message message;
        MPI_Status  status;
        int         found = 0, n_bytes = 0;

        if (MPI_Iprobe((int)l->peer, MPI_ANY_TAG, world->group_comm, &found, &status) !=
                MPI_SUCCESS ||
            !found || bt_tag_is_recent(world->tags, status.MPI_TAG, group->tag_space, group->epoch))
            return;
        if (MPI_Improbe((int)l->peer, status.MPI_TAG, world->group_comm, &found, &message,
                        &status) != MPI_SUCCESS ||
            !found)
            return;
        MPI_Get_count(&status, MPI_BYTE, &n_bytes);
        bt_world_drain(world, &message, (size_t)n_bytes);
    }
}

void bt_group_drain(bt_group *group)
{
    for (uint32_t i = 0; i < group->n; i++)
        if (i != group->self) drain_lane(group, &group->lanes[i]);
    bt_world_sweep(group->world);
}

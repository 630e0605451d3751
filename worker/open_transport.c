/* worker/open_transport.c - how the device memory of ranks travels.  All ranks must use the same
 * way, so each tells the others what it has before anybody decides. */
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "worker/rank.h"

enum { GPU_BYTES = 40, WHY_BYTES = 252 };
#define LEAST_NS (60 * BT_NS_PER_S) /* ranks start one after the other */

/* Where a rank computes: as in bt_device, and what a GPU has left with the rank's context in it. */
typedef struct {
    char     bus_id[GPU_BYTES], uuid[GPU_BYTES];
    uint64_t left;
} place;

typedef struct {
    uint32_t can;
    char     why[WHY_BYTES]; /* not */
} vote;

/* NCCL has a pool in /dev/shm for each communicator with a peer over the network, of which a rank
 * has two: proxy.cc of version 2.28. */
enum { SHM_BYTES = 33 << 20 };

/* Between ranks that share a GPU NCCL takes the network as well.  Said once a machine. */
static void warn_of_shm(const bt_rank *r)
{
    uint32_t       n_local = bt_world_local_size(r->world);
    uint64_t       need    = 2ull * SHM_BYTES * n_local, left;
    struct statvfs s;

    if (bt_world_local_rank(r->world) != 0 || statvfs("/dev/shm", &s) != 0) return;
    if (!r->shares_gpu && n_local == r->facts.n_ranks) return;
    left = (uint64_t)s.f_bavail * s.f_frsize;
    if (left < need)
        BT_WARN("NCCL wants about %llu MiB of /dev/shm for the %u ranks of this machine, and %llu "
                "MiB are free: a container gets more by docker run --shm-size",
                (unsigned long long)(need >> 20), n_local, (unsigned long long)(left >> 20));
}

bt_status bt_rank_form_all(bt_rank *r, bt_group **group_out)
{
    bt_status st    = BT_OK;
    uint32_t  n     = r->facts.n_ranks;
    uint32_t *ranks = bt_calloc(n, sizeof(*ranks));

    BT_REQUIRE(ranks != NULL, BT_ERR_NO_MEMORY, "a group of all %u ranks", n);
    for (uint32_t i = 0; i < n; i++)
        ranks[i] = i;
    BT_TRY(bt_group_create(r->world, n, ranks, BT_SPACE_START, BT_FIRST_EPOCH, group_out));
out:
    bt_free(ranks);
    return st;
}

bt_wait bt_rank_wait_at_start(const bt_rank *r, const char *what)
{
    bt_wait wait = {.timeout_ns = r->opt.timeout_ns, .what = what, .layer = -1};

    if (wait.timeout_ns < LEAST_NS) wait.timeout_ns = LEAST_NS;
    return wait;
}

/* all_out[n_ranks] of `bytes` each: the caller's to free. */
static bt_status tell_all(const bt_rank *r, bt_group *group, const char *what, const void *mine,
                          size_t bytes, void *all_out)
{
    bt_status st   = BT_OK;
    void     *all  = bt_calloc(r->facts.n_ranks, bytes);
    bt_wait   wait = bt_rank_wait_at_start(r, what);

    BT_REQUIRE(all != NULL, BT_ERR_NO_MEMORY, "what %u ranks tell", r->facts.n_ranks);
    BT_TRY(bt_group_all_gather(group, mine, bytes, all, &wait));
    memcpy(all_out, &all, sizeof(all));
    all = NULL;
out:
    bt_free(all);
    return st;
}

static bool on_gpu(const place *p) { return p->bus_id[0] != '\0'; }

/* As NCCL sees it: instances of one GPU (MIG) are the same. */
static bool same_gpu(const bt_rank *r, const place *all, uint32_t a, uint32_t b)
{
    return on_gpu(&all[a]) && bt_world_same_machine(r->world, a, b) &&
           strcmp(all[a].bus_id, all[b].bus_id) == 0;
}

/* An instance has memory of its own. */
static void count_sharers(bt_rank *r, const place *all)
{
    uint32_t self = r->facts.rank;

    r->gpu_sharers = 0;
    r->gpu_left    = all[self].left;
    if (!on_gpu(&all[self])) return;
    for (uint32_t i = 0; i < r->facts.n_ranks; i++) {
        if (!same_gpu(r, all, self, i)) continue;
        r->shares_gpu |= i != self;
        if (strcmp(all[self].uuid, all[i].uuid) != 0) continue;
        r->gpu_sharers++;
        if (all[i].left < r->gpu_left)
            r->gpu_left = all[i].left; /* the last to come sees all contexts */
    }
    BT_INFO("rank %u computes on GPU %u, with %u more ranks", self, r->gpu, r->gpu_sharers - 1);
}

/* Two ranks that share a GPU; false: none do. */
static bool find_pair(const bt_rank *r, const place *all, uint32_t *a_out, uint32_t *b_out)
{
    for (uint32_t a = 0; a < r->facts.n_ranks; a++)
        for (uint32_t b = a + 1; b < r->facts.n_ranks; b++)
            if (same_gpu(r, all, a, b)) {
                *a_out = a;
                *b_out = b;
                return true;
            }
    return false;
}

/* Whether NCCL is worth opening, from what all ranks know; else the reason. */
static bool may_use_nccl(const bt_rank *r, const place *all, char *why)
{
    uint32_t a = 0, b = 0;

    why[0] = '\0';
    if (r->opt.transport == BT_BY_MPI) snprintf(why, WHY_BYTES, "--transport says so");
    if (r->facts.n_ranks == 1) snprintf(why, WHY_BYTES, "a cell of one rank needs no other");
    for (uint32_t i = 0; i < r->facts.n_ranks && why[0] == '\0'; i++)
        if (!on_gpu(&all[i])) snprintf(why, WHY_BYTES, "rank %u computes on the CPU", i);
    if (why[0] == '\0' && r->opt.transport == BT_BY_ANY && find_pair(r, all, &a, &b))
        snprintf(why, WHY_BYTES,
                 "ranks %u and %u share a GPU, which NCCL does not promise to work on (--transport "
                 "nccl tries it)",
                 a, b);
    return why[0] == '\0';
}

/* NULL with the reason when a rank cannot open it. */
static bt_status open_nccl(bt_rank *r, bt_group *group, char *why, const bt_nccl_module **nccl_out)
{
    bt_status             st   = BT_OK;
    vote                  mine = {.can = 0}, *all = NULL;
    const bt_nccl_module *nccl = NULL;

    if (r->opt.timeout_ns < BT_NCCL_LEAST_TIMEOUT_NS)
        snprintf(mine.why, sizeof(mine.why),
                 "--timeout-s is %.0f: with NCCL it has to be %.0f or more",
                 (double)r->opt.timeout_ns / BT_NS_PER_S,
                 (double)BT_NCCL_LEAST_TIMEOUT_NS / BT_NS_PER_S);
    else
        nccl = bt_nccl_open(r->opt.nccl_library, r->facts.rank, r->shares_gpu, mine.why,
                            sizeof(mine.why));
    mine.can = nccl != NULL;
    BT_TRY(tell_all(r, group, "transport of all ranks", &mine, sizeof(mine), &all));
    for (uint32_t i = 0; i < r->facts.n_ranks && nccl != NULL; i++) {
        if (all[i].can) continue;
        snprintf(why, WHY_BYTES, "rank %u: %.*s", i, WHY_BYTES - 32, all[i].why);
        nccl = NULL;
    }
    if (!mine.can)
        snprintf(why, WHY_BYTES, "rank %u: %.*s", r->facts.rank, WHY_BYTES - 32, mine.why);
    *nccl_out = nccl;
out:
    bt_free(all);
    return st;
}

bt_status bt_rank_open_transport(bt_rank *r)
{
    bt_status st    = BT_OK;
    bt_group *group = NULL;
    place     mine = {.bus_id = ""}, *all = NULL;
    char      why[WHY_BYTES];

    snprintf(mine.bus_id, GPU_BYTES, "%s", r->dev->bus_id);
    snprintf(mine.uuid, GPU_BYTES, "%s", r->dev->uuid);
    if (on_gpu(&mine)) BT_TRY(bt_memory_available_on(r->dev, &mine.left));
    BT_TRY(bt_rank_form_all(r, &group));
    BT_TRY(tell_all(r, group, "devices of all ranks", &mine, sizeof(mine), &all));
    count_sharers(r, all);
    if (may_use_nccl(r, all, why)) BT_TRY(open_nccl(r, group, why, &r->nccl));
    if (r->nccl != NULL) warn_of_shm(r);
    BT_REQUIRE(r->nccl != NULL || r->opt.transport != BT_BY_NCCL, BT_ERR_UNSUPPORTED,
               "--transport nccl: %s", why);
    if (r->facts.rank != 0) goto out;
    if (r->nccl != NULL)
        BT_INFO("between ranks: NCCL, which all %u of them have", r->facts.n_ranks);
    else
        BT_INFO("between ranks: MPI, through host memory: %s", why);
out:
    bt_group_destroy(group);
    bt_free(all);
    return st;
}

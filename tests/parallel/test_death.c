/* A rank's process dies: the others are told who is missing, regroup, and go on; a hand-off to the
 * dead one does not hold up the rest.  Needs a launcher that lets survivors live; since it then
 * hides exit codes, the verdict is the line "all survivors: ok". */
#include <unistd.h>

#include "tests/parallel/handoff_site.h"

static site g_site;

/* Open MPI 5 tells of requests that fail since their peer has died; over TCP it learns of that. */
static bool mpi_tells_of_deaths(void)
{
    char version[MPI_MAX_LIBRARY_VERSION_STRING];
    int  n;

    MPI_Get_library_version(version, &n);
    return strstr(version, "Open MPI v5") != NULL && !bt_world_all_shared(g_world);
}

/* A payload that is under way to one who dies has not been sent.  It stands behind more than the
 * connection holds, since who has granted it does not read. */
static void check_granted(void)
{
    enum { N = 200, BYTES = 60000, DIES_NS = BT_NS_PER_S };
    static uint8_t     filler[BYTES];
    static MPI_Request requests[N];
    int                last = (int)g_ranks - 1, found = 0;
    uint64_t           grant_ns = g_site.h->grant_ns;

    g_site.h->grant_ns = 60 * BT_NS_PER_S;
    if (g_rank == g_ranks - 1) {
        while (g_site.h->peers[0].n_granted == 0)
            bt_handoff_poll(g_site.h);
        bt_sleep_ns(DIES_NS);
    }
    if (g_rank != 0) goto out;
    EXPECT(site_send(&g_site, g_ranks - 1, 1000, 20) != NULL);
    bt_handoff_poll(g_site.h);
    while (!found)
        MPI_Iprobe(last, BT_TAG_SIGNAL, g_world->handoff_comm, &found, MPI_STATUS_IGNORE);
    for (int i = 0; i < N; i++)
        MPI_Isend(filler, BYTES, MPI_BYTE, last, 0, g_world->group_comm, &requests[i]);
    poll_for(&g_site, 0.01);
    EXPECT_EQ(g_site.h->slots[0].state, BT_SLOT_SENDING);
    bt_sleep_ns(DIES_NS);
    poll_for(&g_site, 0.05);
    EXPECT_EQ(g_site.n_sent, 0);
    EXPECT_EQ(g_site.h->n_signals_open, 0);
out:
    g_site.h->grant_ns = grant_ns;
}

static void check_group(bt_group *group)
{
    bt_wait  wait = wait_s(3); /* so late the others may be */
    uint8_t  one  = 1, all[MAX_RANKS];
    uint32_t missing[MAX_RANKS];
    char     want[64];

    wait.what = "step plan";
    snprintf(want, sizeof(want), "nothing came from ranks: %u;", g_ranks - 1);
    EXPECT_EQ(bt_group_all_gather(group, &one, 1, all, &wait), BT_ERR_TIMEOUT);
    EXPECT_HAS(bt_error_text(), want);
    EXPECT_EQ(bt_group_missing(group, missing), 1);
    EXPECT_EQ(missing[0], g_ranks - 1);
    bt_group_destroy(group);
}

static bt_group *survivors(void)
{
    uint32_t  ranks[MAX_RANKS];
    bt_group *group = NULL;

    for (uint32_t i = 0; i < g_ranks; i++)
        ranks[i] = i;
    EXPECT_EQ(bt_group_create(g_world, g_ranks - 1, ranks, 0, next_epoch(), &group), BT_OK);
    if (group == NULL) bt_world_exit(EXIT_FAILURE);
    return group;
}

/* Messages for the dead rank and for the others, side by side. */
static void check_handoff(bt_group *group)
{
    bt_wait  wait = wait_s(20);
    uint32_t to   = (g_rank + 1) % (g_ranks - 1);

    for (uint32_t i = 0; i < 2; i++)
        EXPECT(site_send(&g_site, g_ranks - 1, i, 20) != NULL);
    for (uint32_t i = 0; i < 20; i++) {
        EXPECT(site_send(&g_site, to, 100 + i, 20) != NULL);
        EXPECT(poll_until(&g_site, &g_site.n_sent, i + 1));
    }
    EXPECT(poll_until(&g_site, &g_site.n_delivered, 20));
    EXPECT(poll_until(&g_site, &g_site.max_expired, 2));
    EXPECT_EQ(bt_handoff_exclude(g_site.h, g_ranks - 1), BT_OK);
    for (uint32_t i = 0; i < 2; i++)
        EXPECT(bt_handoff_cancel(g_site.h, request_of(g_rank, g_ranks - 1, i)));
    for (uint32_t i = 0; i < 4; i++) /* every slot is free */
        EXPECT(site_send(&g_site, to, 200 + i, 20) != NULL);
    EXPECT(poll_until(&g_site, &g_site.n_sent, 24));
    EXPECT(poll_until(&g_site, &g_site.n_delivered, 24));
    wait.idle = site_poll;
    wait.ctx  = &g_site;
    EXPECT_EQ(bt_group_barrier(group, &wait), BT_OK);
    EXPECT_EQ(g_site.n_sent, 24);
    EXPECT_EQ(g_site.n_wrong + g_site.n_rejected, 0);
    site_close(&g_site);
}

/* What rank 0 sends in vain to an older group does not stay in MPI's queue. */
static void check_drain(void)
{
    enum { BYTES = 100000 };
    bt_group  *older = survivors(), *newer = survivors();
    uint8_t   *send = calloc(1, BYTES), *recv = malloc((size_t)BYTES * g_ranks);
    bt_wait    wait = wait_s(20), brief = wait_s(0.1);
    int        found = 0;
    MPI_Status status;

    if (g_rank == 0)
        EXPECT_EQ(bt_group_all_gather(older, send, BYTES, recv, &brief), BT_ERR_TIMEOUT);
    EXPECT_EQ(bt_group_barrier(newer, &wait), BT_OK); /* behind that message */
    bt_group_drain(newer);
    MPI_Iprobe(0, MPI_ANY_TAG, g_world->group_comm, &found, &status);
    EXPECT(!found || /* rank 0 may be a barrier ahead */
           bt_tag_is_recent(g_world->tags, status.MPI_TAG, 0, bt_group_epoch(newer)));
    EXPECT_EQ(bt_group_barrier(newer, &wait), BT_OK);
    bt_group_destroy(older);
    bt_group_destroy(newer);
    free(send);
    free(recv);
}

static void check_exchange(bt_group *group)
{
    enum { BYTES = 300000 };
    uint8_t *send = malloc(BYTES), *recv = malloc((size_t)BYTES * g_ranks);
    bt_wait  wait = wait_s(20);

    for (int k = 0; k < 20; k++) {
        memset(send, (int)g_rank + k, BYTES);
        EXPECT_EQ(bt_group_all_gather(group, send, BYTES, recv, &wait), BT_OK);
        for (uint32_t i = 0; i < g_ranks - 1; i++)
            EXPECT_EQ(recv[(size_t)i * BYTES + BYTES - 1], (uint8_t)(i + (uint32_t)k));
    }
    free(send);
    free(recv);
}

int main(int argc, char **argv)
{
    bt_group *group;
    bt_wait   wait = wait_s(20);

    mpi_test_start(&argc, &argv);
    site_init(&g_site, 4, 4000, 0.1);
    group = group_of_all();
    meet();
    if (mpi_tells_of_deaths()) check_granted();
    if (g_rank == g_ranks - 1) _exit(0);
    check_group(group);
    group = survivors();
    check_handoff(group);
    check_exchange(group);
    check_drain();
    survivors_end(group, &wait);
}

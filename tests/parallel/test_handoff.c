/* The hand-off as n ranks: traffic between all pairs, expiry, cancelling, fairness. */
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include "tests/parallel/handoff_site.h"

static site g_site;

static uint32_t open_grants(const bt_handoff *h)
{
    uint32_t n = 0;

    for (uint32_t r = 0; r < g_ranks; r++)
        n += h->peers[r].n_granted;
    return n;
}

#ifdef SITE_NCCL
enum { TRAFFIC = 60, LARGE = 10, CANCELS = 150 };
#define EXPIRY_S 0.01
static uint32_t first_receiver(void) { return g_ranks / 2; }
static bool     sends(void) { return g_rank < first_receiver(); }
static uint32_t random_rank(uint32_t k)
{
    return first_receiver() + (uint32_t)(mix3(g_rank, k, 1) % (g_ranks - first_receiver()));
}
static uint32_t next_rank(uint32_t k)
{
    return first_receiver() + k % (g_ranks - first_receiver());
}
#else
enum { TRAFFIC = 1900, LARGE = 100, CANCELS = 1500 };
#define EXPIRY_S 0.002
static bool     sends(void) { return true; }
static uint32_t random_rank(uint32_t k) /* any other one */
{
    return (uint32_t)(g_rank + 1 + mix3(g_rank, k, 1) % (g_ranks - 1)) % g_ranks;
}
static uint32_t next_rank(uint32_t k) { return (void)k, (g_rank + 1) % g_ranks; }
#endif

/* Sends `n` messages to receivers that `to_of` names, polls, and meets; all must arrive once. */
static void run_traffic(uint32_t n, uint32_t (*to_of)(uint32_t k), uint32_t max_rows)
{
    uint32_t sent_to[MAX_RANKS] = {0}, all[MAX_RANKS * MAX_RANKS], expect = 0, once = 0, k = 0;
    bt_wait  wait   = wait_s(60);
    uint64_t end_ns = bt_now_ns() + 200 * BT_NS_PER_S;

    if (!sends()) n = 0;
    for (uint32_t i = 0; i < n; i++)
        sent_to[to_of(i)]++;
    EXPECT_EQ(bt_group_all_gather(g_all, sent_to, g_ranks * sizeof(uint32_t), all, &wait), BT_OK);
    for (uint32_t r = 0; r < g_ranks; r++)
        expect += all[r * g_ranks + g_rank];
    while ((k < n || g_site.n_delivered < expect || g_site.n_sent < n) && bt_now_ns() < end_ns) {
        uint32_t rows = 1 + (uint32_t)(mix3(g_rank, k, 9) % max_rows);

        if (k < n && site_send(&g_site, to_of(k), k, rows) != NULL) k++;
        EXPECT(open_grants(g_site.h) <= 1);
        if (!bt_handoff_poll(g_site.h) && k == n) sched_yield();
    }
    EXPECT_EQ(g_site.n_delivered, expect);
    EXPECT_EQ(g_site.n_sent, n);
    EXPECT_EQ(g_site.n_rejected, 0);
    for (uint32_t i = 0; i < SITE_SEEN; i++)
        once += g_site.seen[i] > 0;
    EXPECT((once > 0 || expect == 0) && once <= expect);
}

static void random_traffic_between_all_pairs_arrives_whole(void)
{
    uint64_t start_ns = bt_now_ns();

    site_init(&g_site, 6, 40000, 20);
    run_traffic(TRAFFIC, random_rank, 200);
    printf("  %d messages a rank: %.1f us each\n", TRAFFIC,
           (double)(bt_now_ns() - start_ns) / TRAFFIC / 1e3);
    site_fini(&g_site);
}

/* Every rank sends to the next and receives from the one before, large payloads, all slots full:
 * a cycle in which ordered sends would wait for each other for ever. */
static void cycle_of_large_payloads_does_not_lock(void)
{
    uint64_t start_ns = bt_now_ns();
    size_t   max;

    site_init(&g_site, 4, 1 << 20, 20);
    max = bt_handoff_payload_max(g_site.h);
    EXPECT(max == 1 << 20 || max < 64 * 1024 - BT_PAGE_MESSAGE_BYTES);
    run_traffic(LARGE, next_rank, (uint32_t)(max / row_bytes(1)));
    printf("  %d payloads up to %zu bytes: %.0f us each\n", LARGE, max,
           (double)(bt_now_ns() - start_ns) / LARGE / 1e3);
    site_fini(&g_site);
}

/* The hand-off moves while a group exchange waits, and neither disturbs the other. */
static void traffic_flows_while_a_group_exchange_waits(void)
{
    bt_group *group = group_of_all();
    bt_wait   wait  = wait_s(30);
    uint64_t  all[MAX_RANKS], wrong = 0;
    uint32_t  k = 0;

    site_init(&g_site, 4, 20000, 20);
    wait.idle = site_poll;
    wait.ctx  = &g_site;
    for (uint64_t step = 0; step < 2000; step++) {
        uint64_t mine = mix3(step, g_rank, 4);

        if (k < 500 && sends() && site_send(&g_site, random_rank(k), k, 100) != NULL) k++;
        EXPECT_EQ(bt_group_all_gather(group, &mine, sizeof(mine), all, &wait), BT_OK);
        for (uint32_t i = 0; i < g_ranks; i++)
            wrong += all[i] != mix3(step, i, 4);
    }
    EXPECT_EQ(wrong, 0);
    EXPECT(k > 50 || !sends());
    poll_until(&g_site, &g_site.n_sent, k);
    EXPECT_EQ(g_site.n_sent, k);
    site_fini(&g_site);
    bt_group_destroy(group);
}

/* The last rank's process is stopped while rank 0 has messages for it and for the others. */
static void stopped_receiver_expires_while_others_go_on(void)
{
    enum { OTHERS = 200, STUCK = 3 };
    int32_t  pid  = getpid(), pids[MAX_RANKS];
    bt_wait  wait = wait_s(30);
    uint32_t last = g_ranks - 1, k = 0;

    EXPECT_EQ(bt_group_all_gather(g_all, &pid, sizeof(pid), pids, &wait), BT_OK);
    site_init(&g_site, STUCK + 2, 20000, 0.05);
    if (g_rank == 0) {
        kill(pids[last], SIGSTOP);
        for (uint32_t i = 0; i < STUCK; i++)
            EXPECT(site_send(&g_site, last, i, 50) != NULL);
        while (g_ranks > 2 && k < OTHERS) {
            if (site_send(&g_site, 1 + k % (g_ranks - 2), k + 100, 50) != NULL) k++;
            if (!bt_handoff_poll(g_site.h)) bt_sleep_ns(20000);
        }
        EXPECT(poll_until(&g_site, &g_site.n_sent, k));
        EXPECT(poll_until(&g_site, &g_site.max_expired, 3)); /* counted while it stays silent */
        EXPECT_EQ(g_site.n_sent, k);                         /* nothing went to the stopped one */
        kill(pids[last], SIGCONT);
        EXPECT(poll_until(&g_site, &g_site.n_sent, k + STUCK)); /* and then all of it */
    } else if (g_rank == last) {
        EXPECT(poll_until(&g_site, &g_site.n_delivered, STUCK));
    } else {
        uint32_t mine = OTHERS / (g_ranks - 2);

        EXPECT(poll_until(&g_site, &g_site.n_delivered, mine));
    }
    site_fini(&g_site);
    EXPECT_EQ(g_site.n_rejected, 0);
}

/* A rank that got a grant and does not use it delays the others by one grant period; its payload
 * is taken when it comes after all. */
static void unused_grant_expires_and_its_late_payload_arrives(void)
{
    if (g_ranks < 3) return;
    site_init(&g_site, 2, 4000, 0.3);
    meet(); /* until here rank 0 polls, and might grant in the same poll */
    if (g_rank == 1) {
        EXPECT(site_send(&g_site, 0, 1, 10) != NULL);
        bt_handoff_poll(g_site.h); /* asks */
        EXPECT_EQ(g_site.h->slots[0].state, BT_SLOT_ASKED);
    }
    meet();
    if (g_rank == 0) {
        uint64_t end_ns = bt_now_ns() + 60 * BT_NS_PER_S;

        while (g_site.h->grant_to != 1 && bt_now_ns() < end_ns)
            bt_handoff_poll(g_site.h);
        EXPECT_EQ(g_site.h->grant_to, 1);
    }
    meet();
    if (g_rank == 2) {
        EXPECT(site_send(&g_site, 0, 2, 10) != NULL);
        EXPECT(poll_until(&g_site, &g_site.n_sent, 1));
    } else if (g_rank == 0) {
        EXPECT(poll_until(&g_site, &g_site.n_delivered, 1));
        EXPECT_EQ(g_site.last_from, 2);
        EXPECT_EQ(open_grants(g_site.h), 1); /* rank 1's, still good */
        g_site.h->grant_to       = 2;        /* the next one's */
        g_site.h->grant_since_ns = bt_now_ns() - g_site.h->still_ns;
        g_site.h->grant_ns       = 120 * BT_NS_PER_S;
    }
    meet();
    if (g_rank == 1) {
        EXPECT(poll_until(&g_site, &g_site.n_sent, 1));
        EXPECT_EQ(g_site.n_expired, 0); /* the grant was there before the clock was looked at */
    }
    if (g_rank == 0) {
        EXPECT(poll_until(&g_site, &g_site.n_delivered, 2));
        EXPECT_EQ(g_site.h->grant_to, 2);
        g_site.h->grant_to = BT_NO_PEER;
    }
    site_fini(&g_site);
}

/* As on a machine that stood still, and goes on with this rank: the receiver has its time yet. */
static void standstill_makes_no_request_expire(void)
{
    site_init(&g_site, 2, 4000, 2);
    meet();
    if (g_rank == 1) {
        EXPECT(site_send(&g_site, 0, 1, 10) != NULL);
        bt_handoff_poll(g_site.h); /* asks */
        bt_sleep_ns(5 * BT_NS_PER_S / 2);
        poll_for(&g_site, 0.1);
        EXPECT_EQ(g_site.n_expired, 0);
        bt_sleep_ns(11 * BT_NS_PER_S / 10);
        poll_for(&g_site, 0.1);
        EXPECT_EQ(g_site.n_expired, 1); /* however seldom this rank looks */
    }
    meet();
    if (g_rank == 0) EXPECT(poll_until(&g_site, &g_site.n_delivered, 1));
    if (g_rank == 1) EXPECT(poll_until(&g_site, &g_site.n_sent, 1));
    site_fini(&g_site);
}

/* The end to write to of a pipe that another rank has. */
static int open_pipe_of(uint32_t rank, const int *own)
{
    int     mine[2] = {getpid(), own[1]}, all[MAX_RANKS][2];
    bt_wait wait    = wait_s(60);
    char    path[64];

    EXPECT_EQ(bt_group_all_gather(g_all, mine, sizeof(mine), all, &wait), BT_OK);
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", all[rank][0], all[rank][1]);
    return open(path, O_WRONLY | O_CLOEXEC);
}

/* As in a layer that takes long: rank 1 does not look at MPI while it is granted what it asked for,
 * and hears by a pipe that it was. */
static void grant_that_came_unseen_is_used(void)
{
    enum { LAYERS = 3 };
    int           fds[2] = {-1, -1}, granted;
    struct pollfd heard;

    EXPECT_EQ(pipe2(fds, O_CLOEXEC), 0);
    granted = open_pipe_of(1, fds);
    heard   = (struct pollfd){.fd = fds[0], .events = POLLIN};
    EXPECT(granted >= 0);
    site_init(&g_site, 2, 4000, 0.5);
    meet();
    for (uint32_t k = 1; k <= LAYERS; k++) {
        uint64_t end_ns = bt_now_ns() + 60 * BT_NS_PER_S;
        char     byte   = 0;

        if (g_rank == 1) {
            EXPECT(site_send(&g_site, 0, k, 10) != NULL);
            bt_handoff_poll(g_site.h); /* asks */
            EXPECT(poll(&heard, 1, 60000) == 1 && read(fds[0], &byte, 1) == 1);
            bt_sleep_ns(500 * BT_NS_PER_MS);
            EXPECT(poll_until(&g_site, &g_site.n_sent, k));
        } else if (g_rank == 0) {
            while (open_grants(g_site.h) == 0 && g_site.n_delivered < k && bt_now_ns() < end_ns)
                bt_handoff_poll(g_site.h);
            EXPECT_EQ(write(granted, &byte, 1), 1);
            EXPECT(poll_until(&g_site, &g_site.n_delivered, k));
        }
    }
    EXPECT_EQ(g_site.n_expired, 0);
    site_fini(&g_site);
    close(granted);
    close(fds[0]);
    close(fds[1]);
}

/* All of rank 1's messages are queued first; rank 2's leave among them, not after them.  (The order
 * in which sends are seen to complete may differ a little from that of the requests.) */
static void receivers_take_turns(void)
{
    enum { TO_1 = 14, TO_2 = 2 };
    uint32_t seen = 0, at = 0;

    site_init(&g_site, TO_1 + TO_2, 4000, 20);
    if (g_rank == 0 && g_ranks > 2) {
        void *first = bt_handoff_stage(g_site.h); /* whatever slots they lie in */

        for (uint32_t i = 0; i < TO_1 + TO_2; i++) {
            if (i == TO_1) bt_handoff_unstage(g_site.h, first);
            EXPECT(site_send(&g_site, i < TO_1 ? 1 : 2, i, 10) != NULL);
        }
        EXPECT(poll_until(&g_site, &g_site.n_sent, TO_1 + TO_2));
        while (at < TO_1 + TO_2 && seen < TO_2)
            seen += g_site.sent_order[at++] == 2;
        EXPECT(at <= TO_1 / 2);
    }
    if (g_ranks > 2 && (g_rank == 1 || g_rank == 2))
        EXPECT(poll_until(&g_site, &g_site.n_delivered, g_rank == 1 ? TO_1 : TO_2));
    site_fini(&g_site);
}

static void nothing_is_granted_without_room_for_it(void)
{
    bt_handoff *h;

    site_init(&g_site, 2, 4000, 20);
    h = g_site.h;
    for (int i = 0; i < BT_HANDOFF_INBOXES && g_rank == 1; i++) {
        h->inboxes[i].busy = true;
        lend(h->inboxes[i].request, 1);
    }
    meet();
    if (g_rank == 0) {
        EXPECT(site_send(&g_site, 1, 1, 10) != NULL);
        bt_handoff_poll(h); /* asks */
    }
    if (g_rank == 1) {
        EXPECT(poll_until(&g_site, &h->n_asked, 1));
        for (int i = 0; i < 10; i++)
            bt_handoff_poll(h);
        EXPECT(h->n_asked == 1 && h->grant_to == BT_NO_PEER);
    }
    for (int i = 0; i < BT_HANDOFF_INBOXES && g_rank == 1; i++) {
        give_back(1);
        MPI_Wait(h->inboxes[i].request, MPI_STATUS_IGNORE);
        h->inboxes[i].busy = false;
    }
    meet();
    if (g_rank == 0) EXPECT(poll_until(&g_site, &g_site.n_sent, 1));
    if (g_rank == 1) EXPECT(poll_until(&g_site, &g_site.n_delivered, 1));
    site_fini(&g_site);
}

/* For a link's rate: what left by MPI, and the time since it was asked for. */
static void what_has_left_is_counted_with_its_time(void)
{
    enum { WAITS_MS = 50 };
    const bt_traffic *t = &bt_world_traffic(g_world)[1];
    uint64_t          bytes, ns;

    site_init(&g_site, 2, 4000, 20);
    bytes = t->handoff_bytes;
    ns    = t->handoff_ns;
    if (g_rank == 0) {
        EXPECT(site_send(&g_site, 1, 1, 10) != NULL);
        bt_handoff_poll(g_site.h); /* asks */
        bt_sleep_ns(WAITS_MS * BT_NS_PER_MS);
    }
    meet();
    if (g_rank == 0) {
        EXPECT(poll_until(&g_site, &g_site.n_sent, 1));
        EXPECT_EQ(t->handoff_bytes - bytes, g_dev == NULL ? row_bytes(10) : 0);
        if (g_dev == NULL) EXPECT(t->handoff_ns - ns >= WAITS_MS * BT_NS_PER_MS);
        EXPECT(t->handoff_ns - ns < 200 * BT_NS_PER_S);
    }
    if (g_rank == 1) EXPECT(poll_until(&g_site, &g_site.n_delivered, 1));
    site_fini(&g_site);
}

static void staging_runs_out_and_comes_back(void)
{
    void *a, *b;

    site_init(&g_site, 2, 100, 20);
    a = bt_handoff_stage(g_site.h);
    b = bt_handoff_stage(g_site.h);
    EXPECT(a != NULL && b != NULL && a != b);
    EXPECT_EQ((uintptr_t)a % 64, 0);
    EXPECT(bt_handoff_stage(g_site.h) == NULL);
    EXPECT(handoff_is_idle(g_site.h)); /* staged is not queued */
    bt_handoff_unstage(g_site.h, a);
    EXPECT(bt_handoff_stage(g_site.h) == a);
    bt_handoff_unstage(g_site.h, a);
    bt_handoff_unstage(g_site.h, b);
    site_fini(&g_site);
}

/* ---- cancelling, rank 0 to rank 1, in each state ------------------------------------------ */

static void cancel_of_a_queued_message_frees_its_slot(void)
{
    site_init(&g_site, 3, 4000, 20);
    if (g_rank == 0) {
        site_send(&g_site, 1, 1, 10);
        site_send(&g_site, 1, 2, 10);
        site_send(&g_site, 1, 1, 20);
        EXPECT(bt_handoff_cancel(g_site.h, request_of(0, 1, 1)));
        EXPECT(bt_handoff_stage(g_site.h) != NULL);
        EXPECT(bt_handoff_stage(g_site.h) != NULL);
        EXPECT(bt_handoff_stage(g_site.h) == NULL);
        EXPECT(poll_until(&g_site, &g_site.n_sent, 1));
        EXPECT(bt_handoff_cancel(g_site.h, 12345)); /* never heard of */
    }
    if (g_rank == 1) {
        EXPECT(poll_until(&g_site, &g_site.n_delivered, 1));
        EXPECT(g_site.last_request == request_of(0, 1, 2));
    }
    site_fini(&g_site);
    if (g_rank == 1) EXPECT_EQ(g_site.n_delivered, 1);
}

/* Whatever slots they lie in: the younger one has the lower. */
static void messages_of_one_receiver_leave_in_their_order(void)
{
    uint64_t serial = g_world->next_serial;

    site_init(&g_site, 2, 4000, 20);
    if (g_rank == 0) {
        site_send(&g_site, 1, 1, 10);
        site_send(&g_site, 1, 2, 10);
        EXPECT(bt_handoff_cancel(g_site.h, request_of(0, 1, 1)));
        EXPECT(site_send(&g_site, 1, 3, 10) != NULL);
        EXPECT(poll_until(&g_site, &g_site.n_sent, 2));
        EXPECT(g_world->next_serial >= serial + 2); /* no two requests to send have one number */
    }
    if (g_rank == 1) {
        EXPECT(poll_until(&g_site, &g_site.n_delivered, 2));
        EXPECT(g_site.last_request == request_of(0, 1, 3));
    }
    site_fini(&g_site);
}

static void cancel_of_an_asked_message_withdraws_it(void)
{
    site_init(&g_site, 2, 4000, 20);
    if (g_rank == 0) {
        site_send(&g_site, 1, 1, 10);
        bt_handoff_poll(g_site.h);
        EXPECT_EQ(g_site.h->slots[0].state, BT_SLOT_ASKED);
        EXPECT(bt_handoff_cancel(g_site.h, request_of(0, 1, 1)));
        EXPECT(!handoff_is_idle(g_site.h)); /* the withdrawal is still to go */
        bt_handoff_poll(g_site.h);
        EXPECT_EQ(g_site.h->ask_serial, 0);
        site_send(&g_site, 1, 2, 10); /* waits for the answer, then goes */
    }
    meet();
    if (g_rank == 0) EXPECT(poll_until(&g_site, &g_site.n_sent, 1));
    if (g_rank == 1) EXPECT(poll_until(&g_site, &g_site.n_delivered, 1));
    if (g_rank == 1) EXPECT(g_site.last_request == request_of(0, 1, 2));
    site_fini(&g_site);
    if (g_rank == 0) EXPECT_EQ(g_site.n_sent, 1);
    EXPECT_EQ(g_site.n_expired, 0);
}

/* The grant is on its way when the request is cancelled: receiver and sender must both get over
 * it. */
static void cancel_that_crosses_the_grant_frees_the_grant(void)
{
    site_init(&g_site, 2, 4000, 20);
    if (g_rank == 0) {
        site_send(&g_site, 1, 1, 10);
        bt_handoff_poll(g_site.h);
    }
    meet();
    while (g_rank == 1 && g_site.h->grant_to != 0)
        bt_handoff_poll(g_site.h);
    meet();
    if (g_rank == 0) {
        EXPECT(bt_handoff_cancel(g_site.h, request_of(0, 1, 1)));
        site_send(&g_site, 1, 2, 10);
        EXPECT(poll_until(&g_site, &g_site.n_sent, 1));
    }
    if (g_rank == 1) {
        EXPECT(poll_until(&g_site, &g_site.n_delivered, 1));
        EXPECT(g_site.last_request == request_of(0, 1, 2));
    }
    site_fini(&g_site);
    if (g_rank == 1) EXPECT_EQ(g_site.n_delivered, 1);
}

/* Once granted, the payload goes out in full, whatever is cancelled. */
static void cancel_of_a_granted_message_lets_it_arrive(void)
{
    bool in_flight;

    site_init(&g_site, 1, 1 << 20, 20);
    if (g_rank == 0) {
        site_send(&g_site, 1, 1, (uint32_t)(bt_handoff_payload_max(g_site.h) / row_bytes(1)));
        bt_handoff_poll(g_site.h);
    }
    meet();
    while (g_rank == 1 && g_site.h->grant_to != 0)
        bt_handoff_poll(g_site.h);
    meet();
    if (g_rank == 0) {
        while (g_site.h->ask_serial != 0)
            bt_handoff_poll(g_site.h);
        in_flight = g_site.h->slots[0].state == BT_SLOT_SENDING;
        EXPECT(in_flight || bt_handoff_payload_max(g_site.h) < 65536); /* eager: gone at once */
        EXPECT_EQ(bt_handoff_cancel(g_site.h, request_of(0, 1, 1)), !in_flight);
        if (in_flight) EXPECT(bt_handoff_stage(g_site.h) == NULL);
    }
    meet(); /* the receiver has not polled meanwhile */
    if (g_rank == 0) {
        EXPECT(poll_until(&g_site, &g_site.n_sent, 1));
        EXPECT(bt_handoff_cancel(g_site.h, request_of(0, 1, 1)));
    }
    if (g_rank == 1) EXPECT(poll_until(&g_site, &g_site.n_delivered, 1));
    site_fini(&g_site);
}

/* Payloads that are cancelled at random moments: what arrives is whole, nothing hangs. */
static void random_cancelling_loses_only_what_was_cancelled(void)
{
    uint32_t k = 0, cancelled = 0, delivered[MAX_RANKS], sent = 0, arrived = 0, mine;
    bt_wait  wait = wait_s(60);

    site_init(&g_site, 4, 20000, EXPIRY_S); /* expiries too */
    while (k < CANCELS && sends()) {
        uint64_t x = mix3(g_rank, k, 6);

        if (site_send(&g_site, random_rank(k), k, 1 + (uint32_t)(x % 600)) != NULL) {
            if (x / 1000 % 3 == 0) {
                for (uint64_t i = x / 3000 % 4; i > 0; i--)
                    bt_handoff_poll(g_site.h);
                bt_handoff_cancel(g_site.h, request_of(g_rank, random_rank(k), k));
                cancelled++;
            }
            k++;
        }
        bt_handoff_poll(g_site.h);
    }
    EXPECT(cancelled > CANCELS / 15 || !sends());
    site_fini(&g_site);
    mine = g_site.n_sent;
    EXPECT_EQ(bt_group_all_gather(g_all, &mine, sizeof(mine), delivered, &wait), BT_OK);
    for (uint32_t i = 0; i < g_ranks; i++)
        sent += delivered[i];
    mine = g_site.n_delivered;
    EXPECT_EQ(bt_group_all_gather(g_all, &mine, sizeof(mine), delivered, &wait), BT_OK);
    for (uint32_t i = 0; i < g_ranks; i++)
        arrived += delivered[i];
    EXPECT_EQ(arrived, sent); /* what left has come, and nothing else */
    EXPECT_EQ(g_site.n_rejected, 0);
    EXPECT(g_site.n_sent >= k - cancelled);
}

static const bt_test TESTS[] = {
    BT_TEST(staging_runs_out_and_comes_back),
    BT_TEST(random_traffic_between_all_pairs_arrives_whole),
    BT_TEST(cycle_of_large_payloads_does_not_lock),
    BT_TEST(traffic_flows_while_a_group_exchange_waits),
    BT_TEST(receivers_take_turns),
    BT_TEST(nothing_is_granted_without_room_for_it),
    BT_TEST(what_has_left_is_counted_with_its_time),
    BT_TEST(stopped_receiver_expires_while_others_go_on),
    BT_TEST(unused_grant_expires_and_its_late_payload_arrives),
    BT_TEST(standstill_makes_no_request_expire),
    BT_TEST(grant_that_came_unseen_is_used),
    BT_TEST(cancel_of_a_queued_message_frees_its_slot),
    BT_TEST(messages_of_one_receiver_leave_in_their_order),
    BT_TEST(cancel_of_an_asked_message_withdraws_it),
    BT_TEST(cancel_that_crosses_the_grant_frees_the_grant),
    BT_TEST(cancel_of_a_granted_message_lets_it_arrive),
    BT_TEST(random_cancelling_loses_only_what_was_cancelled),
};
MPI_TEST_MAIN(TESTS)

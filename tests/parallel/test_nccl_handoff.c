/* The hand-off by NCCL when something goes wrong: lines that fail, stand still or end with an
 * epoch, rows that change on the way, peers that go, headers and notes that make no sense. */
#define SITE_NCCL
#include "tests/parallel/handoff_site.h"
#include "tests/support/sweep.h"

static site g_site;

static uint32_t n_senders(void) { return g_ranks / 2; }
static bool     sends(void) { return g_rank < n_senders(); }

/* Sends n messages in turn to the receivers below `end`; returns when they have been taken, or on
 * a receiver when all that are meant for it have come. */
static void run_traffic(uint32_t n, uint32_t end, void (*disturb)(uint32_t k))
{
    uint32_t n_receivers = end - n_senders(), k = 0, want = 0;
    uint32_t sent = g_site.n_sent, came = g_site.n_delivered, seen = came;
    uint64_t end_ns = bt_now_ns() + 120 * BT_NS_PER_S;

    for (uint32_t i = 0; i < n; i++)
        want += n_senders() + i % n_receivers == g_rank;
    want *= n_senders();
    while (bt_now_ns() < end_ns) {
        if (sends() && k < n &&
            site_send(&g_site, n_senders() + k % n_receivers, sent + k, 40) != NULL) {
            if (disturb != NULL) disturb(k);
            k++;
        }
        if (!bt_handoff_poll(g_site.h)) bt_sleep_ns(20000);
        if (sends() ? g_site.n_sent == sent + n : g_site.n_delivered == came + want) break;
        if (!sends() && disturb != NULL && g_site.n_delivered != seen) disturb(seen);
        seen = g_site.n_delivered;
    }
    EXPECT_EQ(sends() ? g_site.n_sent - sent : g_site.n_delivered - came, sends() ? n : want);
}

/* Every message comes, and once. */
static void expect_each_once(void)
{
    for (uint32_t i = 0; i < SITE_SEEN; i++)
        EXPECT(g_site.seen[i] <= n_senders());
    EXPECT_EQ(g_site.n_rejected, 0);
}

/* Before any message of ours: NCCL connects ranks by it.  Where it fails a new line is made. */
static void each_pair_has_a_first_message_before_the_line_is_ready(void)
{
    for (int fails = 0; fails < 2; fails++) {
        long launched = g_fake_nccl.n_launched;

        if (fails && g_rank == 0) g_fake_nccl.fail_at = 0;
        site_init(&g_site, 2, 4000, 0.5);
        EXPECT(((cudaStream_t)g_site.h->line->nccl->lane_stream(g_site.h->line->lane))->priority >
               ((cudaStream_t)bt_device_stream(g_dev))->priority); /* lower numbers go first */
        EXPECT_EQ(g_fake_nccl.fail_at, -1);
        EXPECT(g_fake_nccl.n_launched - launched >= 1 + (fails && g_rank == 0));
        run_traffic(12, g_ranks, NULL);
        site_meet(&g_site);
        expect_each_once();
        site_close(&g_site);
        meet();
    }
}

/* The others learn from the first rank when all are there. */
static void who_has_not_joined_is_named(void)
{
    uint32_t last = g_ranks - 1;
    bt_wait  wait = wait_s(1);
    char     want[64];

    site_init(&g_site, 2, 4000, 0.5);
    site_meet(&g_site);
    snprintf(want, sizeof(want), "is not ready after 1.000 s: nothing came from rank %u",
             g_rank == 0 ? last : 0);
    if (g_rank == 0) EXPECT(site_send(&g_site, last, 1, 10) != NULL);
    if (g_rank != last) {
        site_join(&g_site, g_ranks);
        EXPECT_EQ(bt_handoff_await_ready(g_site.h, &wait), BT_ERR_TIMEOUT);
        EXPECT_HAS(bt_error_text(), want);
    }
    if (g_rank == 0) {
        EXPECT_EQ(g_site.h->slots[0].state, BT_SLOT_QUEUED); /* nobody is asked before, */
        EXPECT_EQ(g_site.n_expired, 0);                      /* or taken for silent */
        EXPECT(bt_handoff_cancel(g_site.h, request_of(0, last, 1)));
    }
    meet();
    if (g_rank == last) site_join(&g_site, g_ranks);
    site_wait_ready(&g_site);
    run_traffic(12, g_ranks, NULL);
    site_meet(&g_site);
    site_close(&g_site);
    meet();
}

static void fail_now_and_then(uint32_t k)
{
    if (k % 25 == 7 + g_rank && g_fake_nccl.fail_at < 0) g_fake_nccl.fail_at = 1;
    if (k % 25 == 19 + g_rank && g_fake_nccl.refuse_at < 0) g_fake_nccl.refuse_at = 2;
}

static void line_that_fails_is_made_anew_and_nothing_is_lost(void)
{
    uint64_t number;

    site_init(&g_site, 4, 4000, 0.5);
    number = g_site.h->line->number;
    run_traffic(100, g_ranks, fail_now_and_then);
    site_meet(&g_site);
    g_fake_nccl.fail_at = g_fake_nccl.refuse_at = -1;
    EXPECT(g_site.h->line->number > number + 2);
    EXPECT_EQ(g_site.h->line->number >> 32, number >> 32); /* in the same epoch */
    expect_each_once();
    site_fini(&g_site);
}

/* One rank fails at once, again and again: each attempt leaves a thread behind in NCCL. */
static void attempts_in_vain_are_made_ever_more_rarely(void)
{
    enum { REFUSED = 6, PAUSE_MS = 10 };
    uint64_t start_ns, took_ns;
    long     n_ids;

    site_init(&g_site, 2, 4000, 4e-3 * PAUSE_MS);
    n_ids    = g_fake_nccl.n_ids;
    start_ns = bt_now_ns();
    site_join(&g_site, g_ranks);
    do {
        const bt_line *l = g_site.h->line;

        if (g_rank == g_ranks - 1 && l->number < ((uint64_t)l->epoch << 32 | REFUSED))
            g_fake_nccl.refuse_at = 0;
        if (!bt_handoff_poll(g_site.h)) bt_sleep_ns(20000);
        took_ns = bt_now_ns() - start_ns;
    } while (!bt_handoff_is_ready(g_site.h) && took_ns < 60 * BT_NS_PER_S);
    EXPECT(bt_handoff_is_ready(g_site.h));
    if (g_rank == 0) {
        EXPECT(g_fake_nccl.n_ids - n_ids > REFUSED);
        EXPECT(took_ns >= PAUSE_MS * BT_NS_PER_MS * ((1 << REFUSED) - 1));
    }
    run_traffic(12, g_ranks, NULL);
    site_meet(&g_site);
    expect_each_once();
    site_fini(&g_site);
}

/* Rank 0's and the first receiver's NCCL stands still: both name the other at the deadline. */
static void line_that_stands_still_ends_at_its_deadline(void)
{
    uint32_t receiver = n_senders();
    char     want[64];
    uint64_t number, end_ns = bt_now_ns() + 120 * BT_NS_PER_S;

    site_init(&g_site, 2, 4000, 0.1);
    number = g_site.h->line->number;
    if (g_rank == 0) {
        g_fake_nccl.stalled = 1;
        EXPECT(site_send(&g_site, receiver, 1, 10) != NULL);
    }
    while (g_rank == 0 && g_site.h->line->state == BT_LINE_READY && bt_now_ns() < end_ns)
        if (!bt_handoff_poll(g_site.h)) bt_sleep_ns(20000);
    if (g_rank == 0) {
        snprintf(want, sizeof(want), "a message to rank %u has not come", receiver);
        EXPECT_HAS(bt_error_text(), want);
        EXPECT_HAS(bt_error_text(), "in epoch");
        EXPECT_HAS(bt_error_text(), "within 2.000 s"); /* four grants would be less */
        g_fake_nccl.stalled = 0;
        EXPECT(poll_until(&g_site, &g_site.n_sent, 1));
    }
    if (g_rank == receiver) EXPECT(poll_until(&g_site, &g_site.n_delivered, 1));
    site_meet(&g_site);
    EXPECT(g_site.h->line->number > number);
    site_fini(&g_site);
    EXPECT_EQ(g_site.n_delivered, g_rank == receiver);
}

/* Polls until slot i is granted and its rows are as far as `carry`; false after 30 s. */
static bool poll_until_carried(uint32_t i, bt_carry carry)
{
    const bt_slot *s      = &g_site.h->slots[i];
    uint64_t       end_ns = bt_now_ns() + 30 * BT_NS_PER_S;

    while ((s->state != BT_SLOT_SENDING || s->carry != carry) && bt_now_ns() < end_ns)
        if (!bt_handoff_poll(g_site.h)) bt_sleep_ns(20000);
    return s->state == BT_SLOT_SENDING && s->carry == carry;
}

/* Rank 0 has a message under way to a receiver whose NCCL stands still, and so lets the grant of
 * slot 1 expire, for another one, which then grants slot 2 too.  When that first message has come
 * slot 1 is under way. */
static void have_two_granted(uint32_t stuck, uint32_t to)
{
    enum { ROWS = 15000 }; /* more than the fake NCCL takes while nobody receives */
    bt_handoff *h      = g_site.h;
    uint64_t    end_ns = bt_now_ns() + 30 * BT_NS_PER_S;

    if (g_rank == stuck) g_fake_nccl.stalled = 1;
    meet();
    if (g_rank == 0) {
        EXPECT(site_send(&g_site, stuck, 4, ROWS) != NULL);
        EXPECT(poll_until_carried(0, BT_CARRY_LAUNCHED));
        EXPECT(site_send(&g_site, to, 8, ROWS) != NULL);
        EXPECT(site_send(&g_site, to, 12, ROWS) != NULL);
        EXPECT(poll_until_carried(1, BT_CARRY_DUE) && poll_until_carried(2, BT_CARRY_DUE));
    }
    while (g_rank == to && h->peers[0].n_granted < 2 && bt_now_ns() < end_ns) {
        if (h->grant_to == 0) h->grant_since_ns = 0; /* long ago */
        if (!bt_handoff_poll(h)) bt_sleep_ns(20000);
    }
    site_meet(&g_site);
    if (g_rank == to) g_fake_nccl.stalled = 1;
    meet();
    if (g_rank == stuck) g_fake_nccl.stalled = 0;
    if (g_rank == 0)
        EXPECT(poll_until_carried(1, BT_CARRY_LAUNCHED) && poll_until(&g_site, &g_site.n_sent, 1));
    site_meet(&g_site);
}

/* The first of two granted messages is under way when the line ends.  On the next one the second
 * waits while the header of the first is still leaving, and then gives it its grant. */
static void message_that_comes_back_goes_before_one_granted_after_it(void)
{
    uint32_t    stuck = n_senders(), to = stuck + 1;
    bt_slot    *slots;
    MPI_Request header = MPI_REQUEST_NULL;
    uint8_t     byte   = 0;

    site_init(&g_site, 4, 600000, 5);
    slots = g_site.h->slots;
    have_two_granted(stuck, to);
    if (g_rank == 0) { /* the header's request is one that lasts as long as the test wants */
        EXPECT(slots[2].state == BT_SLOT_SENDING && slots[2].carry == BT_CARRY_DUE);
        header = *slots[1].request;
        MPI_Irecv(&byte, 1, MPI_BYTE, 0, 0, MPI_COMM_SELF, slots[1].request);
    }
    site_join(&g_site, g_ranks);
    g_fake_nccl.stalled = 0;
    site_wait_ready(&g_site);
    site_meet(&g_site);
    meet(); /* only rank 0 polls now, so nothing more is granted */
    if (g_rank == 0) {
        for (int i = 0; i < 100; i++)
            bt_handoff_poll(g_site.h);
        EXPECT(slots[1].state == BT_SLOT_SENDING && slots[1].carry == BT_CARRY_AGAIN);
        EXPECT(slots[2].state == BT_SLOT_SENDING && slots[2].carry == BT_CARRY_DUE);
        MPI_Send(&byte, 1, MPI_BYTE, 0, 0, MPI_COMM_SELF);
        MPI_Wait(&header, MPI_STATUS_IGNORE);
        EXPECT(poll_until_carried(1, BT_CARRY_LAUNCHED));
        EXPECT(slots[2].state != BT_SLOT_SENDING);
    }
    meet();
    if (g_rank == 0) EXPECT(poll_until(&g_site, &g_site.n_sent, 3));
    site_meet(&g_site);
    EXPECT_EQ(g_site.n_delivered, (g_rank == stuck) + 2 * (g_rank == to));
    if (g_rank == to) EXPECT_EQ(g_site.last_request, request_of(0, to, 12));
    site_fini(&g_site);
    expect_each_once();
}

/* What is not below the order that the receiver names has not come, and may have to go again. */
static void messages_below_the_named_order_are_taken(void)
{
    uint32_t receiver = n_senders();
    bt_slot *slots;

    site_init(&g_site, 3, 4000, 5);
    slots = g_site.h->slots;
    for (uint32_t i = 0; i < 3; i++) {
        slots[i].state = BT_SLOT_SENDING;
        slots[i].carry = BT_CARRY_GONE;
        slots[i].to    = receiver;
        slots[i].order = 5 + i;
        slots[i].taken = false;
    }
    slots[0].carry = BT_CARRY_AGAIN;    /* its line has ended, but it had come */
    slots[1].carry = BT_CARRY_LAUNCHED; /* it comes once more: NCCL still has its rows */
    bt_handoff_on_taken(g_site.h, receiver + 1, 8);
    EXPECT(!slots[0].taken && !slots[1].taken && !slots[2].taken);
    bt_handoff_on_taken(g_site.h, receiver, 6);
    EXPECT(slots[0].taken && !slots[1].taken && !slots[2].taken);
    bt_handoff_poll(g_site.h);
    EXPECT_EQ(g_site.n_sent, 1);
    EXPECT(slots[0].state == BT_SLOT_FREE && slots[1].state == BT_SLOT_SENDING);
    bt_handoff_on_taken(g_site.h, receiver, 7);
    bt_handoff_poll(g_site.h);
    EXPECT(slots[1].taken && slots[1].state == BT_SLOT_SENDING && g_site.n_sent == 1);
    for (uint32_t i = 0; i < 3; i++)
        slots[i].state = BT_SLOT_FREE;
    site_fini(&g_site);
}

static void changed_rows_are_rejected_by_their_checksum(void)
{
    uint32_t receiver = n_senders();

    site_init(&g_site, 3, 4000, 5);
    if (g_rank == receiver) g_fake_nccl.corrupt_at = 2; /* of the last message */
    for (uint32_t i = 0; i < 3 && g_rank == 0; i++)
        EXPECT(site_send(&g_site, receiver, i, 10) != NULL);
    if (g_rank == 0) EXPECT(poll_until(&g_site, &g_site.n_sent, 3));
    if (g_rank == receiver) {
        EXPECT(poll_until(&g_site, &g_site.n_delivered, 2));
        EXPECT(poll_until(&g_site, &g_site.n_rejected, 1));
        EXPECT_EQ(g_site.rejected_request, request_of(0, receiver, 2));
        EXPECT_EQ(g_site.rejected_why, BT_ERR_CHECKSUM);
        EXPECT_EQ(g_site.h->peers[0].n_ordered, 3); /* that one has come, and goes no more */
    }
    site_fini(&g_site);
}

/* It travels with the header; the rows behind it are never received, so the line is made anew, and
 * the message comes again until its sender gives it up. */
static void changed_tail_is_rejected_by_its_checksum(void)
{
    uint32_t receiver = n_senders();
    uint64_t request = request_of(0, receiver, 3), end_ns = bt_now_ns() + 60 * BT_NS_PER_S;
    uint8_t *tail;

    site_init(&g_site, 3, 4000, 5);
    if (g_rank == 0) {
        tail = site_send(&g_site, receiver, 3, 10);
        EXPECT(tail != NULL);
        tail[5] ^= 0x40; /* after the seal */
    }
    if (g_rank == receiver) {
        while (g_site.n_rejected + g_site.n_delivered == 0 && bt_now_ns() < end_ns)
            if (!bt_handoff_poll(g_site.h)) bt_sleep_ns(20000);
        EXPECT_EQ(g_site.n_delivered, 0);
        EXPECT_EQ(g_site.rejected_request, request);
        EXPECT_EQ(g_site.rejected_why, BT_ERR_CHECKSUM);
    }
    site_meet(&g_site);
    while (g_rank == 0 && !bt_handoff_cancel(g_site.h, request) && bt_now_ns() < end_ns)
        bt_handoff_poll(g_site.h);
    site_meet(&g_site);
    run_traffic(9, g_ranks, NULL);
    site_meet(&g_site);
    site_fini(&g_site);
}

/* Rows go where others' were until now: after all that the device had to do with those, and before
 * all that it does from then on. */
static void rows_keep_their_place_in_the_work_of_the_device(void)
{
    enum { ROWS = 10, N = 20 };
    uint32_t receiver = n_senders();
    size_t   n        = row_bytes(ROWS);
    uint8_t *host     = malloc(n);

    site_init(&g_site, 2, 4000, 5);
    if (g_rank == receiver) {
        g_site.pages  = take(n);
        g_site.before = take(n);
    }
    for (uint32_t i = 0; i < N; i++) {
        if (g_rank == 0) {
            EXPECT(site_send(&g_site, receiver, 4 * i, ROWS) != NULL);
            EXPECT(poll_until(&g_site, &g_site.n_sent, i + 1));
        }
        if (g_rank == receiver) {
            EXPECT(poll_until(&g_site, &g_site.n_delivered, i + 1));
            get_rows(host, g_site.pages, n);
            EXPECT(rows_are(request_of(0, receiver, 4 * i), host, n));
            get_rows(host, g_site.before, n);
            if (i > 0) EXPECT(rows_are(request_of(0, receiver, 4 * (i - 1)), host, n));
        }
        site_meet(&g_site);
    }
    if (g_rank == receiver) {
        bt_device_free(g_dev, g_site.pages);
        bt_device_free(g_dev, g_site.before);
    }
    free(host);
    site_fini(&g_site);
}

/* Garbage and lies in place of headers and notes; then all goes on. */
static void nonsense_is_refused_and_the_line_goes_on(void)
{
    uint8_t     junk[300] = {1, 2, 3};
    uint32_t    receiver = n_senders(), n = 0;
    MPI_Request request;

    site_init(&g_site, 3, 4000, 0.2);
    for (int i = 0; i < 4; i++) {
        static const int SIZES[] = {0, 50, 150, 300};

        for (int tag = BT_TAG_PAYLOAD; tag <= BT_TAG_LINE; tag++, n++) {
            if (g_rank != 0) continue;
            MPI_Isend(junk, SIZES[i], MPI_BYTE, (int)receiver, tag, g_world->handoff_comm,
                      &request);
            MPI_Request_free(&request);
        }
    }
    if (g_rank == receiver) {
        EXPECT(poll_until(&g_site, &g_site.n_rejected, n + 4)); /* without a grant, too */
        EXPECT_EQ(g_site.rejected_why, BT_ERR_PROTOCOL);
    } else {
        poll_for(&g_site, 0.05);
    }
    g_site.n_rejected = 0;
    site_meet(&g_site);
    run_traffic(9, g_ranks, NULL);
    site_meet(&g_site);
    site_fini(&g_site);
}

/* A rank sends or receives, never both: one that waits for its peer is waited for by nobody. */
static void sender_is_not_asked(void)
{
    uint8_t     wire[BT_SIGNAL_BYTES];
    bt_signal   ask = {BT_SIGNAL_ASK, 1000001, 5};
    MPI_Request request;

    site_init(&g_site, 3, 4000, 5);
    run_traffic(9, g_ranks, NULL);
    site_meet(&g_site);
    bt_signal_encode(&ask, wire);
    if (g_rank == n_senders()) {
        MPI_Isend(wire, sizeof(wire), MPI_BYTE, 0, BT_TAG_SIGNAL, g_world->handoff_comm, &request);
        MPI_Request_free(&request);
    }
    if (g_rank == 0) {
        EXPECT(poll_until(&g_site, &g_site.n_rejected, 1));
        EXPECT_EQ(g_site.rejected_request, 5);
        EXPECT_EQ(g_site.rejected_why, BT_ERR_PROTOCOL);
        EXPECT_EQ(g_site.h->n_asked, 0);
    }
    site_meet(&g_site);
    site_fini(&g_site);
}

/* The last receiver is lost in the middle of a message: an epoch without it follows, in which those
 * for the others go on, once each, and those for it are gone.  It wakes later and disturbs nobody.
 */
static void lost_receiver_ends_with_its_epoch(void)
{
    uint32_t last = g_ranks - 1, n = 0;
    bool     lost = g_rank == last;

    site_init(&g_site, 4, 60000, 0.5);
    if (!lost) run_traffic(12, last, NULL);
    site_meet(&g_site);
    if (g_rank == 0) {
        EXPECT(site_send(&g_site, last, 1000, 1500) != NULL);
        while (g_site.h->slots[0].carry != BT_CARRY_LAUNCHED && n++ < 100000) {
            bt_handoff_poll(g_site.h); /* the last one grants, and then falls silent */
            bt_sleep_ns(20000);
        }
    } else if (lost) {
        while (g_site.h->grant_to != 0 && n++ < 100000) {
            bt_handoff_poll(g_site.h);
            bt_sleep_ns(20000);
        }
    }
    meet();
    if (!lost) {
        EXPECT_EQ(bt_handoff_exclude(g_site.h, last), BT_OK);
        EXPECT_EQ(g_site.h->line->state, BT_LINE_ENDING);
        if (g_rank == 1) bt_sleep_ns(50 * BT_NS_PER_MS); /* its origin is ahead of it */
        site_join(&g_site, last);
        if (g_rank == 0) EXPECT(bt_handoff_cancel(g_site.h, request_of(0, last, 1000)));
        run_traffic(12, last, NULL);
    } else {
        next_epoch();
    }
    if (!lost) site_meet(&g_site);
    if (lost) meet();
    if (lost) poll_for(&g_site, 0.05);
    if (!lost) run_traffic(12, last, NULL);
    site_meet(&g_site);
    EXPECT_EQ(g_site.n_wrong + g_site.n_rejected, 0);
    EXPECT_EQ(lost ? g_site.n_delivered : 0, 0);
    if (!lost) expect_each_once();
    meet();
    site_close(&g_site);
    meet();
}

/* Communicator `which` of the n ranks from `first` on, this one among them, whose exchanges go by
 * NCCL. */
static bt_group *gathering_group(uint32_t which, uint32_t first, uint32_t n, uint32_t epoch)
{
    uint32_t    ranks[MAX_RANKS];
    bt_group   *group   = NULL;
    bt_carrier *carrier = NULL;

    for (uint32_t i = 0; i < n; i++)
        ranks[i] = first + i;
    EXPECT_EQ(bt_group_create(g_world, n, ranks, which, epoch, &group), BT_OK);
    EXPECT_EQ(
        bt_carrier_nccl_create(&bt_nccl_module_table, g_dev, g_world, ROLL_SPACE + which, &carrier),
        BT_OK);
    bt_group_attach(group, carrier);
    return group;
}

/* Prefill and decode groups gather by NCCL all the while; their communicators live. */
static void other_communicators_are_left_alone(void)
{
    enum { BYTES = 5000 };
    uint32_t  first = sends() ? 0 : n_senders(), n = sends() ? n_senders() : g_ranks - n_senders();
    uint32_t  epoch = next_epoch();
    bt_group *group;
    bt_wait   wait = wait_s(20);
    uint8_t  *memory;

    site_init(&g_site, 4, 4000, 0.5);
    memory    = take((size_t)MAX_RANKS * BYTES);
    wait.idle = site_poll;
    wait.ctx  = &g_site;
    group     = gathering_group(sends(), first, n, epoch);
    for (uint64_t k = 0; k < 30; k++) {
        if (sends()) site_send(&g_site, n_senders() + (uint32_t)k % (g_ranks - n), (uint32_t)k, 20);
        put(memory + (g_rank - first) * BYTES, BYTES, k, g_rank, 0);
        EXPECT_EQ(gather_and_settle(group, memory, BYTES, &wait), BT_OK);
        for (uint32_t i = 0; i < n; i++)
            EXPECT_EQ(wrong_bytes(memory + (size_t)i * BYTES, BYTES, k, first + i, 0), 0);
        if (k % 10 == 9) bt_line_fail(g_site.h, bt_now_ns());
    }
    bt_group_destroy(group);
    bt_device_free(g_dev, memory);
    site_fini(&g_site);
    expect_each_once();
}

/* A line ends while the group's exchange, which began after that, waits for its peers: the end
 * waits for nothing on the device. */
static void line_that_ends_leaves_a_waiting_group_alone(void)
{
    enum { BYTES = 500 };
    uint32_t  first = sends() ? 0 : n_senders(), n = sends() ? n_senders() : g_ranks - n_senders();
    uint32_t  epoch  = next_epoch();
    uint64_t  end_ns = bt_now_ns() + 30 * BT_NS_PER_S;
    bt_group *group;
    bt_wait   wait = wait_s(60);
    uint8_t  *memory;

    site_init(&g_site, 2, 4000, 0.5);
    memory = take((size_t)MAX_RANKS * BYTES);
    group  = gathering_group(sends(), first, n, epoch);
    EXPECT_EQ(gather_and_settle(group, memory, BYTES, &wait), BT_OK);
    site_meet(&g_site);
    bt_line_end(g_site.h, bt_now_ns());
    EXPECT_EQ(g_site.h->line->state, BT_LINE_ENDING);
    meet();
    g_fake_nccl.stalled = 1;
    EXPECT_EQ(gather(group, memory, BYTES, &wait), BT_OK);
    while (g_site.h->line->state == BT_LINE_ENDING && bt_now_ns() < end_ns)
        if (!bt_handoff_poll(g_site.h)) bt_sleep_ns(20000);
    EXPECT(g_site.h->line->comm == NULL);
    g_fake_nccl.stalled = 0;
    EXPECT_EQ(bt_group_settle(group, &wait), BT_OK);
    bt_group_destroy(group);
    bt_device_free(g_dev, memory);
    meet();
    site_close(&g_site);
    meet();
}

static uint64_t g_fails_ns; /* 0: it has failed */

static void fail_and_poll(void *ctx)
{
    uint64_t now_ns = bt_now_ns();

    if (g_fails_ns != 0 && now_ns >= g_fails_ns) {
        bt_line_fail(g_site.h, now_ns);
        g_fails_ns = 0;
    }
    site_poll(ctx);
}

/* The decode group waits for its last rank when the line fails.  An end of the line's communicator
 * would wait for the group's, which nobody would end then. */
static void line_that_fails_while_the_group_waits_ends_with_that_wait(void)
{
    enum { BYTES = 500 };
    uint32_t  n = g_ranks - n_senders(), epoch = next_epoch();
    bt_group *group = NULL;
    bt_wait   wait  = wait_s(20);
    uint8_t  *memory;

    site_init(&g_site, 2, 4000, 0.5);
    memory    = take((size_t)MAX_RANKS * BYTES);
    wait.idle = site_poll;
    wait.ctx  = &g_site;
    if (!sends()) {
        group = gathering_group(1, n_senders(), n, epoch);
        EXPECT_EQ(gather_and_settle(group, memory, BYTES, &wait), BT_OK);
        wait.timeout_ns = BT_NS_PER_S;
        wait.idle       = fail_and_poll;
        g_fails_ns      = bt_now_ns() + BT_NS_PER_S / 5; /* when the exchange is under way */
        if (g_rank + 1 < g_ranks)
            EXPECT_EQ(gather_and_settle(group, memory, BYTES, &wait), BT_ERR_TIMEOUT);
        EXPECT(g_fails_ns == 0 || g_rank + 1 == g_ranks);
    }
    site_meet(&g_site);
    bt_group_destroy(group);
    run_traffic(12, g_ranks, NULL);
    bt_device_free(g_dev, memory);
    site_fini(&g_site);
    expect_each_once();
}

static void every_failing_call_of_create_is_survived(void)
{
    bt_handoff_events events = {site_deliver, site_reject, site_sent, site_expired, &g_site};
    bt_handoff_config cfg    = {
           .n_slots = 3, .grant_ns = 1000, .slot_bytes = 1000, .nccl = &bt_nccl_module_table};
    bt_handoff *h = NULL;
    long        live, gpu_live;

    if (bt_cuda_module.create(0, &g_dev) != BT_OK) bt_world_exit(EXIT_FAILURE);
    cfg.dev  = g_dev;
    live     = bt_alloc_live();
    gpu_live = g_fake_gpu.live;
    EXPECT(BT_SWEEP(bt_handoff_create(g_world, &cfg, &events, &h), bt_handoff_destroy(h)) > 5);
    h                  = NULL;
    g_fake_gpu.fail_at = 0;
    EXPECT_EQ(bt_handoff_create(g_world, &cfg, &events, &h), BT_ERR_DEVICE);
    g_fake_gpu.fail_at = -1;
    EXPECT_EQ(bt_alloc_live(), live);
    EXPECT_EQ(g_fake_gpu.live, gpu_live);
    close_device();
}

static const bt_test TESTS[] = {
    BT_TEST(each_pair_has_a_first_message_before_the_line_is_ready),
    BT_TEST(who_has_not_joined_is_named),
    BT_TEST(line_that_fails_is_made_anew_and_nothing_is_lost),
    BT_TEST(attempts_in_vain_are_made_ever_more_rarely),
    BT_TEST(line_that_stands_still_ends_at_its_deadline),
    BT_TEST(message_that_comes_back_goes_before_one_granted_after_it),
    BT_TEST(messages_below_the_named_order_are_taken),
    BT_TEST(changed_rows_are_rejected_by_their_checksum),
    BT_TEST(changed_tail_is_rejected_by_its_checksum),
    BT_TEST(rows_keep_their_place_in_the_work_of_the_device),
    BT_TEST(nonsense_is_refused_and_the_line_goes_on),
    BT_TEST(sender_is_not_asked),
    BT_TEST(lost_receiver_ends_with_its_epoch),
    BT_TEST(other_communicators_are_left_alone),
    BT_TEST(line_that_ends_leaves_a_waiting_group_alone),
    BT_TEST(line_that_fails_while_the_group_waits_ends_with_that_wait),
    BT_TEST(every_failing_call_of_create_is_survived),
};
MPI_TEST_MAIN(TESTS)

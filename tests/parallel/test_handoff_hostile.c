/* Peers that break the hand-off's protocol: everything is refused by name, nothing crashes, and the
 * next good message arrives.  Rank 0 misbehaves, rank 1 is watched. */
#include <limits.h>

#include "tests/parallel/handoff_site.h"
#include "tests/support/sweep.h"

static site g_site;

static void send_raw(int tag, const void *bytes, size_t n)
{
    MPI_Request request;
    int         done   = 0;
    uint64_t    end_ns = bt_now_ns() + 60 * BT_NS_PER_S;

    MPI_Isend(bytes, (int)n, MPI_BYTE, 1, tag, g_world->handoff_comm, &request);
    while (!done && bt_now_ns() < end_ns)
        MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    EXPECT(done);
}

/* A good message afterwards shows that the receiver goes on. */
static void a_good_message_still_arrives(void)
{
    uint32_t before = g_site.n_delivered;

    meet();
    if (g_rank == 0) {
        EXPECT(site_send(&g_site, 1, 77, 5) != NULL);
        EXPECT(poll_until(&g_site, &g_site.n_sent, 1));
    }
    if (g_rank == 1) {
        EXPECT(poll_until(&g_site, &g_site.n_delivered, before + 1));
        EXPECT(g_site.last_request == request_of(0, 1, 77));
    }
    site_fini(&g_site);
}

static void signals_of_a_wrong_size_are_refused(void)
{
    static const size_t SIZES[] = {0, 1, 31, 33, 5000, 900000};
    uint8_t            *junk    = calloc(900000, 1);

    site_init(&g_site, 2, 4000, 20);
    for (uint32_t i = 0; i < 6; i++) {
        if (g_rank == 0) send_raw(BT_TAG_SIGNAL, junk, SIZES[i]);
        if (g_rank == 1) EXPECT(poll_until(&g_site, &g_site.n_rejected, i + 1));
        if (g_rank == 1) poll_for(&g_site, 0.02); /* a long one is drained without waiting */
        meet();
    }
    if (g_rank == 1) {
        EXPECT_EQ(g_site.rejected_why, BT_ERR_PROTOCOL);
        EXPECT_EQ(g_site.rejected_request, 0);
        EXPECT_EQ(g_site.last_from, 0);
        EXPECT_HAS(bt_error_text(), "900000 bytes, want 32");
    }
    a_good_message_still_arrives();
    free(junk);
}

static void broken_signals_are_refused(void)
{
    bt_signal good = {.kind = BT_SIGNAL_GRANT, .serial = 5}, odd = {.kind = 9, .serial = 5},
              none = {.kind = BT_SIGNAL_ASK, .serial = 0};
    uint8_t  wire[BT_SIGNAL_BYTES];
    uint32_t n = 0;

    site_init(&g_site, 2, 4000, 20);
    for (uint32_t bit = 0; bit < 8 * BT_SIGNAL_BYTES; bit += 5) {
        bt_signal_encode(&good, wire);
        wire[bit / 8] ^= (uint8_t)(1u << bit % 8);
        if (g_rank == 0) send_raw(BT_TAG_SIGNAL, wire, sizeof(wire));
        n++;
    }
    bt_signal_encode(&odd, wire);
    if (g_rank == 0) send_raw(BT_TAG_SIGNAL, wire, sizeof(wire));
    bt_signal_encode(&none, wire);
    if (g_rank == 0) send_raw(BT_TAG_SIGNAL, wire, sizeof(wire));
    if (g_rank == 1) EXPECT(poll_until(&g_site, &g_site.n_rejected, n + 2));
    if (g_rank == 1) EXPECT_EQ(g_site.n_rejected, n + 2);
    a_good_message_still_arrives();
}

/* Grants, withdrawals and answers that belong to nothing are let go. */
static void signals_without_a_cause_do_no_harm(void)
{
    uint8_t wire[BT_SIGNAL_BYTES];

    site_init(&g_site, 2, 4000, 0.1);
    for (int kind = BT_SIGNAL_GRANT; kind <= BT_SIGNAL_WITHDRAWN && g_rank == 0; kind++) {
        bt_signal s = {.kind = (bt_signal_kind)kind, .serial = 987654321};

        bt_signal_encode(&s, wire);
        send_raw(BT_TAG_SIGNAL, wire, sizeof(wire));
    }
    if (g_rank == 1) poll_for(&g_site, 0.05);
    if (g_rank == 1) EXPECT_EQ(g_site.n_rejected, 0);
    a_good_message_still_arrives();
}

/* The rank grants nothing, however long what comes next takes. */
static void be_busy_as(uint32_t rank)
{
    if (g_rank == rank) {
        g_site.h->grant_to       = rank;
        g_site.h->grant_since_ns = bt_now_ns() - g_site.h->still_ns;
        g_site.h->grant_ns       = 120 * BT_NS_PER_S;
    }
    meet();
}

static void be_busy(void) { be_busy_as(1); }

static void send_signal(bt_signal_kind kind, uint64_t serial)
{
    bt_signal s = {kind, serial, 5};
    uint8_t   wire[BT_SIGNAL_BYTES];

    bt_signal_encode(&s, wire);
    send_raw(BT_TAG_SIGNAL, wire, sizeof(wire));
}

/* Rank 1 asks rank 2, and rank 0 answers: nothing leaves before rank 2 has room. */
static void grant_of_another_rank_is_none(void)
{
    bt_group *group = group_of_all();
    bt_wait   wait  = wait_s(30);
    uint64_t  asked = 0, all[MAX_RANKS];

    if (g_ranks < 3) goto out;
    site_init(&g_site, 2, 4000, 20);
    be_busy_as(2);
    if (g_rank == 1) {
        EXPECT(site_send(&g_site, 2, 1, 5) != NULL);
        bt_handoff_poll(g_site.h);
        asked = g_site.h->ask_serial;
        EXPECT(asked != 0);
    }
    EXPECT_EQ(bt_group_all_gather(group, &asked, sizeof(asked), all, &wait), BT_OK);
    if (g_rank == 0) send_signal(BT_SIGNAL_GRANT, all[1]);
    meet();
    if (g_rank == 1) {
        poll_for(&g_site, 0.05);
        EXPECT(g_site.h->ask_serial == asked && g_site.n_sent == 0);
    }
    meet();
    if (g_rank == 2) {
        g_site.h->grant_to = BT_NO_PEER;
        EXPECT(poll_until(&g_site, &g_site.n_delivered, 1));
        EXPECT_EQ(g_site.n_rejected, 0);
    }
    if (g_rank == 1) EXPECT(poll_until(&g_site, &g_site.n_sent, 1));
    site_fini(&g_site);
out:
    bt_group_destroy(group);
}

static void second_request_before_an_answer_is_refused(void)
{
    uint8_t   wire[BT_SIGNAL_BYTES];
    bt_signal ask[3] = {
        {BT_SIGNAL_ASK,      1000001, 5},
        {BT_SIGNAL_ASK,      1000002, 6},
        {BT_SIGNAL_WITHDRAW, 1000002, 0}
    };

    site_init(&g_site, 2, 4000, 0.1);
    be_busy(); /* until both lie in its queue, or the first could be granted before */
    for (int i = 0; i < 3; i++) {
        bt_signal_encode(&ask[i], wire);
        if (g_rank == 0) send_raw(BT_TAG_SIGNAL, wire, sizeof(wire));
    }
    meet();
    if (g_rank == 1) {
        EXPECT(poll_until(&g_site, &g_site.n_rejected, 1));
        EXPECT_EQ(g_site.rejected_request, 6);
        EXPECT_EQ(g_site.rejected_why, BT_ERR_PROTOCOL);
        g_site.h->grant_ns = BT_NS_PER_S / 10;
        poll_for(&g_site, 0.15);
    }
    a_good_message_still_arrives();
}

/* Not the rank with the lowest number, and not the youngest. */
static void requests_are_granted_in_their_order(void)
{
    site_init(&g_site, 2, 4000, 20);
    be_busy();
    for (uint32_t n = 1; n <= 2 && g_ranks > 2; n++) {
        if (g_rank == (n == 1 ? 2u : 0u)) send_signal(BT_SIGNAL_ASK, 1000000 + n);
        if (g_rank == 1) EXPECT(poll_until(&g_site, &g_site.h->n_asked, n));
        meet();
    }
    if (g_rank == 1) {
        g_site.h->grant_since_ns -= g_site.h->grant_ns; /* it has expired */
        bt_handoff_poll(g_site.h);
        EXPECT_EQ(g_site.h->grant_to, g_ranks > 2 ? 2 : BT_NO_PEER);
        EXPECT_EQ(g_site.h->n_asked, g_ranks > 2);
    }
    site_fini(&g_site);
}

/* Garbage, lies and overlong payloads without any grant. */
static void payloads_out_of_the_blue_are_refused(void)
{
    static uint8_t  rows[4000];
    bt_page_message m = {
        .request = request_of(0, 1, 1), .token1 = 10, .layer1 = 1, .kv_dim = KV_DIM};
    size_t   huge = 3000000, n = BT_PAGE_MESSAGE_BYTES + row_bytes(10);
    uint8_t *raw  = calloc(huge, 1);
    uint32_t seen = 0;

    site_init(&g_site, 2, 4000, 20);
    fill_rows(m.request, rows, row_bytes(10));
    for (int i = 0; i < 7; i++) {
        size_t    bytes = n;
        bt_status want  = BT_ERR_PROTOCOL;
        uint64_t  names = 0;

        bt_page_message_seal(&m, rows, raw);
        memcpy(raw + BT_PAGE_MESSAGE_BYTES, rows, row_bytes(10));
        switch (i) {
        case 0: bytes = 0; break;
        case 1: bytes = 95; break;
        case 2: raw[0] ^= 1; break;
        case 3:
            raw[BT_PAGE_MESSAGE_BYTES + 3] ^= 1, want = BT_ERR_CHECKSUM, names = m.request;
            break;
        case 4: bytes = n - 2, names = m.request; break;
        case 5: bytes = n + 8, names = m.request; break; /* its tail would lie there */
        default: bytes = huge; break;
        }
        if (g_rank == 0) send_raw(BT_TAG_PAYLOAD, raw, bytes);
        seen += 2; /* no grant, and a bad content */
        if (g_rank == 1) {
            EXPECT(poll_until(&g_site, &g_site.n_rejected, seen));
            EXPECT_EQ(g_site.rejected_why, want);
            EXPECT_EQ(g_site.rejected_request, names);
            EXPECT_EQ(g_site.n_delivered, 0);
        }
        meet();
    }
    a_good_message_still_arrives();
    free(raw);
}

/* Bits that tip over between staging and arrival: the checksum names the request, and only it. */
static void corrupted_payload_is_rejected_by_its_checksum(void)
{
    uint8_t *slot;

    site_init(&g_site, 3, 4000, 20);
    if (g_rank == 0) {
        EXPECT(site_send(&g_site, 1, 1, 10) != NULL);
        slot = site_send(&g_site, 1, 2, 10);
        EXPECT(slot != NULL);
        slot[17] ^= 0x40; /* after the seal */
        EXPECT(site_send(&g_site, 1, 3, 10) != NULL);
        EXPECT(poll_until(&g_site, &g_site.n_sent, 3));
    }
    if (g_rank == 1) {
        EXPECT(poll_until(&g_site, &g_site.n_delivered, 2));
        EXPECT(poll_until(&g_site, &g_site.n_rejected, 1));
        EXPECT_EQ(g_site.rejected_request, request_of(0, 1, 2));
        EXPECT_EQ(g_site.rejected_why, BT_ERR_CHECKSUM);
        EXPECT_EQ(g_site.n_rejected, 1);
    }
    site_fini(&g_site);
}

/* Open MPI hangs by TCP with messages above its eager limit whose receiver dies. */
static void payload_leaves_room_for_its_header(void)
{
    site_init(&g_site, 2, 1 << 20, 20);
    if (bt_world_all_shared(g_world))
        EXPECT_EQ(bt_handoff_payload_max(g_site.h), 1 << 20);
    else
        EXPECT(bt_handoff_payload_max(g_site.h) + BT_PAGE_MESSAGE_BYTES <= g_world->fragment_bytes);
    site_fini(&g_site);
}

/* A rank that stages more than the receiver has room for: that message is refused, by request. What
 * comes after it without a grant is not taken for the same request's. */
static void payload_larger_than_the_receivers_room_is_refused(void)
{
    uint8_t *raw = calloc(1, 100000);

    site_init(&g_site, 1, g_rank == 0 ? 50000 : 4000, 20);
    if (g_rank == 0) {
        EXPECT(site_send(&g_site, 1, 1, 1500) != NULL);
        EXPECT(poll_until(&g_site, &g_site.n_sent, 1));
    }
    if (g_rank == 1) {
        EXPECT(poll_until(&g_site, &g_site.n_rejected, 1));
        EXPECT_EQ(g_site.rejected_request, request_of(0, 1, 1));
        EXPECT_EQ(g_site.rejected_why, BT_ERR_PROTOCOL);
        EXPECT_HAS(bt_error_text(), "room is for 4096: all ranks must stage alike");
    }
    meet();
    if (g_rank == 0) send_raw(BT_TAG_PAYLOAD, raw, 100000);
    if (g_rank == 1) EXPECT(poll_until(&g_site, &g_site.n_rejected, 3));
    if (g_rank == 1) EXPECT_EQ(g_site.rejected_request, 0);
    meet();
    site_fini(&g_site);
    free(raw);
}

/* ---- a peer that is lost ------------------------------------------------------------------ */

/* It has asked and was not answered: there is nobody to grant it to. */
static void request_of_a_lost_peer_is_not_granted(void)
{
    site_init(&g_site, 2, 4000, 20);
    be_busy();
    if (g_rank == 0) send_signal(BT_SIGNAL_ASK, 1000001);
    if (g_rank == 1) {
        EXPECT(poll_until(&g_site, &g_site.h->n_asked, 1));
        EXPECT_EQ(bt_handoff_exclude(g_site.h, 0), BT_OK);
        EXPECT_EQ(g_site.h->n_asked, 0);
        g_site.h->grant_since_ns -= g_site.h->grant_ns;
        if (g_site.h->n_asked == 0) bt_handoff_poll(g_site.h);
        EXPECT_EQ(g_site.h->grant_to, BT_NO_PEER);
    }
    site_fini(&g_site);
}

/* Whatever it had of this rank: it may still read what was granted to it, and write where it had
 * begun to, so both go on elsewhere. */
static void nothing_stays_open_for_a_lost_peer(void)
{
    site_init(&g_site, 2, 4000, 20);
    if (g_rank == 1) {
        bt_handoff *h    = g_site.h;
        bt_slot    *slot = &h->slots[0];
        bt_inbox   *in   = &h->inboxes[0];
        uint8_t    *lent[2];

        EXPECT(site_send(&g_site, 0, 1, 5) != NULL && slot->state == BT_SLOT_QUEUED);
        EXPECT(site_send(&g_site, 0, 2, 5) != NULL);
        slot->state                  = BT_SLOT_SENDING;
        in->busy                     = true;
        in->from                     = 0;
        h->slots[1].state            = BT_SLOT_ASKED;
        h->ask_serial                = 7;
        h->ask_slot                  = 1;
        h->ask_to                    = 0;
        h->grant_to                  = 0;
        h->peers[0].n_granted        = 1;
        h->peers[0].withdrawn_serial = 6;
        h->n_withdrawing             = 1;
        h->peers[0].owed_serial      = 9;
        h->n_owed                    = 1;
        lent[0]                      = slot->memory;
        lent[1]                      = in->memory;
        EXPECT_EQ(bt_handoff_exclude(h, 0), BT_OK);
        EXPECT(handoff_is_idle(h));
        EXPECT_EQ(h->n_withdrawing, 0);
        EXPECT(slot->memory != lent[0] && in->memory != lent[1]);
    }
    site_fini(&g_site);
}

/* Before its requests hear of it, they may have more for it. */
static void what_is_sent_to_a_lost_peer_is_gone(void)
{
    site_init(&g_site, 2, 4000, 0.02);
    if (g_rank == 1) {
        EXPECT_EQ(bt_handoff_exclude(g_site.h, 0), BT_OK);
        EXPECT(site_send(&g_site, 0, 1, 5) != NULL);
        poll_for(&g_site, 0.1);
        EXPECT(handoff_is_idle(g_site.h));
        EXPECT_EQ(g_site.n_sent + g_site.n_expired, 0);
        EXPECT(bt_handoff_cancel(g_site.h, request_of(1, 0, 1)));
    }
    site_fini(&g_site);
}

static bool payload_waits(void)
{
    int found = 0;

    MPI_Iprobe(0, BT_TAG_PAYLOAD, g_world->handoff_comm, &found, MPI_STATUS_IGNORE);
    return found != 0;
}

/* Late rows may be of pages that others have by now. */
static void payload_of_a_lost_peer_is_not_taken(void)
{
    uint8_t         rows[320], raw[BT_PAGE_MESSAGE_BYTES + sizeof(rows)];
    bt_page_message m = {
        .request = request_of(0, 1, 1), .token1 = 10, .layer1 = 1, .kv_dim = KV_DIM};

    fill_rows(m.request, rows, sizeof(rows));
    bt_page_message_seal(&m, rows, raw);
    memcpy(raw + BT_PAGE_MESSAGE_BYTES, rows, sizeof(rows));
    site_init(&g_site, 2, 4000, 20);
    if (g_rank == 1) EXPECT_EQ(bt_handoff_exclude(g_site.h, 0), BT_OK);
    meet();
    if (g_rank == 0) send_raw(BT_TAG_PAYLOAD, raw, sizeof(raw));
    if (g_rank == 1) {
        uint64_t end_ns = bt_now_ns() + 60 * BT_NS_PER_S;

        while (!payload_waits() && bt_now_ns() < end_ns)
            ;
        while (payload_waits() && bt_now_ns() < end_ns)
            bt_handoff_poll(g_site.h);
        EXPECT(bt_now_ns() < end_ns);
    }
    meet();
    if (g_rank == 2) {
        EXPECT(site_send(&g_site, 1, 1, 5) != NULL);
        EXPECT(poll_until(&g_site, &g_site.n_sent, 1));
    }
    if (g_rank == 1) {
        EXPECT(poll_until(&g_site, &g_site.n_delivered, g_ranks > 2));
        EXPECT_EQ(g_site.n_delivered, g_ranks > 2);
        EXPECT_EQ(g_site.n_rejected, 0);
    }
    site_fini(&g_site);
}

/* ---- not hostile, but refused ------------------------------------------------------------- */

static void absurd_configurations_are_refused(void)
{
    bt_handoff_events events = {site_deliver, site_reject, site_sent, site_expired, &g_site};
    bt_handoff_config bad[]  = {
         {.n_slots = 0,    .grant_ns = 1, .slot_bytes = 1       },
         {.n_slots = 1,    .grant_ns = 0, .slot_bytes = 1       },
         {.n_slots = 1,    .grant_ns = 1, .slot_bytes = 0       },
         {.n_slots = 5000, .grant_ns = 1, .slot_bytes = 1       },
         {.n_slots = 1,    .grant_ns = 1, .slot_bytes = SIZE_MAX},
    };
    bt_handoff *h = NULL;

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        EXPECT_EQ(bt_handoff_create(g_world, &bad[i], &events, &h), BT_ERR_INVALID_ARG);
    EXPECT(h == NULL);
}

static void every_failing_allocation_is_survived(void)
{
    bt_handoff_events events = {site_deliver, site_reject, site_sent, site_expired, &g_site};
    bt_handoff_config cfg    = {.n_slots = 3, .grant_ns = 1000, .slot_bytes = 1000};
    bt_handoff       *h      = NULL;

    EXPECT_EQ(BT_SWEEP(bt_handoff_create(g_world, &cfg, &events, &h), bt_handoff_destroy(h)), 4);
}

static const bt_test TESTS[] = {
    BT_TEST(signals_of_a_wrong_size_are_refused),
    BT_TEST(broken_signals_are_refused),
    BT_TEST(signals_without_a_cause_do_no_harm),
    BT_TEST(grant_of_another_rank_is_none),
    BT_TEST(second_request_before_an_answer_is_refused),
    BT_TEST(requests_are_granted_in_their_order),
    BT_TEST(payloads_out_of_the_blue_are_refused),
    BT_TEST(corrupted_payload_is_rejected_by_its_checksum),
    BT_TEST(payload_leaves_room_for_its_header),
    BT_TEST(payload_larger_than_the_receivers_room_is_refused),
    BT_TEST(request_of_a_lost_peer_is_not_granted),
    BT_TEST(nothing_stays_open_for_a_lost_peer),
    BT_TEST(what_is_sent_to_a_lost_peer_is_gone),
    BT_TEST(payload_of_a_lost_peer_is_not_taken),
    BT_TEST(absurd_configurations_are_refused),
    BT_TEST(every_failing_allocation_is_survived),
};
MPI_TEST_MAIN(TESTS)

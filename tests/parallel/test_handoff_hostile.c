/* Peers that break the hand-off's protocol: everything is refused by name, nothing crashes, and the
 * next good message arrives.  Rank 0 misbehaves, rank 1 is watched. */
#include <limits.h>
#include <xxhash.h>

#include "tests/parallel/handoff_site.h"
#include "tests/support/sweep.h"

static site g_site;

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
              none = {.kind = BT_SIGNAL_ASK, .serial = 0}, zero = {.serial = 5};
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
    bt_signal_encode(&zero, wire);
    if (g_rank == 0) send_raw(BT_TAG_SIGNAL, wire, sizeof(wire));
    bt_signal_encode(&good, wire);
    wire[0] ^= 1; /* of another kind of program */
    memcpy(wire + 24, &(uint64_t){XXH3_64bits(wire, 24)}, 8);
    if (g_rank == 0) send_raw(BT_TAG_SIGNAL, wire, sizeof(wire));
    if (g_rank == 1) EXPECT(poll_until(&g_site, &g_site.n_rejected, n + 4));
    if (g_rank == 1) EXPECT_EQ(g_site.n_rejected, n + 4);
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

/* Rank 1 asks rank 2, and rank 0 answers: nothing leaves before rank 2 has room. */
static void grant_of_another_rank_is_none(void)
{
    bt_group *group = group_of_all();
    bt_wait   wait  = wait_s(30);
    uint64_t  asked = 0, all[MAX_RANKS];

    if (g_ranks < 3) goto out;
    site_init(&g_site, 2, 4000, 20);
    be_busy_as(&g_site, 2);
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

/* Rank 1 waits for rank 0's answer to what it has withdrawn; the answer to something else is none.
 * Until it comes nothing more is asked, and each grant period counts once. */
static void answer_to_another_withdrawal_is_none(void)
{
    enum { SERIAL = 2000001 };
    bt_handoff *h;
    bt_peer    *peer;

    site_init(&g_site, 2, 4000, 20);
    h    = g_site.h;
    peer = &h->peers[0];
    if (g_rank == 1) {
        peer->withdrawn_serial = SERIAL;
        peer->silent_since_ns  = bt_now_ns() - h->still_ns - h->grant_ns;
        peer->n_expired        = 2;
        h->n_withdrawing++;
        EXPECT(site_send(&g_site, 0, 1, 5) != NULL);
    }
    meet();
    if (g_rank == 0) send_signal(BT_SIGNAL_WITHDRAWN, SERIAL + 1);
    if (g_rank == 1) {
        poll_for(&g_site, 0.05);
        EXPECT(peer->withdrawn_serial == SERIAL && h->n_withdrawing == 1);
        EXPECT(g_site.n_expired == 1 && g_site.max_expired == 3);
        EXPECT_EQ(h->slots[0].state, BT_SLOT_QUEUED);
    }
    meet();
    if (g_rank == 0) send_signal(BT_SIGNAL_WITHDRAWN, SERIAL);
    if (g_rank == 1) {
        uint64_t end_ns = bt_now_ns() + 60 * BT_NS_PER_S;

        while (h->slots[0].state == BT_SLOT_QUEUED && bt_now_ns() < end_ns)
            bt_handoff_poll(h);
        EXPECT(peer->withdrawn_serial == 0 && h->n_withdrawing == 0);
        EXPECT_EQ(peer->n_expired, 0); /* it lives: its next one is its first again */
    }
    meet();
    if (g_rank == 1) EXPECT(poll_until(&g_site, &g_site.n_sent, 1));
    if (g_rank == 0) EXPECT(poll_until(&g_site, &g_site.n_delivered, 1));
    site_fini(&g_site);
}

/* Rank 1 waits for so many payloads of rank 0, which withdraws one. */
static void expect_withdrawn(uint64_t serial, uint32_t n_granted, uint32_t left)
{
    bt_peer *peer   = &g_site.h->peers[0];
    uint64_t end_ns = bt_now_ns() + 60 * BT_NS_PER_S;

    meet();
    if (g_rank == 0) send_signal(BT_SIGNAL_WITHDRAW, serial);
    if (g_rank == 1) {
        peer->n_granted    = n_granted;
        g_site.h->grant_to = 1; /* another one's */
        while (peer->n_granted != left && bt_now_ns() < end_ns)
            bt_handoff_poll(g_site.h);
        poll_for(&g_site, 0.05);
        EXPECT_EQ(peer->n_granted, left);
        EXPECT_EQ(g_site.h->grant_to, 1);
        g_site.h->grant_to = BT_NO_PEER;
    }
}

/* Of several payloads that may still come from rank 0 one is given up, and only by its number. */
static void withdrawal_frees_its_own_grant_once(void)
{
    enum { SERIAL = 1000001 };

    site_init(&g_site, 2, 4000, 20);
    meet();
    if (g_rank == 0) send_signal(BT_SIGNAL_ASK, SERIAL);
    if (g_rank == 1) EXPECT(poll_until(&g_site, &g_site.h->peers[0].n_granted, 1));
    expect_withdrawn(SERIAL + 1, 1, 1);
    expect_withdrawn(SERIAL, 0, 0); /* its payload has come already */
    expect_withdrawn(SERIAL, 2, 1);
    expect_withdrawn(SERIAL, 1, 1);
    if (g_rank == 1) g_site.h->peers[0].n_granted = 0;
    site_fini(&g_site);
}

/* Rank 1 asks rank 0, which answers something else. */
static void grant_of_another_request_is_none(void)
{
    site_init(&g_site, 2, 4000, 20);
    be_busy_as(&g_site, 0);
    if (g_rank == 1) {
        EXPECT(site_send(&g_site, 0, 1, 5) != NULL);
        bt_handoff_poll(g_site.h);
        EXPECT_EQ(g_site.h->slots[0].state, BT_SLOT_ASKED);
    }
    meet();
    if (g_rank == 0) send_signal(BT_SIGNAL_GRANT, 3000001);
    if (g_rank == 1) {
        poll_for(&g_site, 0.05);
        EXPECT_EQ(g_site.h->slots[0].state, BT_SLOT_ASKED);
    }
    meet();
    if (g_rank == 0) {
        g_site.h->grant_to = BT_NO_PEER;
        EXPECT(poll_until(&g_site, &g_site.n_delivered, 1));
        EXPECT_EQ(g_site.n_rejected, 0);
    }
    if (g_rank == 1) EXPECT(poll_until(&g_site, &g_site.n_sent, 1));
    site_fini(&g_site);
}

/* As many signals as may be under way to rank 0. */
static void fill_outbox(void)
{
    bt_handoff *h      = g_site.h;
    uint64_t    end_ns = bt_now_ns() + 60 * BT_NS_PER_S;

    while (h->n_signals_open > 0 && bt_now_ns() < end_ns)
        bt_handoff_poll(h);
    EXPECT_EQ(h->n_signals_open, 0);
    lend(h->signal_requests, BT_SIGNAL_OUTBOX);
    h->n_signals_open = BT_SIGNAL_OUTBOX;
    for (int i = 0; i < 10; i++)
        bt_handoff_poll(h);
}

static void empty_outbox(void)
{
    give_back(BT_SIGNAL_OUTBOX);
    for (int i = 0; i < 10; i++)
        bt_handoff_poll(g_site.h);
}

/* What rank 1 has to say to rank 0, as a sender and as a receiver, is said when there is room. */
static void signals_without_room_are_sent_later(void)
{
    bt_handoff *h;

    site_init(&g_site, 2, 4000, 20);
    h = g_site.h;
    meet();
    if (g_rank == 1) {
        fill_outbox();
        EXPECT(site_send(&g_site, 0, 1, 5) != NULL);
        bt_handoff_poll(h);
        EXPECT(h->ask_serial == 0 && h->slots[0].state == BT_SLOT_QUEUED);
        empty_outbox();
        EXPECT_EQ(h->slots[0].state, BT_SLOT_ASKED);
        fill_outbox();
        EXPECT(bt_handoff_cancel(h, request_of(1, 0, 1)));
        bt_handoff_poll(h);
        EXPECT(h->ask_serial != 0 && h->n_withdrawing == 0);
        empty_outbox();
        EXPECT(h->ask_serial == 0 && h->n_withdrawing == 1);
        EXPECT_EQ(g_site.n_expired, 0); /* it has had no time to answer */
        fill_outbox();
    }
    meet();
    if (g_rank == 0) send_signal(BT_SIGNAL_ASK, 1000001);
    if (g_rank == 1) {
        EXPECT(poll_until(&g_site, &h->n_asked, 1));
        bt_handoff_poll(h);
        EXPECT(h->n_asked == 1 && h->grant_to == BT_NO_PEER && h->peers[0].n_granted == 0);
        empty_outbox();
        EXPECT(h->n_asked == 0 && h->grant_to == 0 && h->peers[0].n_granted == 1);
        fill_outbox();
    }
    meet();
    for (int i = 0; i < 2 && g_rank == 0; i++) /* one answer is enough */
        send_signal(BT_SIGNAL_WITHDRAW, 1000001);
    if (g_rank == 1) {
        EXPECT(poll_until(&g_site, &h->n_owed, 1));
        bt_handoff_poll(h);
        EXPECT(h->n_owed == 1 && h->grant_to == BT_NO_PEER && h->peers[0].n_granted == 0);
        empty_outbox();
        EXPECT_EQ(h->n_owed, 0);
    }
    site_fini(&g_site);
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
    be_busy_as(&g_site, 1); /* until both lie in its queue, or the first could be granted before */
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
    be_busy_as(&g_site, 1);
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

        bt_page_message_seal(&m, rows, true, raw);
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
    BT_TEST(grant_of_another_request_is_none),
    BT_TEST(answer_to_another_withdrawal_is_none),
    BT_TEST(withdrawal_frees_its_own_grant_once),
    BT_TEST(signals_without_room_are_sent_later),
    BT_TEST(second_request_before_an_answer_is_refused),
    BT_TEST(requests_are_granted_in_their_order),
    BT_TEST(payloads_out_of_the_blue_are_refused),
    BT_TEST(corrupted_payload_is_rejected_by_its_checksum),
    BT_TEST(payload_leaves_room_for_its_header),
    BT_TEST(payload_larger_than_the_receivers_room_is_refused),
    BT_TEST(absurd_configurations_are_refused),
    BT_TEST(every_failing_allocation_is_survived),
};
MPI_TEST_MAIN(TESTS)

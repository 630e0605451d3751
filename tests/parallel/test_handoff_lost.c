/* The hand-off without a peer that is lost: nothing of it is waited for or taken, and the others
 * keep what they have. */
#include "tests/parallel/handoff_site.h"

static site g_site;

/* It has asked and was not answered: there is nobody to grant it to. */
static void request_of_a_lost_peer_is_not_granted(void)
{
    site_init(&g_site, 2, 4000, 20);
    be_busy_as(&g_site, 1);
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
        uint8_t    *lent[3];

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
        h->signal_from               = 0;
        h->n_signals_open            = BT_SIGNAL_OUTBOX;
        lend(h->signal_in_request, 1);
        lend(h->signal_requests, BT_SIGNAL_OUTBOX);
        lent[0] = slot->memory;
        lent[1] = in->memory;
        lent[2] = h->signal_in;
        EXPECT_EQ(bt_handoff_exclude(h, 0), BT_OK);
        EXPECT(handoff_is_idle(h));
        EXPECT_EQ(h->n_withdrawing, 0);
        EXPECT(slot->memory != lent[0] && in->memory != lent[1] && h->signal_in != lent[2]);
        h->n_signals_open = 1; /* to somebody else */
        EXPECT_EQ(bt_handoff_exclude(h, 0), BT_OK);
        give_back(1 + BT_SIGNAL_OUTBOX);
        bt_handoff_poll(h);
        EXPECT_EQ(h->n_signals_open, 1);
        h->n_signals_open = 0;
    }
    site_fini(&g_site);
}

/* Rank 1 has something of everything for rank 2. */
static void others_keep_what_they_have_when_a_peer_is_lost(void)
{
    if (g_ranks < 3) return;
    site_init(&g_site, 2, 4000, 20);
    if (g_rank == 1) {
        bt_handoff *h         = g_site.h;
        bt_inbox   *in        = &h->inboxes[0];
        uint8_t    *memory    = in->memory;
        uint8_t    *signal_in = h->signal_in;

        EXPECT(site_send(&g_site, 2, 1, 5) != NULL);
        in->busy       = true;
        in->from       = 2;
        h->ask_serial  = 7;
        h->ask_to      = 2;
        h->grant_to    = 2;
        h->signal_from = 2;
        lend(h->signal_in_request, 1);
        EXPECT_EQ(bt_handoff_exclude(h, 0), BT_OK);
        EXPECT_EQ(h->slots[0].state, BT_SLOT_QUEUED);
        EXPECT(in->busy && in->memory == memory && h->signal_in == signal_in);
        EXPECT(h->ask_serial == 7 && h->grant_to == 2);
        in->busy      = false;
        h->ask_serial = 0;
        h->grant_to   = BT_NO_PEER;
        give_back(1);
        MPI_Wait(h->signal_in_request, MPI_STATUS_IGNORE);
        EXPECT(poll_until(&g_site, &g_site.n_sent, 1));
    } else if (g_rank == 2) {
        EXPECT(poll_until(&g_site, &g_site.n_delivered, 1));
    }
    site_fini(&g_site);
}

static void signal_of_a_lost_peer_is_not_heard(void)
{
    site_init(&g_site, 2, 4000, 20);
    be_busy_as(&g_site, 1); /* or it would be granted and given up in no time */
    if (g_rank == 1) EXPECT_EQ(bt_handoff_exclude(g_site.h, 0), BT_OK);
    meet();
    if (g_rank == 0) send_signal(BT_SIGNAL_ASK, 1000001);
    if (g_rank == 1) {
        poll_for(&g_site, 0.05);
        EXPECT_EQ(g_site.h->n_asked, 0);
        g_site.h->grant_to = BT_NO_PEER;
        EXPECT(handoff_is_idle(g_site.h));
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
    bt_page_message_seal(&m, rows, true, raw);
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

static const bt_test TESTS[] = {
    BT_TEST(request_of_a_lost_peer_is_not_granted),
    BT_TEST(nothing_stays_open_for_a_lost_peer),
    BT_TEST(others_keep_what_they_have_when_a_peer_is_lost),
    BT_TEST(signal_of_a_lost_peer_is_not_heard),
    BT_TEST(what_is_sent_to_a_lost_peer_is_gone),
    BT_TEST(payload_of_a_lost_peer_is_not_taken),
};
MPI_TEST_MAIN(TESTS)

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

/* ---- a storm, in which one rank is given up at a random moment of whatever is under way */

enum { STORMS = 6, STORM_TURNS = 240 };

/* One turn of a rank's traffic. */
static void take_turn(uint32_t storm, uint32_t turn)
{
    uint64_t x        = mix3(g_rank, storm * STORM_TURNS + turn, 7);
    uint32_t to       = (uint32_t)(g_rank + 1 + x % (g_ranks - 1)) % g_ranks;
    uint32_t sequence = 1 + turn;

    if (x / 64 % 3 != 0) site_send(&g_site, to, sequence, 1 + (uint32_t)(x / 256 % 600));
    for (uint64_t i = x / (1 << 20) % 4; i > 0; i--)
        bt_handoff_poll(g_site.h);
    if (x / (1 << 24) % 4 == 0) bt_handoff_cancel(g_site.h, request_of(g_rank, to, sequence));
}

/* Until nothing of the others is under way any more; a rank that is `quiet` does not poll. */
static void settle_without(uint32_t lost, bool quiet)
{
    uint64_t end_ns = bt_now_ns() + 120 * BT_NS_PER_S;
    bt_wait  wait   = wait_s(60);
    uint8_t  busy   = 1, all[MAX_RANKS];

    if (!quiet) {
        wait.idle = site_poll;
        wait.ctx  = &g_site;
    }
    while (busy && bt_now_ns() < end_ns) {
        uint8_t mine =
            g_rank != lost && (!handoff_is_idle(g_site.h) || g_site.h->n_withdrawing > 0);

        EXPECT_EQ(bt_group_all_gather(g_all, &mine, 1, all, &wait), BT_OK);
        if (!quiet) bt_handoff_poll(g_site.h);
        busy = 0;
        for (uint32_t i = 0; i < g_ranks; i++)
            busy |= all[i];
    }
    EXPECT_EQ(busy, 0);
}

/* What has left has come, once, and nothing is kept for anybody. */
static void expect_nothing_kept(uint32_t lost)
{
    uint32_t sent[MAX_RANKS * MAX_RANKS];
    bt_wait  wait = wait_s(60);
    void    *slots[3];

    EXPECT_EQ(bt_group_all_gather(g_all, g_site.n_sent_to, g_ranks * sizeof(*sent), sent, &wait),
              BT_OK);
    if (g_rank == lost) return;
    EXPECT_EQ(g_site.n_wrong + g_site.n_rejected, 0);
    for (uint32_t r = 0; r < g_ranks; r++) {
        EXPECT_EQ(g_site.h->peers[r].n_granted, 0);
        if (r != lost) EXPECT_EQ(g_site.n_from[r], sent[r * g_ranks + g_rank]);
    }
    for (int i = 0; i < 3; i++)
        EXPECT((slots[i] = bt_handoff_stage(g_site.h)) != NULL);
    for (int i = 0; i < 3; i++)
        if (slots[i] != NULL) bt_handoff_unstage(g_site.h, slots[i]);
}

/* The lost one takes what was on its way to it, so that the next storm meets nothing of this one.
 */
static void clear_the_way(void)
{
    poll_for(&g_site, 0.02);
    meet();
    for (uint64_t end_ns = bt_now_ns() + 20 * BT_NS_PER_MS; bt_now_ns() < end_ns;) {
        MPI_Message message;
        MPI_Status  status;
        int         found = 0, n_bytes = 0;

        MPI_Improbe(MPI_ANY_SOURCE, MPI_ANY_TAG, g_world->handoff_comm, &found, &message, &status);
        if (!found) continue;
        MPI_Get_count(&status, MPI_BYTE, &n_bytes);
        bt_world_drain(g_world, &message, (size_t)n_bytes);
    }
    site_close(&g_site);
    meet();
}

static void run_storm(uint32_t storm)
{
    uint32_t lost = storm % g_ranks, falls = (uint32_t)(mix3(storm, 0, 8) % STORM_TURNS);
    uint32_t hears = falls + (uint32_t)(mix3(storm, g_rank, 9) % STORM_TURNS);
    bool     quiet = g_rank == lost && storm % 3 != 0; /* else it goes on, cut off */

    site_init(&g_site, 3, 20000, 0.003);
    for (uint32_t turn = 0; turn < 2 * STORM_TURNS && !(quiet && turn >= falls); turn++) {
        if (g_rank != lost && turn == hears) EXPECT_EQ(bt_handoff_exclude(g_site.h, lost), BT_OK);
        take_turn(storm, turn);
    }
    settle_without(lost, quiet);
    expect_nothing_kept(lost);
    clear_the_way();
}

static void storms_leave_nothing_behind_a_lost_peer(void)
{
    for (uint32_t storm = 0; storm < STORMS; storm++)
        run_storm(storm);
}

static const bt_test TESTS[] = {
    BT_TEST(request_of_a_lost_peer_is_not_granted),
    BT_TEST(nothing_stays_open_for_a_lost_peer),
    BT_TEST(others_keep_what_they_have_when_a_peer_is_lost),
    BT_TEST(signal_of_a_lost_peer_is_not_heard),
    BT_TEST(what_is_sent_to_a_lost_peer_is_gone),
    BT_TEST(payload_of_a_lost_peer_is_not_taken),
    BT_TEST(storms_leave_nothing_behind_a_lost_peer),
};
MPI_TEST_MAIN(TESTS)

/* The hand-off by NCCL, parts of it: how a line ends, how long its making may take, where rows and
 * tails lie, and headers that lie. */
#define SITE_NCCL
#include <xxhash.h>

#include "tests/parallel/handoff_site.h"

static site g_site;

static uint32_t receiver(void) { return g_ranks / 2; }

/* Else its inbox would be busy for ever, and nothing granted any more. */
static void inbox_of_what_was_under_way_is_free_when_the_line_ends(void)
{
    for (int pending = 0; pending < 2; pending++) {
        bt_line  *l;
        bt_inbox *in;

        site_init(&g_site, 2, 4000, 0.5);
        l  = g_site.h->line;
        in = &g_site.h->inboxes[0];
        meet();
        if (g_rank == receiver()) {
            in->busy   = true;
            l->index   = 0;
            l->pending = pending;
            l->phase   = pending ? BT_LINE_IDLE : BT_LINE_CHECKING;
            l->sends   = false;
            bt_line_end(g_site.h, bt_now_ns());
            EXPECT(!in->busy && !l->pending && l->phase == BT_LINE_IDLE);
        }
        site_join(&g_site, g_ranks);
        site_wait_ready(&g_site);
        site_meet(&g_site);
        site_fini(&g_site);
    }
}

/* Of rank 0 for line `number`, as it lies in inbox 0 of this rank. */
static void put_header(uint64_t number)
{
    bt_handoff     *h         = g_site.h;
    bt_inbox       *in        = &h->inboxes[0];
    uint8_t        *wire      = bt_handoff_wire(h, in->memory);
    uint64_t        prefix[3] = {number};
    bt_page_message m         = {
                .request = request_of(0, g_rank, 1), .token1 = 10, .layer1 = 1, .kv_dim = KV_DIM};

    bt_page_message_seal(&m, NULL, false, wire + BT_LINE_PREFIX);
    prefix[2] = XXH3_64bits_withSeed(prefix, 16, m.checksum);
    memcpy(wire, prefix, sizeof(prefix));
    in->from    = 0;
    in->n_bytes = BT_LINE_PREFIX + BT_PAGE_MESSAGE_BYTES;
}

/* Its rows will not come: they come again, with another header, on the next line. */
static void header_of_a_line_that_has_ended_is_dropped(void)
{
    bt_line *l;

    site_init(&g_site, 2, 4000, 0.5);
    l = g_site.h->line;
    meet();
    if (g_rank == receiver()) {
        put_header(l->number - 1);
        EXPECT(!bt_line_receive(g_site.h, 0) && !l->pending);
        put_header(l->number);
        EXPECT(bt_line_receive(g_site.h, 0) && l->pending);
        bt_line_end(g_site.h, bt_now_ns());
        EXPECT(l->state == BT_LINE_ENDING && !l->pending);
        EXPECT(!bt_line_receive(g_site.h, 0) && !l->pending);
        l->state = BT_LINE_NONE;
        EXPECT(!bt_line_receive(g_site.h, 0) && !l->pending);
        l->state = BT_LINE_LEAVING;
        EXPECT(!bt_line_receive(g_site.h, 0) && !l->pending);
        l->state = BT_LINE_ENDING;
        EXPECT_EQ(g_site.n_rejected, 0);
    }
    site_join(&g_site, g_ranks);
    site_wait_ready(&g_site);
    site_meet(&g_site);
    site_fini(&g_site);
}

/* The first one as long as an operation, in the end eight times that; and pauses grow too. */
static void attempts_have_ever_more_time(void)
{
    bt_line *l;
    uint64_t number;

    site_init(&g_site, 2, 4000, 1);
    l      = g_site.h->line;
    number = l->number;
    for (uint32_t k = 1; k < 7; k++) {
        l->number = number >> 32 << 32 | k;
        EXPECT_EQ(bt_line_start_limit_ns(g_site.h), (4 * BT_NS_PER_S) << (k < 4 ? k - 1 : 3));
    }
    l->number = number;
    for (uint32_t k = 0; k < 10; k++)
        EXPECT_EQ(bt_line_pause_ns(g_site.h, k), (BT_NS_PER_S / 4) << (k < 7 ? k : 7));
    site_fini(&g_site);
}

/* Behind a slot's rows, which may fill it, lie their checksums; behind those the next one's rows.
 */
static void full_slots_leave_each_other_alone(void)
{
    enum { BYTES = 4096, N = 3 };

    site_init(&g_site, N, BYTES, 5);
    for (uint32_t i = 0; i < N && g_rank == 0; i++)
        EXPECT(site_send(&g_site, receiver(), i, BYTES / (uint32_t)row_bytes(1)) != NULL);
    if (g_rank == 0) EXPECT(poll_until(&g_site, &g_site.n_sent, N));
    if (g_rank == receiver()) EXPECT(poll_until(&g_site, &g_site.n_delivered, N));
    EXPECT_EQ(g_site.n_rejected, 0);
    site_fini(&g_site);
}

/* It lies in host memory, behind the header, whatever room rows have. */
static void largest_tail_comes_whole(void)
{
    enum { ROWS = 10 };
    bt_page_message m    = {.request    = request_of(0, receiver(), 1),
                            .token1     = ROWS,
                            .layer1     = 1,
                            .kv_dim     = KV_DIM,
                            .last       = true,
                            .tail_bytes = BT_LINE_TAIL_MAX};
    size_t          n    = row_bytes(ROWS);
    uint8_t        *copy = malloc(n + BT_LINE_TAIL_MAX);
    bt_page_payload p;
    void           *slot;

    site_init(&g_site, 2, 4000, 5);
    EXPECT_EQ(bt_handoff_tail_max(g_site.h), 4000);
    site_fini(&g_site);
    site_init(&g_site, 2, 100000, 5);
    EXPECT_EQ(bt_handoff_tail_max(g_site.h), BT_LINE_TAIL_MAX);
    if (g_rank == 0) {
        slot            = bt_handoff_stage(g_site.h);
        m.payload_bytes = n + BT_LINE_TAIL_MAX;
        p               = bt_handoff_slot(g_site.h, slot, &m);
        fill_rows(m.request, copy, n + BT_LINE_TAIL_MAX);
        put_rows(p.rows, copy, n);
        memcpy(p.tail, copy + n, BT_LINE_TAIL_MAX);
        bt_handoff_send(g_site.h, receiver(), &m, slot);
        EXPECT(poll_until(&g_site, &g_site.n_sent, 1));
    }
    if (g_rank == receiver()) EXPECT(poll_until(&g_site, &g_site.n_delivered, 1));
    EXPECT_EQ(g_site.n_rejected, 0);
    site_fini(&g_site);
    free(copy);
}

static bt_status never(const bt_nccl_lane *lane, uint32_t i, bool *passed_out)
{
    (void)lane, (void)i;
    *passed_out = false;
    return BT_OK;
}

static bt_status never_reached(bt_nccl_comm *comm, uint32_t i, bool *reached_out)
{
    (void)comm, (void)i;
    *reached_out = false;
    return BT_OK;
}

/* First for what the device had to do; then for kernels on their way out, for a while. */
static void line_that_ends_waits_for_the_device(void)
{
    bt_nccl_module stuck = bt_nccl_module_table;
    bt_line       *l;

    site_init(&g_site, 2, 4000, 5);
    l             = g_site.h->line;
    stuck.passed  = never;
    stuck.reached = never_reached;
    meet();
    if (g_rank == 0) {
        uint64_t now_ns = bt_now_ns(), try_ns;

        l->nccl = &stuck;
        bt_line_fail(g_site.h, now_ns);
        try_ns = l->try_ns;
        bt_line_fail(g_site.h, now_ns + 1000); /* others say so too: that delays nothing */
        EXPECT_EQ(l->try_ns, try_ns);
        bt_handoff_poll(g_site.h);
        EXPECT_EQ(l->state, BT_LINE_LEAVING);
        stuck.passed = bt_nccl_module_table.passed;
        while (l->state == BT_LINE_LEAVING && bt_now_ns() < now_ns + 30 * BT_NS_PER_S)
            bt_handoff_poll(g_site.h);
        bt_handoff_poll(g_site.h);
        EXPECT_EQ(l->state, BT_LINE_ENDING);
        l->since_ns -= 2 * BT_NS_PER_S;
        bt_handoff_poll(g_site.h);
        EXPECT(l->comm == NULL || l->state != BT_LINE_ENDING);
        l->nccl = &bt_nccl_module_table;
    }
    site_join(&g_site, g_ranks);
    site_wait_ready(&g_site);
    site_meet(&g_site);
    site_fini(&g_site);
}

/* What fails need not be the GPU; where it is, no further line is waited for. */
static void gpu_that_takes_no_work_is_told(void)
{
    bt_wait  wait     = {.timeout_ns = 60 * BT_NS_PER_S, .what = "test", .layer = -1};
    uint64_t start_ns = bt_now_ns();

    EXPECT_EQ(bt_handoff_check(NULL), BT_OK);
    site_init(&g_site, 2, 4000, 5);
    meet();
    if (g_rank == 0) {
        bt_line_fail(g_site.h, start_ns);
        EXPECT_EQ(bt_handoff_check(g_site.h), BT_OK);
        g_fake_gpu.broken = cudaErrorIllegalAddress;
        EXPECT_EQ(bt_handoff_await_ready(g_site.h, &wait), BT_ERR_DEVICE);
        EXPECT(bt_now_ns() - start_ns < 30 * BT_NS_PER_S);
        EXPECT_HAS(bt_error_text(), "an illegal memory access was encountered: a kernel launched");
        EXPECT_EQ(bt_handoff_check(g_site.h), BT_ERR_DEVICE);
        g_fake_gpu.broken      = cudaSuccess;
        g_site.h->line->broken = false;
    }
    site_join(&g_site, g_ranks);
    site_wait_ready(&g_site);
    site_meet(&g_site);
    site_fini(&g_site);
}

/* The receiver has had them on a line before, though their sender has not heard of it. */
static void messages_that_had_come_are_not_delivered_again(void)
{
    enum { N = 2 };

    site_init(&g_site, N, 4000, 5);
    if (g_rank == receiver()) g_site.h->peers[0].n_ordered = N;
    meet();
    for (uint32_t i = 0; i < N && g_rank == 0; i++)
        EXPECT(site_send(&g_site, receiver(), i, 10) != NULL);
    if (g_rank == 0) EXPECT(poll_until(&g_site, &g_site.n_sent, N));
    site_meet(&g_site);
    EXPECT_EQ(g_site.n_delivered, 0);
    if (g_rank == receiver()) EXPECT_EQ(g_site.h->peers[0].n_ordered, N);
    site_fini(&g_site);
}

static bt_status fail_to_note(bt_nccl_lane *lane, uint32_t i, void *stream)
{
    (void)lane, (void)i, (void)stream;
    return BT_ERR_DEVICE;
}

/* It is noted when its turn comes, and goes behind that. */
static void slot_whose_packing_was_not_noted_is_sent_all_the_same(void)
{
    bt_nccl_module deaf = bt_nccl_module_table;
    bt_line       *l;

    site_init(&g_site, 2, 4000, 5);
    l = g_site.h->line;
    meet();
    if (g_rank == 0) {
        deaf.note = fail_to_note;
        l->nccl   = &deaf;
        EXPECT(site_send(&g_site, receiver(), 1, 10) != NULL);
        l->nccl = &bt_nccl_module_table;
        EXPECT(!g_site.h->slots[0].packed);
        EXPECT(poll_until(&g_site, &g_site.n_sent, 1));
        EXPECT(g_site.h->slots[0].packed);
    }
    if (g_rank == receiver()) EXPECT(poll_until(&g_site, &g_site.n_delivered, 1));
    site_fini(&g_site);
}

/* Each is whole but for one thing, and sealed.  An order that has changed on the way would make
 * what comes after it look as if it had come already. */
static void lying_headers_are_refused_by_name(void)
{
    enum { SUM, AHEAD, TOO_MANY_ROWS, NO_TAIL, N_LIES };
    uint32_t n = 0;

    site_init(&g_site, 3, 4000, 0.2);
    for (int lie = 0; lie < N_LIES; lie++) {
        uint8_t         wire[BT_LINE_PREFIX + BT_PAGE_MESSAGE_BYTES + 64] = {0};
        uint64_t        prefix[3] = {g_site.h->line->number + (lie == AHEAD ? 100 : 0), 1 << 20};
        bt_page_message m         = {.request    = request_of(0, receiver(), 1),
                                     .token1     = lie == TOO_MANY_ROWS ? 1000 : 10,
                                     .layer1     = 1,
                                     .kv_dim     = KV_DIM,
                                     .last       = lie == NO_TAIL,
                                     .tail_bytes = lie == NO_TAIL ? 32 : 0};
        MPI_Request     request;

        bt_page_message_seal(&m, wire, false, wire + BT_LINE_PREFIX);
        prefix[2] = XXH3_64bits_withSeed(prefix, 16, m.checksum) ^ (lie == SUM);
        memcpy(wire, prefix, sizeof(prefix));
        if (g_rank == 0) {
            MPI_Isend(wire, BT_LINE_PREFIX + BT_PAGE_MESSAGE_BYTES, MPI_BYTE, (int)receiver(),
                      BT_TAG_PAYLOAD, g_world->handoff_comm, &request);
            MPI_Request_free(&request);
        }
        if (g_rank == receiver()) {
            EXPECT(poll_until(&g_site, &g_site.n_rejected, n += 2)); /* without a grant, too */
            EXPECT_EQ(g_site.rejected_request, m.request);
            EXPECT_EQ(g_site.rejected_why, lie == SUM ? BT_ERR_CHECKSUM : BT_ERR_PROTOCOL);
            EXPECT_EQ(g_site.h->peers[0].n_ordered, 0);
        }
        site_meet(&g_site);
        site_join(&g_site, g_ranks);
        site_wait_ready(&g_site);
        site_meet(&g_site);
    }
    site_fini(&g_site);
}

static const bt_test TESTS[] = {
    BT_TEST(line_that_ends_waits_for_the_device),
    BT_TEST(gpu_that_takes_no_work_is_told),
    BT_TEST(messages_that_had_come_are_not_delivered_again),
    BT_TEST(slot_whose_packing_was_not_noted_is_sent_all_the_same),
    BT_TEST(lying_headers_are_refused_by_name),
    BT_TEST(inbox_of_what_was_under_way_is_free_when_the_line_ends),
    BT_TEST(header_of_a_line_that_has_ended_is_dropped),
    BT_TEST(attempts_have_ever_more_time),
    BT_TEST(full_slots_leave_each_other_alone),
    BT_TEST(largest_tail_comes_whole),
};
MPI_TEST_MAIN(TESTS)

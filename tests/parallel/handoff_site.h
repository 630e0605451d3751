/* tests/parallel/handoff_site.h - one rank's hand-off with events that check and count.
 *
 * With SITE_NCCL defined rows lie on the fake GPU and go by the fake NCCL (tests/cuda/fake), and
 * ranks have roles: the lower half sends to the others. */
#ifndef BT_TESTS_PARALLEL_HANDOFF_SITE_H
#define BT_TESTS_PARALLEL_HANDOFF_SITE_H

#include "parallel/handoff_parts.h"
#include "tests/parallel/mpi_test.h"

#ifdef SITE_NCCL
#include "tests/parallel/carrier_site.h"
#else
static bt_device *const g_dev = NULL;
#endif

enum { KV_DIM = 16, SITE_SEEN = 1 << 14 };

typedef struct {
    bt_handoff *h;
    uint32_t    n_delivered, n_sent, n_rejected, n_expired, max_expired, n_wrong;
    uint32_t    n_from[MAX_RANKS], n_sent_to[MAX_RANKS]; /* delivered, and sent, by peer */
    uint32_t    last_from;
    uint64_t    last_request, rejected_request;
    bt_status   rejected_why;
    uint32_t    sent_order[64];  /* receivers, in the order in which payloads left */
    uint8_t     seen[SITE_SEEN]; /* request % SITE_SEEN: how often */
    void       *pages;  /* not NULL: where rows on the device are copied to, in their order, */
    void       *before; /* after the device has read what was there, to here */
} site;

/* Nothing queued, granted or in flight on this rank. */
static inline bool handoff_is_idle(const bt_handoff *handoff)
{
    for (uint32_t i = 0; i < handoff->n_slots; i++)
        if (handoff->slots[i].state >= BT_SLOT_QUEUED) return false;
    for (int i = 0; i < BT_HANDOFF_INBOXES; i++)
        if (handoff->inboxes[i].busy) return false;
    return handoff->ask_serial == 0 && handoff->n_asked == 0 && handoff->grant_to == BT_NO_PEER &&
           handoff->n_signals_open == 0 && handoff->n_owed == 0 &&
           *handoff->signal_in_request == MPI_REQUEST_NULL;
}

/* Request numbers tell sender, receiver and sequence; the rows' content follows from them. */
static inline uint64_t request_of(uint32_t from, uint32_t to, uint32_t sequence)
{
    return ((uint64_t)(from + 1) << 32 | (uint64_t)to << 24) + sequence;
}

/* Block k of 32 bytes, a row of one layer, begins with this word. */
static inline uint64_t word_of(uint64_t request, size_t k) { return mix(request * 977 + k); }

static inline void fill_rows(uint64_t request, uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i += 8) {
        uint64_t word = word_of(request, i / 32) + i;

        memcpy(p + i, &word, 8);
    }
}

/* The rows are memory of the device. */
static inline void put_rows(void *to, const void *rows, size_t n)
{
    if (g_dev == NULL)
        memcpy(to, rows, n);
    else
        EXPECT_EQ(bt_device_upload(g_dev, to, rows, n),
                  BT_OK); /* not waited for: the hand-off does */
}

static inline void get_rows(void *rows, const void *from, size_t n)
{
    if (g_dev == NULL)
        memcpy(rows, from, n);
    else
        EXPECT(bt_device_download(g_dev, rows, from, n) == BT_OK && bt_device_sync(g_dev) == BT_OK);
}

static inline bool rows_are(uint64_t request, const uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i += 8) {
        uint64_t word = word_of(request, i / 32) + i;

        if (memcmp(p + i, &word, 8) != 0) return false;
    }
    return true;
}

static inline void take_rows(site *s, const bt_page_payload *p, size_t n)
{
#ifdef SITE_NCCL
    if (s->pages == NULL) return;
    EXPECT_EQ(
        cudaMemcpyAsync(s->before, s->pages, n, cudaMemcpyDeviceToDevice, bt_device_stream(g_dev)),
        cudaSuccess);
    EXPECT_EQ(bt_handoff_take(s->h), BT_OK);
    EXPECT_EQ(cudaMemcpyAsync(s->pages, p->rows, n, cudaMemcpyDeviceToDevice, p->stream),
              cudaSuccess);
#else
    (void)s, (void)p, (void)n;
#endif
}

static void site_deliver(void *ctx, uint32_t from, const bt_page_message *m,
                         const bt_page_payload *p)
{
    site    *s    = ctx;
    size_t   n    = m->payload_bytes - m->tail_bytes;
    uint8_t *copy = malloc(n + m->tail_bytes);

    EXPECT(!bt_handoff_poll(s->h)); /* from within an event it does nothing */
    s->n_delivered++;
    s->n_from[from]++;
    s->last_from    = from;
    s->last_request = m->request;
    s->seen[m->request % SITE_SEEN]++;
    EXPECT_EQ(p->on_device, g_dev != NULL);
    take_rows(s, p, n);
    get_rows(copy, p->rows, n);
    memcpy(copy + n, p->tail, m->tail_bytes);
    if (m->request >> 32 != from + 1 || (m->request >> 24 & 0xff) != g_rank ||
        !rows_are(m->request, copy, n + m->tail_bytes))
        s->n_wrong++;
    free(copy);
}

static void site_reject(void *ctx, uint32_t from, uint64_t request, bt_status why)
{
    site *s = ctx;

    s->n_rejected++;
    s->last_from        = from;
    s->rejected_request = request;
    s->rejected_why     = why;
}

static void site_sent(void *ctx, const bt_page_message *m)
{
    site *s    = ctx;
    void *slot = bt_handoff_stage(s->h);

    EXPECT(slot != NULL); /* its own is free again */
    if (slot != NULL) bt_handoff_unstage(s->h, slot);
    if (s->n_sent < 64) s->sent_order[s->n_sent] = (uint32_t)(m->request >> 24 & 0xff);
    s->n_sent_to[m->request >> 24 & 0xff]++;
    s->n_sent++;
}

static void site_expired(void *ctx, uint32_t to, uint32_t n)
{
    site *s = ctx;

    (void)to;
    s->n_expired++;
    if (n > s->max_expired) s->max_expired = n;
}

static inline void site_poll(void *ctx) { bt_handoff_poll(((site *)ctx)->h); }

/* All ranks meet, and their hand-offs go on meanwhile. */
static inline void site_meet(site *s)
{
    bt_wait wait = wait_s(60);

    wait.idle = site_poll;
    wait.ctx  = s;
    EXPECT_EQ(bt_group_barrier(g_all, &wait), BT_OK);
}

/* The first n ranks hand over, mostly the first half of all to the others, in an epoch of their
 * own. */
static inline void site_join(site *s, uint32_t n)
{
    uint32_t ranks[MAX_RANKS];

    for (uint32_t i = 0; i < n; i++)
        ranks[i] = i;
    EXPECT_EQ(bt_handoff_join(s->h, next_epoch(), n, g_ranks / 2, ranks), BT_OK);
}

static inline void site_wait_ready(site *s)
{
    bt_wait wait = wait_s(60);

    EXPECT_EQ(bt_handoff_await_ready(s->h, &wait), BT_OK);
    EXPECT(bt_handoff_is_ready(s->h));
}

static inline void site_close(site *s)
{
    bt_handoff_destroy(s->h);
#ifdef SITE_NCCL
    bt_device_destroy(g_dev);
    g_dev = NULL;
    EXPECT_EQ(g_fake_gpu.live, 0);
    EXPECT_EQ(g_fake_nccl.live, 0);
#endif
}

static inline void site_init(site *s, uint32_t n_slots, size_t slot_bytes, double grant_s)
{
    bt_handoff_config cfg = {
        .n_slots = n_slots, .grant_ns = (uint64_t)(grant_s * 1e9), .slot_bytes = slot_bytes};
    bt_handoff_events events = {.deliver = site_deliver,
                                .reject  = site_reject,
                                .sent    = site_sent,
                                .expired = site_expired,
                                .ctx     = s};

    memset(s, 0, sizeof(*s));
#ifdef SITE_NCCL
    if (bt_cuda_module.create(0, &g_dev) != BT_OK) bt_world_exit(EXIT_FAILURE);
    cfg.nccl = &bt_nccl_module_table;
    cfg.dev  = g_dev;
#endif
    if (bt_handoff_create(g_world, &cfg, &events, &s->h) != BT_OK) bt_world_exit(EXIT_FAILURE);
    site_join(s, g_ranks);
    site_wait_ready(s);
    site_meet(s); /* nobody asks before all can answer */
    site_wait_ready(s);
}

/* Bytes of `rows` rows of one layer. */
static inline size_t row_bytes(uint32_t rows) { return (size_t)rows * KV_DIM * 2; }

/* Stages and queues `rows` rows; NULL when no slot is free, else the staged payload. */
static inline void *site_send(site *s, uint32_t to, uint32_t sequence, uint32_t rows)
{
    bt_page_message m = {
        .request = request_of(g_rank, to, sequence), .token1 = rows, .layer1 = 1, .kv_dim = KV_DIM};
    size_t          tail = sequence % 4 == 3 ? 32 : 0, n = row_bytes(rows);
    uint8_t        *slot = bt_handoff_stage(s->h), *copy;
    bt_page_payload payload;

    if (slot == NULL) return NULL;
    if (n + tail > bt_handoff_payload_max(s->h)) tail = 0;
    copy = malloc(n + tail);
    fill_rows(m.request, copy, n + tail);
    m.last          = tail > 0;
    m.tail_bytes    = (uint32_t)tail;
    m.payload_bytes = n + tail;
    payload         = bt_handoff_slot(s->h, slot, &m);
    put_rows(payload.rows, copy, n);
    memcpy(payload.tail, copy + n, tail);
    free(copy);
    bt_handoff_send(s->h, to, &m, slot);
    return slot;
}

/* One poll, which says so when something came or left. */
static inline bool site_look(site *s)
{
    uint32_t before = s->n_delivered + s->n_sent + s->n_rejected;
    bool     moved  = bt_handoff_poll(s->h);

    EXPECT(moved || s->n_delivered + s->n_sent + s->n_rejected == before);
    return moved;
}

/* Polls until *counter >= want; false after 120 s. */
static inline bool poll_until(site *s, const uint32_t *counter, uint32_t want)
{
    uint64_t end_ns = bt_now_ns() + 120 * BT_NS_PER_S;

    while (*counter < want && bt_now_ns() < end_ns)
        if (!site_look(s)) bt_sleep_ns(20000);
    return *counter >= want;
}

/* Polls for a while. */
static inline void poll_for(site *s, double seconds)
{
    uint64_t end_ns = bt_now_ns() + (uint64_t)(seconds * 1e9);

    while (bt_now_ns() < end_ns)
        if (!bt_handoff_poll(s->h)) bt_sleep_ns(20000);
}

/* All ranks meet, polling, until every hand-off is idle; then the site is taken down. */
static inline void site_fini(site *s)
{
    uint64_t end_ns = bt_now_ns() + 120 * BT_NS_PER_S;
    bt_wait  wait   = wait_s(60);
    uint8_t  busy   = 1, all[MAX_RANKS];

    wait.idle = site_poll;
    wait.ctx  = s;
    while (busy && bt_now_ns() < end_ns) {
        uint8_t mine = !handoff_is_idle(s->h) || s->h->n_withdrawing > 0;

        EXPECT_EQ(bt_group_all_gather(g_all, &mine, 1, all, &wait), BT_OK);
        bt_handoff_poll(s->h);
        busy = 0;
        for (uint32_t i = 0; i < g_ranks; i++)
            busy |= all[i];
    }
    EXPECT_EQ(busy, 0);
    EXPECT_EQ(s->n_wrong, 0);
    for (uint32_t r = 0; r < g_ranks; r++)
        EXPECT(s->h->peers[r].n_granted == 0 && !s->h->peers[r].owes_taken);
    site_close(s);
    meet();
}

/* ---- rank 0 misbehaves, rank 1 is watched */

/* Bytes for rank 1, past the hand-off. */
static inline void send_raw(int tag, const void *bytes, size_t n)
{
    MPI_Request request;
    int         done   = 0;
    uint64_t    end_ns = bt_now_ns() + 60 * BT_NS_PER_S;

    MPI_Isend(bytes, (int)n, MPI_BYTE, 1, tag, g_world->handoff_comm, &request);
    while (!done && bt_now_ns() < end_ns)
        MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    EXPECT(done);
}

static inline void send_signal(bt_signal_kind kind, uint64_t serial)
{
    bt_signal s = {kind, serial, 5};
    uint8_t   wire[BT_SIGNAL_BYTES];

    bt_signal_encode(&s, wire);
    send_raw(BT_TAG_SIGNAL, wire, sizeof(wire));
}

/* The rank grants nothing, however long what comes next takes. */
static inline void be_busy_as(site *s, uint32_t rank)
{
    if (g_rank == rank) {
        s->h->grant_to       = rank;
        s->h->grant_since_ns = bt_now_ns() - s->h->still_ns;
        s->h->grant_ns       = 120 * BT_NS_PER_S;
    }
    meet();
}

/* Receives that last as long as the test wants: until as many bytes have been sent to itself. */
static inline void lend(MPI_Request *requests, int n)
{
    static uint8_t bytes[BT_SIGNAL_OUTBOX];

    for (int i = 0; i < n; i++)
        MPI_Irecv(&bytes[i], 1, MPI_BYTE, 0, 0, MPI_COMM_SELF, &requests[i]);
}

static inline void give_back(int n)
{
    for (int i = 0; i < n; i++)
        MPI_Send("", 1, MPI_BYTE, 0, 0, MPI_COMM_SELF);
}

#endif

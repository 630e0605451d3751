#include "bench/coord_wire.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/ip.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/clock.h"

enum {
    FLOWS        = 64,
    ASIDE        = 256,
    BLOCK_BYTES  = 1 << 20,
    BLOCKS       = 64,
    FRAME_BYTES  = 2048, /* of no meaning to this kind of ring, but checked */
    RETIRE_MS    = 20,   /* a block that is not full is handed over after so long */
    PREFACE      = 24,   /* "PRI * HTTP/2.0...", by the side that connects */
    FRAME_HEADER = 9
};

#define RING_BYTES ((size_t)BLOCKS * BLOCK_BYTES)

/* One direction of a connection: the bytes that come in order, cut into frames. */
typedef struct {
    uint32_t peer; /* port of the other side; 0: free */
    bool     to_coordinator, control;
    uint32_t next_seq, skip; /* skip: bytes of preface or payload still to come */
    uint8_t  header[FRAME_HEADER];
    uint32_t n_header;
    uint32_t data_bytes; /* of the DATA frame whose payload is being skipped; 0: another frame */
} flow;

/* A packet that came before its turn. */
typedef struct {
    flow    *f;
    uint32_t seq;
    uint8_t *data; /* owned [n] */
    size_t   n;
    uint64_t at;
} aside;

struct bench_wire {
    int              fd;
    uint16_t         control_port;
    _Atomic uint16_t public_port;
    uint32_t         min_bytes;
    flow             flows[FLOWS];
    uint64_t         t0;
    uint64_t        *samples; /* owned [capacity] */
    size_t           n, capacity;
    bool             broken;
    uint8_t         *ring; /* mapped */
    uint32_t         at;   /* the block whose turn is next */
    aside            aside[ASIDE];
    uint32_t         n_aside;
    pthread_t        thread;
    bool             has_thread;
    _Atomic bool     stopping;
};

/* ---- frames */

static void data_frame(bench_wire *w, const flow *f, uint64_t at)
{
    if (f->control && f->to_coordinator) {
        if (f->data_bytes >= w->min_bytes) w->t0 = at;
    } else if (!f->control && !f->to_coordinator && w->t0 != 0 && w->n < w->capacity) {
        w->samples[w->n++] = at - w->t0;
    }
}

static void take_bytes(bench_wire *w, flow *f, const uint8_t *bytes, size_t n, uint64_t at)
{
    while (n > 0) {
        size_t some = f->skip < n ? f->skip : n;

        f->skip -= (uint32_t)some;
        bytes += some;
        n -= some;
        if (some > 0 && f->skip == 0 && f->data_bytes != 0) {
            data_frame(w, f, at);
            f->data_bytes = 0;
        }
        if (n == 0) return;
        f->header[f->n_header++] = *bytes++;
        n--;
        if (f->n_header < FRAME_HEADER) continue;
        f->n_header   = 0;
        f->skip       = (uint32_t)f->header[0] << 16 | (uint32_t)f->header[1] << 8 | f->header[2];
        f->data_bytes = f->header[3] == 0 ? f->skip : 0;
        if (f->header[3] > 9) w->broken = true; /* no type of RFC 9113 */
    }
}

/* ---- packets */

static flow *find_flow(bench_wire *w, uint32_t peer, bool to_coordinator, bool control, bool begin)
{
    flow *free_one = NULL;

    for (uint32_t i = 0; i < FLOWS; i++) {
        flow *f = &w->flows[i];

        if (f->peer == peer && f->to_coordinator == to_coordinator && f->control == control)
            return f;
        if (f->peer == 0 && free_one == NULL) free_one = f;
    }
    if (!begin || free_one == NULL) return NULL;
    *free_one = (flow){.peer = peer, .to_coordinator = to_coordinator, .control = control};
    return free_one;
}

/* False: bytes before it have not come yet. */
static bool in_turn(bench_wire *w, flow *f, uint32_t seq, const uint8_t *data, size_t n,
                    uint64_t at)
{
    uint32_t old = f->next_seq - seq;

    if ((int32_t)old < 0) return false;
    if (old >= n) return true; /* sent again */
    f->next_seq = seq + (uint32_t)n;
    take_bytes(w, f, data + old, n - old, at);
    return true;
}

/* Two processors may show their packets in another order than they were sent. */
static void put_aside(bench_wire *w, flow *f, uint32_t seq, const uint8_t *data, size_t n,
                      uint64_t at)
{
    aside *a = &w->aside[w->n_aside];

    if (w->n_aside == ASIDE) {
        w->broken = true;
        return;
    }
    *a = (aside){f, seq, bt_calloc(n, 1), n, at};
    if (a->data == NULL) {
        w->broken = true;
        return;
    }
    memcpy(a->data, data, n);
    w->n_aside++;
}

static void take_segment(bench_wire *w, const struct tcphdr *tcp, const uint8_t *data, size_t n,
                         uint64_t at)
{
    uint16_t from = ntohs(tcp->source), to = ntohs(tcp->dest), pub = atomic_load(&w->public_port);
    bool     up      = to == w->control_port || (pub != 0 && to == pub);
    bool     control = from == w->control_port || to == w->control_port;
    uint32_t seq     = ntohl(tcp->seq);
    flow    *f;

    if (!up && from != w->control_port && (pub == 0 || from != pub)) return;
    f = find_flow(w, up ? from : to, up, control, tcp->syn != 0);
    if (f == NULL) return; /* from before we listened */
    if (tcp->syn != 0) {
        f->next_seq = seq + 1;
        f->skip     = up ? PREFACE : 0;
        return;
    }
    if (n != 0 && !in_turn(w, f, seq, data, n, at)) {
        put_aside(w, f, seq, data, n, at);
        return;
    }
    for (uint32_t i = 0; i < w->n_aside; i++) { /* whose turn has come by this one */
        aside *a = &w->aside[i];

        if (a->f != f || !in_turn(w, f, a->seq, a->data, a->n, a->at)) continue;
        bt_free(a->data);
        *a = w->aside[--w->n_aside];
        i  = UINT32_MAX; /* from the start */
    }
}

static void take_packet(bench_wire *w, const uint8_t *packet, size_t n, uint64_t at)
{
    const struct iphdr  *ip = (const void *)packet;
    const struct tcphdr *tcp;
    size_t               head, total;

    if (n < sizeof(*ip) || ip->version != 4 || ip->protocol != IPPROTO_TCP) return;
    head  = ip->ihl * 4u;
    total = ntohs(ip->tot_len);
    if (total == 0 || total > n) total = n;
    if (total < head + sizeof(*tcp)) return;
    tcp = (const void *)(packet + head);
    head += tcp->doff * 4u;
    if (head > total) return;
    take_segment(w, tcp, packet + head, total - head, at);
}

static void take_block(bench_wire *w, const struct tpacket_block_desc *block)
{
    const uint8_t *at = (const uint8_t *)block + block->hdr.bh1.offset_to_first_pkt;

    for (uint32_t i = 0; i < block->hdr.bh1.num_pkts; i++) {
        const struct tpacket3_hdr *p = (const void *)at;

        take_packet(w, at + p->tp_net, p->tp_snaplen, p->tp_sec * BT_NS_PER_S + p->tp_nsec);
        at += p->tp_next_offset;
    }
}

/* The blocks that the kernel has filled, and those that it gave up for their time. */
static void take_blocks(bench_wire *w)
{
    for (;;) {
        struct tpacket_block_desc *block  = (void *)(w->ring + (size_t)w->at * BLOCK_BYTES);
        uint32_t                  *status = &block->hdr.bh1.block_status;

        if ((__atomic_load_n(status, __ATOMIC_ACQUIRE) & TP_STATUS_USER) == 0) return;
        take_block(w, block);
        __atomic_store_n(status, TP_STATUS_KERNEL, __ATOMIC_RELEASE);
        w->at = (w->at + 1) % BLOCKS;
    }
}

static void *run(void *arg)
{
    bench_wire *w = arg;

    while (!atomic_load(&w->stopping)) {
        struct pollfd p = {w->fd, POLLIN, 0};

        if (poll(&p, 1, RETIRE_MS) > 0) take_blocks(w);
    }
    bt_sleep_ns(2 * RETIRE_MS * BT_NS_PER_MS); /* what has come by now is in a block by then */
    take_blocks(w);
    return NULL;
}

/* A ring in shared memory: nobody is woken for a packet, which would take a core from those that
 * are measured. */
static bt_status open_ring(bench_wire *w)
{
    bt_status           st      = BT_OK;
    int                 version = TPACKET_V3, one = 1;
    struct tpacket_req3 ring = {.tp_block_size     = BLOCK_BYTES,
                                .tp_block_nr       = BLOCKS,
                                .tp_frame_size     = FRAME_BYTES,
                                .tp_frame_nr       = BLOCK_BYTES / FRAME_BYTES * BLOCKS,
                                .tp_retire_blk_tov = RETIRE_MS};
    struct sockaddr_ll  lo   = {.sll_family   = AF_PACKET,
                                .sll_protocol = htons(ETH_P_IP),
                                .sll_ifindex  = (int)if_nametoindex("lo")};

    w->fd = socket(AF_PACKET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    BT_REQUIRE(w->fd >= 0, BT_ERR_IO, "packets of the loopback: %s", strerror(errno));
    BT_REQUIRE(setsockopt(w->fd, SOL_PACKET, PACKET_VERSION, &version, sizeof(version)) == 0 &&
                   setsockopt(w->fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &one, sizeof(one)) == 0 &&
                   setsockopt(w->fd, SOL_PACKET, PACKET_RX_RING, &ring, sizeof(ring)) == 0,
               BT_ERR_IO, "a ring for the loopback's packets: %s", strerror(errno));
    w->ring = mmap(NULL, RING_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, w->fd, 0);
    BT_REQUIRE(w->ring != MAP_FAILED, BT_ERR_IO, "a ring for the loopback's packets: %s",
               strerror(errno));
    BT_REQUIRE(bind(w->fd, (const struct sockaddr *)&lo, sizeof(lo)) == 0, BT_ERR_IO,
               "packets of the loopback: %s", strerror(errno));
out:
    return st;
}

bt_status bench_wire_start(uint16_t control_port, uint32_t min_tokens_bytes, size_t capacity,
                           bench_wire **wire_out)
{
    bt_status   st = BT_OK;
    bench_wire *w  = bt_calloc(1, sizeof(*w));

    BT_REQUIRE(w != NULL, BT_ERR_NO_MEMORY, "wire");
    w->control_port = control_port;
    w->min_bytes    = min_tokens_bytes;
    w->capacity     = capacity;
    w->samples      = bt_calloc(capacity, sizeof(*w->samples));
    w->fd           = -1;
    w->ring         = MAP_FAILED;
    BT_REQUIRE(w->samples != NULL, BT_ERR_NO_MEMORY, "%zu samples", capacity);
    BT_TRY(open_ring(w));
    BT_REQUIRE(pthread_create(&w->thread, NULL, run, w) == 0, BT_ERR_NO_MEMORY, "a thread");
    w->has_thread = true;
    *wire_out     = w;
    w             = NULL; /* handed over */
out:
    bench_wire_destroy(w);
    return st;
}

void bench_wire_public(bench_wire *wire, uint16_t port) { atomic_store(&wire->public_port, port); }

static void join(bench_wire *w)
{
    atomic_store(&w->stopping, true);
    if (w->has_thread) pthread_join(w->thread, NULL);
    w->has_thread = false;
}

bt_status bench_wire_stop(bench_wire *wire, const uint64_t **samples_out, size_t *n_out)
{
    bt_status               st = BT_OK;
    struct tpacket_stats_v3 lost;
    socklen_t               n = sizeof(lost);

    join(wire);
    BT_REQUIRE(getsockopt(wire->fd, SOL_PACKET, PACKET_STATISTICS, &lost, &n) == 0, BT_ERR_IO,
               "statistics of the packets: %s", strerror(errno));
    BT_REQUIRE(lost.tp_drops == 0 && !wire->broken, BT_ERR_FORMAT,
               "the loopback's packets: %u were lost, or they are no HTTP/2", lost.tp_drops);
    *samples_out = wire->samples;
    *n_out       = wire->n;
out:
    return st;
}

void bench_wire_destroy(bench_wire *wire)
{
    if (wire == NULL) return;
    join(wire);
    if (wire->ring != MAP_FAILED) munmap(wire->ring, RING_BYTES);
    if (wire->fd >= 0) close(wire->fd);
    for (uint32_t i = 0; i < wire->n_aside; i++)
        bt_free(wire->aside[i].data);
    bt_free(wire->samples);
    bt_free(wire);
}

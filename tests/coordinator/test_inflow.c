/* recvmsg() of coordinator/inflow.c: so much of a connection at a time, and an edge for the rest.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "coordinator/header_frames.c"
#include "coordinator/inflow.c"
#include "core/clock.h"
#include "tests/support/test.h"

enum { PIECE = BT_INFLOW_BYTES / 8 * 3, SENT = 2 * BT_INFLOW_BYTES + 1000 };

static bool g_is_for_ranks; /* what accept.c would say */

bool bt_accept_is_for_ranks(int fd)
{
    (void)fd;
    return g_is_for_ranks;
}

typedef struct {
    int fds[2], poll_fd; /* what goes into fds[0] comes out of fds[1] */
} connection;

/* Polled as gRPC does. */
static void open_one(connection *c, bool polled)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLET};
    int                bytes = 4 * SENT;

    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, c->fds), 0);
    EXPECT_EQ(setsockopt(c->fds[0], SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes)), 0);
    c->poll_fd = epoll_create1(0);
    if (polled) EXPECT_EQ(epoll_ctl(c->poll_fd, EPOLL_CTL_ADD, c->fds[1], &event), 0);
}

static void close_one(connection *c)
{
    close(c->fds[0]);
    close(c->fds[1]);
    close(c->poll_fd);
}

static int n_events(const connection *c)
{
    struct epoll_event event;

    return epoll_wait(c->poll_fd, &event, 1, 0);
}

static uint8_t byte_of(size_t at) { return (uint8_t)(at * 7 + at / 251); }

static void send_all(const connection *c)
{
    static uint8_t bytes[SENT];
    size_t         n = 0;

    for (size_t i = 0; i < SENT; i++)
        bytes[i] = byte_of(i);
    while (n < SENT) {
        ssize_t more = send(c->fds[0], bytes + n, SENT - n, 0);

        EXPECT(more > 0);
        if (more <= 0) return;
        n += (size_t)more;
    }
}

static ssize_t recv_some(const connection *c, size_t n, int flags)
{
    static uint8_t bytes[PIECE];
    struct iovec   piece   = {bytes, n};
    struct msghdr  message = {.msg_iov = &piece, .msg_iovlen = 1};

    return recvmsg(c->fds[1], &message, flags);
}

/* Until it would block; returns where that is. */
static size_t read_on(const connection *c, size_t at)
{
    static uint8_t first[PIECE], second[PIECE];
    struct iovec   pieces[2] = {
          {first,  PIECE},
          {second, PIECE}
    };
    struct msghdr message = {.msg_iov = pieces, .msg_iovlen = 2};
    ssize_t       n;

    while ((n = recvmsg(c->fds[1], &message, 0)) > 0) {
        EXPECT(message.msg_iov == pieces && message.msg_iovlen == 2);
        EXPECT_EQ(pieces[0].iov_len, PIECE);
        for (size_t i = 0; i < (size_t)n; i++)
            if ((i < PIECE ? first[i] : second[i - PIECE]) != byte_of(at + i)) return 0;
        at += (size_t)n;
    }
    EXPECT(n == -1 && errno == EAGAIN);
    return at;
}

static void connection_is_read_a_part_at_a_time(void)
{
    connection c;

    open_one(&c, true);
    send_all(&c);
    for (size_t at = 0; at < SENT; at += BT_INFLOW_BYTES) {
        size_t end = at + BT_INFLOW_BYTES < SENT ? at + BT_INFLOW_BYTES : SENT;

        EXPECT_EQ(n_events(&c), 1); /* without an edge nobody would read on */
        EXPECT_EQ(read_on(&c, at), end);
        EXPECT_EQ(read_on(&c, end), end); /* not before it is polled again */
        EXPECT_EQ(g_n_short, end < SENT); /* which is noted once */
    }
    EXPECT_EQ(n_events(&c), 0); /* it was empty */
    EXPECT_EQ(recv_some(&c, 1, 0), -1);
    send_all(&c);
    EXPECT_EQ(recv_some(&c, 1, 0), 1);
    EXPECT_EQ(read_on(&c, 1), BT_INFLOW_BYTES);
    EXPECT_EQ(recv_some(&c, 1, MSG_PEEK), 1); /* only reading is bounded */
    EXPECT_EQ(n_events(&c), 1);
    close_one(&c);
}

static void epoll_ctl_of_a_connection_grants_nothing(void)
{
    connection         c;
    struct epoll_event event = {.events = EPOLLIN | EPOLLET};

    open_one(&c, true);
    send_all(&c);
    EXPECT_EQ(read_on(&c, 0), BT_INFLOW_BYTES);
    EXPECT(epoll_ctl(c.poll_fd, EPOLL_CTL_ADD, c.fds[1], &event) == -1 && errno == EEXIST);
    EXPECT_EQ(recv_some(&c, 1, 0), -1);
    EXPECT_EQ(epoll_ctl(c.poll_fd, EPOLL_CTL_MOD, c.fds[1], &event), 0);
    EXPECT_EQ(recv_some(&c, 1, 0), -1);
    close_one(&c);
}

static void connections_that_are_cut_short_are_all_read_on(void)
{
    connection c[3];

    for (int i = 0; i < 3; i++) {
        open_one(&c[i], true);
        send_all(&c[i]);
        EXPECT_EQ(n_events(&c[i]), 1);
    }
    for (int i = 0; i < 3; i++)
        EXPECT_EQ(read_on(&c[i], 0), BT_INFLOW_BYTES);
    EXPECT_EQ(epoll_wait(c[0].poll_fd, &(struct epoll_event){0}, 1, 0), 1);
    for (int i = 0; i < 3; i++) {
        EXPECT_EQ(syscall(SYS_epoll_pwait, c[i].poll_fd, &(struct epoll_event){0}, 1, 0, NULL, 0),
                  i > 0); /* all have their edge by one call */
        close_one(&c[i]);
    }
}

static void messages_of_many_pieces_are_read_in_part(void)
{
    enum { N = PIECES_MAX + 5 };
    static uint8_t bytes[N][100];
    struct iovec   pieces[N];
    struct msghdr  message = {.msg_iov = pieces, .msg_iovlen = N};
    connection     c;

    for (int i = 0; i < N; i++)
        pieces[i] = (struct iovec){bytes[i], sizeof(bytes[i])};
    open_one(&c, true);
    send_all(&c);
    EXPECT_EQ(recvmsg(c.fds[1], &message, 0), PIECES_MAX * sizeof(bytes[0]));
    EXPECT_EQ(message.msg_iovlen, N);
    for (size_t i = 0; i < PIECES_MAX * sizeof(bytes[0]); i++)
        EXPECT_EQ(bytes[i / sizeof(bytes[0])][i % sizeof(bytes[0])], byte_of(i));
    close_one(&c);
}

static void epoll_wait_waits(void)
{
    struct epoll_event event;
    connection         c;
    uint64_t           from_ns = bt_now_ns();

    open_one(&c, true);
    EXPECT_EQ(epoll_wait(c.poll_fd, &event, 1, 20), 0);
    EXPECT(bt_now_ns() - from_ns >= 19 * BT_NS_PER_MS);
    close_one(&c);
}

static void another_connection_of_its_number_begins_anew(void)
{
    connection c;

    open_one(&c, true);
    send_all(&c);
    EXPECT_EQ(recv_some(&c, 1000, 0), 1000);
    close_one(&c);
    open_one(&c, true);
    send_all(&c);
    EXPECT_EQ(read_on(&c, 0), BT_INFLOW_BYTES);
    close_one(&c);
}

/* The more of its tokens come at once, the fewer messages carry them. */
static void rank_is_read_in_larger_parts(void)
{
    static const uint8_t bytes[1 << 10];
    connection           c;

    g_is_for_ranks = true;
    open_one(&c, true);
    g_is_for_ranks = false; /* known since it came */
    for (size_t n = 0; n <= BT_INFLOW_RANK_BYTES; n += sizeof(bytes)) {
        EXPECT_EQ(send(c.fds[0], bytes, sizeof(bytes), 0), sizeof(bytes));
        EXPECT_EQ(recv_some(&c, sizeof(bytes), 0),
                  n < BT_INFLOW_RANK_BYTES ? (ssize_t)sizeof(bytes) : -1);
    }
    EXPECT_EQ(n_events(&c), 1);
    EXPECT_EQ(recv_some(&c, sizeof(bytes), 0), sizeof(bytes));
    close_one(&c);
}

static void what_is_not_polled_has_no_bound(void)
{
    connection c;

    open_one(&c, true);
    EXPECT_EQ(epoll_ctl(c.poll_fd, EPOLL_CTL_DEL, c.fds[1], NULL), 0);
    send_all(&c);
    EXPECT_EQ(read_on(&c, 0), SENT);
    close_one(&c);
}

/* ---- header_frames.c */

enum { DATA = 0, FRAMES = BT_HEADER_BYTES / BT_HEADER_FRAME_BYTES };

static uint8_t g_sent[2 * BT_HEADER_BYTES];
static size_t  g_n_sent;

static void put_frame(int kind, int flags, size_t n)
{
    const uint8_t head[BT_FRAME_HEAD_BYTES] = {
        0, (uint8_t)(n >> 8), (uint8_t)n, (uint8_t)kind, (uint8_t)flags, 0, 0, 0, 1};

    memcpy(g_sent + g_n_sent, head, sizeof(head));
    memset(g_sent + g_n_sent + sizeof(head), CONTINUATION,
           n); /* frames of it, to who looks there */
    g_n_sent += sizeof(head) + n;
}

static void put_call(int n_frames)
{
    for (int i = 0; i < n_frames; i++)
        put_frame(i == 0 ? HEADERS : CONTINUATION, i + 1 == n_frames ? END_HEADERS : 0,
                  100 * (size_t)i);
    put_frame(DATA, 0, 600);
}

static void put_preface(void)
{
    g_n_sent = sizeof(PREFACE) - 1;
    memcpy(g_sent, PREFACE, g_n_sent);
}

/* After how many bytes, where so many come at a time; SIZE_MAX: never. */
static size_t refused_after(size_t step)
{
    bt_header_frames h = {0};

    for (size_t at = 0; at < g_n_sent; at += step)
        if (bt_header_frames_refuse(&h, g_sent + at, at + step < g_n_sent ? step : g_n_sent - at) !=
            NULL) {
            bt_header_frames_end(&h);
            return at;
        }
    EXPECT(h.n_held <= BT_HEADER_BYTES);
    bt_header_frames_end(&h);
    return SIZE_MAX;
}

static void headers_have_a_bound(void)
{
    size_t steps[] = {1, 7, BT_FRAME_HEAD_BYTES, sizeof(g_sent)}, end;

    put_preface();
    put_frame(4, 0, 0); /* SETTINGS */
    put_call(1);
    put_call(FRAMES);
    put_call(FRAMES); /* each call has its own */
    end = g_n_sent;
    for (size_t i = 0; i < 4; i++)
        EXPECT_EQ(refused_after(steps[i]), SIZE_MAX);
    for (int i = 0; i <= FRAMES; i++)
        put_frame(i == 0 ? HEADERS : CONTINUATION, 0, 0);
    end += FRAMES * BT_FRAME_HEAD_BYTES + BT_FRAME_HEAD_BYTES - 1;
    for (size_t i = 0; i < 4; i++)
        EXPECT_EQ(refused_after(steps[i]), end / steps[i] * steps[i]);
    g_sent[0] = 0x16; /* TLS begins so */
    EXPECT_EQ(refused_after(1), SIZE_MAX);
}

/* Those that clients may send, since gRPC lets them. */
static void large_frames_of_headers_count_by_their_bytes(void)
{
    for (size_t more = 0; more < 2; more++) {
        put_preface();
        put_frame(HEADERS, 0, BT_HEADER_BYTES / 2 + more);
        put_frame(CONTINUATION, END_HEADERS, BT_HEADER_BYTES / 2);
        EXPECT_EQ(refused_after(g_n_sent) == SIZE_MAX, more == 0);
    }
    put_preface();
    put_frame(HEADERS, END_HEADERS, 0);
    g_sent[g_n_sent - BT_FRAME_HEAD_BYTES] = 1; /* 64 KiB, of which nothing has come */
    EXPECT_EQ(refused_after(g_n_sent), SIZE_MAX);
    g_sent[g_n_sent - BT_FRAME_HEAD_BYTES + 2] = 1;
    EXPECT_EQ(refused_after(g_n_sent), 0);
}

static void farewells_have_the_bound_of_a_call(void)
{
    put_preface();
    put_frame(HEADERS, END_HEADERS, BT_HEADER_BYTES / 2);
    put_frame(GOAWAY, 0, BT_HEADER_BYTES - 1);
    EXPECT_EQ(refused_after(g_n_sent), SIZE_MAX);
    put_preface();
    put_frame(GOAWAY, 0, 0);
    g_sent[g_n_sent - BT_FRAME_HEAD_BYTES]     = 1; /* 64 KiB, */
    g_sent[g_n_sent - BT_FRAME_HEAD_BYTES + 2] = 1; /* and a byte */
    EXPECT_EQ(refused_after(g_n_sent), 0);
}

/* Those of which the last byte is missing. */
static void unfinished_headers_of_all_have_a_bound(void)
{
    enum { N = BT_HEADERS_BYTES / BT_HEADER_BYTES };
    static bt_header_frames h[N + 1];
    size_t                  n;

    put_preface();
    for (int i = 0; i < FRAMES; i++)
        put_frame(i == 0 ? HEADERS : CONTINUATION, i + 1 == FRAMES ? END_HEADERS : 0, 1);
    n = g_n_sent;
    for (int i = 0; i < N; i++) {
        EXPECT(bt_header_frames_refuse(&h[i], g_sent, n - 1) == NULL);
        EXPECT_EQ(h[i].n_held, BT_HEADER_BYTES);
    }
    EXPECT_EQ(g_n_held, BT_HEADERS_BYTES);
    EXPECT_EQ(refused_after(n), SIZE_MAX); /* what comes at once is none of them, */
    EXPECT_EQ(refused_after(n - 1), 0);    /* and for others there is no room */
    EXPECT(bt_header_frames_refuse(&h[0], g_sent + n - 1, 1) == NULL); /* one is whole */
    EXPECT_EQ(h[0].n_held, 0);
    EXPECT(bt_header_frames_refuse(&h[N], g_sent, n - 1) == NULL);
    for (int i = 0; i <= N; i++)
        bt_header_frames_end(&h[i]);
    EXPECT_EQ(g_n_held, 0);
}

static void connection_with_more_is_read_no_more(void)
{
    uint8_t      first[BT_FRAME_HEAD_BYTES], rest[sizeof(g_sent)];
    struct iovec pieces[2] = {
        {first, sizeof(first)},
        {rest,  sizeof(rest) }
    };
    struct msghdr message = {.msg_iov = pieces, .msg_iovlen = 2};
    connection    c;

    for (int more = 1; more >= 0; more--) { /* the second one has the number of the first */
        put_preface();
        put_call(FRAMES + more);
        put_frame(HEADERS, 0, 0);
        open_one(&c, true);
        EXPECT_EQ(send(c.fds[0], g_sent, g_n_sent, 0), (ssize_t)g_n_sent);
        EXPECT_EQ(recvmsg(c.fds[1], &message, 0), more ? -1 : (ssize_t)g_n_sent);
        EXPECT(!more || errno == ECONNRESET);
        EXPECT_EQ(g_n_held, more ? 0 : BT_HEADER_FRAME_BYTES);
        close_one(&c);
        EXPECT_EQ(g_n_held, 0);
    }
}

static const bt_test TESTS[] = {
    BT_TEST(headers_have_a_bound),
    BT_TEST(large_frames_of_headers_count_by_their_bytes),
    BT_TEST(farewells_have_the_bound_of_a_call),
    BT_TEST(unfinished_headers_of_all_have_a_bound),
    BT_TEST(connection_with_more_is_read_no_more),
    BT_TEST(connection_is_read_a_part_at_a_time),
    BT_TEST(another_connection_of_its_number_begins_anew),
    BT_TEST(rank_is_read_in_larger_parts),
    BT_TEST(what_is_not_polled_has_no_bound),
    BT_TEST(epoll_ctl_of_a_connection_grants_nothing),
    BT_TEST(connections_that_are_cut_short_are_all_read_on),
    BT_TEST(messages_of_many_pieces_are_read_in_part),
    BT_TEST(epoll_wait_waits),
};

int main(int argc, char **argv) { return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL); }

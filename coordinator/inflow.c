#include "coordinator/inflow.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "coordinator/accept.h"
#include "coordinator/header_frames.h"
#include "core/log.h"
#include "core/machine.h"

enum { FILES_MAX = 1 << 16, PIECES_MAX = 16 };

/* A file that is polled. */
typedef struct {
    int                poll_fd; /* 1 + the epoll instance; 0: none */
    struct epoll_event event;   /* what it is polled for */
    uint64_t           turn;    /* when it was read last, */
    size_t             n_bytes; /* how much in that turn, */
    size_t             n_most;  /* and how much may be */
    bool               cut_short;
    bt_header_frames   headers;
} source;

static pthread_mutex_t g_lock = PTHREAD_MUTEX_INITIALIZER;
static source          g_sources[FILES_MAX];
static int             g_short[FILES_MAX]; /* [g_n_short]: those that are cut short */
static uint32_t        g_n_short;
static uint64_t        g_turn = 1;

/* ---- epoll_ctl(), epoll_wait() */

static void note(int poll_fd, int op, int fd, const struct epoll_event *event)
{
    source *s = &g_sources[fd];

    s->poll_fd = op == EPOLL_CTL_DEL ? 0 : poll_fd + 1;
    if (event != NULL) s->event = *event;
    if (op != EPOLL_CTL_ADD) return;
    s->n_bytes = 0; /* another file by the same number */
    s->headers = (bt_header_frames){0};
    s->n_most  = bt_accept_is_for_ranks(fd) ? BT_INFLOW_RANK_BYTES : BT_INFLOW_BYTES;
}

/* By their names for the linker, as in accept.c. */
__attribute__((visibility("default"))) int
bt_epoll_ctl(int poll_fd, int op, int fd, struct epoll_event *event) __asm__("epoll_ctl");

int bt_epoll_ctl(int poll_fd, int op, int fd, struct epoll_event *event)
{
    int rc;

    pthread_mutex_lock(&g_lock);
    rc = (int)syscall(SYS_epoll_ctl, poll_fd, op, fd, event);
    if (rc == 0 && fd < FILES_MAX) note(poll_fd, op, fd, event);
    pthread_mutex_unlock(&g_lock);
    return rc;
}

/* Asking for its events anew tells of those that are there already.  A file that has been closed is
 * no matter. */
static void begin_turn(void)
{
    pthread_mutex_lock(&g_lock);
    g_turn++;
    for (uint32_t i = 0; i < g_n_short; i++) {
        source *s = &g_sources[g_short[i]];

        s->cut_short = false;
        if (s->poll_fd != 0)
            syscall(SYS_epoll_ctl, s->poll_fd - 1, EPOLL_CTL_MOD, g_short[i], &s->event);
    }
    g_n_short = 0;
    pthread_mutex_unlock(&g_lock);
}

__attribute__((visibility("default"))) int bt_epoll_wait(int poll_fd, struct epoll_event *events,
                                                         int n, int wait_ms) __asm__("epoll_wait");

int bt_epoll_wait(int poll_fd, struct epoll_event *events, int n, int wait_ms)
{
    begin_turn();
    return (int)syscall(SYS_epoll_pwait, poll_fd, events, n, wait_ms, NULL, 0);
}

/* ---- recvmsg() */

/* The bytes that may be read of it in this turn. */
static size_t room_of(int fd)
{
    size_t  room = SIZE_MAX;
    source *s    = &g_sources[fd];

    pthread_mutex_lock(&g_lock);
    if (s->poll_fd != 0) {
        if (s->turn != g_turn) s->n_bytes = 0;
        s->turn = g_turn;
        room    = s->n_most - s->n_bytes;
    }
    if (room == 0 && !s->cut_short) {
        s->cut_short         = true;
        g_short[g_n_short++] = fd;
    }
    pthread_mutex_unlock(&g_lock);
    return room;
}

/* What has been read of it, n bytes; false: it is to be read no more. */
static bool take(int fd, const struct iovec *pieces, size_t n)
{
    source     *s                   = &g_sources[fd];
    const char *why                 = NULL;
    char        peer[BT_PEER_BYTES] = "of no address";

    pthread_mutex_lock(&g_lock);
    s->n_bytes += n;
    for (size_t i = 0; n > 0 && why == NULL; i++) {
        size_t part = pieces[i].iov_len < n ? pieces[i].iov_len : n;

        why = bt_header_frames_refuse(&s->headers, pieces[i].iov_base, part);
        n -= part;
    }
    pthread_mutex_unlock(&g_lock);
    if (why == NULL) return true;
    bt_machine_peer(fd, peer);
    BT_WARN("a client, %s, %s: its connection is closed", peer, why);
    return false;
}

/* The first n pieces of from, cut to room bytes; returns n. */
static size_t cut(const struct iovec *from, size_t n_from, size_t room, struct iovec *to)
{
    size_t n = 0;

    for (; n < n_from && n < PIECES_MAX && room > 0; n++) {
        to[n] = from[n];
        if (to[n].iov_len > room) to[n].iov_len = room;
        room -= to[n].iov_len;
    }
    return n;
}

__attribute__((visibility("default"))) ssize_t bt_recvmsg(int fd, struct msghdr *message,
                                                          int flags) __asm__("recvmsg");

ssize_t bt_recvmsg(int fd, struct msghdr *message, int flags)
{
    size_t        room = fd >= 0 && fd < FILES_MAX && flags == 0 ? room_of(fd) : SIZE_MAX;
    struct iovec  pieces[PIECES_MAX];
    struct msghdr part = *message;
    ssize_t       n;

    if (room == SIZE_MAX) return syscall(SYS_recvmsg, fd, message, flags);
    if (room == 0) {
        errno = EAGAIN;
        return -1;
    }
    message->msg_iovlen = cut(part.msg_iov, part.msg_iovlen, room, pieces);
    message->msg_iov    = pieces;
    n                   = syscall(SYS_recvmsg, fd, message, flags);
    message->msg_iov    = part.msg_iov;
    message->msg_iovlen = part.msg_iovlen;
    if (n <= 0 || take(fd, pieces, (size_t)n)) return n;
    errno = ECONNRESET; /* gRPC closes it */
    return -1;
}

/* ---- close() */

__attribute__((visibility("default"))) int bt_close(int fd) __asm__("close");

int bt_close(int fd)
{
    if (fd >= 0 && fd < FILES_MAX) {
        pthread_mutex_lock(&g_lock);
        bt_header_frames_end(&g_sources[fd].headers);
        pthread_mutex_unlock(&g_lock);
    }
    return (int)syscall(SYS_close, fd);
}

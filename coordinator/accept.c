#include "coordinator/accept.h"

#include <errno.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/limits.h"
#include "core/log.h"
#include "core/machine.h"

enum {
    FILES_MAX = 1 << 16,
    RESERVE   = BT_FILES / 2, /* the part of them that this process opens later */
    SHARE     = 16,           /* one of so many is for ranks */
    SAY_S     = 10,
    AGAIN_S   = 1,
    LISTENERS = 8
};

/* The ends of the descriptors that ranks' connections may have, and others. */
static int g_end = INT_MAX, g_end_of_others = INT_MAX;

static atomic_int g_ranks_port;

/* Listeners on which connections wait that could not be accepted, until accept4() is called for
 * them again; 0: none. */
static atomic_int g_short[LISTENERS];

void bt_accept_bound(void)
{
    struct rlimit limit;
    int           n;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
    if (limit.rlim_cur < limit.rlim_max && limit.rlim_cur < FILES_MAX) {
        limit.rlim_cur = limit.rlim_max < FILES_MAX ? limit.rlim_max : FILES_MAX;
        setrlimit(RLIMIT_NOFILE, &limit);
        getrlimit(RLIMIT_NOFILE, &limit);
    }
    n               = (int)(limit.rlim_cur < FILES_MAX ? limit.rlim_cur : FILES_MAX);
    g_end           = n - RESERVE;
    g_end_of_others = g_end - n / SHARE;
}

void bt_accept_keep_for(uint16_t port) { g_ranks_port = port; }
bool bt_accept_is_for_ranks(int fd) { return bt_machine_port(fd) == g_ranks_port; }

/* Not at each connection of a storm. */
static bool may_say(void)
{
    static _Atomic uint64_t said_ns;
    uint64_t                now_ns = bt_now_ns(), before = said_ns;

    if (before != 0 && now_ns - before < SAY_S * BT_NS_PER_S) return false;
    return atomic_compare_exchange_strong(&said_ns, &before, now_ns);
}

/* ---- how accept4() fails */

/* What accept(2) passes on from the connection that it took: the next one may be well. */
static bool is_of_one_connection(int error)
{
    static const int ERRORS[] = {ECONNABORTED, EPROTO,       ENOPROTOOPT, ENETDOWN, ENONET,
                                 EHOSTDOWN,    EHOSTUNREACH, ENETUNREACH, EPERM};

    for (size_t i = 0; i < sizeof(ERRORS) / sizeof(ERRORS[0]); i++)
        if (error == ERRORS[i]) return true;
    return false;
}

/* Of files or memory: the connection waits. */
static bool is_short(int error)
{
    return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

/* ---- connections that wait */

static void note_short(int listener)
{
    for (int i = 0; i < LISTENERS; i++) {
        int there = 0;

        if (atomic_compare_exchange_strong(&g_short[i], &there, listener) || there == listener)
            return;
    }
}

static void forget_short(int listener)
{
    for (int i = 0; i < LISTENERS; i++)
        atomic_compare_exchange_strong(&g_short[i], &(int){listener}, 0);
}

/* One more connection is what a listener's edge-triggered poll sees; it is gone when it is
 * accepted.  A full queue would not take it, and nobody would know: the first that waits goes, and
 * its client has to come again.  While that one cannot be accepted either, nothing is done. */
static void nudge(int listener)
{
    struct sockaddr_storage a  = {0};
    socklen_t               n  = sizeof(a);
    int                     fd = (int)syscall(SYS_accept4, listener, NULL, NULL, SOCK_CLOEXEC);

    if (fd < 0 && !is_short(errno) && !is_of_one_connection(errno)) return; /* none waits */
    note_short(listener);
    if (fd < 0) return;
    close(fd);
    if (getsockname(listener, (struct sockaddr *)&a, &n) != 0) return;
    fd = socket(a.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return;
    connect(fd, (struct sockaddr *)&a, n);
    close(fd);
}

void bt_accept_again(uint64_t now_ns)
{
    static uint64_t looked_ns; /* the caller's thread only */

    if (now_ns - looked_ns < AGAIN_S * BT_NS_PER_S) return;
    looked_ns = now_ns;
    for (int i = 0; i < LISTENERS; i++) {
        int listener = atomic_exchange(&g_short[i], 0);

        if (listener != 0) nudge(listener);
    }
}

/* ---- accept4() */

/* There is room for the connection; else it is closed. */
static bool take(int listener, int client)
{
    bool ranks = client >= g_end_of_others && bt_accept_is_for_ranks(listener);

    if (client < (ranks ? g_end : g_end_of_others)) return true;
    close(client);
    if (may_say())
        BT_WARN("as many connections%s are open as this process may have files: further ones are "
                "closed until some end; raise `ulimit -n`",
                ranks ? ", of ranks too," : "");
    return false;
}

/* By its name for the linker: <sys/socket.h> may declare accept4 with a type of its own. */
__attribute__((visibility("default"))) int
bt_accept(int fd, struct sockaddr *address, socklen_t *n_bytes, int flags) __asm__("accept4");

int bt_accept(int fd, struct sockaddr *address, socklen_t *n_bytes, int flags)
{
    socklen_t room = n_bytes != NULL ? *n_bytes : 0;

    forget_short(fd);
    for (;;) {
        int client = (int)syscall(SYS_accept4, fd, address, n_bytes, flags);

        if (client >= 0 && take(fd, client)) return client;
        if (client < 0 && is_short(errno)) {
            if (may_say()) BT_WARN("a connection cannot be accepted yet: %s", strerror(errno));
            note_short(fd);
            errno = EAGAIN;
            return -1;
        }
        if (client < 0 && !is_of_one_connection(errno)) return -1;
        if (n_bytes != NULL) *n_bytes = room;
    }
}

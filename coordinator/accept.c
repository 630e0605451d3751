#include "coordinator/accept.h"

#include <errno.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/limits.h"
#include "core/log.h"

enum {
    FILES_MAX = 1 << 16,
    RESERVE   = BT_FILES / 2, /* the part of them that this process opens later */
    SAY_S     = 10
};

static int g_end = INT_MAX; /* of the descriptors that connections may have */

void bt_accept_bound(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
    if (limit.rlim_cur < limit.rlim_max && limit.rlim_cur < FILES_MAX) {
        limit.rlim_cur = limit.rlim_max < FILES_MAX ? limit.rlim_max : FILES_MAX;
        setrlimit(RLIMIT_NOFILE, &limit);
        getrlimit(RLIMIT_NOFILE, &limit);
    }
    g_end = (int)(limit.rlim_cur < FILES_MAX ? limit.rlim_cur : FILES_MAX) - RESERVE;
}

/* Not at each connection of a storm. */
static void say_full(void)
{
    static _Atomic uint64_t said_ns;
    uint64_t                now_ns = bt_now_ns(), before = said_ns;

    if (before != 0 && now_ns - before < SAY_S * BT_NS_PER_S) return;
    if (atomic_compare_exchange_strong(&said_ns, &before, now_ns))
        BT_WARN("as many connections are open as this process may have files: further ones, of "
                "ranks too, are closed until some end; raise `ulimit -n`");
}

/* What accept(2) passes on from the connection that it took: the next one may be well. */
static bool is_of_one_connection(int error)
{
    static const int ERRORS[] = {ECONNABORTED, EPROTO,       ENOPROTOOPT, ENETDOWN, ENONET,
                                 EHOSTDOWN,    EHOSTUNREACH, ENETUNREACH, EPERM};

    for (size_t i = 0; i < sizeof(ERRORS) / sizeof(ERRORS[0]); i++)
        if (error == ERRORS[i]) return true;
    return false;
}

/* By its name for the linker: <sys/socket.h> may declare accept4 with a type of its own. */
__attribute__((visibility("default"))) int
bt_accept(int fd, struct sockaddr *address, socklen_t *n_bytes, int flags) __asm__("accept4");

int bt_accept(int fd, struct sockaddr *address, socklen_t *n_bytes, int flags)
{
    socklen_t room = n_bytes != NULL ? *n_bytes : 0;

    for (;;) {
        int client = (int)syscall(SYS_accept4, fd, address, n_bytes, flags);

        if (client >= 0 && client < g_end) return client;
        if (client >= 0) {
            close(client);
            say_full();
        } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
            say_full();
            errno = EAGAIN; /* the connection waits for the next one */
            return -1;
        } else if (!is_of_one_connection(errno)) {
            return -1;
        }
        if (n_bytes != NULL) *n_bytes = room;
    }
}

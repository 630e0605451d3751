#include "coordinator/accept.h"

#include <errno.h>
#include <limits.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"

enum { FILES_MAX = 1 << 20, RESERVE = 32, SAY_S = 10 };

static int g_end = INT_MAX; /* of the descriptors that connections may have */

void bt_accept_bound(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
    if (limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max < FILES_MAX ? limit.rlim_max : FILES_MAX;
        setrlimit(RLIMIT_NOFILE, &limit);
        getrlimit(RLIMIT_NOFILE, &limit);
    }
    if (limit.rlim_cur < INT_MAX) g_end = (int)limit.rlim_cur - RESERVE;
}

/* Not at each connection of a storm. */
static void say_full(void)
{
    static _Atomic uint64_t said_ns;
    uint64_t                now_ns = bt_now_ns(), before = said_ns;

    if (before != 0 && now_ns - before < SAY_S * BT_NS_PER_S) return;
    if (atomic_compare_exchange_strong(&said_ns, &before, now_ns))
        BT_WARN("clients have opened as many connections as this process may have files open: "
                "further ones are closed until some end; raise `ulimit -n`");
}

/* By its name for the linker: <sys/socket.h> may declare accept4 with a type of its own. */
__attribute__((visibility("default"))) int
bt_accept(int fd, struct sockaddr *address, socklen_t *n_bytes, int flags) __asm__("accept4");

int bt_accept(int fd, struct sockaddr *address, socklen_t *n_bytes, int flags)
{
    socklen_t room = n_bytes != NULL ? *n_bytes : 0;
    int       client;

    while ((client = (int)syscall(SYS_accept4, fd, address, n_bytes, flags)) >= g_end) {
        close(client);
        if (n_bytes != NULL) *n_bytes = room;
        say_full();
    }
    if (client >= 0) return client;
    if (errno == EMFILE || errno == ENFILE) say_full();
    if (errno != EINTR && errno != EBADF && errno != EINVAL && errno != ENOTSOCK) errno = EAGAIN;
    return -1;
}

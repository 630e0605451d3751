/* accept4() of coordinator/accept.c: what it does with connections that fail, and with limits of
 * files and memory.  The system calls that fail here are played; listeners and connections are
 * real. */
#include <arpa/inet.h>
#include <errno.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/clock.h"
#include "tests/support/test.h"

enum { WAIT_MS = 60000, QUEUE = 16 };

static const int    *g_errors; /* of the next accepts, up to a 0 */
static struct rlimit g_limit;

static int played_accept(int fd, struct sockaddr *address, socklen_t *n_bytes, int flags)
{
    if (g_errors != NULL && *g_errors != 0) {
        errno = *g_errors++;
        return -1;
    }
    return (int)syscall(SYS_accept4, fd, address, n_bytes, flags);
}

static int played_limit(struct rlimit *limit)
{
    *limit = g_limit;
    return 0;
}

static int played_new_limit(const struct rlimit *limit)
{
    EXPECT(limit->rlim_cur <= g_limit.rlim_max && limit->rlim_max == g_limit.rlim_max);
    g_limit = *limit;
    return 0;
}

#define syscall(number, ...)       played_accept(__VA_ARGS__)
#define getrlimit(resource, limit) played_limit(limit)
#define setrlimit(resource, limit) played_new_limit(limit)
#include "coordinator/accept.c"
#undef syscall

typedef struct {
    int                fd, poll_fd;
    struct sockaddr_in address;
} listener;

/* Polled as gRPC does. */
static void listener_open(listener *l)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLET};
    socklen_t          n     = sizeof(l->address);

    l->address =
        (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    l->fd      = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    l->poll_fd = epoll_create1(0);
    EXPECT_EQ(bind(l->fd, (struct sockaddr *)&l->address, n), 0);
    EXPECT_EQ(listen(l->fd, QUEUE), 0);
    EXPECT_EQ(getsockname(l->fd, (struct sockaddr *)&l->address, &n), 0);
    EXPECT_EQ(epoll_ctl(l->poll_fd, EPOLL_CTL_ADD, l->fd, &event), 0);
}

static void listener_close(listener *l)
{
    close(l->fd);
    close(l->poll_fd);
}

static int client_open(const listener *l)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    EXPECT_EQ(connect(fd, (const struct sockaddr *)&l->address, sizeof(l->address)), 0);
    return fd;
}

static int n_events(const listener *l, int wait_ms)
{
    struct epoll_event event;

    return epoll_wait(l->poll_fd, &event, 1, wait_ms);
}

static int accept_one(const listener *l)
{
    struct sockaddr_in a;
    socklen_t          n      = sizeof(a);
    int                client = bt_accept(l->fd, (struct sockaddr *)&a, &n, SOCK_CLOEXEC);

    if (client >= 0) EXPECT(n == sizeof(a) && a.sin_addr.s_addr == htonl(INADDR_LOOPBACK));
    return client;
}

static void accept_passes_over_connections_that_failed(void)
{
    static const int ERRORS[] = {ECONNABORTED, EPROTO,       ENOPROTOOPT, ENETDOWN, ENONET,
                                 EHOSTDOWN,    EHOSTUNREACH, ENETUNREACH, EPERM,    0};
    listener         l;
    int              client, served;

    listener_open(&l);
    client   = client_open(&l);
    g_errors = ERRORS;
    served   = accept_one(&l);
    EXPECT(served >= 0);
    EXPECT_EQ(*g_errors, 0);
    EXPECT_EQ(accept_one(&l), -1);
    EXPECT_EQ(errno, EAGAIN);
    g_errors = (const int[]){EBADF, 0}; /* nobody's connection: the caller's to know */
    EXPECT_EQ(accept_one(&l), -1);
    EXPECT_EQ(errno, EBADF);
    g_errors = NULL;
    close(client);
    close(served);
    listener_close(&l);
}

static bool is_closed(int fd) { return read(fd, &(char){0}, 1) <= 0; }

/* The connections are the last that come: nothing but the nudge can bring them back. */
static void accept_that_was_short_is_tried_again(void)
{
    static const int ERRORS[][2] = {{EMFILE}, {ENFILE}, {ENOBUFS}, {ENOMEM}};
    uint64_t         now_ns      = bt_now_ns();

    for (size_t i = 0; i < sizeof(ERRORS) / sizeof(ERRORS[0]); i++) {
        listener l;
        int      first, client, served;

        listener_open(&l);
        first  = client_open(&l);
        client = client_open(&l);
        EXPECT_EQ(n_events(&l, WAIT_MS), 1);
        g_errors = ERRORS[i];
        EXPECT_EQ(accept_one(&l), -1);
        EXPECT_EQ(errno, EAGAIN);
        EXPECT_EQ(n_events(&l, 0), 0);
        bt_accept_again(now_ns += AGAIN_S * BT_NS_PER_S);
        EXPECT_EQ(n_events(&l, WAIT_MS), 1);
        EXPECT(is_closed(first)); /* it has made room */
        served = accept_one(&l);
        EXPECT_EQ(write(client, "x", 1), 1);
        EXPECT_EQ(read(served, &(char){0}, 1), 1);
        bt_accept_again(now_ns += AGAIN_S * BT_NS_PER_S); /* once is enough */
        close(served);
        served = accept_one(&l); /* the nudge itself */
        EXPECT(served >= 0);
        EXPECT_EQ(accept_one(&l), -1);
        close(served);
        close(first);
        close(client);
        listener_close(&l);
    }
}

static void accept_with_a_full_queue_is_tried_again(void)
{
    static const int SHORT[] = {ENOMEM, ENOMEM, ENOMEM, 0};
    uint64_t         now_ns  = bt_now_ns() + 3600 * BT_NS_PER_S; /* after all tests before */
    listener         l;
    int              clients[QUEUE + 1], served, n = 0;

    listener_open(&l);
    for (int i = 0; i <= QUEUE; i++)
        clients[i] = client_open(&l);
    EXPECT_EQ(n_events(&l, WAIT_MS), 1);
    g_errors = SHORT;
    EXPECT_EQ(accept_one(&l), -1);
    bt_accept_again(now_ns += AGAIN_S * BT_NS_PER_S);
    bt_accept_again(now_ns += AGAIN_S * BT_NS_PER_S);
    EXPECT_EQ(n_events(&l, 0), 0); /* short for all that time */
    EXPECT_EQ(*g_errors, 0);
    bt_accept_again(now_ns += AGAIN_S * BT_NS_PER_S);
    EXPECT_EQ(n_events(&l, WAIT_MS), 1);
    while ((served = accept_one(&l)) >= 0) {
        close(served);
        n++;
    }
    EXPECT_EQ(n, QUEUE + 1); /* without the first one, with the nudge */
    for (int i = 0; i <= QUEUE; i++)
        close(clients[i]);
    listener_close(&l);
}

static void bound_raises_the_limit_up_to_65536(void)
{
    static const struct {
        rlim_t soft, hard, want;
        int    end, others;
    } CASES[] = {
        {1024,   1024,          1024,   992,   928  },
        {1024,   4096,          4096,   4064,  3808 },
        {1024,   1 << 20,       65536,  65504, 61408},
        {1024,   RLIM_INFINITY, 65536,  65504, 61408},
        {100000, 1 << 20,       100000, 65504, 61408},
    };

    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        g_limit = (struct rlimit){CASES[i].soft, CASES[i].hard};
        bt_accept_bound();
        EXPECT_EQ(g_limit.rlim_cur, CASES[i].want);
        EXPECT_EQ(g_end, CASES[i].end);
        EXPECT_EQ(g_end_of_others, CASES[i].others);
    }
}

static void full_closes_clients_before_ranks(void)
{
    listener front, control;
    int      clients[3], served;

    listener_open(&front);
    listener_open(&control);
    bt_accept_keep_for(ntohs(control.address.sin_port));
    clients[0] = client_open(&front);
    clients[1] = client_open(&control);
    served     = dup(clients[0]); /* the number that the next connection takes */
    close(served);
    g_end_of_others = served;
    g_end           = served + 1;
    EXPECT_EQ(accept_one(&front), -1);
    EXPECT_EQ(errno, EAGAIN);
    EXPECT(is_closed(clients[0]));
    EXPECT_EQ(accept_one(&control), served);
    EXPECT(bt_accept_is_for_ranks(served));
    EXPECT(!bt_accept_is_for_ranks(clients[1]) && !bt_accept_is_for_ranks(front.fd));
    clients[2] = client_open(&control);
    EXPECT_EQ(accept_one(&control), -1);
    EXPECT(is_closed(clients[2]));
    g_end = g_end_of_others = INT_MAX;
    for (int i = 0; i < 3; i++)
        close(clients[i]);
    close(served);
    listener_close(&front);
    listener_close(&control);
}

static const bt_test TESTS[] = {
    BT_TEST(accept_passes_over_connections_that_failed),
    BT_TEST(accept_that_was_short_is_tried_again),
    BT_TEST(accept_with_a_full_queue_is_tried_again),
    BT_TEST(bound_raises_the_limit_up_to_65536),
    BT_TEST(full_closes_clients_before_ranks),
};

int main(int argc, char **argv) { return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL); }

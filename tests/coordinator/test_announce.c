/* The line that says that the coordinator lives, and who must not suffer from it. */
#include "coordinator/announce.h"

#include <signal.h>
#include <unistd.h>

#include "core/clock.h"
#include "tests/support/own_stderr.h"
#include "tests/support/test.h"

/* What is in the pipe, which is not empty. */
static const char *take(int fd)
{
    static char text[256];
    ssize_t     n = read(fd, text, sizeof(text) - 1);

    text[n > 0 ? n : 0] = '\0';
    return text;
}

static void announce_alive_comes_once_a_second_when_all_was_read(void)
{
    uint64_t due_ns = 0, now = BT_NS_PER_S;
    int      fds[2];

    NEED(pipe(fds) == 0);
    bt_announce(fds[1], true, "ready %s", "here");
    bt_announce_alive(fds[1], now, &due_ns); /* that line says it too */
    EXPECT(strcmp(take(fds[0]), "ready here\n") == 0);
    bt_announce_alive(fds[1], now += BT_NS_PER_S, &due_ns);
    bt_announce_alive(fds[1], now + BT_NS_PER_S / 2, &due_ns);
    EXPECT(strcmp(take(fds[0]), "alive\n") == 0);
    for (int i = 0; i < 3; i++) /* nobody reads */
        bt_announce_alive(fds[1], now += BT_NS_PER_S, &due_ns);
    EXPECT(strcmp(take(fds[0]), "alive\n") == 0);
    close(fds[0]);
    close(fds[1]);
}

static void announce_alive_is_silent_where_nobody_can_read(void)
{
    uint64_t   due_ns = 0;
    FILE      *file   = tmpfile();
    own_stderr own    = begin_stderr();
    int        fds[2];

    NEED(file != NULL && pipe(fds) == 0);
    close(fds[0]);
    signal(SIGPIPE, SIG_IGN);
    bt_announce_alive(fds[1], BT_NS_PER_S, &due_ns);
    bt_announce_alive(-1, 3 * BT_NS_PER_S, &due_ns);
    bt_announce_alive(fileno(file), 5 * BT_NS_PER_S, &due_ns);
    EXPECT_EQ(lseek(fileno(file), 0, SEEK_END), 0);
    EXPECT(strcmp(end_stderr(own), "") == 0);
    fclose(file);
    close(fds[1]);
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {
        BT_TEST(announce_alive_comes_once_a_second_when_all_was_read),
        BT_TEST(announce_alive_is_silent_where_nobody_can_read),
    };

    return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
}

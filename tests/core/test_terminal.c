/* What may be written to a terminal: on a pseudo terminal of a given width. */
#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "core/terminal.h"
#include "tests/support/test.h"

static int open_terminal(unsigned short columns)
{
    struct winsize size  = {.ws_row = 24, .ws_col = columns};
    int            other = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC), fd;

    NEED(other >= 0 && grantpt(other) == 0 && unlockpt(other) == 0);
    fd = open(ptsname(other), O_RDWR | O_NOCTTY | O_CLOEXEC);
    NEED(fd >= 0 && ioctl(fd, TIOCSWINSZ, &size) == 0);
    return fd; /* the other end stays open until the test ends */
}

static void terminal_columns_leave_the_last_one_free(void)
{
    int fd = open_terminal(40), fds[2];

    setenv("TERM", "xterm", 1);
    EXPECT_EQ(bt_terminal_columns(fd), 39);
    EXPECT_EQ(bt_terminal_columns(open_terminal(0)), 79); /* it does not say */
    setenv("TERM", "dumb", 1);
    EXPECT_EQ(bt_terminal_columns(fd), 0);
    unsetenv("TERM");
    EXPECT_EQ(bt_terminal_columns(fd), 39);
    NEED(pipe2(fds, O_CLOEXEC) == 0);
    EXPECT_EQ(bt_terminal_columns(fds[1]), 0);
}

static void terminal_colours_are_off_where_nobody_wants_them(void)
{
    int fd = open_terminal(80), fds[2];

    setenv("TERM", "xterm", 1);
    unsetenv("NO_COLOR");
    NEED(pipe2(fds, O_CLOEXEC) == 0);
    EXPECT(bt_terminal_colours(fd) && !bt_terminal_colours(fds[1]));
    setenv("NO_COLOR", "", 1); /* empty is unset */
    EXPECT(bt_terminal_colours(fd));
    setenv("NO_COLOR", "1", 1);
    EXPECT(!bt_terminal_colours(fd));
    unsetenv("NO_COLOR");
    setenv("TERM", "dumb", 1);
    EXPECT(!bt_terminal_colours(fd));
}

static const bt_test TESTS[] = {
    BT_TEST(terminal_columns_leave_the_last_one_free),
    BT_TEST(terminal_colours_are_off_where_nobody_wants_them),
};

int main(int argc, char **argv) { return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL); }

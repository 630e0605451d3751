/* What a supervisor plans without the hosts that are silent. */
#include <sys/mman.h>
#include <unistd.h>

#include "cli/supervisor_state.h"
#include "tests/support/test.h"

void bt_supervisor_renew(supervisor *s) { (void)s; }

static void write_file(int fd, const char *text)
{
    EXPECT_EQ(ftruncate(fd, 0), 0);
    EXPECT_EQ(pwrite(fd, text, strlen(text), 0), (ssize_t)strlen(text));
}

/* Somebody has put another host into the file meanwhile. */
static void hosts_that_came_into_the_file_are_used(void)
{
    char           path[64];
    int            fd  = memfd_create("hosts", MFD_CLOEXEC);
    bt_run_options opt = {
        .cell = {.n_prefill = 1, .n_decode = 1, .hostfile = path}
    };
    supervisor s   = {.opt = &opt, .has_served = true, .hosts = {.map_fd = -1}};
    uint64_t   now = bt_now_ns(), at = now;
    bool       go = false;

    bt_child_init(&s.asker);
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)getpid(), fd);
    write_file(fd, "n1 slots=1\nn2 slots=1\n");
    EXPECT_EQ(bt_supervisor_find_hosts(&s), BT_OK);
    EXPECT_EQ(s.hosts.n, 2);
    s.hosts.at[1].answers = false;
    s.hosts.answered_ns   = now;
    write_file(fd, "n1 slots=1\nn3 slots=1\n");
    EXPECT_EQ(bt_supervisor_choose_hosts(&s, &at, now, &go), BT_OK);
    EXPECT(go && s.cell.n_prefill == 1 && s.cell.n_decode == 1);
    bt_supervisor_forget_hosts(&s);
    close(fd);
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {BT_TEST(hosts_that_came_into_the_file_are_used)};

    return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
}

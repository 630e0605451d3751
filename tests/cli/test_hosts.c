/* What a supervisor plans without the hosts that are silent. */
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/supervisor_state.h"
#include "tests/support/test.h"

static int g_n_renewals;

void bt_supervisor_renew(supervisor *s)
{
    (void)s;
    g_n_renewals++;
}

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

static const bt_run_options THREE = {
    .cell = {.n_prefill = 1, .n_decode = 1, .n_spares = 1, .hosts = "n1,n2,n3"}
};

/* A cell over three hosts that has served, of which nobody has asked yet. */
static void begin(supervisor *s)
{
    *s = (supervisor){.opt = &THREE, .has_served = true, .phase = SERVING, .hosts = {.map_fd = -1}};
    bt_child_init(&s->asker);
    EXPECT_EQ(bt_supervisor_find_hosts(s), BT_OK);
    EXPECT_EQ(s->hosts.n, 3);
    g_n_renewals = 0;
}

/* What the one who asks says, of all hosts or of those that are left out; and its end. */
static void answer(supervisor *s, bool all, const char *const *lines)
{
    for (uint32_t i = 0; i < s->hosts.n; i++) {
        s->hosts.at[i].asked = all || !s->hosts.at[i].answers;
        s->hosts.at[i].heard = false;
    }
    for (; *lines != NULL; lines++)
        bt_supervisor_host_line(s, *lines);
    bt_supervisor_hosts_asked(s);
}

#define LINES(...) ((const char *const[]){__VA_ARGS__, NULL})

/* At that time, or right after the answer if it is past. */
static bool is_due(supervisor *s, uint64_t *at_ns)
{
    uint64_t now = *at_ns < s->hosts.answered_ns ? s->hosts.answered_ns : *at_ns;
    bool     go  = false;

    EXPECT_EQ(bt_supervisor_choose_hosts(s, at_ns, now, &go), BT_OK);
    return go;
}

static void hosts_that_are_silent_are_left_out_until_they_answer(void)
{
    supervisor s;
    uint64_t   at = 0, answered;
    char       text[256];

    begin(&s);
    EXPECT(!bt_supervisor_silent_host(&s, text, sizeof(text)));
    s.hosts.asked_ns = 1;
    answer(&s, true,
           LINES("n1           ok", "n2           WRONG  it does not answer: no route", "n9 ok",
                 "n3", "", "n3 later"));
    EXPECT(s.hosts.at[0].answers && !s.hosts.at[1].answers && !s.hosts.at[2].answers);
    EXPECT(bt_supervisor_silent_host(&s, text, sizeof(text)));
    EXPECT(strcmp(text, "host n2: it does not answer: no route") == 0);
    EXPECT_EQ(g_n_renewals, 0);

    answered = s.hosts.answered_ns;
    EXPECT(!is_due(&s, &at)); /* nobody would decode */
    EXPECT(s.hosts.waits && s.hosts.answered_ns == 0);
    EXPECT_EQ(at, answered + 2 * BT_NS_PER_S);
    EXPECT(strcmp(s.hosts.left_out, "n2,n3") == 0);

    answer(&s, false, LINES("n3 ok"));
    EXPECT(s.hosts.at[0].answers && !s.hosts.at[1].answers && s.hosts.at[2].answers);
    EXPECT_EQ(g_n_renewals, 1);
    at = 0;
    EXPECT(is_due(&s, &at) && !s.hosts.waits);
    EXPECT(strcmp(s.hosts.left_out, "n2") == 0);
    EXPECT(s.cell.n_prefill == 1 && s.cell.n_decode == 1 && s.cell.n_spares == 0);
    memset(text, 0, sizeof(text));
    EXPECT(pread(s.hosts.map_fd, text, sizeof(text) - 1, 0) > 0);
    EXPECT(strcmp(text, "prefill n1\ndecode n3\n") == 0);

    s.phase = LOADING;
    answer(&s, false, LINES("n2 ok"));
    EXPECT_EQ(g_n_renewals, 1); /* the start is on its way */
    EXPECT(is_due(&s, &at) && s.cell.n_spares == 1 && s.hosts.left_out[0] == '\0');
    EXPECT(!bt_supervisor_silent_host(&s, text, sizeof(text)));
    bt_supervisor_forget_hosts(&s);
}

/* It may be something else that keeps it. */
static void hosts_of_the_first_start_are_used_whatever_they_answer(void)
{
    supervisor s;
    uint64_t   at = 0;

    begin(&s);
    s.has_served = false;
    answer(&s, true, LINES("n1 ok"));
    EXPECT(s.hosts.at[0].answers && s.hosts.at[1].answers && s.hosts.at[2].answers);
    EXPECT(is_due(&s, &at) && s.hosts.answered_ns == 0);
    bt_supervisor_forget_hosts(&s);
}

/* There is no baton-check beside this test: who would ask fails. */
static void hosts_are_asked_when_it_is_time(void)
{
    supervisor s;
    uint64_t   now = bt_now_ns() + 100 * BT_NS_PER_S, at = now + 2 * BT_NS_PER_S;
    bool       go = true;

    begin(&s);
    EXPECT_EQ(bt_supervisor_choose_hosts(&s, &at, now, &go), BT_OK); /* too early */
    EXPECT(!go && s.heard_ns == 0);
    at = now + BT_NS_PER_S / 2; /* ahead of the start */
    EXPECT_EQ(bt_supervisor_choose_hosts(&s, &at, now, &go), BT_ERR_IO);
    EXPECT(!go && s.heard_ns == now);
    s.hosts.answered_ns = now - 3 * BT_NS_PER_S; /* too long ago */
    EXPECT_EQ(bt_supervisor_choose_hosts(&s, &at, now, &go), BT_ERR_IO);
    s.hosts.answered_ns = now - BT_NS_PER_S;
    EXPECT_EQ(bt_supervisor_choose_hosts(&s, &at, now, &go), BT_OK); /* known, but early */
    EXPECT(!go && s.hosts.answered_ns != 0);

    s.hosts.asked_ns = now;
    bt_supervisor_watch_hosts(&s, now + 9 * BT_NS_PER_S);
    EXPECT_EQ(s.hosts.asked_ns, now); /* all answer */
    s.hosts.at[1].answers = false;
    bt_supervisor_watch_hosts(&s, now + 4 * BT_NS_PER_S);
    EXPECT_EQ(s.hosts.asked_ns, now);
    s.draining = true;
    bt_supervisor_watch_hosts(&s, now + 9 * BT_NS_PER_S);
    EXPECT_EQ(s.hosts.asked_ns, now);
    s.draining = false;
    bt_supervisor_watch_hosts(&s, now + 9 * BT_NS_PER_S);
    EXPECT_EQ(s.hosts.asked_ns, now + 9 * BT_NS_PER_S);

    s.has_served     = false; /* the first start stands still */
    s.phase          = LOADING;
    s.heard_ns       = now;
    s.hosts.asked_ns = 0;
    bt_supervisor_watch_hosts(&s, now + 7 * BT_NS_PER_S);
    EXPECT_EQ(s.hosts.asked_ns, 0);
    bt_supervisor_watch_hosts(&s, now + 9 * BT_NS_PER_S);
    EXPECT_EQ(s.hosts.asked_ns, now + 9 * BT_NS_PER_S);
    bt_supervisor_watch_hosts(&s, now + 99 * BT_NS_PER_S); /* once */
    EXPECT_EQ(s.hosts.asked_ns, now + 9 * BT_NS_PER_S);
    bt_supervisor_forget_hosts(&s);
}

/* What a host has answered before is no answer. */
static void hosts_that_are_asked_again_must_answer_again(void)
{
    static const uint32_t LIMITS_S[] = {10, 20, 40, 60, 60};
    supervisor            s;
    uint64_t              at = 0;
    bool                  go;
    char                  text[256];

    begin(&s);
    answer(&s, true, LINES("n1 ok", "n3 ok"));
    s.hosts.answered_ns = 0;
    s.hosts.asked_ns    = 0;
    s.phase             = SERVING;
    bt_supervisor_watch_hosts(&s, 9 * BT_NS_PER_S); /* the one that is left out */
    EXPECT(!s.hosts.at[0].asked && s.hosts.at[1].asked && !s.hosts.at[2].asked);
    EXPECT_EQ(bt_supervisor_choose_hosts(&s, &at, bt_now_ns(), &go), BT_ERR_IO);
    for (uint32_t i = 0; i < 3; i++)
        EXPECT(s.hosts.at[i].asked && !s.hosts.at[i].heard);
    EXPECT(bt_supervisor_silent_host(&s, text, sizeof(text)));
    EXPECT(strcmp(text, "host n1: nobody could ask it") == 0);
    EXPECT_EQ(s.hosts.limit_s, 5);
    s.hosts.waits = true; /* no start is possible without an answer */
    for (uint32_t i = 0; i < 5; i++) {
        EXPECT_EQ(bt_supervisor_choose_hosts(&s, &at, bt_now_ns(), &go), BT_ERR_IO);
        EXPECT_EQ(s.hosts.limit_s, LIMITS_S[i]);
    }
    bt_supervisor_forget_hosts(&s);
}

static void hosts_question_that_never_ends_is_ended(void)
{
    supervisor s;
    uint64_t   now = bt_now_ns(), at = now;
    int        status = 0;
    bool       go     = true;
    char       text[256];
    pid_t      pid = fork();

    if (pid == 0)
        for (;;)
            pause();
    begin(&s);
    s.asker.pid      = pid;
    s.hosts.asked_ns = now;
    s.hosts.limit_s  = 5;

    s.hosts.at[0].asked = true;
    EXPECT(!bt_supervisor_silent_host(&s, text, sizeof(text))); /* it may still answer */
    s.hosts.answered_ns = now;
    EXPECT_EQ(bt_supervisor_choose_hosts(&s, &at, now, &go), BT_OK);
    EXPECT(!go); /* that was the answer before */
    bt_supervisor_watch_hosts(&s, now + 7 * BT_NS_PER_S);
    usleep(50000); /* for its end */
    EXPECT_EQ(waitpid(pid, &status, WNOHANG), 0);
    bt_supervisor_watch_hosts(&s, now + 9 * BT_NS_PER_S);
    EXPECT_EQ(waitpid(pid, &status, 0), pid);
    EXPECT(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    bt_supervisor_forget_hosts(&s);
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {
        BT_TEST(hosts_that_came_into_the_file_are_used),
        BT_TEST(hosts_that_are_silent_are_left_out_until_they_answer),
        BT_TEST(hosts_of_the_first_start_are_used_whatever_they_answer),
        BT_TEST(hosts_are_asked_when_it_is_time),
        BT_TEST(hosts_that_are_asked_again_must_answer_again),
        BT_TEST(hosts_question_that_never_ends_is_ended),
    };

    return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
}

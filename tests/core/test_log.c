/* Nobody reads what is logged: the process goes on.  Each case logs in a child whose stderr is
 * full. */
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/status.h"
#include "tests/support/test.h"

enum { LINES = 5000, WAIT_S = 20 };

/* To so many bytes each, as a full disk does. */
static void bound_files(rlim_t bytes)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_FSIZE, &limit) != 0) _exit(1);
    limit.rlim_cur = bytes < limit.rlim_max ? bytes : limit.rlim_max;
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) _exit(1);
    signal(SIGXFSZ, SIG_IGN);
}

/* Logs far more than fits while nobody reads, or the file may not grow, then one line more when
 * told that there is room. */
static void log_much(int err, int go)
{
    char byte;

    dup2(err, STDERR_FILENO);
    bt_log_init("test", BT_LOG_INFO);
    bt_log_never_block();
    for (int i = 0; i < LINES; i++)
        BT_INFO("line %d of many, which together are more than any pipe holds", i);
    if (write(go, "x", 1) != 1 || read(go, &byte, 1) != 1) _exit(1);
    bound_files(RLIM_INFINITY);
    BT_INFO("the last line");
    _exit(0);
}

static bool comes(int fd)
{
    struct pollfd p = {fd, POLLIN, 0};

    return poll(&p, 1, WAIT_S * 1000) == 1;
}

/* What stands in text up to the end of the child's writing, and how many of the lines. */
static uint32_t count_lines(const char *text)
{
    uint32_t n = 0;

    for (const char *at = text; (at = strstr(at, " of many")) != NULL; at++)
        n++;
    return n;
}

static void read_all(int fd, char *text, size_t capacity)
{
    size_t  n = strlen(text);
    ssize_t some;

    while (n + 1 < capacity && (some = read(fd, text + n, capacity - 1 - n)) > 0)
        n += (size_t)some;
    text[n] = '\0';
}

static void expect_lost(const char *text, uint32_t n)
{
    const char *lost = strstr(text, " lines before the last were lost");

    EXPECT(lost != NULL);
    while (lost != NULL && lost[-1] >= '0' && lost[-1] <= '9')
        lost--;
    if (lost != NULL) EXPECT_EQ((uint32_t)strtoul(lost, NULL, 10), n);
}

static void never_waits(int ours, int theirs)
{
    static char text[1 << 21];
    int         go[2], status = -1;
    pid_t       child;
    char        byte;
    bool        done;

    text[0] = '\0';
    EXPECT(socketpair(AF_UNIX, SOCK_STREAM, 0, go) == 0);
    child = fork();
    if (child == 0) log_much(theirs, go[1]);
    close(theirs);
    done = comes(go[0]); /* it has not waited for a reader */
    EXPECT(done);
    if (!done) kill(child, SIGKILL);
    EXPECT(!done || read(go[0], &byte, 1) == 1);
    fcntl(ours, F_SETFL, O_NONBLOCK);
    read_all(ours, text, sizeof(text));
    fcntl(ours, F_SETFL, 0);
    EXPECT(!done || write(go[0], "x", 1) == 1);
    EXPECT(waitpid(child, &status, 0) == child && status == 0);
    read_all(ours, text, sizeof(text));
    EXPECT_HAS(text, "line 0 of many");
    EXPECT_HAS(text, "the last line");
    expect_lost(text, LINES - count_lines(text));
    close(ours);
    close(go[0]);
    close(go[1]);
}

static void full_pipe_loses_lines_and_says_how_many(void)
{
    int ends[2];

    EXPECT(pipe(ends) == 0);
    never_waits(ends[0], ends[1]);
}

static void full_socket_loses_lines_and_says_how_many(void)
{
    int ends[2];

    EXPECT(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    never_waits(ends[0], ends[1]);
}

static void others_of_the_pipe_still_wait(void)
{
    int   ends[2], status = -1;
    pid_t child;

    EXPECT(pipe(ends) == 0);
    child = fork();
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        bt_log_never_block();
        _exit(fcntl(STDERR_FILENO, F_GETFL) & O_NONBLOCK ? 1 : 0);
    }
    EXPECT(waitpid(child, &status, 0) == child && status == 0);
    EXPECT((fcntl(ends[1], F_GETFL) & O_NONBLOCK) == 0);
    close(ends[0]);
    close(ends[1]);
}

/* What a child's log leaves of a file; bytes: how long it may be until there is room again. */
static void log_to_file(rlim_t bytes, char *text, size_t capacity)
{
    char  path[] = "/tmp/bt-log-XXXXXX";
    int   fd = mkstemp(path), go[2], status = -1;
    pid_t child;
    char  byte;

    text[0] = '\0';
    EXPECT(fd >= 0 && unlink(path) == 0);
    EXPECT(socketpair(AF_UNIX, SOCK_STREAM, 0, go) == 0);
    child = fork();
    if (child == 0) {
        bound_files(bytes);
        log_much(fd, go[1]);
    }
    EXPECT(read(go[0], &byte, 1) == 1 && write(go[0], "x", 1) == 1);
    EXPECT(waitpid(child, &status, 0) == child && status == 0);
    lseek(fd, 0, SEEK_SET);
    read_all(fd, text, capacity);
    close(fd);
    close(go[0]);
    close(go[1]);
}

static void file_keeps_every_line(void)
{
    static char text[1 << 21];

    log_to_file(RLIM_INFINITY, text, sizeof(text));
    EXPECT_EQ(count_lines(text), LINES);
    EXPECT(strstr(text, "were lost") == NULL);
}

/* The line that was begun is one of them: the disk was full within it. */
static void full_disk_loses_lines_and_says_how_many(void)
{
    static char text[1 << 21];
    const char *torn;

    log_to_file(10000, text, sizeof(text));
    EXPECT_HAS(text, "the last line\n");
    torn = text + 10000;
    EXPECT(count_lines(text) > 10 && strlen(text) > 10000 && torn[-1] != '\n');
    expect_lost(text, LINES - count_lines(text));
}

/* One place floods, another says a line now and then. */
static void log_from_two_places(int err)
{
    struct timespec pause = {0, 100 * 1000000};
    uint64_t        start = 0;

    dup2(err, STDERR_FILENO);
    bt_log_init("test", BT_LOG_INFO);
    bt_log_bound();
    for (int i = 0; i <= LINES; i++) {
        if (i == LINES) {
            BT_INFO("another place at once, after %llu ns",
                    (unsigned long long)(bt_now_ns() - start));
        }
        if (i == 1 || i == LINES) nanosleep(&pause, NULL);
        if (i == 1) start = bt_now_ns(); /* a pause saves up no lines */
        BT_INFO("line %d of many", i);
        bt_log_tell_omitted(bt_now_ns());
    }
    BT_INFO("the line\nof %s place",
            "another\x1b[2J~\x7f"); /* as a file or a peer may name things */
    BT_INFO("C1 %s, breaks %s, order %s, and %s", "\xc2\x85\xc2\x9b[2J\xc2\x9f\u00a0",
            "\u2028\u2029", "\u202a\u202e\u2066\u2069",
            "\u00e9\u2027\u202f\u2065\u206a\u4f60\U0001f600");
    BT_INFO("%s\xe2", "\xc2\x9b[2J"); /* and what a cut has left of one */
    bt_log_tell_omitted(UINT64_MAX);
    _exit(0);
}

/* As the lines about them say, one each second. */
static uint32_t count_left_out(const char *text, uint32_t *n_lines_out)
{
    static const char SAYS[] = " lines of this place were left out: more than 100 a second";
    uint32_t          n      = 0;

    for (const char *at = text; (at = strstr(at, SAYS)) != NULL; at++) {
        const char *number = at;

        while (number > text && number[-1] != ' ')
            number--;
        n += (uint32_t)strtoul(number, NULL, 10);
        (*n_lines_out)++;
    }
    return n;
}

/* What a process that writes too many lines has put into its log; returns how many there are. */
static uint32_t written_by(void (*write_to)(int err), char *text, size_t capacity)
{
    char     path[] = "/tmp/bt-log-XXXXXX";
    int      fd = mkstemp(path), status = -1;
    uint32_t n;
    pid_t    child;

    text[0] = '\0';
    EXPECT(fd >= 0 && unlink(path) == 0);
    child = fork();
    if (child == 0) write_to(fd);
    EXPECT(waitpid(child, &status, 0) == child && status == 0);
    lseek(fd, 0, SEEK_SET);
    read_all(fd, text, capacity);
    n = count_lines(text);
    EXPECT(n > BT_LOG_BURST && n < LINES - 100);
    close(fd);
    return n;
}

static void bound_place_leaves_out_lines_and_says_how_many(void)
{
    static char text[1 << 21];
    const char *flood;
    uint32_t    n = written_by(log_from_two_places, text, sizeof(text)), n_told = 0;
    uint64_t    took_ns;

    flood = strstr(text, "another place at once, after ");
    EXPECT(flood != NULL);
    took_ns = flood != NULL ? strtoull(flood + 29, NULL, 10) : 0;
    EXPECT(n <= BT_LOG_BURST + 3 + took_ns * BT_LOG_RATE / BT_NS_PER_S);
    EXPECT_HAS(text, "the line?of another?[2J~? place\n");
    EXPECT_HAS(text, "C1 ????[2J??\u00a0, breaks ??????, order ????????????, and "
                     "\u00e9\u2027\u202f\u2065\u206a\u4f60\U0001f600\n");
    EXPECT_HAS(text, " ??[2J\xe2\n");
    EXPECT_EQ(count_left_out(text, &n_told), LINES + 1 - n);
    EXPECT(n_told >= 1 && n_told <= 2 + took_ns / BT_NS_PER_S); /* and at the end */
}

/* Of more places than are told apart, the last ones share what a place may write; a line too long
 * ends as one. */
static void log_from_many_places(int err)
{
    char file[1024];

    dup2(err, STDERR_FILENO);
    bt_log_init("test", BT_LOG_INFO);
    memset(file, 'f', sizeof(file));
    memcpy(file + sizeof(file) - 3, ".c", 3);
    bt_log_write(BT_LOG_INFO, file, 1, "cut off");
    bt_log_bound();
    for (int i = 0; i < LINES; i++)
        bt_log_write(BT_LOG_INFO, "places.c", i, "line %d of many", i);
    _exit(0);
}

static void places_without_number_are_bound_together(void)
{
    static char text[1 << 21];

    written_by(log_from_many_places, text, sizeof(text));
    EXPECT(strcspn(text, "\n") > 1000);
    EXPECT_HAS(strchr(text, '\n'), "places.c:0 line 0 of many\n");
}

static void *flood(void *unused)
{
    for (int i = 0; i < LINES; i++)
        BT_INFO("line %d of many", i);
    return unused;
}

static void log_from_threads_at_one_place(int err)
{
    struct timespec pause = {0, 100 * 1000000};
    pthread_t       threads[4];
    uint64_t        start = bt_now_ns();

    dup2(err, STDERR_FILENO);
    bt_log_init("test", BT_LOG_INFO);
    bt_log_bound();
    for (int i = 0; i < 4; i++)
        if (pthread_create(&threads[i], NULL, flood, NULL) != 0) _exit(1);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    nanosleep(&pause, NULL);
    flood(NULL);
    BT_INFO("all after %llu ns", (unsigned long long)(bt_now_ns() - start));
    _exit(0);
}

/* Who looks at the clock first need not be the first to be let in. */
static void place_of_many_threads_is_bound_too(void)
{
    static char text[1 << 21];
    uint32_t    n  = written_by(log_from_threads_at_one_place, text, sizeof(text));
    const char *ns = strstr(text, "all after ");

    EXPECT(ns != NULL);
    if (ns != NULL)
        EXPECT(n <= BT_LOG_BURST + 1 + strtoull(ns + 10, NULL, 10) * BT_LOG_RATE / BT_NS_PER_S);
}

static void out_of_memory_names_the_limit_of_the_shell(void)
{
    struct rlimit limit, before;

    EXPECT(strcmp(bt_status_head(BT_ERR_NO_MEMORY), "out of host or device memory") == 0);
    EXPECT_EQ(getrlimit(RLIMIT_AS, &before), 0);
    limit          = before;
    limit.rlim_cur = 999999999999 * 1024;
    EXPECT_EQ(setrlimit(RLIMIT_AS, &limit), 0);
    bt_error_keep(bt_status_head(BT_ERR_NO_MEMORY), "a page");
    EXPECT_EQ(setrlimit(RLIMIT_AS, &before), 0);
    EXPECT(strcmp(bt_error_text(),
                  "out of host or device memory (`ulimit -v` is 999999999999): a page") == 0);
}

static void error_text_is_printable_too(void)
{
    bt_error_keep("", "%s\xe2", "\xc2\x9b[2J");
    EXPECT(strcmp(bt_error_text(), "??[2J\xe2") == 0);
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {
        BT_TEST(full_pipe_loses_lines_and_says_how_many),
        BT_TEST(full_socket_loses_lines_and_says_how_many),
        BT_TEST(others_of_the_pipe_still_wait),
        BT_TEST(file_keeps_every_line),
        BT_TEST(full_disk_loses_lines_and_says_how_many),
        BT_TEST(bound_place_leaves_out_lines_and_says_how_many),
        BT_TEST(places_without_number_are_bound_together),
        BT_TEST(place_of_many_threads_is_bound_too),
        BT_TEST(out_of_memory_names_the_limit_of_the_shell),
        BT_TEST(error_text_is_printable_too),
    };

    return bt_run_tests(TESTS, sizeof(TESTS) / sizeof(TESTS[0]), argc > 1 ? argv[1] : NULL);
}

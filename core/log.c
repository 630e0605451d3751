#include "core/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { LINE_BYTES = 1024, TEXT_BYTES = 640 };

static char                   g_who[32]   = "-";
static bt_log_level           g_max_level = BT_LOG_INFO;
static int                    g_fd        = STDERR_FILENO;
static bool                   g_is_socket; /* that must not block */
static atomic_ullong          g_n_dropped;
static _Thread_local uint64_t t_request;
static _Thread_local char     t_error[TEXT_BYTES];

void bt_log_init(const char *who, bt_log_level max_level)
{
    snprintf(g_who, sizeof(g_who), "%s", who);
    g_max_level = max_level;
}

/* The pipe or terminal is opened anew: O_NONBLOCK belongs to what others have open as well. */
void bt_log_never_block(void)
{
    struct stat info;
    int         fd = -1;

    if (fstat(STDERR_FILENO, &info) != 0) return;
    g_is_socket = S_ISSOCK(info.st_mode);
    if (S_ISFIFO(info.st_mode) || isatty(STDERR_FILENO))
        fd = open("/proc/self/fd/2", O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd >= 0) g_fd = fd;
}

void bt_log_set_request(uint64_t request) { t_request = request; }

const char *bt_error_text(void) { return t_error; }

/* The path from the source root: __FILE__ is absolute when the build is out of tree. */
static const char *short_path(const char *file)
{
    const char *last = strrchr(file, '/'), *p = last;

    if (last == NULL) return file;
    while (p > file && p[-1] != '/')
        p--;
    return p;
}

/* False when the write would have to wait. */
static bool put(const char *buf, size_t n)
{
    ssize_t done =
        g_is_socket ? send(g_fd, buf, n, MSG_DONTWAIT | MSG_NOSIGNAL) : write(g_fd, buf, n);

    return done >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
}

/* Returns how many bytes the line has. */
static size_t make_line(bt_log_level level, const char *file, int line, const char *text,
                        char buf[LINE_BYTES])
{
    char            req[32] = "-";
    struct timespec now;
    struct tm       tm;
    int             n;

    clock_gettime(CLOCK_REALTIME, &now);
    localtime_r(&now.tv_sec, &tm);
    if (t_request != 0) snprintf(req, sizeof(req), "req=%llu", (unsigned long long)t_request);
    n = snprintf(buf, LINE_BYTES, "%02d:%02d:%02d.%03ld %c %s %s %s:%d %s\n", tm.tm_hour, tm.tm_min,
                 tm.tm_sec, now.tv_nsec / 1000000, "EWID"[level], g_who, req, short_path(file),
                 line, text);
    if (n >= LINE_BYTES) {
        n          = LINE_BYTES;
        buf[n - 1] = '\n';
    }
    return (size_t)n;
}

void bt_log_pass_on(const char *text, size_t n_bytes)
{
    unsigned long long before = atomic_load(&g_n_dropped), n;
    char               lost[96], buf[LINE_BYTES];

    if (!put(text, n_bytes)) {
        atomic_fetch_add(&g_n_dropped, 1);
        return;
    }
    if (before == 0) return;
    n = atomic_exchange(&g_n_dropped, 0);
    snprintf(lost, sizeof(lost), "%llu lines before the last were lost: nobody read them", n);
    if (n > 0 && !put(buf, make_line(BT_LOG_WARN, __FILE__, __LINE__, lost, buf)))
        atomic_fetch_add(&g_n_dropped, 1);
}

static void write_line(bt_log_level level, const char *file, int line, const char *text)
{
    char buf[LINE_BYTES];

    bt_log_pass_on(buf, make_line(level, file, line, text, buf));
}

void bt_log_write(bt_log_level level, const char *file, int line, const char *fmt, ...)
{
    char    text[TEXT_BYTES];
    va_list ap;

    if (level > g_max_level) return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    write_line(level, file, line, text);
}

void bt_log_error(const char *file, int line, const char *what, const char *fmt, ...)
{
    char    text[TEXT_BYTES - 64];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    snprintf(t_error, sizeof(t_error), "%.60s: %s", what, text);
    write_line(BT_LOG_ERROR, file, line, t_error);
}

void bt_assert_failed(const char *file, int line, const char *cond)
{
    bt_log_error(file, line, "bug", "%s is false", cond);
    abort();
}

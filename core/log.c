#include "core/log.h"

#include <errno.h>
#include <pthread.h>
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

#include "core/clock.h"
#include "core/file.h"

enum { LINE_BYTES = 1024, TEXT_BYTES = 640, N_PLACES = 256 };

/* A place in the code that writes lines. */
typedef struct {
    const char *file; /* NULL: not taken */
    int         line;
    double      n_left;   /* lines that it may still write */
    uint64_t    since_ns; /* when n_left was right */
    uint64_t    n_omitted;
} place;

static char                   g_who[32]   = "-";
static bt_log_level           g_max_level = BT_LOG_INFO;
static int                    g_fd        = STDERR_FILENO;
static bool                   g_is_verb;
static bool                   g_is_socket; /* that must not block */
static atomic_ullong          g_n_dropped;
static bool                   g_is_bound;
static pthread_mutex_t        g_places_lock = PTHREAD_MUTEX_INITIALIZER;
static place                  g_places[N_PLACES]; /* in the order of their first line */
static _Thread_local uint64_t t_request;
static _Thread_local char     t_error[TEXT_BYTES];

void bt_log_init(const char *who, bt_log_level max_level)
{
    snprintf(g_who, sizeof(g_who), "%s", who);
    g_max_level = max_level;
    g_is_verb   = false;
}

void bt_log_init_verb(const char *who, bt_log_level max_level)
{
    bt_log_init(who, max_level);
    g_is_verb = true;
}

bool bt_log_is_verb(void) { return g_is_verb; }

void bt_log_never_block(void)
{
    struct stat info;
    int         fd;

    if (fstat(STDERR_FILENO, &info) != 0) return;
    g_is_socket = S_ISSOCK(info.st_mode);
    fd          = bt_open_never_blocking(STDERR_FILENO);
    if (fd >= 0) g_fd = fd;
}

void bt_log_bound(void) { g_is_bound = true; }

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

/* False when it has not gone out as a whole: it would have to wait, or the disk is full. */
static bool put(const char *buf, size_t n)
{
    ssize_t done =
        g_is_socket ? send(g_fd, buf, n, MSG_DONTWAIT | MSG_NOSIGNAL) : write(g_fd, buf, n);

    return done == (ssize_t)n;
}

/* Returns how many bytes the line has. */
static size_t make_line(bt_log_level level, const char *file, int line, const char *text,
                        char buf[LINE_BYTES])
{
    char            req[32] = "-", when[32];
    struct timespec now;
    struct tm       tm;
    int             n;

    clock_gettime(CLOCK_REALTIME, &now);
    localtime_r(&now.tv_sec, &tm);
    strftime(when, sizeof(when), "%Y-%m-%d %H:%M:%S", &tm);
    if (t_request != 0) snprintf(req, sizeof(req), "req=%llu", (unsigned long long)t_request);
    if (g_is_verb)
        n = snprintf(buf, LINE_BYTES, "baton %s: %s\n", g_who, text);
    else
        n = snprintf(buf, LINE_BYTES, "%s.%03ld %c %s %s %s:%d %s\n", when, now.tv_nsec / 1000000,
                     "EWID"[level], g_who, req, short_path(file), line, text);
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
    snprintf(lost, sizeof(lost), "%llu lines before the last were lost: there was no room for them",
             n);
    if (n > 0 && !put(buf, make_line(BT_LOG_WARN, __FILE__, __LINE__, lost, buf)))
        atomic_fetch_add(&g_n_dropped, 1);
}

/* The last one serves all that come after it. */
static place *find_place(const char *file, int line)
{
    place *p = g_places, *last = g_places + N_PLACES - 1;

    while (p < last && p->file != NULL && (p->file != file || p->line != line))
        p++;
    if (p->file == NULL) *p = (place){.file = file, .line = line, .n_left = BT_LOG_BURST};
    return p;
}

/* Whether the place may write a line now. */
static bool may_write(const char *file, int line)
{
    uint64_t now;
    bool     may;
    place   *p;

    if (!g_is_bound) return true;
    pthread_mutex_lock(&g_places_lock);
    p   = find_place(file, line);
    now = bt_now_ns(); /* under the lock: never before since_ns */
    if (p->since_ns != 0) p->n_left += (double)(now - p->since_ns) * 1e-9 * BT_LOG_RATE;
    if (p->n_left > BT_LOG_BURST) p->n_left = BT_LOG_BURST;
    p->since_ns = now;
    may         = p->n_left >= 1;
    if (may)
        p->n_left -= 1;
    else
        p->n_omitted++;
    pthread_mutex_unlock(&g_places_lock);
    return may;
}

static void write_line(bt_log_level level, const char *file, int line, const char *text)
{
    char buf[LINE_BYTES];

    if (may_write(file, line)) bt_log_pass_on(buf, make_line(level, file, line, text, buf));
}

void bt_log_tell_omitted(uint64_t now_ns)
{
    static uint64_t told_ns; /* the caller's thread only */
    char            buf[LINE_BYTES], text[96];

    if (now_ns - told_ns < BT_NS_PER_S) return;
    told_ns = now_ns;
    for (int i = 0; i < N_PLACES; i++) {
        place p;

        pthread_mutex_lock(&g_places_lock);
        p                     = g_places[i];
        g_places[i].n_omitted = 0;
        pthread_mutex_unlock(&g_places_lock);
        if (p.n_omitted == 0) continue;
        snprintf(text, sizeof(text),
                 "%llu lines of this place were left out: more than %d a second",
                 (unsigned long long)p.n_omitted, BT_LOG_RATE);
        bt_log_pass_on(buf, make_line(BT_LOG_WARN, p.file, p.line, text, buf));
    }
}

/* How many bytes of the text are one character that controls a terminal, breaks a line (U+2028 and
 * U+2029) or turns what follows around (U+202A to U+202E, U+2066 to U+2069). */
static size_t n_control(const char *text)
{
    const unsigned char *at = (const unsigned char *)text;

    if (at[0] < 0x20 || at[0] == 0x7f) return 1;
    if (at[0] == 0xc2 && at[1] >= 0x80 && at[1] <= 0x9f) return 2; /* U+0080 to U+009F */
    if (at[0] == 0xe2 && at[1] == 0x80 && at[2] >= 0xa8 && at[2] <= 0xae) return 3;
    if (at[0] == 0xe2 && at[1] == 0x81 && at[2] >= 0xa6 && at[2] <= 0xa9) return 3;
    return 0;
}

/* Whatever files and peers have named, a line stays one, and a terminal that shows it as it was. */
static void make_printable(char *text)
{
    for (; *text != '\0'; text++)
        for (size_t n = n_control(text); n > 0; n--)
            text[n - 1] = '?';
}

void bt_log_write(bt_log_level level, const char *file, int line, const char *fmt, ...)
{
    char    text[TEXT_BYTES];
    va_list ap;

    if (level > g_max_level) return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    make_printable(text);
    write_line(level, file, line, text);
}

static void keep_error(const char *what, const char *fmt, va_list ap)
{
    char text[TEXT_BYTES - 64];

    vsnprintf(text, sizeof(text), fmt, ap);
    snprintf(t_error, sizeof(t_error), "%.60s%s%s", what, what[0] != 0 ? ": " : "", text);
    make_printable(t_error);
}

void bt_error_keep(const char *what, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    keep_error(what, fmt, ap);
    va_end(ap);
}

void bt_log_error(const char *file, int line, const char *what, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    keep_error(what, fmt, ap);
    va_end(ap);
    write_line(BT_LOG_ERROR, file, line, t_error);
}

void bt_assert_failed(const char *file, int line, const char *cond)
{
    bt_log_error(file, line, "bug", "%s is false", cond);
    abort();
}

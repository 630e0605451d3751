#include "launch/endings.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char VARIABLE[] = "BT_RANK_ENDINGS";
static const char LINE[]     = "baton-launch: a rank has ended with ";
enum { LINE_BYTES = sizeof(LINE) + sizeof("255\n") }; /* with its code */

static struct {
    int      fd; /* of the lines; 0: there is a file, or nothing */
    size_t   n;
    char     buf[4096 + 1]; /* a line that is not complete, and room for its end */
    long     at;            /* of the file: what has been read */
    uint32_t count, n_well;
    int      code; /* as bt_endings_code() */
} heard;

bt_status bt_endings_provide(const char *directory)
{
    bt_status st = BT_OK;
    char      path[PATH_MAX];
    int       fd;

    unsetenv(VARIABLE);
    if (directory == NULL) return BT_OK;
    snprintf(path, sizeof(path), "%s/endings", directory);
    fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    BT_REQUIRE(fd >= 0, BT_ERR_IO, "%s: %s", path, strerror(errno));
    close(fd);
    setenv(VARIABLE, path, 1);
out:
    return st;
}

int bt_endings_listen(void)
{
    int ends[2];

    if (pipe2(ends, O_CLOEXEC) != 0) return -1;
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    heard.fd = ends[0];
    return ends[1];
}

static void take(int code)
{
    if (heard.count++ == 0 || code == 0) heard.code = code;
    heard.n_well += code == 0;
}

/* Before a parent's word may stand what its rank has written without a newline.  What another rank
 * has written may stand inside it: that is text, since the code is not to be had. */
static void take_line(const char *line, size_t n)
{
    const char *told = line, *code;
    size_t      n_digits;

    while ((told = memmem(told, n - (size_t)(told - line), LINE, sizeof(LINE) - 1)) != NULL) {
        code     = told + sizeof(LINE) - 1;
        n_digits = strspn(code, "0123456789");
        if (n_digits > 0 && (code[n_digits] == '\n' || code[n_digits] == '\0')) break;
        told = code;
    }
    fwrite(line, 1, told != NULL ? (size_t)(told - line) : n, stdout);
    if (told != NULL) take(atoi(code));
}

/* Compilers that check lengths (_FORTIFY_SOURCE=3) take it for one that may wrap, but for the
 * assertion. */
static ssize_t hear_bytes(size_t room)
{
    BT_ASSERT(heard.n < room);
    return read(heard.fd, heard.buf + heard.n, room - heard.n);
}

static void hear_lines(void)
{
    const size_t room = sizeof(heard.buf) - 1;
    ssize_t      got;

    if (heard.fd <= 0) return;
    while ((got = hear_bytes(room)) > 0 || (got < 0 && errno == EINTR)) {
        char *begin = heard.buf, *end;

        if (got < 0) continue;
        heard.n += (size_t)got;
        while ((end = memchr(begin, '\n', heard.n - (size_t)(begin - heard.buf))) != NULL) {
            take_line(begin, (size_t)(end + 1 - begin));
            begin = end + 1;
        }
        heard.n -= (size_t)(begin - heard.buf);
        memmove(heard.buf, begin, heard.n);
        if (heard.n < room) continue;
        /* A longer line goes in pieces; a parent's word may have begun in its last bytes. */
        fwrite(heard.buf, 1, room - LINE_BYTES, stdout);
        memmove(heard.buf, heard.buf + room - LINE_BYTES, LINE_BYTES);
        heard.n = LINE_BYTES;
    }
    if (got == 0 && heard.n > 0) { /* the last line of all, without a newline */
        heard.buf[heard.n] = '\0';
        take_line(heard.buf, heard.n);
        heard.n = 0;
    }
    fflush(stdout);
}

/* Whole lines of the file that have come since the last time. */
static void hear_file(void)
{
    const char *path = getenv(VARIABLE);
    FILE       *f    = path == NULL ? NULL : fopen(path, "re");
    char        line[32];

    if (f == NULL) return;
    if (fseek(f, heard.at, SEEK_SET) == 0)
        while (fgets(line, sizeof(line), f) != NULL && strchr(line, '\n') != NULL) {
            take(atoi(line));
            heard.at = ftell(f);
        }
    fclose(f);
}

void bt_endings_hear(void)
{
    hear_lines();
    hear_file();
}

void bt_endings_note(int code, bool by_line)
{
    const char *path = getenv(VARIABLE);
    int         fd;

    if (by_line) {
        printf("%s%d\n", LINE, code);
        fflush(stdout);
        return;
    }
    fd = path == NULL ? -1 : open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
    if (fd < 0) return;        /* removed: nobody would remove a new one */
    dprintf(fd, "%d\n", code); /* where that fails the launcher takes the rank for lost */
    close(fd);
}

uint32_t bt_endings_count(uint32_t *n_well_out)
{
    *n_well_out = heard.n_well;
    return heard.count;
}

int bt_endings_code(void)
{
    if (getenv(VARIABLE) == NULL && heard.fd == 0) return 0;
    return heard.count == 0 ? 1 : heard.code;
}

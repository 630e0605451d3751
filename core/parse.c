#include "core/parse.h"

#include <argp.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/file.h"

enum { HOST_MAX = 253 /* of DNS */, SLOTS_MAX = 65536, PIECE_BYTES = 64 };

bool bt_parse_bytes(const char *text, uint64_t *bytes_out)
{
    static const char  SUFFIXES[] = "KMGT";
    char              *end        = NULL;
    unsigned long long value;
    const char        *suffix;
    unsigned           shift = 0;

    if (text[0] < '0' || text[0] > '9') return false; /* strtoull takes signs and blanks */
    errno = 0;
    value = strtoull(text, &end, 10);
    if (errno != 0) return false;
    if (*end != '\0') {
        suffix = strchr(SUFFIXES, *end >= 'a' && *end <= 'z' ? *end - 'a' + 'A' : *end);
        if (suffix == NULL || end[1] != '\0') return false;
        shift = 10 * (unsigned)(suffix - SUFFIXES + 1);
    }
    if (shift != 0 && value >> (64 - shift) != 0) return false;
    *bytes_out = (uint64_t)value << shift;
    return true;
}

bool bt_parse_address(const char *text)
{
    const char *colon  = strrchr(text, ':'), *end;
    size_t      n_host = colon == NULL ? 0 : (size_t)(colon - text), n_digits;
    bool        bare   = memchr(text, ':', n_host) == NULL; /* no IPv6 address */
    unsigned    port   = 0;

    if (n_host == 0 || n_host > HOST_MAX || strpbrk(text, " \t\r\n/") != NULL) return false;
    if (!bare && (text[0] != '[' || colon[-1] != ']')) return false;
    n_digits = strspn(colon + 1, "0123456789");
    end      = colon + 1 + n_digits;
    if (n_digits == 0 || n_digits > 5 || *end != '\0') return false;
    for (const char *p = colon + 1; p < end; p++)
        port = 10 * port + (unsigned)(*p - '0');
    return port <= UINT16_MAX;
}

const char *bt_split_address(const char *address, char host_out[BT_ADDRESS_BYTES])
{
    const char *colon    = strrchr(address, ':');
    int         brackets = address[0] == '[';

    snprintf(host_out, BT_ADDRESS_BYTES, "%.*s", (int)(colon - address) - 2 * brackets,
             address + brackets);
    return colon + 1;
}

void bt_join_address(const char *host, uint16_t port, char address_out[BT_ADDRESS_BYTES])
{
    bool bracket = strchr(host, ':') != NULL && host[0] != '[';

    snprintf(address_out, BT_ADDRESS_BYTES, "%s%.*s%s:%u", bracket ? "[" : "",
             bracket ? BT_HOST_MAX : HOST_MAX, host, bracket ? "]" : "", port);
}

bool bt_parse_host(const char *name, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (name[i] <= ' ' || name[i] > '~' || name[i] == ',' || name[i] == ':') return false;
    return n > 0 && n <= HOST_MAX && name[0] != '-';
}

bool bt_parse_hosts(const char *list)
{
    for (;;) {
        size_t  n = strcspn(list, ",:");
        int64_t slots;

        if (!bt_parse_host(list, n)) return false;
        list += n;
        if (*list == ':') {
            list++;
            if (!bt_parse_whole_in(&list, ",", 1, SLOTS_MAX, &slots)) return false;
        }
        if (*list++ == '\0') return true;
    }
}

bool bt_parse_name(const char *text)
{
    return text[strspn(text, " \t\r\n")] != '\0' && strncmp(text, "--", 2) != 0;
}

/* strtoll and strtod take blanks, a '+', hexadecimal digits, and words like "nan" too. */
static bool is_number(const char *text)
{
    const char *p = text + (text[0] == '-');

    return ((*p >= '0' && *p <= '9') || *p == '.') && p[strspn(p, "0123456789.eE+-")] == '\0';
}

const char *bt_parse_hint(const char *text)
{
    return is_number(text) ? "" : " (decimal digits, and no blanks)";
}

bool bt_parse_whole(const char *text, int64_t least, int64_t most, int64_t *n_out)
{
    char   *end = NULL;
    int64_t n;

    if (!is_number(text)) return false;
    errno = 0;
    n     = strtoll(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || n < least || n > most) return false;
    *n_out = n;
    return true;
}

bool bt_parse_real(const char *text, double least, double most, double *x_out)
{
    char  *end = NULL;
    double x;

    if (!is_number(text)) return false;
    x = strtod(text, &end);
    if (end == text || *end != '\0' || !(x >= least && x <= most)) return false;
    *x_out = x;
    return true;
}

/* No number is longer. */
static bool take_piece(const char **text, const char *ends, char buf[PIECE_BYTES])
{
    size_t n = strcspn(*text, ends);

    if (n >= PIECE_BYTES) return false;
    memcpy(buf, *text, n);
    buf[n] = '\0';
    *text += n;
    return true;
}

bool bt_parse_whole_in(const char **text, const char *ends, int64_t least, int64_t most,
                       int64_t *n_out)
{
    char piece[PIECE_BYTES];

    return take_piece(text, ends, piece) && bt_parse_whole(piece, least, most, n_out);
}

bool bt_parse_real_in(const char **text, const char *ends, double least, double most, double *x_out)
{
    char piece[PIECE_BYTES];

    return take_piece(text, ends, piece) && bt_parse_real(piece, least, most, x_out);
}

int64_t bt_option_number(struct argp_state *state, const char *option, const char *arg,
                         int64_t least, int64_t most)
{
    int64_t n = least;

    if (!bt_parse_whole(arg, least, most, &n))
        argp_error(state, "%s must be a whole number from %" PRId64 " to %" PRId64 ", not \"%s\"%s",
                   option, least, most, arg, bt_parse_hint(arg));
    return n;
}

double bt_option_real(struct argp_state *state, const char *option, const char *arg, double least,
                      double most)
{
    double x = least;

    if (!bt_parse_real(arg, least, most, &x))
        argp_error(state, "%s must be a number from %g to %g, not \"%s\"%s", option, least, most,
                   arg, bt_parse_hint(arg));
    return x;
}

const char *bt_option_address(struct argp_state *state, const char *option, const char *arg)
{
    if (bt_parse_address(arg)) return arg;
    argp_error(state, "%s is \"%s\", expected HOST:PORT%s", option, arg,
               strchr(arg, ':') != strrchr(arg, ':') ? ", an IPv6 host in brackets: [::1]:8000"
                                                     : "");
    return arg;
}

const char *bt_option_name(struct argp_state *state, const char *option, const char *what,
                           const char *arg)
{
    if (!bt_parse_name(arg)) argp_error(state, "%s is \"%s\", expected %s", option, arg, what);
    return arg;
}

const char *bt_option_model(struct argp_state *state, const char *option, const char *arg)
{
    struct stat info;

    bt_option_name(state, option, "a directory", arg);
    if (stat(arg, &info) == 0 && S_ISREG(info.st_mode))
        argp_error(state,
                   "%s is \"%s\", expected a directory, found a file (of a GGUF file `baton "
                   "convert` makes one)",
                   option, arg);
    return arg;
}

void bt_option_hosts(struct argp_state *state, const char *option, const char *list)
{
    if (!bt_parse_hosts(list))
        argp_error(state, "%s is \"%s\", expected names like node1:8,node2:8, slots from 1 to %d",
                   option, list, SLOTS_MAX);
}

/* mpirun -q (launch/mpirun.c) would end without a word. */
void bt_option_hostfile(struct argp_state *state, const char *option, const char *path)
{
    const char *why;
    FILE       *f = bt_open_regular(bt_option_name(state, option, "a file", path), &why);

    if (f == NULL)
        argp_error(state, "%s %s: %s", option, path, why);
    else
        fclose(f);
}

void bt_option_slurm(struct argp_state *state)
{
    if (getenv("SLURM_JOB_ID") == NULL)
        argp_error(state, "--slurm works inside a Slurm job only: SLURM_JOB_ID is not set");
}

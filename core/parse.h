/* core/parse.h - what options of several programs mean, so that all of them read it alike. */
#ifndef BT_CORE_PARSE_H
#define BT_CORE_PARSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* "512M", "2g", "65536": bytes, with binary suffixes K, M, G and T of either case.  False: no such
 * number, or above 64 bits. */
bool bt_parse_bytes(const char *text, uint64_t *bytes_out);

/* HOST:PORT with a port from 0 to 65535; an IPv6 host stands in brackets, as in [::1]:8000.  With
 * its zero it takes at most BT_ADDRESS_BYTES, and what stands in brackets BT_HOST_MAX; a name may
 * be two bytes longer, as DNS has it. */
enum { BT_HOST_MAX = 251, BT_ADDRESS_BYTES = BT_HOST_MAX + sizeof("[]:65535") };
bool bt_parse_address(const char *text);
/* Its host, without brackets; returns its port, as it stands there. */
const char *bt_split_address(const char *address, char host_out[BT_ADDRESS_BYTES]);
/* The address of a host, brackets or not: an IPv6 one gets them. */
void bt_join_address(const char *host, uint16_t port, char address_out[BT_ADDRESS_BYTES]);

/* The first n bytes of a string as a host's name: no option of mpirun or ssh, no list's separator.
 */
bool bt_parse_host(const char *name, size_t n);

/* "node1:8,node2": hosts, and slots from 1. */
bool bt_parse_hosts(const char *list);

/* What may name a file, a directory, an address or a cell: not blank, and no option ("--model
 * --both" lacks a value). */
bool bt_parse_name(const char *text);

/* A number from least to most, and nothing else: decimal digits, in front of them '-', for a real
 * also a point and an exponent.  No blank, no '+', no "0x10", no "nan". */
bool bt_parse_whole(const char *text, int64_t least, int64_t most, int64_t *n_out);
bool bt_parse_real(const char *text, double least, double most, double *x_out);

/* The same in a list: up to the first character of `ends`, or to the end.  *text moves there. */
bool bt_parse_whole_in(const char **text, const char *ends, int64_t least, int64_t most,
                       int64_t *n_out);
bool bt_parse_real_in(const char **text, const char *ends, double least, double most,
                      double *x_out);

/* For the message about a number: what it may not be written like, or "" when it is a number. */
const char *bt_parse_hint(const char *text);

/* Rows of argp's table of options; `arg` is NULL where there is none.  A group is a heading of
 * --help, and where it stands there; the rows after it belong to it. */
#define BT_OPTION(name, key, arg, doc) BT_OPTION_FLAGS(name, key, arg, 0, doc)
#define BT_OPTION_FLAGS(name, key, arg, flags, doc) \
    {                                               \
        name, key, arg, flags, doc, 0               \
    }
/* With a default, as text without ")": the end of its line in --help; see core/settings.h. */
#define BT_OPTION_DEFAULT(name, key, arg, by_default, doc) \
    BT_OPTION(name, key, arg, doc " (default " by_default ")")
/* A row of a group whose heading stands in another parser's table. */
#define BT_OPTION_OF(group, name, key, arg, doc) \
    {                                            \
        name, key, arg, 0, doc, group            \
    }
#define BT_OPTION_GROUP(title, group)  \
    {                                  \
        NULL, 0, NULL, 0, title, group \
    }

/* bt_parse_whole() and bt_parse_real() for the argument of an option ("--name") in argp's parse
 * function: argp_error() names the option and what was expected. */
struct argp_state;
int64_t bt_option_number(struct argp_state *state, const char *option, const char *arg,
                         int64_t least, int64_t most);
double  bt_option_real(struct argp_state *state, const char *option, const char *arg, double least,
                       double most);
/* HOST:PORT. */
const char *bt_option_address(struct argp_state *state, const char *option, const char *arg);
/* A name, whose kind `what` says: "a directory". */
const char *bt_option_name(struct argp_state *state, const char *option, const char *what,
                           const char *arg);
/* A model's directory, which a GGUF file is not. */
const char *bt_option_model(struct argp_state *state, const char *option, const char *arg);
/* Where ranks run, for baton-launch and for the verbs that start it. */
void bt_option_hosts(struct argp_state *state, const char *option, const char *list);
void bt_option_hostfile(struct argp_state *state, const char *option, const char *path);
void bt_option_slurm(struct argp_state *state);

#endif

/* core/parse.h - what options of several programs mean, so that all of them read it alike. */
#ifndef BT_CORE_PARSE_H
#define BT_CORE_PARSE_H

#include <stdbool.h>
#include <stdint.h>

/* "512M", "2g", "65536": bytes, with binary suffixes K, M, G and T of either case.  False: no such
 * number, or above 64 bits. */
bool bt_parse_bytes(const char *text, uint64_t *bytes_out);

/* HOST:PORT with a port from 0 to 65535; an IPv6 host stands in brackets, as in [::1]:8000. */
bool bt_parse_address(const char *text);

#endif

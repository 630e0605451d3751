/* model/utf8.h - characters as UTF-8.  A text may be broken; it is repaired as Rust and the Unicode
 * standard (section 3.9, "maximal subparts") do: each ill-formed part becomes one U+FFFD. */
#ifndef BT_MODEL_UTF8_H
#define BT_MODEL_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
    BT_UTF8_GOOD, /* one whole character */
    BT_UTF8_BAD,  /* an ill-formed part */
    BT_UTF8_CUT   /* the text ends within a character that was good so far */
} bt_utf8_kind;

#define BT_UTF8_REPLACEMENT "\xef\xbf\xbd"

/* What stands at text[0..n), n > 0; returns its length in bytes. */
size_t bt_utf8_next(const char *text, size_t n, bt_utf8_kind *kind_out);
/* The character that bt_utf8_next found good. */
uint32_t bt_utf8_char(const char *text, size_t length);
/* Its bytes; returns how many.  c is at most U+10FFFF. */
size_t bt_utf8_put(uint32_t c, char out[4]);
/* Python's str.isspace(). */
bool bt_utf8_is_space(uint32_t c);

/* A copy with every ill-formed part replaced; *text_out is owned by the caller (bt_free).
 * NO_MEMORY. */
bt_status bt_utf8_repair(const char *text, size_t n, char **text_out, size_t *n_out);

#ifdef __cplusplus
}
#endif
#endif

/* proto/text.h - checks of strings that cross a process boundary: proto3 demands UTF-8, and
 * gateways built on prost drop a whole message over one bad byte. */
#ifndef BT_PROTO_TEXT_H
#define BT_PROTO_TEXT_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* How many of bytes[n] come before the first that is NUL or no UTF-8; n: all are good. */
size_t bt_text_good_bytes(const void *bytes, size_t n);
/* Well-formed UTF-8 after Unicode table 3-7: no overlong form, no surrogate, nothing past
 * U+10FFFF. */
bool bt_text_is_utf8(const char *text);
/* Copies text into buf[capacity], always terminated, cut at a character's end; each byte that is no
 * UTF-8 becomes '?'. */
void bt_text_clean(const char *text, char *buf, size_t capacity);

#ifdef __cplusplus
}
#endif
#endif

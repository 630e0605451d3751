#include "proto/text.h"

#include <string.h>

/* Bytes of the well-formed character at p, where there are n_left > 0, or 0. */
static size_t char_bytes(const unsigned char *p, size_t n_left)
{
    unsigned char low = 0x80, high = 0xbf;
    size_t        n;

    if (p[0] < 0x80) return 1;
    if (p[0] < 0xc2 || p[0] > 0xf4) return 0;
    n = p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : 4;
    if (n > n_left) return 0;
    if (p[0] == 0xe0) low = 0xa0;  /* overlong */
    if (p[0] == 0xed) high = 0x9f; /* surrogates */
    if (p[0] == 0xf0) low = 0x90;
    if (p[0] == 0xf4) high = 0x8f; /* past U+10FFFF */
    if (p[1] < low || p[1] > high) return 0;
    for (size_t i = 2; i < n; i++)
        if ((p[i] & 0xc0) != 0x80) return 0;
    return n;
}

size_t bt_text_good_bytes(const void *bytes, size_t n)
{
    const unsigned char *p  = bytes;
    size_t               at = 0, step;

    for (; at < n && p[at] != 0; at += step) {
        step = char_bytes(p + at, n - at);
        if (step == 0) break;
    }
    return at;
}

bool bt_text_is_utf8(const char *text)
{
    size_t n = strlen(text);

    return bt_text_good_bytes(text, n) == n;
}

void bt_text_clean(const char *text, char *buf, size_t capacity)
{
    const unsigned char *p = (const unsigned char *)text, *end = p + strlen(text);
    size_t               at = 0;

    while (p < end) {
        size_t n = char_bytes(p, (size_t)(end - p)), take = n == 0 ? 1 : n;

        if (at + take + 1 > capacity) break;
        if (n == 0) buf[at++] = '?';
        for (size_t i = 0; i < n; i++)
            buf[at++] = (char)p[i];
        p += take;
    }
    buf[at] = 0;
}

#include "model/utf8.h"

#include <string.h>

#include "core/alloc.h"

/* Length of the character that `lead` begins, and the bounds of its second byte (Unicode table
 * 3-7); 0 when nothing begins with it. */
static size_t lead_length(uint8_t lead, uint8_t *lo, uint8_t *hi)
{
    *lo = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
    *hi = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
    if (lead < 0x80) return 1;
    if (lead < 0xc2) return 0;
    if (lead < 0xe0) return 2;
    if (lead < 0xf0) return 3;
    return lead < 0xf5 ? 4 : 0;
}

size_t bt_utf8_next(const char *text, size_t n, bt_utf8_kind *kind_out)
{
    const uint8_t *p = (const uint8_t *)text;
    uint8_t        lo, hi;
    size_t         length = lead_length(p[0], &lo, &hi);

    *kind_out = BT_UTF8_BAD;
    if (length == 0) return 1;
    for (size_t i = 1; i < length; i++) {
        if (i == n) {
            *kind_out = BT_UTF8_CUT;
            return i;
        }
        if (p[i] < lo || p[i] > hi) return i;
        lo = 0x80;
        hi = 0xbf;
    }
    *kind_out = BT_UTF8_GOOD;
    return length;
}

uint32_t bt_utf8_char(const char *text, size_t length)
{
    static const uint8_t LEAD_MASK[5] = {0, 0x7f, 0x1f, 0x0f, 0x07};
    uint32_t             c            = (uint8_t)text[0] & LEAD_MASK[length];

    for (size_t i = 1; i < length; i++)
        c = c << 6 | ((uint8_t)text[i] & 0x3f);
    return c;
}

size_t bt_utf8_put(uint32_t c, char out[4])
{
    static const uint8_t LEADS[5] = {0, 0, 0xc0, 0xe0, 0xf0};
    size_t               n        = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;

    for (size_t i = n; i-- > 1; c >>= 6)
        out[i] = (char)(0x80 | (c & 0x3f));
    out[0] = (char)(LEADS[n] | c);
    return n;
}

bool bt_utf8_is_space(uint32_t c)
{
    return (c >= 0x9 && c <= 0xd) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 ||
           c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 ||
           c == 0x202f || c == 0x205f || c == 0x3000;
}

/* Writes the repaired text when out is not NULL; returns its length. */
static size_t repair(const char *text, size_t n, char *out)
{
    size_t at = 0, length;

    for (size_t i = 0; i < n; i += length) {
        bt_utf8_kind kind;
        const char  *from = text + i;
        size_t       bytes;

        length = bt_utf8_next(from, n - i, &kind);
        bytes  = length;
        if (kind != BT_UTF8_GOOD) {
            from  = BT_UTF8_REPLACEMENT;
            bytes = 3;
        }
        if (out != NULL) memcpy(out + at, from, bytes);
        at += bytes;
    }
    return at;
}

bt_status bt_utf8_repair(const char *text, size_t n, char **text_out, size_t *n_out)
{
    bt_status st      = BT_OK;
    size_t    n_whole = repair(text, n, NULL);
    char     *whole   = bt_calloc(n_whole + 1, 1);

    BT_REQUIRE(whole != NULL, BT_ERR_NO_MEMORY, "%zu bytes of text", n_whole);
    repair(text, n, whole);
    *text_out = whole;
    *n_out    = n_whole;
out:
    return st;
}

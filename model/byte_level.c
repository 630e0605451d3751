#include "model/byte_level.h"

#include <string.h>

#include "model/utf8.h"

enum { FIRST_STAND_IN = 0x100, N_STAND_INS = 68 };

static bool is_itself(uint32_t c)
{
    return (c >= 0x21 && c <= 0x7e) || (c >= 0xa1 && c <= 0xac) || (c >= 0xae && c <= 0xff);
}

/* The stand-ins' bytes: 0x00-0x20, 0x7f-0xa0, 0xad. */
static uint8_t stand_in_byte(uint32_t i)
{
    if (i <= 0x20) return (uint8_t)i;
    return i < N_STAND_INS - 1 ? (uint8_t)(i - 0x21 + 0x7f) : 0xad;
}

uint32_t bt_byte_level_char(uint8_t byte)
{
    if (is_itself(byte)) return byte;
    if (byte <= 0x20) return FIRST_STAND_IN + byte;
    return FIRST_STAND_IN + (byte == 0xad ? N_STAND_INS - 1u : byte - 0x7fu + 0x21u);
}

size_t bt_byte_level_bytes(const char *entry, size_t n, char *out, bool *mapped_out)
{
    size_t at = 0, length;

    *mapped_out = true;
    for (size_t i = 0; i < n; i += length) {
        bt_utf8_kind kind;
        uint32_t     c;

        length = bt_utf8_next(entry + i, n - i, &kind);
        c      = kind == BT_UTF8_GOOD ? bt_utf8_char(entry + i, length) : UINT32_MAX;
        if (c >= FIRST_STAND_IN && c < FIRST_STAND_IN + N_STAND_INS) {
            out[at++] = (char)stand_in_byte(c - FIRST_STAND_IN);
        } else if (is_itself(c)) {
            out[at++] = (char)c;
        } else {
            *mapped_out = false;
            memcpy(out, entry, n);
            return n;
        }
    }
    return at;
}

/* model/byte_level.h - the printable characters that stand for bytes in a byte-level vocabulary.
 *
 * GPT-2's table: 0x21-0x7e, 0xa1-0xac and 0xae-0xff stand for themselves, the other 68 bytes in
 * ascending order are U+0100 .. U+0143 (blank is U+0120, newline U+010A). */
#ifndef BT_MODEL_BYTE_LEVEL_H
#define BT_MODEL_BYTE_LEVEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The character for a byte. */
uint32_t bt_byte_level_char(uint8_t byte);

/* The bytes that a vocabulary entry stands for, into out[0..n) (never longer than the entry);
 * returns their number.  As in Hugging Face, an entry with any other character (a special token)
 * stands for its own text: *mapped_out is false then.  The entry is valid UTF-8. */
size_t bt_byte_level_bytes(const char *entry, size_t n, char *out, bool *mapped_out);

#ifdef __cplusplus
}
#endif
#endif

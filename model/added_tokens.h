/* model/added_tokens.h - finds added tokens in text: leftmost first, the longest of those that
 * begin there.
 *
 * Threads: finding is safe from several threads. */
#ifndef BT_MODEL_ADDED_TOKENS_H
#define BT_MODEL_ADDED_TOKENS_H

#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct bt_added_tokens bt_added_tokens;

/* Room for tokens of n_bytes in all; FORMAT from 4 GiB on, NO_MEMORY. */
bt_status bt_added_tokens_create(size_t n_bytes, bt_added_tokens **set_out);
void      bt_added_tokens_destroy(bt_added_tokens *set);
/* A token of n > 0 bytes; one that is there already keeps its first id.  Returns the id it has. */
uint32_t bt_added_tokens_add(bt_added_tokens *set, const char *text, size_t n, uint32_t id);

/* The length of the longest that text[0..n) begins with; 0: none. */
size_t bt_added_tokens_longest(const bt_added_tokens *set, const char *text, size_t n,
                               uint32_t *id_out);
/* The first match in text[0..n): its start, and its length (0: none; then start is n). */
size_t bt_added_tokens_find(const bt_added_tokens *set, const char *text, size_t n,
                            size_t *start_out, uint32_t *id_out);

#ifdef __cplusplus
}
#endif
#endif

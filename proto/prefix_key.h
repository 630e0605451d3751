/* proto/prefix_key.h - the names of full pages of tokens, as they travel with orders.
 *
 * A key stands for the tokens of a page and everything before it: a 128-bit XXH3 of the page's
 * tokens, chained, from a seed that the coordinator's process drew.  The coordinator makes those of
 * prompts; a rank goes on with them where generated pages are shared. */
#ifndef BT_PROTO_PREFIX_KEY_H
#define BT_PROTO_PREFIX_KEY_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What the first page's key is chained to. */
static inline void bt_prefix_key_begin(uint64_t seed, uint64_t key_out[2])
{
    key_out[0] = seed;
    key_out[1] = ~seed;
}
/* From the key of the pages before (or the beginning) to that of the next one, of n tokens. */
void bt_prefix_key_next(uint64_t seed, uint32_t n, const uint32_t *tokens, uint64_t key[2]);

#ifdef __cplusplus
}
#endif
#endif

/* proto/prefix_key.h - the names of full pages of tokens, as they travel with orders.
 *
 * A key stands for the tokens of a page and everything before it: a 128-bit XXH3 of the page's
 * tokens, chained, from a seed that the coordinator's process drew.  The coordinator makes those of
 * prompts; a rank goes on with them where generated pages are shared.
 *
 * A request may bring a salt, from which its keys get a seed of their own: it shares pages with
 * requests of the same salt, and with no others.  The public protocols have no field for it, so
 * that it comes as metadata of the call. */
#ifndef BT_PROTO_PREFIX_KEY_H
#define BT_PROTO_PREFIX_KEY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define BT_CACHE_SALT_HEADER "baton-cache-salt"

enum { BT_CACHE_SALT_MAX = 256, BT_CACHE_SALT_TEXT = 80 };

/* Whether n bytes are a salt: 1 to BT_CACHE_SALT_MAX visible ASCII characters.  Where they are not,
 * why_out says what they have, to stand behind the name of where they come from. */
bool bt_cache_salt_check(size_t n, const char *bytes, char why_out[BT_CACHE_SALT_TEXT]);
/* The seed for keys of requests with this salt, never 0; that of all where it is NULL. */
uint64_t bt_cache_salt_seed(uint64_t seed, const char *salt);

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

#include "proto/prefix_key.h"

#include <stdio.h>
#include <string.h>
#include <xxhash.h>

bool bt_cache_salt_check(size_t n, const char *bytes, char why_out[BT_CACHE_SALT_TEXT])
{
    if (n == 0 || n > BT_CACHE_SALT_MAX) {
        snprintf(why_out, BT_CACHE_SALT_TEXT, "has %zu bytes, expected 1 to %d", n,
                 BT_CACHE_SALT_MAX);
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        if (bytes[i] > ' ' && bytes[i] <= '~') continue;
        snprintf(why_out, BT_CACHE_SALT_TEXT, "has byte 0x%02x at %zu, expected visible ASCII",
                 (unsigned)(unsigned char)bytes[i], i);
        return false;
    }
    return true;
}

uint64_t bt_cache_salt_seed(uint64_t seed, const char *salt)
{
    uint64_t own = salt != NULL ? XXH3_64bits_withSeed(salt, strlen(salt), seed) : seed;

    return own != 0 ? own : 1;
}

void bt_prefix_key_next(uint64_t seed, uint32_t n, const uint32_t *tokens, uint64_t key[2])
{
    XXH128_hash_t own     = XXH3_128bits_withSeed(tokens, n * sizeof(*tokens), seed);
    uint64_t      link[4] = {key[0], key[1], own.low64, own.high64};
    XXH128_hash_t all     = XXH3_128bits_withSeed(link, sizeof(link), seed);

    key[0] = all.low64;
    key[1] = all.high64;
}

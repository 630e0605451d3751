#include "proto/prefix_key.h"

#include <xxhash.h>

void bt_prefix_key_next(uint64_t seed, uint32_t n, const uint32_t *tokens, uint64_t key[2])
{
    XXH128_hash_t own     = XXH3_128bits_withSeed(tokens, n * sizeof(*tokens), seed);
    uint64_t      link[4] = {key[0], key[1], own.low64, own.high64};
    XXH128_hash_t all     = XXH3_128bits_withSeed(link, sizeof(link), seed);

    key[0] = all.low64;
    key[1] = all.high64;
}

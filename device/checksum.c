#include <string.h>

#include "device/checksum_mix.h"
#include "device/device.h"

uint64_t bt_checksum(const void *data, size_t bytes, uint64_t seed)
{
    uint64_t sum = bt_checksum_mix(seed, bytes);

    for (size_t i = 0; i < bytes; i += 8) {
        uint64_t word = 0;

        memcpy(&word, (const uint8_t *)data + i, bytes - i < 8 ? bytes - i : 8);
        sum += bt_checksum_mix(word, i / 8);
    }
    return sum;
}

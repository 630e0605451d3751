#include <string.h>

#include "device/device.h"

static uint64_t mixed(uint64_t word, uint64_t i)
{
    uint64_t x = (word ^ (word >> 31)) * 0xbf58476d1ce4e5b9u + (i + 1) * 0x9e3779b97f4a7c15u;

    x = (x ^ (x >> 29)) * 0x94d049bb133111ebu;
    return x ^ (x >> 32);
}

uint64_t bt_checksum(const void *data, size_t bytes, uint64_t seed)
{
    uint64_t sum = mixed(seed, bytes);

    for (size_t i = 0; i < bytes; i += 8) {
        uint64_t word = 0;

        memcpy(&word, (const uint8_t *)data + i, bytes - i < 8 ? bytes - i : 8);
        sum += mixed(word, i / 8);
    }
    return sum;
}

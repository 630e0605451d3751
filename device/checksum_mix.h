/* device/checksum_mix.h - what bt_checksum() (device/device.h) sums up. */
#ifndef BT_DEVICE_CHECKSUM_MIX_H
#define BT_DEVICE_CHECKSUM_MIX_H

#include <stdint.h>

#include "device/host_device.h"

/* Of a word and its index; of the seed and the length.  Multipliers: those of SplitMix64. */
BT_HOST_DEVICE uint64_t bt_checksum_mix(uint64_t word, uint64_t i)
{
    uint64_t x = (word ^ (word >> 31)) * 0xbf58476d1ce4e5b9u + (i + 1) * 0x9e3779b97f4a7c15u;

    x = (x ^ (x >> 29)) * 0x94d049bb133111ebu;
    return x ^ (x >> 32);
}

#endif

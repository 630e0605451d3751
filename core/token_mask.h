/* core/token_mask.h - a set of token ids as bits: bit id % 32 of word id / 32. */
#ifndef BT_CORE_TOKEN_MASK_H
#define BT_CORE_TOKEN_MASK_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Words of a set of ids below n_ids. */
static inline uint32_t bt_mask_words(uint32_t n_ids) { return (n_ids + 31) / 32; }
static inline void     bt_mask_add(uint32_t *bits, uint32_t id) { bits[id / 32] |= 1u << id % 32; }
static inline bool     bt_mask_has(const uint32_t *bits, uint32_t id)
{
    return (bits[id / 32] >> id % 32 & 1) != 0;
}

#ifdef __cplusplus
}
#endif
#endif

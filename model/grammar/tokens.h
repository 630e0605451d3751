/* model/grammar/tokens.h - a vocabulary in the order of its texts, inside this folder. */
#ifndef BT_MODEL_GRAMMAR_TOKENS_H
#define BT_MODEL_GRAMMAR_TOKENS_H

#include "model/grammar/matcher.h"

enum { BT_TOKEN_BYTES_MAX = 1 << 12 }; /* longer ones never come */

/* One token of a text; by bytes ascending, the shorter of two first. */
typedef struct {
    uint32_t id, at; /* at: in `bytes` */
    uint16_t n;      /* bytes */
    uint16_t shared; /* with the token before: so many begin both */
} bt_sorted_token;

struct bt_token_list {
    uint32_t         n_ids;  /* of masks */
    uint32_t         n;      /* of those that are texts */
    bt_sorted_token *sorted; /* owned [n] */
    uint32_t        *where;  /* owned [n_ids]: 1 + its index in sorted, or 0 */
    char            *bytes;  /* owned */
};

#endif

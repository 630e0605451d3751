/* model/grammar/tokens.h - the texts of a vocabulary as a tree of bytes, inside this folder. */
#ifndef BT_MODEL_GRAMMAR_TOKENS_H
#define BT_MODEL_GRAMMAR_TOKENS_H

#include "model/grammar/matcher.h"

enum {
    BT_TOKEN_BYTES_MAX = 1 << 12, /* longer ones never come */
    /* Tokens of whole characters that may stand in a JSON string as they are, by how many they
     * have: up to 4, 8 and 16.  Where all such texts may follow, so may they, without a look at
     * each.  The last group has all others. */
    BT_PLAIN_GROUPS = 3,
    BT_TOKEN_GROUPS
};
#define BT_NOT_A_TOKEN UINT32_MAX

/* A byte behind those of its parent; nodes stand before their children, these ascending. */
typedef struct {
    uint32_t id;    /* of the token that ends here, or BT_NOT_A_TOKEN */
    uint32_t next;  /* the first node that is not below this one */
    uint16_t depth; /* from 1 on */
    uint8_t  byte;
} bt_token_node;

/* A token of a text; n == 0: it is none. */
typedef struct {
    uint32_t at, n; /* bytes */
} bt_token_text;

/* Characters of the longest text of a plain group. */
static inline uint32_t bt_plain_chars(uint32_t group) { return 4u << group; }

struct bt_token_list {
    uint32_t       n_ids, n_nodes, n_same;
    uint32_t       first_node[BT_TOKEN_GROUPS + 1]; /* of each group's tree */
    uint32_t      *plain[BT_PLAIN_GROUPS];          /* owned: masks of the groups */
    bt_token_node *nodes;                           /* owned [n_nodes] */
    uint32_t (*same)[2];  /* owned [n_same]: tokens of equal bytes: one, and one that has a node */
    bt_token_text *texts; /* owned [n_ids] */
    char          *bytes; /* owned */
};

/* Of texts[n_ids] over bytes[n_bytes], which it takes on success: memory of bt_calloc(). NO_MEMORY.
 */
bt_status bt_token_list_make(uint32_t n_ids, bt_token_text *texts, char *bytes, size_t n_bytes,
                             bt_token_list **list_out);

#endif

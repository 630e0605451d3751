/* model/grammar/tokens.h - the texts of a vocabulary as a tree of bytes, inside this folder. */
#ifndef BT_MODEL_GRAMMAR_TOKENS_H
#define BT_MODEL_GRAMMAR_TOKENS_H

#include "model/grammar/matcher.h"

enum { BT_TOKEN_BYTES_MAX = 1 << 12 }; /* longer ones never come */
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

struct bt_token_list {
    uint32_t       n_ids, n_nodes, n_same;
    bt_token_node *nodes; /* owned [n_nodes] */
    uint32_t (*same)[2];  /* owned [n_same]: tokens of equal bytes: one, and one that has a node */
    bt_token_text *texts; /* owned [n_ids] */
    char          *bytes; /* owned */
};

#endif

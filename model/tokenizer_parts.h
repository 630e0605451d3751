/* model/tokenizer_parts.h - what a tokenizer is made of.  Only for tokenizer*.c, vocab.c
 * and chat.c. */
#ifndef BT_MODEL_TOKENIZER_PARTS_H
#define BT_MODEL_TOKENIZER_PARTS_H

#include "model/added_tokens.h"
#include "model/bpe.h"
#include "model/json.h"
#include "model/pretokenizer.h"
#include "model/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    uint32_t at, n;  /* bytes in the arena; n == 0: no such id */
    bool     mapped; /* of the vocabulary, byte by byte: merging can make it */
    bool     special;
} bt_vocab_token;

/* Two lists of added tokens, as Hugging Face has: those that match before normalisation, and those
 * that match in what these left.  (No normalizer is supported, so only the order differs.) */
enum { BT_N_ADDED_LISTS = 2 };

/* A text may repeat what a token begins with, which is then looked at anew from each byte. */
enum { BT_MAX_TOKEN_BYTES = 1 << 12 };

struct bt_tokenizer {
    char            *path;   /* owned: for errors */
    char            *arena;  /* owned: the bytes of all tokens */
    bt_vocab_token  *tokens; /* owned: [n_tokens] */
    uint32_t         n_tokens;
    bt_added_tokens *added[BT_N_ADDED_LISTS]; /* owned */
    bt_pretokenizer *pre;                     /* owned */
    bt_bpe          *bpe;                     /* owned */
    uint32_t        *by_text;                 /* owned: [n_by_text] mapped ids sorted by bytes, if
                                                 a piece that is a token as a whole is that token,
                                                 else NULL */
    size_t n_by_text;
    bool   tiktoken; /* of tiktoken.model: texts are cut into bt_tiktoken_part() */

    char *chat_template, *chat_path; /* owned, or NULL: and its file */
    char *no_chat;                   /* owned, or NULL: why there is none */
    char *bos, *eos;                 /* owned: their texts, or NULL */
    enum { BT_ADD_BOS_UNSAID, BT_ADD_BOS, BT_ADD_NO_BOS } add_bos; /* of tokenizer_config.json */
    uint32_t front[BT_MAX_FRONT]; /* [n_front]: what the post_processor puts in front of a text */
    size_t   n_front;
};

/* Decodes the base64 that text begins with into at most three bytes for four characters.  Returns
 * how many characters it has; 0: it is none, or no whole one. */
size_t bt_base64_decode(const char *text, char *bytes, uint32_t *n_bytes_out);

/* Sorts ids by their bytes. */
void bt_vocab_order(const bt_tokenizer *tok, uint32_t *ids, size_t n);
/* Makes by_text. */
bt_status bt_vocab_sort(bt_tokenizer *tok);
/* Whether by_text has the n bytes. */
bool bt_vocab_find(const bt_tokenizer *tok, const char *text, size_t n, uint32_t *id_out);
/* Makes by_text and bpe of a vocabulary that has ranks, which are in the order of the ids, in place
 * of merges: two neighbours become one token where their bytes are one, that of the lowest rank
 * first. */
bt_status bt_vocab_rank(bt_tokenizer *tok);

/* Fills an empty tokenizer from tokenizer.json. */
bt_status bt_tokenizer_load(bt_tokenizer *tok, const char *path);
/* The same from tiktoken.model, without the ids behind its vocabulary; then those, of
 * tokenizer_config.json. */
bt_status bt_tokenizer_load_tiktoken(bt_tokenizer *tok, const char *path);
bt_status bt_tiktoken_load_special(bt_tokenizer *tok, const bt_json_at *config);
/* The same from tekken.json. */
bt_status bt_tokenizer_load_tekken(bt_tokenizer *tok, const char *path);
/* FORMAT: the added token, which stands in `file`, has BT_MAX_TOKEN_BYTES or more. */
bt_status bt_tokenizer_check_added(const char *file, uint32_t id, const char *text);
/* UNSUPPORTED: the added token takes blanks around it, or whole words only. */
bt_status bt_tokenizer_refuse_strips(const bt_json_at *at, const char *text);

/* The length of the first of the parts in which TikTokenTokenizer encodes a text of n > 0 bytes:
 * blocks of 400,000 characters, and within each no run of blanks, or of anything else, beyond
 * 25,000.  *in_block counts the block's characters, 0 at first. */
size_t bt_tiktoken_part(const char *text, size_t n, uint32_t *in_block);
/* Template, bos, eos and add_bos_token from tokenizer_config.json and chat_template.jinja in `dir`,
 * where they are; beside tiktoken.model the former must be there. */
bt_status bt_tokenizer_load_config(bt_tokenizer *tok, const char *dir);

#ifdef __cplusplus
}
#endif
#endif

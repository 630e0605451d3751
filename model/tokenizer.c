#include "model/tokenizer.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "core/alloc.h"
#include "core/file.h"
#include "model/json.h"
#include "model/tokenizer_parts.h"
#include "model/utf8.h"

#define TIKTOKEN "tiktoken.model"
#define TEKKEN   "tekken.json"

void bt_tokenizer_file(const char *dir, char file_out[PATH_MAX])
{
    bt_file_of(dir, (const char *const[]){"tokenizer.json", TIKTOKEN, TEKKEN, NULL}, file_out);
}

bt_status bt_tokenizer_open(const char *path, bt_tokenizer **tok_out)
{
    bt_status     st  = BT_OK;
    bt_tokenizer *tok = bt_calloc(1, sizeof(*tok));
    const char   *name;
    struct stat   info;
    char          file[PATH_MAX], dir[PATH_MAX];

    BT_REQUIRE(tok != NULL, BT_ERR_NO_MEMORY, "%s", path);
    BT_REQUIRE(strlen(path) < PATH_MAX - 32, BT_ERR_IO, "tokenizer: expected a path under %d bytes",
               PATH_MAX - 32);
    snprintf(file, sizeof(file), "%s", path);
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode)) bt_tokenizer_file(path, file);
    name = strrchr(file, '/');
    name = name != NULL ? name + 1 : file;
    snprintf(dir, sizeof(dir), "%.*s", name == file ? 1 : (int)(name - file) - 1,
             name == file ? "." : file);
    tok->path = bt_strdup(file);
    BT_REQUIRE(tok->path != NULL, BT_ERR_NO_MEMORY, "%s", path);
    if (strcmp(name, TIKTOKEN) == 0)
        BT_TRY(bt_tokenizer_load_tiktoken(tok, file));
    else if (strcmp(name, TEKKEN) == 0)
        BT_TRY(bt_tokenizer_load_tekken(tok, file));
    else
        BT_TRY(bt_tokenizer_load(tok, file));
    BT_TRY(bt_tokenizer_load_config(tok, dir));
    *tok_out = tok;
    tok      = NULL;
out:
    bt_tokenizer_close(tok);
    return st;
}

void bt_tokenizer_close(bt_tokenizer *tok)
{
    if (tok == NULL) return;
    for (int i = 0; i < BT_N_ADDED_LISTS; i++)
        bt_added_tokens_destroy(tok->added[i]);
    bt_pretokenizer_destroy(tok->pre);
    bt_bpe_destroy(tok->bpe);
    bt_free(tok->by_text);
    bt_free(tok->tokens);
    bt_free(tok->arena);
    bt_free(tok->chat_template);
    bt_free(tok->chat_path);
    bt_free(tok->no_chat);
    bt_free(tok->bos);
    bt_free(tok->eos);
    bt_free(tok->path);
    bt_free(tok);
}

uint32_t bt_tokenizer_vocab_size(const bt_tokenizer *tok) { return tok->n_tokens; }

const char *bt_tokenizer_bytes(const bt_tokenizer *tok, uint32_t id, size_t *n_out,
                               bool *special_out)
{
    const bt_vocab_token *t = id < tok->n_tokens ? &tok->tokens[id] : NULL;

    *n_out = t == NULL ? 0 : t->n;
    if (special_out != NULL) *special_out = t != NULL && t->special;
    return t == NULL ? "" : tok->arena + t->at;
}

static int64_t added_id(const bt_tokenizer *tok, const char *text, size_t n)
{
    uint32_t id = 0;

    for (int i = 0; n != 0 && i < BT_N_ADDED_LISTS; i++)
        if (bt_added_tokens_longest(tok->added[i], text, n, &id) == n) return id;
    return -1;
}

int64_t bt_tokenizer_added_id(const bt_tokenizer *tok, const char *text)
{
    return added_id(tok, text, strlen(text));
}

bool bt_tokenizer_is_text(const bt_tokenizer *tok, uint32_t id)
{
    const bt_vocab_token *t = id < tok->n_tokens ? &tok->tokens[id] : NULL;
    int64_t               added;

    if (t == NULL || t->n == 0 || t->special) return false;
    added = added_id(tok, tok->arena + t->at, t->n);
    return added < 0 ? t->mapped : added == (int64_t)id;
}

bt_status bt_tokenizer_front(const bt_tokenizer *tok, bool always, uint32_t ids_out[BT_MAX_FRONT],
                             size_t *n_out)
{
    bt_status st = BT_OK;
    int64_t   id = -1;
    char      found[BT_JSON_SHOW_BYTES];

    *n_out = tok->add_bos == BT_ADD_BOS_UNSAID ? tok->n_front : 0;
    memcpy(ids_out, tok->front, *n_out * sizeof(*ids_out));
    if (always || tok->add_bos == BT_ADD_BOS) {
        id = tok->bos != NULL ? bt_tokenizer_added_id(tok, tok->bos) : -1;
        BT_REQUIRE(id >= 0, BT_ERR_FORMAT,
                   "%s: expected bos_token of tokenizer_config.json to be the text of an added "
                   "token, found \"%s\"; --no-bos does without",
                   tok->path,
                   bt_json_printable(tok->bos != NULL ? tok->bos : "", found, sizeof(found)));
        ids_out[0] = (uint32_t)id;
        *n_out     = 1;
    }
out:
    return st;
}

/* One call of encode. */
typedef struct {
    const bt_tokenizer *tok;
    bt_pretokens        pieces;
    bt_bpe_scratch      scratch;
    uint32_t           *ids; /* owned: [capacity] */
    size_t              n, capacity;
} encoding;

/* Room for n more ids. */
static bt_status reserve(encoding *e, size_t n)
{
    bt_status st       = BT_OK;
    size_t    capacity = e->capacity < 64 ? 64 : e->capacity;
    uint32_t *grown;

    if (e->ids != NULL && e->n + n <= e->capacity) goto out;
    while (capacity < e->n + n)
        capacity *= 2;
    grown = bt_realloc(e->ids, capacity, sizeof(*grown));
    BT_REQUIRE(grown != NULL, BT_ERR_NO_MEMORY, "tokenizer: %zu ids", capacity);
    e->ids      = grown;
    e->capacity = capacity;
out:
    return st;
}

static bt_status encode_piece(encoding *e, const char *piece, size_t n)
{
    bt_status st    = BT_OK;
    size_t    n_ids = 1;

    BT_TRY(reserve(e, n));
    if (!bt_vocab_find(e->tok, piece, n, &e->ids[e->n]))
        BT_TRY(bt_bpe_encode(e->tok->bpe, piece, n, &e->scratch, e->ids + e->n, &n_ids));
    e->n += n_ids;
out:
    return st;
}

/* Text without added tokens. */
static bt_status encode_plain(encoding *e, const char *text, size_t n)
{
    bt_status st       = BT_OK;
    uint32_t  in_block = 0;

    while (n > 0) {
        size_t part = e->tok->tiktoken ? bt_tiktoken_part(text, n, &in_block) : n;

        BT_TRY(bt_pretokenizer_cut(e->tok->pre, text, part, &e->pieces));
        for (size_t i = 0; i < e->pieces.n; i++)
            BT_TRY(encode_piece(e, text + e->pieces.pieces[i].at, e->pieces.pieces[i].n));
        text += part;
        n -= part;
    }
out:
    return st;
}

/* Text with the added tokens of list `list` and of those after it. */
static bt_status encode_from(encoding *e, int list, const char *text, size_t n)
{
    bt_status st = BT_OK;

    if (list == BT_N_ADDED_LISTS) return encode_plain(e, text, n);
    for (size_t at = 0; at < n;) {
        size_t   start;
        uint32_t id     = 0;
        size_t   length = bt_added_tokens_find(e->tok->added[list], text + at, n - at, &start, &id);

        if (start > 0) BT_TRY(encode_from(e, list + 1, text + at, start));
        if (length > 0) {
            BT_TRY(reserve(e, 1));
            e->ids[e->n++] = id;
        }
        at += start + length;
    }
out:
    return st;
}

bt_status bt_tokenizer_encode(const bt_tokenizer *tok, const char *text, size_t n,
                              uint32_t **ids_out, size_t *n_out)
{
    bt_status st      = BT_OK;
    encoding  e       = {.tok = tok};
    char     *whole   = NULL;
    size_t    n_whole = 0;

    BT_REQUIRE(n <= INT32_MAX / 3, BT_ERR_INVALID_ARG,
               "tokenizer: expected at most %d bytes of text, found %zu", INT32_MAX / 3, n);
    BT_TRY(reserve(&e, n / 3));
    BT_TRY(bt_utf8_repair(text, n, &whole, &n_whole));
    BT_TRY(encode_from(&e, 0, whole, n_whole));
    *ids_out = e.ids;
    *n_out   = e.n;
    e.ids    = NULL;
out:
    bt_free(e.ids);
    bt_bpe_scratch_fini(&e.scratch);
    bt_pretokens_fini(&e.pieces);
    bt_free(whole);
    return st;
}

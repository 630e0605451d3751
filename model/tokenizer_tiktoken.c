/* tiktoken.model, as Kimi-K2 and Moonlight have it: a line for each token, its bytes in base64 and
 * its rank, which is its id.  The regex and what follows the vocabulary stand in the class
 * TikTokenTokenizer of tokenization_kimi.py, which comes with the model. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/file.h"
#include "core/parse.h"
#include "model/tokenizer_parts.h"
#include "model/utf8.h"

enum {
    MAX_FILE_BYTES = 64 << 20,
    N_SPECIAL      = 256, /* ids behind the vocabulary */
    NAME_BYTES     = 40,
    BLOCK_CHARS    = 400000,
    RUN_CHARS      = 25000
};

#define UPPER "[\\\\p{Lu}\\\\p{Lt}\\\\p{Lm}\\\\p{Lo}\\\\p{M}&&[^\\\\p{Han}]]"
#define LOWER "[\\\\p{Ll}\\\\p{Lm}\\\\p{Lo}\\\\p{M}&&[^\\\\p{Han}]]"
#define FRONT "[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?"
#define SHORT "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
const char bt_tiktoken_pre[] =
    "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\""
    "\\\\p{Han}+|" FRONT UPPER "*" LOWER "+" SHORT "|" FRONT UPPER "+" LOWER "*" SHORT
    "|\\\\p{N}{1,3}| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|"
    "\\\\s+\"},\"behavior\":\"Isolated\",\"invert\":false},{\"type\":\"ByteLevel\","
    "\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":false}]}";

typedef struct {
    bt_tokenizer *tok;
    const char   *path;
    char         *text; /* owned: the file */
    size_t        n, arena_at;
    uint32_t      n_vocab;
} loading;

static bt_status read_text(loading *l)
{
    bt_status st = BT_OK;

    BT_TRY(bt_read_regular(l->path, MAX_FILE_BYTES, &l->text, &l->n));
    BT_REQUIRE(memchr(l->text, 0, l->n) == NULL, BT_ERR_FORMAT,
               "%s: expected lines of base64 and a rank, found a byte of zero", l->path);
    for (size_t i = 0; i < l->n; i++)
        if (l->text[i] != '\n' && (i == 0 || l->text[i - 1] == '\n')) l->n_vocab++;
    BT_REQUIRE(l->n_vocab != 0, BT_ERR_FORMAT, "%s: expected tokens, found none", l->path);
out:
    return st;
}

/* A line, ended by a zero byte. */
static bt_status add_line(loading *l, const char *line)
{
    bt_status       st      = BT_OK;
    uint32_t        n_bytes = 0;
    size_t          n       = bt_base64_decode(line, l->tok->arena + l->arena_at, &n_bytes);
    const char     *rank    = line + n + 1;
    size_t          digits  = n != 0 && line[n] == ' ' ? strspn(rank, "0123456789") : 0;
    unsigned long   id      = digits != 0 && digits < 10 ? strtoul(rank, NULL, 10) : l->n_vocab;
    bt_vocab_token *t;
    char            found[BT_JSON_SHOW_BYTES];

    BT_REQUIRE(digits != 0 && rank[digits] == '\0', BT_ERR_FORMAT,
               "%s: expected lines of base64, a blank and a rank, found \"%s\"", l->path,
               bt_json_printable(line, found, sizeof(found)));
    BT_REQUIRE(id < l->n_vocab && l->tok->tokens[id].n == 0, BT_ERR_FORMAT,
               "%s: expected each rank from 0 to %u once, found the line \"%s\"", l->path,
               l->n_vocab - 1, bt_json_printable(line, found, sizeof(found)));
    t  = &l->tok->tokens[id];
    *t = (bt_vocab_token){.at = (uint32_t)l->arena_at, .n = n_bytes, .mapped = true};
    l->arena_at += n_bytes;
out:
    return st;
}

static bt_status load_vocab(loading *l)
{
    bt_status     st   = BT_OK;
    bt_tokenizer *tok  = l->tok;
    char         *save = NULL;

    tok->n_tokens = l->n_vocab + N_SPECIAL;
    tok->tokens   = bt_calloc(tok->n_tokens, sizeof(*tok->tokens));
    tok->arena    = bt_calloc(l->n, 1); /* base64 is longer than what it stands for */
    BT_REQUIRE(tok->tokens != NULL && tok->arena != NULL, BT_ERR_NO_MEMORY, "%s: %u tokens",
               l->path, tok->n_tokens);
    for (char *line = strtok_r(l->text, "\n", &save); line != NULL;
         line       = strtok_r(NULL, "\n", &save))
        BT_TRY(add_line(l, line));
out:
    return st;
}

static bt_status load_regex(loading *l)
{
    bt_status st   = BT_OK;
    json_t   *spec = json_loads(bt_tiktoken_pre, 0, NULL);

    BT_REQUIRE(spec != NULL, BT_ERR_NO_MEMORY, "%s", l->path);
    BT_TRY(bt_pretokenizer_create(l->path, spec, &l->tok->pre));
out:
    json_decref(spec);
    return st;
}

bt_status bt_tokenizer_load_tiktoken(bt_tokenizer *tok, const char *path)
{
    bt_status st = BT_OK;
    loading   l  = {.tok = tok, .path = path};

    tok->tiktoken = true;
    BT_TRY(read_text(&l));
    BT_TRY(load_vocab(&l));
    BT_TRY(bt_vocab_rank(tok));
    BT_TRY(load_regex(&l));
out:
    bt_free(l.text);
    return st;
}

/* ---- what stands behind the vocabulary ---- */

/* As `id`; added: {"id": {"content": ..}}, or without an object.  name has NAME_BYTES for the text
 * if nothing else has. */
static bt_status special_text(const bt_json_at *added, uint32_t id, char *name,
                              const char **text_out, bool *special_out)
{
    bt_status  st = BT_OK;
    char       in[NAME_BYTES];
    bt_json_at at = {added->file, in, NULL};

    snprintf(in, sizeof(in), "%s.%u", added->in, id);
    snprintf(name, NAME_BYTES, "<|reserved_token_%u|>", id);
    at.obj       = json_object_get(added->obj, strchr(in, '.') + 1);
    *text_out    = name;
    *special_out = false;
    if (at.obj == NULL) goto out;
    BT_TRY(bt_json_str(&at, "content", text_out));
    BT_REQUIRE((*text_out)[0] != '\0', BT_ERR_FORMAT,
               "%s: field %s.content: expected a text, found none", at.file, in);
    BT_TRY(bt_tokenizer_check_added(at.file, id, *text_out));
    BT_TRY(bt_tokenizer_refuse_strips(&at, *text_out));
    *special_out = json_is_true(json_object_get(at.obj, "special"));
out:
    return st;
}

/* Room for it; *at_out: where it begins in the arena. */
static bt_status reserve(bt_tokenizer *tok, uint32_t n_vocab, const bt_json_at *added,
                         size_t *at_out)
{
    bt_status   st    = BT_OK;
    size_t      bytes = 0;
    const char *text  = NULL;
    bool        special;
    char        name[NAME_BYTES], *arena;

    *at_out = 0;
    for (uint32_t id = 0; id < n_vocab; id++)
        *at_out += tok->tokens[id].n;
    for (uint32_t id = n_vocab; id < tok->n_tokens; id++) {
        BT_TRY(special_text(added, id, name, &text, &special));
        bytes += strlen(text);
    }
    arena = bt_realloc(tok->arena, *at_out + bytes, 1);
    BT_REQUIRE(arena != NULL, BT_ERR_NO_MEMORY, "%s", added->file);
    tok->arena = arena;
    for (int i = 0; i < BT_N_ADDED_LISTS; i++)
        BT_TRY(bt_added_tokens_create(bytes, &tok->added[i]));
out:
    return st;
}

static bt_status store_special(bt_tokenizer *tok, uint32_t n_vocab, const bt_json_at *added)
{
    bt_status   st   = BT_OK;
    const char *text = NULL;
    size_t      at   = 0;
    uint32_t    first;
    char        name[NAME_BYTES], found[BT_JSON_SHOW_BYTES];

    BT_TRY(reserve(tok, n_vocab, added, &at));
    for (uint32_t id = n_vocab; id < tok->n_tokens; id++) {
        bt_vocab_token *t = &tok->tokens[id];

        BT_TRY(special_text(added, id, name, &text, &t->special));
        t->at = (uint32_t)at;
        t->n  = (uint32_t)strlen(text);
        memcpy(tok->arena + at, text, t->n);
        at += t->n;
        first = bt_added_tokens_add(tok->added[0], text, t->n, id);
        BT_REQUIRE(first == id, BT_ERR_FORMAT,
                   "%s: field %s: expected one id for \"%s\", found %u and %u", added->file,
                   added->in, bt_json_printable(text, found, sizeof(found)), first, id);
    }
out:
    return st;
}

bt_status bt_tiktoken_load_special(bt_tokenizer *tok, const bt_json_at *config)
{
    bt_status   st      = BT_OK;
    json_t     *all     = bt_json_field(config, "added_tokens_decoder"), *v;
    bt_json_at  added   = {config->file, "added_tokens_decoder", all};
    uint32_t    n_vocab = (uint32_t)tok->n_by_text;
    const char *name    = NULL, *key;
    int64_t     id;
    char        found[BT_JSON_SHOW_BYTES];

    BT_TRY(bt_json_str(config, "tokenizer_class", &name));
    BT_REQUIRE(strcmp(name, "TikTokenTokenizer") == 0, BT_ERR_UNSUPPORTED,
               "%s: field tokenizer_class: expected \"TikTokenTokenizer\" beside tiktoken.model, "
               "found \"%s\"", /* others have other regexes */
               config->file, bt_json_printable(name, found, sizeof(found)));
    BT_REQUIRE(all == NULL || json_is_object(all), BT_ERR_FORMAT,
               "%s: field %s: expected {id: token}, found %s", added.file, added.in,
               bt_json_show(all, found, sizeof(found)));
    json_object_foreach(all, key, v)
    {
        BT_REQUIRE(key[0] != '0' && bt_parse_whole(key, n_vocab, tok->n_tokens - 1, &id),
                   BT_ERR_FORMAT, /* "0300" would not be found by its number */
                   "%s: field %s: expected ids from %u to %u, the %d behind the tokens of "
                   "tiktoken.model, found \"%s\"",
                   added.file, added.in, n_vocab, tok->n_tokens - 1, N_SPECIAL,
                   bt_json_printable(key, found, sizeof(found)));
        BT_REQUIRE(json_is_object(v), BT_ERR_FORMAT,
                   "%s: field %s.%s: expected an object, found %s", added.file, added.in, key,
                   bt_json_show(v, found, sizeof(found)));
    }
    BT_TRY(store_special(tok, n_vocab, &added));
out:
    return st;
}

/* ---- the parts of a long text ---- */

size_t bt_tiktoken_part(const char *text, size_t n, uint32_t *in_block)
{
    bool     in_space = false;
    uint32_t run      = 0;
    size_t   at       = 0;

    while (at < n) {
        bt_utf8_kind kind;
        size_t       length = bt_utf8_next(text + at, n - at, &kind);
        bool         space  = bt_utf8_is_space(bt_utf8_char(text + at, length));

        run      = at != 0 && space == in_space ? run + 1 : 1;
        in_space = space;
        if (run > RUN_CHARS) break;
        at += length;
        if (++*in_block == BLOCK_CHARS) {
            *in_block = 0;
            break;
        }
    }
    return at;
}

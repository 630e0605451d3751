/* tekken.json, of Mistral's own format: tokens in base64 by rank, of which as many count as
 * default_vocab_size has room for behind the ids of the special tokens.  Read as mistral_common's
 * Tekkenizer does, which has no use for the rest of the file; but texts may name special tokens. */
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "model/tokenizer_parts.h"

enum {
    MAX_FILE_BYTES = 64 << 20,
    MAX_SPECIAL    = 1 << 16, /* those that the file does not name cost memory all the same */
    NAME_BYTES     = 40
};

/* Those of files that name none: of version 7 and before. */
/* clang-format off */
static const char *const OLD_SPECIAL[] = {
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]",
    "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]"};
/* clang-format on */
enum { N_OLD_SPECIAL = sizeof(OLD_SPECIAL) / sizeof(OLD_SPECIAL[0]) };

typedef struct {
    bt_tokenizer *tok;
    const char   *path, *pattern;
    const json_t *special, *vocab;
    uint32_t      n_special;
    size_t        arena_at;
} loading;

/* As `id`; name has NAME_BYTES for its text if the file has none. */
static bt_status special_text(const loading *l, uint32_t id, char *name, const char **text_out)
{
    bt_status  st = BT_OK;
    char       in[NAME_BYTES];
    bt_json_at at   = {l->path, in, json_array_get(l->special, id)};
    uint32_t   rank = 0;

    snprintf(in, sizeof(in), "special_tokens[%u]", id);
    snprintf(name, NAME_BYTES, "<SPECIAL_%u>", id);
    *text_out = l->special == NULL && id < N_OLD_SPECIAL ? OLD_SPECIAL[id] : name;
    if (at.obj == NULL) goto out;
    BT_TRY(bt_json_u32(&at, "rank", id, id, &rank));
    BT_TRY(bt_json_str(&at, "token_str", text_out));
    BT_REQUIRE((*text_out)[0] != '\0', BT_ERR_FORMAT,
               "%s: field %s.token_str: expected a text, found none", l->path, in);
    BT_TRY(bt_tokenizer_check_added(l->path, id, *text_out));
out:
    return st;
}

/* Its bytes, in base64. */
static bt_status vocab_text(const loading *l, uint32_t rank, const char **text_out)
{
    bt_status  st = BT_OK;
    char       in[NAME_BYTES];
    bt_json_at at   = {l->path, in, json_array_get(l->vocab, rank)};
    uint32_t   same = 0;

    snprintf(in, sizeof(in), "vocab[%u]", rank);
    BT_TRY(bt_json_u32(&at, "rank", rank, rank, &same));
    BT_TRY(bt_json_str(&at, "token_bytes", text_out));
out:
    return st;
}

/* Room for all ids and all texts. */
static bt_status measure(loading *l)
{
    bt_status     st      = BT_OK;
    bt_tokenizer *tok     = l->tok;
    size_t        special = 0, bytes;
    const char   *text    = NULL;
    char          name[NAME_BYTES];

    for (uint32_t id = 0; id < l->n_special; id++) {
        BT_TRY(special_text(l, id, name, &text));
        special += strlen(text);
    }
    bytes = special;
    for (uint32_t id = l->n_special; id < tok->n_tokens; id++) {
        BT_TRY(vocab_text(l, id - l->n_special, &text));
        bytes += strlen(text); /* base64 is longer than what it stands for */
    }
    tok->tokens = bt_calloc(tok->n_tokens, sizeof(*tok->tokens));
    tok->arena  = bt_calloc(bytes + 1, 1);
    BT_REQUIRE(tok->tokens != NULL && tok->arena != NULL, BT_ERR_NO_MEMORY, "%s: %u tokens",
               l->path, tok->n_tokens);
    for (int i = 0; i < BT_N_ADDED_LISTS; i++)
        BT_TRY(bt_added_tokens_create(special, &tok->added[i]));
out:
    return st;
}

static bt_status load_special(loading *l)
{
    bt_status     st   = BT_OK;
    bt_tokenizer *tok  = l->tok;
    const char   *text = NULL;
    uint32_t      n, first;
    char          name[NAME_BYTES], found[BT_JSON_SHOW_BYTES];

    for (uint32_t id = 0; id < l->n_special; id++) {
        BT_TRY(special_text(l, id, name, &text));
        n = (uint32_t)strlen(text);
        memcpy(tok->arena + l->arena_at, text, n);
        tok->tokens[id] = (bt_vocab_token){.at = (uint32_t)l->arena_at, .n = n, .special = true};
        l->arena_at += n;
        first = bt_added_tokens_add(tok->added[0], text, n, id);
        BT_REQUIRE(first == id, BT_ERR_FORMAT,
                   "%s: field special_tokens: expected one id for \"%s\", found %u and %u", l->path,
                   bt_json_printable(text, found, sizeof(found)), first, id);
    }
out:
    return st;
}

static bt_status load_vocab(loading *l)
{
    bt_status     st   = BT_OK;
    bt_tokenizer *tok  = l->tok;
    const char   *text = NULL;
    char          found[BT_JSON_SHOW_BYTES];

    for (uint32_t id = l->n_special; id < tok->n_tokens; id++) {
        bt_vocab_token *t = &tok->tokens[id];
        size_t          n;

        BT_TRY(vocab_text(l, id - l->n_special, &text));
        *t = (bt_vocab_token){.at = (uint32_t)l->arena_at, .mapped = true};
        n  = bt_base64_decode(text, tok->arena + l->arena_at, &t->n);
        BT_REQUIRE(n != 0 && text[n] == '\0', BT_ERR_FORMAT,
                   "%s: field vocab[%u].token_bytes: expected base64, found \"%s\"", l->path,
                   id - l->n_special, bt_json_printable(text, found, sizeof(found)));
        l->arena_at += t->n;
    }
    BT_TRY(bt_vocab_rank(tok));
out:
    return st;
}

/* Outside of a class ^ and $ are the ends of a text here, and those of a line in a tokenizer.json,
 * whose regexes bt_pretokenizer_create() knows. */
static bool has_anchor(const char *pattern)
{
    for (const char *p = pattern; (p = strpbrk(p, "^$")) != NULL; p++)
        if (*p == '$' || p == pattern || p[-1] != '[') return true;
    return false;
}

static bt_status load_regex(loading *l)
{
    bt_status st   = BT_OK;
    json_t   *spec = json_pack("{s:s, s:[{s:s, s:{s:s}, s:s, s:b}, {s:s, s:b, s:b}]}", "type",
                               "Sequence", "pretokenizers", "type", "Split", "pattern", "Regex",
                               l->pattern, "behavior", "Isolated", "invert", 0, "type", "ByteLevel",
                               "add_prefix_space", 0, "use_regex", 0);
    char      found[BT_JSON_SHOW_BYTES];

    BT_REQUIRE(!has_anchor(l->pattern), BT_ERR_UNSUPPORTED,
               "%s: field config.pattern: expected a regex without ^ and $, found \"%s\"", l->path,
               bt_json_printable(l->pattern, found, sizeof(found)));
    BT_REQUIRE(spec != NULL, BT_ERR_NO_MEMORY, "%s", l->path);
    BT_TRY(bt_pretokenizer_create(l->path, spec, &l->tok->pre));
out:
    json_decref(spec);
    return st;
}

/* The special tokens that begin and end a text. */
static bt_status load_ends(loading *l)
{
    bt_status     st  = BT_OK;
    bt_tokenizer *tok = l->tok;
    int64_t       bos = bt_tokenizer_added_id(tok, "<s>");

    BT_REQUIRE(bos >= 0, BT_ERR_FORMAT, "%s: field special_tokens: expected <s>, found none",
               l->path);
    tok->front[tok->n_front++] = (uint32_t)bos;
    tok->bos                   = bt_strdup("<s>");
    tok->eos                   = bt_strdup("</s>");
    BT_REQUIRE(tok->bos != NULL && tok->eos != NULL, BT_ERR_NO_MEMORY, "%s", l->path);
out:
    return st;
}

static bt_status check_special(const loading *l, const bt_json_at *config)
{
    bt_status   st      = BT_OK;
    const char *version = NULL;
    char        found[BT_JSON_SHOW_BYTES];

    if (l->special == NULL) {
        BT_TRY(bt_json_str(config, "version", &version));
        BT_REQUIRE(strlen(version) == 2 && version[0] == 'v' && strchr("1237", version[1]) != NULL,
                   BT_ERR_FORMAT,
                   "%s: field special_tokens: expected a list in a file of version \"%s\", found "
                   "nothing",
                   l->path, bt_json_printable(version, found, sizeof(found)));
    }
    BT_REQUIRE(l->special == NULL || json_is_array(l->special), BT_ERR_FORMAT,
               "%s: field special_tokens: expected a list, found %s", l->path,
               bt_json_show(l->special, found, sizeof(found)));
out:
    return st;
}

static bt_status check_frame(loading *l, const json_t *json)
{
    bt_status  st     = BT_OK;
    bt_json_at at     = {l->path, "", json};
    bt_json_at config = {l->path, "config", bt_json_field(&at, "config")};
    size_t     n_named, n_vocab;
    char       found[BT_JSON_SHOW_BYTES];

    l->special = bt_json_field(&at, "special_tokens");
    l->vocab   = bt_json_field(&at, "vocab");
    n_named    = l->special != NULL ? json_array_size(l->special) : N_OLD_SPECIAL;
    n_vocab    = json_array_size(l->vocab);
    BT_TRY(bt_json_str(&config, "pattern", &l->pattern));
    BT_TRY(check_special(l, &config));
    BT_REQUIRE(n_vocab >= 256, BT_ERR_FORMAT,
               "%s: field vocab: expected a list of 256 tokens or more, found %s", l->path,
               bt_json_show(l->vocab, found, sizeof(found)));
    BT_TRY(bt_json_u32(&config, "default_num_special_tokens", (uint32_t)n_named, MAX_SPECIAL,
                       &l->n_special));
    BT_TRY(bt_json_u32(&config, "default_vocab_size", l->n_special + 256,
                       l->n_special + (uint32_t)n_vocab, &l->tok->n_tokens));
out:
    return st;
}

bt_status bt_tokenizer_load_tekken(bt_tokenizer *tok, const char *path)
{
    bt_status st   = BT_OK;
    json_t   *json = NULL;
    loading   l    = {.tok = tok, .path = path};

    BT_TRY(bt_json_read_nul(path, MAX_FILE_BYTES, &json)); /* token_str of the byte 0 */
    BT_TRY(check_frame(&l, json));
    BT_TRY(measure(&l));
    BT_TRY(load_special(&l));
    BT_TRY(load_vocab(&l));
    BT_TRY(load_regex(&l));
    BT_TRY(load_ends(&l));
out:
    json_decref(json);
    return st;
}

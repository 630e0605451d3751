#include <string.h>

#include "core/alloc.h"
#include "model/byte_level.h"
#include "model/json.h"
#include "model/tokenizer_parts.h"
#include "model/utf8.h"

enum {
    MAX_FILE_BYTES = 256 << 20,
    MAX_UNUSED     = 1 << 16, /* ids, beyond as many as there are tokens */
    MAX_MERGED     = 1 << 14
};

/* What the parts of tokenizer.json are read with. */
typedef struct {
    bt_tokenizer *tok;
    const char   *path;
    json_t       *model, *vocab, *merges, *added;
    size_t        arena_at, added_bytes;
    uint32_t      max_id; /* ids that nobody has cost memory all the same */
} loading;

static bt_status id_of(const loading *l, const char *what, const json_t *v, uint32_t *id_out)
{
    bt_status st = BT_OK;
    char      name[BT_JSON_SHOW_BYTES], found[BT_JSON_SHOW_BYTES];

    BT_REQUIRE(json_is_integer(v) && json_integer_value(v) >= 0 &&
                   json_integer_value(v) <= l->max_id,
               BT_ERR_FORMAT, "%s: token \"%s\": expected an id from 0 to %u, found %s", l->path,
               bt_json_printable(what, name, sizeof(name)), l->max_id,
               bt_json_show(v, found, sizeof(found)));
    *id_out = (uint32_t)json_integer_value(v);
out:
    return st;
}

static bt_status added_text(const loading *l, size_t i, const char **text_out)
{
    bt_status  st = BT_OK;
    bt_json_at at = {l->path, "added_tokens", json_array_get(l->added, i)};

    BT_TRY(bt_json_str(&at, "content", text_out));
    BT_REQUIRE((*text_out)[0] != '\0', BT_ERR_FORMAT,
               "%s: field added_tokens[%zu].content: expected text, found none", l->path, i);
out:
    return st;
}

/* Room for all ids and all texts: one look at everything before anything is stored. */
static bt_status measure(loading *l)
{
    bt_status   st    = BT_OK;
    size_t      bytes = 0;
    uint32_t    last = 0, id = 0;
    const char *text;
    json_t     *v;

    json_object_foreach(l->vocab, text, v)
    {
        BT_TRY(id_of(l, text, v, &id));
        bytes += strlen(text);
        last = id > last ? id : last;
    }
    for (size_t i = 0; i < json_array_size(l->added); i++) {
        BT_TRY(added_text(l, i, &text));
        BT_TRY(id_of(l, text, json_object_get(json_array_get(l->added, i), "id"), &id));
        BT_TRY(bt_tokenizer_check_added(l->path, id, text));
        l->added_bytes += strlen(text);
        last = id > last ? id : last;
    }
    bytes += l->added_bytes;
    BT_REQUIRE(bytes < UINT32_MAX, BT_ERR_FORMAT, "%s: expected under 4 GiB of tokens", l->path);
    l->tok->n_tokens = last + 1;
    l->tok->tokens   = bt_calloc(l->tok->n_tokens, sizeof(*l->tok->tokens));
    l->tok->arena    = bt_calloc(bytes + 1, 1);
    BT_REQUIRE(l->tok->tokens != NULL && l->tok->arena != NULL, BT_ERR_NO_MEMORY,
               "%s: %u tokens of %zu bytes", l->path, l->tok->n_tokens, bytes);
out:
    return st;
}

static void store(loading *l, const char *entry, uint32_t id)
{
    bt_vocab_token *t = &l->tok->tokens[id];

    t->at = (uint32_t)l->arena_at;
    t->n  = (uint32_t)bt_byte_level_bytes(entry, strlen(entry), l->tok->arena + l->arena_at,
                                          &t->mapped);
    l->arena_at += t->n;
}

/* The first token of the vocabulary with this id. */
static const char *text_of(const loading *l, uint32_t id)
{
    const char *text;
    json_t     *v;

    json_object_foreach(l->vocab, text, v)
    {
        if (json_integer_value(v) == id) return text;
    }
    return "";
}

static bt_status load_vocab(loading *l)
{
    bt_status   st = BT_OK;
    uint32_t    id = 0;
    const char *text;
    json_t     *v;
    char        name[BT_JSON_SHOW_BYTES], other[BT_JSON_SHOW_BYTES];

    json_object_foreach(l->vocab, text, v)
    {
        BT_TRY(id_of(l, text, v, &id));
        BT_REQUIRE(text[0] != '\0', BT_ERR_FORMAT,
                   "%s: token \"\": expected a text, found none for id %u", l->path, id);
        BT_REQUIRE(l->tok->tokens[id].n == 0, BT_ERR_FORMAT,
                   "%s: token \"%s\": expected an id of its own, found %u, as token \"%s\" has",
                   l->path, bt_json_printable(text, name, sizeof(name)), id,
                   bt_json_printable(text_of(l, id), other, sizeof(other)));
        store(l, text, id);
    }
out:
    return st;
}

/* The ids of the 256 characters that stand for bytes. */
static bt_status find_bytes(loading *l, uint32_t byte_ids[256])
{
    bt_status st = BT_OK;

    for (uint32_t b = 0; b < 256; b++) {
        char    entry[5];
        json_t *v;

        entry[bt_utf8_put(bt_byte_level_char((uint8_t)b), entry)] = '\0';
        v = json_object_get(l->vocab, entry);
        BT_REQUIRE(v != NULL, BT_ERR_UNSUPPORTED,
                   "%s: field model.vocab: expected a token for each byte, found none for 0x%02x",
                   l->path, b);
        BT_TRY(id_of(l, entry, v, &byte_ids[b]));
    }
out:
    return st;
}

/* The two halves of a merge: ["a", "b"] or "a b". */
static bt_status split_merge(const loading *l, size_t i, const char **left_out, size_t *n_left_out,
                             const char **right_out)
{
    bt_status     st    = BT_OK;
    const json_t *v     = json_array_get(l->merges, i);
    const char   *left  = json_string_value(json_is_array(v) ? json_array_get(v, 0) : v);
    const char   *right = json_string_value(json_array_get(v, 1));
    const char   *blank = left != NULL && !json_is_array(v) ? strchr(left, ' ') : NULL;
    char          found[BT_JSON_SHOW_BYTES];

    if (blank != NULL) right = blank + 1;
    BT_REQUIRE(left != NULL && right != NULL && (blank != NULL || json_array_size(v) == 2) &&
                   (blank == NULL || strchr(right, ' ') == NULL),
               BT_ERR_FORMAT,
               "%s: field model.merges[%zu]: expected [\"a\", \"b\"] or \"a b\", found %s", l->path,
               i, bt_json_show(v, found, sizeof(found)));
    *left_out   = left;
    *n_left_out = blank != NULL ? (size_t)(blank - left) : strlen(left);
    *right_out  = right;
out:
    return st;
}

static bt_status add_merge(loading *l, size_t i)
{
    bt_status   st   = BT_OK;
    const char *left = NULL, *right = NULL;
    size_t      n_left = 0, n_right;
    uint32_t    ids[3];
    char        both[MAX_MERGED], name[BT_JSON_SHOW_BYTES];

    BT_TRY(split_merge(l, i, &left, &n_left, &right));
    n_right = strlen(right);
    BT_REQUIRE(n_left + n_right < sizeof(both), BT_ERR_FORMAT,
               "%s: field model.merges[%zu]: expected under %d bytes, found %zu", l->path, i,
               MAX_MERGED, n_left + n_right);
    memcpy(both, left, n_left);
    memcpy(both + n_left, right, n_right + 1);
    for (int part = 0; part < 3; part++) {
        const char *entry = part == 0 ? both + n_left : both; /* right, left, both */
        json_t     *v;

        both[n_left] = part == 1 ? '\0' : *right;
        v            = json_object_get(l->vocab, entry);
        BT_REQUIRE(v != NULL, BT_ERR_FORMAT,
                   "%s: field model.merges[%zu]: expected a token \"%s\" in the vocabulary, found "
                   "none",
                   l->path, i, bt_json_printable(entry, name, sizeof(name)));
        BT_TRY(id_of(l, entry, v, &ids[part]));
    }
    bt_bpe_add(l->tok->bpe, (uint32_t)i, ids[1], ids[0], ids[2]);
out:
    return st;
}

static bt_status load_merges(loading *l)
{
    bt_status st = BT_OK;
    uint32_t  byte_ids[256];

    BT_TRY(find_bytes(l, byte_ids));
    BT_TRY(bt_bpe_create(byte_ids, json_array_size(l->merges), &l->tok->bpe));
    for (size_t i = 0; i < json_array_size(l->merges); i++)
        BT_TRY(add_merge(l, i));
out:
    return st;
}

bt_status bt_tokenizer_check_added(const char *file, uint32_t id, const char *text)
{
    bt_status st = BT_OK;

    BT_REQUIRE(strlen(text) < BT_MAX_TOKEN_BYTES, BT_ERR_FORMAT,
               "%s: expected added tokens of under %d bytes, found id %u of %zu", file,
               BT_MAX_TOKEN_BYTES, id, strlen(text));
out:
    return st;
}

bt_status bt_tokenizer_refuse_strips(const bt_json_at *at, const char *text)
{
    static const char *const FLAGS[] = {"single_word", "lstrip", "rstrip"};
    bt_status                st      = BT_OK;
    char                     name[BT_JSON_SHOW_BYTES];

    for (int i = 0; i < 3; i++)
        BT_REQUIRE(!json_is_true(json_object_get(at->obj, FLAGS[i])), BT_ERR_UNSUPPORTED,
                   "%s: added token \"%s\": field %s: expected false, found true", at->file,
                   bt_json_printable(text, name, sizeof(name)), FLAGS[i]);
out:
    return st;
}

static bt_status add_added(loading *l, size_t i)
{
    bt_status   st = BT_OK;
    bt_json_at  at = {l->path, "added_tokens", json_array_get(l->added, i)};
    uint32_t    id = 0, in_vocab = 0, first;
    const char *text = NULL;
    json_t     *v;
    bool        normalized = false;
    char        name[BT_JSON_SHOW_BYTES];

    BT_TRY(added_text(l, i, &text));
    BT_TRY(id_of(l, text, json_object_get(at.obj, "id"), &id));
    BT_TRY(bt_tokenizer_refuse_strips(&at, text));
    if (bt_json_field(&at, "normalized") != NULL)
        BT_TRY(bt_json_bool(&at, "normalized", &normalized));
    v = json_object_get(l->vocab, text);
    if (v != NULL) BT_TRY(id_of(l, text, v, &in_vocab));
    BT_REQUIRE(v == NULL || in_vocab == id, BT_ERR_FORMAT,
               "%s: added token \"%s\": expected the id of the vocabulary, %u, found %u", l->path,
               bt_json_printable(text, name, sizeof(name)), in_vocab, id);
    BT_REQUIRE(v != NULL || l->tok->tokens[id].n == 0, BT_ERR_FORMAT,
               "%s: added token \"%s\": expected an id of its own, found %u, which another has",
               l->path, bt_json_printable(text, name, sizeof(name)), id);
    if (v == NULL) {
        store(l, text, id);
        l->tok->tokens[id].mapped = false;
    }
    l->tok->tokens[id].special = json_is_true(json_object_get(at.obj, "special"));
    first = bt_added_tokens_add(l->tok->added[normalized], text, strlen(text), id);
    BT_REQUIRE(first == id, BT_ERR_FORMAT,
               "%s: added token \"%s\": expected one id, found %u and %u", l->path,
               bt_json_printable(text, name, sizeof(name)), first, id);
out:
    return st;
}

static bt_status load_added(loading *l)
{
    bt_status st = BT_OK;

    for (int i = 0; i < BT_N_ADDED_LISTS; i++)
        BT_TRY(bt_added_tokens_create(l->added_bytes, &l->tok->added[i]));
    for (size_t i = 0; i < json_array_size(l->added); i++)
        BT_TRY(add_added(l, i));
out:
    return st;
}

/* Options of the model that would change the tokens. */
static bt_status check_model(loading *l)
{
    static const char *const MUST_BE_NULL[] = {"dropout", "unk_token", "continuing_subword_prefix",
                                               "end_of_word_suffix"};
    bt_status                st             = BT_OK;
    bt_json_at               at             = {l->path, "model", l->model};
    const char              *type           = NULL;
    char                     found[BT_JSON_SHOW_BYTES];

    BT_REQUIRE(json_is_object(l->model), BT_ERR_FORMAT,
               "%s: field model: expected an object, found %s", l->path,
               bt_json_show(l->model, found, sizeof(found)));
    BT_TRY(bt_json_str(&at, "type", &type));
    BT_REQUIRE(strcmp(type, "BPE") == 0, BT_ERR_UNSUPPORTED,
               "%s: field model.type: expected \"BPE\", found \"%s\"", l->path,
               bt_json_printable(type, found, sizeof(found)));
    for (size_t i = 0; i < sizeof(MUST_BE_NULL) / sizeof(MUST_BE_NULL[0]); i++) {
        const json_t *v = bt_json_field(&at, MUST_BE_NULL[i]);

        BT_REQUIRE(v == NULL || (json_is_string(v) && json_string_length(v) == 0) ||
                       (json_is_number(v) && json_number_value(v) == 0),
                   BT_ERR_UNSUPPORTED, "%s: field model.%s: expected null, found %s", l->path,
                   MUST_BE_NULL[i], bt_json_show(v, found, sizeof(found)));
    }
    BT_REQUIRE(!json_is_true(json_object_get(l->model, "byte_fallback")), BT_ERR_UNSUPPORTED,
               "%s: field model.byte_fallback: expected false, found true", l->path);
    l->vocab  = json_object_get(l->model, "vocab");
    l->merges = json_object_get(l->model, "merges");
    BT_REQUIRE(json_is_object(l->vocab), BT_ERR_FORMAT,
               "%s: field model.vocab: expected {text: id}, found %s", l->path,
               bt_json_show(l->vocab, found, sizeof(found)));
    BT_REQUIRE(json_is_array(l->merges), BT_ERR_FORMAT,
               "%s: field model.merges: expected a list, found %s", l->path,
               bt_json_show(l->merges, found, sizeof(found)));
out:
    return st;
}

static bool is_template(const json_t *post)
{
    const char *type = json_string_value(json_object_get(post, "type"));

    return type != NULL && strcmp(type, "TemplateProcessing") == 0;
}

/* The post-processor itself, or one of its sequence; NULL: none of them. */
static const json_t *find_template(const json_t *post)
{
    const json_t *steps = json_object_get(post, "processors");

    if (is_template(post)) return post;
    for (size_t i = 0; i < json_array_size(steps); i++)
        if (is_template(json_array_get(steps, i))) return json_array_get(steps, i);
    return NULL;
}

/* A special token of the post-processor's template. */
static bt_status load_front_token(loading *l, const json_t *template, const json_t *token)
{
    bt_status     st   = BT_OK;
    const char   *name = json_string_value(json_object_get(token, "id"));
    const json_t *ids;
    uint32_t      id = 0;
    char          shown[BT_JSON_SHOW_BYTES], found[BT_JSON_SHOW_BYTES];

    name = name != NULL ? name : "";
    ids  = json_object_get(json_object_get(template, "special_tokens"), name);
    ids  = json_object_get(ids, "ids");
    BT_REQUIRE(l->tok->n_front < BT_MAX_FRONT, BT_ERR_UNSUPPORTED,
               "%s: field post_processor: expected at most %d special tokens in front of a text",
               l->path, BT_MAX_FRONT);
    BT_REQUIRE(json_array_size(ids) == 1, BT_ERR_UNSUPPORTED,
               "%s: field post_processor: expected one id of the special token \"%s\", found %s",
               l->path, bt_json_printable(name, shown, sizeof(shown)),
               bt_json_show(ids, found, sizeof(found)));
    BT_TRY(id_of(l, name, json_array_get(ids, 0), &id));
    BT_REQUIRE(id < l->tok->n_tokens && l->tok->tokens[id].n != 0, BT_ERR_FORMAT,
               "%s: field post_processor: expected the id of a token for \"%s\", found %u", l->path,
               bt_json_printable(name, shown, sizeof(shown)), id);
    l->tok->front[l->tok->n_front++] = id;
out:
    return st;
}

/* Those that the template begins with; those behind a text would end it. */
static bt_status load_front(loading *l, const json_t *post)
{
    bt_status st           = BT_OK;
    const json_t *template = find_template(post);
    const json_t *parts    = json_object_get(template, "single"), *token;

    for (size_t i = 0; i < json_array_size(parts); i++) {
        token = json_object_get(json_array_get(parts, i), "SpecialToken");
        if (token == NULL) break;
        BT_TRY(load_front_token(l, template, token));
    }
out:
    return st;
}

/* Truncation and padding are for the caller to do, and so is what the post-processor adds. */
static bt_status check_frame(loading *l, const json_t *json)
{
    bt_status     st         = BT_OK;
    bt_json_at    at         = {l->path, "", json};
    const json_t *normalizer = bt_json_field(&at, "normalizer");
    const char   *decoder;
    char          found[BT_JSON_SHOW_BYTES];

    BT_REQUIRE(json_is_object(json), BT_ERR_FORMAT, "%s: expected an object, found %s", l->path,
               bt_json_show(json, found, sizeof(found)));
    BT_REQUIRE(normalizer == NULL ||
                   (json_is_array(json_object_get(normalizer, "normalizers")) &&
                    json_array_size(json_object_get(normalizer, "normalizers")) == 0),
               BT_ERR_UNSUPPORTED, "%s: field normalizer: expected none, found %s", l->path,
               bt_json_show(normalizer, found, sizeof(found)));
    decoder = json_string_value(json_object_get(bt_json_field(&at, "decoder"), "type"));
    BT_REQUIRE(decoder != NULL && strcmp(decoder, "ByteLevel") == 0, BT_ERR_UNSUPPORTED,
               "%s: field decoder: expected type ByteLevel, found %s", l->path,
               bt_json_show(bt_json_field(&at, "decoder"), found, sizeof(found)));
    l->model = json_object_get(json, "model");
    l->added = bt_json_field(&at, "added_tokens");
    BT_REQUIRE(l->added == NULL || json_is_array(l->added), BT_ERR_FORMAT,
               "%s: field added_tokens: expected a list, found %s", l->path,
               bt_json_show(l->added, found, sizeof(found)));
    BT_TRY(check_model(l));
    l->max_id = (uint32_t)(json_object_size(l->vocab) + json_array_size(l->added)) + MAX_UNUSED;
out:
    return st;
}

bt_status bt_tokenizer_load(bt_tokenizer *tok, const char *path)
{
    bt_status st   = BT_OK;
    json_t   *json = NULL;
    loading   l    = {.tok = tok, .path = path};

    BT_TRY(bt_json_read_file(path, MAX_FILE_BYTES, &json));
    BT_TRY(check_frame(&l, json));
    BT_TRY(measure(&l));
    BT_TRY(load_vocab(&l));
    if (json_is_true(json_object_get(l.model, "ignore_merges"))) BT_TRY(bt_vocab_sort(tok));
    BT_TRY(load_merges(&l));
    BT_TRY(load_added(&l));
    BT_TRY(load_front(&l, json_object_get(json, "post_processor")));
    BT_TRY(bt_pretokenizer_create(path, json_object_get(json, "pre_tokenizer"), &tok->pre));
out:
    json_decref(json);
    return st;
}

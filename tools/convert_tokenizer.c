/* A tokenizer.json as Hugging Face has it, from the lists of a GGUF file: texts and kinds of all
 * ids, and merges.  How text is cut into pieces the file only names; the regexes stand here. */
#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/minmax.h"
#include "model/json.h"
#include "model/tokenizer.h"
#include "tools/convert.h"

/* Kinds of tokens, as the file numbers them. */
enum { CONTROL = 3, USER_DEFINED = 4, UNUSED = 5 };

#define SPLIT(regex)                                                                       \
    "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" regex "\"},\"behavior\":\"Isolated\"," \
    "\"invert\":false}"
#define SEQUENCE(splits)                                                         \
    "{\"type\":\"Sequence\",\"pretokenizers\":[" splits                          \
    ",{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true," \
    "\"use_regex\":false}]}"

/* clang-format off */
static const char V3[] = SEQUENCE(
    SPLIT("\\\\p{N}{1,3}") ","
    SPLIT("[\\u4e00-\\u9fa5\\u3040-\\u309f\\u30a0-\\u30ff]+") ","
    SPLIT("[!\\\\\\\"#$%&'()*+,\\\\-./:;<=>?@\\\\[\\\\\\\\\\\\]^_`{|}~][A-Za-z]+|[^\\\\r"
          "\\\\n\\\\p{L}\\\\p{P}\\\\p{S}]?[\\\\p{L}\\\\p{M}]+| ?[\\\\p{P}\\\\p{S}]+[\\\\r"
          "\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"));
static const char V2[] = SEQUENCE(
    SPLIT("[\\r\\n]") ","
    SPLIT("\\\\s?[A-Za-z\\u00b5\\u00c0-\\u00d6\\u00d8-\\u00f6\\u00f8-\\u01ba\\u01bc-"
          "\\u01bf\\u01c4-\\u0293\\u0295-\\u02af\\u0370-\\u0373\\u0376\\u0377\\u037b-"
          "\\u037d\\u037f\\u0386\\u0388-\\u038a\\u038c\\u038e-\\u03a1\\u03a3-\\u03f5"
          "\\u03f7-\\u0481\\u048a-\\u052f\\u0531-\\u0556\\u10a0-\\u10c5\\u13a0-\\u13f5"
          "\\u13f8-\\u13fd\\u1c90-\\u1cba\\u1cbd-\\u1cbf\\u1d00-\\u1d2b\\u1d6b-\\u1d77"
          "\\u1d79-\\u1d9a\\u1e00-\\u1f15\\u1f18-\\u1f1d\\u1f20-\\u1f45\\u1f48-\\u1f4d"
          "\\u1f50-\\u1f57\\u1f59\\u1f5b\\u1f5d\\u1f5f-\\u1f7d\\u1f80-\\u1fb4\\u1fb6-"
          "\\u1fbc\\u1fbe\\u1fc2-\\u1fc4\\u1fc6-\\u1fcc\\u1fd0-\\u1fd3\\u1fd6-\\u1fdb"
          "\\u1fe0-\\u1fec\\u1ff2-\\u1ff4\\u1ff6-\\u1ffc\\u2102\\u2107\\u210a-\\u2113"
          "\\u2115\\u2119-\\u211d\\u2124\\u2126\\u2128\\u212a-\\u212d\\u212f-\\u2134"
          "\\u2139\\u213c-\\u213f\\u2145-\\u2149\\u214e\\u2183\\u2184\\u2c00-\\u2c7b"
          "\\u2c7e-\\u2ce4\\u2ceb-\\u2cee\\u2cf2\\u2cf3\\ua640-\\ua66d\\ua680-\\ua69b"
          "\\ua722-\\ua76f\\ua771-\\ua787\\ua78b-\\ua78e\\uab70-\\uabbf\\ufb00-\\ufb06"
          "\\ufb13-\\ufb17\\uff21-\\uff3a\\uff41-\\uff5a\\ud801\\udc00-\\ud801\\udc4f"
          "\\ud801\\udcb0-\\ud801\\udcd3\\ud801\\udcd8-\\ud801\\udcfb\\ud803\\udc80-"
          "\\ud803\\udcb2\\ud803\\udcc0-\\ud803\\udcf2\\ud806\\udca0-\\ud806\\udcdf"
          "\\ud83a\\udd00-\\ud83a\\udd43]+") ","
    SPLIT("\\\\s?[!-/:-~\\uff01-\\uff0f\\uff1a-\\uff5e\\u2018-\\u201f\\u3000-\\u3002]+") ","
    SPLIT("\\\\s+$") ","
    SPLIT("[\\u4e00-\\u9fa5\\u0800-\\u4e00\\uac00-\\ud7ff]+") ","
    "{\"type\":\"Digits\",\"individual_digits\":true}");
/* clang-format on */

typedef struct {
    const bt_gguf *g;
    const char    *dir;
    const char    *pre;    /* JSON text of the pre_tokenizer */
    bt_gguf_text  *tokens; /* owned: [n] */
    uint32_t      *kinds;  /* owned: [n] */
    bt_gguf_text  *merges; /* owned: [n_merges] */
    size_t         n, n_merges;
    uint32_t       bos, eos, pad; /* UINT32_MAX: none */
    bool           add_bos;
    bool           whole_first; /* a piece that is a token as a whole is that token */
} vocabulary;

/* Which pre-tokenizer, or why there is none. */
static bt_status find_pre(vocabulary *v, const char **why_not_out)
{
    static char  why[320];
    char         found[2][64], text[2][64];
    bt_status    st    = BT_OK;
    bt_gguf_text model = {"no_vocab", 8}, pre = {"", 0};

    BT_TRY(bt_gguf_string(v->g, "tokenizer.ggml.model", &model));
    BT_TRY(bt_gguf_string(v->g, "tokenizer.ggml.pre", &pre));
    *why_not_out = NULL;
    if (bt_convert_is(model, "no_vocab") || bt_convert_is(model, "none")) {
        *why_not_out = "the file has no vocabulary";
    } else if (bt_convert_is(model, "gpt2") && bt_convert_is(pre, "deepseek-v3")) {
        v->pre = V3;
    } else if (bt_convert_is(model, "gpt2") && bt_convert_is(pre, "deepseek-llm")) {
        v->pre = V2;
    } else if (bt_convert_is(model, "gpt2") && bt_convert_is(pre, "kimi-k2")) {
        v->pre         = bt_tiktoken_pre;
        v->whole_first = true;
        v->add_bos     = false; /* unless the file says otherwise: the original puts none */
    } else {
        snprintf(text[0], sizeof(text[0]), "%.*s", (int)bt_min_u32((uint32_t)model.n, 63),
                 model.text);
        snprintf(text[1], sizeof(text[1]), "%.*s", (int)bt_min_u32((uint32_t)pre.n, 63), pre.text);
        snprintf(
            why, sizeof(why),
            "expected model gpt2 and pre deepseek-v3, deepseek-llm or kimi-k2, found \"%s\" and "
            "\"%s\"; copy tokenizer.json and tokenizer_config.json of the original model there",
            bt_json_printable(text[0], found[0], sizeof(found[0])),
            bt_json_printable(text[1], found[1], sizeof(found[1])));
        *why_not_out = why;
    }
out:
    return st;
}

static bt_status read_vocabulary(vocabulary *v, uint32_t vocab_size)
{
    bt_status   st      = BT_OK;
    size_t      n_kinds = 0;
    const char *path    = bt_gguf_path(v->g);

    BT_TRY(bt_gguf_strings(v->g, "tokenizer.ggml.tokens", &v->tokens, &v->n));
    BT_REQUIRE(v->n >= 1 && v->n <= vocab_size, BT_ERR_FORMAT,
               "%s: key tokenizer.ggml.tokens: expected 1 to %u (rows of token_embd.weight), found "
               "%zu",
               path, vocab_size, v->n);
    v->kinds = bt_calloc(v->n, sizeof(*v->kinds));
    BT_REQUIRE(v->kinds != NULL, BT_ERR_NO_MEMORY, "%s: %zu tokens", path, v->n);
    BT_TRY(bt_gguf_numbers(v->g, "tokenizer.ggml.token_type", v->n, v->kinds, &n_kinds));
    BT_REQUIRE(n_kinds == v->n, BT_ERR_FORMAT,
               "%s: key tokenizer.ggml.token_type: expected %zu, one for each token, found %zu",
               path, v->n, n_kinds);
    BT_TRY(bt_gguf_strings(v->g, "tokenizer.ggml.merges", &v->merges, &v->n_merges));
    BT_TRY(bt_gguf_u32(v->g, "tokenizer.ggml.bos_token_id", 0, (uint32_t)v->n - 1, &v->bos));
    BT_TRY(bt_gguf_u32(v->g, "tokenizer.ggml.eos_token_id", 0, (uint32_t)v->n - 1, &v->eos));
    BT_TRY(bt_gguf_u32(v->g, "tokenizer.ggml.padding_token_id", 0, (uint32_t)v->n - 1, &v->pad));
    BT_TRY(bt_gguf_bool(v->g, "tokenizer.ggml.add_bos_token", &v->add_bos));
out:
    return st;
}

/* A text of the file as JSON, or an error that names its key. */
static bt_status to_json(const vocabulary *v, const char *key, size_t i, bt_gguf_text text,
                         json_t **json_out)
{
    bt_status st   = BT_OK;
    json_t   *json = json_stringn(text.text, text.n);

    BT_REQUIRE(json != NULL, BT_ERR_FORMAT,
               "%s: key %s[%zu]: expected UTF-8, found %zu bytes that "
               "are none",
               bt_gguf_path(v->g), key, i, text.n);
    *json_out = json;
out:
    return st;
}

/* Every id but the unused ones, which fill the table up to the size of the model, and of which bos,
 * eos and pad are none; those that text is searched for are listed a second time. */
static bt_status make_tokens(const vocabulary *v, json_t *vocab, json_t *added)
{
    bt_status st   = BT_OK;
    json_t   *text = NULL;

    for (size_t i = 0; i < v->n; i++) {
        if (v->kinds[i] == UNUSED && i != v->bos && i != v->eos && i != v->pad) continue;
        BT_TRY(to_json(v, "tokenizer.ggml.tokens", i, v->tokens[i], &text));
        BT_REQUIRE(json_object_get(vocab, json_string_value(text)) == NULL, BT_ERR_FORMAT,
                   "%s: key tokenizer.ggml.tokens[%zu]: expected a text of its own, found \"%.*s\" "
                   "twice",
                   bt_gguf_path(v->g), i, v->tokens[i].n < 64 ? (int)v->tokens[i].n : 64,
                   v->tokens[i].text);
        BT_REQUIRE(
            json_object_set_new(vocab, json_string_value(text), json_integer((json_int_t)i)) == 0,
            BT_ERR_NO_MEMORY, "%s: token %zu", bt_gguf_path(v->g), i);
        if (v->kinds[i] == CONTROL || v->kinds[i] == USER_DEFINED)
            BT_REQUIRE(
                json_array_append_new(
                    added, json_pack("{s:I, s:O, s:b, s:b, s:b, s:b, s:b}", "id", (json_int_t)i,
                                     "content", text, "single_word", 0, "lstrip", 0, "rstrip", 0,
                                     "normalized", 0, "special", v->kinds[i] == CONTROL)) == 0,
                BT_ERR_NO_MEMORY, "%s: token %zu", bt_gguf_path(v->g), i);
        json_decref(text);
        text = NULL;
    }
out:
    json_decref(text);
    return st;
}

static bt_status make_merges(const vocabulary *v, json_t *merges)
{
    bt_status st   = BT_OK;
    json_t   *text = NULL;

    for (size_t i = 0; i < v->n_merges; i++) {
        BT_TRY(to_json(v, "tokenizer.ggml.merges", i, v->merges[i], &text));
        BT_REQUIRE(json_array_append_new(merges, text) == 0, BT_ERR_NO_MEMORY, "%s: merge %zu",
                   bt_gguf_path(v->g), i);
    }
out:
    return st;
}

/* The token's text, or null. */
static json_t *text_of(const vocabulary *v, uint32_t id)
{
    return id == UINT32_MAX ? json_null() : json_stringn(v->tokens[id].text, v->tokens[id].n);
}

/* Begin-of-text in front of a text, where the model wants that. */
static json_t *post_processor(const vocabulary *v)
{
    json_t *bos, *whole;

    if (!v->add_bos || v->bos == UINT32_MAX) return json_null();
    bos = text_of(v, v->bos);
    whole =
        json_pack("{s:s, s:[{s:{s:O, s:i}}, {s:{s:s, s:i}}], s:[{s:{s:s, s:i}}, {s:{s:s, s:i}}], "
                  "s:{s:{s:O, s:[I], s:[O]}}}",
                  "type", "TemplateProcessing", "single", "SpecialToken", "id", bos, "type_id", 0,
                  "Sequence", "id", "A", "type_id", 0, "pair", "Sequence", "id", "A", "type_id", 0,
                  "Sequence", "id", "B", "type_id", 1, "special_tokens", json_string_value(bos),
                  "id", bos, "ids", (json_int_t)v->bos, "tokens", bos);
    json_decref(bos);
    return whole;
}

static bt_status write_json(const vocabulary *v, const char *name, const json_t *json)
{
    bt_status st = BT_OK;
    char      path[PATH_MAX];

    BT_REQUIRE(json != NULL, BT_ERR_NO_MEMORY, "%s/%s", v->dir, name);
    BT_REQUIRE(snprintf(path, sizeof(path), "%s/%s", v->dir, name) < PATH_MAX, BT_ERR_IO,
               "%s: expected a path under %d bytes", v->dir, PATH_MAX);
    BT_REQUIRE(json_dump_file(json, path, JSON_INDENT(1)) == 0, BT_ERR_IO, "%s: %s", path,
               strerror(errno));
out:
    return st;
}

static bt_status write_tokenizer(const vocabulary *v)
{
    bt_status st    = BT_OK;
    json_t   *vocab = json_object(), *merges = json_array(), *added = json_array(), *json = NULL;

    BT_TRY(make_tokens(v, vocab, added));
    BT_TRY(make_merges(v, merges));
    json =
        json_pack("{s:s, s:n, s:n, s:O, s:n, s:o, s:o, s:{s:s, s:b, s:b, s:b}, s:{s:s, s:n, s:n, "
                  "s:n, s:n, s:b, s:b, s:b, s:O, s:O}}",
                  "version", "1.0", "truncation", "padding", "added_tokens", added, "normalizer",
                  "pre_tokenizer", json_loads(v->pre, 0, NULL), "post_processor", post_processor(v),
                  "decoder", "type", "ByteLevel", "add_prefix_space", 1, "trim_offsets", 1,
                  "use_regex", 1, "model", "type", "BPE", "dropout", "unk_token",
                  "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", 0, "byte_fallback",
                  0, "ignore_merges", v->whole_first, "vocab", vocab, "merges", merges);
    BT_TRY(write_json(v, "tokenizer.json", json));
out:
    json_decref(vocab);
    json_decref(merges);
    json_decref(added);
    json_decref(json);
    return st;
}

static bt_status write_tokenizer_config(const vocabulary *v)
{
    bt_status    st        = BT_OK;
    bt_gguf_text templated = {0};
    json_t      *text      = NULL;
    json_t      *json =
        json_pack("{s:s, s:b, s:b, s:b, s:o, s:o, s:o}", "tokenizer_class",
                  "PreTrainedTokenizerFast", "add_bos_token", v->add_bos, "add_eos_token", 0,
                  "clean_up_tokenization_spaces", 0, "bos_token", text_of(v, v->bos), "eos_token",
                  text_of(v, v->eos), "pad_token", text_of(v, v->pad));

    BT_TRY(bt_gguf_string(v->g, "tokenizer.chat_template", &templated));
    if (templated.text != NULL) {
        BT_TRY(to_json(v, "tokenizer.chat_template", 0, templated, &text));
        BT_REQUIRE(json_object_set_new(json, "chat_template", text) == 0, BT_ERR_NO_MEMORY,
                   "%s: chat template", bt_gguf_path(v->g));
    }
    BT_TRY(write_json(v, "tokenizer_config.json", json));
out:
    json_decref(json);
    return st;
}

bt_status bt_convert_tokenizer(const bt_gguf *g, uint32_t vocab_size, const char *dir,
                               const char **why_not_out)
{
    bt_status     st  = BT_OK;
    bt_tokenizer *tok = NULL;
    vocabulary    v   = {.g       = g,
                         .dir     = dir,
                         .bos     = UINT32_MAX,
                         .eos     = UINT32_MAX,
                         .pad     = UINT32_MAX,
                         .add_bos = true};

    BT_TRY(find_pre(&v, why_not_out));
    if (*why_not_out != NULL) goto out;
    BT_TRY(read_vocabulary(&v, vocab_size));
    BT_TRY(write_tokenizer(&v));
    BT_TRY(write_tokenizer_config(&v));
    BT_TRY(bt_tokenizer_open(dir, &tok)); /* merges that no token is for, and the like */
out:
    bt_tokenizer_close(tok);
    bt_free(v.tokens);
    bt_free(v.kinds);
    bt_free(v.merges);
    return st;
}

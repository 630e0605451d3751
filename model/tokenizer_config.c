/* What stands beside the tokenizer's file: bos, eos, whether bos begins a text, and the chat
 * template. */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/file.h"
#include "model/json.h"
#include "model/tokenizer_parts.h"

enum { MAX_CONFIG_BYTES = 64 << 20, MAX_TEMPLATE_BYTES = 1 << 20 };

/* A token's text, spelled "text" or {"content": "text"}. */
static bt_status read_text(const bt_json_at *at, const char *field, char **text_out)
{
    bt_status     st   = BT_OK;
    const json_t *v    = bt_json_field(at, field);
    const char   *text = json_string_value(json_is_object(v) ? json_object_get(v, "content") : v);
    char          found[BT_JSON_SHOW_BYTES];

    if (v == NULL) goto out;
    BT_REQUIRE(text != NULL, BT_ERR_FORMAT, "%s: field %s: expected a text, found %s", at->file,
               field, bt_json_show(v, found, sizeof(found)));
    bt_free(*text_out);
    *text_out = bt_strdup(text);
    BT_REQUIRE(*text_out != NULL, BT_ERR_NO_MEMORY, "%s", at->file);
out:
    return st;
}

/* Who completes text needs no template: why one cannot be used is told who wants a chat. */
static bt_status refuse_chat(bt_tokenizer *tok, const char *path, const char *why)
{
    bt_status st = BT_OK;
    size_t    n  = strlen(path) + strlen(why) + 3;

    tok->no_chat = bt_calloc(n, 1);
    BT_REQUIRE(tok->no_chat != NULL, BT_ERR_NO_MEMORY, "%s", path);
    snprintf(tok->no_chat, n, "%s: %s", path, why);
out:
    return st;
}

/* chat_template: a text, or a list of {name, template} of which "default" counts. */
static bt_status read_template(const bt_json_at *at, bt_tokenizer *tok)
{
    bt_status     st = BT_OK;
    const json_t *v  = bt_json_field(at, "chat_template");
    const json_t *of = v;
    char          found[BT_JSON_SHOW_BYTES], why[BT_JSON_SHOW_BYTES + 96];

    if (v == NULL) goto out;
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *entry = json_array_get(v, i);
        const char   *name  = json_string_value(json_object_get(entry, "name"));

        if (name != NULL && strcmp(name, "default") == 0) of = json_object_get(entry, "template");
    }
    if (!json_is_string(of)) {
        snprintf(why, sizeof(why),
                 "field chat_template: expected a text, or a list with one named default, found %s",
                 bt_json_show(v, found, sizeof(found)));
        BT_TRY(refuse_chat(tok, at->file, why));
        goto out;
    }
    tok->chat_template = bt_strdup(json_string_value(of));
    tok->chat_path     = bt_strdup(at->file);
    BT_REQUIRE(tok->chat_template != NULL && tok->chat_path != NULL, BT_ERR_NO_MEMORY, "%s",
               at->file);
out:
    return st;
}

/* Newer checkpoints keep the template in a file of its own, which counts before the other. */
static bt_status read_template_file(const char *path, bt_tokenizer *tok)
{
    bt_status   st   = BT_OK;
    const char *why  = NULL;
    FILE       *f    = bt_open_regular(path, &why);
    char       *text = NULL;
    size_t      n;

    if (f == NULL) {
        BT_TRY(refuse_chat(tok, path, why));
        goto out;
    }
    text = bt_calloc(MAX_TEMPLATE_BYTES + 1, 1);
    BT_REQUIRE(text != NULL, BT_ERR_NO_MEMORY, "%s", path);
    n = fread(text, 1, MAX_TEMPLATE_BYTES + 1, f);
    if (ferror(f) != 0 || n > MAX_TEMPLATE_BYTES || memchr(text, 0, n) != NULL) {
        BT_TRY(refuse_chat(
            tok, path, ferror(f) != 0 ? "it cannot be read" : "expected a text of at most 1 MiB"));
        goto out;
    }
    tok->chat_template = text;
    text               = NULL;
    tok->chat_path     = bt_strdup(path);
    BT_REQUIRE(tok->chat_path != NULL, BT_ERR_NO_MEMORY, "%s", path);
out:
    bt_free(text);
    if (f != NULL) fclose(f);
    return st;
}

bt_status bt_tokenizer_load_config(bt_tokenizer *tok, const char *dir)
{
    bt_status  st   = BT_OK;
    json_t    *json = NULL;
    bt_json_at at;
    bool       add_bos = false;
    char       path[PATH_MAX], found[BT_JSON_SHOW_BYTES];

    snprintf(path, sizeof(path), "%s/chat_template.jinja", dir);
    if (bt_file_exists(path)) BT_TRY(read_template_file(path, tok));
    snprintf(path, sizeof(path), "%s/tokenizer_config.json", dir);
    if (tok->tiktoken || bt_file_exists(path)) {
        BT_TRY(bt_json_read_loose(path, MAX_CONFIG_BYTES, &json)); /* model_max_length: 1e30 */
        BT_REQUIRE(json_is_object(json), BT_ERR_FORMAT, "%s: expected an object, found %s", path,
                   bt_json_show(json, found, sizeof(found)));
        at = (bt_json_at){path, "", json};
        if (tok->tiktoken) BT_TRY(bt_tiktoken_load_special(tok, &at));
        BT_TRY(read_text(&at, "bos_token", &tok->bos));
        BT_TRY(read_text(&at, "eos_token", &tok->eos));
        if (bt_json_field(&at, "add_bos_token") != NULL) {
            BT_TRY(bt_json_bool(&at, "add_bos_token", &add_bos));
            tok->add_bos = add_bos ? BT_ADD_BOS : BT_ADD_NO_BOS;
        }
        if (tok->chat_template == NULL && tok->no_chat == NULL) BT_TRY(read_template(&at, tok));
    }
out:
    json_decref(json);
    return st;
}

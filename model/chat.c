/* Chat templates by recognition: the Jinja text is compared with those that this file can render;
 * any other is refused with its beginning. */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/file.h"
#include "model/json.h"
#include "model/tokenizer_parts.h"

#define USER "<\xef\xbd\x9cUser\xef\xbd\x9c>"
#define ASSISTANT   \
    "<\xef\xbd\x9c" \
    "Assistant\xef\xbd\x9c>"
#define V3_EOS      \
    "<\xef\xbd\x9c" \
    "end\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>"

enum { MAX_CONFIG_BYTES = 64 << 20, MAX_TEMPLATE_BYTES = 1 << 20 };

/* What a template writes around each message. */
typedef struct {
    const char *name;
    const char *after_system, *before_user, *after_user, *before_assistant;
    const char *after_assistant; /* NULL: the tokenizer's eos text */
    const char *prompt;          /* what asks for an answer */
    enum { SYSTEM_IN_PLACE, SYSTEM_LAST_IN_FRONT, SYSTEM_JOINED_IN_FRONT } system;
} style;

static const style V2   = {"DeepSeek-V2", "\n\n", "User: ",     "\n\n",
                           "Assistant: ", NULL,   "Assistant:", SYSTEM_IN_PLACE};
static const style DEMO = {"demo", "", USER, "", ASSISTANT, V3_EOS, ASSISTANT, SYSTEM_IN_PLACE};
static const style V3   = {"DeepSeek-V3", "",     USER,      "",
                           ASSISTANT,     V3_EOS, ASSISTANT, SYSTEM_LAST_IN_FRONT};
static const style V3_JOINED = {"DeepSeek-V3-0324", "",     USER,      "",
                                ASSISTANT,          V3_EOS, ASSISTANT, SYSTEM_JOINED_IN_FRONT};

/* Pieces of a template, without the blanks that mean nothing to Jinja. */
#define DEMO_TEXT                                                                        \
    "{{bos_token}}{%forminmessages%}{%ifm['role']=='system'%}{{m['content']}}"           \
    "{%elifm['role']=='user'%}{{'" USER "'+m['content']}}{%elifm['role']=='assistant'%}" \
    "{{'" ASSISTANT "'+m['content']+'" V3_EOS "'}}{%endif%}{%endfor%}"                   \
    "{%ifadd_generation_prompt%}{{'" ASSISTANT "'}}{%endif%}"
#define V2_TEXT                                                                       \
    "{{bos_token}}{%formessageinmessages%}{%ifmessage['role']=='user'%}"              \
    "{{'User: '+message['content']+'\\n\\n'}}{%elifmessage['role']=='assistant'%}"    \
    "{{'Assistant: '+message['content']+eos_token}}{%elifmessage['role']=='system'%}" \
    "{{message['content']+'\\n\\n'}}{%endif%}{%endfor%}"                              \
    "{%ifadd_generation_prompt%}{{'Assistant:'}}{%endif%}"
#define DEFAULT_PROMPT_TEXT \
    "{%ifnotadd_generation_promptisdefined%}{%setadd_generation_prompt=false%}{%endif%}"
/* V3's differ in what they do with tools; without tools these decide what is written. */
static const char *const V3_PARTS[] = {
    "{{bos_token}}{{ns.system_prompt}}",
    "{{'" USER "'+message['content']}}",
    "{{'" ASSISTANT "'+message['content']+'" V3_EOS "'}}",
};
#define V3_PROMPT_TEXT "{%ifadd_generation_promptandnotns.is_tool%}{{'" ASSISTANT "'}}{%endif%}"
#define V3_LAST_TEXT   "{%setns.system_prompt=message['content']%}"
#define V3_JOIN_TEXT   "{%setns.system_prompt=ns.system_prompt+'\\n\\n'+message['content']%}"

/* The template without blanks outside quotes and without the dashes that trim them, every quote a
 * single one; *bare_out: whether text stands outside the tags.  `out` holds as many bytes. */
static void squeeze(const char *t, char *out, bool *bare_out)
{
    char   quote  = 0;
    bool   in_tag = false;
    size_t n      = 0;

    *bare_out = false;
    for (; *t != '\0'; t++) {
        bool opened = n >= 2 && out[n - 2] == '{' && (out[n - 1] == '{' || out[n - 1] == '%');
        bool closes = (t[1] == '%' || t[1] == '}') && t[2] == '}';

        if (quote != 0 && *t == '\\' && t[1] != '\0') {
            out[n++] = *t++;
            out[n++] = *t;
        } else if (quote != 0) {
            out[n++] = *t == quote ? '\'' : *t;
            if (*t == quote) quote = 0;
        } else if (strchr(" \n\r\t", *t) != NULL || (*t == '-' && (opened || closes))) {
            continue;
        } else if (in_tag && (*t == '\'' || *t == '"')) {
            quote    = *t;
            out[n++] = '\'';
        } else {
            in_tag    = in_tag || (t[0] == '{' && (t[1] == '{' || t[1] == '%'));
            *bare_out = *bare_out || !in_tag;
            out[n++]  = *t;
            if (*t == '}' && n > 1 && (out[n - 2] == '}' || out[n - 2] == '%')) in_tag = false;
        }
    }
    out[n] = '\0';
}

static bool ends_with(const char *text, const char *tail)
{
    size_t n = strlen(text), n_tail = strlen(tail);

    return n >= n_tail && strcmp(text + n - n_tail, tail) == 0;
}

static const style *recognise_v3(const char *t)
{
    for (size_t i = 0; i < sizeof(V3_PARTS) / sizeof(V3_PARTS[0]); i++)
        if (strstr(t, V3_PARTS[i]) == NULL) return NULL;
    /* reasoning models drop the thoughts of earlier turns, and prompt for new ones */
    if (!ends_with(t, V3_PROMPT_TEXT) || strstr(t, "think") != NULL) return NULL;
    if (strstr(t, V3_JOIN_TEXT) != NULL) return &V3_JOINED;
    return strstr(t, V3_LAST_TEXT) != NULL ? &V3 : NULL;
}

static const style *recognise(const char *squeezed)
{
    const char *t        = squeezed;
    size_t      n_prefix = strlen(DEFAULT_PROMPT_TEXT);

    if (strncmp(t, DEFAULT_PROMPT_TEXT, n_prefix) == 0) t += n_prefix;
    if (strcmp(t, DEMO_TEXT) == 0) return &DEMO;
    if (strcmp(t, V2_TEXT) == 0) return &V2;
    return recognise_v3(t);
}

/* A growing text. */
typedef struct {
    char  *text; /* owned */
    size_t n, capacity;
} writing;

static bt_status put(writing *w, const char *text)
{
    bt_status st = BT_OK;
    size_t    n = strlen(text), capacity = w->capacity < 256 ? 256 : w->capacity;
    char     *grown;

    while (capacity <= w->n + n)
        capacity *= 2;
    if (capacity != w->capacity) {
        grown = bt_realloc(w->text, capacity, 1);
        BT_REQUIRE(grown != NULL, BT_ERR_NO_MEMORY, "chat of %zu bytes", capacity);
        w->text     = grown;
        w->capacity = capacity;
    }
    memcpy(w->text + w->n, text, n + 1);
    w->n += n;
out:
    return st;
}

static bool is_role(const bt_chat_message *m, const char *role)
{
    return strcmp(m->role, role) == 0;
}

static bt_status put_front(writing *w, const style *s, size_t n, const bt_chat_message *messages)
{
    bt_status st   = BT_OK;
    size_t    last = n;

    for (size_t i = 0; i < n; i++) {
        if (!is_role(&messages[i], "system")) continue;
        if (s->system == SYSTEM_JOINED_IN_FRONT) {
            if (last != n) BT_TRY(put(w, "\n\n"));
            BT_TRY(put(w, messages[i].content));
        }
        last = i;
    }
    if (s->system == SYSTEM_LAST_IN_FRONT && last != n) BT_TRY(put(w, messages[last].content));
out:
    return st;
}

static bt_status put_message(writing *w, const bt_tokenizer *tok, const style *s,
                             const bt_chat_message *m)
{
    bt_status   st = BT_OK;
    const char *before, *after;

    if (is_role(m, "system")) {
        if (s->system != SYSTEM_IN_PLACE) goto out; /* it stands in front */
        before = "";
        after  = s->after_system;
    } else if (is_role(m, "user")) {
        before = s->before_user;
        after  = s->after_user;
    } else {
        BT_REQUIRE(is_role(m, "assistant"), BT_ERR_INVALID_ARG,
                   "chat: role: expected system, user or assistant, found \"%.32s\"", m->role);
        before = s->before_assistant;
        after  = s->after_assistant != NULL ? s->after_assistant : tok->eos;
    }
    BT_TRY(put(w, before));
    BT_TRY(put(w, m->content));
    BT_TRY(put(w, after));
out:
    return st;
}

static bt_status find_style(const bt_tokenizer *tok, const style **style_out)
{
    bt_status    st       = BT_OK;
    char        *squeezed = NULL;
    const style *s        = NULL;
    bool         bare     = false;
    char         show[BT_JSON_SHOW_BYTES];

    BT_REQUIRE(
        tok->chat_template != NULL, BT_ERR_UNSUPPORTED,
        "%s: expected a chat_template in tokenizer_config.json, or chat_template.jinja, beside "
        "it, found neither: such a model completes text (`baton generate`)",
        tok->path);
    squeezed = bt_calloc(strlen(tok->chat_template) + 1, 1);
    BT_REQUIRE(squeezed != NULL, BT_ERR_NO_MEMORY, "chat template");
    squeeze(tok->chat_template, squeezed, &bare);
    s = bare ? NULL : recognise(squeezed);
    BT_REQUIRE(s != NULL, BT_ERR_UNSUPPORTED,
               "%s: chat_template: expected DeepSeek-V2's, DeepSeek-V3's or the demo's, found one "
               "of %zu bytes that begins \"%s\"",
               tok->path, strlen(tok->chat_template),
               bt_json_printable(tok->chat_template, show, sizeof(show)));
    BT_REQUIRE(
        tok->bos != NULL && (s->after_assistant != NULL || tok->eos != NULL), BT_ERR_FORMAT,
        "%s: expected bos_token and eos_token in tokenizer_config.json for the chat template "
        "(%s), found none",
        tok->path, s->name);
    *style_out = s;
out:
    bt_free(squeezed);
    return st;
}

bt_status bt_tokenizer_chat(const bt_tokenizer *tok, size_t n, const bt_chat_message *messages,
                            char **text_out)
{
    bt_status    st = BT_OK;
    writing      w  = {0};
    const style *s  = NULL;

    BT_TRY(find_style(tok, &s));
    BT_TRY(put(&w, tok->bos));
    if (s->system != SYSTEM_IN_PLACE) BT_TRY(put_front(&w, s, n, messages));
    for (size_t i = 0; i < n; i++)
        BT_TRY(put_message(&w, tok, s, &messages[i]));
    BT_TRY(put(&w, s->prompt));
    *text_out = w.text;
    w.text    = NULL;
out:
    bt_free(w.text);
    return st;
}

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
    *text_out = bt_strdup(text);
    BT_REQUIRE(*text_out != NULL, BT_ERR_NO_MEMORY, "%s", at->file);
out:
    return st;
}

/* chat_template: a text, or a list of {name, template} of which "default" counts. */
static bt_status read_template(const bt_json_at *at, char **text_out)
{
    bt_status     st = BT_OK;
    const json_t *v  = bt_json_field(at, "chat_template");
    const json_t *of = v;
    char          found[BT_JSON_SHOW_BYTES];

    if (v == NULL) goto out;
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *entry = json_array_get(v, i);
        const char   *name  = json_string_value(json_object_get(entry, "name"));

        if (name != NULL && strcmp(name, "default") == 0) of = json_object_get(entry, "template");
    }
    BT_REQUIRE(json_is_string(of), BT_ERR_FORMAT,
               "%s: field chat_template: expected a text, or a list with one named default, found "
               "%s",
               at->file, bt_json_show(v, found, sizeof(found)));
    *text_out = bt_strdup(json_string_value(of));
    BT_REQUIRE(*text_out != NULL, BT_ERR_NO_MEMORY, "%s", at->file);
out:
    return st;
}

/* Newer checkpoints keep the template in a file of its own. */
static bt_status read_template_file(const char *path, char **text_out)
{
    bt_status   st = BT_OK;
    const char *why;
    FILE       *f    = bt_open_regular(path, &why);
    char       *text = NULL;
    size_t      n;

    BT_REQUIRE(f != NULL, BT_ERR_IO, "%s: %s", path, why);
    text = bt_calloc(MAX_TEMPLATE_BYTES + 1, 1);
    BT_REQUIRE(text != NULL, BT_ERR_NO_MEMORY, "%s", path);
    n = fread(text, 1, MAX_TEMPLATE_BYTES + 1, f);
    BT_REQUIRE(ferror(f) == 0 && n <= MAX_TEMPLATE_BYTES && memchr(text, 0, n) == NULL,
               BT_ERR_FORMAT, "%s: expected a text of at most %d bytes", path, MAX_TEMPLATE_BYTES);
    *text_out = text;
    text      = NULL;
out:
    bt_free(text);
    if (f != NULL) fclose(f);
    return st;
}

bt_status bt_tokenizer_load_chat(bt_tokenizer *tok, const char *dir)
{
    bt_status  st   = BT_OK;
    json_t    *json = NULL;
    bt_json_at at;
    char       path[PATH_MAX], found[BT_JSON_SHOW_BYTES];

    snprintf(path, sizeof(path), "%s/tokenizer_config.json", dir);
    if (bt_json_file_exists(path)) {
        BT_TRY(bt_json_read_file(path, MAX_CONFIG_BYTES, &json));
        BT_REQUIRE(json_is_object(json), BT_ERR_FORMAT, "%s: expected an object, found %s", path,
                   bt_json_show(json, found, sizeof(found)));
        at = (bt_json_at){path, "", json};
        BT_TRY(read_text(&at, "bos_token", &tok->bos));
        BT_TRY(read_text(&at, "eos_token", &tok->eos));
        BT_TRY(read_template(&at, &tok->chat_template));
    }
    snprintf(path, sizeof(path), "%s/chat_template.jinja", dir);
    if (tok->chat_template == NULL && bt_json_file_exists(path))
        BT_TRY(read_template_file(path, &tok->chat_template));
out:
    json_decref(json);
    return st;
}

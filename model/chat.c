/* Chat templates by recognition: the Jinja text is compared with those that this file can render;
 * any other is refused with its beginning. */
#include <string.h>

#include "core/alloc.h"
#include "model/json.h"
#include "model/tokenizer_parts.h"

#define USER "<\xef\xbd\x9cUser\xef\xbd\x9c>"
#define ASSISTANT   \
    "<\xef\xbd\x9c" \
    "Assistant\xef\xbd\x9c>"
#define V3_EOS      \
    "<\xef\xbd\x9c" \
    "end\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>"

#define BLANKS " \n\r\t"

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

/* Templates as squeeze() leaves them. */
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
/* V3's, without the branches for tools. */
#define V3_NAMESPACE "{%setns=namespace("
#define V3_SYSTEM    ")%}{%formessageinmessages%}{%ifmessage['role']=='system'%}"
#define V3_LAST      "{%setns.system_prompt=message['content']%}"
#define V3_JOIN                                                                       \
    "{%ifns.is_first_sp%}{%setns.system_prompt=ns.system_prompt+message['content']%}" \
    "{%setns.is_first_sp=false%}{%else%}"                                             \
    "{%setns.system_prompt=ns.system_prompt+'\\n\\n'+message['content']%}{%endif%}"
#define V3_USER                                                                             \
    "{%endif%}{%endfor%}{{bos_token}}{{ns.system_prompt}}{%formessageinmessages%}"          \
    "{%ifmessage['role']=='user'%}{%setns.is_tool=false%}{{'" USER "'+message['content']}}" \
    "{%endif%}"
#define IF_ASSISTANT "{%ifmessage['role']=='assistant'and"
#define V3_END                                                               \
    "{{'" ASSISTANT "'+message['content']+'" V3_EOS "'}}{%endif%}{%endfor%}" \
    "{%ifadd_generation_promptandnotns.is_tool%}{{'" ASSISTANT "'}}{%endif%}"

/* Messages here have a text and no tools, and none is a tool's: never true, and always of an
 * assistant's. */
static const char *const NEVER[]  = {IF_ASSISTANT "message['content']isnone%}",
                                     IF_ASSISTANT "'tool_calls'inmessage%}",
                                     "{%ifmessage['role']=='tool'%}", "{%ifns.is_tool%}", NULL};
static const char *const ALWAYS[] = {IF_ASSISTANT "message['content']isnotnone%}",
                                     IF_ASSISTANT "'tool_calls'notinmessage%}", NULL};
/* What the namespace may begin with, beside system_prompt and is_first_sp. */
static const char *const NAMES[] = {"is_first=false", "is_tool=false", "is_output_first=true",
                                    NULL};
enum { MAX_BRANCHES = 16 }; /* for tools; V3's have four */

static bool is_tag(const char *t) { return t[0] == '{' && (t[1] == '{' || t[1] == '%'); }

/* Bytes of the tag that begins at t, or 1. */
static size_t step(const char *t)
{
    char   quote = 0, closing = t[1] == '{' ? '}' : '%';
    size_t n;

    if (!is_tag(t)) return 1;
    for (n = 2; t[n] != '\0'; n++) {
        if (quote != 0 && t[n] == '\\' && t[n + 1] != '\0')
            n++;
        else if (quote != 0)
            quote = t[n] == quote ? 0 : quote;
        else if (t[n] == '\'' || t[n] == '"')
            quote = t[n];
        else if (t[n] == closing && t[n + 1] == '}')
            return n + 2;
    }
    return n;
}

/* A tag of n bytes without blanks outside quotes and without the dashes that trim what is around
 * it, every quote a single one.  Returns behind what it writes. */
static char *squeeze_tag(const char *t, size_t n, char *out)
{
    char quote = 0;

    for (size_t i = 0; i < n; i++) {
        if (quote != 0 && t[i] == '\\' && i + 1 < n) {
            *out++ = t[i++];
            *out++ = t[i];
        } else if (quote != 0) {
            *out++ = t[i] == quote ? '\'' : t[i] == '\'' ? '"' : t[i];
            quote  = t[i] == quote ? 0 : quote;
        } else if (t[i] == '\'' || t[i] == '"') {
            *out++ = '\'';
            quote  = t[i];
        } else if (strchr(BLANKS, t[i]) == NULL && (t[i] != '-' || (i != 2 && i + 3 != n))) {
            *out++ = t[i];
        }
    }
    return out;
}

/* Whether Jinja prints any of the blanks of template t from `at` to `end`, as Hugging Face runs it:
 * not the newline behind a {% %} (trim_blocks), not the blanks that begin the line of one
 * (lstrip_blocks), and not the newline that ends the template. */
static bool is_printed(const char *t, const char *at, const char *end)
{
    bool line_begins = at == t;

    if ((at - t > 2 && at[-3] == '-') || (is_tag(end) && end[2] == '-')) return false;
    if (*end == '\0' && end[-1] == '\n') end--;
    if (at - t > 1 && at[-2] == '%' && at < end && *at == '\n') {
        line_begins = true;
        at++;
    }
    if (line_begins && end[0] == '{' && end[1] == '%') at += strspn(at, " \t");
    return at < end;
}

/* The template without what means nothing to Jinja.  `out` holds as many bytes. */
static void squeeze(const char *t, char *out)
{
    for (const char *at = t; *at != '\0';) {
        size_t n = strspn(at, BLANKS);

        if (n != 0) {
            if (is_printed(t, at, at + n)) *out++ = ' ';
        } else {
            n   = step(at);
            out = squeeze_tag(at, n, out);
        }
        at += n;
    }
    *out = '\0';
}

static bool take(const char **t, const char *text)
{
    size_t n    = strlen(text);
    bool   same = strncmp(*t, text, n) == 0;

    if (same) *t += n;
    return same;
}

static bool take_one(const char **t, const char *const *texts)
{
    while (*texts != NULL)
        if (take(t, *texts++)) return true;
    return false;
}

/* Of the {% if %} at t: its {% endif %}, and its {% else %} or NULL.  False: it has more, or what
 * could hide either. */
static bool find_ends(char *t, char **else_out, char **endif_out)
{
    int depth = 0;

    *else_out = NULL;
    for (; *t != '\0'; t += step(t)) {
        const char *at = t;

        if (take(&at, "{#") || take(&at, "{%raw") || (depth == 1 && take(&at, "{%elif")))
            return false;
        if (take(&at, "{%if") || take(&at, "{%for")) depth++;
        if (depth == 1 && take(&at, "{%else%}")) *else_out = t;
        if (take(&at, "{%endif%}") || take(&at, "{%endfor%}")) depth--;
        *endif_out = t;
        if (depth == 0) return true;
    }
    return false;
}

/* Removes the branches that no message here enters from a squeezed template. */
static void prune(char *t)
{
    char *or_else, *endif;

    for (int n = 0; n < MAX_BRANCHES && *t != '\0';) {
        const char *behind = t;

        if (!take_one(&behind, NEVER)) {
            t += step(t);
            continue;
        }
        if (!find_ends(t, &or_else, &endif)) return;
        behind = endif + step(endif);
        memmove(endif, behind, strlen(behind) + 1);
        behind = or_else != NULL ? or_else + step(or_else) : endif;
        memmove(t, behind, strlen(behind) + 1);
        n++;
    }
}

/* V3's differ in what they do with tools, and in what several system texts make. */
static const style *recognise_v3(const char *t)
{
    bool         empty = false, first = false;
    const style *s = NULL;

    if (!take(&t, V3_NAMESPACE)) return NULL;
    do {
        if (take(&t, "system_prompt=''"))
            empty = true;
        else if (take(&t, "is_first_sp=true"))
            first = true;
        else if (!take_one(&t, NAMES))
            return NULL;
    } while (take(&t, ","));
    if (!empty || !take(&t, V3_SYSTEM)) return NULL;
    if (take(&t, V3_LAST))
        s = &V3;
    else if (first && take(&t, V3_JOIN))
        s = &V3_JOINED;
    return take(&t, V3_USER) && take_one(&t, ALWAYS) && strcmp(t, V3_END) == 0 ? s : NULL;
}

static const style *recognise(char *squeezed)
{
    char  *t        = squeezed;
    size_t n_prefix = strlen(DEFAULT_PROMPT_TEXT);

    if (strncmp(t, DEFAULT_PROMPT_TEXT, n_prefix) == 0) t += n_prefix;
    if (strcmp(t, DEMO_TEXT) == 0) return &DEMO;
    if (strcmp(t, V2_TEXT) == 0) return &V2;
    prune(t);
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
    char         show[BT_JSON_SHOW_BYTES];

    BT_REQUIRE(
        tok->chat_template != NULL, BT_ERR_UNSUPPORTED,
        "%s: expected a chat_template in tokenizer_config.json, or chat_template.jinja, beside "
        "it, found neither: such a model completes text (`baton generate`)",
        tok->path);
    squeezed = bt_calloc(strlen(tok->chat_template) + 1, 1);
    BT_REQUIRE(squeezed != NULL, BT_ERR_NO_MEMORY, "chat template");
    squeeze(tok->chat_template, squeezed);
    s = recognise(squeezed);
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

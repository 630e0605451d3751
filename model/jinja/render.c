/* A rendering from its beginning to its end: memory, the template's lines, what a template is
 * given. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "model/jinja/parts.h"
#include "model/json.h"

enum { BLOCK_BYTES = 64 << 10, MOST_BYTES = 256 << 20, MOST_STEPS = 20000000, SHOWN = 40 };

struct bt_jinja_block {
    bt_jinja_block *next;
    size_t          used, size;
    _Alignas(16) char bytes[];
};

void *bt_jinja_take(bt_jinja *j, size_t n, size_t size)
{
    bt_jinja_block *b = j->blocks;
    size_t          bytes;
    void           *at;

    if (n > MOST_BYTES || n * size > MOST_BYTES - j->n_bytes) return NULL;
    bytes = (n * size + 15) / 16 * 16;
    if (b == NULL || b->size - b->used < bytes) {
        size_t room = bytes > BLOCK_BYTES ? bytes : BLOCK_BYTES;

        b = bt_calloc(1, sizeof(*b) + room);
        if (b == NULL) return NULL;
        *b         = (bt_jinja_block){.next = j->blocks, .size = room};
        j->blocks  = b;
        j->n_bytes = j->n_bytes + room < MOST_BYTES ? j->n_bytes + room : MOST_BYTES;
    }
    at = b->bytes + b->used;
    b->used += bytes;
    return at;
}

static void give_back(bt_jinja *j)
{
    while (j->blocks != NULL) {
        bt_jinja_block *next = j->blocks->next;

        bt_free(j->blocks);
        j->blocks = next;
    }
}

static uint32_t line_of(const bt_jinja *j, const char *at)
{
    uint32_t line = 1;

    for (const char *c = j->text; c < at; c++)
        if (*c == '\n') line++;
    return line;
}

bt_status bt_jinja_refuse(const bt_jinja *j, const char *where, bt_status st, const char *format,
                          ...)
{
    char    why[BT_JINJA_WHY_BYTES], shown[BT_JINJA_WHY_BYTES];
    va_list args;

    va_start(args, format);
    vsnprintf(why, sizeof(why), format, args);
    va_end(args);
    BT_REQUIRE(false, st, "%s: chat template, line %u: %s", j->name, line_of(j, where),
               bt_json_printable(why, shown, sizeof(shown)));
out:
    return st;
}

bt_status bt_jinja_count(bt_jinja *j, const char *at, size_t n)
{
    bt_status st = BT_OK;

    j->n_steps += n;
    BT_JINJA_REQUIRE(j, at, j->n_steps <= MOST_STEPS, BT_ERR_UNSUPPORTED,
                     "expected an end within %d steps", MOST_STEPS);
out:
    return st;
}

bool bt_jinja_is(bt_jinja_text text, const char *word)
{
    return text.n == strlen(word) && memcmp(text.s, word, text.n) == 0;
}

int bt_jinja_shown(bt_jinja_text text) { return text.n < SHOWN ? (int)text.n : SHOWN; }

/* Lines end in \n, and one such end at the end is none of the text's. */
static bt_status take_text(bt_jinja *j, const char *text)
{
    bt_status st = BT_OK;
    size_t    n  = 0;
    char     *own;

    BT_JINJA_NEW(j, own, strlen(text) + 1);
    for (const char *c = text; *c != '\0'; c++) {
        own[n++] = *c == '\r' ? '\n' : *c;
        if (c[0] == '\r' && c[1] == '\n') c++;
    }
    if (n != 0 && own[n - 1] == '\n') own[--n] = '\0';
    j->text = own;
out:
    return st;
}

static bt_status put_text(bt_jinja *j, bt_jinja_map *map, const char *key, const char *text)
{
    return bt_jinja_put(j, map, bt_jinja_word(key), bt_jinja_string(text, strlen(text)));
}

/* As apply_chat_template() gives them to a template, for messages of text without tools. */
static bt_status put_globals(bt_jinja *j, const bt_jinja_chat *chat, bt_jinja_map *globals)
{
    bt_status      st   = BT_OK;
    bt_jinja_value none = {.kind = BT_JINJA_IS_NONE};
    bt_jinja_value list = {
        .kind = BT_JINJA_IS_LIST, .list = {NULL, chat->n_messages}
    };
    bt_jinja_value *message;

    BT_JINJA_NEW(j, list.list.at, chat->n_messages);
    for (size_t i = 0; i < chat->n_messages; i++) {
        message       = &list.list.at[i];
        message->kind = BT_JINJA_IS_MAP;
        BT_JINJA_NEW(j, message->map, 1);
        BT_TRY(put_text(j, message->map, "role", chat->messages[i].role));
        BT_TRY(put_text(j, message->map, "content", chat->messages[i].content));
    }
    BT_TRY(bt_jinja_put(j, globals, bt_jinja_word("messages"), list));
    BT_TRY(bt_jinja_put(j, globals, bt_jinja_word("tools"), none));
    BT_TRY(bt_jinja_put(j, globals, bt_jinja_word("documents"), none));
    BT_TRY(bt_jinja_put(j, globals, bt_jinja_word("add_generation_prompt"), bt_jinja_bool(true)));
    if (chat->bos != NULL) BT_TRY(put_text(j, globals, "bos_token", chat->bos));
    if (chat->eos != NULL) BT_TRY(put_text(j, globals, "eos_token", chat->eos));
    if (chat->think != BT_THINK_UNSAID) {
        bt_jinja_value think = bt_jinja_bool(chat->think == BT_THINK_YES);

        BT_TRY(bt_jinja_put(j, globals, bt_jinja_word("thinking"), think));
        BT_TRY(bt_jinja_put(j, globals, bt_jinja_word("enable_thinking"), think));
    }
out:
    return st;
}

bt_status bt_jinja_render(const bt_jinja_chat *chat, char **text_out)
{
    bt_status      st      = BT_OK;
    bt_jinja       j       = {.name = chat->name, .text = ""};
    bt_jinja_map   globals = {0};
    bt_jinja_node *body    = NULL;
    char          *text    = NULL;

    BT_TRY(take_text(&j, chat->text));
    BT_TRY(bt_jinja_parse_template(&j, &body));
    BT_TRY(put_globals(&j, chat, &globals));
    BT_TRY(bt_jinja_run(&j, body, &globals));
    text = bt_calloc(j.n_out + 1, 1);
    BT_REQUIRE(text != NULL, BT_ERR_NO_MEMORY, "chat of %zu bytes", j.n_out);
    if (j.n_out != 0) memcpy(text, j.out, j.n_out);
    *text_out = text;
out:
    give_back(&j);
    return st;
}

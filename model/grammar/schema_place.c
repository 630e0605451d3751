/* model/grammar/schema_place.c - what every file that reads a JSON schema needs: refusals that name
 * their place, bounds on depth and work, and rules that are known by a text. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "model/grammar/schema.h"
#include "model/json.h"

enum {
    MOST_STEPS  = 1 << 19, /* schemas, keywords and values looked at */
    PLACE_BYTES = 80,
    PLACE_FRONT = 6 /* of them for the last step and ".." */
};

/* ---- refusals */

static char printable(char c) { return c > ' ' && c <= '~' ? c : '?'; }

/* Puts a step's text in front of `at`; returns its new start. */
static size_t put_key(char *text, size_t at, const char *key)
{
    for (size_t i = strlen(key); i-- > 0 && at > PLACE_FRONT;) {
        bool special = key[i] == '~' || key[i] == '/';

        if (special) text[--at] = key[i] == '~' ? '0' : '1';
        text[--at] = special ? '~' : printable(key[i]);
    }
    return at;
}

/* The pointer; a long one without its front.  Returns where in text it begins. */
static const char *place(const bt_schema_at *at, char text[PLACE_BYTES])
{
    size_t n = PLACE_BYTES - 1;
    char   index[24];

    text[n] = '\0';
    for (; at->up != NULL && n > PLACE_FRONT; at = at->up) {
        snprintf(index, sizeof(index), "%zu", at->index);
        n         = put_key(text, n, at->key != NULL ? at->key : index);
        text[--n] = '/';
    }
    if (at->up != NULL || strlen(at->key) > n) {
        text[--n] = '.';
        text[--n] = '.';
        return text + n;
    }
    for (size_t i = strlen(at->key); i-- > 0;)
        text[--n] = printable(at->key[i]);
    return text + n;
}

void bt_schema_refuse(bt_schema *s, const bt_schema_at *at, const char *format, ...)
{
    char    sentence[BT_GRAMMAR_WHY_BYTES], where[PLACE_BYTES];
    va_list args;

    if (s->g->st != BT_OK) return;
    va_start(args, format);
    vsnprintf(sentence, sizeof(sentence), format, args);
    va_end(args);
    bt_parts_refuse(s->g, "at %s: %s", place(at, where), sentence);
}

void bt_schema_unexpected(bt_schema *s, const json_t *schema, const char *keyword,
                          const bt_schema_at *at, const char *expected)
{
    bt_schema_at here = {.up = at, .key = keyword};
    char         found[BT_JSON_SHOW_BYTES];

    bt_schema_refuse(s, &here, "expected %s, found %s", expected,
                     bt_json_show(json_object_get(schema, keyword), found, sizeof(found)));
}

bool bt_schema_step(bt_schema *s, const bt_schema_at *at, size_t n)
{
    bt_parts *g = s->g;

    g->n_steps = n < MOST_STEPS - g->n_steps ? g->n_steps + (uint32_t)n : MOST_STEPS;
    if (g->n_steps == MOST_STEPS)
        bt_schema_refuse(s, at, "the schema is too large%s takes more than %d steps",
                         s->n_before == 0 ? ": reading it" : " beside those before it: reading all",
                         (int)MOST_STEPS);
    return s->g->st == BT_OK;
}

bool bt_schema_enter(bt_schema *s, const bt_schema_at *at)
{
    if (++s->depth > BT_GRAMMAR_DEPTH_MAX)
        bt_schema_refuse(s, at, "more than %d levels deep", (int)BT_GRAMMAR_DEPTH_MAX);
    return bt_schema_step(s, at, 1);
}

void bt_schema_leave(bt_schema *s) { s->depth--; }

size_t bt_schema_weight(const json_t *value)
{
    size_t      n = 1 + json_string_length(value) / 64, i;
    const char *key;
    json_t     *one;

    json_array_foreach(value, i, one) n += bt_schema_weight(one);
    json_object_foreach((json_t *)value, key, one) n += bt_schema_weight(one);
    return n;
}

json_t *bt_schema_owned(bt_schema *s, json_t *value)
{
    if (value == NULL) bt_parts_no_memory(s->g);
    return value;
}

json_t *bt_schema_copy(bt_schema *s, json_t *value)
{
    bool    is_array = json_is_array(value);
    json_t *copy     = bt_schema_owned(s, is_array ? json_array() : json_object());

    if ((is_array ? json_array_extend(copy, value) : json_object_update(copy, value)) != 0)
        bt_parts_no_memory(s->g);
    return copy;
}

json_t *bt_schema_made(bt_schema *s, json_t *schema)
{
    if (json_array_append_new(s->made, schema) == 0) return schema;
    bt_parts_no_memory(s->g); /* and the schema is gone */
    return NULL;
}

bool bt_schema_memo(bt_schema *s, const char *text, uint32_t *rule_out)
{
    const json_t *known = json_object_get(s->memo, text);

    *rule_out = known != NULL ? (uint32_t)json_integer_value(known) : bt_rule_new(s->g, NULL);
    if (known == NULL && json_object_set_new(s->memo, text, json_integer(*rule_out)) != 0)
        bt_parts_no_memory(s->g);
    return known != NULL;
}

static uint32_t count_of(const json_t *value, bool *good)
{
    double v = json_number_value(value);

    *good = json_is_number(value) && v >= 0 && (v >= UINT32_MAX || v == (double)(uint32_t)v);
    return !*good ? 0 : v >= UINT32_MAX ? UINT32_MAX : (uint32_t)v;
}

uint32_t bt_schema_count(bt_schema *s, const json_t *schema, const char *keyword, uint32_t absent,
                         const bt_schema_at *at)
{
    const json_t *value = json_object_get(schema, keyword);
    bool          good;
    uint32_t      n = count_of(value, &good);

    if (value == NULL) return absent;
    if (!good) bt_schema_unexpected(s, schema, keyword, at, "a whole number of at least 0");
    return n;
}

#include "model/grammar/tag_fields.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { PLACE_BYTES = 80, SENTENCE_BYTES = 150 };

static size_t put_place(const bt_tag_at *at, char *out, size_t capacity)
{
    size_t n;
    int    more;

    if (at->up == NULL) return 0;
    n = put_place(at->up, out, capacity);
    if (n >= capacity) return n;
    if (at->key != NULL)
        more = snprintf(out + n, capacity - n, "/%s", at->key);
    else
        more = snprintf(out + n, capacity - n, "/%zu", at->index);
    return n + (size_t)more;
}

/* A text of the client may be cut within a character. */
static void make_ascii(char *text)
{
    for (; *text != '\0'; text++)
        if (*text < ' ' || *text > '~') *text = '?';
}

void bt_tag_refuse(bt_parts *g, const bt_tag_at *at, const char *format, ...)
{
    char    place[PLACE_BYTES] = "", sentence[SENTENCE_BYTES];
    va_list args;

    va_start(args, format);
    vsnprintf(sentence, sizeof(sentence), format, args);
    va_end(args);
    put_place(at, place, sizeof(place));
    make_ascii(place);
    make_ascii(sentence);
    bt_parts_refuse(g, "at %s of the structural tag: %s", place[0] != '\0' ? place : "/", sentence);
}

void bt_tag_add_place(bt_parts *g, const bt_tag_at *at, bool was_ok)
{
    char why[BT_GRAMMAR_WHY_BYTES];

    if (!was_ok || g->st != BT_ERR_INVALID_ARG) return;
    memcpy(why, g->why, sizeof(why));
    g->st = BT_OK;
    bt_tag_refuse(g, at, "%s", why);
}

/* As if it were not there: XGrammar writes all fields that a format may have. */
static bool says_nothing(const json_t *value)
{
    return json_is_null(value) || (json_is_array(value) && json_array_size(value) == 0);
}

void bt_tag_check_fields(bt_parts *g, const json_t *json, const char *const *fields,
                         const bt_tag_at *at)
{
    const char   *key;
    const json_t *value;

    json_object_foreach((json_t *)json, key, value)
    {
        int i = 0;

        if (says_nothing(value)) continue;
        while (i < BT_TAG_FIELDS && fields[i] != NULL && strcmp(fields[i], key) != 0)
            i++;
        if ((i == BT_TAG_FIELDS || fields[i] == NULL) && strcmp(key, "type") != 0)
            bt_tag_refuse(g, at, "the field %.64s is not supported", key);
    }
}

const char *bt_tag_text(bt_parts *g, const json_t *json, const char *key, const bt_tag_at *at)
{
    const char *text = json_string_value(json_object_get(json, key));

    if (text == NULL) bt_tag_refuse(g, at, "%s should be a text", key);
    return text != NULL ? text : "";
}

bool bt_tag_flag(bt_parts *g, const json_t *json, const char *key, const bt_tag_at *at)
{
    const json_t *flag = json_object_get(json, key);

    if (flag != NULL && !json_is_boolean(flag) && !json_is_null(flag))
        bt_tag_refuse(g, at, "%s should be true or false", key);
    return json_is_true(flag);
}

const json_t *bt_tag_list(bt_parts *g, const json_t *json, const char *key, const bt_tag_at *at)
{
    const json_t *list = json_object_get(json, key);

    if (!json_is_array(list) || json_array_size(list) == 0)
        bt_tag_refuse(g, at, "%s should be a list, and not empty", key);
    return list;
}

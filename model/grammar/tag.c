/* model/grammar/tag.c - structural tags: pieces of other constraints within free text.
 *
 * The older form of them, {"structures": [{"begin", "schema", "end"}], "triggers": [..]}, and
 * XGrammar's, {"type": "structural_tag", "format": {..}}.  Free text holds no trigger; where one is
 * complete, it must go on as one of the tags that begin with it (those that begin with a
 * shorter trigger are that one's).  Within a tag, free text does not hold the tag's end either.
 * at_least_one of triggered tags: the first stands at the beginning, as XGrammar has it. */
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "model/grammar/free_text.h"
#include "model/grammar/grammar.h"
#include "model/grammar/tag_fields.h"

enum { MOST_STOPS = 1024 };

typedef struct {
    bt_parts     *g;
    const json_t *ends; /* of the tag around: a text, or several, which free text does not hold */
    uint32_t      depth;
} reader;

typedef struct {
    const char *name;
    bt_part (*read)(reader *r, const json_t *json, const bt_tag_at *at);
    const char *fields[BT_TAG_FIELDS];
} format;

static bt_part read_format(reader *r, const json_t *json, const bt_tag_at *at);

/* ---- constraints of other kinds */

static bt_part read_const(reader *r, const json_t *json, const bt_tag_at *at)
{
    return bt_part_text(r->g, bt_tag_text(r->g, json, "value", at));
}

static bt_part read_schema(reader *r, const json_t *schema, const bt_schema_style *style,
                           const bt_tag_at *at)
{
    bool    was_ok = r->g->st == BT_OK;
    char   *text   = NULL;
    bt_part p      = {0};

    if (schema == NULL) {
        bt_tag_refuse(r->g, at, "a schema is missing");
        return p;
    }
    text = json_dumps(schema, JSON_COMPACT | JSON_ENCODE_ANY);
    if (text != NULL)
        p = bt_read_styled_schema(r->g, text, strlen(text), style);
    else
        bt_parts_no_memory(r->g);
    free(text); /* jansson's */
    bt_tag_add_place(r->g, at, was_ok);
    return p;
}

static bt_part read_json(reader *r, const json_t *json, const bt_tag_at *at)
{
    const json_t          *field = json_object_get(json, "style");
    bool                   plain = field == NULL || json_is_null(field);
    const char            *name  = plain ? "json" : bt_tag_text(r->g, json, "style", at);
    const bt_schema_style *style = bt_schema_style_of(name);

    if (style == NULL && strcmp(name, "json") != 0)
        bt_tag_refuse(r->g, at,
                      "the style %.64s is not supported; json, deepseek_xml and glm_xml are", name);
    if (bt_tag_flag(r->g, json, "any_order", at))
        bt_tag_refuse(r->g, at, "any_order is not supported: members come in the schema's order");
    return read_schema(r, json_object_get(json, "json_schema"), style, at);
}

static bt_part read_regex(reader *r, const json_t *json, const bt_tag_at *at)
{
    const char *text   = bt_tag_text(r->g, json, "pattern", at);
    bool        was_ok = r->g->st == BT_OK;
    bt_part     p      = bt_read_regex(r->g, text, strlen(text), true, false);

    bt_tag_add_place(r->g, at, was_ok);
    return p;
}

static bt_part read_grammar(reader *r, const json_t *json, const bt_tag_at *at)
{
    const json_t *syntax = json_object_get(json, "syntax");
    const char   *text   = bt_tag_text(r->g, json, "grammar", at);
    const char   *name   = json_is_string(syntax) ? json_string_value(syntax) : "";
    bool          was_ok;
    bt_part       p;

    if (syntax != NULL && !json_is_null(syntax) && strcmp(name, "ebnf") != 0)
        bt_tag_refuse(r->g, at, "the only syntax of a grammar that is supported is ebnf");
    was_ok = r->g->st == BT_OK;
    p      = bt_read_ebnf(r->g, text, strlen(text));
    bt_tag_add_place(r->g, at, was_ok);
    return p;
}

/* ---- free text */

typedef struct {
    bt_stop *at; /* owned */
    uint32_t n;
} stops;

static void add_stop(reader *r, stops *s, const json_t *text, bool goes_on, const bt_tag_at *at)
{
    const char *is = json_string_value(text);

    if (is == NULL || is[0] == '\0')
        bt_tag_refuse(r->g, at, "triggers and what is excluded should be texts, and not empty");
    else if (s->n == MOST_STOPS)
        bt_tag_refuse(r->g, at, "more than %d triggers and ends", (int)MOST_STOPS);
    else
        s->at[s->n++] = (bt_stop){.text = is, .goes_on = goes_on};
}

/* A text, or a list of them, or nothing. */
static void add_stops(reader *r, stops *s, const json_t *texts, bool goes_on, const bt_tag_at *at)
{
    if (json_is_array(texts))
        for (size_t i = 0; i < json_array_size(texts) && r->g->st == BT_OK; i++)
            add_stop(r, s, json_array_get(texts, i), goes_on, at);
    else if (texts != NULL && !json_is_null(texts))
        add_stop(r, s, texts, goes_on, at);
}

/* Triggers first. */
static stops read_stops(reader *r, const json_t *json, const json_t *triggers, const bt_tag_at *at)
{
    stops s = {.at = bt_calloc(MOST_STOPS, sizeof(*s.at))};

    if (s.at == NULL) {
        bt_parts_no_memory(r->g);
        return s;
    }
    add_stops(r, &s, triggers, true, at);
    add_stops(r, &s, r->ends, false, at);
    add_stops(r, &s, json_object_get(json, "excludes"), false, at);
    return s;
}

static bt_part read_any_text(reader *r, const json_t *json, const bt_tag_at *at)
{
    stops   s = read_stops(r, json, NULL, at);
    bt_part p = bt_part_free_text(r->g, s.at, s.n, false);

    bt_free(s.at);
    return p;
}

/* ---- tags */

static bool is_no_end(const json_t *end)
{
    const char *text = json_string_value(end);

    return text != NULL && text[0] == '\0';
}

static bt_part read_end(reader *r, const json_t *end, const bt_tag_at *at)
{
    bt_parts *g = r->g;
    bt_part   p = {0};

    if (json_is_string(end)) return bt_part_text(g, json_string_value(end));
    if (!json_is_array(end) || json_array_size(end) == 0)
        bt_tag_refuse(r->g, at, "end should be a text, or a list of them");
    for (size_t i = 0; i < json_array_size(end) && g->st == BT_OK; i++) {
        const char *text = json_string_value(json_array_get(end, i));

        if (text == NULL || text[0] == '\0')
            bt_tag_refuse(r->g, at, "end should be of texts that are not empty");
        else
            p = i == 0 ? bt_part_text(g, text) : bt_part_either(g, p, bt_part_text(g, text));
    }
    return p;
}

/* A tag's begin is checked; what stands behind it comes back. */
static bt_part read_body(reader *r, const json_t *tag, const bt_tag_at *at)
{
    static const char *const NEW[BT_TAG_FIELDS] = {"begin", "content", "end"};
    static const char *const OLD[BT_TAG_FIELDS] = {"begin", "schema", "end"};
    const json_t            *end                = json_object_get(tag, "end");
    const json_t            *schema             = json_object_get(tag, "schema");
    const char              *type               = json_string_value(json_object_get(tag, "type"));
    const bt_tag_at          content = {.up = at, .key = schema != NULL ? "schema" : "content"};
    const json_t            *outer   = r->ends;
    bt_part                  p;

    if (!json_is_object(tag)) bt_tag_refuse(r->g, at, "a tag should be an object");
    if (type != NULL && strcmp(type, "tag") != 0) bt_tag_refuse(r->g, at, "its type should be tag");
    bt_tag_check_fields(r->g, tag, schema != NULL ? OLD : NEW, at);
    bt_tag_text(r->g, tag, "begin", at);
    if (!is_no_end(end)) r->ends = end;
    if (schema != NULL)
        p = read_schema(r, schema, NULL, &content);
    else
        p = read_format(r, json_object_get(tag, "content"), &content);
    r->ends = outer;
    return bt_part_then(r->g, p, read_end(r, end, at));
}

static bt_part read_tag(reader *r, const json_t *json, const bt_tag_at *at)
{
    bt_part begin = bt_part_text(r->g, bt_tag_text(r->g, json, "begin", at));

    return bt_part_then(r->g, begin, read_body(r, json, at));
}

/* The rule of what stands behind each tag's begin; [0] and the others follow each other. */
static uint32_t read_bodies(reader *r, const json_t *tags, const bt_tag_at *list)
{
    uint32_t rule = 0;

    for (size_t i = 0; i < json_array_size(tags); i++) {
        uint32_t next = bt_rule_new(r->g, NULL);

        if (i == 0) rule = next;
    }
    for (size_t i = 0; i < json_array_size(tags) && r->g->st == BT_OK; i++) {
        const bt_tag_at tag = {.up = list, .index = i};

        bt_rule_is(r->g, rule + (uint32_t)i, read_body(r, json_array_get(tags, i), &tag));
    }
    return rule;
}

static const char *begin_of(const json_t *tags, size_t i)
{
    const char *begin = json_string_value(json_object_get(json_array_get(tags, i), "begin"));

    return begin != NULL ? begin : "";
}

/* One of the tags, each as a whole. */
static bt_part one_of_tags(reader *r, const json_t *tags, uint32_t bodies)
{
    bt_parts *g = r->g;
    bt_part   p = {0};

    for (size_t i = 0; i < json_array_size(tags) && g->st == BT_OK; i++) {
        bt_part tag = bt_part_then(g, bt_part_text(g, begin_of(tags, i)),
                                   bt_rule_call(g, bodies + (uint32_t)i));

        p = i == 0 ? tag : bt_part_either(g, p, tag);
    }
    return p;
}

/* The shortest trigger that the tag begins with: it is complete before the others are. */
static bt_stop *trigger_of(const stops *s, const char *begin)
{
    bt_stop *is = NULL;
    size_t   n = 0, n_is = 0;

    for (uint32_t i = 0; i < s->n; i++) {
        if (!s->at[i].goes_on) continue;
        n = strlen(s->at[i].text);
        if (strncmp(s->at[i].text, begin, n) != 0 || (is != NULL && n >= n_is)) continue;
        is   = &s->at[i];
        n_is = n;
    }
    return is;
}

/* Behind each trigger the rest of the tags that begin with it. */
static void add_tags(reader *r, stops *s, const json_t *tags, uint32_t bodies, const bt_tag_at *at)
{
    bt_parts *g = r->g;

    for (uint32_t i = 0; i < s->n; i++)
        s->at[i].then = bt_part_never(g);
    for (size_t i = 0; i < json_array_size(tags) && g->st == BT_OK; i++) {
        const char *begin   = begin_of(tags, i);
        bt_stop    *trigger = trigger_of(s, begin);
        bt_part     rest;

        if (trigger == NULL) {
            bt_tag_refuse(r->g, at, "the tag %.64s begins with no trigger", begin);
            return;
        }
        rest          = bt_part_then(g, bt_part_text(g, begin + strlen(trigger->text)),
                                     bt_rule_call(g, bodies + (uint32_t)i));
        trigger->then = bt_part_either(g, trigger->then, rest);
    }
}

/* key: of the list of tags. */
static bt_part triggered(reader *r, const json_t *json, const char *key, const bt_tag_at *at)
{
    const bt_tag_at list    = {.up = at, .key = key};
    const json_t   *tags    = bt_tag_list(r->g, json, key, at);
    bool            first   = bt_tag_flag(r->g, json, "at_least_one", at);
    bool            is_last = bt_tag_flag(r->g, json, "stop_after_first", at);
    stops           s       = read_stops(r, json, bt_tag_list(r->g, json, "triggers", at), at);
    uint32_t        bodies  = read_bodies(r, tags, &list);
    bt_part         p       = {0};

    add_tags(r, &s, tags, bodies, at);
    if (first) p = one_of_tags(r, tags, bodies);
    if (!first || !is_last) {
        bt_part text = bt_part_free_text(r->g, s.at, s.n, !is_last);

        p = first ? bt_part_then(r->g, p, text) : text;
    }
    bt_free(s.at);
    return p;
}

static bt_part read_triggered(reader *r, const json_t *json, const bt_tag_at *at)
{
    return triggered(r, json, "tags", at);
}

static bt_part read_separated(reader *r, const json_t *json, const bt_tag_at *at)
{
    bt_parts       *g         = r->g;
    const bt_tag_at list      = {.up = at, .key = "tags"};
    const json_t   *tags      = bt_tag_list(r->g, json, "tags", at);
    const char     *separator = bt_tag_text(r->g, json, "separator", at);
    bool            must      = bt_tag_flag(r->g, json, "at_least_one", at);
    bool            is_last   = bt_tag_flag(r->g, json, "stop_after_first", at);
    uint32_t        one       = bt_rule_new(g, NULL);
    bt_part         p, more;

    bt_rule_is(g, one, one_of_tags(r, tags, read_bodies(r, tags, &list)));
    p = bt_rule_call(g, one);
    if (!is_last) {
        more = bt_part_then(g, bt_part_text(g, separator), bt_rule_call(g, one));
        p    = bt_part_then(g, p, bt_part_repeat(g, more, 0, BT_UNLIMITED));
    }
    return must ? p : bt_part_maybe(g, p);
}

/* ---- one after another, one of several */

static bt_part read_elements(reader *r, const json_t *json, const bt_tag_at *at,
                             bt_part (*put)(bt_parts *g, bt_part a, bt_part b))
{
    const bt_tag_at list     = {.up = at, .key = "elements"};
    const json_t   *elements = bt_tag_list(r->g, json, "elements", at);
    bt_part         p        = {0};

    for (size_t i = 0; i < json_array_size(elements) && r->g->st == BT_OK; i++) {
        const bt_tag_at element = {.up = &list, .index = i};
        const bt_part   next    = read_format(r, json_array_get(elements, i), &element);

        p = i == 0 ? next : put(r->g, p, next);
    }
    return p;
}

static bt_part read_sequence(reader *r, const json_t *json, const bt_tag_at *at)
{
    return read_elements(r, json, at, bt_part_then);
}

static bt_part read_or(reader *r, const json_t *json, const bt_tag_at *at)
{
    return read_elements(r, json, at, bt_part_either);
}

/* ---- content that may come several times, or not at all */

static bt_part several(reader *r, const json_t *json, const bt_tag_at *at, uint32_t min,
                       uint32_t max)
{
    const bt_tag_at content = {.up = at, .key = "content"};
    uint32_t        rule    = bt_rule_new(r->g, NULL);

    bt_rule_is(r->g, rule, read_format(r, json_object_get(json, "content"), &content));
    return bt_part_repeat(r->g, bt_rule_call(r->g, rule), min, max);
}

static bt_part read_optional(reader *r, const json_t *json, const bt_tag_at *at)
{
    return several(r, json, at, 0, 1);
}

static bt_part read_plus(reader *r, const json_t *json, const bt_tag_at *at)
{
    return several(r, json, at, 1, BT_UNLIMITED);
}

static bt_part read_star(reader *r, const json_t *json, const bt_tag_at *at)
{
    return several(r, json, at, 0, BT_UNLIMITED);
}

/* max: -1 for no limit. */
static bt_part read_repeat(reader *r, const json_t *json, const bt_tag_at *at)
{
    const json_t *min = json_object_get(json, "min"), *max = json_object_get(json, "max");
    json_int_t    least = json_integer_value(min), most = json_integer_value(max);

    if (!json_is_integer(min) || !json_is_integer(max) || least < 0 || most < -1 ||
        (most >= 0 && most < least) || most >= BT_UNLIMITED || least >= BT_UNLIMITED)
        bt_tag_refuse(r->g, at,
                      "min and max should be whole numbers, min from 0, max from min or -1");
    return several(r, json, at, (uint32_t)least, most < 0 ? BT_UNLIMITED : (uint32_t)most);
}

static bt_part read_format(reader *r, const json_t *json, const bt_tag_at *at)
{
    static const format FORMATS[] = {
        {"const_string",        read_const,    {"value"}                                                           },
        {"json_schema",         read_json,     {"json_schema", "style", "any_order"}                               },
        {"regex",               read_regex,    {"pattern"}                                                         },
        {"grammar",             read_grammar,  {"grammar", "syntax"}                                               },
        {"any_text",            read_any_text, {"excludes"}                                                        },
        {"sequence",            read_sequence, {"elements"}                                                        },
        {"or",                  read_or,       {"elements"}                                                        },
        {"tag",                 read_tag,      {"begin", "content", "end"}                                         },
        {"triggered_tags",
         read_triggered,                       {"triggers", "tags", "at_least_one", "stop_after_first", "excludes"}},
        {"optional",            read_optional, {"content"}                                                         },
        {"plus",                read_plus,     {"content"}                                                         },
        {"star",                read_star,     {"content"}                                                         },
        {"repeat",              read_repeat,   {"content", "min", "max"}                                           },
        {"tags_with_separator",
         read_separated,                       {"tags", "separator", "at_least_one", "stop_after_first"}           },
    };
    const char *type = json_string_value(json_object_get(json, "type"));
    bt_part     p    = {0};

    if (r->depth == BT_GRAMMAR_DEPTH_MAX)
        bt_tag_refuse(r->g, at, "formats in each other, more than %d of them",
                      (int)BT_GRAMMAR_DEPTH_MAX);
    for (size_t i = 0; i < sizeof(FORMATS) / sizeof(FORMATS[0]) && r->g->st == BT_OK; i++) {
        if (type == NULL || strcmp(type, FORMATS[i].name) != 0) continue;
        bt_tag_check_fields(r->g, json, FORMATS[i].fields, at);
        r->depth++;
        p = FORMATS[i].read(r, json, at);
        r->depth--;
        return p;
    }
    if (type == NULL)
        bt_tag_refuse(r->g, at, "a format should be an object with a type");
    else
        bt_tag_refuse(r->g, at, "the format %.64s is not supported", type);
    return p;
}

static bt_part read_whole(reader *r, const json_t *json)
{
    static const char *const NEW[BT_TAG_FIELDS] = {"format"}, *const OLD[BT_TAG_FIELDS] = {
                                                                  "structures", "triggers"};
    const bt_tag_at top = {0}, at = {.up = &top, .key = "format"};
    const json_t   *structures = json_object_get(json, "structures");
    const char     *type       = json_string_value(json_object_get(json, "type"));

    if (type != NULL && strcmp(type, "structural_tag") != 0)
        bt_tag_refuse(r->g, &top, "its type should be structural_tag");
    bt_tag_check_fields(r->g, json, structures != NULL ? OLD : NEW, &top);
    if (structures == NULL) return read_format(r, json_object_get(json, "format"), &at);
    return triggered(r, json, "structures", &top);
}

bt_part bt_read_structural_tag(bt_parts *g, const char *text, size_t n)
{
    reader          r   = {.g = g};
    const bt_tag_at top = {0};
    bt_part         p   = {0};
    json_error_t    error;
    json_t         *json = json_loadb(text, n, JSON_REJECT_DUPLICATES, &error);

    if (json != NULL)
        p = read_whole(&r, json);
    else if (json_error_code(&error) == json_error_out_of_memory)
        bt_parts_no_memory(g);
    else
        bt_tag_refuse(g, &top, "no JSON object: %.80s (line %d, column %d)", error.text, error.line,
                      error.column);
    json_decref(json);
    return p;
}

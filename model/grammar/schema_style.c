/* model/grammar/schema_style.c - a schema's object as the arguments of a tool, in the form that
 * some models were trained to write: each member between tags of its own, a text as it is, all else
 * as JSON.  The styles are named as XGrammar's structural tags name them.
 *
 *   deepseek_xml  DeepSeek-V3.2:
 *       <｜DSML｜parameter name="NAME" string="true">TEXT</｜DSML｜parameter>,
 *       string="false" before JSON
 *   glm_xml       GLM-4.5 and later:
 *       <arg_key>NAME</arg_key><arg_value>VALUE</arg_value>
 *
 * A text does not hold the tag that ends it.  A text with bounds on its length holds no '<'. */
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "model/grammar/free_text.h"
#include "model/grammar/regex.h"
#include "model/grammar/schema.h"

#define BAR  "\xef\xbd\x9c" /* U+FF5C */
#define DSML BAR "DSML" BAR

static const bt_schema_style STYLES[] = {
    {"deepseek_xml", "<" DSML "parameter name=\"", "\" string=\"true\">", "\" string=\"false\">",
     NULL,                                                                                                       "</" DSML "parameter>"},
    {"glm_xml",      "<arg_key>",                  "</arg_key>",          "</arg_key>",           "<arg_value>", "</arg_value>"        },
};

const bt_schema_style *bt_schema_style_of(const char *name)
{
    for (size_t i = 0; i < sizeof(STYLES) / sizeof(STYLES[0]); i++)
        if (strcmp(STYLES[i].name, name) == 0) return &STYLES[i];
    return NULL;
}

/* ---- names */

bt_part bt_style_key(bt_schema *s, const char *name, const bt_schema_at *at)
{
    if (strpbrk(name, "<>\"") != NULL)
        bt_schema_refuse(s, at, "a name with <, > or \" in the style %s is not supported",
                         s->style->name);
    return bt_part_then(s->g, bt_part_text(s->g, s->style->begin), bt_part_text(s->g, name));
}

/* (?!(?:a|b)$)[A-Za-z_][A-Za-z0-9_.-]* for the names a and b; owned, NULL: no memory. */
static char *pattern_of_others(const json_t *names)
{
    static const char CHARACTERS[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-";
    static const char ANY[] = "[A-Za-z_][A-Za-z0-9_.-]*";
    size_t            n = sizeof(ANY) + 16, at = 0;
    const char       *name;
    json_t           *value;
    char             *text;

    json_object_foreach((json_t *)names, name, value) n += 2 * strlen(name) + 1;
    text = bt_calloc(n, 1);
    if (text == NULL) return NULL;
    json_object_foreach((json_t *)names, name, value)
    {
        if (name[strspn(name, CHARACTERS)] != '\0') continue; /* no other one can be like that */
        at += (size_t)snprintf(text + at, n - at, at == 0 ? "(?!(?:" : "|");
        for (const char *c = name; *c != '\0'; c++) {
            if (*c == '.') text[at++] = '\\';
            text[at++] = *c;
        }
    }
    snprintf(text + at, n - at, "%s%s", at != 0 ? ")$)" : "", ANY);
    return text;
}

bt_part bt_style_other_key(bt_schema *s, const json_t *names)
{
    char   *text = pattern_of_others(names);
    bt_part key  = bt_part_text(s->g, s->style->begin);

    if (text == NULL)
        bt_parts_no_memory(s->g);
    else
        key = bt_part_then(s->g, key, bt_read_regex(s->g, text, strlen(text), true, false));
    bt_free(text);
    return key;
}

bt_part bt_style_end(bt_schema *s, bt_part member)
{
    return bt_part_then(s->g, member, bt_part_text(s->g, s->style->end));
}

bt_part bt_style_next(bt_schema *s, bt_part member)
{
    return bt_part_then(s->g, bt_schema_call(s, BT_COMMON_SPACE), member);
}

/* ---- values */

static bt_part behind(bt_schema *s, const char *mark, bt_part value)
{
    bt_parts *g    = s->g;
    bt_part   part = bt_part_text(g, mark);

    if (s->style->value != NULL) {
        part = bt_part_then(g, part, bt_schema_call(s, BT_COMMON_SPACE));
        part = bt_part_then(g, part, bt_part_text(g, s->style->value));
    }
    return bt_part_then(g, part, value);
}

bt_part bt_style_json(bt_schema *s, bt_part value) { return behind(s, s->style->json, value); }
bt_part bt_style_text(bt_schema *s, bt_part value) { return behind(s, s->style->text, value); }

static bt_part text_without(bt_parts *g, const char *end)
{
    const bt_stop stop = {.text = end};

    return bt_part_free_text(g, &stop, 1, false);
}

bt_part bt_style_free_text(bt_schema *s) { return text_without(s->g, s->style->end); }

bt_part bt_style_characters(bt_schema *s, uint32_t min, uint32_t max)
{
    uint32_t rule = bt_rule_new(s->g, NULL);
    bt_chars set  = {0};

    bt_chars_add(s->g, &set, 0, '<' - 1);
    bt_chars_add(s->g, &set, '<' + 1, BT_CHAR_MAX);
    bt_rule_is(s->g, rule, bt_part_chars(s->g, &set));
    bt_chars_fini(&set);
    return bt_part_repeat(s->g, bt_rule_call(s->g, rule), min, max);
}

/* A text that goes on behind the end of a value. */
static bt_part text_with(bt_parts *g, const char *end)
{
    bt_part all = bt_part_repeat(g, bt_part_byte(g, 0, 0xff), 0, BT_UNLIMITED);

    return bt_part_then(g, bt_part_then(g, text_without(g, end), bt_part_text(g, end)), all);
}

bt_part bt_style_pattern(bt_schema *s, const char *text, size_t n)
{
    bt_condition c[2] = {{.barred = false}, {.barred = true}};
    bt_part      part;

    c[0].is = bt_read_regex(&c[0].g, text, n, false, false);
    c[1].is = text_with(&c[1].g, s->style->end);
    bt_condition_read(s->g, &c[0]);
    bt_condition_read(s->g, &c[1]);
    part = bt_part_under(s->g, c, 2);
    bt_parts_fini(&c[0].g);
    bt_parts_fini(&c[1].g);
    return part;
}

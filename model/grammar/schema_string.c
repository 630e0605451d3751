/* model/grammar/schema_string.c - strings of a JSON schema: lengths, patterns, formats.
 *
 * Formats are regular expressions that let through part of what is valid, and nothing else: dates
 * of the years 1000 to 2999 that every year has, names of hosts without doubled hyphens. */
#include <stdio.h>
#include <string.h>

#include "model/grammar/schema.h"
#include "model/json.h"

#define DAY                                                                                  \
    "(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)" \
    "|02-(?:0[1-9]|1[0-9]|2[0-8]))"
#define DATE    "[12][0-9]{3}-" DAY
#define HOUR    "(?:[01][0-9]|2[0-3])"
#define TIME    HOUR ":[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,6})?(?:Z|[+-]" HOUR ":[0-5][0-9])"
#define BYTE    "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
#define GROUP   "[0-9a-fA-F]{1,4}"
#define LABEL   "[A-Za-z0-9]{1,20}(?:-[A-Za-z0-9]{1,20}){0,2}"
#define TOP     "[A-Za-z][A-Za-z0-9]{0,19}"
#define ATOM    "[A-Za-z0-9_%+-]{1,20}"
#define URI     "(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-F]{2})*"
#define NUMBER  "[0-9]{1,6}"
#define MINUTES NUMBER "M(?:" NUMBER "S)?"
#define CLOCK   "T(?:" NUMBER "H(?:" MINUTES ")?|" MINUTES "|" NUMBER "S)"
#define MONTHS  NUMBER "M(?:" NUMBER "D)?"
#define SPAN    "(?:" NUMBER "D|" MONTHS "|" NUMBER "Y(?:" MONTHS ")?)"

static const struct {
    const char *name, *regex;
} FORMATS[] = {
    {"date",      DATE                                                         },
    {"time",      TIME                                                         },
    {"date-time", DATE "T" TIME                                                },
    {"duration",  "P(?:" SPAN "(?:" CLOCK ")?|" CLOCK "|" NUMBER "W)"          }, /* RFC 3339, appendix A */
    {"uuid",      "[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"       },
    {"ipv4",      BYTE "(?:\\." BYTE "){3}"                                    },
    {"ipv6",      "(?:" GROUP ":){7}" GROUP "|(?:" GROUP ":){1,7}:|(?:" GROUP ":){1,6}:" GROUP
             "|(?:" GROUP ":){1,5}(?::" GROUP "){2}|(?:" GROUP ":){1,4}(?::" GROUP "){3}"
             "|(?:" GROUP ":){1,3}(?::" GROUP "){4}|(?:" GROUP ":){1,2}(?::" GROUP "){5}"
             "|" GROUP ":(?::" GROUP "){6}|:(?::" GROUP "){1,7}|::"},
    {"hostname",  "(?:" LABEL "\\.){0,3}" TOP                                  },
    {"email",     ATOM "(?:\\." ATOM "){0,2}@(?:" LABEL "\\.){1,3}" TOP        },
    {"uri",       "[a-z][a-z0-9+.-]{0,15}://(?:" LABEL "\\.){0,3}" TOP "(?::[1-9][0-9]{0,3})?"
            "(?:/" URI ")*(?:\\?" URI ")?(?:#" URI ")?"             },
};

/* NULL: it is an annotation. */
static const char *regex_of(const json_t *format)
{
    const char *name = json_string_value(format);

    for (size_t i = 0; name != NULL && i < sizeof(FORMATS) / sizeof(FORMATS[0]); i++)
        if (strcmp(FORMATS[i].name, name) == 0) return FORMATS[i].regex;
    return NULL;
}

/* What is no string is kept, so that it is refused. */
bool bt_schema_is_format(const json_t *format)
{
    return !json_is_string(format) || regex_of(format) != NULL;
}

static bt_part quoted(bt_parts *g, bt_part inner)
{
    inner = bt_part_then(g, bt_part_text(g, "\""), inner);
    return bt_part_then(g, inner, bt_part_text(g, "\""));
}

static bt_part with_format(bt_schema *s, const json_t *format)
{
    const char *regex = regex_of(format);
    char        key[32];
    uint32_t    rule;

    snprintf(key, sizeof(key), "format %s", json_string_value(format));
    if (!bt_schema_memo(s, key, &rule))
        bt_rule_is(s->g, rule, quoted(s->g, bt_read_regex(s->g, regex, strlen(regex), true, true)));
    return bt_rule_call(s->g, rule);
}

static bt_part with_pattern(bt_schema *s, const json_t *pattern, const bt_schema_at *at)
{
    bool    clean = bt_schema_step(s, at, json_string_length(pattern));
    bt_part part =
        bt_read_regex(s->g, json_string_value(pattern), json_string_length(pattern), false, true);
    char why[BT_GRAMMAR_WHY_BYTES];

    if (clean && s->g->st == BT_ERR_INVALID_ARG) { /* the sentence gets its place */
        memcpy(why, s->g->why, sizeof(why));
        s->g->st = BT_OK;
        bt_schema_refuse(s, at, "%s", why);
    }
    return quoted(s->g, part);
}

static bt_part with_length(bt_schema *s, uint32_t min, uint32_t max)
{
    char     key[48];
    uint32_t rule;

    if (min == 0 && max == BT_UNLIMITED) return bt_schema_call(s, BT_COMMON_STRING);
    snprintf(key, sizeof(key), "length %u %u", min, max);
    if (!bt_schema_memo(s, key, &rule))
        bt_rule_is(
            s->g, rule,
            quoted(s->g, bt_part_repeat(s->g, bt_schema_call(s, BT_COMMON_CHARACTER), min, max)));
    return bt_rule_call(s->g, rule);
}

bt_part bt_schema_string(bt_schema *s, const json_t *schema, const bt_schema_at *at)
{
    const json_t *pattern = json_object_get(schema, "pattern");
    const json_t *format  = json_object_get(schema, "format");
    uint32_t      min     = bt_schema_count(s, schema, "minLength", 0, at);
    uint32_t      max     = bt_schema_count(s, schema, "maxLength", BT_UNLIMITED, at);
    bool          lengths = min > 0 || max != BT_UNLIMITED;
    bt_schema_at  here    = {.up = at, .key = "pattern"};

    if (pattern != NULL && !json_is_string(pattern))
        bt_schema_unexpected(s, schema, "pattern", at, "a regular expression");
    if (format != NULL && !json_is_string(format))
        bt_schema_unexpected(s, schema, "format", at, "the name of a format");
    if (s->g->st == BT_OK && regex_of(format) == NULL) format = NULL;
    if ((pattern != NULL) + (format != NULL) + lengths > 1)
        bt_schema_refuse(s, at,
                         "only one of \"pattern\", \"format\" and minLength or maxLength is "
                         "supported at a time");
    if (s->g->st != BT_OK) return bt_part_never(s->g);
    if (pattern != NULL) return with_pattern(s, pattern, &here);
    return format != NULL ? with_format(s, format) : with_length(s, min, max);
}

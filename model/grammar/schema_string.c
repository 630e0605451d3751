/* model/grammar/schema_string.c - strings of a JSON schema: lengths, patterns, formats.
 *
 * Formats are regular expressions that let through part of what is valid, and nothing else: dates
 * of the years 1000 to 2999, names of at most seven labels, URIs with a host or of a few schemes
 * that have none.  Beside a pattern, which says it more exactly, a format is what the standard
 * calls it: an annotation. */
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/minmax.h"
#include "model/grammar/schema.h"

#define DAY                                                                                  \
    "(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)" \
    "|02-(?:0[1-9]|1[0-9]|2[0-8]))"
#define LEAP   "(?:[12][0-9](?:0[48]|[2468][048]|[13579][26])|(?:1[26]|2[048])00)-02-29"
#define DATE   "(?:[12][0-9]{3}-" DAY "|" LEAP ")"
#define HOUR   "(?:[01][0-9]|2[0-3])"
#define TIME   HOUR ":[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,9})?(?:Z|[+-]" HOUR ":[0-5][0-9])"
#define BYTE   "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
#define GROUP  "[0-9a-fA-F]{1,4}"
#define LETTER "[A-Za-z0-9]"
#define LABEL                                                                                    \
    "(?:" LETTER "{1,63}|" LETTER "{1,31}-" LETTER "{1,31}"                                      \
    "|" LETTER "{1,20}(?:-" LETTER "{1,20}){2}|" LETTER "{1,15}(?:-" LETTER "{1,15}){3}|" LETTER \
    "(?:-?" LETTER "){0,31})"
#define SHORT LETTER "(?:-?" LETTER "){0,15}"
#define TOP   "[A-Za-z][A-Za-z0-9]{0,19}"
#define LAST  "[A-Za-z](?:-?" LETTER "){0,19}"
#define ATOM  "[A-Za-z0-9_%+'-]"
#define LOCAL                                           \
    "(?:" ATOM "{1,64}|" ATOM "{1,31}\\." ATOM "{1,31}" \
    "|" ATOM "{1,20}(?:\\." ATOM "{1,20}){2}|" ATOM "{1,15}(?:\\." ATOM "{1,15}){3})"
#define NUMBER  "[0-9]{1,6}"
#define MINUTES NUMBER "M(?:" NUMBER "S)?"
#define CLOCK   "T(?:" NUMBER "H(?:" MINUTES ")?|" MINUTES "|" NUMBER "S)"
#define MONTHS  NUMBER "M(?:" NUMBER "D)?"
#define SPAN    "(?:" NUMBER "D|" MONTHS "|" NUMBER "Y(?:" MONTHS ")?)"

#define DURATION "P(?:" SPAN "(?:" CLOCK ")?|" CLOCK "|" NUMBER "W)" /* RFC 3339, appendix A */
#define UUID     "[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
#define IPV4     BYTE "(?:\\." BYTE "){3}"
#define IPV6                                                                                  \
    "(?:" GROUP ":){7}" GROUP "|(?:" GROUP ":){1,7}:|(?:" GROUP ":){1,6}:" GROUP "|(?:" GROUP \
    ":){1,5}(?::" GROUP "){2}|(?:" GROUP ":){1,4}(?::" GROUP "){3}"                           \
    "|(?:" GROUP ":){1,3}(?::" GROUP "){4}|(?:" GROUP ":){1,2}(?::" GROUP "){5}"              \
    "|" GROUP ":(?::" GROUP "){6}|:(?::" GROUP "){1,7}|::"
#define HOSTNAME "(?:(?:" LABEL "\\.){0,3}|(?:" SHORT "\\.){4,6})" LAST
#define EMAIL    LOCAL "@(?:(?:" LABEL "\\.){1,3}|(?:" SHORT "\\.){4,5})" TOP
#define PORT     "(?:[1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3})"
#define SCHEME   "[a-z][a-z0-9+.-]{0,15}://"
#define ORIGIN   SCHEME "(?:" HOSTNAME "|" IPV4 ")(?::" PORT ")?"
#define OPAQUE   "(?:data|mailto|tel|urn):"
#define SIGN     "(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})" /* of a URI */
#define IN_PATH  "(?:/|" SIGN ")"
#define BEHIND   "(?:[/?]|" SIGN ")"
/* Of a query or a fragment as much as they say. */
#define LOCATION(origin, path, query, fragment)                                              \
    "(?:" origin "(?:/" IN_PATH path ")?|file:///" IN_PATH path "|" OPAQUE SIGN IN_PATH path \
    ")(?:\\?" BEHIND query ")?(?:#" BEHIND fragment ")?"
#define URI   LOCATION(ORIGIN, "*", "*", "*")
#define BRIEF LOCATION(ORIGIN, "{0,300}", "{0,200}", "{0,80}")

/* The same for texts that are so short that no part of them can be too long: of few states, since
 * they are counted. */
#define WHOLE(regex)   "^(?:" regex ")$"
#define ANY_LABEL      LETTER "+(?:-" LETTER "+)*"
#define ANY_HOSTNAME   "(?:" ANY_LABEL "\\.)*[A-Za-z](?:-?" LETTER ")*"
#define SHORT_HOSTNAME WHOLE(ANY_HOSTNAME)
#define SHORT_EMAIL    WHOLE(ATOM "+(?:\\." ATOM "+)*@(?:" ANY_LABEL "\\.)+[A-Za-z][A-Za-z0-9]*")
#define SHORT_ORIGIN   "[a-z][a-z0-9+.-]*://(?:" ANY_HOSTNAME "|" IPV4 ")(?::" PORT ")?"
#define SHORT_URI      WHOLE(LOCATION(SHORT_ORIGIN, "*", "*", "*"))

/* min, max: of the characters that come.  Of two of a name, the first within a schema's bounds is
 * taken; where none is, `counted`, with at most so many characters as may be. */
static const struct {
    const char *name, *regex;
    uint32_t    min, max;
    const char *counted;
    uint32_t    most;
} FORMATS[] = {
    {"date",      DATE,          10, 10,           WHOLE(DATE),          10 },
    {"time",      TIME,          9,  24,           WHOLE(TIME),          24 },
    {"date-time", DATE "T" TIME, 20, 35,           WHOLE(DATE "T" TIME), 35 },
    {"duration",  DURATION,      3,  44,           WHOLE(DURATION),      44 },
    {"uuid",      UUID,          36, 36,           WHOLE(UUID),          36 },
    {"ipv4",      IPV4,          7,  15,           WHOLE(IPV4),          15 },
    {"ipv6",      IPV6,          2,  39,           WHOLE(IPV6),          39 },
    {"hostname",  HOSTNAME,      1,  231,          SHORT_HOSTNAME,       63 },
    {"email",     EMAIL,         5,  277,          SHORT_EMAIL,          64 },
    {"uri",       URI,           5,  BT_UNLIMITED, SHORT_URI,            255},
    {"uri",       BRIEF,         5,  1999,         SHORT_URI,            255},
};
enum { N_FORMATS = sizeof(FORMATS) / sizeof(FORMATS[0]) };

/* Its row, if texts of it have min to max characters; N_FORMATS: there is none. */
static size_t find_format(const json_t *format, uint32_t min, uint32_t max)
{
    const char *name = json_string_value(format);
    size_t      i    = name == NULL ? N_FORMATS : 0;

    while (i < N_FORMATS &&
           (strcmp(FORMATS[i].name, name) != 0 || FORMATS[i].min < min || FORMATS[i].max > max))
        i++;
    return i;
}

static bool is_known(const json_t *format)
{
    return find_format(format, 0, BT_UNLIMITED) < N_FORMATS;
}

/* What is no string is kept, so that it is refused. */
bool bt_schema_is_format(const json_t *format)
{
    return !json_is_string(format) || is_known(format);
}

const char *bt_schema_format_regex(const json_t *format)
{
    return FORMATS[find_format(format, 0, BT_UNLIMITED)].regex;
}

static bool is_json(const bt_schema *s) { return s->place == BT_SCHEMA_JSON; }

/* But for a text as it is. */
static bt_part quoted(bt_schema *s, bt_part inner)
{
    return is_json(s) ? bt_part_between(s->g, "\"", inner, "\"") : inner;
}

/* Where some texts of the format are too short or too long. */
static bt_part counted_format(bt_schema *s, const json_t *format, uint32_t min, uint32_t max,
                              const bt_schema_at *at)
{
    size_t      i         = find_format(format, 0, BT_UNLIMITED);
    const char *regex     = FORMATS[i].counted;
    bool        unlimited = max == BT_UNLIMITED && FORMATS[i].max == BT_UNLIMITED;
    uint32_t    most      = unlimited ? max : bt_min_u32(max, FORMATS[i].most);

    if (!is_json(s) || min > most || max < FORMATS[i].min)
        bt_schema_refuse(s, at,
                         "\"format\" with a minLength or maxLength that some texts of it would not "
                         "keep: not supported");
    if (s->g->st != BT_OK) return bt_part_never(s->g);
    return quoted(s, bt_schema_counted(s, regex, strlen(regex), min, most, at));
}

static bt_part with_format(bt_schema *s, const json_t *format, uint32_t min, uint32_t max,
                           const bt_schema_at *at)
{
    size_t   i = find_format(format, min, max);
    char     key[64];
    bt_part  part;
    uint32_t rule;

    if (i < N_FORMATS)
        snprintf(key, sizeof(key), "format %zu%s", i, is_json(s) ? "" : " as text");
    else
        snprintf(key, sizeof(key), "format %.16s %u %u", json_string_value(format), min, max);
    if (!bt_schema_memo(s, key, &rule)) {
        if (i < N_FORMATS)
            part = quoted(s, bt_read_regex(s->g, FORMATS[i].regex, strlen(FORMATS[i].regex), true,
                                           is_json(s)));
        else
            part = counted_format(s, format, min, max, at);
        bt_rule_is(s->g, rule, part);
    }
    return bt_rule_call(s->g, rule);
}

/* clean: nothing has been refused yet. */
static bt_part read_pattern(bt_schema *s, const json_t *pattern, uint32_t min, uint32_t max,
                            bool clean, const bt_schema_at *at)
{
    const char *text  = json_string_value(pattern);
    size_t      n     = json_string_length(pattern);
    uint32_t    least = 0, most = BT_UNLIMITED;
    bt_part     part =
        is_json(s) ? bt_read_pattern(s->g, text, n, &least, &most) : bt_style_pattern(s, text, n);
    char why[BT_GRAMMAR_WHY_BYTES];

    if (clean && s->g->st == BT_ERR_INVALID_ARG) { /* the sentence gets its place */
        memcpy(why, s->g->why, sizeof(why));
        s->g->st = BT_OK;
        bt_schema_refuse(s, at, "%s", why);
    }
    if (!is_json(s) && (min != 0 || max != BT_UNLIMITED))
        bt_schema_refuse(s, at, "beside a minLength or maxLength in the style %s: not supported",
                         s->style->name);
    if (s->g->st == BT_OK && (least < min || most > max)) /* what has been read leads nowhere */
        part = bt_schema_counted(s, text, n, min, max, at);
    return quoted(s, part);
}

static bt_part with_pattern(bt_schema *s, const json_t *pattern, uint32_t min, uint32_t max,
                            const bt_schema_at *at)
{
    size_t   n     = json_string_length(pattern) + 64;
    char    *key   = bt_calloc(n, 1);
    bool     clean = bt_schema_step(s, at, json_string_length(pattern));
    uint32_t rule;

    if (key == NULL) {
        bt_parts_no_memory(s->g);
        return bt_part_never(s->g);
    }
    snprintf(key, n, "pattern %s%u %u %s", is_json(s) ? "" : "as text ", min, max,
             json_string_value(pattern));
    if (!bt_schema_memo(s, key, &rule))
        bt_rule_is(s->g, rule, read_pattern(s, pattern, min, max, clean, at));
    bt_free(key);
    return bt_rule_call(s->g, rule);
}

static bt_part with_length(bt_schema *s, uint32_t min, uint32_t max)
{
    char     key[48];
    uint32_t rule;

    if (!is_json(s) && min == 0 && max == BT_UNLIMITED) return bt_style_free_text(s);
    if (!is_json(s)) return bt_style_characters(s, min, max);
    if (min == 0 && max == BT_UNLIMITED) return bt_schema_call(s, BT_COMMON_STRING);
    snprintf(key, sizeof(key), "length %u %u", min, max);
    if (!bt_schema_memo(s, key, &rule))
        bt_rule_is(
            s->g, rule,
            quoted(s, bt_part_repeat(s->g, bt_schema_call(s, BT_COMMON_CHARACTER), min, max)));
    return bt_rule_call(s->g, rule);
}

bt_part bt_schema_string(bt_schema *s, const json_t *schema, const bt_schema_at *at)
{
    const json_t *pattern = json_object_get(schema, "pattern");
    const json_t *format  = json_object_get(schema, "format");
    uint32_t      min     = bt_schema_count(s, schema, "minLength", 0, at);
    uint32_t      max     = bt_schema_count(s, schema, "maxLength", BT_UNLIMITED, at);
    bt_schema_at  here    = {.up = at, .key = "pattern"};

    if (pattern != NULL && !json_is_string(pattern))
        bt_schema_unexpected(s, schema, "pattern", at, "a regular expression");
    if (format != NULL && !json_is_string(format))
        bt_schema_unexpected(s, schema, "format", at, "the name of a format");
    if (s->g->st != BT_OK || min > max) return bt_part_never(s->g);
    if (pattern != NULL) return with_pattern(s, pattern, min, max, &here);
    return is_known(format) ? with_format(s, format, min, max, at) : with_length(s, min, max);
}

/* model/grammar/schema_look.c - patterns that hold with others, or not, said by one pattern with
 * look-aheads.  Those stand at the text's start, so that an alternative that begins with ^ follows
 * as it is, and others behind any text. */
#include <string.h>

#include "model/grammar/schema.h"

/* The bytes of an alternative of a pattern, up to its | or the end; where parentheses do not pair,
 * *pairs_out is false. */
static size_t alternative(const char *pattern, bool *pairs_out)
{
    size_t n        = 0;
    long   depth    = 0;
    bool   in_class = false;

    for (; pattern[n] != '\0' && (pattern[n] != '|' || in_class || depth > 0); n++) {
        if (pattern[n] == '\\' && pattern[n + 1] != '\0') {
            n++;
        } else if (in_class) {
            in_class = pattern[n] != ']';
        } else {
            in_class = pattern[n] == '[';
            depth += (pattern[n] == '(') - (pattern[n] == ')');
            if (depth < 0) break;
        }
    }
    *pairs_out = depth == 0 && !in_class;
    return n;
}

json_t *bt_schema_no_pattern(bt_schema *s, const json_t *pattern, const bt_schema_at *at)
{
    const char *text = json_string_value(pattern);
    json_t     *bars = bt_schema_owned(s, json_string("^")), *next;
    bool        more = true, pairs;

    for (; more && bt_schema_step(s, at, 1 + json_string_length(bars) / 16); text++) {
        size_t n      = alternative(text, &pairs);
        bool   begins = text[0] == '^';

        if (!pairs) bt_schema_refuse(s, at, "\"not\" of a pattern whose brackets do not pair");
        next = json_sprintf(begins ? "%s(?!%.*s)" : "%s(?![\\s\\S]*(?:%.*s))",
                            json_string_value(bars), (int)(n - begins), text + begins);
        json_decref(bars);
        bars = bt_schema_owned(s, next);
        text += n;
        more = *text != '\0';
    }
    return bars;
}

/* Whether it is one alternative that begins with ^, or has none that does. */
static bool looks(const char *pattern, bool *begins_out)
{
    bool   pairs;
    size_t n = alternative(pattern, &pairs);

    *begins_out = pattern[0] == '^';
    if (pattern[0] == '^') return pairs && pattern[n] == '\0';
    for (; pairs && pattern[n] != '\0'; n += alternative(pattern + n, &pairs))
        if (pattern[++n] == '^') return false;
    return pairs;
}

json_t *bt_schema_both_patterns(bt_schema *s, const json_t *a, const json_t *b,
                                const bt_schema_at *at)
{
    const char *first = json_string_value(a), *then = json_string_value(b);
    bool        first_begins, then_begins;

    if (first == NULL || then == NULL || !looks(first, &first_begins) ||
        !looks(then, &then_begins) ||
        !bt_schema_step(s, at, 1 + (strlen(first) + strlen(then)) / 16))
        return NULL;
    return bt_schema_owned(
        s, json_sprintf("^(?=%s%s%s)%s%s%s", then_begins ? "" : "[\\s\\S]*(?:", then + then_begins,
                        then_begins ? "" : ")", first_begins ? "" : "(?=[\\s\\S]*(?:",
                        first + first_begins, first_begins ? "" : "))"));
}

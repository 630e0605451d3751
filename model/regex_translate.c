/* From Oniguruma's regexes (Ruby's syntax, UTF-8) to PCRE2's, for what tokenizers use: \s differs
 * by U+180E, and whatever else the two read differently is refused. */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "model/json.h"
#include "model/pretokenizer.h"

/* Unicode's White_Space, as a class without its brackets. */
#define SPACES                                                                                  \
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}" \
    "\\x{205f}\\x{3000}"
enum { MAX_REGEX_BYTES = 1 << 16, SHOW_BYTES = 96 };

typedef struct {
    const char *where, *regex;
    size_t      i; /* in regex */
    bool        in_class;
    size_t      class_at; /* where its bracket stands */
    char       *out;      /* owned */
    size_t      n, capacity;
} translation;

static bt_status refuse(const translation *t, size_t n, const char *what)
{
    char part[16], show[SHOW_BYTES];

    snprintf(part, sizeof(part), "%.*s", (int)n, t->regex + t->i);
    bt_log_error(__FILE__, __LINE__, bt_status_head(BT_ERR_UNSUPPORTED),
                 "%s: pre_tokenizer: the regex has \"%s\" at byte %zu (%s): %s", t->where, part,
                 t->i, what, bt_json_printable(t->regex, show, sizeof(show)));
    return BT_ERR_UNSUPPORTED;
}

/* The caller has made room: no translation is longer than SPACES and its brackets. */
static void emit(translation *t, const char *text, size_t n)
{
    BT_ASSERT(t->n + n < t->capacity);
    memcpy(t->out + t->n, text, n);
    t->n += n;
}

static void emit_spaces(translation *t, bool negated)
{
    if (!t->in_class) emit(t, negated ? "[^" : "[", negated ? 2 : 1);
    emit(t, SPACES, strlen(SPACES));
    if (!t->in_class) emit(t, "]", 1);
}

/* At a backslash. */
static bt_status translate_escape(translation *t)
{
    static const char SAME[] = "pPdDrntfaex"; /* read alike by both, before what follows them */
    char              c      = t->regex[t->i + 1];
    bool is_name = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');

    if (c == 's' || (c == 'S' && !t->in_class)) {
        emit_spaces(t, c == 'S');
    } else if (c == '\0') {
        return refuse(t, 1, "nothing behind it");
    } else if ((uint8_t)c >= 0x80 || (is_name && strchr(SAME, c) == NULL)) {
        return refuse(t, 2, "not known to mean the same in PCRE2");
    } else {
        emit(t, t->regex + t->i, 2);
    }
    t->i += 2;
    return BT_OK;
}

static bt_status translate_in_class(translation *t)
{
    const char *p = t->regex + t->i;

    if (p[0] == '[') return refuse(t, 1, "a class within a class");
    if (p[0] == '&' && p[1] == '&') return refuse(t, 2, "an intersection of classes");
    if (p[0] == ']') {
        bool negated = t->regex[t->class_at + 1] == '^';

        if (t->i == t->class_at + 1 + negated) return refuse(t, 1, "at the start of a class");
        t->in_class = false;
    }
    emit(t, p, 1);
    t->i++;
    return BT_OK;
}

static bt_status translate_outside(translation *t)
{
    static const char *const GROUPS[] = {"(?:", "(?=", "(?!", "(?>", "(?i:", "(?<=", "(?<!"};
    const char              *p        = t->regex + t->i;

    if (p[0] == '(' && p[1] == '?') {
        bool known = false;

        for (size_t i = 0; i < sizeof(GROUPS) / sizeof(GROUPS[0]); i++)
            known = known || strncmp(p, GROUPS[i], strlen(GROUPS[i])) == 0;
        if (!known) return refuse(t, 3, "a group that is not known to mean the same in PCRE2");
    }
    if (p[0] == '(' && p[1] == '*') return refuse(t, 2, "a verb of PCRE2's own");
    if (p[0] == '[') {
        t->in_class = true;
        t->class_at = t->i;
        if (p[1] == '^') {
            emit(t, "[", 1);
            t->i++;
            p++;
        }
    }
    emit(t, p, 1);
    t->i++;
    return BT_OK;
}

bt_status bt_pretokenizer_translate(const char *where, const char *regex, char **pcre_out)
{
    bt_status   st = BT_OK;
    size_t      n  = strlen(regex);
    translation t  = {.where = where, .regex = regex};

    BT_REQUIRE(n <= MAX_REGEX_BYTES, BT_ERR_UNSUPPORTED,
               "%s: pre_tokenizer: expected a regex of at most %d bytes, found %zu", where,
               MAX_REGEX_BYTES, n);
    t.capacity = n / 2 * (sizeof(SPACES) + 3) + n + 1; /* "\s" is two bytes */
    t.out      = bt_calloc(t.capacity, 1);
    BT_REQUIRE(t.out != NULL, BT_ERR_NO_MEMORY, "%s: a regex of %zu bytes", where, n);
    while (t.i < n) {
        if (regex[t.i] == '\\')
            BT_TRY(translate_escape(&t));
        else if (t.in_class)
            BT_TRY(translate_in_class(&t));
        else
            BT_TRY(translate_outside(&t));
    }
    *pcre_out = t.out;
    t.out     = NULL;
out:
    bt_free(t.out);
    return st;
}

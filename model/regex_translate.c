/* From Oniguruma's regexes (Ruby's syntax, UTF-8) to PCRE2's, for what tokenizers use: \s differs
 * by U+180E, \p{..} and \d by what Unicode has added since PCRE2's tables were made, and whatever
 * else the two read differently is refused. */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "model/json.h"
#include "model/pretokenizer.h"
#include "model/unicode_added.h"

/* Unicode's White_Space, as a class without its brackets. */
#define SPACES                                                                                  \
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}" \
    "\\x{205f}\\x{3000}"
enum { MAX_REGEX_BYTES = 1 << 16, SHOW_BYTES = 96, NAME_BYTES = 16 };

/* Without C, Cn and Mn: code points left those after Unicode 14, and no class can leave one out. */
static const char *const CATEGORIES[] = {"L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mc", "Me",
                                         "N",  "Nd", "Nl", "No", "P",  "Pc", "Pd", "Ps", "Pe",
                                         "Pi", "Pf", "Po", "S",  "Sm", "Sc", "Sk", "So", "Z",
                                         "Zs", "Zl", "Zp", "Cc", "Cf", "Co"};
static const char *const SCRIPTS[] = {"Arabic", "Cyrillic", "Devanagari", "Greek", "Han", "Hangul",
                                      "Hebrew", "Hiragana", "Katakana",   "Latin", "Thai"};
#define COUNT(list) (sizeof(list) / sizeof((list)[0]))

typedef struct {
    const char *where, *regex;
    size_t      i; /* in regex */
    bool        in_class;
    size_t      class_at;   /* where its bracket stands */
    size_t      class_out;  /* where it stands in out */
    char       *kept;       /* owned: behind &&[^ what out had of the class; else NULL */
    size_t      set_end;    /* behind the latest escape for many characters */
    uint32_t    fold_depth; /* of groups, from the (?i: on; 0 outside of it */
    char        letter;     /* under (?i: the latest literal, 0 when none can stand next to it */
    char       *out;        /* owned */
    size_t      n, capacity;
    bool        no_memory; /* out has ended early */
} translation;

/* n: how much of what follows to name; whole characters are. */
static bt_status refuse(const translation *t, size_t n, const char *what)
{
    const char *p = t->regex + t->i;
    char        part[2 * NAME_BYTES], show[SHOW_BYTES];

    n = strnlen(p, n);
    while ((p[n] & 0xc0) == 0x80)
        n++;
    snprintf(part, sizeof(part), "%.*s", (int)n, p);
    bt_log_error(__FILE__, __LINE__, bt_status_head(BT_ERR_UNSUPPORTED),
                 "%s: pre_tokenizer: the regex has \"%s\" at byte %zu (%s): %s", t->where, part,
                 t->i, what, bt_json_printable(t->regex, show, sizeof(show)));
    return BT_ERR_UNSUPPORTED;
}

static void emit(translation *t, const char *text, size_t n)
{
    if (t->capacity - t->n <= n) {
        size_t capacity = 2 * (t->capacity + n);
        char  *grown    = t->no_memory ? NULL : bt_realloc(t->out, capacity, 1);

        t->no_memory = grown == NULL;
        if (grown == NULL) return;
        t->out      = grown;
        t->capacity = capacity;
    }
    memcpy(t->out + t->n, text, n);
    t->n += n;
    t->out[t->n] = '\0';
}

static void emit_text(translation *t, const char *text) { emit(t, text, strlen(text)); }

/* Copies the next n bytes. */
static void copy(translation *t, size_t n)
{
    emit(t, t->regex + t->i, n);
    t->i += n;
}

/* For \s or \S. */
static void translate_spaces(translation *t, bool negated)
{
    if (!t->in_class) emit_text(t, negated ? "[^" : "[");
    emit_text(t, SPACES);
    if (!t->in_class) emit_text(t, "]");
    t->i += 2;
    t->set_end = t->i;
}

static bool is_listed(const char *name, const char *const *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(name, list[i]) == 0) return true;
    return false;
}

/* The range belongs to the property: "Lu" to "L" and to "Lu". */
static bool is_of(const bt_unicode_range *r, const char *name)
{
    return strcmp(r->name, name) == 0 ||
           (name[1] == '\0' && r->name[0] == name[0] && r->name[2] == '\0');
}

static void emit_range(translation *t, uint32_t first, uint32_t last)
{
    char text[32];

    snprintf(text, sizeof(text), first == last ? "\\x{%x}" : "\\x{%x}-\\x{%x}", first, last);
    emit_text(t, text);
}

/* For a class: what the property has gained, neighbours as one range. */
static void emit_added(translation *t, const char *name)
{
    bt_unicode_range now = {.name = NULL};

    for (size_t i = 0; i < bt_unicode_n_added; i++) {
        const bt_unicode_range *r = &bt_unicode_added[i];

        if (!is_of(r, name)) continue;
        if (now.name != NULL && r->first == now.last + 1) {
            now.last = r->last;
            continue;
        }
        if (now.name != NULL) emit_range(t, now.first, now.last);
        now = *r;
    }
    if (now.name != NULL) emit_range(t, now.first, now.last);
}

/* For the next n bytes.  PCRE2's \p{Han} is Script_Extensions, Oniguruma's is Script: sc. */
static bt_status emit_property(translation *t, const char *name, bool negated, size_t n)
{
    bool is_script = is_listed(name, SCRIPTS, COUNT(SCRIPTS));
    char text[NAME_BYTES + 8];

    if (!is_script && !is_listed(name, CATEGORIES, COUNT(CATEGORIES)))
        return refuse(t, n, "a property that is not known to mean the same in PCRE2");
    if (negated && t->in_class) return refuse(t, n, "a negated property in a class");
    if (!t->in_class) emit_text(t, negated ? "[^" : "[");
    snprintf(text, sizeof(text), is_script ? "\\p{sc:%s}" : "\\p{%s}", name);
    emit_text(t, text);
    emit_added(t, name);
    if (!t->in_class) emit_text(t, "]");
    t->i += n;
    t->set_end = t->i;
    return BT_OK;
}

/* At \p or \P. */
static bt_status translate_property(translation *t)
{
    const char *p     = t->regex + t->i;
    bool        caret = p[2] == '{' && p[3] == '^';
    const char *from  = p + 3 + caret;
    size_t      n     = p[2] == '{' ? strcspn(from, "}") : 0;
    char        name[NAME_BYTES];

    if (n == 0 || n >= sizeof(name) || from[n] == '\0')
        return refuse(t, 3, "a property that is not known to mean the same in PCRE2");
    memcpy(name, from, n);
    name[n] = '\0';
    return emit_property(t, name, (p[1] == 'P') != caret, (size_t)(from - p) + n + 1);
}

/* At \x: \x{41}, or \x41; from \x80 on the latter is a byte in Oniguruma. */
static bt_status translate_hex(translation *t)
{
    static const char HEX[] = "0123456789abcdefABCDEF";
    const char       *p     = t->regex + t->i;
    size_t            n;

    if (p[2] == '{') {
        n = strspn(p + 3, HEX);
        if (n == 0 || p[3 + n] != '}') return refuse(t, 3, "no hexadecimal number");
        n += 4;
    } else {
        n = 2 + strspn(p + 2, HEX);
        if (n < 4 || p[2] > '7') return refuse(t, 3, "not known to mean the same in PCRE2");
        n = 4;
    }
    copy(t, n);
    return BT_OK;
}

/* A literal under (?i:.  Oniguruma lets one letter match two: the sharp s "ss", U+FB01 "fi". */
static bt_status check_fold(translation *t, char c)
{
    static const char *const PAIRS[] = {"ss", "st", "ff", "fi", "fl"};
    char                     lower   = (char)(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
    char                     pair[]  = {t->letter, lower, '\0'};

    if ((uint8_t)c >= 0x80) return refuse(t, 1, "beyond ASCII under (?i");
    if (!t->in_class && is_listed(pair, PAIRS, COUNT(PAIRS)))
        return refuse(t, 1, "under (?i, where one letter may match two");
    t->letter = t->in_class ? '\0' : lower;
    return BT_OK;
}

/* At a backslash. */
static bt_status translate_escape(translation *t)
{
    static const char SAME[]     = "rntfae"; /* read alike by both */
    static const char NO_FOLDS[] = "dsrntfae";
    char              c          = t->regex[t->i + 1];
    bool is_name = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');

    t->letter = '\0';
    if (c == '\0') return refuse(t, 1, "nothing behind it");
    if (is_name && t->fold_depth != 0 && strchr(NO_FOLDS, c) == NULL)
        return refuse(t, 2, "not known to mean the same in PCRE2 under (?i");
    if (c == 'd' || c == 'D') return emit_property(t, "Nd", c == 'D', 2);
    if (c == 'p' || c == 'P') return translate_property(t);
    if (c == 'x') return translate_hex(t);
    if (c == 's' || (c == 'S' && !t->in_class)) {
        translate_spaces(t, c == 'S');
    } else if ((uint8_t)c >= 0x80 || (is_name && strchr(SAME, c) == NULL)) {
        return refuse(t, 2, "not known to mean the same in PCRE2");
    } else {
        copy(t, 2);
    }
    return BT_OK;
}

/* [A&&[^B]], as Kimi has it, is (?:(?![B])[A]) to PCRE2.  At the first &. */
static bt_status begin_exclusion(translation *t)
{
    const char *p = t->regex + t->i;

    if (p[2] != '[' || p[3] != '^' || t->kept != NULL || t->fold_depth != 0 ||
        t->i == t->class_at + 1 || t->regex[t->class_at + 1] == '^')
        return refuse(t, 2, "an intersection of classes other than [..&&[^..]]");
    t->kept = bt_strdup(t->out + t->class_out);
    if (t->kept == NULL) t->no_memory = true;
    t->n = t->class_out;
    emit_text(t, "(?:(?![");
    t->class_at = t->i + 2;
    t->i += 4;
    return BT_OK;
}

/* At the bracket that closes B. */
static bt_status end_exclusion(translation *t)
{
    if (t->regex[t->i + 1] != ']')
        return refuse(t, 2, "an intersection of classes other than [..&&[^..]]");
    emit_text(t, "])");
    emit_text(t, t->kept);
    emit_text(t, "])");
    bt_free(t->kept);
    t->kept     = NULL;
    t->in_class = false;
    t->i += 2;
    return BT_OK;
}

static bt_status translate_in_class(translation *t)
{
    const char *p = t->regex + t->i;

    if (p[0] == '[') return refuse(t, 1, "a class within a class");
    if (p[0] == '&' && p[1] == '&') return begin_exclusion(t);
    if (p[0] == '-' && t->i == t->set_end && p[1] != ']')
        return refuse(t, 1, "a range that starts with many characters");
    if (p[0] == ']') {
        bool negated = t->regex[t->class_at + 1] == '^';

        if (t->i == t->class_at + 1 + negated) return refuse(t, 1, "at the start of a class");
        if (t->kept != NULL) return end_exclusion(t);
        t->in_class = false;
    }
    copy(t, 1);
    return BT_OK;
}

/* At a brace: {n}, {n,} or {n,m}, and for the latter two a ? behind it, mean the same. */
static bt_status translate_repeat(translation *t)
{
    const char *p     = t->regex + t->i;
    size_t      n_min = strspn(p + 1, "0123456789"), n = 1 + n_min;
    bool        exact = p[n] == '}';

    if (p[n] == ',') n += 1 + strspn(p + n + 1, "0123456789");
    if (n_min == 0 || p[n] != '}') return refuse(t, n + 1, "no repeat that both read alike");
    n++;
    if (p[n] == '+')
        return refuse(t, n + 1, "a repeat that is repeated, in PCRE2 a possessive one");
    if (p[n] == '?' && exact) return refuse(t, n + 1, "an optional repeat, in PCRE2 a lazy one");
    copy(t, n);
    return BT_OK;
}

/* At a parenthesis. */
static bt_status translate_group(translation *t)
{
    static const char *const GROUPS[] = {"(?:", "(?=", "(?!", "(?>", "(?i:", "(?<=", "(?<!"};
    const char              *p        = t->regex + t->i;

    if (p[0] == '(' && p[1] == '?') {
        bool known = false;

        for (size_t i = 0; i < COUNT(GROUPS); i++)
            known = known || strncmp(p, GROUPS[i], strlen(GROUPS[i])) == 0;
        if (!known) return refuse(t, 3, "a group that is not known to mean the same in PCRE2");
    }
    if (p[0] == '(' && p[1] == '*') return refuse(t, 2, "a verb of PCRE2's own");
    if (p[0] == ')') {
        if (t->fold_depth != 0) t->fold_depth--;
        copy(t, 1);
        return BT_OK;
    }
    if (t->fold_depth != 0 || strncmp(p, "(?i:", 4) == 0) t->fold_depth++;
    if (t->fold_depth == 1) t->letter = '\0';
    copy(t, p[1] != '?' ? 1 : p[2] == 'i' || p[2] == '<' ? 4 : 3);
    return BT_OK;
}

/* At a bracket. */
static bt_status open_class(translation *t)
{
    bool negated = t->regex[t->i + 1] == '^';

    if (negated && t->fold_depth != 0)
        return refuse(t, 2, "not known to mean the same in PCRE2 under (?i");
    t->in_class  = true;
    t->class_at  = t->i;
    t->class_out = t->n;
    copy(t, 1 + (size_t)negated);
    return BT_OK;
}

/* Anything but an escape. */
static bt_status translate_plain(translation *t)
{
    bt_status st = BT_OK;
    char      c  = t->regex[t->i];

    if (t->fold_depth != 0 && strchr("()?*+{", c) == NULL) BT_TRY(check_fold(t, c));
    if (t->in_class) {
        BT_TRY(translate_in_class(t));
    } else if (c == '(' || c == ')') {
        BT_TRY(translate_group(t));
    } else if (c == '[') {
        BT_TRY(open_class(t));
    } else if (c == '{') {
        BT_TRY(translate_repeat(t));
    } else {
        copy(t, 1);
    }
out:
    return st;
}

bt_status bt_pretokenizer_translate(const char *where, const char *regex, char **pcre_out)
{
    bt_status   st = BT_OK;
    size_t      n  = strlen(regex);
    translation t  = {.where = where, .regex = regex};

    BT_REQUIRE(n <= MAX_REGEX_BYTES, BT_ERR_UNSUPPORTED,
               "%s: pre_tokenizer: expected a regex of at most %d bytes, found %zu", where,
               MAX_REGEX_BYTES, n);
    t.capacity = 2 * n + 64;
    t.out      = bt_calloc(t.capacity, 1);
    BT_REQUIRE(t.out != NULL, BT_ERR_NO_MEMORY, "%s: a regex of %zu bytes", where, n);
    while (t.i < n && !t.no_memory) {
        if (regex[t.i] == '\\')
            BT_TRY(translate_escape(&t));
        else
            BT_TRY(translate_plain(&t));
    }
    BT_REQUIRE(!t.no_memory, BT_ERR_NO_MEMORY, "%s: a regex of %zu bytes", where, n);
    *pcre_out = t.out;
    t.out     = NULL;
out:
    bt_free(t.kept);
    bt_free(t.out);
    return st;
}

/* model/grammar/regex_set.c - escapes and classes of regular expressions.
 *
 * \d and \w are ASCII's, as in ECMAScript.  \s is ASCII's too, while \S is no space of any dialect:
 * what a dialect calls a space beyond ASCII is in neither, or, where the text must not match, in
 * both. */
#include "model/grammar/regex.h"

void bt_regex_wrong(bt_source *s, size_t at, const char *sentence)
{
    bt_parts_refuse(s->g, "byte %zu of the regular expression: %s", at, sentence);
}

void bt_regex_unsupported(bt_source *s, size_t at, const char *name)
{
    bt_parts_refuse(s->g, "%s at byte %zu of the regular expression is not supported", name, at);
}

/* ---- escapes */

static void add_spaces(bt_parts *g, bt_chars *set, bool of_any_dialect)
{
    static const bt_char_range beyond[] = {
        {0x1C,   0x1F  },
        {0x85,   0x85  },
        {0xA0,   0xA0  },
        {0x1680, 0x1680},
        {0x180E, 0x180E},
        {0x2000, 0x200A},
        {0x2028, 0x2029},
        {0x202F, 0x202F},
        {0x205F, 0x205F},
        {0x3000, 0x3000},
        {0xFEFF, 0xFEFF}
    };

    bt_chars_add(g, set, '\t', '\r');
    bt_chars_add(g, set, ' ', ' ');
    for (size_t i = 0; of_any_dialect && i < sizeof(beyond) / sizeof(beyond[0]); i++)
        bt_chars_add(g, set, beyond[i].lo, beyond[i].hi);
}

/* \d \w \s; the large ones are their complements. */
static void add_named(bt_parts *g, char letter, bool more, bt_chars *set)
{
    bt_chars of       = {0};
    char     small    = letter | 0x20;
    bool     is_large = letter != small;

    if (small == 's') {
        add_spaces(g, &of, is_large != more);
    } else {
        bt_chars_add(g, &of, '0', '9');
        if (small == 'w') {
            bt_chars_add(g, &of, 'A', 'Z');
            bt_chars_add(g, &of, 'a', 'z');
            bt_chars_add(g, &of, '_', '_');
        }
    }
    if (is_large) bt_chars_negate(g, &of);
    for (uint32_t i = 0; i < of.n; i++)
        bt_chars_add(g, set, of.at[i].lo, of.at[i].hi);
    bt_chars_fini(&of);
}

static void refuse_escape(bt_source *s, size_t at, char c)
{
    static const struct {
        char        c;
        const char *name;
    } KNOWN[] = {
        {'b', "the word boundary \\b"    },
        {'B', "the word boundary \\B"    },
        {'A', "the anchor \\A in a class"},
        {'Z', "the anchor \\Z in a class"},
        {'z', "the anchor \\z in a class"},
        {'k', "the back reference \\k"   },
        {'p', "the Unicode property \\p" },
        {'P', "the Unicode property \\P" },
    };
    char name[] = "the escape \\?";

    for (size_t i = 0; i < sizeof(KNOWN) / sizeof(KNOWN[0]); i++)
        if (KNOWN[i].c == c) {
            bt_regex_unsupported(s, at, KNOWN[i].name);
            return;
        }
    name[sizeof(name) - 2] = c;
    if (c == 0)
        bt_regex_wrong(s, at, "a backslash with nothing behind it");
    else
        bt_regex_unsupported(s, at, bt_is_digit(c) && c != '0' ? "a back reference" : name);
}

/* \uHHHH, two of them where they are surrogates, \u{H..}: behind the u. */
static bool read_u(bt_source *s, size_t at, uint32_t *c)
{
    uint32_t low;
    bool     is;

    if (bt_source_take(s, "{"))
        is = bt_source_hex(s, 1, 6, c) && bt_source_take(s, "}");
    else
        is = bt_source_hex(s, 4, 4, c);
    if (is && *c >= 0xD800 && *c < 0xDC00) {
        is = bt_source_take(s, "\\u") && bt_source_hex(s, 4, 4, &low) && low >= 0xDC00 &&
             low < 0xE000;
        if (is) *c = 0x10000 + ((*c - 0xD800) << 10) + (low - 0xDC00);
    }
    is = is && *c <= BT_CHAR_MAX && (*c < 0xDC00 || *c > 0xDFFF);
    if (!is) bt_regex_wrong(s, at, "\\u is followed by no character's number");
    return is;
}

/* The escapes of one character; false: it is none. */
static bool read_char_escape(bt_source *s, size_t at, bool in_class, uint32_t *c)
{
    static const char names[] = "nrtfv", chars[] = "\n\r\t\f\v";
    char              e   = bt_source_peek(s);
    const char       *one = e == 0 ? NULL : strchr(names, e);

    if (e == 0 || (bt_is_digit(e) && e != '0')) return false;
    if (!bt_is_letter(e) && e != '0') {
        *c = bt_source_char(s);
        return true;
    }
    s->at++;
    if (one != NULL) {
        *c = (uint8_t)chars[one - names];
    } else if (e == '0') {
        *c = 0;
        if (bt_is_digit(bt_source_peek(s))) bt_regex_unsupported(s, at, "an octal escape");
    } else if (e == 'b' && in_class) {
        *c = '\b';
    } else if (e == 'c' && bt_is_letter(bt_source_peek(s))) {
        *c = bt_source_char(s) & 31;
    } else if (e == 'x') {
        if (!bt_source_hex(s, 2, 2, c)) bt_regex_wrong(s, at, "\\x is not followed by two digits");
    } else if (e == 'u') {
        return read_u(s, at, c);
    } else {
        s->at--;
        return false;
    }
    return s->g->st == BT_OK;
}

bt_regex_escape bt_regex_read_escape(bt_source *s, bool in_class, bool more, bt_chars *set,
                                     uint32_t *c_out)
{
    size_t at = s->at++;
    char   e  = bt_source_peek(s);

    if (e != 0 && strchr("dwsDWS", e) != NULL) {
        s->at++;
        add_named(s->g, e, more, set);
        return BT_ESCAPE_SET;
    }
    if (read_char_escape(s, at, in_class, c_out)) return BT_ESCAPE_CHAR;
    refuse_escape(s, at, e);
    return BT_ESCAPE_NOTHING;
}

/* ---- classes */

/* [:name:], which PCRE reads and the others do not. */
static bool is_posix_class(const bt_source *s)
{
    enum { LONGEST = 16 };
    size_t i = s->at + 2;

    if (!bt_source_is(s, "[:")) return false;
    if (i < s->n && s->text[i] == '^') i++;
    while (i < s->n && i < s->at + LONGEST && bt_is_letter(s->text[i]))
        i++;
    return i + 1 < s->n && s->text[i] == ':' && s->text[i + 1] == ']';
}

/* One character, true; or a set, that is added. */
static bool read_class_atom(bt_source *s, bool more, bt_chars *set, uint32_t *c)
{
    if (is_posix_class(s)) bt_regex_unsupported(s, s->at, "a POSIX class [:...:]");
    if (bt_source_peek(s) == '\\')
        return bt_regex_read_escape(s, true, more, set, c) == BT_ESCAPE_CHAR;
    *c = bt_source_char(s);
    return true;
}

/* One character, a set, or a range; where an end of a range is a set, the - stands for itself, as
 * in ECMAScript (Python refuses it). */
static void read_class_item(bt_source *s, bool more, bt_chars *set)
{
    size_t   at = s->at;
    uint32_t lo = 0, hi = 0;
    bool     has_lo = read_class_atom(s, more, set, &lo), has_hi;

    if (bt_source_peek(s) != '-' || bt_source_is(s, "-]")) {
        if (has_lo) bt_chars_add(s->g, set, lo, lo);
        return;
    }
    s->at++;
    has_hi = read_class_atom(s, more, set, &hi);
    if (has_lo && has_hi) {
        if (lo > hi && bt_source_more(s))
            bt_regex_wrong(s, at, "a range of a class ends before it begins");
        bt_chars_add(s->g, set, lo, hi);
        return;
    }
    bt_chars_add(s->g, set, '-', '-');
    if (has_lo) bt_chars_add(s->g, set, lo, lo);
    if (has_hi) bt_chars_add(s->g, set, hi, hi);
}

void bt_regex_read_class(bt_source *s, bool more, bt_chars *set)
{
    size_t at = s->at++;
    bool   negated;

    negated = bt_source_take(s, "^");
    if (bt_source_peek(s) == ']')
        bt_regex_wrong(s, s->at, "a class that begins with ] (write \\], dialects differ)");
    while (bt_source_more(s) && bt_source_peek(s) != ']')
        read_class_item(s, more != negated, set);
    if (!bt_source_take(s, "]")) bt_regex_wrong(s, at, "the class has no ]");
    if (negated) bt_chars_negate(s->g, set);
}

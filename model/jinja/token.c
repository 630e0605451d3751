/* What stands in a template's tags, token by token. */
#include <string.h>

#include "model/jinja/parts.h"
#include "model/utf8.h"

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}
static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static bt_status read_number(bt_jinja_parser *p)
{
    bt_status   st    = BT_OK;
    int64_t     value = 0;
    const char *c     = p->at;

    for (; is_digit(*c) || (*c == '_' && is_digit(c[1])); c++) {
        if (*c == '_') continue;
        BT_JINJA_REQUIRE(p->j, p->at, value < INT64_MAX / 10 - 1, BT_ERR_UNSUPPORTED,
                         "expected numbers below 2^63 / 10");
        value = value * 10 + (*c - '0');
    }
    BT_JINJA_REQUIRE(p->j, p->at, !is_letter(*c) && (*c != '.' || !is_digit(c[1])),
                     BT_ERR_UNSUPPORTED, "expected whole numbers, found %.16s", p->at);
    p->now.kind   = BT_JINJA_NUMBER;
    p->now.number = value;
    p->at         = c;
out:
    return st;
}

static int hex_value(char c)
{
    if (is_digit(c)) return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

/* What a backslash means, as in Python; of an unknown one both characters stay. */
static bt_status read_escape(bt_jinja_parser *p, const char **c, char **to)
{
    static const char FROM[] = "ntr\\'\"abfv", MEANT[] = "\n\t\r\\'\"\a\b\f\v";
    bt_status         st       = BT_OK;
    const char       *known    = strchr(FROM, **c);
    int               n_digits = **c == 'x' ? 2 : **c == 'u' ? 4 : 0;
    uint32_t          code     = 0;

    BT_JINJA_REQUIRE(p->j, *c, **c != 'U' && **c != 'N' && !is_digit(**c), BT_ERR_UNSUPPORTED,
                     "expected \\n, \\t, \\xhh or \\uhhhh, found \\%c", **c);
    if (known != NULL && **c != '\0') {
        *(*to)++ = MEANT[known - FROM];
        (*c)++;
        goto out;
    }
    if (**c == '\n') { /* the line goes on */
        (*c)++;
        goto out;
    }
    if (n_digits == 0) {
        *(*to)++ = '\\';
        goto out;
    }
    for (int i = 1; i <= n_digits; i++) {
        int digit = hex_value((*c)[i]);

        BT_JINJA_REQUIRE(p->j, *c, digit >= 0, BT_ERR_FORMAT, "expected %d digits after \\%c",
                         n_digits, **c);
        code = code * 16 + (uint32_t)digit;
    }
    BT_JINJA_REQUIRE(p->j, *c, code != 0 && (code < 0xd800 || code > 0xdfff), BT_ERR_UNSUPPORTED,
                     "expected a character other than 0 and surrogates, found \\%.5s", *c);
    *to += bt_utf8_put(code, *to);
    *c += 1 + n_digits;
out:
    return st;
}

static bt_status read_quoted(bt_jinja_parser *p)
{
    bt_status   st  = BT_OK;
    const char *c   = p->at + 1;
    const char *end = c;
    char       *text, *to;

    while (*end != '\0' && *end != *p->at)
        end += *end == '\\' && end[1] != '\0' ? 2 : 1;
    BT_JINJA_REQUIRE(p->j, p->at, *end != '\0', BT_ERR_FORMAT, "a quote that does not end");
    BT_JINJA_NEW(p->j, text, (size_t)(end - c) + 1);
    for (to = text; c < end;) {
        if (*c != '\\') {
            *to++ = *c++;
            continue;
        }
        c++;
        BT_TRY(read_escape(p, &c, &to));
    }
    p->now.kind = BT_JINJA_QUOTED;
    p->now.text = (bt_jinja_text){text, (size_t)(to - text)};
    p->at       = end + 1;
out:
    return st;
}

static const struct {
    char sign[3];
    int  number;
} PAIRS[] = {
    {"==", BT_JINJA_EQ   },
    {"!=", BT_JINJA_NE   },
    {"<=", BT_JINJA_LE   },
    {">=", BT_JINJA_GE   },
    {"//", BT_JINJA_FLOOR},
    {"**", BT_JINJA_POWER}
};

/* The end of the tag, with its dash or plus, passes too, and what it trims. */
static bool pass_end(bt_jinja_parser *p)
{
    const char *c    = p->at;
    char        trim = *c == '-' || (*c == '+' && p->closing == '%') ? *c++ : '\0';

    if (p->open != 0 || c[0] != p->closing || c[1] != '}') return false;
    c += 2;
    if (trim == '-')
        c = bt_jinja_skip_space(c);
    else if (trim == '\0' && p->closing == '%' && *c == '\n')
        c++;
    p->now.kind = BT_JINJA_TAG_END;
    p->at       = c;
    return true;
}

static bt_status read_sign(bt_jinja_parser *p)
{
    bt_status st = BT_OK;

    p->now.kind   = BT_JINJA_SIGN;
    p->now.number = *p->at;
    p->now.text.n = 1;
    for (size_t i = 0; i < sizeof(PAIRS) / sizeof(PAIRS[0]); i++)
        if (strncmp(p->at, PAIRS[i].sign, 2) == 0) {
            p->now.number = PAIRS[i].number;
            p->now.text.n = 2;
        }
    BT_JINJA_REQUIRE(p->j, p->at, *p->at != '\0', BT_ERR_FORMAT, "a tag that does not end");
    BT_JINJA_REQUIRE(p->j, p->at, strchr("+-*/%~<>=!.,:|()[]{}", *p->at) != NULL, BT_ERR_FORMAT,
                     "expected an expression, found %.16s", p->at);
    if (strchr("([{", *p->at) != NULL) p->open++;
    if (strchr(")]}", *p->at) != NULL && p->open != 0) p->open--;
    p->at += p->now.text.n;
out:
    return st;
}

bt_status bt_jinja_read(bt_jinja_parser *p)
{
    bt_status   st = BT_OK;
    const char *end;

    p->at  = bt_jinja_skip_space(p->at);
    p->now = (bt_jinja_token){
        .at = p->at, .text = {p->at, 0}
    };
    if (pass_end(p)) goto out;
    if (is_letter(*p->at)) {
        for (end = p->at; is_letter(*end) || is_digit(*end);)
            end++;
        p->now.kind   = BT_JINJA_WORD;
        p->now.text.n = (size_t)(end - p->at);
        p->at         = end;
    } else if (is_digit(*p->at)) {
        BT_TRY(read_number(p));
    } else if (*p->at == '\'' || *p->at == '"') {
        BT_TRY(read_quoted(p));
    } else {
        BT_TRY(read_sign(p));
    }
out:
    return st;
}

bool bt_jinja_at_word(const bt_jinja_parser *p, const char *word)
{
    return p->now.kind == BT_JINJA_WORD && bt_jinja_is(p->now.text, word);
}

bool bt_jinja_at_any(const bt_jinja_parser *p, const char *const *words)
{
    while (*words != NULL)
        if (bt_jinja_at_word(p, *words++)) return true;
    return false;
}

bool bt_jinja_at_sign(const bt_jinja_parser *p, int sign)
{
    return p->now.kind == BT_JINJA_SIGN && p->now.number == sign;
}

bt_status bt_jinja_expected(const bt_jinja_parser *p, const char *what)
{
    return bt_jinja_refuse(p->j, p->now.at, BT_ERR_FORMAT, "expected %s, found %s%.24s", what,
                           *p->now.at == '\0' ? "the end" : "", p->now.at);
}

bt_status bt_jinja_pass_word(bt_jinja_parser *p, const char *word)
{
    return bt_jinja_at_word(p, word) ? bt_jinja_read(p) : bt_jinja_expected(p, word);
}

bt_status bt_jinja_pass_sign(bt_jinja_parser *p, int sign)
{
    char what[2] = {(char)sign, '\0'};

    return bt_jinja_at_sign(p, sign) ? bt_jinja_read(p) : bt_jinja_expected(p, what);
}

bt_status bt_jinja_pass_name(bt_jinja_parser *p, const char *what, bt_jinja_text *name_out)
{
    bt_status st = BT_OK;

    if (p->now.kind != BT_JINJA_WORD) BT_TRY(bt_jinja_expected(p, what));
    *name_out = p->now.text;
    BT_TRY(bt_jinja_read(p));
out:
    return st;
}

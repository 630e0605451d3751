/* A template's tags and the text between them, as statements.  Blanks are trimmed here, as Jinja
 * does with trim_blocks (the line end behind a {% %} or {# #}) and lstrip_blocks (what begins the
 * line of one). */
#include <string.h>

#include "model/jinja/parts.h"

/* Words that end a list, or go on with what is around it. */
static const char *const ENDS[] = {"elif",   "else",     "endif",         "endfor",
                                   "endset", "endmacro", "endgeneration", NULL};

static bt_status parse_body(bt_jinja_parser *p, bt_jinja_node **list_out);

/* ---- text ---- */

static const char *find_tag(const char *c)
{
    for (; *c != '\0'; c++)
        if (c[0] == '{' && (c[1] == '{' || c[1] == '%' || c[1] == '#')) return c;
    return c;
}

/* Where the text from `begin` ends that is printed before the tag. */
static const char *text_end(const bt_jinja *j, const char *begin, const char *tag)
{
    bt_jinja_text text = {begin, (size_t)(tag - begin)}, line = {tag, 0};

    if (*tag == '\0') return tag;
    if (tag[2] == '-') {
        text = bt_jinja_strip(text, NULL, false, true);
        return text.s + text.n;
    }
    if (tag[1] == '{' || tag[2] == '+') return tag;
    for (; line.s > begin && line.s[-1] != '\n'; line.n++)
        line.s--;
    if (line.s != j->text && line.s[-1] != '\n') return tag;
    return bt_jinja_strip(line, NULL, true, false).n == 0 ? line.s : tag;
}

/* The text before the next tag; p->at is at the tag afterwards.  None: *text_out stays. */
static bt_status parse_text(bt_jinja_parser *p, bt_jinja_node **text_out)
{
    bt_status   st    = BT_OK;
    const char *begin = p->at, *tag = find_tag(begin), *end = text_end(p->j, begin, tag);

    if (end > begin) {
        BT_TRY(bt_jinja_node_new(p, BT_JINJA_TEXT, text_out));
        (*text_out)->text = (bt_jinja_text){begin, (size_t)(end - begin)};
    }
    p->at = tag;
out:
    return st;
}

static bt_status pass_comment(bt_jinja_parser *p)
{
    bt_status   st    = BT_OK;
    const char *begin = p->at + (p->at[2] == '-' || p->at[2] == '+' ? 3 : 2);
    const char *end   = strstr(begin, "#}");
    char        sign;

    BT_JINJA_REQUIRE(p->j, p->at, end != NULL, BT_ERR_FORMAT, "a comment that does not end");
    p->at = end + 2;
    sign  = end > begin ? end[-1] : '\0'; /* of {#-#} the dash is the beginning's */
    if (sign == '-')
        p->at = bt_jinja_skip_space(p->at);
    else if (sign != '+' && *p->at == '\n')
        p->at++;
out:
    return st;
}

/* ---- statements; p->now is behind the word that names them ---- */

static bt_status pass_end(bt_jinja_parser *p)
{
    return p->now.kind == BT_JINJA_TAG_END ? BT_OK : bt_jinja_expected(p, "the end of the tag");
}

/* The list up to the tag that begins with this word, and that tag. */
static bt_status parse_until(bt_jinja_parser *p, const char *word, bt_jinja_node **list_out)
{
    bt_status st = BT_OK;

    BT_TRY(pass_end(p));
    BT_TRY(parse_body(p, list_out));
    BT_TRY(bt_jinja_pass_word(p, word));
    BT_TRY(pass_end(p));
out:
    return st;
}

/* What is printed for somebody else, whom no break leaves. */
static bt_status parse_own(bt_jinja_parser *p, const char *word, bt_jinja_node **list_out)
{
    bt_status st      = BT_OK;
    uint32_t  n_loops = p->n_loops;

    p->n_loops = 0;
    BT_TRY(parse_until(p, word, list_out));
    p->n_loops = n_loops;
out:
    return st;
}

/* The other list, where there is one, and the tag that begins with this word. */
static bt_status parse_else(bt_jinja_parser *p, const char *word, bt_jinja_node **list_out)
{
    bt_status st = BT_OK;

    if (bt_jinja_at_word(p, "else")) {
        BT_TRY(bt_jinja_read(p));
        BT_TRY(parse_until(p, word, list_out));
    } else {
        BT_TRY(bt_jinja_pass_word(p, word));
        BT_TRY(pass_end(p));
    }
out:
    return st;
}

static bt_status parse_if(bt_jinja_parser *p, bt_jinja_node **node_out)
{
    bt_status       st     = BT_OK;
    bt_jinja_node **branch = node_out;

    for (;;) {
        BT_TRY(bt_jinja_node_new(p, BT_JINJA_IF, branch));
        BT_TRY(bt_jinja_parse_tuple(p, false, &(*branch)->a));
        BT_TRY(pass_end(p));
        BT_TRY(parse_body(p, &(*branch)->list));
        branch = &(*branch)->or_else;
        if (!bt_jinja_at_word(p, "elif")) break;
        BT_TRY(bt_jinja_read(p));
    }
    BT_TRY(parse_else(p, "endif", branch));
out:
    return st;
}

static bt_status parse_for(bt_jinja_parser *p, bt_jinja_node **node_out)
{
    bt_status      st = BT_OK;
    bt_jinja_node *loop;

    BT_TRY(bt_jinja_node_new(p, BT_JINJA_FOR, &loop));
    BT_TRY(bt_jinja_parse_target(p, &loop->b));
    BT_TRY(bt_jinja_pass_word(p, "in"));
    BT_TRY(bt_jinja_parse_tuple(p, false, &loop->a));
    if (bt_jinja_at_word(p, "if")) {
        BT_TRY(bt_jinja_read(p));
        BT_TRY(bt_jinja_parse_expression(p, &loop->c));
    }
    BT_JINJA_REQUIRE(p->j, p->now.at, !bt_jinja_at_word(p, "recursive"), BT_ERR_UNSUPPORTED,
                     "expected a loop that is not recursive");
    BT_TRY(pass_end(p));
    p->n_loops++;
    BT_TRY(parse_body(p, &loop->list));
    p->n_loops--;
    BT_TRY(parse_else(p, "endfor", &loop->or_else));
    *node_out = loop;
out:
    return st;
}

static bt_status parse_set(bt_jinja_parser *p, bt_jinja_node **node_out)
{
    bt_status st = BT_OK;

    BT_TRY(bt_jinja_node_new(p, BT_JINJA_SET, node_out));
    BT_TRY(bt_jinja_parse_target(p, &(*node_out)->a));
    if (p->now.kind == BT_JINJA_TAG_END) {
        BT_TRY(parse_own(p, "endset", &(*node_out)->list));
        goto out;
    }
    BT_TRY(bt_jinja_pass_sign(p, '='));
    BT_TRY(bt_jinja_parse_tuple(p, true, &(*node_out)->b));
    BT_TRY(pass_end(p));
out:
    return st;
}

static bt_status parse_macro(bt_jinja_parser *p, bt_jinja_node **node_out)
{
    bt_status      st = BT_OK;
    bt_jinja_node *macro, **to;

    BT_TRY(bt_jinja_node_new(p, BT_JINJA_MACRO, &macro));
    BT_TRY(bt_jinja_pass_name(p, "a macro's name", &macro->text));
    BT_TRY(bt_jinja_pass_sign(p, '('));
    for (to = &macro->b; !bt_jinja_at_sign(p, ')'); to = &(*to)->next) {
        if (to != &macro->b) BT_TRY(bt_jinja_pass_sign(p, ','));
        if (p->now.kind != BT_JINJA_WORD) BT_TRY(bt_jinja_expected(p, "a parameter's name"));
        BT_TRY(bt_jinja_node_new(p, BT_JINJA_NAME, to));
        (*to)->text = p->now.text;
        BT_TRY(bt_jinja_read(p));
        if (!bt_jinja_at_sign(p, '=')) continue;
        BT_TRY(bt_jinja_read(p));
        BT_TRY(bt_jinja_parse_expression(p, &(*to)->a));
    }
    BT_TRY(bt_jinja_read(p));
    BT_TRY(parse_own(p, "endmacro", &macro->list));
    *node_out = macro;
out:
    return st;
}

/* break or continue */
static bt_status parse_leap(bt_jinja_parser *p, bt_jinja_token word, bt_jinja_node **node_out)
{
    bt_status st = BT_OK;

    BT_JINJA_REQUIRE(p->j, word.at, p->n_loops != 0, BT_ERR_FORMAT, "%.*s outside a loop",
                     bt_jinja_shown(word.text), word.text.s);
    BT_TRY(
        bt_jinja_node_new(p, word.text.s[0] == 'b' ? BT_JINJA_BREAK : BT_JINJA_CONTINUE, node_out));
    BT_TRY(pass_end(p));
out:
    return st;
}

/* What marks an answer for training, and prints what is in it. */
static bt_status parse_generation(bt_jinja_parser *p, bt_jinja_node **node_out)
{
    bt_status st = BT_OK;

    BT_TRY(bt_jinja_node_new(p, BT_JINJA_BODY, node_out));
    BT_TRY(parse_own(p, "endgeneration", &(*node_out)->list));
out:
    return st;
}

static bt_status parse_statement(bt_jinja_parser *p, bt_jinja_node **node_out)
{
    bt_status      st   = BT_OK;
    bt_jinja_token word = p->now;

    BT_TRY(bt_jinja_read(p));
    if (bt_jinja_is(word.text, "if"))
        BT_TRY(parse_if(p, node_out));
    else if (bt_jinja_is(word.text, "for"))
        BT_TRY(parse_for(p, node_out));
    else if (bt_jinja_is(word.text, "set"))
        BT_TRY(parse_set(p, node_out));
    else if (bt_jinja_is(word.text, "macro"))
        BT_TRY(parse_macro(p, node_out));
    else if (bt_jinja_is(word.text, "break") || bt_jinja_is(word.text, "continue"))
        BT_TRY(parse_leap(p, word, node_out));
    else if (bt_jinja_is(word.text, "generation"))
        BT_TRY(parse_generation(p, node_out));
    else
        BT_JINJA_REQUIRE(p->j, word.at, false, BT_ERR_UNSUPPORTED,
                         "expected if, for, set, macro, break, continue or generation, found %.*s",
                         bt_jinja_shown(word.text), word.text.s);
out:
    return st;
}

static bt_status parse_print(bt_jinja_parser *p, bt_jinja_node **node_out)
{
    bt_status st = BT_OK;

    BT_TRY(bt_jinja_node_new(p, BT_JINJA_PRINT, node_out));
    BT_TRY(bt_jinja_read(p));
    BT_TRY(bt_jinja_parse_tuple(p, true, &(*node_out)->a));
    BT_TRY(pass_end(p));
out:
    return st;
}

/* One tag, whose statement or output goes to *node_out; *ends_out: it ends the list instead, and
 * p->now is its word. */
static bt_status parse_tag(bt_jinja_parser *p, bt_jinja_node **node_out, bool *ends_out)
{
    bt_status st   = BT_OK;
    char      kind = p->at[1];

    if (kind == '#') {
        BT_TRY(pass_comment(p));
        goto out;
    }
    p->closing = kind == '{' ? '}' : '%';
    p->open    = 0;
    p->now.at  = p->at;
    p->at += p->at[2] == '-' || p->at[2] == '+' ? 3 : 2;
    if (kind == '{') {
        BT_TRY(parse_print(p, node_out));
        goto out;
    }
    BT_TRY(bt_jinja_read(p));
    *ends_out = bt_jinja_at_any(p, ENDS);
    if (!*ends_out) BT_TRY(parse_statement(p, node_out));
out:
    return st;
}

/* Up to the template's end (p->now is empty then) or a word that ends a list. */
static bt_status parse_body(bt_jinja_parser *p, bt_jinja_node **list_out)
{
    bt_status st   = BT_OK;
    bool      ends = false;

    BT_TRY(bt_jinja_deeper(p));
    while (!ends) {
        BT_TRY(parse_text(p, list_out));
        if (*list_out != NULL) list_out = &(*list_out)->next;
        if (*p->at == '\0') {
            p->now = (bt_jinja_token){.kind = BT_JINJA_TAG_END, .at = p->at};
            break;
        }
        BT_TRY(parse_tag(p, list_out, &ends));
        if (*list_out != NULL) list_out = &(*list_out)->next;
    }
out:
    p->depth--;
    return st;
}

bt_status bt_jinja_parse_template(bt_jinja *j, bt_jinja_node **body_out)
{
    bt_status       st = BT_OK;
    bt_jinja_parser p  = {.j = j, .at = j->text, .now = {.at = j->text}};

    BT_TRY(parse_body(&p, body_out));
    if (*p.now.at != '\0') BT_TRY(bt_jinja_expected(&p, "a tag that belongs to one before"));
out:
    return st;
}

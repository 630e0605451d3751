/* model/grammar/regex.c - regular expressions: what Python's re, ECMAScript and PCRE have in
 * common.
 *
 * Laziness makes no difference to which texts match and is ignored; ^ and $ are the text's own ends
 * ($ never stands before a last newline); look-behind, back references, word boundaries, flags and
 * whatever else the dialects read differently is refused by name.  Where they differ by more or
 * fewer characters, the fewer are taken: . is no line's end of ECMAScript inside JSON, and no \n
 * elsewhere.  Of what must not match the more are taken, so that no dialect finds it.
 *
 * A look-ahead is a condition on the rest of the text, as what follows it is: so the group in which
 * it stands ends the text, as if it had a $.
 *
 * Text that stands for itself is collected and becomes one part. */
#include "model/grammar/regex.h"

#include "core/alloc.h"
#include "model/grammar/grammar.h"

/* Of the ways through a piece, those that begin with ^, or end with $: none, each, or some.  Where
 * only some do, the others have any text there already. */
typedef enum { ANCHORED_NOT, ANCHORED_ALL, ANCHORED_SOME } anchored;

typedef struct {
    bt_part  is;          /* unless empty */
    uint32_t least, most; /* characters; BT_UNLIMITED stays that */
    bool     empty;       /* nothing came yet */
    anchored start, end;
    size_t   end_at; /* of the $ */
} piece;

typedef struct {
    bt_source s;
    bool      from_start, to_end; /* the text matches from there, and to there */
    bool      in_json;
    bool      barred; /* the text must not match */
    char     *run;    /* [s.n]: characters that stand for themselves, not yet a part */
    size_t    n_run;
    bool      has_any;
    uint32_t  any; /* rule: any text */
    uint32_t  depth;
} reader;

static piece read_sequence(reader *r);
static piece read_alternatives(reader *r);

static bt_part one_of(reader *r, bt_chars *set)
{
    bt_part p = r->in_json ? bt_part_json_chars(r->s.g, set) : bt_part_chars(r->s.g, set);

    bt_chars_fini(set);
    return p;
}

static bt_part any_text(reader *r)
{
    bt_parts *g   = r->s.g;
    bt_chars  all = {0};

    if (!r->has_any) {
        r->has_any = true;
        r->any     = bt_rule_new(g, NULL);
        bt_chars_add(g, &all, 0, BT_CHAR_MAX);
        bt_rule_is(g, r->any, bt_part_repeat(g, one_of(r, &all), 0, BT_UNLIMITED));
    }
    return bt_rule_call(g, r->any);
}

/* ---- pieces */

static uint32_t at_most_unlimited(uint64_t n)
{
    return n < BT_UNLIMITED ? (uint32_t)n : BT_UNLIMITED;
}

static void append(reader *r, piece *p, bt_part next, uint32_t least, uint32_t most)
{
    p->is    = p->empty ? next : bt_part_then(r->s.g, p->is, next);
    p->empty = false;
    p->least = at_most_unlimited((uint64_t)p->least + least);
    p->most  = at_most_unlimited((uint64_t)p->most + most);
}

static void put_before(reader *r, piece *p)
{
    p->is   = bt_part_then(r->s.g, any_text(r), p->is);
    p->most = BT_UNLIMITED;
}

static void put_behind(reader *r, piece *p)
{
    p->is   = bt_part_then(r->s.g, p->is, any_text(r));
    p->most = BT_UNLIMITED;
}

static anchored merged(anchored a, anchored b) { return a == b ? a : ANCHORED_SOME; }

static piece either(reader *r, piece a, piece b)
{
    a.end_at = b.end != ANCHORED_NOT ? b.end_at : a.end_at;
    /* Where any text comes nowhere, it is all the same. */
    if (r->from_start) a.start = b.start = a.start > b.start ? a.start : b.start;
    if (r->to_end) a.end = b.end = a.end > b.end ? a.end : b.end;
    if (a.start != b.start && a.start == ANCHORED_NOT) put_before(r, &a);
    if (a.start != b.start && b.start == ANCHORED_NOT) put_before(r, &b);
    if (a.end != b.end && a.end == ANCHORED_NOT) put_behind(r, &a);
    if (a.end != b.end && b.end == ANCHORED_NOT) put_behind(r, &b);
    a.start = merged(a.start, b.start);
    a.end   = merged(a.end, b.end);
    a.is    = bt_part_either(r->s.g, a.is, b.is);
    a.least = a.least < b.least ? a.least : b.least;
    a.most  = a.most > b.most ? a.most : b.most;
    return a;
}

/* Something else comes: not after a $. */
static void check_end(reader *r, const piece *p)
{
    if (p->end != ANCHORED_NOT)
        bt_regex_unsupported(&r->s, p->end_at,
                             "an anchor of the end, or a look-ahead in a group, that something "
                             "follows,");
}

static void append_piece(reader *r, piece *p, size_t at, const piece *next)
{
    bool second = !p->empty || (p->start != ANCHORED_NOT && next->start == ANCHORED_SOME);

    if (next->start != ANCHORED_NOT) {
        if (second)
            bt_regex_unsupported(&r->s, at, "a group with ^ in it that something precedes,");
        p->start = next->start;
    }
    p->end    = next->end;
    p->end_at = next->end_at;
    append(r, p, next->is, next->least, next->most);
}

/* ---- quantifiers */

static bool quantifier_comes(const reader *r)
{
    bt_source s = r->s;
    uint32_t  min, max;

    return bt_source_counts(&s, &min, &max);
}

static void read_quantifier(reader *r, piece *item)
{
    bt_source *s       = &r->s;
    size_t     at      = s->at;
    bool       is_text = r->in_json && bt_source_is(s, "{,");
    uint32_t   min, max;

    if (!bt_source_counts(s, &min, &max)) return;
    if (is_text) bt_regex_unsupported(s, at, "{, as a quantifier, which is text in ECMAScript,");
    if (bt_source_peek(s) == '+') bt_regex_unsupported(s, at, "a possessive quantifier");
    (void)bt_source_take(s, "?"); /* lazy */
    if (quantifier_comes(r)) bt_regex_wrong(s, s->at, "a quantifier behind a quantifier");
    if (item->start != ANCHORED_NOT || item->end != ANCHORED_NOT)
        bt_regex_unsupported(s, at, "a quantifier of a group with an anchor or look-ahead in it");
    if (min > BT_COUNT_MAX || (max > BT_COUNT_MAX && max != BT_UNLIMITED))
        bt_regex_unsupported(s, at, "a repetition of more than 10000 times");
    if (min > max) bt_regex_wrong(s, at, "a quantifier of more at least than at most");
    item->is    = bt_part_repeat(s->g, item->is, min, max);
    item->least = at_most_unlimited((uint64_t)item->least * min);
    item->most  = at_most_unlimited((uint64_t)item->most * max);
}

/* ---- groups */

static void refuse_group(bt_source *s, size_t at)
{
    static const struct {
        const char *text, *name;
    } KNOWN[] = {
        {"?<=", "the look-behind (?<="   },
        {"?<!", "the look-behind (?<!"   },
        {"?>",  "the atomic group (?>"   },
        {"?(",  "the conditional (?("    },
        {"?P=", "the back reference (?P="},
        {"?P>", "the recursion (?P>"     },
        {"?R",  "the recursion (?R"      },
        {"?&",  "the recursion (?&"      },
        {"?|",  "the branch reset (?|"   },
        {"?#",  "the comment (?#"        },
    };

    for (size_t i = 0; i < sizeof(KNOWN) / sizeof(KNOWN[0]); i++)
        if (bt_source_is(s, KNOWN[i].text)) {
            bt_regex_unsupported(s, at, KNOWN[i].name);
            return;
        }
    bt_regex_unsupported(s, at, "the group (? with inline flags, or of another kind,");
}

/* name>: behind (?< or (?P<. */
static void pass_name(bt_source *s, size_t at)
{
    size_t from = s->at;

    for (char c; (c = bt_source_peek(s)) != 0; s->at++)
        if (!bt_is_letter(c) && c != '_' && !(bt_is_digit(c) && s->at > from)) break;
    if (s->at == from || !bt_source_take(s, ">"))
        bt_regex_wrong(s, at, "the group has no name of letters, digits and _");
}

/* What stands behind the ( of a group. */
static void pass_head(bt_source *s, size_t at)
{
    bool looks_behind = bt_source_is(s, "?<=") || bt_source_is(s, "?<!");

    if (bt_source_peek(s) != '?' || bt_source_take(s, "?:")) return;
    if (!looks_behind && (bt_source_take(s, "?<") || bt_source_take(s, "?P<")))
        pass_name(s, at);
    else
        refuse_group(s, at);
}

static piece read_group(reader *r)
{
    bt_source *s  = &r->s;
    size_t     at = s->at++;
    piece      p;

    if (r->depth == BT_GRAMMAR_DEPTH_MAX)
        bt_regex_wrong(s, at, "groups in each other, more than 128 of them");
    r->depth++;
    pass_head(s, at);
    p = read_alternatives(r);
    r->depth--;
    if (!bt_source_take(s, ")")) bt_regex_wrong(s, at, "the group has no )");
    return p;
}

/* ---- one thing after another */

/* . but for the ends of lines, of which ECMAScript, whose expressions JSON schemas use, has more
 * than the others. */
static void add_dot(reader *r, bt_chars *set)
{
    bt_parts *g = r->s.g;

    bt_chars_add(g, set, '\n', '\n');
    if (r->in_json && !r->barred) {
        bt_chars_add(g, set, '\r', '\r');
        bt_chars_add(g, set, 0x2028, 0x2029);
    }
    bt_chars_negate(g, set);
}

static piece read_item(reader *r)
{
    bt_source *s   = &r->s;
    bt_chars   set = {0};
    uint32_t   c;

    switch (bt_source_peek(s)) {
    case '(': return read_group(r);
    case '[': bt_regex_read_class(s, r->barred, &set); break;
    case '.':
        s->at++;
        add_dot(r, &set);
        break;
    case '\\':
        if (bt_regex_read_escape(s, false, r->barred, &set, &c) == BT_ESCAPE_CHAR)
            bt_chars_add(s->g, &set, c, c);
        break;
    default: c = bt_source_char(s); bt_chars_add(s->g, &set, c, c);
    }
    return (piece){.is = one_of(r, &set), .least = 1, .most = 1};
}

/* Takes a character that stands for itself, once, into the run. */
static bool take_into_run(reader *r)
{
    bt_source *s    = &r->s;
    size_t     from = s->at, self; /* where it begins, and behind a backslash */
    uint32_t   c    = (uint8_t)bt_source_peek(s);

    if (strchr("([.*+?^$|)", (int)c) != NULL) return false;
    if (c == '\\') { /* of punctuation only: the others have meanings */
        s->at++;
        c = (uint8_t)bt_source_peek(s);
        if (c < ' ' || c >= 0x7F || bt_is_digit((char)c) || bt_is_letter((char)c)) {
            s->at = from;
            return false;
        }
    }
    if ((c == '{' && quantifier_comes(r)) ||
        (r->in_json && (c < ' ' || c == '"' || c == '\\'))) { /* escaped there */
        s->at = from;
        return false;
    }
    self = s->at;
    bt_source_char(s);
    if (quantifier_comes(r)) {
        s->at = from;
        return false;
    }
    memcpy(r->run + r->n_run, s->text + self, s->at - self);
    r->n_run += s->at - self;
    return true;
}

static void end_run(reader *r, piece *p)
{
    uint32_t n = 0;

    for (size_t i = 0; i < r->n_run; i++)
        n += (r->run[i] & 0xC0) != 0x80;
    if (r->n_run > 0) append(r, p, bt_part_bytes(r->s.g, r->run, r->n_run), n, n);
    r->n_run = 0;
}

static bool read_anchor(reader *r, piece *p)
{
    bt_source *s  = &r->s;
    size_t     at = s->at;

    if (bt_source_take(s, "^") || bt_source_take(s, "\\A")) {
        if (!p->empty || p->end != ANCHORED_NOT)
            bt_regex_unsupported(s, at, "an anchor of the start that something precedes,");
        p->start = ANCHORED_ALL;
        return true;
    }
    if (bt_source_take(s, "$") || bt_source_take(s, "\\z") || bt_source_take(s, "\\Z")) {
        if (p->end == ANCHORED_SOME) check_end(r, p);
        p->end    = ANCHORED_ALL;
        p->end_at = at;
        return true;
    }
    return false;
}

/* ---- look-aheads */

static bool look_ahead_comes(const reader *r)
{
    return bt_source_is(&r->s, "(?=") || bt_source_is(&r->s, "(?!");
}

/* Whether the text begins where p ends. */
static bool is_start(const reader *r, const piece *p)
{
    return p->empty && (r->from_start || p->start == ANCHORED_ALL);
}

/* Reads on, from where r is, into the condition's own grammar: a look-ahead's inside, or what
 * follows it, both to the end of the text, of *least to *most characters. */
static void read_condition(reader *r, bool from_start, bool to_end, piece (*read)(reader *r),
                           bt_condition *c, uint32_t *least, uint32_t *most)
{
    size_t at  = r->s.at;
    reader own = {.s          = r->s,
                  .from_start = from_start,
                  .to_end     = to_end,
                  .in_json    = r->in_json,
                  .barred     = r->barred != c->barred,
                  .depth      = r->depth,
                  .run        = r->run};
    piece  p;

    *least = *most = 0;
    if (r->s.g->st != BT_OK) return;
    own.s.g = &c->g;
    p       = read(&own);
    if (!from_start && p.start != ANCHORED_NOT)
        bt_regex_unsupported(&own.s, at, "an anchor of the start at a look-ahead or behind it,");
    if (!to_end && p.end == ANCHORED_NOT) put_behind(&own, &p);
    c->is   = p.is;
    *least  = p.least;
    *most   = p.most;
    r->s.at = own.s.at;
    bt_condition_read(r->s.g, c);
}

static void read_look_ahead(reader *r, bool from_start, bt_condition *c)
{
    bt_source *s  = &r->s;
    size_t     at = s->at;
    uint32_t   least, most;

    c->barred = bt_source_is(s, "(?!");
    s->at += strlen("(?!");
    read_condition(r, from_start, false, read_alternatives, c, &least, &most);
    if (!bt_source_take(s, ")")) bt_regex_wrong(s, at, "the look-ahead has no )");
    if (quantifier_comes(r)) bt_regex_unsupported(s, s->at, "a quantifier of a look-ahead");
}

/* Reads the sequence from its look-aheads on.  What follows goes to the text's end, as they do. */
static void read_under_look_aheads(reader *r, piece *p)
{
    bt_condition conditions[BT_MOST_CONDITIONS] = {0}; /* the last is what follows them */
    bool         from_start                     = is_start(r, p);
    size_t       at                             = r->s.at;
    uint32_t     n                              = 0, least, most;

    if (r->depth == BT_GRAMMAR_DEPTH_MAX)
        bt_regex_wrong(&r->s, at, "groups and look-aheads, more than 128 in or behind each other");
    r->depth++;
    for (; look_ahead_comes(r); n++) {
        if (n + 1 == BT_MOST_CONDITIONS) {
            bt_regex_unsupported(&r->s, r->s.at, "one look-ahead more than 7");
            break;
        }
        read_look_ahead(r, from_start, &conditions[n]);
    }
    read_condition(r, from_start, r->to_end, read_sequence, &conditions[n], &least, &most);
    r->depth--;
    append(r, p, bt_part_under(r->s.g, conditions, n + 1), least, most);
    p->end    = ANCHORED_ALL;
    p->end_at = at;
    for (uint32_t i = 0; i <= n; i++)
        bt_parts_fini(&conditions[i].g);
}

/* ---- sequences */

static piece read_sequence(reader *r)
{
    bt_source *s = &r->s;
    piece      p = {.empty = true}, item;

    for (char c; (c = bt_source_peek(s)) != 0 && c != '|' && c != ')';) {
        size_t at = s->at;

        if (p.end == ANCHORED_NOT && take_into_run(r)) continue;
        end_run(r, &p);
        if (read_anchor(r, &p)) continue;
        check_end(r, &p);
        if (look_ahead_comes(r)) {
            read_under_look_aheads(r, &p);
            continue;
        }
        if (quantifier_comes(r)) bt_regex_wrong(s, at, "a quantifier of nothing");
        item = read_item(r);
        read_quantifier(r, &item);
        append_piece(r, &p, at, &item);
    }
    end_run(r, &p);
    if (p.empty) append(r, &p, bt_part_nothing(s->g), 0, 0);
    return p;
}

static piece read_alternatives(reader *r)
{
    piece p = read_sequence(r);

    while (bt_source_take(&r->s, "|"))
        p = either(r, p, read_sequence(r));
    return p;
}

static piece read_regex(bt_parts *g, const char *text, size_t n, bool whole, bool in_json,
                        bool barred)
{
    reader r = {
        .s          = {.g = g, .text = text, .n = n},
        .from_start = whole,
        .to_end     = whole,
        .in_json    = in_json,
        .barred     = barred
    };
    piece p = {0};

    if (!bt_source_check(&r.s, "the regular expression")) goto out;
    r.run = bt_calloc(n, 1);
    if (r.run == NULL) {
        bt_parts_no_memory(g);
        goto out;
    }
    p = read_alternatives(&r);
    if (bt_source_peek(&r.s) == ')') bt_regex_wrong(&r.s, r.s.at, "this ) closes no group");
    if (!whole && p.start == ANCHORED_NOT) put_before(&r, &p);
    if (!whole && p.end == ANCHORED_NOT) put_behind(&r, &p);
out:
    bt_free(r.run);
    return p;
}

bt_part bt_read_regex(bt_parts *g, const char *text, size_t n, bool whole, bool in_json)
{
    return read_regex(g, text, n, whole, in_json, false).is;
}

bt_part bt_read_barred_regex(bt_parts *g, const char *text, size_t n, bool in_json)
{
    return read_regex(g, text, n, false, in_json, true).is;
}

bt_part bt_read_pattern(bt_parts *g, const char *text, size_t n, uint32_t *least_out,
                        uint32_t *most_out)
{
    piece p = read_regex(g, text, n, false, true, false);

    *least_out = p.least;
    *most_out  = p.most;
    return p.is;
}

/* model/grammar/schema_number.c - numbers of a JSON schema, within bounds, and multiples of one.
 *
 * Bounds are decimals, and so is the text: it is compared digit by digit.  A number is a sign and a
 * magnitude between two magnitudes.  Beside how many digits there are, what matters is whether
 * those so far are the lower bound's (so that no less may follow), the upper bound's, both, or
 * neither, and then the rest is free: four rows of nodes, with a step per digit.
 *
 * Multiples of m / 10^s have at most s digits behind the point, and all digits together, with zeros
 * up to s, are a multiple of m: beside the rest it matters what is left of them modulo m.
 *
 * A bound of 1e18 or more is beyond all numbers that come then.  Within bounds come no exponents,
 * and only so many digits behind the point that a number which differs from a bound that is
 * excluded does so as a double, too.
 *
 * Numbers that `not` lists are such bounds, of the gaps between them. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/minmax.h"
#include "model/grammar/schema.h"

enum {
    MOST_MODULUS  = 1000,
    MOST_WHOLE    = 18,  /* digits before the point */
    MOST_FRACTION = 17,  /* behind it, where nothing says otherwise */
    EXACT_DIGITS  = 15,  /* decimals of so many are different doubles */
    ROOM          = 400, /* of a fraction: the smallest double has 324 zeros and 17 digits */
    ROWS          = 4,
    TIGHT_LO      = 1, /* bits of a row */
    TIGHT_HI      = 2
};
#define MOST_LISTED 1e15 /* of numbers that `not` lists: each is a double of its own */

/* A magnitude, and on which side of zero. */
typedef struct {
    bool     given, excluded, negative;
    uint32_t n_whole, n_fraction;
    int      exponent; /* of ten, of its first digit; zero: -ROOM */
    char     whole[MOST_WHOLE + 2], fraction[ROOM];
} bound;

/* Numbers are multiples of modulus / 10^scale. */
typedef struct {
    uint32_t modulus, scale;
} multiples;

static const multiples ANY = {1, UINT32_MAX};

/* ---- bounds */

/* n significant digits of which the first counts 10^exponent. */
static void set_digits(bound *b, const char *digits, uint32_t n, int exponent)
{
    uint32_t n_whole = exponent < 0 ? 0 : (uint32_t)exponent + 1;

    while (n > 0 && digits[n - 1] == '0')
        n--;
    b->exponent = n == 0 ? -ROOM : exponent;
    if (n == 0 || n_whole == 0) b->whole[b->n_whole++] = '0';
    if (n == 0) return;
    for (uint32_t i = 0; i < n_whole; i++)
        b->whole[b->n_whole++] = i < n ? digits[i] : '0';
    for (int i = exponent; i < -1; i++)
        b->fraction[b->n_fraction++] = '0';
    for (uint32_t i = n_whole; i < n; i++)
        b->fraction[b->n_fraction++] = digits[i];
}

/* The digits of a magnitude, of which the first counts 10^exponent. */
static uint32_t digits_of(const json_t *v, char digits[BT_SCHEMA_NUMBER_BYTES], int *exponent_out)
{
    char     text[BT_SCHEMA_NUMBER_BYTES];
    uint32_t n = 0;

    if (json_is_integer(v)) {
        snprintf(text, sizeof(text), "%" JSON_INTEGER_FORMAT, json_integer_value(v));
        for (const char *at = text + (text[0] == '-'); *at != '\0'; at++)
            digits[n++] = *at;
        *exponent_out = (int)n - 1;
    } else {
        bt_schema_print(fabs(json_real_value(v)), text);
        for (const char *at = text; *at != 'e'; at++)
            if (*at != '.') digits[n++] = *at;
        *exponent_out = atoi(strchr(text, 'e') + 1);
    }
    return n;
}

static bound bound_of(const json_t *v, bool excluded)
{
    bound    b = {.given = true, .excluded = excluded, .negative = json_number_value(v) < 0};
    char     digits[BT_SCHEMA_NUMBER_BYTES];
    int      exponent;
    uint32_t n = digits_of(v, digits, &exponent);

    set_digits(&b, digits, n, exponent);
    return b;
}

const json_t *bt_schema_bound(bt_schema *s, const json_t *schema, const char *keyword,
                              const bt_schema_at *at)
{
    const json_t *v = json_object_get(schema, keyword);

    if (v != NULL && !json_is_number(v)) bt_schema_unexpected(s, schema, keyword, at, "a number");
    return v;
}

/* 1: no number that comes is as large, -1: none is as small. */
static int beyond(const json_t *v)
{
    const json_int_t most = 1000000000000000000;
    json_int_t       i    = json_integer_value(v);

    if (json_is_integer(v)) return (i >= most) - (i <= -most);
    return (json_real_value(v) >= 1e18) - (json_real_value(v) <= -1e18);
}

/* The stricter of two keywords, or none.  sign: 1 of lower bounds, -1 of upper ones. */
static bound read_bound(bt_schema *s, const json_t *schema, const char *including,
                        const char *excluding, int sign, const bt_schema_at *at)
{
    const json_t *in = bt_schema_bound(s, schema, including, at);
    const json_t *ex = bt_schema_bound(s, schema, excluding, at);
    double        a = json_number_value(in) * sign, b = json_number_value(ex) * sign;
    bool          excluded = ex != NULL && (in == NULL || b >= a);

    if (s->g->st != BT_OK || (in == NULL && ex == NULL)) return (bound){0};
    if (beyond(excluded ? ex : in) * sign < 0) return (bound){0};
    if (beyond(excluded ? ex : in) * sign > 0)
        bt_schema_refuse(s, at, "\"%s\": numbers have at most %d digits before the point",
                         excluded ? excluding : including, (int)MOST_WHOLE);
    if (in != NULL && ex != NULL && a == b && fabs(a) > 1e15)
        bt_schema_refuse(s, at, "\"%s\" and \"%s\" are too large to compare", including, excluding);
    return s->g->st != BT_OK ? (bound){0} : bound_of(excluded ? ex : in, excluded);
}

static multiples read_multiples(bt_schema *s, const json_t *schema, const bt_schema_at *at)
{
    const json_t *v = json_object_get(schema, "multipleOf");
    char          digits[BT_SCHEMA_NUMBER_BYTES];
    uint64_t      modulus = 0;
    uint32_t      n;
    int           places;

    if (v == NULL) return ANY;
    if (json_number_value(v) <= 0)
        bt_schema_unexpected(s, schema, "multipleOf", at, "a number above 0");
    if (s->g->st != BT_OK) return ANY;
    n = digits_of(v, digits, &places);
    while (digits[n - 1] == '0')
        n--;
    places = (int)n - 1 - places; /* behind the point */
    for (uint32_t i = 0; i < n && modulus <= MOST_MODULUS; i++)
        modulus = 10 * modulus + (uint64_t)(digits[i] - '0');
    for (; places < 0 && modulus <= MOST_MODULUS; places++)
        modulus *= 10;
    if (modulus > MOST_MODULUS || places > MOST_FRACTION) {
        bt_schema_refuse(s, at,
                         "\"multipleOf\" of digits that make more than %d, or of more than %d "
                         "behind the point, is not supported",
                         (int)MOST_MODULUS, (int)MOST_FRACTION);
        return ANY;
    }
    return (multiples){(uint32_t)modulus, (uint32_t)places};
}

/* ---- magnitudes between two bounds */

typedef struct {
    bt_parts *g;
    bound     lo, hi; /* lo is given */
    multiples of;
    uint32_t  most_whole, most_fraction;
    bool      integer;
    /* The first of `modulus` nodes, one for each rest of the digits so far: */
    uint32_t free_whole[MOST_WHOLE + 1]; /* so many digits are to come before the point */
    uint32_t free_fraction[ROOM + 1];    /* so many are behind it already */
    uint32_t done;
} range;

/* A place among the digits: a node for each row, or none, and what is left of its digits modulo
 * `modulus`.  Row 0 is the free one. */
typedef struct {
    bool     is[ROWS];
    uint32_t at[ROWS], rest[ROWS];
} places;

static uint32_t rest_after(const range *r, uint32_t rest, char digit)
{
    return (10 * rest + (uint32_t)(digit - '0')) % r->of.modulus;
}

/* Whether digits that leave `rest`, n of them behind the point, are a multiple. */
static bool is_multiple(const range *r, uint32_t rest, uint32_t n)
{
    for (; n < r->of.scale && rest != 0; n++)
        rest = rest_after(r, rest, '0');
    return rest == 0;
}

/* Digits after which no bound holds. */
static void step_free(range *r, uint32_t from, uint32_t rest, char lo, char hi, uint32_t free_next)
{
    if (r->of.modulus == 1) {
        bt_part_step(r->g, from, (uint8_t)lo, (uint8_t)hi, free_next);
        return;
    }
    for (char d = lo; d <= hi; d++)
        bt_part_step(r->g, from, (uint8_t)d, (uint8_t)d, free_next + rest_after(r, rest, d));
}

/* A digit more, from lo on as far as no row says otherwise; in the free row one goes to `free`. */
static places advance(range *r, const places *from, char lo, char tight_lo, char tight_hi,
                      uint32_t free_next)
{
    places next = {0};

    for (uint32_t row = 0; row < ROWS; row++) {
        char first = (row & TIGHT_LO) != 0 ? tight_lo : lo;
        char last  = (row & TIGHT_HI) != 0 ? tight_hi : '9';

        for (char d = first, end; from->is[row] && d <= last; d = (char)(end + 1)) {
            uint32_t to = 0;

            if ((row & TIGHT_LO) != 0 && d == tight_lo) to |= TIGHT_LO;
            if ((row & TIGHT_HI) != 0 && d == tight_hi) to |= TIGHT_HI;
            end = to != 0 ? d : (row & TIGHT_HI) != 0 ? (char)(last - 1) : last;
            if (to == 0) {
                step_free(r, from->at[row], from->rest[row], d, end, free_next);
                continue;
            }
            if (!next.is[to]) next.at[to] = bt_part_node(r->g);
            next.is[to] = true;
            next.rest[to] =
                rest_after(r, from->rest[row], d); /* of any row: its digits are the bound's */
            bt_part_step(r->g, from->at[row], (uint8_t)d, (uint8_t)d, next.at[to]);
        }
    }
    return next;
}

static char fraction_digit(const bound *b, uint32_t i)
{
    return i < b->n_fraction ? b->fraction[i] : '0';
}

/* Whether a number of that row may end with i digits behind the point.  The bounds' last digits are
 * no zeros. */
static bool may_end(const range *r, uint32_t row, uint32_t i)
{
    bool at_lo = (row & TIGHT_LO) != 0, at_hi = (row & TIGHT_HI) != 0;

    if (at_lo && (i < r->lo.n_fraction || r->lo.excluded)) return false;
    return !(at_hi && i >= r->hi.n_fraction && r->hi.excluded);
}

static void end_rows(range *r, const places *p, uint32_t i)
{
    for (uint32_t row = 1; row < ROWS; row++)
        if (p->is[row] && may_end(r, row, i) && is_multiple(r, p->rest[row], i))
            bt_part_join(r->g, p->at[row], r->done);
}

/* Behind the last digit before the point. */
static void add_fraction(range *r, places p)
{
    places   behind = {0};
    uint32_t i      = 0;

    end_rows(r, &p, 0);
    if (r->integer || r->most_fraction == 0) return;
    for (uint32_t row = 1; row < ROWS; row++) {
        if (!p.is[row]) continue;
        behind.is[row]   = true;
        behind.at[row]   = bt_part_node(r->g);
        behind.rest[row] = p.rest[row];
        bt_part_step(r->g, p.at[row], '.', '.', behind.at[row]);
    }
    while (i < r->most_fraction && (behind.is[1] || behind.is[2] || behind.is[3])) {
        behind = advance(r, &behind, '0', fraction_digit(&r->lo, i), fraction_digit(&r->hi, i),
                         r->free_fraction[i + 1]);
        i++;
        end_rows(r, &behind, i);
    }
}

/* Returns the first of them. */
static uint32_t free_nodes(range *r)
{
    uint32_t first = bt_part_node(r->g);

    for (uint32_t rest = 1; rest < r->of.modulus; rest++)
        bt_part_node(r->g);
    return first;
}

static void step_all(range *r, uint32_t from, uint32_t to)
{
    for (uint32_t rest = 0; rest < r->of.modulus && r->g->st == BT_OK; rest++)
        step_free(r, from + rest, rest, '0', '9', to);
}

static void end_free(range *r, uint32_t at, uint32_t n_fraction)
{
    for (uint32_t rest = 0; rest < r->of.modulus; rest++)
        if (is_multiple(r, rest, n_fraction)) bt_part_join(r->g, at + rest, r->done);
}

/* Numbers that no bound holds any more. */
static void add_free(range *r)
{
    bt_parts *g = r->g;

    for (uint32_t i = 0; i <= r->most_whole; i++) {
        r->free_whole[i] = free_nodes(r);
        if (i > 0) step_all(r, r->free_whole[i], r->free_whole[i - 1]);
    }
    end_free(r, r->free_whole[0], 0);
    if (r->integer || r->most_fraction == 0) return;
    for (uint32_t i = 0; i <= r->most_fraction; i++) {
        r->free_fraction[i] = free_nodes(r);
        if (i == 0) continue;
        step_all(r, r->free_fraction[i - 1], r->free_fraction[i]);
        end_free(r, r->free_fraction[i], i);
    }
    for (uint32_t rest = 0; rest < r->of.modulus; rest++)
        bt_part_step(g, r->free_whole[0] + rest, '.', '.', r->free_fraction[0] + rest);
}

/* Numbers of n digits before the point. */
static void add_length(range *r, uint32_t start, uint32_t n)
{
    uint32_t row =
        (n == r->lo.n_whole ? TIGHT_LO : 0u) | (r->hi.given && n == r->hi.n_whole ? TIGHT_HI : 0u);
    places p = {0};

    p.is[row] = true;
    p.at[row] = start;
    for (uint32_t i = 0; i < n && r->g->st == BT_OK; i++)
        p = advance(r, &p, i == 0 && n > 1 ? '1' : '0', r->lo.whole[i], r->hi.whole[i],
                    r->free_whole[n - i - 1]);
    add_fraction(r, p);
}

static bt_part magnitudes(bt_parts *g, const bound *lo, const bound *hi, multiples of,
                          uint32_t most_fraction, bool integer)
{
    range    r     = {.g = g, .lo = *lo, .hi = *hi, .of = of, .integer = integer};
    uint32_t start = bt_part_node(g);

    r.done          = bt_part_node(g);
    r.most_whole    = hi->given ? hi->n_whole : MOST_WHOLE;
    r.most_fraction = most_fraction;
    add_free(&r);
    for (uint32_t n = lo->n_whole; n <= r.most_whole && g->st == BT_OK; n++)
        add_length(&r, start, n);
    return (bt_part){start, r.done};
}

/* ---- both signs */

/* How many digits may come behind the point. */
static uint32_t fraction_digits(const bound *lo, const bound *hi)
{
    const bound *both[] = {lo, hi};
    int          n      = MOST_FRACTION;

    for (int i = 0; i < 2; i++)
        if (both[i]->given && (int)both[i]->n_fraction > n) n = (int)both[i]->n_fraction;
    for (int i = 0; i < 2; i++)
        if (both[i]->given && both[i]->excluded && EXACT_DIGITS - 1 - both[i]->exponent < n)
            n = EXACT_DIGITS - 1 - both[i]->exponent;
    return n < 0 ? 0 : (uint32_t)n;
}

/* From lo to hi; zero has no minus. */
static bt_part between(bt_parts *g, const bound *lo, const bound *hi, multiples of, bool integer)
{
    uint32_t n    = bt_min_u32(fraction_digits(lo, hi), of.scale);
    bt_part  part = bt_part_never(g), below;
    bound    zero = {.given = true}, none = {0}, above_zero;

    set_digits(&zero, "0", 1, 0);
    above_zero          = zero;
    above_zero.excluded = true;
    if (!hi->given || !hi->negative)
        bt_part_add(g, part,
                    magnitudes(g, lo->given && !lo->negative ? lo : &zero, hi, of, n, integer));
    if (!lo->given || lo->negative) {
        below = magnitudes(g, hi->given && hi->negative ? hi : &above_zero, lo->given ? lo : &none,
                           of, n, integer);
        bt_part_add(g, part, bt_part_then(g, bt_part_text(g, "-"), below));
    }
    return part;
}

static void bound_key(const bound *b, char key[64])
{
    if (!b->given)
        snprintf(key, 64, "none");
    else /* 17 digits at most, and the place of the first one */
        snprintf(key, 64, "%s%s%d:%.20s.%.20s", b->excluded ? "!" : "", b->negative ? "-" : "",
                 b->exponent, b->whole,
                 b->n_fraction > 20 ? b->fraction + b->n_fraction - 20 : b->fraction);
}

static bool is_bounded(const json_t *schema)
{
    static const char *const keywords[] = {"minimum", "maximum", "exclusiveMinimum",
                                           "exclusiveMaximum"};

    for (size_t i = 0; i < sizeof(keywords) / sizeof(keywords[0]); i++)
        if (json_object_get(schema, keywords[i]) != NULL) return true;
    return false;
}

static bt_part bounded(bt_schema *s, const json_t *schema, bool integer, const bt_schema_at *at)
{
    bound     lo = read_bound(s, schema, "minimum", "exclusiveMinimum", 1, at);
    bound     hi = read_bound(s, schema, "maximum", "exclusiveMaximum", -1, at);
    multiples of = read_multiples(s, schema, at);
    char      key[200], low[64], high[64];
    uint32_t  rule;

    integer = integer || of.scale == 0;
    if (s->g->st != BT_OK) return bt_part_never(s->g);
    if (!is_bounded(schema) && of.modulus == 1 && (integer || of.scale > MOST_FRACTION))
        return bt_schema_call(s, integer ? BT_COMMON_INTEGER : BT_COMMON_NUMBER);
    bound_key(&lo, low);
    bound_key(&hi, high);
    snprintf(key, sizeof(key), "%s from %s to %s of %u/%u", integer ? "integer" : "number", low,
             high, of.modulus, of.scale);
    if (!bt_schema_memo(s, key, &rule))
        bt_rule_is(s->g, rule, between(s->g, &lo, &hi, of, integer));
    return bt_rule_call(s->g, rule);
}

/* The least number that `not` lists above another one, or of all; NULL: there is none. */
static const json_t *next_listed(bt_schema *s, const json_t *schema, const json_t *above,
                                 const bt_schema_at *at)
{
    const json_t *values = json_object_get(json_object_get(schema, "not"), "enum");
    const json_t *least  = NULL, *v;
    size_t        i;

    if (!bt_schema_step(s, at, json_array_size(values))) return NULL;
    json_array_foreach(values, i, v)
    {
        if (!json_is_number(v) || (above != NULL && !bt_schema_is_less(above, v))) continue;
        if (least == NULL || bt_schema_is_less(v, least)) least = v;
    }
    if (least != NULL && fabs(json_number_value(least)) > MOST_LISTED)
        bt_schema_refuse(s, at, "\"not\" of numbers beyond %.0e is not supported", MOST_LISTED);
    return least;
}

static void bound_by(bt_schema *s, json_t *into, const char *keyword, const json_t *v,
                     const bt_schema_at *at)
{
    json_t *made = v == NULL ? NULL : bt_schema_made(s, json_pack("{sO}", keyword, v));

    if (made != NULL && s->g->st == BT_OK) bt_schema_merge(s, into, made, at);
}

/* What lies between two that must not come, or beyond one. */
static bt_part gap(bt_schema *s, const json_t *schema, const json_t *above, const json_t *below,
                   bool integer, const bt_schema_at *at)
{
    json_t *bounds = bt_schema_made(s, bt_schema_copy(s, (json_t *)schema));

    bound_by(s, bounds, "exclusiveMinimum", above, at);
    bound_by(s, bounds, "exclusiveMaximum", below, at);
    return s->g->st == BT_OK ? bounded(s, bounds, integer, at) : bt_part_never(s->g);
}

bt_part bt_schema_number(bt_schema *s, const json_t *schema, bool integer, const bt_schema_at *at)
{
    const json_t *above = NULL, *below = next_listed(s, schema, NULL, at);
    bt_part       part;

    if (below == NULL) return bounded(s, schema, integer, at);
    part = gap(s, schema, NULL, below, integer, at);
    while (below != NULL && s->g->st == BT_OK) {
        above = below;
        below = next_listed(s, schema, above, at);
        bt_part_add(s->g, part, gap(s, schema, above, below, integer, at));
    }
    return part;
}

/* model/grammar/chars.c - sets of code points, and one of them as bytes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "model/grammar/parts.h"
#include "model/utf8.h"

enum { SURROGATE_FIRST = 0xD800, SURROGATE_LAST = 0xDFFF, MOST_RANGES = 1 << 16 };

void bt_chars_fini(bt_chars *set)
{
    bt_free(set->at);
    *set = (bt_chars){0};
}

void bt_chars_add(bt_parts *g, bt_chars *set, uint32_t lo, uint32_t hi)
{
    if (lo > hi) return;
    if (set->n == MOST_RANGES)
        bt_parts_refuse(g, "a set of more than %d ranges of characters", (int)MOST_RANGES);
    if (bt_parts_grow(g, &set->at, sizeof(*set->at), set->n, &set->capacity, MOST_RANGES))
        set->at[set->n++] = (bt_char_range){lo, hi};
}

static int by_lo(const void *a, const void *b)
{
    uint32_t x = ((const bt_char_range *)a)->lo, y = ((const bt_char_range *)b)->lo;

    return x < y ? -1 : x > y;
}

/* Ascending and apart. */
static void merge(bt_chars *set)
{
    uint32_t n = 0;

    if (set->n == 0) return;
    qsort(set->at, set->n, sizeof(*set->at), by_lo);
    for (uint32_t i = 1; i < set->n; i++) {
        bt_char_range *last = &set->at[n];

        if (set->at[i].lo > last->hi + 1)
            set->at[++n] = set->at[i];
        else if (set->at[i].hi > last->hi)
            last->hi = set->at[i].hi;
    }
    set->n = n + 1;
}

/* Ascending and apart; surrogates, which no text has, are taken out. */
static void sort(bt_parts *g, bt_chars *set)
{
    uint32_t n;

    merge(set);
    n = set->n;
    for (uint32_t i = 0; i < n && g->st == BT_OK; i++) {
        uint32_t lo = set->at[i].lo, hi = set->at[i].hi;

        if (hi < SURROGATE_FIRST || lo > SURROGATE_LAST) continue;
        set->at[i] = (bt_char_range){lo, SURROGATE_FIRST - 1}; /* maybe empty */
        bt_chars_add(g, set, lo > SURROGATE_LAST ? lo : SURROGATE_LAST + 1, hi);
    }
    n = 0;
    for (uint32_t i = 0; i < set->n; i++)
        if (set->at[i].lo <= set->at[i].hi) set->at[n++] = set->at[i];
    set->n = n;
    if (n > 0) qsort(set->at, n, sizeof(*set->at), by_lo);
}

void bt_chars_negate(bt_parts *g, bt_chars *set)
{
    bt_chars out  = {0};
    uint32_t from = 0;

    sort(g, set);
    for (uint32_t i = 0; i < set->n; i++) {
        if (set->at[i].lo > 0) bt_chars_add(g, &out, from, set->at[i].lo - 1);
        from = set->at[i].hi + 1;
    }
    bt_chars_add(g, &out, from, BT_CHAR_MAX);
    bt_chars_fini(set);
    *set = out;
    sort(g, set);
}

/* ---- as bytes */

/* The bytes with which the range before begins, and the nodes behind them: ranges come ascending,
 * and share what they begin with. */
typedef struct {
    uint8_t  bytes[3];
    uint32_t nodes[3];
    uint32_t n;
} lead;

/* Characters lo..hi of which all have as many bytes, and of these each, beside those before it that
 * are equal, goes its whole way or is the same: then each byte is a range. */
static void add_plain_range(bt_parts *g, bt_part part, lead *before, uint32_t lo, uint32_t hi)
{
    uint8_t  first[4], last[4];
    uint32_t n = (uint32_t)bt_utf8_put(lo, (char *)first), at = part.start, next;

    bt_utf8_put(hi, (char *)last);
    for (uint32_t i = 0; i < n; i++, at = next) {
        bool is_last = i + 1 == n, is_one = !is_last && first[i] == last[i];

        if (is_one && i < before->n && before->bytes[i] == first[i]) {
            next = before->nodes[i];
            continue;
        }
        next = is_last ? part.end : bt_part_node(g);
        bt_part_step(g, at, first[i], last[i], next);
        if (before->n > i) before->n = i;
        if (!is_one || before->n < i) continue;
        before->bytes[i] = first[i];
        before->nodes[i] = next;
        before->n        = i + 1;
    }
}

/* The last character from lo on, up to hi, with which lo makes such a range. */
static uint32_t plain_end(uint32_t lo, uint32_t hi)
{
    static const uint32_t lengths[] = {0x7F, 0x7FF, 0xFFFF};

    for (int i = 0; i < 3; i++)
        if (lo <= lengths[i] && hi > lengths[i]) hi = lengths[i];
    for (uint32_t bits = 6; lo >= 0x80 && bits <= 18; bits += 6) { /* of the bytes behind one */
        uint32_t mask = (1u << bits) - 1;

        if ((lo & ~mask) == (hi & ~mask)) break;
        if ((lo & mask) != 0) return lo | mask;
        if ((hi & mask) != mask) hi = (hi & ~mask) - 1;
    }
    return hi;
}

/* Also one of lo..hi. */
static void add_range(bt_parts *g, bt_part part, lead *before, uint32_t lo, uint32_t hi)
{
    while (lo <= hi && g->st == BT_OK) {
        uint32_t end = plain_end(lo, hi);

        add_plain_range(g, part, before, lo, end);
        lo = end + 1;
    }
}

bt_part bt_part_chars(bt_parts *g, bt_chars *set)
{
    bt_part part   = bt_part_never(g);
    lead    before = {0};

    sort(g, set);
    for (uint32_t i = 0; i < set->n; i++)
        add_range(g, part, &before, set->at[i].lo, set->at[i].hi);
    return part;
}

bool bt_json_escape(uint32_t c, char out[8])
{
    static const char shorts[] = "\"\\\b\f\n\r\t", names[] = "\"\\bfnrt";
    const char       *at = c == 0 || c >= 0x80 ? NULL : strchr(shorts, (int)c);

    if (at != NULL)
        snprintf(out, 8, "\\%c", names[at - shorts]);
    else if (c < 0x20)
        snprintf(out, 8, "\\u%04x", c);
    return at != NULL || c < 0x20;
}

bt_part bt_part_json_chars(bt_parts *g, bt_chars *set)
{
    bt_part part   = bt_part_never(g);
    lead    before = {0};

    sort(g, set);
    for (uint32_t i = 0; i < set->n; i++) {
        uint32_t lo = set->at[i].lo, hi = set->at[i].hi, from = lo;

        for (uint32_t c = lo; c <= hi && c <= '\\'; c++) {
            char text[8];

            if (!bt_json_escape(c, text)) continue;
            if (c > from) add_range(g, part, &before, from, c - 1);
            bt_part_add(g, part, bt_part_text(g, text));
            from = c + 1;
        }
        add_range(g, part, &before, from, hi);
    }
    return part;
}

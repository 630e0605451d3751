/* model/grammar/schema_keys.c - the keys that an object may hold beside those that its schema
 * names: any string but those names.
 *
 * The names are put into a trie of characters.  A key leaves it at some point by a character that
 * no name goes on with, and then is free; or it ends where no name does.  Characters stand as
 * themselves, quotes and backslashes escaped, and control characters do not come: each key has one
 * spelling, so that a name cannot come in disguise. */
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "model/grammar/schema.h"
#include "model/utf8.h"

/* A node on the way of the name before. */
typedef struct {
    uint32_t at;
    bt_chars goes_on; /* owned: characters that lead on */
    bool     is_name;
} step;

typedef struct {
    bt_schema *s;
    uint32_t   free, done; /* where a key has left the names; where it ends */
    step      *way;        /* owned: a node more than the longest name has characters */
    size_t     n_way;
} trie;

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The character at text, of *n_out bytes: jansson's strings are UTF-8. */
static uint32_t next_char(const char *text, uint32_t *n_out)
{
    uint8_t lead = (uint8_t)text[0];

    *n_out = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    return bt_utf8_char(text, *n_out);
}

static bool is_plain(uint32_t c) { return c >= ' ' && c < 0x80 && c != '"' && c != '\\'; }

/* The characters by which a key leaves the names, where they all go on in ASCII: then the others
 * are one rule. */
static void leave_plain(trie *t, step *node)
{
    bt_parts *g           = t->s->g;
    bool      taken[0x80] = {false};
    uint32_t  from        = ' ';

    for (uint32_t i = 0; i < node->goes_on.n; i++)
        taken[node->goes_on.at[i].lo] = true;
    taken['"'] = taken['\\'] = true;
    for (uint32_t c = ' '; c <= 0x80; c++) {
        if (c < 0x80 && !taken[c]) continue;
        if (c > from) bt_part_step(g, node->at, (uint8_t)from, (uint8_t)(c - 1), t->free);
        from = c + 1;
    }
    bt_part_way(g, node->at, bt_schema_call(t->s, BT_COMMON_NON_ASCII), t->free);
}

static void leave(trie *t, step *node)
{
    bt_parts *g     = t->s->g;
    bool      plain = true;

    if (!node->is_name) bt_part_join(g, node->at, t->done);
    for (uint32_t i = 0; i < node->goes_on.n; i++)
        plain = plain && is_plain(node->goes_on.at[i].lo);
    if (plain) {
        leave_plain(t, node);
    } else {
        bt_chars_add(g, &node->goes_on, 0, ' ' - 1);
        bt_chars_negate(g, &node->goes_on);
        bt_part_way(g, node->at, bt_part_json_chars(g, &node->goes_on), t->free);
    }
    bt_chars_fini(&node->goes_on);
}

/* The nodes of the way from that length on will not come again. */
static void leave_from(trie *t, size_t length)
{
    while (t->n_way > length)
        leave(t, &t->way[--t->n_way]);
}

static void go_on(trie *t, uint32_t c)
{
    bt_parts *g    = t->s->g;
    step     *last = &t->way[t->n_way - 1];
    bt_chars  one  = {0};

    bt_chars_add(g, &last->goes_on, c, c);
    bt_chars_add(g, &one, c, c);
    t->way[t->n_way] = (step){.at = bt_part_node(g)};
    bt_part_way(g, last->at, bt_part_json_chars(g, &one), t->way[t->n_way].at);
    bt_chars_fini(&one);
    t->n_way++;
}

/* Names come sorted, each once; `before` is the one before. */
static void add_name(trie *t, const char *name, const char *before)
{
    size_t   depth = 1; /* nodes that are the same */
    uint32_t n, m;

    while (*name != '\0' && *before != '\0' && next_char(name, &n) == next_char(before, &m)) {
        name += n;
        before += m;
        depth++;
    }
    leave_from(t, depth);
    while (*name != '\0' && t->s->g->st == BT_OK) {
        go_on(t, next_char(name, &n));
        name += n;
    }
    t->way[t->n_way - 1].is_name = true;
}

static const char **sorted(const json_t *names, size_t *n_out, size_t *longest_out)
{
    const char **list = bt_calloc(json_object_size(names) + 1, sizeof(*list));
    const char  *name;
    json_t      *value;

    *n_out = *longest_out = 0;
    if (list == NULL) return NULL;
    json_object_foreach((json_t *)names, name, value)
    {
        list[(*n_out)++] = name;
        if (strlen(name) > *longest_out) *longest_out = strlen(name);
    }
    qsort(list, *n_out, sizeof(*list), by_text);
    return list;
}

/* Free: anything comes, and then the end. */
static void add_free(trie *t)
{
    step free_node = {.at = t->free};

    leave_plain(t, &free_node);
    bt_part_join(t->s->g, t->free, t->done);
}

bt_part bt_schema_other_keys(bt_schema *s, const json_t *names)
{
    bt_parts    *g     = s->g;
    trie         t     = {.s = s, .free = bt_part_node(g), .done = bt_part_node(g)};
    uint32_t     start = bt_part_node(g);
    size_t       n, longest;
    const char **list = sorted(names, &n, &longest);

    t.way = bt_calloc(longest + 1, sizeof(*t.way));
    if (list == NULL || t.way == NULL) {
        bt_parts_no_memory(g);
    } else {
        t.way[0] = (step){.at = start};
        t.n_way  = 1;
        for (size_t i = 0; i < n && g->st == BT_OK; i++)
            add_name(&t, list[i], i == 0 ? "" : list[i - 1]);
        leave_from(&t, 0);
        add_free(&t);
    }
    bt_free(list);
    bt_free(t.way);
    return bt_part_between(g, "\"", (bt_part){start, t.done}, "\"");
}

#include "model/grammar/names.h"

#include <stdlib.h>

#include "core/alloc.h"

bool bt_name_begins(char c) { return bt_is_letter(c) || bt_is_digit(c) || c == '_' || c == '-'; }

size_t bt_name_length(const bt_source *s)
{
    size_t end = s->at;

    if (end < s->n && bt_name_begins(s->text[end]))
        while (end < s->n && (bt_name_begins(s->text[end]) || s->text[end] == '.'))
            end++;
    return end - s->at;
}

static int by_text(const void *a, const void *b)
{
    const bt_name *x = a, *y = b;
    int            order = memcmp(x->text, y->text, x->n < y->n ? x->n : y->n);

    return order != 0 ? order : x->n < y->n ? -1 : x->n > y->n;
}

void bt_names_find(bt_names *names, bt_source s)
{
    size_t n_all = 0;

    names->at = bt_calloc((s.n - s.at) / 2 + 1, sizeof(*names->at)); /* a byte between each two */
    if (names->at == NULL) {
        bt_parts_no_memory(s.g);
        return;
    }
    while (s.at < s.n) {
        size_t length = bt_name_length(&s);

        if (length > 0) names->at[n_all++] = (bt_name){.text = s.text + s.at, .n = length};
        s.at += length > 0 ? length : 1;
    }
    qsort(names->at, n_all, sizeof(*names->at), by_text);
    for (size_t i = 0; i < n_all; i++)
        if (names->n == 0 || by_text(&names->at[names->n - 1], &names->at[i]) != 0)
            names->at[names->n++] = names->at[i];
}

void bt_names_fini(bt_names *names)
{
    bt_free(names->at);
    *names = (bt_names){0};
}

bt_name *bt_names_get(const bt_names *names, const char *text, size_t n)
{
    const bt_name key = {.text = text, .n = n};

    return names->n == 0 ? NULL : bsearch(&key, names->at, names->n, sizeof(key), by_text);
}

bt_name *bt_names_read(const bt_names *names, bt_source *s)
{
    char     text[BT_NAME_BYTES_MAX + 1];
    size_t   n    = bt_name_length(s);
    bt_name *name = bt_names_get(names, s->text + s->at, n);

    if (name == NULL || n > BT_NAME_BYTES_MAX) return NULL;
    if (!name->has_rule) {
        memcpy(text, name->text, n);
        text[n]        = '\0';
        name->rule     = bt_rule_new(s->g, text);
        name->text     = s->text + s->at;
        name->has_rule = true;
    }
    s->at += n;
    return name;
}

/* model/grammar/choice.c - a list of texts, of which the reply is one. */
#include <jansson.h>

#include "model/grammar/grammar.h"
#include "model/json.h"

static void add_text(bt_parts *g, bt_part part, const json_t *text, size_t i)
{
    char found[BT_JSON_SHOW_BYTES];

    if (json_string_length(text) == 0)
        bt_parts_refuse(g, "choice %zu: expected a string that is not empty, found %s", i,
                        bt_json_show(text, found, sizeof(found)));
    else
        bt_part_add(g, part, bt_part_bytes(g, json_string_value(text), json_string_length(text)));
}

bt_part bt_read_choice(bt_parts *g, const char *text, size_t n)
{
    json_error_t err  = {.text = ""};
    json_t      *list = json_loadb(text, n, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &err), *one;
    bt_part      part = bt_part_never(g);
    char         what[BT_JSON_SHOW_BYTES];
    size_t       i;

    if (list == NULL && err.text[0] != '\0')
        bt_parts_refuse(g, "expected JSON, found at byte %d (line %d): %s", err.position, err.line,
                        bt_json_printable(err.text, what, sizeof(what)));
    else if (list == NULL)
        bt_parts_no_memory(g);
    else if (json_array_size(list) == 0)
        bt_parts_refuse(g, "expected an array of strings that is not empty, found %s",
                        bt_json_show(list, what, sizeof(what)));
    json_array_foreach(list, i, one)
    {
        if (g->st != BT_OK) break;
        add_text(g, part, one, i);
    }
    json_decref(list);
    return part;
}

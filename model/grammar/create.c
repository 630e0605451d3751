/* model/grammar/create.c - a constraint's text, read by its kind. */
#include "model/grammar/grammar.h"

static bt_part read_text(bt_parts *g, bt_constraint_kind kind, const char *text, size_t n)
{
    switch (kind) {
    case BT_CONSTRAINT_JSON_SCHEMA: return bt_read_json_schema(g, text, n);
    case BT_CONSTRAINT_REGEX: return bt_read_regex(g, text, n, true, false);
    case BT_CONSTRAINT_EBNF: return bt_read_ebnf(g, text, n);
    case BT_CONSTRAINT_CHOICE: return bt_read_choice(g, text, n);
    case BT_CONSTRAINT_STRUCTURAL_TAG: return bt_read_structural_tag(g, text, n);
    case BT_CONSTRAINT_NONE:
    case BT_CONSTRAINT_KINDS: break;
    }
    return bt_part_never(g);
}

bt_status bt_grammar_create(bt_constraint_kind kind, const char *text, size_t n,
                            bt_grammar **grammar_out, char *why)
{
    bt_parts  g     = {0};
    bt_part   whole = {0};
    bt_status st;

    if (n == 0)
        bt_parts_refuse(&g, "it is empty");
    else if (n > BT_CONSTRAINT_BYTES_MAX)
        bt_parts_refuse(&g, "it has %zu bytes, at most %d are allowed", n, BT_CONSTRAINT_BYTES_MAX);
    else
        whole = read_text(&g, kind, text, n);
    st = bt_grammar_pack(&g, whole, grammar_out, why);

    bt_parts_fini(&g);
    return st;
}

/* The value of an expression.  Every step is counted, and so is how deep they lie in each other:
 * neither has an end in what a template can say. */
#include <stdio.h>
#include <string.h>

#include "model/jinja/parts.h"

enum { MOST_DEPTH = 400 }; /* a level takes up to 1 KiB of the 512 that core/limits.h asks for */

bt_status bt_jinja_step(bt_jinja *j, const bt_jinja_node *node)
{
    bt_status st = BT_OK;

    j->depth++;
    BT_TRY(bt_jinja_count(j, node->at, 1));
    BT_JINJA_REQUIRE(j, node->at, j->depth <= MOST_DEPTH, BT_ERR_UNSUPPORTED,
                     "expected calls and expressions less than %d deep in each other", MOST_DEPTH);
out:
    return st;
}

/* The tokenizer's texts, of which only two are loaded. */
static bool is_token(bt_jinja_text name)
{
    size_t n = name.n;

    if (bt_jinja_is(name, "additional_special_tokens")) return true;
    return n > 6 && memcmp(name.s + n - 6, "_token", 6) == 0 && !bt_jinja_is(name, "bos_token") &&
           !bt_jinja_is(name, "eos_token");
}

static bt_status evaluate_name(bt_jinja *j, const bt_jinja_map *scope, const bt_jinja_node *node,
                               bt_jinja_value *value_out)
{
    bt_status st = BT_OK;

    for (; scope != NULL; scope = scope->up) {
        bt_jinja_entry *found = bt_jinja_find(scope, node->text);

        BT_TRY(
            bt_jinja_count(j, node->at, (found == NULL) + bt_jinja_find_steps(scope, node->text)));
        if (found == NULL) continue;
        *value_out = found->value;
        goto out;
    }
    BT_JINJA_REQUIRE(j, node->at, !is_token(node->text), BT_ERR_UNSUPPORTED,
                     "expected bos_token or eos_token, found %.*s", bt_jinja_shown(node->text),
                     node->text.s);
    *value_out = bt_jinja_is_function(node->text) ? (bt_jinja_value){.kind = BT_JINJA_IS_MACRO}
                                                  : bt_jinja_undefined(node->text);
out:
    return st;
}

static bt_status evaluate_list(bt_jinja *j, bt_jinja_map *scope, const bt_jinja_node *node,
                               bt_jinja_value *value_out)
{
    bt_status      st   = BT_OK;
    bt_jinja_value list = {.kind = BT_JINJA_IS_LIST,
                           .sort = node->number != 0 ? BT_JINJA_TUPLE : BT_JINJA_PLAIN};

    for (const bt_jinja_node *item = node->list; item != NULL; item = item->next)
        list.list.n++;
    BT_JINJA_NEW(j, list.list.at, list.list.n);
    list.list.n = 0;
    for (const bt_jinja_node *item = node->list; item != NULL; item = item->next)
        BT_TRY(bt_jinja_evaluate(j, scope, item, &list.list.at[list.list.n++]));
    *value_out = list;
out:
    return st;
}

static bt_status evaluate_map(bt_jinja *j, bt_jinja_map *scope, const bt_jinja_node *node,
                              bt_jinja_value *value_out)
{
    bt_status      st  = BT_OK;
    bt_jinja_value map = {.kind = BT_JINJA_IS_MAP}, key, value;

    BT_JINJA_NEW(j, map.map, 1);
    for (const bt_jinja_node *item = node->list; item != NULL; item = item->next->next) {
        BT_TRY(bt_jinja_evaluate(j, scope, item, &key));
        BT_TRY(bt_jinja_evaluate(j, scope, item->next, &value));
        BT_JINJA_REQUIRE(j, item->at, key.kind == BT_JINJA_IS_STRING, BT_ERR_UNSUPPORTED,
                         "expected a text as key, found %s", bt_jinja_kind(&key));
        BT_TRY(bt_jinja_put(j, map.map, key.text, value));
    }
    *value_out = map;
out:
    return st;
}

static bt_status evaluate_slice(bt_jinja *j, bt_jinja_map *scope, const bt_jinja_node *node,
                                bt_jinja_value *value_out)
{
    bt_status            st = BT_OK;
    bt_jinja_value       of, bounds[3] = {{0}};
    const bt_jinja_node *nodes[3] = {node->b, node->c, node->d};

    BT_TRY(bt_jinja_evaluate(j, scope, node->a, &of));
    for (int i = 0; i < 3; i++)
        if (nodes[i] != NULL)
            BT_TRY(bt_jinja_evaluate(j, scope, nodes[i], &bounds[i]));
        else
            bounds[i].kind = BT_JINJA_IS_NONE;
    BT_TRY(bt_jinja_slice(j, node->at, &of, bounds, value_out));
out:
    return st;
}

/* A call's arguments, in their order and by name. */
static bt_status evaluate_arguments(bt_jinja *j, bt_jinja_map *scope, const bt_jinja_node *list,
                                    bt_jinja_call *call)
{
    bt_status      st = BT_OK;
    bt_jinja_value value;

    for (; list != NULL; list = list->next) {
        if (list->kind == BT_JINJA_KEYWORD) {
            BT_TRY(bt_jinja_evaluate(j, scope, list->a, &value));
            BT_TRY(bt_jinja_put(j, &call->keywords, list->text, value));
            continue;
        }
        BT_JINJA_REQUIRE(j, list->at, call->n_args < BT_JINJA_MAX_ARGS, BT_ERR_UNSUPPORTED,
                         "expected at most %d arguments", BT_JINJA_MAX_ARGS);
        BT_TRY(bt_jinja_evaluate(j, scope, list, &call->args[call->n_args++]));
    }
out:
    return st;
}

static bt_status evaluate_call(bt_jinja *j, bt_jinja_map *scope, const bt_jinja_node *node,
                               bt_jinja_value *value_out)
{
    bt_status            st   = BT_OK;
    const bt_jinja_node *what = node->a;
    bt_jinja_call        call = {.at = node->at, .name = what->text};

    BT_JINJA_REQUIRE(j, node->at, what->kind == BT_JINJA_NAME || what->kind == BT_JINJA_ATTR,
                     BT_ERR_UNSUPPORTED, "expected the call of a function or a method");
    BT_TRY(bt_jinja_evaluate(j, scope, what->kind == BT_JINJA_ATTR ? what->a : what, &call.value));
    BT_TRY(evaluate_arguments(j, scope, node->list, &call));
    if (what->kind == BT_JINJA_ATTR)
        BT_TRY(bt_jinja_method(j, &call, value_out));
    else if (call.value.kind == BT_JINJA_IS_MACRO && call.value.macro.node != NULL)
        BT_TRY(bt_jinja_run_macro(j, &call, value_out));
    else
        BT_TRY(bt_jinja_function(j, &call, value_out));
out:
    return st;
}

/* A filter or a test. */
static bt_status evaluate_applied(bt_jinja *j, bt_jinja_map *scope, const bt_jinja_node *node,
                                  bt_jinja_value *value_out)
{
    bt_status     st   = BT_OK;
    bt_jinja_call call = {.at = node->at, .name = node->text};
    bool          is;

    BT_TRY(bt_jinja_evaluate(j, scope, node->a, &call.value));
    BT_TRY(evaluate_arguments(j, scope, node->list, &call));
    if (node->kind == BT_JINJA_FILTER) {
        BT_TRY(bt_jinja_filter(j, &call, value_out));
    } else {
        BT_TRY(bt_jinja_test(j, &call, &is));
        *value_out = bt_jinja_bool(is);
    }
out:
    return st;
}

/* and, or, a if b else c: what is not needed is not evaluated. */
static bt_status evaluate_choice(bt_jinja *j, bt_jinja_map *scope, const bt_jinja_node *node,
                                 bt_jinja_value *value_out)
{
    bt_status st = BT_OK;

    BT_TRY(
        bt_jinja_evaluate(j, scope, node->kind == BT_JINJA_CHOOSE ? node->b : node->a, value_out));
    if (node->kind == BT_JINJA_CHOOSE) {
        const bt_jinja_node *chosen = bt_jinja_truth(value_out) ? node->a : node->c;

        *value_out = bt_jinja_undefined(bt_jinja_word("an if without else"));
        if (chosen != NULL) BT_TRY(bt_jinja_evaluate(j, scope, chosen, value_out));
    } else if (bt_jinja_truth(value_out) == (node->kind == BT_JINJA_AND)) {
        BT_TRY(bt_jinja_evaluate(j, scope, node->b, value_out));
    }
out:
    return st;
}

static bt_status evaluate_unary(bt_jinja *j, bt_jinja_map *scope, const bt_jinja_node *node,
                                bt_jinja_value *value_out)
{
    bt_status      st = BT_OK;
    bt_jinja_value a;

    BT_TRY(bt_jinja_evaluate(j, scope, node->a, &a));
    if (node->kind == BT_JINJA_NOT) {
        *value_out = bt_jinja_bool(!bt_jinja_truth(&a));
        goto out;
    }
    BT_JINJA_REQUIRE(j, node->at, bt_jinja_is_number(&a), BT_ERR_UNSUPPORTED,
                     "expected a number behind the sign, found %s", bt_jinja_kind(&a));
    *value_out = bt_jinja_int(node->number * a.number);
out:
    return st;
}

/* What Python has under that name: .items is a method even of {'items': 1}. */
static bool is_method(const bt_jinja_value *of, bt_jinja_text name)
{
    static const char *const NAMES[] = {
        [BT_JINJA_IS_STRING] =
            " capitalize casefold center count encode endswith expandtabs find format format_map "
            "index isalnum isalpha isascii isdecimal isdigit isidentifier islower isnumeric "
            "isprintable isspace istitle isupper join ljust lower lstrip maketrans partition "
            "removeprefix removesuffix replace rfind rindex rjust rpartition rsplit rstrip split "
            "splitlines startswith strip swapcase title translate upper zfill ",
        [BT_JINJA_IS_LIST] = " copy count index ",
        [BT_JINJA_IS_MAP]  = " copy fromkeys get items keys values "};
    char word[24];
    bool own = of->kind == BT_JINJA_IS_MAP && of->map->sort != BT_JINJA_DICT;

    if (own || of->kind > BT_JINJA_IS_MAP || NAMES[of->kind] == NULL || name.n > 20) return false;
    snprintf(word, sizeof(word), " %.*s ", (int)name.n, name.s);
    return strstr(NAMES[of->kind], word) != NULL;
}

static bt_status evaluate_pair(bt_jinja *j, bt_jinja_map *scope, const bt_jinja_node *node,
                               bt_jinja_value *value_out)
{
    bt_status      st = BT_OK;
    bt_jinja_value a, b;
    bool           is;

    BT_TRY(bt_jinja_evaluate(j, scope, node->a, &a));
    if (node->kind == BT_JINJA_ATTR)
        b = bt_jinja_string(node->text.s, node->text.n);
    else
        BT_TRY(bt_jinja_evaluate(j, scope, node->b, &b));
    if (node->kind == BT_JINJA_BINARY) {
        BT_TRY(bt_jinja_binary(j, node, &a, &b, value_out));
    } else if (node->kind == BT_JINJA_COMPARE) {
        BT_TRY(bt_jinja_compare(j, node, &a, &b, &is));
        *value_out = bt_jinja_bool(is);
    } else {
        BT_TRY(bt_jinja_index(j, node->at, &a, &b, value_out));
        BT_JINJA_REQUIRE(j, node->at,
                         (node->kind == BT_JINJA_INDEX && value_out->kind != BT_JINJA_UNDEFINED) ||
                             b.kind != BT_JINJA_IS_STRING || !is_method(&a, b.text),
                         BT_ERR_UNSUPPORTED, "expected the call of %.*s, which is a method of %s",
                         bt_jinja_shown(b.text), b.text.s, bt_jinja_kind(&a));
    }
out:
    return st;
}

static bt_status evaluate_kind(bt_jinja *j, bt_jinja_map *scope, const bt_jinja_node *node,
                               bt_jinja_value *value_out)
{
    switch (node->kind) {
    case BT_JINJA_BOOL: *value_out = bt_jinja_bool(node->number != 0); return BT_OK;
    case BT_JINJA_INT: *value_out = bt_jinja_int(node->number); return BT_OK;
    case BT_JINJA_STRING: *value_out = bt_jinja_string(node->text.s, node->text.n); return BT_OK;
    case BT_JINJA_NAME: return evaluate_name(j, scope, node, value_out);
    case BT_JINJA_LIST: return evaluate_list(j, scope, node, value_out);
    case BT_JINJA_MAP: return evaluate_map(j, scope, node, value_out);
    case BT_JINJA_SLICE: return evaluate_slice(j, scope, node, value_out);
    case BT_JINJA_CALL: return evaluate_call(j, scope, node, value_out);
    case BT_JINJA_FILTER:
    case BT_JINJA_TEST: return evaluate_applied(j, scope, node, value_out);
    case BT_JINJA_AND:
    case BT_JINJA_OR:
    case BT_JINJA_CHOOSE: return evaluate_choice(j, scope, node, value_out);
    case BT_JINJA_NOT:
    case BT_JINJA_SIGNED: return evaluate_unary(j, scope, node, value_out);
    case BT_JINJA_ATTR:
    case BT_JINJA_INDEX:
    case BT_JINJA_COMPARE:
    case BT_JINJA_BINARY: return evaluate_pair(j, scope, node, value_out);
    default: *value_out = (bt_jinja_value){.kind = BT_JINJA_IS_NONE}; return BT_OK;
    }
}

bt_status bt_jinja_evaluate(bt_jinja *j, bt_jinja_map *scope, const bt_jinja_node *node,
                            bt_jinja_value *value_out)
{
    bt_status st = BT_OK;

    BT_TRY(bt_jinja_step(j, node));
    BT_TRY(evaluate_kind(j, scope, node, value_out));
out:
    j->depth--;
    return st;
}

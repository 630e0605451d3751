/* A template's statements, done one after the other. */
#include <string.h>

#include "model/jinja/parts.h"

enum { TURN_STEPS = 8 }; /* of a loop, for what `loop` is */

/* How a list of statements came to its end. */
typedef enum { GOES_ON, BREAKS, CONTINUES } ending;

static bt_status run_list(bt_jinja *j, bt_jinja_map *scope, const bt_jinja_node *list,
                          ending *how_out);

static bt_status print(bt_jinja *j, bt_jinja_text text)
{
    bt_status st = BT_OK;
    char     *grown;

    if (j->out_capacity - j->n_out < text.n) {
        size_t capacity = 2 * j->out_capacity + text.n + 256;

        BT_JINJA_NEW(j, grown, capacity);
        if (j->n_out != 0) memcpy(grown, j->out, j->n_out);
        j->out          = grown;
        j->out_capacity = capacity;
    }
    if (text.n != 0) memcpy(j->out + j->n_out, text.s, text.n);
    j->n_out += text.n;
out:
    return st;
}

/* What a list prints, as a text. */
static bt_status capture(bt_jinja *j, bt_jinja_map *scope, const bt_jinja_node *list,
                         bt_jinja_value *value_out)
{
    bt_status st     = BT_OK;
    bt_jinja  around = *j;
    ending    how;

    j->out          = NULL;
    j->n_out        = 0;
    j->out_capacity = 0;
    BT_TRY(run_list(j, scope, list, &how));
    *value_out = bt_jinja_string(j->out != NULL ? j->out : "", j->n_out);
out:
    j->out          = around.out;
    j->n_out        = around.n_out;
    j->out_capacity = around.out_capacity;
    return st;
}

static bt_status new_scope(bt_jinja *j, bt_jinja_map *up, bt_jinja_map **scope_out)
{
    bt_status st = BT_OK;

    BT_JINJA_NEW(j, *scope_out, 1);
    (*scope_out)->up = up;
out:
    return st;
}

/* The macro's parameters in a scope of its own: by place, by name, by default. */
bt_status bt_jinja_run_macro(bt_jinja *j, const bt_jinja_call *call, bt_jinja_value *value_out)
{
    bt_status            st    = BT_OK;
    const bt_jinja_node *macro = call->value.macro.node;
    size_t               n = 0, n_named = 0;
    bt_jinja_map        *scope;
    bt_jinja_value       value;

    BT_TRY(new_scope(j, call->value.macro.scope, &scope));
    for (const bt_jinja_node *name = macro->b; name != NULL; name = name->next, n++) {
        const bt_jinja_entry *named = bt_jinja_find(&call->keywords, name->text);

        if (n < call->n_args)
            value = call->args[n];
        else if (named != NULL)
            value = named->value;
        else if (name->a != NULL)
            BT_TRY(bt_jinja_evaluate(j, scope, name->a, &value));
        else
            value = bt_jinja_undefined(name->text);
        if (n >= call->n_args && named != NULL) n_named++;
        BT_TRY(bt_jinja_put(j, scope, name->text, value));
    }
    BT_JINJA_REQUIRE(j, call->at, call->n_args <= n && n_named == call->keywords.n,
                     BT_ERR_UNSUPPORTED, "expected only parameters of the macro %.*s",
                     bt_jinja_shown(macro->text), macro->text.s);
    BT_TRY(capture(j, scope, macro->list, value_out));
out:
    return st;
}

/* In a name, in an entry of a namespace, or in several names. */
static bt_status store(bt_jinja *j, bt_jinja_map *scope, const bt_jinja_node *target,
                       bt_jinja_value value)
{
    bt_status      st = BT_OK;
    bt_jinja_value of, list;
    size_t         n = 0;

    if (target->kind == BT_JINJA_NAME) return bt_jinja_put(j, scope, target->text, value);
    if (target->kind != BT_JINJA_LIST) {
        BT_JINJA_REQUIRE(j, target->at,
                         target->kind == BT_JINJA_ATTR && target->a->kind == BT_JINJA_NAME,
                         BT_ERR_FORMAT, "expected a name to store in");
        BT_TRY(bt_jinja_evaluate(j, scope, target->a, &of));
        BT_JINJA_REQUIRE(
            j, target->at, of.kind == BT_JINJA_IS_MAP && of.map->sort == BT_JINJA_NAMESPACE,
            BT_ERR_FORMAT, "expected a namespace to store in, found %s", bt_jinja_kind(&of));
        return bt_jinja_put(j, of.map, target->text, value);
    }
    BT_TRY(bt_jinja_items(j, target->at, &value, &list));
    for (const bt_jinja_node *name = target->list; name != NULL; name = name->next)
        n++;
    BT_JINJA_REQUIRE(j, target->at, list.list.n == n, BT_ERR_FORMAT,
                     "expected %zu values to store, found %zu", n, list.list.n);
    n = 0;
    for (const bt_jinja_node *name = target->list; name != NULL; name = name->next)
        BT_TRY(bt_jinja_put(j, scope, name->text, list.list.at[n++]));
out:
    return st;
}

static bt_status put_number(bt_jinja *j, bt_jinja_map *map, const char *key, size_t number)
{
    return bt_jinja_put(j, map, bt_jinja_word(key), bt_jinja_int((int64_t)number));
}

/* What `loop` is on its i-th turn. */
static bt_status put_loop(bt_jinja *j, bt_jinja_map *scope, bt_jinja_map *map,
                          const bt_jinja_value *list, size_t i)
{
    bt_status             st   = BT_OK;
    bt_jinja_value        loop = {.kind = BT_JINJA_IS_MAP, .map = map};
    size_t                n    = list->list.n;
    const bt_jinja_value *at   = list->list.at;
    bt_jinja_text         none = bt_jinja_word("loop's neighbour");

    BT_TRY(put_number(j, loop.map, "index", i + 1));
    BT_TRY(put_number(j, loop.map, "index0", i));
    BT_TRY(put_number(j, loop.map, "revindex", n - i));
    BT_TRY(put_number(j, loop.map, "revindex0", n - i - 1));
    BT_TRY(put_number(j, loop.map, "length", n));
    BT_TRY(put_number(j, loop.map, "depth", 1)); /* in itself: no loop is recursive */
    BT_TRY(put_number(j, loop.map, "depth0", 0));
    BT_TRY(bt_jinja_put(j, loop.map, bt_jinja_word("first"), bt_jinja_bool(i == 0)));
    BT_TRY(bt_jinja_put(j, loop.map, bt_jinja_word("last"), bt_jinja_bool(i + 1 == n)));
    BT_TRY(bt_jinja_put(j, loop.map, bt_jinja_word("previtem"),
                        i != 0 ? at[i - 1] : bt_jinja_undefined(none)));
    BT_TRY(bt_jinja_put(j, loop.map, bt_jinja_word("nextitem"),
                        i + 1 < n ? at[i + 1] : bt_jinja_undefined(none)));
    BT_TRY(bt_jinja_put(j, scope, bt_jinja_word("loop"), loop));
out:
    return st;
}

/* A turn's names are gone with it; their memory serves the next one. */
static void forget(bt_jinja_map *scope)
{
    for (bt_jinja_entry *e = scope->first; e != NULL; e = e->next)
        e->value.kind = BT_JINJA_ABSENT;
}

/* Leaves in the list what the loop's condition takes. */
static bt_status keep_chosen(bt_jinja *j, bt_jinja_map *around, const bt_jinja_node *node,
                             bt_jinja_value *list)
{
    bt_status       st   = BT_OK;
    bt_jinja_value *kept = NULL, chosen;
    bt_jinja_map   *scope;
    size_t          n = 0;

    BT_JINJA_NEW(j, kept, list->list.n);
    BT_TRY(new_scope(j, around, &scope));
    for (size_t i = 0; i < list->list.n; i++) {
        BT_TRY(store(j, scope, node->b, list->list.at[i]));
        BT_TRY(bt_jinja_evaluate(j, scope, node->c, &chosen));
        if (bt_jinja_truth(&chosen)) kept[n++] = list->list.at[i];
    }
    list->list.at = kept;
    list->list.n  = n;
out:
    return st;
}

static bt_status run_for(bt_jinja *j, bt_jinja_map *around, const bt_jinja_node *node,
                         ending *how_out)
{
    bt_status      st  = BT_OK;
    ending         how = GOES_ON;
    bt_jinja_value of, list;
    bt_jinja_map  *scope, *loop;

    BT_TRY(bt_jinja_evaluate(j, around, node->a, &of));
    BT_TRY(bt_jinja_items(j, node->at, &of, &list));
    if (node->c != NULL) BT_TRY(keep_chosen(j, around, node, &list));
    BT_TRY(new_scope(j, around, &scope));
    BT_JINJA_NEW(j, loop, 1);
    loop->sort = BT_JINJA_LOOP;
    for (size_t i = 0; i < list.list.n && how != BREAKS; i++) {
        BT_TRY(bt_jinja_count(j, node->at, TURN_STEPS));
        forget(scope);
        BT_TRY(put_loop(j, scope, loop, &list, i));
        BT_TRY(store(j, scope, node->b, list.list.at[i]));
        BT_TRY(run_list(j, scope, node->list, &how));
    }
    if (list.list.n == 0) BT_TRY(run_list(j, scope, node->or_else, how_out));
out:
    return st;
}

/* The branch that is taken; an else with elif is another `if`. */
static bt_status run_if(bt_jinja *j, bt_jinja_map *scope, const bt_jinja_node *node,
                        ending *how_out)
{
    bt_status      st = BT_OK;
    bt_jinja_value is;

    BT_TRY(bt_jinja_evaluate(j, scope, node->a, &is));
    BT_TRY(run_list(j, scope, bt_jinja_truth(&is) ? node->list : node->or_else, how_out));
out:
    return st;
}

/* What it stores is its own. */
static bt_status run_body(bt_jinja *j, bt_jinja_map *around, const bt_jinja_node *node)
{
    bt_status     st = BT_OK;
    bt_jinja_map *scope;
    ending        how;

    BT_TRY(new_scope(j, around, &scope));
    BT_TRY(run_list(j, scope, node->list, &how));
out:
    return st;
}

static bt_status run_set(bt_jinja *j, bt_jinja_map *scope, const bt_jinja_node *node)
{
    bt_status      st = BT_OK;
    bt_jinja_map  *own;
    bt_jinja_value value;

    if (node->b != NULL) {
        BT_TRY(bt_jinja_evaluate(j, scope, node->b, &value));
    } else {
        BT_TRY(new_scope(j, scope, &own));
        BT_TRY(capture(j, own, node->list, &value));
    }
    BT_TRY(store(j, scope, node->a, value));
out:
    return st;
}

static bt_status run_print(bt_jinja *j, bt_jinja_map *scope, const bt_jinja_node *node)
{
    bt_status      st = BT_OK;
    bt_jinja_value value;
    bt_jinja_text  text;

    BT_TRY(bt_jinja_evaluate(j, scope, node->a, &value));
    BT_TRY(bt_jinja_to_text(j, node->at, &value, &text));
    BT_TRY(print(j, text));
out:
    return st;
}

static bt_status run_statement(bt_jinja *j, bt_jinja_map *scope, const bt_jinja_node *node,
                               ending *how_out)
{
    switch (node->kind) {
    case BT_JINJA_TEXT: return print(j, node->text);
    case BT_JINJA_IF: return run_if(j, scope, node, how_out);
    case BT_JINJA_FOR: return run_for(j, scope, node, how_out);
    case BT_JINJA_SET: return run_set(j, scope, node);
    case BT_JINJA_MACRO:
        return bt_jinja_put(j, scope, node->text,
                            (bt_jinja_value){
                                .kind = BT_JINJA_IS_MACRO, .macro = {node, scope}
        });
    case BT_JINJA_BREAK: *how_out = BREAKS; return BT_OK;
    case BT_JINJA_CONTINUE: *how_out = CONTINUES; return BT_OK;
    case BT_JINJA_BODY: return run_body(j, scope, node);
    default: return run_print(j, scope, node);
    }
}

static bt_status run_list(bt_jinja *j, bt_jinja_map *scope, const bt_jinja_node *list,
                          ending *how_out)
{
    bt_status st = BT_OK;

    *how_out = GOES_ON;
    for (; list != NULL && *how_out == GOES_ON; list = list->next) {
        st = bt_jinja_step(j, list);
        if (st == BT_OK) st = run_statement(j, scope, list, how_out);
        j->depth--;
        if (st != BT_OK) break;
    }
    return st;
}

bt_status bt_jinja_run(bt_jinja *j, const bt_jinja_node *body, bt_jinja_map *globals)
{
    ending how;

    return run_list(j, globals, body, &how);
}

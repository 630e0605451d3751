/* tests/model/grammar_check.h - texts against a grammar that was built or read. */
#ifndef BT_TESTS_MODEL_GRAMMAR_CHECK_H
#define BT_TESTS_MODEL_GRAMMAR_CHECK_H

#include <string.h>

#include "model/grammar/matcher.h"
#include "tests/support/test.h"

/* A matcher of the parts, which are freed; NULL: refused, and why[BT_GRAMMAR_WHY_BYTES] says why.
 */
static inline bt_matcher *matcher_of(bt_parts *g, bt_part whole, const bt_token_list *list,
                                     char *why)
{
    bt_grammar *grammar = NULL;
    bt_matcher *m       = NULL;
    bt_status   st      = bt_grammar_pack(g, whole, &grammar, why);

    bt_parts_fini(g);
    if (st == BT_OK) st = bt_matcher_create(grammar, list, &m);
    if (st != BT_OK && st != BT_ERR_INVALID_ARG) abort();
    return m;
}

/* value ::= "x" | "[" (value ("," value)*)? "]" */
static inline bt_part nested(bt_parts *g)
{
    uint32_t value = bt_rule_new(g, "value");
    bt_part  more  = bt_part_then(g, bt_part_text(g, ","), bt_rule_call(g, value));
    bt_part  items =
        bt_part_then(g, bt_rule_call(g, value), bt_part_repeat(g, more, 0, BT_UNLIMITED));
    bt_part list = bt_part_then(g, bt_part_text(g, "["), bt_part_maybe(g, items));

    list = bt_part_then(g, list, bt_part_text(g, "]"));
    bt_rule_is(g, value, bt_part_either(g, bt_part_text(g, "x"), list));
    return bt_rule_call(g, value);
}

typedef enum { REFUSES, GOES_ON, ACCEPTS } verdict; /* GOES_ON: a text of it begins so */

static inline verdict judge_bytes(bt_matcher *m, const char *text, size_t n)
{
    uint32_t state = BT_STATE_DEAD;

    if (bt_matcher_step(m, bt_matcher_start(m), text, n, &state) != BT_OK) abort();
    return state == BT_STATE_DEAD ? REFUSES : bt_matcher_accepts(m, state) ? ACCEPTS : GOES_ON;
}

static inline verdict judge(bt_matcher *m, const char *text)
{
    return judge_bytes(m, text, strlen(text));
}

#define EXPECT_VERDICT(m, text, want)                                                           \
    do {                                                                                        \
        verdict found_ = judge(m, text);                                                        \
                                                                                                \
        if (found_ != (want)) {                                                                 \
            g_failures++;                                                                       \
            fprintf(stderr, "%s:%d: \"%s\": expected %d, found %d\n", __FILE__, __LINE__, text, \
                    (int)(want), (int)found_);                                                  \
        }                                                                                       \
    } while (0)

#endif

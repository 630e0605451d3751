/* What the reply must be (structured output): read here as the ranks will read it, so that what is
 * refused is refused before anything is sent. */
#include <stdlib.h>
#include <string.h>

#include <jansson.h>
#include <xxhash.h>

#include "coordinator/intake.h"
#include "core/alloc.h"
#include "model/grammar/matcher.h"
#include "proto/text.h"

/* Of choices; what the readers of other texts refuse they refuse themselves. */
static bt_status check_choices(const bt_ask *ask, char *refusal)
{
    for (size_t i = 0; i < ask->n_constraint_choices; i++)
        BT_INTAKE_REFUSE_UNLESS(bt_text_is_utf8(ask->constraint_choices[i]),
                                "%s: choice %zu is not UTF-8", ask->constraint_name, i);
    return BT_OK;
}

/* The choices as a list in JSON; the caller frees.  NULL: no memory. */
static char *list_of(const bt_ask *ask)
{
    json_t *list = json_array();
    char   *json = NULL, *text;

    for (size_t i = 0; i < ask->n_constraint_choices; i++)
        json_array_append_new(list, json_string(ask->constraint_choices[i]));
    if (json_array_size(list) == ask->n_constraint_choices) json = json_dumps(list, JSON_COMPACT);
    text = json != NULL ? bt_strdup(json) : NULL;
    free(json);
    json_decref(list);
    return text;
}

/* The token behind which the constraint holds, plus 1; 0: it holds from the first one on.  Where
 * the prompt leaves the model thinking, that is the end of its thoughts, if the model has that
 * token at all. */
static uint32_t begins_after(const bt_ask *ask, const bt_intake_limits *limits)
{
    bool open = ask->thinks;

    if (ask->constraint_from_first || limits->think_end == 0 ||
        limits->think_end > limits->vocab_size)
        return 0;
    for (size_t i = ask->n_ids; i-- > 0;) {
        if (ask->ids[i] + 1 != limits->think_end && ask->ids[i] + 1 != limits->think_begin)
            continue;
        open = ask->ids[i] + 1 == limits->think_begin;
        break;
    }
    return open ? limits->think_end : 0;
}

static bool is_known(const bt_intake_known *known, XXH128_hash_t hash)
{
    for (uint32_t i = 0; i < BT_INTAKE_KNOWN && i < known->n; i++)
        if (known->hashes[i][0] == hash.low64 && known->hashes[i][1] == hash.high64) return true;
    return false;
}

static void put_known(bt_intake_known *known, XXH128_hash_t hash)
{
    uint64_t *at = known->hashes[known->n++ % BT_INTAKE_KNOWN];

    at[0] = hash.low64;
    at[1] = hash.high64;
}

/* As the ranks will: kind and text alone decide whether it can be done. */
static bt_status read_text(const bt_sampling *s, char why[BT_GRAMMAR_WHY_BYTES])
{
    bt_grammar *grammar = NULL;
    bt_matcher *matcher = NULL;
    bt_status   st      = bt_grammar_create((bt_constraint_kind)s->constraint_kind, s->constraint,
                                            s->n_constraint_bytes, &grammar, why);

    if (st == BT_OK) st = bt_matcher_create(grammar, NULL, &matcher);
    if (matcher == NULL) bt_grammar_destroy(grammar);
    bt_matcher_destroy(matcher);
    return st;
}

bt_status bt_intake_constraint(const bt_ask *ask, const bt_intake_limits *limits, bt_sampling *s,
                               char *refusal)
{
    bt_status        st;
    bt_intake_known *known                     = limits->known;
    XXH128_hash_t    hash                      = {0, 0};
    char             why[BT_GRAMMAR_WHY_BYTES] = "";

    if (ask->constraint == BT_CONSTRAINT_NONE) return BT_OK;
    BT_INTAKE_REFUSE_UNLESS(limits->tokenizer,
                            "%s is not supported: the model has no tokenizer here",
                            ask->constraint_name);
    BT_INTAKE_REFUSE_UNLESS(!ask->ignore_eos,
                            "%s with ignore_eos: a reply that is complete must be able to end",
                            ask->constraint_name);
    st = check_choices(ask, refusal);
    if (st != BT_OK) return st;
    s->constraint =
        ask->constraint == BT_CONSTRAINT_CHOICE ? list_of(ask) : bt_strdup(ask->constraint_text);
    BT_INTAKE_NEED(s->constraint != NULL);
    s->constraint_kind    = (uint32_t)ask->constraint;
    s->n_constraint_bytes = (uint32_t)strlen(s->constraint);
    s->constraint_after   = begins_after(ask, limits);
    BT_INTAKE_REFUSE_UNLESS(s->constraint_after == 0 ||
                                !bt_sampling_stops_at(s, s->constraint_after - 1),
                            "%s with stop_token_ids that hold %u: the reply begins behind that "
                            "token, the end of the thoughts",
                            ask->constraint_name, s->constraint_after - 1);
    if (known != NULL)
        hash = XXH3_128bits_withSeed(s->constraint, s->n_constraint_bytes,
                                     known->seed + ask->constraint);
    if (known != NULL && is_known(known, hash)) return BT_OK;
    st = read_text(s, why);
    if (known != NULL && st == BT_OK) put_known(known, hash);
    BT_INTAKE_REFUSE_UNLESS(st != BT_ERR_UNSUPPORTED, "%s: it can be read in too many ways",
                            ask->constraint_name);
    BT_INTAKE_REFUSE_UNLESS(st != BT_ERR_INVALID_ARG, "%s: %s", ask->constraint_name, why);
    BT_INTAKE_NEED(st == BT_OK);
    return BT_OK;
}

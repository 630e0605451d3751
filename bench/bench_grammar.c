/* bench/bench_grammar.c - what it costs to hold a reply to a constraint: a mask of the vocabulary
 * before each of its tokens.
 *
 *     bench_grammar MODEL < cases        (bench_grammar.py has them, and runs a peer beside it)
 *
 * MODEL: a model's directory with its tokenizer, or that file.  A case is a line of JSON: name,
 * kind (json_schema, regex, grammar), text, reply.  For each a line of JSON comes back: ms to read
 * the text; us of each mask and step, for a reply that is the first to come there, and for one that
 * follows it; how many tokens the masks allow, all together. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/need.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "model/grammar/matcher.h"

enum { LINE_BYTES = 1 << 20, MOST_TOKENS = 1 << 14 };

static bt_constraint_kind kind_of(const char *name)
{
    bt_constraint_kind kind = BT_CONSTRAINT_JSON_SCHEMA;

    while (kind < BT_CONSTRAINT_KINDS && strcmp(bt_constraint_name(kind), name) != 0)
        kind++;
    need(kind < BT_CONSTRAINT_KINDS, "a case of an unknown kind");
    return kind;
}

static uint64_t count(const uint32_t *bits, uint32_t n_ids)
{
    uint64_t n = 0;

    for (uint32_t id = 0; id < n_ids; id++)
        n += bt_mask_has(bits, id);
    return n;
}

/* us[i]: of the mask before token i, and the step over it.  Returns how many tokens were allowed.
 */
static uint64_t walk(bt_matcher *m, uint32_t n_ids, const uint32_t *ids, size_t n, double *us)
{
    uint32_t *bits      = bt_calloc(bt_mask_words(n_ids), sizeof(*bits));
    uint32_t  state     = bt_matcher_start(m);
    uint64_t  n_allowed = 0;

    need(bits != NULL, "no memory");
    for (size_t i = 0; i < n; i++) {
        uint64_t from = bt_now_ns();

        need(bt_matcher_mask(m, state, BT_MASK_WORK_MOST, bits) == BT_OK &&
                 bt_matcher_step_token(m, state, ids[i], &state) == BT_OK,
             "a case that is too much for a request");
        us[i] = (double)(bt_now_ns() - from) * 1e-3;
        need(state != BT_STATE_DEAD, "a reply that its case does not allow");
        n_allowed += count(bits, n_ids);
    }
    need(bt_matcher_accepts(m, state), "a reply that is not whole");
    bt_free(bits);
    return n_allowed;
}

static double mean(const double *us, size_t n)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += us[i];
    return sum / (double)n;
}

static double most(const double *us, size_t n)
{
    double max = 0;

    for (size_t i = 0; i < n; i++)
        max = us[i] > max ? us[i] : max;
    return max;
}

static void run_case(const json_t *c, const bt_tokenizer *tok, const bt_token_list *list,
                     uint32_t n_ids)
{
    static double first[MOST_TOKENS], again[MOST_TOKENS];
    const char   *kind = "", *text = "", *reply = "", *name = "";
    bt_grammar   *grammar                   = NULL;
    bt_matcher   *m                         = NULL;
    char          why[BT_GRAMMAR_WHY_BYTES] = "";
    uint32_t     *ids                       = NULL;
    size_t        n                         = 0;
    uint64_t      from, n_allowed;
    double        read_ms;

    need(json_unpack((json_t *)c, "{s:s, s:s, s:s, s:s}", "name", &name, "kind", &kind, "text",
                     &text, "reply", &reply) == 0,
         "a case without name, kind, text and reply");
    need(bt_tokenizer_encode(tok, reply, strlen(reply), &ids, &n) == BT_OK && n <= MOST_TOKENS,
         "a reply that cannot be encoded");
    from = bt_now_ns();
    if (bt_grammar_create(kind_of(kind), text, strlen(text), &grammar, why) != BT_OK)
        need(false, why);
    need(bt_matcher_create(grammar, list, &m) == BT_OK, "no memory");
    read_ms   = (double)(bt_now_ns() - from) * 1e-6;
    n_allowed = walk(m, n_ids, ids, n, first);
    walk(m, n_ids, ids, n, again);
    printf("{\"name\": \"%s\", \"tokens\": %zu, \"read_ms\": %.3f, \"first_us\": %.1f, "
           "\"first_max_us\": %.1f, "
           "\"again_us\": %.2f, \"again_max_us\": %.1f, \"bytes\": %zu, \"allowed\": %llu}\n",
           name, n, read_ms, mean(first, n), most(first, n), mean(again, n), most(again, n),
           bt_matcher_bytes(m), (unsigned long long)n_allowed);
    bt_matcher_destroy(m);
    bt_free(ids);
}

int main(int argc, char **argv)
{
    bt_tokenizer  *tok  = NULL;
    bt_token_list *list = NULL;
    char          *line = bt_calloc(LINE_BYTES, 1);
    uint32_t       n_ids;

    need(argc == 2 && line != NULL, "expected a model's directory, and cases on stdin");
    need(bt_tokenizer_open(argv[1], &tok) == BT_OK, "no tokenizer");
    n_ids = bt_tokenizer_vocab_size(tok);
    need(bt_token_list_create(tok, n_ids, &list) == BT_OK, "no memory");
    while (fgets(line, LINE_BYTES, stdin) != NULL) {
        json_t *c = json_loads(line, 0, NULL);

        need(c != NULL, "a line that is no JSON");
        run_case(c, tok, list, n_ids);
        json_decref(c);
    }
    bt_token_list_destroy(list);
    bt_tokenizer_close(tok);
    bt_free(line);
    return EXIT_SUCCESS;
}

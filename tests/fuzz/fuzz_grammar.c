/* Any bytes as a constraint: refused, or a grammar that can be followed.  A byte for the kind and a
 * byte for how long the constraint is (in 255ths of the rest); what is behind it is the text. */
#include "core/alloc.h"
#include "model/grammar/matcher.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

typedef bt_part (*read_fn)(bt_parts *g, const char *text, size_t n);

static bt_part read_regex(bt_parts *g, const char *text, size_t n)
{
    return bt_read_regex(g, text, n, true, false);
}

static bt_part read_somewhere(bt_parts *g, const char *text, size_t n)
{
    return bt_read_regex(g, text, n, false, false);
}

static bt_part read_pattern(bt_parts *g, const char *text, size_t n)
{
    return bt_read_regex(g, text, n, false, true);
}

/* A text that may go on may be followed by some byte; a dead one by none. */
static void follow(bt_matcher *m, const char *text, size_t n)
{
    uint32_t state = bt_matcher_start(m), next = BT_STATE_DEAD;

    for (size_t i = 0; i < n; i++) {
        if (bt_matcher_step(m, state, text + i, 1, &next) != BT_OK) return;
        BT_ASSERT(state != BT_STATE_DEAD || next == BT_STATE_DEAD);
        BT_ASSERT(next != BT_STATE_DEAD || !bt_matcher_accepts(m, next));
        state = next;
    }
    if (state == BT_STATE_DEAD || bt_matcher_accepts(m, state)) return;
    for (int b = 0; b < 256; b++) {
        char byte = (char)b;

        if (bt_matcher_step(m, state, &byte, 1, &next) != BT_OK || next != BT_STATE_DEAD) return;
    }
    BT_ASSERT(!"a text ends nowhere");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const read_fn READ[] = {
        read_regex,          read_somewhere, read_pattern,          bt_read_ebnf,
        bt_read_json_schema, bt_read_choice, bt_read_structural_tag};
    bt_parts    g                         = {0};
    bt_grammar *packed                    = NULL;
    bt_matcher *m                         = NULL;
    char        why[BT_GRAMMAR_WHY_BYTES] = "";
    size_t      n_read;
    bt_part     whole;
    bt_status   st;

    if (n < 2) return 0;
    n_read = ((n - 2) * data[1] + 254) / 255;
    whole  = READ[data[0] % (sizeof(READ) / sizeof(READ[0]))](&g, (const char *)data + 2, n_read);
    st     = bt_grammar_pack(&g, whole, &packed, why);
    bt_parts_fini(&g);
    BT_ASSERT(st == BT_OK || (st == BT_ERR_INVALID_ARG && why[0] != '\0'));
    if (st != BT_OK) return 0;
    if (bt_matcher_create(packed, NULL, &m) == BT_OK)
        follow(m, (const char *)data + 2 + n_read, n - 2 - n_read);
    else
        bt_grammar_destroy(packed);
    bt_matcher_destroy(m);
    return 0;
}

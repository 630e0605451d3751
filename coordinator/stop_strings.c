#include "coordinator/stop_strings.h"

#include <string.h>

#include "core/alloc.h"

typedef struct {
    char     *text; /* owned */
    uint32_t *fail; /* owned [n + 1]: the longest proper border of the first i bytes */
    uint32_t  n;
} pattern;

struct bt_stop_set {
    uint32_t n;
    pattern *at; /* owned */
};

static uint32_t advance(const pattern *p, uint32_t state, char byte)
{
    if (state == p->n) state = p->fail[state];
    while (state > 0 && p->text[state] != byte)
        state = p->fail[state];
    return p->text[state] == byte ? state + 1 : 0;
}

static bt_status compile(const char *text, pattern *p)
{
    bt_status st = BT_OK;
    size_t    n  = strlen(text);

    BT_ASSERT(n >= 1 && n <= BT_STOP_STRING_BYTES_MAX);
    p->n    = (uint32_t)n;
    p->text = bt_strdup(text);
    p->fail = bt_calloc(n + 1, sizeof(*p->fail));
    BT_REQUIRE(p->text != NULL && p->fail != NULL, BT_ERR_NO_MEMORY, "stop string of %zu bytes", n);
    for (uint32_t i = 1; i < p->n; i++) {
        uint32_t state = p->fail[i];

        while (state > 0 && text[state] != text[i])
            state = p->fail[state];
        p->fail[i + 1] = text[state] == text[i] ? state + 1 : 0;
    }
out:
    return st;
}

bt_status bt_stop_set_create(size_t n, char *const *strings, bt_stop_set **set_out)
{
    bt_status    st  = BT_OK;
    bt_stop_set *set = bt_calloc(1, sizeof(*set));

    BT_ASSERT(n >= 1 && n <= BT_STOP_STRINGS_MAX);
    BT_REQUIRE(set != NULL, BT_ERR_NO_MEMORY, "stop strings");
    set->at = bt_calloc(n, sizeof(*set->at));
    BT_REQUIRE(set->at != NULL, BT_ERR_NO_MEMORY, "%zu stop strings", n);
    set->n = (uint32_t)n;
    for (size_t i = 0; i < n; i++)
        BT_TRY(compile(strings[i], &set->at[i]));
    *set_out = set;
    set      = NULL; /* handed over */
out:
    bt_stop_set_destroy(set);
    return st;
}

void bt_stop_set_destroy(bt_stop_set *set)
{
    if (set == NULL) return;
    for (uint32_t i = 0; i < set->n; i++) {
        bt_free(set->at[i].text);
        bt_free(set->at[i].fail);
    }
    bt_free(set->at);
    bt_free(set);
}

const char *bt_stop_set_string(const bt_stop_set *set, int i) { return set->at[i].text; }
uint32_t    bt_stop_set_size(const bt_stop_set *set) { return set->n; }

int bt_stop_feed(const bt_stop_set *set, uint32_t *state, const char *bytes, size_t n,
                 bool may_match, uint32_t *held_out)
{
    int      found = BT_STOP_NONE;
    uint32_t held  = 0;

    for (size_t k = 0; k < n && found == BT_STOP_NONE; k++)
        for (uint32_t i = set->n; i-- > 0;) { /* so that of several the first stays */
            state[i] = advance(&set->at[i], state[i], bytes[k]);
            if (may_match && state[i] == set->at[i].n) found = (int)i;
        }
    for (uint32_t i = 0; i < set->n; i++) {
        uint32_t begun = state[i] == set->at[i].n ? set->at[i].fail[state[i]] : state[i];

        if (begun > held) held = begun;
    }
    *held_out = held;
    return found;
}

#include "model/added_tokens.h"

#include "core/alloc.h"

/* A trie over bytes.  Below the root, siblings form a list; the root has a table, since a position
 * where no token begins must cost one look. */
typedef struct {
    uint32_t child, sibling; /* node numbers; 0: none */
    uint32_t id;             /* UINT32_MAX: no token ends here */
    uint8_t  byte;
} node;

struct bt_added_tokens {
    node    *nodes; /* owned: [capacity]; number 0 is the root */
    uint32_t n, capacity;
    uint32_t first[256]; /* the root's children by byte */
};

bt_status bt_added_tokens_create(size_t n_bytes, bt_added_tokens **set_out)
{
    bt_status        st  = BT_OK;
    bt_added_tokens *set = bt_calloc(1, sizeof(*set));

    BT_REQUIRE(set != NULL, BT_ERR_NO_MEMORY, "added tokens");
    BT_REQUIRE(n_bytes < UINT32_MAX, BT_ERR_FORMAT, "added tokens: expected under 4 GiB of text");
    set->nodes = bt_calloc(n_bytes + 1, sizeof(*set->nodes));
    BT_REQUIRE(set->nodes != NULL, BT_ERR_NO_MEMORY, "added tokens of %zu bytes", n_bytes);
    set->nodes[0].id = UINT32_MAX;
    set->capacity    = (uint32_t)n_bytes + 1;
    set->n           = 1;
    *set_out         = set;
    set              = NULL;
out:
    bt_added_tokens_destroy(set);
    return st;
}

void bt_added_tokens_destroy(bt_added_tokens *set)
{
    if (set == NULL) return;
    bt_free(set->nodes);
    bt_free(set);
}

static uint32_t child_of(const bt_added_tokens *set, uint32_t at, uint8_t byte)
{
    uint32_t c = at == 0 ? set->first[byte] : set->nodes[at].child;

    while (at != 0 && c != 0 && set->nodes[c].byte != byte)
        c = set->nodes[c].sibling;
    return c;
}

static uint32_t add_child(bt_added_tokens *set, uint32_t at, uint8_t byte)
{
    uint32_t c = set->n++;

    BT_ASSERT(c < set->capacity);
    set->nodes[c] = (node){.sibling = set->nodes[at].child, .id = UINT32_MAX, .byte = byte};
    if (at == 0)
        set->first[byte] = c;
    else
        set->nodes[at].child = c;
    return c;
}

uint32_t bt_added_tokens_add(bt_added_tokens *set, const char *text, size_t n, uint32_t id)
{
    uint32_t at = 0;

    for (size_t i = 0; i < n; i++) {
        uint32_t c = child_of(set, at, (uint8_t)text[i]);

        at = c != 0 ? c : add_child(set, at, (uint8_t)text[i]);
    }
    if (set->nodes[at].id == UINT32_MAX) set->nodes[at].id = id;
    return set->nodes[at].id;
}

size_t bt_added_tokens_longest(const bt_added_tokens *set, const char *text, size_t n,
                               uint32_t *id_out)
{
    size_t   longest = 0;
    uint32_t at      = 0;

    for (size_t i = 0; i < n; i++) {
        at = child_of(set, at, (uint8_t)text[i]);
        if (at == 0) break;
        if (set->nodes[at].id == UINT32_MAX) continue;
        longest = i + 1;
        *id_out = set->nodes[at].id;
    }
    return longest;
}

size_t bt_added_tokens_find(const bt_added_tokens *set, const char *text, size_t n,
                            size_t *start_out, uint32_t *id_out)
{
    for (size_t i = 0; i < n; i++) {
        size_t length = bt_added_tokens_longest(set, text + i, n - i, id_out);

        if (length == 0) continue;
        *start_out = i;
        return length;
    }
    *start_out = n;
    return 0;
}

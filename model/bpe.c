#include "model/bpe.h"

#include <stdbool.h>
#include <string.h>

#include "core/alloc.h"

enum { NONE = -1 };

typedef struct {
    uint64_t pair;         /* left << 32 | right */
    uint32_t rank, merged; /* merged == UINT32_MAX: an empty slot */
} slot;

struct bt_bpe {
    uint32_t byte_ids[256];
    slot    *slots; /* owned: [mask + 1], open addressing, at most half full */
    uint64_t mask;
    size_t   n_added;
};

bt_status bt_bpe_create(const uint32_t byte_ids[256], size_t n_merges, bt_bpe **bpe_out)
{
    bt_status st      = BT_OK;
    bt_bpe   *bpe     = bt_calloc(1, sizeof(*bpe));
    size_t    n_slots = 16;

    BT_REQUIRE(bpe != NULL, BT_ERR_NO_MEMORY, "tokenizer");
    while (n_slots / 2 < n_merges)
        n_slots *= 2;
    memcpy(bpe->byte_ids, byte_ids, sizeof(bpe->byte_ids));
    bpe->slots = bt_calloc(n_slots, sizeof(*bpe->slots));
    BT_REQUIRE(bpe->slots != NULL, BT_ERR_NO_MEMORY, "tokenizer: %zu merges", n_merges);
    for (size_t i = 0; i < n_slots; i++)
        bpe->slots[i].merged = UINT32_MAX;
    bpe->mask = n_slots - 1;
    *bpe_out  = bpe;
    bpe       = NULL;
out:
    bt_bpe_destroy(bpe);
    return st;
}

void bt_bpe_destroy(bt_bpe *bpe)
{
    if (bpe == NULL) return;
    bt_free(bpe->slots);
    bt_free(bpe);
}

/* The pair's slot, or the empty one where it belongs. */
static slot *find(const bt_bpe *bpe, uint32_t left, uint32_t right)
{
    uint64_t pair = (uint64_t)left << 32 | right;
    uint64_t i    = (pair ^ pair >> 29) * 0x9e3779b97f4a7c15ull >> 20;

    while (bpe->slots[i & bpe->mask].merged != UINT32_MAX && bpe->slots[i & bpe->mask].pair != pair)
        i++;
    return &bpe->slots[i & bpe->mask];
}

void bt_bpe_add(bt_bpe *bpe, uint32_t rank, uint32_t left, uint32_t right, uint32_t merged)
{
    slot *s = find(bpe, left, right);

    BT_ASSERT(bpe->n_added <= bpe->mask / 2);
    bpe->n_added++;
    *s = (slot){(uint64_t)left << 32 | right, rank, merged};
}

/* A piece being merged: a linked list of symbols by position, and a heap of merges to try, which
 * may have gone stale. */
typedef struct {
    uint32_t id; /* UINT32_MAX: merged into its left neighbour */
    int32_t  prev, next;
} symbol;

typedef struct {
    uint32_t rank, at, merged;
} candidate;

typedef struct {
    const bt_bpe *bpe;
    symbol       *symbols; /* [n] */
    candidate    *heap;    /* [2n]: each merge takes one out and puts two in, n - 1 at first */
    size_t        n_heap;
} work;

void bt_bpe_scratch_fini(bt_bpe_scratch *scratch)
{
    bt_free(scratch->memory);
    *scratch = (bt_bpe_scratch){0};
}

static bt_status reserve(bt_bpe_scratch *scratch, size_t n, work *w)
{
    bt_status st    = BT_OK;
    size_t    bytes = n * (sizeof(symbol) + 2 * sizeof(candidate));

    if (bytes > scratch->n_bytes) {
        bt_bpe_scratch_fini(scratch);
        scratch->memory = bt_calloc(bytes, 2);
        BT_REQUIRE(scratch->memory != NULL, BT_ERR_NO_MEMORY, "tokenizer: a piece of %zu bytes", n);
        scratch->n_bytes = 2 * bytes;
    }
    w->symbols = scratch->memory;
    w->heap    = (candidate *)(void *)(w->symbols + n);
out:
    return st;
}

static bool comes_before(const candidate *a, const candidate *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static void heap_push(work *w, candidate c)
{
    size_t i = w->n_heap++;

    while (i > 0 && comes_before(&c, &w->heap[(i - 1) / 2])) {
        w->heap[i] = w->heap[(i - 1) / 2];
        i          = (i - 1) / 2;
    }
    w->heap[i] = c;
}

static candidate heap_pop(work *w)
{
    candidate top = w->heap[0], last = w->heap[--w->n_heap];
    size_t    i = 0, child;

    while ((child = 2 * i + 1) < w->n_heap) {
        if (child + 1 < w->n_heap && comes_before(&w->heap[child + 1], &w->heap[child])) child++;
        if (!comes_before(&w->heap[child], &last)) break;
        w->heap[i] = w->heap[child];
        i          = child;
    }
    w->heap[i] = last;
    return top;
}

/* Queues the merge of the symbol at `at` with its right neighbour, if there is one. */
static void consider(work *w, int32_t at)
{
    const symbol *s = &w->symbols[at];
    const slot   *found;

    if (s->next == NONE) return;
    found = find(w->bpe, s->id, w->symbols[s->next].id);
    if (found->merged != UINT32_MAX)
        heap_push(w, (candidate){found->rank, (uint32_t)at, found->merged});
}

/* Whether the two symbols still stand where they stood when the candidate was queued. */
static bool is_fresh(const work *w, const candidate *c)
{
    const symbol *s = &w->symbols[c->at];

    return s->id != UINT32_MAX && s->next != NONE &&
           find(w->bpe, s->id, w->symbols[s->next].id)->merged == c->merged;
}

static void merge(work *w, const candidate *c)
{
    symbol *left = &w->symbols[c->at], *right = &w->symbols[left->next];

    left->id   = c->merged;
    left->next = right->next;
    right->id  = UINT32_MAX;
    if (left->next != NONE) w->symbols[left->next].prev = (int32_t)c->at;
    if (left->prev != NONE) consider(w, left->prev);
    consider(w, (int32_t)c->at);
}

bt_status bt_bpe_encode(const bt_bpe *bpe, const char *piece, size_t n, bt_bpe_scratch *scratch,
                        uint32_t *ids_out, size_t *n_out)
{
    bt_status st = BT_OK;
    work      w  = {.bpe = bpe};
    size_t    k  = 0;

    BT_ASSERT(n > 0 && n <= INT32_MAX);
    BT_TRY(reserve(scratch, n, &w));
    for (size_t i = 0; i < n; i++)
        w.symbols[i] = (symbol){bpe->byte_ids[(uint8_t)piece[i]], (int32_t)i - 1,
                                i + 1 < n ? (int32_t)i + 1 : NONE};
    for (size_t i = 0; i + 1 < n; i++)
        consider(&w, (int32_t)i);
    while (w.n_heap > 0) {
        candidate c = heap_pop(&w);

        if (is_fresh(&w, &c)) merge(&w, &c);
    }
    for (int32_t i = 0; i != NONE; i = w.symbols[i].next)
        ids_out[k++] = w.symbols[i].id;
    *n_out = k;
out:
    return st;
}

#include "worker/draft.h"

#include <string.h>

#include "core/alloc.h"
#include "core/minmax.h"

enum { FIRST_CAPACITY = 64, MOST_SKIPS = 63 };

/* Of the tokens that end before `end`. */
static uint32_t *slot_of(const bt_drafter *d, uint32_t end)
{
    uint64_t h = 0;

    for (uint32_t i = end - BT_DRAFT_MATCH; i < end; i++)
        h = (h ^ d->tokens[i]) * 0x9e3779b97f4a7c15u; /* 2^64 over the golden ratio */
    return &d->after[(h >> 32) & (2 * d->capacity - 1)];
}

static void index_all(bt_drafter *d)
{
    for (uint32_t end = BT_DRAFT_MATCH; end < d->n; end++)
        *slot_of(d, end) = end;
}

static bt_status reserve(bt_drafter *d, uint32_t n)
{
    bt_status st       = BT_OK;
    uint32_t  capacity = d->capacity == 0 ? FIRST_CAPACITY : d->capacity;
    uint32_t *tokens = NULL, *after = NULL;

    while (capacity < n)
        capacity *= 2;
    if (capacity == d->capacity) goto out;
    tokens = bt_calloc(capacity, sizeof(*tokens));
    after  = bt_calloc((size_t)2 * capacity, sizeof(*after));
    BT_REQUIRE(tokens != NULL && after != NULL, BT_ERR_NO_MEMORY, "drafts from %u tokens", n);
    if (d->n > 0) memcpy(tokens, d->tokens, d->n * sizeof(*tokens));
    bt_free(d->tokens);
    bt_free(d->after);
    d->tokens   = tokens;
    d->after    = after;
    d->capacity = capacity;
    tokens = after = NULL; /* handed over */
    index_all(d);
out:
    bt_free(tokens);
    bt_free(after);
    return st;
}

bt_status bt_drafter_add(bt_drafter *d, uint32_t n, const uint32_t *tokens)
{
    bt_status st = BT_OK;

    BT_TRY(reserve(d, d->n + n));
    for (uint32_t i = 0; i < n; i++) {
        if (d->n >= BT_DRAFT_MATCH) *slot_of(d, d->n) = d->n;
        d->tokens[d->n++] = tokens[i];
    }
out:
    return st;
}

bt_status bt_drafter_copy(const bt_drafter *from, bt_drafter *to_out)
{
    bt_status st = BT_OK;

    *to_out = (bt_drafter){0};
    if (from->n == 0) goto out;
    BT_TRY(reserve(to_out, from->capacity));
    memcpy(to_out->tokens, from->tokens, from->n * sizeof(*from->tokens));
    memcpy(to_out->after, from->after, (size_t)2 * from->capacity * sizeof(*from->after));
    to_out->n = from->n;
out:
    return st;
}

void bt_drafter_fini(bt_drafter *d)
{
    bt_free(d->tokens);
    bt_free(d->after);
    *d = (bt_drafter){0};
}

/* Where what the tokens end with stood before, and after it: a position; 0: nowhere. */
static uint32_t find(const bt_drafter *d)
{
    uint32_t after;

    if (d->n < BT_DRAFT_MATCH) return 0;
    after = *slot_of(d, d->n);
    if (after == 0 || memcmp(d->tokens + after - BT_DRAFT_MATCH, d->tokens + d->n - BT_DRAFT_MATCH,
                             BT_DRAFT_MATCH * sizeof(*d->tokens)) != 0)
        return 0;
    return after;
}

uint32_t bt_drafter_draft(bt_drafter *d, uint32_t n_most, uint32_t *tokens_out)
{
    uint32_t after = find(d), n = d->most == 0 ? n_most : bt_min_u32(n_most, d->most);

    if (after == 0 || n == 0) return 0;
    if (d->skipped < d->skips) {
        d->skipped++;
        return 0;
    }
    for (uint32_t i = 0; i < n; i++) /* beyond the end it goes on as it has begun */
        tokens_out[i] = after + i < d->n ? d->tokens[after + i] : tokens_out[after + i - d->n];
    return n;
}

void bt_drafter_learn(bt_drafter *d, uint32_t n, uint32_t n_right)
{
    d->skipped = 0;
    d->skips   = n_right > 0 ? 0 : bt_min_u32(2 * d->skips + 1, MOST_SKIPS);
    if (n_right < n)
        d->most = n_right + 1;
    else if (d->most != 0 && d->most < 2 * n) /* a short one may have had no room */
        d->most = 2 * n;
}

/* ---- drafts of the model's own layer */

#define PACE_FIRST 0.7f     /* before anything is known */
#define PACE_KEEPS 0.96875f /* of what was known, when another token is */
enum { PACE_PASSES = 7 };

uint32_t bt_pace_depth(bt_draft_pace *p, uint32_t n_most, float price)
{
    float    right = p->knows ? p->right : PACE_FIRST, all = right;
    uint32_t n = 0;

    for (; n < n_most && all > price; n++)
        all *= right;
    if (n == 0 && n_most > 0 && price < 1) {
        if (p->passed++ < PACE_PASSES) return 0;
        n = 1;
    }
    p->passed = 0;
    return n;
}

void bt_pace_learn(bt_draft_pace *p, uint32_t n, uint32_t n_right)
{
    if (!p->knows) p->right = PACE_FIRST;
    p->knows = true;
    for (uint32_t i = 0; i <= n_right && i < n; i++)
        p->right = PACE_KEEPS * p->right + (1 - PACE_KEEPS) * (i < n_right ? 1.0f : 0.0f);
}

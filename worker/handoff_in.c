#include "worker/handoff_in.h"

#include <string.h>

#include "attention/page_rows.h"
#include "core/alloc.h"

_Static_assert(BT_PAGE_TOKENS == 64, "a word of `seen` holds the tokens of one page");

bt_status bt_handoff_in_init(bt_handoff_in *in, const bt_kv_pool *pool, uint32_t n_prompt,
                             uint32_t n_held, uint32_t n_vocab, const bt_page_id *pages,
                             const bt_handoff_tail *tail)
{
    bt_status st      = BT_OK;
    uint32_t  n_pages = bt_kv_pages_for(n_prompt);

    *in             = (bt_handoff_in){.n_layers = bt_kv_pool_n_layers(pool),
                                      .n_prompt = n_prompt,
                                      .n_vocab  = n_vocab,
                                      .tail     = *tail};
    in->generations = bt_calloc(n_pages, sizeof(*in->generations));
    in->seen        = bt_calloc((size_t)in->n_layers * n_pages, sizeof(*in->seen));
    BT_REQUIRE(in->generations != NULL && in->seen != NULL, BT_ERR_NO_MEMORY,
               "hand-off of %u tokens in %u layers", n_prompt, in->n_layers);
    for (uint32_t i = 0; i < n_pages; i++)
        in->generations[i] = bt_kv_pool_generation(pool, pages[i]);
    for (uint32_t i = 0; i < in->n_layers; i++)
        for (uint32_t page = 0; page < n_held / BT_PAGE_TOKENS; page++)
            in->seen[(size_t)i * n_pages + page] = ~0ull;
    in->n_rows = (uint64_t)in->n_layers * n_held;
out:
    if (st != BT_OK) bt_handoff_in_fini(in);
    return st;
}

void bt_handoff_in_fini(bt_handoff_in *in)
{
    bt_free(in->generations);
    bt_free(in->seen);
    *in = (bt_handoff_in){0};
}

/* Bits of tokens [t0, t1) in page `page`. */
static uint64_t page_bits(uint32_t page, uint32_t t0, uint32_t t1)
{
    uint32_t first = page * BT_PAGE_TOKENS, low = t0 > first ? t0 - first : 0;
    uint32_t high = t1 - first < BT_PAGE_TOKENS ? t1 - first : BT_PAGE_TOKENS;

    return (high == 64 ? ~0ull : (1ull << high) - 1) & ~((1ull << low) - 1);
}

static uint64_t *seen_word(const bt_handoff_in *in, uint32_t layer, uint32_t page)
{
    return &in->seen[(size_t)layer * bt_kv_pages_for(in->n_prompt) + page];
}

/* The last message's tail: a token for each choice, and the map. */
static bt_status check_tail(const bt_handoff_in *in, const bt_page_message *m, const uint8_t *tail)
{
    bt_status      st   = BT_OK;
    size_t         want = m->last ? bt_handoff_tail_bytes(&in->tail) : 0;
    bt_first_token first;

    BT_REQUIRE(m->tail_bytes == want, BT_ERR_CHECKSUM,
               "a message with a tail of %u bytes, expected %zu for %u choices", m->tail_bytes,
               want, in->tail.n_firsts);
    if (!m->last) goto out;
    BT_REQUIRE(m->cached < in->n_prompt && !in->last, BT_ERR_CHECKSUM,
               "the last message (once: %d) says that %u tokens of a prompt of %u were not "
               "computed",
               !in->last, m->cached, in->n_prompt);
    for (uint32_t i = 0; i < in->tail.n_firsts; i++) {
        memcpy(&first, tail + i * sizeof(first), sizeof(first));
        BT_REQUIRE(first.finish <= BT_FINISH_LENGTH && first.id < in->n_vocab, BT_ERR_CHECKSUM,
                   "the last message says token %u with finish %u, expected one below %u and at "
                   "most %d",
                   first.id, first.finish, in->n_vocab, (int)BT_FINISH_LENGTH);
    }
    BT_REQUIRE(in->tail.fixed_bytes == 0 || memcmp(tail + in->tail.n_firsts * sizeof(first),
                                                   in->tail.map, in->tail.fixed_bytes) == 0,
               BT_ERR_CHECKSUM, "the prompt was computed in other forms than the reservation says");
out:
    return st;
}

static bt_status check(const bt_handoff_in *in, const bt_kv_pool *pool, const bt_page_id *pages,
                       const bt_page_message *m, const uint8_t *tail)
{
    bt_status st    = BT_OK;
    uint32_t  page0 = m->token0 / BT_PAGE_TOKENS, page1 = bt_kv_pages_for(m->token1);
    uint32_t  kv_dim = bt_kv_pool_kv_dim(pool);
    uint64_t  tag, bytes;

    BT_REQUIRE(m->token0 < m->token1 && m->token1 <= in->n_prompt && m->layer0 < m->layer1 &&
                   m->layer1 <= in->n_layers,
               BT_ERR_CHECKSUM,
               "a message carries tokens %u to %u of layers %u to %u, the prompt has %u tokens and "
               "the model %u layers",
               m->token0, m->token1, m->layer0, m->layer1, in->n_prompt, in->n_layers);
    bytes = (uint64_t)(m->token1 - m->token0) * (m->layer1 - m->layer0) * kv_dim * sizeof(bt_bf16);
    bytes += m->tail_bytes;
    BT_REQUIRE(m->kv_dim == kv_dim && m->payload_bytes == bytes, BT_ERR_CHECKSUM,
               "a message of %llu bytes with rows of %u elements, expected %llu bytes and %u "
               "elements",
               (unsigned long long)m->payload_bytes, m->kv_dim, (unsigned long long)bytes, kv_dim);
    tag = bt_pages_tag(page1 - page0, pages + page0, in->generations + page0);
    BT_REQUIRE(m->pages_tag == tag, BT_ERR_CHECKSUM,
               "tokens %u to %u are for pages with tag %016llx, ours have %016llx", m->token0,
               m->token1, (unsigned long long)m->pages_tag, (unsigned long long)tag);
    for (uint32_t layer = m->layer0; layer < m->layer1; layer++) {
        for (uint32_t page = page0; page < page1; page++)
            BT_REQUIRE((*seen_word(in, layer, page) & page_bits(page, m->token0, m->token1)) == 0,
                       BT_ERR_CHECKSUM, "tokens %u to %u of layer %u come twice", m->token0,
                       m->token1, layer);
    }
    BT_TRY(check_tail(in, m, tail));
out:
    return st;
}

bt_status bt_handoff_in_accept(bt_handoff_in *in, const bt_kv_pool *pool, const bt_page_id *pages,
                               const bt_page_message *m, const bt_page_payload *p)
{
    bt_status    st    = BT_OK;
    bt_page_rows rows  = {pool, pages, m->token0, m->token1, m->layer0, m->layer1};
    uint32_t     page1 = bt_kv_pages_for(m->token1);
    size_t       map   = in->tail.map_bytes;

    BT_TRY(check(in, pool, pages, m, p->tail));
    BT_TRY(p->on_device ? bt_page_rows_scatter(&rows, p->stream, p->rows)
                        : bt_page_rows_upload(&rows, p->rows));
    for (uint32_t layer = m->layer0; layer < m->layer1; layer++)
        for (uint32_t page = m->token0 / BT_PAGE_TOKENS; page < page1; page++)
            *seen_word(in, layer, page) |= page_bits(page, m->token0, m->token1);
    in->n_rows += (uint64_t)(m->token1 - m->token0) * (m->layer1 - m->layer0);
    if (m->last) {
        in->last   = true;
        in->cached = m->cached;
        memcpy(in->tail.firsts, p->tail, m->tail_bytes - map);
        if (map > 0) memcpy(in->tail.map, (const uint8_t *)p->tail + m->tail_bytes - map, map);
    }
out:
    return st;
}

bool bt_handoff_in_complete(const bt_handoff_in *in)
{
    return in->last && in->n_rows == (uint64_t)in->n_layers * in->n_prompt;
}

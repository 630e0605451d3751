/* How requests come into a relay, and how they leave it for another one. */
#include "coordinator/relay_state.h"
#include "core/alloc.h"
#include "proto/prefix_key.h"

void bt_relay_forget_matches(bt_relay_request *q)
{
    bt_free(q->matches);
    q->matches = NULL;
}

void bt_relay_forget_keys(bt_relay_request *q)
{
    bt_relay_forget_matches(q);
    bt_free(q->keys);
    q->keys   = NULL;
    q->n_keys = 0;
}

bt_status bt_relay_enter(bt_relay *relay, bt_relay_request *q)
{
    bt_status st     = BT_OK;
    bool      named  = false;
    uint64_t  number = relay->next_number;

    /* A cached prefix has no logits: a request for prompt logprobs neither uses nor leaves one. */
    q->prefix_seed = q->sampling.prompt_logprobs != 0
                         ? 0
                         : bt_cache_salt_seed(relay->cfg.prefix_seed, q->cache_salt);
    if (q->prefix_seed != 0)
        BT_TRY(bt_page_keys(q->prefix_seed, relay->cfg.page_tokens, q->n_prompt, q->prompt,
                            &q->keys, &q->n_keys));
    BT_TRY(bt_table_put(&relay->names, q->name_key, q));
    named = true;
    BT_TRY(bt_table_put(&relay->numbers, number, q));
    relay->next_number++;
    q->number = q->logged = number;
    bt_relay_list_insert(&relay->queue, q);
    relay->n_in[BT_QUEUED]++;
    bt_relay_count_queued(relay, q, true);
out:
    if (st != BT_OK) {
        if (named) bt_table_remove(&relay->names, q->name_key);
        bt_relay_forget_keys(q);
    }
    return st;
}

bt_status bt_relay_adopt(bt_relay *relay, bt_relay_request *q, uint64_t now_ns)
{
    bt_status st = BT_OK;

    BT_TRY(bt_relay_enter(relay, q));
    q->heard_ns = now_ns;
    bt_log_set_request(q->number);
    BT_INFO("\"%.200s\" is queued again, after %u tokens", q->name, q->n_out);
    bt_log_set_request(0);
    bt_relay_place_soon(relay, now_ns);
out:
    return st;
}

/* What it was to this relay is forgotten; what it is to its client stays. */
static bt_relay_request *take(bt_relay *r, bt_relay_list *list, bt_relay_request *q)
{
    bt_relay_list_remove(list, q);
    bt_table_remove(&r->numbers, q->number);
    bt_table_remove(&r->names, q->name_key);
    if (list == &r->queue) bt_relay_count_queued(r, q, false);
    r->freed = true;
    bt_relay_forget_keys(q);
    bt_relay_forget_early(q);
    r->n_in[q->state]--;
    q->resumed = q->resumed || q->state != BT_QUEUED;
    q->state   = BT_QUEUED;
    bt_free(q->held_pages);
    bt_relay_request_unplace(q);
    return q;
}

bt_relay_request *bt_relay_take_queued(bt_relay *relay, bt_relay_request *q)
{
    return take(relay, &relay->queue, q);
}

bt_relay_request *bt_relay_take_open(bt_relay *relay)
{
    bt_relay_request *q;

    while ((q = relay->placed.first) != NULL) {
        if (q->state != BT_ENDED) return take(relay, &relay->placed, q);
        q->decode_holds = q->prefill_holds = false;
        bt_relay_settle(relay, q);
    }
    return relay->queue.first == NULL ? NULL : take(relay, &relay->queue, relay->queue.first);
}

bool bt_relay_has_name(const bt_relay *relay, const char *name)
{
    return bt_table_get(&relay->names, bt_relay_name_key(name)) != NULL;
}

bt_relay_request *bt_relay_first_queued(const bt_relay *relay) { return relay->queue.first; }

/* Prompt tokens and pages as parts of what the ranks of either role take that are left; where there
 * is none, more than they took. */
static double part(const bt_relay *relay, double tokens, double pages)
{
    double window = 0, all = 0;

    for (uint32_t i = 0; i < relay->cfg.n_ranks; i++) {
        if (bt_relay_prefills(relay, i)) window += relay->cfg.prefill_window;
        if (bt_relay_decodes(relay, i)) all += relay->ranks[i].limits.n_pages;
    }
    return pages / (all > 0 ? all : 1) + tokens / (window > 0 ? window : 1);
}

/* Pages of the decode side and prompt tokens to do. */
double bt_relay_pressure(const bt_relay *relay)
{
    double taken = 0, tokens = (double)relay->queued_tokens;

    for (uint32_t i = 0; i < relay->cfg.n_ranks; i++) {
        if (bt_relay_decodes(relay, i)) taken += relay->ranks[i].taken_pages;
        tokens += (double)relay->ranks[i].prefill_tokens;
    }
    return part(relay, tokens, taken);
}

double bt_relay_pressure_of(const bt_relay *relay, uint32_t n_prompt, uint32_t n_keys,
                            const bt_page_key *keys)
{
    uint32_t most = (n_prompt - 1) / relay->cfg.page_tokens, held[2] = {0, 0};

    for (uint32_t i = 0; i < relay->cfg.n_ranks; i++) {
        uint32_t n =
            bt_prefix_index_match(&relay->ranks[i].index, most < n_keys ? most : n_keys, keys);

        if (bt_relay_prefills(relay, i) && n > held[0]) held[0] = n;
        if (bt_relay_decodes(relay, i) && n > held[1]) held[1] = n;
    }
    return part(relay, (double)n_prompt - (double)held[0] * relay->cfg.page_tokens,
                (double)bt_relay_pages(relay, n_prompt) - held[1]);
}

uint64_t bt_relay_new_pages(const bt_relay *relay)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < relay->cfg.n_ranks; i++)
        n += relay->ranks[i].index.n_new;
    return n;
}

void bt_relay_begin_turns(bt_relay *relay)
{
    for (uint32_t i = 0; i < relay->cfg.n_ranks; i++)
        relay->ranks[i].index.n_new = 0;
}

/* Requests as such: their lists and names, how they come into a relay, how they leave it for
 * another one. */
#include <string.h>
#include <xxhash.h>

#include "coordinator/relay_state.h"
#include "core/alloc.h"

/* ---- lists and names */

void bt_list_remove(bt_request_list *list, bt_request *q)
{
    if (list->near == q) list->near = q->prev != NULL ? q->prev : q->next;
    *(q->prev != NULL ? &q->prev->next : &list->first) = q->next;
    *(q->next != NULL ? &q->next->prev : &list->last)  = q->prev;
    q->prev = q->next = NULL;
}

void bt_list_insert(bt_request_list *list, bt_request *q)
{
    bt_request *at = list->last;

    if (at != NULL && list->first->arrived_ns > q->arrived_ns) {
        at = NULL;
    } else if (at != NULL && at->arrived_ns > q->arrived_ns) { /* first <= q < last */
        if (list->near != NULL) at = list->near;
        while (at->arrived_ns > q->arrived_ns)
            at = at->prev;
        while (at->next->arrived_ns <= q->arrived_ns)
            at = at->next;
        list->near = q;
    }
    q->prev                                            = at;
    q->next                                            = at != NULL ? at->next : list->first;
    *(q->prev != NULL ? &q->prev->next : &list->first) = q;
    *(q->next != NULL ? &q->next->prev : &list->last)  = q;
}

bt_request *bt_request_next(const bt_request *q) { return q->next; }

/* Two names with the same 64-bit key count as duplicates.  That does not happen by chance, and
 * whoever makes it happen gets a refusal. */
uint64_t bt_relay_name_key(const char *name)
{
    uint64_t key = XXH3_64bits(name, strlen(name));

    return key != 0 ? key : 1;
}

void bt_request_free(bt_request *q)
{
    for (uint32_t i = 0; q->choices != NULL && i < q->n_choices; i++) {
        bt_free(q->choices[i].out);
        bt_free(q->choices[i].early);
    }
    bt_free(q->choices);
    bt_free(q->name);
    bt_free(q->prompt);
    bt_free(q->keys);
    bt_free(q->form_map);
    bt_sampling_free(&q->sampling);
    bt_free(q);
}

/* ---- coming and going */

bt_status bt_request_create(bt_relay_request *request, void *client, uint64_t now_ns,
                            bt_request **q_out)
{
    bt_status   st = BT_OK;
    bt_request *q  = bt_calloc(1, sizeof(*q));

    BT_REQUIRE(q != NULL, BT_ERR_NO_MEMORY, "request");
    q->name = bt_strdup(request->name);
    BT_REQUIRE(q->name != NULL, BT_ERR_NO_MEMORY, "request name");
    q->n_choices = q->n_open = request->n_choices == 0 ? 1 : request->n_choices;
    q->choices               = bt_calloc(q->n_choices, sizeof(*q->choices));
    BT_REQUIRE(q->choices != NULL, BT_ERR_NO_MEMORY, "%u choices", q->n_choices);
    q->name_key     = bt_relay_name_key(request->name);
    q->client       = client;
    q->arrival      = request->arrival;
    q->n_prompt     = request->n_prompt;
    q->prompt       = request->prompt;
    q->sampling     = bt_sampling_take(&request->sampling);
    q->arrived_ns   = now_ns;
    request->prompt = NULL; /* ours now */
    *q_out          = q;
    q               = NULL; /* handed over */
out:
    if (q != NULL) bt_request_free(q);
    return st;
}

bt_status bt_relay_enter(bt_relay *relay, bt_request *q)
{
    bt_status st     = BT_OK;
    bool      named  = false;
    uint64_t  number = relay->next_number;

    /* A cached prefix has no logits: a request for prompt logprobs neither uses nor leaves one. */
    if (q->sampling.prompt_logprobs == 0)
        BT_TRY(bt_page_keys(relay->prefix_seed, relay->cfg.page_tokens, q->n_prompt, q->prompt,
                            &q->keys, &q->n_keys));
    BT_TRY(bt_table_put(&relay->names, q->name_key, q));
    named = true;
    BT_TRY(bt_table_put(&relay->numbers, number, q));
    relay->next_number++;
    q->number = number;
    if (q->arrival == 0) q->arrival = number;
    bt_list_insert(&relay->queue, q);
    relay->n_in[BT_QUEUED]++;
    relay->queued_tokens += q->n_prompt;
out:
    if (st != BT_OK) {
        if (named) bt_table_remove(&relay->names, q->name_key);
        bt_free(q->keys);
        q->keys   = NULL;
        q->n_keys = 0;
    }
    return st;
}

bt_status bt_relay_adopt(bt_relay *relay, bt_request *q, uint64_t now_ns)
{
    bt_status st = BT_OK;

    BT_TRY(bt_relay_enter(relay, q));
    q->heard_ns = now_ns;
    BT_INFO("request \"%.200s\" is queued again as %llu, after %u tokens", q->name,
            (unsigned long long)q->number, q->n_out);
    bt_relay_place(relay, now_ns);
out:
    return st;
}

/* What it was to this relay is forgotten; what it is to its client stays. */
static bt_request *take(bt_relay *r, bt_request_list *list, bt_request *q)
{
    bt_list_remove(list, q);
    bt_table_remove(&r->numbers, q->number);
    bt_table_remove(&r->names, q->name_key);
    if (list == &r->queue) r->queued_tokens -= q->n_prompt;
    bt_free(q->keys);
    q->keys   = NULL;
    q->n_keys = 0;
    q->n_held = 0;
    for (uint32_t i = 0; i < q->n_choices; i++)
        q->choices[i].n_early = 0; /* they will be said again */
    r->n_in[q->state]--;
    q->resumed = q->resumed || q->state != BT_QUEUED;
    q->state   = BT_QUEUED;

    q->decode_holds = q->prefill_holds = q->is_long = false;
    q->prefill_counts = q->decode_pages = q->prefill_pages = q->decode_choices = 0;
    return q;
}

bt_request *bt_relay_take_queued(bt_relay *relay)
{
    return relay->queue.first == NULL ? NULL : take(relay, &relay->queue, relay->queue.first);
}

bt_request *bt_relay_take_open(bt_relay *relay)
{
    bt_request *q;

    while ((q = relay->placed.first) != NULL) {
        if (q->state != BT_ENDED) return take(relay, &relay->placed, q);
        q->decode_holds = q->prefill_holds = false;
        bt_relay_settle(relay, q);
    }
    return bt_relay_take_queued(relay);
}

bool bt_relay_has_name(const bt_relay *relay, const char *name)
{
    return bt_table_get(&relay->names, bt_relay_name_key(name)) != NULL;
}

const bt_request *bt_relay_first_queued(const bt_relay *relay) { return relay->queue.first; }

/* Prompt tokens and pages as parts of what the cell can take. */
static double part(const bt_relay *relay, double tokens, double pages)
{
    uint32_t first   = bt_relay_both(relay) ? 0 : relay->cfg.n_prefill;
    uint32_t n_first = bt_relay_both(relay) ? relay->cfg.n_ranks : relay->cfg.n_prefill;
    double   all     = 0;

    for (uint32_t i = first; i < relay->cfg.n_ranks; i++)
        all += relay->ranks[i].limits.n_pages;
    return pages / all + tokens / ((double)n_first * relay->cfg.prefill_window);
}

/* Pages of the fullest side and prompt tokens to do. */
double bt_relay_pressure(const bt_relay *relay)
{
    uint32_t first   = bt_relay_both(relay) ? 0 : relay->cfg.n_prefill;
    uint32_t n_first = bt_relay_both(relay) ? relay->cfg.n_ranks : relay->cfg.n_prefill;
    double   taken = 0, tokens = (double)relay->queued_tokens;

    for (uint32_t i = first; i < relay->cfg.n_ranks; i++)
        taken += relay->ranks[i].taken_pages;
    for (uint32_t i = 0; i < n_first; i++)
        tokens += (double)relay->ranks[i].prefill_tokens;
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

void bt_request_return(bt_request *q, bt_relay_request *request)
{
    request->prompt   = q->prompt;
    request->sampling = bt_sampling_take(&q->sampling);
    q->prompt         = NULL;
    bt_request_free(q);
}

void bt_request_end(bt_request *q, const bt_relay_events *events, const bt_relay_end *end)
{
    events->end(events->ctx, q->client, end);
    bt_request_free(q);
}

const char     *bt_request_name(const bt_request *q) { return q->name; }
uint64_t        bt_request_name_key(const bt_request *q) { return q->name_key; }
const void     *bt_request_client(const bt_request *q) { return q->client; }
uint32_t        bt_request_prompt_tokens(const bt_request *q) { return q->n_prompt; }
const uint32_t *bt_request_prompt(const bt_request *q)
{
    return q->sampling.prompt_logprobs == 0 ? q->prompt : NULL;
}
uint32_t bt_request_max_tokens(const bt_request *q) { return q->sampling.max_tokens; }
uint32_t bt_request_n_open(const bt_request *q) { return q->n_open; }
uint64_t bt_request_arrived_ns(const bt_request *q) { return q->arrived_ns; }
bool     bt_request_resumed(const bt_request *q) { return q->resumed; }

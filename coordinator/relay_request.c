#include "coordinator/relay_request.h"

#include <string.h>
#include <xxhash.h>

#include "coordinator/relay_state.h"
#include "core/alloc.h"

bt_status bt_relay_request_create(bt_relay_submission *from, void *client, uint64_t now_ns,
                                  bt_relay_request **q_out)
{
    bt_status         st = BT_OK;
    bt_relay_request *q  = bt_calloc(1, sizeof(*q));

    BT_REQUIRE(q != NULL, BT_ERR_NO_MEMORY, "request");
    q->name = bt_strdup(from->name);
    BT_REQUIRE(q->name != NULL, BT_ERR_NO_MEMORY, "request name");
    if (from->cache_salt != NULL) {
        q->cache_salt = bt_strdup(from->cache_salt);
        BT_REQUIRE(q->cache_salt != NULL, BT_ERR_NO_MEMORY, "request salt");
    }
    q->n_choices = q->n_open = from->n_choices;
    q->choices               = bt_calloc(q->n_choices, sizeof(*q->choices));
    BT_REQUIRE(q->choices != NULL, BT_ERR_NO_MEMORY, "%u choices", q->n_choices);
    q->name_key   = bt_relay_name_key(from->name);
    q->client     = client;
    q->arrival    = from->arrival;
    q->n_prompt   = from->n_prompt;
    q->prompt     = from->prompt;
    q->sampling   = bt_sampling_take(&from->sampling);
    q->arrived_ns = now_ns;
    from->prompt  = NULL; /* ours now */
    *q_out        = q;
    q             = NULL; /* handed over */
out:
    bt_relay_request_destroy(q);
    return st;
}

void bt_relay_request_return(bt_relay_request *q, bt_relay_submission *to)
{
    to->prompt   = q->prompt;
    to->sampling = bt_sampling_take(&q->sampling);
    q->prompt    = NULL;
    bt_relay_request_destroy(q);
}

void bt_relay_request_destroy(bt_relay_request *q)
{
    if (q == NULL) return;
    for (uint32_t i = 0; q->choices != NULL && i < q->n_choices; i++) {
        bt_free(q->choices[i].out);
        bt_free(q->choices[i].early);
    }
    bt_free(q->choices);
    bt_free(q->name);
    bt_free(q->cache_salt);
    bt_free(q->prompt);
    bt_relay_forget_keys(q);
    bt_free(q->form_map);
    bt_free(q->held_pages);
    bt_sampling_free(&q->sampling);
    bt_free(q);
}

void bt_relay_request_disown(bt_relay_request *q)
{
    q->choices    = NULL;
    q->name       = NULL;
    q->cache_salt = NULL;
    q->prompt     = NULL;
    q->keys       = NULL;
    q->matches    = NULL;
    q->form_map   = NULL;
    q->sampling   = (bt_sampling){0};
    q->client     = NULL;
}

void bt_relay_request_unplace(bt_relay_request *q)
{
    q->held_pages = NULL;

    q->decode_holds = q->prefill_holds = q->is_long = false;
    q->prefill_counts = q->decode_pages = q->prefill_pages = q->decode_choices = 0;
}

/* Two names with the same 64-bit key count as duplicates.  That does not happen by chance, and
 * whoever makes it happen gets a refusal. */
uint64_t bt_relay_name_key(const char *name)
{
    uint64_t key = XXH3_64bits(name, strlen(name));

    return key != 0 ? key : 1;
}

void bt_relay_list_insert(bt_relay_list *list, bt_relay_request *q)
{
    bt_relay_request *at = list->last;

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

void bt_relay_list_remove(bt_relay_list *list, bt_relay_request *q)
{
    if (list->near == q) list->near = q->prev != NULL ? q->prev : q->next;
    *(q->prev != NULL ? &q->prev->next : &list->first) = q->next;
    *(q->next != NULL ? &q->next->prev : &list->last)  = q->prev;
    q->prev = q->next = NULL;
}

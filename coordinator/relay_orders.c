/* What the relay's orders say of a request. */
#include <string.h>

#include "coordinator/relay_state.h"
#include "core/alloc.h"

/* What an order takes along; NULL: of nothing, or when memory is short. */
static void *copy_of(const void *from, size_t bytes)
{
    return bytes == 0 ? NULL : bt_copy(from, bytes, 1);
}

/* For a decode rank whose choices, cache or drafts depend on it. */
static bt_status copy_prompt(const bt_relay *r, const bt_relay_request *q, uint32_t **prompt_out)
{
    bt_status st = BT_OK;

    if (!bt_sampling_needs_prompt(&q->sampling) && !r->cfg.share_generated && !r->cfg.speculates)
        goto out;
    *prompt_out = copy_of(q->prompt, q->n_prompt * sizeof(*q->prompt));
    BT_REQUIRE(*prompt_out != NULL, BT_ERR_NO_MEMORY, "a prompt of %u tokens", q->n_prompt);
out:
    return st;
}

/* How the prompt was computed before, if it was. */
static bt_status copy_map(const bt_relay_request *q, void **map_out, size_t *n_out)
{
    bt_status st = BT_OK;

    if (q->form_map == NULL || q->n_out == 0) goto out;
    *map_out = copy_of(q->form_map, q->n_form_map_bytes);
    BT_REQUIRE(*map_out != NULL, BT_ERR_NO_MEMORY, "form map");
    *n_out = q->n_form_map_bytes;
out:
    return st;
}

/* The open choices; none for a request of one. */
static bt_status copy_choices(const bt_relay_request *q, uint32_t **choices_out, uint32_t *n_out)
{
    bt_status st = BT_OK;
    uint32_t *choices, n = 0;

    if (q->n_choices == 1) goto out;
    choices = bt_calloc(q->n_open, sizeof(*choices));
    BT_REQUIRE(choices != NULL, BT_ERR_NO_MEMORY, "%u choices", q->n_open);
    for (uint32_t i = 0; i < q->n_choices; i++)
        if (!q->choices[i].ended) choices[n++] = i;
    *choices_out = choices;
    *n_out       = n;
out:
    return st;
}

/* What the client has of the open choices. */
static bt_status copy_replay(const bt_relay_request *q, bt_down_reserve *m)
{
    bt_status st = BT_OK;
    uint32_t  n = 0, k = 0;

    if (q->n_out == 0) goto out;
    m->replay         = bt_calloc(q->n_out, sizeof(*m->replay));
    m->replay_lengths = m->n_choices == 0 ? NULL : bt_calloc(m->n_choices, sizeof(uint32_t));
    BT_REQUIRE(m->replay != NULL && (m->replay_lengths != NULL || m->n_choices == 0),
               BT_ERR_NO_MEMORY, "%u tokens to replay", q->n_out);
    for (uint32_t i = 0; i < q->n_choices; i++) {
        const bt_relay_request_choice *c = &q->choices[i];

        if (c->ended) continue;
        if (c->n_out > 0) memcpy(m->replay + n, c->out, c->n_out * sizeof(*c->out));
        if (m->replay_lengths != NULL) m->replay_lengths[k++] = c->n_out;
        n += c->n_out;
    }
    m->n_replay = n;
out:
    return st;
}

bt_status bt_relay_fill_reserve(const bt_relay *r, const bt_relay_request *q, bt_down_reserve *m)
{
    bt_status st   = BT_OK;
    size_t    keys = q->n_keys * sizeof(*q->keys);

    m->request            = q->number;
    m->epoch              = q->epoch;
    m->n_prompt           = q->n_prompt;
    m->prefill_rank       = q->prefill_rank;
    m->arrival            = q->arrival;
    m->prefix_seed        = r->cfg.share_generated ? q->prefix_seed : 0;
    m->prefix_keys        = copy_of(q->keys, keys);
    m->n_prefix_key_bytes = m->prefix_keys != NULL ? keys : 0;
    BT_TRY(copy_choices(q, &m->choices, &m->n_choices));
    BT_TRY(copy_replay(q, m));
    BT_TRY(bt_sampling_copy(&q->sampling, &m->sampling));
    BT_TRY(copy_prompt(r, q, &m->prompt));
    BT_TRY(copy_map(q, &m->form_map, &m->n_form_map_bytes));
out:
    return st;
}

bt_status bt_relay_fill_prefill(const bt_relay_request *q, bt_down_prefill *m)
{
    bt_status st   = BT_OK;
    size_t    keys = q->n_keys * sizeof(*q->keys);

    m->request            = q->number;
    m->epoch              = q->epoch;
    m->n_prompt           = q->n_prompt;
    m->decode_rank        = q->decode_rank;
    m->arrival            = q->arrival;
    m->prompt             = copy_of(q->prompt, q->n_prompt * sizeof(*q->prompt));
    m->prefix_keys        = copy_of(q->keys, keys);
    m->n_prefix_key_bytes = m->prefix_keys != NULL ? keys : 0;
    BT_REQUIRE(m->prompt != NULL, BT_ERR_NO_MEMORY, "a prompt of %u tokens", q->n_prompt);
    BT_TRY(bt_sampling_copy(&q->sampling, &m->sampling));
    BT_TRY(copy_choices(q, &m->choices, &m->n_choices));
    BT_TRY(copy_map(q, &m->form_map, &m->n_form_map_bytes));
out:
    return st;
}

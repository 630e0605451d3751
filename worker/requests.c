#include "worker/requests.h"

#include <string.h>

#include "core/alloc.h"
#include "proto/prefix_key.h"

static bt_status check_ids(const bt_rank_facts *f, const char *what, uint32_t n,
                           const uint32_t *ids)
{
    bt_status st = BT_OK;

    for (uint32_t i = 0; i < n; i++)
        BT_REQUIRE(ids[i] < f->model->vocab_size, BT_ERR_INVALID_ARG,
                   "token %u of the %s is %u, the vocabulary has %u", i, what, ids[i],
                   f->model->vocab_size);
out:
    return st;
}

/* A message's keys of full pages; those beyond the prompt's full pages do not count. */
static bt_status read_keys(bt_request *r, const void *bytes, size_t n_bytes)
{
    bt_status st   = BT_OK;
    uint32_t  full = r->n_prompt / BT_PAGE_TOKENS;

    BT_REQUIRE(!r->eval || n_bytes == 0, BT_ERR_INVALID_ARG,
               "an evaluation brings %zu bytes of prefix keys: it computes every row", n_bytes);
    if (n_bytes / sizeof(*r->keys) < full) full = (uint32_t)(n_bytes / sizeof(*r->keys));
    if (full == 0) return BT_OK;
    r->keys = bt_copy(bytes, full, sizeof(*r->keys));
    BT_REQUIRE(r->keys != NULL, BT_ERR_NO_MEMORY, "keys of %u pages", full);
    r->n_keys = full;
out:
    return st;
}

static bt_status check_common(const bt_rank_facts *f, uint32_t n_prompt, bool eval,
                              const bt_sampling *s)
{
    bt_status st = BT_OK;

    BT_REQUIRE(n_prompt >= 1 && n_prompt <= f->model->max_context, BT_ERR_INVALID_ARG,
               "the prompt has %u tokens, the model takes 1 to %u", n_prompt,
               f->model->max_context);
    BT_TRY(check_ids(f, "stop tokens", s->n_stop, s->stop_tokens));
    BT_TRY(check_ids(f, "logit bias", s->n_bias, s->bias_ids));
    BT_REQUIRE(eval || (s->temperature >= 0 && s->temperature <= 1e6f), BT_ERR_INVALID_ARG,
               "temperature %.9g is not between 0 and 1e6", (double)s->temperature);
    BT_REQUIRE(eval || s->max_tokens >= 1, BT_ERR_INVALID_ARG,
               "max_tokens is 0, expected at least 1");
out:
    return st;
}

/* One position's experts, i32 to u16, ascending. */
static bt_status read_experts(const bt_gate_config *gate, const int32_t *from, uint16_t *to)
{
    bt_status st = BT_OK;

    for (uint32_t i = 0; i < gate->top_k; i++) {
        uint32_t at = i;

        BT_REQUIRE((uint32_t)from[i] < gate->n_experts, BT_ERR_INVALID_ARG,
                   "forced expert %d, the model has %u", from[i], gate->n_experts);
        for (; at > 0 && to[at - 1] > from[i]; at--)
            to[at] = to[at - 1];
        BT_REQUIRE(at == 0 || to[at - 1] != from[i], BT_ERR_INVALID_ARG,
                   "forced expert %d stands twice in one position", from[i]);
        to[at] = (uint16_t)from[i];
    }
out:
    return st;
}

/* i32 [n_moe_layers][positions][top_k] of a message into r->forced.  n_least..n_most positions. */
static bt_status read_forced(const bt_rank_facts *f, bt_request *r, const void *bytes, size_t n,
                             uint32_t n_least, uint32_t n_most)
{
    bt_status             st   = BT_OK;
    const bt_gate_config *gate = &f->model->moe.gate;
    size_t                rows = bt_model_n_moe_layers(f->model);
    size_t                each = rows * gate->top_k * sizeof(int32_t);
    int32_t               position[BT_MAX_TOP_K];

    if (n == 0) return BT_OK;
    BT_REQUIRE(
        each != 0 && n % each == 0 && n / each >= n_least && n / each <= n_most, BT_ERR_INVALID_ARG,
        "forced experts are %zu bytes, expected %zu (%zu MoE layers of %u experts) for each of "
        "%u positions",
        n, each, rows, gate->top_k, n_least);
    r->n_forced = (uint32_t)(n / each);
    rows *= r->n_forced;
    r->forced = bt_calloc(rows * gate->top_k, sizeof(*r->forced));
    BT_REQUIRE(r->forced != NULL, BT_ERR_NO_MEMORY, "forced experts of %u positions", r->n_forced);
    for (size_t i = 0; i < rows; i++) {
        memcpy(position, (const uint8_t *)bytes + i * gate->top_k * sizeof(int32_t),
               gate->top_k * sizeof(int32_t));
        BT_TRY(read_experts(gate, position, r->forced + i * gate->top_k));
    }
out:
    return st;
}

/* The prompt's part of the history, where the sampling asks for it. */
static bt_status read_history(const bt_rank_facts *f, const bt_sampling *s, uint32_t n_prompt,
                              const uint32_t *prompt, bt_request *r)
{
    bt_status st = BT_OK;

    if (!bt_sampling_needs_prompt(s)) goto out;
    BT_REQUIRE(prompt != NULL, BT_ERR_INVALID_ARG,
               "a repetition penalty of %g without the prompt's tokens",
               (double)s->repetition_penalty);
    BT_TRY(check_ids(f, "prompt", n_prompt, prompt));
    for (uint32_t i = 0; i < n_prompt; i++)
        BT_TRY(bt_history_add(&r->history, prompt[i], true));
out:
    return st;
}

static bt_status read_constraint(const bt_rank_facts *f, const bt_sampling *s, bt_request *r)
{
    bt_status st = BT_OK;

    if (s->constraint_kind == 0 || r->eval) return BT_OK;
    BT_TRY(bt_constraint_acquire(f->constraints, s, &r->constraint));
    r->constraint_at = bt_constraint_begin(r->constraint, s);
out:
    return st;
}

/* Takes the order's, but for the constraint's text, which is in the constraint: choices would copy
 * it. */
static bt_sampling take_sampling(bt_sampling *from)
{
    bt_sampling taken = bt_sampling_take(from);

    bt_free(taken.constraint);
    taken.constraint         = NULL;
    taken.n_constraint_bytes = 0;
    return taken;
}

/* What drafts are made of: the prompt, where the order has it. */
static bt_status read_drafter(const bt_rank_facts *f, const bt_down_reserve *m, bt_request *r)
{
    bt_status st = BT_OK;

    /* Penalties depend on the tokens before, which in a draft are not known to be right. */
    if (m->eval || bt_sampling_counts_tokens(&m->sampling)) goto out;
    r->drafts   = f->mtp != 0 || f->speculate != 0;
    r->looks_up = f->speculate != 0;
    if (!r->looks_up || m->prompt == NULL) goto out;
    BT_TRY(check_ids(f, "prompt", m->n_prompt, m->prompt));
    BT_TRY(bt_drafter_add(&r->drafter, m->n_prompt, m->prompt));
out:
    return st;
}

static bt_status count(bt_request *r, uint32_t id)
{
    bt_status st = BT_OK;

    if (r->looks_up) BT_TRY(bt_drafter_add(&r->drafter, 1, &id));
    if (bt_sampling_counts_tokens(&r->sampling)) BT_TRY(bt_history_add(&r->history, id, false));
out:
    return st;
}

static bt_status follow(bt_request *r, uint32_t id)
{
    if (r->constraint == NULL) return BT_OK;
    return bt_constraint_check(
        bt_constraint_next(r->constraint, &r->constraint_at, id, &r->constraint_at));
}

bt_status bt_request_note(bt_request *r, uint32_t id)
{
    bt_status st = BT_OK;

    BT_TRY(count(r, id));
    BT_TRY(follow(r, id));
out:
    return st;
}

bt_status bt_request_recall(bt_request *r, uint32_t id)
{
    if (r->constraint != NULL) r->n_behind++;
    return count(r, id);
}

bt_status bt_request_follow(bt_request *r)
{
    bt_status st = BT_OK;

    BT_TRY(follow(r, r->replay[r->n_replay - r->n_behind]));
    r->n_behind--;
out:
    return st;
}

/* The form map of the order: how the tokens were, or must be, computed. */
static bt_status read_map(const bt_rank_facts *f, bt_request *r, const void *bytes, size_t n_bytes)
{
    bt_status st = BT_OK;

    BT_REQUIRE(n_bytes == 0 || (f->keeps_maps && !r->eval), BT_ERR_INVALID_ARG,
               "a form map of %zu bytes, this rank keeps none (--form cost, --share-generated)",
               n_bytes);
    if (f->keeps_maps && !r->eval) BT_TRY(bt_form_map_init(&r->map, r->n_prompt, bytes, n_bytes));
out:
    return st;
}

/* What is needed to name pages of generated tokens: the beginning of the first such page. */
static bt_status read_tail(const bt_rank_facts *f, const bt_down_reserve *m, bt_request *r)
{
    bt_status st    = BT_OK;
    uint32_t  first = m->n_prompt / BT_PAGE_TOKENS * BT_PAGE_TOKENS;
    uint64_t  key[2];

    if (!f->share_generated || m->eval || m->prefix_seed == 0) goto out;
    BT_REQUIRE(m->prompt != NULL, BT_ERR_INVALID_ARG,
               "generated pages are to be shared, but the prompt's tokens are not here");
    BT_TRY(check_ids(f, "prompt", m->n_prompt, m->prompt));
    bt_prefix_key_begin(m->prefix_seed, key);
    r->last_key    = (bt_prefix_key){key[0], key[1]};
    r->prefix_seed = m->prefix_seed;
    for (uint32_t t = first; t < m->n_prompt; t++)
        r->tail[t - first] = m->prompt[t];
out:
    return st;
}

/* The open choices, and room for their first tokens; takes *choices. */
static bt_status read_choices(bt_request *r, uint32_t n, uint32_t **choices)
{
    bt_status st = BT_OK;

    r->n_choices = n == 0 ? 1 : n;
    r->choices   = *choices;
    *choices     = NULL;
    if (n == 0) r->choices = bt_calloc(1, sizeof(*r->choices));
    r->firsts = bt_calloc(r->n_choices, sizeof(*r->firsts));
    BT_REQUIRE(r->choices != NULL && r->firsts != NULL, BT_ERR_NO_MEMORY, "%u choices",
               r->n_choices);
out:
    return st;
}

static bt_status check_replay(const bt_rank_facts *f, const bt_down_reserve *m)
{
    bt_status st = BT_OK;

    BT_REQUIRE(!m->eval || (m->n_choices <= 1 && m->n_replay == 0), BT_ERR_INVALID_ARG,
               "an evaluation of %u choices with %u tokens to replay", m->n_choices, m->n_replay);
    for (uint32_t i = 0; i < (m->n_choices == 0 ? 1 : m->n_choices); i++) {
        uint32_t n = m->replay_lengths != NULL ? m->replay_lengths[i] : m->n_replay;

        BT_REQUIRE(n == 0 || n < m->sampling.max_tokens, BT_ERR_INVALID_ARG,
                   "%u tokens to replay of a request for %u", n, m->sampling.max_tokens);
    }
    BT_TRY(check_ids(f, "replay", m->n_replay, m->replay));
out:
    return st;
}

static bt_status check_reserve(const bt_rank_facts *f, const bt_down_reserve *m, uint64_t n_all)
{
    bt_status st        = BT_OK;
    uint32_t  n_choices = m->n_choices == 0 ? 1 : m->n_choices;
    uint64_t  pages, full = m->n_prompt / BT_PAGE_TOKENS; /* those that the choices share */

    BT_REQUIRE(m->request != 0 && bt_rank_decodes(f), BT_ERR_INVALID_ARG,
               "rank %u of %u prefill and %u decode ranks is asked to reserve for request %llu",
               f->rank, f->n_prefill, f->n_decode, (unsigned long long)m->request);
    BT_REQUIRE(bt_rank_sits(f, BT_GROUP_PREFILL, m->prefill_rank), BT_ERR_INVALID_ARG,
               "rank %u does not prefill", m->prefill_rank);
    BT_TRY(check_common(f, m->n_prompt, m->eval, &m->sampling));
    BT_REQUIRE(n_all <= f->model->max_context, BT_ERR_INVALID_ARG,
               "%u prompt tokens and %llu more exceed the model's context of %u", m->n_prompt,
               (unsigned long long)(n_all - m->n_prompt), f->model->max_context);
    pages = full + n_choices * (bt_kv_pages_for((uint32_t)n_all) - full);
    BT_REQUIRE(pages <= f->n_pages, BT_ERR_INVALID_ARG,
               "%u choices of %llu tokens need %llu pages, rank %u has %u in all (--kv-bytes)",
               n_choices, (unsigned long long)n_all, (unsigned long long)pages, f->rank,
               f->n_pages);
    BT_TRY(check_ids(f, "continuation", m->eval ? m->n_eval : 0, m->eval_tokens));
    BT_TRY(check_replay(f, m));
out:
    return st;
}

bt_status bt_request_from_reserve(const bt_rank_facts *f, bt_down_reserve *m,
                                  bt_request **request_out)
{
    bt_status   st  = BT_OK;
    bt_request *r   = NULL;
    uint64_t    all = (uint64_t)m->n_prompt + (m->eval ? m->n_eval : m->sampling.max_tokens);

    BT_TRY(check_reserve(f, m, all));
    r = bt_calloc(1, sizeof(*r));
    BT_REQUIRE(r != NULL, BT_ERR_NO_MEMORY, "request");
    r->n_prompt = m->n_prompt;
    r->eval     = m->eval;
    BT_TRY(read_keys(r, m->prefix_keys, m->n_prefix_key_bytes));
    if (m->eval)
        BT_TRY(read_forced(f, r, m->eval_experts, m->n_eval_expert_bytes, (uint32_t)all,
                           (uint32_t)all));
    if (!m->eval) BT_TRY(read_history(f, &m->sampling, m->n_prompt, m->prompt, r));
    BT_TRY(read_constraint(f, &m->sampling, r));
    BT_TRY(read_map(f, r, m->form_map, m->n_form_map_bytes));
    BT_TRY(read_tail(f, m, r));
    BT_TRY(read_drafter(f, m, r));
    BT_TRY(read_choices(r, m->n_choices, &m->choices));
    r->id              = m->request;
    r->epoch           = m->epoch;
    r->state           = BT_REQUEST_RESERVED;
    r->peer            = m->prefill_rank;
    r->arrival         = m->arrival;
    r->n_replay        = m->replay_lengths != NULL ? m->replay_lengths[0] : m->n_replay;
    r->replay          = m->replay; /* the others copy theirs from behind its own */
    m->replay          = NULL;
    r->n_eval          = m->eval ? m->n_eval : 0;
    r->sampling        = take_sampling(&m->sampling);
    r->eval_tokens     = m->eval_tokens;
    m->eval_tokens     = NULL;
    r->sampling.choice = r->choices[0];
    *request_out       = r;
    r                  = NULL;
out:
    bt_request_destroy(r);
    return st;
}

static bt_status check_prefill(const bt_rank_facts *f, const bt_down_prefill *m)
{
    bt_status st = BT_OK;

    BT_REQUIRE(m->request != 0 && bt_rank_prefills(f), BT_ERR_INVALID_ARG,
               "rank %u of %u prefill and %u decode ranks is asked to prefill request %llu",
               f->rank, f->n_prefill, f->n_decode, (unsigned long long)m->request);
    BT_REQUIRE(bt_rank_has_both(f) ? m->decode_rank == f->rank
                                   : bt_rank_sits(f, BT_GROUP_DECODE, m->decode_rank),
               BT_ERR_INVALID_ARG, "rank %u cannot decode what rank %u prefills", m->decode_rank,
               f->rank);
    BT_TRY(check_common(f, m->n_prompt, m->eval, &m->sampling));
    BT_TRY(check_ids(f, "prompt", m->n_prompt, m->prompt));
    BT_REQUIRE(m->n_pages >= bt_kv_pages_for(m->n_prompt), BT_ERR_INVALID_ARG,
               "a ticket of %u pages for a prompt of %u tokens, which needs %u", m->n_pages,
               m->n_prompt, bt_kv_pages_for(m->n_prompt));
out:
    return st;
}

bt_status bt_request_from_prefill(const bt_rank_facts *f, bt_down_prefill *m,
                                  bt_request **request_out)
{
    bt_status   st = BT_OK;
    bt_request *r  = NULL;

    BT_TRY(check_prefill(f, m));
    BT_REQUIRE(bt_kv_pages_for(m->n_prompt) <= f->n_pages, BT_ERR_INVALID_ARG,
               "a prompt of %u tokens needs %u pages, rank %u has %u in all (--kv-bytes)",
               m->n_prompt, bt_kv_pages_for(m->n_prompt), f->rank, f->n_pages);
    BT_REQUIRE(m->held % BT_PAGE_TOKENS == 0 && m->held < m->n_prompt, BT_ERR_INVALID_ARG,
               "a ticket that holds %u of %u prompt tokens: expected whole pages and fewer",
               m->held, m->n_prompt);
    r = bt_calloc(1, sizeof(*r));
    BT_REQUIRE(r != NULL, BT_ERR_NO_MEMORY, "request");
    r->n_prompt = m->n_prompt;
    r->eval     = m->eval;
    BT_TRY(read_keys(r, m->prefix_keys, m->n_prefix_key_bytes));
    if (m->eval)
        BT_TRY(read_forced(f, r, m->eval_experts, m->n_eval_expert_bytes, m->n_prompt, UINT32_MAX));
    if (!m->eval) BT_TRY(read_history(f, &m->sampling, m->n_prompt, m->prompt, r));
    BT_TRY(read_constraint(f, &m->sampling, r));
    BT_TRY(read_map(f, r, m->form_map, m->n_form_map_bytes));
    BT_TRY(read_choices(r, m->n_choices, &m->choices));
    BT_TRY(bt_handoff_out_init(
        &r->out, bt_model_n_served_layers(f->model), m->held, m->n_pages, m->pages,
        &(bt_handoff_tail){r->n_choices, r->firsts, r->map.pages, bt_form_map_bytes(&r->map), 0}));
    r->id        = m->request;
    r->epoch     = m->epoch;
    r->state     = BT_REQUEST_QUEUED;
    r->arrival   = m->arrival;
    r->prompt    = m->prompt;
    r->peer      = m->decode_rank;
    r->sampling  = take_sampling(&m->sampling);
    m->prompt    = NULL;
    *request_out = r;
    r            = NULL;
out:
    bt_request_destroy(r);
    return st;
}

bt_status bt_request_add_choice(const bt_request *first, uint32_t choice, uint32_t n_replay,
                                const uint32_t *replay, bt_request **request_out)
{
    bt_status   st = BT_OK;
    bt_request *r  = bt_calloc(1, sizeof(*r));

    BT_REQUIRE(r != NULL, BT_ERR_NO_MEMORY, "choice %u", choice);
    r->id          = first->id;
    r->epoch       = first->epoch;
    r->state       = BT_REQUEST_WAITING;
    r->n_prompt    = first->n_prompt;
    r->peer        = first->peer;
    r->arrival     = first->arrival;
    r->prefix_seed = first->prefix_seed;
    BT_TRY(bt_sampling_copy(&first->sampling, &r->sampling));
    r->sampling.choice = choice;
    BT_TRY(bt_history_copy(&first->history, &r->history));
    bt_constraint_share(first->constraint);
    r->constraint    = first->constraint;
    r->constraint_at = first->constraint_at;
    r->drafts        = first->drafts;
    r->looks_up      = first->looks_up;
    BT_TRY(bt_drafter_copy(&first->drafter, &r->drafter));
    if (n_replay > 0) {
        r->replay = bt_copy(replay, n_replay, sizeof(*r->replay));
        BT_REQUIRE(r->replay != NULL, BT_ERR_NO_MEMORY, "%u tokens to replay", n_replay);
        r->n_replay = n_replay;
    }
    *request_out = r;
    r            = NULL;
out:
    bt_request_destroy(r);
    return st;
}

bt_status bt_request_add_prompt(const bt_rank_facts *f, bt_request *r, const bt_kv_pool *pool,
                                bt_down_prefill *m)
{
    bt_status st = BT_OK;

    BT_TRY(check_prefill(f, m));
    BT_REQUIRE(r->state == BT_REQUEST_RESERVED && m->n_prompt == r->n_prompt && m->eval == r->eval,
               BT_ERR_INVALID_ARG,
               "an order to prefill %u tokens, the reservation was for %u and is in state %d",
               m->n_prompt, r->n_prompt, (int)r->state);
    for (uint32_t i = 0; i < m->n_pages; i++)
        BT_REQUIRE(i < r->n_pages && m->pages[i].id == r->pages[i] &&
                       m->pages[i].generation == bt_kv_pool_generation(pool, r->pages[i]),
                   BT_ERR_INVALID_ARG, "page %u of the order is not that of the ticket", i);
    r->prompt = m->prompt;
    m->prompt = NULL;
    r->state  = BT_REQUEST_PREFILL;
out:
    return st;
}

void bt_request_destroy(bt_request *r)
{
    if (r == NULL) return;
    BT_ASSERT(r->n_pages == 0);
    bt_handoff_out_fini(&r->out);
    bt_handoff_in_fini(&r->in);
    bt_sampling_free(&r->sampling);
    bt_constraint_release(r->constraint);
    bt_history_fini(&r->history);
    bt_drafter_fini(&r->drafter);
    bt_form_map_fini(&r->map);
    bt_free(r->prompt);
    bt_free(r->eval_tokens);
    bt_free(r->forced);
    bt_free(r->keys);
    bt_free(r->replay);
    bt_free(r->choices);
    bt_free(r->firsts);
    bt_free(r);
}

bt_finish bt_request_finish(const bt_model_config *model, const bt_request *r, uint32_t position,
                            uint32_t id)
{
    for (uint32_t i = 0; i < model->n_eos && !r->sampling.ignore_eos; i++)
        if (model->eos_tokens[i] == id) return BT_FINISH_EOS;
    if (bt_sampling_stops_at(&r->sampling, id)) return BT_FINISH_STOP_TOKEN;
    if (position + 1 - r->n_prompt >= r->sampling.max_tokens) return BT_FINISH_LENGTH;
    return BT_FINISH_NONE;
}

void bt_requests_fini(bt_requests *t)
{
    BT_ASSERT(t->n == 0);
    bt_free(t->at);
    *t = (bt_requests){0};
}

bt_status bt_requests_add(bt_requests *t, bt_request *r)
{
    bt_status st = BT_OK;
    uint32_t  i  = t->n;

    if (t->n == t->capacity) {
        uint32_t     capacity = t->capacity == 0 ? 64 : 2 * t->capacity;
        bt_request **at       = bt_realloc(t->at, capacity, sizeof(*at));

        BT_REQUIRE(at != NULL, BT_ERR_NO_MEMORY, "table of %u requests", capacity);
        t->at       = at;
        t->capacity = capacity;
    }
    while (i > 0 && t->at[i - 1]->arrival > r->arrival)
        i--;
    memmove(t->at + i + 1, t->at + i, (t->n - i) * sizeof(*t->at));
    t->at[i] = r;
    t->n++;
out:
    return st;
}

bt_request *bt_requests_find(const bt_requests *t, uint64_t id)
{
    for (uint32_t i = 0; i < t->n; i++)
        if (t->at[i]->id == id) return t->at[i];
    return NULL;
}

uint32_t bt_requests_count(const bt_requests *t, uint64_t id)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < t->n; i++)
        n += t->at[i]->id == id;
    return n;
}

void bt_requests_remove(bt_requests *t, bt_request *r)
{
    uint32_t i = 0;

    while (t->at[i] != r)
        i++;
    memmove(t->at + i, t->at + i + 1, (t->n - i - 1) * sizeof(*t->at));
    t->n--;
}

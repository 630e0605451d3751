/* The tokens of a request: each once and in order to its client, whichever rank says them. */
#include "coordinator/relay_state.h"
#include "core/alloc.h"
#include "core/log.h"

/* Remembers a token for a replay. */
static bool keep_out(bt_relay_request_choice *c, uint32_t id)
{
    if (c->n_out == c->out_capacity) {
        uint32_t  capacity = c->out_capacity == 0 ? 64 : 2 * c->out_capacity;
        uint32_t *grown    = bt_realloc(c->out, capacity, sizeof(*grown));

        if (grown == NULL) return false;
        c->out          = grown;
        c->out_capacity = capacity;
    }
    c->out[c->n_out++] = id;
    return true;
}

/* A choice has had its last token; with the last choice the request ends. */
static void end_choice(bt_relay *r, bt_relay_request *q, const bt_token *t, bt_finish finish)
{
    bt_relay_end end = {.code = GRPC_STATUS_OK, .finish = finish, .message = ""};

    bt_relay_learn(r, q, t->choice);
    q->choices[t->choice].ended = true;
    q->n_open--;
    if (q->n_open == 0)
        bt_relay_finish(r, q, &end);
    else if (finish != t->finish && q->decode_holds) /* the rank does not know */
        bt_relay_send_abort(r, q, q->decode_rank, 1 + t->choice);
}

static void accept_token(bt_relay *r, bt_relay_request *q, const bt_token *t)
{
    bt_relay_request_choice *c = &q->choices[t->choice];
    bt_finish                finish;

    if (!keep_out(c, t->id)) {
        bt_relay_end_no_memory(r, q);
        return;
    }
    q->n_out++;
    r->tokens_out++;
    finish = r->events.client.token(q->client, t);
    if (finish != BT_FINISH_NONE) end_choice(r, q, t, finish);
    if (finish != BT_FINISH_NONE || (q->n_prompt + c->n_out) % r->cfg.page_tokens == 0)
        bt_relay_grew(r, q);
}

/* Where only the prefill rank says the first token, and is late with it, the decode rank goes on:
 * its tokens are kept until then.  Nothing else can be missing, since a rank's tokens come in
 * order: a rank that leaves one out has failed the request. */
static void keep_early(bt_relay *r, bt_relay_request *q, uint32_t rank, const bt_token *t)
{
    bt_relay_request_choice *c    = &q->choices[t->choice];
    uint32_t                 next = q->n_prompt + (c->n_out == 0 ? 1 + c->n_early : c->n_out);

    if (t->position < next) return; /* again */
    if (t->position > next) {
        bt_relay_end_request(r, q, GRPC_STATUS_INTERNAL,
                             "token %u of choice %u is missing, but rank %u goes on with token %u",
                             next, t->choice, rank, t->position);
        return;
    }
    if (c->n_early == c->early_capacity) {
        uint32_t  capacity = c->early_capacity == 0 ? 16 : 2 * c->early_capacity;
        bt_token *grown    = bt_realloc(c->early, capacity, sizeof(*grown));

        if (grown == NULL) {
            bt_relay_end_no_memory(r, q);
            return;
        }
        c->early          = grown;
        c->early_capacity = capacity;
    }
    c->early[c->n_early++] = *t;
}

/* The kept token whose turn has come. */
static bool take_early(const bt_relay_request_choice *c, bt_token *t_out)
{
    if (c->n_out > c->n_early) return false;
    *t_out = c->early[c->n_out - 1];
    return true;
}

static void forget_early(bt_relay_request_choice *c)
{
    bt_free(c->early);
    c->early   = NULL;
    c->n_early = c->early_capacity = 0;
}

void bt_relay_forget_early(bt_relay_request *q)
{
    for (uint32_t i = 0; i < q->n_choices; i++)
        forget_early(&q->choices[i]);
}

/* The first token comes after all logprobs of the prompt. */
static bool prompt_is_complete(const bt_relay_request *q)
{
    return q->sampling.prompt_logprobs == 0 || q->n_prompt_logprobs + 1 >= q->n_prompt;
}

bool bt_relay_has_ids(const bt_relay *r, size_t n, const uint32_t *ids)
{
    for (size_t i = 0; i < n; i++)
        if (ids[i] >= r->cfg.vocab_size) return false;
    return true;
}

static bool token_is_sound(const bt_relay *r, const bt_relay_request *q, const bt_token *t)
{
    uint32_t                       n = t->position - q->n_prompt; /* wraps when it lies before */
    const bt_relay_request_choice *c = &q->choices[t->choice < q->n_choices ? t->choice : 0];

    return t->choice < q->n_choices && t->position >= q->n_prompt && n < q->sampling.max_tokens &&
           t->id < r->cfg.vocab_size && t->cached <= q->n_prompt &&
           bt_relay_has_ids(r, t->n_top, t->top_ids) &&
           (t->finish != BT_FINISH_NONE || n + 1 < q->sampling.max_tokens) &&
           (n > 0 || prompt_is_complete(q)) && !(n == 0 && c->n_out > 0 && t->id != c->out[0]);
}

/* Gives the client the token, and those after it that are here already. */
static void accept_from(bt_relay *r, bt_relay_request *q, const bt_token *t)
{
    bt_relay_request_choice *c    = &q->choices[t->choice];
    bt_token                 next = *t;

    do
        accept_token(r, q, &next);
    while (q->state != BT_ENDED && !c->ended && take_early(c, &next));
    forget_early(c);
}

void bt_relay_token(bt_relay *r, uint32_t rank, const bt_token *t, uint64_t now_ns)
{
    bt_relay_request        *q = bt_table_get(&r->numbers, t->request);
    bt_relay_request_choice *c;

    if (q == NULL || q->state == BT_ENDED || t->epoch != q->epoch) return;
    if (!bt_relay_runs(q) || (rank != q->decode_rank && rank != q->prefill_rank)) {
        BT_WARN("rank %u sends a token of request %llu, which it does not have", rank,
                (unsigned long long)t->request);
        return;
    }
    r->moved_ns = q->heard_ns = now_ns;
    if (!token_is_sound(r, q, t)) {
        bt_relay_end_request(r, q, GRPC_STATUS_INTERNAL,
                             "rank %u sent token %u of choice %u at position %u (finish %d, %u "
                             "cached) for a request of %u choices and %u + %u tokens that has %u "
                             "and %u logprobs of its prompt, with a vocabulary of %u",
                             rank, t->id, t->choice, t->position, (int)t->finish, t->cached,
                             q->n_choices, q->n_prompt, q->sampling.max_tokens, q->n_out,
                             q->n_prompt_logprobs, r->cfg.vocab_size);
        return;
    }
    if (q->state == BT_PREFILL) { /* whatever comes first, the prompt is done */
        bt_relay_turn(r, q, BT_DECODE);
        bt_relay_prompt_done(r, q);
    }
    c = &q->choices[t->choice];
    if (c->ended || t->position < q->n_prompt + c->n_out)
        return; /* the first token by the other rank or again; or past its end */
    if (t->position > q->n_prompt + c->n_out) {
        keep_early(r, q, rank, t);
        return;
    }
    accept_from(r, q, t);
    if (bt_table_get(&r->numbers, t->request) == q) bt_relay_settle(r, q);
}

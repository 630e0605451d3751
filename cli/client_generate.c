/* Generate: what is asked, and the messages that answer it. */
#include <math.h>
#include <stdio.h>
#include <unistd.h>

#include "cli/client_call.h"
#include "core/alloc.h"
#include "core/clock.h"

typedef struct {
    const bt_client_request *request;
    bt_client_tokens_fn      on_tokens;
    void                    *ctx;
    bt_client_result         result;
    uint64_t                 start_ns;
    uint32_t                 n_complete, n_tokens[BT_CLIENT_CHOICES];
    bool                     has_prompt;
} generation;

typedef VLLM(TopLogProbs) top_logprobs;

/* Borrows the message's arrays; *tops_out is memory to be freed. */
static bt_status make_tops(size_t n, size_t n_tops, top_logprobs *const *tops,
                           bt_client_top **tops_out)
{
    bt_status      st = BT_OK;
    bt_client_top *made;

    BT_REQUIRE(n == n_tops, BT_ERR_PROTOCOL, "%zu tokens came with alternatives of %zu", n, n_tops);
    made = bt_calloc(n, sizeof(*made));
    BT_REQUIRE(made != NULL, BT_ERR_NO_MEMORY, "alternatives of %zu tokens", n);
    for (size_t i = 0; i < n; i++)
        made[i] = (bt_client_top){tops[i]->n_values < tops[i]->n_token_ids ? tops[i]->n_values
                                                                           : tops[i]->n_token_ids,
                                  tops[i]->token_ids, tops[i]->values};
    *tops_out = made;
out:
    return st;
}

static bt_status take_prompt(generation *g, const VLLM(InputLogProbs) * m)
{
    bt_status        st       = BT_OK;
    size_t           n        = m->n_token_ids;
    float           *logprobs = NULL;
    bt_client_top   *tops     = NULL;
    bt_client_tokens t        = {.prompt = true, .n = n, .ids = m->token_ids};

    BT_REQUIRE(g->request->prompt_logprobs && !g->has_prompt && n == g->request->n_prompt &&
                   m->n_token_logprobs == n,
               BT_ERR_PROTOCOL, "logprobs of %zu prompt tokens, expected %zu once", n,
               g->request->prompt_logprobs ? g->request->n_prompt : 0);
    g->has_prompt = true;
    logprobs      = bt_calloc(n, sizeof(*logprobs));
    BT_REQUIRE(logprobs != NULL, BT_ERR_NO_MEMORY, "%zu logprobs", n);
    for (size_t i = 0; i < n; i++)
        logprobs[i] = m->token_logprobs[i]->_value_case != 0 ? m->token_logprobs[i]->value : NAN;
    if (g->request->top_prompt_logprobs > 0)
        BT_TRY(make_tops(n, m->n_top_logprobs, m->top_logprobs, &tops));
    t.logprobs = logprobs;
    t.tops     = tops;
    g->on_tokens(g->ctx, &t);
out:
    bt_free(logprobs);
    bt_free(tops);
    return st;
}

static bt_status take_tokens(generation *g, uint32_t choice, size_t n, const uint32_t *ids,
                             const VLLM(OutputLogProbs) * logprobs)
{
    bt_status        st   = BT_OK;
    uint64_t         now  = bt_now_ns() - g->start_ns;
    bt_client_top   *tops = NULL;
    bt_client_tokens t    = {.choice = choice, .n = n, .ids = ids};

    BT_REQUIRE(!g->request->logprobs || (logprobs != NULL && logprobs->n_token_logprobs == n),
               BT_ERR_PROTOCOL, "%zu tokens came with %zu logprobs", n,
               logprobs != NULL ? logprobs->n_token_logprobs : 0);
    if (n == 0) goto out;
    if (g->request->logprobs && g->request->top_logprobs > 0)
        BT_TRY(make_tops(n, logprobs->n_top_logprobs, logprobs->top_logprobs, &tops));
    if (g->result.completion_tokens == 0) g->result.first_ns = now;
    g->result.last_ns = now;
    g->result.completion_tokens += (uint32_t)n;
    g->n_tokens[choice] += (uint32_t)n;
    if (g->request->logprobs) t.logprobs = logprobs->token_logprobs;
    t.tops = tops;
    g->on_tokens(g->ctx, &t);
out:
    bt_free(tops);
    return st;
}

/* There is such a choice, and more of it may come. */
static bt_status check_choice(const generation *g, uint32_t index)
{
    bt_status st = BT_OK;

    BT_REQUIRE(index < g->result.n_choices, BT_ERR_PROTOCOL, "choice %u of %u", index,
               g->result.n_choices);
    BT_REQUIRE(!g->result.choices[index].complete, BT_ERR_PROTOCOL,
               "a message of choice %u after the complete one", index);
out:
    return st;
}

static bt_status take_chunk(generation *g, const VLLM(GenerateStreamChunk) * m)
{
    bt_status st = BT_OK;

    BT_TRY(check_choice(g, m->index));
    if (m->input_logprobs != NULL) BT_TRY(take_prompt(g, m->input_logprobs));
    BT_TRY(take_tokens(g, m->index, m->n_token_ids, m->token_ids, m->output_logprobs));
out:
    return st;
}

static bt_status take_complete(generation *g, const VLLM(GenerateComplete) * m)
{
    bt_status         st = BT_OK;
    bt_client_choice *c;

    BT_TRY(check_choice(g, m->index));
    c = &g->result.choices[m->index];
    if (m->input_logprobs != NULL) BT_TRY(take_prompt(g, m->input_logprobs));
    if (!g->request->stream)
        BT_TRY(take_tokens(g, m->index, m->n_output_ids, m->output_ids, m->output_logprobs));
    c->complete = true;
    g->n_complete++;
    snprintf(c->finish_reason, sizeof(c->finish_reason), "%s", m->finish_reason);
    c->completion_tokens    = m->completion_tokens;
    g->result.prompt_tokens = m->prompt_tokens;
    g->result.cached_tokens = m->cached_tokens;
    c->has_matched_token    = m->matched_stop_case ==
                           VLLM__GRPC__ENGINE__GENERATE_COMPLETE__MATCHED_STOP_MATCHED_TOKEN_ID;
    if (c->has_matched_token) c->matched_token = m->matched_token_id;
    if (m->matched_stop_case ==
        VLLM__GRPC__ENGINE__GENERATE_COMPLETE__MATCHED_STOP_MATCHED_STOP_STR)
        snprintf(c->matched_stop, sizeof(c->matched_stop), "%s", m->matched_stop_str);
    BT_REQUIRE(m->completion_tokens == g->n_tokens[m->index], BT_ERR_PROTOCOL,
               "%u tokens came, the server counts %u", g->n_tokens[m->index], m->completion_tokens);
out:
    return st;
}

static bt_status on_response(void *ctx, ProtobufCMessage *message)
{
    generation *g                   = ctx;
    const VLLM(GenerateResponse) *m = (const VLLM(GenerateResponse) *)message;
    bt_status st                    = BT_OK;

    switch (m->response_case) {
    case VLLM__GRPC__ENGINE__GENERATE_RESPONSE__RESPONSE_CHUNK:
        BT_TRY(take_chunk(g, m->chunk));
        break;
    case VLLM__GRPC__ENGINE__GENERATE_RESPONSE__RESPONSE_COMPLETE:
        BT_TRY(take_complete(g, m->complete));
        break;
    default: BT_REQUIRE(false, BT_ERR_PROTOCOL, "an empty answer");
    }
out:
    return st;
}

static void fill_optional(const bt_client_request *r, VLLM(SamplingParams) * s)
{
    s->_temperature_case = VLLM__GRPC__ENGINE__SAMPLING_PARAMS___TEMPERATURE_TEMPERATURE;
    s->temperature       = r->temperature;
    if (r->has_max_tokens) {
        s->_max_tokens_case = VLLM__GRPC__ENGINE__SAMPLING_PARAMS___MAX_TOKENS_MAX_TOKENS;
        s->max_tokens       = r->max_tokens;
    }
    if (r->has_seed) {
        s->_seed_case = VLLM__GRPC__ENGINE__SAMPLING_PARAMS___SEED_SEED;
        s->seed       = r->seed;
    }
    if (r->logprobs) {
        s->_logprobs_case = VLLM__GRPC__ENGINE__SAMPLING_PARAMS___LOGPROBS_LOGPROBS;
        s->logprobs       = r->top_logprobs;
    }
    if (r->prompt_logprobs) {
        s->_prompt_logprobs_case =
            VLLM__GRPC__ENGINE__SAMPLING_PARAMS___PROMPT_LOGPROBS_PROMPT_LOGPROBS;
        s->prompt_logprobs = r->top_prompt_logprobs;
    }
}

typedef VLLM(SamplingParams__LogitBiasEntry) bias_entry;

/* choice: room for that message. */
static void fill_answer(const bt_client_request *r, VLLM(ChoiceConstraint) * choice,
                        VLLM(SamplingParams) * s)
{
#define CASE(name) VLLM__GRPC__ENGINE__SAMPLING_PARAMS__CONSTRAINT_##name
    static const int CASES[] = {[BT_ANSWER_ANYTHING]       = CASE(_NOT_SET),
                                [BT_ANSWER_JSON_OBJECT]    = CASE(JSON_OBJECT),
                                [BT_ANSWER_JSON_SCHEMA]    = CASE(JSON_SCHEMA),
                                [BT_ANSWER_REGEX]          = CASE(REGEX),
                                [BT_ANSWER_GRAMMAR]        = CASE(GRAMMAR),
                                [BT_ANSWER_CHOICE]         = CASE(CHOICE),
                                [BT_ANSWER_STRUCTURAL_TAG] = CASE(STRUCTURAL_TAG)};
#undef CASE

    s->constraint_case = CASES[r->answer];
    switch (r->answer) {
    case BT_ANSWER_ANYTHING: break;
    case BT_ANSWER_JSON_OBJECT: s->json_object = true; break;
    case BT_ANSWER_JSON_SCHEMA: s->json_schema = r->answer_text; break;
    case BT_ANSWER_REGEX: s->regex = r->answer_text; break;
    case BT_ANSWER_GRAMMAR: s->grammar = r->answer_text; break;
    case BT_ANSWER_STRUCTURAL_TAG: s->structural_tag = r->answer_text; break;
    case BT_ANSWER_CHOICE:
        choice->n_choices = r->n_answer_choices;
        choice->choices   = r->answer_choices;
        s->choice         = choice;
        break;
    }
}

/* *block_out is memory to be freed once it is packed. */
static bt_status fill_sampling(const bt_client_request *r, VLLM(SamplingParams) * s,
                               void                   **block_out)
{
    bt_status    st = BT_OK;
    bias_entry **table, *entries;

    fill_optional(r, s);
    s->top_p               = r->top_p;
    s->top_k               = r->top_k;
    s->min_p               = r->min_p;
    s->frequency_penalty   = r->frequency_penalty;
    s->presence_penalty    = r->presence_penalty;
    s->repetition_penalty  = r->repetition_penalty;
    s->min_tokens          = r->min_tokens;
    s->n                   = r->n_choices;
    s->ignore_eos          = r->ignore_eos;
    s->skip_special_tokens = !r->keep_special;
    s->n_stop_token_ids    = r->n_stop_tokens;
    s->stop_token_ids      = (uint32_t *)r->stop_tokens;
    s->n_stop              = r->n_stop;
    s->stop                = r->stop;

    s->include_stop_str_in_output = r->include_stop;
    if (r->n_biases == 0) goto out;
    table = bt_calloc(r->n_biases, sizeof(*table) + sizeof(*entries));
    BT_REQUIRE(table != NULL, BT_ERR_NO_MEMORY, "%zu biases", r->n_biases);
    entries = (bias_entry *)(void *)(table + r->n_biases);
    for (size_t i = 0; i < r->n_biases; i++) {
        vllm__grpc__engine__sampling_params__logit_bias_entry__init(&entries[i]);
        entries[i].key   = r->bias_ids[i];
        entries[i].value = r->biases[i];
        table[i]         = &entries[i];
    }
    s->n_logit_bias = r->n_biases;
    s->logit_bias   = table;
    *block_out      = table;
out:
    return st;
}

bt_status bt_client_generate(bt_client *client, const bt_client_request *request,
                             bt_client_tokens_fn on_tokens, void *ctx, bt_client_result *result_out)
{
    bt_status  st    = BT_OK;
    generation g     = {.request = request, .on_tokens = on_tokens, .ctx = ctx};
    void      *block = NULL;
    char       id[64];
    VLLM(GenerateRequest) q       = VLLM__GRPC__ENGINE__GENERATE_REQUEST__INIT;
    VLLM(TokenizedInput) in       = VLLM__GRPC__ENGINE__TOKENIZED_INPUT__INIT;
    VLLM(SamplingParams) how      = VLLM__GRPC__ENGINE__SAMPLING_PARAMS__INIT;
    VLLM(ChoiceConstraint) choice = VLLM__GRPC__ENGINE__CHOICE_CONSTRAINT__INIT;

    BT_ASSERT(request->n_choices <= BT_CLIENT_CHOICES);
    g.result.n_choices = request->n_choices != 0 ? request->n_choices : 1;
    g.start_ns         = bt_now_ns();
    snprintf(id, sizeof(id), "baton-%d-%llx-%u", (int)getpid(), (unsigned long long)g.start_ns,
             client->n_requests++);
    BT_TRY(fill_sampling(request, &how, &block));
    fill_answer(request, &choice, &how);
    in.n_input_ids    = request->n_prompt;
    in.input_ids      = (uint32_t *)request->prompt;
    q.request_id      = id;
    q.input_case      = VLLM__GRPC__ENGINE__GENERATE_REQUEST__INPUT_TOKENIZED;
    q.tokenized       = &in;
    q.sampling_params = &how;
    q.stream          = request->stream;
    BT_TRY(bt_client_call(client, BT_VLLM_SERVICE "Generate", request->cache_salt, &q.base,
                          &vllm__grpc__engine__generate_response__descriptor, on_response, &g));
    BT_REQUIRE(g.n_complete == g.result.n_choices, BT_ERR_PROTOCOL,
               "%s ended the stream without a complete message of %u of %u choices",
               client->address, g.result.n_choices - g.n_complete, g.result.n_choices);
    *result_out = g.result;
out:
    bt_free(block);
    return st;
}

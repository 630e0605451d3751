#include "coordinator/choice.h"

#include <string.h>

#include "core/alloc.h"
#include "proto/rpc.h"

typedef Vllm__Grpc__Engine__GenerateStreamChunk stream_chunk;
typedef Vllm__Grpc__Engine__OutputLogProbs      out_logprobs;
typedef Vllm__Grpc__Engine__TopLogProbs         top_logprobs;

/* Of the .proto, as they stand in a message of few tokens. */
enum {
    TAG_CHUNK      = 1 << 3 | 2, /* GenerateResponse.chunk */
    TAG_IDS        = 1 << 3 | 2, /* GenerateStreamChunk.token_ids, and so on */
    TAG_PROMPT     = 2 << 3,
    TAG_COMPLETION = 3 << 3,
    TAG_CACHED     = 4 << 3,
    TAG_INDEX      = 7 << 3,
    FEW            = 16, /* tokens */
    U32_BYTES      = 5,  /* at most */
    FIELDS_BYTES   = 6 * (1 + U32_BYTES)
};

bt_status bt_choice_init(bt_choice *c, const bt_intake_answer *how, uint32_t max_tokens,
                         const bt_tokenizer *tokenizer)
{
    bt_status st  = BT_OK;
    size_t    top = (size_t)max_tokens * how->n_top;

    *c          = (bt_choice){.matched = BT_STOP_NONE};
    c->capacity = max_tokens;
    c->n_top    = how->n_top;
    c->ids      = bt_calloc(max_tokens, sizeof(*c->ids));
    c->logprobs = bt_calloc(max_tokens, sizeof(*c->logprobs));
    BT_REQUIRE(c->ids != NULL && c->logprobs != NULL, BT_ERR_NO_MEMORY, "%u tokens", max_tokens);
    if (top > 0) {
        c->tops         = bt_calloc(max_tokens, sizeof(*c->tops));
        c->top_ids      = bt_calloc(top, sizeof(*c->top_ids));
        c->top_logprobs = bt_calloc(top, sizeof(*c->top_logprobs));
        BT_REQUIRE(c->tops != NULL && c->top_ids != NULL && c->top_logprobs != NULL,
                   BT_ERR_NO_MEMORY, "alternatives of %u tokens", max_tokens);
    }
    if (how->stop != NULL) {
        c->stop         = how->stop;
        c->tokenizer    = tokenizer;
        c->keep_special = !how->skip_special;
        c->min_tokens   = how->min_tokens;
        c->stop_state   = bt_calloc(bt_stop_set_size(how->stop), sizeof(*c->stop_state));
        c->ends         = bt_calloc(max_tokens, sizeof(*c->ends));
        BT_REQUIRE(c->stop_state != NULL && c->ends != NULL, BT_ERR_NO_MEMORY, "stop strings");
    }
out:
    return st;
}

void bt_choice_fini(bt_choice *c)
{
    bt_free(c->ids);
    bt_free(c->logprobs);
    bt_free(c->tops);
    bt_free(c->top_ids);
    bt_free(c->top_logprobs);
    bt_free(c->stop_state);
    bt_free(c->ends);
    *c = (bt_choice){0};
}

/* ---- tokens */

/* Looks for stop strings in the newest token; true when one is complete. */
static bool match(bt_choice *c)
{
    bool        special = false;
    size_t      n       = 0;
    uint32_t    held = 0, last = c->n - 1;
    const char *bytes = bt_tokenizer_bytes(c->tokenizer, c->ids[last], &n, &special);

    if (special && !c->keep_special) n = 0;
    c->matched    = bt_stop_feed(c->stop, c->stop_state, bytes, n, last >= c->min_tokens, &held);
    c->ends[last] = c->n_bytes += n;
    while (c->n_ready < c->n && c->ends[c->n_ready] + held <= c->n_bytes)
        c->n_ready++;
    return c->matched != BT_STOP_NONE;
}

bt_finish bt_choice_token(bt_choice *c, const bt_token *token)
{
    BT_ASSERT(c->n < c->capacity);
    c->ids[c->n]      = token->id;
    c->logprobs[c->n] = token->logprob;
    if (c->n_top > 0) {
        uint32_t n  = token->n_top < c->n_top ? token->n_top : c->n_top;
        size_t   at = (size_t)c->n * c->n_top;

        c->tops[c->n] = (uint8_t)n;
        memcpy(c->top_ids + at, token->top_ids, n * sizeof(*c->top_ids));
        memcpy(c->top_logprobs + at, token->top_logprobs, n * sizeof(*c->top_logprobs));
    }
    c->n++;
    if (c->stop == NULL)
        c->n_ready = c->n;
    else if (match(c) && (token->finish == BT_FINISH_NONE || token->finish == BT_FINISH_LENGTH))
        return BT_FINISH_STOP_STRING;
    return token->finish;
}

void bt_choice_end(bt_choice *c, bt_finish finish)
{
    c->finish  = finish;
    c->n_ready = c->n;
}

/* ---- messages */

/* Logprobs of tokens [from, to): borrows the choice's arrays.  *block_out is memory to be freed. */
static bool make_logprobs(const bt_choice *c, uint32_t from, uint32_t to, out_logprobs *lp,
                          void **block_out)
{
    size_t         n = to - from;
    top_logprobs **table, *tops;

    vllm__grpc__engine__output_log_probs__init(lp);
    lp->n_token_logprobs = lp->n_token_ids = n;
    lp->token_logprobs                     = c->logprobs + from;
    lp->token_ids                          = c->ids + from;
    if (c->n_top == 0 || n == 0) return true;
    table = bt_calloc(n, sizeof(*table) + sizeof(*tops));
    if (table == NULL) return false;
    tops = (top_logprobs *)(void *)(table + n);
    for (size_t i = 0; i < n; i++) {
        vllm__grpc__engine__top_log_probs__init(&tops[i]);
        tops[i].n_values = tops[i].n_token_ids = c->tops[from + i];
        tops[i].values                         = c->top_logprobs + (from + i) * c->n_top;
        tops[i].token_ids                      = c->top_ids + (from + i) * c->n_top;
        table[i]                               = &tops[i];
    }
    lp->n_top_logprobs = n;
    lp->top_logprobs   = table;
    *block_out         = table;
    return true;
}

static uint8_t *put_u32(uint8_t *at, uint32_t v)
{
    for (; v >= 0x80; v >>= 7)
        *at++ = (uint8_t)(v | 0x80);
    *at++ = (uint8_t)v;
    return at;
}

/* Nothing for 0, as proto3 has it. */
static uint8_t *put_field(uint8_t *at, uint8_t tag, size_t v)
{
    if (v == 0) return at;
    *at++ = tag;
    return put_u32(at, (uint32_t)v);
}

static uint8_t *put_part(uint8_t *at, uint8_t tag, const uint8_t *part, size_t n)
{
    if (n == 0) return at;
    at = put_field(at, tag, n);
    memcpy(at, part, n);
    return at + n;
}

/* The reply with this chunk, of at most FEW tokens and without logprobs.  Every token of every
 * stream comes this way, and protobuf-c, which would make the same bytes, takes several times as
 * long. */
static grpc_byte_buffer *pack_plain(const stream_chunk *m)
{
    uint8_t ids[FEW * U32_BYTES], body[sizeof(ids) + FIELDS_BYTES],
        reply[sizeof(body) + 1 + U32_BYTES];
    uint8_t          *at = ids, *end = body;
    grpc_slice        slice;
    grpc_byte_buffer *buffer;

    for (size_t i = 0; i < m->n_token_ids; i++)
        at = put_u32(at, m->token_ids[i]);
    end    = put_part(end, TAG_IDS, ids, (size_t)(at - ids));
    end    = put_field(end, TAG_PROMPT, m->prompt_tokens);
    end    = put_field(end, TAG_COMPLETION, m->completion_tokens);
    end    = put_field(end, TAG_CACHED, m->cached_tokens);
    end    = put_field(end, TAG_INDEX, m->index);
    at     = put_part(reply, TAG_CHUNK, body, (size_t)(end - body));
    slice  = grpc_slice_from_copied_buffer((const char *)reply, (size_t)(at - reply));
    buffer = grpc_raw_byte_buffer_create(&slice, 1);
    grpc_slice_unref(slice);
    return buffer;
}

static grpc_byte_buffer *pack_chunk(stream_chunk *m)
{
    Vllm__Grpc__Engine__GenerateResponse reply = VLLM__GRPC__ENGINE__GENERATE_RESPONSE__INIT;

    if (m->n_token_ids <= FEW && m->output_logprobs == NULL && m->input_logprobs == NULL)
        return pack_plain(m);
    reply.response_case = VLLM__GRPC__ENGINE__GENERATE_RESPONSE__RESPONSE_CHUNK;
    reply.chunk         = m;
    return bt_rpc_pack(&reply.base);
}

grpc_byte_buffer *bt_choice_chunk(bt_choice *c, const bt_choice_facts *facts)
{
    stream_chunk      chunk  = VLLM__GRPC__ENGINE__GENERATE_STREAM_CHUNK__INIT;
    grpc_byte_buffer *buffer = NULL;
    void             *block = NULL, *input_block = NULL;
    out_logprobs      lp;

    Vllm__Grpc__Engine__InputLogProbs input;

    chunk.n_token_ids       = c->n_ready - c->n_sent;
    chunk.token_ids         = c->ids + c->n_sent;
    chunk.prompt_tokens     = facts->n_prompt;
    chunk.completion_tokens = c->n_ready - c->n_sent;
    chunk.cached_tokens     = facts->n_cached;
    chunk.index             = c->index;
    if ((!facts->logprobs || make_logprobs(c, c->n_sent, c->n_ready, &lp, &block)) &&
        (facts->input == NULL || bt_input_logprobs_make(facts->input, &input, &input_block))) {
        if (facts->logprobs) chunk.output_logprobs = &lp;
        if (facts->input != NULL) chunk.input_logprobs = &input;
        buffer    = pack_chunk(&chunk);
        c->n_sent = c->n_ready;
    }
    bt_free(input_block);
    bt_free(block);
    return buffer;
}

grpc_byte_buffer *bt_choice_complete(const bt_choice *c, const bt_choice_facts *facts)
{
    Vllm__Grpc__Engine__GenerateComplete done   = VLLM__GRPC__ENGINE__GENERATE_COMPLETE__INIT;
    Vllm__Grpc__Engine__GenerateResponse reply  = VLLM__GRPC__ENGINE__GENERATE_RESPONSE__INIT;
    grpc_byte_buffer                    *buffer = NULL;
    static char                          stop[] = "stop", length[] = "length";
    Vllm__Grpc__Engine__InputLogProbs    input;
    out_logprobs                         lp;
    void                                *block = NULL, *input_block = NULL;

    done.n_output_ids      = c->n;
    done.output_ids        = c->ids;
    done.finish_reason     = c->finish == BT_FINISH_LENGTH ? length : stop;
    done.prompt_tokens     = facts->n_prompt;
    done.completion_tokens = c->n;
    done.cached_tokens     = facts->n_cached;
    done.index             = c->index;
    if (c->finish == BT_FINISH_STOP_TOKEN) {
        done.matched_stop_case =
            VLLM__GRPC__ENGINE__GENERATE_COMPLETE__MATCHED_STOP_MATCHED_TOKEN_ID;
        done.matched_token_id = c->ids[c->n - 1];
    } else if (c->finish == BT_FINISH_STOP_STRING) {
        done.matched_stop_case =
            VLLM__GRPC__ENGINE__GENERATE_COMPLETE__MATCHED_STOP_MATCHED_STOP_STR;
        done.matched_stop_str = (char *)bt_stop_set_string(c->stop, c->matched);
    }
    if ((!facts->logprobs || make_logprobs(c, 0, c->n, &lp, &block)) &&
        (facts->input == NULL || bt_input_logprobs_make(facts->input, &input, &input_block))) {
        if (facts->logprobs) done.output_logprobs = &lp;
        if (facts->input != NULL) done.input_logprobs = &input;
        reply.response_case = VLLM__GRPC__ENGINE__GENERATE_RESPONSE__RESPONSE_COMPLETE;
        reply.complete      = &done;
        buffer              = bt_rpc_pack(&reply.base);
    }
    bt_free(input_block);
    bt_free(block);
    return buffer;
}

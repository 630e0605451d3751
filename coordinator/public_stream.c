/* Generate: a stream from the validated request to its one terminal status.
 *
 * Tokens are kept for the stream's life, since the last message repeats them all.  One message is
 * in flight at a time; what comes meanwhile goes into the next one, so a slow client costs no
 * memory but this and never holds up another.  Headers go with the first message: until then an
 * error is the call's own status. */
#include <stdio.h>
#include <string.h>

#include "coordinator/public_call.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "proto/text.h"

typedef Vllm__Grpc__Engine__OutputLogProbs out_logprobs;
typedef Vllm__Grpc__Engine__TopLogProbs    top_logprobs;

struct bt_stream {
    bt_call         *call; /* whose part this is */
    bt_intake_answer how;
    char            *name; /* owned */
    uint64_t         number;
    uint32_t         n_prompt, n, n_sent; /* tokens that came, and that chunks have carried */
    uint32_t         n_cached;            /* prompt tokens that were not computed */
    uint32_t        *ids;                 /* owned [max_tokens]; touched as tokens come */
    float           *logprobs;            /* owned [max_tokens] */
    bool             begun, sending, ended, status_sent, gone;
    grpc_status_code code;
    bt_finish        finish;
    char             message[BT_INTAKE_TEXT];
    bt_request_clock clock;
};

static void pump(bt_stream *s);

void bt_stream_free(bt_stream *stream)
{
    if (stream == NULL) return;
    stream->call->pub->n_streams--;
    bt_free(stream->name);
    bt_free(stream->ids);
    bt_free(stream->logprobs);
    bt_free(stream);
}

/* ---- messages */

/* Logprobs of tokens [from, n): borrows the stream's arrays.  *block_out is memory to be freed. */
static bool make_logprobs(bt_stream *s, uint32_t from, out_logprobs *lp, void **block_out)
{
    size_t         n = s->n - from;
    top_logprobs **table, *tops;

    vllm__grpc__engine__output_log_probs__init(lp);
    lp->n_token_logprobs = lp->n_token_ids = n;
    lp->token_logprobs                     = s->logprobs + from;
    lp->token_ids                          = s->ids + from;
    if (!s->how.top_logprobs || n == 0) return true;
    table = bt_calloc(n, sizeof(*table) + sizeof(*tops));
    if (table == NULL) return false;
    tops = (top_logprobs *)(void *)(table + n);
    for (size_t i = 0; i < n; i++) {
        vllm__grpc__engine__top_log_probs__init(&tops[i]);
        tops[i].n_values = tops[i].n_token_ids = 1;
        tops[i].values                         = lp->token_logprobs + i;
        tops[i].token_ids                      = lp->token_ids + i;
        table[i]                               = &tops[i];
    }
    lp->n_top_logprobs = n;
    lp->top_logprobs   = table;
    *block_out         = table;
    return true;
}

/* The tokens that no chunk has carried yet.  NULL: out of memory. */
static grpc_byte_buffer *make_chunk(bt_stream *s)
{
    Vllm__Grpc__Engine__GenerateStreamChunk chunk = VLLM__GRPC__ENGINE__GENERATE_STREAM_CHUNK__INIT;
    Vllm__Grpc__Engine__GenerateResponse    reply = VLLM__GRPC__ENGINE__GENERATE_RESPONSE__INIT;
    grpc_byte_buffer                       *buffer = NULL;
    out_logprobs                            lp;
    void                                   *block = NULL;

    chunk.n_token_ids       = s->n - s->n_sent;
    chunk.token_ids         = s->ids + s->n_sent;
    chunk.prompt_tokens     = s->n_prompt;
    chunk.cached_tokens     = s->n_cached;
    chunk.completion_tokens = s->n - s->n_sent;
    if (!s->how.logprobs || make_logprobs(s, s->n_sent, &lp, &block)) {
        if (s->how.logprobs) chunk.output_logprobs = &lp;
        reply.response_case = VLLM__GRPC__ENGINE__GENERATE_RESPONSE__RESPONSE_CHUNK;
        reply.chunk         = &chunk;
        buffer              = bt_rpc_pack(&reply.base);
        s->n_sent           = s->n;
    }
    bt_free(block);
    return buffer;
}

static grpc_byte_buffer *make_complete(bt_stream *s)
{
    Vllm__Grpc__Engine__GenerateComplete done   = VLLM__GRPC__ENGINE__GENERATE_COMPLETE__INIT;
    Vllm__Grpc__Engine__GenerateResponse reply  = VLLM__GRPC__ENGINE__GENERATE_RESPONSE__INIT;
    grpc_byte_buffer                    *buffer = NULL;
    bool                                 with   = s->how.logprobs && !s->how.stream;
    static char                          stop[] = "stop", length[] = "length";
    out_logprobs                         lp;
    void                                *block = NULL;

    done.n_output_ids      = s->n;
    done.output_ids        = s->ids;
    done.finish_reason     = s->finish == BT_FINISH_LENGTH ? length : stop;
    done.prompt_tokens     = s->n_prompt;
    done.cached_tokens     = s->n_cached;
    done.completion_tokens = s->n;
    if (s->finish == BT_FINISH_STOP_TOKEN) {
        done.matched_stop_case =
            VLLM__GRPC__ENGINE__GENERATE_COMPLETE__MATCHED_STOP_MATCHED_TOKEN_ID;
        done.matched_token_id = s->ids[s->n - 1];
    }
    if (!with || make_logprobs(s, 0, &lp, &block)) {
        if (with) done.output_logprobs = &lp; /* a stream's are in its chunks */
        reply.response_case = VLLM__GRPC__ENGINE__GENERATE_RESPONSE__RESPONSE_COMPLETE;
        reply.complete      = &done;
        buffer              = bt_rpc_pack(&reply.base);
    }
    bt_free(block);
    return buffer;
}

/* ---- sending */

static void on_sent(bt_rpc_tag *tag, bool ok)
{
    bt_call   *call = tag->ctx;
    bt_stream *s    = call->stream;

    (void)ok; /* a send that fails is followed by the close */
    s->sending = false;
    pump(s);
    bt_call_release(call);
}

/* One message, or the status, or both; headers when they are the first. */
static void send_parts(bt_stream *s, grpc_byte_buffer *message, bool status)
{
    grpc_op    ops[3]  = {0};
    grpc_slice details = grpc_slice_from_copied_string(s->message);
    size_t     n       = 0;

    if (!s->begun) ops[n++].op = GRPC_OP_SEND_INITIAL_METADATA;
    s->begun = true;
    if (message != NULL) {
        ops[n].op                               = GRPC_OP_SEND_MESSAGE;
        ops[n++].data.send_message.send_message = message;
    }
    if (status) {
        ops[n].op                                            = GRPC_OP_SEND_STATUS_FROM_SERVER;
        ops[n].data.send_status_from_server.status           = s->code;
        ops[n++].data.send_status_from_server.status_details = &details;
        s->status_sent                                       = true;
    }
    s->sending    = true;
    s->call->sent = (bt_rpc_tag){on_sent, s->call};
    bt_call_begin(s->call, ops, n, &s->call->sent);
    if (message != NULL) grpc_byte_buffer_destroy(message);
    grpc_slice_unref(details);
}

/* A message that cannot be made for lack of memory ends the stream; the relay hears of it from the
 * close that follows. */
static void give_up(bt_stream *s)
{
    grpc_call_cancel_with_status(s->call->call, GRPC_STATUS_RESOURCE_EXHAUSTED,
                                 "the coordinator is out of memory", NULL);
}

/* Sends what can be sent now. */
static void pump(bt_stream *s)
{
    grpc_byte_buffer *message;

    if (s->sending || s->status_sent || s->gone) return;
    if (s->ended && s->code != GRPC_STATUS_OK) {
        send_parts(s, NULL, true);
    } else if (s->how.stream && s->n_sent < s->n) {
        message = make_chunk(s);
        if (message != NULL)
            send_parts(s, message, false);
        else
            give_up(s);
    } else if (s->ended) {
        message = make_complete(s);
        if (message != NULL)
            send_parts(s, message, true);
        else
            give_up(s);
    }
}

/* The client has gone, or everything has been sent. */
static void on_closed(bt_rpc_tag *tag, bool ok)
{
    bt_call   *call = tag->ctx;
    bt_stream *s    = call->stream;

    (void)ok;
    s->gone = true;
    if (!s->ended) bt_relay_abort_client(call->pub->relay, s, s->name, "the client has gone");
    bt_call_release(call);
}

/* ---- the relay's side */

void bt_public_token(void *client, const bt_token *token)
{
    bt_stream *s = client;

    bt_metrics_token(s->call->pub->metrics, &s->clock, token->choice, bt_now_ns());
    s->ids[s->n]      = token->id;
    s->logprobs[s->n] = token->logprob;
    if (s->n == 0) s->n_cached = token->cached;
    s->n++;
    if (s->how.stream && token->finish == BT_FINISH_NONE) pump(s); /* the last goes with the end */
}

void bt_public_end(void *client, const bt_relay_end *end)
{
    bt_stream *s = client;

    s->ended  = true;
    s->code   = end->code;
    s->finish = end->finish;
    bt_metrics_end(s->call->pub->metrics, &s->clock, end->code, end->finish, bt_now_ns());
    bt_text_clean(end->message, s->message, sizeof(s->message));
    bt_log_set_request(s->number);
    if (end->code == GRPC_STATUS_OK)
        BT_INFO("done: %u prompt tokens, %u tokens, %s", s->n_prompt, s->n,
                end->finish == BT_FINISH_LENGTH ? "length" : "stop");
    bt_log_set_request(0);
    pump(s);
    bt_call_release(s->call);
}

static bt_stream *stream_create(bt_call *call, const bt_relay_request *r,
                                const bt_intake_answer *how)
{
    bt_stream *s = bt_calloc(1, sizeof(*s));

    if (s == NULL) return NULL;
    s->call = call;
    call->pub->n_streams++;
    s->how      = *how;
    s->n_prompt = r->n_prompt;
    s->name     = bt_strdup(r->name);
    s->ids      = bt_calloc(r->sampling.max_tokens, sizeof(*s->ids));
    s->logprobs = bt_calloc(r->sampling.max_tokens, sizeof(*s->logprobs));
    if (s->name != NULL && s->ids != NULL && s->logprobs != NULL) return s;
    bt_stream_free(s);
    return NULL;
}

static void watch_close(bt_call *call, void (*fn)(bt_rpc_tag *tag, bool ok))
{
    grpc_op op = {.op = GRPC_OP_RECV_CLOSE_ON_SERVER};

    op.data.recv_close_on_server.cancelled = &call->cancelled;
    call->closed                           = (bt_rpc_tag){fn, call};
    bt_call_begin(call, &op, 1, &call->closed);
}

/* Gives the stream to the relay. */
static bool submit(bt_stream *s, bt_relay_request *r, grpc_status_code *code)
{
    bt_public *pub        = s->call->pub;
    uint32_t   max_tokens = r->sampling.max_tokens;

    s->call->refs++; /* the relay's, until end() */
    if (bt_relay_submit(pub->relay, r, s, bt_now_ns(), &s->number, code) == BT_OK) {
        bt_log_set_request(s->number);
        BT_INFO("\"%.200s\": %u prompt tokens, at most %u more", s->name, s->n_prompt, max_tokens);
        bt_log_set_request(0);
        return true;
    }
    s->call->refs--;
    return false;
}

static void refuse(bt_stream *s, grpc_status_code code, const char *why)
{
    bt_metrics_end(s->call->pub->metrics, &s->clock, code, BT_FINISH_NONE, bt_now_ns());
    s->ended = true;
    s->code  = code;
    bt_text_clean(why, s->message, sizeof(s->message));
    pump(s);
}

void bt_public_generate(bt_call *call, const ProtobufCMessage *request)
{
    static const bt_intake_answer plain = {0};
    bt_relay_request              r = {0}, nothing = {.name = "", .sampling.max_tokens = 1};
    bt_intake_answer              how  = plain;
    grpc_status_code              code = GRPC_STATUS_RESOURCE_EXHAUSTED;
    bt_status                     st;

    st = bt_intake((const Vllm__Grpc__Engine__GenerateRequest *)request, &call->pub->limits, &r,
                   &how, call->why);
    call->stream = stream_create(call, st == BT_OK ? &r : &nothing, &how);
    if (call->stream == NULL) {
        grpc_call_cancel_with_status(call->call, code, "the coordinator is out of memory", NULL);
    } else {
        bt_metrics_arrived(call->pub->metrics, &call->stream->clock, r.n_prompt, bt_now_ns());
        watch_close(call, on_closed);
        if (call->pub->draining)
            refuse(call->stream, GRPC_STATUS_UNAVAILABLE,
                   "draining: this server takes no new requests");
        else if (st != BT_OK)
            refuse(call->stream, GRPC_STATUS_INVALID_ARGUMENT, call->why);
        else if (!submit(call->stream, &r, &code))
            refuse(call->stream, code, bt_error_text());
    }
    bt_free(r.prompt); /* what the relay did not take */
    bt_free(r.sampling.stop_tokens);
}

/* Generate: a stream from the validated request to its one terminal status.
 *
 * Tokens are sent by bt_public_poll(), after all that has come from the ranks by then: under load a
 * message carries several.  One message is in flight at a time; what comes meanwhile goes into the
 * next one, so a slow client costs no memory but its tokens and never holds up another; one that
 * takes nothing for unread_ns is cut off.  Headers go with the first message: until then an error
 * is the call's own status. */
#include <malloc.h>
#include <stdio.h>
#include <string.h>

#include "coordinator/dialect.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "proto/prefix_key.h"
#include "proto/text.h"

enum { FLOOD = 1024 /* streams at once */, SENDS_MAX = 1024 /* of a poll, some 20 ms at most */ };

struct bt_stream {
    bt_call          *call; /* whose part this is */
    const bt_dialect *dialect;
    bt_connection    *connection; /* counted */
    bt_intake_answer  how;        /* owned: its stop strings */
    char             *name;       /* owned */
    uint32_t          n_prompt, n_cached;
    uint32_t          n_choices, n_completed, turn; /* turn: whose chunk is next */
    bt_choice        *choices;                      /* owned [n_choices] */
    bt_input_logprobs input;                        /* owned; of n_prompt 0: not asked for */
    bool              input_sent;
    uint64_t          number; /* of the relay's request */
    bool              sending, ended, status_sent, gone;
    bool              fresh; /* in the list of bt_public_poll() */
    bt_stream        *next_fresh;
    grpc_status_code  code;
    char              message[BT_INTAKE_TEXT];
    bt_request_clock  clock;
};

static void send_soon(bt_stream *s);

const char *bt_stream_name(const bt_stream *stream) { return stream->name; }

void bt_stream_free(bt_stream *stream)
{
    if (stream == NULL) return;
    stream->call->pub->n_streams--;
    bt_cork_leave(&stream->call->pub->corks, stream->connection);
    for (uint32_t i = 0; i < stream->n_choices; i++)
        bt_choice_fini(&stream->choices[i]);
    bt_free(stream->choices);
    bt_input_logprobs_fini(&stream->input);
    bt_intake_answer_free(&stream->how);
    bt_free(stream->name);
    bt_free(stream);
}

/* ---- sending */

static void on_sent(bt_call *call)
{
    call->stream->sending = false;
    send_soon(call->stream);
}

static void send_parts(bt_stream *s, grpc_byte_buffer *message, bool status)
{
    s->status_sent = status;
    s->sending     = true;
    bt_cork_hold(&s->call->pub->corks, s->connection);
    bt_call_send(s->call, message, s->code, status ? s->message : NULL, on_sent);
}

/* When there is no memory for a message the stream ends; the relay hears of it from the close that
 * follows. */
static void give_up(bt_stream *s)
{
    grpc_call_cancel_with_status(s->call->call, GRPC_STATUS_RESOURCE_EXHAUSTED,
                                 "the coordinator is out of memory", NULL);
}

/* The next choice with tokens to send, by turns; NULL: none. */
static bt_choice *next_ready(bt_stream *s)
{
    for (uint32_t k = 0; k < s->n_choices; k++) {
        bt_choice *c = &s->choices[(s->turn + k) % s->n_choices];

        if (c->n_sent == c->n_ready) continue;
        s->turn = c->index + 1;
        return c;
    }
    return NULL;
}

/* The next choice to be completed, by index: as soon as it has ended, behind what is left of its
 * tokens, whatever the others do.  Without stream nothing asks before all have ended, and the last
 * one ends together with the request.  NULL: none yet. */
static bt_choice *next_complete(bt_stream *s)
{
    for (uint32_t i = 0; i < s->n_choices; i++) {
        bt_choice *c = &s->choices[i];

        if (c->finish != BT_FINISH_NONE && !c->completed) return c;
    }
    return NULL;
}

/* Sends what can be sent now. */
static void pump(bt_stream *s)
{
    grpc_byte_buffer *message;
    bt_choice        *c;
    bt_choice_facts   facts  = {.name     = s->name,
                                .n_prompt = s->n_prompt,
                                .n_cached = s->n_cached,
                                .logprobs = s->how.logprobs};
    bool              status = false;

    if (s->gone) return; /* since it was put into the list */
    if (s->ended && s->code != GRPC_STATUS_OK) {
        send_parts(s, NULL, true);
        return;
    }
    c = next_complete(s);
    if (c == NULL && s->how.stream) c = next_ready(s);
    if (c == NULL) return;
    if (c->index == 0 && s->input.n_prompt != 0 && !s->input_sent) {
        facts.input   = &s->input;
        s->input_sent = true;
    }
    if (c->n_sent != c->n_ready && s->how.stream) {
        message = s->dialect->chunk(c, &facts);
    } else {
        facts.logprobs = facts.logprobs && !s->how.stream; /* a stream's are in its chunks */
        c->completed   = true;
        message        = s->dialect->complete(c, &facts);
        status         = ++s->n_completed == s->n_choices;
    }
    if (message != NULL)
        send_parts(s, message, status);
    else
        give_up(s);
}

/* Something may have come to be sent. */
static void send_soon(bt_stream *s)
{
    bt_public *pub = s->call->pub;

    if (s->fresh || s->sending || s->status_sent || s->gone) return;
    s->fresh      = true;
    s->next_fresh = NULL;
    s->call->refs++; /* the list's */
    *(pub->fresh != NULL ? &pub->fresh_last->next_fresh : &pub->fresh) = s;
    pub->fresh_last                                                    = s;
}

/* What a flood of calls took goes back to the system when none is left: the heap would keep it. */
static void give_back(bt_public *pub)
{
    if (pub->n_streams > pub->most_streams) pub->most_streams = pub->n_streams;
    if (pub->n_streams != 0) return;
    if (pub->most_streams >= FLOOD) malloc_trim(0);
    pub->most_streams = 0;
}

bool bt_public_has_more(const bt_public *pub) { return pub->fresh != NULL; }

void bt_public_poll(bt_public *pub)
{
    if (pub->served != bt_fleet_serves(pub->fleet)) {
        pub->served = !pub->served;
        bt_public_tell_watchers(pub);
    }
    for (int n = 0; pub->fresh != NULL && n < SENDS_MAX; n++) {
        bt_stream *s = pub->fresh;

        pub->fresh = s->next_fresh;
        s->fresh   = false;
        pump(s);
        bt_call_release(s->call);
    }
    bt_cork_release(&pub->corks);
    pub->hung_up = false;
    bt_public_cut_off_silent(pub);
    bt_public_listen_again(pub);
    give_back(pub);
}

/* ---- the end */

/* The whole call ends with an error. */
static void fail(bt_stream *s, grpc_status_code code, const char *why)
{
    if (s->ended) return;
    bt_metrics_end(s->call->pub->metrics, &s->clock, code, BT_FINISH_NONE, bt_now_ns());
    s->ended = true;
    s->code  = code;
    bt_text_clean(why, s->message, sizeof(s->message));
    send_soon(s);
}

/* The client has gone, or everything has been sent. */
static void on_closed(bt_rpc_tag *tag, bool ok)
{
    bt_call   *call = tag->ctx;
    bt_stream *s    = call->stream;

    (void)ok;
    s->gone = true;
    bt_fleet_abort_client(call->pub->fleet, s, s->name, "the client has gone");
    bt_call_release(call);
}

/* ---- the relay's side */

static void log_end(const bt_stream *s, const bt_choice *c)
{
    bt_log_set_request(s->number);
    BT_INFO("choice %u is done: %u prompt tokens, %u tokens, %s", c->index, s->n_prompt, c->n,
            c->finish == BT_FINISH_LENGTH ? "length" : "stop");
    bt_log_set_request(0);
}

static bt_finish on_token(void *client, const bt_token *token)
{
    bt_stream *s = client;
    bt_choice *c = &s->choices[token->choice];
    bt_finish  finish;

    if (s->ended) return token->finish;
    bt_metrics_token(s->call->pub->metrics, &s->clock, c->index, bt_now_ns());
    if (c->n == 0) s->n_cached = token->cached;
    if (bt_choice_token(c, token, &finish) != BT_OK) {
        /* the relay hears of it from the close that follows */
        fail(s, GRPC_STATUS_RESOURCE_EXHAUSTED, "the coordinator is out of memory");
        return token->finish;
    }
    if (finish != BT_FINISH_NONE) {
        bt_choice_end(c, finish);
        log_end(s, c);
    }
    if (s->how.stream) send_soon(s);
    return finish;
}

static void on_prompt(void *client, const bt_up_prompt_logprobs *m)
{
    bt_stream *s = client;

    bt_input_logprobs_add(&s->input, m);
}

static void on_placed(void *client)
{
    bt_stream *s = client;

    bt_metrics_left_queue(s->call->pub->metrics, &s->clock, bt_now_ns());
}

static void on_end(void *client, const bt_relay_end *end)
{
    bt_stream *s    = client;
    bt_call   *call = s->call;

    bt_metrics_left_queue(call->pub->metrics, &s->clock, bt_now_ns());
    if (end->code != GRPC_STATUS_OK) {
        fail(s, end->code, end->message);
    } else if (!s->ended) {
        bt_metrics_end(call->pub->metrics, &s->clock, end->code, end->finish, bt_now_ns());
        s->ended = true;
        send_soon(s);
    }
    bt_call_release(call);
}

const bt_client_events bt_public_events = {
    .token = on_token, .prompt = on_prompt, .placed = on_placed, .end = on_end};

static bt_stream *stream_create(bt_call *call, const bt_dialect *dialect,
                                const bt_relay_submission *r, bt_intake_answer *how)
{
    bt_stream *s = bt_calloc(1, sizeof(*s));

    if (s == NULL) return NULL;
    s->call    = call;
    s->dialect = dialect;
    call->pub->n_streams++;
    s->connection = bt_cork_join(&call->pub->corks, call->call);
    s->how        = *how;
    how->stop     = NULL; /* ours now */
    s->n_prompt   = r->n_prompt;
    s->name       = bt_strdup(r->name);
    s->choices    = bt_calloc(how->n, sizeof(*s->choices));
    if (s->name == NULL || s->choices == NULL) goto fail;
    s->n_choices = how->n;
    for (uint32_t i = 0; i < how->n; i++) {
        bt_choice *c = &s->choices[i];

        if (bt_choice_init(c, &s->how, call->pub->tokenizer) != BT_OK) goto fail;
        c->index = i;
    }
    if (r->sampling.prompt_logprobs != 0 &&
        bt_input_logprobs_init(&s->input, r->n_prompt, r->prompt, r->sampling.prompt_logprobs - 1,
                               s->how.prompt_from) != BT_OK)
        goto fail;
    return s;
fail:
    bt_stream_free(s);
    return NULL;
}

/* Gives the request to the relay. */
static void start(bt_stream *s, bt_relay_submission *r)
{
    uint32_t         max_tokens = r->sampling.max_tokens;
    grpc_status_code code       = GRPC_STATUS_OK;

    r->n_choices = s->n_choices;
    s->call->refs++; /* the relay's, until end() */
    if (bt_fleet_submit(s->call->pub->fleet, r, s, bt_now_ns(), &s->number, &code) != BT_OK) {
        s->call->refs--;
        fail(s, code, bt_error_text());
        return;
    }
    bt_log_set_request(s->number);
    BT_INFO("\"%.200s\": %u prompt tokens, at most %u more, %u choice%s", s->name, s->n_prompt,
            max_tokens, s->n_choices, s->n_choices == 1 ? "" : "s");
    bt_log_set_request(0);
}

/* The salt in the call's metadata into salt, all zero, which stays "" where there is none. */
static bt_status read_salt(const bt_call *call, char salt[BT_CACHE_SALT_MAX + 1], char *refusal)
{
    const grpc_metadata_array *all = &call->headers;
    char                       why[BT_CACHE_SALT_TEXT];

    for (size_t i = 0; i < all->count; i++) {
        grpc_slice  value = all->metadata[i].value;
        size_t      n     = GRPC_SLICE_LENGTH(value);
        const char *bytes = (const char *)GRPC_SLICE_START_PTR(value);

        if (grpc_slice_str_cmp(all->metadata[i].key, BT_CACHE_SALT_HEADER) != 0) continue;
        BT_INTAKE_REFUSE_UNLESS(salt[0] == '\0', BT_CACHE_SALT_HEADER
                                " stands in the call's metadata several times, expected once");
        BT_INTAKE_REFUSE_UNLESS(bt_cache_salt_check(n, bytes, why), BT_CACHE_SALT_HEADER " %s",
                                why);
        memcpy(salt, bytes, n);
    }
    return BT_OK;
}

void bt_public_generate(bt_call *call, const ProtobufCMessage *request, const bt_dialect *dialect)
{
    bt_relay_submission r = {0}, nothing = {.name = ""};
    bt_intake_answer    how                         = {.n = 1};
    char                salt[BT_CACHE_SALT_MAX + 1] = "";
    bt_status           st;

    call->pub->last_receive = bt_unix_s();
    st                      = dialect->intake(request, &call->pub->limits, &r, &how, call->why);
    if (st == BT_OK) st = read_salt(call, salt, call->why);
    if (st == BT_OK && salt[0] != '\0') r.cache_salt = salt;
    call->stream = stream_create(call, dialect, st == BT_OK ? &r : &nothing, &how);
    if (call->stream == NULL) {
        grpc_call_cancel_with_status(call->call, GRPC_STATUS_RESOURCE_EXHAUSTED,
                                     "the coordinator is out of memory", NULL);
    } else {
        bt_metrics_arrived(call->pub->metrics, &call->stream->clock, r.n_prompt, bt_now_ns());
        bt_call_watch_close(call, on_closed);
        if (call->pub->n_streams > BT_PUBLIC_STREAMS) {
            snprintf(call->why, sizeof(call->why),
                     "%d requests are open, as many as this server takes: try again later",
                     BT_PUBLIC_STREAMS);
            fail(call->stream, GRPC_STATUS_RESOURCE_EXHAUSTED, call->why);
        } else if (call->pub->draining) {
            fail(call->stream, GRPC_STATUS_UNAVAILABLE,
                 "draining: this server takes no new requests");
        } else if (st != BT_OK) {
            fail(call->stream,
                 st == BT_ERR_NO_MEMORY ? GRPC_STATUS_RESOURCE_EXHAUSTED
                                        : GRPC_STATUS_INVALID_ARGUMENT,
                 call->why);
        } else {
            start(call->stream, &r);
        }
    }
    bt_free(r.prompt); /* what the relay did not take */
    bt_sampling_free(&r.sampling);
    bt_intake_answer_free(&how);
}

/* The server: methods, calls that arrive, answers that are one message. */
#include "coordinator/public.h"

#include <errno.h>
#include <grpc/support/alloc.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "coordinator/dialect.h"
#include "core/alloc.h"
#include "core/clock.h"

enum { END_S = 20, MAX_ARGS = 16 };
/* Largest message: for each token its id and what it stands for, which some gateways send along;
 * and a constant for everything else. */
enum { TOKEN_BYTES = 32, OTHER_BYTES = 256 << 10 };
/* Memory that gRPC may hold, for all clients together, for calls and messages that are not
 * complete: this, and so many of the largest messages. */
enum { WIRE_BYTES = 256 << 20, WIRE_MESSAGES = 64 };

static void listen_for(bt_public *pub, bt_listener *listener);

/* ---- calls */

static void begin(bt_call *call, const grpc_op *ops, size_t n, bt_rpc_tag *tag)
{
    grpc_call_error e = grpc_call_start_batch(call->call, ops, n, tag, NULL);

    BT_ASSERT(e == GRPC_CALL_OK);
    bt_rpc_loop_begin(call->pub->loop);
    call->refs++;
}

void bt_call_release(bt_call *call)
{
    if (--call->refs > 0) return;
    call->pub->n_calls--;
    bt_stream_free(call->stream);
    if (call->payload != NULL) grpc_byte_buffer_destroy(call->payload);
    grpc_metadata_array_destroy(&call->headers);
    grpc_call_details_destroy(&call->details);
    if (call->call != NULL) grpc_call_unref(call->call);
    bt_free(call);
}

static void on_done(bt_rpc_tag *tag, bool ok)
{
    (void)ok;
    bt_call_release(tag->ctx);
}

void bt_call_watch_close(bt_call *call, void (*fn)(bt_rpc_tag *tag, bool ok))
{
    grpc_op op = {.op = GRPC_OP_RECV_CLOSE_ON_SERVER};

    op.data.recv_close_on_server.cancelled = &call->cancelled;
    call->closed                           = (bt_rpc_tag){fn, call};
    begin(call, &op, 1, &call->closed);
}

/* ---- waiting for clients */

static void begin_wait(bt_call *call)
{
    bt_public *pub = call->pub;

    call->waiting      = true;
    call->since_ns     = bt_now_ns();
    call->prev_waiting = pub->waiting_last;
    call->next_waiting = NULL;
    *(call->prev_waiting != NULL ? &call->prev_waiting->next_waiting : &pub->waiting) = call;
    pub->waiting_last                                                                 = call;
}

static void end_wait(bt_call *call)
{
    bt_public *pub  = call->pub;
    bt_call   *prev = call->prev_waiting, *next = call->next_waiting;

    if (!call->waiting) return;
    call->waiting                                              = false;
    *(prev != NULL ? &prev->next_waiting : &pub->waiting)      = next;
    *(next != NULL ? &next->prev_waiting : &pub->waiting_last) = prev;
}

static void cut_off(bt_call *call)
{
    bool        idle   = call->receiving && call->begun; /* it has its answers */
    const char *method = call->method != NULL ? call->method->path : "another method";
    char       *peer   = grpc_call_get_peer(call->call);

    bt_log_write(idle ? BT_LOG_INFO : BT_LOG_WARN, __FILE__, __LINE__,
                 "\"%.200s\": its client, %s, has %s for %.0f s and is cut off",
                 call->stream != NULL ? bt_stream_name(call->stream) : method, peer,
                 idle              ? "sent no other request"
                 : call->receiving ? "not finished its request"
                                   : "taken no message",
                 (double)call->pub->unread_ns * 1e-9);
    gpr_free(peer);
    grpc_call_cancel_with_status(call->call, GRPC_STATUS_DEADLINE_EXCEEDED,
                                 idle ? "no other request came for too long"
                                 : call->receiving
                                     ? "the request was not finished for too long"
                                     : "no message of the answer was taken for too long",
                                 NULL);
}

/* gRPC takes a message from us when the client has made room for the one before. */
void bt_public_cut_off_silent(bt_public *pub)
{
    uint64_t now_ns = bt_now_ns();

    if (bt_stood_still_ns(&pub->polled_ns, now_ns, pub->unread_ns / 2) != 0)
        for (bt_call *call = pub->waiting; call != NULL; call = call->next_waiting)
            call->since_ns = now_ns; /* it was not the clients */
    while (pub->waiting != NULL && now_ns - pub->waiting->since_ns >= pub->unread_ns) {
        bt_call *call = pub->waiting;

        end_wait(call);
        cut_off(call);
    }
}

static void on_sent(bt_rpc_tag *tag, bool ok)
{
    bt_call *call = tag->ctx;

    (void)ok; /* a send that fails is followed by the close */
    end_wait(call);
    if (call->then != NULL) call->then(call);
    bt_call_release(call);
}

void bt_call_send(bt_call *call, grpc_byte_buffer *message, grpc_status_code code, const char *why,
                  void (*then)(bt_call *call))
{
    grpc_op    ops[3]  = {0};
    grpc_slice details = why != NULL ? grpc_slice_from_copied_string(why) : grpc_empty_slice();
    size_t     n       = 0;

    if (!call->begun) ops[n++].op = GRPC_OP_SEND_INITIAL_METADATA;
    call->begun = true;
    if (message != NULL) {
        ops[n].op                               = GRPC_OP_SEND_MESSAGE;
        ops[n++].data.send_message.send_message = message;
    }
    if (why != NULL) {
        ops[n].op                                            = GRPC_OP_SEND_STATUS_FROM_SERVER;
        ops[n].data.send_status_from_server.status           = code;
        ops[n++].data.send_status_from_server.status_details = &details;
    }
    call->sent = (bt_rpc_tag){on_sent, call};
    call->then = then;
    begin_wait(call);
    begin(call, ops, n, &call->sent);
    if (message != NULL) grpc_byte_buffer_destroy(message);
    grpc_slice_unref(details);
}

static void receive(bt_call *call);

static void count_refused(bt_public *pub)
{
    bt_request_clock clock;
    uint64_t         now_ns = bt_now_ns();

    bt_metrics_arrived(pub->metrics, &clock, 0, now_ns);
    bt_metrics_end(pub->metrics, &clock, GRPC_STATUS_INVALID_ARGUMENT, BT_FINISH_NONE, now_ns);
}

static void serve(bt_call *call)
{
    const bt_method  *m       = call->method;
    bool              came    = call->payload != NULL; /* else its client has gone */
    bool              at_end  = m->answer_each != NULL && !came;
    ProtobufCMessage *request = at_end ? NULL : bt_rpc_unpack(call->payload, m->request);
    grpc_byte_buffer *reply;

    if (call->payload != NULL) grpc_byte_buffer_destroy(call->payload);
    call->payload = NULL;
    if (!call->begun && (request == NULL || m->stream == NULL)) bt_call_watch_close(call, on_done);
    if (at_end) { /* the client sends no more */
        bt_call_send(call, NULL, GRPC_STATUS_OK, "", NULL);
    } else if (request == NULL) {
        if (came && m->counted) count_refused(call->pub);
        snprintf(call->why, sizeof(call->why), "%s", bt_error_text());
        bt_call_send(call, NULL, GRPC_STATUS_INVALID_ARGUMENT, call->why, NULL);
    } else if (m->stream != NULL) {
        m->stream(call, request);
    } else {
        reply = (m->answer != NULL ? m->answer : m->answer_each)(call, request);
        if (reply != NULL && m->answer_each != NULL) /* the next one when the client has room */
            bt_call_send(call, reply, GRPC_STATUS_OK, NULL, receive);
        else
            bt_call_send(call, reply, reply != NULL ? GRPC_STATUS_OK : call->code, call->why, NULL);
    }
    if (request != NULL) protobuf_c_message_free_unpacked(request, NULL);
}

static void on_received(bt_rpc_tag *tag, bool ok)
{
    bt_call *call = tag->ctx;

    (void)ok; /* what is no message cannot be parsed */
    end_wait(call);
    call->receiving = false;
    serve(call);
    bt_call_release(call);
}

static void receive(bt_call *call)
{
    grpc_op op = {.op = GRPC_OP_RECV_MESSAGE, .data.recv_message.recv_message = &call->payload};

    call->received  = (bt_rpc_tag){on_received, call};
    call->receiving = true;
    begin_wait(call);
    begin(call, &op, 1, &call->received);
}

/* The call that has waited for its client the longest goes, since who begins calls to hold the port
 * finishes none; if none waits, the newest.  A call that is cancelled stays in gRPC's memory until
 * its client has read that, so its connection goes too, of one call in each turn of the loop: the
 * others on it end by that. */
static void make_room(bt_call *newest)
{
    bt_public *pub  = newest->pub;
    bt_call   *call = pub->waiting != NULL ? pub->waiting : newest;

    if (!pub->hung_up) bt_cork_hang_up(&pub->corks, call->call);
    pub->hung_up = true;
    end_wait(call);
    grpc_call_cancel_with_status(call->call, GRPC_STATUS_RESOURCE_EXHAUSTED,
                                 "too many calls are open: try again later", NULL);
}

static void on_arrived(bt_rpc_tag *tag, bool ok)
{
    bt_call *call = tag->ctx;

    if (ok) {
        listen_for(call->pub, call->listener);
        if (call->pub->n_calls > BT_PUBLIC_ALL_CALLS) make_room(call);
        if (call->method != NULL) {
            receive(call);
        } else {
            bt_call_watch_close(call, on_done);
            bt_call_send(call, NULL, GRPC_STATUS_UNIMPLEMENTED, "this server has no such method",
                         NULL);
        }
    }
    bt_call_release(call);
}

static void listen_for(bt_public *pub, bt_listener *listener)
{
    grpc_completion_queue *cq     = bt_rpc_loop_cq(pub->loop);
    bt_call               *call   = pub->stopping ? NULL : bt_calloc(1, sizeof(*call));
    const bt_method       *method = listener->method;
    grpc_call_error        e;

    if (call == NULL) {
        if (!pub->stopping && !listener->deaf)
            BT_WARN("out of memory: calls of %s wait until there is some",
                    method != NULL ? method->path : "other methods");
        listener->deaf = true;
        return;
    }
    listener->deaf = false;
    pub->n_calls++;
    call->pub      = pub;
    call->method   = method;
    call->listener = listener;
    call->refs     = 1;
    call->arrived  = (bt_rpc_tag){on_arrived, call};
    grpc_metadata_array_init(&call->headers);
    grpc_call_details_init(&call->details);
    if (method != NULL)
        e = grpc_server_request_registered_call(pub->server, listener->registered, &call->call,
                                                &call->deadline, &call->headers, NULL, cq, cq,
                                                &call->arrived);
    else
        e = grpc_server_request_call(pub->server, &call->call, &call->details, &call->headers, cq,
                                     cq, &call->arrived);
    BT_ASSERT(e == GRPC_CALL_OK);
    bt_rpc_loop_begin(pub->loop);
}

void bt_public_listen_again(bt_public *pub)
{
    for (size_t i = 0; i < pub->n_listeners && !pub->stopping; i++)
        if (pub->listeners[i].deaf) listen_for(pub, &pub->listeners[i]);
}

/* ---- the server */

/* The part of a model's default sampling that this server supports.  A gateway fills the defaults
 * into the requests of its users, which would otherwise be refused for something that they never
 * asked for. */
static char *supported_defaults(const char *text)
{
    static const char *const NAMES[] = {"temperature", "top_p", "top_k", "min_p",
                                        "repetition_penalty"};
    json_t                  *all = json_loads(text, 0, NULL), *kept = json_object();
    char                    *dump = NULL, *copy = NULL;

    for (size_t i = 0; i < sizeof(NAMES) / sizeof(NAMES[0]); i++) {
        json_t *value = json_object_get(all, NAMES[i]);

        if (json_is_number(value)) json_object_set(kept, NAMES[i], value);
    }
    if (json_object_size(kept) > 0) dump = json_dumps(kept, JSON_COMPACT | JSON_REAL_PRECISION(6));
    copy = bt_strdup(dump != NULL ? dump : "");
    free(dump);
    json_decref(kept);
    json_decref(all);
    return copy;
}

/* Messages larger than any request needs are not read, since unpacking them would hold up every
 * stream.  What clients send and never finish is bounded too: beyond that bound gRPC reads on only
 * as it frees other messages. */
static grpc_server *create_server(uint32_t max_context, uint64_t unread_ns)
{
    const grpc_channel_args *usual   = bt_rpc_server_args();
    uint64_t                 limit   = (uint64_t)max_context * TOKEN_BYTES + OTHER_BYTES;
    uint64_t                 idle_ms = unread_ns / BT_NS_PER_MS;
    grpc_resource_quota     *quota   = grpc_resource_quota_create("public");
    grpc_server             *server;
    grpc_arg                 args[MAX_ARGS];
    grpc_channel_args        all = {usual->num_args, args};

    BT_ASSERT(usual->num_args + 2 <= MAX_ARGS);
    grpc_resource_quota_resize(quota, WIRE_BYTES + WIRE_MESSAGES * limit);
    for (size_t i = 0; i < usual->num_args; i++) {
        args[i] = usual->args[i];
        if (strcmp(args[i].key, GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH) == 0 &&
            limit < (uint64_t)args[i].value.integer)
            args[i].value.integer = (int)limit;
        if (strcmp(args[i].key, GRPC_ARG_MAX_CONNECTION_IDLE_MS) == 0)
            args[i].value.integer = idle_ms < INT_MAX ? (int)idle_ms : INT_MAX;
    }
    args[all.num_args++] =
        (grpc_arg)BT_RPC_INT_ARG(GRPC_ARG_MAX_CONCURRENT_STREAMS, BT_PUBLIC_CALLS);
    args[all.num_args++] = (grpc_arg){
        .type          = GRPC_ARG_POINTER,
        .key           = (char *)GRPC_ARG_RESOURCE_QUOTA,
        .value.pointer = {quota, grpc_resource_quota_arg_vtable()}
    };
    server = grpc_server_create(&all, NULL);
    grpc_resource_quota_unref(quota);
    return server;
}

static void on_down(bt_rpc_tag *tag, bool ok)
{
    bt_public *pub = tag->ctx;

    (void)ok;
    pub->is_down = true;
}

/* 1 + the id of an added token; 0: there is none. */
static uint32_t added_id(const bt_public *pub, const char *text)
{
    return pub->tokenizer == NULL ? 0 : (uint32_t)(bt_tokenizer_added_id(pub->tokenizer, text) + 1);
}

/* Without one only stop strings, structured output and GetTokenizer cannot be had. */
static void open_tokenizer(bt_public *pub, const char *model)
{
    char path[PATH_MAX];

    bt_tokenizer_file(model, path);
    if (access(path, F_OK) != 0) {
        BT_WARN("no stop strings, no structured output and no GetTokenizer: %s: %s", path,
                strerror(errno));
    } else {
        if (bt_tokenizer_open(model, &pub->tokenizer) != BT_OK)
            BT_WARN("no stop strings and no structured output: %s", bt_error_text());
        if (bt_archive_create(model, &pub->archive) != BT_OK)
            BT_WARN("no GetTokenizer: %s", bt_error_text());
    }
    pub->limits.tokenizer   = pub->tokenizer != NULL;
    pub->limits.think_begin = added_id(pub, "<think>");
    pub->limits.think_end   = added_id(pub, "</think>");
}

static bt_status init(bt_public *pub, const bt_public_config *config)
{
    bt_status st = BT_OK;

    pub->started_ns                  = bt_now_ns();
    pub->facts                       = config->facts;
    pub->metrics                     = config->metrics;
    pub->known.seed                  = bt_prefix_seed();
    pub->limits.known                = &pub->known;
    pub->limits.vocab_size           = config->facts->vocab_size;
    pub->limits.max_context          = config->facts->max_context;
    pub->limits.page_tokens          = pub->facts->page_tokens;
    pub->unread_ns                   = config->unread_ns;
    pub->dialects[pub->n_dialects++] = &bt_dialect_vllm;
    if (config->sglang) pub->dialects[pub->n_dialects++] = &bt_dialect_sglang;
    bt_public_grow(pub);
    BT_TRY(bt_reflection_create(&pub->reflection));
    open_tokenizer(pub, config->model_path);
    pub->public_path      = config->public_path;
    pub->served_name      = config->served_name;
    pub->default_sampling = supported_defaults(config->facts->default_sampling_json);
    BT_REQUIRE(pub->default_sampling != NULL, BT_ERR_NO_MEMORY, "facts of the model");
out:
    return st;
}

static void register_methods(bt_public *pub, const bt_method *methods, size_t n)
{
    BT_ASSERT(pub->n_listeners + n <= BT_METHODS_MAX);
    for (size_t i = 0; i < n; i++)
        pub->listeners[pub->n_listeners++] =
            (bt_listener){.method     = &methods[i],
                          .registered = grpc_server_register_method(
                              pub->server, methods[i].path, NULL, GRPC_SRM_PAYLOAD_NONE, 0)};
}

/* When gRPC uses none of it: the server has ended, or has never started. */
static void discard(bt_public *pub)
{
    if (pub == NULL) return;
    if (pub->server != NULL) grpc_server_destroy(pub->server);
    bt_cork_fini(&pub->corks);
    bt_archive_destroy(pub->archive);
    bt_reflection_destroy(pub->reflection);
    bt_tokenizer_close(pub->tokenizer);
    bt_free(pub->default_sampling);
    bt_free(pub);
}

bt_status bt_public_create(bt_rpc_loop *loop, const char *address, const bt_public_config *config,
                           bt_fleet *fleet, bt_public **public_out, uint16_t *port_out)
{
    bt_status  st  = BT_OK;
    bt_public *pub = bt_calloc(1, sizeof(*pub));

    BT_REQUIRE(pub != NULL, BT_ERR_NO_MEMORY, "public port");
    pub->loop  = loop;
    pub->fleet = fleet;
    pub->down  = (bt_rpc_tag){on_down, pub};
    BT_TRY(init(pub, config));
    pub->server = create_server(config->facts->max_context, config->unread_ns);
    grpc_server_register_completion_queue(pub->server, bt_rpc_loop_cq(loop), NULL);
    register_methods(pub, bt_public_methods, bt_public_n_methods);
    for (size_t i = 0; i < pub->n_dialects; i++)
        register_methods(pub, pub->dialects[i]->methods, pub->dialects[i]->n_methods);
    pub->n_listeners++; /* of other paths */
    BT_TRY(bt_rpc_listen(pub->server, address, config->tls, &pub->port));
    grpc_server_start(pub->server);
    for (size_t i = 0; i < pub->n_listeners; i++)
        listen_for(pub, &pub->listeners[i]);
    pub->corks.port = *port_out = pub->port;
    *public_out                 = pub;
    pub                         = NULL; /* handed over */
out:
    discard(pub);
    return st;
}

void bt_public_grow(bt_public *pub)
{
    uint64_t tokens = bt_fleet_max_tokens(pub->fleet), prompt = bt_fleet_max_prompt(pub->fleet);

    if (tokens > pub->limits.max_tokens) pub->limits.max_tokens = tokens;
    if (prompt > pub->limits.max_prompt) pub->limits.max_prompt = prompt;
}

void bt_public_drain(bt_public *pub)
{
    pub->draining = true;
    bt_public_tell_watchers(pub);
}

uint32_t bt_public_n_streams(const bt_public *pub) { return pub->n_streams; }

/* Else it goes on, as it does by polls. */
static bool is_over(void *pub_)
{
    bt_public *pub = pub_;

    if (pub->is_down && pub->n_calls == 0) return true;
    bt_public_poll(pub);
    return false;
}

bool bt_public_destroy(bt_public *pub)
{
    if (pub == NULL) return true;
    pub->stopping = true;
    bt_rpc_hang_up(pub->port);
    grpc_server_shutdown_and_notify(pub->server, bt_rpc_loop_cq(pub->loop), &pub->down);
    bt_rpc_loop_begin(pub->loop);
    grpc_server_cancel_all_calls(pub->server);
    /* Cancelled operations complete at once, however many there are; their tags point into what is
     * about to be freed.  Thousands of connections take long on a busy machine. */
    if (!bt_rpc_loop_await(pub->loop, is_over, pub, END_S * BT_NS_PER_S)) {
        BT_WARN("gRPC has not closed port %u within %d s of the end, with %llu calls left; "
                "the process ends without that",
                pub->port, END_S, (unsigned long long)pub->n_calls);
        return false;
    }
    discard(pub);
    return true;
}

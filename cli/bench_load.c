#include "cli/bench_load.h"

#include <grpc/grpc.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "proto/rpc_call.h"
#include "proto/vllm_engine.pb-c.h"

#define VLLM(name) Vllm__Grpc__Engine__##name
#define GENERATE   "/vllm.grpc.engine.VllmEngine/Generate"
#define TICK_NS    (100 * BT_NS_PER_MS)
#define CONNECT_NS (5 * BT_NS_PER_S)

typedef struct driver driver;

/* One call; freed when it has ended. */
typedef struct bench_call bench_call;
struct bench_call {
    bt_rpc_call rpc;
    driver     *d;
    bench_call *next, **link; /* among those under way */
    size_t      record, last_message;
    uint64_t    i; /* index in the plan */
    bool        complete, broken;
};

struct driver {
    const bt_bench_load *load;
    bt_bench_run        *run;
    bt_rpc_loop         *loop;
    grpc_channel        *channel;
    bench_call          *calls; /* under way */
    bt_bench_progress    seen;
    uint64_t             start_ns, tick_ns, due_ns; /* due: of the next request */
    uint32_t            *prompt;                    /* [the longest] */
    bt_status            st;
};

const char *bt_bench_code_name(int code)
{
    if (code == BT_BENCH_CODES - 1) return "broken protocol";
    return code >= 0 && code < BT_BENCH_CODES ? bt_rpc_code_name((grpc_status_code)code)
                                              : "unfinished";
}

static uint64_t now_ns(const driver *d) { return bt_now_ns() - d->start_ns; }

/* ---- what comes */

static void broken(bench_call *c, const char *what)
{
    char *text = c->d->run->first_error[BT_BENCH_PROTOCOL];

    c->broken = true;
    if (text[0] == '\0') snprintf(text, sizeof(c->d->run->first_error[0]), "%s", what);
}

/* Doubles an array; false when memory is short. */
static bool grow(void **array, size_t *capacity, size_t size)
{
    size_t wanted = 2 * *capacity + 256;
    void  *grown  = bt_realloc(*array, wanted, size);

    if (grown == NULL) return false;
    *array    = grown;
    *capacity = wanted;
    return true;
}

static void take_tokens(bench_call *c, size_t n)
{
    driver          *d   = c->d;
    bt_bench_run    *run = d->run;
    bt_bench_record *r   = &run->records[c->record];

    if (n == 0) return;
    if (run->n_messages == run->message_capacity &&
        !grow((void **)&run->messages, &run->message_capacity, sizeof(*run->messages))) {
        d->st = BT_ERR_NO_MEMORY;
        return;
    }
    r->last_ns = now_ns(d);
    if (r->n_messages++ == 0) {
        r->first_ns      = r->last_ns;
        r->first_message = run->n_messages;
    } else {
        run->messages[c->last_message].next = run->n_messages;
    }
    c->last_message                  = run->n_messages;
    run->messages[run->n_messages++] = (bt_bench_message){r->last_ns, (uint32_t)n, SIZE_MAX};
    r->n_tokens += (uint32_t)n;
    d->seen.n_tokens += n;
}

static void take_response(bench_call *c, const VLLM(GenerateResponse) * m)
{
    bt_bench_record *r = &c->d->run->records[c->record];

    if (c->complete) {
        broken(c, "a message came after the complete one");
    } else if (m->response_case == VLLM__GRPC__ENGINE__GENERATE_RESPONSE__RESPONSE_CHUNK) {
        take_tokens(c, m->chunk->n_token_ids);
    } else if (m->response_case == VLLM__GRPC__ENGINE__GENERATE_RESPONSE__RESPONSE_COMPLETE) {
        c->complete = true;
        r->n_cached = m->complete->cached_tokens;
        if (m->complete->completion_tokens != r->n_tokens)
            broken(c, "the complete message counts a different number of tokens than came");
    } else {
        broken(c, "an empty answer");
    }
}

static void on_message(bt_rpc_call *rpc, ProtobufCMessage *message)
{
    bench_call *c = rpc->ctx;

    if (message == NULL)
        broken(c, bt_error_text());
    else
        take_response(c, (const VLLM(GenerateResponse) *)message);
    if (c->broken) bt_rpc_call_cancel(rpc);
}

/* The status is known, and every message has been seen. */
static void finish(bench_call *c)
{
    driver          *d    = c->d;
    bt_bench_record *r    = &d->run->records[c->record];
    int              code = (int)c->rpc.code;

    r->end_ns = now_ns(d);
    if (code < 0 || code >= BT_BENCH_PROTOCOL) code = GRPC_STATUS_UNKNOWN;
    if (code == GRPC_STATUS_OK && !c->complete)
        broken(c, "the stream ended without a complete message");
    if (c->broken) code = BT_BENCH_PROTOCOL;
    if (*d->load->stop == 0 || code == GRPC_STATUS_OK) r->code = code;
    if (r->code > 0) {
        char *text = d->run->first_error[code], details[sizeof(d->run->first_error[0])];

        if (text[0] == '\0') {
            bt_rpc_slice_text(c->rpc.details, details, sizeof(details));
            bt_error_keep("", "%s", details); /* fit for a terminal */
            snprintf(text, sizeof(details), "%s", bt_error_text());
        }
        d->seen.n_failed++;
    }
    d->seen.n_ended++;
    d->seen.n_running--;
}

static void on_end(bt_rpc_call *rpc)
{
    bench_call *c = rpc->ctx;

    finish(c);
    *c->link = c->next;
    if (c->next != NULL) c->next->link = c->link;
    bt_rpc_call_fini(rpc);
    bt_free(c);
}

/* ---- what goes */

static void begin_call(bench_call *c, const bt_bench_request *r)
{
    const bt_bench_load *load = c->d->load;
    char                 id[96];
    VLLM(GenerateRequest) q  = VLLM__GRPC__ENGINE__GENERATE_REQUEST__INIT;
    VLLM(TokenizedInput) in  = VLLM__GRPC__ENGINE__TOKENIZED_INPUT__INIT;
    VLLM(SamplingParams) how = VLLM__GRPC__ENGINE__SAMPLING_PARAMS__INIT;

    snprintf(id, sizeof(id), "bench-%d-%llx-%llu", (int)getpid(),
             (unsigned long long)c->d->start_ns, (unsigned long long)c->i);
    bt_bench_plan_prompt(load->plan, c->i, r, c->d->prompt);
    how._temperature_case = VLLM__GRPC__ENGINE__SAMPLING_PARAMS___TEMPERATURE_TEMPERATURE;
    how.temperature       = load->temperature;
    how._max_tokens_case  = VLLM__GRPC__ENGINE__SAMPLING_PARAMS___MAX_TOKENS_MAX_TOKENS;
    how.max_tokens        = r->n_output;
    how._seed_case        = VLLM__GRPC__ENGINE__SAMPLING_PARAMS___SEED_SEED;
    how.seed              = (int32_t)(c->i % INT32_MAX);
    how.ignore_eos        = load->ignore_eos;
    in.n_input_ids        = r->n_prompt;
    in.input_ids          = c->d->prompt;
    q.request_id          = id;
    q.input_case          = VLLM__GRPC__ENGINE__GENERATE_REQUEST__INPUT_TOKENIZED;
    q.tokenized           = &in;
    q.sampling_params     = &how;
    q.stream              = true;
    bt_rpc_call_start(&c->rpc, c->d->loop, c->d->channel, GENERATE, &q.base,
                      bt_now_ns() + load->timeout_ns);
}

static bt_bench_record *add_record(bt_bench_run *run)
{
    if (run->n == run->capacity &&
        !grow((void **)&run->records, &run->capacity, sizeof(*run->records)))
        return NULL;
    run->records[run->n] = (bt_bench_record){.code = -1, .first_message = SIZE_MAX};
    return &run->records[run->n++];
}

static bt_status send_one(driver *d)
{
    bt_status        st      = BT_OK;
    uint64_t         i       = d->load->first_request + d->seen.n_sent;
    bt_bench_request request = bt_bench_plan_request(d->load->plan, i);
    bt_bench_record *r       = add_record(d->run);
    bench_call      *c       = bt_calloc(1, sizeof(*c));

    BT_REQUIRE(r != NULL && c != NULL, BT_ERR_NO_MEMORY, "request %llu", (unsigned long long)i);
    c->rpc    = (bt_rpc_call){.answer     = &vllm__grpc__engine__generate_response__descriptor,
                              .on_message = on_message,
                              .on_end     = on_end,
                              .ctx        = c};
    c->d      = d;
    c->i      = i;
    c->record = d->run->n - 1;
    c->next   = d->calls;
    c->link   = &d->calls;
    if (d->calls != NULL) d->calls->link = &c->next;
    d->calls    = c;
    r->n_prompt = request.n_prompt;
    r->n_wanted = request.n_output;
    r->sent_ns  = now_ns(d);
    r->due_ns   = d->load->concurrency != 0 ? r->sent_ns : d->due_ns;
    begin_call(c, &request);
    c = NULL;
    d->seen.n_sent++;
    d->seen.n_running++;
out:
    bt_free(c);
    return st;
}

/* ---- the loop */

static bool may_send(const driver *d, uint64_t now)
{
    const bt_bench_load *l = d->load;

    return d->seen.n_sent < l->n_requests && now < l->send_ns &&
           (l->concurrency == 0 || d->seen.n_running < l->concurrency);
}

static bt_status send_due(driver *d)
{
    bt_status            st = BT_OK;
    const bt_bench_load *l  = d->load;

    while (may_send(d, now_ns(d)) && (l->concurrency != 0 || d->due_ns <= now_ns(d))) {
        BT_TRY(send_one(d));
        if (l->concurrency == 0)
            d->due_ns += bt_bench_plan_gap_ns(l->plan, l->first_request + d->seen.n_sent);
    }
out:
    return st;
}

static void tell(driver *d)
{
    uint64_t now = now_ns(d);

    if (now < d->tick_ns) return;
    d->tick_ns         = now + TICK_NS;
    d->seen.elapsed_ns = now;
    if (d->load->progress != NULL) d->load->progress(d->load->ctx, &d->seen);
}

static void cancel_all(driver *d)
{
    for (bench_call *c = d->calls; c != NULL; c = c->next)
        bt_rpc_call_cancel(&c->rpc);
    while (d->calls != NULL)
        bt_rpc_loop_run_once(d->loop, bt_now_ns() + TICK_NS);
}

/* Opens the connection now, so that it counts in no request's time.  If the server does not
 * answer, the requests will show it. */
static void connect_first(driver *d)
{
    uint64_t give_up = bt_now_ns() + CONNECT_NS;

    while (grpc_channel_check_connectivity_state(d->channel, 1) != GRPC_CHANNEL_READY &&
           bt_now_ns() < give_up && *d->load->stop == 0)
        bt_rpc_loop_run_once(d->loop, bt_now_ns() + BT_NS_PER_MS);
}

static bt_status drive(driver *d)
{
    bt_status            st = BT_OK;
    const bt_bench_load *l  = d->load;
    uint64_t             wake;

    connect_first(d);
    d->start_ns = bt_now_ns();
    if (l->concurrency == 0) d->due_ns = bt_bench_plan_gap_ns(l->plan, l->first_request);
    for (;;) {
        if (*l->stop != 0) break;
        BT_TRY(send_due(d));
        tell(d);
        if (d->calls == NULL && !may_send(d, now_ns(d))) break;
        wake = bt_now_ns() + TICK_NS;
        if (l->concurrency == 0 && may_send(d, now_ns(d)) && d->start_ns + d->due_ns < wake)
            wake = d->start_ns + d->due_ns;
        bt_rpc_loop_run_once(d->loop, wake);
        BT_REQUIRE(d->st == BT_OK, d->st, "%zu messages", d->run->n_messages);
    }
out:
    cancel_all(d);
    d->run->stopped    = *l->stop != 0;
    d->run->start_ns   = d->start_ns;
    d->run->elapsed_ns = now_ns(d);
    d->tick_ns         = 0;
    tell(d);
    return st;
}

bt_status bt_bench_load_run(const bt_bench_load *load, bt_bench_run *run)
{
    bt_status st = BT_OK;
    driver    d  = {.load = load, .run = run};

    d.prompt = bt_calloc(load->plan->prompt.hi, sizeof(*d.prompt));
    BT_REQUIRE(d.prompt != NULL, BT_ERR_NO_MEMORY, "a prompt of %u tokens", load->plan->prompt.hi);
    BT_TRY(bt_rpc_loop_create(&d.loop));
    BT_TRY(bt_rpc_channel_create(load->address, &load->tls, &d.channel));
    BT_TRY(drive(&d));
out:
    if (d.channel != NULL) grpc_channel_destroy(d.channel);
    bt_rpc_loop_destroy(d.loop);
    bt_free(d.prompt);
    return st;
}

void bt_bench_run_fini(bt_bench_run *run)
{
    bt_free(run->records);
    bt_free(run->messages);
    memset(run, 0, sizeof(*run));
}

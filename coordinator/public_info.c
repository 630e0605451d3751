/* The methods whose answer is one message: health, facts of the model and the server, loads, Abort.
 */
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "coordinator/public_call.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "proto/health.pb-c.h"
#include "proto/reflection.pb-c.h"
#include "proto/text.h"

enum { RATE_WINDOW_S = 5, EOS_MAX = 64, ABORTS_MAX = 4096 };

static grpc_byte_buffer *fail(bt_call *call, grpc_status_code code, const char *why)
{
    call->code = code;
    snprintf(call->why, sizeof(call->why), "%s", why);
    return NULL;
}

static grpc_byte_buffer *health_check(bt_call *call, const ProtobufCMessage *request)
{
    Vllm__Grpc__Engine__HealthCheckResponse reply = VLLM__GRPC__ENGINE__HEALTH_CHECK_RESPONSE__INIT;
    static char                             ready[] = "ready";

    (void)request;
    /* healthy = false would not suffice: a gateway that registers looks at the status alone. */
    if (call->pub->draining)
        return fail(call, GRPC_STATUS_UNAVAILABLE, "the server is shutting down");
    reply.healthy = 1;
    reply.message = ready;
    return bt_rpc_pack(&reply.base);
}

static grpc_byte_buffer *standard_health(bt_call *call, const ProtobufCMessage *request)
{
    const char *service = ((const Grpc__Health__V1__HealthCheckRequest *)request)->service;
    Grpc__Health__V1__HealthCheckResponse reply = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__INIT;

    if (!bt_public_has_service(service))
        return fail(call, GRPC_STATUS_NOT_FOUND, "no such service");
    reply.status = call->pub->draining
                       ? GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__NOT_SERVING
                       : GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVING;
    return bt_rpc_pack(&reply.base);
}

static grpc_byte_buffer *model_info(bt_call *call, const ProtobufCMessage *request)
{
    Vllm__Grpc__Engine__GetModelInfoResponse reply =
        VLLM__GRPC__ENGINE__GET_MODEL_INFO_RESPONSE__INIT;
    const bt_public   *pub = call->pub;
    const bt_up_hello *h   = pub->facts;
    int32_t            eos[EOS_MAX];
    char              *architectures[1] = {h->architecture};

    (void)request;
    reply.model_path         = pub->model_path;
    reply.tokenizer_path     = pub->model_path; /* must be there on the gateway's machine too */
    reply.served_model_name  = pub->served_name;
    reply.is_generation      = 1;
    reply.max_context_length = h->max_context;
    reply.max_req_input_len  = (int32_t)h->max_context - 1;
    reply.vocab_size         = h->vocab_size;
    reply.model_type         = h->model_type;
    reply.n_architectures    = h->architecture[0] != 0;
    reply.architectures      = architectures;
    reply.n_eos_token_ids    = h->n_eos < EOS_MAX ? h->n_eos : EOS_MAX;
    for (size_t i = 0; i < reply.n_eos_token_ids; i++)
        eos[i] = (int32_t)h->eos_tokens[i];
    reply.eos_token_ids                = eos;
    reply.bos_token_id                 = h->bos_token > 0 ? (int32_t)h->bos_token : 0;
    reply.pad_token_id                 = h->pad_token > 0 ? (int32_t)h->pad_token : 0;
    reply.default_sampling_params_json = pub->default_sampling;
    return bt_rpc_pack(&reply.base);
}

static grpc_byte_buffer *server_info(bt_call *call, const ProtobufCMessage *request)
{
    Vllm__Grpc__Engine__GetServerInfoResponse reply =
        VLLM__GRPC__ENGINE__GET_SERVER_INFO_RESPONSE__INIT;
    bt_relay_loads loads;
    static char    type[] = "baton";

    (void)request;
    bt_fleet_get_loads(call->pub->fleet, &loads);
    reply.active_requests        = loads.n_waiting + loads.n_running;
    reply.last_receive_timestamp = call->pub->last_receive;
    reply.uptime_seconds         = (double)(bt_now_ns() - call->pub->started_ns) * 1e-9;
    reply.server_type            = type;
    return bt_rpc_pack(&reply.base);
}

/* Tokens a second since the older of two samples, which are at least a window apart. */
static double throughput(bt_public *pub, uint64_t n_tokens)
{
    uint64_t now = bt_now_ns();
    double   rate;

    if (pub->rate_ns[0] == 0) pub->rate_ns[0] = pub->rate_ns[1] = pub->started_ns;
    if (now - pub->rate_ns[1] > RATE_WINDOW_S * BT_NS_PER_S) {
        pub->rate_ns[0]     = pub->rate_ns[1];
        pub->rate_tokens[0] = pub->rate_tokens[1];
        pub->rate_ns[1]     = now;
        pub->rate_tokens[1] = n_tokens;
    }
    if (now <= pub->rate_ns[0]) return 0;
    rate = (double)(n_tokens - pub->rate_tokens[0]);
    return rate / ((double)(now - pub->rate_ns[0]) * 1e-9);
}

static int32_t clamp(uint64_t value) { return value < INT32_MAX ? (int32_t)value : INT32_MAX; }

static grpc_byte_buffer *loads(bt_call *call, const ProtobufCMessage *request)
{
    Vllm__Grpc__Engine__SchedulerLoad    load   = VLLM__GRPC__ENGINE__SCHEDULER_LOAD__INIT;
    Vllm__Grpc__Engine__GetLoadsResponse reply  = VLLM__GRPC__ENGINE__GET_LOADS_RESPONSE__INIT;
    Vllm__Grpc__Engine__SchedulerLoad   *list[] = {&load};
    bt_relay_loads                       l;
    time_t                               now = time(NULL);
    struct tm                            tm;
    char                                 stamp[32];

    (void)request; /* one load whatever rank and sections are asked for */
    bt_fleet_get_loads(call->pub->fleet, &l);
    gmtime_r(&now, &tm);
    strftime(stamp, sizeof(stamp), "%Y-%m-%dT%H:%M:%SZ", &tm);
    load.num_running_reqs     = clamp(l.n_running);
    load.num_waiting_reqs     = clamp(l.n_waiting);
    load.num_total_reqs       = clamp((uint64_t)l.n_running + l.n_waiting);
    load.num_used_tokens      = clamp(l.used_tokens);
    load.max_total_num_tokens = clamp(l.total_tokens);
    load.token_usage    = l.total_tokens == 0 ? 1 : (double)l.used_tokens / (double)l.total_tokens;
    load.utilization    = load.token_usage;
    load.gen_throughput = throughput(call->pub, l.tokens_out);
    load.max_running_requests = clamp(l.max_running);
    reply.timestamp           = stamp;
    reply.version             = call->pub->version;
    reply.dp_rank_count       = 1;
    reply.n_loads             = 1;
    reply.loads               = list;
    return bt_rpc_pack(&reply.base);
}

static grpc_byte_buffer *abort_requests(bt_call *call, const ProtobufCMessage *request)
{
    const Vllm__Grpc__Engine__AbortRequest *pb = (const Vllm__Grpc__Engine__AbortRequest *)request;
    Vllm__Grpc__Engine__AbortResponse       reply = VLLM__GRPC__ENGINE__ABORT_RESPONSE__INIT;

    if (pb->n_request_ids > ABORTS_MAX) {
        call->code = GRPC_STATUS_INVALID_ARGUMENT;
        snprintf(call->why, sizeof(call->why), "%zu request_ids, at most %d are allowed",
                 pb->n_request_ids, ABORTS_MAX);
        return NULL;
    }
    for (size_t i = 0; i < pb->n_request_ids; i++) /* unknown and ended ones are fine */
        bt_fleet_abort_name(call->pub->fleet, pb->request_ids[i], "aborted by the client");
    return bt_rpc_pack(&reply.base);
}

static void generate(bt_call *call, const ProtobufCMessage *request)
{
    call->pub->last_receive = bt_unix_s();
    bt_public_generate(call, request);
}

#define ENGINE "/vllm.grpc.engine.VllmEngine/"
const bt_method bt_public_methods[] = {
    {.path    = ENGINE "Generate",
     .request = &vllm__grpc__engine__generate_request__descriptor,
     .stream  = generate             },
    {.path    = ENGINE "Abort",
     .request = &vllm__grpc__engine__abort_request__descriptor,
     .answer  = abort_requests       },
    {.path    = ENGINE "HealthCheck",
     .request = &vllm__grpc__engine__health_check_request__descriptor,
     .answer  = health_check         },
    {.path    = ENGINE "GetModelInfo",
     .request = &vllm__grpc__engine__get_model_info_request__descriptor,
     .answer  = model_info           },
    {.path    = ENGINE "GetServerInfo",
     .request = &vllm__grpc__engine__get_server_info_request__descriptor,
     .answer  = server_info          },
    {.path    = ENGINE "GetLoads",
     .request = &vllm__grpc__engine__get_loads_request__descriptor,
     .answer  = loads                },
    {.path    = "/grpc.health.v1.Health/Check",
     .request = &grpc__health__v1__health_check_request__descriptor,
     .answer  = standard_health      },
    {.path    = "/grpc.health.v1.Health/Watch",
     .request = &grpc__health__v1__health_check_request__descriptor,
     .stream  = bt_public_watch      },
    {.path        = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
     .request     = &grpc__reflection__v1__server_reflection_request__descriptor,
     .answer_each = bt_public_reflect},
    {.path        = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
     .request     = &grpc__reflection__v1__server_reflection_request__descriptor,
     .answer_each = bt_public_reflect},
};
const size_t bt_public_n_methods = sizeof(bt_public_methods) / sizeof(bt_public_methods[0]);

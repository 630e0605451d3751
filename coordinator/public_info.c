/* What the methods of all protocols share, and the methods that belong to none: health and
 * reflection. */
#include <stdarg.h>
#include <stdio.h>
#include <time.h>

#include "coordinator/dialect.h"
#include "core/clock.h"
#include "proto/reflection.pb-c.h"

enum { RATE_WINDOW_S = 5 };

grpc_byte_buffer *bt_public_fail(bt_call *call, grpc_status_code code, const char *fmt, ...)
{
    va_list ap;

    call->code = code;
    va_start(ap, fmt);
    vsnprintf(call->why, sizeof(call->why), fmt, ap);
    va_end(ap);
    return NULL;
}

/* Tokens a second since the older of two samples, which are at least a window apart. */
double bt_public_throughput(bt_public *pub, uint64_t n_tokens)
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

int32_t bt_public_clamp(uint64_t value) { return value < INT32_MAX ? (int32_t)value : INT32_MAX; }

void bt_public_time(char text[BT_TIME_TEXT])
{
    time_t    now = time(NULL);
    struct tm tm;

    gmtime_r(&now, &tm);
    strftime(text, BT_TIME_TEXT, "%Y-%m-%dT%H:%M:%SZ", &tm);
}

static grpc_byte_buffer *standard_health(bt_call *call, const ProtobufCMessage *request)
{
    const char *service = ((const Grpc__Health__V1__HealthCheckRequest *)request)->service;
    bt_asked    asked   = bt_public_asked(call->pub, service);
    Grpc__Health__V1__HealthCheckResponse reply = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__INIT;

    if (asked == BT_ASKED_UNKNOWN)
        return bt_public_fail(call, GRPC_STATUS_NOT_FOUND, "no such service");
    reply.status = bt_public_health(call->pub, asked);
    return bt_rpc_pack(&reply.base);
}

const bt_method bt_public_methods[] = {
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

/* The public port when memory is short: a method that could not wait for its next call does later;
 * when very many requests end at once; and when gRPC does not end, which a port that another one
 * has does not wait for. */
#include "coordinator/public.h"

#include <grpc/grpc.h>

#include "coordinator/fleet.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "proto/control_server.h"
#include "proto/rpc_call.h"
#include "proto/vllm_engine.pb-c.h"
#include "tests/support/test.h"

enum { WAIT_S = 5, ALLOCATIONS_MAX = 40, CROWD = 2500, CROWD_WAIT_S = 60 };

static bt_metrics  g_metrics;
static bt_up_hello g_facts = {.vocab_size            = 10,
                              .max_context           = 64,
                              .page_tokens           = 8,
                              .model_type            = (char *)"m",
                              .architecture          = (char *)"A",
                              .default_sampling_json = (char *)""};

static const bt_public_config CONFIG = {.model_path  = "no such model",
                                        .public_path = "",
                                        .served_name = "m",
                                        .facts       = &g_facts,
                                        .metrics     = &g_metrics,
                                        .unread_ns   = 60 * BT_NS_PER_S};

static bool g_ended;

static void on_message(bt_rpc_call *call, ProtobufCMessage *message) { (void)call, (void)message; }
static void on_end(bt_rpc_call *call) { (void)call, g_ended = true; }

/* The status of a call, also one that nobody answers. */
static grpc_status_code ask(bt_rpc_loop *loop, bt_public *pub, uint16_t port, const char *method)
{
    Vllm__Grpc__Engine__GetModelInfoRequest request =
        VLLM__GRPC__ENGINE__GET_MODEL_INFO_REQUEST__INIT;
    bt_rpc_call      call    = {.on_message = on_message, .on_end = on_end};
    grpc_channel    *channel = NULL;
    grpc_status_code code;
    char             address[32];

    snprintf(address, sizeof(address), "127.0.0.1:%u", port);
    EXPECT_EQ(bt_rpc_channel_create(address, &(bt_rpc_client_tls){0}, &channel), BT_OK);
    g_ended     = false;
    call.answer = &vllm__grpc__engine__get_model_info_response__descriptor;
    bt_rpc_call_start(&call, loop, channel, method, &request.base,
                      bt_now_ns() + WAIT_S * BT_NS_PER_S);
    while (!g_ended) {
        bt_public_poll(pub);
        bt_rpc_loop_run_once(loop, bt_now_ns() + BT_NS_PER_MS);
    }
    code = call.code;
    bt_rpc_call_fini(&call);
    grpc_channel_destroy(channel);
    return code;
}

static void listen_without_memory_is_tried_again(void)
{
    bt_fleet_config fleet_config = {.announce_fd = -1};
    bt_fleet_events events       = {0};
    uint32_t        n_deaf       = 0;
    bt_rpc_loop    *loop         = NULL;
    bt_fleet       *fleet        = NULL;
    long            live         = bt_alloc_live(), before, n_all;

    EXPECT_EQ(bt_rpc_loop_create(&loop), BT_OK);
    EXPECT_EQ(bt_fleet_create(&fleet_config, &events, &fleet), BT_OK);
    for (long k = 0; k < ALLOCATIONS_MAX; k++) {
        bt_public *pub = NULL;
        uint16_t   port;
        bt_status  st;

        before = bt_alloc_live();
        bt_alloc_fail_at(k);
        st    = bt_public_create(loop, "127.0.0.1:0", &CONFIG, fleet, &pub, &port);
        n_all = bt_alloc_live() - before;
        bt_alloc_fail_at(-1);
        if (st == BT_OK) {
            bt_public_poll(pub);
            n_deaf += bt_alloc_live() - before > n_all; /* it waits now */
            EXPECT_EQ(ask(loop, pub, port, "/vllm.grpc.engine.VllmEngine/GetModelInfo"),
                      GRPC_STATUS_OK);
            EXPECT_EQ(ask(loop, pub, port, "/vllm.grpc.engine.VllmEngine/Embed"),
                      GRPC_STATUS_UNIMPLEMENTED);
            EXPECT(bt_public_destroy(pub));
        }
        EXPECT_EQ(bt_alloc_live(), before);
    }
    EXPECT_EQ(n_deaf,
              12); /* of four methods of all servers, seven of the protocol, and other paths */
    bt_fleet_destroy(fleet);
    bt_rpc_loop_destroy(loop);
    EXPECT_EQ(bt_alloc_live(), live);
}

static void count_end(bt_rpc_call *call)
{
    EXPECT_EQ(call->code, GRPC_STATUS_INVALID_ARGUMENT);
    (*(uint32_t *)call->ctx)++;
    bt_rpc_call_fini(call);
}

/* All are refused, and none is told before it is polled for. */
static void ends_of_a_crowd_are_sent_by_turns(void)
{
    static bt_rpc_call                  calls[CROWD];
    Vllm__Grpc__Engine__GenerateRequest request = VLLM__GRPC__ENGINE__GENERATE_REQUEST__INIT;
    bt_fleet_config                     config  = {.announce_fd = -1};
    uint32_t                            n_ended = 0, n_polls = 0;
    uint64_t                            end_ns  = bt_now_ns() + CROWD_WAIT_S * BT_NS_PER_S;
    bt_rpc_loop                        *loop    = NULL;
    bt_fleet                           *fleet   = NULL;
    bt_public                          *pub     = NULL;
    grpc_channel                       *channel = NULL;
    uint16_t                            port    = 0;
    char                                address[32];

    EXPECT_EQ(bt_rpc_loop_create(&loop), BT_OK);
    EXPECT_EQ(bt_fleet_create(&config, &(bt_fleet_events){0}, &fleet), BT_OK);
    EXPECT_EQ(bt_public_create(loop, "127.0.0.1:0", &CONFIG, fleet, &pub, &port), BT_OK);
    snprintf(address, sizeof(address), "127.0.0.1:%u", port);
    EXPECT_EQ(bt_rpc_channel_create(address, &(bt_rpc_client_tls){0}, &channel), BT_OK);
    for (int i = 0; i < CROWD; i++) {
        calls[i] = (bt_rpc_call){.answer     = &vllm__grpc__engine__generate_response__descriptor,
                                 .on_message = on_message,
                                 .on_end     = count_end,
                                 .ctx        = &n_ended};
        bt_rpc_call_start(&calls[i], loop, channel, "/vllm.grpc.engine.VllmEngine/Generate",
                          &request.base, end_ns);
    }
    while (bt_public_n_streams(pub) < CROWD && bt_now_ns() < end_ns)
        bt_rpc_loop_run_once(loop, bt_now_ns() + BT_NS_PER_MS);
    EXPECT_EQ(bt_public_n_streams(pub), CROWD);
    EXPECT_EQ(n_ended, 0);
    for (; bt_public_has_more(pub); n_polls++)
        bt_public_poll(pub);
    EXPECT(n_polls > 1 && n_polls < 10);
    while (n_ended < CROWD && bt_now_ns() < end_ns)
        bt_rpc_loop_run_once(loop, bt_now_ns() + BT_NS_PER_MS);
    EXPECT_EQ(n_ended, CROWD);
    grpc_channel_destroy(channel);
    bt_public_destroy(pub);
    bt_fleet_destroy(fleet);
    bt_rpc_loop_destroy(loop);
}

static bool g_endless;

/* The linker puts this in its place. */
bool __real_bt_rpc_loop_await(bt_rpc_loop *loop, bool (*is_over)(void *ctx), void *ctx,
                              uint64_t wait_ns);
bool __wrap_bt_rpc_loop_await(bt_rpc_loop *loop, bool (*is_over)(void *ctx), void *ctx,
                              uint64_t wait_ns);
bool __wrap_bt_rpc_loop_await(bt_rpc_loop *loop, bool (*is_over)(void *ctx), void *ctx,
                              uint64_t wait_ns)
{
    return !g_endless && __real_bt_rpc_loop_await(loop, is_over, ctx, wait_ns);
}

static void port_that_is_taken_leaves_nothing_to_end(void)
{
    bt_rpc_loop       *loop  = NULL;
    bt_fleet          *fleet = NULL;
    bt_public         *pub = NULL, *second = NULL;
    bt_control_server *control = NULL;
    bt_fleet_config    config  = {.announce_fd = -1};
    uint16_t           port = 0, none = 0;
    char               address[32];
    long               live;

    EXPECT_EQ(bt_rpc_loop_create(&loop), BT_OK);
    EXPECT_EQ(bt_fleet_create(&config, &(bt_fleet_events){0}, &fleet), BT_OK);
    EXPECT_EQ(bt_public_create(loop, "127.0.0.1:0", &CONFIG, fleet, &pub, &port), BT_OK);
    snprintf(address, sizeof(address), "127.0.0.1:%u", port);
    live      = bt_alloc_live();
    g_endless = true;
    EXPECT_EQ(bt_public_create(loop, address, &CONFIG, fleet, &second, &none), BT_ERR_IO);
    EXPECT_EQ(bt_control_server_create(loop, address, &(bt_control_events){0}, &control, &none),
              BT_ERR_IO);
    g_endless = false;
    EXPECT_EQ(bt_alloc_live(), live);
    EXPECT(second == NULL && control == NULL && none == 0);
    EXPECT(bt_public_destroy(pub));
    bt_fleet_destroy(fleet);
    bt_rpc_loop_destroy(loop);
}

/* The last test: nothing of it may be freed. */
static void ends_that_do_not_come_are_no_bug_and_free_nothing(void)
{
    static bt_rpc_loop       *loop;
    static bt_fleet          *fleet;
    static bt_public         *pub;
    static bt_control_server *control;
    bt_fleet_config           config = {.announce_fd = -1};
    uint16_t                  port   = 0;
    long                      live;

    EXPECT_EQ(bt_rpc_loop_create(&loop), BT_OK);
    EXPECT_EQ(bt_fleet_create(&config, &(bt_fleet_events){0}, &fleet), BT_OK);
    EXPECT_EQ(
        bt_control_server_create(loop, "127.0.0.1:0", &(bt_control_events){0}, &control, &port),
        BT_OK);
    EXPECT_EQ(bt_public_create(loop, "127.0.0.1:0", &CONFIG, fleet, &pub, &port), BT_OK);
    g_endless = true;
    live      = bt_alloc_live();
    EXPECT(!bt_public_destroy(pub));
    EXPECT(!bt_control_server_destroy(control));
    EXPECT_EQ(bt_alloc_live(), live);
}

static const bt_test tests[] = {
    BT_TEST(listen_without_memory_is_tried_again),
    BT_TEST(ends_of_a_crowd_are_sent_by_turns),
    BT_TEST(port_that_is_taken_leaves_nothing_to_end),
    BT_TEST(ends_that_do_not_come_are_no_bug_and_free_nothing),
};

int main(int argc, char **argv)
{
    bt_log_init("test", BT_LOG_ERROR);
    return BT_RUN_TESTS(tests, argc > 1 ? argv[1] : NULL);
}

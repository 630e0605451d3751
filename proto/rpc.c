#include "proto/rpc.h"

#include <dirent.h>
#include <errno.h>
#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/slice.h>
#include <grpc/support/cpu.h>
#include <grpc/support/log.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "core/limits.h"
#include "core/machine.h"
#include "core/parse.h"
#include "proto/message_text.h"
#include "proto/text.h"

#define AWAIT_NS (10 * BT_NS_PER_MS) /* a look of bt_rpc_loop_await() */

/* Of a message, each of which takes memory: many more than any has that is meant well. */
enum { PARTS_MAX = 1 << 16 };
/* gRPC's threads: its executors, timers, and a pool. */
enum { FIXED_THREADS = 5, POOL_MIN = 2, POOL_MAX = 32 };
enum {
    BATCH          = 64,
    WAITED_US      = 1000,
    MESSAGE_BYTES  = 256 << 20,
    METADATA_BYTES = 32 << 10,
    DRAIN_S        = 20,
    IDLE_S         = 600
};

struct bt_rpc_loop {
    grpc_completion_queue *cq; /* owned */
    uint64_t               n_in_flight;
    bt_rpc_later          *deferred; /* list */
};

/* gRPC's own log lines: useful when trouble between processes is examined, else noise beside our
 * own errors. */
static void log_line(gpr_log_func_args *args)
{
    bt_log_write(BT_LOG_DEBUG, args->file, args->line, "grpc: %s", args->message);
}

bt_status bt_rpc_allow_threads(uint32_t n_more)
{
    uint32_t pool = gpr_cpu_num_cores(); /* a thread for each core, within bounds */

    pool = pool < POOL_MIN ? POOL_MIN : pool > POOL_MAX ? POOL_MAX : pool;
    return bt_limits_allow_threads("gRPC", FIXED_THREADS + pool + n_more);
}

bt_status bt_rpc_loop_create(bt_rpc_loop **loop_out)
{
    bt_status    st   = BT_OK;
    bt_rpc_loop *loop = NULL;

    BT_TRY(bt_rpc_allow_threads(0));
    loop = bt_calloc(1, sizeof(*loop));
    BT_REQUIRE(loop != NULL, BT_ERR_NO_MEMORY, "completion loop");
    gpr_set_log_function(log_line);
    grpc_init();
    loop->cq  = grpc_completion_queue_create_for_next(NULL);
    *loop_out = loop;
out:
    return st;
}

/* Runs the completion; false at a time out or at the queue's end. */
static bool next(bt_rpc_loop *loop, gpr_timespec deadline, grpc_completion_type *type_out)
{
    grpc_event  ev  = grpc_completion_queue_next(loop->cq, deadline, NULL);
    bt_rpc_tag *tag = ev.tag;

    *type_out = ev.type;
    if (ev.type != GRPC_OP_COMPLETE) return false;
    BT_ASSERT(loop->n_in_flight > 0);
    loop->n_in_flight--;
    tag->fn(tag, ev.success != 0);
    return true;
}

void bt_rpc_loop_destroy(bt_rpc_loop *loop)
{
    grpc_completion_type type     = GRPC_OP_COMPLETE;
    uint64_t             deadline = bt_now_ns() + DRAIN_S * BT_NS_PER_S;

    if (loop == NULL) return;
    grpc_completion_queue_shutdown(loop->cq);
    while (type == GRPC_OP_COMPLETE)
        next(loop, bt_rpc_deadline(deadline), &type);
    if (type == GRPC_QUEUE_SHUTDOWN)
        grpc_completion_queue_destroy(loop->cq);
    else /* its memory is better lost than the process hung */
        BT_WARN("%llu gRPC operations have not completed within %d s of the end",
                (unsigned long long)loop->n_in_flight, DRAIN_S);
    grpc_shutdown_blocking();
    bt_free(loop);
}

grpc_completion_queue *bt_rpc_loop_cq(bt_rpc_loop *loop) { return loop->cq; }

static void run_deferred(bt_rpc_loop *loop)
{
    while (loop->deferred != NULL) {
        bt_rpc_later *later = loop->deferred;

        loop->deferred = later->next;
        loop->n_in_flight--;
        later->fn(later->ctx);
    }
}

/* Runs a completion that is there. */
static bool look(bt_rpc_loop *loop, grpc_completion_type *type_out)
{
    return next(loop, gpr_time_0(GPR_CLOCK_MONOTONIC), type_out);
}

static bool look_until(bt_rpc_loop *loop, uint64_t deadline_ns)
{
    grpc_completion_type type;

    while (!look(loop, &type))
        if (type != GRPC_QUEUE_TIMEOUT || bt_now_ns() >= deadline_ns) return false;
    return true;
}

static uint32_t run(bt_rpc_loop *loop, uint64_t deadline_ns, bool sleeps)
{
    grpc_completion_type type;
    uint64_t             begun_ns;
    uint32_t             n;

    run_deferred(loop);
    begun_ns = bt_now_ns();
    if (sleeps ? !next(loop, bt_rpc_deadline(deadline_ns), &type) : !look_until(loop, deadline_ns))
        return 0;
    if (bt_now_ns() - begun_ns >= WAITED_US * BT_NS_PER_US) return 1;
    for (n = 1; n < BATCH; n++) {
        run_deferred(loop);
        if (!look(loop, &type)) break;
    }
    return n;
}

uint32_t bt_rpc_loop_run_once(bt_rpc_loop *loop, uint64_t deadline_ns)
{
    return run(loop, deadline_ns, true);
}

uint32_t bt_rpc_loop_spin_once(bt_rpc_loop *loop, uint64_t deadline_ns)
{
    return run(loop, deadline_ns, false);
}

bool bt_rpc_loop_await(bt_rpc_loop *loop, bool (*is_over)(void *ctx), void *ctx, uint64_t wait_ns)
{
    uint64_t quiet_ns = 0; /* by looks: time in which this process stood still is nobody's delay */

    while (!is_over(ctx)) {
        if (quiet_ns >= wait_ns) return false;
        quiet_ns += AWAIT_NS;
        if (bt_rpc_loop_run_once(loop, bt_now_ns() + AWAIT_NS) > 0) quiet_ns = 0;
    }
    return true;
}

void bt_rpc_loop_defer(bt_rpc_loop *loop, bt_rpc_later *later)
{
    later->next    = loop->deferred;
    loop->deferred = later;
    loop->n_in_flight++;
}

void bt_rpc_loop_begin(bt_rpc_loop *loop) { loop->n_in_flight++; }
bool bt_rpc_loop_idle(const bt_rpc_loop *loop) { return loop->n_in_flight == 0; }

gpr_timespec bt_rpc_deadline(uint64_t deadline_ns)
{
    if (deadline_ns == UINT64_MAX) return gpr_inf_future(GPR_CLOCK_MONOTONIC);
    return (gpr_timespec){.tv_sec     = (int64_t)(deadline_ns / BT_NS_PER_S),
                          .tv_nsec    = (int32_t)(deadline_ns % BT_NS_PER_S),
                          .clock_type = GPR_CLOCK_MONOTONIC};
}

const grpc_channel_args *bt_rpc_server_args(void)
{
    static grpc_arg args[] = {
        BT_RPC_INT_ARG(GRPC_ARG_ALLOW_REUSEPORT, 0), /* else two servers share a port in silence */
        BT_RPC_INT_ARG(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, MESSAGE_BYTES),
        BT_RPC_INT_ARG(GRPC_ARG_MAX_SEND_MESSAGE_LENGTH, MESSAGE_BYTES),
        /* gRPC 1.51 ends a connection with all its calls over one with more than this, by
         * default 8 KiB: less than what proxies pass on (tokens, certificates, baggage). */
        BT_RPC_INT_ARG(GRPC_ARG_MAX_METADATA_SIZE, METADATA_BYTES),
        /* Gateways ping idle connections every 30 s; the defaults answer the fourth ping with
         * GOAWAY too_many_pings. */
        BT_RPC_INT_ARG(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 1000),
        BT_RPC_INT_ARG(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1),
        BT_RPC_INT_ARG(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0),
        /* A client whose machine has gone is noticed, and its requests end. */
        BT_RPC_INT_ARG(GRPC_ARG_KEEPALIVE_TIME_MS, 60000),
        BT_RPC_INT_ARG(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 30000),
        /* A connection without a call is closed; clients open another one with their next. */
        BT_RPC_INT_ARG(GRPC_ARG_MAX_CONNECTION_IDLE_MS, 1000 * IDLE_S),
        /* What nobody asks for costs time at every message. */
        BT_RPC_INT_ARG(GRPC_ARG_ENABLE_CHANNELZ, 0),
        BT_RPC_INT_ARG(GRPC_ARG_ENABLE_PER_MESSAGE_COMPRESSION, 0),
        /* A compressed message is refused: gRPC holds it against the limit only once it has
         * unpacked it, a thousand times its bytes. */
        BT_RPC_INT_ARG(GRPC_COMPRESSION_CHANNEL_ENABLED_ALGORITHMS_BITSET, 1 << GRPC_COMPRESS_NONE),
    };
    static const grpc_channel_args all = {sizeof(args) / sizeof(args[0]), args};

    return &all;
}

const grpc_channel_args *bt_rpc_client_args(void)
{
    static grpc_arg args[] = {
        BT_RPC_INT_ARG(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, MESSAGE_BYTES),
        BT_RPC_INT_ARG(GRPC_ARG_MAX_SEND_MESSAGE_LENGTH, MESSAGE_BYTES),
        BT_RPC_INT_ARG(GRPC_ARG_ENABLE_HTTP_PROXY, 0),
        BT_RPC_INT_ARG(GRPC_ARG_ENABLE_RETRIES, 0),
        /* By itself c-ares asks a silent name server for 75 s. */
        BT_RPC_INT_ARG(GRPC_ARG_DNS_ARES_QUERY_TIMEOUT_MS, 1000 * BT_RPC_NAME_S),
        /* A server whose machine cannot be reached is noticed, also by who has nothing to say. */
        BT_RPC_INT_ARG(GRPC_ARG_KEEPALIVE_TIME_MS, 5000),
        BT_RPC_INT_ARG(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10000),
        BT_RPC_INT_ARG(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0),
        BT_RPC_INT_ARG(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100),
        BT_RPC_INT_ARG(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000),
    };
    static const grpc_channel_args all = {sizeof(args) / sizeof(args[0]), args};

    return &all;
}

#define OWN_ADDRESS \
    "expected an address of this machine, by an interface that is up, or 0.0.0.0 for all of them"

/* 0, or the error. */
static int try_one(const struct addrinfo *a)
{
    int one = 1, fd = socket(a->ai_family, a->ai_socktype, a->ai_protocol), error = 0;

    if (fd < 0) return errno;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)); /* as gRPC does */
    if (bind(fd, a->ai_addr, a->ai_addrlen) != 0 || listen(fd, 1) != 0) error = errno;
    close(fd);
    return error;
}

bt_status bt_rpc_try_bind(const char *address)
{
    bt_status        st = BT_OK;
    char             host[BT_ADDRESS_BYTES];
    const char      *port;
    struct addrinfo  hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *info  = NULL;
    bool             any   = false;
    int              rc, cause = 0;

    BT_REQUIRE(bt_parse_address(address), BT_ERR_IO, "cannot listen on %s: expected HOST:PORT",
               address);
    port = bt_split_address(address, host);
    rc   = getaddrinfo(host, port, &hints, &info);
    BT_REQUIRE(rc == 0, BT_ERR_IO, "cannot listen on %s: %s; " OWN_ADDRESS, address,
               gai_strerror(rc));
    for (const struct addrinfo *a = info; a != NULL; a = a->ai_next) {
        int error = try_one(a);

        any = any || error == 0; /* of a name's addresses gRPC too is content with one */
        if (error != 0 && cause != EADDRINUSE) cause = error;
    }
    BT_REQUIRE(any && cause != EADDRINUSE, BT_ERR_IO, "cannot listen on %s: %s%s", address,
               strerror(cause),
               cause == EADDRINUSE
                   ? ", by another program or as another port of this one; 0 takes any free one"
               : cause == EACCES        ? ": ports below 1024 are for root, 0 takes any free one"
               : cause == EADDRNOTAVAIL ? "; " OWN_ADDRESS
                                        : "");
out:
    if (info != NULL) freeaddrinfo(info);
    return st;
}

bt_status bt_rpc_listen(grpc_server *server, const char *address, bt_rpc_tls_files *tls,
                        uint16_t *port_out)
{
    bt_status                st = BT_OK;
    grpc_server_credentials *creds =
        tls != NULL ? bt_rpc_tls_credentials(tls) : grpc_insecure_server_credentials_create();
    int port = 0;

    BT_REQUIRE(creds != NULL, BT_ERR_IO, "gRPC cannot use the TLS certificate and key");
    port = grpc_server_add_http2_port(server, address, creds);
    grpc_server_credentials_release(creds);
    /* gRPC tells that a bind failed, but not why: try it by hand to learn the cause. */
    if (port <= 0) BT_TRY(bt_rpc_try_bind(address));
    BT_REQUIRE(port > 0, BT_ERR_IO, "cannot listen on %s: the port is free, but gRPC refuses it",
               address);
    *port_out = (uint16_t)port;
out:
    return st;
}

void bt_rpc_each_socket(uint16_t port, void (*fn)(void *ctx, int fd), void *ctx)
{
    DIR           *all = port != 0 ? opendir("/proc/self/fd") : NULL;
    struct dirent *entry;

    while (all != NULL && (entry = readdir(all)) != NULL) {
        int fd = atoi(entry->d_name); /* "." is 0, which no server has its socket on */

        if (fd > 0 && bt_machine_port(fd) == port) fn(ctx, fd);
    }
    if (all != NULL) closedir(all);
}

static void hang_up(void *ctx, int fd)
{
    (void)ctx;
    shutdown(fd, SHUT_RDWR); /* gRPC closes it */
}

void bt_rpc_hang_up(uint16_t port) { bt_rpc_each_socket(port, hang_up, NULL); }

const char *bt_rpc_code_name(grpc_status_code code)
{
    static const char *const NAMES[] = {"OK",
                                        "CANCELLED",
                                        "UNKNOWN",
                                        "INVALID_ARGUMENT",
                                        "DEADLINE_EXCEEDED",
                                        "NOT_FOUND",
                                        "ALREADY_EXISTS",
                                        "PERMISSION_DENIED",
                                        "RESOURCE_EXHAUSTED",
                                        "FAILED_PRECONDITION",
                                        "ABORTED",
                                        "OUT_OF_RANGE",
                                        "UNIMPLEMENTED",
                                        "INTERNAL",
                                        "UNAVAILABLE",
                                        "DATA_LOSS",
                                        "UNAUTHENTICATED"};

    return (size_t)code < sizeof(NAMES) / sizeof(NAMES[0]) ? NAMES[code] : "an unknown status";
}

void bt_rpc_slice_text(grpc_slice slice, char *buf, size_t capacity)
{
    char   raw[1024];
    size_t n = GRPC_SLICE_LENGTH(slice);

    if (n > sizeof(raw) - 1) n = sizeof(raw) - 1;
    memcpy(raw, GRPC_SLICE_START_PTR(slice), n);
    raw[n] = 0;
    bt_text_clean(raw, buf, capacity);
}

grpc_byte_buffer *bt_rpc_pack(const ProtobufCMessage *message)
{
    size_t            n     = protobuf_c_message_get_packed_size(message);
    grpc_slice        slice = grpc_slice_malloc(n);
    grpc_byte_buffer *buffer;

    protobuf_c_message_pack(message, GRPC_SLICE_START_PTR(slice));
    buffer = grpc_raw_byte_buffer_create(&slice, 1);
    grpc_slice_unref(slice);
    return buffer;
}

ProtobufCMessage *bt_rpc_unpack(grpc_byte_buffer                 *buffer,
                                const ProtobufCMessageDescriptor *descriptor)
{
    grpc_byte_buffer_reader reader;
    ProtobufCMessage       *message = NULL;
    grpc_slice              slice;
    char                    why[256] = "the bytes cannot be parsed as one";

    if (buffer == NULL || !grpc_byte_buffer_reader_init(&reader, buffer)) {
        bt_error_keep(descriptor->name, "it has not come");
        return NULL;
    }
    slice = grpc_byte_buffer_reader_readall(&reader);
    if (bt_message_text_ok(descriptor, GRPC_SLICE_START_PTR(slice), GRPC_SLICE_LENGTH(slice),
                           PARTS_MAX, why, sizeof(why)))
        message = protobuf_c_message_unpack(descriptor, NULL, GRPC_SLICE_LENGTH(slice),
                                            GRPC_SLICE_START_PTR(slice));
    if (message == NULL) bt_error_keep(descriptor->name, "%s", why);
    grpc_slice_unref(slice);
    grpc_byte_buffer_reader_destroy(&reader);
    return message;
}

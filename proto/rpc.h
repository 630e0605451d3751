/* proto/rpc.h - one completion queue, driven by one thread, and what gRPC C core needs around it.
 *
 * Everything that the coordinator does happens in bt_rpc_loop_run_once(): no locks anywhere on the
 * token path.  Time outs are the caller's: run_once returns at the latest at its deadline. */
#ifndef BT_PROTO_RPC_H
#define BT_PROTO_RPC_H

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"

typedef struct bt_rpc_loop bt_rpc_loop;

/* What a completion calls: the tag given to gRPC is a pointer to one of these, alive until fn is
 * called. */
typedef struct bt_rpc_tag bt_rpc_tag;
struct bt_rpc_tag {
    void (*fn)(bt_rpc_tag *tag, bool ok);
    void *ctx;
};

/* Something to be done later; alive until fn is called. */
typedef struct bt_rpc_later bt_rpc_later;
struct bt_rpc_later {
    void (*fn)(void *ctx);
    void         *ctx;
    bt_rpc_later *next; /* the loop's */
};

/* gRPC can start its threads, and its caller n_more: without them it hangs at its end.  Before
 * grpc_init(). */
bt_status              bt_rpc_allow_threads(uint32_t n_more);
bt_status              bt_rpc_loop_create(bt_rpc_loop **loop_out); /* calls grpc_init */
void                   bt_rpc_loop_destroy(bt_rpc_loop *loop);     /* drains; calls grpc_shutdown */
grpc_completion_queue *bt_rpc_loop_cq(bt_rpc_loop *loop);
/* Handles the completions that are there, at most a batch of them; when there is none, waits until
 * deadline_ns (bt_now_ns clock) for one, and returns with it, so that what it brings is acted upon
 * before anything else.  Returns how many. */
uint32_t bt_rpc_loop_run_once(bt_rpc_loop *loop, uint64_t deadline_ns);
/* Runs it until is_over(), which is asked before each look.  False: nothing has completed for
 * wait_ns, in which this process did not stand still, and it is not. */
bool bt_rpc_loop_await(bt_rpc_loop *loop, bool (*is_over)(void *ctx), void *ctx, uint64_t wait_ns);
/* As run_once(), without sleep: looks again and again, so that its core neither halts nor works for
 * others meanwhile. */
uint32_t bt_rpc_loop_spin_once(bt_rpc_loop *loop, uint64_t deadline_ns);
/* Operations in flight that will still complete; every starter counts with begin(), each completion
 * ends one. */
void bt_rpc_loop_begin(bt_rpc_loop *loop);
bool bt_rpc_loop_idle(const bt_rpc_loop *loop);
/* Calls fn before the loop looks for its next completion: for what can wait until the caller of
 * run_once() has acted on the one that ended a wait. */
void bt_rpc_loop_defer(bt_rpc_loop *loop, bt_rpc_later *later);

#define BT_RPC_INT_ARG(name, number)                                               \
    {                                                                              \
        .type = GRPC_ARG_INTEGER, .key = (char *)(name), .value.integer = (number) \
    }
/* Server arguments that every Baton server uses: no port sharing, 256 MiB messages, pings as often
 * as gateways send them.  Static storage. */
const grpc_channel_args *bt_rpc_server_args(void);

enum { BT_RPC_NAME_S = 20 }; /* that a channel waits for name servers */
/* The same for channels; proxies of the environment are not asked, and a failed connection is tried
 * again soon.  Static storage. */
const grpc_channel_args *bt_rpc_client_args(void);
/* A deadline of the bt_now_ns clock as gRPC wants it; UINT64_MAX: never. */
gpr_timespec bt_rpc_deadline(uint64_t deadline_ns);

/* A server's TLS files, which are read again when they change: connections that are made from then
 * on have the new certificate.  One thread opens, refreshes and closes; gRPC's may fetch. */
typedef struct bt_rpc_tls_files bt_rpc_tls_files;

/* Reads them, and asks gRPC whether a server on this host would take them.  The names are borrowed;
 * client_ca may be NULL.  IO names file and cause. */
bt_status bt_rpc_tls_open(const char *cert, const char *key, const char *client_ca,
                          const char *host, bt_rpc_tls_files **files_out);
/* Now and then: looks whether one of them has changed, at most once a second.  If they cannot be
 * used the log says why, the ones before go on, and they are tried again when they change, and
 * every minute.  Warns, when they are new and once a day, of a certificate that is not valid now or
 * not for a week more. */
void bt_rpc_tls_refresh(bt_rpc_tls_files *files, uint64_t now_ns); /* accepts NULL */
/* Whether what they hold now cannot be used, as the last refresh found; of NULL it is false. */
bool bt_rpc_tls_refused(const bt_rpc_tls_files *files);
void bt_rpc_tls_close(bt_rpc_tls_files *files); /* accepts NULL; after the servers */

/* How a client speaks to a server; paths are borrowed, a struct of zeroes is plain text. */
typedef struct {
    bool        on;
    const char *ca;          /* authorities of the server's certificate; NULL: the system's */
    const char *cert, *key;  /* the client's own; NULL and NULL: none */
    const char *server_name; /* in the server's certificate; NULL: the address's host */
} bt_rpc_client_tls;

/* A channel to "host:port" with bt_rpc_client_args(), not yet connected.  IO names file and cause.
 */
bt_status bt_rpc_channel_create(const char *address, const bt_rpc_client_tls *tls,
                                grpc_channel **channel_out);
/* Binds the server, before it starts, to "host:port" (port 0: any); tls, borrowed as long as the
 * server lives, NULL: plain text.  IO names address and cause. */
bt_status bt_rpc_listen(grpc_server *server, const char *address, bt_rpc_tls_files *tls,
                        uint16_t *port_out);
/* What bt_rpc_listen() gives gRPC; NULL: gRPC refuses. */
grpc_server_credentials *bt_rpc_tls_credentials(bt_rpc_tls_files *files);
/* Calls fn for every socket of this process that is bound to the port: listeners and connections.
 */
void bt_rpc_each_socket(uint16_t port, void (*fn)(void *ctx, int fd), void *ctx);
/* Closes the server's sockets on this port, connections and listener, as the end of the process
 * would; to be called right before grpc_server_shutdown_and_notify, once all answers are on the
 * wire.  gRPC's own way says GOAWAY, and a C-core client (1.51 to 1.85 seen) whose call was on its
 * way then tries it again by itself, finds nobody, and never ends that call.  Port 0: nothing. */
void bt_rpc_hang_up(uint16_t port);
/* Could a server bind the address now?  IO names address and cause. */
bt_status bt_rpc_try_bind(const char *address);
/* "OK", "CANCELLED" ... as google.rpc.Code has them; of any number. */
const char *bt_rpc_code_name(grpc_status_code code);
/* A slice as text, cut to the capacity, always terminated and UTF-8. */
void bt_rpc_slice_text(grpc_slice slice, char *buf, size_t capacity);

/* A packed message as a byte buffer (owned by the caller), and back.  NULL when memory is short or
 * the bytes are no such message, or its texts no texts (message_text.h): bt_error_text() says what
 * is wrong, and nothing is logged. */
grpc_byte_buffer *bt_rpc_pack(const ProtobufCMessage *message);
ProtobufCMessage *bt_rpc_unpack(grpc_byte_buffer                 *buffer,
                                const ProtobufCMessageDescriptor *descriptor);

#endif

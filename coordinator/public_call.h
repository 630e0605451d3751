/* coordinator/public_call.h - inside the public port only: calls, methods, streams. */
#ifndef BT_COORDINATOR_PUBLIC_CALL_H
#define BT_COORDINATOR_PUBLIC_CALL_H

#include "coordinator/cork.h"
#include "coordinator/public.h"
#include "proto/health.pb-c.h"

/* Generate calls that are open at once, of all clients (13 KiB each, before their prompts); calls
 * of one connection, which has some for questions too; calls of all connections, since gRPC holds
 * only those to a bound that have acknowledged it; and Watch calls, which may wait for ever. */
enum {
    BT_PUBLIC_STREAMS   = 16384,
    BT_PUBLIC_CALLS     = BT_PUBLIC_STREAMS + 1024,
    BT_PUBLIC_ALL_CALLS = BT_PUBLIC_STREAMS + 4096,
    BT_PUBLIC_WATCHERS  = 1024
};

typedef struct bt_archive    bt_archive;
typedef struct bt_call       bt_call;
typedef struct bt_dialect    bt_dialect;
typedef struct bt_reflection bt_reflection;
typedef struct bt_stream     bt_stream;

/* A method.  Its answer, packed, is owned by the caller; NULL: the call ends with bt_call.code and
 * bt_call.why. */
typedef struct {
    const char                       *path;
    const ProtobufCMessageDescriptor *request;
    /* Exactly one of the three.  All borrow the request. */
    grpc_byte_buffer *(*answer)(bt_call *call, const ProtobufCMessage *request);
    void (*stream)(bt_call *call, const ProtobufCMessage *request);
    /* The client sends any number of requests, and gets an answer to each in turn. */
    grpc_byte_buffer *(*answer_each)(bt_call *call, const ProtobufCMessage *request);
    bool counted; /* its calls are requests of the metrics, also those that cannot be parsed */
} bt_method;

/* What waits for the next call of a method. */
typedef struct {
    const bt_method *method;     /* NULL: of any other path */
    void            *registered; /* gRPC's name for it */
    bool             deaf;       /* there was no memory to wait */
} bt_listener;

enum { BT_METHODS_MAX = 24 };

/* Whose health is asked for: a service that generates, the server, or none that is here. */
typedef enum { BT_ASKED_ENGINE, BT_ASKED_SERVER, BT_ASKED_UNKNOWN } bt_asked;
typedef Grpc__Health__V1__HealthCheckResponse__ServingStatus bt_health;

/* A health Watch call. */
typedef struct {
    bt_call *prev, *next;
    bool     listed, sending;
    bt_asked asked;
    int      told; /* the status that it has been told; -1: none */
} bt_watch;

/* One call, also while it is waited for.  Freed with its last reference: one for each operation in
 * flight, one while the relay knows the stream. */
struct bt_call {
    bt_public          *pub;
    const bt_method    *method; /* NULL: any other path */
    bt_listener        *listener;
    grpc_call          *call;
    gpr_timespec        deadline; /* gRPC ends the call at it by itself */
    grpc_metadata_array headers;
    grpc_call_details   details;
    grpc_byte_buffer   *payload;
    int                 cancelled;
    uint32_t            refs;
    bt_rpc_tag          arrived, received, sent, closed;
    void (*then)(bt_call *call); /* the send under way has ended; NULL: nobody wants to know */
    bool             waiting;    /* for its client, in the list of such calls */
    bool             receiving;  /* the request; else something is sent */
    bool             begun;      /* something of its answers has been sent */
    bt_call         *prev_waiting, *next_waiting;
    uint64_t         since_ns; /* when that began */
    grpc_status_code code;     /* of an answer that is an error */
    char             why[BT_INTAKE_TEXT];
    bt_stream       *stream; /* owned */
    bt_watch         watch;
    size_t           n_pieces; /* of the tokenizer's archive, sent; */
    bool             gone;     /* its client */
};

struct bt_public {
    bt_rpc_loop       *loop;  /* borrowed */
    bt_fleet          *fleet; /* borrowed */
    grpc_server       *server;
    uint16_t           port;
    bt_rpc_tag         down;
    bool               is_down, stopping, draining;
    bt_corks           corks;
    bt_intake_limits   limits;
    bt_intake_known    known; /* the limits' */
    const bt_up_hello *facts;
    bt_metrics        *metrics;               /* borrowed */
    bt_tokenizer      *tokenizer;             /* owned; NULL: the model has none that can be read */
    bt_archive        *archive;               /* owned; NULL: it cannot be made */
    bt_reflection     *reflection;            /* owned */
    bt_stream         *fresh, *fresh_last;    /* streams with something to send, first come first */
    bt_call          *waiting, *waiting_last; /* calls that wait for their clients, longest first */
    uint64_t          unread_ns;              /* for how long one may */
    uint64_t          polled_ns;              /* when that was last looked at */
    bt_call          *watchers;               /* list of the health Watch calls, */
    uint32_t          n_watchers;             /* so many, */
    bool              served;                 /* and what they know of the fleet */
    bt_listener       listeners[BT_METHODS_MAX + 1]; /* [n_listeners] */
    size_t            n_listeners;
    const bt_dialect *dialects[2]; /* [n_dialects]: the protocols that are spoken */
    size_t            n_dialects;
    const char       *public_path, *served_name; /* borrowed */
    char             *default_sampling;          /* owned */
    uint64_t          n_calls;                   /* not yet freed, waiting ones too */
    uint32_t          n_streams;                 /* Generate calls not yet freed */
    bool              hung_up;      /* on a client, for too many calls, since the last poll */
    uint32_t          most_streams; /* since there was none */
    uint64_t          started_ns;
    double            last_receive;               /* Unix time of the last Generate */
    uint64_t          rate_ns[2], rate_tokens[2]; /* two samples of tokens sent */
};

/* Sends a message, which it takes (NULL: none), and the call's end by this status (why NULL: it
 * goes on); the first batch has the headers too.  Without a message gRPC makes headers and status
 * one frame, so that the client sees a failed call and no begun answer.  One batch at a time;
 * then() hears when the client has made room for it, or will never.  A client that does not for
 * unread_ns is cut off. */
void bt_call_send(bt_call *call, grpc_byte_buffer *message, grpc_status_code code, const char *why,
                  void (*then)(bt_call *call));
/* Methods that had no memory to wait for their next call try again; when the loop has run. */
void bt_public_listen_again(bt_public *pub);
/* Of all calls, those too whose request is not complete; when the loop has run. */
void bt_public_cut_off_silent(bt_public *pub);
/* fn, which releases the call, hears when it is over, also when it is cut.  gRPC wants every call
 * to ask, even one that need not know. */
void bt_call_watch_close(bt_call *call, void (*fn)(bt_rpc_tag *tag, bool ok));
void bt_call_release(bt_call *call);

/* Those of every server: health and reflection (public_info.c). */
extern const bt_method bt_public_methods[];
extern const size_t    bt_public_n_methods;
/* For the methods of protocols (public_info.c).  fail() returns NULL. */
BT_PRINTF(3, 4)
grpc_byte_buffer *bt_public_fail(bt_call *call, grpc_status_code code, const char *fmt, ...);
/* Tokens a second of late, n_tokens having been sent ever. */
double bt_public_throughput(bt_public *pub, uint64_t n_tokens);
enum { BT_TIME_TEXT = 32 };
void    bt_public_time(char text[BT_TIME_TEXT]); /* now, ISO 8601 */
int32_t bt_public_clamp(uint64_t value);

/* Generate (public_stream.c). */
void bt_public_generate(bt_call *call, const ProtobufCMessage *request, const bt_dialect *dialect);
void bt_stream_free(bt_stream *stream);
const char *bt_stream_name(const bt_stream *stream);

/* public_reflection.c: the .proto files, unpacked once, and the method that sends them.
 * NO_MEMORY. */
bt_status         bt_reflection_create(bt_reflection **reflection_out);
void              bt_reflection_destroy(bt_reflection *reflection);
grpc_byte_buffer *bt_public_reflect(bt_call *call, const ProtobufCMessage *request);

/* public_tokenizer.c: the archive of the model's tokenizer, and the method that sends it.
 * IO, FORMAT: a file cannot be read, or all are too large; NO_MEMORY. */
bt_status bt_archive_create(const char *model, bt_archive **archive_out);
void      bt_archive_destroy(bt_archive *archive);
void      bt_public_send_tokenizer(bt_call *call, const ProtobufCMessage *request);

/* public_watch.c */
bt_asked  bt_public_asked(const bt_public *pub, const char *service);
bt_health bt_public_health(const bt_public *pub, bt_asked asked);
void      bt_public_watch(bt_call *call, const ProtobufCMessage *request);
/* The status may have changed: tells every watcher. */
void bt_public_tell_watchers(bt_public *pub);

#endif

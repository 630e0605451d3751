#include "coordinator/http.h"

#include <netdb.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "coordinator/exposition.h"
#include "coordinator/http_parts.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "core/parse.h"
#include "proto/rpc.h"

enum {
    OF_ONE_ADDRESS = 64, /* so that no one client holds the port */
    TIMEOUT_S      = 10, /* without a byte */
    ANSWER_S       = 20, /* from the last answer, or the start, to the end of the next */
    STALE_S        = 10
};

/* The page, made from status.html at build time. */
extern const unsigned char bt_status_page[];
extern const size_t        bt_status_page_bytes;

static void dress(struct MHD_Response *response, const char *type)
{
    MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
    MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    MHD_add_response_header(response, "Content-Security-Policy",
                            "default-src 'none'; style-src 'unsafe-inline'; "
                            "script-src 'unsafe-inline'; connect-src 'self'; img-src data:");
}

static enum MHD_Result answer(struct MHD_Connection *connection, unsigned code, const char *type,
                              struct MHD_Response *response)
{
    enum MHD_Result rc;

    if (response == NULL) return MHD_NO; /* no memory: the connection closes */
    dress(response, type);
    if (code == MHD_HTTP_METHOD_NOT_ALLOWED)
        MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
    rc = MHD_queue_response(connection, code, response);
    MHD_destroy_response(response);
    return rc;
}

static void page_free(bt_http_page *page)
{
    if (page->response != NULL) MHD_destroy_response(page->response); /* counted */
    *page = (bt_http_page){0};
}

/* make: the snapshot as text, to be freed; NULL: no memory. */
static enum MHD_Result answer_page(struct MHD_Connection *connection, bt_http_page *page,
                                   const bt_snapshot *s, const char *type,
                                   char *(*make)(const bt_snapshot *s, size_t *n_out))
{
    size_t n = 0;
    char  *text;

    if (page->response == NULL || page->at_ns != s->at_ns) {
        page_free(page);
        text = make(s, &n);
        if (text == NULL) return MHD_NO;
        page->response = MHD_create_response_from_buffer(n, text, MHD_RESPMEM_MUST_FREE);
        if (page->response == NULL) {
            free(text);
            return MHD_NO;
        }
        page->at_ns = s->at_ns;
        dress(page->response, type);
    }
    return MHD_queue_response(connection, MHD_HTTP_OK, page->response);
}

BT_PRINTF(3, 4)
static enum MHD_Result answer_line(struct MHD_Connection *to, unsigned code, const char *fmt, ...)
{
    char    line[256];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(line, sizeof(line), fmt, ap);
    va_end(ap);
    return answer(to, code, "text/plain; charset=utf-8",
                  MHD_create_response_from_buffer(strlen(line), line, MHD_RESPMEM_MUST_COPY));
}

/* Alive: the loop goes round, and the cell has not failed. */
static enum MHD_Result health(struct MHD_Connection *connection, const bt_snapshot *s)
{
    uint64_t age_ns = bt_now_ns() - s->at_ns;

    if (age_ns > STALE_S * BT_NS_PER_S)
        return answer_line(connection, MHD_HTTP_SERVICE_UNAVAILABLE,
                           "the coordinator has shown nothing for %.0f s\n", (double)age_ns * 1e-9);
    if (s->phase == BT_PHASE_CLOSING)
        return answer_line(connection, MHD_HTTP_SERVICE_UNAVAILABLE, "closing\n");
    if (s->phase == BT_PHASE_WAITING)
        return answer_line(connection, MHD_HTTP_OK,
                           "ok, but a group has no rank left: requests wait for one to join\n");
    return answer_line(connection, MHD_HTTP_OK, "ok\n");
}

static enum MHD_Result ready(struct MHD_Connection *connection, const bt_snapshot *s)
{
    return answer_line(connection,
                       s->phase == BT_PHASE_SERVING ? MHD_HTTP_OK : MHD_HTTP_SERVICE_UNAVAILABLE,
                       "%s\n", s->phase == BT_PHASE_SERVING ? "ready" : bt_phase_name(s->phase));
}

static enum MHD_Result serve(struct MHD_Connection *connection, const char *path, bt_http *http)
{
    const bt_snapshot *s = bt_board_read(http->board);

    if (strcmp(path, "/health") == 0) return health(connection, s);
    if (strcmp(path, "/ready") == 0) return ready(connection, s);
    if (strcmp(path, "/metrics") == 0)
        return answer_page(connection, &http->metrics, s,
                           "text/plain; version=0.0.4; charset=utf-8", bt_exposition_prometheus);
    if (strcmp(path, "/status.json") == 0)
        return answer_page(connection, &http->status, s, "application/json", bt_exposition_json);
    if (strcmp(path, "/") == 0)
        return answer(connection, MHD_HTTP_OK, "text/html; charset=utf-8",
                      MHD_create_response_from_buffer(bt_status_page_bytes,
                                                      (void *)(uintptr_t)bt_status_page,
                                                      MHD_RESPMEM_PERSISTENT));
    return answer_line(connection, MHD_HTTP_NOT_FOUND,
                       "here are /, /status.json, /metrics, /health and /ready\n");
}

enum MHD_Result bt_http_handle(void *ctx, struct MHD_Connection *connection, const char *path,
                               const char *method, const char *version, const char *upload,
                               size_t *upload_bytes, void **state)
{
    static int seen;

    (void)version;
    (void)upload;
    if (*state == NULL) { /* the headers: what follows them comes with the next call */
        *state = &seen;
        return MHD_YES;
    }
    if (*upload_bytes != 0) { /* read and forgotten */
        *upload_bytes = 0;
        return MHD_YES;
    }
    if (strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0)
        return answer_line(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "only GET and HEAD\n");
    return serve(connection, path, ctx);
}

static void log_line(void *ctx, const char *fmt, va_list ap)
{
    char line[256];

    (void)ctx;
    vsnprintf(line, sizeof(line), fmt, ap);
    line[strcspn(line, "\n")] = 0;
    bt_log_write(BT_LOG_DEBUG, __FILE__, __LINE__, "http: %s", line);
}

/* ---- libmicrohttpd's time-out begins again with each byte: this one does not */

static void on_connection(void *ctx, struct MHD_Connection *connection, void **client,
                          enum MHD_ConnectionNotificationCode what)
{
    bt_http        *h = ctx;
    bt_http_client *c = *client;

    pthread_mutex_lock(&h->lock);
    if (what == MHD_CONNECTION_NOTIFY_CLOSED && c != NULL) c->until_ns = 0; /* fd is still open */
    for (int i = 0; what == MHD_CONNECTION_NOTIFY_STARTED && i < BT_HTTP_CONNECTIONS; i++) {
        if (h->clients[i].until_ns != 0) continue;
        c = *client = &h->clients[i];
        c->fd = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
        c->until_ns = bt_now_ns() + ANSWER_S * BT_NS_PER_S;
        break;
    }
    pthread_mutex_unlock(&h->lock);
}

static void on_answered(void *ctx, struct MHD_Connection *connection, void **state,
                        enum MHD_RequestTerminationCode how)
{
    bt_http        *h = ctx;
    bt_http_client *c =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT)->socket_context;

    (void)state;
    if (c == NULL || how != MHD_REQUEST_TERMINATED_COMPLETED_OK) return;
    pthread_mutex_lock(&h->lock);
    c->until_ns = bt_now_ns() + ANSWER_S * BT_NS_PER_S;
    pthread_mutex_unlock(&h->lock);
}

void bt_http_tick(bt_http *http, uint64_t now_ns)
{
    if (http == NULL) return;
    pthread_mutex_lock(&http->lock);
    for (int i = 0; i < BT_HTTP_CONNECTIONS; i++) {
        bt_http_client *c = &http->clients[i];

        if (c->until_ns == 0 || now_ns < c->until_ns) continue;
        shutdown(c->fd, SHUT_RDWR); /* libmicrohttpd closes it */
        c->until_ns = UINT64_MAX;
    }
    pthread_mutex_unlock(&http->lock);
}

static struct MHD_Daemon *start(bt_http *http, const struct addrinfo *a)
{
    /* By poll: by epoll libmicrohttpd 0.9.75 does not see that peers have closed while it has all
     * its connections, and answers nobody until they time out. */
    unsigned flags = MHD_USE_POLL_INTERNAL_THREAD | MHD_USE_ERROR_LOG;

    if (a->ai_family == AF_INET6) flags |= MHD_USE_IPv6;
    return MHD_start_daemon(
        flags, 0, NULL, NULL, bt_http_handle, http, MHD_OPTION_EXTERNAL_LOGGER, log_line, NULL,
        MHD_OPTION_SOCK_ADDR, a->ai_addr, MHD_OPTION_CONNECTION_LIMIT,
        (unsigned)BT_HTTP_CONNECTIONS, MHD_OPTION_PER_IP_CONNECTION_LIMIT, (unsigned)OF_ONE_ADDRESS,
        MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)TIMEOUT_S, MHD_OPTION_NOTIFY_CONNECTION,
        on_connection, http, MHD_OPTION_NOTIFY_COMPLETED, on_answered, http, MHD_OPTION_END);
}

bt_status bt_http_start(const char *host, uint16_t port, bt_board *board, bt_http **http_out,
                        uint16_t *port_out)
{
    bt_status        st = BT_OK;
    bt_http         *h  = bt_calloc(1, sizeof(*h));
    char             address[BT_ADDRESS_BYTES], bare_host[BT_ADDRESS_BYTES];
    struct addrinfo  hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *info  = NULL;
    const char      *service;
    sigset_t         all, before;
    int              rc;

    BT_REQUIRE(h != NULL, BT_ERR_NO_MEMORY, "HTTP port");
    h->board = board;
    pthread_mutex_init(&h->lock, NULL);
    bt_join_address(host, port, address);
    BT_TRY(bt_rpc_try_bind(address)); /* says why it would fail */
    service = bt_split_address(address, bare_host);
    rc      = getaddrinfo(bare_host, service, &hints, &info);
    BT_REQUIRE(rc == 0, BT_ERR_IO, "cannot listen on %s: %s", address, gai_strerror(rc));
    sigfillset(&all); /* signals are for the main thread */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (const struct addrinfo *a = info; a != NULL && h->daemon == NULL; a = a->ai_next)
        h->daemon = start(h, a);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    BT_REQUIRE(h->daemon != NULL, BT_ERR_IO, "cannot serve HTTP on %s", address);
    *port_out = MHD_get_daemon_info(h->daemon, MHD_DAEMON_INFO_BIND_PORT)->port;
    *http_out = h;
    h         = NULL; /* handed over */
out:
    if (info != NULL) freeaddrinfo(info);
    bt_http_stop(h);
    return st;
}

void bt_http_stop(bt_http *http)
{
    if (http == NULL) return;
    if (http->daemon != NULL) MHD_stop_daemon(http->daemon);
    page_free(&http->metrics);
    page_free(&http->status);
    pthread_mutex_destroy(&http->lock);
    bt_free(http);
}

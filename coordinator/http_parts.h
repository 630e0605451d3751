/* coordinator/http_parts.h - inside the HTTP port only: what http.c and its fuzz target share. */
#ifndef BT_COORDINATOR_HTTP_PARTS_H
#define BT_COORDINATOR_HTTP_PARTS_H

#include <microhttpd.h>
#include <pthread.h>

#include "coordinator/board.h"
#include "coordinator/http.h"

/* What is made of a snapshot, once, whoever asks how often. */
typedef struct {
    struct MHD_Response *response; /* owned; NULL: none yet */
    uint64_t             at_ns;    /* the snapshot's */
} bt_http_page;

enum { BT_HTTP_CONNECTIONS = 256 };

/* A connection; until_ns: its next answer is to be out by then; 0: the place is free. */
typedef struct {
    int      fd; /* libmicrohttpd's */
    uint64_t until_ns;
} bt_http_client;

struct bt_http {
    struct MHD_Daemon *daemon; /* owned */
    bt_board          *board;  /* borrowed */
    bt_http_page       metrics, status;
    pthread_mutex_t    lock; /* of the clients, which tick() goes through */
    bt_http_client     clients[BT_HTTP_CONNECTIONS];
};

/* Answers one request: an MHD_AccessHandlerCallback; ctx is the bt_http. */
enum MHD_Result bt_http_handle(void *ctx, struct MHD_Connection *connection, const char *path,
                               const char *method, const char *version, const char *upload,
                               size_t *upload_bytes, void **state);

#endif

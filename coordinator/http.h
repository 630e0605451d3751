/* coordinator/http.h - the operators' port: /health, /ready, /metrics, /status.json and the page /.
 *
 * One own thread, which only reads the board.  Plain HTTP without authentication: it listens on
 * loopback unless told otherwise.  A connection on which nothing happens for 10 s is closed, and
 * one whose request and answer take more than 20 s, however often a byte of them comes. */
#ifndef BT_COORDINATOR_HTTP_H
#define BT_COORDINATOR_HTTP_H

#include "coordinator/board.h"

typedef struct bt_http bt_http;

/* host: a numeric address, an IPv6 one with brackets or without, or a name; port 0: any.  The board
 * is borrowed until stop().  IO names address and cause. */
bt_status bt_http_start(const char *host, uint16_t port, bt_board *board, bt_http **http_out,
                        uint16_t *port_out);
/* Now and then, from any one thread: cuts connections off whose time is over.  Accepts NULL. */
void bt_http_tick(bt_http *http, uint64_t now_ns);
void bt_http_stop(bt_http *http);

#endif

#include "coordinator/cork.h"

#include <grpc/support/alloc.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <xxhash.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "core/machine.h"
#include "proto/rpc.h"

enum { BURST = 16, LOOK_MS = 100, NOT_LOOKED = -1, NOT_FOUND = -2 };

struct bt_connection {
    uint64_t       key; /* of the peer's address */
    int            fd;
    uint32_t       n_calls, n_messages; /* n_messages: that wait */
    bool           held;
    bt_connection *next_held;
};

static uint64_t key_of(const char *peer)
{
    uint64_t key = XXH3_64bits(peer, strlen(peer));

    return key != 0 ? key : 1;
}

bt_connection *bt_cork_join(bt_corks *corks, grpc_call *call)
{
    char          *peer = grpc_call_get_peer(call);
    uint64_t       key  = key_of(peer);
    bt_connection *c    = bt_table_get(&corks->by_peer, key);

    gpr_free(peer);
    if (c == NULL) {
        c = bt_calloc(1, sizeof(*c));
        if (c == NULL) return NULL;
        c->key = key;
        c->fd  = NOT_LOOKED;
        if (bt_table_put(&corks->by_peer, key, c) != BT_OK) {
            bt_free(c);
            return NULL;
        }
    }
    c->n_calls++;
    return c;
}

static void free_unused(bt_corks *corks, bt_connection *c)
{
    if (c->n_calls > 0 || c->held) return;
    bt_table_remove(&corks->by_peer, c->key);
    bt_free(c);
}

void bt_cork_leave(bt_corks *corks, bt_connection *connection)
{
    if (connection == NULL) return;
    connection->n_calls--;
    free_unused(corks, connection);
}

/* ---- sockets */

static void on_socket(void *ctx, int fd)
{
    bt_corks      *corks = ctx;
    bt_connection *c;
    char           peer[BT_PEER_BYTES]; /* as gRPC writes it: both have one key */

    if (!bt_machine_peer(fd, peer)) return;
    c = bt_table_get(&corks->by_peer, key_of(peer));
    if (c != NULL) c->fd = fd;
}

/* Looks for the connection's socket, and for those of all others at the same time.  Not at every
 * call: with many sockets that takes a while. */
static void look(bt_corks *corks, bt_connection *c)
{
    uint64_t now = bt_now_ns();

    if (now - corks->looked_ns < LOOK_MS * BT_NS_PER_MS) return;
    corks->looked_ns = now;
    bt_rpc_each_socket(corks->port, on_socket, corks);
    if (c->fd < 0) c->fd = NOT_FOUND;
}

/* A socket that is gone is no matter. */
static void cork(const bt_connection *c, int on)
{
    setsockopt(c->fd, IPPROTO_TCP, TCP_CORK, &on, sizeof(on));
}

void bt_cork_hold(bt_corks *corks, bt_connection *c)
{
    if (c == NULL || c->n_calls < 2) return;
    if (c->fd == NOT_LOOKED) look(corks, c);
    if (c->fd < 0) return;
    if (!c->held) {
        c->held       = true;
        c->next_held  = corks->held;
        corks->held   = c;
        c->n_messages = 0;
        cork(c, 1);
    } else if (++c->n_messages == BURST) {
        c->n_messages = 0;
        cork(c, 0);
        cork(c, 1);
    }
}

void bt_cork_release(bt_corks *corks)
{
    while (corks->held != NULL) {
        bt_connection *c = corks->held;

        corks->held = c->next_held;
        c->held     = false;
        cork(c, 0);
        free_unused(corks, c);
    }
}

static void hang_up(void *ctx, int fd)
{
    char peer[BT_PEER_BYTES];

    if (bt_machine_peer(fd, peer) && key_of(peer) == *(const uint64_t *)ctx)
        shutdown(fd, SHUT_RDWR); /* gRPC closes it */
}

void bt_cork_hang_up(const bt_corks *corks, grpc_call *call)
{
    char    *peer = grpc_call_get_peer(call);
    uint64_t key  = key_of(peer);

    gpr_free(peer);
    bt_rpc_each_socket(corks->port, hang_up, &key);
}

void bt_cork_fini(bt_corks *corks)
{
    bt_cork_release(corks);
    BT_ASSERT(corks->by_peer.n_used == 0);
    bt_table_fini(&corks->by_peer);
}

/* coordinator/accept.h - connections that clients open, and the files that this process may have
 * open.
 *
 * gRPC's listener ends for good with the first accept() that fails
 * (github.com/grpc/grpc/issues/16058 and 29308): after one moment without a free descriptor the
 * port would never answer again.  So this program has an accept4() of its own, which gRPC calls,
 * and libmicrohttpd.  It closes a connection that would take one of the last descriptors, which are
 * for what the process needs itself and for ranks, passes over one that has failed, and says EAGAIN
 * where memory or files are short.
 *
 * Threads: accept4() and is_for_ranks() any; the others are main's, the bound before there are
 * others. */
#ifndef BT_COORDINATOR_ACCEPT_H
#define BT_COORDINATOR_ACCEPT_H

#include <stdbool.h>
#include <stdint.h>

/* Raises the soft limit of open files to the hard one or to 65,536, and keeps some of these from
 * connections. */
void bt_accept_bound(void);
/* Ranks attach to this port: clients leave a sixteenth of the files to its connections. */
void bt_accept_keep_for(uint16_t port);
/* Whether that is the port of a listener, or of a connection. */
bool bt_accept_is_for_ranks(int fd);
/* To be called now and then (bt_now_ns clock): connections that wait since memory or files were
 * short are looked at again.  gRPC by itself would do so only at the next one. */
void bt_accept_again(uint64_t now_ns);

#endif

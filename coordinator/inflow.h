/* coordinator/inflow.h - what one connection brings before others have a turn.
 *
 * gRPC reads a connection until it is empty before it lets its caller go on.  A client that sends
 * faster than that never lets it: the loop stands still for everybody, and what has come waits in
 * memory, 12 KiB for each call that has begun (gRPC holds only those clients to a number of calls
 * that have acknowledged it).  So this program has a recvmsg() of its own, which gRPC calls: after
 * so many bytes of one connection it says EAGAIN until gRPC polls again, which it does when its
 * caller has had all that has come.  gRPC waits for an edge then, of which there is none while data
 * lie there: epoll_wait() of this program makes one, by what its epoll_ctl() has noted.  Its
 * close() forgets what is held of a connection (header_frames.h).  Any thread may call the four. */
#ifndef BT_COORDINATOR_INFLOW_H
#define BT_COORDINATOR_INFLOW_H

/* Of a client some sixty calls, since ranks wait behind so many of each client at a time; of a rank
 * 10,000 tokens, since the fewer come at once, the more messages carry them to their clients. */
enum { BT_INFLOW_BYTES = 16 << 10, BT_INFLOW_RANK_BYTES = 128 << 10 };

#endif

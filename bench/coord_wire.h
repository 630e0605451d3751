/* bench/coord_wire.h - the coordinator seen from the wire: how long a token spends inside it.
 *
 * Reads the loopback's packets with the kernel's time stamps (needs CAP_NET_RAW), puts each TCP
 * connection's bytes into HTTP/2 frames, and takes
 *     t0 = the packet that completes a rank's Tokens message (DATA of at least min_tokens_bytes)
 *     t1 = the packet that completes a DATA frame to a client, after it
 * so that neither this program's threads nor its gRPC stand in between.  It tells nothing where
 * steps overlap: for a load with a period that is longer than a burst takes. */
#ifndef BT_BENCH_COORD_WIRE_H
#define BT_BENCH_COORD_WIRE_H

#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

typedef struct bench_wire bench_wire;

/* Before anybody connects to the ports; capacity: samples that may be taken.  IO without the right
 * to read packets. */
bt_status bench_wire_start(uint16_t control_port, uint32_t min_tokens_bytes, size_t capacity,
                           bench_wire **wire_out);
/* The public port, when it is known. */
void bench_wire_public(bench_wire *wire, uint16_t port);
/* Ends the thread; samples_out borrows t1 - t0 in ns, in the order of arrival.  FORMAT when packets
 * were lost or are no HTTP/2. */
bt_status bench_wire_stop(bench_wire *wire, const uint64_t **samples_out, size_t *n_out);
void      bench_wire_destroy(bench_wire *wire);

#endif

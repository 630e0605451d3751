/* bench/coord_clients.h - real gRPC clients of the coordinator's benchmark: one thread, one
 * completion queue, one or several connections, one Generate call a stream.
 *
 * Every token is checked: each stream must bring bench_token(stream, 0 .. n_tokens-1) in order,
 * then its complete message and the status OK. */
#ifndef BT_BENCH_COORD_CLIENTS_H
#define BT_BENCH_COORD_CLIENTS_H

#include <stddef.h>
#include <sys/types.h>

#include "bench/coord_ranks.h"

#define BENCH_GENERATE "/vllm.grpc.engine.VllmEngine/Generate"

typedef struct {
    uint64_t *late_ns; /* [n]: of each counted token, from its rank's send to the client; owned */
    size_t    n;
    uint64_t  n_messages;    /* of the counted part */
    double    wall_s, cpu_s; /* of it; CPU: of the coordinator, all threads */
} bench_clients_result;

/* Runs all streams to their ends.  The first warm_tokens of all tokens are not counted.  TIMEOUT
 * names how many streams have not ended; PROTOCOL what was wrong. */
bt_status bench_clients_run(const char *address, uint32_t n_connections, pid_t coordinator,
                            uint64_t warm_tokens, bench_shared *shared,
                            bench_clients_result *result_out);

#endif

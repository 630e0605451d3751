/* bench/coord_ranks.h - ranks that compute nothing, for the coordinator's benchmark.
 *
 * One thread plays n ranks with both roles: it speaks the control protocol through the workers' own
 * client, answers every Reserve with a ticket, and once all streams have been placed, takes steps:
 * in each, every stream gets one token, and every rank says so in one message.  A prompt's first
 * token is the number of its stream; token i of stream s is bench_token(s, i). */
#ifndef BT_BENCH_COORD_RANKS_H
#define BT_BENCH_COORD_RANKS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"

enum { BENCH_VOCAB = 1 << 20, BENCH_PROMPT = 16 };

/* Never the model's end-of-text token, which is BENCH_VOCAB - 1. */
static inline uint32_t bench_token(uint32_t stream, uint32_t i)
{
    return (stream * 7919u + i * 31u) % (BENCH_VOCAB - 1);
}

typedef struct {
    uint32_t n_ranks, n_streams, n_tokens; /* n_tokens: of each stream */
    uint64_t period_ns;                    /* between two steps; 0: as soon as the window allows */
    uint64_t window;                       /* then: tokens that may be under way, of all streams */
} bench_load;

/* What ranks and clients of one run share. */
typedef struct {
    bench_load load;
    _Atomic uint64_t
        *left_ns; /* [n_streams][n_tokens]: when the token was given to the rank's client */
    _Atomic uint64_t n_received; /* tokens that clients have seen */
    _Atomic bool     failed;     /* a rank lost its stream: the log says why */
} bench_shared;

typedef struct bench_ranks bench_ranks;

/* Attaches all ranks and starts the thread; shared is borrowed until stop(). */
bt_status bench_ranks_start(const char *control, bench_shared *shared, bench_ranks **ranks_out);
/* Joins the thread: after the coordinator's Shutdown, or at once. */
void bench_ranks_stop(bench_ranks *ranks);

#endif

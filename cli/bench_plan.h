/* cli/bench_plan.h - what a load generator sends, and when: a function of the seed alone.
 *
 * Request i has the same lengths, the same tokens and, with a rate, the same time of arrival
 * whatever the server does, so two runs of one seed ask for the same work. */
#ifndef BT_CLI_BENCH_PLAN_H
#define BT_CLI_BENCH_PLAN_H

#include <stdbool.h>
#include <stdint.h>

enum { BT_MAX_LENGTHS = 16 };

/* A distribution of lengths, all in [lo, hi]. */
typedef struct {
    enum { BT_LENGTHS_LIST, BT_LENGTHS_UNIFORM, BT_LENGTHS_ZIPF } kind;
    uint32_t lo, hi;
    uint32_t n_values, values[BT_MAX_LENGTHS]; /* LIST: equally likely; one: fixed */
    double   exponent;                         /* ZIPF: length n has the weight n^-exponent */
} bt_lengths;

/* "128", "128,512,2048", "64-512", "zipf:64-4096", "zipf:64-4096:1.5"; false for anything else. */
bool bt_lengths_parse(const char *text, bt_lengths *out);

typedef struct {
    bt_lengths prompt, output;
    double     shared; /* of each prompt, the part that begins like others */
    uint32_t   n_prefixes, vocab_size;
    uint64_t   seed;
    double     rate; /* arrivals a second; 0: none are planned */
} bt_bench_plan;

typedef struct {
    uint32_t n_prompt, n_shared, n_output;
    uint32_t prefix; /* which of the shared beginnings */
} bt_bench_request;

bt_bench_request bt_bench_plan_request(const bt_bench_plan *plan, uint64_t i);
/* ids[request->n_prompt] */
void bt_bench_plan_prompt(const bt_bench_plan *plan, uint64_t i, const bt_bench_request *request,
                          uint32_t *ids);
/* From arrival i-1 (the start for i = 0) to arrival i: exponential, so that arrivals are a Poisson
 * process. */
uint64_t bt_bench_plan_gap_ns(const bt_bench_plan *plan, uint64_t i);

#endif

/* tools/profile/measure.h - the time of every variant's step over batches and contexts.
 *
 * One layer with random weights.  At each point the variants run in turn, round by round, so that
 * what disturbs the machine disturbs all of them, each round in another order, since a step finds
 * in the caches some of what the one before it has read last; times are medians over the rounds,
 * ratios medians of the rounds' ratios.  Before each step the caches are filled with other memory,
 * as much as the model's other layers have for that, so that every step finds what it would find in
 * the model. A variant that would not fit in memory, or whose step would take too long, is left out
 * with the reason; one that takes several times as long as the fused kernel runs in the first
 * rounds only.
 */
#ifndef BT_TOOLS_PROFILE_MEASURE_H
#define BT_TOOLS_PROFILE_MEASURE_H

#include <stdbool.h>

#include "tools/profile/model.h"
#include "tools/profile/roof.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { BT_PROFILE_MAX_LIST = 32, BT_PROFILE_MAX_ROUNDS = 2047 };
/* From so many rounds on their least and their largest ratio hold the median with 95 %: all lie on
 * one side of it in 2 of 2^n cases. */
enum { BT_INTERVAL_ROUNDS = 6 };

typedef struct {
    uint32_t    n_batches, n_contexts;
    uint32_t    batches[BT_PROFILE_MAX_LIST], contexts[BT_PROFILE_MAX_LIST];
    bool        left_out[BT_N_VARIANTS]; /* not the fused kernel */
    uint32_t    n_threads;               /* 0: one per core */
    const char *kernels;
    double      seconds;                /* for all points together, about */
    void (*progress)(const char *text); /* or NULL */
} bt_measure_options;

typedef enum {
    BT_POINT_DONE,
    BT_POINT_NO_MEMORY,
    BT_POINT_TOO_LONG,
    BT_POINT_LEFT_OUT
} bt_point_state;

/* Median of the rounds' ratios of a variant's step to the fused kernel's, and the interval in which
 * the median of all such rounds lies with at least 95 %: from the order of the ratios, whatever
 * their distribution; with fewer than BT_INTERVAL_ROUNDS only the least and the largest. */
typedef struct {
    double median, low, high;
} bt_ratio;

/* A variant at a point.  state says whether there are times. */
typedef struct {
    bt_point_state state;
    double         needs; /* bytes for NO_MEMORY, seconds a step for TOO_LONG */
    uint32_t       n_rounds;
    double         step_s;    /* median */
    double         fastest_s; /* least */
    double         cpu_s;     /* median of the process's CPU time: other programs disturb it less */
    double         stage_s[BT_N_STAGES]; /* medians */
    double         bare_s;               /* median without the append stage: what study 001 timed */
    bt_ratio       over_fused;           /* by time */
    bt_ratio       cpu_over_fused;
    double         roof_s;
    double         distance; /* of its output from the fused kernel's, rms over rms */
} bt_point;

typedef struct {
    uint32_t batch, n_keys;
    bt_point of[BT_N_VARIANTS];
} bt_measured;

typedef struct {
    bt_roof     roof;
    char        kernels[32];
    uint32_t    n_threads, n_points;
    bt_measured points[BT_PROFILE_MAX_LIST * BT_PROFILE_MAX_LIST];
    double      wall_s;
} bt_measurement;

bt_status bt_measure(const bt_profile_model *model, const bt_measure_options *opt,
                     bt_measurement *m_out);

/* The fastest of the five variants of the study at a point, by its ratio to the fused kernel, or
 * BT_N_VARIANTS. */
int bt_measured_best(const bt_measured *p, bool by_cpu_time);

#ifdef __cplusplus
}
#endif
#endif

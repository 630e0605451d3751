/* tools/profile/analysis.h - what follows from a model's sizes and a roof, without running it. */
#ifndef BT_TOOLS_PROFILE_ANALYSIS_H
#define BT_TOOLS_PROFILE_ANALYSIS_H

#include <jansson.h>
#include <stdio.h>

#include "tools/profile/model.h"
#include "tools/profile/roof.h"

enum { BT_ANALYSIS_MAX_BANDWIDTHS = 4 };

typedef struct {
    const bt_profile_model *model;
    const bt_roof          *roof;
    uint32_t                batch, n_keys; /* of the examples */
    uint32_t                n_bandwidths;
    double                  bandwidths[BT_ANALYSIS_MAX_BANDWIDTHS]; /* bytes/s between ranks */
} bt_analysis;

/* What a rank holds when `ranks` of them share the work. */
typedef struct {
    double weight_bytes; /* as the model has them: bf16, FP8 or 4 bits */
    double kv_bytes;     /* of a token that the group serves, on the average rank */
    double tokens;       /* that fit the whole group; 0: the weights do not fit */
} bt_analysis_rank;
typedef enum { BT_SHARE_TP, BT_SHARE_DP_EP, BT_SHARE_PD } bt_share;
/* TP: heads, experts and the rest are cut over the ranks, each keeps every latent.  DP_EP:
 * attention and the rest whole on each rank, experts cut, each latent on one rank.  PD: two such
 * groups of half the ranks, the tokens of the decode group. */
bt_analysis_rank bt_analysis_share(const bt_analysis *a, bt_share share, uint32_t ranks);

/* FLOP of the inner products (the projections around them are the same) of q new tokens after a
 * prefix, causal, one layer. */
double bt_analysis_normal_flops(const bt_mla_config *m, double n_prefix, double q);
double bt_analysis_absorbed_flops(const bt_mla_config *m, double n_prefix, double q);
/* Of a prompt in chunks: the normal form throughout, as law B has it, over the cheaper form chunk
 * by chunk. */
double bt_analysis_chunk_price(const bt_mla_config *m, uint32_t prompt, uint32_t chunk);

void    bt_analysis_print(const bt_analysis *a, FILE *to);
json_t *bt_analysis_json(const bt_analysis *a);
/* Which form --form cost takes for `batch` requests of q new tokens that attend to kv. */
void bt_analysis_explain(const bt_analysis *a, uint32_t q, uint32_t kv, uint32_t batch, FILE *to);

#endif

/* tools/census.h - a checkpoint's parameters by what they are for: as its files hold them, and as
 * its config.json makes one expect. */
#ifndef BT_TOOLS_CENSUS_H
#define BT_TOOLS_CENSUS_H

#include <stdint.h>

#include "model/config.h"
#include "model/safetensors.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
    BT_PART_EMBEDDING,
    BT_PART_ATTENTION, /* its latent norms included */
    BT_PART_DENSE,
    BT_PART_ROUTER,
    BT_PART_EXPERTS,
    BT_PART_SHARED,
    BT_PART_NORMS,
    BT_PART_HEAD,
    BT_PART_MTP, /* layers after the last: skipped at load, without --mtp */
    BT_PART_OTHER
} bt_part;
enum { BT_N_PARTS = BT_PART_OTHER + 1 };

const char *bt_part_name(bt_part part);

typedef struct {
    uint64_t n_params[BT_N_PARTS]; /* scales not counted */
    uint64_t bytes[BT_N_PARTS];    /* in the files, scales counted */
    uint64_t loaded[BT_N_PARTS];   /* bytes in memory: bf16, or where the files have them FP8 or
                                      4 bits with their scales */
    uint64_t n_tensors;
    bool     corrected;        /* some gate has a correction bias */
    char     first_other[128]; /* the name of a tensor that no part has, or "" */
} bt_census;

void bt_census_take(const bt_safetensors *files, const bt_model_config *cfg, bt_census *c);
/* The sum over what is served without --mtp. */
uint64_t bt_census_served(const uint64_t of[BT_N_PARTS]);

/* Parameters of one layer's attention, without an indexer. */
uint64_t bt_census_attention(const bt_mla_config *mla);
/* By the sizes in config.json; MTP and OTHER are left at 0. */
void bt_census_expect(const bt_model_config *cfg, uint64_t n_params[BT_N_PARTS]);

#ifdef __cplusplus
}
#endif
#endif

/* core/rank_flags.h - the flags of baton-worker whose values are numbers, sizes, words or names.
 *
 * baton-worker reads them here, and so does each verb that only passes them on
 * (cli/cell_options.c): a wrong value is refused before anything has started, in the same words. */
#ifndef BT_CORE_RANK_FLAGS_H
#define BT_CORE_RANK_FLAGS_H

#include <stdbool.h>
#include <stdint.h>

enum { BT_RANK_FLAG_WHY = 256, BT_RANK_GPUS = 64 };
enum { BT_DRAFT_MAX = 15 /* of --speculate */, BT_MTP_MAX = 5 /* of --mtp */ };

/* The words of --device; a value from CUDA_0 on is the GPU of that number. */
enum { BT_RANK_DEVICE_AUTO, BT_RANK_DEVICE_CPU, BT_RANK_DEVICE_CUDA, BT_RANK_DEVICE_CUDA_0 };

/* The value of "--chunk": a number, bytes, or for a flag of words which of them, from 0; a
 * name has none.  False: `why_out` names the flag, what was expected and what was found. */
bool bt_rank_flag_read(const char *flag, const char *text, uint64_t *value_out,
                       char why_out[BT_RANK_FLAG_WHY]);

/* One of a flag's words. */
const char *bt_rank_flag_word(const char *flag, uint32_t value);

/* Whether rows of one prompt in a step fit into its rows. */
bool bt_rank_rows_fit(uint64_t chunk, uint64_t max_rows, char why_out[BT_RANK_FLAG_WHY]);

#endif

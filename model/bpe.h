/* model/bpe.h - byte-pair merging: from a piece's bytes to ids, always the lowest-ranked pair
 * first, the leftmost of equal ones.
 *
 * Threads: encode is safe from several threads, each with its own scratch. */
#ifndef BT_MODEL_BPE_H
#define BT_MODEL_BPE_H

#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct bt_bpe bt_bpe;

/* byte_ids: the id of each single byte.  Room for n_merges merges.  NO_MEMORY. */
bt_status bt_bpe_create(const uint32_t byte_ids[256], size_t n_merges, bt_bpe **bpe_out);
void      bt_bpe_destroy(bt_bpe *bpe);
/* left right -> merged; a pair that was added before takes the new rank and id (as in Hugging
 * Face).  At most n_merges calls. */
void bt_bpe_add(bt_bpe *bpe, uint32_t rank, uint32_t left, uint32_t right, uint32_t merged);

/* Workspace that grows to the longest piece; all zero at first. */
typedef struct {
    void  *memory; /* owned */
    size_t n_bytes;
} bt_bpe_scratch;
void bt_bpe_scratch_fini(bt_bpe_scratch *scratch);

/* Writes the ids of a piece to ids_out (capacity n: never more ids than bytes).  NO_MEMORY. */
bt_status bt_bpe_encode(const bt_bpe *bpe, const char *piece, size_t n, bt_bpe_scratch *scratch,
                        uint32_t *ids_out, size_t *n_out);

#ifdef __cplusplus
}
#endif
#endif

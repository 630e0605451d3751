/* tools/synth_files.h - a checkpoint's safetensors files, written as they are computed. */
#ifndef BT_TOOLS_SYNTH_FILES_H
#define BT_TOOLS_SYNTH_FILES_H

#include <stdatomic.h>

#include "tools/out_dir.h"
#include "tools/synth_tensors.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    const char          *dir;
    const bt_synth_list *list;
    uint64_t             file_bytes; /* a file is closed before it holds more than that */
    const atomic_int    *stop;       /* nonzero: give up with CANCELLED */
    /* Elements first .. first+n of the list's tensor i, into `out` in its dtype; first is a
     * multiple of 2^20. */
    void (*fill)(void *ctx, size_t i, uint64_t first, size_t n, void *out);
    void            *fill_ctx;
    bt_out_progress *progress;
} bt_synth_job;

uint64_t bt_synth_total_bytes(const bt_synth_list *list);
uint32_t bt_synth_n_files(const bt_synth_job *job);

/* Writes model.safetensors, or numbered files and their index, into the directory, where none of
 * them may be yet.  IO, NO_MEMORY, or CANCELLED (not logged); what is there after a failure is for
 * bt_synth_remove(). */
bt_status bt_synth_write(const bt_synth_job *job);
/* Removes config.json and all files that bt_synth_write() makes. */
void bt_synth_remove(const bt_synth_job *job);

#ifdef __cplusplus
}
#endif
#endif

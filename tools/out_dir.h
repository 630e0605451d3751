/* tools/out_dir.h - the directory that a checkpoint is written into, and how far that has come. */
#ifndef BT_TOOLS_OUT_DIR_H
#define BT_TOOLS_OUT_DIR_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Makes it, or accepts an empty one; *made_out says which.  IO; INVALID_ARG names what is in it. */
bt_status bt_out_dir_open(const char *dir, bool *made_out);
/* Has its file system room for so many bytes of weights, and some more?  IO says how much there is;
 * `advice` ends that message. */
bt_status bt_out_dir_check_room(const char *dir, uint64_t bytes, const char *advice);

/* From now on SIGINT, SIGTERM and, unless it is ignored, SIGHUP set what this points to, and a
 * limit on file sizes is an error of write(). */
const atomic_int *bt_out_stop_flag(void);

typedef struct {
    uint64_t start_ns, last_ns;
    bool     shown; /* a line without an end stands on the terminal */
} bt_out_progress;

/* Shows it on a terminal. */
void bt_out_show_progress(bt_out_progress *p, uint64_t done, uint64_t total);

#ifdef __cplusplus
}
#endif
#endif

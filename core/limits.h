/* core/limits.h - what a process takes over from the one that starts it, looked at once, at its
 * start: the limits of the shell's ulimit, and what becomes of its children.
 *
 * Threads: main's, before any other. */
#ifndef BT_CORE_LIMITS_H
#define BT_CORE_LIMITS_H

#include <stdint.h>

#include "core/status.h"

/* What to do where a thread cannot be had. */
#define BT_RAISE_THREADS "raise `ulimit -u`, pids.max of the control group, or `ulimit -v`"

enum { BT_FILES = 64 }; /* that a program of ours needs beside connections and ranks */

/* n_files may be open at once: the soft limit is raised where the hard one allows it, for children
 * too.  IO names the limit, what `who` needs and what there is. */
bt_status bt_limits_allow_files(const char *who, uint32_t n_files);
/* n_threads more can run at once: so many are made, and have ended.  IO names what `who` needs,
 * what there is and the limits.  For libraries that do not bear to get none; any thread may call
 * it. */
bt_status bt_limits_allow_threads(const char *who, uint32_t n_threads);
/* A main's: BT_FILES, and stacks, its own and its threads', of at least 512 KiB.  SIGCHLD is no
 * longer ignored where it was.  IO names the limit. */
bt_status bt_limits_check(void);

#endif

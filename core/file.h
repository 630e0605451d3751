/* core/file.h - files that users name. */
#ifndef BT_CORE_FILE_H
#define BT_CORE_FILE_H

#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Opens a regular file for reading; what else has a name (a fifo, a terminal) could make the caller
 * wait for ever.  NULL: *why_out says why not, borrowed until errno's text changes. */
FILE *bt_open_regular(const char *path, const char **why_out);

#ifdef __cplusplus
}
#endif
#endif

/* core/file.h - files that users name, and those that lie beside the program. */
#ifndef BT_CORE_FILE_H
#define BT_CORE_FILE_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/stat.h>

#include "core/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a file is, for a message: "a directory". */
const char *bt_file_kind(mode_t mode);

/* Where files of no lasting use go: TMPDIR, or /tmp where that is no path.  Borrowed. */
const char *bt_temporary_folder(void);

/* Opens a regular file for reading; what else has a name (a fifo, a terminal) could make the caller
 * wait for ever.  NULL: *why_out says why not, borrowed until this thread's next call or errno's
 * text changes. */
FILE *bt_open_regular(const char *path, const char **why_out);
/* All of a regular file, with a zero behind it, owned by the caller; what it shrinks by meanwhile
 * is not there.  IO; FORMAT: it has more than max_bytes; NO_MEMORY. */
bt_status bt_read_regular(const char *path, size_t max_bytes, char **text_out, size_t *n_out);

/* All of a regular file, read-only, for munmap() by the caller; NULL where it is empty.  *info_out
 * is what it was then, with its size.  IO says why not. */
bt_status bt_map_regular(const char *path, uint8_t **map_out, struct stat *info_out);

/* The pipe or terminal of fd, opened once more so that writing never waits: O_NONBLOCK belongs to
 * what others have open as well.  Owned by the caller; -1: it is neither, or cannot be opened. */
int bt_open_never_blocking(int fd);

/* Whether something of that name is there, readable or not, a link to nothing too (then an error
 * follows on reading). */
bool bt_file_exists(const char *path);

/* The first of these files that dir has, or where it has none, the first; names ends with NULL. */
void bt_file_of(const char *dir, const char *const *names, char path_out[PATH_MAX]);
/* The file that describes the model in dir: its config.json, or where there is only that the
 * params.json of Mistral's own format. */
void bt_model_config_file(const char *dir, char path_out[PATH_MAX]);

/* Can a new file be put at path?  Asked before long work; nothing is created.  IO says why not,
 * after `option`, which named it. */
bt_status bt_check_out(const char *option, const char *path);
/* Is there a directory at path?  IO likewise. */
bt_status bt_check_folder(const char *option, const char *path);

/* This program's own file.  False: the system does not tell. */
bool bt_own_path(char path_out[PATH_MAX]);
/* `name` in that file's folder, which may begin with "../"; whether it is there nobody has looked.
 * False also when the path is too long. */
bool bt_path_beside(const char *name, char path_out[PATH_MAX]);

/* The Python that draws: BATON_PYTHON, else the system's, where distributions put matplotlib, else
 * the one in PATH.  Borrowed. */
const char *bt_python(void);

/* Whether this process has children that live: before it starts any, those of the shell that has
 * exec'ed it, as `helper & exec baton` does.  Collects those that have ended. */
bool bt_has_children(void);

#ifdef __cplusplus
}
#endif
#endif

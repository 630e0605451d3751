/* tools/profile/files.h - the files of a run: profile.json, profile.csv, and the plots. */
#ifndef BT_TOOLS_PROFILE_FILES_H
#define BT_TOOLS_PROFILE_FILES_H

#include <jansson.h>

#include "tools/profile/measure.h"

/* Creates dir when it is missing.  IO when a file could not be written there. */
bt_status bt_files_prepare(const char *dir);
/* Into a prepared dir.  m may be NULL: no CSV.  IO, naming the file, of which no part stays. */
bt_status bt_files_write(const char *dir, const json_t *json, const bt_profile_model *model,
                         const bt_measurement *m);
/* Runs plot.py, which is installed with this program, over dir/profile.json.  A missing Python or
 * matplotlib is said on stderr with what to install, and is no error.  IO likewise. */
bt_status bt_files_plot(const char *dir);

#endif

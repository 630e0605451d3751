/* launch/endings.h - how the ranks of a job ended, for its launcher.
 *
 * Where the others go on after a rank's death, mpirun ends with 0 whatever became of them; over
 * several hosts it does not end at all then.  So each rank's parent tells the rank's exit code: on
 * this machine it appends it to a file in the job's private directory, from other ones it comes as
 * a line of mpirun's output.  There the rank's guard (leftovers.h) tells it when the parent was
 * killed; on this machine the launcher sees by itself that the parent has gone. */
#ifndef BT_LAUNCH_ENDINGS_H
#define BT_LAUNCH_ENDINGS_H

#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"

/* In the launcher, before the ranks start: makes the file.  directory: the job's own; NULL where
 * ranks on other machines could not write to it, and then nothing is noted there.  IO. */
bt_status bt_endings_provide(const char *directory);
/* In the launcher, instead: returns the descriptor that is to be mpirun's stdout, -1 on an error;
 * the caller closes it once mpirun has started. */
int bt_endings_listen(void);
/* Takes what has been told by now, and passes on to stdout what is the ranks' own. */
void bt_endings_hear(void);

/* In a rank's parent, or its guard.  by_line: not to the file. */
void bt_endings_note(int code, bool by_line);

/* In the launcher: how many have been told of, and how many of them ended with 0. */
uint32_t bt_endings_count(uint32_t *n_well_out);
/* After the ranks, of what has been heard: 0 when one of them ended with 0 or nothing was to be
 * told, else the exit code of the first that ended; 1 when none could tell. */
int bt_endings_code(void);

#endif

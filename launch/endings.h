/* launch/endings.h - how the ranks of a job on this machine ended, for its launcher.
 *
 * Where the others go on after a rank's death, mpirun ends with 0 whatever became of them.  So each
 * rank's parent appends the rank's exit code to a file in the job's private directory. */
#ifndef BT_LAUNCH_ENDINGS_H
#define BT_LAUNCH_ENDINGS_H

/* In the launcher, before the ranks start.  directory: the job's own; NULL where ranks on other
 * machines could not write to it, and then nothing is noted. */
void bt_endings_provide(const char *directory);
/* In a rank's parent. */
void bt_endings_note(int code);
/* In the launcher, after the ranks: 0 when one of them ended with 0 or nothing was to be noted,
 * else the exit code of the first that ended; 1 when none could tell. */
int bt_endings_code(void);

#endif

/* cli/streams.h - the three standard streams as a program of ours finds them.
 *
 * Linked in, and before anything else runs: where descriptor 0, 1 or 2 is closed, /dev/null takes
 * its number, opened the wrong way round.  No socket or pipe can get it later, and using it still
 * fails with EBADF. */
#ifndef BT_CLI_STREAMS_H
#define BT_CLI_STREAMS_H

/* The first call of a main.  Ignores SIGPIPE, so that a reader who has gone is an error of a
 * write. */
void bt_streams_init(void);

#endif

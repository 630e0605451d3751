/* core/defaults.h - what an option is when nobody says anything: of those that several programs
 * take, or that one passes on to another.
 *
 * Macros, so that --help and the log name the value that holds: BT_TEXT() is a number's text. */
#ifndef BT_CORE_DEFAULTS_H
#define BT_CORE_DEFAULTS_H

#define BT_TEXT(number)  BT_TEXT_(number)
#define BT_TEXT_(number) #number

/* baton-coordinator, `baton run`, and clients of either. */
#define BT_DEFAULT_HOST           "127.0.0.1"
#define BT_DEFAULT_PORT           8000
#define BT_DEFAULT_ADDRESS        BT_DEFAULT_HOST ":" BT_TEXT(BT_DEFAULT_PORT)
#define BT_DEFAULT_CONTROL        BT_DEFAULT_HOST ":0"
#define BT_DEFAULT_QUEUE_S        30
#define BT_DEFAULT_QUEUE_TOKENS   4194304
#define BT_DEFAULT_DRAIN_S        20
#define BT_DEFAULT_UNREAD_S       600
#define BT_DEFAULT_REJOIN_S       30
#define BT_DEFAULT_RANK_TIMEOUT_S 30
#define BT_DEFAULT_CELL_WAIT_S    120 /* where one may come */

/* baton-worker, and the verbs that start cells. */
#define BT_DEFAULT_CHUNK                 2048
#define BT_DEFAULT_CHUNK_BOTH            512 /* generated tokens wait for the step */
#define BT_DEFAULT_MAX_ROWS              256 /* or as many as --chunk */
#define BT_DEFAULT_TIMEOUT_S             10
#define BT_DEFAULT_COORDINATOR_TIMEOUT_S 20
#define BT_DEFAULT_ORPHAN_S              60
#define BT_DEFAULT_STALL_S               120 /* `baton run` and `baton logits` give up */

#endif

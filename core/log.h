/* core/log.h - one line per event on stderr, and the assertion that stays on.
 *
 * A line reads: time level rank req=<id> file:line text
 *     2026-11-23 11:02:07.153 I rank=2 - worker/main.c:88 ready
 *     2026-11-23 11:02:09.001 E rank=2 req=17 worker/handoff_in.c:140 a hand-off message failed ...
 * One grep for a request id over all ranks tells that request's whole story.  The bytes of
 * control characters in the text become '?', in the text of an error too.
 *
 * Threads: any thread may log; a line is written with one write(2), so lines never mix.
 * Memory:  never allocates. */
#ifndef BT_CORE_LOG_H
#define BT_CORE_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(default) /* libbaton_cuda.so takes these from the program */
#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define BT_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#define BT_NORETURN          __attribute__((noreturn))
#else
#define BT_PRINTF(fmt, args)
#define BT_NORETURN
#endif

typedef enum { BT_LOG_ERROR, BT_LOG_WARN, BT_LOG_INFO, BT_LOG_DEBUG } bt_log_level;

/* Who writes: "rank=3", "coordinator", "run".  Copied, cut at 31 bytes.  Before other threads
 * log. */
void bt_log_init(const char *who, bt_log_level max_level);

/* The same for a verb that a person runs and reads: a line is "baton <who>: text", as those about
 * wrong usage are. */
void bt_log_init_verb(const char *who, bt_log_level max_level);
bool bt_log_is_verb(void);

/* From now on a line that nobody takes off a full pipe, terminal or socket is dropped and counted,
 * and no thread waits; the next line that gets through is followed by the number.  Files stay as
 * they are.  Call it once, before other threads log. */
void bt_log_never_block(void);

/* From now on each place in the code may write BT_LOG_BURST lines at once and BT_LOG_RATE a second;
 * what is more is left out, and tell_omitted() says how many.  For programs that strangers speak
 * to: no client can fill a disk.  Call it once, before other threads log. */
enum { BT_LOG_BURST = 1000, BT_LOG_RATE = 100 };
void bt_log_bound(void);
/* To be called now and then, by one thread (bt_now_ns clock), and with UINT64_MAX at the end: a
 * line for each place that has left some out, at most once a second. */
void bt_log_tell_omitted(uint64_t now_ns);

/* The request that this thread works on from now, printed in each of its lines; 0 = none. */
void bt_log_set_request(uint64_t request);

/* Writes what is no line of ours (one of another process, with its end; a progress bar) as it is,
 * and like one: in one write(2), of at most 4096 bytes, and dropped when nobody takes it. */
void bt_log_pass_on(const char *text, size_t n_bytes);

BT_PRINTF(4, 5)
void bt_log_write(bt_log_level level, const char *file, int line, const char *fmt, ...);
#define BT_INFO(...)  bt_log_write(BT_LOG_INFO, __FILE__, __LINE__, __VA_ARGS__)
#define BT_WARN(...)  bt_log_write(BT_LOG_WARN, __FILE__, __LINE__, __VA_ARGS__)
#define BT_DEBUG(...) bt_log_write(BT_LOG_DEBUG, __FILE__, __LINE__, __VA_ARGS__)

/* Writes "<what>: <text>", or the text alone when what is "", as an error line and keeps it for
 * bt_error_text(). */
BT_PRINTF(4, 5)
void bt_log_error(const char *file, int line, const char *what, const char *fmt, ...);

/* Keeps it alone: what is wrong with a client's request is said to that client, who may send many.
 */
BT_PRINTF(2, 3)
void bt_error_keep(const char *what, const char *fmt, ...);

/* This thread's last error, without time and place: for a message to a client or a user.
 * Borrowed until this thread's next error; "" when there was none. */
const char *bt_error_text(void);

/* For our own bugs only: never for input, peers or devices, never with a side effect in `cond`.
 * Active in every build. */
#define BT_ASSERT(cond) ((cond) ? (void)0 : bt_assert_failed(__FILE__, __LINE__, #cond))
BT_NORETURN void bt_assert_failed(const char *file, int line, const char *cond);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif

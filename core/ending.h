/* core/ending.h - how a process was ended by a signal, in words.
 *
 * Threads: any. */
#ifndef BT_CORE_ENDING_H
#define BT_CORE_ENDING_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* "was ended by signal 11 (Segmentation fault)", and where the signal alone does not say what the
 * system did to it, what may have been the cause; not when the signal was `ours`.  Returns buf; 128
 * bytes are enough. */
const char *bt_ending_by_signal(int sig, bool ours, char *buf, size_t capacity);

#ifdef __cplusplus
}
#endif
#endif

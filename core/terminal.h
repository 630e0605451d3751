/* core/terminal.h - what may be written to a terminal beside lines of text.
 *
 * A terminal that says TERM=dumb is none here: it understands no escape sequence. */
#ifndef BT_CORE_TERMINAL_H
#define BT_CORE_TERMINAL_H

#include <stdbool.h>

/* In front of a line without an end that takes the place of the one before it. */
#define BT_TERMINAL_CLEAR "\r\033[K"

/* Characters that such a line may have at present: one more could begin another row, which would
 * stay.  0: fd is no terminal. */
int bt_terminal_columns(int fd);

/* Whether it may be coloured or dimmed: not where NO_COLOR is set (no-color.org). */
bool bt_terminal_colours(int fd);

#endif

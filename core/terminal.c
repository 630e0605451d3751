#include "core/terminal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { COLUMNS = 80 }; /* of a terminal that does not say */

int bt_terminal_columns(int fd)
{
    const char    *term = getenv("TERM");
    struct winsize size;

    if (isatty(fd) != 1 || (term != NULL && strcmp(term, "dumb") == 0)) return 0;
    if (ioctl(fd, TIOCGWINSZ, &size) != 0 || size.ws_col < 2) return COLUMNS - 1;
    return size.ws_col - 1;
}

bool bt_terminal_colours(int fd)
{
    const char *no = getenv("NO_COLOR");

    return bt_terminal_columns(fd) != 0 && (no == NULL || no[0] == '\0');
}

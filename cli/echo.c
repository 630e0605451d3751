#include "cli/echo.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/terminal.h"

/* A line of core/log.h: "2026-11-23 11:02:07.153 I rank=2 - worker/main.c:88 ready". */
enum { LEVEL_AT = 24, WHO_AT = 26, BAR_BYTES = 200, LINE_BYTES = 4098 };

/* What Open MPI 4.1 says of each rank that ends where the death of one is survived. */
static const char PMIX_NOISE[] =
    "PMIX ERROR: BAD-PARAM in file ../../../src/event/pmix_event_notification.c";

void bt_echo_init(bt_echo *echo, bt_log_level max_level)
{
    memset(echo, 0, sizeof(*echo));
    echo->max_level = max_level;
    echo->terminal  = bt_terminal_columns(STDERR_FILENO) != 0;
}

static bool is_log_line(const char *line)
{
    return strlen(line) > WHO_AT && line[4] == '-' && line[13] == ':' && line[16] == ':' &&
           line[19] == '.' && line[LEVEL_AT - 1] == ' ' && line[LEVEL_AT + 1] == ' ' &&
           strchr("EWID", line[LEVEL_AT]) != NULL;
}

/* "rank=2 req=17 worker/main.c:88 text": the text starts after the third blank.  A rank that does
 * not know its number yet, since MPI has not started, is "worker". */
static void remember(bt_echo *echo, const char *who)
{
    const char *text     = who;
    bool        numbered = strncmp(who, "rank=", 5) == 0;

    if (echo->first_error[0] != '\0' || (!numbered && strncmp(who, "worker ", 7) != 0)) return;
    for (int i = 0; i < 3 && text != NULL; i++) {
        text = strchr(text, ' ');
        if (text != NULL) text++;
    }
    if (text == NULL) return;
    if (numbered)
        snprintf(echo->first_error, sizeof(echo->first_error), "rank %.*s: %s",
                 (int)strcspn(who + 5, " "), who + 5, text);
    else
        snprintf(echo->first_error, sizeof(echo->first_error), "%s", text);
}

void bt_echo_line(void *echo, const char *line)
{
    bt_echo *r     = echo;
    int      level = BT_LOG_ERROR, n;
    char     text[LINE_BYTES];

    if (strstr(line, PMIX_NOISE) != NULL) {
        level = BT_LOG_DEBUG;
    } else if (is_log_line(line)) {
        level = (int)(strchr("EWID", line[LEVEL_AT]) - "EWID");
        if (level == BT_LOG_ERROR) remember(r, line + WHO_AT);
    }
    if (level > (int)r->max_level) return;
    bt_echo_clear_bar(r);
    n = snprintf(text, sizeof(text), "%s\n", line);
    bt_log_pass_on(text, n < LINE_BYTES ? (size_t)n : sizeof(text) - 1);
}

void bt_echo_bar(bt_echo *echo, const char *fmt, ...)
{
    char    bar[BAR_BYTES], text[sizeof(BT_TERMINAL_CLEAR) + BAR_BYTES];
    va_list ap;

    if (!echo->terminal) return;
    va_start(ap, fmt);
    vsnprintf(bar, sizeof(bar), fmt, ap);
    va_end(ap);
    snprintf(text, sizeof(text), BT_TERMINAL_CLEAR "%.*s", bt_terminal_columns(STDERR_FILENO), bar);
    bt_log_pass_on(text, strlen(text));
    echo->bar = true;
}

void bt_echo_clear_bar(bt_echo *echo)
{
    if (echo->bar) bt_log_pass_on(BT_TERMINAL_CLEAR, strlen(BT_TERMINAL_CLEAR));
    echo->bar = false;
}

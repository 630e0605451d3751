#include "cli/relay.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/terminal.h"

/* A line of core/log.h: "2026-11-23 11:02:07.153 I rank=2 - worker/main.c:88 ready". */
enum { LEVEL_AT = 24, WHO_AT = 26, BAR_BYTES = 200, LINE_BYTES = 4098 };

void bt_relay_init(bt_relay *relay, bt_log_level max_level)
{
    memset(relay, 0, sizeof(*relay));
    relay->max_level = max_level;
    relay->terminal  = bt_terminal_columns(STDERR_FILENO) != 0;
}

static bool is_log_line(const char *line)
{
    return strlen(line) > WHO_AT && line[4] == '-' && line[13] == ':' && line[16] == ':' &&
           line[19] == '.' && line[LEVEL_AT - 1] == ' ' && line[LEVEL_AT + 1] == ' ' &&
           strchr("EWID", line[LEVEL_AT]) != NULL;
}

/* "rank=2 req=17 worker/main.c:88 text": the text starts after the third blank. */
static void remember(bt_relay *relay, const char *who)
{
    const char *text = who;

    if (relay->first_error[0] != '\0' || strncmp(who, "rank=", 5) != 0) return;
    for (int i = 0; i < 3 && text != NULL; i++) {
        text = strchr(text, ' ');
        if (text != NULL) text++;
    }
    if (text == NULL) return;
    snprintf(relay->first_error, sizeof(relay->first_error), "rank %.*s: %s",
             (int)strcspn(who + 5, " "), who + 5, text);
}

void bt_relay_line(void *relay, const char *line)
{
    bt_relay *r     = relay;
    int       level = BT_LOG_ERROR, n;
    char      text[LINE_BYTES];

    if (is_log_line(line)) {
        level = (int)(strchr("EWID", line[LEVEL_AT]) - "EWID");
        if (level == BT_LOG_ERROR) remember(r, line + WHO_AT);
    }
    if (level > (int)r->max_level) return;
    bt_relay_clear_bar(r);
    n = snprintf(text, sizeof(text), "%s\n", line);
    bt_log_pass_on(text, n < LINE_BYTES ? (size_t)n : sizeof(text) - 1);
}

void bt_relay_bar(bt_relay *relay, const char *fmt, ...)
{
    char    bar[BAR_BYTES], text[sizeof(BT_TERMINAL_CLEAR) + BAR_BYTES];
    va_list ap;

    if (!relay->terminal) return;
    va_start(ap, fmt);
    vsnprintf(bar, sizeof(bar), fmt, ap);
    va_end(ap);
    snprintf(text, sizeof(text), BT_TERMINAL_CLEAR "%.*s", bt_terminal_columns(STDERR_FILENO), bar);
    bt_log_pass_on(text, strlen(text));
    relay->bar = true;
}

void bt_relay_clear_bar(bt_relay *relay)
{
    if (relay->bar) bt_log_pass_on(BT_TERMINAL_CLEAR, strlen(BT_TERMINAL_CLEAR));
    relay->bar = false;
}

#include "core/status.h"

#include <stdio.h>
#include <sys/resource.h>

const char *bt_status_str(bt_status st)
{
    switch (st) {
    case BT_OK: return "ok";
#define X(name, scope, text) \
    case BT_ERR_##name: return text;
        BT_STATUS_MAP(X)
#undef X
    }
    return "unknown status";
}

/* With the shell's limit, which may be what is in the way. */
static const char *no_memory(void)
{
    static _Thread_local char text[64];
    struct rlimit             limit;

    if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
        return bt_status_str(BT_ERR_NO_MEMORY);
    snprintf(text, sizeof(text), "%s (`ulimit -v` is %llu)", bt_status_str(BT_ERR_NO_MEMORY),
             (unsigned long long)limit.rlim_cur / 1024);
    return text;
}

const char *bt_status_head(bt_status st)
{
    if (st == BT_ERR_NO_MEMORY) return no_memory();
    return st != BT_ERR_DEVICE && bt_log_is_verb() ? "" : bt_status_str(st);
}

bt_scope bt_status_scope(bt_status st)
{
    switch (st) {
    case BT_OK: return BT_SCOPE_REQUEST;
#define X(name, scope, text) \
    case BT_ERR_##name: return BT_SCOPE_##scope;
        BT_STATUS_MAP(X)
#undef X
    }
    return BT_SCOPE_CELL;
}

#include "core/status.h"

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

const char *bt_status_head(bt_status st)
{
    bool is_said = st != BT_ERR_NO_MEMORY && st != BT_ERR_DEVICE; /* by the text behind it */

    return is_said && bt_log_is_verb() ? "" : bt_status_str(st);
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

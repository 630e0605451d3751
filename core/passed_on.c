#include "core/passed_on.h"

#include <string.h>

#include "core/log.h"

/* Where the flag stands, or the end. */
static uint32_t find_flag(const bt_passed_on *to, const char *flag)
{
    uint32_t i = 0;

    while (i < to->n && strcmp(to->args[i], flag) != 0)
        i++; /* no value looks like a flag */
    return i;
}

void bt_pass_on(bt_passed_on *to, const char *flag, const char *value)
{
    uint32_t i = find_flag(to, flag);

    BT_ASSERT(i + 2 <= BT_PASSED_ON);
    to->args[i]     = flag;
    to->args[i + 1] = value;
    if (i == to->n) to->n += 2;
}

void bt_pass_flag(bt_passed_on *to, const char *flag)
{
    BT_ASSERT(to->n < BT_PASSED_ON);
    if (find_flag(to, flag) == to->n) to->args[to->n++] = flag;
}

const char *bt_passed_value(const bt_passed_on *to, const char *flag)
{
    uint32_t i = find_flag(to, flag);

    return i + 1 < to->n ? to->args[i + 1] : NULL;
}

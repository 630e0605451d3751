#define _POSIX_C_SOURCE 200809L
#include "core/clock.h"

#include <time.h>

uint64_t bt_now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * BT_NS_PER_S + (uint64_t)now.tv_nsec;
}

uint64_t bt_awake_ns(void)
{
    static _Thread_local bt_awake own;

    return bt_awake_at_ns(&own, bt_now_ns(), BT_NS_PER_S);
}

void bt_sleep_ns(uint64_t ns)
{
    struct timespec left = {(time_t)(ns / BT_NS_PER_S), (long)(ns % BT_NS_PER_S)};

    nanosleep(&left, NULL);
}

double bt_unix_s(void)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

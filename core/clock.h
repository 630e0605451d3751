/* core/clock.h - time: nanoseconds of the monotonic clock, and what clocks on the wall show. */
#ifndef BT_CORE_CLOCK_H
#define BT_CORE_CLOCK_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define BT_NS_PER_US 1000ull
#define BT_NS_PER_MS 1000000ull
#define BT_NS_PER_S  1000000000ull

uint64_t bt_now_ns(void);
void     bt_sleep_ns(uint64_t ns);
double   bt_unix_s(void); /* seconds since 1970; may jump */

/* How long ago it was; 0 for what has happened since now_ns was read. */
static inline uint64_t bt_since_ns(uint64_t then_ns, uint64_t now_ns)
{
    return now_ns > then_ns ? now_ns - then_ns : 0;
}

#ifdef __cplusplus
}
#endif
#endif

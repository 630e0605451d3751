/* core/clock.h - time as nanoseconds of the monotonic clock. */
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

#ifdef __cplusplus
}
#endif
#endif

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

double bt_unix_s(void); /* seconds since 1970; may jump */

#pragma GCC visibility push(default) /* libbaton_nccl.so takes these from the program */

uint64_t bt_now_ns(void);
void     bt_sleep_ns(uint64_t ns);

#pragma GCC visibility pop

/* How long ago it was; 0 for what has happened since now_ns was read. */
static inline uint64_t bt_since_ns(uint64_t then_ns, uint64_t now_ns)
{
    return now_ns > then_ns ? now_ns - then_ns : 0;
}

/* How long this process stood still, most often with its machine, so that nobody else was late: the
 * time since it looked last, if that is limit_ns or more; else 0.  *looked_ns: when that was, 0
 * before the first look; becomes now. */
static inline uint64_t bt_stood_still_ns(uint64_t *looked_ns, uint64_t now_ns, uint64_t limit_ns)
{
    uint64_t gap_ns = *looked_ns == 0 ? 0 : now_ns - *looked_ns;

    *looked_ns = now_ns;
    return gap_ns < limit_ns ? 0 : gap_ns;
}

/* A clock that stands still with whoever reads it: deadlines that begin and end by it wait out what
 * the process stood still. */
typedef struct {
    uint64_t looked_ns, still_ns;
} bt_awake;

static inline uint64_t bt_awake_at_ns(bt_awake *a, uint64_t now_ns, uint64_t limit_ns)
{
    a->still_ns += bt_stood_still_ns(&a->looked_ns, now_ns, limit_ns);
    return now_ns - a->still_ns;
}

/* Such a clock of the calling thread, which reads it all the time while it waits: 1 s between two
 * looks, more than a busy machine takes, is a standstill. */
uint64_t bt_awake_ns(void);

#ifdef __cplusplus
}
#endif
#endif

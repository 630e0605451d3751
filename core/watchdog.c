#include "core/watchdog.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/limits.h"
#include "core/thread.h"

enum { LOOKS = 16 }; /* in the time of the limit */
#define LOOK_MAX_NS BT_NS_PER_S

static const char EXPIRED[] = "";

/* One for the process: it watches the step thread. */
static struct {
    _Atomic(const char *) what; /* NULL: no call is under way; EXPIRED: it may not come back */
    atomic_int            layer;
    atomic_ulong          turn; /* grows with every call */
    _Atomic(uint64_t)     limit_ns;
    bt_watchdog_fn        fn;
    void                 *ctx;
} g_dog;

static void expire(const char *what, uint64_t quiet_ns)
{
    char where[128];
    int  layer = atomic_load(&g_dog.layer);

    if (layer >= 0)
        snprintf(where, sizeof(where), "%s of layer %d", what, layer);
    else
        snprintf(where, sizeof(where), "%s", what);
    g_dog.fn(g_dog.ctx, where, quiet_ns);
}

/* Time is counted in looks, each at its planned length: a process that was stopped for an hour has
 * missed one look. */
static void *watch(void *unused)
{
    uint64_t      quiet_ns = 0;
    unsigned long seen     = 0;

    (void)unused;
    for (;;) {
        uint64_t      limit_ns = atomic_load(&g_dog.limit_ns), look_ns = limit_ns / LOOKS;
        const char   *what;
        unsigned long turn;

        if (look_ns > LOOK_MAX_NS) look_ns = LOOK_MAX_NS;
        bt_sleep_ns(look_ns);
        what = atomic_load(&g_dog.what); /* first: a call that comes between the two is a turn */
        turn = atomic_load(&g_dog.turn);
        if (what == NULL || turn != seen) {
            seen     = turn;
            quiet_ns = 0;
            continue;
        }
        quiet_ns += look_ns;
        if (quiet_ns < limit_ns) continue;
        if (atomic_compare_exchange_strong(&g_dog.what, &what, EXPIRED)) {
            expire(what, quiet_ns);
            return NULL;
        } /* else it has just come back */
    }
}

bt_status bt_watchdog_start(uint64_t limit_ns, bt_watchdog_fn expired, void *ctx)
{
    bt_status st = BT_OK;
    pthread_t thread;
    int       code;

    BT_ASSERT(g_dog.fn == NULL && expired != NULL && limit_ns >= LOOKS);
    g_dog.fn  = expired;
    g_dog.ctx = ctx;
    atomic_store(&g_dog.limit_ns, limit_ns);
    code = bt_thread_start(&thread, watch, NULL);
    BT_REQUIRE(code == 0, BT_ERR_NO_MEMORY, "the watchdog's thread does not start (%s): %s",
               strerror(code), BT_RAISE_THREADS);
    pthread_detach(thread);
out:
    return st;
}

void bt_watchdog_set_limit(uint64_t limit_ns)
{
    BT_ASSERT(limit_ns >= LOOKS);
    atomic_store(&g_dog.limit_ns, limit_ns);
}

void bt_watchdog_enter(const char *what, int layer)
{
    atomic_store_explicit(&g_dog.layer, layer, memory_order_relaxed);
    atomic_fetch_add_explicit(&g_dog.turn, 1, memory_order_relaxed);
    atomic_store_explicit(&g_dog.what, what, memory_order_release);
}

void bt_watchdog_leave(void)
{
    if (atomic_exchange(&g_dog.what, NULL) == EXPIRED)
        for (;;)
            pause();
}

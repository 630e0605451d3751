#include "core/alloc.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/log.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22 /* of Linux 5.14; headers may be older */
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* of Linux 6.1 */
#endif

enum { LARGE_BYTES = 1 << 20 };

static atomic_long g_fail_at = -1;
static atomic_long g_live;

bool bt_alloc_fail_at(long k) { return atomic_exchange(&g_fail_at, k) < 0; }
long bt_alloc_live(void) { return atomic_load(&g_live); }

static bool must_fail(void)
{
    return atomic_load_explicit(&g_fail_at, memory_order_relaxed) >= 0 &&
           atomic_fetch_sub(&g_fail_at, 1) == 0;
}

static void *counted(void *ptr)
{
    if (ptr != NULL) atomic_fetch_add_explicit(&g_live, 1, memory_order_relaxed);
    return ptr;
}

void *bt_calloc(size_t n, size_t size)
{
    if (must_fail()) return NULL;
    return counted(n == 0 || size == 0 ? calloc(1, 1) : calloc(n, size));
}

void *bt_realloc(void *ptr, size_t n, size_t size)
{
    void *moved;

    if (must_fail() || (size != 0 && n > SIZE_MAX / size)) return NULL;
    moved = realloc(ptr, n * size == 0 ? 1 : n * size);
    return ptr == NULL ? counted(moved) : moved;
}

void *bt_copy(const void *from, size_t n, size_t size)
{
    void *copy = bt_calloc(n, size);

    if (copy != NULL && n * size > 0) memcpy(copy, from, n * size);
    return copy;
}

char *bt_strdup(const char *text) { return bt_copy(text, strlen(text) + 1, 1); }

void bt_advise_large(void *at, size_t bytes)
{
    (void)madvise(at, bytes, MADV_HUGEPAGE);
    (void)madvise(at, bytes, MADV_DONTDUMP);
}

void bt_make_huge(void *at, size_t bytes, size_t room)
{
    size_t         head = (BT_HUGE_BYTES - (uintptr_t)at % BT_HUGE_BYTES) % BT_HUGE_BYTES, n;
    volatile char *from = (volatile char *)at + head;

    if (bytes <= head || room <= head) return;
    n = (bytes - head + BT_HUGE_BYTES - 1) / BT_HUGE_BYTES;
    if (n > (room - head) / BT_HUGE_BYTES) n = (room - head) / BT_HUGE_BYTES;
    for (size_t i = 0; i < n; i++)
        (void)from[i * BT_HUGE_BYTES]; /* one that has nothing yet is left alone */
    if (n != 0 && madvise((void *)from, n * BT_HUGE_BYTES, MADV_COLLAPSE) != 0)
        BT_DEBUG("shared weights in small pages: madvise, MADV_COLLAPSE: %s", strerror(errno));
}

void bt_hold_weights(void *at, size_t bytes)
{
    bt_advise_large(at, bytes);
    if (mlock2(at, bytes, MLOCK_ONFAULT) != 0)
        BT_DEBUG("weights may leave memory while nobody uses them: mlock2: %s (see ulimit -l)",
                 strerror(errno));
}

void bt_bring_weights(const void *at, size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), head = (uintptr_t)at % page;

    (void)madvise((char *)(uintptr_t)at - head, head + bytes, MADV_POPULATE_READ);
}

/* Zeroes memory.  Whole pages of a large block are given back to the kernel, which hands out zeroed
 * ones when they are first touched: a KV pool of gigabytes costs nothing until it is used.  They
 * are huge pages where the system has them on request, and stay out of core files: weights would
 * make those endless, and users' tokens have no place there. */
static void zero(char *ptr, size_t bytes)
{
    size_t page  = (size_t)sysconf(_SC_PAGESIZE);
    size_t head  = (page - (uintptr_t)ptr % page) % page;
    size_t pages = bytes < LARGE_BYTES ? 0 : (bytes - head) / page * page;

    if (pages == 0 || madvise(ptr + head, pages, MADV_DONTNEED) != 0) {
        memset(ptr, 0, bytes);
        return;
    }
    bt_advise_large(ptr + head, pages);
    memset(ptr, 0, head);
    memset(ptr + head + pages, 0, bytes - head - pages);
}

void *bt_calloc_aligned(size_t n, size_t size)
{
    size_t bytes;
    void  *ptr;

    if (must_fail() || (size != 0 && n > (SIZE_MAX - 64) / size)) return NULL;
    bytes = (n * size + 63) & ~(size_t)63;
    ptr   = aligned_alloc(64, bytes == 0 ? 64 : bytes);
    if (ptr != NULL) zero(ptr, bytes == 0 ? 64 : bytes);
    return counted(ptr);
}

void bt_free(void *ptr)
{
    if (ptr == NULL) return;
    atomic_fetch_sub_explicit(&g_live, 1, memory_order_relaxed);
    free(ptr);
}

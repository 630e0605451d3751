/* core/alloc.h - the only door to malloc, so that tests can make it fail.
 *
 * Threads: any thread; the test hooks belong to one thread at a time. */
#ifndef BT_CORE_ALLOC_H
#define BT_CORE_ALLOC_H

#include <stdbool.h>
#include <stddef.h>

#pragma GCC visibility push(default) /* libbaton_cuda.so takes these from the program */
#ifdef __cplusplus
extern "C" {
#endif

/* Zeroed memory, or NULL (not logged).  Overflow of n * size counts as out of memory; n * size of
 * 0 gives a valid pointer.  Free with bt_free(). */
void *bt_calloc(size_t n, size_t size);
/* Grows or shrinks; the new tail is not zeroed.  On NULL the old memory stays valid. */
void *bt_realloc(void *ptr, size_t n, size_t size);
/* A copy of n * size bytes, else as bt_calloc(); `from` may be NULL where that is 0. */
void *bt_copy(const void *from, size_t n, size_t size);
/* A copy of the string. */
char *bt_strdup(const char *text);
/* Zeroed memory aligned to 64 bytes (a cache line, a zmm register).  Free with bt_free(). */
void *bt_calloc_aligned(size_t n, size_t size);
void  bt_free(void *ptr); /* NULL is allowed */

/* The next n * size bytes of `mem`, of which *used are taken, on a cache line; counts them.  With
 * mem NULL it only counts. */
static inline void *bt_lay(char *mem, size_t *used, size_t n, size_t size)
{
    void *piece = mem == NULL ? NULL : mem + *used;

    *used += (n * size + 63) / 64 * 64;
    return piece;
}

enum { BT_HUGE_BYTES = 2 << 20 }; /* of a huge page */
/* Large memory: in huge pages where the system has them on request, and in no core file. */
void bt_advise_large(void *at, size_t bytes);
/* A piece of such memory that is shared and still empty, in a mapping that goes on for `room` bytes
 * from `at`: the huge pages that begin in it are made now, since on advice alone most systems have
 * them for private memory only.  Where that cannot be, pages stay small. */
void bt_make_huge(void *at, size_t bytes, size_t room);
/* A mapping of weights: the same, and what has come into memory stays there, idle or not, where
 * RLIMIT_MEMLOCK allows that: a line of the log says where it does not. */
void bt_hold_weights(void *at, size_t bytes);
/* Weights of such a mapping are about to be used: their pages come now, from the disk where they
 * must, not one by one with the first request. */
void bt_bring_weights(const void *at, size_t bytes);

/* Test hook: the allocation number `k` from now (0 = the next) fails, once.  -1: off.  False: that
 * of the call before has not come. */
bool bt_alloc_fail_at(long k);
/* Test hook: allocations not yet freed. */
long bt_alloc_live(void);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif

#include "device/cpu/memory.h"

#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/alloc.h"

enum { ALIGN = 64, HUGE_BYTES = 2 << 20 };

/* Huge pages for what the kernels stream: best effort. */
static void advise_huge(char *ptr, size_t bytes)
{
    uintptr_t page  = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t begin = ((uintptr_t)ptr + page - 1) & ~(page - 1);
    uintptr_t end   = ((uintptr_t)ptr + bytes) & ~(page - 1);

    if (bytes >= HUGE_BYTES && end > begin) {
        (void)madvise((void *)begin, end - begin, MADV_HUGEPAGE);
    }
}

/* The block's own pointer lies just before the aligned one. */
void *bt_cpu_memory_take(size_t bytes)
{
    char *block, *ptr;

    if (bytes > SIZE_MAX - 2 * ALIGN) return NULL;
    block = bt_calloc(bytes + 2 * ALIGN, 1); /* large blocks are fresh, untouched mappings */
    if (block == NULL) return NULL;
    ptr                = (char *)(((uintptr_t)block + 2 * ALIGN - 1) & ~(uintptr_t)(ALIGN - 1));
    ((void **)ptr)[-1] = block;
    advise_huge(ptr, bytes);
    return ptr;
}

void bt_cpu_memory_free(void *ptr)
{
    if (ptr != NULL) bt_free(((void **)ptr)[-1]);
}

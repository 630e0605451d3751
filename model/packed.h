/* model/packed.h - packed weights in a file, which later starts map instead of packing again.
 *
 *     head | entries[n], by ascending key | data          data of each entry begins at a page
 *
 * The head has the key of all that the bytes depend on (bt_model_store_options()), and a hash of
 * itself and the entries.  A file is written under another name and gets its own once it is on the
 * disk, so that who finds it finds all of it; it is never written again.
 *
 * Threads: any, one at a time.  Memory: the file's pages in the page cache, read-only, which all
 * processes that map it share. */
#ifndef BT_MODEL_PACKED_H
#define BT_MODEL_PACKED_H

#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct bt_packed bt_packed;

typedef struct {
    uint64_t    key; /* bt_packed_name_key() */
    uint64_t    bytes;
    const void *data; /* borrowed */
} bt_packed_entry;

uint64_t bt_packed_name_key(const char *name);

/* Maps the file; *packed_out is NULL when there is none.  Refused, with the path and the reason:
 * what is no regular file, belongs to another user or may be written by one (UNSUPPORTED), is of
 * another version or key (UNSUPPORTED), or is not whole (FORMAT). */
bt_status bt_packed_open(const char *path, uint64_t key, bt_packed **packed_out);
void      bt_packed_close(bt_packed *packed); /* NULL is allowed */
/* Borrowed until close(); NULL when the file has no such entry of so many bytes. */
const void            *bt_packed_find(const bt_packed *packed, const char *name, size_t bytes);
uint32_t               bt_packed_count(const bt_packed *packed); /* of NULL: 0 */
const bt_packed_entry *bt_packed_at(const bt_packed *packed, uint32_t i);

/* Writes the entries, which it sorts; of those with the same key, and so the same bytes, one.
 * Nothing is left of a file that could not be written whole.  OK, and nothing written, while
 * another process writes the same file; IO where that cannot be known, since files cannot be
 * locked there (Lustre mounted without flock). `progress`, or NULL, is called after each entry. */
bt_status bt_packed_write(const char *path, uint64_t key, uint32_t n, bt_packed_entry *entries,
                          void (*progress)(void *ctx), void *ctx);

#ifdef __cplusplus
}
#endif
#endif

#include "model/packed.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "core/alloc.h"

#define MAGIC    UINT64_C(0x64656b6361702062) /* "b packed" */
#define ALIGN(n) (((n) + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES)

enum { VERSION = 1, PAGE_BYTES = 4096 };

typedef struct {
    uint64_t key, at, bytes; /* at: in the file */
} place;

typedef struct {
    uint64_t magic;
    uint32_t version, n_places;
    uint64_t key, bytes; /* of the whole file */
    uint64_t hash;       /* of the head up to here, and the places */
} head;

struct bt_packed {
    void            *map;
    size_t           bytes;
    uint32_t         n;
    bt_packed_entry *entries; /* owned, ascending by key */
};

uint64_t bt_packed_name_key(const char *name)
{
    uint64_t key = XXH3_64bits(name, strlen(name));

    return key + (key == 0); /* 0 is no name's */
}

static uint64_t hash_of(const head *h, const place *places)
{
    uint64_t seed = XXH3_64bits(h, offsetof(head, hash));

    return XXH3_64bits_withSeed(places, h->n_places * sizeof(*places), seed);
}

static uint64_t data_at(uint32_t n_places)
{
    return ALIGN(sizeof(head) + (uint64_t)n_places * sizeof(place));
}

/* ---- reading */

static bt_status map_file(const char *path, int fd, bt_packed *p)
{
    bt_status   st = BT_OK;
    struct stat file;

    BT_REQUIRE(fstat(fd, &file) == 0, BT_ERR_IO, "%s: %s", path, strerror(errno));
    BT_REQUIRE(S_ISREG(file.st_mode), BT_ERR_UNSUPPORTED, "%s is no regular file", path);
    BT_REQUIRE(file.st_uid == geteuid() && (file.st_mode & (S_IWGRP | S_IWOTH)) == 0,
               BT_ERR_UNSUPPORTED,
               "%s belongs to user %u with mode %04o: expected user %u, and that nobody else may "
               "write to it",
               path, file.st_uid, file.st_mode & 07777, geteuid());
    BT_REQUIRE((size_t)file.st_size >= sizeof(head), BT_ERR_FORMAT,
               "%s: %lld bytes are no packed weights", path, (long long)file.st_size);
    p->bytes = (size_t)file.st_size;
    p->map   = mmap(NULL, p->bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (p->map == MAP_FAILED) p->map = NULL;
    BT_REQUIRE(p->map != NULL, BT_ERR_NO_MEMORY, "%s: %s", path, strerror(errno));
    bt_hold_weights(p->map, p->bytes);
out:
    return st;
}

static bt_status check_head(const char *path, uint64_t key, const bt_packed *p)
{
    const head *h  = p->map;
    bt_status   st = BT_OK;

    BT_REQUIRE(h->magic == MAGIC && h->version == VERSION, BT_ERR_UNSUPPORTED,
               "%s: version %u, magic %" PRIx64 ": expected version %d, magic %" PRIx64, path,
               h->version, h->magic, (int)VERSION, MAGIC);
    BT_REQUIRE(h->key == key, BT_ERR_UNSUPPORTED,
               "%s: packed weights of model %016" PRIx64 ", expected %016" PRIx64, path, h->key,
               key);
    BT_REQUIRE(h->bytes == p->bytes && data_at(h->n_places) <= p->bytes, BT_ERR_FORMAT,
               "%s: %zu bytes, expected %" PRIu64 " with %u entries", path, p->bytes, h->bytes,
               h->n_places);
    BT_REQUIRE(h->hash == hash_of(h, (const place *)(h + 1)), BT_ERR_FORMAT,
               "%s: the hash of its head is %016" PRIx64 ", not as it says", path,
               hash_of(h, (const place *)(h + 1)));
out:
    return st;
}

static bt_status take_places(const char *path, bt_packed *p)
{
    const head  *h      = p->map;
    const place *places = (const place *)(h + 1);
    bt_status    st     = BT_OK;

    p->n       = h->n_places;
    p->entries = bt_calloc(p->n + 1ul, sizeof(*p->entries));
    BT_REQUIRE(p->entries != NULL, BT_ERR_NO_MEMORY, "%s: %u entries", path, p->n);
    for (uint32_t i = 0; i < p->n; i++) {
        BT_REQUIRE(places[i].at % PAGE_BYTES == 0 && places[i].at >= data_at(p->n) &&
                       places[i].at <= p->bytes && places[i].bytes <= p->bytes - places[i].at &&
                       (i == 0 || places[i].key > places[i - 1].key),
                   BT_ERR_FORMAT,
                   "%s: entry %u, %016" PRIx64 ", of %" PRIu64 " bytes at %" PRIu64 " of %zu", path,
                   i, places[i].key, places[i].bytes, places[i].at, p->bytes);
        p->entries[i] = (bt_packed_entry){places[i].key, places[i].bytes,
                                          (const uint8_t *)p->map + places[i].at};
    }
out:
    return st;
}

bt_status bt_packed_open(const char *path, uint64_t key, bt_packed **packed_out)
{
    bt_status  st = BT_OK;
    bt_packed *p  = NULL;
    int        fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);

    if (fd < 0 && errno == ENOENT) {
        *packed_out = NULL;
        goto out;
    }
    BT_REQUIRE(fd >= 0, BT_ERR_IO, "%s: %s", path, strerror(errno));
    p = bt_calloc(1, sizeof(*p));
    BT_REQUIRE(p != NULL, BT_ERR_NO_MEMORY, "%s", path);
    BT_TRY(map_file(path, fd, p));
    BT_TRY(check_head(path, key, p));
    BT_TRY(take_places(path, p));
    *packed_out = p;
    p           = NULL;
out:
    if (fd >= 0) close(fd);
    bt_packed_close(p);
    return st;
}

void bt_packed_close(bt_packed *p)
{
    if (p == NULL) return;
    if (p->map != NULL) munmap(p->map, p->bytes);
    bt_free(p->entries);
    bt_free(p);
}

static int by_key(const void *a, const void *b)
{
    uint64_t x = ((const bt_packed_entry *)a)->key, y = ((const bt_packed_entry *)b)->key;

    return (x > y) - (x < y);
}

const void *bt_packed_find(const bt_packed *p, const char *name, size_t bytes)
{
    bt_packed_entry        wanted = {.key = bt_packed_name_key(name)};
    const bt_packed_entry *found =
        p == NULL ? NULL : bsearch(&wanted, p->entries, p->n, sizeof(wanted), by_key);

    return found == NULL || found->bytes != bytes ? NULL : found->data;
}

uint32_t               bt_packed_count(const bt_packed *p) { return p == NULL ? 0 : p->n; }
const bt_packed_entry *bt_packed_at(const bt_packed *p, uint32_t i) { return &p->entries[i]; }

/* ---- writing */

/* *locked_out: else another process has the lock.  Where files have none, an empty one goes. */
static bt_status lock_part(const char *path, int fd, bool empty, bool *locked_out)
{
    bt_status st    = BT_OK;
    int       error = flock(fd, LOCK_EX | LOCK_NB) == 0 ? 0 : errno;

    if (error != 0 && error != EWOULDBLOCK && empty) (void)unlink(path);
    BT_REQUIRE(error == 0 || error == EWOULDBLOCK, BT_ERR_IO,
               "%s: flock: %s: expected a file system whose files can be locked", path,
               strerror(error));
    *locked_out = error == 0;
out:
    return st;
}

/* A file that this process alone writes, empty; -1 without an error: another one writes it. */
static bt_status open_part(const char *path, int *fd_out)
{
    bt_status   st = BT_OK;
    int         fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    struct stat file, there;
    bool        locked = false;

    BT_REQUIRE(fd >= 0 && fstat(fd, &file) == 0, BT_ERR_IO, "%s: %s", path, strerror(errno));
    BT_REQUIRE(S_ISREG(file.st_mode) && file.st_uid == geteuid(), BT_ERR_UNSUPPORTED,
               "%s is not a file of user %u", path, geteuid());
    BT_TRY(lock_part(path, fd, file.st_size == 0, &locked));
    /* Who had the lock before may have given the file its name: then it is no more to be written.
     */
    if (!locked || lstat(path, &there) != 0 || there.st_ino != file.st_ino ||
        there.st_dev != file.st_dev) {
        *fd_out = -1;
        goto out;
    }
    BT_REQUIRE(ftruncate(fd, 0) == 0 && fchmod(fd, 0600) == 0, BT_ERR_IO, "%s: %s", path,
               strerror(errno));
    *fd_out = fd;
    fd      = -1;
out:
    if (fd >= 0) close(fd);
    return st;
}

static bt_status put(const char *path, int fd, uint64_t at, const void *data, size_t bytes)
{
    bt_status st = BT_OK;

    for (size_t done = 0; done < bytes;) {
        ssize_t n = pwrite(fd, (const char *)data + done, bytes - done, (off_t)(at + done));

        if (n < 0 && errno == EINTR) continue;
        BT_REQUIRE(n > 0, BT_ERR_IO, "%s: %s", path, n == 0 ? "nothing written" : strerror(errno));
        done += (size_t)n;
    }
out:
    return st;
}

static bt_status put_all(const char *path, int fd, uint64_t key, uint32_t n,
                         const bt_packed_entry *entries, void (*progress)(void *ctx), void *ctx)
{
    head      h      = {.magic = MAGIC, .version = VERSION, .n_places = n, .key = key};
    place    *places = bt_calloc(n + 1ul, sizeof(*places));
    bt_status st     = BT_OK;
    int       rc;

    BT_REQUIRE(places != NULL, BT_ERR_NO_MEMORY, "%s: %u entries", path, n);
    h.bytes = data_at(n);
    for (uint32_t i = 0; i < n; i++) {
        places[i] = (place){entries[i].key, h.bytes, entries[i].bytes};
        h.bytes += ALIGN(entries[i].bytes);
    }
    rc = posix_fallocate(fd, 0, (off_t)h.bytes);
    BT_REQUIRE(rc == 0, BT_ERR_IO, "%s: %" PRIu64 " bytes: %s", path, h.bytes, strerror(rc));
    for (uint32_t i = 0; i < n; i++) {
        BT_TRY(put(path, fd, places[i].at, entries[i].data, entries[i].bytes));
        /* On its way to the disk, so that the end need not wait for all of it at once. */
        (void)sync_file_range(fd, (off_t)places[i].at, (off_t)places[i].bytes,
                              SYNC_FILE_RANGE_WRITE);
        if (progress != NULL) progress(ctx);
    }
    h.hash = hash_of(&h, places);
    BT_TRY(put(path, fd, sizeof(h), places, n * sizeof(*places)));
    BT_TRY(put(path, fd, 0, &h, sizeof(h)));
    BT_REQUIRE(fsync(fd) == 0, BT_ERR_IO, "%s: %s", path, strerror(errno));
out:
    bt_free(places);
    return st;
}

bt_status bt_packed_write(const char *path, uint64_t key, uint32_t n, bt_packed_entry *entries,
                          void (*progress)(void *ctx), void *ctx)
{
    bt_status st     = BT_OK;
    uint32_t  n_once = 0;
    int       fd     = -1;
    char      part[PATH_MAX];

    BT_REQUIRE(snprintf(part, sizeof(part), "%s.part", path) < (int)sizeof(part),
               BT_ERR_INVALID_ARG, "%s: the path is too long", path);
    qsort(entries, n, sizeof(*entries), by_key);
    for (uint32_t i = 0; i < n; i++)
        if (n_once == 0 || entries[i].key != entries[n_once - 1].key)
            entries[n_once++] = entries[i];
    BT_TRY(open_part(part, &fd));
    if (fd < 0) goto out;
    BT_TRY(put_all(part, fd, key, n_once, entries, progress, ctx));
    BT_REQUIRE(rename(part, path) == 0, BT_ERR_IO, "%s: %s", path, strerror(errno));
out:
    if (st != BT_OK && fd >= 0) (void)unlink(part);
    if (fd >= 0) close(fd);
    return st;
}

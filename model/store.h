/* model/store.h - packed weights that the ranks of one machine share, each packed by one of them.
 *
 * A store is a file without a name in memory, which every rank of the machine holds open: it is
 * gone with the last of their processes, however that ends.  It has a head, a table of slots and
 * room for data:
 *     head | slots[n_slots] | data        each begins at a page; data is sparse
 * A slot is found by a key for the entry's name, and keeps its place in the data for ever.  Its
 * state says whether it is empty, whole, or being filled or dropped, and by whom.  Who finds it
 * empty fills it; who finds it being filled goes on with other work first, and waits for it last.
 *
 * What an entry holds is a function of its name and of the store's key, the same bytes whoever
 * makes them.  So an entry whose filler has died, or stands still, is simply filled again by one
 * who waits for it, and a filler that wakes up late changes nothing.  One that drops an entry and
 * wakes up late takes its bytes away: until it has died, who waits for it has a copy of its own.
 *
 * Threads: the step thread of each process; the processes meet in atomic words.
 * Memory:  data is read through a read-only mapping; a writable one exists while a rank loads. */
#ifndef BT_MODEL_STORE_H
#define BT_MODEL_STORE_H

#include <stddef.h>
#include <stdint.h>

#include "core/status.h"
#include "model/packed.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct bt_store bt_store;

enum { BT_STORE_MEMBERS = 64 }; /* ranks of a machine that can share, at most */
/* Entries begin at multiples of the largest page that kernels for this processor have. */
#ifdef __aarch64__
enum { BT_STORE_PAGE_BYTES = 64 << 10 };
#else
enum { BT_STORE_PAGE_BYTES = 4 << 10 };
#endif

typedef struct {
    int      fd;     /* the file that all members have open; borrowed until close() */
    uint32_t member; /* this rank's number among those of the machine */
    uint32_t rank;   /* its number in the job, for messages */
    uint64_t key;    /* of model, arithmetic and packing */
    uint32_t n_slots;
    uint64_t bytes;      /* room for data; costs nothing until it is used */
    uint64_t timeout_ns; /* how long another that has an entry may show no sign of life */
} bt_store_options;

/* The first member writes the head.  UNSUPPORTED: more members than a store has, or the head is of
 * another version or key, found and expected named.  TIMEOUT names the rank that should have
 * written the head. */
bt_status bt_store_open(const bt_store_options *opt, bt_store **store_out);
void      bt_store_close(bt_store *store); /* this member uses no entry any more */

typedef struct {
    const void *data; /* read-only; valid until close() or drop() */
    void       *fill; /* the same bytes to write; NULL: the entry is whole */
    uint32_t    slot;
} bt_store_entry;

typedef enum {
    BT_STORE_WHOLE, /* data may be read */
    BT_STORE_MINE,  /* fill must be filled now, zero before, then commit() */
    BT_STORE_BUSY,  /* another member fills or drops it */
    BT_STORE_FULL   /* no room, no memory to map, or dropped without end: it has no place here */
} bt_store_claim;

/* Takes part in the entry `name` of so many bytes. */
bt_store_claim bt_store_take(bt_store *store, const char *name, size_t bytes,
                             bt_store_entry *entry_out);
/* The same for one that is BUSY: waits until it is whole, or MINE since whoever filled it is gone
 * or has stood still for timeout_ns (a warning names that rank); FULL if that one was to drop it.
 * Every beat() of the filler, and every other filler, starts that time anew.  idle is called while
 * it waits. */
bt_store_claim bt_store_await(bt_store *store, const char *name, size_t bytes,
                              void (*idle)(void *ctx), void *ctx, bt_store_entry *entry_out);
/* This member goes on filling what it has; from any thread. */
void bt_store_beat(bt_store *store);
void bt_store_commit(bt_store *store, const bt_store_entry *entry);
/* This member no longer reads the entry; without any reader its memory goes back. */
void bt_store_drop(bt_store *store, const char *name);
/* Called when this member has taken what it needs at a regroup: gives back what no living member
 * reads, such as a lost rank's entries.  Others may be about to adopt them in the same regroup: so
 * an entry without readers goes once every living member has found it so in a sweep, or this one
 * for the second time, since some take no part in a regroup.  One that goes too early, when ranks
 * are lost right after each other, is filled again. */
void bt_store_sweep(bt_store *store);
/* Loading is over: nothing can be written until the next take(). */
void bt_store_seal(bt_store *store);

/* Writes what is whole, and what `packed` (or NULL) has besides, to the file (packed.h), if all
 * members have sealed, none has begun to, and there is anything whole.  `progress`, or NULL, is
 * called now and then.  NO_MEMORY, and the errors of bt_packed_write(). */
bt_status bt_store_save(bt_store *store, const char *path, const bt_packed *packed,
                        void (*progress)(void *ctx), void *ctx);

/* Whether the entry is there, and whole. */
bool bt_store_holds(const bt_store *store, const char *name);

/* Bytes of whole entries in the store, all members'. */
uint64_t bt_store_bytes(const bt_store *store);

#ifdef __cplusplus
}
#endif
#endif

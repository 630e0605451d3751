#include "model/store.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/clock.h"

#define MAGIC    UINT64_C(0x65726f7473206e62) /* "bn store" */
#define POLL_NS  (200 * BT_NS_PER_US)
#define ALIGN(n) (((n) + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES)

enum { VERSION = 3, PAGE_BYTES = BT_STORE_PAGE_BYTES };
/* Of a slot; FILLS + m: member m fills it, DROPS + m: it gives its memory back. */
enum { EMPTY = 0, WHOLE = 1, FILLS = 2, DROPS = FILLS + BT_STORE_MEMBERS };

typedef struct {
    _Atomic uint64_t key; /* 0: no entry yet */
    _Atomic uint64_t at;  /* offset in data + 1; 0: not known yet */
    _Atomic uint64_t bytes;
    _Atomic uint64_t readers; /* a bit for each member */
    _Atomic uint64_t waived;  /* the same: who found it without readers in a sweep */
    _Atomic uint32_t state;
    uint32_t         pad;
} slot;

typedef struct {
    _Atomic uint32_t
             ready; /* 0: the head is not written; FILLS + m: member m writes it; 1: it is */
    uint32_t version, n_slots, pad;
    uint64_t magic, key, bytes;
    _Atomic uint64_t next;                      /* offset of free room in data */
    _Atomic uint64_t members[BT_STORE_MEMBERS]; /* pid and rank in the job */
    _Atomic uint64_t beats[BT_STORE_MEMBERS];   /* signs of life while it fills */
    _Atomic uint32_t n_loading;                 /* members that have not sealed yet */
    _Atomic uint32_t saved;                     /* a member has begun to save */
} head;

struct bt_store {
    bt_store_options opt;
    head            *head;
    slot            *slots;
    uint64_t         data_at; /* of data in the file */
    uint8_t         *data;    /* read-only */
    uint8_t         *fill;    /* writable, NULL while sealed */
    bool             loading;
};

_Static_assert(sizeof(head) <= PAGE_BYTES, "the head is one page");

/* ---- who is there */

static uint64_t member_word(uint32_t rank) { return (uint64_t)rank << 32 | (uint32_t)getpid(); }
static int      pid_of(const head *h, uint32_t member)
{
    return (int)(uint32_t)atomic_load(&h->members[member]);
}
static uint32_t rank_of(const head *h, uint32_t member)
{
    return (uint32_t)(atomic_load(&h->members[member]) >> 32);
}
static bool is_gone(const head *h, uint32_t member)
{
    return kill(pid_of(h, member), 0) != 0 && errno == ESRCH;
}

static uint64_t bit_of(const bt_store *s) { return UINT64_C(1) << s->opt.member; }

/* A bit for each member that has come and whose process has not ended. */
static uint64_t living_members(const head *h)
{
    uint64_t living = 0;

    for (uint32_t m = 0; m < BT_STORE_MEMBERS; m++)
        if (pid_of(h, m) != 0 && !is_gone(h, m)) living |= UINT64_C(1) << m;
    return living;
}

/* Of a slot's state: a member has the slot, and which one. */
static bool is_held(uint32_t state) { return state >= FILLS && state < DROPS + BT_STORE_MEMBERS; }
static uint32_t member_of(uint32_t state) { return (state - FILLS) % BT_STORE_MEMBERS; }

/* ---- open and close */

/* Maps [offset, offset + bytes) of the file; what can only be read stays in memory. */
static void *map(int fd, uint64_t offset, uint64_t bytes, int protection)
{
    uint8_t *room = mmap(NULL, bytes + BT_HUGE_BYTES, PROT_NONE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    uint8_t *at;

    if (room == MAP_FAILED) return NULL;
    /* Addresses and offsets agree modulo a huge page. */
    at = room +
         (BT_HUGE_BYTES + offset % BT_HUGE_BYTES - (uintptr_t)room % BT_HUGE_BYTES) % BT_HUGE_BYTES;
    if (at > room) munmap(room, (size_t)(at - room));
    munmap(at + bytes, (size_t)(room + BT_HUGE_BYTES - at));
    if (mmap(at, bytes, protection, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, fd, (off_t)offset) ==
        MAP_FAILED) {
        munmap(at, bytes);
        return NULL;
    }
    if (protection == PROT_READ)
        bt_hold_weights(at, bytes);
    else
        bt_advise_large(at, bytes);
    return at;
}

static uint64_t slot_bytes(uint32_t n_slots) { return ALIGN((uint64_t)n_slots * sizeof(slot)); }

static bt_status write_head(bt_store *s)
{
    bt_status               st  = BT_OK;
    const bt_store_options *opt = &s->opt;
    head                   *h   = s->head;

    BT_REQUIRE(ftruncate(opt->fd, (off_t)(s->data_at + opt->bytes)) == 0, BT_ERR_NO_MEMORY,
               "room for %" PRIu64 " bytes of shared weights: %s", opt->bytes, strerror(errno));
    h->version = VERSION;
    h->n_slots = opt->n_slots;
    h->magic   = MAGIC;
    h->key     = opt->key;
    h->bytes   = opt->bytes;
    atomic_store(&h->ready, 1);
out:
    if (st != BT_OK) atomic_store(&h->ready, 0);
    return st;
}

/* One member writes the head, the others wait for it; a dead one's work is done again. */
static bt_status agree(bt_store *s)
{
    bt_status st   = BT_OK;
    head     *h    = s->head;
    uint32_t  mine = FILLS + s->opt.member, seen = 0;
    uint64_t  start_ns = bt_now_ns();

    atomic_store(&h->members[s->opt.member], member_word(s->opt.rank));
    if (atomic_compare_exchange_strong(&h->ready, &seen, mine)) return write_head(s);
    while ((seen = atomic_load(&h->ready)) != 1) {
        BT_REQUIRE(seen >= FILLS && seen < FILLS + BT_STORE_MEMBERS, BT_ERR_FORMAT,
                   "the head of the shared weights is in state %u: not one of a store", seen);
        if (is_gone(h, seen - FILLS) && atomic_compare_exchange_strong(&h->ready, &seen, mine))
            return write_head(s);
        BT_REQUIRE(bt_now_ns() - start_ns < s->opt.timeout_ns, BT_ERR_TIMEOUT,
                   "rank %u has not prepared the memory for shared weights within %.1f s",
                   rank_of(h, seen - FILLS), (double)s->opt.timeout_ns / BT_NS_PER_S);
        bt_sleep_ns(POLL_NS);
    }
out:
    return st;
}

static bt_status check_head(const bt_store *s)
{
    const head *h  = s->head;
    bt_status   st = BT_OK;
    struct stat file;

    BT_REQUIRE(h->magic == MAGIC && h->version == VERSION, BT_ERR_UNSUPPORTED,
               "shared weights of version %u, magic %" PRIx64
               ": this program has version %d, magic "
               "%" PRIx64,
               h->version, h->magic, (int)VERSION, MAGIC);
    BT_REQUIRE(h->key == s->opt.key && h->n_slots == s->opt.n_slots && h->bytes == s->opt.bytes,
               BT_ERR_UNSUPPORTED,
               "shared weights of model %016" PRIx64 " (%u entries, %" PRIu64
               " bytes), this rank has model %016" PRIx64 " (%u entries, %" PRIu64 " bytes)",
               h->key, h->n_slots, h->bytes, s->opt.key, s->opt.n_slots, s->opt.bytes);
    BT_REQUIRE(fstat(s->opt.fd, &file) == 0 && (uint64_t)file.st_size >= s->data_at + h->bytes,
               BT_ERR_FORMAT, "shared weights end after %" PRIu64 " bytes instead of %" PRIu64,
               (uint64_t)file.st_size, s->data_at + h->bytes);
out:
    return st;
}

bt_status bt_store_open(const bt_store_options *opt, bt_store **store_out)
{
    bt_status st = BT_OK;
    bt_store *s  = NULL;

    BT_REQUIRE(opt->member < BT_STORE_MEMBERS, BT_ERR_UNSUPPORTED,
               "rank %u of this machine: %d can share weights", opt->member, BT_STORE_MEMBERS);
    BT_REQUIRE(opt->n_slots != 0, BT_ERR_INVALID_ARG, "shared weights without entries");
    s = bt_calloc(1, sizeof(*s));
    BT_REQUIRE(s != NULL, BT_ERR_NO_MEMORY, "shared weights");
    s->opt       = *opt;
    s->opt.bytes = ALIGN(opt->bytes);
    s->data_at   = PAGE_BYTES + slot_bytes(opt->n_slots);
    /* The file has at least the head's page only once it has grown; a member that finds it shorter
     * grows it to that, which takes nothing away. */
    if (lseek(opt->fd, 0, SEEK_END) < PAGE_BYTES)
        BT_REQUIRE(fallocate(opt->fd, 0, 0, PAGE_BYTES) == 0, BT_ERR_NO_MEMORY,
                   "the head of shared weights: %s", strerror(errno));
    s->head = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, opt->fd, 0);
    if (s->head == MAP_FAILED) s->head = NULL;
    BT_REQUIRE(s->head != NULL, BT_ERR_NO_MEMORY, "the head of shared weights: %s",
               strerror(errno));
    BT_TRY(agree(s));
    BT_TRY(check_head(s));
    s->slots = mmap(NULL, slot_bytes(opt->n_slots), PROT_READ | PROT_WRITE, MAP_SHARED, opt->fd,
                    PAGE_BYTES);
    if (s->slots == MAP_FAILED) s->slots = NULL;
    s->data = map(opt->fd, s->data_at, s->opt.bytes, PROT_READ);
    BT_REQUIRE(s->slots != NULL && s->data != NULL, BT_ERR_NO_MEMORY,
               "%" PRIu64 " bytes of shared weights cannot be mapped: %s", s->opt.bytes,
               strerror(errno));
    atomic_fetch_add(&s->head->n_loading, 1);
    s->loading = true;
    *store_out = s;
    s          = NULL;
out:
    bt_store_close(s);
    return st;
}

void bt_store_close(bt_store *s)
{
    uint64_t bit;

    if (s == NULL) return;
    bit = bit_of(s);
    for (uint32_t i = 0; s->slots != NULL && i < s->opt.n_slots; i++)
        if (atomic_load(&s->slots[i].readers) & bit) atomic_fetch_and(&s->slots[i].readers, ~bit);
    bt_store_seal(s);
    if (s->data != NULL) munmap(s->data, s->opt.bytes);
    if (s->slots != NULL) munmap(s->slots, slot_bytes(s->opt.n_slots));
    if (s->head != NULL) munmap(s->head, PAGE_BYTES);
    bt_free(s);
}

void bt_store_seal(bt_store *s)
{
    if (s->fill != NULL) munmap(s->fill, s->opt.bytes);
    s->fill = NULL;
    if (s->loading) atomic_fetch_sub(&s->head->n_loading, 1);
    s->loading = false;
}

uint64_t bt_store_bytes(const bt_store *s)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < s->opt.n_slots; i++)
        if (atomic_load(&s->slots[i].state) == WHOLE) bytes += s->slots[i].bytes;
    return bytes;
}

/* ---- entries */

/* The slot of a name, made when there is none; NULL: the table is full. */
static slot *find(const bt_store *s, const char *name)
{
    uint64_t key = bt_packed_name_key(name);
    uint32_t n   = s->opt.n_slots;

    for (uint32_t i = 0; i < n; i++) {
        slot    *at   = &s->slots[(key + i) % n];
        uint64_t seen = 0;

        if (atomic_compare_exchange_strong(&at->key, &seen, key) || seen == key) return at;
    }
    return NULL;
}

bool bt_store_holds(const bt_store *s, const char *name)
{
    uint64_t key = bt_packed_name_key(name), seen = 1;

    for (uint32_t i = 0; seen != 0 && i < s->opt.n_slots; i++) {
        const slot *at = &s->slots[(key + i) % s->opt.n_slots];

        seen = atomic_load(&at->key);
        if (seen == key) return atomic_load(&at->state) == WHOLE;
    }
    return false;
}

/* The entry's place in data, taken by whoever comes first; false: there is no room. */
static bool place(bt_store *s, slot *at, size_t bytes, uint64_t *offset_out)
{
    uint64_t seen = atomic_load(&at->at), room = ALIGN((uint64_t)bytes), known = 0;

    if (!atomic_compare_exchange_strong(&at->bytes, &known, bytes) && known != bytes) return false;
    if (seen == 0) {
        uint64_t next = atomic_load(&s->head->next);

        do {
            if (room > s->opt.bytes - next) return false;
        } while (!atomic_compare_exchange_weak(&s->head->next, &next, next + room));
        if (atomic_compare_exchange_strong(&at->at, &seen, next + 1)) seen = next + 1;
    }
    *offset_out = seen - 1;
    return seen - 1 <= s->opt.bytes && room <= s->opt.bytes - (seen - 1);
}

static bool writable(bt_store *s)
{
    if (s->fill == NULL) s->fill = map(s->opt.fd, s->data_at, s->opt.bytes, PROT_READ | PROT_WRITE);
    return s->fill != NULL;
}

/* This member has its own copy, or none. */
static bt_store_claim do_without(const bt_store *s, slot *at)
{
    atomic_fetch_and(&at->readers, ~bit_of(s));
    return BT_STORE_FULL;
}

/* What a state means to this member, and the entry's addresses. */
static bt_store_claim claim(bt_store *s, slot *at, uint64_t offset, uint32_t expect,
                            bt_store_entry *entry_out)
{
    uint32_t mine = FILLS + s->opt.member;
    bool     won;

    *entry_out = (bt_store_entry){.data = s->data + offset, .slot = (uint32_t)(at - s->slots)};
    won        = expect != WHOLE && atomic_compare_exchange_strong(&at->state, &expect, mine);
    if (!won) return expect == WHOLE ? BT_STORE_WHOLE : BT_STORE_BUSY;
    if (!writable(s)) {
        atomic_store(&at->state, EMPTY);
        return do_without(s, at);
    }
    bt_store_beat(s);
    entry_out->fill = s->fill + offset;
    bt_make_huge(entry_out->fill, at->bytes, s->opt.bytes - offset);
    return BT_STORE_MINE;
}

bt_store_claim bt_store_take(bt_store *s, const char *name, size_t bytes, bt_store_entry *entry_out)
{
    slot    *at     = find(s, name);
    uint64_t offset = 0;

    if (at == NULL || !place(s, at, bytes, &offset)) return BT_STORE_FULL;
    atomic_fetch_or(&at->readers, bit_of(s)); /* before the state is looked at: see give_back() */
    atomic_store(&at->waived, 0);
    return claim(s, at, offset, EMPTY, entry_out);
}

void bt_store_beat(bt_store *s)
{
    atomic_fetch_add_explicit(&s->head->beats[s->opt.member], 1, memory_order_relaxed);
}

/* What a waiter has seen last, and when first. */
typedef struct {
    uint32_t state;
    uint64_t beats, since_ns;
} sight;

/* The member that has the entry shows no sign of life. */
static bool stands_still(const bt_store *s, uint32_t state, sight *seen)
{
    uint64_t now = bt_now_ns(), beats = atomic_load(&s->head->beats[member_of(state)]);

    if (state != seen->state || beats != seen->beats) *seen = (sight){state, beats, now};
    return now - seen->since_ns >= s->opt.timeout_ns;
}

/* Who fills an entry late writes what is there already.  Who drops it late would take away what has
 * been filled since: only a dead one's place is taken. */
static bt_store_claim take_over(bt_store *s, const char *name, uint32_t state, bool gone,
                                bt_store_entry *entry_out)
{
    slot    *at     = &s->slots[entry_out->slot];
    uint32_t member = member_of(state);
    bool     drops = state >= DROPS, alone = drops && !gone;

    BT_WARN("rank %u, process %d, %s while it %s %s: packing it here%s", rank_of(s->head, member),
            pid_of(s->head, member), gone ? "has died" : "stands still",
            drops ? "gave back the memory of" : "packed", name,
            alone ? ", for this rank alone" : "");
    if (alone) return do_without(s, at);
    return claim(s, at, (uint64_t)((const uint8_t *)entry_out->data - s->data), state, entry_out);
}

bt_store_claim bt_store_await(bt_store *s, const char *name, size_t bytes, void (*idle)(void *ctx),
                              void *ctx, bt_store_entry *entry_out)
{
    sight          seen = {.state = EMPTY};
    bt_store_claim got;

    while ((got = bt_store_take(s, name, bytes, entry_out)) == BT_STORE_BUSY) {
        uint32_t state = atomic_load(&s->slots[entry_out->slot].state);
        bool     gone  = is_held(state) && is_gone(s->head, member_of(state));

        if (gone || (is_held(state) && stands_still(s, state, &seen)))
            got = take_over(s, name, state, gone, entry_out);
        if (got != BT_STORE_BUSY) return got;
        if (idle != NULL) idle(ctx);
        bt_sleep_ns(POLL_NS);
    }
    return got;
}

void bt_store_commit(bt_store *s, const bt_store_entry *entry)
{
    uint32_t mine = FILLS + s->opt.member;

    /* Else somebody has taken it over: with the same bytes. */
    atomic_compare_exchange_strong(&s->slots[entry->slot].state, &mine, WHOLE);
}

/* ---- giving memory back */

/* Of what is whole, or was left half done by a member that has died; not while anybody living reads
 * it, or waits for it.  Nobody begins to read between the look at the readers and the entry's end:
 * a reader sets its bit first, and then finds the entry being dropped, or is seen here. */
static void give_back(bt_store *s, slot *at)
{
    uint32_t was = atomic_load(&at->state);

    if (was != WHOLE && !(is_held(was) && is_gone(s->head, member_of(was)))) return;
    if (!atomic_compare_exchange_strong(&at->state, &was, DROPS + s->opt.member)) return;
    if ((atomic_load(&at->readers) & living_members(s->head)) != 0) {
        atomic_store(&at->state, was);
        return;
    }
    if (fallocate(s->opt.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                  (off_t)(s->data_at + at->at - 1), (off_t)ALIGN(at->bytes)) != 0)
        BT_WARN("%" PRIu64 " bytes of shared weights keep their memory: %s", at->bytes,
                strerror(errno));
    atomic_store(&at->state, EMPTY);
}

void bt_store_drop(bt_store *s, const char *name)
{
    slot *at = find(s, name);

    if (at == NULL) return;
    atomic_fetch_and(&at->readers, ~bit_of(s));
    give_back(s, at);
}

void bt_store_sweep(bt_store *s)
{
    uint64_t living = living_members(s->head), bit = bit_of(s);

    for (uint32_t i = 0; i < s->opt.n_slots; i++) {
        slot    *at = &s->slots[i];
        uint64_t waived;

        if (atomic_load(&at->state) == EMPTY || (atomic_load(&at->readers) & living) != 0) continue;
        waived = atomic_fetch_or(&at->waived, bit);
        if ((waived & bit) != 0 || (living & ~(waived | bit)) == 0) give_back(s, at);
    }
}

/* ---- saving */

/* What is whole, read by this member from now on; reads[i]: it read slot i before. */
static uint32_t list_whole(bt_store *s, bt_packed_entry *entries, bool *reads)
{
    uint64_t bit = bit_of(s);
    uint32_t n   = 0;

    for (uint32_t i = 0; i < s->opt.n_slots; i++) {
        slot *at = &s->slots[i];

        reads[i] = (atomic_fetch_or(&at->readers, bit) & bit) != 0;
        if (atomic_load(&at->state) == WHOLE)
            entries[n++] = (bt_packed_entry){at->key, at->bytes, s->data + at->at - 1};
    }
    return n;
}

bt_status bt_store_save(bt_store *s, const char *path, const bt_packed *packed,
                        void (*progress)(void *ctx), void *ctx)
{
    bt_status        st      = BT_OK;
    uint32_t         n_slots = s->opt.n_slots, not_yet = 0, n;
    bt_packed_entry *entries = NULL;
    bool            *reads   = NULL;

    if (atomic_load(&s->head->n_loading) != 0 || bt_store_bytes(s) == 0) goto out;
    if (!atomic_compare_exchange_strong(&s->head->saved, &not_yet, 1)) goto out;
    entries = bt_calloc((size_t)n_slots + bt_packed_count(packed), sizeof(*entries));
    reads   = bt_calloc(n_slots, sizeof(*reads));
    BT_REQUIRE(entries != NULL && reads != NULL, BT_ERR_NO_MEMORY, "a list of %u entries", n_slots);
    n = list_whole(s, entries, reads);
    for (uint32_t i = 0; i < bt_packed_count(packed); i++)
        entries[n++] = *bt_packed_at(packed, i);
    st = bt_packed_write(path, s->opt.key, n, entries, progress, ctx);
    for (uint32_t i = 0; i < n_slots; i++)
        if (!reads[i]) atomic_fetch_and(&s->slots[i].readers, ~bit_of(s));
out:
    bt_free(entries);
    bt_free(reads);
    return st;
}

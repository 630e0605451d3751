/* Weights that ranks share: who fills what, who waits for whom, and what is left when one dies. */
#include "model/store.h"

#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/clock.h"
#include "model/weights.h"
#include "tests/support/sweep.h"
#include "tests/support/test.h"

enum {
    PAGE  = BT_STORE_PAGE_BYTES,
    PAGES = 3 * PAGE,
    BYTES = PAGES - 2288,
    ROOM  = 256 * PAGE,
    HUGE  = 2 << 20,
    PART  = PAGE + 904, /* two pages, */
    END   = 2 * PAGE    /* these */
};

/* Called once, in place of a member that stands still just before it gives memory back. */
static void (*g_before_punch)(void);

int fallocate(int fd, int mode, off_t at, off_t bytes)
{
    void (*before)(void) = g_before_punch;

    if ((mode & FALLOC_FL_PUNCH_HOLE) != 0 && before != NULL) {
        g_before_punch = NULL;
        before();
    }
    return (int)syscall(SYS_fallocate, fd, mode, at, bytes);
}

static bt_store_options options(int fd, uint32_t member)
{
    return (bt_store_options){.fd         = fd,
                              .member     = member,
                              .rank       = member + 10,
                              .key        = 7,
                              .n_slots    = 32,
                              .bytes      = ROOM,
                              .timeout_ns = 100 * BT_NS_PER_MS};
}

static int new_file(void)
{
    int fd = memfd_create("test-store", MFD_CLOEXEC);

    NEED(fd >= 0);
    return fd;
}

static bt_store *open_store(int fd, uint32_t member)
{
    bt_store_options opt   = options(fd, member);
    bt_store        *store = NULL;

    NEED(bt_store_open(&opt, &store) == BT_OK);
    return store;
}

static long blocks(int fd)
{
    struct stat file;

    NEED(fstat(fd, &file) == 0);
    return (long)file.st_blocks * 512;
}

static void fill(bt_store *s, const bt_store_entry *e, int with)
{
    memset(e->fill, with, BYTES);
    bt_store_commit(s, e);
}

static void entry_is_filled_once_and_read_by_all(void)
{
    int            fd = new_file();
    bt_store      *a = open_store(fd, 0), *b = open_store(fd, 1);
    bt_store_entry x, y;

    EXPECT_EQ(bt_store_take(a, "x", BYTES, &x), BT_STORE_MINE);
    EXPECT_EQ(bt_store_take(b, "x", BYTES, &y), BT_STORE_BUSY);
    EXPECT_EQ(bt_store_take(b, "y", BYTES, &y), BT_STORE_MINE);
    EXPECT_EQ(bt_store_bytes(b), 0);
    EXPECT(!bt_store_holds(b, "x") && !bt_store_holds(b, "z"));
    fill(a, &x, 1);
    fill(b, &y, 2);
    EXPECT_EQ(bt_store_bytes(a), 2 * BYTES);
    EXPECT(bt_store_holds(b, "x") && bt_store_holds(a, "y") && !bt_store_holds(a, "z"));
    bt_store_seal(a);
    EXPECT_EQ(bt_store_await(b, "x", BYTES, NULL, NULL, &x), BT_STORE_WHOLE);
    EXPECT_EQ(bt_store_take(a, "y", BYTES, &y), BT_STORE_WHOLE);
    EXPECT(x.fill == NULL && y.fill == NULL);
    EXPECT_EQ(((const char *)x.data)[BYTES - 1], 1);
    EXPECT_EQ(((const char *)y.data)[0], 2);
    bt_store_close(a);
    bt_store_close(b);
    close(fd);
}

/* A write through the mapping that readers have ends the process. */
static void entry_cannot_be_written_by_readers(void)
{
    int            fd = new_file(), status = 0;
    bt_store      *a = open_store(fd, 0);
    bt_store_entry x;
    pid_t          child;

    EXPECT_EQ(bt_store_take(a, "x", BYTES, &x), BT_STORE_MINE);
    fill(a, &x, 1);
    child = fork();
    NEED(child >= 0);
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        *(volatile char *)(uintptr_t)x.data = 0;
        _exit(0);
    }
    NEED(waitpid(child, &status, 0) == child);
    EXPECT(!WIFEXITED(status) || WEXITSTATUS(status) != 0);
    EXPECT_EQ(((const char *)x.data)[0], 1);
    bt_store_close(a);
    close(fd);
}

/* A child takes the entry, writes half of it, and is killed. */
static void entry_of_a_dead_rank_is_filled_again(void)
{
    int              fd = new_file(), status = 0, pipes[2];
    bt_store_options opt = options(fd, 0);
    bt_store        *a   = NULL;
    bt_store_entry   x;
    uint64_t         start_ns;
    pid_t            child;
    char             byte;

    opt.timeout_ns = 60 * BT_NS_PER_S;
    NEED(bt_store_open(&opt, &a) == BT_OK && pipe(pipes) == 0);
    child = fork();
    NEED(child >= 0);
    if (child == 0) {
        bt_store *b = open_store(fd, 1);

        if (bt_store_take(b, "x", BYTES, &x) != BT_STORE_MINE) _exit(1);
        memset(x.fill, 5, BYTES / 2);
        if (write(pipes[1], "", 1) != 1) _exit(1);
        pause();
        _exit(1);
    }
    NEED(read(pipes[0], &byte, 1) == 1);
    EXPECT_EQ(bt_store_take(a, "x", BYTES, &x), BT_STORE_BUSY);
    kill(child, SIGKILL);
    NEED(waitpid(child, &status, 0) == child);
    start_ns = bt_now_ns();
    EXPECT_EQ(bt_store_await(a, "x", BYTES, NULL, NULL, &x), BT_STORE_MINE);
    EXPECT(bt_now_ns() - start_ns < 30 * BT_NS_PER_S); /* no deadline had to pass */
    fill(a, &x, 5);
    EXPECT_EQ(bt_store_take(a, "x", BYTES, &x), BT_STORE_WHOLE);
    /* It was the other reader, and counts no more. */
    EXPECT(blocks(fd) >= PAGES + PAGE);
    bt_store_drop(a, "x");
    EXPECT(blocks(fd) < PAGES + PAGE);
    close(pipes[0]);
    close(pipes[1]);
    bt_store_close(a);
    close(fd);
}

static void count_idle(void *ctx) { ++*(int *)ctx; }

static void entry_of_a_rank_that_stands_still_is_filled_again(void)
{
    int            fd = new_file(), n_idle = 0;
    bt_store      *a = open_store(fd, 0), *b = open_store(fd, 1);
    bt_store_entry x, late;
    uint64_t       start_ns = bt_now_ns();

    EXPECT_EQ(bt_store_take(a, "x", BYTES, &late), BT_STORE_MINE);
    EXPECT_EQ(bt_store_await(b, "x", BYTES, count_idle, &n_idle, &x), BT_STORE_MINE);
    EXPECT(bt_now_ns() - start_ns >= 100 * BT_NS_PER_MS && n_idle > 0);
    fill(a, &late, 3); /* wakes up: not its entry any more, and the same bytes */
    EXPECT_EQ(bt_store_take(a, "x", BYTES, &late), BT_STORE_BUSY);
    fill(b, &x, 3);
    EXPECT_EQ(bt_store_take(a, "x", BYTES, &late), BT_STORE_WHOLE);
    EXPECT_EQ(bt_store_bytes(a), BYTES);
    bt_store_close(a);
    bt_store_close(b);
    close(fd);
}

/* Members in a wait's idle(). */
typedef struct {
    bt_store      *filler;
    bt_store_entry entry;
    uint64_t       start_ns;
} partner;

static void go_on_for_long(void *ctx)
{
    partner *p = ctx;

    bt_store_beat(p->filler);
    if (bt_now_ns() - p->start_ns >= 300 * BT_NS_PER_MS) fill(p->filler, &p->entry, 6);
}

static void entry_is_waited_for_while_its_rank_goes_on(void)
{
    int            fd = new_file();
    bt_store      *a = open_store(fd, 0), *b = open_store(fd, 1);
    partner        p = {.filler = a, .start_ns = bt_now_ns()};
    bt_store_entry x;

    EXPECT_EQ(bt_store_take(a, "x", BYTES, &p.entry), BT_STORE_MINE);
    EXPECT_EQ(bt_store_await(b, "x", BYTES, go_on_for_long, &p, &x), BT_STORE_WHOLE);
    EXPECT(bt_now_ns() - p.start_ns >= 300 * BT_NS_PER_MS); /* three times the deadline */
    EXPECT_EQ(bt_store_bytes(b), BYTES);
    bt_store_close(a);
    bt_store_close(b);
    close(fd);
}

static void take_over_then_fill(void *ctx)
{
    partner *p = ctx;

    if (p->start_ns == 0) {
        p->start_ns = 1;
        EXPECT_EQ(bt_store_await(p->filler, "x", BYTES, NULL, NULL, &p->entry), BT_STORE_MINE);
    } else {
        fill(p->filler, &p->entry, 6);
    }
}

/* By the time that the first takes the entry over, the second has waited as long. */
static void entry_is_taken_over_by_one_of_those_who_wait(void)
{
    int            fd = new_file();
    bt_store      *a = open_store(fd, 0), *b = open_store(fd, 1), *c = open_store(fd, 2);
    partner        p = {.filler = c};
    bt_store_entry x;

    EXPECT_EQ(bt_store_take(a, "x", BYTES, &x), BT_STORE_MINE);
    EXPECT_EQ(bt_store_await(b, "x", BYTES, take_over_then_fill, &p, &x), BT_STORE_WHOLE);
    bt_store_close(a);
    bt_store_close(b);
    bt_store_close(c);
    close(fd);
}

static bt_store *g_other;

/* One that could not wait has the bytes elsewhere, and does not count as a reader. */
static void wait_in_vain(void)
{
    bt_store_entry x;

    EXPECT_EQ(bt_store_take(g_other, "x", BYTES, &x), BT_STORE_BUSY);
    EXPECT_EQ(bt_store_await(g_other, "x", BYTES, NULL, NULL, &x), BT_STORE_FULL);
    EXPECT(x.fill == NULL);
    EXPECT_EQ(bt_store_bytes(g_other), 0);
}

static void entry_is_not_taken_from_a_rank_that_drops_it_late(void)
{
    int            fd = new_file();
    bt_store      *a  = open_store(fd, 0);
    bt_store_entry x;

    g_other = open_store(fd, 1);
    EXPECT_EQ(bt_store_take(a, "x", BYTES, &x), BT_STORE_MINE);
    fill(a, &x, 4);
    g_before_punch = wait_in_vain;
    bt_store_drop(a, "x");
    EXPECT(g_before_punch == NULL);
    EXPECT(blocks(fd) < PAGES + PAGE);
    EXPECT_EQ(bt_store_take(a, "x", BYTES, &x), BT_STORE_MINE); /* all that it was is over */
    fill(a, &x, 4);
    EXPECT_EQ(((const char *)x.data)[BYTES - 1], 4);
    bt_store_drop(a, "x");
    EXPECT(blocks(fd) < PAGES + PAGE);
    bt_store_close(a);
    bt_store_close(g_other);
    close(fd);
}

static void die(void) { _exit(0); }

/* A member of its own process that packs x and is gone before it has given its memory back, or
 * (drops false) leaves it whole. */
static void lose_member(int fd, uint32_t member, const char *name, bool drops)
{
    int   status = 0;
    pid_t child  = fork();

    NEED(child >= 0);
    if (child == 0) {
        bt_store      *s = open_store(fd, member);
        bt_store_entry x;

        if (bt_store_take(s, name, BYTES, &x) != BT_STORE_MINE) _exit(1);
        fill(s, &x, 5);
        bt_store_seal(s);
        g_before_punch = die;
        if (drops) bt_store_drop(s, name);
        _exit(drops); /* it dies in drop() */
    }
    NEED(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void entry_of_a_rank_that_died_dropping_it_is_filled_again(void)
{
    int              fd    = new_file();
    bt_store_options opt   = options(fd, 0);
    bt_store        *a     = NULL;
    uint64_t         start = bt_now_ns();
    bt_store_entry   x;

    opt.timeout_ns = 60 * BT_NS_PER_S;
    NEED(bt_store_open(&opt, &a) == BT_OK);
    lose_member(fd, 1, "x", true);
    EXPECT_EQ(bt_store_bytes(a), 0);
    EXPECT_EQ(bt_store_take(a, "x", BYTES, &x), BT_STORE_BUSY);
    EXPECT_EQ(bt_store_await(a, "x", BYTES, NULL, NULL, &x), BT_STORE_MINE);
    EXPECT(bt_now_ns() - start < 30 * BT_NS_PER_S);
    fill(a, &x, 5);
    EXPECT_EQ(bt_store_bytes(a), BYTES);
    lose_member(fd, 1, "y", true);
    EXPECT(blocks(fd) >= 2 * PAGES);
    bt_store_sweep(a); /* what nobody waits for goes too, what is read stays */
    EXPECT(blocks(fd) < 2 * PAGES);
    EXPECT_EQ(bt_store_take(a, "x", BYTES, &x), BT_STORE_WHOLE);
    bt_store_close(a);
    close(fd);
}

/* One that is there still, but has closed the store, as where its model could not be loaded. */
static void closed_store_reads_no_more(void)
{
    int            fd = new_file();
    bt_store      *a = open_store(fd, 0), *b = open_store(fd, 1);
    bt_store_entry x;

    EXPECT_EQ(bt_store_take(a, "x", BYTES, &x), BT_STORE_MINE);
    fill(a, &x, 4);
    EXPECT_EQ(bt_store_take(b, "x", BYTES, &x), BT_STORE_WHOLE);
    bt_store_close(b);
    bt_store_drop(a, "x");
    EXPECT(blocks(fd) < PAGES + PAGE);
    bt_store_close(a);
    close(fd);
}

/* Who saves reads everything meanwhile, and what it read before also afterwards. */
static void saving_changes_nothing_for_readers(void)
{
    int            fd = new_file();
    bt_store      *a = open_store(fd, 0), *b = open_store(fd, 1);
    bt_store_entry x;
    char           path[] = "/tmp/baton-store-XXXXXX";
    int            file   = mkstemp(path);

    NEED(file >= 0);
    EXPECT_EQ(bt_store_take(a, "x", BYTES, &x), BT_STORE_MINE);
    fill(a, &x, 4);
    EXPECT_EQ(bt_store_take(b, "x", BYTES, &x), BT_STORE_WHOLE);
    EXPECT_EQ(bt_store_take(b, "y", BYTES, &x), BT_STORE_MINE);
    fill(b, &x, 5);
    bt_store_seal(a);
    EXPECT_EQ(bt_store_save(a, path, NULL, NULL, NULL), BT_OK);
    EXPECT_EQ(unlink(path), 0); /* b loads still: nothing is written, and the empty file stays */
    bt_store_seal(b);
    EXPECT_EQ(bt_store_save(a, path, NULL, NULL, NULL), BT_OK);
    EXPECT_EQ(unlink(path), 0);
    EXPECT(blocks(fd) >= 2 * PAGES);
    bt_store_drop(b, "x");
    EXPECT_EQ(bt_store_bytes(a), 2 * BYTES); /* a reads x */
    bt_store_drop(b, "y");
    EXPECT_EQ(bt_store_bytes(a), BYTES); /* and has never read y */
    bt_store_close(a);
    bt_store_close(b);
    close(file);
    close(fd);
}

/* Experts of a lost rank that go to another machine: nobody here is left to drop them. */
static void memory_of_a_lost_rank_goes_back_at_the_regroup(void)
{
    int                fd  = new_file();
    bt_store          *a   = open_store(fd, 0);
    bt_model_config    cfg = {.n_layers = 0};
    bt_weights_options opt = {.own_experts = NULL};
    bt_weights         w   = {.store = a};
    bt_store_entry     x;

    lose_member(fd, 1, "x", false);
    lose_member(fd, 2, "y", false);
    EXPECT_EQ(bt_store_take(a, "x", BYTES, &x), BT_STORE_WHOLE); /* this one comes here */
    EXPECT_EQ(bt_store_bytes(a), 2 * BYTES);
    EXPECT_EQ(bt_weights_move_experts(&cfg, NULL, &opt, &w), BT_OK);
    EXPECT_EQ(bt_store_bytes(a), BYTES);
    EXPECT(blocks(fd) < 2 * PAGES);
    EXPECT_EQ(((const char *)x.data)[BYTES - 1], 5);
    bt_store_close(a);
    close(fd);
}

/* The second member is slower, and adopts x after the first is done. */
static void lost_entries_are_kept_for_those_who_are_slow(void)
{
    int            fd = new_file();
    bt_store      *a = open_store(fd, 0), *b = open_store(fd, 1);
    bt_store_entry x;

    lose_member(fd, 2, "x", false);
    lose_member(fd, 3, "y", false);
    bt_store_sweep(a);
    EXPECT_EQ(bt_store_bytes(a), 2 * BYTES);
    EXPECT_EQ(bt_store_take(b, "x", BYTES, &x), BT_STORE_WHOLE);
    bt_store_sweep(b); /* the last one that might have come for y */
    EXPECT_EQ(bt_store_bytes(a), BYTES);
    bt_store_sweep(b);
    EXPECT_EQ(bt_store_take(b, "x", BYTES, &x), BT_STORE_WHOLE);
    lose_member(fd, 3, "y", false);
    bt_store_sweep(a);
    EXPECT_EQ(bt_store_bytes(a), 2 * BYTES);
    bt_store_sweep(a); /* a later regroup, in which b has no part */
    EXPECT_EQ(bt_store_bytes(a), BYTES);
    bt_store_close(a);
    bt_store_close(b);
    close(fd);
}

static void memory_goes_back_with_the_last_reader(void)
{
    int            fd = new_file();
    bt_store      *a = open_store(fd, 0), *b = open_store(fd, 1);
    bt_store_entry x;
    const void    *at;

    EXPECT_EQ(bt_store_take(a, "x", BYTES, &x), BT_STORE_MINE);
    at = x.data;
    fill(a, &x, 4);
    EXPECT_EQ(bt_store_take(b, "x", BYTES, &x), BT_STORE_WHOLE);
    bt_store_drop(a, "x");
    EXPECT_EQ(((const char *)x.data)[BYTES - 1], 4);
    EXPECT(blocks(fd) >= PAGES);
    bt_store_drop(b, "x");
    EXPECT(blocks(fd) < PAGES + PAGE); /* head and slots are two pages */
    EXPECT_EQ(bt_store_bytes(a), 0);
    EXPECT_EQ(bt_store_take(a, "x", BYTES, &x), BT_STORE_MINE); /* in its old place, zero again */
    EXPECT(x.data == at && ((char *)x.fill)[0] == 0 && ((char *)x.fill)[BYTES - 1] == 0);
    bt_store_close(a);
    bt_store_close(b);
    close(fd);
}

/* kB of this process that may not leave memory. */
static long locked(void)
{
    FILE *f = fopen("/proc/self/status", "r");
    char  line[128];
    long  kb = -1;

    NEED(f != NULL);
    while (fgets(line, sizeof(line), f) != NULL)
        (void)sscanf(line, "VmLck: %ld", &kb);
    fclose(f);
    NEED(kb >= 0);
    return kb;
}

static void weights_stay_in_memory_where_that_is_allowed(void)
{
    int       fd     = new_file();
    void     *room   = mmap(NULL, ROOM, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    bool      may    = mlock2(room, ROOM, MLOCK_ONFAULT) == 0;
    long      before = (munmap(room, ROOM), locked());
    bt_store *s      = open_store(fd, 0);

    EXPECT_EQ(locked() - before, may ? ROOM / 1024 : 0);
    bt_store_close(s);
    EXPECT_EQ(locked(), before);
    close(fd);
}

/* Of the mapping that has this address: KiB in huge pages. */
static unsigned long huge_kib(const void *at)
{
    FILE         *maps = fopen("/proc/self/smaps", "r");
    char          line[512];
    bool          here = false;
    unsigned long from, to, kib = 0;

    NEED(maps != NULL);
    while (fgets(line, sizeof(line), maps) != NULL) {
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
            here = (uintptr_t)at >= from && (uintptr_t)at < to;
        if (here && sscanf(line, "ShmemPmdMapped: %lu kB", &kib) == 1) break;
    }
    fclose(maps);
    return kib;
}

/* Asked for without Baton's own code. */
static bool has_huge_pages(void)
{
    int   fd   = new_file();
    char *room = mmap(NULL, 2 * HUGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *at;
    bool  has;

    NEED(room != MAP_FAILED && ftruncate(fd, HUGE) == 0);
    at = room + (HUGE - (uintptr_t)room % HUGE) % HUGE;
    NEED(mmap(at, HUGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == at);
    *at = 1;
    has = madvise(at, HUGE, 25 /* MADV_COLLAPSE */) == 0;
    munmap(room, 2 * HUGE);
    close(fd);
    return has;
}

static void weights_lie_in_huge_pages_where_the_system_has_them(void)
{
    int              fd  = new_file();
    bt_store_options opt = options(fd, 0);
    bt_store        *s;
    bt_store_entry   x, y;

    opt.bytes = 16 * HUGE;
    NEED(bt_store_open(&opt, &s) == BT_OK);
    EXPECT_EQ(bt_store_take(s, "x", 3 * HUGE + PART, &x), BT_STORE_MINE);
    EXPECT_EQ(bt_store_take(s, "y", 13 * HUGE - END, &y), BT_STORE_MINE); /* to the end */
    memset(x.fill, 1, 3 * HUGE + PART);
    memset(y.fill, 2, 13 * HUGE - END);
    bt_store_commit(s, &x);
    bt_store_commit(s, &y);
    bt_bring_weights(x.data, 3 * HUGE + PART);
    bt_bring_weights(y.data, 13 * HUGE - END);
    EXPECT_EQ(((const char *)x.data)[3 * HUGE + PART - 1], 1);
    EXPECT_EQ(((const char *)y.data)[0], 2);
    if (has_huge_pages())
        EXPECT(huge_kib(x.data) >= 14 * (HUGE >> 10)); /* all but those that it shares a part of */
    else
        printf("no huge pages for shared memory here: not looked at\n");
    bt_store_close(s);
    close(fd);
}

static void entries_beyond_the_room_have_no_place(void)
{
    int            fd = new_file();
    bt_store      *a  = open_store(fd, 0);
    bt_store_entry x;
    char           name[24];

    EXPECT_EQ(bt_store_take(a, "large", ROOM + 1, &x), BT_STORE_FULL);
    EXPECT_EQ(bt_store_take(a, "x", ROOM - PAGE, &x), BT_STORE_MINE);
    EXPECT_EQ(bt_store_take(a, "y", BYTES, &x), BT_STORE_FULL);
    EXPECT_EQ(bt_store_take(a, "x", BYTES, &x), BT_STORE_FULL); /* of another size */
    for (int i = 0; i < 64; i++) {
        snprintf(name, sizeof(name), "slot %d", i);
        EXPECT_EQ(bt_store_take(a, name, BYTES, &x), BT_STORE_FULL);
    }
    bt_store_close(a);
    close(fd);
}

static void expect_refused(const bt_store_options *opt, bt_status want, const char *part)
{
    bt_store *store = NULL;

    EXPECT_EQ(bt_store_open(opt, &store), want);
    EXPECT(store == NULL);
    EXPECT_HAS(bt_error_text(), part);
}

static void foreign_memory_is_refused(void)
{
    int              fd  = new_file();
    bt_store        *a   = open_store(fd, 0);
    bt_store_options opt = options(fd, 1);
    uint32_t         word;
    char             part[64];

    opt.key = 8;
    expect_refused(&opt, BT_ERR_UNSUPPORTED, "0000000000000007");
    EXPECT_HAS(bt_error_text(), "0000000000000008");
    opt = options(fd, 1);
    opt.n_slots++;
    expect_refused(&opt, BT_ERR_UNSUPPORTED, "entries");
    opt = options(fd, 1);
    opt.bytes -= PAGE;
    expect_refused(&opt, BT_ERR_UNSUPPORTED, "bytes), this rank has");
    opt = options(fd, BT_STORE_MEMBERS);
    expect_refused(&opt, BT_ERR_UNSUPPORTED, "64 can share");
    opt = options(fd, 1);
    NEED(ftruncate(fd, 3 * PAGE) == 0);
    snprintf(part, sizeof(part), "end after %d bytes", 3 * PAGE);
    expect_refused(&opt, BT_ERR_FORMAT, part);
    word = 99; /* version */
    NEED(pwrite(fd, &word, 4, 4) == 4);
    expect_refused(&opt, BT_ERR_UNSUPPORTED, "version 99");
    word = 12345; /* the head's state */
    NEED(pwrite(fd, &word, 4, 0) == 4);
    expect_refused(&opt, BT_ERR_FORMAT, "12345");
    bt_store_close(a);
    close(fd);
}

/* Another rank has begun to write the head and stands still. */
static void unfinished_head_names_its_rank(void)
{
    int              fd    = new_file();
    bt_store_options opt   = options(fd, 1);
    uint32_t         word  = 2 + 3; /* member 3 writes it */
    uint64_t         who   = UINT64_C(42) << 32 | (uint32_t)getpid();
    bt_store        *store = NULL;

    NEED(ftruncate(fd, PAGE) == 0 && pwrite(fd, &word, 4, 0) == 4);
    NEED(pwrite(fd, &who, 8, 48 + 3 * 8) == 8);
    expect_refused(&opt, BT_ERR_TIMEOUT, "rank 42");
    who = UINT64_C(42) << 32 | 0x7fffffff; /* no such process: it has died */
    NEED(pwrite(fd, &who, 8, 48 + 3 * 8) == 8);
    EXPECT_EQ(bt_store_open(&opt, &store), BT_OK);
    bt_store_close(store);
    close(fd);
}

/* One entry: a store that has been saved, or could not be, is not saved again. */
static bt_status save_anew(const char *path)
{
    bt_status        st    = BT_OK;
    int              fd    = new_file();
    bt_store_options opt   = options(fd, 0);
    bt_store        *store = NULL;
    bt_store_entry   x;

    BT_TRY(bt_store_open(&opt, &store));
    NEED(bt_store_take(store, "x", BYTES, &x) == BT_STORE_MINE);
    fill(store, &x, 4);
    bt_store_seal(store);
    BT_TRY(bt_store_save(store, path, NULL, NULL, NULL));
out:
    bt_store_close(store);
    close(fd);
    return st;
}

static void save_survives_every_failing_allocation(void)
{
    char path[] = "/tmp/baton-store-XXXXXX";
    int  file   = mkstemp(path);

    NEED(file >= 0);
    EXPECT(BT_SWEEP(save_anew(path), (void)0) > 3);
    EXPECT_EQ(unlink(path), 0);
    close(file);
}

static void open_survives_every_failing_allocation(void)
{
    int              fd    = new_file();
    bt_store_options opt   = options(fd, 0);
    bt_store        *store = NULL;

    EXPECT(BT_SWEEP(bt_store_open(&opt, &store), bt_store_close(store)) > 0);
    close(fd);
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {
        BT_TEST(entry_is_filled_once_and_read_by_all),
        BT_TEST(entry_cannot_be_written_by_readers),
        BT_TEST(entry_of_a_dead_rank_is_filled_again),
        BT_TEST(entry_of_a_rank_that_stands_still_is_filled_again),
        BT_TEST(entry_is_waited_for_while_its_rank_goes_on),
        BT_TEST(entry_is_taken_over_by_one_of_those_who_wait),
        BT_TEST(entry_is_not_taken_from_a_rank_that_drops_it_late),
        BT_TEST(entry_of_a_rank_that_died_dropping_it_is_filled_again),
        BT_TEST(memory_of_a_lost_rank_goes_back_at_the_regroup),
        BT_TEST(lost_entries_are_kept_for_those_who_are_slow),
        BT_TEST(memory_goes_back_with_the_last_reader),
        BT_TEST(weights_stay_in_memory_where_that_is_allowed),
        BT_TEST(weights_lie_in_huge_pages_where_the_system_has_them),
        BT_TEST(entries_beyond_the_room_have_no_place),
        BT_TEST(closed_store_reads_no_more),
        BT_TEST(saving_changes_nothing_for_readers),
        BT_TEST(foreign_memory_is_refused),
        BT_TEST(unfinished_head_names_its_rank),
        BT_TEST(open_survives_every_failing_allocation),
        BT_TEST(save_survives_every_failing_allocation),
    };

    return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
}

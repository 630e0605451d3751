/* Files of packed weights: what comes back, and what is refused. */
#include "model/packed.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <xxhash.h>

#include "core/alloc.h"
#include "tests/support/scratch.h"
#include "tests/support/sweep.h"
#include "tests/support/test.h"

enum { KEY = 77, BYTES = 5000, HEAD_BYTES = 40, PLACE_BYTES = 24, PAGE_BYTES = 4096 };

static int g_flock_errno; /* not 0: files here have no locks */

int flock(int fd, int operation)
{
    if (g_flock_errno == 0) return (int)syscall(SYS_flock, fd, operation);
    errno = g_flock_errno;
    return -1;
}

static char g_a[BYTES], g_b[2 * BYTES];

static bt_status write_two(const char *path)
{
    bt_packed_entry e[3] = {
        {bt_packed_name_key("b"), sizeof(g_b), g_b},
        {bt_packed_name_key("a"), sizeof(g_a), g_a},
        {bt_packed_name_key("b"), sizeof(g_b), g_b}, /* once more */
    };

    memset(g_a, 'a', sizeof(g_a));
    memset(g_b, 'b', sizeof(g_b));
    return bt_packed_write(path, KEY, 3, e, NULL, NULL);
}

static void expect_entry(const bt_packed *p, const char *name, const char *want, size_t bytes)
{
    const void *data = bt_packed_find(p, name, bytes);

    EXPECT(data != NULL && memcmp(data, want, bytes) == 0);
}

static void packed_weights_come_back(void)
{
    static const char old[16 * PAGE_BYTES]; /* what somebody who died left of a larger file */
    char              path[512];
    bt_packed        *p = NULL;
    struct stat       file;

    snprintf(path, sizeof(path), "%s", scratch_path("p"));
    EXPECT_EQ(bt_packed_open(path, KEY, &p), BT_OK);
    EXPECT(p == NULL);
    EXPECT_EQ(bt_packed_count(p), 0);
    EXPECT(bt_packed_find(p, "a", BYTES) == NULL);
    scratch_write("p.part", old, sizeof(old));
    EXPECT_EQ(write_two(path), BT_OK);
    EXPECT(stat(path, &file) == 0 && (file.st_mode & 0777) == 0600);
    EXPECT(access(scratch_path("p.part"), F_OK) != 0);
    EXPECT_EQ(bt_packed_open(path, KEY, &p), BT_OK);
    EXPECT_EQ(bt_packed_count(p), 2);
    EXPECT(bt_packed_find(p, "a", BYTES + 1) == NULL);
    EXPECT(bt_packed_find(p, "c", BYTES) == NULL);
    expect_entry(p, "a", g_a, sizeof(g_a));
    expect_entry(p, "b", g_b, sizeof(g_b));
    bt_packed_close(p);
    scratch_clear();
}

static void expect_refused(const char *path, uint64_t key, bt_status want, const char *text)
{
    bt_packed *p    = NULL;
    long       live = bt_alloc_live();

    EXPECT_EQ(bt_packed_open(path, key, &p), want);
    EXPECT(p == NULL);
    EXPECT_HAS(bt_error_text(), path);
    EXPECT_HAS(bt_error_text(), text);
    EXPECT_EQ(bt_alloc_live(), live);
}

static void packed_weights_of_others_are_refused(void)
{
    char path[512], link[512];

    snprintf(path, sizeof(path), "%s", scratch_path("p"));
    snprintf(link, sizeof(link), "%s", scratch_path("link"));
    EXPECT_EQ(write_two(path), BT_OK);
    expect_refused(path, KEY + 1, BT_ERR_UNSUPPORTED, "expected 000000000000004e");
    NEED(symlink(path, link) == 0);
    expect_refused(link, KEY, BT_ERR_IO, "");
    EXPECT(unlink(link) == 0 && mkfifo(link, 0600) == 0);
    expect_refused(link, KEY, BT_ERR_UNSUPPORTED, "no regular file");
    NEED(chmod(path, 0620) == 0);
    expect_refused(path, KEY, BT_ERR_UNSUPPORTED, "mode 0620");
    NEED(chmod(path, 0600) == 0);
    if (geteuid() == 0) {
        NEED(chown(path, 12345, 0) == 0);
        expect_refused(path, KEY, BT_ERR_UNSUPPORTED, "belongs to user 12345");
    }
    scratch_clear();
}

/* The file with n bytes at `at` replaced, its head hashed again. */
static void patch(const char *path, size_t at, const void *with, size_t n)
{
    size_t   bytes;
    char    *data = scratch_read(path, &bytes);
    uint64_t hash;
    uint32_t n_places = 2;
    int      fd       = open(path, O_WRONLY);

    memcpy(data + at, with, n);
    hash = XXH3_64bits_withSeed(data + HEAD_BYTES, (size_t)n_places * PLACE_BYTES,
                                XXH3_64bits(data, HEAD_BYTES - sizeof(hash)));
    memcpy(data + HEAD_BYTES - sizeof(hash), &hash, sizeof(hash));
    NEED(fd >= 0 && write(fd, data, bytes) == (ssize_t)bytes && close(fd) == 0);
    free(data);
}

static void packed_weights_that_are_not_whole_are_refused(void)
{
    static const size_t CUTS[] = {
        0,          HEAD_BYTES - 1,     HEAD_BYTES,
        PAGE_BYTES, 5 * PAGE_BYTES - 1, 6 * PAGE_BYTES - 1}; /* of the padding alone */
    char path[512];

    snprintf(path, sizeof(path), "%s", scratch_path("p"));
    for (size_t i = 0; i < sizeof(CUTS) / sizeof(CUTS[0]); i++) {
        EXPECT_EQ(write_two(path), BT_OK);
        NEED(truncate(path, (off_t)CUTS[i]) == 0);
        expect_refused(path, KEY, BT_ERR_FORMAT, "bytes");
    }
    for (size_t at = 0; at < HEAD_BYTES + 2 * PLACE_BYTES; at++) { /* any byte of head and places */
        bt_packed *p = NULL;
        size_t     bytes;
        char      *data, c;
        int        fd;

        EXPECT_EQ(write_two(path), BT_OK);
        data = scratch_read(path, &bytes);
        c    = (char)(data[at] ^ 0x40);
        free(data);
        fd = open(path, O_WRONLY);
        NEED(fd >= 0 && pwrite(fd, &c, 1, (off_t)at) == 1 && close(fd) == 0);
        EXPECT(bt_packed_open(path, KEY, &p) != BT_OK && p == NULL);
    }
    scratch_clear();
}

static void places_outside_the_file_are_refused(void)
{
    static const struct {
        size_t   at;
        uint64_t with;
    } BAD[] = {
        {HEAD_BYTES + 8,           PAGE_BYTES + 8       }, /* not at a page */
        {HEAD_BYTES + 8,           0                    }, /* in the head */
        {HEAD_BYTES + 8,           1ull << 40           },
        {HEAD_BYTES + 8,           UINT64_MAX & ~0xffful},
        {HEAD_BYTES + 16,          1ull << 40           },
        {HEAD_BYTES + 16,          UINT64_MAX           },
        {HEAD_BYTES + PLACE_BYTES, 0                    }, /* keys descend */
    };
    char path[512];

    snprintf(path, sizeof(path), "%s", scratch_path("p"));
    for (size_t i = 0; i < sizeof(BAD) / sizeof(BAD[0]); i++) {
        EXPECT_EQ(write_two(path), BT_OK);
        patch(path, BAD[i].at, &BAD[i].with, sizeof(BAD[i].with));
        expect_refused(path, KEY, BT_ERR_FORMAT, "entry");
    }
    scratch_clear();
}

/* While another process writes the same file this one goes on without; what a dead one has left
 * behind is written anew. */
static void one_process_writes(void)
{
    char       path[512], part[512];
    bt_packed *p = NULL;
    int        fd;

    snprintf(path, sizeof(path), "%s", scratch_path("p"));
    snprintf(part, sizeof(part), "%s", scratch_path("p.part"));
    fd = open(part, O_RDWR | O_CREAT, 0666);
    NEED(fd >= 0 && write(fd, g_b, sizeof(g_b)) > 0 && flock(fd, LOCK_EX) == 0);
    EXPECT_EQ(write_two(path), BT_OK);
    EXPECT(access(path, F_OK) != 0);
    close(fd);
    EXPECT_EQ(write_two(path), BT_OK);
    EXPECT_EQ(bt_packed_open(path, KEY, &p), BT_OK);
    expect_entry(p, "a", g_a, sizeof(g_a));
    bt_packed_close(p);
    scratch_clear();
}

static void a_file_that_cannot_be_written_leaves_nothing(void)
{
    char            part[512];
    bt_packed_entry huge = {1, 1ull << 60, g_a};

    EXPECT_EQ(write_two("/nonexistent/p"), BT_ERR_IO);
    snprintf(part, sizeof(part), "%s", scratch_path("p.part"));
    EXPECT_EQ(bt_packed_write(scratch_path("p"), KEY, 1, &huge, NULL, NULL), BT_ERR_IO);
    EXPECT(access(part, F_OK) != 0);
    NEED(symlink("elsewhere", part) == 0);
    EXPECT_EQ(write_two(scratch_path("p")), BT_ERR_IO);
    EXPECT(access(scratch_path("elsewhere"), F_OK) != 0);
    scratch_clear();
}

/* What somebody has written under the temporary name stays, an empty file does not. */
static void a_file_that_cannot_be_locked_is_told_of(void)
{
    char path[512], part[512];
    int  fd;

    snprintf(path, sizeof(path), "%s", scratch_path("p"));
    snprintf(part, sizeof(part), "%s", scratch_path("p.part"));
    g_flock_errno = ENOSYS;
    EXPECT_EQ(write_two(path), BT_ERR_IO);
    EXPECT_HAS(bt_error_text(), part);
    EXPECT_HAS(bt_error_text(), strerror(ENOSYS));
    EXPECT(access(path, F_OK) != 0 && access(part, F_OK) != 0);
    fd = open(part, O_WRONLY | O_CREAT, 0600);
    NEED(fd >= 0 && write(fd, "x", 1) == 1 && close(fd) == 0);
    g_flock_errno = EOPNOTSUPP;
    EXPECT_EQ(write_two(path), BT_ERR_IO);
    EXPECT(access(path, F_OK) != 0 && access(part, F_OK) == 0);
    g_flock_errno = 0;
    scratch_clear();
}

static void open_and_write_survive_every_failing_allocation(void)
{
    char       path[512];
    bt_packed *p = NULL;

    snprintf(path, sizeof(path), "%s", scratch_path("p"));
    EXPECT(BT_SWEEP(write_two(path), (void)0) > 0);
    EXPECT(BT_SWEEP(bt_packed_open(path, KEY, &p), bt_packed_close(p)) > 0);
    scratch_clear();
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {
        BT_TEST(packed_weights_come_back),
        BT_TEST(packed_weights_of_others_are_refused),
        BT_TEST(packed_weights_that_are_not_whole_are_refused),
        BT_TEST(places_outside_the_file_are_refused),
        BT_TEST(one_process_writes),
        BT_TEST(a_file_that_cannot_be_written_leaves_nothing),
        BT_TEST(a_file_that_cannot_be_locked_is_told_of),
        BT_TEST(open_and_write_survive_every_failing_allocation),
    };
    int rc;

    scratch_make();
    rc = BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
    scratch_remove();
    return rc;
}

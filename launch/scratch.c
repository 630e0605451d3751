#include "launch/scratch.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/file.h"
#include "core/limits.h"

enum { REMOVE_TRIES = 20, MAKE_TRIES = 20 };
/* What PMIx takes in the session's folder, seen; and the segment that each rank takes: by Open MPI
 * 4's default (btl_vader_segment_size), and as openmpi.c says it to 5. */
enum { SESSION_MIB = 16, SHM_MIB = 4 };

static const char NAME[] = "baton-job-", SHM[] = "/dev/shm";

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *where)
{
    (void)info, (void)kind, (void)where;
    remove(path); /* what stays is tried again by remove_tree() */
    return 0;
}

/* Ranks that are being killed may still create a file: try again until the directory is gone. */
static void remove_tree(const char *path)
{
    for (int i = 0; i < REMOVE_TRIES; i++) {
        nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
        if (access(path, F_OK) != 0 && errno == ENOENT) return;
        bt_sleep_ns(50 * BT_NS_PER_MS);
    }
}

/* ---- what nobody could remove */

int bt_scratch_hold(const char *path)
{
    int         fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct stat info;

    if (fd < 0) return -1;
    /* Where the file system has no locks nobody clears either. */
    if ((flock(fd, LOCK_SH | LOCK_NB) == 0 || errno != EWOULDBLOCK) && fstat(fd, &info) == 0 &&
        info.st_nlink > 0)
        return fd;
    close(fd);
    return -1;
}

static void clear_one(int base, const char *base_path, const char *name)
{
    int         fd = openat(base, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct stat info;
    char        path[PATH_MAX];

    if (fd < 0) return;
    if (fstat(fd, &info) == 0 && info.st_uid == geteuid() && flock(fd, LOCK_EX | LOCK_NB) == 0 &&
        snprintf(path, sizeof(path), "%s/%s", base_path, name) < (int)sizeof(path))
        nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    close(fd);
}

void bt_scratch_clear(const char *base)
{
    DIR           *d = opendir(base);
    struct dirent *e;

    while (d != NULL && (e = readdir(d)) != NULL)
        if (strncmp(e->d_name, NAME, sizeof(NAME) - 1) == 0) clear_one(dirfd(d), base, e->d_name);
    if (d != NULL) closedir(d);
}

/* ---- the guard */

bool bt_scratch_outlive(int alive_fd)
{
    int     null = open("/dev/null", O_RDWR | O_CLOEXEC);
    char    byte;
    bool    told = false;
    ssize_t got;

    setsid(); /* signals of a terminal, or of Open MPI, reach the parent's group, not us */
    prctl(PR_SET_NAME, "baton-guard");
    dup2(alive_fd, STDIN_FILENO);
    dup2(null, STDERR_FILENO);
    close_range(STDERR_FILENO + 1, ~0u, 0); /* the other end of our pipe, too */
    while ((got = read(STDIN_FILENO, &byte, 1)) > 0 || (got < 0 && errno == EINTR))
        told = told || got > 0;
    return told;
}

static BT_NORETURN void guard_run(const bt_scratch *scratch, int alive_fd)
{
    bt_scratch_outlive(alive_fd);
    close(STDOUT_FILENO); /* whose reader waits until every holder has closed it */
    remove_tree(scratch->shm);
    remove_tree(scratch->session);
    _exit(0);
}

/* Makes a directory in base and holds it; NAMEs that nobody holds any more are cleared first. */
static bt_status make_private(const char *base, char *path_out, size_t capacity, int *held_out)
{
    bt_status st = BT_OK;

    bt_scratch_clear(base);
    for (int i = 0; i < MAKE_TRIES; i++) {
        int n = snprintf(path_out, capacity, "%s/%sXXXXXX", base, NAME);

        BT_REQUIRE(n > 0 && (size_t)n < capacity, BT_ERR_IO,
                   "TMPDIR is too long for Open MPI's sockets: %s; set TMPDIR to a path of at most "
                   "40 bytes",
                   base);
        BT_REQUIRE(mkdtemp(path_out) != NULL, BT_ERR_IO, "cannot make a directory in %s: %s%s",
                   base, strerror(errno),
                   strcmp(base, SHM) == 0 ? "" : "; set TMPDIR to a folder that you may write");
        *held_out = bt_scratch_hold(path_out);
        if (*held_out >= 0) goto out; /* else somebody who clears was quicker */
        rmdir(path_out);
    }
    BT_REQUIRE(false, BT_ERR_IO, "the directory %s cannot be held: %s", path_out, strerror(errno));
out:
    return st;
}

bt_status bt_scratch_open(bt_scratch *scratch_out)
{
    bt_status  st      = BT_OK;
    bt_scratch scratch = BT_SCRATCH_NONE;
    int        pipe_fds[2];

    umask(umask(077) & 077); /* what the job makes is its own to use, whatever the shell says */
    BT_TRY(make_private(bt_temporary_folder(), scratch.session, sizeof(scratch.session),
                        &scratch.held_fds[0]));
    st = make_private(access(SHM, W_OK | X_OK) == 0 ? SHM : scratch.session, scratch.shm,
                      sizeof(scratch.shm), &scratch.held_fds[1]);
    if (st != BT_OK) {
        remove_tree(scratch.session);
        goto out;
    }
    if (pipe2(pipe_fds, O_CLOEXEC) != 0 || (scratch.guard = fork()) < 0) {
        int error = errno;

        remove_tree(scratch.shm);
        remove_tree(scratch.session);
        BT_REQUIRE(false, BT_ERR_IO, "cannot start the guard process: %s%s", strerror(error),
                   error == EAGAIN ? ": " BT_RAISE_THREADS : "");
    }
    if (scratch.guard == 0) guard_run(&scratch, pipe_fds[0]);
    close(pipe_fds[0]);
    scratch.alive_fd = pipe_fds[1];
    *scratch_out     = scratch;
out:
    return st;
}

static bt_status check_room(const char *path, uint64_t need_mib, const char *advice)
{
    bt_status      st = BT_OK;
    struct statvfs fs;
    uint64_t       left;

    BT_REQUIRE(statvfs(path, &fs) == 0, BT_ERR_IO, "%s: %s", path, strerror(errno));
    left = (uint64_t)fs.f_bavail * fs.f_frsize;
    BT_REQUIRE(fs.f_blocks == 0 /* a tmpfs without a limit */ || left >= need_mib << 20, BT_ERR_IO,
               "%.*s has %llu MiB left, expected at least %llu for Open MPI: free some, or %s",
               (int)(strrchr(path, '/') - path), path, (unsigned long long)left >> 20,
               (unsigned long long)need_mib, advice);
out:
    return st;
}

bt_status bt_scratch_check_room(const bt_scratch *scratch, uint32_t n_ranks)
{
    bool own = getenv("OMPI_MCA_btl") || getenv("OMPI_MCA_btl_vader_segment_size") ||
               getenv("OMPI_MCA_btl_sm_segment_size");
    bt_status st = BT_OK;

    BT_TRY(check_room(scratch->session, SESSION_MIB, "set TMPDIR to a folder with more"));
    if (own) goto out; /* other transports, or other sizes */
    BT_TRY(check_room(scratch->shm, SHM_MIB * (uint64_t)n_ranks,
                      "make it larger (docker run --shm-size), or set OMPI_MCA_btl=tcp,self"));
out:
    return st;
}

void bt_scratch_close(bt_scratch *scratch)
{
    if (scratch->alive_fd < 0) return;
    close(scratch->alive_fd);
    close(scratch->held_fds[0]);
    close(scratch->held_fds[1]);
    scratch->alive_fd = -1;
    while (waitpid(scratch->guard, NULL, 0) < 0 && errno == EINTR)
        continue;
}

#include "tools/out_dir.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/terminal.h"

#define SPARE_BYTES (64ull << 20) /* headers, index, and room for others on that disk */

bt_status bt_out_dir_open(const char *dir, bool *made_out)
{
    bt_status      st    = BT_OK;
    DIR           *d     = NULL;
    struct dirent *entry = NULL;

    *made_out = mkdir(dir, 0777) == 0;
    if (*made_out) goto out;
    BT_REQUIRE(errno == EEXIST, BT_ERR_IO, "%s: %s", dir, strerror(errno));
    d = opendir(dir);
    BT_REQUIRE(d != NULL, BT_ERR_IO, "%s: %s", dir, strerror(errno));
    while ((entry = readdir(d)) != NULL)
        BT_REQUIRE(
            strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0, BT_ERR_INVALID_ARG,
            "%s: expected an empty directory or none, found %s in it; nothing is overwritten", dir,
            entry->d_name);
out:
    if (d != NULL) closedir(d);
    return st;
}

bt_status bt_out_dir_check_room(const char *dir, uint64_t bytes, const char *advice)
{
    bt_status      st = BT_OK;
    struct statvfs fs;
    uint64_t       room;

    BT_REQUIRE(statvfs(dir, &fs) == 0, BT_ERR_IO, "%s: %s", dir, strerror(errno));
    room = (uint64_t)fs.f_bavail * fs.f_frsize;
    BT_REQUIRE(room >= bytes + SPARE_BYTES, BT_ERR_IO,
               "%s: the weights need %llu MiB, the file system has %llu MiB free%s", dir,
               (unsigned long long)((bytes + SPARE_BYTES - 1) >> 20) + 1,
               (unsigned long long)room >> 20, advice);
out:
    return st;
}

static atomic_int g_stop;

static void on_signal(int sig) { g_stop = sig; }

const atomic_int *bt_out_stop_flag(void)
{
    const struct sigaction action = {.sa_handler = on_signal};

    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    if (signal(SIGHUP, SIG_IGN) != SIG_IGN) sigaction(SIGHUP, &action, NULL);
    signal(SIGXFSZ, SIG_IGN);
    return &g_stop;
}

void bt_out_show_progress(bt_out_progress *p, uint64_t done, uint64_t total)
{
    uint64_t now     = bt_now_ns();
    int      columns = bt_terminal_columns(STDERR_FILENO);
    char     line[100];

    if (columns == 0 || (now - p->last_ns < 100 * BT_NS_PER_MS && done != total)) return;
    p->last_ns = now;
    p->shown   = true;
    snprintf(line, sizeof(line), "%.2f of %.2f GiB, %3.0f %%, %.0f MiB/s", (double)done / (1 << 30),
             (double)total / (1 << 30), 100.0 * (double)done / (double)total,
             (double)done / (1 << 20) / ((double)(now - p->start_ns + 1) * 1e-9));
    fprintf(stderr, BT_TERMINAL_CLEAR "%.*s", columns, line);
    if (done == total) fputc('\n', stderr);
}

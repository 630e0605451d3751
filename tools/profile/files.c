#include "tools/profile/files.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/file.h"
#include "tools/profile/report.h"

enum { PLOT_DEADLINE_S = 120, NO_MATPLOTLIB = 3, NOT_WRITTEN = 4 };

bt_status bt_files_prepare(const char *dir)
{
    bt_status st = BT_OK;
    char      path[PATH_MAX];

    BT_REQUIRE(mkdir(dir, 0777) == 0 || errno == EEXIST, BT_ERR_IO, "--out %s: %s", dir,
               strerror(errno));
    snprintf(path, sizeof(path), "%s/profile.json", dir);
    BT_TRY(bt_check_out("--out", path));
out:
    return st;
}

bt_status bt_files_write(const char *dir, const json_t *json, const bt_profile_model *model,
                         const bt_measurement *m)
{
    bt_status st = BT_OK;
    FILE     *f  = NULL;
    char      path[PATH_MAX];

    /* What cannot be written whole is removed. */
    snprintf(path, sizeof(path), "%s/profile.json", dir);
    BT_REQUIRE(json_dump_file(json, path, JSON_INDENT(1) | JSON_REAL_PRECISION(9)) == 0, BT_ERR_IO,
               "%s: %s", path, strerror(errno));
    if (m == NULL) goto out;
    snprintf(path, sizeof(path), "%s/profile.csv", dir);
    f = fopen(path, "w");
    BT_REQUIRE(f != NULL, BT_ERR_IO, "%s: %s", path, strerror(errno));
    bt_report_csv(model, m, f);
    BT_REQUIRE(fflush(f) == 0 && !ferror(f), BT_ERR_IO, "%s: %s", path, strerror(errno));
out:
    if (f != NULL) fclose(f);
    if (st != BT_OK) unlink(path);
    return st;
}

/* Where it lies both in a build and in an installed tree. */
static bool find_script(char path_out[PATH_MAX])
{
    return bt_path_beside("../share/baton/profile/plot.py", path_out) &&
           access(path_out, R_OK) == 0;
}

static bt_status wait_for(pid_t child, int *code_out)
{
    bt_status st       = BT_OK;
    uint64_t  deadline = bt_now_ns() + PLOT_DEADLINE_S * BT_NS_PER_S;
    int       status   = 0;
    pid_t     got;

    while ((got = waitpid(child, &status, WNOHANG)) == 0 && bt_now_ns() < deadline)
        bt_sleep_ns(20 * BT_NS_PER_MS);
    if (got == 0) {
        kill(child, SIGKILL);
        waitpid(child, &status, 0);
    }
    BT_REQUIRE(got != 0, BT_ERR_TIMEOUT, "plot.py has not ended after %d s", (int)PLOT_DEADLINE_S);
    *code_out = WIFEXITED(status) ? WEXITSTATUS(status) : 128;
out:
    return st;
}

bt_status bt_files_plot(const char *dir)
{
    bt_status st   = BT_OK;
    int       code = 0, failed;
    pid_t     child;
    char      script[PATH_MAX], json[PATH_MAX];
    char     *argv[] = {(char *)(uintptr_t)bt_python(), script, json, (char *)(uintptr_t)dir, NULL};

    if (!find_script(script)) {
        fprintf(stderr,
                "no plots: share/baton/profile/plot.py is not beside this program's bin/\n");
        return st;
    }
    snprintf(json, sizeof(json), "%s/profile.json", dir);
    failed = posix_spawnp(&child, argv[0], NULL, NULL, argv, environ);
    if (failed != 0) {
        fprintf(stderr, "no plots: %s: %s; on Debian: apt install python3-matplotlib\n", argv[0],
                strerror(failed));
        return st;
    }
    BT_TRY(wait_for(child, &code));
    if (code == NO_MATPLOTLIB) return st;      /* plot.py has said what to install */
    if (code == NOT_WRITTEN) return BT_ERR_IO; /* and which file, and why */
    BT_REQUIRE(code == 0, BT_ERR_IO, "plot.py ended with code %d: its message stands above", code);
out:
    return st;
}

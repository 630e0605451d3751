#include "cli/bench_plot.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/file.h"

#define SCRIPT "../share/baton/bench/plot.py"

static bt_status find_script(char path[PATH_MAX])
{
    bt_status st = BT_OK;

    BT_REQUIRE(bt_path_beside(SCRIPT, path), BT_ERR_IO, "this program's folder is not known");
    BT_REQUIRE(access(path, R_OK) == 0, BT_ERR_UNSUPPORTED, "%s: %s; --plot needs that script",
               path, strerror(errno));
out:
    return st;
}

/* The script says what is wrong on stderr. */
static bt_status run_script(const char *first, const char *second)
{
    bt_status   st     = BT_OK;
    const char *python = bt_python();
    char        path[PATH_MAX];
    int         status = 0;
    pid_t       pid;

    BT_TRY(find_script(path));
    pid = fork();
    BT_REQUIRE(pid >= 0, BT_ERR_IO, "fork: %s", strerror(errno));
    if (pid == 0) {
        execlp(python, python, path, first, second, (char *)NULL);
        _exit(127);
    }
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        continue;
    BT_REQUIRE(!WIFEXITED(status) || WEXITSTATUS(status) != 127, BT_ERR_UNSUPPORTED,
               "--plot needs Python: \"%s\" is not there (set BATON_PYTHON, or install python3 and "
               "python3-matplotlib)",
               python);
    BT_REQUIRE(WIFEXITED(status) && WEXITSTATUS(status) == 0, BT_ERR_UNSUPPORTED,
               "--plot: %s cannot, for the reason above", path);
out:
    return st;
}

bt_status bt_bench_plot_check(const char *file) { return run_script("--check", file); }
bt_status bt_bench_plot(const char *json, const char *file) { return run_script(json, file); }

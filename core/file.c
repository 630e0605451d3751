#include "core/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/alloc.h"

const char *bt_file_kind(mode_t mode)
{
    switch (mode & S_IFMT) {
    case S_IFREG: return "a regular file";
    case S_IFDIR: return "a directory";
    case S_IFIFO: return "a pipe";
    case S_IFSOCK: return "a socket";
    default: return "a device";
    }
}

const char *bt_temporary_folder(void)
{
    const char *path = getenv("TMPDIR");

    return path != NULL && path[0] == '/' ? path : "/tmp";
}

FILE *bt_open_regular(const char *path, const char **why_out)
{
    static _Thread_local char why[64];
    int                       fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    struct stat               info;
    FILE                     *f = NULL;

    *why_out = why;
    if (fd < 0 || fstat(fd, &info) != 0 || (S_ISREG(info.st_mode) && (f = fdopen(fd, "r")) == NULL))
        *why_out = strerror(errno);
    else
        snprintf(why, sizeof(why), "expected a regular file, found %s", bt_file_kind(info.st_mode));
    if (f == NULL && fd >= 0) close(fd);
    return f;
}

bt_status bt_read_regular(const char *path, size_t max_bytes, char **text_out, size_t *n_out)
{
    bt_status   st   = BT_OK;
    char       *text = NULL;
    const char *why  = NULL;
    FILE       *f    = bt_open_regular(path, &why);
    struct stat info;
    size_t      n;

    BT_REQUIRE(f != NULL, BT_ERR_IO, "%s: %s", path, why);
    BT_REQUIRE(fstat(fileno(f), &info) == 0, BT_ERR_IO, "%s: %s", path, strerror(errno));
    BT_REQUIRE((uintmax_t)info.st_size <= max_bytes, BT_ERR_FORMAT,
               "%s: expected at most %zu bytes, found %jd", path, max_bytes,
               (intmax_t)info.st_size);
    text = bt_calloc((size_t)info.st_size + 1, 1);
    BT_REQUIRE(text != NULL, BT_ERR_NO_MEMORY, "%s: reading %jd bytes", path,
               (intmax_t)info.st_size);
    n = fread(text, 1, (size_t)info.st_size, f);
    BT_REQUIRE(ferror(f) == 0, BT_ERR_IO, "%s: %s", path, strerror(errno));
    *text_out = text;
    *n_out    = n;
    text      = NULL; /* handed over */
out:
    bt_free(text);
    if (f != NULL) fclose(f);
    return st;
}

bt_status bt_map_regular(const char *path, uint8_t **map_out, struct stat *info_out)
{
    bt_status   st  = BT_OK;
    void       *map = NULL;
    int         fd  = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a fifo must not block */
    struct stat info;

    BT_REQUIRE(fd >= 0 && fstat(fd, &info) == 0, BT_ERR_IO, "%s: %s", path, strerror(errno));
    BT_REQUIRE(S_ISREG(info.st_mode), BT_ERR_IO, "%s: expected a regular file, found %s", path,
               bt_file_kind(info.st_mode));
    if (info.st_size > 0) map = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    BT_REQUIRE(map != MAP_FAILED, BT_ERR_IO, "%s: mapping %jd bytes: %s", path,
               (intmax_t)info.st_size, strerror(errno));
    *map_out  = map;
    *info_out = info;
out:
    if (fd >= 0) close(fd); /* the mapping stays */
    return st;
}

int bt_open_never_blocking(int fd)
{
    struct stat info;
    char        path[32];

    if (fstat(fd, &info) != 0 || (!S_ISFIFO(info.st_mode) && !isatty(fd))) return -1;
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    return open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
}

bool bt_file_exists(const char *path)
{
    struct stat entry;

    return lstat(path, &entry) == 0 || errno != ENOENT;
}

void bt_file_of(const char *dir, const char *const *names, char path_out[PATH_MAX])
{
    for (int i = 0; names[i] != NULL; i++) {
        snprintf(path_out, PATH_MAX, "%s/%s", dir, names[i]);
        if (bt_file_exists(path_out)) return;
    }
    snprintf(path_out, PATH_MAX, "%s/%s", dir, names[0]);
}

void bt_model_config_file(const char *dir, char path_out[PATH_MAX])
{
    bt_file_of(dir, (const char *const[]){"config.json", "params.json", NULL}, path_out);
}

bt_status bt_check_out(const char *option, const char *path)
{
    bt_status   st    = BT_OK;
    const char *slash = strrchr(path, '/');
    char        dir[PATH_MAX];
    struct stat info;

    BT_REQUIRE(snprintf(dir, sizeof(dir), "%.*s", slash == NULL ? 1 : (int)(slash - path + 1),
                        slash == NULL ? "." : path) < (int)sizeof(dir),
               BT_ERR_IO, "%s: a path of %zu bytes, expected less than %d", option, strlen(path),
               PATH_MAX);
    if (stat(path, &info) == 0) {
        BT_REQUIRE(!S_ISDIR(info.st_mode), BT_ERR_IO, "%s %s: expected a file, found a directory",
                   option, path);
        if (lstat(path, &info) != 0 || !S_ISREG(info.st_mode)) { /* written in place */
            BT_REQUIRE(access(path, W_OK) == 0, BT_ERR_IO, "%s %s: %s", option, path,
                       strerror(errno));
            goto out;
        }
    }
    BT_REQUIRE(access(dir, W_OK | X_OK) == 0, BT_ERR_IO, "%s %s: directory %s: %s", option, path,
               dir, strerror(errno));
    BT_REQUIRE(path[0] != '\0' && (slash == NULL || slash[1] != '\0'), BT_ERR_IO,
               "%s \"%s\": expected the name of a file", option, path);
out:
    return st;
}

bt_status bt_check_folder(const char *option, const char *path)
{
    bt_status   st = BT_OK;
    struct stat info;

    BT_REQUIRE(stat(path, &info) == 0, BT_ERR_IO, "%s %s: %s", option, path, strerror(errno));
    BT_REQUIRE(S_ISDIR(info.st_mode), BT_ERR_IO, "%s %s: expected a directory", option, path);
out:
    return st;
}

bool bt_own_path(char path_out[PATH_MAX])
{
    ssize_t n = readlink("/proc/self/exe", path_out, PATH_MAX - 1);

    if (n <= 0) return false;
    path_out[n] = '\0';
    return true;
}

bool bt_path_beside(const char *name, char path_out[PATH_MAX])
{
    char  self[PATH_MAX];
    char *slash;

    if (!bt_own_path(self) || (slash = strrchr(self, '/')) == NULL) return false;
    return snprintf(path_out, PATH_MAX, "%.*s/%s", (int)(slash - self), self, name) < PATH_MAX;
}

const char *bt_python(void)
{
    static const char SYSTEM[] = "/usr/bin/python3";
    const char       *named    = getenv("BATON_PYTHON");

    if (named != NULL) return named;
    return access(SYSTEM, X_OK) == 0 ? SYSTEM : "python3";
}

bool bt_has_children(void)
{
    pid_t got;

    while ((got = waitpid(-1, NULL, WNOHANG)) > 0)
        continue; /* nobody else will */
    return got == 0;
}

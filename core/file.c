#include "core/file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

FILE *bt_open_regular(const char *path, const char **why_out)
{
    int         fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    struct stat info;
    FILE       *f = NULL;

    *why_out = "expected a regular file";
    if (fd < 0 || fstat(fd, &info) != 0 || (S_ISREG(info.st_mode) && (f = fdopen(fd, "r")) == NULL))
        *why_out = strerror(errno);
    if (f == NULL && fd >= 0) close(fd);
    return f;
}

#include "core/module.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { PATH_BYTES = 4096 };

/* The program's folder, without a slash at its end; false when the system does not tell. */
static bool own_folder(char folder[PATH_BYTES])
{
    ssize_t n = readlink("/proc/self/exe", folder, PATH_BYTES - 1);
    char   *slash;

    if (n <= 0) return false;
    folder[n] = 0;
    slash     = strrchr(folder, '/');
    if (slash == NULL) return false;
    *slash = 0;
    return true;
}

/* The first of these that is there; else its name, for the loader to find. */
static void find_library(const char *file, char path[PATH_BYTES])
{
    static const char *const PLACES[] = {"", "/../lib/baton"};
    char                     folder[PATH_BYTES];

    for (int i = 0; i < 2 && own_folder(folder); i++) {
        int n = snprintf(path, PATH_BYTES, "%s%s/%s", folder, PLACES[i], file);

        if (n > 0 && n < PATH_BYTES && access(path, R_OK) == 0) return;
    }
    snprintf(path, PATH_BYTES, "%s", file);
}

const void *bt_module_open(const char *library, const char *file, const char *symbol,
                           uint32_t version, char *text, size_t text_bytes)
{
    char        path[PATH_BYTES];
    void       *handle;
    const void *table;
    uint32_t    found = 0;

    if (library == NULL) {
        find_library(file, path);
        library = path;
    }
    handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL) {
        snprintf(text, text_bytes, "%s", dlerror());
        return NULL;
    }
    table = dlsym(handle, symbol);
    if (table != NULL) memcpy(&found, table, sizeof(found));
    if (found != version) {
        snprintf(text, text_bytes, "%s is of version %u: expected %u", library, found, version);
        return NULL;
    }
    return table;
}

const void *bt_module_symbol(const void *part, const char *symbol)
{
    Dl_info     info;
    void       *handle;
    const void *found;

    if (dladdr(part, &info) == 0) return NULL;
    handle = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    if (handle == NULL) return dlsym(RTLD_DEFAULT, symbol); /* the program itself */
    found = dlsym(handle, symbol);
    dlclose(handle);
    return found;
}

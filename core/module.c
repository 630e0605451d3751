#include "core/module.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/file.h"

/* The first of these that is there; else its name, for the loader to find. */
static void find_library(const char *file, char path[PATH_MAX])
{
    static const char *const PLACES[] = {"", "../lib/baton/"};
    char                     name[NAME_MAX];

    for (int i = 0; i < 2; i++) {
        snprintf(name, sizeof(name), "%s%s", PLACES[i], file);
        if (bt_path_beside(name, path) && access(path, R_OK) == 0) return;
    }
    snprintf(path, PATH_MAX, "%s", file);
}

const void *bt_module_open(const char *library, const char *file, const char *symbol,
                           uint32_t version, char *text, size_t text_bytes)
{
    char        path[PATH_MAX];
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

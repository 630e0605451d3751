/* device/open_cuda.c - finds libbaton_cuda.so and asks it for a device.  No CUDA in here. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "device/cuda/module.h"

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
static void find_library(char path[PATH_BYTES])
{
    static const char *const PLACES[] = {"", "/../lib/baton"};
    char                     folder[PATH_BYTES];

    for (int i = 0; i < 2 && own_folder(folder); i++) {
        int n = snprintf(path, PATH_BYTES, "%s%s/libbaton_cuda.so", folder, PLACES[i]);

        if (n > 0 && n < PATH_BYTES && access(path, R_OK) == 0) return;
    }
    snprintf(path, PATH_BYTES, "libbaton_cuda.so");
}

/* The library stays open: its device's code is in it. */
static const bt_cuda_module_table *open_module(const char *library, char *text, size_t text_bytes)
{
    char                        path[PATH_BYTES];
    void                       *handle;
    const bt_cuda_module_table *table;

    if (library == NULL) {
        find_library(path);
        library = path;
    }
    handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL) {
        snprintf(text, text_bytes, "the CUDA back end cannot be opened: %s", dlerror());
        return NULL;
    }
    table = dlsym(handle, BT_CUDA_MODULE_SYMBOL);
    if (table == NULL || table->version != BT_CUDA_MODULE_VERSION) {
        snprintf(text, text_bytes, "%s is of version %u: expected %u", library,
                 table == NULL ? 0 : table->version, (unsigned)BT_CUDA_MODULE_VERSION);
        return NULL;
    }
    return table;
}

bool bt_device_cuda_usable(const char *library, uint32_t device, char *text, size_t text_bytes)
{
    const bt_cuda_module_table *table = open_module(library, text, text_bytes);

    return table != NULL && table->usable(device, text, text_bytes);
}

bt_status bt_device_cuda_create(const char *library, uint32_t device, bt_device **dev_out)
{
    bt_status                   st = BT_OK;
    char                        text[512];
    const bt_cuda_module_table *table = open_module(library, text, sizeof(text));

    BT_REQUIRE(table != NULL, BT_ERR_UNSUPPORTED, "%s", text);
    BT_TRY(table->create(device, dev_out));
out:
    return st;
}

/* device/open_cuda.c - finds libbaton_cuda.so and asks it for a device.  No CUDA in here. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "core/module.h"
#include "device/cuda/module.h"

/* Kernels are loaded when the context is made, not by the first step that needs them; and there are
 * as many queues as streams, NCCL's too. */
static const struct {
    const char *name, *value, *why;
} PREFERRED[] = {
    {"CUDA_MODULE_LOADING",         "EAGER",
     "since a kernel's first launch may stand in a capture, or wait for a peer"},
    {"CUDA_DEVICE_MAX_CONNECTIONS", "32",
     "since what waits for a peer holds back what shares its queue"            },
};
enum { N_PREFERRED = sizeof(PREFERRED) / sizeof(PREFERRED[0]) };

void bt_device_cuda_environment(void)
{
    for (size_t i = 0; i < N_PREFERRED; i++)
        (void)setenv(PREFERRED[i].name, PREFERRED[i].value, 0);
}

/* What was there already is the user's wish, or only that of a container's image. */
static void check_environment(void)
{
    for (size_t i = 0; i < N_PREFERRED; i++) {
        const char *has = getenv(PREFERRED[i].name);

        if (has != NULL && strcmp(has, PREFERRED[i].value) != 0)
            BT_WARN("the environment has %s=%s: expected %s, %s", PREFERRED[i].name, has,
                    PREFERRED[i].value, PREFERRED[i].why);
    }
}

static const bt_cuda_module_table *open_module(const char *library, char *text, size_t text_bytes)
{
    char        why[512];
    const void *table = bt_module_open(library, "libbaton_cuda.so", BT_CUDA_MODULE_SYMBOL,
                                       BT_CUDA_MODULE_VERSION, why, sizeof(why));

    if (table == NULL) snprintf(text, text_bytes, "the CUDA back end cannot be opened: %s", why);
    return table;
}

bool bt_device_cuda_usable(const char *library, uint32_t device, char *text, size_t text_bytes)
{
    const bt_cuda_module_table *table = open_module(library, text, text_bytes);

    return table != NULL && table->usable(device, text, text_bytes);
}

uint32_t bt_device_cuda_count(const char *library, char *text, size_t text_bytes)
{
    const bt_cuda_module_table *table = open_module(library, text, text_bytes);

    return table != NULL ? table->count(text, text_bytes) : 0;
}

bool bt_device_cuda_deal(const char *library, uint32_t turn, uint32_t *device_out, char *text,
                         size_t text_bytes)
{
    uint32_t n = bt_device_cuda_count(library, text, text_bytes), n_usable = 0;

    for (uint32_t i = 0; i < n; i++)
        n_usable += bt_device_cuda_usable(library, i, text, text_bytes);
    for (uint32_t i = 0, at = 0; i < n && n_usable != 0; i++)
        if (bt_device_cuda_usable(library, i, text, text_bytes) && at++ == turn % n_usable)
            *device_out = i;
    return n_usable != 0;
}

bt_status bt_device_cuda_create(const char *library, uint32_t device, bt_device **dev_out)
{
    bt_status                   st = BT_OK;
    char                        text[600];
    const bt_cuda_module_table *table = open_module(library, text, sizeof(text));

    BT_REQUIRE(table != NULL, BT_ERR_UNSUPPORTED, "%s", text);
    check_environment();
    BT_TRY(table->create(device, dev_out));
out:
    return st;
}

const void *bt_device_symbol(const bt_device *dev, const char *name)
{
    return bt_module_symbol(dev->ops, name);
}

/* parallel/open_nccl.c - finds libbaton_nccl.so.  No NCCL in here. */
#include <stdio.h>
#include <stdlib.h>

#include "core/log.h"
#include "core/module.h"
#include "parallel/nccl/module.h"

/* NCCL refuses two ranks on one GPU, which it takes for a mistake, unless they seem to be on
 * different machines. */
static void hide_neighbours(uint32_t rank)
{
    const char *set = getenv("NCCL_HOSTID");
    char        name[32];

    snprintf(name, sizeof(name), "baton-rank-%u", rank);
    if (set != NULL)
        BT_WARN("NCCL_HOSTID=%s: it is %s here, since ranks share a GPU and NCCL wants to see each "
                "on a machine of its own",
                set, name);
    (void)setenv("NCCL_HOSTID", name, 1);
}

const bt_nccl_module *bt_nccl_open(const char *library, uint32_t rank, bool shares_gpu, char *text,
                                   size_t text_bytes)
{
    char                  why[512];
    const bt_nccl_module *nccl = bt_module_open(library, "libbaton_nccl.so", BT_NCCL_MODULE_SYMBOL,
                                                BT_NCCL_MODULE_VERSION, why, sizeof(why));

    if (nccl == NULL) {
        snprintf(text, text_bytes, "the NCCL transport cannot be opened: %s", why);
        return NULL;
    }
    if (shares_gpu) hide_neighbours(rank);
    return nccl->usable(text, text_bytes) ? nccl : NULL;
}

#include "launch/bind.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"

bt_status bt_bind_text(const bt_rank_map *map, char **text_out)
{
    bt_status st   = BT_OK;
    char     *text = NULL;
    size_t    n = 1, at = 0;
    bool      bound = false;

    for (uint32_t i = 0; i < map->n_ranks; i++)
        n += strlen(map->ranks[i].cores) + strlen(map->ranks[i].devices) + 2;
    text = bt_calloc(n, 1);
    BT_REQUIRE(text != NULL, BT_ERR_NO_MEMORY, "the bindings of %u ranks", map->n_ranks);
    for (uint32_t i = 0; i < map->n_ranks; i++) {
        const bt_rank_place *p = &map->ranks[i];

        bound = bound || p->cores[0] != '\0' || p->devices[0] != '\0';
        at +=
            (size_t)snprintf(text + at, n - at, "%s%s/%s", i > 0 ? ";" : "", p->cores, p->devices);
    }
    *text_out = NULL;
    if (bound) {
        *text_out = text;
        text      = NULL; /* handed over */
    }
out:
    bt_free(text);
    return st;
}

static bt_status bind_cores(const char *text, uint32_t rank)
{
    bt_status st = BT_OK;
    uint32_t  cores[BT_RANK_LIST_MAX], n = 0;
    cpu_set_t set, given;

    BT_REQUIRE(bt_rank_list_parse(text, CPU_SETSIZE, cores, &n), BT_ERR_INVALID_ARG,
               "rank %u is to be bound to cores \"%.60s\": expected numbers below %d", rank, text,
               CPU_SETSIZE);
    CPU_ZERO(&set);
    for (uint32_t i = 0; i < n; i++)
        CPU_SET(cores[i], &set);
    BT_REQUIRE(sched_setaffinity(0, sizeof(set), &set) == 0, BT_ERR_INVALID_ARG,
               "rank %u cannot be bound to cores %s of this machine: %s", rank, text,
               strerror(errno));
    BT_REQUIRE(sched_getaffinity(0, sizeof(given), &given) != 0 || CPU_EQUAL(&set, &given),
               BT_ERR_INVALID_ARG,
               "rank %u cannot be bound to cores %s of this machine: it gets %d of them", rank,
               text, CPU_COUNT(&given));
out:
    return st;
}

bt_status bt_bind_apply(const char *text, uint32_t rank)
{
    bt_status st    = BT_OK;
    char     *entry = NULL, *devices;

    for (uint32_t i = 0; i < rank && text != NULL; i++) {
        text = strchr(text, ';');
        if (text != NULL) text++;
    }
    BT_REQUIRE(text != NULL, BT_ERR_INVALID_ARG, "there is no binding for rank %u", rank);
    entry = bt_strdup(text);
    BT_REQUIRE(entry != NULL, BT_ERR_NO_MEMORY, "the binding of rank %u", rank);
    entry[strcspn(entry, ";")] = '\0';
    devices                    = strchr(entry, '/');
    BT_REQUIRE(devices != NULL, BT_ERR_INVALID_ARG,
               "the binding of rank %u is \"%.60s\": expected CORES/DEVICES", rank, entry);
    *devices++ = '\0';
    if (entry[0] != '\0') BT_TRY(bind_cores(entry, rank));
    if (devices[0] != '\0')
        BT_REQUIRE(setenv("CUDA_VISIBLE_DEVICES", devices, 1) == 0, BT_ERR_NO_MEMORY,
                   "the device of rank %u", rank);
out:
    bt_free(entry);
    return st;
}

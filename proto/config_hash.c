#include "proto/config_hash.h"

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <xxhash.h>

#include "core/file.h"
#include "core/log.h"

uint64_t bt_config_hash(const char *dir)
{
    char          path[PATH_MAX], bytes[4096];
    const char   *why   = NULL;
    FILE         *f     = NULL;
    XXH3_state_t *state = XXH3_createState();
    uint64_t      hash  = 0;
    size_t        n;

    bt_model_config_file(dir, path);
    f = bt_open_regular(path, &why);
    if (f == NULL || state == NULL) {
        BT_WARN("%s: %s", path, f == NULL ? why : "no memory to read it");
        goto out;
    }
    XXH3_64bits_reset(state);
    while ((n = fread(bytes, 1, sizeof(bytes), f)) > 0)
        XXH3_64bits_update(state, bytes, n);
    if (ferror(f)) {
        BT_WARN("%s: %s", path, strerror(errno));
        goto out;
    }
    hash = XXH3_64bits_digest(state);
    if (hash == 0) hash = 1;
out:
    if (f != NULL) fclose(f);
    XXH3_freeState(state);
    return hash;
}

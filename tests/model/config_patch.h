/* tests/model/config_patch.h - the demo's config.json with changes, in the scratch directory. */
#ifndef BT_TESTS_MODEL_CONFIG_PATCH_H
#define BT_TESTS_MODEL_CONFIG_PATCH_H

#include <jansson.h>

#include "model/config.h"
#include "tests/support/scratch.h"

#define DEMO BT_SOURCE_DIR "/models/demo"

/* The demo's config.json with the patch's members on top; "-" removes one. */
static inline void write_patched(const char *patch_text)
{
    json_t     *cfg   = json_load_file(DEMO "/config.json", 0, NULL);
    json_t     *patch = json_loads(patch_text, 0, NULL), *v;
    const char *name;
    char       *text;

    if (cfg == NULL || patch == NULL) abort();
    json_object_foreach(patch, name, v)
    {
        if (json_is_string(v) && strcmp(json_string_value(v), "-") == 0)
            json_object_del(cfg, name);
        else
            json_object_set(cfg, name, v);
    }
    text = json_dumps(cfg, 0);
    scratch_write("config.json", text, strlen(text));
    free(text);
    json_decref(cfg);
    json_decref(patch);
}

static inline bt_status read_patched(const char *patch_text, bt_model_config *cfg)
{
    scratch_clear();
    write_patched(patch_text);
    return bt_model_config_read(g_scratch, cfg);
}

#endif

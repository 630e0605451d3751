/* tests/model/safetensors_files.h - files of safetensors, right and wrong ones, in the scratch. */
#ifndef BT_TESTS_MODEL_SAFETENSORS_FILES_H
#define BT_TESTS_MODEL_SAFETENSORS_FILES_H

#include "model/safetensors.h"
#include "tests/support/scratch.h"

/* A file with this length field, JSON and number of data bytes (0, 1, 2, ...). */
static inline void write_raw(const char *name, uint64_t n, const char *json, size_t json_bytes,
                             size_t data_bytes)
{
    size_t   bytes = 8 + json_bytes + data_bytes;
    uint8_t *file  = malloc(bytes);

    if (file == NULL) abort();
    for (int i = 0; i < 8; i++)
        file[i] = (uint8_t)(n >> 8 * i);
    memcpy(file + 8, json, json_bytes);
    for (size_t i = 0; i < data_bytes; i++)
        file[8 + json_bytes + i] = (uint8_t)i;
    scratch_write(name, file, bytes);
    free(file);
}

static inline bt_status open_json(const char *json, size_t data_bytes)
{
    bt_safetensors *set = NULL;
    bt_status       st;

    scratch_clear();
    write_raw("t.safetensors", strlen(json), json, strlen(json), data_bytes);
    st = bt_safetensors_open(scratch_path("t.safetensors"), &set);
    EXPECT((st == BT_OK) == (set != NULL));
    bt_safetensors_close(set);
    return st;
}

#endif

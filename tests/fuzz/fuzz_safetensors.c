/* Any bytes as a safetensors header: refused, or every tensor lies within the data and none
 * overlaps.  Input: 4 bytes for the size of the data, then the JSON. */
#include <string.h>

#include "core/log.h"
#include "model/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

typedef struct {
    uint64_t data_bytes, used;
} seen;

static bt_status check(void *ctx, const bt_tensor *t, uint64_t offset)
{
    seen *s = ctx;

    BT_ASSERT(t->name != NULL && t->name[0] != '\0' && t->n_dims <= BT_MAX_TENSOR_DIMS);
    BT_ASSERT(offset <= s->data_bytes && t->bytes <= s->data_bytes - offset);
    s->used += t->bytes;
    return BT_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    uint32_t data_bytes;
    seen     s = {0};

    if (n < sizeof(data_bytes)) return 0;
    memcpy(&data_bytes, data, sizeof(data_bytes));
    s.data_bytes = data_bytes;
    if (bt_safetensors_parse_header("fuzz", (const char *)data + 4, n - 4,
                                    8 + (n - 4) + (uint64_t)data_bytes, check, &s) == BT_OK)
        BT_ASSERT(s.used == s.data_bytes); /* within the data, and exactly as much: no overlap */
    return 0;
}

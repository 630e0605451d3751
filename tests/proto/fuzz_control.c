/* libFuzzer: any bytes are refused, or are a message that packs and unpacks to itself. */
#include <stdint.h>
#include <string.h>

#include "core/alloc.h"
#include "proto/control_msg.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void try_up(const uint8_t *data, size_t n)
{
    bt_up    m = {0}, back = {0};
    uint8_t *bytes = NULL, *again = NULL;
    size_t   n_bytes = 0, n_again = 0;

    if (bt_up_unpack(data, n, &m) != BT_OK) return;
    BT_ASSERT(bt_up_pack(&m, &bytes, &n_bytes) == BT_OK);
    BT_ASSERT(bt_up_unpack(bytes, n_bytes, &back) == BT_OK);
    BT_ASSERT(bt_up_pack(&back, &again, &n_again) == BT_OK);
    BT_ASSERT(n_bytes == n_again && memcmp(bytes, again, n_bytes) == 0);
    bt_up_free(&m);
    bt_up_free(&back);
    bt_free(bytes);
    bt_free(again);
}

static void try_down(const uint8_t *data, size_t n)
{
    bt_down  m = {0}, back = {0};
    uint8_t *bytes = NULL, *again = NULL;
    size_t   n_bytes = 0, n_again = 0;

    if (bt_down_unpack(data, n, &m) != BT_OK) return;
    BT_ASSERT(bt_down_pack(&m, &bytes, &n_bytes) == BT_OK);
    BT_ASSERT(bt_down_unpack(bytes, n_bytes, &back) == BT_OK);
    BT_ASSERT(bt_down_pack(&back, &again, &n_again) == BT_OK);
    BT_ASSERT(n_bytes == n_again && memcmp(bytes, again, n_bytes) == 0);
    bt_down_free(&m);
    bt_down_free(&back);
    bt_free(bytes);
    bt_free(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    long live = bt_alloc_live();

    try_up(data, n);
    try_down(data, n);
    BT_ASSERT(bt_alloc_live() == live);
    return 0;
}

/* libFuzzer: any bytes are refused, or are a message that packs and unpacks to itself; what the
 * quick reader of tokens takes, the general one takes as the same. */
#include <stdint.h>
#include <string.h>

#include "core/alloc.h"
#include "proto/control_pb.h"

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

static void try_tokens(const uint8_t *data, size_t n)
{
    bt_up quick = {0}, plain = {0};

    if (!bt_pb_tokens(data, n, &quick)) return;
    BT_ASSERT(bt_pb_up(data, n, &plain) == BT_OK);
    BT_ASSERT(plain.kind == BT_UP_TOKENS && plain.u.tokens.n == quick.u.tokens.n);
    BT_ASSERT(memcmp(plain.u.tokens.tokens, quick.u.tokens.tokens,
                     quick.u.tokens.n * sizeof(bt_token)) == 0);
    bt_up_free(&quick);
    bt_up_free(&plain);
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
    try_tokens(data, n);
    try_down(data, n);
    BT_ASSERT(bt_alloc_live() == live);
    return 0;
}

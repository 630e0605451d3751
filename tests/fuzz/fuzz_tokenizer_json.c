/* Any bytes as a tokenizer.json: refused, or a tokenizer that can encode.  Its regexes come from
 * the file, so a text may be refused too, but never crash or run for ever. */
#include <string.h>

#include "core/alloc.h"
#include "model/tokenizer.h"
#include "tests/fuzz/memory_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static int    fd     = -1;
    static char   TEXT[] = "It's 1234  x\r\n\t\xe4\xb8\xad\xe6\x96\x87 <think> ab\xff";
    bt_tokenizer *tok    = NULL;
    uint32_t     *ids    = NULL;
    size_t        n_ids  = 0;
    char          path[64];

    snprintf(path, sizeof(path), "/proc/self/fd/%d", memory_file(&fd, data, n));
    if (bt_tokenizer_open(path, &tok) != BT_OK) return 0;
    if (bt_tokenizer_encode(tok, TEXT, strlen(TEXT), &ids, &n_ids) == BT_OK)
        for (size_t i = 0; i < n_ids; i++)
            BT_ASSERT(ids[i] < bt_tokenizer_vocab_size(tok));
    bt_free(ids);
    bt_tokenizer_close(tok);
    return 0;
}

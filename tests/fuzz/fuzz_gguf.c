/* Any bytes as a GGUF file: refused, or every key and every block of every tensor can be read. */
#include <string.h>

#include "core/alloc.h"
#include "model/gguf.h"
#include "tests/fuzz/memory_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void read_keys(const bt_gguf *g)
{
    bt_gguf_text *texts = NULL, text = {0};
    uint32_t      numbers[16], v     = 0;
    size_t        n = 0;
    double        x = 0;
    bool          b = false;

    if (bt_gguf_u32(g, "u", 3, 9, &v) == BT_OK) BT_ASSERT(v == 0 || (v >= 3 && v <= 9));
    if (bt_gguf_f64(g, "f", -1, 1, &x) == BT_OK) BT_ASSERT(x >= -1 && x <= 1);
    if (bt_gguf_bool(g, "b", &b) == BT_OK) BT_ASSERT(b || !b);
    if (bt_gguf_string(g, "s", &text) == BT_OK && text.n != 0)
        BT_ASSERT(memchr(text.text, 0, text.n) == NULL);
    if (bt_gguf_strings(g, "texts", &texts, &n) == BT_OK)
        for (size_t i = 0; i < n; i++)
            BT_ASSERT(texts[i].n == 0 || memchr(texts[i].text, 0, texts[i].n) == NULL);
    bt_free(texts);
    if (bt_gguf_numbers(g, "numbers", 16, numbers, &n) == BT_OK) BT_ASSERT(n <= 16);
}

static void read_tensor(const bt_gguf_tensor *t)
{
    float    f[BT_GGUF_MAX_BLOCK];
    bt_bf16  h[BT_GGUF_MAX_BLOCK];
    uint32_t n_weights = 0, n_bytes = 0;

    BT_ASSERT(bt_gguf_block(t->type, &n_weights, &n_bytes) && t->bytes % n_bytes == 0);
    for (size_t at = 0; at < t->bytes / n_bytes; at++) {
        bt_gguf_read_f32(t, at * n_weights, n_weights, f);
        bt_gguf_read_bf16(t, at * n_weights, n_weights, h);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static int fd = -1;
    bt_gguf   *g  = NULL;
    char       path[64];

    snprintf(path, sizeof(path), "/proc/self/fd/%d", memory_file(&fd, data, n));
    if (bt_gguf_open(path, &g) != BT_OK) return 0;
    read_keys(g);
    for (size_t i = 0; i < bt_gguf_count(g); i++) {
        BT_ASSERT(bt_gguf_find(g, bt_gguf_at(g, i)->name) == bt_gguf_at(g, i));
        read_tensor(bt_gguf_at(g, i));
    }
    bt_gguf_close(g);
    return 0;
}

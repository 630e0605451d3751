/* Any bytes as a safetensors header: refused, or every tensor lies within the data and none
 * overlaps.  As a file, of Mistral's format too, it opens, or is refused; the tensors of each
 * expert lie within the data.
 * Input: 4 bytes for the size of the data, then the JSON. */
#include <string.h>
#include <sys/stat.h>

#include "core/alloc.h"
#include "core/log.h"
#include "model/safetensors.h"
#include "tests/fuzz/memory_file.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

enum { MAX_DATA_BYTES = 1 << 20 };
static char g_dir[64], g_link[96]; /* a directory with consolidated.safetensors, Mistral's format */
static char g_file[64];
static int  g_fd = -1;

static void clean_up(void)
{
    unlink(g_link);
    rmdir(g_dir);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    snprintf(g_dir, sizeof(g_dir), "/tmp/fuzz-safetensors-XXXXXX");
    if (mkdtemp(g_dir) == NULL) abort();
    atexit(clean_up);
    snprintf(g_file, sizeof(g_file), "/proc/self/fd/%d", memory_file(&g_fd, NULL, 0));
    snprintf(g_link, sizeof(g_link), "%s/consolidated.safetensors", g_dir);
    if (symlink(g_file, g_link) != 0) abort();
    return 0;
}

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

static void open_all(const char *path, uint64_t data_bytes)
{
    bt_safetensors *st    = NULL;
    uintptr_t       first = UINTPTR_MAX, end = 0;

    if (bt_safetensors_open(path, &st) != BT_OK) return; /* as with two tensors of one name */
    for (size_t i = 0; i < bt_safetensors_count(st); i++) {
        const bt_tensor *t  = bt_safetensors_at(st, i);
        uintptr_t        at = (uintptr_t)t->data;

        BT_ASSERT(bt_safetensors_find(st, t->name) == t);
        if (at < first) first = at;
        if (at + t->bytes > end) end = at + t->bytes;
    }
    BT_ASSERT(bt_safetensors_count(st) == 0 || end - first <= data_bytes);
    bt_safetensors_close(st);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    uint32_t data_bytes;
    uint64_t length = n - 4;
    long     live   = bt_alloc_live();
    seen     s      = {0};

    if (n < sizeof(data_bytes)) return 0;
    memcpy(&data_bytes, data, sizeof(data_bytes));
    s.data_bytes = data_bytes;
    if (bt_safetensors_parse_header("fuzz", (const char *)data + 4, length, 8 + length + data_bytes,
                                    check, &s) != BT_OK)
        return 0;
    BT_ASSERT(s.used == s.data_bytes); /* within the data, and exactly as much: no overlap */
    if (data_bytes > MAX_DATA_BYTES) return 0;
    memory_file(&g_fd, (const uint8_t *)&length, sizeof(length));
    if (pwrite(g_fd, data + 4, length, 8) != (ssize_t)length ||
        ftruncate(g_fd, (off_t)(8 + length + data_bytes)) != 0)
        abort();
    open_all(g_file, data_bytes);
    open_all(g_dir, data_bytes);
    BT_ASSERT(bt_alloc_live() == live);
    return 0;
}

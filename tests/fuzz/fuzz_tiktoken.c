/* Any bytes as a tiktoken.model, or where they begin with a brace, as a tekken.json: refused, or a
 * tokenizer that gives a text back. */
#include <string.h>
#include <sys/stat.h>

#include "core/alloc.h"
#include "model/tokenizer.h"
#include "tests/fuzz/memory_file.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

enum { N_FILES = 2 };
static const char *const FILES[N_FILES] = {"tiktoken.model", "tekken.json"};
static char              g_dir[64];
static int               g_fd = -1;

static void clean_up(void)
{
    char path[96];

    for (int i = 0; i < N_FILES; i++) {
        snprintf(path, sizeof(path), "%s/%s", g_dir, FILES[i]);
        unlink(path);
    }
    snprintf(path, sizeof(path), "%s/tokenizer_config.json", g_dir);
    unlink(path);
    rmdir(g_dir);
}

/* A directory in which both are the file in memory. */
int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    char  target[64], path[96];
    FILE *config;

    (void)argc;
    (void)argv;
    snprintf(g_dir, sizeof(g_dir), "/tmp/fuzz-tiktoken-XXXXXX");
    if (mkdtemp(g_dir) == NULL) abort();
    atexit(clean_up);
    snprintf(target, sizeof(target), "/proc/self/fd/%d", memory_file(&g_fd, NULL, 0));
    for (int i = 0; i < N_FILES; i++) {
        snprintf(path, sizeof(path), "%s/%s", g_dir, FILES[i]);
        if (symlink(target, path) != 0) abort();
    }
    snprintf(path, sizeof(path), "%s/tokenizer_config.json", g_dir);
    config = fopen(path, "w");
    if (config == NULL || fputs("{\"tokenizer_class\": \"TikTokenTokenizer\"}", config) < 0 ||
        fclose(config) != 0)
        abort();
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const char TEXT[] = "It's 1234  x\r\n\t\xe4\xb8\xad\xe6\x96\x87 aaaabab";
    bt_tokenizer     *tok    = NULL;
    uint32_t         *ids    = NULL;
    bool              tekken = n != 0 && data[0] == '{';
    size_t            n_ids = 0, n_token, at = 0;
    char              path[96];

    memory_file(&g_fd, data, n);
    snprintf(path, sizeof(path), "%s/%s", g_dir, FILES[tekken]);
    if (bt_tokenizer_open(path, &tok) != BT_OK) return 0;
    if (bt_tokenizer_encode(tok, TEXT, strlen(TEXT), &ids, &n_ids) != BT_OK) {
        BT_ASSERT(tekken); /* whose regex may want too much of a text */
        bt_tokenizer_close(tok);
        return 0;
    }
    for (size_t i = 0; i < n_ids; i++) {
        const char *token = bt_tokenizer_bytes(tok, ids[i], &n_token, NULL);

        BT_ASSERT(at + n_token <= strlen(TEXT) && memcmp(TEXT + at, token, n_token) == 0);
        at += n_token;
    }
    BT_ASSERT(at == strlen(TEXT));
    bt_free(ids);
    bt_tokenizer_close(tok);
    return 0;
}

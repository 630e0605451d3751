/* Any bytes as the tokenizer_config.json beside tokens of one byte each: refused, or a tokenizer
 * whose added tokens give a text back, whose front is of its vocabulary, and whose template is
 * rendered or refused. */
#include <string.h>
#include <sys/stat.h>

#include "core/alloc.h"
#include "model/tokenizer.h"
#include "tests/fuzz/memory_file.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static char g_dir[64], g_ranks[96], g_config[96];
static int  g_fd = -1;

static void clean_up(void)
{
    unlink(g_ranks);
    unlink(g_config);
    rmdir(g_dir);
}

/* "IQ== 0": a byte and its rank */
static void write_ranks(FILE *f)
{
    static const char DIGITS[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

    for (int b = 0; b < 256; b++)
        fprintf(f, "%c%c== %d\n", DIGITS[b >> 2], DIGITS[(b & 3) << 4], b);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    char  target[64];
    FILE *ranks;

    (void)argc;
    (void)argv;
    snprintf(g_dir, sizeof(g_dir), "/tmp/fuzz-tokenizer-config-XXXXXX");
    if (mkdtemp(g_dir) == NULL) abort();
    atexit(clean_up);
    snprintf(g_ranks, sizeof(g_ranks), "%s/tiktoken.model", g_dir);
    snprintf(g_config, sizeof(g_config), "%s/tokenizer_config.json", g_dir);
    snprintf(target, sizeof(target), "/proc/self/fd/%d", memory_file(&g_fd, NULL, 0));
    ranks = fopen(g_ranks, "w");
    if (ranks == NULL || symlink(target, g_config) != 0) abort();
    write_ranks(ranks);
    if (fclose(ranks) != 0) abort();
    return 0;
}

static void check(const bt_tokenizer *tok)
{
    static const char            TEXT[] = "It's <|im_end|> \xe4\xb8\xad<|reserved_token_300|>";
    static const bt_chat_message TALK[] = {
        {"system", "Be brief."},
        {"user",   "Hi"       }
    };
    uint32_t *ids = NULL, front[BT_MAX_FRONT];
    size_t    n = 0, n_token, at = 0;
    char     *text = NULL;

    if (bt_tokenizer_encode(tok, TEXT, strlen(TEXT), &ids, &n) != BT_OK) abort();
    for (size_t i = 0; i < n; i++) {
        const char *token = bt_tokenizer_bytes(tok, ids[i], &n_token, NULL);

        BT_ASSERT(at + n_token <= strlen(TEXT) && memcmp(TEXT + at, token, n_token) == 0);
        at += n_token;
    }
    BT_ASSERT(at == strlen(TEXT));
    for (int always = 0; always < 2; always++)
        if (bt_tokenizer_front(tok, always, front, &n) == BT_OK)
            for (size_t i = 0; i < n; i++)
                BT_ASSERT(front[i] < bt_tokenizer_vocab_size(tok));
    BT_ASSERT((bt_tokenizer_chat(tok, 2, TALK, BT_THINK_UNSAID, &text) == BT_OK) == (text != NULL));
    bt_free(text);
    bt_free(ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    bt_tokenizer *tok  = NULL;
    long          live = bt_alloc_live();

    memory_file(&g_fd, data, n);
    if (bt_tokenizer_open(g_dir, &tok) == BT_OK) check(tok);
    bt_tokenizer_close(tok);
    BT_ASSERT(bt_alloc_live() == live);
    return 0;
}

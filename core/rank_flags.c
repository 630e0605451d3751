#include "core/rank_flags.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/log.h"
#include "core/machine.h"
#include "core/parse.h"
#include "core/rank_map.h"

enum { MAX_ROWS = 1 << 20, WORDS_MAX = 7 };
enum { MAX_TIMEOUT_S = 3600, MAX_ORPHAN_S = 86400 };

typedef enum { WHOLE, SIZE, NAME, WORD } value_kind;

typedef struct {
    const char *name;
    value_kind  kind;
    int64_t     least, most;      /* WHOLE */
    const char *words[WORDS_MAX]; /* WORD; NULL after the last one.  NAME: what it names */
} rank_flag;

static const rank_flag FLAGS[] = {
    {"--prefill",               WHOLE, 1, BT_RANKS_MAX,   {0}                                                              },
    {"--decode",                WHOLE, 1, BT_RANKS_MAX,   {0}                                                              },
    {"--both",                  WHOLE, 1, BT_RANKS_MAX,   {0}                                                              },
    {"--spares",                WHOLE, 0, BT_RANKS_MAX,   {0}                                                              },
    {"--kv-bytes",              SIZE,  0, 0,              {0}                                                              },
    {"--chunk",                 WHOLE, 1, MAX_ROWS,       {0}                                                              },
    {"--max-rows",              WHOLE, 1, MAX_ROWS,       {0}                                                              },
    {"--lookahead",             WHOLE, 0, 1,              {0}                                                              },
    {"--speculate",             WHOLE, 0, BT_DRAFT_MAX,   {0}                                                              },
    {"--mtp",                   WHOLE, 0, BT_MTP_MAX,     {0}                                                              },
    {"--threads",               WHOLE, 0, BT_MAX_THREADS, {0}                                                              },
    {"--timeout-s",             WHOLE, 1, MAX_TIMEOUT_S,  {0}                                                              },
    {"--coordinator-timeout-s", WHOLE, 1, MAX_TIMEOUT_S,  {0}                                                              },
    {"--orphan-s",              WHOLE, 0, MAX_ORPHAN_S,   {0}                                                              },
    {"--form",                  WORD,  0, 0,              {"role", "normal", "absorbed", "cost"}                           },
    {"--kernels",               WORD,  0, 0,              {"auto", "amx", "avx512bf16", "avx512", "avx2", "neon", "scalar"}},
    {"--device",                WORD,  0, 0,              {"auto", "cpu", "cuda", "cuda:N"}                                },
    {"--model",                 NAME,  0, 0,              {"a directory"}                                                  },
    {"--weights-cache",         NAME,  0, 0,              {"a directory"}                                                  },
    {"--cell",                  NAME,  0, 0,              {"a name"}                                                       },
    {"--cuda-library",          NAME,  0, 0,              {"a file"}                                                       },
    {"--nccl-library",          NAME,  0, 0,              {"a file"}                                                       },
    {"--transport",             WORD,  0, 0,              {"auto", "mpi", "nccl"}                                          },
};

static const rank_flag *find(const char *name)
{
    size_t i = 0, n = sizeof(FLAGS) / sizeof(FLAGS[0]);

    while (i < n && strcmp(FLAGS[i].name, name) != 0)
        i++;
    BT_ASSERT(i < n);
    return &FLAGS[i];
}

static bool is_word(const rank_flag *f, uint32_t i) { return i < WORDS_MAX && f->words[i] != NULL; }

static bool read_whole(const char *name, const char *text, int64_t least, int64_t most,
                       uint64_t *value_out, char *why)
{
    int64_t value;

    if (!bt_parse_whole(text, least, most, &value)) {
        snprintf(why, BT_RANK_FLAG_WHY,
                 "%s must be a whole number from %" PRId64 " to %" PRId64 ", not \"%.80s\"%s", name,
                 least, most, text, bt_parse_hint(text));
        return false;
    }
    *value_out = (uint64_t)value;
    return true;
}

/* "--transport must be auto, mpi or nccl, not "smoke"" */
static bool read_word(const rank_flag *f, const char *text, uint64_t *value_out, char *why)
{
    size_t n = (size_t)snprintf(why, BT_RANK_FLAG_WHY, "%s must be ", f->name);

    for (uint32_t i = 0; is_word(f, i); i++) {
        if (strcmp(text, f->words[i]) == 0) {
            *value_out = i;
            return true;
        }
        n += (size_t)snprintf(why + n, BT_RANK_FLAG_WHY - n, "%s%s",
                              i == 0              ? ""
                              : is_word(f, i + 1) ? ", "
                                                  : " or ",
                              f->words[i]);
    }
    snprintf(why + n, BT_RANK_FLAG_WHY - n, ", not \"%.80s\"", text);
    return false;
}

static bool read_device(const rank_flag *f, const char *text, uint64_t *value_out, char *why)
{
    if (strncmp(text, "cuda:", 5) != 0) return read_word(f, text, value_out, why);
    if (!read_whole("--device cuda:N", text + 5, 0, BT_RANK_GPUS - 1, value_out, why)) return false;
    *value_out += BT_RANK_DEVICE_CUDA_0;
    return true;
}

bool bt_rank_flag_read(const char *flag, const char *text, uint64_t *value_out,
                       char why_out[BT_RANK_FLAG_WHY])
{
    const rank_flag *f     = find(flag);
    uint64_t         bytes = 0;

    switch (f->kind) {
    case WHOLE: return read_whole(f->name, text, f->least, f->most, value_out, why_out);
    case WORD:
        return (strcmp(flag, "--device") == 0 ? read_device : read_word)(f, text, value_out,
                                                                         why_out);
    case NAME:
        snprintf(why_out, BT_RANK_FLAG_WHY, "%s is \"%.80s\", expected %s", f->name, text,
                 f->words[0]);
        return bt_parse_name(text);
    case SIZE:
    default:
        snprintf(why_out, BT_RANK_FLAG_WHY, "%s must be a size like 512M or 2G, not \"%.80s\"",
                 f->name, text);
        if (!bt_parse_bytes(text, &bytes) || bytes == 0) return false;
        *value_out = bytes;
        return true;
    }
}

const char *bt_rank_flag_word(const char *flag, uint32_t value)
{
    BT_ASSERT(is_word(find(flag), value));
    return find(flag)->words[value];
}

bool bt_rank_rows_fit(uint64_t chunk, uint64_t max_rows, char why_out[BT_RANK_FLAG_WHY])
{
    snprintf(why_out, BT_RANK_FLAG_WHY,
             "--chunk %" PRIu64 " does not fit into a step of --max-rows %" PRIu64
             ": give at most as many",
             chunk, max_rows);
    return chunk <= max_rows;
}

#include "core/rank_map.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/file.h"
#include "core/parse.h"

enum { DEVICES_MAX = 8192, WORDS_MAX = 6, TEXT_MAX = 12 * BT_RANK_LIST_MAX };

/* ---- lists of numbers */

bool bt_rank_list_parse(const char *text, uint32_t n_max, uint32_t *numbers_out, uint32_t *n_out)
{
    uint32_t n = 0;

    for (;;) {
        char         *end;
        unsigned long first, last;

        if (*text < '0' || *text > '9') return false;
        first = last = strtoul(text, &end, 10);
        if (*end == '-' && end[1] >= '0' && end[1] <= '9') last = strtoul(end + 1, &end, 10);
        if (last < first || last >= n_max) return false;
        for (unsigned long i = first; i <= last; i++) {
            for (uint32_t k = 0; k < n; k++)
                if (numbers_out[k] == i) return false;
            if (n == BT_RANK_LIST_MAX) return false;
            numbers_out[n++] = (uint32_t)i;
        }
        if (*end == '\0') break;
        if (*end != ',') return false;
        text = end + 1;
    }
    *n_out = n;
    return true;
}

/* Numbers [n] as "0,1,2", owned by the caller; NULL: no memory. */
static char *list_text(const uint32_t *numbers, uint32_t n)
{
    char   text[TEXT_MAX] = "";
    size_t at             = 0;

    for (uint32_t i = 0; i < n; i++)
        at += (size_t)snprintf(text + at, sizeof(text) - at, "%s%u", i > 0 ? "," : "", numbers[i]);
    return bt_strdup(text);
}

/* The same of names. */
static char *names_text(char *const *names, uint32_t n)
{
    size_t bytes = 1, at = 0;
    char  *text;

    for (uint32_t i = 0; i < n; i++)
        bytes += strlen(names[i]) + 1;
    text = bt_calloc(bytes, 1);
    for (uint32_t i = 0; text != NULL && i < n; i++)
        at += (size_t)snprintf(text + at, bytes - at, "%s%s", i > 0 ? "," : "", names[i]);
    return text;
}

/* ---- lines */

typedef struct {
    const char  *path;
    unsigned     number;
    bool         both; /* some line says so */
    bool         split;
    bt_rank_map *map;
    uint32_t     capacity;
} reader;

typedef struct {
    bt_rank_kind kind;
    const char  *host;
    uint32_t     n_ranks, n_cores, n_devices; /* 0: any */
    uint32_t     cores[BT_RANK_LIST_MAX], devices[BT_RANK_LIST_MAX];
    char        *names[BT_RANK_LIST_MAX]; /* of devices, instead of their numbers: in the line */
} line;

static bt_status take_role(reader *r, const char *word, line *l)
{
    bt_status st = BT_OK;

    BT_REQUIRE(strcmp(word, "prefill") == 0 || strcmp(word, "decode") == 0 ||
                   strcmp(word, "both") == 0 || strcmp(word, "spare") == 0,
               BT_ERR_INVALID_ARG,
               "%s:%u: \"%.40s\" is not a role: expected prefill, decode, both or spare", r->path,
               r->number, word);
    l->kind  = word[0] == 'd' ? BT_RANK_DECODE : word[0] == 's' ? BT_RANK_SPARE : BT_RANK_PREFILL;
    r->both  = r->both || word[0] == 'b';
    r->split = r->split || word[0] == 'p' || word[0] == 'd';
    BT_REQUIRE(!r->both || !r->split, BT_ERR_INVALID_ARG,
               "%s:%u: in a cell all ranks have both roles, or none has", r->path, r->number);
out:
    return st;
}

/* "GPU-<UUID>,MIG-<UUID>": as CUDA_VISIBLE_DEVICES has them.  False: no such list, or one of them
 * twice. */
static bool take_names(char *text, line *l)
{
    static const char LETTERS[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-/";

    l->n_devices = 0;
    for (char *name; (name = strsep(&text, ",")) != NULL; l->n_devices++) {
        if (strncmp(name, "GPU-", 4) != 0 && strncmp(name, "MIG-", 4) != 0) return false;
        if (name[4] == '\0' || name[strspn(name, LETTERS)] != '\0') return false;
        for (uint32_t i = 0; i < l->n_devices; i++)
            if (strcmp(l->names[i], name) == 0) return false;
        if (l->n_devices == BT_RANK_LIST_MAX) return false;
        l->names[l->n_devices] = name;
    }
    return true;
}

static bt_status take_devices(const reader *r, char *word, line *l)
{
    bt_status st = BT_OK;
    char      shown[41];

    snprintf(shown, sizeof(shown), "%s", word);
    memset(l->names, 0, sizeof(l->names)); /* of an earlier setting */
    BT_REQUIRE(
        word[7] == 'G' || word[7] == 'M'
            ? take_names(word + 7, l)
            : bt_rank_list_parse(word + 7, DEVICES_MAX, l->devices, &l->n_devices),
        BT_ERR_INVALID_ARG,
        "%s:%u: \"%s\": expected at most %d different devices, like 0-3, or their UUIDs, like "
        "GPU-... or MIG-... (nvidia-smi -L)",
        r->path, r->number, shown, BT_RANK_LIST_MAX);
out:
    return st;
}

static bt_status take_setting(const reader *r, char *word, line *l)
{
    bt_status st = BT_OK;
    int64_t   n  = 0;

    if (strncmp(word, "ranks=", 6) == 0) {
        BT_REQUIRE(bt_parse_whole(word + 6, 1, BT_RANKS_MAX, &n), BT_ERR_INVALID_ARG,
                   "%s:%u: \"%.40s\": expected a number from 1 to %d", r->path, r->number, word,
                   BT_RANKS_MAX);
        l->n_ranks = (uint32_t)n;
    } else if (strncmp(word, "cores=", 6) == 0) {
        BT_REQUIRE(bt_rank_list_parse(word + 6, CPU_SETSIZE, l->cores, &l->n_cores),
                   BT_ERR_INVALID_ARG,
                   "%s:%u: \"%.40s\": expected at most %d different cores below %d, like 0-3,8",
                   r->path, r->number, word, BT_RANK_LIST_MAX, CPU_SETSIZE);
    } else if (strncmp(word, "device=", 7) == 0) {
        BT_TRY(take_devices(r, word, l));
    } else {
        BT_REQUIRE(false, BT_ERR_INVALID_ARG,
                   "%s:%u: \"%.40s\": expected ranks=N, cores=LIST or device=LIST", r->path,
                   r->number, word);
    }
out:
    return st;
}

static bt_status add_ranks(reader *r, const line *l)
{
    bt_status    st  = BT_OK;
    bt_rank_map *map = r->map;

    BT_REQUIRE(l->n_cores % l->n_ranks == 0 && l->n_devices % l->n_ranks == 0, BT_ERR_INVALID_ARG,
               "%s:%u: %u cores and %u devices cannot be dealt out evenly to %u ranks", r->path,
               r->number, l->n_cores, l->n_devices, l->n_ranks);
    BT_REQUIRE(map->n_ranks + l->n_ranks <= BT_RANKS_MAX, BT_ERR_INVALID_ARG,
               "%s:%u: more than %d ranks", r->path, r->number, BT_RANKS_MAX);
    if (map->n_ranks + l->n_ranks > r->capacity) {
        uint32_t       capacity = 2 * (map->n_ranks + l->n_ranks);
        bt_rank_place *grown    = bt_realloc(map->ranks, capacity, sizeof(*grown));

        BT_REQUIRE(grown != NULL, BT_ERR_NO_MEMORY, "a map of %u ranks", capacity);
        map->ranks  = grown;
        r->capacity = capacity;
    }
    for (uint32_t i = 0; i < l->n_ranks; i++) {
        uint32_t       n_cores = l->n_cores / l->n_ranks, n_devices = l->n_devices / l->n_ranks;
        bt_rank_place *p = &map->ranks[map->n_ranks++];

        *p = (bt_rank_place){.kind    = l->kind,
                             .host    = bt_strdup(l->host),
                             .cores   = list_text(l->cores + i * n_cores, n_cores),
                             .devices = l->names[0] != NULL
                                            ? names_text(l->names + i * n_devices, n_devices)
                                            : list_text(l->devices + i * n_devices, n_devices)};
        BT_REQUIRE(p->host != NULL && p->cores != NULL && p->devices != NULL, BT_ERR_NO_MEMORY,
                   "a map of ranks");
    }
out:
    return st;
}

static bool is_plain(char c)
{
    return (c >= ' ' && c <= '~') || c == '\t' || c == '\r' || c == '\n';
}

/* Before a comment. */
static bt_status check_bytes(const reader *r, const char *text, size_t n)
{
    bt_status st = BT_OK;

    for (size_t i = 0; i < n && text[i] != '#'; i++)
        BT_REQUIRE(is_plain(text[i]), BT_ERR_INVALID_ARG,
                   "%s:%u:%zu: byte 0x%02x, expected visible ASCII characters", r->path, r->number,
                   i + 1, (unsigned char)text[i]);
out:
    return st;
}

static bt_status take_line(reader *r, char *text, size_t n_bytes)
{
    static const char BLANKS[] = " \t\r\n";

    bt_status st = BT_OK;
    line      l  = {.n_ranks = 1};
    char     *save, *word;
    int       n = 0;

    BT_TRY(check_bytes(r, text, n_bytes));
    text[strcspn(text, "#")] = '\0';
    for (word = strtok_r(text, BLANKS, &save); word != NULL; word = strtok_r(NULL, BLANKS, &save)) {
        BT_REQUIRE(n < WORDS_MAX, BT_ERR_INVALID_ARG, "%s:%u: too many words", r->path, r->number);
        if (n == 0) BT_TRY(take_role(r, word, &l));
        if (n == 1) l.host = word;
        if (n >= 2) BT_TRY(take_setting(r, word, &l));
        n++;
    }
    if (n == 0) goto out;
    BT_REQUIRE(l.host != NULL && bt_parse_host(l.host, strlen(l.host)) &&
                   strchr(l.host, '=') == NULL,
               BT_ERR_INVALID_ARG, "%s:%u: expected ROLE HOST [ranks=N] [cores=LIST] [device=LIST]",
               r->path, r->number);
    BT_TRY(add_ranks(r, &l));
out:
    return st;
}

/* ---- the file */

/* Lines of one kind keep their order. */
static void sort_by_kind(bt_rank_map *map)
{
    for (uint32_t i = 1; i < map->n_ranks; i++)
        for (uint32_t k = i; k > 0 && map->ranks[k - 1].kind > map->ranks[k].kind; k--) {
            bt_rank_place t = map->ranks[k];

            map->ranks[k]     = map->ranks[k - 1];
            map->ranks[k - 1] = t;
        }
}

static bt_status count(const reader *r)
{
    bt_status    st   = BT_OK;
    bt_rank_map *map  = r->map;
    uint32_t     n[3] = {0};

    for (uint32_t i = 0; i < map->n_ranks; i++)
        n[map->ranks[i].kind]++;
    BT_REQUIRE(n[BT_RANK_PREFILL] > 0 && (r->both || n[BT_RANK_DECODE] > 0), BT_ERR_INVALID_ARG,
               "%s: a cell needs a prefill and a decode rank, or one of both", r->path);
    map->n_spares                               = n[BT_RANK_SPARE];
    *(r->both ? &map->n_both : &map->n_prefill) = n[BT_RANK_PREFILL];
    map->n_decode                               = n[BT_RANK_DECODE];
    sort_by_kind(map);
out:
    return st;
}

bt_status bt_rank_map_read(const char *path, bt_rank_map *map_out)
{
    bt_status   st       = BT_OK;
    bt_rank_map map      = {0};
    reader      r        = {.path = path, .map = &map};
    char       *text     = NULL;
    size_t      capacity = 0;
    ssize_t     n;
    const char *why;
    FILE       *f = bt_open_regular(path, &why);

    BT_REQUIRE(f != NULL, BT_ERR_IO, "rank map %s: %s", path, why);
    while ((n = getline(&text, &capacity, f)) >= 0) {
        r.number++;
        BT_TRY(take_line(&r, text, (size_t)n));
    }
    BT_REQUIRE(!ferror(f), BT_ERR_IO, "rank map %s: %s", path, strerror(errno));
    BT_TRY(count(&r));
    *map_out = map;
    map      = (bt_rank_map){0}; /* handed over */
out:
    free(text);
    if (f != NULL) fclose(f);
    bt_rank_map_fini(&map);
    return st;
}

void bt_rank_map_fini(bt_rank_map *map)
{
    for (uint32_t i = 0; i < map->n_ranks; i++) {
        bt_free(map->ranks[i].host);
        bt_free(map->ranks[i].cores);
        bt_free(map->ranks[i].devices);
    }
    bt_free(map->ranks);
    *map = (bt_rank_map){0};
}

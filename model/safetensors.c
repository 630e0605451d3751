#include "model/safetensors.h"

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/file.h"
#include "model/json.h"
#include "model/safetensors_header.h"

enum { MAX_INDEX_BYTES = 256 << 20, NAME_BYTES = 160 };
static const char LFS[] = "version https://git-lfs"; /* git-lfs.com, spec.md */

typedef struct {
    char           *name; /* owned: the file's path */
    uint8_t        *map;  /* owned: mmap, [bytes]; NULL when not mapped */
    size_t          bytes;
    size_t          data_at; /* where the data begins */
    struct timespec changed; /* its last change, as it was mapped */
} shard;

struct bt_safetensors {
    char      *path;   /* owned */
    shard     *shards; /* owned: [n_shards] */
    size_t     n_shards;
    bt_tensor *tensors; /* owned: [n] sorted by name; each name is owned too */
    size_t     n, capacity;
};

/* What parsing one shard needs. */
typedef struct {
    bt_safetensors *st;
    const shard    *from;
} adding;

static bt_status grow(bt_safetensors *set, const char *where)
{
    bt_status  st       = BT_OK;
    size_t     capacity = set->capacity == 0 ? 256 : 2 * set->capacity;
    bt_tensor *grown;

    if (set->n < set->capacity) goto out;
    grown = bt_realloc(set->tensors, capacity, sizeof(*grown));
    BT_REQUIRE(grown != NULL, BT_ERR_NO_MEMORY, "%s: %zu tensors", where, capacity);
    set->tensors  = grown;
    set->capacity = capacity;
out:
    return st;
}

static bt_status add_tensor(void *ctx, const bt_tensor *t, uint64_t offset)
{
    bt_status       st  = BT_OK;
    adding         *a   = ctx;
    bt_safetensors *set = a->st;
    bt_tensor      *mine;

    BT_TRY(grow(set, a->from->name));
    mine       = &set->tensors[set->n];
    *mine      = *t;
    mine->file = a->from->name;
    mine->data = a->from->map + a->from->data_at + offset;
    mine->name = bt_strdup(t->name);
    BT_REQUIRE(mine->name != NULL, BT_ERR_NO_MEMORY, "%s: %zu tensors", a->from->name, set->n);
    set->n++;
out:
    return st;
}

/* Little-endian, wherever the bytes stand. */
static uint64_t read_u64(const uint8_t *p)
{
    uint64_t v = 0;

    for (int i = 7; i >= 0; i--)
        v = v << 8 | p[i];
    return v;
}

static bt_status open_shard(bt_safetensors *set, const char *path)
{
    bt_status   st = BT_OK;
    shard      *s  = &set->shards[set->n_shards];
    adding      a  = {set, s};
    uint64_t    n;
    struct stat info;

    set->n_shards++; /* from here on close() sees it */
    s->name = bt_strdup(path);
    BT_REQUIRE(s->name != NULL, BT_ERR_NO_MEMORY, "%s", path);
    BT_TRY(bt_map_regular(path, &s->map, &info));
    s->bytes   = (size_t)info.st_size;
    s->changed = info.st_mtim;
    BT_REQUIRE(s->bytes >= BT_ST_LENGTH_BYTES, BT_ERR_FORMAT,
               "%s: expected a safetensors file of at least %d bytes, found %zu", path,
               BT_ST_LENGTH_BYTES, s->bytes);
    BT_REQUIRE(s->bytes < sizeof(LFS) || memcmp(s->map, LFS, sizeof(LFS) - 1) != 0, BT_ERR_FORMAT,
               "%s: expected a safetensors file, found a pointer of Git LFS to one: run `git lfs "
               "pull` where it was cloned",
               path);
    n = read_u64(s->map);
    BT_REQUIRE(n <= BT_ST_MAX_HEADER_BYTES && n <= s->bytes - BT_ST_LENGTH_BYTES, BT_ERR_FORMAT,
               "%s: header length: expected at most %zu (the file has %zu bytes), found %llu", path,
               s->bytes - BT_ST_LENGTH_BYTES, s->bytes, (unsigned long long)n);
    s->data_at = BT_ST_LENGTH_BYTES + (size_t)n;
    BT_TRY(bt_safetensors_parse_header(path, (const char *)s->map + BT_ST_LENGTH_BYTES, (size_t)n,
                                       s->bytes, add_tensor, &a));
out:
    return st;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const bt_tensor *)a)->name, ((const bt_tensor *)b)->name);
}

const char *bt_safetensors_path(const bt_safetensors *st) { return st->path; }

static bt_status sort_by_name(bt_safetensors *set)
{
    bt_status st = BT_OK;
    char      label[NAME_BYTES];

    if (set->n == 0) goto out;
    qsort(set->tensors, set->n, sizeof(*set->tensors), by_name);
    for (size_t i = 1; i < set->n; i++) {
        const bt_tensor *a = &set->tensors[i - 1], *b = &set->tensors[i];

        BT_REQUIRE(strcmp(a->name, b->name) != 0, BT_ERR_FORMAT,
                   "%s: tensor %s: expected in one shard, found in %s too", b->file,
                   bt_json_printable(b->name, label, sizeof(label)), a->file);
    }
out:
    return st;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The distinct file names of a weight_map, sorted, borrowed from it. */
static bt_status list_files(const char *index, json_t *map, const char ***files_out, size_t *n_out)
{
    bt_status    st    = BT_OK;
    const char **files = bt_calloc(json_object_size(map), sizeof(*files));
    size_t       n = 0, kept = 0;
    const char  *name;
    json_t      *v;
    char         label[NAME_BYTES], found[BT_JSON_SHOW_BYTES];

    BT_REQUIRE(files != NULL, BT_ERR_NO_MEMORY, "%s: %zu tensors", index, json_object_size(map));
    json_object_foreach(map, name, v)
    {
        const char *file = json_is_string(v) ? json_string_value(v) : "";

        BT_REQUIRE(file[0] != '\0' && file[0] != '.' && strchr(file, '/') == NULL, BT_ERR_FORMAT,
                   "%s: field weight_map: tensor %s: expected a file name beside the index, found "
                   "%s",
                   index, bt_json_printable(name, label, sizeof(label)),
                   bt_json_show(v, found, sizeof(found)));
        files[n++] = file;
    }
    qsort(files, n, sizeof(*files), by_text);
    for (size_t i = 0; i < n; i++)
        if (i == 0 || strcmp(files[i], files[kept - 1]) != 0) files[kept++] = files[i];
    *files_out = files;
    *n_out     = kept;
    files      = NULL;
out:
    bt_free(files);
    return st;
}

/* Index and shards must say the same, in both directions. */
static bt_status check_index(const char *index, const char *dir, json_t *map,
                             const bt_safetensors *set)
{
    bt_status   st = BT_OK;
    const char *name;
    json_t     *v;
    char        label[NAME_BYTES];

    json_object_foreach(map, name, v)
    {
        const bt_tensor *t    = bt_safetensors_find(set, name);
        const char      *file = t == NULL ? "" : t->file + strlen(dir) + 1;

        BT_REQUIRE(t != NULL && strcmp(file, json_string_value(v)) == 0, BT_ERR_FORMAT,
                   "%s: field weight_map: tensor %s: expected it in %s, found it %s%s", index,
                   bt_json_printable(name, label, sizeof(label)), json_string_value(v),
                   t == NULL ? "nowhere" : "in ", file);
    }
    for (size_t i = 0; i < set->n; i++)
        BT_REQUIRE(json_object_get(map, set->tensors[i].name) != NULL, BT_ERR_FORMAT,
                   "%s: field weight_map: expected tensor %s of %s, found nothing", index,
                   bt_json_printable(set->tensors[i].name, label, sizeof(label)),
                   set->tensors[i].file);
out:
    return st;
}

/* Mistral's own names become those of transformers; what is not of the language model keeps its
 * name. */
static bt_status take_mistral(bt_safetensors *set)
{
    bt_status st = BT_OK;

    for (size_t i = 0; i < set->n; i++) {
        char *name = NULL;

        BT_TRY(bt_st_name_of_mistral(set->tensors[i].name, &name));
        if (name == NULL) continue;
        bt_free((char *)(uintptr_t)set->tensors[i].name);
        set->tensors[i].name = name;
    }
    BT_TRY(sort_by_name(set));
out:
    return st;
}

/* The language model of a multimodal checkpoint has a prefix, which goes: its tensors are called as
 * those of a checkpoint of its own.  transformers 5 saves the layers of kimi_k25 as blocks, which
 * is what the vision tower's are. */
static bt_status take_language_model(bt_safetensors *set)
{
    static const char PREFIX[] = "language_model.", OUTER[] = "model.";
    static const char BLOCKS[] = "model.blocks.", LAYERS[] = "model.layers."; /* as long */
    bt_status         st  = BT_OK;
    const size_t      n   = sizeof(PREFIX) - 1;
    bool              any = false;

    for (size_t i = 0; i < set->n; i++) {
        char *name = (char *)(uintptr_t)set->tensors[i].name; /* owned */

        if (strncmp(name, OUTER, sizeof(OUTER) - 1) == 0 &&
            strncmp(name + sizeof(OUTER) - 1, PREFIX, n) == 0)
            name += sizeof(OUTER) - 1;
        else if (strncmp(name, PREFIX, n) != 0)
            continue;
        memmove(name, name + n, strlen(name + n) + 1);
        if (strncmp(name, BLOCKS, sizeof(BLOCKS) - 1) == 0)
            memcpy(name, LAYERS, sizeof(LAYERS) - 1);
        any = true;
    }
    if (any) BT_TRY(sort_by_name(set));
out:
    return st;
}

static bt_status open_index(bt_safetensors *set, const char *dir, const char *index)
{
    bt_status    st    = BT_OK;
    json_t      *json  = NULL, *map;
    const char **files = NULL;
    size_t       n     = 0;
    char         path[PATH_MAX], found[BT_JSON_SHOW_BYTES];

    BT_TRY(bt_json_read_file(index, MAX_INDEX_BYTES, &json));
    map = json_object_get(json, "weight_map");
    BT_REQUIRE(json_is_object(map) && json_object_size(map) > 0, BT_ERR_FORMAT,
               "%s: field weight_map: expected {tensor: file}, found %s", index,
               bt_json_show(map, found, sizeof(found)));
    BT_TRY(list_files(index, map, &files, &n));
    set->shards = bt_calloc(n, sizeof(*set->shards));
    BT_REQUIRE(set->shards != NULL, BT_ERR_NO_MEMORY, "%s: %zu shards", index, n);
    for (size_t i = 0; i < n; i++) {
        BT_REQUIRE(snprintf(path, sizeof(path), "%s/%s", dir, files[i]) < PATH_MAX, BT_ERR_IO,
                   "%s: expected a path under %d bytes", index, PATH_MAX);
        BT_TRY(open_shard(set, path));
    }
    BT_TRY(sort_by_name(set));
    BT_TRY(check_index(index, dir, map, set));
out:
    bt_free(files);
    json_decref(json);
    return st;
}

static bt_status open_single(bt_safetensors *set, const char *path)
{
    bt_status st = BT_OK;

    set->shards = bt_calloc(1, sizeof(*set->shards));
    BT_REQUIRE(set->shards != NULL, BT_ERR_NO_MEMORY, "%s", path);
    BT_TRY(open_shard(set, path));
    BT_TRY(sort_by_name(set));
out:
    return st;
}

/* One file, else the shards of an index: the order of Hugging Face. */
static bt_status open_named(bt_safetensors *set, const char *dir, const char *name, bool *found_out)
{
    char single[PATH_MAX], index[PATH_MAX];

    snprintf(single, sizeof(single), "%s/%s.safetensors", dir, name);
    snprintf(index, sizeof(index), "%s/%s.safetensors.index.json", dir, name);
    *found_out = true;
    if (bt_file_exists(single)) return open_single(set, single);
    if (bt_file_exists(index)) return open_index(set, dir, index);
    *found_out = false;
    return BT_OK;
}

static bt_status open_dir(bt_safetensors *set, const char *dir)
{
    bt_status st    = BT_OK;
    bool      found = false;

    BT_REQUIRE(strlen(dir) < PATH_MAX - 64, BT_ERR_IO,
               "model directory: expected a path under %d bytes", PATH_MAX - 64);
    BT_TRY(open_named(set, dir, "model", &found));
    if (found) goto out;
    BT_TRY(open_named(set, dir, "consolidated", &found));
    BT_REQUIRE(found, BT_ERR_IO,
               "%s: expected model.safetensors or model.safetensors.index.json, or either called "
               "consolidated, found none",
               dir);
    BT_TRY(take_mistral(set));
out:
    return st;
}

/* Each tensor of all experts of a layer makes way for those of each expert. */
static bt_status split_experts(bt_safetensors *set)
{
    bt_status st = BT_OK;
    size_t    n = set->n, kept = 0;

    for (size_t i = 0; i < n; i++) {
        const bt_tensor all = set->tensors[i];
        size_t          n_stacked;

        BT_TRY(bt_st_count_stacked(&all, &n_stacked));
        for (size_t k = 0; k < n_stacked; k++) {
            BT_TRY(grow(set, set->path));
            BT_TRY(bt_st_unstack(&all, k, &set->tensors[set->n]));
            set->n++;
        }
        if (n_stacked == 0) continue;
        bt_free((char *)(uintptr_t)all.name);
        set->tensors[i].name = NULL;
    }
    if (set->n == n) goto out;
    for (size_t i = 0; i < set->n; i++)
        if (set->tensors[i].name != NULL) set->tensors[kept++] = set->tensors[i];
    set->n = kept;
    BT_TRY(sort_by_name(set));
out:
    return st;
}

bt_status bt_safetensors_open(const char *path, bt_safetensors **st_out)
{
    bt_status       st  = BT_OK;
    bt_safetensors *set = bt_calloc(1, sizeof(*set));
    struct stat     info;

    BT_REQUIRE(set != NULL, BT_ERR_NO_MEMORY, "%s", path);
    set->path = bt_strdup(path);
    BT_REQUIRE(set->path != NULL, BT_ERR_NO_MEMORY, "%s", path);
    BT_REQUIRE(stat(path, &info) == 0, BT_ERR_IO, "%s: %s", path, strerror(errno));
    if (S_ISDIR(info.st_mode))
        BT_TRY(open_dir(set, path));
    else
        BT_TRY(open_single(set, path));
    BT_TRY(take_language_model(set));
    BT_TRY(split_experts(set));
    *st_out = set;
    set     = NULL;
out:
    bt_safetensors_close(set);
    return st;
}

void bt_safetensors_close(bt_safetensors *st)
{
    if (st == NULL) return;
    for (size_t i = 0; i < st->n; i++)
        bt_free((char *)(uintptr_t)st->tensors[i].name);
    for (size_t i = 0; i < st->n_shards; i++) {
        if (st->shards[i].map != NULL) munmap(st->shards[i].map, st->shards[i].bytes);
        bt_free(st->shards[i].name);
    }
    bt_free(st->tensors);
    bt_free(st->shards);
    bt_free(st->path);
    bt_free(st);
}

size_t bt_safetensors_count(const bt_safetensors *st) { return st->n; }

const bt_tensor *bt_safetensors_at(const bt_safetensors *st, size_t i)
{
    BT_ASSERT(i < st->n);
    return &st->tensors[i];
}

const bt_tensor *bt_safetensors_find(const bt_safetensors *st, const char *name)
{
    bt_tensor key = {.name = name};

    return st->n == 0 ? NULL : bsearch(&key, st->tensors, st->n, sizeof(key), by_name);
}

bool bt_safetensors_file(const bt_safetensors *st, size_t i, uint64_t facts_out[3])
{
    if (i >= st->n_shards) return false;
    facts_out[0] = st->shards[i].bytes;
    facts_out[1] = (uint64_t)st->shards[i].changed.tv_sec;
    facts_out[2] = (uint64_t)st->shards[i].changed.tv_nsec;
    return true;
}

const void *bt_tensor_slice(const bt_tensor *t, size_t i, size_t *bytes_out)
{
    enum { SLICE_BYTES = 64 };
    bool small = t->bytes <= (size_t)BT_TENSOR_SLICES * SLICE_BYTES;

    *bytes_out = !small ? SLICE_BYTES : i == 0 ? t->bytes : 0;
    if (small) return t->data;
    return (const char *)t->data + (t->bytes - SLICE_BYTES) * i / (BT_TENSOR_SLICES - 1);
}

void bt_safetensors_release(const bt_tensor *t)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)t->data;
    uintptr_t first = (at + page - 1) / page * page, end = (at + t->bytes) / page * page;

    /* A private mapping that nobody writes to: nothing is lost. */
    if (end > first) (void)madvise((void *)first, end - first, MADV_DONTNEED);
}

void bt_safetensors_expect_samples(const bt_safetensors *st, bool samples)
{
    for (size_t i = 0; i < st->n_shards; i++)
        if (st->shards[i].map != NULL)
            (void)madvise(st->shards[i].map, st->shards[i].bytes,
                          samples ? MADV_RANDOM : MADV_NORMAL);
}

#include "model/gguf.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "core/alloc.h"
#include "core/file.h"

enum {
    MAX_KEYS      = 1 << 16,
    MAX_TENSORS   = 1 << 20,
    MAX_KEY_BYTES = 1 << 10,
    MAX_FILES     = 1 << 12,
    MAX_ALIGNMENT = 1 << 20
};

typedef enum { U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64, N_KINDS } kind;
static const struct {
    const char *name;
    uint32_t    bytes; /* the least that a value takes */
} KINDS[N_KINDS] = {
    [U8] = {"u8",       1 },
      [I8] = {"i8",       1 },
      [U16] = {"u16",      2 },
      [I16] = {"i16",      2 },
    [U32] = {"u32",      4 },
      [I32] = {"i32",      4 },
      [F32] = {"f32",      4 },
      [BOOL] = {"a bool",   1 },
    [U64] = {"u64",      8 },
      [I64] = {"i64",      8 },
      [F64] = {"f64",      8 },
      [STRING] = {"a string", 8 },
    [ARRAY] = {"a list",   12},
};

typedef struct {
    bt_gguf_text   name;
    kind           kind, of; /* of: what a list holds */
    uint64_t       n;        /* of a list */
    const uint8_t *at;       /* the value, or the list's first */
} entry;

typedef struct {
    uint8_t *map; /* owned: mmap, [bytes]; NULL when not mapped */
    size_t   bytes;
    entry   *keys; /* owned: [n_keys], sorted by name */
    size_t   n_keys;
} file;

struct bt_gguf {
    char           *path;    /* owned */
    file           *files;   /* owned: [n_files]; keys are asked of the first */
    bt_gguf_tensor *tensors; /* owned: [n], sorted by name */
    size_t          n_files, n;
};

/* What is read from front to back. */
typedef struct {
    const char    *path;
    const file    *f;
    const uint8_t *at;
} reader;

/* Little-endian, wherever the bytes stand. */
static uint64_t number_at(const uint8_t *p, uint32_t bytes)
{
    uint64_t v = 0;

    for (uint32_t i = bytes; i-- > 0;)
        v = v << 8 | p[i];
    return v;
}

static size_t left(const reader *r) { return r->f->bytes - (size_t)(r->at - r->f->map); }

static bt_status take(reader *r, const char *what, uint64_t bytes, const uint8_t **at_out)
{
    bt_status st = BT_OK;

    BT_REQUIRE(bytes <= left(r), BT_ERR_FORMAT,
               "%s: byte %zu: expected %s of %llu bytes, found the end of the file after %zu",
               r->path, (size_t)(r->at - r->f->map), what, (unsigned long long)bytes, left(r));
    *at_out = r->at;
    r->at += bytes;
out:
    return st;
}

static bt_status take_number(reader *r, const char *what, uint32_t bytes, uint64_t lo, uint64_t hi,
                             uint64_t *v_out)
{
    bt_status      st = BT_OK;
    const uint8_t *at = NULL;
    uint64_t       v;

    BT_TRY(take(r, what, bytes, &at));
    v = number_at(at, bytes);
    BT_REQUIRE(v >= lo && v <= hi, BT_ERR_FORMAT,
               "%s: byte %zu: %s: expected a number from %llu to %llu, found %llu", r->path,
               (size_t)(at - r->f->map), what, (unsigned long long)lo, (unsigned long long)hi,
               (unsigned long long)v);
    *v_out = v;
out:
    return st;
}

static bt_status take_text(reader *r, const char *what, uint64_t max, bt_gguf_text *text_out)
{
    bt_status      st = BT_OK;
    const uint8_t *at = NULL;
    uint64_t       n  = 0;

    BT_TRY(take_number(r, what, 8, 0, max, &n));
    BT_TRY(take(r, what, n, &at));
    BT_REQUIRE(memchr(at, 0, (size_t)n) == NULL, BT_ERR_FORMAT,
               "%s: byte %zu: %s: expected a text, found one with a zero in it", r->path,
               (size_t)(at - r->f->map), what);
    *text_out = (bt_gguf_text){(const char *)at, (size_t)n};
out:
    return st;
}

static int compare(bt_gguf_text a, bt_gguf_text b)
{
    int order = memcmp(a.text, b.text, a.n < b.n ? a.n : b.n);

    return order != 0 ? order : (a.n > b.n) - (a.n < b.n);
}

/* ---- keys */

static bt_status take_list(reader *r, entry *e)
{
    bt_status      st = BT_OK;
    const uint8_t *at = NULL;
    bt_gguf_text   text;
    uint64_t       of = 0;

    BT_TRY(take_number(r, "what a list holds", 4, 0, N_KINDS - 1, &of));
    BT_REQUIRE(of != ARRAY, BT_ERR_UNSUPPORTED, "%s: key %.*s: expected no list of lists", r->path,
               (int)e->name.n, e->name.text);
    BT_TRY(take_number(r, "length of a list", 8, 0, left(r) / KINDS[of].bytes, &e->n));
    e->of = (kind)of;
    e->at = r->at;
    if (of != STRING) {
        BT_TRY(take(r, "a list", e->n * KINDS[of].bytes, &at));
    } else {
        for (uint64_t i = 0; i < e->n; i++)
            BT_TRY(take_text(r, "a string in a list", UINT64_MAX, &text));
    }
out:
    return st;
}

static bt_status take_key(reader *r, entry *e)
{
    bt_status    st = BT_OK;
    bt_gguf_text text;
    uint64_t     type = 0;

    BT_TRY(take_text(r, "name of a key", MAX_KEY_BYTES, &e->name));
    BT_TRY(take_number(r, "type of a value", 4, 0, N_KINDS - 1, &type));
    e->kind = (kind)type;
    e->at   = r->at;
    if (e->kind == ARRAY)
        BT_TRY(take_list(r, e));
    else if (e->kind == STRING)
        BT_TRY(take_text(r, "a string", UINT64_MAX, &text));
    else
        BT_TRY(take(r, "a value", KINDS[type].bytes, &e->at));
out:
    return st;
}

static int by_key(const void *a, const void *b)
{
    return compare(((const entry *)a)->name, ((const entry *)b)->name);
}

static bt_status take_keys(reader *r, file *f, uint64_t n)
{
    bt_status st = BT_OK;

    f->keys = bt_calloc((size_t)n, sizeof(*f->keys));
    BT_REQUIRE(f->keys != NULL, BT_ERR_NO_MEMORY, "%s: %llu keys", r->path, (unsigned long long)n);
    for (; f->n_keys < n; f->n_keys++)
        BT_TRY(take_key(r, &f->keys[f->n_keys]));
    qsort(f->keys, f->n_keys, sizeof(*f->keys), by_key);
    for (size_t i = 1; i < f->n_keys; i++)
        BT_REQUIRE(by_key(&f->keys[i - 1], &f->keys[i]) != 0, BT_ERR_FORMAT,
                   "%s: key %.*s: expected it once, found it twice", r->path,
                   (int)f->keys[i].name.n, f->keys[i].name.text);
out:
    return st;
}

static const entry *find_key(const file *f, const char *key)
{
    entry e = {
        .name = {key, strlen(key)}
    };

    return f->n_keys == 0 ? NULL : bsearch(&e, f->keys, f->n_keys, sizeof(e), by_key);
}

/* The key's value when it is there, of one of the kinds (a set of bits), else NULL. */
static bt_status get(const char *path, const file *f, const char *key, uint32_t kinds,
                     const char *expected, const entry **e_out)
{
    bt_status    st = BT_OK;
    const entry *e  = find_key(f, key);

    BT_REQUIRE(e == NULL || (kinds >> e->kind & 1) != 0, BT_ERR_FORMAT,
               "%s: key %s: expected %s, found %s", path, key, expected, KINDS[e->kind].name);
    *e_out = e;
out:
    return st;
}

static bool is_signed(kind k) { return k == I8 || k == I16 || k == I32 || k == I64; }

static bt_status whole(const char *path, const file *f, const char *key, uint32_t lo, uint32_t hi,
                       uint32_t *v_out)
{
    static const uint32_t WHOLE =
        1u << U8 | 1u << I8 | 1u << U16 | 1u << I16 | 1u << U32 | 1u << I32 | 1u << U64 | 1u << I64;
    bt_status    st = BT_OK;
    const entry *e  = NULL;
    uint32_t     bits;
    uint64_t     v;

    BT_TRY(get(path, f, key, WHOLE, "a whole number", &e));
    if (e == NULL) goto out;
    bits = KINDS[e->kind].bytes * 8;
    v    = number_at(e->at, bits / 8);
    BT_REQUIRE(!is_signed(e->kind) || v >> (bits - 1) == 0, BT_ERR_FORMAT,
               "%s: key %s: expected a number from %u to %u, found one below 0", path, key, lo, hi);
    BT_REQUIRE(v >= lo && v <= hi, BT_ERR_FORMAT,
               "%s: key %s: expected a number from %u to %u, found %llu", path, key, lo, hi,
               (unsigned long long)v);
    *v_out = (uint32_t)v;
out:
    return st;
}

bool bt_gguf_has(const bt_gguf *g, const char *key) { return find_key(&g->files[0], key) != NULL; }

bt_status bt_gguf_u32(const bt_gguf *g, const char *key, uint32_t lo, uint32_t hi, uint32_t *v_out)
{
    return whole(g->path, &g->files[0], key, lo, hi, v_out);
}

static double shortest(float f)
{
    char text[32];

    for (int digits = 6; digits <= 9; digits++) {
        snprintf(text, sizeof(text), "%.*g", digits, (double)f);
        if (strtof(text, NULL) == f) break;
    }
    return strtod(text, NULL);
}

bt_status bt_gguf_f64(const bt_gguf *g, const char *key, double lo, double hi, double *v_out)
{
    bt_status    st = BT_OK;
    const entry *e  = NULL;
    uint64_t     bits;
    double       v;

    BT_TRY(get(g->path, &g->files[0], key, 1u << F32 | 1u << F64, "a real number", &e));
    if (e == NULL) goto out;
    bits = number_at(e->at, KINDS[e->kind].bytes);
    if (e->kind == F32) {
        uint32_t half = (uint32_t)bits;
        float    f;

        memcpy(&f, &half, sizeof(f));
        v = shortest(f);
    } else {
        memcpy(&v, &bits, sizeof(v));
    }
    BT_REQUIRE(v >= lo && v <= hi, BT_ERR_FORMAT,
               "%s: key %s: expected a number from %g to %g, found %.9g", g->path, key, lo, hi, v);
    *v_out = v;
out:
    return st;
}

bt_status bt_gguf_bool(const bt_gguf *g, const char *key, bool *v_out)
{
    bt_status    st = BT_OK;
    const entry *e  = NULL;

    BT_TRY(get(g->path, &g->files[0], key, 1u << BOOL, "a bool", &e));
    if (e != NULL) *v_out = *e->at != 0;
out:
    return st;
}

/* Within what opening has checked. */
static bt_gguf_text next_text(const uint8_t **at)
{
    bt_gguf_text text = {(const char *)*at + 8, (size_t)number_at(*at, 8)};

    *at += 8 + text.n;
    return text;
}

bt_status bt_gguf_string(const bt_gguf *g, const char *key, bt_gguf_text *v_out)
{
    bt_status      st = BT_OK;
    const entry   *e  = NULL;
    const uint8_t *at;

    BT_TRY(get(g->path, &g->files[0], key, 1u << STRING, "a string", &e));
    if (e == NULL) goto out;
    at     = e->at;
    *v_out = next_text(&at);
out:
    return st;
}

static bt_status get_list(const bt_gguf *g, const char *key, const char *of, const entry **e_out)
{
    bt_status st = BT_OK;

    BT_TRY(get(g->path, &g->files[0], key, 1u << ARRAY, "a list", e_out));
    BT_REQUIRE(*e_out != NULL, BT_ERR_FORMAT, "%s: key %s: expected a list of %s, found nothing",
               g->path, key, of);
out:
    return st;
}

bt_status bt_gguf_strings(const bt_gguf *g, const char *key, bt_gguf_text **texts_out,
                          size_t *n_out)
{
    bt_status      st    = BT_OK;
    const entry   *e     = NULL;
    bt_gguf_text  *texts = NULL;
    const uint8_t *at;

    BT_TRY(get_list(g, key, "strings", &e));
    BT_REQUIRE(e->of == STRING, BT_ERR_FORMAT, "%s: key %s: expected a list of strings, found %s",
               g->path, key, KINDS[e->of].name);
    texts = bt_calloc((size_t)e->n, sizeof(*texts));
    BT_REQUIRE(texts != NULL, BT_ERR_NO_MEMORY, "%s: key %s: %llu strings", g->path, key,
               (unsigned long long)e->n);
    at = e->at;
    for (uint64_t i = 0; i < e->n; i++)
        texts[i] = next_text(&at);
    *texts_out = texts;
    *n_out     = (size_t)e->n;
out:
    return st;
}

bt_status bt_gguf_numbers(const bt_gguf *g, const char *key, size_t n_max, uint32_t *v_out,
                          size_t *n_out)
{
    bt_status    st = BT_OK;
    const entry *e  = NULL;

    BT_TRY(get_list(g, key, "whole numbers", &e));
    BT_REQUIRE((e->of == U32 || e->of == I32) && e->n <= n_max, BT_ERR_FORMAT,
               "%s: key %s: expected a list of at most %zu numbers of 32 bits, found %llu of %s",
               g->path, key, n_max, (unsigned long long)e->n, KINDS[e->of].name);
    for (uint64_t i = 0; i < e->n; i++)
        v_out[i] = (uint32_t)number_at(e->at + 4 * i, 4);
    *n_out = (size_t)e->n;
out:
    return st;
}

/* ---- tensors */

/* Bytes of the tensor's data, by type and dimensions. */
static bt_status size_tensor(const reader *r, bt_gguf_tensor *t)
{
    bt_status st = BT_OK;
    uint32_t  n_weights, n_bytes;
    uint64_t  n = 1, bytes = 0;
    bool      fits = true;

    BT_REQUIRE(bt_gguf_block(t->type, &n_weights, &n_bytes), BT_ERR_UNSUPPORTED,
               "%s: tensor %s: expected one of the types %s, found %u (%s)", r->path, t->name,
               bt_gguf_type_names(), t->type, bt_gguf_type_name(t->type));
    BT_REQUIRE(t->ne[0] % n_weights == 0, BT_ERR_FORMAT,
               "%s: tensor %s: expected rows of whole blocks of %u (%s), found %llu", r->path,
               t->name, n_weights, bt_gguf_type_name(t->type), (unsigned long long)t->ne[0]);
    for (int i = 0; i < BT_GGUF_MAX_DIMS; i++)
        fits = fits && !__builtin_mul_overflow(n, t->ne[i], &n);
    fits = fits && !__builtin_mul_overflow(n / n_weights, n_bytes, &bytes);
    BT_REQUIRE(fits && bytes <= r->f->bytes, BT_ERR_FORMAT,
               "%s: tensor %s: expected at most the file's %zu bytes, found %llu x %llu x %llu x "
               "%llu of type %s",
               r->path, t->name, r->f->bytes, (unsigned long long)t->ne[0],
               (unsigned long long)t->ne[1], (unsigned long long)t->ne[2],
               (unsigned long long)t->ne[3], bt_gguf_type_name(t->type));
    t->bytes = (size_t)bytes;
out:
    return st;
}

/* Its data field is the offset for now: where the data begins is known behind the table. */
static bt_status take_tensor(reader *r, bt_gguf_tensor *t)
{
    bt_status    st     = BT_OK;
    bt_gguf_text name   = {0};
    uint64_t     n_dims = 0, type = 0, offset = 0;

    BT_TRY(take_text(r, "name of a tensor", BT_GGUF_NAME_BYTES - 1, &name));
    memcpy(t->name, name.text, name.n);
    BT_TRY(take_number(r, "number of dimensions", 4, 1, BT_GGUF_MAX_DIMS, &n_dims));
    for (int i = 0; i < BT_GGUF_MAX_DIMS; i++)
        t->ne[i] = 1;
    for (uint64_t i = 0; i < n_dims; i++)
        BT_TRY(take_number(r, "a dimension", 8, 1, INT64_MAX, &t->ne[i]));
    BT_TRY(take_number(r, "type of a tensor", 4, 0, UINT32_MAX, &type));
    BT_TRY(take_number(r, "offset of a tensor", 8, 0, r->f->bytes, &offset));
    t->type = (uint32_t)type;
    t->data = (const uint8_t *)(uintptr_t)offset;
    BT_TRY(size_tensor(r, t));
out:
    return st;
}

/* From offsets to places; r is at the end of the table. */
static bt_status place_tensors(reader *r, bt_gguf_tensor *tensors, size_t n)
{
    bt_status st        = BT_OK;
    uint32_t  alignment = 32;
    size_t    at        = (size_t)(r->at - r->f->map), data_bytes;

    BT_TRY(whole(r->path, r->f, "general.alignment", 1, MAX_ALIGNMENT, &alignment));
    at         = (at + alignment - 1) / alignment * alignment;
    data_bytes = at < r->f->bytes ? r->f->bytes - at : 0;
    for (size_t i = 0; i < n; i++) {
        bt_gguf_tensor *t      = &tensors[i];
        size_t          offset = (size_t)(uintptr_t)t->data;

        BT_REQUIRE(offset % alignment == 0, BT_ERR_FORMAT,
                   "%s: tensor %s: expected an offset that %u divides, found %zu", r->path, t->name,
                   alignment, offset);
        BT_REQUIRE(offset <= data_bytes && t->bytes <= data_bytes - offset, BT_ERR_FORMAT,
                   "%s: tensor %s: expected %zu bytes at offset %zu, found %zu bytes of data in "
                   "all",
                   r->path, t->name, t->bytes, offset, data_bytes);
        t->data = r->f->map + at + offset;
    }
out:
    return st;
}

/* ---- files */

static bt_status add_file(bt_gguf *g, const char *path, file *f)
{
    bt_status       st      = BT_OK;
    reader          r       = {.path = path, .f = f};
    const uint8_t  *magic   = NULL;
    uint64_t        version = 0, n_tensors = 0, n_keys = 0;
    bt_gguf_tensor *grown;
    struct stat     info;

    BT_TRY(bt_map_regular(path, &f->map, &info));
    f->bytes = (size_t)info.st_size;
    BT_REQUIRE(f->bytes > 0, BT_ERR_FORMAT, "%s: expected a GGUF file, found an empty one", path);
    r.at = f->map;
    BT_TRY(take(&r, "the magic \"GGUF\"", 4, &magic));
    BT_REQUIRE(memcmp(magic, "GGUF", 4) == 0, BT_ERR_FORMAT,
               "%s: expected a GGUF file, found one that begins %02x %02x %02x %02x", path,
               magic[0], magic[1], magic[2], magic[3]);
    BT_TRY(take_number(&r, "version (of a little-endian file)", 4, 2, 3, &version));
    BT_TRY(take_number(&r, "number of tensors", 8, 0, MAX_TENSORS, &n_tensors));
    BT_TRY(take_number(&r, "number of keys", 8, 0, MAX_KEYS, &n_keys));
    BT_TRY(take_keys(&r, f, n_keys));
    BT_REQUIRE(n_tensors <= left(&r), BT_ERR_FORMAT,
               "%s: expected %llu tensors, found %zu bytes for them", path,
               (unsigned long long)n_tensors, left(&r));
    grown = bt_realloc(g->tensors, g->n + (size_t)n_tensors, sizeof(*grown));
    BT_REQUIRE(grown != NULL, BT_ERR_NO_MEMORY, "%s: %llu tensors", path,
               (unsigned long long)n_tensors);
    g->tensors = grown;
    memset(grown + g->n, 0, (size_t)n_tensors * sizeof(*grown));
    for (size_t i = 0; i < n_tensors; i++)
        BT_TRY(take_tensor(&r, &grown[g->n + i]));
    BT_TRY(place_tensors(&r, grown + g->n, (size_t)n_tensors));
    g->n += (size_t)n_tensors;
out:
    return st;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const bt_gguf_tensor *)a)->name, ((const bt_gguf_tensor *)b)->name);
}

static bt_status sort_tensors(bt_gguf *g)
{
    bt_status st = BT_OK;

    BT_REQUIRE(g->n > 0, BT_ERR_FORMAT, "%s: expected tensors, found none", g->path);
    qsort(g->tensors, g->n, sizeof(*g->tensors), by_name);
    for (size_t i = 1; i < g->n; i++)
        BT_REQUIRE(by_name(&g->tensors[i - 1], &g->tensors[i]) != 0, BT_ERR_FORMAT,
                   "%s: tensor %s: expected it once, found it twice", g->path, g->tensors[i].name);
out:
    return st;
}

/* The other files of a set, whose first is open. */
static bt_status add_splits(bt_gguf *g, uint32_t n)
{
    bt_status st = BT_OK;
    uint32_t  no = 0, count = 0, n_tensors = 0;
    char      tail[32], path[PATH_MAX];
    size_t    n_path = strlen(g->path), n_tail;

    n_tail = (size_t)snprintf(tail, sizeof(tail), "-00001-of-%05u.gguf", n);
    BT_TRY(bt_gguf_u32(g, "split.no", 0, MAX_FILES, &no));
    BT_REQUIRE(no == 0 && n_path > n_tail && strcmp(g->path + n_path - n_tail, tail) == 0,
               BT_ERR_INVALID_ARG,
               "%s: expected the first of %u files, NAME%s, found number %u: name that one, with "
               "the others beside it",
               g->path, n, tail, no + 1);
    for (uint32_t i = 1; i < n; i++) {
        BT_REQUIRE(snprintf(path, sizeof(path), "%.*s-%05u-of-%05u.gguf", (int)(n_path - n_tail),
                            g->path, i + 1, n) < PATH_MAX,
                   BT_ERR_IO, "%s: expected a path under %d bytes", g->path, PATH_MAX);
        BT_TRY(add_file(g, path, &g->files[i]));
        BT_TRY(whole(path, &g->files[i], "split.no", 0, MAX_FILES, &no));
        BT_TRY(whole(path, &g->files[i], "split.count", 0, MAX_FILES, &count));
        BT_REQUIRE(no == i && count == n, BT_ERR_FORMAT,
                   "%s: expected file %u of %u, found number %u of %u", path, i + 1, n, no + 1,
                   count);
    }
    n_tensors = (uint32_t)g->n;
    BT_TRY(bt_gguf_u32(g, "split.tensors.count", 0, UINT32_MAX, &n_tensors));
    BT_REQUIRE(n_tensors == g->n, BT_ERR_FORMAT, "%s: expected %u tensors in all, found %zu",
               g->path, n_tensors, g->n);
out:
    return st;
}

bt_status bt_gguf_open(const char *path, bt_gguf **gguf_out)
{
    bt_status st      = BT_OK;
    bt_gguf  *g       = bt_calloc(1, sizeof(*g));
    uint32_t  n_files = 1;
    file     *grown;

    BT_REQUIRE(g != NULL, BT_ERR_NO_MEMORY, "%s", path);
    g->path  = bt_strdup(path);
    g->files = bt_calloc(1, sizeof(*g->files));
    BT_REQUIRE(g->path != NULL && g->files != NULL, BT_ERR_NO_MEMORY, "%s", path);
    g->n_files = 1; /* from here on close() sees it */
    BT_TRY(add_file(g, path, &g->files[0]));
    BT_TRY(bt_gguf_u32(g, "split.count", 0, MAX_FILES, &n_files));
    if (n_files > 1) {
        grown = bt_realloc(g->files, n_files, sizeof(*grown));
        BT_REQUIRE(grown != NULL, BT_ERR_NO_MEMORY, "%s: %u files", path, n_files);
        memset(grown + 1, 0, (n_files - 1) * sizeof(*grown));
        g->files   = grown;
        g->n_files = n_files;
        BT_TRY(add_splits(g, n_files));
    }
    BT_TRY(sort_tensors(g));
    *gguf_out = g;
    g         = NULL;
out:
    bt_gguf_close(g);
    return st;
}

void bt_gguf_close(bt_gguf *g)
{
    if (g == NULL) return;
    for (size_t i = 0; i < g->n_files; i++) {
        if (g->files[i].map != NULL) munmap(g->files[i].map, g->files[i].bytes);
        bt_free(g->files[i].keys);
    }
    bt_free(g->files);
    bt_free(g->tensors);
    bt_free(g->path);
    bt_free(g);
}

const char *bt_gguf_path(const bt_gguf *g) { return g->path; }

size_t bt_gguf_count(const bt_gguf *g) { return g->n; }

const bt_gguf_tensor *bt_gguf_at(const bt_gguf *g, size_t i)
{
    BT_ASSERT(i < g->n);
    return &g->tensors[i];
}

const bt_gguf_tensor *bt_gguf_find(const bt_gguf *g, const char *name)
{
    bt_gguf_tensor key;

    snprintf(key.name, sizeof(key.name), "%s", name);
    return bsearch(&key, g->tensors, g->n, sizeof(key), by_name);
}

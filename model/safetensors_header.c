#include "model/safetensors_header.h"

#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "model/json.h"

enum { NAME_BYTES = 160 };

/* In the order of the enumeration. */
static const struct {
    const char *name;
    uint32_t    bits;
} DTYPES[] = {
    {"BF16",    16},
    {"F32",     32},
    {"F16",     16},
    {"F8_E4M3", 8 },
    {"I32",     32},
    {"I64",     64},
    {"F64",     64},
    {"C64",     64},
    {"U64",     64},
    {"U32",     32},
    {"U16",     16},
    {"I16",     16},
    {"U8",      8 },
    {"I8",      8 },
    {"BOOL",    8 },
    {"F8_E5M2", 8 },
    {"F8_E8M0", 8 },
    {"F6_E2M3", 6 },
    {"F6_E3M2", 6 },
    {"F4",      4 },
};
_Static_assert(sizeof(DTYPES) / sizeof(DTYPES[0]) == BT_ST_N_DTYPES, "a name for each dtype");

const char *bt_st_dtype_name(bt_st_dtype dtype)
{
    return dtype < BT_ST_N_DTYPES ? DTYPES[dtype].name : NULL;
}

size_t bt_st_dtype_bytes(bt_st_dtype dtype)
{
    return dtype < BT_ST_N_DTYPES ? DTYPES[dtype].bits / 8 : 0;
}

bool bt_st_count_elems(uint32_t n_dims, const uint64_t *shape, uint64_t *n_out)
{
    uint64_t n        = 1;
    bool     overflow = false, empty = false;

    for (uint32_t i = 0; i < n_dims; i++) { /* [2^60, 2^60, 0] has no elements: not an overflow */
        empty    = empty || shape[i] == 0;
        overflow = __builtin_mul_overflow(n, shape[i], &n) || overflow;
    }
    *n_out = empty ? 0 : n;
    return empty || !overflow;
}

/* One header under scrutiny. */
typedef struct {
    const char *where;
    uint64_t    data_bytes; /* of the file, behind the JSON */
    bt_tensor  *tensors;    /* owned: [n] */
    uint64_t   *offsets;    /* owned: [n], then sorted together through `order` */
    uint32_t   *order;      /* owned: [n] tensor numbers by offset */
    size_t      n;
} header;

static bt_status parse_dtype(const header *h, const char *name, const json_t *v, bt_tensor *t,
                             uint32_t *bits_out)
{
    bt_status   st = BT_OK;
    const char *s  = json_is_string(v) ? json_string_value(v) : "";
    int         i  = 0;
    char        found[BT_JSON_SHOW_BYTES];

    while (i < BT_ST_N_DTYPES && strcmp(s, DTYPES[i].name) != 0)
        i++;
    BT_REQUIRE(i < BT_ST_N_DTYPES, BT_ERR_FORMAT,
               "%s: tensor %s: field dtype: expected BF16, F32, F8_E4M3 or another of the format, "
               "found %s",
               h->where, name, bt_json_show(v, found, sizeof(found)));
    t->dtype  = (bt_st_dtype)i;
    *bits_out = DTYPES[i].bits;
out:
    return st;
}

static bt_status parse_shape(const header *h, const char *name, const json_t *v, uint32_t bits,
                             bt_tensor *t)
{
    bt_status st = BT_OK;
    uint64_t  n_elems, n_bits;
    char      found[BT_JSON_SHOW_BYTES];

    BT_REQUIRE(json_is_array(v) && json_array_size(v) <= BT_MAX_TENSOR_DIMS, BT_ERR_FORMAT,
               "%s: tensor %s: field shape: expected a list of at most %d sizes, found %s",
               h->where, name, BT_MAX_TENSOR_DIMS, bt_json_show(v, found, sizeof(found)));
    t->n_dims = (uint32_t)json_array_size(v);
    for (uint32_t i = 0; i < t->n_dims; i++) {
        const json_t *d = json_array_get(v, i);

        BT_REQUIRE(json_is_integer(d) && json_integer_value(d) >= 0, BT_ERR_FORMAT,
                   "%s: tensor %s: field shape[%u]: expected a size, found %s", h->where, name, i,
                   bt_json_show(d, found, sizeof(found)));
        t->shape[i] = (uint64_t)json_integer_value(d);
    }
    BT_REQUIRE(bt_st_count_elems(t->n_dims, t->shape, &n_elems) &&
                   !__builtin_mul_overflow(n_elems, bits, &n_bits),
               BT_ERR_FORMAT,
               "%s: tensor %s: field shape: expected a size that fits 64 bits, "
               "found %s",
               h->where, name, bt_json_show(v, found, sizeof(found)));
    BT_REQUIRE(n_bits % 8 == 0, BT_ERR_FORMAT,
               "%s: tensor %s: field shape: expected whole bytes, found %llu elements of %u bits",
               h->where, name, (unsigned long long)n_elems, bits);
    t->bytes = (size_t)(n_bits / 8);
out:
    return st;
}

static bt_status parse_offsets(const header *h, const char *name, const json_t *v,
                               const bt_tensor *t, uint64_t *offset_out)
{
    bt_status     st    = BT_OK;
    const json_t *begin = json_array_get(v, 0), *end = json_array_get(v, 1);
    uint64_t      b, e;
    char          found[BT_JSON_SHOW_BYTES];

    BT_REQUIRE(json_array_size(v) == 2 && json_is_integer(begin) && json_is_integer(end) &&
                   json_integer_value(begin) >= 0 &&
                   json_integer_value(begin) <= json_integer_value(end),
               BT_ERR_FORMAT,
               "%s: tensor %s: field data_offsets: expected [begin, end] with begin <= end, found "
               "%s",
               h->where, name, bt_json_show(v, found, sizeof(found)));
    b = (uint64_t)json_integer_value(begin);
    e = (uint64_t)json_integer_value(end);
    BT_REQUIRE(e <= h->data_bytes, BT_ERR_FORMAT,
               "%s: tensor %s: field data_offsets: expected at most %llu (the file's data; is "
               "it cut short?), found %s",
               h->where, name, (unsigned long long)h->data_bytes,
               bt_json_show(v, found, sizeof(found)));
    BT_REQUIRE(e - b == t->bytes, BT_ERR_FORMAT,
               "%s: tensor %s: field data_offsets: expected %zu bytes by dtype and shape, found "
               "%llu",
               h->where, name, t->bytes, (unsigned long long)(e - b));
    *offset_out = b;
out:
    return st;
}

static bt_status parse_tensor(header *h, const char *name, const json_t *v)
{
    bt_status  st = BT_OK;
    bt_tensor *t  = &h->tensors[h->n];
    uint32_t   bits;
    char       label[NAME_BYTES], found[BT_JSON_SHOW_BYTES];

    bt_json_printable(name, label, sizeof(label));
    BT_REQUIRE(name[0] != '\0', BT_ERR_FORMAT,
               "%s: expected tensors with names, found an empty one", h->where);
    BT_REQUIRE(json_is_object(v), BT_ERR_FORMAT,
               "%s: tensor %s: expected {dtype, shape, data_offsets}, found %s", h->where, label,
               bt_json_show(v, found, sizeof(found)));
    t->name = name;
    BT_TRY(parse_dtype(h, label, json_object_get(v, "dtype"), t, &bits));
    BT_TRY(parse_shape(h, label, json_object_get(v, "shape"), bits, t));
    BT_TRY(parse_offsets(h, label, json_object_get(v, "data_offsets"), t, &h->offsets[h->n]));
    h->order[h->n] = (uint32_t)h->n;
    h->n++;
out:
    return st;
}

static int by_offset(const void *a, const void *b, void *ctx)
{
    const header *h = ctx;
    uint32_t      x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    if (h->offsets[x] != h->offsets[y]) return h->offsets[x] < h->offsets[y] ? -1 : 1;
    /* an empty tensor may stand at the start of the next one */
    return (h->tensors[x].bytes > h->tensors[y].bytes) -
           (h->tensors[x].bytes < h->tensors[y].bytes);
}

/* The tensors tile the data: no overlap, no hole, nothing behind. */
static bt_status check_tiling(header *h)
{
    bt_status st = BT_OK;
    uint64_t  at = 0;
    char      label[NAME_BYTES];

    qsort_r(h->order, h->n, sizeof(*h->order), by_offset, h);
    for (size_t i = 0; i < h->n; i++) {
        const bt_tensor *t = &h->tensors[h->order[i]];

        BT_REQUIRE(h->offsets[h->order[i]] == at, BT_ERR_FORMAT,
                   "%s: tensor %s: field data_offsets: expected to begin at %llu, where the tensor "
                   "before it ends, found %llu",
                   h->where, bt_json_printable(t->name, label, sizeof(label)),
                   (unsigned long long)at, (unsigned long long)h->offsets[h->order[i]]);
        at += t->bytes;
    }
    BT_REQUIRE(at == h->data_bytes, BT_ERR_FORMAT,
               "%s: expected %llu bytes of data by the header, found %llu", h->where,
               (unsigned long long)at, (unsigned long long)h->data_bytes);
out:
    return st;
}

static bt_status parse_members(header *h, json_t *json)
{
    bt_status   st = BT_OK;
    size_t      n  = json_object_size(json);
    const char *name;
    json_t     *v;
    char        found[BT_JSON_SHOW_BYTES];

    h->tensors = bt_calloc(n, sizeof(*h->tensors));
    h->offsets = bt_calloc(n, sizeof(*h->offsets));
    h->order   = bt_calloc(n, sizeof(*h->order));
    BT_REQUIRE(h->tensors != NULL && h->offsets != NULL && h->order != NULL, BT_ERR_NO_MEMORY,
               "%s: %zu tensors", h->where, n);
    json_object_foreach(json, name, v)
    {
        if (strcmp(name, "__metadata__") != 0) {
            BT_TRY(parse_tensor(h, name, v));
        } else {
            BT_REQUIRE(json_is_object(v), BT_ERR_FORMAT,
                       "%s: field __metadata__: expected an object, found %s", h->where,
                       bt_json_show(v, found, sizeof(found)));
        }
    }
out:
    return st;
}

bt_status bt_safetensors_parse_header(const char *where, const char *json_text, size_t n,
                                      uint64_t file_bytes, bt_st_header_fn each, void *ctx)
{
    bt_status st   = BT_OK;
    json_t   *json = NULL;
    header    h    = {.where = where};
    char      found[BT_JSON_SHOW_BYTES];

    BT_REQUIRE(n <= BT_ST_MAX_HEADER_BYTES && file_bytes >= BT_ST_LENGTH_BYTES &&
                   n <= file_bytes - BT_ST_LENGTH_BYTES,
               BT_ERR_FORMAT,
               "%s: expected a header of at most %d bytes within the file's %llu, found %zu", where,
               BT_ST_MAX_HEADER_BYTES, (unsigned long long)file_bytes, n);
    h.data_bytes = file_bytes - BT_ST_LENGTH_BYTES - n;
    BT_TRY(bt_json_parse(where, json_text, n, &json));
    BT_REQUIRE(json_is_object(json), BT_ERR_FORMAT, "%s: expected a header object, found %s", where,
               bt_json_show(json, found, sizeof(found)));
    BT_TRY(parse_members(&h, json));
    BT_TRY(check_tiling(&h));
    for (size_t i = 0; i < h.n; i++)
        BT_TRY(each(ctx, &h.tensors[i], h.offsets[i]));
out:
    bt_free(h.order);
    bt_free(h.offsets);
    bt_free(h.tensors);
    json_decref(json);
    return st;
}

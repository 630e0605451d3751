#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/alloc.h"
#include "model/json.h"
#include "model/safetensors.h"
#include "model/safetensors_header.h"

/* Widest elements first, so that every tensor is aligned to its element. */
static int by_width(const void *a, const void *b)
{
    const bt_tensor *x = *(const bt_tensor *const *)a, *y = *(const bt_tensor *const *)b;
    size_t           wx = bt_st_dtype_bytes(x->dtype), wy = bt_st_dtype_bytes(y->dtype);

    return wx != wy ? (wx < wy) - (wx > wy) : strcmp(x->name, y->name);
}

static bt_status describe(const char *path, const bt_tensor *t, uint64_t begin, json_t *header)
{
    bt_status st    = BT_OK;
    json_t   *shape = json_array();
    uint64_t  n     = 0;

    BT_REQUIRE(bt_st_dtype_bytes(t->dtype) != 0 && t->n_dims <= BT_MAX_TENSOR_DIMS,
               BT_ERR_INVALID_ARG,
               "%s: tensor %s: expected a dtype of whole bytes and at most %d "
               "dimensions",
               path, t->name, BT_MAX_TENSOR_DIMS);
    BT_REQUIRE(bt_st_count_elems(t->n_dims, t->shape, &n) && n <= SIZE_MAX / 8 &&
                   n * bt_st_dtype_bytes(t->dtype) == t->bytes,
               BT_ERR_INVALID_ARG,
               "%s: tensor %s: expected %llu elements of %zu bytes, found %zu "
               "bytes",
               path, t->name, (unsigned long long)n, bt_st_dtype_bytes(t->dtype), t->bytes);
    BT_REQUIRE(json_object_get(header, t->name) == NULL, BT_ERR_INVALID_ARG,
               "%s: expected distinct names, found %s twice", path, t->name);
    for (uint32_t i = 0; i < t->n_dims; i++)
        BT_REQUIRE(json_array_append_new(shape, json_integer((json_int_t)t->shape[i])) == 0,
                   BT_ERR_NO_MEMORY, "%s: header", path);
    BT_REQUIRE(
        json_object_set_new(header, t->name,
                            json_pack("{s:s, s:O, s:[I, I]}", "dtype", bt_st_dtype_name(t->dtype),
                                      "shape", shape, "data_offsets", (json_int_t)begin,
                                      (json_int_t)(begin + t->bytes))) == 0,
        BT_ERR_NO_MEMORY, "%s: tensor %s: out of memory, or its name is not UTF-8", path, t->name);
out:
    json_decref(shape);
    return st;
}

static bt_status put(FILE *f, const char *path, const void *data, size_t bytes)
{
    bt_status st = BT_OK;

    BT_REQUIRE(bytes == 0 || fwrite(data, 1, bytes, f) == bytes, BT_ERR_IO, "%s: %s", path,
               strerror(errno));
out:
    return st;
}

/* The length, the JSON, blanks up to a multiple of 8. */
static bt_status put_header(FILE *f, const char *path, const json_t *header)
{
    bt_status st   = BT_OK;
    char     *text = json_dumps(header, JSON_COMPACT | JSON_ENSURE_ASCII);
    size_t    n, padded;
    uint8_t   length[BT_ST_LENGTH_BYTES];

    BT_REQUIRE(text != NULL, BT_ERR_NO_MEMORY, "%s: header", path);
    n      = strlen(text);
    padded = (n + 7) / 8 * 8;
    BT_REQUIRE(padded <= BT_ST_MAX_HEADER_BYTES, BT_ERR_INVALID_ARG,
               "%s: expected a header of at most %d bytes, found %zu", path, BT_ST_MAX_HEADER_BYTES,
               padded);
    for (int i = 0; i < BT_ST_LENGTH_BYTES; i++)
        length[i] = (uint8_t)(padded >> 8 * i);
    BT_TRY(put(f, path, length, sizeof(length)));
    BT_TRY(put(f, path, text, n));
    BT_TRY(put(f, path, "       ", padded - n));
out:
    free(text); /* jansson's own */
    return st;
}

static bt_status put_file(const char *path, const char *mode, const json_t *header, size_t n,
                          const bt_tensor *const *order)
{
    bt_status st = BT_OK;
    FILE     *f  = fopen(path, mode);
    int       closed;

    BT_REQUIRE(f != NULL, BT_ERR_IO, "%s: %s", path, strerror(errno));
    BT_TRY(put_header(f, path, header));
    for (size_t i = 0; i < n; i++)
        BT_TRY(put(f, path, order[i]->data, order[i]->bytes));
    closed = fclose(f);
    f      = NULL;
    BT_REQUIRE(closed == 0, BT_ERR_IO, "%s: %s", path, strerror(errno));
out:
    if (f != NULL) fclose(f);
    return st;
}

bt_status bt_safetensors_write(const char *path, size_t n, const bt_tensor *tensors)
{
    bt_status         st     = BT_OK;
    json_t           *header = json_object();
    const bt_tensor **order  = bt_calloc(n, sizeof(*order));
    uint64_t          at     = 0;
    bool              made   = false;
    struct stat       info;
    char              part[PATH_MAX];

    BT_REQUIRE(header != NULL && order != NULL, BT_ERR_NO_MEMORY, "%s: %zu tensors", path, n);
    for (size_t i = 0; i < n; i++)
        order[i] = &tensors[i];
    qsort(order, n, sizeof(*order), by_width);
    for (size_t i = 0; i < n; i++) {
        BT_TRY(describe(path, order[i], at, header));
        at += order[i]->bytes;
    }
    BT_REQUIRE(snprintf(part, sizeof(part), "%s.part-%ld", path, (long)getpid()) < PATH_MAX,
               BT_ERR_IO, "%s: expected a path under %d bytes", path, PATH_MAX - 32);
    /* No rename over a pipe, a device, or a link, as /dev/stdout is one to whatever it is. */
    if (lstat(path, &info) == 0 && !S_ISREG(info.st_mode)) {
        BT_TRY(put_file(path, "wb", header, n, order));
        goto out;
    }
    /* A reader never sees half a file.  What is there is of a process that had this number, or a
     * link that somebody made, which is not to be followed. */
    made = true;
    unlink(part);
    BT_TRY(put_file(part, "wbx", header, n, order));
    BT_REQUIRE(rename(part, path) == 0, BT_ERR_IO, "%s: %s", path, strerror(errno));
out:
    if (st != BT_OK && made) unlink(part);
    bt_free(order);
    json_decref(header);
    return st;
}

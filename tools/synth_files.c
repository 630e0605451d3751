#include "tools/synth_files.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/alloc.h"

enum { CHUNK_ELEMS = 1 << 20 };

typedef struct {
    const bt_synth_job *job;
    uint32_t            n_files;
    uint64_t            done, total;
    void               *chunk; /* [CHUNK_ELEMS] of 4 bytes; of I64 there are two at a time */
    json_t             *files; /* tensor -> file */
} writer;

uint64_t bt_synth_total_bytes(const bt_synth_list *list)
{
    uint64_t bytes = 0;

    for (size_t i = 0; i < list->n; i++)
        bytes += bt_synth_bytes(&list->tensors[i]);
    return bytes;
}

/* Where the file that starts with tensor `first` ends. */
static size_t end_of_file(const bt_synth_job *job, size_t first)
{
    uint64_t bytes = bt_synth_bytes(&job->list->tensors[first]);
    size_t   i     = first + 1;

    while (i < job->list->n && bytes + bt_synth_bytes(&job->list->tensors[i]) <= job->file_bytes)
        bytes += bt_synth_bytes(&job->list->tensors[i++]);
    return i;
}

uint32_t bt_synth_n_files(const bt_synth_job *job)
{
    uint32_t n = 0;

    for (size_t i = 0; i < job->list->n; i = end_of_file(job, i))
        n++;
    return n;
}

static void name_file(uint32_t file, uint32_t n_files, char name[48])
{
    if (n_files == 1)
        snprintf(name, 48, "model.safetensors");
    else
        snprintf(name, 48, "model-%05u-of-%05u.safetensors", file + 1, n_files);
}

static bt_status put(int fd, const char *path, const void *data, size_t bytes)
{
    bt_status   st = BT_OK;
    const char *at = data;

    while (bytes != 0) {
        ssize_t n = write(fd, at, bytes);

        if (n < 0 && errno == EINTR) continue;
        BT_REQUIRE(n > 0, BT_ERR_IO, "%s: %s", path, strerror(errno));
        at += n;
        bytes -= (size_t)n;
    }
out:
    return st;
}

/* Length, JSON, blanks to a multiple of 64. */
static bt_status put_header(const writer *w, int fd, const char *path, size_t first, size_t end)
{
    bt_status st     = BT_OK;
    json_t   *header = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
    char     *text   = NULL;
    uint64_t  at     = 0;
    char      blanks[64];
    uint8_t   length[8];
    size_t    n, padded;

    for (size_t i = first; i < end; i++) {
        const bt_synth_tensor *t     = &w->job->list->tensors[i];
        json_t                *shape = json_array();
        uint64_t               to    = at + bt_synth_bytes(t);

        for (uint32_t d = 0; d < t->n_dims; d++)
            json_array_append_new(shape, json_integer((json_int_t)t->shape[d]));
        json_object_set_new(header, t->name,
                            json_pack("{s:s, s:o, s:[I, I]}", "dtype", bt_st_dtype_name(t->dtype),
                                      "shape", shape, "data_offsets", (json_int_t)at,
                                      (json_int_t)to));
        at = to;
    }
    text = json_dumps(header, JSON_COMPACT);
    BT_REQUIRE(text != NULL && json_object_size(header) == end - first + 1, BT_ERR_NO_MEMORY,
               "%s: the header", path);
    n      = strlen(text);
    padded = (8 + n + 63) / 64 * 64 - 8;
    memset(blanks, ' ', sizeof(blanks));
    for (int i = 0; i < 8; i++)
        length[i] = (uint8_t)((uint64_t)padded >> 8 * i);
    BT_TRY(put(fd, path, length, sizeof(length)));
    BT_TRY(put(fd, path, text, n));
    BT_TRY(put(fd, path, blanks, padded - n));
out:
    free(text); /* jansson's own */
    json_decref(header);
    return st;
}

static bt_status put_tensor(writer *w, int fd, const char *path, size_t i)
{
    bt_status              st    = BT_OK;
    const bt_synth_job    *job   = w->job;
    const bt_synth_tensor *t     = &job->list->tensors[i];
    uint64_t               n     = t->shape[0] * t->shape[1];
    size_t                 width = bt_st_dtype_bytes(t->dtype);

    for (uint64_t at = 0, part; at < n; at += part) {
        part = n - at < CHUNK_ELEMS ? n - at : CHUNK_ELEMS;
        if (*job->stop != 0) return BT_ERR_CANCELLED;
        job->fill(job->fill_ctx, i, at, part, w->chunk);
        BT_TRY(put(fd, path, w->chunk, part * width));
        w->done += part * width;
        bt_out_show_progress(job->progress, w->done, w->total);
    }
out:
    return st;
}

static bt_status write_file(writer *w, const char *name, size_t first, size_t end)
{
    bt_status st = BT_OK;
    int       fd = -1, closed;
    char      path[PATH_MAX];

    snprintf(path, sizeof(path), "%s/%s", w->job->dir, name);
    fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    BT_REQUIRE(fd >= 0, BT_ERR_IO, "%s: %s", path, strerror(errno));
    BT_TRY(put_header(w, fd, path, first, end));
    for (size_t i = first; i < end; i++) {
        const bt_synth_tensor *t = &w->job->list->tensors[i];

        BT_TRY(put_tensor(w, fd, path, i));
        BT_REQUIRE(json_object_set_new(w->files, t->name, json_string(name)) == 0, BT_ERR_NO_MEMORY,
                   "%s: the index", path);
    }
    closed = close(fd);
    fd     = -1;
    BT_REQUIRE(closed == 0, BT_ERR_IO, "%s: %s", path, strerror(errno));
out:
    if (fd >= 0) close(fd);
    return st;
}

static bt_status write_index(writer *w)
{
    bt_status st    = BT_OK;
    json_t   *index = json_pack("{s:{s:I}, s:O}", "metadata", "total_size", (json_int_t)w->total,
                                "weight_map", w->files);
    char      path[PATH_MAX];

    snprintf(path, sizeof(path), "%s/model.safetensors.index.json", w->job->dir);
    BT_REQUIRE(index != NULL, BT_ERR_NO_MEMORY, "%s", path);
    BT_REQUIRE(json_dump_file(index, path, JSON_INDENT(1)) == 0, BT_ERR_IO, "%s: %s", path,
               strerror(errno));
out:
    json_decref(index);
    return st;
}

bt_status bt_synth_write(const bt_synth_job *job)
{
    bt_status st = BT_OK;
    writer    w  = {.job     = job,
                    .n_files = bt_synth_n_files(job),
                    .total   = bt_synth_total_bytes(job->list),
                    .chunk   = bt_calloc_aligned(CHUNK_ELEMS, sizeof(float)),
                    .files   = json_object()};
    uint32_t  n  = 0;
    char      name[48];

    BT_REQUIRE(w.chunk != NULL && w.files != NULL, BT_ERR_NO_MEMORY, "%s", job->dir);
    for (size_t i = 0, end; i < job->list->n; i = end) {
        end = end_of_file(job, i);
        name_file(n++, w.n_files, name);
        BT_TRY(write_file(&w, name, i, end));
    }
    if (w.n_files > 1) BT_TRY(write_index(&w)); /* last: without it there is no model */
out:
    bt_free(w.chunk);
    json_decref(w.files);
    return st;
}

static void remove_one(const char *dir, const char *name)
{
    char path[PATH_MAX];

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    unlink(path);
}

void bt_synth_remove(const bt_synth_job *job)
{
    uint32_t n = bt_synth_n_files(job);
    char     name[48];

    remove_one(job->dir, "config.json");
    remove_one(job->dir, "model.safetensors.index.json");
    for (uint32_t i = 0; i < n; i++) {
        name_file(i, n, name);
        remove_one(job->dir, name);
    }
}

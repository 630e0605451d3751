/* model/weights_tensor.c - tensors of a checkpoint as the device's matrices and vectors. */
#include <stdarg.h>
#include <stdio.h>

#include "core/alloc.h"
#include "device/cpu/linear.h"
#include "model/weights_loader.h"

/* ---- rows for the device's packing ---- */

void bt_source_row(void *ctx, uint32_t n, bt_bf16 *row)
{
    const bt_row_source *s = ctx;

    bt_matrix_row(&s->part[n / s->n], s->first + n % s->n, row);
}

static void source_fp8_row(void *ctx, uint32_t n, uint8_t *row, float *scale)
{
    const bt_row_source *s = ctx;

    bt_matrix_fp8_row(&s->part[n / s->n], s->first + n % s->n, row, scale);
}

static void source_int4_row(void *ctx, uint32_t n, uint32_t *row, bt_bf16 *scale)
{
    const bt_row_source *s = ctx;

    bt_matrix_int4_row(&s->part[n / s->n], s->first + n % s->n, row, scale);
}

/* What its n rows are packed as.  They stay narrow when all of them are alike, and e4m3 when also
 * those that the device wants to have the same scales have: scales hold for 128 rows of a tensor.
 */
static bt_weight_kind packed_kind(const bt_row_source *s, uint32_t n, uint32_t fp8_rows)
{
    bt_weight_kind kind = s->part[0].kind;

    if (n > s->n && s->part[1].kind != kind) return BT_WEIGHT_BF16;
    if (kind == BT_WEIGHT_FP8 && (s->first % fp8_rows != 0 || (n > s->n && s->n % fp8_rows != 0)))
        return BT_WEIGHT_BF16;
    return kind;
}

/* The same on this device, of any rows. */
static bt_weight_kind kind_of(const bt_loader *l, bt_linear_row_fn rows, const bt_row_source *s,
                              uint32_t n, uint32_t k)
{
    const bt_device *dev = l->opt->dev;
    bt_weight_kind   kind;

    if (rows != bt_source_row || s->widened) return BT_WEIGHT_BF16;
    kind = packed_kind(s, n, dev->fp8_rows);
    if (kind != BT_WEIGHT_BF16 || !l->few_rows || !dev->host_memory || k > BT_CPU_BF12_K)
        return kind;
    return bt_device_cpu_table(dev)->bf12 ? BT_WEIGHT_BF12 : kind;
}

void bt_source_column(void *ctx, uint32_t n, bt_bf16 *row)
{
    const bt_row_source *s = ctx;

    bt_matrix_column(&s->part[0], n, s->first, s->n, row);
}

/* Rows that are packed into the store: those who wait for a large matrix see it go on. */
typedef struct {
    bt_store        *store;
    bt_linear_row_fn rows;
    bt_row_source   *source;
} store_source;

enum { ROWS_PER_BEAT = 64 }; /* all threads of the pool beat on one word */

static void store_row(void *ctx, uint32_t n, bt_bf16 *row)
{
    const store_source *s = ctx;

    if (n % ROWS_PER_BEAT == 0) bt_store_beat(s->store);
    s->rows(s->source, n, row);
}

static void store_int4_row(void *ctx, uint32_t n, uint32_t *row, bt_bf16 *scale)
{
    const store_source *s = ctx;

    if (n % ROWS_PER_BEAT == 0) bt_store_beat(s->store);
    source_int4_row(s->source, n, row, scale);
}

static void store_fp8_row(void *ctx, uint32_t n, uint8_t *row, float *scale)
{
    const store_source *s = ctx;

    if (n % ROWS_PER_BEAT == 0) bt_store_beat(s->store);
    source_fp8_row(s->source, n, row, scale);
}

/* ---- one tensor ---- */

const char *bt_loader_name(bt_loader *l, const char *format, ...)
{
    va_list ap;

    va_start(ap, format);
    vsnprintf(l->name, sizeof(l->name), format, ap);
    va_end(ap);
    return l->name;
}

static void say_progress(void *ctx)
{
    const bt_loader *l = ctx;

    if (l->opt->progress != NULL)
        l->opt->progress(l->opt->progress_ctx, l->done_bytes, l->total_bytes);
}

void bt_loader_count(bt_loader *l, const bt_matrix *m)
{
    const bt_tensor *all[] = {m->t, m->scale, m->shape};

    for (size_t i = 0; l->dry && l->used != NULL && i < sizeof(all) / sizeof(all[0]); i++)
        if (all[i] != NULL) l->used[all[i] - bt_safetensors_at(l->st, 0)] = true;
    if (l->dry) {
        l->total_bytes += m->t->bytes;
        return;
    }
    if (!l->again) l->done_bytes += m->t->bytes;
    bt_safetensors_release(m->t); /* else the model is in memory twice */
    if (m->scale != NULL) bt_safetensors_release(m->scale);
    say_progress(l);
}

bt_status bt_loader_find(const bt_loader *l, const char *name, uint32_t n, uint32_t k,
                         bt_matrix *matrix_out)
{
    bt_status st = BT_OK;

    BT_TRY(bt_matrix_find(l->st, name, n, k, matrix_out));
    BT_REQUIRE(matrix_out->kind != BT_WEIGHT_INT4 || l->cfg->int4, BT_ERR_UNSUPPORTED,
               "%s: tensor %s: expected none in 4 bits, since config.json has no "
               "quantization_config of compressed-tensors, found one",
               matrix_out->t->file, matrix_out->t->name);
    BT_REQUIRE(!matrix_out->one_scale || l->cfg->fp8_one_scale, BT_ERR_UNSUPPORTED,
               "%s: tensor %s: expected scales of 128x128 blocks, since config.json has no "
               "quantization_config with a weight_block_size of null, found one of the whole",
               matrix_out->scale->file, matrix_out->scale->name);
    if (!l->dry && !l->again) BT_TRY(bt_matrix_check_values(matrix_out));
out:
    return st;
}

void bt_loader_entry_name(const char *name, bt_weight_kind kind, char out[BT_ENTRY_NAME])
{
    snprintf(out, BT_ENTRY_NAME, "%s%s", name, kind == BT_WEIGHT_BF12 ? " in 12 bits" : "");
}

bt_store_claim bt_loader_take_shared(bt_loader *l, const char *name, size_t bytes,
                                     bt_store_entry *entry)
{
    bt_store      *store = l->w->store;
    bt_store_claim got   = BT_STORE_FULL;

    *entry = (bt_store_entry){.data = bt_packed_find(l->w->packed, name, bytes)};
    if (entry->data != NULL) return BT_STORE_WHOLE;
    if (store == NULL) return got;
    got = l->again ? bt_store_await(store, name, bytes, say_progress, l, entry)
                   : bt_store_take(store, name, bytes, entry);
    if (got == BT_STORE_BUSY) l->n_busy++;
    return got;
}

/* A matrix of this rank alone. */
static bt_status create_own(bt_device *dev, bt_weight_kind kind, uint32_t n, uint32_t k,
                            bt_linear_row_fn rows, bt_row_source *source, bt_linear **linear_out)
{
    switch (kind) {
    case BT_WEIGHT_FP8:
        return bt_device_linear_create_fp8(dev, n, k, source_fp8_row, source, linear_out);
    case BT_WEIGHT_INT4:
        return bt_device_linear_create_int4(dev, n, k, source_int4_row, source, linear_out);
    case BT_WEIGHT_BF12:
        return bt_cpu_linear_create(
            dev, n, k, (bt_cpu_rows){.kind = kind, .bf16 = rows, .ctx = source}, linear_out);
    default: return bt_device_linear_create(dev, n, k, rows, source, linear_out);
    }
}

/* A matrix over the entry, which this rank fills if it is its own to fill; of 12 bits NULL, and the
 * entry given up, where they are not enough. */
static bt_status over_entry(bt_loader *l, bt_store_claim got, bt_store_entry *entry,
                            const char *name, bt_weight_kind kind, uint32_t n, uint32_t k,
                            bt_linear_row_fn rows, bt_row_source *source, bt_linear **linear_out)
{
    bt_status st    = BT_OK;
    size_t    bytes = bt_cpu_linear_bytes(n, k, kind);

    if (got == BT_STORE_MINE) {
        store_source in   = {l->w->store, rows, source};
        bt_cpu_rows  from = {kind, store_row, store_fp8_row, store_int4_row, &in};

        BT_TRY(bt_cpu_linear_pack(l->opt->dev, n, k, from, entry->fill));
        bt_store_commit(l->w->store, entry);
    }
    if (!bt_cpu_linear_is_whole(n, k, kind, entry->data)) {
        if (l->w->store != NULL) bt_store_drop(l->w->store, name);
        goto out;
    }
    bt_bring_weights(entry->data, bytes);
    BT_TRY(bt_cpu_linear_over(n, k, kind, entry->data, linear_out));
    l->w->shared_bytes += bytes;
out:
    return st;
}

bt_status bt_loader_pack(bt_loader *l, const char *what, uint32_t n, uint32_t k,
                         bt_linear_row_fn rows, bt_row_source *source, bt_linear **linear_out)
{
    bt_status      st   = BT_OK;
    bt_weight_kind kind = kind_of(l, rows, source, n, k);

    if (*linear_out != NULL) goto out;                   /* of the walk before */
    for (; *linear_out == NULL; kind = BT_WEIGHT_BF16) { /* again where 12 bits are not enough */
        bt_store_entry entry = {0};
        bt_store_claim got;
        char           name[BT_ENTRY_NAME];

        bt_loader_entry_name(what, kind, name);
        got = bt_loader_take_shared(l, name, bt_cpu_linear_bytes(n, k, kind), &entry);
        if (got == BT_STORE_BUSY) goto out;
        if (got == BT_STORE_FULL)
            BT_TRY(create_own(l->opt->dev, kind, n, k, rows, source, linear_out));
        else
            BT_TRY(over_entry(l, got, &entry, name, kind, n, k, rows, source, linear_out));
    }
    l->w->bytes += bt_linear_bytes(*linear_out);
out:
    return st;
}

bt_status bt_loader_matrix(bt_loader *l, uint32_t n, uint32_t k, const char *name,
                           bt_linear **linear_out)
{
    bt_row_source source = {.first = 0, .n = n};
    bt_status     st     = BT_OK;

    BT_TRY(bt_loader_find(l, name, n, k, &source.part[0]));
    if (!l->dry) BT_TRY(bt_loader_pack(l, name, n, k, bt_source_row, &source, linear_out));
    bt_loader_count(l, &source.part[0]);
out:
    return st;
}

bt_status bt_loader_mlp(bt_loader *l, uint32_t dim, const char *prefix, bt_linear **gate_up_out,
                        bt_linear **down_out)
{
    uint32_t      hidden = l->cfg->hidden;
    bt_row_source source = {.first = 0, .n = dim};
    bt_status     st     = BT_OK;
    char          name[sizeof(l->name) + 32];

    snprintf(name, sizeof(name), "%s.gate_proj.weight", prefix);
    BT_TRY(bt_loader_find(l, name, dim, hidden, &source.part[0]));
    snprintf(name, sizeof(name), "%s.up_proj.weight", prefix);
    BT_TRY(bt_loader_find(l, name, dim, hidden, &source.part[1]));
    if (!l->dry)
        BT_TRY(bt_loader_pack(l, name, 2 * dim, hidden, bt_source_row, &source, gate_up_out));
    bt_loader_count(l, &source.part[0]);
    bt_loader_count(l, &source.part[1]);
    snprintf(name, sizeof(name), "%s.down_proj.weight", prefix);
    BT_TRY(bt_loader_matrix(l, hidden, dim, name, down_out));
out:
    return st;
}

bt_status bt_loader_vector(bt_loader *l, uint32_t n, const char *name, bt_bf16 **vector_out)
{
    bt_bf16  *host = NULL;
    bt_status st   = BT_OK;
    bt_matrix v;

    BT_TRY(bt_vector_find(l->st, name, n, &v));
    if (!l->dry && !l->again) {
        host = bt_calloc(n, sizeof(*host));
        BT_REQUIRE(host != NULL, BT_ERR_NO_MEMORY, "%s", name);
        for (uint32_t i = 0; i < n; i++)
            host[i] = bt_bf16_from_f32(bt_matrix_element(&v, i));
        BT_TRY(bt_device_alloc_array(l->opt->dev, n, sizeof(*host), &l->w->bytes, vector_out));
        BT_TRY(bt_device_upload(l->opt->dev, *vector_out, host, n * sizeof(*host)));
    }
    bt_loader_count(l, &v);
out:
    bt_free(host);
    return st;
}

#include "device/cpu/linear.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "core/alloc.h"
#include "core/minmax.h"

/* Rows of scratch lie a line further apart than their length, which is often a power of two: they
 * would compete for one set of the cache. */
enum { BLOCK_ROWS = 16, GAP = 32 };

typedef struct {
    const bt_cpu_row_kernels *kernels;
    uint32_t                  n, k;
    void                     *packed;
    bt_cpu_rows               rows;
    void                     *scratch; /* [n_threads][BLOCK_ROWS][k + GAP] weights, and of bf12 as
                                          many as it is packed from */
    void *scales;                      /* of e4m3: [n_threads][2][ld]: of a row, and of the first;
                                          of int4: [n_threads][k / 32] */
    atomic_uint n_strange; /* scales that are none, or not the same for a block's rows; of bf12
                              blocks that do not fit */
} pack_job;

/* Where the columns from n0 on are, and what stands beside them. */
static void *columns_at(void *packed, bt_weight_kind kind, uint32_t k, uint32_t n0)
{
    return (char *)packed + bt_cpu_weight_bytes(kind, bt_cpu_packed_elems(n0, k));
}
static void *side_at(void *packed, bt_weight_kind kind, uint32_t n, uint32_t k, uint32_t block)
{
    return (char *)columns_at(packed, kind, k, n) + block * bt_cpu_side_bytes(kind, k);
}

/* 16 rows in bf16, by way of scratch. */
static void pack_rows(const pack_job *job, uint32_t n0, bt_bf16 *scratch, bt_bf16 *packed)
{
    uint32_t n  = bt_min_u32(job->n - n0, BLOCK_ROWS);
    size_t   ld = job->k + GAP;

    for (uint32_t j = 0; j < n; j++)
        job->rows.bf16(job->rows.ctx, n0 + j, scratch + j * ld);
    job->kernels->pack_rows(scratch, ld, n, job->k, packed);
}

static void pack_block(void *ctx, uint32_t chunk, uint32_t member)
{
    const pack_job *job = ctx;
    uint32_t        n0  = chunk * BLOCK_ROWS;

    pack_rows(job, n0, (bt_bf16 *)job->scratch + member * BLOCK_ROWS * ((size_t)job->k + GAP),
              columns_at(job->packed, BT_WEIGHT_BF16, job->k, n0));
}

static void pack_bf12_block(void *ctx, uint32_t chunk, uint32_t member)
{
    pack_job *job     = ctx;
    size_t    elems   = BLOCK_ROWS * (bt_cpu_pad(job->k, 32) + (size_t)GAP);
    bt_bf16  *scratch = (bt_bf16 *)job->scratch + member * 2 * elems, *packed = scratch + elems;

    pack_rows(job, chunk * BLOCK_ROWS, scratch, packed);
    if (!job->kernels->pack_bf12(
            packed, job->k, columns_at(job->packed, BT_WEIGHT_BF12, job->k, chunk * BLOCK_ROWS),
            side_at(job->packed, BT_WEIGHT_BF12, job->n, job->k, chunk)))
        atomic_fetch_add(&job->n_strange, 1);
}

/* 16 rows of e4m3 in the order of kernels.h: two k of a row follow each other, so they go as one.
 */
static void pack_bytes(const uint8_t *rows, size_t ld, uint32_t k, uint8_t *packed)
{
    for (uint32_t k0 = 0; k0 < bt_cpu_pad(k, 32); k0 += 4)
        for (uint32_t l = 0; l < 4; l++)
            for (uint32_t h = 0; h < 2; h++)
                for (uint32_t j = 0; j < 4; j++, packed += 2)
                    memcpy(packed, rows + (4 * l + j) * ld + k0 + 2 * h, 2);
}

static void pack_fp8_block(void *ctx, uint32_t chunk, uint32_t member)
{
    pack_job *job = ctx;
    uint32_t  k = job->k, n0 = chunk * BLOCK_ROWS;
    uint32_t  n  = bt_min_u32(job->n - n0, BLOCK_ROWS);
    size_t    ld = bt_cpu_pad(k, 32) + GAP, n_scales = bt_cpu_scale_ld(k);
    uint8_t  *block = (uint8_t *)job->scratch + member * BLOCK_ROWS * ld;
    float    *scale = (float *)job->scales + member * 2 * n_scales, *first = scale + n_scales;

    memset(block, 0, BLOCK_ROWS * ld);
    for (uint32_t j = 0; j < n; j++) {
        job->rows.fp8(job->rows.ctx, n0 + j, block + j * ld, j == 0 ? first : scale);
        if (j != 0 && memcmp(first, scale, n_scales * sizeof(*scale)) != 0)
            atomic_fetch_add(&job->n_strange, 1);
    }
    for (size_t i = 0; i < n_scales; i++)
        if (!isfinite(first[i]) || signbit(first[i])) atomic_fetch_add(&job->n_strange, 1);
    pack_bytes(block, ld, k, columns_at(job->packed, BT_WEIGHT_FP8, k, n0));
    memcpy(side_at(job->packed, BT_WEIGHT_FP8, job->n, k, chunk), first, n_scales * sizeof(*first));
}

/* Of eight k those at 0, 2, 4 and 6, one after the other. */
static uint32_t even_of(uint32_t word)
{
    uint32_t x = word & 0x0f0f0f0fu;

    x = (x | x >> 4) & 0x00ff00ffu;
    return (x | x >> 8) & 0xffffu;
}

/* A column of groups from a row of weight + 8; two's complement differs in the highest bit. */
static void pack_int4_row(const uint32_t *row, const bt_bf16 *scale, uint32_t n_groups,
                          bt_cpu_int4_group *groups, uint32_t column)
{
    for (uint32_t i = 0; i < n_groups; i++) {
        for (uint32_t h = 0; h < 2; h++, row += 2) {
            uint32_t low = row[0] ^ 0x88888888u, high = row[1] ^ 0x88888888u;

            groups[i].words[h][2 * column]     = even_of(low) | even_of(high) << 16;
            groups[i].words[h][2 * column + 1] = even_of(low >> 4) | even_of(high >> 4) << 16;
        }
        groups[i].scale[column] = scale[i];
    }
}

static void pack_int4_block(void *ctx, uint32_t chunk, uint32_t member)
{
    pack_job          *job = ctx;
    uint32_t           n0 = chunk * BLOCK_ROWS, n_groups = job->k / BT_INT4_GROUP;
    uint32_t           n     = bt_min_u32(job->n - n0, BLOCK_ROWS);
    uint32_t           words = job->k / BT_INT4_IN_WORD;
    uint32_t          *row   = (uint32_t *)job->scratch + member * ((size_t)words + GAP);
    bt_bf16           *scale = (bt_bf16 *)job->scales + member * (size_t)n_groups;
    bt_cpu_int4_group *to    = (bt_cpu_int4_group *)job->packed + (size_t)chunk * n_groups;

    for (uint32_t j = 0; j < n; j++) {
        job->rows.int4(job->rows.ctx, n0 + j, row, scale);
        for (uint32_t i = 0; i < n_groups; i++)
            if (!bt_int4_scale_is_valid(scale[i])) atomic_fetch_add(&job->n_strange, 1);
        pack_int4_row(row, scale, n_groups, to, j);
    }
}

/* Scratch for all threads; of e4m3 and int4 with their scales. */
static bt_status alloc_scratch(pack_job *job, uint32_t n_threads)
{
    bt_status st      = BT_OK;
    uint32_t  k       = job->k;
    size_t    n_elems = (size_t)n_threads * BLOCK_ROWS * (bt_cpu_pad(k, 32) + GAP), scales = 0;

    switch (job->rows.kind) {
    case BT_WEIGHT_BF16: job->scratch = bt_calloc(n_elems, sizeof(bt_bf16)); break;
    case BT_WEIGHT_BF12: job->scratch = bt_calloc_aligned(n_elems, 2 * sizeof(bt_bf16)); break;
    case BT_WEIGHT_FP8:
        job->scratch = bt_calloc(n_elems, 1);
        scales       = 2 * bt_cpu_scale_ld(k) * sizeof(float);
        break;
    case BT_WEIGHT_INT4:
        job->scratch = bt_calloc(n_threads * ((size_t)k / BT_INT4_IN_WORD + GAP), sizeof(uint32_t));
        scales       = k / BT_INT4_GROUP * sizeof(bt_bf16);
        break;
    }
    if (scales != 0) job->scales = bt_calloc(n_threads, scales);
    BT_REQUIRE(job->scratch != NULL && (job->scales != NULL || scales == 0), BT_ERR_NO_MEMORY,
               "rows of a weight matrix with k = %u", k);
out:
    return st;
}

bt_status bt_cpu_linear_pack(bt_device *dev, uint32_t n, uint32_t k, bt_cpu_rows rows, void *packed)
{
    static const bt_cpu_task PACK[] = {
        [BT_WEIGHT_BF16] = pack_block,
        [BT_WEIGHT_FP8]  = pack_fp8_block,
        [BT_WEIGHT_INT4] = pack_int4_block,
        [BT_WEIGHT_BF12] = pack_bf12_block,
    };
    bt_status    st   = BT_OK;
    bt_cpu_pool *pool = bt_device_cpu_pool(dev);
    pack_job     job  = {
             .kernels = bt_device_cpu_table(dev)->rows, .n = n, .k = k, .packed = packed, .rows = rows};

    BT_REQUIRE(rows.kind != BT_WEIGHT_INT4 || k % BT_INT4_GROUP == 0, BT_ERR_INVALID_ARG,
               "a weight matrix [%u, %u] of 4 bits: expected a multiple of %d columns", n, k,
               BT_INT4_GROUP);
    BT_TRY(alloc_scratch(&job, bt_cpu_pool_n_threads(pool)));
    bt_cpu_pool_run(pool, bt_cpu_pad(n, BLOCK_ROWS) / BLOCK_ROWS, PACK[rows.kind], &job);
    if (rows.kind == BT_WEIGHT_BF12) {
        bt_cpu_bf12_side *first = side_at(packed, rows.kind, n, k, 0);

        if (atomic_load(&job.n_strange) != 0) first->high[0] = BT_CPU_BF12_NONE;
        goto out;
    }
    BT_REQUIRE(atomic_load(&job.n_strange) == 0, BT_ERR_INVALID_ARG,
               "a weight matrix [%u, %u] of %s, found others at %u places", n, k,
               rows.kind == BT_WEIGHT_FP8
                   ? "e4m3: expected finite scales of 0 or more, the same for 16 rows"
                   : "4 bits: expected finite scales that are not subnormal",
               atomic_load(&job.n_strange));
out:
    bt_free(job.scales);
    bt_free(job.scratch);
    return st;
}

size_t bt_cpu_linear_bytes(uint32_t n, uint32_t k, bt_weight_kind kind)
{
    return bt_cpu_weight_bytes(kind, bt_cpu_packed_elems(n, k)) +
           bt_cpu_pad(n, BLOCK_ROWS) / BLOCK_ROWS * bt_cpu_side_bytes(kind, k);
}

/* Whether the rare weights ascend to the one behind the last: kernels look no further. */
static bool has_end(const bt_cpu_bf12_side *side, uint32_t most)
{
    for (uint32_t i = 0; i <= most; i++) {
        if (side->rare[i].at == UINT32_MAX) return true;
        if (i != 0 && side->rare[i].at <= side->rare[i - 1].at) return false;
    }
    return false;
}

bool bt_cpu_linear_is_whole(uint32_t n, uint32_t k, bt_weight_kind kind, const void *packed)
{
    size_t elems = bt_cpu_packed_elems(n, k), bytes = bt_cpu_side_bytes(kind, k);

    for (uint32_t b = 0; kind == BT_WEIGHT_BF12 && b < bt_cpu_pad(n, BLOCK_ROWS) / BLOCK_ROWS;
         b++) {
        const bt_cpu_bf12_side *side =
            (const void *)((const char *)packed + bt_cpu_weight_bytes(kind, elems) + b * bytes);

        if (side->high[0] == BT_CPU_BF12_NONE || !has_end(side, bt_cpu_n_rare(k))) return false;
    }
    return true;
}

static bt_status create_header(uint32_t n, uint32_t k, bt_weight_kind kind, bt_linear **linear_out)
{
    bt_status  st = BT_OK;
    bt_linear *linear;

    BT_REQUIRE(n >= 1 && k >= 1 && n <= INT32_MAX && k <= INT32_MAX, BT_ERR_INVALID_ARG,
               "a weight matrix of [%u, %u]: expected 1 to %d of both", n, k, INT32_MAX);
    linear = bt_calloc(1, sizeof(*linear));
    BT_REQUIRE(linear != NULL, BT_ERR_NO_MEMORY, "weight matrix header");
    linear->n     = n;
    linear->k     = k;
    linear->kind  = kind;
    linear->bytes = bt_cpu_linear_bytes(n, k, kind);
    *linear_out   = linear;
out:
    return st;
}

static void set_packed(bt_linear *linear, void *packed)
{
    linear->packed = packed;
    if (bt_cpu_side_bytes(linear->kind, linear->k) != 0)
        linear->scale = side_at(packed, linear->kind, linear->n, linear->k, 0);
}

bt_status bt_cpu_linear_create(bt_device *dev, uint32_t n, uint32_t k, bt_cpu_rows rows,
                               bt_linear **linear_out)
{
    bt_status  st     = BT_OK;
    bt_linear *linear = NULL;

    BT_TRY(create_header(n, k, rows.kind, &linear));
    linear->packed = bt_calloc_aligned(bt_linear_bytes(linear), 1);
    BT_REQUIRE(linear->packed != NULL, BT_ERR_NO_MEMORY, "weight matrix of %zu bytes",
               bt_linear_bytes(linear));
    set_packed(linear, linear->packed);
    BT_TRY(bt_cpu_linear_pack(dev, n, k, rows, linear->packed));
    if (!bt_cpu_linear_is_whole(n, k, rows.kind, linear->packed)) goto out;
    *linear_out = linear;
    linear      = NULL;
out:
    bt_cpu_linear_destroy(linear);
    return st;
}

bt_status bt_cpu_linear_over(uint32_t n, uint32_t k, bt_weight_kind kind, const void *packed,
                             bt_linear **linear_out)
{
    bt_status  st     = BT_OK;
    bt_linear *linear = NULL;
    void      *mem;

    BT_TRY(create_header(n, k, kind, &linear));
    memcpy(&mem, &packed, sizeof(packed)); /* only ever read */
    set_packed(linear, mem);
    linear->borrowed = true;
    *linear_out      = linear;
out:
    return st;
}

void bt_cpu_linear_destroy(bt_linear *linear)
{
    if (linear == NULL) return;
    if (!linear->borrowed) bt_free(linear->packed);
    bt_free(linear);
}

const void *bt_cpu_linear_columns(const bt_linear *linear, uint32_t n0)
{
    return (const char *)linear->packed +
           bt_cpu_weight_bytes(linear->kind, bt_cpu_packed_elems(n0, linear->k));
}

const void *bt_cpu_linear_side(const bt_linear *linear, uint32_t n0)
{
    return bt_cpu_side_at(linear->scale, linear->kind, linear->k, n0 / BLOCK_ROWS);
}

const bt_bf16 *bt_linear_packed(const bt_linear *linear)
{
    BT_ASSERT(linear->kind == BT_WEIGHT_BF16);
    return linear->packed;
}

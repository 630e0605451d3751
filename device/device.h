/* device/device.h - memory and the operations on rows that every layer is made of, behind one
 * table.
 *
 * Code above this folder never asks which back end it has: it holds a bt_device.  Pointers named
 * in a parameter struct below are addresses on that device, unless the comment says "host".  Work
 * is enqueued in order and is complete after bt_device_sync(); the CPU back end completes it before
 * it returns.
 *
 * Arithmetic.  Every operation is row-independent: the order of a row's additions is a function of
 * the shapes, never of the number of rows beside it or of the number of threads (law B, see
 * docs/architecture.md).  A matrix product takes the role of its rows, since prompt rows and
 * generated rows may have different kernel families; rows of both roles never share a call.
 *
 * Threads: one step thread owns a device.
 * Memory:  only create/alloc calls allocate. */
#ifndef BT_DEVICE_DEVICE_H
#define BT_DEVICE_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/bf16.h"
#include "core/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct bt_device bt_device;
typedef struct bt_linear bt_linear; /* a weight matrix in the layout that the kernels stream */

typedef enum { BT_BF16, BT_F32 } bt_dtype; /* of results */
static inline size_t bt_dtype_bytes(bt_dtype dtype) { return dtype == BT_F32 ? 4 : 2; }

/* What a token is to its request, for ever: it came with the prompt, or the model made it. */
typedef enum { BT_ROLE_PROMPT, BT_ROLE_GENERATED } bt_role;
enum { BT_N_ROLES = 2 };

enum { BT_N_MARKS = 2 }; /* of a device's stream */

/* Where a weight's rows come from: fills row[0..k) with row n as bf16 (host memory).  Called from
 * several threads, each n once. */
typedef void (*bt_linear_row_fn)(void *ctx, uint32_t n, bt_bf16 *row);
/* The same of weights in 8 bits: row[0..k) in e4m3, and in scale[0 .. ceil(k / 128)) what 128 of
 * them after the other are to be multiplied by. */
typedef void (*bt_linear_fp8_fn)(void *ctx, uint32_t n, uint8_t *row, float *scale);
enum { BT_FP8_BLOCK = 128 };
/* The same of weights in 4 bits: row[0 .. k / 8) has eight each, the first in the lowest bits, as
 * weight + 8; and scale[0 .. k / 32) what 32 of them after the other are to be multiplied by. */
typedef void (*bt_linear_int4_fn)(void *ctx, uint32_t n, uint32_t *row, bt_bf16 *scale);
enum { BT_INT4_GROUP = 32, BT_INT4_IN_WORD = 8 };
/* What a weight matrix is made of. */
typedef enum {
    BT_WEIGHT_BF16,
    BT_WEIGHT_FP8,
    BT_WEIGHT_INT4,
    BT_WEIGHT_BF12 /* bf16 in 12 bits, of the CPU back end alone (device/cpu/kernels.h) */
} bt_weight_kind;
/* Finite, and not subnormal: arithmetic would take it for 0. */
static inline bool bt_int4_scale_is_valid(bt_bf16 scale)
{
    return (scale & 0x7f80) != 0x7f80 && ((scale & 0x7f80) != 0 || (scale & 0x7fff) == 0);
}
/* Of so many weights in memory, each row's scales with them. */
static inline uint64_t bt_weight_bytes(bt_weight_kind kind, uint64_t n_elems)
{
    switch (kind) {
    case BT_WEIGHT_FP8: return n_elems + n_elems / BT_FP8_BLOCK * sizeof(float);
    case BT_WEIGHT_INT4: return n_elems / 2 + n_elems / BT_INT4_GROUP * sizeof(bt_bf16);
    default: return n_elems * sizeof(bt_bf16);
    }
}

/* y[m, n] = x[m, k] * W[n, k]^T, fp32 accumulation, each result rounded once to y_dtype. */
typedef struct {
    const bt_linear *w;
    const bt_bf16   *x; /* [m, k], row stride ld_x elements */
    size_t           ld_x;
    void            *y; /* [m, n] of y_dtype, row stride ld_y elements */
    size_t           ld_y;
    uint32_t         m; /* 0 is allowed and costs nothing */
    bt_dtype         y_dtype;
    const float     *weight; /* host [m], or NULL: row i becomes bf16(weight[i] * y + 0), y in
                                fp32; of the CPU back end, with BT_BF16 */
} bt_gemm;

/* y[m, n] = down(act), act = bf16(silu(g) * u), [g, u] = bf16(gate_up(x)): a feed-forward block. */
typedef struct {
    const bt_linear *gate_up; /* [2 dim, hidden]: gate, then up */
    const bt_linear *down;    /* [n, dim] */
    const bt_bf16   *x;       /* [m, hidden], row stride ld_x elements */
    size_t           ld_x;
    void            *y; /* [m, n] of y_dtype, row stride ld_y elements */
    size_t           ld_y;
    uint32_t         m; /* 0 is allowed and costs nothing */
    bt_dtype         y_dtype;
    const float     *weight;   /* as bt_gemm has it, of down */
    const uint32_t  *x_row;    /* host [m], or NULL: row i of x is x[x_row[i]], */
    bt_bf16         *gathered; /* with [m, ld_x] of workspace; of the CPU back end */
} bt_ffn;

typedef struct bt_sampling_ops bt_sampling_ops; /* device/sampling.h */
typedef struct bt_graph        bt_graph;        /* work to be enqueued again and again */

/* Between begin() and end() work is not run but kept, with its arguments as they are: products, row
 * operations, attention, experts, forks, and exchanges where bt_group_captures(); no copies from or
 * to the host.  end() with NULL throws it away, if there is one.  destroy() does not wait for
 * launches. */
typedef struct {
    bt_status (*begin)(bt_device *dev);
    bt_status (*end)(bt_device *dev, bt_graph **graph_out);
    bt_status (*launch)(bt_device *dev, bt_graph *graph);
    void (*destroy)(bt_device *dev, bt_graph *graph); /* NULL is allowed */
} bt_graph_ops;

/* A slot is never NULL, but for sampling and graphs: what a back end lacks. */
typedef struct {
    const char *name; /* "cpu", "cuda": in logs and in test names */
    bt_status (*alloc)(bt_device *dev, size_t bytes, void **ptr_out);
    void (*free)(bt_device *dev, void *ptr);
    bt_status (*alloc_host)(bt_device *dev, size_t bytes, void **ptr_out);
    void (*free_host)(bt_device *dev, void *ptr);
    bt_status (*memory)(bt_device *dev, uint64_t *free_out, uint64_t *all_out);
    bt_status (*upload)(bt_device *dev, void *dst, const void *host_src, size_t bytes);
    bt_status (*upload_rows)(bt_device *dev, uint32_t n, uint32_t k, bt_linear_row_fn rows,
                             void *ctx, bt_bf16 *dst);
    bt_status (*download)(bt_device *dev, void *host_dst, const void *src, size_t bytes);
    bt_status (*sync)(bt_device *dev);
    bt_status (*mark)(bt_device *dev, uint32_t i);
    bt_status (*await)(bt_device *dev, uint32_t i);
    void *(*stream)(bt_device *dev);
    bt_status (*checksum)(bt_device *dev, void *stream, const void *data, size_t bytes,
                          uint64_t seed, uint64_t *sum);
    bt_status (*linear_create)(bt_device *dev, uint32_t n, uint32_t k, bt_linear_row_fn rows,
                               void *ctx, bt_linear **linear_out);
    bt_status (*linear_create_fp8)(bt_device *dev, uint32_t n, uint32_t k, bt_linear_fp8_fn rows,
                                   void *ctx, bt_linear **linear_out);
    bt_status (*linear_create_int4)(bt_device *dev, uint32_t n, uint32_t k, bt_linear_int4_fn rows,
                                    void *ctx, bt_linear **linear_out);
    void (*linear_destroy)(bt_device *dev, bt_linear *linear);
    bt_status (*gemm)(bt_device *dev, bt_role role, uint32_t n_gemms, const bt_gemm *gemms);
    bt_status (*ffn)(bt_device *dev, bt_role role, uint32_t n_ffns, const bt_ffn *ffns, bt_bf16 *h,
                     bt_bf16 *act);
    bt_status (*rms_norm)(bt_device *dev, uint32_t rows, uint32_t dim, const bt_bf16 *x,
                          size_t ld_x, const bt_bf16 *weight, float eps, bt_bf16 *y, size_t ld_y);
    bt_status (*add_norm)(bt_device *dev, uint32_t rows, uint32_t dim, const bt_bf16 *x,
                          bt_bf16 *residual, const bt_bf16 *weight, float eps, bt_bf16 *y);
    bt_status (*gather_rows)(bt_device *dev, uint32_t rows, uint32_t dim, const bt_bf16 *table,
                             const uint32_t *index, bt_bf16 *y);
    bt_status (*gather_rows_by)(bt_device *dev, uint32_t rows, uint32_t dim, const bt_bf16 *table,
                                const uint32_t *index, bt_bf16 *y);
    bt_status (*fork)(bt_device *dev);
    bt_status (*unfork)(bt_device *dev);
    bt_status (*join)(bt_device *dev);
    void (*destroy)(bt_device *dev);
    const bt_sampling_ops *sampling;
    const bt_graph_ops    *graphs;
} bt_device_ops;

struct bt_device {
    const bt_device_ops *ops;
    const char          *arithmetic; /* names the order of additions of both roles, as
                                        "prompt:tile32,generated:tile32"; ranks of a cell must agree */
    const char *bus_id; /* of a GPU: its name among all of its machine, whichever of them a
                           process sees; "" of the CPU */
    const char *uuid;   /* likewise, and of an instance of a GPU (MIG) its own; "" of the CPU */
    bool        host_memory; /* its memory is the host's: anybody may follow its pointers */
    uint32_t    fp8_rows; /* so many rows of an e4m3 matrix, from a multiple of it on, must have the
                             same scales; 1 or more */
    uint64_t n_allocs;    /* how often device or pinned memory was asked for */
    uint64_t pinned_bytes; /* of host memory: its own, and all that was asked for */
};                         /* first member of each implementation */

typedef struct {
    uint32_t    n_threads; /* compute threads, the caller counted; 0 = one per core allowed to us */
    const char *kernels;   /* "auto", or one of bt_device_cpu_kernels(): UNSUPPORTED if this CPU
                              lacks it.  Narrow weights are widened by the best there is */
} bt_device_cpu_options;

/* The CPU back end.  Sets DAZ and FTZ on the calling thread and on its pool's.  UNSUPPORTED: no
 * such kernels; DEVICE: a thread does not start; NO_MEMORY. */
bt_status bt_device_cpu_create(const bt_device_cpu_options *opt, bt_device **dev_out);
/* Comma-separated kernel families that this CPU can run, best first: "avx512bf16,avx512,avx2,
 * scalar", "neon,scalar".  Static storage. */
const char *bt_device_cpu_kernels(void);

/* Says to the CUDA driver, in the environment, how to start: before MPI does, which may start it,
 * and before the process has threads.  Other values that are there already stay: create() warns. */
void bt_device_cuda_environment(void);
/* The CUDA back end lies in libbaton_cuda.so, which is opened at the first call, from the program's
 * folder, ../lib/baton beside it, or the loader's path; or from `library` when that is not NULL.
 * Whether GPU `device` can be used; else a sentence in text, and nothing is logged. */
bool bt_device_cuda_usable(const char *library, uint32_t device, char *text, size_t text_bytes);
/* GPUs of this machine, 0 with a sentence in text when there is none or no such library. */
uint32_t bt_device_cuda_count(const char *library, char *text, size_t text_bytes);
/* The GPU for a rank whose turn it is, counted round those that can be used; false with a sentence
 * in text when none can. */
bool bt_device_cuda_deal(const char *library, uint32_t turn, uint32_t *device_out, char *text,
                         size_t text_bytes);
/* UNSUPPORTED: no such library or not of this version, no driver or one too old, no such GPU or one
 * that the kernels are not compiled for. */
bt_status bt_device_cuda_create(const char *library, uint32_t device, bt_device **dev_out);
/* What the library that the device came from shows under this name: the tables of other folders'
 * back ends.  NULL: it has none of that name. */
const void *bt_device_symbol(const bt_device *dev, const char *name);

/* [n, k] weights, packed for the kernels.  Owned by the caller. */
static inline bt_status bt_device_linear_create(bt_device *dev, uint32_t n, uint32_t k,
                                                bt_linear_row_fn rows, void *ctx,
                                                bt_linear **linear_out)
{
    return dev->ops->linear_create(dev, n, k, rows, ctx, linear_out);
}
/* The same of e4m3 weights, which stay what they are: a product takes each as bf16(weight * scale),
 * with the bits that linear_create() of such rows would give.  Matrices of one call of gemm() or
 * ffn() may differ in it, the experts of a layer on a GPU may not.  INVALID_ARG, of the CPU back
 * end: scales that are negative or not finite, or not the same for dev->fp8_rows rows. */
static inline bt_status bt_device_linear_create_fp8(bt_device *dev, uint32_t n, uint32_t k,
                                                    bt_linear_fp8_fn rows, void *ctx,
                                                    bt_linear **linear_out)
{
    return dev->ops->linear_create_fp8(dev, n, k, rows, ctx, linear_out);
}
/* The same of weights in 4 bits, k a multiple of 32; any rows may have any scales.  INVALID_ARG: k
 * is none; of the CPU back end also scales that are subnormal or not finite. */
static inline bt_status bt_device_linear_create_int4(bt_device *dev, uint32_t n, uint32_t k,
                                                     bt_linear_int4_fn rows, void *ctx,
                                                     bt_linear **linear_out)
{
    return dev->ops->linear_create_int4(dev, n, k, rows, ctx, linear_out);
}
static inline void bt_device_linear_destroy(bt_device *dev, bt_linear *linear)
{
    if (linear != NULL) dev->ops->linear_destroy(dev, linear);
}
uint32_t       bt_linear_n(const bt_linear *linear);
uint32_t       bt_linear_k(const bt_linear *linear);
size_t         bt_linear_bytes(const bt_linear *linear); /* as packed */
bt_weight_kind bt_linear_kind(const bt_linear *linear);  /* of its rows: never BF12 */

static inline bt_status bt_device_alloc(bt_device *dev, size_t bytes, void **ptr_out)
{
    dev->n_allocs++;
    return dev->ops->alloc(dev, bytes, ptr_out);
}
/* n elements into the pointer, of any type, at ptr_out, which stays as it is where n is 0; adds
 * their bytes to *bytes unless that is NULL.  NO_MEMORY. */
bt_status          bt_device_alloc_array(bt_device *dev, size_t n, size_t elem_bytes, size_t *bytes,
                                         void *ptr_out);
static inline void bt_device_free(bt_device *dev, void *ptr)
{
    if (ptr != NULL) dev->ops->free(dev, ptr);
}
/* Host memory that copies to and from the device run from at full speed and in the background. */
static inline bt_status bt_device_alloc_host(bt_device *dev, size_t bytes, void **ptr_out)
{
    dev->n_allocs++;
    dev->pinned_bytes += bytes;
    return dev->ops->alloc_host(dev, bytes, ptr_out);
}
static inline void bt_device_free_host(bt_device *dev, void *ptr)
{
    if (ptr != NULL) dev->ops->free_host(dev, ptr);
}
/* Bytes of the device's own memory, free now and in all; 0 and 0 where it is the host's. */
static inline bt_status bt_device_memory(bt_device *dev, uint64_t *free_out, uint64_t *all_out)
{
    return dev->ops->memory(dev, free_out, all_out);
}
/* host_src may change when the call returns, unless it is bt_device_alloc_host()'s or has more than
 * 2 MiB: that must stay as it is until bt_device_sync(). */
static inline bt_status bt_device_upload(bt_device *dev, void *dst, const void *host_src,
                                         size_t bytes)
{
    return dev->ops->upload(dev, dst, host_src, bytes);
}
/* dst[n, k] = rows(ctx, 0) .. rows(ctx, n - 1), which several threads make; k at most 8 Mi. */
static inline bt_status bt_device_upload_rows(bt_device *dev, uint32_t n, uint32_t k,
                                              bt_linear_row_fn rows, void *ctx, bt_bf16 *dst)
{
    return dev->ops->upload_rows(dev, n, k, rows, ctx, dst);
}
/* host_dst is there after bt_device_sync(). */
static inline bt_status bt_device_download(bt_device *dev, void *host_dst, const void *src,
                                           size_t bytes)
{
    return dev->ops->download(dev, host_dst, src, bytes);
}
static inline bt_status bt_device_sync(bt_device *dev) { return dev->ops->sync(dev); }
/* Mark i < BT_N_MARKS: all that has been enqueued so far.  await() returns when that is done, as
 * sync() does, whatever has been enqueued since. */
static inline bt_status bt_device_mark(bt_device *dev, uint32_t i)
{
    return dev->ops->mark(dev, i);
}
static inline bt_status bt_device_await(bt_device *dev, uint32_t i)
{
    return dev->ops->await(dev, i);
}
/* Where the device enqueues its work: a cudaStream_t, borrowed for the device's life; NULL on the
 * CPU back end, which enqueues nothing. */
static inline void *bt_device_stream(bt_device *dev) { return dev->ops->stream(dev); }
/* *sum = bt_checksum(data, bytes, seed), device memory, both aligned to 8.  `stream`: where it is
 * enqueued, of the kind of bt_device_stream(). */
static inline bt_status bt_device_checksum(bt_device *dev, void *stream, const void *data,
                                           size_t bytes, uint64_t seed, uint64_t *sum)
{
    return dev->ops->checksum(dev, stream, data, bytes, seed, sum);
}
/* The same of host memory: the sum of a mix of each little-endian word of 8 bytes (the last one
 * filled up with zeros) and its index, and of the seed and the length, modulo 2^64. */
uint64_t bt_checksum(const void *data, size_t bytes, uint64_t seed);

/* n independent products in one call: the experts of a layer, the heads of an absorbed query, or
 * just one.  The list is host memory, borrowed during the call. */
static inline bt_status bt_device_gemm(bt_device *dev, bt_role role, uint32_t n_gemms,
                                       const bt_gemm *gemms)
{
    return dev->ops->gemm(dev, role, n_gemms, gemms);
}
/* n blocks of one width in one call: the experts of a layer, or just one.  The list is host memory,
 * borrowed during the call; h [sum of all m, 2 dim] and act [sum of all m, dim] are workspace.  The
 * bits are those of the products and SwiGLU one after the other, which is bf16(silu(gate) * up) of
 * what the first product has rounded, silu(z) = z / (1 + e^-z), fp32.  INVALID_ARG: shapes that do
 * not go together. */
bt_status bt_device_ffn(bt_device *dev, bt_role role, uint32_t n_ffns, const bt_ffn *ffns,
                        bt_bf16 *h, bt_bf16 *act);
/* y = bf16(weight * bf16(x / sqrt(mean(x^2) + eps))), fp32 inside: the order of Hugging Face's
 * DeepseekV3RMSNorm.  [rows, dim]; y may be x. */
static inline bt_status bt_device_rms_norm(bt_device *dev, uint32_t rows, uint32_t dim,
                                           const bt_bf16 *x, size_t ld_x, const bt_bf16 *weight,
                                           float eps, bt_bf16 *y, size_t ld_y)
{
    return dev->ops->rms_norm(dev, rows, dim, x, ld_x, weight, eps, y, ld_y);
}
/* residual += x, in fp32, rounded to bf16; then y is rms_norm() of that.  [rows, dim]; y may be x.
 */
static inline bt_status bt_device_add_norm(bt_device *dev, uint32_t rows, uint32_t dim,
                                           const bt_bf16 *x, bt_bf16 *residual,
                                           const bt_bf16 *weight, float eps, bt_bf16 *y)
{
    return dev->ops->add_norm(dev, rows, dim, x, residual, weight, eps, y);
}
/* y[r, :] = table[index[r], :]; index is host memory. */
static inline bt_status bt_device_gather_rows(bt_device *dev, uint32_t rows, uint32_t dim,
                                              const bt_bf16 *table, const uint32_t *index,
                                              bt_bf16 *y)
{
    return dev->ops->gather_rows(dev, rows, dim, table, index, y);
}
/* The same; index is device memory. */
static inline bt_status bt_device_gather_rows_by(bt_device *dev, uint32_t rows, uint32_t dim,
                                                 const bt_bf16 *table, const uint32_t *index,
                                                 bt_bf16 *y)
{
    return dev->ops->gather_rows_by(dev, rows, dim, table, index, y);
}
/* Work from fork() to unfork() may run beside what follows unfork(), up to join(): neither may
 * write what the other one reads or writes.  Not nested; no copies or lists of the host between. */
static inline bt_status bt_device_fork(bt_device *dev) { return dev->ops->fork(dev); }
static inline bt_status bt_device_unfork(bt_device *dev) { return dev->ops->unfork(dev); }
static inline bt_status bt_device_join(bt_device *dev) { return dev->ops->join(dev); }
static inline void      bt_device_destroy(bt_device *dev)
{
    if (dev != NULL) dev->ops->destroy(dev);
}

#ifdef __cplusplus
}
#endif
#endif

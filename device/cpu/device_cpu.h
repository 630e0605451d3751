/* device/cpu/device_cpu.h - what the files of the CPU back end share. */
#ifndef BT_DEVICE_CPU_DEVICE_CPU_H
#define BT_DEVICE_CPU_DEVICE_CPU_H

#include "device/cpu/kernels.h"

/* A chunk of a product, at most: its fp32 sums go to scratch, and from there to y.  Wide ones are
 * those whose x passes the second-level cache; rows that are not in tiles take twice CHUNK_COLS,
 * and those of one or two tiles half as many more. */
enum { BT_CPU_CHUNK_ROWS = 256, BT_CPU_CHUNK_COLS = 256, BT_CPU_WIDE_COLS = 1024 };
/* Elements of x that are tiles at a time, a multiple of any product's 16 rows. */
enum { BT_CPU_TILE_ELEMS = 16 << 20 };

/* Products that go together have at least so many chunks for each thread, where they can: a slow
 * one does not hold up the others then. */
enum { BT_CPU_CHUNKS_PER_THREAD = 8 };

/* Of one pool member, on its own cache lines. */
typedef struct {
    _Alignas(64) uint32_t gemm; /* where the last chunk was, since chunks come ascending */
    uint32_t first_chunk;       /* of that gemm, */
    size_t   tiles, act;        /* where its tiles and those of its result begin, */
    uint32_t chunk;             /* and which of its chunks it was */
    float   *scratch;           /* [BT_CPU_CHUNK_ROWS][BT_CPU_WIDE_COLS] */
} bt_cpu_member;

typedef struct {
    bt_device             super;
    bt_cpu_pool          *pool;
    const bt_cpu_kernels *kernels;
    uint32_t              n_threads;
    bt_cpu_member        *members; /* [n_threads] */
    float                *scratch; /* of all members */
    bt_bf16              *tiles;   /* [BT_CPU_TILE_ELEMS], or NULL for a table without tiles */
    char                  arithmetic[64];
} bt_device_cpu;

/* Rows of a block, a multiple of 16, whose x and activation fit into n_elems as tiles. */
static inline size_t bt_cpu_ffn_rows(const bt_ffn *f, size_t n_elems)
{
    size_t tile_row = bt_cpu_tiled_elems(BT_CPU_TILE_ROWS, bt_linear_k(f->gate_up)) +
                      bt_cpu_tiled_elems(BT_CPU_TILE_ROWS, bt_linear_k(f->down));

    return n_elems / tile_row * BT_CPU_TILE_ROWS;
}

/* Blocks of enough rows for tiles, each of them (or as many of its rows as go together) from its x
 * to its result on one thread.  False, and nothing done: they are too few for all threads. */
bool bt_cpu_ffn_whole(bt_device_cpu *cpu, uint32_t n_ffns, const bt_ffn *ffns);

/* As bt_device_ffn(), product after product. */
bt_status bt_cpu_ffn_by_parts(bt_device *dev, bt_role role, uint32_t n_ffns, const bt_ffn *ffns,
                              bt_bf16 *h, bt_bf16 *act);
/* The two products of rows m0 .. m0+m of a block, whose rows have been gathered and whose workspace
 * begins at h and act. */
void bt_cpu_ffn_products(const bt_ffn *f, uint32_t m0, uint32_t m, bt_bf16 *h, bt_bf16 *act,
                         bt_gemm *up_out, bt_gemm *down_out);
/* y[r, i] = bf16(silu(gate_up[r, i]) * gate_up[r, dim + i]). */
bt_status bt_cpu_swiglu(bt_device *dev, uint32_t rows, uint32_t dim, const bt_bf16 *gate_up,
                        bt_bf16 *y);

bt_status bt_cpu_gemm(bt_device *dev, bt_role role, uint32_t n_gemms, const bt_gemm *gemms);
bt_status bt_cpu_ffn(bt_device *dev, bt_role role, uint32_t n_ffns, const bt_ffn *ffns, bt_bf16 *h,
                     bt_bf16 *act);

#endif

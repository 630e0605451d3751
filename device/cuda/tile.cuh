/* device/cuda/tile.cuh - bf16 tiles in shared memory and their matrix fragments.
 *
 * A tile is [rows][COLS], COLS a multiple of 64.  Chunk c (8 elements, 16 bytes) of row r lies at
 * chunk c ^ (r & 7), so that 8 rows of a column of chunks fill all banks once. */
#ifndef BT_DEVICE_CUDA_TILE_CUH
#define BT_DEVICE_CUDA_TILE_CUH

#include "device/cuda/gpu.cuh"

enum { TILE_CHUNK = 8 };

template <int COLS>
static __device__ __forceinline__ bt_bf16 *tile_chunk(bt_bf16 *tile, uint32_t row, uint32_t chunk)
{
    return tile + (size_t)row * COLS + (chunk ^ (row & 7)) * TILE_CHUNK;
}

/* Chunk c0 + c1, c0 a multiple of a power of two above c1: what c1 asks for stands alone, so that
 * an unrolled loop over c0 computes it once. */
template <int COLS>
static __device__ __forceinline__ bt_bf16 *tile_chunk_of(bt_bf16 *tile, uint32_t row, uint32_t c0,
                                                         uint32_t c1)
{
    uint32_t mine = row * COLS + (c1 ^ (row & 7)) * TILE_CHUNK;

    return tile + (mine ^ (c0 & 7) * TILE_CHUNK) + (c0 & ~7u) * TILE_CHUNK;
}

/* A[16][16]: rows row0.., columns 16 k16... */
template <int COLS>
static __device__ __forceinline__ void load_a(uint32_t a[4], bt_bf16 *tile, uint32_t row0,
                                              uint32_t k16)
{
    uint32_t lane = threadIdx.x % GPU_WARP;

    load_matrix(a, tile_chunk<COLS>(tile, row0 + lane % 16, k16 * 2 + lane / 16));
}

/* Two B[16][8] from a tile whose rows are B's columns (weights, keys): b[0..1] columns row0 ..
 * row0 + 7, b[2..3] the next 8. */
template <int COLS>
static __device__ __forceinline__ void load_b(uint32_t b[4], bt_bf16 *tile, uint32_t row0,
                                              uint32_t k16)
{
    uint32_t lane = threadIdx.x % GPU_WARP;

    load_matrix(b, tile_chunk<COLS>(tile, row0 + lane % 8 + lane / 16 * 8, k16 * 2 + lane / 8 % 2));
}

/* The same from a tile whose rows are B's rows (values): rows 16 k16 .., columns 16 n16 .. . */
template <int COLS>
static __device__ __forceinline__ void load_b_rows(uint32_t b[4], bt_bf16 *tile, uint32_t k16,
                                                   uint32_t n16)
{
    uint32_t lane = threadIdx.x % GPU_WARP;

    load_matrix_turned(b, tile_chunk_of<COLS>(tile, k16 * 16 + lane % 16, n16 * 2, lane / 16));
}

/* One chunk of a tile from src[0 .. n), the rest zeros; asynchronous where `wide`, a constant of
 * the caller, says that src is aligned to 16 bytes and n is not between 0 and 8.  src lies in
 * global memory, also for no n. */
static __device__ __forceinline__ void fill_chunk(bt_bf16 *dst, const bt_bf16 *src, int n,
                                                  bool wide)
{
    if (wide) {
        copy_async16(dst, src, n > 0);
        return;
    }
    GPU_ONE_AT_A_TIME
    for (int i = 0; i < TILE_CHUNK; i++)
        dst[i] = i < n ? src[i] : 0;
}

/* Some rows of two matrices side by side. */
typedef struct {
    const bt_bf16 *left, *right;
    size_t         ld_left, ld_right;
    int            n_left, n_right; /* columns */
} tile_source;

/* N_COLS columns of a tile of N_ROWS rows, from column COL0 on: n_rows rows and n_cols columns of
 * src, zeros elsewhere.  By the whole block; a thread takes the same chunk of every APARTth row. */
template <int COLS, int COL0, int N_COLS, int N_ROWS, int THREADS, bool WIDE>
static __device__ __forceinline__ void fill_columns(bt_bf16 *tile, const bt_bf16 *src, size_t ld,
                                                    uint32_t n_rows, int n_cols)
{
    enum { CHUNKS = N_COLS / TILE_CHUNK, APART = THREADS / CHUNKS };
    static_assert(THREADS % CHUNKS == 0, "no thread without a chunk");
    uint32_t       chunk = threadIdx.x % CHUNKS, row = threadIdx.x / CHUNKS;
    int            n    = n_cols - (int)chunk * TILE_CHUNK;
    const bt_bf16 *from = src + row * ld + (n > 0 ? chunk * TILE_CHUNK : 0);

    if (n <= 0) n_rows = 0;
    if constexpr (WIDE) {
        GPU_UNROLL
        for (uint32_t i = 0; i < N_ROWS; i += APART, from += APART * ld)
            if (N_ROWS % APART == 0 || row + i < N_ROWS)
                copy_async16(tile_chunk<COLS>(tile, row + i, COL0 / TILE_CHUNK + chunk),
                             row + i < n_rows ? from : src, row + i < n_rows);
    } else {
        GPU_ONE_AT_A_TIME
        for (; row < N_ROWS; row += APART, from += APART * ld)
            fill_chunk(tile_chunk<COLS>(tile, row, COL0 / TILE_CHUNK + chunk), from,
                       row < n_rows ? n : 0, false);
    }
}

/* A tile of N_ROWS rows: n_rows of the source, its left columns from column 0 on, its right ones
 * from column C on, zeros elsewhere.  By the whole block of THREADS. */
template <int C, int COLS, int N_ROWS, int THREADS, bool WIDE>
static __device__ __forceinline__ void fill_tile(bt_bf16 *tile, const tile_source &src,
                                                 uint32_t n_rows)
{
    fill_columns<COLS, 0, C, N_ROWS, THREADS, WIDE>(tile, src.left, src.ld_left, n_rows,
                                                    src.n_left);
    if constexpr (COLS > C)
        fill_columns<COLS, C, COLS - C, N_ROWS, THREADS, WIDE>(tile, src.right, src.ld_right,
                                                               n_rows, src.n_right);
}

#endif

/* device/cpu/ffn.c - a list of feed-forward blocks in one of three ways: product after product
 * (ffn_parts.c); each block on one thread (ffn_whole.c); or, here, as many blocks as there is room
 * for as two lists of products in tiles.  What a first product gives goes through SwiGLU as it
 * leaves the sums, and to the second one in tiles: `h` and `act` are not used. */
#include "core/minmax.h"
#include "device/cpu/gemm.h"
#include "device/cpu/linear.h"

enum { LIST = 64 }; /* blocks that go together at most */

/* Rows of a block whose x and activation fit into the tiles, whole chunks where that is possible.
 */
static uint32_t rows_that_fit(const bt_ffn *f, size_t elems)
{
    size_t rows = bt_cpu_ffn_rows(f, elems);

    if (rows > BT_CPU_CHUNK_ROWS) rows = rows / BT_CPU_CHUNK_ROWS * BT_CPU_CHUNK_ROWS;
    return rows < f->m ? (uint32_t)rows : f->m;
}

/* Blocks in tiles, from one to the next; `up` and `down` are the first and the second products. */
static void run_blocks(bt_device_cpu *cpu, bt_role role, uint32_t n, const bt_gemm *up,
                       const uint32_t *const *x_rows, const bt_gemm *down)
{
    bt_cpu_gemms first = {.dev       = cpu,
                          .role      = role,
                          .n_gemms   = n,
                          .gemms     = up,
                          .all_tiles = true,
                          .tiles     = cpu->tiles,
                          .act       = cpu->tiles,
                          .x_rows    = x_rows};
    bt_cpu_gemms second;

    for (uint32_t i = 0; i < n; i++)
        first.act += bt_cpu_tiled_elems(up[i].m, up[i].w->k);
    second       = first;
    second.gemms = down;
    second.tiles = first.act;
    second.act   = NULL;
    bt_cpu_gemms_tile(&first);
    bt_cpu_gemms_run(&first);
    bt_cpu_gemms_run(&second);
}

/* Whether blocks go faster in tiles: not when most of a tile would be empty. */
static bool want_tiles(const bt_device_cpu *cpu, uint32_t n_ffns, const bt_ffn *ffns)
{
    uint64_t rows = 0;

    if (cpu->kernels->mm_tiles == NULL) return false;
    for (uint32_t i = 0; i < n_ffns; i++) {
        if (ffns[i].down->k % BT_CPU_TILE_COLS != 0 ||
            rows_that_fit(&ffns[i], BT_CPU_TILE_ELEMS) < bt_min_u32(ffns[i].m, BT_CPU_TILE_ROWS))
            return false;
        rows += ffns[i].m;
    }
    return rows > (uint64_t)n_ffns * BT_CPU_UNTILED_ROWS;
}

bt_status bt_cpu_ffn(bt_device *dev, bt_role role, uint32_t n_ffns, const bt_ffn *ffns, bt_bf16 *h,
                     bt_bf16 *act)
{
    bt_device_cpu  *cpu = (bt_device_cpu *)dev;
    bt_gemm         up[LIST], down[LIST];
    const uint32_t *x_rows[LIST];
    uint32_t        i = 0, m0 = 0;

    if (!want_tiles(cpu, n_ffns, ffns)) return bt_cpu_ffn_by_parts(dev, role, n_ffns, ffns, h, act);
    if (bt_cpu_ffn_whole(cpu, n_ffns, ffns)) return BT_OK;
    while (i < n_ffns) {
        size_t   left = BT_CPU_TILE_ELEMS;
        uint32_t n    = 0;

        while (i < n_ffns && n < LIST) {
            const bt_ffn *f    = &ffns[i];
            bt_ffn        rest = *f;
            uint32_t      rows;

            rest.m -= m0;
            rows = rows_that_fit(&rest, left);
            if (rows < rest.m && n != 0) break;
            bt_cpu_ffn_products(f, m0, rows, NULL, NULL, &up[n], &down[n]);
            x_rows[n] = f->x_row != NULL ? f->x_row + m0 : NULL;
            if (f->x_row != NULL) up[n].x = f->x;
            left -= bt_cpu_tiled_elems(rows, f->gate_up->k) + bt_cpu_tiled_elems(rows, f->down->k);
            n++;
            m0 += rows;
            if (m0 < f->m) break;
            m0 = 0;
            i++;
        }
        run_blocks(cpu, role, n, up, x_rows, down);
    }
    return BT_OK;
}

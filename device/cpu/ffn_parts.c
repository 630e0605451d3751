/* device/cpu/ffn_parts.c - blocks as two lists of products with SwiGLU between them. */
#include "device/cpu/device_cpu.h"

enum { LIST = 64 }; /* products of a call */

void bt_cpu_ffn_products(const bt_ffn *f, uint32_t m0, uint32_t m, bt_bf16 *h, bt_bf16 *act,
                         bt_gemm *up_out, bt_gemm *down_out)
{
    const bt_bf16 *x = f->x_row != NULL ? f->gathered : f->x;

    *up_out   = (bt_gemm){.w       = f->gate_up,
                          .x       = x + m0 * f->ld_x,
                          .ld_x    = f->ld_x,
                          .y       = h,
                          .ld_y    = bt_linear_n(f->gate_up),
                          .m       = m,
                          .y_dtype = BT_BF16};
    *down_out = (bt_gemm){.w       = f->down,
                          .x       = act,
                          .ld_x    = bt_linear_k(f->down),
                          .y       = (char *)f->y + m0 * f->ld_y * bt_dtype_bytes(f->y_dtype),
                          .ld_y    = f->ld_y,
                          .m       = m,
                          .y_dtype = f->y_dtype,
                          .weight  = f->weight != NULL ? f->weight + m0 : NULL};
}

/* Whether the rows of b go on where those of a end. */
static bool continues(const bt_ffn *a, uint32_t rows, const bt_ffn *b)
{
    return b->x == a->x && b->ld_x == a->ld_x && b->x_row == a->x_row + rows &&
           b->gathered == a->gathered + rows * a->ld_x;
}

static bt_status gather(bt_device *dev, uint32_t n_ffns, const bt_ffn *ffns)
{
    bt_status st = BT_OK;

    for (uint32_t i = 0, n; i < n_ffns; i += n) {
        const bt_ffn *f    = &ffns[i];
        uint32_t      rows = f->m;

        for (n = 1; f->x_row != NULL && i + n < n_ffns && continues(f, rows, &f[n]); n++)
            rows += f[n].m;
        if (f->x_row != NULL)
            BT_TRY(
                bt_device_gather_rows(dev, rows, (uint32_t)f->ld_x, f->x, f->x_row, f->gathered));
    }
out:
    return st;
}

/* The first or the second products of all blocks. */
static bt_status multiply(bt_device *dev, bt_role role, uint32_t n_ffns, const bt_ffn *ffns,
                          bool second, bt_bf16 *h, bt_bf16 *act)
{
    bt_status st = BT_OK;
    size_t    dim, at = 0;

    for (uint32_t first = 0, n; first < n_ffns; first += n) {
        bt_gemm up[LIST], down[LIST];

        for (n = 0; n < LIST && first + n < n_ffns; n++) {
            const bt_ffn *f = &ffns[first + n];

            dim = bt_linear_k(f->down);
            bt_cpu_ffn_products(f, 0, f->m, h + at * 2 * dim, act + at * dim, &up[n], &down[n]);
            at += f->m;
        }
        BT_TRY(bt_device_gemm(dev, role, n, second ? down : up));
    }
out:
    return st;
}

bt_status bt_cpu_ffn_by_parts(bt_device *dev, bt_role role, uint32_t n_ffns, const bt_ffn *ffns,
                              bt_bf16 *h, bt_bf16 *act)
{
    bt_status st   = BT_OK;
    uint32_t  rows = 0;

    if (n_ffns == 0) return BT_OK;
    for (uint32_t i = 0; i < n_ffns; i++)
        rows += ffns[i].m;
    BT_TRY(gather(dev, n_ffns, ffns));
    BT_TRY(multiply(dev, role, n_ffns, ffns, false, h, act));
    BT_TRY(bt_cpu_swiglu(dev, rows, bt_linear_k(ffns[0].down), h, act));
    BT_TRY(multiply(dev, role, n_ffns, ffns, true, h, act));
out:
    return st;
}

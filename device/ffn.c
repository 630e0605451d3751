/* device/ffn.c - feed-forward blocks as two lists of products with SwiGLU between them. */
#include "device/device.h"

enum { LIST = 64 }; /* products of a call */

void bt_ffn_products(const bt_ffn *f, uint32_t m0, uint32_t m, bt_bf16 *h, bt_bf16 *act,
                     bt_gemm *up_out, bt_gemm *down_out)
{
    *up_out   = (bt_gemm){.w       = f->gate_up,
                          .x       = f->x + m0 * f->ld_x,
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
                          .y_dtype = f->y_dtype};
}

/* The first (down false) or the second products of all blocks. */
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
            bt_ffn_products(f, 0, f->m, h + at * 2 * dim, act + at * dim, &up[n], &down[n]);
            at += f->m;
        }
        BT_TRY(bt_device_gemm(dev, role, n, second ? down : up));
    }
out:
    return st;
}

bt_status bt_ffn_by_parts(bt_device *dev, bt_role role, uint32_t n_ffns, const bt_ffn *ffns,
                          bt_bf16 *h, bt_bf16 *act)
{
    bt_status st   = BT_OK;
    uint32_t  rows = 0;

    if (n_ffns == 0) return BT_OK;
    for (uint32_t i = 0; i < n_ffns; i++)
        rows += ffns[i].m;
    BT_TRY(multiply(dev, role, n_ffns, ffns, false, h, act));
    BT_TRY(bt_device_swiglu(dev, rows, bt_linear_k(ffns[0].down), h, act));
    BT_TRY(multiply(dev, role, n_ffns, ffns, true, h, act));
out:
    return st;
}

bt_status bt_device_ffn(bt_device *dev, bt_role role, uint32_t n_ffns, const bt_ffn *ffns,
                        bt_bf16 *h, bt_bf16 *act)
{
    bt_status st = BT_OK;

    for (uint32_t i = 0; i < n_ffns; i++) {
        const bt_ffn *f   = &ffns[i];
        uint32_t      dim = bt_linear_k(f->down), hidden = bt_linear_k(f->gate_up);

        BT_REQUIRE(dim == bt_linear_k(ffns[0].down) && bt_linear_n(f->gate_up) == 2 * dim,
                   BT_ERR_INVALID_ARG,
                   "feed-forward block %u of %u: width %u, gate and up of %u: expected %u, %u", i,
                   n_ffns, dim, bt_linear_n(f->gate_up), bt_linear_k(ffns[0].down),
                   2 * bt_linear_k(ffns[0].down));
        BT_REQUIRE((f->y_dtype == BT_F32 || f->y_dtype == BT_BF16) &&
                       (f->m <= 1 || (f->ld_x >= hidden && f->ld_y >= bt_linear_n(f->down))),
                   BT_ERR_INVALID_ARG,
                   "feed-forward block %u of %u, [%u, %u, %u]: row strides %zu and %zu, dtype %d",
                   i, n_ffns, hidden, dim, bt_linear_n(f->down), f->ld_x, f->ld_y, (int)f->y_dtype);
    }
    BT_TRY(dev->ops->ffn(dev, role, n_ffns, ffns, h, act));
out:
    return st;
}

/* attention/variants/merged.c - the matrices of AM_CC_ME, multiplied out once on the device:
 *     ql_h = (W_UK_h^T W_UQ_h) q_in        out = sum_h (W_O_h W_UV_h) ol_h
 * Three times the bytes of the two small products in their place; the study shows what that
 * costs. */
#include <string.h>

#include "attention/variants/core.h"
#include "core/alloc.h"

/* A matrix of each head. */
typedef struct {
    bt_linear **w; /* [n_made], owned while the products run */
    size_t      n_made;
} factors;

static void drop(bt_study *s, factors *f)
{
    for (size_t h = 0; h < f->n_made; h++)
        bt_device_linear_destroy(s->dev, f->w[h]);
    bt_free(f->w);
    *f = (factors){NULL, 0};
}

static bt_status make(bt_study *s, const bt_bf16 *data, size_t step, size_t ld, uint32_t n,
                      uint32_t k, factors *f)
{
    bt_status st = BT_OK;

    f->w = bt_calloc(s->cfg.n_heads, sizeof(bt_linear *));
    BT_REQUIRE(f->w != NULL, BT_ERR_NO_MEMORY, "factors of %u heads", s->cfg.n_heads);
    for (; f->n_made < s->cfg.n_heads; f->n_made++)
        BT_TRY(bt_study_linear(s->dev, data + f->n_made * step, ld, n, k, true, &f->w[f->n_made]));
out:
    return st;
}

/* bf16 rows on the device, read back to be packed. */
static bt_status pack(bt_study *s, const bt_bf16 *product, size_t rows, size_t width,
                      bt_linear **linear_out)
{
    bt_status st    = BT_OK;
    size_t    bytes = rows * width * sizeof(*product);
    bt_bf16  *host  = bt_calloc(rows * width, sizeof(*host));

    BT_REQUIRE(host != NULL, BT_ERR_NO_MEMORY, "a merged matrix of %zu bytes", bytes);
    BT_TRY(bt_device_download(s->dev, host, product, bytes));
    BT_TRY(bt_device_sync(s->dev));
    BT_TRY(
        bt_study_linear(s->dev, host, width, (uint32_t)rows, (uint32_t)width, false, linear_out));
out:
    bt_free(host);
    return st;
}

/* Head h's product [m, n] of x + h step_x [m, k] goes to y + h step_y: side by side, or one below
 * the other, as step_y and the row stride ld_y say. */
static bt_status multiply(bt_study *s, const bt_bf16 *x, size_t step_x, size_t ld_x, uint32_t m,
                          const factors *f, bt_bf16 *y, size_t step_y, size_t ld_y)
{
    bt_status st = BT_OK;

    for (size_t h = 0; h < s->cfg.n_heads; h++)
        s->gemms[h] = (bt_gemm){.w       = f->w[h],
                                .x       = x + h * step_x,
                                .ld_x    = ld_x,
                                .y       = y + h * step_y,
                                .ld_y    = ld_y,
                                .m       = m,
                                .y_dtype = BT_BF16};
    BT_TRY(bt_device_gemm(s->dev, BT_ROLE_PROMPT, s->cfg.n_heads, s->gemms));
    BT_TRY(bt_device_sync(s->dev));
out:
    return st;
}

/* Row (h, i) of the result is sum_d W_UK_h[d][i] W_UQ_h[d][:]. */
static bt_status merge_queries(bt_study *s)
{
    bt_status            st  = BT_OK;
    const bt_mla_config *cfg = &s->cfg;
    size_t               c = cfg->kv_lora_rank, dn = cfg->qk_nope_dim;
    size_t               elems   = cfg->n_heads * c * dn;
    bt_bf16             *turned  = bt_calloc(elems, sizeof(*turned)); /* [n_heads][c][dn] */
    bt_bf16             *x       = NULL;
    void                *product = NULL;
    factors              f       = {NULL, 0};

    BT_REQUIRE(turned != NULL, BT_ERR_NO_MEMORY, "W_UK of %u heads, transposed", cfg->n_heads);
    for (size_t h = 0; h < cfg->n_heads; h++)
        for (size_t d = 0; d < dn; d++)
            for (size_t i = 0; i < c; i++)
                turned[(h * c + i) * dn + d] = s->host.kv_b[(h * (dn + cfg->v_dim) + d) * c + i];
    BT_TRY(bt_study_upload(s, turned, elems, &x));
    BT_TRY(bt_device_alloc(s->dev, cfg->n_heads * c * s->q_in * sizeof(bt_bf16), &product));
    BT_TRY(make(s, s->host.q, (dn + cfg->qk_rope_dim) * s->q_in, s->q_in, s->q_in, cfg->qk_nope_dim,
                &f));
    BT_TRY(multiply(s, x, c * dn, dn, cfg->kv_lora_rank, &f, product, c * s->q_in, s->q_in));
    BT_TRY(pack(s, product, cfg->n_heads * c, s->q_in, &s->merged.q));
out:
    drop(s, &f);
    bt_device_free(s->dev, product);
    bt_device_free(s->dev, x);
    bt_free(turned);
    return st;
}

/* Columns (h, i) of the result are sum_v W_O[:][h, v] W_UV_h[v][i]. */
static bt_status merge_output(bt_study *s)
{
    bt_status            st  = BT_OK;
    const bt_mla_config *cfg = &s->cfg;
    size_t               c = cfg->kv_lora_rank, dv = cfg->v_dim, n_o = cfg->n_heads * dv;
    size_t               width   = cfg->n_heads * c;
    bt_bf16             *x       = NULL;
    void                *product = NULL;
    factors              f       = {NULL, 0};

    BT_TRY(bt_study_upload(s, s->host.o, cfg->hidden * n_o, &x));
    BT_TRY(bt_device_alloc(s->dev, cfg->hidden * width * sizeof(bt_bf16), &product));
    BT_TRY(make(s, s->host.kv_b + cfg->qk_nope_dim * c, (cfg->qk_nope_dim + dv) * c, c,
                cfg->kv_lora_rank, cfg->v_dim, &f));
    BT_TRY(multiply(s, x, dv, n_o, cfg->hidden, &f, product, c, width));
    BT_TRY(pack(s, product, cfg->hidden, width, &s->merged.o));
out:
    drop(s, &f);
    bt_device_free(s->dev, product);
    bt_device_free(s->dev, x);
    return st;
}

static bt_status take_rope_rows(bt_study *s)
{
    bt_status            st    = BT_OK;
    const bt_mla_config *cfg   = &s->cfg;
    size_t               width = cfg->qk_nope_dim + cfg->qk_rope_dim;

    s->merged.rope = bt_calloc(cfg->n_heads, sizeof(*s->merged.rope));
    BT_REQUIRE(s->merged.rope != NULL, BT_ERR_NO_MEMORY, "rope rows of %u heads", cfg->n_heads);
    for (uint32_t h = 0; h < cfg->n_heads; h++)
        BT_TRY(bt_study_linear(s->dev, s->host.q + (h * width + cfg->qk_nope_dim) * s->q_in,
                               s->q_in, cfg->qk_rope_dim, s->q_in, false, &s->merged.rope[h]));
out:
    return st;
}

size_t bt_study_merge_bytes(const bt_mla_config *cfg)
{
    size_t q_in = cfg->q_lora_rank != 0 ? cfg->q_lora_rank : cfg->hidden;
    size_t wide = (size_t)cfg->n_heads * cfg->kv_lora_rank;
    size_t q = wide * q_in, o = wide * cfg->hidden;

    return 2 * (q + o + (size_t)cfg->n_heads * cfg->qk_rope_dim * q_in + 2 * (q > o ? q : o));
}

bt_status bt_merged_init(bt_study *s)
{
    bt_status st = BT_OK;

    BT_TRY(take_rope_rows(s));
    BT_TRY(merge_output(s));
    BT_TRY(merge_queries(s));
out:
    if (st != BT_OK) bt_merged_fini(s);
    return st;
}

void bt_merged_fini(bt_study *s)
{
    for (uint32_t h = 0; h < s->cfg.n_heads && s->merged.rope != NULL; h++)
        bt_device_linear_destroy(s->dev, s->merged.rope[h]);
    bt_free(s->merged.rope);
    bt_device_linear_destroy(s->dev, s->merged.q);
    bt_device_linear_destroy(s->dev, s->merged.o);
    s->merged = (bt_merged){NULL, NULL, NULL};
}

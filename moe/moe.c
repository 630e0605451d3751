#include "moe/moe.h"

#include <string.h>

#include "moe/state.h"
#include "parallel/carrier.h"

const uint64_t *bt_moe_expert_rows(bt_moe *moe)
{
    if (moe->ops->routed != NULL) bt_moe_routed_rows(moe);
    return moe->expert_rows;
}

bt_status bt_moe_note(bt_moe *moe, uint32_t i)
{
    return moe->ops->routed != NULL ? bt_moe_routed_note(moe, i) : BT_OK;
}

bt_status bt_moe_check(const bt_moe *moe, uint32_t i)
{
    return moe->ops->routed != NULL ? bt_moe_routed_check(moe, i) : BT_OK;
}

bt_status bt_moe_begin(bt_moe *moe, const bt_step_rows *rows)
{
    bt_status st = BT_OK;

    BT_REQUIRE(rows->n_ranks == moe->n_ranks, BT_ERR_INVALID_ARG,
               "moe: rows of %u ranks in a group of %u", rows->n_ranks, moe->n_ranks);
    for (uint32_t q = 0; q < moe->n_ranks; q++) {
        uint64_t n = 0;

        for (int role = 0; role < BT_N_ROLES; role++)
            n += rows->n_rows[q][role];
        BT_REQUIRE(n <= moe->max_rows, BT_ERR_PROTOCOL,
                   "moe: rank %u of the group brings %llu rows to a step of at most %u", q,
                   (unsigned long long)n, moe->max_rows);
        moe->row_at[q + 1] = moe->row_at[q] + (uint32_t)n;
    }
    moe->partial = rows->partial;
    if (!rows->partial) memcpy(moe->all_at, moe->row_at, (moe->n_ranks + 1) * sizeof(*moe->row_at));
out:
    return st;
}

/* Router and gate for this rank's rows; they become wire rows at their place among all. */
bt_status bt_moe_gate(bt_moe *moe, const bt_moe_weights *w, const bt_step_rows *rows,
                      const bt_bf16 *x, const uint16_t *forced)
{
    const bt_moe_config *c      = &moe->cfg;
    const uint32_t      *n_rows = rows->n_rows[moe->self];
    uint32_t             n_own  = bt_moe_own_rows(moe);
    size_t               at     = 0;
    bt_status            st     = BT_OK;
    bt_moe_route         params = {.gate     = &c->gate,
                                   .n_rows   = n_own,
                                   .hidden   = c->hidden,
                                   .x        = x,
                                   .logits   = moe->logits,
                                   .bias     = w->router_bias,
                                   .forced   = forced,
                                   .n_forced = rows->live != NULL ? rows->n_live : n_own,
                                   .live     = rows->live,
                                   .wire     = bt_moe_wire_row(moe, moe->row_at[moe->self]),
                                   .scratch  = moe->scratch};

    for (int role = 0; role < BT_N_ROLES; role++) {
        bt_gemm gemm = {.w       = w->router,
                        .x       = x + at * c->hidden,
                        .ld_x    = c->hidden,
                        .y       = moe->logits + at * c->gate.n_experts,
                        .ld_y    = c->gate.n_experts,
                        .m       = n_rows[role],
                        .y_dtype = BT_F32};

        BT_TRY(bt_device_gemm(moe->dev, (bt_role)role, 1, &gemm));
        at += n_rows[role];
    }
    BT_TRY(moe->ops->route(moe->dev, &params));
out:
    return st;
}

bt_status bt_moe_exchange(bt_moe *moe, const char *what, const bt_bf16 *send, bt_bf16 *recv,
                          const bt_wait *wait)
{
    bt_exchange exchange = {send, moe->send_at, moe->send_bytes,
                            recv, moe->recv_at, moe->recv_bytes};
    bt_wait     w        = *wait;

    w.what = what;
    return bt_group_exchange_device(moe->group, &exchange, &w);
}

/* Every rank's rows to every rank. */
bt_status bt_moe_dispatch(bt_moe *moe, const bt_wait *wait)
{
    size_t row_bytes = moe->wire_elems * sizeof(bt_bf16);
    size_t own_at    = moe->row_at[moe->self] * row_bytes;
    size_t own_bytes = moe->row_at[moe->self + 1] * row_bytes - own_at;

    for (uint32_t q = 0; q < moe->n_ranks; q++) {
        bool other         = q != moe->self;
        moe->send_at[q]    = own_at;
        moe->send_bytes[q] = other ? own_bytes : 0; /* our own lie in place */
        moe->recv_at[q]    = moe->row_at[q] * row_bytes;
        moe->recv_bytes[q] = other ? moe->row_at[q + 1] * row_bytes - moe->recv_at[q] : 0;
    }
    return bt_moe_exchange(moe, "moe dispatch", moe->wire, moe->wire, wait);
}

static bt_status run_shared(bt_moe *moe, const bt_moe_weights *w, const uint32_t n_rows[BT_N_ROLES],
                            const bt_bf16 *x)
{
    const bt_moe_config *c  = &moe->cfg;
    size_t               at = 0;
    bt_status            st = BT_OK;

    for (int role = 0; role < BT_N_ROLES; role++) {
        bt_ffn ffn = {.gate_up = w->shared_gate_up,
                      .down    = w->shared_down,
                      .x       = x + at * c->hidden,
                      .ld_x    = c->hidden,
                      .y       = moe->shared_y + at * c->hidden,
                      .ld_y    = c->hidden,
                      .m       = n_rows[role],
                      .y_dtype = BT_F32};

        BT_TRY(bt_device_ffn(moe->dev, (bt_role)role, 1, &ffn, moe->shared_h, moe->shared_a));
        at += n_rows[role];
    }
out:
    return st;
}

bt_status bt_moe_shared(bt_moe *moe, const bt_moe_weights *w, const bt_step_rows *rows,
                        const bt_bf16 *x)
{
    bt_status st = BT_OK, ended;

    if (moe->cfg.shared_dim == 0) return BT_OK;
    BT_TRY(bt_device_fork(moe->dev));
    st    = run_shared(moe, w, rows->n_rows[moe->self], x);
    ended = bt_device_unfork(moe->dev);
    if (st == BT_OK) st = ended;
out:
    return st;
}

bt_status bt_moe_await_shared(bt_moe *moe)
{
    return moe->cfg.shared_dim == 0 ? BT_OK : bt_device_join(moe->dev);
}

bt_status bt_moe_forward(bt_moe *moe, const bt_moe_weights *w, const bt_step_rows *rows,
                         const bt_bf16 *x, const uint16_t *forced, bt_bf16 *y, uint16_t *chosen_out,
                         const bt_wait *wait)
{
    bt_status st = BT_OK;

    BT_TRY(bt_moe_begin(moe, rows));
    BT_TRY(bt_moe_gate(moe, w, rows, x, forced));
    BT_TRY(bt_moe_shared(moe, w, rows, x));
    BT_TRY(bt_moe_dispatch(moe, wait));
    if (moe->ops->listed != NULL) {
        BT_TRY(bt_moe_listed_experts(moe, w, rows, wait));
        BT_TRY(bt_moe_listed_combine(moe, y, chosen_out, wait));
    } else {
        BT_TRY(bt_moe_experts(moe, w));
        BT_TRY(bt_moe_return(moe, wait));
        BT_TRY(bt_moe_await_shared(moe));
        BT_TRY(bt_moe_join(moe, y));
        BT_TRY(bt_moe_routed_chosen(moe, rows, chosen_out, wait));
    }
out:
    return st;
}

/* Regroup, which a coordinator says to its ranks, and they to the next one in their hellos. */
#include "core/alloc.h"
#include "core/rank_map.h"
#include "proto/control_pb.h"

void bt_pb_make_regroup(const bt_down_regroup *r, PB(Seats) seats[2], PB(Regroup) *pb)
{
    baton__control__v1__regroup__init(pb);
    for (int i = 0; i < 2; i++) {
        baton__control__v1__seats__init(&seats[i]);
        seats[i].epoch   = r->groups[i].epoch;
        seats[i].n_ranks = r->groups[i].n;
        seats[i].ranks   = r->groups[i].ranks;
    }
    pb->epoch   = r->epoch;
    pb->prefill = &seats[0];
    pb->decode  = &seats[1];
    pb->prepare = r->prepare;
    pb->n_gone  = r->n_gone;
    pb->gone    = r->gone;
}

static uint32_t seat_of(const bt_seats *groups, uint32_t i)
{
    return i < groups[0].n ? groups[0].ranks[i] : groups[1].ranks[i - groups[0].n];
}

static bt_status check_ranks(const bt_down_regroup *r)
{
    bt_status       st     = BT_OK;
    const bt_seats *groups = r->groups;

    for (uint32_t i = 0; i < groups[0].n + groups[1].n; i++) {
        uint32_t rank = seat_of(groups, i);

        for (uint32_t k = 0; k < i && rank != BT_NO_RANK; k++)
            BT_REQUIRE(seat_of(groups, k) != rank, BT_ERR_PROTOCOL, "rank %u has two seats", rank);
    }
    for (uint32_t i = 0; i < r->n_gone; i++) /* they count against a majority */
        for (uint32_t k = 0; k < i; k++)
            BT_REQUIRE(r->gone[k] != r->gone[i], BT_ERR_PROTOCOL, "rank %u is gone twice",
                       r->gone[i]);
out:
    return st;
}

bt_status bt_pb_take_regroup(const PB(Regroup) *pb, bt_down_regroup *r)
{
    bt_status st = BT_OK;

    BT_REQUIRE(pb->prefill != NULL && pb->decode != NULL && pb->prefill->n_ranks >= 1 &&
                   pb->prefill->n_ranks <= BT_RANKS_MAX && pb->decode->n_ranks <= BT_RANKS_MAX &&
                   pb->n_gone <= BT_RANKS_MAX,
               BT_ERR_PROTOCOL,
               "a regroup without groups, or with more than %d seats in one or ranks gone",
               BT_RANKS_MAX);
    BT_REQUIRE(pb->epoch <= BT_EPOCH_MAX && pb->prefill->epoch <= BT_EPOCH_MAX &&
                   pb->decode->epoch <= BT_EPOCH_MAX,
               BT_ERR_PROTOCOL,
               "a regroup in epoch %u, with groups of epochs %u and %u, expected at most %u",
               pb->epoch, pb->prefill->epoch, pb->decode->epoch, BT_EPOCH_MAX);
    r->epoch           = pb->epoch;
    r->prepare         = pb->prepare;
    r->groups[0].epoch = pb->prefill->epoch;
    r->groups[1].epoch = pb->decode->epoch;
    BT_TRY(bt_pb_take_u32s(pb->prefill->ranks, pb->prefill->n_ranks, &r->groups[0].ranks,
                           &r->groups[0].n));
    BT_TRY(bt_pb_take_u32s(pb->decode->ranks, pb->decode->n_ranks, &r->groups[1].ranks,
                           &r->groups[1].n));
    BT_TRY(bt_pb_take_u32s(pb->gone, pb->n_gone, &r->gone, &r->n_gone));
    BT_TRY(check_ranks(r));
out:
    return st;
}

bt_status bt_regroup_copy(const bt_down_regroup *from, bt_down_regroup *to_out)
{
    bt_status       st = BT_OK;
    bt_down_regroup to = {.epoch = from->epoch, .prepare = from->prepare};

    for (int i = 0; i < 2; i++) {
        to.groups[i].epoch = from->groups[i].epoch;
        BT_TRY(bt_pb_take_u32s(from->groups[i].ranks, from->groups[i].n, &to.groups[i].ranks,
                               &to.groups[i].n));
    }
    BT_TRY(bt_pb_take_u32s(from->gone, from->n_gone, &to.gone, &to.n_gone));
    *to_out = to;
out:
    if (st != BT_OK) bt_regroup_free(&to);
    return st;
}

void bt_regroup_free(bt_down_regroup *regroup)
{
    bt_free(regroup->groups[0].ranks);
    bt_free(regroup->groups[1].ranks);
    bt_free(regroup->gone);
    *regroup = (bt_down_regroup){0};
}

#include "coordinator/cell.h"

#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/rank_map.h"
#include "proto/hello.h"

void bt_cell_fini(bt_cell *cell)
{
    for (uint32_t i = 0; i < cell->n_ranks; i++) {
        bt_hello_free(&cell->ranks[i].hello);
        bt_free(cell->ranks[i].leave_reason);
        bt_free(cell->ranks[i].expert_rows);
        bt_free(cell->ranks[i].peers);
    }
    bt_free(cell->ranks);
    memset(cell, 0, sizeof(*cell));
}

/* What the rank reports of its cell must fit a cell of this shape. */
static bt_status check_seats(const bt_up_hello *h)
{
    bt_status              st      = BT_OK;
    const bt_down_regroup *s       = &h->seats;
    uint32_t               n_first = h->n_decode != 0 ? h->n_prefill : h->n_ranks - h->n_spares;

    if (h->incarnation == 0) goto out;
    BT_REQUIRE(s->groups[0].n == n_first && s->groups[1].n == h->n_decode, BT_ERR_INVALID_ARG,
               "rank %u speaks of %u and %u seats, its cell has %u and %u", h->rank, s->groups[0].n,
               s->groups[1].n, n_first, h->n_decode);
    for (uint32_t g = 0; g < 2; g++)
        for (uint32_t i = 0; i < s->groups[g].n; i++)
            BT_REQUIRE(s->groups[g].ranks[i] < h->n_ranks || s->groups[g].ranks[i] == BT_NO_RANK,
                       BT_ERR_INVALID_ARG, "rank %u says that rank %u of %u has a seat", h->rank,
                       s->groups[g].ranks[i], h->n_ranks);
    for (uint32_t i = 0; i < s->n_gone; i++)
        BT_REQUIRE(s->gone[i] < h->n_ranks && s->gone[i] != h->rank, BT_ERR_INVALID_ARG,
                   "rank %u says that rank %u of %u is gone", h->rank, s->gone[i], h->n_ranks);
out:
    return st;
}

/* The rank comes from another coordinator: does it know more than those that came before? */
static void hear(bt_cell *cell, uint32_t rank)
{
    const bt_up_hello *h = &cell->ranks[rank].hello, *said = bt_cell_memory(cell);

    if (h->incarnation == 0) return;
    if (h->incarnation > cell->incarnation) cell->incarnation = h->incarnation;
    if (said != h && said->incarnation != 0 && said->seats.epoch >= h->seats.epoch) return;
    cell->speaker = rank;
    for (uint32_t i = 0; i < h->seats.n_gone; i++) /* and nobody comes back */
        cell->ranks[h->seats.gone[i]].lost = true;
}

/* As launched: 0 prefill (or both roles), 1 decode, 2 spare. */
static uint32_t launch_group(const bt_up_hello *h, uint32_t rank)
{
    if (rank >= h->n_ranks - h->n_spares) return 2;
    return h->n_decode != 0 && rank >= h->n_prefill;
}

bt_status bt_cell_fits(const bt_cell *cell, const bt_up_hello *hello)
{
    bt_status st = BT_OK;

    BT_REQUIRE(hello->n_ranks <= BT_JOB_RANKS_MAX, BT_ERR_INVALID_ARG,
               "rank %u says it is one of %u, at most %d are supported", hello->rank,
               hello->n_ranks, BT_JOB_RANKS_MAX);
    BT_TRY(check_seats(hello));
    if (cell->n_ranks != 0) BT_TRY(bt_hello_same_cell(&cell->ranks[cell->first].hello, hello));
out:
    return st;
}

bt_status bt_cell_attach(bt_cell *cell, bt_up_hello *hello)
{
    bt_status st   = BT_OK;
    uint32_t  rank = hello->rank;

    BT_TRY(bt_cell_fits(cell, hello));
    if (cell->n_ranks == 0) {
        cell->ranks = bt_calloc(hello->n_ranks, sizeof(*cell->ranks));
        BT_REQUIRE(cell->ranks != NULL, BT_ERR_NO_MEMORY, "table of %u ranks", hello->n_ranks);
        cell->n_ranks = hello->n_ranks;
        cell->first = cell->speaker = rank;
        for (uint32_t i = 0; i < cell->n_ranks; i++)
            cell->ranks[i].group = launch_group(hello, i);
    }
    BT_REQUIRE(
        !cell->ranks[rank].attached, BT_ERR_INVALID_ARG,
        "rank %u (pid %u on %s) is here already: pid %u on %s; a second cell needs a name of "
        "its own (--cell)",
        rank, hello->pid, hello->host, cell->ranks[rank].hello.pid, cell->ranks[rank].hello.host);
    BT_REQUIRE(!cell->ranks[rank].lost, BT_ERR_INVALID_ARG,
               "rank %u (pid %u on %s) has been removed from its cell, which goes on without it",
               rank, hello->pid, hello->host);
    cell->ranks[rank].hello    = *hello;
    cell->ranks[rank].attached = true;
    cell->name                 = cell->ranks[cell->first].hello.cell;
    if (hello->epoch > cell->max_epoch) cell->max_epoch = hello->epoch;
    memset(hello, 0, sizeof(*hello)); /* ours now */
    hear(cell, rank);
out:
    return st;
}

bool bt_cell_complete(const bt_cell *cell)
{
    for (uint32_t i = 0; i < cell->n_ranks; i++)
        if (!cell->ranks[i].attached && !cell->ranks[i].lost) return false;
    return cell->n_ranks != 0;
}

bool bt_cell_ready(const bt_cell *cell)
{
    for (uint32_t i = 0; i < cell->n_ranks; i++)
        if (!cell->ranks[i].ready && !cell->ranks[i].lost) return false;
    return cell->n_ranks != 0;
}

bool bt_cell_has_most(const bt_cell *cell, bool hope)
{
    uint32_t here = 0, all = cell->n_ranks - bt_cell_memory(cell)->seats.n_gone;

    for (uint32_t i = 0; i < cell->n_ranks; i++)
        here += (hope || cell->ranks[i].attached) && !cell->ranks[i].lost;
    return 2 * here > all;
}

void bt_cell_missing(const bt_cell *cell, char *buf, size_t capacity)
{
    bool   complete = bt_cell_complete(cell);
    size_t at       = (size_t)snprintf(buf, capacity, "ranks");

    for (uint32_t i = 0; i < cell->n_ranks && at < capacity; i++) {
        const bt_cell_rank *k = &cell->ranks[i];

        if (k->lost || (complete ? k->ready : k->attached)) continue;
        at += (size_t)snprintf(buf + at, capacity - at, "%s %u", at > 5 ? "," : "", i);
    }
}

void bt_cell_count(const bt_cell *cell, bt_cell_counts *sum)
{
    if (cell->n_ranks == 0) return;
    if (bt_cell_facts(cell)->n_decode != 0) sum->n_groups = 2;
    for (uint32_t i = 0; i < cell->n_ranks; i++) {
        const bt_cell_rank *k = &cell->ranks[i];

        sum->draft_tokens += k->beat.draft_tokens;
        sum->drafts += k->beat.drafts;
        sum->draft_right_tokens += k->beat.draft_right_tokens;
        if (k->group == 0) sum->prefix_asked_tokens += k->beat.prefix_asked_tokens;
        if (k->group == 0) sum->prefix_hit_tokens += k->beat.prefix_hit_tokens;
        if (k->n_experts > sum->n_experts) sum->n_experts = k->n_experts;
        for (uint32_t e = 0; k->group < 2 && e < k->n_experts; e++)
            sum->expert_rows[k->group][e] += k->expert_rows[e];
    }
}

void bt_cell_rank_text(const bt_cell *cell, uint32_t rank, char *buf, size_t capacity)
{
    const bt_up_hello *h    = &cell->ranks[rank].hello;
    uint32_t           g    = launch_group(bt_cell_facts(cell), rank);
    bool               both = bt_cell_facts(cell)->n_decode == 0;
    const char        *role = g == 2 ? "spare " : both ? "" : g == 0 ? "prefill " : "decode ";

    if (h->host == NULL) /* of a cell that came back without it */
        snprintf(buf, capacity, "%srank %u%s%.64s", role, rank,
                 cell->name[0] != 0 ? " of cell " : "", cell->name);
    else
        snprintf(buf, capacity, "%srank %u%s%.64s (pid %u on %.64s)", role, rank,
                 cell->name[0] != 0 ? " of cell " : "", cell->name, h->pid, h->host);
}

const char *bt_cell_title(const bt_cell *cell, char buf[BT_CELL_TITLE])
{
    if (cell->name[0] == 0)
        snprintf(buf, BT_CELL_TITLE, "the cell");
    else
        snprintf(buf, BT_CELL_TITLE, "cell \"%.*s\"", BT_CELL_NAME_MAX, cell->name);
    return buf;
}

const bt_up_hello *bt_cell_facts(const bt_cell *cell) { return &cell->ranks[cell->first].hello; }

/* Cells whose coordinator was lost, and which coordinator may drive a cell.
 *
 * A rank says in its hello which incarnation of a coordinator it has followed, and who sat where.
 * The next coordinator takes a higher incarnation and continues from the report of the rank that
 * has heard most; everything else of the old one is gone.  A coordinator that was only stopped, and
 * meets a rank that has followed a higher one since, gives the cell up.  Two that are started for
 * one cell cannot both have it: each waits for all of its ranks, or for more than half. */
#include <stdio.h>
#include <sys/random.h>

#include "coordinator/fleet_state.h"
#include "core/clock.h"

uint32_t bt_fleet_draw_life(void)
{
    uint32_t life = 0;

    if (getrandom(&life, sizeof(life), 0) != sizeof(life) || life == 0)
        life = (uint32_t)bt_now_ns() | 1;
    return life;
}

static uint32_t life_of(uint64_t incarnation) { return (uint32_t)incarnation; }
static uint32_t count_of(uint64_t incarnation) { return (uint32_t)(incarnation >> 32); }

bt_status bt_fleet_check_origin(bt_fleet *fleet, const bt_up_hello *hello, bool *again_out)
{
    bt_status      st = BT_OK;
    bt_fleet_cell *c  = bt_fleet_find(fleet, hello->cell);

    *again_out = hello->incarnation != 0;
    BT_REQUIRE(fleet->cfg.config_hash == 0 || hello->config_hash == 0 ||
                   hello->config_hash == fleet->cfg.config_hash,
               BT_ERR_INVALID_ARG,
               "rank %u on %s has another config.json or params.json (hash %016llx) than this "
               "coordinator's model (%016llx)",
               hello->rank, hello->host, (unsigned long long)hello->config_hash,
               (unsigned long long)fleet->cfg.config_hash);
    BT_REQUIRE(count_of(hello->incarnation) < UINT32_MAX, BT_ERR_INVALID_ARG,
               "rank %u on %s says that it has followed incarnation %016llx, which none can follow",
               hello->rank, hello->host, (unsigned long long)hello->incarnation);
    if (hello->incarnation == 0) goto out;
    if (life_of(hello->incarnation) == fleet->life) {
        *again_out = false;
        BT_REQUIRE(false, BT_ERR_INVALID_ARG,
                   "rank %u on %s was lost to this coordinator, which goes on without it",
                   hello->rank, hello->host);
    }
    if (c == NULL || c->incarnation == 0 || c->state == BT_CELL_LEAVING) goto out;
    if (hello->incarnation > c->incarnation) {
        BT_TRY(bt_cell_fits(&c->cell, hello)); /* a rank of something else says nothing about it */
        bt_fleet_lose(c,
                      "another coordinator (incarnation %016llx) has taken cell \"%s\" from this "
                      "one (%016llx)",
                      (unsigned long long)hello->incarnation, hello->cell,
                      (unsigned long long)c->incarnation);
    }
    BT_REQUIRE(
        hello->incarnation < c->incarnation, BT_ERR_INVALID_ARG,
        "rank %u on %s has followed another coordinator (incarnation %016llx) since this one "
        "had its cell",
        hello->rank, hello->host, (unsigned long long)hello->incarnation);
out:
    return st;
}

/* The first cell's caches stay of use; there is one seed for all. */
static void take_seed(bt_fleet_cell *c)
{
    bt_fleet *fleet = c->fleet;
    uint64_t  seed  = bt_cell_memory(&c->cell)->prefix_seed;

    for (uint32_t i = 0; i < fleet->n_cells; i++)
        if (fleet->cells[i]->incarnation != 0) return;
    if (seed != 0 && bt_fleet_facts(fleet) == NULL) fleet->prefix_seed = seed;
}

void bt_fleet_welcome(bt_fleet_cell *c)
{
    bt_cell *cell = &c->cell;
    char     who[192], why[BT_FLEET_TEXT], title[BT_CELL_TITLE];

    for (uint32_t i = 0; i < cell->n_ranks; i++) {
        if (!cell->ranks[i].lost || c->streams[i].peer == NULL) continue;
        bt_cell_rank_text(cell, i, who, sizeof(who));
        snprintf(why, sizeof(why), "%s has been removed from its cell, which goes on without it",
                 who);
        BT_WARN("%s", why);
        bt_fleet_shut_out(c, i, why);
    }
    take_seed(c);
    c->incarnation = (uint64_t)(count_of(cell->incarnation) + 1) << 32 | c->fleet->life;
    for (uint32_t i = 0; i < cell->n_ranks; i++) {
        bt_down down = {
            .kind      = BT_DOWN_WELCOME,
            .u.welcome = {cell->max_epoch + 1, c->incarnation, c->fleet->prefix_seed}
        };

        if (c->streams[i].peer != NULL) bt_control_send(c->streams[i].peer, &down);
    }
    if (cell->incarnation != 0)
        BT_INFO("%s has come back with %u of %u ranks: incarnation %u", bt_cell_title(cell, title),
                c->n_peers, cell->n_ranks, count_of(c->incarnation));
    else if (cell->n_ranks == 1)
        BT_INFO("the one rank has attached");
    else
        BT_INFO("all %u ranks have attached", cell->n_ranks);
}

static bool may_lack_ranks(const bt_fleet_cell *c)
{
    return c->fleet->cfg.relay.replace && c->cell.incarnation != 0;
}

static void give_up(bt_fleet_cell *c, uint32_t rank, const char *why)
{
    char who[192];

    bt_cell_rank_text(&c->cell, rank, who, sizeof(who));
    BT_WARN("%s %s: the cell goes on without it", who, why);
    c->cell.ranks[rank].lost = true;
}

bool bt_fleet_go_without(bt_fleet_cell *c)
{
    if (!may_lack_ranks(c) || !bt_cell_has_most(&c->cell, false)) return false;
    for (uint32_t i = 0; i < c->cell.n_ranks; i++)
        if (!c->cell.ranks[i].attached && !c->cell.ranks[i].lost)
            give_up(c, i, "has not come back");
    return true;
}

bool bt_fleet_go_without_rank(bt_fleet_cell *c, uint32_t rank)
{
    if (!may_lack_ranks(c)) return false;
    c->cell.ranks[rank].lost = true;
    /* Those that have been welcomed follow this coordinator, however few they are. */
    if (c->state == BT_CELL_ATTACHING ? !bt_cell_has_most(&c->cell, true) : c->n_peers == 0)
        return false;
    give_up(c, rank, "was lost on its way back");
    return true;
}

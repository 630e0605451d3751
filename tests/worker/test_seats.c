/* What a rank does when who sits where has changed, in which order, and how it waits for that. */
#include <string.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "parallel/carrier.h"
#include "tests/support/test.h"
#include "tests/worker/steps.h"
#include "worker/rank.h"

enum { N_RANKS = 5 }; /* two prefill ranks, two decode ranks and a spare */

struct bt_group {
    uint32_t n, ranks[N_RANKS], tag_space, epoch;
};

static uint32_t g_rank; /* this one */
static uint32_t g_excluded, g_joined_epoch, g_n_joined, g_n_senders, g_joined[N_RANKS];
static uint32_t g_n_missing;
static uint64_t g_n_met;
static bool     g_taken[2]; /* of its group's seats */
static long     g_live;     /* allocations before a launch */
static bt_up    g_up;       /* what it has said */
static int      g_sleeps;   /* until its coordinator is lost, says something or wants it to leave */
static char     g_what_comes;
static uint16_t g_owner[8]; /* of the experts: its group's seats in turn */
static uint32_t g_n_more, g_n_at_once;
static uint64_t g_most;
static bool     g_is_full;

static bt_status sync_device(bt_device *dev)
{
    (void)dev;
    note('s');
    return BT_OK;
}

static const bt_device_ops OPS   = {.sync = sync_device};
static bt_device           g_cpu = {.ops = &OPS, .host_memory = true};

/* ---- the world, the group and its experts */

uint32_t bt_world_rank(const bt_world *world)
{
    (void)world;
    return g_rank;
}
uint32_t bt_world_size(const bt_world *world)
{
    (void)world;
    return N_RANKS;
}

bt_status bt_group_create(bt_world *world, uint32_t n, const uint32_t *ranks, uint32_t tag_space,
                          uint32_t epoch, bt_group **group_out)
{
    bt_group *g = bt_calloc(1, sizeof(*g));

    (void)world;
    if (g == NULL) return BT_ERR_NO_MEMORY;
    *g = (bt_group){.n = n, .tag_space = tag_space, .epoch = epoch};
    for (uint32_t i = 0; i < n; i++)
        g->ranks[i] = ranks[i];
    *group_out = g;
    note('g');
    return BT_OK;
}
void     bt_group_destroy(bt_group *g) { bt_free(g); }
uint32_t bt_group_size(const bt_group *g) { return g->n; }
uint32_t bt_group_epoch(const bt_group *g) { return g->epoch; }
uint64_t bt_group_n_met(const bt_group *g) { return g->n > 0 ? g_n_met : 0; }
uint32_t bt_group_self(const bt_group *g)
{
    for (uint32_t i = 0; i < g->n; i++)
        if (g->ranks[i] == g_rank) return i;
    return UINT32_MAX;
}
uint32_t bt_group_missing(const bt_group *g, uint32_t *ranks_out)
{
    for (uint32_t i = 0; i < g_n_missing; i++)
        ranks_out[i] = g->ranks[i];
    return g_n_missing;
}
void bt_group_drain(bt_group *g)
{
    EXPECT(g != NULL);
    note('d');
}
void bt_group_end_exchanges(bt_group *g)
{
    EXPECT(g != NULL);
    note('e');
}
void bt_group_attach(bt_group *g, bt_carrier *carrier)
{
    (void)g, (void)carrier;
    EXPECT(false); /* it is in host memory */
}
bt_status bt_carrier_nccl_create(const bt_nccl_module *nccl, bt_device *dev, bt_world *world,
                                 uint32_t tag_space, bt_carrier **carrier_out)
{
    (void)nccl, (void)dev, (void)world, (void)tag_space, (void)carrier_out;
    return BT_ERR_UNSUPPORTED;
}
bt_status bt_carrier_staged_create(bt_device *dev, bt_carrier **carrier_out)
{
    (void)dev, (void)carrier_out;
    return BT_ERR_UNSUPPORTED;
}

bt_status bt_placement_of_seats(bt_placement *p, uint32_t n_experts, uint32_t n_groups,
                                uint32_t n_seats, const bool *taken)
{
    (void)n_groups;
    EXPECT_EQ(n_seats, 2);
    memcpy(g_taken, taken, sizeof(g_taken));
    for (uint32_t e = 0; e < n_experts; e++)
        g_owner[e] = taken[0] && taken[1] ? e % 2 : 0;
    *p = (bt_placement){.n_experts = n_experts, .owner = g_owner};
    return BT_OK;
}
void bt_placement_fini(bt_placement *p) { *p = (bt_placement){0}; }

void bt_model_leave_group(bt_model *model)
{
    (void)model;
    note('l');
}
bt_status bt_model_regroup(bt_model *model, const bt_safetensors *st, const bt_model_options *opt)
{
    (void)model, (void)st;
    EXPECT(opt->group != NULL && opt->placement != NULL);
    note('m');
    return BT_OK;
}
size_t bt_model_weight_bytes(const bt_model *model)
{
    (void)model;
    return 0;
}
uint64_t  bt_memory_available(void) { return 0; }
bt_status bt_memory_available_on(bt_device *dev, uint64_t *available_out)
{
    (void)dev, (void)available_out;
    return BT_ERR_UNSUPPORTED;
}
uint64_t bt_memory_weights(const bt_model_config *cfg, const bt_safetensors *st, const bool *own)
{
    (void)cfg, (void)st, (void)own;
    return 100;
}
bt_status bt_memory_check_room(const bt_memory_account *account, uint32_t n_more,
                               uint32_t n_at_once, uint64_t most, uint64_t available)
{
    (void)account, (void)available;
    g_n_more    = n_more;
    g_n_at_once = n_at_once;
    g_most      = most;
    return g_is_full ? BT_ERR_NO_MEMORY : BT_OK;
}
uint32_t bt_model_missing_experts(const bt_model *model)
{
    (void)model;
    return 7;
}

/* ---- pages and orders */

bt_status bt_handoff_exclude(bt_handoff *handoff, uint32_t rank)
{
    (void)handoff;
    g_excluded = rank;
    note('x');
    return BT_OK;
}
bt_status bt_handoff_join(bt_handoff *handoff, uint32_t epoch, uint32_t n, uint32_t n_senders,
                          const uint32_t *ranks)
{
    (void)handoff;
    g_joined_epoch = epoch;
    g_n_joined     = n;
    g_n_senders    = n_senders;
    memcpy(g_joined, ranks, n * sizeof(*ranks));
    note('j');
    return BT_OK;
}
bt_status bt_seats_check(const bt_rank_facts *facts, uint32_t epoch, const bt_down_regroup *m)
{
    EXPECT(facts->rank == g_rank && epoch < m->epoch);
    return BT_OK;
}
bt_status bt_worker_control(bt_worker *w, bt_down *m)
{
    (void)w;
    EXPECT_EQ(m->kind, BT_DOWN_REGROUP);
    note('w');
    return BT_OK;
}
bool bt_worker_background(bt_worker *w)
{
    (void)w;
    return false;
}

/* ---- the coordinator */

void bt_rank_adopted(bt_rank *r)
{
    (void)r;
    note('a');
}
bt_status bt_rank_say_ready(bt_rank *r)
{
    (void)r;
    note('r');
    return BT_OK;
}
void bt_rank_say_progress(bt_rank *r, uint64_t done_bytes, uint64_t total_bytes)
{
    (void)r;
    EXPECT(done_bytes == 0 && total_bytes == 0);
    note('p');
}
void bt_rank_leave_early(bt_rank *r, bt_status st)
{
    (void)r, (void)st;
    abort();
}
bt_status bt_links_send(bt_links *links, bt_up *m)
{
    (void)links;
    bt_up_free(&g_up);
    g_up = *m;
    note('u');
    return BT_OK;
}
bool bt_links_must_leave(bt_links *links)
{
    (void)links;
    return g_sleeps == 0 && g_what_comes == 'l';
}
bool bt_links_forsake(bt_links *links)
{
    links->orphaned = g_what_comes == 'f'; /* another coordinator may come */
    return links->orphaned;
}
void bt_links_sleep(bt_links *links, uint64_t max_ns)
{
    struct timespec t = {0, (long)max_ns};

    if (g_sleeps > 0) g_sleeps--;
    if (g_sleeps == 0 && g_what_comes == 'r') links->regroup_due = true;
    if (g_sleeps == 0 && g_what_comes == 'o') links->orphaned = true;
    nanosleep(&t, NULL);
}

/* ---- the tests */

static bt_rank launch(uint32_t rank, bool both)
{
    bt_rank r = {.dev = &g_cpu, .handoff = (bt_handoff *)g_said};

    g_rank                   = rank;
    r.cfg.moe.gate.n_experts = 8;
    r.opt.n_both             = both ? 4 : 0;
    r.opt.n_prefill          = both ? 0 : 2;
    r.opt.n_decode           = both ? 0 : 2;
    r.opt.timeout_ns         = 3600 * BT_NS_PER_S;
    g_live                   = bt_alloc_live();
    EXPECT_EQ(bt_rank_find_place(&r), BT_OK);
    return r;
}

/* It has its group, as if at the start. */
static void form(bt_rank *r)
{
    EXPECT_EQ(bt_rank_form_group(r, r->seating.groups), BT_OK);
    EXPECT(did(r->group != NULL ? "g" : ""));
}

static void end(bt_rank *r)
{
    bt_group_destroy(r->group);
    bt_regroup_free(&r->seating);
    bt_free(r->plans);
    bt_up_free(&g_up);
    EXPECT_EQ(bt_alloc_live(), g_live);
}

/* The coordinator's word: `lost` has no seat any more, or has it again, in that epoch. */
static bt_down regroup(const bt_rank *r, uint32_t lost, uint32_t epoch)
{
    bt_down          m = {.kind = BT_DOWN_REGROUP};
    bt_down_regroup *g = &m.u.regroup;

    EXPECT_EQ(bt_regroup_copy(&r->seating, g), BT_OK);
    g->epoch = epoch;
    for (uint32_t k = 0; k < 2; k++)
        for (uint32_t i = 0; i < g->groups[k].n; i++)
            if (g->groups[k].ranks[i] == lost) {
                g->groups[k].ranks[i] = BT_NO_RANK;
                g->groups[k].epoch    = epoch;
            }
    return m;
}

static void seats_as_launched(void)
{
    bt_rank r = launch(3, false);

    EXPECT(r.facts.rank == 3 && r.facts.n_ranks == 5 && r.links.rank == 3);
    EXPECT(r.seating.groups[0].n == 2 && r.seating.groups[1].n == 2 && r.epoch == 1);
    form(&r);
    EXPECT(r.group_size == 2 && r.group_self == 1);
    EXPECT(r.group->tag_space == 1 && r.group->epoch == 1 && r.links.group == r.group);
    EXPECT(r.group->ranks[0] == 2 && r.group->ranks[1] == 3 && g_taken[0] && g_taken[1]);
    end(&r);
    r = launch(4, false);
    form(&r); /* a spare has none */
    EXPECT(r.group == NULL);
    end(&r);
    r = launch(3, true);
    EXPECT(r.seating.groups[0].n == 4 && r.seating.groups[1].n == 0);
    end(&r);
}

/* The group's exchanges end before anything else; orders are looked at when all else has followed.
 */
static void seats_of_its_own_group_change(void)
{
    bt_rank r = launch(2, false);
    bt_down m;

    form(&r);
    m                   = regroup(&r, 3, 7);
    m.u.regroup.n_gone  = 1;
    r.links.regroup_due = true;
    EXPECT_EQ(bt_rank_regroup(&r, &m), BT_OK);
    EXPECT(did("exjlsgmdpwa"));
    EXPECT(g_excluded == 3 && g_joined_epoch == 7 && g_n_joined == 3 && g_n_senders == 2);
    EXPECT(g_joined[0] == 0 && g_joined[1] == 1 && g_joined[2] == 2);
    EXPECT(r.group_size == 1 && r.group->epoch == 7 && g_taken[0] && !g_taken[1]);
    EXPECT(r.shrunk && r.epoch == 7 && r.seating.epoch == 7 && !r.links.regroup_due);
    EXPECT_EQ(r.seating.groups[1].ranks[1], BT_NO_RANK);
    end(&r);
}

static void seats_of_the_other_group_change(void)
{
    for (int due = 0; due < 2; due++) {
        bt_rank   r = launch(0, false);
        bt_down   m;
        bt_group *group;

        form(&r);
        group               = r.group;
        m                   = regroup(&r, 3, 7);
        r.links.regroup_due = due; /* of a later change of its own */
        EXPECT_EQ(bt_rank_regroup(&r, &m), BT_OK);
        EXPECT(did(due ? "exjwa" : "xjwa"));
        EXPECT(r.group == group && !r.shrunk && r.epoch == 7 && !r.links.regroup_due);
        end(&r);
    }
}

/* Of which no group knows. */
static void seats_stay_when_a_spare_is_lost(void)
{
    bt_rank r = launch(0, false);
    bt_down m;

    form(&r);
    m                  = regroup(&r, 4, 7);
    m.u.regroup.n_gone = 1;
    EXPECT_EQ(bt_rank_regroup(&r, &m), BT_OK);
    EXPECT(did("wa"));
    EXPECT(r.shrunk && r.epoch == 7);
    end(&r);
}

static void seats_are_prepared_for_by_spares_alone(void)
{
    bt_rank r = launch(4, false);
    bt_down m = regroup(&r, 3, 7);

    m.u.regroup.prepare            = true;
    m.u.regroup.groups[1].ranks[1] = 4;
    EXPECT_EQ(bt_rank_regroup(&r, &m), BT_OK);
    EXPECT(did("lsgmdpr"));
    EXPECT(r.seating.groups[1].ranks[1] == 3 && r.epoch == 1);
    bt_down_free(&m);
    m                   = regroup(&r, 3, 8);
    m.u.regroup.prepare = true;
    EXPECT_EQ(bt_rank_regroup(&r, &m), BT_ERR_PROTOCOL); /* it is given none */
    EXPECT(did(""));
    bt_down_free(&m);
    end(&r);
    r                   = launch(2, false);
    m                   = regroup(&r, 3, 7);
    m.u.regroup.prepare = true;
    EXPECT_EQ(bt_rank_regroup(&r, &m), BT_ERR_PROTOCOL); /* it has one */
    EXPECT(did(""));
    bt_down_free(&m);
    end(&r);
}

/* All ranks of a machine take a lost one's experts at the same time; a spare takes them alone. */
static void seats_with_more_experts_need_room_for_these(void)
{
    bt_rank r = launch(2, false);
    bt_down m = regroup(&r, 3, 7);

    form(&r);
    r.memory.local_size = 3;
    r.memory.expert     = 10;
    r.store             = (bt_store *)g_said;
    EXPECT_EQ(bt_rank_regroup(&r, &m), BT_OK);
    EXPECT(did("exjlsgmdpwa"));
    EXPECT(g_n_more == 4 && g_n_at_once == 3 && g_most == 70);
    end(&r);
    r                              = launch(4, false);
    m                              = regroup(&r, 3, 7);
    m.u.regroup.prepare            = true;
    m.u.regroup.groups[1].ranks[1] = 4;
    EXPECT_EQ(bt_rank_regroup(&r, &m), BT_OK);
    EXPECT(did("lsgmdpr"));
    EXPECT(g_n_more == 4 && g_n_at_once == 1 && g_most == UINT64_MAX);
    bt_down_free(&m);
    end(&r);
    r         = launch(2, false);
    m         = regroup(&r, 3, 7);
    g_is_full = true;
    form(&r);
    EXPECT_EQ(bt_rank_regroup(&r, &m), BT_ERR_NO_MEMORY);
    EXPECT(did("exjlsg"));
    g_is_full = false;
    bt_down_free(&m);
    end(&r);
}

static bt_status await(bt_rank *r, char what_comes, uint32_t n_missing)
{
    bt_status st;

    g_sleeps             = 3;
    g_what_comes         = what_comes;
    g_n_missing          = n_missing;
    g_n_met              = 9;
    r->links.regroup_due = r->links.orphaned = false;
    st                                       = bt_rank_await_regroup(r, BT_ERR_IO);
    EXPECT(did("u"));
    EXPECT(g_up.kind == BT_UP_EXPIRED && g_up.u.expired.epoch == 1 && g_up.u.expired.n_met == 9);
    EXPECT(g_up.u.expired.n == n_missing && (n_missing == 0 || g_up.u.expired.ranks[0] == 2));
    return st;
}

/* By NCCL it may have been another rank's. */
static void device_that_has_failed_is_no_reason_to_wait(void)
{
    bt_rank r = launch(3, false);

    form(&r);
    EXPECT_EQ(bt_rank_await_regroup(&r, BT_ERR_DEVICE), BT_ERR_DEVICE);
    EXPECT(did(""));
    r.nccl       = (const void *)&r;
    g_sleeps     = 1;
    g_what_comes = 'r';
    EXPECT_EQ(bt_rank_await_regroup(&r, BT_ERR_DEVICE), BT_OK);
    EXPECT(did("u"));
    end(&r);
}

static void seats_are_waited_for(void)
{
    bt_rank  r = launch(3, false);
    uint64_t begun;

    form(&r);
    EXPECT_EQ(await(&r, 'r', 1), BT_OK); /* it has come */
    EXPECT(r.links.regroup_due);
    EXPECT_EQ(await(&r, 'o', 1), BT_OK); /* its coordinator is lost */
    EXPECT_EQ(await(&r, 'l', 1), BT_ERR_CANCELLED);
    r.opt.quiet_ns = r.opt.timeout_ns = 10 * BT_NS_PER_MS; /* both count */
    for (int another = 0; another < 2; another++) {        /* may come */
        begun = bt_awake_ns();
        EXPECT_EQ(await(&r, another ? 'f' : '-', 1), another ? BT_OK : BT_ERR_TIMEOUT);
        EXPECT(bt_awake_ns() - begun >= 20 * BT_NS_PER_MS);
    }
    r.opt.timeout_ns = 3600 * BT_NS_PER_S;
    EXPECT_EQ(await(&r, 'r', 0), BT_OK);
    EXPECT_EQ(await(&r, 'r', 0), BT_OK);
    EXPECT_EQ(await(&r, 'r', 1), BT_OK); /* counted anew from here */
    EXPECT_EQ(await(&r, 'r', 0), BT_OK);
    EXPECT_EQ(await(&r, 'r', 0), BT_OK);
    EXPECT_EQ(await(&r, 'r', 0), BT_ERR_IO); /* why the exchange had failed */
    end(&r);
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {
        BT_TEST(seats_as_launched),
        BT_TEST(seats_of_its_own_group_change),
        BT_TEST(seats_of_the_other_group_change),
        BT_TEST(seats_stay_when_a_spare_is_lost),
        BT_TEST(seats_are_prepared_for_by_spares_alone),
        BT_TEST(seats_with_more_experts_need_room_for_these),
        BT_TEST(seats_are_waited_for),
        BT_TEST(device_that_has_failed_is_no_reason_to_wait),
    };

    return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
}

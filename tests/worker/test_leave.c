/* The ways in which a rank ends: whom it tells, what it lets go, and with which code. */
#include <setjmp.h>
#include <string.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "core/watchdog.h"
#include "tests/support/test.h"
#include "tests/worker/steps.h"
#include "worker/rank.h"

static char       g_reason[256];
static bool       g_lost, g_pool_is_wrong;
static int        g_code;
static jmp_buf    g_end;
static atomic_int g_signal, g_drain;
static char       g_client;

bt_status bt_control_client_send(bt_control_client *client, bt_up *m)
{
    EXPECT(client == (bt_control_client *)&g_client && m->kind == BT_UP_LEAVING);
    snprintf(g_reason, sizeof(g_reason), "%s", m->u.leaving.reason);
    bt_free(m->u.leaving.reason);
    note('l');
    return BT_OK;
}
void bt_control_client_stop(bt_control_client *client, uint64_t flush_ns)
{
    EXPECT(client == (bt_control_client *)&g_client && flush_ns == 2 * BT_NS_PER_S);
    note('x');
}
bool bt_control_client_lost(bt_control_client *client)
{
    EXPECT(client == (bt_control_client *)&g_client);
    return g_lost;
}
void bt_control_client_loss(bt_control_client *client, char *buf, size_t capacity)
{
    EXPECT(client == (bt_control_client *)&g_client);
    snprintf(buf, capacity, "it was stopped");
}
bt_status bt_links_send(bt_links *links, bt_up *m)
{
    EXPECT(links->client == (bt_control_client *)&g_client && m->kind == BT_UP_DRAIN);
    note('d');
    return BT_OK;
}
void bt_watchdog_set_limit(uint64_t limit_ns)
{
    EXPECT_EQ(limit_ns, 10 * BT_NS_PER_S);
    note('w');
}
void bt_world_exit(int code)
{
    g_code = code;
    note('e');
    longjmp(g_end, 1);
}

/* ---- what a rank has */

void      bt_worker_log_account(const bt_worker *w) { (void)w, note('A'); }
void      bt_worker_destroy(bt_worker *w) { (void)w, note('W'); }
bt_status bt_kv_pool_check(const bt_kv_pool *pool)
{
    (void)pool, note('k');
    return g_pool_is_wrong ? BT_ERR_PROTOCOL : BT_OK;
}
void        bt_kv_pool_destroy(bt_kv_pool *pool) { (void)pool, note('K'); }
void        bt_handoff_destroy(bt_handoff *handoff) { (void)handoff, note('H'); }
void        bt_model_destroy(bt_model *model) { (void)model, note('M'); }
void        bt_store_close(bt_store *store) { (void)store, note('S'); }
void        bt_packed_close(bt_packed *packed) { (void)packed, note('P'); }
void        bt_group_destroy(bt_group *group) { (void)group, note('G'); }
void        bt_placement_fini(bt_placement *p) { (void)p, note('E'); }
void        bt_regroup_free(bt_down_regroup *regroup) { (void)regroup, note('R'); }
void        bt_constraints_close(bt_constraints *all) { (void)all, note('C'); }
void        bt_safetensors_close(bt_safetensors *st) { (void)st, note('T'); }
void        bt_links_fini(bt_links *links) { (void)links, note('L'); }
void        bt_world_fini(bt_world *world) { (void)world, note('F'); }
static void destroy_device(bt_device *dev) { (void)dev, note('D'); }

/* ---- the tests */

static bt_rank serving(void)
{
    static const bt_device_ops OPS = {.destroy = destroy_device};
    static bt_device           dev = {.ops = &OPS};
    bt_rank r = {.dev = &dev, .client = (bt_control_client *)&g_client, .links.signal = &g_signal};

    r.drain        = &g_drain;
    r.links.client = r.client;
    g_signal = g_drain = 0;
    g_lost = g_pool_is_wrong = false;
    g_reason[0]              = '\0';
    return r;
}

static void leave_early(bt_rank *r, bt_status st)
{
    if (setjmp(g_end) == 0) bt_rank_leave_early(r, st);
}

static void leave_together(bt_rank *r)
{
    if (setjmp(g_end) == 0) bt_rank_leave_together(r);
}

/* It says why, and ends. */
static bool leaves_early(bt_rank *r, bt_status st, int code, const char *reason)
{
    leave_early(r, st);
    EXPECT_EQ(alarm(0), 10);
    EXPECT_EQ(g_code, code);
    EXPECT(r->client == NULL);
    return did("lxe") && strcmp(g_reason, reason) == 0;
}

static void leave_for_the_first_reason_there_is(void)
{
    bt_rank r = serving();

    EXPECT(leaves_early(&r, BT_ERR_PEER, EXIT_FAILURE, bt_status_str(BT_ERR_PEER)));
    r = serving();
    bt_error_keep("", "rank 3 does not answer");
    EXPECT(leaves_early(&r, BT_ERR_PEER, EXIT_FAILURE, "rank 3 does not answer"));
    r                   = serving();
    r.links.shutdown_ns = 1;
    EXPECT(leaves_early(&r, BT_ERR_CANCELLED, EXIT_SUCCESS,
                        "told to leave, the group takes no steps"));
    r                   = serving();
    r.links.shutdown_ns = 1;
    g_lost              = true;
    EXPECT(leaves_early(&r, BT_ERR_CANCELLED, EXIT_FAILURE, "it was stopped"));
    r        = serving();
    g_signal = 15;
    g_lost   = true;
    EXPECT(leaves_early(&r, BT_ERR_CANCELLED, EXIT_SUCCESS, "signal 15 (Terminated)"));
    r        = serving();
    r.client = NULL; /* nobody is there to be told */
    leave_early(&r, BT_ERR_CANCELLED);
    EXPECT(did("e") && g_code == EXIT_FAILURE);
    alarm(0);
}

/* Each coordinator hears of it, once. */
static void leave_passes_a_drain_on_once(void)
{
    bt_rank r = serving();

    bt_rank_pass_on_drain(&r);
    EXPECT(did("") && !r.told_drain); /* nobody wants one */
    g_drain  = 1;
    r.client = NULL;
    bt_rank_pass_on_drain(&r);
    EXPECT(did("") && !r.told_drain);
    r.client         = r.links.client;
    r.links.orphaned = true;
    bt_rank_pass_on_drain(&r);
    EXPECT(did("") && !r.told_drain);
    r.links.orphaned = false;
    bt_rank_pass_on_drain(&r);
    EXPECT(did("d") && r.told_drain);
    bt_rank_pass_on_drain(&r);
    EXPECT(did(""));
}

/* Who has lost others cannot leave by MPI any more. */
static void leave_together_lets_all_go(void)
{
    for (int shrunk = 0; shrunk < 2; shrunk++) {
        bt_rank r = serving();

        r.shrunk = shrunk;
        g_code   = -1;
        leave_together(&r);
        EXPECT(did(shrunk ? "AWklxHMSPKGERCTDLe" : "AWklxHMSPKGERCTDLwF"));
        EXPECT_EQ(g_code, shrunk ? EXIT_SUCCESS : -1);
        EXPECT(strcmp(g_reason, "told to leave") == 0);
    }
}

static void leave_with_pages_missing_is_a_failure(void)
{
    bt_rank r = serving();

    g_pool_is_wrong = true;
    leave_together(&r);
    EXPECT(did("AWklxe") && g_code == EXIT_FAILURE && alarm(0) == 10);
    EXPECT(strcmp(g_reason, "the page pool does not add up") == 0);
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {
        BT_TEST(leave_for_the_first_reason_there_is),
        BT_TEST(leave_passes_a_drain_on_once),
        BT_TEST(leave_together_lets_all_go),
        BT_TEST(leave_with_pages_missing_is_a_failure),
    };

    return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
}

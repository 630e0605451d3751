/* A rank whose coordinator is lost: what it does until another one drives it. */
#include <string.h>

#include "core/clock.h"
#include "tests/support/test.h"
#include "tests/worker/steps.h"
#include "worker/rank.h"

static const char *g_loss = ""; /* why the stream ended */
static uint64_t    g_connect_ns;
static bool        g_over; /* the search, which has found: */
static char        g_clients[2];

static bt_control_client *client(int i) { return (bt_control_client *)&g_clients[i]; }

void bt_control_client_loss(bt_control_client *c, char *buf, size_t capacity)
{
    EXPECT(c != NULL);
    snprintf(buf, capacity, "%s", g_loss);
}

void bt_control_client_stop(bt_control_client *c, uint64_t flush_ns)
{
    EXPECT(c != NULL && flush_ns == 0);
    note('x');
}

void bt_links_set_client(bt_links *links, bt_control_client *c)
{
    links->client   = c;
    links->orphaned = c == NULL;
    note(c == NULL ? 'n' : 'c');
}

bt_status bt_worker_drop_all(bt_worker *worker)
{
    (void)worker;
    note('d');
    return BT_OK;
}

bt_status bt_rank_make_hello(const bt_rank *r, bt_up *hello_out)
{
    (void)r;
    *hello_out = (bt_up){.kind = BT_UP_HELLO};
    return BT_OK;
}

bt_status bt_control_attach_start(const char *address, uint64_t connect_ns, uint64_t quiet_ns,
                                  bt_up *hello, bt_control_attach **attach_out)
{
    EXPECT(strcmp(address, "there") == 0 && quiet_ns == 7 && hello->kind == BT_UP_HELLO);
    g_connect_ns = connect_ns;
    *attach_out  = (bt_control_attach *)g_said;
    note('s');
    return BT_OK;
}

bt_status bt_rank_say_ready(bt_rank *r)
{
    EXPECT(r->links.client == r->client);
    note('r');
    return BT_OK;
}

void bt_rank_pass_on_drain(bt_rank *r)
{
    EXPECT(!r->told_drain); /* each coordinator hears of it */
    note('p');
}

static bt_control_client *g_found;

bool bt_control_attach_poll(bt_control_attach *attach, bt_control_client **client_out, char *why,
                            size_t capacity)
{
    EXPECT(attach != NULL);
    if (!g_over) return false;
    *client_out = g_found;
    if (g_found == NULL) snprintf(why, capacity, "nobody is there");
    return true;
}

static bt_rank serving(void)
{
    bt_rank r = {.client = client(0), .worker = (bt_worker *)g_clients, .told_drain = true};

    r.opt.coordinator = (char *)"there";
    r.opt.orphan_ns   = 60 * BT_NS_PER_S;
    r.opt.quiet_ns    = 7;
    r.links.client    = r.client;
    g_over            = false;
    g_loss            = "";
    return r;
}

static bool tend(bt_rank *r, const char *steps)
{
    return bt_rank_tend_coordinator(r) == BT_OK && did(steps);
}

static void orphan_finds_the_next_coordinator(void)
{
    bt_rank  r = serving();
    uint64_t since_ns, now;

    EXPECT(tend(&r, "")); /* it has one */
    EXPECT(r.client == client(0));

    r.links.orphaned = true;
    EXPECT(tend(&r, "xnd"));
    EXPECT(r.client == NULL && !r.told_drain && r.search_ns == 0);
    EXPECT(strcmp(r.refusal, "the coordinator does not answer") == 0);
    since_ns = r.orphan_ns;
    EXPECT(since_ns != 0);
    EXPECT(tend(&r, "s"));
    EXPECT(g_connect_ns <= 60 * BT_NS_PER_S && g_connect_ns > 10 * BT_NS_PER_S);
    EXPECT(tend(&r, "")); /* it is under way */

    g_over = true;
    now    = bt_awake_ns();
    EXPECT(tend(&r, "")); /* in vain */
    EXPECT(r.search == NULL && r.search_ns > now);
    r.search_ns = UINT64_MAX;
    EXPECT(tend(&r, "")); /* not at once */
    r.search_ns = 0;
    EXPECT(tend(&r, "s"));

    g_found = client(1);
    EXPECT(tend(&r, "cpr"));
    EXPECT(r.client == client(1) && r.search == NULL && r.orphan_ns == since_ns);
    EXPECT(tend(&r, "")); /* it has one */

    g_loss           = "it was stopped"; /* before it has taken this rank */
    r.links.orphaned = true;
    r.told_drain     = true;
    now              = bt_awake_ns();
    EXPECT(tend(&r, "xnd"));
    EXPECT(r.orphan_ns == since_ns && r.search_ns > now && !r.told_drain);
    EXPECT(strcmp(r.refusal, g_loss) == 0);
    bt_rank_adopted(&r);
    EXPECT_EQ(r.orphan_ns, 0);
}

/* It is not ready yet, and nothing is there to be dropped. */
static void orphan_that_loads_finds_the_next_coordinator(void)
{
    bt_rank r = serving();

    r.worker         = NULL;
    r.links.orphaned = true;
    g_found          = client(1);
    EXPECT(tend(&r, "xn"));
    EXPECT(tend(&r, "s"));
    g_over = true;
    EXPECT(tend(&r, "cp"));
}

static void orphan_gives_up_in_the_end(void)
{
    bt_rank r = serving();

    r.links.orphaned = true;
    EXPECT(tend(&r, "xnd"));
    r.orphan_ns = bt_awake_ns() - 60 * BT_NS_PER_S;
    EXPECT_EQ(bt_rank_tend_coordinator(&r), BT_ERR_PEER);
    EXPECT(did(""));
    EXPECT(strstr(bt_error_text(), "the coordinator does not answer") != NULL);
}

static bt_down welcome(uint64_t incarnation, uint64_t prefix_seed, uint32_t epoch)
{
    bt_down m = {.kind = BT_DOWN_WELCOME};

    m.u.welcome.incarnation = incarnation;
    m.u.welcome.prefix_seed = prefix_seed;
    m.u.welcome.epoch       = epoch;
    return m;
}

/* The first one drives it at once; a later one when it has said how the groups go on. */
static void orphan_follows_no_coordinator_of_before(void)
{
    bt_rank r = serving();
    bt_down m = welcome(5, 11, 3);

    r.orphan_ns = 1;
    r.epoch     = 2;
    EXPECT_EQ(bt_rank_welcome(&r, &m), BT_OK);
    EXPECT(r.incarnation == 5 && r.prefix_seed == 11 && r.epoch == 3 && r.orphan_ns == 0);
    r.orphan_ns = 1;
    m           = welcome(5, 12, 1);
    EXPECT_EQ(bt_rank_welcome(&r, &m), BT_ERR_PROTOCOL);
    m = welcome(4, 12, 1);
    EXPECT_EQ(bt_rank_welcome(&r, &m), BT_ERR_PROTOCOL);
    m = welcome(0, 12, 1); /* one that never comes again */
    EXPECT_EQ(bt_rank_welcome(&r, &m), BT_OK);
    EXPECT(r.incarnation == 5 && r.prefix_seed == 11 && r.epoch == 3 && r.orphan_ns == 1);
    m = welcome(6, 12, 1);
    EXPECT_EQ(bt_rank_welcome(&r, &m), BT_OK);
    EXPECT(r.incarnation == 6 && r.prefix_seed == 12 && r.epoch == 3 && r.orphan_ns == 1);
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {
        BT_TEST(orphan_finds_the_next_coordinator),
        BT_TEST(orphan_that_loads_finds_the_next_coordinator),
        BT_TEST(orphan_gives_up_in_the_end),
        BT_TEST(orphan_follows_no_coordinator_of_before),
    };

    return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
}

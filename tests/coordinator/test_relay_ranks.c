/* Ranks are lost and come: what the relay does with their requests and their seats. */
#include "coordinator/relay.h"

#include "tests/coordinator/relay_sim.h"

static void submit_random(sim *s, sim_client *client, uint32_t serial)
{
    char name[24];

    snprintf(name, sizeof(name), "c%u", serial);
    s->prompt_logprobs = sim_random(s, 3);
    s->cache_salt      = sim_any_salt(s);
    EXPECT_EQ(sim_submit(s, client, name, 1 + sim_random(s, 20), 1 + sim_random(s, 12),
                         sim_random(s, 14)),
              BT_OK);
}

static void expect_all_done(sim *s, const sim_client *clients, uint32_t n)
{
    for (int k = 0; k < 10; k++) { /* a refused reservation is tried again after a while */
        sim_settle(s);
        s->now += 300 * BT_NS_PER_MS;
        bt_relay_tick(s->relay, s->now);
    }
    for (uint32_t i = 0; i < n; i++)
        sim_expect_done(&clients[i]);
    sim_expect_idle(s);
}

/* Ranks are lost at any moment, down to one of each role: every client has each token once and a
 * clean end, and nothing is left. */
static void relay_lost_ranks_lose_nothing(void)
{
    enum { N = 60 };

    for (uint32_t seed = 1; seed <= 60; seed++) {
        bool       both = seed % 3 == 0;
        sim        s;
        sim_client clients[N];
        uint32_t   n = 0, n_lost[2] = {0, 0};
        long       live = bt_alloc_live();

        sim_init(&s, both ? 0 : 3, both ? 0 : 3, 6, 40);
        s.state += seed;
        s.refuse_percent = seed % 2 == 0 ? 10 : 0;
        for (uint32_t turn = 0; turn < 6000 && (n < N || n_lost[0] + n_lost[1] < (both ? 5u : 4u));
             turn++) {
            uint32_t rank  = sim_random(&s, 6);
            uint32_t group = !both && rank >= 3;

            if (n < N && sim_random(&s, 12) == 0) {
                submit_random(&s, &clients[n], n);
                n++;
            }
            if (sim_random(&s, 150) == 0 && !s.ranks[rank].dead &&
                n_lost[group] < (both ? 5u : 2u)) {
                n_lost[group]++;
                sim_lose(&s, rank);
                bt_relay_lose(s.relay, rank, s.now); /* twice is once */
            }
            if (!s.ranks[rank].dead) sim_once(&s);
        }
        expect_all_done(&s, clients, n);
        sim_fini(&s);
        EXPECT_EQ(bt_alloc_live(), live);
    }
}

/* Memory ends once at any moment, also of what follows from a lost rank: a client may hear of it,
 * and nothing else comes of it. */
static void relay_that_has_no_memory_once_loses_one_request_at_most(void)
{
    enum { N = 6, MOST = 600 };
    uint32_t n_hit = 0;

    for (long k = 0; k < MOST; k++) {
        sim        s;
        sim_client clients[N];
        bool       came[N];
        uint32_t   n_lost = 0;
        long       live   = bt_alloc_live();

        sim_init(&s, 2, 2, 6, 24);
        s.state += (uint64_t)k % 7;
        s.cache_salt = "a";
        bt_alloc_fail_at(k);
        for (uint32_t i = 0; i < N; i++) {
            char name[24];

            snprintf(name, sizeof(name), "r%u", i);
            s.prompt_logprobs = i % 2;
            came[i] = sim_submit(&s, &clients[i], name, 1 + sim_random(&s, 30), 30, 100) == BT_OK;
            EXPECT(came[i] || !bt_relay_has_name(s.relay, name));
            for (int turn = 0; turn < 60; turn++)
                sim_once(&s);
            if (i == N / 2) sim_lose(&s, 3);
        }
        for (int turn = 0; turn < 20; turn++) {
            sim_settle(&s);
            s.now += 300 * BT_NS_PER_MS;
            bt_relay_tick(s.relay, s.now);
        }
        bt_alloc_fail_at(-1);
        for (uint32_t i = 0; i < N; i++) {
            const sim_client *c = &clients[i];

            if (came[i] && c->end.code == GRPC_STATUS_OK) {
                sim_expect_done(c);
                continue;
            }
            n_lost++;
            EXPECT_EQ(c->ends, came[i]); /* what did not come has been refused */
            if (came[i]) EXPECT_EQ(c->end.code, GRPC_STATUS_RESOURCE_EXHAUSTED);
        }
        EXPECT(n_lost <= 1);
        n_hit += n_lost;
        sim_expect_idle(&s);
        sim_fini(&s);
        EXPECT_EQ(bt_alloc_live(), live);
    }
    EXPECT(n_hit > 100);
}

/* Two of each role and two spares: as long as the spares last any rank may go, also the last one of
 * a role, a spare, and one that has just been told to prepare. */
static void relay_spares_take_the_places_of_the_lost(void)
{
    enum { N = 60 };

    for (uint32_t seed = 1; seed <= 60; seed++) {
        sim        s;
        sim_client clients[N];
        uint32_t   n = 0, n_lost = 0, taken[2];
        long       live = bt_alloc_live();

        sim_init(&s, 2, 2, 6, 40);
        s.state += 7 * seed;
        for (uint32_t turn = 0; turn < 6000 && (n < N || n_lost < 2); turn++) {
            uint32_t rank = sim_random(&s, 6);

            if (n < N && sim_random(&s, 12) == 0) {
                submit_random(&s, &clients[n], n);
                n++;
            }
            if (sim_random(&s, 100) == 0 && !s.ranks[rank].dead && n_lost < 2) {
                n_lost++;
                sim_lose(&s, rank);
            }
            if (!s.ranks[rank].dead) sim_once(&s);
        }
        expect_all_done(&s, clients, n);
        bt_relay_count_seats(s.relay, taken);
        EXPECT(taken[0] == 2 && taken[1] == 2); /* every seat is taken again */
        sim_fini(&s);
        EXPECT_EQ(bt_alloc_live(), live);
    }
}

/* All that a cell has goes on in the other one; its ranks are gone, and others come. */
static void lose_cell(sim *from, sim *to)
{
    uint64_t          state = from->state;
    bt_relay_request *q;

    while ((q = bt_relay_take_open(from->relay)) != NULL)
        EXPECT_EQ(bt_relay_adopt(to->relay, q, to->now), BT_OK);
    sim_fini(from);
    sim_init(from, 1, 2, 3, 16);
    from->state = state;
    from->now   = to->now;
}

static void move_first_queued(sim *from, sim *to)
{
    bt_relay_request *q = bt_relay_first_queued(from->relay);

    if (q == NULL) return;
    EXPECT_EQ(bt_relay_adopt(to->relay, bt_relay_take_queued(from->relay, q), to->now), BT_OK);
}

/* Requests change cells at any moment, waiting or open, retracted before and after. */
static void relay_cells_that_come_and_go_lose_nothing(void)
{
    enum { N = 60 };

    for (uint32_t seed = 1; seed <= 40; seed++) {
        sim        cells[2];
        sim_client clients[N];
        uint32_t   n = 0, n_lost = 0;
        long       live = bt_alloc_live();

        sim_init(&cells[0], 1, 2, 3, 16);
        sim_init(&cells[1], seed % 2, 2 * (seed % 2), 2 + seed % 2, 16);
        for (uint32_t i = 0; i < 2; i++)
            cells[i].state += 11 * seed + i;
        for (uint32_t turn = 0; turn < 8000; turn++) {
            sim *here = &cells[turn % 2], *there = &cells[1 - turn % 2];

            if (n < N && sim_random(here, 12) == 0) {
                submit_random(here, &clients[n], n);
                n++;
            }
            if (sim_random(here, 20) == 0) move_first_queued(here, there);
            if (n_lost < 4 && sim_random(here, 400) == 0) {
                n_lost++;
                lose_cell(here, there);
            }
            sim_once(here);
        }
        for (int k = 0; k < 20; k++) {
            for (uint32_t i = 0; i < 2; i++) {
                sim_settle(&cells[i]);
                cells[i].now += 300 * BT_NS_PER_MS;
                bt_relay_tick(cells[i].relay, cells[i].now);
            }
        }
        for (uint32_t i = 0; i < n; i++)
            sim_expect_done(&clients[i]);
        for (uint32_t i = 0; i < 2; i++) {
            sim_expect_idle(&cells[i]);
            sim_fini(&cells[i]);
        }
        EXPECT_EQ(bt_alloc_live(), live);
    }
}

/* What the rank has been told last. */
static const bt_down_regroup *last_regroup(const sim *s, uint32_t rank)
{
    const sim_rank *k = &s->ranks[rank];

    for (uint32_t i = k->n_down; i-- > 0;) {
        const bt_down *m = &k->down[(k->down_at + i) % FIFO];

        if (m->kind == BT_DOWN_REGROUP) return &m->u.regroup;
    }
    BT_ASSERT(!"told of no seats");
    return NULL;
}

/* Rank 4, once a spare, has the seat of rank 0; nobody has that of rank 2. */
static void relay_of_ranks_that_come_back_has_their_seats(void)
{
    uint32_t        prefill[] = {4, 1}, decode[] = {BT_NO_RANK, 3}, taken[2];
    bt_down_regroup seats = {
        .groups = {{.n = 2, .ranks = prefill}, {.n = 2, .ranks = decode}}
    };
    sim s;

    sim_init_as(&s, 2, 2, 5, 32, true);
    bt_relay_destroy(s.relay);
    s.cfg.seats      = &seats;
    s.limits[0].lost = s.limits[2].lost = s.limits[3].lost = true; /* rank 3 has not come */
    EXPECT_EQ(sim_relay_create(&s, &s.relay), BT_OK);
    bt_relay_count_seats(s.relay, taken);
    EXPECT(taken[0] == 2 && taken[1] == 0);
    EXPECT_EQ(bt_relay_n_spares(s.relay), 0);
    sim_lose(&s, 4);
    bt_relay_count_seats(s.relay, taken);
    EXPECT(taken[0] == 1 && taken[1] == 0);
    bt_relay_destroy(s.relay);
    s.limits[3].lost = false;
    EXPECT_EQ(sim_relay_create(&s, &s.relay), BT_OK);
    bt_relay_count_seats(s.relay, taken);
    EXPECT(taken[0] == 2 && taken[1] == 1);
    bt_relay_begin_anew(s.relay, s.now);
    EXPECT(last_regroup(&s, 1)->n_gone == 2 && last_regroup(&s, 1)->gone[1] == 2);
    for (uint32_t i = 0; i < 2; i++) { /* each is told the same */
        EXPECT_EQ(last_regroup(&s, 1 + 2 * i)->groups[0].ranks[i], prefill[i]);
        EXPECT_EQ(last_regroup(&s, 1 + 2 * i)->groups[1].ranks[i], decode[i]);
    }
    sim_fini(&s);
}

/* With an empty seat for each: neither has it before it says, when asked, that it is prepared. */
static void relay_spares_of_a_cell_that_comes_back_are_asked_first(void)
{
    uint32_t        prefill[] = {BT_NO_RANK, 1}, decode[] = {2, BT_NO_RANK}, taken[2];
    bt_down_regroup seats = {
        .groups = {{.n = 2, .ranks = prefill}, {.n = 2, .ranks = decode}}
    };
    sim s;

    sim_init_as(&s, 2, 2, 6, 32, true);
    bt_relay_destroy(s.relay);
    s.cfg.seats      = &seats;
    s.limits[0].lost = s.limits[3].lost = true;
    EXPECT_EQ(sim_relay_create(&s, &s.relay), BT_OK);
    EXPECT_EQ(bt_relay_n_spares(s.relay), 2);
    bt_relay_tick(s.relay, s.now);
    EXPECT_EQ(s.n_stuck, 0); /* they have had nothing to say yet */
    for (uint32_t rank = 0; rank < 6; rank++)
        bt_relay_ready(s.relay, rank, s.now);
    bt_relay_count_seats(s.relay, taken);
    EXPECT(taken[0] == 1 && taken[1] == 1);
    EXPECT(last_regroup(&s, 4)->prepare && last_regroup(&s, 5)->prepare);
    sim_settle(&s);
    bt_relay_count_seats(s.relay, taken);
    EXPECT(taken[0] == 2 && taken[1] == 2);
    sim_fini(&s);
}

static void relay_of_ranks_with_both_roles_has_spares(void)
{
    uint32_t taken[2];
    sim      s;

    sim_init_as(&s, 0, 0, 3, 32, true);
    bt_relay_destroy(s.relay);
    s.cfg.n_spares = 1;
    EXPECT_EQ(sim_relay_create(&s, &s.relay), BT_OK);
    bt_relay_count_seats(s.relay, taken);
    EXPECT(taken[0] == 2 && taken[1] == 0);
    EXPECT_EQ(bt_relay_n_spares(s.relay), 1);
    bt_relay_begin_anew(s.relay, s.now);
    EXPECT_EQ(last_regroup(&s, 0)->epoch, EPOCH + 1); /* there is one group */
    sim_fini(&s);
}

/* One spare prepares for a prefill seat and hangs; the other one, which prepares for a decode seat
 * when the last prefill rank dies, goes where nobody is. */
static void relay_a_spare_goes_where_nobody_is(void)
{
    sim      s;
    uint32_t taken[2];

    sim_init(&s, 2, 2, 6, 40);
    sim_lose(&s, 0);
    sim_lose(&s, 2);
    sim_lose(&s, 1);
    bt_relay_ready(s.relay, 5, s.now); /* for the seat of rank 2 */
    bt_relay_count_seats(s.relay, taken);
    EXPECT(taken[0] == 0 && taken[1] == 1);
    bt_relay_ready(s.relay, 5, s.now); /* for that of rank 1 */
    bt_relay_count_seats(s.relay, taken);
    EXPECT(taken[0] == 1 && taken[1] == 1);
    bt_relay_ready(s.relay, 4, s.now); /* rank 4 has been slow only */
    bt_relay_count_seats(s.relay, taken);
    EXPECT(taken[0] == 2 && taken[1] == 1);
    sim_fini(&s);
}

/* Both groups are empty: what it has read for one of them serves. */
static void relay_spare_of_a_cell_without_ranks_takes_its_seat(void)
{
    sim      s;
    uint32_t taken[2];

    sim_init(&s, 1, 1, 3, 40);
    sim_lose(&s, 0);
    sim_lose(&s, 1);
    bt_relay_ready(s.relay, 2, s.now);
    bt_relay_count_seats(s.relay, taken);
    EXPECT(taken[0] == 1 && taken[1] == 0);
    sim_fini(&s);
}

static void relay_all_ranks_hear_who_sits_where(void)
{
    static const uint32_t  LEFT[] = {0, 2, 3};
    const bt_down_regroup *m;
    sim                    s;

    sim_init_as(&s, 1, 2, 4, 32, true);
    sim_lose(&s, 1);
    m = last_regroup(&s, 2);
    EXPECT(m->n_gone == 1 && m->gone[0] == 1);
    EXPECT(m->groups[1].ranks[0] == BT_NO_RANK && m->groups[1].epoch == EPOCH + 1);
    EXPECT(last_regroup(&s, 3)->prepare);
    bt_relay_begin_anew(s.relay, s.now);
    m = last_regroup(&s, 3);
    EXPECT(!m->prepare && m->groups[0].epoch == EPOCH + 2 && m->groups[1].epoch == EPOCH + 3);
    bt_relay_ready(s.relay, 3, s.now);
    for (int i = 0; i < 3; i++) {
        m = last_regroup(&s, LEFT[i]);
        EXPECT(!m->prepare && m->n_gone == 1 && m->gone[0] == 1);
        EXPECT(m->groups[1].ranks[0] == 3 && m->groups[1].epoch == EPOCH + 4);
    }
    sim_fini(&s);
}

/* Of no group: both go on as they are. */
static void relay_spare_that_is_lost_makes_an_epoch_of_the_cell_alone(void)
{
    const bt_down_regroup *m;
    sim                    s;

    sim_init_as(&s, 1, 1, 3, 32, true);
    sim_lose(&s, 2);
    m = last_regroup(&s, 0);
    EXPECT(m->epoch == EPOCH + 1 && m->n_gone == 1 && m->gone[0] == 2);
    EXPECT(m->groups[0].epoch < EPOCH && m->groups[1].epoch < EPOCH);
    sim_fini(&s);
}

/* At once, the oldest first. */
static void relay_what_a_lost_rank_had_goes_to_another_one(void)
{
    enum { N = 6 };
    sim             s;
    sim_client      c[N];
    const sim_rank *k;
    char            name[2] = "a";
    uint64_t        last    = 0;
    uint32_t        n       = 0;

    sim_init_as(&s, 1, 2, 3, 64, true);
    k = &s.ranks[2];
    for (int i = 0; i < N; i++, name[0]++, s.now += BT_NS_PER_MS)
        EXPECT_EQ(sim_submit(&s, &c[i], name, 6, 10, 100), BT_OK);
    EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], N); /* half of them rank 2's own */
    sim_lose(&s, 1);
    for (uint32_t i = 0; i < k->n_down; i++) {
        const bt_down *m = &k->down[(k->down_at + i) % FIFO];

        if (m->kind != BT_DOWN_RESERVE || n++ < N / 2) continue;
        EXPECT(m->u.reserve.arrival > last);
        last = m->u.reserve.arrival;
    }
    EXPECT_EQ(n, N);
    sim_fini(&s);
}

static void relay_prefill_rank_holds_what_was_for_a_lost_one_until_it_says(void)
{
    sim                s;
    sim_client         c;
    uint32_t           decode;
    bt_relay_rank_view v;

    sim_init(&s, 1, 2, 3, 40);
    EXPECT_EQ(sim_submit(&s, &c, "a", 6, 10, 100), BT_OK);
    decode = s.relay->placed.first->decode_rank;
    sim_tell(&s, decode, sim_ticket(c.number, 4));
    sim_lose(&s, decode);
    bt_relay_view_rank(s.relay, 0, &v);
    EXPECT_EQ(v.n_held, 1);
    expect_all_done(&s, &c, 1);
    sim_fini(&s);
}

static void relay_what_waits_goes_to_a_spare_that_joins(void)
{
    sim        s;
    sim_client c;

    sim_init_as(&s, 1, 1, 3, 32, true);
    sim_lose(&s, 1);
    EXPECT_EQ(sim_submit(&s, &c, "a", 6, 10, 100), BT_OK);
    EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], 0);
    bt_relay_ready(s.relay, 2, s.now);
    EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], 1);
    sim_fini(&s);
}

static void relay_that_has_stopped_seats_nobody(void)
{
    sim s;

    sim_init_as(&s, 1, 2, 4, 32, true);
    sim_lose(&s, 1);
    memset(s.n_down, 0, sizeof(s.n_down));
    bt_relay_stop(s.relay, GRPC_STATUS_UNAVAILABLE, "enough");
    bt_relay_ready(s.relay, 3, s.now);
    sim_lose(&s, 2);
    EXPECT_EQ(s.n_down[BT_DOWN_REGROUP], 0);
    sim_fini(&s);
}

/* All of its group have the same wake number then: else none could park with nothing to do. */
static void relay_spare_that_joins_is_woken_with_its_group(void)
{
    sim s;

    sim_init_as(&s, 1, 2, 4, 32, true);
    sim_lose(&s, 1);
    EXPECT_EQ(s.n_down[BT_DOWN_WAKE], 0);
    bt_relay_ready(s.relay, 3, s.now); /* it has read what its seat needs */
    EXPECT_EQ(s.n_down[BT_DOWN_WAKE], 2);
    for (uint32_t rank = 2; rank < 4; rank++) {
        const sim_rank *k = &s.ranks[rank];

        EXPECT_EQ(k->down[(k->down_at + k->n_down - 1) % FIFO].kind, BT_DOWN_WAKE);
    }
    sim_fini(&s);
}

/* What was under way from a rank that has been removed: its request goes on without it. */
static void relay_lost_rank_is_not_heard(void)
{
    sim        s;
    sim_client c;

    sim_init_as(&s, 2, 1, 3, 32, true);
    EXPECT_EQ(sim_submit(&s, &c, "a", 6, 10, 100), BT_OK); /* prefill 0 */
    sim_tell(&s, 2, sim_ticket(c.number, 4));
    sim_tell(&s, 0, sim_tokens(c.number, 6, sim_token(6, 0), BT_FINISH_NONE));
    bt_relay_lose(s.relay, 0, s.now);
    sim_tell(&s, 0, sim_failed(c.number, 13));
    EXPECT_EQ(c.ends, 0);
    sim_tell(&s, 2, sim_failed(c.number, 13)); /* this one has it */
    EXPECT_EQ(c.ends, 1);
    sim_fini(&s);
}

/* Without a decode rank requests wait; limits stay those of the ranks that were, and the end says
 * for what was waited. */
static void relay_waits_for_ranks_until_the_deadline(void)
{
    sim        s;
    sim_client first, later;
    uint32_t   taken[2];
    uint64_t   tokens;

    sim_init(&s, 1, 1, 2, 32);
    tokens = bt_relay_max_tokens(s.relay);
    EXPECT_EQ(sim_submit(&s, &first, "a", 6, 10, 100), BT_OK);
    sim_tell(&s, 1, sim_ticket(first.number, 4));
    sim_tell(&s, 0, sim_tokens(first.number, 6, sim_token(6, 0), BT_FINISH_NONE));
    s.now += 9 * BT_NS_PER_S;
    sim_lose(&s, 1);
    bt_relay_count_seats(s.relay, taken);
    EXPECT(taken[0] == 1 && taken[1] == 0);
    EXPECT_EQ(bt_relay_max_tokens(s.relay), tokens);
    EXPECT_EQ(sim_submit(&s, &later, "b", 6, 10, 100), BT_OK);
    EXPECT_EQ(sim_loads(&s).n_waiting, 2);
    s.now += 31 * BT_NS_PER_S;
    bt_relay_tick(s.relay, s.now);
    EXPECT_EQ(first.ends, 0); /* it has begun: it waits longer */
    EXPECT_EQ(later.ends, 1);
    EXPECT_EQ(later.end.code, GRPC_STATUS_UNAVAILABLE);
    EXPECT_HAS(later.message, "no decode rank is left");
    for (int i = 0; i < 5; i++, s.now += 9 * BT_NS_PER_S) {
        EXPECT_EQ(first.ends, 0); /* 60 s from when it was lost */
        bt_relay_tick(s.relay, s.now);
    }
    EXPECT_EQ(first.end.code, GRPC_STATUS_UNAVAILABLE);
    sim_fini(&s);
}

/* Rank 1 decodes with 40 pages, rank 2 with 8.  What only the lost one could hold waits for its
 * time to pass, and holds nobody up. */
static void relay_what_no_rank_could_hold_lets_others_pass(void)
{
    sim        s;
    sim_client large, small;

    sim_init_as(&s, 1, 2, 3, 40, true);
    bt_relay_destroy(s.relay);
    s.limits[2].n_pages = s.ranks[2].free_pages = 8;
    EXPECT_EQ(sim_relay_create(&s, &s.relay), BT_OK);
    EXPECT_EQ(sim_submit(&s, &large, "large", 60, 8, 20), BT_OK);
    sim_lose(&s, 1);
    EXPECT_EQ(sim_submit(&s, &small, "small", 5, 5, 9), BT_OK);
    sim_settle(&s);
    sim_expect_done(&small);
    EXPECT_EQ(large.ends, 0);
    for (int i = 0; i < 8; i++, s.now += 9 * BT_NS_PER_S)
        bt_relay_tick(s.relay, s.now);
    EXPECT_EQ(large.ends, 1);
    EXPECT(large.end.code == GRPC_STATUS_RESOURCE_EXHAUSTED);
    sim_fini(&s);
}

static const bt_test tests[] = {
    BT_TEST(relay_lost_ranks_lose_nothing),
    BT_TEST(relay_that_has_no_memory_once_loses_one_request_at_most),
    BT_TEST(relay_spares_take_the_places_of_the_lost),
    BT_TEST(relay_cells_that_come_and_go_lose_nothing),
    BT_TEST(relay_of_ranks_that_come_back_has_their_seats),
    BT_TEST(relay_spares_of_a_cell_that_comes_back_are_asked_first),
    BT_TEST(relay_of_ranks_with_both_roles_has_spares),
    BT_TEST(relay_a_spare_goes_where_nobody_is),
    BT_TEST(relay_spare_of_a_cell_without_ranks_takes_its_seat),
    BT_TEST(relay_all_ranks_hear_who_sits_where),
    BT_TEST(relay_spare_that_is_lost_makes_an_epoch_of_the_cell_alone),
    BT_TEST(relay_what_a_lost_rank_had_goes_to_another_one),
    BT_TEST(relay_prefill_rank_holds_what_was_for_a_lost_one_until_it_says),
    BT_TEST(relay_what_waits_goes_to_a_spare_that_joins),
    BT_TEST(relay_that_has_stopped_seats_nobody),
    BT_TEST(relay_spare_that_joins_is_woken_with_its_group),
    BT_TEST(relay_lost_rank_is_not_heard),
    BT_TEST(relay_waits_for_ranks_until_the_deadline),
    BT_TEST(relay_what_no_rank_could_hold_lets_others_pass),
};

int main(int argc, char **argv)
{
    bt_log_init("test", BT_LOG_WARN);
    return BT_RUN_TESTS(tests, argc > 1 ? argv[1] : NULL);
}

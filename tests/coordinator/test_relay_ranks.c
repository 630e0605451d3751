/* Ranks are lost, hang and come: what the relay does with their requests and their seats. */
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

/* Whatever befalls the others meanwhile: new epochs are no sign of its life.  Nobody is silent who
 * is lost, or has a seat and no work. */
static void relay_silent_spare_is_removed(void)
{
    sim s;

    sim_init_as(&s, 1, 3, 6, 32, true);
    for (uint32_t second = 1; second <= 32; second++) {
        s.now += BT_NS_PER_S;
        for (uint32_t rank = 0; rank < (second < 9 ? 5 : 4); rank++)
            sim_tell(&s, rank, (bt_up){.kind = BT_UP_BEAT, .u.beat = {.progress = second}});
        if (second == 8) sim_lose(&s, 1);
        if (second == 9) bt_relay_ready(s.relay, 4, s.now); /* it takes the seat */
        if (second == 31) sim_lose(&s, 4);
        bt_relay_tick(s.relay, s.now);
        EXPECT_EQ(s.n_stuck, second < 20 ? 0 : 1);
    }
    EXPECT_EQ(s.last_stuck, 5);
    sim_fini(&s);
}

/* Its counter stands still where its step thread does. */
static void relay_beats_are_progress_while_their_counter_moves(void)
{
    sim        s;
    sim_client c;

    sim_init_as(&s, 0, 0, 2, 32, true);
    EXPECT_EQ(sim_submit(&s, &c, "a", 6, 10, 100), BT_OK);
    for (uint32_t second = 1; second <= 50; second++) {
        s.now += BT_NS_PER_S;
        for (uint32_t rank = 0; rank < 2; rank++)
            sim_tell(&s, rank,
                     (bt_up){.kind = BT_UP_BEAT, .u.beat.progress = second < 30 ? second : 30});
        bt_relay_tick(s.relay, s.now);
        EXPECT_EQ(s.n_stuck, second < 50 ? 0 : 1);
    }
    sim_fini(&s);
}

/* Both decode ranks have work and no progress: the one that does not even beat is to blame. */
static void relay_of_stuck_ranks_the_most_silent_is_removed(void)
{
    sim        s;
    sim_client c[2];

    sim_init_as(&s, 1, 2, 3, 32, true);
    EXPECT_EQ(sim_submit(&s, &c[0], "a", 6, 10, 100), BT_OK);
    EXPECT_EQ(sim_submit(&s, &c[1], "b", 6, 10, 100), BT_OK);
    for (uint32_t second = 1; second <= 20; second++) {
        s.now += BT_NS_PER_S;
        for (uint32_t rank = 0; rank < 2; rank++)
            sim_tell(&s, rank, (bt_up){.kind = BT_UP_BEAT});
        bt_relay_tick(s.relay, s.now);
    }
    EXPECT_EQ(s.n_stuck, 1);
    EXPECT_EQ(s.last_stuck, 2);
    sim_fini(&s);
}

/* Where nobody takes its place the cell ends; a spare's silence is no reason for that. */
static void relay_that_replaces_nobody_names_a_stuck_rank_once(void)
{
    sim        s;
    sim_client c;

    sim_init(&s, 1, 1, 3, 32);
    EXPECT_EQ(sim_submit(&s, &c, "a", 6, 10, 100), BT_OK);
    for (uint32_t second = 1; second <= 30; second++) {
        s.now += BT_NS_PER_S;
        bt_relay_tick(s.relay, s.now);
        EXPECT_EQ(s.n_stuck, second < 20 ? 0 : 1);
    }
    EXPECT_EQ(s.last_stuck, 1);
    sim_fini(&s);
}

/* Ranks that could not go on without a lost one have their quiet time again. */
static void relay_lost_rank_is_no_fault_of_those_that_waited(void)
{
    sim        s;
    sim_client c;

    sim_init_as(&s, 1, 2, 3, 32, true);
    EXPECT_EQ(sim_submit(&s, &c, "a", 6, 10, 100), BT_OK); /* rank 1 decodes it */
    for (uint32_t second = 1; second <= 30; second++) {
        s.now += BT_NS_PER_S;
        if (second == 10) sim_lose(&s, 2);
        bt_relay_tick(s.relay, s.now);
        EXPECT_EQ(s.n_stuck, second < 30 ? 0 : 1);
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

static bt_up expired(uint32_t epoch, uint32_t n, uint32_t a, uint32_t b)
{
    bt_up m = {.kind = BT_UP_EXPIRED};

    m.u.expired.epoch    = epoch;
    m.u.expired.n        = n;
    m.u.expired.ranks    = bt_calloc(2, sizeof(uint32_t));
    m.u.expired.ranks[0] = a;
    m.u.expired.ranks[1] = b;
    m.u.expired.what     = bt_strdup("experts");
    return m;
}

/* Ranks 2..5 decode.  Who is removed, and when. */
static void relay_expired_waits_remove_whom_most_wait_for(void)
{
    static const struct {
        uint32_t n, waiter[3], named[3][2], n_named[3];
        uint32_t lost; /* 6: nobody */
        bool     at_once;
    } cases[] = {
        {3, {2, 3, 5}, {{4, 0}, {4, 0}, {4, 0}}, {1, 1, 1}, 4, true },
        {2, {2, 3},    {{4, 0}, {4, 5}},         {1, 2},    4, true },
        {2, {2, 3},    {{4, 5}, {4, 5}},         {2, 2},    5, true }, /* a tie: the higher one */
        {2, {2, 5},    {{4, 5}, {2, 3}},         {2, 2},    4, true }, /* a tie: a silent one */
        {3, {2, 2, 3}, {{4, 0}, {4, 0}, {5, 0}}, {1, 1, 1}, 5, true }, /* twice is once: a tie */
        {2, {2, 5},    {{5, 0}, {2, 0}},         {1, 1},    5, false}, /* both speak: the higher */
        {1, {2},       {{3, 0}},                 {1},       3, false}, /* the others say nothing */
        {3, {2, 3, 4}, {{0, 9}, {3, 1}, {4, 4}}, {2, 2, 2}, 6, false}, /* nobody of the group */
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        sim      s;
        uint32_t lost = cases[i].lost, taken[2];

        sim_init_as(&s, 2, 4, 6, 32, true);
        sim_tell(&s, 2, expired(EPOCH, 1, 3, 0)); /* of another epoch: not heard */
        for (uint32_t k = 0; k < cases[i].n; k++)
            sim_tell(&s, cases[i].waiter[k],
                     expired(EPOCH - 1, cases[i].n_named[k], cases[i].named[k][0],
                             cases[i].named[k][1]));
        bt_relay_tick(s.relay, s.now);
        EXPECT_EQ(s.n_stuck, cases[i].at_once ? 1 : 0);
        s.now += 101 * BT_NS_PER_MS;
        bt_relay_tick(s.relay, s.now);
        EXPECT_EQ(s.n_stuck, lost < 6);
        if (lost < 6) EXPECT_EQ(s.last_stuck, lost);
        bt_relay_count_seats(s.relay, taken);
        EXPECT(taken[0] == 2 && taken[1] == (lost < 6 ? 3u : 4u));
        EXPECT_EQ(s.n_down[BT_DOWN_REGROUP], lost < 6 ? 5u : 6u); /* all that are left */
        s.now += BT_NS_PER_S;
        bt_relay_tick(s.relay, s.now); /* decided once */
        EXPECT_EQ(s.n_down[BT_DOWN_REGROUP], lost < 6 ? 5u : 6u);
        sim_fini(&s);
    }
}

/* Rank 5 was waited for as well, but in a group that is no more. */
/* From the first of them on, however many come until then. */
static void relay_verdict_comes_in_time(void)
{
    sim s;

    sim_init_as(&s, 2, 4, 6, 32, true);
    sim_tell(&s, 2, expired(EPOCH - 1, 1, 3, 0));
    s.now += 60 * BT_NS_PER_MS;
    sim_tell(&s, 4, expired(EPOCH - 1, 1, 3, 0));
    s.now += 41 * BT_NS_PER_MS;
    bt_relay_tick(s.relay, s.now);
    EXPECT_EQ(s.n_stuck, 1);
    EXPECT_EQ(s.last_stuck, 3);
    sim_fini(&s);
}

/* Nor is a rank to blame that the cell has not: the others begin anew. */
static void relay_that_replaces_nobody_hears_no_blame(void)
{
    for (int replace = 0; replace < 2; replace++) {
        sim s;

        sim_init_as(&s, 1, 2, 3, 32, replace != 0);
        sim_tell(&s, 1, expired(EPOCH - 1, 1, replace != 0 ? INT32_MAX : 2, 0));
        s.now += 101 * BT_NS_PER_MS;
        bt_relay_tick(s.relay, s.now);
        EXPECT_EQ(s.n_stuck, 0);
        EXPECT_EQ(s.n_down[BT_DOWN_REGROUP], replace != 0 ? 3u : 0u);
        sim_fini(&s);
    }
}

static void relay_blame_is_forgotten_with_its_epoch(void)
{
    sim s;

    sim_init_as(&s, 2, 4, 6, 32, true);
    sim_tell(&s, 2, expired(EPOCH - 1, 2, 4, 5));
    sim_tell(&s, 3, expired(EPOCH - 1, 1, 4, 0));
    s.now += 101 * BT_NS_PER_MS;
    bt_relay_tick(s.relay, s.now);
    EXPECT(s.n_stuck == 1 && s.last_stuck == 4);
    sim_tell(&s, 2, expired(EPOCH + 1, 1, 3, 0));
    s.now += 101 * BT_NS_PER_MS;
    bt_relay_tick(s.relay, s.now);
    EXPECT(s.n_stuck == 2 && s.last_stuck == 3);
    sim_fini(&s);

    sim_init_as(&s, 2, 4, 6, 32, true);
    sim_tell(&s, 2, expired(EPOCH - 1, 1, 4, 0));
    sim_lose(&s, 0); /* which is the epoch of another group */
    s.now += 101 * BT_NS_PER_MS;
    bt_relay_tick(s.relay, s.now);
    EXPECT(s.n_stuck == 1 && s.last_stuck == 4);
    sim_fini(&s);
}

/* A decode rank does not wait for rank 1, which prefills: it has said nothing of use. */
static void relay_ranks_blame_none_of_another_group(void)
{
    sim s;

    sim_init_as(&s, 2, 4, 6, 32, true);
    sim_tell(&s, 2, expired(EPOCH - 1, 1, 1, 0));
    sim_tell(&s, 0, expired(EPOCH - 1, 0, 0, 0));
    s.now += 101 * BT_NS_PER_MS;
    bt_relay_tick(s.relay, s.now);
    EXPECT_EQ(s.n_stuck, 0);
    sim_fini(&s);
}

/* The rank reads experts of a lost one. */
static void tell_reads(sim *s, uint32_t rank)
{
    bt_up progress = {
        .kind = BT_UP_PROGRESS, .u.progress = {1, 2}
    };

    sim_tell(s, rank, progress);
}

/* Ranks 0 and 1 have waited for rank 2 for too long. */
static void tell_of_rank_2(sim *s, uint32_t epoch)
{
    sim_tell(s, 0, expired(epoch, 1, 2, 0));
    sim_tell(s, 1, expired(epoch, 1, 2, 0));
}

/* While rank 2 reads experts of a lost one, the others of its group wait for it, and say so when
 * their waits expire.  Nobody is removed for that, also not when it takes longer than ranks may be
 * silent; once it hangs it is. */
static void relay_waits_for_a_rank_that_reads(void)
{
    sim        s;
    sim_client client;
    uint32_t   epoch = EPOCH - 1;

    sim_init_as(&s, 0, 0, 3, 32, true);
    EXPECT_EQ(sim_submit(&s, &client, "long", 5, 5, 9), BT_OK);
    for (int turn = 0; turn < 60; turn++) {
        s.now += BT_NS_PER_S;
        tell_reads(&s, 2);
        if (turn % 10 == 9) {
            tell_of_rank_2(&s, epoch);
            epoch = EPOCH + 1 + (uint32_t)turn / 10; /* they begin anew */
        }
        bt_relay_tick(s.relay, s.now);
        EXPECT_EQ(s.n_stuck, 0);
        EXPECT_EQ(s.n_down[BT_DOWN_REGROUP], 3 * (((uint32_t)turn + 1) / 10));
    }
    for (uint64_t ns = 0; ns < s.cfg.rank_quiet_ns; ns += BT_NS_PER_S) { /* so does rank 1, alone */
        s.now += BT_NS_PER_S;
        tell_reads(&s, 1);
        bt_relay_tick(s.relay, s.now);
    }
    tell_of_rank_2(&s, epoch);
    bt_relay_tick(s.relay, s.now);
    EXPECT_EQ(s.n_stuck, 1);
    EXPECT_EQ(s.last_stuck, 2);
    sim_fini(&s);
}

/* Another group does not wait for it. */
static void relay_rank_that_reads_excuses_its_own_group(void)
{
    sim        s;
    sim_client c;

    sim_init_as(&s, 1, 1, 2, 32, true);
    EXPECT_EQ(sim_submit(&s, &c, "a", 6, 10, 100), BT_OK);
    for (uint32_t second = 1; second <= 20; second++) {
        s.now += BT_NS_PER_S;
        tell_reads(&s, 0);
        bt_relay_tick(s.relay, s.now);
        EXPECT_EQ(s.n_stuck, second < 20 ? 0 : 1);
    }
    EXPECT_EQ(s.last_stuck, 1);
    sim_fini(&s);
}

/* It has time to come; then it is to blame at once. */
static void relay_a_rank_that_has_read_is_one_like_others(void)
{
    sim s;

    sim_init_as(&s, 0, 0, 3, 32, true);
    tell_reads(&s, 2);
    sim_tell(&s, 2, (bt_up){.kind = BT_UP_BEAT, .u.beat = {.progress = 1}});
    s.now += s.cfg.rank_quiet_ns - 1;
    tell_of_rank_2(&s, EPOCH - 1);
    bt_relay_tick(s.relay, s.now);
    EXPECT_EQ(s.n_stuck, 0);
    s.now += 1;
    tell_of_rank_2(&s, EPOCH + 1);
    bt_relay_tick(s.relay, s.now);
    EXPECT_EQ(s.last_stuck, 2);
    EXPECT_EQ(s.n_stuck, 1);
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

/* What a tick does for one cell of several may take until after the tick's own time: a request that
 * comes meanwhile is not older than time itself, and neither are the ranks that it wakes. */
static void relay_a_tick_of_before_finds_nobody_silent(void)
{
    sim        s;
    sim_client client;
    uint64_t   ticked;

    sim_init_as(&s, 1, 1, 2, 32, true);
    bt_relay_tick(s.relay, s.now);
    ticked = s.now += BT_NS_PER_S; /* the next scan is due */
    s.now += BT_NS_PER_MS;
    EXPECT_EQ(sim_submit(&s, &client, "late", 5, 5, 9), BT_OK);
    bt_relay_tick(s.relay, ticked);
    EXPECT_EQ(s.n_stuck, 0);
    sim_settle(&s);
    sim_expect_done(&client);
    sim_fini(&s);
}

static const bt_test tests[] = {
    BT_TEST(relay_lost_ranks_lose_nothing),
    BT_TEST(relay_spares_take_the_places_of_the_lost),
    BT_TEST(relay_cells_that_come_and_go_lose_nothing),
    BT_TEST(relay_of_ranks_that_come_back_has_their_seats),
    BT_TEST(relay_spares_of_a_cell_that_comes_back_are_asked_first),
    BT_TEST(relay_of_ranks_with_both_roles_has_spares),
    BT_TEST(relay_a_spare_goes_where_nobody_is),
    BT_TEST(relay_spare_of_a_cell_without_ranks_takes_its_seat),
    BT_TEST(relay_all_ranks_hear_who_sits_where),
    BT_TEST(relay_what_a_lost_rank_had_goes_to_another_one),
    BT_TEST(relay_what_waits_goes_to_a_spare_that_joins),
    BT_TEST(relay_that_has_stopped_seats_nobody),
    BT_TEST(relay_spare_that_joins_is_woken_with_its_group),
    BT_TEST(relay_silent_spare_is_removed),
    BT_TEST(relay_beats_are_progress_while_their_counter_moves),
    BT_TEST(relay_of_stuck_ranks_the_most_silent_is_removed),
    BT_TEST(relay_that_replaces_nobody_names_a_stuck_rank_once),
    BT_TEST(relay_lost_rank_is_no_fault_of_those_that_waited),
    BT_TEST(relay_lost_rank_is_not_heard),
    BT_TEST(relay_waits_for_ranks_until_the_deadline),
    BT_TEST(relay_expired_waits_remove_whom_most_wait_for),
    BT_TEST(relay_verdict_comes_in_time),
    BT_TEST(relay_that_replaces_nobody_hears_no_blame),
    BT_TEST(relay_blame_is_forgotten_with_its_epoch),
    BT_TEST(relay_ranks_blame_none_of_another_group),
    BT_TEST(relay_waits_for_a_rank_that_reads),
    BT_TEST(relay_rank_that_reads_excuses_its_own_group),
    BT_TEST(relay_a_rank_that_has_read_is_one_like_others),
    BT_TEST(relay_a_tick_of_before_finds_nobody_silent),
    BT_TEST(relay_what_no_rank_could_hold_lets_others_pass),
};

int main(int argc, char **argv)
{
    bt_log_init("test", BT_LOG_WARN);
    return BT_RUN_TESTS(tests, argc > 1 ? argv[1] : NULL);
}

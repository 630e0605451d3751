/* Where requests are placed, and whom they wait for, in a simulated cell. */
#include "tests/coordinator/relay_sim.h"

static void relay_placement_takes_the_least_loaded_ranks(void)
{
    sim        s;
    sim_client c[4];

    sim_init(&s, 2, 2, 4, 64);
    EXPECT_EQ(sim_submit(&s, &c[0], "0", 40, 8, 100), BT_OK); /* decode 2, prefill 0 */
    EXPECT_EQ(sim_submit(&s, &c[1], "1", 44, 8, 100), BT_OK); /* decode 3, prefill 1 */
    EXPECT_EQ(sim_submit(&s, &c[2], "2", 8, 8, 100), BT_OK);  /* decode 2, prefill 0 */
    EXPECT_EQ(s.ranks[2].n_down, 3);                          /* a wake, two reserves */
    EXPECT_EQ(s.ranks[3].n_down, 2);
    EXPECT_EQ(s.ranks[2].down[1].u.reserve.prefill_rank, 0);
    EXPECT_EQ(s.ranks[3].down[1].u.reserve.prefill_rank, 1);
    EXPECT_EQ(s.ranks[2].down[2].u.reserve.prefill_rank, 0);
    EXPECT_EQ(sim_submit(&s, &c[3], "3", 8, 8, 100), BT_OK); /* decode 3, prefill 1 */
    EXPECT_EQ(s.ranks[3].n_down, 3);
    EXPECT_EQ(s.ranks[3].down[2].u.reserve.prefill_rank, 1);
    EXPECT_EQ(s.ranks[0].n_down, 0); /* prefill ranks are woken with their work */
    sim_tell(&s, 2, sim_ticket(c[0].number, 10));
    EXPECT(s.ranks[0].n_down == 2 && s.ranks[1].n_down == 1);
    bt_relay_stop(s.relay, GRPC_STATUS_UNAVAILABLE, "end");
    sim_fini(&s);
}

/* A wake goes to every rank of a group: of many requests only the first that finds it idle has one.
 */
static void relay_wakes_a_group_that_has_nothing_to_do(void)
{
    sim        s;
    sim_client c[24];
    char       name[12];

    sim_init(&s, 2, 4, 6, 1024);
    for (uint32_t wave = 1; wave <= 2; wave++) {
        for (int i = 0; i < 24; i++) {
            snprintf(name, sizeof(name), "%d", i);
            EXPECT_EQ(sim_submit(&s, &c[i], name, 4, 8, 100), BT_OK);
        }
        EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], 24 * wave);
        EXPECT(s.n_down[BT_DOWN_WAKE] >= 4 * wave);
        sim_settle(&s);
        for (int i = 0; i < 24; i++)
            sim_expect_done(&c[i]);
        sim_expect_idle(&s);
        EXPECT(s.n_down[BT_DOWN_WAKE] < 24 * wave); /* not six for each */
    }
    sim_fini(&s);
}

static void relay_queue_is_first_come_first_served(void)
{
    sim        s;
    sim_client big, small, first;

    sim_init(&s, 1, 1, 2, 8);
    EXPECT_EQ(sim_submit(&s, &first, "first", 22, 2, 100), BT_OK); /* 6 of 8 pages */
    EXPECT_EQ(sim_submit(&s, &big, "big", 22, 2, 100), BT_OK);
    EXPECT_EQ(sim_submit(&s, &small, "small", 1, 2, 100), BT_OK); /* would fit, but is not first */
    EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], 1);
    EXPECT_EQ(sim_loads(&s).n_waiting, 3);
    sim_settle(&s);
    sim_expect_done(&first);
    sim_expect_done(&big);
    sim_expect_done(&small);
    sim_expect_idle(&s);
    sim_fini(&s);
}

static void relay_prefill_window_holds_work_back(void)
{
    sim        s;
    sim_client c[3];

    sim_init(&s, 1, 1, 2, 200);
    EXPECT_EQ(sim_submit(&s, &c[0], "0", 100, 2, 100), BT_OK); /* beyond the window, but alone */
    EXPECT_EQ(sim_submit(&s, &c[1], "1", 30, 2, 100), BT_OK);
    EXPECT_EQ(sim_submit(&s, &c[2], "2", 30, 2, 100), BT_OK);
    EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], 1);
    sim_settle(&s);
    for (int i = 0; i < 3; i++)
        sim_expect_done(&c[i]);
    sim_expect_idle(&s);
    sim_fini(&s);
}

/* A cell whose rank has so many pages, and whose other one has plenty. */
static void init_pages(sim *s, uint32_t rank, uint32_t n_pages)
{
    sim_init(s, 1, 1, 2, 200);
    bt_relay_destroy(s->relay);
    s->limits[rank].n_pages = s->ranks[rank].free_pages = n_pages;
    EXPECT_EQ(sim_relay_create(s, &s->relay), BT_OK);
}

/* Where there is room for its pages --kv-bytes would not help. */
static void relay_full_window_is_not_called_a_lack_of_room(void)
{
    for (uint32_t more = 0; more <= 1; more++) { /* its 8 pages beside the first one's 26 and 1 */
        sim        s;
        sim_client first, waiting;

        init_pages(&s, 1, 26 + 1 + 7 + more);
        EXPECT_EQ(sim_submit(&s, &first, "first", 100, 2, 100), BT_OK);
        EXPECT_EQ(sim_submit(&s, &waiting, "waiting", 30, 2, 100), BT_OK);
        s.now += 31 * BT_NS_PER_S;
        sim_tell(&s, 1, (bt_up){.kind = BT_UP_BEAT, .u.beat = {.progress = 1}});
        bt_relay_tick(s.relay, s.now);
        EXPECT_EQ(waiting.ends, 1);
        EXPECT_EQ(waiting.end.code, GRPC_STATUS_RESOURCE_EXHAUSTED);
        EXPECT_HAS(waiting.message,
                   more ? "the prefill ranks were busy for 31.0 s with other prompts"
                        : "no rank had room for 30 + 2 tokens");
        bt_relay_stop(s.relay, GRPC_STATUS_UNAVAILABLE, "end");
        sim_fini(&s);
    }
}

/* Nor a lack of room a full window: the rank that could have held the last one is lost. */
static void relay_prompt_that_no_rank_can_hold_lacks_room(void)
{
    static const uint32_t N_PROMPT[] = {40, 40, 40, 100};
    static const char    *NAMES[]    = {"0", "1", "2", "3"};
    sim                   s;
    sim_client            c[4];

    sim_init_as(&s, 2, 1, 3, 200, true);
    s.relay->ranks[1].limits.n_pages = 20;
    for (int i = 0; i < 4; i++)
        EXPECT_EQ(sim_submit(&s, &c[i], NAMES[i], N_PROMPT[i], 2, 100), BT_OK);
    EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], 2);
    sim_lose(&s, 0);
    s.now += 31 * BT_NS_PER_S;
    sim_tell(&s, 2, (bt_up){.kind = BT_UP_BEAT, .u.beat = {.progress = 1}});
    bt_relay_tick(s.relay, s.now);
    EXPECT(c[0].ends == 0 && c[1].ends == 0 && c[2].ends == 1 && c[3].ends == 1);
    EXPECT_HAS(c[2].message, "the prefill ranks were busy for 31.0 s");
    EXPECT_HAS(c[3].message, "no rank had room for 100 + 2 tokens");
    bt_relay_stop(s.relay, GRPC_STATUS_UNAVAILABLE, "end");
    sim_fini(&s);
}

/* A long prompt waits for the window of long ones.  Short ones do not wait for it, but leave it the
 * pages that it needs. */
static void relay_short_prompts_pass_a_long_one_that_waits(void)
{
    for (uint32_t spare = 0; spare < 2; spare++) {
        sim        s;
        sim_client first, waits, brief;

        sim_init(&s, 1, 1, 2, 16 + 11 + 2 + 3 + spare); /* 2: for those that grow beside another */
        EXPECT_EQ(sim_submit(&s, &first, "first", 60, 2, 100), BT_OK); /* 16 pages */
        EXPECT_EQ(sim_submit(&s, &waits, "waits", 40, 2, 100), BT_OK); /* 11 */
        EXPECT_EQ(sim_submit(&s, &brief, "brief", 12, 2, 100), BT_OK); /* 4 */
        EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], 1 + spare);
        EXPECT_EQ(bt_relay_blocked(s.relay), BT_BLOCKED_PREFILL); /* of the first that waits */
        sim_settle(&s);
        sim_expect_done(&first);
        sim_expect_done(&waits);
        sim_expect_done(&brief);
        sim_fini(&s);
    }
}

/* However many long ones wait: the pages of the first of them are kept, the others' turn comes
 * later. */
static void relay_short_prompts_pass_many_long_ones(void)
{
    enum { N = 40 };
    sim        s;
    sim_client first, waits[N], brief;

    sim_init(&s, 1, 1, 2, 16 + 11 + 2 + 4);
    EXPECT_EQ(sim_submit(&s, &first, "first", 60, 2, 100), BT_OK);
    for (int i = 0; i < N; i++) {
        char name[24];

        snprintf(name, sizeof(name), "waits %d", i);
        EXPECT_EQ(sim_submit(&s, &waits[i], name, 40, 2, 100), BT_OK);
    }
    EXPECT_EQ(sim_submit(&s, &brief, "brief", 12, 2, 100), BT_OK);
    EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], 2);
    sim_settle(&s);
    sim_expect_done(&first);
    for (int i = 0; i < N; i++)
        sim_expect_done(&waits[i]);
    sim_expect_done(&brief);
    sim_expect_idle(&s);
    sim_fini(&s);
}

/* A prompt that the window has no room for yet is not passed by others of its length that would
 * fill it again. */
static void relay_window_is_first_come_first_served(void)
{
    sim        s;
    sim_client first, longer, next, brief;

    sim_init(&s, 1, 1, 2, 200);
    EXPECT_EQ(sim_submit(&s, &first, "first", 40, 2, 100), BT_OK);
    EXPECT_EQ(sim_submit(&s, &longer, "longer", 100, 2, 100), BT_OK);
    EXPECT_EQ(sim_submit(&s, &next, "next", 20, 2, 100), BT_OK);
    EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], 1);
    EXPECT_EQ(sim_submit(&s, &brief, "brief", 16, 2, 100), BT_OK); /* as many as a step takes */
    EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], 2);
    sim_settle(&s);
    sim_expect_done(&first);
    sim_expect_done(&longer);
    sim_expect_done(&next);
    sim_expect_done(&brief);
    sim_expect_idle(&s);
    sim_fini(&s);
}

/* The prefill rank's pages: short prompts that keep coming leave a long one what it needs. */
static void relay_short_prompts_leave_a_long_one_pages_to_prefill(void)
{
    sim        s;
    sim_client brief[4], waits;

    init_pages(&s, 0, 20);
    for (int i = 0; i < 3; i++) {
        char name[24];

        snprintf(name, sizeof(name), "brief %d", i);
        EXPECT_EQ(sim_submit(&s, &brief[i], name, 12, 2, 100), BT_OK); /* 3 pages each */
    }
    EXPECT_EQ(sim_submit(&s, &waits, "waits", 60, 2, 100), BT_OK); /* 15 of the 11 that are left */
    EXPECT_EQ(sim_submit(&s, &brief[3], "brief 3", 12, 2, 100), BT_OK);
    EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], 3);
    sim_settle(&s);
    for (int i = 0; i < 4; i++)
        sim_expect_done(&brief[i]);
    sim_expect_done(&waits);
    sim_expect_idle(&s);
    sim_fini(&s);
}

/* Those that long ones have come back before it needs them. */
static void relay_short_prompts_need_not_wait_for_pages_of_long_ones(void)
{
    sim        s;
    sim_client first, waits, brief;

    init_pages(&s, 0, 3 + 15);
    EXPECT_EQ(sim_submit(&s, &first, "first", 40, 2, 100), BT_OK); /* 10 pages */
    EXPECT_EQ(sim_submit(&s, &waits, "waits", 60, 2, 100), BT_OK); /* 15 */
    EXPECT_EQ(sim_submit(&s, &brief, "brief", 12, 2, 100), BT_OK); /* 3 */
    EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], 2);
    sim_settle(&s);
    sim_expect_done(&first);
    sim_expect_done(&waits);
    sim_expect_done(&brief);
    sim_fini(&s);
}

/* What counts is what is left to compute: the next turn of a long conversation is short. */
static void relay_long_prompt_with_a_cached_prefix_is_short(void)
{
    sim        s;
    sim_client turn, other, waits;

    sim_init(&s, 1, 1, 2, 200);
    EXPECT_EQ(sim_submit(&s, &turn, "turn", 60, 2, 100), BT_OK);
    sim_settle(&s);
    sim_expect_done(&turn);
    s.prompt_logprobs = 1; /* it computes every row */
    EXPECT_EQ(sim_submit(&s, &other, "other", 100, 2, 100), BT_OK);
    EXPECT_EQ(sim_submit(&s, &waits, "waits", 100, 2, 100), BT_OK);
    s.prompt_logprobs = 0;
    EXPECT_EQ(sim_submit(&s, &turn, "next turn", 70, 2, 100), BT_OK);
    EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], 3);
    sim_settle(&s);
    sim_expect_done(&turn);
    sim_expect_done(&other);
    sim_expect_done(&waits);
    sim_expect_idle(&s);
    sim_fini(&s);
}

static void relay_placement_prefers_cached_prefixes(void)
{
    sim        s;
    sim_client c[3];

    sim_init(&s, 2, 2, 4, 64);
    EXPECT_EQ(sim_submit(&s, &c[0], "0", 13, 4, 100), BT_OK); /* decode 2, prefill 0 */
    sim_settle(&s);
    sim_expect_done(&c[0]);
    EXPECT_EQ(sim_submit(&s, &c[1], "1", 5, 4, 100), BT_OK); /* shares its first page */
    EXPECT_EQ(s.ranks[2].n_down, 2);                         /* a wake and the reserve */
    EXPECT_EQ(s.ranks[2].down[(s.ranks[2].down_at + 1) % FIFO].u.reserve.prefill_rank, 0);
    EXPECT_EQ(s.ranks[2].down[(s.ranks[2].down_at + 1) % FIFO].u.reserve.n_prefix_key_bytes, 16);
    EXPECT_EQ(sim_submit(&s, &c[2], "2", 60, 4, 100), BT_OK); /* 12 cached, but less to do there */
    sim_settle(&s);
    sim_expect_done(&c[1]);
    sim_expect_done(&c[2]);
    s.prompt_logprobs = 1;
    EXPECT_EQ(sim_submit(&s, &c[0], "3", 13, 4, 100), BT_OK); /* every row has to be computed */
    EXPECT_EQ(s.ranks[3].down[(s.ranks[3].down_at + 1) % FIFO].u.reserve.n_prompt, 13);
    EXPECT_EQ(s.ranks[3].down[(s.ranks[3].down_at + 1) % FIFO].u.reserve.n_prefix_key_bytes, 0);
    sim_settle(&s);
    sim_expect_done(&c[0]);
    sim_expect_idle(&s);
    sim_fini(&s);
}

/* All prompts are alike.  Of the second one the first page is thought to be there, never the one
 * with its last token; what the ticket says counts. */
static void relay_pages_are_counted_as_the_ticket_says(void)
{
    sim        s;
    sim_client a, b;

    sim_init(&s, 1, 1, 2, 64);
    EXPECT_EQ(sim_submit(&s, &a, "a", 2 * SIM_PAGE, 8, 100), BT_OK);
    sim_tell(&s, 1, sim_ticket(a.number, 2));
    sim_tell(&s, 0, sim_tokens(a.number, 2 * SIM_PAGE, 7, BT_FINISH_NONE));
    EXPECT_EQ(sim_loads(&s).used_tokens, 3 * SIM_PAGE); /* one for the next token */
    EXPECT_EQ(sim_submit(&s, &b, "b", 2 * SIM_PAGE, 8, 100), BT_OK);
    EXPECT_EQ(sim_loads(&s).used_tokens, 5 * SIM_PAGE);
    sim_tell(&s, 1, sim_ticket(b.number, 2)); /* it was not there */
    EXPECT_EQ(sim_loads(&s).used_tokens, 6 * SIM_PAGE);
    bt_relay_stop(s.relay, GRPC_STATUS_UNAVAILABLE, "end");
    sim_fini(&s);
}

/* A rank takes 16 rows a step. */
static void relay_choices_wait_for_rows(void)
{
    sim        s;
    sim_client c[5];
    char       name[12];

    sim_init(&s, 1, 1, 2, 200);
    for (int i = 0; i < 5; i++) {
        snprintf(name, sizeof(name), "%d", i);
        EXPECT_EQ(sim_submit_choices(&s, &c[i], name, SIM_PAGE, 8, 100, 4), BT_OK);
    }
    EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], 4);
    bt_relay_abort_client(s.relay, &c[0], "0", "gone");
    EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], 4); /* until the rank has let it go */
    sim_tell(&s, 1, sim_released(c[0].number));
    EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], 5);
    bt_relay_stop(s.relay, GRPC_STATUS_UNAVAILABLE, "end");
    sim_fini(&s);
}

/* It waits since before anyone had its prompt, and goes where that is by now. */
static void relay_waiting_request_hears_of_cached_prefixes(void)
{
    sim        s;
    sim_client plain, first, late;
    sim_rank  *decode;

    sim_init(&s, 2, 1, 3, 200);
    s.prompt_logprobs = 1; /* leaves nothing in the cache */
    EXPECT_EQ(sim_submit(&s, &plain, "plain", 60, 2, 100), BT_OK);
    s.prompt_logprobs = 0;
    EXPECT_EQ(sim_submit(&s, &first, "first", 60, 2, 100), BT_OK);
    EXPECT_EQ(sim_submit(&s, &late, "late", 60, 2, 100), BT_OK); /* both windows are full */
    EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], 2);
    decode = &s.ranks[2];
    while (decode->n_down > 0 && s.n_down[BT_DOWN_RESERVE] < 3) {
        sim_take_down(&s, 2);
        sim_take_up(&s, 2);
    }
    EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], 3);
    EXPECT_EQ(decode->down[(decode->down_at + decode->n_down - 1) % FIFO].u.reserve.prefill_rank,
              1);
    sim_settle(&s);
    sim_expect_done(&plain);
    sim_expect_done(&first);
    sim_expect_done(&late);
    sim_expect_idle(&s);
    sim_fini(&s);
}

/* What it knows of its own cell's ranks says nothing of another one's, of which there are more. */
static void relay_room_for_a_request_of_another_cell(void)
{
    static const char *NAMES[] = {"0", "1", "2"};
    sim                s, other, busy;
    sim_client         c[2], full[3], first;

    sim_init(&s, 1, 1, 2, 15);
    sim_init(&other, 3, 3, 6, 15);
    for (int i = 0; i < 2; i++)
        EXPECT_EQ(sim_submit(&s, &c[i], NAMES[i], 50, 2, 100), BT_OK);
    EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], 1);
    EXPECT(bt_relay_has_room(other.relay, bt_relay_first_queued(s.relay), s.now));
    for (int i = 0; i < 3; i++)
        EXPECT_EQ(sim_submit(&other, &full[i], NAMES[i], 50, 2, 100), BT_OK);
    EXPECT(!bt_relay_has_room(other.relay, bt_relay_first_queued(s.relay), s.now));
    sim_init(&busy, 1, 1, 2, 200);
    EXPECT_EQ(sim_submit(&busy, &first, "first", 60, 2, 100), BT_OK);
    EXPECT(!bt_relay_has_room(busy.relay, bt_relay_first_queued(s.relay), s.now)); /* to prefill */
    sim_fini(&s);
    sim_fini(&other);
    sim_fini(&busy);
}

static const bt_test TESTS[] = {
    BT_TEST(relay_placement_takes_the_least_loaded_ranks),
    BT_TEST(relay_wakes_a_group_that_has_nothing_to_do),
    BT_TEST(relay_queue_is_first_come_first_served),
    BT_TEST(relay_prefill_window_holds_work_back),
    BT_TEST(relay_full_window_is_not_called_a_lack_of_room),
    BT_TEST(relay_prompt_that_no_rank_can_hold_lacks_room),
    BT_TEST(relay_short_prompts_pass_a_long_one_that_waits),
    BT_TEST(relay_short_prompts_pass_many_long_ones),
    BT_TEST(relay_window_is_first_come_first_served),
    BT_TEST(relay_short_prompts_leave_a_long_one_pages_to_prefill),
    BT_TEST(relay_short_prompts_need_not_wait_for_pages_of_long_ones),
    BT_TEST(relay_long_prompt_with_a_cached_prefix_is_short),
    BT_TEST(relay_placement_prefers_cached_prefixes),
    BT_TEST(relay_pages_are_counted_as_the_ticket_says),
    BT_TEST(relay_choices_wait_for_rows),
    BT_TEST(relay_waiting_request_hears_of_cached_prefixes),
    BT_TEST(relay_room_for_a_request_of_another_cell),
};

int main(int argc, char **argv)
{
    bt_log_init("test", BT_LOG_WARN);
    return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
}

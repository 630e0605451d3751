/* Which cell a request goes to, at first and when it changes cells. */
#include "tests/coordinator/fleet_site.h"
#include "tests/coordinator/relay_words.h"

/* A request's age is its first arrival, in whatever cell: who gives way goes by it. */
static void fleet_request_keeps_its_age_in_another_cell(void)
{
    site            s;
    bt_control_peer a, b;

    set_up(&s, 3);
    come(&s, &a, "a", 64);
    submit(&s, 0);
    submit(&s, 1);
    EXPECT(a.n_reserved == 2 && a.arrivals[0] < a.arrivals[1]);
    come(&s, &b, "b", 64);
    submit(&s, 2);
    bt_fleet_lost(s.fleet, &a);
    EXPECT_EQ(b.n_reserved, 3);
    EXPECT(b.arrivals[1] < b.arrivals[2] && b.arrivals[2] < b.arrivals[0]);
    tear_down(&s);
}

static void fleet_queue_that_has_moved_is_empty(void)
{
    site            s;
    bt_control_peer a, b;

    set_up(&s, 3);
    come(&s, &a, "a", 1);
    for (uint32_t i = 0; i < 3; i++)
        submit(&s, i);
    EXPECT_EQ(bt_fleet_queued_tokens(s.fleet), 2 * PROMPT);
    attach(&s, &b, "b", 0, 1, 64);
    bt_fleet_find(s.fleet, "b")->short_since_ns = s.now; /* a rank is missing there */
    be_ready(&s, &b);
    EXPECT_EQ(b.n_reserved, 0);
    bt_fleet_tick(s.fleet, s.now + 1);
    EXPECT_EQ(b.n_reserved, 2);
    EXPECT_EQ(bt_fleet_queued_tokens(s.fleet), 0);
    tear_down(&s);
}

/* So that the loop goes on meanwhile. */
static void fleet_long_queue_moves_in_parts(void)
{
    enum { WAITING = 100, PART = 64 };
    site            s;
    bt_control_peer a, b;

    set_up(&s, 1 + WAITING);
    come(&s, &a, "a", 1);
    for (uint32_t i = 0; i <= WAITING; i++)
        submit(&s, i);
    come(&s, &b, "b", 1 << 20);
    EXPECT_EQ(b.n_reserved, PART);
    bt_fleet_tick(s.fleet, s.now + 1);
    EXPECT_EQ(b.n_reserved, WAITING);
    tear_down(&s);
}

/* A cell that could hold each of them, but not all. */
static void fleet_choices_go_to_one_cell(void)
{
    site            s;
    bt_control_peer a, b;

    set_up(&s, 1);
    come(&s, &a, "a", 3);
    come(&s, &b, "b", 2);
    EXPECT_EQ(submit_choices(&s, 0, "three", 5, 3), GRPC_STATUS_OK);
    EXPECT_EQ(a.n_reserved, 1);
    bt_fleet_lost(s.fleet, &a);
    EXPECT(s.fleet->n_lobby == 1 && b.n_reserved == 0);
    tear_down(&s);
}

/* Each cell has two of three pages free, and no queue but for the one that wants three. */
static void fleet_request_that_fits_nowhere_stays_where_it_is(void)
{
    site                    s;
    bt_control_peer         a, b;
    const bt_relay_request *large;
    uint64_t                heard_ns;

    set_up(&s, 3);
    come(&s, &a, "a", 3);
    come(&s, &b, "b", 3);
    submit(&s, 0);
    submit(&s, 1);
    EXPECT(a.n_reserved == 1 && b.n_reserved == 1);
    EXPECT_EQ(submit_choices(&s, 2, "large", 5, 3), GRPC_STATUS_OK);
    EXPECT_EQ(bt_fleet_queued_tokens(s.fleet), PROMPT);
    large = bt_relay_first_queued(bt_fleet_relay(s.fleet, 0));
    if (large == NULL) large = bt_relay_first_queued(bt_fleet_relay(s.fleet, 1));
    heard_ns = large->heard_ns; /* or when it came where it waits */
    bt_fleet_tick(s.fleet, s.now + 10);
    EXPECT_EQ(large->heard_ns, heard_ns);
    EXPECT_EQ(bt_fleet_queued_tokens(s.fleet), PROMPT);
    abort_one(&s, 0);
    abort_one(&s, 1);
    tear_down(&s);
}

/* The small one waits behind the large one, for which no cell has room. */
static void fleet_small_request_passes_a_large_one_to_another_cell(void)
{
    site            s;
    bt_control_peer a, b;
    bt_up           released = {.kind = BT_UP_RELEASED};

    set_up(&s, 6);
    come(&s, &a, "a", 5); /* each choice has a page, and needs another one soon */
    come(&s, &b, "b", 5);
    EXPECT_EQ(submit_choices(&s, 0, "all of a", 5, 3), GRPC_STATUS_OK);
    EXPECT_EQ(submit_choices(&s, 1, "most of b", 5, 2), GRPC_STATUS_OK);
    released.u.released.request = b.number;
    released.u.released.epoch   = b.epoch;
    submit(&s, 2);
    EXPECT(a.n_reserved == 1 && b.n_reserved == 2);
    EXPECT_EQ(submit_choices(&s, 3, "large", 5, 4), GRPC_STATUS_OK);
    submit(&s, 4);
    submit(&s, 5);
    abort_one(&s, 5); /* nobody waits at b */
    abort_one(&s, 1);
    bt_fleet_message(s.fleet, &b, &released);
    bt_fleet_tick(s.fleet, s.now + 10);
    EXPECT(a.n_reserved == 1 && b.n_reserved == 3);
    EXPECT_EQ(bt_fleet_queued_tokens(s.fleet), PROMPT); /* the large one's */
    tear_down(&s);
}

/* Its cell has lost the one rank that could hold it: it is the next in the other one, however full
 * that is. */
static void fleet_request_goes_where_it_may_fit_once(void)
{
    site            s;
    bt_control_peer a[2], b;

    set_up(&s, 2);
    s.fleet->cfg.relay.replace = true;
    for (uint32_t i = 0; i < 2; i++)
        attach(&s, &a[i], "a", i, 2, 8 - i);
    be_ready(&s, &a[0]);
    be_ready(&s, &a[1]);
    EXPECT_EQ(submit_choices(&s, 0, "large", 5, 8), GRPC_STATUS_OK);
    EXPECT_EQ(a[0].n_reserved, 1);
    come(&s, &b, "b", 8);
    submit(&s, 1);
    EXPECT_EQ(b.n_reserved, 1);
    bt_fleet_lost(s.fleet, &a[0]);
    bt_fleet_tick(s.fleet, s.now + 10);
    EXPECT(bt_relay_first_queued(bt_fleet_relay(s.fleet, 0)) == NULL);
    EXPECT(bt_relay_first_queued(bt_fleet_relay(s.fleet, 1)) != NULL);
    tear_down(&s);
}

/* It may not have one again for long, and is the last choice, however little it has to do. */
static void fleet_prefers_cells_with_a_rank_for_every_role(void)
{
    site            s;
    bt_control_peer a, b;

    set_up(&s, 3);
    come(&s, &a, "a", 64);
    come(&s, &b, "b", 4);
    for (uint32_t i = 0; i < 2; i++) {
        bt_fleet_cell *c = bt_fleet_find(s.fleet, i == 0 ? "b" : "a");

        c->short_since_ns = s.now;
        submit(&s, i);
        EXPECT(a.n_reserved == 1 && b.n_reserved == i);
        if (i == 0) c->short_since_ns = 0;
    }
    bt_fleet_find(s.fleet, "b")->short_since_ns = s.now;
    submit(&s, 2); /* there is no other */
    EXPECT(a.n_reserved == 2 && b.n_reserved == 1);
    tear_down(&s);
}

/* Of two idle cells the one whose ranks have more room, without those that it has lost. */
static void fleet_counts_the_room_of_ranks_that_are_left(void)
{
    site            s;
    bt_control_peer a[2], b;

    set_up(&s, 2);
    s.fleet->cfg.relay.replace = true;
    for (uint32_t i = 0; i < 2; i++)
        attach(&s, &a[i], "a", i, 2, 64);
    be_ready(&s, &a[0]);
    be_ready(&s, &a[1]);
    come(&s, &b, "b", 100);
    submit(&s, 0);
    EXPECT_EQ(a[0].n_reserved + a[1].n_reserved, 1); /* 128 pages */
    abort_one(&s, 0);
    bt_fleet_lost(s.fleet, &a[0]);
    submit(&s, 1);
    EXPECT_EQ(b.n_reserved, 1);
    tear_down(&s);
}

/* Where there is no memory for what names its prefix, load alone decides. */
static void fleet_places_a_prompt_whose_keys_get_no_memory(void)
{
    enum { LONG = 300 };
    site                s;
    bt_control_peer     a, b;
    uint64_t            number = 0;
    grpc_status_code    code   = GRPC_STATUS_OK;
    bt_relay_submission r      = {
             .name = "long", .n_prompt = LONG, .sampling = {.max_tokens = 5}, .n_choices = 1};

    set_up(&s, 1);
    come(&s, &a, "a", 64);
    come(&s, &b, "b", 64);
    r.prompt = bt_calloc(LONG, sizeof(uint32_t));
    bt_alloc_fail_at(0);
    EXPECT_EQ(bt_fleet_submit(s.fleet, &r, &s.clients[0], s.now, &number, &code), BT_OK);
    EXPECT_EQ(a.n_reserved + b.n_reserved, 1);
    tear_down(&s);
}

enum { LONG = 130 };

static void submit_long(site *s, uint32_t i, uint32_t first_token)
{
    char                name[16];
    uint64_t            number = 0;
    grpc_status_code    code   = GRPC_STATUS_OK;
    uint32_t           *prompt = bt_calloc(LONG, sizeof(*prompt));
    bt_relay_submission r      = {
             .name       = name,
             .cache_salt = s->cache_salt,
             .n_prompt   = LONG,
             .prompt     = prompt,
             .sampling   = {.max_tokens = 1, .prompt_logprobs = s->prompt_logprobs},
             .n_choices  = 1
    };

    prompt[0] = first_token;
    snprintf(name, sizeof(name), "r%u", i);
    EXPECT_EQ(bt_fleet_submit(s->fleet, &r, &s->clients[i], s->now, &number, &code), BT_OK);
}

/* A request with this prompt goes to that cell, and is over. */
static void run_in(site *s, uint32_t i, uint32_t first_token, bt_control_peer *there)
{
    uint32_t n = there->n_reserved;
    bt_up    said[3];

    submit_long(s, i, first_token);
    EXPECT_EQ(there->n_reserved, n + 1);
    said[0]                          = sim_ticket(there->number, 3);
    said[1]                          = sim_tokens(there->number, LONG, 7, BT_FINISH_LENGTH);
    said[2]                          = sim_released(there->number);
    said[0].u.ticket.epoch           = there->epoch;
    said[1].u.tokens.tokens[0].epoch = there->epoch;
    said[2].u.released.epoch         = there->epoch;
    for (int k = 0; k < 3; k++) {
        bt_fleet_message(s->fleet, there, &said[k]);
        bt_up_free(&said[k]);
    }
}

/* The others are the last choice for now. */
static void prefer(const site *s, const char *name)
{
    for (uint32_t i = 0; i < s->fleet->n_cells; i++) {
        bt_fleet_cell *c = s->fleet->cells[i];

        c->short_since_ns = strcmp(c->cell.name, name) == 0 ? 0 : s->now;
    }
}

static void prefer_none(const site *s)
{
    for (uint32_t i = 0; i < s->fleet->n_cells; i++)
        s->fleet->cells[i]->short_since_ns = 0;
}

/* In the one cell with room for all of its answer, though that is the last choice for others. */
static void fleet_long_answer_goes_where_it_may_fit(void)
{
    site            s;
    bt_control_peer a, b;

    set_up(&s, 1);
    come(&s, &a, "a", 64);
    come(&s, &b, "b", 4);
    prefer(&s, "b");
    submit_of(&s, 0, 10 * 64);
    EXPECT(a.n_reserved == 1 && b.n_reserved == 0);
    tear_down(&s);
}

/* Even where the others are full: these go on.  Of several such cells the idlest is chosen. */
static void fleet_cell_without_a_rank_is_the_last_choice(void)
{
    site            s;
    bt_control_peer a, b, c;

    set_up(&s, 4);
    come(&s, &a, "a", 1);
    come(&s, &b, "b", 4);
    prefer(&s, "a");
    submit(&s, 0);
    submit(&s, 1);
    EXPECT(a.n_reserved == 1 && b.n_reserved == 0);
    bt_fleet_lost(s.fleet, &a);
    EXPECT_EQ(b.n_reserved, 2);
    come(&s, &c, "c", 4);
    prefer(&s, "");
    submit(&s, 2);
    submit(&s, 3);
    EXPECT(b.n_reserved == 2 && c.n_reserved == 2);
    tear_down(&s);
}

/* Behind so many for which no other cell is large enough a small one waits for its turn. */
static void fleet_looks_at_few_that_stay(void)
{
    for (uint32_t n_large = 7; n_large <= 8; n_large++) {
        site            s;
        bt_control_peer a, b;
        char            name[16];

        set_up(&s, n_large + 2);
        come(&s, &a, "a", 3);
        come(&s, &b, "b", 2);
        for (uint32_t i = 0; i <= n_large; i++) {
            snprintf(name, sizeof(name), "large %u", i);
            EXPECT_EQ(submit_choices(&s, i, name, 5, 3), GRPC_STATUS_OK);
        }
        prefer(&s, "a");
        submit(&s, n_large + 1);
        prefer_none(&s);
        EXPECT(a.n_reserved == 1 && b.n_reserved == 0);
        bt_fleet_tick(s.fleet, s.now + 10);
        EXPECT_EQ(b.n_reserved, n_large == 7);
        tear_down(&s);
    }
}

/* It has room for the small one, but a large one waits for more of it. */
static void fleet_request_moves_to_no_cell_with_a_queue(void)
{
    site            s;
    bt_control_peer a, b;

    set_up(&s, 4);
    come(&s, &a, "a", 3);
    come(&s, &b, "b", 3);
    prefer(&s, "b");
    EXPECT_EQ(submit_choices(&s, 0, "most of b", 5, 2), GRPC_STATUS_OK);
    EXPECT_EQ(submit_choices(&s, 1, "large", 5, 3), GRPC_STATUS_OK);
    prefer(&s, "a");
    EXPECT_EQ(submit_choices(&s, 2, "all of a", 5, 3), GRPC_STATUS_OK);
    submit(&s, 3);
    prefer_none(&s);
    bt_fleet_tick(s.fleet, s.now + 10);
    EXPECT(bt_relay_first_queued(bt_fleet_relay(s.fleet, 0)) != NULL);
    EXPECT(a.n_reserved == 1 && b.n_reserved == 1);
    tear_down(&s);
}

/* Nor does the cell with a queue, which has less to do, keep it from one without. */
static void fleet_request_moves_past_a_cell_with_a_queue(void)
{
    site            s;
    bt_control_peer a, b, c;

    set_up(&s, 5);
    come(&s, &a, "a", 20);
    come(&s, &b, "b", 30);
    come(&s, &c, "c", 20);
    prefer(&s, "b");
    EXPECT_EQ(submit_choices(&s, 0, "part of b", 5, 12), GRPC_STATUS_OK);
    EXPECT_EQ(submit_choices(&s, 1, "large", 5, 20), GRPC_STATUS_OK);
    prefer(&s, "c");
    EXPECT_EQ(submit_choices(&s, 2, "half of c", 5, 9), GRPC_STATUS_OK);
    prefer(&s, "a");
    EXPECT_EQ(submit_choices(&s, 3, "all of a", 5, 20), GRPC_STATUS_OK);
    submit(&s, 4);
    prefer_none(&s);
    EXPECT(a.n_reserved == 1 && b.n_reserved == 1 && c.n_reserved == 1);
    bt_fleet_tick(s.fleet, s.now + 10);
    EXPECT(a.n_reserved == 1 && b.n_reserved == 1 && c.n_reserved == 2);
    tear_down(&s);
}

/* Each rank of its cell lacks a page of the three that it needs beside one for each choice there;
 * the other cell has them, of fewer. */
static void fleet_request_leaves_the_idlest_cell_for_one_with_room(void)
{
    site            s;
    bt_control_peer a[2], b;

    set_up(&s, 4);
    for (uint32_t i = 0; i < 2; i++)
        attach(&s, &a[i], "a", i, 2, 30 + 30 + 2);
    be_ready(&s, &a[0]);
    be_ready(&s, &a[1]);
    come(&s, &b, "b", 61 + 61 + 3);
    prefer(&s, "b");
    EXPECT_EQ(submit_choices(&s, 0, "most of b", 5, 61), GRPC_STATUS_OK);
    prefer(&s, "a");
    EXPECT_EQ(submit_choices(&s, 1, "most of one", 5, 30), GRPC_STATUS_OK);
    EXPECT_EQ(submit_choices(&s, 2, "most of two", 5, 30), GRPC_STATUS_OK);
    submit_long(&s, 3, 1);
    EXPECT(a[0].n_reserved == 1 && a[1].n_reserved == 1 && b.n_reserved == 1);
    prefer_none(&s);
    bt_fleet_tick(s.fleet, s.now + 10);
    EXPECT_EQ(b.n_reserved, 2);
    tear_down(&s);
}

/* What waits in a cell that drains, and what runs in one that is lost, goes to the cell that has
 * its prefix. */
static void fleet_prefixes_count_in_another_cell(void)
{
    for (uint32_t k = 0; k < 4; k++) {
        bool            drains = k % 2 == 0, logprobs = k / 2 == 1;
        site            s;
        bt_control_peer left, idle, cached;
        bt_up           drain = {.kind = BT_UP_DRAIN};

        set_up(&s, 3);
        come(&s, &left, "left", 3);
        come(&s, &idle, "idle", 64);
        come(&s, &cached, "cached", 64);
        prefer(&s, "cached");
        run_in(&s, 0, 1, &cached);
        prefer(&s, "left");
        if (drains)
            submit_long(&s, 1, 2);
        else
            s.clients[1].ends = 1;
        s.prompt_logprobs = logprobs;
        submit_long(&s, 2, 1);
        EXPECT_EQ(left.n_reserved, 1);
        prefer_none(&s);
        if (drains)
            bt_fleet_message(s.fleet, &left, &drain);
        else
            bt_fleet_lost(s.fleet, &left);
        EXPECT_EQ(idle.n_reserved, logprobs); /* which need all of it */
        EXPECT_EQ(cached.n_reserved, 2 - logprobs);
        tear_down(&s);
    }
}

/* One request at a time: conversations fill the caches of all cells, and come back to their own. */
static void fleet_prefixes_are_spread_while_little_comes(void)
{
    site            s;
    bt_control_peer a, b, late;

    set_up(&s, 12);
    come(&s, &a, "a", 64);
    come(&s, &b, "b", 64);
    for (uint32_t i = 0; i < 8; i++)
        run_in(&s, i, i % 4, i % 2 == 0 ? &a : &b);
    come(&s, &late, "late", 64); /* it takes turns from now on */
    run_in(&s, 8, 8, &a);
    run_in(&s, 9, 9, &b);
    run_in(&s, 10, 10, &late);
    run_in(&s, 11, 11, &a);
    tear_down(&s);
}

/* Of equal prompts each salt has pages of its own, and a cell that has them. */
static void fleet_prefixes_are_those_of_a_salt(void)
{
    site            s;
    bt_control_peer a, b;

    set_up(&s, 4);
    come(&s, &a, "a", 64);
    come(&s, &b, "b", 64);
    for (uint32_t i = 0; i < 4; i++) {
        s.cache_salt = i % 2 == 0 ? NULL : "of another";
        run_in(&s, i, 1, i % 2 == 0 ? &a : &b);
    }
    tear_down(&s);
}

/* All of its prompt is computed, wherever a part is cached. */
static void fleet_prompt_whose_logprobs_are_asked_goes_by_no_prefix(void)
{
    site            s;
    bt_control_peer a, b;

    set_up(&s, 2);
    come(&s, &a, "a", 64);
    come(&s, &b, "b", 64);
    run_in(&s, 0, 1, &a);
    s.prompt_logprobs = 1;
    run_in(&s, 1, 1, &b);
    tear_down(&s);
}

/* A turn of the loop costs no look at all that wait there; a cell that comes does at once. */
static void fleet_long_lobby_is_looked_at_now_and_then(void)
{
    enum { LOOK_MS = 250, LATE_S = QUEUE_S + 1 };
    site            s;
    bt_control_peer a;

    set_up(&s, 2);
    submit(&s, 0);
    submit(&s, 1);
    EXPECT_EQ(s.fleet->n_lobby, 2);
    bt_fleet_tick(s.fleet, s.now);
    s.fleet->lobby.first->arrived_ns = s.now - LATE_S * BT_NS_PER_S;
    s.fleet->awake_ns                = 0;
    bt_fleet_tick(s.fleet, s.now + LOOK_MS * BT_NS_PER_MS - 1);
    EXPECT_EQ(s.clients[0].ends, 0);
    bt_fleet_tick(s.fleet, s.now + LOOK_MS * BT_NS_PER_MS);
    EXPECT_EQ(s.clients[0].ends, 1);
    come(&s, &a, "a", 64);
    EXPECT_EQ(a.n_reserved, 1);
    tear_down(&s);
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {
        BT_TEST(fleet_request_keeps_its_age_in_another_cell),
        BT_TEST(fleet_queue_that_has_moved_is_empty),
        BT_TEST(fleet_long_queue_moves_in_parts),
        BT_TEST(fleet_choices_go_to_one_cell),
        BT_TEST(fleet_request_that_fits_nowhere_stays_where_it_is),
        BT_TEST(fleet_small_request_passes_a_large_one_to_another_cell),
        BT_TEST(fleet_request_goes_where_it_may_fit_once),
        BT_TEST(fleet_prefers_cells_with_a_rank_for_every_role),
        BT_TEST(fleet_counts_the_room_of_ranks_that_are_left),
        BT_TEST(fleet_places_a_prompt_whose_keys_get_no_memory),
        BT_TEST(fleet_long_answer_goes_where_it_may_fit),
        BT_TEST(fleet_cell_without_a_rank_is_the_last_choice),
        BT_TEST(fleet_looks_at_few_that_stay),
        BT_TEST(fleet_request_moves_to_no_cell_with_a_queue),
        BT_TEST(fleet_request_moves_past_a_cell_with_a_queue),
        BT_TEST(fleet_request_leaves_the_idlest_cell_for_one_with_room),
        BT_TEST(fleet_prefixes_are_spread_while_little_comes),
        BT_TEST(fleet_prefixes_are_those_of_a_salt),
        BT_TEST(fleet_prefixes_count_in_another_cell),
        BT_TEST(fleet_prompt_whose_logprobs_are_asked_goes_by_no_prefix),
        BT_TEST(fleet_long_lobby_is_looked_at_now_and_then),
    };

    bt_log_init("fleet_place", BT_LOG_ERROR);
    return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
}

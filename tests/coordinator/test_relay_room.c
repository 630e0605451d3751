/* Who goes on where decode ranks are full, and where to while they are empty, in a simulated cell.
 */
#include "coordinator/relay_state.h"
#include "proto/prefix_key.h"
#include "tests/coordinator/relay_sim.h"

/* So many requests alike, which use no cached prefix: in a cell of both roles with 16 pages a rank
 * each of the first ones goes to a rank of its own. */
static void submit_alike(sim *s, sim_client *c, const char *what, int n, uint32_t n_prompt)
{
    s->prompt_logprobs = 1;
    for (int i = 0; i < n; i++) {
        char name[24];

        snprintf(name, sizeof(name), "%s %d", what, i);
        EXPECT_EQ(sim_submit(s, &c[i], name, n_prompt, 2, 100), BT_OK);
    }
}

/* The last thing that the rank has been told; of another kind it is made of zeroes. */
static const bt_down_reserve *last_reserve(const sim *s, uint32_t rank)
{
    static const bt_down_reserve NONE;
    const sim_rank              *k = &s->ranks[rank];
    const bt_down               *m = &k->down[(k->down_at + k->n_down - 1) % FIFO];

    return k->n_down > 0 && m->kind == BT_DOWN_RESERVE ? &m->u.reserve : &NONE;
}

/* A large request waits for one of the decode ranks: those behind it use the others, and leave it
 * that one. */
static void relay_one_decode_rank_is_kept_for_a_large_request(void)
{
    sim        s;
    sim_client full[2], big, brief[3];
    sim_rank  *first;

    sim_init(&s, 0, 0, 2, 16 + 2);
    submit_alike(&s, full, "full", 2, 30);   /* 8 pages each */
    submit_alike(&s, &big, "big", 1, 44);    /* 12 */
    submit_alike(&s, brief, "brief", 3, 12); /* 4 each: two beside the second, as 2 grow there */
    EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], 4);
    first = &s.ranks[0];
    for (uint32_t i = 0; i < first->n_down; i++)
        EXPECT(first->down[i].kind != BT_DOWN_RESERVE || i == 1);
    bt_relay_abort_client(s.relay, &full[0], "full 0", "gone");
    sim_tell(&s, 0, sim_released(full[0].number));
    EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], 6); /* it, and the last one beside it */
    EXPECT_EQ(first->down[first->n_down - 2].u.reserve.n_prompt, 44);
    EXPECT_EQ(first->down[first->n_down - 1].u.reserve.n_prompt, 12);
    sim_settle(&s);
    sim_expect_done(&big);
    for (int i = 0; i < 3; i++)
        sim_expect_done(&brief[i]);
    sim_expect_idle(&s);
    sim_fini(&s);
}

/* Those that wait for the one rank which could hold them keep nobody from the others; once these
 * are kept too nobody goes on. */
static void relay_ranks_that_are_too_small_for_those_that_wait_are_used(void)
{
    sim        s;
    sim_client full, big[2], small, brief[2];

    sim_init(&s, 0, 0, 2, 16);
    bt_relay_destroy(s.relay);
    s.limits[0].n_pages = s.ranks[0].free_pages = 40;
    EXPECT_EQ(sim_relay_create(&s, &s.relay), BT_OK);
    submit_alike(&s, &full, "full", 1, 140); /* 36 pages */
    EXPECT_EQ(last_reserve(&s, 0)->n_prompt, 140);
    submit_alike(&s, big, "big", 2, 80);
    submit_alike(&s, brief, "brief", 1, 12); /* 4 */
    EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], 2);
    EXPECT_EQ(last_reserve(&s, 1)->n_prompt, 12);
    EXPECT_EQ(s.ranks[0].n_down, 2);             /* a wake and its reserve */
    submit_alike(&s, &small, "small", 1, 50);    /* 13, beside 4 and one that grows */
    submit_alike(&s, &brief[1], "other", 1, 12); /* it would fit */
    EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], 2);
    EXPECT(s.relay->ranks[0].kept && s.relay->ranks[1].kept);
    sim_settle(&s);
    sim_expect_done(&full);
    sim_expect_done(&small);
    for (int i = 0; i < 2; i++) {
        sim_expect_done(&big[i]);
        sim_expect_done(&brief[i]);
    }
    sim_expect_idle(&s);
    sim_fini(&s);
}

/* Many wait for the one rank that could hold them: beyond 64 nobody looks for those that others
 * could take, and where all ranks are kept nobody looks beyond the next one. */
static void relay_looks_at_few_that_wait_for_room(void)
{
    enum { MOST = 64 };
    static sim_client big[MOST + 1];
    sim_client        full, brief[4];
    sim               s;
    uint32_t          looks;

    for (int more = 0; more < 2; more++) {
        sim_init(&s, 0, 0, 2, 16);
        bt_relay_destroy(s.relay);
        s.limits[0].n_pages = s.ranks[0].free_pages = 40;
        EXPECT_EQ(sim_relay_create(&s, &s.relay), BT_OK);
        submit_alike(&s, &full, "full", 1, 140); /* 36 pages */
        submit_alike(&s, big, "big", MOST + more, 80);
        submit_alike(&s, brief, "brief", 1, 12);
        EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], 2 - more);
        bt_relay_stop(s.relay, GRPC_STATUS_UNAVAILABLE, "end");
        sim_fini(&s);
    }
    sim_init(&s, 0, 0, 1, 40);
    submit_alike(&s, &full, "full", 1, 140);
    submit_alike(&s, brief, "brief", 3, 80);
    looks = s.relay->looks;
    submit_alike(&s, &brief[3], "last", 1, 80);
    EXPECT_EQ(s.relay->looks, looks);
    bt_relay_stop(s.relay, GRPC_STATUS_UNAVAILABLE, "end");
    sim_fini(&s);
}

/* Of several that wait, four have a rank kept; nobody passes the fifth. */
static void relay_no_more_than_four_decode_ranks_are_kept(void)
{
    for (int n = 4; n <= 5; n++) {
        sim        s;
        sim_client full[6], big[5], brief;

        sim_init(&s, 0, 0, 6, 16);
        submit_alike(&s, full, "full", 6, 30);
        submit_alike(&s, big, "big", n, 44);
        submit_alike(&s, &brief, "brief", 1, 12);
        EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], n == 4 ? 7 : 6);
        if (n == 4) EXPECT_EQ(last_reserve(&s, 4)->n_prompt, 12); /* each has one of its own */
        sim_settle(&s);
        for (int i = 0; i < n; i++)
            sim_expect_done(&big[i]);
        sim_expect_done(&brief);
        sim_expect_idle(&s);
        sim_fini(&s);
    }
}

/* It is the one with the fewest rows to wait for. */
static void relay_rank_is_kept_for_choices_that_wait_for_rows(void)
{
    static const uint32_t N[] = {4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 1, 2}; /* 16, 13 and 14 of 16 rows */
    sim                   s;
    sim_client            full[12], four, one;
    char                  name[12];
    uint32_t              n_down;

    sim_init(&s, 0, 0, 3, 400);
    s.prompt_logprobs = 1;
    for (int i = 0; i < 12; i++) {
        snprintf(name, sizeof(name), "%d", i);
        EXPECT_EQ(sim_submit_choices(&s, &full[i], name, 4, 8, 100, N[i]), BT_OK);
    }
    EXPECT_EQ(sim_submit_choices(&s, &four, "four", 4, 8, 100, 4), BT_OK);
    EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], 12);
    n_down = s.ranks[2].n_down;
    EXPECT_EQ(sim_submit(&s, &one, "one", 4, 8, 100), BT_OK);
    EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], 13);
    EXPECT_EQ(s.ranks[2].n_down, n_down + 1); /* the second one is kept */
    bt_relay_stop(s.relay, GRPC_STATUS_UNAVAILABLE, "end");
    sim_fini(&s);
}

/* Rows weigh more than pages, and a rank without so many pages is none to wait for. */
static void relay_rank_that_lacks_least_is_kept(void)
{
    enum { N = 3, NEED_PAGES = 13, NEED_ROWS = 2 };
    static const struct {
        uint32_t n_pages[N], taken[N], n_choices[N], kept;
    } CASES[] = {
        {{16, 16, 16}, {16, 6, 7},   {1, 1, 1},    1}, /* pages */
        {{8, 16, 16},  {4, 16, 15},  {1, 1, 1},    2}, /* it never has so many */
        {{13, 13, 13}, {13, 5, 6},   {1, 1, 1},    1}, /* just so many */
        {{16, 16, 16}, {0, 16, 16},  {15, 14, 14}, 1}, /* a row, or all pages */
        {{16, 16, 16}, {0, 10, 10},  {16, 15, 16}, 1}, /* rows */
        {{16, 16, 16}, {16, 10, 16}, {15, 15, 15}, 1}, /* a row each, and pages */
    };

    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        sim        s;
        sim_client c;

        sim_init(&s, 0, 0, N, 16);
        for (uint32_t k = 0; k < N; k++) {
            s.relay->ranks[k].limits.n_pages = CASES[i].n_pages[k];
            s.relay->ranks[k].taken_pages    = CASES[i].taken[k];
            s.relay->ranks[k].n_choices      = CASES[i].n_choices[k];
        }
        EXPECT_EQ(sim_submit_choices(&s, &c, "a", 44, 2, 100, NEED_ROWS), BT_OK);
        EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], 0);
        for (uint32_t k = 0; k < N; k++)
            EXPECT_EQ(s.relay->ranks[k].kept, k == CASES[i].kept);
        bt_relay_stop(s.relay, GRPC_STATUS_UNAVAILABLE, "end");
        sim_fini(&s);
    }
}

/* It needs 3 pages now and 23 at last: a rank with 22 is none to go to, however little that holds,
 * or to wait for, which goes on with others. */
static void relay_request_goes_where_it_can_be_held_to_its_end(void)
{
    sim        s;
    sim_client large[2], small;

    sim_init_as(&s, 1, 2, 3, 200, true);
    bt_relay_destroy(s.relay);
    s.limits[1].n_pages = s.ranks[1].free_pages = 22;
    s.limits[2].n_pages = s.ranks[2].free_pages = 23;
    EXPECT_EQ(sim_relay_create(&s, &s.relay), BT_OK);
    s.relay->ranks[2].taken_pages = 20;
    EXPECT_EQ(sim_submit(&s, &large[0], "0", 8, 84, 200), BT_OK);
    EXPECT_EQ(last_reserve(&s, 2)->n_prompt, 8);
    EXPECT_EQ(sim_submit(&s, &large[1], "1", 8, 84, 200), BT_OK);
    EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], 1);
    EXPECT(s.relay->ranks[2].kept && !s.relay->ranks[1].kept);
    EXPECT_EQ(sim_submit(&s, &small, "small", 8, 80, 200), BT_OK);
    EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], 2);
    EXPECT_EQ(last_reserve(&s, 1)->n_prompt, 8);
    bt_relay_stop(s.relay, GRPC_STATUS_UNAVAILABLE, "end");
    sim_fini(&s);
}

/* Two prefill ranks, of which the second has 10 pages, and a decode rank with 46. */
static void init_unlike(sim *s)
{
    sim_init_as(s, 2, 1, 3, 200, true);
    bt_relay_destroy(s->relay);
    s->limits[1].n_pages = s->ranks[1].free_pages = 10;
    s->limits[2].n_pages = s->ranks[2].free_pages = 46;
    EXPECT_EQ(sim_relay_create(s, &s->relay), BT_OK);
}

/* The prompt alone where it is computed, all of it where it is decoded, what choices share once. */
static void relay_holds_what_there_are_pages_for_in_each_role(void)
{
    sim s;

    init_unlike(&s);
    EXPECT(bt_relay_could_hold(s.relay, 100, 84, 1));
    EXPECT(!bt_relay_could_hold(s.relay, 100, 85, 1));
    EXPECT(bt_relay_could_hold(s.relay, 102, 38, 2)); /* 25 + 2 * 10 */
    EXPECT(!bt_relay_could_hold(s.relay, 102, 39, 2));
    sim_lose(&s, 0);
    EXPECT(bt_relay_could_hold(s.relay, 40, 144, 1));
    EXPECT(!bt_relay_could_hold(s.relay, 41, 1, 1));
    sim_fini(&s);
}

/* It is no reason for others to wait elsewhere, or anywhere once no such rank is left.  They leave
 * it its 16 pages to decode, and one for each that grows there, as long as it may need them. */
static void relay_prompt_waits_where_it_can_be_held_alone(void)
{
    for (int lost = 0; lost < 2; lost++) {
        sim        s;
        sim_client first, waits[2], next, last;

        init_unlike(&s);
        EXPECT_EQ(sim_submit(&s, &first, "first", 60, 2, 100), BT_OK); /* 15 pages */
        EXPECT_EQ(sim_submit(&s, &waits[0], "waits", 60, 2, 100), BT_OK);
        EXPECT_EQ(sim_submit(&s, &waits[1], "too", 60, 2, 100), BT_OK);
        EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], 1);
        if (lost) sim_lose(&s, 0);
        if (lost) s.relay->ranks[2].limits.n_pages = 16 + 8 + 3 + 15 + 3; /* none are left to it */
        EXPECT_EQ(bt_relay_could_hold(s.relay, 60, 2, 1), !lost);
        EXPECT_EQ(sim_submit(&s, &next, "next", 30, 2, 100), BT_OK); /* 8 of 10 */
        EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], 2);
        EXPECT_EQ(sim_submit(&s, &last, "last", 8, 2, 100), BT_OK); /* the other 2 */
        EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], 3);
        EXPECT_EQ(last_reserve(&s, 2)->prefill_rank, 1);
        if (!lost) sim_settle(&s);
        if (!lost) sim_expect_done(&waits[1]);
        if (!lost) sim_expect_done(&next);
        bt_relay_stop(s.relay, GRPC_STATUS_UNAVAILABLE, "end");
        sim_fini(&s);
    }
}

/* One that is short on one rank, by what that has cached, does not pass a long one on the other. */
static void relay_prompt_passes_none_of_its_kind_on_another_rank(void)
{
    sim        s;
    sim_client turn, other[3], next;

    sim_init(&s, 2, 1, 3, 200);
    EXPECT_EQ(sim_submit(&s, &turn, "turn", 60, 2, 100), BT_OK); /* prefill 0 */
    sim_settle(&s);
    s.prompt_logprobs = 1;
    EXPECT_EQ(sim_submit(&s, &other[0], "0", 40, 2, 100), BT_OK);
    EXPECT_EQ(last_reserve(&s, 2)->prefill_rank, 1);
    EXPECT_EQ(sim_submit(&s, &other[1], "1", 64, 2, 100), BT_OK);
    EXPECT_EQ(last_reserve(&s, 2)->prefill_rank, 0);
    EXPECT_EQ(sim_submit(&s, &other[2], "2", 60, 2, 100), BT_OK); /* waits for either */
    s.prompt_logprobs = 0;
    s.relay->ranks[0].prefill_tokens += 64;                      /* of short ones */
    EXPECT_EQ(sim_submit(&s, &next, "next", 24, 2, 100), BT_OK); /* 64 + 4, or 40 + 24 */
    EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], 3);
    EXPECT_EQ(s.relay->ranks[1].awaited[1], 15); /* what the first that waits needs, not 6 */
    s.relay->ranks[0].prefill_tokens -= 64;
    bt_relay_place(s.relay, s.now);
    EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], 4);
    EXPECT_EQ(last_reserve(&s, 2)->prefill_rank, 0);
    sim_settle(&s);
    sim_expect_done(&other[2]);
    sim_expect_done(&next);
    sim_expect_idle(&s);
    sim_fini(&s);
}

/* Once it has gone, others need not leave it its pages. */
static void relay_prompt_that_has_gone_keeps_no_pages(void)
{
    sim        s;
    sim_client first, waits, brief[2];

    init_unlike(&s);
    sim_lose(&s, 0);
    EXPECT_EQ(sim_submit(&s, &first, "first", 36, 2, 100), BT_OK); /* 9 pages: all but one */
    EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], 1);
    EXPECT_EQ(sim_submit(&s, &waits, "waits", 40, 2, 100), BT_OK); /* all */
    EXPECT_EQ(sim_submit(&s, &brief[0], "0", 4, 2, 100), BT_OK);
    EXPECT_EQ(sim_submit(&s, &brief[1], "1", 8, 2, 100), BT_OK);
    EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], 1);
    bt_relay_abort_client(s.relay, &first, "first", "gone");
    sim_tell(&s, 2, sim_in(sim_released(first.number), s.relay->epoch));
    EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], 2); /* the one that waits */
    bt_relay_abort_client(s.relay, &waits, "waits", "gone");
    sim_tell(&s, 2, sim_in(sim_released(waits.number), s.relay->epoch));
    EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], 4);
    bt_relay_stop(s.relay, GRPC_STATUS_UNAVAILABLE, "end");
    sim_fini(&s);
}

/* The window may be filled; what the first token, or the end of a choice, makes room for is placed
 * with it. */
static void relay_room_that_tokens_make_is_used_at_once(void)
{
    sim               s;
    sim_client        c[3];
    bt_relay_request *q;

    sim_init(&s, 1, 1, 2, 200);
    EXPECT_EQ(sim_submit(&s, &c[0], "0", 40, 2, 100), BT_OK);
    s.first_token = 1;
    EXPECT_EQ(sim_submit(&s, &c[1], "1", 24, 2, 100), BT_OK);
    EXPECT_EQ(sim_submit(&s, &c[2], "2", 17, 2, 100), BT_OK);
    EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], 2);
    sim_tell(&s, 1, sim_ticket(c[0].number, 11));
    EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], 2);
    sim_tell(&s, 0, sim_tokens(c[0].number, 40, 1, BT_FINISH_NONE));
    EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], 3);
    sim_fini(&s);

    sim_init(&s, 1, 1, 2, 16 + 2); /* for the two choices that go on */
    EXPECT_EQ(sim_submit_choices(&s, &c[0], "0", 6, 10, 100, 3), BT_OK); /* 4 pages */
    s.first_token = 1;
    EXPECT_EQ(sim_submit(&s, &c[1], "1", 51, 2, 100), BT_OK); /* 13 */
    sim_tell(&s, 1, sim_ticket(c[0].number, 2));
    for (uint32_t i = 0; i < 3; i++)
        sim_tell(&s, 0, sim_choice_token(c[0].number, i, 6, i, BT_FINISH_NONE));
    EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], 1);
    q = bt_table_get(&s.relay->numbers, c[0].number);
    NEED(q != NULL);
    s.relay->ranks[1].limits.n_pages = 9; /* for two of 16 tokens there would be 7 */
    EXPECT(!bt_relay_could_ever_hold(s.relay, q));
    s.relay->ranks[1].limits.n_pages = 16 + 2;
    sim_tell(&s, 1, sim_choice_token(c[0].number, 0, 7, 5, BT_FINISH_EOS));
    EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], 2);
    s.relay->ranks[1].limits.n_pages = 9;
    EXPECT(bt_relay_could_ever_hold(s.relay, q));
    s.relay->ranks[1].limits.n_pages = 16 + 2;
    sim_fini(&s);
}

/* A prompt that fills the window fails, or its rank lets it go before it has said a token: the next
 * one is placed with the message. */
static void relay_room_that_a_failed_prompt_leaves_is_used_at_once(void)
{
    for (int failed = 0; failed < 2; failed++) {
        sim        s;
        sim_client first, next;

        sim_init(&s, 1, 1, 2, 200);
        EXPECT_EQ(sim_submit(&s, &first, "first", 64, 2, 100), BT_OK);
        s.first_token = 1;
        EXPECT_EQ(sim_submit(&s, &next, "next", 20, 2, 100), BT_OK); /* long, too */
        EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], 1);
        sim_tell(&s, 1, sim_ticket(first.number, 16));
        EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], 1);
        sim_tell(&s, 0, failed ? sim_failed(first.number, 14) : sim_released(first.number));
        EXPECT_EQ(first.ends, failed);
        EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], 2);
        EXPECT_EQ(s.relay->ranks[0].prefill_tokens, 20);
        bt_relay_stop(s.relay, GRPC_STATUS_UNAVAILABLE, "end");
        sim_fini(&s);
    }
}

/* One request at a time: conversations that take turns fill the caches of all ranks, and come back
 * to their own. */
static void relay_prefixes_are_spread_while_little_comes(void)
{
    sim        s;
    sim_client c;

    sim_init(&s, 2, 2, 4, 64);
    for (uint32_t turn = 0; turn < 8; turn++) {
        uint32_t  talk   = turn % 4;
        sim_rank *decode = &s.ranks[2 + talk % 2];

        s.first_token = talk;
        EXPECT_EQ(sim_submit(&s, &c, "turn", 13, 4, 100), BT_OK);
        EXPECT(decode->n_down > 0);
        if (decode->n_down > 0)
            EXPECT_EQ(
                decode->down[(decode->down_at + decode->n_down - 1) % FIFO].u.reserve.prefill_rank,
                talk % 2);
        sim_settle(&s);
        sim_expect_done(&c);
    }
    sim_fini(&s);
}

/* A spare that comes late is not given all of them until it has as many: it takes turns. */
static void relay_late_rank_takes_turns(void)
{
    sim        s;
    sim_client c;
    uint32_t   n_there = 0;

    sim_init_as(&s, 1, 2, 4, 64, true);
    for (s.first_token = 0; s.first_token < 12; s.first_token++) {
        sim_rank *spare = &s.ranks[3];

        if (s.first_token == 8) {
            sim_lose(&s, 1);
            sim_settle(&s);
        }
        EXPECT_EQ(sim_submit(&s, &c, "new", 13, 4, 100), BT_OK);
        for (uint32_t i = 0; i < spare->n_down; i++)
            n_there += spare->down[(spare->down_at + i) % FIFO].kind == BT_DOWN_RESERVE;
        sim_settle(&s);
        sim_expect_done(&c);
    }
    EXPECT_EQ(n_there, 2); /* of four */
    sim_fini(&s);
}

/* A ticket that names these pages, of which the first n_found were in the cache. */
static bt_up ticket_of(const sim_client *c, uint32_t n_found, uint32_t n, const uint32_t *ids)
{
    bt_up m = sim_ticket(c->number, n);

    m.u.ticket.held = n_found * SIM_PAGE;
    for (uint32_t i = 0; i < n; i++)
        m.u.ticket.pages[i].id = ids[i];
    return m;
}

/* Its prompt has been computed. */
static void say_first(sim *s, const sim_client *c, uint32_t prefill_rank)
{
    sim_tell(s, prefill_rank,
             sim_tokens(c->number, c->n_prompt, sim_token(c->n_prompt, 0), BT_FINISH_NONE));
}

static void end_at_once(sim *s, const sim_client *c)
{
    bt_relay_abort_client(s->relay, c, c->name, "gone");
    for (uint32_t rank = 0; rank < 2; rank++)
        sim_tell(s, rank, sim_released(c->number));
}

/* Each once: while its owner is there, when only those are left who found it, and when somebody
 * finds one that nobody held.  All prompts are alike. */
static void relay_pages_that_were_found_count_while_they_are_held(void)
{
    static const uint32_t PAGES[][4] = {
        {0, 1, 2, 3},
        {0, 1, 2, 4},
        {0, 1, 2, 5},
        {0, 1, 2, 6}
    };
    sim        s;
    sim_client c[4], big;
    char       name[12];

    sim_init(&s, 1, 1, 2, 16);
    for (uint32_t i = 0; i < 3; i++) {
        snprintf(name, sizeof(name), "%u", i);
        EXPECT_EQ(sim_submit(&s, &c[i], name, 13, 2, 100), BT_OK);
        EXPECT_EQ(sim_loads(&s).used_tokens, (4 + i) * SIM_PAGE);
        sim_tell(&s, 1, ticket_of(&c[i], i == 0 ? 0 : 3, 4, PAGES[i]));
        EXPECT_EQ(sim_loads(&s).used_tokens, (4 + i) * SIM_PAGE);
        if (i == 0) say_first(&s, &c[i], 0);
    }
    end_at_once(&s, &c[0]);
    EXPECT_EQ(sim_loads(&s).used_tokens, 5 * SIM_PAGE);
    end_at_once(&s, &c[1]);
    EXPECT_EQ(sim_loads(&s).used_tokens, 4 * SIM_PAGE);
    end_at_once(&s, &c[2]);
    EXPECT_EQ(sim_loads(&s).used_tokens, 0);

    EXPECT_EQ(sim_submit(&s, &c[3], "3", 13, 2, 100), BT_OK);
    EXPECT_EQ(sim_loads(&s).used_tokens, 4 * SIM_PAGE);
    sim_tell(&s, 1, ticket_of(&c[3], 3, 4, PAGES[3]));
    EXPECT_EQ(sim_loads(&s).used_tokens, 4 * SIM_PAGE);
    s.first_token = 7;
    EXPECT_EQ(sim_submit(&s, &big, "big", 50, 2, 100), BT_OK); /* 13 pages: there are 12 */
    EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], 4);
    end_at_once(&s, &c[3]);
    EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], 5);
    bt_relay_stop(s.relay, GRPC_STATUS_UNAVAILABLE, "end");
    sim_fini(&s);
}

/* Its 12 pages do not fit beside 12, but once they are computed it shares 11 of them, also with one
 * that found them. */
static void relay_request_that_fits_by_sharing_is_placed(void)
{
    uint32_t   ids[12];
    sim        s;
    sim_client c[3];

    sim_init(&s, 0, 0, 1, 16);
    for (uint32_t i = 0; i < 12; i++)
        ids[i] = i;
    EXPECT_EQ(sim_submit(&s, &c[0], "0", 45, 2, 100), BT_OK);
    sim_tell(&s, 0, ticket_of(&c[0], 0, 12, ids));
    for (uint32_t i = 1; i < 3; i++) {
        EXPECT_EQ(sim_submit(&s, &c[i], i == 1 ? "1" : "2", 45, 2, 100), BT_OK);
        EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], i == 1 ? 1 : 3);
        if (i == 1) say_first(&s, &c[0], 0);
        EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], 1 + i);
        ids[11] = 11 + i;
        sim_tell(&s, 0, ticket_of(&c[i], 11, 12, ids));
        EXPECT_EQ(sim_loads(&s).used_tokens, 13 * SIM_PAGE);
        bt_relay_abort_client(s.relay, &c[i - 1], c[i - 1].name, "gone");
        sim_tell(&s, 0, sim_released(c[i - 1].number));
        EXPECT_EQ(sim_loads(&s).used_tokens, 12 * SIM_PAGE);
    }
    bt_relay_stop(s.relay, GRPC_STATUS_UNAVAILABLE, "end");
    sim_fini(&s);
}

/* Nobody finds what is not computed yet, nor what other prompts have taken the place of: asked for
 * that, the rank refuses. */
static void relay_shares_what_is_there_alone(void)
{
    static const uint32_t OLD[] = {0, 1, 2, 3}, NEW[] = {4, 1, 2, 3};
    sim                   s;
    sim_client            first, other, again[4];

    sim_init(&s, 1, 1, 2, 64);
    EXPECT_EQ(sim_submit(&s, &first, "first", 13, 2, 100), BT_OK); /* 3 pages and one */
    sim_tell(&s, 1, ticket_of(&first, 0, 4, OLD));
    EXPECT_EQ(sim_submit(&s, &again[0], "0", 13, 2, 100), BT_OK);
    EXPECT_EQ(sim_loads(&s).used_tokens, (4 + 4) * SIM_PAGE);
    say_first(&s, &first, 0);
    EXPECT_EQ(sim_submit(&s, &again[1], "1", 13, 2, 100), BT_OK);
    EXPECT_EQ(sim_loads(&s).used_tokens, (4 + 4 + 1) * SIM_PAGE);
    end_at_once(&s, &again[0]);
    end_at_once(&s, &again[1]);
    end_at_once(&s, &first);
    EXPECT_EQ(sim_loads(&s).used_tokens, 0);

    s.first_token = 7; /* two of the pages have another prompt now */
    EXPECT_EQ(sim_submit(&s, &other, "other", 13, 2, 100), BT_OK);
    sim_tell(&s, 1, ticket_of(&other, 0, 4, NEW));
    s.first_token = 0;
    EXPECT_EQ(sim_submit(&s, &again[2], "2", 13, 2, 100), BT_OK);
    EXPECT_EQ(sim_loads(&s).used_tokens, (4 + 4) * SIM_PAGE);
    say_first(&s, &other, 0);
    EXPECT_EQ(sim_submit(&s, &again[3], "3", 13, 2, 100), BT_OK);
    EXPECT_EQ(sim_loads(&s).used_tokens, (4 + 4 + 4) * SIM_PAGE);
    bt_relay_stop(s.relay, GRPC_STATUS_UNAVAILABLE, "end");
    sim_fini(&s);
}

/* Which a relay that is younger than its ranks hears of by tickets alone. */
static void relay_shares_what_a_rank_had_before(void)
{
    static const uint32_t PAGES[] = {0, 1, 2, 3};
    sim                   s;
    sim_client            first, again, blank;

    sim_init(&s, 1, 1, 2, 64);
    EXPECT_EQ(sim_submit(&s, &first, "first", 13, 2, 100), BT_OK);
    sim_tell(&s, 1, ticket_of(&first, 3, 4, PAGES));
    EXPECT_EQ(sim_submit(&s, &again, "again", 13, 2, 100), BT_OK);
    EXPECT_EQ(sim_loads(&s).used_tokens, (4 + 1) * SIM_PAGE);
    end_at_once(&s, &first);
    end_at_once(&s, &again);

    s.prompt_logprobs = 1; /* and so has no keys, whatever the ticket says */
    EXPECT_EQ(sim_submit(&s, &blank, "blank", 13, 2, 100), BT_OK);
    sim_tell(&s, 1, ticket_of(&blank, 3, 4, PAGES));
    EXPECT_EQ(sim_loads(&s).used_tokens, 4 * SIM_PAGE);
    bt_relay_stop(s.relay, GRPC_STATUS_UNAVAILABLE, "end");
    sim_fini(&s);
}

/* Prompts of a burst that share their prefix: the prefill rank computes that once, whichever of
 * them it hears of first. */
static void relay_prefix_of_a_burst_is_to_be_computed_once(void)
{
    sim                s;
    sim_client         c[2], other;
    bt_relay_rank_view v;

    sim_init(&s, 1, 1, 2, 64);
    EXPECT_EQ(sim_submit(&s, &c[0], "0", 25, 2, 100), BT_OK);
    EXPECT_EQ(sim_submit(&s, &c[1], "1", 25, 2, 100), BT_OK);
    bt_relay_view_rank(s.relay, 0, &v);
    EXPECT_EQ(v.prefill_tokens, 50);
    s.first_token = 7;
    EXPECT_EQ(sim_submit(&s, &other, "other", 30, 2, 100), BT_OK);
    EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], 2); /* the window has 64 */
    sim_tell(&s, 1, sim_ticket(c[1].number, 7));
    EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], 2);
    sim_tell(&s, 1, sim_ticket(c[0].number, 7));
    EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], 3);
    bt_relay_view_rank(s.relay, 0, &v);
    EXPECT_EQ(v.prefill_tokens, 25 + 1 + 30);
    for (int i = 0; i < 2; i++)
        end_at_once(&s, &c[i]);
    end_at_once(&s, &other);
    bt_relay_view_rank(s.relay, 0, &v);
    EXPECT_EQ(v.prefill_tokens, 0);
    EXPECT_EQ(v.taken_pages, 0);
    bt_relay_stop(s.relay, GRPC_STATUS_UNAVAILABLE, "end");
    sim_fini(&s);
}

/* Where generated pages are kept the next turn of a conversation is placed by them, with the salt
 * of the turn before. */
static void relay_generated_pages_are_those_of_the_salt(void)
{
    enum { PROMPT = 3 * SIM_PAGE + 1, OUT = 3 * SIM_PAGE - 1, N_KEYS = 6 };
    const char *const SALTS[]                = {"a", "b", NULL};
    uint32_t          all[N_KEYS * SIM_PAGE] = {0}; /* the last token's row is not computed */
    sim               s;
    sim_client        c;

    for (uint32_t i = PROMPT; i < N_KEYS * SIM_PAGE; i++)
        all[i] = sim_token(PROMPT, i - PROMPT);
    sim_init(&s, 0, 0, 1, 64);
    s.relay->cfg.share_generated = true;
    s.cache_salt                 = SALTS[0];
    EXPECT_EQ(sim_submit(&s, &c, "turn", PROMPT, OUT, 100), BT_OK);
    EXPECT_EQ(last_reserve(&s, 0)->prefix_seed,
              bt_cache_salt_seed(s.relay->cfg.prefix_seed, SALTS[0]));
    sim_settle(&s);
    sim_expect_done(&c);
    for (uint32_t i = 0; i < sizeof(SALTS) / sizeof(SALTS[0]); i++) {
        bt_page_key *keys = NULL;
        uint32_t     n    = 0;

        EXPECT_EQ(bt_page_keys(bt_cache_salt_seed(s.relay->cfg.prefix_seed, SALTS[i]), SIM_PAGE,
                               N_KEYS * SIM_PAGE, all, &keys, &n),
                  BT_OK);
        EXPECT_EQ(bt_prefix_index_match(&s.relay->ranks[0].index, n, keys), i == 0 ? n - 1 : 0);
        bt_free(keys);
    }
    s.relay->cfg.share_generated = false;
    EXPECT_EQ(sim_submit(&s, &c, "other", PROMPT, OUT, 100), BT_OK);
    EXPECT_EQ(last_reserve(&s, 0)->n_prompt, PROMPT);
    EXPECT_EQ(last_reserve(&s, 0)->prefix_seed, 0); /* the rank has no use for it */
    sim_fini(&s);
}

/* A short prompt has no page of its own, but its reply would. */
static void relay_prompt_logprobs_leave_no_generated_pages(void)
{
    enum { PROMPT = SIM_PAGE - 1, OUT = 2 * SIM_PAGE + 2 };
    uint32_t     all[3 * SIM_PAGE] = {0}, n = 0;
    bt_page_key *keys = NULL;
    sim          s;
    sim_client   c;

    for (uint32_t i = PROMPT; i < 3 * SIM_PAGE; i++)
        all[i] = sim_token(PROMPT, i - PROMPT);
    sim_init(&s, 0, 0, 1, 64);
    s.relay->cfg.share_generated = true;
    s.prompt_logprobs            = 1;
    EXPECT_EQ(sim_submit(&s, &c, "a", PROMPT, OUT, 100), BT_OK);
    EXPECT_EQ(last_reserve(&s, 0)->prefix_seed, 0);
    sim_settle(&s);
    sim_expect_done(&c);
    EXPECT_EQ(bt_page_keys(bt_cache_salt_seed(s.relay->cfg.prefix_seed, NULL), SIM_PAGE,
                           3 * SIM_PAGE, all, &keys, &n),
              BT_OK);
    EXPECT(n > 0);
    EXPECT_EQ(bt_prefix_index_match(&s.relay->ranks[0].index, n, keys), 0);
    EXPECT_EQ(s.relay->ranks[0].index.n_new, 0); /* nor by other keys */
    bt_free(keys);
    sim_fini(&s);
}

static const bt_test TESTS[] = {
    BT_TEST(relay_one_decode_rank_is_kept_for_a_large_request),
    BT_TEST(relay_ranks_that_are_too_small_for_those_that_wait_are_used),
    BT_TEST(relay_looks_at_few_that_wait_for_room),
    BT_TEST(relay_no_more_than_four_decode_ranks_are_kept),
    BT_TEST(relay_rank_is_kept_for_choices_that_wait_for_rows),
    BT_TEST(relay_rank_that_lacks_least_is_kept),
    BT_TEST(relay_holds_what_there_are_pages_for_in_each_role),
    BT_TEST(relay_request_goes_where_it_can_be_held_to_its_end),
    BT_TEST(relay_prompt_waits_where_it_can_be_held_alone),
    BT_TEST(relay_prompt_passes_none_of_its_kind_on_another_rank),
    BT_TEST(relay_prompt_that_has_gone_keeps_no_pages),
    BT_TEST(relay_room_that_tokens_make_is_used_at_once),
    BT_TEST(relay_room_that_a_failed_prompt_leaves_is_used_at_once),
    BT_TEST(relay_prefixes_are_spread_while_little_comes),
    BT_TEST(relay_late_rank_takes_turns),
    BT_TEST(relay_pages_that_were_found_count_while_they_are_held),
    BT_TEST(relay_request_that_fits_by_sharing_is_placed),
    BT_TEST(relay_shares_what_is_there_alone),
    BT_TEST(relay_shares_what_a_rank_had_before),
    BT_TEST(relay_prefix_of_a_burst_is_to_be_computed_once),
    BT_TEST(relay_generated_pages_are_those_of_the_salt),
    BT_TEST(relay_prompt_logprobs_leave_no_generated_pages),
};

int main(int argc, char **argv)
{
    bt_log_init("test", BT_LOG_WARN);
    return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
}

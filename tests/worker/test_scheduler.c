#include "core/minmax.h"
#include "tests/support/test.h"
#include "worker/scheduler.h"

enum { MAX = 32 };

static bt_request  g_requests[MAX];
static bt_request *g_at[MAX];
static bt_requests g_table = {.at = g_at, .capacity = MAX};
static bt_piece    g_pieces[MAX * 8];
static uint32_t    g_rows[BT_N_ROLES];

static void clear(void) { g_table.n = 0; }

static bt_request *add(bt_request_state state, uint32_t n_prompt, uint32_t n_computed)
{
    bt_request *r = &g_requests[g_table.n];

    *r = (bt_request){.id         = g_table.n + 1,
                      .state      = state,
                      .n_prompt   = n_prompt,
                      .n_computed = n_computed,
                      .step_end   = n_computed};
    if (state == BT_REQUEST_DECODE) r->n_known = n_computed + 1 - n_prompt;
    g_at[g_table.n++] = r;
    return r;
}

static void expect_piece(uint32_t i, uint64_t id, bt_role role, uint32_t start, uint32_t n_rows)
{
    EXPECT_EQ(g_pieces[i].request->id, id);
    EXPECT_EQ(g_pieces[i].role, role);
    EXPECT_EQ(g_pieces[i].start, start);
    EXPECT_EQ(g_pieces[i].n_rows, n_rows);
}

static void scheduler_without_work_gives_no_rows(void)
{
    bt_scheduler s = {.max_rows = 8, .chunk = 4};

    clear();
    EXPECT_EQ(bt_schedule(&s, &g_table, g_pieces, g_rows), 0);
    add(BT_REQUEST_QUEUED, 9, 0);
    add(BT_REQUEST_RESERVED, 9, 0);
    add(BT_REQUEST_SENDING, 9, 9);
    add(BT_REQUEST_DRAINING, 9, 4);
    EXPECT_EQ(bt_schedule(&s, &g_table, g_pieces, g_rows), 0);
    EXPECT_EQ(g_rows[BT_ROLE_PROMPT] + g_rows[BT_ROLE_GENERATED], 0);
    EXPECT(!s.long_turn); /* the next long prompt passes nobody */
}

static void scheduler_cuts_prompts_and_shares_the_step(void)
{
    bt_scheduler s = {.max_rows = 10, .chunk = 4};

    clear();
    add(BT_REQUEST_PREFILL, 9, 4);
    add(BT_REQUEST_PREFILL, 3, 0);
    add(BT_REQUEST_PREFILL, 6, 0); /* its piece of 4 does not fit into the 2 rows that are left */
    add(BT_REQUEST_PREFILL, 1, 0); /* short ones go first */
    EXPECT_EQ(bt_schedule(&s, &g_table, g_pieces, g_rows), 3);
    expect_piece(0, 2, BT_ROLE_PROMPT, 0, 3);
    expect_piece(1, 4, BT_ROLE_PROMPT, 0, 1);
    expect_piece(2, 1, BT_ROLE_PROMPT, 4, 4);
    EXPECT_EQ(g_rows[BT_ROLE_PROMPT], 8);
    clear();
    add(BT_REQUEST_PREFILL, 5, 0);
    add(BT_REQUEST_PREFILL, 4, 0); /* a whole piece is short still */
    EXPECT_EQ(bt_schedule(&s, &g_table, g_pieces, g_rows), 2);
    expect_piece(0, 2, BT_ROLE_PROMPT, 0, 4);
    expect_piece(1, 1, BT_ROLE_PROMPT, 0, 4);
    clear();
    for (uint32_t i = 0; i < 3; i++) /* the last one's rows do not fit: it waits, */
        add(BT_REQUEST_PREFILL, 8, i < 2 ? 4 : 5)->out.moved_ns = 1;
    add(BT_REQUEST_PREFILL, 2, 0); /* and is not overtaken */
    EXPECT_EQ(bt_schedule(&s, &g_table, g_pieces, g_rows), 2);
    EXPECT_EQ(g_rows[BT_ROLE_PROMPT], 8);
}

/* Rows that are to be computed as they were: no piece has some of either role, and those of role
 * prompt come first. */
static void scheduler_keeps_the_roles_of_a_form_map(void)
{
    bt_scheduler s   = {.max_rows = 400, .chunk = 100};
    bt_form_map  map = {0};
    bt_request  *r;

    clear();
    r = add(BT_REQUEST_PREFILL, 100, 0);
    NEED(bt_form_map_init(&map, 100, NULL, 0) == BT_OK);
    bt_form_map_fix(&map, 64, BT_ROLE_PROMPT, BT_FORM_NORMAL);
    bt_form_map_fix(&map, 100, BT_ROLE_GENERATED, BT_FORM_ABSORBED);
    r->map = map;
    add(BT_REQUEST_PREFILL, 7, 0);
    add(BT_REQUEST_PREFILL, 8, 0);
    EXPECT_EQ(bt_schedule(&s, &g_table, g_pieces, g_rows), 3);
    expect_piece(0, 1, BT_ROLE_PROMPT, 0, 64);
    r->n_computed = 64;
    EXPECT_EQ(bt_schedule(&s, &g_table, g_pieces, g_rows), 3);
    expect_piece(0, 2, BT_ROLE_PROMPT, 0, 7);
    expect_piece(1, 3, BT_ROLE_PROMPT, 0, 8);
    expect_piece(2, 1, BT_ROLE_GENERATED, 64, 36);
    EXPECT_EQ(g_rows[BT_ROLE_PROMPT], 15);
    EXPECT_EQ(g_rows[BT_ROLE_GENERATED], 36);
    bt_form_map_fini(&map);
}

/* A long prompt is there, and short ones keep coming: each of them waits for one piece at most, and
 * the long one moves in every second step. */
static void scheduler_holds_nobody_up_for_more_than_a_piece(void)
{
    bt_scheduler s = {.max_rows = 4, .chunk = 4};
    bt_request  *big, *small = NULL;
    uint32_t     waited = 0, moved = 0;

    clear();
    big = add(BT_REQUEST_PREFILL, 60, 0);
    add(BT_REQUEST_PREFILL, 60, 0);
    for (uint32_t step = 0; step < 20; step++) {
        bool served = false;

        if (small == NULL) {
            small  = add(BT_REQUEST_PREFILL, 3, 0);
            waited = 0;
        }
        EXPECT(bt_schedule(&s, &g_table, g_pieces, g_rows) >= 1);
        for (uint32_t i = 0; i < 1; i++) {
            served = g_pieces[i].request == small;
            g_pieces[i].request->n_computed += g_pieces[i].n_rows;
        }
        if (served) {
            small->state = BT_REQUEST_SENDING;
            small        = NULL;
        } else {
            EXPECT(++waited <= 1);
            moved++;
        }
    }
    EXPECT_EQ(moved, 10);
    EXPECT_EQ(big->n_computed, 40); /* the first of two long ones */
    clear();
    add(BT_REQUEST_PREFILL, 4, 0); /* this one takes no piece more than one */
    add(BT_REQUEST_PREFILL, 5, 0);
    s.long_turn = true;
    EXPECT_EQ(bt_schedule(&s, &g_table, g_pieces, g_rows), 1);
    expect_piece(0, 2, BT_ROLE_PROMPT, 0, 4);
}

/* A burst of equal prompts: the first is computed, others find its pages in the cache; all end in
 * one step, whose rows nobody waits for. */
static void scheduler_computes_equal_prompts_once(void)
{
    bt_scheduler  s       = {.max_rows = 400, .chunk = 100};
    bt_page_map   maps[5] = {{0}};
    bt_prefix_key all[]   = {
          {1, 1},
          {2, 2},
          {3, 3},
          {4, 4}
    };
    bt_prefix_key other[] = {
        {1, 1},
        {2, 2},
        {3, 9},
        {4, 4}
    };

    clear();
    for (uint32_t i = 0; i < 4; i++) {
        bt_request *r = add(BT_REQUEST_PREFILL, 280, 0);

        r->keys   = i == 2 ? other : all;
        r->n_keys = i == 3 ? 0 : 4; /* the last one's rows are all wanted */
    }
    EXPECT_EQ(bt_schedule(&s, &g_table, g_pieces, g_rows), 2);
    expect_piece(0, 1, BT_ROLE_PROMPT, 0, 100);
    expect_piece(1, 4, BT_ROLE_PROMPT, 0, 100);
    g_requests[0].n_computed = 100;
    g_requests[0].n_kept     = 1;
    for (uint32_t i = 1; i < 3; i++) {
        g_requests[i].n_computed = 64;
        g_requests[i].n_kept     = 1;
    }
    EXPECT_EQ(bt_schedule(&s, &g_table, g_pieces, g_rows), 2); /* it stands in the next page */
    g_requests[0].n_computed = 200;
    g_requests[0].n_kept     = 3;
    g_requests[1].n_computed = 192;
    g_requests[1].n_kept     = 3;
    g_requests[2].n_computed = 128;
    g_requests[2].n_kept     = 2;
    EXPECT_EQ(bt_schedule(&s, &g_table, g_pieces, g_rows), 4);
    expect_piece(0, 1, BT_ROLE_PROMPT, 200, 80);
    expect_piece(1, 2, BT_ROLE_PROMPT, 192, 88);
    expect_piece(2, 3, BT_ROLE_PROMPT, 128, 100); /* here it goes its own way */

    g_requests[0].state      = BT_REQUEST_DRAINING; /* who computed it has gone */
    g_requests[1].n_computed = 64;
    g_requests[1].n_kept     = 1;
    EXPECT_EQ(bt_schedule(&s, &g_table, g_pieces, g_rows), 3);
    expect_piece(0, 2, BT_ROLE_PROMPT, 64, 100);
    g_requests[0].state       = BT_REQUEST_PREFILL;
    g_requests[0].n_computed  = 64;
    g_requests[0].n_kept      = 1;
    g_requests[1].map.pages   = maps;
    g_requests[1].map.n_fixed = 280; /* a replay, whose pages must be as they were */
    EXPECT_EQ(bt_schedule(&s, &g_table, g_pieces, g_rows), 4);
}

/* A page of the same tokens, but behind pages that were computed otherwise, is not the one that it
 * needs: it does not wait for it, and so never for a row of younger ones that bring such. */
static void scheduler_waits_for_no_page_that_is_not_its_own(void)
{
    bt_scheduler  s      = {.max_rows = 400, .chunk = 100};
    bt_prefix_key keys[] = {
        {1, 1},
        {2, 2},
        {3, 3},
        {4, 4}
    };

    clear();
    for (uint32_t i = 0; i < 2; i++) {
        bt_request *r = add(BT_REQUEST_PREFILL, i == 0 ? 280 : 128, 64); /* the second is short */

        r->keys   = keys;
        r->n_keys = i == 0 ? 4 : 2;
        r->n_kept = 1;
    }
    EXPECT_EQ(bt_schedule(&s, &g_table, g_pieces, g_rows), 1);
    for (int other = 0; other < 6; other++) {
        bt_request   *r = &g_requests[0], *q = &g_requests[1];
        bt_request    r_was = *r, q_was = *q;
        bt_prefix_key own[] = {
            {1, 1},
            {2, 2},
            {3, 3},
            {4, 4}
        };

        r->keys = own;
        if (other == 0) r->before = (bt_prefix_key){7, 1};
        if (other == 1) own[1].lo++;
        if (other == 2) own[1].hi++;
        if (other == 3) r->n_computed = 70;                              /* half of it is there */
        if (other == 4) q->n_prompt = 64, q->n_computed = q->n_kept = 0; /* an earlier page */
        if (other == 5) q->n_prompt = 100, q->n_keys = 1; /* its last, which is not full */
        s.long_turn = false;
        EXPECT_EQ(bt_schedule(&s, &g_table, g_pieces, g_rows), 2);
        expect_piece(1, 1, BT_ROLE_PROMPT, r->n_computed, 100);
        *r = r_was;
        *q = q_was;
    }
    s = (bt_scheduler){.max_rows = 400, .chunk = 32};
    for (uint32_t i = 0; i < 2; i++) { /* of a last page the last row is computed in any case */
        g_requests[i].n_prompt   = 64;
        g_requests[i].n_computed = g_requests[i].n_kept = 0;
        g_requests[i].n_keys                            = 1;
    }
    EXPECT_EQ(bt_schedule(&s, &g_table, g_pieces, g_rows), 2);
}

/* While the oldest waits for a page of its equal another one begins, whose decode rank waits for
 * rows from then on: it goes on before those that have not begun. */
static void scheduler_goes_on_with_what_has_begun(void)
{
    bt_scheduler  s      = {.max_rows = 200, .chunk = 100};
    bt_prefix_key keys[] = {
        {1, 1},
        {2, 2}
    };

    clear();
    for (uint32_t i = 0; i < 3; i++) {
        bt_request *r = add(BT_REQUEST_PREFILL, 1000, 0);

        if (i != 2) r->keys = keys;
        if (i != 2) r->n_keys = 2;
    }
    EXPECT_EQ(bt_schedule(&s, &g_table, g_pieces, g_rows), 2);
    for (uint32_t step = 1; step < 4; step++) {
        expect_piece(0, 1, BT_ROLE_PROMPT, 100 * (step - 1), 100);
        expect_piece(1, 3, BT_ROLE_PROMPT, 100 * (step - 1), 100);
        for (uint32_t i = 0; i < 2; i++) {
            g_pieces[i].request->n_computed += 100;
            g_pieces[i].request->n_kept       = g_pieces[i].request->n_computed / 64;
            g_pieces[i].request->out.moved_ns = step;
        }
        g_requests[1].n_kept     = bt_min_u32(2, g_requests[0].n_kept);
        g_requests[1].n_computed = g_requests[1].n_kept * 64;
        EXPECT_EQ(bt_schedule(&s, &g_table, g_pieces, g_rows), 2);
    }
}

/* Short ones fill every step: of the long ones that have begun none stands still while another one
 * has all the turns. */
static void scheduler_moves_all_that_have_begun(void)
{
    bt_scheduler s = {.max_rows = 200, .chunk = 100};

    clear();
    add(BT_REQUEST_PREFILL, 1000, 0);
    add(BT_REQUEST_PREFILL, 1000, 100)->out.moved_ns = 1;
    add(BT_REQUEST_PREFILL, 1000, 100)->out.moved_ns = 2;
    add(BT_REQUEST_PREFILL, 100, 0);
    add(BT_REQUEST_PREFILL, 100, 0);
    for (uint32_t step = 0; step < 8; step++) {
        uint32_t n = bt_schedule(&s, &g_table, g_pieces, g_rows);

        for (uint32_t i = 0; i < n; i++) {
            if (g_pieces[i].request->n_prompt == 100) continue;
            g_pieces[i].request->n_computed += g_pieces[i].n_rows;
            g_pieces[i].request->out.moved_ns = 10 + step;
        }
    }
    EXPECT_EQ(g_requests[0].n_computed, 0);
    EXPECT_EQ(g_requests[1].n_computed, 300);
    EXPECT_EQ(g_requests[2].n_computed, 300);
}

/* Short ones leave room for one piece of the long ones in each step: all of these that have begun
 * have it by turns, before the one that has not. */
static void scheduler_gives_the_room_that_is_left_by_turns(void)
{
    bt_scheduler s = {.max_rows = 200, .chunk = 100};

    clear();
    add(BT_REQUEST_PREFILL, 1000, 0);
    add(BT_REQUEST_PREFILL, 1000, 100)->out.moved_ns = 1;
    add(BT_REQUEST_PREFILL, 1000, 100)->out.moved_ns = 2;
    add(BT_REQUEST_PREFILL, 90, 0);
    for (uint32_t step = 0; step < 8; step++) {
        EXPECT_EQ(bt_schedule(&s, &g_table, g_pieces, g_rows), 2);
        expect_piece(0, 4, BT_ROLE_PROMPT, 0, 90);
        expect_piece(1, 2 + step % 2, BT_ROLE_PROMPT, 100 * (1 + step / 2), 100);
        g_pieces[1].request->n_computed += 100;
        g_pieces[1].request->out.moved_ns = 10 + step;
    }
}

static void come(bt_requests *t, uint32_t i, uint64_t arrival)
{
    g_requests[i] =
        (bt_request){.id = i + 1, .state = BT_REQUEST_PREFILL, .n_prompt = 9, .arrival = arrival};
    NEED(bt_requests_add(t, &g_requests[i]) == BT_OK);
}

/* One that was retracted comes again: before all that are younger, but for those whose rows their
 * decode ranks wait for.  Choices stay behind their first. */
static void scheduler_keeps_the_place_of_a_request_s_age(void)
{
    static const uint64_t IDS[] = {1, 2, 6, 7, 5, 3, 4};
    bt_scheduler          s     = {.max_rows = 63};
    bt_requests           t     = {0};

    come(&t, 0, 10);
    g_requests[0].out.moved_ns = 1;
    come(&t, 1, 12);
    g_requests[1].out.moved_ns = 1;
    come(&t, 2, 13);
    come(&t, 3, 14);
    come(&t, 4, 12);
    come(&t, 5, 11);
    come(&t, 6, 11);
    for (s.chunk = 4; s.chunk <= 16; s.chunk += 12) { /* long ones, and short ones */
        EXPECT_EQ(bt_schedule(&s, &t, g_pieces, g_rows), 7);
        for (uint32_t i = 0; i < 7; i++)
            EXPECT_EQ(g_pieces[i].request->id, IDS[i]);
    }
    while (t.n > 0)
        bt_requests_remove(&t, t.at[0]);
    bt_requests_fini(&t);
}

static void scheduler_replays_several_known_tokens_a_step(void)
{
    bt_scheduler s = {.max_rows = 6, .chunk = 4};
    bt_request  *r;

    clear();
    r          = add(BT_REQUEST_DECODE, 3, 3);
    r->n_known = 6;
    EXPECT_EQ(bt_schedule(&s, &g_table, g_pieces, g_rows), 1);
    expect_piece(0, 1, BT_ROLE_GENERATED, 3, 4);
    add(BT_REQUEST_DECODE, 3, 3)->n_known = 6; /* whose turn it is: the other has what is left */
    EXPECT_EQ(bt_schedule(&s, &g_table, g_pieces, g_rows), 2);
    expect_piece(0, 2, BT_ROLE_GENERATED, 3, 4);
    expect_piece(1, 1, BT_ROLE_GENERATED, 3, 2);
    g_requests[1].state = BT_REQUEST_DRAINING;
    r->n_computed = r->step_end = 7;
    EXPECT_EQ(bt_schedule(&s, &g_table, g_pieces, g_rows), 1);
    expect_piece(0, 1, BT_ROLE_GENERATED, 7, 2);
}

static void scheduler_puts_prompts_before_generated_rows(void)
{
    bt_scheduler s = {.max_rows = 8, .chunk = 8};

    clear();
    add(BT_REQUEST_DECODE, 3, 5);
    add(BT_REQUEST_PREFILL, 20, 0);
    add(BT_REQUEST_DECODE, 3, 7);
    EXPECT_EQ(bt_schedule(&s, &g_table, g_pieces, g_rows), 3);
    expect_piece(0, 2, BT_ROLE_PROMPT, 0, 6);
    expect_piece(1, 1, BT_ROLE_GENERATED, 5, 1);
    expect_piece(2, 3, BT_ROLE_GENERATED, 7, 1);
    EXPECT_EQ(g_rows[BT_ROLE_PROMPT], 6);
    EXPECT_EQ(g_rows[BT_ROLE_GENERATED], 2);
}

static void scheduler_gives_turns_when_decoding_exceeds_the_step(void)
{
    bt_scheduler s         = {.max_rows = 4, .chunk = 4};
    uint32_t     turns[10] = {0};

    clear();
    for (int i = 0; i < 10; i++)
        add(BT_REQUEST_DECODE, 1, 1);
    for (int step = 0; step < 10; step++) {
        EXPECT_EQ(bt_schedule(&s, &g_table, g_pieces, g_rows), 4);
        for (int i = 0; i < 4; i++)
            turns[g_pieces[i].request->id - 1]++;
    }
    for (int i = 0; i < 10; i++)
        EXPECT_EQ(turns[i], 4);
}

static void scheduler_keeps_a_quarter_for_prompts(void)
{
    bt_scheduler s = {.max_rows = 8, .chunk = 8};

    for (uint32_t n_computed = 10; n_computed <= 44; n_computed += 34) { /* a long one, a short */
        clear();
        add(BT_REQUEST_PREFILL, 50, n_computed);
        for (int i = 0; i < 20; i++)
            add(BT_REQUEST_DECODE, 1, 1);
        EXPECT_EQ(bt_schedule(&s, &g_table, g_pieces, g_rows), 7);
        expect_piece(0, 1, BT_ROLE_PROMPT, n_computed, 2);
        EXPECT_EQ(g_rows[BT_ROLE_GENERATED], 6);
    }
}

static void scheduler_with_one_row_alternates(void)
{
    bt_scheduler s        = {.max_rows = 1, .chunk = 1, .prompts_turn = true};
    uint32_t     count[2] = {0};

    clear();
    add(BT_REQUEST_DECODE, 1, 1);
    add(BT_REQUEST_PREFILL, 50, 0);
    add(BT_REQUEST_PREFILL, 50, 49);
    for (int i = 0; i < 10; i++) {
        EXPECT_EQ(bt_schedule(&s, &g_table, g_pieces, g_rows), 1);
        count[g_pieces[0].role]++;
    }
    EXPECT_EQ(count[BT_ROLE_PROMPT], 5);
    EXPECT_EQ(count[BT_ROLE_GENERATED], 5);
}

static void scheduler_forces_several_known_tokens_a_step(void)
{
    bt_scheduler s = {.max_rows = 8, .chunk = 4};
    bt_request  *r;

    clear();
    r         = add(BT_REQUEST_DECODE, 3, 3);
    r->eval   = true;
    r->n_eval = 6;
    EXPECT_EQ(bt_schedule(&s, &g_table, g_pieces, g_rows), 1);
    expect_piece(0, 1, BT_ROLE_GENERATED, 3, 4);
    r->n_computed = r->step_end = 7;
    EXPECT_EQ(bt_schedule(&s, &g_table, g_pieces, g_rows), 1);
    expect_piece(0, 1, BT_ROLE_GENERATED, 7, 2);
    r->n_computed = r->step_end = 9;
    EXPECT_EQ(bt_schedule(&s, &g_table, g_pieces, g_rows), 0);
}

/* While a step is under way: the row of the token that it brings, unless that is the last one. */
static void scheduler_plans_behind_what_is_under_way(void)
{
    bt_scheduler s = {.max_rows = 8, .chunk = 4};
    bt_request  *r;

    clear();
    r           = add(BT_REQUEST_DECODE, 3, 3);
    r->step_end = 4;
    r->n_known = r->n_drawn = 1;
    r->sampling.max_tokens  = 3;
    EXPECT_EQ(bt_schedule(&s, &g_table, g_pieces, g_rows), 1);
    expect_piece(0, 1, BT_ROLE_GENERATED, 4, 1);
    r->sampling.max_tokens = 2;
    EXPECT_EQ(bt_schedule(&s, &g_table, g_pieces, g_rows), 0);
    r->sampling.max_tokens = 9;
    r->n_known             = 3; /* a replay: two rows are known, the token behind them is not */
    r->n_drawn             = 0;
    EXPECT_EQ(bt_schedule(&s, &g_table, g_pieces, g_rows), 1);
    expect_piece(0, 1, BT_ROLE_GENERATED, 4, 2);
    r->n_behind = 2; /* its constraint does not say yet what may follow */
    EXPECT_EQ(bt_schedule(&s, &g_table, g_pieces, g_rows), 1);
    expect_piece(0, 1, BT_ROLE_GENERATED, 4, 1);
    r->step_end = 5;
    EXPECT_EQ(bt_schedule(&s, &g_table, g_pieces, g_rows), 0);
}

/* Any mix: never more than the budget, and everybody gets there. */
static void give_text(bt_request *r, const char *text)
{
    r->drafts = r->looks_up = true;
    r->sampling.max_tokens  = 100;
    r->n_pages              = 2;
    for (; *text != '\0'; text++)
        NEED(bt_drafter_add(&r->drafter, 1, &(uint32_t){(uint32_t)*text}) == BT_OK);
}

/* Rows of drafts behind the last known token, as long as the step is small; not while more tokens
 * are known, not beyond the pages, not for the token that will be the last. */
static void scheduler_adds_rows_of_drafts(void)
{
    bt_scheduler s = {.max_rows = 100, .chunk = 4, .speculate = 5, .draft_rows = 9};

    clear();
    give_text(add(BT_REQUEST_DECODE, 3, 12), "abcdefghijabc");
    give_text(add(BT_REQUEST_DECODE, 3, 5), "xyzxyz");
    add(BT_REQUEST_DECODE, 3, 5); /* with penalties */
    EXPECT_EQ(bt_schedule(&s, &g_table, g_pieces, g_rows), 3);
    expect_piece(0, 1, BT_ROLE_GENERATED, 12, 6);
    EXPECT_EQ(g_pieces[0].n_draft, 5);
    EXPECT_EQ(g_requests[0].draft[4], (uint32_t)'h');
    expect_piece(1, 2, BT_ROLE_GENERATED, 5, 2); /* the step is full */
    EXPECT_EQ(g_pieces[1].n_draft, 1);
    expect_piece(2, 3, BT_ROLE_GENERATED, 5, 1);
    EXPECT_EQ(g_rows[BT_ROLE_GENERATED], 9);

    g_requests[0].n_known += 1; /* two rows of known tokens: the next one's draft follows them */
    g_requests[1].sampling.max_tokens = g_requests[1].n_known + 3;
    s.draft_turn                      = 0;
    EXPECT_EQ(bt_schedule(&s, &g_table, g_pieces, g_rows), 3);
    expect_piece(0, 1, BT_ROLE_GENERATED, 12, 7);
    EXPECT_EQ(g_pieces[0].n_draft, 5);
    expect_piece(1, 2, BT_ROLE_GENERATED, 5, 1);
    s.draft_turn = 0;
    EXPECT_EQ(bt_schedule(&s, &g_table, g_pieces, g_rows), 3);
    expect_piece(0, 1, BT_ROLE_GENERATED, 12, 7);
    EXPECT_EQ(bt_schedule(&s, &g_table, g_pieces, g_rows), 3);
    expect_piece(0, 1, BT_ROLE_GENERATED, 12, 5); /* the other's draft came first */
    EXPECT_EQ(g_pieces[1].n_draft, 2);
    s.draft_rows = 20;
    EXPECT_EQ(bt_schedule(&s, &g_table, g_pieces, g_rows), 3);
    expect_piece(1, 2, BT_ROLE_GENERATED, 5, 3);
    s.draft_rows = 3; /* fewer than the step has without any */
    EXPECT_EQ(bt_schedule(&s, &g_table, g_pieces, g_rows), 3);
    EXPECT_EQ(g_rows[BT_ROLE_GENERATED], 4);
    s.draft_rows = 20;

    g_requests[0].n_known += 3; /* five known tokens, of which four fit */
    EXPECT_EQ(bt_schedule(&s, &g_table, g_pieces, g_rows), 3);
    expect_piece(0, 1, BT_ROLE_GENERATED, 12, 4);
    EXPECT_EQ(g_pieces[0].n_draft, 0);

    g_requests[0].n_known             = 124 - 3 + 1; /* three positions are left of its pages */
    g_requests[0].step_end            = 124;
    g_requests[0].sampling.max_tokens = 1000;
    EXPECT_EQ(bt_schedule(&s, &g_table, g_pieces, g_rows), 3);
    expect_piece(0, 1, BT_ROLE_GENERATED, 124, 4);

    g_requests[1].state    = BT_REQUEST_PREFILL; /* its prompt's last rows draw a token, and end */
    g_requests[1].n_prompt = 6;
    g_requests[1].n_known = g_requests[1].n_computed = 0;
    EXPECT_EQ(bt_schedule(&s, &g_table, g_pieces, g_rows), 3);
    expect_piece(0, 2, BT_ROLE_PROMPT, 0, 4);
    g_requests[1].n_computed = 4;
    EXPECT_EQ(bt_schedule(&s, &g_table, g_pieces, g_rows), 3);
    expect_piece(0, 2, BT_ROLE_PROMPT, 4, 2);
    bt_drafter_fini(&g_requests[0].drafter);
    bt_drafter_fini(&g_requests[1].drafter);
}

/* The model's own layer drafts for the position behind the last known token.  What is looked up
 * comes in its place where it is longer and begins alike. */
static void scheduler_prefers_the_layer_s_drafts(void)
{
    bt_scheduler s = {.max_rows = 100, .chunk = 4, .draft_rows = 9, .mtp_rows = 20};
    bt_request  *r;

    clear();
    r                      = add(BT_REQUEST_DECODE, 3, 12);
    r->drafts              = true;
    r->sampling.max_tokens = 100;
    r->n_pages             = 2;
    r->n_mtp               = 2;
    r->mtp_at              = 13;
    r->draft[0]            = 'd';
    r->draft[1]            = 'z';
    EXPECT_EQ(bt_schedule(&s, &g_table, g_pieces, g_rows), 1);
    expect_piece(0, 1, BT_ROLE_GENERATED, 12, 3);
    EXPECT_EQ(g_pieces[0].n_draft, 2);
    EXPECT(!g_pieces[0].looked_up);
    r->sampling.max_tokens = r->n_known + 2; /* of which the last needs no row */
    EXPECT_EQ(bt_schedule(&s, &g_table, g_pieces, g_rows), 1);
    EXPECT_EQ(g_pieces[0].n_draft, 1);
    r->sampling.max_tokens = 100;
    for (s.mtp_rows = 0; s.mtp_rows < 3; s.mtp_rows++) {
        EXPECT_EQ(bt_schedule(&s, &g_table, g_pieces, g_rows), 1);
        EXPECT_EQ(g_pieces[0].n_draft, s.mtp_rows == 2 ? 1 : 0);
    }
    s.mtp_rows = 20;
    r->mtp_at  = 12; /* of a step before the last */
    EXPECT_EQ(bt_schedule(&s, &g_table, g_pieces, g_rows), 1);
    EXPECT_EQ(g_pieces[0].n_draft, 0);

    r->mtp_at   = 13;
    s.speculate = 5;
    give_text(r, "abcdefghijabc");
    EXPECT_EQ(bt_schedule(&s, &g_table, g_pieces, g_rows), 1);
    EXPECT_EQ(g_pieces[0].n_draft, 5);
    EXPECT(g_pieces[0].looked_up);
    EXPECT_EQ(r->draft[1], (uint32_t)'e');
    r->draft[0] = 'x';
    EXPECT_EQ(bt_schedule(&s, &g_table, g_pieces, g_rows), 1);
    EXPECT_EQ(g_pieces[0].n_draft, 2);
    EXPECT_EQ(r->draft[0], (uint32_t)'x');
    EXPECT(!g_pieces[0].looked_up);
    r->draft[0] = 'd';
    s.speculate = 2; /* not longer */
    EXPECT_EQ(bt_schedule(&s, &g_table, g_pieces, g_rows), 1);
    EXPECT(!g_pieces[0].looked_up);
    bt_drafter_fini(&r->drafter);
}

static void scheduler_serves_everybody_within_the_budget(void)
{
    bt_scheduler s     = {.max_rows = 7, .chunk = 3};
    uint32_t     total = 0, steps = 0, n;

    clear();
    for (uint32_t i = 0; i < 24; i++) {
        bt_request *r = add(i % 3 == 0 ? BT_REQUEST_PREFILL : BT_REQUEST_DECODE, 1 + i, 0);

        if (r->state == BT_REQUEST_DECODE) {
            r->n_computed = r->step_end = r->n_prompt;
            r->n_known                  = 1;
        }
        r->sampling.max_tokens = 5 + i;
        total++;
    }
    while (total > 0 && steps++ < 1000) {
        n = bt_schedule(&s, &g_table, g_pieces, g_rows);
        EXPECT(n > 0 && g_rows[0] + g_rows[1] <= 7);
        for (uint32_t i = 0; i < n; i++) {
            bt_request *r = g_pieces[i].request;

            EXPECT_EQ(g_pieces[i].start, r->n_computed);
            r->n_computed += g_pieces[i].n_rows;
            r->step_end = r->n_computed;
            if (r->state != BT_REQUEST_PREFILL || r->n_computed == r->n_prompt) r->n_known++;
            if (r->state == BT_REQUEST_PREFILL && r->n_computed == r->n_prompt)
                r->state = BT_REQUEST_DECODE;
            if (r->n_computed == r->n_prompt + r->sampling.max_tokens) {
                r->state = BT_REQUEST_SENDING;
                total--;
            }
        }
    }
    EXPECT_EQ(total, 0);
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {
        BT_TEST(scheduler_without_work_gives_no_rows),
        BT_TEST(scheduler_cuts_prompts_and_shares_the_step),
        BT_TEST(scheduler_keeps_the_roles_of_a_form_map),
        BT_TEST(scheduler_holds_nobody_up_for_more_than_a_piece),
        BT_TEST(scheduler_computes_equal_prompts_once),
        BT_TEST(scheduler_waits_for_no_page_that_is_not_its_own),
        BT_TEST(scheduler_goes_on_with_what_has_begun),
        BT_TEST(scheduler_moves_all_that_have_begun),
        BT_TEST(scheduler_gives_the_room_that_is_left_by_turns),
        BT_TEST(scheduler_keeps_the_place_of_a_request_s_age),
        BT_TEST(scheduler_replays_several_known_tokens_a_step),
        BT_TEST(scheduler_puts_prompts_before_generated_rows),
        BT_TEST(scheduler_gives_turns_when_decoding_exceeds_the_step),
        BT_TEST(scheduler_keeps_a_quarter_for_prompts),
        BT_TEST(scheduler_with_one_row_alternates),
        BT_TEST(scheduler_forces_several_known_tokens_a_step),
        BT_TEST(scheduler_plans_behind_what_is_under_way),
        BT_TEST(scheduler_adds_rows_of_drafts),
        BT_TEST(scheduler_prefers_the_layer_s_drafts),
        BT_TEST(scheduler_serves_everybody_within_the_budget),
    };

    return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
}

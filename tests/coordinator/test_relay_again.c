/* Requests that are placed again, and those of several choices, in a simulated cell. */
#include "coordinator/relay_state.h"
#include "proto/prefix_key.h"
#include "tests/coordinator/relay_sim.h"
#include "tests/support/own_stderr.h"

static const bt_down *last_down(const sim *s, uint32_t rank)
{
    const sim_rank *k = &s->ranks[rank];

    return &k->down[(k->down_at + k->n_down - 1) % FIFO];
}

/* A retracted request is placed again, before younger ones, with what its client has; the client
 * sees nothing of it. */
static void relay_retracted_request_replays(void)
{
    sim        s;
    sim_client c, young;
    uint64_t   first;
    bt_up      gone = {.kind = BT_UP_RETRACTED};

    for (int prefill_holds = 0; prefill_holds < 2; prefill_holds++) {
        const bt_down_reserve *again;

        sim_bring(&s, &c, AT_DECODE);
        first = c.number;
        sim_tell(&s, 1, sim_tokens(first, 6, sim_token(6, 0), BT_FINISH_NONE));
        sim_tell(&s, 1, sim_tokens(first, 7, sim_token(6, 1), BT_FINISH_NONE));
        if (!prefill_holds) sim_tell(&s, 0, sim_released(first));
        gone.u.retracted.request = first + 7;
        gone.u.retracted.epoch   = EPOCH;
        sim_tell(&s, 1, gone); /* nobody of that number */
        gone.u.retracted.request = first;
        gone.u.retracted.epoch   = EPOCH - 1;
        sim_tell(&s, 1, gone); /* of another epoch */
        gone.u.retracted.epoch = EPOCH;
        sim_tell(&s, 0, gone); /* the wrong rank */
        EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], 1);
        sim_tell(&s, 1, gone);
        EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], 2);
        EXPECT_EQ(s.n_down[BT_DOWN_ABORT], (uint32_t)prefill_holds);
        again = &s.ranks[1].down[(s.ranks[1].down_at + s.ranks[1].n_down - 1) % FIFO].u.reserve;
        EXPECT(again->request > first && again->arrival == first);
        EXPECT(again->n_replay == 2 && again->replay[1] == sim_token(6, 1));
        EXPECT_EQ(c.ends, 0);
        EXPECT_EQ(sim_loads(&s).retracted, 1);
        EXPECT_EQ(sim_submit(&s, &young, "a", 2, 2, 100), BT_ERR_INVALID_ARG); /* its name lives */
        s.ranks[1].n_work = 0;
        sim_tell(&s, 1, sim_released(first));
        if (prefill_holds) sim_tell(&s, 0, sim_released(first));
        sim_tell(&s, 1, sim_tokens(first, 8, 0, BT_FINISH_NONE)); /* a late word: not heard */
        EXPECT_EQ(c.n, 2);
        sim_tell(&s, 1, sim_ticket(first + 1, 3));
        sim_tell(&s, 1, sim_tokens(first + 1, 8, sim_token(6, 2), BT_FINISH_NONE));
        EXPECT_EQ(c.n, 3);
        bt_relay_abort_name(s.relay, "a", "asked");
        EXPECT_EQ(c.ends, 1);
        EXPECT_EQ(c.end.code, GRPC_STATUS_CANCELLED);
        sim_fini(&s);
    }
}

/* Its age is its first arrival: it goes before one that came while it ran. */
static void relay_retracted_request_keeps_its_place(void)
{
    sim        s;
    sim_client old, young;

    sim_init(&s, 1, 1, 2, 11);
    EXPECT_EQ(sim_submit(&s, &old, "old", 22, 4, 100), BT_OK);
    s.now += BT_NS_PER_S;
    EXPECT_EQ(sim_submit(&s, &young, "young", 40, 4, 100), BT_OK); /* needs nearly all pages */
    sim_tell(&s, 1, sim_ticket(old.number, 6));
    sim_tell(&s, 0, sim_tokens(old.number, 22, sim_token(22, 0), BT_FINISH_NONE));
    s.now += BT_NS_PER_S;
    sim_tell(&s, 0, sim_released(old.number));
    EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], 1);
    sim_tell(&s, 1, sim_retracted(old.number, EPOCH));
    EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], 2);
    EXPECT_EQ(last_down(&s, 1)->u.reserve.n_prompt, 22);
    EXPECT_EQ(last_down(&s, 1)->u.reserve.arrival, old.number);
    sim_tell(&s, 1, sim_ticket(last_down(&s, 1)->u.reserve.request, 6));
    EXPECT_EQ(last_down(&s, 0)->kind, BT_DOWN_PREFILL);
    EXPECT_EQ(last_down(&s, 0)->u.prefill.arrival, old.number);
    sim_fini(&s);
}

/* A salt and its keys are the request's until it ends, not those of a placement. */
static void relay_retracted_request_keeps_its_salt(void)
{
    enum { N_PROMPT = 2 * SIM_PAGE + 1 };
    uint32_t     prompt[N_PROMPT] = {0}, n = 0;
    long         live = bt_alloc_live();
    bt_page_key *keys = NULL;
    sim          s;
    sim_client   c;

    sim_init(&s, 1, 1, 2, 11);
    s.cache_salt = "a";
    EXPECT_EQ(sim_submit(&s, &c, "salted", N_PROMPT, 8, 100), BT_OK);
    sim_tell(&s, 1, sim_ticket(c.number, 3));
    sim_tell(&s, 0, sim_tokens(c.number, N_PROMPT, sim_token(N_PROMPT, 0), BT_FINISH_NONE));
    sim_tell(&s, 0, sim_released(c.number));
    sim_tell(&s, 1, sim_retracted(c.number, EPOCH));
    sim_tell(&s, 1, sim_released(c.number)); /* nothing is left of the first placement */
    EXPECT_EQ(bt_page_keys(bt_cache_salt_seed(s.relay->cfg.prefix_seed, "a"), SIM_PAGE, N_PROMPT,
                           prompt, &keys, &n),
              BT_OK);
    EXPECT_EQ(last_down(&s, 1)->u.reserve.n_prefix_key_bytes, n * sizeof(*keys));
    EXPECT(memcmp(last_down(&s, 1)->u.reserve.prefix_keys, keys, n * sizeof(*keys)) == 0);
    EXPECT(bt_relay_has_name(s.relay, "salted"));
    EXPECT_HAS(s.relay->placed.last->cache_salt, "a"); /* for another cell that may take it over */
    bt_free(keys);
    sim_fini(&s);
    EXPECT_EQ(bt_alloc_live(), live);
}

/* How the prompt was computed goes with each later placement, to both ranks; a rank that has
 * computed it in another way than the client's tokens came from fails the request. */
static void relay_form_map_binds_a_replay(void)
{
    enum { BYTES = 2 * BT_PAGE_MAP_BYTES }; /* 6 prompt tokens are two of its pages */
    sim                    s;
    sim_client             c;
    const bt_down_reserve *again;
    const bt_down_prefill *order;

    for (int other = 0; other < 3; other++) {
        sim_bring(&s, &c, AT_PREFILL);
        sim_tell(&s, 0, sim_form_map(c.number, BYTES, 1)); /* of a step that broke off */
        sim_tell(&s, 0, sim_form_map(c.number, BYTES, 7));
        sim_tell(&s, 0, sim_tokens(c.number, 6, sim_token(6, 0), BT_FINISH_NONE));
        sim_tell(&s, 1, sim_retracted(c.number, EPOCH));
        again = &last_down(&s, 1)->u.reserve;
        EXPECT_EQ(again->n_form_map_bytes, BYTES);
        EXPECT(again->form_map != NULL && ((const uint8_t *)again->form_map)[BYTES - 1] == 7);
        sim_tell(&s, 1, sim_ticket(c.number + 1, 2));
        order = &last_down(&s, 0)->u.prefill;
        EXPECT_EQ(order->request, c.number + 1);
        EXPECT_EQ(order->n_form_map_bytes, BYTES);
        EXPECT(order->form_map != NULL && ((const uint8_t *)order->form_map)[0] == 7);
        sim_tell(&s, 0,
                 sim_form_map(c.number + 1, other == 2 ? BYTES - 1 : BYTES, other == 1 ? 6 : 7));
        EXPECT_EQ(c.ends, other > 0);
        if (other > 0) EXPECT_EQ(c.end.code, GRPC_STATUS_INTERNAL);
        if (other > 0) EXPECT_HAS(c.message, "in other forms");
        sim_fini(&s);
    }
}

/* A prefill rank that dies behind its hand-off takes along what it has said: its decode rank says
 * the first token again, and how the prompt was computed. */
static void relay_form_map_of_the_decode_rank_binds_a_replay(void)
{
    enum { BYTES = 2 * BT_PAGE_MAP_BYTES };
    sim                    s;
    sim_client             c;
    bt_up                  ticket;
    const bt_down_reserve *again;
    const bt_down_prefill *order;
    long                   live = bt_alloc_live();

    sim_init_as(&s, 2, 1, 3, 200, true);
    EXPECT_EQ(sim_submit(&s, &c, "a", 6, 10, 100), BT_OK);
    ticket                               = sim_ticket(c.number, 2);
    ticket.u.ticket.form_map             = words_calloc(1, BYTES); /* of the pages that it has */
    ticket.u.ticket.n_form_map_bytes     = BYTES;
    *(uint8_t *)ticket.u.ticket.form_map = 5;
    sim_tell(&s, 2, ticket);
    order = &last_down(&s, 0)->u.prefill;
    EXPECT_EQ(order->n_form_map_bytes, BYTES);
    EXPECT(order->form_map != NULL && *(const uint8_t *)order->form_map == 5);
    sim_tell(&s, 2, sim_form_map(c.number, BYTES, 7));
    sim_tell(&s, 2, sim_tokens(c.number, 6, sim_token(6, 0), BT_FINISH_NONE));
    sim_lose(&s, 0);
    EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], 1); /* it goes on */
    sim_tell(&s, 2, sim_retracted(c.number, EPOCH));
    again = &last_down(&s, 2)->u.reserve;
    EXPECT_EQ(again->n_replay, 1);
    EXPECT_EQ(again->n_form_map_bytes, BYTES);
    EXPECT(again->form_map != NULL && ((const uint8_t *)again->form_map)[BYTES - 1] == 7);
    sim_fini(&s);
    EXPECT_EQ(bt_alloc_live(), live);
}

/* The clock of the queue does not end what its client has begun to read. */
static void relay_retracted_request_outwaits_the_queue(void)
{
    sim        s;
    sim_client c;
    bt_up      gone = {.kind = BT_UP_RETRACTED};

    sim_bring(&s, &c, AT_DECODE);
    gone.u.retracted.request = c.number;
    gone.u.retracted.epoch   = EPOCH;
    sim_tell(&s, 1, gone);
    sim_tell(&s, 1, sim_ticket(c.number + 1, 0)); /* refused: queued again */
    s.now += 31 * BT_NS_PER_S;
    sim_tell(&s, 1, (bt_up){.kind = BT_UP_BEAT, .u.beat = {.progress = 1}});
    sim_tell(&s, 0, (bt_up){.kind = BT_UP_BEAT, .u.beat = {.progress = 1}});
    bt_relay_tick(s.relay, s.now);
    EXPECT_EQ(c.ends, 0);
    EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], 3);
    sim_fini(&s);
}

/* From the number by which the log knows it to the one by which it goes on, in one line. */
static void relay_request_that_was_refused_is_followed_in_the_log(void)
{
    sim         s;
    sim_client  c;
    own_stderr  own;
    const char *text;
    char        line[96];
    bt_up       gone = {.kind = BT_UP_RETRACTED};

    sim_bring(&s, &c, AT_DECODE);
    gone.u.retracted.request = c.number;
    gone.u.retracted.epoch   = EPOCH;
    bt_log_init("test", BT_LOG_INFO);
    own = begin_stderr();
    sim_tell(&s, 1, gone);
    for (uint32_t i = 1; i <= 3; i++) {
        sim_tell(&s, 1, sim_ticket(c.number + i, 0)); /* refused */
        s.now += BT_NS_PER_S;
        sim_tell(&s, 0, (bt_up){.kind = BT_UP_BEAT, .u.beat = {.progress = i}});
        sim_tell(&s, 1, (bt_up){.kind = BT_UP_BEAT, .u.beat = {.progress = i}});
        bt_relay_tick(s.relay, s.now);
    }
    sim_tell(&s, 1, sim_ticket(c.number + 4, 2));
    text = end_stderr(own);
    bt_log_init("test", BT_LOG_WARN);
    snprintf(line, sizeof(line), "req=%llu ", (unsigned long long)c.number + 1);
    EXPECT(strstr(text, line) != NULL);
    snprintf(line, sizeof(line), "goes on as %llu: ", (unsigned long long)c.number + 4);
    EXPECT(strstr(text, line) != NULL);
    EXPECT(strstr(strstr(text, "goes on as") + 1, "goes on as") == NULL);
    sim_fini(&s);
}

static void beat_and_tick(sim *s, uint64_t progress)
{
    s->now += BT_NS_PER_S;
    sim_tell(s, 1, (bt_up){.kind = BT_UP_BEAT, .u.beat = {.progress = progress}});
    bt_relay_tick(s->relay, s->now);
}

/* It waits for room as long as an older request that has it moves; for stall_ns when nothing does.
 */
static void relay_retracted_request_waits_while_others_move(void)
{
    sim        s;
    sim_client old, young;

    sim_init(&s, 1, 1, 2, 8);
    EXPECT_EQ(sim_submit(&s, &old, "old", 6, 26, 100), BT_OK); /* in the end it takes all pages */
    sim_tell(&s, 1, sim_ticket(old.number, 2));
    sim_tell(&s, 0, sim_tokens(old.number, 6, sim_token(6, 0), BT_FINISH_NONE));
    sim_tell(&s, 0, sim_released(old.number));
    EXPECT_EQ(sim_submit(&s, &young, "young", 6, 26, 100), BT_OK);
    sim_tell(&s, 1, sim_ticket(young.number, 2));
    sim_tell(&s, 0, sim_tokens(young.number, 6, sim_token(6, 0), BT_FINISH_NONE));
    sim_tell(&s, 0, sim_released(young.number));
    for (uint32_t i = 1; i < 22; i++)
        sim_tell(&s, 1, sim_tokens(old.number, 6 + i, sim_token(6, i), BT_FINISH_NONE));
    sim_tell(&s, 1, sim_retracted(young.number, EPOCH));
    sim_tell(&s, 1, sim_released(young.number));
    EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], 2);
    for (uint32_t i = 1; i <= 3 * 59; i++) {
        beat_and_tick(&s, i);
        if (i % 59 == 0) /* just below stall_ns */
            sim_tell(&s, 1, sim_tokens(old.number, 27 + i / 59, 1, BT_FINISH_NONE));
        EXPECT(old.ends == 0 && young.ends == 0);
    }
    for (uint32_t i = 1; i <= 120; i++) { /* the rank lives, and gives nobody a token */
        beat_and_tick(&s, 3 * 59 + i);
        EXPECT_EQ(old.ends, i >= 60); /* which could have made room */
        EXPECT_EQ(young.ends, i == 120);
    }
    EXPECT_EQ(young.end.code, GRPC_STATUS_RESOURCE_EXHAUSTED);
    EXPECT_HAS(young.message, "within 60.0 s");
    sim_fini(&s);
}

/* Where no rank could take it, what moves makes no room for it. */
static void relay_retracted_request_waits_for_its_role(void)
{
    sim        s;
    sim_client old, young;

    sim_init_as(&s, 1, 2, 3, 8, true);
    EXPECT_EQ(sim_submit(&s, &old, "old", 6, 26, 100), BT_OK);
    sim_tell(&s, 1, sim_ticket(old.number, 2));
    sim_tell(&s, 0, sim_tokens(old.number, 6, sim_token(6, 0), BT_FINISH_NONE));
    EXPECT_EQ(sim_submit(&s, &young, "young", 6, 26, 100), BT_OK);
    sim_tell(&s, 2, sim_ticket(young.number, 2));
    sim_tell(&s, 0, sim_tokens(young.number, 6, sim_token(6, 0), BT_FINISH_NONE));
    sim_lose(&s, 0);
    sim_tell(&s, 2, sim_retracted(young.number, EPOCH));
    sim_tell(&s, 2, sim_released(young.number));
    for (uint32_t i = 1; i <= 60; i++) {
        beat_and_tick(&s, i);
        if (i % 3 == 0) sim_tell(&s, 1, sim_tokens(old.number, 6 + i / 3, 1, BT_FINISH_NONE));
        EXPECT_EQ(young.ends, i == 60);
    }
    EXPECT_EQ(old.ends, 0);
    EXPECT_EQ(young.end.code, GRPC_STATUS_UNAVAILABLE);
    EXPECT_HAS(young.message, "no prefill rank is left; the request waited 60.0 s");
    sim_fini(&s);
}

/* 6 prompt tokens are a full page and two rows: three choices take 1 + 3 of its 4 tokens' pages. */
static void bring_choices(sim *s, sim_client *c)
{
    sim_init(s, 1, 1, 2, 16);
    EXPECT_EQ(sim_submit_choices(s, c, "a", 6, 10, 100, 3), BT_OK);
    EXPECT_EQ(sim_loads(s).used_tokens, (1 + 3) * SIM_PAGE);
    sim_tell(s, 1, sim_ticket(c->number, 2));
    for (uint32_t i = 0; i < 3; i++)
        sim_tell(s, 0, sim_choice_token(c->number, i, 6, i, BT_FINISH_NONE));
}

/* The first tokens of some choices have come when their prefill rank is lost: those of the others
 * may be lost with it.  When all have begun the decode rank knows what it has. */
static void relay_choices_without_a_first_token_replay(void)
{
    for (uint32_t n_begun = 2; n_begun <= 3; n_begun++) {
        sim        s;
        sim_client c;

        sim_init_as(&s, 2, 1, 3, 32, true);
        EXPECT_EQ(sim_submit_choices(&s, &c, "a", 6, 10, 100, 3), BT_OK);
        sim_tell(&s, 2, sim_ticket(c.number, 2));
        for (uint32_t i = 0; i < n_begun; i++)
            sim_tell(&s, 0, sim_choice_token(c.number, i, 6, i, BT_FINISH_NONE));
        sim_lose(&s, 0);
        EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], n_begun == 2 ? 2u : 1u);
        EXPECT_EQ(s.n_down[BT_DOWN_ABORT], n_begun == 2 ? 1u : 0u);
        EXPECT_EQ(c.ends, 0);
        sim_fini(&s);
    }
}

/* The prefill rank hangs before the first token, which nobody else says: the request is placed
 * again, and what the decode rank said meanwhile is said again. */
static void relay_first_token_that_is_lost_replays(void)
{
    enum { N = 300 };
    sim        s;
    sim_client c;

    sim_init_as(&s, 2, 1, 3, 200, true);
    EXPECT_EQ(sim_submit(&s, &c, "a", 6, 2 * N, 5000), BT_OK);
    sim_tell(&s, 2, sim_ticket(c.number, 2));
    s.now += s.cfg.rank_quiet_ns;
    for (uint32_t i = 1; i <= N; i++)
        sim_tell(&s, 2, sim_tokens(c.number, 6 + i, sim_token(6, i), BT_FINISH_NONE));
    s.ranks[0].dead = true; /* to what it is told */
    bt_relay_tick(s.relay, s.now);
    EXPECT(s.n_stuck == 1 && s.last_stuck == 0);
    EXPECT(c.ends == 0 && c.n == 0);
    EXPECT_EQ(last_down(&s, 2)->u.reserve.n_replay, 0);
    sim_tell(&s, 2, sim_in(sim_ticket(c.number + 1, 2), EPOCH + 1));
    sim_tell(&s, 1,
             sim_in(sim_tokens(c.number + 1, 6, sim_token(6, 0), BT_FINISH_NONE), EPOCH + 1));
    EXPECT_EQ(c.n, 1);
    sim_tell(&s, 2, sim_in(sim_tokens(c.number + 1, 7, sim_token(6, 1), BT_FINISH_EOS), EPOCH + 1));
    EXPECT(c.ends == 1 && c.end.code == GRPC_STATUS_OK && c.n == 2);
    sim_fini(&s);
}

/* Its client ends it with its first token, which comes behind what the decode rank made after it.
 */
static void relay_choice_gets_nothing_past_its_own_end(void)
{
    sim        s;
    sim_client c;

    sim_init(&s, 1, 1, 2, 16);
    EXPECT_EQ(sim_submit_choices(&s, &c, "a", 6, 10, 100, 3), BT_OK);
    c.cut_at = 1;
    sim_tell(&s, 1, sim_ticket(c.number, 2));
    for (uint32_t i = 7; i <= 8; i++)
        sim_tell(&s, 1, sim_choice_token(c.number, 1, i, 5, BT_FINISH_NONE));
    sim_tell(&s, 0, sim_choice_token(c.number, 1, 6, 1, BT_FINISH_NONE));
    EXPECT_EQ(c.n_of[1], 1);
    EXPECT_EQ(c.ends, 0);
    sim_fini(&s);
}

/* Each choice ends by itself; the request with the last of them. */
static void relay_choices_end_one_by_one(void)
{
    sim        s;
    sim_client c;

    bring_choices(&s, &c);
    c.cut_at = 2;
    EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], 1);
    EXPECT_EQ(last_down(&s, 0)->u.prefill.n_choices, 3);
    sim_tell(&s, 1, sim_choice_token(c.number, 2, 6, 2, BT_FINISH_NONE)); /* once more */
    sim_tell(&s, 1, sim_choice_token(c.number, 0, 7, 5, BT_FINISH_EOS));
    EXPECT_EQ(sim_loads(&s).used_tokens, (1 + 2) * SIM_PAGE); /* its own page comes back */
    sim_tell(&s, 1, sim_choice_token(c.number, 0, 8, 5, BT_FINISH_NONE)); /* past its end */
    EXPECT(c.n_of[0] == 2 && c.n_of[1] == 1 && c.n_of[2] == 1);
    EXPECT_EQ(s.n_down[BT_DOWN_ABORT], 0);
    sim_tell(&s, 1, sim_choice_token(c.number, 1, 7, 5, BT_FINISH_NONE)); /* the client's own end */
    EXPECT_EQ(s.n_down[BT_DOWN_ABORT], 1);
    EXPECT_EQ(last_down(&s, 1)->u.abort.only_choice, 2);
    EXPECT_EQ(c.ends, 0);
    sim_tell(&s, 1, sim_choice_token(c.number, 2, 7, 5, BT_FINISH_NONE));
    sim_tell(&s, 1, sim_choice_token(c.number, 2, 8, 1, BT_FINISH_NONE));
    EXPECT_EQ(c.n_of[2], 3);
    EXPECT_EQ(sim_submit(&s, &(sim_client){0}, "a", 2, 2, 100), BT_ERR_INVALID_ARG);
    sim_tell(&s, 1, sim_choice_token(c.number, 2, 9, 5, BT_FINISH_EOS));
    EXPECT_EQ(c.ends, 1);
    EXPECT_EQ(c.end.code, GRPC_STATUS_OK);
    sim_tell(&s, 1, sim_released(c.number));
    sim_tell(&s, 0, sim_released(c.number));
    EXPECT_EQ(sim_loads(&s).used_tokens, 0);
    sim_fini(&s);
}

/* A choice that has ended is not asked for again; of the others it is said what the client has. */
static void relay_retracted_choices_replay(void)
{
    sim                    s;
    sim_client             c;
    const bt_down_reserve *again;
    bt_up                  gone = {.kind = BT_UP_RETRACTED};

    bring_choices(&s, &c);
    sim_tell(&s, 1, sim_choice_token(c.number, 0, 7, 40, BT_FINISH_NONE));
    sim_tell(&s, 1, sim_choice_token(c.number, 1, 7, 41, BT_FINISH_EOS));
    gone.u.retracted.request = c.number;
    gone.u.retracted.epoch   = EPOCH;
    sim_tell(&s, 0, sim_released(c.number));
    sim_tell(&s, 1, gone);
    EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], 2);
    again = &last_down(&s, 1)->u.reserve;
    EXPECT(again->n_choices == 2 && again->choices[0] == 0 && again->choices[1] == 2);
    EXPECT(again->n_replay == 3 && again->replay_lengths[0] == 2 && again->replay_lengths[1] == 1);
    EXPECT(again->replay[0] == 0 && again->replay[1] == 40 && again->replay[2] == 2);
    sim_tell(&s, 1, sim_released(c.number));
    bt_relay_abort_name(s.relay, "a", "asked");
    EXPECT_EQ(c.ends, 1);
    sim_fini(&s);
}

static void relay_absurd_choices_end_their_request(void)
{
    sim        s;
    sim_client c;

    bring_choices(&s, &c);
    sim_tell(&s, 1, sim_choice_token(c.number, 3, 6, 1, BT_FINISH_NONE));
    EXPECT_EQ(c.ends, 1);
    EXPECT_EQ(c.end.code, GRPC_STATUS_INTERNAL);
    EXPECT_HAS(c.message, "choice 3");
    sim_fini(&s);
    bring_choices(&s, &c);
    sim_tell(&s, 1, sim_choice_token(c.number, 0, 7, 1, BT_FINISH_EOS));
    sim_tell(&s, 1, sim_released(c.number)); /* two choices are still open */
    EXPECT_EQ(c.ends, 1);
    EXPECT_EQ(c.end.code, GRPC_STATUS_INTERNAL);
    sim_fini(&s);
}

/* From a cell to one that has no room, where its client leaves: neither relay keeps anything of it.
 */
static void relay_request_that_moves_leaves_nothing_behind(void)
{
    for (sim_at state = AT_QUEUE; state < AT_LAST; state++) {
        sim               from, to;
        sim_client        c, big;
        bt_relay_request *q;
        long              live = bt_alloc_live();

        sim_bring(&from, &c, state);
        if (state == AT_PREFILL) /* earlier than the first token */
            sim_tell(&from, 1, sim_tokens(c.number, 7, sim_token(6, 1), BT_FINISH_NONE));
        sim_init(&to, 1, 1, 2, 8);
        EXPECT_EQ(sim_submit(&to, &big, "big", 28, 4, 100), BT_OK);
        q = state == AT_QUEUE ? bt_relay_take_queued(from.relay, from.relay->queue.first)
                              : bt_relay_take_open(from.relay);
        EXPECT(!bt_relay_has_name(from.relay, "a"));
        EXPECT(bt_table_get(&from.relay->numbers, c.number) == NULL);
        EXPECT(q->keys == NULL && q->n_keys == 0);
        EXPECT_EQ(q->choices[0].n_early, 0);
        for (long k = 0; k < 3; k++) { /* keys, names, numbers */
            sim none;

            sim_init(&none, 1, 1, 2, 8);
            bt_alloc_fail_at(k);
            EXPECT_EQ(bt_relay_adopt(none.relay, q, none.now), BT_ERR_NO_MEMORY);
            bt_alloc_fail_at(-1);
            EXPECT(!bt_relay_has_name(none.relay, "a"));
            EXPECT(q->keys == NULL && q->n_keys == 0);
            sim_fini(&none);
        }
        EXPECT_EQ(bt_relay_adopt(to.relay, q, to.now), BT_OK);
        EXPECT_EQ(sim_loads(&to).n_waiting, 2);
        EXPECT(bt_relay_abort_name(to.relay, "a", "the client has gone"));
        EXPECT(c.ends == 1 && to.n_down[BT_DOWN_ABORT] == 0);
        sim_settle(&to);
        sim_expect_done(&big);
        sim_expect_idle(&to);
        sim_fini(&to);
        sim_fini(&from);
        EXPECT_EQ(bt_alloc_live(), live);
    }
}

/* Many growing requests on few pages: everybody ends with every token once. */
static void relay_retractions_lose_nothing(void)
{
    int n_retracted = 0;

    for (uint64_t seed = 1; seed <= 4; seed++) {
        enum { N = 60 };
        sim         s;
        sim_client *clients = calloc(N, sizeof(*clients));
        char        name[24];

        sim_init(&s, seed % 2 == 0 ? 0 : 1, seed % 2 == 0 ? 0 : 2, 3 - (seed % 2 == 0), 16);
        s.state = seed;
        for (int n = 0; n < N; n++) {
            snprintf(name, sizeof(name), "r%d", n);
            s.cache_salt = sim_any_salt(&s);
            EXPECT_EQ(sim_submit(&s, &clients[n], name, 1 + sim_random(&s, 20),
                                 10 + sim_random(&s, 30), sim_random(&s, 60)),
                      BT_OK);
        }
        for (int i = 0; i < 2000 && sim_loads(&s).n_waiting + sim_loads(&s).n_running > 0; i++) {
            sim_settle(&s);
            s.now += 250 * BT_NS_PER_MS;
            bt_relay_tick(s.relay, s.now);
        }
        for (int n = 0; n < N; n++)
            sim_expect_done(&clients[n]);
        sim_settle(&s);
        sim_expect_idle(&s);
        n_retracted += s.n_retracted;
        sim_fini(&s);
        free(clients);
    }
    EXPECT(n_retracted > 20);
}

static const bt_test TESTS[] = {
    BT_TEST(relay_retracted_request_replays),
    BT_TEST(relay_retracted_request_keeps_its_place),
    BT_TEST(relay_retracted_request_keeps_its_salt),
    BT_TEST(relay_form_map_binds_a_replay),
    BT_TEST(relay_form_map_of_the_decode_rank_binds_a_replay),
    BT_TEST(relay_retracted_request_outwaits_the_queue),
    BT_TEST(relay_request_that_was_refused_is_followed_in_the_log),
    BT_TEST(relay_retracted_request_waits_while_others_move),
    BT_TEST(relay_retracted_request_waits_for_its_role),
    BT_TEST(relay_choices_without_a_first_token_replay),
    BT_TEST(relay_first_token_that_is_lost_replays),
    BT_TEST(relay_choice_gets_nothing_past_its_own_end),
    BT_TEST(relay_choices_end_one_by_one),
    BT_TEST(relay_retracted_choices_replay),
    BT_TEST(relay_absurd_choices_end_their_request),
    BT_TEST(relay_request_that_moves_leaves_nothing_behind),
    BT_TEST(relay_retractions_lose_nothing),
};

int main(int argc, char **argv)
{
    bt_log_init("test", BT_LOG_WARN);
    return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
}

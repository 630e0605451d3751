/* What the observer shows of a fleet: rates by the ranks' own clocks, who is slow, seconds, and who
 * waits. */
#include "coordinator/observer.h"

#include <string.h>

#include "coordinator/relay_state.h"
#include "coordinator/slow.h"
#include "tests/coordinator/fleet_site.h"
#include "tests/support/sweep.h"

static bool near(double got, double want) { return got >= want * 0.999 && got <= want * 1.001; }

/* A fleet, and who looks at it every second. */
typedef struct {
    site         s;
    bt_observer *observer;
    uint64_t     now;
} view;

static void begin(view *v, uint32_t n_requests)
{
    static const bt_observer_config CONFIG = {"model", "name"};

    set_up(&v->s, n_requests);
    EXPECT_EQ(bt_observer_create(&CONFIG, &v->observer), BT_OK);
    v->now = bt_now_ns();
}

static void end(view *v)
{
    bt_observer_destroy(v->observer);
    tear_down(&v->s);
}

static const bt_snapshot *look_after(view *v, uint64_t ns)
{
    v->now += ns;
    bt_observer_tick(v->observer, BT_PHASE_SERVING, v->s.fleet, v->now);
    return bt_board_read(bt_observer_board(v->observer));
}

static const bt_second *last_second(const bt_snapshot *shown)
{
    return &shown->history[(shown->history_at + shown->n_history - 1) % BT_HISTORY_S];
}

/* A cell of such ranks, each of 64 pages, comes and serves. */
static void come_as(view *v, bt_control_peer *peers, const char *name, uint32_t n_prefill,
                    uint32_t n_decode)
{
    uint32_t n = n_prefill + n_decode;

    for (uint32_t i = 0; i < n; i++) {
        bt_up hello = make_hello(name, i, n);

        hello.u.hello.n_prefill = n_prefill;
        hello.u.hello.n_decode  = n_decode;
        say(&v->s, &peers[i], &hello);
    }
    for (uint32_t i = 0; i < n; i++)
        be_ready(&v->s, &peers[i]);
}

static void beat(view *v, bt_control_peer *peer, const bt_up_beat *b)
{
    bt_up m = {.kind = BT_UP_BEAT, .u.beat = *b};

    bt_fleet_message(v->s.fleet, peer, &m);
}

/* After k of its beats, 2 s apart. */
static bt_up_beat worked(uint64_t k)
{
    return (bt_up_beat){
        .at_ns          = 2 * BT_NS_PER_S * k,
        .steps          = 10 * k,
        .model_ns       = 800 * BT_NS_PER_MS * k,
        .gather_ns      = 300 * BT_NS_PER_MS * k,
        .sample_ns      = 100 * BT_NS_PER_MS * k,
        .waited_ns      = 250 * BT_NS_PER_MS * k,
        .prompt_rows    = 100 * k,
        .generated_rows = 60 * k,
        .handoff_bytes  = 1000 * k,
        .handoff_ns     = 500 * BT_NS_PER_MS * k,
        .handoff_times  = {[3] = 4 * k, [BT_BEAT_TIME_BUCKETS - 1] = k},
        .n_requests     = 1
    };
}

static void observer_rates_go_by_the_clocks_of_ranks(void)
{
    view                 v;
    bt_control_peer      peers[4];
    const bt_snapshot   *shown = NULL;
    const bt_rank_rates *r     = NULL;
    bt_up_beat           b;

    begin(&v, 0);
    come_as(&v, peers, "", 2, 2);
    for (uint64_t k = 1; k <= 60; k++) {
        for (int i = 0; i < 3; i++)
            b = worked(7 + k), beat(&v, &peers[i], &b);
        shown = look_after(&v, BT_NS_PER_S);
        r     = &shown->ranks[1].rates;
        if (k == 1) EXPECT(r->busy == 0 && r->step_s == 0); /* since when is not known */
        if (k == 2) EXPECT(near(r->busy, 0.51 * 0.4) && near(r->gather, 0.51 * 0.15)); /* 2 s */
        if (k == 2) EXPECT(near(r->prompt_rate, 0.51 * 50) && near(r->sample, 0.51 * 0.05));
        if (k == 2) EXPECT(near(r->own, 0.3 * 0.475)); /* 1 s: somebody is called slow by it */
    }
    EXPECT(near(r->busy, 0.4) && near(r->gather, 0.15) && near(r->sample, 0.05));
    EXPECT(near(r->own, 0.475));
    EXPECT(near(r->prompt_rate, 50) && near(r->generated_rate, 30) && near(r->handoff_rate, 500));
    EXPECT(near(r->step_s, 0.08) && near(r->rows_per_step, 16) && near(r->handoff_s, 0.1));
    EXPECT(near(last_second(shown)->busy_prefill, 0.4)); /* the mean */
    EXPECT(near(last_second(shown)->busy_decode, 0.2));
    EXPECT(near(last_second(shown)->handoff_bytes, 1500)); /* the sum */

    shown = look_after(&v, BT_NS_PER_S); /* nothing is heard of ranks with work */
    EXPECT(near(shown->ranks[0].rates.busy, 0.4));
    b.n_requests = 0;
    beat(&v, &peers[0], &b); /* it has none left, and steps no more */
    b.at_ns    = 1;          /* another process */
    b.model_ns = 1000 * BT_NS_PER_S;
    beat(&v, &peers[1], &b);
    shown = look_after(&v, BT_NS_PER_S);
    EXPECT(near(shown->ranks[0].rates.busy, 0.28) && near(shown->ranks[0].rates.step_s, 0.08));
    EXPECT(near(shown->ranks[0].rates.handoff_s, 0.1));
    EXPECT(near(shown->ranks[1].rates.busy, 0.4));
    b.at_ns += 2 * BT_NS_PER_S;
    b.model_ns = 0; /* nothing falls below what it was */
    beat(&v, &peers[1], &b);
    EXPECT(near(look_after(&v, BT_NS_PER_S)->ranks[1].rates.busy, 0.49 * 0.4));
    end(&v);
}

/* Beats come between its layers: the time in the model of all of them is the step's. */
static void observer_step_takes_all_of_its_beats(void)
{
    view               v;
    bt_control_peer    peer;
    const bt_snapshot *shown = NULL;

    begin(&v, 0);
    come(&v.s, &peer, "", 64);
    for (uint64_t k = 1; k <= 7; k++) {
        bt_up_beat b = {.at_ns    = k * BT_NS_PER_S,
                        .model_ns = 7 * BT_NS_PER_S + k * BT_NS_PER_S / 2,
                        .steps    = k / 3};

        beat(&v, &peer, &b);
        shown = look_after(&v, BT_NS_PER_S);
        EXPECT(near(shown->ranks[0].rates.step_s, k < 3 ? 0 : k < 6 ? 1 : 1.5));
    }
    EXPECT(last_second(shown)->busy_prefill == last_second(shown)->busy_decode); /* it does both */
    EXPECT(last_second(shown)->busy_decode > 0.4);
    end(&v);
}

/* Shown once it has held the others of its group up for seconds, and until it does no more. */
static void observer_shows_who_is_slow_for_long(void)
{
    enum { GROUP = 4, SLOW = 2 }; /* and one rank is alone in its group */
    static const uint64_t PERCENT[GROUP] = {10, 25, 90, 10};

    for (uint32_t group = 0; group < 2; group++) {
        view               v;
        bt_control_peer    peers[GROUP + 1];
        const bt_snapshot *shown;
        uint64_t           model_ns[GROUP + 1] = {0};

        begin(&v, 0);
        come_as(&v, peers, "", group == 0 ? GROUP : 1, group == 0 ? 1 : GROUP);
        for (uint64_t k = 1; k <= 30; k++) {
            bool slow = k <= 12 || k >= 25;

            for (uint32_t i = 0; i < GROUP + 1; i++) {
                uint32_t   rank = group == 0 ? i : (i + 1) % (GROUP + 1);
                bt_up_beat b    = {.at_ns = k * BT_NS_PER_S, .n_requests = 1};

                model_ns[i] += (i == GROUP          ? 90
                                : i != SLOW || slow ? PERCENT[i]
                                                    : 10) *
                               BT_NS_PER_S / 100;
                b.model_ns = model_ns[i];
                beat(&v, &peers[rank], &b);
            }
            shown = look_after(&v, BT_NS_PER_S);
            /* from k = 3 on it computes for more than 0.3 of the time, as smoothed */
            if (k <= 12) EXPECT((shown->ranks[SLOW + group].rates.slowness > 8) == (k >= 5));
            if (k >= 17) EXPECT((shown->ranks[SLOW + group].rates.slowness != 0) == (k >= 27));
            for (uint32_t rank = 0; rank < GROUP + 1; rank++) {
                if (rank != SLOW + group) EXPECT(shown->ranks[rank].rates.slowness == 0);
                EXPECT(shown->ranks[rank].prompt_share == 0);
            }
        }
        end(&v);
    }
}

static void observer_keeps_the_last_seconds(void)
{
    enum { SECONDS = 2 * BT_HISTORY_S + 2 };
    view           v;
    bt_metrics    *m;
    bt_time_window ttft = {.counts = {[40] = 1}, .n = 1};
    bt_time_window itl  = {
         .counts = {[50] = 6, [60] = 4},
           .n = 10
    };
    const bt_snapshot *shown = NULL;
    const bt_second   *last;

    begin(&v, 0);
    m = bt_observer_metrics(v.observer);
    for (uint64_t k = 1; k <= SECONDS; k++) {
        m->generated_tokens += 2 * k;
        m->prompt_tokens += 6;
        m->ttft_window = ttft;
        m->itl_window  = itl;
        shown          = look_after(&v, 2 * BT_NS_PER_S);
        EXPECT_EQ(shown->n_history, k < BT_HISTORY_S ? k : BT_HISTORY_S);
        if (k > 1) EXPECT(near(last_second(shown)->generated, (double)k));
        EXPECT(m->ttft_window.n == 0 && m->itl_window.n == 0);
    }
    last = last_second(shown);
    EXPECT(near(last->prompt, 3) && last->kv_used == 0);
    EXPECT(near(last->ttft_p50_s, bt_window_percentile(&ttft, 0.5)));
    EXPECT(near(last->itl_p50_s, bt_window_percentile(&itl, 0.5)));
    EXPECT(near(last->itl_p99_s, bt_window_percentile(&itl, 0.99)));
    EXPECT(last->ttft_p50_s < last->itl_p50_s && last->itl_p50_s < last->itl_p99_s);
    EXPECT(near(shown->history[shown->history_at].generated, SECONDS - BT_HISTORY_S + 1));
    EXPECT(shown->metrics.prompt_tokens == 6 * SECONDS);
    EXPECT_EQ(look_after(&v, BT_NS_PER_S - 1)->history_at, shown->history_at);
    end(&v);
}

static void observer_publishes_in_time_or_a_new_phase(void)
{
    view            v;
    bt_board       *board;
    const uint64_t *at_ns;

    begin(&v, 0);
    board = bt_observer_board(v.observer);
    bt_observer_set_address(v.observer, "here:1");
    at_ns = &look_after(&v, BT_NS_PER_S)->at_ns;
    EXPECT_EQ(*at_ns, v.now);
    at_ns = &look_after(&v, 250 * BT_NS_PER_MS - 1)->at_ns;
    EXPECT(*at_ns < v.now);
    at_ns = &look_after(&v, 1)->at_ns;
    EXPECT_EQ(*at_ns, v.now);
    bt_observer_tick(v.observer, BT_PHASE_DRAINING, v.s.fleet, ++v.now);
    EXPECT(bt_board_read(board)->at_ns == v.now);
    EXPECT(bt_board_read(board)->phase == BT_PHASE_DRAINING);
    EXPECT(strcmp(bt_board_read(board)->public_address, "here:1") == 0);
    EXPECT(bt_board_read(board)->started_ns != 0 && bt_board_read(board)->started_ns < v.now);
    EXPECT(bt_board_read(board)->started_unix_s > 0);
    EXPECT(strcmp(bt_board_read(board)->model, "model") == 0);
    EXPECT(strcmp(bt_board_read(board)->served_name, "name") == 0);
    end(&v);
}

/* Of all cells, while both ranks sit there and the time is not over. */
static void observer_shows_what_hands_nothing_over(void)
{
    static const uint32_t PAIRS[][2] = {
        {0, 2},
        {1, 3},
        {0, 3}
    };
    view               v;
    bt_control_peer    peers[2][4];
    bt_relay          *relays[2];
    const bt_snapshot *shown;

    begin(&v, 0);
    for (int c = 0; c < 2; c++) {
        come_as(&v, peers[c], c == 0 ? "a" : "b", 2, 2);
        relays[c] = v.s.fleet->cells[c]->relay;
    }
    EXPECT_EQ(look_after(&v, BT_NS_PER_S)->n_avoided_links, 0);
    for (int i = 0; i < 3; i++) { /* 1 s apart */
        bt_relay_request q = {.prefill_rank = PAIRS[i][0], .decode_rank = PAIRS[i][1]};

        EXPECT(bt_relay_avoid(relays[i == 2], &q, v.now));
        v.now += BT_NS_PER_S;
    }
    for (int k = 0; k < 3; k++) { /* into each of the board's snapshots */
        shown = look_after(&v, BT_NS_PER_S);
        NEED(shown->n_avoided_links == 3);
    }
    for (uint64_t i = 0; i < 3; i++) {
        const bt_avoided_link_view *l = &shown->avoided_links[i];

        EXPECT(strcmp(l->cell, i == 2 ? "b" : "a") == 0);
        EXPECT(l->pair.from == PAIRS[i][0] && l->pair.to == PAIRS[i][1]);
        EXPECT_EQ(l->pair.left_ns, (600 - 6 + i) * BT_NS_PER_S);
    }
    relays[0]->ranks[1].group = relays[0]->ranks[2].group = BT_UNSEATED; /* they were lost */
    shown                                                 = look_after(&v, BT_NS_PER_S);
    NEED(shown->n_avoided_links == 1);
    EXPECT(strcmp(shown->avoided_links[0].cell, "b") == 0);
    end(&v);
}

/* Ranks that prefill come first, of all cells, and a share is of the busiest one of its cell. */
static void observer_shows_all_cells(void)
{
    static const char *const CELLS[] = {"a", "b", "b", "a", "b"};
    static const uint32_t    RANKS[] = {0, 0, 1, 1, 2};
    view                     v;
    bt_control_peer          a[2], b[3];
    const bt_snapshot       *shown = NULL;

    begin(&v, 3);
    come_as(&v, a, "a", 1, 1);
    come_as(&v, b, "b", 2, 1);
    for (uint64_t k = 1; k <= 6; k++) /* into each of the board's snapshots twice */
        for (uint64_t i = 0; i < 3; i++) {
            bt_up_beat say = {.at_ns               = k * BT_NS_PER_S,
                              .prompt_rows         = (i == 0 ? 7 : 14 * i) * k,
                              .prefix_asked_tokens = 5,
                              .n_requests          = 1};

            beat(&v, i == 0 ? &a[0] : &b[i - 1], &say);
            if (i == 2) shown = look_after(&v, BT_NS_PER_S);
        }
    EXPECT(shown->n_cells == 2 && shown->n_ranks == 5);
    EXPECT(shown->counts.prefix_asked_tokens == 3 * 5);
    EXPECT(shown->n_prefill == 3 && shown->n_decode == 2 && shown->page_tokens == 64);
    for (uint32_t i = 0; i < 2; i++) {
        const bt_cell_view *c = &shown->cells[i];

        EXPECT(strcmp(c->name, i == 0 ? "a" : "b") == 0 && strcmp(c->left_out, "n3,n5") == 0);
        EXPECT(c->n_ranks == 2 + i && c->n_prefill == 1 + i && c->n_decode == 1);
        EXPECT(c->state == BT_CELL_SERVING);
    }
    for (uint32_t i = 0; i < 5; i++) {
        const bt_rank_view *r = &shown->ranks[i];

        EXPECT(strcmp(r->cell, CELLS[i]) == 0 && r->rank == RANKS[i] && r->group == (i >= 3));
        EXPECT(strcmp(r->host, "host") == 0 && r->pid == 17 && r->n_pages == 64);
        EXPECT(r->attached && r->ready && !r->lost && r->relay.max_rows == 1 << 20);
        EXPECT(near(r->prompt_share, i >= 3 ? 0 : i == 1 ? 0.5 : 1));
    }
    submit(&v.s, 0);
    submit_of(&v.s, 1, 64 * 64); /* which no cell could hold */
    submit(&v.s, 2);
    shown = look_after(&v, BT_NS_PER_S);
    EXPECT(shown->n_requests == 3 && strcmp(shown->requests[2].name, "r1") == 0);
    EXPECT(shown->requests[0].placed && shown->requests[1].placed && !shown->requests[2].placed);
    EXPECT(shown->queued_tokens == PROMPT && shown->loads.n_waiting == 3);
    EXPECT_EQ(last_second(shown)->waiting, 3);
    EXPECT(shown->loads.used_tokens == 2 * 64 && near(last_second(shown)->kv_used, 1.0 / 64));
    end(&v);
}

/* Of two cells, and of the lobby, as many as there is room for. */
static void observer_shows_the_first_requests(void)
{
    view            v;
    bt_control_peer a, b;

    begin(&v, 80);
    come(&v.s, &a, "a", 128);
    come(&v.s, &b, "b", 128);
    for (uint32_t i = 0; i < 80; i++)
        submit(&v.s, i);
    EXPECT(a.n_reserved < BT_VIEW_REQUESTS && a.n_reserved + b.n_reserved == 80);
    EXPECT_EQ(look_after(&v, BT_NS_PER_S)->n_requests, BT_VIEW_REQUESTS);
    end(&v);
}

/* By the part of the cells in which the oldest request waits for a side. */
static void observer_says_for_what_cells_wait(void)
{
    view            v;
    bt_control_peer a, b;

    begin(&v, 2);
    come(&v.s, &a, "a", 1);
    submit(&v.s, 0);
    submit(&v.s, 1);
    EXPECT(near(look_after(&v, BT_NS_PER_S)->blocked_decode, 0.1));
    EXPECT(near(look_after(&v, BT_NS_PER_S)->blocked_decode, 0.19));
    attach(&v.s, &b, "b", 0, 2, 1); /* it does not serve yet */
    EXPECT(near(look_after(&v, BT_NS_PER_S)->blocked_decode, 0.271));
    EXPECT(look_after(&v, BT_NS_PER_S)->blocked_prefill == 0);
    abort_one(&v.s, 1);
    EXPECT(near(look_after(&v, BT_NS_PER_S)->blocked_decode, 0.9 * 0.3439));
    end(&v);
}

static void observer_create_unwinds_at_every_allocation(void)
{
    static const bt_observer_config CONFIG = {"model", "name"};
    bt_observer                    *o      = NULL;

    EXPECT_EQ(BT_SWEEP(bt_observer_create(&CONFIG, &o), (bt_observer_destroy(o), o = NULL)), 2);
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {
        BT_TEST(observer_rates_go_by_the_clocks_of_ranks),
        BT_TEST(observer_step_takes_all_of_its_beats),
        BT_TEST(observer_shows_who_is_slow_for_long),
        BT_TEST(observer_keeps_the_last_seconds),
        BT_TEST(observer_publishes_in_time_or_a_new_phase),
        BT_TEST(observer_shows_what_hands_nothing_over),
        BT_TEST(observer_shows_all_cells),
        BT_TEST(observer_shows_the_first_requests),
        BT_TEST(observer_says_for_what_cells_wait),
        BT_TEST(observer_create_unwinds_at_every_allocation),
    };

    bt_log_init("observer", BT_LOG_ERROR);
    return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
}

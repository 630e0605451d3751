/* What is counted of requests, and how it is told: as Prometheus text and as JSON. */
#include "coordinator/metrics.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/exposition.h"
#include "core/clock.h"
#include "tests/support/test.h"

static const uint64_t MS = BT_NS_PER_MS;

static bool near(double got, double want) { return got > want * 0.999 && got < want * 1.001; }

/* Three tokens of choice 0 and two of choice 1; its numbers are powers, so that no two are mixed
 * up. */
static void metrics_of_a_request_say_what_it_took(void)
{
    static bt_metrics m;
    bt_request_clock  clock;
    uint64_t          t0 = 1000 * BT_NS_PER_S;

    bt_metrics_arrived(&m, &clock, 100, t0);
    bt_metrics_left_queue(&m, &clock, t0 + 10 * MS);
    bt_metrics_left_queue(&m, &clock, t0 + 20 * MS); /* placed again */
    for (uint32_t k = 0; k < 3; k++)
        for (uint32_t choice = 0; choice < (k < 2 ? 2 : 1); choice++)
            bt_metrics_token(&m, &clock, choice, t0 + (50 + 30 * k) * MS);
    bt_metrics_end(&m, &clock, GRPC_STATUS_OK, BT_FINISH_LENGTH, t0 + 130 * MS);
    EXPECT(m.n_requests == 1 && m.n_status[GRPC_STATUS_OK] == 1);
    EXPECT(m.n_length == 1 && m.n_stop == 0);
    EXPECT(m.prompt_tokens == 100 && m.generated_tokens == 5);
    EXPECT(m.queue.n == 1 && near(m.queue.sum_s, 0.010));
    EXPECT(m.ttft.n == 1 && near(m.ttft.sum_s, 0.050));
    EXPECT(m.prefill.n == 1 && near(m.prefill.sum_s, 0.040));
    EXPECT(m.itl.n == 2 && near(m.itl.sum_s, 0.060));
    EXPECT(m.decode.n == 1 && near(m.decode.sum_s, 0.080));
    EXPECT(m.e2e.n == 1 && near(m.e2e.sum_s, 0.130));
    EXPECT(m.tpot.n == 1 && near(m.tpot.sum_s, 0.030));
    EXPECT(m.prompt.sum == 100 && m.generated.sum == 5);
    EXPECT(m.ttft_window.n == 1 && m.itl_window.n == 2);
}

/* One that fails is counted by its status alone. */
static void metrics_of_a_failed_request_are_its_status(void)
{
    static bt_metrics m;
    bt_request_clock  clock = {0};

    bt_metrics_end(&m, &clock, GRPC_STATUS_INVALID_ARGUMENT, BT_FINISH_NONE, 5 * MS);
    bt_metrics_end(&m, &clock, (grpc_status_code)1000, BT_FINISH_NONE, 5 * MS);
    EXPECT(m.n_status[GRPC_STATUS_INVALID_ARGUMENT] == 1 && m.n_status[GRPC_STATUS_UNKNOWN] == 1);
    EXPECT(m.e2e.n == 0 && m.decode.n == 0 && m.prompt.sum == 0 && m.n_stop + m.n_length == 0);
}

/* A bucket takes what is at most its limit, as Prometheus has it. */
static void metrics_gap_is_between_tokens_of_one_choice(void)
{
    static bt_metrics m;
    bt_request_clock  clock;

    bt_metrics_arrived(&m, &clock, 100, 1);
    bt_metrics_token(&m, &clock, 1, 50 * MS);
    bt_metrics_token(&m, &clock, 0, 60 * MS);
    bt_metrics_token(&m, &clock, 0, 90 * MS);
    bt_metrics_end(&m, &clock, GRPC_STATUS_OK, BT_FINISH_LENGTH, 90 * MS);
    EXPECT(m.ttft.n == 1 && near(m.ttft.sum_s, 0.050));
    EXPECT(m.itl.n == 1 && near(m.itl.sum_s, 0.030));
    EXPECT(m.tpot.n == 1 && near(m.tpot.sum_s, 0.030));
}

static void metrics_buckets_take_their_limit(void)
{
    static bt_metrics m;
    bt_request_clock  clock;
    uint32_t          sizes[] = {5, 6, 100000, 100001};

    for (uint32_t i = 0; i < 4; i++) {
        bt_metrics_arrived(&m, &clock, sizes[i], 1);
        bt_metrics_token(&m, &clock, 0, 1);
        bt_metrics_end(&m, &clock, GRPC_STATUS_OK, BT_FINISH_STOP_TOKEN, 1);
    }
    EXPECT(m.prompt.counts[2] == 1 && m.prompt.counts[3] == 1); /* 5, 10 */
    EXPECT(m.prompt.counts[BT_SIZE_BUCKETS - 2] == 1 && m.prompt.counts[BT_SIZE_BUCKETS - 1] == 1);
    EXPECT(m.n_stop == 4 && m.tpot.n == 0); /* a single token has no gap */
}

/* Within 10 % of what a sorted list would say. */
static void metrics_percentiles_are_near(void)
{
    static bt_metrics m;
    bt_request_clock  clock;
    uint64_t          now = 1;

    EXPECT(bt_window_percentile(&m.itl_window, 0.5) == 0);
    bt_metrics_arrived(&m, &clock, 1, now);
    bt_metrics_token(&m, &clock, 0, now);
    for (uint64_t k = 1; k <= 100; k++) { /* gaps of 1 to 100 ms */
        now += k * MS;
        bt_metrics_token(&m, &clock, 0, now);
    }
    for (uint32_t k = 1; k <= 100; k++) {
        double got = bt_window_percentile(&m.itl_window, k / 100.0), want = k * 1e-3;

        EXPECT(got > 0.88 * want && got < 1.13 * want);
    }
}

/* Of drafts that prove right, or of messages that were read at once. */
static void metrics_tokens_that_come_together_share_their_gap(void)
{
    static bt_metrics m;
    bt_request_clock  clock;
    uint64_t          now = 1;

    bt_metrics_arrived(&m, &clock, 1, now);
    for (uint32_t k = 0; k < 30; k++) {
        if (k % 3 == 0) now += 30 * MS;
        bt_metrics_token(&m, &clock, 0, now++);
    }
    EXPECT(m.itl.n == 29 && m.itl_window.n == 9);
    EXPECT(bt_window_percentile(&m.itl_window, 0.01) > 0.0088);
    EXPECT(bt_window_percentile(&m.itl_window, 0.99) < 0.0113);
}

static bt_snapshot *snapshot(bt_rank_view *rank)
{
    bt_snapshot *s = calloc(1, sizeof(*s));

    NEED(s != NULL);
    s->model       = "m";
    s->served_name = "a\"b\\c";
    s->ranks       = rank;
    s->n_ranks     = 1;
    return s;
}

static void expect_text(const bt_snapshot *s, const char *part)
{
    size_t n    = 0;
    char  *text = bt_exposition_prometheus(s, &n);

    NEED(text != NULL);
    EXPECT_HAS(text, part);
    free(text);
}

static void metrics_text_counts_all_and_escapes_names(void)
{
    bt_rank_view rank = {
        .ready = true, .beat = {.n_requests = 3, .steps = 7}
    };
    bt_snapshot *s = snapshot(&rank);

    s->metrics.prompt.counts[0]                     = 1;
    s->metrics.prompt.counts[BT_SIZE_BUCKETS - 1]   = 2;
    s->metrics.n_status[GRPC_STATUS_CANCELLED]      = 4;
    rank.beat.batch_rows[BT_BEAT_BATCH_BUCKETS - 1] = 5;
#define NAME "{model_name=\"a\\\"b\\\\c\","
    expect_text(s, "vllm:request_prompt_tokens_bucket" NAME "le=\"100000\"} 1\n");
    expect_text(s, "vllm:request_prompt_tokens_bucket" NAME "le=\"+Inf\"} 3\n");
    expect_text(s, "vllm:request_success_total" NAME "finished_reason=\"abort\"} 4\n");
    expect_text(s, "baton_batch_rows_bucket" NAME "rank=\"0\",role=\"both\",le=\"+Inf\"} 5\n");
    expect_text(s, "baton_rank_requests" NAME "rank=\"0\",role=\"both\"} 3\n");
    rank.lost = true; /* what it has counted stays */
    expect_text(s, "baton_rank_requests" NAME "rank=\"0\",role=\"lost\"} 0\n");
    expect_text(s, "baton_rank_steps_total" NAME "rank=\"0\",role=\"lost\"} 7\n");
#undef NAME
    free(s);
}

static json_t *json_of(const bt_snapshot *s)
{
    size_t  n    = 0;
    char   *text = bt_exposition_json(s, &n);
    json_t *o    = text == NULL ? NULL : json_loadb(text, n, 0, NULL);

    NEED(o != NULL);
    free(text);
    return o;
}

static json_int_t number(const json_t *o, const char *list, const char *key)
{
    const json_t *at = json_object_get(o, list);

    return json_integer_value(json_object_get(json_is_array(at) ? json_array_get(at, 0) : at, key));
}

static void metrics_json_of_a_lost_rank_has_what_it_counted(void)
{
    bt_rank_view rank = {
        .n_pages      = 64,
        .weight_bytes = 5,
        .done_bytes   = 5,
        .total_bytes  = 5,
        .ready        = true,
        .lost         = true,
        .beat         = {.n_requests        = 3,
                         .pages_free        = 40,
                         .pages_total       = 64,
                         .pages_cached      = 9,
                         .slots_quarantined = 1,
                         .steps             = 7,
                         .handoff_bytes     = 8,
                         .handoff_pages     = 9},
        .relay        = {.taken_pages = 2, .prefill_tokens = 6 },
        .rates        = {.busy = 0.5, .slowness = 3 }
    };
    static const char *const NOTHING[] = {
        "done_bytes", "total_bytes",    "weight_bytes", "requests",          "pages_total",
        "pages_free", "pages_reserved", "pages_cached", "slots_quarantined", "prefill_tokens"};
    bt_snapshot *s = snapshot(&rank);
    json_t      *o = json_of(s), *shown = json_array_get(json_object_get(o, "ranks"), 0);

    for (size_t i = 0; i < sizeof(NOTHING) / sizeof(NOTHING[0]); i++)
        EXPECT_EQ(number(o, "ranks", NOTHING[i]), 0);
    EXPECT(json_real_value(json_object_get(shown, "busy")) == 0);
    EXPECT(json_real_value(json_object_get(shown, "slowness")) == 0);
    EXPECT_EQ(number(o, "ranks", "steps"), 7);
    EXPECT_EQ(number(o, "ranks", "handoff_bytes"), 8);
    EXPECT_EQ(number(o, "ranks", "handoff_pages"), 9);
    EXPECT_EQ(rank.beat.n_requests, 3); /* the snapshot is others' too */
    json_decref(o);
    free(s);
}

static void metrics_name_the_cell_of_a_pair_that_hands_nothing_over(void)
{
    bt_snapshot *s = snapshot(NULL);
    json_t      *o;

    s->n_ranks          = 0;
    s->n_avoided_links  = 1;
    s->avoided_links[0] = (bt_avoided_link_view){
        .cell = "c", .pair = {.from = 3, .to = 7, .left_ns = 90500 * MS}
    };
    expect_text(s, "baton_handoff_avoided_seconds{model_name=\"a\\\"b\\\\c\",from=\"3\",to=\"7\","
                   "cell=\"c\"} 90.5\n");
    o = json_of(s);
    EXPECT_EQ(number(o, "avoided_links", "from"), 3);
    EXPECT_EQ(number(o, "avoided_links", "to"), 7);
    json_decref(o);
    free(s);
}

static void metrics_json_has_the_oldest_second_first(void)
{
    bt_rank_view rank = {.n_pages = 10};
    bt_snapshot *s    = snapshot(&rank);
    json_t      *o, *column;

    s->n_history  = BT_HISTORY_S;
    s->history_at = 7;
    for (uint32_t i = 0; i < BT_HISTORY_S; i++)
        s->history[(7 + i) % BT_HISTORY_S].generated = (float)i;
    s->metrics.n_status[GRPC_STATUS_OK]                 = 1;
    s->metrics.n_status[GRPC_STATUS_CANCELLED]          = 2;
    s->metrics.n_status[GRPC_STATUS_INVALID_ARGUMENT]   = 4;
    s->metrics.n_status[GRPC_STATUS_RESOURCE_EXHAUSTED] = 8;
    s->counts.n_experts                                 = 2;
    o                                                   = json_of(s);
    column = json_object_get(json_object_get(o, "history"), "generated");
    EXPECT_EQ(json_array_size(column), BT_HISTORY_S);
    for (uint32_t i = 0; i < BT_HISTORY_S; i++)
        EXPECT(json_real_value(json_array_get(column, i)) == i);
    EXPECT_EQ(number(o, "totals", "refused_or_failed"), 12);
    EXPECT_EQ(number(o, "totals", "cancelled"), 2);
    EXPECT_EQ(number(o, "ranks", "pages_free"), 10); /* before the first beat */
    EXPECT(json_real_value(json_object_get(json_object_get(o, "experts_prefill"), "imbalance")) ==
           1);
    json_decref(o);
    rank.beat.pages_total       = 10;
    rank.beat.pages_free        = 3;
    s->counts.expert_rows[0][1] = 30;
    s->counts.expert_rows[0][0] = 10;
    o                           = json_of(s);
    EXPECT_EQ(number(o, "ranks", "pages_free"), 3);
    EXPECT(near(
        json_real_value(json_object_get(json_object_get(o, "experts_prefill"), "imbalance")), 1.5));
    json_decref(o);
    free(s);
}

static const bt_test TESTS[] = {
    BT_TEST(metrics_of_a_request_say_what_it_took),
    BT_TEST(metrics_of_a_failed_request_are_its_status),
    BT_TEST(metrics_gap_is_between_tokens_of_one_choice),
    BT_TEST(metrics_buckets_take_their_limit),
    BT_TEST(metrics_percentiles_are_near),
    BT_TEST(metrics_tokens_that_come_together_share_their_gap),
    BT_TEST(metrics_text_counts_all_and_escapes_names),
    BT_TEST(metrics_json_of_a_lost_rank_has_what_it_counted),
    BT_TEST(metrics_name_the_cell_of_a_pair_that_hands_nothing_over),
    BT_TEST(metrics_json_has_the_oldest_second_first),
};

int main(int argc, char **argv) { return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL); }

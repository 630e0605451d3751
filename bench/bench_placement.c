/* bench/bench_placement.c - what a request costs the coordinator until its ranks are chosen, by how
 * many ranks there are.
 *
 *     bench_placement [prompt tokens [requests]]     default: 2000, 200
 *
 * The relay alone, without a network: half of the ranks prefill, half decode.  For each number of
 * ranks, microseconds of CPU time a request, from its submission (keys of its pages, the look for
 * them in what each rank probably caches, the choice of two ranks) to the ticket of its decode
 * rank: where each prompt is its own, and where all share their first half, which every rank that
 * has had one caches.  The least of several rounds: other programs can only add to it. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "bench/need.h"
#include "bench/stats.h"
#include "coordinator/relay.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "core/log.h"

enum { ROUNDS = 25, PAGE_TOKENS = 64, N_PAGES = 10000, VOCAB = 1000, MAX_RANKS = 1024 };

typedef struct {
    bt_relay *relay;
    uint32_t  n_tokens, n_requests;
    uint64_t  now_ns, number; /* of the request that waits for its ticket, */
    uint32_t  rank;           /* and the rank that is asked for it */
    uint32_t  random;
    struct {
        uint32_t rank, epoch;
        uint64_t request;
    } aborts[2]; /* [n_aborts]: of a request, not answered yet */
    uint32_t n_aborts;
} bench;

static uint64_t cpu_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * BT_NS_PER_S + (uint64_t)t.tv_nsec;
}

static void on_send(void *ctx, uint32_t rank, bt_down *m)
{
    bench *b = ctx;

    if (m->kind == BT_DOWN_RESERVE) {
        b->rank   = rank;
        b->number = m->u.reserve.request;
    }
    if (m->kind == BT_DOWN_ABORT) {
        need(b->n_aborts < 2, "a request was aborted on more than two ranks");
        b->aborts[b->n_aborts].rank      = rank;
        b->aborts[b->n_aborts].epoch     = m->u.abort.epoch;
        b->aborts[b->n_aborts++].request = m->u.abort.request;
    }
    bt_down_free(m);
}

static void on_stuck(void *ctx, uint32_t rank, const char *reason)
{
    (void)ctx;
    (void)rank;
    need(false, reason);
}

static bt_finish on_token(void *client, const bt_token *token)
{
    (void)client;
    return token->finish;
}

static void on_prompt(void *client, const bt_up_prompt_logprobs *m)
{
    (void)client;
    (void)m;
}

static void on_placed(void *client) { (void)client; }

static void on_end(void *client, const bt_relay_end *end)
{
    (void)client;
    (void)end;
}

/* With every rank ready, at b->now_ns. */
static void open_relay(bench *b, uint32_t n_ranks)
{
    static bt_relay_rank  ranks[MAX_RANKS];
    const bt_relay_events events = {
        .client = {on_token, on_prompt, on_placed, on_end},
        .send   = on_send,
        .stuck  = on_stuck,
        .ctx    = b
    };
    bt_relay_config config = {.n_ranks        = n_ranks,
                              .n_prefill      = n_ranks / 2,
                              .n_decode       = n_ranks / 2,
                              .ranks          = ranks,
                              .epoch          = 1,
                              .page_tokens    = PAGE_TOKENS,
                              .vocab_size     = VOCAB,
                              .first_number   = 1,
                              .verdict_ns     = BT_NS_PER_S,
                              .queue_tokens   = UINT64_MAX / 2,
                              .queue_ns       = 30 * BT_NS_PER_S,
                              .rank_quiet_ns  = 20 * BT_NS_PER_S,
                              .stall_ns       = 60 * BT_NS_PER_S,
                              .prefill_window = UINT32_MAX,
                              .prefix_seed    = 1};

    for (uint32_t i = 0; i < n_ranks; i++)
        ranks[i] = (bt_relay_rank){.n_pages = N_PAGES, .max_rows = 256};
    need(bt_relay_create(&config, &events, &b->relay) == BT_OK, bt_error_text());
    for (uint32_t i = 0; i < n_ranks; i++)
        bt_relay_ready(b->relay, i, b->now_ns);
}

/* bt_relay_submit() takes the prompt. */
static uint32_t *make_prompt(bench *b, bool shared)
{
    uint32_t *ids = bt_calloc(b->n_tokens, sizeof(*ids));

    need(ids != NULL, "no memory");
    for (uint32_t i = 0; i < b->n_tokens; i++) {
        b->random = b->random * 1664525 + 1013904223;
        ids[i]    = shared && i < b->n_tokens / 2 ? i % VOCAB : (b->random >> 16) % VOCAB;
    }
    return ids;
}

/* The pages are those of a pool that is gone through again and again. */
static void answer(bench *b, uint32_t request)
{
    uint32_t n = (b->n_tokens + PAGE_TOKENS - 1) / PAGE_TOKENS;
    bt_up    m = {.kind = BT_UP_TICKET};

    m.u.ticket.request = b->number;
    m.u.ticket.epoch   = 1;
    m.u.ticket.n_pages = n;
    m.u.ticket.pages   = bt_calloc(n, sizeof(*m.u.ticket.pages));
    need(m.u.ticket.pages != NULL, "no memory");
    for (uint32_t i = 0; i < n; i++)
        m.u.ticket.pages[i].id = (request * n + i) % N_PAGES;
    bt_relay_message(b->relay, b->rank, &m, b->now_ns);
    bt_up_free(&m);
}

/* Its ranks give its pages back. */
static void end_request(bench *b, const char *name)
{
    need(bt_relay_abort_name(b->relay, name, "the round is over"), "a request has ended");
    while (b->n_aborts > 0) {
        bt_up m = {.kind = BT_UP_RELEASED};

        b->n_aborts--;
        m.u.released.request = b->aborts[b->n_aborts].request;
        m.u.released.epoch   = b->aborts[b->n_aborts].epoch;
        bt_relay_message(b->relay, b->aborts[b->n_aborts].rank, &m, b->now_ns);
    }
}

/* Microseconds a request. */
static double round_us(bench *b, bool shared)
{
    uint64_t spent_ns = 0;
    char     name[32];

    for (uint32_t i = 0; i < b->n_requests; i++) {
        bt_relay_submission s = {.name      = name,
                                 .n_prompt  = b->n_tokens,
                                 .prompt    = make_prompt(b, shared),
                                 .sampling  = {.max_tokens = 16},
                                 .n_choices = 1,
                                 .arrival   = b->now_ns};
        uint64_t            number, from_ns;
        grpc_status_code    code;

        snprintf(name, sizeof(name), "r%u", i);
        b->number = 0;
        from_ns   = cpu_ns();
        need(bt_relay_submit(b->relay, &s, b, b->now_ns, &number, &code) == BT_OK, bt_error_text());
        need(b->number == number, "a request waits where there is room for all");
        answer(b, i);
        spent_ns += cpu_ns() - from_ns;
        b->now_ns += 1000;
    }
    for (uint32_t i = 0; i < b->n_requests; i++) {
        snprintf(name, sizeof(name), "r%u", i);
        end_request(b, name);
    }
    return (double)spent_ns * 1e-3 / b->n_requests;
}

static double least_us(bench *b, uint32_t n_ranks, bool shared)
{
    double us[ROUNDS];

    open_relay(b, n_ranks);
    for (int i = 0; i < ROUNDS; i++)
        us[i] = round_us(b, shared);
    bt_relay_destroy(b->relay);
    qsort(us, ROUNDS, sizeof(us[0]), bench_by_real);
    return us[0];
}

int main(int argc, char **argv)
{
    static const uint32_t RANKS[] = {2, 16, 128, MAX_RANKS};
    bench                 b = {.n_tokens   = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 2000,
                               .n_requests = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 200,
                               .now_ns     = BT_NS_PER_S,
                               .random     = 1};

    bt_log_init("bench", BT_LOG_ERROR);
    need(b.n_tokens >= 1 && b.n_tokens <= 100000, "expected prompts of 1 to 100000 tokens");
    need(b.n_requests >= 1 && b.n_requests <= 256, "expected 1 to 256 requests");
    need((uint64_t)b.n_requests * (b.n_tokens / PAGE_TOKENS + 2) <= N_PAGES,
         "expected requests that one rank can hold: 10000 pages of 64 tokens");
    printf("prompts of %u tokens, us a request\n\n| ranks | own prompts | half shared "
           "|\n|---|---|---|\n",
           b.n_tokens);
    for (size_t i = 0; i < sizeof(RANKS) / sizeof(RANKS[0]); i++) {
        double own = least_us(&b, RANKS[i], false), shared = least_us(&b, RANKS[i], true);

        printf("| %u | %.1f | %.1f |\n", RANKS[i], own, shared);
    }
    return 0;
}

#include "bench/coord_ranks.h"

#include <pthread.h>
#include <string.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "proto/control_client.h"

enum { PAGE_TOKENS = 64, BEAT_MS = 200, CONNECT_S = 10, FLUSH_S = 1 };

/* A stream on its rank. */
typedef struct {
    uint64_t request;
    uint32_t epoch, stream, n_prompt, n_out;
} row;

typedef struct {
    bt_control_client *client; /* owned */
    row               *rows;   /* owned [n_streams] */
    uint32_t           n_rows;
    bool               leaves;
} rank_state;

struct bench_ranks {
    bench_shared *shared;
    rank_state   *ranks; /* owned [n_ranks] */
    uint32_t      n_placed;
    uint64_t      n_sent, next_ns, beat_ns, progress;
    pthread_t     thread;
    bool          has_thread;
    _Atomic bool  stopping;
};

static void send_up(bench_ranks *b, rank_state *k, bt_up *m)
{
    char why[512];

    if (bt_control_client_send(k->client, m) == BT_OK || k->leaves) return;
    bt_control_client_loss(k->client, why, sizeof(why));
    if (!atomic_exchange(&b->shared->failed, true))
        BT_WARN("rank %d: %s", (int)(k - b->ranks), why);
}

static void say_hello(bench_ranks *b, uint32_t rank)
{
    const bench_load *l = &b->shared->load;
    uint32_t          n_pages =
        l->n_streams * ((BENCH_PROMPT + l->n_tokens) / PAGE_TOKENS + 2) / l->n_ranks * 2 + 64;
    bt_up hello = {.kind = BT_UP_HELLO}, ready = {.kind = BT_UP_READY};

    hello.u.hello                       = (bt_up_hello){.protocol    = BT_CONTROL_PROTOCOL,
                                                        .rank        = rank,
                                                        .n_ranks     = l->n_ranks,
                                                        .page_tokens = PAGE_TOKENS,
                                                        .n_pages     = n_pages,
                                                        .max_rows    = 65536,
                                                        .vocab_size  = BENCH_VOCAB,
                                                        .max_context = 1 << 20,
                                                        .bos_token   = 0,
                                                        .pad_token   = -1,
                                                        .n_eos       = 1};
    hello.u.hello.host                  = bt_strdup("here");
    hello.u.hello.arithmetic            = bt_strdup("none");
    hello.u.hello.model_type            = bt_strdup("deepseek_v3");
    hello.u.hello.architecture          = bt_strdup("DeepseekV3ForCausalLM");
    hello.u.hello.default_sampling_json = bt_strdup("");
    hello.u.hello.eos_tokens            = bt_calloc(1, sizeof(uint32_t));
    if (hello.u.hello.eos_tokens != NULL) hello.u.hello.eos_tokens[0] = BENCH_VOCAB - 1;
    send_up(b, &b->ranks[rank], &hello);
    send_up(b, &b->ranks[rank], &ready);
}

/* ---- what the coordinator says */

static void on_reserve(bench_ranks *b, rank_state *k, const bt_down_reserve *q)
{
    bt_up m = {.kind = BT_UP_TICKET};

    m.u.ticket.request = q->request;
    m.u.ticket.epoch   = q->epoch;
    m.u.ticket.n_pages = (q->n_prompt + PAGE_TOKENS) / PAGE_TOKENS;
    m.u.ticket.pages   = bt_calloc(m.u.ticket.n_pages, sizeof(bt_page_ref));
    send_up(b, k, &m);
}

static void released(bench_ranks *b, rank_state *k, uint64_t request, uint32_t epoch)
{
    bt_up m = {.kind = BT_UP_RELEASED};

    m.u.released.request = request;
    m.u.released.epoch   = epoch;
    send_up(b, k, &m);
}

static void on_abort(bench_ranks *b, rank_state *k, uint64_t request, uint32_t epoch)
{
    for (uint32_t i = 0; i < k->n_rows; i++)
        if (k->rows[i].request == request) k->rows[i--] = k->rows[--k->n_rows];
    released(b, k, request, epoch);
}

static void on_prefill(bench_ranks *b, rank_state *k, const bt_down_prefill *q)
{
    BT_ASSERT(k->n_rows < b->shared->load.n_streams && q->prompt[0] < b->shared->load.n_streams);
    k->rows[k->n_rows++] = (row){q->request, q->epoch, q->prompt[0], q->n_prompt, 0};
    b->n_placed++;
}

static void handle(bench_ranks *b, rank_state *k, bt_down *m)
{
    switch (m->kind) {
    case BT_DOWN_RESERVE: on_reserve(b, k, &m->u.reserve); break;
    case BT_DOWN_PREFILL: on_prefill(b, k, &m->u.prefill); break;
    case BT_DOWN_ABORT: on_abort(b, k, m->u.abort.request, m->u.abort.epoch); break;
    case BT_DOWN_SHUTDOWN: k->leaves = true; break;
    default: break; /* a wake number, a welcome */
    }
    bt_down_free(m);
}

/* ---- steps */

static void step_rank(bench_ranks *b, rank_state *k)
{
    const bench_load *l = &b->shared->load;
    bt_up             m = {.kind = BT_UP_TOKENS};

    if (k->n_rows == 0) return;
    m.u.tokens.n      = k->n_rows;
    m.u.tokens.tokens = bt_calloc(k->n_rows, sizeof(bt_token));
    BT_ASSERT(m.u.tokens.tokens != NULL);
    for (uint32_t i = 0; i < k->n_rows; i++) {
        row *r = &k->rows[i];

        m.u.tokens.tokens[i] =
            (bt_token){.request  = r->request,
                       .position = r->n_prompt + r->n_out,
                       .epoch    = r->epoch,
                       .id       = bench_token(r->stream, r->n_out),
                       .logprob  = -0.5f,
                       .finish   = r->n_out + 1 == l->n_tokens ? BT_FINISH_LENGTH : BT_FINISH_NONE};
        atomic_store_explicit(&b->shared->left_ns[(size_t)r->stream * l->n_tokens + r->n_out],
                              bt_now_ns(), memory_order_relaxed);
        r->n_out++;
        b->n_sent++;
    }
    send_up(b, k, &m);
    for (uint32_t i = k->n_rows; i-- > 0;) /* those that have ended */
        if (k->rows[i].n_out == l->n_tokens) {
            released(b, k, k->rows[i].request, k->rows[i].epoch);
            k->rows[i] = k->rows[--k->n_rows];
        }
}

/* Once all are placed, so that each step has all streams. */
static bool may_step(bench_ranks *b, uint64_t now)
{
    const bench_load *l = &b->shared->load;

    if (b->n_placed < l->n_streams) return false;
    if (b->next_ns == 0) b->next_ns = now + 100 * BT_NS_PER_MS;
    if (now < b->next_ns) return false;
    return l->period_ns != 0 || b->n_sent - atomic_load(&b->shared->n_received) < l->window;
}

static void step(bench_ranks *b, uint64_t now)
{
    uint64_t period_ns = b->shared->load.period_ns;

    for (uint32_t i = 0; i < b->shared->load.n_ranks; i++)
        step_rank(b, &b->ranks[i]);
    b->next_ns += period_ns;
    if (b->next_ns < now + period_ns / 2) /* the machine stood still: steps do not overlap for it */
        b->next_ns = now + period_ns / 2;
}

static void beat(bench_ranks *b, uint64_t now)
{
    if (now < b->beat_ns) return;
    b->beat_ns = now + BEAT_MS * BT_NS_PER_MS;
    b->progress++;
    for (uint32_t i = 0; i < b->shared->load.n_ranks; i++) {
        bt_up m = {.kind = BT_UP_BEAT};

        m.u.beat.progress = b->progress;
        send_up(b, &b->ranks[i], &m);
    }
}

static bool all_leave(bench_ranks *b)
{
    for (uint32_t i = 0; i < b->shared->load.n_ranks; i++)
        if (!b->ranks[i].leaves && !bt_control_client_lost(b->ranks[i].client)) return false;
    return true;
}

/* Until the next look for messages, or the next step; with a period nobody waits for an answer, and
 * the cores that are measured are left alone. */
static void rest(const bench_ranks *b, uint64_t now)
{
    uint64_t ns = b->shared->load.period_ns != 0 ? BT_NS_PER_MS : 50 * BT_NS_PER_US;

    bt_sleep_ns(b->next_ns > now && b->next_ns - now < ns ? b->next_ns - now : ns);
}

static void close_clients(bench_ranks *b)
{
    for (uint32_t i = 0; i < b->shared->load.n_ranks; i++)
        if (b->ranks[i].client != NULL)
            bt_control_client_stop(b->ranks[i].client, FLUSH_S * BT_NS_PER_S);
}

static void *run(void *arg)
{
    bench_ranks *b = arg;
    bt_down      m;

    while (!atomic_load(&b->stopping) && !all_leave(b)) {
        uint64_t now = bt_now_ns();

        for (uint32_t i = 0; i < b->shared->load.n_ranks; i++)
            while (bt_control_client_poll(b->ranks[i].client, &m))
                handle(b, &b->ranks[i], &m);
        beat(b, now);
        if (may_step(b, now))
            step(b, now);
        else
            rest(b, now);
    }
    close_clients(b); /* the coordinator ends when all have gone */
    return NULL;
}

bt_status bench_ranks_start(const char *control, bench_shared *shared, bench_ranks **ranks_out)
{
    bt_status    st = BT_OK;
    bench_ranks *b  = bt_calloc(1, sizeof(*b));

    BT_REQUIRE(b != NULL, BT_ERR_NO_MEMORY, "ranks");
    b->shared = shared;
    b->ranks  = bt_calloc(shared->load.n_ranks, sizeof(*b->ranks));
    BT_REQUIRE(b->ranks != NULL, BT_ERR_NO_MEMORY, "%u ranks", shared->load.n_ranks);
    for (uint32_t i = 0; i < shared->load.n_ranks; i++) {
        b->ranks[i].rows = bt_calloc(shared->load.n_streams, sizeof(row));
        BT_REQUIRE(b->ranks[i].rows != NULL, BT_ERR_NO_MEMORY, "%u rows", shared->load.n_streams);
        BT_TRY(bt_control_client_start(control, CONNECT_S * BT_NS_PER_S, 0, &b->ranks[i].client));
        say_hello(b, i);
    }
    BT_REQUIRE(pthread_create(&b->thread, NULL, run, b) == 0, BT_ERR_NO_MEMORY, "a thread");
    b->has_thread = true;
    *ranks_out    = b;
    b             = NULL; /* handed over */
out:
    bench_ranks_stop(b);
    return st;
}

void bench_ranks_stop(bench_ranks *ranks)
{
    if (ranks == NULL) return;
    atomic_store(&ranks->stopping, true);
    if (ranks->has_thread)
        pthread_join(ranks->thread, NULL);
    else if (ranks->ranks != NULL)
        close_clients(ranks);
    for (uint32_t i = 0; ranks->ranks != NULL && i < ranks->shared->load.n_ranks; i++)
        bt_free(ranks->ranks[i].rows);
    bt_free(ranks->ranks);
    bt_free(ranks);
}

/* Real ranks under mpirun, a small coordinator in this process, the demo model.
 *
 *     test_serve WORKER ROUTE...      a route: "2+2/64" (prefill+decode/chunk), "both1/512"
 *
 * On each route all requests run at once and the cell is then told to leave.  Checked: greedy
 * tokens against the goldens (up to the first near tie), tokens and logprobs of every route equal
 * bit by bit (law B), bytes handed over, pages back, exit code 0. */
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "attention/kv_pool.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "model/safetensors.h"
#include "proto/control_server.h"
#include "proto/hello.h"
#include "tests/support/test.h"

enum {
    MAX_RANKS    = 8,
    MAX_CASES    = 4,
    COPIES       = 3,
    MAX_REQUESTS = MAX_CASES * COPIES,
    MAX_TOKENS   = 64
};
#ifndef TIMEOUT_S /* a build with sanitizers has more */
#define TIMEOUT_S 200
#endif
enum { LAYERS = 4, KV_DIM = 576, VOCAB = 2048, LONG_PROMPT = 1000 };

typedef struct {
    const uint32_t *prompt; /* in the fixtures */
    uint32_t        n_prompt, max_tokens, n_golden;
    float           temperature;
    const float    *logits; /* golden, from row first_position */
    uint32_t        first_position;
    float           near_tie; /* four times the rms error of a bf16 run with free routing */
    char            name[32];
} ask;

typedef struct {
    uint32_t n, ids[MAX_TOKENS], from[MAX_TOKENS];
    float    logprobs[MAX_TOKENS];
    uint32_t n_repeats;
    bool     prefilled, complete, released[MAX_RANKS];
    uint32_t prefill_rank, decode_rank;
} answer;

typedef struct {
    bt_control_peer *peer;
    bool             ready, fresh; /* fresh: it has beaten since its last request ended */
    bt_up_beat       beat;
    uint32_t         n_pages;
} rank;

static ask      g_asks[MAX_REQUESTS];
static answer   g_answers[MAX_REQUESTS], g_first[MAX_REQUESTS];
static rank     g_ranks[MAX_RANKS];
static uint32_t g_n_asks, g_n_ranks, g_n_prefill, g_wake[2];
static bool     g_started, g_has_first;
static pid_t    g_mpirun; /* 0: it has ended, with */
static int      g_ending;
static char     g_failure[256];

static void fail(const char *what, uint32_t where)
{
    if (g_failure[0] == '\0') snprintf(g_failure, sizeof(g_failure), "%s (%u)", what, where);
}

/* ---- the coordinator's part */

static uint32_t group_of(uint32_t r) { return g_n_prefill != 0 && r >= g_n_prefill; }

static void wake(uint32_t group)
{
    bt_down m = {.kind = BT_DOWN_WAKE};

    m.u.wake.wake = ++g_wake[group];
    for (uint32_t r = 0; r < g_n_ranks; r++) {
        bt_down copy = m;

        if (group_of(r) == group && g_ranks[r].peer != NULL)
            bt_control_send(g_ranks[r].peer, &copy);
    }
}

static bt_sampling sampling(uint32_t i)
{
    return (bt_sampling){.temperature = g_asks[i].temperature,
                         .seed        = 100 + i,
                         .max_tokens  = g_asks[i].max_tokens,
                         .ignore_eos  = true,
                         .logprobs    = true};
}

static void place(uint32_t i)
{
    bt_down  m        = {.kind = BT_DOWN_RESERVE};
    answer  *a        = &g_answers[i];
    uint32_t n_decode = g_n_ranks - g_n_prefill;

    a->prefill_rank          = g_n_prefill == 0 ? i % g_n_ranks : i % g_n_prefill;
    a->decode_rank           = g_n_prefill == 0 ? a->prefill_rank : g_n_prefill + i % n_decode;
    m.u.reserve.request      = i + 1;
    m.u.reserve.epoch        = 1;
    m.u.reserve.n_prompt     = g_asks[i].n_prompt;
    m.u.reserve.prefill_rank = a->prefill_rank;
    m.u.reserve.sampling     = sampling(i);
    bt_control_send(g_ranks[a->decode_rank].peer, &m);
    wake(group_of(a->decode_rank));
}

static void on_ticket(uint32_t i, bt_up *u)
{
    bt_down m = {.kind = BT_DOWN_PREFILL};
    answer *a = &g_answers[i];

    if (u->u.ticket.refused) {
        fail("a ticket was refused", i);
        return;
    }
    m.u.prefill.request     = i + 1;
    m.u.prefill.epoch       = 1;
    m.u.prefill.n_prompt    = g_asks[i].n_prompt;
    m.u.prefill.prompt      = bt_calloc(g_asks[i].n_prompt, sizeof(uint32_t));
    m.u.prefill.decode_rank = a->decode_rank;
    m.u.prefill.sampling    = sampling(i);
    m.u.prefill.n_pages     = u->u.ticket.n_pages;
    m.u.prefill.pages       = u->u.ticket.pages;
    u->u.ticket.pages       = NULL;
    memcpy(m.u.prefill.prompt, g_asks[i].prompt, g_asks[i].n_prompt * sizeof(uint32_t));
    bt_control_send(g_ranks[a->prefill_rank].peer, &m);
    if (i % 2 == 0) wake(group_of(a->prefill_rank)); /* else the rank asks for it */
    a->prefilled = true;
}

static void on_token(const bt_token *t, uint32_t from)
{
    answer  *a = &g_answers[t->request - 1];
    uint32_t k = t->position - g_asks[t->request - 1].n_prompt;

    if (k < a->n) {
        if (a->ids[k] != t->id || memcmp(&a->logprobs[k], &t->logprob, sizeof(float)) != 0)
            fail("a repeated token differs", k);
        a->n_repeats++;
        return;
    }
    if (k != a->n || k >= MAX_TOKENS || a->complete) {
        fail("a token out of order", k);
        return;
    }
    a->ids[k]      = t->id;
    a->logprobs[k] = t->logprob;
    a->from[k]     = from;
    a->n++;
    a->complete = t->finish == BT_FINISH_LENGTH;
}

static bool all_ended(void)
{
    for (uint32_t i = 0; i < g_n_asks; i++) {
        const answer *a = &g_answers[i];

        if (!a->complete || !a->released[a->prefill_rank] || !a->released[a->decode_rank])
            return false;
    }
    return true;
}

static void on_message(void *ctx, bt_control_peer *peer, bt_up *m)
{
    rank    *r  = bt_control_peer_data(peer);
    uint32_t me = r == NULL ? 0 : (uint32_t)(r - g_ranks), n_ready = 0;
    bt_down  welcome = {.kind = BT_DOWN_WELCOME, .u.welcome = {.epoch = 1}};

    (void)ctx;
    switch (m->kind) {
    case BT_UP_HELLO:
        me                  = m->u.hello.rank;
        g_ranks[me].peer    = peer;
        g_ranks[me].n_pages = m->u.hello.n_pages;
        if (strcmp(m->u.hello.version, bt_hello_build()) != 0) fail("a rank of another build", me);
        bt_control_peer_set_data(peer, &g_ranks[me]);
        bt_control_send(peer, &welcome);
        break;
    case BT_UP_READY: r->ready = true; break;
    case BT_UP_BEAT:
        r->beat  = m->u.beat;
        r->fresh = true;
        break;
    case BT_UP_TICKET: on_ticket((uint32_t)m->u.ticket.request - 1, m); break;
    case BT_UP_TOKENS:
        for (uint32_t i = 0; i < m->u.tokens.n; i++)
            on_token(&m->u.tokens.tokens[i], me);
        break;
    case BT_UP_RELEASED: g_answers[m->u.released.request - 1].released[me] = true; break;
    case BT_UP_FAILED: fail(m->u.failed.message, (uint32_t)m->u.failed.request); break;
    case BT_UP_WAKE_REQUEST:
        if (m->u.wake_request.wake == g_wake[group_of(me)]) wake(group_of(me));
        break;
    default: break;
    }
    for (uint32_t i = 0; i < g_n_ranks; i++)
        n_ready += g_ranks[i].ready;
    if (!g_started && n_ready == g_n_ranks) {
        g_started = true;
        for (uint32_t i = 0; i < g_n_asks; i++)
            place(i);
    }
    /* A prefill rank lets go by itself; with a first token that ends it the decode rank is told. */
    for (uint32_t i = 0; i < g_n_asks; i++) {
        answer *a     = &g_answers[i];
        bt_down abort = {
            .kind = BT_DOWN_ABORT, .u.abort = {.request = i + 1, .epoch = 1}
        };

        if (!a->complete || a->n != 1 || !a->prefilled) continue;
        a->prefilled = false;
        bt_control_send(g_ranks[a->decode_rank].peer, &abort);
    }
}

static void on_lost(void *ctx, bt_control_peer *peer)
{
    rank *r = bt_control_peer_data(peer);

    (void)ctx;
    if (r != NULL) r->peer = NULL;
}

/* ---- one route */

static pid_t spawn(const char *worker, uint32_t n_prefill, uint32_t n_decode, uint32_t n_both,
                   const char *chunk, uint16_t port)
{
    char        n[16], p[16], d[16], address[32], model[512];
    pid_t       pid     = 0;
    const char *split[] = {"mpirun", "-n", n, worker, "--prefill", p, "--decode", d, NULL};
    const char *both[]  = {"mpirun", "-n", n, worker, "--both", p, NULL};
    const char *more[]  = {"--model", model,        "--coordinator", address, "--chunk",
                           chunk,     "--kv-bytes", "64M",           NULL};
    char       *argv[32];
    int         k = 0;

    snprintf(n, sizeof(n), "%u", n_prefill + n_decode + n_both);
    snprintf(p, sizeof(p), "%u", n_both != 0 ? n_both : n_prefill);
    snprintf(d, sizeof(d), "%u", n_decode);
    snprintf(address, sizeof(address), "127.0.0.1:%u", port);
    snprintf(model, sizeof(model), "%s/models/demo", BT_SOURCE_DIR);
    for (const char **a = n_both != 0 ? both : split; *a != NULL; a++)
        argv[k++] = (char *)(uintptr_t)*a;
    for (const char **a = more; *a != NULL; a++)
        argv[k++] = (char *)(uintptr_t)*a;
    argv[k] = NULL;
    if (posix_spawnp(&pid, "mpirun", NULL, NULL, argv, environ) != 0) return 0;
    return pid;
}

static bool mpirun_ended(void)
{
    if (g_mpirun != 0 && waitpid(g_mpirun, &g_ending, WNOHANG) == g_mpirun) g_mpirun = 0;
    return g_mpirun == 0;
}

static void drive(bt_rpc_loop *loop, bool (*until)(void), const char *what)
{
    uint64_t end = bt_now_ns() + TIMEOUT_S * BT_NS_PER_S;

    while (!until() && g_failure[0] == '\0' && !mpirun_ended() && bt_now_ns() < end)
        bt_rpc_loop_run_once(loop, bt_now_ns() + 50 * BT_NS_PER_MS);
    if (!until()) fail(what, TIMEOUT_S);
}

static bool all_gone(void)
{
    for (uint32_t r = 0; r < g_n_ranks; r++)
        if (g_ranks[r].peer != NULL) return false;
    return true;
}

static bool pages_back(void)
{
    for (uint32_t r = 0; r < g_n_ranks; r++)
        if (!g_ranks[r].fresh || g_ranks[r].beat.pages_free != g_ranks[r].n_pages) return false;
    return true;
}

static void stop_ranks(bt_rpc_loop *loop)
{
    uint64_t end = bt_now_ns() + TIMEOUT_S * BT_NS_PER_S;

    for (uint32_t r = 0; r < g_n_ranks; r++) {
        bt_down m = {.kind = BT_DOWN_SHUTDOWN};

        m.u.shutdown.reason = bt_strdup("the test is over");
        if (g_ranks[r].peer != NULL)
            bt_control_send(g_ranks[r].peer, &m);
        else
            bt_down_free(&m);
    }
    while (!mpirun_ended() && bt_now_ns() < end)
        bt_rpc_loop_run_once(loop, bt_now_ns() + 20 * BT_NS_PER_MS);
    if (g_mpirun != 0) kill(g_mpirun, SIGKILL);
    while (!all_gone() && bt_now_ns() < end) /* their streams' ends may lie unread */
        bt_rpc_loop_run_once(loop, bt_now_ns() + 20 * BT_NS_PER_MS);
    EXPECT(g_mpirun == 0 && WIFEXITED(g_ending));
    EXPECT_EQ(WEXITSTATUS(g_ending), 0);
    EXPECT(all_gone());
}

/* Rows that each request's prompt has, layer by layer, once. */
static void check_bytes_handed_over(void)
{
    uint64_t want = 0, got = 0;

    for (uint32_t i = 0; i < g_n_asks; i++)
        if (g_asks[i].max_tokens > 1)
            want += (uint64_t)g_asks[i].n_prompt * LAYERS * KV_DIM * sizeof(bt_bf16);
    for (uint32_t r = 0; r < g_n_ranks; r++)
        got += g_ranks[r].beat.handoff_bytes;
    /* A request of one token may have sent some of its rows before that token ended it. */
    EXPECT(g_n_prefill == 0 ? got == 0 : got >= want);
}

static void check_golden(uint32_t i)
{
    const ask *q = &g_asks[i];

    for (uint32_t k = 0; k < q->max_tokens && k < q->n_golden; k++) {
        uint32_t     golden = q->prompt[q->n_prompt + k], got = g_answers[i].ids[k];
        const float *row = q->logits + (size_t)(q->n_prompt + k - 1 - q->first_position) * VOCAB;

        if (got == golden) continue;
        fprintf(stderr, "%s: token %u is %u, golden %u, its logit is %.4f higher\n", q->name, k,
                got, golden, (double)(row[golden] - row[got]));
        EXPECT(row[golden] - row[got] < q->near_tie);
        return; /* a near tie: what follows is another text */
    }
}

static void check_answers(const char *route)
{
    for (uint32_t i = 0; i < g_n_asks; i++) {
        const answer *a = &g_answers[i], *f = &g_first[i];

        EXPECT_EQ(a->n, g_asks[i].max_tokens);
        EXPECT_EQ(a->n_repeats, g_n_prefill != 0 && a->n > 1);
        /* Two streams carry the first token, and either may be faster. */
        EXPECT(a->from[0] == a->prefill_rank || a->from[0] == a->decode_rank);
        if (a->n > 1) EXPECT_EQ(a->from[1], a->decode_rank);
        if (g_asks[i].temperature == 0) check_golden(i);
        if (!g_has_first) continue;
        EXPECT(memcmp(a->ids, f->ids, a->n * sizeof(*a->ids)) == 0);
        EXPECT(memcmp(a->logprobs, f->logprobs, a->n * sizeof(*a->logprobs)) == 0);
    }
    if (!g_has_first) memcpy(g_first, g_answers, sizeof(g_first));
    g_has_first = true;
    printf("%s done\n", route);
}

static void run_route(const char *worker, const char *route)
{
    uint32_t           n_prefill = 0, n_decode = 0, n_both = 0;
    char               chunk[16];
    bt_rpc_loop       *loop   = NULL;
    bt_control_server *server = NULL;
    bt_control_events  events = {.message = on_message, .lost = on_lost};
    uint16_t           port   = 0;

    if (sscanf(route, "both%u/%15s", &n_both, chunk) != 2)
        EXPECT(sscanf(route, "%u+%u/%15s", &n_prefill, &n_decode, chunk) == 3);
    memset(g_answers, 0, sizeof(g_answers));
    memset(g_ranks, 0, sizeof(g_ranks));
    memset(g_wake, 0, sizeof(g_wake));
    g_started    = false;
    g_failure[0] = '\0';
    g_n_prefill  = n_prefill;
    g_n_ranks    = n_prefill + n_decode + n_both;
    EXPECT_EQ(bt_rpc_loop_create(&loop), BT_OK);
    EXPECT_EQ(bt_control_server_create(loop, "127.0.0.1:0", &events, &server, &port), BT_OK);
    g_mpirun = spawn(worker, n_prefill, n_decode, n_both, chunk, port);
    EXPECT(g_mpirun > 0);
    drive(loop, all_ended, "requests do not end");
    for (uint32_t r = 0; r < g_n_ranks; r++)
        g_ranks[r].fresh = false; /* what a rank says from here on is about all of it */
    if (g_failure[0] == '\0') drive(loop, pages_back, "pages do not come back");
    stop_ranks(loop);
    if (g_failure[0] != '\0') fprintf(stderr, "%s: %s\n", route, g_failure);
    EXPECT(g_failure[0] == '\0');
    if (g_failure[0] == '\0') {
        check_bytes_handed_over();
        check_answers(route);
    }
    bt_control_server_stop(server);
    while (!bt_rpc_loop_idle(loop))
        bt_rpc_loop_run_once(loop, bt_now_ns() + 100 * BT_NS_PER_MS);
    bt_control_server_destroy(server);
    bt_rpc_loop_destroy(loop);
}

/* ---- what to ask */

/* Copies of the case with other lengths and temperatures, all at once beside it. */
static void add_asks(const bt_safetensors *st, const char *name, const json_t *info,
                     uint32_t n_cases)
{
    static const uint32_t LENGTHS[COPIES] = {0, 1, 20};
    char                  key[64];
    const bt_tensor      *ids, *logits;
    uint32_t              n_prompt = (uint32_t)json_integer_value(json_object_get(info, "prompt"));
    static uint32_t       tokens[MAX_CASES][4096];

    snprintf(key, sizeof(key), "%s.ids", name);
    ids = bt_safetensors_find(st, key);
    snprintf(key, sizeof(key), "%s.logits", name);
    logits = bt_safetensors_find(st, key);
    memcpy(tokens[n_cases], ids->data, ids->bytes);
    for (uint32_t c = 0; c < (n_prompt > LONG_PROMPT ? 1 : COPIES); c++) {
        ask *q = &g_asks[g_n_asks++];

        q->prompt         = tokens[n_cases];
        q->n_prompt       = n_prompt;
        q->n_golden       = (uint32_t)ids->shape[0] - n_prompt;
        q->max_tokens     = LENGTHS[c] != 0 ? LENGTHS[c] : q->n_golden;
        q->temperature    = c == 2 ? 0.8f : 0;
        q->logits         = logits->data;
        q->first_position = (uint32_t)json_integer_value(json_object_get(info, "first_position"));
        q->near_tie       = 4 * (float)json_real_value(json_object_get(info, "bf16_rms_error"));
        snprintf(q->name, sizeof(q->name), "%s", name);
        if (q->max_tokens > MAX_TOKENS) q->max_tokens = MAX_TOKENS;
    }
}

int main(int argc, char **argv)
{
    uint32_t        n_cases = 0;
    bt_safetensors *st      = NULL;
    json_t     *cases = json_load_file(BT_SOURCE_DIR "/tests/fixtures/demo/cases.json", 0, NULL);
    const char *name;
    json_t     *info;

    if (argc < 3 || cases == NULL ||
        bt_safetensors_open(BT_SOURCE_DIR "/tests/fixtures/demo/cases.safetensors", &st) != BT_OK)
        return EXIT_FAILURE;
    json_object_foreach(cases, name, info) add_asks(st, name, info, n_cases++);
    for (int i = 2; i < argc; i++)
        run_route(argv[1], argv[i]);
    bt_safetensors_close(st);
    json_decref(cases);
    EXPECT(g_has_first);
    return g_failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

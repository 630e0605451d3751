/* A rank that computes nothing: for tests of what starts, drives and ends ranks.
 *
 * It speaks the control protocol and takes the place of baton-worker beside copies of the other
 * programs.  Values are formulas, so that a test knows them:
 *     logits[t][v]          = ids[t] * 100 + v
 *     experts[layer][t][j]  = (t + 7 * layer + 3 * (k - 1 - j)) mod 16, not ascending
 *     token i of an answer  = 300 + i        (with --both)
 *
 * FAKE="FAULT" or "FAULT:RANK" (rank 0 otherwise) makes one rank misbehave, see FAULTS below. */
#include <math.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "proto/control_client.h"

enum { VOCAB = 2048, N_MOE = 3, TOP_K = 4, N_EXPERTS = 16, PAGE_TOKENS = 64, N_PAGES = 256 };

/* What the rank was told of one request, by number. */
typedef struct {
    uint32_t  n_prompt, n_eval, epoch;
    int32_t  *forced; /* [N_MOE, n_prompt + n_eval, TOP_K] or NULL */
    uint32_t  n_forced;
    uint32_t *eval_tokens;
} order;

static bt_control_client *g_client;
static uint32_t           g_rank, g_n_prefill, g_n_decode, g_n_both;
static char               g_fault[32];
static bool               g_faulty; /* this rank has the fault */
static order              g_orders[64];
static bool               g_refused;

static bool fault(const char *name) { return g_faulty && strcmp(g_fault, name) == 0; }

static void send_up(bt_up *m)
{
    if (bt_control_client_send(g_client, m) != BT_OK) _exit(5);
}

static const char *argument(int argc, char **argv, const char *flag)
{
    for (int i = 1; i + 1 < argc; i++) {
        if (strcmp(argv[i], flag) == 0) return argv[i + 1];
    }
    return NULL;
}

static uint32_t number(int argc, char **argv, const char *flag)
{
    const char *text = argument(argc, argv, flag);

    return text == NULL ? 0 : (uint32_t)strtoul(text, NULL, 10);
}

static void say_hello(void)
{
    bt_up m = {.kind = BT_UP_HELLO};

    m.u.hello                       = (bt_up_hello){.protocol          = BT_CONTROL_PROTOCOL,
                                                    .rank              = g_rank,
                                                    .n_ranks           = g_n_both ? g_n_both : g_n_prefill + g_n_decode,
                                                    .n_prefill         = g_n_prefill,
                                                    .n_decode          = g_n_decode,
                                                    .pid               = (uint32_t)getpid(),
                                                    .model_fingerprint = fault("other_model") ? 2 : 1,
                                                    .n_pages           = N_PAGES,
                                                    .page_tokens       = PAGE_TOKENS,
                                                    .max_rows          = 512,
                                                    .vocab_size        = VOCAB,
                                                    .max_context       = 8192,
                                                    .bos_token         = 0,
                                                    .pad_token         = -1,
                                                    .n_eos             = 1};
    m.u.hello.host                  = bt_strdup("here");
    m.u.hello.arithmetic            = bt_strdup(fault("other_arithmetic") ? "another" : "none");
    m.u.hello.model_type            = bt_strdup("deepseek_v3");
    m.u.hello.architecture          = bt_strdup("DeepseekV3ForCausalLM");
    m.u.hello.default_sampling_json = bt_strdup("");
    m.u.hello.eos_tokens            = bt_calloc(1, sizeof(uint32_t));
    m.u.hello.eos_tokens[0]         = 1;
    send_up(&m);
}

static void say_progress(uint64_t done)
{
    bt_up m = {.kind = BT_UP_PROGRESS};

    m.u.progress.done_bytes  = done;
    m.u.progress.total_bytes = 1000;
    send_up(&m);
}

static void say_simple(bt_up_kind kind)
{
    bt_up m = {.kind = kind};

    send_up(&m);
}

static void say_released(uint64_t request)
{
    order *o = &g_orders[request % 64];
    bt_up  m = {.kind = BT_UP_RELEASED};

    m.u.released.request = request;
    m.u.released.epoch   = o->epoch;
    bt_free(o->forced);
    bt_free(o->eval_tokens);
    memset(o, 0, sizeof(*o));
    send_up(&m);
}

/* Rows [position, position + n) of the ids that this rank knows. */
static void send_rows(uint64_t request, const uint32_t *ids, uint32_t position, uint32_t n)
{
    order   *o     = &g_orders[request % 64];
    bt_up    m     = {.kind = BT_UP_EVAL_ROWS};
    uint32_t vocab = fault("short_rows") ? VOCAB / 2 : VOCAB;
    float   *logits;
    int32_t *experts;

    logits  = bt_calloc((size_t)n * VOCAB, sizeof(*logits));
    experts = bt_calloc((size_t)N_MOE * n * TOP_K, sizeof(*experts));
    for (uint32_t t = 0; t < n; t++) {
        for (uint32_t v = 0; v < VOCAB; v++) {
            logits[t * VOCAB + v] = (float)ids[t] * 100.0f + (float)v;
        }
        for (uint32_t layer = 0; layer < N_MOE; layer++) {
            for (uint32_t j = 0; j < TOP_K; j++) {
                uint32_t at = position + t;
                int32_t  e  = (int32_t)((at + 7 * layer + 3 * (TOP_K - 1 - j)) % N_EXPERTS);

                if (o->forced != NULL) e = o->forced[(layer * o->n_forced + at) * TOP_K + j];
                experts[(layer * n + t) * TOP_K + j] = e;
            }
        }
    }
    if (fault("nan")) logits[5] = NAN;
    m.u.eval_rows.request        = request;
    m.u.eval_rows.epoch          = o->epoch;
    m.u.eval_rows.position       = position;
    m.u.eval_rows.n_rows         = n;
    m.u.eval_rows.logits         = logits;
    m.u.eval_rows.n_logit_bytes  = (size_t)n * vocab * sizeof(*logits);
    m.u.eval_rows.experts        = experts;
    m.u.eval_rows.n_expert_bytes = (size_t)N_MOE * n * TOP_K * sizeof(*experts);
    send_up(&m);
}

static void take_forced(order *o, const void *bytes, size_t n)
{
    if (n == 0 || o->forced != NULL) return;
    o->forced = bt_calloc(1, n);
    memcpy(o->forced, bytes, n);
    o->n_forced = (uint32_t)(n / (N_MOE * TOP_K * sizeof(int32_t)));
}

static void say_leaving(const char *reason)
{
    bt_up m = {.kind = BT_UP_LEAVING};

    m.u.leaving.reason = bt_strdup(reason);
    send_up(&m);
    bt_control_client_stop(g_client, BT_NS_PER_S);
    _exit(4);
}

static void on_reserve(bt_down_reserve *q)
{
    order   *o = &g_orders[q->request % 64];
    bt_up    m = {.kind = BT_UP_TICKET};
    uint32_t n;

    if (fault("leave")) say_leaving("the fake rank had enough");
    m.u.ticket.request = q->request;
    m.u.ticket.epoch   = q->epoch;
    if (fault("refuse_always") || (fault("refuse_once") && !g_refused)) {
        g_refused          = true;
        m.u.ticket.refused = true;
        send_up(&m);
        return;
    }
    n         = q->n_prompt + (q->eval ? q->n_eval : q->sampling.max_tokens);
    o->epoch  = q->epoch;
    o->n_eval = q->n_eval;

    o->n_prompt    = q->n_prompt;
    o->eval_tokens = q->eval_tokens;
    q->eval_tokens = NULL;
    take_forced(o, q->eval_experts, q->n_eval_expert_bytes);
    m.u.ticket.n_pages = (n + PAGE_TOKENS - 1) / PAGE_TOKENS;
    m.u.ticket.pages   = bt_calloc(m.u.ticket.n_pages, sizeof(bt_page_ref));
    send_up(&m);
    if (g_n_both != 0 || !q->eval) return;
    /* No hand-off: what the prompt was does not matter to the formulas. */
    if (q->n_eval != 0) send_rows(q->request, o->eval_tokens, q->n_prompt, q->n_eval);
    say_released(q->request);
}

static void say_failed(uint64_t request, uint32_t epoch)
{
    bt_up m = {.kind = BT_UP_FAILED};

    m.u.failed.request = request;
    m.u.failed.epoch   = epoch;
    m.u.failed.code    = 13;
    m.u.failed.message = bt_strdup("the fake rank cannot");
    send_up(&m);
}

/* With both roles: the whole answer at once. */
static void answer(const bt_down_prefill *q)
{
    uint32_t n = q->sampling.max_tokens;
    bt_up    m = {.kind = BT_UP_TOKENS};

    m.u.tokens.n      = n;
    m.u.tokens.tokens = bt_calloc(n, sizeof(bt_token));
    for (uint32_t i = 0; i < n; i++) {
        m.u.tokens.tokens[i] = (bt_token){.request  = q->request,
                                          .position = q->n_prompt + i,
                                          .epoch    = q->epoch,
                                          .id       = 300 + i,
                                          .logprob  = -0.5f,
                                          .finish = i + 1 == n ? BT_FINISH_LENGTH : BT_FINISH_NONE};
    }
    send_up(&m);
    say_released(q->request);
}

static void on_prefill(const bt_down_prefill *q)
{
    order *o = &g_orders[q->request % 64];

    if (fault("die_in_prefill")) raise(SIGKILL);
    if (fault("fail")) {
        say_failed(q->request, q->epoch);
        return;
    }
    if (fault("silent")) return;
    o->epoch = q->epoch;
    take_forced(o, q->eval_experts, q->n_eval_expert_bytes);
    if (!q->eval) {
        answer(q);
        return;
    }
    /* Two messages where there are two rows. */
    if (q->n_prompt > 1) send_rows(q->request, q->prompt, 0, q->n_prompt - 1);
    if (fault("rows_twice")) send_rows(q->request, q->prompt, 0, 1);
    send_rows(q->request, q->prompt + q->n_prompt - 1, q->n_prompt - 1, 1);
    if (g_n_both != 0 && o->n_eval != 0) {
        send_rows(q->request, o->eval_tokens, o->n_prompt, o->n_eval);
    }
    say_released(q->request);
}

static bool handle(bt_down *m)
{
    switch (m->kind) {
    case BT_DOWN_RESERVE: on_reserve(&m->u.reserve); return true;
    case BT_DOWN_PREFILL: on_prefill(&m->u.prefill); return true;
    case BT_DOWN_ABORT: say_released(m->u.abort.request); return true;
    case BT_DOWN_SHUTDOWN:
        if (fault("leave_late")) sleep(600);
        return fault("stay");
    default: return true;
    }
}

static void serve(void)
{
    bool     stay    = true;
    uint64_t beat_ns = 0, progress = 0;

    while (stay && !bt_control_client_lost(g_client)) {
        bt_down m;

        while (stay && bt_control_client_poll(g_client, &m)) {
            stay = handle(&m);
            bt_down_free(&m);
        }
        if (bt_now_ns() - beat_ns > 200 * BT_NS_PER_MS) {
            bt_up beat = {.kind = BT_UP_BEAT};

            beat_ns              = bt_now_ns();
            beat.u.beat.progress = fault("silent") ? 0 : ++progress;
            send_up(&beat);
        }
        bt_sleep_ns(2 * BT_NS_PER_MS);
    }
}

int main(int argc, char **argv)
{
    const char *rank  = getenv("OMPI_COMM_WORLD_RANK");
    const char *fake  = getenv("FAKE");
    const char *colon = fake != NULL ? strchr(fake, ':') : NULL;
    char        who[32];

    if (rank == NULL || argument(argc, argv, "--coordinator") == NULL) return 2;
    g_rank      = (uint32_t)strtoul(rank, NULL, 10);
    g_n_prefill = number(argc, argv, "--prefill");
    g_n_decode  = number(argc, argv, "--decode");
    g_n_both    = number(argc, argv, "--both");
    if (fake != NULL) snprintf(g_fault, sizeof(g_fault), "%.*s", (int)strcspn(fake, ":"), fake);
    g_faulty = fake != NULL && g_rank == (colon != NULL ? strtoul(colon + 1, NULL, 10) : 0);
    snprintf(who, sizeof(who), "rank=%u", g_rank);
    bt_log_init(who, BT_LOG_INFO);

    if (number(argc, argv, "--max-rows") != 0 &&
        number(argc, argv, "--chunk") > number(argc, argv, "--max-rows")) {
        bt_log_error(__FILE__, __LINE__, "wrong usage", "--chunk does not fit");
        return 64;
    }
    if (fault("error_at_start")) {
        bt_log_error(__FILE__, __LINE__, "a fake error", "the fake rank cannot start");
        return 3;
    }
    if (fault("die_at_start")) raise(SIGKILL);
    if (fault("absent")) sleep(600);
    signal(SIGUSR1, SIG_IGN); /* it never drains */
    if (bt_control_client_start(argument(argc, argv, "--coordinator"), 10 * BT_NS_PER_S, 0,
                                &g_client) != BT_OK) {
        return 5;
    }
    say_hello();
    say_progress(500);
    if (fault("die_loading")) {
        bt_sleep_ns(100 * BT_NS_PER_MS);
        raise(SIGKILL);
    }
    if (!fault("never_ready")) {
        say_progress(1000);
        say_simple(BT_UP_READY);
        BT_INFO("ready: rank %u", g_rank);
    }
    serve();
    bt_control_client_stop(g_client, BT_NS_PER_S);
    return 0;
}

#include "cli/talk.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "cli/answer.h"
#include "cli/tls_options.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "core/defaults.h"
#include "core/limits.h"
#include "core/parse.h"
#include "core/terminal.h"

#define TIMEOUT_S 120 /* --timeout-s, when nobody says anything */

enum { OPT_JSON = 512, OPT_TIMEOUT };
enum { MAX_TEXT = 256 << 20 };

static const struct argp_option OPTIONS[] = {
    BT_OPTION_GROUP("The server:", 1),
    BT_OPTION_DEFAULT("address", 'a', "HOST:PORT", BT_DEFAULT_ADDRESS, "What `baton run` printed"),
    BT_OPTION("model", 'm', "DIR",
              "Directory with the model's tokenizer, or its file (default: what the server names)"),
    BT_OPTION_DEFAULT("timeout-s", OPT_TIMEOUT, "S", BT_TEXT(TIMEOUT_S),
                      "Give up when nothing comes for S seconds"),
    BT_OPTION_GROUP("What is written:", 6),
    BT_OPTION("json", OPT_JSON, NULL, "One JSON object instead of text"),
    BT_OPTION("quiet", 'q', NULL, "No summary on stderr"),
    {0},
};

enum { OUTPUT_LOST = -1 }; /* in g_stop, which else holds a signal */
static atomic_int g_stop;
static int        g_wake = -1; /* an eventfd: readable once a signal has come */

static void on_signal(int sig)
{
    const uint64_t one   = 1;
    int            error = errno;

    g_stop = sig;
    if (write(g_wake, &one, sizeof(one)) < 0) errno = error;
}

bool bt_talk_interrupted(void)
{
    bool     was = g_stop != 0;
    uint64_t n;

    if (read(g_wake, &n, sizeof(n)) < 0) n = 0; /* none is the usual case */
    g_stop = 0;
    return was;
}

bool bt_talk_await_input(void)
{
    struct pollfd fds[] = {
        {.fd = STDIN_FILENO, .events = POLLIN},
        {.fd = g_wake,       .events = POLLIN}
    };

    while (g_stop == 0 && poll(fds, 2, -1) < 0 && errno == EINTR)
        continue;
    return g_stop == 0;
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    bt_talk_options *opt = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        opt->address           = BT_DEFAULT_ADDRESS;
        opt->limit_ns          = TIMEOUT_S * BT_NS_PER_S;
        state->child_inputs[0] = &opt->request;
        state->child_inputs[1] = &opt->tls;
        return 0;
    case 'a': opt->address = bt_option_address(state, "--address", arg); return 0;
    case 'm': opt->model = bt_option_name(state, "--model", "a path", arg); return 0;
    case 'q': opt->quiet = true; return 0;
    case OPT_JSON: opt->json = true; return 0;
    case OPT_TIMEOUT:
        opt->limit_ns =
            (uint64_t)bt_option_number(state, "--timeout-s", arg, 1, 86400) * BT_NS_PER_S;
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_child CHILDREN[] = {
    {&bt_request_argp, 0, NULL, 0},
    {&bt_tls_argp,     0, NULL, 0},
    {NULL,             0, NULL, 0}
};
static const struct argp COMMON = {OPTIONS, parse, NULL, NULL, CHILDREN, NULL, NULL};

bt_status bt_talk_open(const bt_talk_options *opt, bt_talk *talk)
{
    bt_status              st = BT_OK;
    bt_client_model        model;
    const char            *dir    = opt->model;
    const struct sigaction action = {.sa_handler = on_signal};

    g_wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    BT_REQUIRE(g_wake >= 0, BT_ERR_IO, "eventfd: %s", strerror(errno));
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    talk->opt = opt;
    if (bt_terminal_colours(STDERR_FILENO)) {
        strcpy(talk->colour[0], "\033[2m");
        strcpy(talk->colour[1], "\033[0m");
    }
    BT_TRY(bt_client_open(opt->address, &opt->tls, opt->limit_ns, &g_stop, &talk->client));
    if (dir == NULL) {
        BT_TRY(bt_client_model_info(talk->client, &model));
        BT_REQUIRE(model.tokenizer_path[0] != '\0', BT_ERR_INVALID_ARG,
                   "%s does not say where its tokenizer lies; give --model DIR", opt->address);
        dir = model.tokenizer_path;
    }
    st = bt_tokenizer_open(dir, &talk->tokenizer);
    if (st != BT_OK && opt->model == NULL)
        BT_WARN("%s names that directory; if it lies on another machine, give --model DIR, a copy "
                "of its tokenizer's files",
                opt->address);
out:
    return st;
}

void bt_talk_close(bt_talk *talk)
{
    bt_tokenizer_close(talk->tokenizer);
    bt_client_close(talk->client);
    if (g_wake >= 0) close(g_wake);
    g_wake = -1;
    memset(talk, 0, sizeof(*talk));
}

/* ---- one answer */

static void on_lost(void)
{
    if (g_stop == 0) g_stop = OUTPUT_LOST;
}

static double ms(uint64_t ns) { return (double)ns / 1e6; }

static void print_account(const bt_talk *talk, const bt_client_result *r)
{
    if (talk->opt->quiet) return;
    fprintf(stderr, "%s%u prompt token%s", talk->colour[0], r->prompt_tokens,
            r->prompt_tokens == 1 ? "" : "s");
    if (r->cached_tokens != 0) fprintf(stderr, " (%u cached)", r->cached_tokens);
    fprintf(stderr, ", %u generated", r->completion_tokens);
    if (r->n_choices == 1)
        fprintf(stderr, " (%s)", r->choices[0].finish_reason);
    else
        fprintf(stderr, " in %u choices", r->n_choices);
    fprintf(stderr, "; first token after %.1f ms", ms(r->first_ns));
    if (r->completion_tokens > 1 && talk->opt->request.request.stream) {
        fprintf(stderr, ", then %.2f ms a token",
                ms(r->last_ns - r->first_ns) / (r->completion_tokens - 1));
    }
    fprintf(stderr, "%s\n", talk->colour[1]);
}

static bt_status check_out(const bt_answer *a)
{
    bt_status st = BT_OK;

    if (a->out_error == EINTR && g_stop > 0) return BT_ERR_CANCELLED;
    if (g_stop == OUTPUT_LOST) g_stop = 0;
    BT_REQUIRE(a->out_error == 0, BT_ERR_IO, "cannot write the answer to stdout: %s",
               strerror(a->out_error));
out:
    return st;
}

bt_status bt_talk_ask(bt_talk *talk, const uint32_t *ids, size_t n, char **reply_out)
{
    bt_status         called, st = BT_OK;
    bt_client_request request = talk->opt->request.request;
    bt_client_result  result  = {0};
    bt_answer         a;

    bt_answer_init(&a, &request, talk->tokenizer, talk->opt->json, on_lost);
    request.prompt   = ids;
    request.n_prompt = n;
    called           = bt_client_generate(talk->client, &request, bt_answer_tokens, &a, &result);
    BT_TRY(check_out(&a)); /* the cause, when it has cancelled the call */
    BT_TRY(called);
    BT_TRY(bt_answer_finish(&a, &result));
    BT_TRY(check_out(&a));
    print_account(talk, &result);
    if (reply_out != NULL) {
        if (a.choices[0].ends_mark && strcmp(result.choices[0].finish_reason, "stop") == 0)
            a.choices[0].text[a.choices[0].last] = '\0';
        *reply_out        = a.choices[0].text;
        a.choices[0].text = NULL;
    }
out:
    if (st != BT_OK) bt_answer_cut(&a);
    bt_answer_fini(&a);
    return st;
}

bt_status bt_talk_read_all(const char *what, char **text_out, size_t *n_out)
{
    bt_status st       = BT_OK;
    size_t    capacity = 4096, n = 0;
    char     *text = bt_calloc(1, capacity + 1), *grown;

    BT_REQUIRE(text != NULL, BT_ERR_NO_MEMORY, "%s", what);
    for (;;) {
        ssize_t got;

        if (!bt_talk_await_input()) BT_TRY(BT_ERR_CANCELLED); /* whoever pressed ^C knows */
        got = read(STDIN_FILENO, text + n, capacity - n);
        if (got == 0) break;
        if (got < 0 && errno == EINTR) continue;
        BT_REQUIRE(got > 0 || errno != EBADF, BT_ERR_IO, "%s cannot be read: it is closed", what);
        BT_REQUIRE(got > 0, BT_ERR_IO, "reading %s: %s", what, strerror(errno));
        n += (size_t)got;
        BT_REQUIRE(n < MAX_TEXT, BT_ERR_INVALID_ARG, "%s is longer than %d bytes", what, MAX_TEXT);
        if (n < capacity) continue;
        grown = bt_realloc(text, 2 * capacity + 1, 1);
        BT_REQUIRE(grown != NULL, BT_ERR_NO_MEMORY, "%s", what);
        text = grown;
        capacity *= 2;
    }
    text[n]   = '\0';
    *text_out = text;
    *n_out    = n;
    text      = NULL;
out:
    bt_free(text);
    return st;
}

int bt_talk_main(const char *verb, const struct argp *own, int argc, char **argv,
                 bt_talk_options *opt, bt_status (*run)(const bt_talk_options *opt))
{
    const struct argp_child children[] = {
        {&COMMON, 0, NULL, 0},
        {NULL,    0, NULL, 0}
    };
    struct argp parser = *own;
    bt_status   st;

    parser.children = children;
    signal(SIGPIPE, SIG_IGN); /* a reader who has gone is an error of a write */
    argp_parse(&parser, argc, argv, 0, NULL, opt);
    bt_log_init_verb(verb, BT_LOG_WARN);
    if (bt_limits_check() != BT_OK) return EXIT_FAILURE;
    st = run(opt);
    bt_request_options_fini(&opt->request);
    if (st == BT_ERR_CANCELLED) return 130;
    return st == BT_OK ? EXIT_SUCCESS : EXIT_FAILURE;
}

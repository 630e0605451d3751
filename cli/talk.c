#include "cli/talk.h"

#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cell_options.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "core/parse.h"

enum {
    OPT_MAX_TOKENS = 512,
    OPT_TEMPERATURE,
    OPT_SEED,
    OPT_IGNORE_EOS,
    OPT_STOP_TOKEN,
    OPT_LOGPROBS,
    OPT_NO_STREAM,
    OPT_JSON,
    OPT_TIMEOUT
};
enum { MAX_TEXT = 256 << 20 };

static const struct argp_option OPTIONS[] = {
    {NULL,                                                                                 0, NULL, 0, "The server:", 1},
    {"address",                                                                                'a', "HOST:PORT", 0, "What `baton run` printed (default 127.0.0.1:8000)", 1},
    {"model",                                                                       'm', "DIR", 0,
     "Directory with the model's tokenizer.json (default: where the server says it lies)", 1},
    {"timeout-s",                                                                                    OPT_TIMEOUT, "S", 0, "Give up when nothing comes for so long (default 120)", 1},
    {NULL,  0, NULL, 0, "The answer:", 2},
    {"max-tokens",                                                                                   OPT_MAX_TOKENS, "N", 0, "End after N tokens (default: at the context's end)", 2},
    {"temperature",                                                                                   OPT_TEMPERATURE, "T", 0, "0 takes the likeliest token (default 0)", 2},
    {"seed",                                                                              OPT_SEED, "N", 0, "Same seed, same answer (default: the server draws one)", 2},
    {"ignore-eos",                                                                               OPT_IGNORE_EOS, NULL, 0, "Go on past the model's end-of-text token", 2},
    {"stop-token", OPT_STOP_TOKEN, "ID", 0, "End at this token; may be repeated", 2},
    {"logprobs",                                                                                    OPT_LOGPROBS, NULL, 0, "One line per token: logprob, id, text", 2},
    {"no-stream",OPT_NO_STREAM, NULL, 0, "Ask for the whole answer in one message", 2},
    {"json",                                                                                   OPT_JSON, NULL, 0, "Write one JSON object instead of text", 2},
    {"quiet",                                                                                   'q', NULL, 0, "No account on stderr", 2},
    {0                                                                                }
};

enum { OUTPUT_LOST = -1 }; /* in g_stop, which else holds a signal */
static volatile int g_stop;

static void on_signal(int sig) { g_stop = sig; }

bool bt_talk_interrupted(void)
{
    bool was = g_stop != 0;

    g_stop = 0;
    return was;
}

static void add_stop_token(bt_talk_options *opt, struct argp_state *state, const char *arg)
{
    size_t n = opt->request.n_stop_tokens;

    if (n == BT_TALK_STOPS) argp_error(state, "more than %d of --stop-token", BT_TALK_STOPS);
    opt->stop_tokens[n]        = (uint32_t)bt_option_number(state, "--stop-token", arg, 0, INT_MAX);
    opt->request.stop_tokens   = opt->stop_tokens;
    opt->request.n_stop_tokens = n + 1;
}

static error_t parse_answer(int key, char *arg, struct argp_state *state, bt_client_request *r)
{
    switch (key) {
    case OPT_MAX_TOKENS:
        r->max_tokens     = (uint32_t)bt_option_number(state, "--max-tokens", arg, 1, INT_MAX);
        r->has_max_tokens = true;
        return 0;
    case OPT_TEMPERATURE:
        r->temperature = (float)bt_option_real(state, "--temperature", arg, 0, 1000);
        return 0;
    case OPT_SEED:
        r->seed     = (int32_t)bt_option_number(state, "--seed", arg, INT_MIN, INT_MAX);
        r->has_seed = true;
        return 0;
    case OPT_IGNORE_EOS: r->ignore_eos = true; return 0;
    case OPT_LOGPROBS: r->logprobs = true; return 0;
    case OPT_NO_STREAM: r->stream = false; return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    bt_talk_options *opt = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        opt->address        = "127.0.0.1:8000";
        opt->limit_ns       = 120 * BT_NS_PER_S;
        opt->request.stream = true;
        return 0;
    case 'a':
        if (!bt_parse_address(arg)) {
            argp_error(state, "--address is \"%s\", expected HOST:PORT", arg);
        }
        opt->address = arg;
        return 0;
    case 'm': opt->model = arg; return 0;
    case 'q': opt->quiet = true; return 0;
    case OPT_JSON: opt->json = true; return 0;
    case OPT_STOP_TOKEN: add_stop_token(opt, state, arg); return 0;
    case OPT_TIMEOUT:
        opt->limit_ns =
            (uint64_t)bt_option_number(state, "--timeout-s", arg, 1, 86400) * BT_NS_PER_S;
        return 0;
    default: return parse_answer(key, arg, state, &opt->request);
    }
}

const struct argp bt_talk_argp = {OPTIONS, parse, NULL, NULL, NULL, NULL, NULL};

bt_status bt_talk_open(const bt_talk_options *opt, bt_talk *talk)
{
    bt_status              st = BT_OK;
    bt_client_model        model;
    const struct sigaction action = {.sa_handler = on_signal};

    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    talk->opt = opt;
    if (isatty(STDERR_FILENO)) {
        strcpy(talk->colour[0], "\033[2m");
        strcpy(talk->colour[1], "\033[0m");
    }
    BT_TRY(bt_client_open(opt->address, opt->limit_ns, &g_stop, &talk->client));
    if (opt->model != NULL) {
        snprintf(talk->model, sizeof(talk->model), "%s", opt->model);
    } else {
        BT_TRY(bt_client_model_info(talk->client, &model));
        BT_REQUIRE(model.tokenizer_path[0] != '\0', BT_ERR_INVALID_ARG,
                   "%s does not say where its tokenizer lies; give --model DIR", opt->address);
        snprintf(talk->model, sizeof(talk->model), "%s", model.tokenizer_path);
    }
    BT_TRY(bt_tokenizer_open(talk->model, &talk->tokenizer));
out:
    return st;
}

void bt_talk_close(bt_talk *talk)
{
    if (talk->tokenizer != NULL) bt_tokenizer_close(talk->tokenizer);
    bt_client_close(talk->client);
    memset(talk, 0, sizeof(*talk));
}

/* ---- one answer */

typedef struct {
    char  *text; /* owned, terminated */
    size_t n, capacity;
} text_buffer;

typedef struct {
    bt_talk       *talk;
    bt_detokenizer state;
    text_buffer    all;
    json_t        *ids, *logprobs; /* with --json */
    bool           no_memory;
    int            out_error; /* errno of the first failed write to stdout, or 0 */
} answer;

/* Room for n more bytes and a terminator. */
static char *reserve(answer *a, size_t n)
{
    text_buffer *b = &a->all;
    char        *grown;

    if (b->n + n + 1 > b->capacity) {
        grown = bt_realloc(b->text, 2 * (b->n + n + 1), 1);
        if (grown == NULL) {
            a->no_memory = true;
            return NULL;
        }
        b->text     = grown;
        b->capacity = 2 * (b->n + n + 1);
    }
    return b->text + b->n;
}

/* What was written must arrive: an answer that nobody gets is not computed any further. */
static void flush_out(answer *a)
{
    if (a->out_error != 0 || (fflush(stdout) == 0 && !ferror(stdout))) return;
    a->out_error = errno != 0 ? errno : EIO;
    if (g_stop == 0) g_stop = OUTPUT_LOST;
}

static void show(answer *a, const char *text, size_t n)
{
    if (a->talk->opt->json || a->talk->opt->request.logprobs || a->out_error != 0) return;
    fwrite(text, 1, n, stdout);
    flush_out(a);
}

static void show_token(answer *a, uint32_t id, float logprob)
{
    size_t      n;
    bool        special;
    const char *bytes = bt_tokenizer_bytes(a->talk->tokenizer, id, &n, &special);

    printf("%10.6f %7u  ", (double)logprob, id);
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)bytes[i];

        if (c == '\n') {
            fputs("\\n", stdout);
        } else if (c < ' ') {
            printf("\\x%02x", c);
        } else {
            putchar(c);
        }
    }
    putchar('\n');
    flush_out(a);
}

static void take_token(answer *a, uint32_t id, const float *logprob)
{
    bt_talk *talk = a->talk;
    size_t   n    = 0, written;
    bool     special;
    char    *to;

    bt_tokenizer_bytes(talk->tokenizer, id, &n, &special);
    to = reserve(a, 3 * n + 16);
    if (to == NULL) return;
    written = bt_detokenize(talk->tokenizer, &a->state, id, false, to, 3 * n + 16);
    show(a, to, written);
    a->all.n += written;
    a->all.text[a->all.n] = '\0';
    if (talk->opt->json) {
        json_array_append_new(a->ids, json_integer(id));
        if (logprob != NULL) {
            json_t *value = json_real((double)*logprob);

            json_array_append_new(a->logprobs,
                                  value != NULL ? value : json_null()); /* not finite */
        }
    } else if (logprob != NULL) {
        show_token(a, id, *logprob);
    }
}

static void on_tokens(void *ctx, size_t n, const uint32_t *ids, const float *logprobs)
{
    for (size_t i = 0; i < n; i++) {
        take_token(ctx, ids[i], logprobs != NULL ? logprobs + i : NULL);
    }
}

static void finish_text(answer *a)
{
    char  *to = reserve(a, sizeof(a->state.held) * 3 + 16);
    size_t n;

    if (to == NULL) return;
    n = bt_detokenize_end(&a->state, to, sizeof(a->state.held) * 3 + 16);
    show(a, to, n);
    a->all.n += n;
    a->all.text[a->all.n] = '\0';
    show(a, "\n", 1);
}

static double ms(uint64_t ns) { return (double)ns / 1e6; }

static double ms_per_token(const bt_client_result *r)
{
    return r->completion_tokens > 1 ? ms(r->last_ns - r->first_ns) / (r->completion_tokens - 1) : 0;
}

static bt_status print_json(answer *a, const bt_client_result *r)
{
    bt_status st = BT_OK;
    json_t   *o  = json_pack("{s:s#,s:O,s:s,s:i,s:i,s:f,s:f}", "text", a->all.text, (int)a->all.n,
                             "ids", a->ids, "finish_reason", r->finish_reason, "prompt_tokens",
                             (int)r->prompt_tokens, "completion_tokens", (int)r->completion_tokens,
                             "ttft_ms", ms(r->first_ns), "ms_per_token", ms_per_token(r));

    BT_REQUIRE(o != NULL, BT_ERR_PROTOCOL, "the answer cannot be written as JSON");
    if (a->talk->opt->request.logprobs) json_object_set(o, "logprobs", a->logprobs);
    if (r->has_matched_token) {
        json_object_set_new(o, "matched_token", json_integer(r->matched_token));
    }
    json_dumpf(o, stdout, JSON_COMPACT); /* a failure stays in stdout's error flag */
    putchar('\n');
    flush_out(a);
out:
    json_decref(o);
    return st;
}

static void print_account(const bt_talk *talk, const bt_client_result *r)
{
    if (talk->opt->quiet) return;
    fprintf(stderr, "%s%u prompt tokens, %u generated (%s); first token after %.1f ms",
            talk->colour[0], r->prompt_tokens, r->completion_tokens, r->finish_reason,
            ms(r->first_ns));
    if (r->completion_tokens > 1 && talk->opt->request.stream) {
        fprintf(stderr, ", then %.2f ms a token", ms_per_token(r));
    }
    fprintf(stderr, "%s\n", talk->colour[1]);
}

static bt_status check_out(const answer *a)
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
    answer            a       = {.talk = talk, .ids = json_array(), .logprobs = json_array()};
    bt_client_request request = talk->opt->request;
    bt_client_result  result  = {0};

    request.prompt   = ids;
    request.n_prompt = n;
    called           = bt_client_generate(talk->client, &request, on_tokens, &a, &result);
    BT_TRY(check_out(&a)); /* the cause, when it has cancelled the call */
    BT_TRY(called);
    finish_text(&a);
    BT_REQUIRE(!a.no_memory, BT_ERR_NO_MEMORY, "an answer of %zu bytes", a.all.n);
    if (talk->opt->json) BT_TRY(print_json(&a, &result));
    BT_TRY(check_out(&a));
    print_account(talk, &result);
    if (reply_out != NULL) {
        *reply_out = a.all.text;
        a.all.text = NULL;
    }
out:
    if (st != BT_OK && a.all.n != 0) show(&a, "\n", 1);
    bt_free(a.all.text);
    json_decref(a.ids);
    json_decref(a.logprobs);
    return st;
}

bt_status bt_talk_read_all(int fd, const char *what, char **text_out, size_t *n_out)
{
    bt_status st       = BT_OK;
    size_t    capacity = 4096, n = 0;
    char     *text = bt_calloc(1, capacity + 1), *grown;

    BT_REQUIRE(text != NULL, BT_ERR_NO_MEMORY, "%s", what);
    for (;;) {
        ssize_t got = read(fd, text + n, capacity - n);

        if (got == 0) break;
        BT_REQUIRE(got > 0 || errno != EBADF, BT_ERR_IO, "%s cannot be read: it is closed", what);
        BT_REQUIRE(got > 0, g_stop != 0 ? BT_ERR_CANCELLED : BT_ERR_IO, "reading %s: %s", what,
                   strerror(errno));
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

int bt_talk_exit_code(bt_status st)
{
    if (st == BT_ERR_CANCELLED) return 130;
    return st == BT_OK ? EXIT_SUCCESS : EXIT_FAILURE;
}

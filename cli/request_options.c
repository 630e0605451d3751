#include "cli/request_options.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/file.h"
#include "core/parse.h"
#include "proto/prefix_key.h"

enum {
    OPT_MAX_TOKENS = 0x5000,
    OPT_MIN_TOKENS,
    OPT_TEMPERATURE,
    OPT_TOP_K,
    OPT_TOP_P,
    OPT_MIN_P,
    OPT_FREQUENCY,
    OPT_PRESENCE,
    OPT_REPETITION,
    OPT_BIAS,
    OPT_SEED,
    OPT_CACHE_SALT,
    OPT_IGNORE_EOS,
    OPT_STOP,
    OPT_STOP_TOKEN,
    OPT_INCLUDE_STOP,
    OPT_KEEP_SPECIAL,
    OPT_LOGPROBS,
    OPT_PROMPT_LOGPROBS,
    OPT_NO_STREAM,
    OPT_JSON_OBJECT, /* these six in the order of bt_client_answer */
    OPT_JSON_SCHEMA,
    OPT_REGEX,
    OPT_GRAMMAR,
    OPT_CHOICE,
    OPT_STRUCTURAL_TAG
};
enum { MAX_TOP = 20, MAX_ANSWER_BYTES = 1 << 18 };

static const struct argp_option OPTIONS[] = {
    BT_OPTION_GROUP("Where the answer ends:", 2),
    BT_OPTION("max-tokens", OPT_MAX_TOKENS, "N",
              "Stop after N tokens (default: at the end of the context)"),
    BT_OPTION("min-tokens", OPT_MIN_TOKENS, "N", "Do not stop before N tokens"),
    BT_OPTION("stop", OPT_STOP, "TEXT",
              "Stop before this text; may be repeated (\\n, \\t and \\\\ as in C)"),
    BT_OPTION("include-stop", OPT_INCLUDE_STOP, NULL, "Show the stop text or token too"),
    BT_OPTION("stop-token", OPT_STOP_TOKEN, "ID", "Stop at this token; may be repeated"),
    BT_OPTION("ignore-eos", OPT_IGNORE_EOS, NULL, "Do not stop at the model's end-of-text token"),
    BT_OPTION_GROUP("What the answer must be, one of these (TEXT may be @FILE, but for --choice):",
                    3),
    BT_OPTION("json-object", OPT_JSON_OBJECT, NULL, "A JSON object"),
    BT_OPTION("json-schema", OPT_JSON_SCHEMA, "TEXT", "JSON that this schema describes"),
    BT_OPTION("regex", OPT_REGEX, "TEXT", "What this regular expression matches as a whole"),
    BT_OPTION("grammar", OPT_GRAMMAR, "TEXT",
              "What the rule `root` of this grammar describes (GBNF: root ::= \"a\" | \"b\")"),
    BT_OPTION("choice", OPT_CHOICE, "TEXT", "This text, or another one given so; may be repeated"),
    BT_OPTION("structural-tag", OPT_STRUCTURAL_TAG, "TEXT",
              "Free text in which each tag of this JSON has a content of its form"),
    BT_OPTION_GROUP("How tokens are chosen:", 4),
    BT_OPTION("temperature", OPT_TEMPERATURE, "T",
              "0 takes the likeliest token; higher is more varied (default 0)"),
    BT_OPTION("top-k", OPT_TOP_K, "K", "Choose among the K likeliest tokens (default: all)"),
    BT_OPTION(
        "top-p", OPT_TOP_P, "P",
        "Choose among the likeliest tokens that together reach probability P (default 1: all)"),
    BT_OPTION("min-p", OPT_MIN_P, "P",
              "Choose among tokens at least P times as likely as the likeliest (default 0: all)"),
    BT_OPTION(
        "frequency-penalty", OPT_FREQUENCY, "X",
        "Lower a token's logit by X for each time that the answer has it, -2 to 2 (default 0)"),
    BT_OPTION("presence-penalty", OPT_PRESENCE, "X",
              "Lower a token's logit by X once the answer has it, -2 to 2 (default 0)"),
    BT_OPTION("repetition-penalty", OPT_REPETITION, "X",
              "For tokens of prompt or answer: divide positive logits by X, multiply negative ones "
              "(default 1)"),
    BT_OPTION("logit-bias", OPT_BIAS, "ID=X", "Add X to this token's logit; may be repeated"),
    BT_OPTION("seed", OPT_SEED, "N", "Same seed, same answer (default: the server draws one)"),
    BT_OPTION_GROUP("What is shown:", 5),
    BT_OPTION("choices", 'n', "N", "N answers to the one prompt, at most 64 (default 1)"),
    BT_OPTION_FLAGS(
        "logprobs", OPT_LOGPROBS, "TOP", OPTION_ARG_OPTIONAL,
        "One line per token: logprob, id, text; with =TOP also the TOP likeliest, at most 20"),
    BT_OPTION_FLAGS("prompt-logprobs", OPT_PROMPT_LOGPROBS, "TOP", OPTION_ARG_OPTIONAL,
                    "As --logprobs, for the tokens of the prompt, before the answer"),
    BT_OPTION("keep-special", OPT_KEEP_SPECIAL, NULL,
              "Stop texts may match special tokens, and the answer shows them"),
    BT_OPTION("cache-salt", OPT_CACHE_SALT, "TEXT",
              "Share cached prefixes with requests of the same TEXT only"),
    BT_OPTION("no-stream", OPT_NO_STREAM, NULL, "Ask for the whole answer in one message"),
    {0},
};

static void add_stop_token(bt_request_options *o, struct argp_state *state, const char *arg)
{
    size_t n = o->request.n_stop_tokens;

    if (n == BT_REQUEST_STOPS) argp_error(state, "more than %d of --stop-token", BT_REQUEST_STOPS);
    o->stop_tokens[n]        = (uint32_t)bt_option_number(state, "--stop-token", arg, 0, INT_MAX);
    o->request.stop_tokens   = o->stop_tokens;
    o->request.n_stop_tokens = n + 1;
}

/* In place: the result is never longer. */
static void unescape(char *text)
{
    char *to = text;

    for (const char *p = text; *p != 0; p++) {
        if (*p == '\\' && (p[1] == 'n' || p[1] == 't' || p[1] == '\\')) {
            p++;
            *to++ = *p == 'n' ? '\n' : *p == 't' ? '\t' : '\\';
        } else {
            *to++ = *p;
        }
    }
    *to = 0;
}

static void add_stop(bt_request_options *o, struct argp_state *state, char *arg)
{
    size_t n = o->request.n_stop;

    if (n == BT_REQUEST_STOPS) argp_error(state, "more than %d of --stop", BT_REQUEST_STOPS);
    unescape(arg);
    if (arg[0] == 0 || strlen(arg) > BT_CLIENT_STOP_BYTES)
        argp_error(state, "--stop has %zu bytes, expected 1 to %d", strlen(arg),
                   BT_CLIENT_STOP_BYTES);
    o->stop[n]        = arg;
    o->request.stop   = o->stop;
    o->request.n_stop = n + 1;
}

static void add_bias(bt_request_options *o, struct argp_state *state, const char *arg)
{
    size_t      n  = o->request.n_biases;
    const char *at = arg;
    int64_t     id = 0;

    if (n == BT_REQUEST_BIASES)
        argp_error(state, "more than %d of --logit-bias", BT_REQUEST_BIASES);
    if (!bt_parse_whole_in(&at, "=:", 0, INT_MAX, &id) || *at == '\0')
        argp_error(state, "--logit-bias is \"%s\", expected ID=X like 17=-2.5", arg);
    o->bias_ids[n]      = (int32_t)id;
    o->biases[n]        = (float)bt_option_real(state, "--logit-bias", at + 1, -1e6, 1e6);
    o->request.bias_ids = o->bias_ids;
    o->request.biases   = o->biases;
    o->request.n_biases = n + 1;
}

/* What the file has, without the end of its last line; owned by the options. */
static char *read_file(bt_request_options *o, struct argp_state *state, const char *option,
                       const char *path)
{
    const char *why = NULL;
    FILE       *f   = bt_open_regular(path, &why);
    size_t      n;

    if (f == NULL) argp_error(state, "%s @%s: %s", option, path, why);
    o->answer_file = bt_calloc(MAX_ANSWER_BYTES + 1, 1);
    if (o->answer_file == NULL) argp_failure(state, EXIT_FAILURE, ENOMEM, "%s", path);
    n = fread(o->answer_file, 1, MAX_ANSWER_BYTES + 1, f);
    if (ferror(f) != 0 || n > MAX_ANSWER_BYTES || strlen(o->answer_file) != n)
        argp_error(state, "%s @%s: expected a text of at most %d bytes", option, path,
                   MAX_ANSWER_BYTES);
    fclose(f);
    if (n > 0 && o->answer_file[n - 1] == '\n') o->answer_file[--n] = '\0';
    if (n == 0) argp_error(state, "%s @%s: the file is empty", option, path);
    return o->answer_file;
}

static void set_answer(bt_request_options *o, struct argp_state *state, bt_client_answer answer,
                       char *arg)
{
    static const char *const NAMES[] = {[BT_ANSWER_ANYTHING]       = NULL,
                                        [BT_ANSWER_JSON_OBJECT]    = "--json-object",
                                        [BT_ANSWER_JSON_SCHEMA]    = "--json-schema",
                                        [BT_ANSWER_REGEX]          = "--regex",
                                        [BT_ANSWER_GRAMMAR]        = "--grammar",
                                        [BT_ANSWER_CHOICE]         = "--choice",
                                        [BT_ANSWER_STRUCTURAL_TAG] = "--structural-tag"};
    bt_client_request       *r       = &o->request;

    if (r->answer != BT_ANSWER_ANYTHING && (r->answer != answer || answer != BT_ANSWER_CHOICE))
        argp_error(state, "an answer can be held to one of --json-object, --json-schema, --regex, "
                          "--grammar, --choice and --structural-tag, once");
    r->answer = answer;
    if (arg != NULL && arg[0] == '\0')
        argp_error(state, "%s is empty, expected a text%s", NAMES[answer],
                   answer == BT_ANSWER_CHOICE ? "" : ", or @FILE");
    if (answer != BT_ANSWER_CHOICE) {
        r->answer_text =
            arg != NULL && arg[0] == '@' ? read_file(o, state, NAMES[answer], arg + 1) : arg;
        return;
    }
    if (r->n_answer_choices == BT_REQUEST_STOPS)
        argp_error(state, "more than %d of --choice", BT_REQUEST_STOPS);
    o->answer_choices[r->n_answer_choices++] = arg;
    r->answer_choices                        = o->answer_choices;
}

void bt_request_options_fini(bt_request_options *options)
{
    bt_free(options->answer_file);
    options->answer_file = options->request.answer_text = NULL;
}

static int32_t top_of(struct argp_state *state, const char *name, const char *arg)
{
    return arg == NULL ? 0 : (int32_t)bt_option_number(state, name, arg, 0, MAX_TOP);
}

static const char *salt_of(struct argp_state *state, const char *arg)
{
    char why[BT_CACHE_SALT_TEXT];

    if (!bt_cache_salt_check(strlen(arg), arg, why)) argp_error(state, "--cache-salt %s", why);
    return arg;
}

static error_t parse_shown(int key, char *arg, struct argp_state *state, bt_client_request *r)
{
    switch (key) {
    case 'n':
        r->n_choices = (uint32_t)bt_option_number(state, "--choices", arg, 1, BT_CLIENT_CHOICES);
        return 0;
    case OPT_LOGPROBS:
        r->logprobs     = true;
        r->top_logprobs = top_of(state, "--logprobs", arg);
        return 0;
    case OPT_PROMPT_LOGPROBS:
        r->prompt_logprobs     = true;
        r->top_prompt_logprobs = top_of(state, "--prompt-logprobs", arg);
        return 0;
    case OPT_KEEP_SPECIAL: r->keep_special = true; return 0;
    case OPT_NO_STREAM: r->stream = false; return 0;
    case OPT_CACHE_SALT: r->cache_salt = salt_of(state, arg); return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static error_t parse_choice(int key, char *arg, struct argp_state *state, bt_client_request *r)
{
    switch (key) {
    case OPT_TEMPERATURE:
        r->temperature = (float)bt_option_real(state, "--temperature", arg, 0, 1e6);
        return 0;
    case OPT_TOP_K:
        r->top_k = (uint32_t)bt_option_number(state, "--top-k", arg, 0, INT_MAX);
        return 0;
    case OPT_TOP_P: r->top_p = (float)bt_option_real(state, "--top-p", arg, 0, 1); return 0;
    case OPT_MIN_P: r->min_p = (float)bt_option_real(state, "--min-p", arg, 0, 1); return 0;
    case OPT_FREQUENCY:
        r->frequency_penalty = (float)bt_option_real(state, "--frequency-penalty", arg, -2, 2);
        return 0;
    case OPT_PRESENCE:
        r->presence_penalty = (float)bt_option_real(state, "--presence-penalty", arg, -2, 2);
        return 0;
    case OPT_REPETITION:
        r->repetition_penalty =
            (float)bt_option_real(state, "--repetition-penalty", arg, 0.001, 1000);
        return 0;
    case OPT_SEED:
        r->seed     = (int32_t)bt_option_number(state, "--seed", arg, INT_MIN, INT_MAX);
        r->has_seed = true;
        return 0;
    default: return parse_shown(key, arg, state, r);
    }
}

/* The likeliest token is taken whatever these say. */
static void check_choice(struct argp_state *state, const bt_client_request *r)
{
    const char *idle = r->top_k != 0                   ? "--top-k"
                       : r->top_p != 0 && r->top_p < 1 ? "--top-p"
                       : r->min_p > 0                  ? "--min-p"
                                                       : NULL;

    if (r->temperature == 0 && idle != NULL)
        argp_error(state, "%s has no effect with --temperature 0, the default: give a higher one",
                   idle);
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    bt_request_options *o = state->input;
    bt_client_request  *r = &o->request;

    switch (key) {
    case ARGP_KEY_INIT: r->stream = true; return 0;
    case OPT_MAX_TOKENS:
        r->max_tokens     = (uint32_t)bt_option_number(state, "--max-tokens", arg, 1, INT_MAX);
        r->has_max_tokens = true;
        return 0;
    case OPT_MIN_TOKENS:
        r->min_tokens = (uint32_t)bt_option_number(state, "--min-tokens", arg, 0, INT_MAX);
        return 0;
    case OPT_IGNORE_EOS: r->ignore_eos = true; return 0;
    case OPT_INCLUDE_STOP: r->include_stop = true; return 0;
    case OPT_STOP: add_stop(o, state, arg); return 0;
    case OPT_STOP_TOKEN: add_stop_token(o, state, arg); return 0;
    case OPT_BIAS: add_bias(o, state, arg); return 0;
    case OPT_JSON_OBJECT:
    case OPT_JSON_SCHEMA:
    case OPT_REGEX:
    case OPT_GRAMMAR:
    case OPT_CHOICE:
    case OPT_STRUCTURAL_TAG:
        set_answer(o, state, (bt_client_answer)(key - OPT_JSON_OBJECT + BT_ANSWER_JSON_OBJECT),
                   arg);
        return 0;
    case ARGP_KEY_END: check_choice(state, r); return 0;
    default: return parse_choice(key, arg, state, r);
    }
}

const struct argp bt_request_argp = {OPTIONS, parse, NULL, NULL, NULL, NULL, NULL};

/* baton-generate - sends one prompt to a running cell and writes what it generates. */
#include <argp.h>
#include <stdlib.h>
#include <string.h>

#include "cli/talk.h"
#include "core/alloc.h"
#include "core/parse.h"

enum { OPT_PROMPT = 256, OPT_BOS, OPT_NO_BOS };

static const char DOC[] =
    "Sends a prompt to a running cell (see `baton run`) and writes the text that it generates.\v"
    "The prompt is --prompt or all of stdin, taken as it is: no chat template (that is `baton "
    "chat`). A beginning-of-text token is put in front when the model's files say so "
    "(add_bos_token in tokenizer_config.json, or without that the post_processor in "
    "tokenizer.json, or tekken.json); --bos and --no-bos decide otherwise.\n\n"
    "The text goes to stdout as it comes, a short summary to stderr.\n\n"
    "Exit code: 0 when the answer is complete, 1 on an error, 130 after ^C, 64 for wrong usage.\n\n"
    "Examples:\n"
    "  baton generate -a 127.0.0.1:8000 --prompt 'O Romeo, Romeo,' --max-tokens 60\n"
    "  baton generate --json --logprobs --seed 7 --temperature 0.8 < prompt.txt\n"
    "  baton generate --prompt 'To be?' --choice yes --choice no\n"
    "  baton generate --prompt 'Who?' --json-schema @person.json --max-tokens 300";

static const struct argp_option OPTIONS[] = {
    BT_OPTION("prompt", OPT_PROMPT, "TEXT", "The prompt (default: stdin)"),
    BT_OPTION("bos", OPT_BOS, NULL, "Begin with a beginning-of-text token"),
    BT_OPTION("no-bos", OPT_NO_BOS, NULL, "Begin without one"),
    {0},
};

typedef enum { BOS_BY_MODEL, BOS_YES, BOS_NO } bos_rule;

typedef struct {
    bt_talk_options talk; /* first */
    const char     *prompt;
    bos_rule        bos;
} options;

static error_t parse(int key, char *arg, struct argp_state *state)
{
    options *opt = state->input;

    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = &opt->talk; return 0;
    case OPT_PROMPT: opt->prompt = arg; return 0;
    case OPT_BOS: opt->bos = BOS_YES; return 0;
    case OPT_NO_BOS: opt->bos = BOS_NO; return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "\"%s\" is not an option; the prompt goes after --prompt", arg);
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static bt_status encode(const bt_talk *talk, const options *opt, const char *text, size_t n_bytes,
                        uint32_t **ids_out, size_t *n_out)
{
    bt_status st    = BT_OK;
    uint32_t *plain = NULL, *ids = NULL, front[BT_MAX_FRONT];
    size_t    n = 0, n_front = 0;

    if (opt->bos != BOS_NO)
        BT_TRY(bt_tokenizer_front(talk->tokenizer, opt->bos == BOS_YES, front, &n_front));
    BT_TRY(bt_tokenizer_encode(talk->tokenizer, text, n_bytes, &plain, &n));
    ids = bt_calloc(n_front + n + 1, sizeof(*ids));
    BT_REQUIRE(ids != NULL, BT_ERR_NO_MEMORY, "%zu prompt tokens", n);
    memcpy(ids, front, n_front * sizeof(*ids));
    if (n != 0) memcpy(ids + n_front, plain, n * sizeof(*ids));
    BT_REQUIRE(n_front + n != 0, BT_ERR_INVALID_ARG, "the prompt is empty");
    *ids_out = ids;
    *n_out   = n_front + n;
    ids      = NULL;
out:
    bt_free(plain);
    bt_free(ids);
    return st;
}

static bt_status generate(const bt_talk_options *common)
{
    bt_status      st    = BT_OK;
    const options *opt   = (const options *)common;
    bt_talk        talk  = {0};
    char          *input = NULL;
    const char    *text  = opt->prompt;
    uint32_t      *ids   = NULL;
    size_t         n_bytes, n;

    BT_TRY(bt_talk_open(&opt->talk, &talk));
    if (text == NULL) {
        BT_TRY(bt_talk_read_all("the prompt on stdin", &input, &n_bytes));
        BT_REQUIRE(
            n_bytes != 0, BT_ERR_INVALID_ARG,
            "stdin is empty: expected a prompt there, or --prompt '' for a text from nothing");
        text = input;
    } else {
        n_bytes = strlen(text);
    }
    BT_TRY(encode(&talk, opt, text, n_bytes, &ids, &n));
    BT_TRY(bt_talk_ask(&talk, ids, n, NULL));
out:
    bt_free(ids);
    bt_free(input);
    bt_talk_close(&talk);
    return st;
}

int main(int argc, char **argv)
{
    const struct argp own = {OPTIONS, parse, NULL, DOC, NULL, NULL, NULL};
    options           opt = {0};

    return bt_talk_main("generate", &own, argc, argv, &opt.talk, generate);
}

/* baton-chat - a conversation with a running cell, in the model's own chat template. */
#include <argp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/talk.h"
#include "core/alloc.h"
#include "core/parse.h"

enum { OPT_MESSAGE = 256, OPT_SYSTEM, OPT_THINK };

static const char DOC[] =
    "Talks with a running cell (see `baton run`) through the model's chat template.\v"
    "On a terminal: one line a message, the answer below it, an empty line or ^D to end; ^C ends "
    "the answer under way. With --message, or when stdin is no terminal: one message, one "
    "answer.\n\n"
    "Exit code: 0 when every answer was complete, 1 on an error, 130 after ^C, 64 for wrong "
    "usage.\n\n"
    "Examples:\n"
    "  baton chat --address 127.0.0.1:8000\n"
    "  baton chat --message 'Good morrow, cousin.' --max-tokens 80\n"
    "  baton chat --message 'Who are you?' --json-schema @person.json";

static const struct argp_option OPTIONS[] = {
    BT_OPTION("message", OPT_MESSAGE, "TEXT", "One message instead of a conversation"),
    BT_OPTION("system", OPT_SYSTEM, "TEXT", "What the model is told first"),
    BT_OPTION(
        "think", OPT_THINK, "yes|no",
        "Whether the model thinks before it answers, where its chat template leaves that open "
        "(default: as that says)"),
    {0},
};

typedef struct {
    bt_talk_options talk; /* first */
    const char     *message, *system;
    bt_chat_think   think;
} options;

static error_t parse(int key, char *arg, struct argp_state *state)
{
    options *opt = state->input;

    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = &opt->talk; return 0;
    case OPT_MESSAGE: opt->message = arg; return 0;
    case OPT_SYSTEM: opt->system = arg; return 0;
    case OPT_THINK:
        if (strcmp(arg, "yes") != 0 && strcmp(arg, "no") != 0)
            argp_error(state, "--think is \"%s\": expected yes or no", arg);
        opt->think = arg[0] == 'y' ? BT_THINK_YES : BT_THINK_NO;
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "\"%s\" is not an option; a message goes after --message", arg);
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

/* What has been said; the texts are owned. */
typedef struct {
    bt_chat_message *messages;
    size_t           n, capacity;
    bt_chat_think    think;
} history;

static bt_status say(history *h, const char *role, const char *text)
{
    bt_status        st = BT_OK;
    bt_chat_message *grown;
    char            *copy = NULL;

    if (h->n == h->capacity) {
        grown = bt_realloc(h->messages, 2 * h->capacity + 8, sizeof(*grown));
        BT_REQUIRE(grown != NULL, BT_ERR_NO_MEMORY, "%zu messages", h->n);
        h->messages = grown;
        h->capacity = 2 * h->capacity + 8;
    }
    copy = bt_strdup(text);
    BT_REQUIRE(copy != NULL, BT_ERR_NO_MEMORY, "a message");
    h->messages[h->n++] = (bt_chat_message){role, copy};
out:
    return st;
}

static void unsay(history *h) { bt_free((char *)h->messages[--h->n].content); }

static void forget(history *h)
{
    while (h->n != 0)
        unsay(h);
    bt_free(h->messages);
}

/* Sends the conversation, adds the answer to it. */
static bt_status answer(bt_talk *talk, history *h)
{
    bt_status st   = BT_OK;
    char     *text = NULL, *reply = NULL;
    uint32_t *ids = NULL;
    size_t    n;

    BT_TRY(bt_tokenizer_chat(talk->tokenizer, h->n, h->messages, h->think, &text));
    BT_TRY(bt_tokenizer_encode(talk->tokenizer, text, strlen(text), &ids, &n));
    BT_TRY(bt_talk_ask(talk, ids, n, &reply));
    BT_TRY(say(h, "assistant", reply));
out:
    bt_free(reply);
    bt_free(ids);
    bt_free(text);
    return st;
}

/* False at the end of the conversation. */
static bool read_line(char **line, size_t *capacity, size_t *n_out)
{
    ssize_t n;

    fputs("> ", stdout);
    fflush(stdout);
    /* A signal just before a read would leave it waiting.  Terminals give a line at a time. */
    n = bt_talk_await_input() ? getline(line, capacity, stdin) : -1;
    if (n > 0 && (*line)[n - 1] == '\n') (*line)[--n] = '\0';
    if (n <= 0) putchar('\n');
    *n_out = n > 0 ? (size_t)n : 0;
    return n > 0;
}

static bt_status check_message(const char *text, size_t n)
{
    bt_status st = BT_OK;

    BT_REQUIRE(n != 0, BT_ERR_INVALID_ARG,
               "the message is empty: expected text after --message, or on stdin");
    BT_REQUIRE(memchr(text, '\0', n) == NULL, BT_ERR_INVALID_ARG,
               "the message has a byte of zero after %zu others: expected text", strlen(text));
out:
    return st;
}

/* A terminal passes on so much of a line, and drops the rest of it. */
static bt_status check_line(const char *line, size_t n)
{
    enum { TERMINAL_BYTES = 4095 };
    bt_status st = BT_OK;

    BT_TRY(check_message(line, n));
    BT_REQUIRE(
        n < TERMINAL_BYTES, BT_ERR_INVALID_ARG,
        "the line has the %d bytes that a terminal passes on, and may have had more: a longer "
        "message goes after --message, or to stdin from a file",
        TERMINAL_BYTES);
out:
    return st;
}

/* Goes on after an answer that failed, whose line may be sent again, or another one.  Returns what
 * failed first. */
static bt_status converse(bt_talk *talk, history *h)
{
    bt_status st, failed = BT_OK;
    char     *line     = NULL; /* getline's, not ours */
    size_t    capacity = 0, n;

    while (read_line(&line, &capacity, &n)) {
        st = check_line(line, n);
        if (st == BT_OK) st = say(h, "user", line);
        if (st == BT_OK) {
            st = answer(talk, h);
            if (st != BT_OK) unsay(h);
        }
        if (st == BT_OK) continue;
        if (bt_talk_interrupted()) st = BT_ERR_CANCELLED;
        if (failed == BT_OK) failed = st;
        if (st != BT_ERR_CANCELLED && st != BT_ERR_PEER && st != BT_ERR_INVALID_ARG) break;
    }
    if (failed == BT_OK && bt_talk_interrupted()) failed = BT_ERR_CANCELLED; /* at the prompt */
    free(line);
    return failed;
}

static bt_status once(bt_talk *talk, const char *message, history *h)
{
    bt_status st    = BT_OK;
    char     *input = NULL;
    size_t    n;

    if (message == NULL) {
        BT_TRY(bt_talk_read_all("the message on stdin", &input, &n));
        if (n != 0 && input[n - 1] == '\n') input[--n] = '\0'; /* the line's end, not the text's */
        message = input;
    } else {
        n = strlen(message);
    }
    BT_TRY(check_message(message, n));
    BT_TRY(say(h, "user", message));
    BT_TRY(answer(talk, h));
out:
    bt_free(input);
    return st;
}

static bt_status chat(const bt_talk_options *common)
{
    bt_status      st   = BT_OK;
    const options *opt  = (const options *)common;
    bt_talk        talk = {0};
    history        h    = {.think = opt->think};

    BT_TRY(bt_talk_open(&opt->talk, &talk));
    if (opt->system != NULL) BT_TRY(say(&h, "system", opt->system));
    if (opt->message == NULL && isatty(STDIN_FILENO) && isatty(STDOUT_FILENO)) {
        BT_TRY(converse(&talk, &h));
    } else {
        BT_TRY(once(&talk, opt->message, &h));
    }
out:
    forget(&h);
    bt_talk_close(&talk);
    return st;
}

int main(int argc, char **argv)
{
    const struct argp own = {OPTIONS, parse, NULL, DOC, NULL, NULL, NULL};
    options           opt = {0};

    return bt_talk_main("chat", &own, argc, argv, &opt.talk, chat);
}

#include "cli/answer.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"

static json_t *real(float x)
{
    json_t *value = json_real((double)x);

    return value != NULL ? value : json_null(); /* not finite */
}

void bt_answer_init(bt_answer *answer, const bt_client_request *request, bt_tokenizer *tokenizer,
                    bool json, void (*on_lost)(void))
{
    *answer =
        (bt_answer){.request = request, .tokenizer = tokenizer, .json = json, .on_lost = on_lost};
    for (size_t i = 0; i < request->n_stop && !request->include_stop; i++) {
        size_t n = strlen(request->stop[i]);

        if (n - 1 > answer->hold) answer->hold = n - 1;
    }
    answer->prompt_logprobs = json_array();
    answer->prompt_tops     = json_array();
    for (uint32_t i = 0; i < BT_CLIENT_CHOICES; i++) {
        answer->choices[i].ids      = json_array();
        answer->choices[i].logprobs = json_array();
        answer->choices[i].tops     = json_array();
    }
}

void bt_answer_fini(bt_answer *answer)
{
    for (uint32_t i = 0; i < BT_CLIENT_CHOICES; i++) {
        bt_free(answer->choices[i].text);
        json_decref(answer->choices[i].ids);
        json_decref(answer->choices[i].logprobs);
        json_decref(answer->choices[i].tops);
    }
    json_decref(answer->prompt_logprobs);
    json_decref(answer->prompt_tops);
}

/* ---- writing */

/* An answer that cannot be written is not computed any further. */
static void flush_out(bt_answer *a)
{
    if (a->out_error != 0 || (fflush(stdout) == 0 && !ferror(stdout))) return;
    a->out_error = errno != 0 ? errno : EIO;
    a->on_lost();
}

static void show(bt_answer *a, const char *text, size_t n)
{
    if (a->out_error != 0 || n == 0) return;
    fwrite(text, 1, n, stdout);
    flush_out(a);
}

static bool shows_lines(const bt_answer *a) { return !a->json && a->request->logprobs; }

/* Text is written as it comes. */
static bool streams(const bt_answer *a)
{
    return !a->json && !shows_lines(a) && a->request->n_choices <= 1;
}

static void show_line(bt_answer *a, const char *indent, uint32_t id, float logprob)
{
    size_t      n;
    bool        special;
    const char *bytes = bt_tokenizer_bytes(a->tokenizer, id, &n, &special);

    fputs(indent, stdout);
    if (isnan(logprob))
        printf("%10s %7u  ", "-", id);
    else
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
}

static void show_token(bt_answer *a, const bt_client_tokens *t, size_t i)
{
    char indent[32] = "";

    if (a->out_error != 0) return;
    if (t->prompt)
        snprintf(indent, sizeof(indent), "prompt ");
    else if (a->request->n_choices > 1)
        snprintf(indent, sizeof(indent), "%2u: ", t->choice);
    show_line(a, indent, t->ids[i], t->logprobs[i]);
    for (size_t k = 0; t->tops != NULL && k < t->tops[i].n; k++)
        show_line(a, "          ", t->tops[i].ids[k], t->tops[i].logprobs[k]);
    flush_out(a);
}

/* ---- tokens */

/* Room for n more bytes and a terminator. */
static char *reserve(bt_answer *a, bt_answer_choice *c, size_t n)
{
    char *grown;

    if (c->n + n + 1 > c->capacity) {
        grown = bt_realloc(c->text, 2 * (c->n + n + 1), 1);
        if (grown == NULL) {
            a->no_memory = true;
            return NULL;
        }
        c->text     = grown;
        c->capacity = 2 * (c->n + n + 1);
    }
    return c->text + c->n;
}

static void show_ready(bt_answer *a, bt_answer_choice *c, size_t ready)
{
    if (!streams(a) || ready <= c->shown) return;
    show(a, c->text + c->shown, ready - c->shown);
    c->shown = ready;
}

static void add_text(bt_answer *a, bt_answer_choice *c, uint32_t id)
{
    size_t n = 0;
    bool   special;
    char  *to;

    bt_tokenizer_bytes(a->tokenizer, id, &n, &special);
    to = reserve(a, c, 3 * n + 16);
    if (to == NULL) return;
    c->last      = c->n;
    c->ends_mark = special;
    c->n += bt_detokenize(a->tokenizer, &c->state, id, a->request->keep_special, to, 3 * n + 16);
    c->text[c->n] = '\0';
    if (a->request->n_stop == 0)
        show_ready(a, c, c->n);
    else if (c->last > a->hold) /* that a token completes a stop text is said after it */
        show_ready(a, c, c->last - a->hold);
}

static json_t *make_top(const bt_client_top *top)
{
    json_t *list = json_array();

    for (size_t k = 0; k < top->n; k++)
        json_array_append_new(list,
                              json_pack("[I,o]", (json_int_t)top->ids[k], real(top->logprobs[k])));
    return list;
}

void bt_answer_tokens(void *ctx, const bt_client_tokens *t)
{
    bt_answer        *a = ctx;
    bt_answer_choice *c = &a->choices[t->choice];

    for (size_t i = 0; i < t->n; i++) {
        if (!t->prompt) {
            add_text(a, c, t->ids[i]);
            if (a->json) json_array_append_new(c->ids, json_integer(t->ids[i]));
        }
        if (t->logprobs == NULL) continue;
        if (!a->json) {
            show_token(a, t, i);
            continue;
        }
        json_array_append_new(t->prompt ? a->prompt_logprobs : c->logprobs, real(t->logprobs[i]));
        if (t->tops != NULL)
            json_array_append_new(t->prompt ? a->prompt_tops : c->tops, make_top(&t->tops[i]));
    }
}

/* ---- the end */

static double ms(uint64_t ns) { return (double)ns / 1e6; }

/* The stop text is complete in the last token, which may go on behind it and even hold it again. */
static void cut_stop(bt_answer_choice *c, const char *stop, bool include)
{
    size_t n = strlen(stop), from = c->last + 1 > n ? c->last + 1 - n : 0;

    if (n == 0) return;
    for (size_t at = from; at + n <= c->n; at++)
        if (memcmp(c->text + at, stop, n) == 0) {
            c->text[c->n = include ? at + n : at] = '\0';
            return;
        }
}

static bool end_text(bt_answer *a, bt_answer_choice *c, const bt_client_choice *r)
{
    char *to = reserve(a, c, sizeof(c->state.held) * 3 + 16);

    if (to == NULL) return false;
    c->n += bt_detokenize_end(&c->state, to, sizeof(c->state.held) * 3 + 16);
    c->text[c->n] = '\0';
    cut_stop(c, r->matched_stop, a->request->include_stop);
    show_ready(a, c, c->n);
    return true;
}

static void add_choice(const bt_answer *a, json_t *o, const bt_answer_choice *c,
                       const bt_client_choice *r)
{
    json_t *text = json_stringn(c->text, c->n);

    json_object_set_new(o, "text", text != NULL ? text : json_null());
    json_object_set(o, "ids", c->ids);
    json_object_set_new(o, "finish_reason", json_string(r->finish_reason));
    json_object_set_new(o, "completion_tokens", json_integer(r->completion_tokens));
    if (a->request->logprobs) json_object_set(o, "logprobs", c->logprobs);
    if (a->request->logprobs && a->request->top_logprobs > 0)
        json_object_set(o, "top_logprobs", c->tops);
    if (r->has_matched_token)
        json_object_set_new(o, "matched_token", json_integer(r->matched_token));
    if (r->matched_stop[0] != 0)
        json_object_set_new(o, "matched_stop", json_string(r->matched_stop));
}

/* One choice stands in the object itself, several in a list. */
static void print_json(bt_answer *a, const bt_client_result *r)
{
    uint64_t after = r->last_ns - r->first_ns;
    uint32_t rest  = r->completion_tokens > 1 ? r->completion_tokens - 1 : 1;
    json_t  *o = json_object(), *list = json_array();

    if (r->n_choices == 1) add_choice(a, o, &a->choices[0], &r->choices[0]);
    for (uint32_t i = 0; i < r->n_choices && r->n_choices > 1; i++) {
        json_t *one = json_object();

        add_choice(a, one, &a->choices[i], &r->choices[i]);
        json_array_append_new(list, one);
    }
    if (r->n_choices > 1) json_object_set(o, "choices", list);
    json_object_set_new(o, "prompt_tokens", json_integer(r->prompt_tokens));
    json_object_set_new(o, "cached_tokens", json_integer(r->cached_tokens));
    json_object_set_new(o, "completion_tokens", json_integer(r->completion_tokens));
    json_object_set_new(o, "ttft_ms", json_real(ms(r->first_ns)));
    json_object_set_new(o, "ms_per_token", json_real(ms(after) / rest));
    if (a->request->prompt_logprobs) json_object_set(o, "prompt_logprobs", a->prompt_logprobs);
    if (a->request->prompt_logprobs && a->request->top_prompt_logprobs > 0)
        json_object_set(o, "prompt_top_logprobs", a->prompt_tops);
    /* 9 digits tell one float from the next.  A failure stays in stdout's error flag. */
    json_dumpf(o, stdout, JSON_COMPACT | JSON_REAL_PRECISION(9));
    putchar('\n');
    flush_out(a);
    json_decref(list);
    json_decref(o);
}

bt_status bt_answer_finish(bt_answer *answer, const bt_client_result *result)
{
    bt_status st = BT_OK;

    for (uint32_t i = 0; i < result->n_choices; i++)
        if (!end_text(answer, &answer->choices[i], &result->choices[i])) break;
    BT_REQUIRE(!answer->no_memory, BT_ERR_NO_MEMORY, "an answer of %u tokens",
               result->completion_tokens);
    if (answer->json) print_json(answer, result);
    if (streams(answer)) show(answer, "\n", 1);
    for (uint32_t i = 0; i < result->n_choices && result->n_choices > 1; i++) {
        if (answer->json || shows_lines(answer)) break;
        if (answer->out_error == 0)
            printf("--- choice %u (%s)\n%s\n", i, result->choices[i].finish_reason,
                   answer->choices[i].text);
        flush_out(answer);
    }
out:
    return st;
}

void bt_answer_cut(bt_answer *answer)
{
    if (streams(answer) && answer->choices[0].shown > 0) show(answer, "\n", 1);
}

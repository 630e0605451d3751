/* coordinator/intake.h - what a client asks, validated: a request of the relay.
 *
 * The public protocols (dialect.h) say the same things in messages of their own; each fills a
 * bt_ask.  What cannot be done is refused by the field's name before anything is sent: a field is
 * never ignored unless it holds a value that changes nothing; one that the protocol does not have
 * here is refused by its number. */
#ifndef BT_COORDINATOR_INTAKE_H
#define BT_COORDINATOR_INTAKE_H

#include <stdio.h>

#include "coordinator/relay_request.h"
#include "coordinator/stop_strings.h"
#include "model/grammar/grammar.h"

/* The constraints that were taken lately, by hash: clients send the same one with each request, and
 * one that has been read need not be read again. */
enum { BT_INTAKE_KNOWN = 64 };
typedef struct {
    uint64_t seed; /* nobody's to guess */
    uint64_t hashes[BT_INTAKE_KNOWN][2];
    uint32_t n; /* that were put in; the newest overwrite the oldest */
} bt_intake_known;

typedef struct {
    bt_intake_known *known; /* borrowed; NULL: each constraint is read */
    uint32_t         vocab_size, max_context, page_tokens;
    uint64_t         max_tokens; /* of a request that one rank's pool can hold */
    uint64_t         max_prompt; /* likewise, of its prompt */
    bool     tokenizer; /* the model has one: stop strings can be found, replies constrained */
    uint32_t think_begin, think_end; /* 1 + its tokens around thoughts; 0: none */
} bt_intake_limits;

/* What a protocol calls fields that the protocols call differently. */
typedef struct {
    const char *max_tokens, *min_tokens, *logprobs, *prompt_logprobs, *prompt_from;
} bt_ask_names;

/* What a message asks, as it stands there; all borrowed from it.  0 where it says nothing. */
typedef struct {
    const bt_ask_names *names;
    const char         *name; /* request_id */
    bool                stream;
    size_t              n_ids; /* the prompt */
    const uint32_t     *ids;
    float    temperature, top_p, min_p, frequency_penalty, presence_penalty, repetition_penalty;
    uint32_t top_k, n, min_tokens;
    bool     has_max_tokens, has_seed, has_logprobs, has_prompt_logprobs;
    uint32_t max_tokens;
    int32_t  seed, logprobs, prompt_logprobs; /* the last two: how many alternatives */
    uint32_t prompt_from;                     /* the first token that prompt_logprobs are told of */
    bool     ignore_eos, skip_special_tokens;
    size_t   n_stop, n_stop_token_ids, n_bias;
    char   **stop;
    const uint32_t *stop_token_ids;
    /* Of entry i; false: its key is no number, and key_out is that text. */
    bool (*bias)(const void *params, size_t i, const char **key_out, int64_t *id_out,
                 float *bias_out);
    const void *params; /* bias()'s */

    bt_constraint_kind constraint;      /* of the reply; NONE: anything */
    const char        *constraint_name; /* of its field */
    const char        *constraint_text; /* but for CHOICE, which has these: */
    size_t             n_constraint_choices;
    char             **constraint_choices;
    bool constraint_from_first; /* from the first token on, whatever the prompt begins */
    bool thinks; /* the reply begins with thoughts, though the prompt does not say so */
} bt_ask;

/* How the client wants its answer. */
typedef struct {
    bool         stream, logprobs;
    uint32_t     n_top, n;    /* alternatives of each token; choices */
    uint32_t     prompt_from; /* the prompt's logprobs begin there */
    bt_stop_set *stop;        /* owned; NULL: none */
    bool     skip_special; /* special tokens are not part of the text, and match no stop string */
    uint32_t min_tokens;   /* tokens that come before a stop string counts */
} bt_intake_answer;

void bt_intake_answer_free(bt_intake_answer *answer);

enum { BT_INTAKE_TEXT = 256, BT_INTAKE_NAME_MAX = 1024 };

/* Tokens of prompt and reply together: of the model, or that a rank's pool holds. */
uint32_t bt_intake_max_context(const bt_intake_limits *limits);
/* Tokens of the longest prompt that is taken: one token must be able to follow it. */
uint32_t bt_intake_max_prompt(const bt_intake_limits *limits);

/* OK: request_out owns its prompt and the sampling's arrays, answer_out its stop strings; the name
 * is borrowed from ask.  INVALID_ARG (not logged: it is the client's affair) and NO_MEMORY write
 * why into refusal[BT_INTAKE_TEXT]. */
bt_status bt_intake(const bt_ask *ask, const bt_intake_limits *limits,
                    bt_relay_submission *request_out, bt_intake_answer *answer_out, char *refusal);

#define BT_INTAKE_UNLESS(cond, status, ...)                 \
    do {                                                    \
        if (!(cond)) {                                      \
            snprintf(refusal, BT_INTAKE_TEXT, __VA_ARGS__); \
            return status;                                  \
        }                                                   \
    } while (0)
#define BT_INTAKE_REFUSE_UNLESS(cond, ...) BT_INTAKE_UNLESS(cond, BT_ERR_INVALID_ARG, __VA_ARGS__)
#define BT_INTAKE_NEED(cond)               BT_INTAKE_UNLESS(cond, BT_ERR_NO_MEMORY, "out of memory")

/* Inside the intake only (intake_sampling.c): how tokens are chosen, but for max_tokens.  What it
 * took so far is owned by sampling and answer also when it refuses. */
bt_status bt_intake_sampling(const bt_ask *ask, const bt_intake_limits *limits,
                             bt_sampling *sampling, bt_intake_answer *answer, char *refusal);
/* Likewise (intake_constraint.c): what the reply must be. */
bt_status bt_intake_constraint(const bt_ask *ask, const bt_intake_limits *limits,
                               bt_sampling *sampling, char *refusal);

#endif

/* tests/worker/sim_cell.h - a whole cell in one thread: ranks, a coordinator, and a hand-off that
 * reorders, delays and (on request) corrupts, all driven by one seed.
 *
 * The model is a hash: a row's latent is a function of (token, position, layer), and its logits of
 * every latent that the pages hold up to its position.  So a token is right exactly when each row
 * of each layer arrived where it belongs.  With forms by cost or shared replies the hash takes in
 * how a row was computed, and the tokens must follow from the form map that the request was given.
 *
 * Few peaks make texts that repeat themselves, where drafts are right again and again and wrong as
 * often.
 *
 * With lookahead the device chooses tokens, and steps of generated rows run late: some when they
 * are launched, some only when the rank waits for them.
 */
#ifndef BT_TESTS_WORKER_SIM_CELL_H
#define BT_TESTS_WORKER_SIM_CELL_H

#include "worker/worker.h"

enum { SIM_LAYERS = 3, SIM_DIM = 4, SIM_VOCAB = 1100, SIM_CONTEXT = 400, SIM_EOS = 1099 };
enum { SIM_EXPERTS = 8, SIM_TOP_K = 2, SIM_MOE_LAYERS = 2, SIM_MAX_RANKS = 8, SIM_MAX = 80 };

typedef enum {
    SIM_NO_FAULT,
    SIM_BAD_TAG,      /* one message names other pages */
    SIM_BAD_CHECKSUM, /* one message is refused by the transport */
    SIM_TWICE,        /* one message comes twice */
    SIM_LOST          /* one message never comes */
} sim_fault;

/* What a request asked for, and what became of it. */
typedef struct {
    uint64_t id;
    uint64_t number;            /* what ranks call it: another one each time that it is placed */
    uint32_t choice, n_choices; /* n_choices: of the request, itself counted; 0 on the others */
    uint64_t first_id;          /* whose choice it is; its own without choices */
    uint32_t others_at;         /* where choice 1 and on stand in the table */
    uint32_t cut_at;            /* not 0: the client ends this choice with so many tokens */
    uint32_t n_prompt, prompt[SIM_CONTEXT];
    uint32_t max_tokens;
    bool     ignore_eos, eval;
    uint32_t n_eval, eval_tokens[SIM_CONTEXT];
    bool     force; /* experts */
    float    temperature;
    float    repetition; /* 0: no penalty; else it, and others with it */
    uint32_t held; /* not 0: its reply must be small letters and blanks, so many bytes at most, */
    uint32_t held_after; /* 1 + the token that lets that begin; 0: from the start on */
    uint32_t top_logprobs;
    uint32_t
        prompt_logprobs;    /* not 0: it has no keys of pages either, as the coordinator does it */
    const char *cache_salt; /* NULL: none */
    uint64_t    seed;
    uint32_t    stop_token;                       /* SIM_VOCAB: none */
    uint32_t    prefill_rank, decode_rank, epoch; /* epoch: of its placement */

    uint32_t  n_tokens, tokens[SIM_CONTEXT]; /* released in order */
    uint32_t  n_repeats;                     /* tokens that came again, equal */
    uint32_t  n_cached;                      /* prompt tokens that were not computed at first */
    uint32_t  n_refused, n_retracted;        /* times; it is placed again each time */
    bool      resume;                        /* as soon as both ranks have let go */
    bt_finish finish;
    bool      reserved, ticketed, refused, failed, aborted;
    uint32_t  fail_code;
    char      why[256];
    bool      released[SIM_MAX_RANKS];
    bool      lost; /* with its coordinator: nothing may come of it any more */
    uint32_t  rows_seen[SIM_CONTEXT];

    size_t      n_map_bytes; /* of the prompt's form map, once it is known */
    bt_page_map map[SIM_CONTEXT / BT_PAGE_TOKENS + 1];
} sim_request;

typedef struct sim_cell sim_cell;

typedef struct {
    uint32_t  n_prefill, n_decode, n_both;
    uint32_t  n_pages, chunk, max_rows, n_slots;
    size_t    payload_max;
    uint32_t  seed;
    sim_fault fault; /* of the request that comes first */
    bool      by_cost, share;
    bool      lookahead;
    bool      late_words; /* what a rank says comes late, in order, or dies with it */
    uint32_t  speculate;  /* tokens of a draft that is looked up */
    uint32_t  mtp;        /* and of one by the model's own layer; without lookahead */
    uint32_t  n_peaks;    /* not 0: the highest logit is one of the first n tokens' */
} sim_options;

sim_cell *sim_create(const sim_options *opt);
void      sim_destroy(sim_cell *c);
/* The penalties that go with a repetition penalty: they call for what has come. */
#define SIM_FREQUENCY -0.8f
#define SIM_PRESENCE  -0.7f
/* Queues a request; ranks are chosen by its number unless they are set. */
sim_request *sim_add(sim_cell *c, uint32_t n_prompt, uint32_t max_tokens);
/* Makes n choices of it, each with its own tokens; returns choice k by sim_choice(). */
void         sim_split(sim_cell *c, sim_request *r, uint32_t n);
sim_request *sim_choice(sim_cell *c, const sim_request *r, uint32_t choice);
void         sim_start(sim_cell *c, sim_request *r);
void         sim_abort(sim_cell *c, sim_request *r);
/* A few random actions.  False when nothing has anything to do any more: all parked, nothing under
 * way. */
bool sim_act(sim_cell *c);
/* Until everything has ended (true), or too long. */
bool sim_run(sim_cell *c);
/* The rank dies, now or in the middle of its group's next step; the others hear of it. */
void sim_kill(sim_cell *c, uint32_t rank, bool in_a_step);
/* The coordinator dies, now or in the middle of the next step, and with it all its requests;
 * another one takes the ranks. */
void sim_lose_coordinator(sim_cell *c, bool in_a_step);
bool sim_is_dead(const sim_cell *c, uint32_t rank);
bool sim_is_doomed(const sim_cell *c); /* somebody is to die in the next step */
/* Tells every rank to leave and runs until all have. */
bool     sim_shut_down(sim_cell *c);
bool     sim_ended(const sim_request *r);
uint32_t sim_n_ranks(const sim_cell *c);
/* Free, or cached and held by nobody. */
uint32_t sim_free_pages(const sim_cell *c, uint32_t rank);
bool     sim_pool_is_sound(const sim_cell *c, uint32_t rank);
uint64_t sim_steps(const sim_cell *c);
/* Steps that a rank launched while its last one was under way. */
uint64_t sim_steps_ahead(const sim_cell *c);
/* Draws after the first token whose edits came with the step: no history of the device had them. */
uint64_t sim_draws_uncounted(const sim_cell *c);
/* Rows that a draft read and that were not those of their tokens, the last of each page aside. */
uint64_t sim_stale_rows(const sim_cell *c);
void     sim_pass_time(sim_cell *c, uint64_t ns);

/* The tokens that the request must have, from the definition of the model alone. */
void sim_expected(const sim_request *r, uint32_t *tokens_out, uint32_t *n_out, bt_finish *how_out);
/* What EvalRows must hold for the row at `position`: logits of the whole sequence. */
void sim_logits_of(const uint32_t *tokens, uint32_t n, float *logits_out);

#endif

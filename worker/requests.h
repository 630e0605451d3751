/* worker/requests.h - the requests that one rank holds, the oldest first.
 *
 *     prefill rank:  QUEUED -> PREFILL -> SENDING -> gone
 *     decode rank:   RESERVED -> DECODE -> gone
 *     both roles:    RESERVED -> PREFILL -> DECODE -> gone
 *     other choices of n:  WAITING (for the first one's prompt) -> DECODE -> gone
 *     its end, an abort or a failure, at every state:
 *                    DRAINING (a granted message must leave, or a step has rows of it) -> gone
 *     no page left for an older one, or the rank that prefills it is lost, on the decode rank:
 *                    retracted, which ends it here as well
 *
 * Choices of n > 1 are entries of one id on the rank that decodes, one after another: the first has
 * the prompt.  They end together or one by one; only the end of the last one ends the request.
 *
 * A prompt's full pages are shared through the pool's prefix cache: those found there are held from
 * the start, those computed or received are kept there.  A decoding request takes its pages as it
 * grows.  One that was retracted comes back as a new reservation that replays: the tokens that the
 * client has are computed again, in the generated role, and neither chosen nor sent.
 *
 * Everything that the coordinator sends is checked here before anything is taken; the errors are
 * sentences for the client.
 *
 * Threads: the step thread.  Memory: per request, never per token. */
#ifndef BT_WORKER_REQUESTS_H
#define BT_WORKER_REQUESTS_H

#include "model/config.h"
#include "proto/control_msg.h"
#include "worker/constraint.h"
#include "worker/draft.h"
#include "worker/form_map.h"
#include "worker/handoff_in.h"
#include "worker/handoff_out.h"
#include "worker/history.h"

/* What a rank is and what its model can do. */
typedef struct {
    uint32_t               rank, n_ranks;
    uint32_t               n_prefill, n_decode; /* 0 and 0: every rank has both roles */
    const bt_model_config *model;               /* borrowed */
    uint32_t               n_pages;
    const bt_seats        *seats;    /* borrowed: [2] of its cell by now, or NULL: as launched */
    bool            share_generated; /* full pages of generated tokens enter the prefix cache too */
    bool            keeps_maps;      /* that, or forms by cost: requests carry form maps */
    uint32_t        speculate;       /* most tokens of a draft that is looked up; 0: none */
    uint32_t        mtp;             /* likewise, by the model's own layer */
    bt_constraints *constraints;     /* borrowed; NULL: the rank takes none */
} bt_rank_facts;

static inline bool bt_rank_has_both(const bt_rank_facts *f) { return f->n_prefill == 0; }

/* A cell's groups; with both roles there is the first one only. */
enum { BT_GROUP_PREFILL, BT_GROUP_DECODE };

/* The group in which world rank `rank` has a seat; 2: none. */
static inline uint32_t bt_seats_group_of(const bt_seats seats[2], uint32_t rank)
{
    for (uint32_t g = 0; g < 2; g++)
        for (uint32_t i = 0; i < seats[g].n; i++)
            if (seats[g].ranks[i] == rank) return g;
    return 2;
}

/* Whether world rank `rank` sits in the group. */
static inline bool bt_rank_sits(const bt_rank_facts *f, uint32_t group, uint32_t rank)
{
    if (f->seats != NULL) return bt_seats_group_of(f->seats, rank) == group;
    if (bt_rank_has_both(f)) return group == BT_GROUP_PREFILL && rank < f->n_ranks;
    return group == BT_GROUP_PREFILL ? rank < f->n_prefill
                                     : rank >= f->n_prefill && rank < f->n_ranks;
}
static inline uint32_t bt_rank_decode_group(const bt_rank_facts *f)
{
    return bt_rank_has_both(f) ? BT_GROUP_PREFILL : BT_GROUP_DECODE;
}
static inline bool bt_rank_prefills(const bt_rank_facts *f)
{
    return bt_rank_sits(f, BT_GROUP_PREFILL, f->rank);
}
static inline bool bt_rank_decodes(const bt_rank_facts *f)
{
    return bt_rank_sits(f, bt_rank_decode_group(f), f->rank);
}

typedef enum {
    BT_REQUEST_QUEUED,   /* its prompt waits for pages */
    BT_REQUEST_RESERVED, /* its pages wait for rows */
    BT_REQUEST_PREFILL,
    BT_REQUEST_SENDING, /* the prompt is computed, messages are under way */
    BT_REQUEST_WAITING, /* another choice: its own pages wait for the prompt */
    BT_REQUEST_DECODE,
    BT_REQUEST_DRAINING
} bt_request_state;

typedef struct {
    uint64_t         id;
    uint32_t         epoch; /* of its placement */
    bt_request_state state;
    bool             eval;
    bt_sampling      sampling;      /* owned: its arrays */
    bt_constraint   *constraint;    /* counted: what its reply must be; NULL: anything */
    bt_constraint_at constraint_at; /* behind its last known token, but for n_behind */
    bt_history       history;       /* owned; of the sampling that counts tokens, else empty */
    bool             drafts;        /* it may bring rows of a draft when it decodes */
    bool             looks_up;      /* some of them in its own tokens, */
    bt_drafter       drafter;       /* owned: which this has; else empty */
    uint32_t draft[BT_DRAFT_MAX];   /* of the step that is planned or runs; bt_piece.n_draft */
    uint32_t n_mtp, mtp_at;         /* by the model's own layer: so many tokens are there for the
                                       position and on */
    bt_draft_pace pace;             /* of these */
    uint32_t      on_device; /* the device's history that equals it, with what is under way; 0:
                                none */
    uint32_t  n_prompt;
    uint32_t *prompt;     /* owned; NULL on a decode rank */
    uint32_t  peer;       /* world rank of the other end of its hand-off; ours with both roles */
    uint32_t  n_computed; /* positions whose rows are in the pages */
    uint32_t  step_end;   /* n_computed after the steps under way */
    bool      has_piece;  /* of its prompt, in the step that is being planned */

    uint32_t    n_pages;
    bt_page_id *pages; /* owned array; the pages are held from this rank's pool */

    uint64_t       arrival;  /* the smaller, the older */
    uint32_t       n_keys;   /* 0: it does not use the prefix cache */
    bt_prefix_key *keys;     /* owned: of the prompt's full pages */
    uint32_t       n_held;   /* prompt tokens that were found in the cache */
    uint32_t       n_cached; /* goes with its first token: what the prefill rank did not compute */
    uint32_t       n_kept;   /* pages that came from the cache or were offered to it */

    bt_form_map   map;                  /* owned; where the rank keeps maps */
    bt_prefix_key before;               /* the maps of the n_kept pages, for the next one's key */
    uint64_t      prefix_seed;          /* not 0: its generated pages are kept too */
    bt_prefix_key last_key;             /* of the tokens of the n_kept pages */
    uint32_t      tail[BT_PAGE_TOKENS]; /* of the page that is being written, as far as it is */

    uint32_t  n_replay;
    uint32_t *replay;   /* owned: tokens at n_prompt and on, known beforehand */
    uint32_t  n_known;  /* while it decodes: tokens after the prompt that are known */
    uint32_t  n_behind; /* of them, the last ones that its constraint has yet to follow */

    uint32_t n_launched; /* steps under way that have rows of it; step_end is where these end */
    uint32_t n_drawn;    /* of them, how many bring it a token of a choice that decodes */
    uint32_t draw;       /* the last one's number among its step's draws */

    uint32_t        n_choices; /* that its prompt is for; 0 on the others of them */
    uint32_t       *choices;   /* owned [n_choices] */
    bt_first_token *firsts;    /* owned [n_choices]: what follows the prompt in each */
    bool            dropped;   /* this choice has ended before its prompt was there */

    bool     repeat_first; /* the first token goes into the next Tokens message once more */
    uint32_t next_token;   /* the last one known, while it decodes */
    float    next_logprob;

    uint32_t  n_eval;
    uint32_t *eval_tokens; /* owned: positions n_prompt .. n_prompt + n_eval - 1 */
    uint32_t  n_forced;    /* positions with forced experts; 0: free routing */
    uint16_t *forced;      /* owned: [n_moe_layers][n_forced][top_k] ascending, or NULL */

    bt_handoff_out out; /* prefill rank */
    bt_handoff_in  in;  /* decode rank; empty once all rows have come */
} bt_request;

/* Checks the order and makes a request of it; takes the message's arrays (on success).
 * INVALID_ARG: a sentence that says what was expected and found. */
bt_status bt_request_from_reserve(const bt_rank_facts *facts, bt_down_reserve *m,
                                  bt_request **request_out);
/* The same on a prefill rank: a request that waits for pages. */
bt_status bt_request_from_prefill(const bt_rank_facts *facts, bt_down_prefill *m,
                                  bt_request **request_out);
/* With both roles: gives the reserved request its prompt.  INVALID_ARG also when the order does not
 * name the pages of its ticket. */
bt_status bt_request_add_prompt(const bt_rank_facts *facts, bt_request *r, const bt_kv_pool *pool,
                                bt_down_prefill *m);

/* Another choice of the reserved request: what it replays, an equal history, no page.  NO_MEMORY.
 */
bt_status bt_request_add_choice(const bt_request *first, uint32_t choice, uint32_t n_replay,
                                const uint32_t *replay, bt_request **request_out);

/* Takes pages for n_tokens; the prompt's first ones from the prefix cache, as far as it has them,
 * which sets n_held and n_computed.  NO_PAGES (not logged) takes none. */
bt_status bt_request_take_pages(bt_request *r, bt_kv_pool *pool, uint32_t n_tokens);
/* The same for a choice that waits: pages for n_tokens but for the prompt's full ones. */
bt_status bt_request_take_own_pages(bt_request *r, bt_kv_pool *pool, uint32_t n_tokens);
/* The prompt is in `first`'s pages: the waiting choice shares the full ones and copies the rows of
 * the partial one.  NO_MEMORY, DEVICE. */
bt_status bt_request_share_prompt(bt_request *r, const bt_request *first, bt_device *dev,
                                  bt_kv_pool *pool);
/* One more page for n_tokens where they need one.  NO_PAGES (not logged). */
bt_status bt_request_grow(bt_request *r, bt_kv_pool *pool, uint32_t n_tokens);
/* The prompt's next page, which is not begun, where the cache has it by now. */
bool bt_request_find_more(bt_request *r, bt_kv_pool *pool);
/* Offers the full pages among its first n_tokens prompt tokens, which are written, to the cache. */
void bt_request_keep_pages(bt_request *r, bt_kv_pool *pool, uint32_t n_tokens);
/* Rows [start, start + n) of these generated tokens are written: offers what is a full page now. */
void bt_request_keep_generated(bt_request *r, bt_kv_pool *pool, uint32_t start, uint32_t n,
                               const uint32_t *tokens, bt_attn_form form);
void bt_request_release_pages(bt_request *r, bt_kv_pool *pool);
/* Its pages must have been released. */
void bt_request_destroy(bt_request *r);

/* One more generated token, for the penalties and for drafts: each once, also replayed ones, in
 * order.  NO_MEMORY; INVALID_ARG: the constraint can follow no more. */
bt_status bt_request_note(bt_request *r, uint32_t id);
/* A replayed one, which the constraint follows later: n_behind.  NO_MEMORY. */
bt_status bt_request_recall(bt_request *r, uint32_t id);
/* The constraint follows the first of those that it has not.  As note(). */
bt_status bt_request_follow(bt_request *r);

/* Whether token `id`, at absolute `position`, ends the request, and how. */
bt_finish bt_request_finish(const bt_model_config *model, const bt_request *r, uint32_t position,
                            uint32_t id);

/* While it decodes: the positions whose tokens are known, or are under way and not the last. */
static inline uint32_t bt_request_n_ready(const bt_request *r)
{
    bool next = r->n_drawn > 0 && r->n_known + r->n_drawn < r->sampling.max_tokens;

    return r->n_prompt + (r->eval ? r->n_eval : r->n_known + (next ? r->n_drawn : 0));
}

/* Whether its next row would need a page that it does not have. */
static inline bool bt_request_needs_page(const bt_request *r)
{
    return r->state == BT_REQUEST_DECODE && !r->eval &&
           bt_kv_pages_for(bt_request_n_ready(r)) > r->n_pages;
}

/* Positions that it will ever compute rows for. */
static inline uint32_t bt_request_n_tokens(const bt_request *r)
{
    return r->n_prompt + (r->eval ? r->n_eval : r->sampling.max_tokens);
}

/* The table: pointers in order of arrival, also where one comes again. */
typedef struct {
    bt_request **at; /* owned */
    uint32_t     n, capacity;
} bt_requests;

void bt_requests_fini(bt_requests *t); /* the table must be empty */
/* Takes ownership on success.  NO_MEMORY. */
bt_status bt_requests_add(bt_requests *t, bt_request *r);
/* The first of that id. */
bt_request *bt_requests_find(const bt_requests *t, uint64_t id);
/* How many of that id. */
uint32_t bt_requests_count(const bt_requests *t, uint64_t id);
/* Takes it out of the table; the caller owns it again. */
void bt_requests_remove(bt_requests *t, bt_request *r);

#endif

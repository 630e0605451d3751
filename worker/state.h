/* worker/state.h - the inside of a bt_worker, for the files of this folder only. */
#ifndef BT_WORKER_STATE_H
#define BT_WORKER_STATE_H

#include "core/clock.h"
#include "worker/draws.h"
#include "worker/worker.h"

/* google.rpc.Code, as in Failed. */
enum {
    BT_RPC_INVALID_ARGUMENT   = 3,
    BT_RPC_RESOURCE_EXHAUSTED = 8,
    BT_RPC_INTERNAL           = 13,
    BT_RPC_UNAVAILABLE        = 14,
    BT_RPC_DATA_LOSS          = 15
};

/* The rows of a step, and room for everything that describes them. */
typedef struct {
    uint32_t  n_pieces, n_rows[BT_N_ROLES];
    bt_piece *pieces; /* owned, as are the others: [max_rows] */
    bt_span  *spans;
    uint32_t *tokens, *logit_rows;
    uint32_t *fed;                      /* [max_rows] the draw of the step before that is a row's
                                           token, where only the device knows it yet */
    uint32_t *first_logit;              /* [max_rows] of each piece: its first row in `logits` */
    uint32_t *first_draw;               /* [max_rows] of each piece */
    uint32_t *first_mask;               /* [max_rows] of each piece whose reply is constrained */
    bool     *due;                      /* [max_rows] a token follows the piece */
    float    *logits;                   /* [max_rows][vocab_size]; untouched rows cost no memory */
    uint16_t *forced, *chosen;          /* [n_moe_layers][rows of the step][top_k] */
    uint32_t (*group_rows)[BT_N_ROLES]; /* [n_ranks]: groups change; the first group_size count */
    uint32_t (*last_rows)[BT_N_ROLES];  /* likewise */
    uint32_t     n_drafts; /* tokens that the group drafts behind the step, at most, of a request */
    bool         on_device; /* the device chooses the tokens of this step */
    bt_draws     draws;     /* then: what it runs, and where its choices come */
    bt_finish   *finish;    /* [max_rows] of each piece's new token */
    bt_request **held; /* [max_rows] each piece's request, as long as the step has rows of it */
    bt_token    *out;  /* tokens of the step: [out_capacity], which grows */
    uint32_t     n_out, out_capacity;
    bt_step      step;
    uint64_t     from_ns; /* of its launch */
} bt_batch;

/* A token that the host chooses. */
typedef struct {
    const float       *logits;   /* host [vocab_size] */
    const bt_sampling *sampling; /* NULL: its logprob is not wanted */
    bt_sample_how      how;
    bool               found; /* and then, of the token, its id and logprobs */
    bt_token           token;
} bt_host_draw;

/* The tokens that may follow a draw's constraint, while its step is planned or its tokens chosen.
 */
typedef struct {
    const bt_request *request;
    bt_constraint    *constraint; /* NULL: all may */
    bt_constraint_at  at;
    bool              any;  /* some token may follow */
    bool              ends; /* the end may follow */
    bt_status         st;   /* of making it; not logged */
    bool              late; /* it takes long */
} bt_draw_mask;

/* Drafts by the model's own layer, behind a step whose tokens are known (mtp.c). */
typedef struct {
    uint32_t      n;      /* pieces of the step that draft, and so rows, */
    uint32_t     *pieces; /* owned, as are the others [max_rows]: which, ascending, */
    uint32_t     *depth;  /* and tokens that each of these drafts */
    uint32_t     *tokens, *logit_rows;
    bt_span      *spans;
    float        *logits; /* [max_rows][vocab_size] */
    bt_draw_list  draws;  /* where the device chooses, */
    bt_draws      view;   /* and this is what it runs */
    bt_draft_pace pace;   /* of all requests: how one begins */
} bt_mtp;

struct bt_worker {
    bt_worker_config cfg;
    bt_requests      requests;
    bt_scheduler     scheduler;
    bt_batch         batches[2]; /* the second one with lookahead only */
    bt_batch        *batch;      /* of the next step, or the one that is launched last */
    bt_batch        *under_way;  /* launched, and its tokens not yet read; NULL: none is */
    bool             lookahead;
    bt_sampler      *samplers;   /* owned: one for each of the threads that choose here */
    bt_host_draw    *host_draws; /* owned: [host_draws_capacity], which grows; of a step */
    uint32_t         n_samplers, host_draws_capacity;
    bt_draw_mask    *masks;     /* owned: [masks_capacity], which grows; of a step */
    uint32_t        *mask_bits; /* owned: [masks_capacity][mask words] */
    uint32_t         n_masks, masks_capacity;
    uint64_t         masks_from_ns; /* when those of them that take long were begun */
    bt_draw_list     draws;
    bt_mtp           mtp; /* empty where there are none */

    bt_down_regroup seating; /* owned, once it has changed */
    bool            parked, asked, shutdown;
    uint64_t        wake_seen, wake_parked;
    uint64_t        asked_ns; /* by its clock */
    bt_awake        asked_clock, leases_clock;

    uint32_t  layers_done; /* of the step that runs; 0 outside */
    bool      deferred;    /* rows wait for a staging slot */
    bt_status background;  /* first error of the background, to be asked for */
    uint64_t  beat_ns, leases_ns;
    uint64_t  load_ns, load_steps; /* when ExpertLoad was last sent, and after how many steps */
    uint64_t  ready_allocs;        /* of the device's, by create() */
    uint64_t  ended_ns;            /* when the last step was over */
    uint64_t  n_ahead;             /* steps launched while the one before was under way */
    uint64_t  progress, n_steps, handoff_bytes, handoff_pages;
    uint64_t  n_drafts, n_drafted,
        n_draft_right; /* with tokens, and those of them that were drawn */
    uint64_t prefix_asked_tokens, prefix_hit_tokens; /* looked up in the cache, and found */
    uint64_t n_rows_done[BT_N_ROLES];                /* of this rank's requests */
    uint64_t gather_ns, model_ns, sample_ns;         /* phases, for the beat */
    uint64_t phase_from_ns; /* of one under way, what came before is counted; 0: none is */
    uint64_t batch_rows[BT_BEAT_BATCH_BUCKETS], step_times[BT_BEAT_TIME_BUCKETS];
    uint64_t handoff_ns, handoff_times[BT_BEAT_TIME_BUCKETS];
};

static inline uint64_t bt_worker_now_ns(const bt_worker *w)
{
    return w->cfg.links.now_ns(w->cfg.links.ctx);
}
/* To the coordinator, as the link does it. */
static inline bt_status bt_worker_up(bt_worker *w, bt_up *m)
{
    return w->cfg.links.up(w->cfg.links.ctx, m);
}

/* batch.c: the rows of the pieces, written out for the model; and the memory for that. */
bt_status bt_batch_init(bt_batch *b, const bt_worker_config *cfg);
void      bt_batch_fini(bt_batch *b);
/* Into b->step too. */
void bt_batch_fill(bt_batch *b, const bt_worker_config *cfg);
/* An evaluated piece's rows, as EvalRows messages. */
bt_status bt_batch_send_eval(const bt_batch *b, const bt_worker_config *cfg, uint32_t piece);

/* choose.c */
/* Where the device samples, it also chooses in this step, unless logits themselves are wanted. */
bt_status bt_worker_plan_draws(bt_worker *w, bt_batch *b);
/* Whether the request's next choice needs to know its last one: the device does not count its
 * tokens, or not yet. */
static inline bool bt_worker_needs_history(const bt_request *r)
{
    return r->state == BT_REQUEST_DECODE && r->on_device == 0 &&
           bt_sampling_counts_tokens(&r->sampling);
}
/* How the request's token at `position` is chosen. */
bt_sample_how bt_worker_how(const bt_worker *w, const bt_request *r, uint32_t choice,
                            uint32_t position);
/* Choices of the host, of rows that do not depend on each other: room for n of them, which are
 * w->host_draws; and these. */
bt_status bt_worker_take_draws(bt_worker *w, uint32_t n);
void      bt_worker_draw(bt_worker *w, uint32_t n);
/* After the step: chooses every token that is due.  A piece whose request fails loses it. */
bt_status bt_worker_choose_all(bt_worker *w, bt_batch *b);
/* As one message; none of no token. */
bt_status bt_worker_send_tokens(bt_worker *w, uint32_t n, const bt_token *tokens);
/* When the prompt was not computed by role alone, a replay must know how. */
bt_status bt_worker_send_form_map(bt_worker *w, const bt_request *r);

/* How many tokens are drawn after the piece. */
static inline uint32_t bt_batch_n_draws(const bt_batch *b, uint32_t piece)
{
    const bt_piece *p = &b->pieces[piece];

    return p->request == NULL || !b->due[piece] ? 0
           : bt_piece_is_prompt(p)              ? p->request->n_choices
                                                : 1 + p->n_draft;
}
/* A task for each of n, on all threads that choose here. */
void bt_worker_on_all(const bt_worker *w, uint32_t n, bt_cpu_task task, void *ctx);

/* masks.c */
/* Of all draws of the step whose replies are constrained. */
bt_status bt_worker_make_masks(bt_worker *w, bt_batch *b);
/* Begins a list of n masks. */
bt_status bt_worker_take_masks(bt_worker *w, uint32_t n);
/* One more: behind the request's last known token, *first unless that is NULL, and n_draft tokens
 * of its draft.  Of one that is not constrained all tokens may come. */
void bt_worker_add_mask(bt_worker *w, const bt_request *r, const uint32_t *first, uint32_t n_draft);
/* Those that take a millisecond or so; others are UNSUPPORTED. */
void bt_worker_fill_masks(bt_worker *w);
/* Restricts a draw to the list's mask of that number. */
void bt_worker_apply_mask(const bt_worker *w, uint32_t mask, bt_sample_how *how);
/* What making that mask met, because of which no token was found behind it: INVALID_ARG, also when
 * no token may follow; NO_MEMORY. */
bt_status bt_worker_mask_status(const bt_worker *w, uint32_t mask);
/* Gives back what the constraint has learnt, where that is much and nobody stands there; crowded:
 * whatever it is. */
bt_status bt_worker_trim_constraint(bt_worker *w, bt_constraint *c, bool crowded);

/* run.c */
/* The rows of w->batch as the group has agreed; then what the step before has brought.  The step
 * may still be under way when it returns.  After an error none is. */
bt_status bt_worker_run(bt_worker *w);
/* Waits for the step that is under way, if one is, and does what follows from it. */
bt_status bt_worker_catch_up(bt_worker *w);
/* Whether the next plan needs to know what that one brings. */
bool bt_worker_must_catch_up(const bt_worker *w);
/* It comes to nothing; its rows will be computed again. */
bt_status bt_worker_abandon(bt_worker *w);

/* mtp.c */
bt_status bt_mtp_init(bt_mtp *m, const bt_worker_config *cfg);
void      bt_mtp_fini(bt_mtp *m);
/* Which pieces of the step draft behind it: their rows by role, and how many tokens at most, for
 * the plan. */
void bt_worker_plan_mtp(bt_worker *w, const bt_batch *b, bt_plan *plan_out);
/* What each of them says next, after the tokens that the step has brought.  Collective: behind
 * every step that the group runs. */
bt_status bt_worker_run_mtp(bt_worker *w, bt_batch *b);

/* beat.c */
/* Counts a value into the first bucket whose limit, unit * 2^i, is not below it. */
void bt_worker_count(uint64_t *buckets, uint32_t n, uint64_t value, uint64_t unit);
/* Tells the coordinator how the rank is, when that is due. */
bt_status bt_worker_beat(bt_worker *w);
/* Tells it what the experts have run, when that is due.  It waits for the device, so no exchange
 * may be under way there: after a step, or parked. */
bool      bt_worker_load_is_due(const bt_worker *w);
bt_status bt_worker_send_load(bt_worker *w);

/* lifecycle.c */
/* Gives pages to queued prompts, the oldest first. */
bt_status bt_worker_admit(bt_worker *w);
/* Hand-offs go by this clock: while this rank stood still, for half a lease at least, no peer was
 * late. */
uint64_t bt_worker_awake_ns(bt_worker *w);
/* Ends hand-offs that stand still, and what drains. */
bt_status bt_worker_check_leases(bt_worker *w);
/* Sends Failed with this reason, unless it has ended, then ends it as an abort does. */
bt_status bt_worker_fail(bt_worker *w, bt_request *r, uint32_t code, const char *why);
/* What it says of a status. */
static inline uint32_t bt_worker_rpc_code(bt_status st)
{
    return st == BT_ERR_INVALID_ARG ? BT_RPC_INVALID_ARGUMENT : BT_RPC_INTERNAL;
}
/* Ends a request with all its choices in whatever state it is: pages back, messages withdrawn,
 * Released sent, at once or as soon as a granted message has left, or a step that has rows of it is
 * over.  r may be gone afterwards. */
bt_status bt_worker_end(bt_worker *w, bt_request *r);
/* Ends what has been sent in full, and what only waited for that. */
bt_status bt_worker_reap(bt_worker *w);
/* Takes all entries of that id out of the table, pages back, without a word; or this one. */
void      bt_worker_forget(bt_worker *w, uint64_t id);
void      bt_worker_discard(bt_worker *w, bt_request *r);
bt_status bt_worker_send_failed(bt_worker *w, uint64_t request, uint32_t epoch, uint32_t code,
                                const char *why);
bt_status bt_worker_send_released(bt_worker *w, uint64_t request, uint32_t epoch);
/* Stages whatever rows a request has to send.  flush: half empty messages too. */
bt_status bt_worker_pump(bt_worker *w, bt_request *r, bool flush);
/* Whether a request takes more pages as it decodes. */
static inline bool bt_worker_may_grow(const bt_request *r)
{
    return !r->eval && (r->state == BT_REQUEST_RESERVED || r->state == BT_REQUEST_WAITING ||
                        r->state == BT_REQUEST_PREFILL || r->state == BT_REQUEST_DECODE);
}

/* choices.c */
/* The other choices of the order behind `first`, which is in the table, with pages of their own.
 * NO_PAGES (not logged) adds none. */
bt_status bt_worker_add_choices(bt_worker *w, bt_request *first, const bt_down_reserve *m);
/* The prompt is in first's pages, and its first tokens are known: all choices decode, or end.
 * repeat: this rank says the first tokens again.  `first` may be gone afterwards. */
bt_status bt_worker_begin_decode(bt_worker *w, bt_request *first, bool repeat);
/* Ends one choice; with the last one the request. */
bt_status bt_worker_end_choice(bt_worker *w, bt_request *r);
/* The client needs no more of one choice. */
bt_status bt_worker_drop_choice(bt_worker *w, uint64_t request, uint32_t epoch, uint32_t choice);

/* growth.c */
/* Gives each decoding request the page of its next row, the oldest first; where none is left, the
 * youngest request is retracted. */
bt_status bt_worker_grow(bt_worker *w);
/* Says that the request goes back to the coordinator's queue, and ends it here. */
bt_status bt_worker_retract(bt_worker *w, bt_request *r);
/* Prompts that have not begun, or stand at a page's end, skip pages that are in the cache now. */
void bt_worker_find_prefixes(bt_worker *w);
/* The prompt is there and `first` follows it: makes known what is replayed.  PROTOCOL when the
 * client has another token there. */
bt_status bt_worker_adopt_replay(bt_request *r, uint32_t first);
/* Constraints follow what is replayed, as far as the step has time: other ranks wait for it. */
bt_status bt_worker_follow_replays(bt_worker *w);

#endif

/* coordinator/relay_state.h - inside the relay only: what its files share. */
#ifndef BT_COORDINATOR_RELAY_STATE_H
#define BT_COORDINATOR_RELAY_STATE_H

#include "coordinator/held_pages.h"
#include "coordinator/prefix_index.h"
#include "coordinator/relay.h"
#include "coordinator/relay_view.h"
#include "coordinator/table.h"
#include "core/clock.h"

enum { BT_SEATED_PREFILL, BT_SEATED_DECODE, BT_UNSEATED }; /* with both roles: the first */

typedef struct {
    bt_relay_rank limits;
    uint32_t      taken_pages;           /* by placed requests: their own, and held.n_found */
    bt_held_pages held;                  /* of those that decode there */
    uint32_t      n_held;                /* requests that were sent to it and not Released */
    uint32_t      n_choices;             /* of those that decode there */
    uint64_t      prefill_tokens;        /* to be computed there, first token not seen */
    uint64_t      long_tokens;           /* of them: of prompts that take several steps */
    uint32_t      long_pages;            /* of taken_pages: of such prompts */
    bool          passed_over[2];        /* in a look at the queue: a short one, a long one */
    uint32_t      awaited[2];            /* likewise: the pages that it waits for */
    bool          kept;                  /* likewise: for one that waits to decode here */
    bool          cut_off;               /* hand-offs have stood still to it, or from it: all */
    uint64_t      progress, progress_ns; /* the beat's counter and when anything last moved */
    uint64_t      prompt_rows, rows_ns;  /* likewise: rows of prompts, and when one was computed */
    uint64_t      refused_until_ns;

    bt_prefix_index index; /* what its prefix cache probably holds */
    bool            stuck;
    bool            lost;
    uint64_t        reads_ns; /* when it last said that it reads a lost rank's experts; 0: not it */
    bool            has_read; /* all of them */
    bool            ready;    /* a spare: it has loaded what it can */
    bool            prepares; /* for a seat: */
    uint32_t        next_group, next_seat;
    uint32_t        group;    /* where it sits: BT_SEATED_*, or BT_UNSEATED */
    uint64_t        heard_ns; /* when anything came, */
    uint64_t        beat_ns;  /* and a beat, */
    uint64_t        waits_ns; /* and one of a rank that had not got on */
    bool            reported; /* in this epoch of its group: for whom it waits */
    uint32_t        n_blamed; /* how many of its group wait for it */
    uint32_t       *awaits;   /* owned [n_awaits]: for whom, of its group */
    uint32_t        n_awaits;
    uint64_t        n_met; /* exchanges of the epoch that it has been through, as it has reported */
} bt_rank_state;

/* For so many choices more: of one request by itself they take turns. */
static inline bool bt_rank_has_rows(const bt_rank_state *k, uint32_t n_choices)
{
    return k->n_choices == 0 || k->n_choices + n_choices <= k->limits.max_rows;
}

/* A hand-off from the one to the other has stood still. */
typedef struct {
    uint32_t prefill, decode;
    uint64_t until_ns;
} bt_avoided_pair;

enum { BT_AVOIDED_PAIRS = 16 };

struct bt_relay {
    bt_relay_config  cfg;
    bt_relay_events  events;
    bt_rank_state   *ranks; /* owned [n_ranks] */
    uint64_t        *slots; /* owned: of their indexes */
    uint32_t        *gone;  /* owned [n_gone], room for all: the lost ones */
    uint32_t         n_gone;
    uint64_t         ticked_ns; /* the last time */
    uint64_t         awake_ns;  /* since when the coordinator has not stood still */
    bt_relay_list    queue, placed;
    uint32_t         n_in[BT_ENDED + 1]; /* requests by state */
    bt_table         numbers, names;
    uint64_t         next_number, tokens_out, next_scan_ns;
    uint64_t         queued_tokens, queued_text; /* of prompts, and bytes of constraints */
    uint64_t         n_retracted;
    bt_relay_block   blocked;       /* of the queue's first request, when it was last looked at */
    bool             freed;         /* since then room or a request has come, or one has gone */
    uint32_t         looks;         /* of that look: at so many requests, and at ranks for them */
    bool             dear;          /* it took many looks, and some wait */
    uint32_t         n_open[2];     /* prefill ranks that are not passed_over[] yet */
    uint32_t         least_rows;    /* of its ranks: the fewest that one computes in a step */
    uint64_t         moved_ns;      /* when a request was last computed for, or let go of a rank */
    uint64_t         wake[2];       /* of the group: prefill (or all), decode */
    uint32_t         epoch;         /* of the cell: what is placed now */
    bt_seats         seats[2];      /* owned: of the groups */
    uint64_t         verdict_ns[2]; /* when it is decided whom a group waits for; 0: nothing to */
    bool             has_met[2]; /* a report says that all of the group have been in an exchange */
    bt_avoided_pair  avoided[BT_AVOIDED_PAIRS]; /* the oldest first */
    uint32_t         n_avoided;
    grpc_status_code stop_code;
    char             stop_reason[256];
    bool             stopped;
};

static inline bool bt_relay_both(const bt_relay *r) { return r->cfg.n_decode == 0; }
static inline bool bt_relay_prefills(const bt_relay *r, uint32_t rank)
{
    return r->ranks[rank].group == BT_SEATED_PREFILL;
}
static inline bool bt_relay_decodes(const bt_relay *r, uint32_t rank)
{
    return r->ranks[rank].group == (bt_relay_both(r) ? BT_SEATED_PREFILL : BT_SEATED_DECODE);
}

/* It has been given to its ranks to compute: they may speak of it. */
static inline bool bt_relay_runs(const bt_relay_request *q)
{
    return q->state == BT_PREFILL || q->state == BT_DECODE;
}

/* How long somebody has been waited for: while the coordinator itself stood still nobody was late,
 * and from then on they have all of their time. */
static inline uint64_t bt_relay_waited_ns(const bt_relay *r, uint64_t since_ns, uint64_t now_ns)
{
    return bt_since_ns(since_ns > r->awake_ns ? since_ns : r->awake_ns, now_ns);
}

/* The request comes into the queue, or leaves it. */
static inline void bt_relay_count_queued(bt_relay *r, const bt_relay_request *q, bool comes)
{
    uint64_t sign = comes ? 1 : UINT64_MAX;

    r->queued_tokens += sign * q->n_prompt;
    r->queued_text += sign * q->sampling.n_constraint_bytes;
}

/* Of a request that is in the relay's table. */
static inline void bt_relay_turn(bt_relay *r, bt_relay_request *q, bt_relay_request_state state)
{
    r->n_in[q->state]--;
    r->n_in[state]++;
    q->state = state;
}

/* relay_move.c */
/* Its name, number, prefix keys and place in the queue; on an error nothing has changed. */
bt_status bt_relay_enter(bt_relay *relay, bt_relay_request *q);

/* placement.c */
/* Places what there is room for, the oldest first. */
void bt_relay_place(bt_relay *relay, uint64_t now_ns);
/* At once; where many waited in vain the last time with the next tick, one pass for all that has
 * come by then. */
void bt_relay_place_soon(bt_relay *relay, uint64_t now_ns);
/* Bumps the wake number of the rank's group and tells its ranks. */
void bt_relay_wake(bt_relay *relay, uint32_t rank);
/* The number of pages for so many tokens. */
uint32_t bt_relay_pages(const bt_relay *relay, uint64_t n_tokens);
/* The rank holds nothing of the request any more (or never did). */
void bt_relay_free_decode(bt_relay *relay, bt_relay_request *q);
void bt_relay_free_prefill(bt_relay *relay, bt_relay_request *q);
/* The prompt is done, or will never be. */
void bt_relay_prefill_done(bt_relay *relay, bt_relay_request *q);
/* It is done: its first token has come, and others find its pages. */
void bt_relay_prompt_done(bt_relay *relay, bt_relay_request *q);
/* A choice's next token begins a page, which counts as taken; or the choice has ended. */
void bt_relay_grew(bt_relay *relay, bt_relay_request *q);
/* Pages of the choice's reply that its decode rank probably caches. */
void bt_relay_learn(bt_relay *relay, const bt_relay_request *q, uint32_t choice);
/* A decode rank's answer to a Reserve. */
void bt_relay_ticket(bt_relay *relay, uint32_t rank, bt_up *m, uint64_t now_ns);

/* avoided.c */
/* The request's hand-off has stood still: nothing is placed on its two ranks together for a while.
 * False: no others are left that could hold it. */
bool bt_relay_avoid(bt_relay *relay, const bt_relay_request *q, uint64_t now_ns);
/* Before ranks are chosen: a pair's time may be over, and ranks lost.  Says which ranks are cut
 * off; where no pair would be left all are tried again. */
void bt_relay_look_at_avoided(bt_relay *relay, uint64_t now_ns);
/* Whether nothing goes from the one to the other; decode: a rank, or below 0. */
bool bt_relay_is_avoided(const bt_relay *relay, uint32_t prefill, int decode);
/* Of the ranks of the other role that are left, those that it hands nothing over to or from. */
uint32_t bt_relay_n_avoided(const bt_relay *relay, uint32_t rank);

/* relay_orders.c: all that an order says but for its ticket.  NO_MEMORY: what is there already goes
 * with it. */
bt_status bt_relay_fill_reserve(const bt_relay *relay, const bt_relay_request *q,
                                bt_down_reserve *m);
bt_status bt_relay_fill_prefill(const bt_relay_request *q, bt_down_prefill *m);

/* relay.c */
/* What an ended request still has is freed once no rank holds anything of it. */
void bt_relay_settle(bt_relay *relay, bt_relay_request *q);
/* The placement is over: what it still holds stays behind as an ended request, and the request goes
 * back to the queue, to the place of its first arrival.  abort_decode: the decode rank does not
 * know. */
void bt_relay_requeue(bt_relay *relay, bt_relay_request *q, bool abort_decode, uint64_t now_ns);

/* Ends it with its one end(); what its ranks hold is kept until bt_relay_settle(). */
void bt_relay_finish(bt_relay *relay, bt_relay_request *q, const bt_relay_end *end);
/* only_choice: 0 for all of it, else 1 + the choice. */
void bt_relay_send_abort(bt_relay *relay, const bt_relay_request *q, uint32_t rank,
                         uint32_t only_choice);

/* Each refusal gives a request another number: the log is told the last one, by the one it knows.
 */
void bt_relay_log_number(bt_relay_request *q);
BT_PRINTF(4, 5)
void bt_relay_end_request(bt_relay *relay, bt_relay_request *q, grpc_status_code code,
                          const char *fmt, ...);
void bt_relay_end_no_memory(bt_relay *relay, bt_relay_request *q);

/* relay_move.c */
void bt_relay_forget_keys(bt_relay_request *q);
void bt_relay_forget_matches(bt_relay_request *q);

/* relay_tokens.c */
void bt_relay_token(bt_relay *relay, uint32_t rank, const bt_token *t, uint64_t now_ns);
/* What came before its turn: nobody waits for it any more, or it will be said again. */
void bt_relay_forget_early(bt_relay_request *q);
/* Whether all are of the vocabulary. */
bool bt_relay_has_ids(const bt_relay *relay, size_t n, const uint32_t *ids);

/* relay_ranks.c */
/* seats NULL: as launched.  NO_MEMORY. */
bt_status bt_relay_seat_ranks(bt_relay *relay, const bt_down_regroup *seats);
/* A rank's report of an expired wait. */
void bt_relay_expired(bt_relay *relay, uint32_t rank, bt_up *m, uint64_t now_ns);
/* The rank reads experts of a lost one, and says so from time to time, and when it has them all. */
void bt_relay_reads(bt_relay *relay, uint32_t rank, bool has_read, uint64_t now_ns);
/* Since the last tick; what the ranks have said meanwhile has not all been heard: nobody's beat or
 * report is late for that. */
void bt_relay_stood_still(bt_relay *relay, uint64_t still_ns, uint64_t now_ns);
/* Ranks from which too little is heard, and groups that have reported. */
void bt_relay_find_stuck(bt_relay *relay, uint64_t now_ns);
void bt_relay_decide(bt_relay *relay, uint64_t now_ns);

#endif

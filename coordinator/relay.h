/* coordinator/relay.h - requests from their arrival to their terminal status.
 *
 * The request state machine and placement: plain code that is given the time and the ranks'
 * messages, and calls back with what is to be sent.  It runs unchanged in a simulation.
 *
 *   queued --Reserve--> reserving --Ticket, Prefill--> prefill --first token--> decode --> ended
 *      ^-------- ticket refused ---'                                                |
 *      ^--- retracted, or a rank of it lost: placed again, the tokens sent so far are replayed -'
 *
 * From every state: abort, a rank's Failed, a deadline, the cell's end.  An ended request has had
 * its one end() and is kept only until each rank that holds something of it has said Released:
 * until then its pages count as taken.  A number is used for one placement; a request that is
 * placed again gets a new one, so that late messages about the old placement match no request. What
 * a retracted placement still holds is kept like an ended request.
 *
 * A request has n choices, which share its prompt, its placement and its end; each has tokens of
 * its own, and ends by itself before the request does.
 *
 * Callbacks are made from inside the calls and must not call the relay. */
#ifndef BT_COORDINATOR_RELAY_H
#define BT_COORDINATOR_RELAY_H

#include <grpc/status.h>

#include "coordinator/prefix_index.h"
#include "coordinator/relay_request.h"
#include "proto/control_msg.h"

typedef struct bt_relay bt_relay;

typedef struct {
    uint32_t n_pages, max_rows;
    bool     lost; /* it has not come back with its cell */
} bt_relay_rank;

/* Bytes of constraints that may wait: of a thousand of the largest. */
#define BT_QUEUED_TEXT_MAX (256ull << 20)

typedef struct {
    uint32_t               n_ranks, n_prefill, n_decode; /* 0 and 0: every rank has both roles */
    uint32_t               n_spares;                     /* the last of n_ranks */
    const bt_relay_rank   *ranks;                        /* [n_ranks], copied */
    uint32_t               epoch; /* above 0; the ranks' groups were formed in the one before */
    uint32_t               page_tokens, vocab_size;
    const bt_down_regroup *seats; /* who sits where, borrowed by create(); NULL: as launched */
    uint64_t               first_number; /* of requests: above those of the coordinator before */
    bool                   replace;      /* a rank that is stuck is removed, and the others go on */
    uint64_t verdict_ns;      /* from the first report of an expired wait to the decision */
    uint64_t queue_tokens;    /* prompt tokens that may wait */
    uint64_t queue_ns;        /* how long a request may wait for its ticket */
    bool     share_generated; /* ranks cache pages of replies: they get what names them */
    bool     speculates;      /* decode ranks make drafts: they get the prompts */
    uint64_t rank_quiet_ns; /* a rank that holds a request and makes no progress so long is stuck */
    uint64_t stall_ns;      /* a request that has begun and has not moved for so long has failed */
    uint64_t prefix_seed;   /* of the keys of cached prefixes */
    uint32_t prefill_window; /* prompt tokens sent ahead to one prefill rank; prompts of which one
                              * step computes the rest do not wait for longer ones */
} bt_relay_config;

typedef struct {
    grpc_status_code code;    /* OK: every choice has had its last token */
    bt_finish        finish;  /* of the choice that ended last */
    const char      *message; /* borrowed during the call */
} bt_relay_end;

/* What is heard of a request, with the client that submitted it. */
typedef struct {
    /* Each token of a choice once, in order.  Returns token->finish, or BT_FINISH_STOP_STRING: the
     * choice ends with this token. */
    bt_finish (*token)(void *client, const bt_token *token);
    /* Logprobs of prompt tokens, all of them before the first token; again after a retraction. */
    void (*prompt)(void *client, const bt_up_prompt_logprobs *m);
    /* The prompt has gone to a prefill rank; again for each placement. */
    void (*placed)(void *client);
    /* Once for each submitted request; the client is not named again. */
    void (*end)(void *client, const bt_relay_end *end);
} bt_client_events;

typedef struct {
    bt_client_events client;
    void (*send)(void *ctx, uint32_t rank, bt_down *m); /* takes ownership of what m owns */
    /* The rank is stuck.  With `replace` it has been removed: it is to be shut out. */
    void (*stuck)(void *ctx, uint32_t rank, const char *reason);
    void *ctx;
} bt_relay_events;

typedef struct {
    uint32_t n_waiting, n_running, max_running;
    uint64_t used_tokens, total_tokens; /* of KV on the decode ranks */
    uint64_t tokens_out;                /* ever */
    uint64_t retracted;                 /* placements, ever */
} bt_relay_loads;

/* NO_MEMORY. */
bt_status bt_relay_create(const bt_relay_config *config, const bt_relay_events *events,
                          bt_relay **relay_out);
void      bt_relay_destroy(bt_relay *relay); /* no callbacks: end what is open before, by stop() */

/* Whether a decode rank could ever hold the prompt and max_tokens more of each choice (the prompt's
 * full pages once), and a prefill rank the prompt. */
bool bt_relay_could_hold(const bt_relay *relay, uint32_t n_prompt, uint32_t max_tokens,
                         uint32_t n_choices);
/* prompt + max_tokens that any rank can ever hold, and the longest prompt. */
uint64_t bt_relay_max_tokens(const bt_relay *relay);
uint64_t bt_relay_max_prompt(const bt_relay *relay);

/* Refuses a client's request, in functions with a code_out.  It is told to the client, who may send
 * many, and counted; nothing is logged.  The code says what kind of error it is, so the status's
 * text does not. */
#define BT_REFUSE_UNLESS(cond, status, code, ...) \
    do {                                          \
        if (!(cond)) {                            \
            st        = (status);                 \
            *code_out = (code);                   \
            bt_error_keep("", __VA_ARGS__);       \
            goto out;                             \
        }                                         \
    } while (0)

/* Takes ownership of what request owns and will call end() once; or, when not OK, neither:
 * *code_out and bt_error_text() say why.  *number_out is for the log. */
bt_status bt_relay_submit(bt_relay *relay, bt_relay_submission *request, void *client,
                          uint64_t now_ns, uint64_t *number_out, grpc_status_code *code_out);
/* Ends what client submitted; nothing when that has ended. */
void bt_relay_abort_client(bt_relay *relay, const void *client, const char *name,
                           const char *reason);
/* Ends the live request of that name; false: there is none. */
bool bt_relay_abort_name(bt_relay *relay, const char *name, const char *reason);
/* Ends every request and refuses new ones, with this code and reason.  Sends nothing. */
void bt_relay_stop(bt_relay *relay, grpc_status_code code, const char *reason);

/* Any message of an attached rank after the cell is complete; m is borrowed, its arrays may be
 * taken. */
void bt_relay_message(bt_relay *relay, uint32_t rank, bt_up *m, uint64_t now_ns);
/* The rank has died, or its stream has: the others hear of the new epoch, what it had is placed
 * again.  With `replace` only; once. */
void bt_relay_lose(bt_relay *relay, uint32_t rank, uint64_t now_ns);
/* The ranks come from another coordinator, and hold nothing any more: both groups begin anew in
 * epochs above all that it can have spoken of. */
void bt_relay_begin_anew(bt_relay *relay, uint64_t now_ns);
/* A spare has loaded: at first, or for the seat that it was told to prepare for. */
void bt_relay_ready(bt_relay *relay, uint32_t rank, uint64_t now_ns);
/* Ranks that sit in the prefill group (or the one of both roles), and in the decode group; where
 * one has nobody, requests wait. */
void bt_relay_count_seats(const bt_relay *relay, uint32_t taken_out[2]);
/* Requests change relays when a cell drains, is lost, or another one has room (relay_move.c).  What
 * is taken out is owned by the caller until another relay adopts it.  NULL: there is none left.
 *
 * take_queued: this one, which waits there.  take_open: any open one; the ranks of the relay have
 * gone: they are not told, and what they held of ended ones is forgotten. */
bt_relay_request *bt_relay_take_queued(bt_relay *relay, bt_relay_request *q);
bt_relay_request *bt_relay_take_open(bt_relay *relay);
/* Takes ownership, unless out of memory. */
bt_status bt_relay_adopt(bt_relay *relay, bt_relay_request *q, uint64_t now_ns);
bool      bt_relay_has_name(const bt_relay *relay, const char *name);
/* The request that has waited longest; NULL: none.  `next` is the next one. */
bt_relay_request *bt_relay_first_queued(const bt_relay *relay);
/* How full the cell's ranks are, lost ones and spares aside: 0 with nothing to do; from 1 on a
 * request would probably wait. */
double bt_relay_pressure(const bt_relay *relay);
/* Ranks could hold the request, one of any relay, when they are idle.  Not always so of its own
 * relay when ranks have pools of different sizes: the largest may have been lost, or hand nothing
 * over to one another. */
bool bt_relay_could_ever_hold(const bt_relay *relay, const bt_relay_request *q);
/* They could take it now. */
bool bt_relay_has_room(const bt_relay *relay, const bt_relay_request *q, uint64_t now_ns);
/* What a prompt with these keys would add to that: less where a rank probably has its prefix. */
double bt_relay_pressure_of(const bt_relay *relay, uint32_t n_prompt, uint32_t n_keys,
                            const bt_page_key *keys);

/* Pages of prompts that the cell's ranks were given and did not have, since turns began: of equal
 * cells that with the fewest is next.  They begin anew when another one comes, which else would be
 * next until it had caught up; ranks of a cell do likewise. */
uint64_t bt_relay_new_pages(const bt_relay *relay);
void     bt_relay_begin_turns(bt_relay *relay);

/* Spares that could take a seat. */
uint32_t bt_relay_n_spares(const bt_relay *relay);
/* Deadlines and placement; call it several times a second. */
void bt_relay_tick(bt_relay *relay, uint64_t now_ns);

void bt_relay_get_loads(const bt_relay *relay, bt_relay_loads *loads_out);

#endif

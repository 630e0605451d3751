/* tests/worker/sim_state.h - what the files of the simulated cell share: sim_model.c (what is
 * computed), sim_steps.c (when), sim_mtp.c (drafts behind a step), sim_links.c (a rank's hand-off),
 * sim_coordinator.c (who orders), sim_loss.c (who dies), sim_cell.c (whose turn it is). */
#ifndef BT_TESTS_WORKER_SIM_STATE_H
#define BT_TESTS_WORKER_SIM_STATE_H

#include "core/alloc.h"
#include "core/clock.h"
#include "tests/worker/sim_cell.h"

enum { SIM_MAX_FLIGHT = 4096, SIM_PREFIX_SEED = 77, SIM_MAX_LATE = 2 };
enum { SIM_MAX_PAGES = SIM_CONTEXT / BT_PAGE_TOKENS + 1 };

/* A message of the hand-off that is under way. */
typedef struct {
    bt_page_message m;
    uint32_t        from, to;
    uint8_t        *payload;
    bool            granted, delivered, refuse;
} sim_flight;

/* A step that has been launched, with all that it needs. */
typedef struct {
    bt_step        step;
    bt_span        spans[SIM_CONTEXT];
    bt_page_id     pages[SIM_CONTEXT][SIM_MAX_PAGES];
    uint32_t       generations[SIM_CONTEXT][SIM_MAX_PAGES];
    uint32_t       tokens[SIM_CONTEXT], fed[SIM_CONTEXT], logit_rows[SIM_CONTEXT];
    bt_draws       draws;
    bt_draw        draw[SIM_CONTEXT];
    bt_logit_edit *edits; /* owned */
    uint32_t       ids[SIM_CONTEXT];
    float          logprobs[SIM_CONTEXT];
    bool           done;
    bt_status      st;
} sim_late_step;

bt_tokenizer *sim_tokenizer(void); /* the demo model's, whose first tokens are the cell's */

typedef struct sim_rank sim_rank;
struct sim_rank {
    sim_cell     *cell;
    uint32_t      rank, group; /* group 0: prefill or all, 1: decode */
    bt_worker    *worker;
    bt_kv_pool   *pool;
    bt_down       inbox[1024];
    uint32_t      inbox_at, n_inbox;
    bt_up         said[64]; /* to the coordinator, which has not heard it yet */
    uint32_t      n_said;
    uint32_t      n_slots_used;
    bool          waiting, left; /* waiting: in the all-gather */
    bool          dead;
    uint32_t      epoch;  /* of its group, as it has heard */
    uint32_t      cut_at; /* not 0: its next step comes to nothing in that layer (from 1) */
    bool          is_cut; /* it has */
    bt_plan       plan;
    sim_late_step late[SIM_MAX_LATE]; /* under way, in order */
    uint32_t      n_late;
    sim_late_step over, draft; /* the step that is over, and a draft behind it */
    uint32_t      n_behind;    /* of these */
    uint64_t      n_draft_calls;
    uint32_t      known[SIM_CONTEXT];    /* the first draft's rows: their positions */
    uint32_t      last_ids[SIM_CONTEXT]; /* chosen by the step that ran last */
};

struct sim_cell {
    sim_options     opt;
    bt_model_config model;
    bt_device      *dev;
    bt_device_ops   ops; /* its own, or also a device's that chooses tokens */
    bt_constraints *constraints;
    bt_sampler      sampler;
    uint64_t        n_ahead, n_uncounted, n_stale;
    uint32_t        n_ranks, group_size[2], group_first[2];
    uint64_t        wake[2];
    uint32_t        epoch, group_epoch[2];
    bool            forsaken; /* the coordinator dies in the next step */
    uint32_t        doomed;   /* 1 + the rank that dies in its group's next step; 0: none */
    sim_rank        ranks[SIM_MAX_RANKS];
    sim_request     requests[SIM_MAX];
    uint32_t        n_requests;
    sim_flight      flights[SIM_MAX_FLIGHT];
    uint32_t        n_flights, n_sent_of_first;
    uint64_t        now, random, n_steps;
    bool            broken;
};

/* ---- sim_cell.c */
/* 0 .. n-1, from the cell's seed. */
uint32_t sim_roll(sim_cell *c, uint32_t n);
/* A rank stops with an error: the cell is broken. */
void sim_check(sim_cell *c, bt_status st);

/* ---- sim_model.c */
uint64_t sim_mix(uint64_t h);
bool     sim_keeps_maps(const sim_cell *c);
/* how: 0, or sim_how_of(). */
void            sim_latent(uint32_t token, uint32_t position, uint32_t layer, uint32_t how,
                           bt_bf16 row[SIM_DIM]);
uint64_t        sim_add_row(uint64_t h, const bt_bf16 row[SIM_DIM]);
extern uint32_t sim_n_peaks; /* of the cell that runs */
void            sim_fill_logits(uint64_t h, float *logits);
/* What a row was computed with beside its role's own. */
uint32_t sim_how_of(bool generated, bool absorbed);

/* ---- sim_steps.c */
/* Links of a worker: steps of the model that is a hash. */
bt_status sim_launch(void *ctx, bt_step *step);
bt_status sim_await(void *ctx);
/* What the step holds, with the pages of its rows as they are now. */
void sim_keep_step(const sim_rank *r, sim_late_step *l, const bt_step *step);
/* A page that a step reads and writes is nobody else's. */
void sim_expect_pages_kept(const sim_rank *r, const sim_late_step *l);
/* The draws of row `row`, whose tokens are for `position`. */
void sim_draw_for(sim_rank *r, sim_late_step *l, uint32_t row, const bt_span *span,
                  uint32_t position, const float *logits);
/* What a device has that chooses tokens: the steps do it. */
extern const bt_sampling_ops sim_sampling;

/* ---- sim_mtp.c */
/* A link of a worker. */
bt_status sim_draft(void *ctx, bt_step *step);

/* ---- sim_links.c */
/* All links of a rank's worker. */
bt_worker_links sim_links(sim_rank *r);
void            sim_drop_flight(sim_cell *c, uint32_t i);

/* ---- sim_coordinator.c */
/* A link of a worker: its message is on the way. */
bt_status sim_up(void *ctx, bt_up *u);
/* What the coordinator does with the oldest of the rank's messages that it has not heard. */
void sim_hear(sim_rank *r);
/* Nobody will hear them. */
void sim_forget_said(sim_rank *r);
/* Queues a message of the coordinator for the rank; takes ownership. */
void sim_give(sim_cell *c, uint32_t rank, const bt_down *m);
/* Places a retracted or lost request again as soon as both ranks have let go. */
void sim_resume(sim_cell *c, sim_request *q);

/* ---- sim_loss.c */
/* The rank follows a Regroup: messages for the dead are gone, as the transport does it. */
void sim_follow(sim_cell *c, sim_rank *r, const bt_down_regroup *m);

#endif

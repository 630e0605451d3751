/* proto/control_msg.h - messages of baton.control.v1 as plain structs, and back.
 *
 * Worker threads and the scheduler see these structs only; protobuf stays inside proto/.  The
 * fields and their meaning are those of control.proto, which is the reference.  A message's arrays
 * and strings are owned by it: bt_up_free() / bt_down_free(). */
#ifndef BT_PROTO_CONTROL_MSG_H
#define BT_PROTO_CONTROL_MSG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { BT_CONTROL_PROTOCOL = 1 }; /* of Hello */
enum { BT_TOP_LOGPROBS_MAX = 20, BT_CHOICES_MAX = 64, BT_EXPERT_LOAD_MAX = 1024 };
enum { BT_PEER_LOAD_MAX = 65536 };
/* Of one request. */
enum { BT_STOP_TOKENS_MAX = 1024, BT_LOGIT_BIASES_MAX = 1024 };
#define BT_WAKE_MAX  (UINT64_MAX / 2) /* no counter gets there */
#define BT_EPOCH_MAX (UINT32_MAX / 2) /* nor this one */

typedef struct {
    float     temperature;
    uint64_t  seed;
    uint32_t  max_tokens, min_tokens;
    uint32_t  choice; /* of n: another stream of random numbers; set by the rank */
    bool      ignore_eos, logprobs;
    uint32_t  top_logprobs;    /* at most BT_TOP_LOGPROBS_MAX */
    uint32_t  prompt_logprobs; /* 0: none, else one more than the number of alternatives */
    uint32_t  top_k;
    float     top_p, min_p, frequency_penalty, presence_penalty, repetition_penalty;
    uint32_t  n_stop, n_bias;
    uint32_t *stop_tokens;      /* [n_stop] */
    uint32_t *bias_ids;         /* [n_bias], distinct */
    float    *biases;           /* [n_bias] */
    uint32_t  constraint_kind;  /* of control.proto's Constraint; 0: none */
    uint32_t  constraint_after; /* 0, or 1 + a token */
    uint32_t  n_constraint_bytes;
    char     *constraint; /* [n_constraint_bytes] */
} bt_sampling;

typedef struct {
    uint32_t id, generation;
} bt_page_ref;

enum { BT_PREFIX_KEY_BYTES = 16, BT_PAGE_MAP_BYTES = 16, BT_CELL_NAME_MAX = 63 };

typedef enum {
    BT_FINISH_NONE,
    BT_FINISH_EOS,
    BT_FINISH_STOP_TOKEN,
    BT_FINISH_LENGTH,
    BT_FINISH_STOP_STRING /* by the coordinator's own search: never on this wire */
} bt_finish;

typedef struct {
    uint64_t  request;
    uint32_t  choice, position, epoch, id;
    float     logprob;
    bt_finish finish;
    uint32_t  n_top;
    uint32_t  top_ids[BT_TOP_LOGPROBS_MAX];
    float     top_logprobs[BT_TOP_LOGPROBS_MAX];
    uint32_t  cached;
} bt_token;

typedef enum {
    BT_UP_HELLO,
    BT_UP_PROGRESS,
    BT_UP_READY,
    BT_UP_BEAT,
    BT_UP_TICKET,
    BT_UP_TOKENS,
    BT_UP_FAILED,
    BT_UP_RELEASED,
    BT_UP_WAKE_REQUEST,
    BT_UP_EVAL_ROWS,
    BT_UP_RETRACTED,
    BT_UP_PROMPT_LOGPROBS,
    BT_UP_EXPIRED,
    BT_UP_DRAIN,
    BT_UP_FORM_MAP,
    BT_UP_EXPERT_LOAD,
    BT_UP_PEER_LOAD,
    BT_UP_LEAVING
} bt_up_kind;

/* A group's seats: the world rank in each, or BT_NO_RANK. */
#define BT_NO_RANK UINT32_MAX
typedef struct {
    uint32_t  epoch, n;
    uint32_t *ranks; /* [n] */
} bt_seats;

typedef struct {
    uint32_t  epoch;
    bt_seats  groups[2]; /* prefill (or all, with both roles), decode */
    bool      prepare;
    uint32_t  n_gone;
    uint32_t *gone; /* [n_gone] ranks that are not there any more */
} bt_down_regroup;

typedef struct {
    uint32_t  protocol, rank, n_ranks, n_prefill, n_decode;
    char     *host, *cell, *left_out, *version;
    uint32_t  pid;
    uint64_t  model_fingerprint;
    char     *arithmetic;
    uint32_t  n_pages, page_tokens;
    uint32_t  max_rows, epoch, vocab_size, max_context, n_eos;
    uint32_t *eos_tokens;
    int64_t   bos_token, pad_token;
    char     *model_type, *architecture, *default_sampling_json;
    uint64_t  weight_bytes;
    uint32_t  n_spares;
    bool      share_generated, speculates;
    uint32_t  mtp;
    uint64_t  config_hash;
    /* Of a rank that has been welcomed before; else zeroes. */
    uint64_t        incarnation, prefix_seed;
    bt_down_regroup seats;
} bt_up_hello;

enum { BT_BEAT_BATCH_BUCKETS = 13, BT_BEAT_TIME_BUCKETS = 16, BT_BEAT_TIME_NS = 125000 };

typedef struct {
    uint64_t progress, steps, handoff_bytes, handoff_pages;
    uint64_t gather_ns, model_ns, sample_ns, waited_ns, prompt_rows, generated_rows;
    uint64_t prefix_asked_tokens, prefix_hit_tokens, draft_tokens, draft_right_tokens, drafts,
        at_ns;
    uint64_t batch_rows[BT_BEAT_BATCH_BUCKETS], step_times[BT_BEAT_TIME_BUCKETS];
    uint64_t handoff_ns, handoff_times[BT_BEAT_TIME_BUCKETS];
    uint32_t n_requests, pages_free, pages_total, pages_cached, slots_quarantined;
} bt_up_beat;

typedef struct {
    uint64_t request;
    uint32_t epoch, position, n_rows;
    size_t   n_logit_bytes, n_expert_bytes;
    void    *logits, *experts;
} bt_up_eval_rows;

typedef struct {
    uint64_t  request;
    uint32_t  epoch, position, n, n_top;
    float    *logprobs;     /* [n] */
    uint32_t *top_ids;      /* [n][n_top] */
    float    *top_logprobs; /* [n][n_top] */
} bt_up_prompt_logprobs;

/* What went between a rank and a peer, ever (parallel/world.h has the same as bt_traffic). */
typedef struct {
    uint64_t rank, waited_ns, handoff_bytes, handoff_ns;
} bt_peer_load;

/* From a worker to the coordinator. */
typedef struct {
    bt_up_kind kind;
    union {
        bt_up_hello hello;
        struct {
            uint64_t done_bytes, total_bytes;
        } progress;
        bt_up_beat beat;
        struct {
            uint64_t     request;
            uint32_t     epoch, n_pages, held;
            bt_page_ref *pages;
            bool         refused;
            size_t       n_form_map_bytes;
            void        *form_map;
        } ticket;
        struct {
            uint64_t request;
            uint32_t epoch;
            size_t   n_form_map_bytes;
            void    *form_map;
        } form_map;
        struct {
            uint32_t  n;
            uint64_t *rows; /* [n] by expert */
        } expert_load;
        struct {
            uint64_t      at_ns;
            uint32_t      n;
            bt_peer_load *peers; /* [n] */
        } peer_load;
        struct {
            uint32_t  n;
            bt_token *tokens;
        } tokens;
        struct {
            uint64_t request;
            uint32_t epoch, code;
            char    *message;
            bool     stands_still;
        } failed;
        struct {
            uint64_t request;
            uint32_t epoch;
        } released, retracted;
        struct {
            uint64_t wake;
        } wake_request;
        struct {
            uint32_t  epoch, n;
            uint32_t *ranks; /* [n] */
            char     *what;
            uint64_t  n_met; /* exchanges that it has been through */
        } expired;
        bt_up_eval_rows       eval_rows;
        bt_up_prompt_logprobs prompt_logprobs;
        struct {
            char *reason;
        } leaving;
    } u;
} bt_up;

typedef enum {
    BT_DOWN_WELCOME,
    BT_DOWN_RESERVE,
    BT_DOWN_PREFILL,
    BT_DOWN_ABORT,
    BT_DOWN_WAKE,
    BT_DOWN_REGROUP,
    BT_DOWN_SHUTDOWN
} bt_down_kind;

typedef struct {
    uint64_t    request;
    uint32_t    epoch, n_prompt, prefill_rank, n_eval;
    bt_sampling sampling;
    uint32_t   *prompt; /* [n_prompt] or NULL */
    bool        eval;
    uint32_t   *eval_tokens;
    size_t      n_eval_expert_bytes;
    void       *eval_experts;
    size_t      n_prefix_key_bytes;
    void       *prefix_keys;
    uint64_t    arrival;
    uint32_t    n_choices;
    uint32_t   *choices; /* [n_choices] ascending; none: choice 0 */
    uint32_t    n_replay;
    uint32_t   *replay;         /* of all choices */
    uint32_t   *replay_lengths; /* [n_choices], or NULL: one choice has all of it */
    size_t      n_form_map_bytes;
    void       *form_map;
    uint64_t    prefix_seed;
} bt_down_reserve;

typedef struct {
    uint64_t     request;
    uint32_t     epoch, n_prompt, decode_rank, n_pages;
    uint32_t    *prompt;
    bt_sampling  sampling;
    bt_page_ref *pages;
    bool         eval;
    size_t       n_eval_expert_bytes;
    void        *eval_experts;
    size_t       n_prefix_key_bytes;
    void        *prefix_keys;
    uint32_t     held;
    uint64_t     arrival;
    uint32_t     n_choices;
    uint32_t    *choices; /* as in bt_down_reserve */
    size_t       n_form_map_bytes;
    void        *form_map;
} bt_down_prefill;

/* From the coordinator to a worker. */
typedef struct {
    bt_down_kind kind;
    union {
        struct {
            uint32_t epoch;
            uint64_t incarnation, prefix_seed;
        } welcome;
        bt_down_reserve reserve;
        bt_down_prefill prefill;
        struct {
            uint64_t request;
            uint32_t epoch, only_choice; /* 0: all of it, else 1 + the choice */
        } abort;
        struct {
            uint64_t wake;
        } wake;
        bt_down_regroup regroup;
        struct {
            char *reason;
        } shutdown;
    } u;
} bt_down;

/* Copies its arrays / frees them and leaves it without. */
bt_status bt_regroup_copy(const bt_down_regroup *from, bt_down_regroup *to_out);
void      bt_regroup_free(bt_down_regroup *regroup);
/* Copies its arrays. */
bt_status bt_sampling_copy(const bt_sampling *from, bt_sampling *to_out);
/* Moves what it owns: `from` keeps its numbers and owns nothing. */
bt_sampling bt_sampling_take(bt_sampling *from);
/* Frees what it owns and leaves it without. */
void bt_sampling_free(bt_sampling *sampling);
/* Whether the token is one of stop_tokens. */
static inline bool bt_sampling_stops_at(const bt_sampling *sampling, uint32_t id)
{
    for (uint32_t i = 0; i < sampling->n_stop; i++)
        if (sampling->stop_tokens[i] == id) return true;
    return false;
}
/* The choice depends on the tokens of the prompt / on those that were generated before it. */
static inline bool bt_sampling_needs_prompt(const bt_sampling *s)
{
    return s->repetition_penalty != 0 && s->repetition_penalty != 1;
}
static inline bool bt_sampling_counts_tokens(const bt_sampling *s)
{
    return s->frequency_penalty != 0 || s->presence_penalty != 0 || bt_sampling_needs_prompt(s);
}

/* Packs into *bytes_out (owned by the caller, bt_free). */
bt_status bt_up_pack(const bt_up *m, uint8_t **bytes_out, size_t *n_out);
bt_status bt_down_pack(const bt_down *m, uint8_t **bytes_out, size_t *n_out);
/* PROTOCOL when the bytes are no such message, or a field is out of range. */
bt_status bt_up_unpack(const uint8_t *bytes, size_t n, bt_up *m_out);
bt_status bt_down_unpack(const uint8_t *bytes, size_t n, bt_down *m_out);
/* Frees what the message owns, not the struct. */
void bt_up_free(bt_up *m);
void bt_down_free(bt_down *m);

#ifdef __cplusplus
}
#endif
#endif

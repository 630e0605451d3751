/* tests/proto/control_samples.h - one message of every kind with every field set. */
#ifndef BT_TESTS_PROTO_CONTROL_SAMPLES_H
#define BT_TESTS_PROTO_CONTROL_SAMPLES_H

#include "core/alloc.h"
#include "proto/control_msg.h"

static inline uint32_t *sample_ids(uint32_t n)
{
    uint32_t *ids = bt_calloc(n, sizeof(*ids));

    for (uint32_t i = 0; ids != NULL && i < n; i++)
        ids[i] = 1000 + 7 * i;
    return ids;
}

static inline bt_page_ref *sample_pages(uint32_t n)
{
    bt_page_ref *pages = bt_calloc(n, sizeof(*pages));

    for (uint32_t i = 0; pages != NULL && i < n; i++)
        pages[i] = (bt_page_ref){i, 100 + i};
    return pages;
}

static inline bt_up sample_hello(uint32_t rank, uint32_t n_ranks)
{
    bt_up m = {.kind = BT_UP_HELLO};

    m.u.hello = (bt_up_hello){.protocol              = 1,
                              .rank                  = rank,
                              .n_ranks               = n_ranks,
                              .host                  = bt_strdup("host"),
                              .cell                  = bt_strdup("c-1"),
                              .left_out              = bt_strdup("n3,n5"),
                              .version               = bt_strdup("0.0.9"),
                              .pid                   = 17,
                              .model_fingerprint     = 0xfedcba9876543210u,
                              .arithmetic            = bt_strdup("dp2"),
                              .n_pages               = 64,
                              .page_tokens           = 64,
                              .max_rows              = 256,
                              .epoch                 = 3,
                              .vocab_size            = 32000,
                              .max_context           = 4096,
                              .n_eos                 = 2,
                              .eos_tokens            = sample_ids(2),
                              .bos_token             = 0,
                              .pad_token             = -1,
                              .model_type            = bt_strdup("deepseek_v3"),
                              .architecture          = bt_strdup("DeepseekV3ForCausalLM"),
                              .default_sampling_json = bt_strdup("{}"),
                              .weight_bytes          = 1ull << 40,
                              .speculates            = true,
                              .mtp                   = 3,
                              .config_hash           = 0xabcdef0123456789u,
                              .n_spares              = n_ranks / 2};
    return m;
}

static inline bt_down_regroup sample_seats(void)
{
    bt_down_regroup seats = {
        .epoch  = 7,
        .groups = {{5, 2, sample_ids(2)}, {7, 3, bt_calloc(3, sizeof(uint32_t))}},
        .n_gone = 2,
        .gone   = sample_ids(2)
    };

    if (seats.groups[1].ranks != NULL)
        seats.groups[1].ranks[0] = seats.groups[1].ranks[2] = BT_NO_RANK;
    return seats;
}

static inline bt_up sample_up(bt_up_kind kind)
{
    bt_up m = {.kind = kind};

    switch (kind) {
    case BT_UP_HELLO:
        m                     = sample_hello(1, 4);
        m.u.hello.incarnation = 3ull << 32 | 5;
        m.u.hello.prefix_seed = 1ull << 63;
        m.u.hello.seats       = sample_seats();
        break;
    case BT_UP_PROGRESS:
        m.u.progress.done_bytes  = 5;
        m.u.progress.total_bytes = 1ull << 33;
        break;
    case BT_UP_READY: break;
    case BT_UP_BEAT:
        m.u.beat = (bt_up_beat){
            .progress            = 1,
            .steps               = 2,
            .handoff_bytes       = 3,
            .handoff_pages       = 4,
            .waited_ns           = 88,
            .gather_ns           = 8,
            .model_ns            = 9,
            .sample_ns           = 10,
            .prompt_rows         = 11,
            .generated_rows      = 12,
            .prefix_asked_tokens = 13,
            .prefix_hit_tokens   = 14,
            .draft_tokens        = 22,
            .drafts              = 24,
            .draft_right_tokens  = 23,
            .at_ns               = 20,
            .batch_rows          = {15, 16},
            .step_times          = {[BT_BEAT_TIME_BUCKETS - 1] = 17 },
            .n_requests          = 5,
            .pages_free          = 6,
            .pages_total         = 7,
            .pages_cached        = 18,
            .slots_quarantined   = 19,
            .handoff_ns          = 20,
            .handoff_times       = {[BT_BEAT_TIME_BUCKETS - 1] = 21}
        };
        break;
    case BT_UP_TICKET:
        m.u.ticket.request          = 9;
        m.u.ticket.epoch            = 2;
        m.u.ticket.n_pages          = 3;
        m.u.ticket.pages            = sample_pages(3);
        m.u.ticket.held             = 128;
        m.u.ticket.n_form_map_bytes = 32;
        m.u.ticket.form_map         = bt_calloc(32, 1);
        break;
    case BT_UP_TOKENS:
        m.u.tokens.n      = 2;
        m.u.tokens.tokens = bt_calloc(2, sizeof(bt_token));
        if (m.u.tokens.tokens == NULL) break;
        m.u.tokens.tokens[0] = (bt_token){
            .request      = 9,
            .position     = 12,
            .epoch        = 2,
            .id           = 31999,
            .logprob      = -0.25f,
            .cached       = 64,
            .n_top        = 2,
            .top_ids      = {31999,  4    },
            .top_logprobs = {-0.25f, -2.5f}
        };
        m.u.tokens.tokens[1] = (bt_token){.request  = 10,
                                          .choice   = 1,
                                          .position = 13,
                                          .epoch    = 2,
                                          .logprob  = -1e30f,
                                          .finish   = BT_FINISH_LENGTH};
        break;
    case BT_UP_FAILED:
        m.u.failed.request = 9;
        m.u.failed.epoch   = 2;
        m.u.failed.code    = 13;
        m.u.failed.message = bt_strdup("no");

        m.u.failed.stands_still = true;
        break;
    case BT_UP_RELEASED:
        m.u.released.request = 1ull << 60;
        m.u.released.epoch   = 2;
        break;
    case BT_UP_RETRACTED:
        m.u.retracted.request = 1ull << 61;
        m.u.retracted.epoch   = 2;
        break;
    case BT_UP_PROMPT_LOGPROBS:
        m.u.prompt_logprobs = (bt_up_prompt_logprobs){.request      = 9,
                                                      .epoch        = 2,
                                                      .position     = 1,
                                                      .n            = 2,
                                                      .n_top        = 3,
                                                      .logprobs     = bt_calloc(2, sizeof(float)),
                                                      .top_ids      = sample_ids(6),
                                                      .top_logprobs = bt_calloc(6, sizeof(float))};
        break;
    case BT_UP_DRAIN: break;
    case BT_UP_PEER_LOAD:
        m.u.peer_load.at_ns = 7;
        m.u.peer_load.n     = 2;
        m.u.peer_load.peers = bt_calloc(2, sizeof(bt_peer_load));
        if (m.u.peer_load.peers != NULL)
            m.u.peer_load.peers[1] = (bt_peer_load){3, 1ull << 40, 5, 6};
        break;
    case BT_UP_EXPERT_LOAD:
        m.u.expert_load.n    = 3;
        m.u.expert_load.rows = bt_calloc(3, sizeof(uint64_t));
        if (m.u.expert_load.rows != NULL) m.u.expert_load.rows[2] = 1ull << 40;
        break;
    case BT_UP_FORM_MAP:
        m.u.form_map.request          = 9;
        m.u.form_map.epoch            = 2;
        m.u.form_map.n_form_map_bytes = 48;
        m.u.form_map.form_map         = bt_calloc(48, 1);
        break;
    case BT_UP_WAKE_REQUEST: m.u.wake_request.wake = 77; break;
    case BT_UP_EVAL_ROWS:
        m.u.eval_rows = (bt_up_eval_rows){.request        = 9,
                                          .epoch          = 2,
                                          .position       = 4,
                                          .n_rows         = 2,
                                          .n_logit_bytes  = 32,
                                          .logits         = bt_calloc(32, 1),
                                          .n_expert_bytes = 16,
                                          .experts        = bt_calloc(16, 1)};
        break;
    case BT_UP_EXPIRED:
        m.u.expired.epoch = 6;
        m.u.expired.n     = 3;
        m.u.expired.ranks = sample_ids(3);
        m.u.expired.what  = bt_strdup("experts of layer 3");
        m.u.expired.n_met = 7;
        break;
    case BT_UP_LEAVING: m.u.leaving.reason = bt_strdup("why"); break;
    }
    return m;
}

static inline uint32_t *sample_pair(uint32_t first, uint32_t second)
{
    uint32_t *pair = bt_calloc(2, sizeof(*pair));

    if (pair != NULL) pair[0] = first, pair[1] = second;
    return pair;
}

static inline bt_sampling sample_sampling(void)
{
    float *biases = bt_calloc(3, sizeof(*biases));

    if (biases != NULL) biases[2] = -7.5f;
    return (bt_sampling){.prompt_logprobs    = 3,
                         .top_k              = 4,
                         .top_p              = 0.75f,
                         .min_p              = 0.125f,
                         .frequency_penalty  = 1.5f,
                         .presence_penalty   = -1.5f,
                         .repetition_penalty = 1.25f,
                         .min_tokens         = 2,
                         .top_logprobs       = 5,
                         .n_bias             = 3,
                         .bias_ids           = sample_ids(3),
                         .biases             = biases,
                         .temperature        = 0.5f,
                         .seed               = 1ull << 63,
                         .max_tokens         = 10,
                         .ignore_eos         = true,
                         .logprobs           = true,
                         .n_stop             = 2,
                         .stop_tokens        = sample_ids(2),
                         .constraint_kind    = 2,
                         .constraint_after   = 1008,
                         .n_constraint_bytes = 3,
                         .constraint         = bt_strdup("a\nb")};
}

static inline bt_down sample_down(bt_down_kind kind)
{
    bt_down m = {.kind = kind};

    switch (kind) {
    case BT_DOWN_WELCOME:
        m.u.welcome.epoch       = 4;
        m.u.welcome.incarnation = 1ull << 32 | 9;
        m.u.welcome.prefix_seed = 77;
        break;
    case BT_DOWN_RESERVE:
        m.u.reserve = (bt_down_reserve){.request             = 9,
                                        .epoch               = 2,
                                        .n_prompt            = 12,
                                        .prompt              = sample_ids(12),
                                        .prefill_rank        = 1,
                                        .n_eval              = 3,
                                        .sampling            = sample_sampling(),
                                        .eval                = true,
                                        .eval_tokens         = sample_ids(3),
                                        .n_eval_expert_bytes = 60,
                                        .eval_experts        = bt_calloc(60, 1),
                                        .n_prefix_key_bytes  = 32,
                                        .prefix_keys         = bt_calloc(32, 1),
                                        .arrival             = 1ull << 62,
                                        .n_choices           = 2,
                                        .choices             = sample_pair(1, 4),
                                        .replay_lengths      = sample_pair(3, 1),
                                        .n_form_map_bytes    = 16,
                                        .form_map            = bt_calloc(16, 1),
                                        .prefix_seed         = 1ull << 61,
                                        .n_replay            = 4,
                                        .replay              = sample_ids(4)};
        break;
    case BT_DOWN_PREFILL:
        m.u.prefill = (bt_down_prefill){.request             = 9,
                                        .epoch               = 2,
                                        .n_prompt            = 5,
                                        .decode_rank         = 3,
                                        .n_pages             = 2,
                                        .prompt              = sample_ids(5),
                                        .sampling            = sample_sampling(),
                                        .pages               = sample_pages(2),
                                        .eval                = true,
                                        .n_eval_expert_bytes = 20,
                                        .eval_experts        = bt_calloc(20, 1),
                                        .n_prefix_key_bytes  = 16,
                                        .prefix_keys         = bt_calloc(16, 1),
                                        .n_choices           = 2,
                                        .choices             = sample_pair(0, 5),
                                        .n_form_map_bytes    = 16,
                                        .form_map            = bt_calloc(16, 1),
                                        .held                = 64,
                                        .arrival             = 1ull << 60};
        break;
    case BT_DOWN_ABORT:
        m.u.abort.request     = 9;
        m.u.abort.epoch       = 2;
        m.u.abort.only_choice = 3;
        break;
    case BT_DOWN_WAKE: m.u.wake.wake = 8; break;
    case BT_DOWN_REGROUP:
        m.u.regroup         = sample_seats();
        m.u.regroup.prepare = true;
        break;
    case BT_DOWN_SHUTDOWN: m.u.shutdown.reason = bt_strdup("enough"); break;
    }
    return m;
}

#endif

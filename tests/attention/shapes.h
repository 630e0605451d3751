/* tests/attention/shapes.h - the attention shapes that tests run: those of the models in
 * tests/models and models/demo, one in which nothing is a multiple of anything, and one with as
 * many heads as real models have at least, of which some go together and parts are long, and one
 * whose queries have factors; and, not counted among these, one with sparse attention. */
#ifndef BT_TESTS_ATTENTION_SHAPES_H
#define BT_TESTS_ATTENTION_SHAPES_H

#include "attention/mla.h"

enum {
    SHAPE_DEMO,
    SHAPE_V2_LITE,
    SHAPE_GLM,
    SHAPE_ODD,
    SHAPE_HEADS,
    SHAPE_FACTORS,
    N_SHAPES,
    SHAPE_SPARSE = N_SHAPES,
    N_ALL_SHAPES
};

static const struct {
    const char   *name;
    bt_mla_config cfg;
} SHAPES[N_ALL_SHAPES] = {
    {"demo",
     {.hidden       = 256,
      .n_heads      = 4,
      .q_lora_rank  = 192,
      .kv_lora_rank = 512,
      .qk_nope_dim  = 128,
      .qk_rope_dim  = 64,
      .v_dim        = 128,
      .max_context  = 8192}},
    {"v2-lite",
     {.hidden       = 96,
      .n_heads      = 4,
      .kv_lora_rank = 64,
      .qk_nope_dim  = 32,
      .qk_rope_dim  = 16,
      .v_dim        = 32,
      .max_context  = 8192}},
    {"glm-flash",
     {.hidden       = 96,
      .n_heads      = 5,
      .q_lora_rank  = 48,
      .kv_lora_rank = 64,
      .qk_nope_dim  = 24,
      .qk_rope_dim  = 16,
      .v_dim        = 40,
      .max_context  = 8192}},
    {"odd",
     {.hidden       = 50,
      .n_heads      = 3,
      .q_lora_rank  = 21,
      .kv_lora_rank = 75,
      .qk_nope_dim  = 13,
      .qk_rope_dim  = 18,
      .v_dim        = 7,
      .max_context  = 8192}},
    {"many heads",
     {.hidden       = 48,
      .n_heads      = 17,
      .kv_lora_rank = 32,
      .qk_nope_dim  = 16,
      .qk_rope_dim  = 8,
      .v_dim        = 16,
      .max_context  = 8192}},
    {"query factors",
     {.hidden        = 96,
      .n_heads       = 4,
      .kv_lora_rank  = 64,
      .qk_nope_dim   = 24,
      .qk_rope_dim   = 16,
      .v_dim         = 32,
      .max_context   = 8192,
      .query_beta    = 0.25,
      .query_context = 20} },
    {"sparse",
     {.hidden       = 48,
      .n_heads      = 9,
      .q_lora_rank  = 40,
      .kv_lora_rank = 32,
      .qk_nope_dim  = 16,
      .qk_rope_dim  = 8,
      .v_dim        = 16,
      .max_context  = 8192,
      .index_topk   = 70,
      .index_heads  = 5,
      .index_dim    = 20}  },
};

#endif

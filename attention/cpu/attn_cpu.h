/* attention/cpu/attn_cpu.h - what the files of the CPU back end share: its workspaces.
 *
 * Work is split over the device's pool in chunks of heads, query tiles, pages and parts of the
 * context; no boundary between chunks changes a bit (see tile.h), so the split may follow the
 * number of threads. */
#ifndef BT_ATTENTION_CPU_ATTN_CPU_H
#define BT_ATTENTION_CPU_ATTN_CPU_H

#include <stdbool.h>

#include "attention/cpu/tile.h"
#include "attention/ops.h"

enum {
    BT_PART_PAGES    = BT_ATTN_SPLIT_TOKENS / BT_PAGE_TOKENS,
    BT_ABSORBED_ROWS = 128, /* rows whose absorbed queries are held at once */
    BT_QUERY_LANES   = 16,  /* whose queries are packed together */
    BT_BLOCK_PAGES   = 4,   /* of a softmax block */
    BT_BLOCK_TOKENS  = BT_BLOCK_PAGES * BT_PAGE_TOKENS,
    BT_HALVINGS      = 3,  /* of BT_ATTN_SPLIT_TOKENS to BT_BLOCK_TOKENS */
    BT_GROUP_HEADS   = 16, /* that go together through a short context */
    BT_MAX_CHOOSERS  = 64  /* rows that choose positions at once */
};

/* One pool member's buffers. */
typedef struct {
    bt_tile_scratch tile;
    float *state; /* bt_tile_state_floats(max(v_dim, kv_lora_rank)): a part of the normal form, or
                     an absorbed tile with one part */
    float   *halves;    /* [BT_HALVINGS] states, of second halves of absorbed parts */
    float   *rows_f32;  /* [BT_BLOCK_TOKENS][max(joined, v_dim), to whole 32] */
    bt_bf16 *rows_bf16; /* the same, rounded */
    bt_bf16 *joined;    /* [BT_TILE_LANES][bt_joined_dim]: a head's queries */
    float   *scores_t;  /* [BT_PAGE_TOKENS][BT_TILE_LANES] */
    bt_bf16 *queries;   /* [BT_QUERY_LANES][kv_lora_rank + qk_rope_dim]: absorbed, with rope part */
    bt_bf16 *query;     /* the same of all lanes, packed */
    bt_bf16 *latents;   /* [BT_GROUP_HEADS][rows][kv_lora_rank]: absorbed, of short contexts */
    bt_bf16 *index_query;  /* packed [index_heads, index_dim] */
    float   *index_scores; /* [BT_PAGE_TOKENS][bt_index_columns] */
    /* The tile whose queries these are, where it is one of the row block under way. */
    bool     has_packed;
    uint32_t packed_row, packed_lane0;
} bt_attn_member;

/* Queries of one tile against one part of the context, in the absorbed form. */
typedef struct {
    const bt_span *span;
    uint32_t       row;            /* the tile's row 0: its first row in the step ... */
    uint32_t       pos0;           /* ... and that row's position */
    uint32_t       lane0, n_lanes; /* counted from there, n_heads lanes a row */
    uint32_t       start, end;     /* position where the part begins, and where the context ends */
    uint32_t       slot;           /* for the part's state, where the tile has several */
    bool           alone;          /* it has one */
} bt_absorbed_item;

typedef struct {
    bt_attn               base;
    bt_device            *dev;     /* borrowed */
    const bt_cpu_kernels *kernels; /* borrowed */
    bt_cpu_pool          *pool;    /* borrowed */
    bt_mla_config         cfg;
    const float          *rope; /* borrowed: the table of ops.h */
    uint32_t              n_members;
    bt_attn_member       *members; /* owned: [n_members] */
    void                 *scratch; /* owned: what they point to */

    /* Normal form: keys and values of `head_group` heads over one part. */
    uint32_t head_group, part_pages;
    uint32_t tiles_per_head;
    bt_bf16 *latents; /* owned: [part_pages][BT_PAGE_TOKENS, kv_lora_rank] in tiles, or NULL */
    bt_bf16 *keys;    /* owned: [head_group][part_pages] packed [keys, bt_joined_dim] */
    bt_bf16 *values;  /* owned: [head_group][part_blocks] packed values */
    float   *running; /* owned: [head_group][tiles_per_head] states */

    /* Absorbed form: one block of rows. */
    uint32_t          split;         /* parts of the softmax begin at multiples of it */
    uint32_t          absorbed_rows; /* <= BT_ABSORBED_ROWS */
    bt_bf16          *ql, *ol;       /* owned: [absorbed_rows, n_heads, kv_lora_rank] */
    bt_gemm          *gemms;         /* owned: [n_heads] */
    uint32_t          n_slots;
    float            *slots;      /* owned: [n_slots + 1] states */
    float           **slot;       /* owned: [n_slots + 1], the last is the carry */
    uint32_t          max_items;  /* of a wave */
    bt_absorbed_item *items;      /* owned: [max_items] */
    uint32_t         *group_ends; /* owned: [max_items] */

    /* Sparse attention, or NULL. */
    uint32_t   *chosen;       /* owned: [rows of the step][index_topk], ascending positions */
    float      *keys_scores;  /* owned: [BT_MAX_CHOOSERS][max_context] */
    uint32_t    chosen_rows;  /* that attend at once, to copies: */
    bt_kv_pool *gathered;     /* owned: one layer of latents and rope keys */
    bt_page_id *chosen_pages; /* owned: [chosen_rows][pages of index_topk], all of the pool */
    bt_span    *chosen_spans; /* owned: [chosen_rows] */
} bt_attn_cpu;

/* Elements of one packed page of keys of `dim`, and of one block of values. */
static inline size_t bt_packed_keys(uint32_t dim)
{
    return bt_cpu_packed_elems(BT_PAGE_TOKENS, dim);
}
static inline size_t bt_packed_values(uint32_t dim)
{
    return bt_cpu_packed_elems(dim, BT_BLOCK_TOKENS);
}
/* Blocks that so many pages make. */
static inline uint32_t bt_part_blocks(uint32_t n_pages)
{
    return (n_pages + BT_BLOCK_PAGES - 1) / BT_BLOCK_PAGES;
}
/* Elements of a query or a key with both parts, nope and rope, each padded to whole steps of 32 k.
 */
static inline uint32_t bt_joined_dim(const bt_mla_config *cfg)
{
    return bt_cpu_pad(cfg->qk_nope_dim, 32) + bt_cpu_pad(cfg->qk_rope_dim, 32);
}
/* Heads of the indexer, padded to whole column blocks. */
static inline uint32_t bt_index_columns(const bt_mla_config *cfg)
{
    return bt_cpu_pad(cfg->index_heads, 16);
}
/* Elements of one row of the step's query matrix. */
static inline size_t bt_attn_q_dim(const bt_mla_config *cfg)
{
    return (size_t)cfg->n_heads * (cfg->qk_nope_dim + cfg->qk_rope_dim);
}

/* A part of a span's context, from position `start`, where a softmax begins, to before `end`, of
 * `size` positions where the context is long enough. */
typedef struct {
    const bt_span *span;
    uint32_t       start, end, size;
} bt_absorbed_part;

/* Weights that lie in one run. */
typedef struct {
    const bt_bf16 *packed; /* or NULL */
    size_t         n_elems;
} bt_absorbed_then;

/* Absorbed queries of a tile, and the part that they attend to. */
typedef struct {
    bt_absorbed_part part, next; /* next: what this thread probably goes through then, or no span */
    bt_absorbed_then then;       /* and what it probably reads then, or nothing */
    bool             packed;     /* the member has packed these queries before */
    bt_tile          tile;
    const bt_bf16   *latent, *rope; /* of lane 0: [kv_lora_rank], [qk_rope_dim] */
    size_t           ld_latent, ld_rope;
} bt_absorbed_lanes;

/* How a block of rows is cut: lanes of a tile, and positions of an item's part. */
typedef struct {
    uint32_t tile_lanes, part_size;
} bt_absorbed_plan;

bt_absorbed_plan bt_absorbed_plan_for(const bt_attn_cpu *a, const bt_attn_call *call,
                                      uint32_t first_row, uint32_t n_rows);
/* The span's rows that lie in the row block; the first of them is *row_out. */
uint32_t bt_absorbed_rows(const bt_span *span, uint32_t first_row, uint32_t n_rows,
                          uint32_t *row_out);
/* state = the softmax over the part and the weighted sum of its latents, by smaller parts where the
 * softmax restarts within. */
void bt_absorbed_pass(const bt_attn_cpu *a, const bt_attn_call *call,
                      const bt_absorbed_lanes *lanes, const bt_attn_member *m,
                      const bt_tile_state *state);
/* All of the absorbed form for a block of rows; false, and nothing done, when one of their contexts
 * is not short, or there are too few heads for the threads. */
bool bt_absorbed_short(const bt_attn_cpu *a, const bt_attn_call *call, uint32_t first_row,
                       uint32_t n_rows);

/* Bytes of the workspaces of sparse attention; all others are little, in the caches: the account's
 * margin holds them. */
size_t bt_attn_cpu_chosen_bytes(const bt_mla_config *cfg, uint32_t max_rows);
/* These workspaces, where some context can need them; destroy: also of none. */
bt_status bt_attn_cpu_create_chosen(bt_attn_cpu *a, uint32_t max_rows);
void      bt_attn_cpu_destroy_chosen(bt_attn_cpu *a);

bt_status bt_attn_cpu_choose(bt_attn *attn, const bt_attn_call *call);
bt_status bt_attn_cpu_attend_chosen(bt_attn *attn, const bt_attn_call *call);
bt_status bt_attn_cpu_normal(bt_attn *attn, const bt_attn_call *call);
bt_status bt_attn_cpu_absorbed(bt_attn *attn, const bt_attn_call *call);

#endif

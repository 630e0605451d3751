/* attention/cuda/attn_kernels.h - attention over latent pages as kernels.
 *
 * Formulas and the order of things: attention/mla.h.  Key blocks are pages of 64, ascending; the
 * softmax restarts at multiples of the split and the parts merge ascending; weights round to bf16
 * before they meet the values; a row's bits depend on its query, its position and the keys up to
 * it.
 *
 * Each function enqueues on `stream` (a cudaStream_t) and returns a cudaError_t, 0 for success.
 * Pointers are device memory, spans and items too.  No row, no launch. */
#ifndef BT_ATTENTION_CUDA_ATTN_KERNELS_H
#define BT_ATTENTION_CUDA_ATTN_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/bf16.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    BT_CUDA_PAGE            = 64,  /* tokens */
    BT_CUDA_MAX_LATENT      = 512, /* kv_lora_rank */
    BT_CUDA_MAX_ROPE        = 64,
    BT_CUDA_MAX_HEAD        = 256, /* qk_nope_dim, v_dim */
    BT_CUDA_MAX_INDEX       = 128, /* index_dim, where rows choose ... */
    BT_CUDA_MAX_INDEX_HEADS = 256, /* ... and index_heads */
    BT_CUDA_BAD_SHAPE       = 1    /* cudaErrorInvalidValue: a dimension above these */
};

/* One layer of the pool: token t of page p at base + p page_stride + t (kv_lora + rope + index_dim)
 * elements, which are its latent, its rope key, and the key of an indexer. */
typedef struct {
    bt_bf16        *base;
    size_t          page_stride;
    uint32_t        index_dim; /* 0: there is none */
    const uint32_t *ids;       /* pages of all spans, one list after the other */
} bt_cuda_pages;

typedef struct {
    uint32_t n_heads, kv_lora, nope, rope, v_dim;
    float    scale; /* of the scores */
} bt_cuda_dims;

/* Consecutive tokens of one request. */
typedef struct {
    uint32_t first_row, n_rows, start; /* row in the step's matrices; position of the first */
    uint32_t page_at;                  /* where its pages begin in ids */
    uint32_t list; /* 0; or 1 + the row of bt_cuda_decode.chosen that the span's one row attends to,
                      of which `start` is then the last place */
} bt_cuda_span;

/* What the indexer of sparse attention has in an append.  k becomes bf16 by a LayerNorm, then its
 * first `rope` elements turn. */
typedef struct {
    uint32_t       n_heads;
    bool           halves;      /* pairs are (i, i + rope / 2); else (2 i, 2 i + 1) */
    bt_bf16       *q;           /* [rows, n_heads, index_dim], or NULL: not there */
    const bt_bf16 *k;           /* [rows, index_dim], or NULL: zeros go to the pages */
    const bt_bf16 *norm, *bias; /* [index_dim] */
    float          eps;
} bt_cuda_append_index;

/* For each row: the latent after its norm and the rope key, turned, go to the row's page, with the
 * indexer's key behind them; the rope parts of q and of the indexer's queries turn in place. */
typedef struct {
    bt_cuda_dims        dims;
    bt_cuda_pages       pages;
    const bt_cuda_span *spans;
    uint32_t            n_spans, n_rows; /* of the spans, from row 0 on, without gaps; a span may
                                            be empty where each row has its own */
    bt_bf16       *q;                    /* [rows, n_heads, nope + rope], or NULL: not there */
    const bt_bf16 *kv;                   /* [rows, kv_lora + rope], or NULL */
    const bt_bf16 *norm;                 /* [kv_lora], or NULL: kv is after its norm */
    float          eps;
    const float   *cos_sin; /* [max_context][rope / 2][2] */
    const float   *factor;  /* [max_context], by which q is multiplied after it turned; or NULL */

    bt_cuda_append_index index;
} bt_cuda_append;
int bt_cuda_append_run(void *stream, const bt_cuda_append *a);

/* The absorbed form: out = sum softmax(scale (ql . c + qp . kp)) c, in the space of latents.  Lanes
 * of a span are its (row, head) pairs, row-major; a tile of 16, 32 or 64 lanes against one part of
 * the context is a block. */
typedef struct {
    bt_cuda_dims        dims;
    bt_cuda_pages       pages;
    const bt_cuda_span *spans;
    uint32_t            n_spans, max_rows; /* max_rows: of the longest span */
    uint32_t            max_parts;         /* parts of the longest context */
    uint32_t            split_pages;       /* pages of a part, a constant of the back end */
    const bt_bf16      *ql;                /* [rows, n_heads, kv_lora] */
    const bt_bf16      *q;                 /* [rows, n_heads, nope + rope], the rope part turned */
    bt_bf16            *out;               /* [rows, n_heads, kv_lora] */
    float              *part_o;  /* [rows n_heads, max_parts, kv_lora]; with one part not used */
    float              *part_ms; /* [rows n_heads, max_parts, 2]: max and sum */
    const uint32_t     *chosen;  /* [..][topk] positions, or NULL: no span has a list */
    uint32_t            topk;
} bt_cuda_decode;
int bt_cuda_decode_run(void *stream, const bt_cuda_decode *d);

/* Which positions rows attend to: the topk with the largest score of the indexer, of equal ones the
 * earliest. */
typedef struct {
    bt_cuda_dims        dims;
    bt_cuda_pages       pages;
    const bt_cuda_span *spans;             /* of one row each, from position topk on */
    uint32_t            n_spans, max_keys; /* max_keys: start + 1 of the longest */
    uint32_t            n_heads, topk;
    const bt_bf16      *q;      /* [rows, n_heads, index_dim], turned */
    const float        *w;      /* [rows, n_heads] */
    float              *scores; /* [n_spans][max_keys, to whole pages], aligned to 16 bytes */
    uint32_t           *chosen; /* [rows][topk], ascending */
} bt_cuda_choose;
int bt_cuda_choose_run(void *stream, const bt_cuda_choose *c);

/* A span against one part of its context, whose keys and values were expanded. */
typedef struct {
    bt_cuda_span span;
    uint32_t     kv_at; /* row of k and v that holds the part's first token */
} bt_cuda_prefill_item;

/* The normal form for one part (the same number for all items): parts of a span run ascending.  The
 * last part that a row sees writes out; earlier ones leave their state in run_o and run_ms. */
typedef struct {
    bt_cuda_dims                dims;
    bt_cuda_pages               pages; /* for the rope keys */
    const bt_cuda_prefill_item *items;
    uint32_t                    n_items, max_rows;
    uint32_t                    part, split_pages;
    const bt_bf16              *q;      /* [rows, n_heads, nope + rope] */
    const bt_bf16              *k;      /* [.., n_heads, nope] */
    const bt_bf16              *v;      /* [.., n_heads, v_dim] */
    bt_bf16                    *out;    /* [rows, n_heads, v_dim] */
    float                      *run_o;  /* [rows, n_heads, v_dim] */
    float                      *run_ms; /* [rows, n_heads, 2] */
} bt_cuda_prefill;
int bt_cuda_prefill_run(void *stream, const bt_cuda_prefill *p);

/* dst[i] = the latent of token first + i of the pages ids[0..): what keys and values are expanded
 * from. [n_tokens, kv_lora] */
int bt_cuda_latents_run(void *stream, const bt_cuda_dims *dims, const bt_cuda_pages *pages,
                        uint32_t first, uint32_t n_tokens, bt_bf16 *dst);

/* Rows of whole tokens between pages and a message [n_layers][..][kv_dim]; tokens are counted from
 * ids[0]'s first.  Strides in elements: from a page to the next, from a layer to the next in pages
 * and in the message.  The list travels with the launch: nothing goes up for it. */
enum { BT_CUDA_MOVE_PAGES = 256 };
typedef struct {
    bt_bf16 *base; /* of the first layer */
    size_t   page_stride, layer_stride, message_stride;
    uint32_t kv_dim, n_layers, first, n_tokens;
    bt_bf16 *message;
    uint32_t ids[BT_CUDA_MOVE_PAGES];
} bt_cuda_page_rows;
int bt_cuda_pack_pages(void *stream, const bt_cuda_page_rows *r);    /* pages to message */
int bt_cuda_scatter_pages(void *stream, const bt_cuda_page_rows *r); /* message to pages */

#ifdef __cplusplus
}
#endif
#endif

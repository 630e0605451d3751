/* attention/variants/variants.h - the ways of computing one layer's decode step, side by side.
 *
 * The question that Baton grew from is which way of computing MLA is cheapest, where, and why.
 * Each way is a variant; all of them are the same mathematics (attention/mla.h) on the same
 * weights:
 *     CD        caches each head's keys and values, decompressed
 *     CC        caches the latents, decompresses all of them at each step
 *     A_CC      absorbed: caches the latents, makes each head's key [latent | rope]
 *     A_CC_ME   absorbed, the rope part as a product of its own: nothing concatenated
 *     AM_CC_ME  the same with the absorbed matrices multiplied out beforehand
 *     fused     what serves: absorbed, one pass over the pages, products of one input together
 *
 * The first five are built as the study built them, from whole-matrix steps (all scores, then all
 * weights of the softmax, then all sums), on the same products as the kernel, so that what differs
 * is the form.  Those with the latent cache share the study's pages.
 *
 * A study is one layer on a device and some requests, each with a prefix in the cache; a step takes
 * each of them one token further, always the same one.  Two parts are behind a table by device
 * (core.h): the cache of CD and the attention itself.  Another back end brings its own.
 *
 * Threads: the step thread.  Memory: taken in create and open; a step never allocates. */
#ifndef BT_ATTENTION_VARIANTS_VARIANTS_H
#define BT_ATTENTION_VARIANTS_VARIANTS_H

#include "attention/mla.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
    BT_VARIANT_CD,
    BT_VARIANT_CC,
    BT_VARIANT_A_CC,
    BT_VARIANT_A_CC_ME,
    BT_VARIANT_AM_CC_ME,
    BT_VARIANT_FUSED
} bt_variant_kind;
enum { BT_N_VARIANTS = BT_VARIANT_FUSED + 1 };

const char *bt_variant_name(bt_variant_kind kind); /* "A_CC_ME" */
const char *bt_variant_text(bt_variant_kind kind); /* what it caches and does, in a few words */

/* Of one layer, on the host, row-major [out, in] as in the checkpoint. */
typedef struct {
    const bt_bf16 *q;         /* [n_heads (nope+rope), q_lora_rank, or hidden without] */
    const bt_bf16 *q_a;       /* [q_lora_rank, hidden], or NULL without */
    const bt_bf16 *q_a_norm;  /* [q_lora_rank], or NULL without */
    const bt_bf16 *kv_a;      /* [kv_lora_rank + qk_rope_dim, hidden] */
    const bt_bf16 *kv_a_norm; /* [kv_lora_rank] */
    const bt_bf16 *kv_b;      /* [n_heads (nope+v_dim), kv_lora_rank]: per head W_UK, then W_UV */
    const bt_bf16 *o;         /* [hidden, n_heads v_dim] */
} bt_study_weights;

typedef struct bt_study   bt_study;
typedef struct bt_variant bt_variant;

/* dev and the weights are borrowed for the study's life.  Queries have no factors here, whatever
 * query_beta is: those cost next to nothing.  Errors as bt_mla_create(). */
bt_status bt_study_create(bt_device *dev, const bt_mla_config *cfg, const bt_study_weights *w,
                          uint32_t max_batch, bt_study **study_out);
void      bt_study_destroy(bt_study *study);

/* `batch` requests with a prefix of n_prefix tokens each, in place of those of before; no variant
 * may be open.  Token t of each has row t % n_rows of rows[n_rows][kv_lora_rank + qk_rope_dim]: the
 * latent after its norm and the rope key after RoPE.  n_rows is a multiple of 64 unless it covers
 * the prefix: INVALID_ARG else; NO_MEMORY, NO_PAGES, DEVICE. */
bt_status bt_study_set(bt_study *study, uint32_t batch, uint32_t n_prefix, uint32_t n_rows,
                       const bt_bf16 *rows);
/* Bytes that the study's pages, and a variant's own cache and buffers, take for such requests. */
size_t bt_study_set_bytes(const bt_study *study, uint32_t batch, uint32_t n_prefix);
size_t bt_variant_bytes(const bt_study *study, bt_variant_kind kind, uint32_t batch,
                        uint32_t n_prefix);
/* Bytes of the matrices that AM_CC_ME multiplies out, the temporary ones included. */
size_t bt_study_merge_bytes(const bt_mla_config *cfg);

/* For the study's requests; AM_CC_ME multiplies its matrices out with the first variant of that
 * kind, and the study keeps them.  INVALID_ARG: it has none; NO_MEMORY, DEVICE. */
bt_status bt_variant_open(bt_study *study, bt_variant_kind kind, bt_variant **variant_out);
void      bt_variant_close(bt_variant *variant);

/* The parts of a step, in order. */
typedef enum {
    BT_STAGE_QUERY,  /* from the hidden state to the heads' queries */
    BT_STAGE_APPEND, /* compress the new token, turn rope pairs, write to the cache */
    BT_STAGE_ATTEND, /* all that depends on the context, absorptions included */
    BT_STAGE_OUTPUT
} bt_stage;
enum { BT_N_STAGES = BT_STAGE_OUTPUT + 1 };

/* out[r] = attention of request r's next token, whose hidden state is x[r]: [batch, hidden] each,
 * device memory.  A step may be repeated.  DEVICE. */
bt_status bt_variant_step(bt_variant *variant, bt_role role, const bt_bf16 *x, bt_bf16 *out,
                          uint64_t stage_ns_out[BT_N_STAGES]);

#ifdef __cplusplus
}
#endif
#endif

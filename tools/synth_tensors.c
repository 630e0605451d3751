#include "tools/synth_tensors.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/bf16.h"
#include "core/e4m3.h"
#include "device/device.h"

/* Weights of 4 bits from -8 to 7, of bell()'s. */
static const float INT4_UNIT = 8 / 3.5f;

static const char EMBEDDING[] = "model.embed_tokens.weight", HEAD[] = "lm_head.weight";

/* ---- which tensors there are */

typedef struct {
    const bt_synth_shape *s;
    bt_synth_list        *list;
    bt_st_dtype           wanted; /* this pass takes these */
    bt_status             st;
} listing;

BT_PRINTF(7, 8)
static void add(listing *l, bt_st_dtype dtype, uint64_t rows, uint64_t cols, float mean,
                float deviation, const char *format, ...)
{
    bt_synth_list   *list = l->list;
    bt_synth_tensor *t;
    va_list          args;

    if (l->st != BT_OK || dtype != l->wanted) return;
    if (list->n == list->capacity) {
        size_t           capacity = 2 * list->capacity + 64;
        bt_synth_tensor *grown    = bt_realloc(list->tensors, capacity, sizeof(*grown));

        if (grown == NULL) {
            l->st = BT_ERR_NO_MEMORY;
            return;
        }
        list->tensors  = grown;
        list->capacity = capacity;
    }
    t = &list->tensors[list->n++];
    va_start(args, format);
    vsnprintf(t->name, sizeof(t->name), format, args);
    va_end(args);
    t->dtype     = dtype;
    t->n_dims    = rows == 0 ? 1 : 2;
    t->shape[0]  = rows == 0 ? cols : rows;
    t->shape[1]  = rows == 0 ? 1 : cols;
    t->mean      = mean;
    t->deviation = deviation;
    t->copy_of   = NULL;
    if (dtype != BT_ST_I64 && strstr(t->name, "_scale") == NULL)
        list->n_params += t->shape[0] * t->shape[1] * (dtype == BT_ST_I32 ? BT_INT4_IN_WORD : 1);
}

/* A matrix whose outputs have `gain` times the size of its inputs. */
static void bf16_matrix(listing *l, const char *prefix, const char *name, uint64_t rows,
                        uint64_t cols, float gain)
{
    add(l, BT_ST_BF16, rows, cols, 0, gain / sqrtf((float)cols), "%s%s.weight", prefix, name);
}

/* The same; in e4m3 where the shape says so, with the largest number nearly the format's. */
static void matrix(listing *l, const char *prefix, const char *name, uint64_t rows, uint64_t cols,
                   float gain)
{
    const float unit  = 448 / 3.5f; /* bell() */
    float       scale = gain / sqrtf((float)cols) / unit;

    if (!l->s->fp8) {
        bf16_matrix(l, prefix, name, rows, cols, gain);
        return;
    }
    add(l, BT_ST_F8_E4M3, rows, cols, 0, unit, "%s%s.weight", prefix, name);
    add(l, BT_ST_F32, (rows + BT_FP8_BLOCK - 1) / BT_FP8_BLOCK,
        (cols + BT_FP8_BLOCK - 1) / BT_FP8_BLOCK, scale, scale / 8, "%s%s.weight_scale_inv", prefix,
        name);
}

/* The same in 4 bits. */
static void packed_matrix(listing *l, const char *prefix, const char *name, uint64_t rows,
                          uint64_t cols, float gain)
{
    float scale = gain / sqrtf((float)cols) / INT4_UNIT;

    add(l, BT_ST_I32, rows, cols / BT_INT4_IN_WORD, 0, INT4_UNIT, "%s%s.weight_packed", prefix,
        name);
    add(l, BT_ST_BF16, rows, cols / BT_INT4_GROUP, scale, scale / 8, "%s%s.weight_scale", prefix,
        name);
    add(l, BT_ST_I64, 0, 2, (float)rows, (float)cols, "%s%s.weight_shape", prefix, name);
}

static void norm(listing *l, const char *prefix, const char *name, uint64_t n)
{
    add(l, BT_ST_BF16, 0, n, 1, 0.1f, "%s%s.weight", prefix, name);
}

static void mlp(listing *l, const char *prefix, uint64_t width, bool int4)
{
    void (*of)(listing * l, const char *prefix, const char *name, uint64_t rows, uint64_t cols,
               float gain) = int4 ? packed_matrix : matrix;
    uint64_t hidden        = l->s->hidden;

    of(l, prefix, "gate_proj", width, hidden, 1.5f);
    of(l, prefix, "up_proj", width, hidden, 1);
    of(l, prefix, "down_proj", hidden, width, 1);
}

static void attention(listing *l, const char *prefix)
{
    const bt_synth_shape *s  = l->s;
    uint64_t              qk = (uint64_t)s->n_heads * (s->qk_nope_dim + s->qk_rope_dim);

    if (s->q_lora_rank != 0) {
        matrix(l, prefix, "q_a_proj", s->q_lora_rank, s->hidden, 1);
        norm(l, prefix, "q_a_layernorm", s->q_lora_rank);
        matrix(l, prefix, "q_b_proj", qk, s->q_lora_rank, 1.5f);
    } else {
        matrix(l, prefix, "q_proj", qk, s->hidden, 1.5f);
    }
    matrix(l, prefix, "kv_a_proj_with_mqa", s->kv_lora_rank + s->qk_rope_dim, s->hidden, 1);
    norm(l, prefix, "kv_a_layernorm", s->kv_lora_rank);
    matrix(l, prefix, "kv_b_proj", (uint64_t)s->n_heads * (s->qk_nope_dim + s->v_dim),
           s->kv_lora_rank, 1.5f);
    matrix(l, prefix, "o_proj", s->hidden, (uint64_t)s->n_heads * s->v_dim, 1);
    if (s->index_topk == 0) return;
    matrix(l, prefix, "indexer.wq_b", (uint64_t)s->index_heads * s->index_dim, s->q_lora_rank,
           1.5f);
    matrix(l, prefix, "indexer.wk", s->index_dim, s->hidden, 1);
    bf16_matrix(l, prefix, "indexer.weights_proj", s->index_heads, s->hidden, 1);
    add(l, BT_ST_F32, 0, s->index_dim, 1, 0.1f, "%sindexer.k_norm.weight", prefix);
    add(l, BT_ST_F32, 0, s->index_dim, 0, 0.1f, "%sindexer.k_norm.bias", prefix);
}

static void experts(listing *l, const char *layer)
{
    const bt_synth_shape *s = l->s;
    char                  prefix[80];

    bf16_matrix(l, layer, "mlp.gate", s->n_experts, s->hidden, 2);
    if (s->sigmoid && !s->moe_norm)
        add(l, BT_ST_F32, 0, s->n_experts, 0, 0.1f, "%smlp.gate.e_score_correction_bias", layer);
    for (uint32_t e = 0; e < s->n_experts; e++) {
        snprintf(prefix, sizeof(prefix), "%smlp.experts.%u.", layer, e);
        mlp(l, prefix, s->expert_dim, s->int4);
    }
    if (s->n_shared == 0) return;
    snprintf(prefix, sizeof(prefix), "%smlp.shared_experts.", layer);
    mlp(l, prefix, (uint64_t)s->expert_dim * s->n_shared, false);
}

static void decoder_layer(listing *l, uint32_t i)
{
    const bt_synth_shape *s = l->s;
    char                  layer[32], prefix[48];

    snprintf(layer, sizeof(layer), "model.layers.%u.", i);
    norm(l, layer, "input_layernorm", s->hidden);
    snprintf(prefix, sizeof(prefix), "%sself_attn.", layer);
    attention(l, prefix);
    norm(l, layer, "post_attention_layernorm", s->hidden);
    if (s->moe_norm) norm(l, layer, "post_mlp_layernorm", s->hidden);
    snprintf(prefix, sizeof(prefix), "%smlp.", layer);
    if (i < s->n_dense_layers)
        mlp(l, prefix, s->dense_dim, false);
    else
        experts(l, layer);
}

/* [vocab, hidden], with the numbers of the tensor `of`. */
static void copy(listing *l, const char *prefix, const char *name, float deviation, const char *of)
{
    size_t n = l->list->n;

    add(l, BT_ST_BF16, l->s->vocab_size, l->s->hidden, 0, deviation, "%s%s.weight", prefix, name);
    if (l->list->n != n) l->list->tensors[n].copy_of = of;
}

/* The gains are those of tests/oracles/micro_models.py: activations keep their size from layer to
 * layer, and logits are a few units wide. */
static void all(listing *l)
{
    const bt_synth_shape *s = l->s;
    char                  layer[32];
    const float           head = 2;

    add(l, BT_ST_BF16, s->vocab_size, s->hidden, 0, 1, "%s", EMBEDDING);
    for (uint32_t i = 0; i < s->n_layers; i++)
        decoder_layer(l, i);
    norm(l, "", "model.norm", s->hidden);
    bf16_matrix(l, "", "lm_head", s->vocab_size, s->hidden, head);
    for (uint32_t i = s->n_layers; i < s->n_layers + s->n_mtp; i++) {
        snprintf(layer, sizeof(layer), "model.layers.%u.", i);
        decoder_layer(l, i);
        norm(l, layer, "enorm", s->hidden);
        norm(l, layer, "hnorm", s->hidden);
        bf16_matrix(l, layer, "eh_proj", s->hidden, 2 * (uint64_t)s->hidden, 1);
        norm(l, layer, "shared_head.norm", s->hidden);
        copy(l, layer, "embed_tokens", 1, EMBEDDING);
        copy(l, layer, "shared_head.head", head / sqrtf((float)s->hidden), HEAD);
    }
}

bt_status bt_synth_list_make(const bt_synth_shape *shape, bt_synth_list *list)
{
    static const bt_st_dtype ORDER[] = {BT_ST_I64, BT_ST_F32, BT_ST_I32, BT_ST_BF16, BT_ST_F8_E4M3};
    bt_status                st      = BT_OK;
    listing                  l       = {.s = shape, .list = list};

    *list = (bt_synth_list){0};
    for (size_t i = 0; i < sizeof(ORDER) / sizeof(ORDER[0]); i++) {
        l.wanted = ORDER[i];
        all(&l);
    }
    BT_REQUIRE(l.st == BT_OK, l.st, "the names of the tensors");
out:
    if (st != BT_OK) {
        bt_free(list->tensors);
        *list = (bt_synth_list){0};
    }
    return st;
}

uint64_t bt_synth_bytes(const bt_synth_tensor *t)
{
    return t->shape[0] * t->shape[1] * bt_st_dtype_bytes(t->dtype);
}

/* ---- their numbers */

/* The finalizer of SplitMix64 (Steele, Lea, Flood 2014). */
static inline uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static uint64_t key_of(const char *name, uint64_t seed)
{
    uint64_t h = 0xcbf29ce484222325u; /* FNV-1a */

    for (; *name != '\0'; name++)
        h = (h ^ (uint8_t)*name) * 0x100000001b3u;
    return mix(mix(seed + 0x9e3779b97f4a7c15u) ^ h);
}

/* Four 16-bit uniforms added: a bell of mean 131,070, standard deviation 65536/sqrt(3), and no
 * outliers beyond 3.5 of these. */
static inline float bell(uint64_t key, uint64_t i)
{
    uint64_t x = mix(key + i * 0x9e3779b97f4a7c15u);
    int32_t  sum =
        (int32_t)((x & 0xffff) + (x >> 16 & 0xffff) + (x >> 32 & 0xffff) + (x >> 48)) - 131070;

    return (float)sum * (1.7320508f / 65536);
}

/* Eight weights, each as its value + 8, the first in the lowest bits. */
static uint32_t int4_word(float unit, uint64_t key, uint64_t i)
{
    uint32_t word = 0;

    for (uint32_t j = 0; j < BT_INT4_IN_WORD; j++) {
        int32_t v = (int32_t)(unit * bell(key, i * BT_INT4_IN_WORD + j) + 8.5f);

        word |= (uint32_t)(v < 0 ? 0 : v > 15 ? 15 : v) << 4 * j;
    }
    return word;
}

void bt_synth_fill(const bt_synth_tensor *t, uint64_t seed, uint64_t first, size_t n, void *out)
{
    uint64_t key = key_of(t->copy_of != NULL ? t->copy_of : t->name, seed);

    if (t->dtype == BT_ST_F32) {
        float *f = out;

        for (size_t i = 0; i < n; i++)
            f[i] = t->mean + t->deviation * bell(key, first + i);
    } else if (t->dtype == BT_ST_I64) {
        int64_t *b = out;

        for (size_t i = 0; i < n; i++)
            b[i] = (int64_t)(first + i == 0 ? t->mean : t->deviation);
    } else if (t->dtype == BT_ST_I32) {
        uint32_t *b = out;

        for (size_t i = 0; i < n; i++)
            b[i] = int4_word(t->deviation, key, first + i);
    } else if (t->dtype == BT_ST_F8_E4M3) {
        uint8_t *b = out;

        for (size_t i = 0; i < n; i++)
            b[i] = bt_e4m3_from_f32(t->deviation * bell(key, first + i));
    } else {
        bt_bf16 *b = out;

        for (size_t i = 0; i < n; i++)
            b[i] = bt_bf16_from_f32(t->mean + t->deviation * bell(key, first + i));
    }
}

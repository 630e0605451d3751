/* From the tensors of a GGUF file to those of Hugging Face: a name each, but for the experts of a
 * layer, which lie in one tensor one after the other, and kv_b_proj, whose heads are either whole
 * or in two tensors:
 *     attn_k_b {qk_nope_dim, kv_lora_rank, n_heads}, each head transposed
 *     attn_v_b {kv_lora_rank, v_dim, n_heads}
 * Rows for RoPE are in the same order in both, pairs interleaved. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "model/tensor_kind.h"
#include "tools/convert.h"

typedef struct {
    const bt_gguf_tensor *t;
    uint64_t              first;  /* element of t where it begins */
    const bt_gguf_tensor *values; /* of kv_b_proj in two tensors: t has the keys; else NULL */
} source;

struct bt_convert_weights {
    const bt_gguf        *g;
    const bt_synth_shape *shape;
    const bt_synth_list  *list;
    source               *sources; /* owned: [list->n] */
    bool                 *used;    /* owned: by tensor of the file */

    /* The head of a kv_b_proj that was put together last. */
    bt_bf16 *keys, *head; /* owned: [kv_lora_rank][qk_nope_dim], [qk_nope_dim + v_dim][..rank] */
    size_t   head_of;     /* tensor of the list */
    uint64_t head_no;
};

static const struct {
    const char *to, *from; /* within a layer */
} NAMES[] = {
    {"input_layernorm.weight",              "attn_norm.weight"     },
    {"post_attention_layernorm.weight",     "ffn_norm.weight"      },
    {"self_attn.q_proj.weight",             "attn_q.weight"        },
    {"self_attn.q_a_proj.weight",           "attn_q_a.weight"      },
    {"self_attn.q_a_layernorm.weight",      "attn_q_a_norm.weight" },
    {"self_attn.q_b_proj.weight",           "attn_q_b.weight"      },
    {"self_attn.kv_a_proj_with_mqa.weight", "attn_kv_a_mqa.weight" },
    {"self_attn.kv_a_layernorm.weight",     "attn_kv_a_norm.weight"},
    {"self_attn.kv_b_proj.weight",          "attn_kv_b.weight"     },
    {"self_attn.o_proj.weight",             "attn_output.weight"   },
    {"mlp.gate_proj.weight",                "ffn_gate.weight"      },
    {"mlp.up_proj.weight",                  "ffn_up.weight"        },
    {"mlp.down_proj.weight",                "ffn_down.weight"      },
    {"mlp.gate.weight",                     "ffn_gate_inp.weight"  },
    {"mlp.gate.e_score_correction_bias",    "exp_probs_b.bias"     },
    {"mlp.shared_experts.gate_proj.weight", "ffn_gate_shexp.weight"},
    {"mlp.shared_experts.up_proj.weight",   "ffn_up_shexp.weight"  },
    {"mlp.shared_experts.down_proj.weight", "ffn_down_shexp.weight"},
};

/* The tensor of that name, which must be there with these dimensions. */
BT_PRINTF(6, 7)
static bt_status find(bt_convert_weights *w, uint64_t ne0, uint64_t ne1, uint64_t ne2,
                      const bt_gguf_tensor **t_out, const char *format, ...)
{
    bt_status             st = BT_OK;
    const bt_gguf_tensor *t;
    char                  name[BT_GGUF_NAME_BYTES];
    va_list               args;

    va_start(args, format);
    vsnprintf(name, sizeof(name), format, args);
    va_end(args);
    t = bt_gguf_find(w->g, name);
    BT_REQUIRE(t != NULL, BT_ERR_FORMAT,
               "%s: tensor %s: expected {%llu, %llu, %llu}, found nothing", bt_gguf_path(w->g),
               name, (unsigned long long)ne0, (unsigned long long)ne1, (unsigned long long)ne2);
    BT_REQUIRE(t->ne[0] == ne0 && t->ne[1] == ne1 && t->ne[2] == ne2 && t->ne[3] == 1,
               BT_ERR_FORMAT,
               "%s: tensor %s: expected {%llu, %llu, %llu}, found {%llu, %llu, %llu, %llu}",
               bt_gguf_path(w->g), name, (unsigned long long)ne0, (unsigned long long)ne1,
               (unsigned long long)ne2, (unsigned long long)t->ne[0], (unsigned long long)t->ne[1],
               (unsigned long long)t->ne[2], (unsigned long long)t->ne[3]);
    w->used[t - bt_gguf_at(w->g, 0)] = true;
    *t_out                           = t;
out:
    return st;
}

static bool has(const bt_convert_weights *w, unsigned layer, const char *name)
{
    char full[BT_GGUF_NAME_BYTES];

    snprintf(full, sizeof(full), "blk.%u.%s", layer, name);
    return bt_gguf_find(w->g, full) != NULL;
}

static bt_status find_kv_b(bt_convert_weights *w, unsigned layer, source *s)
{
    bt_status             st = BT_OK;
    const bt_synth_shape *m  = w->shape;

    BT_TRY(find(w, m->qk_nope_dim, m->kv_lora_rank, m->n_heads, &s->t, "blk.%u.attn_k_b.weight",
                layer));
    BT_TRY(find(w, m->kv_lora_rank, m->v_dim, m->n_heads, &s->values, "blk.%u.attn_v_b.weight",
                layer));
out:
    return st;
}

/* `which` is 'g', 'u' or 'd': its gate, up or down projection. */
static bt_status find_expert(bt_convert_weights *w, const bt_synth_tensor *to, unsigned layer,
                             unsigned expert, char which, source *s)
{
    bt_status st   = BT_OK;
    uint64_t  rows = to->shape[0], columns = to->shape[1];
    uint32_t  n = w->shape->n_experts;

    if (which != 'd' && has(w, layer, "ffn_gate_up_exps.weight")) { /* of each, gate, then up */
        BT_TRY(find(w, columns, 2 * rows, n, &s->t, "blk.%u.ffn_gate_up_exps.weight", layer));
        s->first = (2ull * expert + (which == 'u')) * rows * columns;
    } else {
        BT_TRY(find(w, columns, rows, n, &s->t, "blk.%u.ffn_%s_exps.weight", layer,
                    which == 'g'   ? "gate"
                    : which == 'u' ? "up"
                                   : "down"));
        s->first = expert * rows * columns;
    }
out:
    return st;
}

static bt_status find_in_layer(bt_convert_weights *w, const bt_synth_tensor *to, unsigned layer,
                               const char *name, source *s)
{
    bt_status st = BT_OK;
    size_t    i  = 0;
    unsigned  expert;
    char      which;

    if (sscanf(name, "mlp.experts.%u.%c", &expert, &which) == 2) {
        BT_TRY(find_expert(w, to, layer, expert, which, s));
        goto out;
    }
    while (strcmp(name, NAMES[i].to) != 0) /* bt_synth_list_make() knows no other */
        i++;
    if (strcmp(NAMES[i].from, "attn_kv_b.weight") == 0 && !has(w, layer, NAMES[i].from))
        BT_TRY(find_kv_b(w, layer, s));
    else
        BT_TRY(find(w, to->n_dims == 1 ? to->shape[0] : to->shape[1],
                    to->n_dims == 1 ? 1 : to->shape[0], 1, &s->t, "blk.%u.%s", layer,
                    NAMES[i].from));
out:
    return st;
}

static bt_status find_source(bt_convert_weights *w, const bt_synth_tensor *to, source *s)
{
    bt_status st   = BT_OK;
    bool      tied = bt_gguf_find(w->g, "output.weight") == NULL;
    unsigned  layer;
    int       n = 0;

    if (sscanf(to->name, "model.layers.%u.%n", &layer, &n) == 1 && n != 0)
        BT_TRY(find_in_layer(w, to, layer, to->name + n, s));
    else if (strcmp(to->name, "model.norm.weight") == 0)
        BT_TRY(find(w, to->shape[0], 1, 1, &s->t, "output_norm.weight"));
    else if (strcmp(to->name, "lm_head.weight") == 0 && !tied)
        BT_TRY(find(w, to->shape[1], to->shape[0], 1, &s->t, "output.weight"));
    else
        BT_TRY(find(w, to->shape[1], to->shape[0], 1, &s->t, "token_embd.weight"));
out:
    return st;
}

/* Left over may be the layers for multi-token prediction, and the second form of kv_b_proj.  The
 * former are what nextn_predict_layers says only if they have what it takes to predict. */
static bt_status refuse_unknown(const bt_convert_weights *w, uint32_t n_mtp)
{
    bt_status st = BT_OK;

    for (size_t i = 0; i < bt_gguf_count(w->g); i++) {
        const char *name = bt_gguf_at(w->g, i)->name;
        uint32_t    layer;
        const char *rest     = bt_tensor_name_index(name, "blk.", &layer);
        bool        in_layer = rest != NULL;
        bool in_mtp = in_layer && layer >= w->shape->n_layers && layer - w->shape->n_layers < n_mtp;
        bool twice  = in_layer && layer < w->shape->n_layers &&
                     (strcmp(rest, "attn_k_b.weight") == 0 || strcmp(rest, "attn_v_b.weight") == 0);

        BT_REQUIRE(w->used[i] || in_mtp || twice, BT_ERR_UNSUPPORTED,
                   "%s: tensor %s: the model that the keys describe has no place for it",
                   bt_gguf_path(w->g), name);
        BT_REQUIRE(!in_mtp || has(w, layer, "nextn.eh_proj.weight"), BT_ERR_FORMAT,
                   "%s: tensor blk.%u.nextn.eh_proj.weight: expected it in one of the last "
                   "nextn_predict_layers (%u), found nothing: is this a layer of the model itself?",
                   bt_gguf_path(w->g), layer, n_mtp);
    }
out:
    return st;
}

bt_status bt_convert_weights_find(const bt_gguf *g, const bt_synth_shape *shape, uint32_t n_mtp,
                                  const bt_synth_list *list, bt_convert_weights **weights_out)
{
    bt_status           st   = BT_OK;
    bt_convert_weights *w    = bt_calloc(1, sizeof(*w));
    size_t              rank = shape->kv_lora_rank, nope = shape->qk_nope_dim;

    BT_REQUIRE(w != NULL, BT_ERR_NO_MEMORY, "%s: %zu tensors", bt_gguf_path(g), list->n);
    *w = (bt_convert_weights){.g       = g,
                              .shape   = shape,
                              .list    = list,
                              .sources = bt_calloc(list->n, sizeof(*w->sources)),
                              .used    = bt_calloc(bt_gguf_count(g), sizeof(*w->used)),
                              .head_of = SIZE_MAX};
    BT_REQUIRE(w->sources != NULL && w->used != NULL, BT_ERR_NO_MEMORY, "%s: %zu tensors",
               bt_gguf_path(g), list->n);
    for (size_t i = 0; i < list->n; i++)
        BT_TRY(find_source(w, &list->tensors[i], &w->sources[i]));
    BT_TRY(refuse_unknown(w, n_mtp));
    w->keys = bt_calloc(rank * nope, sizeof(*w->keys));
    w->head = bt_calloc(rank * (nope + shape->v_dim), sizeof(*w->head));
    BT_REQUIRE(w->keys != NULL && w->head != NULL, BT_ERR_NO_MEMORY, "%s: a head of kv_b_proj",
               bt_gguf_path(g));
    *weights_out = w;
    w            = NULL;
out:
    bt_convert_weights_free(w);
    return st;
}

void bt_convert_weights_free(bt_convert_weights *w)
{
    if (w == NULL) return;
    bt_free(w->sources);
    bt_free(w->used);
    bt_free(w->keys);
    bt_free(w->head);
    bt_free(w);
}

static void load_head(bt_convert_weights *w, size_t i, uint64_t no)
{
    const source *s    = &w->sources[i];
    size_t        rank = w->shape->kv_lora_rank, nope = w->shape->qk_nope_dim,
           values = rank * w->shape->v_dim;

    if (w->head_of == i && w->head_no == no) return;
    bt_gguf_read_bf16(s->t, no * rank * nope, rank * nope, w->keys);
    for (size_t d = 0; d < nope; d++)
        for (size_t c = 0; c < rank; c++)
            w->head[d * rank + c] = w->keys[c * nope + d];
    bt_gguf_read_bf16(s->values, no * values, values, w->head + nope * rank);
    w->head_of = i;
    w->head_no = no;
}

static void fill_kv_b(bt_convert_weights *w, size_t i, uint64_t first, size_t n, bt_bf16 *out)
{
    size_t head = (size_t)w->shape->kv_lora_rank * (w->shape->qk_nope_dim + w->shape->v_dim);

    for (size_t part; n != 0; n -= part, first += part, out += part) {
        size_t at = first % head;

        part = head - at < n ? head - at : n;
        load_head(w, i, first / head);
        memcpy(out, w->head + at, part * sizeof(*out));
    }
}

void bt_convert_fill(void *weights, size_t i, uint64_t first, size_t n, void *out)
{
    bt_convert_weights *w = weights;
    const source       *s = &w->sources[i];

    if (s->values != NULL)
        fill_kv_b(w, i, first, n, out);
    else if (w->list->tensors[i].dtype == BT_ST_F32)
        bt_gguf_read_f32(s->t, s->first + first, n, out);
    else
        bt_gguf_read_bf16(s->t, s->first + first, n, out);
}

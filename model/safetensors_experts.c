/* Experts of a layer in one tensor, as Mistral's and others' checkpoints have them: the tensors of
 * each that it stands for. */
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "model/json.h"
#include "model/safetensors_header.h"
#include "model/tensor_kind.h"

enum { NAME_BYTES = 160 };

/* What such a tensor holds of each expert: `parts` one below the other. */
typedef struct {
    const char *end;
    uint32_t    n_parts;
    const char *parts[2];
    bool        scale; /* one element an expert, of each part */
} stacked;

/* clang-format off */
static const stacked STACKED[] = {
    {".experts.gate_up_proj",           2, {"gate_proj.weight", "up_proj.weight"},                     false},
    {".experts.down_proj",              1, {"down_proj.weight"},                                       false},
    {".experts.gate_up_proj_scale_inv", 2, {"gate_proj.weight_scale_inv", "up_proj.weight_scale_inv"}, true},
    {".experts.down_proj_scale_inv",    1, {"down_proj.weight_scale_inv"},                             true},
};
/* clang-format on */
enum { N_STACKED = sizeof(STACKED) / sizeof(STACKED[0]) };

/* NULL: it is none. */
static const stacked *stacked_of(const bt_tensor *t)
{
    for (size_t i = 0; i < N_STACKED; i++)
        if (bt_tensor_name_ends(t->name, STACKED[i].end)) return &STACKED[i];
    return NULL;
}

bt_status bt_st_count_stacked(const bt_tensor *t, size_t *n_out)
{
    bt_status      st  = BT_OK;
    const stacked *s   = stacked_of(t);
    uint64_t       one = 1; /* elements of an expert */
    char           label[NAME_BYTES];

    if (s == NULL) {
        *n_out = 0;
        goto out;
    }
    for (uint32_t d = 1; d < t->n_dims; d++)
        one *= t->shape[d];
    BT_REQUIRE(bt_st_dtype_bytes(t->dtype) != 0 && t->bytes >= t->shape[0] &&
                   t->shape[0] <= UINT16_MAX,
               BT_ERR_UNSUPPORTED,
               "%s: tensor %s: expected whole bytes for each of at most %d experts, found %zu of "
               "%s for %llu",
               t->file, bt_json_printable(t->name, label, sizeof(label)), UINT16_MAX, t->bytes,
               bt_st_dtype_name(t->dtype), (unsigned long long)t->shape[0]);
    if (s->scale)
        BT_REQUIRE(t->n_dims >= 1 && one == 1, BT_ERR_UNSUPPORTED,
                   "%s: tensor %s: expected one scale for each expert, found %u dimensions and "
                   "%llu scales for each",
                   t->file, bt_json_printable(t->name, label, sizeof(label)), t->n_dims,
                   (unsigned long long)one);
    else
        BT_REQUIRE(t->n_dims == 3 && t->shape[1] % s->n_parts == 0, BT_ERR_UNSUPPORTED,
                   "%s: tensor %s: expected [experts, rows of %u equal parts, columns], found %u "
                   "dimensions, the first two of %llu and %llu",
                   t->file, bt_json_printable(t->name, label, sizeof(label)), s->n_parts, t->n_dims,
                   (unsigned long long)(t->n_dims > 0 ? t->shape[0] : 0),
                   (unsigned long long)(t->n_dims > 1 ? t->shape[1] : 0));
    *n_out = (size_t)t->shape[0] * s->n_parts;
out:
    return st;
}

bt_status bt_st_unstack(const bt_tensor *all, size_t i, bt_tensor *t_out)
{
    bt_status      st     = BT_OK;
    const stacked *s      = stacked_of(all);
    size_t         expert = i / s->n_parts, part = i % s->n_parts;
    size_t         head = strlen(all->name) - strlen(s->end), room = strlen(all->name) + 64;
    size_t         bytes = all->bytes / all->shape[0];
    char          *name  = bt_calloc(room, 1);

    BT_REQUIRE(name != NULL, BT_ERR_NO_MEMORY, "the name of an expert's tensor");
    snprintf(name, room, "%.*s.experts.%zu.%s", (int)head, all->name, expert, s->parts[part]);
    *t_out = (bt_tensor){.name  = name,
                         .file  = all->file,
                         .dtype = all->dtype,
                         .data  = (const char *)all->data + expert * bytes,
                         .bytes = bytes};
    if (s->scale) goto out;
    t_out->n_dims   = 2;
    t_out->shape[0] = all->shape[1] / s->n_parts;
    t_out->shape[1] = all->shape[2];
    t_out->bytes    = bytes / s->n_parts;
    t_out->data     = (const char *)t_out->data + part * t_out->bytes;
out:
    return st;
}

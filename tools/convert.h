/* tools/convert.h - the parts that a GGUF checkpoint is turned into. */
#ifndef BT_TOOLS_CONVERT_H
#define BT_TOOLS_CONVERT_H

#include <string.h>

#include "model/gguf.h"
#include "tools/synth_tensors.h"

#ifdef __cplusplus
extern "C" {
#endif

static inline bool bt_convert_is(bt_gguf_text text, const char *what)
{
    return text.n == strlen(what) && memcmp(text.text, what, text.n) == 0;
}

/* The sizes and rules that the keys tell.  n_mtp_out: layers for multi-token prediction, which
 * follow the shape's own and are left out.  UNSUPPORTED names what no config.json of the family
 * can say. */
bt_status bt_convert_shape(const bt_gguf *g, bt_synth_shape *shape_out, uint32_t *n_mtp_out);

typedef struct bt_convert_weights bt_convert_weights;

/* Finds what each tensor of the list comes from.  FORMAT names a tensor that is missing or of other
 * dimensions, UNSUPPORTED one that the model, with n_mtp layers after its own, has no place for.
 * What is pointed to is borrowed for the life of what comes out. */
bt_status bt_convert_weights_find(const bt_gguf *g, const bt_synth_shape *shape, uint32_t n_mtp,
                                  const bt_synth_list *list, bt_convert_weights **weights_out);
void      bt_convert_weights_free(bt_convert_weights *weights); /* NULL is allowed */
/* The filler of a bt_synth_job. */
void bt_convert_fill(void *weights, size_t i, uint64_t first, size_t n, void *out);

/* Writes tokenizer.json and tokenizer_config.json into the directory, and reads them back.
 * *why_not_out is NULL, or says why there are none: borrowed until the next call. */
bt_status bt_convert_tokenizer(const bt_gguf *g, uint32_t vocab_size, const char *dir,
                               const char **why_not_out);

#ifdef __cplusplus
}
#endif
#endif

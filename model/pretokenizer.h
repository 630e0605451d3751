/* model/pretokenizer.h - cuts text into the pieces that are tokenised on their own.
 *
 * The pre_tokenizer of tokenizer.json: a list of Split and Digits steps, each run on the pieces
 * that the one before left, matches and gaps both becoming pieces; ByteLevel ends the list.  The
 * file's own regexes run, by PCRE2; what PCRE2 would read otherwise than Hugging Face's engine
 * (Oniguruma) is rewritten or refused.
 *
 * Threads: cutting is safe from several threads, each with its own bt_pretokens. */
#ifndef BT_MODEL_PRETOKENIZER_H
#define BT_MODEL_PRETOKENIZER_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct bt_pretokenizer bt_pretokenizer;

/* `where` names the file in errors.  FORMAT, or UNSUPPORTED with the name of what is unknown. */
bt_status bt_pretokenizer_create(const char *where, const json_t *spec, bt_pretokenizer **pre_out);
void      bt_pretokenizer_destroy(bt_pretokenizer *pre);

typedef struct {
    uint32_t at, n;
} bt_pretoken;

/* The pieces of the latest cut, and workspace; all zero at first. */
typedef struct {
    bt_pretoken *pieces; /* owned: [capacity] */
    size_t       n, capacity;
    bt_pretoken *before; /* owned: what the step before left */
    size_t       before_capacity;
    void        *match; /* owned: PCRE2's match data */
} bt_pretokens;
void bt_pretokens_fini(bt_pretokens *pieces);

/* Cuts text (valid UTF-8, at most INT32_MAX bytes) into pieces->pieces, none empty.  NO_MEMORY;
 * INVALID_ARG: PCRE2 has given up. */
bt_status bt_pretokenizer_cut(const bt_pretokenizer *pre, const char *text, size_t n,
                              bt_pretokens *pieces);

/* The regex as PCRE2 has to be given it; NO_MEMORY or UNSUPPORTED.  Owned by the caller. */
bt_status bt_pretokenizer_translate(const char *where, const char *regex, char **pcre_out);

#ifdef __cplusplus
}
#endif
#endif

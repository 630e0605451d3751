/* model/unicode_added.h - what the regexes of Hugging Face's `tokenizers` know of Unicode and an
 * older PCRE2 does not: ranges for a class, next to PCRE2's own property.  A PCRE2 that knows
 * them already loses nothing.  unicode_added.c says how they were made. */
#ifndef BT_MODEL_UNICODE_ADDED_H
#define BT_MODEL_UNICODE_ADDED_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    uint32_t    first, last; /* code points, both inclusive */
    const char *name;        /* a general category of two letters, or a script */
} bt_unicode_range;

extern const bt_unicode_range bt_unicode_added[]; /* [bt_unicode_n_added] */
extern const size_t           bt_unicode_n_added;

/* One digit, as a step "Digits" has them: a regex to be translated like those of a file. */
extern const char bt_unicode_digits[];

#ifdef __cplusplus
}
#endif
#endif

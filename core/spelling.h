/* core/spelling.h - names that may be meant for others. */
#ifndef BT_CORE_SPELLING_H
#define BT_CORE_SPELLING_H

#include <stdint.h>

/* How many letters of one name have to be put in, left out or changed to make the other
 * (Levenshtein's distance); UINT32_MAX for names of over 64. */
uint32_t bt_letters_apart(const char *a, const char *b);

#endif

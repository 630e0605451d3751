/* core/spelling.h - names that may be meant for others. */
#ifndef BT_CORE_SPELLING_H
#define BT_CORE_SPELLING_H

#include <stddef.h>

/* How many letters of one name have to be put in, left out or changed to make the other
 * (Levenshtein's distance); SIZE_MAX for names of over 64. */
size_t bt_letters_apart(const char *a, const char *b);

#endif

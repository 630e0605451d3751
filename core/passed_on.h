/* core/passed_on.h - flags that one program reads and passes on to another that it starts. */
#ifndef BT_CORE_PASSED_ON_H
#define BT_CORE_PASSED_ON_H

#include <stddef.h>
#include <stdint.h>

enum { BT_PASSED_ON = 40 }; /* a rank's, all that there are, need 33 */

/* Arguments of another program, each flag once; strings are borrowed. */
typedef struct {
    const char *args[BT_PASSED_ON];
    uint32_t    n;
} bt_passed_on;

/* The last value of a flag counts. */
void bt_pass_on(bt_passed_on *to, const char *flag, const char *value);
/* A flag without a value. */
void bt_pass_flag(bt_passed_on *to, const char *flag);
/* What goes with the flag, borrowed; NULL: nothing. */
const char *bt_passed_value(const bt_passed_on *to, const char *flag);

/* Puts a word behind the *n that argv has; and a flag with its value, unless that is NULL. */
static inline void bt_add_word(char **argv, size_t *n, const char *word)
{
    argv[(*n)++] = (char *)word;
}
static inline void bt_add_flag(char **argv, size_t *n, const char *flag, const char *value)
{
    if (value == NULL) return;
    bt_add_word(argv, n, flag);
    bt_add_word(argv, n, value);
}

#endif

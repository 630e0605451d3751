#include "core/spelling.h"

#include <stdint.h>
#include <string.h>

enum { NAME_MAX_LETTERS = 64 };

static size_t least(size_t a, size_t b) { return a < b ? a : b; }

size_t bt_letters_apart(const char *a, const char *b)
{
    size_t row[NAME_MAX_LETTERS + 1], n = strlen(a), m = strlen(b);

    if (n > NAME_MAX_LETTERS || m > NAME_MAX_LETTERS) return SIZE_MAX;
    for (size_t j = 0; j <= m; j++)
        row[j] = j;
    for (size_t i = 1; i <= n; i++) {
        size_t corner = row[0]; /* of the row before */

        row[0] = i;
        for (size_t j = 1; j <= m; j++) {
            size_t changed = corner + (a[i - 1] != b[j - 1]);

            corner = row[j];
            row[j] = least(changed, 1 + least(row[j], row[j - 1]));
        }
    }
    return row[m];
}

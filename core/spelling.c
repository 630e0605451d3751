#include "core/spelling.h"

#include <string.h>

#include "core/minmax.h"

enum { NAME_MAX_LETTERS = 64 };

uint32_t bt_letters_apart(const char *a, const char *b)
{
    uint32_t row[NAME_MAX_LETTERS + 1], n, m;

    if (strlen(a) > NAME_MAX_LETTERS || strlen(b) > NAME_MAX_LETTERS) return UINT32_MAX;
    n = (uint32_t)strlen(a);
    m = (uint32_t)strlen(b);
    for (uint32_t j = 0; j <= m; j++)
        row[j] = j;
    for (uint32_t i = 1; i <= n; i++) {
        uint32_t corner = row[0]; /* of the row before */

        row[0] = i;
        for (uint32_t j = 1; j <= m; j++) {
            uint32_t changed = corner + (a[i - 1] != b[j - 1]);

            corner = row[j];
            row[j] = bt_min_u32(changed, 1 + bt_min_u32(row[j], row[j - 1]));
        }
    }
    return row[m];
}

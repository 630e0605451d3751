#include "core/parse.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

bool bt_parse_bytes(const char *text, uint64_t *bytes_out)
{
    static const char  SUFFIXES[] = "KMGT";
    char              *end        = NULL;
    unsigned long long value;
    const char        *suffix;
    unsigned           shift = 0;

    if (text[0] < '0' || text[0] > '9') return false; /* strtoull takes signs and blanks */
    errno = 0;
    value = strtoull(text, &end, 10);
    if (errno != 0) return false;
    if (*end != '\0') {
        suffix = strchr(SUFFIXES, *end >= 'a' && *end <= 'z' ? *end - 'a' + 'A' : *end);
        if (suffix == NULL || end[1] != '\0') return false;
        shift = 10 * (unsigned)(suffix - SUFFIXES + 1);
    }
    if (shift != 0 && value >> (64 - shift) != 0) return false;
    *bytes_out = (uint64_t)value << shift;
    return true;
}

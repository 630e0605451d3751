/* Says for each line of its input, KIND TAB REGEX TAB TEXT, whether the text matches: 0, 1, or why
 * the regex is refused.  KIND is w (the whole text) or s (somewhere in it).  For regex_oracle.py.
 */
#include "core/alloc.h"
#include "tests/model/grammar_check.h"

enum { LINE_BYTES = 4096 };

static bt_matcher *read_regex(const char *kind, const char *regex, char *why)
{
    bt_parts g = {0};
    bt_part  p = bt_read_regex(&g, regex, strlen(regex), kind[0] == 'w', false);

    return matcher_of(&g, p, NULL, why);
}

int main(void)
{
    char        line[LINE_BYTES], last[LINE_BYTES] = "", why[BT_GRAMMAR_WHY_BYTES] = "";
    bt_matcher *m = NULL;

    while (fgets(line, sizeof(line), stdin) != NULL) {
        char *regex = strchr(line, '\t'), *text = regex == NULL ? NULL : strchr(regex + 1, '\t');

        if (text == NULL || strchr(text, '\n') == NULL) abort();
        *text++                   = '\0';
        text[strcspn(text, "\n")] = '\0';
        *regex++                  = '\0';
        if (regex[-2] != last[0] || strcmp(regex, last + 1) != 0) {
            bt_matcher_destroy(m);
            last[0] = regex[-2];
            strcpy(last + 1, regex);
            m = read_regex(last, regex, why);
        }
        puts(m == NULL ? why : judge(m, text) == ACCEPTS ? "1" : "0");
    }
    bt_matcher_destroy(m);
    return 0;
}

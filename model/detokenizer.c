#include <string.h>

#include "core/log.h"
#include "model/tokenizer.h"
#include "model/utf8.h"

/* Shows what is certain of state->held followed by bytes[0..n): whole characters as they are,
 * ill-formed parts as U+FFFD; what may still become a character is held.  Returns bytes written. */
static size_t show(bt_detokenizer *state, const char *bytes, size_t n, char *buf)
{
    size_t at = 0, taken = 0;

    while (state->n_held + n - taken > 0) {
        char         head[sizeof(state->held) + 4]; /* enough to judge the next character */
        size_t       n_new = n - taken < 4 ? n - taken : 4, length;
        bt_utf8_kind kind;

        memcpy(head, state->held, state->n_held);
        memcpy(head + state->n_held, bytes + taken, n_new);
        length = bt_utf8_next(head, state->n_held + n_new, &kind);
        if (kind == BT_UTF8_CUT) { /* only at the very end: four bytes decide */
            memcpy(state->held, head, length);
            state->n_held = length;
            break;
        }
        BT_ASSERT(length >= state->n_held); /* what is held is a good beginning */
        memcpy(buf + at, kind == BT_UTF8_GOOD ? head : BT_UTF8_REPLACEMENT,
               kind == BT_UTF8_GOOD ? length : 3);
        at += kind == BT_UTF8_GOOD ? length : 3;
        taken += length - state->n_held;
        state->n_held = 0;
    }
    return at;
}

size_t bt_detokenize(const bt_tokenizer *tok, bt_detokenizer *state, uint32_t id, bool keep_special,
                     char *buf, size_t capacity)
{
    bool        special = false;
    size_t      n       = 0;
    const char *bytes   = bt_tokenizer_bytes(tok, id, &n, &special);

    BT_ASSERT(capacity >= n * 3 + 16);
    return special && !keep_special ? 0 : show(state, bytes, n, buf);
}

size_t bt_detokenize_end(bt_detokenizer *state, char *buf, size_t capacity)
{
    size_t n = state->n_held == 0 ? 0 : 3;

    BT_ASSERT(capacity >= n);
    memcpy(buf, BT_UTF8_REPLACEMENT, n);
    state->n_held = 0;
    return n;
}

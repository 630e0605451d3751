/* model/jinja/jinja.h - a chat template on a conversation: the part of Jinja that chat templates
 * use, as Hugging Face runs it (trim_blocks, lstrip_blocks, break and continue).
 *
 * Beyond that part, tags and grammar are refused by name and line; so are filters, tests, methods
 * and functions, but only when they are reached: branches for tools are not.  Threads: any.
 * Semantics: the documentation of Jinja 3.1, and tests/oracles/chat_cases.py against the library.
 */
#ifndef BT_MODEL_JINJA_H
#define BT_MODEL_JINJA_H

#include "model/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* All borrowed for the call. */
typedef struct {
    const char            *name;     /* of the template's file, for errors */
    const char            *text;     /* the template */
    const bt_chat_message *messages; /* [n_messages] */
    size_t                 n_messages;
    const char            *bos, *eos; /* bos_token and eos_token, or NULL: undefined */
    bt_chat_think          think;
} bt_jinja_chat;

/* The text with the prompt for an answer (add_generation_prompt); *text_out is owned by the caller
 * (bt_free).  FORMAT: not a template; UNSUPPORTED: more than this part of Jinja; INVALID_ARG: what
 * the template itself refuses (raise_exception).  A template cannot take more than 256 MiB or
 * 20,000,000 steps. */
bt_status bt_jinja_render(const bt_jinja_chat *chat, char **text_out);

#ifdef __cplusplus
}
#endif
#endif

/* cli/answer.h - an answer as it comes: text, token lines or one JSON object on stdout.
 *
 * With one choice text is written as it comes; what may belong to a stop text is held back, and
 * what matched is cut off, since the server delivers the tokens of a match whole.  Several choices
 * are written when all are complete. */
#ifndef BT_CLI_ANSWER_H
#define BT_CLI_ANSWER_H

#include <jansson.h>

#include "cli/client.h"
#include "model/tokenizer.h"

/* One choice. */
typedef struct {
    char          *text; /* owned, terminated */
    size_t         n, capacity, shown;
    size_t         last;      /* where the text of its last token begins */
    bool           ends_mark; /* and that is a special one */
    bt_detokenizer state;
    json_t        *ids, *logprobs, *tops; /* owned */
} bt_answer_choice;

typedef struct {
    const bt_client_request *request; /* borrowed */
    bt_tokenizer            *tokenizer;
    bool                     json;
    size_t                   hold; /* bytes before the last token that may begin a stop text */
    json_t                  *prompt_logprobs, *prompt_tops; /* owned */
    bool                     no_memory;
    int                      out_error; /* errno of the first failed write to stdout, or 0 */
    void (*on_lost)(void);              /* called once then */
    bt_answer_choice choices[BT_CLIENT_CHOICES];
} bt_answer;

void bt_answer_init(bt_answer *answer, const bt_client_request *request, bt_tokenizer *tokenizer,
                    bool json, void (*on_lost)(void));
void bt_answer_fini(bt_answer *answer);
/* A bt_client_tokens_fn; ctx is the answer. */
void bt_answer_tokens(void *ctx, const bt_client_tokens *tokens);
/* All is here: what was held back, the JSON object. */
bt_status bt_answer_finish(bt_answer *answer, const bt_client_result *result);
/* A line's end behind an answer that was cut off. */
void bt_answer_cut(bt_answer *answer);

#endif

/* model/tokenizer.h - byte-level BPE of tokenizer.json, tiktoken.model or tekken.json, and chat
 * templates (model/jinja/).
 *
 * Pre-tokenizers: V3's three Splits and V2's Splits, both exactly as Hugging Face `tokenizers` runs
 * them (each Split works on the pieces that the one before left), the regex that comes with
 * tiktoken.model (Kimi-K2, Moonlight), and the one that tekken.json has (Mistral).  Added tokens
 * match before the regexes, longest first, in any text: a template's are rendered into it before.
 *
 * Threads: encode and decode are safe from several threads. */
#ifndef BT_MODEL_TOKENIZER_H
#define BT_MODEL_TOKENIZER_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct bt_tokenizer bt_tokenizer;

/* JSON text: the pre-tokenizer of tiktoken.model, as a tokenizer.json has it. */
extern const char bt_tiktoken_pre[];

/* The file with a model directory's tokenizer, there or not: tokenizer.json, but tiktoken.model or
 * tekken.json where only that is.  The directory's path is under PATH_MAX - 32 bytes. */
void bt_tokenizer_file(const char *dir, char file_out[PATH_MAX]);

/* path: a model directory, or such a file.  The chat template, bos and eos come from
 * tokenizer_config.json and chat_template.jinja beside it, where they are; with tekken.json bos and
 * eos are <s> and </s>, where the former says no others.  IO, FORMAT or UNSUPPORTED names the file
 * and what was expected; NO_MEMORY. */
bt_status bt_tokenizer_open(const char *path, bt_tokenizer **tok_out);
void      bt_tokenizer_close(bt_tokenizer *tok);
uint32_t  bt_tokenizer_vocab_size(const bt_tokenizer *tok); /* highest id + 1 */

/* Ids of `n` bytes of text, without BOS.  Invalid UTF-8 becomes U+FFFD first.  *ids_out is owned by
 * the caller (bt_free).  INVALID_ARG: over 715 MB; NO_MEMORY. */
bt_status bt_tokenizer_encode(const bt_tokenizer *tok, const char *text, size_t n,
                              uint32_t **ids_out, size_t *n_out);

/* The bytes of one token (borrowed for the tokenizer's life); *special_out when it is a special
 * added token. An id outside the vocabulary gives 0 bytes. */
const char *bt_tokenizer_bytes(const bt_tokenizer *tok, uint32_t id, size_t *n_out,
                               bool *special_out);
/* Whether texts are made of it: a token of the vocabulary, or an added one that is not special, as
 * those around calls of tools are.  Of a text that is an added token's no other one is. */
bool bt_tokenizer_is_text(const bt_tokenizer *tok, uint32_t id);
/* -1 when the text is not an added token. */
int64_t bt_tokenizer_added_id(const bt_tokenizer *tok, const char *text);
/* The ids that belong in front of a prompt, none or some: add_bos_token of tokenizer_config.json
 * decides, the post_processor of tokenizer.json where that says nothing (two of GLM-4's), or <s> of
 * tekken.json.  With `always` it is bos_token, whatever they say.  FORMAT when bos_token is needed
 * and is not the text of an added token. */
enum { BT_MAX_FRONT = 8 };
bt_status bt_tokenizer_front(const bt_tokenizer *tok, bool always, uint32_t ids_out[BT_MAX_FRONT],
                             size_t *n_out);

/* Streaming detokenisation: what can be shown now; incomplete UTF-8 stays behind until the next
 * token, or until end. */
typedef struct {
    char   held[8];
    size_t n_held;
} bt_detokenizer;
/* Appends the text of `id` to buf (capacity >= token bytes * 3 + 16) and returns the bytes written;
 * not terminated.  Special tokens are skipped unless keep_special. */
size_t bt_detokenize(const bt_tokenizer *tok, bt_detokenizer *state, uint32_t id, bool keep_special,
                     char *buf, size_t capacity);
/* What is still held, as U+FFFD. */
size_t bt_detokenize_end(bt_detokenizer *state, char *buf, size_t capacity);

typedef struct {
    const char *role; /* "system", "user", "assistant" */
    const char *content;
} bt_chat_message;

/* What a template hears as `thinking` and `enable_thinking`: nothing, true or false. */
typedef enum { BT_THINK_UNSAID, BT_THINK_YES, BT_THINK_NO } bt_chat_think;

/* Renders messages with the model's chat template plus the generation prompt; *text_out is owned by
 * the caller.  A role is system, user or assistant.  UNSUPPORTED when the template knows no
 * thinking, of which `think` says something; errors of the template are those of
 * bt_jinja_render(). */
bt_status bt_tokenizer_chat(const bt_tokenizer *tok, size_t n, const bt_chat_message *messages,
                            bt_chat_think think, char **text_out);

#ifdef __cplusplus
}
#endif
#endif

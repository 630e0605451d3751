/* A conversation in the model's chat template. */
#include <string.h>

#include "model/jinja/jinja.h"
#include "model/tokenizer_parts.h"

/* Tools' answers would need more than a text. */
static bool is_known(const char *role)
{
    return strcmp(role, "system") == 0 || strcmp(role, "user") == 0 ||
           strcmp(role, "assistant") == 0;
}

bt_status bt_tokenizer_chat(const bt_tokenizer *tok, size_t n, const bt_chat_message *messages,
                            bt_chat_think think, char **text_out)
{
    bt_status st = BT_OK;

    BT_REQUIRE(tok->no_chat == NULL, BT_ERR_FORMAT, "%s", tok->no_chat);
    BT_REQUIRE(
        tok->chat_template != NULL, BT_ERR_UNSUPPORTED,
        "%s: expected a chat_template in tokenizer_config.json, or chat_template.jinja, beside "
        "it, found neither: such a model completes text (`baton generate`)",
        tok->path);
    BT_REQUIRE(think == BT_THINK_UNSAID || strstr(tok->chat_template, "thinking") != NULL,
               BT_ERR_UNSUPPORTED,
               "%s: expected a chat template that says when to think, found one without",
               tok->chat_path);
    for (size_t i = 0; i < n; i++)
        BT_REQUIRE(is_known(messages[i].role), BT_ERR_INVALID_ARG,
                   "chat: role: expected system, user or assistant, found \"%.32s\"",
                   messages[i].role);
    BT_TRY(bt_jinja_render(&(bt_jinja_chat){.name       = tok->chat_path,
                                            .text       = tok->chat_template,
                                            .messages   = messages,
                                            .n_messages = n,
                                            .bos        = tok->bos,
                                            .eos        = tok->eos,
                                            .think      = think},
                           text_out));
out:
    return st;
}

/* Any bytes as a chat template: a text, or refused; with an end, and all memory back. */
#include <string.h>

#include "core/alloc.h"
#include "model/jinja/jinja.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const bt_chat_message TALK[] = {
        {"system",    "Be brief."                        },
        {"user",      "Hi\n"                             },
        {"assistant", "<think>hm</think>\n \xe3\x80\x80x"},
        {"user",      "\xff"                             }
    };
    char *template = bt_calloc(n + 1, 1), *text = NULL;
    bt_jinja_chat chat = {.name       = "template",
                          .text       = template,
                          .messages   = TALK,
                          .n_messages = sizeof(TALK) / sizeof(TALK[0]),
                          .bos        = "<bos>"};

    if (template == NULL) return 0;
    memcpy(template, data, n);
    BT_ASSERT((bt_jinja_render(&chat, &text) == BT_OK) == (text != NULL));
    bt_free(text);
    bt_free(template);
    return 0;
}

/* Names of tensors in Mistral's own format, and those that transformers has for them.  The latter
 * keeps the order of elements within heads: both turn neighbours. */
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "model/safetensors_header.h"

typedef struct {
    const char *of, *as;
} pair;

static const pair WHOLE[] = {
    {"tok_embeddings.weight", "model.embed_tokens.weight"},
    {"norm.weight",           "model.norm.weight"        },
    {"output.weight",         "lm_head.weight"           },
};
/* Parts of a layer's; each is replaced where it stands. */
static const pair PARTS[] = {
    {".attention_norm.",           ".input_layernorm."             },
    {".ffn_norm.",                 ".post_attention_layernorm."    },
    {".attention.wq.",             ".self_attn.q_proj."            },
    {".attention.wq_a.",           ".self_attn.q_a_proj."          },
    {".attention.q_a_norm.",       ".self_attn.q_a_layernorm."     },
    {".attention.wq_b.",           ".self_attn.q_b_proj."          },
    {".attention.wkv_a_with_mqa.", ".self_attn.kv_a_proj_with_mqa."},
    {".attention.kv_a_norm.",      ".self_attn.kv_a_layernorm."    },
    {".attention.wkv_b.",          ".self_attn.kv_b_proj."         },
    {".attention.wo.",             ".self_attn.o_proj."            },
    {".gate.",                     ".mlp.gate."                    },
    {".feed_forward.",             ".mlp."                         },
    {".shared_experts.",           ".mlp.shared_experts."          },
    {".experts.",                  ".mlp.experts."                 },
    {".w1.",                       ".gate_proj."                   },
    {".w2.",                       ".down_proj."                   },
    {".w3.",                       ".up_proj."                     },
};
#define COUNT(list) (sizeof(list) / sizeof((list)[0]))

static void replace(char *name, size_t room, const pair *p)
{
    char  *at = strstr(name, p->of);
    size_t n = strlen(p->of), m = strlen(p->as);

    if (at == NULL || strlen(name) + m >= room) return;
    memmove(at + m, at + n, strlen(at + n) + 1);
    memcpy(at, p->as, m);
}

bt_status bt_st_name_of_mistral(const char *name, char **name_out)
{
    bt_status st   = BT_OK;
    size_t    room = strlen(name) + 128; /* for all that PARTS adds */
    char     *as   = NULL;

    if (strncmp(name, "layers.", strlen("layers.")) == 0) {
        as = bt_calloc(room, 1);
        BT_REQUIRE(as != NULL, BT_ERR_NO_MEMORY, "tensor %.64s", name);
        snprintf(as, room, "model.%s", name);
        for (size_t i = 0; i < COUNT(PARTS); i++)
            replace(as, room, &PARTS[i]);
    }
    for (size_t i = 0; i < COUNT(WHOLE); i++) {
        if (strcmp(name, WHOLE[i].of) != 0) continue;
        as = bt_strdup(WHOLE[i].as);
        BT_REQUIRE(as != NULL, BT_ERR_NO_MEMORY, "tensor %s", name);
    }
    *name_out = as;
out:
    return st;
}

#include "tools/profile/model.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "tools/census.h"

/* Rope frequencies are the plain ones, since YaRN's ramp changes no cost; the softmax scale is the
 * model's.  total: the sum of all tensors, without MTP. */
typedef struct {
    const char *names; /* separated by "|", the first is the one printed */
    const char *title;
    uint32_t    hidden, layers, heads, q_lora, c, dn, dr, dv;
    uint32_t    moe_layers, expert_dim, n_experts;
    double      theta, yarn_factor, mscale;
    double      total;
    const char *note;
} row;

static const char SPARSE[] = "the model attends to some positions of longer contexts only "
                             "(index_topk: 2,048); figures here are those of dense MLA";

static const row ROWS[] = {
    {"v2|v2.5",         "DeepSeek-V2",                    5120, 60, 128, 1536, 512, 128, 64, 128, 59, 1536, 160, 1e4, 40,
     0.707,                                                                                                                  235.741e9, NULL  },
    {"v2-lite",         "DeepSeek-V2-Lite",               2048, 27, 16,  0,    512, 128, 64, 128, 26, 1408, 64,  1e4, 40,
     0.707,                                                                                                                  15.706e9,  NULL  },
    {"v3|r1|v3.1",      "DeepSeek-V3, R1",                7168, 61, 128, 1536, 512, 128, 64, 128, 58, 2048, 256, 1e4,
     40,                                                                                                                  1, 671.026e9, NULL  },
    {"v3.2",            "DeepSeek-V3.2",                  7168, 61, 128, 1536, 512, 128, 64, 128, 58, 2048, 256, 1e4, 40, 1,
     671.878e9,                                                                                                                         SPARSE},
    {"kimi-k2",         "Kimi-K2",                        7168, 61, 64,  1536, 512, 128, 64, 128, 60, 2048, 384, 5e4, 32, 1,
     1026.4e9,                                                                                                                          NULL  },
    {"moonlight",       "Moonlight-16B-A3B",              2048, 27, 16,  0,    512, 128, 64, 128, 26, 1408, 64,  5e4, 1,  1,
     15.960e9,                                                                                                                          NULL  },
    {"glm-flash",       "GLM-4.7-Flash",                  2048, 47, 20,  768,  512, 192, 64, 256, 46, 1536, 64,  1e6, 1,  1,
     29.943e9,                                                                                                                          NULL  },
    {"glm-5",           "GLM-5",                          6144, 78, 64,  2048, 512, 192, 64, 256, 75, 2048, 256, 1e6, 1,  1, 743.9e9,
     SPARSE                                                                                                                                   },
    {"mistral-large-3", "Mistral Large 3",                7168, 61, 128, 1536, 512, 128, 64, 128, 58, 4096, 128,
     1e4,                                                                                                             1,  1, 673.4e9,   NULL  },
    {"mistral-small-4", "Mistral Small 4",                4096, 36, 32,  1024, 256, 64,  64, 128, 36, 2048, 128, 1e4,
     128,                                                                                                                 1, 118.97e9,  NULL  },
    {"longcat-flash",   "LongCat-Flash, two MLA a layer", 6144, 56, 64,  1536, 512, 128, 64, 128, 28,
     2048,                                                                                                  512, 1e7, 1,  1, 560.66e9,  NULL  },
    {"minicpm3",        "MiniCPM3-4B",                    2560, 62, 40,  768,  256, 64,  32, 64,  0,  0,    0,   1e4, 1,  1, 4.07e9,
     NULL                                                                                                                                     },
};
enum { N_ROWS = sizeof(ROWS) / sizeof(ROWS[0]) };

const char *bt_profile_model_names(void)
{
    static char text[N_ROWS * 24];
    size_t      n = 0;

    for (int i = 0; i < N_ROWS; i++)
        n += (size_t)snprintf(text + n, sizeof(text) - n, "%s%.*s", i == 0 ? "" : ", ",
                              (int)strcspn(ROWS[i].names, "|"), ROWS[i].names);
    return text;
}

static bool has_name(const char *names, const char *name)
{
    size_t n = strlen(name);

    for (const char *at = names; *at != '\0'; at += strcspn(at, "|"), at += *at == '|')
        if (n == strcspn(at, "|") && strncmp(at, name, n) == 0) return true;
    return false;
}

static const row *find_row(const char *name)
{
    for (int i = 0; i < N_ROWS; i++)
        if (has_name(ROWS[i].names, name)) return &ROWS[i];
    return NULL;
}

bool bt_profile_model_known(const char *name) { return find_row(name) != NULL; }

static void from_row(const row *r, bt_profile_model *m)
{
    double mscale = r->yarn_factor > 1 ? 0.1 * r->mscale * log(r->yarn_factor) + 1 : 1;

    snprintf(m->title, sizeof(m->title), "%s", r->title);
    m->mla               = (bt_mla_config){.hidden         = r->hidden,
                                           .n_heads        = r->heads,
                                           .q_lora_rank    = r->q_lora,
                                           .kv_lora_rank   = r->c,
                                           .qk_nope_dim    = r->dn,
                                           .qk_rope_dim    = r->dr,
                                           .v_dim          = r->dv,
                                           .latent_eps     = 1e-6f,
                                           .rope_magnitude = 1};
    m->mla.softmax_scale = (float)(mscale * mscale / sqrt((double)r->dn + r->dr));
    for (uint32_t i = 0; i < r->dr / 2; i++)
        m->inv_freq[i] = pow(r->theta, -2.0 * i / r->dr);
    m->n_layers         = r->layers;
    m->attention_params = r->layers * bt_census_attention(&m->mla);
    m->expert_params    = (uint64_t)r->moe_layers * r->n_experts * 3 * r->expert_dim * r->hidden;
    m->other_params     = (uint64_t)r->total - m->attention_params - m->expert_params;
    m->attention_bytes  = 2.0 * (double)m->attention_params;
    m->expert_bytes     = 2.0 * (double)m->expert_params;
    m->other_bytes      = 2.0 * (double)m->other_params;
    m->note             = r->note;
}

/* As they lie in memory: bf16, or e4m3 with a scale for 128 elements of a row, or of 4 bits, then
 * the experts only, with one for 32; its few norms among them do not matter. */
static void count_bytes(const bt_model_config *cfg, const uint64_t n[BT_N_PARTS],
                        bt_profile_model *m)
{
    const bt_mla_config *a      = &m->mla;
    double               small  = m->fp8 ? 1 + 4.0 / BT_FP8_BLOCK : 2;
    uint64_t             narrow = n[BT_PART_DENSE] + n[BT_PART_SHARED];
    uint64_t             kv_b =
        (uint64_t)cfg->n_layers * a->n_heads * (a->qk_nope_dim + a->v_dim) * a->kv_lora_rank;

    m->attention_bytes = 2.0 * (double)kv_b + small * (double)(m->attention_params - kv_b);
    m->expert_bytes    = m->int4 ? (0.5 + 2.0 / BT_INT4_GROUP) * (double)m->expert_params
                                 : small * (double)m->expert_params;
    m->other_bytes     = 2.0 * (double)(m->other_params - narrow) + small * (double)narrow;
}

static bt_status from_directory(const char *dir, bt_profile_model *m)
{
    bt_status       st = BT_OK;
    bt_model_config cfg;
    uint64_t        n[BT_N_PARTS];

    BT_TRY(bt_model_config_read(dir, &cfg));
    bt_census_expect(&cfg, n);
    snprintf(m->title, sizeof(m->title), "%s", cfg.architecture);
    m->mla = cfg.mla;
    memcpy(m->inv_freq, cfg.rope_inv_freq, sizeof(m->inv_freq));
    m->mla.max_context = 0;
    m->mla.index_topk  = 0;
    m->note            = cfg.mla.index_topk != 0 ? SPARSE : NULL;
    m->n_layers        = cfg.n_layers;
    for (int i = 0; i < BT_N_PARTS; i++)
        m->other_params += n[i];
    m->attention_params = n[BT_PART_ATTENTION];
    m->expert_params    = n[BT_PART_EXPERTS];
    m->other_params -= m->attention_params + m->expert_params;
    m->fp8  = cfg.fp8;
    m->int4 = cfg.int4;
    count_bytes(&cfg, n, m);
out:
    return st;
}

bt_status bt_profile_model_find(const char *name, bt_profile_model *m)
{
    bt_status   st = BT_OK;
    const row  *r  = find_row(name);
    struct stat there;

    memset(m, 0, sizeof(*m));
    snprintf(m->name, sizeof(m->name), "%s", name);
    if (r != NULL) {
        from_row(r, m);
    } else {
        BT_REQUIRE(stat(name, &there) == 0 && S_ISDIR(there.st_mode), BT_ERR_INVALID_ARG,
                   "\"%s\" is neither a known model nor a directory; known are %s", name,
                   bt_profile_model_names());
        BT_TRY(from_directory(name, m));
    }
    m->mla.rope_inv_freq = m->inv_freq;
out:
    return st;
}

uint64_t bt_profile_latent_bytes(const bt_profile_model *m)
{
    return (uint64_t)m->n_layers * 2 * (m->mla.kv_lora_rank + m->mla.qk_rope_dim);
}

uint64_t bt_profile_expanded_bytes(const bt_profile_model *m)
{
    return (uint64_t)m->n_layers * 2 * m->mla.n_heads *
           (m->mla.qk_nope_dim + m->mla.qk_rope_dim + m->mla.v_dim);
}

/* worker/hello.c - what a rank says of itself to each coordinator that it attaches to. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/rank_flags.h"
#include "proto/hello.h"
#include "worker/rank.h"

static char *arithmetic(const bt_rank *r)
{
    const bt_gate_config *gate = &r->cfg.moe.gate;
    uint32_t n_blocks = gate->n_experts == 0 ? 0 : bt_sum_blocks(gate->n_experts, gate->n_groups);
    char     text[256];

    snprintf(text, sizeof(text), "%s,form:%s%s,blocks:%u,split:%u/%u,page:%d", r->dev->arithmetic,
             bt_rank_flag_word("--form", r->opt.form),
             r->opt.share_generated ? ",share-generated" : "", n_blocks, BT_ATTN_SPLIT_TOKENS,
             bt_attn_absorbed_part(r->cfg.mla.n_heads, 1), BT_PAGE_TOKENS);
    return bt_strdup(text);
}

bt_status bt_rank_make_hello(const bt_rank *r, bt_up *hello_out)
{
    bt_status    st = BT_OK;
    bt_up        m  = {.kind = BT_UP_HELLO};
    bt_up_hello *h  = &m.u.hello;
    char         host[256];

    if (gethostname(host, sizeof(host)) != 0) snprintf(host, sizeof(host), "unknown");
    host[sizeof(host) - 1] = '\0';

    *h = (bt_up_hello){.protocol          = BT_CONTROL_PROTOCOL,
                       .rank              = r->facts.rank,
                       .n_ranks           = r->facts.n_ranks,
                       .n_prefill         = r->facts.n_prefill,
                       .n_decode          = r->facts.n_decode,
                       .n_spares          = r->opt.n_spares,
                       .pid               = (uint32_t)getpid(),
                       .model_fingerprint = r->fingerprint,
                       .n_pages           = r->memory.n_pages,
                       .page_tokens       = BT_PAGE_TOKENS,
                       .max_rows          = r->opt.max_rows,
                       .epoch             = r->epoch,
                       .vocab_size        = r->cfg.vocab_size,
                       .max_context       = r->cfg.max_context,
                       .n_eos             = r->cfg.n_eos,
                       .bos_token         = r->cfg.bos_token,
                       .pad_token         = r->cfg.pad_token,
                       .weight_bytes      = r->memory.weights,
                       .share_generated   = r->opt.share_generated,
                       .speculates        = r->opt.speculate != 0,
                       .mtp               = r->opt.mtp,
                       .config_hash       = r->config_hash,
                       .incarnation       = r->incarnation,
                       .prefix_seed       = r->prefix_seed};

    if (r->incarnation != 0) BT_TRY(bt_regroup_copy(&r->seating, &h->seats));
    h->host                  = bt_strdup(host);
    h->cell                  = bt_strdup(r->opt.cell);
    h->left_out              = bt_strdup(r->opt.left_out);
    h->version               = bt_strdup(bt_hello_build());
    h->arithmetic            = arithmetic(r);
    h->model_type            = bt_strdup(r->cfg.model_type);
    h->architecture          = bt_strdup(r->cfg.architecture);
    h->default_sampling_json = bt_strdup(r->cfg.default_sampling_json);
    h->eos_tokens            = bt_calloc(r->cfg.n_eos, sizeof(*h->eos_tokens));
    BT_REQUIRE(h->host != NULL && h->cell != NULL && h->left_out != NULL && h->version != NULL &&
                   h->arithmetic != NULL && h->model_type != NULL && h->architecture != NULL &&
                   h->default_sampling_json != NULL && h->eos_tokens != NULL,
               BT_ERR_NO_MEMORY, "hello");
    memcpy(h->eos_tokens, r->cfg.eos_tokens, r->cfg.n_eos * sizeof(*h->eos_tokens));
    *hello_out = m;
    m.kind     = BT_UP_READY; /* it owns nothing any more */
out:
    bt_up_free(&m);
    return st;
}

bt_status bt_rank_say_ready(bt_rank *r)
{
    bt_up m = {.kind = BT_UP_READY};

    return bt_links_send(&r->links, &m);
}

void bt_rank_say_progress(bt_rank *r, uint64_t done_bytes, uint64_t total_bytes)
{
    bt_up m = {
        .kind = BT_UP_PROGRESS, .u.progress = {done_bytes, total_bytes}
    };

    bt_links_send(&r->links, &m); /* a lost stream shows by itself */
}

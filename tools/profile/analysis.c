#include "tools/profile/analysis.h"

#include <math.h>

#include "core/machine.h"
#include "tools/profile/text.h"

static double latent_bytes(const bt_analysis *a)
{
    return (double)bt_profile_latent_bytes(a->model);
}

/* As ranks take it. */
static double usable_bytes(const bt_analysis *a)
{
    return BT_MEMORY_PERCENT / 100.0 * a->roof->memory_bytes;
}

bt_analysis_rank bt_analysis_share(const bt_analysis *a, bt_share share, uint32_t ranks)
{
    const bt_profile_model *m = a->model;
    double attention = m->attention_bytes, experts = m->expert_bytes, other = m->other_bytes;
    double n = share == BT_SHARE_PD ? ranks / 2.0 : ranks, room;

    bt_analysis_rank r = {.weight_bytes = share == BT_SHARE_TP ? (attention + experts + other) / n
                                                               : attention + other + experts / n,
                          .kv_bytes     = latent_bytes(a) / (share == BT_SHARE_TP ? 1 : n)};

    room     = usable_bytes(a) - r.weight_bytes;
    r.tokens = room <= 0 ? 0 : room / r.kv_bytes;
    return r;
}

/* ---- the price of the laws ---- */

static double pairs_of(double n_prefix, double q) { return q * n_prefix + q * (q + 1) / 2; }

double bt_analysis_normal_flops(const bt_mla_config *m, double n_prefix, double q)
{
    double inner = (double)m->kv_lora_rank * (m->qk_nope_dim + m->v_dim);

    return 2.0 * m->n_heads *
           ((n_prefix + q) * inner +
            pairs_of(n_prefix, q) * (m->qk_nope_dim + m->qk_rope_dim + m->v_dim));
}

double bt_analysis_absorbed_flops(const bt_mla_config *m, double n_prefix, double q)
{
    double inner = (double)m->kv_lora_rank * (m->qk_nope_dim + m->v_dim);

    return 2.0 * m->n_heads *
           (q * inner + pairs_of(n_prefix, q) * (2.0 * m->kv_lora_rank + m->qk_rope_dim));
}

static double cheaper_flops(const bt_mla_config *m, double n_prefix, double q)
{
    return fmin(bt_analysis_normal_flops(m, n_prefix, q),
                bt_analysis_absorbed_flops(m, n_prefix, q));
}

double bt_analysis_chunk_price(const bt_mla_config *m, uint32_t prompt, uint32_t chunk)
{
    double law = 0, least = 0;

    for (uint32_t at = 0, q; at < prompt; at += q) {
        q = prompt - at < chunk ? prompt - at : chunk;
        law += bt_analysis_normal_flops(m, at, q);
        least += cheaper_flops(m, at, q);
    }
    return law / least;
}

/* Positions of all parts but the first ones of a context. */
static uint32_t part_tokens(const bt_mla_config *m)
{
    return bt_attn_absorbed_part(m->n_heads, BT_ATTN_SPLIT_TOKENS);
}

/* The restart of the softmax with each part: a multiply and a multiply-add per head and latent
 * element, over the products of that part. */
static double restart_price(const bt_mla_config *m)
{
    double c = m->kv_lora_rank;

    return 3 * c / (part_tokens(m) * 2.0 * (2 * c + m->qk_rope_dim));
}

/* ---- print ---- */

static void print_variants(const bt_analysis *a, FILE *to)
{
    const bt_mla_config *m = &a->model->mla;

    fprintf(to,
            "\nOne decode step of one layer (FLOP = 2 x multiply-add, bf16; a key is a token in a "
            "request's context)\n"
            "  %-9s %12s %12s %11s %12s %12s %9s   floor at batch %u, context %u\n",
            "variant", "FLOP / key", "FLOP / row", "cache / key", "moved / key", "weights",
            "FLOP / B", a->batch, a->n_keys);
    for (int k = 0; k < BT_N_VARIANTS; k++) {
        bt_variant_account v = bt_variant_account_of((bt_variant_kind)k, m);

        fprintf(
            to, "  %-9s %12s %12s %11s %12s %12s %9.1f   %s\n", bt_variant_name((bt_variant_kind)k),
            bt_text_flops((double)v.key_flops).text, bt_text_flops((double)v.row_flops).text,
            bt_text_bytes((double)v.cache_bytes).text, bt_text_bytes((double)v.moved_bytes).text,
            bt_text_bytes((double)v.weight_bytes).text, (double)v.key_flops / (double)v.cache_bytes,
            bt_text_time(bt_roof_step_s(a->roof, &v, a->batch, a->n_keys)).text);
    }
    for (int k = 0; k < BT_N_VARIANTS; k++)
        fprintf(to, "  %-9s %s\n", bt_variant_name((bt_variant_kind)k),
                bt_variant_text((bt_variant_kind)k));
}

static void print_cache(const bt_analysis *a, FILE *to)
{
    const bt_mla_config *m        = &a->model->mla;
    double               latent   = latent_bytes(a);
    double               expanded = (double)bt_profile_expanded_bytes(a->model);
    double               rope     = 2.0 * (m->n_heads - 1) * m->qk_rope_dim;

    fprintf(to,
            "\nCache of a token           a layer     %u layers   128 Ki tokens   fit in %s\n"
            "  keys and values      %10s %13s %15s   %s tokens\n"
            "  the same, rope once  %10s %13s %15s   %s tokens\n"
            "  latent               %10s %13s %15s   %s tokens   (%.2f %% less)\n",
            a->model->n_layers, bt_text_bytes(usable_bytes(a)).text,
            bt_text_bytes(expanded / a->model->n_layers).text, bt_text_bytes(expanded).text,
            bt_text_bytes(131072 * expanded).text,
            bt_text_count(floor(usable_bytes(a) / expanded)).text,
            bt_text_bytes(expanded / a->model->n_layers - rope).text,
            bt_text_bytes(expanded - rope * a->model->n_layers).text,
            bt_text_bytes(131072 * (expanded - rope * a->model->n_layers)).text,
            bt_text_count(floor(usable_bytes(a) / (expanded - rope * a->model->n_layers))).text,
            bt_text_bytes(latent / a->model->n_layers).text, bt_text_bytes(latent).text,
            bt_text_bytes(131072 * latent).text,
            bt_text_count(floor(usable_bytes(a) / latent)).text, 100 * (1 - latent / expanded));
    fprintf(to, "  (%d %% of %s, before weights; the table of ranks below counts weights)\n",
            BT_MEMORY_PERCENT, a->roof->measured ? "the free memory" : "the GPU's memory");
}

static const uint32_t CROSS_KV[] = {512, 1024, 4096, 32768, 131072};
enum { N_CROSS = sizeof(CROSS_KV) / sizeof(CROSS_KV[0]) };

static void print_crossover(const bt_analysis *a, FILE *to)
{
    const bt_mla_config *m = &a->model->mla;

    fprintf(to,
            "\nCrossover: from this many new tokens the normal form takes fewer FLOP than the "
            "absorbed one\n  %-38s",
            "attending to kv tokens");
    for (int i = 0; i < N_CROSS; i++)
        fprintf(to, "%10u", CROSS_KV[i]);
    fprintf(to, "  unbounded\n  %-38s", "q*(kv), every pair counted (study 002)");
    for (int i = 0; i < N_CROSS; i++)
        fprintf(to, "%10.1f", bt_study_crossover(m, CROSS_KV[i]));
    fprintf(to, "%11.2f\n  %-38s", bt_study_crossover(m, INFINITY),
            "after a prefix of kv, causal mask");
    for (int i = 0; i < N_CROSS; i++)
        fprintf(to, "%10u", bt_study_crossover_causal(m, CROSS_KV[i]));
    fprintf(
        to,
        "\n  multiply-adds of a layer, q = 1,    kv = 4096: normal %.4g, absorbed %.4g (%.2fx)\n"
        "                            q = 4096, kv = 4096: normal %.4g, absorbed %.4g (%.2fx)\n",
        bt_study_macs_normal(m, 1, 4096), bt_study_macs_absorbed(m, 1, 4096),
        bt_study_macs_normal(m, 1, 4096) / bt_study_macs_absorbed(m, 1, 4096),
        bt_study_macs_normal(m, 4096, 4096), bt_study_macs_absorbed(m, 4096, 4096),
        bt_study_macs_normal(m, 4096, 4096) / bt_study_macs_absorbed(m, 4096, 4096));
}

static void print_ranks(const bt_analysis *a, FILE *to)
{
    static const char *const NAMES[] = {"TP", "DP + EP", "PD, DP + EP"};

    fprintf(
        to,
        "\nRanks of %s each: weights (%s) on a rank, KV of a served token on a rank, and tokens of "
        "KV that the ranks hold\n"
        "  %5s",
        bt_text_bytes(a->roof->memory_bytes).text,
        a->model->fp8    ? "FP8"
        : a->model->int4 ? "bf16, experts in 4 bits"
                         : "bf16",
        "ranks");
    for (int s = 0; s < 3; s++)
        fprintf(to, " | %-11s%8s%12s%9s", NAMES[s], "weights", "KV / token", "tokens");
    fprintf(to, "\n");
    for (uint32_t ranks = 1; ranks <= 64; ranks *= 2) {
        fprintf(to, "  %5u", ranks);
        for (int s = 0; s < 3; s++) {
            bt_analysis_rank r = bt_analysis_share(a, (bt_share)s, ranks);

            if (s == BT_SHARE_PD && ranks == 1)
                fprintf(to, " | %40s", "needs two");
            else
                fprintf(to, " | %19s%12s%9s", bt_text_bytes(r.weight_bytes).text,
                        bt_text_bytes(r.kv_bytes).text,
                        r.tokens == 0 ? "none fit" : bt_text_count(floor(r.tokens)).text);
        }
        fprintf(to, "\n");
    }
    fprintf(
        to,
        "  TP keeps every latent on every rank (there is one KV head); under DP each token lives "
        "on one rank.\n"
        "  EP cuts the experts over a group; PD makes two groups, prompts in flight on one, all "
        "served tokens on the other.\n");
}

static void print_handoff(const bt_analysis *a, FILE *to)
{
    static const uint32_t TOKENS[] = {1024, 8192, 131072};

    fprintf(to,
            "\nHand-off of a prompt from prefill to decode   (latents; in brackets if keys and "
            "values were sent)\n  %-14s",
            "tokens");
    for (uint32_t b = 0; b < a->n_bandwidths; b++)
        fprintf(to, "%17s/s          ", bt_text_bytes(a->bandwidths[b]).text);
    fprintf(to, "\n");
    for (int i = 0; i < 3; i++) {
        fprintf(to, "  %-6u %9s", TOKENS[i], bt_text_bytes(TOKENS[i] * latent_bytes(a)).text);
        for (uint32_t b = 0; b < a->n_bandwidths; b++)
            fprintf(to, "%14s (%10s)",
                    bt_text_time(TOKENS[i] * latent_bytes(a) / a->bandwidths[b]).text,
                    bt_text_time(TOKENS[i] * (double)bt_profile_expanded_bytes(a->model) /
                                 a->bandwidths[b])
                        .text);
        fprintf(to, "\n");
    }
}

static const uint32_t LAW_Q[] = {1, 16, 64, 128, 512, 2048}, LAW_P[] = {1024, 8192, 65536};
static const uint32_t LAW_CHUNK[] = {64, 128, 512, 2048}, LAW_PROMPT[] = {8192, 32768, 131072};

static void print_laws(const bt_analysis *a, FILE *to)
{
    const bt_mla_config *m = &a->model->mla;

    fprintf(to,
            "\nWhat laws A and B cost against the cheapest form (inner products of attention; "
            "1.00 = nothing)\n"
            "  prompt tokens stay in the normal form: q new tokens after a cached prefix\n"
            "  %-14s",
            "prefix");
    for (int i = 0; i < 6; i++)
        fprintf(to, "   q = %-6u", LAW_Q[i]);
    for (int p = 0; p < 3; p++) {
        fprintf(to, "\n  %-14u", LAW_P[p]);
        for (int i = 0; i < 6; i++)
            fprintf(to, "%11.2fx ",
                    bt_analysis_normal_flops(m, LAW_P[p], LAW_Q[i]) /
                        cheaper_flops(m, LAW_P[p], LAW_Q[i]));
    }
    fprintf(to, "\n  a whole prompt in chunks of\n  %-14s", "prompt");
    for (int i = 0; i < 4; i++)
        fprintf(to, "%10u  ", LAW_CHUNK[i]);
    for (int p = 0; p < 3; p++) {
        fprintf(to, "\n  %-14u", LAW_PROMPT[p]);
        for (int i = 0; i < 4; i++)
            fprintf(to, "%10.2fx ", bt_analysis_chunk_price(m, LAW_PROMPT[p], LAW_CHUNK[i]));
    }
    fprintf(to,
            "\n  generated tokens stay absorbed: 1.00x for one new token of each request, the "
            "cheapest form above one key\n"
            "  the softmax restarts every %d tokens: %.4f %% more operations\n",
            (int)part_tokens(m), 100 * restart_price(m));
}

void bt_analysis_print(const bt_analysis *a, FILE *to)
{
    const bt_profile_model *p = a->model;
    const bt_mla_config    *m = &p->mla;

    fprintf(to, "%s: %u layers, hidden %u, %u heads of %u + %u (value %u), latent %u + %u, ",
            p->title, p->n_layers, m->hidden, m->n_heads, m->qk_nope_dim, m->qk_rope_dim, m->v_dim,
            m->kv_lora_rank, m->qk_rope_dim);
    if (m->q_lora_rank != 0)
        fprintf(to, "query rank %u\n", m->q_lora_rank);
    else
        fprintf(to, "full-rank query\n");
    if (p->note != NULL) fprintf(to, "  note: %s\n", p->note);
    fprintf(to, "Roof: %s, %s: reads %s/s, multiplies %s/s", a->roof->name,
            a->roof->measured ? "measured" : "vendor's figures",
            bt_text_bytes(a->roof->bytes_per_s).text, bt_text_flops(a->roof->flop_per_s).text);
    fprintf(to, ", turns from bytes to FLOP at %.1f FLOP/B\n",
            a->roof->flop_per_s / a->roof->bytes_per_s);
    print_variants(a, to);
    print_cache(a, to);
    print_crossover(a, to);
    print_ranks(a, to);
    print_handoff(a, to);
    print_laws(a, to);
}

/* ---- explain ---- */

void bt_analysis_explain(const bt_analysis *a, uint32_t q, uint32_t kv, uint32_t batch, FILE *to)
{
    static const char *const NAMES[] = {
        [BT_FORM_NORMAL] = "normal", [BT_FORM_ABSORBED] = "absorbed"};
    const bt_mla_config *m = &a->model->mla;
    double h = m->n_heads, inner = 2 * h * m->kv_lora_rank * (m->qk_nope_dim + m->v_dim);
    double width    = m->qk_nope_dim + m->qk_rope_dim + m->v_dim,
           latent   = 2.0 * m->kv_lora_rank + m->qk_rope_dim;
    double flops[2] = {[BT_FORM_NORMAL]   = batch * (kv * inner + 2.0 * q * kv * h * width),
                       [BT_FORM_ABSORBED] = batch * (q * inner + 2.0 * q * kv * h * latent)};
    double bytes =
        inner + 2.0 * batch * kv * (m->kv_lora_rank + m->qk_rope_dim); /* kv_b, latents */
    bt_attn_form form  = bt_mla_cheaper_form(m, q, kv),
                 other = form == BT_FORM_NORMAL ? BT_FORM_ABSORBED : BT_FORM_NORMAL;
    double at[2];

    for (int f = 0; f < 2; f++)
        at[f] = bt_roof_s(a->roof, bytes, flops[f]);
    fprintf(
        to,
        "%s, %u request%s of q = %u new tokens attending to kv = %u (the new ones among them):\n"
        "  --form cost takes the %s form: %s in a layer, at least %s on %s\n"
        "  the %s form takes         %s (%.2fx), at least %s\n"
        "  why: absorbed is cheaper below q* = %.2f at this kv (q* = 1 / (1/kv + %.6f)); q is %u\n"
        "  the batch does not matter for the choice: each request attends to its own context\n",
        a->model->title, batch, batch == 1 ? "" : "s", q, kv, NAMES[form],
        bt_text_flops(flops[form]).text, bt_text_time(at[form]).text, a->roof->name, NAMES[other],
        bt_text_flops(flops[other]).text, flops[other] / flops[form], bt_text_time(at[other]).text,
        bt_study_crossover(m, kv), 1 / bt_study_crossover(m, INFINITY), q);
    fprintf(to,
            "  by role (the default, law B): prompt tokens take the normal form, %.2fx of the "
            "cheapest here; generated ones the absorbed form, %.2fx\n",
            flops[BT_FORM_NORMAL] / flops[form], flops[BT_FORM_ABSORBED] / flops[form]);
}

/* ---- JSON ---- */

static json_t *variants_json(const bt_analysis *a)
{
    json_t *list = json_array();

    for (int k = 0; k < BT_N_VARIANTS; k++) {
        bt_variant_account v = bt_variant_account_of((bt_variant_kind)k, &a->model->mla);

        json_array_append_new(
            list, json_pack("{s:s,s:s,s:I,s:I,s:I,s:I,s:I,s:f}", "name",
                            bt_variant_name((bt_variant_kind)k), "text",
                            bt_variant_text((bt_variant_kind)k), "key_flops",
                            (json_int_t)v.key_flops, "row_flops", (json_int_t)v.row_flops,
                            "weight_bytes", (json_int_t)v.weight_bytes, "cache_bytes",
                            (json_int_t)v.cache_bytes, "moved_bytes", (json_int_t)v.moved_bytes,
                            "floor_s", bt_roof_step_s(a->roof, &v, a->batch, a->n_keys)));
    }
    return list;
}

static json_t *crossover_json(const bt_analysis *a)
{
    const bt_mla_config *m    = &a->model->mla;
    json_t              *list = json_array();

    for (int i = 0; i < N_CROSS; i++)
        json_array_append_new(list, json_pack("{s:i,s:f,s:i}", "kv", (int)CROSS_KV[i], "q",
                                              bt_study_crossover(m, CROSS_KV[i]), "q_causal",
                                              (int)bt_study_crossover_causal(m, CROSS_KV[i])));
    return json_pack("{s:f,s:o}", "q_unbounded", bt_study_crossover(m, INFINITY), "at", list);
}

static json_t *ranks_json(const bt_analysis *a)
{
    static const char *const NAMES[] = {"TP", "DP+EP", "PD"};
    json_t                  *list    = json_array();

    for (uint32_t ranks = 1; ranks <= 64; ranks *= 2)
        for (int s = 0; s < 3; s++) {
            bt_analysis_rank r = bt_analysis_share(a, (bt_share)s, ranks);

            if (s == BT_SHARE_PD && ranks == 1) continue;
            json_array_append_new(list, json_pack("{s:s,s:i,s:f,s:f,s:f}", "share", NAMES[s],
                                                  "ranks", (int)ranks, "weight_bytes",
                                                  r.weight_bytes, "kv_bytes_per_token", r.kv_bytes,
                                                  "tokens", floor(r.tokens)));
        }
    return list;
}

static json_t *laws_json(const bt_analysis *a)
{
    const bt_mla_config *m      = &a->model->mla;
    json_t              *suffix = json_array(), *chunks = json_array();

    for (int p = 0; p < 3; p++)
        for (int i = 0; i < 6; i++)
            json_array_append_new(suffix,
                                  json_pack("{s:i,s:i,s:f}", "prefix", (int)LAW_P[p], "q",
                                            (int)LAW_Q[i], "price",
                                            bt_analysis_normal_flops(m, LAW_P[p], LAW_Q[i]) /
                                                cheaper_flops(m, LAW_P[p], LAW_Q[i])));
    for (int p = 0; p < 3; p++)
        for (int i = 0; i < 4; i++)
            json_array_append_new(
                chunks,
                json_pack("{s:i,s:i,s:f}", "prompt", (int)LAW_PROMPT[p], "chunk", (int)LAW_CHUNK[i],
                          "price", bt_analysis_chunk_price(m, LAW_PROMPT[p], LAW_CHUNK[i])));
    return json_pack("{s:o,s:o,s:f}", "after_prefix", suffix, "prompt_in_chunks", chunks,
                     "softmax_restart", restart_price(m));
}

static json_t *handoff_json(const bt_analysis *a)
{
    json_t *list = json_array();

    for (uint32_t b = 0; b < a->n_bandwidths; b++)
        json_array_append_new(
            list, json_pack("{s:f,s:f,s:f}", "bytes_per_s", a->bandwidths[b], "latent_s_per_token",
                            latent_bytes(a) / a->bandwidths[b], "expanded_s_per_token",
                            (double)bt_profile_expanded_bytes(a->model) / a->bandwidths[b]));
    return list;
}

json_t *bt_analysis_json(const bt_analysis *a)
{
    double memory = usable_bytes(a);

    return json_pack("{s:o,s:{s:f,s:f,s:f,s:f},s:o,s:o,s:o,s:o}", "variants", variants_json(a),
                     "cache", "latent_bytes_per_token", latent_bytes(a), "expanded_bytes_per_token",
                     (double)bt_profile_expanded_bytes(a->model), "latent_tokens_that_fit",
                     floor(memory / latent_bytes(a)), "expanded_tokens_that_fit",
                     floor(memory / (double)bt_profile_expanded_bytes(a->model)), "crossover",
                     crossover_json(a), "ranks", ranks_json(a), "handoff", handoff_json(a), "laws",
                     laws_json(a));
}

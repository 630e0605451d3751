/* tests/worker/sim_model.c - the model of the simulated cell: a hash (sim_cell.h). */
#include <stdlib.h>
#include <string.h>

#include "tests/worker/sim_state.h"

uint64_t sim_mix(uint64_t h)
{
    h ^= h >> 33;
    h *= 0xff51afd7ed558ccdull;
    h ^= h >> 33;
    h *= 0xc4ceb9fe1a85ec53ull;
    return h ^ h >> 33;
}

bool sim_keeps_maps(const sim_cell *c) { return c->opt.by_cost || c->opt.share; }

void sim_latent(uint32_t token, uint32_t position, uint32_t layer, uint32_t how,
                bt_bf16 row[SIM_DIM])
{
    uint64_t h =
        sim_mix(token * 1000003ull + position * 8191ull + layer + 1 + how * 77777777777ull);

    for (uint32_t i = 0; i < SIM_DIM; i++)
        row[i] = (bt_bf16)(h >> 16 * i);
}

uint64_t sim_add_row(uint64_t h, const bt_bf16 row[SIM_DIM])
{
    for (uint32_t i = 0; i < SIM_DIM; i++)
        h = sim_mix(h ^ row[i]);
    return h;
}

uint32_t sim_n_peaks = SIM_VOCAB;

void sim_fill_logits(uint64_t h, float *logits)
{
    for (uint32_t i = 0; i < SIM_VOCAB; i++)
        logits[i] = (float)(sim_mix(h + i) % 1000) / 100.0f;
    for (uint32_t i = 0; i < sim_n_peaks && sim_n_peaks < SIM_VOCAB; i++)
        logits[i] = 18.0f; /* near enough for penalties to tell */
    logits[h % sim_n_peaks] = 20.0f;
}

/* Goes on from h, of the tokens before: the latents of a token at position t, computed as `how`
 * says. */
static uint64_t add_token(uint64_t h, uint32_t token, uint32_t t, uint32_t how)
{
    bt_bf16 row[SIM_DIM];

    for (uint32_t layer = 0; layer < SIM_LAYERS; layer++) {
        sim_latent(token, t, layer, how, row);
        h = sim_add_row(h, row);
    }
    return h;
}

void sim_logits_of(const uint32_t *tokens, uint32_t n, float *logits_out)
{
    uint64_t h = 0;

    for (uint32_t t = 0; t < n; t++)
        h = add_token(h, tokens[t], t, 0);
    sim_fill_logits(h, logits_out);
}

uint32_t sim_how_of(bool generated, bool absorbed) { return 1 + generated + 2 * absorbed; }

/* How position t was computed: a prompt as its map says, the rest as generated; 0 without a map. */
static uint32_t how_by_map(const sim_request *q, uint32_t t)
{
    const bt_page_map *map = &q->map[t / BT_PAGE_TOKENS];
    uint64_t           one = 1ull << t % BT_PAGE_TOKENS;

    if (q->n_map_bytes == 0) return 0;
    if (t >= q->n_prompt) return sim_how_of(true, true);
    return sim_how_of(map->generated & one, map->absorbed & one);
}

/* What may follow n_bytes of a reply that is held to small letters and blanks. */
static void fill_allowed(const sim_request *r, uint32_t n_bytes, uint32_t *bits)
{
    memset(bits, 0, (SIM_VOCAB + 31) / 32 * sizeof(*bits));
    for (uint32_t id = 0; id < SIM_VOCAB; id++) {
        size_t      n;
        const char *text = bt_tokenizer_bytes(sim_tokenizer(), id, &n, NULL);
        bool        may  = bt_tokenizer_is_text(sim_tokenizer(), id) && n_bytes + n <= r->held;

        for (size_t i = 0; i < n; i++)
            may = may && (text[i] == ' ' || (text[i] >= 'a' && text[i] <= 'z'));
        if (may || id == SIM_EOS || id == r->stop_token) bits[id / 32] |= 1u << id % 32;
    }
}

bt_tokenizer *sim_tokenizer(void)
{
    static bt_tokenizer *tok; /* of all cells; never closed */

    if (tok == NULL && bt_tokenizer_open(BT_SOURCE_DIR "/models/demo", &tok) != BT_OK) abort();
    return tok;
}

void sim_expected(const sim_request *r, uint32_t *tokens_out, uint32_t *n_out, bt_finish *how_out)
{
    static float logits[SIM_VOCAB];
    uint32_t     all[SIM_CONTEXT], n = r->n_prompt, n_hashed = 0, id;
    uint64_t     h = 0;
    bt_sampler   sampler;
    bt_history   seen = {0};
    uint32_t     allowed[(SIM_VOCAB + 31) / 32], n_bytes = 0;
    bool         holds = r->held != 0 && r->held_after == 0;
    uint32_t     eos   = SIM_EOS;

    for (uint32_t i = 0; r->repetition != 0 && i < n; i++)
        if (bt_history_add(&seen, r->prompt[i], true) != BT_OK) abort();
    if (bt_sampler_init(&sampler, bt_cpu_kernels_find("auto")->rows, SIM_VOCAB) != BT_OK) abort();
    memcpy(all, r->prompt, n * sizeof(*all));
    for (*n_out = 0, *how_out = BT_FINISH_NONE; *how_out == BT_FINISH_NONE; n++) {
        bt_sample_how how = {
            .temperature = r->temperature, .seed = r->seed, .choice = r->choice, .position = n};

        if (r->repetition != 0) {
            how.history    = &seen;
            how.repetition = r->repetition;
            how.frequency  = SIM_FREQUENCY;
            how.presence   = SIM_PRESENCE;
        }
        for (; n_hashed < n; n_hashed++)
            h = add_token(h, all[n_hashed], n_hashed, how_by_map(r, n_hashed));
        sim_fill_logits(h, logits);
        if (holds) fill_allowed(r, n_bytes, allowed);
        if (holds) how.allowed = allowed;
        if (r->held != 0 && !holds) how.banned[0] = (bt_id_list){&eos, 1};
        if (r->held != 0 && !holds && r->stop_token < SIM_VOCAB)
            how.banned[1] = (bt_id_list){&r->stop_token, 1};
        if (!bt_sample(&sampler, logits, &how, &id)) abort();
        if (holds) {
            size_t text;

            bt_tokenizer_bytes(sim_tokenizer(), id, &text, NULL);
            n_bytes += (uint32_t)text;
        }
        holds = holds || (r->held != 0 && id + 1 == r->held_after);
        if (r->repetition != 0 && bt_history_add(&seen, id, false) != BT_OK) abort();
        all[n]                 = id;
        tokens_out[(*n_out)++] = id;
        if (id == SIM_EOS && !r->ignore_eos)
            *how_out = BT_FINISH_EOS;
        else if (id == r->stop_token)
            *how_out = BT_FINISH_STOP_TOKEN;
        else if (*n_out == r->max_tokens)
            *how_out = BT_FINISH_LENGTH;
        else if (*n_out == r->cut_at)
            *how_out = BT_FINISH_STOP_STRING;
    }
    bt_history_fini(&seen);
    bt_sampler_fini(&sampler);
}

/* The float32 reference against the golden outputs: logits within 1e-4 of their rms, hidden states,
 * latents, rope keys and expert weights likewise, routing and greedy tokens equal.  Of the layer
 * for multi-token prediction, where there is one, the logits of its drafts and its routing. */
#include <sys/mman.h>
#include <unistd.h>

#include "model/reference.h"
#include "tests/model/goldens_mtp.h"

static const double TOLERANCE = 1e-4;
static goldens      g_goldens;
static golden_mtp   g_mtp;
static bool         g_has_mtp;

/* Every element of [n] within TOLERANCE of the wanted values' rms; prints the worst. */
static void expect_close(const char *case_name, const char *what, uint32_t layer, const float *got,
                         const float *want, size_t n)
{
    double sum = 0.0, worst = 0.0, rms;
    size_t at = 0;

    for (size_t i = 0; i < n; i++) {
        double error = fabs((double)got[i] - (double)want[i]);

        sum += (double)want[i] * (double)want[i];
        if (!(error <= worst)) {
            worst = error;
            at    = i;
        }
    }
    rms = sqrt(sum / (double)n);
    if (!(worst <= TOLERANCE * rms)) {
        g_failures++;
        fprintf(stderr, "%s %s layer %u: element %zu is %.9g, want %.9g (rms %.4g)\n", case_name,
                what, layer, at, (double)got[at], (double)want[at], rms);
    }
}

static void expect_layers(const char *case_name, const char *what, uint32_t n_layers, size_t n,
                          const float *got, const float *want)
{
    for (uint32_t layer = 0; layer < n_layers && want != NULL; layer++)
        expect_close(case_name, what, layer, got + layer * n, want + layer * n, n);
}

static void expect_experts(const golden_case *c, const uint16_t *got, const uint16_t *want,
                           size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (got[i] == want[i]) continue;
        g_failures++;
        fprintf(stderr, "%s: expert %u at entry %zu, want %u\n", c->name, got[i], i, want[i]);
        return;
    }
}

static void expect_greedy(const golden_case *c, const float *logits, uint32_t vocab)
{
    for (uint32_t p = c->n_prompt - 1; p + 1 < c->n_tokens; p++) {
        if (p < c->first_position) continue;
        EXPECT_EQ(argmax(logits + (size_t)(p - c->first_position) * vocab, vocab), c->ids[p + 1]);
    }
}

static void check_case(const golden_case *c)
{
    const bt_model_config *cfg     = &g_goldens.cfg;
    size_t                 t       = c->n_tokens;
    size_t                 entries = g_goldens.n_moe * t * cfg->moe.gate.top_k;
    size_t                 n_logit = (size_t)c->n_rows * cfg->vocab_size;
    bool                   traced  = c->hidden != NULL;
    float                 *logits  = malloc(n_logit * sizeof(float));
    float                 *again   = malloc(n_logit * sizeof(float));
    float                 *hidden  = malloc((cfg->n_layers + 1) * t * cfg->hidden * sizeof(float));
    float           *latent  = malloc(cfg->n_layers * t * cfg->mla.kv_lora_rank * sizeof(float));
    float           *k_rope  = malloc(cfg->n_layers * t * cfg->mla.qk_rope_dim * sizeof(float));
    float           *weights = malloc(entries * sizeof(float));
    uint16_t        *experts = malloc(entries * sizeof(uint16_t));
    bt_reference_run run     = {.n_tokens     = c->n_tokens,
                                .tokens       = c->ids,
                                .n_logit_rows = c->n_rows,
                                .logits       = logits,
                                .hidden       = hidden,
                                .latent       = latent,
                                .k_rope       = k_rope,
                                .experts      = experts,
                                .weights      = weights};

    NEED(logits && again && hidden && latent && k_rope && weights && experts);
    EXPECT_EQ(bt_reference_forward(cfg, g_goldens.weights, &run), BT_OK);
    expect_close(c->name, "logits", 0, logits, c->logits, n_logit);
    expect_layers(c->name, "hidden", cfg->n_layers + 1, t * cfg->hidden, hidden, c->hidden);
    expect_layers(c->name, "latent", cfg->n_layers, t * cfg->mla.kv_lora_rank, latent, c->latent);
    expect_layers(c->name, "k_rope", cfg->n_layers, t * cfg->mla.qk_rope_dim, k_rope, c->k_rope);
    expect_layers(c->name, "expert_weights", g_goldens.n_moe, t * cfg->moe.gate.top_k, weights,
                  c->expert_weights);
    expect_experts(c, experts, c->experts, entries);
    expect_greedy(c, logits, cfg->vocab_size);
    printf("  %-6s %4u tokens, logits rms error %.2e of %.3f%s\n", c->name, c->n_tokens,
           rms_difference(logits, c->logits, n_logit), c->logits_rms,
           traced ? ", every layer compared" : "");

    if (traced) { /* forcing the gate's own choice changes nothing */
        run = (bt_reference_run){.n_tokens     = c->n_tokens,
                                 .tokens       = c->ids,
                                 .forced       = experts,
                                 .n_logit_rows = c->n_rows,
                                 .logits       = again};
        EXPECT_EQ(bt_reference_forward(cfg, g_goldens.weights, &run), BT_OK);
        EXPECT(memcmp(again, logits, n_logit * sizeof(float)) == 0);
    }
    free(logits);
    free(again);
    free(hidden);
    free(latent);
    free(k_rope);
    free(weights);
    free(experts);
}

static void reference_matches_every_golden_case(void)
{
    uint32_t n_traced = 0;

    for (uint32_t i = 0; i < g_goldens.n_cases; i++) {
        check_case(&g_goldens.cases[i]);
        n_traced += g_goldens.cases[i].hidden != NULL;
    }
    EXPECT(n_traced > 0);
}

static void check_drafts(uint32_t i)
{
    const golden_case   *c     = &g_goldens.cases[i];
    const golden_drafts *first = &g_mtp.first[i], *second = i == 0 ? &g_mtp.chained : NULL;
    size_t               vocab   = g_goldens.cfg.vocab_size;
    size_t               entries = (size_t)(c->n_tokens - 1) * g_goldens.cfg.moe.gate.top_k;
    float               *unused  = malloc(vocab * sizeof(float));
    float               *logits  = malloc(first->n_rows * vocab * sizeof(float));
    uint16_t            *experts = malloc(entries * sizeof(uint16_t));
    float *chained       = second == NULL ? NULL : malloc(second->n_rows * vocab * sizeof(float));
    bt_reference_run run = {.n_tokens       = c->n_tokens,
                            .tokens         = c->ids,
                            .n_logit_rows   = 1,
                            .logits         = unused,
                            .n_mtp_rows     = first->n_rows,
                            .mtp_logits     = logits,
                            .mtp_experts    = experts,
                            .n_chained_rows = second == NULL ? 0 : second->n_rows,
                            .chained        = chained};

    NEED(unused && logits && experts && (chained || second == NULL));
    EXPECT_EQ(bt_reference_forward(&g_goldens.cfg, g_goldens.weights, &run), BT_OK);
    expect_close(c->name, "drafts", 0, logits, first->logits, first->n_rows * vocab);
    expect_experts(c, experts, g_mtp.experts[i], entries);
    if (second != NULL)
        expect_close(c->name, "chained drafts", 0, chained, second->logits, second->n_rows * vocab);
    printf("  %-6s drafts of %u rows, rms error %.2e of %.3f\n", c->name, first->n_rows,
           rms_difference(logits, first->logits, first->n_rows * vocab), first->logits_rms);
    free(unused);
    free(logits);
    free(experts);
    free(chained);
}

static void reference_matches_every_golden_draft(void)
{
    EXPECT_EQ(g_has_mtp, g_goldens.cfg.n_mtp_layers != 0);
    for (uint32_t i = 0; g_has_mtp && i < g_goldens.n_cases; i++)
        check_drafts(i);
}

/* Of a damaged gate: top_k experts for each row, and nothing written behind them. */
static void reference_routes_by_scores_that_are_no_numbers(void)
{
    enum { N_TOKENS = 3 };
    const bt_model_config *cfg   = &g_goldens.cfg;
    uint32_t               top_k = cfg->moe.gate.top_k;
    uintptr_t              page  = (uintptr_t)sysconf(_SC_PAGESIZE), first;
    float                 *logit = malloc(cfg->vocab_size * sizeof(float));
    uint16_t *experts    = malloc((size_t)g_goldens.n_moe * N_TOKENS * top_k * sizeof(uint16_t));
    bt_reference_run run = {.n_tokens     = N_TOKENS,
                            .tokens       = g_goldens.cases[0].ids,
                            .n_logit_rows = 1,
                            .logits       = logit,
                            .experts      = experts};
    const bt_tensor *gate;
    char             name[64];

    if (g_goldens.n_moe == 0) goto out; /* all layers are dense */
    NEED(logit && experts && g_goldens.cases[0].n_tokens >= N_TOKENS);
    snprintf(name, sizeof(name), "model.layers.%u.mlp.gate.weight", cfg->first_moe_layer);
    gate = bt_safetensors_find(g_goldens.weights, name);
    NEED(gate != NULL);
    first = (uintptr_t)gate->data / page * page; /* of a private mapping: the file stays as it is */
    NEED(mprotect((void *)first, (uintptr_t)gate->data + gate->bytes - first,
                  PROT_READ | PROT_WRITE) == 0);
    memset((void *)(uintptr_t)gate->data, 0xFF, gate->bytes); /* a NaN in any type */
    EXPECT_EQ(bt_reference_forward(cfg, g_goldens.weights, &run), BT_OK);
    for (uint32_t i = 0; i < g_goldens.n_moe * N_TOKENS * top_k; i++)
        EXPECT(experts[i] < cfg->moe.gate.n_experts &&
               (i % top_k == 0 || experts[i] > experts[i - 1]));
out:
    free(logit);
    free(experts);
}

static const bt_test TESTS[] = {BT_TEST(reference_matches_every_golden_case),
                                BT_TEST(reference_matches_every_golden_draft),
                                BT_TEST(reference_routes_by_scores_that_are_no_numbers)}; /* last */

/* usage: test_goldens_reference MODEL [test] */
int main(int argc, char **argv)
{
    int rc;

    NEED(argc >= 2);
    goldens_open(&g_goldens, argv[1]);
    g_has_mtp = golden_mtp_open(&g_goldens, argv[1], &g_mtp);
    rc        = BT_RUN_TESTS(TESTS, argc > 2 ? argv[2] : NULL);
    golden_mtp_close(&g_mtp);
    goldens_close(&g_goldens);
    return rc;
}

/* Loading one rank's weights: every value against the plain reference's reading, what ranks and
 * starts share, and how it unwinds. test_weights_refused.c has what is wrong in a checkpoint. */
#include <sys/mman.h>
#include <sys/syscall.h>

#include "core/alloc.h"
#include "device/cpu/linear.h"
#include "model/model.h"
#include "model/reference_parts.h"
#include "tests/model/checkpoint.h"
#include "tests/support/sweep.h"

static const char *const MODELS[] = {"v3-fp8",  "k2-int4",   "v2-lite", "glm-flash", "v2",
                                     "kimi-k2", "moonlight", "v3.2",    "glm-5"};

/* What x = the identity gives is W itself, exactly. */
static void expect_linear(const bt_linear *w, const float *want, size_t ld, size_t step,
                          const char *what)
{
    uint32_t n = bt_linear_n(w), k = bt_linear_k(w);
    bt_bf16 *x = calloc((size_t)k * k, sizeof(*x));
    float   *y = calloc((size_t)k * n, sizeof(*y));
    bt_gemm  g = {.w = w, .x = x, .ld_x = k, .y = y, .ld_y = n, .m = k, .y_dtype = BT_F32};

    NEED(x != NULL && y != NULL);
    for (uint32_t i = 0; i < k; i++)
        x[(size_t)i * k + i] = 0x3f80; /* 1 */
    EXPECT_EQ(bt_device_gemm(g_dev, BT_ROLE_GENERATED, 1, &g), BT_OK);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < k; j++)
            if (y[(size_t)j * n + i] != want[i * ld + j * step]) {
                g_failures++;
                fprintf(stderr, "%s [%u, %u]: %.9g, want %.9g\n", what, i, j,
                        (double)y[(size_t)j * n + i], (double)want[i * ld + j * step]);
                i = n - 1;
                break;
            }
    free(x);
    free(y);
}

static bt_weight_kind expert_kind(const bt_model_config *cfg)
{
    if (cfg->int4) return BT_WEIGHT_INT4;
    return cfg->fp8 ? BT_WEIGHT_FP8 : BT_WEIGHT_BF16;
}

/* The tensor as the plain reference reads it. */
static float *read_plain(const checkpoint *c, const char *name, uint32_t n, uint32_t k)
{
    bt_reference r      = {.cfg = &c->cfg, .st = c->set};
    float       *values = NULL;

    NEED(bt_ref_load(&r, n, k, false, name, &values) == BT_OK);
    return values;
}

static void expect_matrix(const checkpoint *c, const bt_linear *w, const char *name)
{
    float *want = read_plain(c, name, bt_linear_n(w), bt_linear_k(w));

    expect_linear(w, want, bt_linear_k(w), 1, name);
    bt_free(want);
}

static void expect_gate_up(const checkpoint *c, const bt_linear *w, const char *prefix)
{
    uint32_t dim = bt_linear_n(w) / 2, k = bt_linear_k(w);
    float   *both = malloc((size_t)2 * dim * k * sizeof(*both)), *part;
    char     name[128];

    NEED(both != NULL);
    for (size_t i = 0; i < 2; i++) {
        snprintf(name, sizeof(name), "%s.%s_proj.weight", prefix, i == 0 ? "gate" : "up");
        part = read_plain(c, name, dim, k);
        memcpy(both + i * dim * k, part, (size_t)dim * k * sizeof(*part));
        bt_free(part);
    }
    expect_linear(w, both, k, 1, prefix);
    free(both);
}

static void expect_heads(const checkpoint *c, const bt_mla_weights *w, const char *name)
{
    const bt_mla_config *m    = &c->cfg.mla;
    size_t               both = m->qk_nope_dim + m->v_dim, rank = m->kv_lora_rank;
    float               *want = read_plain(c, name, (uint32_t)(m->n_heads * both), (uint32_t)rank);

    for (size_t h = 0; h < m->n_heads; h++) {
        expect_linear(w->uk[h], want + h * both * rank, rank, 1, "uk");
        expect_linear(w->uv[h], want + (h * both + m->qk_nope_dim) * rank, rank, 1, "uv");
        expect_linear(w->ukt[h], want + h * both * rank, 1, rank, "ukt");
    }
    bt_free(want);
}

static void expect_indexer(const checkpoint *c, const bt_mla_weights *w)
{
    const char *const VECTORS[] = {"weight", "bias"};
    uint32_t          n         = c->cfg.mla.index_dim;
    char              name[128];

    expect_matrix(c, w->index_q, "model.layers.2.self_attn.indexer.wq_b.weight");
    expect_matrix(c, w->index_k, "model.layers.2.self_attn.indexer.wk.weight");
    expect_matrix(c, w->index_w, "model.layers.2.self_attn.indexer.weights_proj.weight");
    for (int v = 0; v < 2; v++) {
        const bt_bf16 *got = v == 0 ? w->index_k_norm : w->index_k_bias;
        float         *want;

        snprintf(name, sizeof(name), "model.layers.2.self_attn.indexer.k_norm.%s", VECTORS[v]);
        want = read_plain(c, name, 1, n);
        for (uint32_t i = 0; i < n; i++)
            EXPECT_EQ(got[i], bt_bf16_from_f32(want[i]));
        bt_free(want);
    }
}

static void expect_weights(const checkpoint *c, const bt_weights *w)
{
    const bt_layer_weights *dense = &w->layers[0], *moe = &w->layers[2];
    size_t                  n = (size_t)c->cfg.vocab_size * c->cfg.hidden, same = 0;
    float *want = read_plain(c, "model.embed_tokens.weight", c->cfg.vocab_size, c->cfg.hidden);

    while (same < n && bt_bf16_to_f32(w->embedding[same]) == want[same])
        same++;
    EXPECT_EQ(same, n);
    bt_free(want);
    expect_matrix(c, w->lm_head, "lm_head.weight");
    expect_gate_up(c, dense->gate_up, "model.layers.0.mlp");
    expect_matrix(c, dense->down, "model.layers.0.mlp.down_proj.weight");
    if (dense->mla.q != NULL)
        expect_matrix(c, dense->mla.q, "model.layers.0.self_attn.q_proj.weight");
    else
        expect_matrix(c, dense->mla.q_b, "model.layers.0.self_attn.q_b_proj.weight");
    expect_matrix(c, moe->mla.kv_a, "model.layers.2.self_attn.kv_a_proj_with_mqa.weight");
    expect_heads(c, &moe->mla, "model.layers.2.self_attn.kv_b_proj.weight");
    if (c->cfg.mla.index_topk != 0) expect_indexer(c, &moe->mla);
    expect_matrix(c, moe->mla.o, "model.layers.2.self_attn.o_proj.weight");
    expect_matrix(c, moe->moe.router, "model.layers.2.mlp.gate.weight");
    expect_gate_up(c, moe->moe.gate_up[1], "model.layers.2.mlp.experts.1");
    expect_matrix(c, moe->moe.down[1], "model.layers.2.mlp.experts.1.down_proj.weight");
    expect_gate_up(c, moe->moe.shared_gate_up, "model.layers.2.mlp.shared_experts");
}

static void weights_are_what_the_file_holds(void)
{
    for (size_t i = 0; i < sizeof(MODELS) / sizeof(MODELS[0]); i++) {
        checkpoint c;
        bt_weights w;

        checkpoint_open(&c, MODELS[i]);
        EXPECT_EQ(load(&c, c.set, &w), BT_OK);
        EXPECT_EQ(w.shared_bytes, 0);
        expect_weights(&c, &w);
        bt_weights_fini(&w);
        checkpoint_close(&c);
    }
}

/* In a multimodal checkpoint, as Kimi-K2.5's: names have a prefix, and there are other parts. */
static void weights_of_a_language_model_are_those_of_its_own(void)
{
    checkpoint c;
    bt_weights w;
    char(*names)[160] = malloc(sizeof(*names) * MAX_TENSORS);

    NEED(names != NULL);
    checkpoint_open(&c, "k2-int4");
    for (size_t i = 0; i < c.n; i++) {
        snprintf(names[i], sizeof(names[i]), "language_model.%s", c.tensors[i].name);
        c.tensors[i].name = names[i];
    }
    c.tensors[c.n]        = c.tensors[0];
    c.tensors[c.n++].name = "vision_tower.encoder.blocks.0.wo.weight";
    EXPECT_EQ(load_list(&c, &w), BT_OK);
    expect_weights(&c, &w);
    bt_weights_fini(&w);
    checkpoint_close(&c);
    free(names);
}

static bt_store *open_store(const checkpoint *c, int fd, uint32_t member)
{
    bt_store_options opt   = {.fd = fd, .member = member, .rank = member, .timeout_ns = 1};
    bt_store        *store = NULL;

    bt_model_store_options(&c->cfg, c->set, &opt);
    NEED(bt_store_open(&opt, &store) == BT_OK);
    return store;
}

/* Bytes of shared memory that this process has in its page tables. */
static uint64_t mapped_shared(void)
{
    FILE *f = fopen("/proc/self/status", "r");
    char  line[128];
    long  kb = -1;

    NEED(f != NULL);
    while (fgets(line, sizeof(line), f) != NULL)
        (void)sscanf(line, "RssShmem: %ld", &kb);
    fclose(f);
    NEED(kb >= 0);
    return (uint64_t)kb * 1024;
}

/* The first of two ranks packs, the second reads the same memory; where a third has left an entry
 * unfinished, the one that needs it packs it. */
static void weights_are_packed_once_for_ranks_that_share(void)
{
    for (size_t i = 0; i < sizeof(MODELS) / sizeof(MODELS[0]); i++) {
        int            fd = memfd_create("test-weights", MFD_CLOEXEC);
        checkpoint     c;
        bt_store      *store[3];
        bt_store_entry left;
        bt_weights     w[2];
        uint64_t       packed, before;

        checkpoint_open(&c, MODELS[i]);
        for (uint32_t m = 0; m < 3; m++)
            store[m] = open_store(&c, fd, m);
        packed = bt_cpu_linear_bytes(c.cfg.hidden, c.cfg.moe.expert_dim, expert_kind(&c.cfg));
        EXPECT_EQ(
            bt_store_take(store[2], "model.layers.2.mlp.experts.1.down_proj.weight", packed, &left),
            BT_STORE_MINE);
        c.store = store[0];
        EXPECT_EQ(load(&c, c.set, &w[0]), BT_OK);
        packed  = bt_store_bytes(store[0]);
        c.store = store[1];
        before  = mapped_shared();
        EXPECT_EQ(load(&c, c.set, &w[1]), BT_OK);
        c.store = NULL;
        /* No page is left to the first request; the kernel counts some late. */
        EXPECT(mapped_shared() - before > packed / 4 * 3);
        EXPECT_EQ(bt_store_bytes(store[0]), packed);
        for (int r = 0; r < 2; r++) {
            EXPECT_EQ(w[r].shared_bytes, packed);
            EXPECT(w[r].bytes >= packed);
            EXPECT(w[r].layers[2].moe.down[1]->borrowed);
            expect_weights(&c, &w[r]);
            bt_weights_fini(&w[r]);
        }
        for (uint32_t m = 0; m < 3; m++)
            bt_store_close(store[m]);
        close(fd);
        checkpoint_close(&c);
    }
}

/* Those who wait for a matrix see its rows go on: signs of life in the store's head (store.c). */
static void packing_shows_signs_of_life(void)
{
    enum { BEATS_AT = 560, SLOTS_AT = BT_STORE_PAGE_BYTES, SLOT_BYTES = 48 };

    for (size_t i = 0; i < sizeof(MODELS) / sizeof(MODELS[0]); i++) {
        int              fd  = memfd_create("test-weights", MFD_CLOEXEC);
        bt_store_options opt = {.fd = fd};
        checkpoint       c;
        bt_weights       w;
        uint64_t         beats = 0, key, n_entries = 0;

        checkpoint_open(&c, MODELS[i]);
        bt_model_store_options(&c.cfg, c.set, &opt);
        c.store = open_store(&c, fd, 0);
        EXPECT_EQ(load(&c, c.set, &w), BT_OK);
        NEED(pread(fd, &beats, sizeof(beats), BEATS_AT) == sizeof(beats));
        for (uint32_t s = 0; s < opt.n_slots; s++) {
            NEED(pread(fd, &key, sizeof(key), SLOTS_AT + s * SLOT_BYTES) == sizeof(key));
            n_entries += key != 0;
        }
        /* One to begin with, at least one for a matrix, and the embedding's rows. */
        EXPECT(n_entries > 1 && beats >= 2 * n_entries - 1 + c.cfg.vocab_size);
        bt_weights_fini(&w);
        bt_store_close(c.store);
        c.store = NULL;
        close(fd);
        checkpoint_close(&c);
    }
}

/* Experts that move at a regroup: memory goes with the last rank that has them; what a third has
 * left unfinished, the one that needs it packs. */
static void experts_of_a_model_move(const char *model)
{
    int                fd  = memfd_create("test-weights", MFD_CLOEXEC);
    bt_weights_options opt = {.dev = g_dev};
    checkpoint         c;
    bt_store          *store[3];
    bt_store_entry     left;
    bt_weights         w[2];
    uint64_t           all;

    checkpoint_open(&c, model);
    opt.own_experts = c.own;
    for (uint32_t m = 0; m < 2; m++) {
        c.store = store[m] = open_store(&c, fd, m);
        EXPECT_EQ(load(&c, c.set, &w[m]), BT_OK);
    }
    c.store  = NULL;
    store[2] = open_store(&c, fd, 2);
    all      = bt_store_bytes(store[0]);
    c.own[1] = false;
    EXPECT_EQ(bt_weights_move_experts(&c.cfg, c.set, &opt, &w[0]), BT_OK);
    EXPECT(w[0].layers[2].moe.down[1] == NULL && w[0].shared_bytes < all);
    EXPECT_EQ(bt_store_bytes(store[0]), all); /* the other has it */
    EXPECT_EQ(bt_weights_move_experts(&c.cfg, c.set, &opt, &w[1]), BT_OK);
    EXPECT_EQ(bt_store_bytes(store[0]), w[0].shared_bytes);
    c.own[1] = true;
    EXPECT_EQ(
        bt_store_take(store[2], "model.layers.2.mlp.experts.1.down_proj.weight",
                      bt_cpu_linear_bytes(c.cfg.hidden, c.cfg.moe.expert_dim, expert_kind(&c.cfg)),
                      &left),
        BT_STORE_MINE);
    EXPECT_EQ(bt_weights_move_experts(&c.cfg, c.set, &opt, &w[1]), BT_OK);
    EXPECT_EQ(bt_weights_move_experts(&c.cfg, c.set, &opt, &w[0]), BT_OK);
    EXPECT_EQ(bt_store_bytes(store[0]), all);
    for (uint32_t m = 0; m < 2; m++) {
        EXPECT_EQ(w[m].shared_bytes, all);
        expect_weights(&c, &w[m]);
        bt_weights_fini(&w[m]);
        bt_store_close(store[m]);
    }
    bt_store_close(store[2]);
    close(fd);
    checkpoint_close(&c);
}

static void shared_experts_move(void)
{
    experts_of_a_model_move("v2-lite");
    experts_of_a_model_move("v3-fp8");
    experts_of_a_model_move("k2-int4");
}

/* One start of a rank: returns how many bytes it had to pack, and keeps them. */
static uint64_t start_with(checkpoint *c, const char *path)
{
    int              fd    = memfd_create("test-weights", MFD_CLOEXEC);
    bt_store        *other = open_store(c, fd, 1);
    bt_store_options opt   = {.fd = fd};
    bt_weights       w;
    uint64_t         packed;

    bt_model_store_options(&c->cfg, c->set, &opt);
    c->store = open_store(c, fd, 0);
    EXPECT_EQ(bt_packed_open(path, opt.key, &c->packed), BT_OK);
    EXPECT_EQ(load(c, c->set, &w), BT_OK);
    packed = bt_store_bytes(c->store);
    EXPECT(w.shared_bytes >= packed && w.bytes >= w.shared_bytes);
    if (c->own[1]) expect_weights(c, &w);
    if (c->packed == NULL) { /* not before all have loaded */
        EXPECT_EQ(bt_store_save(c->store, path, c->packed, NULL, NULL), BT_OK);
        EXPECT(access(path, F_OK) != 0);
    }
    bt_store_close(other);
    EXPECT_EQ(bt_store_save(c->store, path, c->packed, NULL, NULL), BT_OK);
    bt_weights_fini(&w);
    bt_store_close(c->store);
    bt_packed_close(c->packed);
    c->store  = NULL;
    c->packed = NULL;
    close(fd);
    return packed;
}

/* What one start has packed the next one maps; what it lacks is packed, and is there as well the
 * time after. */
static void weights_are_kept_for_the_next_start(void)
{
    for (size_t i = 0; i < sizeof(MODELS) / sizeof(MODELS[0]); i++) {
        checkpoint c;
        char       path[sizeof(c.file) + 8];
        uint64_t   first, second;

        checkpoint_open(&c, MODELS[i]);
        snprintf(path, sizeof(path), "%s.packed", c.file);
        c.own[1] = false;
        first    = start_with(&c, path);
        c.own[1] = true;
        second   = start_with(&c, path);
        EXPECT(first > second && second > 0);
        EXPECT_EQ(start_with(&c, path), 0);
        unlink(path);
        checkpoint_close(&c);
    }
}

static void weights_take_only_their_own_experts(void)
{
    checkpoint c;
    bt_weights all, some;
    size_t     kept = 0;

    checkpoint_open(&c, "v2-lite");
    EXPECT_EQ(load(&c, c.set, &all), BT_OK);
    for (uint32_t e = 0; e < MAX_EXPERTS; e++)
        c.own[e] = e == 5;
    for (size_t i = 0; i < c.n; i++) /* the others' tensors may as well be missing */
        if (strstr(c.tensors[i].name, ".experts.") == NULL ||
            strstr(c.tensors[i].name, ".experts.5.") != NULL)
            c.tensors[kept++] = c.tensors[i];
    EXPECT(kept < c.n);
    c.n = kept;
    EXPECT_EQ(load_list(&c, &some), BT_OK);
    EXPECT(some.layers[1].moe.gate_up[5] != NULL && some.layers[1].moe.down[5] != NULL);
    EXPECT(some.layers[1].moe.gate_up[4] == NULL && some.layers[1].moe.down[6] == NULL);
    EXPECT(some.bytes < all.bytes);
    bt_weights_fini(&all);
    bt_weights_fini(&some);
    checkpoint_close(&c);
}

static void weights_leave_out_the_form_that_is_not_run(void)
{
    bt_weights_options opt = {.dev = g_dev, .normal = true};
    checkpoint         c;
    bt_weights         w;

    checkpoint_open(&c, "v2-lite");
    opt.own_experts = c.own;
    EXPECT_EQ(bt_weights_load(&c.cfg, c.set, &opt, &w), BT_OK);
    EXPECT(w.layers[0].mla.uk != NULL && w.layers[0].mla.ukt == NULL && w.layers[0].mla.uv != NULL);
    bt_weights_fini(&w);
    checkpoint_close(&c);
}

/* A byte a weight where rows of 16 share their scales: not where gate ends and up begins, at 72,
 * nor where attention wants bf16. */
static void weights_in_8_bits_stay_so(void)
{
    checkpoint            c;
    bt_weights            w;
    const bt_moe_weights *moe;

    checkpoint_open(&c, "v3-fp8");
    NEED(load(&c, c.set, &w) == BT_OK);
    moe = &w.layers[c.cfg.n_layers - 1].moe;
    for (uint32_t e = 0; e < c.cfg.moe.gate.n_experts; e++) {
        EXPECT(bt_linear_kind(moe->down[e]) == BT_WEIGHT_FP8 &&
               bt_linear_kind(moe->gate_up[e]) == BT_WEIGHT_BF16);
        EXPECT_EQ(bt_linear_bytes(moe->down[e]),
                  bt_cpu_linear_bytes(c.cfg.hidden, c.cfg.moe.expert_dim, BT_WEIGHT_FP8));
    }
    EXPECT(bt_linear_kind(w.layers[0].gate_up) == BT_WEIGHT_FP8 &&
           bt_linear_kind(w.layers[0].mla.o) == BT_WEIGHT_FP8);
    EXPECT(bt_linear_kind(w.layers[0].mla.uv[0]) == BT_WEIGHT_BF16 &&
           bt_linear_kind(w.layers[0].mla.ukt[1]) == BT_WEIGHT_BF16);
    EXPECT(bt_linear_kind(moe->router) == BT_WEIGHT_BF16 &&
           bt_linear_kind(w.lm_head) == BT_WEIGHT_BF16);
    bt_weights_fini(&w);
    checkpoint_close(&c);
}

static void weights_in_4_bits_stay_so(void)
{
    checkpoint            c;
    bt_weights            w;
    const bt_moe_weights *moe;

    checkpoint_open(&c, "k2-int4");
    NEED(load(&c, c.set, &w) == BT_OK);
    moe = &w.layers[c.cfg.n_layers - 1].moe;
    for (uint32_t e = 0; e < c.cfg.moe.gate.n_experts; e++) {
        uint32_t n = c.cfg.moe.expert_dim, k = c.cfg.hidden;

        EXPECT(bt_linear_kind(moe->down[e]) == BT_WEIGHT_INT4);
        EXPECT(bt_linear_kind(moe->gate_up[e]) == BT_WEIGHT_INT4);
        EXPECT_EQ(bt_linear_bytes(moe->gate_up[e]), 2 * n * k / 2 + 2 * n * k / 32 * 2);
    }
    EXPECT(bt_linear_kind(w.layers[0].gate_up) == BT_WEIGHT_BF16);
    EXPECT(bt_linear_kind(moe->shared_down) == BT_WEIGHT_BF16);
    bt_weights_fini(&w);
    checkpoint_close(&c);
}

/* What a matrix of 4 bits that a test has made lies in. */
typedef struct {
    char      names[3][128];
    uint32_t *words;
    bt_bf16  *scale;
    int64_t   shape[2];
} packed_any;

/* Instead of the matrix at `i` of the list its like of 4 bits, of any words. */
static void pack_any(checkpoint *c, size_t i, packed_any *p)
{
    static const char *const ENDS[] = {"packed", "scale", "shape"};
    bt_tensor                was    = c->tensors[i];
    size_t                   n = was.shape[0], k = was.shape[1];

    p->words = malloc(n * k / 2);
    p->scale = malloc(n * k / 32 * sizeof(*p->scale));
    NEED(p->words != NULL && p->scale != NULL && k % 32 == 0 && c->n + 2 <= MAX_TENSORS);
    for (size_t j = 0; j < n * k / 8; j++)
        p->words[j] = (uint32_t)(j + 1) * 2654435761u;
    for (size_t j = 0; j < n * k / 32; j++)
        p->scale[j] = (bt_bf16)(0x3d00 + j % 127);
    p->shape[0] = (int64_t)n;
    p->shape[1] = (int64_t)k;
    for (size_t e = 0; e < 3; e++)
        snprintf(p->names[e], sizeof(p->names[e]), "%s_%s", was.name, ENDS[e]);
    c->tensors[i] = (bt_tensor){
        p->names[0], BT_ST_I32, 2, {n, k / 8},
           p->words, n * k / 2
    };
    c->tensors[c->n++] = (bt_tensor){
        p->names[1], BT_ST_BF16, 2, {n, k / 32},
           p->scale, n * k / 16
    };
    c->tensors[c->n++] = (bt_tensor){p->names[2], BT_ST_I64, 1, {2}, p->shape, 16};
}

/* Also where published models have none: in attention, of which the CPU reads kv_b as bf16, in the
 * head; and where gate_proj has 4 bits and up_proj has not. */
static void weights_in_4_bits_may_be_any(void)
{
    static const char *const ANY[] = {"model.layers.2.self_attn.kv_b_proj.weight",
                                      "model.layers.2.self_attn.o_proj.weight",
                                      "model.layers.0.mlp.gate_proj.weight", "lm_head.weight"};
    enum { N_ANY = sizeof(ANY) / sizeof(ANY[0]) };
    packed_any any[N_ANY];
    checkpoint c;
    bt_weights w;

    checkpoint_open(&c, "kimi-k2");
    c.cfg.int4 = true;
    for (size_t a = 0; a < N_ANY; a++) {
        size_t i = 0;

        while (strcmp(c.tensors[i].name, ANY[a]) != 0)
            i++;
        pack_any(&c, i, &any[a]);
    }
    NEED(bt_safetensors_write(c.file, c.n, c.tensors) == BT_OK);
    bt_safetensors_close(c.set);
    NEED(bt_safetensors_open(c.file, &c.set) == BT_OK);
    EXPECT_EQ(load(&c, c.set, &w), BT_OK);
    expect_weights(&c, &w);
    EXPECT(bt_linear_kind(w.lm_head) == BT_WEIGHT_INT4);
    EXPECT(bt_linear_kind(w.layers[2].mla.o) == BT_WEIGHT_INT4);
    EXPECT(bt_linear_kind(w.layers[2].mla.uv[0]) == BT_WEIGHT_BF16);
    EXPECT(bt_linear_kind(w.layers[0].gate_up) == BT_WEIGHT_BF16);
    bt_weights_fini(&w);
    for (size_t a = 0; a < N_ANY; a++)
        free(any[a].words), free(any[a].scale);
    checkpoint_close(&c);
}

/* bf16 stored as fp32 gives the same weights. */
static void weights_read_fp32(void)
{
    checkpoint c;
    bt_weights w;
    float     *wide[MAX_TENSORS] = {NULL};

    checkpoint_open(&c, "glm-flash");
    for (size_t i = 0; i < c.n; i++) {
        bt_tensor *t = &c.tensors[i];

        if (t->dtype != BT_ST_BF16) continue;
        wide[i] = malloc(t->bytes * 2);
        NEED(wide[i] != NULL);
        for (size_t j = 0; j < t->bytes / 2; j++) {
            bt_bf16 half;

            memcpy(&half, (const char *)t->data + j * 2, 2);
            wide[i][j] = bt_bf16_to_f32(half);
        }
        t->dtype = BT_ST_F32;
        t->bytes *= 2;
        t->data = wide[i];
    }
    EXPECT_EQ(load_list(&c, &w), BT_OK);
    expect_matrix(&c, w.lm_head, "lm_head.weight");
    expect_heads(&c, &w.layers[1].mla, "model.layers.1.self_attn.kv_b_proj.weight");
    expect_gate_up(&c, w.layers[1].moe.gate_up[3], "model.layers.1.mlp.experts.3");
    bt_weights_fini(&w);
    for (size_t i = 0; i < c.n; i++)
        free(wide[i]);
    checkpoint_close(&c);
}

static void on_progress(void *ctx, uint64_t done, uint64_t total)
{
    uint64_t *seen = ctx;

    EXPECT(done > seen[0] && done <= total);
    seen[0] = done;
    seen[1] = total;
}

static void weights_report_progress_to_the_end(void)
{
    uint64_t           seen[2] = {0, 0};
    bt_weights_options opt     = {.dev          = g_dev,
                                  .normal       = true,
                                  .absorbed     = true,
                                  .progress     = on_progress,
                                  .progress_ctx = seen};
    checkpoint         c;
    bt_weights         w;

    checkpoint_open(&c, "kimi-k2");
    opt.own_experts = c.own;
    EXPECT_EQ(bt_weights_load(&c.cfg, c.set, &opt, &w), BT_OK);
    EXPECT(seen[0] == seen[1] && seen[1] > 0);
    bt_weights_fini(&w);
    checkpoint_close(&c);
}

static void model_unwinds_at_every_allocation(const char *model)
{
    checkpoint c;
    bt_weights w = {0};

    checkpoint_open(&c, model);
    EXPECT(BT_SWEEP(load(&c, c.set, &w), bt_weights_fini(&w)) > 100);
    checkpoint_close(&c);
}

static void weights_unwind_at_every_allocation(void)
{
    model_unwinds_at_every_allocation("v3-fp8");
    model_unwinds_at_every_allocation("k2-int4");
}

/* How often each was advised; the C library's function is not called. */
static uint32_t g_samples, g_in_full;

int madvise(void *memory, size_t n, int advice)
{
    g_samples += advice == MADV_RANDOM;
    g_in_full += advice == MADV_NORMAL;
    return (int)syscall(SYS_madvise, memory, n, advice);
}

/* With read-ahead its samples bring in the whole file. */
static void fingerprint_reads_no_more_than_its_samples(void)
{
    checkpoint c;

    checkpoint_open(&c, "v2-lite");
    g_samples = g_in_full = 0;
    bt_model_fingerprint(&c.cfg, c.set);
    EXPECT_EQ(g_samples, 1); /* the checkpoint is one file */
    EXPECT_EQ(g_in_full, 1); /* which is then loaded */
    checkpoint_close(&c);
}

static void fingerprint_tells_models_apart(void)
{
    checkpoint      c, other;
    bt_safetensors *set = NULL;
    uint64_t        print;
    unsigned char  *data;

    checkpoint_open(&c, "v2-lite");
    checkpoint_open(&other, "moonlight");
    print = bt_model_fingerprint(&c.cfg, c.set);
    EXPECT(print == bt_model_fingerprint(&c.cfg, c.set));
    EXPECT(print != bt_model_fingerprint(&other.cfg, other.set));
    EXPECT(print != bt_model_fingerprint(&other.cfg, c.set));
    c.cfg.index_shared[0] ^= 2; /* which layers choose what tokens attend to */
    EXPECT(print != bt_model_fingerprint(&c.cfg, c.set));
    c.cfg.index_shared[0] ^= 2;
    c.cfg.mla.index_topk ^= 1;
    EXPECT(print != bt_model_fingerprint(&c.cfg, c.set));
    c.cfg.mla.index_topk ^= 1;
    for (size_t i = 0; i < c.n; i += 17) { /* one byte of one tensor */
        bt_tensor was = c.tensors[i];

        data = malloc(was.bytes);
        NEED(data != NULL);
        memcpy(data, was.data, was.bytes);
        data[was.bytes - 1] ^= 1;
        c.tensors[i].data = data;
        NEED(bt_safetensors_write(c.file, c.n, c.tensors) == BT_OK);
        NEED(bt_safetensors_open(c.file, &set) == BT_OK);
        EXPECT(print != bt_model_fingerprint(&c.cfg, set));
        bt_safetensors_close(set);
        free(data);
        c.tensors[i] = was;
    }
    checkpoint_close(&c);
    checkpoint_close(&other);
}

static const bt_test TESTS[] = {
    BT_TEST(weights_are_what_the_file_holds),
    BT_TEST(weights_of_a_language_model_are_those_of_its_own),
    BT_TEST(weights_are_packed_once_for_ranks_that_share),
    BT_TEST(packing_shows_signs_of_life),
    BT_TEST(shared_experts_move),
    BT_TEST(weights_are_kept_for_the_next_start),
    BT_TEST(weights_take_only_their_own_experts),
    BT_TEST(weights_leave_out_the_form_that_is_not_run),
    BT_TEST(weights_in_8_bits_stay_so),
    BT_TEST(weights_in_4_bits_stay_so),
    BT_TEST(weights_in_4_bits_may_be_any),
    BT_TEST(weights_read_fp32),
    BT_TEST(weights_report_progress_to_the_end),
    BT_TEST(weights_unwind_at_every_allocation),
    BT_TEST(fingerprint_reads_no_more_than_its_samples),
    BT_TEST(fingerprint_tells_models_apart),
};

int main(int argc, char **argv)
{
    return checkpoint_main(argc, argv, TESTS, sizeof(TESTS) / sizeof(TESTS[0]));
}

/* Weights that the ranks of a machine share, or find packed by an earlier start, and the
 * fingerprint by which they know that they are the same. */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "device/cpu/linear.h"
#include "model/weights_loader.h"
#include "tests/model/weights_check.h"

/* An expert's matrix in the store. */
typedef struct {
    char   name[BT_ENTRY_NAME];
    size_t bytes;
} expert_entry;

static expert_entry entry_of_expert(const checkpoint *c)
{
    bt_weight_kind kind = c->cfg.int4   ? BT_WEIGHT_INT4
                          : c->cfg.fp8  ? BT_WEIGHT_FP8
                          : c->few_rows ? few_rows_kind()
                                        : BT_WEIGHT_BF16;
    expert_entry   e = {.bytes = bt_cpu_linear_bytes(c->cfg.hidden, c->cfg.moe.expert_dim, kind)};

    bt_loader_entry_name("model.layers.2.mlp.experts.1.down_proj.weight", kind, e.name);
    return e;
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
        expert_entry   expert;
        bt_weights     w[2];
        uint64_t       packed, before;

        checkpoint_open(&c, MODELS[i]);
        c.few_rows = i % 2 != 0;
        expert     = entry_of_expert(&c);
        for (uint32_t m = 0; m < 3; m++)
            store[m] = open_store(&c, fd, m);
        EXPECT_EQ(bt_store_take(store[2], expert.name, expert.bytes, &left), BT_STORE_MINE);
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
static void experts_of_a_model_move(const char *model, bool few_rows)
{
    int                fd  = memfd_create("test-weights", MFD_CLOEXEC);
    bt_weights_options opt = {.dev = g_dev};
    checkpoint         c;
    bt_store          *store[3];
    bt_store_entry     left;
    expert_entry       expert;
    bt_weights         w[2];
    uint64_t           all;

    checkpoint_open(&c, model);
    c.few_rows      = few_rows;
    expert          = entry_of_expert(&c);
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
    EXPECT_EQ(bt_weights_missing_experts(&c.cfg, &w[0]), 0);
    EXPECT_EQ(bt_weights_move_experts(&c.cfg, c.set, &opt, &w[1]), BT_OK);
    EXPECT_EQ(bt_store_bytes(store[0]), w[0].shared_bytes);
    EXPECT_EQ(bt_weights_missing_experts(&c.cfg, &w[0]), 1);
    c.own[1] = true;
    EXPECT_EQ(bt_store_take(store[2], expert.name, expert.bytes, &left), BT_STORE_MINE);
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
    experts_of_a_model_move("v2-lite", false);
    experts_of_a_model_move("v2-lite", true);
    experts_of_a_model_move("v3-fp8", false);
    experts_of_a_model_move("k2-int4", true);
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
        c.few_rows = i % 2 == 0;
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

/* Gives the expert's matrix as much of every exponent; what is returned is to be freed. */
static bt_bf16 *spread_exponents(checkpoint *c)
{
    bt_safetensors *set  = NULL;
    bt_bf16        *data = NULL;

    for (size_t i = 0; i < c->n && data == NULL; i++) {
        bt_tensor *t = &c->tensors[i];

        if (strcmp(t->name, "model.layers.2.mlp.experts.1.down_proj.weight") != 0) continue;
        data = malloc(t->bytes);
        NEED(data != NULL && t->dtype == BT_ST_BF16);
        for (size_t j = 0; j < t->bytes / sizeof(*data); j++)
            data[j] = (bt_bf16)((j * 2654435761u >> 9) % 0x7f80);
        t->data = data;
    }
    NEED(data != NULL && bt_safetensors_write(c->file, c->n, c->tensors) == BT_OK);
    NEED(bt_safetensors_open(c->file, &set) == BT_OK);
    bt_safetensors_close(c->set);
    c->set = set;
    return data;
}

/* What 12 bits do not hold is shared in bf16, as what never was to be in 12. */
static void weights_that_do_not_fit_are_shared_in_bf16(void)
{
    int        fd = memfd_create("test-weights", MFD_CLOEXEC);
    checkpoint c;
    bt_store  *store[2];
    bt_weights w[3];
    bt_bf16   *data;

    checkpoint_open(&c, "v2-lite");
    c.few_rows = true;
    data       = spread_exponents(&c);
    for (uint32_t m = 0; m < 2; m++)
        store[m] = open_store(&c, fd, m);
    for (uint32_t m = 0; m < 3; m++) {
        c.store = m < 2 ? store[m] : NULL;
        NEED(load(&c, c.set, &w[m]) == BT_OK);
        EXPECT_EQ(w[m].layers[2].moe.down[1]->kind, BT_WEIGHT_BF16);
        EXPECT_EQ(w[m].layers[2].moe.down[1]->borrowed, m < 2);
        EXPECT(w[m].layers[2].moe.down[2]->kind == few_rows_kind());
        expect_weights(&c, &w[m]);
    }
    EXPECT_EQ(bt_store_bytes(store[0]), w[0].shared_bytes); /* nothing is left of the attempt */
    EXPECT_EQ(w[1].shared_bytes, w[0].shared_bytes);
    for (uint32_t m = 0; m < 3; m++)
        bt_weights_fini(&w[m]);
    for (uint32_t m = 0; m < 2; m++)
        bt_store_close(store[m]);
    close(fd);
    checkpoint_close(&c);
    free(data);
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

/* What is mapped is known by the file that it came from, also once another one has its name. */
static void store_key_is_of_the_files_that_are_mapped(void)
{
    const struct timespec old[2] = {
        {1, 0},
        {1, 0}
    };
    bt_store_options was = {.fd = -1}, now = {.fd = -1};
    bt_safetensors  *before = NULL, *after = NULL;
    checkpoint       c;

    checkpoint_open(&c, "v2-lite");
    NEED(bt_safetensors_write(c.file, c.n, c.tensors) == BT_OK);
    NEED(bt_safetensors_open(c.file, &before) == BT_OK);
    bt_model_store_options(&c.cfg, before, &was);
    NEED(bt_safetensors_write(c.file, c.n, c.tensors) == BT_OK);
    NEED(utimensat(AT_FDCWD, c.file, old, 0) == 0);
    bt_model_store_options(&c.cfg, before, &now);
    EXPECT(now.key == was.key);
    NEED(bt_safetensors_open(c.file, &after) == BT_OK);
    bt_model_store_options(&c.cfg, after, &now);
    EXPECT(now.key != was.key);
    bt_safetensors_close(before);
    bt_safetensors_close(after);
    checkpoint_close(&c);
}

static const bt_test TESTS[] = {
    BT_TEST(weights_are_packed_once_for_ranks_that_share),
    BT_TEST(packing_shows_signs_of_life),
    BT_TEST(shared_experts_move),
    BT_TEST(weights_are_kept_for_the_next_start),
    BT_TEST(weights_that_do_not_fit_are_shared_in_bf16),
    BT_TEST(fingerprint_reads_no_more_than_its_samples),
    BT_TEST(fingerprint_tells_models_apart),
    BT_TEST(store_key_is_of_the_files_that_are_mapped),
};

int main(int argc, char **argv)
{
    return checkpoint_main(argc, argv, TESTS, sizeof(TESTS) / sizeof(TESTS[0]));
}

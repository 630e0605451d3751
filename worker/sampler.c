#include "worker/sampler.h"

#include <math.h>

#include "device/cpu/math.h"

void bt_philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c[4] = {counter[0], counter[1], counter[2], counter[3]};
    uint32_t k0 = key[0], k1 = key[1];

    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c[0], p1 = (uint64_t)0xCD9E8D57u * c[2];
        uint32_t c1 = c[1], c3 = c[3];

        c[0] = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c[1] = (uint32_t)p1;
        c[2] = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c[3] = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    for (int i = 0; i < 4; i++)
        out[i] = c[i];
}

/* In [0, 1), 53 bits. */
static double uniform(const bt_sample_how *how)
{
    const uint32_t counter[4] = {how->position, how->choice, 0, 0};
    const uint32_t key[2]     = {(uint32_t)how->seed, (uint32_t)(how->seed >> 32)};
    uint32_t       words[4];

    bt_philox4x32(counter, key, words);
    return ((double)(words[0] >> 5) * 67108864.0 + (double)(words[1] >> 6)) * 0x1p-53;
}

static uint32_t block_len(uint32_t n_vocab, uint32_t first)
{
    return n_vocab - first < BT_VOCAB_BLOCK ? n_vocab - first : BT_VOCAB_BLOCK;
}

/* Rows of a vocabulary are padded with -inf in a copy where they hold a NaN, which the caller has
 * already seen to be rare: exp of -inf is +0 and adds nothing. */
static float block_exp(const bt_cpu_row_kernels *k, const float *x, uint32_t n, float scale,
                       float max, float *e)
{
    bt_bf16 rounded[BT_VOCAB_BLOCK]; /* not used: the kernel is attention's */
    float   clean[BT_VOCAB_BLOCK];
    float   sum = k->exp_row(x, n, n, scale, max, rounded, e);

    if (!isnan(sum)) return sum;
    for (uint32_t i = 0; i < n; i++)
        clean[i] = isnan(x[i]) ? -INFINITY : x[i];
    return k->exp_row(clean, n, n, scale, max, rounded, e);
}

static float sum_exp(const bt_cpu_row_kernels *k, const float *logits, uint32_t n_vocab, float max)
{
    float e[BT_VOCAB_BLOCK], sum = 0;

    for (uint32_t first = 0; first < n_vocab; first += BT_VOCAB_BLOCK)
        sum += block_exp(k, logits + first, block_len(n_vocab, first), 1.0f, max, e);
    return sum;
}

float bt_log_sum_exp(const bt_cpu_row_kernels *k, const float *logits, uint32_t n_vocab)
{
    float max = k->row_max(logits, n_vocab, -INFINITY);

    return max + bt_logf(sum_exp(k, logits, n_vocab, max));
}

static uint32_t first_equal(const float *logits, uint32_t n_vocab, float value)
{
    uint32_t id = 0;

    while (id < n_vocab && logits[id] != value)
        id++;
    return id;
}

/* The id in which the running sum of exp(logit / temperature) passes u times the whole. */
static uint32_t draw(const bt_cpu_row_kernels *k, const float *logits, uint32_t n_vocab, float max,
                     const bt_sample_how *how)
{
    float    sums[BT_MAX_VOCAB / BT_VOCAB_BLOCK], e[BT_VOCAB_BLOCK];
    float    scale = 1.0f / how->temperature, top = max * scale;
    double   whole = 0, target, before = 0;
    uint32_t n_blocks = 0, block = 0, first, len, last = 0;

    for (first = 0; first < n_vocab; first += BT_VOCAB_BLOCK) {
        len            = block_len(n_vocab, first);
        sums[n_blocks] = block_exp(k, logits + first, len, scale, top, e);
        whole += sums[n_blocks++];
    }
    target = uniform(how) * whole;
    while (block + 1 < n_blocks && before + sums[block] <= target)
        before += sums[block++];
    /* Rounding can leave the target a hair past every block with a chance: walk back to one. */
    while (block > 0 && sums[block] == 0)
        before -= sums[--block];
    first = block * BT_VOCAB_BLOCK;
    len   = block_len(n_vocab, first);
    block_exp(k, logits + first, len, scale, top, e);
    for (uint32_t i = 0; i < len; i++) {
        if (e[i] == 0) continue;
        last = i;
        before += e[i];
        if (before > target) break;
    }
    return first + last;
}

bt_status bt_sample(const bt_cpu_row_kernels *k, const float *logits, uint32_t n_vocab,
                    const bt_sample_how *how, uint32_t *id_out, float *logprob_out)
{
    bt_status st  = BT_OK;
    float     max = k->row_max(logits, n_vocab, -INFINITY);
    uint32_t  id;

    BT_ASSERT(n_vocab >= 1 && n_vocab <= BT_MAX_VOCAB);
    BT_REQUIRE(isfinite(max), BT_ERR_DEVICE,
               "the highest of %u logits for position %u is %f, not a finite number", n_vocab,
               how->position, (double)max);
    id           = how->temperature < BT_MIN_TEMPERATURE ? first_equal(logits, n_vocab, max)
                                                         : draw(k, logits, n_vocab, max, how);
    *logprob_out = how->logprob ? logits[id] - max - bt_logf(sum_exp(k, logits, n_vocab, max)) : 0;
    *id_out      = id;
out:
    return st;
}

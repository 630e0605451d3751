/* device/cpu/pack_bf12.inc.h - packed bf16 weights in 12 bits, without loss (kernels.h): a part of
 * rows.inc.h, compiled for its instruction set.
 *
 * The upper byte of a bf16 is its sign and seven bits of its exponent.  Of the 128 that these have,
 * eight hold all but one in some ten thousand weights of a matrix that has been trained or drawn
 * from a normal distribution: 16 exponents in a row, from the largest down.  So 4 bits say which,
 * with the sign, and what has none of the eight is written down beside. */
enum {
    UPPERS   = 128, /* upper bytes without their sign */
    CODES    = 8,
    COUNTERS = 4, /* of each: most weights have the same few, and would wait for each other */
    GROUP    = BT_CPU_BF12_GROUP,
    HALF     = GROUP / 2,
    LINE     = GROUP / 4,
    SAMPLE   = 4 /* one group in so many is counted: which codes are best is no matter of bits */
};

typedef struct {
    uint8_t upper[GROUP], code[GROUP], known[GROUP]; /* known: 0xff */
} coded;

static uint8_t upper_of(bt_bf16 w) { return (uint8_t)(w >> 8 & (UPPERS - 1)); }

/* The most frequent ones, each with either sign. */
static void choose_codes(const bt_bf16 *w, size_t n, uint8_t high[2 * CODES])
{
    uint32_t each[COUNTERS][UPPERS] = {0}, counts[UPPERS] = {0};

    for (size_t i = 0; i < n; i += SAMPLE * GROUP)
        for (size_t j = i; j < i + GROUP; j += COUNTERS)
            for (int k = 0; k < COUNTERS; k++)
                each[k][upper_of(w[j + k])]++;
    for (int k = 0; k < COUNTERS; k++)
        for (int u = 0; u < UPPERS; u++)
            counts[u] += each[k][u];
    for (uint8_t c = 0; c < CODES; c++) {
        uint8_t best = 0;

        for (uint8_t u = 1; u < UPPERS; u++)
            if (counts[u] > counts[best]) best = u;
        counts[best]    = 0;
        high[c]         = best;
        high[c + CODES] = best | 0x80;
    }
}

/* Loops that compilers make vectors of. */
static void find_codes(const bt_bf16 *w, const uint8_t high[2 * CODES], coded *g)
{
    for (int i = 0; i < GROUP; i++)
        g->upper[i] = upper_of(w[i]);
    for (int i = 0; i < GROUP; i++)
        g->code[i] = (uint8_t)(w[i] >> 15) * CODES;
    memset(g->known, 0, GROUP);
    for (uint8_t c = 0; c < CODES; c++) {
        uint8_t upper = high[c];

        for (int i = 0; i < GROUP; i++) {
            uint8_t is = g->upper[i] == upper ? 0xff : 0;

            g->code[i] |= is & c;
            g->known[i] |= is;
        }
    }
}

/* Elements i and i + LINE of each half. */
static void put_group(const bt_bf16 *w, const uint8_t *code, uint8_t *out)
{
    for (int p = 0; p < 2; p++, w += HALF, out += HALF) {
        for (int i = 0; i < LINE; i++) {
            uint16_t pair = (uint16_t)(w[i] << 8 | (w[LINE + i] & 0xff));

            memcpy(out + 2 * i, &pair, sizeof(pair));
        }
    }
    for (int i = 0; i < LINE; i++) {
        uint16_t pair = (uint16_t)(code[i] | code[HALF + i] << 4 | code[LINE + i] << 8 |
                                   code[HALF + LINE + i] << 12);

        memcpy(out + 2 * i, &pair, sizeof(pair));
    }
}

/* Writes down those of a group that have no code; false: more than there is room for. */
static bool put_rare(const bt_bf16 *w, uint32_t at, const uint8_t *known, bt_cpu_bf12_side *side,
                     uint32_t most, uint32_t *n_rare)
{
    uint8_t all = 0xff;

    for (int i = 0; i < GROUP; i++)
        all &= known[i];
    for (uint32_t i = 0; all == 0 && i < GROUP; i++) {
        if (known[i] != 0) continue;
        if (*n_rare == most) return false;
        side->rare[(*n_rare)++] = (bt_cpu_rare){at + i, w[i]};
    }
    return true;
}

static bool pack_bf12(const bt_bf16 *w, uint32_t k, uint8_t *out, bt_cpu_bf12_side *side)
{
    size_t   n      = bt_cpu_packed_elems(16, k);
    uint32_t n_rare = 0;
    coded    g;

    choose_codes(w, n, side->high);
    for (size_t i = 0; i < n; i += GROUP, out += BT_CPU_BF12_GROUP_BYTES) {
        find_codes(w + i, side->high, &g);
        if (!put_rare(w + i, (uint32_t)i, g.known, side, bt_cpu_n_rare(k), &n_rare)) return false;
        put_group(w + i, g.code, out);
    }
    side->rare[n_rare].at = UINT32_MAX;
    return true;
}

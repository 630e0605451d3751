/* The types of GGUF's tensors: blocks of whole weights, and how they become numbers.
 *
 * Formulas: ggml's dequantize_row_*.  Scales are fp16 (d, dmin) or an exponent; y is in the order
 * of the row. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/log.h"
#include "model/gguf.h"

enum { QK = BT_GGUF_MAX_BLOCK }; /* weights of a K-quant's block */

static uint16_t read_u16(const uint8_t *p) { return (uint16_t)(p[0] | p[1] << 8); }

static uint32_t read_u32(const uint8_t *p)
{
    return (uint32_t)read_u16(p) | (uint32_t)read_u16(p + 2) << 16;
}

static float bits_to_f32(uint32_t bits)
{
    float f;

    memcpy(&f, &bits, sizeof(f));
    return f;
}

/* IEEE binary16, subnormals, infinities and NaN included. */
static float read_f16(const uint8_t *p)
{
    uint32_t h = read_u16(p), sign = (h & 0x8000u) << 16, exponent = h >> 10 & 31, m = h & 0x3ffu;

    if (exponent == 31) return bits_to_f32(sign | 0x7f800000u | m << 13);
    if (exponent != 0) return bits_to_f32(sign | (exponent + 112) << 23 | m << 13);
    return (sign != 0 ? -1.0f : 1.0f) * ldexpf((float)m, -24);
}

/* ---- one block each */

static void f32_block(const uint8_t *b, float *y) { *y = bits_to_f32(read_u32(b)); }

static void f16_block(const uint8_t *b, float *y) { *y = read_f16(b); }

static void bf16_block(const uint8_t *b, float *y) { *y = bt_bf16_to_f32(read_u16(b)); }

static void q8_0_block(const uint8_t *b, float *y)
{
    float d = read_f16(b);

    for (int i = 0; i < 32; i++)
        y[i] = d * (float)(int8_t)b[2 + i];
}

static void q4_0_block(const uint8_t *b, float *y)
{
    float d = read_f16(b);

    for (int i = 0; i < 16; i++) {
        y[i]      = d * (float)((b[2 + i] & 15) - 8);
        y[i + 16] = d * (float)((b[2 + i] >> 4) - 8);
    }
}

static void q4_1_block(const uint8_t *b, float *y)
{
    float d = read_f16(b), m = read_f16(b + 2);

    for (int i = 0; i < 16; i++) {
        y[i]      = d * (float)(b[4 + i] & 15) + m;
        y[i + 16] = d * (float)(b[4 + i] >> 4) + m;
    }
}

/* The 32 numbers of 5 bits whose fifth ones stand in `high`. */
static void five_bits(uint32_t high, const uint8_t *low, int q[32])
{
    for (int i = 0; i < 16; i++) {
        q[i]      = (low[i] & 15) | (int)(high >> i & 1) << 4;
        q[i + 16] = low[i] >> 4 | (int)(high >> (i + 16) & 1) << 4;
    }
}

static void q5_0_block(const uint8_t *b, float *y)
{
    float d = read_f16(b);
    int   q[32];

    five_bits(read_u32(b + 2), b + 6, q);
    for (int i = 0; i < 32; i++)
        y[i] = d * (float)(q[i] - 16);
}

static void q5_1_block(const uint8_t *b, float *y)
{
    float d = read_f16(b), m = read_f16(b + 2);
    int   q[32];

    five_bits(read_u32(b + 4), b + 8, q);
    for (int i = 0; i < 32; i++)
        y[i] = d * (float)q[i] + m;
}

static void table_block(const int8_t table[16], float d, const uint8_t *b, float *y)
{
    for (int i = 0; i < 16; i++) {
        y[i]      = d * (float)table[b[i] & 15];
        y[i + 16] = d * (float)table[b[i] >> 4];
    }
}

static const int8_t IQ4[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                               1,    13,   25,  38,  53,  69,  89,  113};

static void iq4_nl_block(const uint8_t *b, float *y) { table_block(IQ4, read_f16(b), b + 2, y); }

/* Eight blocks of 32 with a scale of 6 bits each: 4 low ones, then 2 high ones. */
static void iq4_xs_block(const uint8_t *b, float *y)
{
    float    d    = read_f16(b);
    unsigned high = read_u16(b + 2);

    for (int j = 0; j < 8; j++) {
        int low   = b[4 + j / 2] >> (j % 2 * 4) & 15;
        int scale = low | (int)(high >> 2 * j & 3) << 4;

        table_block(IQ4, d * (float)(scale - 32), b + 8 + 16 * j, y + 32 * j);
    }
}

static void mxfp4_block(const uint8_t *b, float *y)
{
    static const int8_t TWICE_E2M1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

    table_block(TWICE_E2M1, ldexpf(1, (int)b[0] - 128), b + 1, y);
}

/* Scale and minimum of sub-block j, 6 bits each, of the 12 bytes at q. */
static void six_bits(const uint8_t *q, int j, int *scale_out, int *min_out)
{
    *scale_out = j < 4 ? q[j] & 63 : (q[j + 4] & 15) | q[j - 4] >> 6 << 4;
    *min_out   = j < 4 ? q[j + 4] & 63 : q[j + 4] >> 4 | q[j] >> 6 << 4;
}

/* Q4_K, and with `high` (32 bytes of fifth bits) Q5_K. */
static void q45_k_block(const uint8_t *b, const uint8_t *high, const uint8_t *low, float *y)
{
    float d = read_f16(b), dmin = read_f16(b + 2);

    for (int j = 0; j < 8; j++) { /* 32 weights: half of the nibbles of 32 bytes */
        int scale, min;

        six_bits(b + 4, j, &scale, &min);
        for (int i = 0; i < 32; i++) {
            int q = low[j / 2 * 32 + i] >> (j % 2 * 4) & 15;

            if (high != NULL) q |= (high[i] >> j & 1) << 4;
            y[32 * j + i] = d * (float)scale * (float)q - dmin * (float)min;
        }
    }
}

static void q4_k_block(const uint8_t *b, float *y) { q45_k_block(b, NULL, b + 16, y); }

static void q5_k_block(const uint8_t *b, float *y) { q45_k_block(b, b + 16, b + 48, y); }

static void q6_k_block(const uint8_t *b, float *y)
{
    float d = read_f16(b + 208);

    for (int i = 0; i < QK; i++) {
        int half = i / 128, quarter = i % 128 / 32, l = i % 32;
        int low  = b[half * 64 + quarter % 2 * 32 + l] >> (quarter / 2 * 4) & 15;
        int high = b[128 + half * 32 + l] >> (quarter * 2) & 3;

        y[i] = d * (float)(int8_t)b[192 + i / 16] * (float)((low | high << 4) - 32);
    }
}

/* The 2-bit number i of a block of Q2_K or Q3_K. */
static int two_bits(const uint8_t *q, int i)
{
    return q[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
}

static void q2_k_block(const uint8_t *b, float *y)
{
    float d = read_f16(b + 80), dmin = read_f16(b + 82);

    for (int i = 0; i < QK; i++) {
        int scale = b[i / 16];

        y[i] = d * (float)(scale & 15) * (float)two_bits(b + 16, i) - dmin * (float)(scale >> 4);
    }
}

static void q3_k_block(const uint8_t *b, float *y)
{
    const uint8_t *scales = b + 96;
    float          d      = read_f16(b + 108);

    for (int i = 0; i < QK; i++) {
        int j     = i / 16; /* its scale: 4 low bits, then 2 high ones */
        int scale = (scales[j % 8] >> (j / 8 * 4) & 15) | (scales[8 + j % 4] >> (j / 4 * 2) & 3)
                                                              << 4;
        int q = two_bits(b + 32, i) - ((b[i % 32] >> (i / 32) & 1) != 0 ? 0 : 4);

        y[i] = d * (float)(scale - 32) * (float)q;
    }
}

/* ---- the table */

enum { TYPE_BF16 = 30 };

/* Those without a reader are known by name alone, and the last. */
static const struct {
    const char *name;
    uint32_t    type, n_weights, n_bytes;
    void (*read)(const uint8_t *block, float *y);
} TYPES[] = {
    {"F32",     0,         1,  4,   f32_block   },
    {"F16",     1,         1,  2,   f16_block   },
    {"BF16",    TYPE_BF16, 1,  2,   bf16_block  },
    {"Q8_0",    8,         32, 34,  q8_0_block  },
    {"Q4_0",    2,         32, 18,  q4_0_block  },
    {"Q4_1",    3,         32, 20,  q4_1_block  },
    {"Q5_0",    6,         32, 22,  q5_0_block  },
    {"Q5_1",    7,         32, 24,  q5_1_block  },
    {"Q2_K",    10,        QK, 84,  q2_k_block  },
    {"Q3_K",    11,        QK, 110, q3_k_block  },
    {"Q4_K",    12,        QK, 144, q4_k_block  },
    {"Q5_K",    13,        QK, 176, q5_k_block  },
    {"Q6_K",    14,        QK, 210, q6_k_block  },
    {"IQ4_NL",  20,        32, 18,  iq4_nl_block},
    {"IQ4_XS",  23,        QK, 136, iq4_xs_block},
    {"MXFP4",   39,        32, 17,  mxfp4_block },
    {"Q8_1",    9,         0,  0,   NULL        },
    {"Q8_K",    15,        0,  0,   NULL        },
    {"IQ2_XXS", 16,        0,  0,   NULL        },
    {"IQ2_XS",  17,        0,  0,   NULL        },
    {"IQ3_XXS", 18,        0,  0,   NULL        },
    {"IQ1_S",   19,        0,  0,   NULL        },
    {"IQ3_S",   21,        0,  0,   NULL        },
    {"IQ2_S",   22,        0,  0,   NULL        },
    {"IQ1_M",   29,        0,  0,   NULL        },
    {"TQ1_0",   34,        0,  0,   NULL        },
    {"TQ2_0",   35,        0,  0,   NULL        },
};
enum { N_TYPES = sizeof(TYPES) / sizeof(TYPES[0]) };

static size_t row_of(uint32_t type)
{
    size_t i = 0;

    while (i < N_TYPES && TYPES[i].type != type)
        i++;
    return i;
}

const char *bt_gguf_type_name(uint32_t type)
{
    size_t i = row_of(type);

    return i < N_TYPES ? TYPES[i].name : "unknown";
}

const char *bt_gguf_type_names(void)
{
    static char names[128];
    size_t      n = 0;

    for (size_t i = 0; i < N_TYPES && TYPES[i].read != NULL; i++)
        n += (size_t)snprintf(names + n, sizeof(names) - n, "%s%s", i == 0 ? "" : ", ",
                              TYPES[i].name);
    return names;
}

bool bt_gguf_block(uint32_t type, uint32_t *n_weights_out, uint32_t *n_bytes_out)
{
    size_t i = row_of(type);

    if (i == N_TYPES || TYPES[i].read == NULL) return false;
    *n_weights_out = TYPES[i].n_weights;
    *n_bytes_out   = TYPES[i].n_bytes;
    return true;
}

void bt_gguf_read_f32(const bt_gguf_tensor *t, uint64_t first, size_t n, float *out)
{
    size_t i = row_of(t->type);

    BT_ASSERT(i < N_TYPES && TYPES[i].read != NULL && first % TYPES[i].n_weights == 0 &&
              n % TYPES[i].n_weights == 0);
    for (size_t at = 0; at < n; at += TYPES[i].n_weights)
        TYPES[i].read(t->data + (first + at) / TYPES[i].n_weights * TYPES[i].n_bytes, out + at);
}

void bt_gguf_read_bf16(const bt_gguf_tensor *t, uint64_t first, size_t n, bt_bf16 *out)
{
    float block[QK]; /* a multiple of every type's */

    if (t->type == TYPE_BF16) {
        memcpy(out, t->data + first * sizeof(*out), n * sizeof(*out));
        return;
    }
    for (size_t at = 0, part; at < n; at += part) {
        part = n - at < QK ? n - at : QK;
        bt_gguf_read_f32(t, first + at, part, block);
        for (size_t i = 0; i < part; i++)
            out[at + i] = bt_bf16_from_f32(block[i]);
    }
}

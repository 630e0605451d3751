/* device/cpu/pack.inc.h - matrices into the packed layout of kernels.h: a part of rows.inc.h, whose
 * vectors it uses. */
/* Four pairs of k of four rows, [row][pair] to [pair][row]. */
INLINE void turn_pairs(const bt_bf16 *src, size_t ld, bt_bf16 *out)
{
    typedef uint32_t quad __attribute__((vector_size(16)));
    quad             r[4], low[2], high[2];

    for (int i = 0; i < 4; i++)
        memcpy(&r[i], src + (size_t)i * ld, sizeof(r[i]));
    for (int i = 0; i < 2; i++) {
        low[i]  = __builtin_shufflevector(r[2 * i], r[2 * i + 1], 0, 4, 1, 5);
        high[i] = __builtin_shufflevector(r[2 * i], r[2 * i + 1], 2, 6, 3, 7);
    }
    r[0] = __builtin_shufflevector(low[0], low[1], 0, 1, 4, 5);
    r[1] = __builtin_shufflevector(low[0], low[1], 2, 3, 6, 7);
    r[2] = __builtin_shufflevector(high[0], high[1], 0, 1, 4, 5);
    r[3] = __builtin_shufflevector(high[0], high[1], 2, 3, 6, 7);
    for (int i = 0; i < 4; i++)
        memcpy(out + (size_t)i * 2 * LANES, &r[i], sizeof(r[i]));
}

#if WIDTH == 16
/* From each quarter of both vectors two elements, the i-th of the first vector foremost. */
#define OF_QUARTERS(a, b, i, j)                                                              \
    __builtin_shufflevector(a, b, i, i + 16, j, j + 16, i + 4, i + 20, j + 4, j + 20, i + 8, \
                            i + 24, j + 8, j + 24, i + 12, i + 28, j + 12, j + 28)
#define OF_QUARTERS_64(a, b, i) \
    __builtin_shufflevector(a, b, i, i + 8, i + 2, i + 10, i + 4, i + 12, i + 6, i + 14)
/* Two quarters of each, the i-th and the j-th. */
#define QUARTERS(a, b, i, j)                                                                \
    __builtin_shufflevector(a, b, 2 * i, 2 * i + 1, 2 * j, 2 * j + 1, 2 * i + 8, 2 * i + 9, \
                            2 * j + 8, 2 * j + 9)
/* Sixteen pairs of k of sixteen rows. */
INLINE void turn_square(const bt_bf16 *src, size_t ld, bt_bf16 *out)
{
    typedef uint64_t vl __attribute__((vector_size(4 * WIDTH)));
    vu               rows[LANES];
    vl               a[LANES], b[LANES];

    for (int i = 0; i < LANES; i++)
        memcpy(&rows[i], src + (size_t)i * ld, sizeof(rows[i]));
    for (int i = 0; i < LANES; i += 2) {
        a[i]     = (vl)OF_QUARTERS(rows[i], rows[i + 1], 0, 1);
        a[i + 1] = (vl)OF_QUARTERS(rows[i], rows[i + 1], 2, 3);
    }
    for (int i = 0; i < LANES; i += 4)
        for (int j = 0; j < 2; j++) {
            b[i + 2 * j]     = OF_QUARTERS_64(a[i + j], a[i + j + 2], 0);
            b[i + 2 * j + 1] = OF_QUARTERS_64(a[i + j], a[i + j + 2], 1);
        }
    for (int i = 0; i < LANES; i += 8)
        for (int j = i; j < i + 4; j++) {
            a[j]     = QUARTERS(b[j], b[j + 4], 0, 2);
            a[j + 4] = QUARTERS(b[j], b[j + 4], 1, 3);
        }
    for (int j = 0; j < 8; j++) {
        b[j]     = QUARTERS(a[j], a[j + 8], 0, 2);
        b[j + 8] = QUARTERS(a[j], a[j + 8], 1, 3);
    }
    for (int i = 0; i < LANES; i++)
        memcpy(out + (size_t)i * 2 * LANES, &b[i], sizeof(b[i]));
}
#endif

/* Pairs of k of whole rows of a block, as many as squares of pairs fill; returns how many. */
INLINE uint32_t pack_squares(const bt_bf16 *rows, size_t ld, uint32_t cols, uint32_t k,
                             bt_bf16 *packed)
{
    uint32_t p = 0;

#if WIDTH == 16
    if (cols == LANES)
        for (; p + LANES <= k / 2; p += LANES)
            turn_square(rows + 2 * p, ld, packed + (size_t)p * 2 * LANES);
#endif
    for (; p < k / 8 * 4; p += 4)
        for (uint32_t j = 0; j + 4 <= cols; j += 4)
            turn_pairs(rows + j * ld + 2 * p, ld, packed + (size_t)p * 2 * LANES + 2 * j);
    return p;
}

/* One row's pairs of k from `from` on: a column of a block. */
INLINE void pack_column(const bt_bf16 *row, uint32_t from, uint32_t k, bt_bf16 *column)
{
    for (uint32_t p = from; p < k / 2; p++)
        memcpy(column + (size_t)p * 2 * LANES, row + 2 * p, 2 * sizeof(*row));
    if (k % 2 != 0) column[(size_t)(k / 2) * 2 * LANES] = row[k - 1];
}

/* Block by block of 16 columns: rows of src become columns, two k at a time. */
static void pack_rows(const bt_bf16 *src, size_t ld, uint32_t n, uint32_t k, bt_bf16 *packed)
{
    uint32_t n_pairs = bt_cpu_pad(k, 32) / 2;

    for (uint32_t n0 = 0; n0 < n; n0 += LANES, packed += (size_t)n_pairs * 2 * LANES) {
        uint32_t       cols = n - n0 < LANES ? n - n0 : LANES, squares;
        const bt_bf16 *rows = src + n0 * ld;

        if (cols < LANES || k % 32 != 0)
            memset(packed, 0, (size_t)n_pairs * 2 * LANES * sizeof(*packed));
        squares = pack_squares(rows, ld, cols, k, packed);
        for (uint32_t j = 0; j < cols; j++)
            pack_column(rows + j * ld, j < cols / 4 * 4 ? squares : 0, k, packed + 2 * (size_t)j);
    }
}

/* WIDTH columns of two rows: column j of both becomes one 32-bit element. */
INLINE void interleave(vh even, vh odd, bt_bf16 *out)
{
    typedef uint16_t pairs __attribute__((vector_size(4 * WIDTH)));
#if WIDTH == 16
    pairs both =
        __builtin_shufflevector(even, odd, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23,
                                8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
#elif WIDTH == 8
    pairs both =
        __builtin_shufflevector(even, odd, 0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15);
#else
    pairs both = __builtin_shufflevector(even, odd, 0, 4, 1, 5, 2, 6, 3, 7);
#endif
    memcpy(out, &both, sizeof(both));
}

/* A block of LANES columns, and with `both` the next one, which shares the lines of src. */
INLINE void pack_blocks(const bt_bf16 *src, size_t ld, uint32_t n_pairs, bool both, size_t block,
                        bt_bf16 *out)
{
    for (uint32_t p = 0; p < n_pairs; p++, src += 2 * ld, out += 2 * LANES)
        for (int q = 0; q < LANES; q += WIDTH) {
            interleave(load_half(src + q), load_half(src + ld + q), out + 2 * q);
            if (both)
                interleave(load_half(src + LANES + q), load_half(src + ld + LANES + q),
                           out + block + 2 * q);
        }
}

static void pack_cols(const bt_bf16 *src, size_t ld, uint32_t k, uint32_t n, uint32_t k_packed,
                      bt_bf16 *packed)
{
    uint32_t n_pairs = bt_cpu_pad(k, 32) / 2, whole = k / 2;
    size_t   block = (size_t)k_packed * LANES;

    for (uint32_t n0 = 0, cols; n0 < n; n0 += LANES, packed += block) {
        bt_bf16  edge[2][LANES] = {{0}};
        bt_bf16 *tail           = packed + (size_t)whole * 2 * LANES;

        cols = n - n0 < LANES ? n - n0 : LANES;
        if (cols < LANES) {
            for (uint32_t p = 0; p < whole; p++) {
                memcpy(edge[0], src + (size_t)2 * p * ld + n0, cols * sizeof(*src));
                memcpy(edge[1], src + (size_t)(2 * p + 1) * ld + n0, cols * sizeof(*src));
                pack_blocks(edge[0], LANES, 1, false, 0, packed + (size_t)p * 2 * LANES);
            }
        } else if (n0 / LANES % 2 == 0) {
            if (n - n0 >= 2 * LANES)
                pack_blocks(src + n0, ld, whole, true, block, packed);
            else
                pack_blocks(src + n0, ld, whole, false, block, packed);
        }
        memset(tail, 0, (size_t)(n_pairs - whole) * 2 * LANES * sizeof(*tail));
        for (uint32_t j = 0; k % 2 != 0 && j < cols; j++)
            tail[2 * j] = src[(size_t)(k - 1) * ld + n0 + j];
    }
}

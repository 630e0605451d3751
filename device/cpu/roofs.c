#include "device/cpu/roofs.h"

typedef struct {
    const char *memory, *kernels;
    long        n;
    double      flops; /* of a piece */
} work;

static void read_piece(void *ctx, uint32_t piece, uint32_t member)
{
    const work *w = ctx;

    (void)member;
    bt_roof_read(w->memory + (size_t)piece * BT_ROOF_PIECE, BT_ROOF_PIECE);
}

void bt_roof_read_by(bt_cpu_pool *pool, const void *memory, size_t bytes)
{
    work w = {.memory = memory};

    bt_cpu_pool_run(pool, (uint32_t)(bytes / BT_ROOF_PIECE), read_piece, &w);
}

static void multiply_piece(void *ctx, uint32_t piece, uint32_t member)
{
    work  *w     = ctx;
    double flops = bt_roof_multiply(w->kernels, w->n);

    (void)member;
    if (piece == 0) w->flops = flops;
}

double bt_roof_multiply_by(bt_cpu_pool *pool, uint32_t n_pieces, const char *kernels, long n)
{
    work w = {.kernels = kernels, .n = n};

    bt_cpu_pool_run(pool, n_pieces, multiply_piece, &w);
    return w.flops * n_pieces;
}

#include "tools/profile/roof.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "core/machine.h"
#include "device/cpu/kernels.h"
#include "device/cpu/roofs.h"

enum {
    READ_BYTES = 768 << 20, /* more than second-level caches hold, and most third-level ones */
    N_SAMPLES  = 4,
    ROUNDS     = 20000
};

#define GPU(gpu, gbs, tflops, gb)                                           \
    {                                                                       \
        .name = gpu, .bytes_per_s = (gbs)*1e9, .flop_per_s = (tflops)*1e12, \
        .memory_bytes = (gb)*1e9                                            \
    }
static const bt_roof GPUS[] = {
    GPU("A100-40GB", 1555, 312, 40), GPU("A100-80GB", 2039, 312, 80),
    GPU("RTX4080", 716.8, 97.5, 16), GPU("RTX4090", 1008, 165.2, 24),
    GPU("L40S", 864, 362, 48),       GPU("H20", 4000, 148, 96),
    GPU("H800", 3350, 989, 80),      GPU("H100", 3350, 989, 80),
    GPU("H200", 4800, 989, 141),     GPU("B200", 7700, 2250, 180),
};
enum { N_GPUS = sizeof(GPUS) / sizeof(GPUS[0]) };

const bt_roof *bt_roof_gpu(const char *name)
{
    for (int i = 0; i < N_GPUS; i++)
        if (strcasecmp(name, GPUS[i].name) == 0) return &GPUS[i];
    return NULL;
}

const char *bt_roof_gpu_names(void)
{
    static char text[N_GPUS * 16];

    if (text[0] != '\0') return text;
    for (int i = 0; i < N_GPUS; i++) {
        if (i != 0) strcat(text, ", ");
        strcat(text, GPUS[i].name);
    }
    return text;
}

static void raise_to(double *best, double work, uint64_t ns)
{
    double rate = work / ((double)ns * 1e-9);

    if (rate > *best) *best = rate;
}

bt_status bt_roof_measure(bt_device *dev, const char *kernels, bt_roof *roof)
{
    bt_status    st   = BT_OK;
    bt_cpu_pool *pool = bt_device_cpu_pool(dev);
    uint32_t     n    = bt_cpu_pool_n_threads(pool);
    bt_machine   machine;
    size_t       bytes  = READ_BYTES;
    char        *memory = NULL;

    bt_machine_look(&machine);
    while (bytes > machine.free_bytes / 8 && bytes > BT_ROOF_PIECE)
        bytes /= 2;
    memory = bt_calloc_aligned(bytes, 1);
    BT_REQUIRE(memory != NULL, BT_ERR_NO_MEMORY, "%zu bytes to read", bytes);
    memset(memory, 1, bytes); /* else all of it might be one page of zeros */
    for (int i = 0; i < N_SAMPLES; i++) {
        uint64_t start = bt_now_ns();
        double   flops;

        bt_roof_read_by(pool, memory, bytes);
        raise_to(&roof->bytes_per_s, (double)bytes, bt_now_ns() - start);
        start = bt_now_ns();
        flops = bt_roof_multiply_by(pool, n, kernels, ROUNDS);
        raise_to(&roof->flop_per_s, flops, bt_now_ns() - start);
    }
    snprintf(roof->name, sizeof(roof->name), "this machine (%u threads, %s kernels)", n, kernels);
    roof->measured     = true;
    roof->memory_bytes = (double)machine.free_bytes;
out:
    bt_free(memory);
    return st;
}

double bt_roof_step_s(const bt_roof *roof, const bt_variant_account *a, double batch, double n_keys)
{
    return bt_roof_s(roof, (double)a->weight_bytes, batch * (double)a->row_flops) +
           bt_roof_s(roof, batch * n_keys * (double)a->cache_bytes,
                     batch * n_keys * (double)a->key_flops);
}

/* worker/open_device.c - which device a rank computes on. */
#include <stdio.h>

#include "worker/rank.h"

/* The rank's GPU, and with how many ranks of this machine it shares it; false with the reason. */
static bool find_gpu(bt_rank *r, uint32_t *gpu_out, char *why, size_t why_bytes)
{
    const bt_worker_options *opt   = &r->opt;
    uint32_t                 local = bt_world_local_rank(r->world);
    uint32_t                 size  = bt_world_local_size(r->world);
    uint32_t                 n     = bt_device_cuda_count(opt->cuda_library, why, why_bytes);

    if (n == 0) return false;
    if (opt->gpu != BT_GPU_BY_LOCAL_RANK) {
        *gpu_out       = (uint32_t)opt->gpu;
        r->gpu_sharers = size;
    } else {
        *gpu_out       = local % n;
        r->gpu_sharers = (size - *gpu_out - 1) / n + 1;
    }
    return bt_device_cuda_usable(opt->cuda_library, *gpu_out, why, why_bytes);
}

bt_status bt_rank_open_device(bt_rank *r)
{
    bt_status             st  = BT_OK;
    bt_device_cpu_options cpu = {.n_threads = r->opt.n_threads, .kernels = r->opt.kernels};
    uint32_t              gpu = 0;
    char                  why[512];

    if (r->opt.device == BT_ON_CPU) {
        BT_TRY(bt_device_cpu_create(&cpu, &r->dev));
    } else if (find_gpu(r, &gpu, why, sizeof(why))) {
        BT_TRY(bt_device_cuda_create(r->opt.cuda_library, gpu, &r->dev));
        BT_INFO("rank %u computes on GPU %u, with %u more ranks", r->facts.rank, gpu,
                r->gpu_sharers - 1);
        bt_cpu_flush_denormals();
    } else {
        BT_REQUIRE(r->opt.device == BT_ON_ANY, BT_ERR_UNSUPPORTED,
                   "rank %u finds no GPU to compute on: %s", r->facts.rank, why);
        if (r->facts.rank == 0) BT_INFO("ranks compute on the CPU: %s", why);
        BT_TRY(bt_device_cpu_create(&cpu, &r->dev));
    }
    r->kernels = r->dev->host_memory ? bt_device_cpu_table(r->dev) : bt_cpu_kernels_find("auto");
out:
    return st;
}

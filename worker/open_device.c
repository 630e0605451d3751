/* worker/open_device.c - which device a rank computes on. */
#include <stdio.h>

#include "worker/rank.h"

/* The rank's GPU; false with the reason. */
static bool find_gpu(bt_rank *r, char *why, size_t why_bytes)
{
    const bt_worker_options *opt = &r->opt;
    uint32_t                 n   = bt_device_cuda_count(opt->cuda_library, why, why_bytes);

    if (n == 0) return false;
    r->gpu =
        opt->gpu != BT_GPU_BY_LOCAL_RANK ? (uint32_t)opt->gpu : bt_world_local_rank(r->world) % n;
    return bt_device_cuda_usable(opt->cuda_library, r->gpu, why, why_bytes);
}

bt_status bt_rank_open_device(bt_rank *r)
{
    bt_status             st  = BT_OK;
    bt_device_cpu_options cpu = {.n_threads = r->opt.n_threads, .kernels = r->opt.kernels};
    char                  why[512];

    if (r->opt.device == BT_ON_CPU) {
        BT_TRY(bt_device_cpu_create(&cpu, &r->dev));
    } else if (find_gpu(r, why, sizeof(why))) {
        BT_TRY(bt_device_cuda_create(r->opt.cuda_library, r->gpu, &r->dev));
        bt_cpu_flush_denormals();
    } else {
        BT_REQUIRE(r->opt.device == BT_ON_ANY, BT_ERR_UNSUPPORTED,
                   "rank %u finds no GPU to compute on: %s", r->facts.rank, why);
        if (r->facts.rank == 0) BT_INFO("ranks compute on the CPU: %s", why);
        BT_TRY(bt_device_cpu_create(&cpu, &r->dev));
    }
    r->kernels = r->dev->host_memory ? bt_device_cpu_table(r->dev) : bt_cpu_kernels_find("auto");
    r->threads = r->dev->host_memory ? bt_device_cpu_pool(r->dev) : NULL;
out:
    return st;
}

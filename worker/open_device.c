/* worker/open_device.c - which device a rank computes on. */
#include <stdio.h>

#include "worker/rank.h"

/* The rank's GPU; false with the reason. */
static bool find_gpu(bt_rank *r, char *why, size_t why_bytes)
{
    const bt_worker_options *opt = &r->opt;

    if (opt->gpu == BT_GPU_BY_LOCAL_RANK)
        return bt_device_cuda_deal(opt->cuda_library, bt_world_local_rank(r->world), &r->gpu, why,
                                   why_bytes);
    r->gpu = (uint32_t)opt->gpu;
    return bt_device_cuda_usable(opt->cuda_library, r->gpu, why, why_bytes);
}

/* --device auto: r->dev stays NULL, with the reason, where no GPU can be used. */
static void try_gpu(bt_rank *r, char *why, size_t why_bytes)
{
    if (!find_gpu(r, why, why_bytes)) return;
    if (bt_device_cuda_create(r->opt.cuda_library, r->gpu, &r->dev) != BT_OK)
        snprintf(why, why_bytes, "%s", bt_error_text());
}

/* On a machine with GPUs each rank says so: others may have found one. */
static void say_cpu(const bt_rank *r, const char *why)
{
    char text[512];

    if (bt_device_cuda_count(r->opt.cuda_library, text, sizeof(text)) != 0)
        BT_WARN("rank %u computes on the CPU: %s", r->facts.rank, why);
    else if (r->facts.rank == 0)
        BT_INFO("ranks compute on the CPU: %s", why);
}

bt_status bt_rank_open_device(bt_rank *r)
{
    bt_status             st  = BT_OK;
    bt_device_cpu_options cpu = {.n_threads = r->opt.n_threads, .kernels = r->opt.kernels};
    char                  why[512];

    if (r->opt.device == BT_ON_ANY) {
        try_gpu(r, why, sizeof(why));
        if (r->dev == NULL) say_cpu(r, why);
    } else if (r->opt.device != BT_ON_CPU) {
        BT_REQUIRE(find_gpu(r, why, sizeof(why)), BT_ERR_UNSUPPORTED,
                   "rank %u finds no GPU to compute on: %s", r->facts.rank, why);
        BT_TRY(bt_device_cuda_create(r->opt.cuda_library, r->gpu, &r->dev));
    }
    if (r->dev != NULL)
        bt_cpu_flush_denormals();
    else
        BT_TRY(bt_device_cpu_create(&cpu, &r->dev));
    r->kernels = r->dev->host_memory ? bt_device_cpu_table(r->dev) : bt_cpu_kernels_find("auto");
    r->threads = r->dev->host_memory ? bt_device_cpu_pool(r->dev) : NULL;
out:
    return st;
}

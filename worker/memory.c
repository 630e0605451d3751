#include "worker/memory.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attention/kv_pool.h"
#include "core/machine.h"
#include "model/tensor_kind.h"

/* Of a small model on a large GPU: for 67 million tokens. The host has tables of them, which it
 * walks when the rank is idle. */
enum { GPU_PAGES = 1 << 20 };

uint64_t bt_memory_available(void)
{
    bt_machine machine;

    bt_machine_look(&machine);
    return machine.free_bytes;
}

bt_status bt_memory_available_on(bt_device *dev, uint64_t *available_out)
{
    uint64_t all;

    return bt_device_memory(dev, available_out, &all);
}

/* The number after `part` in a tensor's name, or -1. */
static long index_after(const char *name, const char *part)
{
    const char *at = strstr(name, part);

    return at == NULL ? -1 : strtol(at + strlen(part), NULL, 10);
}

uint64_t bt_memory_weights(const bt_model_config *cfg, const bt_safetensors *st, const bool *own)
{
    uint64_t bytes = 0;

    for (size_t i = 0; i < bt_safetensors_count(st); i++) {
        const bt_tensor *t      = bt_safetensors_at(st, i);
        long             layer  = index_after(t->name, "model.layers.");
        long             expert = index_after(t->name, ".mlp.experts.");
        uint64_t         elems;

        if (layer >= (long)bt_model_n_served_layers(cfg) || bt_tensor_is_beside_weights(t))
            continue;
        if (layer >= 0 && (strstr(t->name, ".embed_tokens.") != NULL ||
                           strstr(t->name, ".shared_head.head.") != NULL))
            continue; /* the model's own serve for them */
        if (strncmp(t->name, "model.", 6) != 0 && strncmp(t->name, "lm_head.", 8) != 0)
            continue; /* a multimodal checkpoint's other parts */
        if (expert >= 0 && own != NULL && expert < (long)cfg->moe.gate.n_experts && !own[expert])
            continue;
        elems = bt_tensor_n_weights(t);
        /* kv_b and the embedding are there in bf16; what else a CPU widens (weights.h), the
         * published models do not have. */
        if (strstr(t->name, "kv_b_proj") != NULL || strstr(t->name, "embed_tokens") != NULL)
            bytes += elems * sizeof(bt_bf16);
        else
            bytes += bt_weight_bytes(bt_tensor_kind(t), elems);
    }
    return bytes;
}

uint32_t bt_memory_adopted(uint32_t n_experts, uint32_t n_ranks)
{
    uint32_t lost = n_ranks == 0 ? 0 : (n_experts + n_ranks - 1) / n_ranks;

    return n_ranks < 2 ? 0 : (lost + n_ranks - 2) / (n_ranks - 1);
}

bt_status bt_memory_check_room(const bt_memory_account *a, uint32_t n_more, uint32_t n_at_once,
                               uint64_t most, uint64_t available)
{
    bt_status st   = BT_OK;
    uint64_t  need = n_more * a->expert * n_at_once;

    if (need > most) need = most;
    BT_REQUIRE(
        need <= available, BT_ERR_NO_MEMORY,
        "%u more experts are to be held here after a loss, by %u ranks at a time: that needs "
        "%" PRIu64 " MiB, and %" PRIu64
        " MiB are left; leave more room with --kv-bytes, or start with more ranks or "
        "--spares",
        n_more, n_at_once, need >> 20, available >> 20);
out:
    return st;
}

bt_status bt_memory_check_pinned(const bt_memory_account *a, uint64_t more, uint32_t n_ranks,
                                 uint64_t available)
{
    bt_status st = BT_OK;

    BT_REQUIRE(more * n_ranks <= available, BT_ERR_NO_MEMORY,
               "each of the %u ranks on this machine needs %" PRIu64
               " MiB of pinned memory beside its GPU's, and %" PRIu64
               " MiB are left: a smaller --max-rows, or fewer ranks",
               n_ranks, a->pinned >> 20, available >> 20);
out:
    return st;
}

/* What a rank needs of its share beside pages. */
static uint64_t beside_pages(const bt_memory_account *a)
{
    return (a->shared != 0 ? 0 : a->weights) + a->step + a->graphs + a->staging + a->adopt;
}

/* The most rows of a step, of those asked for, that fit beside one page and what has no rows. */
static uint32_t rows_that_fit(const bt_memory_account *a, uint64_t share)
{
    uint64_t fixed = beside_pages(a) - a->step + a->page_bytes;

    if (share <= fixed || a->step == 0) return 0;
    return (uint32_t)((share - fixed) * a->max_rows / a->step);
}

static bt_status fail_small(const bt_memory_account *a, uint64_t share)
{
    bt_status st   = BT_OK;
    uint32_t  rows = rows_that_fit(a, share);
    char      fits[64];

    if (rows > 0)
        snprintf(fits, sizeof(fits), "--max-rows %u and a --chunk of no more would fit", rows);
    else
        snprintf(fits, sizeof(fits), "no --max-rows would fit");
    BT_REQUIRE(false, BT_ERR_NO_MEMORY,
               "each of the %u ranks on this %s may use %" PRIu64 " MiB beside %" PRIu64
               " MiB of shared weights; own weights and steps need %" PRIu64
               " MiB and one page %" PRIu64 " KiB: %s; or use fewer ranks here, or more %s",
               a->local_size, a->on_gpu ? "GPU" : "machine", share >> 20, a->shared >> 20,
               beside_pages(a) >> 20, a->page_bytes >> 10, fits, a->on_gpu ? "GPUs" : "machines");
out:
    return st;
}

/* Pages of --kv-bytes. */
static bt_status plan_given(const bt_memory_account *a, uint32_t n_layers, uint64_t kv_bytes,
                            uint64_t share, uint64_t *n_out)
{
    bt_status st    = BT_OK;
    uint64_t  other = beside_pages(a);
    uint64_t  fixed = a->shared != 0 ? a->shared : a->local_size * a->weights; /* of all ranks */
    uint64_t  left  = (a->available > fixed ? a->available - fixed : 0) / a->local_size;

    BT_REQUIRE(kv_bytes >= a->page_bytes, BT_ERR_INVALID_ARG,
               "--kv-bytes %" PRIu64 " does not hold one page: a page (%d tokens in %u layers) "
               "needs %" PRIu64,
               kv_bytes, BT_PAGE_TOKENS, n_layers, a->page_bytes);
    BT_REQUIRE(kv_bytes <= left, BT_ERR_INVALID_ARG,
               "--kv-bytes %" PRIu64 " is more than this %s has for each of its %u ranks: "
               "%" PRIu64 ", beside the weights",
               kv_bytes, a->on_gpu ? "GPU" : "machine", a->local_size, left);
    if (other - a->adopt + kv_bytes > share)
        BT_WARN("--kv-bytes leaves steps and other programs less than %d %% of what is "
                "available: it may run out",
                100 - BT_MEMORY_PERCENT);
    else if (a->adopt != 0 && other + kv_bytes > share)
        BT_WARN("--kv-bytes leaves no room for the experts of a lost rank: %" PRIu64
                " MiB are missing; the cell ends, or starts again, when it loses one",
                (other + kv_bytes - share) >> 20);
    *n_out = kv_bytes / a->page_bytes;
out:
    return st;
}

/* Pages in what the other entries leave; a lost rank's experts give way to a full context. */
static bt_status plan_rest(bt_memory_account *a, uint32_t max_context, uint64_t share,
                           uint64_t *n_out)
{
    bt_status st      = BT_OK;
    uint64_t  context = bt_kv_pages_for(max_context), n;
    uint64_t  most    = a->on_gpu ? GPU_PAGES : BT_CPU_CONTEXTS * context;

    if (a->adopt != 0 && share < beside_pages(a) + a->page_bytes * context) {
        BT_WARN("there is no room for the experts of a lost rank (%" PRIu64 " MiB): when one is "
                "lost the cell ends, or starts again",
                a->adopt >> 20);
        a->adopt = 0;
    }
    if (share < beside_pages(a) + a->page_bytes) BT_TRY(fail_small(a, share));
    n         = (share - beside_pages(a)) / a->page_bytes;
    a->capped = n > most;
    *n_out    = a->capped ? most : n;
out:
    return st;
}

bt_status bt_memory_plan_pages(const bt_model_config *cfg, uint64_t kv_bytes, bt_memory_account *a)
{
    bt_status st       = BT_OK;
    uint32_t  n_layers = bt_model_n_served_layers(cfg);
    uint64_t  all      = a->available / 100 * BT_MEMORY_PERCENT;
    uint64_t  share = (all > a->shared ? all - a->shared : 0) / a->local_size, n = 0;

    a->page_bytes = bt_kv_page_bytes(n_layers, bt_mla_kv_dim(&cfg->mla));
    a->given      = kv_bytes != 0;
    BT_TRY(a->given ? plan_given(a, n_layers, kv_bytes, share, &n)
                    : plan_rest(a, cfg->max_context, share, &n));
    a->n_pages = n > UINT32_MAX / BT_PAGE_TOKENS ? UINT32_MAX / BT_PAGE_TOKENS : (uint32_t)n;
    a->pages   = a->n_pages * a->page_bytes;
out:
    return st;
}

static double mib(uint64_t bytes) { return (double)bytes / (1 << 20); }

void bt_memory_print(const bt_memory_account *a)
{
    BT_INFO("memory: weights %.1f MiB (%.1f MiB for all ranks here together), experts of a lost "
            "rank %.1f MiB, steps %.1f MiB, "
            "their graphs %.1f MiB, staging %.1f MiB, %u pages of %.1f KiB = "
            "%.1f MiB for %llu tokens%s; %.1f MiB available to %u ranks on this %s",
            mib(a->weights), mib(a->shared != 0 ? a->shared : a->local_size * a->weights),
            mib(a->adopt), mib(a->step), mib(a->graphs), mib(a->staging), a->n_pages,
            (double)a->page_bytes / 1024, mib(a->pages),
            (unsigned long long)a->n_pages * BT_PAGE_TOKENS,
            a->given     ? " (--kv-bytes)"
            : !a->capped ? ""
            : a->on_gpu  ? " (--kv-bytes gives more)"
                         : " (4 full contexts; --kv-bytes gives more)",
            mib(a->available), a->local_size, a->on_gpu ? "GPU" : "machine");
    if (a->on_gpu)
        BT_INFO("memory: beside the GPU's %.1f MiB of pinned host memory", mib(a->pinned));
}

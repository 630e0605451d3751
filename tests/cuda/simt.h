/* tests/cuda/simt.h - runs CUDA kernels on the CPU: what nvcc and the GPU are to a .cu file, for
 * tests.
 *
 * A .cu file of this project touches the GPU through device/cuda/gpu.cuh only, which leaves
 * everything to this header when there is no nvcc (the build force-includes it).  A launch runs its
 * blocks one after the other, in a random order; each thread of a block is a fiber, which runs
 * until it meets a barrier or a warp collective, or ends.  One warp runs at a time, for a random
 * number of such steps and its threads in a random order, so that warps drift apart as far as
 * barriers let them and what relies on an order by luck shows; a run is a function of its seed.
 *
 * What is strict on purpose: shared memory is poisoned (NaN, an index that is out of bounds, never
 * all ones) before each block and each array ends where it ends, for AddressSanitizer; an
 * asynchronous copy poisons its target at once and lands at the wait, not before; a barrier or
 * collective that some threads miss, or reach at another place of the code, ends the process with
 * both places.
 *
 * Threads: one at a time. */
#ifndef BT_TESTS_CUDA_SIMT_H
#define BT_TESTS_CUDA_SIMT_H

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <vector>

#include "core/bf16.h"
#include "tests/cuda/simt_control.h"

#define __global__
#define __device__
#define __host__
#define __launch_bounds__(...)
#define __forceinline__ inline

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

namespace simt
{

struct place {
    const char *file;
    int         line;
};

/* A warp's meeting: runs once, with the arguments of the lanes in the mask (others NULL). */
typedef void (*warp_fn)(void *const lane_arg[32]);
/* A block's meeting: likewise with all threads. */
typedef void (*block_fn)(void *const *thread_arg, unsigned n_threads);

const dim3 &thread_index(void);
const dim3 &block_index(void);
const dim3 &block_dim(void);
const dim3 &grid_dim(void);
unsigned    lane(void);

void  warp_meet(uint32_t mask, warp_fn fn, void *arg, place at);
void  block_meet(block_fn fn, void *arg, place at);
void *dynamic_shared(void);
/* The array of this block that `site` stands for; made at its first use. */
void             *shared_array(const void *site, size_t bytes);
void              copy_async(void *dst, const void *src, bool valid); /* 16 bytes */
void              copy_commit(void);
void              copy_wait(unsigned n_left);
bool              in_shared(const void *p, size_t bytes);
[[noreturn]] void die(place at, const char *format, ...) __attribute__((format(printf, 2, 3)));

typedef void (*body_fn)(void *closure);
void check_words(const void *arg, size_t bytes);
int  launch(simt_job *job, void *stream); /* takes ownership */

/* What lies between an argument's members may look like anything: compilers that cannot clear it
 * check none. */
#if __has_builtin(__builtin_clear_padding)
constexpr bool             checks_arguments = true;
template <typename T> void check_argument(T arg)
{
    __builtin_clear_padding(&arg);
    check_words(&arg, sizeof(arg));
}
#else
constexpr bool             checks_arguments = false;
template <typename T> void check_argument(const T &) {}
#endif

template <typename T> struct one_value {
    T   in, out;
    int lane;
};
template <typename T> void exchange(void *const arg[32])
{
    for (int i = 0; i < 32; i++) {
        one_value<T> *mine = (one_value<T> *)arg[i];

        if (mine == nullptr) continue;
        if (arg[mine->lane & 31] == nullptr) die({"shfl", i}, "reads a lane that takes no part");
        mine->out = ((one_value<T> *)arg[mine->lane & 31])->in;
    }
}
template <typename T> T shuffle(uint32_t mask, T value, unsigned from, place at)
{
    one_value<T> v = {value, value, (int)from};

    warp_meet(mask, exchange<T>, &v, at);
    return v.out;
}
uint32_t vote(uint32_t mask, bool yes, place at); /* the mask of the lanes that say yes */
int      block_or(int yes, place at);

/* Matrix fragments, as the PTX ISA lays them out (m16n8k16, ldmatrix). */
void warp_mma(float d[4], const uint32_t a[4], const uint32_t b[2], place at);
void warp_load_matrix(uint32_t r[4], const void *row, bool turned, place at);
/* The same, as a warp's meeting: of mma_arg, of matrix_arg. */
struct mma_arg {
    float          *d;
    const uint32_t *a, *b;
};
struct matrix_arg {
    uint32_t   *r;
    const void *row;
    bool        turned;
};
void multiply(void *const arg[32]);
void load_matrices(void *const arg[32]);

/* Asynchronous copies of a thread that are under way, oldest first. */
enum { COPY_BYTES = 16 };
struct copy {
    char *to; /* shared memory, poisoned until it lands */
    char  bytes[COPY_BYTES];
};
class copies
{
    std::vector<copy>   pending;
    std::vector<size_t> group_ends; /* in it, of those committed */

  public:
    void begin(char *to, const void *from, size_t n_valid); /* zeros behind these */
    void commit(void) { group_ends.push_back(pending.size()); }
    /* Those that land when all groups but n_left are waited for: none of them any more. */
    std::vector<copy> wait(unsigned n_left);
    bool              under_way(void) const { return !pending.empty(); }
};

/* For another way to run a block (ptx/). */
uint64_t random_below(uint64_t n); /* n < 2^32 */
uint32_t max_shared(size_t dynamic_bytes);
void     poison(void *mem, size_t bytes);
struct argument {
    const void *at;
    size_t      bytes;
};

} // namespace simt

/* A launch with its arguments as they were. */
struct simt_job {
    dim3                        grid, block;
    size_t                      shared_bytes;
    simt::body_fn               run, drop;
    void                       *closure; /* owned */
    const void                 *kernel;
    std::vector<simt::argument> arguments; /* in the closure */
};

#define SIMT_HERE \
    simt::place { __FILE__, __LINE__ }
#define threadIdx simt::thread_index()
#define blockIdx  simt::block_index()
#define blockDim  simt::block_dim()
#define gridDim   simt::grid_dim()

#define __syncthreads()             simt::block_meet(nullptr, nullptr, SIMT_HERE)
#define __syncthreads_or(yes)       simt::block_or((yes), SIMT_HERE)
#define __syncwarp()                simt::warp_meet(~0u, nullptr, nullptr, SIMT_HERE)
#define __shfl_sync(mask, v, from)  simt::shuffle(mask, v, (unsigned)(from), SIMT_HERE)
#define __shfl_xor_sync(mask, v, x) simt::shuffle(mask, v, simt::lane() ^ (unsigned)(x), SIMT_HERE)
#define __shfl_up_sync(mask, v, by)                                                            \
    simt::shuffle(mask, v, simt::lane() < (unsigned)(by) ? simt::lane() : simt::lane() - (by), \
                  SIMT_HERE)
#define __ballot_sync(mask, yes) simt::vote(mask, (yes) != 0, SIMT_HERE)
#define __any_sync(mask, yes)    (simt::vote(mask, (yes) != 0, SIMT_HERE) != 0)

static inline int      __popc(uint32_t v) { return __builtin_popcount(v); }
static inline int      __ffs(uint32_t v) { return __builtin_ffs((int)v); }
static inline uint32_t __float_as_uint(float f)
{
    uint32_t u;

    memcpy(&u, &f, sizeof(u));
    return u;
}
static inline float __uint_as_float(uint32_t u)
{
    float f;

    memcpy(&f, &u, sizeof(f));
    return f;
}
template <typename T> T atomicAdd(T *at, T v)
{
    T was = *at;

    *at = was + v;
    return was;
}

template <typename T> T atomicMin(T *at, T v)
{
    T was = *at;

    *at = v < was ? v : was;
    return was;
}

/* ---- the half of device/cuda/gpu.cuh that is not the same on both sides */

#define GPU_SHARED(T, name, n) \
    static char name##_site;   \
    T *const    name = (T *)simt::shared_array(&name##_site, sizeof(T) * (n))
#define GPU_DYNAMIC_SHARED(T, name) T *const name = (T *)simt::dynamic_shared()
#define GPU_UNROLL
#define GPU_UNROLL_BY(n)
#define GPU_ONE_AT_A_TIME
#define GPU_CONSTANT

struct alignas(16) gpu_vec16 {
    uint32_t x, y, z, w;
};
struct alignas(8) gpu_vec8 {
    uint32_t x, y;
};

#define mma_bf16(d, a, b)          simt::warp_mma(d, a, b, SIMT_HERE)
#define load_matrix(r, row)        simt::warp_load_matrix(r, row, false, SIMT_HERE)
#define load_matrix_turned(r, row) simt::warp_load_matrix(r, row, true, SIMT_HERE)
static inline void copy_async16(void *dst, const void *src, bool valid)
{
    simt::copy_async(dst, src, valid);
}
static inline void                copy_async_commit(void) { simt::copy_commit(); }
template <int N_LEFT> inline void copy_async_wait(void) { simt::copy_wait(N_LEFT); }
static inline void                gpu_keep(uint32_t &) {}
/* A GPU has one NaN (cuda_bf16.hpp, __internal_float2bfloat16), a CPU keeps what it can of it. */
static inline bt_bf16  bf16_of(float f) { return f == f ? bt_bf16_from_f32(f) : 0x7fff; }
static inline float    f32_of(bt_bf16 v) { return bt_bf16_to_f32(v); }
static inline uint32_t bf16x2_of(float low, float high)
{
    return (uint32_t)bf16_of(high) << 16 | bf16_of(low);
}

/* ---- launches */

static inline uint32_t gpu_max_shared(void) { return simt_max_shared(); }
static inline uint32_t gpu_n_multiprocessors(void) { return SIMT_MULTIPROCESSORS; }

template <typename... P, typename... A>
int gpu_launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes, void *stream,
               A... args)
{
    struct closure {
        void (*kernel)(P...);
        std::tuple<P...> args;
    };
    auto run  = [](void *c) { std::apply(((closure *)c)->kernel, ((closure *)c)->args); };
    auto drop = [](void *c) { delete (closure *)c; };

    if (stream != nullptr) (simt::check_argument(args), ...);
    closure *c   = new closure{kernel, std::tuple<P...>(static_cast<P>(args)...)};
    auto     all = [](const P &...arg) {
        return std::vector<simt::argument>{
            simt::argument{&arg, sizeof(arg)}
            ...
        };
    };
    return simt::launch(new simt_job{grid, block, shared_bytes, run, drop, c, (const void *)kernel,
                                     std::apply(all, c->args)},
                        stream);
}

#endif

/* tests/cuda/simt.cpp - fibers, meetings and shared memory of simt.h. */
#include "tests/cuda/simt.h"
#include "tests/cuda/ptx/ptx.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cwchar>
#include <memory>
#include <numeric>
#include <sys/mman.h>
#include <unistd.h>
#include <utility>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#define SIMT_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SIMT_ASAN 1
#endif
#endif
#ifdef SIMT_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

/* Saves the callee-saved registers and the stack pointer at *from; goes on at `to`.  By a jump: a
 * return elsewhere than where the call came from is mispredicted each time. */
extern "C" void simt_switch(void **from, void *to);
#if defined(__x86_64__)
__asm__(".text\n"
        ".globl simt_switch\n"
        ".type simt_switch, @function\n"
        "simt_switch:\n"
        "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
        "  movq %rsp, (%rdi)\n"
        "  movq %rsi, %rsp\n"
        "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n"
        "  popq %rcx\n  jmp *%rcx\n"
        ".size simt_switch, .-simt_switch\n");
/* What it takes from a stack: registers, then where it returns to; above, where that would. */
enum { FRAME_WORDS = 8, FRAME_RETURN = 6 };
#elif defined(__aarch64__)
__asm__(".text\n"
        ".globl simt_switch\n"
        ".type simt_switch, %function\n"
        "simt_switch:\n"
        "  sub sp, sp, #160\n"
        "  stp x19, x20, [sp]\n  stp x21, x22, [sp, #16]\n  stp x23, x24, [sp, #32]\n"
        "  stp x25, x26, [sp, #48]\n  stp x27, x28, [sp, #64]\n  stp x29, x30, [sp, #80]\n"
        "  stp d8, d9, [sp, #96]\n  stp d10, d11, [sp, #112]\n"
        "  stp d12, d13, [sp, #128]\n  stp d14, d15, [sp, #144]\n"
        "  mov x2, sp\n  str x2, [x0]\n"
        "  mov sp, x1\n"
        "  ldp x19, x20, [sp]\n  ldp x21, x22, [sp, #16]\n  ldp x23, x24, [sp, #32]\n"
        "  ldp x25, x26, [sp, #48]\n  ldp x27, x28, [sp, #64]\n  ldp x29, x30, [sp, #80]\n"
        "  ldp d8, d9, [sp, #96]\n  ldp d10, d11, [sp, #112]\n"
        "  ldp d12, d13, [sp, #128]\n  ldp d14, d15, [sp, #144]\n"
        "  add sp, sp, #160\n"
        "  ret\n"
        ".size simt_switch, .-simt_switch\n");
enum { FRAME_WORDS = 20, FRAME_RETURN = 11 };
#endif

namespace simt
{

enum { STACK_BYTES = 256 << 10, OUTER_BYTES = 2048, WARP = 32, MAX_THREADS = 1024, MAX_STEPS = 64 };
enum { WORD = sizeof(wchar_t) };
enum : uint32_t { UNASKED = 48 << 10 }; /* bytes of shared memory that every block gets */
enum state { READY, AT_WARP, AT_BLOCK, ENDED };

struct give_back {
    void operator()(char *p) const { free(p); }
};
typedef std::unique_ptr<char, give_back> memory; /* aligned to 128 bytes, ends where it ends */

/* What each switch and meeting asks for lies in one line of the cache. */
struct alignas(64) fiber {
    void                   *sp      = nullptr;
    state                   st      = ENDED;
    uint32_t                mask    = 0;
    warp_fn                 on_warp = nullptr;
    void                   *arg     = nullptr;
    place                   at      = {"", 0};
    dim3                    index;
    block_fn                on_block = nullptr;
    std::unique_ptr<char[]> stack;
    void                   *fake_stack = nullptr;
    simt::copies            copies;
};
struct array {
    const void *site;
    size_t      bytes;
    memory      mem;
};

static std::vector<fiber> g_fibers;
static std::vector<array> g_arrays;
static memory             g_dynamic;
static size_t             g_dynamic_bytes, g_static_bytes;
static dim3               g_block, g_block_dim, g_grid;
static unsigned           g_n, g_self;
static unsigned           g_order[WARP], g_n_order, g_n_entered; /* of a warp's step */
static void              *g_main_sp;
#ifdef SIMT_ASAN
static const void *g_main_bottom;
static size_t      g_main_bytes;
#endif
static body_fn  g_body;
static void    *g_closure;
static uint64_t g_random     = 1, g_launches, g_blocks;
static uint32_t g_max_shared = 232448;

void die(place at, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    fprintf(stderr, "simt: %s:%d (block %u,%u,%u): ", at.file, at.line, g_block.x, g_block.y,
            g_block.z);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    abort();
}

const dim3 &thread_index(void) { return g_fibers[g_self].index; }
const dim3 &block_index(void) { return g_block; }
const dim3 &block_dim(void) { return g_block_dim; }
const dim3 &grid_dim(void) { return g_grid; }
unsigned    lane(void) { return g_self % WARP; }

uint64_t random_below(uint64_t n)
{
    g_random = g_random * 6364136223846793005u + 1442695040888963407u;
    return (g_random >> 32) * n >> 32; /* n < 2^32 */
}

/* ---- switching */

static int (*g_take)(simt_job *job, void *stream);
static int (*g_reaches)(const void *ptr);

/* From `mine`, of which `fake` is to be kept, to the order's next thread or, after the last, to
 * where the step began. */
static void go_on(void **mine, void **fake)
{
    bool  back = g_n_entered == g_n_order;
    void *to   = g_main_sp;

    if (!back) {
        g_self = g_order[g_n_entered++];
        to     = g_fibers[g_self].sp;
    }
#ifdef SIMT_ASAN
    __sanitizer_start_switch_fiber(fake, back ? g_main_bottom : g_fibers[g_self].stack.get(),
                                   back ? g_main_bytes : (size_t)STACK_BYTES);
#else
    (void)fake;
#endif
    simt_switch(mine, to);
}

/* In a thread that goes on: the first of a step comes from where that began. */
static void arrive(void *fake)
{
#ifdef SIMT_ASAN
    const void *bottom;
    size_t      bytes;

    __sanitizer_finish_switch_fiber(fake, &bottom, &bytes);
    if (g_n_entered == 1) {
        g_main_bottom = bottom;
        g_main_bytes  = bytes;
    }
#else
    (void)fake;
#endif
}

/* Runs the order's threads, each to its next meeting. */
static void run_order(void)
{
    void *fake = nullptr;

    g_n_entered = 0;
    go_on(&g_main_sp, &fake);
#ifdef SIMT_ASAN
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
}

static void leave(state st)
{
    fiber &f = g_fibers[g_self];

    f.st = st;
    go_on(&f.sp, st == ENDED ? nullptr : &f.fake_stack);
    arrive(f.fake_stack);
}

static void fiber_main(void)
{
    arrive(nullptr);
    g_body(g_closure);
    if (g_fibers[g_self].copies.under_way())
        die(g_fibers[g_self].at, "ends with copies that nobody waited for");
    leave(ENDED);
    abort();
}

/* Stacks begin a few lines apart from each other within their pages: else all that a warp's threads
 * touch lies in the same few sets of the first-level cache. */
static void prepare(fiber &f)
{
    if (!f.stack) f.stack.reset(new char[STACK_BYTES]);
    size_t below = (size_t)(&f - g_fibers.data()) % 32 * 128;
    void **top   = (void **)(((uintptr_t)f.stack.get() + STACK_BYTES - below) & ~(uintptr_t)15);

#ifdef SIMT_ASAN /* the outermost frames of the thread that ended here never returned */
    __asan_unpoison_memory_region((char *)top - OUTER_BYTES, OUTER_BYTES);
#endif
    top -= FRAME_WORDS; /* fiber_main never returns */
    std::fill(top, top + FRAME_WORDS, nullptr);
    top[FRAME_RETURN] = (void *)fiber_main;
    f.sp              = top;
    f.st              = READY;
    f.at              = {"start", 0};
    f.copies          = {};
}

/* ---- meetings */

void warp_meet(uint32_t mask, warp_fn fn, void *arg, place at)
{
    fiber &f = g_fibers[g_self];

    if (!(mask >> lane() & 1)) die(at, "lane %u is not in its own mask %08x", lane(), mask);
    f.mask    = mask;
    f.on_warp = fn;
    f.arg     = arg;
    f.at      = at;
    leave(AT_WARP);
}

void block_meet(block_fn fn, void *arg, place at)
{
    fiber &f = g_fibers[g_self];

    f.on_block = fn;
    f.arg      = arg;
    f.at       = at;
    leave(AT_BLOCK);
}

/* Lets the lanes of one complete mask go on. */
static bool release_warp(unsigned first, unsigned n_lanes)
{
    bool any = false;

    for (unsigned i = first; i < first + n_lanes; i++) {
        fiber &f = g_fibers[i];

        if (f.st != AT_WARP) continue;

        void    *args[32] = {};
        uint32_t here     = 0;

        for (unsigned j = first; j < first + n_lanes; j++) {
            fiber &g = g_fibers[j];

            if (!(f.mask >> (j - first) & 1)) continue;
            if (g.st == ENDED) die(f.at, "waits for lane %u, which has ended", j - first);
            if (g.st != AT_WARP) break;
            if (g.on_warp != f.on_warp || g.at.line != f.at.line || g.mask != f.mask)
                die(f.at, "meets lane %u at %s:%d with mask %08x, its own is %08x", j - first,
                    g.at.file, g.at.line, g.mask, f.mask);
            here |= 1u << (j - first);
            args[j - first] = g.arg;
        }
        if (here != (f.mask & (n_lanes == 32 ? ~0u : (1u << n_lanes) - 1))) continue;
        if (n_lanes != 32 && f.mask == ~0u) die(f.at, "full mask in a warp of %u threads", n_lanes);
        if (f.on_warp != nullptr) f.on_warp(args);
        for (unsigned l = 0; l < n_lanes; l++)
            if (here >> l & 1) g_fibers[first + l].st = READY;
        any = true;
    }
    return any;
}

static bool release_block(void)
{
    static void *args[MAX_THREADS];

    for (unsigned i = 0; i < g_n; i++) {
        const fiber &f = g_fibers[i], &first = g_fibers[0];

        if (f.st != AT_BLOCK) return false;
        if (f.at.line != first.at.line || strcmp(f.at.file, first.at.file) != 0)
            die(f.at, "meets thread 0 at another barrier, %s:%d", first.at.file, first.at.line);
        args[i] = f.arg;
    }
    if (g_fibers[0].on_block != nullptr) g_fibers[0].on_block(args, g_n);
    for (unsigned i = 0; i < g_n; i++)
        g_fibers[i].st = READY;
    return true;
}

static bool warp_is_ready(unsigned first, unsigned n_lanes)
{
    for (unsigned i = first; i < first + n_lanes; i++)
        if (g_fibers[i].st == READY) return true;
    return false;
}

/* The warp's ready threads, in a random order, each to its next meeting; then the meeting. */
static void step_warp(unsigned first, unsigned n_lanes)
{
    unsigned order[WARP];

    for (unsigned i = 0; i < n_lanes; i++)
        order[i] = first + i;
    for (unsigned i = n_lanes - 1; i > 0; i--)
        std::swap(order[i], order[random_below(i + 1)]);
    g_n_order = 0; /* and above 0 below: the warp is ready */
    for (unsigned i = 0; i < n_lanes; i++)
        if (g_fibers[order[i]].st == READY) g_order[g_n_order++] = order[i];
    run_order();
    release_warp(first, n_lanes);
}

[[noreturn]] static void die_stuck(void)
{
    unsigned n_ended = 0;

    for (unsigned i = 0; i < g_n; i++)
        n_ended += g_fibers[i].st == ENDED;
    for (unsigned i = 0; i < g_n; i++)
        if (g_fibers[i].st == AT_BLOCK)
            die(g_fibers[i].at, "barrier that %u of %u threads never reach", n_ended, g_n);
    die(g_fibers[0].at, "collective that some lanes of its mask never reach");
}

/* One warp at a time, for a random number of steps: warps drift apart as far as barriers let them.
 */
static void run_block(void)
{
    for (unsigned i = 0; i < g_n; i++) {
        g_fibers[i].index = dim3(i % g_block_dim.x, i / g_block_dim.x % g_block_dim.y,
                                 i / (g_block_dim.x * g_block_dim.y));
        prepare(g_fibers[i]);
    }
    for (;;) {
        unsigned ready[MAX_THREADS / WARP], n_ready = 0, n_ended = 0;

        for (unsigned w = 0; w < g_n; w += WARP)
            if (warp_is_ready(w, std::min(g_n - w, (unsigned)WARP))) ready[n_ready++] = w;
        if (n_ready != 0) {
            unsigned w = ready[random_below(n_ready)], n_lanes = std::min(g_n - w, (unsigned)WARP);

            for (uint64_t steps = 1 + random_below(MAX_STEPS);
                 steps > 0 && warp_is_ready(w, n_lanes); steps--)
                step_warp(w, n_lanes);
            continue;
        }
        for (unsigned i = 0; i < g_n; i++)
            n_ended += g_fibers[i].st == ENDED;
        if (n_ended == g_n) return;
        if (!release_block()) die_stuck();
    }
}

/* ---- memory */

/* What nobody has written: NaN as bf16, float and double, an index out of bounds, and no key that
 * sorts behind all others, as the all ones that kernels write where there is nothing. */
void poison(void *mem, size_t bytes)
{
    static const unsigned char POISON[WORD] = {0xf5, 0x7f, 0xf5, 0x7f};
    wchar_t                    word;

    memcpy(&word, POISON, WORD);
    wmemset((wchar_t *)mem, word, bytes / WORD);
    memcpy((char *)mem + bytes / WORD * WORD, POISON, bytes % WORD);
}

static memory allocate(size_t bytes)
{
    void *mem = nullptr;

    if (posix_memalign(&mem, 128, bytes) != 0) die({"shared", 0}, "no memory");
    return memory((char *)mem);
}

uint32_t max_shared(size_t dynamic_bytes)
{
    return dynamic_bytes >= UNASKED ? g_max_shared : UNASKED;
}

void *dynamic_shared(void) { return g_dynamic.get(); }

void *shared_array(const void *site, size_t bytes)
{
    for (const array &a : g_arrays)
        if (a.site == site) return a.mem.get();
    g_arrays.push_back({site, bytes, allocate(bytes)});
    poison(g_arrays.back().mem.get(), bytes);
    g_static_bytes += bytes;
    /* gpu_launch() asks for leave where a launch's own are 48 KiB or more; else all must fit. */
    if (g_static_bytes > UNASKED || g_static_bytes + g_dynamic_bytes > max_shared(g_dynamic_bytes))
        die({"shared", 0}, "%zu bytes of static shared memory beside %zu of the launch",
            g_static_bytes, g_dynamic_bytes);
    return g_arrays.back().mem.get();
}

bool in_shared(const void *p, size_t bytes)
{
    const char *at = (const char *)p;

    if (at >= g_dynamic.get() && at + bytes <= g_dynamic.get() + g_dynamic_bytes) return true;
    for (const array &a : g_arrays)
        if (at >= a.mem.get() && at + bytes <= a.mem.get() + a.bytes) return true;
    return false;
}

void copies::begin(char *to, const void *from, size_t n_valid)
{
    copy c = {to, {}};

    memcpy(c.bytes, from, n_valid);
    poison(to, COPY_BYTES);
    pending.push_back(c);
}

std::vector<copy> copies::wait(unsigned n_left)
{
    size_t            n    = group_ends.size() > n_left ? group_ends.size() - n_left : 0;
    auto              done = pending.begin() + (ptrdiff_t)(n == 0 ? 0 : group_ends[n - 1]);
    std::vector<copy> landed(pending.begin(), done);

    pending.erase(pending.begin(), done);
    group_ends.erase(group_ends.begin(), group_ends.begin() + (ptrdiff_t)n);
    for (size_t &end : group_ends)
        end -= landed.size();
    return landed;
}

void copy_async(void *dst, const void *src, bool valid)
{
    if (((uintptr_t)dst | (uintptr_t)src) % COPY_BYTES != 0)
        die({"copy", 0}, "%p to %p is not aligned", src, dst);
    if (!in_shared(dst, COPY_BYTES)) die({"copy", 0}, "the target is not shared memory");
    if (in_shared(src, COPY_BYTES)) die({"copy", 0}, "the source is shared memory");
    g_fibers[g_self].copies.begin((char *)dst, src, valid ? COPY_BYTES : 0);
}

void copy_commit(void) { g_fibers[g_self].copies.commit(); }

void copy_wait(unsigned n_left)
{
    for (const copy &c : g_fibers[g_self].copies.wait(n_left))
        memcpy(c.to, c.bytes, COPY_BYTES);
}

/* ---- collectives */

static void count_votes(void *const arg[32])
{
    uint32_t votes = 0;

    for (int i = 0; i < 32; i++)
        if (arg[i] != nullptr && ((one_value<uint32_t> *)arg[i])->in) votes |= 1u << i;
    for (int i = 0; i < 32; i++)
        if (arg[i] != nullptr) ((one_value<uint32_t> *)arg[i])->out = votes;
}

uint32_t vote(uint32_t mask, bool yes, place at)
{
    one_value<uint32_t> v = {yes, 0, 0};

    warp_meet(mask, count_votes, &v, at);
    return v.out;
}

static void any_of_block(void *const *args, unsigned n)
{
    int any = 0;

    for (unsigned i = 0; i < n; i++)
        any |= *(int *)args[i];
    for (unsigned i = 0; i < n; i++)
        *(int *)args[i] = any;
}

int block_or(int yes, place at)
{
    int v = yes != 0;

    block_meet(any_of_block, &v, at);
    return v;
}

static float low_of(uint32_t v) { return bt_bf16_to_f32((bt_bf16)v); }
static float high_of(uint32_t v) { return bt_bf16_to_f32((bt_bf16)(v >> 16)); }

typedef float row8 __attribute__((vector_size(32)));

/* D[16][8] += A[16][16] B[16][8].  A product of two bf16 is exact in fp32, so each step is a fused
 * multiply-add; k ascends.  The arrays are multiply()'s own: nothing to check in each step. */
__attribute__((no_sanitize("address", "undefined"))) static void
accumulate(const float a[16][16], const row8 b[16], row8 d[16])
{
    for (int row = 0; row < 16; row++) {
        row8 sum = d[row];

        for (int k = 0; k < 16; k++)
            sum += a[row][k] * b[k];
        d[row] = sum;
    }
}

void multiply(void *const arg[32])
{
    float a[16][16];
    row8  b[16], d[16];

    for (int l = 0; l < 32; l++) {
        const mma_arg *m = (const mma_arg *)arg[l];
        int            g = l / 4, t = l % 4;

        for (int q = 0; q < 4; q++) {
            int row = g + q % 2 * 8, col = 2 * t + q / 2 * 8;

            a[row][col]     = low_of(m->a[q]);
            a[row][col + 1] = high_of(m->a[q]);
        }
        for (int q = 0; q < 2; q++) {
            b[2 * t + 8 * q][g]     = low_of(m->b[q]);
            b[2 * t + 8 * q + 1][g] = high_of(m->b[q]);
        }
        for (int q = 0; q < 4; q++)
            d[g + q / 2 * 8][2 * t + q % 2] = m->d[q];
    }
    accumulate(a, b, d);
    for (int l = 0; l < 32; l++)
        for (int q = 0; q < 4; q++)
            ((const mma_arg *)arg[l])->d[q] = d[l / 4 + q / 2 * 8][2 * (l % 4) + q % 2];
}

void warp_mma(float d[4], const uint32_t a[4], const uint32_t b[2], place at)
{
    mma_arg arg = {d, a, b};

    warp_meet(~0u, multiply, &arg, at);
}

/* Four 8x8 matrices; lanes 8 m .. 8 m + 7 point at the rows of matrix m. */
void load_matrices(void *const arg[32])
{
    for (int l = 0; l < 32; l++) {
        const matrix_arg *mine = (const matrix_arg *)arg[l];

        for (int m = 0; m < 4; m++) {
            uint16_t low, high;
            int      g = l / 4, t = l % 4;

            if (mine->turned) {
                low  = ((const uint16_t *)((const matrix_arg *)arg[8 * m + 2 * t])->row)[g];
                high = ((const uint16_t *)((const matrix_arg *)arg[8 * m + 2 * t + 1])->row)[g];
            } else {
                const uint16_t *row = (const uint16_t *)((const matrix_arg *)arg[8 * m + g])->row;

                low  = row[2 * t];
                high = row[2 * t + 1];
            }
            mine->r[m] = (uint32_t)high << 16 | low;
        }
    }
}

void warp_load_matrix(uint32_t r[4], const void *row, bool turned, place at)
{
    matrix_arg arg = {r, row, turned};

    if ((uintptr_t)row % 16 != 0) die(at, "a matrix row at %p is not aligned to 16 bytes", row);
    if (!in_shared(row, 16)) die(at, "a matrix row outside shared memory");
    warp_meet(~0u, load_matrices, &arg, at);
}

/* ---- launches */

static void check(const simt_job &j)
{
    unsigned n = j.block.x * j.block.y * j.block.z;

    if (n == 0 || n > MAX_THREADS) die({"launch", 0}, "%u threads in a block", n);
    if (j.grid.x == 0 || j.grid.y == 0 || j.grid.z == 0 || j.grid.x > 0x7fffffffu ||
        j.grid.y > 65535 || j.grid.z > 65535)
        die({"launch", 0}, "a grid of %u x %u x %u", j.grid.x, j.grid.y, j.grid.z);
    if (j.shared_bytes > g_max_shared)
        die({"launch", 0}, "%zu bytes of shared memory", j.shared_bytes);
}

static void run_grid(const simt_job &j)
{
    const ptx::kernel *translated = ptx::kernel_of(j);

    g_n = j.block.x * j.block.y * j.block.z;
    if (g_fibers.size() < g_n) g_fibers.resize(g_n);
    g_body          = j.run;
    g_closure       = j.closure;
    g_grid          = j.grid;
    g_block_dim     = j.block;
    g_dynamic       = allocate(j.shared_bytes);
    g_dynamic_bytes = j.shared_bytes;
    if (translated != nullptr) ptx::begin(translated, j);
    uint64_t n = (uint64_t)j.grid.x * j.grid.y * j.grid.z, at = random_below(n);
    uint64_t step = 1 + random_below(n);

    while (std::gcd(step, n) != 1)
        step++;
    for (uint64_t i = 0; i < n; i++, at = (at + step) % n) { /* each block once */
        g_block = dim3((unsigned)(at % j.grid.x), (unsigned)(at / j.grid.x % j.grid.y),
                       (unsigned)(at / j.grid.x / j.grid.y));
        poison(g_dynamic.get(), j.shared_bytes);
        g_arrays.clear();
        g_static_bytes = 0;
        g_blocks++;
        if (translated != nullptr)
            ptx::run_block();
        else
            run_block();
    }
    if (translated != nullptr) ptx::end();
    g_dynamic.reset();
    g_arrays.clear();
}

/* Words that may be pointers: what is mapped, above where sanitizers keep their books, so that two
 * small numbers side by side are none. */
void check_words(const void *arg, size_t bytes)
{
    uintptr_t     page = (uintptr_t)sysconf(_SC_PAGESIZE), at;
    unsigned char there;

    for (size_t i = 0; g_reaches != nullptr && i + sizeof(at) <= bytes; i += sizeof(at)) {
        memcpy(&at, (const char *)arg + i, sizeof(at));
        if (at >> 45 == 0 || g_reaches((const void *)at)) continue;
        if (mincore((void *)(at / page * page), 1, &there) == 0)
            die({"launch", 0}, "%p, which is no memory of the GPU", (void *)at);
    }
}

int launch(simt_job *job, void *stream)
{
    check(*job);
    g_launches++;
    if (g_take != nullptr) return g_take(job, stream);
    run_grid(*job);
    simt_job_free(job);
    return 0;
}

} // namespace simt

void     simt_seed(uint64_t seed) { simt::g_random = seed * 2654435769u + 1; }
void     simt_limit_shared(uint32_t bytes) { simt::g_max_shared = bytes; }
uint32_t simt_max_shared(void) { return simt::g_max_shared; }
void simt_take_launches(int (*take)(simt_job *job, void *stream), int (*reaches)(const void *ptr))
{
    simt::g_take    = take;
    simt::g_reaches = reaches;
}
void simt_job_run(simt_job *job) { simt::run_grid(*job); }
void simt_job_free(simt_job *job)
{
    job->drop(job->closure);
    delete job;
}
uint64_t simt_n_launches(void) { return simt::g_launches; }
uint64_t simt_n_blocks(void) { return simt::g_blocks; }
bool     simt_counts(void) { return true; }

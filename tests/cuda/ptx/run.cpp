/* tests/cuda/ptx/run.cpp - a block of threads that run PTX: its warps, its shared memory and who
 * touched that when. */
#include "tests/cuda/ptx/ptx.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <elf.h>
#include <fstream>
#include <glob.h>
#include <iterator>

namespace ptx
{

enum { MAX_STEPS = 256, GRANULE = 2 };

/* The last write to two bytes of shared memory, and the last reads since. */
enum : uint16_t {
    NOBODY  = 0xffff,
    SEVERAL = 0x8000 /* of warp ..; of several warps: */,
    MANY    = 0xfffe
};
struct touched {
    uint32_t block, warp; /* epochs */
    int      line;
    uint16_t by = NOBODY; /* thread, SEVERAL | warp, or MANY */
    uint8_t  bytes;       /* a mask */
    bool     adds;
};
struct cell {
    touched wrote, read;
};

static const kernel             *g_kernel;
static std::vector<warp>         g_warps;
static std::vector<simt::copies> g_copies; /* of each thread */
static std::vector<char>         g_params;
static std::vector<range>        g_arrays; /* in shared memory */
static uint32_t                  g_shared_end, g_epoch;
static std::vector<cell>         g_cells;
static const step               *g_step; /* under way */
alignas(1024) static char g_shared[256 << 10];

void fail(const char *format, ...)
{
    char    text[512];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    simt::die({g_kernel->file.c_str(), g_step != nullptr ? g_step->line : 0}, "%s: %s",
              g_kernel->name.c_str(), text);
}

/* ---- memory */

static bool of_warp(const touched &t, unsigned thread)
{
    return t.by != MANY && (t.by & SEVERAL ? t.by & ~SEVERAL : t.by / WARP) == (int)thread / WARP;
}

static bool before_now(const touched &t, unsigned thread)
{
    if (t.by == NOBODY || t.block != g_epoch || t.by == thread) return true;
    return of_warp(t, thread) && t.warp != g_warps[thread / WARP].epoch;
}

[[noreturn]] static void race(const touched &t, const char *was, unsigned thread, access how,
                              uint32_t address)
{
    fail("thread %u %s shared memory at %u that thread or warp %x %s at line %d, without a barrier "
         "between",
         thread, how == READS ? "reads" : "writes", address, t.by, was, t.line);
}

static void touch(unsigned thread, uint32_t address, uint32_t bytes, access how)
{
    uint32_t epoch = g_warps[thread / WARP].epoch;

    for (uint32_t i = address / GRANULE; i * GRANULE < address + bytes; i++) {
        cell    &c    = g_cells[i];
        uint8_t  mask = bytes == 1 ? uint8_t(1u << address % GRANULE) : 3;
        uint16_t by   = uint16_t(thread);
        touched &t    = how == READS ? c.read : c.wrote;

        if ((c.wrote.bytes & mask) != 0 && !before_now(c.wrote, thread) &&
            !(how == ADDS && c.wrote.adds))
            race(c.wrote, "wrote", thread, how, address);
        if (how != READS && (c.read.bytes & mask) != 0 && !before_now(c.read, thread))
            race(c.read, "read", thread, how, address);
        if (how == READS && (t.bytes & mask) != 0 && t.block == g_epoch && t.by != thread)
            by = t.by == MANY || !of_warp(t, thread) ? uint16_t(MANY)
                 : t.warp == epoch                   ? uint16_t(SEVERAL | thread / WARP)
                                                     : by;
        t = {g_epoch, epoch, g_step->line, by, mask, how == ADDS};
    }
}

char *shared_at(warp &w, unsigned lane, uint32_t address, uint32_t bytes, access how)
{
    bool inside = false;

    if (address % bytes != 0)
        fail("lane %u: %u bytes at %u, which is not aligned", lane, bytes, address);
    if (g_step->used != NONE)
        bytes = 32 - (uint32_t)__builtin_clz(g_step->used); /* nvcc widens loads into padding */
    for (const range &a : g_arrays)
        inside |= address >= a.offset && address + bytes <= a.offset + a.bytes;
    if (!inside) fail("lane %u: %u bytes at %u, outside all shared arrays", lane, bytes, address);
    touch(w.first + lane, address, bytes, how);
    return g_shared + address;
}

bool     is_shared(uint64_t address) { return address - (uint64_t)g_shared < sizeof(g_shared); }
uint64_t generic_of_shared(uint64_t address) { return (uint64_t)g_shared + address; }

char *memory_at(warp &w, unsigned lane, uint64_t address, uint32_t bytes, access how)
{
    if (is_shared(address))
        return shared_at(w, lane, uint32_t(address - (uint64_t)g_shared), bytes, how);
    if (address % bytes != 0)
        fail("lane %u: %u bytes at %#llx, which is not aligned", lane, bytes,
             (unsigned long long)address);
    return (char *)address;
}

char *param_at(uint64_t offset, uint32_t bytes)
{
    if (offset % bytes != 0 || offset + bytes > g_params.size())
        fail("%u bytes of the parameters at %llu", bytes, (unsigned long long)offset);
    return g_params.data() + offset;
}

void copy_async(warp &w, unsigned lane, uint32_t to, uint64_t from, uint32_t valid_bytes)
{
    char *at = shared_at(w, lane, to, simt::COPY_BYTES, WRITES);

    if (valid_bytes > simt::COPY_BYTES)
        fail("lane %u: %u bytes of %d", lane, valid_bytes, simt::COPY_BYTES);
    if (is_shared(from)) fail("lane %u: a copy from shared memory", lane);
    g_copies[w.first + lane].begin(at, memory_at(w, lane, from, simt::COPY_BYTES, READS),
                                   valid_bytes);
}

void copy_commit(warp &w)
{
    for (unsigned l = 0; l < WARP; l++)
        if (w.exec >> l & 1) g_copies[w.first + l].commit();
}

void copy_wait(warp &w, unsigned n_left)
{
    for (unsigned l = 0; l < WARP; l++) {
        if (!(w.exec >> l & 1)) continue;
        for (const simt::copy &c : g_copies[w.first + l].wait(n_left))
            memcpy(shared_at(w, l, uint32_t(c.to - g_shared), simt::COPY_BYTES, WRITES), c.bytes,
                   simt::COPY_BYTES);
    }
}

/* ---- warps */

/* Lanes wait at a meeting of the warp; it comes about when all of the mask are there. */
static void meet(warp &w, const step &s, uint32_t at, uint32_t lanes)
{
    uint32_t mask = ~0u, here = 0;

    if (s.what->mask >= 0) {
        const uint32_t *masks = w.at<uint32_t>(s.slot[s.what->mask]);

        mask = masks[__builtin_ctz(lanes)];
        for (unsigned l = 0; l < WARP; l++)
            if (lanes >> l & 1 && masks[l] != mask) fail("lanes with different masks");
    }
    if ((lanes & ~mask) != 0) fail("lanes %08x come to a meeting of %08x", lanes, mask);
    if ((mask & ~w.live) != 0) fail("waits for lanes %08x, which have ended", mask & ~w.live);
    w.at_warp |= lanes;
    for (unsigned l = 0; l < WARP; l++)
        here |= uint32_t(w.at_warp >> l & 1 && w.pc[l] == at) << l;
    if ((here & mask) != mask) return;
    w.exec = mask;
    s.what->run(w, s);
    w.at_warp &= ~mask;
    for (unsigned l = 0; l < WARP; l++)
        w.pc[l] += mask >> l & 1;
}

static void set_pcs(warp &w, uint32_t lanes, uint32_t pc)
{
    for (unsigned l = 0; l < WARP; l++)
        if (lanes >> l & 1) w.pc[l] = pc;
}

/* Lanes that stand at one place go on until some of them go elsewhere, or others may join them. */
static void go_on(warp &w, uint32_t lanes, bool alone)
{
    uint32_t pc = w.pc[__builtin_ctz(lanes)];

    for (bool first = true;; first = false) {
        if (pc >= g_kernel->steps.size()) fail("runs over the end");
        const step &s = g_kernel->steps[pc];

        if (s.joins && !alone && !first) break;
        g_step = &s;
        w.exec = lanes;
        if (s.guard != NONE)
            w.exec &= s.unless ? ~*w.at<uint32_t>(s.guard) : *w.at<uint32_t>(s.guard);
        if (s.what->does == COMPUTES) {
            if (w.exec != 0) s.what->run(w, s);
            pc++;
            continue;
        }
        uint32_t taken = w.exec;

        if (taken == 0) {
            pc++;
            continue;
        }
        if (s.what->does == BRANCHES && taken == lanes) {
            pc = s.target;
            if (pc <= (uint32_t)(&s - g_kernel->steps.data())) break;
            continue;
        }
        set_pcs(w, lanes & ~taken, pc + 1);
        set_pcs(w, taken, s.what->does == BRANCHES ? s.target : pc);
        if (s.what->does == ENDS) w.live &= ~taken;
        if (s.what->does == MEETS_BLOCK) w.at_block |= taken;
        if (s.what->does == MEETS_WARP) meet(w, s, pc, taken);
        return;
    }
    set_pcs(w, lanes, pc);
}

static uint32_t ready(const warp &w) { return w.live & ~w.at_warp & ~w.at_block; }

/* The lanes furthest behind, which is where most branches meet again, or any. */
static void step_warp(warp &w)
{
    uint32_t all = ready(w), lanes = 0;
    unsigned lane = (unsigned)__builtin_ctz(all);

    if (simt::random_below(8) == 0) {
        do
            lane = (unsigned)simt::random_below(WARP);
        while (!(all >> lane & 1));
    } else {
        for (unsigned l = 0; l < WARP; l++)
            if (all >> l & 1 && w.pc[l] < w.pc[lane]) lane = l;
    }
    for (unsigned l = 0; l < WARP; l++)
        lanes |= uint32_t(all >> l & 1 && w.pc[l] == w.pc[lane]) << l;
    go_on(w, lanes, lanes == all);
}

static void release_block(void)
{
    const kernel &k   = *g_kernel;
    uint32_t      any = 0, at = NONE;
    size_t        n = 0;

    for (const warp &w : g_warps)
        n += (size_t)__builtin_popcount(w.live);
    for (warp &w : g_warps) {
        unsigned lane = w.live == 0 ? 0 : (unsigned)__builtin_ctz(w.live);

        g_step = &k.steps[w.pc[lane]];
        if (w.at_warp != 0)
            fail("warp of thread %u: lanes %08x wait for others at a meeting", w.first, w.at_warp);
        if (n != g_copies.size())
            fail("a barrier that %zu of %zu threads never reach", g_copies.size() - n,
                 g_copies.size());
        for (unsigned l = 0; l < WARP; l++)
            if (w.live >> l & 1 && w.pc[l] != w.pc[lane])
                fail("a warp at two barriers, the other at line %d", k.steps[w.pc[l]].line);
        if (at != NONE && k.steps[at].what != g_step->what)
            fail("threads at barriers of two kinds, the other at line %d", k.steps[at].line);
        at = w.pc[lane];
        if (g_step->what->operands == "pnp") any |= *w.at<uint32_t>(g_step->slot[1]) & w.live;
    }
    for (warp &w : g_warps) {
        const step &s = k.steps[w.pc[__builtin_ctz(w.live)]];

        if (s.what->operands == "pnp") *w.at<uint32_t>(s.slot[0]) = any != 0 ? ~0u : 0;
        w.at_block = 0;
        for (uint32_t &pc : w.pc)
            pc++;
    }
    g_epoch++;
}

/* ---- blocks and launches */

static uint64_t special_value(const std::string &name, unsigned thread)
{
    const dim3 &b = simt::block_dim(), &at = simt::block_index(), &n = simt::grid_dim();

    if (name == "%tid.x") return thread % b.x;
    if (name == "%tid.y") return thread / b.x % b.y;
    if (name == "%tid.z") return thread / b.x / b.y;
    if (name == "%ntid.x") return b.x;
    if (name == "%ctaid.x") return at.x;
    if (name == "%ctaid.y") return at.y;
    if (name == "%ctaid.z") return at.z;
    if (name == "%nctaid.x") return n.x;
    if (name == "%nctaid.y") return n.y;
    if (name == "%nctaid.z") return n.z;
    if (name == "dynamic") return g_arrays.back().offset;
    fail("unknown name %s", name.c_str());
}

static void set_constants(warp &w, bool special)
{
    for (const constant &c : g_kernel->constants) {
        if (c.special.empty() == special) continue;
        for (unsigned l = 0; l < WARP; l++) {
            uint64_t v = special ? special_value(c.special, w.first + l) : c.value;

            memcpy(w.registers.data() + c.slot + l * c.bytes, &v, c.bytes);
        }
    }
}

void begin(const kernel *k, const simt_job &job)
{
    unsigned n     = job.block.x * job.block.y * job.block.z;
    size_t   bytes = 0;

    g_kernel = k;
    g_step   = nullptr;
    if (n > k->max_threads) fail("%u threads of at most %u", n, k->max_threads);
    if (job.arguments.size() != k->params.size())
        fail("%zu arguments for %zu", job.arguments.size(), k->params.size());
    g_params.clear();
    for (size_t i = 0; i < k->params.size(); i++) {
        const simt::argument &a = job.arguments[i];

        if (a.bytes != k->params[i].bytes)
            fail("argument %zu has %zu bytes, not %u", i, a.bytes, k->params[i].bytes);
        g_params.resize(k->params[i].offset + a.bytes);
        memcpy(g_params.data() + k->params[i].offset, a.at, a.bytes);
    }
    g_arrays = k->shared;
    for (const range &a : g_arrays)
        bytes += a.bytes;
    if (bytes + job.shared_bytes > simt::max_shared(job.shared_bytes))
        fail("%zu bytes of shared memory beside %zu of the launch", bytes, job.shared_bytes);
    g_arrays.push_back({(k->dynamic_at + 127) / 128 * 128, (uint32_t)job.shared_bytes});
    g_shared_end = g_arrays.back().offset + g_arrays.back().bytes;
    if (g_shared_end > sizeof(g_shared)) fail("%u bytes of shared memory", g_shared_end);
    g_cells.resize(sizeof(g_shared) / GRANULE);
    g_copies.assign(n, {});
    g_warps.resize((n + WARP - 1) / WARP);
    for (warp &w : g_warps) {
        w.first = unsigned(&w - g_warps.data()) * WARP;
        w.registers.resize(k->register_bytes);
        simt::poison(w.registers.data(), w.registers.size());
        set_constants(w, false);
    }
}

void run_block(void)
{
    unsigned n = (unsigned)g_copies.size();

    g_epoch++;
    simt::poison(g_shared, g_shared_end);
    for (warp &w : g_warps) {
        w.live    = n - w.first >= WARP ? ~0u : (1u << (n - w.first)) - 1;
        w.at_warp = w.at_block = w.epoch = 0;
        set_pcs(w, ~0u, 0);
        set_constants(w, true);
    }
    for (;;) {
        unsigned able[32], n_able = 0;
        bool     lives = false;

        for (unsigned i = 0; i < g_warps.size(); i++) {
            if (ready(g_warps[i]) != 0) able[n_able++] = i;
            lives |= g_warps[i].live != 0;
        }
        if (n_able != 0) {
            warp &w = g_warps[able[simt::random_below(n_able)]];

            for (uint64_t steps = 1 + simt::random_below(MAX_STEPS); steps > 0 && ready(w) != 0;
                 steps--)
                step_warp(w);
        } else if (lives) {
            release_block();
        } else {
            break;
        }
    }
    for (const simt::copies &c : g_copies)
        if (c.under_way()) fail("ends with copies that nobody waited for");
}

void end(void) { g_kernel = nullptr; }

/* ---- kernels by name */

/* The name of the function at p in its program's table of symbols, which has static ones too. */
static std::string symbol_at(const void *p)
{
    Dl_info info;

    if (dladdr(p, &info) == 0) return "";
    std::ifstream     in(info.dli_fname, std::ios::binary);
    std::vector<char> file((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    if (file.size() < sizeof(Elf64_Ehdr)) return "";
    const Elf64_Ehdr *head     = (const Elf64_Ehdr *)file.data();
    const Elf64_Shdr *sections = (const Elf64_Shdr *)(file.data() + head->e_shoff);
    uint64_t          base     = head->e_type == ET_DYN ? (uint64_t)info.dli_fbase : 0;

    for (const Elf64_Shdr *s = sections; s < sections + head->e_shnum; s++) {
        if (s->sh_type != SHT_SYMTAB) continue;
        const Elf64_Sym *symbols = (const Elf64_Sym *)(file.data() + s->sh_offset);

        for (size_t i = 0; i < s->sh_size / sizeof(Elf64_Sym); i++)
            if (ELF64_ST_TYPE(symbols[i].st_info) == STT_FUNC &&
                base + symbols[i].st_value == (uint64_t)p)
                return file.data() + sections[s->sh_link].sh_offset + symbols[i].st_name;
    }
    return "";
}

const kernel *kernel_of(const simt_job &job)
{
    static std::string                            read; /* into: */
    static std::map<std::string, kernel>          kernels;
    static std::map<const void *, const kernel *> known;
    const char                                   *files = getenv("BATON_PTX");

    if (files == nullptr) return nullptr;
    if (read != files) {
        glob_t g;

        read = files;
        known.clear();
        kernels.clear();
        if (glob(files, 0, nullptr, &g) != 0) simt::die({files, 0}, "no such files (BATON_PTX)");
        for (size_t i = 0; i < g.gl_pathc; i++)
            read_module(g.gl_pathv[i], &kernels);
        globfree(&g);
    }
    const kernel *&k = known[job.kernel];

    if (k == nullptr) {
        std::string name = symbol_at(job.kernel);

        if (name.compare(0, 3, "_ZL") == 0) name.erase(2, 1); /* nvcc does not say it is static */
        if (kernels.count(name) == 0) simt::die({files, 0}, "no kernel %s", name.c_str());
        k = &kernels[name];
    }
    return k;
}

} // namespace ptx

/* tests/cuda/ptx/ptx.h - runs what nvcc makes of a kernel, its PTX, on the CPU, for tests.
 *
 * simt.h runs the kernels' source as the host's compiler reads it.  This runs the instructions that
 * nvcc made of it instead, under the same tests: where BATON_PTX names .ptx files (a pattern, as a
 * shell has them), every launch looks for its kernel there by its mangled name.  A warp is 32 lanes
 * of registers; lanes that stand at one instruction take it together.  Lanes that branch apart go
 * on in an order drawn at random, and meet where the code does or where a collective waits for
 * them.
 *
 * What ends the process, with the line of the PTX: an instruction that the table (instructions.cpp)
 * does not have; an access that is not aligned to its size, or to shared memory outside an array; a
 * collective whose mask names other lanes than those that come; a barrier that threads miss; two
 * accesses to the same bytes of shared memory, one of them a write, by threads between which there
 * is no barrier; an integer divided by 0; a block larger than its kernel says.
 *
 * Threads: one at a time. */
#ifndef BT_TESTS_CUDA_PTX_H
#define BT_TESTS_CUDA_PTX_H

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tests/cuda/simt.h"

namespace ptx
{

enum { WARP = 32, MAX_SLOTS = 14, FIRST_SHARED = 1024 /* a Hopper's own lie below */ };
enum : uint32_t { NONE = ~0u };

/* 32 lanes of a warp.  A value of 2, 4 or 8 bytes is an array of 32; a predicate a mask of lanes.
 */
struct warp {
    std::vector<char> registers;
    unsigned          first; /* thread */
    uint32_t          live, at_warp, at_block;
    uint32_t          exec; /* lanes that take the instruction now */
    uint32_t          pc[WARP];
    uint32_t          epoch; /* barriers of the whole warp so far */

    template <typename T> T *at(uint32_t slot) { return (T *)(registers.data() + slot); }
};

/* What an instruction does beside computing. */
enum effect { COMPUTES, BRANCHES, ENDS, MEETS_WARP, MEETS_BLOCK };

struct step;
struct instruction {
    /* Operands in order, vectors taken apart: h, w, d of 2, 4, 8 bytes, p predicate, x data of a
     * load or store, s address in shared memory, a any other, n number, l label. */
    std::string                               operands;
    std::function<void(warp &, const step &)> run;
    effect                                    does  = COMPUTES;
    int                                       mask  = -1; /* MEETS_WARP: its slot; else all lanes */
    uint32_t                                  bytes = 0;  /* of an element of a load or store */
};

/* An instruction of a kernel. */
struct step {
    const instruction *what;
    int                line;
    uint32_t           slot[MAX_SLOTS];
    int64_t            number[3];     /* offsets of addresses, numbers, in order */
    uint32_t           bytes;         /* of each register of a load or store */
    uint32_t           used;          /* a mask of the bytes that a load is for */
    uint32_t           guard;         /* predicate or NONE */
    bool               unless, joins; /* joins: a label stands before it */
    uint32_t           target;
};

struct constant {
    uint32_t    slot, bytes;
    uint64_t    value;
    std::string special; /* %tid.x ..., or empty */
};

struct range {
    uint32_t offset, bytes;
};

struct kernel {
    std::string           name, file;
    std::vector<step>     steps;
    std::vector<constant> constants;
    std::vector<range>    params, shared;
    uint32_t              register_bytes, max_threads, dynamic_at;
};

/* Of instructions.cpp; NULL: there is none of that name. */
const instruction *instruction_named(const std::string &name);
/* Reads a .ptx file into kernels by their names; ends the process where it cannot. */
void read_module(const std::string &path, std::map<std::string, kernel> *kernels);

/* ---- what instructions ask of the block (run.cpp) */

[[noreturn]] void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
enum access { READS, WRITES, ADDS /* atomically */ };
/* The bytes at an address in shared memory, of a lane of w. */
char *shared_at(warp &w, unsigned lane, uint32_t address, uint32_t bytes, access how);
/* At a generic one. */
char *memory_at(warp &w, unsigned lane, uint64_t address, uint32_t bytes, access how);
char *param_at(uint64_t offset, uint32_t bytes);
/* Shared memory as a generic address and whether an address is one. */
uint64_t generic_of_shared(uint64_t address);
bool     is_shared(uint64_t address);
void     copy_async(warp &w, unsigned lane, uint32_t to, uint64_t from, uint32_t valid_bytes);
void     copy_commit(warp &w);
void     copy_wait(warp &w, unsigned n_left);

/* ---- what simt.cpp asks */

/* The kernel of a launch, where BATON_PTX is set; else NULL. */
const kernel *kernel_of(const simt_job &job);
void          begin(const kernel *k, const simt_job &job);
void          run_block(void);
void          end(void);

} // namespace ptx
#endif

/* What runs PTX (ptx/ptx.h): kernels written by hand, wrong in one way each, and results that a
 * CPU's own instructions would not have. */
#include "tests/cuda/simt.h"

#include <cmath>
#include <cstdlib>
#include <string>

#include "device/cuda/gpu.cuh"
#include "tests/cuda/aborts.h"

enum { N_THREADS = 64 };

/* Whose body is that of PTX. */
static void kernel(uint32_t *out) { (void)out; }

static std::string g_body;
static uint32_t    g_out[N_THREADS];

/* %rd1: out + thread; %r1: thread; %r2: mem, 256 bytes; %r3: mem + thread. */
static void run(void)
{
    char  path[] = "/tmp/test_ptx_XXXXXX";
    int   fd     = mkstemp(path);
    FILE *f      = fd < 0 ? nullptr : fdopen(fd, "w");

    if (f == nullptr) abort();
    fprintf(f,
            ".version 9.0\n.target sm_90a\n.address_size 64\n.entry _Z6kernelPj(.param .u64 p) "
            ".maxntid 64, 1, 1\n{ .reg .pred %%p<4>; .reg .b16 %%rs<4>; .reg .b32 %%r<20>; "
            ".reg .f32 %%f<8>; .reg .b64 %%rd<6>; .shared .align 16 .b8 mem[256]; "
            "ld.param.u64 %%rd1, [p]; mov.u32 %%r1, %%tid.x; mul.wide.u32 %%rd2, %%r1, 4; "
            "add.s64 %%rd1, %%rd1, %%rd2; mov.u32 %%r2, mem; shl.b32 %%r3, %%r1, 2; "
            "add.s32 %%r3, %%r3, %%r2;\n%s\n$END: ret; }\n",
            g_body.c_str());
    fclose(f);
    setenv("BATON_PTX", path, 1);
    gpu_launch(kernel, 1, N_THREADS, 0, nullptr, (uint32_t *)g_out);
    unlink(path);
}

static void what_a_gpu_would_not_do_is_told(void)
{
    static const struct {
        const char *body, *says;
    } CASES[] = {
        {"frobnicate.u32 %r4, %r5;",                                                      "unknown instruction frobnicate.u32"},
        {"add.u32 %r4, %rd1, 1;",                                                         "of another size"                   },
        {"ld.shared.v4.u32 {%r4, %r5, %r6, %r7}, [%r2+4];",                               "which is not aligned"              },
        {"ld.shared.u32 %r4, [%r2+256];",                                                 "outside all shared arrays"         },
        {"cvt.u64.u32 %rd3, %r2; cvta.shared.u64 %rd3, %rd3; ld.global.u32 %r4, [%rd3];",
         "shared memory as global"                                                                                            },
        {"st.shared.u32 [%r3], %r1; xor.b32 %r4, %r3, 4; ld.shared.u32 %r5, [%r4];",
         "without a barrier between"                                                                                          },
        {"xor.b32 %r4, %r3, 4; ld.shared.u32 %r5, [%r4]; st.shared.u32 [%r3], %r1;",
         "without a barrier between"                                                                                          },
        {"st.shared.u32 [%r3], %r1; bar.warp.sync -1; xor.b32 %r4, %r3, 128; ld.shared.u32 %r5, "
         "[%r4];",                                                               "without a barrier between"         },
        {"shfl.sync.bfly.b32 %r4|%p1, %r1, 1, 31, 65535;",                                "come to a meeting of 0000ffff"     },
        {"setp.eq.s32 %p1, %r1, 5; @%p1 bra $END; bar.warp.sync -1;",
         "wait for others at a meeting"                                                                                       },
        {"setp.eq.s32 %p1, %r1, 5; @%p1 bra $END; bar.sync 0;",
         "a barrier that 1 of 64 threads never reach"                                                                         },
        {"setp.lt.u32 %p1, %r1, 32; @%p1 bar.sync 0; @!%p1 bar.red.or.pred %p2, 0, %p1;",
         "barriers of two kinds"                                                                                              },
        {"div.u32 %r4, %r1, 0;",                                                          "divided by 0"                      },
        {"and.b64 %rd3, %rd1, -256; add.s32 %r4, %r2, 0; setp.eq.s32 %p1, %r1, 0; @%p1 "
         "cp.async.cg.shared.global [%r4], [%rd3], 16, 0;",                      "copies that nobody waited for"     },
    };

    for (const auto &c : CASES) {
        g_body = c.body;
        EXPECT_ABORT(run, c.says);
    }
}

static void lanes_exchange_between_barriers(void)
{
    g_body =
        "st.shared.u32 [%r3], %r1; bar.sync 0; xor.b32 %r4, %r3, 252; ld.shared.u32 %r5, [%r4];"
        "setp.gt.u32 %p1, %r5, 40; @%p1 bra $HIGH; add.s32 %r5, %r5, 1000; $HIGH:"
        "shfl.sync.up.b32 %r6|%p2, %r5, 1, 0, -1; selp.b32 %r6, %r6, 7, %p2; bar.warp.sync -1;"
        "st.global.u32 [%rd1], %r6;";
    run();
    for (uint32_t i = 0; i < N_THREADS; i++) {
        uint32_t v = N_THREADS - i;

        EXPECT_EQ(g_out[i], i % 32 == 0 ? 7 : v > 40 ? v : v + 1000);
    }
}

/* From the definition: 4 exponent bits of bias 7, 3 bits; one NaN. */
static uint32_t e4m3(uint32_t v)
{
    int   e = (int)v >> 3 & 15, m = (int)v & 7;
    float f = e != 0 ? std::ldexp(1 + (float)m / 8, e - 7) : std::ldexp((float)m / 8, -6);

    return (v & 0x7f) == 0x7f ? 0x7fffffffu : __float_as_uint(v & 0x80 ? -f : f);
}

/* All values of a byte, and a function of each as the definition has it. */
static void numbers_are_a_gpus(void)
{
    g_body =
        "mov.u32 %r9, 0; $AGAIN: shl.b32 %r4, %r1, 2; add.s32 %r4, %r4, %r9; cvt.u16.u32 %rs1, "
        "%r4; {.reg .b32 both; .reg .b16 l, h; cvt.rn.f16x2.e4m3x2 both, %rs1; mov.b32 {l, h}, "
        "both; cvt.f32.f16 %f1, l;} st.shared.f32 [%r3], %f1; ld.shared.u32 %r5, [%r3];"
        "xor.b32 %r6, %r6, %r5; add.s32 %r9, %r9, 1; setp.lt.u32 %p1, %r9, 4; @%p1 bra $AGAIN;"
        "st.global.u32 [%rd1], %r6;";
    g_body = "mov.u32 %r6, 0;" + g_body;
    run();
    for (uint32_t i = 0; i < N_THREADS; i++) {
        uint32_t want = 0;

        for (uint32_t v = 4 * i; v < 4 * i + 4; v++)
            want ^= e4m3(v);
        EXPECT_EQ(g_out[i], want);
    }
    static const struct {
        const char *body;
        uint32_t    is;
    } CASES[] = {
        {"shl.b32 %r4, %r2, 32;",                                           0         },
        {"shr.s32 %r4, -8, 40;",                                            ~0u       },
        {"bfi.b32 %r4, 15, 0, 6, 2;",                                       0xc0      },
        {"bfi.b64 %rd3, 3, 0, 33, 2; mov.b64 {_, %r4}, %rd3;",              6         },
        {"st.shared.b32 [%r3], -2; ld.shared.b8 %r4, [%r3];",               0xfe      },
        {"mov.f32 %f1, 0f00800000; mul.rn.ftz.f32 %f1, %f1, 0fBF000000;",   0x80000000},
        {"mov.f32 %f1, 0f00400000; add.rn.ftz.f32 %f1, %f1, 0f00800000;",   0x00800000},
        {"mov.f32 %f1, 0fFFC00001; add.rn.ftz.f32 %f1, %f1, 0f00000000;",   0x7fffffff},
        {"max.ftz.f32 %f1, 0f80000000, 0f00000000;",                        0         },
        {"max.ftz.f32 %f1, 0f7FC00000, 0fC0000000;",                        0xc0000000},
        {"setp.neu.ftz.f32 %p1, 0f7FC00000, 0f0; selp.b32 %r4, 1, 2, %p1;", 1         },
        {"setp.eq.ftz.f32 %p1, 0f00000001, 0f0; selp.b32 %r4, 1, 2, %p1;",  1         },
        {"cvt.rn.bf16x2.f32 %r4, 0f3F808000, 0f3F818000;",                  0x3f803f82},
    };

    for (const auto &c : CASES) {
        bool is_float = strstr(c.body, "%f1") != nullptr;

        g_body = std::string(c.body) +
                 (is_float ? "st.global.f32 [%rd1], %f1;" : "st.global.u32 [%rd1], %r4;");
        run();
        EXPECT_EQ(g_out[N_THREADS - 1], c.is);
    }
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {
        BT_TEST(what_a_gpu_would_not_do_is_told),
        BT_TEST(lanes_exchange_between_barriers),
        BT_TEST(numbers_are_a_gpus),
    };

    return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
}

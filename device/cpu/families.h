/* device/cpu/families.h - the functions of each instruction set, and the tables that
 * families_<processor>.c makes of them.  A file mm_<isa>.c, rows_<isa>.c or widen_<isa>.c is
 * compiled for that set alone and may only be called after cpuid has said that the CPU has it. */
#ifndef BT_DEVICE_CPU_FAMILIES_H
#define BT_DEVICE_CPU_FAMILIES_H

#include "device/cpu/widen.h"

void bt_cpu_mm_dp2_scalar(const bt_cpu_mm *mm);
void bt_cpu_mm_dp2_avx2(const bt_cpu_mm *mm);
void bt_cpu_mm_dp2_avx512(const bt_cpu_mm *mm);
void bt_cpu_mm_dp2_avx512bf16(const bt_cpu_mm *mm);
void bt_cpu_mm_tile32_avx512(const bt_cpu_mm *mm);
void bt_cpu_mm_tile32_amx(const bt_cpu_mm *mm);
void bt_cpu_mm_tile32_amx_tiles(const bt_cpu_mm_tiles *mm);
void bt_cpu_mm_tile32_amx_pages(const bt_cpu_mm_pages *mm);
void bt_cpu_attend_amx(const bt_cpu_attend *a);
void bt_cpu_attend_pages_avx2(const bt_cpu_attend_pages *a);
void bt_cpu_attend_pages_avx512(const bt_cpu_attend_pages *a);
void bt_cpu_attend_pages_avx512bf16(const bt_cpu_attend_pages *a);
void bt_cpu_mm_dp2_neon(const bt_cpu_mm *mm);
void bt_cpu_attend_pages_neon(const bt_cpu_attend_pages *a);

#define BT_CPU_WIDEN_ARGS                                                    \
    const bt_cpu_narrow *from, uint32_t k0, uint32_t n_k, uint32_t n_blocks, \
        bt_cpu_wide_table *tables, bt_bf16 *out, size_t ld_out
void bt_cpu_widen_scalar(BT_CPU_WIDEN_ARGS);
void bt_cpu_widen_avx2(BT_CPU_WIDEN_ARGS);
void bt_cpu_widen_avx512(BT_CPU_WIDEN_ARGS);
void bt_cpu_widen_avx512vbmi(BT_CPU_WIDEN_ARGS);
void bt_cpu_widen_avx512bf16(BT_CPU_WIDEN_ARGS);
void bt_cpu_widen_neon(BT_CPU_WIDEN_ARGS);

extern const bt_cpu_row_kernels bt_cpu_rows_base, bt_cpu_rows_avx2, bt_cpu_rows_avx512,
    bt_cpu_rows_avx512bf16;

#define BT_CPU_BOTH_ROLES(fn)                           \
    {                                                   \
        [BT_ROLE_PROMPT] = fn, [BT_ROLE_GENERATED] = fn \
    }

/* Of this build's processor; best first. */
typedef struct {
    unsigned       needs; /* BT_CPU_... (cpuid.h) */
    bt_cpu_kernels table;
} bt_cpu_family;
extern const bt_cpu_family bt_cpu_families[];
extern const size_t        bt_cpu_n_families;

typedef struct {
    unsigned        needs;
    const char     *name;
    bt_cpu_widen_fn widen;
} bt_cpu_widen_set;
extern const bt_cpu_widen_set bt_cpu_widen_sets[];
extern const size_t           bt_cpu_n_widen_sets;

#endif

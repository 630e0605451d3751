/* device/cpu/families.h - the functions of each instruction set, from which kernels.c makes its
 * tables.  A file mm_<isa>.c or rows_<isa>.c is compiled for that set alone and may only be called
 * after cpuid has said that the CPU has it. */
#ifndef BT_DEVICE_CPU_FAMILIES_H
#define BT_DEVICE_CPU_FAMILIES_H

#include "device/cpu/kernels.h"

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

extern const bt_cpu_row_kernels bt_cpu_rows_sse2, bt_cpu_rows_avx2, bt_cpu_rows_avx512,
    bt_cpu_rows_avx512bf16;

#endif

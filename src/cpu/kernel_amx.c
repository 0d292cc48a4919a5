/* SPDX-License-Identifier: MIT */
/* Products of 16-bit matrices by AMX-BF16. Linux saves the tile registers only of processes that ask for it. */
#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE /* syscall */
#endif
#include "cpu/kernels.h"

#if defined(__x86_64__) && defined(__linux__)

#include <cpuid.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define TARGET

/* In assembly: the intrinsics of gcc 12 do not say which memory they read and write. Compilers leave tiles alone. */
#define NAME(x)      amx_##x
#define TILE_ZERO(t) __asm__ volatile("tilezero %%tmm" #t ::)
#define TILE_LOAD(t, from, stride)                                                                                     \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t ::"r"(from), "r"((ptrdiff_t)(stride)) : "memory")
#define TILE_STORE(t, to, stride)                                                                                      \
    __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)" ::"r"(to), "r"((ptrdiff_t)(stride)) : "memory")
#define TILE_ADD(c, a, b) __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::)
#include "cpu/kernel_amx_tmpl.h"

/* Palette 1: eight tiles of 16 rows of 64 bytes. */
typedef struct configuration {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} configuration;

static void begin(void)
{
    configuration tiles = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        tiles.row_bytes[i] = 64;
        tiles.rows[i] = 16;
    }
    __asm__ volatile("ldtilecfg %0" ::"m"(tiles));
}

static void end(void)
{
    __asm__ volatile("tilerelease" ::);
}

/* arch_prctl (asm/prctl.h, Linux 5.16): a process asks once, for all of its threads; again is no error. */
#define ARCH_REQUEST_PERMISSION 0x1023
#define XFEATURE_TILE_DATA      18

/* cpuid leaf 7, edx: AMX-TILE and AMX-BF16. */
#define AMX (1u << 24 | 1u << 22)

static bool permitted(void)
{
    return !syscall(SYS_arch_prctl, ARCH_REQUEST_PERMISSION, XFEATURE_TILE_DATA);
}

bool attune__cpu_matrix_amx(attune__cpu_matrix *matrix)
{
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & AMX) != AMX || !permitted() ||
        !attune__cpu_matrix_bf16(matrix))
        return false;
    matrix->name = "cpu_amx";
    matrix->multiply = amx_multiply;
    matrix->begin = begin;
    matrix->end = end;
    return true;
}

#else

bool attune__cpu_matrix_amx(attune__cpu_matrix *matrix)
{
    (void)matrix;
    return false;
}

#endif

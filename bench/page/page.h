/* SPDX-License-Identifier: MIT */
/* The page of attune report, before and after its data. embed.py writes the definitions. */
#ifndef BENCH_PAGE_PAGE_H
#define BENCH_PAGE_PAGE_H

#include <stddef.h>

extern const unsigned char page_before[], page_behind[];
extern const size_t page_before_size, page_behind_size;

#endif

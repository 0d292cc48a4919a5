/* SPDX-License-Identifier: MIT */
/* Strings of drivers, hosts and files as JSON, which is UTF-8. */
#ifndef BENCH_TIMING_JSON_TEXT_H
#define BENCH_TIMING_JSON_TEXT_H

#include <jansson.h>

/* A new string; bytes that are not UTF-8 become U+FFFD. NULL without memory, which jansson's setters pass on. */
json_t *json_text(const char *text);
/* A new number, or null where JSON has none: NaN and infinity. */
json_t *json_figure(double value);

#endif

/* SPDX-License-Identifier: MIT */
/* ASCII on a picture of 8-bit RGB, as dots of 5 x 7 with smooth edges. */
#ifndef BENCH_PROGRAM_FONT_H
#define BENCH_PROGRAM_FONT_H

#include <stdint.h>

#define FONT_WIDTH  6 /* dots from one character to the next */
#define FONT_HEIGHT 7

typedef struct canvas {
    uint8_t *pixels;
    uint32_t width, height;
} canvas;

/* Draws text whose top left corner is (x, y), with dots of `scale` pixels; other characters than ASCII are "?". */
void font_draw(canvas *c, double x, double y, double scale, const uint8_t colour[3], const char *text);

#endif

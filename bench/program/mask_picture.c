/* SPDX-License-Identifier: MIT */
#include "bench/program/mask_picture.h"

#include "bench/program/font.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Pixels around the blocks of a saved picture. */
#define LEFT       104
#define RIGHT      32
#define TOP        104
#define BOTTOM     112
#define NARROWEST  48  /* pixels of the shorter side of the blocks */
#define LEAST_SIDE 720 /* pixels of the picture's shorter side, for its text */
#define SVG_CELLS  512 /* on a side */
#define TICKS      8

static const uint8_t full[3] = {24, 48, 96}, partial[3] = {200, 216, 240}, empty[3] = {255, 255, 255};
static const uint8_t text_colour[3] = {32, 36, 44}, quiet_colour[3] = {96, 104, 118};

/* The cells of a plane, each of one block or more. */
typedef struct cells {
    uint8_t *pixels;
    uint32_t width, height;
    int64_t q_tokens, kv_tokens; /* of a cell; the last ones may have fewer */
} cells;

static bool read_cells(const mask_picture *p, uint32_t width, uint32_t height, cells *c)
{
    *c = (cells){.width = width, .height = height};
    attune_status status = attune_mask_draw_pixels(p->mask, p->batch, p->head, NULL, &c->width, &c->height);
    if (status == ATTUNE_OK) {
        c->pixels = malloc((size_t)c->width * c->height * 3);
        status = c->pixels ? attune_mask_draw_pixels(p->mask, p->batch, p->head, c->pixels, &c->width, &c->height)
                           : ATTUNE_OUT_OF_HOST_MEMORY;
    }
    if (status == ATTUNE_OK) {
        const int64_t q_blocks = (p->q_len + p->q_block - 1) / p->q_block;
        const int64_t kv_blocks = (p->kv_len + p->kv_block - 1) / p->kv_block;
        c->q_tokens = (q_blocks + c->height - 1) / c->height * p->q_block;
        c->kv_tokens = (kv_blocks + c->width - 1) / c->width * p->kv_block;
        return true;
    }
    cli_error("%s", c->pixels || status != ATTUNE_OUT_OF_HOST_MEMORY ? attune_last_error() : "out of memory");
    free(c->pixels);
    c->pixels = NULL;
    return false;
}

static const uint8_t *cell_at(const cells *c, uint32_t x, uint32_t y)
{
    return c->pixels + 3 * ((size_t)y * c->width + x);
}

/* The cell at the centre of pixel x of `count`, over `length` tokens: a last block that is shorter is drawn so. */
static uint32_t cell_of(uint32_t x, uint32_t count, int64_t length, int64_t tokens)
{
    return (uint32_t)(((double)x + 0.5) * (double)length / (double)count / (double)tokens);
}

/* ------------------------------------------------------------------------------------------------------------ words */

/* The lines above the blocks, and that of the axes. */
typedef struct words {
    char title[160], plane[160], density[160], cell[96];
} words;

static void describe(const mask_picture *p, const cells *c, words *w)
{
    (void)snprintf(w->title, sizeof w->title, "%s", p->text);
    (void)snprintf(w->plane, sizeof w->plane,
                   "batch %" PRId64 " of %" PRId64 ", head %" PRId64 " of %" PRId64 "; %" PRId64 " queries x %" PRId64
                   " keys",
                   p->batch, p->batches, p->head, p->heads, p->q_len, p->kv_len);
    (void)snprintf(w->density, sizeof w->density, "density %s%.3g %%, of blocks %.3g %% (all planes)",
                   p->exact ? "" : "about ", 100 * p->density, 100 * p->block_density);
    const int64_t across = c->kv_tokens / p->kv_block, down = c->q_tokens / p->q_block;
    if (across * down > 1)
        (void)snprintf(w->cell, sizeof w->cell, "a cell is %" PRId64 " x %" PRId64 " blocks of %u x %u", down, across,
                       p->q_block, p->kv_block);
    else
        (void)snprintf(w->cell, sizeof w->cell, "blocks of %u x %u", p->q_block, p->kv_block);
}

/* A power of two times 1, or the length, with at most `most` steps in it. */
static int64_t step_of(int64_t length, int64_t most)
{
    int64_t step = 1;
    while (length / step > most)
        step *= 2;
    return step;
}

/* --------------------------------------------------------------------------------------------------------- terminal */

typedef enum shade { EMPTY, PARTIAL, FULL } shade;

static shade shade_at(const cells *c, uint32_t x, uint32_t y)
{
    const uint8_t *pixel = cell_at(c, x, y);
    return !memcmp(pixel, empty, 3) ? EMPTY : !memcmp(pixel, full, 3) ? FULL : PARTIAL;
}

/* Two cells, one above the other. Without colour, half a character cannot be partial. */
static void print_pair(FILE *out, shade upper, shade lower, bool colour)
{
    static const int codes[] = {[PARTIAL] = 110, [FULL] = 26}; /* of the 256 colours */
    if (!colour)
        (void)fputs(upper == PARTIAL || lower == PARTIAL ? "\u2592"
                    : upper && lower                     ? "\u2588"
                    : upper                              ? "\u2580"
                    : lower                              ? "\u2584"
                                                         : " ",
                    out);
    else if (upper && lower)
        (void)fprintf(out, "\033[38;5;%d;48;5;%dm\u2580\033[0m", codes[upper], codes[lower]);
    else if (upper || lower)
        (void)fprintf(out, "\033[38;5;%dm%s\033[0m", codes[upper ? upper : lower], upper ? "\u2580" : "\u2584");
    else
        (void)fputc(' ', out);
}

/* "0", the middle and the end of an axis, over `width` characters. */
static void print_keys(FILE *out, int64_t length, uint32_t width)
{
    char line[256], number[32];
    const uint32_t space = width < sizeof line - 32 ? width : (uint32_t)sizeof line - 32;
    memset(line, ' ', sizeof line);
    (void)snprintf(number, sizeof number, "%" PRId64, length);
    const size_t end = strlen(number), at = space > end ? space - end : 2;
    line[0] = '0';
    memcpy(line + at, number, end);
    line[at + end] = '\0';
    (void)snprintf(number, sizeof number, "%" PRId64, length / 2);
    const size_t middle = space / 2 > strlen(number) / 2 ? space / 2 - strlen(number) / 2 : 0;
    if (length > 3 && middle > 2 && middle + strlen(number) + 2 < at)
        memcpy(line + middle, number, strlen(number));
    (void)fprintf(out, "%9s %s keys\n", "", line);
}

static shade half_at(const mask_picture *p, const cells *c, uint32_t x, uint32_t width, uint32_t y, uint32_t height)
{
    if (y >= height)
        return EMPTY;
    return shade_at(c, cell_of(x, width, p->kv_len, c->kv_tokens), cell_of(y, height, p->q_len, c->q_tokens));
}

static void print_border(FILE *out, const char *left, const char *right, uint32_t width)
{
    (void)fprintf(out, "%9s %s", "", left);
    for (uint32_t x = 0; x < width; x++)
        (void)fputs("\u2500", out);
    (void)fprintf(out, "%s\n", right);
}

/* `height` half-characters high. */
static void print_cells(FILE *out, const mask_picture *p, const cells *c, uint32_t width, uint32_t height, bool colour)
{
    const uint32_t lines = (height + 1) / 2;
    print_border(out, "\u250c", "\u2510", width);
    for (uint32_t line = 0; line < lines; line++) {
        const bool middle = p->q_len > 3 && lines > 6 && line == lines / 2;
        if (!line || middle || line + 1 == lines)
            (void)fprintf(out, "%9" PRId64 " \u2502",
                          middle ? (int64_t)(2.0 * line * (double)p->q_len / height)
                          : line ? p->q_len
                                 : 0);
        else
            (void)fprintf(out, "%9s \u2502", line == 1 ? "queries" : "");
        for (uint32_t x = 0; x < width; x++)
            print_pair(out, half_at(p, c, x, width, 2 * line, height), half_at(p, c, x, width, 2 * line + 1, height),
                       colour);
        (void)fputs("\u2502\n", out);
    }
    print_border(out, "\u2514", "\u2518", width);
}

bool mask_picture_print(const mask_picture *p, FILE *out, uint32_t columns, bool colour)
{
    cells c;
    words w;
    const uint32_t space = columns > 28 ? columns - 12 : 16;
    /* As many rows as columns; a long and low mask has fewer. */
    if (!read_cells(p, space, space, &c))
        return false;
    const uint32_t longer = c.width > c.height ? c.width : c.height, wanted = space < 48 ? space : 48;
    const uint32_t times = longer < wanted ? wanted / longer : 1;
    describe(p, &c, &w);
    print_keys(out, p->kv_len, c.width * times + 2);
    print_cells(out, p, &c, c.width * times, c.height * times, colour);
    (void)fprintf(out, "%9s ", "");
    if (colour)
        (void)fprintf(out, "\033[38;5;26m\u2588\033[0m full  \033[38;5;110m\u2588\033[0m partial  empty; %s\n", w.cell);
    else
        (void)fprintf(out, "\u2588 full  \u2592 partial  empty; %s\n", w.cell);
    (void)fprintf(out, "%9s %s\n", "", w.plane);
    free(c.pixels);
    return true;
}

/* ---------------------------------------------------------------------------------------------------- saved pictures
 */

/* Pixels of a saved picture. */
typedef struct layout {
    uint32_t width, height;  /* of the picture */
    uint32_t across, down;   /* of the blocks */
    int64_t q_step, kv_step; /* tokens between ticks */
} layout;

static layout arrange(const mask_picture *p)
{
    const double room_x = p->pixels - (LEFT + RIGHT), room_y = p->pixels - (TOP + BOTTOM);
    const double scale = fmin(room_x / (double)p->kv_len, room_y / (double)p->q_len);
    layout l = {.across = (uint32_t)fmax(NARROWEST, floor(scale * (double)p->kv_len)),
                .down = (uint32_t)fmax(NARROWEST, floor(scale * (double)p->q_len))};
    l.width = l.across + LEFT + RIGHT > LEAST_SIDE ? l.across + LEFT + RIGHT : LEAST_SIDE;
    l.height = l.down + TOP + BOTTOM;
    /* One side is as long as was asked for. */
    if (l.width < p->pixels && l.height < p->pixels)
        l.width = p->pixels;
    l.q_step = step_of(p->q_len, fmin(TICKS, l.down / 32.0) < 1 ? 1 : (int64_t)fmin(TICKS, l.down / 32.0));
    l.kv_step = step_of(p->kv_len, fmin(TICKS, l.across / 96.0) < 1 ? 1 : (int64_t)fmin(TICKS, l.across / 96.0));
    return l;
}

/* The tick after one: the last is the length, which replaces one that is nearer than two thirds of a step. */
static int64_t next_tick(int64_t at, int64_t length, int64_t step)
{
    const int64_t next = at + step;
    if (at == length)
        return length + 1;
    return 3 * (length - next) < 2 * step ? length : next;
}

static void fill(canvas *c, uint32_t x0, uint32_t y0, uint32_t width, uint32_t height, const uint8_t colour[3])
{
    for (uint32_t y = y0; y < y0 + height && y < c->height; y++)
        for (uint32_t x = x0; x < x0 + width && x < c->width; x++)
            memcpy(c->pixels + 3 * ((size_t)y * c->width + x), colour, 3);
}

static void frame(canvas *c, uint32_t x, uint32_t y, uint32_t width, uint32_t height)
{
    fill(c, x - 1, y - 1, width + 2, 1, quiet_colour);
    fill(c, x - 1, y + height, width + 2, 1, quiet_colour);
    fill(c, x - 1, y - 1, 1, height + 2, quiet_colour);
    fill(c, x + width, y - 1, 1, height + 2, quiet_colour);
}

static double width_of(const char *text, double scale)
{
    return (double)(FONT_WIDTH * strlen(text)) * scale;
}

/* As much of the text as fits, followed by "...". */
static void write_line(canvas *c, double x, double y, double scale, const uint8_t colour[3], const char *text)
{
    char line[512];
    (void)snprintf(line, sizeof line, "%s", text);
    const double space = (double)c->width - x - 8;
    size_t most = (size_t)(space / (FONT_WIDTH * scale));
    most = most < sizeof line ? most : sizeof line - 1;
    if (strlen(line) > most && most > 3)
        memcpy(line + most - 3, "...", 4);
    font_draw(c, x, y, scale, colour, line);
}

static void draw_ticks(canvas *c, const mask_picture *p, const layout *l)
{
    const double scale = 2;
    char number[32];
    for (int64_t at = 0; at <= p->kv_len; at = next_tick(at, p->kv_len, l->kv_step)) {
        const double x = LEFT + (double)l->across * (double)at / (double)p->kv_len;
        (void)snprintf(number, sizeof number, "%" PRId64, at);
        fill(c, (uint32_t)x - (at == p->kv_len), TOP + l->down + 1, 1, 6, quiet_colour);
        font_draw(c, x - width_of(number, scale) / 2 + 1, TOP + l->down + 12, scale, text_colour, number);
    }
    for (int64_t at = 0; at <= p->q_len; at = next_tick(at, p->q_len, l->q_step)) {
        const double y = TOP + (double)l->down * (double)at / (double)p->q_len;
        (void)snprintf(number, sizeof number, "%" PRId64, at);
        fill(c, LEFT - 7, (uint32_t)y - (at == p->q_len), 6, 1, quiet_colour);
        font_draw(c, LEFT - 12 - width_of(number, scale), y - FONT_HEIGHT * scale / 2, scale, text_colour, number);
    }
}

static void draw_words(canvas *c, const layout *l, const words *w)
{
    const struct {
        const uint8_t *colour;
        const char *name;
    } legend[] = {{full, "full"}, {partial, "partial"}, {empty, "empty"}};
    const double y = TOP + l->down + 74;
    double x = LEFT;
    write_line(c, LEFT, 16, width_of(w->title, 2.6) < c->width - LEFT - 8.0 ? 2.6 : 2, text_colour, w->title);
    write_line(c, LEFT, 46, 2, quiet_colour, w->plane);
    write_line(c, LEFT, 68, 2, quiet_colour, w->density);
    font_draw(c, LEFT + (l->across - width_of("keys", 2)) / 2, TOP + l->down + 38, 2, quiet_colour, "keys");
    font_draw(c, LEFT - 12 - width_of("queries", 2), TOP - 24, 2, quiet_colour, "queries");
    for (size_t i = 0; i < sizeof legend / sizeof legend[0]; i++) {
        fill(c, (uint32_t)x, (uint32_t)y, 14, 14, legend[i].colour);
        frame(c, (uint32_t)x, (uint32_t)y, 14, 14);
        font_draw(c, x + 22, y, 2, text_colour, legend[i].name);
        x += 22 + width_of(legend[i].name, 2) + 20;
    }
    write_line(c, x, y, 2, quiet_colour, w->cell);
}

bool mask_picture_png(const mask_picture *p, FILE *out)
{
    const layout l = arrange(p);
    canvas c = {malloc((size_t)l.width * l.height * 3), l.width, l.height};
    cells blocks = {0};
    words w;
    failure why = {{0}};
    bool ok = c.pixels != NULL;
    if (!ok)
        cli_error("out of memory");
    ok = ok && read_cells(p, l.across, l.down, &blocks);
    if (ok) {
        memset(c.pixels, 255, (size_t)l.width * l.height * 3);
        for (uint32_t y = 0; y < l.down; y++)
            for (uint32_t x = 0; x < l.across; x++)
                memcpy(c.pixels + 3 * ((size_t)(y + TOP) * c.width + x + LEFT),
                       cell_at(&blocks, cell_of(x, l.across, p->kv_len, blocks.kv_tokens),
                               cell_of(y, l.down, p->q_len, blocks.q_tokens)),
                       3);
        describe(p, &blocks, &w);
        frame(&c, LEFT, TOP, l.across, l.down);
        draw_ticks(&c, p, &l);
        draw_words(&c, &l, &w);
        ok = png_write(out, c.pixels, c.width, c.height, &why);
        if (!ok && !ferror(out))
            cli_error("%s", why.message);
    }
    free(blocks.pixels);
    free(c.pixels);
    return ok;
}

/* -------------------------------------------------------------------------------------------------------------- SVG */

static void write_escaped(const char *text, FILE *out)
{
    for (; *text; text++)
        if (*text == '&')
            (void)fputs("&amp;", out);
        else if (*text == '<')
            (void)fputs("&lt;", out);
        else if (*text == '>')
            (void)fputs("&gt;", out);
        else if ((unsigned char)*text >= ' ' && *text <= '~')
            (void)fputc(*text, out);
        else
            (void)fputc('?', out);
}

static void write_text(double x, double y, const char *kind, const char *text, FILE *out)
{
    (void)fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" class=\"%s\">", x, y, kind);
    write_escaped(text, out);
    (void)fputs("</text>\n", out);
}

static void write_tick(double x, double y, bool below, int64_t at, FILE *out)
{
    char number[32];
    (void)snprintf(number, sizeof number, "%" PRId64, at);
    (void)fprintf(out, "<path d=\"M%.1f %.1f%s\" stroke=\"#606876\"/>\n", x, y, below ? "v6" : "h-6");
    write_text(below ? x : x - 10, below ? y + 22 : y + 5, below ? "tick middle" : "tick end", number, out);
}

static void write_ticks(const mask_picture *p, const layout *l, FILE *out)
{
    for (int64_t at = 0; at <= p->kv_len; at = next_tick(at, p->kv_len, l->kv_step))
        write_tick(LEFT + (double)l->across * (double)at / (double)p->kv_len, TOP + (double)l->down, true, at, out);
    for (int64_t at = 0; at <= p->q_len; at = next_tick(at, p->q_len, l->q_step))
        write_tick(LEFT, TOP + (double)l->down * (double)at / (double)p->q_len, false, at, out);
}

/* A rectangle for each run of equal cells in a row. */
static void write_cells(const mask_picture *p, const cells *c, const layout *l, FILE *out)
{
    const double wide = (double)l->across / (double)p->kv_len, high = (double)l->down / (double)p->q_len;
    (void)fprintf(out, "<g transform=\"translate(%d %d) scale(%.9g %.9g)\" shape-rendering=\"crispEdges\">\n", LEFT,
                  TOP, wide, high);
    for (uint32_t y = 0; y < c->height; y++)
        for (uint32_t x = 0, end; x < c->width; x = end) {
            const uint8_t *const colour = cell_at(c, x, y);
            for (end = x + 1; end < c->width && !memcmp(cell_at(c, end, y), colour, 3);)
                end++;
            if (!memcmp(colour, empty, 3))
                continue;
            const int64_t left = x * c->kv_tokens, top = y * c->q_tokens;
            const int64_t right = end == c->width ? p->kv_len : end * c->kv_tokens;
            const int64_t low = y + 1 == c->height ? p->q_len : (y + 1) * c->q_tokens;
            (void)fprintf(out,
                          "<rect x=\"%" PRId64 "\" y=\"%" PRId64 "\" width=\"%" PRId64 "\" height=\"%" PRId64
                          "\" fill=\"#%02x%02x%02x\"/>\n",
                          left, top, right - left, low - top, colour[0], colour[1], colour[2]);
        }
    (void)fputs("</g>\n", out);
}

static void write_legend(const layout *l, const words *w, FILE *out)
{
    const struct {
        const uint8_t *colour;
        const char *name;
    } legend[] = {{full, "full"}, {partial, "partial"}, {empty, "empty"}};
    double x = LEFT, y = TOP + l->down + 74;
    for (size_t i = 0; i < sizeof legend / sizeof legend[0]; i++) {
        (void)fprintf(
            out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"14\" height=\"14\" fill=\"#%02x%02x%02x\" stroke=\"#606876\"/>\n",
            x, y, legend[i].colour[0], legend[i].colour[1], legend[i].colour[2]);
        write_text(x + 22, y + 12, "tick", legend[i].name, out);
        x += 44 + 8 * (double)strlen(legend[i].name);
    }
    write_text(x, y + 12, "quiet", w->cell, out);
}

bool mask_picture_svg(const mask_picture *p, FILE *out)
{
    const layout l = arrange(p);
    cells c;
    words w;
    if (!read_cells(p, l.across < SVG_CELLS ? l.across : SVG_CELLS, l.down < SVG_CELLS ? l.down : SVG_CELLS, &c))
        return false;
    describe(p, &c, &w);
    (void)fprintf(out,
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%u\" height=\"%u\" viewBox=\"0 0 %u %u\" "
                  "role=\"img\">\n<title>",
                  l.width, l.height, l.width, l.height);
    write_escaped(w.title, out);
    (void)fputs("</title>\n<style>text { font: 15px system-ui, \"DejaVu Sans\", sans-serif; fill: #20242c } "
                ".title { font-size: 20px; font-weight: 600 } .quiet { fill: #606876 } "
                ".middle { text-anchor: middle } .end { text-anchor: end }</style>\n"
                "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n",
                out);
    write_text(LEFT, 32, "title", w.title, out);
    write_text(LEFT, 58, "quiet", w.plane, out);
    write_text(LEFT, 80, "quiet", w.density, out);
    write_text(LEFT - 12, TOP - 12, "quiet end", "queries", out);
    write_text(LEFT + l.across / 2.0, TOP + l.down + 50.0, "quiet middle", "keys", out);
    write_cells(p, &c, &l, out);
    (void)fprintf(out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%u\" height=\"%u\" fill=\"none\" stroke=\"#606876\"/>\n",
                  LEFT - 0.5, TOP - 0.5, l.across + 1, l.down + 1);
    write_ticks(p, &l, out);
    write_legend(&l, &w, out);
    (void)fputs("</svg>\n", out);
    free(c.pixels);
    return true;
}

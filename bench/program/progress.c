/* SPDX-License-Identifier: MIT */
#include "bench/program/progress.h"

#include "bench/timing/clock.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define INTERVAL 0.1 /* seconds between lines */
#define ESTIMATE 3   /* seconds after which the time left is estimated */

progress progress_begin(void)
{
    return (progress){.terminal = isatty(STDERR_FILENO), .begin = clock_seconds(), .last = -1};
}

double progress_seconds(const progress *p)
{
    return clock_seconds() - p->begin;
}

/* "12 s", "3 min", "1.5 h". */
static void write_time(double seconds, char text[16])
{
    if (seconds < 100)
        (void)snprintf(text, 16, "%.0f s", seconds);
    else if (seconds < 5400)
        (void)snprintf(text, 16, "%.0f min", seconds / 60);
    else
        (void)snprintf(text, 16, "%.1f h", seconds / 3600);
}

static int columns(void)
{
    struct winsize window;
    return ioctl(STDERR_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 20 ? window.ws_col : 80;
}

void progress_show(progress *p, double done, double total, const char *format, ...)
{
    const double now = clock_seconds(), seconds = now - p->begin;
    char text[160], line[320], number[16];
    if (!p->terminal || (p->shown && now - p->last < INTERVAL))
        return;
    va_list list;
    va_start(list, format);
    (void)vsnprintf(text, sizeof text, format, list);
    va_end(list);
    int used = total > 0 ? snprintf(line, sizeof line, "[%.0f/%.0f] %s", done, total, text)
                         : snprintf(line, sizeof line, "%s", text);
    write_time(seconds, number);
    used += snprintf(line + used, sizeof line - (size_t)used, ", %s", number);
    if (total > done && done > 0 && seconds > ESTIMATE) {
        write_time(seconds / done * (total - done), number);
        (void)snprintf(line + used, sizeof line - (size_t)used, ", about %s left", number);
    }
    /* A line that wraps would stay. */
    (void)fprintf(stderr, "\r\033[K%.*s", columns() - 1, line);
    p->last = now;
    p->shown = true;
}

void progress_clear(progress *p)
{
    if (p->shown)
        (void)fputs("\r\033[K", stderr);
    p->shown = false;
}

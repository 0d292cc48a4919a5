/* SPDX-License-Identifier: MIT */
/* The text of a program: constants, then a file with its #includes resolved, since drivers know no files of ours. */
#include "opencl/program.h"

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "expr/print.h"
#include "opencl/sources.h"

#define DIRECTIVE "#include \""

typedef struct writer {
    const attune__opencl_text *from;
    attune__text *to;
    uint64_t included; /* bits of the sources; lists of constants are included as often as they are named */
} writer;

void attune__opencl_add_define(attune__opencl_text *text, const char *name, uint32_t value)
{
    if (text->define_count < ATTUNE__OPENCL_DEFINES)
        text->defines[text->define_count++] = (attune__opencl_define){name, value};
    else
        text->full = true;
}

static attune_status add_score(const attune__opencl_text *from, attune__text *to)
{
    ATTUNE__TRY(attune__ctext_function(from->score, "attune_score_of", to));
    if (from->gradient)
        attune__ctext_gradient(from->gradient, to);
    return ATTUNE_OK;
}

static attune_status add_file(writer *w, const char *name, size_t length);

static attune_status add_lines(writer *w, const char *line)
{
    while (*line) {
        const size_t length = strcspn(line, "\n"), prefix = strlen(DIRECTIVE);
        if (!strncmp(line, DIRECTIVE, prefix)) {
            const char *name = line + prefix;
            ATTUNE__TRY(add_file(w, name, strcspn(name, "\"")));
        } else {
            attune__text_add(w->to, "%.*s\n", (int)length, line);
        }
        line += length + (line[length] == '\n');
    }
    return ATTUNE_OK;
}

static attune_status add_mask(const attune__opencl_text *from, attune__text *to)
{
    ATTUNE__TRY(attune__ctext_function(from->mask, "attune_mask_of", to));
    if (from->serving || from->bounds)
        attune__ctext_mask_bounds(from->mask, "attune_mask_bounds_of", to);
    return ATTUNE_OK;
}

static attune_status add_file(writer *w, const char *name, size_t length)
{
    static const char mask[] = "mask_text.h", score[] = "score_text.h", list[] = "layout_";
    if (length == sizeof mask - 1 && !memcmp(name, mask, length))
        return w->from->mask ? add_mask(w->from, w->to) : ATTUNE_OK;
    if (length == sizeof score - 1 && !memcmp(name, score, length))
        return w->from->score ? add_score(w->from, w->to) : ATTUNE_OK;
    for (uint32_t i = 0; attune__opencl_sources[i].name; i++) {
        const attune__opencl_source *source = &attune__opencl_sources[i];
        if (strlen(source->name) != length || memcmp(source->name, name, length))
            continue;
        if (w->included >> i & 1 && strncmp(name, list, sizeof list - 1))
            return ATTUNE_OK;
        w->included |= UINT64_C(1) << i;
        return add_lines(w, source->text);
    }
    return attune__fail(ATTUNE_INTERNAL, "%.*s is no kernel source of this build", (int)length, name);
}

/* The list of an expression's captures. */
static void add_captures(const attune_expr *expr, const char *name, attune__text *to)
{
    attune__text_add(to, "#define %s(X)", name);
    for (uint32_t i = 0; i < expr->symbol_count; i++)
        if (expr->symbols[i].kind == ATTUNE_SYMBOL_CAPTURE)
            attune__text_add(to, " X(%u)", i);
    attune__text_add(to, "\n");
}

static attune_status add_text(const attune__opencl_text *from, attune__text *to)
{
    writer w = {.from = from, .to = to};
    if (from->host)
        attune__text_add(to, "#define ATTUNE_HOST\n");
    if (from->fma)
        attune__text_add(to, "#define ATTUNE_FMA\n");
    for (uint32_t i = 0; i < from->define_count; i++)
        attune__text_add(to, "#define %s %uu\n", from->defines[i].name, from->defines[i].value);
    if (from->serving)
        attune__text_add(to, "#define SERVING\n");
    if (from->mask)
        attune__text_add(to, "#define ATTUNE_HAS_MASK\n");
    if (from->mask && from->bounds)
        attune__text_add(to, "#define ATTUNE_HAS_BOUNDS\n");
    if (from->mask && from->serving)
        add_captures(from->mask, "ATTUNE_MASK_CAPTURES", to);
    if (from->score) {
        attune__text_add(to, "#define ATTUNE_HAS_SCORE\n");
        add_captures(from->score, "ATTUNE_SCORE_CAPTURES", to);
    }
    return add_file(&w, from->file, strlen(from->file));
}

attune_status attune__opencl_text_make(const attune_allocator *allocator, const attune__opencl_text *text,
                                       char **source)
{
    size_t size;
    if (text->full)
        return attune__fail(ATTUNE_INTERNAL, "%s has more than %d constants", text->file, ATTUNE__OPENCL_DEFINES);
    attune__text out = attune__text_begin(NULL, 0);
    ATTUNE__TRY(add_text(text, &out));
    attune__text_end(&out, &size);
    char *made = attune__alloc(allocator, size, 1);
    if (!made)
        return ATTUNE_OUT_OF_HOST_MEMORY;
    out = attune__text_begin(made, size);
    const attune_status status = add_text(text, &out);
    if (status == ATTUNE_OK)
        *source = made;
    else
        attune__free(allocator, made);
    return status;
}

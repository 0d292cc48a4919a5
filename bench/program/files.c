/* SPDX-License-Identifier: MIT */
#include "bench/program/files.h"

#include "bench/program/output.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool given(const char *text)
{
    return text && *text;
}

bool files_given(const file_options *f)
{
    const char *const all[] = {f->q,           f->k,        f->v,      f->mask,    f->score,
                               f->scale,       f->sinks,    f->kv_len, f->q_start, f->pages,
                               f->pages_start, f->kv_first, f->tree,   f->count,   f->head_dim_v};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (all[i])
            return true;
    return f->captures.count || f->parameters.count;
}

bool files_serve(const file_options *f)
{
    return given(f->kv_len);
}

/* Reads a tensor in the wanted dtype; 0 keeps the file's. `rank` 0 = any. */
static bool read_tensor(const char *option, const char *path, attune_dtype dtype, uint32_t rank, array *out)
{
    failure why;
    array file;
    bool good = npy_read(path, &file, &why);
    if (!good) {
        cli_error("%s: %s", option, why.message);
        return false;
    }
    if (rank && file.rank != rank) {
        cli_error("%s: %s has rank %u, expected %u%s", option, path, file.rank, rank,
                  rank == 4 ? ": batch, heads, length, head_dim" : "");
        good = false;
    } else if (!dtype || dtype == file.dtype) {
        *out = file;
        return true;
    } else if (!array_convert(&file, dtype, out, &why)) {
        cli_error("%s: %s", option, why.message);
        good = false;
    }
    array_free(&file);
    return good;
}

/* Integers of any width as i32. Words of bits may be past 2^31. */
static bool read_integers(const char *option, const char *path, bool bits, array *out)
{
    failure why;
    array file = {0};
    const bool good = npy_read_integers(path, INT32_MIN, bits ? UINT32_MAX : INT32_MAX, &file, &why) &&
                      array_create(out, ATTUNE_I32, file.rank, file.size, &why);
    for (int64_t i = 0; good && i < array_count(&file); i++)
        ((uint32_t *)out->data)[i] = (uint32_t)((const int64_t *)file.data)[i];
    array_free(&file);
    if (!good)
        cli_error("%s: %s", option, why.message);
    return good;
}

static bool read_batch(const file_options *f, serving *s)
{
    const struct {
        const char *option, *path;
        array *to;
    } all[] = {{"--kv-len", f->kv_len, &s->kv_len},       {"--q-start", f->q_start, &s->q_start},
               {"--pages", f->pages, &s->pages},          {"--pages-start", f->pages_start, &s->pages_start},
               {"--kv-first", f->kv_first, &s->kv_first}, {"--tree", f->tree, &s->tree},
               {"--count", f->count, &s->count}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (!given(all[i].path))
            continue;
        if (!files_serve(f)) {
            cli_error("%s requires --kv-len, the keys of each sequence in a cache", all[i].option);
            return false;
        }
        if (!read_integers(all[i].option, all[i].path, all[i].to == &s->tree, all[i].to))
            return false;
    }
    return true;
}

static bool read_tensors(const file_options *f, attune_dtype dtype, attune_dtype kv_dtype, serving *s)
{
    const uint32_t rank = files_serve(f) ? 0 : 4;
    if ((given(f->head_dim_v) && !cli_integer("--head-dim-v", f->head_dim_v, 8, 512, &s->head_dim_v)) ||
        !read_tensor("--q", f->q, dtype, rank, &s->a.q) ||
        !read_tensor("--k", f->k, kv_dtype ? kv_dtype : dtype, rank, &s->a.k) ||
        (given(f->v) && !read_tensor("--v", f->v, kv_dtype ? kv_dtype : dtype, rank, &s->a.v)))
        return false;
    if (!files_serve(f) && s->a.k.dtype != s->a.v.dtype) {
        cli_error("k and v are %s and %s: give --kv-dtype or --dtype to convert them",
                  attune_dtype_string(s->a.k.dtype), attune_dtype_string(s->a.v.dtype));
        return false;
    }
    const attune_dtype real = s->a.q.dtype == ATTUNE_F64 ? ATTUNE_F64 : ATTUNE_F32;
    return !given(f->sinks) || read_tensor("--sinks", f->sinks, real, 1, &s->a.sinks);
}

static bool read_expressions(attune_instance *instance, const file_options *f, bindings *names, serving *s)
{
    const char *const mask = f->mask ? f->mask : "", *const score = f->score ? f->score : "";
    if (!cli_bindings_load(names, &f->captures, &f->parameters, NULL) || !cli_bindings_used(names, mask, score))
        return false;
    cli_bindings_infer(names, ATTUNE_EXPR_MASK, mask);
    cli_bindings_infer(names, ATTUNE_EXPR_SCORE, score);
    if (names->capture_count > ATTUNE_EXPR_MAX_SYMBOLS || names->parameter_count > ATTUNE_EXPR_MAX_SYMBOLS) {
        cli_error("more than %d captures or parameters, the limit", ATTUNE_EXPR_MAX_SYMBOLS);
        return false;
    }
    if (!cli_expr(instance, ATTUNE_EXPR_MASK, mask, names, &s->a.mask) ||
        !cli_expr(instance, ATTUNE_EXPR_SCORE, score, names, &s->a.score) || !cli_bindings_complete(names, s->a.mask) ||
        !cli_bindings_complete(names, s->a.score))
        return false;
    s->a.capture_count = names->capture_count;
    s->a.parameter_count = names->parameter_count;
    memcpy(s->a.captures, names->captures, s->a.capture_count * sizeof *s->a.captures);
    memcpy(s->a.parameters, names->parameters, s->a.parameter_count * sizeof *s->a.parameters);
    return true;
}

bool files_complete(const file_options *f)
{
    if (!given(f->q) || !given(f->k)) {
        cli_error("%s is missing: an NPY file [batch, heads, length, head_dim]", !given(f->q) ? "--q" : "--k");
        return false;
    }
    if (!given(f->v) != given(f->head_dim_v)) {
        cli_error(given(f->v) ? "--head-dim-v is for calls without --v, whose values are part of k"
                              : "--v is missing: an NPY file, or --head-dim-v where the values are part of k");
        return false;
    }
    if (!given(f->v) && !files_serve(f)) {
        cli_error("--head-dim-v requires --kv-len: v is a part of k in a cache alone");
        return false;
    }
    return true;
}

bool files_spared(const file_options *f, const output *outputs, size_t count)
{
    const struct {
        const char *option, *path;
    } all[] = {{"--q", f->q},
               {"--k", f->k},
               {"--v", f->v},
               {"--sinks", f->sinks},
               {"--kv-len", f->kv_len},
               {"--q-start", f->q_start},
               {"--pages", f->pages},
               {"--pages-start", f->pages_start},
               {"--kv-first", f->kv_first},
               {"--tree", f->tree},
               {"--count", f->count}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (!outputs_spare(outputs, count, all[i].option, all[i].path))
            return false;
    return outputs_spare_list(outputs, count, "--capture", &f->captures, true);
}

bool files_load(attune_instance *instance, const file_options *f, attune_dtype dtype, attune_dtype kv_dtype,
                bindings *names, serving *s)
{
    failure why;
    if (!read_tensors(f, dtype, kv_dtype, s) || !read_batch(f, s) ||
        !cli_scale(given(f->scale) ? f->scale : "", &s->a.scale) || !read_expressions(instance, f, names, s))
        return false;
    if (!files_serve(f) || serving_check(s, &why))
        return true;
    cli_error("%s", why.message);
    return false;
}

void files_free(serving *s)
{
    attune_expr_destroy(s->a.mask);
    attune_expr_destroy(s->a.score);
    serving_free(s);
}

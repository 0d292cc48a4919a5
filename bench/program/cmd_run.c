/* SPDX-License-Identifier: MIT */
/* attune run: attention on NPY files. Files are written after everything is computed. */
#include "bench/program/cli.h"

#include "bench/program/output.h"
#include "tests/oracle/reference.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OUTPUTS 3

typedef struct run_options {
    const char *q, *k, *v, *mask, *score, *scale, *o, *lse, *row_max, *device, *dtype, *kv_dtype, *o_dtype, *block,
        *kernel_options;
} run_options;

/* Reads q, k or v in the wanted dtype; 0 keeps the file's. */
static bool read_input(const char *option, const char *path, attune_dtype dtype, array *out)
{
    failure why;
    array file;
    if (!npy_read(path, &file, &why)) {
        cli_error("%s: %s", option, why.message);
        return false;
    }
    bool ok = true;
    if (file.rank != 4) {
        cli_error("%s: %s has rank %u, expected 4: batch, heads, length, head_dim", option, path, file.rank);
        ok = false;
    } else if (dtype && dtype != file.dtype) {
        ok = array_convert(&file, dtype, out, &why);
        if (!ok)
            cli_error("%s: %s", option, why.message);
    } else {
        *out = file;
        return true;
    }
    array_free(&file);
    return ok;
}

/* The results, in the order of the outputs. */
typedef struct results {
    array o, lse, row_max;
    attune_dtype dtypes[OUTPUTS];
} results;

static bool write_result(void *user, size_t index, FILE *stream)
{
    const results *r = user;
    const array *const all[OUTPUTS] = {&r->o, &r->lse, &r->row_max};
    failure why;
    array narrow;
    if (!array_convert(all[index], r->dtypes[index], &narrow, &why)) {
        cli_error("%s", why.message);
        return false;
    }
    const bool ok = npy_write(stream, &narrow);
    array_free(&narrow);
    return ok;
}

static int run(attune_instance *instance, const run_options *o, const attention *a, attention_run *job, output *outputs)
{
    cli_devices devices;
    attune_status status = cli_devices_open(instance, o->device, &devices);
    if (status != ATTUNE_OK)
        return cli_exit_of(status);
    if (devices.count != 1) {
        cli_error("--device is \"%s\", %u devices: expected one", o->device, devices.count);
        cli_devices_close(&devices);
        return EXIT_USAGE;
    }
    const attune_dtype rows = a->q.dtype == ATTUNE_F64 ? ATTUNE_F64 : ATTUNE_F32;
    results r = {.dtypes = {attention_o_dtype(a), rows, rows}};
    job->o = &r.o;
    job->lse = *o->lse ? &r.lse : NULL;
    job->row_max = *o->row_max ? &r.row_max : NULL;
    status = attention_forward(instance, devices.device[0], a, job);
    int code = cli_exit_of(status);
    if (status != ATTUNE_OK)
        cli_error("%s", attune_last_error());
    else if (!outputs_write(outputs, OUTPUTS, write_result, &r))
        code = EXIT_FAILED;
    array_free(&r.o);
    array_free(&r.lse);
    array_free(&r.row_max);
    cli_devices_close(&devices);
    return code;
}

int cmd_run(int argc, char **argv)
{
    run_options o = {"", "", "", "", "", "", "", "", "", "cpu", "", "", "", "", ""};
    cli_list captures = {0}, parameters = {0}, packs = {0};
    const cli_option options[] = {
        {"--q", "FILE.npy", "queries [batch, heads, length, head_dim]", &o.q, NULL, NULL},
        {"--k", "FILE.npy", "keys [batch or 1, kv heads, length, head_dim]", &o.k, NULL, NULL},
        {"--v", "FILE.npy", "values [batch or 1, kv heads, length, head_dim_v]", &o.v, NULL, NULL},
        {"--mask", "EXPR", "mask expression; none if not given", &o.mask, NULL, NULL},
        {"--score", "EXPR", "score expression; none if not given", &o.score, NULL, NULL},
        {"--capture", "NAME=FILE.npy", "a capture's data; repeat for more", NULL, NULL, &captures},
        {"--param", "NAME=VALUE", "a parameter's value; repeat for more", NULL, NULL, &parameters},
        {"--scale", "X", "of q k^T; 1/sqrt(head_dim) if not given", &o.scale, NULL, NULL},
        {"--out", "FILE.npy", "where O goes", &o.o, NULL, NULL},
        {"--lse", "FILE.npy", "where LSE goes", &o.lse, NULL, NULL},
        {"--row-max", "FILE.npy", "output for row maxima", &o.row_max, NULL, NULL},
        {"--device", "ID", "cpu, vulkan:0, ...", &o.device, NULL, NULL},
        {"--dtype", "TYPE", "compute in f32, f16, bf16 or f64; that of the files if not given", &o.dtype, NULL, NULL},
        {"--kv-dtype", "TYPE", "type of k and v, if it differs from --dtype", &o.kv_dtype, NULL, NULL},
        {"--o-dtype", "TYPE", "type of o, if it differs from q", &o.o_dtype, NULL, NULL},
        {"--block", "Q[,KV]", "block size of the mask (default: 128)", &o.block, NULL, NULL},
        {"--kernel-options", "JSON", "forced options, {\"BLOCK_M\": 64}", &o.kernel_options, NULL, NULL},
        {"--pack", "FILE", "kernels made by attune compile; repeat for more", NULL, NULL, &packs},
    };
    cli_result parsed = cli_parse("run --q Q.npy --k K.npy --v V.npy --out O.npy [OPTIONS]", options,
                                  sizeof options / sizeof options[0], argc, argv, NULL);
    if (parsed != CLI_GO)
        return parsed == CLI_HELPED ? EXIT_GOOD : EXIT_USAGE;
    attune_dtype dtype = (attune_dtype)0, kv_dtype = (attune_dtype)0;
    int64_t block[2] = {0, 0};
    attune_kernel_options storage;
    attention a = {0};
    attention_run job = {0};
    attune_instance *instance = NULL;
    bindings *names = calloc(1, sizeof *names);
    output outputs[OUTPUTS] = {{.option = "--out", .path = o.o},
                               {.option = "--lse", .path = o.lse},
                               {.option = "--row-max", .path = o.row_max}};
    int code = EXIT_USAGE;
    if (!*o.q || !*o.k || !*o.v) {
        cli_error("%s is missing: an NPY file [batch, heads, length, head_dim]", !*o.q ? "--q" : !*o.k ? "--k" : "--v");
        goto done;
    }
    if (!*o.o && !*o.lse && !*o.row_max) {
        cli_error("no output: give --out, --lse or --row-max");
        goto done;
    }
    if (*o.block && !*o.mask) {
        cli_error("--block requires --mask");
        goto done;
    }
    if (!outputs_find(outputs, OUTPUTS))
        goto done;
    if (!names || !cli_optional_dtype("--dtype", o.dtype, &dtype) ||
        !cli_optional_dtype("--kv-dtype", o.kv_dtype, &kv_dtype) ||
        !cli_optional_dtype("--o-dtype", o.o_dtype, &a.o_dtype) ||
        (*o.block && !cli_pair("--block", o.block, 16, 1024, block, 0)) ||
        !cli_kernel_options(o.kernel_options, &storage, &job.options) || !read_input("--q", o.q, dtype, &a.q) ||
        !read_input("--k", o.k, kv_dtype ? kv_dtype : dtype, &a.k) ||
        !read_input("--v", o.v, kv_dtype ? kv_dtype : dtype, &a.v) || !cli_scale(o.scale, &a.scale) ||
        !cli_bindings_load(names, &captures, &parameters, NULL))
        goto done;
    if (!cli_bindings_used(names, o.mask, o.score)) {
        bindings_free(names);
        goto done;
    }
    if (a.k.dtype != a.v.dtype) {
        cli_error("k and v are %s and %s: give --kv-dtype or --dtype to convert them", attune_dtype_string(a.k.dtype),
                  attune_dtype_string(a.v.dtype));
        bindings_free(names);
        goto done;
    }
    job.mask_q_block = (uint32_t)block[0];
    job.mask_kv_block = (uint32_t)block[1];
    cli_bindings_infer(names, ATTUNE_EXPR_MASK, o.mask);
    cli_bindings_infer(names, ATTUNE_EXPR_SCORE, o.score);
    if (cli_instance(NULL, &instance) != ATTUNE_OK) {
        cli_error("%s", attune_last_error());
    } else if (names->capture_count > ATTUNE_EXPR_MAX_SYMBOLS || names->parameter_count > ATTUNE_EXPR_MAX_SYMBOLS) {
        cli_error("more than %d captures or parameters, the limit", ATTUNE_EXPR_MAX_SYMBOLS);
    } else if (cli_expr(instance, ATTUNE_EXPR_MASK, o.mask, names, &a.mask) &&
               cli_expr(instance, ATTUNE_EXPR_SCORE, o.score, names, &a.score) &&
               cli_bindings_complete(names, a.mask) && cli_bindings_complete(names, a.score)) {
        a.capture_count = names->capture_count;
        a.parameter_count = names->parameter_count;
        memcpy(a.captures, names->captures, a.capture_count * sizeof *a.captures);
        memcpy(a.parameters, names->parameters, a.parameter_count * sizeof *a.parameters);
        const attune_status loaded = cli_packs_load(instance, &packs);
        code = loaded == ATTUNE_OK ? run(instance, &o, &a, &job, outputs) : cli_exit_of(loaded);
    }
    bindings_free(names);
done:
    outputs_drop(outputs, OUTPUTS);
    attune_expr_destroy(a.mask);
    attune_expr_destroy(a.score);
    attune_instance_destroy(instance);
    array_free(&a.q);
    array_free(&a.k);
    array_free(&a.v);
    free(names);
    return code;
}

/* SPDX-License-Identifier: MIT */
/* attune run: attention on NPY files. Files are written after everything is computed. */
#include "bench/program/files.h"
#include "bench/program/output.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OUTPUTS 3

typedef struct run_options {
    file_options files;
    const char *o, *lse, *row_max, *device, *dtype, *kv_dtype, *o_dtype, *block, *kernel_options;
} run_options;

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

static int run(attune_instance *instance, const run_options *o, const serving *s, const attention_run *how,
               output *outputs)
{
    const attention *a = &s->a;
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
    attention_run job = *how;
    job.o = &r.o;
    job.lse = *o->lse ? &r.lse : NULL;
    job.row_max = *o->row_max ? &r.row_max : NULL;
    status = files_serve(&o->files) ? serving_forward(devices.device[0], s, job.options, job.o, job.lse, job.row_max)
                                    : attention_forward(instance, devices.device[0], a, &job);
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
    run_options o = {.o = "",
                     .lse = "",
                     .row_max = "",
                     .device = "cpu",
                     .dtype = "",
                     .kv_dtype = "",
                     .o_dtype = "",
                     .block = "",
                     .kernel_options = ""};
    cli_list packs = {0};
    const cli_option options[] = {
        FILE_OPTIONS(o.files),
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
    cli_result parsed = cli_parse("attune run --q Q.npy --k K.npy --v V.npy --out O.npy [OPTIONS]", options,
                                  sizeof options / sizeof options[0], argc, argv, NULL);
    if (parsed != CLI_GO)
        return parsed == CLI_HELPED ? EXIT_GOOD : EXIT_USAGE;
    attune_dtype dtype = (attune_dtype)0, kv_dtype = (attune_dtype)0;
    int64_t block[2] = {0, 0};
    attune_kernel_options storage;
    serving s = {.head_dim_v = 0};
    attention_run job = {0};
    attune_instance *instance = NULL;
    bindings *names = calloc(1, sizeof *names);
    output outputs[OUTPUTS] = {{.option = "--out", .path = o.o},
                               {.option = "--lse", .path = o.lse},
                               {.option = "--row-max", .path = o.row_max}};
    int code = EXIT_USAGE;
    if (!files_complete(&o.files))
        goto done;
    if (!*o.o && !*o.lse && !*o.row_max) {
        cli_error("no output: give --out, --lse or --row-max");
        goto done;
    }
    if (*o.block && (!o.files.mask || !*o.files.mask || files_serve(&o.files))) {
        cli_error(files_serve(&o.files) ? "--block is of block masks, which calls over a cache (--kv-len) have not"
                                        : "--block requires --mask");
        goto done;
    }
    if (!outputs_find(outputs, OUTPUTS) || !files_spared(&o.files, outputs, OUTPUTS) ||
        !outputs_spare_list(outputs, OUTPUTS, "--pack", &packs, false))
        goto done;
    if (!names || !cli_optional_dtype("--dtype", o.dtype, &dtype) ||
        !cli_optional_dtype("--kv-dtype", o.kv_dtype, &kv_dtype) ||
        !cli_optional_dtype("--o-dtype", o.o_dtype, &s.a.o_dtype) ||
        (dtype && !cli_dtypes_agree(dtype, kv_dtype, s.a.o_dtype, false)) ||
        (*o.block && !cli_pair("--block", o.block, 16, 1024, block, 0)) ||
        !cli_kernel_options(o.kernel_options, &storage, &job.options))
        goto done;
    job.mask_q_block = (uint32_t)block[0];
    job.mask_kv_block = (uint32_t)block[1];
    if (cli_instance(NULL, &instance) != ATTUNE_OK) {
        cli_error("%s", attune_last_error());
    } else if (files_load(instance, &o.files, dtype, kv_dtype, names, &s)) {
        const attune_status loaded = cli_packs_load(instance, &packs);
        code = loaded == ATTUNE_OK ? run(instance, &o, &s, &job, outputs) : cli_exit_of(loaded);
    }
    bindings_free(names);
done:
    outputs_drop(outputs, OUTPUTS);
    files_free(&s);
    attune_instance_destroy(instance);
    free(names);
    return code;
}

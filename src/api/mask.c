/* SPDX-License-Identifier: MIT */
/* Block masks: argument checks, and uploads to devices. */
#include "api/api.h"

#include <string.h>

/* Indices of the q x kv plane are i32 in expressions and kernels. */
#define MAX_LENGTH INT32_MAX

static attune_status check_length(const char *name, int64_t value, int64_t *out)
{
    if (value < 0 || value > MAX_LENGTH)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "desc.%s is %lld, expected 1 to %d", name, (long long)value,
                            MAX_LENGTH);
    *out = value ? value : 1;
    return ATTUNE_OK;
}

static attune_status check_block(const char *name, uint32_t value, uint32_t *out)
{
    *out = value ? value : 128;
    if (*out < 16 || *out > 1024 || *out % 16)
        return attune__fail(ATTUNE_INVALID_ARGUMENT,
                            "desc.%s is %u, expected a multiple of 16 from 16 to 1024, or 0 for 128", name, value);
    return ATTUNE_OK;
}

/* With `limited`, the description may have progress and max_work. */
static attune_status read_desc(const attune_mask_desc *given, bool limited, attune_mask_desc *desc)
{
    ATTUNE__TRY(attune__desc_read(desc, sizeof *desc, given, offsetof(attune_mask_desc, progress), "desc"));
    if (!limited && (desc->progress || desc->progress_user || desc->max_work))
        return attune__fail(ATTUNE_INVALID_ARGUMENT,
                            "desc.%s is set, but only attune_mask_create has progress and a limit: leave it 0",
                            desc->max_work ? "max_work" : "progress");
    if (!desc->q_len || !desc->kv_len)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "desc.%s is 0, expected at least 1",
                            desc->q_len ? "kv_len" : "q_len");
    ATTUNE__TRY(check_length("q_len", desc->q_len, &desc->q_len));
    ATTUNE__TRY(check_length("kv_len", desc->kv_len, &desc->kv_len));
    ATTUNE__TRY(check_length("batch", desc->batch, &desc->batch));
    ATTUNE__TRY(check_length("heads", desc->heads, &desc->heads));
    if (!desc->kv_heads)
        desc->kv_heads = desc->heads;
    if (desc->kv_heads < 1 || desc->kv_heads > desc->heads || desc->heads % desc->kv_heads)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "desc.kv_heads is %lld, which does not divide heads %lld",
                            (long long)desc->kv_heads, (long long)desc->heads);
    if (desc->kv_total ? desc->kv_start < 0 || desc->kv_total > MAX_LENGTH || desc->kv_start > desc->kv_total ||
                             desc->kv_len > desc->kv_total - desc->kv_start
                       : desc->kv_start != 0)
        return attune__fail(ATTUNE_INVALID_ARGUMENT,
                            "desc.kv_start is %lld, kv_len %lld and kv_total %lld: expected a segment within kv_total, "
                            "itself at most %d, or both 0",
                            (long long)desc->kv_start, (long long)desc->kv_len, (long long)desc->kv_total, MAX_LENGTH);
    ATTUNE__TRY(check_block("q_block", desc->q_block, &desc->q_block));
    return check_block("kv_block", desc->kv_block, &desc->kv_block);
}

static attune_status check_mask_expr(const attune_expr *expr)
{
    if (expr->kind != ATTUNE_EXPR_MASK)
        return attune__fail(ATTUNE_INVALID_ARGUMENT,
                            "expr is a score expression, expected a mask: create it with ATTUNE_EXPR_MASK");
    return ATTUNE_OK;
}

/* Returns the expression that the mask evaluates, retained, with the values of its symbols. */
static attune_status bind(const attune_instance *instance, const attune_mask_desc *desc, const attune_expr *expr,
                          const attune_host_capture *captures, uint32_t capture_count,
                          const attune_parameter *parameters, uint32_t parameter_count, attune_array *arrays,
                          attune__value *values, attune_expr **bound)
{
    ATTUNE__TRY(check_mask_expr(expr));
    attune_expr *dense, *made = NULL;
    ATTUNE__TRY(attune__expr_dense(&instance->host.allocator, expr, &dense));
    attune_status status;
    if (!desc->kv_total) {
        made = attune__expr_retain(dense);
        status = attune__bind_host(made, captures, capture_count, parameters, parameter_count, arrays, values);
    } else {
        status = attune__expr_shift(&instance->host.allocator, dense, &made);
        if (status == ATTUNE_OK)
            status = attune__bind_shifted(made, captures, capture_count, parameters, parameter_count, desc->kv_start,
                                          desc->kv_total, arrays, values);
    }
    attune__expr_release(dense);
    if (status == ATTUNE_OK)
        *bound = made;
    else
        attune__expr_release(made);
    return status;
}

static void warn_short(const attune_instance *instance, const attune_mask_desc *desc, const attune_expr *expr,
                       const attune_array *arrays)
{
    const attune__extents extents = {.of = {[ATTUNE__VAR_B] = desc->batch,
                                            [ATTUNE__VAR_H] = desc->heads,
                                            [ATTUNE__VAR_H_KV] = desc->kv_heads,
                                            [ATTUNE__VAR_Q] = desc->q_len,
                                            [ATTUNE__VAR_KV] = desc->kv_total ? desc->kv_total : desc->kv_len}};
    const attune__direct_reads reads = attune__expr_direct_reads(expr);
    for (uint32_t i = 0; i < expr->symbol_count; i++)
        if (expr->symbols[i].kind == ATTUNE_SYMBOL_CAPTURE)
            attune__warn_short_capture(&instance->host, "the mask", &reads, i, expr->symbols[i].name, arrays[i].size,
                                       &extents);
}

attune_status attune_mask_create(attune_instance *instance, const attune_mask_desc *desc, const attune_expr *expr,
                                 const attune_host_capture *captures, uint32_t capture_count,
                                 const attune_parameter *parameters, uint32_t parameter_count, attune_mask **mask)
{
    ATTUNE__TRY(attune__check_not_null(mask, "mask"));
    *mask = NULL;
    ATTUNE__TRY(attune__check_not_null(instance, "instance"));
    ATTUNE__TRY(attune__check_not_null(expr, "expr"));
    attune_mask_desc d;
    ATTUNE__TRY(read_desc(desc, true, &d));
    attune_array arrays[ATTUNE_EXPR_MAX_SYMBOLS];
    attune__value values[ATTUNE_EXPR_MAX_SYMBOLS];
    attune_expr *bound;
    ATTUNE__TRY(bind(instance, &d, expr, captures, capture_count, parameters, parameter_count, arrays, values, &bound));
    const attune_status status = attune__mask_build(&instance->host.allocator, &d, bound, arrays, values, mask);
    if (status == ATTUNE_OK)
        warn_short(instance, &d, bound, arrays);
    attune__expr_release(bound);
    return status;
}

attune_status attune_mask_create_lists(attune_instance *instance, const attune_mask_desc *desc,
                                       const attune_mask_lists *lists, const attune_expr *expr,
                                       const attune_host_capture *captures, uint32_t capture_count,
                                       const attune_parameter *parameters, uint32_t parameter_count, attune_mask **mask)
{
    ATTUNE__TRY(attune__check_not_null(mask, "mask"));
    *mask = NULL;
    ATTUNE__TRY(attune__check_not_null(instance, "instance"));
    attune_mask_desc d;
    ATTUNE__TRY(read_desc(desc, false, &d));
    attune_mask_lists l;
    ATTUNE__TRY(attune__desc_read(&l, sizeof l, lists, sizeof l, "lists"));
    attune_array arrays[ATTUNE_EXPR_MAX_SYMBOLS];
    attune__value values[ATTUNE_EXPR_MAX_SYMBOLS];
    attune_expr *bound = NULL;
    if (expr)
        ATTUNE__TRY(
            bind(instance, &d, expr, captures, capture_count, parameters, parameter_count, arrays, values, &bound));
    const attune_status status =
        attune__mask_from_lists(&instance->host.allocator, &d, &l, bound, arrays, values, mask);
    if (status == ATTUNE_OK && bound)
        warn_short(instance, &d, bound, arrays);
    attune__expr_release(bound);
    return status;
}

attune_status attune_mask_create_dense(attune_instance *instance, const attune_mask_desc *desc,
                                       const attune_array *dense, attune_mask **mask)
{
    ATTUNE__TRY(attune__check_not_null(mask, "mask"));
    *mask = NULL;
    ATTUNE__TRY(attune__check_not_null(instance, "instance"));
    ATTUNE__TRY(attune__check_not_null(dense, "dense"));
    attune_mask_desc d;
    ATTUNE__TRY(read_desc(desc, false, &d));
    if (d.kv_total)
        return attune__fail(
            ATTUNE_INVALID_ARGUMENT,
            "desc.kv_total is %lld, but the columns of a dense array are those of the segment: leave it 0",
            (long long)d.kv_total);
    attune_array array = *dense;
    ATTUNE__TRY(attune__array_check(&array, "dense"));
    if (array.dtype != ATTUNE_BOOL && array.dtype != ATTUNE_U8)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "dense.dtype is %s, expected bool or u8",
                            attune_dtype_string(array.dtype));
    const int64_t wanted[ATTUNE_MAX_RANK] = {d.batch, d.heads, d.q_len, d.kv_len};
    if (array.rank != ATTUNE_MAX_RANK)
        return attune__fail(ATTUNE_INVALID_ARGUMENT,
                            "dense.rank is %u, expected 4: batch or 1, heads or 1, q_len, kv_len", array.rank);
    for (uint32_t i = 0; i < ATTUNE_MAX_RANK; i++)
        if (array.size[i] != wanted[i] && !(i < 2 && array.size[i] == 1))
            return attune__fail(ATTUNE_INVALID_ARGUMENT, "dense.size[%u] is %lld, expected %lld%s", i,
                                (long long)array.size[i], (long long)wanted[i], i < 2 ? " or 1" : "");
    return attune__mask_from_dense(&instance->host.allocator, &d, &array, mask);
}

static bool is_mask_dtype(attune_dtype dtype)
{
    return dtype == ATTUNE_BOOL || dtype == ATTUNE_U8 || dtype == ATTUNE_F32 || dtype == ATTUNE_F16 ||
           dtype == ATTUNE_BF16;
}

static attune_status check_tensor_planes(const char *name, int64_t value, int64_t all)
{
    if (value != 1 && value != all)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "tensor_%s is %lld, expected desc.%s, %lld, or 1", name,
                            (long long)value, name, (long long)all);
    return ATTUNE_OK;
}

attune_status attune_mask_create_tensor(attune_device *device, const attune_mask_desc *desc, attune_dtype dtype,
                                        int64_t tensor_batch, int64_t tensor_heads, attune_mask **mask)
{
    ATTUNE__TRY(attune__check_not_null(mask, "mask"));
    *mask = NULL;
    ATTUNE__TRY(attune__device_check(device));
    const attune__backend *backend = device->backend;
    if (!backend->mask_update)
        return attune__fail(ATTUNE_UNSUPPORTED, "masks computed from a tensor: %s", backend->missing_reason);
    attune_mask_desc d;
    ATTUNE__TRY(read_desc(desc, false, &d));
    if (d.kv_total)
        return attune__fail(ATTUNE_INVALID_ARGUMENT,
                            "desc.kv_total is %lld, but the columns of a tensor are those of the segment: leave it 0",
                            (long long)d.kv_total);
    if (!is_mask_dtype(dtype))
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "dtype is %s, expected bool, u8, f32, f16 or bf16",
                            attune_dtype_string(dtype));
    ATTUNE__TRY(check_tensor_planes("batch", tensor_batch, d.batch));
    ATTUNE__TRY(check_tensor_planes("heads", tensor_heads, d.heads));
    attune_mask *made;
    ATTUNE__TRY(attune__mask_new_tensor(&device->host.allocator, &d, dtype, tensor_batch, tensor_heads,
                                        !backend->mask_create_tensor, &made));
    attune_status status = ATTUNE_OUT_OF_HOST_MEMORY;
    struct attune__mask_upload *upload = attune__alloc(&made->allocator, 1, sizeof *upload);
    if (upload)
        status =
            backend->mask_create_tensor ? backend->mask_create_tensor(device, made, &upload->device_mask) : ATTUNE_OK;
    if (status != ATTUNE_OK) {
        attune__free(&made->allocator, upload);
        attune__mask_free(made);
        return status;
    }
    upload->device = attune__device_retain(device);
    made->uploads = upload;
    *mask = made;
    return ATTUNE_OK;
}

attune_status attune__mask_update_check(const attune_mask *mask, const attune_tensor *tensor, attune_tensor *checked)
{
    ATTUNE__TRY(attune__check_not_null(tensor, "tensor"));
    if (!mask->from_tensor)
        return attune__fail(ATTUNE_INVALID_ARGUMENT,
                            "mask was not created by attune_mask_create_tensor: its lists cannot be updated");
    const attune_array *made = &mask->captures[0];
    *checked = *tensor;
    ATTUNE__TRY(attune__tensor_check(
        checked, &(attune__tensor_rule){"tensor", mask->uploads->device, made->dtype, ATTUNE_MAX_RANK, false, false}));
    const int64_t planes[2] = {mask->stored_batch, mask->stored_heads};
    const int64_t most[2] = {mask->most_q_len, mask->most_kv_len};
    for (uint32_t i = 0; i < 2; i++) {
        if (tensor->size[i] != planes[i])
            return attune__fail(ATTUNE_INVALID_ARGUMENT, "tensor.size[%u] is %lld, but the mask was created for %lld",
                                i, (long long)tensor->size[i], (long long)planes[i]);
        if (tensor->size[2 + i] < 1 || tensor->size[2 + i] > most[i])
            return attune__fail(ATTUNE_INVALID_ARGUMENT,
                                "tensor.size[%u] is %lld, but the mask was created for 1 to %lld %s", 2 + i,
                                (long long)tensor->size[2 + i], (long long)most[i], i ? "keys" : "queries");
    }
    return ATTUNE_OK;
}

attune_status attune_mask_update(attune_mask *mask, attune_queue *queue, const attune_tensor *tensor,
                                 attune_completion *completion)
{
    attune_tensor checked;
    ATTUNE__TRY(attune__check_not_null(mask, "mask"));
    if (mask->from_tensor)
        ATTUNE__TRY(attune__queue_check(queue, mask->uploads->device, "mask"));
    ATTUNE__TRY(attune__mask_update_check(mask, tensor, &checked));
    uint64_t value = 0;
    mask->updated = false;
    attune__mask_resize(mask, checked.size, checked.stride);
    ATTUNE__TRY(queue->device->backend->mask_update(queue, mask, mask->uploads->device_mask, &checked, &value));
    mask->updated = true;
    if (completion)
        *completion = (attune_completion){queue, value};
    return ATTUNE_OK;
}

/* For functions that read the lists in host memory. */
static attune_status check_host_lists(const attune_mask *mask, const char *name)
{
    ATTUNE__TRY(attune__check_not_null(mask, name));
    if (mask->from_tensor) {
        /* NOLINTNEXTLINE(clang-analyzer-core.NullDereference): a tensor mask always has one upload */
        const attune_device *device = mask->uploads->device;
        return attune__fail(ATTUNE_UNSUPPORTED,
                            "%s is computed from a tensor and its lists are on device %s: to read them on the host, "
                            "create a mask of the tensor's values with attune_mask_create_dense",
                            name, device->info.id);
    }
    return ATTUNE_OK;
}

static void release_upload(struct attune__mask_upload *upload)
{
    attune_device *device = upload->device;
    if (upload->device_mask)
        device->backend->mask_release(upload->device_mask);
    attune__device_release(device);
}

void attune_mask_destroy(attune_mask *mask)
{
    if (!mask)
        return;
    while (mask->uploads) {
        struct attune__mask_upload *upload = mask->uploads;
        mask->uploads = upload->next;
        release_upload(upload);
        attune__free(&mask->allocator, upload);
    }
    attune__mask_free(mask);
}

attune_status attune_mask_upload(attune_mask *mask, attune_device *device)
{
    ATTUNE__TRY(attune__check_not_null(mask, "mask"));
    ATTUNE__TRY(attune__device_check(device));
    for (struct attune__mask_upload *u = mask->uploads; u; u = u->next)
        if (u->device == device)
            return ATTUNE_OK;
    ATTUNE__TRY(check_host_lists(mask, "mask"));
    struct attune__mask_upload *upload = attune__alloc(&mask->allocator, 1, sizeof *upload);
    if (!upload)
        return ATTUNE_OUT_OF_HOST_MEMORY;
    if (device->backend->mask_upload) {
        attune_status status = device->backend->mask_upload(device, mask, &upload->device_mask);
        if (status != ATTUNE_OK) {
            attune__free(&mask->allocator, upload);
            return status;
        }
    }
    upload->device = attune__device_retain(device);
    upload->next = mask->uploads;
    mask->uploads = upload;
    return ATTUNE_OK;
}

attune_status attune_mask_lists_get(const attune_mask *mask, attune_mask_lists *lists)
{
    ATTUNE__TRY(check_host_lists(mask, "mask"));
    attune_mask_lists found = {.struct_size = sizeof found};
    attune__mask_lists(mask, &found);
    return attune__desc_write(lists, &found, sizeof found, sizeof found, "lists");
}

attune_status attune_mask_slice(const attune_mask *mask, const attune_mask_range *range, attune_mask **slice)
{
    ATTUNE__TRY(attune__check_not_null(slice, "slice"));
    *slice = NULL;
    ATTUNE__TRY(check_host_lists(mask, "mask"));
    attune_mask_range r;
    ATTUNE__TRY(attune__desc_read(&r, sizeof r, range, sizeof r, "range"));
    return attune__mask_slice(mask, &r, slice);
}

/* A length that has grown. */
static attune_status check_longer(const char *name, int64_t value, int64_t now)
{
    if (value < now || value > MAX_LENGTH)
        return attune__fail(ATTUNE_INVALID_ARGUMENT,
                            "%s is %lld, expected %lld, the mask's, to %d: attune_mask_slice gives a part of a mask",
                            name, (long long)value, (long long)now, MAX_LENGTH);
    return ATTUNE_OK;
}

/* The mask's own captures and parameters, and in place of some of the captures those that are given. */
static attune_status bind_again(const attune_mask *mask, const attune_host_capture *given, uint32_t given_count,
                                attune_array *arrays, attune__value *values)
{
    attune_host_capture captures[ATTUNE_EXPR_MAX_SYMBOLS];
    attune_parameter parameters[ATTUNE_EXPR_MAX_SYMBOLS];
    uint32_t capture_count = 0, parameter_count = 0;
    if (given_count)
        ATTUNE__TRY(attune__check_not_null(given, "captures"));
    for (uint32_t i = 0; i < mask->expr->symbol_count; i++) {
        const attune__symbol *symbol = &mask->expr->symbols[i];
        if (symbol->kind == ATTUNE_SYMBOL_PARAMETER) {
            const attune__value value = mask->parameters[i];
            parameters[parameter_count++] =
                (attune_parameter){symbol->name, symbol->dtype == ATTUNE_F32 ? (double)value.f : value.i};
            continue;
        }
        attune_host_capture *capture = &captures[capture_count++];
        *capture = (attune_host_capture){symbol->name, mask->captures[i]};
        for (uint32_t j = 0; j < given_count; j++)
            if (given[j].name && !strcmp(given[j].name, symbol->name))
                *capture = given[j];
    }
    return attune__bind_host(mask->expr, captures, capture_count, parameters, parameter_count, arrays, values);
}

static attune_status read_work(const attune_mask_work *given, attune__work *work)
{
    attune_mask_work read = {0};
    if (given)
        ATTUNE__TRY(attune__desc_read(&read, sizeof read, given, sizeof read, "work"));
    *work =
        (attune__work){.name = "work", .most = read.max_work, .progress = read.progress, .user = read.progress_user};
    return ATTUNE_OK;
}

attune_status attune_mask_extend(const attune_mask *mask, int64_t q_len, int64_t kv_len,
                                 const attune_host_capture *captures, uint32_t capture_count,
                                 const attune_mask_work *work, attune_mask **extended)
{
    attune__work limits;
    ATTUNE__TRY(attune__check_not_null(extended, "extended"));
    *extended = NULL;
    ATTUNE__TRY(read_work(work, &limits));
    ATTUNE__TRY(check_host_lists(mask, "mask"));
    if (!mask->classified || mask->kv_total)
        return attune__fail(ATTUNE_UNSUPPORTED,
                            "mask is %s, and only whole masks of attune_mask_create are extended: build it again",
                            mask->kv_total ? "of a segment of the keys" : "a part, a combination, or of lists");
    ATTUNE__TRY(check_longer("q_len", q_len, mask->q_len));
    ATTUNE__TRY(check_longer("kv_len", kv_len, mask->kv_len));
    attune_array arrays[ATTUNE_EXPR_MAX_SYMBOLS];
    attune__value values[ATTUNE_EXPR_MAX_SYMBOLS];
    ATTUNE__TRY(bind_again(mask, captures, capture_count, arrays, values));
    attune_mask_desc desc = attune__mask_describe(mask);
    desc.q_len = q_len;
    desc.kv_len = kv_len;
    return attune__mask_extend(mask, &desc, arrays, &limits, extended);
}

static attune_status combine(attune__op op, const attune_mask *a, const attune_mask *b, const attune_mask_work *given,
                             attune_mask **mask)
{
    attune__work work;
    ATTUNE__TRY(attune__check_not_null(mask, "mask"));
    *mask = NULL;
    ATTUNE__TRY(read_work(given, &work));
    ATTUNE__TRY(check_host_lists(a, "a"));
    if (op != ATTUNE__OP_NOT)
        ATTUNE__TRY(check_host_lists(b, "b"));
    return attune__mask_combine(op, a, b, &work, mask);
}

attune_status attune_mask_and(const attune_mask *a, const attune_mask *b, attune_mask **mask)
{
    return combine(ATTUNE__OP_AND, a, b, NULL, mask);
}

attune_status attune_mask_or(const attune_mask *a, const attune_mask *b, attune_mask **mask)
{
    return combine(ATTUNE__OP_OR, a, b, NULL, mask);
}

attune_status attune_mask_not(const attune_mask *a, attune_mask **mask)
{
    return combine(ATTUNE__OP_NOT, a, NULL, NULL, mask);
}

attune_status attune_mask_combine(attune_mask_op op, const attune_mask *a, const attune_mask *b,
                                  const attune_mask_work *work, attune_mask **mask)
{
    ATTUNE__TRY(attune__check_not_null(mask, "mask"));
    *mask = NULL;
    if (op == ATTUNE_MASK_NOT && b)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "b is not NULL, but ATTUNE_MASK_NOT has one mask");
    switch (op) {
    case ATTUNE_MASK_AND:
        return combine(ATTUNE__OP_AND, a, b, work, mask);
    case ATTUNE_MASK_OR:
        return combine(ATTUNE__OP_OR, a, b, work, mask);
    case ATTUNE_MASK_NOT:
        return combine(ATTUNE__OP_NOT, a, NULL, work, mask);
    }
    return attune__fail(ATTUNE_INVALID_ARGUMENT,
                        "op is %d, expected ATTUNE_MASK_AND, ATTUNE_MASK_OR or ATTUNE_MASK_NOT", (int)op);
}

static attune_status compute_stats(const attune_mask *mask, bool exact, const attune_mask_work *given,
                                   attune_mask_stats *stats)
{
    attune__work work;
    ATTUNE__TRY(read_work(given, &work));
    ATTUNE__TRY(check_host_lists(mask, "mask"));
    attune_mask_stats found = {.struct_size = sizeof found};
    ATTUNE__TRY(attune__mask_stats(mask, exact, &work, &found));
    return attune__desc_write(stats, &found, sizeof found, sizeof found, "stats");
}

attune_status attune_mask_stats_get(const attune_mask *mask, bool exact, attune_mask_stats *stats)
{
    return compute_stats(mask, exact, NULL, stats);
}

attune_status attune_mask_stats_count(const attune_mask *mask, const attune_mask_work *work, attune_mask_stats *stats)
{
    return compute_stats(mask, true, work, stats);
}

static attune_status check_plane(const attune_mask *mask, int64_t batch, int64_t head)
{
    ATTUNE__TRY(check_host_lists(mask, "mask"));
    if (batch < 0 || batch >= mask->batch)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "batch is %lld, expected 0 to %lld", (long long)batch,
                            (long long)mask->batch - 1);
    if (head < 0 || head >= mask->heads)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "head is %lld, expected 0 to %lld", (long long)head,
                            (long long)mask->heads - 1);
    return ATTUNE_OK;
}

attune_status attune_mask_draw_text(const attune_mask *mask, int64_t batch, int64_t head, uint32_t columns,
                                    uint32_t rows, char *buffer, size_t size, size_t *needed)
{
    ATTUNE__TRY(check_plane(mask, batch, head));
    if (!columns || !rows)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "columns x rows is %u x %u, expected at least 1 x 1", columns,
                            rows);
    if (size)
        ATTUNE__TRY(attune__check_not_null(buffer, "buffer"));
    attune__mask_draw_text(mask, batch, head, columns, rows, buffer, size, needed);
    return ATTUNE_OK;
}

attune_status attune_mask_draw_pixels(const attune_mask *mask, int64_t batch, int64_t head, uint8_t *pixels,
                                      uint32_t *width, uint32_t *height)
{
    ATTUNE__TRY(check_plane(mask, batch, head));
    ATTUNE__TRY(attune__check_not_null(width, "width"));
    ATTUNE__TRY(attune__check_not_null(height, "height"));
    if (!*width || !*height)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "width x height is %u x %u, expected at least 1 x 1", *width,
                            *height);
    attune__mask_draw_pixels(mask, batch, head, pixels, width, height);
    return ATTUNE_OK;
}

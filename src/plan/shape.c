/* SPDX-License-Identifier: MIT */
/* Checks the problem, whose defaults are filled in, and the limits. */
#include "plan/family.h"

#include <math.h>

#include "base/desc.h"
#include "base/error.h"

/* More rows than fit any memory, and few enough that no size below overflows 64 bits. */
#define MOST_ROWS (INT64_C(1) << 40)
/* Each segment is a launch. */
#define MOST_SEGMENTS 1024
/* Multi-head latent attention in its absorbed form: 512 columns, and 64 of RoPE for q and k. */
#define MOST_HEAD_DIM   576
#define MOST_HEAD_DIM_V 512

static attune_status check_dtype(const char *name, attune_dtype dtype, bool f64)
{
    const bool narrow = dtype == ATTUNE_F32 || dtype == ATTUNE_F16 || dtype == ATTUNE_BF16;
    if (!narrow && (dtype != ATTUNE_F64 || !f64))
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "problem.%s is %s (%d), expected f32, f16%s", name,
                            attune_dtype_string(dtype), (int)dtype, f64 ? ", bf16 or f64" : " or bf16");
    return ATTUNE_OK;
}

/* The types of k and v; those of a cache may be quantised. */
static attune_status check_key_dtype(const char *name, attune_dtype dtype, uint32_t columns, const attune__shape *s)
{
    if (dtype < ATTUNE_F8E4M3 || dtype > ATTUNE_NVFP4)
        return check_dtype(name, dtype, s->q_dtype == ATTUNE_F64);
    if (dtype >= ATTUNE_MXFP4)
        return attune__fail(ATTUNE_UNSUPPORTED,
                            "problem.%s is %s, which no kernel reads: there are f8e4m3, f8e5m2, i8, "
                            "q8_0 and q4_0",
                            name, attune_dtype_string(dtype));
    if (!s->tokens)
        return attune__fail(
            ATTUNE_INVALID_ARGUMENT,
            "problem.%s is %s: quantised keys and values are read from a cache only, set problem.tokens", name,
            attune_dtype_string(dtype));
    if (columns % attune_dtype_block(dtype))
        return attune__fail(ATTUNE_INVALID_ARGUMENT,
                            "problem.%s is %s, whose blocks of %u do not divide the %u columns", name,
                            attune_dtype_string(dtype), attune_dtype_block(dtype), columns);
    return ATTUNE_OK;
}

static attune_status check_dtypes(const attune__shape *s)
{
    const bool f64 = s->q_dtype == ATTUNE_F64;
    ATTUNE__TRY(check_dtype("dtype", s->q_dtype, true));
    ATTUNE__TRY(check_key_dtype("kv_dtype", s->k_dtype, s->head_dim, s));
    ATTUNE__TRY(check_key_dtype("v_dtype", s->v_dtype, s->head_dim_v, s));
    if (s->v_dtype != s->k_dtype && !s->tokens)
        return attune__fail(ATTUNE_INVALID_ARGUMENT,
                            "problem.v_dtype is %s and kv_dtype %s: they may differ in a cache "
                            "only, set problem.tokens",
                            attune_dtype_string(s->v_dtype), attune_dtype_string(s->k_dtype));
    ATTUNE__TRY(check_dtype("o_dtype", s->o_dtype, f64));
    if (f64 && attune__shape_mixed(s))
        return attune__fail(ATTUNE_INVALID_ARGUMENT,
                            "problem.dtype is f64, kv_dtype %s and o_dtype %s: float64 plans have one dtype, leave "
                            "these two 0",
                            attune_dtype_string(s->k_dtype), attune_dtype_string(s->o_dtype));
    return ATTUNE_OK;
}

static attune_status check_head_dim(const char *name, uint32_t value, uint32_t most)
{
    if (value % 8 || value < 8 || value > most)
        return attune__fail(ATTUNE_UNSUPPORTED, "problem.%s is %u, expected a multiple of 8 from 8 to %u: %s", name,
                            value, most, value < most ? "pad the tensors" : "no kernel has wider heads");
    return ATTUNE_OK;
}

static attune_status check_count(const char *name, int64_t value)
{
    if (value < 1 || value > INT32_MAX)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "problem.%s is %lld, expected 1 to 2147483647", name,
                            (long long)value);
    return ATTUNE_OK;
}

static attune_status check_mask_block(const char *name, uint32_t value)
{
    if (value % 16 || value < 16 || value > 1024)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "problem.%s is %u, expected a multiple of 16 from 16 to 1024",
                            name, value);
    return ATTUNE_OK;
}

static attune_status check_counts(const attune__shape *s)
{
    ATTUNE__TRY(check_count("batch", s->batch));
    ATTUNE__TRY(check_count("kv_batch", s->kv_batch));
    ATTUNE__TRY(check_count("heads", s->heads));
    ATTUNE__TRY(check_count("kv_heads", s->kv_heads));
    ATTUNE__TRY(check_count("q_len", s->q_len));
    ATTUNE__TRY(check_count("kv_len", s->kv_len));
    if (s->kv_batch != 1 && s->kv_batch != s->batch)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "problem.kv_batch is %lld, expected 1 or the batch, which is %lld",
                            (long long)s->kv_batch, (long long)s->batch);
    if (s->heads % s->kv_heads)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "problem.kv_heads is %lld, which does not divide heads, %lld",
                            (long long)s->kv_heads, (long long)s->heads);
    int64_t length = s->q_len > s->kv_len ? s->q_len : s->kv_len;
    if (s->batch > MOST_ROWS / s->heads || s->batch * s->heads > MOST_ROWS / length)
        return attune__fail(ATTUNE_INVALID_ARGUMENT,
                            "problem has batch %lld x heads %lld x length %lld rows, expected at most 2^40",
                            (long long)s->batch, (long long)s->heads, (long long)length);
    return ATTUNE_OK;
}

static attune_status check_serving(const attune_problem *p, const attune__shape *s)
{
    if (!p->tokens) {
        if (p->page || p->tree || p->split_keys || p->shared_sequences)
            return attune__fail(ATTUNE_INVALID_ARGUMENT, "problem.%s is set, but problem.tokens is 0: it is of serving",
                                p->page         ? "page"
                                : p->tree       ? "tree"
                                : p->split_keys ? "split_keys"
                                                : "shared_sequences");
        return ATTUNE_OK;
    }
    ATTUNE__TRY(check_count("tokens", p->tokens));
    if (p->tokens > MOST_ROWS / s->heads)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "problem has tokens %lld x heads %lld rows, expected at most 2^40",
                            (long long)p->tokens, (long long)s->heads);
    if (p->page < 0 || p->page > INT32_MAX)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "problem.page is %lld, expected 0 to 2147483647",
                            (long long)p->page);
    if (p->split_keys % 256)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "problem.split_keys is %u, expected a multiple of 256 keys, or 0",
                            p->split_keys);
    if (p->shared_sequences > s->batch)
        return attune__fail(ATTUNE_INVALID_ARGUMENT,
                            "problem.shared_sequences is %u, expected at most the batch, %lld sequences",
                            p->shared_sequences, (long long)s->batch);
    if (p->direction == ATTUNE_BACKWARD)
        return attune__fail(ATTUNE_UNSUPPORTED,
                            "problem.tokens is %lld and direction ATTUNE_BACKWARD: serving is "
                            "forward only",
                            (long long)p->tokens);
    if (p->segments)
        return attune__fail(ATTUNE_INVALID_ARGUMENT,
                            "problem.tokens is %lld and problem.segments %u: a cache's pages are its segments",
                            (long long)p->tokens, p->segments);
    if (p->block_mask && !p->mask)
        return attune__fail(ATTUNE_INVALID_ARGUMENT,
                            "problem.block_mask is set without problem.mask: over a cache the kernel evaluates the "
                            "mask's expression");
    if (s->kv_batch != s->batch)
        return attune__fail(ATTUNE_INVALID_ARGUMENT,
                            "problem.kv_batch is %lld: sequences share keys by their block tables, leave it 0",
                            (long long)s->kv_batch);
    return ATTUNE_OK;
}

attune_status attune__shape_from_problem(const attune_problem *problem, attune__shape *shape)
{
    attune_problem p;
    ATTUNE__TRY(attune__desc_read(&p, sizeof p, problem, sizeof p, "problem"));
    attune__shape s = {
        .direction = p.direction,
        .q_dtype = p.dtype ? p.dtype : ATTUNE_F32,
        .head_dim = p.head_dim,
        .head_dim_v = p.head_dim_v ? p.head_dim_v : p.head_dim,
        .batch = p.batch ? p.batch : 1,
        .heads = p.heads ? p.heads : 1,
        .q_len = p.q_len,
        .kv_len = p.kv_len ? p.kv_len : p.q_len,
        .scale = p.scale,
        .block_mask = p.block_mask || p.mask,
        .mask_expr = p.mask != NULL,
        .score_expr = p.score != NULL,
        .lse = p.lse || p.segments,
        .row_max = p.row_max,
        .sinks = p.sinks,
        .capture_gradient_elements = (uint64_t)p.capture_gradient_elements,
        .segments = p.segments,
        .tokens = p.tokens,
        .page = p.page,
        .tree = p.tree,
        .split_keys = p.split_keys,
        .shared_sequences = p.shared_sequences,
        .mask_q_block = p.mask_q_block ? p.mask_q_block : 128,
        .mask_kv_block = p.mask_kv_block ? p.mask_kv_block : 128,
    };
    s.kv_batch = p.kv_batch ? p.kv_batch : s.batch;
    s.kv_heads = p.kv_heads ? p.kv_heads : s.heads;
    s.expr.mask.reads_head = s.mask_expr;
    if (s.direction != ATTUNE_FORWARD && s.direction != ATTUNE_BACKWARD)
        return attune__fail(ATTUNE_INVALID_ARGUMENT,
                            "problem.direction is %d, expected ATTUNE_FORWARD or ATTUNE_BACKWARD", (int)s.direction);
    s.k_dtype = p.kv_dtype ? p.kv_dtype : s.q_dtype;
    s.v_dtype = p.v_dtype ? p.v_dtype : s.k_dtype;
    s.o_dtype = p.o_dtype ? p.o_dtype : s.q_dtype;
    ATTUNE__TRY(check_head_dim("head_dim", s.head_dim, MOST_HEAD_DIM));
    ATTUNE__TRY(check_head_dim("head_dim_v", s.head_dim_v, MOST_HEAD_DIM_V));
    ATTUNE__TRY(check_dtypes(&s));
    ATTUNE__TRY(check_counts(&s));
    ATTUNE__TRY(check_serving(&p, &s));
    ATTUNE__TRY(check_mask_block("mask_q_block", s.mask_q_block));
    ATTUNE__TRY(check_mask_block("mask_kv_block", s.mask_kv_block));
    if (p.capture_gradient_elements < 0 || p.capture_gradient_elements > MOST_ROWS)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "problem.capture_gradient_elements is %lld, expected 0 to 2^40",
                            (long long)p.capture_gradient_elements);
    if (p.segments > MOST_SEGMENTS)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "problem.segments is %u, expected at most %d", p.segments,
                            MOST_SEGMENTS);
    if (p.segments && s.row_max)
        return attune__fail(
            ATTUNE_INVALID_ARGUMENT,
            "problem.row_max is set and problem.segments is %u: a call over segments gives no row maxima", p.segments);
    if (!isfinite(s.scale))
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "problem.scale is %g, expected a finite number", s.scale);
    if (s.scale == 0)
        s.scale = 1 / sqrt((double)s.head_dim);
    *shape = s;
    return ATTUNE_OK;
}

uint32_t attune__shape_packed_heads(const attune__shape *shape)
{
    /* Over a cache there are no lists of a head's blocks. */
    const bool lists = shape->block_mask && !shape->tokens;
    return lists && shape->expr.mask.reads_head ? 1 : (uint32_t)(shape->heads / shape->kv_heads);
}

uint64_t attune__merge_workspace(attune_dtype dtype, uint64_t rows, uint64_t columns, uint32_t part_count)
{
    const uint64_t element = dtype == ATTUNE_F64 ? 8 : 4;
    if (part_count <= ATTUNE__MERGE_PARTS)
        return ATTUNE__MERGE_WORKSPACE;
    return ATTUNE__MERGE_WORKSPACE + attune__round_up64(rows * columns * element, 256) +
           attune__round_up64(rows * element, 256);
}

static uint64_t segment_columns(const attune__shape *shape)
{
    return shape->direction == ATTUNE_FORWARD ? shape->head_dim_v : shape->head_dim;
}

uint64_t attune__segment_size(const attune__shape *shape, uint64_t rows)
{
    const uint64_t element = attune_dtype_size(attune__shape_real(shape));
    return attune__round_up64(rows * segment_columns(shape) * element, 256) +
           (shape->direction == ATTUNE_FORWARD ? attune__round_up64(rows * element, 256) : 0);
}

uint64_t attune__segments_size(const attune__shape *shape, uint64_t rows, uint32_t segments)
{
    if (segments < 2)
        return 0;
    return attune__merge_workspace(attune__shape_real(shape), rows, segment_columns(shape), segments) +
           segments * attune__segment_size(shape, rows);
}

static attune_status bad_limit(const char *name, uint32_t value, const char *expected)
{
    return attune__fail(ATTUNE_INVALID_ARGUMENT, "limits.%s is %u, expected %s", name, value, expected);
}

attune_status attune__limits_check(const attune_limits *limits)
{
    bool cpu = limits->backend == ATTUNE_BACKEND_CPU, opencl = limits->backend == ATTUNE_BACKEND_OPENCL;
    if (limits->backend < ATTUNE_BACKEND_CPU || limits->backend > ATTUNE_BACKEND_OPENCL)
        return bad_limit("backend", (uint32_t)limits->backend, "an attune_backend");
    if (!limits->compute_units || limits->compute_units > 1u << 20)
        return bad_limit("compute_units", limits->compute_units, "1 to 1048576");
    if (!limits->workgroup_invocations || limits->workgroup_invocations > 1u << 16)
        return bad_limit("workgroup_invocations", limits->workgroup_invocations, "1 to 65536");
    if (limits->unit_invocations && limits->unit_invocations < limits->workgroup_invocations)
        return bad_limit("unit_invocations", limits->unit_invocations, "0 or at least workgroup_invocations");
    if (!cpu && limits->shared_memory < 16384)
        return attune__fail(ATTUNE_UNSUPPORTED, "limits.shared_memory is %u, but the smallest kernel needs 16384",
                            limits->shared_memory);
    if (limits->shared_memory_unit && limits->shared_memory_unit < limits->shared_memory)
        return bad_limit("shared_memory_unit", limits->shared_memory_unit, "0 or at least shared_memory");
    if (limits->subgroup_size > 1024 || (!limits->subgroup_size && !cpu && !opencl))
        return bad_limit("subgroup_size", limits->subgroup_size, "1 to 1024");
    if (limits->backend == ATTUNE_BACKEND_CUDA && limits->subgroup_size != 32)
        return bad_limit("subgroup_size", limits->subgroup_size, "32, CUDA's warp");
    bool matrices = limits->matrix & (ATTUNE_MATRIX_COOPMAT | ATTUNE_MATRIX_COOPMAT2);
    const uint32_t shape[3] = {limits->matrix_m, limits->matrix_n, limits->matrix_k};
    static const char *const names[3] = {"matrix_m", "matrix_n", "matrix_k"};
    for (int i = 0; matrices && i < 3; i++)
        if (!attune__is_power2(shape[i]) || shape[i] > 256)
            return bad_limit(names[i], shape[i], "a power of two up to 256, since limits.matrix has matrices");
    if (limits->fragment_layout) {
        const uint32_t side = limits->fragment_layout == ATTUNE_FRAGMENT_QUADS ? 16 : limits->subgroup_size;
        const uint32_t lanes = limits->fragment_layout == ATTUNE_FRAGMENT_QUADS ? 32 : side;
        if (limits->fragment_layout > ATTUNE_FRAGMENT_COLUMNS || !matrices || shape[0] != side || shape[1] != side ||
            shape[2] != side || side > 32 || limits->subgroup_size != lanes)
            return bad_limit(
                "fragment_layout", limits->fragment_layout,
                "0, 1 (16x16x16 matrices, subgroups of 32) or 2 (square matrices as wide as the subgroup)");
    }
    return ATTUNE_OK;
}

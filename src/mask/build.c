/* SPDX-License-Identifier: MIT */
/* Builds a mask from an expression. The block plane is halved until interval analysis decides a part or the part is one
 * block, so that the cost is near the number of blocks on the boundary between true and false (docs/masks.md). */
#include "mask/classify.h"

#include "base/error.h"

typedef struct builder {
    const attune_mask *mask;
    attune__work *work;
    attune__classifier classifier;
    attune__rects rects;
    bool uses_q, uses_kv;
    attune__kept_blocks kept;
    int64_t kept_row0;      /* of the plane, in the lists of the kept blocks */
    double decided, blocks; /* of all planes */
} builder;

static int32_t power_of_two_from(int64_t value)
{
    int32_t power = 1;
    while (power < value)
        power *= 2;
    return power;
}

/* Block rows [r0, r0 + rows) and columns [c0, c0 + columns), clipped to the plane. Parts are aligned powers of two, so
 * that a diagonal divides them symmetrically at every level. */
static bool divide(builder *build, int32_t r0, int32_t rows, int32_t c0, int32_t columns);

/* Divides a part whose bounds are the last ones, and undecided. */
static bool divide_parts(builder *build, int32_t r0, int32_t rows, int32_t c0, int32_t columns, bool split_rows,
                         bool split_columns)
{
    if (split_rows && split_columns) {
        split_rows = rows >= columns;
        split_columns = columns >= rows;
    }
    const int32_t half_rows = split_rows ? rows / 2 : rows, half_columns = split_columns ? columns / 2 : columns;
    const attune__open_nodes before = attune__classifier_narrow(&build->classifier);
    bool done = true;
    /* Top left, top right, bottom left, bottom right: the order that the lists need. */
    for (int32_t r = 0; r < rows; r += half_rows)
        for (int32_t c = 0; done && c < columns; c += half_columns)
            done = divide(build, r0 + r, half_rows, c0 + c, half_columns);
    attune__classifier_widen(&build->classifier, before);
    return done;
}

/* Adds kept blocks, row by row. */
static bool keep(builder *build, int32_t r0, int32_t r1, int32_t c0, int32_t c1)
{
    if (attune__work_add(build->work, (uint64_t)(r1 - r0)) != ATTUNE_OK)
        return false;
    for (int32_t r = r0; r < r1; r++) {
        attune__runs run = attune__runs_within(build->kept.mask, build->kept_row0 + r, c0, c1);
        for (; !attune__runs_done(&run); attune__runs_next(&run))
            if (!attune__rects_add(&build->rects, r, r + 1, run.c0, run.c1, run.class))
                return false;
    }
    return true;
}

static void decide(builder *build, int32_t r0, int32_t r1, int32_t c0, int32_t c1)
{
    build->decided += (double)(r1 - r0) * (double)(c1 - c0);
    attune__work_share(build->work, build->decided / build->blocks);
}

static bool divide(builder *build, int32_t r0, int32_t rows, int32_t c0, int32_t columns)
{
    const attune_mask *mask = build->mask;
    const int32_t r1 = (int32_t)attune__min64((int64_t)r0 + rows, mask->q_blocks);
    const int32_t c1 = (int32_t)attune__min64((int64_t)c0 + columns, mask->kv_blocks);
    if (r0 >= r1 || c0 >= c1)
        return true;
    if (build->kept.mask && r1 <= build->kept.rows && c1 <= build->kept.columns) {
        decide(build, r0, r1, c0, c1);
        return keep(build, r0, r1, c0, c1);
    }
    attune__region region = attune__region_of(mask, r0, r1, c0, c1);
    /* All indices of a dimension that the expression does not use have the same value. */
    if (!build->uses_q)
        region.q1 = region.q0;
    if (!build->uses_kv)
        region.kv1 = region.kv0;
    attune__class class = attune__classify_bounds(&build->classifier, &region);
    const bool split_rows = build->uses_q && r1 - r0 > 1, split_columns = build->uses_kv && c1 - c0 > 1;
    if (class == ATTUNE__UNDECIDED && !split_rows && !split_columns)
        class = attune__classify_undecided(&build->classifier, &region);
    if (attune__work_stopped(build->work))
        return false;
    if (class == ATTUNE__UNDECIDED)
        return divide_parts(build, r0, rows, c0, columns, split_rows, split_columns);
    decide(build, r0, r1, c0, c1);
    return attune__rects_add(&build->rects, r0, r1, c0, c1, class);
}

static bool build_planes(builder *build)
{
    const attune_mask *mask = build->mask;
    const bool uses_h = mask->expr->uses & 1u << ATTUNE__VAR_H;
    const int64_t group = mask->heads / mask->kv_heads;
    const int32_t rows = power_of_two_from(mask->q_blocks), columns = power_of_two_from(mask->kv_blocks);
    for (int64_t b = 0; b < mask->stored_batch; b++)
        for (int64_t h = 0; h < mask->stored_heads; h++) {
            if (h % group && !uses_h) {
                attune__rects_repeat_plane(&build->rects);
                build->decided += (double)mask->q_blocks * (double)mask->kv_blocks;
                continue;
            }
            attune__classifier_plane(&build->classifier, mask, b, h);
            attune__rects_begin_plane(&build->rects);
            if (build->kept.mask)
                build->kept_row0 = attune__mask_at(build->kept.mask, b, h).row0;
            if (!divide(build, 0, rows, 0, columns))
                return false;
            attune__rects_end_plane(&build->rects);
        }
    return true;
}

attune_status attune__mask_build_from(const attune__kept_blocks *kept, const attune_allocator *allocator,
                                      const attune_mask_desc *desc, const attune_expr *expr,
                                      const attune_array *captures, const attune__value *parameters, attune__work *work,
                                      attune_mask **mask)
{
    const unsigned per_head = 1u << ATTUNE__VAR_H | 1u << ATTUNE__VAR_H_KV;
    attune_mask *made = NULL;
    builder build = {
        .work = work,
        .uses_q = expr->uses & 1u << ATTUNE__VAR_Q,
        .uses_kv = expr->uses & 1u << ATTUNE__VAR_KV,
        .kept = *kept,
    };
    attune_status status = attune__mask_new(allocator, desc, expr->uses & 1u << ATTUNE__VAR_B ? desc->batch : 1,
                                            expr->uses & per_head ? desc->heads : 1, expr,
                                            &(attune__bindings){captures, parameters}, &made);
    if (status != ATTUNE_OK)
        goto done;
    build.mask = made;
    made->classified = true;
    /* The mask's own copies are contiguous. */
    status = attune__classifier_init(&build.classifier, allocator, expr,
                                     &(attune__bindings){made->captures, made->parameters}, build.work);
    if (status != ATTUNE_OK)
        goto done;
    status = attune__rects_init(&build.rects, allocator, made->stored_batch * made->stored_heads);
    if (status != ATTUNE_OK)
        goto done;
    build.blocks =
        (double)made->stored_batch * (double)made->stored_heads * (double)made->q_blocks * (double)made->kv_blocks;
    if (build_planes(&build))
        status = attune__mask_store(made, &build.rects, build.work);
    else
        status = attune__work_stopped(build.work) ? build.work->status : ATTUNE_OUT_OF_HOST_MEMORY;
done:
    attune__rects_finish(&build.rects);
    attune__classifier_finish(&build.classifier);
    if (status != ATTUNE_OK) {
        attune__mask_free(made);
        made = NULL;
    }
    *mask = made;
    return status;
}

attune_status attune__mask_build(const attune_allocator *allocator, const attune_mask_desc *desc,
                                 const attune_expr *expr, const attune_array *captures, const attune__value *parameters,
                                 attune_mask **mask)
{
    attune__work work = {
        .name = "desc", .most = desc->max_work, .progress = desc->progress, .user = desc->progress_user};
    return attune__mask_build_from(&(attune__kept_blocks){0}, allocator, desc, expr, captures, parameters, &work, mask);
}

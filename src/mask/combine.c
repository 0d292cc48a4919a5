/* SPDX-License-Identifier: MIT */
/*
 * And, or, not of masks. The lists decide most blocks. Where both masks are partial, the combined expression is
 * evaluated. Where one is partial and the other is neutral, the block stays partial with the combined expression, which
 * requires that the expression of the other mask agrees with its lists. This holds for masks from expressions; for
 * masks from lists it need not, and then the result is computed element by element.
 */
#include "mask/classify.h"

#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/error.h"

/* The limit on elements of a result that is computed element by element, one byte each. */
#define MATERIALISE_LIMIT ((int64_t)1 << 30)

typedef struct combination {
    attune__op op;
    const attune_mask *side[2]; /* NOT: side[1] is side[0] */
    attune_mask *made;
    attune__classifier combined; /* of the result's expression */
    attune__classifier own[2];   /* of each side's */
    attune__rects rects;
    attune__work *work; /* may be NULL */
    bool materialise;   /* the lists and the expression of a side disagree */
} combination;

/* ---------------------------------------------------------------------------------------------------------- checks */

static attune_status check_equal(const char *name, int64_t a, int64_t b)
{
    if (a != b)
        return attune__fail(ATTUNE_INVALID_ARGUMENT, "a.%s is %lld, b.%s is %lld, expected the same", name,
                            (long long)a, name, (long long)b);
    return ATTUNE_OK;
}

static attune_status check_pair(const attune_mask *a, const attune_mask *b)
{
    ATTUNE__TRY(check_equal("q_len", a->q_len, b->q_len));
    ATTUNE__TRY(check_equal("kv_len", a->kv_len, b->kv_len));
    ATTUNE__TRY(check_equal("q_block", a->q_block, b->q_block));
    ATTUNE__TRY(check_equal("kv_block", a->kv_block, b->kv_block));
    ATTUNE__TRY(check_equal("batch", a->batch, b->batch));
    ATTUNE__TRY(check_equal("heads", a->heads, b->heads));
    ATTUNE__TRY(check_equal("kv_heads", a->kv_heads, b->kv_heads));
    if (!a->kv_total || !b->kv_total)
        return ATTUNE_OK;
    ATTUNE__TRY(check_equal("kv_start", a->kv_start, b->kv_start));
    return check_equal("kv_total", a->kv_total, b->kv_total);
}

static attune_status check_whole(const char *name, const attune_mask *mask)
{
    if (mask->b0 || mask->h0 || mask->q0 || mask->expr_heads != mask->heads || mask->expr_kv_heads != mask->kv_heads ||
        mask->expr_q_len != mask->q_len || mask->expr_kv_len != mask->kv_len)
        return attune__fail(ATTUNE_UNSUPPORTED,
                            "%s is a slice (from batch %d, head %d, row %d of the whole): combine before slicing", name,
                            mask->b0, mask->h0, mask->q0);
    return ATTUNE_OK;
}

static const attune__symbol *find_symbol(const attune_mask *mask, const char *name, uint32_t *index)
{
    if (mask->expr)
        for (*index = 0; *index < mask->expr->symbol_count; ++*index)
            if (!strcmp(mask->expr->symbols[*index].name, name))
                return &mask->expr->symbols[*index];
    return NULL;
}

static bool same_array(const attune_array *a, const attune_array *b)
{
    if (a->dtype != b->dtype || a->rank != b->rank || memcmp(a->size, b->size, a->rank * sizeof *a->size))
        return false;
    const size_t bytes = attune__array_count(a) * attune_dtype_size(a->dtype);
    return !bytes || !memcmp(a->data, b->data, bytes);
}

/* Symbols of the same name must have the same values. Two masks from dense arrays both have a capture `dense`: they are
 * combined element by element. */
static attune_status check_symbols(const attune_mask *a, const attune_mask *b, bool *materialise)
{
    for (uint32_t i = 0; a->expr && i < a->expr->symbol_count; i++) {
        const attune__symbol *symbol = &a->expr->symbols[i];
        uint32_t j;
        const attune__symbol *other = find_symbol(b, symbol->name, &j);
        if (!other)
            continue;
        if (symbol->kind != other->kind)
            return attune__fail(ATTUNE_INVALID_ARGUMENT,
                                "`%s` is a capture in one mask and a parameter in the other: rename one", symbol->name);
        const bool parameter = symbol->kind == ATTUNE_SYMBOL_PARAMETER;
        const bool same = parameter ? symbol->dtype == other->dtype && a->parameters[i].i == b->parameters[j].i
                                    : same_array(&a->captures[i], &b->captures[j]);
        if (same)
            continue;
        if (parameter || strcmp(symbol->name, "dense"))
            return attune__fail(ATTUNE_INVALID_ARGUMENT,
                                "%s `%s` has other values in a than in b: give one of them another name",
                                parameter ? "parameter" : "capture", symbol->name);
        *materialise = true;
    }
    return ATTUNE_OK;
}

/* -------------------------------------------------------------------------------------------------------- by block */

static attune__class invert(attune__class class)
{
    return class == ATTUNE__FULL ? ATTUNE__EMPTY : class == ATTUNE__EMPTY ? ATTUNE__FULL : class;
}

/* Whether the side's expression agrees with its list over a run, as the combined expression requires. */
static bool expression_agrees(combination *state, int side, const attune__region *region, attune__class class)
{
    return !state->side[side]->expr || attune__classify(&state->own[side], region) == class;
}

/* Block columns [c0, c1) of block row r, each of one class in either mask. */
static bool combine_run(combination *state, int32_t r, int32_t c0, int32_t c1, attune__class a, attune__class b)
{
    /* a || b is !(!a && !b). */
    const bool or = state->op == ATTUNE__OP_OR;
    const attune__class absorbing = or ? ATTUNE__FULL : ATTUNE__EMPTY, neutral = or ? ATTUNE__EMPTY : ATTUNE__FULL;
    if (a == absorbing || b == absorbing)
        return attune__rects_add(&state->rects, r, r + 1, c0, c1, absorbing);
    if (a == neutral && b == neutral)
        return attune__rects_add(&state->rects, r, r + 1, c0, c1, neutral);
    if (a == neutral || b == neutral) {
        const attune__region region = attune__region_of(state->made, r, r + 1, c0, c1);
        state->materialise = !expression_agrees(state, a == neutral ? 0 : 1, &region, neutral);
        if (attune__work_stopped(state->work))
            return false;
        return state->materialise || attune__rects_add(&state->rects, r, r + 1, c0, c1, ATTUNE__PARTIAL);
    }
    for (int32_t c = c0; c < c1; c++) {
        const attune__region region = attune__region_of(state->made, r, r + 1, c, c + 1);
        const attune__class class = attune__classify(&state->combined, &region);
        if (attune__work_stopped(state->work) || !attune__rects_add(&state->rects, r, r + 1, c, c + 1, class))
            return false;
    }
    return true;
}

static uint64_t entries_of(const attune_mask *mask, int64_t row)
{
    return (uint64_t)mask->kv.num_blocks[row] + (uint64_t)mask->full_kv.num_blocks[row];
}

static bool combine_row(combination *state, int32_t r, int64_t row_a, int64_t row_b)
{
    if (ATTUNE_OK !=
        attune__work_add(state->work, 1 + entries_of(state->side[0], row_a) + entries_of(state->side[1], row_b)))
        return false;
    attune__runs a = attune__runs_begin(state->side[0], row_a);
    if (state->op == ATTUNE__OP_NOT) {
        for (; !attune__runs_done(&a); attune__runs_next(&a))
            if (!attune__rects_add(&state->rects, r, r + 1, a.c0, a.c1, invert(a.class)))
                return false;
        return true;
    }
    attune__runs b = attune__runs_begin(state->side[1], row_b);
    for (int32_t c = 0; c < a.columns && !state->materialise;) {
        const int32_t end = a.c1 < b.c1 ? a.c1 : b.c1;
        if (!combine_run(state, r, c, end, a.class, b.class))
            return false;
        c = end;
        if (a.c1 == end)
            attune__runs_next(&a);
        if (b.c1 == end)
            attune__runs_next(&b);
    }
    return true;
}

static attune_status combine_planes(combination *state)
{
    attune_mask *made = state->made;
    const double rows = (double)made->stored_batch * (double)made->stored_heads * (double)made->q_blocks;
    double passed = 0;
    const attune_mask *a = state->side[0], *b = state->side[1];
    for (int64_t i = 0; i < made->stored_batch; i++)
        for (int64_t h = 0; h < made->stored_heads; h++) {
            const int64_t row_a = attune__mask_at(a, i, h).row0, row_b = attune__mask_at(b, i, h).row0;
            if (state->combined.expr)
                attune__classifier_plane(&state->combined, made, i, h);
            for (int s = 0; s < 2; s++)
                if (state->own[s].expr)
                    attune__classifier_plane(&state->own[s], made, i, h);
            attune__rects_begin_plane(&state->rects);
            for (int32_t r = 0; r < made->q_blocks && !state->materialise; r++) {
                attune__work_share(state->work, passed++ / rows);
                if (!combine_row(state, r, row_a + r, row_b + r))
                    return attune__work_stopped(state->work) ? state->work->status : ATTUNE_OUT_OF_HOST_MEMORY;
            }
            attune__rects_end_plane(&state->rects);
        }
    return ATTUNE_OK;
}

/* The result's lists broadcast if those of both masks do, and if the expression, which classifies blocks, does not use
 * the index. */
static int64_t stored(int64_t a, int64_t b, unsigned uses, int64_t whole)
{
    return a == 1 && b == 1 && !uses ? 1 : whole;
}

/* The sides differ at most in that one is of no segment. */
static attune_mask_desc describe(const combination *state)
{
    return attune__mask_describe(state->side[state->side[0]->kv_total ? 0 : 1]);
}

static attune_status combine_expressions(combination *state, attune_expr **expr)
{
    const attune_mask *a = state->side[0], *b = state->side[1];
    const attune_allocator *allocator = &a->allocator;
    *expr = NULL;
    if (state->op == ATTUNE__OP_NOT)
        return a->expr ? attune__expr_combine(allocator, state->op, a->expr, NULL, expr) : ATTUNE_OK;
    if (a->expr && b->expr)
        return attune__expr_combine(allocator, state->op, a->expr, b->expr, expr);
    *expr = attune__expr_retain(a->expr ? a->expr : b->expr);
    return ATTUNE_OK;
}

static attune_status combine_by_block(combination *state)
{
    const attune_mask *a = state->side[0], *b = state->side[1];
    const attune_allocator *allocator = &a->allocator;
    const attune_mask_desc desc = describe(state);
    const unsigned bit_b = 1u << ATTUNE__VAR_B, bits_h = 1u << ATTUNE__VAR_H | 1u << ATTUNE__VAR_H_KV;
    attune_array captures[ATTUNE_EXPR_MAX_SYMBOLS] = {{0}};
    attune__value parameters[ATTUNE_EXPR_MAX_SYMBOLS] = {{0}};
    attune_expr *expr = NULL;
    attune_status status = combine_expressions(state, &expr);
    if (status != ATTUNE_OK)
        goto done;
    for (uint32_t i = 0; expr && i < expr->symbol_count; i++) {
        uint32_t j = 0;
        const attune_mask *owner = find_symbol(a, expr->symbols[i].name, &j) ? a : b;
        (void)find_symbol(owner, expr->symbols[i].name, &j);
        captures[i] = owner->captures[j];
        parameters[i] = owner->parameters[j];
    }
    /* The variables that classification depends on: simplification may have removed one from the combined expression
     * that the sides still use. NOT classifies nothing. */
    const unsigned uses = state->op == ATTUNE__OP_NOT ? 0 : a->uses | b->uses;
    status = attune__mask_new(allocator, &desc, stored(a->stored_batch, b->stored_batch, uses & bit_b, a->batch),
                              stored(a->stored_heads, b->stored_heads, uses & bits_h, a->heads), expr,
                              &(attune__bindings){captures, parameters}, &state->made);
    if (status != ATTUNE_OK)
        goto done;
    status = attune__rects_init(&state->rects, allocator, state->made->stored_batch * state->made->stored_heads);
    if (status == ATTUNE_OK && state->op != ATTUNE__OP_NOT && expr)
        status =
            attune__classifier_init(&state->combined, allocator, expr,
                                    &(attune__bindings){state->made->captures, state->made->parameters}, state->work);
    for (int s = 0; s < 2; s++)
        if (status == ATTUNE_OK && state->op != ATTUNE__OP_NOT && state->side[s]->expr)
            status = attune__classifier_init(&state->own[s], allocator, state->side[s]->expr,
                                             &(attune__bindings){state->side[s]->captures, state->side[s]->parameters},
                                             state->work);
    if (status == ATTUNE_OK)
        status = combine_planes(state);
    if (status == ATTUNE_OK && !state->materialise)
        status = attune__mask_store(state->made, &state->rects, state->work);
done:
    attune__expr_release(expr);
    return status;
}

/* ------------------------------------------------------------------------------------------------------ by element */

/*
 * Evaluates row q of a mask as the kernels do: by the lists, and by the expression in partial blocks. False: stopped.
 */
static bool element_row(const attune_mask *mask, int64_t b, int64_t h, int64_t q, void *scratch, uint8_t *out,
                        attune__work *work)
{
    const attune__bindings bindings = {mask->captures, mask->parameters};
    const attune__row row = attune__mask_row(mask, b, h, q);
    attune__runs run = attune__runs_begin(mask, attune__mask_at(mask, b, h).row0 + q / mask->q_block);
    for (; !attune__runs_done(&run); attune__runs_next(&run))
        for (int64_t c = run.c0; c < run.c1; c++) {
            const int64_t kv0 = c * mask->kv_block;
            const size_t count = (size_t)attune__min64(mask->kv_block, mask->kv_len - kv0);
            if (ATTUNE_OK !=
                attune__work_add(work, run.class == ATTUNE__PARTIAL ? count * mask->expr->node_count : count / 8))
                return false;
            if (run.class == ATTUNE__PARTIAL)
                attune__expr_mask_row(mask->expr, &bindings, &row, (int32_t)kv0, count, scratch, out + kv0);
            else
                memset(out + kv0, run.class == ATTUNE__FULL, count);
        }
    return true;
}

static int64_t dense_elements(const attune_mask *mask)
{
    uint32_t i;
    const attune__symbol *symbol = find_symbol(mask, "dense", &i);
    return symbol && symbol->kind == ATTUNE_SYMBOL_CAPTURE ? (int64_t)attune__array_count(&mask->captures[i]) : 0;
}

static attune_status combine_by_element(const combination *state, attune_mask **mask)
{
    const attune_mask *const *side = state->side;
    const attune_allocator *allocator = &side[0]->allocator;
    const attune_mask_desc desc = describe(state);
    const unsigned uses = side[0]->uses | side[1]->uses;
    const int64_t batch = stored(side[0]->stored_batch, side[1]->stored_batch, uses & 1u << ATTUNE__VAR_B, desc.batch);
    const int64_t heads = stored(side[0]->stored_heads, side[1]->stored_heads,
                                 uses & (1u << ATTUNE__VAR_H | 1u << ATTUNE__VAR_H_KV), desc.heads);
    /* The limit is at least the size of the dense arrays that are combined. */
    const int64_t held = dense_elements(side[0]) + dense_elements(side[1]);
    const int64_t limit = held > MATERIALISE_LIMIT ? held : MATERIALISE_LIMIT;
    int64_t elements = batch;
    if (!attune__multiply(&elements, heads) || !attune__multiply(&elements, desc.q_len * desc.kv_len) ||
        elements > limit)
        return attune__fail(
            ATTUNE_UNSUPPORTED,
            "combining these masks needs a dense array of %lld x %lld x %lld x %lld bytes, the limit "
            "is %lld: %s",
            (long long)batch, (long long)heads, (long long)desc.q_len, (long long)desc.kv_len, (long long)limit,
            held ? "both read an array named dense" : "lists of one say full or empty where its expression does not");
    attune_status status = ATTUNE_OUT_OF_HOST_MEMORY;
    void *scratch[2] = {NULL, NULL};
    uint8_t *other = NULL, *data = attune__alloc_raw(allocator, (size_t)elements, 1);
    if (!data)
        goto done;
    other = attune__alloc_raw(allocator, (size_t)desc.kv_len, 1);
    if (!other)
        goto done;
    for (int s = 0; s < 2; s++) {
        const size_t bytes = side[s]->expr ? attune__expr_scratch_size(side[s]->expr, desc.kv_block) : 1;
        scratch[s] = attune__alloc_raw(allocator, bytes, 1);
        if (!scratch[s])
            goto done;
    }
    uint8_t *row = data;
    const double rows = (double)batch * (double)heads * (double)desc.q_len;
    double passed = 0;
    for (int64_t b = 0; b < batch; b++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t q = 0; q < desc.q_len; q++, row += desc.kv_len) {
                attune__work_share(state->work, passed++ / rows);
                if (!element_row(side[0], b, h, q, scratch[0], row, state->work) ||
                    !element_row(side[1], b, h, q, scratch[1], other, state->work)) {
                    status = state->work->status;
                    goto done;
                }
                if (state->op == ATTUNE__OP_AND)
                    for (int64_t i = 0; i < desc.kv_len; i++)
                        row[i] &= other[i];
                else
                    for (int64_t i = 0; i < desc.kv_len; i++)
                        row[i] |= other[i];
            }
    status = attune__mask_adopt_dense(allocator, &desc, batch, heads, data, state->work, mask);
    if (status == ATTUNE_OK)
        data = NULL;
done:
    attune__free(allocator, data);
    attune__free(allocator, other);
    for (int s = 0; s < 2; s++)
        attune__free(allocator, scratch[s]);
    return status;
}

attune_status attune__mask_combine(attune__op op, const attune_mask *a, const attune_mask *b, attune__work *work,
                                   attune_mask **mask)
{
    combination state = {.op = op, .side = {a, op == ATTUNE__OP_NOT ? a : b}, .work = work};
    attune_mask *made = NULL;
    attune_status status = check_whole("a", a);
    if (status == ATTUNE_OK && op != ATTUNE__OP_NOT) {
        status = check_whole("b", b);
        if (status == ATTUNE_OK)
            status = check_pair(a, b);
        if (status == ATTUNE_OK)
            status = check_symbols(a, b, &state.materialise);
    }
    if (status == ATTUNE_OK && !state.materialise)
        status = combine_by_block(&state);
    if (status == ATTUNE_OK && state.materialise)
        status = combine_by_element(&state, &made);
    else if (status == ATTUNE_OK) {
        made = state.made;
        state.made = NULL;
    }
    attune__classifier_finish(&state.combined);
    attune__classifier_finish(&state.own[0]);
    attune__classifier_finish(&state.own[1]);
    attune__rects_finish(&state.rects);
    attune__mask_free(state.made);
    if (made)
        made->uses |= a->uses | state.side[1]->uses;
    *mask = made;
    return status;
}
